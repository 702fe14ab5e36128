"""Listed rows: the entities of a layer one by one, with what a filter cannot keep.

A layer with exact features has to find the row of an entity, so it lists its entities: 64-bit fingerprints
in ascending order, all distinct. An entity that was never written has one of theirs with a probability of
``n / 2**64``. In the same order stand timestamps, the columns of exact features and of scalars, which take
fewer bits there than in the filter, and the states of the features that are in the filter.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.codecs import EXACT, VALUE, FeatureCodec
from feast_sketch_store.filters import PackedInts
from feast_sketch_store.kernel import mix64
from feast_sketch_store.layers.answer import FoundRows
from feast_sketch_store.layers.columns import PACKED, Arrays, Checks, Column, Parts, checked, describe
from feast_sketch_store.vocabulary import Vocabulary

_TIMESTAMPS = FeatureCodec("event timestamps", "int64_val", EXACT)


@dataclass(frozen=True)
class ListedRows:
    """n rows in the order of their fingerprints.

    Parameters
    ----------
    salt : of the fingerprints, two unsigned 64-bit integers.
    fingerprints : uint64[n], ascending.
    timestamps : event timestamps in microseconds since 1970.
    states : of the features that have no column.
    columns : of the others.

    Raises
    ------
    ValueError : the parts are not all of n rows.
    """

    salt: tuple[int, int]
    fingerprints: NDArray[np.uint64]
    timestamps: Column
    states: Mapping[str, PackedInts]
    columns: Mapping[str, Column]

    def __post_init__(self) -> None:
        lengths = [
            *(states.length for states in self.states.values()),
            *(len(column) for column in (self.timestamps, *self.columns.values())),
        ]
        if any(length != len(self) for length in lengths):
            raise ValueError(f"the columns of {len(self)} listed rows have {lengths} rows")

    def __len__(self) -> int:
        return len(self.fingerprints)

    @classmethod
    def build(
        cls,
        salt: tuple[int, int],
        fingerprints: NDArray[np.uint64],
        event_timestamps: NDArray[np.int64],
        states: Mapping[str, NDArray[np.uint8]],
        columns: Mapping[str, Column],
    ) -> "ListedRows":
        """List rows that are already in order; parameters as those of the class."""
        vocabulary, symbols = Vocabulary.of_numbers(event_timestamps)
        everywhere = np.full(len(fingerprints), VALUE, np.uint8)
        timestamps = Column.build(_TIMESTAMPS, everywhere, np.arange(0), vocabulary, symbols)
        packed = {name: PackedInts.pack(feature) for name, feature in states.items()}
        return cls(salt, fingerprints, timestamps, packed, columns)

    @property
    def size_bytes(self) -> int:
        """Bytes of the fingerprints, timestamps and states, not of the columns."""
        states = sum(states.size_bytes for states in self.states.values())
        return int(self.fingerprints.nbytes) + self.timestamps.size_bytes + states

    def find(
        self, entity_hashes: NDArray[np.uint64], features: Sequence[str], expire_before: int
    ) -> FoundRows:
        """The rows of a batch of entities; see `SketchLayer.read` for the parameters.

        Raises
        ------
        ValueError : the parts, which came from a file, contradict each other.
        """
        wanted = fingerprints_of(entity_hashes, self.salt)
        rows = np.searchsorted(self.fingerprints, wanted)
        if len(self):
            positions = np.flatnonzero(self.fingerprints[np.minimum(rows, len(self) - 1)] == wanted)
        else:
            positions = np.zeros(0, np.int64)
        rows = rows[positions]
        vocabulary, symbols = self.timestamps.elements.take(rows)
        timestamps = vocabulary.values.to_numpy()[symbols]
        alive = timestamps >= expire_before
        if not alive.all():
            positions, rows, timestamps = positions[alive], rows[alive], timestamps[alive]
        states = {
            name: _checked_states(self.states[name].take(rows)) for name in features if name in self.states
        }
        return FoundRows(positions, timestamps, states, rows)

    def to_snapshot(self) -> tuple[dict[str, Any], dict[str, NDArray[np.generic]]]:
        """The rows as a JSON-serializable description and named arrays."""
        arrays: dict[str, NDArray[np.generic]] = {"fingerprints": self.fingerprints}
        columns = []
        for number, column in enumerate((self.timestamps, *self.columns.values())):
            description, parts = column.to_snapshot()
            columns.append(description)
            arrays |= {f"columns.{number}.{name}": array for name, array in parts.items()}
        states = []
        for number, (name, packed) in enumerate(self.states.items()):
            states.append({"name": name, **describe(packed)})
            arrays[f"states.{number}.{PACKED}"] = packed.words
        return {"columns": columns, "states": states}, arrays

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
        num_names = len(states.keys() | by_name.keys())
        if timestamps.codec != _TIMESTAMPS or num_names != len(description["states"]) + len(columns):
            raise ValueError("the columns of the listed rows are not those of distinct features")
        fingerprints: Any = arrays["fingerprints"]
        if fingerprints.ndim != 1:
            raise ValueError("the fingerprints of the listed rows are no list")
        return cls(salt, fingerprints, timestamps, states, by_name)


def fingerprints_of(entity_hashes: NDArray[np.uint64], salt: tuple[int, int]) -> NDArray[np.uint64]:
    """64 bits of each 128-bit hash, which nobody can foresee without the salt: uint64[n]."""
    first = mix64(entity_hashes[:, 0] ^ np.uint64(salt[1]))
    return mix64(first + (entity_hashes[:, 1] ^ np.uint64(salt[0])))


def _checked_states(states: NDArray[np.int64]) -> NDArray[np.uint8]:
    if len(states) and not 0 <= states.min() <= states.max() <= VALUE:
        raise ValueError("a row has a state that cannot be")
    return states.astype(np.uint8)
