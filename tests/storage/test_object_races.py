"""Writers and sealers of several processes at once, over object stores that run."""

import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest

from feast_sketch_store.row_log import RowLog
from feast_sketch_store.storage import object_store
from feast_sketch_store.storage.buckets import open_bucket
from feast_sketch_store.storage.stores import StorePlace
from feast_sketch_store.view.rebuilding import rebuild
from feast_sketch_store.view.removal import remove_project
from feast_sketch_store.view.view import View
from tests.helpers.histories import NEVER, filling, items_of, put, settings_of
from tests.helpers.length import by_length
from tests.helpers.meanwhile import once_before
from tests.helpers.processes import run_command

pytestmark = pytest.mark.slow

WEED, AZURITE = (pytest.param(name, marks=pytest.mark.object_servers) for name in ("weed", "azurite"))
WRITERS, COMMITS = 8, by_length(3, 4)
# Salts are random. A false positive at 1e-12 would be a bug, not chance.
SETTINGS = settings_of(1e-12, presence=1e-12)
EVENT = datetime(2026, 5, 1, tzinfo=UTC)

WRITE = """
import json, sys
import pyarrow as pa
from feast_sketch_store.row_log import RowLog
from feast_sketch_store.storage.buckets import open_bucket
url, options, writer, commits = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3], int(sys.argv[4])
log = RowLog(open_bucket(url, options).within("view/"))
numbers = []
for n in range(commits):
    numbers.append(log.append(pa.table({"name": [f"{writer}-{n}"]})).number)
    if n % 3 == 2:
        log.absorb()
print(json.dumps(numbers))
"""


@pytest.mark.has_long_form
@pytest.mark.parametrize("name", ["moto", "gcs", WEED, AZURITE])
def test_eight_writers_keep_all_commits(object_server, name):
    server = object_server(name)
    url = f"{server.bucket()}/store"

    def write(writer):
        arguments = [url, json.dumps(server.options), f"writer {writer}", str(COMMITS)]
        return run_command([sys.executable, "-c", WRITE, *arguments])

    with ThreadPoolExecutor(WRITERS) as pool:
        done = list(pool.map(write, range(WRITERS)))
    assert [each.returncode for each in done] == [0] * WRITERS, [each.stderr[-500:] for each in done]
    numbers = [number for each in done for number in json.loads(each.stdout)]
    assert sorted(numbers) == list(range(WRITERS * COMMITS))
    names = [f"writer {writer}-{n}" for writer in range(WRITERS) for n in range(COMMITS)]
    in_order = [name for _, name in sorted(zip(numbers, names, strict=True))]
    log = RowLog(open_bucket(url, server.options).within("view/"))
    assert log.read().table()["name"].to_pylist() == in_order
    log.absorb()
    assert log.read().table()["name"].to_pylist() == in_order


def write(view, users, item):
    put(view, dict.fromkeys(users, (item,)))


def opened(server, url):
    return View(open_bucket(url, server.options).within("view/"), SETTINGS, NEVER, 0.0)


@contextmanager
def no_lease(name, wait=False, create=True):
    yield True


@pytest.mark.parametrize("has_leases", [True, False])
@pytest.mark.parametrize("name", ["moto", WEED])
def test_of_two_sealers_one_publishes_and_both_are_right(object_server, name, has_leases):
    server = object_server(name)
    url = f"{server.bucket()}/store"
    views = [opened(server, url) for _ in range(3)]
    users = list(range(40))
    write(views[0], users, "a")
    for view in views:
        if not has_leases:
            view.storage.lease = no_lease
    inside = threading.Barrier(2)
    if has_leases:
        published = []
        with once_before(views[0].shards[0], "rows_of", lambda: published.append(views[1].seal())):
            assert views[0].seal()
        assert published == [False]
    else:
        for view in views[:2]:
            draft = view.shards[0].draft

            def draft_together(*arguments, draft=draft):
                made = draft(*arguments)
                inside.wait(60)
                return made

            view.shards[0].draft = draft_together
        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(lambda view: view.seal(), views[:2])) == [True, True]
    write(views[2], users[:5], "b")
    fresh = opened(server, url)
    wanted = {user: {"b" if user < 5 else "a"} for user in users}
    for view in [*views, fresh]:
        assert items_of(view, [*users, 1000]) == wanted
        assert view.stats().sealed_entities == len(users)


def test_a_seal_of_rows_that_were_rebuilt_meanwhile_is_not_served(moto):
    url = f"{moto.bucket()}/store"
    sealer, rebuilder = (opened(moto, url) for _ in range(2))
    for view in (sealer, rebuilder):
        view.storage.lease = no_lease
    users = list(range(40))
    write(sealer, users, "old")
    fill = filling(SETTINGS, dict.fromkeys(users[:20], ("new",)))
    with once_before(sealer.shards[0], "draft", lambda: rebuild(rebuilder, fill)):
        sealer.seal()
    fresh = opened(moto, url)
    for view in (sealer, rebuilder, fresh):
        assert items_of(view, users) == {user: {"new"} for user in users[:20]}


def test_a_teardown_waits_for_the_seal_of_another_process(moto):
    place = StorePlace.of(None, f"{moto.bucket()}/store", moto.options)
    for name in ("history", "other"):
        view = View(place.view("shop", name), SETTINGS, NEVER, 0.0)
        write(view, [1, 2], "a")
    sealer = View(place.view("shop", "history"), SETTINGS, NEVER, 0.0)
    inside, tried = threading.Event(), threading.Event()
    draft, take = sealer.shards[0].draft, object_store._take

    def draft_slowly(*arguments):
        inside.set()
        assert tried.wait(60)
        return draft(*arguments)

    def take_and_tell(objects, key, holder):
        taken = take(objects, key, holder)
        if inside.is_set() and "/history/" in key:
            assert not taken or tried.is_set()
            tried.set()
        return taken

    sealer.shards[0].draft = draft_slowly
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as pool:
        patch.setattr(object_store, "_take", take_and_tell)
        sealed = pool.submit(sealer.seal)
        assert inside.wait(60)
        pool.submit(remove_project, place, "shop").result(60)
        assert sealed.result(60)
    left = moto.all_bytes(place.path)
    assert [key for key in left if "conditions-probe" not in key] == []
