"""Points of clustered filters: clusters are learned from the sample, and counts scaled to the whole view.

A cluster of the view may have values that it lacks in the sample. So if the sample is not everything, the
shares of each cluster are smoothed towards those of all rows, as in the scorer; and values missing from the
sample are equally frequent in all clusters.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.planning.curves import (
    LISTED_HEADER_BYTES,
    Candidate,
    as_candidate,
    in_order,
    settings_of,
)
from feast_sketch_store.planning.sample import Sample
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.structures.clustered import side_by_side
from feast_sketch_store.structures.clusters import (
    SMOOTHING,
    STYLES,
    ClusterFacts,
    Split,
    count,
    expected_fill,
    learn,
    size,
)
from feast_sketch_store.structures.costs import index_bytes, packed_bytes, table_bytes
from feast_sketch_store.structures.goals import DEFAULT_CLUSTERS, WEIGHTED_BLOOM

NOISE_RATIOS = (4.0, 1.0, 0.2)  # sets are smaller at less noise


def candidates(sample: Sample, noise_ratios: Sequence[float]) -> list[Candidate]:
    """The points of each style at some noise ratios, the smallest first."""
    # In the order of hashes, so that a sample has the same clusters wherever its rows come from.
    order = sample.order
    members = [f.rows.take(order) for f in sample.features.values()]
    sizes = [len(feature.vocabulary) for feature in sample.features.values()]
    clusters = learn(side_by_side(members, sizes), sum(sizes), DEFAULT_CLUSTERS)
    counts = {
        name: _scaled(sample, name, own, clusters) for name, own in zip(sample.features, members, strict=True)
    }
    found = []
    for style in STYLES:
        points = (_at(sample, style, ratio, counts) for ratio in noise_ratios)
        found += in_order([point for point in points if point is not None])
    return found


def _scaled(
    sample: Sample, name: str, members: Csr, clusters: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of the view in each cluster with each value, int64[C, V], and with any value, int64[C]."""
    num_clusters, seen = int(clusters.max(initial=0)) + 1, len(sample.features[name].vocabulary)
    filled = np.bincount(clusters[members.lengths > 0], minlength=num_clusters)
    full = sample.full_counts[name]
    shares = count(members, clusters, (num_clusters, seen)).astype(np.float64)
    if sample.scale > 1:
        overall = shares.sum(0) / max(1, filled.sum())
        shares = (shares + SMOOTHING * overall) * (filled / (filled + SMOOTHING))[:, None]
    by_rows = np.repeat(filled[:, None] / max(1, filled.sum()), len(full) - seen, axis=1)
    shares = np.concatenate((shares / np.maximum(shares.sum(0), 1e-300), by_rows), axis=1)
    num_rows = np.rint(filled * sample.scale).astype(np.int64)
    return np.minimum(np.rint(shares * full), num_rows[:, None]).astype(np.int64), num_rows


def _at(
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
    rates = {name: _rates(own, split, fill) for name, own, split in zip(counts, facts, splits, strict=True)}
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


def _rates(facts: ClusterFacts, split: Split, fill: float) -> NDArray[np.float64]:
    """The mean rate of each value over the rows that lack it: float64[V]."""
    shown = facts.absent * np.power(fill, np.array(split.hashes))[split.level_of]
    return np.asarray(shown.sum(0) / np.maximum(facts.absent.sum(0), 1))
