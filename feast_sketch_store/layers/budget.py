"""Budgets: the targets that a sealed layer is built for."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures.goals import AUTO, ERROR_RATE, MEMORY, SETS, Goal


@dataclass(frozen=True)
class Cut:
    """The values of a membership feature that are kept. The others cost nothing and are never read."""

    top: int | None = None  # keep this many of the most frequent values
    values: pa.Array | None = None  # keep these values, of the storage type, each once

    def kept(self, vocabulary: Vocabulary) -> Vocabulary:
        """The values that are kept of a vocabulary, which has the most frequent one first.

        Values that were named and that no row has yet come last: rows that are written later may have them.
        """
        values = vocabulary.values
        if self.top is not None:
            values = values.slice(0, self.top)
        if self.values is not None:
            named = values.filter(pc.is_in(values, self.values))
            new = self.values.filter(pc.invert(pc.is_in(self.values, named)))
            values = pa.concat_arrays([named, new])
        return Vocabulary(pa.concat_arrays([values]))

    def leaves_out(self, kept: Vocabulary) -> bool:
        """Whether any values are left out: not while the most frequent ones are fewer than wanted."""
        return self.top is None or len(kept) >= self.top


@dataclass(frozen=True)
class FeatureBudget:
    """What a layer is built for."""

    presence_error_rate: float  # probability that an entity that was never written reads as a row
    # per feature. A membership feature has a `Goal`, or a number, which is an error rate. A categorical
    # feature has the probability that a read meets a second value
    targets: Mapping[str, Goal | float]
    # how long rows live; None if they do not expire. Timestamps are kept in steps of a fifteenth of it
    ttl_microseconds: int | None = None
    cuts: Mapping[str, Cut] = field(default_factory=dict)  # of membership features that lose some values
    # scalars that become columns if they have many distinct values
    may_be_columns: frozenset[str] = frozenset()
    is_static: bool = False  # keep the rows in a static function. All features must then be scalars with ids
    # list the rows even if this layer does not need it, because other layers of the view do
    lists_rows: bool = False
    # per feature, the most values with which it may be in a filter, because a read asks the filter about each
    # of them. Features without an entry have no limit
    max_vocabulary: Mapping[str, int] = field(default_factory=dict)
    # of the view's rows that the layer has, and of the view's memory that the targets name
    share: float = 1.0

    def shared(self, share: float) -> "FeatureBudget":
        """The budget of a layer with a share of the rows, 0 to 1: it gets the same share of the memory."""
        goals = {n: replace(goal, amount=share * goal.amount) for n, goal in self.with_memory.items()}
        return replace(self, targets={**self.targets, **goals}, share=share)

    def is_beyond(self, name: str, num_values: int) -> bool:
        """Whether a feature has too many values for a filter."""
        return num_values > self.max_vocabulary.get(name, num_values)

    def without_filters(self, codecs: Iterable[FeatureCodec]) -> "FeatureBudget":
        """The budget, without limits, that keeps features of these codecs in sets and columns."""
        targets, lists_rows = dict(self.targets), self.lists_rows
        for codec in codecs:
            if codec.is_collection:
                goal = as_goal(targets[codec.feature])
                targets[codec.feature] = replace(goal, structure=SETS, clusters=0)
            else:
                lists_rows = True
        return replace(self, targets=targets, lists_rows=lists_rows, max_vocabulary={})

    def reason_against_filter(self, name: str, num_values: int) -> str:
        """Why a feature is not in the filter that its goal names; empty if it names none."""
        target = self.targets[name]
        if not isinstance(target, Goal) or target.structure in (AUTO, SETS):
            return ""
        return (
            f"it has {num_values:,} different values, and a filter takes at most max_vocabulary = "
            f"{self.max_vocabulary[name]:,}, because a read asks it about each. Raise max_vocabulary, keep "
            "fewer values by the tag sketch.vocabulary, or set the tag sketch.structure to sets"
        )

    @property
    def with_memory(self) -> dict[str, Goal]:
        """The goals of features that have a memory budget."""
        return {
            name: target
            for name, target in self.targets.items()
            if isinstance(target, Goal) and target.measure == MEMORY
        }


def as_goal(target: Goal | float) -> Goal:
    """The goal of a membership feature; a number is an error rate."""
    return target if isinstance(target, Goal) else Goal(ERROR_RATE, target)
