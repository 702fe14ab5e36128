"""Joint vocabularies: one numbering of values for several layers that share the rows.

The values are counted first, in parts, where the rows are. Then each layer is sealed with the common
numbering, so ids, scores of linear models and cuts mean the same in each layer.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.layers.budget import Cut, FeatureBudget
from feast_sketch_store.layers.collect import bins_of, rounded
from feast_sketch_store.rows.binning import Bins
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.encoding import EncodedRows
from feast_sketch_store.rows.formulas import Formula
from feast_sketch_store.rows.vocabulary import Vocabulary

# A scalar with more distinct values than this becomes a column, if it may.
FEW_VALUES = 1_000


class ValueCounts:
    """How many rows have each value of one feature. Not safe to use from several threads at once.

    Vocabularies wait until they are together as long as the merged one. So each value is looked up about
    twice, however many parts there are.
    """

    def __init__(self, storage_type: pa.DataType):
        self._known = Vocabulary(pa.array([], storage_type))
        self._counts = np.zeros(0, np.int64)
        self._waiting: list[tuple[Vocabulary, NDArray[np.int64]]] = []

    def add(self, vocabulary: Vocabulary, counts: NDArray[np.int64]) -> None:
        """Add values, and the number of rows with each: int64[V]."""
        self._waiting.append((vocabulary, counts))
        if sum(len(values) for values, _ in self._waiting) >= len(self._known):
            self._unite()

    def finish(self) -> tuple[Vocabulary, NDArray[np.int64]]:
        """All values that occur, and the number of rows with each: int64[V]."""
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
    """The values of some rows: the result of a task that has a part of the rows.

    ``features`` has by feature its values and the number of rows with each, int64[V].
    """

    num_rows: int
    features: Mapping[str, tuple[Vocabulary, NDArray[np.int64]]]


def count_rows(batches: Iterable[EncodedRows], codecs: Sequence[FeatureCodec]) -> CountedRows:
    """Count the values of the features whose values have ids. ``batches`` have one row per entity."""
    counts = {codec.feature: ValueCounts(codec.storage_type) for codec in codecs if not codec.is_exact}
    num_rows = 0
    for rows in batches:
        num_rows += len(rows)
        for name, known in counts.items():
            feature = rows.features[name]
            known.add(feature.vocabulary, np.bincount(feature.symbols, minlength=len(feature.vocabulary)))
    return CountedRows(num_rows, {name: known.finish() for name, known in counts.items()})


@dataclass(frozen=True)
class SharedVocabularies:
    """The numbering that all layers share, and what follows from it."""

    # by feature. A scalar with so many values that it becomes a column is missing, because its values have no
    # ids
    vocabularies: Mapping[str, Vocabulary] = field(default_factory=dict)
    lists_rows: bool = False  # whether each layer has to list its rows
    num_rows: int = 0  # of all layers together; 0 if not known
    bins: Mapping[str, Bins] = field(default_factory=dict)  # by binned feature
    # by feature that was cut to its memory, how many values are left
    cuts: Mapping[str, int] = field(default_factory=dict)
    formulas: Mapping[str, Formula] = field(default_factory=dict)  # by computed feature
    # membership features with too many values for a filter, and how many
    beyond: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        parts: Sequence[CountedRows],
        codecs: Sequence[FeatureCodec],
        budget: FeatureBudget,
        formulas: Mapping[str, Formula] | None = None,
    ) -> "SharedVocabularies":
        """Number the values of all parts as one layer of all rows would."""
        num_rows = sum(part.num_rows for part in parts)
        vocabularies, bins, beyond, lists_rows = {}, {}, {}, False
        for codec in codecs:
            if codec.is_exact:  # its values have no ids
                continue
            name, together = codec.feature, ValueCounts(codec.storage_type)
            for part in parts:
                together.add(*part.features[name])
            vocabulary, counts = together.finish()
            if codec.binning is not None:
                bins[name] = bins_of(codec, vocabulary, counts)
                _, vocabulary, ids = rounded(codec, vocabulary, counts, bins[name])
                counts = np.bincount(ids, counts, len(vocabulary)).astype(np.int64)
            has_many = name in budget.may_be_columns and len(vocabulary) > FEW_VALUES
            if has_many or (not codec.is_collection and budget.is_beyond(name, len(vocabulary))):
                lists_rows = True
                continue
            vocabularies[name] = _numbered(vocabulary, counts, budget.cuts.get(name))
            if budget.is_beyond(name, len(vocabularies[name])):
                beyond[name] = len(vocabularies[name])
        return cls(vocabularies, lists_rows, num_rows, bins, formulas=formulas or {}, beyond=beyond)

    def budget_of(
        self, budget: FeatureBudget, codecs: Iterable[FeatureCodec], num_rows: int
    ) -> FeatureBudget:
        """The budget of one layer with ``num_rows`` rows: its memory is its share of the rows."""
        share = num_rows / self.num_rows if self.num_rows else 1.0
        cuts = {**budget.cuts, **{name: Cut(top=number) for name, number in self.cuts.items()}}
        shared = replace(budget.shared(share), cuts=cuts, lists_rows=self.lists_rows)
        return shared.without_filters(codec for codec in codecs if codec.feature in self.beyond)

    def cut_to(self, fitting: Sequence[Mapping[str, int]]) -> "SharedVocabularies":
        """Cut features to as many of their most popular values as fit into every layer.

        ``fitting`` says for each layer, by feature, how many values fit into its memory.
        """
        vocabularies, cuts = dict(self.vocabularies), {}
        for name in dict.fromkeys(name for one in fitting for name in one):
            number = min(one[name] for one in fitting)
            if number < len(vocabularies[name]):
                cuts[name] = number
                vocabularies[name] = Vocabulary(
                    pa.concat_arrays([vocabularies[name].values.slice(0, number)])
                )
        return replace(self, vocabularies=vocabularies, cuts=cuts)


def _numbered(vocabulary: Vocabulary, counts: NDArray[np.int64], cut: Cut | None) -> Vocabulary:
    """The values that a cut leaves, the most popular one first."""
    vocabulary, _ = vocabulary.reordered(counts)
    if cut is None:
        return vocabulary
    return cut.kept(vocabulary)
