"""Clustered filters: learned, sandwiched and weighted Bloom filters with hashes by the entity's cluster.

The rows are listed, each with the number of its cluster. In a cluster a value has one of a few numbers of
hashes, its level (`clusters`). For each cluster and level, a mask has ones for the values that do without the
additional hashes of that level. So a read is still an AND of windows:

    possibly present = AND over groups g of (AND of the windows of g's hashes  |  mask[cluster][g])

    | style | hashes 0 .. | masks |
    |---|---|---|
    | learned | backup filter | values whose score says yes |
    | sandwiched | initial filter, backup filter | of the backup filter alone |
    | weighted | a group for each level | values of lower levels |

A fact sets exactly the bits of its cell's hashes, so nothing that was written is missed. All features share
one table. A window holds the symbols of one feature after the other, each beginning on a word.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.kernel import MAX_NUM_HASHES, RowReader
from feast_sketch_store.rows.codecs import VALUE, FeatureCodec
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.encoding import EncodedFeature
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures.base import (
    Answer,
    RowsToSeal,
    SealedFeature,
    Shortfall,
    Structure,
    begin_feature,
)
from feast_sketch_store.structures.bloom import (
    PlacedFacts,
    counted_table,
    first_words,
    words_for,
)
from feast_sketch_store.structures.clusters import (
    MAX_CLUSTERS,
    MAX_LEVELS,
    STYLES,
    ClusterFacts,
    Scorer,
    Split,
    count,
    learn,
    size,
)
from feast_sketch_store.structures.costs import Popularity, packed_bytes, wanted_false_per_read
from feast_sketch_store.structures.feature_rows import FeatureRows, Part, in_order
from feast_sketch_store.structures.goals import (
    DEFAULT_CLUSTERS,
    LEARNED_BLOOM,
    MEMORY,
    SANDWICHED_BLOOM,
    Goal,
    Offer,
)
from feast_sketch_store.structures.parts import (
    Described,
    Parts,
    checked,
    describe_codec,
    describe_filter,
    describe_packed,
)
from feast_sketch_store.succinct import PackedInts, ShiftingBloomFilter, SymbolQuery

_MAX_TRIES = 12
_ROWS_PER_CHUNK = 1 << 14


class ClusterPlan(NamedTuple):
    """The goal of a feature: its style, the false values of a read, and the most clusters."""

    style: str
    false_per_read: float
    num_clusters: int


@dataclass(frozen=True)
class ClusteredFeature(SealedFeature):
    """One feature in a clustered filter."""

    codec: FeatureCodec
    vocabulary: Vocabulary
    style: str  # the name of its structure
    first_word: int  # the word of a window that holds its first symbol
    hashes: tuple[int, ...]  # of each level, ascending
    masks: NDArray[np.uint64]  # uint64[C, levels - 1, words], see `SymbolQuery`
    facts_per_level: tuple[int, ...]  # the number of facts at each level
    clusters: PackedInts  # of the rows; shared by all features
    shares: NDArray[np.float64]  # float64[C], the share of the rows in each cluster; shared by all features
    filter: ShiftingBloomFilter  # the table; shared by all features
    fill: float  # the table's share of ones

    @classmethod
    def from_snapshot(
        cls,
        parts: Parts,
        first_word: int,
        shared: tuple[PackedInts, NDArray[np.float64], ShiftingBloomFilter, float],
    ) -> Self:
        """The feature, with what all features share; raises as `Structure.from_snapshot`."""
        codec, report = parts.codec(), parts.at("report")
        vocabulary, style = parts.vocabulary(codec), report.get("style", str)
        hashes = tuple(checked(k, int) for k in parts.get("hashes", list))
        facts = tuple(checked(number, int) for number in report.get("facts_per_level", list))
        masks, (_, shares, _, _) = parts.array("masks", np.uint64, 3), shared
        if (
            style not in STYLES
            or not codec.is_collection
            or not 1 <= len(hashes) == len(facts) <= MAX_LEVELS
            or not 0 <= hashes[0] <= hashes[-1] <= MAX_NUM_HASHES
            or hashes[-1] < 1
            or any(later <= first for first, later in itertools.pairwise(hashes))
            or min(facts) < 0
            or masks.shape != (len(shares), len(hashes) - 1, words_for(len(vocabulary)))
        ):
            raise ValueError(f"{codec.feature!r} cannot have such hashes and masks of {len(shares)} clusters")
        return cls(codec, vocabulary, style, first_word, hashes, masks, facts, *shared)

    @property
    def structure(self) -> str:
        return self.style

    @property
    def num_facts(self) -> int:
        return sum(self.facts_per_level)

    @property
    def num_ones(self) -> int:
        """The number of bits that its facts set."""
        return sum(facts * k for facts, k in zip(self.facts_per_level, self.hashes, strict=True))

    @cached_property
    def hashes_of(self) -> NDArray[np.int64]:
        """The number of hashes of each value in each cluster: int64[C, V]."""
        bits = np.unpackbits(self.masks.view(np.uint8), axis=2, bitorder="little")[:, :, : self.num_values]
        return np.asarray(np.array(self.hashes)[(bits == 0).sum(1)])

    @cached_property
    def false_positive_rate(self) -> float:
        """See `SealedFeature`: the rate of a random value in the cluster of a random row."""
        if not self.num_values:
            return 0.0
        return float(self.shares @ np.power(self.fill, self.hashes_of).mean(1))

    def query(self, clusters: NDArray[np.int64]) -> SymbolQuery:
        """What to ask the filter about rows of these clusters: int64[n]."""
        plain = SymbolQuery(self.first_word, self.num_values, self.hashes[-1])
        if len(self.hashes) == 1:
            return plain
        ends = np.array(self.hashes, np.int64)
        return plain._replace(ends=ends, masks=self.masks, clusters=clusters.astype(np.int32))

    def prepare(self, rows: RowReader) -> None:
        begin_feature(rows, self.codec, self.vocabulary)
        if not self.num_values:
            rows.from_states()
            return
        query = self.query(np.zeros(0, np.int64))
        rows.from_filter(*self.filter.arguments(query))
        if query.masks is not None:
            rows.clusters(*self.clusters.arguments)

    def shown(self, rows: EncodedFeature, entity_hashes: NDArray[np.uint64]) -> Answer:
        """See `SealedFeature.shown`. False values are those of the clusters that the rows fit best."""
        own = self.known(rows)
        query = self.query(self._scorer.clusters_of(own))
        noise = Csr(*self.filter.possible_symbols(entity_hashes, query, rows.states == VALUE))
        return self.answer(rows.states, own.joined(noise).distinct())

    @cached_property
    def _scorer(self) -> Scorer:
        """Finds the cluster in which a row takes the fewest bits.

        Rates are proportional to odds, so each hash represents ``log(1 / fill)`` of log-odds. The false
        values of a cluster, divided by those for each true one, give the size of its rows.
        """
        shown = np.power(self.fill, self.hashes_of).sum(1)
        ratio = max(1e-12, float(self.shares @ shown)) / max(
            1e-12, self.num_facts / max(1, self.clusters.length)
        )
        weights = np.ascontiguousarray(math.log(self.fill) * self.hashes_of.T, np.float32)
        offsets = np.where(self.shares > 0, -shown / ratio + np.log(np.maximum(self.shares, 1e-12)), -np.inf)
        return Scorer(weights, offsets)

    def differences(self, written: Csr, entity_hashes: NDArray[np.uint64], answer: Answer) -> tuple[int, int]:
        """See `SealedFeature.differences`; a filter has false values by design."""
        num_lost, _ = super().differences(written, entity_hashes, answer)
        return num_lost, 0

    def sampled_rate(self, entity_hashes: NDArray[np.uint64], rng: np.random.Generator) -> float:
        """See `SealedFeature.sampled_rate`; each entity has the cluster of a random row."""
        if not self.num_values or not self.clusters.length:
            return 0.0
        num_asked = len(entity_hashes)
        clusters = self.clusters.take(rng.integers(0, self.clusters.length, num_asked))
        ids = rng.integers(0, self.num_values, (num_asked, 1)).astype(np.int32)
        query = self.query(_checked_clusters(clusters, len(self.shares)))
        return float(self.filter.contains(entity_hashes, query, ids).mean())


@dataclass(frozen=True)
class ClusteredFilters(Structure):
    """Features in one filter, and the cluster of each row."""

    features: Mapping[str, ClusteredFeature]
    filter: ShiftingBloomFilter
    clusters: PackedInts

    kind = "clustered"
    names = (LEARNED_BLOOM, SANDWICHED_BLOOM)
    lists_rows = True
    is_filter = True

    @classmethod
    def offer(cls, goal: Goal, popularity: Popularity) -> Offer | None:
        """See `Structure.offer`: only if a tag names it."""
        if goal.structure not in STYLES or goal.measure == MEMORY:
            return None
        wanted = wanted_false_per_read(goal, popularity)
        num_facts, num_clusters = popularity.num_facts, goal.clusters or DEFAULT_CLUSTERS
        rate = min(0.5, wanted / max(popularity.mean_absent, 1e-300))
        num_bits = num_facts * math.log2(1 / rate) / math.log(2) if rate else 64.0 * num_facts
        num_bytes = num_bits / 8 + packed_bytes(popularity.num_rows, (num_clusters - 1).bit_length())
        plan = ClusterPlan(goal.structure, wanted, num_clusters)
        return Offer(cls.kind, plan, num_bytes, rate * popularity.mean_absent)

    @classmethod
    def build(cls, features: Sequence[tuple[FeatureRows, ClusterPlan]], rows: RowsToSeal) -> Self | Shortfall:
        assert rows.order is not None
        members = _members([feature for feature, _ in features])
        joint = side_by_side(members, [len(feature.vocabulary) for feature, _ in features])
        num_values = sum(len(feature.vocabulary) for feature, _ in features)
        clusters = learn(joint, num_values, max(plan.num_clusters for _, plan in features))
        del joint
        num_clusters = int(clusters.max(initial=0)) + 1
        facts = []
        for (feature, plan), own in zip(features, members, strict=True):
            counts = count(own, clusters, (num_clusters, len(feature.vocabulary)))
            filled = np.bincount(clusters[feature.states == VALUE], minlength=num_clusters)
            facts.append(ClusterFacts(counts, filled, plan.false_per_read, plan.style))
        table = _fill(facts, members, clusters, rows)
        if isinstance(table, Shortfall):
            return table
        bloom, splits, fill = table
        in_list = PackedInts.pack(clusters[rows.order], base=0)
        shares = _shares(clusters, num_clusters)
        by_name, words = {}, first_words(len(feature.vocabulary) for feature, _ in features)
        for (feature, _), own_facts, split, first_word in zip(features, facts, splits, words, strict=False):
            per_level = own_facts.facts_per_level(split)
            codec, vocabulary = feature.sealed_codec, feature.vocabulary
            by_name[codec.feature] = ClusteredFeature(
                codec,
                vocabulary,
                own_facts.style,
                first_word,
                split.hashes,
                _masks(split),
                per_level,
                in_list,
                shares,
                bloom,
                fill,
            )
            feature.release()
        return cls(by_name, bloom, in_list)

    @property
    def num_rows(self) -> int:
        return self.clusters.length

    @property
    def size_bytes(self) -> int:
        """Bytes of the table, the clusters, masks and vocabularies."""
        own = sum(f.masks.nbytes + f.vocabulary.packed_bytes for f in self.features.values())
        return int(self.filter.words.nbytes) + self.clusters.size_bytes + own

    def size_bytes_of(self, feature: str) -> float:
        """Bytes of one feature: its vocabulary and masks, and shares of the table and the clusters."""
        own = self.features[feature]
        share = own.num_ones / max(1, sum(f.num_ones for f in self.features.values()))
        of_clusters = self.clusters.size_bytes / len(self.features)
        return share * self.filter.words.nbytes + of_clusters + own.masks.nbytes + own.vocabulary.packed_bytes

    @property
    def fact_bits(self) -> int:
        """Bits of the table, the clusters and the masks."""
        masks = sum(f.masks.nbytes for f in self.features.values())
        return self.filter.num_bits + 8 * (self.clusters.size_bytes + masks)

    @property
    def table_bytes(self) -> int:
        return self.filter.num_bits // 8

    @property
    def ideal_bits(self) -> float:
        return sum(f.num_ones * -math.log2(f.fill) for f in self.features.values()) / math.log(2)

    def to_snapshot(self) -> Described:
        entries: list[Described] = []
        shares, fill = np.ones(1), 0.5
        for feature in self.features.values():
            entries.append(
                {
                    **describe_codec(feature.codec),
                    "hashes": list(feature.hashes),
                    "masks": feature.masks,
                    "vocabulary": feature.vocabulary.to_packed(),
                    "report": {"style": feature.style, "facts_per_level": list(feature.facts_per_level)},
                }
            )
            shares, fill = feature.shares, feature.fill
        return {
            **describe_filter(self.filter),
            "clusters": describe_packed(self.clusters),
            "num_clusters": len(shares),
            "features": entries,
            "report": {"fill": fill, "shares": shares.tolist()},
        }

    @classmethod
    def from_snapshot(cls, parts: Parts) -> Self:
        bloom, clusters = parts.filter(), parts.at("clusters").packed()
        report, num_clusters = parts.at("report"), parts.get("num_clusters", int)
        shares = np.array([checked(share, float) for share in report.get("shares", list)])
        if (
            not 1 <= len(shares) == num_clusters <= MAX_CLUSTERS
            or not (shares >= 0).all()
            or not shares.sum() <= 1 + 1e-9
        ):
            raise ValueError(f"{len(shares)} clusters cannot have such shares")
        fill = report.get("fill", float)
        if not 0 < fill < 1:
            raise ValueError(f"a share of ones of {fill} is impossible")
        window_words, features = 0, dict[str, ClusteredFeature]()
        for entry in parts.each("features"):
            feature = ClusteredFeature.from_snapshot(entry, window_words, (clusters, shares, bloom, fill))
            if features.setdefault(feature.codec.feature, feature) is not feature:
                raise ValueError(f"the feature {feature.codec.feature!r} is there twice")
            window_words += feature.masks.shape[2]
        if bloom.window_words != max(1, window_words):
            raise ValueError("the table's length is not that of its words and window")
        return cls(features, bloom, clusters)


def _members(features: Sequence[FeatureRows]) -> list[Csr]:
    """The symbols of each feature in the order of the keys, without repetitions in a row."""
    everyone = np.arange(len(features[0].states))
    return [in_order([feature], everyone, stay=True).distinct() for feature in features]


def side_by_side(members: Sequence[Csr], sizes: Sequence[int]) -> Csr:
    """One matrix of all features; the ids of each feature follow those of the one before."""
    joint, first = members[0], sizes[0]
    for own, number in zip(members[1:], sizes[1:], strict=True):
        joint = joint.joined(Csr(own.indptr, own.ids + np.int32(first)))
        first += number
    return joint


def _shares(clusters: NDArray[np.int64], num_clusters: int) -> NDArray[np.float64]:
    return np.bincount(clusters, minlength=num_clusters) / max(1, len(clusters))


def _fill(
    facts: Sequence[ClusterFacts], members: Sequence[Csr], clusters: NDArray[np.int64], rows: RowsToSeal
) -> tuple[ShiftingBloomFilter, list[Split], float] | Shortfall:
    """A table that meets the goals at its actual share of ones, its splits, and that share."""
    try:
        num_bits, splits = size(facts)
    except ValueError as error:
        return Shortfall(math.inf, str(error))
    excesses = [own.excess(split) for own, split in zip(facts, splits, strict=True)]
    words = first_words(own.counts.shape[1] for own in facts)
    for _ in range(_MAX_TRIES):  # here, so that clusters are learned once
        parts = (_by_level(own, clusters, split) for own, split in zip(members, splits, strict=True))
        table = counted_table(num_bits, words, parts, excesses, rows)
        if not isinstance(table, Shortfall) or table.growth == math.inf:
            break
        rows = rows._replace(growth=table.growth)
    if isinstance(table, Shortfall):
        return table._replace(growth=math.inf)
    builder, fill = table
    return builder.build(), splits, max(fill, 1e-9)


def _by_level(members: Csr, clusters: NDArray[np.int64], split: Split) -> Iterator[PlacedFacts]:
    """The facts of a feature, each with the hashes of its level."""
    for indices, rows in _in_chunks(members):
        levels = split.level_of[np.repeat(clusters[indices], rows.lengths), rows.ids]
        for level, num_hashes in enumerate(split.hashes):
            own = rows.masked(levels == level) if len(split.hashes) > 1 else rows
            if num_hashes and len(own.ids):
                yield indices, own, num_hashes, None


def _in_chunks(members: Csr) -> Iterator[Part]:
    """Chunks of some thousand rows, each with the indices of its rows."""
    for first in range(0, len(members), _ROWS_PER_CHUNK):
        indptr = members.indptr[first : first + _ROWS_PER_CHUNK + 1]
        indices = np.arange(first, first + len(indptr) - 1, dtype=np.int32)
        yield indices, Csr(indptr - indptr[0], members.ids[indptr[0] : indptr[-1]])


def _masks(split: Split) -> NDArray[np.uint64]:
    """For each cluster and level but the first, ones for the values without the hashes of that level."""
    num_clusters, num_values = split.level_of.shape
    masks = np.zeros((num_clusters, len(split.hashes) - 1, words_for(num_values) * 8), np.uint8)
    for level in range(1, len(split.hashes)):
        packed = np.packbits(split.level_of < level, axis=1, bitorder="little")
        masks[:, level - 1, : packed.shape[1]] = packed
    return masks.view(np.uint64)


def _checked_clusters(clusters: NDArray[np.int64], number: int) -> NDArray[np.int64]:
    if len(clusters) and not 0 <= clusters.min() <= clusters.max() < number:
        raise ValueError(f"a row has a cluster that is not one of {number}")
    return clusters
