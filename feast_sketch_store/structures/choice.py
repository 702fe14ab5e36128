"""The choice of a structure: how a membership feature is kept, given what it is wanted for.

A filter costs ``log2(1 / rate) / ln 2`` bits per fact, and a read of it shows ``rate * (V - n)`` false
symbols beside ``n`` true ones; a compressed set costs about ``log2(V / n) + 1.44``, and shows none. So below
a rate of about ``n / (3 * V)`` the set is smaller. It needs a list of rows, though, which all sets of a layer
share, where a filter tells of a row in one symbol more. Beside a list scalars are columns.

What is compared is what would be sealed: whole layers, with one table for all that is in a filter. Either
nothing is listed, or those features are in sets that gain most from it: of F features, F + 1 layers.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.errors import SettingsError
from feast_sketch_store.structures.costs import (
    Popularity,
    index_bytes,
    packed_bytes,
    sets_bytes,
    table_bytes,
)
from feast_sketch_store.structures.sizing import (
    AnyFacts,
    FactClass,
    TieredFacts,
    candidate_fills,
    size_for_bits,
    size_for_rates,
    tiers_for_bits,
)

AUTO: Final = "auto"
UNIFORM: Final = "uniform"
TIERS: Final = "tiers"
SETS: Final = "sets"
STRUCTURES: Final = (AUTO, UNIFORM, TIERS, SETS)

ERROR_RATE: Final = "error_rate"
NOISE_RATIO: Final = "noise_ratio"
FALSE_PER_READ: Final = "false_per_read"
MEMORY: Final = "memory"

_MAX_RATE = 0.5
_LEAST_BOUGHT_RATE = 1e-9  # with memory; more of it is not taken
_LEAST = 1e-300  # above 0: of what no table can keep
_LEAST_STEP = 0.002  # by which a budget is lowered
_REFINEMENTS = 2
_WORD_BYTES = 8  # to which tables are rounded up
_TRIAL_ERROR = 0.01  # about, of the bits of sets that were coded for some of the rows


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

    @property
    def may_choose(self) -> bool:
        """Whether the structure is the one that is smaller; an error rate asks for a uniform filter."""
        return self.structure == AUTO and self.measure != ERROR_RATE


@dataclass(frozen=True)
class Beside:
    """What a layer holds beside its membership features.

    Parameters
    ----------
    is_listed : whether the rows are listed whatever is chosen.
    facts : of scalars and shapes, which share the filter unless the rows are listed.
    window_words : of these in a window of the filter.
    vocabulary_bytes : of scalars in the filter; in a column they count as its own.
    index_bytes, columns_bytes : of the list of rows, and of scalars and timestamps, if the rows are listed.
    """

    is_listed: bool
    facts: Sequence[FactClass]
    window_words: int
    vocabulary_bytes: float
    index_bytes: float
    columns_bytes: float

    @classmethod
    def rows(cls, num_rows: int, presence_error_rate: float, is_listed: bool) -> "Beside":
        """Rows without scalars that are all of one shape and have one timestamp."""
        facts = (FactClass(num_rows, presence_error_rate),)
        index = index_bytes(num_rows, presence_error_rate)
        return cls(is_listed, facts, 1, 0.0, index, packed_bytes(num_rows, 1))


class Choice:
    """How to keep membership features.

    Parameters
    ----------
    targets, popularity : of each feature.
    beside : what else there is in the layer.

    Raises
    ------
    SettingsError : the memory that a feature may take is too little for its facts.
    """

    def __init__(self, targets: Mapping[str, Target], popularity: Mapping[str, Popularity], beside: Beside):
        self._targets = targets
        self._filters = {n: _filter_for(n, target, popularity[n], beside) for n, target in targets.items()}
        tables = _Tables(self._filters, beside.facts)
        self._layers = [
            _Layer(sets, is_listed, popularity, tables, beside)
            for sets, is_listed in _ways(targets, popularity, self._filters, beside)
        ]

    def facts(self, growth: float = 1.0) -> dict[str, AnyFacts | None]:
        """The best choice.

        Parameters
        ----------
        growth : how much larger a table has to be than its sizing says.

        Returns
        -------
        Per feature the facts that its filter is to hold, or None if it is to be kept in sets: since these
        are wanted or smaller, or no filter can keep the target.

        Raises
        ------
        SettingsError : the memory that a feature may take is too little for its facts.
        """
        nothing: dict[str, AnyFacts | None] = dict.fromkeys(self._targets)
        best = min(self._layers, key=lambda layer: layer.size_bytes(growth))
        if best.size_bytes(growth) == math.inf:  # no table can keep the targets of all that has to share it
            return nothing
        in_filter = {n: f for n, f in self._filters.items() if f is not None and n not in best.sets}
        return {**nothing, **best.within_memory(in_filter, self._targets, growth)}


def choose(
    targets: Mapping[str, Target], popularity: Mapping[str, Popularity], beside: Beside, growth: float = 1.0
) -> dict[str, AnyFacts | None]:
    """How to keep membership features; parameters of `Choice` and of `Choice.facts`, whose result it is."""
    return Choice(targets, popularity, beside).facts(growth)


def own_table_bytes(facts: AnyFacts, popularity: Popularity) -> float:
    """Bytes of a filter of its own for the facts.

    Raises
    ------
    ValueError : no table can keep their target.
    """
    return table_bytes(size_for_rates([facts]).num_bits, popularity.window_words)


def _ways(
    targets: Mapping[str, Target],
    popularity: Mapping[str, Popularity],
    filters: Mapping[str, AnyFacts | None],
    beside: Beside,
) -> Iterator[tuple[frozenset[str], bool]]:
    """The features in sets of each layer to compare, and whether it lists its rows."""
    sets = frozenset(name for name, facts in filters.items() if facts is None)
    if not sets and not beside.is_listed:
        yield frozenset(), False
    gains, fitting = {}, set()
    for name, facts in filters.items():
        if facts is None or not targets[name].may_choose:
            continue
        if targets[name].measure != MEMORY:
            in_filter = own_table_bytes(facts, popularity[name]) + popularity[name].states_bytes
            gains[name] = in_filter - sets_bytes([popularity[name]])
        elif _fits(targets[name], popularity[name]):
            fitting.add(name)  # as soon as others pay for the list
    if sets or beside.is_listed:
        yield sets | fitting, True
    for name in sorted(gains, key=lambda name: (-gains[name], name)):
        sets |= {name}
        yield sets | fitting, True


@dataclass(frozen=True)
class _Layer:
    """A layer that might be sealed: which features are in sets, and whether its rows are listed."""

    sets: frozenset[str]
    is_listed: bool
    popularity: Mapping[str, Popularity]
    tables: "_Tables"
    beside: Beside

    def size_bytes(self, growth: float) -> float:
        """Bytes of the layer, vocabularies of memberships not counted; infinitely many if it cannot be."""
        in_filter = [name for name in self.popularity if name not in self.sets]
        num_bits = growth * self.tables.num_bits(in_filter, self.is_listed)
        if num_bits == math.inf:
            return math.inf
        size = table_bytes(num_bits, self._window_words(in_filter))
        if self.is_listed:
            size += self.beside.index_bytes + self.beside.columns_bytes
            size += sum(self.popularity[name].states_bytes for name in in_filter)
            size += sets_bytes([known for name, known in self.popularity.items() if name in self.sets])
        else:
            size += self.beside.vocabulary_bytes
        return size

    def within_memory(
        self, in_filter: Mapping[str, AnyFacts], targets: Mapping[str, Target], growth: float
    ) -> dict[str, AnyFacts]:
        """The facts of the filter, those of features for so much memory such that they fit beside the others.

        Raises
        ------
        SettingsError : they do not fit.
        """
        facts = dict(in_filter)
        limits = {name: targets[name].amount for name in facts if targets[name].measure == MEMORY}

        def with_less(less: float) -> dict[str, AnyFacts]:
            known = self.popularity
            return facts | {
                name: _of_memory(name, targets[name], known[name], limit * (1 - less))
                for name, limit in limits.items()
            }

        def over(tried: Mapping[str, AnyFacts]) -> dict[str, float]:
            shares = self._shares(tried, growth) if limits else {}
            return {
                name: shares[name] for name, limit in limits.items() if shares[name] > limit + _WORD_BYTES
            }

        # Sizes change in steps, of which a small change may make none.
        best, less = facts, 0.0
        while too_much := over(best):
            name, size = next(iter(too_much.items()))
            less = 1.5 * less or _LEAST_STEP
            if less >= 1:
                raise _too_little(name, targets[name], f"a table takes {size:.0f} bytes")
            best = with_less(less)
        low, high = less / 1.5, less
        for _ in range(_REFINEMENTS if less > _LEAST_STEP else 0):
            middle = (low + high) / 2
            if over(tried := with_less(middle)):
                low = middle
            else:
                best, high = tried, middle
        return best

    def _shares(self, facts: Mapping[str, AnyFacts], growth: float) -> dict[str, float]:
        """Bytes of each feature's part of the table."""
        classes = [*facts.values(), *(() if self.is_listed else self.beside.facts)]
        geometry = size_for_rates(classes)
        ones = [c.num_ones(h) for c, h in zip(classes, geometry.hashes, strict=True)]
        size = table_bytes(geometry.num_bits * growth, self._window_words(facts))
        return {name: size * own / max(1, sum(ones)) for name, own in zip(facts, ones, strict=False)}

    def _window_words(self, in_filter: Iterable[str]) -> int:
        beside = 0 if self.is_listed else self.beside.window_words
        return beside + sum(self.popularity[name].window_words for name in in_filter)


class _Tables:
    """The bits of tables that any of some facts share, at a number of fills that would suit them all."""

    def __init__(self, filters: Mapping[str, AnyFacts | None], beside: Sequence[FactClass]):
        facts = {name: f for name, f in filters.items() if f is not None}
        fills = candidate_fills([*facts.values(), *beside])
        self._ones_per_bit = -np.log1p(-np.array(fills))
        self._ones = {name: _ones_at(f, fills) for name, f in facts.items()}
        self._beside = np.sum([np.zeros(len(fills)), *(_ones_at(f, fills) for f in beside)], axis=0)

    def num_bits(self, names: Iterable[str], is_listed: bool) -> float:
        """Bits of the smallest table of some features; infinitely many if it cannot be."""
        nothing = np.zeros(len(self._ones_per_bit))
        ones = np.sum([nothing if is_listed else self._beside, *(self._ones[name] for name in names)], axis=0)
        return float((ones / self._ones_per_bit).min())


def _ones_at(facts: AnyFacts, fills: Sequence[float]) -> NDArray[np.float64]:
    """How many bits the facts set in tables of such fills; infinitely many where they miss their target."""
    ones = np.full(len(fills), np.inf)
    facts.prepare(fills)
    for place, fill in enumerate(fills):
        try:
            ones[place] = facts.num_ones(facts.hashes_at(fill))
        except ValueError:
            continue
    return ones


def _filter_for(name: str, target: Target, popularity: Popularity, beside: Beside) -> AnyFacts | None:
    """The facts of a filter that meets a target; None if sets do, or if no filter can.

    Raises
    ------
    SettingsError : the memory that the feature may take is too little for its facts.
    """
    if target.structure == SETS:
        return None
    counts, num_rows, num_facts = popularity.counts, popularity.num_filled, popularity.num_facts
    if not num_facts:
        return FactClass(0, target.amount if target.measure == ERROR_RATE else _MAX_RATE)
    if target.measure == MEMORY:
        list_bytes = 0.0 if beside.is_listed else beside.index_bytes
        if target.structure == AUTO and _fits(target, popularity, list_bytes):
            return None
        return _of_memory(name, target, popularity, target.amount)
    false_per_read = {
        ERROR_RATE: target.amount * popularity.mean_absent,
        NOISE_RATIO: target.amount * num_facts / num_rows,
        FALSE_PER_READ: target.amount,
    }[target.measure]
    facts: AnyFacts
    if target.structure == TIERS or target.may_choose:
        # Where nothing is absent there is nothing to show; any hashes do.
        facts = TieredFacts(counts, num_rows, max(false_per_read if popularity.mean_absent else 1.0, _LEAST))
    elif target.measure == ERROR_RATE:
        facts = FactClass(num_facts, target.amount)
    else:
        rate = false_per_read / max(popularity.mean_absent, _LEAST)
        facts = FactClass(num_facts, min(_MAX_RATE, max(rate, _LEAST)))
    try:
        size_for_rates([facts])
    except ValueError:
        return None
    return facts


def _of_memory(name: str, target: Target, popularity: Popularity, num_bytes: float) -> AnyFacts:
    """The facts of a filter of at most so many bytes.

    Raises
    ------
    SettingsError : there is none.
    """
    num_bits, num_facts = int(8 * num_bytes), popularity.num_facts
    try:
        if target.structure != UNIFORM:
            return tiers_for_bits(popularity.counts, popularity.num_filled, num_bits)
        rate = size_for_bits([FactClass(num_facts, 0.01)], num_bits).false_positive_rates[0]
        return FactClass(num_facts, max(_LEAST_BOUGHT_RATE, rate))
    except ValueError as error:
        raise _too_little(name, target, error) from error


def _fits(target: Target, popularity: Popularity, list_bytes: float = 0.0) -> bool:
    """Whether sets, and what is given of their list of rows, fit in the memory of a target."""
    coded = popularity.coded
    is_exact = coded is None or len(coded) == popularity.num_rows
    error = 1.0 if is_exact else 1 + _TRIAL_ERROR
    return sets_bytes([popularity]) * error + list_bytes <= target.amount


def _too_little(name: str, target: Target, reason: object) -> SettingsError:
    return SettingsError(
        f"feature {name!r} cannot be kept for a {target.measure} of {target.amount:g}: {reason}"
    )
