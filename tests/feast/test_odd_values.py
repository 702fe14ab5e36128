"""Values at the edges of types: zeros at the end of text, integers for moments, keys that are none."""

from datetime import UTC, datetime, timedelta
from functools import partial

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from feast import Entity, Field, ValueType
from feast.types import Array, Bytes, Int64, Set, String, UnixTimestamp

from feast_sketch_store import Counts, Lists, Sets, SketchReader, through_sketch
from feast_sketch_store.errors import RowError, SettingsError, UnsupportedFeatureError
from feast_sketch_store.operations import maintenance
from tests.helpers.cases import for_each
from tests.helpers.repository import make_repository, make_view, read_users, run_cli

NOW = datetime.now(UTC).replace(microsecond=0)
SECONDS = 1_700_000_000
BLOB = Entity(name="user", join_keys=["user_id"], value_type=ValueType.BYTES)
SOURCE = pd.DataFrame({"user_id": [1], "v": [["a"]], "event": pd.to_datetime([NOW])})


@pytest.fixture
def make_store(tmp_path):
    def make(*objects, **options):
        return make_repository(tmp_path, *objects, rows=SOURCE, refresh=0, **options)

    return make


def growing(dtype, user=None, tags=(), **more):
    """A view of a set to which rows add."""
    entities = {"entities": [user]} if user else {}
    return make_view({"v": dtype}, tags={"sketch.rows": "append", **dict(tags)}, **entities, **more)


def list_view(options, ttl=timedelta(days=30)):
    tags = {"sketch.codec": "list", "sketch.list": options}
    return make_view([Field(name="v", dtype=Array(String), tags=tags)], ttl=ttl)


def write(store, users, values, **more):
    rows = {"user_id": users, "v": values, "event": pd.to_datetime([NOW] * len(users)), **more}
    store.write_to_online_store("history", pd.DataFrame(rows))


def reader_of(store, **options):
    return SketchReader(store.repo_path, "history", refresh_interval_seconds=0, **options)


# -- text and bytes ----------------------------------------------------------------------------


def test_zeros_at_the_end_of_values_and_keys_count(make_store):
    store = make_store(BLOB, growing(Set(String), BLOB))
    sets = Sets(store, "history", "v")
    sets.add([b"\x07", b"\x07\x00"], ["x", "y\x00"])
    reader = reader_of(store)
    for kind in (list, tuple):
        assert reader.exists(kind([b"\x07\x00", b"\x07", b"\x07\x00\x00"])).tolist() == [True, True, False]
    asked = [["x"], ["y\x00"]]
    for values in (asked, tuple(map(tuple, asked)), np.array(asked, object)):
        assert reader.contains("v", [b"\x07", b"\x07\x00"], values).tolist() == [[True], [True]]
    sets.clear((b"\x07\x00",))
    assert reader.arrow("v", [b"\x07", b"\x07\x00"]).to_pylist() == [["x"], None]
    with pytest.raises(RowError):
        sets.add([b"a", b"b"], ("text", 5))


def test_any_bytes_can_be_keys_of_commands(make_store, tmp_path):
    store = make_store(BLOB, growing(Set(String), BLOB))
    Sets(store, "history", "v").add([b"\xff\x07", "\u00e9".encode(), b"a,b=c"], ["x", "y", "z"])

    assert '{"v": ["x"]}' in run_cli(tmp_path, "history", "history", "user_id=\udcff\x07").output
    assert '{"v": ["y"]}' in run_cli(tmp_path, "history", "history", "user_id=\u00e9").output
    assert '{"v": ["z"]}' in run_cli(tmp_path, "history", "history", '{"user_id": "a,b=c"}').output
    run_cli(tmp_path, "delete", "history", "user_id=\udcff\x07", '{"user_id": "a,b=c"}')
    found = reader_of(store).exists([b"\xff\x07", "\u00e9".encode(), b"a,b=c"])
    assert found.tolist() == [False, True, False]
    file = tmp_path / "who.jsonl"
    file.write_text('{"user_id": "\\ud800"}')
    refused = run_cli(tmp_path, "delete", "history", "--file", str(file), status=2).output
    assert "join key 'user_id' is BYTES, and '\\ud800' is not text that is UTF-8" in refused


def test_text_is_a_single_entity_if_it_can_be_one(make_store):
    user = Entity(name="named", join_keys=["user_id"], value_type=ValueType.STRING)
    store = make_store(user, growing(Set(String), user))
    Sets(store, "history", "v").add(["ada"], ["x"])
    reader, ada = reader_of(store), np.str_("ada")
    assert reader.contains("v", ada, ["x"]).tolist() == [True]
    assert reader.scores("v", ada, np.ones(1)) == 1.0
    assert len(reader.ids("v", ada)) == 1
    for read in (
        lambda: reader.ids("v", "\ud800"),
        lambda: reader.contains("v", "\ud800", ["x"]),
        lambda: reader.scores("v", "\ud800", np.ones(1)),
    ):
        with pytest.raises(RowError, match="these are not entities"):
            read()


# -- nulls among moments -------------------------------------------------------------------------


def test_a_null_among_moments_is_a_value_everywhere(make_store):
    view = make_view({"v": Set(UnixTimestamp), "x": Array(UnixTimestamp)})
    store = make_store(view)
    write(store, [1, 2], [{pd.NaT, NOW}, {NOW}], x=[[NOW, pd.NaT, NOW], [pd.NaT]])
    for _ in range(2):
        reader = reader_of(store)
        assert reader.contains("v", [1, 2], [NOW]).tolist() == [[True], [True]]
        assert len(reader.vocabulary("v")) == 2
        assert set(reader.arrow("v", [1])[0].as_py()) == {None, NOW}
        assert reader.arrow("x", [1, 2]).to_pylist() == [[NOW, None, NOW], [None]]
        assert read_users(store, ["history:x"], [2])["x"] == [[None]]
        assert not maintenance.verify(store, "history").problems
        maintenance.seal(store, "history")


def test_an_item_without_a_time_is_refused(make_store):
    times = Field(name="at", dtype=Array(UnixTimestamp), tags={"sketch.of": "v"})
    items = Field(name="v", dtype=Array(String), tags={"sketch.codec": "list"})
    store = make_store(make_view([items, times], ttl=timedelta(days=9)))
    with pytest.raises(RowError, match=r"row 1 of the batch .* whose time is null; give each item a time"):
        write(store, [1, 2], [["a"], ["b", "c"]], at=[[NOW], [NOW, pd.NaT]])


# -- moments -----------------------------------------------------------------------------------


@pytest.mark.parametrize("tags", [{}, {"sketch.vocabulary": f"[{SECONDS}, null]"}])
def test_integers_are_seconds_for_moments(make_store, tags):
    store = make_store(growing(Set(UnixTimestamp), tags=tags))
    sets, then = Sets(store, "history", "v"), datetime.fromtimestamp(SECONDS, UTC)
    sets.add([1], [SECONDS])
    maintenance.seal(store, "history")
    assert [list(row) for row in read_users(store, ["history:v"], [1])["v"]] == [[then]]
    reader = reader_of(store)
    for asked in (SECONDS, then, np.datetime64(SECONDS, "s")):
        assert reader.contains("v", 1, [asked]).tolist() == [True]
    listed = reader_of(store, vocabularies={"v": [SECONDS]})
    assert listed.csr("v", [1]).ids.tolist() == [0]
    sets.remove([1], [SECONDS])
    assert reader.contains("v", 1, [SECONDS]).tolist() == [False]
    with pytest.raises(RowError):
        sets.add([1], [10**15])


@pytest.fixture
def store_of_lists(make_store):
    return make_store(list_view("{resolution: 1s, limit: 4}"), ttl={"keep": "7d"})


@pytest.fixture
def lists(store_of_lists):
    return Lists(store_of_lists, "history", "v")


def test_none_of_anything_is_no_error(store_of_lists, lists):
    lists.add([1], ["x"], NOW)
    assert len(lists.get([], until=[]).values) == 0
    assert len(reader_of(store_of_lists).lists("v", [], until=[]).values) == 0
    assert reader_of(store_of_lists).contains("v", 1, np.array([])).tolist() == []
    with pytest.raises(RowError, match="row 0"):
        lists.add([3, 3], ["x", "y"], pd.Series([1e15, 2.0], index=[7, 8]))


def times_of(lists, timestamps):
    lists.clear([1, 2])
    lists.add([1, 2], ["x", "y"], timestamps)
    return [moment.replace(tzinfo=UTC) for moment in lists.get([1, 2]).timestamps.tolist()]


@for_each(
    "given",
    [
        [NOW, NOW.timestamp()],
        [int(NOW.timestamp()), NOW],
        np.array([NOW, int(NOW.timestamp())], object),
        [NOW.date(), int(NOW.timestamp())],
        [NOW, NOW.isoformat()],
        [np.datetime64(NOW.replace(tzinfo=None)), NOW],
    ],
)
def test_times_of_one_call_have_one_form(lists, given):
    with pytest.raises(RowError, match=r"row [01] is .*, and others are datetimes"):
        lists.add([1, 2], ["x", "y"], given)


def test_a_date_is_its_midnight(lists):
    midnight = NOW.replace(hour=0, minute=0, second=0)
    for given, times in [([NOW.date(), NOW], [midnight, NOW]), ([NOW, NOW.date()], [NOW, midnight])]:
        assert times_of(lists, given) == times


@for_each(
    "now",
    [
        NOW,
        NOW.replace(tzinfo=None),
        int(NOW.timestamp()),
        NOW.timestamp(),
        np.int64(NOW.timestamp()),
        np.array(int(NOW.timestamp())),
        np.datetime64(NOW.replace(tzinfo=None)),
        np.datetime64(NOW.replace(tzinfo=None), "ns"),
        pd.Timestamp(NOW),
        pa.scalar(NOW),
        pa.scalar(int(NOW.timestamp())),
    ],
)
def test_one_time_is_for_all(lists, now):
    assert times_of(lists, now) == [NOW, NOW]


@for_each("given", [[pd.NaT, NOW], pd.Series([NOW, pd.NaT]), [None, 5], np.array(["NaT", "2026"], "M8[s]")])
def test_a_time_that_is_missing_is_a_null(lists, given):
    with pytest.raises(RowError, match="2 timestamps are needed, not 1 nulls"):
        lists.add([1, 2], ["x", "y"], given)
    with pytest.raises(RowError, match="2 timestamps are needed, not 2 nulls"):
        lists.add([1, 2], ["x", "y"], pd.NaT)


@for_each(
    "indptr",
    [[0.0, 1.0, 2.0], [0, 1.9, 2], ["0", "1", "2"], [0, np.nan, 2], None, [[0, 1, 2]], [0, 2**63, 2]],
)
def test_items_begin_at_whole_numbers(lists, indptr):
    with pytest.raises(RowError, match="indptr is not the bounds"):
        lists.replace([1, 2], indptr, ["x", "y"])


# -- keys that are deleted ---------------------------------------------------------------------


@pytest.mark.parametrize("value", [7.9, True, None, np.float64(7.5), np.True_, "seven"])
def test_only_the_entity_that_is_named_is_deleted(make_store, value):
    store = make_store(make_view({"v": Set(String)}))
    write(store, [1, 7], [["a"], ["b"]])
    with pytest.raises(RowError, match="entity row 1: join key 'user_id' of feature view 'history' is INT64"):
        maintenance.delete(store, "history", [{"user_id": 5}, {"user_id": value}])
    assert read_users(store, ["history:v"], [1, 7])["v"] == [{"a"}, {"b"}]
    assert maintenance.delete(store, "history", [{"user_id": 7.0}]).found == 1


def test_bytes_are_named_by_their_text(make_store):
    store = make_store(BLOB, growing(Set(String), BLOB))
    Sets(store, "history", "v").add([b"a", b"b"], ["x", "y"])
    run_cli(store.repo_path, "delete", "history", "user_id=a")
    assert reader_of(store).exists([b"a", b"b"]).tolist() == [False, True]
    with pytest.raises(RowError, match="is BYTES"):
        maintenance.delete(store, "history", [{"user_id": "b"}])


# -- what readers are opened with --------------------------------------------------------------


@for_each(
    "name, value",
    [
        *(("refresh_interval_seconds", value) for value in (np.nan, -1, np.inf, "soon", True, [1])),
        *(("ttl", value) for value in (5, "1d", timedelta(seconds=-1), pd.NaT, np.timedelta64(1, "s"))),
        *(("serve_shards", value) for value in ([-1], [], ["a"], 0, [0.5], "0", [True], [10_000])),
        *(("project", value) for value in (1, ["shop"])),
        *(("vocabularies", value) for value in (["x"], np.zeros(2), "v")),
    ],
)
def test_a_reader_refuses_what_cannot_work(make_store, name, value):
    store = make_store(growing(Set(String)))
    with pytest.raises(SettingsError, match=rf"{name} is |has the {name} |{name} of .* are a "):
        SketchReader(store.repo_path, "history", **{name: value})


@for_each("odd", [[1, 2], ("v",), np.zeros(2), {"v"}, pd.Series(["v"]), iter("v"), None])
def test_a_name_is_a_string(make_store, odd):
    store = make_store(growing(Set(String)))
    reader = SketchReader(store.repo_path, "history")
    with pytest.raises(SettingsError, match="feature_view is "):
        SketchReader(store.repo_path, odd)
    for names in ((odd, "v"), ("history", odd)):
        with pytest.raises(SettingsError, match=r"feature(_view)? is a .*; give its name"):
            Sets(store, *names)
    for read in (reader.csr, reader.bits, reader.arrow, reader.lists, reader.jagged, reader.multi_hot):
        with pytest.raises(UnsupportedFeatureError, match=r"no feature .* of view 'history'; it has \['v'\]"):
            read(odd, [1])


def test_a_ttl_of_a_view_is_not_negative(make_store):
    with pytest.raises(SettingsError, match="feature view 'history' has the ttl"):
        make_store(growing(Set(String), ttl=timedelta(seconds=-1)), ttl={"expire": True})


def test_a_view_of_one_shard_is_served_whole(make_store):
    store = make_store(growing(Set(String)))
    Sets(store, "history", "v").add([1], ["x"])
    for served in ([0], range(3, 5), (7,)):
        reader = SketchReader(store.repo_path, "history", serve_shards=served, refresh_interval_seconds=1e9)
        assert reader.exists([1]).tolist() == [True]


# -- what reads are asked for ------------------------------------------------------------------


@for_each(
    "wanted",
    [
        *({"limit": limit} for limit in (True, 1.5, "5", 0, [1])),
        *(
            {"min_timestamp": time}
            for time in (np.datetime64(SECONDS, "s"), SECONDS, NOW.date(), "2026", pd.NaT)
        ),
    ],
)
def test_a_limit_is_a_whole_number_and_a_time_a_datetime(store_of_lists, wanted):
    lists, reader = Lists(store_of_lists, "history", "v"), reader_of(store_of_lists)
    for read in (lists.get, partial(reader.lists, "v")):
        with pytest.raises(RowError, match=r"(the limit|min_timestamp is).* the list 'v' of feature view"):
            read([1], **wanted)
        assert len(read([1], NOW, limit=np.int64(2))) == 1


@for_each("limit", [2**62, 2**63, 10**30])
def test_a_limit_beyond_all_lists_is_none(store_of_lists, limit):
    for read in (Lists(store_of_lists, "history", "v").get, partial(reader_of(store_of_lists).lists, "v")):
        assert read([1], limit=limit).to_arrow() == read([1]).to_arrow()
        assert read([1], limit=limit, until=NOW).to_arrow() == read([1], until=NOW).to_arrow()


def test_rows_of_values_have_one_length(make_store):
    store = make_store(growing(Set(String)))
    Sets(store, "history", "v").add([1], ["x"])
    reader = reader_of(store)
    for values in ([["x"], ["x", "y"]], [["x"], "y"], [[["x"]], [["y", "z"]]]):
        asks = partial(reader.contains, "v", [1, 2]), partial(reader.contains, "v", 1)
        for ask in (*asks, partial(reader.candidates, "v")):
            with pytest.raises(RowError, match="differ in length"):
                ask(values)
    with pytest.raises(TypeError, match="out is a list; an array is needed"):
        reader.multi_hot("v", [1], [[0]])


# -- another codec -----------------------------------------------------------------------------


def test_a_value_counts_once_before_the_seal_that_makes_counts(make_store):
    exact, counted = (
        make_view([Field(name="v", dtype=Array(String), tags={"sketch.codec": codec})])
        for codec in ("exact", "counts")
    )
    store = make_store(exact)
    write(store, [1], [["a", "b", "a"]])
    maintenance.seal(store, "history")
    store.apply(counted)
    write(store, [2], [["b"] * 5])
    reader = reader_of(store, vocabularies={"v": ["a", "b"]})
    assert reader.csr("v", [1]).ids.tolist() == [0, 1]
    assert reader.scores("v", 1, np.ones(2)) == 2.0
    for ask in (
        lambda: reader.csr("v", [1, 2], counts=True),
        lambda: reader.scores("v", [1, 2], np.ones(2), counts=True),
    ):
        with pytest.raises(UnsupportedFeatureError, match="seal the view"):
            ask()
    maintenance.seal(store, "history")
    found = reader.csr("v", [1, 2], counts=True)
    pairs = list(zip(found.ids.tolist(), found.counts.tolist(), strict=True))
    assert (found.indptr.tolist(), sorted(pairs[:2]), pairs[2:]) == ([0, 2, 3], [(0, 2), (1, 1)], [(1, 5)])


def test_a_list_that_lost_an_item_to_a_late_one_is_not_complete(make_store):
    def ago(days):
        return NOW - timedelta(days=days)

    view = list_view("{resolution: 1h, limit: 1}", ttl=timedelta(days=5))
    store = make_store(view, ttl={"keep": "0d"})
    lists = Lists(store, "history", "v")
    reader = reader_of(store, ttl=timedelta(days=5))
    lists.add([1, 1], ["new", "gone"], [ago(0.1), ago(6)])
    maintenance.seal(store, "history")
    lists.add([1], ["late"], [ago(7)])
    found = reader.lists("v", 1, until=ago(5.5))
    assert found.complete.tolist() == [False]


def test_bytes_without_a_value_are_asked_about(make_store):
    store = make_store(growing(Set(Bytes)))
    Sets(store, "history", "v").add([1], [b"x"])
    assert reader_of(store).contains("v", [1], np.array([])).tolist() == [[]]


def test_integers_of_any_sequence(make_store):
    store = make_store(growing(Set(Int64)))
    Sets(store, "history", "v").add((1, 2), (5, 6))
    assert reader_of(store).contains("v", (1, 2), ((5, 6), (5, 6))).tolist() == [[True, False], [False, True]]


@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_masked_elements_are_nulls(make_store, dtype):
    masked = np.ma.array(np.array([1, 2], dtype), mask=[False, True])
    fields = [
        Field(name="v", dtype=Set(Int64)),
        Field(name="n", dtype=Array(Int64), tags={"sketch.codec": "counts"}),
        Field(name="times", dtype=Array(Int64), tags={"sketch.of": "n"}),
        Field(name="ids", dtype=Array(String), tags={"sketch.ids_of": "n"}),
    ]
    store = make_store(make_view(fields, tags={"sketch.rows": "append"}))
    values, counts, reader = Sets(store, "history", "v"), Counts(store, "history", "n"), reader_of(store)
    values.add([1, 2], [1, 2])
    for ask in (
        lambda: reader.exists(masked),
        lambda: reader.csr("v", masked),
        lambda: reader.contains("v", 1, masked),
        lambda: reader.contains("v", [1], reader.candidates("v", masked)),
        lambda: values.add(masked, [3, 3]),
        lambda: values.add([1, 2], masked),
        lambda: values.add([1, 2], [3, 3], masked),
        lambda: counts.increment([1, 2], [3, 3], masked),
    ):
        with pytest.raises(RowError, match=r"null|masked"):
            ask()
    assert reader.arrow("v", [1, 2]).to_pylist() == [[1], [2]]
    assert reader.exists(np.ma.array([1, 5])).tolist() == [True, False]


def test_hashes_of_entities_have_two_numbers_each(make_store, tmp_path):
    reader = reader_of(make_store(growing(Set(Int64))))
    with pytest.raises(RowError, match="these are not entities"):
        reader.exists(np.zeros((2, 3), np.uint64))
    np.save(tmp_path / "hashes.npy", np.zeros((2, 2), np.uint64))
    assert reader.exists(np.load(tmp_path / "hashes.npy", mmap_mode="r")).tolist() == [False, False]


# -- training ----------------------------------------------------------------------------------


def through(store, values, **more):
    return through_sketch(pd.DataFrame({"v": values, **more}), reader_of(store))


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_moments_of_any_unit_are_trained_with(make_store, unit):
    store = make_store(growing(Set(UnixTimestamp)))
    Sets(store, "history", "v").add([1], [SECONDS])
    maintenance.seal(store, "history")
    (shown,) = through(store, [np.array([SECONDS], "datetime64[s]").astype(f"datetime64[{unit}]")])["v"]
    assert [pd.Timestamp(each).timestamp() for each in shown] == [SECONDS]


@pytest.mark.parametrize("given", [[1.9, 2.2], [2**70], ["1"]])
def test_training_values_are_kept_or_refused(make_store, given):
    store = make_store(growing(Set(Int64)))
    Sets(store, "history", "v").add([1, 1], [1, 2])
    maintenance.seal(store, "history")
    assert sorted(through(store, [[1.0, 2.0]])["v"][0]) == [1, 2]
    with pytest.raises(RowError, match="'v' is not of the feature's type"):
        through(store, [given])


def test_nulls_among_training_values_are_shown_as_they_are_served(make_store):
    store = make_store(make_view({"v": Array(String)}))
    write(store, [1], [["a", None]])
    maintenance.seal(store, "history")
    served = sorted(read_users(store, ["history:v"], [1])["v"][0])
    assert sorted(through(store, [["a", None]])["v"][0]) == served


@pytest.mark.parametrize("counts", [[-1, 1], [1, None], [1]])
def test_wrong_counts_are_not_trained_with(make_store, counts):
    fields = [
        Field(name="v", dtype=Array(String), tags={"sketch.codec": "counts"}),
        Field(name="n", dtype=Array(Int64), tags={"sketch.of": "v"}),
    ]
    store = make_store(make_view(fields))
    write(store, [1], [["a", "b"]], n=[[1, 2]])
    maintenance.seal(store, "history")
    with pytest.raises(RowError):
        through(store, [["a", "b"]], n=[counts])
