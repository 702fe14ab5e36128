"""The memory of parts of a sealed layer, computed before they are built, and what filters offer for a goal.

Sizes of tables, packed integers and columns are exact to the word. Sets are coded on trial for some of the
rows; without a trial, their bits are estimated from the entropy of independent symbols.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures.goals import (
    BLOOM,
    ERROR_RATE,
    MEMORY,
    NOISE_RATIO,
    WEIGHTED_BLOOM,
    Goal,
    Offer,
)
from feast_sketch_store.structures.sizing import (
    AnyFacts,
    FactClass,
    WeightedFacts,
    plain_for_bits,
    size_for_rates,
    weighted_for_bits,
)
from feast_sketch_store.succinct import golomb_sets
from feast_sketch_store.succinct.fingerprints import expected_bits
from feast_sketch_store.succinct.golomb_sets import Levels
from feast_sketch_store.succinct.packed import num_words_for

_WORD_BITS = 64


@dataclass(frozen=True, eq=False)
class Popularity:
    """How often each symbol of a feature occurs."""

    counts: NDArray[np.int64]  # int64[V], the rows with each symbol
    num_rows: int
    num_empty: int = 0  # rows without symbols; their reads show none
    # int64[m], bits of the sets of a sample of rows; None without a sample
    coded: NDArray[np.int64] | None = None
    # bits of a row's state in a column; None for one bit if there are rows without symbols
    state_width: int | None = None
    # the levels that were fitted in the trial to all rows or to enough of them; else None
    gaps: Levels | None = None

    @property
    def num_filled(self) -> int:
        """The number of rows with symbols."""
        return max(1, self.num_rows - self.num_empty)

    @property
    def num_facts(self) -> int:
        """The number of facts."""
        return int(self.counts.sum())

    @property
    def mean_absent(self) -> float:
        """The mean number of symbols that a row with symbols lacks."""
        return max(0.0, len(self.counts) - self.num_facts / self.num_filled)

    @property
    def window_words(self) -> int:
        """Words of a filter's window that the symbols take."""
        return -(-len(self.counts) // _WORD_BITS)

    @property
    def states_bytes(self) -> int:
        """Bytes of a column of the states of the rows."""
        width = int(self.num_empty > 0) if self.state_width is None else self.state_width
        return packed_bytes(self.num_rows, width)


def packed_bytes(length: int, width: int) -> int:
    """Bytes of ``length`` packed integers of ``width`` bits."""
    return 8 * num_words_for(length, width)


def table_bytes(num_bits: float, window_words: int) -> float:
    """Bytes of a filter's table, at least one window long, and of the head that it repeats."""
    window_words = max(1, window_words)
    return 8 * (max(math.ceil(num_bits / _WORD_BITS), window_words) + window_words)


def index_bytes(num_rows: int, presence_error_rate: float) -> float:
    """Bytes of the fingerprints of a list of rows."""
    return expected_bits(num_rows, presence_error_rate) / 8


def timestamps_bytes(num_rows: int, distinct: NDArray[np.int64]) -> int:
    """Bytes of a column of timestamps, given the distinct ones, ascending."""
    if not len(distinct):
        return 0
    plain = packed_bytes(num_rows, int(distinct[-1] - distinct[0]).bit_length())
    ids = packed_bytes(num_rows, max(1, (len(distinct) - 1).bit_length()))
    vocabulary = Vocabulary(pa.array(distinct))
    return plain if plain <= ids + vocabulary.size_bytes else ids + vocabulary.packed_bytes


def set_bits(popularity: Popularity) -> float:
    """Bits of the codes of sets: from the trial, or else estimated from their symbols and sizes."""
    coded, num_facts, num_rows = popularity.coded, popularity.num_facts, popularity.num_rows
    if coded is not None and len(coded):
        return float(coded.sum()) * num_rows / len(coded)
    mean = num_facts / max(1, num_rows)
    least = golomb_sets.ideal_bits(popularity.counts, popularity.num_filled)
    return least + num_rows * (1 + math.log2(1 + mean))


def sets_bytes(parts: Sequence[Popularity]) -> float:
    """Bytes of the sets of some features of the same rows, of their levels, and of the index of rows."""
    if not parts:
        return 0.0
    num_bits = sum(map(set_bits, parts))
    num_rows = parts[0].num_rows
    num_codes = len(parts) * num_rows + sum(part.num_facts for part in parts)
    starts = golomb_sets.starts_bytes(num_rows, num_codes, num_bits)
    levels = [part.gaps or golomb_sets.levels_of(part.counts) for part in parts]
    return 8 * (num_bits // _WORD_BITS + 3) + starts + sum(own.size_bytes for own in levels)


_MAX_RATE = 0.5
_LEAST = 1e-300  # above 0, for goals that no table can keep


@dataclass(frozen=True)
class FilterPlan:
    """The facts of a feature in a filter. Their rates must be kept, unless there is a memory limit."""

    facts: AnyFacts
    is_held: bool = True


def filter_offer(goal: Goal, popularity: Popularity) -> Offer | None:
    """How a filter would keep a feature; None if no filter can. Raises as `offer_of_memory`."""
    if goal.measure == MEMORY and popularity.num_facts:
        return offer_of_memory(goal, popularity, goal.amount)
    facts = _facts_for(goal, popularity)
    try:
        return _offer_of(facts, goal, popularity)
    except ValueError:
        return None


def offer_of_memory(goal: Goal, popularity: Popularity, num_bytes: float) -> Offer:
    """How a filter of at most this many bytes would keep a feature.

    Raises ValueError: no filter is so small.
    """
    num_bits = int(8 * num_bytes)
    facts: AnyFacts
    if goal.structure != BLOOM:
        facts = weighted_for_bits(popularity.counts, popularity.num_filled, num_bits)
    else:
        facts = plain_for_bits(popularity.num_facts, num_bits)
    return _offer_of(facts, goal, popularity)


def noisiest_offer(goal: Goal, popularity: Popularity) -> Offer:
    """The smallest useful filter: it shows half of the values that a row lacks."""
    facts: AnyFacts = FactClass(popularity.num_facts, _MAX_RATE)
    if goal.structure != BLOOM:
        false_per_read = _MAX_RATE * popularity.mean_absent or 1.0
        facts = WeightedFacts(popularity.counts, popularity.num_filled, false_per_read)
    return _offer_of(facts, goal, popularity)


def wanted_false_per_read(goal: Goal, popularity: Popularity) -> float:
    """The false values that a read may show, for any measure but memory; more than 0."""
    if not popularity.mean_absent:  # every row has every value, so any number of hashes will do
        return 1.0
    per_unit = {
        ERROR_RATE: popularity.mean_absent,
        NOISE_RATIO: popularity.num_facts / popularity.num_filled,
    }
    return max(goal.amount * per_unit[goal.measure], _LEAST)


def _facts_for(goal: Goal, popularity: Popularity) -> AnyFacts:
    num_facts = popularity.num_facts
    if not num_facts:
        return FactClass(0, goal.amount if goal.measure == ERROR_RATE else _MAX_RATE)
    wanted = wanted_false_per_read(goal, popularity)
    if goal.structure == WEIGHTED_BLOOM or goal.may_choose:
        return WeightedFacts(popularity.counts, popularity.num_filled, wanted)
    if goal.measure == ERROR_RATE:
        return FactClass(num_facts, goal.amount)
    rate = wanted / max(popularity.mean_absent, _LEAST)
    return FactClass(num_facts, min(_MAX_RATE, max(rate, _LEAST)))


def _offer_of(facts: AnyFacts, goal: Goal, popularity: Popularity) -> Offer:
    """The offer of a filter with these facts. Raises ValueError: no table can keep their rates."""
    geometry = size_for_rates([facts])
    num_bytes = table_bytes(geometry.num_bits, popularity.window_words)
    plan = FilterPlan(facts, goal.measure != MEMORY)
    if isinstance(facts, WeightedFacts):
        # What the goal allows may be more than the values that a row lacks, or that hashes let through.
        false_per_read = facts.expected_false(geometry.hashes[0], geometry.fill)
    else:
        false_per_read = facts.false_positive_rate * popularity.mean_absent
    return Offer(BLOOM, plan, num_bytes, false_per_read)
