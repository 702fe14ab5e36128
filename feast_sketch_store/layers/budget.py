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
    """The values of a membership feature that are kept. The others cost nothing, and are never read.

    Parameters
    ----------
    top : this number of the most frequent ones.
    min_share : those that at least this share of the rows has.
    values : these, of the storage type; in ascending order.
    """

    top: int | None = None
    min_share: float = 0.0
    values: pa.Array | None = None

    def kept(self, vocabulary: Vocabulary, counts: NDArray[np.int64], num_rows: int) -> NDArray[np.bool_]:
        """Which values of a vocabulary are kept, given the number of rows that have each: bool[V].

        Parameters
        ----------
        vocabulary, counts : from the most frequent value on.
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
    targets : per feature; for a membership feature see `Goal`, where a number is an error rate; for a
        categorical one the probability that a read meets a second value.
    ttl_microseconds : how long rows live, if they expire; timestamps are then kept in steps of a
        fifteenth of it.
    cuts : of membership features that lose some values.
    may_be_columns : scalars that a filter holds only while they have few distinct values.
    semantics : how rows of an entity came together; the layer has it.
    is_static : whether the rows are to be in a static function; the features are then all scalars with ids.
    since : microseconds since 1970, before which rows were left out; the layer has it, if its rows do not
        replace each other.
    lists_rows : whether the layer has to list its rows, because other layers of the same view do.
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
        """The same for a layer with a share of the rows, 0 to 1: it has that share of the memory, too."""
        goals = {n: replace(goal, amount=share * goal.amount) for n, goal in self.with_memory.items()}
        return replace(self, targets={**self.targets, **goals})

    @property
    def with_memory(self) -> dict[str, Goal]:
        """The goals of features that are kept for a memory."""
        return {
            name: target
            for name, target in self.targets.items()
            if isinstance(target, Goal) and target.measure == MEMORY
        }
