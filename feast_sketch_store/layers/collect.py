"""Collected features: one feature of all rows, taken up in parts and numbered alike."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.layers.budget import Cut
from feast_sketch_store.layers.sketch import Rounding
from feast_sketch_store.layers.table import Rows
from feast_sketch_store.rows.binning import fit
from feast_sketch_store.rows.codecs import CATEGORICAL, EMPTY, MISSING, VALUE, FeatureCodec
from feast_sketch_store.rows.encoding import EncodedFeature, put_csr, take_csr
from feast_sketch_store.rows.vocabulary import Vocabulary, VocabularyBuilder, narrow
from feast_sketch_store.structures.columns import Column, scalar_bytes, states_width
from feast_sketch_store.structures.costs import Popularity
from feast_sketch_store.structures.set_columns import SetColumns


class CollectedFeature:
    """One feature of all rows, while they come in parts; from `finish` on, ready to be put into a layer."""

    def __init__(self, codec: FeatureCodec, num_rows: int):
        self.codec = codec
        self.states = np.full(num_rows, MISSING, np.uint8)
        self.num_facts = 0
        self.num_cut = 0
        self.counts = np.zeros(0, np.int64)  # of the values of the vocabulary
        self.vocabulary = Vocabulary(pa.array([], codec.storage_type))
        self.rounding: Rounding | None = None
        self._rows: list[tuple[NDArray[np.int32], NDArray[np.int32]]] = []  # places and lengths of each part
        self._symbols: list[NDArray[np.integer]] = []
        self._vocabulary_builder = VocabularyBuilder(codec.storage_type)
        self._final_ids: NDArray[np.integer] | None = None  # of the symbols; None if they are final
        self._is_cut = False

    def add(self, places: NDArray[np.int32], feature: EncodedFeature) -> None:
        """Take up the feature of some rows."""
        self.states[places] = feature.states
        self.num_facts += len(feature.symbols)
        self._rows.append((places, np.diff(feature.indptr).astype(np.int32)))
        self._vocabulary_builder.add(feature.vocabulary, feature.symbols)

    def finish(self, cut: Cut | None = None) -> None:
        """Number the values of all parts alike, and leave out those that are cut."""
        vocabulary, counts, self._symbols = self._vocabulary_builder.finish()
        if self.codec.binning is not None:
            numbers = self.codec.to_numbers(vocabulary.values)
            bins = fit(self.codec.binning, numbers, counts)
            stored = self.codec.from_numbers(bins.representatives)
            bins = replace(bins, representatives=self.codec.to_numbers(stored))
            errors = bins.errors(numbers)
            mean_error = float(errors @ counts) / max(1, counts.sum())
            self.rounding = Rounding(bins, float(errors.max(initial=0.0)), mean_error)
            # Bins may share what stands for them.
            kept, kept_ids = Vocabulary.union([Vocabulary(stored)])
            ids = kept_ids[0][bins.find(numbers)]
            kept_counts = np.bincount(ids, counts, len(kept)).astype(np.int64)
            self.vocabulary, popularity = kept.reordered(kept_counts)
            self.counts = -np.sort(-kept_counts)
            self._final_ids = narrow(popularity[ids], len(kept))
        elif self.codec.is_exact:
            self.vocabulary = vocabulary
        else:
            self.vocabulary, popularity = vocabulary.reordered(counts)
            self.counts = -np.sort(-counts)
            self._final_ids = narrow(popularity, len(vocabulary))
            if cut is not None:
                self._cut(cut.kept(self.vocabulary, self.counts, len(self.states)))

    def _cut(self, is_kept: NDArray[np.bool_]) -> None:
        """Leave out values. A row of which nothing is left has an empty set."""
        self.vocabulary = Vocabulary(self.vocabulary.values.filter(pa.array(is_kept)))
        self.num_cut = int(self.counts[~is_kept].sum())
        self.num_facts -= self.num_cut
        self.counts = self.counts[is_kept]
        new_ids = np.cumsum(is_kept) - 1
        rows, symbols = [], []
        for places, indptr, old_ids in self.rows():
            left = np.concatenate(([0], np.cumsum(is_kept[old_ids])))[indptr]
            lengths = np.diff(left)
            self.states[places[(lengths == 0) & (self.states[places] == VALUE)]] = EMPTY
            rows.append((places, lengths.astype(np.int32)))
            symbols.append(narrow(new_ids[old_ids[is_kept[old_ids]]], len(self.vocabulary)))
        self._rows, self._symbols, self._final_ids = rows, symbols, None

    @property
    def sealed_codec(self) -> FeatureCodec:
        """How a layer keeps the feature: a bin is a category like any other."""
        return replace(self.codec, name=CATEGORICAL, binning=None) if self.codec.binning else self.codec

    def rows(self) -> Rows:
        """The facts of each part, which is let go when it has been used."""
        while self._rows:
            yield self._part(*self._rows.pop(), self._symbols.pop())

    def kept_rows(self) -> Rows:
        """The facts of each part, which may be asked for again."""
        for (places, lengths), symbols in zip(self._rows, self._symbols, strict=True):
            yield self._part(places, lengths, symbols)

    def release(self) -> None:
        """Let all facts go."""
        self._rows, self._symbols = [], []

    def _part(
        self, places: NDArray[np.int32], lengths: NDArray[np.int32], symbols: NDArray[np.integer]
    ) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.integer]]:
        indptr = np.zeros(len(places) + 1, np.int64)
        np.cumsum(lengths, out=indptr[1:])
        return places, indptr, symbols if self._final_ids is None else self._final_ids[symbols]

    def popularity(self, num_coded: int) -> Popularity:
        """How often each symbol occurs, with so many of the rows coded as sets on trial."""
        coded = None
        if num_coded:
            coded = SetColumns.row_bits(self.counts, self.states[:num_coded], *self._first_rows(num_coded))
        num_empty = int((self.states != VALUE).sum())
        return Popularity(self.counts, len(self.states), num_empty, coded, states_width(self.states))

    def _first_rows(self, num_rows: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """The symbols of the first rows as a CSR matrix. In the order of hashes these are like any others."""
        parts = []
        sizes = np.zeros(num_rows, np.int64)
        for places, indptr, symbols in self.kept_rows():
            chosen = np.flatnonzero(places < num_rows)
            parts.append((places[chosen], *take_csr(indptr, symbols.astype(np.int32), chosen)))
            sizes[parts[-1][0]] = np.diff(parts[-1][1])
        whole = np.concatenate(([0], np.cumsum(sizes)))
        ids = np.empty(whole[-1], np.int32)
        for places, indptr, symbols in parts:
            put_csr(whole, ids, places.astype(np.int64), indptr, symbols)
        return whole, ids

    def to_column(self, order: NDArray[np.int64]) -> Column:
        """The feature of all rows, by row, in the order that is given: int64[num_rows]."""
        indptr, symbols = in_order([self], order)
        return Column.build(self.sealed_codec, self.states[order], indptr, self.vocabulary, symbols)

    @property
    def column_bytes(self) -> int:
        """Bytes of the column of a scalar."""
        return scalar_bytes(self.sealed_codec, self.states, self.vocabulary, self.counts)

    def lengths(self) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int32]]]:
        """Per part the places of its rows, and how many values each has."""
        yield from self._rows


def in_order(
    features: Sequence[CollectedFeature], order: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The symbols of F features of all rows, in the order that is given: int64[num_rows].

    Returns
    -------
    int64[num_rows * F + 1] and int32[nnz]: row ``r * F + f`` of this CSR matrix is feature ``f`` of row
    ``r``.
    """
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order)) * len(features)
    indptr = np.zeros(len(order) * len(features) + 1, np.int64)
    for number, feature in enumerate(features, start=1):
        for places, lengths in feature.lengths():
            indptr[ranks[places] + number] = lengths
    np.cumsum(indptr, out=indptr)
    symbols = np.zeros(indptr[-1], np.int32)
    for number, feature in enumerate(features):
        for places, starts, part in feature.rows():
            # Facts of a row stand one behind the other in the part, and so they shall here.
            put_csr(indptr, symbols, ranks[places] + number, starts, part)
    return indptr, symbols
