"""Intervals of a plan: how often they cover what the whole view takes.

Each of 40 samples, or 20 in the short form, is of a fresh population. An interval of 95 % that holds misses
more than 6 of 40, or 4 of 20, with a probability below 1 % (binomial).
"""

import numpy as np
import pytest

from feast_sketch_store.planning.curves import bloom, sets, weighted_bloom
from feast_sketch_store.planning.plan import Estimate
from feast_sketch_store.planning.sample import Sample, total_of
from tests.helpers.length import by_length
from tests.unit.test_planning import PRESENCE, feature_of, sample_of

pytestmark = pytest.mark.has_long_form

RUNS, MISSES = by_length((20, 4), (40, 6))
NUM_ENTITIES, NUM_SAMPLED, NUM_VALUES = 4_000, 1_000, 400


def population(rng):
    """Entities of different activity, values of different popularity: bool[n, V]."""
    popularity = np.minimum(1, 30 / np.arange(1, NUM_VALUES + 1))
    activity = rng.gamma(1.0, 1.0, NUM_ENTITIES)
    return rng.random((NUM_ENTITIES, NUM_VALUES)) < np.minimum(0.9, 0.1 * activity[:, None] * popularity)


@pytest.fixture(scope="module")
def views():
    """Per run the sample, with the facts of the view known, and the view as a whole."""
    rng, views = np.random.default_rng(21), []
    for _ in range(RUNS):
        has = population(rng)
        known = {"f0": Estimate.exactly(has.sum())}
        part = sample_of(feature_of(has[:NUM_SAMPLED]), num_entities=NUM_ENTITIES)
        sample = Sample(NUM_ENTITIES, PRESENCE, part.entity_hashes, part.features, known)
        views.append((sample, sample_of(feature_of(has))))
    return views


@pytest.mark.parametrize(
    "make",
    [
        lambda sample: sets(sample),
        lambda sample: bloom(sample, 0.01),
        lambda sample: weighted_bloom(sample, 0.1),
    ],
    ids=["sets", "bloom", "weighted bloom"],
)
def test_bytes(views, make):
    missed, widths = 0, []
    for sample, whole in views:
        planned, real = make(sample).point, make(whole).point
        missed += not planned.memory_low <= real.memory_bytes <= planned.memory_high
        widths.append((planned.memory_high - planned.memory_low) / planned.memory_bytes)
    print(f"missed {missed} of {RUNS}; intervals are {np.mean(widths):.2%} wide")
    assert missed <= MISSES
    assert np.mean(widths) < 0.1


def test_facts_of_rows_that_repeat_values():
    rng, missed = np.random.default_rng(22), 0
    for _ in range(RUNS):
        distinct = rng.integers(0, 40, NUM_ENTITIES)
        elements = distinct + rng.binomial(distinct, 0.3)
        part = slice(0, NUM_SAMPLED)
        estimate = total_of(distinct[part], elements[part], int(elements.sum()), NUM_ENTITIES)
        missed += not estimate.low <= distinct.sum() <= estimate.high
        assert estimate.high - estimate.low < 0.02 * distinct.sum()
    assert missed <= MISSES


def test_facts_by_the_mean_of_the_sample(views):
    missed = 0
    for sample, whole in views:
        estimate = Sample(NUM_ENTITIES, PRESENCE, sample.entity_hashes, sample.features).facts
        missed += not estimate.low <= whole.num_facts <= estimate.high
    assert missed <= MISSES
