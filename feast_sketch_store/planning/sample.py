"""A sample of a view's membership features, and estimates of the whole view from it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.planning.other_stores import StoredRows
from feast_sketch_store.planning.plan import Estimate
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.vocabulary import MAX_PACKED, Vocabulary
from feast_sketch_store.structures.costs import timestamps_bytes

VocabularyMask = Mapping[
    str, NDArray[np.bool_]
]  # per feature, which of its values a structure keeps: bool[V]

_NEARLY = 0.9
_RESAMPLES, _SEED, _INTERVAL = 200, 7, (2.5, 97.5)


@dataclass(frozen=True, eq=False)
class FeatureSample:
    """One membership feature of the sampled entities."""

    vocabulary: Vocabulary  # the V values that occur, the most popular one first
    rows: Csr  # the ascending ids of each entity's values, int32

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """The number of sampled entities with each value: int64[V]."""
        return np.bincount(self.rows.ids, minlength=len(self.vocabulary)).astype(np.int64)

    @property
    def num_facts(self) -> int:
        """Facts of the sample."""
        return len(self.rows.ids)

    def cut(self, kept: NDArray[np.bool_]) -> "FeatureSample":
        """The feature with only some of its values, under new ids."""
        if kept.all():
            return self
        new_ids = np.where(kept, np.cumsum(kept) - 1, -1).astype(np.int32)
        values = Vocabulary(self.vocabulary.values.filter(pa.array(kept)))
        return FeatureSample(values, self.rows.mapped(new_ids))

    @classmethod
    def of(
        cls, vocabulary: Vocabulary, rows: Csr, samples: Sequence[NDArray[np.int64]]
    ) -> "list[FeatureSample]":
        """A feature in the rows of each sample, with the values that the first sample has."""
        counts = np.bincount(rows.take(samples[0]).ids, minlength=len(vocabulary))
        ordered, new_ids = vocabulary.reordered(counts)
        num_values = int((counts > 0).sum())
        kept = Vocabulary(ordered.values.slice(0, num_values))
        new_ids[new_ids >= num_values] = -1
        return [cls(kept, rows.take(chosen).mapped(new_ids).distinct()) for chosen in samples]

    def full_counts(self, num_entities: int, num_facts: float) -> NDArray[np.int64]:
        """The estimated number of entities of the whole view with each value, descending: int64[>= V].

        Values missing from the sample come last. Chao's estimate gives their number. They share with the
        values seen once the facts that the latter would have by proportion.

        Source: Chao et al., "Rarefaction and extrapolation with Hill numbers", 2014, of incidences.
        """
        num_sampled = len(self.rows)
        if num_entities <= num_sampled:
            return self.counts
        scale = num_facts / max(1, self.num_facts)
        once, twice = num_rare(self.counts)
        entities, facts = (
            (num_sampled, num_entities - num_sampled),
            (self.num_facts, num_facts - self.num_facts),
        )
        unseen = unseen_values((once, twice), entities, facts)
        counts = np.append(self.counts * scale, np.zeros(unseen))
        if unseen:
            counts[len(counts) - once - unseen :] = once * scale / (once + unseen)
        # Round sums, not counts: many equal small counts would all be rounded the same way.
        whole = np.diff(np.rint(np.cumsum(counts)), prepend=0.0)
        return np.asarray(np.clip(np.sort(whole)[::-1], 1, num_entities), np.int64)

    def vocabulary_bytes(self, counts: NDArray[np.int64]) -> float:
        """Bytes of a vocabulary in a snapshot, of which this is a sample, given `full_counts` of it.

        Ascending numbers take fewer bits the more there are. So numbers that are missing from the sample are
        drawn from among those that are not, and all are packed in the order that their counts would have.
        """
        number, seen = len(counts), len(self.vocabulary)
        values = self.vocabulary.values
        if number <= seen or not seen or number > MAX_PACKED or not pa.types.is_int64(values.type):
            return self.vocabulary.packed_bytes_of(number)
        rng, known = np.random.default_rng(_SEED), np.sort(values.to_numpy())
        between = np.interp(rng.random(number - seen) * (seen - 1), np.arange(seen), known).astype(np.int64)
        drawn, numbers = 1 + rng.poisson(counts - 1), np.append(values.to_numpy(), between)
        return Vocabulary(pa.array(numbers[np.lexsort((numbers, -drawn))])).packed_bytes


def num_rare(counts: NDArray[np.int64]) -> tuple[int, int]:
    """How many values exactly one sampled entity has, and how many exactly two have."""
    return int((counts == 1).sum()), int((counts == 2).sum())


def all_values(
    counts: NDArray[np.int64], num_sampled: int, num_entities: int, facts: Estimate | None = None
) -> Estimate:
    """Values of the whole view by Chao's estimate; the interval is from the counts of rare values.

    Chao's estimate is a lower bound: if a few values are popular and very many are rare, the view has more
    than the interval says.

    Parameters
    ----------
    counts : int64[V], the number of sampled entities with each value; those with 0 do not count.
    num_sampled, num_entities : entities in the sample, and in the whole view.
    facts : of the whole view; None if only their mean in the sample is known.
    """
    seen = int(np.count_nonzero(counts))
    if num_entities <= num_sampled:
        return Estimate.exactly(seen)
    rare, entities = num_rare(counts), (num_sampled, num_entities - num_sampled)
    drawn = np.random.default_rng(_SEED).poisson(rare, (_RESAMPLES, 2)).tolist()
    facts, seen_facts = facts or Estimate.exactly(math.inf), int(counts.sum())
    most, more = facts.high - seen_facts, facts.value - seen_facts
    unseen = [unseen_values((once, twice), entities, (seen_facts, most)) for once, twice in drawn]
    low, high = np.percentile(unseen, _INTERVAL)
    likely = unseen_values(rare, entities, (seen_facts, more))
    return Estimate(seen + likely, float(seen + min(low, likely)), float(seen + max(high, likely)))


def unseen_values(
    rare: tuple[int, int], entities: tuple[int, int], facts: tuple[float, float] = (1.0, math.inf)
) -> int:
    """How many new values further entities show, if a sample showed some values once and some twice.

    Each of these values has at least one of the facts that the further entities have. As long as nothing is
    shown twice, and nothing should be, no further value repeats either.

    Parameters
    ----------
    rare : the numbers of values that one and that two sampled entities have.
    entities, facts : numbers of the sampled entities, and of the further ones.
    """
    (once, twice), (num_sampled, num_more), (seen_facts, more_facts) = rare, entities, facts
    if not once:
        return 0
    least_unseen = once * once / (2 * twice) if twice else once * (once - 1) / 2
    least_unseen = max(least_unseen, 1.0)
    chance = once / (num_sampled * least_unseen + once)
    unseen = least_unseen * -math.expm1(num_more * math.log1p(-chance))
    if not twice and unseen > _NEARLY * once * num_more / num_sampled:
        unseen = once * (num_more / num_sampled if math.isinf(more_facts) else more_facts / seen_facts)
    return round(min(unseen, more_facts))


def total_of(
    sampled: NDArray[np.int64], known: NDArray[np.int64], num_known: int, num_entities: int
) -> Estimate:
    """The sum of a number over all entities, from its ratio to another number whose sum is known.

    ``sampled`` and ``known`` are the two numbers of each sampled entity, int64[n].

    Source: Cochran, "Sampling Techniques", chapter 6, the ratio estimate.
    """
    ratio = float(sampled.sum() / max(1, known.sum()))
    return Estimate.within(ratio * num_known, spread_of_total(sampled - ratio * known, num_entities))


def total_by_mean(sampled: NDArray[Any], num_entities: int) -> Estimate:
    """The sum of a number over all entities, from its mean over the sampled ones."""
    return Estimate.within(float(sampled.mean()) * num_entities, spread_of_total(sampled, num_entities))


def spread_of_total(differences: NDArray[Any], num_entities: float) -> float:
    """Half of the 95 % interval of a sum over all entities, from the residuals of the sampled ones."""
    num_sampled = len(differences)
    missing = max(0.0, 1 - num_sampled / num_entities)
    return 1.96 * num_entities * float(differences.std()) * math.sqrt(missing / num_sampled)


def order_of(entity_hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The order of entities by their hashes, uint64[n, 2], however they were found: int64[n]."""
    return np.lexsort((entity_hashes[:, 1], entity_hashes[:, 0]))


@dataclass(frozen=True, eq=False)
class Sample:
    """Sampled entities of a view."""

    num_entities: int  # of the whole view
    presence_error_rate: float  # of its list of entities
    entity_hashes: NDArray[np.uint64]  # uint64[n, 2], of the sampled entities
    features: Mapping[str, FeatureSample]  # the membership features
    # per feature, the facts of the whole view; if missing, estimated from the mean of the sample
    known_facts: Mapping[str, Estimate] = field(default_factory=dict)
    stored: StoredRows | None = None  # the sampled rows as other stores keep them; None if not known
    # int64[b, 2], the oldest and newest event timestamp of each bucket into which a seal divides the rows; by
    # default all rows have one timestamp
    buckets: NDArray[np.int64] = field(default_factory=lambda: np.zeros((1, 2), np.int64))

    def __len__(self) -> int:
        return len(self.entity_hashes)

    @cached_property
    def order(self) -> NDArray[np.int64]:
        """See `order_of`."""
        return order_of(self.entity_hashes)

    @property
    def halves(self) -> list["Sample"]:
        """Two samples of the same view, each with every second entity."""
        found = []
        for rows in (np.sort(self.order[::2]), np.sort(self.order[1::2])):
            features = {
                n: FeatureSample.of(f.vocabulary, f.rows, [rows])[0] for n, f in self.features.items()
            }
            hashes = self.entity_hashes[rows]
            found.append(replace(self, entity_hashes=hashes, features=features, stored=None))
        return found

    @property
    def scale(self) -> float:
        """Entities of the view for each sampled one."""
        return self.num_entities / len(self)

    @cached_property
    def facts_of(self) -> Mapping[str, Estimate]:
        """Facts of the whole view, per feature."""
        return {
            name: self.known_facts.get(name) or total_by_mean(feature.rows.lengths, self.num_entities)
            for name, feature in self.features.items()
        }

    @cached_property
    def facts(self) -> Estimate:
        """Facts of the whole view."""
        parts = self.facts_of.values()
        error = math.hypot(*(part.high - part.value for part in parts))
        return Estimate.within(sum(part.value for part in parts), error)

    @property
    def num_facts(self) -> int:
        """Facts of the whole view, rounded."""
        return round(self.facts.value)

    @cached_property
    def full_counts(self) -> Mapping[str, NDArray[np.int64]]:
        """See `FeatureSample.full_counts`."""
        return {
            name: f.full_counts(self.num_entities, self.facts_of[name].value)
            for name, f in self.features.items()
        }

    @cached_property
    def vocabulary_sizes(self) -> Mapping[str, Estimate]:
        """See `all_values`."""
        return {
            name: all_values(f.counts, len(self), self.num_entities, self.facts_of[name])
            for name, f in self.features.items()
        }

    @cached_property
    def everything(self) -> VocabularyMask:
        """All values."""
        return self.at_least(0)

    def by_feature(self, of_values: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """An array of the values of all features, one after the other, as an array for each."""
        bounds = np.cumsum([len(feature.vocabulary) for feature in self.features.values()])[:-1]
        return dict(zip(self.features, np.split(of_values, bounds), strict=True))

    def at_least(self, count: float) -> VocabularyMask:
        """The values that at least ``count`` sampled entities have."""
        return {name: feature.counts >= count for name, feature in self.features.items()}

    def kept_counts(self, kept: VocabularyMask) -> Mapping[str, NDArray[np.int64]]:
        """`full_counts` of some values only. Values missing from the sample count only if all are kept."""
        return {
            name: counts if kept[name].all() else counts[: len(kept[name])][kept[name]]
            for name, counts in self.full_counts.items()
        }

    def num_filled(self, kept: VocabularyMask) -> Mapping[str, int]:
        """How many entities of the whole view have any of the kept values; reads of others show none."""
        return {
            name: max(1, round(np.count_nonzero(f.cut(kept[name]).rows.lengths) * self.scale))
            for name, f in self.features.items()
        }

    @property
    def timestamps_bytes(self) -> int:
        """Bytes of the timestamps of all entities in a column; without the bounds of buckets."""
        return timestamps_bytes(self.num_entities, self.buckets[:, 0])

    def vocabulary_bytes(self, kept: VocabularyMask) -> float:
        """Bytes of some values of the whole view in a snapshot, packed by feature."""
        counts = self.kept_counts(kept)
        size = 0.0
        for name, feature in self.features.items():
            size += feature.cut(kept[name]).vocabulary_bytes(counts[name])
        return size
