"""Fingerprints of entities: the row of each entity, in few bits.

Each of ``n`` entities has a fingerprint: the upper half of the product of a 64-bit hash and the integer
``range = n / rate``. It is a number below ``range``. An unknown entity has the fingerprint of some row with
the probability ``rate``. Fingerprints ascend with the hashes, in the order of the rows, and are kept in
Elias-Fano form (`elias_fano`): ``log2(1 / rate) + 2`` bits each, and half a bit to find them.

About ``n * rate / 2`` pairs of rows share a fingerprint. The full hashes of such rows are kept, ascending.
The first of them with a fingerprint belongs to the first row with it:

    fingerprints   3  8  8  12      row 0, 1, 2, 3
    twins          hash of row 1, hash of row 2

Source: Cleary, "Compact hash tables using bidirectional linear probing", 1984 (fingerprints without the bits
that follow from their position).
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.kernel import fingerprints_of
from feast_sketch_store.succinct.elias_fano import EliasFano, expected_bytes, num_buckets_for

_MAX_RANGE = 1 << 63
# A twin takes 64 bits. Above this rate a longer fingerprint saves more than it takes.
_MAX_RATE = 1 / 64
_CHUNK = 1 << 16  # hashes


def range_for(num_rows: int, error_rate: float) -> int:
    """The range of fingerprints for which an unknown entity shares one with at most this probability."""
    rate = min(error_rate, _MAX_RATE)
    return min(_MAX_RANGE, max(1, math.ceil(max(1, num_rows) / rate)))


def expected_twins(num_rows: int, error_rate: float) -> float:
    """The mean number of rows that share their fingerprints with others."""
    return num_rows * -math.expm1(-num_rows / range_for(num_rows, error_rate))


def expected_bits(num_rows: int, error_rate: float) -> int:
    """Bits of the index of this many rows."""
    twins = math.ceil(expected_twins(num_rows, error_rate))
    return 8 * (expected_bytes(num_rows, range_for(num_rows, error_rate), by_value=True) + 8 * twins)


@dataclass(frozen=True)
class FingerprintIndex:
    """The rows of entities, to be found by the kernel. Immutable; safe to read from any number of threads.

    Raises ValueError: the parts do not fit each other.
    """

    fingerprints: EliasFano  # of the rows; found by value
    range: int  # upper bound of fingerprints, 1 to 2**63
    twins: NDArray[np.uint64]  # uint64[t], ascending, the hashes of rows that share their fingerprints

    def __post_init__(self) -> None:
        if (
            not self.fingerprints.by_value
            or not 1 <= self.range <= _MAX_RANGE
            or self.fingerprints.num_buckets != num_buckets_for(self.range, self.fingerprints.lows.width)
            or (self.twins[1:] <= self.twins[:-1]).any()
        ):
            raise ValueError("the parts of the fingerprints do not fit each other")

    def __len__(self) -> int:
        return len(self.fingerprints)

    @classmethod
    def build(cls, hashes: NDArray[np.uint64], error_rate: float) -> "FingerprintIndex":
        """The index of rows in the order of their hashes, uint64[n], which are distinct and ascending.

        An unknown entity seems to have a row with at most the probability ``error_rate``.
        """
        size = range_for(len(hashes), error_rate)
        fingerprints = np.empty(len(hashes), np.uint64)
        for first in range(0, len(hashes), _CHUNK):  # so that no other array is as long
            some = slice(first, first + _CHUNK)
            fingerprints[some] = fingerprints_of(hashes[some], size)
        is_like_next = np.append(fingerprints[1:] == fingerprints[:-1], False)
        has_twin = is_like_next | np.roll(is_like_next, 1)
        return cls(EliasFano.build(fingerprints, size, by_value=True), size, hashes[has_twin[: len(hashes)]])

    @property
    def size_bytes(self) -> int:
        """Bytes of all parts."""
        return self.fingerprints.size_bytes + int(self.twins.nbytes)
