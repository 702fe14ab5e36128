"""The plan of a layer: which features go into its filter, into sets and into columns, by size.

Before, features with a limit in bytes are fitted to it. The limit covers the whole feature: its vocabulary,
its part of a table or its sets, and the list of rows that sets need. As in a plan of a view, least noise
comes first, then most facts: sets of all values if they fit, else sets of the most popular values. A filter
is used only if you name it, and only if it shows at most half of the absent values.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.errors import SettingsError
from feast_sketch_store.layers.budget import Cut, FeatureBudget, as_goal
from feast_sketch_store.layers.collect import CollectedFeature
from feast_sketch_store.layers.joint import FEW_VALUES
from feast_sketch_store.layers.presence import Shapes, bucket_timestamps, number_shapes
from feast_sketch_store.rows.encoding import RowKeys
from feast_sketch_store.structures import registry
from feast_sketch_store.structures.base import RowSymbols
from feast_sketch_store.structures.bloom import BloomTable, words_for
from feast_sketch_store.structures.choice import LayerOverhead, StructureSelector
from feast_sketch_store.structures.columns import Columns
from feast_sketch_store.structures.costs import (
    FilterPlan,
    Popularity,
    index_bytes,
    noisiest_offer,
    sets_bytes,
    timestamps_bytes,
)
from feast_sketch_store.structures.feature_rows import first_rows
from feast_sketch_store.structures.goals import AUTO, SETS, Goal, Offer
from feast_sketch_store.structures.scalars import Scalars, StaticScalars, scalar_bytes
from feast_sketch_store.structures.set_columns import SetColumns
from feast_sketch_store.structures.shared_values import SharedValues
from feast_sketch_store.structures.sizing import FactClass

_TRIAL_FACTS = 1 << 20
_TRIAL_ROWS = 1 << 12
_TRIAL_ERROR = 0.01  # about, relative, of sizes that are estimated from coding some of the rows


def fit_to_memory(
    feature: CollectedFeature, goal: Goal, list_bytes: float, share: float, *, may_cut: bool = True
) -> Goal:
    """Cut a feature to its memory, and return the goal for its sets or its table alone.

    Parameters
    ----------
    feature : collected and numbered; values may be cut.
    goal : the bytes of the whole feature.
    list_bytes : of the list of rows that sets need; 0 if the layer has one anyway.
    share : of the view's memory that the goal names; errors give the bytes of the view.
    may_cut : whether values may be cut. Not if their ids are given, because other layers share them.

    Raises SettingsError: the feature does not fit; the message names the least number of bytes.
    """
    if goal.structure == AUTO:
        goal = replace(goal, structure=SETS)
    if not len(feature.vocabulary):
        return goal
    if goal.structure == SETS:
        return _in_sets(feature, goal, list_bytes, share, 1 if may_cut else len(feature.vocabulary))
    if registry.wanted(goal) is not BloomTable:
        return goal  # filters by cluster make their own offer
    return _in_filter(feature, goal, share)


def num_trial_rows(num_rows: int, num_facts: int) -> int:
    """How many rows to encode as sets as a sample: about a million facts, and at least some thousand rows."""
    share = min(1.0, _TRIAL_FACTS / max(1, num_facts))
    return min(num_rows, max(_TRIAL_ROWS, int(num_rows * share)))


def _in_sets(feature: CollectedFeature, goal: Goal, list_bytes: float, share: float, fewest: int) -> Goal:
    """Keep as many values as fit into the memory, at least ``fewest``."""
    num_rows = len(feature.states)
    num_coded = num_trial_rows(num_rows, feature.num_facts)
    members = first_rows(feature, num_coded)
    ids = np.arange(len(feature.vocabulary), dtype=np.int32)
    error = 0.0 if num_coded == num_rows else _TRIAL_ERROR

    def size_bytes(number: int) -> float:
        """Bytes of the feature with its ``number`` most popular values."""
        counts, kept = feature.counts[:number], members.mapped(np.where(ids < number, ids, -1))
        known = SetColumns.on_trial(Popularity(counts, num_rows), feature.states[:num_coded], kept)
        sets = sets_bytes([known]) * (1 + error)
        return sets + feature.vocabulary_bytes_of(number) + list_bytes

    if (least := size_bytes(fewest)) > goal.amount:
        what = "its most popular value alone" if fewest == 1 else "the given vocabulary"
        raise _too_little(feature, goal, least, share, f"for {what}")
    low, high = fewest, len(ids)
    if size_bytes(high) <= goal.amount:
        low = high
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if size_bytes(middle) <= goal.amount else (low, middle)
    if low < len(ids):
        feature.keep(Cut(top=low))
    return goal


def _in_filter(feature: CollectedFeature, goal: Goal, share: float) -> Goal:
    vocabulary_bytes = feature.vocabulary.packed_bytes
    least = vocabulary_bytes + noisiest_offer(goal, feature.popularity(0)).num_bytes
    if least > goal.amount:
        raise _too_little(
            feature,
            goal,
            least,
            share,
            f"as {goal.structure}. Without {goal.structure}, popular values are kept in sets",
        )
    return replace(goal, amount=goal.amount - vocabulary_bytes)


def _too_little(
    feature: CollectedFeature, goal: Goal, least: float, share: float, what: str
) -> SettingsError:
    declared, least_bytes = replace(goal, amount=goal.amount / share), math.ceil(least / share)
    error = SettingsError(
        f"feature {feature.codec.feature!r} cannot be kept for {declared.text}: with its "
        f"vocabulary and index it takes at least {least_bytes:,} bytes {what}"
    )
    error.least_bytes = least_bytes
    return error


@dataclass(frozen=True)
class Assignment:
    """How features are kept."""

    offers: Mapping[str, Offer]  # the chosen offer of each feature
    is_listed: bool  # whether the rows are listed
    holder: str = BloomTable.kind  # the kind of the structure that records the rows if they are not listed


class LayerPlan:
    """Compares the ways to keep the rows of a layer, whose features are collected and numbered."""

    def __init__(self, keys: RowKeys, features: Mapping[str, CollectedFeature], budget: FeatureBudget):
        self.keys = keys
        self.features = features
        self.budget = budget
        self.has_exact = any(feature.codec.is_exact for feature in features.values())
        has_many = any(
            len(feature.vocabulary) > FEW_VALUES
            for name, feature in features.items()
            if name in budget.may_be_columns
        )
        self._kept = {n: Offer(k.kind) for n, f in features.items() if (k := registry.keeper(f.codec.name))}
        lists_rows = any(registry.kind(offer.kind).lists_rows for offer in self._kept.values())
        self._must_list = self.has_exact or has_many or lists_rows or budget.lists_rows
        self.bounds, self.buckets = bucket_timestamps(keys.event_timestamps, budget.ttl_microseconds)
        self._goals = {
            name: as_goal(budget.targets[name])
            for name, feature in features.items()
            if feature.codec.is_collection and not feature.codec.is_exact and name not in self._kept
        }

    def choose_offers(self, growth: float) -> Assignment:
        """The smallest way to meet every target, if a table must be ``growth`` times its computed size.

        Raises SettingsError: a feature does not fit into its memory.
        """
        if not len(self.keys):  # no structure has anything to save
            return self._with_scalars({name: Offer(SetColumns.kind) for name in self._goals}, True)
        is_wanted = self.budget.is_static
        reason = self._not_static if is_wanted else ""
        static = Assignment(
            {name: Offer(StaticScalars.kind) for name in self.features}, False, StaticScalars.kind
        )
        if is_wanted and not reason:
            return static
        offers = self._choice.offers(growth)
        is_listed = self._must_list or any(registry.kind(offer.kind).lists_rows for offer in offers.values())
        is_listed = is_listed or self._choice.lists_rows(growth)
        if not is_wanted and self._is_smaller_static(is_listed, growth):
            return static
        assignment = self._with_scalars(offers, is_listed)
        if not reason:
            return assignment
        return replace(
            assignment, offers={n: offer._replace(failed=reason) for n, offer in assignment.offers.items()}
        )

    @property
    def _not_static(self) -> str:
        """Why the rows cannot be in a static function; empty if they can."""
        if self._static_bytes(1) == math.inf:
            return "the values of its features together are too many for a static function"
        if len(self.shapes) > 1:
            return "its rows have too many combinations of nulls for a static function"
        if self._static_bytes(len(self.shapes[0])) == math.inf:
            return "the values of its features together are too many for a static function"
        return ""

    def _static_bytes(self, num_shapes: int) -> float:
        """Bytes of a static function of all rows, without vocabularies; infinity if none is possible."""
        sizes = [len(feature.vocabulary) for feature in self.features.values()]
        return StaticScalars.expected_bytes(
            len(self.keys), num_shapes, sizes, self.budget.presence_error_rate
        )

    def _is_smaller_static(self, is_listed: bool, growth: float) -> bool:
        """Whether a static function is the smallest way to keep the rows, and nothing rules it out.

        All features must be left to the store's choice of codec, and no list of rows may be needed.
        """
        is_free = self.features.keys() <= {*self._scalars} & self.budget.may_be_columns
        if not is_free or self._kept or self.budget.lists_rows or self._not_static:
            return False
        vocabularies = sum(feature.vocabulary.packed_bytes for feature in self.features.values())
        index = index_bytes(len(self.keys), self.budget.presence_error_rate)
        others = index + self._columns_bytes if is_listed else self._choice.size_bytes(growth)
        return self._static_bytes(len(self.shapes[0])) + vocabularies < others

    def exactly(self, assignment: Assignment, reason: str) -> Assignment:
        """The same offers with sets and columns in place of a filter; ``reason`` is reported."""
        offers = {
            name: Offer(SetColumns.kind, failed=reason) if registry.kind(offer.kind).is_filter else offer
            for name, offer in assignment.offers.items()
            if name in self._goals
        }
        exact = self._with_scalars(offers, True)
        scalars = {
            name: offer._replace(failed=reason)
            for name, offer in exact.offers.items()
            if name not in offers and assignment.offers[name].kind == BloomTable.kind
        }
        return Assignment({**exact.offers, **scalars}, True)

    def _with_scalars(self, offers: Mapping[str, Offer], is_listed: bool) -> Assignment:
        """Add the offers of all other features, in the order of the view.

        Beside a list of rows a scalar takes log2(V) bits; in the filter it takes log2(V / error rate) / ln 2.
        """
        others = {
            name: Offer(Scalars.kind if name in self._together else Columns.kind) for name in self.features
        }
        if not is_listed:
            others = {n: Offer(BloomTable.kind, FilterPlan(facts)) for n, facts in self._scalar_facts.items()}
        others |= self._kept
        return Assignment({name: offers.get(name) or others[name] for name in self.features}, is_listed)

    @property
    def row_symbols(self) -> list[RowSymbols]:
        """The shapes of the rows as symbols; a filter holds one for each row and range."""
        return [
            RowSymbols(len(shapes), facts, ids)
            for shapes, facts, ids in zip(self.shapes, self._shape_facts, self._shapes[1], strict=True)
        ]

    @property
    def shapes(self) -> Sequence[Shapes]:
        """The shapes of the rows."""
        return self._shapes[0]

    @cached_property
    def _shapes(self) -> tuple[list[Shapes], list[NDArray[np.int64]]]:
        return number_shapes({name: f.states for name, f in self.features.items()}, self.buckets)

    @property
    def _shape_facts(self) -> list[FactClass]:
        rate = self.budget.presence_error_rate
        return [FactClass(len(self.keys), rate / max(1, len(shapes))) for shapes in self.shapes]

    @cached_property
    def _scalar_facts(self) -> dict[str, FactClass]:
        """The facts of scalars in a filter. A read errs if any other value is a false positive."""
        facts = {}
        for name in self._scalars:
            feature, rate = self.features[name], self.budget.targets[name]
            assert isinstance(rate, float)
            facts[name] = FactClass(feature.num_facts, rate / max(1, len(feature.vocabulary) - 1))
        return facts

    @cached_property
    def _scalars(self) -> list[str]:
        """The features that are neither exact nor collections."""
        codecs = {name: feature.codec for name, feature in self.features.items()}
        return [name for name, codec in codecs.items() if not codec.is_exact and not codec.is_collection]

    @cached_property
    def _together(self) -> dict[str, float]:
        """Bytes of each scalar that is smaller in one number with other scalars than in its own column."""
        sizes = {}
        for name in self._scalars:
            feature = self.features[name]
            size = scalar_bytes(feature.vocabulary, feature.states)
            if size < feature.column_bytes:
                sizes[name] = size
        return sizes

    @cached_property
    def _choice(self) -> StructureSelector:
        shared = SharedValues({name: self.features[name] for name in self._goals})
        return StructureSelector(self._goals, self._popularity, self._overhead, shared.saved_bits)

    @cached_property
    def _popularity(self) -> dict[str, Popularity]:
        """Of the membership features, with sets of a sample of rows if any feature may be in sets."""
        num_coded = 0
        if any(goal.may_choose for goal in self._goals.values()):
            num_facts = sum(self.features[name].num_facts for name in self._goals)
            num_coded = num_trial_rows(len(self.keys), num_facts)
        return {name: self.features[name].popularity(num_coded) for name in self._goals}

    @cached_property
    def _overhead(self) -> LayerOverhead:
        index = index_bytes(len(self.keys), self.budget.presence_error_rate)
        named = [registry.wanted(goal) for goal in self._goals.values() if goal.structure != AUTO]
        if self._must_list or any(kind.lists_rows for kind in named):
            # The list, columns and timestamps cost the same for every choice.
            return LayerOverhead(self._must_list, (), 0, 0.0, index, 0.0)
        scalars = [self.features[name] for name in self._scalar_facts]
        return LayerOverhead(
            False,
            [*self._scalar_facts.values(), *self._shape_facts],
            sum(words_for(len(f.vocabulary)) for f in scalars) + sum(words_for(len(s)) for s in self.shapes),
            sum(feature.vocabulary.packed_bytes for feature in scalars),
            index,
            self._columns_bytes,
            bool(self.budget.may_be_columns) or not self._scalars,
        )

    @property
    def _columns_bytes(self) -> float:
        """Bytes of the scalars and the timestamps of listed rows."""
        columns = sum(self._together.get(name, self.features[name].column_bytes) for name in self._scalars)
        return columns + timestamps_bytes(len(self.keys), self.bounds[:, 0])
