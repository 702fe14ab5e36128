"""One feature view: its row log, its snapshots, and the stack of layers that answers reads.

write:    rows -> row log (durable, with those of other threads) -> layers in memory
seal:     row log -> newest row of each entity -> snapshot, while writes go on
refresh:  newest snapshot -> base layer;  commits since -> exact layers on top
read:     newest layer that lists the entity, otherwise the base layer
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from feast_sketch_store.errors import (
    DamagedFileError,
    RowError,
    SettingsError,
    SketchStoreError,
    StorageError,
    UnsupportedFeatureError,
    VocabularyOverflowError,
)
from feast_sketch_store.layers import Shards
from feast_sketch_store.layers.build import values_within_memory
from feast_sketch_store.layers.joint import CountedRows, JointVocabularies, count_rows
from feast_sketch_store.row_log import START, LogRead, Position, RowLog
from feast_sketch_store.row_log.staging import StagedFile, stage
from feast_sketch_store.rows.encoding import FeastRow, RowKeys
from feast_sketch_store.rows.entity_keys import find_sorted
from feast_sketch_store.rows.formulas import Formula
from feast_sketch_store.rows.list_log import ListRows, list_tables
from feast_sketch_store.snapshot.files import Draft, SnapshotFile
from feast_sketch_store.snapshot.sealed import write_layer
from feast_sketch_store.storage.base import Storage
from feast_sketch_store.storage.names import IMPORT_FOLDER, REBUILD_FOLDER, SEAL_LOCK, staged_files
from feast_sketch_store.view import written_values
from feast_sketch_store.view.background_seals import BackgroundSeals
from feast_sketch_store.view.formulas import Sampled, as_stored, computed_rows, sample_of
from feast_sketch_store.view.group_commit import GroupCommit
from feast_sketch_store.view.live import LiveView, expire_before_of
from feast_sketch_store.view.process_writes import note_write
from feast_sketch_store.view.registry import named, of_log
from feast_sketch_store.view.sealing import SealPolicy, Sizes, fold, fold_delta, may_have_deltas, num_kept
from feast_sketch_store.view.semantics import FoldedRows
from feast_sketch_store.view.settings import ViewSettings
from feast_sketch_store.view.shard_map import ShardMap
from feast_sketch_store.view.state import State
from feast_sketch_store.view.vocabulary_limit import VocabularyLimit

_logger = logging.getLogger(__name__)

# Readers that are slow to refresh still find the previous snapshot.
_SNAPSHOTS_KEPT = 2

# Without reads, up to this many rows wait, to be loaded together by a later write or the next read. A write
# that loads them takes some milliseconds longer.
_MAX_DEFERRED_ROWS = 256
_MAX_DEFERRED_BYTES = 1 << 20


Batch: TypeAlias = Sequence[FeastRow] | ListRows | pa.Table


class Dropped(NamedTuple):
    """What a view would lose if its rows were replaced.

    Parameters
    ----------
    entities : that the new rows do not have.
    newer_rows : of other entities, whose row is newer than the new one.
    """

    entities: int
    newer_rows: int

    @classmethod
    def by(cls, before: RowKeys, after: RowKeys) -> "Dropped":
        """What is lost if rows replace others; both are ordered by the hash of their entities."""
        known, places = find_sorted(after.entity_hashes, before.entity_hashes)
        is_newer = after.older_than(places, before, known)
        return cls(len(before) - len(known), int(is_newer.sum()))


class SealInput(NamedTuple):
    """The rows of the table that a seal folds, and the last commit that they cover."""

    log: LogRead
    through: Position

    def to_entry(self) -> dict[str, Any]:
        """What another process needs to find the same rows; JSON-serializable."""
        identity = self.through.identity
        return {
            "number": self.through.number,
            "identity": None if identity is None else identity.hex(),
            "table_version": self.log.table_version,
        }


@dataclass(frozen=True)
class _Deferred:
    """Rows that were written but not loaded yet: a table for each commit up to ``through``, without a gap."""

    position: Position = START
    tables: tuple[pa.Table, ...] = ()
    num_rows: int = 0
    num_bytes: int = 0

    @property
    def num_elements(self) -> int:
        """The most values that a feature with a limit can have here, as each takes at least four bytes."""
        return self.num_bytes // 4

    @property
    def num_commits(self) -> int:
        """How many commits the rows are of."""
        return len(self.tables)

    def followed_by(self, table: pa.Table, position: Position) -> "_Deferred":
        """Add the rows of one commit; keep only these if commits of others lie between."""
        last = self.position
        is_next = position.number == last.number + 1 and position.identity == last.identity
        tables = (*self.tables, table) if is_next else (table,)
        return _Deferred(position, tables, self.num_rows + len(table), self.num_bytes + table.nbytes)

    def behind(self, number: int) -> pa.Table | None:
        """The rows of the commits after one; None if they do not follow it, or there are none."""
        if not self.is_next_to(number):
            return None
        tables = self.tables[number - self.position.number :]
        schema = tables[0].schema
        # To compare schemas takes a sixth of what it takes to unite them.
        is_one = all(table.schema.equals(schema) for table in tables)
        return pa.concat_tables(tables, promote_options="none" if is_one else "default").combine_chunks()

    def is_next_to(self, number: int) -> bool:
        """Whether these are the rows of the commits after one, without a gap."""
        return 0 < self.position.number - number <= len(self.tables)


class View(BackgroundSeals, LiveView):
    """A feature view in its storage. Safe to use from several threads.

    Parameters
    ----------
    storage : the view's own; it may be empty.
    settings : of the view.
    policy : when a write seals.
    refresh_interval_seconds : how old the writes of other processes may be before a read looks for them.
    max_staleness_seconds, is_replica : see `LiveView`.

    Raises
    ------
    DamagedFileError : no snapshot of the view, or a file of its row log, can be read.
    """

    def __init__(
        self,
        storage: Storage,
        settings: ViewSettings,
        policy: SealPolicy | None = None,
        refresh_interval_seconds: float = 1.0,
        max_staleness_seconds: float | None = None,
        is_replica: bool = False,
    ):
        semantics = named(settings.semantics).of(settings.codecs)
        super().__init__(
            storage, settings.codecs, refresh_interval_seconds, semantics, max_staleness_seconds, is_replica
        )
        self.settings = settings
        self.shard_map = ShardMap()
        self.policy = policy or SealPolicy()
        self._semantics = semantics
        self._vocabulary_limit = VocabularyLimit()
        self._last_deferred = _Deferred()
        self.reset_locks()

    def reset_locks(self) -> None:
        """Replace locks that another thread of the parent process may have held when it forked."""
        super().reset_locks()
        self._commits: GroupCommit[Batch] = GroupCommit()
        self._seal_lock = threading.RLock()  # one seal, rebuild or vacuum at a time in this process
        self._reset_sealer()

    def close(self) -> None:
        """Wait for writes of tasks, a refresh and a seal that are under way."""
        self._commits.settle()
        super().close()
        self.end_seals()

    @property
    def parts(self) -> "dict[int, View]":
        """The views that hold the rows, by the number of the shard: this one."""
        return {0: self}

    def prepare(self) -> None:
        """Check that files can be written, and make the view's folder."""
        self.storage.prepare()

    # -- write ---------------------------------------------------------------------------------

    def write(self, rows: Batch) -> None:
        """Append rows durably, and seal if due: in the background, unless the policy says to wait for it.

        Writes of several threads share a commit.

        Parameters
        ----------
        rows : as Feast passes them, as rows of one list, or as a table of the row log.

        Raises
        ------
        VocabularyOverflowError, RowError, StorageError : nothing of the rows was written.
        """
        self._commits.submit(rows, self._commit)
        if self._must_wait(rows):
            self._maintain()

    def checked(self, rows: Batch) -> pa.Table:
        """Rows as a table of the row log, in their order, which `write` would take now.

        Raises
        ------
        VocabularyOverflowError, RowError : a write would be refused.
        """
        table = self.to_table([rows])
        self._check_vocabulary(table)
        return table

    async def write_async(self, rows: Batch) -> None:
        """`write` for tasks, without a thread for each."""
        await self._commits.submit_of_task(rows, self._commit)
        if self._must_wait(rows):
            await asyncio.to_thread(self._maintain)

    def _is_due(self) -> bool:
        if self.policy.by_job or self._state.pinned:
            return False
        if self._wants_absorption():
            return True
        # Called at every commit, and sizes in bytes take time.
        has_enough = self.num_unsealed > self.policy.min_rows
        return has_enough and (self._wants_seal() or self._wants_delta())

    def _must_wait(self, rows: Batch) -> bool:
        """Whether the writer of a batch waits for a seal."""
        return self._waits(len(rows)) and self._is_due()

    def _waits(self, num_rows: int, num_more: int = 0) -> bool:
        """Whether the writer of this many rows waits for a due seal, with more rows unsealed."""
        sealed = self._state.sealed
        sealed_rows = sealed.num_entities if sealed else 0
        return self.policy.waits(num_rows, sealed_rows, self.num_unsealed + num_more)

    def _wants_seal(self) -> bool:
        """Whether it is time for a new base."""
        return self.policy.wants_base(self.sizes())

    def _wants_delta(self) -> bool:
        """Whether it is time for a delta over the base."""
        has_base = self._state.sealed is not None
        return has_base and self.policy.wants_delta_of(self.sizes()) and may_have_deltas(self.settings)

    def sizes(self) -> Sizes:
        """What is sealed and what is not, as far as this object knows."""
        state, deferred = self._state, self._deferred
        sealed = state.sealed
        return Sizes(
            state.unsealed_rows + deferred.num_rows,
            state.unsealed_bytes + deferred.num_bytes,
            state.delta_rows,
            sum(delta.size_bytes for delta in state.deltas),
            sealed.num_entities if sealed else 0,
            sealed.size_bytes if sealed else 0,
        )

    @property
    def num_unsealed(self) -> int:
        """Rows that are not sealed, as far as this object knows."""
        return self._state.unsealed_rows + self._deferred.num_rows

    @property
    def was_read(self) -> bool:
        """Whether this object is read, so that writes load new rows."""
        return self._was_read

    def knows_all(self) -> bool:
        """Whether what others wrote is known, as of an interval ago; looks whether they did, if it must.

        That is all that a write needs. To take up what this process wrote takes longer than the write.
        """
        if not self._is_older_than(self._refresh_interval_seconds):
            return True
        # Another thread that refreshes will know in a moment.
        if not self._refresh_lock.acquire(blocking=not self._is_known):
            return True
        try:
            state, deferred = self._state, self._deferred
            if not self._is_open or self._starts_over:
                return False
            if deferred.is_next_to(state.position.number):
                state = replace(state, position=deferred.position.awaiting_as(state.position))
            return not self._is_outdated(state)
        finally:
            self._refresh_lock.release()

    @property
    def _is_known(self) -> bool:
        """Whether what others wrote is known, as of two intervals ago."""
        return not self._is_older_than(2 * self._refresh_interval_seconds)

    @property
    def is_pinned(self) -> bool:
        """Whether reads are held at a snapshot, as far as this object knows."""
        return bool(self._state.pinned)

    @property
    def num_deferred_elements(self) -> int:
        """The most values that a feature with a limit may have in rows that the state lacks."""
        return self._deferred.num_elements

    def _wants_absorption(self) -> bool:
        return self.policy.wants_absorption(self._state.unsealed_commits + self._deferred.num_commits)

    def _commit(self, batches: Sequence[Batch]) -> list[BaseException | None]:
        """Append batches as one commit. Returns for each batch None, or the error that refused it."""
        try:
            table = self.to_table(batches)
            self._check_vocabulary(table)
        except (RowError, VocabularyOverflowError, UnsupportedFeatureError) as error:
            if len(batches) == 1:
                self.metrics.refused(error)
                return [error]
            # Each writer gets the error of its own rows, and the other rows are written.
            return [self._commit([batch])[0] for batch in batches]
        try:
            self._append(table)
        except SketchStoreError as error:
            self.metrics.refused(error, len(batches))
            raise
        self.metrics.committed()
        # Once here, and not in each write of the commit. A writer that waits for a seal seals by itself.
        if self._is_due() and not any(map(self._must_wait, batches)):
            self._maintain_beside()
        return [None] * len(batches)

    def to_table(self, batches: Sequence[Batch]) -> pa.Table:
        """Batches as one table of the row log.

        Raises
        ------
        RowError, UnsupportedFeatureError : rows cannot be kept.
        """
        rows = [row for batch in batches if not isinstance(batch, pa.Table | ListRows) for row in batch]
        tables = [batch for batch in batches if isinstance(batch, pa.Table)]
        settings = self.settings
        try:
            tables += list_tables([b for b in batches if isinstance(b, ListRows)], settings.codecs)
            if rows:
                tables.append(self._semantics.to_log(rows, settings.codecs, settings.join_keys))
            return tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="default")
        except RowError as error:
            raise RowError(f"feature view {self.settings.view!r}: {error}") from error
        except pa.ArrowException as error:
            raise RowError(
                f"feature view {self.settings.view!r}: the rows of the batch contradict each other: {error}"
            ) from error

    def _check_vocabulary(self, table: pa.Table) -> None:
        """Check `VocabularyLimit`, if possible without loading the deferred rows."""
        if self._only_appends and written_values.surely_holds(table, self.storage, self.settings):
            return
        if self.knows_all():
            if not self._may_defer(len(table)) and self._begin_loading():
                try:
                    self._state = self._with_deferred(self._state)
                finally:
                    self._refresh_lock.release()
            num_elements = self._deferred.num_elements
            if self._vocabulary_limit.surely_holds(table, self._state, self.settings, num_elements):
                return
        self.refresh()
        self._last_deferred = _Deferred()
        self._with_state(lambda state: self._vocabulary_limit.check(table, state, self.settings))

    @property
    def _deferred(self) -> _Deferred:
        """The rows that were written through this object and that the state lacks."""
        deferred = self._last_deferred
        return deferred if self._state.position.number < deferred.position.number else _Deferred()

    @property
    def _only_appends(self) -> bool:
        """Whether this object is not read, so that writes need not load new rows."""
        return self.policy.by_job and not self._was_read

    def _may_defer(self, num_rows: int) -> bool:
        """Whether loading rows can wait: there was no read since the last write and they are few, or their
        writer will wait for a seal.
        """
        deferred = self._deferred
        if self._was_read or not self._is_known or deferred.num_bytes > _MAX_DEFERRED_BYTES:
            return False
        return deferred.num_rows + num_rows <= _MAX_DEFERRED_ROWS or self._waits(num_rows, num_rows)

    def _begin_loading(self) -> bool:
        """Take the lock to load rows; False if another thread refreshes and the rows can wait for the next
        write or read: a write does not wait while a new snapshot is opened.
        """
        deferred = self._deferred
        is_much = deferred.num_rows > _MAX_DEFERRED_ROWS or deferred.num_bytes > _MAX_DEFERRED_BYTES
        return self._refresh_lock.acquire(blocking=is_much)

    def _refresh(self, state: State | None, reads_go_on: bool = False) -> None:
        """See `LiveView._refresh`; deferred rows are loaded from memory."""
        if state is not None and not self._starts_over:
            state = self._with_deferred(state)
        super()._refresh(state, reads_go_on)

    def _with_deferred(self, state: State) -> State:
        """A state with the deferred rows, if nothing else has to be read first."""
        deferred, known = self._last_deferred, state.position.number
        table = deferred.behind(known)
        if table is None:
            return state
        through = deferred.position
        return self._loader.take_up(state, table, through, through.number - known) or state

    def _append(self, table: pa.Table) -> None:
        """Append rows durably, and load them from memory unless that can wait."""
        position = self._row_log.append(table)
        if self._only_appends:
            note_write(self._process_key)  # the next read takes them up
            return
        if self._may_defer(len(table)) or not self._begin_loading():
            self._last_deferred = self._deferred.followed_by(table, position)
            note_write(self._process_key)  # the next read takes them up
            return
        try:
            self._load_appended(table, position)
        finally:
            self._refresh_lock.release()

    def _load_appended(self, table: pa.Table, position: Position) -> None:
        """Load rows that were just appended, if nothing else has to be read first; the lock is held."""
        self._was_read = False
        state = self._loader.take_up(self._with_deferred(self._state), table, position)
        if state is None:
            note_write(self._process_key)  # the next read takes them up
            return
        self._state = state
        # The other views of this process on the same folder have to look for them.
        was_up_to_date = not self._has_unseen_write()
        number = note_write(self._process_key)
        if was_up_to_date:
            self._seen_process_write = number

    def delete(self, deletions: pa.Table) -> None:
        """Delete all rows of some entities; see `rows.deletions`.

        Durable, and visible to this process, when it returns. Rows that are written later count again,
        whatever their timestamps.

        Raises
        ------
        RowError, StorageError : nothing was deleted.
        """
        self._row_log.append(deletions)
        note_write(self._process_key)

    # -- write from many processes -----------------------------------------------------------------

    def stage(self, tables: Iterable[pa.Table], label: str) -> Iterator[StagedFile]:
        """Write rows durably into uncommitted files; see `commit_staged`.

        Parameters
        ----------
        tables : of the row log.
        label : what the files' names begin with.

        Raises
        ------
        VocabularyOverflowError, StorageError : files written before the failing one remain.
        """

        def checked() -> Iterator[pa.Table]:
            for table in tables:
                self._check_vocabulary(table)
                yield table

        return stage(self._row_log, checked(), label)

    def as_logged(self, rows: Sequence[FeastRow]) -> pa.Table:
        """Rows as Feast passes them in the form of the row log.

        Raises
        ------
        RowError, UnsupportedFeatureError : the rows cannot be kept.
        """
        return self.to_table([rows])

    def staged(self, entry: dict[str, Any]) -> StagedFile:
        """The file that an entry of a report describes."""
        return StagedFile.from_report(self._row_log, entry)

    def commit_staged(self, files: Sequence[StagedFile]) -> None:
        """Commit staged files. Their rows are durable, and visible to this process, when this returns.

        Raises
        ------
        RowError, StorageError : no file was committed; on an object store, files before the failing one were.
        """
        for file in files:
            file.check()
        if files:
            schema = pa.unify_schemas([file.schema for file in files])
            self._row_log.append_staged([file.file for file in files], schema)
            note_write(self._process_key)

    def discard_staged(self, label: str) -> int:
        """Delete uncommitted staged files whose names begin with a label. Returns their number."""
        return len(self._row_log.discard_staged(label))

    # -- seal ----------------------------------------------------------------------------------

    def seal(self, as_delta: bool = False) -> bool:
        """Build a new base layer from the newest row of each entity and publish it as a snapshot.

        Writes and reads go on meanwhile.

        Parameters
        ----------
        as_delta : whether to seal the rows since the last seal as a delta, if possible.

        Returns
        -------
        False if another process is sealing this view, so that a second seal is not needed, or if there are
        no rows yet.

        Raises
        ------
        DamagedFileError : the row log cannot be read; the previous snapshot stays.
        StorageError : the snapshot cannot be written; the previous one stays.
        """
        began = time.monotonic()
        try:
            is_published = self._seal(as_delta)
        except SketchStoreError:
            self.metrics.sealed(time.monotonic() - began, False)
            raise
        if is_published:
            self.metrics.sealed(time.monotonic() - began, True)
        return is_published

    def _seal(self, as_delta: bool) -> bool:
        with self._seal_lock, self._maintaining() as is_ours:
            if not is_ours:
                return False
            if as_delta and (draft := self.delta_draft()) is not None:
                self.publish(draft)
                self._refresh_sealed()
                return True
            given = self.seal_input()
            if given is None:
                return False
            rows = self._fold(given.log)
            self.publish(self._draft(rows, given.through, given.log.table_version))
            # The snapshot comes first: a reader that sees the compaction has a base to put it on. Writes that
            # look for what is new find it taken up.
            self._refresh_sealed()
            self._compact_if_wanted(given, rows)
            self._row_log.prune()
            if self.policy.by_job and self._state.sealed is not None and not self._state.pinned:
                written_values.note_sizes(self.storage, _vocabulary_sizes(self._state.sealed))
            return True

    # The steps of a seal, for seals of several views together; call them within `held`.

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes from sealing; waits for one that seals now."""
        with self._seal_lock, self.storage.lease(SEAL_LOCK, wait=True):
            yield

    def seal_input(self) -> SealInput | None:
        """Move fresh rows into the table. Returns the rows of the table, or None if there are none.

        Raises
        ------
        DamagedFileError, StorageError : the rows stay where they are.
        """
        absorbed = self._row_log.absorb()
        log = self._row_log.absorbed()
        if log is None or not log.files:
            return None
        # The table may hold more by now if another process seals despite the lease.
        return SealInput(log, replace(absorbed, number=log.position.number))

    def input_of_entry(self, entry: Mapping[str, Any]) -> SealInput | None:
        """The rows that another process found, see `SealInput.to_entry`; None if the table has changed."""
        log = self._row_log.absorbed()
        if log is None or log.table_version != entry["table_version"]:
            return None
        identity = entry["identity"]
        through = Position(entry["number"], None if identity is None else bytes.fromhex(identity))
        return SealInput(log, through)

    def entry_of_draft(self, draft: Draft) -> dict[str, Any]:
        """What another process needs to publish a draft; JSON-serializable."""
        return {"name": draft.snapshot.name, "manifest": draft.manifest.encode().decode()}

    def draft_of_entry(self, entry: Mapping[str, Any]) -> Draft:
        """The reverse of `entry_of_draft`. Raises DamagedFileError : it is none."""
        return self._snapshots.draft(entry["name"], entry["manifest"].encode())

    def sample(self, log: LogRead, share: float) -> Sampled:
        """Of the rows of a log that count, for formulas; see `sample_of`."""
        return sample_of(self._fold(log), self.settings, share)

    def count(self, log: LogRead, formulas: Mapping[str, Formula]) -> CountedRows:
        """How often the rows of a log that count have each value of features whose values have ids."""
        codecs = self.settings.stored_codecs
        rows = computed_rows(self._fold(log).encoded(codecs), formulas)
        return count_rows((encoded for _, encoded in rows), [*map(as_stored, codecs)])

    def values_within_memory(self, log: LogRead, joint: JointVocabularies) -> dict[str, int]:
        """For each feature with a memory limit, the number of values that a base of the rows could keep
        within it.
        """
        rows, codecs = self._fold(log), self.settings.stored_codecs
        return values_within_memory(
            rows.keys,
            computed_rows(rows.encoded(codecs), joint.formulas),
            [*map(as_stored, codecs)],
            joint.budget_of(self.settings.budget, len(rows)),
            joint,
        )

    def draft(self, given: SealInput, joint: JointVocabularies) -> tuple[Draft, bool]:
        """Draft an unpublished base with given ids of values. Also returns whether to compact the table
        afterwards.
        """
        rows = self._fold(given.log)
        draft = self._draft(rows, given.through, given.log.table_version, joint)
        return draft, self.policy.wants_compaction(rows, len(given.log.files))

    def publish(self, draft: Draft) -> None:
        """Publish a draft. Raises StorageError : the previous snapshot stays."""
        self._snapshots.publish(draft)
        self._snapshots.prune(_SNAPSHOTS_KEPT)

    def discard(self, draft: Draft) -> None:
        """Delete an unpublished draft."""
        self._snapshots.discard(draft.snapshot)

    def finish_seal(self, given: SealInput, wants_compaction: bool) -> None:
        """Clean up after a base was published."""
        if wants_compaction:
            self._compact_if_wanted(given, self._fold(given.log))
        self._row_log.prune()
        self._refresh_sealed()

    def _refresh_sealed(self) -> None:
        """Load a new snapshot without the rows deferred before it, which are sealed or read with it."""
        self._last_deferred = _Deferred()
        self.refresh()

    def _compact_if_wanted(self, given: SealInput, rows: FoldedRows) -> None:
        if self.policy.wants_compaction(rows, len(given.log.files)):
            batches = (batch for _, batch in rows.batches())
            self._row_log.compact(batches, given.through, version=given.log.table_version)

    def absorb(self) -> None:
        """Move fresh rows into the table of the row log, if no other process seals or does the same.

        Raises
        ------
        DamagedFileError, StorageError : the rows stay where they are.
        """
        with self._seal_lock, self._maintaining() as is_ours:
            if is_ours:
                self.refresh()  # deferred rows would be counted again and again
                self._row_log.absorb()
                with self._refresh_lock:
                    self._state = replace(self._state, unsealed_commits=0)

    def seal_if_due(self) -> bool:
        """Seal or absorb if the policy says that it is due, whichever process wrote the rows.

        Returns
        -------
        Whether there is a new snapshot.

        Raises
        ------
        DamagedFileError, StorageError : as `seal`.
        """
        self.refresh()
        return self._seal_if_due()

    def _seal_if_due(self) -> bool:
        with self._seal_lock:
            if self._state.pinned:
                return False  # what is written since cannot be told from it
            if self._wants_seal():
                return self.seal()
            if self._wants_delta():
                return self.seal(as_delta=True)
            if self._wants_absorption():
                self.absorb()
            return False

    def delta_draft(self) -> Draft | None:
        """Fold the rows since the base, or since a delta over it, into an unpublished delta.

        Returns
        -------
        None if a new base is needed: there is no readable base, its rows were replaced, or these rows cannot
        form a delta.
        """
        if not may_have_deltas(self.settings):
            return None
        self._row_log.absorb()
        self.refresh()
        state = self._state
        if state.snapshot is None or state.sealed is None or state.pinned:
            return None
        if state.snapshot != state.newest_seen:
            return None
        if state.sealed.formulas.keys() != self.settings.computed:
            return None
        manifest = state.snapshot.manifest()
        kept = num_kept(state.deltas, state.unsealed_rows)
        version = manifest.layer_versions()[kept]
        log = self._row_log.absorbed_behind(version - 1, state.snapshot.name)
        if log is None or not log.files:
            return None
        layer, keys = fold_delta(
            log.batches,
            self.settings,
            state.sealed.cut_vocabularies,
            lambda keys: self._loader.late(state, keys, kept),
            state.sealed.formulas,
        )
        return write_layer(
            self._snapshots,
            layer,
            keys,
            self.settings.view,
            log.position.number + 1,
            log.table_version,
            manifest.below(kept),
        )

    def kept_rows(self) -> FoldedRows | None:
        """The rows that a seal would keep now, read anew from the row log; None if it has none.

        Raises
        ------
        DamagedFileError : the row log cannot be read.
        """
        log = self._row_log.read()
        return self._fold(log) if log else None

    def rows_of(self, log: LogRead) -> FoldedRows:
        """The rows of a log of this view that a seal would keep."""
        return self._fold(log)

    def _fold(self, log: LogRead, before: LogRead | None = None) -> FoldedRows:
        """The rows that a seal keeps. They include recently expired rows, which reads hide.

        Parameters
        ----------
        before : rows that were written before those of ``log``, if they count.
        """

        def batches(columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
            for part in (before, log):
                if part is not None:
                    yield from part.batches(columns)

        kept = self.settings.retention_microseconds
        return self._semantics.of(self.settings.codecs).fold(batches, expire_before_of(kept), kept)

    def sealed_formulas(self) -> Mapping[str, Formula]:
        """The formulas of the last seal, from which the next one starts; none if it cannot be read."""
        if not self.settings.computed:
            return {}
        try:
            sealed = self._loader.sealed().sealed
        except SketchStoreError:
            return {}
        return {} if sealed is None else sealed.formulas

    def _draft(
        self,
        rows: FoldedRows,
        through: Position,
        table_version: int,
        joint: JointVocabularies | None = None,
    ) -> Draft:
        """Fold rows into a layer and write it as an unpublished snapshot of the log up to a commit."""
        layer = fold(rows, self.settings, joint, self.sealed_formulas())
        # A snapshot's version is the number of commits that it covers.
        return write_layer(
            self._snapshots, layer, rows.keys, self.settings.view, through.number + 1, table_version
        )

    def rebuild(
        self,
        fill: Callable[[Storage], Storage],
        confirm: Callable[[Dropped | None], bool] | None = None,
        keep: bool = False,
        joint: JointVocabularies | None = None,
    ) -> bool:
        """Replace all rows by others, or add others to them, in one step for readers.

        Reads see the old rows until the new ones are complete, and then the new ones, in one step. Rows that
        any process writes meanwhile stay and compete with the new ones as usual.

        Parameters
        ----------
        fill : is given an empty storage, writes rows to a view in it, and returns that view's storage.
        confirm : called if the new rows do not cover all existing ones; returns whether to go on. Its
            argument is None if the existing rows cannot be read.
        keep : whether the existing rows stay, and the new ones compete with them as if written now.
        joint : the numbering of values that all shards share.

        Returns
        -------
        False if it was not confirmed; nothing changed.

        Raises
        ------
        StorageError : another process is sealing this view, or there are no new rows; nothing has changed.
        """
        with self._seal_lock, self.unchanging():
            schema = self._semantics.columns(self.settings.codecs)
            through = self._row_log.begin()
            self._row_log.extend(schema, through)
            staging = self.storage.within(REBUILD_FOLDER)
            staging.delete_all()  # of one that was killed
            try:
                log = RowLog(fill(staging)).read()
                if not log:
                    raise StorageError(
                        f"{self.storage.location}: there are no rows to rebuild from; nothing has changed"
                    )
                kept = self._row_log.absorbed() if keep else None
                rows = self._fold(log, kept)
                if confirm is not None:
                    dropped = self._dropped_by(rows)
                    if (dropped is None or any(dropped)) and not confirm(dropped):
                        return False
                self._row_log.extend(log.schema(), through)
                try:
                    self._replace_rows(rows, through, joint)
                except BaseException:
                    self._starts_over = True  # the new rows may be there in spite of the error
                    raise
            finally:
                staging.delete_all()
            self.refresh()
            return True

    def dropped_by(self, log: LogRead) -> Dropped | None:
        """The rows that would be lost if a log's rows replaced those of the view; None if these cannot be
        read.
        """
        return self._dropped_by(self._fold(log))

    def _dropped_by(self, rows: FoldedRows) -> Dropped | None:
        """The absorbed rows that others lack; None if they cannot be read."""
        try:
            log = self._row_log.absorbed()
            before = self._fold(log).keys if log is not None and log.files else RowKeys.none()
        except DamagedFileError as error:
            _logger.warning("%s", error)
            return None
        return Dropped.by(before, rows.keys)

    def _replace_rows(
        self, rows: FoldedRows, through: Position, joint: JointVocabularies | None = None
    ) -> None:
        """Replace the rows up to a commit, and the snapshot, by others."""
        version = self._row_log.table_state().version
        # No seal of rows that the table held before comes after this one.
        draft = self._draft(rows, through, version + 1, joint)
        is_replaced = False
        try:
            self._row_log.announce_replacement()
            batches = (batch for _, batch in rows.batches())
            is_replaced = self._row_log.compact(batches, through, draft.snapshot.name, version)
        finally:
            if not is_replaced:
                self._snapshots.discard(draft.snapshot)
        if not is_replaced:
            raise StorageError(
                f"{self.storage.location}: another process changed the row log meanwhile; try again"
            )
        # From here on the row log holds the new rows, and whoever has read the old ones looks for them.
        try:
            self._snapshots.publish(draft)
        except StorageError as error:
            _logger.warning("%s; the new rows are read from the row log until a later seal", error)
        self._snapshots.prune(_SNAPSHOTS_KEPT)
        self._row_log.prune()

    @contextmanager
    def unchanging(self) -> Iterator[None]:
        """Keep other processes from sealing, rebuilding or vacuuming the view; they may write.

        Raises
        ------
        StorageError : another process is doing so.
        """
        with self._seal_lock, self.storage.lease(SEAL_LOCK) as is_ours:
            if not is_ours:
                raise StorageError(
                    f"{self.storage.location}: another process is sealing this view; try again later"
                )
            yield

    def _maintaining(self) -> AbstractContextManager[bool]:
        """Hold the view's seal lock, unless another process holds it or the view was dropped."""
        return self.storage.lease(SEAL_LOCK, create=False)

    # -- hold --------------------------------------------------------------------------------------

    def pin(self, version: int | None = None) -> SnapshotFile:
        """Hold reads of all processes at a snapshot, until `unpin`.

        Writes are kept, and not shown. No write seals meanwhile; `seal` still does.

        Parameters
        ----------
        version : how many commits the snapshot covers, as `feast-sketch inspect` shows; None for the newest.

        Returns
        -------
        The snapshot.

        Raises
        ------
        SettingsError : there is no such snapshot.
        StorageError : the storage cannot be written.
        """
        published = self._snapshots.list()
        found = [s for s in published if version is None or s.version == version]
        if not found:
            there = ", ".join(str(s.version) for s in published) or "none"
            raise SettingsError(
                f"{self.storage.location}: there is no snapshot"
                f"{'' if version is None else f' of version {version}'}; there are the versions: {there}"
            )
        self._snapshots.pin(found[0])
        self.refresh()
        return found[0]

    def published(self) -> Sequence[SnapshotFile]:
        """All snapshots, newest first."""
        return self._snapshots.list()

    @property
    def snapshot_version(self) -> int | None:
        """The number of commits that the served snapshot covers; None without a snapshot."""
        found = self.sealed()
        return None if found is None else found[1].version

    def unpin(self) -> bool:
        """Let reads follow the writes again. Returns whether they were held.

        Raises
        ------
        StorageError : the storage cannot be written.
        """
        was_pinned = self._snapshots.unpin()
        self.refresh()
        return was_pinned

    # -- clean up ------------------------------------------------------------------------------

    def check_codecs(self) -> None:
        """Check that the stored values of each feature can be read with its codec.

        Raises
        ------
        UnsupportedFeatureError, RowError : a feature has another type than its stored values.
        """
        self.refresh()
        self._row_log.check_schema(self._semantics.columns(self.settings.codecs))
        columns = self.stored_schema().names
        if columns and of_log(columns).log_column != self._semantics.log_column:
            raise UnsupportedFeatureError(
                f"the rows of feature view {self.settings.view!r} {of_log(columns).name}, and are declared "
                f"to {self._semantics.name} now; give the view a new name, or remove it with `feast apply`, "
                "add it again and materialize"
            )

    def vacuum(self, orphan_age_seconds: float = 86_400.0) -> int:
        """Remove unused files: replaced rows, all snapshots except the newest, and leftovers of killed
        processes.

        After a seal this removes the last trace of deleted rows. Processes that still map an old snapshot
        keep it until they refresh.

        Parameters
        ----------
        orphan_age_seconds : data files that no commit names are removed when they are older; younger ones
            may belong to a writer that has not committed yet.

        Returns
        -------
        The number of files removed; 0 also while another process seals.
        """
        with self._seal_lock, self._maintaining() as is_ours:
            if not is_ours:
                return 0
            num_removed = len(staged_files(self.storage))
            self.storage.within(REBUILD_FOLDER).delete_all()
            self.storage.within(IMPORT_FOLDER).delete_all()
            before = self._snapshots.list()
            self._snapshots.prune(1)
            num_removed += len(before) - len(self._snapshots.list())
            num_removed += self._snapshots.remove_leftovers(orphan_age_seconds)
            return num_removed + len(self._row_log.vacuum(orphan_age_seconds))


def _vocabulary_sizes(sealed: Shards) -> dict[str, int]:
    """How many different values the sealed features with a vocabulary have, at most."""
    return {name: sum(part.num_values for part in sealed.features(name)) for name in sealed.codecs}
