"""Binned features as categories: the bin of each number, and the value that a read gives for each bin."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.rows.binning import Bins, Rounding, fit
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.vocabulary import Vocabulary


def bins_of(codec: FeatureCodec, vocabulary: Vocabulary, counts: NDArray[np.int64]) -> Bins:
    """Fit bins to numbers and how often each occurs, int64[V]."""
    assert codec.binning is not None
    bins = fit(codec.binning, codec.to_numbers(vocabulary.values), counts)
    stored = codec.from_numbers(bins.representatives)
    return replace(bins, representatives=codec.to_numbers(stored))


def rounded(
    codec: FeatureCodec, vocabulary: Vocabulary, counts: NDArray[np.int64], bins: Bins
) -> tuple[Rounding, Vocabulary, NDArray[np.int64]]:
    """The values that reads give for numbers that occur ``counts`` times, int64[V].

    Returns
    -------
    The rounding and its errors, the distinct values of all bins, and the index of each number's value
    among them: int64[V].
    """
    numbers = codec.to_numbers(vocabulary.values)
    errors = bins.errors(numbers)
    mean_error = float(errors @ counts / max(1, counts.sum()))
    # Bins may share a representative.
    values, (of_bins,) = Vocabulary.union([Vocabulary(codec.from_numbers(bins.representatives))])
    rounding = Rounding(bins, float(errors.max(initial=0.0)), mean_error)
    return rounding, values, of_bins[bins.find(numbers)] if len(numbers) else np.zeros(0, np.int64)
