"""Ascending integers: each comes back by its index, in about two bits beside those that tell them apart."""

import math

import numpy as np
import pytest

from feast_sketch_store.succinct import EliasFano, PackedInts
from feast_sketch_store.succinct.elias_fano import expected_bytes
from tests.helpers.cases import for_each
from tests.helpers.reads import take_ascending

SHAPES = {
    "none": ([], 1),
    "one": ([0], 1),
    "the largest": ([0, 2**63 - 1], 2**63),
    "equal": ([7] * 1000, 8),
    "equal and far": ([2**40] * 1000, 2**40 + 1),
    "consecutive": (range(3000), 3000),
    "apart": (range(0, 10**9, 10**6), 10**9),
    "a long gap": ([*range(500), *range(10**12, 10**12 + 500)], 2 * 10**12),
}


@pytest.fixture(params=SHAPES)
def numbers_and_bound(request):
    numbers, bound = SHAPES[request.param]
    return np.array(list(numbers), np.uint64), bound


def test_numbers_come_back_from_their_places(numbers_and_bound):
    numbers, bound = numbers_and_bound
    kept = EliasFano.build(numbers, bound)
    indices = np.random.default_rng(1).permutation(len(numbers))
    assert take_ascending(kept, indices).tolist() == numbers[indices].tolist()
    assert kept.to_numbers().tolist() == numbers.tolist()


@pytest.mark.parametrize("by_value", [False, True])
def test_bytes_are_those_expected(numbers_and_bound, by_value):
    numbers, bound = numbers_and_bound
    kept = EliasFano.build(numbers, bound, by_value)
    assert kept.size_bytes == expected_bytes(len(numbers), bound, by_value)


@for_each("step", [1, 3, 100, 12_345, 10**9])
def test_numbers_take_two_bits_beside_the_logarithm_of_their_distance(step):
    numbers = np.cumsum(np.random.default_rng(2).integers(0, 2 * step, 20_000)).astype(np.uint64)
    kept = EliasFano.build(numbers, int(numbers[-1]) + 1)
    bits = 8 * kept.size_bytes / len(numbers)
    assert math.log2(step) + 1.4 <= bits <= max(math.log2(step) + 2, 2) + 0.35


def test_places_that_do_not_exist_are_refused():
    kept = EliasFano.build(np.arange(10, dtype=np.uint64), 10)
    for index in (-1, 10):
        with pytest.raises(ValueError, match="no such number"):
            take_ascending(kept, np.array([index]))


def parts_of(kept):
    return {
        "highs": kept.highs, "lows": kept.lows, "samples": kept.samples,
        "num_buckets": kept.num_buckets, "by_value": kept.by_value,
    }  # fmt: skip


@for_each(
    "change",
    [
        {"highs": np.zeros(1, np.uint64)},
        {"highs": np.zeros((1, 70), np.uint64)},
        {"num_buckets": 0},
        {"num_buckets": 10**6},
        {"by_value": True},
        {"lows": PackedInts.pack(np.arange(1000), base=-1)},
        {"lows": PackedInts.pack(np.arange(900), base=0)},
        {"samples": PackedInts.pack(np.arange(1, 5), base=1)},
        {"samples": PackedInts.pack(np.arange(3), base=0)},
    ],
)
def test_parts_that_do_not_fit_are_refused(change):
    kept = EliasFano.build(np.arange(0, 100_000, 100, dtype=np.uint64), 100_000)
    with pytest.raises(ValueError, match="do not fit each other"):
        EliasFano(**(parts_of(kept) | change))
