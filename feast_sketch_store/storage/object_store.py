"""`ObjectStorage`: objects of a bucket, on S3, Azure or Google.

Each file is one object, made by one put. The put of a new file is refused if there is already an object. So a
crash leaves a file whole or absent, and an acknowledged put is durable. Nothing can be appended to.

A lease is an object that its holder renews. The object store's clock measures its age. A lease saves work,
and keeps writes out of a view that is being removed. Two processes may hold the same lease for a while, if a
holder is stopped for longer than a lease lasts.
"""

import functools
import hashlib
import io
import logging
import secrets
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.errors import DamagedFileError, StorageError
from feast_sketch_store.storage.base import (
    READ_ONLY,
    FileExistsAlreadyError,
    FileInfo,
    MissingFileError,
    Storage,
    checked_folder,
    checked_name,
)
from feast_sketch_store.storage.chunks import KnownFile
from feast_sketch_store.storage.file_cache import CachedFile, in_memory
from feast_sketch_store.storage.objects import ObjectInfo, Objects

_CHECKED_TRIES = 3  # of a part that arrives with wrong bytes
_FETCH_TRIES = 3  # in parts, of an object that others keep replacing
_MAX_OBJECT_BYTES = 5_000 << 20  # of one put, on S3 and on Azure

_logger = logging.getLogger(__name__)

LEASE_SECONDS = 60.0  # without a renewal
_RENEWED_EVERY_SECONDS = 15.0
_POLLED_EVERY_SECONDS = 0.5  # while another process waits


class _ReplacedError(Exception):
    """Another object has replaced the one that was read."""


class ObjectStorage(Storage):
    """The objects of a bucket whose keys begin with a folder: ``""``, or a key that ends in a slash.

    ``cache_path`` is a local folder for fetched files, which all processes of the host map; None to fetch
    into memory.
    """

    fetches = True

    def __init__(
        self, objects: Objects, folder: str = "", read_only: bool = False, cache_path: Path | None = None
    ):
        self._objects = objects
        self._prefix = checked_folder(folder, objects.location)
        self._cache_path = cache_path
        self.read_only = read_only
        self.location = objects.where(folder.removesuffix("/"))

    def within(self, folder: str) -> "ObjectStorage":
        key = self._prefix + _key_of(checked_folder(folder, self.location))
        return ObjectStorage(self._objects, key, self.read_only, self._cache_path)

    # -- list ----------------------------------------------------------------------------------

    @property
    def identity(self) -> str:
        """See `Storage.identity`; it includes the endpoint."""
        return f"{self._objects.identity}/{self._prefix}"

    @property
    def host_path(self) -> Path | None:
        """In the cache, see `Storage.host_path`."""
        if self._cache_path is None:
            return None
        return self._cache_path / hashlib.blake2b(self.identity.encode(), digest_size=16).hexdigest()

    def list(self, folder: str = "", after: str = "") -> Sequence[str]:
        key = self._prefix + _key_of(checked_folder(folder, self.location))
        if after:
            listed = self._objects.listed(key, key + _key_of(after))
            names = [info.key.removeprefix(key) for info in listed]
        else:
            names = self._objects.names(key)
        return sorted(_name_of(name) for name in names if "/" not in name)

    def folders(self) -> Sequence[str]:
        """The names of the folders directly in this one, ascending."""
        return self._objects.folders(self._prefix)

    def info(self, name: str) -> FileInfo | None:
        info = self._objects.info(self._key(name))
        return None if info is None else self._file_info(info)

    def walk(self) -> Iterator[FileInfo]:
        """All files, see `Storage.walk`, of which a listing has no tokens."""
        for info in self._objects.listed(self._prefix):
            yield FileInfo(self._name(info), info.size_bytes, "", info.modified_at)

    def _file_info(self, info: ObjectInfo) -> FileInfo:
        return FileInfo(self._name(info), info.size_bytes, info.token, info.modified_at)

    def now(self) -> float:
        """By the object store's clock, see `Storage.now`."""
        self._require_writable()
        return self._objects.now()

    # -- read ----------------------------------------------------------------------------------

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        return self._objects.read(self._key(name), start, length)

    def map(self, name: str, known: KnownFile | None = None) -> NDArray[np.uint8]:
        """A file's bytes, fetched into memory or into the cache, see `Storage.map`."""
        content = self._map_present(self._key(name)) if known is None else self._map_known(name, known)
        content.flags.writeable = False
        return content

    def _map_known(self, name: str, known: KnownFile) -> NDArray[np.uint8]:
        """A file's bytes, checked as they arrive."""
        key = self._key(name)

        def fetch(start: int, end: int) -> bytes:
            try:
                for _ in range(_CHECKED_TRIES):
                    part = self._objects.read_range(key, start, end)
                    if known.chunks.match(start, part):
                        return part
            except StorageError:  # servers refuse a range that an object lacks, in words of their own
                info = self._objects.info(key)
                if info is None or info.size_bytes == known.size_bytes:
                    raise
            raise DamagedFileError(
                f"{self._objects.where(key)}: bytes {start} to {end} are not those that were written"
            )

        copy = self.copy_of(name, known)
        return in_memory(known.size_bytes, fetch, known.chunks) if copy is None else copy.map(fetch)

    def _map_present(self, key: str) -> NDArray[np.uint8]:
        """The bytes that an object has now; not cached, as a cache could not know when to delete them."""
        for _ in range(_FETCH_TRIES):
            info = self._objects.info(key)
            if info is None:
                raise MissingFileError(f"{self._objects.where(key)}: there is no such file")
            with suppress(_ReplacedError):
                return in_memory(info.size_bytes, functools.partial(self._part_of, info))
        return np.frombuffer(self._objects.read(key), np.uint8)  # in one request, and so whole

    def _part_of(self, info: ObjectInfo, start: int, end: int) -> bytes:
        part = self._objects.read_part(info, start, end)
        if part is None or len(part) != end - start:
            raise _ReplacedError
        return part

    def copy_of(self, name: str, known: KnownFile | None) -> CachedFile | None:
        """The copy in the cache, see `Storage.copy_of`."""
        if self._cache_path is None or known is None:
            return None
        checksums = b"".join(known.chunks.checksums).hex()
        content = f"{self._objects.identity}\n{self._key(name)}\n{checksums}"
        return CachedFile(self._cache_path, content, known)

    # -- write ---------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Check that writing works, and that the object store honours conditions."""
        self._require_writable()
        self._objects.require_conditions()

    @contextmanager
    def create(self, name: str) -> Iterator[BinaryIO]:
        key = self._key(name)
        self._require_writable()
        file = io.BytesIO()
        yield file
        content = file.getvalue()  # no copy; a view of the buffer could outlive the file, which warns
        if len(content) > _MAX_OBJECT_BYTES:
            raise StorageError(
                f"{self.where(name)}: an object has at most {_MAX_OBJECT_BYTES >> 20} MiB; this would have "
                f"{len(content) >> 20}"
            )
        self._objects.create(key, content)

    def replace(self, name: str, content: bytes) -> None:
        key = self._key(name)
        self._require_writable()
        self._objects.replace(key, content)

    def replace_known(self, name: str, content: bytes, token: str) -> bool:
        key = self._key(name)
        self._require_writable()
        info = self._objects.info(key)
        if info is None or self._file_info(info).token != token:
            return False
        return self._objects.replace(key, content, info)

    def delete(self, names: Iterable[str]) -> None:
        keys = [self._key(name) for name in names]
        self._require_writable()
        self._objects.delete(keys)

    def delete_all(self) -> None:
        """Delete everything that is there now, see `Storage.delete_all`."""
        self._require_writable()
        self._objects.delete([info.key for info in self._objects.listed(self._prefix)])

    def _require_writable(self) -> None:
        if self.read_only:
            raise StorageError(f"{self.location}: {READ_ONLY}")

    # -- order ---------------------------------------------------------------------------------

    @contextmanager
    def lease(self, name: str, wait: bool = False, create: bool = True) -> Iterator[bool]:
        """Keep others out as far as possible, see `Storage.lease`."""
        key = self._key(name)
        self._require_writable()
        holder = secrets.token_hex(8).encode()
        while not (is_mine := _take(self._objects, key, holder)) and wait:
            time.sleep(_POLLED_EVERY_SECONDS)
        if not is_mine:
            yield False
            return
        done = threading.Event()
        renewer = threading.Thread(
            target=_renew,
            args=(self._objects, key, holder, done),
            name="feast_sketch_store lease",
            daemon=True,
        )
        renewer.start()
        try:
            yield True
        finally:
            done.set()
            renewer.join()
            try:
                if _held(self._objects, key, holder) is not None:
                    self._objects.delete([key])
            except StorageError as error:
                _logger.warning("%s; the lease keeps others out for %.0f seconds more", error, LEASE_SECONDS)

    # -- parts ---------------------------------------------------------------------------------

    def _key(self, name: str) -> str:
        checked_name(name, self.location)
        if any(ord(character) < 32 or ord(character) == 127 for character in name):
            raise StorageError(f"{self.location}: {name!r} has characters that no object's key can have")
        return self._prefix + _key_of(name)

    def _name(self, info: ObjectInfo) -> str:
        return _name_of(info.key.removeprefix(self._prefix))


def _key_of(name: str) -> str:
    """A name as part of a key; the order of names is kept. Some servers treat a backslash as a slash."""
    return name.replace("[", "[0").replace("\\", "[1")


def _name_of(key: str) -> str:
    """The reverse of `_key_of`."""
    return key.replace("[1", "\\").replace("[0", "[")


def _take(objects: Objects, key: str, holder: bytes) -> bool:
    with suppress(FileExistsAlreadyError):
        objects.create(key, holder)
        return True
    found = objects.info(key)
    if found is None:
        return False  # it was released just now
    # One that is dated further ahead than it can last is from before that clock was put back.
    if any(abs(now() - found.modified_at) < LEASE_SECONDS for now in (objects.known_now, objects.now)):
        return False
    return objects.replace(key, holder, found)


def _held(objects: Objects, key: str, holder: bytes) -> ObjectInfo | None:
    """Metadata of the lease, if it still belongs to the holder."""
    try:
        info, content = objects.read_all(key)
    except MissingFileError:
        return None
    return info if content == holder else None


def _renew(objects: Objects, key: str, holder: bytes, done: threading.Event) -> None:
    while not done.wait(_RENEWED_EVERY_SECONDS):
        with suppress(StorageError):
            known = _held(objects, key, holder)
            if known is None or not objects.replace(key, holder, known):
                return
