"""Lists as of a moment: what reads showed while a stream was written is what `until` gives afterwards."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from feast import Field
from feast.types import Array, Int64, Set

from feast_sketch_store import Lists, SketchReader, through_sketch
from feast_sketch_store.errors import RowError, UnsupportedFeatureError
from feast_sketch_store.operations import maintenance, resharding
from tests.helpers.length import by_length, combined
from tests.helpers.repository import make_repository, make_view, read_users

NOW = datetime.now(UTC).replace(microsecond=0, second=0, minute=0)
TICK, LIMIT, NUM_USERS, NUM_STEPS = timedelta(hours=1), 4, 6, by_length(120, 250)
TTL = timedelta(days=30)
LIKES = pd.DataFrame({"user_id": [1, 3], "liked": [[5, 6], [5]], "event": pd.to_datetime([NOW, NOW])})


@pytest.fixture
def make_store(tmp_path):
    def make(ttl=TTL, shards=1, keep="7d"):
        tags = {"sketch.codec": "list", "sketch.list": f"{{resolution: 1h, limit: {LIMIT}}}"}
        view = make_view([Field(name="read", dtype=Array(Int64), tags=tags)], ttl=ttl)
        options = {"refresh": 0, "shards": shards, "compaction": {"min_rows": 9999}}
        return make_repository(tmp_path, view, rows=LIKES, ttl={"keep": keep}, **options)

    return make


def shown_now(store, users):
    return [items or [] for items in read_users(store, ["history:read"], users)["read"]]


def stream(store, lists, after_step=lambda step: None):
    """Writes a stream, and says what reads showed: users, moments, and lists of values."""
    rng = np.random.default_rng(7)
    users, moments, shown = [], [], []
    begin = NOW - NUM_STEPS * TICK
    for step in range(NUM_STEPS):
        written = np.flatnonzero(rng.random(NUM_USERS) < 0.4)
        if len(written):
            moment = begin + step * TICK + timedelta(seconds=int(rng.integers(3600)))
            lists.add(written, rng.integers(0, 30, len(written)), moment)
        after_step(step)
        asked = rng.choice(NUM_USERS, 4, replace=False).tolist()
        users += asked
        moments += [begin + (step + 1) * TICK] * len(asked)
        shown += shown_now(store, asked)
    return users, moments, shown


def values_of(lists):
    return [
        lists.values.to_pylist()[start:stop]
        for start, stop in np.lib.stride_tricks.sliding_window_view(lists.indptr, 2)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("sealed", "shards"), combined(["halfway", "at the end"], [1, 2]))
def test_what_was_shown_at_a_moment_is_found_again(make_store, tmp_path, sealed, shards):
    store = make_store(shards=shards)
    lists = Lists(store, "history", "read")
    halfway = NUM_STEPS // 2 if sealed == "halfway" else None
    seen = stream(store, lists, lambda step: step == halfway and maintenance.seal(store, "history"))
    reader = SketchReader(tmp_path, "history", ttl=TTL)
    if sealed == "at the end":
        check_moments(reader, store, *seen, was_sealed=False)
        maintenance.seal(store, "history")
    check_moments(reader, store, *seen, was_sealed=True)


def check_moments(reader, store, users, moments, shown, was_sealed):
    assert len(shown) == 4 * NUM_STEPS
    column = pd.Series(pd.to_datetime(moments))
    for found in (
        reader.lists("read", np.array(users), until=column),
        Lists(store, "history", "read").get(np.array(users), until=moments),
        reader.lists("read", np.array(users), until=pa.array(moments, pa.timestamp("ns", "UTC"))),
    ):
        answers = values_of(found)
        assert (found.timestamps < column.dt.tz_localize(None).to_numpy().repeat(np.diff(found.indptr))).all()
        for answer, expected, is_complete in zip(answers, shown, found.complete, strict=True):
            # A seal keeps the newest items of a list, so those that it dropped are the oldest.
            assert answer == (expected if is_complete else expected[: len(answer)])
        lacking = [answer != expected for answer, expected in zip(answers, shown, strict=True)]
        assert any(lacking) == was_sealed
        assert np.mean(found.complete) > (0.1 if was_sealed else 0.99)
    for row in range(0, len(users), 7):  # one entity has a path of its own
        found = reader.lists("read", {"user_id": users[row]}, until=moments[row])
        assert values_of(found) == [answers[row]]


def test_ticks_before_that_of_the_moment_are_shown_or_with_it(make_store, tmp_path):
    store = make_store()
    lists = Lists(store, "history", "read")
    noon = NOW - timedelta(days=1)
    lists.add([1, 1, 1], [10, 11, 12], [noon - TICK, noon + timedelta(minutes=5), noon + TICK])
    reader = SketchReader(tmp_path, "history", ttl=TTL)
    expected = {
        (0, False): [10],
        (0, True): [11, 10],
        (7, False): [10],  # what happened in the same tick is not known to have happened before the moment
        (7, True): [11, 10],
        (60, False): [11, 10],
        (60, True): [12, 11, 10],
    }
    for is_sealed in (False, True):
        if is_sealed:
            maintenance.seal(store, "history")
        for (minutes, inclusive), items in expected.items():
            until = noon + timedelta(minutes=minutes)
            found = reader.lists("read", [1, 2], until=until, inclusive=inclusive)
            assert values_of(found) == [items, []]
            assert found.complete.all()
            assert values_of(lists.get([1], limit=1, until=until, inclusive=inclusive)) == [items[:1]]
    assert reader.lists("read", [1]).complete is None


def test_items_that_had_expired_at_a_moment_are_not_shown(make_store, tmp_path):
    store = make_store(ttl=timedelta(days=2), keep="3d")
    lists = Lists(store, "history", "read")
    lists.add([1, 1, 1], [1, 2, 3], [NOW - timedelta(days=d) for d in (5, 3, 1)])
    reader = SketchReader(tmp_path, "history", ttl=timedelta(days=2))

    def as_of(days):
        found = reader.lists("read", [1], until=NOW - timedelta(days=days) + TICK)
        return values_of(found)[0], bool(found.complete[0])

    for is_sealed in (False, True):
        if is_sealed:
            maintenance.seal(store, "history")
        # A seal keeps items for the time to live of two days, and at least three days longer.
        assert [as_of(days) for days in (4.5, 2.5, 0)] == [([1], not is_sealed), ([2], True), ([3], True)]
        recent = reader.lists("read", [1], datetime.now(UTC) - timedelta(hours=40), until=NOW)
        assert values_of(recent) == [[3]]


def test_what_seals_left_out_is_known_after_the_rows_were_divided(make_store, tmp_path):
    store = make_store(ttl=timedelta(days=2), keep="0")
    Lists(store, "history", "read").add([1, 1], [1, 2], [NOW - timedelta(days=d) for d in (5, 1)])
    maintenance.seal(store, "history")
    view = store.get_feature_view("history")
    view.ttl = TTL
    store.apply(view)
    maintenance.seal(store, "history")
    for divide in (lambda: None, lambda: resharding.reshard(store, "history", 4, lambda seconds: None)):
        divide()
        found = SketchReader(tmp_path, "history", ttl=TTL).lists("read", [1], until=NOW)
        assert (values_of(found), found.complete.tolist()) == ([[2]], [False])


@pytest.mark.slow
def test_training_rows_get_the_lists_of_their_times(make_store, tmp_path):
    store = make_store()
    lists = Lists(store, "history", "read")
    users, moments, shown = stream(store, lists)
    maintenance.seal(store, "history")
    reader = SketchReader(tmp_path, "history", ttl=TTL)
    rows = pd.DataFrame({"user_id": users, "at": pd.to_datetime(moments), "clicked": 1})
    training = through_sketch(rows, reader, ["read"], timestamp_field="at")
    assert list(rows) == ["user_id", "at", "clicked"]
    assert list(training) == ["user_id", "at", "clicked", "read", "read__complete"]
    is_complete = training["read__complete"].to_numpy()
    assert 0.1 < is_complete.mean() < 1
    for items, expected, whole in zip(training["read"], shown, is_complete, strict=True):
        assert list(items) == (expected if whole else expected[: len(items)])
    for column, message in [("user_id", "no column 'user_id'"), ("at", "no column 'at'")]:
        with pytest.raises(RowError, match=f"{message}.* the list 'read' of feature view 'history'"):
            through_sketch(rows.drop(columns=column), reader, ["read"], timestamp_field="at")
    naive = rows.assign(at=rows["at"].dt.tz_localize(None))
    with pytest.raises(RowError, match="not a time with a time zone"):
        through_sketch(naive, reader, ["read"], timestamp_field="at")


def test_jagged_ids_are_handed_over_without_a_copy(make_store, tmp_path):
    store = make_store()
    lists = Lists(store, "history", "read")
    lists.add([1, 1, 1, 3], [10, 11, 10, 12], [NOW - n * TICK for n in (3, 2, 1, 2)])
    reader = SketchReader(tmp_path, "history", ttl=TTL)
    for is_sealed in (False, True):
        if is_sealed:
            maintenance.seal(store, "history")
        jagged = reader.jagged("read", [1, 2, 3])
        assert jagged.offsets.tolist() == [0, 3, 3, 4]
        assert (jagged.values.dtype, jagged.offsets.dtype) == (np.int32, np.int32)
        assert jagged.vocabulary.take(pa.array(jagged.values)).to_pylist() == [10, 11, 10, 12]
        assert jagged.complete is None
        for array in (jagged.values, jagged.offsets):
            taken = np.from_dlpack(array)
            assert np.shares_memory(taken, array)
            assert array.flags.writeable  # which most consumers of DLPack ask for
        before = reader.jagged("read", [1, 3], 1, until=[NOW - TICK, NOW - 2 * TICK])
        assert before.offsets.tolist() == [0, 1, 1]
        assert before.vocabulary.take(pa.array(before.values)).to_pylist() == [11]
        assert before.complete.all()
    nobody = reader.jagged("read", np.zeros(0, np.int64))
    assert (nobody.offsets.tolist(), len(nobody.values)) == ([0], 0)


def test_jagged_ids_of_sets_are_those_of_csr(tmp_path):
    store = make_repository(tmp_path, make_view({"liked": Set(Int64)}, pushed="likes"), rows=LIKES)
    store.push("likes", LIKES)
    reader = SketchReader(tmp_path, "history")
    jagged, matrix = reader.jagged("liked", [1, 2, 3]), reader.csr("liked", [1, 2, 3])
    assert jagged.offsets.tolist() == matrix.indptr.tolist() == [0, 2, 2, 3]
    assert jagged.values.tolist() == matrix.ids.tolist()
    assert jagged.vocabulary.equals(matrix.vocabulary)
    for asked in ({"limit": 5}, {"inclusive": True}):
        with pytest.raises(UnsupportedFeatureError, match="'liked' of view 'history' is not a list"):
            reader.jagged("liked", [1], **asked)


@pytest.mark.parametrize(
    ("until", "message"),
    [
        (datetime(2026, 1, 1), r"`until` of the list 'read' .* is datetime.*not a time with a time zone"),
        ([NOW, NOW.replace(tzinfo=None)], "row 1 of `until` of the list 'read'"),
        ([NOW, None], "row 1 of `until` of the list 'read' .* is None"),
        (
            np.array(["2026-01-01"] * 2, "datetime64[us]"),
            "row 0 .*type timestamp.us., which is not a time with a",
        ),
        (pd.Series(pd.to_datetime([NOW, None])), "row 1 .* is missing"),
        ([NOW], "`until` of the list 'read' of feature view 'history' has 1 moment, for 2 entities"),
        ("yesterday", "are not times|not a time with a time zone"),
        (pa.array([0, 2**62], pa.timestamp("us", "UTC")), "row 1 .* after the year 9999"),
        # 2**64 microseconds and some: as many as 1,700,000,000 seconds, were they counted modulo 2**64
        (pa.array([0, 18_448_444_073_710], pa.timestamp("s", "UTC")), "are not times: .* out of bounds"),
    ],
)
def test_moments_that_are_none_are_refused(make_store, tmp_path, until, message):
    store = make_store()
    Lists(store, "history", "read").add([1], [1])
    with pytest.raises(RowError, match=message):
        SketchReader(tmp_path, "history").lists("read", [1, 2], until=until)
    with pytest.raises(RowError, match=message):
        Lists(store, "history", "read").get([1, 2], until=until)
