"""Ascending integers, each in about two bits more than the logarithm of their mean distance.

Of each of ``n`` integers from 0 to below ``bound``, the lower ``w`` bits are stored as they are. The upper
bits are the number of one of ``(bound - 1) div 2**w + 1`` buckets. Each bucket is written as a one per
integer, and then a zero:

    highs      1 0 0 1 1 0     the integers of bucket 0, of bucket 1, and so on; integer i is the i-th one
    lows       w bits each
    samples    the position in highs of every 64th one, or of every 64th zero

If one ``i`` is at position ``p_i``, integer ``i`` is in bucket ``p_i - i``. Samples of ones find integers by
their index; samples of zeros find the integers of a bucket.

Source: Elias, "Efficient storage and retrieval by content and address of static files", 1974; Fano, "On the
number of bits required to implement an associative memory", 1971.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.kernel import SAMPLED, words_of_bits
from feast_sketch_store.succinct.blocks import BlockChecks
from feast_sketch_store.succinct.packed import PackedInts, num_words_for, unfinished

_MAX_LOW_WIDTH = 63
_CHUNK = 1 << 16  # integers


def low_width_for(length: int, bound: int) -> int:
    """The width of ``lows`` for which this many integers below a positive bound take the fewest bits."""
    guess = (bound // max(1, length)).bit_length()
    widths = range(max(0, guess - 2), min(_MAX_LOW_WIDTH, guess + 1) + 1)
    return min(widths, key=lambda width: (length * width + num_buckets_for(bound, width), width))


def num_buckets_for(bound: int, low_width: int) -> int:
    """The number of buckets of integers below a positive bound."""
    return ((bound - 1) >> low_width) + 1


def expected_bytes(length: int, bound: int, by_value: bool) -> int:
    """Bytes of this many integers below a bound."""
    low_width = low_width_for(length, bound)
    num_buckets = num_buckets_for(bound, low_width)
    num_samples = -(-(num_buckets if by_value else length) // SAMPLED)
    num_bits = length + num_buckets
    words = words_of_bits(num_bits) + num_words_for(length, low_width)
    return 8 * (words + num_words_for(num_samples, num_bits.bit_length()))


def decoded(highs: NDArray[np.uint64], lows: NDArray[np.int64], low_width: int) -> NDArray[np.int64]:
    """All integers of ``highs`` and ``lows``, int64[n], without samples: int64[n].

    Raises ValueError: there are not n integers, or they are 2**63 and more.
    """
    ones = np.flatnonzero(np.unpackbits(highs.view(np.uint8), bitorder="little"))
    if len(ones) != len(lows) or not 0 <= low_width <= _MAX_LOW_WIDTH:
        raise ValueError(f"{len(ones)} ascending numbers have {len(lows)} lower parts of {low_width} bits")
    buckets = ones - np.arange(len(ones))
    if len(buckets) and int(buckets[-1]) >> (_MAX_LOW_WIDTH - low_width):
        raise ValueError("ascending numbers have more than 63 bits")
    return buckets << low_width | lows


@dataclass(frozen=True)
class EliasFano:
    """Ascending integers. Immutable; safe to read from any number of threads.

    Raises ValueError: the parts do not fit each other.
    """

    highs: NDArray[np.uint64]  # uint64[w]; may be memory-mapped
    # lows, samples: both with base 0
    lows: PackedInts
    samples: PackedInts
    num_buckets: int  # at least 1
    by_value: bool  # whether samples are positions of zeros
    check: BlockChecks | None = None  # of ``highs``; None if all have been checked

    def __post_init__(self) -> None:
        num_sampled = self.num_buckets if self.by_value else len(self)
        if (
            self.num_buckets < 1
            or self.highs.shape != (words_of_bits(len(self) + self.num_buckets),)
            or self.samples.length != -(-num_sampled // SAMPLED)
            or self.lows.base
            or self.samples.base
            or self.lows.width > _MAX_LOW_WIDTH
        ):
            raise ValueError("the parts of ascending numbers do not fit each other")

    def __len__(self) -> int:
        return self.lows.length

    @classmethod
    def build(cls, numbers: NDArray[np.uint64], bound: int, by_value: bool = False) -> "EliasFano":
        """Encode ascending integers below a bound, uint64[n], to be found by value or by index."""
        low_width = low_width_for(len(numbers), bound)
        num_buckets = num_buckets_for(bound, low_width)
        indices = (numbers >> np.uint64(low_width)).view(np.int64)
        for first in range(0, len(indices), _CHUNK):  # so that no other array is as long
            some = indices[first : first + _CHUNK]
            some += np.arange(first, first + len(some))
        num_bits = len(numbers) + num_buckets
        bits = np.zeros(words_of_bits(num_bits) * 64, np.bool_)
        bits[indices] = True
        highs = np.packbits(bits, bitorder="little").view(np.uint64)
        sampled = np.flatnonzero(~bits[:num_bits])[::SAMPLED] if by_value else indices[::SAMPLED].copy()
        del indices, bits
        lows = (numbers & np.uint64(2**low_width - 1)).view(np.int64)
        return cls(
            highs,
            PackedInts.pack(lows, low_width, base=0),
            PackedInts.pack(sampled, num_bits.bit_length(), base=0),
            num_buckets,
            by_value,
        )

    @classmethod
    def of_starts(cls, ends: NDArray[np.int64]) -> "EliasFano":
        """Where consecutive rows begin that end at ``ends``, int64[n], ascending."""
        starts = np.concatenate(([0], ends))[: len(ends)].view(np.uint64)
        return cls.build(starts, (int(ends[-1]) if len(ends) else 0) + 1)

    @property
    def size_bytes(self) -> int:
        """Bytes of all parts."""
        return int(self.highs.nbytes) + self.lows.size_bytes + self.samples.size_bytes

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The integers in the form that the kernel takes; see `RowReader`."""
        numbers = self.highs, self.num_buckets, len(self)
        packed = self.lows.words, self.lows.width, self.samples.words, self.samples.width
        return *numbers, *packed, *map(unfinished, (self.check, self.lows.check, self.samples.check))

    def to_numbers(self) -> NDArray[np.int64]:
        """All integers: int64[n]."""
        return decoded(self.highs, self.lows.take(np.arange(len(self))), self.lows.width)
