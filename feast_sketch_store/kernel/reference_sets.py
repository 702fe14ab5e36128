"""Sets in NumPy: Golomb-Rice codes of ascending ids; `reference_gaps` reads their gaps.

A few sets that are coded by themselves are read with Python's integers, and without an array before the
answer: for one row, each call of NumPy takes as long as several codes.
"""

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.kernel.ascending import Sets
from feast_sketch_store.kernel.reference_gaps import (
    DAMAGED,
    LONGEST_UNARY,
    MAX_WIDTH,
    NUM_LEFT,
    WIDTHS,
    GapCode,
    half_octaves,
    read_code,
    read_gaps,
    row_reader,
)
from feast_sketch_store.kernel.reference_rows import AscendingNumbers, bits_at, take_ascending, words_of_bits

_ONE = np.uint64(1)
_ONE_BY_ONE = 16  # up to this many rows are read with Python's integers
_MASKS = ((1 << np.arange(MAX_WIDTH + 1)) - 1).astype(np.uint64)


class _SetCodes(NamedTuple):
    parameters: NDArray[np.int64]
    level_starts: NDArray[np.int64]
    levels: NDArray[np.uint8]
    left: NDArray[np.uint8]


class SetCodes(_SetCodes):
    """How the sets of each of F features are coded; `succinct.golomb_sets` has the formulas.

    ``parameters`` is int64[F, 3]: the width of headers; the number of headers for rows without a set; and the
    width of the number of others if the set is coded relative to those before it, else -1. Such a set has as
    many symbols as the one before it, and is never the first.

    Feature ``f`` has the levels ``levels[level_starts[f]:level_starts[f + 1]]``, uint8, one per symbol.
    ``left``, uint8[F, 320], is subtracted from them: for 0 to 255 ids left in a set, and then for more by
    half octaves; see `succinct.gap_levels`.
    """

    @cached_property
    def gaps(self) -> list[GapCode]:
        """The codes of each feature's gaps.

        Raises
        ------
        ValueError : the codes do not fit each other.
        """
        sizes, others_widths = np.diff(self.level_starts), self.parameters[:, 2]
        if (
            self.left.shape != (len(self.parameters), NUM_LEFT)
            or others_widths[0] >= 0
            or (np.diff(sizes)[others_widths[1:] >= 0] != 0).any()
        ):
            raise ValueError("the codes do not fit each other")
        ends = self.level_starts.tolist()
        return [
            GapCode(self.levels[first:end], left)
            for first, end, left in zip(ends, ends[1:], self.left, strict=False)
        ]

    @cached_property
    def told(self) -> list[list[int]]:
        """The parameters for Python loops."""
        return [list(map(int, own)) for own in self.parameters]


def write_sets(
    codes: SetCodes, headers: NDArray[np.int32], indptr: NDArray[np.int64], ids: NDArray[np.int32]
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Code sets.

    Parameters
    ----------
    headers : int32[n, F], the size of each set plus the number of headers for rows without one.
    indptr, ids : int64[n * F + 1] and int32[nnz]; row ``r * F + f`` has the ascending ids of a set.

    Returns
    -------
    The words, uint64[w], two more than the codes fill; and the bit after each row, int64[n].

    Raises
    ------
    ValueError : the sets do not fit their codes.
    """
    gaps = codes.gaps
    num_rows, num_features = headers.shape
    _check_sets(codes, headers, indptr, ids)
    sizes = np.diff(indptr).reshape(num_rows, num_features)
    segment = np.repeat(np.arange(sizes.size), sizes.reshape(-1))
    rows, feature = segment // num_features, segment % num_features
    pieces = _Pieces([], [], [])
    seen = Sets(np.zeros(num_rows + 1, np.int64), ids[:0])
    everyone = np.arange(num_rows)
    for number in range(num_features):
        width, _, others_width = codes.told[number]
        own = Sets.of(rows[feature == number], ids[feature == number], num_rows)
        pieces.add(everyone, headers[:, number], width)
        if others_width < 0:
            pieces.add_gaps(own, gaps[number])
            seen = own
            continue
        is_member = seen.has(own)
        others = own.where(~is_member)
        counted = np.flatnonzero((own.sizes > 0) & (seen.sizes > 0))
        pieces.add(counted, others.sizes[counted], others_width)
        pieces.add_inside(seen, own.where(is_member))
        pieces.add_gaps(others, gaps[number])
        seen = seen.with_all(others)
    return pieces.words(num_rows)


def read_sets(
    codes: SetCodes,
    words: NDArray[np.uint64],
    num_bits: int,
    starts: AscendingNumbers,
    rows: NDArray[np.int64],
    feature: int,
    own_ids: NDArray[np.int32] | None = None,
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32]]:
    """The sets of one feature of some rows: the reverse of `write_sets`.

    Parameters
    ----------
    words, num_bits : the codes.
    starts : the bit at which each row begins.
    rows : int64[m], row numbers.
    own_ids : int32[V], the feature's own id for each coded id, ascending, or -1 for one that it never has;
        None if they are the same.

    Returns
    -------
    The headers, int32[m], and the sets as a CSR matrix: indptr, int64[m + 1], and ids, int32[nnz].

    Raises
    ------
    ValueError : the codes are damaged.
    """
    _ = codes.gaps  # checks the codes first
    try:
        bits = take_ascending(starts, rows)
    except ValueError as error:
        raise ValueError(DAMAGED) from error
    if len(bits) and bits.max() > num_bits:
        raise ValueError(DAMAGED)
    if len(rows) <= _ONE_BY_ONE and all(others < 0 for _, _, others in codes.told[: feature + 1]):
        headers, found = _read_few(codes, words, num_bits, bits, feature)
    else:
        headers, found = _read_many(codes, words, num_bits, bits.astype(np.int64), feature)
    ids = found.ids
    if own_ids is not None:
        ids = own_ids[ids]
        if (ids < 0).any():
            raise ValueError(DAMAGED)
    return headers, found.indptr, ids


def _read_few(
    codes: SetCodes, words: NDArray[np.uint64], num_bits: int, bits: NDArray[np.uint64], feature: int
) -> tuple[NDArray[np.int32], Sets]:
    """The headers and sets of rows, one by one, if no set is coded relative to others."""
    content = memoryview(words.data).cast("B")
    headers, ends = list[int](), [0]
    ids = list[int]()
    for bit in bits.tolist():
        for number, gaps in enumerate(codes.gaps[: feature + 1]):
            width, no_set, _ = codes.told[number]
            if bit > num_bits:
                raise ValueError(DAMAGED)
            header, bit = read_code(content, bit, width)
            size = max(0, header - no_set)
            if size > len(gaps.levels):
                raise ValueError(DAMAGED)
            found = list[int]()
            if size:
                try:
                    found, bit = row_reader(words, num_bits, gaps, size)(bit, 0, size, 0)
                except IndexError as error:
                    raise ValueError(DAMAGED) from error
        headers.append(header)
        ids += found
        ends.append(len(ids))
    following = np.array(ids, np.int32)
    following -= np.int32(1)
    return np.array(headers, np.int32), Sets(np.array(ends), following)


def _read_many(
    codes: SetCodes, words: NDArray[np.uint64], num_bits: int, bits: NDArray[np.int64], feature: int
) -> tuple[NDArray[np.int32], Sets]:
    """The headers and sets of rows, all at once."""
    reader = _Reader(words, num_bits, bits)
    base = feature
    while codes.told[base][2] >= 0:
        base -= 1
    header = np.zeros(len(bits), np.int64)
    seen = found = Sets(np.zeros(len(bits) + 1, np.int64), np.zeros(0, np.int32))
    for number, gaps in enumerate(codes.gaps[: feature + 1]):
        width, no_set, others_width = codes.told[number]
        header = reader.headers(width)
        sizes = np.maximum(header - no_set, 0)
        if (sizes > len(gaps.levels)).any():
            raise ValueError(DAMAGED)
        if others_width < 0:
            seen = found = reader.sets(sizes, gaps)
            continue
        counted = np.flatnonzero((sizes > 0) & (seen.sizes > 0))
        num_others = sizes.copy()
        num_others[counted] = reader.codes(counted, np.full(len(counted), others_width))
        members = sizes - num_others
        if ((members < 0) | (members > seen.sizes) | (seen.sizes + num_others > len(gaps.levels))).any():
            raise ValueError(DAMAGED)
        inside = reader.inside(seen, members)
        others = reader.sets(num_others, gaps)
        if number == feature:
            found = inside.with_all(others)
        elif number > base:
            seen = seen.with_all(others)
        else:  # only their number matters
            seen = Sets(seen.indptr + others.indptr, np.zeros(len(seen.ids) + len(others.ids), np.int32))
    return header.astype(np.int32), found


class _Inside(NamedTuple):
    """How the members among the ids seen are coded in n rows; see ``inside_of`` in sets.c."""

    is_reversed: NDArray[np.bool_]
    is_bitmap: NDArray[np.bool_]
    coded: NDArray[np.int64]
    widths: NDArray[np.int64]

    @classmethod
    def of(cls, seen: NDArray[np.int64], members: NDArray[np.int64]) -> "_Inside":
        is_reversed = 2 * members > seen
        fewer = np.where(is_reversed, seen - members, members)
        is_dense = 8 * fewer >= 3 * seen
        widths = np.maximum(0, half_octaves(seen) - half_octaves(fewer) - 1) >> 1
        return cls(is_reversed, is_dense & (fewer > 0), np.where(is_dense, 0, fewer), widths)


class _Pieces(NamedTuple):
    """Codes: the row of each, its bits, and their number; codes of a row are in order."""

    rows: list[NDArray[np.int64]]
    contents: list[NDArray[np.uint64]]
    lengths: list[NDArray[np.int64]]

    def add(self, rows: NDArray[np.int64], numbers: NDArray[np.integer], widths: Any) -> None:
        """Add codes of numbers."""
        numbers = numbers.astype(np.int64)
        quotients = numbers >> widths
        is_long = quotients >= LONGEST_UNARY
        unary = np.minimum(quotients, LONGEST_UNARY).astype(np.uint64)
        start = np.where(is_long, unary, unary + _ONE)
        rest = np.where(is_long, numbers, numbers & ((1 << np.asarray(widths)) - 1)).astype(np.uint64)
        self.rows.append(rows)
        self.contents.append(((_ONE << unary) - _ONE) | rest << start)
        self.lengths.append(np.where(is_long, LONGEST_UNARY + 32, quotients + 1 + widths))

    def add_gaps(self, sets: Sets, code: GapCode) -> None:
        """Add codes of ids."""
        following = _following(sets)
        ids_left = sets.indptr[1:][sets.rows] - np.arange(len(sets.ids))
        bases = code.bases(int(sets.sizes.max(initial=0)))
        widths = WIDTHS[code.levels[following] + bases[ids_left]]
        self.add(sets.rows, sets.ids - following, widths)

    def add_inside(self, seen: Sets, members: Sets) -> None:
        """Add codes that say which of the ids seen are members."""
        inside, rows = _Inside.of(seen.sizes, members.sizes), seen.rows
        is_member = members.has(seen)
        in_bitmap = inside.is_bitmap[rows]
        self.rows.append(rows[in_bitmap])
        self.contents.append(is_member[in_bitmap].astype(np.uint64))
        self.lengths.append(np.ones(in_bitmap.sum(), np.int64))
        is_coded = (inside.coded > 0)[rows] & (is_member != inside.is_reversed[rows])
        places = (np.arange(len(rows)) - seen.indptr[rows]).astype(np.int32)
        coded = Sets(seen.indptr, places).where(is_coded)
        self.add(coded.rows, coded.ids - _following(coded), inside.widths[coded.rows])

    def words(self, num_rows: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """All codes, and the bit after each row."""
        rows = np.concatenate([*self.rows, np.zeros(0, np.int64)])
        order = np.argsort(rows, kind="stable")
        contents = np.concatenate([*self.contents, np.zeros(0, np.uint64)])[order]
        ends = np.cumsum(np.concatenate([*self.lengths, np.zeros(0, np.int64)])[order])
        starts = np.concatenate(([0], ends))
        words = np.zeros(words_of_bits(int(starts[-1])), np.uint64)
        places, shifts = starts[:-1] >> 6, (starts[:-1] & 63).astype(np.uint64)
        np.bitwise_or.at(words, places, contents << shifts)
        np.bitwise_or.at(words, places + 1, contents >> _ONE >> (np.uint64(63) - shifts))
        return words, starts[np.searchsorted(rows[order], np.arange(num_rows), side="right")]


class _Reader:
    """Reads the codes of rows, each from a given bit on."""

    def __init__(self, words: NDArray[np.uint64], num_bits: int, bits: NDArray[np.int64]):
        self._words, self._num_bits, self._bits = words, num_bits, bits

    def codes(self, rows: NDArray[np.int64], widths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Read the next number of some rows."""
        numbers, self._bits[rows] = _read_codes(self._words, self._num_bits, self._bits[rows], widths)
        return numbers

    def headers(self, width: int) -> NDArray[np.int64]:
        """Read the next number of all rows."""
        numbers, self._bits = _read_codes(
            self._words, self._num_bits, self._bits, np.full(len(self._bits), width)
        )
        return numbers

    def sets(self, sizes: NDArray[np.int64], code: GapCode) -> Sets:
        """Read sets with these sizes."""
        indptr = np.zeros(len(sizes) + 1, np.int64)
        np.cumsum(sizes, out=indptr[1:])
        ids = np.empty(indptr[-1], np.int32)
        try:
            self._bits = read_gaps(self._words, self._num_bits, self._bits, code, indptr, ids)
        except IndexError as error:  # past the last word, or a symbol that does not exist
            raise ValueError(DAMAGED) from error
        return Sets(indptr, ids)

    def inside(self, seen: Sets, members: NDArray[np.int64]) -> Sets:
        """Read which of the ids seen are members; ``members`` is their number in each row."""
        inside, rows = _Inside.of(seen.sizes, members), seen.rows
        places = np.arange(len(rows)) - seen.indptr[rows]
        is_member = inside.is_reversed[rows]
        in_bitmap = inside.is_bitmap[rows]
        bits = (self._bits[rows] + places)[in_bitmap]
        if (self._bits + seen.sizes > self._num_bits)[inside.is_bitmap].any():
            raise ValueError(DAMAGED)
        is_member[in_bitmap] = (bits_at(self._words, bits) & _ONE).astype(np.bool_)
        self._bits += np.where(inside.is_bitmap, seen.sizes, 0)
        coded = self._ascending(inside.coded, seen.sizes, inside.widths)
        is_member[seen.indptr[coded.rows] + coded.ids] ^= True
        found = seen.where(is_member)
        if (found.sizes != members).any():
            raise ValueError(DAMAGED)
        return found

    def _ascending(
        self, counts: NDArray[np.int64], stops: NDArray[np.int64], widths: NDArray[np.int64]
    ) -> Sets:
        """Read ``counts`` ascending numbers below ``stops`` for each row, coded as gaps."""
        indptr = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=indptr[1:])
        ids, following = np.zeros(indptr[-1], np.int32), np.zeros(len(counts), np.int64)
        for step in range(int(counts.max(initial=0))):
            left = np.flatnonzero(counts > step)
            following[left] += self.codes(left, widths[left]) + 1
            if (following > stops).any():
                raise ValueError(DAMAGED)
            ids[indptr[left] + step] = following[left] - 1
        return Sets(indptr, ids)


def _following(sets: Sets) -> NDArray[np.int64]:
    """Where the gap before each id begins."""
    following = np.concatenate(([0], sets.ids[:-1].astype(np.int64) + 1))[: len(sets.ids)]
    following[sets.indptr[:-1][sets.sizes > 0]] = 0
    return following


def _check_sets(
    codes: SetCodes, headers: NDArray[np.int32], indptr: NDArray[np.int64], ids: NDArray[np.int32]
) -> None:
    num_rows, num_features = headers.shape
    sizes = np.diff(indptr)
    feature = np.tile(np.arange(num_features), num_rows)
    header = headers.reshape(-1).astype(np.int64)
    no_set, num_symbols = codes.parameters[feature, 1], np.diff(codes.level_starts)[feature]
    segment = np.repeat(np.arange(len(sizes)), sizes)
    previous = np.concatenate(([-1], ids[:-1])).astype(np.int64)[: len(ids)]
    previous[indptr[:-1][sizes > 0]] = -1
    if (
        (header < 0).any()
        or (sizes != np.maximum(header - no_set, 0)).any()
        or (ids <= previous).any()
        or (ids >= num_symbols[segment]).any()
    ):
        raise ValueError("the sets do not fit their codes")


def _read_codes(
    words: NDArray[np.uint64], num_bits: int, bits: NDArray[np.int64], widths: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The numbers whose codes begin at these bits, and the bits after the codes: int64[n] each."""
    if len(bits) and not 0 <= bits.min() <= bits.max() <= num_bits:
        raise ValueError(DAMAGED)
    codes = bits_at(words, bits)
    unary = np.bitwise_count(codes ^ (codes + _ONE))
    numbers, lengths = _numbers(codes, unary, widths)
    return numbers, bits + lengths


def _numbers(
    codes: NDArray[np.uint64], unary: NDArray[np.uint8], widths: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The numbers that begin in 64 bits each, and the lengths of their codes: int64[n] each.

    Parameters
    ----------
    codes : uint64[n], the bits.
    unary : uint8[n], the number of ones at the start of the bits, plus one.
    widths : int64[n], of the codes.
    """
    is_long = unary > LONGEST_UNARY
    ones = np.where(is_long, 1, unary).astype(np.int64)
    rest = (codes >> ones.view(np.uint64) & _MASKS.take(widths)).view(np.int64)
    whole = (codes >> np.uint64(LONGEST_UNARY)).view(np.int64) & 0xFFFFFFFF
    numbers = np.where(is_long, whole, ((ones - 1) << widths) + rest)
    return numbers, np.where(is_long, LONGEST_UNARY + 32, ones + widths)
