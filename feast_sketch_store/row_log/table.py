"""The Delta table of a row log: the rows of all commits up to the last absorption.

Only the process that holds the view's seal lease writes it. Its commits name the numbers of the log that they
hold:

    append       rows of the commits ``first`` to ``through``
    compaction   all rows up to ``through``, as one: what it replaces is removed

The store's own part of a commit is a JSON object in ``commitInfo``, with a checksum. Other Delta clients may
read the table. A commit that one of them wrote is an error.
"""

import json
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from feast_sketch_store.errors import DamagedFileError, RowError, StorageError
from feast_sketch_store.row_log import delta_protocol
from feast_sketch_store.row_log.data_file import RESTORE, SUFFIX, DataFile, runs
from feast_sketch_store.rows.columns import check_new_columns
from feast_sketch_store.snapshot.manifest import checksum_of
from feast_sketch_store.storage.base import (
    FileExistsAlreadyError,
    MissingFileError,
    Storage,
    UncertainWriteError,
)

_logger = logging.getLogger(__name__)

_OWN_KEY, _CHECKSUM_KEY = "feastSketchStore", "feastSketchStoreChecksum"
_RETRIES = 20  # of a commit, when another process was faster
# Versions between checkpoints, as Delta's own writers have it: some readers look no further.
_CHECKPOINT_INTERVAL = 10

# How long replaced files stay for slow readers: those of the last compactions, and earlier ones. This keeps
# them within a few times the table's size, however often it is compacted.
_TOMBSTONE_MILLISECONDS, _EARLIER_TOMBSTONE_MILLISECONDS = 3_600_000, 10_000
_LAST_COMPACTIONS = 2


@dataclass(frozen=True)
class TableCommit:
    """One commit: the files it added and the names of those it removed.

    ``first`` and ``through`` are numbers of the log. A compaction keeps the rows of the commits before it. If
    it names a ``snapshot``, its rows came from elsewhere and that snapshot holds the same rows.
    ``tombstones`` are the files that it and earlier compactions replaced, with the time in milliseconds since
    1970. One with the table's ``columns`` also has the ``identity`` of the log.
    """

    version: int
    files: tuple[DataFile, ...]
    removed: frozenset[str] = frozenset()
    first: int = -1
    through: int = -1
    is_compaction: bool = False
    snapshot: str = ""
    tombstones: Mapping[str, int] = field(default_factory=dict)
    columns: Mapping[str, Any] | None = None
    identity: str = ""


@dataclass(frozen=True)
class TableState:
    """The table at a version: commits from the last compaction on, with the remaining files of each."""

    commits: tuple[TableCommit, ...] = ()

    @property
    def version(self) -> int:
        """The newest version; -1 without a table."""
        return self.commits[-1].version if self.commits else -1

    @property
    def through(self) -> int:
        """The last number of the log whose rows are in the table; -1 for none."""
        return max((commit.through for commit in self.commits), default=-1)

    @cached_property
    def columns(self) -> Mapping[str, Any]:
        """The table's columns, and their types as Delta names them."""
        known = [commit.columns for commit in self.commits if commit.columns is not None]
        return known[-1] if known else {}

    def is_of_another(self, identity: bytes) -> bool:
        """Whether the rows are not those of a log with this identity."""
        known = [commit.identity for commit in self.commits if commit.columns is not None]
        return bool(known) and known[-1] != identity.hex()

    @property
    def files(self) -> tuple[DataFile, ...]:
        """All files of the table, in the order of their commits."""
        return tuple(file for commit in self.commits for file in commit.files)

    @property
    def compaction(self) -> TableCommit | None:
        """The last compaction."""
        return self.commits[0] if self.commits and self.commits[0].is_compaction else None


class Table:
    """Reads and writes the table.

    Every method raises a `DamagedFileError` if a commit is missing or damaged, and a `StorageError` if files
    cannot be read or written; all rows stay.
    """

    def __init__(self, storage: Storage):
        self._storage = storage

    # -- read ----------------------------------------------------------------------------------

    def versions(self) -> list[int]:
        """The versions whose commits exist, ascending."""
        return delta_protocol.versions(self._storage)

    def state(self) -> TableState:
        """Read the current table."""
        versions = self.versions()
        while True:
            try:
                return self._state_of(versions)
            except DamagedFileError:
                seen, versions = versions, self.versions()
                if versions == seen:
                    raise
                # Meanwhile a compaction removed the files that it replaced.

    def _state_of(self, versions: Sequence[int]) -> TableState:
        if not versions:
            return TableState()
        found: list[TableCommit] = []
        removed: set[str] = set()
        for version in range(versions[-1], -1, -1):
            commit = self.commit(version)
            kept = tuple(file for file in commit.files if file.name not in removed)
            found.append(replace(commit, files=kept))
            removed |= commit.removed
            # Commits are read from the newest down, so this is the last compaction and nothing before it
            # counts.
            if commit.is_compaction:
                break
        return TableState(tuple(found[::-1]))

    def commit(self, version: int) -> TableCommit:
        """One commit."""
        name = delta_protocol.commit_name(version)
        try:
            return self._parse(self._storage.read(name), version)
        except MissingFileError as error:
            raise DamagedFileError(
                f"{self._storage.where(name)}: a commit of the row log is missing. {RESTORE}"
            ) from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DamagedFileError(
                f"{self._storage.where(name)}: a commit of the row log is damaged: {error}. {RESTORE}"
            ) from error

    def _parse(self, content: bytes, version: int) -> TableCommit:
        actions = delta_protocol.decode_actions(content)

        def of_kind(kind: str) -> list[Any]:
            return [action[kind] for action in actions if kind in action]

        (info,) = of_kind("commitInfo")
        added = [delta_protocol.path_of(action) for action in of_kind("add")]
        removed = frozenset(delta_protocol.path_of(action) for action in of_kind("remove"))
        described = of_kind("metaData")
        schemas = [action["schemaString"] for action in described]
        columns = delta_protocol.columns_of(schemas[-1]) if schemas else None
        text = info.get(_OWN_KEY)
        if text is None:
            raise ValueError(
                "another Delta client wrote it, and only the store may write this table. Stop that client, "
                "and if this is the newest commit, delete its file"
            )
        if checksum_of(text.encode()) != info[_CHECKSUM_KEY]:
            raise ValueError("its checksum does not match")
        own = json.loads(text)
        if own["version"] != version:
            raise ValueError(f"it is the commit of version {own['version']}")
        if columns is not None and checksum_of(schemas[-1].encode()) != own["schema"]:
            raise ValueError("its schema was altered")
        files = tuple(DataFile.from_entry(self._storage, entry) for entry in own["files"])
        if sorted(file.name for file in files) != sorted(added) or sorted(own["removed"]) != sorted(removed):
            raise ValueError("it does not add and remove the files that it lists")
        return TableCommit(
            version,
            files,
            removed,
            own["first"],
            own["through"],
            own["is_compaction"],
            own["snapshot"],
            own["tombstones"],
            columns,
            described[-1]["id"] if described else "",
        )

    # -- write ---------------------------------------------------------------------------------

    def append(
        self, identity: str, files: Sequence[DataFile], columns: Mapping[str, Any], first: int, through: int
    ) -> TableState | None:
        """Commit written files, and return the new table; None if it now holds other rows of the log.

        Creates the table if it does not exist. ``first`` and ``through`` are the numbers of the log that the
        files hold; the table holds those before.
        """
        for _ in range(_RETRIES):
            state = self.state()
            if state.through != first - 1:
                return None
            wanted = {**state.columns, **columns}
            commit = TableCommit(
                state.version + 1,
                tuple(files),
                first=first,
                through=through,
                columns=wanted if wanted != state.columns or not state.commits else None,
            )
            if self._write(commit, identity):
                state = self.state()
                self._checkpoint_now_and_then(state)
                return state
        raise StorageError(
            f"{self._storage.where()}: other processes commit too often; try again when they are idle"
        )

    def compact(self, identity: str, state: TableState, batches: Iterable[pa.Table], snapshot: str) -> bool:
        """Replace all rows of a state by others; False if a commit came between.

        The replaced files stay until they are pruned; ``batches`` and ``snapshot`` are as of
        `RowLog.compact`.
        """
        schema = pa.schema({name: delta_protocol.arrow_type(kind) for name, kind in state.columns.items()})
        files: list[DataFile] = []
        replaced = {file.name for file in state.files}
        is_done = False
        try:
            for run in runs(batches):
                files.append(DataFile.write(self._storage, schema, run))  # noqa: PERF401, kept if one fails
            if self.state().version == state.version:
                commit = TableCommit(
                    state.version + 1,
                    tuple(files),
                    frozenset(replaced),
                    0,
                    state.through,
                    True,
                    snapshot,
                    self._tombstones(state, replaced),
                    state.columns,
                )
                is_done = self._write(commit, identity) and self._counts(commit)
        except UncertainWriteError:
            is_done = True  # possibly: the commit may still appear and needs the files
            raise
        finally:
            if not is_done:
                self.discard(files)
        return is_done

    def _counts(self, compaction: TableCommit) -> bool:
        """Whether a compaction just written is part of the table. It is not if another one compacted further
        before.
        """
        now = self.state().compaction
        names = {file.name for file in compaction.files}
        return now is not None and (
            (now.version == compaction.version and now.snapshot == compaction.snapshot)
            or bool(now.removed & names)
        )

    def discard(self, files: Sequence[DataFile]) -> None:
        """Delete files of a failed commit, unless the commit exists despite the error."""
        try:
            live = {file.name for file in self.state().files}
            self._storage.delete([file.name for file in files if file.name not in live])
        except (StorageError, DamagedFileError) as error:
            _logger.warning("%s; run `feast-sketch vacuum` to remove files that no commit names", error)

    def prune(self) -> None:
        """Checkpoint the last compaction, and delete the commits before it and files replaced long ago."""
        state = self.state()
        compaction = state.compaction
        if compaction is None:
            return
        try:
            if delta_protocol.last_checkpoint(self._storage) < compaction.version:
                self._checkpoint(state.commits[:1])
        except MissingFileError:
            return  # who compacted since has pruned
        self._storage.delete(delta_protocol.names_before(self._storage, compaction.version))
        self._storage.delete(_outdated(compaction.tombstones, delta_protocol.now()))

    def vacuum(self, kept: Iterable[str], orphan_age_seconds: float) -> list[str]:
        """Delete data files that are no longer part of the table, and return their names.

        Files that a compaction replaced go at once; other files, which a writer left when it died or has not
        committed yet, go when they are older than ``orphan_age_seconds``. Those that commits of the log name
        which are not absorbed yet are ``kept``.
        """
        state = self.state()
        live = {*kept, *(file.name for file in state.files)}
        replaced = set(state.compaction.tombstones) if state.compaction else set()
        replaced |= set().union(*(commit.removed for commit in state.commits))
        oldest = time.time() - orphan_age_seconds
        gone = []
        for info in self._storage.walk():
            is_part = info.name in live or delta_protocol.is_log_name(info.name)
            if not is_part and (info.name in replaced or info.modified_at < oldest):
                gone.append(info.name)
        self._storage.delete(sorted(gone))
        return sorted(gone)

    def _write(self, commit: TableCommit, identity: str) -> bool:
        """Write a commit; False if its version exists already.

        Raises StorageError: it cannot be written, or one of its files is gone.
        """
        own = json.dumps(
            {
                "version": commit.version,
                "first": commit.first,
                "through": commit.through,
                "is_compaction": commit.is_compaction,
                "snapshot": commit.snapshot,
                "files": [file.to_entry() for file in commit.files],
                "removed": sorted(commit.removed),
                "tombstones": dict(commit.tombstones),
                "schema": ""
                if commit.columns is None
                else checksum_of(delta_protocol.schema_string(commit.columns).encode()),
            },
            separators=(",", ":"),
        )
        more = {_OWN_KEY: own, _CHECKSUM_KEY: checksum_of(own.encode())}
        actions = [delta_protocol.commit_info("COMPACTION" if commit.is_compaction else "WRITE", more)]
        if not commit.version or commit.is_compaction:
            actions.append(delta_protocol.PROTOCOL)
        if commit.columns is not None:
            check_new_columns((), commit.columns)
            actions.append(delta_protocol.metadata(identity, commit.columns))
        actions += [delta_protocol.remove(name) for name in sorted(commit.removed)]
        actions += [
            delta_protocol.add(file.name, file.size_to_commit(), file.num_rows) for file in commit.files
        ]
        try:
            with self._storage.create(delta_protocol.commit_name(commit.version)) as file:
                file.write(delta_protocol.encode_actions(actions))
        except FileExistsAlreadyError:
            return False
        return True

    def _tombstones(self, state: TableState, replaced: Iterable[str]) -> dict[str, int]:
        """Files that are replaced now, and earlier replaced files that still exist."""
        before = state.compaction.tombstones if state.compaction else {}
        there = {name for name in self._storage.list() if name.endswith(SUFFIX)}
        now = dict.fromkeys(sorted(replaced), delta_protocol.now())
        return {n: m for n, m in before.items() if n in there} | now

    def _checkpoint_now_and_then(self, state: TableState) -> None:
        """Write a checkpoint for other readers, which would have to read all commits. The store itself uses
        only commits.
        """
        if not state.version or state.version % _CHECKPOINT_INTERVAL:
            return
        try:
            self._checkpoint(state.commits)
        except StorageError as error:
            _logger.warning("%s; the commit that it would have followed is there", error)

    def _checkpoint(self, commits: Sequence[TableCommit]) -> None:
        """Write the result of commits, from a compaction or the first commit on."""
        heads: dict[str, delta_protocol.Action] = {}
        files: list[delta_protocol.Action] = []
        for commit in commits:
            live = {file.name for file in commit.files}
            for action in delta_protocol.decode_actions(
                self._storage.read(delta_protocol.commit_name(commit.version))
            ):
                if "add" in action and delta_protocol.path_of(action["add"]) in live:
                    files.append(action)
                heads |= {kind: action for kind in ("protocol", "metaData") if kind in action}
        delta_protocol.write_checkpoint(self._storage, commits[-1].version, [*heads.values(), *files])


def _outdated(tombstones: Mapping[str, int], now: int) -> list[str]:
    """The replaced files that no reader can need any more; times are milliseconds since 1970."""
    last = set(sorted(set(tombstones.values()))[-_LAST_COMPACTIONS:])

    def kept_for(moment: int) -> int:
        return _TOMBSTONE_MILLISECONDS if moment in last else _EARLIER_TOMBSTONE_MILLISECONDS

    return [name for name, moment in tombstones.items() if moment < now - kept_for(moment)]


def new_columns(known: Mapping[str, Any], schema: pa.Schema) -> dict[str, Any]:
    """The columns of a schema that are not known yet, with their Delta types.

    Raises
    ------
    RowError : a column has another type than before.
    UnsupportedFeatureError : a name differs from that of another column only by case.
    """
    wanted = {f.name: delta_protocol.delta_type(f.type) for f in schema}
    changed = {
        name: f"{name!r} is {_text(known[name])} in the row log, now {_text(kind)}"
        for name, kind in wanted.items()
        if name in known and known[name] != kind
    }
    if changed:
        raise RowError(
            f"{'; '.join(changed.values())}: a column cannot change its type. Give the feature a new name, "
            f"or remove the view with `feast apply`, add it again and materialize"
        )
    new = {name: kind for name, kind in wanted.items() if name not in known}
    if new:
        check_new_columns(known, new)
    return new


def _text(kind: Any) -> str:
    return f"a list of {_text(kind['elementType'])}" if isinstance(kind, dict) else str(kind)
