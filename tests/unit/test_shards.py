"""Sealed rows in several layers: each has a range of entity hashes, and reads go where an entity is."""

import json
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from feast.protos.feast.types.Value_pb2 import Int64Set, Value

from feast_sketch_store import SketchReader, through_sketch
from feast_sketch_store.layers import FeatureBudget, Goal, HashRange, Shards, SketchLayer, seal
from feast_sketch_store.rows.codecs import EXACT, FeatureCodec
from feast_sketch_store.storage.local import LocalStorage
from feast_sketch_store.view.sealing import SealPolicy
from feast_sketch_store.view.settings import FeatureSettings, ViewSettings
from feast_sketch_store.view.view import View
from tests.helpers.keys import user_hashes, user_key

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


def answers_of(answers, names):
    """What is found of each entity, whatever layer has it; of timestamps each layer keeps what it can."""
    found = {}
    for answer in answers:
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
    assert answers_of(shards.read(asked, names), names) == answers_of([whole.read(asked, names)], names)
    assert shards.num_entities == NUM_USERS
    assert all(layer.num_entities < NUM_USERS for layer in shards.layers)
    assert shards.codecs == whole.codecs


def test_a_shard_may_be_empty(rows_of):
    rows = rows_of([VIEWED])
    edge = int(rows.keys.entity_hashes[0, 0])  # the first of all
    whole, shards = sealed(rows, "sets", (HashRange(0, edge), HashRange(edge)))
    assert [layer.num_entities for layer in shards.layers] == [0, NUM_USERS]
    asked = user_hashes(range(NUM_USERS))
    assert answers_of(shards.read(asked, ["viewed"]), ["viewed"]) == answers_of(
        [whole.read(asked, ["viewed"])], ["viewed"]
    )


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


@pytest.fixture
def sharded_view(tmp_path, monkeypatch, rows_of):
    """A sealed view, whose readers find its rows in shards."""

    def make(structure, num_shards):
        goal, codecs = GOALS[structure]
        features = {c.feature: FeatureSettings(c, goal if c is VIEWED else 0.01, 1000) for c in codecs}
        settings = ViewSettings("history", 1e-9, features)
        storage = LocalStorage(tmp_path / "store" / "shop" / "history")
        view = View(storage, settings, SealPolicy(1.0, 10**9), 0.0)
        view.write([(user_key(user), row_of(user, view), at(user), None) for user in range(NUM_USERS)])
        assert view.seal()
        _, shards = sealed(rows_of(codecs), structure, HashRange.split(num_shards))
        monkeypatch.setattr("feast_sketch_store.view.state.open_shards", lambda snapshot: shards)
        return View(storage, settings, SealPolicy(1.0, 10**9), 0.0)

    return make


def row_of(user, view):
    return {name: value for name, value in values_of(user).items() if name in view.settings.features}


def at(microseconds):
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)


@STRUCTURES
@NUM_SHARDS
def test_a_view_reads_through_its_shards(tmp_path, sharded_view, structure, num_shards):
    """Also with unsealed rows on top, of which one is late."""
    view = sharded_view(structure, num_shards)
    newer = row_of(210, view)
    view.write([(user_key(5), newer, at(10_000), None), (user_key(250), newer, at(1), None)])
    view.write([(user_key(NUM_USERS), newer, at(10_000), None)])
    names = [codec.feature for codec in view.codecs]
    found = answers_of(view.read(user_hashes(range(NUM_USERS + 10)), names), names)
    assert len(found) == (NUM_USERS + 1) * len(names)
    for user in range(NUM_USERS):
        expected = sorted(values_of(210 if user == 5 else user)["viewed"].int64_set_val.val)
        assert found[user, "viewed"] == str(expected)
    stats = view.stats()
    assert stats.sealed_entities == NUM_USERS
    assert stats.vocabulary_sizes == {"viewed": 20}


@STRUCTURES
def test_a_reader_gives_the_same_arrays(tmp_path, sharded_view, structure):
    sharded_view(structure, 4)
    reader = SketchReader(tmp_path / "store", "history")
    users = np.random.default_rng(5).integers(0, 2 * NUM_USERS, 500)
    weights = np.random.default_rng(6).normal(size=20)
    shards = reader.csr("viewed", users), reader.scores("viewed", users, weights)
    bits, contains = reader.bits("viewed", users), reader.contains("viewed", users, np.arange(25))
    exists = reader.exists(users)
    assert exists.tolist() == (users < NUM_USERS).tolist()
    expected = [
        sorted(values_of(user)["viewed"].int64_set_val.val) if user < NUM_USERS else []
        for user in users.tolist()
    ]
    values = np.asarray(shards[0].vocabulary)
    parts = np.split(values[shards[0].ids], shards[0].indptr[1:-1])
    assert [sorted(part.tolist()) for part in parts] == expected
    known = [np.isin(values, part) for part in expected]
    np.testing.assert_allclose(shards[1], [weights[mask].sum() for mask in known])
    assert (
        np.unpackbits(bits.view(np.uint8), axis=1, bitorder="little")[:, :20].tolist()
        == np.array(known).astype(int).tolist()
    )
    assert contains.tolist() == [[value in part for value in range(25)] for part in expected]


def test_training_rows_go_through_the_shards(tmp_path, sharded_view):
    pandas = pytest.importorskip("pandas")
    sharded_view("sets", 4)
    rows = pandas.DataFrame({"viewed": [[0, 3, 99], []]})
    shown = through_sketch(rows, SketchReader(tmp_path / "store", "history"), ["viewed"])
    assert [sorted(values) for values in shown["viewed"]] == [[0, 3], []]
