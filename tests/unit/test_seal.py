"""Sealing as a function: rows in, a layer out, wherever it runs."""

import json
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest
from feast.protos.feast.types.Value_pb2 import Int64Set, Value

from feast_sketch_store.errors import SketchStoreError
from feast_sketch_store.layers import Cut, FeatureBudget, Goal, SketchLayer, SketchLayerBuilder
from feast_sketch_store.layers.joint import SharedVocabularies
from feast_sketch_store.rows import spill
from feast_sketch_store.rows.codecs import EMPTY, EXACT, VALUE, FeatureCodec
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures import feature_rows, set_columns
from feast_sketch_store.structures.feature_rows import OrderedRows

VIEWED, PRICE = FeatureCodec("viewed", "int64_set_val"), FeatureCodec("price", "double_val", EXACT)
LIKED = FeatureCodec("liked", "int64_set_val")
NUM_USERS = 300
GOALS = {
    "bloom": Goal("error_rate", 1e-9, "bloom"),
    "weighted_bloom": Goal("noise_ratio", 1e-9, "weighted_bloom"),
    "sets": Goal("error_rate", 0.01, "sets"),
}
STRUCTURES = pytest.mark.parametrize("structure", GOALS)


@pytest.fixture(autouse=True)
def _fixed_salt(monkeypatch):
    monkeypatch.setattr("feast_sketch_store.layers.build.new_salt", lambda: (3, 5))


@pytest.fixture(scope="module")
def rows(make_rows):
    """Users with values from 0 on, the smaller the more popular; user 7 has none of them."""
    values = {
        user: {
            "viewed": Value(int64_set_val=Int64Set(val=[n for n in range(20) if user % (n + 1) == 0])),
            "price": Value(double_val=user / 7),
        }
        for user in range(NUM_USERS)
    }
    return make_rows([(user, v, user) for user, v in values.items()], [VIEWED, PRICE])


def seal(rows, codecs, budget, given=None):
    joint = None if given is None else SharedVocabularies(given)
    return SketchLayerBuilder(rows.keys, codecs, batches_of(rows)).build(budget, joint)


def batches_of(rows):
    """The rows in parts, which do not come in order."""
    order = np.random.default_rng(1).permutation(len(rows))
    return [(indices, rows.take(indices)) for indices in np.array_split(order, 7)]


def items_of(layer, rows, ids_are=None):
    """Per row the values as a set."""
    answer = layer.read(rows.keys.entity_hashes, ["viewed"]).features["viewed"]
    values = answer.vocabulary.values.to_numpy()
    return [set(values[ids].tolist()) for ids in np.split(answer.symbols, answer.indptr[1:-1])]


def written(rows):
    feature = rows.features["viewed"]
    values = feature.vocabulary.values.to_numpy()
    return [set(values[ids].tolist()) for ids in np.split(feature.symbols, feature.indptr[1:-1])]


@STRUCTURES
def test_it_runs_in_any_thread_or_task(rows, structure):
    """What goes in and what comes out can be sent, and tells a layer whole."""
    budget = FeatureBudget(1e-9, {"viewed": GOALS[structure], "price": 0.01})
    arguments = rows, [VIEWED, PRICE], budget
    here = seal(*arguments)
    with ThreadPoolExecutor(1) as pool:
        layer = pool.submit(seal, *pickle.loads(pickle.dumps(arguments))).result()
    (description, arrays), expected = pickle.loads(pickle.dumps(layer.to_snapshot())), here.to_snapshot()
    assert description == expected[0] == json.loads(json.dumps(description))
    assert arrays.keys() == expected[1].keys()
    for name, array in expected[1].items():
        assert array.dtype == arrays[name].dtype
        assert array.tobytes() == arrays[name].tobytes()
    layer = SketchLayer.from_snapshot(description, arrays)
    assert items_of(layer, rows) == written(rows)
    assert here.failed_over == {}


def sharing(make_rows):
    """Users with two features of which one implies the other, and some with neither."""
    values = {}
    for user in range(NUM_USERS):
        viewed = [n for n in range(40) if (user * 13 + n * n) % (n // 4 + 2) == 0]
        values[user] = {
            "viewed": Value(int64_set_val=Int64Set(val=viewed)) if user % 7 else Value(),
            "liked": Value(int64_set_val=Int64Set(val=viewed[::3])),
        }
    return make_rows([(user, v, user) for user, v in values.items()], [VIEWED, LIKED])


@pytest.mark.slow
@pytest.mark.parametrize("goal", [GOALS["sets"], Goal("noise_ratio", 0.1)], ids=["named", "chosen"])
@pytest.mark.parametrize("codecs", [[VIEWED], [VIEWED, LIKED]], ids=["one", "two"])
@pytest.mark.parametrize("is_given", [False, True], ids=["own ids", "given ids"])
def test_a_layer_is_the_same_however_many_rows_are_in_memory(make_rows, monkeypatch, goal, codecs, is_given):
    rows = sharing(make_rows)
    names = [codec.feature for codec in codecs]
    given = {name: Vocabulary(pa.array(np.arange(41)[::-1])) for name in names} if is_given else None
    budget = FeatureBudget(1e-9, dict.fromkeys(names, goal))
    monkeypatch.setattr(set_columns, "_FIT_ROWS", 20)
    description, whole = seal(rows, codecs, budget, given).to_snapshot()
    blocks = []
    real = OrderedRows.blocks
    monkeypatch.setattr(
        OrderedRows, "blocks", lambda ordered: blocks.append(len(ordered.starts)) or real(ordered)
    )
    monkeypatch.setattr(feature_rows, "BLOCK_FACTS", 100)
    for memory_bytes in (0, 1_000, 10**6):
        monkeypatch.setattr(spill, "MEMORY_BYTES", memory_bytes)
        own, parts = seal(rows, codecs, budget, given).to_snapshot()
        assert own == description
        for name, array in whole.items():
            assert array.tobytes() == parts[name].tobytes()
    assert min(blocks) > 5


@pytest.mark.parametrize(
    ("goal", "limit", "structure", "is_told"),
    [
        (Goal("error_rate", 1e-9, "bloom"), 20, "bloom", False),
        (Goal("error_rate", 1e-9, "bloom"), 19, "sets", True),
        (Goal("noise_ratio", 1.0, "learned_bloom", 2), 19, "sets", True),
        (Goal("memory", 4000.0, "bloom"), 19, "sets", True),
        (Goal("error_rate", 1e-9, "sets"), 19, "sets", False),
        (Goal("error_rate", 0.5), 19, "sets", False),
    ],
    ids=str,
)
def test_a_filter_with_too_many_values_becomes_sets(rows, goal, limit, structure, is_told):
    budget = FeatureBudget(1e-9, {"viewed": goal}, max_vocabulary={"viewed": limit})
    sealed = seal(rows, [VIEWED], budget)
    layer = SketchLayer.from_snapshot(*sealed.to_snapshot())
    assert layer.features["viewed"].structure == structure
    assert sealed.failed_over.keys() == ({"viewed"} if is_told else set())
    if is_told:
        assert "it has 20 different values" in sealed.failed_over["viewed"]
        assert "max_vocabulary = 19" in sealed.failed_over["viewed"]


def test_the_limit_counts_the_values_that_a_cut_leaves(rows):
    goal, cuts = Goal("error_rate", 1e-9, "bloom"), {"viewed": Cut(top=5)}
    budget = FeatureBudget(1e-9, {"viewed": goal}, cuts=cuts, max_vocabulary={"viewed": 5})
    sealed = seal(rows, [VIEWED], budget)
    layer = SketchLayer.from_snapshot(*sealed.to_snapshot())
    assert layer.features["viewed"].structure == "bloom"


def test_a_scalar_with_too_many_values_becomes_a_column(make_rows):
    city = FeatureCodec("city", "string_val")
    values = [
        {
            "viewed": Value(int64_set_val=Int64Set(val=[user % 3])),
            "city": Value(string_val=f"city {user % 9}"),
        }
        for user in range(90)
    ]
    rows = make_rows([(user, own, user) for user, own in enumerate(values)], [VIEWED, city])
    for limit, structures in ((9, ["bloom", "bloom"]), (8, ["bloom", "column"])):
        targets = {"viewed": Goal("error_rate", 1e-3, "bloom"), "city": 1e-5}
        budget = FeatureBudget(1e-9, targets, max_vocabulary={"viewed": limit, "city": limit})
        sealed = seal(rows, [VIEWED, city], budget)
        layer = SketchLayer.from_snapshot(*sealed.to_snapshot())
        assert [layer.features[name].structure for name in ("viewed", "city")] == structures
        assert sealed.failed_over == {}


def test_it_tells_what_is_not_kept_as_it_is_wanted(rows):
    budget = FeatureBudget(1e-9, {"viewed": Goal("noise_ratio", 1e-40, "weighted_bloom"), "price": 0.01})
    sealed = seal(rows, [VIEWED, PRICE], budget)
    assert sealed.failed_over == {"viewed": "no filter keeps a noise_ratio of 1e-40"}


@STRUCTURES
@pytest.mark.parametrize("beside", [[], [PRICE]], ids=["alone", "beside an exact feature"])
def test_ids_are_those_of_a_vocabulary_that_is_given(rows, structure, beside):
    """Whatever is popular among these rows; some of its values none of them has."""
    given = Vocabulary(pa.array(np.random.default_rng(2).permutation(np.arange(-5, 25))))
    codecs = [VIEWED, *beside]
    budget = FeatureBudget(1e-9, {"viewed": GOALS[structure], "price": 0.01})
    sealed = seal(rows, codecs, budget, {"viewed": given})
    layer = SketchLayer.from_snapshot(*sealed.to_snapshot())
    feature = layer.features["viewed"]
    assert feature.vocabulary.values.equals(given.values)
    assert feature.structure == structure
    assert feature.num_facts == sum(map(len, written(rows)))
    assert items_of(layer, rows) == written(rows)
    assert list(layer.missing(rows.take(np.arange(len(rows))) if beside else _only_viewed(rows))) == []


def _only_viewed(rows):
    return type(rows)(rows.keys, {"viewed": rows.features["viewed"]})


@STRUCTURES
def test_a_value_outside_of_the_vocabulary_is_refused(rows, structure):
    budget = FeatureBudget(1e-9, {"viewed": GOALS[structure]})
    with pytest.raises(ValueError, match="'viewed' has 2 values outside of the given vocabulary"):
        seal(rows, [VIEWED], budget, {"viewed": Vocabulary(pa.array(np.arange(18)))})


@STRUCTURES
def test_a_cut_keeps_the_vocabulary_that_is_given(rows, structure):
    """What another layer of the view has cut is cut here, however frequent it is in these rows."""
    given = Vocabulary(pa.array([19, 4, 100]))
    budget = FeatureBudget(1e-9, {"viewed": GOALS[structure]}, cuts={"viewed": Cut(top=1)})
    sealed = seal(rows, [VIEWED], budget, {"viewed": given})
    layer = SketchLayer.from_snapshot(*sealed.to_snapshot())
    kept = [items & {19, 4, 100} for items in written(rows)]
    assert items_of(layer, rows) == kept
    states = layer.read(rows.keys.entity_hashes, ["viewed"]).features["viewed"].states
    assert states.tolist() == [VALUE if items else EMPTY for items in kept]
    assert layer.cut == {"viewed": sum(map(len, written(rows))) - sum(map(len, kept))}
    assert layer.features["viewed"].num_facts == sum(map(len, kept))


def test_more_rows_than_places_can_tell_apart_are_refused(rows, monkeypatch):
    monkeypatch.setattr("feast_sketch_store.layers.build.MAX_ROWS", NUM_USERS)
    budget = FeatureBudget(1e-9, {"viewed": GOALS["sets"]})
    seal(rows, [VIEWED, PRICE], budget)
    monkeypatch.setattr("feast_sketch_store.layers.build.MAX_ROWS", NUM_USERS - 1)
    with pytest.raises(SketchStoreError, match="300 entities have rows, and a seal takes at most 299"):
        seal(rows, [VIEWED, PRICE], budget)
