"""Loads the state of a shard from its files.

newest snapshot -> sealed layer, deltas over them;  commits since -> exact layers on top
"""

import itertools
import logging
import time
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.errors import DamagedFileError, StorageError, UnsupportedFeatureError
from feast_sketch_store.kernel import ReadFault
from feast_sketch_store.layers import ExactLayer
from feast_sketch_store.row_log import START, LogRead, Position, RowLog
from feast_sketch_store.row_log.log import COPY, GO_ON
from feast_sketch_store.rows.encoding import RowKeys, first_due
from feast_sketch_store.rows.formulas import with_formulas
from feast_sketch_store.snapshot.files import Listing, SnapshotFile, SnapshotFolder
from feast_sketch_store.snapshot.manifest import Manifest
from feast_sketch_store.snapshot.order import OrderIndex, by_hash
from feast_sketch_store.snapshot.sealed import open_layers
from feast_sketch_store.storage.base import MissingFileError
from feast_sketch_store.view.last_known import LastKnown, Moment
from feast_sketch_store.view.semantics import RowSemantics
from feast_sketch_store.view.state import ShardState

_logger = logging.getLogger(__name__)

# What a shard does, see `live_shard.Freshness`.
EMPTY = "EMPTY"  # nothing was read yet
FETCHING = "FETCHING"  # the sealed rows are being opened for the first time
CATCHING_UP = "CATCHING_UP"  # the rows written since are being read for the first time
SERVING = "SERVING"
REFRESHING = "REFRESHING"  # a poll of the storage is under way; reads go on
STALE = "STALE"  # the last poll failed; reads go on

# What to do if rows have other types than the view was opened with.
_REMADE = (
    "the view was declared again since it was opened: open it again, with Feast by `store.refresh_registry()`"
)

_PAUSES_SECONDS = (0.05,) * 10  # while the snapshot of a pin is not there
_KEEP_SECONDS = 1_200.0  # between two marks that fetched files are in use
_NOBODY: NDArray[np.uint64] = np.zeros((0, 2), np.uint64)  # hashes of no entities


class _SnapshotError(DamagedFileError):
    """A part of a snapshot is damaged that the rows after it need: its order index, its manifest, or ids."""


class ShardLoader:
    """Loads states from the files of a view. Not safe to use from several threads at once.

    Parameters
    ----------
    last_known : where the host keeps the last state, for starts while the storage is out of reach.
    view : the name that snapshots must have; None for any.
    """

    def __init__(
        self,
        row_log: RowLog,
        snapshots: SnapshotFolder,
        semantics: RowSemantics,
        last_known: LastKnown | None = None,
        view: str | None = None,
    ):
        self._row_log = row_log
        self._view = view
        self._snapshots = snapshots
        self.semantics = semantics
        self._damaged: dict[str, str] = {}  # snapshots that turned out to be damaged while in use, and how
        self._manifest: tuple[SnapshotFile, Manifest] | None = None  # of the snapshot that orders are of
        self._orders: dict[str, OrderIndex] = {}  # by the names of files of one snapshot
        self._last_known = last_known
        self._asked = Moment.now()  # when the last poll began, if the host keeps the last state
        self._kept_copies: SnapshotFile | None = None  # whose files were marked as in use ...
        self._kept_copies_at = -np.inf  # ... and when, by time.monotonic()
        self._last_warning = ""
        self.num_late = 0  # rows that were left out because their entities have newer ones
        self.phase = EMPTY  # what `load` does, or did last
        self.newest_number = -1  # the last commit that the newest snapshot covers, as of the last poll
        self.has_moved = False  # whether the rows are elsewhere now, as of the last poll

    @property
    def _empty(self) -> ShardState:
        return ShardState(self.semantics)

    def load(self, state: ShardState | None = None) -> ShardState:
        """Load the current state. A given state saves reading what it already holds.

        If the rows were divided into other shards, it is the given state; see `has_moved`.

        Raises
        ------
        DamagedFileError : a needed file cannot be read.
        UnsupportedFeatureError : a feature was sealed with another type than it has.
        """
        start = self._empty if state is None else state
        pauses = list(_PAUSES_SECONDS)
        while True:
            self.phase = FETCHING
            listing = self._begin_poll()
            if listing.has_moved:
                return start
            try:
                state = self._held(start, listing) if listing.pinned else self._load(start, listing.newest)
            except (DamagedFileError, StorageError) as error:
                again = self._listing()
                if again.has_moved or (again.newest, again.pinned) != (listing.newest, listing.pinned):
                    continue  # a seal was published meanwhile, so the rows are in newer files
                if not (listing.pinned and isinstance(error, MissingFileError) and pauses):
                    raise
                # Another process pins it, and a third prunes it: one of them takes that back.
                time.sleep(pauses.pop())
                continue
            is_lost = (start.snapshot and not state.snapshot) or (state.is_empty and not start.is_empty)
            if is_lost and self._listing().has_moved:  # and files are being removed
                return start
            return state

    def _load(self, state: ShardState, newest: SnapshotFile | None) -> ShardState:
        if newest is None and state.snapshot is not None:
            state = self._empty  # the view was dropped
        if newest is not None and newest != state.newest_seen:
            state = self._newest_readable(state)
        state = replace(state, newest_seen=newest, pinned="")
        self.phase = CATCHING_UP
        name = state.snapshot.name if state.snapshot else ""
        log = self._row_log.read(state.position, name)
        if log.repeats and self.semantics.adds_up:
            state = _without_unsealed(state)
            log = self._row_log.read(state.position, name)
        if log.starts_over:
            if self._newest_snapshot() != newest:
                raise StorageError(f"{self._row_log.where}: rows were sealed while they were read")
            if newest is not None and log.position.number < newest.version - 1:
                raise DamagedFileError(
                    f"{newest.where()}: covers rows up to commit {newest.version - 1}, and those in "
                    f"{self._row_log.where} end at commit {log.position.number}: {COPY}, or {GO_ON}"
                )
            state = replace(self._empty, newest_seen=newest)
        elif state.snapshot is not None and state.position.identity is None and not state.snapshot.exists():
            # If the view was dropped and written again, this is the new log. Its numbers do not show that.
            raise StorageError(f"{state.snapshot.where()}: was removed before the log after it was read")
        try:
            loaded, late = self._with_log(state, log)
        except _SnapshotError as error:  # which rows are late or known needs an older one
            assert state.snapshot is not None
            self.give_up(state.snapshot, error)
            return self._load(self._empty, newest)
        self._keep(state, log, late)
        return loaded

    def _with_log(self, state: ShardState, log: LogRead) -> tuple[ShardState, NDArray[np.uint64]]:
        """The state with what was read of the log after it, and the entities whose rows are late."""
        table = log.table()
        if table is None or not len(table):
            return replace(state, position=log.position), _NOBODY
        return self._with_rows(state, table, log.position, len(log.parts))

    def last_known(self) -> tuple[ShardState, float] | None:
        """The host's last known state, and how many seconds ago the storage last answered.

        None if nothing was kept, or a needed file is missing.
        """
        found = None if self._last_known is None else self._last_known.read()
        if found is None:
            return None
        known, tables = found
        state = self._empty
        try:
            if known.snapshot:
                state = self._opened(self._snapshots.named(known.snapshot, known.manifest))
            if tables:
                table = pa.concat_tables(tables, promote_options="default")
                state, _ = self._with_rows(state, table, known.position, len(tables), may_be_late=False)
        except (StorageError, DamagedFileError, pa.ArrowException) as error:
            where = self._row_log.where
            _logger.warning("%s: the state of the view that this host keeps cannot be used: %s", where, error)
            return None
        state = replace(state, position=known.position, newest_seen=state.snapshot)
        return state, known.answered.seconds_until(Moment.now())

    def _keep(self, state: ShardState, log: LogRead, late: NDArray[np.uint64] = _NOBODY) -> None:
        """Keep on this host the files from which a state was made, and what was read of the log after it,
        without the rows of late entities: a start need not ask the order index, which is in the storage.
        """
        if self._last_known is None:
            with suppress(StorageError, DamagedFileError):
                self._keep_copies(state)
            return

        def all_rows() -> tuple[LogRead, NDArray[np.uint64]]:
            first = _without_unsealed(state)
            log = self._row_log.read(first.position, state.snapshot.name if state.snapshot else "")
            return log, self._with_log(first, log)[1]

        try:
            number = state.position.number
            self._last_known.save(state.snapshot, log, late, number, all_rows, self._asked)
            self._keep_copies(state)
        except (StorageError, DamagedFileError) as error:
            if str(error) != self._last_warning:
                self._last_warning = str(error)
                _logger.warning(
                    "%s; a process that starts while the storage is down could not use the newest state",
                    error,
                )

    def _keep_copies(self, state: ShardState) -> None:
        """Tell the cache from time to time which files are in use, and at once which ones no longer are."""
        snapshot, before = state.snapshot, self._kept_copies
        if snapshot is None or not snapshot.storage.fetches:
            return
        if snapshot != before or time.monotonic() - self._kept_copies_at > _KEEP_SECONDS:
            self._kept_copies, self._kept_copies_at = snapshot, time.monotonic()
            snapshot.keep_copies()
            if before is not None and before != snapshot:
                before.let_go_of_copies(snapshot)

    def apply_commits(self, state: ShardState, table: pa.Table, position: Position) -> ShardState | None:
        """The state with rows that this process has appended, without reading the files.

        ``table`` has the rows of all commits after the state up to the position, in their order. None if the
        state is pinned, if they are of another log, or if a file of the state's snapshot cannot be read:
        `load` then finds another snapshot, or says what is wrong.
        """
        known = state.position
        is_next = known == START or known.identity == position.identity
        if state.pinned or position.cursor is None or not is_next:
            return None
        try:
            through = position.awaiting_as(known)
            return self._with_rows(state, table, through, position.number - known.number)[0]
        except (StorageError, DamagedFileError):  # the rows are durable: their write has not failed
            return None

    def sealed(self) -> ShardState:
        """The state of the newest snapshot that can be read, without the commits since.

        Raises DamagedFileError: none of them can be read.
        """
        return replace(self._newest_readable(self._empty), newest_seen=self._newest_snapshot())

    def is_outdated(self, state: ShardState) -> bool:
        """Whether the state lacks anything; lists a few file names."""
        listing = self._begin_poll(state.newest_seen)
        if listing.has_moved:
            return True
        if listing.pinned or state.pinned:
            is_outdated = listing.pinned != state.pinned
        else:
            is_outdated = listing.newest != state.newest_seen or not self._row_log.is_at_end(state.position)
        if not is_outdated:
            if self._last_known is not None:
                snapshot, position = state.snapshot, state.position
                if not self._last_known.note_answer(snapshot, position, self._asked):
                    self._keep(state, LogRead(position))
            with suppress(StorageError, DamagedFileError):
                self._keep_copies(state)
        return is_outdated

    def give_up(self, snapshot: SnapshotFile, error: DamagedFileError) -> None:
        """Do not open a snapshot again after a read of it failed, unless this host's copy can be mended."""
        if not self._mend(snapshot) and snapshot.name not in self._damaged:
            self._damaged[snapshot.name] = str(error)
            _logger.warning("%s; falling back to the snapshot before it", error)

    def _mend(self, snapshot: SnapshotFile) -> bool:
        """Delete this host's copies of a snapshot's files if they are damaged."""
        try:
            is_mended = snapshot.drop_damaged()
        except (DamagedFileError, StorageError):
            return False
        if is_mended:
            _logger.warning("%s: its copy on this host was damaged; fetching it again", snapshot.where())
        return is_mended

    def lag_commits(self, state: ShardState) -> int:
        """The least number of commits that the last poll found and a state lacks."""
        return max(0, self.newest_number - state.position.number)

    def _begin_poll(self, since: SnapshotFile | None = None) -> Listing:
        if self._last_known is not None:
            self._asked = Moment.now()
        return self._listing(since)

    def _listing(self, since: SnapshotFile | None = None) -> Listing:
        listing = self._snapshots.listing(since)
        self.newest_number = -1 if listing.newest is None else listing.newest.version - 1
        self.has_moved = listing.has_moved
        return listing

    def _held(self, state: ShardState, listing: Listing) -> ShardState:
        """The state of the snapshot to which readers are pinned."""
        if state.pinned == listing.pinned:
            return state
        snapshot = next((one for one in listing.snapshots if one.name == listing.pinned), None)
        if snapshot is None:
            raise MissingFileError(
                f"{self._row_log.where}: the view is pinned to the snapshot {listing.pinned}, which is gone; "
                "`feast-sketch unpin` lets it follow the newest one"
            )
        _logger.warning(
            "%s: pinned: reads use this snapshot, and do not show rows written since, "
            "until `feast-sketch unpin`",
            snapshot.where(),
        )
        held = replace(self._opened(snapshot), newest_seen=snapshot, pinned=snapshot.name)
        self._keep(held, LogRead(held.position, starts_over=True))
        return held

    def _newest_snapshot(self) -> SnapshotFile | None:
        return self._snapshots.listing().newest

    def _newest_readable(self, current: ShardState) -> ShardState:
        """The state of the newest snapshot that can be read, or the current one if that is it."""
        published = self._snapshots.list()
        for number, snapshot in enumerate(published):
            if snapshot == current.snapshot:
                return current
            try:
                return self._opened(snapshot)
            except StorageError:
                if snapshot.exists():
                    raise
                # Pruned since it was listed, so newer ones have been published.
                return self._newest_readable(current)
            except DamagedFileError as error:
                if snapshot.name not in self._damaged and self._mend(snapshot):
                    return self._newest_readable(current)
                if number == len(published) - 1:
                    raise DamagedFileError(
                        f"{error}. The rows are safe in {self._row_log.where}: `feast-sketch seal` makes a "
                        "new snapshot of them"
                    ) from error
                if snapshot.name not in self._damaged:
                    _logger.warning("%s; falling back to the snapshot before it", error)
        return current

    def _opened(self, snapshot: SnapshotFile) -> ShardState:
        if snapshot.name in self._damaged:
            raise DamagedFileError(self._damaged[snapshot.name])
        snapshot = snapshot.with_manifest()
        sealed, deltas = open_layers(snapshot, view=self._view)
        if sealed.semantics != self.semantics.name:
            raise UnsupportedFeatureError(
                f"{snapshot.where()}: the rows of the view {sealed.semantics}, and are declared to "
                f"{self.semantics.name} now; {_REMADE}"
            )
        changed = {
            codec.feature: f"feature {codec.feature!r} was sealed as {known.type_text} and is declared as "
            f"{codec.type_text} now"
            for codec, codecs in itertools.product(
                self.semantics.codecs, [sealed.codecs, *(d.codecs for d in deltas)]
            )
            if (known := codecs.get(codec.feature)) is not None and known.value_field != codec.value_field
        }
        if changed:
            raise UnsupportedFeatureError(f"{'; '.join(changed.values())}; {_REMADE} ({snapshot.where()})")
        # A snapshot's version is the number of commits that it covers.
        position = Position(snapshot.version - 1)
        return replace(self._empty, position=position, snapshot=snapshot, sealed=sealed, deltas=deltas)

    def _with_rows(
        self,
        state: ShardState,
        table: pa.Table,
        position: Position,
        num_commits: int,
        may_be_late: bool = True,
    ) -> tuple[ShardState, NDArray[np.uint64]]:
        """The state with the rows of further commits, which are in order; and the hashes of the entities
        whose rows are late and were left out, ascending: uint64[n, 2].
        """
        try:
            rows = state.semantics.encode(table, state.newest_first)
        except (DamagedFileError, ReadFault) as error:
            self._check_types(table)
            state.semantics.encode(table)  # if these rows are damaged, and not those of the snapshot
            assert state.snapshot is not None
            is_named = isinstance(error, DamagedFileError)
            raise _SnapshotError(str(error) if is_named else f"{state.snapshot.where()}: {error}") from error
        if state.sealed is not None:
            # Before values are cut, which count in what is computed.
            rows = with_formulas(rows, state.sealed.formulas)
            # Even before the seal, reads hide values that it would cut: models know only the kept ones.
            rows = rows.within(state.sealed.cut_vocabularies)
        late = np.zeros(len(rows), np.bool_)
        if may_be_late:
            keys = rows.keys
            late = state.semantics.late(keys, state.exact, lambda: self._readable_order_of(state, keys))
        late_hashes = rows.keys.entity_hashes[late]
        self.num_late += len(late_hashes)
        rows = rows.take(np.flatnonzero(~late))
        layers = list(state.exact)
        if len(rows):
            layers.append(ExactLayer(rows))
        parts = [layer.rows for layer in layers]
        if (first := first_due(parts)) < len(parts) - 1:
            layers[first:] = [ExactLayer(state.semantics.merge(parts[first:]))]
        loaded = replace(
            state,
            position=position,
            exact=tuple(layers),
            unsealed_rows=state.unsealed_rows + len(table),
            unsealed_commits=state.unsealed_commits + num_commits,
        )
        return loaded, late_hashes

    def _check_types(self, table: pa.Table) -> None:
        """Check that columns of the row log have the types of the features."""
        declared = self.semantics.columns()
        for name in {*declared.names} & {*table.column_names}:
            if declared.field(name).type != table.schema.field(name).type:
                raise UnsupportedFeatureError(
                    f"{self._row_log.where}: feature {name!r} was written as "
                    f"{table.schema.field(name).type} and is declared as {declared.field(name).type} now; "
                    f"{_REMADE}"
                )

    def late(self, state: ShardState, keys: RowKeys, num_deltas: int | None = None) -> NDArray[np.bool_]:
        """Which new rows are older than the sealed row of their entity: bool[n].

        They are compared with the base and ``num_deltas`` deltas, from the oldest on; None for all.
        """
        return state.semantics.late(keys, (), lambda: self._order_of(state, keys, num_deltas))

    def _readable_order_of(self, state: ShardState, keys: RowKeys) -> RowKeys | None:
        """`_order_of`, with an error of its own for damage."""
        try:
            return self._order_of(state, keys)
        except DamagedFileError as error:
            raise _SnapshotError(str(error)) from error

    def _order_of(self, state: ShardState, keys: RowKeys, num_deltas: int | None = None) -> RowKeys | None:
        """The keys of sealed rows that may be newer than the new rows; it may return more keys.

        A commit is newer than the seal, so a row loses only by an older event timestamp, or an equal one with
        an older created timestamp. Only the order index of the newest layer that lists the entity is read.
        """
        if state.sealed is None or state.snapshot is None:
            return None
        found: list[RowKeys] = []
        rest = keys
        for number in reversed(range(len(state.deltas) if num_deltas is None else num_deltas)):
            delta = state.deltas[number]
            listed, places = delta.find(rest.entity_hashes)
            may_be_late = rest.event_timestamps[listed] <= delta.max_event_timestamp
            places = places[may_be_late & ~delta.deleted[places]]
            if len(places):
                order = self._order(state.snapshot, number + 1)
                if len(order) != len(delta):
                    source = state.snapshot.where_file("order", number + 1)
                    raise DamagedFileError(f"{source}: is the order index of other rows")
                found.append(order.take(places))
            rest = rest.take(np.delete(np.arange(len(rest)), listed))
        may_be_late = rest.event_timestamps <= state.sealed.max_event_timestamp
        if may_be_late.any():
            found.append(self._order(state.snapshot, 0).of(rest.entity_hashes[may_be_late]))
        return by_hash(found) if found else None

    def _order(self, snapshot: SnapshotFile, layer: int) -> OrderIndex:
        """The order index of a layer, opened once."""
        if self._manifest is None or self._manifest[0] != snapshot:
            self._manifest = snapshot, snapshot.manifest()
        manifest = self._manifest[1]
        names = [file.name for file in manifest.all_files]
        self._orders = {name: order for name, order in self._orders.items() if name in names}
        name = manifest.layers[layer].files["order"].name
        order = self._orders.get(name)  # a seal may do the same in another thread
        if order is None:
            order = self._orders[name] = OrderIndex(snapshot, layer)
        return order


def _without_unsealed(state: ShardState) -> ShardState:
    """A state as of its snapshot."""
    position = START if state.snapshot is None else Position(state.snapshot.version - 1)
    return replace(state, position=position, exact=(), unsealed_rows=0, unsealed_commits=0)
