"""Objects of one bucket by their keys: calls of obstore, with this package's errors and without credentials.

Messages of obstore are never passed on. They contain URLs, which may carry signatures, and responses of
servers, which repeat access keys.
"""

import math
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

from feast_sketch_store import metrics
from feast_sketch_store.errors import StorageError
from feast_sketch_store.storage.base import FileExistsAlreadyError, MissingFileError, UncertainWriteError

_WRITE_ID = "writeid"  # metadata of an object: a random word for each write; Azure requires a plain name
_WRITE_ID_BYTES = 12
_CREATE_TRIES = 5  # of a key that is refused as taken, but then is not there
_DELETED_AT_ONCE = 1000
_CUT_TRIES = 4  # of a call whose connection is cut
_PROBE = "conditions-probe"  # stays in the bucket, so that the next probe takes one request

_STATUS = re.compile(r"status code: (\d{3})")
# Of an answer; or of one key of many that are deleted at once, whose answer has the status 200.
_CODE = re.compile(r"(?:<Code>|\(code: )(\w{1,60})(?:</Code>|\))")
_OF_DENIAL = re.compile(r"status code: 40[13]|(?:<Code>|\(code: )(?:AccessDenied|ExpiredToken)\b")
_CODE_OF_CLOCK = re.compile(r"RequestTimeTooSkewed|Request date header too old")
_OF_REGION = re.compile(r"BareRedirect|<Code>(AuthorizationHeaderMalformed|PermanentRedirect)</Code>")
_CODE_OF_NO_BUCKET = re.compile(r"<Code>(NoSuchBucket|ContainerNotFound)</Code>")
_PROFILES = "AWS_PROFILE and the files of `aws configure` are not read."
_BY_PROXY = " through the proxy"
_CUT = r"ConnectionReset|IncompleteMessage|UnexpectedEof"
# What obstore's errors say of a request that got no answer, the most specific first. Words in them are Rust's
# names of constants, nothing of the request.
_CAUSES = (
    (r"BadScheme", "the endpoint is http:// and allow_http is false"),
    (r"TunnelUnsuccessful", "the proxy refuses to connect; check proxy_url"),
    (r"ConnectFailed\([^,]*dns error", "the name of the proxy is unknown (DNS); check proxy_url"),
    (r"ConnectFailed\(", "no connection to the proxy; check proxy_url"),
    (r"dns error", "the name of the host is unknown (DNS); check the endpoint and the region{proxy}"),
    (r"ConnectionRefused", "the connection is refused; check host and port of the endpoint{proxy}"),
    (
        r"InvalidCertificate\(\s*(Expired|NotValidYet|NotValidForName)",
        "its TLS certificate is not valid ({})",
    ),
    (
        r"InvalidCertificate\(",
        "its TLS certificate is not trusted; name that of its authority in root_certificate",
    ),
    (
        r"InvalidMessage|AlertReceived|tls handshake",
        "the server does not speak TLS as asked; check https:// and the port of the endpoint",
    ),
    (r"kind: Timeout|TimedOut", "no answer within the timeouts; see timeout and connect_timeout"),
    (_CUT, "the server cut the connection"),
    (
        r"MissingEtag|MissingLastModified|NotPartial|Invalid\w+Response",
        "the answer is not one of an object store; check the endpoint, and whether a proxy answers instead",
    ),
)
# Requests for the credentials of a machine's role, by their paths on Amazon, Azure and Google.
_ROLE = re.compile(
    r"/latest/(api/token|meta-data/)|/computeMetadata/|/metadata/identity/|Error performing token request"
)


@dataclass(frozen=True)
class ObjectInfo:
    """Metadata of an object. ``write_id`` is empty in a listing, or if another program wrote the object;
    ``version`` is empty where the object store has none.
    """

    key: str
    size_bytes: int
    e_tag: str
    modified_at: float
    write_id: str = ""
    version: str = ""

    @property
    def token(self) -> str:
        """Identifies the content among all contents of the key. An e-tag alone may be a content hash."""
        return f"{self.e_tag}-{self.write_id or self.modified_at}"


class Objects:
    """The objects of a bucket. Safe to use from several threads, but not in a child forked after first use.

    Methods that read an object raise a `MissingFileError` if there is none. Those that write one raise an
    `UncertainWriteError` if it is not known whether it was written.

    Parameters
    ----------
    store : of obstore, without a prefix.
    location, endpoint : URL of the bucket, and address of its server if that is not the cloud's own, for
        messages; both without credentials.
    identity : differs between buckets of the same name at different endpoints.
    probe_folder : key, ending in a slash, of the folder for the probe of conditional writes.
    has_proxy : whether requests go through a proxy.
    """

    def __init__(
        self,
        store: Any,
        location: str,
        identity: str,
        probe_folder: str = "",
        endpoint: str = "",
        has_proxy: bool = False,
    ):
        self.location = location
        self.identity = identity
        self._server = (f" at {endpoint}" if endpoint else "") + (_BY_PROXY if has_proxy else "")
        self._store = store
        self._probe_key = probe_folder + _PROBE
        self._is_probed = False
        self._ahead_seconds = -math.inf  # of the object store's clock, to time.monotonic()
        self._used_by: int | None = None  # process

    def __repr__(self) -> str:
        return f"Objects({self.location!r})"

    def __reduce__(self) -> Any:
        raise TypeError("a connection to an object store stays in its process; open one in each process")

    def where(self, key: str = "") -> str:
        """An object's location, for messages."""
        return f"{self.location}/{key}" if key else self.location

    # -- list ----------------------------------------------------------------------------------

    def listed(self, folder: str, after: str = "") -> Iterator[ObjectInfo]:
        """All objects below a folder, which ends in a slash, with keys greater than ``after``."""
        with self._calling(folder, "listed"):
            prefix = folder.removesuffix("/") or None
            for chunk in obstore.list(self._store, prefix, offset=after or None):
                for meta in chunk:
                    if meta["path"] > after:
                        yield _info_of(meta)

    def names(self, folder: str) -> list[str]:
        """The keys of objects directly in a folder, without the folder."""
        return [meta["path"].removeprefix(folder) for meta in self._directly_in(folder)["objects"]]

    def folders(self, folder: str) -> Sequence[str]:
        """The names of folders directly in a folder."""
        found = self._directly_in(folder)["common_prefixes"]
        return sorted(path.removeprefix(folder).rstrip("/") for path in found)

    def _directly_in(self, folder: str) -> Any:
        with self._calling(folder, "listed"):
            return obstore.list_with_delimiter(self._store, folder.removesuffix("/") or None)

    def info(self, key: str) -> ObjectInfo | None:
        """Metadata of an object; None if it does not exist."""
        try:
            with self._calling(key, "read"):
                found = obstore.get(self._store, key, options={"head": True})
                return _answered(found)
        except MissingFileError:
            return None

    # -- read ----------------------------------------------------------------------------------

    def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Bytes of an object; fewer if it ends before."""
        if start == 0 and length is None:
            return self.read_all(key)[1]
        info = self.info(key)
        if info is None:
            raise _missing(self.where(key))
        end = info.size_bytes if length is None else min(info.size_bytes, start + length)
        if end <= start:
            return b""
        with self._calling(key, "read"):
            return self._fetched(bytes(obstore.get_range(self._store, key, start=start, end=end)))

    def read_all(self, key: str) -> tuple[ObjectInfo, bytes]:
        """An object with its metadata."""
        with self._calling(key, "read"):
            found = obstore.get(self._store, key)
            return _answered(found), self._fetched(bytes(found.bytes()))

    def read_part(self, info: ObjectInfo, start: int, end: int) -> bytes | None:
        """Bytes ``[start, end)`` of an object; None if it was replaced since ``info``."""
        with self._calling(info.key, "read"):
            try:
                found = obstore.get(
                    self._store, info.key, options={"range": (start, end), "if_match": info.e_tag}
                )
                return self._fetched(bytes(found.bytes()))
            except PreconditionError:
                return None

    def _fetched(self, content: bytes) -> bytes:
        metrics.record(metrics.FETCHED_BYTES, (self.location,), len(content))
        return content

    def read_range(self, key: str, start: int, end: int) -> bytes:
        """Bytes ``[start, end)`` of an object, fewer if it ends before."""
        with self._calling(key, "read"):
            return self._fetched(bytes(obstore.get_range(self._store, key, start=start, end=end)))

    # -- write ---------------------------------------------------------------------------------

    def create(self, key: str, content: bytes) -> None:
        """Write a new object. Raises FileExistsAlreadyError: the object exists."""
        self.require_conditions()
        for _ in range(_CREATE_TRIES):
            write_id = secrets.token_hex(_WRITE_ID_BYTES)
            if self._put(key, content, write_id, "create"):
                return
            found = self._refused(key)
            if found is not None:
                # The answer to a first try may have been lost.
                if found.write_id == write_id:
                    return
                raise FileExistsAlreadyError(f"{self.where(key)}: another process created the file first")
        raise UncertainWriteError(
            f"{self.where(key)}: refused as taken by the object store, and does not exist"
        )

    def replace(self, key: str, content: bytes, known: ObjectInfo | None = None) -> bool:
        """Write an object, new or not; or only in the place of a known one, and return False if that was
        replaced since.
        """
        self.require_conditions()
        mode: Any = "overwrite"
        if known is not None:
            # Google compares versions, the others e-tags. obstore refuses a version that is None.
            mode = {"e_tag": known.e_tag, **({"version": known.version} if known.version else {})}
        write_id = secrets.token_hex(_WRITE_ID_BYTES)
        if self._put(key, content, write_id, mode):
            return True
        # The answer to a first try may have been lost.
        found = self._refused(key)
        if found is not None and found.write_id == write_id:
            return True
        if known is None:  # there was no condition that did not hold
            raise UncertainWriteError(
                f"{self.where(key)}: the object store refuses to overwrite it; remove the bucket's rule that "
                "keeps objects from being changed, if it has one, and try again"
            )
        return False

    def _refused(self, key: str) -> ObjectInfo | None:
        """Metadata of an object that a put was refused for: it may be of a first try of the same put."""
        try:
            return self.info(key)
        except StorageError as error:
            raise UncertainWriteError(str(error)) from None

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects in the order of their keys; those that do not exist are left out."""
        ordered = sorted(keys)
        for first in range(0, len(ordered), _DELETED_AT_ONCE):
            self._delete(ordered[first : first + _DELETED_AT_ONCE])

    def _delete(self, keys: Sequence[str]) -> None:
        try:
            with self._calling(keys[0], "deleted"):
                _until_answered(lambda: obstore.delete(self._store, keys))
        except MissingFileError:  # some stores report this; the rest of the request may remain
            for key in keys if len(keys) > 1 else ():
                self._delete([key])

    def now(self) -> float:
        """The time by the object store's clock, in seconds since 1970."""
        self.replace(self._probe_key, b"")
        now = self.read_all(self._probe_key)[0].modified_at
        self._ahead_seconds = now - time.monotonic()
        return now

    def known_now(self) -> float:
        """The same without a request, or earlier by how long this machine has slept; -inf before `now`."""
        return time.monotonic() + self._ahead_seconds

    def require_conditions(self) -> None:
        """Check once that creating a key twice fails.

        Raises StorageError: it does not fail, so writers would overwrite each other's commits.
        """
        if self._is_probed:
            return
        key = self._probe_key  # no lock: a child that is forked meanwhile would wait for it forever
        if self._put(key, b"", "", "create") and self._put(key, b"", "", "create"):
            raise StorageError(
                f"{self.location}: this object store ignores conditions of writes (If-None-Match): "
                "it created the same object twice. Of two writers one would lose rows that were "
                "acknowledged, so the store does not write here; use a server that honours them"
            )
        self._is_probed = True

    def _put(self, key: str, content: bytes, write_id: str, mode: Any) -> bool:
        """Write an object in one piece. False if its condition did not hold."""
        attributes: Any = {_WRITE_ID: write_id} if write_id else None

        def put() -> None:
            obstore.put(self._store, key, content, mode=mode, attributes=attributes, use_multipart=False)

        try:
            with self._calling(key, "written", UncertainWriteError):
                _until_answered(put)
        except FileExistsAlreadyError:
            return False
        return True

    # -- errors --------------------------------------------------------------------------------

    @contextmanager
    def _calling(self, key: str, done: str, kind: type[StorageError] = StorageError) -> Iterator[None]:
        """Turn obstore's errors into `StorageError`, or ``kind`` if the outcome of the call is unknown."""
        if self._used_by not in (None, os.getpid()):
            raise StorageError(
                f"{self.location}: this process was forked from one that already used the object store, and "
                "connections do not survive that; start workers with the `spawn` method, or before the first "
                "read or write"
            )
        self._used_by = os.getpid()
        metrics.record(metrics.REQUESTS, (self.location, done))
        where = self.where(key)
        try:
            yield
        except (BaseError, OSError, ValueError) as error:  # FileNotFoundError among them
            if done == "written" and isinstance(error, AlreadyExistsError | PreconditionError):
                raise FileExistsAlreadyError(f"{where}: another process wrote it first") from None
            is_missing = isinstance(error, FileNotFoundError)
            if _CODE_OF_NO_BUCKET.search(str(error)) or (is_missing and done in ("listed", "written")):
                raise kind(f"{where}: there is no such bucket or container") from None
            if is_missing:
                raise _missing(where) from None
            raise kind(f"{where}: cannot be {done}: {_reason(error, self._server)}") from None


def _until_answered(call: Callable[[], object]) -> None:
    """Make a call of obstore, and again if its connection is cut.

    A server may end an idle connection just when it is used. obstore repeats only what it knows to be
    harmless: neither deletions of many keys nor puts with a condition.
    """
    for _ in range(_CUT_TRIES - 1):
        try:
            call()
        except BaseError as error:
            if not re.search(_CUT, str(error)):
                raise
        else:
            return
    call()


def _missing(where: str) -> MissingFileError:
    return MissingFileError(f"{where}: there is no such file")


def _refusal(text: str) -> str:
    """Why the object store denied access."""
    if _CODE_OF_CLOCK.search(text):
        return "the clock of this machine differs too much from that of the object store; set it"
    code = _CODE.search(text)
    return (
        f"access is denied{f' ({code[1]})' if code else ''}; check the credentials and what they permit. "
        f"{_PROFILES}"
    )


def _reason(error: Exception, server: str) -> str:
    """The part of an obstore error that is safe to show."""
    text = str(error)
    if _ROLE.search(text):
        return (
            "no credentials are given in storage_options or the environment, nor by a role of this machine. "
            f"{_PROFILES}"
        )
    code, status = _CODE.search(text), _STATUS.search(text)
    if _CODE_OF_CLOCK.search(text) or _OF_DENIAL.search(text):
        return _refusal(text)
    if _OF_REGION.search(text):
        return "the bucket is in another region; check the region and the endpoint"
    if status and status[1] == "407":
        return "the proxy demands a login; put it into proxy_url"
    if code or status:
        answer = " ".join(match[1] for match in (status, code) if match)
        # The answer to a request for metadata cannot say why.
        why = "; check whether the credentials have expired, and the region" if answer == "400" else ""
        return f"the object store answers {answer}{why}"
    for pattern, cause in _CAUSES:
        if found := re.search(pattern, text):
            # To an http:// endpoint, a proxy that cannot be reached fails as the endpoint would.
            proxy = " and proxy_url" if server.endswith(_BY_PROXY) else ""
            return f"the object store cannot be reached{server}: {cause.format(*found.groups(), proxy=proxy)}"
    if "error sending request" in text or "HTTP error" in text:
        return f"the object store cannot be reached{server}"
    return f"a call failed ({type(error).__name__})"


def _answered(found: Any) -> ObjectInfo:
    """Metadata of an object that was asked for. The page of a proxy has no e-tag, which obstore lets pass."""
    if not found.meta["e_tag"]:
        raise ValueError("MissingEtag")
    return _info_of(found.meta, found.attributes)


def _info_of(meta: Any, attributes: Any = None) -> ObjectInfo:
    return ObjectInfo(
        meta["path"],
        meta["size"],
        meta["e_tag"] or "",
        meta["last_modified"].timestamp(),
        (attributes or {}).get(_WRITE_ID, ""),
        meta["version"] or "",
    )
