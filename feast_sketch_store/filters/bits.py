"""From rows of bits to the ids of the bits that are set."""

import numpy as np
from numpy.typing import NDArray

_ONE = np.uint64(1)


def set_bits(words: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The positions of the ones in each row.

    Each round takes the lowest one off every word that still has any, so the work is proportional to
    the number of ones: at the usual density (one candidate in a hundred) most words have none or one.

    Parameters
    ----------
    words : uint64[n, w], C-contiguous, bit ``i`` of a row is bit ``i % 64`` of word ``i // 64``.

    Returns
    -------
    indptr : int64[n + 1], row ``r`` owns ``positions[indptr[r]:indptr[r + 1]]``.
    positions : int64[nnz], ascending within a row, in ``[0, 64 * w)``.
    """
    num_rows, num_words = words.shape
    counts = np.bitwise_count(words)
    indptr = np.zeros(num_rows + 1, np.int64)
    np.cumsum(counts.sum(axis=1, dtype=np.int64), out=indptr[1:])
    positions = np.empty(indptr[-1], np.int64)

    occupied = np.flatnonzero(words.reshape(-1) != 0)
    remaining = words.reshape(-1).take(occupied)
    ones = counts.reshape(-1).take(occupied)
    places = ones.cumsum(dtype=np.int64)
    places -= ones
    first_bits = (occupied % num_words) << 6
    while len(remaining):
        below = remaining & (remaining - _ONE)  # all but the lowest one
        positions[places] = first_bits + np.bitwise_count((remaining ^ below) - _ONE)
        left = np.flatnonzero(below != 0)
        remaining, first_bits, places = below.take(left), first_bits.take(left), places.take(left) + 1
    return indptr, positions
