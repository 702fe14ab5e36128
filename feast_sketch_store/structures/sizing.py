"""From error rates to the geometry of one bit table, and from a bit budget back to error rates.

A table is shared by several *classes* of facts, each with its own target false-positive rate
(membership features, scalar features, presence). They share one table and so one fill ``rho``;
a class differs from another only in its number of hashes:

    rho                  = 1 - exp(-sum_c(num_items_c * num_hashes_c) / num_bits)
    false_positive_rate_c = rho ** num_hashes_c

The textbook choice ``rho = 1/2`` makes ``log2(1 / rate)`` hashes optimal, but that number is seldom
an integer. Moving ``rho`` a little, so that the heaviest class needs exactly an integer, costs
almost nothing, because the bits spent are flat around the optimum:

    rate 0.01, rho 0.500: 7 hashes, 10.10 bits/fact        rate 0.01, rho 0.518: 7 hashes, 9.59 bits/fact

The symbols of a class may also have numbers of hashes of their own (`TieredFacts`). What then counts is how
many *false symbols* a read shows, ``sum_s (1 - d_s) * rate_s`` with the density ``d_s`` of a symbol, the
share of entities that have it. A hash more for symbol s takes ``d_s`` bits per entity and saves a false
symbol with probability ``(1 - d_s) * rate_s * (1 - rho)``; so they are fewest where ``rate_s`` is
proportional to ``d_s / (1 - d_s)``: all symbols show the same noise relative to their signal, and popular
ones need few hashes.

Source: Broder & Mitzenmacher, "Network Applications of Bloom Filters: A Survey", section 2; Bruck, Gao &
Jiang, "Weighted Bloom filter", ISIT 2006.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.kernel import MAX_NUM_HASHES

# The optimum lies near one half; only rates above one half, at a fraction of a bit per fact, need more.
_MIN_FILL, _MAX_FILL = 0.3, 0.999

# Tried for tiers, whose hashes adapt to any fill.
_TIER_FILLS = (*np.linspace(0.3, 0.7, 41).tolist(), *np.linspace(0.72, 0.98, 14).tolist())

AUTO_NOISE_RATIO = 0.1  # false symbols for each true one: what the setting `error_rate: auto` means

# Of the hashes of a class: the first of its symbols that the hash is used for, ascending from 0.
Hashes: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class FactClass:
    """Facts that share one target error.

    Parameters
    ----------
    num_items : number of facts that will be added, at least 0.
    false_positive_rate : wanted probability that an absent fact is "possibly present", in (0, 1).
    """

    num_items: int
    false_positive_rate: float

    def __post_init__(self) -> None:
        if self.num_items < 0:
            raise ValueError(f"num_items is {self.num_items}; it cannot be negative")
        if not 0.0 < self.false_positive_rate < 1.0:
            raise ValueError(
                f"false_positive_rate is {self.false_positive_rate}; it must lie between 0 and 1"
            )

    def hashes_at(self, fill: float) -> Hashes:
        """The hashes that keep the rate in a table of so many ones."""
        # The tolerance keeps a fill that was made for exactly k hashes from asking for k + 1.
        return (0,) * max(1, math.ceil(math.log(self.false_positive_rate) / math.log(fill) - 1e-9))

    def facts_per_hash(self, hashes: Hashes) -> tuple[int, ...]:
        """How many facts each hash is used for."""
        return (self.num_items,) * len(hashes)

    def num_ones(self, hashes: Hashes) -> int:
        """How many bits the facts set."""
        return self.num_items * len(hashes)


@dataclass(frozen=True, eq=False)
class TieredFacts:
    """Facts of symbols that get hashes by their popularity, for so many false symbols per read.

    Parameters
    ----------
    counts : int64[V], facts per symbol, none more than the one before it.
    num_entities : how many there are, at least as many as facts of a symbol.
    false_per_read : the expected number of symbols that a read of a row shows too many, more than 0.
    """

    counts: NDArray[np.int64] = field(repr=False)
    num_entities: int
    false_per_read: float

    def __post_init__(self) -> None:
        if (np.diff(self.counts) > 0).any() or not (self.counts >= 0).all():
            raise ValueError("the counts are not in the order of popularity")
        if self.counts.max(initial=0) > self.num_entities:
            raise ValueError(f"a symbol has more facts than there are entities, {self.num_entities}")
        if not self.false_per_read > 0:
            raise ValueError(f"false_per_read is {self.false_per_read}; it must be more than 0")

    @property
    def num_items(self) -> int:
        """The number of facts."""
        return int(self.counts.sum())

    def hashes_at(self, fill: float) -> Hashes:
        """The fewest hashes that keep the false symbols of a read in a table of so many ones."""
        first, densities, sizes = self._groups
        odds = np.log(np.maximum(densities, 0.5 / max(1, self.num_entities)))
        odds -= np.log1p(-np.minimum(densities, 1 - 1e-9))
        absent = sizes * (1 - densities)

        def at(noise: float) -> NDArray[np.int64]:
            return np.clip(np.ceil((noise + odds) / math.log(fill)), 1, MAX_NUM_HASHES).astype(np.int64)

        low, high = -60.0, 60.0  # of the logarithm of the noise of a symbol relative to its signal
        for _ in range(36):
            middle = (low + high) / 2
            if absent @ fill ** at(middle) <= self.false_per_read:
                low = middle
            else:
                high = middle
        per_group = at(low)
        starts = np.searchsorted(per_group, np.arange(1, per_group.max(initial=1) + 1))
        return tuple(first[starts].tolist())

    def facts_per_hash(self, hashes: Hashes) -> tuple[int, ...]:
        """How many facts each hash is used for."""
        behind = np.concatenate((np.cumsum(self.counts[::-1])[::-1], [0]))
        return tuple(behind[list(hashes)].tolist())

    def num_ones(self, hashes: Hashes) -> int:
        """How many bits the facts set."""
        return sum(self.facts_per_hash(hashes))

    def symbol_rates(self, hashes: Hashes, fill: float) -> NDArray[np.float64]:
        """The false-positive rate of each symbol in a table of so many ones: float64[V]."""
        num_hashes = np.searchsorted(hashes, np.arange(len(self.counts)), side="right")
        return np.power(fill, num_hashes)

    def expected_false(self, hashes: Hashes, fill: float) -> float:
        """How many symbols a read shows too many, on average, in a table of so many ones."""
        absent = 1 - self.counts / max(1, self.num_entities)
        return float(absent @ self.symbol_rates(hashes, fill))

    @cached_property
    def _groups(self) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
        """Symbols of equal counts: the first of each group, their density, and how many they are."""
        changes = np.flatnonzero(np.diff(self.counts, prepend=self.counts[:1] + 1))
        first = changes if len(changes) else np.zeros(1, np.int64)
        counts = self.counts[changes] if len(changes) else np.zeros(1, np.int64)
        sizes = np.diff(np.append(first, len(self.counts)))
        return first, counts / max(1, self.num_entities), sizes


AnyFacts: TypeAlias = FactClass | TieredFacts


@dataclass(frozen=True)
class Geometry:
    """The size of a table and, per class in the order given, its hashes.

    ``fill`` is the expected share of ones after all facts were added.
    """

    num_bits: int
    hashes: tuple[Hashes, ...]
    fill: float

    @property
    def num_hashes(self) -> tuple[int, ...]:
        """The most hashes that a symbol of each class has."""
        return tuple(map(len, self.hashes))

    @property
    def false_positive_rates(self) -> tuple[float, ...]:
        """Expected rate of the symbols of each class that have the most hashes: ``fill ** num_hashes``."""
        return tuple(self.fill**k for k in self.num_hashes)


def ideal_bits(classes: Sequence[FactClass]) -> float:
    """Bits of a standard Bloom filter with fractional hashes: ``sum n * log2(1/rate) / ln 2``."""
    return sum(c.num_items * math.log2(1.0 / c.false_positive_rate) for c in classes) / math.log(2)


def size_for_rates(classes: Sequence[AnyFacts]) -> Geometry:
    """The smallest table that keeps every class at or below its rate, or its false symbols per read.

    Raises
    ------
    ValueError : there is no class, or a rate asks for more than ``MAX_NUM_HASHES`` hashes.
    """
    if not classes:
        raise ValueError("sizing needs at least one class of facts")
    best: Geometry | None = None
    for fill in _candidate_fills(classes):
        hashes = tuple(c.hashes_at(fill) for c in classes)
        if max(map(len, hashes)) > MAX_NUM_HASHES:
            continue
        num_ones = sum(c.num_ones(h) for c, h in zip(classes, hashes, strict=True))
        num_bits = max(1, math.ceil(num_ones / -math.log1p(-fill)))
        if best is None or num_bits < best.num_bits:
            best = Geometry(num_bits, hashes, fill)
    if best is None:
        rate = min(c.false_positive_rate for c in classes if isinstance(c, FactClass))
        raise ValueError(f"false_positive_rate {rate} would take more than {MAX_NUM_HASHES} hashes")
    return best


def size_for_bits(classes: Sequence[FactClass], num_bits: int) -> Geometry:
    """The lowest rates that fit in ``num_bits``, all classes scaled by one common exponent.

    Class rates ``r`` become ``r ** t``: their ratios on a log scale, that is the share of the bits
    that each class gets per fact, stay as given.

    Raises
    ------
    ValueError : even rates near 1 do not fit.
    """
    low, high = 1e-3, 1e3  # the exponent t; bits grow with t
    best: Geometry | None = None
    for _ in range(60):
        middle = math.sqrt(low * high)
        geometry = _try_exponent(classes, middle)
        if geometry is not None and geometry.num_bits <= num_bits:
            best, low = geometry, middle
        else:
            high = middle
    if best is None:
        raise ValueError(f"{num_bits} bits are too few for {sum(c.num_items for c in classes)} facts")
    return Geometry(num_bits, best.hashes, expected_fill(classes, best.hashes, num_bits))


def tiers_for_bits(counts: NDArray[np.int64], num_entities: int, num_bits: int) -> TieredFacts:
    """The fewest false symbols per read that fit in ``num_bits``; parameters as those of `TieredFacts`.

    Raises
    ------
    ValueError : the facts do not fit, however many false symbols there are.
    """
    least, most = math.log(1e-9), math.log(max(1, len(counts)))
    best: TieredFacts | None = None
    for _ in range(24):
        middle = (least + most) / 2
        facts = TieredFacts(counts, num_entities, math.exp(middle))
        if size_for_rates([facts]).num_bits <= num_bits:
            best, most = facts, middle
        else:
            least = middle
    if best is None:
        raise ValueError(f"{num_bits} bits are too few for {int(counts.sum())} facts")
    return best


def expected_fill(classes: Sequence[AnyFacts], hashes: Sequence[Hashes], num_bits: int) -> float:
    """Expected share of ones in a table of ``num_bits`` once all facts were added."""
    num_ones = sum(c.num_ones(h) for c, h in zip(classes, hashes, strict=True))
    return -math.expm1(-num_ones / num_bits)


def _try_exponent(classes: Sequence[FactClass], exponent: float) -> Geometry | None:
    rates = (c.false_positive_rate**exponent for c in classes)
    try:
        return size_for_rates([FactClass(c.num_items, rate) for c, rate in zip(classes, rates, strict=True)])
    except ValueError:  # a rate of 0.0 or 1.0 after rounding, or too many hashes
        return None


def _candidate_fills(classes: Sequence[AnyFacts]) -> list[float]:
    """Fills at which some class needs an integer number of hashes: the optimum is one of them.

    Tiers have no such fills: they are tried at many.
    """
    rates = {c.false_positive_rate for c in classes if isinstance(c, FactClass)}
    fills = {rate ** (1.0 / k) for rate in rates for k in range(1, MAX_NUM_HASHES + 1)}
    if any(isinstance(c, TieredFacts) for c in classes):
        fills.update(_TIER_FILLS)
    return sorted(fill for fill in fills if _MIN_FILL <= fill <= _MAX_FILL) or [0.5]
