"""Values that a reader is asked about, in the form in which vocabularies are searched."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.errors import RowError
from feast_sketch_store.kernel.binary import Parts, parts_of
from feast_sketch_store.reading.numbering import Numbering, as_storage
from feast_sketch_store.rows.codecs import FeatureCodec

_INTEGERS = np.dtype(np.int64)


class Asked:
    """Values to be looked for: int64 numbers, or parts of binary values."""

    def __init__(self, numbers: NDArray[np.int64] | None, values: pa.Array | None):
        self.numbers = numbers
        self._values = values

    @classmethod
    def of_values(cls, codec: FeatureCodec, values: Any) -> Asked:
        """Values as users have them."""
        if not isinstance(values, pa.Array) and np.ndim(values) != 1:
            raise RowError(f"values have the shape {np.shape(values)}; give m values for one entity")
        if codec.element_kind == "int64" and isinstance(values, np.ndarray) and values.dtype == _INTEGERS:
            return cls(np.ascontiguousarray(values), None)
        wanted = as_wanted(codec, values)
        return cls(wanted.to_numpy() if pa.types.is_int64(wanted.type) else None, wanted)

    def __len__(self) -> int:
        return len(self.numbers if self.numbers is not None else self.values)

    @property
    def values(self) -> pa.Array:
        """The values in the storage type, or what `Vocabulary.find` takes as well."""
        return pa.array(self.numbers) if self._values is None else self._values

    @cached_property
    def parts(self) -> Parts:
        """Offsets and data of binary values."""
        return parts_of(self.values)


class Candidates:
    """Values that many entities are asked about, see `SketchReader.candidates`. Safe to use from threads."""

    def __init__(self, codec: FeatureCodec, values: Any):
        self._codec = codec
        self._asked = Asked.of_values(codec, values)
        self._named: tuple[Numbering | None, NDArray[np.int32], NDArray[np.int64]] = (
            None, np.zeros(0, np.int32), np.zeros(0, np.int64)
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self._asked)

    def of(self, codec: FeatureCodec) -> Asked:
        """The values, for a feature that they were made for.

        Raises
        ------
        RowError : they were made for another one.
        """
        if codec is not self._codec and codec.element_kind != self._codec.element_kind:
            raise RowError(f"these candidates are of {self._codec.feature!r}, not of {codec.feature!r}")
        return self._asked

    def names(self, numbering: Numbering) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The ids of those that have one, int32 ascending, and their places among the candidates, int64."""
        named = self._named
        if named[0] is not numbering:
            ids = numbering.vocabulary.find(self._asked.values)
            places = np.argsort(ids, kind="stable")
            places = places[np.searchsorted(ids[places], 0) :]
            named = self._named = numbering, ids[places], places
        return named[1:]


def as_wanted(codec: FeatureCodec, values: Any) -> pa.Array:
    """The values in a form that `Vocabulary.find` takes; the usual arrays need no conversion."""
    kind = codec.element_kind
    if kind == "int64" and isinstance(values, np.ndarray) and values.dtype == _INTEGERS:
        return pa.array(values)
    if isinstance(values, pa.Array) and not values.null_count:
        if kind == "int64" and values.type == codec.storage_type:
            return values
        if kind == "string" and (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
            return values
    return as_storage(codec, values)
