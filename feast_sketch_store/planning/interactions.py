"""How a candidate fits a history: columns that retrieval models use and additive models cannot form.

Values have vectors of low rank, from a truncated singular value decomposition of the sampled histories. The
profile of an entity is the sum of the vectors of the values that a read shows. The columns of a labelled row
are the cosine of profile and candidate, their products per dimension, and whether the history shows the
candidate.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.planning.sample import FeatureSample, Sample, VocabularyMask

_RANK, _SEED = 16, 7
_LEAST_NORM = 1e-12


class Interactions:
    """Columns of n labelled rows, computed from their candidate values.

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
        """The columns of all rows: float32[n, c].

        Parameters
        ----------
        kept : the values for which histories have a column.
        histories : per feature a SciPy CSR matrix, float32[entities, kept values].
        """
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
        """What a value adds to a row's score through its vector, per feature: mean and mean square over rows.

        Parameters
        ----------
        weights : of the columns, float64[c].
        histories : all values of each entity.

        Yields
        ------
        The feature, float64[V] and float64[V].
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
