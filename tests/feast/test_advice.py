"""What `feast apply` advises, and what `inspect` tells of exact and binned features."""

import logging
import re
from datetime import timedelta

import pytest
from feast import FeatureStore, Field
from feast.types import Array, Float32, Float64, Int64, Json, Set, String

from feast_sketch_store.operations import maintenance
from tests.helpers.cases import for_each
from tests.helpers.repository import SEALED, USER
from tests.helpers.values import make_value, numbers

NEVER = {"compaction": {"min_rows": 10**6}}
BY_HAND = {"compaction": {"min_rows": 0}}


@pytest.fixture
def apply_all(caplog):
    """Applies the view of a harness, or several views together; gives what was advised."""

    def apply(harness, *views):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "feast_sketch_store"):
            harness.store.update(harness.config, [], [*views] or [harness.view], [], [], False)
        return [record.getMessage() for record in caplog.records]

    return apply


@for_each(
    "features",
    [
        {"viewed": Set(String), "country": String},
        *(
            [Field(name="last", dtype=Array(Int64), tags={"sketch.codec": c})]
            for c in ("membership", "exact")
        ),
    ],
)
def test_nothing_is_advised_for_sets_and_categories_or_where_somebody_has_chosen(
    make_harness, caplog, features
):
    make_harness(features)
    assert caplog.messages == []


@pytest.mark.parametrize("dtype", [Array(Int64), Array(Float32)], ids=str)
def test_an_array_may_lose_what_matters(make_harness, caplog, dtype):
    make_harness([Field(name="last", dtype=dtype, tags={"sketch.target": "error 1%"})])
    (message,) = caplog.messages
    assert "these features are Arrays and lose their order and repetitions: history.last" in message
    assert '"sketch.codec": "exact"' in message
    assert ("floats" in message) == (dtype == Array(Float32))


def test_what_the_order_of_an_array_costs_is_told_with_its_bytes(make_harness, apply_all, caplog):
    harness = make_harness({"last": Array(Int64)}, target="auto", **BY_HAND)
    assert "history.last. Where these matter" in caplog.text
    lasts = {user: make_value("int64_list_val", range(user, user + 16)) for user in range(64)}
    harness.write_users({user: {"last": last} for user, last in lasts.items()})
    harness.seal()
    (message,) = apply_all(harness)
    (layer,) = harness.opened.state.sealed.layers
    # 64 rows of 16 elements, each one of 79 values, which takes 7 bits.
    exactly = 64 * 16 * 7 // 8 + layer.features["last"].vocabulary.size_bytes
    now = round(layer.size_bytes_of("last"))
    assert f"history.last (in order at least about {exactly} bytes instead of {now})" in message


def test_the_order_of_few_arrays_costs_no_bytes_that_are_known(make_harness, apply_all):
    harness = make_harness({"last": Array(Int64)}, **BY_HAND)
    harness.write(1, {"last": make_value("int64_list_val", [])})
    harness.seal()
    (message,) = apply_all(harness)
    assert "repetitions: history.last. Where these matter" in message


def test_what_an_exact_feature_takes_is_told(make_harness, make_view, apply_all, caplog):
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
        make_harness(view=make_view([field], name=f"of_{field.name}"), **BY_HAND)
        messages = [message for message in caplog.messages if "kept exactly" in message]
        assert len(messages) == bool(cost)
        if cost:
            assert f"of_{field.name}.{field.name} (" in messages[0]
            assert f", {cost}). " in messages[0]
    harness = make_harness(view=make_view(fields[1:2], name="of_prices"))
    harness.write(1, {"prices": make_value("double_list_val", [0.1] * 1000)})
    assert harness.seal()
    (message,) = apply_all(harness)
    assert re.search(r"of_prices\.prices \(of type Array\(Float64\), \d+ bytes for 1 rows\)\.", message)


def test_shards_of_small_views_are_told_together_with_their_bytes(
    make_harness, make_view, apply_all, monkeypatch
):
    shards = {"first": "4", "second": "4", "whole": "1"}
    views = [make_view({"viewed": Set(Int64)}, name, tags={"sketch.shards": n}) for name, n in shards.items()]
    first, second, whole = (make_harness(view=view, **NEVER) for view in views)
    assert apply_all(first, *views) == []  # nobody knows how many rows will come
    told = []
    for harness in (whole, first, second):
        harness.write_users({user: {"viewed": numbers(*range(10))} for user in range(200)})
        assert harness.seal()
        layers = harness.opened.state.sealed.layers
        copies, size = 3 * layers[0].vocabulary_bytes, sum(layer.size_bytes for layer in layers)
        assert copies > 0
        told.append(f"(2,000 facts in 4 shards; {copies:,} of {size:,} bytes are copies)")
    (message,) = apply_all(first, *views)
    assert message.count("these views have few facts in several shards") == 1
    assert f": first {told[1]}, second {told[2]}. " in message
    assert "`feast-sketch reshard VIEW --shards 1`" in message
    monkeypatch.setattr("feast_sketch_store.adapter.advice._MIN_FACTS", 2_000)
    assert apply_all(first, *views) == []


def test_one_warning_sums_up_what_concerns_many_views(make_harness, make_view, apply_all):
    views = [make_view({"last": Array(Int64)}, f"view_{n}") for n in range(8)]
    harness = make_harness(view=make_view({"x": String}, "other"), **SEALED)
    (message,) = apply_all(harness, *views)
    assert ": view_0.last, view_1.last, view_2.last, view_3.last, view_4.last and 3 more. " in message
    assert message.count('"sketch.codec": "exact"') == 1


def test_inspect_tells_what_exact_and_binned_features_take(make_config, make_harness, make_view):
    fields = [
        Field(name="viewed", dtype=Set(Int64)),
        Field(name="price", dtype=Float64, tags={"sketch.codec": "exact"}),
        Field(name="age", dtype=Int64, tags={"sketch.round": "10"}),
    ]
    store = FeatureStore(config=make_config(**SEALED))
    view = make_view(fields)
    store.apply([USER, view])
    harness, rows = make_harness(view=view, **SEALED), []
    for n in range(300):
        price, age = make_value("double_val", n / 7), make_value("int64_val", n % 100)
        values = {"viewed": numbers(n % 40, n % 7), "price": price, "age": age}
        rows.append((harness.key(user_id=n), values, harness.noon() + timedelta(minutes=n), None))
    harness.write_many(rows)
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
