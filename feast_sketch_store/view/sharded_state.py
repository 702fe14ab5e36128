"""The state of a view with shards: a state per shard, each for its own entities."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.kernel import NOT_SERVED, PreparedRows, ReadFault
from feast_sketch_store.layers import DeltaLayer, ExactLayer, HashRange, Shards, SketchLayer
from feast_sketch_store.snapshot.files import SnapshotFile
from feast_sketch_store.view.readable import Readable
from feast_sketch_store.view.semantics import RowSemantics
from feast_sketch_store.view.shard_map import ShardMap, not_served, shard_of_hash
from feast_sketch_store.view.state import State


@dataclass(frozen=True)
class ShardedState(Readable):
    """The states of the shards that a process serves. Immutable; see `Readable`.

    Parameters
    ----------
    view : its name, for messages.
    shard_map : of the view.
    states : by shard, in ascending order.
    """

    view: str
    shard_map: ShardMap
    states: Mapping[int, State]

    @property
    def num_shards(self) -> int:
        """Of the view."""
        return self.shard_map.num_shards

    def prepared(
        self, features: tuple[str, ...], names: Sequence[NDArray[np.int32] | None] | None = None
    ) -> PreparedRows:
        """See `Readable`; a single shard prepares ahead of reads what was asked of its state before."""
        if self.num_shards == 1:
            return self.states[0].prepared(features, names)
        return super().prepared(features, names)

    @property
    def row_semantics(self) -> RowSemantics:
        """See `Readable`."""
        return next(iter(self.states.values())).semantics

    @property
    def layers_of_shards(self) -> list[int | None]:
        """See `Readable`."""
        if self.num_shards == 1:
            return []
        counts = {number: len(state.newest_first) for number, state in self.states.items()}
        return [counts.get(number) for number in range(self.num_shards)]

    def error_of(self, fault: ReadFault) -> Exception:
        """See `Readable`.

        Returns
        -------
        ShardError : the entity is of a shard that is not served.
        """
        number = shard_of_hash(fault.entity_hash, self.num_shards)
        if fault.status == NOT_SERVED:
            return not_served(self.view, number, self.num_shards, list(self.states))
        return self.states[number].error_of(fault)

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
        if self.num_shards == 1:
            return self.states[0].sealed
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


AnyState: TypeAlias = State | ShardedState
