"""Formulas that the C files have too, and numbers that they share."""

import numpy as np
from numpy.typing import NDArray

MAX_NUM_HASHES = 64  # of a fact
SAMPLED = 64  # the position of every 64th bit that is searched for is stored
DIRECT_CODES = 256  # numbers of ids left below this have a level of their own
NUM_LEFT = DIRECT_CODES + 64

LONGEST_UNARY = 24  # of the code of a gap; this many ones precede a number of 32 bits

# Of lists.
AGES, SIZES, GAPS = 0, 1, 2  # kinds of numbers
NUM_CLASSES = 128  # of numbers
PREFIX_BITS = 12  # of the longest code of a class
NUM_WIDTHS = 5  # of a gap, by how many ids are left

_HALF, _LOW_HALF = np.uint64(32), np.uint64(2**32 - 1)


def mix64(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of SplitMix64, a bijection in which every input bit reaches every output bit.

    Source: Steele, Lea & Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014,
    figure 18.
    """
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def fingerprints_of(hashes: NDArray[np.uint64], size: int) -> NDArray[np.uint64]:
    """The upper half of the product of each hash, uint64[n], and ``size``: uint64[n]."""
    high, low = np.uint64(size >> 32), np.uint64(size & (2**32 - 1))
    upper, lower = hashes >> _HALF, hashes & _LOW_HALF
    middle = upper * low + (lower * low >> _HALF)
    other = lower * high + (middle & _LOW_HALF)
    return np.asarray(upper * high + (middle >> _HALF) + (other >> _HALF))


def masks_of(hashes: NDArray[np.uint64], width: int) -> NDArray[np.uint64]:
    """The masks of hashes: ``width`` bits that are combined with their numbers."""
    return mix64(hashes + np.uint64(0x3C6EF372FE94F82A)) >> np.uint64(64 - width)


def half_octaves(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Twice the logarithm to base 2 of counts below 2**31, rounded; 0 for 0."""
    octaves = np.frexp(np.maximum(counts, 1))[1].astype(np.int64) - 1
    return np.asarray(2 * octaves + (counts * counts >= np.int64(2) << 2 * octaves))


def ceil_log2(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """The exponent of the least power of two that is not below each number, at least 1: int64[n]."""
    return np.frexp((numbers - 1).astype(np.float64))[1].astype(np.int64)


def words_of_bits(num_bits: int) -> int:
    """Words for this many bits, and two more: reads of 64 bits from any of them on may touch these."""
    return -(-num_bits // 64) + 2


def to_bits(indptr: NDArray[np.int64], ids: NDArray[np.integer], num_symbols: int) -> NDArray[np.uint64]:
    """The ids of each row as ones: bit ``i % 64`` of word ``i // 64``, uint64[n, ceil(num_symbols / 64)]."""
    words = np.zeros((len(indptr) - 1, -(-num_symbols // 64)), np.uint64)
    rows = np.repeat(np.arange(len(words)), np.diff(indptr))
    np.bitwise_or.at(words, (rows, ids >> 6), np.uint64(1) << (ids & 63).astype(np.uint64))
    return words


def varint(number: int) -> bytes:
    """An unsigned number in protobuf's variable-length encoding."""
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
