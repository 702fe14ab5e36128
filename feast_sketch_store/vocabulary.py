"""The vocabulary of a feature: its distinct values, each known by a small integer id.

Values are held in one of two storage types, whatever the feature's own type: int64 (numbers, and
the bit patterns of floats, so NaN and -0.0 keep their identity) or large_binary (everything else).
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

STORAGE_TYPES = (pa.int64(), pa.large_binary())


class Vocabulary:
    """Distinct values in id order, immutable.

    Parameters
    ----------
    values : pyarrow array of a type in ``STORAGE_TYPES``, without nulls or repetitions.
    """

    def __init__(self, values: pa.Array):
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    @property
    def size_bytes(self) -> int:
        """Bytes of the values themselves, offsets included."""
        return int(self.values.nbytes)

    @classmethod
    def by_popularity(cls, values: pa.Array) -> tuple["Vocabulary", NDArray[np.int64]]:
        """Number values from the most to the least frequent, equals in ascending order.

        The order makes the smallest possible id the most probable one and the rare symbols a suffix.

        Returns
        -------
        The vocabulary, and the id of each of ``values``: int64[n].
        """
        encoded = values.dictionary_encode()
        codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        distinct = encoded.dictionary
        order = _popularity_order(distinct, np.bincount(codes, minlength=len(distinct)))
        ids = np.empty(len(distinct), np.int64)
        ids[order] = np.arange(len(distinct))
        return cls(distinct.take(pa.array(order))), ids[codes]

    @classmethod
    def union(cls, parts: Sequence["Vocabulary"]) -> tuple["Vocabulary", list[NDArray[np.int64]]]:
        """One vocabulary of several; the ids of the first part stay as they are.

        Returns
        -------
        The union, and per part the new id of each old one: int64[len(part)].
        """
        joined = pa.concat_arrays([part.values for part in parts]).dictionary_encode()
        codes = joined.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        bounds = np.cumsum([len(part) for part in parts])[:-1]
        return cls(joined.dictionary), np.split(codes, bounds)

    def count_new(self, values: pa.Array) -> int:
        """How many distinct values of ``values`` are not in the vocabulary."""
        distinct = pc.unique(values)
        return len(distinct) - int(pc.sum(pc.is_in(distinct, self.values)).as_py() or 0)

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        """The values as plain arrays for a snapshot."""
        if pa.types.is_int64(self.values.type):
            return {"values": self.values.to_numpy()}
        values = pa.concat_arrays([self.values])  # an offset of 0: slices share the parent's buffers
        _, offsets, data = values.buffers()
        return {
            "offsets": np.frombuffer(offsets, np.int64, len(values) + 1)
            if len(values)
            else np.zeros(1, np.int64),
            "data": np.frombuffer(data, np.uint8) if data else np.zeros(0, np.uint8),
        }

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[np.generic]]) -> "Vocabulary":
        """The reverse of `to_arrays`; nothing is copied.

        Raises
        ------
        ValueError : the offsets do not describe slices of the data.
        """
        if "values" in arrays:
            return cls(pa.array(arrays["values"], pa.int64()))
        offsets, data = arrays["offsets"], arrays["data"]
        if len(offsets) < 1 or offsets[0] != 0 or offsets[-1] != len(data) or np.any(np.diff(offsets) < 0):
            raise ValueError("the vocabulary's offsets do not describe slices of its data")
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        return cls(pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers))


class VocabularyBuilder:
    """Unites the vocabularies of parts and numbers the values anew, by how often they occur in all parts.

    Parameters
    ----------
    storage_type : one of ``STORAGE_TYPES``.
    """

    def __init__(self, storage_type: pa.DataType):
        self._known = Vocabulary(pa.array([], storage_type))
        self._counts = np.zeros(0, np.int64)

    def add(self, vocabulary: Vocabulary, symbols: NDArray[np.int32]) -> NDArray[np.int32]:
        """Take up a part: the provisional ids of its symbols, int32[nnz]."""
        self._known, (_, new_ids) = Vocabulary.union([self._known, vocabulary])
        provisional = new_ids.astype(np.int32)[symbols]
        counts = np.bincount(provisional, minlength=len(self._known))
        counts[: len(self._counts)] += self._counts
        self._counts = counts
        return provisional

    def finish(self) -> tuple[Vocabulary, NDArray[np.int32]]:
        """The vocabulary, most frequent value first, and the final id of each provisional one: int32[V]."""
        order = _popularity_order(self._known.values, self._counts)
        final = np.empty(len(order), np.int32)
        final[order] = np.arange(len(order), dtype=np.int32)
        return Vocabulary(self._known.values.take(pa.array(order))), final


def _popularity_order(values: pa.Array, counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Positions from the most to the least frequent value, equals in ascending order."""
    return np.asarray(
        pc.sort_indices(
            pa.table({"count": counts, "value": values}),
            sort_keys=[("count", "descending"), ("value", "ascending")],
        ),
        np.int64,
    )
