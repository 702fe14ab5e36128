"""Values of a feature as the callers of a reader give them, and their ids: one numbering for all layers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from feast_sketch_store.errors import RowError, SettingsError
from feast_sketch_store.kernel.binary import Parts, parts_of
from feast_sketch_store.reading.entities import as_array, is_unmasked
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures.base import Answer

_INTEGERS = np.dtype(np.int64)


class Numbering:
    """The ids of a feature's values, given in this order, and how the ids of layers map to them."""

    def __init__(self, codec: FeatureCodec, values: Sequence[Any] | NDArray[Any] | pa.Array):
        storage = as_storage(codec, values)
        if len(pc.unique(storage)) != len(storage):
            raise SettingsError(
                f"the vocabulary that was given for feature {codec.feature!r} repeats a value"
            )
        self.vocabulary = Vocabulary(storage)
        self.values = codec.from_storage(storage)
        self._maps: dict[int, tuple[Vocabulary, NDArray[np.int32] | None]] = {}

    @classmethod
    def of_all(cls, codec: FeatureCodec, vocabularies: Sequence[Vocabulary]) -> Numbering:
        """All values of several vocabularies; the ids of the first one do not change."""
        numbering = cls.__new__(cls)
        first, *others = vocabularies or [Vocabulary(pa.array([], codec.storage_type))]
        # The shards of a view have equal vocabularies. Comparing two is far cheaper than uniting them.
        same = {id(v): v for v in (first, *others) if v is first or v.values.equals(first.values)}
        others = [v for v in others if id(v) not in same]
        union, maps = Vocabulary.union([first, *others]) if others else (first, [np.arange(len(first))])
        own, *new = (ids.astype(np.int32) for ids in maps)
        numbering.vocabulary, numbering.values = union, codec.from_storage(union.values)
        numbering._maps = {id(v): (v, own if others else None) for v in same.values()}
        numbering._maps |= {id(v): (v, ids) for v, ids in zip(others, new, strict=True)}
        return numbering

    def __len__(self) -> int:
        return len(self.vocabulary)

    def map_of(self, vocabulary: Vocabulary) -> NDArray[np.int32] | None:
        """The id of each value of a layer's vocabulary, int32[V], -1 if it has none; None if the layer has
        the same ids.
        """
        known = self._maps.get(id(vocabulary))
        if known is None:
            known = vocabulary, self.vocabulary.find(vocabulary.values)
            if len(self._maps) > 8:  # old layers fill it
                self._maps = {}
            self._maps[id(vocabulary)] = known
        return known[1]

    def translate(self, values: Answer) -> Csr:
        """The ids of an answer's symbols, int32; symbols without an id are left out."""
        ids = self.map_of(values.vocabulary)
        rows = values.csr if ids is None else values.csr.mapped(ids)
        return rows.distinct()  # rows of before the feature had this codec may repeat values


class Candidates:
    """m values to look for, as the caller has them. Each form is made when it is first used. Safe to use from
    several threads.

    Raises RowError: ``given`` has not one dimension. ``values`` raises it if a value is not of the feature's
    type.
    """

    def __init__(self, codec: FeatureCodec, given: Any):
        # `shape_of` a list would make an array of it.
        is_list = type(given) is list and len(given) > 0 and isinstance(given[0], str | bytes)
        if not is_list and not isinstance(given, pa.Array) and len(shape := shape_of(given)) != 1:
            raise RowError(f"values have the shape {shape}; give m values for one entity")
        self._codec = codec
        self._given = given
        self._known: tuple[Numbering, NDArray[np.int32]] | None = None
        self._numbers: NDArray[np.int64] | None = None
        self.is_text = codec.element_kind == "string"
        if codec.element_kind == "int64" and is_unmasked(given) and given.dtype == _INTEGERS:
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
        if is_unmasked(self._given) and self._given.dtype.kind in "OU":
            return list(self._given.tolist())
        return self._given if type(self._given) is list else None

    @cached_property
    def parts(self) -> Parts:
        """Offsets and data of binary values."""
        return parts_of(self.values)

    def check_feature(self, codec: FeatureCodec) -> None:
        """Check that the values are asked about the feature that they were made for.

        Raises RowError: they were made for another feature.
        """
        if codec is not self._codec and codec.element_kind != self._codec.element_kind:
            raise RowError(f"these candidates are of {self._codec.feature!r}, not of {codec.feature!r}")

    def ids(self, numbering: Numbering) -> NDArray[np.int32]:
        """The id of each value, int32[m]; -1 for one that has none."""
        known = self._known
        if known is None or known[0] is not numbering:
            known = self._known = numbering, numbering.vocabulary.find(self.values)
        return known[1]


def shape_of(values: Any) -> tuple[int, ...]:
    """The shape of values that a caller gives. Raises RowError: they have none."""
    try:
        return np.shape(values)
    except ValueError as error:
        raise RowError("rows of values differ in length; give m values for each entity") from error


def as_storage(codec: FeatureCodec, values: Any) -> pa.Array:
    """Values that a caller gives for a feature, in the vocabulary's storage type."""
    kind = codec.arrow_type.value_type if codec.is_collection else codec.arrow_type
    try:
        array = as_array(values, kind)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise RowError(
            f"these are not values of feature {codec.feature!r}, which is of {kind}: {error}"
        ) from error
    if array.null_count:
        raise RowError(f"a value of feature {codec.feature!r} is null")
    return codec.to_storage(array)
