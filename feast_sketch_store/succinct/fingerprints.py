"""Fingerprints of entities: which row belongs to whom, in few bits.

Each of ``n`` entities is known by the upper ``w`` bits of a 64-bit hash, all distinct. An unknown entity has
the bits of one of them with probability ``n / 2**w``. Sorted, they are filed in buckets of about a
dozen by their upper bits, which then need not be kept:

    start of bucket   where the rows of each bucket begin
    rest              the lower bits of the fingerprint of each row

Source: Cleary, "Compact hash tables using bidirectional linear probing", 1984 (quotienting).
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store import kernel
from feast_sketch_store.kernel import PackedNumbers
from feast_sketch_store.succinct.packed import PackedInts

_HASH_BITS = 64
_ROWS_PER_BUCKET_BITS = 3  # buckets have 8 to 16 rows


def width_for(num_rows: int, error_rate: float) -> int:
    """Bits of a fingerprint at which an unknown entity matches some row with at most this probability, and at
    which all rows may differ: one pair of them is expected to match.
    """
    rows = math.log2(max(1, num_rows))
    return min(_HASH_BITS - 1, max(1, math.ceil(rows - math.log2(error_rate)), math.ceil(2 * rows - 1)))


def expected_bits(num_rows: int, error_rate: float) -> int:
    """Bits of the index of this many rows."""
    width = width_for(num_rows, error_rate)
    bucket_bits = _bucket_bits(num_rows, width)
    return num_rows * (width - bucket_bits) + ((1 << bucket_bits) + 1) * num_rows.bit_length()


def _bucket_bits(num_rows: int, width: int) -> int:
    return min(max(0, num_rows.bit_length() - 1 - _ROWS_PER_BUCKET_BITS), width - 1)


@dataclass(frozen=True)
class FingerprintIndex:
    """Finds the rows of entities. Immutable; safe to read from any number of threads.

    Parameters
    ----------
    starts : the first row of each bucket, followed by the number of rows; base 0.
    rests : the lower bits of each row's fingerprint; base 0.

    Raises
    ------
    ValueError : the parts cannot belong together.
    """

    starts: PackedInts
    rests: PackedInts

    def __post_init__(self) -> None:
        buckets = self.starts.length - 1
        if (
            buckets < 1
            or buckets & (buckets - 1)
            or self.starts.base
            or self.rests.base
            or not 1 <= self.rests.width <= _HASH_BITS - self._bucket_bits
        ):
            raise ValueError("the parts of the fingerprints do not fit each other")

    def __len__(self) -> int:
        return self.rests.length

    @classmethod
    def build(cls, hashes: NDArray[np.uint64], width: int) -> "FingerprintIndex":
        """The index of rows in the order of their hashes, of which the upper ``width`` bits are distinct."""
        bucket_bits = _bucket_bits(len(hashes), width)
        rest_width = width - bucket_bits
        fingerprints = hashes >> np.uint64(_HASH_BITS - width)
        buckets = np.arange(1, 2**bucket_bits + 1, dtype=np.uint64) << np.uint64(rest_width)
        starts = np.concatenate(([0], np.searchsorted(fingerprints, buckets)))
        rests = (fingerprints & np.uint64(2**rest_width - 1)).astype(np.int64)
        return cls(PackedInts.pack(starts, base=0), PackedInts.pack(rests, rest_width, base=0))

    @property
    def width(self) -> int:
        """Bits of a fingerprint."""
        return self._bucket_bits + self.rests.width

    @property
    def size_bytes(self) -> int:
        """Bytes of all parts."""
        return self.starts.size_bytes + self.rests.size_bytes

    def find(self, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The rows of entities, given by their hashes, uint64[m]: int64[m], -1 of one that has none.

        Raises
        ------
        ValueError : the parts, which came from a file, contradict each other.
        """
        shift, starts, num_buckets, rests = self._parts
        fingerprints = hashes >> shift
        self._check(fingerprints)
        return kernel.find_rows(starts, num_buckets, rests, self.rests.length, fingerprints)

    @cached_property
    def _parts(self) -> tuple[np.uint64, PackedNumbers, int, PackedNumbers]:
        starts = PackedNumbers(self.starts.words, self.starts.width)
        rests = PackedNumbers(self.rests.words, self.rests.width)
        return np.uint64(_HASH_BITS - self.width), starts, self.starts.length - 1, rests

    @property
    def _bucket_bits(self) -> int:
        return (self.starts.length - 1).bit_length() - 1

    def _check(self, fingerprints: NDArray[np.uint64]) -> None:
        """Check the words that a read is about to use."""
        starts, rests = self.starts.check, self.rests.check
        if (starts is None or starts.all_checked) and (rests is None or rests.all_checked):
            return
        buckets = (fingerprints >> np.uint64(self.rests.width)).astype(np.int64)
        first, stop = self.starts.take(buckets), self.starts.take(buckets + 1)
        if rests is not None and len(first):
            if not 0 <= first.min() <= stop.max() <= len(self):
                raise ValueError("a bucket has rows that do not exist")
            words = first * self.rests.width >> 6
            last = np.minimum((stop * self.rests.width >> 6) + 1, len(self.rests.words) - 1)
            rests(np.minimum(words, last), np.maximum(last - words, 0) + 1)
