"""Views with shards in object storage: written and sealed by one process, served by replicas in others."""

from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from obstore.store import MemoryStore

from feast_sketch_store.errors import StorageError
from feast_sketch_store.operations.resharding import divide
from feast_sketch_store.operations.verification import verify_view
from feast_sketch_store.rows.encoding import deletions
from feast_sketch_store.storage.buckets import _objects, open_bucket
from feast_sketch_store.storage.names import OBJECT_LOG
from feast_sketch_store.storage.objects import Objects
from feast_sketch_store.structures.goals import NOISE_RATIO, Goal
from feast_sketch_store.view.opening import ReadOnlyView, open_view
from feast_sketch_store.view.removal import remove_view
from feast_sketch_store.view.shard_map import shards_of
from feast_sketch_store.view.view_file import ViewFile
from tests.helpers import histories
from tests.helpers.histories import NEVER, items_of, settings_of
from tests.helpers.keys import user_hashes, user_key
from tests.helpers.length import by_length
from tests.helpers.object_servers import copy_objects
from tests.helpers.proxy import proxy
from tests.storage.memory import Files, ObjectsInMemory, OwnHost, Served

pytestmark = pytest.mark.slow

NUM_SHARDS, NUM_USERS = 4, 60
SETS = settings_of(Goal(NOISE_RATIO, 0.1, "sets"), 10**6, 1e-9, num_shards=NUM_SHARDS)
LONG_SECONDS = 1000.0  # between two polls: tests poll themselves
SHARDS = shards_of(user_hashes(range(NUM_USERS)), NUM_SHARDS).tolist()


class InMemory:
    """Opens a view of the same objects, in memory."""

    def __init__(self):
        self._files = Files()

    def open(self, read_only=False):
        return type("Opened", (OwnHost, ObjectsInMemory), {})(self._files, read_only)

    def fill(self):
        return fill(writer(self))


class OnServer:
    """The same in a bucket of moto; replicas reach it by a proxy, and share a cache on this host."""

    def __init__(self, server, link, cache, objects):
        self._url, self._options = server.bucket() + "/store", server.options
        self.link, self._cache, self._objects = link, cache, objects
        self._server = server

    def fill(self):
        """As `fill` does, by a copy of what it made in this process, which takes few requests."""
        objects, expected = self._objects
        copy_objects(objects, self._server.obstore(self._url))
        return writer(self), dict(expected)

    def open(self, read_only=False):
        _objects.cache_clear()
        if read_only:
            options = self.link.options(self._options)
            return open_bucket(self._url, options, True, self._cache).within("view/")
        opened = open_bucket(self._url, self._options).within("view/")
        return type("Opened", (OwnHost, Served), {})(opened._objects, opened._prefix, False)


@pytest.fixture(scope="module")
def server(moto):
    with proxy(moto.port) as link:
        yield SimpleNamespace(moto=moto, link=link)


@pytest.fixture(scope="module")
def filled_objects():
    store = MemoryStore()
    objects = Objects(store, "s3://bucket", "bucket")
    opened = type("Opened", (OwnHost, Served), {})(objects, "store/view/")
    return store, fill(open_view(opened, SETS, NEVER, 0.0))[1]


@pytest.fixture
def on_server(server, filled_objects, tmp_path, one_try):
    yield OnServer(server.moto, server.link, tmp_path / "cache", filled_objects)
    server.link.heal()


@pytest.fixture
def in_memory():
    return InMemory()


@pytest.fixture(params=["memory", "moto"])
def place(request):
    return request.getfixturevalue("in_memory" if request.param == "memory" else "on_server")


def writer(place, settings=SETS):
    return open_view(place.open(), settings, NEVER, 0.0)


def replica(place, served=None, settings=SETS):
    return open_view(place.open(True), settings, NEVER, LONG_SECONDS, is_replica=True, served=served)


def put(view, users, second=0):
    return histories.put(view, {user: [f"{second} {user}", "milk"] for user in users}, second)


def shown(view, users=range(NUM_USERS)):
    """What reads give: user -> items."""
    return items_of(view, users)


def fill(view):
    """A writer, with sealed rows, newer ones and a deletion; and what reads have to give."""
    expected = put(view, range(40))
    assert view.seal()
    expected |= put(view, range(30, 50), second=1)
    view.delete(deletions([user_key(3), user_key(33)], datetime.now(UTC), None))
    del expected[3], expected[33]
    return view, expected


def test_replicas_see_what_is_written_and_sealed(place):
    view, expected = place.fill()
    copy = replica(place)
    assert shown(copy) == expected
    expected |= put(view, range(45, NUM_USERS), second=2)
    copy.refresh()
    assert shown(copy) == expected
    assert view.seal()
    copy.refresh()
    assert shown(copy) == expected
    assert copy.stats().unsealed_rows == 0
    assert shown(ReadOnlyView(place.open(True), "history", LONG_SECONDS, is_replica=True)) == expected


def test_a_replica_starts_from_the_cache_while_the_bucket_is_away(on_server):
    _, expected = on_server.fill()
    assert shown(replica(on_server)) == expected
    named = ReadOnlyView(on_server.open(True), "history", LONG_SECONDS, is_replica=True)
    assert shown(named) == expected
    on_server.link.take_down()
    assert shown(replica(on_server)) == expected
    assert shown(replica(on_server, [SHARDS[7]]), [7]) == {7: expected[7]}
    again = ReadOnlyView(on_server.open(True), "history", LONG_SECONDS, is_replica=True)
    assert shown(again) == expected


def test_only_what_is_served_is_fetched(on_server):
    view = writer(on_server)
    expected = put(view, range(NUM_USERS))
    assert view.seal()
    fetched = []
    for served in ([0], None):
        before = on_server.link.bytes_down
        copy = open_view(
            open_bucket(on_server._url, on_server.link.options(on_server._options), True).within("view/"),
            SETS,
            NEVER,
            LONG_SECONDS,
            is_replica=True,
            served=served,
        )
        users = [user for user, shard in enumerate(SHARDS) if served is None or shard in served]
        assert shown(copy, users) == {user: expected[user] for user in users if user in expected}
        fetched.append(on_server.link.bytes_down - before)
        _objects.cache_clear()
    assert fetched[0] < fetched[1] / 2


def test_a_replica_that_followed_the_rows_starts_from_the_cache(on_server):
    _, expected = on_server.fill()
    copy = replica(on_server)
    assert shown(copy) == expected
    divide(on_server.open(), replace(SETS, num_shards=2), NEVER, lambda seconds: None)
    copy.poll()
    assert shown(copy) == expected
    on_server.link.take_down()
    again = replica(on_server)  # its settings name the former number of shards
    assert len(again.shards) == 2
    assert shown(again) == expected


@pytest.mark.has_long_form
@pytest.mark.parametrize(("place", "seals"), [("memory", 3), ("moto", by_length(1, 3))], indirect=["place"])
def test_a_vacuum_leaves_what_is_served(place, seals):
    view, expected = place.fill()
    for second in range(4, 4 + seals):
        expected |= put(view, range(10), second)
        assert view.seal()
    copy = replica(place)
    assert view.vacuum(0.0) > 0
    problems = [
        problem
        for number, part in view.shards.items()
        for problem in verify_view(part.storage, SETS.codecs, shard=(number, NUM_SHARDS)).problems
    ]
    assert problems == []
    assert shown(copy) == expected
    assert shown(replica(place)) == expected
    assert all(len(part.snapshots.list()) == 1 for part in view.shards.values())


def test_a_writer_creates_a_view_anew_that_was_dropped_elsewhere(place):
    view = writer(place)
    put(view, range(NUM_USERS))
    remove_view(place.open())
    expected = put(view, [1, 2])
    assert ViewFile.read(place.open()).shard_map == view.shard_map
    assert shown(replica(place)) == expected


def test_what_is_written_beside_a_drop_is_refused_and_found_if_it_is_written_again(in_memory):
    """A writer asks a bucket for the view's file only every few seconds, and where it finds another log."""
    in_memory.fill()
    divide(in_memory.open(), replace(SETS, num_shards=2), NEVER, lambda seconds: None)
    view, dropped = writer(in_memory), in_memory.open()
    remove_view(in_memory.open())
    put(view, range(NUM_USERS))  # into logs without a table, which would refuse rows during a drop
    delete, num_refused = dropped.delete, 0

    def delete_beside_a_writer(names):
        nonlocal num_refused
        delete(names)
        if any(name.endswith(f"/{OBJECT_LOG}") for name in names):
            with pytest.raises(StorageError, match=r"is being removed. Write again"):
                put(view, range(NUM_USERS))
            num_refused += 1

    dropped.delete = delete_beside_a_writer
    remove_view(dropped)
    assert num_refused > 1
    expected = put(view, range(NUM_USERS), 1)
    assert shown(replica(in_memory)) == expected


@pytest.mark.parametrize("failing", range(3))
def test_a_seal_that_ends_between_two_shards_is_read_right(in_memory, failing):
    view, expected = in_memory.fill()
    copy = replica(in_memory)
    with (
        patch.object(view.shards[failing], "publish", side_effect=StorageError("the bucket is away")),
        pytest.raises(StorageError, match="the bucket is away"),
    ):
        view.seal()
    copy.refresh()
    assert shown(copy) == shown(replica(in_memory)) == expected
    assert view.seal()
    copy.refresh()
    assert shown(copy) == expected
