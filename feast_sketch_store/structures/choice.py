"""The choice of a structure: how a membership feature is kept, given what it is wanted for.

A filter costs ``log2(1 / rate) / ln 2`` bits per fact, and a read of it shows ``rate * (V - n)`` false
symbols beside ``n`` true ones; a compressed set costs about ``log2(V / n) + 1.44``, and shows none. So below
a rate of about ``n / (3 * V)`` the set is smaller. It needs a list of rows, though, which all sets of a layer
share, where a filter tells of a row in one symbol more.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.errors import SettingsError
from feast_sketch_store.structures.sizing import (
    AnyFacts,
    FactClass,
    TieredFacts,
    size_for_bits,
    size_for_rates,
    tiers_for_bits,
)
from feast_sketch_store.succinct import golomb_sets
from feast_sketch_store.succinct.fingerprints import expected_bits

AUTO: Final = "auto"
UNIFORM: Final = "uniform"
TIERS: Final = "tiers"
SETS: Final = "sets"
STRUCTURES: Final = (AUTO, UNIFORM, TIERS, SETS)

ERROR_RATE: Final = "error_rate"
NOISE_RATIO: Final = "noise_ratio"
FALSE_PER_READ: Final = "false_per_read"
MEMORY: Final = "memory"

_OFFSET_BITS = 16  # about; where the sets of a row begin

_MAX_RATE = 0.5
_MIN_RATE = 1e-9


@dataclass(frozen=True)
class Target:
    """What a membership feature is wanted for.

    Parameters
    ----------
    measure : ``error_rate``, the probability that an absent value reads as present; ``false_per_read``, how
        many values a read shows too many, on average; ``noise_ratio``, how many of these for each true one;
        ``memory``, bytes at most.
    amount : of it.
    structure : one of ``STRUCTURES``. Left to choose, an error rate makes a uniform filter, another measure
        whichever of tiers and sets is smaller.
    """

    measure: str
    amount: float
    structure: str = AUTO


@dataclass(frozen=True)
class Popularity:
    """How often each symbol occurs.

    Parameters
    ----------
    counts : int64[V], rows that have each symbol, from the most popular one on.
    num_rows : of all rows.
    num_empty : of rows that have none, whose reads show none either.
    """

    counts: NDArray[np.int64]
    num_rows: int
    num_empty: int = 0

    @property
    def num_filled(self) -> int:
        """Rows that have some."""
        return max(1, self.num_rows - self.num_empty)

    @property
    def num_facts(self) -> int:
        """All facts."""
        return int(self.counts.sum())

    @property
    def mean_absent(self) -> float:
        """How many symbols a row that has some lacks, on average."""
        return len(self.counts) - self.num_facts / self.num_filled


def choose(
    targets: Mapping[str, Target],
    popularity: Mapping[str, Popularity],
    presence_error_rate: float,
    is_listed: bool,
) -> dict[str, AnyFacts | None]:
    """How to keep membership features.

    Parameters
    ----------
    targets, popularity : of each feature.
    presence_error_rate : at which an unknown entity may read as a row.
    is_listed : whether the rows are listed anyway.

    Returns
    -------
    Per feature the facts that its filter is to hold, or None if it is to be kept in sets.

    Raises
    ------
    SettingsError : the memory that a feature may take is too little for its facts.
    """
    num_rows = max((p.num_rows for p in popularity.values()), default=0)
    list_bits = expected_bits(num_rows, presence_error_rate) + num_rows * _OFFSET_BITS
    filters = {}
    for name, target in targets.items():
        try:
            filters[name] = _filter_for(target, popularity[name], 0.0 if is_listed else list_bits)
        except ValueError as error:
            raise SettingsError(
                f"feature {name!r} cannot be kept for a {target.measure} of {target.amount:g}: {error}"
            ) from error
    is_free = {n for n, t in targets.items() if t.structure == AUTO and t.measure != ERROR_RATE}
    wanted = {n for n, facts in filters.items() if facts is None}
    bits = {n: (filter_bits(f), set_bits(popularity[n])) for n, f in filters.items() if f and n in is_free}
    smaller = {n for n, (in_filter, in_sets) in bits.items() if in_sets < in_filter}
    saved = sum(bits[n][0] - bits[n][1] for n in smaller)
    if wanted or is_listed or saved > listing_bits(num_rows, presence_error_rate):
        wanted |= smaller
    return {name: None if name in wanted else facts for name, facts in filters.items()}


def filter_bits(facts: AnyFacts) -> int:
    """Bits of a filter of its own for the facts."""
    return size_for_rates([facts]).num_bits


def set_bits(popularity: Popularity) -> float:
    """About the bits of sets: of their symbols, and of their sizes."""
    mean = popularity.num_facts / max(1, popularity.num_rows)
    return golomb_sets.ideal_bits(popularity.counts, popularity.num_filled) + popularity.num_rows * (
        1 + math.log2(1 + mean)
    )


def listing_bits(num_rows: int, presence_error_rate: float) -> float:
    """About the bits by which a list of rows is larger than a symbol of each in a filter."""
    shape_bits = math.log2(1 / presence_error_rate) / math.log(2)
    return expected_bits(num_rows, presence_error_rate) + num_rows * (_OFFSET_BITS - shape_bits)


def _filter_for(target: Target, popularity: Popularity, list_bits: float) -> AnyFacts | None:
    """The facts of a filter that meets a target; None if sets do, whose list of rows takes so many bits."""
    if target.structure == SETS:
        return None
    counts, num_rows, num_facts = popularity.counts, popularity.num_filled, popularity.num_facts
    is_uniform = target.structure == UNIFORM or (target.structure == AUTO and target.measure == ERROR_RATE)
    if not num_facts:
        return FactClass(0, target.amount if target.measure == ERROR_RATE else _MAX_RATE)
    if target.measure == MEMORY:
        num_bits = int(8 * target.amount)
        if target.structure == AUTO and set_bits(popularity) + list_bits <= num_bits:
            return None
        if not is_uniform:
            return tiers_for_bits(counts, num_rows, num_bits)
        rate = size_for_bits([FactClass(num_facts, 0.01)], num_bits).false_positive_rates[0]
        return FactClass(num_facts, max(_MIN_RATE, rate))
    false_per_read = {
        ERROR_RATE: target.amount * popularity.mean_absent,
        NOISE_RATIO: target.amount * num_facts / num_rows,
        FALSE_PER_READ: target.amount,
    }[target.measure]
    if target.measure == ERROR_RATE and is_uniform:
        return FactClass(num_facts, target.amount)
    if is_uniform:
        rate = false_per_read / max(popularity.mean_absent, 1e-9)
        return FactClass(num_facts, min(_MAX_RATE, max(_MIN_RATE, rate)))
    return TieredFacts(counts, num_rows, max(false_per_read, 1e-9))
