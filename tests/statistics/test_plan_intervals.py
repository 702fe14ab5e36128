"""Intervals of a plan: how often they cover what the whole view takes.

Each of 40 samples, or 10 in the short form, is of a fresh population. An interval of 95 % that holds misses
more than 6 of 40, or 3 of 10, with a probability below 1 % (binomial).
"""

import numpy as np
import pyarrow as pa
import pytest

from feast_sketch_store.layers import FeatureBudget, Goal
from feast_sketch_store.planning.curves import (
    LISTED_HEADER_BYTES,
    bloom,
    clustered,
    header_bytes,
    sets,
    weighted_bloom,
)
from feast_sketch_store.planning.plan import Estimate
from feast_sketch_store.planning.sample import FeatureSample, Sample, total_of
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures.goals import ERROR_RATE, NOISE_RATIO
from tests.helpers.layers import build_layer, rows_with, sets_of
from tests.helpers.length import by_length
from tests.helpers.samples import PRESENCE, feature_of, sample_of

pytestmark = pytest.mark.has_long_form

RUNS, MISSES = by_length((10, 3), (40, 6))
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
    ("make", "width"),
    [
        (lambda sample: sets(sample), 0.1),
        (lambda sample: bloom(sample, 0.01), 0.1),
        (lambda sample: weighted_bloom(sample, 0.1), 0.1),
        (lambda sample: clustered(sample, (1.0,))[-1], 0.15),
    ],
    ids=["sets", "bloom", "weighted bloom", "clusters"],
)
def test_bytes(views, make, width):
    missed, widths = 0, []
    for sample, whole in views:
        planned, real = make(sample).point, make(whole).point
        missed += not planned.memory_low <= real.memory_bytes <= planned.memory_high
        widths.append((planned.memory_high - planned.memory_low) / planned.memory_bytes)
    print(f"missed {missed} of {RUNS}; intervals are {np.mean(widths):.2%} wide")
    assert missed <= MISSES
    assert np.mean(widths) < width


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


def unique(rng, num_entities):
    """Rows whose values nobody else has, and how many each has."""
    lengths = rng.poisson(5, num_entities)
    return lengths, rng.permutation(lengths.sum())


def unequal(rng, num_entities):
    """The same with a few entities that have very many values, among large numbers."""
    lengths = np.minimum(500, rng.pareto(1.1, num_entities) * 2 + 1).astype(np.int64)
    return lengths, rng.integers(0, 2**40, lengths.sum())


def grouped(rng, num_entities):
    """Rows of eight groups, each with values of its own, of different popularity."""
    group, values = rng.integers(0, 8, (num_entities, 1)), np.arange(400)
    likely = np.where(values % 8 == group, 6.0, 0.3) * 2.5 / (1 + values)
    has = rng.random((num_entities, 400)) < np.minimum(0.9, likely)
    return has.sum(1), np.nonzero(has)[1]


def whole_feature(lengths, values):
    vocabulary, ids = Vocabulary.by_popularity(pa.array(values, pa.int64()))
    return FeatureSample(vocabulary, Csr.of_lengths(lengths, ids).distinct())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "num_entities", "error"), [(unique, 800, 0.03), (unequal, 800, 0.03), (grouped, 2_000, 0.06)]
)
def test_bytes_are_those_of_a_seal(shape, num_entities, error):
    """Of all rows, and from a quarter of them."""
    for seed in range(by_length(1, 4)):
        lengths, values = shape(np.random.default_rng(seed), num_entities)
        whole = whole_feature(lengths, values)
        hashes = np.sort(np.random.default_rng(seed).integers(0, 2**64, (num_entities, 2), np.uint64), axis=0)
        rows = rows_with([sets_of("f0", whole.rows, whole.vocabulary.values, "int64_set_val")], hashes)

        def sealed(goal, rows=rows):
            return build_layer(rows, FeatureBudget(PRESENCE, {"f0": goal})).size_bytes

        styles = ("learned_bloom", "sandwiched_bloom", "weighted_bloom")
        listed = [Goal(NOISE_RATIO, 0.1, "sets"), *(Goal(NOISE_RATIO, 1.0, style, 16) for style in styles)]
        others = [Goal(ERROR_RATE, 0.01, "bloom"), Goal(NOISE_RATIO, 1.0, "weighted_bloom")]
        truths = [*map(sealed, listed), *map(sealed, others)]
        for num_sampled in (num_entities, num_entities // 4):
            part = slice(0, lengths[:num_sampled].sum())
            feature = whole_feature(lengths[:num_sampled], values[part])
            known = {"f0": Estimate.exactly(len(whole.rows.ids))}
            sample = Sample(num_entities, PRESENCE, hashes[:num_sampled], {"f0": feature}, known)
            found = [
                sets(sample),
                *clustered(sample, (1.0,)),
                bloom(sample, 0.01),
                weighted_bloom(sample, 1.0),
            ]
            headers = [header_bytes(1) + LISTED_HEADER_BYTES * (n < len(listed)) for n in range(len(found))]
            sizes = [c.point.memory_bytes - header for c, header in zip(found, headers, strict=True)]
            assert sizes == pytest.approx(truths, rel=error)
