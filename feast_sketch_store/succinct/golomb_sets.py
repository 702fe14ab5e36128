"""Golomb-Rice coded sets: exact memberships, in about as many bits as they contain information.

The sets of a row are decoded in order, so a read costs what the sets contain, not a test of each possible
symbol. Symbols are numbered from the most to the least popular. A set of ``n`` symbols is coded as a header,
which gives ``n``, and the gaps between its ascending ids. Each gap is a Rice code. Its width depends on the
symbol where the gap begins, and on how many ids are left. A gap ``g`` is ``g div 2**width`` ones, a zero, and
the lower ``width`` bits of ``g``. For independent symbols this is within some percent of the minimum, ``sum_s
H(p_s)`` bits per row, where H is the binary entropy. The rank of a header is a Rice code, too. Headers are
ranked from the most to the least frequent if that is smaller, such as where most sets have the largest size.

    row      header | gap | gap | gap   header | gap | gap       features one after the other
    group    row | row | row                                     rows one after the other
    starts   the bit at which each group begins, in Elias-Fano form (`elias_fano`)

A start takes two bits and the logarithm of a group's length, so short rows share one (`group_rows_for`). A
read decodes the rows of the group before its own, too. Long rows have groups of their own.

A gap that begins at symbol ``s``, in a set with ``k`` ids left, has

    width = (level_s - left_k) div 4        in bits, at least 0

Both levels are in quarter octaves. Let ``p_s`` be the share of rows with symbol ``s``, and ``t_s`` the mean
number of symbols of a row from ``s`` on. Then the next of ``k`` ids is about ``t_s / (k * p_s)`` symbols on.
So

    level_s = round(4 * log2(ln 2 * t_s / p_s)) + 2
    left_k  = 4 * log2(k)

is the best code for independent symbols. But symbols are not independent: rows have tastes, so gaps vary
more. `fitted_levels` finds levels with which given sets take fewer bits.

A set may be coded relative to those before it, back to the last one that is coded by itself: a long view is a
view. If these earlier sets have ``u`` distinct ids, ``o`` of the set's ``n`` ids are others, and ``a = n -
o`` are members, that is among the ``u``:

    set      header | o | members | gaps of the others, as above
    members  u bits, one for each id, if at least 3 of 8 are members and at least 3 of 8 are not;
             else the gaps between the positions, among the u, of the fewer ones, members or not:
             f of them in codes of (round(2 * log2(u)) - round(2 * log2(f)) - 1) div 2 bits

What follows from the rest is not written: no ``o`` if ``u`` or ``n`` is 0, no members if all are or none is.

Source: Golomb, "Run-length encodings", 1966; Gallager & Van Voorhis, "Optimal source codes for geometrically
distributed integer alphabets", 1975. Golomb-coded sets of hashes, without popularity, are known from BIP 158.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store import kernel
from feast_sketch_store.kernel import LONGEST_UNARY, SetCodes, half_octaves
from feast_sketch_store.succinct.coded_rows import CodedRows, Gaps, JoinedBits, Words
from feast_sketch_store.succinct.elias_fano import EliasFano, expected_bytes

MAX_LEVEL = 123  # of a gap of 30 bits
NUM_CLASSES = 64  # of the number of ids left, by half octaves
FIT_FACTS = 1 << 17  # the most facts to which levels are fitted

_FINENESS = 4  # levels in an octave
_MAX_WIDTH = 30
_LONG_CODE = LONGEST_UNARY + 32
_REACH = 2 * _FINENESS  # the most by which a level changes in one step
_ROUNDS = 3

# The middle of each half octave; the first ones hold only 1, 2 or 3.
LEFT_LEVELS = (2 * np.arange(NUM_CLASSES) + (np.arange(NUM_CLASSES) > 3)).astype(np.uint8)

_MAX_HEADER_WIDTH = 30
_NUM_RANKED = 256  # headers below it may have other ranks
_MAX_GROUP_ROWS = 64
# How many rows share a start, if they have at most so many headers and ids on average. A read of one of many
# rows takes at most 1.5 times as long as with a start for each (`tests/benchmarks/run.py short_rows`).
_GROUPS = ((11, 4), (16, 2))
_MAX_RUNS = 1024  # of symbols of equal level


class Levels(NamedTuple):
    """The levels of V symbols, in few runs of equal level, and of the numbers of ids left."""

    ends: NDArray[np.int64]  # int64[R], the symbol after each run
    runs: NDArray[np.uint8]  # uint8[R], the level of each
    left: NDArray[np.uint8] = LEFT_LEVELS  # uint8[64], by half octaves of the number of ids left

    @property
    def size_bytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.nbytes for part in self)


def levels_of(counts: NDArray[np.int64]) -> Levels:
    """The best levels of independent symbols, given the rows with each, int64[V].

    The more often counts change between falling and rising, the worse the levels fit.
    """
    if not len(counts):
        return Levels(np.zeros(0, np.int64), np.zeros(0, np.uint8))
    tails = np.cumsum(counts[::-1])[::-1]
    exact = _FINENESS * np.log2(np.log(2) * np.maximum(tails, 1) / np.maximum(counts, 1)) + _FINENESS / 2
    levels = np.clip(np.rint(exact), 0, MAX_LEVEL).astype(np.int64)
    ends = _ends(levels)
    if len(ends) > _MAX_RUNS:
        levels = np.maximum.accumulate(levels)
        ends = _ends(levels)
    return Levels(ends, levels[ends - 1].astype(np.uint8))


def _ends(levels: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.append(np.flatnonzero(np.diff(levels)) + 1, len(levels)).astype(np.int64)


def fitted_levels(levels: Levels, sizes: NDArray[np.int64], ids: NDArray[np.integer]) -> Levels:
    """Levels with which some sets, of these sizes, int64[n], and ascending ids, int[nnz], take fewer bits."""
    num_sets = int(np.searchsorted(np.cumsum(sizes), FIT_FACTS, side="right"))
    sizes = sizes[:num_sets]
    members = ids[: sizes.sum()].astype(np.int64)
    if not len(members):
        return levels
    begins, gaps, left = Gaps.of(sizes[sizes > 0], members)
    run = np.repeat(np.arange(len(levels.ends)), np.diff(levels.ends, prepend=0))[begins]
    classes = half_octaves(np.arange(left.max() + 1))
    # Use the narrowest type: a stable sort of 16 bits is a radix sort.
    key = (run * NUM_CLASSES + classes[left]).astype(np.min_scalar_type(len(levels.ends) * NUM_CLASSES))
    order = np.argsort(key, kind="stable")
    counts = np.bincount(key)
    groups = np.flatnonzero(counts)
    bits = _bits_by_width(gaps[order], np.cumsum(counts[groups]) - counts[groups])
    runs, lefts = levels.runs.astype(np.int64), levels.left.astype(np.int64)
    run_of, class_of = np.divmod(groups, NUM_CLASSES)
    for _ in range(_ROUNDS):
        lefts -= _best_step(bits, runs[run_of] - lefts[class_of], class_of, NUM_CLASSES)
        lefts = np.clip(lefts, 0, 255)
        runs += _best_step(bits, runs[run_of] - lefts[class_of], run_of, len(runs))
        runs = np.clip(runs, 0, MAX_LEVEL)
    ends = np.append(np.flatnonzero(np.diff(runs)), len(runs) - 1)
    return Levels(levels.ends[ends], runs[ends].astype(np.uint8), lefts.astype(np.uint8))


def _bits_by_width(gaps: NDArray[np.int64], begins: NDArray[np.int64]) -> NDArray[np.float64]:
    """The bits of all gaps of each group, in codes of each width: float64[W, G].

    ``gaps`` are below 2**31, and at most `FIT_FACTS`; the group ``g`` has those from ``begins[g]`` on.
    """
    gaps = gaps.astype(np.int32)
    num_widths = min(_MAX_WIDTH, int(gaps.max()).bit_length()) + 1
    bits = np.empty((num_widths, len(begins)))
    for width in range(num_widths):
        lengths = gaps >> width
        is_long = lengths >= LONGEST_UNARY
        lengths += 1 + width
        np.putmask(lengths, is_long, _LONG_CODE)
        bits[width] = np.add.reduceat(lengths, begins)
    return bits


def _best_step(
    bits: NDArray[np.float64], levels: NDArray[np.int64], part: NDArray[np.int64], num_parts: int
) -> NDArray[np.int64]:
    """The step by which to raise the levels of each part's groups; the smallest of equally good ones."""
    steps = np.array(sorted(range(-_REACH, _REACH + 1), key=abs))
    groups = np.arange(bits.shape[1])
    costs = []
    for step in steps.tolist():
        widths = np.clip((levels + step) >> 2, 0, len(bits) - 1)
        costs.append(np.bincount(part, bits[widths, groups], num_parts))
    return np.asarray(steps[np.argmin(costs, axis=0)])


def _no_headers() -> NDArray[np.uint8]:
    return np.zeros(0, np.uint8)


@dataclass(frozen=True)
class SetCode:
    """How the sets of one feature are coded."""

    header_width: int  # bits of headers, 0 to 30
    no_set: int  # number of headers for rows without a set, 0 to 2; subtract it from a header to get the size
    gaps: Levels  # the levels that determine widths; at most 1024 runs of symbols
    # bits of the number of others, 0 to 30, if the set is coded relative to those before it; else -1
    others_width: int = -1
    # uint8[H], up to 256: the headers below H, by their rank in the codes. Others are their own rank
    headers: NDArray[np.uint8] = field(default_factory=_no_headers)

    @classmethod
    def fit(
        cls,
        counts: NDArray[np.int64],
        headers: NDArray[np.integer],
        no_set: int,
        num_others: NDArray[np.integer] | None = None,
    ) -> "SetCode":
        """The best code for sets with independent symbols; `fitted` fits it to the sets themselves.

        Parameters
        ----------
        counts : int64[V], the rows with each symbol, or with the symbol among their others.
        headers : int[n], of all rows.
        no_set : number of headers for rows without a set.
        num_others : int[m], of rows that store it; None if the sets are coded by themselves.
        """
        others_width = -1 if num_others is None else best_width(num_others)
        width, ranked = _best_ranks(headers)
        return cls(width, no_set, levels_of(counts), others_width, ranked)

    def fitted(self, sizes: NDArray[np.int64], ids: NDArray[np.integer]) -> "SetCode":
        """The code with levels fitted to some sets: their sizes, int64[n], and the ids coded as gaps."""
        return replace(self, gaps=fitted_levels(self.gaps, sizes, ids))

    @property
    def is_dependent(self) -> bool:
        """Whether the sets are coded relative to those before them."""
        return self.others_width >= 0

    @property
    def num_symbols(self) -> int:
        """The size of the vocabulary."""
        return int(self.gaps.ends[-1]) if len(self.gaps.ends) else 0

    @property
    def levels(self) -> NDArray[np.uint8]:
        """The level of each symbol: uint8[V]."""
        return np.repeat(self.gaps.runs, np.diff(self.gaps.ends, prepend=0))

    @property
    def left_levels(self) -> NDArray[np.uint8]:
        """The levels of numbers of ids left, as the kernel looks them up: uint8[320]."""
        classes = kernel.half_octaves(np.arange(kernel.DIRECT_CODES))
        return np.concatenate((self.gaps.left[classes], self.gaps.left))

    @property
    def all_headers(self) -> NDArray[np.uint8]:
        """The headers with the first ranks: uint8[256]."""
        return np.concatenate((self.headers, np.arange(len(self.headers), _NUM_RANKED, dtype=np.uint8)))


def group_rows_for(num_rows: int, num_codes: int) -> int:
    """How many rows share a start, if all rows together have this many headers and ids."""
    return next((size for most, size in _GROUPS if num_codes <= most * num_rows), 1)


def starts_bytes(num_rows: int, num_codes: int, num_bits: float) -> int:
    """Bytes of the starts of this many rows, with this many headers and ids in this many bits."""
    num_groups = -(-num_rows // group_rows_for(num_rows, num_codes))
    return expected_bytes(num_groups, int(num_bits) + 1, by_value=False)


def _best_ranks(headers: NDArray[np.integer]) -> tuple[int, NDArray[np.uint8]]:
    """The width of headers, int[n], and `SetCode.headers`, with which they take the fewest bits."""
    plain = best_width(headers)
    counts = np.bincount(headers[headers < _NUM_RANKED])
    order = np.argsort(-counts, kind="stable")
    ranked = order[: np.flatnonzero(np.append(True, order != np.arange(len(order))))[-1]]
    ranks = np.arange(headers.max(initial=0) + 1)
    ranks[ranked] = np.arange(len(ranked))
    width = best_width(ranks[headers])
    saved = rice_bits(headers, plain) - rice_bits(ranks[headers], width)
    return (width, ranked.astype(np.uint8)) if saved > 8 * len(ranked) else (plain, _no_headers())


def rice_bits(numbers: NDArray[np.integer], width: int) -> int:
    """Bits of Rice codes of numbers, int[n]."""
    return int((numbers >> width).sum()) + (width + 1) * len(numbers)


def best_width(numbers: NDArray[np.integer]) -> int:
    """The width of Rice codes for which numbers, int[n], take the fewest bits."""
    return int(np.argmin([rice_bits(numbers, width) for width in range(_MAX_HEADER_WIDTH)]))


def ideal_bits(counts: NDArray[np.int64], num_rows: int) -> float:
    """Bits of sets of independent symbols under the best possible code; ``counts`` are the rows with each."""
    shares = counts[(counts > 0) & (counts < num_rows)] / max(1, num_rows)
    return float(-num_rows * (shares * np.log2(shares) + (1 - shares) * np.log2(1 - shares)).sum())


@dataclass(frozen=True)
class GolombSets(CodedRows):
    """The sets of ``num_rows`` rows, whose groups begin at ``starts``.

    Raises ValueError: the parts do not fit each other.
    """

    codes: Sequence[SetCode]  # one per feature
    num_rows: int
    group_rows: int  # the number of rows in each group but the last, 1 to 64

    def __post_init__(self) -> None:
        super().__post_init__()
        if (
            not self.codes
            or not 1 <= self.group_rows <= _MAX_GROUP_ROWS
            or self.num_rows < 0
            or len(self.starts) != -(-self.num_rows // self.group_rows)
        ):
            raise ValueError("the parts of the sets do not fit each other")
        num_symbols = -1  # of a set before
        for code in self.codes:
            ends, runs, left = code.gaps
            if (
                not 0 <= code.header_width <= _MAX_HEADER_WIDTH
                or not 0 <= code.no_set <= 2
                or not -1 <= code.others_width <= _MAX_HEADER_WIDTH
                or (code.others_width >= 0 and code.num_symbols != num_symbols)
                or not len(ends) == len(runs) <= _MAX_RUNS
                or len(left) != NUM_CLASSES
                or runs.max(initial=0) > MAX_LEVEL
                or (np.diff(ends, prepend=0) < 0).any()
                or code.num_symbols >= 2**31
                or len(code.headers) > _NUM_RANKED
                or (np.sort(code.headers) != np.arange(len(code.headers))).any()
            ):
                raise ValueError(f"sets cannot be coded with {code}")
            num_symbols = code.num_symbols

    @property
    def levels_bytes(self) -> int:
        """Bytes of the levels and ranks with which the sets are coded."""
        return sum(code.gaps.size_bytes + code.headers.nbytes for code in self.codes)

    @classmethod
    def build(
        cls,
        codes: Sequence[SetCode],
        headers: NDArray[np.int32],
        indptr: NDArray[np.int64],
        ids: NDArray[np.int32],
    ) -> "GolombSets":
        """Code sets.

        Parameters
        ----------
        headers : int32[num_rows, F]
        indptr, ids : int64[num_rows * F + 1] and int32[nnz]; row ``r * F + f`` of this CSR matrix has the
            ascending ids of feature ``f`` of row ``r``.
        """
        words, ends = kernel.write_sets(_joint(codes), headers, indptr, ids)
        starts = np.concatenate(([0], ends))[: len(ends)].view(np.uint64)
        return cls._of(codes, words, int(ends[-1]) if len(ends) else 0, starts, headers.size + len(ids))

    @classmethod
    def build_in_blocks(
        cls,
        codes: Sequence[SetCode],
        num_rows: int,
        blocks: Iterable[tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32]]],
        words: Words,
    ) -> "GolombSets":
        """Code sets, some rows at a time; the same as `build` gives of all.

        Parameters
        ----------
        blocks : headers, indptr and ids of consecutive rows, as of `build`.
        words : gets the words.
        """
        joint, joined, row, num_codes = _joint(codes), JoinedBits(words), 0, 0
        starts = np.zeros(num_rows, np.uint64)
        for headers, indptr, ids in blocks:
            own, ends = kernel.write_sets(joint, headers, indptr, ids)
            if len(ends):
                starts[row : row + len(ends)] = joined.num_bits
                starts[row + 1 : row + len(ends)] += ends[:-1].view(np.uint64)
                joined.append(own, int(ends[-1]))
                row += len(ends)
                num_codes += headers.size + len(ids)
        num_bits = joined.num_bits
        return cls._of(codes, joined.finish(), num_bits, starts, num_codes)

    @classmethod
    def _of(
        cls,
        codes: Sequence[SetCode],
        words: NDArray[np.uint64],
        num_bits: int,
        starts: NDArray[np.uint64],
        num_codes: int,
    ) -> "GolombSets":
        """Sets with these starts of all rows, uint64[n], in groups."""
        group_rows = group_rows_for(len(starts), num_codes)
        of_groups = EliasFano.build(starts[::group_rows], num_bits + 1)
        return cls(words, num_bits, of_groups, None, codes, len(starts), group_rows)

    @staticmethod
    def lengths(
        codes: Sequence[SetCode],
        headers: NDArray[np.int32],
        indptr: NDArray[np.int64],
        ids: NDArray[np.int32],
    ) -> NDArray[np.int64]:
        """The bits of the sets of n rows: int64[n]; parameters as in `build`."""
        return np.diff(kernel.ends_of_sets(_joint(codes), headers, indptr, ids), prepend=0)

    @cached_property
    def _joint_codes(self) -> SetCodes:
        """All codes together; prepared reads share them, because each symbol has a level."""
        return _joint(self.codes)

    @property
    def arguments(self) -> tuple[Any, ...]:
        return *self._joint_codes, *super().arguments, self.group_rows


def _joint(codes: Sequence[SetCode]) -> SetCodes:
    parameters = np.array([(c.header_width, c.no_set, c.others_width) for c in codes], np.int64)
    starts = np.cumsum([0] + [code.num_symbols for code in codes])
    left = np.stack([code.left_levels for code in codes])
    headers = np.stack([code.all_headers for code in codes])
    return SetCodes(parameters, starts, np.concatenate([code.levels for code in codes]), left, headers)
