"""A filter's offer for a goal: the facts of a feature that it would hold, and its size."""

from dataclasses import dataclass

from feast_sketch_store.structures.costs import Popularity, table_bytes
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
    size_for_bits,
    size_for_rates,
    weighted_for_bits,
)

_MAX_RATE = 0.5
_LEAST_BOUGHT_RATE = 1e-9  # with a memory limit; memory for lower rates is left unused
_LEAST = 1e-300  # above 0, for goals that no table can keep


@dataclass(frozen=True)
class FilterPlan:
    """The facts of a feature in a filter. Their rates must be kept, unless there is a memory limit."""

    facts: AnyFacts
    is_held: bool = True


def filter_offer(goal: Goal, popularity: Popularity) -> Offer | None:
    """How a filter would keep a feature; None if no filter can.

    Raises
    ------
    ValueError : the feature does not fit into its memory limit.
    """
    if goal.measure == MEMORY and popularity.num_facts:
        return offer_of_memory(goal, popularity, goal.amount)
    facts = _facts_for(goal, popularity)
    try:
        return _offer_of(facts, goal, popularity)
    except ValueError:
        return None


def offer_of_memory(goal: Goal, popularity: Popularity, num_bytes: float) -> Offer:
    """How a filter of at most this many bytes would keep a feature.

    Raises
    ------
    ValueError : no filter is so small.
    """
    num_bits, num_facts = int(8 * num_bytes), popularity.num_facts
    facts: AnyFacts
    if goal.structure != BLOOM:
        facts = weighted_for_bits(popularity.counts, popularity.num_filled, num_bits)
    else:
        rate = size_for_bits([FactClass(num_facts, 0.01)], num_bits).false_positive_rates[0]
        facts = FactClass(num_facts, max(_LEAST_BOUGHT_RATE, rate))
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
    # If every row has every value, there are no false values; any number of hashes will do.
    return max(_false_per_read(goal, popularity) if popularity.mean_absent else 1.0, _LEAST)


def _false_per_read(goal: Goal, popularity: Popularity) -> float:
    return {
        ERROR_RATE: goal.amount * popularity.mean_absent,
        NOISE_RATIO: goal.amount * popularity.num_facts / popularity.num_filled,
    }[goal.measure]


def _facts_for(goal: Goal, popularity: Popularity) -> AnyFacts:
    num_facts = popularity.num_facts
    if not num_facts:
        return FactClass(0, goal.amount if goal.measure == ERROR_RATE else _MAX_RATE)
    false_per_read = _false_per_read(goal, popularity)
    if goal.structure == WEIGHTED_BLOOM or goal.may_choose:
        wanted = wanted_false_per_read(goal, popularity)
        return WeightedFacts(popularity.counts, popularity.num_filled, wanted)
    if goal.measure == ERROR_RATE:
        return FactClass(num_facts, goal.amount)
    rate = false_per_read / max(popularity.mean_absent, _LEAST)
    return FactClass(num_facts, min(_MAX_RATE, max(rate, _LEAST)))


def _offer_of(facts: AnyFacts, goal: Goal, popularity: Popularity) -> Offer:
    """The offer of a filter with these facts.

    Raises
    ------
    ValueError : no table can keep their rates.
    """
    geometry = size_for_rates([facts])
    num_bytes = table_bytes(geometry.num_bits, popularity.window_words)
    plan = FilterPlan(facts, goal.measure != MEMORY)
    if isinstance(facts, WeightedFacts):
        # What the goal allows may be more than the values that a row lacks, or that hashes let through.
        false_per_read = facts.expected_false(geometry.hashes[0], geometry.fill)
    else:
        false_per_read = facts.false_positive_rate * popularity.mean_absent
    return Offer(BLOOM, plan, num_bytes, false_per_read)
