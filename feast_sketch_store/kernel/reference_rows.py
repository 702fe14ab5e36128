"""The rows of entities in NumPy: packed and ascending integers, and the rows of hashes."""

from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.kernel.reference import mix64

# The position of every 64th bit that is searched for is stored; rows.c has the same number.
SAMPLED = 64
_ONE = np.uint64(1)
_ALL = 2**64 - 1
_FEW = 16  # up to here Python's integers are used: one NumPy call takes as long as one look-up
_TWINS = -2  # several rows
_HALF, _LOW_HALF = np.uint64(32), np.uint64(2**32 - 1)
_EACH_BYTE, _TOP_BITS, _BYTE = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080), np.uint64(0xFF)
_DAMAGED_NUMBERS = "ascending numbers cannot be read"
_DAMAGED_INDEX = "the index of rows cannot be read"


def words_of_bits(num_bits: int) -> int:
    """Words for this many bits, and two more: reads of 64 bits from any of them on may touch these."""
    return -(-num_bits // 64) + 2


class PackedNumbers(NamedTuple):
    """Integers back to back: number ``i`` is bits ``[i * width, (i + 1) * width)`` of ``words``, uint64[n].

    There are `words_of_bits` words, or none if the width is 0.
    """

    words: NDArray[np.uint64]
    width: int

    def take(self, places: NDArray[np.int64]) -> NDArray[np.uint64]:
        """The numbers with the given indexes: uint64[n]."""
        if not self.width:
            return np.zeros(len(places), np.uint64)
        return bits_at(self.words, places * self.width) & np.uint64(2**self.width - 1)

    def at(self, place: int) -> int:
        """The number with this index."""
        if not self.width:
            return 0
        word, shift = divmod(place * self.width, 64)
        both = self.words.item(word) | self.words.item(word + 1) << 64
        return both >> shift & ((1 << self.width) - 1)


class AscendingNumbers(NamedTuple):
    """Ascending integers; `succinct.elias_fano` has the layout.

    ``samples`` are positions in ``highs``, uint64[w]: of every 64th one if numbers are taken by index, of
    every 64th zero if they are found by value.
    """

    highs: NDArray[np.uint64]
    num_buckets: int
    length: int
    lows: PackedNumbers
    samples: PackedNumbers

    @property
    def num_bits(self) -> int:
        """Bits of ``highs``."""
        return self.length + self.num_buckets


class RowIndex(NamedTuple):
    """The row of each entity; `succinct.fingerprints` has the layout.

    ``fingerprints`` are below ``range``. ``twins``, uint64[t], are the ascending hashes of rows that share a
    fingerprint.
    """

    fingerprints: AscendingNumbers
    range: int
    twins: NDArray[np.uint64]


def take_packed(packed: PackedNumbers, length: int, places: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The numbers with the given indexes below ``length``, int64[n]: uint64[n].

    Raises
    ------
    ValueError : an index is out of range.
    """
    if len(places) and not 0 <= places.min() <= places.max() < length:
        raise ValueError("there is no such packed number")
    return packed.take(places)


def take_ascending(numbers: AscendingNumbers, places: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The numbers with the given indexes, int64[n]: uint64[n].

    Raises
    ------
    ValueError : an index is out of range, or the numbers are damaged.
    """
    if len(places) and not 0 <= places.min() <= places.max() < numbers.length:
        raise ValueError("there is no such number")
    if len(places) <= _FEW:
        return np.array([_ascending_at(numbers, place) for place in places.tolist()], np.uint64)
    highs = _find_bits(numbers, places, _DAMAGED_NUMBERS) - places
    if (highs < 0).any():
        raise ValueError(_DAMAGED_NUMBERS)
    return highs.view(np.uint64) << np.uint64(numbers.lows.width) | numbers.lows.take(places)


def _ascending_at(numbers: AscendingNumbers, place: int) -> int:
    """The number with this index; errors are those of `take_ascending`."""
    high = _find_bit(numbers, place, _DAMAGED_NUMBERS) - place
    if high < 0:
        raise ValueError(_DAMAGED_NUMBERS)
    return (high << numbers.lows.width | numbers.lows.at(place)) & _ALL


def _find_bit(numbers: AscendingNumbers, wanted: int, damaged: str, by_value: bool = False) -> int:
    """`_find_bits` for one bit."""
    flipped, num_bits = _ALL if by_value else 0, numbers.num_bits
    place = numbers.samples.at(wanted // SAMPLED)
    if place >= num_bits:
        raise ValueError(damaged)
    word, left, last = place >> 6, wanted % SAMPLED, (num_bits - 1) >> 6
    bits = (numbers.highs.item(word) ^ flipped) >> (place & 63) << (place & 63)
    while left >= (count := bits.bit_count()):
        left, word = left - count, word + 1
        if word > last:
            raise ValueError(damaged)
        bits = numbers.highs.item(word) ^ flipped
    found = 64 * word
    for half in (32, 16, 8, 4, 2, 1):
        lower = bits & ((1 << half) - 1)
        if left < (count := lower.bit_count()):
            bits = lower
        else:
            left, bits, found = left - count, bits >> half, found + half
    if found >= num_bits:
        raise ValueError(damaged)
    return found


def _find_bits(
    numbers: AscendingNumbers, wanted: NDArray[np.int64], damaged: str, by_value: bool = False
) -> NDArray[np.int64]:
    """The positions of some ones of ``highs``, or of some zeros, by their index: int64[n].

    Raises
    ------
    ValueError : there are fewer.
    """
    flipped, num_bits = np.uint64(2**64 - 1 if by_value else 0), numbers.num_bits
    places = numbers.samples.take(wanted // SAMPLED)
    if (places >= num_bits).any():
        raise ValueError(damaged)
    words, left, last = (places >> np.uint64(6)).astype(np.int64), wanted % SAMPLED, (num_bits - 1) >> 6
    bits = (numbers.highs[words] ^ flipped) & np.uint64(2**64 - 1) << (places & np.uint64(63))
    while len(behind := np.flatnonzero(left >= np.bitwise_count(bits))):
        left[behind] -= np.bitwise_count(bits[behind])
        words[behind] += 1
        if (words[behind] > last).any():
            raise ValueError(damaged)
        bits[behind] = numbers.highs[words[behind]] ^ flipped
    found = words * 64 + _select(bits, left.astype(np.uint64))
    if (found >= num_bits).any():
        raise ValueError(damaged)
    return np.asarray(found)


def _select(bits: NDArray[np.uint64], numbers: NDArray[np.uint64]) -> NDArray[np.int64]:
    """In each 64 bits, the position of the one that this many others precede; it must exist: int64[n].

    Source: Vigna, "Broadword implementation of rank/select queries", 2008, algorithm 2.
    """
    # Byte b of the sums is how many ones are in bytes 0 to b.
    sums = np.bitwise_count(bits.astype("<u8", copy=False).view(np.uint8)).view("<u8") * _EACH_BYTE
    bytes_before = np.bitwise_count(((numbers * _EACH_BYTE | _TOP_BITS) - sums) & _TOP_BITS)
    shifts = bytes_before.astype(np.uint64) << np.uint64(3)
    ranks = numbers - ((sums << np.uint64(8)) >> shifts & _BYTE)
    inside = _places_in_bytes().take(((bits >> shifts & _BYTE) << np.uint64(3) | ranks).view(np.int64))
    return np.asarray(shifts.view(np.int64) + inside)


@cache
def _places_in_bytes() -> NDArray[np.int64]:
    """At ``byte << 3 | r``, the position in the byte of the one that ``r`` others precede."""
    places = np.zeros((256, 8), np.int64)
    for byte in range(256):
        ones = [place for place in range(8) if byte >> place & 1]
        places[byte, : len(ones)] = ones
    return places.reshape(-1)


def row_hashes(entity_hashes: NDArray[np.uint64], salt: tuple[int, int]) -> NDArray[np.uint64]:
    """64 bits of each 128-bit hash, uint64[n, 2], unpredictable without the salt: uint64[n]."""
    first = mix64(entity_hashes[:, 0] ^ np.uint64(salt[0]))
    return mix64(first + (entity_hashes[:, 1] ^ np.uint64(salt[1])))


def find_rows(index: RowIndex, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The rows of entities by their row hashes, uint64[n]: int64[n], -1 for an entity without a row.

    Raises
    ------
    ValueError : the index is damaged.
    """
    numbers = index.fingerprints
    if not index.range or (index.range - 1) >> numbers.lows.width != numbers.num_buckets - 1:
        raise ValueError("the arrays do not fit each other")
    if len(hashes) <= _FEW:
        found = [_row_of(index, row_hash) for row_hash in hashes.tolist()]
        if _TWINS not in found:
            return np.array(found, np.int64)
    fingerprints = fingerprints_of(hashes, index.range)
    buckets = (fingerprints >> np.uint64(numbers.lows.width)).astype(np.int64)
    lows = fingerprints & np.uint64(2**numbers.lows.width - 1)
    places = np.zeros(len(hashes), np.int64)
    later = np.flatnonzero(buckets)
    places[later] = _find_bits(numbers, buckets[later] - 1, _DAMAGED_INDEX, by_value=True) + 1
    if (places < buckets).any():
        raise ValueError(_DAMAGED_INDEX)
    rows, has_twin, left = np.full(len(hashes), -1), np.zeros(len(hashes), np.bool_), np.arange(len(hashes))
    step = 0
    while len(left := left[_is_one(numbers, places[left] + step)]):
        candidates = (places - buckets)[left] + step
        if (candidates >= numbers.length).any():
            raise ValueError(_DAMAGED_INDEX)
        is_same, is_first = numbers.lows.take(candidates) == lows[left], rows[left] < 0
        rows[left[is_same & is_first]] = candidates[is_same & is_first]
        has_twin[left[is_same & ~is_first]] = True
        left, step = left[is_first], step + 1
    twins = np.flatnonzero(has_twin)
    if len(twins):
        rows[twins] = _find_twins(index, hashes[twins], fingerprints[twins], rows[twins])
    return rows


def _row_of(index: RowIndex, row_hash: int) -> int:
    """The row of a hash, -1 if there is none; `_TWINS` if several rows have its fingerprint."""
    numbers = index.fingerprints
    bucket, low = divmod(row_hash * index.range >> 64, 1 << numbers.lows.width)
    place = _find_bit(numbers, bucket - 1, _DAMAGED_INDEX, by_value=True) + 1 if bucket else 0
    if place < bucket:
        raise ValueError(_DAMAGED_INDEX)
    row = -1
    while place < numbers.num_bits and numbers.highs.item(place >> 6) >> (place & 63) & 1:
        candidate, place = place - bucket, place + 1
        if candidate >= numbers.length:
            raise ValueError(_DAMAGED_INDEX)
        is_same = numbers.lows.at(candidate) == low
        if row >= 0:
            return _TWINS if is_same else row
        if is_same:
            row = candidate
    return row


def _is_one(numbers: AscendingNumbers, places: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether bits of ``highs`` exist and are ones: bool[n]."""
    is_one = places < numbers.num_bits
    inside = places[is_one]
    is_one[is_one] = (numbers.highs[inside >> 6] >> (inside & 63).view(np.uint64) & _ONE).astype(np.bool_)
    return is_one


def _find_twins(
    index: RowIndex,
    hashes: NDArray[np.uint64],
    fingerprints: NDArray[np.uint64],
    firsts: NDArray[np.int64],
) -> NDArray[np.int64]:
    """The rows of hashes whose fingerprints several rows share, from ``firsts`` on: int64[n]."""
    places = np.searchsorted(index.twins, hashes)
    is_known = np.append(index.twins, np.uint64(0))[places] == hashes
    is_known &= places < len(index.twins)
    rows = firsts + places - np.searchsorted(fingerprints_of(index.twins, index.range), fingerprints)
    if (rows[is_known] >= index.fingerprints.length).any():
        raise ValueError(_DAMAGED_INDEX)
    return np.where(is_known, rows, -1)


def fingerprints_of(hashes: NDArray[np.uint64], size: int) -> NDArray[np.uint64]:
    """The upper half of the product of each hash, uint64[n], and ``size``: uint64[n]."""
    high, low = np.uint64(size >> 32), np.uint64(size & (2**32 - 1))
    upper, lower = hashes >> _HALF, hashes & _LOW_HALF
    middle = upper * low + (lower * low >> _HALF)
    other = lower * high + (middle & _LOW_HALF)
    return np.asarray(upper * high + (middle >> _HALF) + (other >> _HALF))


def bits_at(words: NDArray[np.uint64], bits: NDArray[np.int64]) -> NDArray[np.uint64]:
    """64 bits from each position on. A word must follow the one in which the last position is."""
    places, shifts = bits >> 6, (bits & 63).astype(np.uint64)
    # NumPy cannot shift by 64; two steps leave nothing.
    return np.asarray(words[places] >> shifts | (words[places + 1] << (np.uint64(63) - shifts)) << _ONE)
