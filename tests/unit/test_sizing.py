"""Sizing: tables of known sizes, and what it refuses."""

import math
import tracemalloc
from functools import partial

import numpy as np
import pytest

from feast_sketch_store.structures.sizing import (
    MAX_NUM_HASHES,
    FactClass,
    WeightedFacts,
    fill_limit,
    non_increasing_runs,
    plain_for_bits,
    size_for_rates,
    weighted_for_bits,
)
from tests.helpers.cases import for_each
from tests.helpers.filters import expected_fill, ideal_bits


@for_each(("rate", "hashes"), [(0.5, 1), (0.1, 3), (0.01, 7), (0.001, 10), (1e-9, 30)])
def test_one_class_takes_the_whole_number_of_hashes_nearest_to_its_optimum(rate, hashes):
    geometry = size_for_rates([FactClass(10_000, rate)])
    assert len(geometry.hashes[0]) == hashes
    assert geometry.fill == pytest.approx(rate ** (1 / hashes))


def test_the_fill_moves_for_the_heaviest_class():
    geometry = size_for_rates([FactClass(1_000_000, 0.01), FactClass(10, 0.001)])
    assert geometry.fill == pytest.approx(0.01 ** (1 / 7))
    assert [*map(len, geometry.hashes)] == [7, 11]


def test_no_facts_take_one_bit_and_are_never_met():
    classes = [FactClass(0, 0.01)]
    geometry = size_for_rates(classes)
    assert geometry.num_bits == 1
    assert expected_fill(classes, geometry.hashes, geometry.num_bits) == 0


@for_each("rate", [0.0, 1.0, -0.1, 1.5, math.nan, math.inf])
def test_a_rate_outside_0_to_1_is_refused(rate):
    with pytest.raises(ValueError, match="between 0 and 1"):
        FactClass(1, rate)


def test_a_negative_number_of_facts_is_refused():
    with pytest.raises(ValueError, match="negative"):
        FactClass(-1, 0.1)


def test_sizing_without_classes_is_refused():
    with pytest.raises(ValueError, match="at least one class"):
        size_for_rates([])


def test_a_rate_beyond_the_limit_of_hashes_is_refused():
    with pytest.raises(ValueError, match=f"more than {MAX_NUM_HASHES} hashes"):
        size_for_rates([FactClass(1, 1e-300)])


@for_each("rate", [0.5, 0.1, 0.01, 1e-5])
def test_the_bits_of_a_rate_buy_that_rate(rate):
    facts = plain_for_bits(100_000, size_for_rates([FactClass(100_000, rate)]).num_bits)
    assert facts.num_items == 100_000
    assert facts.false_positive_rate == pytest.approx(rate, rel=1e-3)


def test_a_large_budget_buys_no_rate_that_nobody_needs():
    assert plain_for_bits(1000, 10**6).false_positive_rate == 1e-9


# Rate 0.7 needs 0.83 bits a fact with one hash, so there is a geometry for any budget above that.
@for_each("num_bits", [850, 1000, 1200, 1400])
def test_a_small_budget_still_buys_a_poor_rate(num_bits):
    assert plain_for_bits(1000, num_bits).false_positive_rate <= 0.71


@for_each("num_bits", [-1, 0, 1, 100])
def test_too_few_bits_are_refused(num_bits):
    with pytest.raises(ValueError, match=f"{num_bits} bits are too few for 1000 facts"):
        plain_for_bits(1000, num_bits)


# -- weighted filters ------------------------------------------------------------------------------

COUNTS = 900 // np.arange(1, 41)


def test_popular_symbols_get_fewer_hashes():
    facts = WeightedFacts(COUNTS, 1000, 0.5)
    geometry = size_for_rates([facts])
    (hashes,) = geometry.hashes
    assert hashes[0] == 0
    assert list(hashes) == sorted(hashes)
    assert len(set(hashes)) > 2
    assert facts.expected_false(hashes, geometry.fill) <= 0.5
    # One hash less for the rarest symbols would show too many.
    assert facts.expected_false(hashes[:-1], geometry.fill) > 0.5
    assert facts.num_items == COUNTS.sum()
    assert facts.num_ones(hashes) == sum(int(COUNTS[first:].sum()) for first in hashes)


def test_bits_of_weighted_facts_fall_with_the_noise():
    bits = [
        size_for_rates([WeightedFacts(COUNTS, 1000, noise)]).num_bits
        for noise in (1e-6, 0.01, 1.0, 10.0, 40.0)
    ]
    assert bits == sorted(bits, reverse=True)
    assert len(set(bits)) > 3


def test_weighted_facts_share_a_table_with_classes_of_one_rate():
    weighted, presence = WeightedFacts(COUNTS, 1000, 0.5), FactClass(1000, 1e-5)
    geometry = size_for_rates([weighted, presence])
    fill = expected_fill([weighted, presence], geometry.hashes, geometry.num_bits)
    assert weighted.expected_false(geometry.hashes[0], fill) <= 0.5 * (1 + 1e-6)
    assert fill ** len(geometry.hashes[1]) <= 1e-5 * (1 + 1e-6)


def test_weighted_facts_for_bits_fit_and_use_them():
    num_bits = 5 * int(COUNTS.sum())
    facts = weighted_for_bits(COUNTS, 1000, num_bits)
    assert 0.98 * num_bits <= size_for_rates([facts]).num_bits <= num_bits
    with pytest.raises(ValueError, match="100 bits are too few"):
        weighted_for_bits(COUNTS, 1000, 100)


# 5,000 symbols that are as rare as can be, and a few that all have.
SHAPES_OF_COUNTS = {
    "rare": np.ones(5000, np.int64),
    "equal": np.full(300, 20),
    "popular": np.sort(np.random.default_rng(1).zipf(1.3, 2000).clip(max=5000))[::-1],
    "one": np.array([7]),
    "everywhere": np.array([5000, 5000, 3]),
    "ascending": np.arange(0, 5000, 40),
    "shuffled": np.random.default_rng(2).permutation(np.arange(0, 5000, 40)),
    "only the last": np.array([0] * 99 + [5000]),
}


@for_each("noise", [1e-14, 1e-9, 1e-5, 0.01, 1.0, 100.0])
@for_each("counts", SHAPES_OF_COUNTS.values())
def test_weighted_facts_keep_their_noise_at_every_fill_they_have_hashes_for(counts, noise):
    facts = WeightedFacts(counts, 5000, noise)
    fills = (0.1, 0.3, 0.5, 0.7, 0.9, 0.98, 0.999)
    for fill, hashes in zip(fills, facts.hashes_at(fills), strict=True):
        if facts.expected_false((0,) * MAX_NUM_HASHES, fill) > noise:
            assert hashes is None
            continue
        assert facts.expected_false(hashes, fill) <= noise
        assert facts.excess(hashes, fill) <= 1
        assert 1 <= len(hashes) <= MAX_NUM_HASHES
        if len(hashes) > 1:  # none is idle: without the last one a read would show too many
            fewer = np.searchsorted(hashes, np.arange(len(counts)), side="right")
            assert fewer[-1] == len(hashes)
    geometry = size_for_rates([facts])
    fill = expected_fill([facts], geometry.hashes, geometry.num_bits)
    assert facts.expected_false(geometry.hashes[0], fill) <= noise * (1 + 1e-6)


@for_each("noise", [1e-6, 0.01, 1.0])
@for_each("counts", SHAPES_OF_COUNTS.values())
def test_weighted_facts_never_take_more_than_equal_hashes(counts, noise):
    facts = WeightedFacts(counts, 5000, noise)
    rate = noise / (1 - counts / 5000).sum()
    uniform = size_for_rates([FactClass(int(counts.sum()), min(0.5, rate))])
    assert size_for_rates([facts]).num_bits <= uniform.num_bits * 1.001 + 3


@pytest.mark.parametrize(
    ("counts", "sums", "sizes"),
    [
        ([9, 7, 7, 1, 0], [9, 14, 1, 0], [1, 2, 1, 1]),
        ([1, 2, 3, 4], [10], [4]),
        ([4, 4, 1, 3, 0, 5], [8, 9], [2, 4]),
        ([0, 0, 1], [1], [3]),
        ([7], [7], [1]),
        ([], [0], [0]),
    ],
    ids=str,
)
def test_runs_of_a_non_increasing_fit(counts, sums, sizes):
    assert [found.tolist() for found in non_increasing_runs(np.array(counts, np.int64))] == [sums, sizes]


@pytest.mark.parametrize("seed", range(20))
def test_a_non_increasing_fit_has_the_least_squares(seed):
    """Projection onto a convex cone: what is left is normal to the fit, and no step down would be nearer."""
    rng = np.random.default_rng(seed)
    counts = np.sort(rng.integers(0, 1000, 200))[::-1] + rng.integers(-300, 300, 200).clip(0)
    sums, sizes = non_increasing_runs(counts)
    fit = np.repeat(sums / sizes, sizes)
    assert (np.diff(sums / sizes) < 0).all()
    assert fit @ (counts - fit) == pytest.approx(0, abs=1e-3)
    assert (np.cumsum(counts - fit) <= 1e-6).all()


def test_equal_symbols_may_have_different_hashes():
    """Between the fills at which whole hashes would do, the target is met by a mixture."""
    facts = WeightedFacts(np.full(1000, 20), 5000, 3.0)
    (hashes,) = facts.hashes_at([0.5])
    assert len(set(hashes)) == 2
    assert 0.999 * 3.0 <= facts.expected_false(hashes, 0.5) <= 3.0


def test_many_equal_symbols_are_divided_without_a_look_at_each():
    """A memory limit asks for their hashes at hundreds of fills and amounts of noise."""
    facts = WeightedFacts(np.ones(100_000, np.int64), 50, 1_000.0)
    assert facts.expected_false(facts.hashes_at([0.5])[0], 0.5) == pytest.approx(1_000, rel=1e-3)
    tracemalloc.start()
    hashes = facts.hashes_at([0.4, 0.6])
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert all(len({*own}) > 1 for own in hashes)
    assert peak_bytes < 100_000


@pytest.mark.parametrize("noise", [1e-40, 1e-300])
def test_noise_that_no_table_keeps_is_refused(noise):
    with pytest.raises(ValueError, match="more than 64 hashes"):
        size_for_rates([WeightedFacts(COUNTS, 1000, noise)])


def test_a_fill_at_which_a_rate_takes_too_many_hashes_is_refused():
    assert FactClass(10, 1e-9).hashes_at([0.5, 0.9]) == [(0,) * 30, None]


def test_strict_classes_keep_others_from_fills_that_they_cannot_use():
    loose, strict = WeightedFacts(COUNTS, 1000, 30.0), FactClass(10, 1e-15)
    alone, both = size_for_rates([loose]), size_for_rates([loose, strict])
    assert alone.fill > 0.6
    assert both.fill < 0.6
    assert max(map(len, both.hashes)) <= MAX_NUM_HASHES


@for_each("rate", [0.3, 0.01, 1e-9])
def test_the_fill_limit_is_where_the_first_target_is_missed(rate):
    classes = [FactClass(1000, rate), WeightedFacts(COUNTS, 1000, 0.5)]
    hashes = [c.hashes_at([0.5])[0] for c in classes]
    limit = fill_limit([partial(c.excess, h) for c, h in zip(classes, hashes, strict=True)])
    assert max(c.excess(h, limit) for c, h in zip(classes, hashes, strict=True)) == pytest.approx(1)
    assert limit >= 0.5


def test_many_rates_are_sized_in_as_few_bits():
    """Only the heaviest have fills of their own."""
    rng = np.random.default_rng(2)
    classes = [FactClass(int(n), float(10**r)) for n, r in rng.uniform((1e3, -6), (1e5, -0.5), (60, 2))]
    geometry = size_for_rates(classes)
    assert geometry.num_bits <= 1.1 * ideal_bits(classes)
    assert all(c.excess(h, geometry.fill) <= 1 + 1e-6 for c, h in zip(classes, geometry.hashes, strict=True))


@for_each(
    ("counts", "num_entities", "noise", "match"),
    [
        ([2, -1], 10, 1.0, "fewer facts than none"),
        ([11, 2], 10, 1.0, "more facts than there are entities"),
        ([2, 1], 10, 0.0, "more than 0"),
        ([2, 1], 10, math.nan, "more than 0"),
    ],
)
def test_weighted_facts_that_cannot_be_are_refused(counts, num_entities, noise, match):
    with pytest.raises(ValueError, match=match):
        WeightedFacts(np.array(counts), num_entities, noise)
