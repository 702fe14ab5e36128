"""One feature view: its row log, its snapshots, and the stack of layers that answers reads.

    write:    rows -> row log (durable) -> seal, when the unsealed rows pass a share of the sealed ones
    refresh:  newest snapshot -> base layer;  commits since -> exact layers on top
    read:     newest layer that lists the entity, otherwise the base layer

A view's state is one immutable object. Refreshing builds the next one and swaps the reference, so reads
take no lock; while reads come in, what is new is taken up beside them, in a thread.
"""

import itertools
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from feast_sketch_store.errors import (
    DamagedFileError,
    SketchStoreError,
    StorageError,
    VocabularyOverflowError,
)
from feast_sketch_store.layers import LayerAnswer, SketchLayer, SketchLayerBuilder
from feast_sketch_store.row_log import LogRead, RowLog
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.encoding import ENTITY_KEY, NO_TIMESTAMP, EncodedRows, encode
from feast_sketch_store.rows.entity_keys import join_keys_of
from feast_sketch_store.rows.newest import NewestRows
from feast_sketch_store.snapshot.files import Draft, SnapshotFile, SnapshotFolder
from feast_sketch_store.snapshot.sealed import write_layer
from feast_sketch_store.storage.base import Storage
from feast_sketch_store.storage.names import REBUILD_FOLDER, SEAL_LOCK, SNAPSHOTS_FOLDER, staged_files
from feast_sketch_store.threads import in_threads
from feast_sketch_store.view.settings import ViewSettings
from feast_sketch_store.view.state import State, StateLoader

_logger = logging.getLogger(__name__)

# Readers that are slow to refresh still find the previous snapshot.
_SNAPSHOTS_KEPT = 2

# A seal rewrites the row log when rows were deleted or expired, or when so much of it is outdated.
_SUPERSEDED_SHARE = 0.25
_MAX_FILES = 64

T = TypeVar("T")

REFRESHER = "feast_sketch_store refresh"  # the name of threads

_views: "weakref.WeakSet[View]" = weakref.WeakSet()


def _reset_locks() -> None:
    for view in _views:
        view._reset_locks()


os.register_at_fork(after_in_child=_reset_locks)

# Counts the writes of this process, through whichever view object: a read that finds it moved looks at
# the disk whatever its refresh interval, so a process always reads what it wrote.
_process_writes = itertools.count(1)
_last_process_write = 0


@dataclass(frozen=True)
class SealPolicy:
    """When a write seals: past ``min_rows``, as soon as the unsealed rows take more than ``share`` of what
    the sealed ones take. So memory stays within ``1 + share`` of a freshly sealed view.
    """

    share: float
    min_rows: int

    def wants_seal(self, unsealed: int, sealed: int, unsealed_rows: int) -> bool:
        """Whether to seal now; ``unsealed`` and ``sealed`` are sizes, in rows or in bytes."""
        return unsealed_rows > self.min_rows and unsealed > self.share * sealed


@dataclass(frozen=True)
class ViewStats:
    """Sizes of a view as this process serves it; bytes and counts.

    ``table_bytes`` is the filter, ``ideal_bits`` what a standard Bloom filter would take for the same
    facts at the same expected rates, ``fact_bytes`` the filter and the sets with what it takes to find them,
    ``snapshot_bytes`` the whole file that readers map. ``structures`` tells how each feature is kept, see
    `SketchLayer.structure_of`.
    """

    sealed_entities: int
    sealed_facts: int
    unsealed_rows: int
    unsealed_bytes: int
    table_bytes: int
    ideal_bits: float
    vocabulary_bytes: int
    snapshot_bytes: int
    expected_false_positive_rates: dict[str, float] = field(default_factory=dict)
    vocabulary_sizes: dict[str, int] = field(default_factory=dict)
    fact_bytes: int = 0
    structures: dict[str, str] = field(default_factory=dict)


class View:
    """A feature view in its storage. Safe to use from several threads.

    Parameters
    ----------
    storage : the view's own; it may be empty.
    codecs : one per feature of the view.
    refresh_interval_seconds : how old the writes of other processes may be before a read looks for them.

    Raises
    ------
    DamagedFileError : no snapshot of the folder, or a file of its row log, can be read.
    """

    def __init__(
        self, storage: Storage, codecs: Sequence[FeatureCodec], refresh_interval_seconds: float = 1.0
    ):
        self.storage = storage
        self._codecs = list(codecs)
        self._refresh_interval_seconds = refresh_interval_seconds
        self._row_log = RowLog(storage)
        self._snapshots = SnapshotFolder(storage.within(SNAPSHOTS_FOLDER))
        self._loader = StateLoader(self._row_log, self._snapshots, self._codecs)
        self._write_lock = threading.RLock()  # one write or seal at a time in this process
        self._refresh_lock = threading.Lock()  # guards the attributes below
        self._state = State()
        self._is_open = False  # until the disk was read for the first time
        self._looked_at = -np.inf  # time.monotonic() as the look began that gave the state
        self._seen_process_write = -1
        self._last_warning = ""
        self._refresher: threading.Thread | None = None  # the latest one, which may be done
        _views.add(self)

    def _reset_locks(self) -> None:
        """Make locks anew that another thread of the parent process may have held when it forked."""
        self._write_lock, self._refresh_lock = threading.RLock(), threading.Lock()

    def close(self) -> None:
        """Wait for a refresh that is under way. Who lets go of the view then lets go of its files."""
        with self._refresh_lock:  # held from before a thread starts until it is done
            refresher = self._refresher
        if refresher is not None:
            refresher.join()

    # -- read ----------------------------------------------------------------------------------

    def read(
        self,
        entity_hashes: NDArray[np.uint64],
        features: Sequence[str],
        ttl_microseconds: int | None = None,
    ) -> list[LayerAnswer]:
        """Read a batch of entities.

        Parameters
        ----------
        entity_hashes : uint64[n, 2]
        features : names; one that the view does not have is left out.
        ttl_microseconds : rows whose event timestamp is older are not returned; None for no limit.

        Returns
        -------
        An answer per layer that found some of the entities; ``found`` counts in the batch, and no entity
        is found twice.
        """
        expire_before = expire_before_of(ttl_microseconds)

        def read(state: State) -> list[LayerAnswer]:
            answers = state.read(entity_hashes, features, expire_before)
            for answer in answers:
                for feature in answer.features.values():
                    _ = feature.symbols  # asked for here, where a damaged block can be coped with
            return answers

        return self.compute(read)

    def compute(self, read: Callable[[State], T]) -> T:
        """What a function makes of the state that reads see now.

        It may be called again, with an older state, if it raises a `DamagedFileError` for a part of the
        snapshot that was not used before.
        """
        self._refresh_if_due()
        while True:
            state = self._state
            try:
                return read(state)
            except DamagedFileError as error:
                self._give_up_snapshot(state, error)

    # -- write ---------------------------------------------------------------------------------

    def write(self, rows: pa.Table, settings: ViewSettings, policy: SealPolicy) -> None:
        """Append rows durably, and seal if the policy wants it.

        Raises
        ------
        VocabularyOverflowError, RowError, StorageError : nothing of the rows was written.
        """
        with self._write_lock:
            self.refresh()
            self._check_vocabularies(rows, settings)
            self._row_log.append(rows)
            _note_process_write()
            try:
                if self._wants_seal(len(rows), policy):
                    self.seal(settings)
            except SketchStoreError as error:
                # The rows are durable and readable; a failed seal must not look like a failed write.
                _logger.warning("%s; the rows are kept, a later write seals them", error)

    def _wants_seal(self, num_rows: int, policy: SealPolicy) -> bool:
        """Whether to seal after a write of so many rows; takes them up, unless it is clear already."""
        state = self._state
        sealed_rows = state.base.num_entities if state.base else 0
        unsealed_rows = state.unsealed_rows + num_rows
        if policy.wants_seal(unsealed_rows, sealed_rows, unsealed_rows):
            return True
        self.refresh()  # so that the next read need not
        state = self._state
        sealed_bytes = state.base.size_bytes if state.base else 0
        return policy.wants_seal(state.unsealed_bytes, sealed_bytes, unsealed_rows)

    def check_codecs(self) -> None:
        """Check that what is stored of each feature can be read with its codec.

        Raises
        ------
        UnsupportedFeatureError, RowError : a feature has another type than its stored values.
        """
        self.refresh()
        self._row_log.check_schema(pa.schema([(c.feature, c.arrow_type) for c in self._codecs]))

    def stored_codecs(self) -> dict[str, FeatureCodec]:
        """How features were sealed, by name, whatever the view's own codecs are; none before a seal."""
        layer = self._loader.newest_layer()
        return dict(layer.codecs) if layer is not None else {}

    def stored_schema(self) -> pa.Schema:
        """The columns of the row log; none if there are no rows."""
        log = self._row_log.read(-1)
        return log.schema() if log.files else pa.schema([])

    def stored_join_keys(self) -> dict[str, str] | None:
        """The join keys of a stored row, each with the field of Feast's ``Value`` that carries it.

        None if there are no rows; no join keys if the view has no entities.
        """
        for file in reversed(self._row_log.read(-1).files):
            for batch in file.batches([ENTITY_KEY]):
                if len(batch):
                    return join_keys_of(batch[ENTITY_KEY][0].as_py())
        return None

    def seal(self, settings: ViewSettings) -> bool:
        """Build a new base layer from the newest row of each entity and publish it as a snapshot.

        Returns
        -------
        False if another process is sealing this view, which makes a second seal needless; or if there
        are no rows yet.

        Raises
        ------
        DamagedFileError : the row log cannot be read; the previous snapshot stays.
        StorageError : the snapshot cannot be written; the previous one stays.
        """
        with self._write_lock, self._sealing() as is_ours:
            if not is_ours:
                return False
            log = self._row_log.read(-1)
            if not log.files:
                return False
            rows = NewestRows(log.batches, expire_before_of(settings.ttl_microseconds))
            self._snapshots.publish(self._fold(rows, log.version, settings))
            self._snapshots.prune(_SNAPSHOTS_KEPT)
            # The snapshot comes first: whoever sees the compaction has a base to put it on.
            superseded = rows.num_rows - len(rows)
            if rows.has_dead or superseded > _SUPERSEDED_SHARE * rows.num_rows or len(log.files) > _MAX_FILES:
                self._row_log.compact((batch for _, batch in rows.batches()), log.version)
            self.refresh()
            return True

    def rebuild(self, settings: ViewSettings, fill: Callable[[Storage], Storage]) -> None:
        """Replace all rows by others.

        Reads see the old rows until the new ones are complete, and then those, in one step. Rows that are
        written meanwhile, by whatever process, stay and compete with the new ones as usual.

        Parameters
        ----------
        fill : is given an empty storage, writes rows to a view in it, and returns that view's storage.

        Raises
        ------
        StorageError : another process seals this view, or there are no new rows; nothing has changed.
        """
        with self._write_lock, self.unchanging():
            if self._row_log.version() >= 0:
                self._row_log.extend(pa.schema([(c.feature, c.arrow_type) for c in settings.codecs]))
            through = self._row_log.version()
            staging = self.storage.within(REBUILD_FOLDER)
            staging.delete_all()  # of one that was killed
            try:
                self._replace_rows(RowLog(fill(staging)).read(-1), through, settings)
            finally:
                staging.delete_all()
            self.refresh()

    @contextmanager
    def unchanging(self) -> Iterator[None]:
        """Keep other processes from sealing, rebuilding or vacuuming the view; they may write.

        Raises
        ------
        StorageError : another process is at it.
        """
        with self._sealing() as is_ours:
            if not is_ours:
                raise StorageError(
                    f"{self.storage.location}: another process is sealing this view; try again later"
                )
            yield

    def _replace_rows(self, log: LogRead, through: int, settings: ViewSettings) -> None:
        """Put rows in the place of those up to version ``through``, snapshot and all."""
        if not log.files:
            raise StorageError(
                f"{self.storage.location}: there are no rows to rebuild from; nothing has changed"
            )
        rows = NewestRows(log.batches, expire_before_of(settings.ttl_microseconds))
        if through < 0:
            self._row_log.extend(log.schema())
            through = 0  # which creates the table and holds no rows
        draft = self._fold(rows, through, settings)
        is_replaced = False
        try:
            batches = (batch for _, batch in rows.batches())
            is_replaced = self._row_log.compact(batches, through, draft.snapshot.name)
        finally:
            if not is_replaced:
                self._snapshots.discard(draft.snapshot)
        if not is_replaced:
            raise StorageError(
                f"{self.storage.location}: columns were added to the row log meanwhile; try again"
            )
        # From here on the row log holds the new rows, and who looks before the next line reads them there.
        try:
            self._snapshots.publish(draft)
        except StorageError as error:
            _logger.warning("%s; the new rows are read from the row log until a later seal", error)
        self._snapshots.prune(_SNAPSHOTS_KEPT)

    def _fold(self, rows: NewestRows, version: int, settings: ViewSettings) -> Draft:
        """Fold rows into a layer and write it as a snapshot of the row log's ``version``, yet unpublished."""
        builder = SketchLayerBuilder(rows.keys, settings.codecs)

        def encode_batch(batch: tuple[NDArray[np.int64], pa.Table]) -> tuple[NDArray[np.int64], EncodedRows]:
            places, table = batch
            return places, encode(table, rows.keys.take(places), settings.codecs)

        for places, encoded in in_threads(encode_batch, rows.batches()):
            builder.add(places, encoded)
        pa.default_memory_pool().release_unused()  # what reading took, before the table is allocated
        layer = builder.build(settings.budget)
        return write_layer(self._snapshots, layer, rows.keys, settings.view, version)

    def delete(self, deletions: pa.Table) -> None:
        """Delete what was written of some entities; see `rows.deletions`.

        Durable, and visible to this process, when it returns. Rows that are written later count again,
        whatever their timestamps.

        Raises
        ------
        RowError, StorageError : nothing was deleted.
        """
        with self._write_lock:
            self._row_log.append(deletions)
            _note_process_write()
            with suppress(SketchStoreError):  # the next read meets it again
                self.refresh()

    def vacuum(self, orphan_age_seconds: float = 86_400.0) -> int:
        """Remove files that nothing uses any more: replaced rows, all snapshots but the newest, and what
        killed processes left.

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
        with self._write_lock, self._sealing() as is_ours:
            if not is_ours:
                return 0
            num_staged = len(staged_files(self.storage))
            self.storage.within(REBUILD_FOLDER).delete_all()
            if self._row_log.version() < 0:
                return num_staged
            before = self._snapshots.list()
            self._snapshots.prune(1)
            num_snapshots = len(before) - len(self._snapshots.list())
            num_leftovers = self._snapshots.remove_leftovers()
            num_rows = len(self._row_log.vacuum(orphan_age_seconds))
            return num_staged + num_snapshots + num_leftovers + num_rows

    def _check_vocabularies(self, rows: pa.Table, settings: ViewSettings) -> None:
        for name, feature in settings.features.items():
            if feature.codec.is_bounded or (settings.lists_rows and not feature.codec.is_collection):
                continue
            column = rows[name].combine_chunks()
            elements = pc.list_flatten(column) if feature.codec.is_collection else column.drop_null()
            known = self._known_values(name)
            if sum(map(len, known)) + len(elements) <= feature.max_vocabulary:
                continue  # cannot overflow, whatever the elements are
            # What the next seal keeps of them: with a precision, fewer than there are.
            known = [feature.codec.rounded(values) for values in known]
            new = pc.unique(feature.codec.rounded(feature.codec.to_storage(elements)))
            if known:
                new = new.filter(pc.invert(pc.is_in(new, pa.concat_arrays(known))))
            size = len(pc.unique(pa.concat_arrays([*known, new])))
            if len(new) and size > feature.max_vocabulary:
                raise VocabularyOverflowError(
                    f"feature {name!r} of view {settings.view!r} would have {size} distinct values, more "
                    f"than max_vocabulary = {feature.max_vocabulary}; nothing of this batch was written. "
                    "Raise max_vocabulary (reads enumerate the vocabulary, so they slow down with it), or "
                    'give the feature the tag "sketch.codec": "exact", which has no vocabulary'
                )

    def _known_values(self, feature: str) -> list[pa.Array]:
        state = self._state
        known = [
            layer.rows.features[feature].vocabulary.values
            for layer in state.exact
            if feature in layer.rows.features
        ]
        if state.base is not None and feature in state.base.vocabularies:
            known.append(state.base.vocabularies[feature].values)
        return known

    def _sealing(self) -> AbstractContextManager[bool]:
        """Hold the view's seal lock, if no other process does."""
        return self.storage.lease(SEAL_LOCK)

    # -- refresh -------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Take up everything that was written or sealed before this call.

        Raises
        ------
        DamagedFileError : a file cannot be read, and there is no earlier state to keep serving.
        """
        with self._refresh_lock:
            self._refresh()

    def _refresh(self, state: State | None = None) -> None:
        seen, now = _last_process_write, time.monotonic()
        self._state = self._loader.load(self._state if state is None else state)
        self._is_open = True
        self._seen_process_write, self._looked_at = seen, now

    def is_fresh(self) -> bool:
        """Whether a read would be answered from memory, without a look at the disk for what is new."""
        return not self._is_stale(self._refresh_interval_seconds / 2)

    def _refresh_if_due(self) -> None:
        """Look at the disk if it is time to.

        A read that must see a write of its own process waits for it. So does one that comes after a pause.
        Between reads that follow each other closely, what is new is taken up in a thread, half an interval
        ahead of time, and they go on with the old state.
        """
        if not self._is_stale(self._refresh_interval_seconds / 2):
            return
        # Whoever comes second while a refresh runs may serve the old state, if it is not too old.
        if not self._refresh_lock.acquire(blocking=self._is_stale(self._refresh_interval_seconds)):
            return
        in_thread = False
        try:
            if self._is_stale(self._refresh_interval_seconds):
                self._refresh_or_warn()
            elif self._is_stale(self._refresh_interval_seconds / 2) and self._is_outdated():
                in_thread = True
                self._refresher = threading.Thread(target=self._refresh_in_thread, name=REFRESHER)
                self._refresher.start()
        finally:
            if not in_thread:
                self._refresh_lock.release()

    def _is_stale(self, seconds: float) -> bool:
        """Whether the state lacks a write of this process, or may lack those of others since so long."""
        return not self._is_open or self._has_unseen_write() or time.monotonic() - self._looked_at >= seconds

    def _is_outdated(self) -> bool:
        """Whether there is anything to take up."""
        now = time.monotonic()
        try:
            is_outdated = self._loader.is_outdated(self._state)
        except SketchStoreError:
            return True  # the refresh meets it again, and tells
        if not is_outdated:
            self._looked_at = now
        return is_outdated

    def _refresh_in_thread(self) -> None:
        """Take up what is new and release the lock, which the starter of the thread holds."""
        try:
            self._refresh_or_warn()
        finally:
            self._refresh_lock.release()

    def _refresh_or_warn(self) -> None:
        """Refresh; if that fails, go on with the state there is, if there is one."""
        seen, now = _last_process_write, time.monotonic()
        try:
            self._refresh()
        except (DamagedFileError, StorageError) as error:
            if not self._is_open:
                raise
            self._seen_process_write, self._looked_at = seen, now  # not again at every read
            if str(error) != self._last_warning:  # once, not at every refresh
                self._last_warning = str(error)
                _logger.warning("%s; serving what was read before", error)

    def _give_up_snapshot(self, state: State, error: DamagedFileError) -> None:
        """Serve an older snapshot after a read met a damaged block; raises if there is none."""
        with self._refresh_lock:
            if state.snapshot is None:
                raise error
            if self._state.snapshot == state.snapshot:  # else another thread was first
                self._loader.give_up(state.snapshot, error)
                self._refresh(State())

    def _has_unseen_write(self) -> bool:
        return self._seen_process_write != _last_process_write

    # -- sizes ---------------------------------------------------------------------------------

    def sealed(self) -> tuple[SketchLayer, SnapshotFile] | None:
        """The sealed layer and its file, as of the last refresh; None before the first seal."""
        state = self._state
        return (state.base, state.snapshot) if state.base is not None and state.snapshot is not None else None

    def stats(self) -> ViewStats:
        """Sizes of the view as of now."""
        self.refresh()
        state = self._state
        unsealed = state.unsealed_bytes
        if state.base is None or state.snapshot is None:
            return ViewStats(0, 0, state.unsealed_rows, unsealed, 0, 0.0, 0, 0)
        base = state.base
        return ViewStats(
            base.num_entities,
            base.num_facts,
            state.unsealed_rows,
            unsealed,
            base.bloom.num_bits // 8,
            base.ideal_bits,
            sum(v.size_bytes for v in base.vocabularies.values()),
            state.snapshot.size_bytes(),
            {name: r.false_positive_rate for name, r in base.ranges.items()},
            {name: len(v) for name, v in base.vocabularies.items()},
            -(-base.fact_bits // 8),
            {name: base.structure_of(name) for name in base.codecs},
        )


def _note_process_write() -> None:
    global _last_process_write
    _last_process_write = next(_process_writes)


def expire_before_of(ttl_microseconds: int | None) -> int:
    """The event timestamp before which rows have expired, in microseconds since 1970."""
    return NO_TIMESTAMP if ttl_microseconds is None else time.time_ns() // 1000 - ttl_microseconds
