"""The area under the ROC curve of rows that belong to entities, and intervals of what is computed from areas.

An area is a mean over pairs of a positive and a negative row. Rows of an entity go together, so the interval
is of entities: each has an influence on the area, which is how far the area moves if the entity counts more.

    influence(e) = sum over positive rows i of e of (below(i) - area) / number of positive rows
                 + sum over negative rows j of e of (above(j) - area) / number of negative rows

``below(i)`` is the share of the negative rows with a lower score, ``above(j)`` that of the positive rows with
a higher one; a tie counts half. The variance of the area is the sum of the squares. Influences of models on
the same rows are subtracted before they are squared, so differences have intervals of their own.

Source: Obuchowski, "Nonparametric analysis of clustered ROC curve data", Biometrics 53, 1997. It replaces
resamples of the entities, whose areas each took as long as all of this.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.planning.plan import Estimate

_NORMAL_95 = 1.96  # standard deviations


@dataclass(frozen=True, eq=False)
class Area:
    """An area, or what is computed from several.

    Parameters
    ----------
    value : of all rows.
    influence : float64[m], of each entity.
    """

    value: float
    influence: NDArray[np.float64]

    @classmethod
    def of(
        cls, scores: NDArray[np.float64], outcomes: NDArray[np.bool_], entities: NDArray[np.int64]
    ) -> "Area":
        """The area of scores.

        Parameters
        ----------
        scores, outcomes, entities : float64[n], bool[n] and int64[n], of each row; entities are 0 to m - 1.
        """
        order = np.argsort(scores, kind="stable")
        ordered, is_positive = scores[order], outcomes[order]
        is_last = np.append(ordered[1:] != ordered[:-1], True)
        tie = np.concatenate(([0], np.cumsum(is_last)[:-1]))
        shares = np.empty(len(scores))
        for own in (True, False):
            others = np.bincount(tie, is_positive != own)
            lower = np.cumsum(others) - others / 2
            share = lower / max(1.0, others.sum())
            mask = is_positive == own
            shares[order[mask]] = (share if own else 1 - share)[tie[mask]]
        value = float(shares[outcomes].mean())
        sizes = np.where(outcomes, np.count_nonzero(outcomes), np.count_nonzero(~outcomes))
        return cls(value, np.bincount(entities, (shares - value) / sizes).astype(np.float64))

    def __sub__(self, other: "Area") -> "Area":
        """A difference of areas of the same rows."""
        return Area(self.value - other.value, self.influence - other.influence)

    def __truediv__(self, other: "Area") -> "Area":
        """A ratio, by the first term of its series."""
        ratio = self.value / other.value
        return Area(ratio, (self.influence - ratio * other.influence) / other.value)

    @property
    def estimate(self) -> Estimate:
        """The value with its 95 % interval."""
        error = _NORMAL_95 * float(np.sqrt(self.influence @ self.influence))
        return Estimate(self.value, self.value - error, self.value + error)
