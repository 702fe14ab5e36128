"""Lists through Feast: written in all ways that Feast has, read by all readers."""

import asyncio
import logging
from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from feast import FeatureStore, Field
from feast.errors import FeatureViewVersionNotFound
from feast.on_demand_feature_view import on_demand_feature_view
from feast.types import Array, Int64, String, UnixTimestamp

from feast_sketch_store import Lists, SketchReader, open_view, through_sketch
from feast_sketch_store.errors import RowError, SettingsError, StorageError, UnsupportedFeatureError
from feast_sketch_store.operations import maintenance
from tests.helpers.length import combined
from tests.helpers.processes import answering
from tests.helpers.repository import USER, another, make_repository, make_view, read_users

NOW = datetime.now(UTC).replace(microsecond=0, second=0)
TTL = timedelta(days=30)
VERSIONED = {"path": "registry.db", "enable_online_feature_view_versioning": True}
LIST = {"sketch.codec": "list", "sketch.list": "{resolution: 1h, limit: 4}"}


# Python represents them where they are given, and not in UTC.
TOO_LATE = datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-12)))
TOO_EARLY = datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))


def ago(**units):
    return NOW - timedelta(**units)


def list_view(tags=LIST, times=True, fields=(), ttl=TTL, **more):
    schema = [Field(name="read", dtype=Array(String), tags=tags)]
    if times:
        tags = {"sketch.of": "read"}
        schema.append(Field(name="read_at", dtype=Array(UnixTimestamp), tags=tags))
    return make_view([*schema, *fields], pushed="reads", ttl=ttl, **more)


@pytest.fixture
def make_store(tmp_path):
    """Makes a repository with one view of lists."""

    def make(*views, **options):
        rows = frame([(1, ["a", "b"], [ago(days=3), ago(days=2)], ago(days=2))])
        options = {"project": "news", "refresh": 0, "compaction": {"min_rows": 9999}, **options}
        return make_repository(tmp_path, *(views or [list_view()]), rows=rows, **options)

    return make


@pytest.fixture
def store(make_store):
    return make_store()


def frame(rows):
    users, items, times, events = zip(*rows, strict=True)
    columns = {"user_id": users, "read": items, "event": pd.to_datetime(list(events))}
    if times[0] is not None:
        columns["read_at"] = [[t.replace(tzinfo=None) for t in row] for row in times]
    return pd.DataFrame(columns)


def read(store, users=(1, 2)):
    answer = read_users(store, ["history:read", "history:read_at"], users)
    return answer["read"], answer["read_at"]


def test_materialize_push_and_write_append(store):
    store.materialize(NOW - timedelta(days=9), NOW + timedelta(days=1))
    items, times = read(store)
    assert items == [["b", "a"], None]
    assert [t.replace(tzinfo=UTC) for t in times[0]] == [ago(days=2), ago(days=3)]
    store.push("reads", frame([(1, ["c"], [ago(days=1)], NOW), (2, ["c"], [ago(hours=2)], NOW)]))
    store.write_to_online_store("history", frame([(1, ["late"], [ago(days=2, hours=12)], ago(days=5))]))
    assert read(store)[0] == [["c", "b", "late", "a"], ["c"]]
    # A write that comes twice adds nothing, and the limit is that of the list.
    store.push("reads", frame([(1, ["c"], [ago(days=1)], NOW)]))
    store.push("reads", frame([(1, ["d"], [NOW], NOW)]))
    assert read(store)[0][0] == ["d", "c", "b", "late"]


@pytest.mark.parametrize("sealed", [False, True])
def test_the_timestamp_of_a_row_never_goes_backwards(store, sealed):
    lists = Lists(store, "history", "read")

    def timestamp():
        answer = store.get_online_features(["history:read"], [{"user_id": 1}]).proto
        return answer.results[-1].event_timestamps[0].ToDatetime(UTC)

    lists.add([1], ["a"], [ago(hours=5)])
    for late in (ago(hours=9), ago(days=3)):
        if sealed:
            assert open_view(store, "history").seal()
        lists.add([1], ["late"], [late])
        assert timestamp() == ago(hours=5)
    lists.remove([1], "a")
    assert timestamp() == ago(hours=5)
    lists.add([1], ["b"], [ago(hours=1)])
    assert timestamp() == ago(hours=1)


def test_items_without_times_of_their_own_have_that_of_their_row(make_store, tmp_path):
    store = make_store(list_view(times=False))
    store.write_to_online_store("history", frame([(1, ["a", "b"], None, ago(days=1))]))
    store.write_to_online_store("history", frame([(1, ["c"], None, ago(days=2))]))
    assert read_users(store, ["history:read"], [1])["read"] == [["b", "a", "c"]]
    assert SketchReader(store.repo_path, "history").lists("read", [1]).timestamps.tolist() == [
        moment.replace(tzinfo=None) for moment in (ago(days=1), ago(days=1), ago(days=2))
    ]


def update(store, rows, expression):
    asyncio.run(store.update_online_store("history", frame(rows), {"read": expression}))


def test_update_expressions_append_prepend_and_replace(store):
    update(store, [(1, ["a"], [ago(hours=9)], NOW)], "list_append(read, :new_val)")
    update(store, [(1, ["b"], [ago(hours=8)], NOW)], "list_append(:new_val, read)")
    assert read(store)[0][0] == ["b", "a"]
    update(store, [(1, ["x", "y"], [ago(hours=5), ago(hours=7)], NOW)], ":new_val")
    assert read(store)[0][0] == ["x", "y"]
    for sealed in (False, True):
        if sealed:
            open_view(store, "history").seal()
        update(store, [(1, ["z"], [ago(hours=6)], NOW)], "list_append( read , :new_val )")
        assert read(store)[0][0] == ["x", "z", "y"]


@pytest.mark.parametrize(
    ("feature", "expression", "message"),
    [
        ("read", "list_append(other, :new_val)", "is not an update of the list 'read'"),
        ("read", "SET read = :new_val", "give 'list_append"),
        ("read_at", "list_append(read_at, :new_val)", "has no list, set or counts 'read_at' to update"),
    ],
)
def test_other_expressions_are_refused(store, feature, expression, message):
    rows = frame([(1, ["a"], [NOW], NOW)])
    with pytest.raises(UnsupportedFeatureError, match=message):
        asyncio.run(store.update_online_store("history", rows, {feature: expression}))
    assert read(store)[0] == [None, None]


def test_a_batch_with_a_row_that_is_refused_is_not_written(store):
    rows = frame([(1, ["a"], [NOW], NOW), (2, ["a", "b"], [NOW], NOW)])
    with pytest.raises(RowError, match=r"row 1 of the batch has 2 items in feature 'read' and 1 times"):
        store.write_to_online_store("history", rows)
    assert read(store)[0] == [None, None]


def test_lists_add_get_remove_and_clear(store):
    lists = Lists(store, "history", "read")
    users = np.array([1, 1, 2, 1])
    lists.add(users, ["a", "b", "a", "c"], [ago(hours=h) for h in (4, 3, 2, 1)])
    found = lists.get([1, 2, 3])
    assert found.indptr.tolist() == [0, 3, 4, 4]
    assert found.values.to_pylist() == ["c", "b", "a", "a"]
    assert found.timestamps.tolist()[:2] == [ago(hours=h).replace(tzinfo=None) for h in (1, 3)]
    assert lists.get([1], ago(hours=3), limit=1).to_arrow().to_pylist() == [["c"]]
    assert lists.get([1], ago(hours=3)).to_arrow().to_pylist() == [["c", "b"]]
    open_view(store, "history").seal()
    lists.remove([1, 2], "a")
    assert lists.get([1, 2]).to_arrow().to_pylist() == [["c", "b"], []]
    lists.add([1], ["a"], [ago(minutes=5)])
    assert lists.get([1]).to_arrow().to_pylist() == [["a", "c", "b"]]
    lists.replace([1, 2], [0, 2, 3], ["p", "q", "r"], [ago(hours=1), ago(hours=2), ago(hours=1)])
    assert lists.get([1, 2]).to_arrow().to_pylist() == [["p", "q"], ["r"]]
    lists.clear([1])
    assert lists.get([1, 2]).to_arrow().to_pylist() == [[], ["r"]]
    assert read(store)[0] == [None, ["r"]]
    lists.add([2], ["now"])
    assert lists.get([2]).to_arrow().to_pylist() == [["now", "r"]]
    assert abs(lists.get([2]).timestamps[0].astype("int64") / 1e6 - datetime.now(UTC).timestamp()) < 60


def test_lists_refuse_what_they_cannot_keep(store, tmp_path):
    lists = Lists(store.repo_path, "history", "read")
    for refused, message in [
        (lambda: lists.add([1, 2], ["a"]), "takes 2 values here, not 1 value"),
        (lambda: lists.add([1], [7]), "these are not values of the list 'read'"),
        (lambda: lists.add([1], ["a"], [NOW, NOW]), "1 timestamps are needed, not 2"),
        (lambda: lists.add(["x"], ["a"]), "not entities of feature view 'history'"),
        (
            lambda: lists.add([1], ["a"], [4e11]),
            "row 0 for the list 'read' of .* 400000000000.0, .* after the year",
        ),
        (
            lambda: lists.add([1, 2], ["a", "b"], [0.5, np.nan]),
            "row 1 for the list 'read' .* has the time nan",
        ),
        (lambda: lists.add([1], ["a"], [np.inf]), "row 0 for the list 'read' .* has the time inf"),
        (lambda: lists.add([1], ["a"], [-np.inf]), "row 0 for the list 'read' .* has the time -inf"),
        (lambda: lists.add([1], ["a"], [1e300]), r"row 0 for the list 'read' .* has the time 1e\+300"),
        (lambda: lists.add([1], ["a"], np.array([2**62])), "after the year 9999"),
        (lambda: lists.add([1], ["a"], [-(2**62)]), "before the year 1"),
        (lambda: lists.add([1], ["a"], np.array([2**62], "datetime64[s]")), "these are not timestamps"),
        (
            lambda: lists.replace([1], [0, 1], ["a"], [np.nan]),
            "row 0 for the list 'read' .* has the time nan",
        ),
        (lambda: lists.add([1], ["a"], [TOO_LATE]), "after the year 9999"),
        (lambda: lists.remove([1], "a", TOO_EARLY), "before the year 1"),
        (lambda: lists.add([1], ["a"], ["soon"]), "these are not timestamps"),
        (lambda: lists.add([1], [None]), "takes 1 value here, not 1 null"),
        (lambda: lists.remove([1, 2], ["a"]), "takes 2 values here, not 1 value"),
        (lambda: lists.get([1], limit=-1), "the limit -1 for .* is not a whole number from 1"),
        (lambda: lists.replace([1], [0, 2], ["a"]), "takes 2 values"),
        (lambda: lists.replace([1], [1, 2], ["a"]), "indptr is not the bounds"),
    ]:
        with pytest.raises(RowError, match=message) as raised:
            refused()
        assert "feature view 'history'" in str(raised.value)
    assert lists.get([1]).to_arrow().to_pylist() == [[]]
    with pytest.raises(UnsupportedFeatureError, match=r"no list 'read_at'; its lists are \['read'\]"):
        Lists(store, "history", "read_at")
    replica = Lists(another(tmp_path, read_only=True), "history", "read")
    with pytest.raises(StorageError, match="read_only: true"):
        replica.add([1], ["a"])


def test_nothing_to_write_writes_nothing(store):
    lists = Lists(store, "history", "read")
    none = np.zeros(0, np.int64)
    lists.add(none, [], none)
    lists.replace(none, [0], [], none)
    lists.remove(none, "a")
    lists.clear(none)
    empty = frame([(1, ["a"], [NOW], NOW)]).head(0)
    with pytest.warns(UserWarning, match="empty dataframe"):  # Feast tells so, and does nothing
        asyncio.run(store.update_online_store("history", empty, {"read": "list_append(read, :new_val)"}))
    with pytest.warns(UserWarning, match="empty dataframe"):
        store.write_to_online_store("history", empty)
    assert open_view(store, "history").stats().unsealed_rows == 0
    assert lists.get([1]).to_arrow().to_pylist() == [[]]
    assert lists.get(none).indptr.tolist() == [0]


def test_rows_without_items_make_empty_lists(store):
    update(store, [(1, [], [], NOW)], "list_append(read, :new_val)")
    assert read(store)[0] == [[], None]
    update(store, [(1, ["a"], [NOW], NOW), (2, [], [], NOW)], ":new_val")
    assert read(store)[0] == [["a"], []]
    update(store, [(1, [], [], NOW)], ":new_val")
    assert read(store)[0] == [[], []]


def test_naive_times_are_in_utc_and_equal_items_of_a_batch_are_one(store):
    lists = Lists(store, "history", "read")
    moment = ago(hours=3)
    naive = moment.replace(tzinfo=None)
    elsewhere = moment.astimezone(timezone(timedelta(hours=5)))
    times = [moment, naive, elsewhere, moment]
    lists.add([1] * 4, ["a"] * 4, times)
    lists.add([1], ["a"], np.array([naive], "datetime64[ms]"))
    lists.add([1], ["a"], [moment.timestamp()])
    lists.add([1], ["a"], pd.Series([naive]))
    found = lists.get([1], min_timestamp=naive)
    assert found.timestamps.tolist() == [naive]
    assert lists.get([1], min_timestamp=naive + timedelta(hours=1)).to_arrow().to_pylist() == [[]]


def test_expired_items_are_never_shown(store, caplog):
    lists = Lists(store, "history", "read")
    lists.add([1, 1, 2], ["old", "new", "old"], [ago(days=31), ago(days=29), ago(days=31)])
    for _ in range(2):
        answer = store.get_online_features(["history:read"], [{"user_id": 1}, {"user_id": 2}])
        assert answer.to_dict()["read"] == [["new"], None]
        assert [answer.proto.results[-1].statuses[row] for row in range(2)] == [1, 4]  # OUTSIDE_MAX_AGE
        assert lists.get([1, 2]).to_arrow().to_pylist() == [["new"], []]
        assert open_view(store, "history").seal()


@pytest.mark.parametrize("sealed", [False, True])
def test_readers_and_reports_know_lists(store, sealed, tmp_path):
    lists = Lists(store, "history", "read")
    lists.add([1, 1, 1, 2], ["a", "b", "a", "c"], [ago(hours=h) for h in (9, 6, 3, 3)])
    if sealed:
        assert open_view(store, "history").seal()
    reader = SketchReader(store.repo_path, "history", ttl=TTL)
    found = reader.lists("read", [1, 2, 7], limit=2)
    assert found.to_arrow().to_pylist() == [["a", "b"], ["c"], []]
    assert np.diff(found.indptr).tolist() == [2, 1, 0]
    matrix = reader.csr("read", [1, 2, 7])
    names = matrix.vocabulary.to_pylist()
    assert [sorted(names[i] for i in row) for row in np.split(matrix.ids, matrix.indptr[1:-1])] == [
        ["a", "b"],
        ["c"],
        [],
    ]
    assert reader.contains("read", [1, 2], ["a", "c"]).tolist() == [[True, False], [False, True]]
    weights = np.arange(len(names)) + 1.0
    assert reader.scores("read", [2], weights)[0] == weights[names.index("c")]
    assert reader.arrow("read", [1]).to_pylist() == [["a", "b", "a"]]
    assert reader.exists([1, 2, 7]).tolist() == [True, True, False]
    report = maintenance.inspect(store, "history")
    assert (report.entities, report.facts) == (2, 4)
    assert maintenance.verify(store, "history").problems == []
    if sealed:
        (feature,) = report.features
        assert (feature.name, feature.codec, feature.structure, feature.facts) == ("read", "list", "lists", 4)
        training = pd.DataFrame({"read": [["b", "z", "a", "b", "a", "c"], []]})
        shown = through_sketch(training, reader)
        assert [list(row) for row in shown["read"]] == [["b", "a", "b", "a"], []]


def test_verify_finds_items_that_a_snapshot_lacks(store, monkeypatch):
    lists = Lists(store, "history", "read")
    lists.add([1, 1], ["a", "b"], [ago(hours=9), ago(hours=6)])
    open_view(store, "history").seal()
    from feast_sketch_store.layers import SketchLayer

    honest = SketchLayer.read

    def forgetful(layer, *arguments):
        answer = honest(layer, *arguments)
        items = answer.features["read"]
        items.csr = items.csr.masked(np.arange(len(items.csr.ids)) < 1)
        return answer

    monkeypatch.setattr(SketchLayer, "read", forgetful)
    (problem,) = maintenance.verify(store, "history").problems
    assert "has other items of feature 'read' than the row log" in problem


def test_a_seal_keeps_the_log_small_and_forgets_what_was_removed(store):
    lists = Lists(store, "history", "read")
    for hour in range(10):
        lists.add([1, 2], ["secret", "b"], [ago(hours=hour)] * 2)
    lists.remove([1], "secret")
    view = open_view(store, "history")
    assert view.seal()
    assert maintenance.verify(store, "history").rows == 2
    view.vacuum(orphan_age_seconds=0.0)
    for path in (store.repo_path / "sketch").rglob("*"):
        assert path.is_dir() or path.stat().st_size == 0 or b"secret" not in path.read_bytes()
    assert lists.get([1, 2]).to_arrow().to_pylist() == [[], ["b"] * 4]


def shown_by(store, user, limit=None):
    """The items of a user as each way of reading shows them, newest first or as a set."""
    reader = SketchReader(str(store.repo_path), "history")
    matrix, values = reader.csr("read", [user]), reader.vocabulary("read").to_pylist()
    lists = Lists(store, "history", "read")
    everything = {values[number] for number in matrix.ids}
    assert {values[number] for number in reader.ids("read", user)} == everything
    assert {values[n] for n in np.flatnonzero(reader.multi_hot("read", [user])[0])} == everything
    for one in (user, [user]):
        contained = reader.contains("read", one, pa.array(values)).reshape(-1)
        assert {value for value, is_in in zip(values, contained, strict=True) if is_in} == everything
    assert reader.scores("read", [user], np.ones(len(values))).tolist() == [len(everything)]
    assert reader.arrow("read", [user]).to_pylist()[0] == read(store, [user])[0][0]
    together = reader.lists("read", [user, 999], limit=limit).to_arrow().to_pylist()
    assert together == lists.get([user, 999], limit=limit).to_arrow().to_pylist()
    alone = (reader.lists("read", u, limit=limit).to_arrow().to_pylist()[0] for u in (user, [user]))
    ways = [together[0], *alone]
    if limit is None:
        assert everything == {*ways[0]}
        ways.append(read(store, [user])[0][0])
    assert all(way == ways[0] for way in ways)
    return ways[0]


@pytest.mark.slow
@pytest.mark.parametrize(("seals", "num_shards"), combined([(), (1,), (2,), (1, 2)], [1, 4]))
def test_all_reads_show_the_limit_and_a_removal_brings_older_items_back(
    make_store, tmp_path, seals, num_shards
):
    view = list_view({**LIST, "sketch.list": "{limit: 2}"})
    store = make_store(view, shards=num_shards)
    lists, view = Lists(store, "history", "read"), open_view(store, "history")
    lists.add([1] * 5, [*"abcde"], [ago(hours=hours) for hours in (5, 4, 3, 2, 1)])
    if 1 in seals:
        assert view.seal()
    assert [shown_by(store, 1, limit) for limit in (None, 1, 9)] == [["e", "d"], ["e"], ["e", "d"]]
    lists.remove([1] * 2, ["e", "d"])
    for _ in range(2):
        assert (shown_by(store, 1), shown_by(store, 1, 1)) == (["c", "b"], ["c"])
        if 2 in seals:
            assert view.seal()
    lists.add([1], ["f"], [ago(minutes=1)])
    assert shown_by(store, 1) == ["f", "c"]
    lists.remove([1] * 4, ["f", "c", "b", "a"])
    assert shown_by(store, 1) == []
    assert maintenance.verify(store, "history").problems == []


@pytest.mark.parametrize("sealed", [False, True])
def test_a_removal_that_ends_within_a_tick_is_of_the_whole_tick(store, sealed):
    hour, lists = NOW.replace(minute=0) - timedelta(hours=3), Lists(store, "history", "read")
    lists.add([5] * 4, ["x"] * 4, [hour + timedelta(minutes=minutes) for minutes in (-1, 0, 50, 60)])
    if sealed:
        open_view(store, "history").seal()
    lists.remove([5], "x", hour + timedelta(minutes=20))
    for _ in range(2):
        assert lists.get([5]).values.to_pylist() == ["x"]
        open_view(store, "history").seal()


def test_past_the_reserve_reads_show_fewer_items_until_the_next_seal(make_store, tmp_path):
    store = make_store(list_view({**LIST, "sketch.list": "{limit: 2}"}))
    lists, view = Lists(store, "history", "read"), open_view(store, "history")
    items = [f"item {hours:02}" for hours in range(1, 31)]  # the newest first
    lists.add([1] * 30, items, [ago(hours=hours) for hours in range(1, 31)])
    assert view.seal()
    assert view.stats().sealed_facts == 2 + 16
    for removed, shown in ((16, 2), (17, 1), (18, 0)):
        lists.remove([1] * removed, items[:removed])
        assert shown_by(store, 1) == items[removed : removed + shown]
    assert view.seal()
    assert shown_by(store, 1) == items[18:20]


def test_lists_are_sealed_as_a_base_where_a_delta_is_asked_for(store):
    lists = Lists(store, "history", "read")
    view = open_view(store, "history")
    for value, hours in (("a", 9), ("b", 6)):
        lists.add([1, 2], [value] * 2, [ago(hours=hours)] * 2)
        assert view.seal(as_delta=True)
    lists.remove([1], "a")
    assert view.seal(as_delta=True)
    assert lists.get([1, 2]).to_arrow().to_pylist() == [["b"], ["b", "a"]]
    assert maintenance.verify(store, "history").problems == []


def test_versions_of_a_view_have_lists_of_their_own(make_store, tmp_path):
    store = make_store(list_view(), registry=VERSIONED)
    Lists(store, "history", "read").add([1], ["old"], [ago(hours=1)])
    assert read(store, [1])[0] == [["old"]]
    store.apply([list_view({**LIST, "sketch.list": "{limit: 2}"}, description="two at most")])
    lists = Lists(store, "history", "read")
    lists.add([1] * 3, ["a", "b", "c"], [ago(hours=h) for h in (3, 2, 1)])
    assert lists.get([1]).to_arrow().to_pylist() == [["c", "b"]]


def _reader_of(repo):
    """Another process: looks at the registry and reads, when it is asked."""
    store = FeatureStore(repo_path=repo)

    def read_now(user):
        store.refresh_registry()
        return read_users(store, ["history:read"], [user])["read"][0]

    return read_now


def test_a_new_version_is_filled_and_then_switched_to_without_a_gap(make_store, tmp_path, warm):
    store = make_store(list_view(), registry={**VERSIONED, "cache_ttl_seconds": 0})
    history = [("a", ago(hours=50)), ("b", ago(hours=49)), ("c", ago(hours=48))]
    Lists(store, "history", "read").add([1] * 3, *zip(*history, strict=True))
    with answering(warm, _reader_of, str(tmp_path)) as ask:
        assert ask(1) == ["c", "b", "a"]
        store.apply([list_view({**LIST, "sketch.list": "{limit: 2}"})], no_promote=True)
        old, new = (Lists(store, name, "read") for name in ("history@v0", "history@v1"))
        for value, moment in history:
            new.add([1], [value], [moment])
            assert ask(1) == ["c", "b", "a"]
        for lists in (old, new):  # what comes while it is filled
            lists.add([1], ["d"], [ago(hours=2)])
        assert ask(1) == ["d", "c", "b", "a"]
        assert new.get([1]).to_arrow().to_pylist() == [["d", "c"]]
        switched = list_view(version="v1")
        store.apply([switched])
        assert ask(1) == ["d", "c"]
    current = Lists(another(tmp_path), "history", "read")
    current.add([1], ["e"], [ago(hours=1)])
    assert current.get([1]).to_arrow().to_pylist() == new.get([1]).to_arrow().to_pylist() == [["e", "d"]]
    assert old.get([1]).to_arrow().to_pylist() == [["d", "c", "b", "a"]]


def test_versions_that_are_not_there_are_refused(store, make_store, tmp_path):
    with pytest.raises(UnsupportedFeatureError, match="'history' has no versions: set enable_online"):
        Lists(store, "history@v1", "read")
    store = make_store(list_view(), registry=VERSIONED)
    with pytest.raises(UnsupportedFeatureError, match="'history': Invalid version"):
        Lists(store, "history@new", "read")
    with pytest.raises(FeatureViewVersionNotFound):
        Lists(store, "history@v7", "read")


NOT_COUNTED = Field(name="n", dtype=Array(Int64), tags={"sketch.of": "read"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ttl": timedelta(0)}, "has lists, whose items need a time to live"),
        ({"fields": [Field(name="country", dtype=String)]}, r"\['country'\], which rows replace"),
        ({"tags": {**LIST, "sketch.target": "error 0.1"}}, "no effect: sketch.target"),
        ({"ttl": None}, "has lists, whose items need a time to live"),
        ({"tags": {**LIST, "sketch.list": "{resolution: 0}"}}, "from a microsecond"),
        ({"tags": {**LIST, "sketch.list": "{resolution: -1h}"}}, "resolution: a duration is 0, or"),
        ({"tags": {**LIST, "sketch.list": "{resolution: 1.5us}"}}, "one of ms, s, min, h and d"),
        ({"tags": {**LIST, "sketch.list": "{resolution: 0.0000015s}"}}, "whole microseconds"),
        ({"tags": {**LIST, "sketch.list": "{limit: 0}"}}, "limit: it must be a whole number"),
        ({"tags": {"sketch.codec": "exact"}}, "but the view has no feature of that name"),
        ({"fields": [Field(name="n", dtype=Int64, tags={"sketch.codec": "list"})]}, "does not take"),
        ({"fields": [NOT_COUNTED]}, "no feature of that name with the codec 'counts'"),
    ],
)
def test_a_view_that_cannot_have_lists_is_refused(make_store, tmp_path, change, message):
    with pytest.raises(SettingsError, match=message):
        make_store(list_view(**change))


@pytest.mark.filterwarnings("ignore:On demand feature view is an experimental feature")
def test_an_on_demand_view_cannot_have_lists(make_store):
    history = list_view({}, times=False)

    @on_demand_feature_view(
        entities=[USER],
        sources=[history],
        schema=[Field(name="recent", dtype=Array(String), tags=LIST)],
        mode="python",
        write_to_online_store=True,
    )
    def shown(inputs):
        return {"recent": inputs["read"]}

    store = make_store(history)
    with pytest.raises(SettingsError, match="an on-demand view has none, so put them into another"):
        store.apply([shown])


def test_a_view_with_rows_cannot_become_one_of_lists(make_store, tmp_path):
    store = make_store(list_view({}, times=False))
    store.write_to_online_store("history", frame([(1, ["a"], None, NOW)]))
    replace = "the rows of feature view 'history' replace, and are declared"
    with pytest.raises(UnsupportedFeatureError, match=replace):
        store.apply([list_view()])
    open_view(store, "history").seal()
    with pytest.raises(UnsupportedFeatureError, match="add it again"):
        store.apply([list_view()])


def test_warnings_of_old_items_are_told_once(store, caplog):
    with caplog.at_level(logging.WARNING):
        store.write_to_online_store("history", frame([(1, ["a"], [ago(days=99)], ago(days=99))]))
    assert "older than its ttl" in caplog.text


@pytest.mark.parametrize(
    ("ttl", "tags", "shown"),
    [(timedelta(days=4), LIST, ["b"]), (TTL, {**LIST, "sketch.list": "{limit: 1}"}, ["b"])],
)
def test_what_is_applied_later_counts_once_the_registry_is_refreshed(store, ttl, tags, shown):
    lists = Lists(store, "history", "read")
    lists.add([1, 1], ["a", "b"], [ago(days=5), ago(days=3)])
    assert lists.get([1]).to_arrow().to_pylist() == [["b", "a"]]
    another(store).apply([list_view(tags, ttl=ttl)])
    store.refresh_registry()
    assert lists.get([1]).to_arrow().to_pylist() == read(store, [1])[0] == [shown]
