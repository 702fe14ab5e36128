"""Joint vocabularies: the values of rows that several layers divide among them, numbered alike for all.

Rows are counted first, in parts and wherever they are; then each layer is sealed with the numbering of all of
them, so an id, a score of a linear model and a cut mean the same in each.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.layers.budget import Cut, FeatureBudget
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.encoding import EncodedRows
from feast_sketch_store.rows.vocabulary import Vocabulary

# Different values that a scalar may have in a filter, if it may be a column instead.
FEW_VALUES = 1_000


class ValueCounts:
    """How many rows have each value of one feature. Not safe to use from several threads at once.

    Vocabularies wait until together they are as long as the known one. So a value is looked up about twice,
    however many parts there are.
    """

    def __init__(self, storage_type: pa.DataType):
        self._known = Vocabulary(pa.array([], storage_type))
        self._counts = np.zeros(0, np.int64)
        self._waiting: list[tuple[Vocabulary, NDArray[np.int64]]] = []

    def add(self, vocabulary: Vocabulary, counts: NDArray[np.int64]) -> None:
        """Take up values, and how many rows have each: int64[V]."""
        self._waiting.append((vocabulary, counts))
        if sum(len(values) for values, _ in self._waiting) >= len(self._known):
            self._unite()

    def finish(self) -> tuple[Vocabulary, NDArray[np.int64]]:
        """All values that some row has, and how many rows have each: int64[V]."""
        if self._waiting:
            self._unite()
        is_used = self._counts > 0
        if is_used.all():
            return self._known, self._counts
        return Vocabulary(self._known.values.filter(pa.array(is_used))), self._counts[is_used]

    def _unite(self) -> None:
        parts = [(self._known, self._counts), *self._waiting]
        self._known, new_ids = Vocabulary.union([vocabulary for vocabulary, _ in parts])
        counts = np.zeros(len(self._known), np.int64)
        for (_, part), ids in zip(parts, new_ids, strict=True):
            counts[ids] += part  # ids of one vocabulary are distinct
        self._counts, self._waiting = counts, []


@dataclass(frozen=True)
class CountedRows:
    """The values of some rows: what a task that has a part of the rows hands over.

    ``features`` gives per feature its values and how many rows have each, int64[V].
    """

    num_rows: int
    features: Mapping[str, tuple[Vocabulary, NDArray[np.int64]]]


def count_rows(batches: Iterable[EncodedRows], codecs: Sequence[FeatureCodec]) -> CountedRows:
    """Count the values of rows, one per entity; of features whose values have ids."""
    counts = {codec.feature: ValueCounts(codec.storage_type) for codec in codecs if is_numbered(codec)}
    num_rows = 0
    for rows in batches:
        num_rows += len(rows)
        for name, known in counts.items():
            feature = rows.features[name]
            known.add(feature.vocabulary, np.bincount(feature.symbols, minlength=len(feature.vocabulary)))
    return CountedRows(num_rows, {name: known.finish() for name, known in counts.items()})


def is_numbered(codec: FeatureCodec) -> bool:
    """Whether the values of a feature have ids that may be given."""
    return not codec.is_exact and not codec.is_backed and codec.binning is None


@dataclass(frozen=True)
class JointVocabularies:
    """The numbering for all layers, and whether their rows have to be listed because of it.

    ``vocabularies`` lack scalars with too many values for a vocabulary: they become columns, whose
    values have no ids.
    """

    vocabularies: Mapping[str, Vocabulary]
    lists_rows: bool

    @classmethod
    def of(cls, parts: Sequence[CountedRows], budget: FeatureBudget) -> "JointVocabularies":
        """Number the values of all parts as one layer of all rows would."""
        num_rows = sum(part.num_rows for part in parts)
        vocabularies, lists_rows = {}, False
        for name in dict.fromkeys(name for part in parts for name in part.features):
            counted = [part.features[name] for part in parts if name in part.features]
            together = ValueCounts(counted[0][0].values.type)
            for vocabulary, counts in counted:
                together.add(vocabulary, counts)
            vocabulary, counts = together.finish()
            if name in budget.may_be_columns and len(vocabulary) > FEW_VALUES:
                lists_rows = True
            else:
                vocabularies[name] = _numbered(vocabulary, counts, budget.cuts.get(name), num_rows)
        return cls(vocabularies, lists_rows)


def _numbered(
    vocabulary: Vocabulary, counts: NDArray[np.int64], cut: Cut | None, num_rows: int
) -> Vocabulary:
    """The values from the most popular one on, those that a cut leaves."""
    vocabulary, _ = vocabulary.reordered(counts)
    if cut is None:
        return vocabulary
    is_kept = cut.kept(vocabulary, -np.sort(-counts), num_rows)
    return Vocabulary(vocabulary.values.filter(pa.array(is_kept)))
