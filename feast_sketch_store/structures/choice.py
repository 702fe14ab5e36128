"""The choice of a structure: how to keep a membership feature, given its goal.

A filter costs ``log2(1 / rate) / ln 2`` bits per fact, and a read shows ``rate * (V - n)`` false symbols
besides ``n`` true ones. A compressed set costs about ``log2(V / n) + 1.44`` and shows none. So below a rate
of about ``n / (3 * V)`` the set is smaller. But sets need a list of rows, which all sets of a layer share,
while a filter needs only one more symbol to record a row. With a list, scalars are columns.

The choice compares whole layers as they would be sealed, with one table for all features in the filter. For
F features these are up to F + 2 layers:

- all features are in the filter, and the rows are not listed;
- the rows are listed, for the scalars or so that the table may have more ones;
- the rows are listed, and the 1, 2, ... F features that gain most by it are in sets.

Sets that imply each other take less together than apart. The saving is estimated from a sample of rows, and
only if a filter would otherwise hold a feature that may be in sets. In all other cases it changes nothing.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.errors import SettingsError
from feast_sketch_store.structures import registry
from feast_sketch_store.structures.bloom import BloomTable
from feast_sketch_store.structures.costs import (
    Popularity,
    offer_of_memory,
    sets_bytes,
    table_bytes,
)
from feast_sketch_store.structures.goals import AUTO, MEMORY, SETS, Goal, Offer
from feast_sketch_store.structures.set_columns import SetColumns
from feast_sketch_store.structures.sizing import AnyFacts, FactClass, candidate_fills, size_for_rates

_LEAST_STEP = 0.002  # factor by which a budget is lowered
_REFINEMENTS = 2
_MOST_LEFT_OUT = 6  # features that are tried both in the filter and in sets; each try encodes some rows
_WORD_BYTES = 8  # tables are rounded up to words


@dataclass(frozen=True)
class LayerOverhead:
    """What a layer holds in addition to its membership features."""

    is_listed: bool  # whether the rows are listed in any case
    facts: Sequence[FactClass]  # of scalars and shapes, which are in the filter unless the rows are listed
    window_words: int  # words that these facts take in a window of the filter
    vocabulary_bytes: float  # of scalars in the filter; a column includes its vocabulary
    # index_bytes, columns_bytes: of the list of rows; and of scalars and timestamps if the rows are listed
    index_bytes: float
    columns_bytes: float
    may_list: bool = True  # whether the rows may be listed although no feature of the choice needs it


class StructureSelector:
    """How to keep membership features.

    Parameters
    ----------
    goals, popularity : by feature.
    overhead : what else the layer holds.
    saved_bits : bits that features in sets save, because some of these imply others; by default none.

    Raises SettingsError: a feature does not fit into its memory limit, or the named structure cannot keep it.
    """

    def __init__(
        self,
        goals: Mapping[str, Goal],
        popularity: Mapping[str, Popularity],
        overhead: LayerOverhead,
        saved_bits: Callable[[Collection[str]], float] = lambda names: 0.0,
    ):
        self._goals, self._popularity = goals, popularity
        self._fixed: dict[str, Offer] = {}  # never in the filter
        self._filters: dict[str, Offer] = {}
        self._sets: dict[str, Offer] = {}  # of features that may leave the filter to save bytes
        for name, goal in goals.items():
            self._ask(name, goal, popularity[name])
        lists = overhead.is_listed or any(registry.kind(o.kind).lists_rows for o in self._fixed.values())
        # A filter that is asked for holds the rows and the scalars as well.
        may_list = overhead.may_list and all(goal.may_choose for goal in goals.values())
        tables = _Tables({name: offer.plan.facts for name, offer in self._filters.items()}, overhead.facts)
        self._layers = [
            _Layer(
                {**self._fixed, **moved}, self._filters, is_listed, popularity, tables, overhead, saved_bits
            )
            for moved, is_listed in self._ways(lists, may_list)
        ]

    def lists_rows(self, growth: float) -> bool:
        """Whether the best layer lists its rows; ``growth`` as for `offers`."""
        return self._best(growth).is_listed

    def size_bytes(self, growth: float = 1.0) -> float:
        """Bytes of the best layer, without vocabularies of memberships; ``growth`` as for `offers`."""
        return self._best(growth).size_bytes(growth)

    def offers(self, growth: float = 1.0) -> dict[str, Offer]:
        """The best offer for each feature, if a table must be ``growth`` times its computed size.

        Raises SettingsError: a feature does not fit into its memory limit.
        """
        best = self._best(growth)
        if best.size_bytes(growth) == math.inf:  # no common table keeps all goals
            filters = {n: in_sets(self._goals[n], self._popularity[n]) for n in self._filters}
        else:
            filters = best.within_memory(self._goals, growth)
        return {name: filters.get(name) or best.others[name] for name in self._goals}

    def _best(self, growth: float) -> "_Layer":
        best = min(self._layers, key=lambda layer: layer.size_bytes(growth))
        if best.others.keys() >= self._sets.keys():
            return best

        def joint_bytes(layer: _Layer) -> float:
            return layer.size_bytes(growth) - layer.saved_bytes

        layers = [best, *self._layers]
        if len(self._sets) <= _MOST_LEFT_OUT:
            fewer = self._layers[-1]  # start with all in sets, and move one after another back to the filter
            while tried := [fewer.without(name) for name in self._sets if name in fewer.others]:
                layers.append(fewer)
                fewer = min(tried, key=joint_bytes)
        return min(layers, key=joint_bytes)

    def _ask(self, name: str, goal: Goal, popularity: Popularity) -> None:
        """Collect the offers for a feature."""
        if goal.structure != AUTO and (kind := registry.wanted(goal)) is not BloomTable:
            offer = kind.offer(goal, popularity)
            if offer is None:
                raise _impossible(name, goal, f"structure {goal.structure!r} cannot keep it")
            self._fixed[name] = offer
            return
        try:
            in_filter = BloomTable.offer(goal, popularity)
        except ValueError as error:
            raise _impossible(name, goal, error) from error
        if in_filter is None:
            self._fixed[name] = in_sets(goal, popularity)
            return
        self._filters[name] = in_filter
        if goal.may_choose:
            self._sets[name] = in_sets(goal, popularity)

    def _ways(self, lists_rows: bool, may_list: bool) -> Iterator[tuple[dict[str, Offer], bool]]:
        """The layers to compare: the features outside of the filter, and whether the rows are listed."""
        if not lists_rows:
            yield {}, False
        if lists_rows or may_list:
            yield {}, True
        gains = {
            name: self._filters[name].num_bytes + self._popularity[name].states_bytes - offer.num_bytes
            for name, offer in self._sets.items()
        }
        moved = {}
        for name in sorted(gains, key=lambda name: (-gains[name], name)):
            moved[name] = self._sets[name]
            yield dict(moved), True


def in_sets(goal: Goal, popularity: Popularity) -> Offer:
    """The offer of sets for a feature that a filter cannot keep, or need not."""
    is_welcome = goal.structure == SETS or goal.may_choose
    failed = "" if is_welcome else f"no filter keeps a {goal.measure} of {goal.amount:g}"
    return SetColumns.offer(goal, popularity)._replace(failed=failed)


@dataclass(frozen=True)
class _Layer:
    """A candidate layer: the features outside its filter, and whether its rows are listed."""

    others: Mapping[str, Offer]
    filters: Mapping[str, Offer]
    is_listed: bool
    popularity: Mapping[str, Popularity]
    tables: "_Tables"
    overhead: LayerOverhead
    saved_bits: Callable[[Collection[str]], float]

    @property
    def in_filter(self) -> list[str]:
        """The features in the filter."""
        return [name for name in self.filters if name not in self.others]

    def without(self, name: str) -> "_Layer":
        """The same layer with one more feature in the filter."""
        return replace(self, others={other: offer for other, offer in self.others.items() if other != name})

    @cached_property
    def saved_bytes(self) -> float:
        """Bytes that features in sets save by sharing values; `size_bytes` does not count them."""
        return self.saved_bits([name for name, offer in self.others.items() if offer.kind == SETS]) / 8

    def size_bytes(self, growth: float) -> float:
        """Bytes of the layer, without vocabularies of memberships; infinite if it is impossible."""
        num_bits = growth * self.tables.num_bits(self.in_filter, self.is_listed)
        if num_bits == math.inf:
            return math.inf
        size = table_bytes(num_bits, self._window_words)
        size += sets_bytes([offer.plan for offer in self.others.values() if offer.kind == SETS])
        size += sum(offer.num_bytes for offer in self.others.values() if offer.kind != SETS)
        if not self.is_listed:
            return size + self.overhead.vocabulary_bytes
        stateless = [n for n, offer in self.others.items() if not registry.kind(offer.kind).tells_states]
        size += sum(self.popularity[name].states_bytes for name in (*self.in_filter, *stateless))
        return size + self.overhead.index_bytes + self.overhead.columns_bytes

    def within_memory(self, goals: Mapping[str, Goal], growth: float) -> dict[str, Offer]:
        """The offers of the filter, with those that have a memory limit fitted; raises as `offers`."""
        offers = {name: self.filters[name] for name in self.in_filter}
        limits = {name: goals[name].amount for name in offers if goals[name].measure == MEMORY}

        def with_less(less: float) -> dict[str, Offer]:
            tried = dict(offers)
            for name, limit in limits.items():
                try:
                    tried[name] = offer_of_memory(goals[name], self.popularity[name], limit * (1 - less))
                except ValueError as error:
                    raise _impossible(name, goals[name], error) from error
            return tried

        def over(tried: Mapping[str, Offer]) -> dict[str, float]:
            shares = self._shares(tried, growth) if limits else {}
            return {
                name: shares[name] for name, limit in limits.items() if shares[name] > limit + _WORD_BYTES
            }

        # Sizes change in steps, so a small change of the budget may have no effect.
        best, less = offers, 0.0
        while too_much := over(best):
            name, size = next(iter(too_much.items()))
            less = 1.5 * less or _LEAST_STEP
            if less >= 1:
                raise _impossible(name, goals[name], f"a table takes {size:.0f} bytes")
            best = with_less(less)
        low, high = less / 1.5, less
        for _ in range(_REFINEMENTS if less > _LEAST_STEP else 0):
            middle = (low + high) / 2
            if over(tried := with_less(middle)):
                low = middle
            else:
                best, high = tried, middle
        return best

    def _shares(self, offers: Mapping[str, Offer], growth: float) -> dict[str, float]:
        """Bytes of each feature's part of the table."""
        classes = [offer.plan.facts for offer in offers.values()]
        classes += [] if self.is_listed else self.overhead.facts
        geometry = size_for_rates(classes)
        ones = [c.num_ones(h) for c, h in zip(classes, geometry.hashes, strict=True)]
        size = table_bytes(geometry.num_bits * growth, self._window_words)
        return {name: size * own / max(1, sum(ones)) for name, own in zip(offers, ones, strict=False)}

    @property
    def _window_words(self) -> int:
        overhead = 0 if self.is_listed else self.overhead.window_words
        return overhead + sum(self.popularity[name].window_words for name in self.in_filter)


class _Tables:
    """The bits of tables that any subset of some facts can share, at several fills."""

    def __init__(self, facts: Mapping[str, AnyFacts], overhead: Sequence[FactClass]):
        fills = candidate_fills([*facts.values(), *overhead])
        self._ones_per_bit = -np.log1p(-np.array(fills))
        self._ones = {name: _ones_at(f, fills) for name, f in facts.items()}
        self._overhead = np.sum([np.zeros(len(fills)), *(_ones_at(f, fills) for f in overhead)], axis=0)

    def num_bits(self, names: Iterable[str], is_listed: bool) -> float:
        """Bits of the smallest table of some features; infinite if there is none."""
        nothing = np.zeros(len(self._ones_per_bit))
        ones = np.sum(
            [nothing if is_listed else self._overhead, *(self._ones[name] for name in names)], axis=0
        )
        return float((ones / self._ones_per_bit).min())


def _ones_at(facts: AnyFacts, fills: Sequence[float]) -> NDArray[np.float64]:
    """How many bits the facts set in tables of these fills; infinite where they miss their target."""
    ones = [np.inf if hashes is None else facts.num_ones(hashes) for hashes in facts.hashes_at(fills)]
    return np.array(ones, np.float64)


def _impossible(name: str, goal: Goal, reason: object) -> SettingsError:
    return SettingsError(f"feature {name!r} cannot be kept for {goal.text}: {reason}")
