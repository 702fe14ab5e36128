"""Collected features: one feature of all rows, taken up in parts and numbered alike."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.layers.budget import Cut
from feast_sketch_store.layers.rounding import bins_of, rounded
from feast_sketch_store.rows.binning import Bins, Rounding
from feast_sketch_store.rows.codecs import CATEGORICAL, EMPTY, MISSING, VALUE, FeatureCodec
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.encoding import EncodedFeature
from feast_sketch_store.rows.vocabulary import Vocabulary, VocabularyBuilder, narrow
from feast_sketch_store.structures.columns import scalar_bytes, states_width
from feast_sketch_store.structures.costs import Popularity, descending
from feast_sketch_store.structures.feature_rows import Part, first_rows
from feast_sketch_store.structures.set_columns import SetColumns


class CollectedFeature:
    """One feature of all rows, while they come in parts; from `finish` on, ready to be put into a layer."""

    def __init__(self, codec: FeatureCodec, num_rows: int):
        self.codec = codec
        self.states = np.full(num_rows, MISSING, np.uint8)
        self.num_facts = 0
        self.num_cut = 0
        self.counts = np.zeros(0, np.int64)  # of the values of the vocabulary
        self.is_numbered = False
        self.vocabulary = Vocabulary(pa.array([], codec.storage_type))
        self.rounding: Rounding | None = None
        self._rows: list[tuple[NDArray[np.int32], NDArray[np.int32]]] = []  # places and lengths of each part
        self._symbols: list[NDArray[np.integer]] = []
        self._times: list[NDArray[np.int64] | None] = []  # of a list, and of nothing else
        self._vocabulary_builder = VocabularyBuilder(codec.storage_type)
        self._final_ids: NDArray[np.integer] | None = None  # of the symbols; None if they are final
        self.is_cut = False  # whether not all values are kept

    def add(self, places: NDArray[np.int32], feature: EncodedFeature) -> None:
        """Take up the feature of some rows."""
        self.states[places] = feature.states
        if self.codec.is_backed:
            return
        self.num_facts += len(feature.symbols)
        self._rows.append((places, feature.csr.lengths.astype(np.int32)))
        self._times.append(feature.times)
        self._vocabulary_builder.add(feature.vocabulary, feature.symbols)

    def finish(
        self, cut: Cut | None = None, given: Vocabulary | None = None, bins: Bins | None = None
    ) -> None:
        """Number the values of all parts alike, and leave out those that are cut.

        Parameters
        ----------
        given : the values in the order of their ids, those that a cut leaves if there is one; None to number
            them from the most popular one on. Exact features always number their values themselves. Those
            of a binned feature are what is read of its bins.
        bins : of a binned feature; None for bins of its own.

        Raises
        ------
        ValueError : there are values that were not given.
        """
        vocabulary, counts, self._symbols = self._vocabulary_builder.finish()
        if self.codec.binning is not None:
            bins = bins or bins_of(self.codec, vocabulary, counts)
            self.rounding, values, ids = rounded(self.codec, vocabulary, counts, bins)
            if given is None:
                self.vocabulary, places = values.reordered(
                    np.bincount(ids, counts, len(values)).astype(np.int64)
                )
            else:
                self.vocabulary, places = given, given.find(values.values)
                self.is_numbered = True
            ids = places[ids].astype(np.int64)
            if (ids < 0).any():
                raise ValueError(f"feature {self.codec.feature!r} has bins outside of those that were given")
            self.counts = np.bincount(ids, counts, len(self.vocabulary)).astype(np.int64)
            self._final_ids = narrow(ids, len(self.vocabulary))
        elif self.codec.is_exact:
            self.vocabulary = vocabulary
        elif given is None:
            self.vocabulary, popularity = vocabulary.reordered(counts)
            self.counts = -np.sort(-counts)
            self._final_ids = narrow(popularity, len(vocabulary))
            self.is_cut = cut is not None
            if cut is not None:
                is_kept = cut.kept(self.vocabulary, self.counts, len(self.states))
                kept = Vocabulary(self.vocabulary.values.filter(pa.array(is_kept)))
                self._renumber(np.where(is_kept, np.cumsum(is_kept) - 1, -1), kept)
        else:
            given_ids = given.find(vocabulary.values)
            if cut is None and (is_unknown := given_ids < 0).any():
                raise ValueError(
                    f"feature {self.codec.feature!r} has {int(is_unknown.sum())} values outside of the "
                    "vocabulary that was given"
                )
            self.counts = counts
            self.is_numbered = True
            self._renumber(given_ids, given)

    def _renumber(self, new_ids: NDArray[np.integer], vocabulary: Vocabulary) -> None:
        """Give values other ids, and leave out those whose id is negative.

        A row that loses all its values has an empty set.
        """
        is_kept = new_ids >= 0
        self.num_cut = int(self.counts[~is_kept].sum())
        self.num_facts -= self.num_cut
        counts, self.vocabulary = self.counts[is_kept], vocabulary
        self.counts = np.zeros(len(vocabulary), np.int64)
        self.counts[new_ids[is_kept]] = counts
        narrow_ids = new_ids.astype(np.int32)
        rows: list[tuple[NDArray[np.int32], NDArray[np.int32]]] = []
        symbols: list[NDArray[np.integer]] = []
        times: list[NDArray[np.int64] | None] = []
        for places, part in self.rows():
            left = part.mapped(narrow_ids)
            self.states[places[(left.lengths == 0) & (self.states[places] == VALUE)]] = EMPTY
            rows.append((places, left.lengths.astype(np.int32)))
            symbols.append(narrow(left.ids, len(vocabulary)))
            times.append(left.weights)
        self._rows, self._symbols, self._times, self._final_ids = rows, symbols, times, None

    def keep_top(self, number: int) -> None:
        """Keep only the first ``number`` values."""
        num_cut, ids = self.num_cut, np.arange(len(self.vocabulary))
        self._renumber(np.where(ids < number, ids, -1), self._first_values(number))
        self.num_cut += num_cut
        self.is_cut = True

    def vocabulary_bytes_of(self, number: int) -> int:
        """Bytes that the first ``number`` values take in a snapshot."""
        return self._first_values(number).packed_bytes

    def _first_values(self, number: int) -> Vocabulary:
        return Vocabulary(pa.concat_arrays([self.vocabulary.values.slice(0, number)]))

    @property
    def sealed_codec(self) -> FeatureCodec:
        """How a layer keeps the feature: a bin is a category like any other."""
        return replace(self.codec, name=CATEGORICAL, binning=None) if self.codec.binning else self.codec

    def rows(self) -> Iterator[Part]:
        """The facts of each part, which is released after use."""
        while self._rows:
            yield self._part(*self._rows.pop(), self._symbols.pop(), self._times.pop())

    def kept_rows(self) -> Iterator[Part]:
        """The facts of each part, which may be asked for again."""
        for (places, lengths), symbols, times in zip(self._rows, self._symbols, self._times, strict=True):
            yield self._part(places, lengths, symbols, times)

    def release(self) -> None:
        """Let all facts go."""
        self._rows, self._symbols, self._times = [], [], []

    def _part(
        self,
        places: NDArray[np.int32],
        lengths: NDArray[np.int32],
        symbols: NDArray[np.integer],
        times: NDArray[np.int64] | None,
    ) -> tuple[NDArray[np.int32], Csr]:
        ids = symbols if self._final_ids is None else self._final_ids[symbols]
        return places, replace(Csr.of_lengths(lengths, ids), weights=times)

    def popularity(self, num_coded: int) -> Popularity:
        """How often each symbol occurs, with ``num_coded`` rows coded as sets on trial."""
        coded, gaps = None, None
        if num_coded:
            trial = SetColumns.trial(self.counts, self.states[:num_coded], first_rows(self, num_coded))
            coded = trial.row_bits
            if trial.is_large or num_coded == len(self.states):
                gaps = trial.gaps
        num_empty = int((self.states != VALUE).sum())
        counts, width = descending(self.counts), states_width(self.states)
        return Popularity(counts, len(self.states), num_empty, coded, width, gaps=gaps)

    @property
    def column_bytes(self) -> int:
        """Bytes of the column of a scalar."""
        return scalar_bytes(self.sealed_codec, self.states, self.vocabulary, self.counts)

    def lengths(self) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int32]]]:
        """Per part the places of its rows, and how many values each has."""
        yield from self._rows
