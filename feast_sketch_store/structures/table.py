"""The table of a layer: filled with facts of features and shapes, and checked against their targets.

A sizing uses the expected number of ones in a table. The actual number differs: little in a large table; but
in a small one, windows of entities with many values move the fill by percents. So the ones are counted, and
a table that would show too many false values is filled again, a little larger.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.kernel import MAX_NUM_HASHES
from feast_sketch_store.structures.feature_rows import Part
from feast_sketch_store.structures.parts import checked, report_of
from feast_sketch_store.structures.sizing import (
    AnyFacts,
    Geometry,
    Hashes,
    WeightedFacts,
    fill_limit,
    size_for_rates,
)
from feast_sketch_store.succinct import ShiftingBloomFilterBuilder, SymbolQuery
from feast_sketch_store.threads import num_threads


@dataclass(frozen=True)
class SymbolRange:
    """Consecutive symbols of a filter.

    Parameters
    ----------
    first_word : the word of a window that holds the first symbol.
    num_symbols : number of symbols.
    num_hashes : the most hashes of any symbol.
    num_facts : number of facts.
    num_ones : number of bits that the facts set.
    first_symbols : first symbol covered by each hash; empty if every hash covers every symbol.
    false_positive_rate : mean of all symbols.
    """

    first_word: int
    num_symbols: int
    num_hashes: int
    num_facts: int
    num_ones: int
    first_symbols: tuple[int, ...]
    false_positive_rate: float

    @classmethod
    def build(
        cls, first_word: int, num_symbols: int, facts: AnyFacts, hashes: Hashes, fill: float
    ) -> "SymbolRange":
        """The range of facts in a table with the share ``fill`` of ones."""
        first_symbols: Hashes = ()
        rate = fill ** len(hashes)
        if isinstance(facts, WeightedFacts):
            first_symbols, rate = hashes, float(facts.symbol_rates(hashes, fill).mean())
        num_facts, num_ones = facts.num_items, facts.num_ones(hashes)
        return cls(first_word, num_symbols, len(hashes), num_facts, num_ones, first_symbols, rate)

    @property
    def num_words(self) -> int:
        """Words of a window that the range takes."""
        return words_for(self.num_symbols)

    @cached_property
    def query(self) -> SymbolQuery:
        """The range in the form that the filter takes."""
        firsts = np.array(self.first_symbols, np.int64) if self.first_symbols else None
        return SymbolQuery(self.first_word, self.num_symbols, self.num_hashes, firsts)

    def to_snapshot(self) -> dict[str, Any]:
        """The range as an entry of a description."""
        return {
            "first_word": self.first_word,
            "num_symbols": self.num_symbols,
            "num_hashes": self.num_hashes,
            "first_symbols": list(self.first_symbols),
            "report": {
                "num_facts": self.num_facts,
                "num_ones": self.num_ones,
                "false_positive_rate": self.false_positive_rate,
            },
        }

    @classmethod
    def from_snapshot(cls, entry: Mapping[str, Any]) -> "SymbolRange":
        """The range in an entry of a description.

        Raises
        ------
        ValueError, KeyError, TypeError : such a range is not possible.
        """
        report = report_of(entry)
        symbols = cls(
            checked(entry["first_word"], int),
            checked(entry["num_symbols"], int),
            checked(entry["num_hashes"], int),
            checked(report["num_facts"], int),
            checked(report["num_ones"], int),
            tuple(checked(number, int) for number in entry["first_symbols"]),
            checked(report["false_positive_rate"], float),
        )
        firsts, num_hashes = symbols.first_symbols, symbols.num_hashes
        most_ones = symbols.num_facts * num_hashes
        if (
            min(symbols.first_word, symbols.num_symbols, symbols.num_facts) < 0
            or not 1 <= num_hashes <= MAX_NUM_HASHES
            or (firsts and (len(firsts) != num_hashes or firsts[0] or firsts[-1] >= symbols.num_symbols))
            or any(later < first for first, later in itertools.pairwise(firsts))
            or not (symbols.num_facts if firsts else most_ones) <= symbols.num_ones <= most_ones
            or not 0.0 <= symbols.false_positive_rate <= 1.0
            or (symbols.num_facts and not 0.0 < symbols.false_positive_rate < 1.0)
        ):
            raise ValueError(f"{symbols} is not possible")
        return symbols


def words_for(num_symbols: int) -> int:
    """Words of a window with this many symbols."""
    return -(-num_symbols // 64)


# How much the expected noise of a finished table may exceed its target, as a share.
TOLERANCE = 0.001

_HEADROOM = 1.002  # factor for a larger table, whose ones will differ a little again
_MAX_GROWTH = 2.0  # at once


@dataclass(frozen=True)
class TablePart:
    """Facts of consecutive symbols.

    Parameters
    ----------
    facts : they decide how many hashes each symbol has.
    num_symbols : number of symbols.
    rows : returns the facts, as often as it is called.
    is_held : whether the target of the facts must be kept; not so for a feature with a memory limit.
    """

    facts: AnyFacts
    num_symbols: int
    rows: Callable[[], Iterable[Part]]
    is_held: bool = True


@dataclass(frozen=True)
class FilledTable:
    """A table, and how well it keeps the targets.

    Parameters
    ----------
    builder : of the filter.
    ranges : of the symbols of each part.
    excess : the expected noise at the actual number of ones, relative to the target, for the part where it
        is highest; at most 1 if all targets are kept.
    growth : the factor by which a table must exceed its computed size to keep them.
    """

    builder: ShiftingBloomFilterBuilder
    ranges: Sequence[SymbolRange]
    excess: float
    growth: float

    @property
    def keeps_targets(self) -> bool:
        """Whether every part keeps its target."""
        return self.excess <= 1 + TOLERANCE


def fill_table(
    entity_hashes: NDArray[np.uint64], parts: Sequence[TablePart], salt: tuple[int, int], growth: float
) -> FilledTable:
    """Add facts to a table that is ``growth`` times its computed size.

    Parameters
    ----------
    entity_hashes : uint64[n, 2], to which the indices of the rows refer.
    parts : the facts.
    salt : two unsigned 64-bit integers.
    growth : at least 1.
    """
    classes = [part.facts for part in parts]
    geometry = size_for_rates(classes) if classes else Geometry(1, (), 0.5)
    num_bits = math.ceil(geometry.num_bits * growth)
    ends = np.cumsum([0, *(words_for(part.num_symbols) for part in parts)]).tolist()
    builder = ShiftingBloomFilterBuilder(num_bits, max(1, ends[-1]), salt, num_threads())
    for part, hashes, first_word in zip(parts, geometry.hashes, ends, strict=False):
        firsts = np.array(hashes) if isinstance(part.facts, WeightedFacts) else None
        for indices, rows in part.rows():
            builder.add_rows(
                entity_hashes, indices, rows.indptr, rows.ids, len(hashes), first_word * 64, firsts
            )
    # The rate must stay below 1 even if all bits are ones.
    fill = min(builder.measured_fill(), 1 - 0.5 / builder.num_bits)
    ranges = [
        SymbolRange.build(first_word, part.num_symbols, part.facts, hashes, fill)
        for part, hashes, first_word in zip(parts, geometry.hashes, ends, strict=False)
    ]
    held = [(p.facts, h) for p, h in zip(parts, geometry.hashes, strict=True) if p.is_held and p.num_symbols]
    excess = max((facts.excess(h, fill) for facts, h in held), default=0.0)
    if excess <= 1 + TOLERANCE:
        return FilledTable(builder, ranges, excess, growth)
    more_bits = larger(builder.num_bits, fill, fill_limit(held))
    return FilledTable(builder, ranges, excess, more_bits / geometry.num_bits)


def larger(num_bits: int, fill: float, limit: float) -> float:
    """Bits of a table that would keep its targets, given the share of ones that it has and that it may have.

    At least one more word: a table of the same size would show the same noise.
    """
    needed = _HEADROOM * math.log1p(-fill) / math.log1p(-limit) if limit else math.inf
    return max(num_bits * min(_MAX_GROWTH, needed), num_bits + 64)
