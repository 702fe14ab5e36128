"""What reads of a view see, and how it is put together from the files: an immutable stack of layers.

newest snapshot -> sealed layers;  commits since -> exact layers on top
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.errors import DamagedFileError, StorageError, UnsupportedFeatureError
from feast_sketch_store.layers import ExactLayer, LayerAnswer, Shards, SketchLayer
from feast_sketch_store.row_log import START, Position, RowLog
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.encoding import RowKeys
from feast_sketch_store.snapshot.files import SnapshotFile, SnapshotFolder
from feast_sketch_store.snapshot.order import load_order
from feast_sketch_store.snapshot.sealed import open_shards
from feast_sketch_store.view.freshness import CATCHING_UP, EMPTY, FETCHING
from feast_sketch_store.view.semantics import REPLACE, RowSemantics

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class State:
    """What reads see: everything up to a position of the row log.

    ``exact`` layers are ordered from the oldest to the newest. The ``semantics`` decide whether an entity may
    be in several of them. ``unsealed_rows`` and ``unsealed_commits`` count what the snapshot lacks.
    """

    semantics: RowSemantics = REPLACE
    position: Position = START
    snapshot: SnapshotFile | None = None
    sealed: Shards | None = None
    exact: tuple[ExactLayer, ...] = ()
    unsealed_rows: int = 0
    unsealed_commits: int = 0
    newest_seen: SnapshotFile | None = None  # the newest there was, readable or not

    @property
    def layers(self) -> list[SketchLayer | ExactLayer]:
        """All layers, the sealed ones first, then from the oldest to the newest."""
        return [*(() if self.sealed is None else self.sealed.layers), *self.exact]

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
        answers: list[LayerAnswer] = []
        sources = self.semantics.sources(features)
        rows_before = self.semantics.expire_rows_before(expire_before)
        remaining: NDArray[np.int64] | None = None  # positions of entities; None for all

        def take_up(answer: LayerAnswer) -> None:
            if len(answer.found) or len(answer.expired):
                if remaining is not None:
                    found, expired = remaining[answer.found], remaining[answer.expired]
                    answer = answer._replace(found=found, expired=expired)
                answers.append(answer)

        for layer in reversed(self.exact):
            answer = layer.read(entity_hashes, sources, rows_before)
            take_up(answer)
            decided = self.semantics.decided(answer)
            if len(decided):
                if remaining is None:
                    remaining = np.arange(len(entity_hashes))
                remaining = np.delete(remaining, decided)
                entity_hashes = np.delete(entity_hashes, decided, axis=0)
                if not len(remaining):
                    return self.semantics.combine(answers, features, expire_before)
        if self.sealed is not None:
            for answer in self._read_sealed(self.sealed, entity_hashes, sources, rows_before):
                take_up(answer)
        return self.semantics.combine(answers, features, expire_before)

    def _read_sealed(
        self, sealed: Shards, entity_hashes: NDArray[np.uint64], features: Sequence[str], expire_before: int
    ) -> list[LayerAnswer]:
        try:
            return sealed.read(entity_hashes, features, expire_before)
        except ValueError as error:
            if self.snapshot is None:
                raise
            raise DamagedFileError(f"{self.snapshot.where()}: {error}") from error


class StateLoader:
    """Puts states together from the files of a view. Not safe to use from several threads at once.

    Parameters
    ----------
    row_log, snapshots : of the view.
    codecs : one per feature of the view.
    semantics : of the view's rows.
    """

    def __init__(
        self,
        row_log: RowLog,
        snapshots: SnapshotFolder,
        codecs: Sequence[FeatureCodec],
        semantics: RowSemantics,
    ):
        self._row_log = row_log
        self._snapshots = snapshots
        self.codecs = codecs
        self.semantics = semantics
        self._damaged: set[str] = set()  # snapshots that turned out to be while they were read
        self._order: tuple[SnapshotFile, RowKeys] | None = None
        self.phase = EMPTY  # what `load` does, or did last

    @property
    def _empty(self) -> State:
        return State(self.semantics)

    def load(self, state: State | None = None) -> State:
        """The current state of everything. A given state saves reading what it already holds.

        Raises
        ------
        DamagedFileError : a file cannot be read that is needed.
        UnsupportedFeatureError : a feature was sealed with another type than it has.
        """
        start = self._empty if state is None else state
        while True:
            self.phase = FETCHING
            newest = self._newest_snapshot()
            try:
                return self._load(start, newest)
            except (DamagedFileError, StorageError):
                if self._newest_snapshot() == newest:
                    raise
                # A seal came in between: the rows are in newer files now.

    def _load(self, state: State, newest: SnapshotFile | None) -> State:
        if newest is not None and newest != state.newest_seen:
            state = self._newest_readable(state)
        state = replace(state, newest_seen=newest)
        self.phase = CATCHING_UP
        log = self._row_log.read(state.position, state.snapshot.name if state.snapshot else "")
        if log.starts_over:
            if self._newest_snapshot() != newest:
                raise StorageError(f"{self._row_log.where}: rows were sealed while they were read")
            state = replace(self._empty, newest_seen=newest)
        table = log.table()
        if table is None or not len(table):
            return replace(state, position=log.position)
        return self._with_rows(state, table, log.position, log.num_commits)

    def take_up(self, state: State, table: pa.Table, position: Position) -> State | None:
        """The state with rows that this process has just appended, without a look at the files.

        Returns
        -------
        None if there are commits between the state and these rows, which have to be read.
        """
        known = state.position
        is_next = position.number == known.number + 1 and known.identity in (None, position.identity)
        if not is_next or position.cursor is None or (known.identity is None and position.number):
            return None
        return self._with_rows(state, table, position, 1)

    def sealed(self) -> State:
        """The state of the newest snapshot that can be read, without the commits since.

        Raises
        ------
        DamagedFileError : none of them can be read.
        """
        return replace(self._newest_readable(self._empty), newest_seen=self._newest_snapshot())

    def is_outdated(self, state: State) -> bool:
        """Whether the state lacks anything. Looks at a few file names only."""
        return self._newest_snapshot() != state.newest_seen or not self._row_log.is_at_end(state.position)

    def give_up(self, snapshot: SnapshotFile, error: DamagedFileError) -> None:
        """Never open a snapshot again, because a read of it failed."""
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
                        f"{error}. The rows are safe in {self._row_log.where}: `feast-sketch seal` makes a "
                        "new snapshot of them"
                    ) from error
                if snapshot.name not in self._damaged:
                    _logger.warning("%s; falling back to the snapshot before it", error)
        return current

    def _opened(self, snapshot: SnapshotFile) -> State:
        if snapshot.name in self._damaged:
            raise DamagedFileError(f"{snapshot.where()}: a block of it is damaged")
        sealed = open_shards(snapshot)
        for codec in self.codecs:
            known = sealed.codecs.get(codec.feature)
            if known is not None and known.value_field != codec.value_field:
                raise UnsupportedFeatureError(
                    f"feature {codec.feature!r} was sealed as {known.value_field} and is declared as "
                    f"{codec.value_field} now; give it a new name, or remove the view with `feast apply`, "
                    f"add it again and materialize ({snapshot.where()})"
                )
        # A snapshot's version is the number of commits that it covers.
        return replace(self._empty, position=Position(snapshot.version - 1), snapshot=snapshot, sealed=sealed)

    def _with_rows(self, state: State, table: pa.Table, position: Position, num_commits: int) -> State:
        """The state with the rows of further commits, which are in order."""
        rows = state.semantics.encode(table, self.codecs)
        if state.sealed is not None:
            # What a seal would cut is not shown until then either: models know the values that were kept.
            rows = rows.within(state.sealed.cut_vocabularies)
        late = state.semantics.late(rows.keys, state.exact, lambda: self._order_of(state, rows.keys))
        rows = rows.take(np.flatnonzero(~late))
        layers = list(state.exact)
        if len(rows):
            layers.append(ExactLayer(rows))
        # Merging layers of similar size keeps their number logarithmic, and each row is merged
        # a logarithmic number of times.
        while len(layers) > 1 and 2 * len(layers[-1]) >= len(layers[-2]):
            newer, older = layers.pop(), layers.pop()
            layers.append(ExactLayer(state.semantics.merge(older.rows, newer.rows)))
        return replace(
            state,
            position=position,
            exact=tuple(layers),
            unsealed_rows=state.unsealed_rows + len(table),
            unsealed_commits=state.unsealed_commits + num_commits,
        )

    def _order_of(self, state: State, keys: RowKeys) -> RowKeys | None:
        """The keys of the sealed entities, mapped at the first row after a seal that may be late.

        A commit is newer than the seal, so only an older event timestamp, or an equal one with an older
        created timestamp, can lose.
        """
        if state.sealed is None or state.snapshot is None:
            return None
        if not (keys.event_timestamps <= state.sealed.max_event_timestamp).any():
            return None
        if self._order is None or self._order[0] != state.snapshot:
            self._order = (state.snapshot, load_order(state.snapshot))
        return self._order[1]
