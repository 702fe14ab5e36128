"""The kernel's sets in NumPy: Golomb-Rice codes of ascending ids.

Each code of a set begins where the one before it ends. So `read_sets` reads the next code of many rows at a
time. Where few rows are left, a call of NumPy takes longer than their codes, and it reads these one by one.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.kernel.ascending import Sets
from feast_sketch_store.kernel.reference_rows import AscendingNumbers, bits_at, take_ascending

_ONE = np.uint64(1)
_LONGEST_UNARY = 24  # this many ones announce a number of 32 bits
_MAX_WIDTH = 30
_DAMAGED = "a set cannot be read"

# For fewer rows a step of NumPy takes longer than reading their codes one by one.
_FEW_ROWS = 48
# Arrays of no dimension: NumPy takes twice as long for a small array and a scalar.
_WORD_SHIFT, _BIT_MASK, _NEXT = np.array(6), np.array(63), np.array(1)
_WORD_ONE, _WORD_63, _BYTE_ONE = np.array(1, np.uint64), np.array(63, np.uint64), np.array(1, np.uint8)

_CHUNK_WORDS = 5  # read at once for codes one by one; a code may end but not begin in the last of them
_SHORT_BITS = 11  # of a code that is looked up; at most 15
_SHORT_MASK = (1 << _SHORT_BITS) - 1

# The width of a gap by its symbol's level, plus `_NO_LEVEL` less the level of how many ids are left.
_NO_LEVEL = 255
_WIDTHS = np.clip((np.arange(_NO_LEVEL + 256) - _NO_LEVEL) >> 2, 0, _MAX_WIDTH)
_NUM_TOLD = 256
NUM_LEFT = _NUM_TOLD + 64
_WIDTH_LIST = _WIDTHS.tolist()
_MASKS = ((1 << np.arange(_MAX_WIDTH + 1)) - 1).astype(np.uint64)


_GapLevels = tuple[NDArray[np.uint8], NDArray[np.uint8]]  # as `SetCodes.of` gives them


class SetCodes(NamedTuple):
    """How the sets of each of F features are coded; `succinct.golomb_sets` has the formulas.

    ``parameters`` is int64[F, 3]: the width of headers; how many headers stand for rows without a set; and of
    a set that is coded with those before it the width of the number of others, or else -1. Such a set has as
    many symbols as the one before it, and is never the first.
    Feature ``f`` has the levels ``levels[level_starts[f]:level_starts[f + 1]]``, uint8, one per symbol.
    ``left``, uint8[F, 320], is subtracted from them: of 0 to 255 ids that are left of a set, and then by the
    half octaves of more; see `succinct.gap_levels`.
    """

    parameters: NDArray[np.int64]
    level_starts: NDArray[np.int64]
    levels: NDArray[np.uint8]
    left: NDArray[np.uint8]

    def of(self, feature: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """The levels of one feature, and what is subtracted from them."""
        first, end = self.level_starts[feature : feature + 2].tolist()
        return self.levels[first:end], self.left[feature]


def write_sets(
    codes: SetCodes, headers: NDArray[np.int32], indptr: NDArray[np.int64], ids: NDArray[np.int32]
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Code sets.

    Parameters
    ----------
    headers : int32[n, F], the size of each set, and as much more as there are headers for rows without one.
    indptr, ids : int64[n * F + 1] and int32[nnz]; row ``r * F + f`` has the ascending ids of a set.

    Returns
    -------
    The words, uint64[w], two more than the codes fill; and the bit after each row, int64[n].

    Raises
    ------
    ValueError : the sets do not fit their codes.
    """
    _check_codes(codes)
    num_rows, num_features = headers.shape
    _check_sets(codes, headers, indptr, ids)
    sizes = np.diff(indptr).reshape(num_rows, num_features)
    segment = np.repeat(np.arange(sizes.size), sizes.reshape(-1))
    rows, feature = segment // num_features, segment % num_features
    pieces = _Pieces([], [], [])
    seen = Sets(np.zeros(num_rows + 1, np.int64), ids[:0])
    everyone = np.arange(num_rows)
    for number in range(num_features):
        width, _, others_width = codes.parameters[number].tolist()
        levels = codes.of(number)
        own = Sets.of(rows[feature == number], ids[feature == number], num_rows)
        pieces.add(everyone, headers[:, number], width)
        if others_width < 0:
            pieces.add_gaps(own, levels)
            seen = own
            continue
        is_member = seen.has(own)
        others = own.where(~is_member)
        counted = np.flatnonzero((own.sizes > 0) & (seen.sizes > 0))
        pieces.add(counted, others.sizes[counted], others_width)
        pieces.add_inside(seen, own.where(is_member))
        pieces.add_gaps(others, levels)
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
    rows : int64[m], their numbers.
    own_ids : int32[V], the feature's own id for each coded id, ascending, or -1 for one that it never has;
        None if they are the same.

    Returns
    -------
    The headers, int32[m], and the sets as a CSR matrix: indptr, int64[m + 1], and ids, int32[nnz].

    Raises
    ------
    ValueError : the codes are damaged.
    """
    _check_codes(codes)
    try:
        bits = take_ascending(starts, rows)
    except ValueError as error:
        raise ValueError(_DAMAGED) from error
    if len(bits) and bits.max() > num_bits:
        raise ValueError(_DAMAGED)
    reader = _Reader(words, num_bits, bits.astype(np.int64))
    base = feature
    while codes.parameters[base, 2] >= 0:
        base -= 1
    header = np.zeros(len(rows), np.int64)
    seen = found = Sets(np.zeros(len(rows) + 1, np.int64), np.zeros(0, np.int32))
    for number in range(feature + 1):
        width, no_set, others_width = codes.parameters[number].tolist()
        levels = codes.of(number)
        num_symbols = len(levels[0])
        header = reader.codes(np.arange(len(rows)), np.full(len(rows), width))
        sizes = np.maximum(header - no_set, 0)
        if (sizes > num_symbols).any():
            raise ValueError(_DAMAGED)
        if others_width < 0:
            seen = found = reader.sets(sizes, levels)
            continue
        counted = np.flatnonzero((sizes > 0) & (seen.sizes > 0))
        num_others = sizes.copy()
        num_others[counted] = reader.codes(counted, np.full(len(counted), others_width))
        members = sizes - num_others
        if ((members < 0) | (members > seen.sizes) | (seen.sizes + num_others > num_symbols)).any():
            raise ValueError(_DAMAGED)
        inside = reader.inside(seen, members)
        others = reader.sets(num_others, levels)
        if number == feature:
            found = inside.with_all(others)
        elif number > base:
            seen = seen.with_all(others)
        else:  # only how many there are matters
            seen = Sets(seen.indptr + others.indptr, np.zeros(len(seen.ids) + len(others.ids), np.int32))
    ids = found.ids
    if own_ids is not None:
        ids = own_ids[ids]
        if (ids < 0).any():
            raise ValueError(_DAMAGED)
    return header.astype(np.int32), found.indptr, ids


def _read_members(
    words: NDArray[np.uint64],
    num_bits: int,
    bits: NDArray[np.int64],
    gap_levels: _GapLevels,
    indptr: NDArray[np.int64],
    ids: NDArray[np.int32],
) -> NDArray[np.int64]:
    """Read the ids of n sets whose first codes begin at some bits: the bits after the last ones, int64[n].

    Raises
    ------
    ValueError, IndexError : the codes are damaged.
    """
    sizes, (levels, left) = np.diff(indptr), gap_levels
    order = np.argsort(-sizes, kind="stable")  # so that the rows which go on come first
    begins, places = bits[order], indptr[:-1][order]
    # By how many ids are left, as few steps as there are: what a level counts from.
    bases, ids_left = _NO_LEVEL - left_levels(left, int(sizes.max(initial=0))), sizes[order]
    following, lengths = np.zeros((2, len(bits)), np.int64)
    words_behind = words[1:]
    remaining = len(sizes) - np.cumsum(np.bincount(sizes))
    num_steps = int((remaining >= _FEW_ROWS).sum())
    # In place and with few calls: for some hundred rows, a call takes as long as its work.
    for number in remaining[:num_steps].tolist():
        begin, after, place = begins[:number], following[:number], places[:number]
        begin += lengths[:number]
        word = begin >> _WORD_SHIFT
        shift = (begin & _BIT_MASK).view(np.uint64)
        code, behind = words.take(word), words_behind.take(word)
        code >>= shift
        shift ^= _WORD_63
        behind <<= shift
        behind <<= _WORD_ONE
        code |= behind
        unary = np.bitwise_count(code ^ (code + _WORD_ONE))  # with the zero after the ones
        level = bases.take(ids_left[:number])
        level += levels.take(after)
        width = _WIDTHS.take(level)
        ids_left[:number] -= _NEXT
        if np.maximum.reduce(unary) > _LONGEST_UNARY:
            gaps, lengths[:number] = _numbers(code, unary, width)
            after += gaps
        else:
            np.add(unary, width, out=lengths[:number])
            code >>= unary
            code &= _MASKS.take(width)
            unary -= _BYTE_ONE
            after += unary << width
            after += code.view(np.int64)
        ids[place] = after
        place += _NEXT
        after += _NEXT
    if (begins > num_bits).any() or (following > len(levels)).any():
        raise ValueError(_DAMAGED)
    bits, places = begins + lengths, indptr[:-1][order]
    if num_steps < len(remaining):
        num_left, sizes = int(remaining[num_steps]), sizes[order]
        read_row = _row_reader(words, num_bits, levels, bases.tolist())
        long_rows = zip(places[:num_left].tolist(), sizes[:num_left].tolist(), strict=True)
        for row, (place, size) in enumerate(long_rows):
            numbers, bits[row] = read_row(int(bits[row]), int(following[row]), size - num_steps)
            ids[place + num_steps : place + size] = numbers
    ends = np.empty_like(bits)
    ends[order] = bits
    return ends


def _row_reader(
    words: NDArray[np.uint64], num_bits: int, levels: NDArray[np.uint8], bases: list[int]
) -> Callable[[int, int, int], tuple[list[int], int]]:
    """Make a function that reads the last codes of one set; ``bases`` go by how many ids are left.

    Its parameters are the bit of the first code, the least symbol that can follow, and how many codes to
    read. It returns their ids and the bit after them, and raises ValueError or IndexError if the codes are
    damaged.
    """
    content, level_of = memoryview(words.data).cast("B"), memoryview(levels.data)
    tables = _short_codes()

    def read(bit: int, following: int, count: int) -> tuple[list[int], int]:
        ids = []
        chunk, start, last, begin = 0, bit, -1, bit
        for base in bases[count:0:-1]:
            if bit > last:
                start, last = bit & ~63, (bit & ~63) + 64 * (_CHUNK_WORDS - 1)
                chunk = int.from_bytes(content[start >> 3 : (start >> 3) + 8 * _CHUNK_WORDS], "little")
            begin = bit
            code = chunk >> (bit - start)
            place = base + level_of[following]
            short = tables[place][code & _SHORT_MASK]
            if short:
                following += short >> 4
                bit += short & 15
            else:
                unary = (code ^ (code + 1)).bit_length()  # with the zero after the ones
                width = _WIDTH_LIST[place]
                if unary <= _LONGEST_UNARY:
                    following += ((unary - 1) << width) + (code >> unary & ((1 << width) - 1))
                    bit += unary + width
                else:
                    following += code >> _LONGEST_UNARY & 0xFFFFFFFF
                    bit += _LONGEST_UNARY + 32
            ids.append(following)
            following += 1
        if begin > num_bits or following > len(levels):
            raise ValueError(_DAMAGED)
        return ids, bit

    return read


@cache
def _short_codes() -> list[list[int]]:
    """For each of `_WIDTHS` the code that bits begin with: ``number << 4 | length``, 0 for longer ones."""
    bits = np.arange(_SHORT_MASK + 1)
    unary = np.bitwise_count(bits ^ (bits + 1)).astype(np.int64)
    tables = []
    for width in range(_MAX_WIDTH + 1):
        numbers = ((unary - 1) << width) + (bits >> unary & ((1 << width) - 1))
        is_short = unary + width <= _SHORT_BITS
        tables.append(np.where(is_short, numbers << 4 | unary + width, 0).tolist())
    return [tables[width] for width in _WIDTH_LIST]


class _Inside(NamedTuple):
    """How the members among the ids seen in n rows are coded; see ``inside_of`` in sets.c."""

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
    """Codes: which row each belongs to, its bits, and how many; those of a row in their order."""

    rows: list[NDArray[np.int64]]
    contents: list[NDArray[np.uint64]]
    lengths: list[NDArray[np.int64]]

    def add(self, rows: NDArray[np.int64], numbers: NDArray[np.integer], widths: Any) -> None:
        """Codes of numbers."""
        numbers = numbers.astype(np.int64)
        quotients = numbers >> widths
        is_long = quotients >= _LONGEST_UNARY
        unary = np.minimum(quotients, _LONGEST_UNARY).astype(np.uint64)
        behind = np.where(is_long, unary, unary + _ONE)
        rest = np.where(is_long, numbers, numbers & ((1 << np.asarray(widths)) - 1)).astype(np.uint64)
        self.rows.append(rows)
        self.contents.append(((_ONE << unary) - _ONE) | rest << behind)
        self.lengths.append(np.where(is_long, _LONGEST_UNARY + 32, quotients + 1 + widths))

    def add_gaps(self, sets: Sets, gap_levels: _GapLevels) -> None:
        """Codes of ids."""
        following, (levels, left) = _following(sets), gap_levels
        ids_left = sets.indptr[1:][sets.rows] - np.arange(len(sets.ids))
        bases = _NO_LEVEL - left_levels(left, int(sets.sizes.max(initial=0)))
        widths = _WIDTHS[levels[following] + bases[ids_left]]
        self.add(sets.rows, sets.ids - following, widths)

    def add_inside(self, seen: Sets, members: Sets) -> None:
        """Codes of which ids that were seen are members."""
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
        words = np.zeros(int(starts[-1]) // 64 + 2, np.uint64)
        places, shifts = starts[:-1] >> 6, (starts[:-1] & 63).astype(np.uint64)
        np.bitwise_or.at(words, places, contents << shifts)
        np.bitwise_or.at(words, places + 1, contents >> _ONE >> (np.uint64(63) - shifts))
        return words, starts[np.searchsorted(rows[order], np.arange(num_rows), side="right")]


class _Reader:
    """Reads the codes of rows, from a bit of each on."""

    def __init__(self, words: NDArray[np.uint64], num_bits: int, bits: NDArray[np.int64]):
        self._words, self._num_bits, self._bits = words, num_bits, bits

    def codes(self, rows: NDArray[np.int64], widths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Read the next number of some rows."""
        numbers, self._bits[rows] = _read_codes(self._words, self._num_bits, self._bits[rows], widths)
        return numbers

    def sets(self, sizes: NDArray[np.int64], levels: _GapLevels) -> Sets:
        """Read sets of given sizes."""
        indptr = np.zeros(len(sizes) + 1, np.int64)
        np.cumsum(sizes, out=indptr[1:])
        ids = np.empty(indptr[-1], np.int32)
        try:
            self._bits = _read_members(self._words, self._num_bits, self._bits, levels, indptr, ids)
        except IndexError as error:  # of a word after the last, or of a symbol that does not exist
            raise ValueError(_DAMAGED) from error
        return Sets(indptr, ids)

    def inside(self, seen: Sets, members: NDArray[np.int64]) -> Sets:
        """So many of the ids that were seen."""
        inside, rows = _Inside.of(seen.sizes, members), seen.rows
        places = np.arange(len(rows)) - seen.indptr[rows]
        is_member = inside.is_reversed[rows]
        in_bitmap = inside.is_bitmap[rows]
        bits = (self._bits[rows] + places)[in_bitmap]
        if (self._bits + seen.sizes > self._num_bits)[inside.is_bitmap].any():
            raise ValueError(_DAMAGED)
        is_member[in_bitmap] = (bits_at(self._words, bits) & _ONE).astype(np.bool_)
        self._bits += np.where(inside.is_bitmap, seen.sizes, 0)
        coded = self._ascending(inside.coded, seen.sizes, inside.widths)
        is_member[seen.indptr[coded.rows] + coded.ids] ^= True
        found = seen.where(is_member)
        if (found.sizes != members).any():
            raise ValueError(_DAMAGED)
        return found

    def _ascending(
        self, counts: NDArray[np.int64], stops: NDArray[np.int64], widths: NDArray[np.int64]
    ) -> Sets:
        """So many ascending numbers below others for each row, coded as gaps."""
        indptr = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=indptr[1:])
        ids, following = np.zeros(indptr[-1], np.int32), np.zeros(len(counts), np.int64)
        for step in range(int(counts.max(initial=0))):
            left = np.flatnonzero(counts > step)
            following[left] += self.codes(left, widths[left]) + 1
            if (following > stops).any():
                raise ValueError(_DAMAGED)
            ids[indptr[left] + step] = following[left] - 1
        return Sets(indptr, ids)


def _following(sets: Sets) -> NDArray[np.int64]:
    """Where the gap before each id begins."""
    following = np.concatenate(([0], sets.ids[:-1].astype(np.int64) + 1))[: len(sets.ids)]
    following[sets.indptr[:-1][sets.sizes > 0]] = 0
    return following


def left_levels(left: NDArray[np.uint8], most: int) -> NDArray[np.int64]:
    """What is subtracted from levels if 0 to ``most`` ids are left: int64[most + 1]; see `SetCodes`."""
    told = left[: min(most + 1, _NUM_TOLD)].astype(np.int64)
    more = np.arange(_NUM_TOLD, max(most + 1, _NUM_TOLD))
    return np.concatenate((told, left[_NUM_TOLD + half_octaves(more)]))


def _check_codes(codes: SetCodes) -> None:
    if codes.left.shape != (len(codes.parameters), NUM_LEFT):
        raise ValueError("the codes do not fit each other")
    sizes, others_widths = np.diff(codes.level_starts), codes.parameters[:, 2]
    if others_widths[0] >= 0 or (np.diff(sizes)[others_widths[1:] >= 0] != 0).any():
        raise ValueError("the codes do not fit each other")


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


def half_octaves(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Twice the logarithm to base 2 of counts below 2**31, rounded; 0 for 0."""
    octaves = np.frexp(np.maximum(counts, 1))[1].astype(np.int64) - 1
    return np.asarray(2 * octaves + (counts * counts >= np.int64(2) << 2 * octaves))


def _read_codes(
    words: NDArray[np.uint64], num_bits: int, bits: NDArray[np.int64], widths: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The numbers whose codes begin at some bits, and the bits after them: int64[n] both."""
    if len(bits) and not 0 <= bits.min() <= bits.max() <= num_bits:
        raise ValueError(_DAMAGED)
    codes = bits_at(words, bits)
    unary = np.bitwise_count(codes ^ (codes + _ONE))
    numbers, lengths = _numbers(codes, unary, widths)
    return numbers, bits + lengths


def _numbers(
    codes: NDArray[np.uint64], unary: NDArray[np.uint8], widths: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The numbers that 64 bits begin with, and the lengths of their codes: int64[n] both.

    Parameters
    ----------
    unary : how many ones the bits begin with, and one more.
    """
    is_long = unary > _LONGEST_UNARY
    ones = np.where(is_long, 1, unary).astype(np.int64)
    rest = (codes >> ones.view(np.uint64) & _MASKS.take(widths)).view(np.int64)
    whole = (codes >> np.uint64(_LONGEST_UNARY)).view(np.int64) & 0xFFFFFFFF
    numbers = np.where(is_long, whole, ((ones - 1) << widths) + rest)
    return numbers, np.where(is_long, _LONGEST_UNARY + 32, ones + widths)
