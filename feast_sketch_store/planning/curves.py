"""The points of a plan by theory: bytes, and false values that a read shows, of each structure.

The tables of the filters are sized for the estimated counts of the whole view. Sets are coded for the sample,
as a seal would code them, and their bits scaled; where the view is larger than its sample by the ratio of the
least bits that sets of these densities can have, so that values which the sample does not show count.

    false_per_read = sum over features and values of (share of entities with a value - density) * rate
    noise_ratio    = false_per_read / kept facts of an entity
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from feast_sketch_store.planning.plan import Point
from feast_sketch_store.planning.sample import FeatureSample, Kept, Sample
from feast_sketch_store.structures.goals import BLOOM, WEIGHTED_BLOOM
from feast_sketch_store.structures.sizing import AnyFacts, FactClass, WeightedFacts, size_for_rates
from feast_sketch_store.succinct.fingerprints import expected_bits
from feast_sketch_store.succinct.golomb_sets import BLOCK_ROWS, GolombSets, SetCode, ideal_bits

SETS = "sets"
POPULAR_SETS = "most popular values, as sets"
POPULAR_BLOOM = "most popular values, bloom"
CHOSEN_SETS = "values chosen by the model, as sets"
REDIS = "Redis"
SQLITE = "SQLite"

# Of a row beside its values. Measured with 20 integers below 10,000 per row, at 16.5 and 12.7 bytes per fact,
# keys and values included (docs/performance.md); 46 bytes of a row were its value.
_BYTES_PER_ROW = {REDIS: 20 * 16.5 - 46, SQLITE: 20 * 12.7 - 46}
_VALUE_HEAD_BYTES = 6  # about; tags and lengths around the elements of a value

_HEADER_BYTES = 4_000  # about; of a snapshot's file


@dataclass(frozen=True)
class Grid:
    """Where on the curves points are.

    Parameters
    ----------
    error_rates : of plain Bloom filters.
    noise_ratios : of weighted Bloom filters.
    shares : of the facts, that cuts by popularity keep.
    cut_rates, cut_shares : the same of filters for the most popular values.
    """

    error_rates: Sequence[float] = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.001, 1e-4)
    noise_ratios: Sequence[float] = (4.0, 2.0, 1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
    shares: Sequence[float] = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
    cut_rates: Sequence[float] = (0.1, 0.01)
    cut_shares: Sequence[float] = (0.2, 0.4, 0.6, 0.8)


# A model is fitted for each point.
COARSE = Grid(
    (0.5, 0.1, 0.05, 0.02, 0.01, 0.001, 1e-4),
    (1.0, 0.2, 0.1, 0.02),
    (0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0),
    (0.01,),
    (0.2, 0.5, 0.8),
)


@dataclass(frozen=True, eq=False)
class Candidate:
    """A point, and what a read through it shows.

    Parameters
    ----------
    kept : the values that are kept at all.
    rates : per feature float64[kept], the probability that an entity without the value shows it.
    """

    point: Point
    kept: Kept
    rates: Mapping[str, NDArray[np.float64]]


def candidates(sample: Sample, presence_error_rate: float, grid: Grid) -> list[Candidate]:
    """The points of all curves that need no model; each curve's from the smallest to the largest."""
    curves = (
        [bloom(sample, presence_error_rate, rate) for rate in grid.error_rates],
        [weighted_bloom(sample, presence_error_rate, ratio) for ratio in grid.noise_ratios],
        [sets(sample, presence_error_rate)],
        list(_popular_sets(sample, presence_error_rate, grid.shares)),
        list(_popular_bloom(sample, presence_error_rate, grid.cut_shares, grid.cut_rates)),
    )
    return [candidate for curve in curves for candidate in in_order(curve)]


def in_order(curve: Sequence[Candidate]) -> list[Candidate]:
    """From the smallest to the largest."""
    return sorted(curve, key=lambda candidate: candidate.point.memory_bytes)


def bloom(
    sample: Sample, presence_error_rate: float, error_rate: float, threshold: float | None = None
) -> Candidate:
    """One error rate for all values; or for those that a share of the entities have, the threshold."""
    kept = sample.everything if threshold is None else sample.at_least(threshold * len(sample))
    counts = sample.kept_counts(kept)
    classes: list[AnyFacts] = [FactClass(int(c.sum()), error_rate) for c in counts.values()]
    geometry = size_for_rates([*classes, shapes_of(sample, kept, presence_error_rate)])
    rates = {
        name: np.full(len(c), rate)
        for (name, c), rate in zip(counts.items(), geometry.false_positive_rates, strict=False)
    }
    tags = {"sketch.structure": "bloom", "sketch.error_rate": f"{error_rate:g}"}
    label = f"error rate {error_rate:g}"
    if threshold is not None:
        tags["sketch.vocabulary"] = _min_share(threshold)
        label = f"{kept_text(sample, kept)}, {label}"
    curve = BLOOM if threshold is None else POPULAR_BLOOM
    return as_candidate(sample, curve, label, geometry.num_bits / 8, kept, rates, tags)


def weighted_bloom(sample: Sample, presence_error_rate: float, noise_ratio: float) -> Candidate:
    """Hashes by popularity, for so many false values per true one in each feature."""
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
    geometry = size_for_rates([*facts.values(), shapes_of(sample, sample.everything, presence_error_rate)])
    rates = {
        name: weighted.symbol_rates(hashes, geometry.fill)
        for (name, weighted), hashes in zip(facts.items(), geometry.hashes, strict=False)
    }
    tags = {"sketch.structure": "weighted_bloom", "sketch.noise_ratio": f"{noise_ratio:g}"}
    label = f"noise ratio {noise_ratio:g}"
    return as_candidate(sample, WEIGHTED_BLOOM, label, geometry.num_bits / 8, sample.everything, rates, tags)


def sets(sample: Sample, presence_error_rate: float, threshold: float | None = None) -> Candidate:
    """Exact sets of all values; or of those that a share of the entities have, the threshold."""
    kept = sample.everything if threshold is None else sample.at_least(threshold * len(sample))
    tags = {"sketch.structure": "sets"}
    if threshold is None:
        return sets_of(sample, presence_error_rate, kept, SETS, "exact", tags)
    if not all(mask.all() for mask in kept.values()):
        tags["sketch.vocabulary"] = _min_share(threshold)
    return sets_of(sample, presence_error_rate, kept, POPULAR_SETS, kept_text(sample, kept), tags)


def sets_of(
    sample: Sample,
    presence_error_rate: float,
    kept: Kept,
    curve: str,
    label: str,
    tags: Mapping[str, str] | Mapping[str, Mapping[str, str]],
) -> Candidate:
    """Exact sets of some values; the tags are those of every feature, or per feature."""
    rates = {name: np.zeros(len(counts)) for name, counts in sample.kept_counts(kept).items()}
    size = _sets_bytes(sample, kept, presence_error_rate)
    return as_candidate(sample, curve, label, size, kept, rates, tags)


def other_stores(sample: Sample) -> list[Point]:
    """What the same rows take in other stores, exactly; estimated from the sizes of their values."""
    value_bytes = sum(_message_bytes(feature) for feature in sample.features.values()) * sample.scale
    num_facts = max(1, sample.num_facts)
    points = []
    for curve, row_bytes in _BYTES_PER_ROW.items():
        size = value_bytes + row_bytes * sample.num_entities * _rows_per_entity(curve, sample)
        per_fact = size / num_facts
        points.append(Point(curve, f"{per_fact:.3g} bytes per fact", size, per_fact * 8, 0.0, 0.0, 1.0))
    return points


def _rows_per_entity(curve: str, sample: Sample) -> float:
    """SQLite has a row for each feature of an entity, Redis a hash for all of them."""
    return len(sample.features) if curve == SQLITE else 1.0


def _message_bytes(feature: FeatureSample) -> float:
    """Bytes of the sampled values in the wire format of Feast's `Value`, with tags and lengths."""
    values = feature.vocabulary.values
    if pa.types.is_integer(values.type):
        numbers = values.to_numpy().astype(np.int64)
        sizes = np.maximum(1, -(-np.frexp(np.abs(numbers.astype(np.float64)))[1] // 7))
        sizes = np.where(numbers < 0, 10, sizes)
    elif pa.types.is_large_binary(values.type):
        lengths = pc.binary_length(values).to_numpy()
        sizes = 1 + np.where(lengths < 128, 1, 2) + lengths
    else:
        sizes = np.full(len(values), values.nbytes / max(1, len(values)))
    return float(sizes @ feature.counts) + _VALUE_HEAD_BYTES * (len(feature.indptr) - 1)


def threshold_of_share(sample: Sample, share: float) -> float:
    """The largest share of the entities, in few digits, such that the values which as many have hold at
    least a share of the facts.
    """
    counts = np.sort(np.concatenate([feature.counts for feature in sample.features.values()]))[::-1]
    if not len(counts):
        return 0.0
    behind = np.cumsum(counts)
    # A hair less, lest a sum of shares that is one part in 1e16 short asks for a value more.
    place = int(np.searchsorted(behind, share * behind[-1] * (1 - 1e-12)))
    return _round_threshold(counts, int(counts[min(place, len(counts) - 1)]), len(sample))


def _round_threshold(counts: NDArray[np.int64], count: int, num_sampled: int) -> float:
    """A share of few digits that splits the values between those with and without so many entities."""
    num_kept = int((counts >= count).sum())
    for digits in range(1, 17):
        share = float(f"{(count - 0.5) / num_sampled:.{digits}g}")
        if int((counts >= share * num_sampled).sum()) == num_kept:
            return share
    return count / num_sampled


def _popular_sets(sample: Sample, presence_error_rate: float, shares: Sequence[float]) -> Iterator[Candidate]:
    for threshold in sorted({threshold_of_share(sample, share) for share in shares}):
        yield sets(sample, presence_error_rate, threshold)


def _popular_bloom(
    sample: Sample, presence_error_rate: float, shares: Sequence[float], rates: Sequence[float]
) -> Iterator[Candidate]:
    for threshold in sorted({threshold_of_share(sample, share) for share in shares}):
        for rate in rates:
            yield bloom(sample, presence_error_rate, rate, threshold)


def as_candidate(
    sample: Sample,
    curve: str,
    label: str,
    structure_bytes: float,
    kept: Kept,
    rates: Mapping[str, NDArray[np.float64]],
    tags: Mapping[str, str] | Mapping[str, Mapping[str, str]],
) -> Candidate:
    """A point of a curve.

    Parameters
    ----------
    structure_bytes : of all entities, vocabulary and header not counted.
    kept, rates : as those of a `Candidate`.
    tags : those of every feature, or per feature.
    """
    counts = sample.kept_counts(kept)
    num_entities = sample.num_entities
    num_filled = sample.num_filled(kept)
    false_per_read = sum(
        float(np.maximum(num_filled[name] - c, 0) @ rates[name]) / num_entities for name, c in counts.items()
    )
    kept_facts = sum(int(c.sum()) for c in counts.values())
    all_facts = sum(int(c.sum()) for c in sample.full_counts.values())
    memory = structure_bytes + sample.vocabulary_bytes(kept) + _HEADER_BYTES
    is_per_feature = any(not isinstance(value, str) for value in tags.values())
    point = Point(
        curve,
        label,
        memory,
        memory * 8 / max(1, sample.num_facts),
        false_per_read,
        false_per_read * num_entities / max(1, kept_facts),
        kept_facts / all_facts if all_facts else 1.0,
        settings=dict(tags) if is_per_feature else {name: dict(tags) for name in sample.features},  # type: ignore[arg-type]
        table_bits_per_fact=structure_bytes * 8 / max(1, sample.num_facts),
    )
    return Candidate(point, kept, rates)


def shapes_of(sample: Sample, kept: Kept, presence_error_rate: float) -> FactClass:
    """One symbol of each entity: which of its features have a value."""
    has_value = [np.diff(f.cut(kept[name]).indptr) > 0 for name, f in sample.features.items()]
    num_shapes = len(np.unique(np.stack(has_value, axis=1), axis=0))
    return FactClass(sample.num_entities, presence_error_rate / num_shapes)


def _sets_bytes(sample: Sample, kept: Kept, presence_error_rate: float) -> float:
    """Bytes of the sets of all entities: the codes, where they begin, and the list of entities."""
    parts = {name: feature.cut(kept[name]) for name, feature in sample.features.items()}
    built = _build(list(parts.values()), len(sample))
    code_bits = built.num_bits * sample.scale
    if sample.scale > 1:
        proportional = sum(ideal_bits(part.counts, len(sample)) for part in parts.values()) * sample.scale
        least = sum(ideal_bits(counts, sample.num_entities) for counts in sample.kept_counts(kept).values())
        code_bits *= least / max(1.0, proportional)
    anchor_bits = math.ceil(math.log2(max(2.0, code_bits))) / BLOCK_ROWS
    index_bits = float(expected_bits(sample.num_entities, presence_error_rate))
    index_bits += sample.num_entities * (anchor_bits + built.deltas.width)
    timestamp_bits = sample.num_entities  # of few different ones; more take a bit more
    return (code_bits + index_bits + timestamp_bits) / 8


def _build(parts: Sequence[FeatureSample], num_rows: int) -> GolombSets:
    """The sets of the sample, as a seal would code them."""
    num_features = len(parts)
    lengths = np.stack([np.diff(part.indptr) for part in parts], axis=1)
    indptr = np.concatenate(([0], np.cumsum(lengths)))
    ids = np.empty(indptr[-1], np.int32)
    for number, part in enumerate(parts):
        shifts = indptr[:-1][number::num_features] - part.indptr[:-1]
        ids[np.repeat(shifts, lengths[:, number]) + np.arange(len(part.ids))] = part.ids
    codes = [SetCode.fit(part.counts, lengths[:, number], 0) for number, part in enumerate(parts)]
    return GolombSets.build(codes, lengths.astype(np.int32), indptr, ids)


def _min_share(threshold: float) -> str:
    # YAML takes 1e-05 for text.
    return f"{{min_share: {np.format_float_positional(threshold, trim='0')}}}"


def kept_text(sample: Sample, kept: Kept) -> str:
    """How many values are kept, and how many of the facts."""
    counts = sample.kept_counts(kept)
    num_values = sum(map(len, counts.values()))
    num_facts = sum(int(c.sum()) for c in counts.values())
    share = num_facts / max(1, sum(int(c.sum()) for c in sample.full_counts.values()))
    return f"{num_values:,} values, {share:.0%} of the facts"
