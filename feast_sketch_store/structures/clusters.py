"""Clusters of entities, learned from the values that their rows have.

A row belongs to the cluster under which it is most probable. Within a cluster, values count as independent
(a mixture of Bernoulli distributions):

    log P(row | c) = sum over the row's values s of log(p_cs / (1 - p_cs)) + sum over all s of log(1 - p_cs)

Shares ``p_cs`` and clusters are computed in turns on a sample of the rows; then all rows are assigned. Equal
rows in the same order give equal clusters.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.rows.csr import Csr

MAX_CLUSTERS = 256

_ROUNDS = 15
_SAMPLE_FACTS = 1 << 20
SMOOTHING = 8.0  # pseudo-rows with the overall shares, added to each cluster
_FACTS_PER_CHUNK = 1 << 17
_SEED = 17


@dataclass(frozen=True)
class Scorer:
    """Finds the cluster of a row from its values.

    Parameters
    ----------
    weights : float32[V, C], what each value adds to the score of each cluster.
    offsets : float64[C], the scores of a row without values.
    """

    weights: NDArray[np.float32]
    offsets: NDArray[np.float64]

    @classmethod
    def fit(cls, counts: NDArray[np.int64], num_rows: NDArray[np.int64]) -> "Scorer":
        """The scorer for clusters with known counts: int64[C, V] facts, int64[C] rows."""
        overall = counts.sum(0) / max(1, num_rows.sum())
        shares = (counts + SMOOTHING * overall) / (num_rows[:, None] + SMOOTHING)
        shares = shares.clip(1e-9, 1 - 1e-6)
        offsets = np.log1p(-shares).sum(1) + np.log(num_rows + 1.0)
        weights = np.log(shares) - np.log1p(-shares)
        return cls(np.ascontiguousarray(weights.T, np.float32), offsets)

    def clusters_of(self, members: Csr) -> NDArray[np.int64]:
        """The cluster of each row, given the ids of its values: int64[n]."""
        clusters = np.full(len(members), int(self.offsets.argmax()))
        filled = np.flatnonzero(members.lengths)
        starts = members.indptr[filled]
        first = 0
        while first < len(filled):
            stop = int(np.searchsorted(starts, starts[first] + _FACTS_PER_CHUNK, side="right"))
            end = int(members.indptr[filled[stop - 1] + 1])
            scores = np.add.reduceat(
                self.weights[members.ids[starts[first] : end]], starts[first:stop] - starts[first], axis=0
            )
            clusters[filled[first:stop]] = (scores + self.offsets).argmax(1)
            first = stop
        return clusters


def count(members: Csr, clusters: NDArray[np.int64], shape: tuple[int, int]) -> NDArray[np.int64]:
    """The number of rows of each cluster with each value: int64[C, V]. ``shape`` is C and V."""
    keys = np.repeat(clusters * shape[1], members.lengths)
    return np.bincount(keys + members.ids, minlength=shape[0] * shape[1]).reshape(shape)


def learn(
    members: Csr,
    num_values: int,
    num_clusters: int,
) -> NDArray[np.int64]:
    """The cluster of each row: int64[n], below ``num_clusters``.

    Parameters
    ----------
    members : the ids of the values of n rows, without repetitions in a row.
    num_values : all ids are below it.
    num_clusters : the most clusters; there are never more than rows.
    """
    num_clusters = max(1, min(num_clusters, len(members)))
    if num_clusters == 1 or not len(members.ids):
        return np.zeros(len(members), np.int64)
    step = max(1, len(members.ids) // _SAMPLE_FACTS)
    sample = members.take(np.arange(0, len(members), step)) if step > 1 else members
    clusters = np.random.default_rng(_SEED).integers(0, num_clusters, len(sample))
    for number in range(_ROUNDS + 1):
        counts = count(sample, clusters, (num_clusters, num_values))
        scorer = Scorer.fit(counts, np.bincount(clusters, minlength=num_clusters))
        if number < _ROUNDS:
            clusters = scorer.clusters_of(sample)
    return scorer.clusters_of(members)
