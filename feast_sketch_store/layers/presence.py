"""What a sealed layer knows of its rows except the values of features: presence, timestamps and states.

Rows are listed one by one, or have shapes.

The list is for structures that are read by row number. It holds ascending fingerprints of the entities.
Timestamps, structures, and the states of features whose structure does not store them are in the same order.

A shape is what a filter or a static function stores of a row besides its values. In a filter it is one more
symbol; in a static function it is a digit of the row's number. The shape says that the row exists, which of
its features are missing, null or empty, and the bucket of its event timestamp. So presence, nulls and
timestamps together cost one fact per entity. If the features of a view make more than ``MAX_SHAPES`` shapes,
they are divided into ranges, and each range costs one fact per entity.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.kernel import RowReader
from feast_sketch_store.rows.codecs import EXACT, VALUE, FeatureCodec
from feast_sketch_store.rows.encoding import NO_TIMESTAMP
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures.base import Structure
from feast_sketch_store.structures.bloom import BloomTable, SymbolRange
from feast_sketch_store.structures.columns import Elements
from feast_sketch_store.structures.parts import (
    Described,
    Parts,
    checked,
    describe_ascending,
    describe_packed,
    describe_salt,
)
from feast_sketch_store.structures.scalars import StaticScalars
from feast_sketch_store.succinct import FingerprintIndex, PackedInts
from feast_sketch_store.succinct.packed import unfinished

MAX_SHAPES = 256
MAX_TIMESTAMP_BUCKETS = 16
S = TypeVar("S", bound=Structure)
_TIMESTAMPS = FeatureCodec("event timestamps", "int64_val", EXACT)  # the codec of their elements


class Presence(ABC):
    """Which entities have rows, their timestamps, and states of features. Immutable.

    ``kind`` names the class in the description of a snapshot.
    """

    kind: ClassVar[str]

    @property
    @abstractmethod
    def num_listed(self) -> int | None:
        """Number of listed rows; None if the rows are not listed."""

    @property
    @abstractmethod
    def features(self) -> Collection[str]:
        """The features whose states are stored here."""

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """Bytes of its own parts, without those inside structures."""

    @property
    @abstractmethod
    def index_bytes(self) -> int:
        """Bytes of the parts that find the row of an entity."""

    @abstractmethod
    def prepared_states(self, feature: str) -> tuple[Any, ...] | None:
        """The states of a feature, as `RowReader.states` takes them; None if they are not stored here."""

    @abstractmethod
    def prepare(self) -> RowReader:
        """The rows alone, in the form that the kernel reads."""

    @abstractmethod
    def to_snapshot(self) -> Described:
        """The rows as a description with arrays."""

    @classmethod
    @abstractmethod
    def from_snapshot(cls, parts: Parts, structures: Sequence[Structure]) -> Self:
        """The reverse of `to_snapshot`.

        Raises ValueError, KeyError, TypeError: the parts do not fit each other or the layer's structures.
        """


@dataclass(frozen=True)
class Shapes:
    """The distinct shapes of some features."""

    features: tuple[str, ...]
    states: NDArray[np.uint8]  # uint8[num_shapes, len(features)]
    buckets: NDArray[np.uint8]  # uint8[num_shapes], the timestamp bucket

    def __len__(self) -> int:
        return len(self.states)


@dataclass(frozen=True)
class _RowsWithShapes(Presence, Generic[S]):
    """Rows whose shapes are in a structure."""

    table_type: ClassVar[type[Any]]
    table: S
    shapes: Sequence[Shapes]  # of all features, in ranges; the first range has the timestamp buckets
    bucket_bounds: NDArray[np.int64]  # int64[b, 2], the oldest and newest timestamp of each bucket

    num_listed = None
    size_bytes = index_bytes = 0  # all of it is in the structure

    @property
    def features(self) -> Collection[str]:
        return [name for shapes in self.shapes for name in shapes.features]

    @property
    def _bounds_of_shapes(self) -> NDArray[np.int64]:
        """int64[2, shapes of the first range], the oldest and the newest timestamp of a row of each shape."""
        return self.bucket_bounds[self.shapes[0].buckets].T.copy()

    def prepared_states(self, feature: str) -> tuple[Any, ...] | None:
        for number, shapes in enumerate(self.shapes):
            if feature in shapes.features:
                states = shapes.states[:, shapes.features.index(feature)]
                return *PackedInts.pack(states).arguments, number
        return None

    def to_snapshot(self) -> Described:
        shapes = [
            {"features": list(shapes.features), "states": shapes.states, "buckets": shapes.buckets}
            for shapes in self.shapes
        ]
        return {"bucket_bounds": self.bucket_bounds, "shapes": shapes}

    @classmethod
    def from_snapshot(cls, parts: Parts, structures: Sequence[Structure]) -> Self:
        shapes = []
        for entry in parts.each("shapes"):
            features = tuple(checked(name, str) for name in entry.get("features", list))
            states, buckets = entry.array("states", np.uint8, 2), entry.array("buckets", np.uint8)
            if states.shape != (len(buckets), len(features)) or np.any(states > VALUE):
                raise ValueError(f"{entry.path!r} has other features or shapes than its arrays")
            shapes.append(Shapes(features, states, buckets))
        bounds = parts.array("bucket_bounds", np.int64, 2)
        num_buckets = max((int(s.buckets.max()) + 1 for s in shapes if len(s)), default=0)
        if bounds.shape[1] != 2 or len(bounds) < num_buckets:
            raise ValueError("the bounds of the timestamp buckets do not fit the shapes")
        return cls(cls.table_type.among(structures), shapes, bounds)


@dataclass(frozen=True)
class ShapedRows(_RowsWithShapes[BloomTable]):
    """Rows whose shapes are symbols of rows in a filter.

    Raises ValueError: there are no shapes, or the filter has another number of them.
    """

    kind = "shapes"
    table_type = BloomTable

    def __post_init__(self) -> None:
        sizes = [len(shapes) for shapes in self.shapes]
        if not sizes or not all(sizes) or sizes != [r.num_symbols for r in self.ranges]:
            raise ValueError("the filter does not have the shapes of the rows")

    @property
    def ranges(self) -> Sequence[SymbolRange]:
        """The symbols of each range of shapes."""
        return self.table.rows

    def prepare(self) -> RowReader:
        prepared, filled = RowReader(), self.table.filter
        prepared.shaped(*filled.arguments(self.ranges[0].query), *self._bounds_of_shapes)
        for symbols in self.ranges[1:]:
            prepared.shapes(*filled.arguments(symbols.query))
        return prepared


@dataclass(frozen=True)
class StaticRows(_RowsWithShapes[StaticScalars]):
    """Rows that a static function maps to numbers, whose lowest digit is the shape; it is of one range.

    Raises ValueError: the function has another number of shapes.
    """

    kind = "static"
    table_type = StaticScalars

    def __post_init__(self) -> None:
        if [len(shapes) for shapes in self.shapes] != [self.table.num_shapes]:
            raise ValueError("the static function does not have the shapes of the rows")

    def prepare(self) -> RowReader:
        prepared, (oldest, newest) = RowReader(), self._bounds_of_shapes
        if not len(oldest):
            prepared.shaped(oldest, newest)
            return prepared
        function = self.table.function
        prepared.numbered(*self.table.salt, *function.arguments, oldest, newest, unfinished(function.check))
        return prepared


def bucket_timestamps(
    timestamps: NDArray[np.int64], ttl_microseconds: int | None
) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Split rows into at most ``MAX_TIMESTAMP_BUCKETS`` buckets.

    Up to that many distinct timestamps are kept exactly. If there are more, buckets span equal times, so that
    rows expire in steps of a fifteenth of their time to live; without one, buckets have equally many rows.
    Rows that are already expired when the newest row is written share a bucket with no live row.

    Returns the oldest and newest timestamp of each bucket, ascending: int64[b, 2]; and the bucket of each
    row: uint8[n]. Timestamps are microseconds since 1970.
    """
    ordered = np.sort(timestamps)
    edges = ordered[np.flatnonzero(np.diff(ordered, prepend=NO_TIMESTAMP))]
    if len(edges) > MAX_TIMESTAMP_BUCKETS:
        num_steps = MAX_TIMESTAMP_BUCKETS - 1
        if ttl_microseconds:
            width, newest = -(-ttl_microseconds // num_steps), int(edges[-1])
            edges = np.array([max(newest - width * n, NO_TIMESTAMP) for n in range(num_steps, 0, -1)])
        else:  # the first bucket has the rows before the first edge
            edges = ordered[np.arange(1, MAX_TIMESTAMP_BUCKETS) * len(timestamps) // MAX_TIMESTAMP_BUCKETS]
    places = np.searchsorted(edges, timestamps, side="right").astype(
        np.uint8
    )  # which are sorted in less memory
    used, buckets = np.unique(places, return_inverse=True)
    bounds = np.empty((len(used), 2), np.int64)
    bounds[:, 0], bounds[:, 1] = np.iinfo(np.int64).max, NO_TIMESTAMP
    np.minimum.at(bounds[:, 0], buckets, timestamps)
    np.maximum.at(bounds[:, 1], buckets, timestamps)
    return bounds, buckets.astype(np.uint8)


def number_shapes(
    states_of: Mapping[str, NDArray[np.uint8]], buckets: NDArray[np.uint8]
) -> tuple[list[Shapes], list[NDArray[np.int64]]]:
    """The distinct shapes of the rows, in as few ranges as ``MAX_SHAPES`` allows; and per range the shape of
    each row: int64[n].
    """
    ranges: list[Shapes] = []
    ids_per_range: list[NDArray[np.int64]] = []
    names: list[str] = []
    ids = buckets.astype(np.int64)

    def close_range() -> None:
        _, first_rows, shape_ids = np.unique(ids, return_index=True, return_inverse=True)
        states = np.zeros((len(first_rows), len(names)), np.uint8)
        for column, name in enumerate(names):
            states[:, column] = states_of[name][first_rows]
        ranges.append(Shapes(tuple(names), states, buckets[first_rows]))
        ids_per_range.append(shape_ids)

    for name, feature_states in states_of.items():
        joint = ids * (VALUE + 1) + feature_states
        distinct, joint_ids = np.unique(joint, return_inverse=True)
        if len(distinct) > MAX_SHAPES:
            close_range()
            # Timestamps are in the first range only.
            names, buckets = [], np.zeros_like(buckets)
            joint_ids = np.unique(feature_states, return_inverse=True)[1]
        names.append(name)
        ids = joint_ids
    close_range()
    return ranges, ids_per_range


@dataclass(frozen=True)
class ListedRows(Presence):
    """n rows in the order of their fingerprints.

    Raises ValueError: the parts have different numbers of rows.
    """

    salt: tuple[int, int]  # of the fingerprints, two unsigned 64-bit integers
    index: FingerprintIndex  # the fingerprints
    # event timestamps in microseconds since 1970, or the oldest timestamp of each row's bucket
    timestamps: Elements
    # int64[b, 2], the oldest and newest timestamp of each bucket, ascending; empty if the timestamps are
    # exact
    bucket_bounds: NDArray[np.int64]
    states: Mapping[str, PackedInts]  # by feature whose structure does not store them

    kind = "list"

    def __post_init__(self) -> None:
        lengths = [len(self.timestamps), *(states.length for states in self.states.values())]
        if any(length != len(self) for length in lengths):
            raise ValueError(f"the columns of {len(self)} listed rows have {lengths} rows")
        if self.timestamps.vocabulary is not None:
            known = self.timestamps.vocabulary.values.to_numpy()
            if len(self.bucket_bounds) and not np.isin(known, self.bucket_bounds[:, 0]).all():
                raise ValueError("a row has a timestamp bucket that does not exist")

    def __len__(self) -> int:
        return len(self.index)

    @classmethod
    def build(
        cls,
        salt: tuple[int, int],
        index: FingerprintIndex,
        event_timestamps: NDArray[np.int64],
        bucket_bounds: NDArray[np.int64],
        states: Mapping[str, NDArray[np.uint8]],
    ) -> "ListedRows":
        """List rows that are already in order. The parameters are those of the class, before packing."""
        vocabulary, symbols = Vocabulary.of_numbers(event_timestamps)
        timestamps = Elements.smallest(vocabulary, symbols, min_width=0)
        packed = {name: PackedInts.pack(feature) for name, feature in states.items()}
        return cls(salt, index, timestamps, bucket_bounds, packed)

    @property
    def num_listed(self) -> int:
        return len(self)

    @property
    def features(self) -> Collection[str]:
        return self.states.keys()

    @property
    def size_bytes(self) -> int:
        states = sum(states.size_bytes for states in self.states.values())
        return self.index.size_bytes + self.timestamps.size_bytes + states

    @property
    def index_bytes(self) -> int:
        return self.index.size_bytes

    def prepare(self) -> RowReader:
        prepared, vocabulary = RowReader(), self.timestamps.vocabulary
        distinct = None if vocabulary is None else vocabulary.values.to_numpy()
        bounds = np.ascontiguousarray(self.bucket_bounds) if len(self.bucket_bounds) else None
        index = *self.index.fingerprints.arguments, self.index.range, self.index.twins
        prepared.listed(*self.salt, *index, *self.timestamps.packed.arguments, distinct, bounds)
        return prepared

    def prepared_states(self, feature: str) -> tuple[Any, ...] | None:
        return (*self.states[feature].arguments, 0) if feature in self.states else None

    def to_snapshot(self) -> Described:
        index = self.index
        ascending = describe_ascending(index.fingerprints)
        return {
            "salt": describe_salt(self.salt),
            "index": {"range": index.range, "twins": index.twins, **ascending},
            "timestamps": self.timestamps.to_snapshot(),
            "bucket_bounds": self.bucket_bounds,
            "states": [{"name": name, **describe_packed(own)} for name, own in self.states.items()],
        }

    @classmethod
    def from_snapshot(cls, parts: Parts, structures: Sequence[Structure]) -> Self:
        timestamps = Elements.from_snapshot(_TIMESTAMPS, parts.at("timestamps"), min_width=0)
        entries = parts.each("states")
        states = {entry.get("name", str): entry.packed() for entry in entries}
        if len(states) != len(entries):
            raise ValueError("a feature has two columns of states in the list of rows")
        own = parts.at("index")
        twins = own.array("twins", np.uint64)
        index = FingerprintIndex(own.ascending(by_value=True), own.get("range", int), twins)
        bounds = parts.array("bucket_bounds", np.int64, 2)
        if (
            bounds.shape[1] != 2
            or (bounds[:, 0] > bounds[:, 1]).any()
            or (bounds[:-1, 1] >= bounds[1:, 0]).any()
        ):
            raise ValueError("the bounds of the timestamp buckets are not ascending")
        return cls(parts.salt(), index, timestamps, bounds, states)
