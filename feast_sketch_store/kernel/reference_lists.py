"""Lists of timed items, decoded in NumPy; `succinct.timed_lists` says how they are coded."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.kernel.reference_rows import (
    AscendingNumbers,
    RowIndex,
    find_rows,
    row_hashes,
    take_ascending,
)

LONGEST_UNARY = 24  # this many ones precede a number of 32 bits
PREFIX_BITS = 12  # of the longest code of a class
NUM_CLASSES = 128
NUM_WIDTHS = 5  # of a gap, by how many ids are left
AGES, SIZES, GAPS = 0, 1, 2  # the three kinds of numbers

_DAMAGED = "a list cannot be read"
_MAX_AGE = 1 << 60
_LAST_CLASS = 121  # of numbers of 61 bits


class ListCodes(NamedTuple):
    """How lists are coded.

    Parameters
    ----------
    tables : uint16[3, 4096], for each kind of number and the next bits: 16 times the class whose code they
        begin with, plus the length of the code; 0 if no code begins so.
    widths : uint8[5, V], the width of a gap that begins at a symbol if 1, 2, 3 to 4, 5 to 8, or 9 to 16 ids
        are left.
    """

    tables: NDArray[np.uint16]
    widths: NDArray[np.uint8]


def read_lists(
    codes: ListCodes,
    words: NDArray[np.uint64],
    spans: tuple[NDArray[np.int64], NDArray[np.int64]],
    limit: int,
    oldest: int,
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
    """The newest items of lists.

    Parameters
    ----------
    codes : of the lists.
    words : uint64[n], the codes and two words more.
    spans : where each list begins and ends, in bits: int64[m] each.
    limit : the most items of each list.
    oldest : the highest age, in ticks.

    Returns
    -------
    A CSR matrix, int64[m + 1] and int32[nnz], and the age of each item, int64[nnz]. Ages ascend, and so do
    ids within an age.

    Raises
    ------
    ValueError : the codes are damaged.
    """
    starts, stops = spans
    if len(starts) and not (
        starts.min() >= 0 and (starts <= stops).all() and stops.max() <= 64 * (len(words) - 2)
    ):
        raise ValueError(_DAMAGED)
    reader = _Reader(codes, words, starts, stops)
    parts = []
    active = np.flatnonzero(starts < stops) if limit > 0 else starts[:0]
    for _ in range(limit):
        active = reader.next_groups(active, oldest)
        if not len(active):
            break
        parts.append((active, reader.next_ids(active), reader.age[active]))
        active = active[(reader.bit[active] < stops[active]) | (reader.left[active] > 0)]
    nothing = np.zeros(0, np.int64)
    rows, ids, ages = (np.concatenate([nothing, *(part[k] for part in parts)]) for k in range(3))
    order = np.argsort(rows, kind="stable")
    indptr = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(np.bincount(rows, minlength=len(starts)), out=indptr[1:])
    return indptr, ids[order].astype(np.int32), ages[order]


def find_lists(
    codes: ListCodes,
    words: NDArray[np.uint64],
    num_bits: int,
    starts: AscendingNumbers,
    index: RowIndex,
    salt: tuple[int, int],
    entity_hashes: NDArray[np.uint64],
    limit: int,
    oldest: int,
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
    """The newest items of entities, given by their hashes, uint64[m, 2]; an entity without a row has none.

    Parameters
    ----------
    num_bits : of the codes.
    starts : where each row begins; it ends where the next one begins.
    index, salt : find the rows.
    codes, words, limit, oldest : see `read_lists`, which also says what is returned and raised.
    """
    rows = find_rows(index, row_hashes(entity_hashes, salt))
    found = np.flatnonzero(rows >= 0)
    rows = rows[found]
    following = np.minimum(rows + 1, starts.length - 1)
    first, last = (take_ascending(starts, places).view(np.int64) for places in (rows, following))
    last = np.where(rows + 1 < starts.length, last, num_bits)
    if num_bits > 64 * (len(words) - 2) or (len(last) and last.max() > num_bits):
        raise ValueError(_DAMAGED)
    own, ids, ages = read_lists(codes, words, (first, last), limit, oldest)
    indptr = np.zeros(len(entity_hashes) + 1, np.int64)
    indptr[found + 1] = np.diff(own)
    return np.cumsum(indptr), ids, ages


class _Reader:
    """Reads many lists side by side, one item of each at a time."""

    def __init__(
        self, codes: ListCodes, words: NDArray[np.uint64], starts: NDArray[np.int64], stops: NDArray[np.int64]
    ):
        self._codes, self._words, self._stops = codes, words, stops
        self.bit = starts.copy()
        self.age = np.full(len(starts), -1)
        self.left = np.zeros(len(starts), np.int64)  # ids left in the tick
        self._next = np.zeros(len(starts), np.int64)  # the least id that can come next

    def next_groups(self, rows: NDArray[np.int64], oldest: int) -> NDArray[np.int64]:
        """Go to the next tick in rows without ids left. Returns the rows with a tick that is not too old."""
        ended = rows[self.left[rows] == 0]
        is_first = self.age[ended] < 0
        for kind, chosen in ((AGES, ended[is_first]), (GAPS, ended[~is_first])):
            self.age[chosen] += self._numbers(chosen, kind) + 1
        if len(ended) and self.age[ended].max() >= _MAX_AGE:
            raise ValueError(_DAMAGED)
        self.left[ended] = self._numbers(ended, SIZES) + 1
        self._next[ended] = 0
        if (self.left[ended] > self._codes.widths.shape[1]).any():
            raise ValueError(_DAMAGED)
        return rows[self.age[rows] <= oldest]

    def next_ids(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The next id of each row."""
        widths, first, left = self._codes.widths, self._next[rows], self.left[rows]
        if len(rows) and first.max() >= widths.shape[1]:
            raise ValueError(_DAMAGED)
        octaves = ceil_log2(left)
        width = widths[np.minimum(octaves, NUM_WIDTHS - 1), first].astype(np.int64)
        width = np.maximum(width - np.maximum(octaves - (NUM_WIDTHS - 1), 0), 0)
        bits = self._peek(rows)
        zeros = ~bits
        quotient = np.bitwise_count((zeros & -zeros) - np.uint64(1)).astype(np.int64)
        quotient = np.minimum(quotient, LONGEST_UNARY)
        is_plain = quotient < LONGEST_UNARY
        width = np.where(is_plain, width, 32)
        length = quotient + is_plain + width
        rest = (bits >> (quotient + is_plain).astype(np.uint64)) & (
            (np.uint64(1) << width.astype(np.uint64)) - np.uint64(1)
        )
        gap = rest.astype(np.int64) + np.where(is_plain, quotient << width, 0)
        ids = first + gap
        self._advance(rows, length)
        if len(rows) and ids.max() >= widths.shape[1]:
            raise ValueError(_DAMAGED)
        self._next[rows] = ids + 1
        self.left[rows] -= 1
        return np.asarray(ids)

    def _numbers(self, rows: NDArray[np.int64], kind: int) -> NDArray[np.int64]:
        prefix = self._peek(rows) & np.uint64((1 << PREFIX_BITS) - 1)
        entries = self._codes.tables[kind][prefix.astype(np.int64)].astype(np.int64)
        classes = entries >> 4
        if not entries.all() or (classes > _LAST_CLASS).any():
            raise ValueError(_DAMAGED)
        self._advance(rows, entries & 15)
        extra = np.maximum((classes >> 1) - 1, 0)
        rest = self._peek(rows) & ((np.uint64(1) << extra.astype(np.uint64)) - np.uint64(1))
        self._advance(rows, extra)
        head = np.where(classes < 4, classes, (2 | classes & 1) << extra)
        return np.asarray(head + rest.astype(np.int64))

    def _peek(self, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
        word, shift = self.bit[rows] >> 6, (self.bit[rows] & 63).astype(np.uint64)
        above = self._words[word + 1] << np.uint64(1) << (np.uint64(63) - shift)
        return np.asarray(self._words[word] >> shift | above)

    def _advance(self, rows: NDArray[np.int64], length: NDArray[np.int64]) -> None:
        self.bit[rows] += length
        if (self.bit[rows] > self._stops[rows]).any():
            raise ValueError(_DAMAGED)


def ceil_log2(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """The exponent of the least power of two that is not below each number, at least 1: int64[n]."""
    return np.frexp((numbers - 1).astype(np.float64))[1].astype(np.int64)
