"""The plan of a layer: what is to be in its filter, in sets and in columns, by what each would take."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.layers.budget import FeatureBudget
from feast_sketch_store.layers.collect import CollectedFeature
from feast_sketch_store.layers.shapes import Shapes, bucket_timestamps, number_shapes, words_for
from feast_sketch_store.layers.table import TablePart
from feast_sketch_store.rows.encoding import RowKeys
from feast_sketch_store.structures.choice import ERROR_RATE, MEMORY, SETS, Beside, Choice, Target
from feast_sketch_store.structures.costs import Popularity, index_bytes, timestamps_bytes
from feast_sketch_store.structures.sizing import AnyFacts, FactClass

# Sets are coded on trial for as many rows as have about so many facts, and for some thousand at least.
_TRIAL_FACTS = 1 << 20
_TRIAL_ROWS = 1 << 12


@dataclass(frozen=True)
class Kept:
    """How features are kept.

    Parameters
    ----------
    facts : of the features in the filter, in the order of all features.
    is_listed : whether the rows are listed; the other features are then in sets and columns.
    """

    facts: Mapping[str, AnyFacts]
    is_listed: bool


class LayerPlan:
    """Compares the ways to keep the rows of a layer.

    Parameters
    ----------
    features : of all rows, all of them taken up and numbered.
    """

    def __init__(self, keys: RowKeys, features: Mapping[str, CollectedFeature], budget: FeatureBudget):
        self.keys = keys
        self.features = features
        self.budget = budget
        self.has_exact = any(feature.codec.is_exact for feature in features.values())
        self.bounds, self.buckets = bucket_timestamps(keys.event_timestamps, budget.ttl_microseconds)
        self.targets = {
            name: target if isinstance(target := budget.targets[name], Target) else Target(ERROR_RATE, target)
            for name, feature in features.items()
            if feature.codec.is_collection and not feature.codec.is_exact
        }

    def choose(self, growth: float) -> Kept:
        """The smallest way to keep every target, if a table has to be so much larger than its sizing says.

        Raises
        ------
        SettingsError : the memory that a feature may take is too little for its facts.
        """
        facts = self._choice.facts(growth)
        is_listed = self.has_exact or None in facts.values()
        if not is_listed:
            facts |= self._scalar_facts
        return Kept({n: known for n in self.features if (known := facts.get(n)) is not None}, is_listed)

    def table_parts(self, kept: Kept) -> list[TablePart]:
        """What a table has to hold: features, and the shapes of the rows if they are not listed."""
        parts = []
        for name, facts in kept.facts.items():
            is_held = name not in self.targets or self.targets[name].measure != MEMORY
            feature = self.features[name]
            parts.append(TablePart(facts, len(feature.vocabulary), feature.kept_rows, is_held))
        if not kept.is_listed:
            places, one_each = np.arange(len(self.keys), dtype=np.int32), np.arange(len(self.keys) + 1)
            for shapes, facts, ids in zip(self.shapes, self._shape_facts, self._shapes[1], strict=True):
                rows = (places, one_each, ids.astype(np.int32))
                parts.append(TablePart(facts, len(shapes), partial(iter, (rows,))))
        return parts

    def wanted_in_filter(self, name: str) -> bool:
        """Whether a membership feature is in sets only if no filter can keep its target."""
        target = self.targets[name]
        return target.structure != SETS and not target.may_choose

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
        """Of the scalars in a filter: a read errs if any of the other values is a false positive."""
        facts = {}
        for name, feature in self.features.items():
            if not feature.codec.is_exact and not feature.codec.is_collection:
                rate = self.budget.targets[name]
                assert isinstance(rate, float)
                facts[name] = FactClass(feature.num_facts, rate / max(1, len(feature.vocabulary) - 1))
        return facts

    @cached_property
    def _choice(self) -> Choice:
        return Choice(self.targets, self._popularity, self._beside)

    @cached_property
    def _popularity(self) -> dict[str, Popularity]:
        """Of the membership features, with sets coded on trial if any may be in sets."""
        num_coded = 0
        if any(target.may_choose for target in self.targets.values()):
            num_facts = sum(self.features[name].num_facts for name in self.targets)
            share = min(1.0, _TRIAL_FACTS / max(1, num_facts))
            num_coded = min(len(self.keys), max(_TRIAL_ROWS, int(len(self.keys) * share)))
        return {name: self.features[name].popularity(num_coded) for name in self.targets}

    @cached_property
    def _beside(self) -> Beside:
        num_rows, index = len(self.keys), index_bytes(len(self.keys), self.budget.presence_error_rate)
        if self.has_exact or any(target.structure == SETS for target in self.targets.values()):
            # The list, columns and timestamps are the same whatever is chosen.
            return Beside(self.has_exact, (), 0, 0.0, index, 0.0)
        scalars = [self.features[name] for name in self._scalar_facts]
        columns = sum(feature.column_bytes for feature in scalars)
        return Beside(
            False,
            [*self._scalar_facts.values(), *self._shape_facts],
            sum(words_for(len(f.vocabulary)) for f in scalars) + sum(words_for(len(s)) for s in self.shapes),
            sum(feature.vocabulary.size_bytes for feature in scalars),
            index,
            columns + timestamps_bytes(num_rows, self.bounds[:, 0]),
        )
