"""Rows of bits to positions."""

import numpy as np
import pytest

from feast_sketch_store.kernel.reference import set_bits

FULL = 2**64 - 1


@pytest.mark.parametrize(
    ("words", "indptr", "positions"),
    [
        ([[0]], [0, 0], []),
        ([[1]], [0, 1], [0]),
        ([[1 << 63]], [0, 1], [63]),
        ([[0b1010, 1]], [0, 3], [1, 3, 64]),
        ([[0, 0], [0, 1 << 5], [0, 0]], [0, 0, 1, 1], [69]),
        ([[FULL]], [0, 64], list(range(64))),
        ([[1 << 63, 1], [1 << 63, 1]], [0, 2, 4], [63, 64, 63, 64]),
    ],
)
def test_positions_ascend_within_their_row(words, indptr, positions):
    found = set_bits(np.array(words, np.uint64))
    assert [array.tolist() for array in found] == [indptr, positions]


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_no_words_have_no_positions(shape):
    indptr, positions = set_bits(np.zeros(shape, np.uint64))
    assert indptr.tolist() == [0] * (shape[0] + 1)
    assert len(positions) == 0


def test_the_words_are_left_as_they_are():
    words = np.array([[6, FULL]], np.uint64)
    words.flags.writeable = False
    set_bits(words)
    assert words.tolist() == [[6, FULL]]
