"""Processes that are stopped, or miss an answer, while others use the same bucket: nothing is lost."""

import itertools
import os
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime
from unittest.mock import patch

import obstore
import pytest
from obstore.store import MemoryStore

from feast_sketch_store.errors import StorageError
from feast_sketch_store.operations import resharding
from feast_sketch_store.operations.resharding import divide, former_files, remove_former
from feast_sketch_store.row_log import wal_objects
from feast_sketch_store.row_log.table import Table
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.encoding import deletions
from feast_sketch_store.snapshot.files import SnapshotFolder
from feast_sketch_store.storage import object_store
from feast_sketch_store.storage.base import UncertainWriteError
from feast_sketch_store.storage.object_store import ObjectStorage
from feast_sketch_store.storage.objects import Objects
from feast_sketch_store.view.last_known import LastKnown
from feast_sketch_store.view.opening import open_view
from feast_sketch_store.view.rebuilding import rebuild
from feast_sketch_store.view.seal_policy import SealPolicy
from feast_sketch_store.view.view import View
from tests.helpers.histories import NEVER, items_of, put, row, settings_of
from tests.helpers.keys import user_key
from tests.helpers.meanwhile import once_after, once_before

SETTINGS = settings_of(1e-9, presence=1e-9)
IN_FOUR = replace(SETTINGS, num_shards=4)


class Bucket:
    """Objects in memory; each storage is one of another process."""

    def __init__(self):
        self.objects, self._numbers = MemoryStore(), itertools.count()

    def storage(self, **options):
        process = Objects(self.objects, "s3://bucket", f"bucket {next(self._numbers)}")
        return ObjectStorage(process, "store/", **options).within("view/")

    def view(self):
        return View(self.storage(), SETTINGS, NEVER, 0.0)

    def opened(self, settings=SETTINGS):
        return open_view(self.storage(), settings, NEVER, 0.0)

    def divide(self):
        divide(self.storage(), IN_FOUR, NEVER, lambda seconds: None)

    def paths(self):
        return [info["path"] for chunk in obstore.list(self.objects) for info in chunk]


@pytest.fixture
def bucket():
    return Bucket()


# -- the log -----------------------------------------------------------------------------------


def test_a_first_write_while_the_log_is_absorbed(bucket, monkeypatch):
    monkeypatch.setattr(wal_objects, "RECORDS_KEPT_SECONDS", 0.0)
    first = bucket.view()
    second = View(bucket.storage(), SETTINGS, SealPolicy(by_job=True), 0.0)  # which only appends
    for user in range(6):
        put(first, {user: ["a"]}, user)
    with once_before(second.shards[0].row_log._wal, "_records", first.absorb):
        put(second, {50: ["b"]}, 9)
    assert items_of(bucket.view(), [5, 50]) == {5: {"a"}, 50: {"b"}}


def test_files_that_were_committed_meanwhile_are_not_discarded(bucket, monkeypatch):
    monkeypatch.setattr(wal_objects, "RECORDS_KEPT_SECONDS", 0.0)
    first, second = bucket.view(), bucket.view()
    for user in range(2):
        put(first, {user: ["a"]}, user)
    first.absorb()
    for user in range(2, 6):
        put(first, {user: ["a"]}, user)
    files = list(second.stage([second.to_table([[row(user, "job") for user in range(100, 140)]])], "job-1-"))
    logs = [view.shards[0].row_log._wal for view in (first, second)]
    drop = logs[0].drop_before
    dropped = []

    def commit_first(number):
        second.commit_staged(files)
        with once_before(logs[1], "_records", lambda: drop(number)):
            dropped.append(second.discard_staged("job-1-"))

    with patch.object(logs[0], "drop_before", commit_first):
        first.absorb()
    assert dropped == [0]
    assert items_of(bucket.view(), range(100, 140)) == {user: {"job"} for user in range(100, 140)}


# -- leases ------------------------------------------------------------------------------------


def test_a_lease_outlives_a_request_that_fails(bucket, monkeypatch):
    monkeypatch.setattr(object_store, "_RENEWED_EVERY_SECONDS", 0.01)
    holder, renewed, failed = bucket.storage(), threading.Event(), []
    objects = holder._objects
    read_all, replace_ = objects.read_all, objects.replace

    def fail_once(key):
        if not failed:
            failed.append(key)
            raise StorageError("the object store answers 503")
        return read_all(key)

    def noticed(*arguments):
        done = replace_(*arguments)
        renewed.set()
        return done

    objects.read_all, objects.replace = fail_once, noticed
    with holder.lease("seal.lock") as is_mine:
        assert is_mine
        assert renewed.wait(30)
    assert failed


def test_a_rebuild_without_its_lease_changes_nothing(bucket, monkeypatch):
    monkeypatch.setattr(object_store, "LEASE_SECONDS", 0.0)
    first, second = bucket.view(), bucket.view()
    put(first, {user: ["old"] for user in range(40)})
    first.seal()

    def fill(staging):
        put(View(staging, SETTINGS, NEVER, 0.0), {user: ["new"] for user in range(40)}, 1)
        put(second, {user: ["meanwhile"] for user in range(30, 60)}, 2)
        second.seal()
        return staging

    with pytest.raises(StorageError, match="another process changed"):
        rebuild(first, fill)
    bucket.view().seal()
    wanted = {user: {"old"} if user < 30 else {"meanwhile"} for user in range(60)}
    assert items_of(bucket.view(), range(60)) == wanted


def test_of_two_rebuilds_at_once_each_fills_a_folder_of_its_own(bucket, monkeypatch):
    monkeypatch.setattr(object_store, "LEASE_SECONDS", 0.0)
    first, second = bucket.view(), bucket.view()
    put(first, {user: ["old"] for user in range(40)})

    def fill_with(word, meanwhile=lambda: None):
        def fill(staging):
            view = View(staging, SETTINGS, NEVER, 0.0)
            put(view, {user: [word] for user in range(20)}, 1)
            meanwhile()
            put(view, {user: [word] for user in range(20, 40)}, 2)
            return staging

        return fill

    # The second one succeeds; the first one finds that it came too late.
    with pytest.raises(StorageError, match="another process changed"):
        rebuild(first, fill_with("first", lambda: rebuild(second, fill_with("second"))))
    assert items_of(bucket.view(), range(40)) == {user: {"second"} for user in range(40)}


# -- another division --------------------------------------------------------------------------


def test_a_fill_fails_whose_rows_are_divided_before_it_commits(bucket):
    view = bucket.opened()
    put(view, {1: ["a"]})
    files = list(view.stage([view.to_table([[row(user, "job") for user in range(40)]])], "job-1-"))

    def divided():
        bucket.divide()
        view.registration._checked_at = -1e9  # more than ten seconds have passed

    with (
        once_before(view.shards[0], "commit_staged", divided),
        pytest.raises(UncertainWriteError, match="divided into 4 shards"),
    ):
        view.commit_staged(files)


def test_a_writer_that_was_stopped_does_not_take_a_division_back(bucket, monkeypatch):
    put(bucket.opened(), {1: ["before"]})
    more = FeatureCodec("also", "string_set_val")
    features = {**SETTINGS.features, "also": replace(SETTINGS.features["viewed"], codec=more)}
    stopped = bucket.opened(replace(SETTINGS, features=features))

    def meanwhile():
        bucket.divide()
        put(bucket.opened(), {1: ["after"]}, 5)

    monkeypatch.setattr(object_store, "LEASE_SECONDS", 0.0)
    storage = stopped.registration._storage
    with once_before(storage._objects, "replace", meanwhile):
        stopped.prepare()
    assert stopped.shard_map.num_shards == 4
    assert items_of(bucket.opened(), [1]) == {1: {"after"}}


def test_a_division_that_failed_leaves_no_rows(bucket):
    view, other = bucket.opened(), bucket.view()
    put(view, {user: ["a"] for user in range(40)})
    late = other.to_table([[row(50, "late")]])
    with (
        once_after(resharding, "_fill", lambda: other.shards[0].row_log.append(late)),
        pytest.raises(StorageError, match="was written while its rows were divided"),
    ):
        bucket.divide()
    assert not [key for key in bucket.paths() if "/shards-" in key]
    assert items_of(bucket.opened(), [7, 50]) == {7: {"a"}, 50: {"late"}}


@pytest.mark.parametrize(
    ("owner", "step"), [(Table, "_write"), (SnapshotFolder, "publish")], ids=["absorption", "snapshot"]
)
def test_a_seal_whose_files_a_vacuum_has_removed_changes_nothing(bucket, monkeypatch, owner, step):
    """It paused for a day, so that its lease had ended, and its files counted as leftovers."""
    monkeypatch.setattr(object_store, "LEASE_SECONDS", 0.0)
    view = bucket.opened()
    expected = put(view, {1: ["a"], 2: ["b"]})
    view.seal()
    expected |= put(view, {2: ["c"]}, 1)

    def vacuum():
        assert bucket.opened().vacuum(orphan_age_seconds=-1.0) > 0

    with once_before(owner, step, vacuum), pytest.raises(StorageError, match="was removed before"):
        view.seal()
    for one in (view, bucket.opened()):
        assert items_of(one, [1, 2]) == expected
    assert view.seal()
    assert items_of(bucket.opened(), [1, 2]) == expected


def test_a_vacuum_removes_what_a_killed_division_of_an_undivided_view_left(bucket):
    view = bucket.opened()
    put(view, {user: ["a"] for user in range(4)})
    left = view.storage.within("shards-0-4/0/")
    put(View(left, SETTINGS, NEVER, 0.0), {7: ["secret"]})
    assert former_files(view.storage, view.shard_map)
    assert remove_former(view.storage) > 0
    assert not [key for key in bucket.paths() if "/shards-" in key]


# -- the cache ---------------------------------------------------------------------------------


def test_only_fetched_files_are_deleted_from_the_cache(bucket, tmp_path):
    writer = bucket.opened()
    put(writer, {1: ["a"]})
    writer.seal()
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    fetched = tmp_path / f"{'0f' * 16}.partial"
    fetched.write_bytes(b"half")
    for path in tmp_path.iterdir():
        os.utime(path, (0, 0))
    storage = bucket.storage(read_only=True, cache_path=tmp_path)
    replica = open_view(storage, SETTINGS, NEVER, 1000.0, is_replica=True)
    assert items_of(replica, [1]) == {1: {"a"}}
    assert (tmp_path / "lost+found").is_dir()
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert not fetched.exists()


def test_the_cache_keeps_no_file_of_rows_that_a_delete_would_not_reach(bucket, tmp_path):
    writer = bucket.opened()
    put(writer, {user: ["secret"] for user in range(9000)})
    assert any(key.endswith(".parquet") for key in bucket.paths())
    storage = bucket.storage(read_only=True, cache_path=tmp_path)
    replica = open_view(storage, SETTINGS, NEVER, 0.0, is_replica=True)
    assert items_of(replica, [1]) == {1: {"secret"}}
    writer.delete(deletions([user_key(user) for user in range(9000)], datetime.now(UTC)))
    writer.seal()
    replica.poll()
    assert items_of(replica, [1]) == {}
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert kept
    assert not [path for path in kept if b"secret" in path.read_bytes() or b"PAR1" in path.read_bytes()]


def test_rows_that_could_not_be_kept_are_kept_by_a_later_look(bucket, tmp_path):
    writer = bucket.opened()
    put(writer, {5: ["old"], 6: ["a"]})
    writer.seal()
    storage = bucket.storage(read_only=True, cache_path=tmp_path)
    replica = open_view(storage, SETTINGS, NEVER, 1000.0, is_replica=True)
    assert items_of(replica, [5]) == {5: {"old"}}
    put(writer, {5: ["new"]}, 1)
    with patch.object(LastKnown, "_with_rows", side_effect=OSError(28, "No space left on device")):
        replica.poll()
    replica.poll()
    assert items_of(replica, [5]) == {5: {"new"}}
    replica.close()

    class Down:
        def __getattr__(self, name):
            raise OSError("the bucket is down")

    storage._objects._store = Down()
    again = open_view(storage, SETTINGS, NEVER, time.monotonic(), is_replica=True)
    assert items_of(again, [5]) == {5: {"new"}}
