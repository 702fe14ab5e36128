"""Replicas that serve while the settings and the release of writers and replicas change, one by one."""

import threading
import time
from contextlib import contextmanager

import pytest

import feast_sketch_store
from feast_sketch_store.operations.verification import verify_view
from feast_sketch_store.row_log import table, wal_objects
from feast_sketch_store.snapshot import files
from feast_sketch_store.storage import buckets, object_store
from feast_sketch_store.storage.buckets import open_bucket
from feast_sketch_store.structures.goals import NOISE_RATIO, Goal
from feast_sketch_store.view import last_known, live_shard
from feast_sketch_store.view.view import View
from tests.helpers.histories import CODEC, NEVER, items_of, put, settings_of
from tests.helpers.meanwhile import once_after
from tests.storage.memory import Files, ObjectsInMemory, OwnHost, Served

pytestmark = pytest.mark.slow

USERS = 40
INTERVAL_SECONDS = 0.002
PATIENCE_SECONDS = 60


def view_settings(target, presence=1e-9):
    return settings_of(target, 10**6, presence)


SETTINGS = view_settings(Goal(NOISE_RATIO, 0.1, "sets"))


class SeenByOlderRelease(OwnHost):
    """Manifests with checksums of chunks have a version that no release knows."""

    def read(self, name, start=0, length=None):
        content = super().read(name, start, length)
        if name.endswith(".json") and b'"chunks"' in content:
            content = content.replace(b'"format_version":1', b'"format_version":9')
        return content


class WrittenByOlderRelease(OwnHost):
    """Manifests are without checksums of chunks."""

    fetches = False


class InMemory:
    """Opens storages of the same objects in this process."""

    def __init__(self):
        self._files = Files()

    def open(self, kind, read_only=False):
        return type("Opened", (kind, ObjectsInMemory), {})(self._files, read_only)


class OnServer:
    """The same in a bucket of a server that runs, with connections of their own."""

    def __init__(self, server):
        self._server, self._url = server, server.bucket() + "/store"

    def open(self, kind, read_only=False):
        buckets._objects.cache_clear()
        opened = open_bucket(self._url, self._server.options).within("view/")
        return type("Opened", (kind, Served), {})(opened._objects, opened._prefix, read_only)


class Fleet:
    """Replicas, each read by a thread all the time. All users have the same values, those of one commit."""

    def __init__(self, place):
        self.place = place
        self.commits = 0
        self.reads = 0
        self.problems = []
        self.seen = {}
        self._replicas = {}
        self._changed = threading.Condition()  # after each read

    def writer(self, settings=SETTINGS, kind=OwnHost):
        return View(self.place.open(kind), settings, NEVER, 0.0)

    def start(self, name, settings=SETTINGS, kind=OwnHost):
        """A replica, in the place of the one with the same name, which ends when the new one serves."""
        storage = self.place.open(kind, read_only=True)
        view = View(storage, settings, NEVER, INTERVAL_SECONDS, is_replica=True)
        is_over = threading.Event()
        self._look(name, view, 0)
        thread = threading.Thread(target=self._read_on, args=(name, view, is_over))
        self.stop(name)
        self._replicas[name] = (view, thread, is_over)
        thread.start()
        return view

    def stop(self, name):
        if name in self._replicas:
            view, thread, is_over = self._replicas.pop(name)
            is_over.set()
            thread.join()
            view.close()

    def commit(self, writer, users=range(USERS)):
        self.commits += 1
        put(writer, dict.fromkeys(users, ("all", f"commit {self.commits}")), self.commits)

    def wait_until_seen(self, *names):
        self.wait_until(lambda: all(self.seen[name] >= self.commits for name in names or self._replicas))

    def wait_for_reads(self, count=50):
        wanted = self.reads + count
        self.wait_until(lambda: self.reads >= wanted)

    def wait_until(self, is_so):
        with self._changed:
            assert self._changed.wait_for(lambda: self.problems or is_so(), PATIENCE_SECONDS), self.seen
        assert not self.problems, self.problems[:3]

    def _read_on(self, name, view, is_over):
        seen = 0
        while not is_over.is_set():
            try:
                seen = self._look(name, view, seen)
            except Exception as error:
                self.problems.append(f"{name}: {error!r}")
                return

    def _look(self, name, view, seen):
        versions = set()
        found = items_of(view, range(USERS))
        for items in found.values():
            if "all" not in items:
                self.problems.append(f"{name}: a false negative")
            # A filter may show more; what was written last is there.
            versions.add(max(int(item.removeprefix("commit ")) for item in items - {"all"}))
        if len(found) != USERS:
            self.problems.append(f"{name}: {len(found)} users")
        if min(versions) < seen:
            self.problems.append(f"{name}: version {min(versions)} after {seen}")
        with self._changed:
            self.reads += 1
            self.seen[name] = min(versions)
            self._changed.notify_all()
        return min(versions)


@pytest.fixture(params=["memory", pytest.param("weed", marks=pytest.mark.object_servers)])
def fleet(request):
    place = (
        InMemory()
        if request.param == "memory"
        else OnServer(request.getfixturevalue("object_server")("weed"))
    )
    running = Fleet(place)
    yield running
    for name in list(running._replicas):
        running.stop(name)
    assert running.problems == []


@contextmanager
def changed(fleet):
    """What happens meanwhile is seen by all, and reads were answered."""
    before = fleet.reads
    yield
    fleet.wait_until_seen()
    fleet.wait_for_reads()
    assert fleet.reads > before


def test_replicas_serve_through_a_change_of_structures_and_rates(fleet):
    changes = [
        view_settings(1e-9),  # filters
        view_settings(Goal(NOISE_RATIO, 0.1, "sets"), presence=1e-7),
        view_settings(1e-12, presence=1e-12),
    ]
    writer = fleet.writer()
    fleet.commit(writer)
    writer.seal()
    names = ["a", "b", "c"]
    for name in names:
        fleet.start(name)
    structures = []
    for settings in changes:
        # Replicas before the writer and after it, in any order: settings matter to seals.
        fleet.start("a", settings)
        writer = fleet.writer(settings)
        with changed(fleet):
            fleet.commit(writer)
            writer.seal()
        fleet.start("b", settings)
        with changed(fleet):
            fleet.commit(writer, range(USERS))
            writer.seal(as_delta=True)
        fleet.start("c", settings)
        with changed(fleet):
            fleet.commit(writer)
        views = [fleet._replicas[name][0] for name in names]
        (structure,) = {view.stats().structures["viewed"] for view in views}
        structures.append(structure)
    assert structures == ["bloom", "sets", "bloom"]


def test_replicas_serve_through_an_upgrade_that_begins_with_them(fleet, monkeypatch):
    with monkeypatch.context() as older:
        older.setattr(feast_sketch_store, "__version__", "0.0.1")
        writer = fleet.writer(kind=WrittenByOlderRelease)
        fleet.commit(writer)
        writer.seal()
        assert not any(
            file.chunks for file in fleet.writer().shards[0].snapshots.list()[0].manifest().all_files
        )
        for name in ("a", "b"):
            fleet.start(name, kind=SeenByOlderRelease)
        fleet.start("a")
        with changed(fleet):
            fleet.commit(writer)
            writer.seal()
        fleet.start("b")
    writer = fleet.writer()
    with changed(fleet):
        fleet.commit(writer)
        writer.seal(as_delta=True)
    assert any(file.chunks for file in fleet.writer().shards[0].snapshots.list()[0].manifest().all_files)
    with changed(fleet):
        fleet.commit(writer)
        writer.seal()
        writer.vacuum(0)


def test_a_replica_of_an_older_release_serves_on_what_it_had(fleet, caplog):
    writer = fleet.writer(kind=WrittenByOlderRelease)
    fleet.commit(writer)
    writer.seal()
    late = fleet.start("late", kind=SeenByOlderRelease)
    fleet.start("early")
    writer = fleet.writer()
    for _ in range(3):  # its own snapshot is gone then
        fleet.commit(writer)
        writer.seal()
    writer.vacuum(0)
    fleet.wait_until_seen("early")
    fleet.wait_for_reads()
    fleet.wait_until(lambda: late.freshness().state == "STALE")
    reported = late.freshness()
    assert (reported.state, reported.is_ready) == ("STALE", True)
    assert "upgrade feast_sketch_store" in reported.problem
    assert "upgrade feast_sketch_store" in caplog.text
    fleet.commit(writer)
    fleet.wait_until_seen("early")
    fleet.wait_for_reads()
    assert fleet.seen["late"] < fleet.seen["early"]
    fleet.start("late")
    fleet.wait_until_seen()


class Clock:
    """The module `time`, by a wall clock that is off."""

    def __init__(self, seconds):
        self._seconds = seconds

    def __getattr__(self, name):
        return getattr(time, name)

    def time(self):
        return time.time() + self._seconds

    def time_ns(self):
        return time.time_ns() + self._seconds * 10**9


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_writer_whose_clock_is_an_hour_off_loses_nothing(fleet, monkeypatch, hours):
    right = fleet.writer()
    fleet.commit(right)
    right.seal()
    for name in ("a", "b"):
        fleet.start(name)
    # The storage, in tests.storage.memory or a server, has its own clock.
    for module in (files, table, object_store, wal_objects, last_known, live_shard):
        monkeypatch.setattr(module, "time", Clock(3600 * hours))
    off = fleet.writer()

    def meanwhile():
        with changed(fleet):
            fleet.commit(off)
            off.seal(as_delta=True)
        off.vacuum()  # by default what is a day old

    with changed(fleet), once_after(right.shards[0], "draft", meanwhile):
        fleet.commit(right)
        assert right.seal()
    with changed(fleet):
        fleet.commit(off)
        off.seal()
        off.vacuum()
    found = verify_view(fleet.place.open(OwnHost), [CODEC])
    assert (found.problems, found.leftovers) == ([], [])
