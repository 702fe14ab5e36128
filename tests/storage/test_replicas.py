"""Replicas of a view in a bucket: how they start, what they serve when the bucket is out of reach."""

import datetime
import gc
import itertools
import json
import os
import threading
import time
import weakref
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import obstore
import pytest
from obstore.store import MemoryStore

from feast_sketch_store import SketchReader
from feast_sketch_store.errors import StorageError
from feast_sketch_store.row_log import RowLog
from feast_sketch_store.rows.encoding import deletions
from feast_sketch_store.snapshot import order
from feast_sketch_store.storage.buckets import _objects, open_bucket
from feast_sketch_store.storage.local import LocalStorage
from feast_sketch_store.storage.object_store import ObjectStorage
from feast_sketch_store.storage.objects import Objects
from feast_sketch_store.view import last_known, live_shard
from feast_sketch_store.view.background import Poller
from feast_sketch_store.view.holding import pin, unpin
from feast_sketch_store.view.last_known import Moment
from feast_sketch_store.view.opening import open_view
from feast_sketch_store.view.removal import remove_view
from feast_sketch_store.view.view import View
from tests.helpers import object_servers
from tests.helpers.cases import for_each
from tests.helpers.histories import NEVER, items_of, put, settings_of
from tests.helpers.keys import user_hashes, user_key
from tests.helpers.length import by_length
from tests.helpers.meanwhile import once_before
from tests.helpers.no_threads import no_new_threads
from tests.helpers.object_servers import copy_objects
from tests.helpers.proxy import proxy
from tests.oracle.messages import feast_values

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_try")]

SETTINGS = replace(settings_of(1e-6), view="view")
LONG_SECONDS = 1000.0  # between two polls: tests poll themselves


class Writing:
    """A view and its writer."""

    def __init__(self, storage):
        self.writer = View(storage, SETTINGS, NEVER, 0.0)
        self.commits = 0

    def put(self, users, second=0):
        put(self.writer, users, second)
        self.commits += 1

    def delete(self, *users):
        self.writer.delete(deletions([user_key(u) for u in users], datetime.datetime.now(datetime.UTC), None))
        self.commits += 1


class Bucket(Writing):
    """A view in a bucket, its writer, and replicas behind a proxy."""

    def __init__(self, server, link, cache, filled):
        self.url = server.bucket() + "/store"
        super().__init__(open_bucket(self.url, server.options).within("view/"))
        self.server = server
        self.link = link
        self.cache = cache
        self.options = server.options
        self.filled = filled
        self.replicas = weakref.WeakSet()  # a replica that nobody holds ends by itself

    def replica(self, cache=True, make=View, **settings):
        """A replica as another process has it; it is closed at the end of the test."""
        _objects.cache_clear()
        storage = open_bucket(
            self.url, self.link.options(self.options), True, self.cache if cache else None
        ).within("view/")
        replica = make(storage, SETTINGS, NEVER, LONG_SECONDS, is_replica=True, **settings)
        self.replicas.add(replica)
        return replica


@pytest.fixture
def link(moto):
    with proxy(moto.port) as running:
        yield running


@pytest.fixture(scope="module")
def filled():
    """Objects of a view with rows in a snapshot, rows behind it, and a deletion; commits; what reads give."""
    objects = MemoryStore()
    made = Writing(ObjectStorage(Objects(objects, "s3://bucket", "bucket"), "store/").within("view/"))
    made.put({user: [f"a{user}", "milk"] for user in range(20)})
    made.writer.seal()
    made.put({user: [f"b{user}"] for user in range(15, 25)}, second=1)
    made.delete(3, 16)
    expected = {user: {f"a{user}", "milk"} for user in range(15)}
    expected |= {user: {f"b{user}"} for user in range(15, 25)}
    del expected[3], expected[16]
    return objects, made.commits, expected


@pytest.fixture
def bucket(moto, link, tmp_path, filled):
    made = Bucket(moto, link, tmp_path / "cache", filled)
    yield made
    for replica in made.replicas:
        replica.close()


def served(view, num_users=30):
    """What reads give: user -> items."""
    return items_of(view, range(num_users))


def fill(bucket):
    """Copy what is filled into the bucket, which takes few requests. Gives what reads have to give."""
    objects, bucket.commits, expected = bucket.filled
    copy_objects(objects, bucket.server.obstore(bucket.url))
    return dict(expected)


# -- the bucket is out of reach ------------------------------------------------------------------


def test_a_replica_starts_from_the_cache(bucket, caplog):
    expected = fill(bucket)
    assert served(bucket.replica()) == expected
    bucket.link.take_down()
    replica = bucket.replica(max_staleness_seconds=3600)
    assert served(replica) == expected
    reported = replica.freshness()
    assert (reported.state, reported.num_commits, reported.is_ready) == ("STALE", bucket.commits, True)
    assert 0 <= reported.age_seconds < 600
    assert "cannot be reached" in reported.problem
    assert "cannot be reached" in caplog.text
    # It goes on from there when the bucket is back.
    bucket.put({29: ["late"]}, second=2)
    bucket.link.heal()
    replica.poll()
    assert served(replica) == expected | {29: {"late"}}
    assert replica.freshness().state == "SERVING"


def test_a_start_from_the_cache_asks_no_order_index_in_the_bucket(bucket, monkeypatch):
    """A large one is not in the cache; late rows are, of which it says that they do not count."""
    monkeypatch.setattr(order, "_WHOLE_BYTES", 0)
    bucket.put({user: [f"a{user}"] for user in range(20)}, second=2)
    bucket.writer.seal()
    bucket.put({1: ["late"], 25: ["new"]}, second=1)
    bucket.delete(3)
    replica = bucket.replica()
    served(replica)
    bucket.put({3: ["again"], 25: ["late"]}, second=0)
    bucket.put({4: ["late"]}, second=0)
    replica.poll()
    assert replica.freshness().problem == ""
    expected = served(replica)
    assert [expected[user] for user in (1, 3, 4, 25)] == [{"a1"}, {"again"}, {"a4"}, {"new"}]
    bucket.link.take_down()
    assert served(bucket.replica()) == expected


def test_a_replica_that_is_older_than_its_view_keeps_what_the_next_start_needs(bucket):
    first = bucket.replica(make=open_view)
    assert served(first) == {}
    bucket.put({1: ["milk"]})
    first.poll()
    bucket.link.take_down()
    assert served(bucket.replica(make=open_view)) == {1: {"milk"}}


@pytest.mark.parametrize("is_sealed", [True, False])
def test_a_reader_starts_from_the_cache(bucket, tmp_path, is_sealed):
    expected = {user: {f"a{user}", "milk"} for user in range(20)}
    bucket.put({user: sorted(items) for user, items in expected.items()})
    if is_sealed:
        bucket.writer.seal()
    online_store = {
        "type": "sketch",
        "path": bucket.url.removesuffix("/store"),
        "storage_options": bucket.link.options(bucket.options),
        "read_only": True,
        "cache_path": "cache",
        "refresh": f"{LONG_SECONDS}s",
    }
    config = tmp_path / "feature_store.yaml"
    config.write_text(json.dumps({"project": "store", "online_store": online_store}))

    def read(reader):
        found = reader.csr("viewed", {"user_id": list(range(30))})
        values = found.vocabulary.take(found.ids).to_pylist()
        parts = [set(values[a:b]) for a, b in itertools.pairwise(found.indptr)]
        return {user: items for user, items in enumerate(parts) if items}

    first = SketchReader(config, "view")
    assert read(first) == expected
    bucket.link.take_down()
    _objects.cache_clear()
    with pytest.raises(StorageError, match="cannot be reached"):
        SketchReader(config, "another view")
    reader = SketchReader(config, "view")
    assert (reader.features, reader.join_keys) == (first.features, first.join_keys)
    assert (reader.features, reader.join_keys) == (["viewed"], ["user_id"])
    assert read(reader) == expected
    assert reader._view.freshness().state == "STALE"
    bucket.put({29: ["late"]}, second=2)
    bucket.link.heal()
    reader._view.poll()
    assert read(reader) == expected | {29: {"late"}}
    for each in (first, reader):
        each._view.close()


def test_the_cache_is_held_where_replicas_are(bucket):
    expected = fill(bucket)
    ahead = bucket.replica()
    assert served(ahead) == expected
    pin(bucket.writer)
    ahead.poll()
    held = {user: {f"a{user}", "milk"} for user in range(20)}
    assert served(ahead) == held
    bucket.put({29: ["late"]}, second=2)
    ahead.poll()
    bucket.link.take_down()
    late = bucket.replica()
    assert served(late) == held, "the rows behind the snapshot must not come back with the process"
    bucket.link.heal()
    unpin(bucket.writer)
    for replica in (ahead, late):
        replica.poll()
        assert served(replica) == expected | {29: {"late"}}
    bucket.link.take_down()
    assert served(bucket.replica()) == expected | {29: {"late"}}


def test_without_a_cache_it_says_what_is_wrong(bucket):
    fill(bucket)
    bucket.link.take_down()
    replica = bucket.replica(cache=False)
    with pytest.raises(StorageError, match="cannot be reached"):
        served(replica)
    reported = replica.freshness(poll=True)
    assert (reported.state, reported.is_ready, reported.age_seconds) == ("EMPTY", False, None)
    bucket.link.heal()
    assert replica.freshness(poll=True).state == "SERVING"


def test_the_cache_follows_refresh_by_refresh(bucket):
    expected = fill(bucket)
    ahead, behind = bucket.replica(), bucket.replica()
    for number in range(6):
        user, items = 25 + number % 3, {f"c{number}"}
        bucket.put({user: items}, second=2 + number)
        expected[user] = items
        # Two processes of the host, of which one now and then comes later, or a seal between.
        ahead.poll()
        served(ahead)
        if number % 2:
            behind.poll()
            served(behind)
        if number == 3:
            bucket.writer.seal()
    for view in (ahead, behind):
        view.poll()
    assert len([*bucket.cache.glob("*.rows")]) == 1
    bucket.link.take_down()
    assert served(bucket.replica()) == expected


@pytest.mark.parametrize("change", ["json", "rows", "cut", "no rows", "no base"])
def test_what_was_damaged_in_the_cache_is_not_served(bucket, change):
    fill(bucket)
    served(bucket.replica())
    (rows,), (known,) = bucket.cache.glob("*.rows"), bucket.cache.glob("*.json")
    if change in ("json", "rows"):
        path = known if change == "json" else rows
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    elif change == "cut":
        rows.write_bytes(rows.read_bytes()[:-8])
    elif change == "no rows":
        rows.unlink()
    else:
        for path in bucket.cache.iterdir():
            if not path.suffix:
                path.unlink()
    bucket.link.take_down()
    with pytest.raises(StorageError, match="cannot be reached"):
        served(bucket.replica())
    bucket.link.heal()
    served(bucket.replica())
    bucket.link.take_down()
    assert len(served(bucket.replica())) == 23


DAMAGE = [
    *((".base.sketch", how, cache) for how in ("cut", "empty") for cache in (True, False)),
    *((".base.sketch", how, True) for how in ("flipped", "gone")),
    *((".json", how, False) for how in ("cut", "empty")),
]


@pytest.mark.has_long_form
@for_each("part, how, cache", DAMAGE[:: by_length(3, 1)])
def test_a_damaged_object_of_a_snapshot_falls_back_to_the_one_before(bucket, part, how, cache):
    objects = bucket.server.obstore(bucket.url)
    bucket.put({1: ["tea"]})
    bucket.writer.seal()
    bucket.put({2: ["milk"]}, second=1)
    bucket.writer.seal()
    names = [one["path"] for page in objects.list() for one in page]
    newest = max(name for name in names if "/snapshots/" in name and name.endswith(part))
    content = bytearray(objects.get(newest).bytes())
    content[len(content) // 2] ^= how == "flipped"
    if how == "gone":
        objects.delete(newest)
    else:
        objects.put(newest, bytes(content[: {"cut": len(content) // 2, "empty": 0}.get(how)]))
    assert served(bucket.replica(cache=cache)) == {1: {"tea"}, 2: {"milk"}}


def test_what_a_killed_process_wrote_to_the_cache_does_not_count(bucket):
    expected = fill(bucket)
    replica = bucket.replica()
    served(replica)
    (rows,) = bucket.cache.glob("*.rows")
    with rows.open("ab") as file:
        file.write(b"FSLR and so on")
    bucket.put({29: ["late"]}, second=2)
    replica.poll()
    bucket.link.take_down()
    assert served(bucket.replica()) == expected | {29: {"late"}}


def test_the_age_of_answers_goes_on_over_a_restart(bucket, monkeypatch):
    fill(bucket)
    served(bucket.replica())
    bucket.link.take_down()
    clock = time.clock_gettime
    monkeypatch.setattr(last_known.time, "clock_gettime", lambda kind: clock(kind) + 7200)
    # Whatever the clock on the wall says.
    wall = time.time
    monkeypatch.setattr(last_known.time, "time", lambda: wall() - 3600)
    replica = bucket.replica(max_staleness_seconds=3600)
    served(replica)
    reported = replica.freshness()
    assert 7200 <= reported.age_seconds < 7800
    assert not reported.is_ready


@for_each(
    ("earlier", "later", "seconds"),
    [
        (Moment("x", 100.0, 5000.0), Moment("x", 160.0, 1400.0), 60.0),
        (Moment("x", 100.0, 5000.0), Moment("y", 20.0, 5090.0), 90.0),
        (Moment("x", 100.0, 5000.0), Moment("y", 20.0, 1400.0), 0.0),
        (Moment("", 100.0, 5000.0), Moment("", 20.0, 5090.0), 90.0),
    ],
)
def test_a_clock_that_is_put_back_makes_nothing_younger_than_it_is(earlier, later, seconds):
    assert earlier.seconds_until(later) == seconds


def test_a_replica_from_the_cache_notices_a_drop(bucket):
    bucket.put({1: ["milk"]})
    assert served(bucket.replica()) == {1: {"milk"}}
    bucket.link.take_down()
    replica = bucket.replica()
    assert served(replica) == {1: {"milk"}}
    bucket.link.heal()
    remove_view(bucket.writer.storage)
    replica.poll()
    assert served(replica) == {}


def test_what_the_cache_keeps_is_as_old_as_the_begin_of_its_poll(bucket, monkeypatch):
    now, read = 0.0, RowLog.read

    def read_long(self, *arguments):
        nonlocal now
        now += 100.0
        return read(self, *arguments)

    monkeypatch.setattr(RowLog, "read", read_long)
    monkeypatch.setattr(Moment, "now", lambda: Moment("boot", now, 0.0))
    expected = fill(bucket)
    assert served(bucket.replica()) == expected
    bucket.link.take_down()
    replica = bucket.replica()
    assert served(replica) == expected
    assert replica.freshness().age_seconds >= 100.0


# -- what a replica does -------------------------------------------------------------------------


def test_no_read_waits_for_the_bucket(bucket, monkeypatch):
    expected = fill(bucket)
    replica = bucket.replica()
    assert served(replica) == expected
    looks, goes_on = threading.Event(), threading.Event()
    names = Objects.names

    def hang(self, folder):
        looks.set()
        goes_on.wait(60)
        return names(self, folder)

    bucket.put({29: ["late"]}, second=2)
    monkeypatch.setattr(Objects, "names", hang)
    poller = Poller(replica.poll, 0.001)
    assert looks.wait(60)
    replica.shards[0]._polled_at -= 2 * LONG_SECONDS  # as if nothing had been answered for long
    replica._good_until = -np.inf
    assert served(replica) == expected
    assert replica.is_fresh()
    assert replica.freshness().state == "REFRESHING"
    goes_on.set()
    poller.stop()
    assert served(replica) == expected | {29: {"late"}}


def test_reads_of_a_replica_poll_while_no_thread_can_be_started(tmp_path):
    writing = Writing(LocalStorage(tmp_path / "view"))
    writing.put({1: ["a"]})
    replica = View(LocalStorage(tmp_path / "view", read_only=True), SETTINGS, NEVER, 1e-9, is_replica=True)
    with no_new_threads():
        assert served(replica) == {1: {"a"}}
        writing.put({2: ["b"]})
        assert served(replica) == {1: {"a"}, 2: {"b"}}
    assert served(replica) == {1: {"a"}, 2: {"b"}}
    assert replica._poller is not None
    replica.close()


def test_a_replica_polls_without_reads_until_it_is_closed(bucket):
    fill(bucket)
    _objects.cache_clear()
    storage = open_bucket(bucket.url, bucket.link.options(bucket.options), True).within("view/")
    replica = View(storage, SETTINGS, NEVER, 0.01, is_replica=True)
    served(replica)
    bucket.put({29: ["late"]}, second=2)
    deadline = time.monotonic() + 60
    while replica.freshness().num_commits < bucket.commits and time.monotonic() < deadline:
        time.sleep(0.005)
    assert replica.freshness().num_commits == bucket.commits
    replica.close()
    bucket.put({28: ["later"]}, second=3)
    time.sleep(0.05)
    assert replica.freshness().num_commits == bucket.commits - 1
    assert 28 in served(replica) or replica._poller is not None  # the next read starts it again
    replica.close()


def test_a_replica_that_nobody_holds_polls_no_more(bucket):
    fill(bucket)
    replica = bucket.replica()
    served(replica)
    thread = replica._poller._thread
    del replica
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()


def test_a_replica_needs_no_other_permission_than_to_read(bucket, monkeypatch):
    expected = fill(bucket)
    for call in ("put", "delete"):
        monkeypatch.setattr(obstore, call, Mock(side_effect=PermissionError))
    replica = bucket.replica()
    assert served(replica) == expected
    replica.poll()
    assert replica.freshness().state == "SERVING"
    for change in (replica.seal, replica.vacuum, replica.absorb):
        with pytest.raises(StorageError, match="reading only"):
            change()


def test_replicas_at_one_version_give_the_same(bucket):
    fill(bucket)
    absent = user_hashes(range(1000, 3000))  # of which some may look present
    found = []
    for number in range(3):
        replica = bucket.replica(cache=number < 2)
        answers = replica.read(np.concatenate([user_hashes(range(30)), absent]), ["viewed"])
        values = feast_values(answers.features["viewed"])
        values = [value.SerializeToString(deterministic=True) for value in values]
        found.append((answers.found.tolist(), answers.event_timestamps.tolist(), values))
    assert found[0] == found[1] == found[2]


# -- fetching ------------------------------------------------------------------------------------


def fetched_by(view):
    """Gives the names of files that a replica fetches from now on, beside manifests and the row log."""
    names = []
    map_file = view.shards[0].snapshots.storage.map

    def note(name, known=None):
        names.append(name.partition(".")[2].partition(".")[0])
        return map_file(name, known)

    view.shards[0].snapshots.storage.map = note
    return names


def test_the_order_index_is_fetched_for_late_rows_only(bucket):
    """A small one is fetched whole."""
    bucket.put({user: [f"a{user}", "milk"] for user in range(20)}, second=1)
    bucket.writer.seal()
    replica = bucket.replica()
    names = fetched_by(replica)
    served(replica)
    assert names == ["base"]
    for second, how in ((2, {}), (3, {"as_delta": True}), (4, {"as_delta": True})):
        bucket.put({user: [f"b{second}"] for user in range(5)}, second=second)
        replica.poll()
        bucket.writer.seal(**how)
        replica.poll()
        served(replica)
    assert set(names) == {"base"}, "no row was late"
    # Newer than the base and the last delta of others: only what lists the entity counts.
    bucket.put({10: ["c"]}, second=3)
    replica.poll()
    assert set(names) == {"base"}
    bucket.put({1: ["late"], 11: ["late"]}, second=0)
    replica.poll()
    assert names.count("order") == 2, "that of the delta that lists one, and that of the base for the other"
    bucket.put({1: ["later"], 12: ["late"]}, second=0)
    replica.poll()
    assert names.count("order") == 2, "they are mapped once"
    found = served(replica)
    assert (found[1], found[10], found[11]) == ({"b4"}, {"c"}, {"a11", "milk"})


def test_a_cache_lets_go_of_what_a_new_base_replaced(bucket):
    """Each new base is a file as large as the view: a disk of twice that would be full within days."""
    fill(bucket)
    replica = bucket.replica()
    served(replica)
    for second in range(2, 6):
        bucket.put({29: [f"late {second}"]}, second=second)
        bucket.writer.seal(as_delta=second == 3)
        replica.poll()
        served(replica)
        for path in bucket.cache.iterdir():  # an hour passes
            passed = path.stat().st_mtime - 3601
            os.utime(path, (passed, passed))
        replica.shards[0]._loader._kept_copies_at = -np.inf  # so the files in use are listed again
        replica.poll()
    needed = {file.size_bytes for file in bucket.writer.shards[0].snapshots.list()[0].manifest().all_files}
    files = [path for path in bucket.cache.iterdir() if not path.suffix]
    assert len(files) == 2, "the last base, and the one before, which the next fetch deletes"
    assert {path.stat().st_size for path in files} & needed
    bucket.link.take_down()
    assert served(bucket.replica())[29] == {"late 5"}


def test_a_cache_forgets_views_that_nobody_polls(bucket, moto, link, filled):
    served_of = {}
    for name in ("removed", "kept"):
        one = served_of[name] = Bucket(moto, link, bucket.cache, filled)
        fill(one)
        replica = one.replica(make=open_view)
        assert served(replica)
        replica.close()
    kept = open_bucket(one.url, link.options(one.options), True, bucket.cache).within("view/").host_path
    assert len({path.name[:32] for path in bucket.cache.glob("*.view")}) == 2
    for path in bucket.cache.iterdir():
        if path.suffix and path.name != f"{kept.name}.json":  # which a poll that finds nothing new writes
            os.utime(path, (0, 0))
    fill(bucket)
    replica = bucket.replica(make=open_view)
    assert served(replica)
    replica.close()
    assert len({path.name[:32] for path in bucket.cache.glob("*.*") if path.suffix != ".lock"}) == 2
    link.take_down()
    assert served(served_of["kept"].replica(make=open_view))


def test_a_part_that_arrives_changed_is_fetched_again(bucket, monkeypatch):
    expected = fill(bucket)
    read_range, changed = Objects.read_range, []

    def change(self, key, start, end):
        part = read_range(self, key, start, end)
        if len(changed) < 2:
            changed.append(key)
            part = bytes([part[0] ^ 1]) + part[1:]
        return part

    monkeypatch.setattr(Objects, "read_range", change)
    for cache in (True, False):
        changed.clear()
        assert served(bucket.replica(cache=cache)) == expected
        assert len(changed) == 2


@pytest.mark.parametrize("is_open", [True, False])
def test_a_copy_that_was_damaged_on_the_host_is_fetched_again(bucket, is_open, caplog, monkeypatch):
    monkeypatch.setattr(live_shard, "is_loaded", lambda: False)  # metrics would read the blocks before
    expected = fill(bucket)
    replica = bucket.replica()
    replica.refresh()  # opens the snapshot; blocks are checked where they are read
    if not is_open:
        replica.close()
        del replica
    for path in bucket.cache.iterdir():
        if not path.suffix:
            content = bytearray(path.read_bytes())
            content[-200:] = bytes(200)
            with path.open("r+b") as file:  # in place, as mapped pages change with a bad disk
                file.write(content)
    if not is_open:
        replica = bucket.replica()
    assert served(replica) == expected
    assert "was damaged; fetching it again" in caplog.text
    assert "falling back" not in caplog.text


def test_what_is_uploaded_in_part_is_not_looked_at(bucket):
    expected = fill(bucket)
    folder = bucket.writer.shards[0].snapshots
    manifest = folder.list()[0].manifest()
    with folder.storage.create(manifest.own.files["base"].name.replace("0001-", "9999-")) as file:
        file.write(b"the half of it")
    assert served(bucket.replica()) == expected


def test_a_snapshot_that_is_vacuumed_while_it_is_fetched(bucket):
    expected = fill(bucket)

    def seal():
        bucket.put({29: ["late"]}, second=2)
        bucket.writer.seal()
        bucket.writer.vacuum(0)

    with once_before(Objects, "read_range", seal):
        assert served(bucket.replica()) == expected | {29: {"late"}}


def test_the_note_of_the_cache_has_no_credentials(bucket):
    fill(bucket)
    served(bucket.replica())
    (known,) = bucket.cache.glob("*.json")
    assert json.loads(known.read_text())
    for path in bucket.cache.iterdir():
        content = path.read_bytes()
        assert object_servers.SECRET_KEY.encode() not in content
        assert object_servers.ACCESS_KEY.encode() not in content
