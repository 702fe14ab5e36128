"""Binning: what stands for a number is as near as promised, and the same for equal numbers."""

from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest

from feast_sketch_store.layers.collect import bins_of, rounded
from feast_sketch_store.rows.binning import Precision, Quantiles, fit
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.vocabulary import Vocabulary
from tests.helpers.cases import for_each

NAN, INF = np.nan, np.inf
DOUBLES = FeatureCodec("x", "double_val").ends


def binned(binning, numbers, kind="int64"):
    """What a read gives for each of the numbers; ``kind`` is that of whole ones."""
    numbers = np.asarray(numbers)
    ends = FeatureCodec("x", f"{kind}_val").ends if numbers.dtype == np.int64 else DOUBLES
    bins = fit(binning, numbers, np.ones(len(numbers), np.int64), ends)
    return bins.representatives[bins.find(numbers)]


# -- quantiles -------------------------------------------------------------------------------------


@for_each("count", [1, 2, 10, 256])
def test_quantile_bins_hold_about_equally_many(count):
    numbers = np.random.default_rng(count).lognormal(0, 2, 20_000)
    kept, sizes = np.unique(binned(Quantiles(count), numbers), return_counts=True)
    assert len(kept) == count
    assert sizes.max() <= 20_000 / count + 1
    assert np.isin(kept, numbers).all()


@for_each("count", [2, 10, 256])
def test_a_quantile_bin_is_represented_by_its_median(count):
    numbers = np.random.default_rng(count).normal(size=5000)
    kept = binned(Quantiles(count), numbers)
    for middle in np.unique(kept):
        members = np.sort(numbers[kept == middle])
        assert middle == members[(len(members) - 1) // 2]


def test_few_different_numbers_are_kept_as_they_are():
    numbers = np.repeat([0.1, -3.0, 7.5], [1, 500, 2])
    assert (binned(Quantiles(3), numbers) == numbers).all()


def test_a_frequent_number_has_a_bin_of_its_own():
    rng = np.random.default_rng(3)
    numbers = np.concatenate((np.zeros(5000), rng.normal(size=5000)))
    kept = binned(Quantiles(16), numbers)
    assert ((kept == 0) == (numbers == 0)).all()


def test_counts_weigh_as_repetitions_do():
    rng = np.random.default_rng(4)
    distinct, counts = np.sort(rng.normal(size=500)), rng.integers(1, 50, 500)
    weighed = fit(Quantiles(20), distinct, counts, DOUBLES)
    repeated = fit(Quantiles(20), np.repeat(distinct, counts), np.ones(counts.sum(), np.int64), DOUBLES)
    assert (weighed.lows == repeated.lows).all()
    assert (weighed.representatives == repeated.representatives).all()


# -- precision -------------------------------------------------------------------------------------


@for_each("step", [0.01, 0.1, 0.5, 1, 2.5, 100])
def test_no_number_is_further_away_than_half_a_step(step):
    numbers = np.random.default_rng(1).normal(0, 1000, 10_000)
    assert np.abs(binned(Precision(step), numbers) - numbers).max() <= step / 2 * (1 + 1e-9)


def test_multiples_of_a_decimal_are_the_decimals_themselves():
    cents = np.arange(-500, 500) / 100
    assert (binned(Precision(0.01), cents + 0.0049) == cents).all()
    assert binned(Precision(0.1), [0.1 + 0.2, 0.26]).tolist() == [0.3, 0.3]


def test_halves_go_up():
    assert binned(Precision(1), [-1.5, -0.5, 0.5, 1.5]).tolist() == [-1, 0, 1, 2]
    assert binned(Precision(10), [-15, -5, 5, 14, 15]).tolist() == [-10, 0, 10, 10, 20]


@for_each(("kind", "ends"), [("int64", [-(2**63), 2**63 - 1]), ("int32", [-(2**31), 2**31 - 1])])
def test_a_multiple_that_the_type_lacks_gives_way_to_the_end_of_the_type(kind, ends):
    least, greatest = ends
    numbers = [least, least + 1, greatest - 1, greatest]
    assert binned(Precision(1), numbers, kind).tolist() == numbers
    assert binned(Precision(10), numbers, kind).tolist() == [least, least, greatest, greatest]
    assert np.isin(binned(Precision(1e30), numbers, kind), [*ends, 0]).all()


def test_moments_are_rounded_to_moments_that_python_has():
    first, last = (int(datetime(*day, tzinfo=UTC).timestamp()) for day in ((1, 1, 1), (9999, 12, 31)))
    moments = [first + 1, last + 86_399, last + 30_000, last + 86_400]
    kept = binned(Precision(86_400), moments, "unix_timestamp").tolist()
    assert kept == [first, last + 86_399, last, last + 86_400]  # the last one is of no year that Python has


def test_numbers_coarser_than_the_step_are_kept():
    numbers = [1e308, -1e308, 2.0**60, 1.7976931348623157e308]
    assert binned(Precision(0.01), numbers).tolist() == numbers
    assert binned(Precision(5e-324), numbers).tolist() == numbers


# -- all -------------------------------------------------------------------------------------------

ALL = pytest.mark.parametrize("binning", [Quantiles(5), Precision(0.25)], ids=["quantiles", "precision"])


@ALL
def test_what_is_no_number_is_never_mixed_with_numbers(binning):
    numbers = np.concatenate((np.random.default_rng(5).normal(size=100), [NAN, INF, -INF, NAN, -0.0]))
    kept = binned(binning, numbers)
    assert np.isnan(kept[[100, 103]]).all()
    assert kept[[101, 102]].tolist() == [INF, -INF]
    assert np.isfinite(np.delete(kept, [100, 101, 102, 103])).all()
    bins = fit(binning, numbers, np.ones(len(numbers), np.int64), DOUBLES)
    assert bins.errors(numbers)[[100, 101, 102, 103]].tolist() == [0, 0, 0, 0]


def test_the_distance_of_the_largest_numbers_is_finite():
    most = np.finfo(np.float64).max
    vocabulary = Vocabulary(pa.array(np.array([-most, most]).view(np.int64)))
    codec, counts = FeatureCodec("x", "double_val", "binned", Quantiles(1)), np.array([3, 2])
    rounding, _, _ = rounded(codec, vocabulary, counts, bins_of(codec, vocabulary, counts))
    assert (rounding.max_error, rounding.mean_error) == (most, most)  # JSON has no infinity


@ALL
@pytest.mark.parametrize("numbers", [[], [NAN], [INF, -INF], [4.0]], ids=str)
def test_few_numbers_or_none(binning, numbers):
    numbers = np.array(numbers, np.float64)
    bins = fit(binning, numbers, np.ones(len(numbers), np.int64), DOUBLES)
    assert len(bins.lows) == len(numbers)
    assert (np.isnan(bins.representatives) == np.isnan(bins.lows)).all()


@ALL
def test_bins_ascend_and_hold_their_numbers(binning):
    numbers = np.random.default_rng(6).normal(size=3000)
    bins = fit(binning, numbers, np.ones(3000, np.int64), DOUBLES)
    assert (np.diff(bins.lows) > 0).all()
    assert (np.diff(bins.representatives) > 0).all()
    indices = bins.find(numbers)
    assert (bins.lows[indices] <= numbers).all()
    assert (numbers < np.append(bins.lows, INF)[indices + 1]).all()


@for_each(
    "make",
    [
        lambda: Quantiles(0),
        lambda: Quantiles(2**16 + 1),
        lambda: Precision(0),
        lambda: Precision(-1),
        lambda: Precision(INF),
        lambda: Precision(NAN),
    ],
)
def test_settings_that_cannot_work_are_refused(make):
    with pytest.raises(ValueError, match=r"bins|edges|precision"):
        make()
