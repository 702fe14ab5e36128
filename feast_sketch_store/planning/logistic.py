"""A logistic regression of rows that belong to entities.

Labelled rows of an entity see the same history. So the histories are kept once for each entity, and a step of
the fit multiplies them once, not once for each row.

    loss = mean over rows of log(1 + exp(-y * score)) + |weights|**2 / (2 * C * rows),   y = -1 or 1

Columns are frequent or rare, so the loss bends much more along some weights than along others, and a fit
takes hundreds of steps. Weights are therefore measured in units in which the loss bends about equally along
each: the root of the diagonal of its second derivative at the start.

BLAS has one thread here. Its vectors are short, and on a busy machine its threads wait for each other in
loops.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# The fit ends when a step lowers the loss by less than this: an AUC then moves by less than 0.0001.
_OPTIONS = {"maxiter": 200, "ftol": 1e-8, "gtol": 0.0}


@dataclass(frozen=True, eq=False)
class Columns:
    """What a model sees of n rows, whose entities are 0 to m - 1."""

    context: Any  # a SciPy CSR matrix, of n rows
    history: Any  # a SciPy CSR matrix, of m entities
    entities: NDArray[np.int64]  # int64[n], of each row
    interactions: NDArray[np.float32]  # float32[n, c]

    def of(self, rows: NDArray[np.int64]) -> "Columns":
        """Some of the rows, and the histories of their entities."""
        entities, numbers = np.unique(self.entities[rows], return_inverse=True)
        return Columns(self.context[rows], self.history[entities], numbers, self.interactions[rows])

    def scores(self, weights: "Weights") -> NDArray[np.float64]:
        """Scores of the rows, but for a constant: float64[n]."""
        of_rows = self.context @ weights.context + self.interactions @ weights.interactions
        return np.asarray(of_rows + (self.history @ weights.history)[self.entities], np.float64)


@dataclass(frozen=True, eq=False)
class Weights:
    """Weights of a model: float64 for each column of `Columns`, and a constant."""

    context: NDArray[np.float64]
    history: NDArray[np.float64]
    interactions: NDArray[np.float64]
    constant: float = 0.0

    def kept(self, values: NDArray[np.bool_]) -> "Weights":
        """Weights of some of the values only."""
        return Weights(self.context, self.history[values], self.interactions, self.constant)


def fit(
    columns: Columns,
    outcomes: NDArray[np.bool_],
    regularization: float,
    history_scale: float,
    start: Weights | None = None,
) -> Weights:
    """Fit a model.

    Parameters
    ----------
    regularization, history_scale : ``C``, and the scale of the columns of histories; smaller ones shrink
        weights more towards 0.
    start : weights of a similar model, from which the fit takes fewer steps.
    """
    from scipy.optimize import minimize
    from threadpoolctl import threadpool_limits

    num_rows = len(outcomes)
    context, history = columns.context.astype(np.float64), columns.history.astype(np.float64) * history_scale
    interactions, entities = columns.interactions.astype(np.float64), columns.entities
    bounds = np.cumsum([context.shape[1], history.shape[1], interactions.shape[1]])
    signs = np.where(outcomes, 1.0, -1.0)
    shrunk = 1 / (regularization * num_rows)

    first = np.zeros(bounds[-1] + 1)
    if start is not None:
        parts = start.context, start.history / history_scale, start.interactions, [start.constant]
        first = np.concatenate(parts)

    def scores_at(point: NDArray[np.float64]) -> NDArray[np.float64]:
        of_context, of_history, of_interactions, constant = np.split(point, bounds)
        scores = context @ of_context + (history @ of_history)[entities]
        return np.asarray(scores + interactions @ of_interactions + constant[0])

    chances = 1 / (1 + np.exp(-scores_at(first)))
    bends = chances * (1 - chances) / num_rows
    of_entities = np.bincount(entities, bends, history.shape[0])
    squares = [
        bends @ context.power(2),
        of_entities @ history.power(2),
        bends @ interactions**2,
        [bends.sum()],
    ]
    units = 1 / np.sqrt(np.concatenate(squares) + shrunk)

    def loss(given: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        point = given * units
        margins = signs * scores_at(point)
        exponentials = np.exp(-np.abs(margins))
        losses = np.maximum(-margins, 0) + np.log1p(exponentials)
        pulls = np.where(margins > 0, exponentials, 1.0) / (1 + exponentials) * -signs / num_rows
        of_entities = np.bincount(entities, pulls, history.shape[0])
        slopes = [pulls @ context, of_entities @ history, pulls @ interactions, [pulls.sum()]]
        penalized = np.append(point[:-1], 0.0)
        total = losses.mean() + shrunk / 2 * (penalized @ penalized)
        return float(total), (np.concatenate(slopes) + shrunk * penalized) * units

    with threadpool_limits(1, "blas"):
        found = minimize(loss, first / units, jac=True, method="L-BFGS-B", options=_OPTIONS).x * units
    of_context, of_history, of_interactions, constant = np.split(found, bounds)
    return Weights(of_context, of_history * history_scale, of_interactions, float(constant[0]))
