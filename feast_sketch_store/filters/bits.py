"""From rows of bits to the ids of the bits that are set."""

import numpy as np
from numpy.typing import NDArray


def set_bits(words: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The positions of the ones in each row.

    Only bytes that hold a one are unpacked: at the usual density (one candidate in a hundred)
    most bytes are zero and unpacking all of them would cost more than the filter itself.

    Parameters
    ----------
    words : uint64[n, w], C-contiguous, bit ``i`` of a row is bit ``i % 64`` of word ``i // 64``.

    Returns
    -------
    indptr : int64[n + 1], row ``r`` owns ``positions[indptr[r]:indptr[r + 1]]``.
    positions : int64[nnz], ascending within a row, in ``[0, 64 * w)``.
    """
    num_rows, num_words = words.shape
    indptr = np.zeros(num_rows + 1, np.int64)
    np.cumsum(np.bitwise_count(words).sum(axis=1, dtype=np.int64), out=indptr[1:])
    row_bytes = words.astype("<u8", copy=False).reshape(-1).view(np.uint8)
    occupied = np.flatnonzero(row_bytes != 0)
    ones = np.flatnonzero(np.unpackbits(row_bytes[occupied], bitorder="little"))
    positions = (occupied[ones >> 3] << 3) + (ones & 7)
    positions -= np.repeat(np.arange(num_rows) * (num_words * 64), np.diff(indptr))
    return indptr, positions
