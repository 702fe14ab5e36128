"""The vocabulary of a feature: its distinct values, each with a small integer id.

Values have one of two storage types, with any type of the feature: int64 (numbers, and the bit patterns of
floats, so that NaN and -0.0 keep their identity) or large_binary (everything else).
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from feast_sketch_store import kernel
from feast_sketch_store.kernel.binary import from_parts, parts_of
from feast_sketch_store.rows.packed_values import PackedArrays, packed_arrays, values_from

# When a snapshot is opened, packed values are unpacked into the memory of each process (of unsorted strings
# only the offsets). For so many that takes a millisecond or two. Plain values are mapped.
MAX_PACKED = 1 << 18
_MAX_SORTED_STRINGS = 1 << 12

_FEW_NUMBERS = 1 << 8

_MAX_WAITING_BYTES = 1 << 24  # of symbols whose vocabularies are not united yet


class Vocabulary:
    """Distinct values in id order, immutable.

    Parameters
    ----------
    values : pyarrow array of int64 or large_binary, without nulls or repetitions.
    packed_bytes : bytes of the values in a snapshot, if known.
    """

    def __init__(self, values: pa.Array, packed_bytes: int | None = None):
        self.values = values
        self._packed_bytes = packed_bytes

    def __len__(self) -> int:
        return len(self.values)

    @property
    def size_bytes(self) -> int:
        """Bytes of the values themselves in memory, offsets included."""
        return int(self.values.nbytes)

    @property
    def packed_bytes(self) -> int:
        """Bytes that the values take in a snapshot."""
        if self._packed_bytes is None:
            self._packed_bytes = sum(array.nbytes for array in self.to_packed().values())
        return self._packed_bytes

    def packed_bytes_of(self, number: float) -> float:
        """Bytes in a snapshot of so many values, each as large as one of these in the form for that many."""
        if number <= len(self) or not len(self):
            return self.packed_bytes * number / max(1, len(self))
        if number > MAX_PACKED:
            arrays = self.to_arrays()
        else:
            arrays = packed_arrays(self.values, may_sort=number <= _MAX_SORTED_STRINGS)
        return sum(array.nbytes for array in arrays.values()) * number / len(self)

    @classmethod
    def by_popularity(cls, values: pa.Array) -> tuple["Vocabulary", NDArray[np.int32]]:
        """Number values from the most to the least frequent; ties in ascending order. So probable values get
        small ids. Returns the vocabulary, and the id of each of ``values``: int32[n].
        """
        encoded = values.dictionary_encode()
        codes = encoded.indices.to_numpy(zero_copy_only=False)
        distinct = encoded.dictionary
        vocabulary, ids = cls(distinct).reordered(np.bincount(codes, minlength=len(distinct)))
        return vocabulary, ids[codes]

    @classmethod
    def of_numbers(cls, numbers: NDArray[np.int64]) -> tuple["Vocabulary", NDArray[np.int64]]:
        """Distinct numbers in ascending order, and the id of each of ``numbers``: int64[n]."""
        distinct = np.unique(numbers)
        if len(distinct) <= _FEW_NUMBERS:  # in a third of the memory
            return cls(pa.array(distinct)), np.searchsorted(distinct, numbers)
        distinct, ids = np.unique(numbers, return_inverse=True)
        return cls(pa.array(distinct)), ids

    def reordered(self, counts: NDArray[np.int64]) -> tuple["Vocabulary", NDArray[np.int32]]:
        """The same values from the most to the least frequent, by their ``counts``, int64[V]; ties in
        ascending order. Returns the vocabulary, and the new id of each old one: int32[V].
        """
        if len(counts) and counts.min() == counts.max():  # always so in a single row
            order = pc.array_sort_indices(self.values)
        else:
            order = pc.sort_indices(
                pa.table({"count": counts, "value": self.values}),
                sort_keys=[("count", "descending"), ("value", "ascending")],
            )
        ids = np.empty(len(self), np.int32)
        ids[order.to_numpy()] = np.arange(len(self), dtype=np.int32)
        return Vocabulary(self.values.take(order)), ids

    @classmethod
    def union(cls, parts: Sequence["Vocabulary"]) -> tuple["Vocabulary", list[NDArray[np.int64]]]:
        """Unite vocabularies; the ids of the first part do not change. Returns the union, and per part the
        new id of each old one: int64[len(part)].
        """
        joined = pa.concat_arrays([part.values for part in parts]).dictionary_encode()
        codes = joined.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        bounds = np.cumsum([len(part) for part in parts])[:-1]
        return cls(joined.dictionary), np.split(codes, bounds)

    def find(self, values: pa.Array) -> NDArray[np.int32]:
        """The ids of values of the storage type: int32[n]; -1 for a value that is not in the vocabulary."""
        index = self._index
        if isinstance(index, kernel.Int64Index):
            return index.find(values.to_numpy())
        return index.find(*parts_of(values))

    @cached_property
    def _index(self) -> kernel.Int64Index | kernel.BytesIndex:
        if pa.types.is_int64(self.values.type):
            return kernel.Int64Index(self.values.to_numpy())
        return kernel.BytesIndex(*parts_of(self.values))

    def to_packed(self) -> PackedArrays:
        """The values as arrays for a snapshot, packed if there are few enough to unpack quickly."""
        if len(self) > MAX_PACKED:
            return self.to_arrays()
        return packed_arrays(self.values, may_sort=len(self) <= _MAX_SORTED_STRINGS)

    @classmethod
    def from_packed(cls, arrays: PackedArrays, storage_type: pa.DataType) -> "Vocabulary":
        """The reverse of `to_packed`.

        Raises ValueError, KeyError, TypeError: the arrays do not fit each other or the type.
        """
        values = values_from(arrays, storage_type)
        return cls(values, sum(array.nbytes for array in arrays.values()))

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        """The values as plain arrays."""
        if pa.types.is_int64(self.values.type):
            return {"values": self.values.to_numpy()}
        offsets, data = parts_of(self.values)
        return {"offsets": offsets, "data": data}

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[np.generic]]) -> "Vocabulary":
        """The reverse of `to_arrays`; nothing is copied.

        Raises ValueError: the offsets do not describe slices of the data.
        """
        if "values" in arrays:
            return cls(pa.array(arrays["values"], pa.int64()))
        offsets, data = arrays["offsets"], arrays["data"]
        if len(offsets) < 1 or offsets[0] != 0 or offsets[-1] != len(data) or np.any(np.diff(offsets) < 0):
            raise ValueError("the vocabulary's offsets do not describe slices of its data")
        return cls(from_parts(offsets, data))  # type: ignore[arg-type]


class SymbolParts(Protocol):
    """Where a `VocabularyBuilder` puts the symbols of parts, int[nnz] each; a list, for example."""

    def append(self, part: NDArray[Any], /) -> None:
        """Add the symbols of the next part."""

    def __iter__(self) -> Iterator[NDArray[Any]]:
        """The symbols of all parts, in their order."""


class VocabularyBuilder:
    """Unites the vocabularies of parts, and numbers the symbols of all parts alike.

    Vocabularies wait until they are together as long as the merged one. So each value is looked up about
    twice, however many parts there are.

    Parameters
    ----------
    storage_type : int64 or large_binary.
    parts : gets the symbols of each part; by default a list.
    """

    def __init__(self, storage_type: pa.DataType, parts: SymbolParts | None = None):
        self._known = Vocabulary(pa.array([], storage_type))
        self._waiting: list[tuple[Vocabulary, NDArray[np.integer]]] = []
        self._parts: SymbolParts = [] if parts is None else parts

    def add(self, vocabulary: Vocabulary, symbols: NDArray[np.int32]) -> None:
        """Add a part: its symbols, int32[nnz], are ids of its own vocabulary."""
        self._waiting.append((vocabulary, narrow(symbols, len(vocabulary))))
        num_values = sum(len(own) for own, _ in self._waiting)
        num_bytes = sum(waiting.nbytes for _, waiting in self._waiting)
        if num_values >= len(self._known) or num_bytes > _MAX_WAITING_BYTES:
            self._unite()

    def finish(self) -> tuple[Vocabulary, NDArray[np.int64], SymbolParts]:
        """The vocabulary, how often each value occurs, int64[V], and the symbols of each part, int[nnz]."""
        if self._waiting:
            self._unite()
        counts = np.zeros(len(self._known), np.int64)
        for symbols in self._parts:
            found = np.bincount(symbols)
            counts[: len(found)] += found
        return self._known, counts, self._parts

    def _unite(self) -> None:
        # The ids of values that are known stay, so parts that were united need no other symbols.
        self._known, (_, *new_ids) = Vocabulary.union([self._known, *(own for own, _ in self._waiting)])
        for (_, symbols), ids in zip(self._waiting, new_ids, strict=True):
            self._parts.append(narrow(ids, len(self._known))[symbols])
        self._waiting = []


def narrow(symbols: NDArray[np.integer], num_symbols: int) -> NDArray[np.integer]:
    """The same ids as uint16 if they fit, else as int32; uint16 halves the memory of most views."""
    return symbols.astype(np.uint16 if num_symbols <= 2**16 else np.int32)
