"""From error rates to the geometry of one bit table, and from a bit budget back to error rates.

A table is shared by several *classes* of facts, each with its own target false-positive rate (membership
features, scalar features, presence). So they have one fill ``rho``, and differ only in their number of
hashes:

    rho                  = 1 - exp(-sum_c(num_items_c * num_hashes_c) / num_bits)
    false_positive_rate_c = rho ** num_hashes_c

The textbook choice ``rho = 1/2`` makes ``log2(1 / rate)`` hashes optimal, but that is seldom an integer.
Moving ``rho`` a little, so that the heaviest class needs exactly an integer, costs almost nothing, because
the number of bits is flat around the optimum:

    rate 0.01, rho 0.500: 7 hashes, 10.10 bits/fact        rate 0.01, rho 0.518: 7 hashes, 9.59 bits/fact

Each symbol of a class may also have its own number of hashes (`WeightedFacts`). Then the goal is the number
of *false symbols* in a read, ``sum_s (1 - d_s) * rate_s``. The density ``d_s`` of a symbol is the share of
entities that have it. One more hash for symbol s takes ``d_s`` bits per entity, and saves a false symbol with
probability ``(1 - d_s) * rate_s * (1 - rho)``. So false symbols are fewest if ``rate_s`` is proportional to
``d_s / (1 - d_s)``: all symbols have the same noise relative to their signal, and popular ones need few
hashes.

A fill at which a class needs more than ``MAX_NUM_HASHES`` hashes is not used: a sizing keeps every target, or
raises.

Source: Broder & Mitzenmacher, "Network Applications of Bloom Filters: A Survey", section 2; Bruck, Gao &
Jiang, "Weighted Bloom filter", ISIT 2006.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.kernel import MAX_NUM_HASHES

# The optimum lies near one half. Only rates above one half, at a fraction of a bit per fact, need more.
_MIN_FILL, _MAX_FILL = 0.3, 0.999

# Tried for weighted filters, whose hashes adapt to any fill, and for many distinct rates.
_WEIGHTED_FILLS = (*np.linspace(0.3, 0.7, 21).tolist(), 0.75, 0.8, 0.85, 0.9, 0.94, 0.98)

_MAX_EXACT_RATES = 8  # for which all fills with a whole number of hashes are tried
_NEAR_HALF = 2  # hashes more or less than at a fill of one half that are tried with weighted filters
_NOISE_STEPS = 26  # of a search for the noise of a symbol, to two parts per million
_LEAST_BOUGHT_RATE = 1e-9  # with a memory limit; memory for lower rates is left unused
_MEMORY_STEPS = 18  # of a search for the fewest false symbols that fit into the bits

AUTO_NOISE_RATIO = 0.1  # false symbols per true one: the meaning of the setting `target: auto`

# First symbol covered by each hash of a class, ascending from 0.
Hashes: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class FactClass:
    """Facts that share one target error."""

    num_items: int  # number of facts that will be added, at least 0
    false_positive_rate: float  # target probability that an absent fact is "possibly present", in (0, 1)

    def __post_init__(self) -> None:
        if self.num_items < 0:
            raise ValueError(f"num_items is {self.num_items}; it cannot be negative")
        if not 0.0 < self.false_positive_rate < 1.0:
            raise ValueError(
                f"false_positive_rate is {self.false_positive_rate}; it must lie between 0 and 1"
            )

    @property
    def uniform_rate(self) -> float:
        """The rate at which equal hashes for all facts meet the target."""
        return self.false_positive_rate

    def hashes_at(self, fills: Sequence[float]) -> list[Hashes | None]:
        """The hashes that keep the rate in tables with these shares of ones; None for more than the most."""
        # The tolerance keeps a fill that was made for exactly k hashes from asking for k + 1.
        exact = math.log(self.false_positive_rate) / np.log(fills)
        numbers = np.maximum(1, np.ceil(exact - 1e-9)).astype(np.int64).tolist()
        return [None if number > MAX_NUM_HASHES else (0,) * number for number in numbers]

    def excess(self, hashes: Hashes, fill: float) -> float:
        """The rate in a table with this share of ones, relative to the target: at most 1 if it is kept."""
        return float(fill ** len(hashes) / self.false_positive_rate)

    def num_ones(self, hashes: Hashes) -> int:
        """The number of bits that the facts set."""
        return self.num_items * len(hashes)


@dataclass(frozen=True, eq=False)
class WeightedFacts:
    """Facts whose symbols get hashes by their popularity, for a number of false symbols per read.

    No symbol gets more hashes than one after it. Where a symbol has more facts than one before it, as in a
    part of the rows for which a vocabulary was made, all symbols from one to the other get hashes by their
    mean.
    """

    # int64[V], facts per symbol; about descending, or filters are larger than they need be
    counts: NDArray[np.int64] = field(repr=False)
    num_entities: int  # number of entities, at least the facts of any symbol
    false_per_read: float  # the expected number of false symbols in a read of a row, more than 0

    def __post_init__(self) -> None:
        if not (self.counts >= 0).all():
            raise ValueError("a symbol has fewer facts than none")
        if self.counts.max(initial=0) > self.num_entities:
            raise ValueError(f"a symbol has more facts than there are entities, {self.num_entities}")
        if not self.false_per_read > 0:
            raise ValueError(f"false_per_read is {self.false_per_read}; it must be more than 0")

    @property
    def num_items(self) -> int:
        """The number of facts."""
        return int(self.counts.sum())

    @property
    def uniform_rate(self) -> float:
        """The rate at which equal hashes for all symbols meet the target; more than 1 if none are needed."""
        return self.false_per_read / max(float(self._absent_from[0]), 1e-300)

    def hashes_at(self, fills: Sequence[float]) -> list[Hashes | None]:
        """The fewest hashes that keep the false symbols of a read in tables with these shares of ones.

        None if a symbol would need more than ``MAX_NUM_HASHES``.
        """
        unknown = [fill for fill in fills if fill not in self._known_hashes]
        if unknown:
            self._known_hashes.update(zip(unknown, self._found_hashes(unknown), strict=True))
        return [self._known_hashes[fill] for fill in fills]

    @cached_property
    def _known_hashes(self) -> dict[float, Hashes | None]:
        """Those found: a choice asks for most fills twice, of a feature and of all together."""
        return {}

    def _found_hashes(self, fills: Sequence[float]) -> list[Hashes | None]:
        log_fills = np.log(fills)[:, None]
        _, densities, sizes = self._groups
        odds = np.log(np.maximum(densities, 0.5 / max(1, self.num_entities)))
        odds -= np.log1p(-np.minimum(densities, 1 - 1e-9))
        absent = sizes * (1 - densities)

        def at(noise: NDArray[np.float64]) -> NDArray[np.float64]:
            return np.clip(np.ceil((noise[:, None] + odds) / log_fills), 1, MAX_NUM_HASHES)

        # Logarithms of the noise of a symbol relative to its signal; `low` always keeps the target.
        low, high = np.full(len(fills), -60.0), np.full(len(fills), 60.0)
        is_possible = np.exp(log_fills * at(low)) @ absent <= self.false_per_read
        for _ in range(_NOISE_STEPS):
            middle = (low + high) / 2
            is_kept = np.exp(log_fills * at(middle)) @ absent <= self.false_per_read
            low, high = np.where(is_kept, middle, low), np.where(is_kept, high, middle)
        more, fewer = at(low).astype(np.int64), at(high).astype(np.int64)
        return [
            self._between(fill, more[index], fewer[index]) if is_possible[index] else None
            for index, fill in enumerate(fills)
        ]

    def num_ones(self, hashes: Hashes) -> int:
        """The number of bits that the facts set."""
        return int(self._facts_from[list(hashes)].sum())

    def symbol_rates(self, hashes: Hashes, fill: float) -> NDArray[np.float64]:
        """The false-positive rate of each symbol in a table with this share of ones: float64[V]."""
        num_hashes = np.searchsorted(hashes, np.arange(len(self.counts)), side="right")
        return np.power(fill, num_hashes)

    def expected_false(self, hashes: Hashes, fill: float) -> float:
        """The mean number of false symbols in a read, in a table with this share of ones."""
        absent = self._absent_from[[*hashes, len(self.counts)]]
        return float((absent[:-1] - absent[1:]) @ np.power(fill, np.arange(1, len(hashes) + 1)))

    def excess(self, hashes: Hashes, fill: float) -> float:
        """The false symbols of a read in a table with this share of ones, relative to the target."""
        return self.expected_false(hashes, fill) / self.false_per_read

    def _between(self, fill: float, more: NDArray[np.int64], fewer: NDArray[np.int64]) -> Hashes:
        """Hashes between ``more`` and ``fewer``, int64[groups]: as many symbols as possible have ``fewer``.

        The symbols of a group change their hashes together as noise grows. Here the first of them may get
        fewer hashes than the last.
        """
        first, densities, sizes = self._groups
        few, many = np.power(fill, fewer), np.power(fill, more)
        absent = sizes * (1 - densities)
        spare = self.false_per_read * (1 - 1e-9) - float(absent @ many)
        added = absent * (few - many)
        is_whole = np.cumsum(added) <= spare
        spare -= float(added[is_whole].sum())
        starts, per_run = first, np.where(is_whole, fewer, more)
        if not is_whole.all() and added[split := int(np.argmin(is_whole))] > 0:
            absent_from, start, gap = self._absent_from, int(first[split]), float(few[split] - many[split])
            num_fewer = bisect_right(
                range(1, int(sizes[split])),
                spare,
                key=lambda n: (absent_from[start] - absent_from[start + n]) * gap,
            )
            if num_fewer > 0:
                per_run = np.insert(per_run, split, fewer[split])
                starts = np.insert(first, split + 1, first[split] + num_fewer)
        runs = np.searchsorted(per_run, np.arange(1, per_run.max(initial=1) + 1))
        return tuple(starts[runs].tolist())

    @cached_property
    def _facts_from(self) -> NDArray[np.int64]:
        """The facts of each symbol and all after it: int64[V + 1]."""
        return np.concatenate((np.cumsum(self.counts[::-1])[::-1], [0]))

    @cached_property
    def _absent_from(self) -> NDArray[np.float64]:
        """The mean number of symbols that a row lacks, from each symbol on: float64[V + 1]."""
        absent = 1 - self.counts / max(1, self.num_entities)
        return np.concatenate((np.cumsum(absent[::-1])[::-1], [0.0]))

    @cached_property
    def _groups(self) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
        """Groups of symbols of one density: the first symbol, the mean density, and the size of each."""
        sums, sizes = non_increasing_runs(self.counts)
        return np.cumsum(sizes) - sizes, sums / np.maximum(1, sizes * self.num_entities), sizes


def non_increasing_runs(counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The non-increasing fit of counts with the least squares, in runs: int64[runs], their sums and lengths.

    Source: Barlow, Bartholomew, Bremner and Brunk, "Statistical Inference under Order Restrictions", 1972,
    the pool-adjacent-violators algorithm.
    """
    first = np.flatnonzero(np.diff(counts, prepend=-1))
    lengths = np.diff(np.append(first, len(counts)))
    sums: list[int] = []
    sizes: list[int] = []
    for total, size in zip((counts[first] * lengths).tolist(), lengths.tolist(), strict=True):
        while sums and sums[-1] * size <= total * sizes[-1]:  # the mean of the run before is not larger
            total, size = total + sums.pop(), size + sizes.pop()
        sums.append(total)
        sizes.append(size)
    return np.array(sums or [0]), np.array(sizes or [0])


AnyFacts: TypeAlias = FactClass | WeightedFacts


@dataclass(frozen=True)
class Geometry:
    """The size of a table, and the hashes of each class."""

    num_bits: int  # of the table
    hashes: tuple[Hashes, ...]  # one for each class, in the given order
    fill: float  # the expected share of ones after all facts were added


def size_for_rates(classes: Sequence[AnyFacts]) -> Geometry:
    """The smallest table that keeps every class at or below its rate, or its false symbols per read.

    Raises ValueError: there is no class, or at every fill some class needs more than ``MAX_NUM_HASHES``
    hashes.
    """
    if not classes:
        raise ValueError("sizing needs at least one class of facts")
    best: Geometry | None = None
    fills = candidate_fills(classes)
    for fill, *hashes in zip(fills, *(c.hashes_at(fills) for c in classes), strict=True):
        possible = tuple(own for own in hashes if own is not None)
        if len(possible) < len(classes):
            continue
        num_ones = sum(c.num_ones(own) for c, own in zip(classes, possible, strict=True))
        num_bits = max(1, math.ceil(num_ones / -math.log1p(-fill)))
        if best is None or num_bits < best.num_bits:
            best = Geometry(num_bits, possible, fill)
    if best is None:
        raise ValueError(f"its targets take more than {MAX_NUM_HASHES} hashes for a fact in any table")
    return best


def fill_limit(excesses: Sequence[Callable[[float], float]]) -> float:
    """The largest share of ones, below 1, at which no excess over a target is more than 1."""
    low, high = 0.0, 1 - 1e-9
    for _ in range(50):
        middle = (low + high) / 2
        keeps = all(excess(middle) <= 1 for excess in excesses)
        low, high = (middle, high) if keeps else (low, middle)
    return low


def plain_for_bits(num_items: int, num_bits: int) -> FactClass:
    """The lowest rate, at least 1e-9, that fits into ``num_bits``, for this many facts.

    Raises ValueError: even rates near 1 do not fit.
    """
    hashes = np.arange(1, MAX_NUM_HASHES + 1)
    fills = -np.expm1(-num_items * hashes / max(1, num_bits))
    lowest = float((fills**hashes).min())
    if num_bits < 1 or lowest > _MAX_FILL:
        raise ValueError(f"{num_bits} bits are too few for {num_items} facts")
    return FactClass(num_items, max(_LEAST_BOUGHT_RATE, lowest))


def weighted_for_bits(counts: NDArray[np.int64], num_entities: int, num_bits: int) -> WeightedFacts:
    """The fewest false symbols per read that fit into ``num_bits``; raises as `plain_for_bits`."""
    least, most = math.log(1e-9), math.log(max(1, len(counts)))
    best: WeightedFacts | None = None
    for _ in range(_MEMORY_STEPS):
        middle = (least + most) / 2
        facts = WeightedFacts(counts, num_entities, math.exp(middle))
        try:
            fits = size_for_rates([facts]).num_bits <= num_bits
        except ValueError:  # too many hashes
            fits = False
        if fits:
            best, most = facts, middle
        else:
            least = middle
    if best is None:
        raise ValueError(f"{num_bits} bits are too few for {int(counts.sum())} facts")
    return best


def candidate_fills(classes: Sequence[AnyFacts]) -> list[float]:
    """Fills at which some class needs an integer number of hashes: the optimum is one of them.

    Weighted filters adapt to any fill, so many are tried. If classes have more than a few rates, only the
    heaviest get fills of their own, because the number of bits is flat around the optimum.
    """
    weights: dict[float, float] = {}
    for c in classes:
        if 0.0 < (rate := c.uniform_rate) < 1.0:
            weights[rate] = weights.get(rate, 0.0) - c.num_items * math.log(rate)
    rates = sorted(weights, key=lambda rate: -weights[rate])[:_MAX_EXACT_RATES]
    has_weighted = any(isinstance(c, WeightedFacts) for c in classes)
    fills = set(_WEIGHTED_FILLS) if has_weighted or len(weights) > len(rates) else set()
    for rate in rates:
        rate *= 1 - 2e-9  # so that rounding does not ask for another hash
        half = max(1, round(-math.log2(rate)))
        least, most = (half - _NEAR_HALF, half + _NEAR_HALF) if has_weighted else (1, MAX_NUM_HASHES)
        fills |= {rate ** (1.0 / k) for k in range(max(1, least), min(most, MAX_NUM_HASHES) + 1)}
    return sorted(fill for fill in fills if _MIN_FILL <= fill <= _MAX_FILL) or [0.5]


_CONFIDENCE = 0.95


def within(rate: float, num_sampled: int) -> float:
    """A bound on the distance between the true rate and a sampled one, with a confidence of 95 %.

    For n independent questions with the true rate p, let x be the share of wrong answers. Then

        P(|x - p| >= e) <= 2 exp(-e^2 n / 2)               for any p
        P(|x - p| >= e) <= 2 exp(-e^2 n / (3 p))           for e <= p

    The second is sharper at the rates that filters have. The true rate may be the larger one. So the bound is
    taken at the largest rate p that is itself within the bound of ``rate``.

    Source: Mitzenmacher and Upfal, "Probability and Computing", section 4.2.
    """
    if num_sampled < 1:
        return 1.0
    exponent = math.log(2 / (1 - _CONFIDENCE)) / num_sampled
    half = 1.5 * exponent
    return min(half + math.sqrt(half * half + 2 * half * rate), math.sqrt(2 * exponent), 1.0)
