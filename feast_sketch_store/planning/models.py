"""What a size costs a model: a logistic regression of labels on the features, trained through each structure.

The features become multi-hot columns beside the context features of the labels. The model is trained on what
reads through the structure would have shown: the kept values, and false values drawn at their rates. So it
learns to live with the noise. It is measured on rows that it was not trained on. Scores are measured with the
weights of the model of the exact features.

The values that are worth most have the highest ``w**2 * p * (1 - p) / H(p)``. ``w`` is the weight that the
exact model gives a value, ``p`` its density, and ``H`` the binary entropy. This is the variance that the
value adds to the model's score, for each bit that it costs in a set.

The area under the ROC curve is a mean over pairs of a positive and a negative row. Rows of an entity go
together, so the interval is of entities: each has an influence on the area, which is how far the area moves
if the entity counts more.

    influence(e) = sum over positive rows i of e of (below(i) - area) / number of positive rows
                 + sum over negative rows j of e of (above(j) - area) / number of negative rows

``below(i)`` is the share of the negative rows with a lower score, ``above(j)`` that of the positive rows with
a higher one; a tie counts half. The variance of the area is the sum of the squares. Influences of models on
the same rows are subtracted before they are squared, so differences have intervals of their own.

Source: Obuchowski, "Nonparametric analysis of clustered ROC curve data", Biometrics 53, 1997. It replaces
resamples of the entities, whose areas each took as long as all of this.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.planning.labels import Labels
from feast_sketch_store.planning.logistic import Columns, Weights, fit
from feast_sketch_store.planning.plan import Estimate
from feast_sketch_store.planning.sample import FeatureSample, Sample, VocabularyMask
from feast_sketch_store.planning.scores import as_encoded
from feast_sketch_store.rows.entity_keys import find_sorted
from feast_sketch_store.rows.formulas import Formula

# C shrinks weights towards 0; weights of history columns are shrunk more, because each says little.
_C, _HISTORY_SCALE = 0.1, 0.2

# The most values that the training rows of a model may show; a point with more has no AUC.
MAX_FALSE_VALUES = 40_000_000

_SEED = 7

# The points of the curve of `Task.most_worth`.
WORTH_SHARES = (0.05, 0.09, 0.16, 0.22, 0.28, 0.37, 0.55)

_RANK, _LEAST_NORM = 16, 1e-12  # of vectors of values
_NORMAL_95 = 1.96  # standard deviations
_MAX_RATE = 1 - 1e-9  # of a false value

_Rates = Mapping[str, NDArray[Any]]  # per feature, the rate of each kept value: float[kept]


@dataclass(frozen=True, eq=False)
class Area:
    """An area, or what is computed from several."""

    value: float  # of all rows
    influence: NDArray[np.float64]  # float64[m], of each entity

    @classmethod
    def of(
        cls, scores: NDArray[np.float64], outcomes: NDArray[np.bool_], entities: NDArray[np.int64]
    ) -> "Area":
        """The area of n rows' scores; their entities are 0 to m - 1."""
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
        return Estimate.within(self.value, _NORMAL_95 * float(np.sqrt(self.influence @ self.influence)))

    @property
    def auc(self) -> Estimate:
        """The value of an area with its 95 % interval, which ends at 0 and at 1."""
        estimate = self.estimate
        return Estimate(estimate.value, max(0.0, estimate.low), min(1.0, estimate.high))


class Task:
    """Models of the labels, trained through any structure.

    Parameters
    ----------
    labels : the labelled rows.
    sample : gives the vocabulary, densities and ids of values.
    labelled : the labelled entities that have rows, with the same vocabulary.
    candidates : per feature int64[n], the id of each labelled row's candidate; -1 for none. The model sees
        how well it fits the history; see `Interactions`.
    """

    def __init__(
        self,
        labels: Labels,
        sample: Sample,
        labelled: Sample,
        candidates: Mapping[str, NDArray[np.int64]] | None = None,
    ):
        self._labels, self._sample, self._labelled = labels, sample, labelled
        entities, self._entity_of = labels.entities
        order = labelled.order
        found, places = find_sorted(labelled.entity_hashes[order], entities)
        self._rows = np.full(len(entities), -1)  # of the entities in ``labelled``
        self._rows[found] = order[places]
        self._training, self._tested = np.flatnonzero(labels.is_training), np.flatnonzero(~labels.is_training)
        _, self._tested_entities = np.unique(self._entity_of[self._tested], return_inverse=True)
        self._interactions = Interactions(sample, candidates or {}, self._entity_of)

    @property
    def share_without_row(self) -> float:
        """The share of labelled rows whose entity the view does not have."""
        return float((self._rows[self._entity_of] < 0).mean())

    @cached_property
    def without(self) -> Area:
        """The area of a model of the context alone."""
        nothing = self._sample.at_least(math.inf)
        area = self.area(nothing, {name: np.zeros(0) for name in nothing})
        assert area is not None
        return area

    @cached_property
    def exact(self) -> Area:
        """The area of a model of the context and of the features as written."""
        return self._area_of(*self._exact_model)

    def area(
        self, kept: VocabularyMask, rates: Mapping[str, NDArray[np.float64]], formulas: Sequence[Formula] = ()
    ) -> Area | None:
        """The area of a model that is trained and applied through a structure, described as a `Candidate` is.

        None if reads show too many values to fit a model. Rates of values that the sample lacks are not used.
        """
        if formulas:
            return self._area(self._scores_by(formulas))
        own = {name: rates[name][: int(mask.sum())].astype(np.float32) for name, mask in kept.items()}
        if all(mask.all() and not own[name].any() for name, mask in kept.items()):
            return self.exact
        # Count the false values that reads of all training rows would show.
        if len(self._training) * sum(float(rate.sum()) for rate in own.values()) > MAX_FALSE_VALUES:
            return None
        shown = self._history(kept, own)
        values = np.concatenate([*kept.values()])
        return self._area_of(shown, self._fit(shown, self._exact_model[1].kept(values)))

    def uplift(self, area: Area) -> Estimate | None:
        """The share of the exact features' gain that a model with this area keeps; None without any gain."""
        if self.exact.value <= self.without.value:
            return None
        return ((area - self.without) / (self.exact - self.without)).estimate

    def weights(self) -> dict[str, NDArray[np.float64]]:
        """What each value adds to the score of the exact model: per feature float64[V]."""
        return self._sample.by_feature(self._exact_model[1].history)

    def most_worth(self, share: float) -> VocabularyMask:
        """The values that the exact model needs most for the bits they take.

        ``share`` is of the fewest bits that all values can take as sets. A larger one adds values.
        """
        order, spent = self._worth
        mask = np.zeros(len(order), np.bool_)
        mask[order[: max(1, np.searchsorted(spent, share))]] = True
        return self._sample.by_feature(mask)

    @cached_property
    def _worth(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The values of all features, most worth first, int64[V]; and the share of bits up to each."""
        shown, model = self._exact_model
        squares = model.history**2
        counts = np.concatenate([feature.counts for feature in self._sample.features.values()])
        densities = counts / len(self._sample)
        bits = _entropy(densities)
        weights, parts = self.weights(), self._sample.by_feature(squares)
        for name, mean, square in self._interactions.second_moments(model.interactions, shown.parts):
            parts[name] += 2 * weights[name] * mean + square  # parts are views
        order = np.argsort(-squares * densities * (1 - densities) / bits, kind="stable")
        return order, np.cumsum(bits[order]) / bits.sum()

    def _scores_by(self, formulas: Sequence[Formula]) -> NDArray[np.float64]:
        """Scores of the rows that the exact model was not trained on, with formulas in place of the history.

        The formulas have weights of the exact model. A model that was fitted once more on its training rows
        would trust them too much, so everything keeps the exact model's weights.
        """
        features, num_rows = as_encoded(self._labelled), len(self._labelled)
        of_rows = np.zeros(num_rows + 1)  # the last one is read for an entity without a row
        for formula in formulas:
            of_rows[:-1] += np.rint(formula.scores(features, num_rows) / formula.step) * formula.step
        of_entities = of_rows[self._rows][self._entity_of[self._tested]]
        return np.asarray(self._labels.context[self._tested] @ self._exact_model[1].context + of_entities)

    @cached_property
    def _exact_model(self) -> "tuple[_Shown, Weights]":
        """The history as written, and the model of it."""
        everything = self._sample.everything
        history = self._history(everything, {name: np.zeros(len(mask)) for name, mask in everything.items()})
        return history, self._fit(history)

    def _history(self, kept: VocabularyMask, rates: _Rates) -> "_Shown":
        """What reads of the labelled entities show."""
        from scipy import sparse

        rng = np.random.default_rng(_SEED)
        histories = {}
        for name, feature in self._labelled.features.items():
            rows = feature.cut(kept[name]).rows
            # An entity without a row uses an empty last row.
            true = sparse.csr_matrix(
                (np.ones(len(rows.ids), np.float32), rows.ids, np.append(rows.indptr, rows.indptr[-1])),
                shape=(len(self._labelled) + 1, np.count_nonzero(kept[name])),
            )
            shown = true[self._rows]
            entities, values = _draw_false(rng, rates[name], len(self._rows))
            if len(entities):
                # Reads of entities without a row, or without any kept value, show nothing.
                is_filled = (np.diff(shown.indptr) > 0)[entities]
                entities, values = entities[is_filled], values[is_filled]
                noise = sparse.csr_matrix(
                    (np.ones(len(entities), np.float32), (entities, values)), shape=shown.shape
                )
                noise.data[:] = 1  # of a pair that was drawn twice, too
                shown = shown.maximum(noise)
            histories[name] = shown
        joint = sparse.hstack([*histories.values()]).tocsr()
        return _Shown(histories, joint, self._interactions.columns(kept, histories))

    def _fit(self, shown: "_Shown", start: Weights | None = None) -> Weights:
        columns, outcomes = self._columns(shown, self._training), self._labels.outcomes[self._training]
        return fit(columns, outcomes, _C, _HISTORY_SCALE, start)

    def _columns(self, shown: "_Shown", rows: NDArray[np.int64]) -> Columns:
        return Columns(self._labels.context, shown.history, self._entity_of, shown.interactions).of(rows)

    def _area_of(self, shown: "_Shown", weights: Weights) -> Area:
        """The area of the rows that a model was not trained on."""
        return self._area(self._columns(shown, self._tested).scores(weights))

    def _area(self, scores: NDArray[np.float64]) -> Area:
        return Area.of(scores, self._labels.outcomes[self._tested], self._tested_entities)


@dataclass(frozen=True, eq=False)
class _Shown:
    """What reads of m entities show, and which read each of n labelled rows uses.

    ``parts`` and ``history`` are SciPy CSR matrices, float32[m, kept values], per feature and side by side;
    ``interactions`` is float32[n, c].
    """

    parts: Mapping[str, Any]
    history: Any
    interactions: NDArray[np.float32]


def _draw_false(
    rng: np.random.Generator, rates: NDArray[Any], num_entities: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw each value for each entity at the value's rate: entities and values, int64[d], some pairs twice.

    An entity is drawn for a value a Poisson number of times, which is above 0 with the probability of the
    rate, so the draws for all entities together are one Poisson number.
    """
    mean_draws = -np.log1p(-np.minimum(rates, _MAX_RATE).astype(np.float64))
    draws = rng.poisson(num_entities * mean_draws)
    values = np.repeat(np.arange(len(rates)), draws)
    return rng.integers(0, num_entities, len(values)), values


def _entropy(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """The binary entropy of shares, in bits."""
    p = np.clip(shares, 1e-12, 1 - 1e-12)
    return np.asarray(-(p * np.log2(p) + (1 - p) * np.log2(1 - p)))


class Interactions:
    """How the candidates of n labelled rows fit histories, which additive models cannot form.

    Values have vectors of low rank, from a truncated singular value decomposition of the sampled histories.
    The profile of an entity is the sum of the vectors of the values that a read shows. The columns of a
    labelled row are the cosine of profile and candidate, their products per dimension, and whether the
    history shows the candidate.

    Parameters
    ----------
    sample : the vectors of values are computed from it.
    candidates : per feature int64[n], the id of each row's candidate in the vocabulary; -1 for none.
    entity_of : int64[n], the entity of each row.
    """

    def __init__(
        self, sample: Sample, candidates: Mapping[str, NDArray[np.int64]], entity_of: NDArray[np.int64]
    ):
        self._candidates, self._entity_of = candidates, entity_of
        self._vectors = {name: _vectors_of(sample.features[name]) for name in candidates}

    def columns(self, kept: VocabularyMask, histories: Mapping[str, Any]) -> NDArray[np.float32]:
        """The columns of all rows: float32[n, c]. Histories have a column for each kept value."""
        parts = [np.zeros((len(self._entity_of), 0), np.float32)]
        for name, ids in self._candidates.items():
            vectors = self._vectors[name]
            profiles = _unit(histories[name] @ vectors[kept[name]])[self._entity_of]
            products = profiles * _of_candidates(vectors, ids)
            new_ids = np.where(kept[name], np.cumsum(kept[name]) - 1, -1)
            shown = _shown(histories[name], self._entity_of, np.where(ids >= 0, new_ids[ids], -1))
            # Products of unit vectors are small; scale them to the size of the other columns.
            parts += [products.sum(axis=1, keepdims=True), products * vectors.shape[1], shown[:, None]]
        return np.concatenate(parts, axis=1).astype(np.float32)

    def second_moments(
        self, weights: NDArray[np.float64], histories: Mapping[str, Any]
    ) -> Iterator[tuple[str, NDArray[np.float64], NDArray[np.float64]]]:
        """What a value adds to a row's score through its vector, given weights of the columns, float64[c].

        Yields each feature, with the mean and the mean square over rows, float64[V].
        """
        first = 0
        for name, ids in self._candidates.items():
            vectors, rank = self._vectors[name], self._vectors[name].shape[1]
            of_candidate = _of_candidates(vectors, ids)
            norm = np.linalg.norm(histories[name] @ vectors, axis=1).mean()
            per_dimension = weights[first] + weights[first + 1 : first + 1 + rank] * rank
            directions = of_candidate * per_dimension / max(norm, _LEAST_NORM)
            moments = directions.T @ directions / len(directions)
            yield name, vectors @ directions.mean(axis=0), np.einsum("vi,ij,vj->v", vectors, moments, vectors)
            first += rank + 2


def _vectors_of(feature: FeatureSample) -> NDArray[np.float32]:
    """Unit vectors of the values: float32[V, rank]."""
    from scipy import sparse
    from scipy.sparse.linalg import svds

    rows, shape = feature.rows, (len(feature.rows), len(feature.vocabulary))
    ones = np.repeat(1 / np.sqrt(np.maximum(1, rows.lengths)), rows.lengths)
    # Popular values say little about taste, so the weight of a value falls with the root of its popularity.
    ones = ones / np.sqrt(np.maximum(1, feature.counts))[rows.ids]
    matrix = sparse.csr_matrix((ones, rows.ids, rows.indptr), shape=shape)
    rank = min(_RANK, min(shape) - 1)
    if rank < 1:
        return np.ones((shape[1], 1), np.float32)
    start = np.random.default_rng(_SEED).standard_normal(min(shape))
    _, sizes, directions = svds(matrix, k=rank, v0=start)
    return _unit((sizes[:, None] * directions).T)


def _of_candidates(vectors: NDArray[np.float32], ids: NDArray[np.int64]) -> NDArray[np.float32]:
    """The vector of each row's candidate: float32[n, rank], zeros for a row without one."""
    return np.where(ids[:, None] >= 0, vectors[ids], np.float32(0))


def _unit(vectors: NDArray[Any]) -> NDArray[np.float32]:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(norms, _LEAST_NORM), np.float32)


def _shown(history: Any, entities: NDArray[np.int64], values: NDArray[np.int64]) -> NDArray[np.float32]:
    """Whether each entity's history shows a value: float32[n]; 0 for the value -1."""
    shown = np.zeros(len(entities), np.float32)
    asked = np.flatnonzero(values >= 0)
    if len(asked):
        shown[asked] = np.asarray(history[entities[asked], values[asked]]).ravel()
    return shown
