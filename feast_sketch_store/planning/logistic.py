"""A logistic regression of rows that belong to entities.

Labelled rows of an entity see the same history. So the histories are kept once for each entity, and a step of
the fit multiplies them once, not once for each row.

    loss = mean over rows of log(1 + exp(-y * score)) + |weights|**2 / (2 * C * rows),   y = -1 or 1

Columns are frequent or rare, so the loss bends much more along some weights than along others, and a fit
takes hundreds of steps. Weights are therefore measured in units in which the loss bends about equally along
each: the root of the diagonal of its second derivative at the start.

Dense products are sums of NumPy's, not calls of BLAS: its threads wait for each other in loops, which takes
three times as much of a busy machine. SciPy's L-BFGS-B, which calls BLAS, takes as many steps, and eight
times the processor time for 100,000 rows with 20,000 values.

Source: Nocedal and Wright, "Numerical Optimization", 2006, algorithms 7.4 and 3.1.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# The fit ends when a step lowers the loss by less than this share: an AUC then moves by less than 0.0001.
_MAX_ITERATIONS, _LEAST_SHARE = 200, 1e-7
_MEMORY, _MAX_HALVINGS = 10, 40
_ENOUGH = 1e-4  # of the gain that the slope promises

_Loss = Callable[[NDArray[np.float64]], tuple[float, NDArray[np.float64]]]


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
        of_rows = self.context @ weights.context + _by_row(self.interactions, weights.interactions)
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
        return np.asarray(scores + _by_row(interactions, of_interactions) + constant[0])

    chances = 1 / (1 + np.exp(-scores_at(first)))
    bends = chances * (1 - chances) / num_rows
    of_entities = np.bincount(entities, bends, history.shape[0])
    squares = [
        bends @ context.power(2),
        of_entities @ history.power(2),
        _by_column(bends, interactions**2),
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
        slopes = [pulls @ context, of_entities @ history, _by_column(pulls, interactions), [pulls.sum()]]
        penalized = np.append(point[:-1], 0.0)
        total = losses.mean() + shrunk / 2 * _dot(penalized, penalized)
        return float(total), (np.concatenate(slopes) + shrunk * penalized) * units

    of_context, of_history, of_interactions, constant = np.split(
        _minimized(loss, first / units) * units, bounds
    )
    return Weights(of_context, of_history * history_scale, of_interactions, float(constant[0]))


def _minimized(loss: _Loss, point: NDArray[np.float64]) -> NDArray[np.float64]:
    """Where a convex loss is least, by L-BFGS with steps that are halved until they gain enough."""
    value, slope = loss(point)
    steps: deque[tuple[NDArray[np.float64], NDArray[np.float64], float]] = deque(maxlen=_MEMORY)
    for _ in range(_MAX_ITERATIONS):
        direction = -_bent(slope, steps)
        promised = _dot(direction, slope)
        size = 1.0 if steps else 1 / max(1.0, _dot(slope, slope) ** 0.5)
        for _ in range(_MAX_HALVINGS):
            next_point = point + size * direction
            next_value, next_slope = loss(next_point)
            if next_value <= value + _ENOUGH * size * promised:
                break
            size /= 2
        else:
            return point  # no step gains more than rounding errors
        moved, turned = next_point - point, next_slope - slope
        if (product := _dot(moved, turned)) > 0:
            steps.append((moved, turned, product))
        gained, point, value, slope = value - next_value, next_point, next_value, next_slope
        if gained <= _LEAST_SHARE * value:
            break
    return point


def _bent(
    slope: NDArray[np.float64], steps: deque[tuple[NDArray[np.float64], NDArray[np.float64], float]]
) -> NDArray[np.float64]:
    """The slope, multiplied by the inverse of the second derivative estimated from the last steps."""
    result, shares = slope.copy(), []
    for moved, turned, product in reversed(steps):
        shares.append(_dot(moved, result) / product)
        result -= shares[-1] * turned
    if steps:
        _, turned, product = steps[-1]
        result *= product / _dot(turned, turned)
    for (moved, turned, product), share in zip(steps, reversed(shares), strict=True):
        result += (share - _dot(turned, result) / product) * moved
    return result


def _dot(some: NDArray[np.float64], others: NDArray[np.float64]) -> float:
    return float(np.einsum("i,i->", some, others))


def _by_row(matrix: NDArray[Any], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.einsum("ij,j->i", matrix, weights), np.float64)


def _by_column(weights: NDArray[np.float64], matrix: NDArray[Any]) -> NDArray[np.float64]:
    return np.asarray(np.einsum("i,ij->j", weights, matrix), np.float64)
