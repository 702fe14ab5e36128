"""A sample of a view's membership features, and what it says of the whole view."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.vocabulary import Vocabulary

Kept = Mapping[str, NDArray[np.bool_]]  # per feature, which of its values a structure keeps: bool[V]


@dataclass(frozen=True, eq=False)
class FeatureSample:
    """One membership feature of the sampled entities.

    Parameters
    ----------
    vocabulary : the V values that occur, from the most popular one on.
    indptr, ids : int64[n + 1] and int32[nnz], a CSR matrix: the ascending ids of each entity's values.
    """

    vocabulary: Vocabulary
    indptr: NDArray[np.int64]
    ids: NDArray[np.int32]

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """How many of the sampled entities have each value: int64[V]."""
        return np.bincount(self.ids, minlength=len(self.vocabulary)).astype(np.int64)

    @property
    def num_facts(self) -> int:
        """Facts of the sample."""
        return len(self.ids)

    def cut(self, kept: NDArray[np.bool_]) -> "FeatureSample":
        """The feature with some of its values only; ids are numbered anew."""
        if kept.all():
            return self
        new_ids = np.where(kept, np.cumsum(kept) - 1, -1).astype(np.int32)
        rows = Csr(self.indptr, self.ids).mapped(new_ids)
        values = Vocabulary(self.vocabulary.values.filter(pa.array(kept)))
        return FeatureSample(values, rows.indptr, rows.ids)

    def full_counts(self, num_sampled: int, num_entities: int) -> NDArray[np.int64]:
        """How many entities of the whole view have each value, estimated, from the most popular one on.

        Values that the sample does not show stand behind the others. Their number is Chao's estimate for so
        many entities; with the values that it shows once they share what those would have by proportion.

        Returns
        -------
        int64[>= V]

        Source: Chao et al., "Rarefaction and extrapolation with Hill numbers", 2014, of incidences.
        """
        if num_entities <= num_sampled:
            return self.counts
        scale = num_entities / num_sampled
        counts = self.counts * scale
        once, twice = int((self.counts == 1).sum()), int((self.counts == 2).sum())
        unseen = _unseen_values(once, twice, num_sampled, num_entities - num_sampled)
        if unseen:
            counts = np.append(counts, np.zeros(unseen))
            counts[len(counts) - once - unseen :] = once * scale / (once + unseen)
        return np.asarray(np.clip(np.rint(counts), 1, num_entities), np.int64)


def _unseen_values(once: int, twice: int, num_sampled: int, num_more: int) -> int:
    """How many new values so many more entities show, after a sample showed some once and some twice."""
    if not once:
        return 0
    least_unseen = once * once / (2 * twice) if twice else once * (once - 1) / 2
    least_unseen = max(least_unseen, 1.0)
    chance = once / (num_sampled * least_unseen + once)
    return round(least_unseen * -math.expm1(num_more * math.log1p(-chance)))


@dataclass(frozen=True, eq=False)
class Sample:
    """Sampled entities of a view.

    Parameters
    ----------
    view : its name.
    num_entities : of the whole view.
    entity_hashes : uint64[n, 2], of the sampled ones.
    features : the membership features.
    """

    view: str
    num_entities: int
    entity_hashes: NDArray[np.uint64]
    features: Mapping[str, FeatureSample]

    def __len__(self) -> int:
        return len(self.entity_hashes)

    @property
    def scale(self) -> float:
        """Entities of the view for each that was sampled."""
        return self.num_entities / len(self)

    @property
    def num_facts(self) -> int:
        """Facts of the whole view, estimated unless it was sampled as a whole."""
        return round(sum(feature.num_facts for feature in self.features.values()) * self.scale)

    @cached_property
    def full_counts(self) -> Mapping[str, NDArray[np.int64]]:
        """See `FeatureSample.full_counts`."""
        return {name: f.full_counts(len(self), self.num_entities) for name, f in self.features.items()}

    @cached_property
    def everything(self) -> Kept:
        """All values."""
        return {name: np.ones(len(feature.vocabulary), np.bool_) for name, feature in self.features.items()}

    def at_least(self, count: float) -> Kept:
        """The values that at least so many sampled entities have."""
        return {name: feature.counts >= count for name, feature in self.features.items()}

    def kept_counts(self, kept: Kept) -> Mapping[str, NDArray[np.int64]]:
        """`full_counts` of some values only; values that the sample does not show belong to the whole."""
        return {
            name: counts if kept[name].all() else counts[: len(kept[name])][kept[name]]
            for name, counts in self.full_counts.items()
        }

    def num_filled(self, kept: Kept) -> Mapping[str, int]:
        """How many entities of the whole view have some of the kept values; reads of others show none."""
        return {
            name: max(1, round(np.count_nonzero(np.diff(f.cut(kept[name]).indptr)) * self.scale))
            for name, f in self.features.items()
        }

    def vocabulary_bytes(self, kept: Kept) -> float:
        """Bytes of some values of the whole view."""
        counts = self.kept_counts(kept)
        size = 0.0
        for name, feature in self.features.items():
            values = feature.vocabulary.values.filter(pa.array(kept[name]))
            size += values.nbytes * len(counts[name]) / max(1, len(values))
        return size
