"""The last known state of a view, kept with fetched files: processes start from it when the bucket is down.

    <view>.json          the snapshot's manifest, how far the row log was read, when the bucket last answered
    <view>.<word>.rows   the rows since the snapshot, one record per commit or file that was read

The rows are written before the JSON names them, so what it names is whole. All processes of the host write
here, under a lock; anything may be deleted at any time.
"""

import json
import os
import re
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.errors import DamagedFileError, StorageError
from feast_sketch_store.row_log import LogRead, Position
from feast_sketch_store.row_log.records import decode_records, decode_tables, encode_payload, encode_record
from feast_sketch_store.rows.encoding import row_keys
from feast_sketch_store.rows.entity_keys import find_sorted
from feast_sketch_store.snapshot.files import SnapshotFile, place_of
from feast_sketch_store.snapshot.manifest import checksum_of
from feast_sketch_store.storage.system import locked

_FORMAT_VERSION = 1
_UNUSED_SECONDS = 7 * 86_400.0  # after which what is kept of a view is deleted
# With the note of its file, see `view.view_file`; the JSON is written at each poll.
_KEPT_NAME = re.compile(r"([0-9a-f]{32})\.(json|view|[0-9a-f]{8}\.rows)")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Moment:
    """A time in seconds, by the clock since the machine started and by the wall clock.

    A wall clock may be changed. The other clock counts only until the machine restarts.
    """

    boot: str
    since_boot: float
    wall: float

    @classmethod
    def now(cls) -> "Moment":
        """This moment."""
        boot = ""
        with suppress(OSError):
            boot = _BOOT_ID.read_text("utf-8").strip()
        clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
        return cls(boot, time.clock_gettime(clock), time.time())

    def seconds_until(self, later: "Moment") -> float:
        """Seconds from this time to a later one, at least 0."""
        if self.boot and self.boot == later.boot:
            return max(0.0, later.since_boot - self.since_boot)
        return max(0.0, later.wall - self.wall)


@dataclass(frozen=True)
class Known:
    """A view as it was last read."""

    snapshot: str  # the name of the snapshot; empty if there was none
    manifest: bytes  # the content of its manifest; empty likewise
    identity: bytes
    number: int  # the last commit of the row log that was read
    rows_file: str  # the name of the file with the rows since the snapshot
    # rows_bytes, num_records: the part of that file that counts
    rows_bytes: int
    num_records: int
    answered: Moment

    @property
    def position(self) -> Position:
        """How far the row log was read."""
        return Position(self.number, self.identity or None)

    def encode(self) -> bytes:
        """The content of the JSON file."""
        content = {
            **asdict(self),
            "format_version": _FORMAT_VERSION,
            "identity": self.identity.hex(),
            "manifest": self.manifest.decode(),
        }
        text = json.dumps(content, sort_keys=True)
        return json.dumps({"checksum": checksum_of(text.encode()), "content": text}).encode()

    @classmethod
    def decode(cls, given: bytes) -> "Known":
        """The reverse.

        Raises ValueError, KeyError, TypeError: it is damaged, or another release wrote it.
        """
        outer = json.loads(given)
        if checksum_of(outer["content"].encode()) != outer["checksum"]:
            raise ValueError("its checksum does not match")
        content = json.loads(outer["content"])
        if content.pop("format_version") != _FORMAT_VERSION:
            raise ValueError("another release wrote it")
        encoded = {
            "answered": Moment(**content["answered"]),
            "identity": bytes.fromhex(content["identity"]),
            "manifest": content["manifest"].encode(),
        }
        return cls(**{**content, **encoded})


class LastKnown:
    """The last known state of one view on a host. Safe to use from several processes.

    ``path`` begins the names of its files; their folder need not exist.
    """

    def __init__(self, path: Path):
        self._path = path
        self._checked = ""  # the file of rows that this object has read, or written

    def read(self) -> tuple[Known, list[pa.Table]] | None:
        """The view as last read, and the rows since the snapshot in order; None if there is nothing sound."""
        try:
            with self._locked():
                known = self._read()
                return None if known is None else (known, self._rows(known))
        except (DamagedFileError, OSError, ValueError, pa.ArrowException):
            return None

    def save(
        self,
        snapshot: SnapshotFile | None,
        log: LogRead,
        late: NDArray[np.uint64],
        since: int,
        all_rows: Callable[[], tuple[LogRead, NDArray[np.uint64]]],
        asked: Moment,
    ) -> None:
        """Keep the result of a poll of the storage, without writing rows again that are already kept.

        Parameters
        ----------
        snapshot : on which the state is based.
        log, since : the part of the row log that was read, and the commit after which it was read.
        late : hashes of entities whose rows there do not count, ascending: uint64[n, 2].
        all_rows : reads everything after the snapshot, and returns who is late there.
        asked : when the poll began.

        Raises StorageError, DamagedFileError: files cannot be written, or the manifest or the rows not be
        read.
        """
        with self._writing():
            known = self._read()
            name, identity = snapshot.name if snapshot else "", log.position.identity or b""
            if known is not None and known.identity == identity and not log.starts_over:
                if place_of(known.snapshot) > place_of(name):
                    return  # another process is ahead
                is_sound = known.snapshot == name and self._is_sound(known)
                tables = _behind(log, known.number, since) if is_sound else None
                if tables is not None and (grown := self._with_rows(known, tables, late)) is not None:
                    number = max(known.number, log.position.number)
                    self._write(replace(grown, number=number, answered=asked))
                    return
            if since != (snapshot.version - 1 if snapshot else -1) and not log.starts_over:
                log, late = all_rows()
            manifest = snapshot.manifest().encode() if snapshot else b""
            rows_file = f"{self._path.name}.{secrets.token_hex(4)}.rows"
            new = Known(name, manifest, identity, log.position.number, rows_file, 0, 0, asked)
            grown = self._with_rows(new, log.batches(), late)
            assert grown is not None
            self._write(grown)
            self._checked = rows_file
            for path in self._path.parent.glob(f"{self._path.name}.*.rows"):
                if path.name != rows_file:
                    path.unlink(missing_ok=True)
            self._forget_others()

    def note_answer(self, snapshot: SnapshotFile | None, position: Position, asked: Moment) -> bool:
        """Note that the storage has answered a poll, of a moment, with nothing new after this place.

        Returns False if what is kept here is older: a `save` has failed.
        """
        name, identity = snapshot.name if snapshot else "", position.identity or b""
        with suppress(OSError), self._locked():
            known = self._read()
            if known is None or known.identity != identity:
                return False
            if (place_of(known.snapshot), known.number) < (place_of(name), position.number):
                return False
            self._write(replace(known, answered=asked))
        return True

    # -- files ---------------------------------------------------------------------------------

    def _forget_others(self) -> None:
        """Delete what is kept of views that no process has polled for long, such as removed ones."""
        kept = defaultdict[str, list[Path]](list)
        for path in self._path.parent.iterdir():
            if match := _KEPT_NAME.fullmatch(path.name):
                kept[match[1]].append(path)
        oldest = time.time() - _UNUSED_SECONDS
        for paths in kept.values():
            with suppress(OSError):
                if all(path.stat().st_mtime < oldest for path in paths):
                    for path in paths:
                        path.unlink()

    def _locked(self) -> AbstractContextManager[None]:
        return locked(self._path.with_suffix(".lock"))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """`_locked`, to write. Raises StorageError: files cannot be written."""
        try:
            with self._locked():
                yield
        except OSError as error:
            raise StorageError(
                f"{self._path}: the last known state of a view cannot be written: {error}"
            ) from error

    def _read(self) -> Known | None:
        try:
            return Known.decode(self._path.with_suffix(".json").read_bytes())
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def _write(self, known: Known) -> None:
        partial = self._path.with_suffix(".json.partial")
        partial.write_bytes(known.encode())
        partial.rename(self._path.with_suffix(".json"))

    def _is_sound(self, known: Known) -> bool:
        """Whether rows may be written after those that are kept: the first call for a file reads it."""
        if self._checked != known.rows_file:
            try:
                self._rows(known)
            except (DamagedFileError, OSError, ValueError, pa.ArrowException):
                return False
            self._checked = known.rows_file
        return True

    def _with_rows(self, known: Known, tables: Iterable[pa.Table], late: NDArray[np.uint64]) -> Known | None:
        """Write rows after those that count, without those of late entities; None if the file was cut."""
        path = self._path.with_name(known.rows_file)
        path.touch()
        number = known.num_records
        with path.open("r+b") as file:
            if file.seek(0, os.SEEK_END) < known.rows_bytes:
                return None
            file.truncate(known.rows_bytes)  # left by a process that died
            file.seek(known.rows_bytes)
            for rows in filter(len, (_without(table, late) for table in tables)):
                kind, content = encode_payload(rows)
                for piece in encode_record(kind, number, content):
                    file.write(piece)
                number += 1
            return replace(known, rows_bytes=file.tell(), num_records=number)

    def _rows(self, known: Known) -> list[pa.Table]:
        """The rows of a file. If it cannot be read, was cut or altered, this raises what `read` expects."""
        path = self._path.with_name(known.rows_file)
        content = path.read_bytes()[: known.rows_bytes]
        records = decode_records(content, 0, 0, str(path), len(content))
        tables = decode_tables(record.payload for record in records)
        if len(tables) != known.num_records:
            raise DamagedFileError(f"{path}: a file of the cache was cut")
        return tables


def _behind(log: LogRead, number: int, since: int) -> Iterable[pa.Table] | None:
    """The rows after a commit, out of what was read after another; None if that does not separate them."""
    if log.position.number <= number:
        return []
    if since == number:
        return log.batches()
    if since > number or log.files:
        return None
    return (batch for commit in log.commits if commit.number > number for batch in commit.batches())


def _without(table: pa.Table, late: NDArray[np.uint64]) -> pa.Table:
    """Rows of the log without those of some entities."""
    if not len(late):
        return table
    found, _ = find_sorted(late, row_keys(table).entity_hashes)
    return table.take(np.delete(np.arange(len(table)), found))
