"""Canonical prefix codes of at most 12 bits, and bits of values one after the other.

Source: Huffman, "A method for the construction of minimum-redundancy codes", 1952.
"""

import heapq

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.kernel import PREFIX_BITS


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
