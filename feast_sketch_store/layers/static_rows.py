"""Rows whose shapes are digits of the numbers in a static function."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.kernel import RowReader
from feast_sketch_store.layers.presence import Presence
from feast_sketch_store.layers.shapes import Shapes, shapes_from
from feast_sketch_store.structures.base import Structure
from feast_sketch_store.structures.parts import Described, Parts
from feast_sketch_store.structures.static import StaticScalars
from feast_sketch_store.succinct import PackedInts
from feast_sketch_store.succinct.packed import unfinished


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

    def prepare(self) -> RowReader:
        """See `Presence.prepare`."""
        prepared, (oldest, newest) = RowReader(), self.bucket_bounds[self.shapes.buckets].T.copy()
        if not len(self.shapes):
            prepared.shaped(oldest, newest)
            return prepared
        function = self.table.function
        prepared.numbered(*self.table.salt, *function.arguments, oldest, newest, unfinished(function.check))
        return prepared

    def prepared_states(self, feature: str) -> tuple[Any, ...] | None:
        """See `Presence.prepared_states`."""
        if feature not in self.shapes.features:
            return None
        states = self.shapes.states[:, self.shapes.features.index(feature)]
        return *PackedInts.pack(states).arguments, 0

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
