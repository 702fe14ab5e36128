"""Clusters of entities, learned from the values of their rows, and the hashes of a value in each cluster.

A row belongs to the cluster under which it is most probable. Within a cluster, values count as independent
(a mixture of Bernoulli distributions):

    log P(row | c) = sum over the row's values s of log(p_cs / (1 - p_cs)) + sum over all s of log(1 - p_cs)

Shares ``p_cs`` and clusters are computed in turns on a sample of the rows; then all rows are assigned. Equal
rows in the same order give equal clusters.

A cell is a value in a cluster: ``n`` rows of the cluster have it, ``a`` rows with values lack it. A fact of
the cell has ``k`` hashes, so a row that lacks it shows it with probability ``rho ** k`` at a share ``rho`` of
ones. The goal is a number of false values per read:

    sum over cells of a * rho ** k  <=  false_per_read * rows            ones of the table: sum of n * k

Each cell has one of a few *levels* (numbers of hashes). There are three known ways to assign them:

| style | levels | of a cell |
|---|---|---|
| learned | 0 and k | 0 if its odds ``n / a`` reach a threshold, else the backup filter's k |
| sandwiched | k1 and k1 + k2 | k1 of the initial filter; below the threshold also k2 of the backup filter |
| weighted | several | the more, the lower its odds |

The first two are Mitzenmacher's: the query is the cluster and the value, the learned function is the odds,
``F_n`` is the share of facts below the threshold, and ``F_p`` the share of absent values above it. The best
split is searched among whole numbers of hashes. The third is the weighted filter of `sizing` within each
cluster: its rates are proportional to the odds.

Source: Mitzenmacher, "A Model for Learned Bloom Filters, and Optimizing by Sandwiching", NeurIPS 2018;
Vaidya, Knorr, Mitzenmacher and Kraska, "Partitioned Learned Bloom Filters", ICLR 2021 (levels by score).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.kernel import MAX_NUM_HASHES
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.structures.goals import LEARNED_BLOOM, SANDWICHED_BLOOM, WEIGHTED_BLOOM
from feast_sketch_store.structures.sizing import fill_limit

MAX_CLUSTERS = 256
MAX_LEVELS = 8
SMOOTHING = 8.0  # pseudo-rows with the overall shares, added to each cluster
STYLES: Final = (LEARNED_BLOOM, SANDWICHED_BLOOM, WEIGHTED_BLOOM)

_TURNS = 15  # in which shares and clusters are computed
_SAMPLE_FACTS = 1 << 20
_NUMBERS_PER_CHUNK = 1 << 18  # that are added up at once; more would leave the processor's cache
_SEED = 17

_FILLS = tuple(np.round(np.arange(0.36, 0.661, 0.02), 2).tolist())
_HALF = 0.5  # the fill at which levels of weighted filters are chosen
_STEPS = range(1, 5)  # between levels
_MASK_WEIGHT = 1 / 3  # of a mask's bit against one of the table: masks do not grow with the rows
_BIN = 0.04  # width of bins of log-odds that share a level in a weighted filter
_PRICE_STEPS = 30


@dataclass(frozen=True)
class Scorer:
    """Finds the cluster of a row from its values."""

    weights: NDArray[np.float32]  # float32[V, C], what each value adds to the score of each cluster
    offsets: NDArray[np.float64]  # float64[C], the scores of a row without values

    @classmethod
    def fit(cls, counts: NDArray[np.int64], num_rows: NDArray[np.int64]) -> "Scorer":
        """The scorer for clusters with known counts: int64[C, V] facts, int64[C] rows."""
        overall = counts.sum(0) / max(1, num_rows.sum())
        shares = (counts + SMOOTHING * overall) / (num_rows[:, None] + SMOOTHING)
        shares = shares.clip(1e-9, 1 - 1e-6)
        offsets = np.log1p(-shares).sum(1) + np.log(num_rows + 1.0)
        weights = np.log(shares) - np.log1p(-shares)
        return cls(np.ascontiguousarray(weights.T, np.float32), offsets)

    def clusters_of(self, members: Csr) -> NDArray[np.int64]:
        """The cluster of each row, given the ids of its values: int64[n]."""
        clusters = np.full(len(members), int(self.offsets.argmax()))
        filled = np.flatnonzero(members.lengths)
        starts = members.indptr[filled]
        first, most_facts = 0, _NUMBERS_PER_CHUNK // len(self.offsets)
        while first < len(filled):
            stop = int(np.searchsorted(starts, starts[first] + most_facts, side="right"))
            end = int(members.indptr[filled[stop - 1] + 1])
            scores = np.add.reduceat(
                self.weights[members.ids[starts[first] : end]], starts[first:stop] - starts[first], axis=0
            )
            clusters[filled[first:stop]] = (scores + self.offsets).argmax(1)
            first = stop
        return clusters


def count(members: Csr, clusters: NDArray[np.int64], shape: tuple[int, int]) -> NDArray[np.int64]:
    """The number of rows of each cluster with each value: int64[C, V]. ``shape`` is C and V."""
    keys = np.repeat(clusters * shape[1], members.lengths)
    return np.bincount(keys + members.ids, minlength=shape[0] * shape[1]).reshape(shape)


def learn(members: Csr, num_values: int, num_clusters: int) -> NDArray[np.int64]:
    """The cluster of each row: int64[n], below ``num_clusters`` and the number of rows.

    ``members`` are the ids of the rows' values, below ``num_values``, without repetitions in a row.
    """
    num_clusters = max(1, min(num_clusters, len(members)))
    if num_clusters == 1 or not len(members.ids):
        return np.zeros(len(members), np.int64)
    step = max(1, len(members.ids) // _SAMPLE_FACTS)
    sample = members.take(np.arange(0, len(members), step)) if step > 1 else members
    clusters = np.random.default_rng(_SEED).integers(0, num_clusters, len(sample))
    for number in range(_TURNS + 1):
        counts = count(sample, clusters, (num_clusters, num_values))
        scorer = Scorer.fit(counts, np.bincount(clusters, minlength=num_clusters))
        if number < _TURNS:
            clusters = scorer.clusters_of(sample)
    return scorer.clusters_of(members)


class Split(NamedTuple):
    """The number of hashes of each cell's facts."""

    hashes: tuple[int, ...]  # of each level, ascending
    level_of: NDArray[np.uint8]  # uint8[C, V], the level of each cell


@dataclass(frozen=True, eq=False)
class ClusterFacts:
    """The facts of a feature by cluster and value, and the goal."""

    counts: NDArray[np.int64] = field(repr=False)  # int64[C, V], rows of each cluster that have each value
    num_rows: NDArray[np.int64] = field(repr=False)  # int64[C], rows of each cluster that have any value
    false_per_read: float  # the expected false values of a read of such a row; more than 0
    style: str  # one of `STYLES`

    @property
    def num_facts(self) -> int:
        """All facts."""
        return int(self.counts.sum())

    @cached_property
    def absent(self) -> NDArray[np.int64]:
        """Rows with values that lack each value: int64[C, V]."""
        return np.asarray(np.maximum(self.num_rows[:, None] - self.counts, 0))

    @cached_property
    def may_show(self) -> float:
        """False values that the reads of all rows may show together."""
        return self.false_per_read * max(1, int(self.num_rows.sum()))

    def excess(self, split: Split) -> Callable[[float], float]:
        """The false values of a read, divided by the allowed ones, as a function of the share of ones."""
        absent, hashes = _sums(split.level_of, self.absent, len(split.hashes)), np.array(split.hashes)
        return lambda fill: float(absent @ np.power(fill, hashes)) / self.may_show

    def num_ones(self, split: Split) -> int:
        """The number of bits that the facts set."""
        return int(_sums(split.level_of, self.counts, len(split.hashes)) @ np.array(split.hashes))

    def facts_per_level(self, split: Split) -> tuple[int, ...]:
        """The number of facts at each level."""
        return tuple(map(int, _sums(split.level_of, self.counts, len(split.hashes))))

    def split_at(self, fill: float) -> Split | None:
        """The split with the fewest ones at a share of ones; None if no split meets the goal."""
        if self.style == WEIGHTED_BLOOM:
            return self._weighted_at(fill)
        found = min(self._thresholds_at(fill), default=None)
        if found is None:
            return None
        _, first, more, num_above = found
        level_of = np.ones(self.counts.size, np.uint8)
        level_of[self._by_odds[:num_above]] = 0
        if not more:
            return Split((max(1, first),), np.zeros(self.counts.shape, np.uint8))
        return Split((first, first + more), level_of.reshape(self.counts.shape))

    def _thresholds_at(self, fill: float) -> Iterator[tuple[int, int, int, int]]:
        """Possible splits: ones, initial and backup hashes, and the number of cells above the threshold."""
        facts_above, absent_above = self._above
        num_facts, num_absent = int(facts_above[-1]), float(absent_above[-1])
        more = np.arange(1, MAX_NUM_HASHES + 1)
        rates = np.power(fill, more)
        for first in range(MAX_NUM_HASHES) if self.style == SANDWICHED_BLOOM else (0,):
            may_pass = self.may_show / fill**first
            # The initial filter alone may be enough; else above + rate * (absent - above) <= may_pass.
            if first and num_absent <= may_pass:
                yield num_facts * first, first, 0, 0
                return
            most = (may_pass - rates * num_absent) / (1 - rates)
            num_above = np.searchsorted(absent_above, most, side="right") - 1
            ones = num_facts * first + more * (num_facts - facts_above[np.maximum(num_above, 0)])
            ones[(num_above < 0) | (first + more > MAX_NUM_HASHES)] = np.iinfo(np.int64).max
            best = int(ones.argmin())
            if num_above[best] >= 0 and first + more[best] <= MAX_NUM_HASHES:
                yield int(ones[best]), first, int(more[best]), int(num_above[best])

    @cached_property
    def _odds(self) -> NDArray[np.float64]:
        """The log-odds of each cell: float64[C * V]; -inf for a cell without facts."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.counts.reshape(-1) / np.maximum(self.absent.reshape(-1), 0.5)))

    @cached_property
    def _by_odds(self) -> NDArray[np.int64]:
        """The cells in descending order of odds."""
        return np.argsort(-self._odds, kind="stable")

    @cached_property
    def _above(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """For each number of first cells by odds, 0 included, their facts and their absent values."""
        facts, absent = self.counts.reshape(-1)[self._by_odds], self.absent.reshape(-1)[self._by_odds]
        return np.concatenate(([0], np.cumsum(facts))), np.concatenate(([0], np.cumsum(absent)))

    @cached_property
    def _bins(self) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
        """The bin of each cell, and the facts and absent values of each bin."""
        odds = self._odds
        rounded = np.where(np.isfinite(odds), np.floor(odds / _BIN), -1e6)
        _, bins = np.unique(rounded, return_inverse=True)
        bins = bins.astype(np.int64)
        return bins, _sums(bins, self.counts), _sums(bins, self.absent)

    @cached_property
    def _levels(self) -> tuple[int, ...] | None:
        """The levels of a weighted filter for which table and masks are smallest, at a fill of one half."""
        if not self.num_facts:
            return (1,)
        best: tuple[float, tuple[int, ...]] = math.inf, ()
        for number in range(1, MAX_LEVELS + 1):
            own = min(self._levels_of(number, step) for step in _STEPS)
            if own[0] > best[0]:
                break  # more masks cost more than they save
            best = own
        return best[1] or None

    def _levels_of(self, number: int, step: int) -> tuple[float, tuple[int, ...]]:
        """The best of this many levels, and the bits of table and masks; infinite if there are none."""
        mask_bits = self.counts.shape[0] * 64 * -(-self.counts.shape[1] // 64)
        best: tuple[float, tuple[int, ...]] = math.inf, ()
        for first in range(0 if number > 1 else 1, MAX_NUM_HASHES - step * (number - 1) + 1):
            levels = tuple(range(first, first + step * (number - 1) + 1, step))
            chosen = self._choose(levels, _HALF)
            ones = math.inf if chosen is None else float(self._bins[1] @ np.array(levels)[chosen])
            num_bits = ones / math.log(2) + _MASK_WEIGHT * (number - 1) * mask_bits
            if num_bits > best[0]:
                break  # more hashes cost more, too
            best = min(best, (num_bits, levels))
        return best

    def _choose(self, levels: Sequence[int], fill: float) -> NDArray[np.int64] | None:
        """The level of each bin, so that the allowed false values need the fewest ones."""
        _, facts, absent = self._bins
        hashes = np.array(levels)
        ones, shown = facts[:, None] * hashes, absent[:, None] * np.power(fill, hashes)
        if shown[:, -1].sum() > self.may_show:
            return None
        bins = np.arange(len(shown))
        low, high = -60.0, 60.0  # logarithm of the price of a false value, in ones
        for _ in range(_PRICE_STEPS):
            middle = (low + high) / 2
            chosen = (ones + math.exp(middle) * shown).argmin(1)
            if shown[bins, chosen].sum() > self.may_show:
                low = middle
            else:
                high = middle
        return np.asarray((ones + math.exp(high) * shown).argmin(1))

    def _weighted_at(self, fill: float) -> Split | None:
        levels = self._levels
        chosen = None if levels is None else self._choose(levels, fill)
        if chosen is None or levels is None:
            return None
        level_of = chosen[self._bins[0]].astype(np.uint8).reshape(self.counts.shape)
        used = np.unique(level_of)
        if not len(used) or not levels[int(used[-1])]:
            return Split((1,), np.zeros_like(level_of))
        return Split(tuple(levels[level] for level in used), np.searchsorted(used, level_of).astype(np.uint8))


def size(facts: Sequence[ClusterFacts]) -> tuple[int, list[Split]]:
    """The bits of the smallest table for facts of several features, and the split of each.

    Raises ValueError: no table meets the goals.
    """
    best: tuple[int, list[Split]] | None = None
    for fill in _FILLS:
        splits = [own.split_at(fill) for own in facts]
        possible = [split for split in splits if split is not None]
        if len(possible) < len(splits):
            continue
        ones = sum(own.num_ones(split) for own, split in zip(facts, possible, strict=True))
        limit = fill_limit([own.excess(split) for own, split in zip(facts, possible, strict=True)])
        num_bits = max(1, math.ceil(ones / -math.log1p(-limit)))
        if best is None or num_bits < best[0]:
            best = num_bits, possible
    if best is None:
        wanted = ", ".join(f"{own.false_per_read:g}" for own in facts)
        raise ValueError(f"{wanted} false values per read take more than {MAX_NUM_HASHES} hashes")
    return best


def expected_fill(facts: Sequence[ClusterFacts], splits: Sequence[Split], num_bits: int) -> float:
    """The expected share of ones in a table of this many bits."""
    ones = sum(own.num_ones(split) for own, split in zip(facts, splits, strict=True))
    return -math.expm1(-ones / num_bits)


def _sums(groups: NDArray[np.integer], cells: NDArray[np.int64], number: int = 0) -> NDArray[np.float64]:
    """The sum of the cells of each group; ``number`` is the least number of groups."""
    sums = np.bincount(groups.reshape(-1), cells.reshape(-1).astype(np.float64), number)
    return sums.astype(np.float64)
