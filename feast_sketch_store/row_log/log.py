"""The row log itself: append, read what is new, absorb the WAL into the table, compact, vacuum."""

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from feast_sketch_store.errors import DamagedFileError, StorageError
from feast_sketch_store.row_log import delta_protocol
from feast_sketch_store.row_log.data_file import SUFFIX, DataFile, StagedFile, runs
from feast_sketch_store.row_log.records import Commit, Payload
from feast_sketch_store.row_log.table import Table, TableState, new_columns
from feast_sketch_store.row_log.wal import Cursor, RewrittenError, Tail, WriteAheadLog
from feast_sketch_store.row_log.wal_objects import ObjectWriteAheadLog
from feast_sketch_store.snapshot.files import SnapshotFile, SnapshotFolder, place_of
from feast_sketch_store.storage.base import Storage, UncertainWriteError
from feast_sketch_store.storage.names import FRESH_FOLDER, ROWS_FOLDER, SNAPSHOTS_FOLDER

_logger = logging.getLogger(__name__)

# What is wrong if parts of a view do not belong together, and what to do: restore it, or one of the others.
COPY = (
    "the view's folder is a copy that was made while others wrote. Restore one that was made while nobody "
    "wrote"
)
GO_ON = "delete its snapshots to go on with the rows of its log"
_BEGIN_ANEW = "remove the view with `feast apply` and materialize it"
# A larger batch goes into a data file at once; the write-ahead log then has its name.
_MAX_WAL_BYTES = 1 << 23
_MAX_WAL_ROWS = 1 << 13
# Of a file that a task writes, before compression. A bucket takes 5,000 MiB in one put, built in memory.
_STAGED_BYTES = 1 << 28


@dataclass(frozen=True)
class Position:
    """The position up to which a reader has read a log.

    ``number`` is the last known commit, -1 for none. ``identity`` differs from that of an earlier log in the
    same place. ``cursor`` saves a search for the position to continue. ``awaits`` is the version of the table
    that a writer has announced to replace, if one has; None if not.
    """

    number: int = -1
    identity: bytes | None = None
    cursor: Cursor | None = None
    awaits: int | None = None

    def awaiting_as(self, known: "Position") -> "Position":
        """This position for a reader that came to it by its own rows, and awaits what it awaited before."""
        return replace(self, awaits=known.awaits)


START = Position()


@dataclass(frozen=True)
class LogRead:
    """The contents of a log after a position: files of the table, then commits of the WAL, in order.

    ``starts_over`` means that this is the whole log and that everything known before is invalid. ``repeats``
    means that the first file also has rows of commits that were known: they were absorbed with later ones.
    ``table_version`` is that of the table, if only the table was read. ``moment`` is when it was read, in
    microseconds since 1970: all that is made of these rows lacks the same expired ones. `schema` and `table`
    raise a `DamagedFileError` if parts contradict each other.
    """

    position: Position = START
    files: tuple[DataFile, ...] = ()
    commits: tuple[Commit, ...] = ()
    starts_over: bool = False
    table_version: int = -1
    repeats: bool = False
    moment: int = field(default_factory=lambda: time.time_ns() // 1000, compare=False)

    def __bool__(self) -> bool:
        return bool(self.files or self.commits)

    @property
    def parts(self) -> list[DataFile | Commit]:
        """Files and commits of the write-ahead log."""
        return [*self.files, *self.commits]

    def to_entry(self) -> dict[str, Any]:
        """What another process needs to find the same rows of the table; JSON-serializable."""
        identity = self.position.identity
        return {
            "identity": None if identity is None else identity.hex(),
            "table_version": self.table_version,
            "moment": self.moment,
        }

    def followed_by(self, newer: "LogRead") -> "LogRead":
        """The rows of the table, and the newer ones of another log behind them."""
        return LogRead(newer.position, (*self.files, *newer.files), newer.commits)

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """All rows in batches of bounded size; see `DataFile.batches`."""
        for part in self.parts:
            yield from part.batches(columns)

    def schema(self) -> pa.Schema:
        """All columns."""
        try:
            return pa.unify_schemas([part.schema() for part in self.parts])
        except pa.ArrowException as error:
            raise DamagedFileError(f"commits of the row log contradict each other: {error}") from error

    def table(self) -> pa.Table | None:
        """All rows as one table; None without rows."""
        tables = list(self.batches())
        try:
            return pa.concat_tables(tables, promote_options="default") if tables else None
        except MemoryError:
            raise
        except pa.ArrowException as error:
            raise DamagedFileError(f"commits of the row log contradict each other: {error}") from error


class RowLog:
    """The row log of one view. Safe to use from several threads.

    Every method raises a `DamagedFileError` if it meets a commit that is missing, truncated or altered, and a
    `StorageError` if files cannot be read or written.
    """

    def __init__(self, storage: Storage):
        rows = storage.within(ROWS_FOLDER)
        self._rows = rows
        self._table = Table(rows)
        self._snapshots = SnapshotFolder(storage.within(SNAPSHOTS_FOLDER))
        wal = WriteAheadLog if storage.supports_append else ObjectWriteAheadLog
        self._wal = wal(storage.within(FRESH_FOLDER), rows)
        self._read_to: tuple[Cursor, dict[str, Any]] | None = None  # a position, and the columns before it
        self.appended_to: bytes | None = None  # the identity of the log of the last append
        self.before_first: Callable[[], None] = lambda: None  # called before the first commit of a log
        self.reset()

    def reset(self) -> None:
        """Forget what another thread of the parent process may have been changing when it forked."""
        self._wal.reset()
        self._append_lock = threading.Lock()  # guards the two attributes below
        self._columns: dict[str, Any] = {}  # those that this object has seen, with their types in Delta
        self._schema: pa.Schema | None = None  # the last schema that added nothing to them

    @property
    def where(self) -> str:
        """The table's location, for messages."""
        return self._rows.where()

    # -- read ----------------------------------------------------------------------------------

    def is_at_end(self, position: Position) -> bool:
        """Whether nothing was written after a position. Reads one file, or two names."""
        if position.cursor is None:
            return position == START and self._has_no_log()
        return self._wal.is_at_end(position.cursor) and not self._is_replaced(position)

    def _has_no_log(self) -> bool:
        """Whether nobody has begun a log; a segment with an incomplete head does not count."""
        return next(self._wal.starts(), None) is None

    def _is_replaced(self, position: Position) -> bool:
        """Whether the table has changed since an announcement that its rows will be replaced."""
        awaits = position.awaits
        return awaits is not None and max(self._table.versions(), default=-1) > awaits

    def read(self, known: Position = START, snapshot: str = "") -> LogRead:
        """What was committed after a position. ``snapshot`` is the name of the one that holds the rows up to
        there.
        """
        try:
            found = None
            if known.cursor is not None and not self._is_replaced(known):
                found = self._wal.read(known.cursor)
        except RewrittenError as error:
            if error.is_certain:
                _logger.warning(
                    "%s: commit %s was read, but its write failed; reading the log again without it",
                    self._wal.where,
                    known.number,
                )
            return replace(self._read_anew(START, ""), starts_over=True)
        if found is not None:
            commits, cursor = found
            if not any(commit.replaces for commit in commits):
                # What was absorbed between the reads of log and table is known from the table.
                new = tuple(commit for commit in commits if commit.number > known.number)
                number = max(known.number, cursor.next_number - 1)
                return LogRead(replace(known, number=number, cursor=cursor), (), new)
        return self._read_anew(known, snapshot)

    def _read_anew(self, known: Position, snapshot: str) -> LogRead:
        """The same, with the table, because commits may have been absorbed or all rows replaced."""
        # The write-ahead log first: rows that are absorbed meanwhile are then found in the table.
        commits, cursor = self._wal_behind(known.number)
        state = self._table.state()
        if cursor is None:
            if not state.commits:
                return LogRead(starts_over=known.number >= 0)
            # Between the two reads, another process began or dropped the log.
            self._check_not_lost()
            return self._read_anew(known, snapshot)
        is_other = known.identity not in (None, cursor.identity)
        if is_other or cursor.next_number <= known.number:
            if not is_other:
                _logger.warning(
                    "%s: ends before commit %s, which was read: its write failed, or the file was cut",
                    self._wal.where,
                    known.number,
                )
            # Read both again: what the log had at first may now be in the table.
            return replace(self._read_anew(START, ""), starts_over=True)
        files, through, starts_over, repeats = _behind(state, known, snapshot)
        if starts_over and known.number > through:  # commits that are known follow the new rows
            return replace(self._read_anew(START, ""), starts_over=True)
        if not self._continues(state, through, commits, cursor):
            return self._read_anew(known, snapshot)
        columns = _with_columns_of(_not_absorbed(commits, state), state.columns)
        if cursor.next_number > state.through:  # else a writer reads again
            self._read_to = cursor, columns
        behind = tuple(c for c in commits if c.number > through and not c.replaces)
        number = max(cursor.next_number - 1, through)
        awaits = state.version if any(commit.replaces for commit in commits) else None
        position = Position(number, cursor.identity, cursor, awaits)
        return LogRead(position, files, behind, starts_over, repeats=repeats)

    def _continues(self, state: TableState, through: int, commits: Sequence[Commit], cursor: Cursor) -> bool:
        """Whether commits, which were read before the table, follow its rows up to one number; False if their
        log was dropped between the two reads.

        Raises DamagedFileError: the table is of another log, or commits between the two are missing.
        """
        first = commits[0].number if commits else cursor.next_number
        if first <= through + 1 and not state.is_of_another(cursor.identity):
            return True
        start = self._wal.start(cursor.next_number)
        if start is None or start.identity != cursor.identity:
            return False
        if state.is_of_another(cursor.identity):
            raise DamagedFileError(
                f"{self._wal.where}: the table in {self._rows.where()} is of another log, of another view or "
                "one that was removed since; restore the folder from a backup, or remove the view with "
                "`feast apply` and materialize it"
            )
        raise DamagedFileError(
            f"{self._wal.where}: commits {through + 1} to {first - 1} of the row log are missing: a file was "
            f"removed, or {COPY}, or {_BEGIN_ANEW}"
        )

    def _wal_behind(self, number: int) -> tuple[list[Commit], Cursor | None]:
        """Fresh commits after a number, possibly with some before it, and the position after them."""
        start = self._wal.start(number + 1)
        if start is not None and (found := self._wal.read(start)) is not None:
            return found
        return self._wal.read() or ([], None)

    def table_rows(self) -> LogRead:
        """The rows of the table."""
        return _rows_of(self._table.state())

    def table_rows_of(self, entry: Mapping[str, Any]) -> LogRead | None:
        """The rows of the table that another process found, from an entry of `LogRead.to_entry`.

        None if the table has changed.
        """
        rows, identity = self.table_rows(), entry["identity"]
        if rows.table_version != entry["table_version"]:
            return None
        known = None if identity is None else bytes.fromhex(identity)
        return replace(rows, position=replace(rows.position, identity=known), moment=entry["moment"])

    def sealed_rows(self, number: int, snapshot: str) -> LogRead | None:
        """The rows of the table that a snapshot, by its last commit and its name, was made of; None if those
        rows were replaced.
        """
        state = self._table.state()
        compaction = state.compaction
        if compaction is not None and (
            compaction.through > number or place_of(compaction.snapshot) > place_of(snapshot)
        ):
            return None
        covered = [n for n, c in enumerate(state.commits) if c.through <= number]
        commits = state.commits[: covered[-1] + 1] if covered else ()
        return LogRead(Position(number), tuple(file for commit in commits for file in commit.files))

    def absorbed_behind(self, number: int, snapshot: str) -> LogRead | None:
        """The rows of the table after those that a snapshot, or a part of it up to a commit, was made of.

        None if they cannot be distinguished, because rows were replaced.
        """
        state = self._table.state()
        files, _, starts_over, _ = _behind(state, Position(number), snapshot)
        if starts_over:
            return None
        return LogRead(Position(max(number, state.through)), files, table_version=state.version)

    def batches_of(self, log: LogRead, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """`LogRead.batches` of what was read here, `unleased`."""
        with self.unleased(log):
            yield from log.batches(columns)

    @contextmanager
    def unleased(self, log: LogRead) -> Iterator[None]:
        """Use the rows of what was read here in a process that does not keep others from sealing.

        Raises StorageError: a seal replaced the rows since and a vacuum removed them, or they were dropped.
        """
        try:
            yield
        except DamagedFileError as error:
            payloads = (part.rows if isinstance(part, Commit) else part for part in log.parts)
            files = {rows.name for rows in payloads if isinstance(rows, DataFile)}
            waiting = self._wal_files()  # first, so that what is absorbed meanwhile is found in the table
            if files <= {*waiting, *(file.name for file in self._table.state().files)}:
                raise
            raise StorageError(
                f"{self.where}: the rows were replaced while they were read, and a vacuum removed them, or "
                "the view was dropped; try again"
            ) from error

    # -- write ---------------------------------------------------------------------------------

    def append(self, rows: pa.Table) -> Position:
        """Append rows as one commit; they are durable when this returns.

        Returns the commit, which a reader that knew everything before it need not read.

        Raises
        ------
        RowError : a column has another type than in the log.
        StorageError : the log cannot be written. None of the rows were written or, rarely, all of them.
        """
        if rows.nbytes <= _MAX_WAL_BYTES and len(rows) <= _MAX_WAL_ROWS:
            return self.append_all([rows], rows.schema)
        file = DataFile.write(self._rows, rows.schema, [rows])
        try:
            return self.append_all([file], rows.schema)
        except UncertainWriteError:
            raise  # the commit may turn up, and needs the file
        except BaseException:
            if file.name not in self._wal_files():  # the commit may exist despite the error
                self._table.discard([file])
            raise

    def stage(
        self, tables: Iterable[pa.Table], label: str, shard: int = 0, shards_folder: str = ""
    ) -> Iterator[StagedFile]:
        """Write tables of the row log into files that no commit names yet; their names begin with the label.

        Tables of one schema that follow each other go into few files; one is read ahead at most. All rows are
        of one shard. Raises StorageError: a file cannot be written; earlier files remain.
        """
        for schema, some in itertools.groupby(tables, lambda table: table.schema):
            for run in runs(some, _STAGED_BYTES):
                file = DataFile.write(self._rows, schema, run, label)
                yield StagedFile(file, file.size_bytes, schema, shard, shards_folder)

    def discard_staged(self, label: str) -> list[str]:
        """Delete files whose names begin with a label and that no commit names. Returns their names."""
        committed = self.committed()
        names = [name for name in self._rows.list() if name.startswith(label) and name.endswith(SUFFIX)]
        gone = [name for name in names if name not in committed]
        self._rows.delete(gone)
        return gone

    def committed(self) -> set[str]:
        """The names of data files that commits name, or named before a compaction replaced them.

        Those that were replaced long ago are not among them.
        """
        waiting = self._wal_files()  # first, so that what is absorbed meanwhile is found in the table
        state = self._table.state()
        replaced = state.compaction.tombstones if state.compaction else ()
        return {*waiting, *(file.name for file in state.files), *replaced}

    def _wal_files(self) -> set[str]:
        """The names of data files that commits name which are not absorbed."""
        return {c.rows.name for c in self._wal_behind(-1)[0] if isinstance(c.rows, DataFile)}

    def staged(self, entry: dict[str, Any]) -> StagedFile:
        """The staged file that an entry of a report describes."""
        return StagedFile.from_report(self._rows, entry)

    def append_all(self, payloads: Sequence[pa.Table | DataFile], schema: pa.Schema) -> Position:
        """Append tables, or the rows of existing files, with a commit for each; see `append`.

        In a folder all of them are committed or none. On an object store, commits before a failing one count.
        """

        def check(tail: Tail, given: Sequence[Payload]) -> None:
            if tail.end is None or not tail.end.next_number:
                self.before_first()  # before the files of the batch are looked for
            self._check_begun(tail)
            for payload in given:
                if isinstance(payload, DataFile):
                    payload.size_to_commit()  # it must be there
            if not tail.is_continuous or is_adopted:
                self._check_not_sealed(tail.end)
            if not tail.is_continuous or any(isinstance(commit.rows, DataFile) for commit in tail.others):
                state = self._table.state()
                if not tail.is_continuous:
                    self._check_follows(tail, state)
                    self._columns, self._schema = {}, None
                self._columns = self._with_columns_behind(state, tail.others, self._columns)
            else:
                self._columns = _with_columns_of(tail.others, self._columns)
            if not is_known():
                new_columns(self._columns, schema)

        def is_known() -> bool:
            return self._schema is not None and self._schema.equals(schema)

        with self._append_lock:
            place = self._read_to
            is_adopted = place is not None and self._wal.adopt(place[0])
            if place is not None and is_adopted:
                # Continue after what was already read.
                self._columns, self._schema = dict(place[1]), None
            number, cursor = self._wal.append(payloads, check)
            if not is_known():
                self._columns |= new_columns(self._columns, schema)
                self._schema = schema
            self.appended_to = cursor.identity if cursor else None
        return Position(number, cursor.identity if cursor else None, cursor)

    def _with_columns_behind(
        self, state: TableState, commits: Sequence[Commit], known: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Columns, and those that a table and the commits behind it have besides."""
        while True:
            try:
                return _with_columns_of(_not_absorbed(commits, state), {**known, **state.columns})
            except DamagedFileError:
                # A commit's file may have been absorbed since, replaced, and removed.
                before, state = state, self._table.state()
                if state.version == before.version:
                    raise

    def _check_begun(self, tail: Tail) -> None:
        """Refuse to start a new log next to a table: the rows of the old log would be lost silently."""
        if tail.end is None:
            self._check_not_lost()

    def _check_not_sealed(self, end: Cursor | None) -> None:
        """Refuse to append to a log that is older than a snapshot: rows would hide behind what it covers."""
        if end is not None and (newest := self._snapshots.listing().newest) is not None:
            what = f"{newest.where()} covers the rows"
            self._check_not_older(end, newest.version - 1, what, GO_ON)
            self._check_not_before(newest, max(self._table.versions(), default=-1))

    def _check_not_before(self, newest: SnapshotFile, version: int) -> None:
        """Refuse a table that is older than what a snapshot was made of: the next seal would bring rows back
        that a rebuild replaced. The version must be read after the snapshot.
        """
        if 0 <= version < newest.table_version and newest.exists():
            raise DamagedFileError(
                f"{newest.where()}: was made of version {newest.table_version} of the table in "
                f"{self._rows.where()}, which ends at version {version}: {COPY}, or {GO_ON}"
            )

    def _check_follows(self, tail: Tail, state: TableState) -> None:
        """Refuse to append to a log that is not that of the table, older, or not next to it: nobody would see
        the rows.
        """
        end = tail.end
        if end is None:
            return
        if not self._continues(state, state.through, tail.others, end):
            raise StorageError(f"{self.where}: the view was dropped during the write")
        what = f"the table in {self._rows.where()} has the rows"
        self._check_not_older(end, state.through, what, _BEGIN_ANEW)

    def _check_not_older(self, end: Cursor, through: int, what: str, otherwise: str) -> None:
        # Without a lease, others may have written and absorbed since the log was read.
        if through >= end.next_number and self._wal.is_at_end(end):
            raise DamagedFileError(
                f"{self._wal.where}: ends before commit {end.next_number}, and {what} up to commit "
                f"{through}: {COPY}, or {otherwise}"
            )

    def _check_not_lost(self) -> None:
        """Refuse a table without a log. Who found none may have looked before another process began it."""
        if self._table.versions() and not self._wal.first_numbers():
            raise DamagedFileError(
                f"{self._wal.where}: there is a table of rows, and its write-ahead log is gone. Unless "
                "another process is removing the view just now, restore its folder from a backup, or remove "
                "the view with `feast apply` and materialize it"
            )

    def absorb(self) -> LogRead:
        """Move all rows of the write-ahead log into the table, each row once, while others may write.

        Returns the rows of the table. If this raises, the rows stay where they are.
        """
        last = self._wal.close_segment()
        while True:
            commits, cursor = self._wal_behind(-1)
            self._wal.begin_segment()  # writers had their turn meanwhile, and may have begun it
            newest = self._snapshots.listing().newest
            state = self._table.state()
            if newest is not None:
                self._check_not_before(newest, state.version)
            if cursor is None:
                if not state.commits:
                    return _rows_of(state)
                self._check_not_lost()
                continue
            if not self._continues(state, state.through, commits, cursor):
                continue
            new = [commit for commit in _not_absorbed(commits, state) if commit.number <= last]
            if not new:
                break
            absorbed = self._absorb(new, state, cursor.identity.hex(), last)
            if absorbed is not None and absorbed.through >= last:
                state = absorbed
                break
            # Another process was faster, so continue with the rest.
        # Not from the version just written: a commit after a compaction by others would not count.
        self._wal.drop_before(min(last, state.through) + 1)
        position = Position(state.through, cursor.identity, cursor)
        return LogRead(position, state.files, table_version=state.version)

    def _absorb(
        self, commits: Sequence[Commit], state: TableState, identity: str, last: int
    ) -> TableState | None:
        """Commit rows, which follow those of the table, to it; None if the table was replaced."""
        columns = _with_columns_of(commits, state.columns)
        schema = pa.schema({name: delta_protocol.arrow_type(kind) for name, kind in columns.items()})
        files: list[DataFile] = []
        written: list[DataFile] = []
        try:
            payloads = (commit.rows for commit in commits if commit.rows is not None)
            for is_file, some in itertools.groupby(payloads, lambda rows: isinstance(rows, DataFile)):
                if is_file:
                    files += some
                    continue
                for run in runs(some):
                    written.append(DataFile.write(self._rows, schema, run))
                    files.append(written[-1])
            absorbed = self._table.append(identity, files, columns, commits[0].number, last)
        except UncertainWriteError:
            raise  # the commit may turn up, and needs the files
        except BaseException:
            self._table.discard(written)
            raise
        if absorbed is None:
            self._table.discard(written)
        return absorbed

    def begin(self) -> LogRead:
        """Absorb after ensuring that there is a log; see `absorb`."""
        if self._has_no_log():
            self._wal.append([], lambda tail, _: self._check_begun(tail))
        return self.absorb()

    def extend(self, rows: LogRead, schema: pa.Schema) -> LogRead:
        """Create the table if it does not exist, and add missing columns. Gives the same rows in the table as
        it is now.

        Raises RowError: a column has another type in the log.
        """
        if rows.position.identity is None:
            raise StorageError(f"{self.where}: the view was dropped meanwhile")
        identity = rows.position.identity.hex()
        while missing := new_columns((state := self._table.state()).columns, schema):
            through = state.through
            made = self._table.append(identity, [], missing, through + 1, through)
            if made is not None and (state.version, made.version) == (rows.table_version, state.version + 1):
                rows = replace(rows, table_version=made.version)
        return rows

    def compact(self, batches: Iterable[pa.Table], rows: LogRead, snapshot: str = "") -> bool:
        """Replace ``rows`` of the table by others; False if the table has changed.

        Rows that are appended meanwhile stay. The replaced files also stay for a while.

        Parameters
        ----------
        batches : the new rows; a batch may lack columns.
        snapshot : for rows from elsewhere, the name of a snapshot that holds the same rows.

        Raises StorageError: the table cannot be written. It is unchanged or, rarely, holds the rows.
        """
        identity, state = rows.position.identity, self._table.state()
        assert identity is not None
        if state.version != rows.table_version:
            return False
        return self._table.compact(identity.hex(), state, batches, snapshot)

    def announce_replacement(self) -> None:
        """Tell reading processes that all rows may be replaced from now on; see `compact`.

        They read the table as well until a seal, so they find the new rows even if the writer dies as soon
        as it has written them.
        """
        self._wal.append([None])

    # -- clean up ------------------------------------------------------------------------------

    def prune(self) -> None:
        """Delete commits that a compaction made obsolete, and files that it replaced some time ago."""
        self._table.prune()

    def vacuum(self, orphan_age_seconds: float, kept: Set[str] = frozenset()) -> list[str]:
        """Delete files that are no longer part of the log, except some; see `Table.vacuum`."""
        self._wal.erase_before(self._table.state().through + 1)
        kept = self._wal_files() | kept
        return self._table.vacuum(kept, orphan_age_seconds)

    def cut_off(self) -> list[str]:
        """Files that end within a record, because its writer died or the file was truncated."""
        return [FRESH_FOLDER + name for name in self._wal.cut_off()]

    def table_state(self) -> TableState:
        """The current table."""
        return self._table.state()


def _rows_of(state: TableState) -> LogRead:
    return LogRead(Position(state.through), state.files, table_version=state.version)


def _behind(
    state: TableState, known: Position, snapshot: str
) -> tuple[tuple[DataFile, ...], int, bool, bool]:
    """The files that a reader lacks, the last number known with them, whether they start over, and whether
    they repeat what it knows."""
    compaction = state.compaction
    # Names of snapshots ascend with their seals, so a later one was made of the rows from elsewhere.
    if compaction is not None and (
        place_of(compaction.snapshot) > place_of(snapshot)
        or (not compaction.snapshot and compaction.through > known.number)
    ):
        return state.files, state.through, True, False
    lacking = [c for c in state.commits if not c.is_compaction and c.through > known.number]
    knows_some = known.number >= 0 or bool(snapshot)  # a rebuild may come before the first commit
    if not knows_some:
        return state.files, state.through, False, False
    files = tuple(file for commit in lacking for file in commit.files)
    through = max([known.number, *(commit.through for commit in lacking)])
    return files, through, False, any(commit.first <= known.number for commit in lacking)


def _not_absorbed(commits: Sequence[Commit], state: TableState) -> list[Commit]:
    """The commits that the table does not have. A record of a bucket may outlive the file that it names."""
    return [commit for commit in commits if commit.number > state.through]


def _with_columns_of(commits: Iterable[Commit], known: Mapping[str, Any]) -> dict[str, Any]:
    """Columns with their types in Delta, and those that commits have besides.

    Raises RowError: a commit has a column with another type.
    """
    columns, last = dict(known), None
    for commit in commits:
        schema = commit.schema()
        if last is None or not schema.equals(last):  # most commits have the schema of the one before
            columns |= new_columns(columns, schema)
            last = schema
    return columns
