"""The write-ahead log (WAL): rows since the last absorption, in segments that are only appended to.

    fresh/                            the folder of the log in a view
    fresh/lock                        held during an append
    fresh/end                         how far the last segment was durable when it was written last
    fresh/00000000000000000000.log    a segment; its name is the number of its first record
    fresh/00000000000000000512.log    the next one, after the first was closed

A commit is one record: an append and one sync. Commits of all processes are ordered by the lock, and numbered
without gaps. See `records` for the bytes. Zeros follow the last record, which the next one overwrites: a sync
that does not change the size of the file does not wait for what others write to the same file system.

Readers take no lock, so they may read a record whose sync then fails. The writer cuts that record off, and
another one takes its number. Nothing reliably announces this, because the writer may be killed and the disk
fails. So a reader knows which of its records may vanish: those that ``fresh/end`` did not cover when they
were read. Bytes after the mark that are no record were never acknowledged; before it they are damage.
"""

import itertools
import math
import re
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace

from feast_sketch_store.errors import DamagedFileError, StorageError
from feast_sketch_store.row_log.records import (
    CLOSED,
    IDENTITY_BYTES,
    PIECES_OF_A_RECORD,
    RECORD_HEAD_BYTES,
    SEGMENT_HEAD_BYTES,
    Commit,
    Payload,
    SegmentHead,
    commits_of,
    decode_mark,
    decode_records,
    decode_segment_head,
    encode_mark,
    encode_payload,
    encode_record,
    encode_segment_head,
)
from feast_sketch_store.storage.base import FileInfo, MissingFileError, Storage
from feast_sketch_store.storage.names import APPEND_LOCK, FRESH_FOLDER

_LOCK = APPEND_LOCK.removeprefix(FRESH_FOLDER)
_END = "end"
_SEGMENT_NAME = re.compile(r"(\d{20})\.log")


@dataclass(frozen=True)
class Cursor:
    """A position in the log after the last record that was read, in a segment known by its token, if it has
    one.

    ``next_number`` is the number of the next record. ``last`` is the start and the head of the record before
    the place, to notice when another record took the place of one whose write had failed. ``modified_at`` is
    the time of the segment's last change before it was read. ``is_durable`` says that everything before the
    position was durable before it was read, so that its records vanish only by absorption.
    """

    segment: str
    token: str
    identity: bytes
    offset: int
    next_number: int
    is_closed: bool = False
    last: tuple[int, bytes] | None = None
    modified_at: float = 0.0
    is_durable: bool = True


class RewrittenError(StorageError):
    """Records before a position were never acknowledged and are gone, or may be.

    ``is_certain`` says whether another record is in their place. If the segment is gone, its records were
    usually acknowledged a moment later and then absorbed.
    """

    def __init__(self, where: str, is_certain: bool):
        super().__init__(f"{where}: the log was rewritten or removed while it was read; try again")
        self.is_certain = is_certain


@dataclass(frozen=True)
class Tail:
    """The end of a log as a writer finds it; None if there is no log yet.

    ``others`` are the commits before the end that the writer has not seen. If the position of its last read
    still exists, the tail ``is_continuous`` and these are the commits since; otherwise they are all commits.
    """

    others: Sequence[Commit]
    end: Cursor | None
    is_continuous: bool


class WriteAheadLog:
    """The segments of one log, in its folder. Safe to use from several threads.

    Every method that reads raises a `DamagedFileError` if a head or a record was altered. ``table`` is the
    storage of the data files.
    """

    def __init__(self, storage: Storage, table: Storage):
        self._storage = storage
        self._table = table
        self.reset()

    def reset(self) -> None:
        """Reset what another thread of the parent process may have been changing when it forked."""
        self._tail: Cursor | None = None  # where this object appended or read last
        self._lock = threading.Lock()  # guards the tail

    # -- inspect -------------------------------------------------------------------------------

    @property
    def where(self) -> str:
        """The log's location, for messages."""
        return self._storage.where()

    def first_numbers(self) -> list[int]:
        """The number of the first record of each segment, ascending."""
        mark = self._mark()  # read first: its segment is there by then, until a later one is
        found = [int(m[1]) for m in map(_SEGMENT_NAME.fullmatch, self._storage.list()) if m]
        if mark is not None and mark[0].first > max(found, default=-1):
            self._refuse(_segment_name(mark[0].first), "is missing", mark)
        return found

    def is_at_end(self, cursor: Cursor) -> bool:
        """Whether nothing was written after a position, and its segment is still the same."""
        info = self._storage.info(cursor.segment)
        if info is None or not self._is_there(cursor, info) or not self._is_same(cursor, info):
            return False
        if cursor.is_closed:
            return self._open(cursor.next_number) is None
        with suppress(MissingFileError, RewrittenError):
            # Bytes that are no record are from a writer that died.
            return not self._has_more(cursor) or self._behind(cursor) == ([], cursor)
        return False

    def _has_more(self, cursor: Cursor) -> bool:
        """Whether anything but zeros follows a position, where the head of a record would be."""
        return any(self._storage.read(cursor.segment, cursor.offset, RECORD_HEAD_BYTES))

    def _is_there(self, cursor: Cursor, info: FileInfo) -> bool:
        """Whether the segment of a position still is that of its log; ``info`` is what it is now."""
        if info.token != cursor.token or info.size_bytes < cursor.offset:
            return False
        if info.token:
            return True
        with suppress(MissingFileError):
            content = self._storage.read(cursor.segment, 0, SEGMENT_HEAD_BYTES)
            head = decode_segment_head(content, self._storage.where(cursor.segment))
            return head is not None and head.identity == cursor.identity
        return False

    def _is_same(self, cursor: Cursor, info: FileInfo) -> bool:
        """Whether the record before a position is still the one that was read; ``info`` is of its segment."""
        if cursor.last is None or (cursor.is_durable and info.modified_at == cursor.modified_at):
            return True
        start, head = cursor.last
        try:
            return self._storage.read(cursor.segment, start, len(head)) == head
        except MissingFileError:
            return False

    def cut_off(self) -> list[str]:
        """Segments that end within a record because the writer died or is still writing."""
        found = []
        for start in self.starts():
            end = self._behind(start)
            if end is not None and end[1].segment == start.segment and self._has_more(end[1]):
                found.append(start.segment)
        return found

    def start(self, number: int = 0) -> Cursor | None:
        """The beginning of the segment that holds or will hold a record; None if no segment is that old."""
        for first in reversed(self.first_numbers()):
            if first <= number:
                return self._open(first)
        return None

    def starts(self) -> Iterator[Cursor]:
        """The beginnings of all segments, ascending."""
        for first in self.first_numbers():
            if (cursor := self._open(first)) is not None:
                yield cursor

    def read(self, cursor: Cursor | None = None) -> tuple[list[Commit], Cursor] | None:
        """The commits after a position, by default all, and the position after them; None if the position no
        longer exists, or there is no log.

        Raises RewrittenError: the write of the last record had failed and another one took its place; or this
        may be so, because the segment is gone and the position was not durable when it was read.
        """
        try:
            return self._read(cursor)
        except DamagedFileError:
            # What seemed damaged may just have been half written.
            with ExitStack() as held:
                with suppress(StorageError):  # a process that may only read cannot wait for the writer
                    held.enter_context(self._storage.lease(_LOCK, wait=True))
                return self._read(cursor)

    def _read(self, cursor: Cursor | None) -> tuple[list[Commit], Cursor] | None:
        if cursor is not None:
            return self._behind(cursor)
        # Where records were dropped after they were listed, there are others: the log is not gone.
        while starts := [*self.starts()]:
            for start in starts:
                if (found := self._behind(start, is_start=True)) is not None:
                    return found
        return None

    def _behind(self, cursor: Cursor, is_start: bool = False) -> tuple[list[Commit], Cursor] | None:
        commits: list[Commit] = []
        while True:
            info = self._storage.info(cursor.segment)
            if info is None or not self._is_there(cursor, info):
                if not cursor.is_durable:
                    raise RewrittenError(self.where, is_certain=False)
                return None
            # Read before the records: records that were durable by then cannot change.
            mark = self._mark()
            durable = _num_durable(mark, cursor)
            try:
                has_more = not cursor.is_closed and (durable > cursor.offset or self._has_more(cursor))
            except MissingFileError:
                return None
            if not self._is_same(cursor, info):
                is_there = self._storage.info(cursor.segment) is not None
                raise RewrittenError(self.where, is_certain=is_there)
            if has_more:
                try:
                    content = self._storage.read(cursor.segment, cursor.offset)
                except MissingFileError:
                    return None
                source = self._storage.where(cursor.segment)
                records = list(decode_records(content, cursor.next_number, cursor.offset, source, durable))
                commits += commits_of(records, self._table)
                if records:
                    record = records[-1]
                    is_closed = record.kind == CLOSED
                    cursor = replace(
                        cursor,
                        offset=record.end,
                        next_number=record.number + (not is_closed),
                        is_closed=is_closed,
                        last=(record.start, record.head),
                        is_durable=False,
                    )
            is_durable = cursor.is_durable or _num_durable(mark, cursor) >= cursor.offset
            cursor = replace(cursor, modified_at=info.modified_at, is_durable=is_durable)
            following = self._open(cursor.next_number) if cursor.is_closed else None
            if following is None and cursor.is_closed:
                later = self._mark()
                if later is not None and later[0].first >= cursor.next_number:
                    return None  # the next segment was dropped, or lost
            if following is None:
                return commits, cursor
            if following.identity != cursor.identity:
                return None
            cursor = following

    def _open(self, first: int) -> Cursor | None:
        """The beginning of a segment; None if there is none, or its writer died before its head was whole."""
        name = _segment_name(first)
        mark = self._mark()  # read before the size, which may grow meanwhile
        info = self._storage.info(name)
        if info is None:
            return None
        try:
            content = self._storage.read(name, 0, SEGMENT_HEAD_BYTES)
        except MissingFileError:
            return None
        head = decode_segment_head(content, self._storage.where(name))
        if head is not None and head.first != first:
            raise DamagedFileError(f"{self._storage.where(name)}: has the name of another segment")
        if mark is not None and mark[0].first == first:
            size_bytes = 0 if head is None else info.size_bytes
            if head not in (None, mark[0]):
                self._refuse(name, "is of another log", mark)
            elif size_bytes < mark[1]:
                self._refuse(name, f"ends at byte {size_bytes}, and was {mark[1]} long: it was cut", mark)
        if head is None:
            return None
        return Cursor(name, info.token, head.identity, SEGMENT_HEAD_BYTES, first)

    def _mark(self) -> tuple[SegmentHead, int] | None:
        try:
            return decode_mark(self._storage.read(_END))
        except MissingFileError:
            return None

    def _refuse(self, name: str, what: str, mark: tuple[SegmentHead, int]) -> None:
        """Refuse a segment that contradicts a mark, unless the view was dropped meanwhile with both."""
        if self._mark() == mark:
            raise DamagedFileError(
                f"{self._storage.where(name)}: {what}, and acknowledged rows are lost. Restore it, or delete "
                f"{self._storage.where(_END)} to go on without them"
            )

    # -- write ---------------------------------------------------------------------------------

    def append(
        self,
        payloads: Sequence[Payload],
        check: Callable[[Tail, Sequence[Payload]], None] = lambda tail, payloads: None,
    ) -> tuple[int, Cursor | None]:
        """Append commits; they are durable when this returns.

        Parameters
        ----------
        payloads : one per commit; None announces that all rows will be replaced.
        check : called with the tail of the log and the payloads that come next; raises to refuse the append.

        Returns the number of the last commit, and the position after it; None if its segment is gone already.

        Raises StorageError: the log cannot be written. None of the commits were written or, rarely, all of
        them.
        """
        with self._lock, self._storage.lease(_LOCK, wait=True):
            found = self._find_tail()
            check(found, payloads)
            tail, pieces = _ready(found.end)
            number = tail.next_number
            for payload in payloads:
                kind, content = encode_payload(payload)
                pieces += encode_record(kind, number, content)
                number += 1
            self._append(tail, pieces, number)
            return number - 1, self._tail

    def adopt(self, cursor: Cursor) -> bool:
        """Use a position that was read as the position of the last read, if there is none."""
        with self._lock:
            is_first = self._tail is None
            self._tail = self._tail or cursor
            return is_first

    def close_segment(self) -> int:
        """Close the current segment, if it has commits. Returns the last commit before, -1 for none.

        `begin_segment` is a separate step, so that writers wait for one record at most.
        """
        with self._lock, self._storage.lease(_LOCK, wait=True):
            tail = self._find_tail().end
            if tail is None:
                return -1
            if not tail.is_closed and tail.next_number > _first_number(tail.segment):
                closed = replace(tail, is_closed=True)
                self._append(closed, encode_record(CLOSED, tail.next_number), tail.next_number)
            return tail.next_number - 1

    def begin_segment(self) -> None:
        """Begin a new segment after one that is closed; else the next writer does."""
        with self._lock, self._storage.lease(_LOCK, wait=True):
            closed = self._find_tail().end
            if closed is None or not closed.is_closed:
                return
            tail, pieces = _ready(closed)
            self._append(tail, pieces, tail.next_number)
            if self._storage.info(closed.segment) is None:
                self._tail = None
                self._storage.delete([_END, tail.segment])
                raise StorageError(f"{self.where}: the view was dropped during the write")

    def drop_before(self, number: int) -> None:
        """Delete the segments whose records all have smaller numbers."""
        firsts = self.first_numbers()
        gone = [first for first, following in itertools.pairwise(firsts) if following <= number]
        self._storage.delete([_segment_name(first) for first in gone])

    def erase_before(self, number: int) -> None:
        """Remove rows with smaller numbers from records that `drop_before` has left. Here there are none."""

    def _find_tail(self) -> Tail:
        """The end of the log; the lock is held."""
        if self._tail is not None:
            if self.is_at_end(self._tail):
                return Tail([], self._tail, True)
            with suppress(RewrittenError):
                if (found := self._behind(self._tail)) is not None:
                    return Tail(*found, True)
        found = self._read(None)
        return Tail([], None, False) if found is None else Tail(*found, False)

    def _append(self, tail: Cursor, pieces: list[bytes | memoryview], next_number: int) -> None:
        self._tail = None  # until the append has succeeded
        self._storage.append(tail.segment, tail.offset, pieces)
        if (info := self._storage.info(tail.segment)) is not None:
            offset = tail.offset + sum(memoryview(piece).nbytes for piece in pieces)
            head = SegmentHead(tail.identity, _first_number(tail.segment))
            with suppress(StorageError):  # the records are durable, and the previous mark stays valid
                self._storage.note(_END, encode_mark(head, offset))
            self._tail = replace(
                tail,
                token=info.token,
                offset=offset,
                next_number=next_number,
                last=_last_of(pieces, offset),
                modified_at=info.modified_at,
                is_durable=True,
            )


def _ready(tail: Cursor | None) -> tuple[Cursor, list[bytes | memoryview]]:
    """Where the next record goes, and the bytes before it: a segment's head if the record begins one."""
    if tail is not None and not tail.is_closed:
        return tail, []
    if tail is None:
        tail = Cursor("", "", secrets.token_bytes(IDENTITY_BYTES), 0, 0)
    head = encode_segment_head(SegmentHead(tail.identity, tail.next_number))
    begun = replace(tail, segment=_segment_name(tail.next_number), token="", offset=0, is_closed=False)
    return begun, [head]


def _last_of(pieces: Sequence[bytes | memoryview], end: int) -> tuple[int, bytes] | None:
    """The start and the head of the last appended record; None if there is none."""
    record = pieces[-PIECES_OF_A_RECORD:]
    if len(record) < PIECES_OF_A_RECORD:
        return None
    return end - sum(memoryview(piece).nbytes for piece in record), b"".join(record[:2])


def _num_durable(mark: tuple[SegmentHead, int] | None, cursor: Cursor) -> float:
    """How many bytes of a position's segment are durable according to a mark."""
    if mark is None or mark[0].identity != cursor.identity:
        return 0
    first = _first_number(cursor.segment)
    return mark[1] if mark[0].first == first else math.inf if mark[0].first > first else 0


def _segment_name(first: int) -> str:
    return f"{first:020d}.log"


def _first_number(segment: str) -> int:
    return int(segment.partition(".")[0])
