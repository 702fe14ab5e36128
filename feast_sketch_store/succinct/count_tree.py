"""Count trees: exact sets in fewer bits than their symbols would take if they were independent.

Symbols that often occur in the same rows are neighbours (`tree_order`). A set of ``n`` of the symbols from
``low`` to below ``high`` is coded as the number ``k`` of them in the left half, followed by both halves:

    code(low, high, n)   nothing if n = 0 or n = high - low
                         if n = 1, the symbol itself, by its share of the mass
                         else k, and code(low, middle, k), code(middle, high, n - k)

    P(k | n) = BetaBinomial(k; n, mu * c, (1 - mu) * c)         mu = mass(left) / mass(both)

``mass`` follows the popularity of symbols, in half octaves. Each node has one of ten concentrations ``c``:
the smaller it is, the more rows have their symbols in one half only. This is how a tree records that the
symbols of a row are not independent.

A set may be coded relative to those before it in the row: a long view is a view. For each symbol that the row
has already, a bit says whether it is a member. The bit's probability depends on which earlier sets have the
symbol, how often such a symbol is a member (one of eight classes), and how many of the symbols before it were
members.

    row     header, members, others; header, members, others; ...     one arithmetic code for all features
    header  as in Golomb-coded sets if the row has no set; else the number of others

Probabilities are integers of 15 bits, from tables that `tree_tables` computes in integers.

Source: Witten, Neal & Cleary, "Arithmetic coding for data compression", 1987; Moffat & Stuiver, "Binary
interpolative coding", 2000, for the recursion.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store import kernel
from feast_sketch_store.kernel import TreeCodes
from feast_sketch_store.kernel.reference_trees import NUM_CONTEXTS, NUM_SIZES, bucket_of
from feast_sketch_store.succinct.elias_fano import EliasFano
from feast_sketch_store.succinct.packed import Check, unchecked
from feast_sketch_store.succinct.timed_lists import bit_lengths
from feast_sketch_store.succinct.tree_tables import (
    BOUNDS,
    CONTEXT_SHARES,
    NUM_CONCENTRATIONS,
    NUM_SHARES,
    tables,
)

INDEPENDENT = NUM_CONCENTRATIONS - 1
MAX_MASS_LEVEL = 63
MAX_CONTEXT = 63
MAX_SYMBOLS = 1 << 28

_MASS_BITS = 31  # of two masses, to compare them


def mass_of(levels: NDArray[np.integer]) -> NDArray[np.int64]:
    """The mass of symbols with these levels, in half octaves: int64[V]."""
    masses = np.array([math.isqrt(4 << level) + 1 for level in range(MAX_MASS_LEVEL + 1)], np.int64)
    return np.asarray(masses[levels])


def mass_levels(counts: NDArray[np.integer]) -> NDArray[np.uint8]:
    """The levels of symbols, given the number of rows with each: uint8[V]."""
    levels = np.rint(2 * np.log2(counts + 0.35) + 3)
    return np.asarray(np.clip(levels, 0, MAX_MASS_LEVEL).astype(np.uint8))


def cumulated_mass(levels: NDArray[np.integer]) -> NDArray[np.int64]:
    """The mass before each symbol, and the total: int64[V + 1]."""
    return np.concatenate(([0], np.cumsum(mass_of(levels))))


class Splits(NamedTuple):
    """The nodes of one depth of a tree that have at least two symbols, from left to right."""

    lows: NDArray[np.int64]
    highs: NDArray[np.int64]

    @property
    def middles(self) -> NDArray[np.int64]:
        """Where the right half of each begins."""
        return self.lows + (self.highs - self.lows) // 2

    @property
    def below(self) -> "Splits":
        """The nodes of the next depth."""
        middles = self.middles
        lows, highs = np.stack((self.lows, middles), 1).ravel(), np.stack((middles, self.highs), 1).ravel()
        is_node = highs - lows > 1
        return Splits(lows[is_node], highs[is_node])

    @classmethod
    def root(cls, num_symbols: int) -> "Splits":
        """The whole tree; no node if it has at most one symbol."""
        ends = np.array([num_symbols] if num_symbols > 1 else [], np.int64)
        return cls(np.zeros(len(ends), np.int64), ends)


def shares_of(mass: NDArray[np.int64]) -> NDArray[np.uint8]:
    """For each symbol, the share of the left half of the node whose middle it is: uint8[V], below 33."""
    bounds = np.array(BOUNDS, np.int64)
    shares = np.full(len(mass) - 1, NUM_SHARES // 2, np.uint8)
    splits = Splits.root(len(mass) - 1)
    while len(splits.lows):
        middles = splits.middles
        left, right = mass[middles] - mass[splits.lows], mass[splits.highs] - mass[middles]
        # Use the highest bits of the larger mass, few enough that no product exceeds int64.
        too_long = bit_lengths(np.maximum(left, right)) - _MASS_BITS
        left, right = (half >> np.maximum(too_long, 0) for half in (left, right))
        shares[middles] = (left[:, None] << 20 >= right[:, None] * bounds).sum(axis=1)
        splits = splits.below
    return shares


def context_shares(contexts: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """The shares of members, in 2**15, for contexts of 0 to 63."""
    return np.array(CONTEXT_SHARES, np.uint16)[contexts]


@dataclass(frozen=True)
class TreeCode:
    """How the sets of one feature are coded.

    Parameters
    ----------
    no_set : number of headers for rows without a set, 0 to 2.
    levels : uint8[V], 0 to 63, of the mass of each symbol.
    concentrations : uint8[V], 0 to 9, of the node whose middle each symbol is.
    sizes : int64[<= 108], the shares of buckets of headers; no row has a header after the last one.
    classes : uint8[V], below 8, of symbols as members; None if the set is coded by itself.
    contexts : uint8[2184], 0 to 63, the share of members in each context; None if the set is coded by itself.
    """

    no_set: int
    levels: NDArray[np.uint8]
    concentrations: NDArray[np.uint8]
    sizes: NDArray[np.int64]
    classes: NDArray[np.uint8] | None = None
    contexts: NDArray[np.uint8] | None = None

    @property
    def is_dependent(self) -> bool:
        """Whether the sets are coded relative to those before them."""
        return self.classes is not None

    @property
    def num_symbols(self) -> int:
        """The size of the vocabulary."""
        return len(self.levels)

    def check(self, num_before: int) -> None:
        """Refuse a code that no sets can have.

        Parameters
        ----------
        num_before : number of symbols of the set before it; -1 if there is none.

        Raises
        ------
        ValueError : the code is not possible.
        """
        is_alone = self.classes is None and self.contexts is None
        if (
            not 0 <= self.no_set <= 2
            or self.num_symbols >= MAX_SYMBOLS
            or len(self.concentrations) != self.num_symbols
            or self.levels.max(initial=0) > MAX_MASS_LEVEL
            or self.concentrations.max(initial=0) > INDEPENDENT
            or not 0 < len(self.sizes) <= NUM_SIZES
            or self.sizes.min() < 0
            or not 0 < self.sizes.max() <= self.sizes.sum() < 1 << 16
        ):
            raise ValueError("sets cannot be coded with such a tree")
        if is_alone:
            return
        if (
            self.classes is None
            or self.contexts is None
            or num_before != self.num_symbols
            or len(self.classes) != self.num_symbols
            or self.classes.max(initial=0) > 7
            or len(self.contexts) != NUM_CONTEXTS
            or self.contexts.max() > MAX_CONTEXT
        ):
            raise ValueError("sets cannot be coded relative to others with such a tree")


def size_shares(headers: NDArray[np.integer], most: int) -> NDArray[np.int64]:
    """The shares of the buckets of some rows' headers, below 2**16 in all; 0 after ``most``."""
    distinct, numbers = np.unique(headers, return_counts=True)
    counts = np.zeros(bucket_of(most)[0] + 1, np.int64)
    for size, number in zip(distinct.tolist(), numbers.tolist(), strict=True):
        counts[bucket_of(size)[0]] += number
    return np.asarray(np.maximum(1, counts * 60_000 // max(1, int(counts.sum()))))


@dataclass(frozen=True)
class CountTrees:
    """The sets of ``num_rows`` rows. Immutable; safe to read from any number of threads.

    Parameters
    ----------
    codes : one per feature.
    words : uint64[n], the codes of all rows and two words more; may be memory-mapped.
    num_bits : of the codes.
    starts : the bit at which each row begins, by row number.
    check : of the words; None if all have been checked.

    Raises
    ------
    ValueError : the parts do not fit each other.
    """

    codes: Sequence[TreeCode]
    words: NDArray[np.uint64]
    num_bits: int
    starts: EliasFano
    check: Check | None = None

    def __post_init__(self) -> None:
        if (
            not self.codes
            or self.words.ndim != 1
            or self.num_bits < 0
            or len(self.words) != kernel.words_of_bits(self.num_bits)
            or self.starts.by_value
        ):
            raise ValueError("the parts of the sets do not fit each other")
        num_symbols = -1
        for code in self.codes:
            code.check(num_symbols)
            num_symbols = code.num_symbols

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return len(self.starts)

    @property
    def size_bytes(self) -> int:
        """Bytes of the codes and of their index."""
        return int(self.words.nbytes) + self.starts.size_bytes

    @classmethod
    def build(
        cls,
        codes: Sequence[TreeCode],
        headers: NDArray[np.int32],
        indptr: NDArray[np.int64],
        ids: NDArray[np.int32],
    ) -> "CountTrees":
        """Code sets; parameters as in `GolombSets.build`.

        Raises
        ------
        ValueError : the sets do not fit their codes.
        """
        words, ends = kernel.write_trees(_joint(codes), headers, indptr, ids)
        num_bits = int(ends[-1]) if len(ends) else 0
        starts = np.concatenate(([0], ends))[: len(ends)].view(np.uint64)
        return cls(codes, words, num_bits, EliasFano.build(starts, num_bits + 1))

    def read(
        self, rows: NDArray[np.int64], feature: int, own_ids: NDArray[np.int32] | None = None
    ) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32]]:
        """The sets of one feature in some rows; parameters and results as in `GolombSets.read`.

        Raises
        ------
        ValueError : the codes, which came from a file, are damaged.
        """
        if not self.starts.all_checked or (self.check is not None and not self.check.all_checked):
            self._check_rows(rows)
        return kernel.read_trees(
            self.joint_codes, self.words, self.num_bits, self.starts.parts, rows, feature, own_ids
        )

    @cached_property
    def joint_codes(self) -> TreeCodes:
        """The codes in the form that the kernel takes."""
        return _joint(self.codes)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The sets in the form that the compiled kernel takes for reads of one row; see `PreparedRows`."""
        return *self.joint_codes, self.words, self.num_bits, *unchecked(self.check), *self.starts.arguments

    def _check_rows(self, rows: NDArray[np.int64]) -> None:
        """Check the words of rows and of their index. A row ends where the next one begins."""
        following = np.minimum(rows + 1, self.num_rows - 1)
        first, last = self.starts.take(rows), self.starts.take(following)
        last = np.where(rows + 1 < self.num_rows, last, self.num_bits)
        if len(rows) and not 0 <= first.min() <= last.max() <= self.num_bits:
            raise ValueError("a row of sets lies outside of their codes")
        first_word = first >> 6
        if self.check is not None:
            # A decoder reads up to 32 bits ahead, and the word after those.
            end = np.minimum((np.maximum(last, first) + 32 >> 6) + 2, len(self.words))
            self.check(first_word, end - first_word)


def _joint(codes: Sequence[TreeCode]) -> TreeCodes:
    parameters = np.array([(code.no_set, code.classes is not None) for code in codes], np.int64)
    symbol_starts = np.cumsum([0] + [code.num_symbols for code in codes])
    masses = [cumulated_mass(code.levels) for code in codes]
    nodes = [
        code.concentrations * np.uint16(NUM_SHARES) + shares_of(mass)
        for code, mass in zip(codes, masses, strict=True)
    ]
    classes = [np.zeros(c.num_symbols, np.uint8) if c.classes is None else c.classes for c in codes]
    sizes, contexts = np.zeros((len(codes), NUM_SIZES + 1), np.uint32), []
    for number, code in enumerate(codes):
        shares = np.zeros(NUM_SIZES, np.int64)
        shares[: len(code.sizes)] = code.sizes
        sizes[number, 1:] = np.cumsum(shares)
        told = np.zeros(NUM_CONTEXTS, np.uint8) if code.contexts is None else code.contexts
        contexts.append(context_shares(told))
    return TreeCodes(
        parameters,
        symbol_starts,
        np.concatenate(masses),
        np.concatenate(nodes).astype(np.uint16),
        np.concatenate(classes),
        sizes,
        np.stack(contexts),
        *tables(),
    )
