"""Features that imply each other are priced together, as a seal codes them."""

import numpy as np
import pyarrow as pa
import pytest

from feast_sketch_store.layers import Goal
from feast_sketch_store.planning.curves import sets
from feast_sketch_store.structures.goals import NOISE_RATIO
from tests.helpers.samples import draw, feature_of, sample_of, sealed_as_sets, without_header, zipf

NUM_ROWS = 2_000


@pytest.fixture(scope="module")
def chain():
    """Three features: of what is shown most is viewed, and of that some is liked; bool[n, V] each."""
    rng = np.random.default_rng(8)
    shown = draw(zipf(300, 12), NUM_ROWS, 9)
    viewed = shown & (rng.random(shown.shape) < 0.6)
    return [shown, viewed, viewed & (rng.random(shown.shape) < 0.2)]


def test_a_chain_of_features_has_the_size_of_its_seal(chain):
    values = pa.array(np.arange(300))
    layer = sealed_as_sets([(has, values) for has in chain], Goal(NOISE_RATIO, 0.1, "sets"))
    point = sets(sample_of(*map(feature_of, chain))).point
    assert without_header(point) == pytest.approx(layer.size_bytes, rel=0.02)
    assert point.settings == {f"f{number}": {"sketch.structure": "sets"} for number in range(3)}


def test_together_they_cost_less_than_one_by_one(chain):
    together = sets(sample_of(*map(feature_of, chain))).point
    alone = [sets(sample_of(feature_of(has))).point for has in chain]
    facts = [int(has.sum()) for has in chain]
    each = sum(point.table_bits_per_fact * n for point, n in zip(alone, facts, strict=True))
    index = 2 * NUM_ROWS * 24  # bits of two more lists of entities, at most
    assert together.table_bits_per_fact * sum(facts) < 0.95 * (each - index)
