"""Sealed rows in several layers: each has a range of entity hashes, and reads go where an entity is."""

import json

import numpy as np
import pytest
from feast.protos.feast.types.Value_pb2 import Int64Set, Value

from feast_sketch_store.layers import FeatureBudget, Goal, HashRange, Shards, SketchLayer, seal
from feast_sketch_store.rows.codecs import EXACT, FeatureCodec
from tests.helpers.keys import user_hashes

VIEWED, PRICE = FeatureCodec("viewed", "int64_set_val"), FeatureCodec("price", "double_val", EXACT)
NUM_USERS = 300
GOALS = {
    "filter": (Goal("error_rate", 1e-9, "bloom"), [VIEWED]),
    "sets": (Goal("error_rate", 0.01, "sets"), [VIEWED]),
    "listed": (Goal("error_rate", 0.01, "sets"), [VIEWED, PRICE]),
}
STRUCTURES = pytest.mark.parametrize("structure", GOALS)
NUM_SHARDS = pytest.mark.parametrize("num_shards", [2, 3, 16])


def values_of(user):
    return {
        "viewed": Value(int64_set_val=Int64Set(val=[n for n in range(20) if user % (n + 1) == 0])),
        "price": Value(double_val=user / 7),
    }


def budget_of(structure):
    goal, codecs = GOALS[structure]
    return FeatureBudget(1e-9, {codec.feature: goal if codec is VIEWED else 0.01 for codec in codecs})


@pytest.fixture(scope="module")
def rows_of(make_rows):
    def make(codecs):
        names = [codec.feature for codec in codecs]
        rows = [(user, {name: values_of(user)[name] for name in names}, user) for user in range(NUM_USERS)]
        return make_rows(rows, codecs)

    return make


def sealed(rows, structure, ranges):
    """A layer for each range, with one numbering of the values for all of them."""
    _, codecs = GOALS[structure]
    order = np.random.default_rng(1).permutation(len(rows))
    batches = [(places, rows.take(places)) for places in np.array_split(order, 7)]

    def layer_of(hash_range, vocabularies):
        layer = seal(rows.keys, batches, codecs, budget_of(structure), vocabularies, hash_range)
        return SketchLayer.from_snapshot(json.loads(json.dumps(layer.description)), layer.arrays)

    whole = layer_of(HashRange(), None)
    joint = {VIEWED.feature: whole.numbering(VIEWED.feature)}
    return whole, Shards(tuple(layer_of(hash_range, joint) for hash_range in ranges), ranges)


def answers_of(layers, asked, names):
    """What is found of each entity in the layers; of timestamps each layer keeps what it can."""
    found = {}
    for layer in layers:
        answer = layer.read(asked, names)
        for name in names:
            feature = answer.features[name]
            values = feature.decoder.values(feature.states, feature.indptr, feature.symbols)
            for place, value in zip(answer.found.tolist(), values, strict=True):
                assert (place, name) not in found
                if value.HasField("int64_set_val"):
                    value = sorted(value.int64_set_val.val)
                found[place, name] = str(value)
    return found


@STRUCTURES
@NUM_SHARDS
def test_shards_answer_as_one_layer_does(rows_of, structure, num_shards):
    rows = rows_of(GOALS[structure][1])
    whole, shards = sealed(rows, structure, HashRange.split(num_shards))
    names = list(whole.codecs)
    # In any order, repeated, and among entities that nobody wrote.
    asked = user_hashes(np.random.default_rng(3).integers(0, 2 * NUM_USERS, 900).tolist())
    assert answers_of(shards.layers, asked, names) == answers_of([whole], asked, names)
    assert shards.have(asked).nonzero()[0].tolist() == whole.read(asked, []).found.tolist()
    assert shards.num_entities == NUM_USERS
    assert all(layer.num_entities < NUM_USERS for layer in shards.layers)
    assert shards.codecs == whole.codecs


def test_a_shard_may_be_empty(rows_of):
    rows = rows_of([VIEWED])
    edge = int(rows.keys.entity_hashes[0, 0])  # the first of all
    whole, shards = sealed(rows, "sets", (HashRange(0, edge), HashRange(edge)))
    assert [layer.num_entities for layer in shards.layers] == [0, NUM_USERS]
    asked = user_hashes(range(NUM_USERS))
    assert answers_of(shards.layers, asked, ["viewed"]) == answers_of([whole], asked, ["viewed"])
    assert shards.have(asked).all()


@pytest.mark.parametrize(
    "ranges",
    [
        (HashRange(0, 10), HashRange(11)),
        (HashRange(0, 10), HashRange(9)),
        (HashRange(10),),
        (HashRange(0, 10),),
        (HashRange(10), HashRange(0, 10)),
    ],
)
def test_ranges_have_all_hashes_once(rows_of, ranges):
    whole, _ = sealed(rows_of([VIEWED]), "sets", (HashRange(),))
    with pytest.raises(ValueError, match="do not cover all hashes"):
        Shards((whole,) * len(ranges), ranges)


def test_a_range_has_some_hashes():
    with pytest.raises(ValueError, match="no hashes from 5 to 5"):
        HashRange(5, 5)


def test_layers_of_different_features_are_no_shards(rows_of):
    one, _ = sealed(rows_of([VIEWED]), "sets", (HashRange(),))
    other, _ = sealed(rows_of([VIEWED, PRICE]), "listed", (HashRange(),))
    with pytest.raises(ValueError, match="different features"):
        Shards((one, other), HashRange.split(2))
