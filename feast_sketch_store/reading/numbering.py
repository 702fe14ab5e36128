"""Ids of values in a reader's answers: one numbering per feature, whatever the layers are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from feast_sketch_store.errors import RowError, SettingsError
from feast_sketch_store.reading.entities import as_array
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures.base import Answer


class Numbering:
    """The ids of a feature's values, and how the ids of layers map to them.

    Parameters
    ----------
    codec : of the feature.
    values : elements of the feature, in the order of their ids.
    """

    def __init__(self, codec: FeatureCodec, values: Sequence[Any] | NDArray[Any] | pa.Array):
        storage = as_storage(codec, values)
        if len(pc.unique(storage)) != len(storage):
            raise SettingsError(
                f"the vocabulary that was given for feature {codec.feature!r} repeats a value"
            )
        self._has_repetitions = codec.may_repeat
        self.vocabulary = Vocabulary(storage)
        self.values = codec.from_storage(storage)
        self._maps: dict[int, tuple[Vocabulary, NDArray[np.int32]]] = {}
        self._same: dict[int, Vocabulary] = {}

    @classmethod
    def of_all(cls, codec: FeatureCodec, vocabularies: Sequence[Vocabulary]) -> Numbering:
        """All values of several vocabularies; the ids of the first one do not change."""
        numbering = cls.__new__(cls)
        numbering._has_repetitions = codec.may_repeat
        # The shards of a view have equal vocabularies. Comparing two is far cheaper than uniting them.
        same = [v for v in vocabularies[1:] if v.values.equals(vocabularies[0].values)]
        repeated = {id(vocabulary): vocabulary for vocabulary in same}
        vocabularies = [v for v in vocabularies if id(v) not in repeated]
        union = vocabularies[0] if vocabularies else Vocabulary(pa.array([], codec.storage_type))
        maps: Sequence[NDArray[np.integer]] = [np.arange(len(union), dtype=np.int32)][: len(vocabularies)]
        if len(vocabularies) > 1:
            union, maps = Vocabulary.union(vocabularies)
        numbering.vocabulary = vocabularies[0] if len(vocabularies) == 1 else union
        numbering.values = codec.from_storage(union.values)
        numbering._maps = {
            id(part): (part, ids.astype(np.int32)) for part, ids in zip(vocabularies, maps, strict=True)
        }
        numbering._same = repeated if len(vocabularies) == 1 else {}
        numbering._maps |= {id(part): (part, numbering._maps[id(vocabularies[0])][1]) for part in same}
        return numbering

    def __len__(self) -> int:
        return len(self.vocabulary)

    def is_same(self, vocabulary: Vocabulary) -> bool:
        """Whether the ids of a layer with this vocabulary need no translation."""
        return vocabulary is self.vocabulary or id(vocabulary) in self._same

    def map_of(self, vocabulary: Vocabulary) -> NDArray[np.int32]:
        """The id of each value of a layer's vocabulary, int32[V]; -1 if it has none."""
        known = self._maps.get(id(vocabulary))
        if known is None:
            known = vocabulary, self.vocabulary.find(vocabulary.values)
            if len(self._maps) > 8:  # old layers fill it
                self._maps = {}
            self._maps[id(vocabulary)] = known
        return known[1]

    def translate(self, values: Answer) -> Csr:
        """The ids of an answer's symbols, int32; symbols without an id are left out."""
        rows = values.csr.mapped(self.map_of(values.decoder.vocabulary))
        return rows.distinct() if self._has_repetitions else rows


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
