"""The write-ahead log on object stores, without appends: one object per commit, created by a conditional put.

    fresh/log                                    the log's identity: the head of a segment, nothing else
    fresh/<identity>-00000000000000000512.log    the head, and the record of commit 512

If two writers use one number, one is refused; it reads what the other wrote and takes the next number. Nobody
holds a lock. These rules keep the numbers without gaps:

- Names contain the log's identity, which every read checks. So nobody reads what a writer puts into a log
  that was dropped meanwhile.
- The last record stays, absorbed or not, because it determines the next number.
- A record is deleted when it is absorbed and the one after it is older than `RECORDS_KEPT_SECONDS`, by the
  storage's clock. A writer that listed the log before that one was there gets the answer of its put within
  half that time, by its own clock, or raises. So no name is used twice for acknowledged commits.
- Numbers before a gap are absorbed, and being deleted.
"""

import bisect
import random
import re
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial

from feast_sketch_store.errors import DamagedFileError, SketchStoreError, StorageError, counted
from feast_sketch_store.row_log.records import (
    CLOSED,
    IDENTITY_BYTES,
    SEGMENT_HEAD_BYTES,
    Commit,
    Payload,
    Record,
    SegmentHead,
    commits_of,
    decode_records,
    decode_segment_head,
    encode_payload,
    encode_record,
    encode_segment_head,
)
from feast_sketch_store.row_log.wal import Cursor, Tail, WriteAheadLog
from feast_sketch_store.storage.base import FileExistsAlreadyError, MissingFileError, UncertainWriteError
from feast_sketch_store.storage.names import FRESH_FOLDER, OBJECT_LOG
from feast_sketch_store.threads import in_threads

RECORDS_KEPT_SECONDS = 600.0
_PUT_SECONDS = RECORDS_KEPT_SECONDS / 2

_ROOT = OBJECT_LOG.removeprefix(FRESH_FOLDER)
_RECORD_NAME = re.compile(r"([0-9a-f]{32})-(\d{20})\.log")
_TRIES = 1_000  # to commit while others commit
_LONGEST_PAUSE_SECONDS = 0.5
_FETCHERS = 16


class ObjectWriteAheadLog(WriteAheadLog):
    """See `WriteAheadLog`. A cursor's segment is the last record before it; empty if none is needed."""

    # -- inspect -------------------------------------------------------------------------------

    def first_numbers(self) -> list[int]:
        """The numbers of the records; 0 for a log without records, empty without a log."""
        identity = self._identity()
        return [] if identity is None else self._numbers(identity) or [0]

    def is_at_end(self, cursor: Cursor) -> bool:
        """Whether nothing was written after a position of a log that is still the same."""
        known = int(bool(cursor.segment))
        numbers = self._numbers(cursor.identity, cursor.next_number - 1 - known)
        wanted = [cursor.next_number - 1] * known
        return numbers == wanted and self._identity() == cursor.identity

    def cut_off(self) -> list[str]:
        """Returns nothing, because an object exists whole or not at all."""
        return []

    def start(self, number: int = 0) -> Cursor | None:
        """The position before a record, or at the end of the log; None if no record is that old."""
        identity = self._identity()
        if identity is None:
            return None
        numbers = self._numbers(identity)
        if not numbers:
            return Cursor("", "", identity, 0, 0)
        if number < numbers[0]:
            return None
        following = min(number, numbers[-1] + 1)
        segment = _name(identity, following - 1) if following > numbers[0] else ""
        return Cursor(segment, "", identity, 0, following)

    def starts(self) -> Iterator[Cursor]:
        """The position before the first record."""
        while numbers := self.first_numbers():
            # Else it was dropped since, and there are other logs.
            if (start := self.start(numbers[0])) is not None:
                yield start
                return

    def read(self, cursor: Cursor | None = None) -> tuple[list[Commit], Cursor] | None:
        """See `WriteAheadLog.read`; no record is ever half written."""
        return self._read(cursor)

    def _behind(self, cursor: Cursor, is_start: bool = False) -> tuple[list[Commit], Cursor] | None:
        known = int(bool(cursor.segment))
        first = cursor.next_number
        numbers = self._numbers(cursor.identity, first - 1 - known)
        if numbers[:1] not in ([], [first - known]) or len(numbers) < known:
            return None
        numbers = numbers[known:]
        # Objects that were put into the log while it was dropped may remain.
        if self._identity() != cursor.identity:
            return None
        try:
            records = self._records(cursor.identity, numbers)
        except MissingFileError:
            return None
        num_erased = sum(record.kind == CLOSED for record in records)
        # Erased records come before all others, and their rows are in the table.
        if num_erased and not is_start:
            return None  # absorbed meanwhile
        commits = commits_of(records[num_erased:], self._table)
        if not numbers:
            return commits, cursor
        last = numbers[-1]
        return commits, Cursor(_name(cursor.identity, last), "", cursor.identity, 0, last + 1)

    def _records(self, identity: bytes, numbers: Sequence[int]) -> list[Record]:
        return [*in_threads(partial(self._record, identity), numbers, _FETCHERS)]

    def _record(self, identity: bytes, number: int) -> Record:
        name = _name(identity, number)
        content, source = self._storage.read(name), self._storage.where(name)
        if decode_segment_head(content, source) != SegmentHead(identity, number):
            raise DamagedFileError(f"{source}: has the name of another record, or is cut off")
        records = list(
            decode_records(content[SEGMENT_HEAD_BYTES:], number, SEGMENT_HEAD_BYTES, source, len(content))
        )
        if len(records) != 1 or records[0].end != len(content):
            raise DamagedFileError(f"{source}: holds {len(records)} whole records instead of one")
        return records[0]

    def _identity(self) -> bytes | None:
        """The identity of the log; None without a log."""
        try:
            content = self._storage.read(_ROOT)
        except MissingFileError:
            return None
        head = decode_segment_head(content, self._storage.where(_ROOT))
        if head is None:
            raise DamagedFileError(f"{self._storage.where(_ROOT)}: is cut off")
        return head.identity

    def _all_numbers(self, identity: bytes, after: int = -1) -> list[int]:
        """The numbers of all records, ascending. The name of the log follows theirs."""
        names = self._storage.list(after=_name(identity, after) if after >= 0 else identity.hex())
        if _ROOT not in names and self._identity() == identity:
            raise StorageError(
                f"{self.where}: a listing lacks {_ROOT!r}, which is there: it is not one of an object store; "
                "check the endpoint, and whether a proxy answers instead"
            )
        matches = map(_RECORD_NAME.fullmatch, names)
        return [int(m[2]) for m in matches if m and m[1] == identity.hex()]

    def _numbers(self, identity: bytes, after: int = -1) -> list[int]:
        """The numbers of the records after a number, up to the first gap."""
        numbers = self._all_numbers(identity, after)
        first = len(numbers)
        while first and numbers[first - 1] == numbers[-1] - (len(numbers) - first):
            first -= 1
        return numbers[first:]

    # -- write ---------------------------------------------------------------------------------

    def append(
        self,
        payloads: Sequence[Payload],
        check: Callable[[Tail, Sequence[Payload]], None] = lambda tail, payloads: None,
    ) -> tuple[int, Cursor | None]:
        """Append commits, see `WriteAheadLog.append`: each is a commit of its own, and those before it stay.

        Raises UncertainWriteError: the commit may be there, or come later.
        """
        with self._lock:
            number = -1
            if not payloads:
                found = self._find_tail()
                check(found, payloads)
                if found.end is None:
                    self._begin()
                else:
                    number = found.end.next_number - 1
            for place, payload in enumerate(payloads):
                try:
                    number = self._append_one(payload, check)
                except SketchStoreError as error:
                    if not place or isinstance(error, UncertainWriteError):
                        raise
                    raise StorageError(
                        f"{error}. The rows of {counted(place, 'file')} of the batch were written. "
                        "Write the batch again; what is there already does no harm"
                    ) from error
            return number, self._tail

    def _append_one(self, payload: Payload, check: Callable[[Tail, Sequence[Payload]], None]) -> int:
        kind, content = encode_payload(payload)
        for attempt in range(_TRIES):
            began = _boot_time()
            found = self._find_tail()
            check(found, [payload])
            if found.end is None:
                self._begin()
                continue  # check again: what a drop had not yet removed may be gone
            tail = self._tail = found.end
            try:
                self._put(tail.identity, tail.next_number, kind, content)
            except FileExistsAlreadyError:
                # Another writer was faster each time, so the log as a whole makes progress.
                time.sleep(random.uniform(0, min(_LONGEST_PAUSE_SECONDS, 0.005 * 2 ** min(attempt, 10))))
                continue
            if _boot_time() - began > _PUT_SECONDS:
                self._tail = None
                raise UncertainWriteError(
                    f"{self.where}: a commit took longer than {_PUT_SECONDS:.0f} seconds and may not count"
                )
            number = tail.next_number
            self._tail = Cursor(_name(tail.identity, number), "", tail.identity, 0, number + 1)
            return number
        raise StorageError(f"{self.where}: other processes commit too often; try again when they are idle")

    def _begin(self) -> None:
        """Begin a log, unless another writer has just begun it."""
        head = SegmentHead(secrets.token_bytes(IDENTITY_BYTES), 0)
        with suppress(FileExistsAlreadyError), self._storage.create(_ROOT) as file:
            file.write(encode_segment_head(head))

    def _put(self, identity: bytes, number: int, kind: int, payload: bytes | memoryview) -> None:
        with self._storage.create(_name(identity, number)) as file:
            for piece in _pieces(identity, number, kind, payload):
                file.write(piece)

    def close_segment(self) -> int:
        """The last commit, -1 for none: there is nothing to close."""
        with self._lock:
            end = self._find_tail().end
            return -1 if end is None else end.next_number - 1

    def begin_segment(self) -> None:
        """Nothing: each record is an object of its own."""

    # -- clean up ------------------------------------------------------------------------------

    def drop_before(self, number: int) -> None:
        """Delete absorbed records with smaller numbers, as far as their names are no longer needed."""
        identity = self._identity()
        if identity is None:
            return
        kept = self._numbers(identity)
        gone = [n for n in self._all_numbers(identity) if kept and n < kept[0]]
        candidates = [n for n in kept[:-1] if n < number]
        if candidates:
            now = self._storage.now()

            def is_kept(number: int) -> bool:
                info = self._storage.info(_name(identity, number + 1))
                return info is not None and now - info.modified_at < RECORDS_KEPT_SECONDS

            # Records are written in the order of their numbers.
            gone += candidates[: bisect.bisect_left(candidates, True, key=is_kept)]
        self._storage.delete(_name(identity, n) for n in gone)

    def erase_before(self, number: int) -> None:
        """Remove the rows from absorbed records with smaller numbers; their names stay."""
        identity = self._identity()
        if identity is None:
            return
        for n in self._numbers(identity):
            if n >= number:
                break
            with suppress(MissingFileError):  # another process has just dropped it
                if self._record(identity, n).kind != CLOSED:
                    content = b"".join(map(bytes, _pieces(identity, n, CLOSED, b"")))
                    self._storage.replace(_name(identity, n), content)


def _name(identity: bytes, number: int) -> str:
    return f"{identity.hex()}-{number:020d}.log"


def _pieces(identity: bytes, number: int, kind: int, payload: bytes | memoryview) -> list[bytes | memoryview]:
    return [encode_segment_head(SegmentHead(identity, number)), *encode_record(kind, number, payload)]


def _boot_time() -> float:
    """Seconds of a clock that continues while the machine sleeps, if there is one."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
