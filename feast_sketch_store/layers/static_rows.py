"""Rows whose shapes are digits of the numbers in a static function."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.kernel import PreparedRows, prepared_rows
from feast_sketch_store.kernel.prepared import Numbers
from feast_sketch_store.layers.presence import Presence
from feast_sketch_store.layers.shapes import Shapes, shapes_from
from feast_sketch_store.structures.base import FoundRows, Structure
from feast_sketch_store.structures.parts import Described, Parts
from feast_sketch_store.structures.static import StaticScalars
from feast_sketch_store.succinct import PackedInts
from feast_sketch_store.succinct.packed import unchecked


@dataclass(frozen=True)
class StaticRows(Presence):
    """Rows that a static function maps to numbers.

    Parameters
    ----------
    table : the static function; the shape of a row is the lowest digit of its number.
    shapes : of all features.
    bucket_bounds : int64[b, 2], the oldest and newest timestamp of each bucket.

    Raises
    ------
    ValueError : the function has another number of shapes.
    """

    table: StaticScalars
    shapes: Shapes
    bucket_bounds: NDArray[np.int64]

    kind = "static"
    num_listed = None
    size_bytes = index_bytes = 0  # all of it is in the function

    def __post_init__(self) -> None:
        if len(self.shapes) != self.table.num_shapes:
            raise ValueError("the static function does not have the shapes of the rows")

    @property
    def features(self) -> Collection[str]:
        """See `Presence`."""
        return self.shapes.features

    def find(
        self, entity_hashes: NDArray[np.uint64], features: Sequence[str], expire_before: int
    ) -> FoundRows:
        """See `Presence.find`."""
        numbers = self.table.numbers_of(entity_hashes)
        found = np.flatnonzero(numbers >= 0)
        numbers = numbers[found]
        ids = numbers % self.table.num_shapes
        oldest, newest = self.bucket_bounds[self.shapes.buckets[ids]].T
        is_alive = newest >= expire_before
        expired = found[~is_alive]
        found, numbers, ids, oldest = found[is_alive], numbers[is_alive], ids[is_alive], oldest[is_alive]
        states = {
            name: self.shapes.states[ids, column]
            for column, name in enumerate(self.shapes.features)
            if name in features
        }
        return FoundRows(found, oldest, entity_hashes[found], states, expired=expired, numbers=numbers)

    def prepare(self) -> PreparedRows | None:
        """See `Presence.prepare`."""
        prepared = prepared_rows()
        if prepared is not None and len(self.shapes):
            oldest, newest = self.bucket_bounds[self.shapes.buckets].T
            prepared.numbered(
                *self.table.salt, *self.table.function.arguments, oldest.copy(), newest.copy(),
                *unchecked(self.table.function.check),
            )  # fmt: skip
        return prepared if len(self.shapes) else None

    def prepared_states(self, feature: str) -> Numbers | None:
        """See `Presence.prepared_states`."""
        if feature not in self.shapes.features:
            return None
        return PackedInts.pack(self.shapes.states[:, self.shapes.features.index(feature)]).arguments

    def to_snapshot(self) -> Described:
        """See `Presence.to_snapshot`."""
        arrays: dict[str, NDArray[np.generic]] = {
            "bucket_bounds": self.bucket_bounds,
            "0.states": self.shapes.states,
            "0.buckets": self.shapes.buckets,
        }
        return {"shapes": [list(self.shapes.features)]}, arrays

    @classmethod
    def from_snapshot(
        cls, description: Mapping[str, Any], parts: Parts, structures: Sequence[Structure]
    ) -> Self:
        """See `Presence.from_snapshot`."""
        (shapes,), bounds = shapes_from(description, parts)
        return cls(StaticScalars.among(structures), shapes, bounds)
