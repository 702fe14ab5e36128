"""Points of registered structures that this package has no curves for, computed from their offers."""

from collections.abc import Iterator, Sequence

import numpy as np

from feast_sketch_store.planning.curves import Candidate, as_candidate, in_order, shapes_of
from feast_sketch_store.planning.sample import Sample
from feast_sketch_store.structures import registry
from feast_sketch_store.structures.base import Structure
from feast_sketch_store.structures.bloom import BloomTable
from feast_sketch_store.structures.clustered import ClusteredFilters
from feast_sketch_store.structures.compact_sets import CompactSets
from feast_sketch_store.structures.costs import Popularity, index_bytes, packed_bytes
from feast_sketch_store.structures.goals import NOISE_RATIO, Goal, Offer
from feast_sketch_store.structures.set_columns import SetColumns
from feast_sketch_store.structures.sizing import size_for_rates

# `curves` and `clustered` compute the points of these, in more detail than their offers.
_KNOWN = (BloomTable, SetColumns, CompactSets, ClusteredFilters)


def candidates(sample: Sample, presence_error_rate: float, noise_ratios: Sequence[float]) -> list[Candidate]:
    """The points of each structure at some noise ratios, smallest first; one point if it is exact."""
    found = []
    for kind in registry.kinds():
        for name in () if kind in _KNOWN else kind.names:
            curve = {
                candidate.point.label: candidate
                for ratio in noise_ratios
                for candidate in _at(sample, presence_error_rate, kind, name, ratio)
            }
            found += in_order(list(curve.values()))
    return found


def _at(
    sample: Sample, presence_error_rate: float, kind: type[Structure], name: str, noise_ratio: float
) -> Iterator[Candidate]:
    """The point of a structure at a noise ratio, if it makes an offer for every feature."""
    filled = sample.num_filled(sample.everything)
    offers: dict[str, Offer] = {}
    rates = {}
    for feature, counts in sample.full_counts.items():
        num_filled = filled[feature]
        popularity = Popularity(
            np.minimum(counts, num_filled), sample.num_entities, sample.num_entities - num_filled
        )
        offer = kind.offer(Goal(NOISE_RATIO, noise_ratio, name), popularity)
        if offer is None:
            return
        offers[feature] = offer
        rates[feature] = np.full(len(counts), offer.false_per_read / max(popularity.mean_absent, 1e-300))
    is_exact = not any(offer.false_per_read for offer in offers.values())
    size = kind.joint_bytes(list(offers.values())) + _rows_bytes(sample, presence_error_rate, kind)
    tags = {"sketch.structure": name} | ({} if is_exact else {"sketch.noise_ratio": f"{noise_ratio:g}"})
    label = "exact" if is_exact else f"noise ratio {noise_ratio:g}"
    yield as_candidate(sample, name, label, size, sample.everything, rates, tags)


def _rows_bytes(sample: Sample, presence_error_rate: float, kind: type[Structure]) -> float:
    """Bytes of the rows without their values: a list with timestamps and states, or shapes."""
    if not kind.lists_rows:
        return size_for_rates([shapes_of(sample, sample.everything, presence_error_rate)]).num_bits / 8
    num_columns = 1 if kind.tells_states else 1 + len(sample.features)
    columns = num_columns * packed_bytes(sample.num_entities, 1)
    return index_bytes(sample.num_entities, presence_error_rate) + columns
