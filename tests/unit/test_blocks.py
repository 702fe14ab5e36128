"""Blocks of a mapped table are checked where they are read."""

import numpy as np
import pytest

from feast_sketch_store.errors import DamagedFileError
from feast_sketch_store.succinct.blocks import BLOCK_BYTES, BlockChecks, block_checksums
from tests.helpers.cases import for_each

BLOCK_WORDS = BLOCK_BYTES // 8


@pytest.fixture
def words():
    return np.random.default_rng(1).integers(0, 2**63, 5 * BLOCK_WORDS + 7).astype(np.uint64)


def starts(*places):
    return np.array(places, np.int64)


@for_each("num_words", [0, 1, BLOCK_WORDS - 1, BLOCK_WORDS, BLOCK_WORDS + 1])
def test_an_array_of_any_length_fits_its_checksums(num_words):
    words = np.arange(num_words, dtype=np.uint64)
    check = BlockChecks(words, block_checksums(words), "some file")
    check(np.arange(num_words), 1)


def test_every_changed_block_is_found_when_it_is_touched_and_not_before(words):
    checksums = block_checksums(words)
    for block in range(6):
        damaged = words.copy()
        damaged[min(block * BLOCK_WORDS + 99, len(words) - 1)] ^= np.uint64(1)
        check = BlockChecks(damaged, checksums, "some file")
        others = [b * BLOCK_WORDS for b in range(6) if b != block]
        check(starts(*others), 7)
        with pytest.raises(DamagedFileError, match=f"some file: block {block} "):
            check(starts(others[0], block * BLOCK_WORDS + 3), 1)
        with pytest.raises(DamagedFileError):  # and again: it is not forgotten
            check(starts(block * BLOCK_WORDS), 1)


@pytest.mark.parametrize("first", [BLOCK_WORDS - 3, BLOCK_WORDS - 1, 0])
@pytest.mark.parametrize("num_words", [2, 7, BLOCK_WORDS, 2 * BLOCK_WORDS])
def test_a_stretch_is_checked_to_its_end(words, first, num_words):
    last_block = (first + num_words - 1) // BLOCK_WORDS
    checksums = block_checksums(words)
    damaged = words.copy()
    damaged[last_block * BLOCK_WORDS + 5000] ^= np.uint64(1)
    with pytest.raises(DamagedFileError, match=f"block {last_block} "):
        BlockChecks(damaged, checksums, "some file")(starts(first), num_words)


def test_once_all_is_checked_nothing_is_looked_at_any_more(words):
    check = BlockChecks(words, block_checksums(words), "some file")
    check(np.arange(len(words)).reshape(1, -1), 1)
    words[0] ^= np.uint64(1)
    check(starts(0), 1)


@pytest.mark.parametrize(
    "checksums", [np.zeros((5, 16), np.uint8), np.zeros((6, 8), np.uint8), np.zeros((6, 16), np.int64)]
)
def test_checksums_of_another_shape_are_refused(words, checksums):
    with pytest.raises(DamagedFileError, match="some file"):
        BlockChecks(words, checksums, "some file")


def test_all_blocks_are_asked_for_before_the_first_is_read(words):
    asked = []

    def fetch(array, first, number):
        assert array is words
        assert check.unchecked.all()
        asked.append((first, number))

    check = BlockChecks(words, block_checksums(words), "some file", fetch)
    check(starts(3, 2 * BLOCK_WORDS + 5, 9), 2)
    assert asked == [(0, BLOCK_WORDS), (2 * BLOCK_WORDS, BLOCK_WORDS)]
    assert check.unchecked.tolist() == [0, 1, 0, 1, 1, 1]
    check(starts(3), 2)
    assert len(asked) == 2


def test_another_thread_may_check_the_last_block_meanwhile(words):
    check = BlockChecks(words, block_checksums(words), "some file")
    last = len(check.unchecked) - 1

    class Marks(np.ndarray):
        def any(self):
            found = super().any()
            check.unchecked = self.view(np.ndarray)
            check(starts(last * BLOCK_WORDS), 1)
            return found

    check(starts(*(block * BLOCK_WORDS for block in range(last - 1))), 1)
    check.unchecked = check.unchecked.view(Marks)
    check(starts((last - 1) * BLOCK_WORDS), 1)
    assert check.all_checked
