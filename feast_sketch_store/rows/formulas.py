"""Formulas: features that are computed from the sets of their row, and never written.

A score is a sum over the values of a row: a formula has an integer for each value of its sources, adds them
up, multiplies the sum by a unit, and rounds to the nearest multiple of a step. Integer sums do not depend on
order. So a row gets the same score wherever it is computed: at a seal, at a read of unsealed rows, and for
training rows. Values that a formula does not know add nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.rows.codecs import MISSING, VALUE, FeatureCodec
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.encoding import EncodedFeature, EncodedRows
from feast_sketch_store.rows.vocabulary import Vocabulary

_ROWS_PER_CHUNK = 1 << 12


@dataclass(frozen=True)
class Source:
    """The numbers, int32[V], that the V values of a feature in a vocabulary add to a sum."""

    feature: str
    vocabulary: Vocabulary
    weights: NDArray[np.int32]

    def add_to(self, sums: NDArray[np.int64], feature: EncodedFeature) -> None:
        """Add the weights of n rows to their sums, int64[n]."""
        known = self.vocabulary.find(feature.vocabulary.values)
        for first in range(0, len(sums), _ROWS_PER_CHUNK):
            stop = min(first + _ROWS_PER_CHUNK, len(sums))
            part = feature.csr.take(np.arange(first, stop)).mapped(known)
            filled = np.flatnonzero(part.lengths)
            if len(filled):
                weights = self.weights[part.ids]
                sums[first + filled] += np.add.reduceat(weights, part.indptr[filled], dtype=np.int64)


@dataclass(frozen=True)
class Formula:
    """How a feature is computed from others.

    Raises ValueError: the parts do not fit each other.
    """

    codec: FeatureCodec  # of the result, as a layer keeps it
    sources: tuple[Source, ...]  # distinct features, collections without repetitions
    unit: float = 1.0  # the score of 1 in the sum
    step: float = 1.0  # above 0; rounding changes a score by at most half of it
    # increases by 1 whenever a seal changes what the numbers mean; models must then be trained again
    version: int = 1

    def __post_init__(self) -> None:
        if self.codec.value_field != "double_val":
            raise ValueError(f"there is no formula of {self.codec.value_field}")
        if len({source.feature for source in self.sources}) < len(self.sources) or not self.sources:
            raise ValueError("a formula needs at least one source, and each source only once")
        if any(s.weights.dtype != np.int32 or s.weights.shape != (len(s.vocabulary),) for s in self.sources):
            raise ValueError("the weights of a formula do not fit its values")
        if not (0 < self.step < np.inf and 0 < self.unit < np.inf):
            raise ValueError("the unit and the step of a formula must be finite and above 0")

    @property
    def size_bytes(self) -> int:
        """Bytes of the weights and of the vocabularies of sources."""
        return sum(source.weights.nbytes + source.vocabulary.packed_bytes for source in self.sources)

    @property
    def max_error(self) -> float:
        """The largest difference that rounding to steps makes to a score."""
        return self.step / 2

    def scores(self, features: Mapping[str, EncodedFeature], num_rows: int) -> NDArray[np.float64]:
        """The scores of rows before rounding: float64[n]; a source that is missing adds nothing."""
        sums = np.zeros(num_rows, np.int64)
        for source in self.sources:
            if source.feature in features:
                source.add_to(sums, features[source.feature])
        return np.asarray(sums * self.unit)

    def of(self, rows: EncodedRows) -> EncodedFeature:
        """The computed feature of rows; deletions have none."""
        multiples = np.rint(self.scores(rows.features, len(rows)) / self.step)
        distinct, ids = np.unique(multiples + 0.0, return_inverse=True)
        values = self.codec.from_numbers((distinct * self.step).astype(np.float64))
        states = np.where(rows.keys.deleted, MISSING, VALUE).astype(np.uint8)
        csr = Csr.of_lengths(~rows.keys.deleted, ids[~rows.keys.deleted].astype(np.int32))
        return EncodedFeature(self.codec, Vocabulary(values), states, csr)


def with_formulas(rows: EncodedRows, formulas: Mapping[str, Formula]) -> EncodedRows:
    """Rows with computed features added or replaced."""
    if not formulas:
        return rows
    computed = {name: formula.of(rows) for name, formula in formulas.items()}
    return replace(rows, features={**rows.features, **computed})


def same_weights(some: Formula, others: Formula) -> bool:
    """Whether two formulas give the same sums."""
    return (
        some.unit == others.unit
        and len(some.sources) == len(others.sources)
        and all(map(_same_source, some.sources, others.sources))
    )


def _same_source(one: Source, other: Source) -> bool:
    return (
        one.feature == other.feature
        and one.vocabulary.values.equals(other.vocabulary.values)
        and np.array_equal(one.weights, other.weights)
    )
