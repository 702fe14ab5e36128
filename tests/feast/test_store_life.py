"""The store in Feast's hands: async calls, initialize and close, projects, teardown, stores beside it."""

import asyncio
import math
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas as pd
import pytest
from feast import FeatureService, FeatureStore, FeatureView
from feast.data_source import PushMode
from feast.infra.online_stores.online_store import OnlineStore
from feast.types import Int64, Set, String

from feast_sketch_store import SketchOnlineStore, open_view
from feast_sketch_store.adapter import open_views
from feast_sketch_store.errors import SketchStoreError
from feast_sketch_store.operations import maintenance
from feast_sketch_store.settings.table import Advanced
from feast_sketch_store.view.live_shard import LiveShard
from tests.helpers.keys import user_key
from tests.helpers.length import by_length
from tests.helpers.processes import UNCHECKED_FEAST
from tests.helpers.repository import (
    ROWS,
    SEALED,
    UNSEALED,
    USER,
    make_config,
    make_repository,
    make_view,
    read_users,
)
from tests.helpers.values import country, strings

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
NEVER = 10**6  # seconds: a refresh interval that no test reaches
STORES = {
    "sqlite": {"type": "sqlite", "path": "data/online.db"},
    "unsealed": {"type": "sketch", **UNSEALED},
    "sealed": {"type": "sketch", **SEALED},
}
SKETCH = ["unsealed", "sealed"]
COUNTRIES = ["history:country"]


@pytest.fixture
def make_store(tmp_path) -> Callable[..., FeatureStore]:
    """Makes a `FeatureStore` with a registry per project; keywords are options of the online store."""

    def make(kind: str = "sealed", project: str = "shop", **options) -> FeatureStore:
        registry = str(tmp_path / "data" / f"{project}.registry.db")
        options = {**STORES.get(kind, {}), **options}
        return FeatureStore(config=make_config(tmp_path, project, registry, **options))

    (tmp_path / "data").mkdir()
    return make


@pytest.fixture
def make_history(tmp_path) -> Callable[..., FeatureView]:
    """Makes a view of countries over `user_id`, which can be pushed to."""

    def make(name: str = "history", **options) -> FeatureView:
        path = tmp_path / "data" / "rows.parquet"
        countries(["FR"]).to_parquet(path)
        return make_view({"user_id": Int64, "country": String}, path, name=name, pushed="events", **options)

    return make


def countries(names, first_user=1, moment=NOON) -> pd.DataFrame:
    users = range(first_user, first_user + len(names))
    return pd.DataFrame({"user_id": users, "country": names, "event": moment})


def entity_rows(*users) -> list:
    return [{"user_id": user} for user in users]


def ask(store, *users, features=COUNTRIES) -> list:
    return read_users(store, features, users)["country"]


async def ask_async(store, *users) -> list:
    answer = await store.get_online_features_async(COUNTRIES, entity_rows(*users))
    return answer.to_dict()["country"]


@pytest.mark.parametrize("kind", SKETCH)
class TestAsync:
    """SQLite has no async methods, so the answers are compared with those of the others."""

    @pytest.fixture
    def store(self, kind, make_store, make_history):
        store = make_store(kind)
        store.apply([USER, make_history()])
        store.write_to_online_store("history", countries(["FR", "DE", "IT"]))
        return store

    def test_reads_and_writes_are_reported_as_supported(self, store):
        supported = store._get_provider().async_supported.online
        assert (supported.read, supported.write) == (True, True)

    def test_the_methods_of_the_store_answer_as_their_twins(self, kind, make_harness):
        harness = make_harness({"country": String}, **STORES[kind])
        counted = []
        rows = [(harness.key(user_id=u), country(f"c{u}"), NOON, None) for u in range(5)]
        write, read = harness.store.online_write_batch_async, harness.store.online_read_async
        asyncio.run(write(harness.config, harness.view, rows, counted.append))
        assert sum(counted) == 5
        keys = [harness.key(user_id=user) for user in (3, 9, 0)]
        answer = asyncio.run(read(harness.config, harness.view, keys, ["country"]))
        assert answer == [(NOON, rows[3][1]), (None, None), (NOON, rows[0][1])]
        assert asyncio.run(read(harness.config, harness.view, keys)) == harness.read(3, 9, 0)

    @pytest.mark.parametrize("method", ["write", "push"])
    def test_reads_among_writes(self, store, method):
        """Who has awaited a write reads it, and nobody loses what was there before."""

        async def write_and_read(user):
            rows = countries([f"c{user}"], user)
            if method == "write":
                await store.write_to_online_store_async("history", rows)
            else:
                await store.push_async("events", rows, to=PushMode.ONLINE)
            return await ask_async(store, user, 1)

        async def run():
            users = range(100, 120)
            reads = [ask_async(store, 1, 2, 3) for _ in range(40)]
            return await asyncio.gather(*map(write_and_read, users), *reads)

        answers = asyncio.run(run())
        assert answers[:20] == [[f"c{user}", "FR"] for user in range(100, 120)]
        assert answers[20:] == [["FR", "DE", "IT"]] * 40
        assert ask(store, *range(100, 120)) == [f"c{user}" for user in range(100, 120)]

    def test_a_write_that_waits_does_not_hold_up_the_loop(self, store):
        view = store.registry.get_feature_view("history", "shop")
        lock = store._get_provider().online_store.view(store.config, view).shards[0].row_log._wal._lock

        async def run():
            with lock:  # as another thread that writes or seals
                writing = asyncio.create_task(store.write_to_online_store_async("history", countries(["CH"])))
                assert await ask_async(store, 2) == ["DE"]
                assert not writing.done()
            await writing
            return await ask_async(store, 1)

        assert asyncio.run(run()) == ["CH"]


def _open_beneath(folder: Path) -> list[str]:
    """What this process has open or mapped beneath a folder."""
    paths = [line.split(maxsplit=5)[5] for line in _lines("/proc/self/maps") if line.count("/")]
    for descriptor in list(Path("/proc/self/fd").iterdir()):
        try:
            paths.append(str(descriptor.readlink()))
        except FileNotFoundError:  # the one of the listing itself
            continue
    return [path for path in paths if path.startswith(str(folder))]


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def _own_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("feast_sketch_store")}


@pytest.mark.parametrize("kind", STORES)
def test_initialize_then_close_and_use_again(kind, make_store, make_history):
    store = make_store(kind)
    store.apply([USER, make_history()])
    asyncio.run(store.initialize())
    store.write_to_online_store("history", countries(["FR"]))
    assert ask(store, 1, 9) == ["FR", None]
    asyncio.run(store.close())
    asyncio.run(store.close())
    assert ask(store, 1, 9) == ["FR", None]
    store.write_to_online_store("history", countries(["DE"], 2))
    assert ask(store, 1, 2) == ["FR", "DE"]
    asyncio.run(store.close())
    asyncio.run(store.initialize())
    assert ask(store, 1, 2) == ["FR", "DE"]


def test_initialize_reads_all_snapshots(make_store, make_history, monkeypatch, caplog):
    monkeypatch.setattr("feast_sketch_store.view.background._MIN_BYTES", 0)
    store = make_store("sealed")
    store.apply([USER, make_history(), make_history("past"), make_history("odd")])
    for view in ("history", "past", "odd"):
        store.write_to_online_store(view, countries([f"country {number}" for number in range(200)]))
    path = store._get_provider().online_store.storage(store.config, store.get_feature_view("odd")).path
    for manifest in (path / "snapshots").glob("*.json"):
        manifest.write_text("damaged")
    fresh = make_store("sealed")
    asyncio.run(fresh.initialize())
    assert "'odd' is not ready" in caplog.text
    for name in ("history", "past"):
        view = fresh._get_provider().online_store.view(fresh.config, fresh.get_feature_view(name))
        checks = [check for layer in view.state.sealed.layers for check in layer.checks]
        assert checks
        assert not any(check.unchecked.any() for check in checks)
    asyncio.run(fresh.close())


def test_the_first_request_after_initialize_has_a_plan(make_store, make_history, monkeypatch):
    store = make_store("sealed")
    store.apply([USER, make_history()])
    store.write_to_online_store("history", countries(["FR"]))

    async def ask_first() -> list[str | None]:
        await fresh.initialize()
        answer = await fresh.get_online_features_async(COUNTRIES, [{"user_id": 1}, {"user_id": 9}])
        return answer.to_dict()["country"]

    fresh = make_store("sealed")
    monkeypatch.delattr(OnlineStore, "get_online_features_async")  # Feast's way, which works all out again
    assert asyncio.run(ask_first()) == ["FR", None]


@pytest.mark.parametrize("failed", [ValueError, SketchStoreError])
def test_a_view_that_cannot_be_planned_does_not_hold_up_the_others(
    failed, make_store, make_history, monkeypatch, caplog
):
    store = make_store("sealed")
    store.apply([USER, make_history(), make_history("past")])
    store.write_to_online_store("past", countries(["FR"]))

    def opened(self, config, table):
        if table.name == "history":
            raise failed("as Feast may")
        return view(self, config, table)

    view = SketchOnlineStore.view
    monkeypatch.setattr(SketchOnlineStore, "view", opened)
    asyncio.run(store.initialize())
    assert "'history' is not ready: as Feast may" in caplog.text
    assert ask(store, 1, features=["past:country"]) == ["FR"]


_FIRST_REQUEST = """
import asyncio, sys
import anyio, anyio.to_thread
from feast import FeatureStore
from feast import feature_server  # as in a worker

async def run():
    store = FeatureStore(repo_path=sys.argv[1])
    await store.initialize()
    before = set(sys.modules)
    async with anyio.create_task_group():
        answer = await store.get_online_features_async(["history:country"], [{"user_id": 1}])
    print(sorted(set(sys.modules) - before), answer.to_dict()["country"])

asyncio.run(run())
"""


@pytest.mark.slow
@pytest.mark.has_long_form
def test_initialize_leaves_no_module_to_the_first_request(tmp_path):
    view = make_view({"user_id": Int64, "country": String}, pushed="events")
    store = make_repository(tmp_path, view, rows=countries(["FR"]))
    store.push("events", countries(["FR"]), to=PushMode.ONLINE)
    (tmp_path / "elsewhere").mkdir()
    script = by_length(UNCHECKED_FEAST, "") + _FIRST_REQUEST
    command = [sys.executable, "-W", "ignore", "-c", script, str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path / "elsewhere", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "[] ['FR']\n"), done.stderr
    assert not list((tmp_path / "elsewhere").iterdir())


needs_proc = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads /proc")


@needs_proc
@pytest.mark.parametrize("kind", SKETCH)
def test_close_leaves_nothing_open(kind, make_store, make_history, tmp_path):
    others = _own_threads()  # of stores that other tests have not closed
    store = make_store(kind)
    store.apply([USER, make_history(), make_history("past")])
    for view in ("history", "past"):
        store.write_to_online_store(view, countries(["FR"]))
        store.write_to_online_store(view, countries(["late"], moment=NOON - timedelta(1)))
        assert ask(store, 1, features=[f"{view}:country"]) == ["FR"]
    assert bool(_open_beneath(tmp_path / "sketch")) == (kind == "sealed")
    asyncio.run(store.close())
    assert _open_beneath(tmp_path / "sketch") == []
    assert _own_threads() <= others
    assert ask(store, 1) == ["FR"]


@needs_proc
def test_replaced_snapshots_are_let_go(make_harness, make_view, tmp_path):
    """Without the help of the garbage collector, which may come much later."""
    harness = make_harness(view=make_view({"country": String}), **STORES["sealed"])
    for user in range(10):
        harness.write(user, country("FR"))
        assert harness.countries(user) == ["FR"]
    snapshots = {path for path in _open_beneath(tmp_path / "sketch") if "base.sketch" in path}
    assert len(snapshots) == 1


def test_close_waits_for_a_refresh_that_runs(make_store, make_history, monkeypatch):
    others = _own_threads()
    store = make_store("sealed", refresh=f"{NEVER}s")
    store.apply([USER, make_history()])
    store.write_to_online_store("history", countries(["FR"]))
    assert ask(store, 1) == ["FR"]
    may_go_on = threading.Event()
    refresh = LiveShard._refresh

    def slow_refresh(self, *arguments):
        assert may_go_on.wait(60)
        refresh(self, *arguments)

    monkeypatch.setattr(LiveShard, "_refresh", slow_refresh)
    monkeypatch.setattr(LiveShard, "_is_outdated", lambda self: True)  # as after another process' write
    history = store.registry.get_feature_view("history", "shop")
    view = store._get_provider().online_store.view(store.config, history)
    view.shards[0]._polled_at -= 0.75 * NEVER
    view._good_until = -math.inf
    assert ask(store, 1) == ["FR"]
    assert len(_own_threads() - others) == 1

    closed = threading.Event()
    closing = threading.Thread(target=lambda: (asyncio.run(store.close()), closed.set()))
    closing.start()
    try:
        assert not closed.wait(0.2)
    finally:
        may_go_on.set()
    assert closed.wait(60)
    assert _own_threads() <= others
    closing.join()
    assert ask(store, 1) == ["FR"]


@pytest.mark.parametrize("kind", SKETCH)
def test_without_a_registry_and_without_apply(kind, make_config, make_view):
    """SQLite wants its tables made first."""
    config, view = make_config(**STORES[kind]), make_view({"country": String})
    rows = [(user_key(1), country("FR"), NOON, None)]
    assert SketchOnlineStore().online_read(config, view, [user_key(1)]) == [(None, None)]
    SketchOnlineStore().online_write_batch(config, view, rows, None)
    assert SketchOnlineStore().online_read(config, view, [user_key(1)]) == [(NOON, rows[0][1])]


def test_hybrid_beside_sqlite(make_store, make_history, tmp_path):
    """Feast 0.67's hybrid store can apply and tear down the views of one store at a time only, and cannot
    materialize, whatever stores are inside."""
    stores = [
        {"type": name, "conf": {"path": str(tmp_path / "data" / name)}} for name in ("sketch", "sqlite")
    ]
    store = make_store("", type="hybrid", online_stores=stores)
    for name in ("sketch", "sqlite"):
        store.apply([USER, make_history(f"in_{name}", tags={"tribe": name})])
    store.write_to_online_store("in_sketch", countries(["FR"]))
    store.write_to_online_store("in_sqlite", countries(["DE"]))
    features = ["in_sketch:country", "in_sqlite:country"]
    answer = store.get_online_features(features, entity_rows(1, 9), full_feature_names=True).to_dict()
    assert (answer["in_sketch__country"], answer["in_sqlite__country"]) == (["FR", None], ["DE", None])
    store.push("events", countries(["IT"], moment=NOON + timedelta(1)))
    assert [ask(store, 1, features=[feature]) for feature in features] == [["IT"], ["IT"]]
    assert (tmp_path / "data" / "sketch" / "shop" / "in_sketch" / "fresh").is_dir()
    assert not (tmp_path / "data" / "sketch" / "shop" / "in_sqlite").exists()


@pytest.mark.filterwarnings("ignore:datetime.datetime.utcnow:DeprecationWarning")
@pytest.mark.parametrize("kind", SKETCH)
class TestPrecomputedVectors:
    """Feast 0.67 makes them for Redis alone, and writes them to a view that was never applied, which SQLite
    refuses; so they are written here by hand. No read needs them."""

    def write(self, store, user, vector):
        arguments = (store.config, "fast", "shop", user_key(user), vector)
        store._get_provider().online_store.write_precomputed_vector(*arguments)

    def test_written_and_read_back(self, kind, make_store):
        store = make_store(kind)
        for user, vector in [(1, b"old"), (2, b"\0\xff"), (1, b"new")]:
            self.write(store, user, vector)
        arguments = (store.config, "fast", "shop", [user_key(user) for user in (2, 9, 1)])
        online_store = store._get_provider().online_store
        assert online_store.read_precomputed_vectors(*arguments) == [b"\0\xff", None, b"new"]
        read = online_store.read_precomputed_vectors_async
        assert asyncio.run(read(*arguments)) == [b"\0\xff", None, b"new"]
        assert online_store.read_precomputed_vectors(store.config, "slow", "shop", [user_key(1)]) == [None]

    @pytest.mark.slow
    @pytest.mark.parametrize("has_redis", [True, False])
    def test_a_service_is_answered_from_its_views(
        self, kind, has_redis, make_store, make_history, caplog, monkeypatch
    ):
        if not has_redis:  # then Feast logs a traceback instead of a warning
            monkeypatch.setitem(sys.modules, "redis", None)
            monkeypatch.delitem(sys.modules, "feast.infra.online_stores.redis", raising=False)
        store = make_store(kind)
        history = make_history()
        store.apply([USER, history, FeatureService(name="fast", features=[history], precompute_online=True)])
        self.write(store, 1, b"not a vector")
        store.materialize(NOON - timedelta(1), NOON + timedelta(1))
        fast = store.get_feature_service("fast")
        answer = store.get_online_features(fast, entity_rows(1, 9, 1)).to_dict()
        assert answer["country"] == ["FR", None, "FR"]
        store.push("events", countries(["DE"], moment=NOON + timedelta(2)))
        assert store.get_online_features(fast, entity_rows(1)).to_dict()["country"] == ["DE"]
        assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == []

    def test_other_stores_are_still_warned_of(self, kind, make_store, make_history, caplog):
        make_store(kind)._get_provider().online_store  # noqa: B018  # made when it is asked for
        store = make_store("sqlite", project="other")
        history = make_history()
        store.apply([USER, history, FeatureService(name="fast", features=[history], precompute_online=True)])
        store.push("events", countries(["DE"]))
        assert any("precompute" in record.getMessage() for record in caplog.records)


class TestSettingsOfAView:
    """They are read out of tags and options once, not at each write."""

    @pytest.fixture
    def resolved(self, monkeypatch):
        """Collects the names of views whose tags are read."""
        views, settings_of = [], open_views.settings_of

        def spied(config, table):
            views.append(table.name)
            return settings_of(config, table)

        monkeypatch.setattr(open_views, "settings_of", spied)
        return views

    def test_writes_deletions_and_seals_share_them(self, make_harness, resolved):
        harness = make_harness({"country": String}, **UNSEALED)
        del resolved[:]
        other = harness.reopened()
        for user in range(5):
            other.write(user, country("FR"))
        other.delete(1)
        assert other.seal()
        assert resolved == ["history"]

    @pytest.mark.parametrize(
        "change",
        [
            lambda harness: harness.view.tags.update({"sketch.advanced": "{max_vocabulary: 1}"}),
            lambda harness: setattr(harness.config.online_store, "advanced", Advanced(max_vocabulary=1)),
        ],
        ids=["tag of a view", "option"],
    )
    def test_a_changed_limit_counts_at_the_next_seal(self, make_harness, change, caplog):
        harness = make_harness({"viewed": Set(String)}, structure="bloom", **UNSEALED)
        for number in range(2):
            harness.write(1, {"viewed": strings("FR", "DE")})
            assert harness.seal()
            structures = harness.opened.stats().structures
            assert structures == {"viewed": ("bloom", "sets")[number]}
            reported = [text for text in caplog.messages if "max_vocabulary = 1," in text]
            assert len(reported) == number
            change(harness)

    def test_a_changed_ttl_counts_at_the_next_seal(self, make_harness):
        harness = make_harness({"country": String}, ttl={"expire": True}, **UNSEALED)
        for user, age in enumerate((0, 400)):
            harness.write(user, country("FR"), datetime.now(UTC) - timedelta(age))
        harness.view.ttl = timedelta(30)
        assert harness.seal()
        assert harness.opened.stats().sealed_entities == 1


def test_a_store_moves_with_its_files(make_store, tmp_path):
    frame = countries([f"c{n}" for n in range(6)], first_user=0)
    frame.to_parquet(tmp_path / ROWS)
    here = make_store("sealed", path=str(tmp_path / "here"))
    here.apply([USER, make_view({"country": String})])
    here.write_to_online_store("history", frame)
    late = countries(["c6"], first_user=6)
    open_view(here, "history").settle()
    make_store("unsealed", path=str(tmp_path / "here")).write_to_online_store("history", late)
    expected = ask(here, *range(7))
    assert expected == [f"c{n}" for n in range(7)]
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    shutil.rmtree(tmp_path / "here")
    there = make_store("unsealed", path=str(tmp_path / "there"))
    assert ask(there, *range(7)) == expected
    assert maintenance.seal(there, "history")
    assert maintenance.verify(there, "history").problems == []
    assert ask(there, *range(7)) == expected
