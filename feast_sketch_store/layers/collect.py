"""Collected features: one feature of all rows, added in parts and numbered alike.

Binned features become categories: each has the bin of a number, and the value that a read gives for the bin.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.layers.budget import Cut
from feast_sketch_store.rows.binning import Bins, Rounding, fit
from feast_sketch_store.rows.codecs import CATEGORICAL, EMPTY, MISSING, VALUE, FeatureCodec
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.encoding import EncodedFeature
from feast_sketch_store.rows.spill import Spill, SpilledArrays
from feast_sketch_store.rows.vocabulary import Vocabulary, VocabularyBuilder, narrow
from feast_sketch_store.structures.columns import scalar_bytes, states_width
from feast_sketch_store.structures.costs import Popularity
from feast_sketch_store.structures.feature_rows import Part, first_rows
from feast_sketch_store.structures.set_columns import SetColumns


def bins_of(codec: FeatureCodec, vocabulary: Vocabulary, counts: NDArray[np.int64]) -> Bins:
    """Fit bins to numbers and how often each occurs, int64[V]."""
    assert codec.binning is not None
    bins = fit(codec.binning, codec.to_numbers(vocabulary.values), counts, codec.ends)
    stored = codec.from_numbers(bins.representatives)
    return replace(bins, representatives=codec.to_numbers(stored))


def rounded(
    codec: FeatureCodec, vocabulary: Vocabulary, counts: NDArray[np.int64], bins: Bins
) -> tuple[Rounding, Vocabulary, NDArray[np.int64]]:
    """The values that reads give for numbers that occur ``counts`` times, int64[V].

    Returns the rounding and its errors, the distinct values of all bins, and the index of each number's value
    among them: int64[V].
    """
    numbers = codec.to_numbers(vocabulary.values)
    errors = bins.errors(numbers)
    max_error = float(errors.max(initial=0.0))
    with np.errstate(over="ignore"):  # of a sum of huge errors
        mean_error = min(max_error, float(errors @ counts / max(1, counts.sum())))
    # Bins may share a representative.
    values, (of_bins,) = Vocabulary.union([Vocabulary(codec.from_numbers(bins.representatives))])
    rounding = Rounding(bins, max_error, mean_error)
    return rounding, values, of_bins[bins.find(numbers)] if len(numbers) else np.zeros(0, np.int64)


class _Parts:
    """The facts of rows that came in parts, set aside."""

    def __init__(self, codec: FeatureCodec, spill: Spill):
        self.places, self.lengths = SpilledArrays(spill), SpilledArrays(spill)
        self.symbols = SpilledArrays(spill)  # of each part; that of one that was just added may come later
        self._weights = SpilledArrays(spill) if codec.is_weighted else None

    def __len__(self) -> int:
        return len(self.places)

    def add_rows(self, places: NDArray[np.int32], rows: Csr) -> None:
        """Add a part without its symbols."""
        self.places.append(places)
        self.lengths.append(rows.lengths.astype(np.int32))
        if self._weights is not None:
            self._weights.append(rows.numbers)

    def __getitem__(self, number: int) -> Part:
        weights = None if self._weights is None else self._weights[number]
        return self.places[number], Csr.of_lengths(self.lengths[number], self.symbols[number], weights)

    def pop(self) -> Part:
        """Remove and return the last part."""
        weights = None if self._weights is None else self._weights.pop()
        return self.places.pop(), Csr.of_lengths(self.lengths.pop(), self.symbols.pop(), weights)


class CollectedFeature:
    """One feature of all rows, set aside. Rows are added in parts; `finish` makes it ready for a layer."""

    def __init__(self, codec: FeatureCodec, num_rows: int, spill: Spill | None = None):
        self.codec = codec
        self._spill = spill or Spill()
        self.states = np.full(num_rows, MISSING, np.uint8)
        self.num_facts = 0
        self.num_cut = 0
        self.counts = np.zeros(0, np.int64)  # rows with each value of the vocabulary
        self.is_numbered = False
        self.vocabulary = Vocabulary(pa.array([], codec.storage_type))
        self.rounding: Rounding | None = None
        self._parts = _Parts(codec, self._spill)
        self._vocabulary_builder = VocabularyBuilder(codec.storage_type, self._parts.symbols)
        self._final_ids: NDArray[np.integer] | None = None  # by symbol; None if symbols are final ids
        self.is_cut = False  # whether values are left out, of later rows, too

    def add(self, places: NDArray[np.int32], feature: EncodedFeature) -> None:
        """Add the feature of some rows."""
        self.states[places] = feature.states
        if self.codec.is_backed:
            return
        self.num_facts += len(feature.symbols)
        self._parts.add_rows(places, feature.csr)
        self._vocabulary_builder.add(feature.vocabulary, feature.symbols)

    def finish(
        self, cut: Cut | None = None, given: Vocabulary | None = None, bins: Bins | None = None
    ) -> None:
        """Number the values of all parts alike, and leave out those that are cut.

        Parameters
        ----------
        given : the values in the order of their ids, without those that a cut leaves out; None to number them
            here, the most popular one first. Exact features always number their own values. For a binned
            feature these are the representatives of its bins.
        bins : of a binned feature; None to make them from its values.

        Raises ValueError: there are values or bins that were not given.
        """
        vocabulary, counts, _ = self._vocabulary_builder.finish()
        self.is_numbered = given is not None and not self.codec.is_exact
        if self.codec.binning is not None:
            bins = bins or bins_of(self.codec, vocabulary, counts)
            self.rounding, values, ids = rounded(self.codec, vocabulary, counts, bins)
            if given is None:
                self.vocabulary, places = values.reordered(
                    np.bincount(ids, counts, len(values)).astype(np.int64)
                )
            else:
                self.vocabulary, places = given, given.find(values.values)
            ids = places[ids].astype(np.int64)
            if (ids < 0).any():
                raise ValueError(f"feature {self.codec.feature!r} has bins outside of the given ones")
            self.counts = np.bincount(ids, counts, len(self.vocabulary)).astype(np.int64)
            self._final_ids = narrow(ids, len(self.vocabulary))
        elif self.codec.is_exact:
            self.vocabulary = vocabulary
        elif given is None:
            self.vocabulary, popularity = vocabulary.reordered(counts)
            self.counts = -np.sort(-counts)
            self._final_ids = narrow(popularity, len(vocabulary))
            if cut is not None:
                self.keep(cut)
        else:
            given_ids = given.find(vocabulary.values)
            if cut is None and (is_unknown := given_ids < 0).any():
                raise ValueError(
                    f"feature {self.codec.feature!r} has {int(is_unknown.sum())} values outside of the "
                    "given vocabulary"
                )
            self.counts = counts
            self._renumber(given_ids, given)
            self.is_cut = cut is not None and cut.leaves_out(given)

    def keep(self, cut: Cut) -> None:
        """Keep only some of the values."""
        kept = cut.kept(self.vocabulary)
        self._renumber(kept.find(self.vocabulary.values), kept)
        self.is_cut |= cut.leaves_out(kept)

    def _renumber(self, new_ids: NDArray[np.integer], vocabulary: Vocabulary) -> None:
        """Give values new ids, and leave out those whose id is negative.

        A row that loses all its values has an empty set.
        """
        is_kept = new_ids >= 0
        num_cut = int(self.counts[~is_kept].sum())
        self.num_cut, self.num_facts = self.num_cut + num_cut, self.num_facts - num_cut
        counts, self.vocabulary = self.counts[is_kept], vocabulary
        self.counts = np.zeros(len(vocabulary), np.int64)
        self.counts[new_ids[is_kept]] = counts
        narrow_ids, parts = new_ids.astype(np.int32), _Parts(self.codec, self._spill)
        for places, part in self.rows():
            left = part.mapped(narrow_ids)
            self.states[places[(left.lengths == 0) & (self.states[places] == VALUE)]] = EMPTY
            parts.add_rows(places, left)
            parts.symbols.append(narrow(left.ids, len(vocabulary)))
        self._parts, self._final_ids = parts, None

    def vocabulary_bytes_of(self, number: int) -> int:
        """Bytes that the first ``number`` values take in a snapshot."""
        return Vocabulary(pa.concat_arrays([self.vocabulary.values.slice(0, number)])).packed_bytes

    @property
    def sealed_codec(self) -> FeatureCodec:
        """The codec in the layer: a bin is a category like any other."""
        return replace(self.codec, name=CATEGORICAL, binning=None) if self.codec.binning else self.codec

    def rows(self) -> Iterator[Part]:
        """The facts of each part. Each part is released after use, so this works once."""
        while len(self._parts):
            yield self._with_final_ids(self._parts.pop())

    def kept_rows(self) -> Iterator[Part]:
        """The facts of each part, which stay for another call."""
        for number in range(len(self._parts)):
            yield self._with_final_ids(self._parts[number])

    def release(self) -> None:
        """Release all facts."""
        self._parts = _Parts(self.codec, self._spill)

    def _with_final_ids(self, part: Part) -> Part:
        places, rows = part
        return part if self._final_ids is None else (places, replace(rows, ids=self._final_ids[rows.ids]))

    def popularity(self, num_coded: int) -> Popularity:
        """How often each symbol occurs; the first ``num_coded`` rows are the sample for sets."""
        num_empty = int((self.states != VALUE).sum())
        width = states_width(self.states)
        known = Popularity(self.counts, len(self.states), num_empty, state_width=width)
        if not num_coded:
            return known
        return SetColumns.on_trial(known, self.states[:num_coded], first_rows(self, num_coded))

    @property
    def column_bytes(self) -> int:
        """Bytes of a scalar as a column."""
        return scalar_bytes(self.sealed_codec, self.states, self.vocabulary, self.counts)

    def lengths(self) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int32]]]:
        """For each part, the indexes of its rows and the number of values of each."""
        yield from zip(self._parts.places, self._parts.lengths, strict=True)
