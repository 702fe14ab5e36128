"""Packed integers: every number comes back, by its index, in as few bits as it takes."""

import itertools

import numpy as np
import pytest

from feast_sketch_store.succinct import PackedInts
from tests.helpers.cases import case, for_each

INT64 = np.iinfo(np.int64)


def numbers_of(width, length, base, seed=1):
    """Numbers whose largest difference takes just so many bits."""
    rng = np.random.default_rng(seed)
    words = rng.integers(0, 2**64, length, np.uint64, endpoint=False) >> np.uint64(64 - width) if width else 0
    numbers = np.zeros(length, np.uint64) + words
    if length:
        numbers[0] = 0
        numbers[-1] = 2**width - 1
    return (numbers + np.uint64(base % 2**64)).view(np.int64)


@for_each("width", [1, 7, 8, 31, 32, 33, 63, 64])
def test_numbers_come_back(width):
    for length, least in itertools.product([2, 63, 64, 65, 128, 70_001], [0, -5, INT64.min]):
        base = least if least + 2**width - 1 <= INT64.max else INT64.min
        with case(length, base):
            numbers = numbers_of(width, length, base)
            packed = PackedInts.pack(numbers)
            assert (packed.width, packed.base, packed.length) == (width, base, length)
            assert packed.size_bytes <= length * width / 8 + 24
            indices = np.random.default_rng(2).permutation(length)
            assert (packed.take(indices) == numbers[indices]).all()
            assert (packed.take(np.array([length - 1, 0, 0])) == numbers[[-1, 0, 0]]).all()


@for_each("dtype", [np.uint8, np.uint16, np.int32, np.int64])
def test_numbers_of_narrow_types(dtype):
    numbers = np.array([3, 0, np.iinfo(dtype).max], dtype)
    assert PackedInts.pack(numbers).take(np.arange(3)).tolist() == numbers.tolist()


@for_each("length", [0, 1, 100])
def test_equal_numbers_take_no_bits_unless_asked_for(length):
    packed = PackedInts.pack(np.full(length, -7))
    assert (packed.width, packed.size_bytes) == (0, 0)
    assert packed.take(np.arange(length)).tolist() == [-7] * length
    wider = PackedInts.pack(np.full(length, -7), min_width=1)
    assert (wider.width, wider.take(np.arange(length)).tolist()) == (1, [-7] * length)
    assert bool(wider.size_bytes) == bool(length)


@for_each(
    ("width", "base", "length"),
    [(65, 0, 64), (-1, 0, 64), (8, 0, -1), (8, 2**63, 64), (8, -(2**63) - 1, 64), (9, 0, 64), (8, 0, 65)],
)
def test_numbers_that_do_not_fit_their_words_are_refused(width, base, length):
    words = PackedInts.pack(np.arange(256)[:64] * 4).words
    with pytest.raises(ValueError, match="numbers of"):
        PackedInts(words, width, base, length)


def test_words_are_checked_before_they_are_used():
    packed = PackedInts.pack(np.arange(1000))
    asked = []

    def check(starts, num_words):
        asked.extend((int(start), num_words) for start in starts)

    check.all_checked = False
    checked = PackedInts(packed.words, packed.width, packed.base, packed.length, check)
    assert checked.take(np.array([0, 999])).tolist() == [0, 999]
    assert asked == [(0, 2), (999 * 10 // 64, 2)]
    check.all_checked = True
    assert checked.take(np.array([500])).tolist() == [500]
    assert len(asked) == 2


@pytest.mark.parametrize("index", [-1, 1000])
def test_an_index_behind_the_end_is_refused(index):
    with pytest.raises(ValueError, match="no such packed number"):
        PackedInts.pack(np.arange(1000)).take(np.array([index]))
