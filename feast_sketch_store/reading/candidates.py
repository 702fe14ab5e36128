"""Values that a reader is asked about, in the forms in which vocabularies are searched."""

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


class Candidates:
    """m values to look for. Each form is made when it is first used. Safe to use from several threads.

    Parameters
    ----------
    codec : of the feature.
    given : the values as the caller has them.

    Raises
    ------
    RowError : ``given`` has more than one dimension. ``values`` raises it if a value is not of the feature's
        type.
    """

    def __init__(self, codec: FeatureCodec, given: Any):
        # `np.ndim` of a list would make an array of it.
        is_list = type(given) is list and len(given) > 0 and isinstance(given[0], str | bytes)
        if not is_list and not isinstance(given, pa.Array) and np.ndim(given) != 1:
            raise RowError(f"values have the shape {np.shape(given)}; give m values for one entity")
        self._codec = codec
        self._given = given
        self._known: tuple[Numbering, NDArray[np.int32]] | None = None
        self._numbers: NDArray[np.int64] | None = None
        self.is_text = codec.element_kind == "string"
        if codec.element_kind == "int64" and isinstance(given, np.ndarray) and given.dtype == _INTEGERS:
            self._numbers = np.ascontiguousarray(given)

    def __len__(self) -> int:
        return len(self._given)

    @cached_property
    def values(self) -> pa.Array:
        """The values in the storage type, or in another form that `Vocabulary.find` takes."""
        if self._numbers is not None:
            return pa.array(self._numbers)
        given, kind = self._given, self._codec.element_kind
        if isinstance(given, pa.Array) and not given.null_count:
            is_text = pa.types.is_string(given.type) or pa.types.is_large_string(given.type)
            if (kind == "string" and is_text) or (kind == "int64" and given.type == self._codec.storage_type):
                return given
        return as_storage(self._codec, given)

    @cached_property
    def numbers(self) -> NDArray[np.int64] | None:
        """The values as int64; None if they are not numbers."""
        if self._numbers is None and pa.types.is_int64(self.values.type):
            return np.asarray(self.values.to_numpy())
        return self._numbers

    @cached_property
    def objects(self) -> list[Any] | None:
        """The given list of strings or bytes, unchecked; None if it is not one."""
        if self._codec.element_kind not in ("string", "bytes"):
            return None
        if isinstance(self._given, np.ndarray) and self._given.dtype.kind in "OU":
            return list(self._given.tolist())
        return self._given if type(self._given) is list else None

    @cached_property
    def parts(self) -> Parts:
        """Offsets and data of binary values."""
        return parts_of(self.values)

    def check_feature(self, codec: FeatureCodec) -> None:
        """Check that the values are asked about the feature that they were made for.

        Raises
        ------
        RowError : they were made for another feature.
        """
        if codec is not self._codec and codec.element_kind != self._codec.element_kind:
            raise RowError(f"these candidates are of {self._codec.feature!r}, not of {codec.feature!r}")

    def ids(self, numbering: Numbering) -> NDArray[np.int32]:
        """The id of each value, int32[m]; -1 for one that has none."""
        known = self._known
        if known is None or known[0] is not numbering:
            known = self._known = numbering, numbering.vocabulary.find(self.values)
        return known[1]
