"""The life of a row: overwritten, deleted, expired, compacted away."""

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pyarrow.parquet as pq
import pytest
from feast.protos.feast.serving.ServingService_pb2 import FieldStatus, GetOnlineFeaturesResponse
from feast.protos.feast.types.Value_pb2 import Value
from feast.types import Set, String

from feast_sketch_store import SketchReader
from feast_sketch_store.row_log.data_file import DataFile
from feast_sketch_store.settings.table import Ttl
from tests.helpers.repository import STATES, UNSEALED
from tests.helpers.values import country, strings

pytestmark = pytest.mark.slow

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


def answered(harness, *users):
    """The country of users and its status, as a response of Feast has them."""
    response = GetOnlineFeaturesResponse()
    join_keys = {"user_id": [Value(int64_val=user) for user in users]}
    arguments = [(harness.view, ["country"])], join_keys, {"user": "user_id"}, response, False, False
    harness.store._read_features_per_fv(harness.config, *arguments)
    (vector,) = response.results
    return [(v.string_val, status) for v, status in zip(vector.values, vector.statuses, strict=True)]


def files_with(folder, *needles):
    """Files below a folder that hold one of the byte strings, uncompressed or in a parquet column."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            content = path.read_bytes()
            if path.suffix == ".parquet":
                content = repr(pq.read_table(path).to_pydict()).encode()
            if any(needle in content for needle in needles):
                found.append(path.name)
    return found


@pytest.mark.parametrize("options", STATES)
class TestDeletes:
    """Deleting one entity or several."""

    def test_a_deleted_entity_is_gone_at_once_and_after_reopening(self, make_harness, options):
        harness = make_harness({"country": String}, **options)
        for user in range(4):
            harness.write(user, country(f"c{user}"))
        other = harness.reopened()
        assert other.countries(1) == ["c1"]
        harness.delete(1, 3, 99)
        for reader in (harness, other, harness.reopened()):
            assert reader.countries(0, 1, 2, 3, 99) == ["c0", None, "c2", None, None]

    def test_deleting_nothing_changes_nothing(self, make_harness, options):
        harness = make_harness({"country": String}, **options)
        harness.write(1, country("FR"))
        harness.delete()
        assert harness.countries(1) == ["FR"]

    @pytest.mark.parametrize("before", [NOON, datetime(2100, 1, 1, tzinfo=UTC)], ids=["past", "future"])
    @pytest.mark.parametrize("days", [-9, 0, 9])
    def test_only_what_was_written_before_is_gone_whatever_its_timestamp(
        self, make_harness, options, before, days
    ):
        harness = make_harness({"country": String}, **options)
        harness.write(1, country("before"), before)
        harness.delete(1)
        assert harness.countries(1) == [None]
        harness.write(1, country("after"), harness.noon(24 * days))
        harness.write(1, country("late"), harness.noon(24 * days - 1))
        assert harness.countries(1) == harness.reopened().countries(1) == ["after"]
        assert harness.seal()
        assert harness.reopened().countries(1) == ["after"]

    def test_seal_and_vacuum_leave_no_trace(self, make_harness, make_view, options):
        features = {"country": String, "viewed": Set(String)}
        harness = make_harness(view=make_view(features, join_keys={"user_id": String}), **options)
        secret = {**country("Atlantis"), "viewed": strings("Xyzzy")}
        key = harness.key(user_id="victim-4711")
        rows = [(harness.key(user_id=f"user-{n}"), country("FR"), NOON, None) for n in range(50)]
        harness.write_many([*rows, (key, secret, NOON, None)])
        needles = (b"Atlantis", b"Xyzzy", b"victim-4711")
        assert files_with(harness.folder, *needles)
        harness.store.delete(harness.config, harness.view, [key])
        assert harness.seal()
        assert harness.opened.vacuum() > 0
        assert files_with(harness.folder, *needles) == []
        reader = harness.reopened()
        assert reader.read_keys([key]) == [(None, None)]
        assert all(values == country("FR") for _, values in reader.read_keys([row[0] for row in rows]))


def test_a_daily_overwrite_returns_the_latest_rows_and_does_not_grow(make_harness):
    harness = make_harness({"viewed": Set(String)}, compaction={"min_rows": 100})
    sizes = []
    for day in range(12):
        rows = {user: {"viewed": strings(f"day-{day:02}-item-{user % 7}")} for user in range(300)}
        harness.write_users(rows, hours=24 * day)
        harness.opened.vacuum()
        stats = harness.opened.stats()
        sizes.append((stats.snapshot_bytes, len(list((harness.folder / "rows").glob("*.parquet")))))
        assert stats.vocabulary_sizes == {"viewed": 7}, "values of earlier days are retired"
    # A table that shows too much under its salt is made anew a little larger. A header is padded.
    assert abs(sizes[-1][0] - sizes[0][0]) <= 64 + 0.02 * sizes[0][0]
    assert sizes[-1][1] <= 2
    for user, values in enumerate(harness.reopened().shown(*range(300))):
        assert f"day-11-item-{user % 7}" in values["viewed"].string_set_val.val


def test_a_running_reader_outlives_compaction_and_vacuum(make_harness):
    writer = make_harness({"country": String}, refresh="0", **UNSEALED)
    reader = writer.reopened()
    for number in range(5):
        writer.write(1, country(f"c{number}"), NOON + timedelta(seconds=number))
        assert reader.countries(1) == [f"c{number}"]
        assert writer.seal()
        writer.opened.vacuum(orphan_age_seconds=0)
        assert reader.countries(1, 2) == [f"c{number}", None]
        writer.delete(1)
        assert reader.countries(1) == [None]


def test_a_vacuum_between_looking_and_reading_is_survived(make_harness, monkeypatch):
    writer = make_harness({"country": String}, **UNSEALED)
    for user in range(3):
        writer.write(user, country(f"c{user}"))
    writer.opened.absorb()
    read_file = DataFile.batches

    def read_file_after_a_vacuum(file, *arguments):
        monkeypatch.setattr(DataFile, "batches", read_file)
        writer.delete(1)
        assert writer.seal()
        assert writer.opened.vacuum(orphan_age_seconds=-1) > 0
        return read_file(file, *arguments)

    reader = writer.reopened()
    monkeypatch.setattr(DataFile, "batches", read_file_after_a_vacuum)
    assert reader.countries(0, 1, 2) == ["c0", None, "c2"]


def test_when_the_newest_snapshot_is_damaged_deleted_rows_do_not_come_back(make_harness, caplog):
    harness = make_harness({"country": String}, **UNSEALED)
    harness.write(1, country("gone"))
    harness.write(2, country("stays"))
    assert harness.seal()
    harness.delete(1)
    assert harness.seal()  # compacts: the deletion itself is forgotten
    newest = sorted((harness.folder / "snapshots").glob("*.base.*"))[-1]
    newest.write_bytes(b"junk")
    assert harness.reopened().countries(1, 2) == [None, "stays"]
    assert newest.name in caplog.text


def test_vacuum_keeps_young_orphans_and_live_files(make_harness):
    harness = make_harness({"country": String})
    harness.write(1, country("FR"))
    assert harness.seal()
    orphan = harness.folder / "rows" / "part-of-a-writer-that-is-not-done.parquet"
    orphan.write_bytes(b"not committed yet")
    view = harness.opened
    assert view.vacuum() == 0
    assert orphan.exists()
    assert view.vacuum(orphan_age_seconds=-1) == 1
    assert not orphan.exists()
    assert harness.reopened().countries(1) == ["FR"]


@pytest.mark.parametrize("part", ["base", "order"])
def test_vacuum_keeps_the_snapshot_before_one_that_cannot_be_read_whole(make_harness, part):
    harness = make_harness({"country": String})
    for number in range(2):
        harness.write(number, country("FR"))
        assert harness.seal()
    newest = sorted((harness.folder / "snapshots").glob(f"*.{part}.*"))[-1]
    sound = newest.read_bytes()
    newest.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    view = harness.opened
    view.vacuum()
    assert len(view.shards[0].snapshots.list()) == 2
    newest.write_bytes(sound)
    view.vacuum()
    assert len(view.shards[0].snapshots.list()) == 1
    assert harness.reopened().countries(0, 1) == ["FR", "FR"]


@pytest.mark.parametrize("options", STATES)
class TestTimeToLive:
    """With ``ttl: {expire: true}`` the view's ``ttl`` is applied to reads and seals."""

    @pytest.fixture
    def harness(self, make_harness, make_view, options):
        view = make_view({"country": String})
        view.ttl = timedelta(days=15)
        return make_harness(view=view, ttl={"expire": True}, **options)

    def test_expired_rows_are_not_returned(self, harness):
        now = datetime.now(UTC)
        for user, age in enumerate((0, 1, 14, 16, 400)):
            harness.write(user, country(f"c{age}"), now - timedelta(days=age))
        assert harness.reopened().countries(*range(5)) == ["c0", "c1", "c14", None, None]

    def test_many_timestamps_expire_in_steps_never_early(self, harness):
        now = datetime.now(UTC)
        ages = [timedelta(hours=6 * n) for n in range(100)]  # 25 days
        rows = [(harness.key(user_id=n), country("FR"), now - age, None) for n, age in enumerate(ages)]
        harness.write_many(rows)
        for age, (timestamp, values) in zip(ages, harness.reopened().read(*range(100)), strict=True):
            if age < timedelta(days=14, hours=23):
                assert values is not None
                assert now - age - timedelta(days=1) <= timestamp <= now - age
            if age > timedelta(days=16, hours=1):
                assert values is None


@pytest.fixture
def clock(monkeypatch):
    """Sets the wall clock that rows expire by: an offset to the real one."""
    real, offset = time.time_ns, timedelta(0)

    def now_ns():
        return real() + offset // timedelta(microseconds=1) * 1000

    monkeypatch.setattr("feast_sketch_store.view.live_shard.time.time_ns", now_ns)

    def set_offset(to):
        nonlocal offset
        offset = to

    return set_offset


class TestExpiredRowsAreKeptForAWhile:
    """A wrong clock or a wrong ttl hides rows, and does not destroy them."""

    @pytest.fixture(params=["filter", "sets", "exact"])
    def make(self, request, make_harness, make_view):
        def make(ttl=timedelta(days=2), keep="7d", **options):
            features = {"country": String}
            if request.param == "exact":
                options["default_codec"] = "exact"
            if request.param == "sets":  # which list their rows, by steps of time
                features, options["target"] = {**features, "viewed": Set(String)}, "auto"
            view = make_view(features)
            view.ttl = ttl
            options |= {"ttl": {"expire": True, "keep": keep}, **UNSEALED}
            return make_harness(view=view, **options)

        return make

    AGES = tuple(timedelta(hours=h) for h in range(0, 47, 2))

    def write(self, harness, ages):
        now = datetime.now(UTC)
        values = {**country("FR"), "viewed": strings("a")}
        values = {field.name: values[field.name] for field in harness.view.features}
        rows = [(harness.key(user_id=n), values, now - age, None) for n, age in enumerate(ages)]
        harness.write_many(rows)

    @pytest.mark.parametrize(
        "ahead", [timedelta(days=1), timedelta(days=30), timedelta(days=36_500)], ids=str
    )
    def test_a_seal_while_the_clock_is_ahead_loses_nothing(self, make, clock, ahead):
        harness = make()
        self.write(harness, self.AGES)
        clock(ahead)
        assert harness.seal()
        clock(timedelta(0))
        assert harness.reopened().countries(*range(len(self.AGES))) == ["FR"] * len(self.AGES)

    def test_reads_hide_what_a_seal_keeps(self, make, clock):
        harness = make()
        self.write(harness, [timedelta(days=d) for d in (0, 1, 3, 8)])
        assert harness.countries(*range(4)) == ["FR", "FR", None, None]
        assert harness.seal()
        assert harness.opened.stats().sealed_entities == 4
        assert harness.reopened().countries(*range(4)) == ["FR", "FR", None, None]

    def test_a_corrected_ttl_brings_rows_back(self, make):
        harness = make()
        self.write(harness, [timedelta(days=d) for d in (0, 1, 3, 8)])
        assert harness.seal()
        harness.view.ttl = timedelta(days=5)
        assert harness.reopened().countries(*range(3)) == ["FR", "FR", "FR"]
        assert harness.seal()
        assert harness.reopened().countries(*range(4)) == ["FR", "FR", "FR", None]

    @pytest.mark.parametrize(("ttl", "keep"), [(timedelta.max, "7d"), (timedelta(2), "999999999d")])
    def test_a_time_longer_than_the_calendar_is_no_limit(self, make, ttl, keep):
        harness = make(ttl, keep)
        ages = [timedelta(days=d) for d in (0, 1, 3, 700_000)]
        self.write(harness, ages)
        wanted = ["FR" if age < ttl else None for age in ages]
        for _ in range(2):
            assert harness.countries(*range(4)) == wanted
            reader = SketchReader(harness.config.online_store.path, "history", "shop", ttl=ttl)
            assert reader.exists(range(4)).tolist() == [text is not None for text in wanted]
            assert harness.seal()
        assert harness.opened.stats().sealed_entities == 4

    def test_expired_rows_are_told_and_withheld(self, make, caplog):
        """Once for each view and process, at the write as at a read."""
        harness = make()
        ages = [timedelta(days=d) for d in (0, 1, 3, 8)]
        self.write(harness, ages)
        (warning,) = caplog.messages
        assert "2 of 4 rows written of feature view 'history' are older than its ttl of 2d" in warning
        self.write(harness, ages)
        assert len(caplog.messages) == 1
        for state in ("unsealed", "sealed"):
            kept, late = ("FR", FieldStatus.PRESENT), ("", FieldStatus.OUTSIDE_MAX_AGE)
            absent = "", FieldStatus.NOT_FOUND
            assert answered(harness, *range(6)) == [kept, kept, late, late, absent, absent], state
            assert answered(harness, 3, 0, 3) == [late, kept, late]
            assert harness.seal()
        self.write(harness, [timedelta(0)] * 3)  # a newer row of one of those
        assert answered(harness, 2, 3) == [kept, late]
        assert len(caplog.messages) == 1

    def test_an_asynchronous_write_warns_too(self, make, caplog, monkeypatch):
        harness = make()
        store = harness.store

        def write(*arguments):
            asyncio.run(store.online_write_batch_async(*arguments))

        monkeypatch.setattr(store, "online_write_batch", write)
        self.write(harness, [timedelta(0), timedelta(days=8)])
        (warning,) = caplog.messages
        assert "1 of 2 rows written of feature view 'history'" in warning

    def test_a_read_of_another_process_warns_with_counts(self, make, caplog, monkeypatch):
        harness = make()
        self.write(harness, [timedelta(days=d) for d in (0, 3, 8)])
        monkeypatch.setattr("feast_sketch_store.adapter.advice._warned", set())
        caplog.clear()
        for _ in range(2):
            assert harness.reopened().countries(*range(4)) == ["FR", None, None, None]
        (warning,) = caplog.messages
        assert "2 of 4 rows read of feature view 'history'" in warning
        assert "`expire: false`" in warning

    def test_nothing_is_told_where_rows_do_not_expire(self, make, caplog):
        harness = make()
        harness.config.online_store.ttl = Ttl(expire=False)
        self.write(harness, [timedelta(days=400)])
        for _ in range(2):
            assert harness.reopened().countries(0) == ["FR"]
            assert harness.seal()
        assert caplog.messages == []

    @pytest.mark.parametrize(
        ("options", "kept"),
        [({}, 4), ({"keep": "0"}, 2), ({"keep": "36h"}, 3)],
        ids=["a week by default", "not at all", "36 hours"],
    )
    def test_rows_leave_the_disk_when_they_expired_long_ago(self, make, options, kept):
        harness = make(**options)
        self.write(harness, [timedelta(days=d) for d in (0, 1, 3, 8, 10)])
        assert harness.seal()
        harness.opened.vacuum()
        assert harness.opened.stats().sealed_entities == kept
        rows = [
            row
            for path in (harness.folder / "rows").glob("*.parquet")
            for row in pq.read_table(path).to_pylist()
        ]
        assert sorted(row["user_id"] for row in rows) == list(range(kept))

    def test_a_row_from_the_future_drops_no_other(self, make):
        harness = make(keep="0")
        self.write(harness, [timedelta(days=-3650), *self.AGES])
        assert harness.seal()
        assert harness.reopened().countries(*range(25)) == ["FR"] * 25

    def test_a_deletion_does_not_count_as_an_event(self, make, clock):
        """Its time is the clock's, which may be ahead."""
        harness = make()
        self.write(harness, self.AGES)
        clock(timedelta(days=365))
        harness.delete(0)
        assert harness.seal()
        clock(timedelta(0))
        rest = len(self.AGES) - 1
        assert harness.reopened().countries(*range(rest + 1)) == [None, *["FR"] * rest]


@pytest.mark.parametrize("num_shards", [1, 4])
@pytest.mark.parametrize("options", STATES)
def test_rows_that_come_too_late_to_count_are_logged_once(
    make_harness, make_view, caplog, options, num_shards
):
    view = make_view({"country": String}, name=f"late_{num_shards}_{options['compaction']['min_rows']}")
    harness = make_harness(view=view, shards=num_shards, **options)
    users = range(20)

    def write(hours):
        rows = [(harness.key(user_id=u), country(f"{hours}"), harness.noon(hours), None) for u in users]
        harness.write_many(rows)
        assert len({*harness.countries(*users)}) == 1

    write(0)
    write(0)  # the same rows again are not late
    write(2)
    assert not [r for r in caplog.records if "are ignored" in r.message]
    write(1)
    write(1)
    (record,) = [r for r in caplog.records if "are ignored" in r.message]
    assert f"feature view {view.name!r}" in record.message
    number = record.args[1]
    assert number == record.args[2]
    assert number == 20 if num_shards == 1 else 0 < number <= 20  # each shard has its own rows of the batch
    assert harness.countries(*users) == ["2"] * 20
