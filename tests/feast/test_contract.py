"""What a read gives back for what was written, with SQLite as the control wherever both can answer."""

from datetime import UTC, datetime, timedelta, timezone

import pandas as pd
import pytest
from feast import Field
from feast.protos.feast.types.Value_pb2 import Int64List, StringList, Value
from feast.types import Array, Bytes, Int32, Int64, Set, String, UnixTimestamp

from tests.helpers.repository import SEALED, STATES
from tests.helpers.values import country, strings

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
OURS = [*STATES, pytest.param({**SEALED, "default_codec": "exact"}, id="exact")]
STORES = [pytest.param({"type": "sqlite"}, id="sqlite"), *OURS]


@pytest.fixture(params=STORES)
def harness(request, make_harness):
    features = {"viewed": Set(String), "liked": Array(Int64), "country": String}
    return make_harness(features, **request.param)


def test_a_written_row_is_read_back(harness):
    row = {"viewed": strings("a", "b"), "liked": Value(int64_list_val=Int64List(val=[3, 5])), **country("FR")}
    harness.write(1, row)
    timestamp, values = harness.read(1)[0]
    assert timestamp == NOON
    assert set(values) == set(row)
    assert set(values["viewed"].string_set_val.val) == {"a", "b"}
    assert set(values["liked"].int64_list_val.val) == {3, 5}
    assert values["country"] == row["country"]


def test_null_empty_and_missing_are_told_apart(harness):
    null, empty = {"viewed": Value(), **country("")}, {"viewed": strings(), "country": Value()}
    harness.write_users({1: null, 2: empty, 3: country("FR")})
    assert harness.shown(1, 2, 3) == [null, empty, country("FR")]


def test_order_and_duplicate_keys_are_kept(harness):
    for user in range(5):
        harness.write(user, country(f"c{user}"))
    assert harness.countries(3, 0, 3, 9, 4) == ["c3", "c0", "c3", None, "c4"]


@pytest.mark.parametrize("options", OURS)
def test_few_rows_are_as_those_of_many(make_harness, options):
    harness = make_harness({"viewed": Set(String), "country": String}, structure="sets", **options)
    rows = [{"viewed": strings("a", f"v{user}")} for user in range(60)]
    for user in range(0, 60, 3):
        rows[user] |= country(f"c{user}")
    harness.write_users(dict(enumerate(rows)))
    users = [*range(50, 70), *range(50)]
    many = harness.read(*users)
    assert [values for _, values in many] == [rows[user] if user < 60 else None for user in users]
    for features in (None, ["country"]):
        of_many = harness.read(*users, features=features)
        for number in (1, 2, 10, 32):
            assert harness.read(*users[:number], features=features) == of_many[:number]


def test_no_keys_and_no_rows(harness):
    harness.write_many([])
    assert harness.read() == []
    assert harness.read(1) == [(None, None)]


def test_progress_counts_every_row(harness):
    counted = []
    rows = [(harness.key(user_id=i), country("x"), NOON, None) for i in range(7)]
    harness.store.online_write_batch(harness.config, harness.view, rows, counted.append)
    assert sum(counted) == 7


@pytest.mark.parametrize("options", OURS)
class TestBeyondSqlite:
    """Behaviour that SQLite lacks or does differently."""

    def test_only_requested_features_are_read(self, make_harness, options):
        harness = make_harness({"viewed": Set(String), "country": String}, **options)
        harness.write(1, {"viewed": strings("a"), **country("FR")})
        assert set(harness.read(1, features=["country"])[0][1]) == {"country"}
        assert harness.read(1, features=[])[0] == (NOON, {})
        assert harness.read(1, features=["unheard of"])[0] == (NOON, {})

    def test_newest_row_wins_by_event_then_created_then_commit(self, make_harness, options):
        harness = make_harness({"country": String}, **options)

        def write(name, event, created=None):
            harness.write(1, country(name), event, created)
            return harness.countries(1)[0]

        assert write("first", NOON) == "first"
        assert write("older event", NOON - timedelta(seconds=1)) == "first"
        assert write("same event, later commit", NOON) == "same event, later commit"
        assert write("created", NOON, NOON) == "created"
        assert write("created before", NOON, NOON - timedelta(1)) == "created"
        assert write("no created", NOON) == "created"
        assert write("created is no time", NOON, pd.NaT) == "created"
        assert write("newer event", NOON + timedelta(1), NOON - timedelta(9)) == "newer event"
        assert harness.reopened().countries(1) == ["newer event"]

    def test_the_newest_row_of_one_batch_wins(self, make_harness, options):
        harness = make_harness({"country": String}, **options)
        key = harness.key(user_id=1)
        events = [NOON, NOON + timedelta(1), NOON - timedelta(1), NOON + timedelta(1)]
        harness.write_many([(key, country(f"c{n}"), event, None) for n, event in enumerate(events)])
        assert harness.read(1) == [(NOON + timedelta(1), country("c3"))]

    def test_a_row_replaces_all_features_of_the_one_before(self, make_harness, options):
        harness = make_harness({"viewed": Set(String), "country": String}, **options)
        harness.write(1, {"viewed": strings("old"), **country("FR")})
        harness.write(1, {"viewed": strings("new")})
        assert harness.shown(1) == [{"viewed": strings("new")}]

    def test_naive_timestamps_mean_utc_and_zones_are_converted(self, make_harness, options):
        harness = make_harness({"country": String}, **options)
        harness.write(1, country("x"), NOON.replace(tzinfo=None))
        harness.write(2, country("x"), NOON.astimezone(timezone(timedelta(hours=5, minutes=30))))
        harness.write(3, country("x"), pd.Timestamp(NOON), pd.Timestamp(NOON))
        assert [timestamp for timestamp, _ in harness.read(1, 2, 3)] == [NOON] * 3

    def test_event_timestamps_are_never_newer_than_the_truth(self, make_harness, options):
        harness = make_harness({"country": String}, **options)
        truth = {user: NOON + timedelta(microseconds=user) for user in range(300)}
        harness.write_many([(harness.key(user_id=u), country("x"), t, None) for u, t in truth.items()])
        for user, (timestamp, _) in enumerate(harness.read(*truth)):
            assert NOON <= timestamp <= truth[user]


KEY_VALUES = [
    pytest.param(Int64, [Value(int64_val=v) for v in (0, -1, 2**63 - 1, -(2**63))], id="int64"),
    pytest.param(Int32, [Value(int32_val=v) for v in (0, -1, 2**31 - 1, -(2**31))], id="int32"),
    pytest.param(
        String, [Value(string_val=v) for v in ("", "a", "\u00e9", "e\u0301", "x" * 10_000)], id="string"
    ),
    pytest.param(Bytes, [Value(bytes_val=v) for v in (b"", b"\0", b"\0\0", b"\xff")], id="bytes"),
    pytest.param(
        UnixTimestamp, [Value(unix_timestamp_val=v) for v in (0, -1, 1_800_000_000)], id="timestamp"
    ),
]


@pytest.mark.parametrize("options", STORES)
@pytest.mark.parametrize(("key_type", "key_values"), KEY_VALUES)
def test_join_keys_of_every_type(make_harness, make_view, options, key_type, key_values):
    view = make_view({"country": String}, join_keys={"user_id": key_type})
    harness = make_harness(view=view, **options)
    for number, value in enumerate(key_values):
        harness.write(value, country(f"c{number}"))
    assert harness.countries(*key_values) == [f"c{number}" for number in range(len(key_values))]


@pytest.mark.parametrize("options", STORES)
def test_composite_keys_in_any_order(make_harness, make_view, options):
    view = make_view({"country": String}, join_keys={"user_id": Int64, "shop": String})
    harness = make_harness(view=view, **options)
    for user in range(3):
        for shop in ("a", "b"):
            key = harness.key(user_id=user, shop=shop)
            harness.write_many([(key, country(f"{user}{shop}"), NOON, None)])
    swapped = [harness.key(shop="b", user_id=1), harness.key(user_id=2, shop="a"), harness.key(user_id=1)]
    read = [values and values["country"].string_val for _, values in harness.read_keys(swapped)]
    assert read == ["1b", "2a", None]


@pytest.mark.parametrize("options", STORES)
def test_an_entityless_view_has_one_row(make_harness, make_view, options):
    harness = make_harness(view=make_view({"country": String}, entities=[]), **options)
    key = harness.key(__dummy_id="")
    harness.write_many([(key, country("FR"), NOON, None)])
    assert harness.read_keys([key])[0][1] == country("FR")


def test_a_list_feature_of_a_view_with_field_and_entity_names_of_any_kind(make_harness, make_view):
    names = ["a b", "x,y;{}()", "Größe", "count(*)", "select", "a.b", "tab\there"]
    view = make_view([Field(name=name, dtype=Array(String)) for name in names])
    harness = make_harness(view=view, **SEALED)
    row = {name: Value(string_list_val=StringList(val=[name])) for name in names}
    harness.write(1, row)
    assert harness.reopened().read(1)[0][1] == row
