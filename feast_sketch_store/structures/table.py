"""The table of a layer: filled with facts of features and shapes, and checked against their targets.

A sizing uses the expected number of ones in a table. The actual number differs: little in a large table; but
in a small one, windows of entities with many values move the fill by percents. So the ones are counted, and
a table that would show too many false values is filled again, a little larger.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.structures.feature_rows import Part
from feast_sketch_store.structures.sizing import (
    AnyFacts,
    Geometry,
    WeightedFacts,
    fill_limit,
    size_for_rates,
)
from feast_sketch_store.structures.symbols import SymbolRange, words_for
from feast_sketch_store.succinct import ShiftingBloomFilterBuilder
from feast_sketch_store.threads import num_threads

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
    entity_hashes : uint64[n, 2], to which the places of the rows refer.
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
        for places, rows in part.rows():
            builder.add_rows(
                entity_hashes, places, rows.indptr, rows.ids, len(hashes), first_word * 64, firsts
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
    needed = min(_MAX_GROWTH, _HEADROOM * math.log1p(-fill) / math.log1p(-fill_limit(held)))
    # At least one more word: a table of the same size would show the same noise.
    more_bits = max(builder.num_bits * needed, builder.num_bits + 64)
    return FilledTable(builder, ranges, excess, more_bits / geometry.num_bits)
