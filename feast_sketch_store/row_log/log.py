"""The log itself: append, read what is new since a version, compact, vacuum."""

import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction

from feast_sketch_store.errors import DamagedFileError, RowError, StorageError
from feast_sketch_store.row_log.commit import Commit, commit_metadata, read_commit
from feast_sketch_store.row_log.data_file import DataFile
from feast_sketch_store.snapshot.files import fsync_path

_COMMIT_NAME = re.compile(r"(\d{20})\.json")
_RETRIES = 4  # of a commit that another writer's schema change made void
_ROWS_PER_FILE = 1 << 22  # of a compaction
_CONFIGURATION = {
    # Order is read from the JSON commits, so Delta must not expire them behind our back.
    "delta.enableExpiredLogCleanup": "false",
    # Column statistics would keep values of deleted rows in the log.
    "delta.dataSkippingNumIndexedCols": "0",
}


@dataclass(frozen=True)
class LogRead:
    """Files of the log, in commit order, up to a version.

    ``starts_over`` tells that they are all there are, not only the new ones: what was asked for has been
    compacted away together with deletions that are now forgotten.
    """

    version: int
    files: tuple[DataFile, ...] = ()
    starts_over: bool = False

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """All rows in batches of bounded size; see `DataFile.batches`."""
        for file in self.files:
            yield from file.batches(columns)

    def schema(self) -> pa.Schema:
        """All columns of the files."""
        return pa.unify_schemas([file.schema() for file in self.files])

    def table(self) -> pa.Table | None:
        """All rows at once; None if there are no files."""
        tables = list(self.batches())
        try:
            return pa.concat_tables(tables, promote_options="default") if tables else None
        except pa.ArrowException as error:
            folder = self.files[0].path.parent
            raise DamagedFileError(
                f"{folder}: data files of the row log contradict each other: {error}"
            ) from error


class RowLog:
    """The Delta table of one view.

    Parameters
    ----------
    path : the table's folder; it is created by the first append.
    """

    def __init__(self, path: Path):
        self.path = path
        self._log_path = path / "_delta_log"
        self._synced = -1  # commits up to here are known to be durable

    def version(self, known: int = -1) -> int:
        """The newest version, -1 for none.

        Parameters
        ----------
        known : a version that is known to exist: makes the call cost one look at a file name.
        """
        if known < 0:
            try:
                names = os.listdir(self._log_path)
            except FileNotFoundError:
                return -1
            except OSError as error:
                raise StorageError(f"{self._log_path}: cannot be read: {error}") from error
            known = max((int(m[1]) for m in map(_COMMIT_NAME.fullmatch, names) if m), default=-1)
        while self._commit_path(known + 1).exists():
            known += 1
        return known

    def identity(self) -> tuple[int, int] | None:
        """What tells this table from one that stood in the same folder before; None without a table."""
        try:
            first = self._commit_path(0).stat()
        except FileNotFoundError as error:
            if self.version() < 0:
                return None
            raise DamagedFileError(
                f"{self._commit_path(0)}: the first commit of the row log is gone"
            ) from error
        except OSError as error:
            raise StorageError(f"{self._log_path}: cannot be read: {error}") from error
        return first.st_ino, first.st_mtime_ns

    # -- write ---------------------------------------------------------------------------------

    def append(self, rows: pa.Table) -> int:
        """Append rows as one commit; they are durable when this returns.

        Returns
        -------
        A version that contains the rows.

        Raises
        ------
        RowError : a column has another type than in the table.
        StorageError : the table cannot be written; the rows are not there or, rarely, all of them are.
        """
        before = self.version()
        files: list[DataFile] = []
        try:
            table = self._table_with(rows.schema)
            files.append(DataFile.write(self.path, rows.schema, [rows]))
            self._commit(table, files, rows.schema)
        except (OSError, DeltaError, pa.ArrowException) as error:
            self._discard(files, before)
            raise StorageError(f"{self.path}: rows cannot be written: {error}") from error
        return self.version(before)

    def compact(self, batches: Iterable[pa.Table], through: int, snapshot: str = "") -> bool:
        """Replace all commits up to version ``through`` by one with the given rows.

        Rows that are appended meanwhile stay. The replaced files stay too, until `vacuum`.

        Parameters
        ----------
        batches : the rows; a batch may lack columns.
        through : a version.
        snapshot : for rows that are not those of the log: the name of a snapshot that holds the same.

        Returns
        -------
        False if a commit that came between makes it impossible for now.

        Raises
        ------
        StorageError : the table cannot be written; it stays as it is.
        """
        files: list[DataFile] = []
        try:
            table = DeltaTable(str(self.path), version=through)
            schema = pa.schema(table.schema().to_arrow())
            for group in _groups(batches, _ROWS_PER_FILE):
                files.append(DataFile.write(self.path, schema, group))  # noqa: PERF401, kept if one fails
            self._commit(table, files, schema, compacts_through=through, snapshot=snapshot)
        except CommitFailedError:
            self._discard(files, through)
            return False
        except (OSError, ValueError, DeltaError, pa.ArrowException) as error:
            self._discard(files, through)
            raise StorageError(f"{self.path}: the row log cannot be compacted: {error}") from error
        return True

    def extend(self, schema: pa.Schema) -> None:
        """Create the table if there is none, and add the columns that it lacks.

        Raises
        ------
        RowError : a column has another type in the table.
        StorageError : the table cannot be written.
        """
        try:
            self._table_with(schema)
            self._make_durable()
        except (OSError, DeltaError) as error:
            raise StorageError(f"{self.path}: columns cannot be added: {error}") from error

    def check_schema(self, wanted: pa.Schema) -> None:
        """Check that rows of a schema can be appended: columns may be new, but not change their type.

        Raises
        ------
        RowError : names the columns that have another type in the table.
        """
        if self.version() >= 0:
            _new_fields(DeltaTable(str(self.path)), wanted)

    def _table_with(self, schema: pa.Schema) -> DeltaTable:
        """The table, created or extended if it lacks columns."""
        if self.version() < 0:
            # Of two first writers one creates the table; the other one fails or is ignored, and appends.
            with suppress(CommitFailedError):
                DeltaTable.create(str(self.path), schema, mode="ignore", configuration=_CONFIGURATION)
        table = DeltaTable(str(self.path))
        for _ in range(_RETRIES):
            new = _new_fields(table, schema)
            if not new:
                break
            with suppress(CommitFailedError):  # another writer may have added the same
                table.alter.add_columns(new)
            table = DeltaTable(str(self.path))
        return table

    def _commit(
        self,
        table: DeltaTable,
        files: Sequence[DataFile],
        schema: pa.Schema,
        *,
        compacts_through: int = -1,
        snapshot: str = "",
    ) -> None:
        """Commit files that are written, durably."""
        fsync_path(self.path)  # the files' names must be durable before a commit names them
        actions: list[Any] = [
            AddAction(
                file.path.name,
                file.path.stat().st_size,
                {},
                file.path.stat().st_mtime_ns // 1_000_000,
                True,
                json.dumps({"numRecords": file.num_rows}),
            )
            for file in files
        ]
        is_compaction = compacts_through >= 0
        for attempt in range(_RETRIES + 1):
            try:
                table.create_write_transaction(
                    actions,
                    "overwrite" if is_compaction else "append",
                    schema,
                    commit_properties=CommitProperties(
                        commit_metadata(files, self.version(), compacts_through, snapshot),
                        max_commit_retries=100,
                    ),
                )
                break
            except CommitFailedError:
                if is_compaction or attempt == _RETRIES:
                    raise
                table = DeltaTable(str(self.path))
        self._make_durable()

    def _make_durable(self) -> None:
        """Sync all commits since the last call, whoever wrote them: a lost one would hide those behind it."""
        newest = self.version(self._synced)
        for version in range(self._synced + 1, newest + 1):
            fsync_path(self._commit_path(version))
        fsync_path(self._log_path)
        if self._synced < 0:
            fsync_path(self.path)
            fsync_path(self.path.parent)
        self._synced = newest

    def _discard(self, files: Sequence[DataFile], before: int) -> None:
        """Remove files of a commit that failed; not if it is there in spite of an error."""
        with suppress(OSError, DamagedFileError, StorageError):
            committed = {file.path for c in self.commits(before, self.version()) for file in c.files}
            for file in files:
                if file.path not in committed:
                    file.path.unlink(missing_ok=True)

    # -- read ----------------------------------------------------------------------------------

    def read(self, after: int, snapshot: str = "", version: int | None = None) -> LogRead:
        """What was committed behind version ``after``.

        Parameters
        ----------
        after : a version, -1 for all there is.
        snapshot : the name of the snapshot that holds the rows up to ``after``.
        version : up to which to read; None for the newest.

        Raises
        ------
        DamagedFileError : a commit file is missing, truncated or altered.
        """
        version = self.version() if version is None else version
        commits = self.commits(after, version)
        files = tuple(file for c in commits if c.compacts_through < 0 for file in c.files)
        compaction = next((c for c in commits if c.compacts_through >= 0), None)
        if compaction is not None and (
            compaction.compacts_through > after or compaction.snapshot not in ("", snapshot)
        ):
            return LogRead(version, compaction.files + files, starts_over=True)
        return LogRead(version, files)

    def read_through(self, version: int, snapshot: str) -> LogRead | None:
        """The rows up to a version; None if later rows have taken their place.

        Parameters
        ----------
        version : that a snapshot covers.
        snapshot : its name.

        Raises
        ------
        DamagedFileError : a commit file is missing, truncated or altered.
        """
        commits = self.commits(-1, self.version())
        last = next((c for c in commits if c.compacts_through >= 0), None)
        first = last.compacts_through if last else -1
        is_replaced = last is not None and last.version > version and last.snapshot not in ("", snapshot)
        if first > version or is_replaced:
            return None
        appends = [c for c in commits if c.compacts_through < 0 and first < c.version <= version]
        kept = [last, *appends] if last else appends
        return LogRead(version, tuple(file for commit in kept for file in commit.files))

    def commits(self, after: int, newest: int) -> list[Commit]:
        """The commits behind version ``after`` that still count, in order, with their remaining files.

        At most one is a compaction; what it replaced is left out.

        Raises
        ------
        DamagedFileError : a commit file is missing, truncated or altered.
        """
        found: list[Commit] = []
        removed: set[str] = set()
        for version in range(newest, after, -1):
            commit = read_commit(self._commit_path(version), version)
            files = tuple(file for file in commit.files if file.path.name not in removed)
            found.append(replace(commit, files=files))
            removed |= commit.removed
            # Versions are read downwards, so this is the last compaction: nothing before counts.
            after = max(after, commit.compacts_through)
            if version <= after + 1:
                break
        return found[::-1]

    # -- clean up ------------------------------------------------------------------------------

    def vacuum(self, orphan_age_seconds: float) -> list[Path]:
        """Remove data files that are not part of the table any more.

        Files that a commit replaced go at once; files that no commit names, which a writer left when it
        died or has not committed yet, go when they are older than ``orphan_age_seconds``.

        Returns
        -------
        The files removed.
        """
        newest = self.version()
        live = {file.path for commit in self.commits(-1, newest) for file in commit.files}
        commits = [read_commit(self._commit_path(version), version) for version in range(newest + 1)]
        replaced = {file.path for commit in commits for file in commit.files} - live
        oldest = time.time() - orphan_age_seconds
        orphans = {
            path
            for path in (*self.path.glob("*.parquet"), *self._log_path.glob("*.json#*"))
            if path.stat().st_mtime < oldest
        }
        gone = [path for path in sorted(replaced | orphans - live) if path.exists()]
        try:
            for path in gone:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"{self.path}: files cannot be removed: {error}") from error
        return gone

    def _commit_path(self, version: int) -> Path:
        return self._log_path / f"{version:020d}.json"


def _new_fields(table: DeltaTable, wanted: pa.Schema) -> list[Any]:
    """The fields of a schema that the table lacks; raises RowError if one has another type there."""
    kept = {field.name: field.type for field in table.schema().fields}
    fields = Schema.from_arrow(wanted).fields
    changed = [
        f"{field.name!r} is {kept[field.name]} in the row log, now {field.type}"
        for field in fields
        if field.name in kept and kept[field.name] != field.type
    ]
    if changed:
        raise RowError(
            f"{'; '.join(changed)}: a column cannot change its type. Give the feature a new name, or "
            f"remove the view with `feast apply`, add it again and materialize"
        )
    return [field for field in fields if field.name not in kept]


def _groups(batches: Iterable[pa.Table], num_rows: int) -> Iterator[Iterator[pa.Table]]:
    """Split batches into runs of about so many rows, without reading ahead."""
    rest = iter(batches)

    def group(batch: pa.Table) -> Iterator[pa.Table]:
        seen = len(batch)
        yield batch
        while seen < num_rows and (following := next(rest, None)) is not None:
            seen += len(following)
            yield following

    for first in rest:
        yield group(first)
