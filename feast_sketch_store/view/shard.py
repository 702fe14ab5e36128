"""One shard of a feature view: its row log, its snapshots, and the rows that were written and not loaded yet.

append:   rows -> row log (durable) -> layers in memory, at once or with later ones
seal:     row log -> newest row of each entity -> snapshot, in steps that the view takes with all its shards
refresh:  newest snapshot -> base layer;  commits since -> exact layers on top
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from feast_sketch_store.errors import DamagedFileError, SketchStoreError, StorageError
from feast_sketch_store.layers import SealedRows, SketchLayer
from feast_sketch_store.layers.joint import CountedRows, SharedVocabularies, count_rows
from feast_sketch_store.row_log import START, LogRead, Position
from feast_sketch_store.row_log.data_file import StagedFile
from feast_sketch_store.rows.encoding import NO_TIMESTAMP, RowKeys
from feast_sketch_store.rows.entity_keys import find_sorted
from feast_sketch_store.rows.formulas import Formula
from feast_sketch_store.rows.newest import Batches
from feast_sketch_store.settings.view_settings import ViewSettings
from feast_sketch_store.snapshot.files import SnapshotFile
from feast_sketch_store.snapshot.sealed import check_whole, write_layer
from feast_sketch_store.storage.base import Storage
from feast_sketch_store.storage.names import kept_name
from feast_sketch_store.view.folding import (
    Ranges,
    as_stored,
    builder_of,
    computed_rows,
    fold,
    fold_delta,
    num_kept,
    ranges_of,
    view_named_in_errors,
    wants_compaction,
)
from feast_sketch_store.view.gate import Figures
from feast_sketch_store.view.live_shard import LiveShard, expire_before_of, note_write
from feast_sketch_store.view.seal_policy import Sizes, may_have_deltas
from feast_sketch_store.view.semantics import REPLACE, FoldedRows, RowSemantics, named
from feast_sketch_store.view.state import ShardState

_logger = logging.getLogger(__name__)

# Readers that are slow to refresh still find the previous snapshot.
_SNAPSHOTS_KEPT = 2

# Without reads, up to this many rows wait, to be loaded together by a later write or the next read. A write
# that loads them takes some milliseconds longer.
_MAX_DEFERRED_ROWS = 256
_MAX_DEFERRED_BYTES = 1 << 20

_told_late: set[tuple[str, str]] = set()  # views whose late rows were logged: the folder and the name


class Dropped(NamedTuple):
    """What a view would lose if its rows were replaced: entities that the new rows do not have, and rows of
    other entities that are newer than the new ones.
    """

    entities: int
    newer_rows: int

    @classmethod
    def by(cls, before: RowKeys, after: RowKeys) -> "Dropped":
        """What is lost if rows replace others; both are ordered by the hash of their entities."""
        known, places = find_sorted(after.entity_hashes, before.entity_hashes)
        is_newer = after.older_than(places, before, known)
        return cls(len(before) - len(known), int(is_newer.sum()))

    @classmethod
    def sum_of(cls, parts: Sequence["Dropped | None"]) -> "Dropped | None":
        """What all shards would lose; None if that of one is not known."""
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        return cls(sum(part.entities for part in known), sum(part.newer_rows for part in known))


class Drafted(NamedTuple):
    """An unpublished base of a shard, its figures for the gate, and whether the row log wants compaction."""

    snapshot: SnapshotFile
    figures: Figures
    compacts: bool

    def to_entry(self) -> dict[str, Any]:
        """What another process needs to publish it; JSON-serializable."""
        return {
            "name": self.snapshot.name,
            "manifest": self.snapshot.manifest().encode().decode(),
            "figures": asdict(self.figures),
            "compacts": self.compacts,
        }


@dataclass(frozen=True)
class _Deferred:
    """Rows that were written but not loaded yet: a table for each commit up to ``through``, without a gap."""

    position: Position = START
    tables: tuple[pa.Table, ...] = ()
    num_rows: int = 0
    num_bytes: int = 0

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
        # Comparing schemas takes a sixth of the time of uniting them.
        is_one = all(table.schema.equals(schema) for table in tables)
        return pa.concat_tables(tables, promote_options="none" if is_one else "default").combine_chunks()

    def is_next_to(self, number: int) -> bool:
        """Whether these are the rows of the commits after one, without a gap."""
        return 0 < self.position.number - number <= len(self.tables)


class Shard(LiveShard):
    """A shard of a feature view in a storage of its own. Safe to use from several threads.

    It decides nothing: the view says when it loads, absorbs and seals, and holds the lease for that.
    Parameters are those of `LiveShard`, with the settings of the view in place of the semantics.
    """

    def __init__(
        self,
        storage: Storage,
        settings: ViewSettings,
        refresh_interval_seconds: float = 1.0,
        is_replica: bool = False,
    ):
        semantics = named(settings.semantics, settings.codecs)
        super().__init__(storage, semantics, refresh_interval_seconds, is_replica, kept_name(settings.view))
        self.settings = settings
        self.complete_since = NO_TIMESTAMP  # of rows that are moved to this shard, see `SketchLayer`
        self._last_deferred = _Deferred()

    # -- what is known -------------------------------------------------------------------------

    def sizes(self) -> Sizes:
        """What is sealed and what is not, as far as this object knows."""
        state, deferred = self.state, self._deferred
        sealed = state.sealed
        return Sizes(
            state.unsealed_rows + deferred.num_rows,
            state.unsealed_bytes + deferred.num_bytes,
            sum(map(len, state.deltas)),
            sum(delta.size_bytes for delta in state.deltas),
            sealed.num_entities if sealed else 0,
            sealed.size_bytes if sealed else 0,
        )

    @property
    def num_unsealed_commits(self) -> int:
        """Commits that no snapshot and no absorption covers, as far as this object knows."""
        return self.state.unsealed_commits + len(self._deferred.tables)

    @property
    def num_unsealed(self) -> int:
        """Rows that are not sealed, as far as this object knows."""
        return self.state.unsealed_rows + self._deferred.num_rows

    def _count_others(self) -> str:
        """Know what others wrote and sealed, as of an interval ago, so that a seal comes when it is due.

        Loading what this process wrote takes longer than the write. Returns why it is not known. Reads
        then meet the error, too, and rows may be appended nevertheless.
        """
        try:
            if not self._knows_others():
                self.refresh()
                self._last_deferred = _Deferred()
        except SketchStoreError as error:
            return str(error)
        return ""

    def _knows_others(self) -> bool:
        """Whether what others wrote is known, as of an interval ago; polls if it must."""
        if not self._is_older_than(self.refresh_interval_seconds):
            return True
        # Another thread that refreshes will know in a moment.
        if self._is_known and self._refresh_lock.locked():
            return True
        with self._refresh_lock:
            state, deferred = self.state, self._deferred
            if not self._is_open or self._starts_over:
                return False
            if deferred.is_next_to(state.position.number):
                state = replace(state, position=deferred.position.awaiting_as(state.position))
            return not self._is_outdated(state)

    @property
    def _is_known(self) -> bool:
        """Whether what others wrote is known, as of two intervals ago."""
        return not self._is_older_than(2 * self.refresh_interval_seconds)

    @property
    def _deferred(self) -> _Deferred:
        """The rows that were written through this object and that the state lacks."""
        deferred = self._last_deferred
        return deferred if self.state.position.number < deferred.position.number else _Deferred()

    def _may_defer(self, num_rows: int, is_sealed_soon: bool) -> bool:
        """Whether loading rows can wait: there was no read since the last write and they are few, or their
        writer will wait for a seal.
        """
        deferred = self._deferred
        if self._was_read or not self._is_known or deferred.num_bytes > _MAX_DEFERRED_BYTES:
            return False
        return is_sealed_soon or deferred.num_rows + num_rows <= _MAX_DEFERRED_ROWS

    def _must_defer(self) -> bool:
        """Whether another thread refreshes, and the rows can wait for the next write or read: a write does
        not wait while a new snapshot is opened.
        """
        deferred = self._deferred
        is_much = deferred.num_rows > _MAX_DEFERRED_ROWS or deferred.num_bytes > _MAX_DEFERRED_BYTES
        return not is_much and self._refresh_lock.locked()

    def _refresh(self, state: ShardState | None, reads_go_on: bool = False) -> None:
        """See `LiveShard._refresh`; deferred rows are loaded from memory."""
        if state is not None and not self._starts_over:
            state = self._with_deferred(state)
        super()._refresh(state, reads_go_on)

    def _with_deferred(self, state: ShardState) -> ShardState:
        """A state with the deferred rows, if nothing else has to be read first and memory suffices."""
        deferred, num_late = self._last_deferred, self._loader.num_late
        try:
            table = deferred.behind(state.position.number)
            if table is None:
                return state
            taken = self._loader.apply_commits(state, table, deferred.position)
        except MemoryError:  # the rows are durable: their write has not failed, and a read says what is wrong
            return state
        self._tell_late(self._loader.num_late - num_late, len(table))
        return taken or state

    def _tell_late(self, number: int, num_rows: int) -> None:
        """Log the first rows of this process that came too late to count, once for each view."""
        view = self.settings.view
        key = self.storage.location.rpartition(f"/{view}")[0], view  # the same for all shards
        if number and key not in _told_late:
            _told_late.add(key)
            _logger.warning(
                "feature view %r: %d of %d rows written are ignored, because the rows of their entities have "
                "newer timestamps. (Some stores, such as SQLite, overwrite those.) Give rows their true "
                "event times, or delete the entities first. Further ignored rows are not logged",
                view,
                number,
                num_rows,
            )

    # -- write ---------------------------------------------------------------------------------

    def append(self, table: pa.Table, only_appends: bool = False, is_sealed_soon: bool = False) -> None:
        """Append rows as one commit; they are durable, and visible to this process, when this returns.

        Parameters
        ----------
        only_appends : whether the rows need not be loaded before someone reads here.
        is_sealed_soon : whether their writer waits for a seal.

        Raises RowError, StorageError: the rows were not written.
        """
        if only_appends and not self._was_read:
            self.row_log.append(table)
            note_write(self._process_key)  # the next read loads them
            return
        problem = self._count_others()
        position = self.row_log.append(table)
        if problem and problem != self._last_warning:
            self._last_warning = problem
            _logger.warning("%s; rows are written, and not sealed until it can be read", problem)
        deferred = self._deferred.followed_by(table, position)
        can_wait = self._may_defer(len(table), is_sealed_soon) or self._must_defer()
        self._last_deferred = deferred
        if can_wait:
            note_write(self._process_key)  # the next read loads them
            return
        with self._refresh_lock:
            self._load_deferred()

    def _load_deferred(self) -> None:
        """Load rows that were just appended, if nothing else has to be read first; the lock is held."""
        self._was_read = False
        state = self._with_deferred(self.state)
        if state is self.state:
            note_write(self._process_key)  # the next read loads them
            return
        self.state = state
        self.on_change(self.state)
        # The other views of this process on the same folder have to poll for them.
        was_up_to_date = not self._has_unseen_write()
        number = note_write(self._process_key)
        if was_up_to_date:
            self._seen_process_write = number

    def delete(self, deletions: pa.Table) -> None:
        """Delete all rows of some entities; see `rows.deletions`. It is durable when this returns.

        Raises RowError, StorageError: nothing was deleted.
        """
        self.row_log.append(deletions)
        note_write(self._process_key)

    def commit_staged(self, files: Sequence[StagedFile]) -> None:
        """Commit checked files. Their rows are durable, and visible to this process, when this returns.

        Raises RowError, StorageError: no file was committed; on an object store, files before the failing one
        were.
        """
        if files:
            schema = pa.unify_schemas([file.schema for file in files])
            self.row_log.append_all([file.file for file in files], schema)
            note_write(self._process_key)

    # -- seal: the steps, which the view takes with all shards under its lease -------------------

    def begun_input(self) -> LogRead:
        """Absorb the row log of a shard that may have none yet; it gets one with all columns."""
        return self.row_log.extend(self.row_log.begin(), self._semantics.columns())

    def drafted(self, entry: Mapping[str, Any]) -> Drafted:
        """The draft of `Drafted.to_entry`. Raises DamagedFileError: the entry is not one."""
        snapshot = self.snapshots.named(entry["name"], entry["manifest"].encode())
        return Drafted(snapshot, Figures(**entry["figures"]), entry["compacts"])

    def sample(self, log: LogRead, formulas: Mapping[str, Formula], share: float) -> Ranges:
        """The scores of the rows of a log that count; see `ranges_of`."""
        return ranges_of(self.rows_of(log), self.settings, formulas, share)

    def count(self, log: LogRead, formulas: Mapping[str, Formula]) -> CountedRows:
        """How often the rows of a log that count have each value of features whose values have ids."""
        codecs = self.settings.stored_codecs
        rows = computed_rows(self.rows_of(log).encoded(codecs), formulas)
        return count_rows((encoded for _, encoded in rows), [*map(as_stored, codecs)])

    def values_within_memory(self, log: LogRead, joint: SharedVocabularies) -> dict[str, int]:
        """For each feature with a memory limit, the number of values that a base of the rows could keep
        within it.
        """
        rows, codecs = self.rows_of(log), self.settings.stored_codecs
        builder = builder_of(rows, self.settings, joint.formulas)
        budget = joint.budget_of(self.settings.budget, codecs, len(rows))
        with view_named_in_errors(self.settings.view):
            return builder.values_within_memory(budget, joint)

    def draft(self, log: LogRead, joint: SharedVocabularies | None, table: LogRead | None = None) -> Drafted:
        """Fold the rows of a log into an unpublished base.

        ``joint`` is what all shards share. ``table`` is the table to be sealed, which may be empty; None for
        that of the log.
        """
        rows, view = self.rows_of(log), kept_name(self.settings.view)
        # Former seals left nothing out of rows from elsewhere.
        continues = table is None or (bool(table.files) and log.files[: len(table.files)] == table.files)
        table = log if table is None else table
        last = self._last_sealed() if continues and self.settings.semantics != REPLACE else None
        complete_since = self.complete_since if last is None else last.complete_since
        layer = fold(rows, self.settings, joint, self.sealed_formulas(), complete_since)
        # A snapshot's version is the number of commits that it covers.
        version = table.position.number + 1
        snapshot = write_layer(self.snapshots, layer, rows.keys, view, version, table.table_version)
        return Drafted(snapshot, Figures.of(SealedRows((layer,))), wants_compaction(rows, len(log.files)))

    def figures(self, log: LogRead, joint: SharedVocabularies | None) -> Figures:
        """The figures of the base that a log would become."""
        layer = fold(self.rows_of(log), self.settings, joint, self.sealed_formulas())
        return Figures.of(SealedRows((layer,)))

    def publish(self, draft: SnapshotFile) -> None:
        """Publish a draft. Raises StorageError: the previous snapshot stays."""
        self.snapshots.publish(draft)
        self._prune_snapshots()

    def _prune_snapshots(self) -> None:
        """Remove snapshots that readers no longer need."""
        self._clean_up(partial(self.snapshots.prune, _SNAPSHOTS_KEPT))

    def _prune_rows(self) -> None:
        """Remove files of the row log that readers no longer need."""
        self._clean_up(self.row_log.prune)

    def _clean_up(self, prune: Callable[[], None]) -> None:
        """Remove files after a seal or a replacement of rows, which have happened even if this fails."""
        try:
            prune()
        except StorageError as error:
            _logger.warning("%s; the next seal or `feast-sketch vacuum` removes former files", error)

    def finish_seal(self, log: LogRead, compacts: bool) -> None:
        """Load a base that was published, and clean up after it."""
        # The snapshot comes first: a reader that sees the compaction has a base to put it on. Writes that
        # poll for news then find it loaded.
        self.refresh_sealed()
        if compacts:
            self.row_log.compact(self.tables_of(log), log)
        self._prune_rows()

    def refresh_sealed(self) -> None:
        """Load a new snapshot without the rows deferred before it, which are sealed or read with it."""
        self._last_deferred = _Deferred()
        self.refresh()

    def absorb(self) -> None:
        """Move the rows of the write-ahead log into the table.

        Raises DamagedFileError, StorageError: the rows stay where they are.
        """
        self.refresh()  # deferred rows would be counted again and again
        self.row_log.absorb()
        with self._refresh_lock:
            self.state = replace(self.state, unsealed_commits=0)

    def delta_draft(self) -> SnapshotFile | None:
        """Fold the rows since the base, or since a delta over it, into an unpublished delta.

        None if a new base is needed: there is no readable base, its rows were replaced, or these rows cannot
        form a delta, also because a file is damaged.
        """
        if not may_have_deltas(self.settings):
            return None
        self.row_log.absorb()
        self.refresh()
        state = self.state
        if state.snapshot is None or state.sealed is None or state.pinned:
            return None
        if state.snapshot != state.newest_seen:
            return None
        if state.sealed.formulas.keys() != self.settings.computed:
            return None
        kept = num_kept(state.deltas, state.unsealed_rows)
        below = state.snapshot.manifest().layers[: kept + 1]
        log = self.row_log.absorbed_behind(below[-1].row_log_version - 1, state.snapshot.name)
        if log is None or not log.files:
            return None
        try:
            layer, keys = fold_delta(
                log.batches,
                self.settings,
                state.sealed.cut_vocabularies,
                lambda keys: self._loader.late(state, keys, kept),
                state.sealed.formulas,
            )
        except DamagedFileError:
            return None  # a base is made of rows alone, without an order index
        view, version = kept_name(self.settings.view), log.position.number + 1
        return write_layer(self.snapshots, layer, keys, view, version, log.table_version, below)

    def kept_rows(self) -> FoldedRows | None:
        """The rows that a seal would keep now, read anew from the row log; None if it has none.

        Raises
        ------
        DamagedFileError : the row log cannot be read.
        StorageError : the same; or, also while the rows are used, a seal replaced them and a vacuum removed
            the files.
        """
        log = self.row_log.read()
        return self._fold(log, partial(self.row_log.batches_of, log)) if log else None

    def rows_of(self, log: LogRead) -> FoldedRows:
        """The rows of a log of this view that a seal keeps: also recently expired rows, which reads hide."""
        return self._fold(log, log.batches)

    def _fold(self, log: LogRead, batches: Batches) -> FoldedRows:
        kept = self.settings.retention_microseconds
        return self._semantics.fold(batches, expire_before_of(kept, log.moment), kept)

    def tables_of(self, log: LogRead) -> Iterator[pa.Table]:
        """The rows of a log that a seal keeps, one for each entity, and what other rows add to features that
        the settings lack.
        """
        rows = self.rows_of(log)
        yield from (table for _, table in rows.batches())
        yield from rows.undeclared()

    @property
    def _semantics(self) -> RowSemantics:
        """As the settings are now."""
        return named(self.settings.semantics, self.settings.codecs)

    def sealed_formulas(self) -> Mapping[str, Formula]:
        """The formulas of the last seal, from which the next one starts; none if it cannot be read."""
        sealed = self._last_sealed() if self.settings.computed else None
        return {} if sealed is None else sealed.formulas

    def newest_snapshot(self) -> SnapshotFile | None:
        """The newest snapshot that can be read; None before the first seal.

        Raises DamagedFileError: none of them can be read.
        """
        return self._loader.sealed().snapshot

    def _last_sealed(self) -> SketchLayer | None:
        """The base of the newest snapshot; None if there is none that can be read."""
        try:
            return self._loader.sealed().sealed
        except SketchStoreError:
            return None

    # -- rebuild: the steps, see `rebuilding` ---------------------------------------------------

    def dropped_by(self, before: LogRead, after: LogRead) -> Dropped | None:
        """The rows that would be lost if others replaced them; None if they cannot be read.

        Expired rows, which a seal would leave out, would be lost in any case.
        """
        new = self.rows_of(after)
        try:
            kept = self._semantics.fold(before.batches, new.expire_before).keys
        except DamagedFileError as error:
            _logger.warning("%s", error)
            return None
        return Dropped.by(kept, new.keys)

    def replacement(
        self, before: LogRead, after: LogRead, joint: SharedVocabularies | None
    ) -> tuple[LogRead, Drafted]:
        """Draft an unpublished base of rows that are to replace those of the table.

        ``before`` is of the log, which was begun; what any process wrote since then stays. Returns the rows
        of the table, which has all columns now, and the draft.
        """
        before = self.row_log.extend(before, self._semantics.columns())
        if after:
            before = self.row_log.extend(before, after.schema())
        # No seal of rows that the table held before comes after this one.
        newer = replace(before, table_version=before.table_version + 1)
        return before, self.draft(after, joint, newer)

    def replace_rows(self, before: LogRead, after: LogRead, draft: SnapshotFile) -> None:
        """Replace the rows of the table, and the snapshot; ``before`` and ``draft`` are of `replacement`.

        Raises StorageError: another process changed the table meanwhile; nothing has changed.
        """
        try:
            self._replace_rows(before, after, draft)
        except BaseException:
            self._starts_over = True  # the new rows may be there in spite of the error
            raise
        finally:
            note_write(self._process_key)  # other views of this process on the folder have to poll
        self.refresh()

    def _replace_rows(self, before: LogRead, after: LogRead, draft: SnapshotFile) -> None:
        is_replaced = False
        try:
            self.row_log.announce_replacement()
            is_replaced = self.row_log.compact(self.tables_of(after), before, draft.name)
        finally:
            if not is_replaced:
                self.snapshots.discard(draft)
        if not is_replaced:
            raise StorageError(
                f"{self.storage.location}: another process changed the row log meanwhile; try again"
            )
        # From here on the row log holds the new rows. Processes that have read the old ones read it again.
        try:
            self.snapshots.publish(draft)
        except StorageError as error:
            _logger.warning("%s; the new rows are read from the row log until a later seal", error)
        self._prune_snapshots()
        self._prune_rows()

    # -- clean up ------------------------------------------------------------------------------

    def vacuum(self, orphan_age_seconds: float, kept: Set[str] = frozenset()) -> int:
        """Remove unused files except some data files, and return their number; see `View.vacuum`."""
        before = self.snapshots.list()
        self.snapshots.prune(1, check_whole)
        num_removed = len(before) - len(self.snapshots.list())
        num_removed += self.snapshots.remove_leftovers(orphan_age_seconds)
        return num_removed + len(self.row_log.vacuum(orphan_age_seconds, kept))
