"""Points of scores: bytes are those of a seal, and AUCs those of a model that reads them."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from feast_sketch_store.layers import Cut, FeatureBudget, Goal, SketchLayerBuilder
from feast_sketch_store.layers.sketch import SketchLayer
from feast_sketch_store.planning.curves import SETS, sets
from feast_sketch_store.planning.labels import Labels
from feast_sketch_store.planning.models import Task
from feast_sketch_store.planning.scores import SCORE_CURVE, as_encoded, score_name, scores
from feast_sketch_store.rows.codecs import SCORE, FeatureCodec
from feast_sketch_store.rows.formulas import with_formulas
from feast_sketch_store.structures.base import weighted_sums
from feast_sketch_store.structures.goals import NOISE_RATIO
from tests.helpers.layers import rows_with
from tests.helpers.samples import PRESENCE, draw, feature_of, sample_of, without_header, zipf

pytestmark = pytest.mark.slow

NUM_ROWS, NUM_VALUES, NUM_GROUPS = 3_000, 120, 4


@pytest.fixture(scope="module")
def people():
    """Who has which of 120 values, most of them those of one of four groups, and twelve others."""
    rng = np.random.default_rng(4)
    groups = rng.integers(0, NUM_GROUPS, NUM_ROWS)
    share = np.where(np.arange(NUM_VALUES) % NUM_GROUPS == groups[:, None], 0.2, 0.01)
    has = rng.random((NUM_ROWS, NUM_VALUES)) < share
    return groups, sample_of(feature_of(has), feature_of(draw(zipf(12, 2), NUM_ROWS, 5)))


@pytest.fixture(scope="module")
def task(people):
    """Labels that many values decide, each a little; and the group of a person."""
    groups, sample = people
    rng = np.random.default_rng(6)
    feature = sample.features["f0"]
    logits = weighted_sums(feature.rows, rng.normal(0, 0.8, len(feature.vocabulary))) + np.where(
        groups == 0, 2.0, 0.0
    )
    label = rng.random(NUM_ROWS) < 1 / (1 + np.exp(-logits + logits.mean()))
    table = pa.table({"label": label.astype(np.int64)})
    return Task(Labels.read(table, sample.entity_hashes, []), sample, sample)


@pytest.fixture(scope="module")
def written():
    return {}


@pytest.fixture(scope="module")
def of_scores(people, task, written):
    def write(weights, number):
        written[number] = {name: (len(values), len(own)) for name, (values, own) in weights.items()}
        return f"plans/{number}.json"

    return list(scores(people[1], task.weights(), "model_score", write))


def sealed(sample, candidate):
    """What a seal makes of the rows, with the settings of a point."""
    order = np.lexsort((sample.entity_hashes[:, 1], sample.entity_hashes[:, 0]))
    features = {name: feature.take(order) for name, feature in as_encoded(sample).items()}
    rows = rows_with(features.values(), sample.entity_hashes[order])
    formulas = {formula.codec.feature: formula for formula in candidate.formulas}
    rows = with_formulas(rows, formulas)
    goals = {name: Goal(NOISE_RATIO, 0.1, SETS) for name in features} | dict.fromkeys(formulas, 1e-6)
    cuts = {
        name: Cut(values=features[name].vocabulary.values.filter(pa.array(mask)))
        for name, mask in candidate.kept.items()
    }
    budget = FeatureBudget(PRESENCE, goals, cuts=cuts)
    codecs = [feature.codec for feature in rows.features.values()]
    layer = SketchLayerBuilder(rows.keys, codecs, [(np.arange(len(rows)), rows)]).build(budget)
    layer = replace(layer, formulas=formulas)
    return SketchLayer.from_snapshot(*layer.to_snapshot())


def test_bytes_are_those_of_a_seal(people, of_scores):
    for candidate in of_scores:
        size = sealed(people[1], candidate).size_bytes
        assert without_header(candidate.point) == pytest.approx(size, rel=0.05)


def test_a_score_keeps_what_sets_keep_at_a_fraction_of_their_bytes(people, task, of_scores):
    assert [candidate.point.curve for candidate in of_scores] == [SCORE_CURVE] * 4
    best = of_scores[-1]
    kept = [task.uplift(task.area(c.kept, c.rates, c.formulas)) for c in of_scores]
    exact = sets(people[1])
    assert kept[-1].value > 0.5 > kept[0].value
    assert all(estimate.low <= estimate.value <= estimate.high for estimate in kept)
    assert task.uplift(task.area(exact.kept, exact.rates)).value == 1.0
    ours, theirs = (without_header(point) for point in (best.point, exact.point))
    assert ours < 0.5 * theirs
    assert best.point.kept_share == 0.0


def test_a_score_keeps_a_part_of_the_gain_where_weights_fit_the_training_rows_by_chance():
    """300 rows decide 300 weights. A coefficient fitted to the same rows would hide the context."""
    rng = np.random.default_rng(8)
    feature = feature_of(rng.random((NUM_ROWS, 300)) < 0.1)
    context = rng.normal(0, 1, NUM_ROWS)
    logits = 1.5 * context + weighted_sums(feature.rows, rng.normal(0, 0.3, len(feature.vocabulary)))
    label = rng.random(NUM_ROWS) < 1 / (1 + np.exp(-logits))
    split = np.where(np.arange(NUM_ROWS) < 300, "train", "test")
    table = pa.table({"label": label.astype(np.int64), "split": split, "context": context})
    sample = sample_of(feature)
    task = Task(Labels.read(table, sample.entity_hashes, []), sample, sample)
    found = scores(sample, task.weights(), "score", lambda weights, number: "")
    aucs = [task.area(c.kept, c.rates, c.formulas).auc.value for c in found]
    exact = task.area(sample.everything, {"f0": np.zeros(300)}).auc
    assert task.without.auc.value < aucs[0] < aucs[1] < aucs[2] < aucs[3] < exact.value


def test_settings_can_be_pasted(of_scores, written):
    nothing = {"sketch.structure": "sets", "sketch.vocabulary": "[]"}
    number = max(written)
    assert sum(length for length, _ in written[number].values()) == number
    assert of_scores[-1].point.settings == {
        "f0": nothing,
        "f1": nothing,
        "model_score": {
            "sketch.codec": "score",
            "sketch.score": f"{{of: [f0, f1], weights: plans/{number}.json, bits: 6}}",
        },
    }


def test_the_name_is_that_of_the_view_or_a_new_one():
    viewed = FeatureCodec("viewed", "int64_set_val")
    assert score_name([viewed]) == "model_score"
    assert score_name([viewed, FeatureCodec("worth", "double_val", SCORE)]) == "worth"
    assert score_name([FeatureCodec("model_score", "string_val")]) == "model_score_"
