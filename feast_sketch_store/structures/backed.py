"""Backed features: another store has the values, and sealed rows know only whether there is one.

The layer keeps the state of every row and feature, so this structure keeps only names.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.kernel import PreparedRows
from feast_sketch_store.rows.codecs import BACKING, Decoder, FeatureCodec
from feast_sketch_store.rows.encoding import EncodedFeature
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures.answer import Answer
from feast_sketch_store.structures.base import RowsToSeal, SealedFeature, Structure
from feast_sketch_store.structures.costs import Popularity
from feast_sketch_store.structures.feature_rows import FeatureRows
from feast_sketch_store.structures.goals import Goal, Offer
from feast_sketch_store.structures.parts import Described, Parts, checked
from feast_sketch_store.structures.prepared import begin_feature


@dataclass(frozen=True)
class BackedFeature(SealedFeature):
    """A feature of which only states are known. For a row with a value, its answer has no symbol."""

    codec: FeatureCodec

    structure = BACKING
    num_facts = 0

    @property
    def vocabulary(self) -> Vocabulary:  # type: ignore[override]
        """No values."""
        return Vocabulary(pa.array([], self.codec.storage_type))

    def prepare(self, rows: PreparedRows) -> None:
        """See `SealedFeature.prepare`."""
        begin_feature(rows, self.codec, None)
        rows.from_states()

    def shown(self, rows: EncodedFeature, entity_hashes: NDArray[np.uint64]) -> Answer:
        """See `SealedFeature.shown`: the values as they were written."""
        return Answer(Decoder(self.codec, rows.vocabulary), rows.states, rows.csr)

    def missing(
        self, rows: EncodedFeature, entity_hashes: NDArray[np.uint64], answer: Answer
    ) -> Iterator[str]:
        """See `SealedFeature.missing`: which rows have a value."""
        differ = int((rows.states != answer.states).sum())
        if differ:
            yield f"has wrong states of feature {self.codec.feature!r} in {differ} rows"


@dataclass(frozen=True)
class Backed(Structure):
    """The backed features of a layer."""

    features: Mapping[str, BackedFeature]

    kind = "backed"
    codecs = (BACKING,)
    size_bytes = 0
    fact_bits = 0

    def size_bytes_of(self, feature: str) -> float:
        """Nothing."""
        return 0.0

    @classmethod
    def offer(cls, goal: Goal, popularity: Popularity) -> Offer | None:
        """See `Structure.offer`: a codec chooses this structure, never a goal."""
        return None

    @classmethod
    def build(cls, features: Sequence[tuple[FeatureRows, Any]], rows: RowsToSeal) -> Self:
        """See `Structure.build`; there are no plans."""
        for feature, _ in features:
            feature.release()
        codecs = [feature.sealed_codec for feature, _ in features]
        return cls({codec.feature: BackedFeature(codec) for codec in codecs})

    def to_snapshot(self) -> Described:
        """See `Structure.to_snapshot`."""
        codecs = [feature.codec for feature in self.features.values()]
        entries = [{"name": codec.feature, "value_field": codec.value_field} for codec in codecs]
        return {"features": entries}, {}

    @classmethod
    def from_snapshot(cls, description: Mapping[str, Any], parts: Parts) -> Self:
        """See `Structure.from_snapshot`."""
        codecs = [
            FeatureCodec(checked(entry["name"], str), entry["value_field"], BACKING)
            for entry in description["features"]
        ]
        features = {codec.feature: BackedFeature(codec) for codec in codecs}
        if len(features) != len(codecs):
            raise ValueError("a backed feature is named twice")
        return cls(features)
