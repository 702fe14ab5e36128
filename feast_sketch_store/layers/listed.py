"""Listed rows: the entities of a layer one by one, with what a filter cannot keep.

A layer with exact features or sets has to find the row of an entity, so it lists its entities by
fingerprints, all distinct and in ascending order. In the same order stand timestamps, the columns of exact
features and of scalars, which take fewer bits there than in the filter, the sets, and the states of the
features that are in the filter.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.kernel import row_hashes
from feast_sketch_store.rows.codecs import EXACT, VALUE, FeatureCodec
from feast_sketch_store.rows.encoding import NO_TIMESTAMP
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures.answer import FeatureAnswer, FoundRows
from feast_sketch_store.structures.columns import (
    PACKED,
    Arrays,
    Checks,
    Column,
    DictionaryElements,
    Parts,
    checked,
    describe,
)
from feast_sketch_store.structures.set_columns import SetColumns
from feast_sketch_store.succinct import FingerprintIndex, PackedInts

_TIMESTAMPS = FeatureCodec("event timestamps", "int64_val", EXACT)


@dataclass(frozen=True)
class ListedRows:
    """n rows in the order of their fingerprints.

    Parameters
    ----------
    salt : of the fingerprints, two unsigned 64-bit integers.
    index : of the fingerprints.
    timestamps : event timestamps in microseconds since 1970, or else of each row's bucket the oldest.
    bucket_bounds : int64[b, 2], the oldest and newest timestamp of each bucket, ascending; of none if
        timestamps are those of the rows.
    states : of the features in the filter.
    columns : of scalars and exact features.
    sets : of the others, if there are any.

    Raises
    ------
    ValueError : the parts are not all of n rows.
    """

    salt: tuple[int, int]
    index: FingerprintIndex
    timestamps: Column
    bucket_bounds: NDArray[np.int64]
    states: Mapping[str, PackedInts]
    columns: Mapping[str, Column]
    sets: SetColumns | None = None

    def __post_init__(self) -> None:
        lengths = [
            *(states.length for states in self.states.values()),
            *(len(column) for column in (self.timestamps, *self.columns.values())),
            *([] if self.sets is None else [len(self.sets)]),
        ]
        if any(length != len(self) for length in lengths):
            raise ValueError(f"the columns of {len(self)} listed rows have {lengths} rows")
        elements = self.timestamps.elements
        if isinstance(elements, DictionaryElements):
            self._newest(elements.vocabulary.values.to_numpy())

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
        columns: Mapping[str, Column],
        sets: SetColumns | None,
    ) -> "ListedRows":
        """List rows that are already in order; parameters as those of the class."""
        vocabulary, symbols = Vocabulary.of_numbers(event_timestamps)
        everywhere = np.full(len(index), VALUE, np.uint8)
        timestamps = Column.build(_TIMESTAMPS, everywhere, np.arange(0), vocabulary, symbols)
        packed = {name: PackedInts.pack(feature) for name, feature in states.items()}
        return cls(salt, index, timestamps, bucket_bounds, packed, columns, sets)

    @property
    def size_bytes(self) -> int:
        """Bytes of all parts, the vocabularies of sets not counted."""
        size = self.index.size_bytes + self.timestamps.size_bytes
        size += sum(states.size_bytes for states in self.states.values())
        size += sum(column.size_bytes for column in self.columns.values())
        return size + (0 if self.sets is None else self.sets.size_bytes)

    def find(
        self, entity_hashes: NDArray[np.uint64], features: Sequence[str], expire_before: int
    ) -> FoundRows:
        """The rows of a batch of entities; see `SketchLayer.read` for the parameters.

        Raises
        ------
        ValueError : the parts, which came from a file, contradict each other.
        """
        rows = self.index.find(row_hashes(entity_hashes, self.salt))
        positions = np.flatnonzero(rows >= 0)
        rows = rows[positions]
        timestamps = self._timestamps_of(rows)
        if expire_before > NO_TIMESTAMP and not (alive := self._newest(timestamps) >= expire_before).all():
            positions, rows, timestamps = positions[alive], rows[alive], timestamps[alive]
        states = {
            name: _checked_states(self.states[name].take(rows)) for name in features if name in self.states
        }
        return FoundRows(positions, timestamps, states, rows)

    def read(self, name: str, rows: NDArray[np.int64]) -> FeatureAnswer:
        """One feature that is not in the filter, of some rows.

        Raises
        ------
        ValueError : the parts, which came from a file, contradict each other.
        """
        if name in self.columns:
            return self.columns[name].read(rows)
        assert self.sets is not None
        return self.sets.read(name, rows)

    def _timestamps_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        elements = self.timestamps.elements
        if isinstance(elements, DictionaryElements) and len(elements.vocabulary) == 1:
            return np.full(len(rows), elements.vocabulary.values[0].as_py())
        vocabulary, symbols = elements.take(rows)
        return np.asarray(vocabulary.values.to_numpy()[symbols])

    def _newest(self, timestamps: NDArray[np.int64]) -> NDArray[np.int64]:
        """The newest timestamp that rows may have, given what is known of it."""
        if not len(self.bucket_bounds):
            return timestamps
        buckets = np.searchsorted(self.bucket_bounds[:, 0], timestamps).clip(max=len(self.bucket_bounds) - 1)
        oldest, newest = self.bucket_bounds[buckets].T
        if (oldest != timestamps).any():
            raise ValueError("a row has the timestamp of no bucket")
        return np.asarray(newest)

    def to_snapshot(self) -> tuple[dict[str, Any], dict[str, NDArray[np.generic]]]:
        """The rows as a JSON-serializable description and named arrays."""
        arrays: dict[str, NDArray[np.generic]] = {
            f"fingerprints.starts.{PACKED}": self.index.starts.words,
            f"fingerprints.rests.{PACKED}": self.index.rests.words,
            "bucket_bounds": self.bucket_bounds,
        }
        columns = []
        for number, column in enumerate((self.timestamps, *self.columns.values())):
            entry, parts = column.to_snapshot()
            columns.append(entry)
            arrays |= {f"columns.{number}.{name}": array for name, array in parts.items()}
        states = []
        for number, (name, packed) in enumerate(self.states.items()):
            states.append({"name": name, **describe(packed)})
            arrays[f"states.{number}.{PACKED}"] = packed.words
        description: dict[str, Any] = {
            "starts": describe(self.index.starts),
            "rests": describe(self.index.rests),
            "columns": columns,
            "states": states,
        }
        if self.sets is not None:
            description["sets"], parts = self.sets.to_snapshot()
            arrays |= {f"sets.{name}": array for name, array in parts.items()}
        return description, arrays

    @classmethod
    def from_snapshot(
        cls, description: Mapping[str, Any], salt: tuple[int, int], arrays: Arrays, checks: Checks
    ) -> "ListedRows":
        """The reverse of `to_snapshot`.

        Raises
        ------
        ValueError, KeyError, TypeError : the parts do not fit each other.
        """
        timestamps, *columns = (
            Column.from_snapshot(entry, Parts(arrays, checks, f"columns.{number}."))
            for number, entry in enumerate(description["columns"])
        )
        parts = Parts(arrays, checks, "states.")
        states = {
            checked(entry["name"], str): parts.packed(str(number), entry)
            for number, entry in enumerate(description["states"])
        }
        by_name = {column.codec.feature: column for column in columns}
        sets = None
        if "sets" in description:
            sets = SetColumns.from_snapshot(description["sets"], Parts(arrays, checks, "sets."))
        set_names = {} if sets is None else sets.numbers
        num_names = len(description["states"]) + len(columns) + len(set_names)
        if timestamps.codec != _TIMESTAMPS or num_names != len(
            states.keys() | by_name.keys() | set_names.keys()
        ):
            raise ValueError("the columns of the listed rows are not those of distinct features")
        parts = Parts(arrays, checks, "fingerprints.")
        index = FingerprintIndex(*(parts.packed(part, description[part]) for part in ("starts", "rests")))
        bounds: Any = arrays["bucket_bounds"]
        if (
            bounds.ndim != 2
            or bounds.shape[1] != 2
            or (bounds[:, 0] > bounds[:, 1]).any()
            or (bounds[:-1, 1] >= bounds[1:, 0]).any()
        ):
            raise ValueError("the bounds of the timestamp buckets do not ascend")
        return cls(salt, index, timestamps, bounds, states, by_name, sets)


def _checked_states(states: NDArray[np.int64]) -> NDArray[np.uint8]:
    if len(states) and not 0 <= states.min() <= states.max() <= VALUE:
        raise ValueError("a row has a state that cannot be")
    return states.astype(np.uint8)
