"""Rows and deletions have the join keys of their view, or nothing of them is written."""

from dataclasses import replace

import pytest
from feast import Entity, FeatureStore, ValueType
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import Value
from feast.types import Int32, Int64, String

from feast_sketch_store.errors import RowError
from feast_sketch_store.online_store import online_store_of
from feast_sketch_store.operations import maintenance
from feast_sketch_store.operations.entity_history import entity_history
from tests.helpers import repository
from tests.helpers.repository import STATES
from tests.helpers.values import country

FRANCE = country("FR")

# Keys that are none of a view over `user_id`, an Int64, and what their errors say.
WRONG_KEYS = {
    "another type": ({"user_id": "one"}, r"keyed by user_id \(string\).*by user_id \(int64\)"),
    "a narrower type": ({"user_id": Value(int32_val=1)}, r"keyed by user_id \(int32\).*by user_id \(int64\)"),
    "no value": ({"user_id": Value()}, "has a null or NaN in the join key user_id"),
    "another name": ({"member_id": 1}, r"keyed by member_id \(int64\).*by user_id \(int64\)"),
    "one too many": ({"user_id": 1, "item_id": 2}, r"keyed by item_id \(int64\), user_id \(int64\)"),
    "none": ({}, r"keyed by nothing.*by user_id \(int64\)"),
}


def attempt(harness, what, key):
    """Write or delete an entity directly, as a stream processor or an operator might."""
    if what == "write":
        harness.write_many([(key, FRANCE, harness.noon(), None)])
    else:
        harness.store.delete(harness.config, harness.view, [key])


@pytest.mark.parametrize("options", STATES)
@pytest.mark.parametrize("what", ["write", "delete"])
@pytest.mark.parametrize("wrong", WRONG_KEYS)
def test_wrong_keys_are_refused_and_spoil_nothing(make_harness, options, what, wrong):
    harness = make_harness({"country": String}, **options)
    key, reported = harness.key(**WRONG_KEYS[wrong][0]), WRONG_KEYS[wrong][1]
    for _ in range(2):  # of an empty view, and of one with rows
        with pytest.raises(RowError, match=rf"'history'.*row 0 .*{reported}"):
            attempt(harness, what, key)
        harness.write(1, FRANCE)
        assert harness.reopened().read(1)[0][1] == FRANCE
    harness.delete(1)
    assert harness.reopened().read(1) == [(None, None)]


def test_a_key_that_names_a_join_key_twice_is_refused(make_harness):
    harness = make_harness({"country": String})
    twice = EntityKey(join_keys=["user_id"] * 2, entity_values=[Value(int64_val=1), Value(int64_val=2)])
    with pytest.raises(RowError, match=r"'history'.*row 0 .*names user_id twice"):
        attempt(harness, "write", twice)
    assert harness.read(1) == [(None, None)]


def test_the_message_names_the_first_wrong_row_of_a_batch(make_harness):
    harness = make_harness({"country": String})
    keys = [harness.key(user_id=user) for user in (1, 2, "three", "four")]
    with pytest.raises(RowError, match="row 2 "):
        harness.write_many([(key, FRANCE, harness.noon(), None) for key in keys])
    assert not (harness.folder / "rows").exists()


def entity(name, value_type=ValueType.INT64):
    return Entity(name=name, join_keys=[f"{name}_id"], value_type=value_type)


@pytest.fixture
def make_applied(make_config, make_harness):
    """Applies a view over some entities and gives a harness of it, as the registry has it."""

    def make(*entities, **schema):
        store = FeatureStore(config=make_config())
        schema = {"country": String, **schema}
        store.apply([*entities, repository.make_view(schema, entities=entities)])
        view, online = store.get_feature_view("history"), online_store_of(store)
        return replace(make_harness({"country": String}), config=store.config, store=online, view=view)

    return make


def test_keys_of_several_entities_are_taken_in_any_order(make_applied):
    harness = make_applied(entity("user"), entity("shop", ValueType.STRING), entity("day", ValueType.INT32))
    day = Value(int32_val=3)
    for number, key in enumerate(
        [{"user_id": 1, "shop_id": "a", "day_id": day}, {"day_id": day, "shop_id": "b", "user_id": 1}]
    ):
        harness.write_many([(harness.key(**key), FRANCE, harness.noon(number), None)])
        assert harness.read_keys([harness.key(**key)])[0][1] == FRANCE
    with pytest.raises(RowError, match=r"day_id \(int64\).*day_id \(int32\)"):
        harness.write_many([(harness.key(user_id=1, shop_id="c", day_id=3), FRANCE, harness.noon(), None)])


def test_a_view_without_entities_takes_feasts_own_key_only(make_applied):
    harness = make_applied()
    key = harness.key(__dummy_id="")
    with pytest.raises(RowError, match="user_id"):
        harness.write(1, FRANCE)
    harness.write_many([(key, FRANCE, harness.noon(), None)])
    assert harness.read_keys([key])[0][1] == FRANCE


def test_empty_bytes_are_a_key_as_others_are(make_applied):
    harness = make_applied(entity("user", ValueType.BYTES))
    keys = [harness.key(user_id=Value(bytes_val=key)) for key in (b"", b"a")]
    harness.write_many([(key, FRANCE, harness.noon(), None) for key in keys])
    store = FeatureStore(config=harness.config)
    assert len(entity_history(store, "history", {"user_id": b""}).rows) == 1
    assert maintenance.delete(store, "history", [{"user_id": b""}]).found == 1
    assert [row for _, row in harness.reopened().read_keys(keys)] == [None, FRANCE]


def test_the_type_of_an_entity_may_be_left_to_the_schema(make_applied):
    with pytest.warns(DeprecationWarning, match="value_type"):
        user = Entity(name="user", join_keys=["user_id"])
    harness = make_applied(user, user_id=Int32)
    with pytest.raises(RowError, match=r"user_id \(int64\).*user_id \(int32\)"):
        harness.write(1, FRANCE)
    harness.write(Value(int32_val=1), FRANCE)
    assert harness.read(Value(int32_val=1))[0][1] == FRANCE


def test_a_view_that_does_not_tell_its_keys_takes_what_comes(make_harness, make_view):
    """As one that was never applied, of an entity whose type only its source knows."""
    with pytest.warns(DeprecationWarning, match="value_type"):
        user = Entity(name="user", join_keys=["user_id"])
    view = make_view({"country": String}, entities=[user])
    assert view.entity_columns == []
    harness = make_harness(view=view)
    harness.write("one", FRANCE)
    assert harness.read("one")[0][1] == FRANCE
    with pytest.raises(RowError, match="cannot change its type"):
        harness.write(1, FRANCE)


def test_a_batch_of_usual_keys_is_not_looked_at_key_by_key(make_harness, monkeypatch):
    def fail(*_):
        raise AssertionError("each key was looked at")

    monkeypatch.setattr("feast_sketch_store.rows.encoding.check_join_keys", fail)
    harness = make_harness({"country": String})
    assert [field.dtype for field in harness.view.entity_columns] == [Int64]
    harness.write(1, FRANCE)
    harness.delete(2)
    assert harness.read(1)[0][1] == FRANCE
