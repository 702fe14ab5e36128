"""Bits, one by one: packed and ascending numbers, and codes of Golomb and Rice."""

import itertools

import numpy as np

from feast_sketch_store.kernel import LONGEST_UNARY, SAMPLED
from feast_sketch_store.succinct import EliasFano, FingerprintIndex, PackedInts

MASK = 2**64 - 1


class DamagedError(Exception):
    """What the kernel refuses as damaged."""


def mix64(x):
    """The finalizer of SplitMix64."""
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def set_bits(words):
    """The ones in each row of uint64[n, w], as a CSR matrix."""
    bits = np.unpackbits(
        words.view(np.uint8).reshape(len(words), 8 * words.shape[1]), axis=1, bitorder="little"
    )
    return np.concatenate(([0], np.cumsum(bits.sum(axis=1, dtype=np.int64)))), bits.nonzero()[1]


def half_octaves(count):
    """Twice the logarithm to base 2, rounded; 0 for 0."""
    octaves = max(count, 1).bit_length() - 1
    return 2 * octaves + (count * count >= 2 << 2 * octaves)


class Bits:
    """Bits of words, read and written from the lowest on."""

    def __init__(self, words=()):
        self.number = int.from_bytes(np.asarray(words, "<u8").tobytes(), "little")
        self.bit = 0

    def at(self, bit, length):
        return self.number >> bit & ((1 << length) - 1)

    def take(self, length):
        self.bit += length
        return self.at(self.bit - length, length)

    def put(self, number, length):
        self.number |= number << self.bit
        self.bit += length

    def take_code(self, width):
        """A quotient in unary, and the rest in ``width`` bits; or after many ones 32 bits."""
        quotient = 0
        while quotient < LONGEST_UNARY and self.take(1):
            quotient += 1
        return quotient << width | self.take(width) if quotient < LONGEST_UNARY else self.take(32)

    def put_code(self, number, width):
        quotient = min(number >> width, LONGEST_UNARY)
        self.put((1 << quotient) - 1, quotient)
        if quotient < LONGEST_UNARY:
            self.put(0, 1)
            self.put(number & ((1 << width) - 1), width)
        else:
            self.put(number, 32)

    def words(self, number):
        return np.frombuffer(self.number.to_bytes(8 * number, "little"), "<u8")


def packed_at(packed: PackedInts, index):
    return Bits(packed.words).at(index * packed.width, packed.width)


def find_bit(numbers: EliasFano, index, wanted):
    """The position of a one or zero of ``highs`` that ``index`` others precede, from its sample on."""
    highs, num_bits = Bits(numbers.highs), len(numbers) + numbers.num_buckets
    left = index % SAMPLED
    for position in range(packed_at(numbers.samples, index // SAMPLED), num_bits):
        if highs.at(position, 1) == wanted:
            if not left:
                return position
            left -= 1
    raise DamagedError


def ascending_at(numbers: EliasFano, index):
    """The number with this index."""
    high = find_bit(numbers, index, 1) - index
    if high < 0:
        raise DamagedError
    return (high << numbers.lows.width | packed_at(numbers.lows, index)) & MASK


def row_of(index: FingerprintIndex, row_hash):
    """The row of a hash, or -1."""
    numbers, highs = index.fingerprints, Bits(index.fingerprints.highs)
    fingerprint = row_hash * index.range >> 64
    bucket, low = divmod(fingerprint, 1 << numbers.lows.width)
    begin = find_bit(numbers, bucket - 1, 0) + 1 if bucket else 0
    if begin < bucket:
        raise DamagedError
    first = -1
    for position in range(begin, len(numbers) + numbers.num_buckets):
        if not highs.at(position, 1):
            break
        row = position - bucket
        if row >= len(numbers):
            raise DamagedError
        is_same = packed_at(numbers.lows, row) == low
        if first >= 0:
            return twin_row(index, row_hash, first) if is_same else first
        first = row if is_same else first
    return first


def twin_row(index: FingerprintIndex, row_hash, first):
    """The row of a hash whose fingerprint several rows share, from ``first`` on."""
    twins = index.twins.tolist()
    if row_hash not in twins:
        return -1
    before = sum(twin * index.range >> 64 < row_hash * index.range >> 64 for twin in twins)
    row = first + twins.index(row_hash) - before
    if row >= len(index):
        raise DamagedError
    return row


def as_csr(rows, dtype):
    """Rows as indptr and numbers."""
    indptr = np.cumsum([0, *map(len, rows)])
    return indptr, np.array(list(itertools.chain(*rows)), dtype)
