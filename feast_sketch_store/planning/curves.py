"""The points of a plan by theory: for each structure its bytes and the false values that a read shows.

The tables of the filters are sized for the estimated counts of the whole view. Sets are built from the sample
as in a seal, with features that imply each other coded together. Their bits are then scaled to the view, by
the ratio of the fewest bits that sets of these densities can have. So values missing from the sample count,
too.

Clusters of rows are learned from the sample, and their counts scaled to the view. A cluster of the view may
have values that it lacks in the sample. So if the sample is not everything, facts of each value are drawn:
by its sampled facts in each cluster and two more, which are divided among clusters as all facts are.

    false_per_read = sum over features and values of (share of entities with a value - density) * rate
    noise_ratio    = false_per_read / kept facts of an entity
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.layers.collect import CollectedFeature
from feast_sketch_store.planning.other_stores import REDIS, SQLITE, redis_bytes, sqlite_bytes
from feast_sketch_store.planning.plan import Estimate, Point
from feast_sketch_store.planning.sample import (
    FeatureSample,
    Sample,
    VocabularyMask,
    num_rare,
    spread_of_total,
    total_by_mean,
)
from feast_sketch_store.rows.codecs import EMPTY, VALUE, FeatureCodec
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.encoding import EncodedFeature
from feast_sketch_store.rows.formulas import Formula
from feast_sketch_store.structures.base import RowsToSeal, weighted_sums
from feast_sketch_store.structures.bloom import first_words
from feast_sketch_store.structures.choice import LayerOverhead, StructureSelector
from feast_sketch_store.structures.clustered import side_by_side
from feast_sketch_store.structures.clusters import (
    STYLES,
    ClusterFacts,
    Split,
    count,
    expected_fill,
    learn,
    size,
)
from feast_sketch_store.structures.costs import Popularity, index_bytes, packed_bytes, table_bytes
from feast_sketch_store.structures.goals import (
    AUTO,
    BLOOM,
    DEFAULT_CLUSTERS,
    NOISE_RATIO,
    SETS,
    WEIGHTED_BLOOM,
    Goal,
)
from feast_sketch_store.structures.set_columns import SetColumns
from feast_sketch_store.structures.sizing import AnyFacts, FactClass, Geometry, WeightedFacts, size_for_rates
from feast_sketch_store.succinct.golomb_sets import GolombSets, ideal_bits, starts_bytes

POPULAR_SETS = "most popular values, as sets"
POPULAR_BLOOM = "most popular values, bloom"
CHOSEN_SETS = "values chosen by the model, as sets"

CLUSTERED_NOISE_RATIOS = (4.0, 1.0, 0.2)  # sets are smaller at less noise

_SMOOTHING_FACTS = 2.0  # of each value, divided among clusters as all facts are
_SEED = 7

# About: the header of a snapshot with the checksums of blocks, more if rows are listed, and of a feature.
_HEADER_BYTES, LISTED_HEADER_BYTES, _FEATURE_HEADER_BYTES = 650, 260, 60


@dataclass(frozen=True)
class Grid:
    """The parameters of the points on the curves."""

    # of plain Bloom filters
    error_rates: Sequence[float] = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.001, 1e-4)
    # of weighted Bloom filters
    noise_ratios: Sequence[float] = (4.0, 2.0, 1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
    # of the facts that cuts by popularity keep
    shares: Sequence[float] = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
    # cut_rates, cut_shares: error rates and shares of filters for the most popular values
    cut_rates: Sequence[float] = (0.1, 0.01)
    cut_shares: Sequence[float] = (0.2, 0.4, 0.6, 0.8)


# A grid with fewer points, because a model is fitted for each.
COARSE = Grid(
    (0.5, 0.1, 0.05, 0.02, 0.01, 0.001, 1e-4),
    (1.0, 0.2, 0.1, 0.02),
    (0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0),
    (0.01,),
    (0.2, 0.5, 0.8),
)


@dataclass(frozen=True, eq=False)
class Candidate:
    """A point, and what a read through it shows."""

    point: Point
    kept: VocabularyMask  # the values that are kept
    # per feature float64[kept], the probability that an entity without the value shows it
    rates: Mapping[str, NDArray[np.float64]]
    # of features that are computed from all values, besides those that are kept
    formulas: Sequence[Formula] = ()


def candidates(sample: Sample, grid: Grid) -> list[Candidate]:
    """The points of all curves that need no model."""
    exact = sets(sample)
    return [
        *(bloom(sample, rate) for rate in grid.error_rates),
        *(weighted_bloom(sample, ratio) for ratio in grid.noise_ratios),
        *(c for ratio in grid.noise_ratios if (c := beside_list(sample, ratio, exact)) is not None),
        exact,
        *(sets(sample, least) for least in _least_counts(sample, grid.shares)),
        *(
            bloom(sample, rate, least)
            for least in _least_counts(sample, grid.cut_shares)
            for rate in grid.cut_rates
        ),
    ]


def bloom(sample: Sample, error_rate: float, least: int = 0) -> Candidate:
    """One error rate for all values, or for those that at least so many sampled entities have."""
    kept = sample.at_least(least)
    counts = sample.kept_counts(kept)
    classes: list[AnyFacts] = [FactClass(int(c.sum()), error_rate) for c in counts.values()]
    geometry, size = _table(sample, classes, kept)
    rates = {
        name: np.full(len(c), geometry.fill ** len(hashes))
        for (name, c), hashes in zip(counts.items(), geometry.hashes, strict=False)
    }
    tags = {"sketch.structure": "bloom", "sketch.target": f"error {error_rate:g}"}
    settings = settings_of(sample, kept, tags)
    curve, label = BLOOM, f"error rate {error_rate:g}"
    if least:
        curve, label = f"{POPULAR_BLOOM}, {label}", kept_text(sample, kept)
    return as_candidate(sample, curve, label, size, kept, rates, settings)


def weighted_bloom(sample: Sample, noise_ratio: float) -> Candidate:
    """Hashes by popularity, for a number of false values per true one in each feature."""
    counts = sample.full_counts
    num_filled = sample.num_filled(sample.everything)
    facts = {
        name: WeightedFacts(
            np.minimum(c, num_filled[name]),
            num_filled[name],
            max(noise_ratio * int(c.sum()) / num_filled[name], 1e-12),
        )
        for name, c in counts.items()
    }
    geometry, size = _table(sample, [*facts.values()], sample.everything)
    rates = {
        name: weighted.symbol_rates(hashes, geometry.fill)
        for (name, weighted), hashes in zip(facts.items(), geometry.hashes, strict=False)
    }
    tags = {"sketch.structure": "weighted_bloom", "sketch.target": f"noise {noise_ratio:g}"}
    kept, label = sample.everything, f"noise ratio {noise_ratio:g}"
    return as_candidate(sample, WEIGHTED_BLOOM, label, size, kept, rates, settings_of(sample, kept, tags))


def selector(sample: Sample, goals: Mapping[str, Goal], lists_rows: bool = False) -> StructureSelector:
    """How a seal of the whole view chooses; ``lists_rows`` if other features need a list of rows."""
    shapes, num_shapes = _shapes(sample, sample.everything)
    index = index_bytes(sample.num_entities, sample.presence_error_rate)
    words = first_words([num_shapes])[-1]
    overhead = LayerOverhead(lists_rows, (shapes,), words, 0.0, index, sample.timestamps_bytes)
    return StructureSelector(goals, popularity_of(sample), overhead)


@lru_cache(maxsize=1)  # for all points of a plan
def popularity_of(sample: Sample) -> dict[str, Popularity]:
    """How often values occur in the whole view, and the bits of the sampled sets; by feature."""
    found, filled = {}, sample.num_filled(sample.everything)
    for name, feature in sample.features.items():
        counts, num_without = sample.full_counts[name], sample.num_entities - filled[name]
        known = Popularity(counts.clip(max=filled[name]), sample.num_entities, num_without)
        found[name] = SetColumns.on_trial(known, _states(feature), feature.rows)
    return found


def beside_list(sample: Sample, noise_ratio: float, exact: Candidate) -> Candidate | None:
    """What is chosen for a noise ratio if no structure is named: features in a filter, and others in sets.

    None if a seal takes a point of another curve: ``exact``, sets of all features, or a filter with the rows.
    """
    choice = selector(sample, dict.fromkeys(sample.features, Goal(NOISE_RATIO, noise_ratio)))
    plans = {name: offer.plan.facts for name, offer in choice.offers().items() if offer.kind == BLOOM}
    facts = {name: own for name, own in plans.items() if isinstance(own, WeightedFacts)}
    if not facts or not choice.lists_rows(1.0):
        return None
    geometry, everyone, kept = size_for_rates([*facts.values()]), sample.num_entities, sample.everything
    rates = {name: np.zeros(len(counts)) for name, counts in sample.full_counts.items()}
    for (name, own), hashes in zip(facts.items(), geometry.hashes, strict=True):
        rates[name] = own.symbol_rates(hashes, geometry.fill)
    structure = table_bytes(geometry.num_bits, first_words(len(own.counts) for own in facts.values())[-1])
    structure += sum(packed_bytes(everyone, 1) for own in facts.values() if own.num_entities < everyone)
    others = {name: feature for name, feature in sample.features.items() if name not in facts}
    beside = float(LISTED_HEADER_BYTES + sample.timestamps_bytes)
    if others:
        rest = replace(sample, features=others)
        size, of_values, _ = _sets_bytes(rest, rest.everything)
        structure, beside = structure + size, beside + of_values - rest.vocabulary_bytes(rest.everything)
    else:
        structure += index_bytes(everyone, sample.presence_error_rate)
    settings = settings_of(sample, kept, {"sketch.target": f"noise {noise_ratio:g}"})
    label = f"noise ratio {noise_ratio:g}"
    found = as_candidate(sample, AUTO, label, structure, kept, rates, settings, beside)
    return found if found.point.memory_bytes < exact.point.memory_bytes else None


def sets(sample: Sample, least: int = 0) -> Candidate:
    """Exact sets of all values, or of those that at least so many sampled entities have."""
    kept = sample.at_least(least)
    settings = settings_of(sample, kept, {"sketch.structure": "sets"})
    if least:
        return sets_of(sample, kept, POPULAR_SETS, kept_text(sample, kept), settings)
    return sets_of(sample, kept, SETS, "exact", settings)


def sets_of(
    sample: Sample,
    kept: VocabularyMask,
    curve: str,
    label: str,
    settings: Mapping[str, Mapping[str, str]],
    beside_bytes: float = 0.0,
) -> Candidate:
    """Exact sets of some values, and further bytes; ``settings`` are those of the point."""
    rates = {name: np.zeros(len(counts)) for name, counts in sample.kept_counts(kept).items()}
    size, of_values, built = _sets_bytes(sample, kept)
    beside_bytes += LISTED_HEADER_BYTES + sample.timestamps_bytes + of_values - sample.vocabulary_bytes(kept)
    return as_candidate(sample, curve, label, size, kept, rates, settings, beside_bytes, built)


def least_count(sample: Sample, share: float) -> int:
    """How many sampled entities must have a value, if the most popular ones keep a share of the facts."""
    counts = np.sort(np.concatenate([feature.counts for feature in sample.features.values()]))[::-1]
    if not len(counts):
        return 1
    cumulated = np.cumsum(counts)
    # Slightly less: rounding in the sum must not require one more value.
    place = int(np.searchsorted(cumulated, share * cumulated[-1] * (1 - 1e-12)))
    return int(counts[min(place, len(counts) - 1)])


def _least_counts(sample: Sample, shares: Sequence[float]) -> list[int]:
    """As `least_count`, for several shares; the largest first, with which the fewest values are kept."""
    return sorted({least_count(sample, share) for share in shares}, reverse=True)


def as_candidate(
    sample: Sample,
    curve: str,
    label: str,
    structure_bytes: float,
    kept: VocabularyMask,
    rates: Mapping[str, NDArray[np.float64]],
    settings: Mapping[str, Mapping[str, str]],
    beside_bytes: float = 0.0,
    sets: GolombSets | None = None,
) -> Candidate:
    """A point of a curve.

    Parameters
    ----------
    sample : of the view.
    curve, label : names of the curve and of the point.
    structure_bytes : of the table, or of the sets and the list of entities, for all entities.
    kept, rates, settings : see `Candidate` and `Point`.
    beside_bytes : further bytes, without vocabulary and header.
    sets : of the sampled entities; None for a filter.
    """
    counts = sample.kept_counts(kept)
    num_entities = sample.num_entities
    num_filled = sample.num_filled(kept)
    false_per_read = sum(
        float(np.maximum(num_filled[name] - c, 0) @ rates[name]) / num_entities for name, c in counts.items()
    )
    kept_facts = sum(int(c.sum()) for c in counts.values())
    all_facts = sum(int(c.sum()) for c in sample.full_counts.values())
    memory = structure_bytes + beside_bytes + sample.vocabulary_bytes(kept)
    memory += header_bytes(len(sample.features)) + sample.buckets.nbytes
    bounds = memory_bounds(sample, kept, rates, structure_bytes, memory, sets)
    point = Point(
        curve,
        label,
        memory,
        bounds.low,
        bounds.high,
        8 * structure_bytes / max(1, sample.num_facts),
        8 * memory / max(1, sample.num_facts),
        false_per_read,
        false_per_read * num_entities / max(1, kept_facts),
        kept_facts / all_facts if all_facts else 1.0,
        settings=settings,
    )
    return Candidate(point, kept, rates)


def header_bytes(num_features: int) -> int:
    """Bytes of the header of a snapshot that does not list its rows."""
    return _HEADER_BYTES + _FEATURE_HEADER_BYTES * num_features


def memory_bounds(
    sample: Sample,
    kept: VocabularyMask,
    rates: Mapping[str, NDArray[np.float64]],
    structure_bytes: float,
    memory_bytes: float,
    sets: GolombSets | None,
) -> Estimate:
    """The interval of a point's bytes, from the spread of sampled entities and from values not yet seen.

    For sets, the bits of a group of entities are those of its codes. For a filter, those of an entity are
    those of its kept values: a constant for each in a plain filter, else -log2 of the value's density. The
    facts of the view are known, so the uncertainty is how far these bits vary from a constant number per
    fact. Codes fitted to a sample are too short for the view by up to half a nat per value (Miller, 1955).
    """
    if sample.scale <= 1:
        return Estimate.exactly(memory_bytes)
    bits, facts, group_rows = np.zeros(len(sample)), np.zeros(len(sample)), 1
    unseen_low, unseen_high, fitted = 0.0, 0.0, 0.0
    for name, feature in sample.features.items():
        is_plain = len(rates[name]) > 0 and rates[name][0] > 0 and bool((rates[name] == rates[name][0]).all())
        each = 1.0 if is_plain else -np.log2(feature.counts / len(sample) * (1 - 1e-9))
        bits += weighted_sums(feature.rows, np.where(kept[name], each, 0.0))
        facts += feature.rows.lengths
        if kept[name].all():
            low, high = _bytes_of_unseen(sample, name, is_plain)
            unseen_low, unseen_high = unseen_low + low, unseen_high + high
        fitted += np.count_nonzero(kept[name]) / (2 * math.log(2)) / 8 * (sample.scale - 1)
    if sets is None:
        fitted = 0.0
    else:
        group_rows = sets.group_rows
        starts = sets.starts.to_numbers()
        bits = np.diff(starts.astype(np.float64), append=float(sets.num_bits))
        facts = np.add.reduceat(facts[sample.order], np.arange(0, len(facts), group_rows))
    per_fact = bits.sum() / max(1.0, facts.sum())
    total = max(1.0, bits.sum() * sample.scale)
    spread = spread_of_total(bits - per_fact * facts, sample.num_entities / group_rows) / total
    of_facts = (sample.facts.high - sample.facts.value) / max(1.0, sample.facts.value)
    of_sample = structure_bytes * math.hypot(spread, of_facts)
    return Estimate(
        memory_bytes,
        # In whole bytes, so that the last digits do not depend on the order in which values were found.
        math.floor(memory_bytes - math.hypot(of_sample, unseen_low)),
        math.ceil(memory_bytes + fitted + math.hypot(of_sample, unseen_high)),
    )


def _bytes_of_unseen(sample: Sample, name: str, is_plain: bool) -> tuple[float, float]:
    """How many bytes less or more a feature's vocabulary, and the codes of its rare values, may take."""
    feature, sizes = sample.features[name], sample.vocabulary_sizes[name]
    (once, _), seen = num_rare(feature.counts), len(feature.vocabulary)
    tail_facts = 0 if is_plain else once * sample.scale

    full = sample.full_counts[name]
    density = feature.vocabulary_bytes(full) / max(1.0, feature.vocabulary.packed_bytes_of(len(full)))

    def size(num_values: float) -> float:
        rare = max(1.0, once + num_values - seen)
        of_values = density * feature.vocabulary.packed_bytes_of(num_values)
        return float(of_values + tail_facts * math.log2(rare) / 8)

    return size(sizes.value) - size(sizes.low), size(sizes.high) - size(sizes.value)


def _table(sample: Sample, facts: Sequence[AnyFacts], kept: VocabularyMask) -> tuple[Geometry, float]:
    """The table for facts of each feature and for shapes, and its bytes with the head that it repeats."""
    shapes, num_shapes = _shapes(sample, kept)
    geometry = size_for_rates([*facts, shapes])
    sizes = [*map(len, sample.kept_counts(kept).values()), num_shapes]
    return geometry, table_bytes(geometry.num_bits, first_words(sizes)[-1])


def _shapes(sample: Sample, kept: VocabularyMask) -> tuple[FactClass, int]:
    """The facts of shapes in a filter that holds the rows, and the number of shapes.

    A shape is one symbol for each entity, which says which of its features have a value, and its bucket.
    """
    has_value = [f.cut(kept[name]).rows.lengths > 0 for name, f in sample.features.items()]
    has_row = np.ones(len(sample), np.bool_)
    num_shapes = len(np.unique(np.stack([has_row, *has_value], axis=1), axis=0)) * len(sample.buckets)
    return FactClass(sample.num_entities, sample.presence_error_rate / num_shapes), num_shapes


def _sets_bytes(sample: Sample, kept: VocabularyMask) -> tuple[float, float, GolombSets]:
    """Bytes of the sets of all entities: the codes, their index, and the list of entities.

    Returns these bytes, the bytes of the vocabularies and levels, and the sets of the sampled entities.
    """
    parts = {name: feature.cut(kept[name]) for name, feature in sample.features.items()}
    columns = _built_sets(parts, sample.order)
    built = columns.sets
    code_bits = built.num_bits * sample.scale
    if sample.scale > 1:
        proportional = sum(ideal_bits(part.counts, len(sample)) for part in parts.values()) * sample.scale
        least = sum(ideal_bits(counts, sample.num_entities) for counts in sample.kept_counts(kept).values())
        code_bits *= least / proportional if proportional else 1.0  # equal rows have no entropy
    num_codes = len(parts) * len(sample) + sum(part.num_facts for part in parts.values())
    size = code_bits / 8 + index_bytes(sample.num_entities, sample.presence_error_rate)
    size += starts_bytes(sample.num_entities, round(num_codes * sample.scale), code_bits)
    in_parts = sum(part.vocabulary.packed_bytes for part in parts.values())
    levels = built.levels_bytes
    of_values = columns.size_bytes - built.size_bytes - levels
    return size, levels + of_values * sample.vocabulary_bytes(kept) / max(1, in_parts), built


def _built_sets(parts: Mapping[str, FeatureSample], order: NDArray[np.int64]) -> SetColumns:
    """The sets of all features of the sampled rows, in this order, int64[n], as in a seal."""
    collected = []
    for name, part in parts.items():
        feature = encoded(name, part)
        collected.append(CollectedFeature(feature.codec, len(order)))
        collected[-1].add(np.arange(len(order), dtype=np.int32), feature)
        collected[-1].finish()
    rows = RowsToSeal(np.zeros((len(order), 2), np.uint64), (0, 0), order)
    return SetColumns.build([(feature, None) for feature in collected], rows)


def _states(feature: FeatureSample) -> NDArray[np.uint8]:
    """Whether each sampled entity has values, as states of a row: uint8[n]."""
    return np.where(feature.rows.lengths > 0, np.uint8(VALUE), np.uint8(EMPTY))


def encoded(name: str, feature: FeatureSample) -> EncodedFeature:
    """A feature of the sampled rows in the form that structures and formulas take."""
    values, rows = feature.vocabulary, feature.rows
    kind = "int64" if pa.types.is_int64(values.values.type) else "bytes"
    codec = FeatureCodec(name, f"{kind}_set_val")
    return EncodedFeature(codec, values, _states(feature), Csr(rows.indptr, rows.ids))


def clustered(sample: Sample, noise_ratios: Sequence[float]) -> list[Candidate]:
    """Clustered filters: the points of each style at some noise ratios.

    Clusters fit the rows of a sample in another way than more rows. How much that changes the bytes shows in
    halves of the sample. The interval has the largest of these changes for each doubling of the sample.
    """
    found = _clustered(sample, noise_ratios)
    if sample.scale <= 1 or len(sample) < 2:
        return found
    of_whole = {(c.point.curve, c.point.label): c.point.memory_bytes for c in found}
    changes = [
        abs(1 - c.point.memory_bytes / of_whole.get((c.point.curve, c.point.label), c.point.memory_bytes))
        for half in sample.halves
        for c in _clustered(half, noise_ratios)
    ]
    error = max(changes, default=0.0) * math.log2(sample.scale)
    return [replace(c, point=_widened(c.point, error * c.point.memory_bytes)) for c in found]


def _widened(point: Point, error: float) -> Point:
    """A point with a further error of its bytes."""
    value = point.memory_bytes
    low, high = (math.hypot(value - end, error) for end in (point.memory_low, point.memory_high))
    return replace(point, memory_low=max(0, math.floor(value - low)), memory_high=math.ceil(value + high))


def _clustered(sample: Sample, noise_ratios: Sequence[float]) -> list[Candidate]:
    # In the order of hashes, so that a sample has the same clusters wherever its rows come from.
    order = sample.order
    members = [f.rows.take(order) for f in sample.features.values()]
    sizes = [len(feature.vocabulary) for feature in sample.features.values()]
    clusters = learn(side_by_side(members, sizes), sum(sizes), DEFAULT_CLUSTERS)
    counts = {
        name: _cluster_counts(sample, name, own, clusters)
        for name, own in zip(sample.features, members, strict=True)
    }
    return [
        candidate
        for style in STYLES
        for ratio in noise_ratios
        if (candidate := _clustered_at(sample, style, ratio, counts)) is not None
    ]


def _cluster_counts(
    sample: Sample, name: str, members: Csr, clusters: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of the view in each cluster with each value, int64[C, V], and with any value, int64[C]."""
    num_clusters, seen = int(clusters.max(initial=0)) + 1, len(sample.features[name].vocabulary)
    filled = np.bincount(clusters[members.lengths > 0], minlength=num_clusters)
    counts, full = count(members, clusters, (num_clusters, seen)), sample.full_counts[name]
    if sample.scale <= 1:
        return counts, filled
    shares = np.zeros((len(full), num_clusters))
    shares[:seen] = counts.T
    shares += _SMOOTHING_FACTS * counts.sum(1) / max(1, counts.sum())
    drawn = np.random.default_rng(_SEED).multinomial(full, shares / shares.sum(1, keepdims=True)).T
    num_rows = np.rint(filled * sample.scale).astype(np.int64)
    return np.minimum(drawn, num_rows[:, None]), num_rows


def _clustered_at(
    sample: Sample,
    style: str,
    noise_ratio: float,
    counts: dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]],
) -> Candidate | None:
    """The point of a style; None if no table can have so little noise."""
    facts = []
    for own, num_rows in counts.values():
        false_per_read = noise_ratio * int(own.sum()) / max(1, int(num_rows.sum()))
        facts.append(ClusterFacts(own, num_rows, max(false_per_read, 1e-12), style))
    try:
        num_bits, splits = size(facts)
    except ValueError:
        return None
    fill = expected_fill(facts, splits, num_bits)
    rates = {
        name: _mean_rates(own, split, fill) for name, own, split in zip(counts, facts, splits, strict=True)
    }
    num_clusters = facts[0].counts.shape[0]
    window_words = sum(-(-own.counts.shape[1] // 64) for own in facts)
    masks = sum(
        8 * num_clusters * (len(split.hashes) - 1) * -(-own.counts.shape[1] // 64)
        for own, split in zip(facts, splits, strict=True)
    )
    everyone = sample.num_entities
    columns = packed_bytes(everyone, (num_clusters - 1).bit_length())
    columns += sample.timestamps_bytes
    columns += sum(packed_bytes(everyone, 1) for own in facts if own.num_rows.sum() < everyone)  # states
    structure = table_bytes(num_bits, window_words) + masks
    structure += columns + index_bytes(everyone, sample.presence_error_rate)
    tags = {"sketch.structure": style, "sketch.target": f"noise {noise_ratio:g}"}
    curve = style
    if style == WEIGHTED_BLOOM:
        tags["sketch.clusters"] = str(DEFAULT_CLUSTERS)
        curve = f"{style}, {DEFAULT_CLUSTERS} clusters"
    label = f"noise ratio {noise_ratio:g}"
    kept, settings = sample.everything, settings_of(sample, sample.everything, tags)
    return as_candidate(sample, curve, label, structure, kept, rates, settings, LISTED_HEADER_BYTES)


def _mean_rates(facts: ClusterFacts, split: Split, fill: float) -> NDArray[np.float64]:
    """The mean rate of each value over the rows that lack it: float64[V]."""
    shown = facts.absent * np.power(fill, np.array(split.hashes))[split.level_of]
    return np.asarray(shown.sum(0) / np.maximum(facts.absent.sum(0), 1))


def points_of_other_stores(sample: Sample) -> list[Point]:
    """Points for the sampled rows in other stores; none if the rows are not known."""
    if sample.stored is None:
        return []
    sizes = {REDIS: redis_bytes(sample.stored, sample.num_entities), SQLITE: sqlite_bytes(sample.stored)}
    points = []
    for store, of_rows in sizes.items():
        size = total_by_mean(of_rows, sample.num_entities)
        per_fact = size.value / max(1.0, sample.facts.value)
        label, bounds = f"{per_fact:.3g} bytes per fact", (size.value, size.low, size.high)
        points.append(Point(store, label, *bounds, None, 8 * per_fact, 0.0, 0.0, 1.0))
    return points


def settings_of(sample: Sample, kept: VocabularyMask, tags: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """The tags of each feature, with the number of its values that are kept if not all of them are."""
    found = {}
    for name in sample.features:
        number, own = int(kept[name].sum()), dict(tags)
        if number < len(kept[name]):
            own["sketch.vocabulary"] = f"{{top: {number}}}" if number else "[]"
        found[name] = own
    return found


def kept_text(sample: Sample, kept: VocabularyMask) -> str:
    """The number of kept values, and their share of the facts."""
    counts = sample.kept_counts(kept)
    num_values = sum(map(len, counts.values()))
    num_facts = sum(int(c.sum()) for c in counts.values())
    share = num_facts / max(1, sum(int(c.sum()) for c in sample.full_counts.values()))
    return f"{num_values:,} values, {share:.0%} of the facts"
