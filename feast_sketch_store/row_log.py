"""The row log: the exact rows of one view in a Delta Lake table, appended to and never changed in place.

Writers only append; the commit protocol of Delta orders them. Rows are read commit by commit, straight
from the log's JSON files, because the order of commits decides between rows of equal timestamps and no
Delta reader reports it.

Source: github.com/delta-io/delta, PROTOCOL.md, "Delta Log Entries".
"""

import json
import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, WriterProperties, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from feast_sketch_store.errors import DamagedFileError, RowError, StorageError
from feast_sketch_store.snapshot.files import fsync_path

_COMMIT_NAME = re.compile(r"(\d{20})\.json")
_RETRIES = 4  # of a commit that another writer's schema change made void
_CONFIGURATION = {
    # Order is read from the JSON commits, so Delta must not expire them behind our back.
    "delta.enableExpiredLogCleanup": "false",
    # Column statistics would keep values of deleted rows in the log.
    "delta.dataSkippingNumIndexedCols": "0",
}
_WRITER_PROPERTIES = WriterProperties(compression="ZSTD")
_COMPACTS_THROUGH = "feastSketchStoreCompactsThrough"


@dataclass(frozen=True)
class Commit:
    """One commit of the log: its version and the data files it added.

    ``compacts_through`` is a version for a compaction, whose files hold the newest rows up to that version
    and replace its commits; -1 otherwise.
    """

    version: int
    files: tuple[Path, ...]
    compacts_through: int = -1


@dataclass(frozen=True)
class LogRead:
    """Rows read from the log, in commit order; ``table`` is None if there are none.

    ``starts_over`` tells that the rows are all there are, not only the new ones: what was asked for has
    been compacted away together with deletions that are now forgotten.
    """

    version: int
    table: pa.Table | None
    num_files: int = 0
    starts_over: bool = False


class RowLog:
    """The Delta table of one view.

    Parameters
    ----------
    path : the table's folder; it is created by the first append.
    """

    def __init__(self, path: Path):
        self.path = path
        self._log_path = path / "_delta_log"

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
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"{self._log_path}: cannot be read: {error}") from error
        return first.st_ino, first.st_mtime_ns

    def append(self, rows: pa.Table) -> int:
        """Append rows as one commit; they are durable when this returns.

        Returns
        -------
        A version that contains the rows.

        Raises
        ------
        RowError : a column has another type than in the table.
        StorageError : the table cannot be written; nothing of the rows is visible.
        """
        before = self.version()
        try:
            for _ in range(_RETRIES):
                with suppress(CommitFailedError):
                    self._write(rows)
                    break
            else:
                self._write(rows)
            version = self.version(before)
            self._make_durable(before)
        except (OSError, DeltaError) as error:
            raise StorageError(f"{self.path}: rows cannot be written: {error}") from error
        return version

    def commits(self, after: int) -> list[Commit]:
        """The commits behind version ``after``, in order, with the files that are still part of the table.

        Raises
        ------
        DamagedFileError : a commit file is missing or cannot be understood.
        """
        removed: set[str] = set()
        found: list[tuple[int, list[str], int]] = []
        for version in range(after + 1, self.version(after) + 1):
            added, compacts_through = [], -1
            for action in self._actions(version):
                if "add" in action:
                    added.append(action["add"]["path"])
                elif "remove" in action:
                    removed.add(action["remove"]["path"])
                elif "commitInfo" in action:
                    compacts_through = int(action["commitInfo"].get(_COMPACTS_THROUGH, -1))
            found.append((version, added, compacts_through))
        return [
            Commit(version, tuple(self.path / unquote(p) for p in added if p not in removed), through)
            for version, added, through in found
        ]

    def read(self, after: int) -> LogRead:
        """The rows committed behind version ``after``.

        Raises
        ------
        DamagedFileError : a commit or data file is missing, truncated or altered.
        """
        commits = self.commits(after)
        compactions = [commit for commit in commits if commit.compacts_through >= 0]
        appends = [commit for commit in commits if commit.compacts_through < 0]
        starts_over = bool(compactions) and compactions[-1].compacts_through > after
        if starts_over:
            last = compactions[-1]
            appends = [last, *(c for c in appends if c.version > last.compacts_through)]
        files = [file for commit in appends for file in commit.files]
        version = commits[-1].version if commits else after
        if not files:
            return LogRead(version, None, starts_over=starts_over)
        tables = [self._read_file(file) for file in files]
        table = pa.concat_tables(tables, promote_options="default")
        return LogRead(version, table, len(files), starts_over)

    def compact(self, rows: pa.Table, through: int) -> bool:
        """Replace all commits up to version ``through`` by one with the given rows.

        Rows that are appended meanwhile stay. The replaced files stay too, until `vacuum`.

        Returns
        -------
        False if a commit that came between makes it impossible for now.

        Raises
        ------
        StorageError : the table cannot be written; it stays as it is.
        """
        try:
            write_deltalake(
                DeltaTable(str(self.path), version=through),
                rows,
                mode="overwrite",
                writer_properties=_WRITER_PROPERTIES,
                commit_properties=CommitProperties(custom_metadata={_COMPACTS_THROUGH: through}),
            )
            self._make_durable(through)
        except CommitFailedError:
            return False
        except (OSError, DeltaError) as error:
            raise StorageError(f"{self.path}: the row log cannot be compacted: {error}") from error
        return True

    def vacuum(self, orphan_age_seconds: float) -> list[Path]:
        """Remove data files that are not part of the table any more.

        Files that a commit replaced go at once; files that no commit names, which a writer left when it
        died or has not committed yet, go when they are older than ``orphan_age_seconds``.

        Returns
        -------
        The files removed.
        """
        commits = self.commits(-1)
        live = {file for commit in commits for file in commit.files}
        replaced = {
            self.path / unquote(action["remove"]["path"])
            for commit in commits
            for action in self._actions(commit.version)
            if "remove" in action
        }
        oldest = time.time() - orphan_age_seconds
        gone = [
            file
            for file in self.path.glob("*.parquet")
            if file not in live and (file in replaced or file.stat().st_mtime < oldest)
        ]
        for file in gone:
            file.unlink()
        return gone

    def check_schema(self, wanted: pa.Schema) -> None:
        """Check that rows of a schema can be appended: columns may be new, but not change their type.

        Raises
        ------
        RowError : names the columns that have another type in the table.
        """
        if self.version() < 0:
            return
        kept = {field.name: field.type for field in DeltaTable(str(self.path)).schema().fields}
        changed = [
            f"{field.name!r} is {kept[field.name]} in the row log, now {field.type}"
            for field in Schema.from_arrow(wanted).fields
            if field.name in kept and kept[field.name] != field.type
        ]
        if changed:
            raise RowError(
                f"{'; '.join(changed)}: a column cannot change its type. Give the feature a new name, or "
                f"remove the view with `feast apply`, add it again and materialize"
            )

    def _write(self, rows: pa.Table) -> None:
        if self.version() < 0:
            # Of two first writers one creates the table; `ignore` makes the other one append to it.
            DeltaTable.create(str(self.path), rows.schema, mode="ignore", configuration=_CONFIGURATION)
        self.check_schema(rows.schema)
        write_deltalake(
            str(self.path),
            rows,
            mode="append",
            schema_mode="merge",
            writer_properties=_WRITER_PROPERTIES,
        )

    def _make_durable(self, after: int) -> None:
        """Sync the commits behind a version, with their files and folders."""
        for commit in self.commits(after):
            for file in commit.files:
                fsync_path(file)
            fsync_path(self._commit_path(commit.version))
        fsync_path(self.path)
        fsync_path(self._log_path)
        if after < 0:
            fsync_path(self.path.parent)

    def _commit_path(self, version: int) -> Path:
        return self._log_path / f"{version:020d}.json"

    def _actions(self, version: int) -> list[dict[str, Any]]:
        path = self._commit_path(version)
        try:
            lines = path.read_text("utf-8").splitlines()
            actions: list[dict[str, Any]] = [json.loads(line) for line in lines if line.strip()]
            (info,) = [action["commitInfo"] for action in actions if "commitInfo" in action]
            told = info.get("operationMetrics", {}).get("num_added_files")
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise DamagedFileError(f"{path}: a commit of the row log is damaged: {error}") from error
        # A file cut at the end of a line is valid JSON: the count tells that an action is missing.
        if told is not None and told != sum("add" in action for action in actions):
            raise DamagedFileError(f"{path}: a commit of the row log lacks some of its {told} files")
        return actions

    @staticmethod
    def _read_file(path: Path) -> pa.Table:
        try:
            return pq.read_table(path, partitioning=None, memory_map=False)
        except (OSError, pa.ArrowException) as error:
            raise DamagedFileError(f"{path}: a data file of the row log is damaged: {error}") from error
