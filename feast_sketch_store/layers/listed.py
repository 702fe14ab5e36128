"""Listed rows: the entities of a layer one by one, for structures that are read by row number.

The list holds ascending fingerprints of the entities. Timestamps, structures, and the states of features
whose structure does not store them are in the same order.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.kernel import RowReader
from feast_sketch_store.layers.presence import Presence
from feast_sketch_store.rows.codecs import EXACT, FeatureCodec
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures.base import Structure
from feast_sketch_store.structures.columns import (
    DictionaryElements,
    Elements,
    NumberElements,
    elements_from,
    smallest,
)
from feast_sketch_store.structures.parts import (
    WORDS,
    Described,
    Parts,
    arrays_of_ascending,
    checked,
    describe_ascending,
    describe_packed,
    describe_salt,
    prefixed,
    salt_from,
)
from feast_sketch_store.succinct import FingerprintIndex, PackedInts

_TIMESTAMPS = FeatureCodec("event timestamps", "int64_val", EXACT)  # the codec of their elements


@dataclass(frozen=True)
class ListedRows(Presence):
    """n rows in the order of their fingerprints.

    Parameters
    ----------
    salt : of the fingerprints, two unsigned 64-bit integers.
    index : the fingerprints.
    timestamps : event timestamps in microseconds since 1970, or the oldest timestamp of each row's bucket.
    bucket_bounds : int64[b, 2], the oldest and newest timestamp of each bucket, ascending; empty if the
        timestamps are exact.
    states : by feature whose structure does not store them.

    Raises
    ------
    ValueError : the parts have different numbers of rows.
    """

    salt: tuple[int, int]
    index: FingerprintIndex
    timestamps: DictionaryElements | NumberElements
    bucket_bounds: NDArray[np.int64]
    states: Mapping[str, PackedInts]

    kind = "list"

    def __post_init__(self) -> None:
        lengths = [len(self.timestamps), *(states.length for states in self.states.values())]
        if any(length != len(self) for length in lengths):
            raise ValueError(f"the columns of {len(self)} listed rows have {lengths} rows")
        if isinstance(self.timestamps, DictionaryElements):
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
        timestamps = _of_numbers(smallest(vocabulary, symbols, min_width=0))
        packed = {name: PackedInts.pack(feature) for name, feature in states.items()}
        return cls(salt, index, timestamps, bucket_bounds, packed)

    @property
    def num_listed(self) -> int:
        """See `Presence`."""
        return len(self)

    @property
    def features(self) -> Collection[str]:
        """See `Presence`."""
        return self.states.keys()

    @property
    def size_bytes(self) -> int:
        """See `Presence`."""
        states = sum(states.size_bytes for states in self.states.values())
        return self.index.size_bytes + self.timestamps.size_bytes + states

    @property
    def index_bytes(self) -> int:
        """See `Presence`."""
        return self.index.size_bytes

    def prepare(self) -> RowReader:
        """See `Presence.prepare`."""
        prepared, elements, distinct = RowReader(), self.timestamps, None
        if isinstance(elements, DictionaryElements):
            distinct, timestamps = elements.vocabulary.values.to_numpy(), elements.ids
        else:
            timestamps = elements.numbers
        bounds = np.ascontiguousarray(self.bucket_bounds) if len(self.bucket_bounds) else None
        index = *self.index.fingerprints.arguments, self.index.range, self.index.twins
        prepared.listed(*self.salt, *index, *timestamps.arguments, distinct, bounds)
        return prepared

    def prepared_states(self, feature: str) -> tuple[Any, ...] | None:
        """See `Presence.prepared_states`."""
        return (*self.states[feature].arguments, 0) if feature in self.states else None

    def to_snapshot(self) -> Described:
        """See `Presence.to_snapshot`."""
        timestamps, parts = self.timestamps.to_snapshot()
        arrays: dict[str, NDArray[np.generic]] = {
            **arrays_of_ascending("index", self.index.fingerprints),
            "index.twins": self.index.twins,
            "bucket_bounds": self.bucket_bounds,
            **prefixed("timestamps", parts),
        }
        states = []
        for number, (name, packed) in enumerate(self.states.items()):
            states.append({"name": name, **describe_packed(packed)})
            arrays[f"states.{number}.{WORDS}"] = packed.words
        description = {
            "salt": describe_salt(self.salt),
            "index": {"range": self.index.range, **describe_ascending(self.index.fingerprints)},
            "timestamps": timestamps,
            "states": states,
        }
        return description, arrays

    @classmethod
    def from_snapshot(
        cls, description: Mapping[str, Any], parts: Parts, structures: Sequence[Structure]
    ) -> Self:
        """See `Presence.from_snapshot`."""
        elements = elements_from(_TIMESTAMPS, description["timestamps"], parts.at("timestamps"), 0)
        timestamps = _of_numbers(elements)
        states = {
            checked(entry["name"], str): parts.at("states").packed(str(number), entry)
            for number, entry in enumerate(description["states"])
        }
        if len(states) != len(description["states"]):
            raise ValueError("a feature has two columns of states in the list of rows")
        index = FingerprintIndex(
            parts.ascending("index", description["index"], by_value=True),
            checked(description["index"]["range"], int),
            parts.array("index.twins", np.uint64),
        )
        bounds = parts.array("bucket_bounds", np.int64, 2)
        if (
            bounds.shape[1] != 2
            or (bounds[:, 0] > bounds[:, 1]).any()
            or (bounds[:-1, 1] >= bounds[1:, 0]).any()
        ):
            raise ValueError("the bounds of the timestamp buckets are not ascending")
        return cls(salt_from(description["salt"]), index, timestamps, bounds, states)


def _of_numbers(elements: Elements) -> DictionaryElements | NumberElements:
    if isinstance(elements, DictionaryElements | NumberElements):
        return elements
    raise ValueError("the timestamps of the rows are not numbers")
