"""The gaps of sets in NumPy: the codes of many rows in lock step, and those of a few rows one by one.

Where a code begins, and how wide it is, is known only after the code before it was read. So rows are read
side by side, one code of each at a time. Rows are aligned by how many ids are left: the longest begin, and
others join them. Then the formula for a width has the same number of ids left in all rows.

A block of steps reads from 64 bits of each row, which are gathered once. The few rows whose codes do not fit
are read again, one by one. Blocks work on the complement of the codes, in which ones end unary numbers.
"""

from collections.abc import Callable
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LONGEST_UNARY = 24  # this many ones precede a number of 32 bits
MAX_WIDTH = 30
DAMAGED = "a set cannot be read"
NUM_TOLD = 256
NUM_LEFT = NUM_TOLD + 64

# The width of a gap: the index is its symbol's level plus `NO_LEVEL`, minus the level of the number of ids
# left.
NO_LEVEL = 255
WIDTHS = np.clip((np.arange(NO_LEVEL + 256) - NO_LEVEL) >> 2, 0, MAX_WIDTH)
_WIDTH_LIST = WIDTHS.tolist()
_WIDE = WIDTHS.astype(np.uint64)

# For fewer rows a step of NumPy takes longer than reading the codes one by one.
_FEW_ROWS = 32
_MOST_STEPS = 8  # of a block
_UNARY_BITS = 4  # of a code besides its width; hardly any code has more
_MOST_MISFITS = 1 / 8  # of the rows of a block; if there are more, its steps are halved
_WINDOW_BITS = 64
_NONE = np.zeros(0, np.int64)
# Arrays without dimensions: NumPy takes twice as long for a small array and a scalar.
_WORD_SHIFT, _BIT_MASK = np.array(6), np.array(63)
_ONE, _WORD_63 = np.array(1, np.uint64), np.array(63, np.uint64)

_CHUNK_BYTES = 40  # read at once if codes are read one by one
_LAST_BIT = 8 * _CHUNK_BYTES - 64  # the last bit of a chunk at which a code may begin
_SHORT_BITS = 11  # of codes that are looked up
_SHORT_MASK = (1 << _SHORT_BITS) - 1
_SMALL_VOCABULARY = 1 << 16


def half_octaves(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Twice the logarithm to base 2 of counts below 2**31, rounded; 0 for 0."""
    octaves = np.frexp(np.maximum(counts, 1))[1].astype(np.int64) - 1
    return np.asarray(2 * octaves + (counts * counts >= np.int64(2) << 2 * octaves))


def left_levels(left: NDArray[np.uint8], most: int) -> NDArray[np.int64]:
    """The levels to subtract if 0 to ``most`` ids are left: int64[most + 1]; see `SetCodes`."""
    told = left[: min(most + 1, NUM_TOLD)].astype(np.int64)
    if most < NUM_TOLD:
        return told
    return np.concatenate((told, left[NUM_TOLD + half_octaves(np.arange(NUM_TOLD, most + 1))]))


class GapCode:
    """The levels that decide the widths of the gaps of a feature's sets.

    Parameters
    ----------
    levels : uint8[V], of its symbols.
    left : uint8[320], of the number of ids left, to be subtracted from them; see `SetCodes`.
    """

    def __init__(self, levels: NDArray[np.uint8], left: NDArray[np.uint8]):
        self.levels, self._left = levels, left
        self._bases = NO_LEVEL - left_levels(left, NUM_TOLD - 1)

    @cached_property
    def highest(self) -> int:
        """The highest of the levels."""
        return int(self.levels.max(initial=0))

    @cached_property
    def wide_levels(self) -> NDArray[np.integer]:
        """The levels for NumPy, which indexes with int64 faster than with uint8."""
        return self.levels.astype(np.int64) if len(self.levels) <= _SMALL_VOCABULARY else self.levels

    @cached_property
    def level_of(self) -> bytes | memoryview:
        """The levels for Python loops, which index bytes fastest."""
        levels = self.levels
        return levels.tobytes() if len(levels) <= _SMALL_VOCABULARY else memoryview(levels.data)

    def bases(self, most: int) -> NDArray[np.int64]:
        """What to add to a level for an index of `WIDTHS`, if 0 to ``most`` or more ids are left."""
        if len(self._bases) <= most:
            self._bases = NO_LEVEL - left_levels(self._left, most)
        return self._bases

    def base_list(self, most: int) -> list[int]:
        """`bases` for Python loops."""
        return self._first_bases if most < NUM_TOLD else list(map(int, self.bases(most)))

    @cached_property
    def _first_bases(self) -> list[int]:
        return list(map(int, self.bases(0)[:NUM_TOLD]))


def read_gaps(
    words: NDArray[np.uint64],
    num_bits: int,
    bits: NDArray[np.int64],
    code: GapCode,
    indptr: NDArray[np.int64],
    ids: NDArray[np.int32],
) -> NDArray[np.int64]:
    """Read the ids of n sets whose first codes begin at ``bits``. Returns the bits after the last codes,
    int64[n].

    Parameters
    ----------
    words, num_bits : the codes; a word follows the one in which the last code begins.
    bits : int64[n]
    code : of the gaps.
    indptr : int64[n + 1], where the ids of each set go.
    ids : int32[nnz], to be filled.

    Raises
    ------
    ValueError, IndexError : the codes are damaged.
    """
    sizes = np.diff(indptr)
    order = np.argsort(-sizes, kind="stable")
    # How many rows have more than 0, 1, 2 ... ids.
    remaining = (len(sizes) - np.cumsum(np.bincount(sizes))).tolist()
    num_steps = len(remaining)
    while num_steps and remaining[num_steps - 1] < _FEW_ROWS:
        num_steps -= 1
    read_row = row_reader(words, num_bits, code, len(remaining))
    stops, sizes = indptr[1:][order], sizes[order]
    bits, following = bits[order], np.zeros(len(bits), np.int64)
    for row in range(remaining[num_steps] if num_steps < len(remaining) else 0):
        stop, size = int(stops[row]), int(sizes[row])
        found, bits[row] = read_row(int(bits[row]), 0, size, num_steps)
        ids[stop - size : stop - num_steps] = found
        following[row] = found[-1]
    if num_steps:
        firsts = stops - np.minimum(sizes, num_steps)
        rows = _Rows(words, num_bits, code, bits, following, firsts, stops, read_row)
        _read_in_step(rows, remaining[:num_steps], ids)
    ids -= np.int32(1)
    ends = np.empty_like(bits)
    ends[order] = bits
    return ends


# Reads codes of one row: see `row_reader`.
_RowReader = Callable[[int, int, int, int], tuple[list[int], int]]


class _Rows(NamedTuple):
    """Rows that are read in lock step, longest first.

    Parameters
    ----------
    bits, following : int64[n], the bit of each row's next code, and the least id that can follow.
    firsts, stops : int64[n], where the ids that are left go.
    """

    words: NDArray[np.uint64]
    num_bits: int
    code: GapCode
    bits: NDArray[np.int64]
    following: NDArray[np.int64]
    firsts: NDArray[np.int64]
    stops: NDArray[np.int64]
    read_row: _RowReader


def _read_in_step(rows: _Rows, remaining: list[int], ids: NDArray[np.int32]) -> None:
    """Read the ids that are left in rows, and add one to each.

    Parameters
    ----------
    remaining : the number of rows with more than 0, 1, 2 ... ids left; as long as the longest row.
    """
    left, most, bases = len(remaining), _MOST_STEPS, rows.code.bases(len(remaining))
    while left:
        widest = _WIDTH_LIST[int(bases[max(1, left - most + 1) : left + 1].max()) + rows.code.highest]
        most = max(1, min(most, left, _WINDOW_BITS // (widest + _UNARY_BITS)))
        while True:
            counts = remaining[left - most : left][::-1]
            block = _Block.read(rows, bases[left - most + 1 : left + 1][::-1].tolist(), counts)
            misfits = block.misfits()
            if most == 1 or len(misfits) <= _MOST_MISFITS * counts[-1]:
                break
            most //= 2
        number, begins = counts[-1], block.last_begins
        for row in misfits.tolist():
            first = sum(count <= row for count in counts)
            following = int(block.after[first, row])
            found, bit = rows.read_row(int(rows.bits[row]), following, left - first, left - most)
            block.after[first + 1 :, row], block.ends[row], begins[row] = found, bit, 0
        places = rows.stops[:number] - np.arange(left, left - most, -1)[:, None]
        if counts[0] < number:  # rows that join later overwrite what is written for them before
            np.maximum(places, rows.firsts[:number], out=places)
        ids[places] = block.after[1:]
        rows.bits[:number], rows.following[:number] = block.ends, block.after[-1]
        left, most = left - most, min(2 * most, _MOST_STEPS)
    if (begins > rows.num_bits).any() or (rows.following > len(rows.code.levels)).any():
        raise ValueError(DAMAGED)


class _Block(NamedTuple):
    """The result of reading some steps from 64 bits of each of n rows.

    Parameters
    ----------
    after : int64[steps + 1, n], the least id that can follow before the steps and after each; 0 for rows that
        join later.
    unary : uint64[steps, n], the lengths of unary numbers, with the zeros at their ends.
    used : int64[n], the lengths of all codes.
    last_begins, ends : int64[n], the bits at which the last codes begin, and those after them.
    """

    after: NDArray[np.int64]
    unary: NDArray[np.uint64]
    used: NDArray[np.int64]
    last_begins: NDArray[np.int64]
    ends: NDArray[np.int64]

    @classmethod
    def read(cls, rows: _Rows, bases: list[int], counts: list[int]) -> "_Block":
        """Read one code of ``counts[step]`` rows in each step; counts ascend."""
        number, all_at_once = counts[-1], counts[0] == counts[-1]
        bits, levels = rows.bits[:number], rows.code.wide_levels
        rest = _windows(rows.words, bits)
        # Rows that join later have nothing in the first steps.
        make = np.empty if all_at_once else np.zeros
        after, numbers = make((len(bases) + 1, number), np.int64), np.empty(number, np.uint64)
        unary, widths = make((2, len(bases), number), np.uint64)
        after[0] = rows.following[:number]
        spare, place_of = rest.copy(), np.empty(number, levels.dtype)
        as_gaps = numbers.view(np.int64)
        steps = zip(bases, counts, after, after[1:], unary, widths, strict=False)
        for base, count, begin, end, ones, width in steps:
            here, other, gap, gaps, own = rest, spare, numbers, as_gaps, place_of
            if count < number:
                begin, end, ones, width = begin[:count], end[:count], ones[:count], width[:count]
                here, other, own = here[:count], other[:count], own[:count]
                gap, gaps = gap[:count], gaps[:count]
            np.subtract(here, _ONE, gap)
            gap ^= here
            np.bitwise_count(gap, ones)
            levels.take(begin, None, own, "clip")
            _WIDE[base : base + 256].take(own, None, width, "clip")
            # Without the zero, and with the complement of the bits after it: (ones << width) - those bits.
            here >>= ones
            np.right_shift(here, width, other)
            np.add(other, ones, gap)
            gap <<= width
            gap -= here
            np.add(begin, gaps, end)
            rest, spare = spare, rest
        lengths = unary[-1] + widths[-1]
        used = (np.add.reduce(unary) + np.add.reduce(widths)).view(np.int64)
        ends = bits + used
        return cls(after, unary, used, ends - lengths.view(np.int64), ends)

    def misfits(self) -> NDArray[np.int64]:
        """The rows with a code that is not in the 64 bits, or a long one: int64[m]."""
        if np.maximum.reduce(self.used) <= _WINDOW_BITS and self.unary.max() <= LONGEST_UNARY:
            return _NONE
        return np.flatnonzero((self.used > _WINDOW_BITS) | (self.unary > LONGEST_UNARY).any(axis=0))


def _windows(words: NDArray[np.uint64], bits: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The complement of 64 bits from each position on: uint64[n]."""
    places, shifts = bits >> _WORD_SHIFT, (bits & _BIT_MASK).view(np.uint64)
    windows, others = words.take(places, mode="clip"), words[1:].take(places, mode="clip")
    windows >>= shifts
    shifts ^= _WORD_63
    others <<= shifts  # some machines cannot shift by 64; two steps leave nothing
    others <<= _ONE
    windows |= others
    return np.asarray(np.invert(windows, out=windows))


def row_reader(words: NDArray[np.uint64], num_bits: int, code: GapCode, most: int) -> _RowReader:
    """Make a function that reads codes of one set with at most ``most`` ids left.

    Its parameters are the bit of the first code, the least id that can follow, how many ids are left, and how
    many of them not to read. It returns the least id that can follow each one read, and the bit after them.
    It raises ValueError or IndexError if the codes are damaged.
    """
    content, tables = memoryview(words.data).cast("B"), _short_codes()
    bases, level_of = code.base_list(most), code.level_of

    def read(bit: int, following: int, left: int, unread: int) -> tuple[list[int], int]:
        found, begin, last, chunk = [], bit, -1, 0
        for base in bases[left:unread:-1]:
            if bit > last:
                first = bit >> 3
                chunk = int.from_bytes(content[first : first + _CHUNK_BYTES], "little") >> (bit & 7)
                last = 8 * first + _LAST_BIT
            begin = bit
            place = base + level_of[following]
            gap, length = tables[place][chunk & _SHORT_MASK]
            if not length:
                unary = (chunk ^ (chunk + 1)).bit_length()  # with the zero after the ones
                width = _WIDTH_LIST[place]
                if unary <= LONGEST_UNARY:
                    gap = ((unary - 1) << width) + (chunk >> unary & ((1 << width) - 1)) + 1
                    length = unary + width
                else:
                    gap = (chunk >> LONGEST_UNARY & 0xFFFFFFFF) + 1
                    length = LONGEST_UNARY + 32
            chunk >>= length
            bit += length
            following += gap
            found.append(following)
        if begin > num_bits or following > len(level_of):
            raise ValueError(DAMAGED)
        return found, bit

    return read


def read_code(content: memoryview, bit: int, width: int) -> tuple[int, int]:
    """The number whose code begins at a bit of some bytes, and the bit after it."""
    first = bit >> 3
    code = int.from_bytes(content[first : first + 9], "little") >> (bit & 7)
    unary = (code ^ (code + 1)).bit_length()
    if unary > LONGEST_UNARY:
        return code >> LONGEST_UNARY & 0xFFFFFFFF, bit + LONGEST_UNARY + 32
    return ((unary - 1) << width) + (code >> unary & ((1 << width) - 1)), bit + unary + width


@cache
def _short_codes() -> list[list[tuple[int, int]]]:
    """For each of `WIDTHS` and each pattern of bits: the gap plus one, and its length, 0 if longer."""
    bits = np.arange(_SHORT_MASK + 1)
    unary = np.bitwise_count(bits ^ (bits + 1)).astype(np.int64)
    tables = []
    for width in range(_SHORT_BITS):
        gaps = ((unary - 1) << width) + (bits >> unary & ((1 << width) - 1)) + 1
        lengths = np.where(unary + width <= _SHORT_BITS, unary + width, 0)
        tables.append(list(zip(gaps.tolist(), lengths.tolist(), strict=True)))
    tables.append([(0, 0)] * len(bits))
    return [tables[min(width, _SHORT_BITS)] for width in _WIDTH_LIST]
