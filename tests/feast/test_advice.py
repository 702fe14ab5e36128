"""What `feast apply` advises, and what `inspect` tells of exact and binned features."""

import logging
import re
from datetime import UTC, datetime, timedelta

import pytest
from feast import Entity, FeatureStore, Field, ValueType
from feast.types import Array, Float32, Float64, Int64, Json, Set, String

from feast_sketch_store import online_store
from feast_sketch_store.operations import maintenance
from tests.helpers.keys import user_key

SEALED = {"compaction": {"min_rows": 0, "share": 1e-9}}


@pytest.fixture
def advised(make_harness, caplog):
    """Applies a view and gives what was advised."""

    def apply(features, **options):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "feast_sketch_store"):
            harness = make_harness(features, **options)
        return harness, [record.getMessage() for record in caplog.records]

    return apply


@pytest.mark.slow
def test_nothing_is_advised_for_sets_and_categories(advised):
    assert advised({"viewed": Set(String), "country": String})[1] == []


@pytest.mark.parametrize("dtype", [Array(Int64), Array(Float32)], ids=str)
def test_an_array_may_lose_what_matters(advised, dtype):
    field = Field(name="last", dtype=dtype, tags={"sketch.target": "error 1%"})
    _, (message,) = advised([field])
    assert "these features are Arrays and lose their order and repetitions: history.last" in message
    assert '"sketch.codec": "exact"' in message
    assert ("floats" in message) == (dtype == Array(Float32))


def test_what_the_order_of_an_array_costs_is_told_with_its_bytes(make_harness, make_view, make_value, caplog):
    harness = make_harness(view=make_view({"last": Array(Int64)}), compaction={"min_rows": 0}, target="auto")
    assert "history.last. Where these matter" in caplog.text
    values = [{"last": make_value("int64_list_val", range(user, user + 16))} for user in range(64)]
    harness.write_many([(harness.key(user_id=n), v, harness.noon(), None) for n, v in enumerate(values)])
    harness.store.seal(harness.config, harness.view)
    (message,) = apply_all(harness, [harness.view], caplog)
    (layer,) = harness.store.view(harness.config, harness.view).state.sealed.layers
    # 64 rows of 16 elements, each one of 79 values, which takes 7 bits.
    exactly = 64 * 16 * 7 // 8 + layer.features["last"].vocabulary.size_bytes
    now = round(layer.size_bytes_of("last"))
    assert f"history.last (in order at least about {exactly} bytes instead of {now})" in message


def test_the_order_of_few_arrays_costs_no_bytes_that_are_known(make_harness, make_view, make_value, caplog):
    harness = make_harness(view=make_view({"last": Array(Int64)}), compaction={"min_rows": 0})
    harness.write(1, {"last": make_value("int64_list_val", [])})
    harness.store.seal(harness.config, harness.view)
    (message,) = apply_all(harness, [harness.view], caplog)
    assert "repetitions: history.last. Where these matter" in message


def test_what_an_exact_feature_takes_is_told(make_harness, make_view, make_value, caplog):
    fields = [
        Field(name="vector", dtype=Array(Float32), vector_index=True, vector_length=768),
        Field(name="prices", dtype=Array(Float64)),
        Field(name="about", dtype=Json),
        Field(name="price", dtype=Float64),
        Field(name="asked", dtype=Array(Float32), tags={"sketch.codec": "exact"}),
    ]
    costs = ["3072 bytes a row", "8 bytes an element", "the bytes of its values", "", ""]
    for field, cost in zip(fields, costs, strict=True):
        caplog.clear()
        harness = make_harness(view=make_view([field], name=f"of_{field.name}"), compaction={"min_rows": 0})
        messages = [message for message in caplog.messages if "kept exactly" in message]
        assert len(messages) == bool(cost)
        if cost:
            assert f"of_{field.name}.{field.name} (" in messages[0]
            assert f", {cost}). " in messages[0]
    view = make_view(fields[1:2], name="of_prices")
    harness = make_harness(view=view)
    harness.write(1, {"prices": make_value("double_list_val", [0.1] * 1000)})
    assert harness.store.seal(harness.config, view)
    (message,) = apply_all(harness, [view], caplog)
    assert re.search(r"of_prices\.prices \(of type Array\(Float64\), \d+ bytes for 1 rows\)\.", message)


def test_shards_of_a_small_view_are_told_with_their_bytes(
    make_harness, make_view, make_value, caplog, monkeypatch
):
    view, whole = make_view({"viewed": Set(Int64)}), make_view({"viewed": Set(Int64)}, "whole")
    view.tags["sketch.shards"] = "4"
    harness = make_harness(view=view, compaction={"min_rows": 10**6})
    assert apply_all(harness, [view, whole], caplog) == []  # nobody knows how many rows will come
    values = {"viewed": make_value("int64_set_val", range(10))}
    for table in (view, whole):
        rows = [(harness.key(user_id=user), values, harness.noon(), None) for user in range(200)]
        harness.store.online_write_batch(harness.config, table, rows, None)
        assert harness.store.seal(harness.config, table)
    (message,) = apply_all(harness, [view, whole], caplog)
    layers = harness.store.view(harness.config, view).state.sealed.layers
    copies, size = 3 * layers[0].vocabulary_bytes, sum(layer.size_bytes for layer in layers)
    assert copies > 0
    assert f"history (2,000 facts in 4 shards; {copies:,} of {size:,} bytes are copies)." in message
    assert "`feast-sketch reshard VIEW --shards 1`" in message
    monkeypatch.setattr("feast_sketch_store.adapter.advice._MIN_FACTS", 2_000)
    assert apply_all(harness, [view, whole], caplog) == []


def test_shards_of_two_small_views_are_told_together(make_harness, make_view, make_value, caplog):
    views = [make_view({"viewed": Set(Int64)}, name) for name in ("first", "second")]
    for view in views:
        view.tags["sketch.shards"] = "4"
    harness = make_harness(view=views[0], compaction={"min_rows": 10**6})
    values = {"viewed": make_value("int64_set_val", range(10))}
    for view in views:
        rows = [(harness.key(user_id=user), values, harness.noon(), None) for user in range(200)]
        harness.store.online_write_batch(harness.config, view, rows, None)
        assert harness.store.seal(harness.config, view)
    (message,) = apply_all(harness, views, caplog)
    assert message.count("these views have few facts in several shards") == 1
    assert re.search(r": first \([^)]*\), second \([^)]*\)\. ", message)


@pytest.mark.parametrize("codec", ["membership", "exact"])
def test_who_has_chosen_is_not_advised(advised, codec):
    assert advised([Field(name="last", dtype=Array(Int64), tags={"sketch.codec": codec})])[1] == []


def apply_all(harness, views, caplog):
    """Apply several views together; gives what was advised."""
    caplog.clear()
    with caplog.at_level(logging.WARNING, "feast_sketch_store"):
        harness.store.update(harness.config, [], views, [], [], False)
    return [record.getMessage() for record in caplog.records]


def test_one_warning_sums_up_what_concerns_many_views(make_harness, make_view, make_value, caplog):
    views = [make_view({"last": Array(Int64)}, f"view_{n}") for n in range(8)]
    harness = make_harness(view=make_view({"x": String}, "other"), **SEALED)
    (message,) = apply_all(harness, views, caplog)
    assert ": view_0.last, view_1.last, view_2.last, view_3.last, view_4.last and 3 more. " in message
    assert message.count('"sketch.codec": "exact"') == 1


def test_inspect_tells_what_exact_and_binned_features_take(make_config, make_view, make_value):
    fields = [
        Field(name="viewed", dtype=Set(Int64)),
        Field(name="price", dtype=Float64, tags={"sketch.codec": "exact"}),
        Field(name="age", dtype=Int64, tags={"sketch.round": "10"}),
    ]
    store = FeatureStore(config=make_config(**SEALED))
    user = Entity(name="user", join_keys=["user_id"], value_type=ValueType.INT64)
    view = make_view(fields)
    store.apply([user, view])
    sketch = online_store.online_store_of(store)
    rows = []
    for n in range(300):
        values = {
            "viewed": make_value("int64_set_val", [n % 40, n % 7]),
            "price": make_value("double_val", n / 7),
            "age": make_value("int64_val", n % 100),
        }
        rows.append((user_key(n), values, view_time(n), None))
    sketch.online_write_batch(store.config, view, rows, None)
    report = maintenance.inspect(store, "history")
    viewed, price, age = sorted(report.features, key=lambda f: ["viewed", "price", "age"].index(f.name))
    assert [f.codec for f in (viewed, price, age)] == ["membership", "exact", "binned"]
    assert (price.vocabulary, price.expected_rate, price.sampled_rate) == (None, 0.0, 0.0)
    assert 300 * 7 <= price.size_bytes <= 300 * 9 + 100
    assert (age.max_error, age.mean_error) == (5, 2.5)
    assert (price.max_error, viewed.max_error) == (None, None)
    # At most 2 of 200,000 samples are expected; more than 12 have a probability of 2e-7.
    assert report.presence_sampled_rate <= 12 / 200_000
    assert maintenance.verify(store, "history").is_sound


def view_time(minutes):
    return datetime(2026, 5, 1, tzinfo=UTC) + timedelta(minutes=minutes)


@pytest.mark.parametrize("options", [SEALED, {}], ids=["sealed", "unsealed"])
def test_rows_need_not_expire(make_harness, make_view, make_value, options):
    view = make_view({"country": String})
    view.ttl = timedelta(hours=1)
    row = {"country": make_value("string_val", "FR")}
    for expire, wanted in ((True, None), (False, row)):
        harness = make_harness(view=view, project=f"expire_{expire}", ttl={"expire": expire}, **options)
        harness.write(1, row)  # at a noon long ago
        assert harness.read(1)[0][1] == wanted
