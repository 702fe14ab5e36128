"""Budgets: the targets that a sealed layer is built for."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from feast_sketch_store.rows.encoding import NO_TIMESTAMP
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures.goals import MEMORY, Goal


@dataclass(frozen=True)
class Cut:
    """The values of a membership feature that are kept. The others cost nothing and are never read.

    A value must pass every condition that is set.

    Parameters
    ----------
    top : keep this many of the most frequent values.
    min_share : keep the values that at least this share of the rows has, 0 to 1.
    values : keep these values, of the storage type, in ascending order.
    """

    top: int | None = None
    min_share: float = 0.0
    values: pa.Array | None = None

    def kept(self, vocabulary: Vocabulary, counts: NDArray[np.int64], num_rows: int) -> NDArray[np.bool_]:
        """Which values of a vocabulary are kept, given the number of rows that have each: bool[V].

        Parameters
        ----------
        vocabulary, counts : V values and their int64[V] rows, the most frequent value first.
        """
        is_kept = counts >= self.min_share * num_rows
        if self.top is not None:
            is_kept[self.top :] = False
        if self.values is not None:
            is_kept &= pc.is_in(vocabulary.values, self.values).to_numpy(zero_copy_only=False)
        return is_kept


@dataclass(frozen=True)
class FeatureBudget:
    """What a layer is built for.

    Parameters
    ----------
    presence_error_rate : probability that an entity that was never written reads as a row.
    targets : per feature. A membership feature has a `Goal`, or a number, which is an error rate. A
        categorical feature has the probability that a read meets a second value.
    ttl_microseconds : how long rows live; None if they do not expire. Timestamps are kept in steps of a
        fifteenth of it.
    cuts : of membership features that lose some values.
    may_be_columns : scalars that become columns if they have many distinct values.
    semantics : how the rows of an entity were combined; stored with the layer.
    is_static : keep the rows in a static function. All features must then be scalars with ids.
    since : microseconds since 1970; older rows were left out. Stored with the layer if rows do not replace
        each other.
    lists_rows : list the rows even if this layer does not need it, because other layers of the view do.
    """

    presence_error_rate: float
    targets: Mapping[str, Goal | float]
    ttl_microseconds: int | None = None
    cuts: Mapping[str, Cut] = field(default_factory=dict)
    may_be_columns: frozenset[str] = frozenset()
    semantics: str = "replace"
    since: int = NO_TIMESTAMP
    is_static: bool = False
    lists_rows: bool = False

    def shared(self, share: float) -> "FeatureBudget":
        """The budget of a layer with a share of the rows, 0 to 1: it gets the same share of the memory."""
        goals = {n: replace(goal, amount=share * goal.amount) for n, goal in self.with_memory.items()}
        return replace(self, targets={**self.targets, **goals})

    @property
    def with_memory(self) -> dict[str, Goal]:
        """The goals of features that have a memory budget."""
        return {
            name: target
            for name, target in self.targets.items()
            if isinstance(target, Goal) and target.measure == MEMORY
        }
