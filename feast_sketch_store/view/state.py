"""What reads of a view see, and how it is put together from the files: an immutable stack of layers.

newest snapshot -> base layer;  commits since -> exact layers on top
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.errors import DamagedFileError, StorageError, UnsupportedFeatureError
from feast_sketch_store.layers import ExactLayer, LayerAnswer, SketchLayer
from feast_sketch_store.layers.exact import find_sorted
from feast_sketch_store.row_log import RowLog
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.encoding import RowKeys, encode, newest_rows
from feast_sketch_store.snapshot.files import SnapshotFile, SnapshotFolder
from feast_sketch_store.snapshot.order import load_order
from feast_sketch_store.snapshot.sealed import open_layer

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class State:
    """What reads see: everything up to ``version`` of the row log.

    ``exact`` layers stand from the oldest to the newest; no entity of a layer has a newer row in an
    older one.
    """

    version: int = -1
    row_log_identity: tuple[int, int] | None = None
    snapshot: SnapshotFile | None = None
    base: SketchLayer | None = None
    exact: tuple[ExactLayer, ...] = ()
    unsealed_rows: int = 0
    newest_seen: SnapshotFile | None = None  # the newest there was, readable or not

    @property
    def unsealed_bytes(self) -> int:
        """Bytes of the exact layers."""
        return sum(layer.size_bytes for layer in self.exact)

    def read(
        self, entity_hashes: NDArray[np.uint64], features: Sequence[str], expire_before: int
    ) -> list[LayerAnswer]:
        """An answer per layer that found some of the entities; see `View.read`.

        Raises
        ------
        DamagedFileError : a part of the snapshot that was not used before is damaged; using an
            answer may raise it, too.
        """
        answers = []
        remaining: NDArray[np.int64] | None = None  # positions of entities; None for all
        layers: list[ExactLayer | SketchLayer] = [*reversed(self.exact)]
        if self.base is not None:
            layers.append(self.base)
        for layer in layers:
            try:
                answer = layer.read(entity_hashes, features, expire_before)
            except ValueError as error:
                if layer is not self.base or self.snapshot is None:
                    raise
                raise DamagedFileError(f"{self.snapshot.where()}: {error}") from error
            if len(answer.found):
                if remaining is not None:
                    answer = answer._replace(found=remaining[answer.found])
                answers.append(answer)
            if len(answer.decided) and layer is not self.base:
                if remaining is None:
                    remaining = np.arange(len(entity_hashes))
                remaining = np.delete(remaining, answer.decided)
                entity_hashes = np.delete(entity_hashes, answer.decided, axis=0)
                if not len(remaining):
                    break
        return answers


class StateLoader:
    """Puts states together from the files of a view. Not safe to use from several threads at once.

    Parameters
    ----------
    row_log, snapshots : of the view.
    codecs : one per feature of the view.
    """

    def __init__(self, row_log: RowLog, snapshots: SnapshotFolder, codecs: Sequence[FeatureCodec]):
        self._row_log = row_log
        self._snapshots = snapshots
        self._codecs = list(codecs)
        self._damaged: set[str] = set()  # snapshots that turned out to be while they were read
        self._order: tuple[SnapshotFile, RowKeys] | None = None

    def load(self, state: State) -> State:
        """The state of everything that is there now; the one that is given saves reading what it holds.

        Raises
        ------
        DamagedFileError : a file cannot be read that is needed.
        UnsupportedFeatureError : a feature was sealed with another type than it has.
        """
        start = state
        identity = self._row_log.identity()
        if identity != state.row_log_identity:
            state = State()  # the first look, or torn down and perhaps created anew
        newest = self._newest_snapshot()
        if newest is not None and newest != state.newest_seen:
            state = self._newest_readable(state)
        state = replace(state, row_log_identity=identity, newest_seen=newest)
        if identity is None:
            return state
        # After a snapshot is opened the log is listed: a probe for the next commit would not see those behind
        # a lost one.
        version = self._row_log.version(state.version if state.version == start.version else -1)
        try:
            return self._with_commits(state, version) if version > state.version else state
        except (DamagedFileError, StorageError):
            if self._row_log.version(version) == version and self._newest_snapshot() == newest:
                raise
            # A seal and a vacuum came between: what was to be read is in newer files.
            return self.load(start)

    def newest_layer(self) -> SketchLayer | None:
        """The layer of the newest snapshot that can be read; None before the first seal.

        Raises
        ------
        DamagedFileError : none of them can be read.
        """
        return self._newest_readable(State()).base

    def is_outdated(self, state: State) -> bool:
        """Whether there is anything that the state lacks; costs looking at a few file names."""
        return (
            self._row_log.identity() != state.row_log_identity
            or self._newest_snapshot() != state.newest_seen
            or self._row_log.version(state.version) != state.version
        )

    def give_up(self, snapshot: SnapshotFile, error: DamagedFileError) -> None:
        """Do not open a snapshot any more, because of what a read of it met."""
        if snapshot.name not in self._damaged:
            self._damaged.add(snapshot.name)
            _logger.warning("%s; falling back to the snapshot before it", error)

    def _newest_snapshot(self) -> SnapshotFile | None:
        return next(iter(self._snapshots.list()), None)

    def _newest_readable(self, current: State) -> State:
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
                if number == len(published) - 1:
                    raise DamagedFileError(
                        f"{error}. The rows are safe in {self._row_log.path}: `feast-sketch seal` makes a "
                        "new snapshot of them"
                    ) from error
                if snapshot.name not in self._damaged:
                    _logger.warning("%s; falling back to the snapshot before it", error)
        return current

    def _opened(self, snapshot: SnapshotFile) -> State:
        if snapshot.name in self._damaged:
            raise DamagedFileError(f"{snapshot.where()}: a block of it is damaged")
        base = open_layer(snapshot)
        for codec in self._codecs:
            sealed = base.codecs.get(codec.feature)
            if sealed is not None and sealed.value_field != codec.value_field:
                raise UnsupportedFeatureError(
                    f"feature {codec.feature!r} was sealed as {sealed.value_field} and is declared as "
                    f"{codec.value_field} now; give it a new name, or remove the view with `feast apply`, "
                    f"add it again and materialize ({snapshot.where()})"
                )
        return State(snapshot.version, self._row_log.identity(), snapshot, base)

    def _with_commits(self, state: State, version: int) -> State:
        """The state with all commits up to a version."""
        name = state.snapshot.name if state.snapshot else ""
        log = self._row_log.read(state.version, name, version)
        if log.starts_over:
            state = State(row_log_identity=state.row_log_identity, newest_seen=state.newest_seen)
        table = log.table()
        if table is None:
            return replace(state, version=log.version)
        rows = encode(*newest_rows(table), self._codecs)
        if state.base is not None:
            # What a seal would cut is not shown until then either: models know the values that were kept.
            rows = rows.within({name: state.base.vocabularies[name] for name in state.base.cut})
        rows = rows.take(np.flatnonzero(~self._are_late(rows.keys, state)))
        layers = list(state.exact)
        if len(rows):
            layers.append(ExactLayer(rows))
        # Merging layers of similar size keeps their number logarithmic, and each row is merged
        # a logarithmic number of times.
        while len(layers) > 1 and 2 * len(layers[-1]) >= len(layers[-2]):
            newer, older = layers.pop(), layers.pop()
            layers.append(older.merged_with(newer))
        return replace(
            state,
            version=log.version,
            exact=tuple(layers),
            unsealed_rows=state.unsealed_rows + len(table),
        )

    def _are_late(self, keys: RowKeys, state: State) -> NDArray[np.bool_]:
        """Which rows are older than what the state already has of their entity: bool[n]."""
        late = np.zeros(len(keys), np.bool_)
        unlisted = np.ones(len(keys), np.bool_)
        for layer in reversed(state.exact):
            # The newest layer that lists an entity has what counts: an older one may have what was deleted.
            found, places = layer.find(keys.entity_hashes)
            first = unlisted[found]
            late[found[first]] = keys.older_than(found[first], layer.rows.keys, places[first])
            unlisted[found] = False
        if state.base is not None and state.snapshot is not None:
            # What an exact layer lists has beaten the sealed row before. A commit is newer than the seal, so
            # only an older event timestamp, or an equal one with an older created timestamp, can lose.
            suspects = np.flatnonzero(unlisted & (keys.event_timestamps <= state.base.max_event_timestamp))
            if len(suspects):
                order = self._order_of(state.snapshot)
                found, places = find_sorted(order.entity_hashes, keys.entity_hashes[suspects])
                late[suspects[found]] |= keys.older_than(suspects[found], order, places)
        return late

    def _order_of(self, snapshot: SnapshotFile) -> RowKeys:
        """Hashes and timestamps of the sealed entities, mapped at the first late row after a seal."""
        if self._order is None or self._order[0] != snapshot:
            self._order = (snapshot, load_order(snapshot))
        return self._order[1]
