"""The state of a view with shards: a state per shard, each for its own entities."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.kernel import ReadableRows
from feast_sketch_store.layers import DeltaLayer, ExactLayer, HashRange, LayerAnswer, Shards, SketchLayer
from feast_sketch_store.layers.prepared import stack
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.snapshot.files import SnapshotFile
from feast_sketch_store.view.shard_map import Routed, not_served
from feast_sketch_store.view.state import Items, State

_MAX_QUESTIONS = 64  # combinations of features that are kept prepared


@dataclass(frozen=True)
class ShardedState:
    """The states of the shards that a process serves. Immutable; methods are those of `State`.

    Parameters
    ----------
    view : its name, for messages.
    num_shards : of the view.
    states : by shard, in ascending order.
    """

    view: str
    num_shards: int
    states: Mapping[int, State]
    _prepared: dict[tuple[str, ...], ReadableRows | None] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def read(
        self,
        entity_hashes: NDArray[np.uint64],
        features: Sequence[str],
        expire_before: int,
        limit: int | None = None,
    ) -> list[LayerAnswer]:
        """The answers of all shards about their own entities; positions are those of the given batch.

        Raises
        ------
        ShardError : an entity is of a shard that is not served.
        """
        return [
            _placed(answer, places)
            for state, places in self._routed(entity_hashes)
            for answer in state.read(entity_hashes[places], features, expire_before, limit)
        ]

    def _routed(self, entity_hashes: NDArray[np.uint64]) -> Iterator[tuple[State, NDArray[np.int64]]]:
        """Divide entities by shard, before any shard is read."""
        routed = Routed.of(entity_hashes, self.num_shards)
        for number in routed.shards:
            if number not in self.states:
                raise not_served(self.view, number, self.num_shards, list(self.states))
        return ((self.states[n], places) for n, places in zip(routed.shards, routed.places, strict=True))

    def newest(
        self, entity_hashes: NDArray[np.uint64], codec: FeatureCodec, limit: int | None, since: int
    ) -> tuple[Items, Vocabulary] | None:
        """None: only `read` can answer."""
        return None

    def prepared(
        self, features: tuple[str, ...], names: Sequence[NDArray[np.int32] | None] | None = None
    ) -> ReadableRows | None:
        """The rows for reads of one entity, see `State.prepared`."""
        if names is not None:
            return self._prepare(features, names)
        if features not in self._prepared:
            if len(self._prepared) >= _MAX_QUESTIONS:
                self._prepared.clear()
            self._prepared[features] = self._prepare(features, None)
        return self._prepared[features]

    def _prepare(
        self, features: tuple[str, ...], names: Sequence[NDArray[np.int32] | None] | None
    ) -> ReadableRows | None:
        if not all(state.is_preparable for state in self.states.values()):
            return None
        counts = {number: len(state.newest_first) for number, state in self.states.items()}
        parts = [counts.get(number) for number in range(self.num_shards)]
        wanted = next(iter(self.states.values())).semantics.wanted(features)
        return None if wanted is None else stack(self.newest_first, wanted, names, parts)

    # -- contents --------------------------------------------------------------------------------

    @property
    def newest_first(self) -> list[SketchLayer | DeltaLayer | ExactLayer]:
        """The layers of all shards, shard by shard, as `State.newest_first`."""
        return [layer for state in self.states.values() for layer in state.newest_first]

    @cached_property
    def layers(self) -> list[SketchLayer | DeltaLayer | ExactLayer]:
        """All layers, the sealed ones of all shards first: their values have the first ids."""
        sealed = [layer for state in self.states.values() if state.sealed for layer in state.sealed.layers]
        return [*sealed, *self.deltas, *self.exact]

    @cached_property
    def sealed(self) -> Shards | None:
        """The sealed rows of all shards, for inspection; None if no shard was sealed.

        A shard without sealed rows counts as part of its neighbour, so this is not for reads.
        """
        layers = [
            (HashRange.split(self.num_shards)[number].first, layer)
            for number, state in self.states.items()
            if state.sealed is not None
            for layer in state.sealed.layers
        ]
        if not layers:
            return None
        firsts = [0, *(first for first, _ in layers[1:])]
        ends = [*firsts[1:], HashRange().end]
        return Shards(tuple(layer for _, layer in layers), tuple(map(HashRange, firsts, ends)))

    @cached_property
    def deltas(self) -> tuple[DeltaLayer, ...]:
        """The deltas of all shards."""
        return tuple(delta for state in self.states.values() for delta in state.deltas)

    @cached_property
    def exact(self) -> tuple[ExactLayer, ...]:
        """The unsealed rows of all shards."""
        return tuple(layer for state in self.states.values() for layer in state.exact)

    @property
    def snapshot(self) -> SnapshotFile | None:
        """The snapshot of the first shard that has one, for messages."""
        found = (state.snapshot for state in self.states.values() if state.snapshot is not None)
        return next(found, None)

    @property
    def unsealed_rows(self) -> int:
        """Rows of all shards that no snapshot covers."""
        return sum(state.unsealed_rows for state in self.states.values())

    @property
    def unsealed_bytes(self) -> int:
        """Bytes of the exact layers."""
        return sum(state.unsealed_bytes for state in self.states.values())


def _placed(answer: LayerAnswer, places: NDArray[np.int64]) -> LayerAnswer:
    """An answer about some entities of a batch, given their places in it."""
    return answer._replace(
        decided=places[answer.decided],
        found=places[answer.found],
        fenced=places[answer.fenced],
        expired=places[answer.expired],
    )


AnyState: TypeAlias = State | ShardedState
