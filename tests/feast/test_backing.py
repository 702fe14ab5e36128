"""`backing_store`: another online store of Feast keeps features, for the entities that the sketch has."""

import asyncio
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial

import pandas as pd
import pytest
from feast import Field, FileSource
from feast.infra.online_stores.sqlite import SqliteOnlineStore
from feast.protos.feast.types.Value_pb2 import Value
from feast.types import Array, Float32, Int64, Set, String

from feast_sketch_store import SketchReader
from feast_sketch_store.errors import SettingsError, StorageError, UnsupportedFeatureError
from feast_sketch_store.metrics import BACKING_LOOKUPS, BACKING_LOST
from feast_sketch_store.online_store import online_store_of, open_view
from feast_sketch_store.operations import backing as refilling
from feast_sketch_store.operations import maintenance, resharding
from feast_sketch_store.operations.entity_history import entity_history
from feast_sketch_store.view import holding
from tests.helpers.keys import entity_key
from tests.helpers.repository import USER, make_repository, make_view, read_users, run_cli

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
REFERENCES = ["users:viewed", "users:country", "users:embedding", "users:bio"]
NUM_USERS = 60
VERSIONED = {"path": "registry.db", "enable_online_feature_view_versioning": True}
SQLITE = {"type": "sqlite", "path": "behind.db"}


NOTHING = (None, {"bio": Value(), "embedding": Value()})


def features(bio_codec="backing", **embedding_tags):
    return [
        Field(name="viewed", dtype=Set(Int64), tags={"sketch.structure": "sets"}),
        Field(name="country", dtype=String),
        Field(name="embedding", dtype=Array(Float32), tags=embedding_tags),
        Field(name="bio", dtype=String, tags={"sketch.codec": bio_codec}),
    ]


KEPT = features("exact", **{"sketch.codec": "exact"})  # nothing by the backing store


def view_of(folder, schema):
    folder.mkdir(exist_ok=True)
    users(range(2)).to_parquet(folder / "users.parquet")
    source = FileSource(
        path=str(folder / "users.parquet"), timestamp_field="event", created_timestamp_column="made"
    )
    return make_view(schema, source, name="users", pushed="pushed")


def users(numbers, hours=0, text="bio"):
    """Rows; every third user has no bio, every fifth an empty embedding."""
    numbers = list(numbers)
    moment = NOON + timedelta(hours=hours)
    return pd.DataFrame(
        {
            "user_id": numbers,
            "viewed": [[n % 7, 10 + n % 3] for n in numbers],
            "country": [("AT", "DE", "CH")[n % 3] for n in numbers],
            "embedding": [[] if n % 5 == 0 else [n / 8, -n / 4, float(hours)] for n in numbers],
            "bio": [None if n % 3 == 0 else f"{text} of {n}" for n in numbers],
            "event": [moment] * len(numbers),
            "made": [moment] * len(numbers),
        }
    )


class Shop:
    """A repository with a backing store."""

    def __init__(self, folder, backing=SQLITE, on_error="fail", owned=False, **options):
        self.folder = folder
        if backing:
            options["backing_store"] = {"store": backing, "on_error": on_error, "owned": owned}
        project = "shop_" + folder.parent.name.replace("-", "_")
        self.store = make_repository(folder, project=project, **options)

    def applied(self, schema=None):
        self.store.apply([USER, view_of(self.folder, schema or features())])
        return self

    @property
    def online_store(self):
        return online_store_of(self.store)

    @property
    def table(self):
        return self.store.get_feature_view("users")

    @property
    def view(self):
        return open_view(self.store, "users")

    @property
    def backing(self):
        """Feast's store behind ours, with the configuration it is used with."""
        there = self.online_store.backing(self.store.config)
        return there._store, there._config

    def write(self, rows):
        self.store.write_to_online_store("users", rows)

    def read(self, numbers, references=REFERENCES):
        return ordered(read_users(self.store, references, numbers))

    async def read_async(self, numbers):
        rows = [{"user_id": number} for number in numbers]
        return ordered((await self.store.get_online_features_async(REFERENCES, rows)).to_dict())

    def behind(self, number, table=None):
        """What the backing store itself has of a user."""
        store, config = self.backing
        keys = [entity_key(user_id=number)]
        return store.online_read(config, table or self.table, keys, ["embedding", "bio"])[0][1]

    def lose(self, numbers):
        """Empty rows of the backing store, as if it had lost their values."""
        store, config = self.backing
        empty = {"bio": Value(), "embedding": Value()}
        rows = [(entity_key(user_id=number), empty, NOON, None) for number in numbers]
        store.online_write_batch(config, self.table, rows, None)


@pytest.fixture
def options_of(request):
    """Gives the options of a store by its type."""

    def options(kind):
        if kind == "sqlite":
            return SQLITE
        return {"type": "redis", "connection_string": f"127.0.0.1:{request.getfixturevalue('redis_port')}"}

    return options


@pytest.fixture(params=[("sqlite", 1), ("redis", 1), ("sqlite", 4)], ids=["sqlite", "redis", "shards"])
def shop(request, tmp_path, options_of):
    kind, num_shards = request.param
    return Shop(tmp_path / "repo", options_of(kind), shards=num_shards).applied()


@pytest.fixture
def sqlite_shop(tmp_path):
    return Shop(tmp_path / "repo").applied()


@pytest.fixture
def asked(monkeypatch):
    """How many entities each call of the backing store asked for."""
    calls = []
    read = SqliteOnlineStore.online_read

    def counted(self, config, table, entity_keys, requested_features=None):
        calls.append(len(entity_keys))
        return read(self, config, table, entity_keys, requested_features)

    monkeypatch.setattr(SqliteOnlineStore, "online_read", counted)
    return calls


def expected(numbers, hours=0, text="bio"):
    rows = users(numbers, hours, text)
    answer = {name: rows[name].tolist() for name in ("user_id", "country", "embedding", "bio")}
    return {**answer, "viewed": [sorted(set(viewed)) for viewed in rows["viewed"]]}


def ordered(answer):
    """An answer with its sets in order."""
    sets = [None if viewed is None else sorted(viewed) for viewed in answer.get("viewed", ())]
    return {**answer, "viewed": sets} if sets else answer


@pytest.mark.parametrize("is_sealed", [True, False])
def test_values_come_from_both_stores(shop, is_sealed):
    shop.write(users(range(NUM_USERS)))
    if is_sealed:
        shop.view.seal()
    assert shop.read(range(NUM_USERS)) == expected(range(NUM_USERS))
    assert shop.read([7]) == expected([7])
    twice = [3, 4, 3, 8]
    assert shop.read(twice) == expected(twice)

    async def read_and_close():
        answer = await shop.read_async(range(NUM_USERS))
        client = getattr(shop.backing[0], "_client_async", None)
        if client is not None:  # Feast's Redis store does not close it
            await getattr(client, "aclose", client.close)()
        await shop.online_store.close()
        return answer

    assert asyncio.run(read_and_close()) == expected(range(NUM_USERS))


def test_a_backing_store_that_hangs_keeps_no_thread_from_reads_of_the_disk(tmp_path, monkeypatch):
    shop = Shop(tmp_path / "repo", refresh="0").applied()
    shop.write(users(range(3)))
    shop.view.seal()
    hangs, goes_on = threading.Event(), threading.Event()

    def hang(*arguments):
        hangs.set()
        assert goes_on.wait(30)
        raise ConnectionError("it is down")

    monkeypatch.setattr(SqliteOnlineStore, "online_read", hang)
    monkeypatch.setattr(SqliteOnlineStore, "online_write_batch", hang)
    store, config, table = shop.online_store, shop.store.config, shop.table

    async def read(feature):
        return await store.online_read_async(config, table, [entity_key(user_id=1)], [feature])

    async def read_beside(waiting):
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        task = asyncio.ensure_future(waiting)
        await asyncio.get_running_loop().run_in_executor(ThreadPoolExecutor(1), hangs.wait)
        try:
            return await asyncio.wait_for(read("country"), 20)
        finally:
            goes_on.set()
            with pytest.raises(StorageError, match="it is down"):
                await task

    row = (entity_key(user_id=1), {"bio": Value(string_val="new")}, NOON + timedelta(hours=1), None)
    for waits in (lambda: read("bio"), lambda: store.online_write_batch_async(config, table, [row], None)):
        hangs.clear()
        goes_on.clear()
        assert asyncio.run(read_beside(waits()))[0][1]["country"].string_val == "DE"


@pytest.mark.parametrize("features", [None, [], ["bio"], ["viewed", "bio"]])
def test_a_read_on_the_event_loop_gives_the_rows_of_a_plain_one(sqlite_shop, features):
    sqlite_shop.write(users(range(10)))
    online, keys = sqlite_shop.online_store, [entity_key(user_id=number) for number in range(12)]
    asked = sqlite_shop.store.config, sqlite_shop.table, keys, features
    assert asyncio.run(online.online_read_async(*asked)) == online.online_read(*asked)


def test_the_sealed_rows_hold_no_value_of_a_backed_feature(sqlite_shop):
    sqlite_shop.write(users(range(NUM_USERS), text="z" * 1000))
    sqlite_shop.view.seal()
    (layer,) = sqlite_shop.view.state.sealed.layers
    assert layer.size_bytes < 10_000
    assert [layer.features[name].structure for name in ("embedding", "bio")] == ["backing", "backing"]
    reader = SketchReader(sqlite_shop.folder, "users")
    with pytest.raises(UnsupportedFeatureError, match=r"'bio'.*backing store.*get_online_features"):
        reader.contains("bio", [1], ["x"])


def test_only_entities_with_a_value_are_looked_up(sqlite_shop, asked):
    sqlite_shop.write(users(range(10)))
    sqlite_shop.read(range(1000))
    assert asked == []  # unsealed rows know their values
    sqlite_shop.view.seal()
    sqlite_shop.read(range(1000))
    assert asked == [9]  # the tenth has neither a bio nor a number in its embedding
    sqlite_shop.read(range(100, 200))
    sqlite_shop.read(range(10), ["users:viewed", "users:country"])
    assert asked == [9]
    sqlite_shop.read(range(10), ["users:bio"])
    assert asked == [9, 6]


def test_a_late_row_does_not_reach_the_backing_store(shop):
    shop.write(users(range(4), hours=2, text="new"))
    shop.view.seal()
    shop.write(users(range(4), hours=1, text="late"))
    assert shop.behind(1)["bio"].string_val == "new of 1"
    assert shop.read(range(4)) == expected(range(4), 2, "new")
    same_event = users(range(4), hours=2, text="older")
    same_event["made"] -= timedelta(hours=1)
    shop.write(same_event)
    assert shop.behind(1)["bio"].string_val == "new of 1"
    shop.write(users(range(4), hours=2, text="again"))
    assert shop.behind(1)["bio"].string_val == "again of 1"


def test_a_row_is_written_again_after_others_sealed_and_removed_the_snapshot_before(tmp_path):
    shop = Shop(tmp_path / "repo", refresh="1h").applied()
    shop.write(users(range(4)))
    shop.view.seal()
    shop.write(users([4]))
    other = Shop(tmp_path / "repo", refresh="1h")
    other.view.seal()
    other.view.vacuum()
    shop.write(users(range(4), text="again"))
    assert shop.behind(1)["bio"].string_val == "again of 1"
    assert shop.read(range(4)) == expected(range(4), text="again")


def test_a_process_that_serves_a_shard_writes_rows_of_all(tmp_path):
    """A late row is one also where this process does not read."""
    shop = Shop(tmp_path / "repo", shards=4).applied()
    shop.write(users(range(NUM_USERS), hours=2, text="new"))
    shop.view.seal()
    part = Shop(tmp_path / "repo", shards={"count": 4, "serve": [0]})
    part.write(users(range(NUM_USERS), hours=1, text="late"))
    part.write(users(range(0, NUM_USERS, 2), hours=3, text="newest"))
    assert part.behind(1)["bio"].string_val == "new of 1"
    again = Shop(tmp_path / "repo", shards=4)
    even, odd = range(0, NUM_USERS, 2), range(1, NUM_USERS, 2)
    assert again.read(even) == expected(even, 3, "newest")
    assert again.read(odd) == expected(odd, 2, "new")
    assert maintenance.verify(again.store, "users").problems == []


def test_rows_are_divided_beside_a_backing_store(sqlite_shop):
    sqlite_shop.write(users(range(NUM_USERS)))
    sqlite_shop.view.seal()
    resharding.reshard(sqlite_shop.store, "users", 4, wait=lambda seconds: None)
    sqlite_shop.write(users(range(5), hours=1, text="new"))
    assert sqlite_shop.read(range(5)) == expected(range(5), 1, "new")
    assert sqlite_shop.read(range(5, NUM_USERS)) == expected(range(5, NUM_USERS))
    assert maintenance.verify(sqlite_shop.store, "users").problems == []


def test_a_row_without_a_value_empties_it(shop):
    shop.write(users([1, 2]))
    rows = users([1], hours=1)
    rows["bio"] = [None]
    shop.write(rows)
    shop.view.seal()
    assert shop.read([1])["bio"] == [None]
    assert shop.behind(1)["bio"].WhichOneof("val") is None
    assert shop.read([2])["bio"] == ["bio of 2"]


def test_a_refused_batch_does_not_reach_the_backing_store(sqlite_shop):
    sqlite_shop.write(users([1]))
    values = {"bio": Value(string_val="refused"), "viewed": Value(string_val="no set")}
    row = (entity_key(user_id=1), values, NOON, None)
    with pytest.raises(Exception, match="viewed"):
        sqlite_shop.online_store.online_write_batch(sqlite_shop.store.config, sqlite_shop.table, [row], None)
    assert sqlite_shop.behind(1)["bio"].string_val == "bio of 1"


def test_a_write_that_the_backing_store_refuses_leaves_nothing(sqlite_shop, monkeypatch):
    def refuse(*arguments):
        raise ConnectionError("it is down")

    sqlite_shop.write(users([3]))
    monkeypatch.setattr(SqliteOnlineStore, "online_write_batch", refuse)
    with pytest.raises(StorageError, match=r"backing store \(sqlite\) did not take 2 rows.*it is down"):
        sqlite_shop.write(users([1, 2]))
    assert sqlite_shop.read([1, 2])["country"] == [None, None]
    refill = "which the view has; run `feast-sketch refill users` when it takes"
    with pytest.raises(StorageError, match=refill):
        refilling.refill(sqlite_shop.store, "users")
    with pytest.raises(StorageError, match="what the view has deleted; delete the entities again"):
        maintenance.delete(sqlite_shop.store, "users", [{"user_id": 3}])


@pytest.mark.parametrize(
    ("answer", "reason"), [(None, "it is down"), (lambda rows: rows[1:], "it gave 1 rows for 2 entities")]
)
def test_reads_fail_or_go_on_without_the_backing_store(tmp_path, monkeypatch, answer, reason):
    shop = Shop(tmp_path / "repo").applied()
    shop.write(users(range(3)))
    shop.view.seal()

    read = SqliteOnlineStore.online_read

    def refuse(*arguments):
        if answer is None:
            raise ConnectionError("it is down")
        return answer(read(*arguments))

    monkeypatch.setattr(SqliteOnlineStore, "online_read", refuse)
    with pytest.raises(StorageError, match=rf"'users'.*sqlite.*{reason}.*on_error: missing"):
        shop.read([1, 2])
    assert shop.read(range(3), ["users:country"])["country"] == ["AT", "DE", "CH"]
    lenient = Shop(tmp_path / "repo", on_error="missing")
    found = lenient.read([1, 2, 77])
    assert (found["country"], found["bio"]) == (["DE", "CH", None], [None, None, None])
    with pytest.raises(StorageError, match=r"'users'.*sqlite.*it (is down|gave 2 rows for 3 entities)$"):
        maintenance.verify(lenient.store, "users")


def test_a_lost_value_is_missing_and_counted(sqlite_shop, monkeypatch):
    sqlite_shop.write(users(range(6)))
    sqlite_shop.view.seal()
    counts = {}
    monkeypatch.setattr(
        type(sqlite_shop.view.metrics),
        "record",
        lambda self, metric, amount=1.0: counts.update({metric: counts.get(metric, 0) + amount}),
    )
    sqlite_shop.lose([1])
    answer = sqlite_shop.read([1, 2])
    assert answer["bio"] == [None, "bio of 2"]
    assert answer["country"] == ["DE", "CH"]
    assert counts[BACKING_LOOKUPS] == 2
    assert counts[BACKING_LOST] == 2  # a bio and an embedding
    (first, second) = maintenance.verify(sqlite_shop.store, "users").problems
    assert "lacks 1 of 6 entities, user_id=1 among them" in first
    assert "feast-sketch refill users" in second


def test_refill_writes_all_rows_again(shop):
    shop.write(users(range(NUM_USERS)))
    shop.view.seal()
    shop.write(users(range(5), hours=1, text="new"))
    shop.lose(range(NUM_USERS))
    shop.view.seal()
    assert shop.read([7])["bio"] == [None]
    assert "rows written" in run_cli(shop.folder, "refill", "users").stdout
    assert maintenance.verify(shop.store, "users").problems == []
    assert shop.read([1, 7])["bio"] == ["new of 1", "bio of 7"]


def test_a_refill_has_rows_that_another_process_wrote_into_new_shards(tmp_path):
    shop, other = Shop(tmp_path / "repo").applied(), Shop(tmp_path / "repo")
    shop.write(users([1]))
    resharding.reshard(other.store, "users", 4, wait=lambda seconds: None)
    other.write(users([2]))
    assert refilling.refill(shop.store, "users") == 2


def test_a_replica_refills_nothing(tmp_path):
    shop = Shop(tmp_path / "repo").applied()
    shop.write(users([1]))
    shop.view.seal()
    replica = Shop(tmp_path / "repo", read_only=True)
    assert replica.read([1]) == expected([1])
    with pytest.raises(StorageError, match="read_only: true"):
        refilling.refill(replica.store, "users")


def test_the_history_of_an_entity_has_its_backed_values(sqlite_shop):
    sqlite_shop.write(users([1]))
    sqlite_shop.view.seal()
    sqlite_shop.write(users([1], hours=1, text="newer"))
    history = entity_history(sqlite_shop.store, "users", {"user_id": 1})
    assert [row.shown["bio"] for row in history.rows] == ["bio of 1", "newer of 1"]
    assert history.rows[-1].shown == history.shown
    assert history.not_written == {}


def test_a_refill_does_not_bring_back_what_was_deleted_meanwhile(shop, monkeypatch):
    shop.write(users([1, 2]))
    parts = refilling._parts

    def delete_first(*arguments):
        for part in parts(*arguments):
            maintenance.delete(shop.store, "users", [{"user_id": 1}])
            yield part

    monkeypatch.setattr(refilling, "_parts", delete_first)
    assert refilling.refill(shop.store, "users") == 1
    kept = [shop.behind(user) for user in (1, 2)]
    assert [values and values["bio"].WhichOneof("val") for values in kept] == [None, "string_val"]


def test_a_rebuild_fills_the_backing_store(sqlite_shop):
    sqlite_shop.write(users(range(6), text="pushed"))
    users(range(2, 6), hours=1, text="batch").to_parquet(sqlite_shop.folder / "users.parquet")
    assert maintenance.rebuild(sqlite_shop.store, "users", NOON - timedelta(days=1)) == 4
    assert sqlite_shop.read(range(6))["bio"] == [None, None, "batch of 2", None, "batch of 4", "batch of 5"]
    assert maintenance.verify(sqlite_shop.store, "users").problems == []


def test_delete_empties_the_backing_store(shop):
    shop.write(users([1, 2]))
    shop.view.seal()
    maintenance.delete(shop.store, "users", [{"user_id": 1}])
    assert shop.read([1, 2])["bio"] == [None, "bio of 2"]
    assert shop.behind(1)["bio"].WhichOneof("val") is None


@pytest.fixture(params=["sqlite", "redis"])
def versions(request, tmp_path, options_of):
    """A shop whose view has two versions with a sealed row of the same user."""
    shop = Shop(tmp_path / "repo", options_of(request.param), registry=VERSIONED)
    for schema, text in ((features(), "first"), (features()[1:], "second")):
        names = [field.name for field in schema]
        shop.applied(schema).write(users([1], text=text)[["user_id", *names, "event", "made"]])
        shop.view.seal()
    return shop


def test_versions_of_a_view_have_values_of_their_own(versions):
    for version, text in (("", "second"), ("@v0", "first"), ("@v1", "second")):
        assert versions.read([1], [f"users{version}:bio"])["bio"] == [f"{text} of 1"]


def test_a_dropped_view_leaves_the_backing_store_with_all_versions(versions):
    (store, config), newest = versions.backing, versions.table
    first = versions.store.registry.get_feature_view_by_version("users", versions.store.project, 0)
    versions.store.apply([], objects_to_delete=[newest], partial=False)
    for table in (newest, first):
        store.update(config, [], [table], [], [], True)
        assert versions.behind(1, table) in NOTHING


def test_a_store_that_mixes_versions_keeps_no_features_of_them(tmp_path, monkeypatch):
    monkeypatch.setattr(SqliteOnlineStore, "_versioned_read_supported", False)
    shop = Shop(tmp_path / "repo", registry=VERSIONED).applied()
    shop.write(users([1]))
    with pytest.raises(SettingsError, match=r"does not keep the versions of a view apart.*embedding, bio"):
        shop.applied(features()[1:])
    shop.view.seal()
    assert shop.read([1])["bio"] == ["bio of 1"]


def test_a_teardown_names_all_versions_to_a_backing_store_that_is_owned(tmp_path, monkeypatch):
    torn_down = []
    monkeypatch.setattr(
        SqliteOnlineStore,
        "teardown",
        lambda self, config, tables, entities: torn_down.extend(t.current_version_number for t in tables),
    )
    shop = Shop(tmp_path / "repo", owned=True, registry=VERSIONED)
    for schema in (features(), features()[1:]):
        shop.applied(schema)
    shop.store.teardown()
    assert torn_down == [0, 1]


@pytest.mark.parametrize("owns", [True, False])
def test_teardown_reaches_a_backing_store_that_is_owned(tmp_path, owns):
    shop = Shop(tmp_path / "repo", owned=owns).applied()
    shop.write(users([1]))
    shop.store.teardown()
    assert (shop.folder / "behind.db").exists() is not owns


def test_a_dropped_view_leaves_the_backing_store(tmp_path, options_of):
    shop = Shop(tmp_path / "repo", options_of("redis")).applied()
    shop.write(users([1]))
    table = shop.table
    shop.store.apply([], objects_to_delete=[table], partial=False)
    assert shop.behind(1, table) in NOTHING


def test_a_feature_becomes_backed(tmp_path, asked):
    folder = tmp_path / "repo"
    shop = Shop(folder, None).applied(features(bio_codec="exact"))
    shop.write(users(range(6)))
    shop.view.seal()
    shop = Shop(folder).applied()
    assert shop.read(range(6)) == expected(range(6))
    assert asked == []  # until the next seal
    run_cli(folder, "refill", "users")
    shop.view.seal()
    shop.write(users([9]))
    shop.view.seal()
    assert shop.read(range(6)) == expected(range(6))
    assert len(asked) == 1


def test_a_process_that_does_not_know_that_a_feature_became_backed(tmp_path):
    """Its registry and its plan of the request are of before: sealed rows say that they lack the values."""
    folder = tmp_path / "repo"
    Shop(folder).applied(KEPT).write(users(range(6)))
    older = Shop(folder, refresh="0")
    older.view.seal()
    reader = SketchReader(folder, "users", refresh_interval_seconds=0)
    for _ in range(2):  # the second read has a plan
        older.read(range(6))
    newer = Shop(folder).applied()
    refilling.refill(newer.store, "users")
    current = reader._view.current

    def seal_after_a_look():
        state = current()
        newer.view.seal()
        return state

    reader._view.current = seal_after_a_look
    assert reader.arrow("bio", [1]).to_pylist() == ["bio of 1"]
    assert older.read(range(6)) == asyncio.run(older.read_async(range(6))) == expected(range(6))


def test_a_feature_is_no_longer_backed(tmp_path, asked):
    """Sealed rows have no values of it: those are read from the other store until the next seal."""
    folder = tmp_path / "repo"
    shop = Shop(folder).applied()
    shop.write(users(range(6)))
    shop.view.seal()
    for each in (shop.applied(KEPT), Shop(folder)):
        assert each.read(range(6)) == asyncio.run(each.read_async(range(6))) == expected(range(6))
    with pytest.raises(SettingsError, match=r"a backing store \(bio, embedding\)"):
        holding.pin(shop.view)
    reader = SketchReader(folder, "users", refresh_interval_seconds=0)
    for read in (reader.arrow, reader.csr, partial(reader.contains, values=["text of 1"])):
        with pytest.raises(UnsupportedFeatureError, match=r"'bio'.*backing store.*get_online_features"):
            read("bio", [1])
    shop.write(users(range(3), hours=1, text="newer"))
    assert shop.read(range(6))["bio"] == [None, "newer of 1", "newer of 2", None, "bio of 4", "bio of 5"]
    shop.view.seal()
    assert reader.arrow("bio", [1, 4]).to_pylist() == ["newer of 1", "bio of 4"]
    asked.clear()
    assert shop.read(range(6))["bio"] == [None, "newer of 1", "newer of 2", None, "bio of 4", "bio of 5"]
    assert asked == []


def test_sealed_values_need_the_backing_store_until_the_next_seal(tmp_path):
    folder = tmp_path / "repo"
    shop = Shop(folder).applied()
    shop.write(users(range(6)))
    shop.view.seal()
    shop = Shop(folder, None).applied(features(bio_codec="exact"))
    for read in (
        lambda: shop.read(range(6)),
        lambda: asyncio.run(shop.read_async(range(6))),
        lambda: shop.online_store.online_read(shop.store.config, shop.table, [entity_key(user_id=1)]),
    ):
        with pytest.raises(SettingsError, match=r"sealed values of .*bio.*names none.*seal users"):
            read()
    assert shop.read([1], ["users:country"])["country"] == ["DE"]
    run_cli(folder, "seal", "users")
    assert Shop(folder, None).read(range(6)) == expected(range(6))


def test_backing_needs_a_backing_store(tmp_path, monkeypatch):
    with pytest.raises(SettingsError, match=r"backing_store.*'nonsense'"):
        Shop(tmp_path / "third", {"type": "nonsense"}).applied()
    monkeypatch.setitem(sys.modules, "feast.infra.online_stores.redis", None)
    with pytest.raises(SettingsError, match=r"backing_store: .*redis.*; install what this store needs"):
        Shop(tmp_path / "fourth", {"type": "redis"}).applied()


def test_wrong_options_are_named_and_secrets_are_not(tmp_path):
    options = {
        "type": "redis",
        "connection_string": ["redis:6379,password=hunter2"],
        "key_ttl_seconds": "soon",
    }
    wrong = r"'redis' has wrong options: connection_string: .*key_ttl"
    with pytest.raises(SettingsError, match=wrong) as raised:
        Shop(tmp_path / "repo", options).applied()
    assert "hunter2" not in str(raised.value)
    assert raised.value.__cause__ is None
