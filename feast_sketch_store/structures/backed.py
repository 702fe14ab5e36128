"""Backed features: another store has the values, and sealed rows know only whether there is one.

The layer keeps the state of every row and feature, so this structure keeps only names.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.kernel import RowReader
from feast_sketch_store.rows.codecs import BACKING, FeatureCodec
from feast_sketch_store.rows.encoding import EncodedFeature
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures.base import Answer, SeparateFeature, SeparateFeatures, begin_feature
from feast_sketch_store.structures.feature_rows import FeatureRows
from feast_sketch_store.structures.parts import Described, Parts, checked


@dataclass(frozen=True)
class BackedFeature(SeparateFeature):
    """A feature of which only states are known. For a row with a value, its answer has no symbol."""

    codec: FeatureCodec

    structure = BACKING
    num_facts = 0
    size_bytes = 0

    @property
    def vocabulary(self) -> Vocabulary:  # type: ignore[override]
        """No values."""
        return Vocabulary(pa.array([], self.codec.storage_type))

    def __len__(self) -> int:
        return 0

    @classmethod
    def build(cls, feature: FeatureRows, order: NDArray[np.int64] | None) -> Self:
        """See `SeparateFeature.build`."""
        feature.release()
        return cls(feature.sealed_codec)

    def prepare(self, rows: RowReader) -> None:
        """See `SealedFeature.prepare`."""
        begin_feature(rows, self.codec, None)
        rows.from_states()

    def missing(
        self, rows: EncodedFeature, entity_hashes: NDArray[np.uint64], answer: Answer
    ) -> Iterator[str]:
        """See `SealedFeature.missing`: which rows have a value."""
        differ = int((rows.states != answer.states).sum())
        if differ:
            yield f"has wrong states of feature {self.codec.feature!r} in {differ} rows"

    def to_snapshot(self) -> Described:
        """See `SeparateFeature.to_snapshot`."""
        return {"name": self.codec.feature, "value_field": self.codec.value_field}, {}

    @classmethod
    def from_snapshot(cls, entry: Mapping[str, Any], parts: Parts) -> Self:
        """See `SeparateFeature.from_snapshot`."""
        return cls(FeatureCodec(checked(entry["name"], str), entry["value_field"], BACKING))


class Backed(SeparateFeatures):
    """The backed features of a layer."""

    kind = "backed"
    codecs = (BACKING,)
    feature_type = BackedFeature
