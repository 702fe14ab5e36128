"""Timed lists: the items of each row, an id and a tick each, newest first.

The items of a tick are a set: dropping their order saves bits. Symbols are numbered from the most to the
least popular.

    row      age of the first tick, its size, its ids;  gap to the next tick, its size, its ids;  ...
    offset   where each row begins (`elias_fano`); a row ends where the next one begins

Ages count back from the newest tick of all rows, gaps from the tick before. Gaps and sizes are stored minus
one. These numbers are coded by their class, followed by the bits that distinguish numbers of a class:

    class    x itself up to 3; above 2 b + h, where x has b + 1 bits and the second of them is h
    code     of the class: a canonical prefix code (Huffman) of at most 12 bits; then b - 1 bits of x

Each kind of number has a code of its own, fitted to the lists.

Ids of a tick ascend; each is stored as its distance from the one before, in a Golomb-Rice code. The width of
the code depends on the symbol where the gap begins, and on how many ids are left. Each symbol has five
widths: for 1, 2, 3 to 4, 5 to 8 and 9 to 16 ids. More ids mean shorter gaps: above 16, the last width falls
by one whenever their number doubles.

    gap      quotient in ones and a zero, then ``width`` bits; from a quotient of 24 on, 24 ones and 32 bits

If ``r`` ids are left, the next one is with probability 1/2 within the stretch of symbols that has

    1 - 2 ** (-1 / r)

of the uses of all symbols from here on, because with probability 1/2 none of r independent draws is in it.
The width is the logarithm of the nearest power of two to the stretch's length. But the items of a tick are
not independent: customers buy things that go together. `fitted_widths` finds the widths with which given
lists take the fewest bits, in runs of symbols. It adds a run if that saves more bits than the run takes.

Source: Huffman, "A method for the construction of minimum-redundancy codes", 1952; Gallager & Van Voorhis,
"Optimal source codes for geometrically distributed integer alphabets", 1975.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.kernel import AGES, GAPS, LONGEST_UNARY, NUM_CLASSES, NUM_WIDTHS, SIZES, ceil_log2
from feast_sketch_store.succinct.coded_rows import (
    CodedRows,
    Gaps,
    code_lengths,
    is_prefix_code,
    prefix_codes,
    prefix_table,
    put_bits,
)
from feast_sketch_store.succinct.elias_fano import EliasFano

MAX_WIDTH = 30

_LEFT = (1.0, 2.0, 3.5, 6.5, 12.5)  # the typical number of ids left, for each of the widths
_LONG_CODE = LONGEST_UNARY + 32
_RUN_BITS = 72  # bits of the end of a run, and of its width
_MAX_BLOCKS = 512  # groups of symbols of equal width

_ITEMS_PER_CHUNK = 1 << 20
_ITEMS_TO_FIT = 1 << 19


class Runs(NamedTuple):
    """Runs of symbols of equal width, for each of the five ranges of ids left."""

    ends: NDArray[np.int64]  # int64[R], the symbol after each run
    widths: NDArray[np.uint8]  # uint8[R]


def widths_of_independent(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The widths for independent symbols with these counts: int64[5, V]."""
    uses = np.cumsum(np.maximum(counts, 0.5))
    before = np.concatenate(([0.0], uses[:-1]))
    widths = []
    for left in _LEFT:
        half = before + (uses[-1] - before) * (1 - 0.5 ** (1 / left))
        lengths = np.searchsorted(uses, half) + 1 - np.arange(len(counts))
        widths.append(np.rint(np.log2(np.maximum(lengths, 1))).clip(0, MAX_WIDTH).astype(np.int64))
    return np.stack(widths)


def fitted_widths(counts: NDArray[np.int64], gaps: Gaps, share: float = 1.0) -> Runs:
    """The widths with which gaps take the fewest bits.

    Parameters
    ----------
    counts : int64[V], how often each symbol is used.
    gaps : of all ids, or of a sample.
    share : the share of all ids that the sample has.
    """
    if not len(counts):
        return Runs(np.zeros(0, np.int64), np.zeros(0, np.uint8))
    octaves = ceil_log2(gaps.left)
    kinds = np.minimum(octaves, NUM_WIDTHS - 1)
    runs = []
    for kind, usual in enumerate(widths_of_independent(counts)):
        own = np.flatnonzero(kinds == kind)
        begins = gaps.begins[own]
        block_of = _blocks(begins, usual)
        firsts = np.flatnonzero(np.diff(block_of, prepend=-1))
        bits = _bits_by_width(gaps.lengths[own], octaves[own] - kind, block_of[begins], len(firsts))
        # Symbols that the sample lacks are assumed independent.
        bits += np.abs(np.arange(len(bits))[:, None] - usual[firsts])
        runs.append(_runs(_cheapest(bits / share), np.append(firsts[1:], len(counts))))
    return Runs(*(np.concatenate(parts) for parts in zip(*runs, strict=True)))


def _blocks(begins: NDArray[np.int64], usual: NDArray[np.int64]) -> NDArray[np.int64]:
    """The block of each symbol: blocks have about equally many gaps, and symbols of one usual width."""
    uses = np.bincount(begins, minlength=len(usual))
    parts = (np.cumsum(uses) - uses) * _MAX_BLOCKS // max(1, len(begins))
    is_new = (np.diff(parts, prepend=0) > 0) | (np.diff(usual, prepend=usual[0]) != 0)
    return np.cumsum(is_new)


def _bits_by_width(
    gaps: NDArray[np.int64], shifts: NDArray[np.int64], block: NDArray[np.int64], num_blocks: int
) -> NDArray[np.float64]:
    """The bits of the gaps of each block with each width: float64[W, B].

    The width of a gap is that of its block, less the shift of the gap.
    """
    bits = np.empty((MAX_WIDTH + 1, num_blocks))
    for width in range(MAX_WIDTH + 1):
        own = np.maximum(width - shifts, 0)
        quotients = gaps >> own
        lengths = np.where(quotients < LONGEST_UNARY, quotients + 1 + own, _LONG_CODE)
        bits[width] = np.bincount(block, lengths, num_blocks)
    return bits


def _cheapest(bits: NDArray[np.float64]) -> NDArray[np.int64]:
    """The width of each block, int64[B], for which all blocks and their runs take the fewest bits."""
    num_widths, num_blocks = bits.shape
    same = np.arange(num_widths)
    before = np.empty((num_blocks, num_widths), np.int64)
    costs = bits[:, 0]
    for block in range(1, num_blocks):
        best = int(costs.argmin())
        stays = costs <= costs[best] + _RUN_BITS
        before[block] = np.where(stays, same, best)
        costs = np.minimum(costs, costs[best] + _RUN_BITS) + bits[:, block]
    widths = np.empty(num_blocks, np.int64)
    widths[-1] = costs.argmin()
    for block in range(num_blocks - 1, 0, -1):
        widths[block - 1] = before[block, widths[block]]
    return widths


def _runs(widths: NDArray[np.int64], ends: NDArray[np.int64]) -> Runs:
    """Blocks as runs of equal width."""
    last = np.append(np.flatnonzero(np.diff(widths)), len(widths) - 1)
    return Runs(ends[last], widths[last].astype(np.uint8))


@dataclass(frozen=True)
class ListCode:
    """How the lists of one feature are coded. Raises ValueError: such a code is not possible."""

    # uint8[3, 128], bits of the code of each class of ages, sizes and gaps; 0 for an unused class
    lengths: NDArray[np.uint8]
    # run_ends, run_widths: int64[R] and uint8[R]: where runs of symbols of equal width end, for the five
    # ranges of ids left, one after the other. The last run of each ends with the last symbol
    run_ends: NDArray[np.int64]
    run_widths: NDArray[np.uint8]

    def __post_init__(self) -> None:
        last = np.flatnonzero(self.run_ends == self.num_symbols)
        starts = np.concatenate(([0], self.run_ends[:-1]))
        starts[last[:-1] + 1] = 0
        if (
            self.lengths.shape != (3, NUM_CLASSES)
            or not all(map(is_prefix_code, self.lengths))
            or len(self.run_ends) != len(self.run_widths)
            or (self.num_symbols and len(last) != NUM_WIDTHS)
            or (self.run_ends <= starts).any()
            or self.run_widths.max(initial=0) > MAX_WIDTH
            or self.num_symbols >= 2**31
        ):
            raise ValueError("the codes do not fit the lists")

    @property
    def num_symbols(self) -> int:
        """The size of the vocabulary."""
        return int(self.run_ends[-1]) if len(self.run_ends) else 0

    @property
    def size_bytes(self) -> int:
        """Bytes of all parts."""
        return int(self.lengths.nbytes + self.run_ends.nbytes + self.run_widths.nbytes)

    @classmethod
    def fit(
        cls, counts: NDArray[np.int64], numbers: Sequence[NDArray[np.int64]], gaps: Gaps, share: float = 1.0
    ) -> "ListCode":
        """The best code.

        Parameters
        ----------
        counts : int64[V], how often each symbol occurs.
        numbers : all ages, sizes and gaps of ticks to be coded.
        gaps, share : of ids; see `fitted_widths`.
        """
        lengths = np.zeros((3, NUM_CLASSES), np.uint8)
        for kind, of_kind in enumerate(numbers):
            lengths[kind] = code_lengths(np.bincount(classes_of(of_kind), minlength=NUM_CLASSES))
        return cls(lengths, *fitted_widths(counts, gaps, share))

    @cached_property
    def widths(self) -> NDArray[np.uint8]:
        """The width of a gap that begins at a symbol if 1, 2, 3 to 4, 5 to 8, or 9 to 16 ids are left:
        uint8[5, V].
        """
        last = np.flatnonzero(self.run_ends == self.num_symbols) + 1
        runs = zip(np.split(self.run_ends, last[:-1]), np.split(self.run_widths, last[:-1]), strict=True)
        if not self.num_symbols:
            return np.zeros((NUM_WIDTHS, 0), np.uint8)
        return np.stack([np.repeat(widths, np.diff(ends, prepend=0)) for ends, widths in runs])

    @cached_property
    def tables(self) -> NDArray[np.uint16]:
        """The `prefix_table` of each kind of number: uint16[3, 4096]."""
        return np.stack([prefix_table(lengths) for lengths in self.lengths])


def classes_of(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """The class of each number, all at least 0: int64[n]."""
    bits = np.maximum(bit_lengths(numbers) - 1, 1)
    return np.where(numbers < 4, numbers, 2 * bits + ((numbers >> (bits - 1)) & 1))


def bit_lengths(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """The bit length of each number, all at least 0: int64[n]."""
    spread = numbers.copy()
    for shift in (1, 2, 4, 8, 16, 32):
        spread |= spread >> shift
    return np.bitwise_count(spread).astype(np.int64)


@dataclass(frozen=True)
class _Ticks:
    """Items of rows by ticks: where each tick begins, and the numbers that describe it."""

    starts: NDArray[np.int64]  # among the items
    is_first: NDArray[np.bool_]  # of its row
    gaps: NDArray[np.int64]  # from the tick before, or the age of the first one
    sizes: NDArray[np.int64]

    @classmethod
    def of(cls, indptr: NDArray[np.int64], ages: NDArray[np.int64]) -> "_Ticks":
        heads = indptr[:-1][indptr[1:] > indptr[:-1]]
        is_head, begins = np.zeros(len(ages), np.bool_), np.ones(len(ages), np.bool_)
        is_head[heads] = True
        begins[1:] = is_head[1:] | (ages[1:] != ages[:-1])
        starts = np.flatnonzero(begins)
        is_first = is_head[starts]
        gaps = ages[starts]
        gaps[1:] -= np.where(is_first[1:], 0, ages[starts[:-1]] + 1)
        return cls(starts, is_first, gaps, np.diff(starts, append=len(ages)))


@dataclass(frozen=True)
class TimedLists(CodedRows):
    """The lists of ``num_rows`` rows; ``code`` is that of all lists."""

    code: ListCode

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return len(self.starts)

    @property
    def size_bytes(self) -> int:
        """Bytes of the codes, of their index, and of the tables of the code."""
        return super().size_bytes + self.code.size_bytes

    @classmethod
    def build(
        cls,
        counts: NDArray[np.int64],
        indptr: NDArray[np.int64],
        ids: NDArray[np.int32],
        ages: NDArray[np.int64],
    ) -> "TimedLists":
        """Code lists.

        Parameters
        ----------
        counts : int64[V], how often each symbol occurs.
        indptr, ids, ages : the items of each row: int64[num_rows + 1], int32[nnz] and int64[nnz], at least 0.
            Items are distinct and ordered by age, and by id within an age.
        """
        ticks = _Ticks.of(indptr, ages)
        numbers = ticks.gaps[ticks.is_first], ticks.sizes - 1, ticks.gaps[~ticks.is_first]
        num_rows = max(1, int(np.searchsorted(indptr, _ITEMS_TO_FIT, side="right")) - 1)
        end = int(indptr[: num_rows + 1][-1])
        sizes = _Ticks.of(indptr[: num_rows + 1], ages[:end]).sizes
        shown = Gaps.of(sizes, ids[:end].astype(np.int64))
        code = ListCode.fit(counts, numbers, shown, end / len(ids) if len(ids) else 1.0)
        words, ends = _written(code, indptr, ids, ages)
        num_bits = int(ends[-1]) if len(ends) else 0
        return cls(words, num_bits, EliasFano.of_starts(ends), None, code)

    @property
    def arguments(self) -> tuple[Any, ...]:
        return self.code.tables, self.code.widths, self.code.num_symbols, *super().arguments


def _written(
    code: ListCode, indptr: NDArray[np.int64], ids: NDArray[np.int32], ages: NDArray[np.int64]
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """The words of all rows, and where each row ends."""
    words, ends, num_bits = np.zeros(0, np.uint64), [np.zeros(0, np.int64)], 0
    for first, stop in _chunks(indptr):
        part = slice(indptr[first], indptr[stop])
        own = indptr[first : stop + 1] - indptr[first]
        values, lengths, row_bits = _tokens(code, own, ids[part], ages[part])
        ends.append(num_bits + np.cumsum(row_bits))
        own_bits = int(lengths.sum(dtype=np.int64))
        words = np.concatenate((words, np.zeros((num_bits + own_bits) // 64 + 1 - len(words), np.uint64)))
        put_bits(words, num_bits, values, lengths)
        num_bits += own_bits
    return np.concatenate((words[: -(-num_bits // 64)], np.zeros(2, np.uint64))), np.concatenate(ends)


def _chunks(indptr: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Ranges of rows with about `_ITEMS_PER_CHUNK` items each: first row, and the row after the last."""
    first, num_rows = 0, len(indptr) - 1
    while first < num_rows:
        stop = int(np.searchsorted(indptr, indptr[first] + _ITEMS_PER_CHUNK, side="right")) - 1
        stop = min(max(stop, first + 1), num_rows)
        yield first, stop
        first = stop


def _tokens(
    code: ListCode, indptr: NDArray[np.int64], ids: NDArray[np.int32], ages: NDArray[np.int64]
) -> tuple[NDArray[np.uint64], NDArray[np.uint8], NDArray[np.int64]]:
    """The bits of each part of each code, the number of these bits, and the bits of each row."""
    ticks = _Ticks.of(indptr, ages)
    # The first id of a tick follows two numbers, of two parts each.
    before = np.zeros(len(ids), np.int64)
    before[ticks.starts] = 4
    indices = np.arange(len(ids)) + np.cumsum(before)
    values, lengths = (
        np.zeros(len(ids) + before.sum(), np.uint64),
        np.zeros(len(ids) + before.sum(), np.uint8),
    )
    values[indices], lengths[indices] = _id_tokens(code, ticks, ids.astype(np.int64))
    heads = indices[ticks.starts] - 4
    kinds = np.where(ticks.is_first, AGES, GAPS)
    for at, kind, numbers in (
        (heads, kinds, ticks.gaps),
        (heads + 2, np.full(len(kinds), SIZES), ticks.sizes - 1),
    ):
        classes = classes_of(numbers)
        codes = np.stack([prefix_codes(of_kind) for of_kind in code.lengths])
        values[at], lengths[at] = codes[kind, classes], code.lengths[kind, classes]
        extra = np.maximum((classes >> 1) - 1, 0)
        values[at + 1] = (numbers & ((1 << extra) - 1)).astype(np.uint64)
        lengths[at + 1] = extra
    sums = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    first_tokens = np.concatenate((indices - before, [len(values)]))[indptr]
    return values, lengths, np.diff(sums[first_tokens])


def _id_tokens(
    code: ListCode, ticks: _Ticks, ids: NDArray[np.int64]
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """The code of each id, and its length."""
    begins, gaps, left = Gaps.of(ticks.sizes, ids)
    octaves = ceil_log2(left)
    width = code.widths[np.minimum(octaves, NUM_WIDTHS - 1), begins].astype(np.int64)
    width = np.maximum(width - np.maximum(octaves - (NUM_WIDTHS - 1), 0), 0)
    quotient = gaps >> width
    is_plain = quotient < LONGEST_UNARY
    quotient = np.minimum(quotient, LONGEST_UNARY)
    rest = np.where(is_plain, gaps & ((1 << width) - 1), gaps)
    values = ((1 << quotient) - 1) | (rest << (quotient + is_plain))
    return values.astype(np.uint64), quotient + is_plain + np.where(is_plain, width, 32)
