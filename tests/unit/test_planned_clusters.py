"""The plan's points of clustered filters are what a seal makes."""

import numpy as np
import pyarrow as pa
import pytest

from feast_sketch_store.layers import Goal
from feast_sketch_store.planning.curves import clustered, weighted_bloom
from feast_sketch_store.structures.goals import NOISE_RATIO
from tests.helpers.samples import feature_of, sample_of, sealed_as_sets, without_header

NUM_ROWS = 6_000
STYLES = ("learned_bloom", "sandwiched_bloom", "weighted_bloom, 16 clusters")


@pytest.fixture(scope="module")
def tastes():
    """Who has which of 400 values, most of them those of one of eight groups: bool[n, V]."""
    rng = np.random.default_rng(4)
    popularity = 1 / np.arange(1, 401)
    groups = rng.integers(0, 8, NUM_ROWS)
    factor = np.where(np.arange(400) % 8 == groups[:, None], 6.0, 0.3)
    return rng.random((NUM_ROWS, 400)) < np.minimum(0.9, 2.5 * popularity * factor)


@pytest.fixture(scope="module")
def sealed(tastes):
    """The layers of each style, at a false value for each true one."""
    return {
        style: sealed_as_sets(
            [(tastes, pa.array(np.arange(400)))], Goal(NOISE_RATIO, 1.0, style.split(",")[0], 16)
        )
        for style in STYLES
    }


@pytest.mark.slow
@pytest.mark.parametrize(("num_sampled", "error"), [(NUM_ROWS, 0.01), (NUM_ROWS // 2, 0.05)])
def test_sizes_and_noise_are_those_of_a_seal(tastes, sealed, num_sampled, error):
    sample = sample_of(feature_of(tastes[:num_sampled]), num_entities=NUM_ROWS)
    found = {c.point.curve: c for c in clustered(sample, (1.0,))}
    assert tuple(found) == STYLES
    for style, candidate in found.items():
        size = without_header(candidate.point)
        assert size == pytest.approx(sealed[style].size_bytes, rel=error)
        assert 0.9 < candidate.point.noise_ratio <= 1.0 + 1e-6


def test_clusters_save_where_there_are_groups(tastes):
    sample = sample_of(feature_of(tastes))
    sizes = [c.point.table_bits_per_fact for c in clustered(sample, (1.0,))[2:]]
    without = weighted_bloom(sample, 1.0).point.table_bits_per_fact
    assert sizes[0] < 0.9 * without


def test_settings_are_those_of_the_point(tastes):
    points = [c.point for c in clustered(sample_of(feature_of(tastes)), (4.0, 1.0))]
    assert [point.label for point in points] == ["noise ratio 4", "noise ratio 1"] * 3
    assert points[-1].settings == {
        "f0": {"sketch.structure": "weighted_bloom", "sketch.target": "noise 1", "sketch.clusters": "16"}
    }
