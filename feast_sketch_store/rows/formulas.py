"""Formulas: features that are computed from the sets of their row, and never written.

A formula maps each value of its sources to C integers, and adds them up over the values of a row:

    cluster   the index of the greatest of C sums: the group of entities that the row fits best
    score     the only sum, times a unit, rounded to the nearest multiple of a step

Integer sums do not depend on order. So a row gets the same result wherever it is computed: at a seal, at a
read of unsealed rows, and for training rows. Values that a formula does not know add nothing.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.rows.codecs import CLUSTER, MISSING, SCORE, VALUE, FeatureCodec
from feast_sketch_store.rows.encoding import EncodedFeature, EncodedRows
from feast_sketch_store.rows.vocabulary import Vocabulary

_ROWS_PER_CHUNK = 1 << 12
WEIGHT_TYPES: Mapping[str, np.dtype[Any]] = {CLUSTER: np.dtype(np.uint8), SCORE: np.dtype(np.int32)}


@dataclass(frozen=True)
class Source:
    """The numbers that the values of one feature add to the sums.

    Parameters
    ----------
    feature : its name.
    vocabulary : the V values that add something.
    weights : uint8[V, C] for clusters, int32[V, 1] for a score.
    """

    feature: str
    vocabulary: Vocabulary
    weights: NDArray[Any]

    def add_to(self, sums: NDArray[np.int64], feature: EncodedFeature) -> None:
        """Add the weights of n rows to their sums, int64[n, C]."""
        known = self.vocabulary.find(feature.vocabulary.values)
        for first in range(0, len(sums), _ROWS_PER_CHUNK):
            stop = min(first + _ROWS_PER_CHUNK, len(sums))
            part = feature.csr.take(np.arange(first, stop)).mapped(known)
            filled = np.flatnonzero(part.lengths)
            if len(filled):
                weights = self.weights[part.ids]
                sums[first + filled] += np.add.reduceat(weights, part.indptr[filled], axis=0, dtype=np.int64)


@dataclass(frozen=True)
class Formula:
    """How a feature is computed from others.

    Parameters
    ----------
    codec : of the result, as a layer keeps it.
    kind : ``cluster`` or ``score``.
    sources : distinct features, collections without repetitions.
    offsets : int64[C], the sums of a row without values.
    unit : the score that 1 in the sum stands for.
    step : of a score, above 0; rounding changes a score by at most half of it.
    version : increases by 1 whenever a seal changes what the numbers mean; models must then be trained again.

    Raises
    ------
    ValueError : the parts do not fit each other.
    """

    codec: FeatureCodec
    kind: str
    sources: tuple[Source, ...]
    offsets: NDArray[np.int64]
    unit: float = 1.0
    step: float = 1.0
    version: int = 1

    def __post_init__(self) -> None:
        wanted, width = WEIGHT_TYPES.get(self.kind), len(self.offsets)
        if wanted is None or self.codec.value_field not in VALUE_FIELDS[self.kind]:
            raise ValueError(f"there is no formula {self.kind!r} of {self.codec.value_field}")
        if len({source.feature for source in self.sources}) < len(self.sources) or not self.sources:
            raise ValueError("a formula needs at least one source, and each source only once")
        if any(
            s.weights.dtype != wanted or s.weights.shape != (len(s.vocabulary), width) for s in self.sources
        ):
            raise ValueError("the weights of a formula do not fit its values")
        if not width or (self.kind == SCORE and width > 1):
            raise ValueError(f"a formula {self.kind!r} cannot have {width} sums")
        if not (0 < self.step < np.inf and 0 < self.unit < np.inf):
            raise ValueError("the unit and the step of a formula must be finite and above 0")

    @property
    def num_clusters(self) -> int:
        """The number of clusters; 1 for a score."""
        return len(self.offsets)

    @property
    def digest(self) -> bytes:
        """A hash of what decides the results: formulas with equal digests give equal results."""
        arrays = [self.offsets, *(source.weights for source in self.sources)]
        parts = [np.ascontiguousarray(array).tobytes() for array in arrays]
        parts += [str(source.vocabulary.values.to_pylist()).encode() for source in self.sources]
        head = repr((self.kind, self.unit, self.step, [source.feature for source in self.sources])).encode()
        return hashlib.blake2b(head + b"".join(parts)).digest()

    def sources_are(self, names: Sequence[str]) -> bool:
        """Whether these are the sources of the formula."""
        return [source.feature for source in self.sources] == list(names)

    @property
    def size_bytes(self) -> int:
        """Bytes of the weights and of the vocabularies of sources."""
        return self.offsets.nbytes + sum(
            source.weights.nbytes + source.vocabulary.packed_bytes for source in self.sources
        )

    @property
    def max_error(self) -> float | None:
        """The largest difference that rounding to steps makes to a score; None for clusters."""
        return self.step / 2 if self.kind == SCORE else None

    def sums(self, features: Mapping[str, EncodedFeature], num_rows: int) -> NDArray[np.int64]:
        """The sums of rows: int64[n, C]; a source that is missing adds nothing."""
        sums = np.repeat(self.offsets[None], num_rows, axis=0)
        for source in self.sources:
            if source.feature in features:
                source.add_to(sums, features[source.feature])
        return sums

    def scores(self, features: Mapping[str, EncodedFeature], num_rows: int) -> NDArray[np.float64]:
        """The scores of rows before rounding: float64[n]."""
        return np.asarray(self.sums(features, num_rows)[:, 0] * self.unit)

    def clusters(self, features: Mapping[str, EncodedFeature], num_rows: int) -> NDArray[np.int64]:
        """The clusters of rows: int64[n]; the first one if sums are equal."""
        found = [np.zeros(0, np.int64)]
        for first in range(0, num_rows, _ROWS_PER_CHUNK):
            rows = np.arange(first, min(first + _ROWS_PER_CHUNK, num_rows))
            wanted = {
                s.feature: features[s.feature].take(rows) for s in self.sources if s.feature in features
            }
            found.append(self.sums(wanted, len(rows)).argmax(1))
        return np.concatenate(found)

    def of(self, rows: EncodedRows) -> EncodedFeature:
        """The computed feature of rows; deletions have none."""
        features, num_rows = rows.features, len(rows)
        if self.kind == CLUSTER:
            distinct, ids = np.unique(self.clusters(features, num_rows), return_inverse=True)
            values = pa.array(distinct, pa.int64())
        else:
            multiples = np.rint(self.scores(features, num_rows) / self.step)
            distinct, ids = np.unique(multiples + 0.0, return_inverse=True)
            values = self.codec.from_numbers((distinct * self.step).astype(np.float64))
        states = np.where(rows.keys.deleted, MISSING, VALUE).astype(np.uint8)
        indptr = np.concatenate(([0], np.cumsum(~rows.keys.deleted)))
        symbols = ids[~rows.keys.deleted].astype(np.int32)
        return EncodedFeature(self.codec, Vocabulary(values), states, indptr, symbols)


# The fields of Feast's ``Value`` that the result of a formula can have.
VALUE_FIELDS = {CLUSTER: ("int64_val",), SCORE: ("double_val",)}


def with_formulas(rows: EncodedRows, formulas: Mapping[str, Formula]) -> EncodedRows:
    """Rows with computed features added or replaced."""
    if not formulas:
        return rows
    computed = {name: formula.of(rows) for name, formula in formulas.items()}
    return replace(rows, features={**rows.features, **computed})


def same_weights(some: Formula, others: Formula) -> bool:
    """Whether two formulas give the same sums."""
    return (
        some.kind == others.kind
        and some.unit == others.unit
        and np.array_equal(some.offsets, others.offsets)
        and len(some.sources) == len(others.sources)
        and all(map(_same_source, some.sources, others.sources))
    )


def _same_source(one: Source, other: Source) -> bool:
    return (
        one.feature == other.feature
        and one.vocabulary.values.equals(other.vocabulary.values)
        and np.array_equal(one.weights, other.weights)
    )
