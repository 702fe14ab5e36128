"""What the tasks of an engine write and its job commits, without Spark or Ray around them."""

import copy
import tracemalloc
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from unittest.mock import Mock

import pyarrow as pa
import pytest
from feast.feature_view import DUMMY_ENTITY_ID, DUMMY_ENTITY_VAL
from feast.field import Field
from feast.infra.common.serde import SerializedArtifacts
from feast.types import Array, Int64, String

from feast_sketch_store.engines import seal_job, write_job
from feast_sketch_store.engines.write_job import WriteJob
from feast_sketch_store.errors import RowError, ShardError, SketchStoreError, StorageError
from feast_sketch_store.layers.joint import SharedVocabularies
from feast_sketch_store.operations.resharding import divide
from feast_sketch_store.rows import limits
from feast_sketch_store.settings.table import Refresh
from feast_sketch_store.view import opening
from feast_sketch_store.view.opening import open_view
from feast_sketch_store.view.shard_map import ShardMap
from feast_sketch_store.view.view_file import put_map
from tests.helpers.values import strings

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
ALONE = seal_job.pack(*seal_job.describe_joint(SharedVocabularies({}, False)))  # nothing that shards share


def batch(users, **more):
    """Rows as an engine has them, with a column that the view lacks."""
    table = pa.table(
        {
            "user_id": pa.array(users, pa.int64()),
            "viewed": pa.array([[f"item {user}", "all"] for user in users], pa.list_(pa.string())),
            "event_timestamp": pa.array([NOON] * len(users), pa.timestamp("us", "UTC")),
            "row_number": pa.array([1] * len(users)),
            **more,
        }
    )
    return table.to_batches()[0]


def run(job, *batches):
    """One run of a task: its report."""
    reports = list(write_job.write(iter(batches), job.artifacts, job.label))
    return pa.Table.from_batches(reports)


def values_of(harness, *users):
    shown = harness.reopened().shown(*users)
    return [None if values is None else set(values["viewed"].string_set_val.val) for values in shown]


@pytest.fixture
def harness(make_harness):
    return make_harness(structure="sets")  # which show nothing that was not written


def job_of(harness):
    return WriteJob(harness.config, harness.view, harness.store)


def files_of(harness):
    return sorted(path.name for path in harness.folder.glob("rows/*.parquet"))


def view_of(harness):
    view = harness.reopened().opened
    view.refresh()
    return view


def test_rows_of_all_tasks_count_and_are_sealed_once(harness):
    with job_of(harness) as job:
        reports = [run(job, batch([1, 2]), batch([3])), run(job, batch([4])), run(job)]
        assert values_of(harness, 1, 4) == [None, None]
        job.finish(reports, 4)
    assert values_of(harness, 1, 2, 3, 4, 5) == [{f"item {n}", "all"} for n in (1, 2, 3, 4)] + [None]
    stats = view_of(harness).stats()
    assert (stats.sealed_entities, stats.unsealed_rows) == (4, 0)
    assert all(name.startswith(job.label) for name in files_of(harness))


def test_a_view_that_a_job_seals_is_not_sealed(make_harness):
    harness = make_harness(compaction="job")
    with job_of(harness) as job:
        job.finish([run(job, batch([1]))], 1)
    assert view_of(harness).stats().unsealed_rows == 1


def test_a_task_that_ran_twice_leaves_nothing_behind(harness):
    with job_of(harness) as job:
        run(job, batch([1]))  # died after it wrote, or was slower than its twin
        job.finish([run(job, batch([1]))], 1)
    assert len(files_of(harness)) == 1
    assert view_of(harness).stats().sealed_entities == 1


@pytest.mark.parametrize("num_rows", [2, 4])
def test_a_job_of_other_rows_than_were_written_fails_and_commits_nothing(harness, num_rows):
    with (
        pytest.raises(StorageError, match=f"has {num_rows} rows, its tasks were given 3 and wrote 3"),
        job_of(harness) as job,
    ):
        job.finish([run(job, batch([1, 2, 3]))], num_rows)
    assert values_of(harness, 1, 2, 3) == [None] * 3
    assert files_of(harness) == []


def test_a_file_that_is_missing_from_a_report_fails_the_job(harness):
    with job_of(harness) as job:
        report = run(job, batch([1]))
        with pytest.raises(StorageError, match="were given 1 and wrote 0"):
            job.finish([report.slice(1)], 1)


def test_a_report_that_counts_twice_fails_the_job(harness):
    with job_of(harness) as job:
        report = run(job, batch([1]))
        with pytest.raises(StorageError, match="a file twice"):
            job.finish([report, report], 2)
    assert values_of(harness, 1) == [None]


def test_a_file_that_is_gone_fails_the_job(harness):
    with job_of(harness) as job:
        report = run(job, batch([1]))
        (harness.folder / "rows" / files_of(harness)[0]).unlink()
        with pytest.raises(StorageError, match="nothing was committed"):
            job.finish([report], 1)


def test_a_row_that_cannot_be_kept_fails_the_task(harness):
    with pytest.raises(RowError, match="feature view 'history': join key 'user_id'"), job_of(harness) as job:
        run(job, batch([1, None]))
    assert files_of(harness) == []


def test_the_row_of_a_view_without_entities_is_written(make_harness, make_view):
    view = make_view(entities=[])
    view.entity_columns = [Field(name=DUMMY_ENTITY_ID, dtype=String)]  # as `feast apply` infers it
    harness = make_harness(view=view, structure="sets")
    with job_of(harness) as job:
        job.finish([run(job, batch([1, 2]).drop_columns(["user_id"]))], 2)
    ((_, values),) = harness.reopened().read_keys([harness.key(**{DUMMY_ENTITY_ID: DUMMY_ENTITY_VAL})])
    assert {*values["viewed"].string_set_val.val} == {"item 2", "all"}


def test_small_batches_are_one_file_whose_rows_are_checked_together(harness, monkeypatch):
    monkeypatch.setattr(write_job, "_ROWS", 4)
    with job_of(harness) as job:
        job.finish([run(job, *(batch([n]) for n in range(10)))], 10)
    assert len(files_of(harness)) == 1
    assert view_of(harness).stats().sealed_entities == 10


def peak_of_task(job, num_batches):
    """The most bytes that a task holds in Arrow while it asks for rows, and takes in Python with NumPy."""
    before, held = pa.total_allocated_bytes(), []
    viewed = pa.array([[f"item {n % 50}"] for n in range(1_000)])

    def given():
        for first in range(0, 1_000 * num_batches, 1_000):
            held.append(pa.total_allocated_bytes() - before)
            yield batch(range(first, first + 1_000), viewed=viewed)

    tracemalloc.start()
    try:
        (report,) = write_job.write(given(), job.artifacts, job.label)
        assert sum(filter(None, report["num_rows"].to_pylist())) == 1_000 * num_batches
        return max(held) + tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_the_memory_of_a_task_does_not_grow_with_its_rows(harness, monkeypatch):
    monkeypatch.setattr(write_job, "_ROWS", 2_000)
    monkeypatch.setattr(limits, "GROUP_ROWS", 2_000)
    with job_of(harness) as job:
        run(job, batch([1]))  # opens the view
        # The least of three: threads that other tests left in this process allocate too.
        few, many = (min(peak_of_task(job, num_batches) for _ in range(3)) for num_batches in (8, 40))
    assert many < 1.25 * few


def test_a_newer_row_that_was_there_wins(harness):
    harness.write(1, {"viewed": strings("newer")}, harness.noon(1))
    with job_of(harness) as job:
        job.finish([run(job, batch([1, 2]))], 2)
    assert values_of(harness, 1, 2) == [{"newer"}, {"item 2", "all"}]


def test_rows_of_lists_go_the_same_way(make_harness, make_view):
    seen = Field(name="seen", dtype=Array(Int64), tags={"sketch.codec": "list"})
    view = make_view([seen])
    view.ttl = timedelta(days=36_500)
    harness = make_harness(view=view)
    with job_of(harness) as job:
        rows = batch([1, 2]).drop_columns(["viewed"])
        rows = pa.Table.from_batches([rows]).append_column("seen", pa.array([[1, 2], [3]]))
        job.finish([run(job, *rows.to_batches())], 2)
    shown = harness.reopened().shown(1, 2)
    assert [sorted(values["seen"].int64_list_val.val) for values in shown] == [[1, 2], [3]]
    for keys, text in (([1.0, 5.7], r"'user_id'.*row 1.*5\.7"), ([None, 1.0], "'user_id' is null in row 0")):
        wrong = rows.set_column(rows.column_names.index("user_id"), "user_id", pa.array(keys))
        with pytest.raises(RowError, match=text), job_of(harness) as job:
            run(job, *wrong.to_batches())


def test_a_job_does_not_commit_into_shards_that_the_view_had_before(harness):
    job = job_of(harness)
    report = run(job, batch([1, 2]))
    # As a move of all rows ends.
    put_map(harness.opened.storage, harness.opened.settings, ShardMap().followed_by(4), [ShardMap()])
    with (
        pytest.raises(ShardError, match="divided into 4 shards after tasks wrote files for other ones"),
        job,
    ):
        job.finish([report], 2)


def test_a_job_whose_view_was_dropped_meanwhile_says_so(harness):
    job = job_of(harness)
    report = run(job, batch([1, 2]))
    harness.drop()
    with pytest.raises(StorageError, match=r"and it is gone: the view was dropped meanwhile, .*Run the"), job:
        job.finish([report], 2)


def test_a_replica_does_not_start_a_job(harness):
    config = harness.config.model_copy()
    config._online_store = harness.config.online_store.model_copy(update={"read_only": True})
    with pytest.raises(StorageError, match="read_only: true"):
        WriteJob(config, harness.view, harness.store)


def test_another_store_is_refused(make_harness):
    harness = make_harness(type="sqlite")
    with pytest.raises(SketchStoreError, match="SqliteOnlineStore"):
        job_of(harness)


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        ({"return_value": False}, "another process is sealing it"),
        ({"side_effect": StorageError("the disk is full")}, "the disk is full"),
        ({"side_effect": MemoryError()}, "divide the view into more shards"),
    ],
)
def test_a_job_whose_seal_fails_keeps_its_rows_unsealed(harness, monkeypatch, caplog, outcome, reason):
    with job_of(harness) as job:
        report = run(job, batch([1]))
        monkeypatch.setattr(harness.opened, "_seal", Mock(**outcome))
        job.finish([report], 1)
    assert f"{reason}; the rows are kept, a later write seals them" in caplog.text
    assert values_of(harness, 1) == [{"item 1", "all"}]


# -- stores of a worker ---------------------------------------------------------------------------


@pytest.fixture
def in_worker(monkeypatch):
    monkeypatch.setattr(opening, "is_worker", lambda: True)
    monkeypatch.setattr("feast_sketch_store.adapter.open_views.is_worker", lambda: True)
    monkeypatch.setattr(opening, "_shared", {})


def test_stores_of_a_worker_share_their_views(harness, in_worker):
    views = [harness.reopened().opened for _ in range(2)]
    assert views[0] is views[1]
    assert harness.opened is not views[0]  # made before


def test_a_view_of_a_worker_is_opened_anew_for_other_options(harness, in_worker):
    first = harness.reopened().opened
    other = copy.copy(harness.config)
    other._online_store = harness.config.online_store.model_copy(
        update={"refresh": Refresh(timedelta(seconds=7))}
    )
    assert harness.reopened().store.view(other, harness.view) is not first


def test_a_worker_that_stays_seals_with_the_present_settings(make_harness, in_worker):
    """Its second task is of a job after ``feast apply`` with a longer ttl."""
    harness, now = make_harness(ttl={"expire": True, "keep": "0s"}), datetime.now(UTC)
    harness.write(1, {"viewed": strings("a")}, now - timedelta(days=3))
    harness.write(2, {"viewed": strings("a")}, now)
    row_log = harness.opened.shards[0].row_log
    for days, num_rows in ((1, 1), (30, 2)):
        harness.view.ttl = timedelta(days=days)
        request = seal_job.request_of(seal_job.COUNT, 0, "", row_log.absorb())
        counted = seal_job.run_step(
            request, SerializedArtifacts.serialize(harness.view, harness.config), ALONE
        )
        assert seal_job.unpack_counts(counted).num_rows == num_rows


def test_a_worker_that_stays_seals_the_shards_of_the_driver(make_harness, in_worker):
    """It opened the view before the rows were divided, and checks every second whether they were."""
    harness = make_harness()
    harness.write_users({user: {"viewed": strings("a")} for user in range(20)})
    artifacts = SerializedArtifacts.serialize(harness.view, harness.config)
    worker = harness.opened
    assert worker.seal()
    storage, settings = worker.storage, replace(worker.settings, num_shards=2)
    former = open_view(storage, settings)

    def count(driver, number):
        rows = driver.shards[number].row_log.absorb()
        request = seal_job.request_of(seal_job.COUNT, number, driver.shard_map.folder, rows)
        return seal_job.unpack_counts(seal_job.run_step(request, artifacts, ALONE)).num_rows

    assert count(former, 0) == 20
    divide(storage, settings, worker.policy, wait=lambda seconds: None)
    assert sum(count(open_view(storage, settings), number) for number in range(2)) == 20
    with pytest.raises(StorageError, match="divided into other shards meanwhile; seal again"):
        count(former, 0)


def test_a_process_that_is_no_worker_shares_nothing(harness):
    assert not opening.is_worker()
    views = [harness.reopened().opened for _ in range(2)]
    assert views[0] is not views[1]
