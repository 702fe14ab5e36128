"""Codes of rows, one row after the other in one string of bits: how strings are joined, and prefix codes.

Prefix codes are canonical, of at most 12 bits.

Source: Huffman, "A method for the construction of minimum-redundancy codes", 1952.
"""

import heapq
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.kernel import PREFIX_BITS, words_of_bits
from feast_sketch_store.succinct.blocks import BlockChecks
from feast_sketch_store.succinct.elias_fano import EliasFano
from feast_sketch_store.succinct.packed import unfinished

_WORD_BITS = 64


def code_lengths(counts: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Bits of the prefix code of each class, given how often each occurs: uint8[n], at most 12."""
    lengths = np.zeros(len(counts), np.uint8)
    used = np.flatnonzero(counts).tolist()
    weights = {number: int(counts[number]) for number in used}
    if len(used) == 1:
        lengths[used] = 1
    while len(used) > 1:
        lengths[:] = 0
        heap = [(weight, number, [number]) for number, weight in weights.items()]
        heapq.heapify(heap)
        while len(heap) > 1:
            (one, number, left), (other, _, right) = heapq.heappop(heap), heapq.heappop(heap)
            lengths[left + right] += 1
            heapq.heappush(heap, (one + other, number, left + right))
        if lengths.max() <= PREFIX_BITS:
            break
        weights = {number: weight // 2 + 1 for number, weight in weights.items()}  # closer to each other
    return lengths


def is_prefix_code(lengths: NDArray[np.uint8]) -> bool:
    """Whether a prefix code has such lengths, at most 12; 0 for an unused class."""
    used = lengths[lengths > 0].astype(int)
    return used.max(initial=0) <= PREFIX_BITS and bool(np.ldexp(1.0, -used).sum() <= 1)


def prefix_codes(lengths: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """The canonical code of each class, with its first bit as the lowest: uint64[n]."""
    codes, code, before = np.zeros(len(lengths), np.uint64), 0, 0
    for number in sorted(np.flatnonzero(lengths).tolist(), key=lambda n: (lengths[n], n)):
        length = int(lengths[number])
        code <<= length - before
        codes[number] = int(f"{code:0{length}b}"[::-1], 2)
        code, before = code + 1, length
    return codes


def prefix_table(lengths: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """For all next bits, the class whose code they begin with, times 16, plus its length: uint16[4096]."""
    table, codes = np.zeros(1 << PREFIX_BITS, np.uint16), prefix_codes(lengths)
    for number in np.flatnonzero(lengths).tolist():
        table[int(codes[number]) :: 1 << int(lengths[number])] = number << 4 | int(lengths[number])
    return table


def put_bits(
    words: NDArray[np.uint64], begin: int, values: NDArray[np.uint64], lengths: NDArray[np.uint8]
) -> None:
    """Write some bits of each value, one after the other, into words that are zero from ``begin`` on."""
    kept = lengths > 0
    values, lengths = values[kept], lengths[kept]
    if not len(values):
        return
    ends = begin + np.cumsum(lengths, dtype=np.int64)
    starts = ends - lengths
    at, shift = starts >> 6, (starts & 63).astype(np.uint64)
    firsts = np.flatnonzero(np.diff(at, prepend=-1))
    words[at[firsts]] |= np.bitwise_or.reduceat(values << shift, firsts)
    over = np.flatnonzero((ends - 1) >> 6 > at)  # at most one per word
    words[at[over] + 1] |= values[over] >> (np.uint64(64) - shift[over])


class Words(Protocol):
    """Takes words up one after the other."""

    def append(self, words: NDArray[np.uint64], /) -> None:
        """Take up uint64[n]."""

    def joined(self) -> NDArray[np.uint64]:
        """All of them."""


class JoinedBits:
    """Joins strings of bits, whose first bit is the lowest one of their first word.

    ``words`` gets the words of the whole. There are ``num_bits`` so far.
    """

    def __init__(self, words: Words):
        self._words = words
        self._num_words = 0
        self._rest = np.uint64(0)  # the bits that do not fill a word yet
        self.num_bits = 0

    def append(self, words: NDArray[np.uint64], num_bits: int) -> None:
        """Take up a string, uint64[n]; words may have zeros behind its end."""
        shift = self.num_bits % _WORD_BITS
        own = words[: -(-num_bits // _WORD_BITS)]
        moved = np.zeros(len(own) + 1, np.uint64)
        moved[:-1] = own << np.uint64(shift)
        if shift:
            moved[1:] |= own >> np.uint64(_WORD_BITS - shift)
        moved[0] |= self._rest
        full = (shift + num_bits) // _WORD_BITS
        self._words.append(moved[:full])
        self._rest = moved[full]
        self._num_words += full
        self.num_bits += num_bits

    def finish(self) -> NDArray[np.uint64]:
        """All strings, in the words of `words_of_bits`."""
        end = np.zeros(words_of_bits(self.num_bits) - self._num_words, np.uint64)
        end[0] = self._rest
        self._words.append(end)
        return self._words.joined()


class Gaps(NamedTuple):
    """Gaps between the ascending ids of each of several sets."""

    begins: NDArray[np.int64]  # int64[n], the first symbol to which each gap may lead
    lengths: NDArray[np.int64]  # int64[n], how many symbols each gap skips
    # int64[n], how many ids of the set were left, including the one that the gap leads to
    left: NDArray[np.int64]

    @classmethod
    def of(cls, sizes: NDArray[np.int64], ids: NDArray[np.int64]) -> "Gaps":
        """The gaps of sets that are not empty: int64[sets], and int64[n] one set after the other."""
        ends = np.cumsum(sizes)
        begins = np.zeros(len(ids), np.int64)
        begins[1:] = ids[:-1] + 1
        begins[ends - sizes] = 0
        return cls(begins, ids - begins, np.repeat(ends, sizes) - np.arange(len(ids)))


@dataclass(frozen=True)
class CodedRows:
    """The codes of rows. Immutable; safe to read from any number of threads.

    Raises ValueError: the parts do not fit each other.
    """

    words: NDArray[np.uint64]  # uint64[n], the codes of all rows and two words more; may be memory-mapped
    num_bits: int  # of the codes
    starts: EliasFano  # the bits at which rows, or groups of rows, begin; one ends where the next one begins
    check: BlockChecks | None  # of the words; None if all have been checked

    def __post_init__(self) -> None:
        if (
            self.words.ndim != 1
            or self.num_bits < 0
            or len(self.words) != words_of_bits(self.num_bits)
            or self.starts.by_value
        ):
            raise ValueError("the parts of the codes of rows do not fit each other")

    @property
    def size_bytes(self) -> int:
        """Bytes of the codes and of their index."""
        return int(self.words.nbytes) + self.starts.size_bytes

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The codes in the form in which the kernel reads them; see `RowReader`."""
        return self.words, self.num_bits, unfinished(self.check), *self.starts.arguments
