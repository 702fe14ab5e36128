"""`feast-sketch import`: rows that Feast's own classes wrote into other stores, read back from ours."""

import html
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import sys
import time
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner
from feast import Entity, FeatureStore, FeatureView, Field, FileSource, ValueType
from feast.infra.key_encoding_utils import serialize_entity_key
from feast.infra.online_stores.helpers import compute_entity_id
from feast.protos.feast.types.Value_pb2 import Int64List, StringList, Value
from feast.repo_config import load_repo_config
from feast.types import Array, Float32, Int64, Set, String, UnixTimestamp

from feast_sketch_store.bridges import importing
from feast_sketch_store.bridges.base import OtherStore, OtherView, open_bridge
from feast_sketch_store.bridges.hashed_keys import invert_int64_keys
from feast_sketch_store.bridges.importing import import_view
from feast_sketch_store.bridges.survey import survey
from feast_sketch_store.cli import cli
from feast_sketch_store.errors import RowError, SettingsError, StorageError
from feast_sketch_store.online_store import open_view
from feast_sketch_store.operations import maintenance
from feast_sketch_store.rows.entity_keys import hash_int64_keys
from feast_sketch_store.storage.local import LocalStorage
from tests.helpers.cases import case, for_each
from tests.helpers.cql_server import running_cql
from tests.helpers.google_fakes import BigtableInMemory, DatastoreInMemory
from tests.helpers.hbase_server import running_hbase
from tests.helpers.keys import entity_key
from tests.helpers.length import by_length
from tests.helpers.processes import PATIENCE_SECONDS, warm_context
from tests.helpers.redis_server import running_cluster
from tests.helpers.repository import make_repository
from tests.helpers.sql_servers import running_mariadb, running_postgres

pytestmark = pytest.mark.slow

WALKED = by_length(2_000, 50_000)  # entities
NOON = datetime(2026, 5, 1, 12, 0, 0, 123456, tzinfo=UTC)
_CASSANDRA = "feast.infra.online_stores.cassandra_online_store"
STORES = {
    "redis": "feast.infra.online_stores.redis.RedisOnlineStore",
    "sqlite": "feast.infra.online_stores.sqlite.SqliteOnlineStore",
    "dynamodb": "feast.infra.online_stores.dynamodb.DynamoDBOnlineStore",
    "postgres": "feast.infra.online_stores.postgres_online_store.postgres.PostgreSQLOnlineStore",
    "mysql": "feast.infra.online_stores.mysql_online_store.mysql.MySQLOnlineStore",
    "cassandra": f"{_CASSANDRA}.cassandra_online_store.CassandraOnlineStore",
    "scylladb": "feast.infra.online_stores.scylladb_online_store.scylladb.ScyllaDBOnlineStore",
    "datastore": "feast.infra.online_stores.datastore.DatastoreOnlineStore",
    "bigtable": "feast.infra.online_stores.bigtable.BigtableOnlineStore",
    "hbase": "feast.infra.online_stores.hbase_online_store.hbase.HbaseOnlineStore",
}
HASHED = ("dynamodb", "bigtable", "hbase")  # stores that keep hashes of keys
SERVED = ("redis", "cluster", "sqlite", "dynamodb", "postgres", "mysql")
FAKED = ("cassandra", "scylladb", "datastore", "bigtable", "hbase")  # by fakes in this process
FEATURES = [Field(name="liked", dtype=Set(String)), Field(name="seen", dtype=Array(Int64))]
FEATURES += [Field(name="country", dtype=String), Field(name="score", dtype=Float32)]
FEATURE_NAMES = [feature.name for feature in FEATURES]
FEATURES[1].tags["sketch.codec"] = "exact"


@pytest.fixture(scope="module")
def cluster_ports(tmp_path_factory):
    with running_cluster(tmp_path_factory.mktemp("cluster")) as ports:
        yield ports


@pytest.fixture(scope="module")
def dynamodb_port(object_server):
    pytest.importorskip("boto3")
    return object_server("moto").port


@pytest.fixture(scope="module")
def postgres_port(tmp_path_factory):
    with running_postgres(tmp_path_factory.mktemp("postgres")) as port:
        yield port


@pytest.fixture(scope="module")
def mysql_port(tmp_path_factory):
    with running_mariadb(tmp_path_factory.mktemp("mysql")) as port:
        yield port


@pytest.fixture(scope="module")
def cql_port():
    with running_cql() as port:
        yield port


@pytest.fixture(scope="module")
def hbase_port():
    with running_hbase() as port:
        yield port


@pytest.fixture
def google(monkeypatch):
    """The project of clients that keep everything in this process."""
    datastore = pytest.importorskip("google.cloud.datastore", reason="needs google-cloud-datastore")
    bigtable = pytest.importorskip("google.cloud.bigtable", reason="needs google-cloud-bigtable")
    monkeypatch.setattr(datastore, "Client", DatastoreInMemory)
    monkeypatch.setattr(bigtable, "Client", BigtableInMemory)
    return "tests"


@pytest.fixture(params=[*SERVED, *FAKED])
def other(request, tmp_path, monkeypatch):
    """Another store with its configuration, in which a project of the test's name has nothing yet."""

    def place(fixture):
        return request.getfixturevalue(fixture)

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "tests")
    options = {
        "sqlite": lambda: {"path": "online.db"},
        "redis": lambda: {"connection_string": f"127.0.0.1:{place('redis_port')}"},
        "cluster": lambda: {
            "redis_type": "redis_cluster",
            "connection_string": ",".join(f"127.0.0.1:{port}" for port in place("cluster_ports")),
        },
        "dynamodb": lambda: {
            "region": "us-east-1",
            "endpoint_url": f"http://127.0.0.1:{place('dynamodb_port')}",
        },
        "postgres": lambda: {
            **{"host": "127.0.0.1", "port": place("postgres_port"), "database": "feast"},
            **{"user": "postgres", "password": "none", "sslmode": "disable"},
        },
        "mysql": lambda: {
            **{"host": "127.0.0.1", "port": place("mysql_port"), "database": "feast"},
            **{"user": "feast", "password": "tests"},
        },
        **dict.fromkeys(
            ("cassandra", "scylladb"),
            lambda: {"hosts": ["127.0.0.1"], "port": place("cql_port"), "keyspace": "features"},
        ),
        "datastore": lambda: {"project_id": place("google"), "write_concurrency": 1},
        "bigtable": lambda: {"project_id": place("google"), "instance": "tests"},
        "hbase": lambda: {"host": "127.0.0.1", "port": str(place("hbase_port"))},
    }[request.param]()
    if request.param == "cassandra":
        options["protocol_version"] = 4
    if (
        request.param == "scylladb"
    ):  # it has no such option; the driver leaves sockets open as it tries versions
        monkeypatch.setattr("cassandra.cluster.Cluster.protocol_version", 4)
    kind = {"cluster": "redis"}.get(request.param, request.param)
    made = Other(tmp_path / "other", kind, options, "p" + tmp_path.name.replace("-", "_"))
    yield made
    let_go(made.store)


def let_go(online_store):
    """Close the connection that Feast's store leaves open."""
    connection = vars(online_store).get("_conn")
    if hasattr(connection, "close"):
        connection.close()
    if vars(online_store).get("_cluster") is not None:
        online_store._cluster.shutdown()


@pytest.fixture
def sqlite(tmp_path):
    return Other(tmp_path / "other", "sqlite", {"path": "online.db"}, "shop")


class Other:
    """A store of Feast's own beside ours."""

    def __init__(self, folder, kind, options, project, more=""):
        self.kind, self.file, self.project = kind, folder / "feature_store.yaml", project
        folder.mkdir()
        lines = "".join(f"  {name}: {json.dumps(value)}\n" for name, value in options.items())
        self.file.write_text(
            f"project: {project}\nprovider: local\nregistry: registry.db\n"
            f"entity_key_serialization_version: 3\nonline_store:\n  type: {kind}\n{lines}{more}"
        )
        self.config = load_repo_config(folder, self.file)
        module, name = STORES[kind].rsplit(".", 1)
        self.store = getattr(import_module(module), name)()

    def several_pages(self, number):
        """``number`` rows, which are more than a page; fewer where a page has megabytes and all are one."""
        return 300 if self.kind == "dynamodb" else number

    def write(self, view, rows):
        self.store.update(self.config, [], [view], [], [], False)
        self.store.online_write_batch(self.config, view, rows, None)

    def read(self, view, keys):
        # Feast's Postgres store fails without names.
        rows = self.store.online_read(self.config, view, keys, [feature.name for feature in view.features])
        if self.kind != "hbase":
            return rows
        return [(NOON.replace(microsecond=0), values) for _, values in rows]  # Feast does not tell them


def make_view(name="history", join_key="user_id", value_type=ValueType.INT64, features=FEATURES):
    user = Entity(name="user", join_keys=[join_key], value_type=value_type)
    source = FileSource(path="rows.parquet", timestamp_field="event_timestamp")
    return FeatureView(name=name, entities=[user], schema=features, source=source, ttl=timedelta(0)), user


def make_store(folder, project, view, user, structure="sets"):
    join_key = {user.join_key: [0] if user.value_type == ValueType.INT64 else ["a"]}
    values = {"liked": [["a"]], "seen": [[1]], "country": ["no"], "score": [0.5]}
    frame = pd.DataFrame({**join_key, **values, "event_timestamp": [NOON]})
    store = make_repository(folder, rows=frame, project=project, structure=structure)
    store.apply([user, view])
    return store, store.get_feature_view(view.name)


def value_of(number):
    """The features of a user; some are missing, null or empty."""
    values = {
        "liked": Value(string_set_val={"val": sorted({f"a{number % 7}", f"b{number % 5}"})}),
        "seen": Value(int64_list_val={"val": [number, 3, number, -(2**63)]}),
        "country": Value(string_val=["no", "dk", ""][number % 3]),
        "score": Value(float_val=number / 8),
    }
    if number % 11 == 0:
        values["country"] = Value()
    if number % 13 == 0:
        values["seen"] = Value(int64_list_val={})
    return values


def rows_of(numbers, key=lambda number: entity_key(user_id=number), event=NOON):
    return [(key(n), value_of(n), event + timedelta(microseconds=n % 1000), None) for n in numbers]


def answers(store, view, keys):
    """Event timestamps and values of entities; sets in order."""
    online = store._get_provider().online_store
    return [normal(row) for row in online.online_read(store.config, view, keys)]


def normal(row):
    event, values = row
    for value in (values or {}).values():
        if value.WhichOneof("val") == "string_set_val":
            value.string_set_val.val[:] = sorted(value.string_set_val.val)
    event = event and event.replace(tzinfo=event.tzinfo or UTC)
    return event, {name: value.SerializeToString() for name, value in (values or {}).items()}


def test_nothing_is_lost_or_changed(other, tmp_path):
    view, user = make_view()
    numbers = [*range(other.several_pages(1500)), -1, 2**40, -(2**63), 2**63 - 1]
    other.write(view, rows_of(numbers))
    store, view = make_store(tmp_path / "ours", other.project, view, user)
    done = import_view(store, "history", other.file)
    assert (done.rows, done.changed, done.entities) == (len(numbers), 0, len(numbers))
    assert done.keys == ("recovered" if other.kind in HASHED else "exact")
    keys = [entity_key(user_id=number) for number in numbers]
    theirs = [normal(row) for row in other.read(view, keys)]
    assert answers(store, view, keys) == theirs
    assert answers(store, view, [entity_key(user_id=77777)]) == [(None, {})]
    assert maintenance.verify(store, "history").is_sound
    assert not maintenance.verify(store, "history").leftovers


def test_string_keys(other, tmp_path):
    view, user = make_view(value_type=ValueType.STRING)
    names = [f"user {number}" for number in range(50)] + ["", "ünïcødé", "*[a]?\\"]
    keys = [entity_key(user_id=name) for name in names]
    other.write(view, [(key, value_of(n), NOON, None) for n, key in enumerate(keys)])
    store, view = make_store(tmp_path / "ours", other.project, view, user)
    if other.kind in HASHED:
        with pytest.raises(SettingsError, match="--keys"):
            import_view(store, "history", other.file)
        given = tmp_path / "keys.parquet"
        pd.DataFrame({"user_id": names[:-1]}).to_parquet(given)
        with pytest.raises(SettingsError, match="no key is known for 1 of"):
            import_view(store, "history", other.file, keys=given)
        assert open_view(store, "history").stats().sealed_entities == 0
        pd.DataFrame({"user_id": [*names, "somebody else"]}).to_parquet(given)
        done = import_view(store, "history", other.file, keys=given)
        assert done.keys == "given"
    else:
        import_view(store, "history", other.file)
    assert answers(store, view, keys) == [normal(row) for row in other.read(view, keys)]


def test_another_project_and_view_of_the_same_entities(other, tmp_path):
    view, user = make_view()
    second, _ = make_view(name="second")
    other.write(view, rows_of(range(20)))
    other.write(second, rows_of(range(10, 40)))
    # A project whose name ends alike, in the same server.
    alike = other.config.model_copy(update={"project": f"e{other.project}"})
    other.store.update(alike, [], [view], [], [], False)
    other.store.online_write_batch(alike, view, rows_of(range(500, 510)), None)
    store, view = make_store(tmp_path / "ours", other.project, view, user)
    assert import_view(store, "history", other.file).entities == 20
    assert answers(store, view, [entity_key(user_id=n) for n in (25, 505)]) == [(None, {})] * 2


def test_rows_that_are_there_compete(sqlite, tmp_path):
    view, user = make_view()
    sqlite.write(view, rows_of(range(10)))
    store, view = make_store(tmp_path / "ours", "shop", view, user)
    online = store._get_provider().online_store
    older, newer = NOON - timedelta(days=1), NOON + timedelta(days=1)
    mine = [(entity_key(user_id=n), value_of(n + 100), older, None) for n in (1, 50)]
    mine += [(entity_key(user_id=2), value_of(102), newer, None)]
    online.online_write_batch(store.config, view, mine, None)
    online.delete(store.config, view, [entity_key(user_id=3)])
    assert import_view(store, "history", sqlite.file).entities == 11
    found = answers(store, view, [entity_key(user_id=n) for n in (1, 2, 3, 50)])
    assert [event for event, _ in found] == [
        NOON.replace(microsecond=0),  # SQLite keeps whole seconds
        newer,
        NOON.replace(microsecond=0),
        older,
    ]


def test_the_second_scan_takes_up_what_changed(sqlite, tmp_path, monkeypatch):
    view, user = make_view()
    sqlite.write(view, rows_of(range(3000)))
    store, view = make_store(tmp_path / "ours", "shop", view, user)
    monkeypatch.setattr(importing, "_ROWS_A_COMMIT", 500)
    later = NOON + timedelta(hours=1)
    written = []

    def write_meanwhile(rows, total):
        if not written:
            written.append(rows)
            sqlite.write(view, [(entity_key(user_id=n), value_of(n + 1), later, None) for n in range(-5, 5)])
            same_second = [(entity_key(user_id=n), value_of(n + 1), NOON, None) for n in range(5, 9)]
            sqlite.write(view, same_second)

    done = import_view(store, "history", sqlite.file, on_progress=write_meanwhile)
    # What lies behind the place of the first scan was met there already.
    assert done.entities == 3005
    assert 0 < done.changed <= 10
    keys = [entity_key(user_id=n) for n in range(-5, 9)]
    assert answers(store, view, keys) == [normal(row) for row in sqlite.read(view, keys)]


def test_a_store_that_loses_its_rows_meanwhile_is_told_and_nothing_is_imported(sqlite, tmp_path):
    view, user = make_view()
    sqlite.write(view, rows_of(range(3000)))
    store, view = make_store(tmp_path / "ours", "shop", view, user)

    def lose_all(rows, total):
        with closing(sqlite3.connect(sqlite.file.parent / "online.db")) as database, database:
            database.execute("DELETE FROM shop_history")

    with pytest.raises(StorageError, match=r"the first scan found [0-9,]+ rows, and the second none"):
        import_view(store, "history", sqlite.file, on_progress=lose_all)
    key = entity_key(user_id=1)
    assert answers(store, view, [key]) == [(None, {})]
    sqlite.write(view, rows_of(range(10)))
    assert import_view(store, "history", sqlite.file).entities == 10


def test_a_dry_run_changes_nothing(sqlite, tmp_path):
    view, user = make_view()
    sqlite.write(view, rows_of(range(10)))
    store, _ = make_store(tmp_path / "ours", "shop", view, user)
    before = sorted((tmp_path / "ours" / "data").rglob("*"))
    done = import_view(store, "history", sqlite.file, dry_run=True)
    assert (done.rows, done.entities) == (10, None)
    assert sorted((tmp_path / "ours" / "data").rglob("*")) == before


def test_a_value_that_the_view_cannot_keep_is_named(sqlite, tmp_path):
    view, user = make_view()
    sqlite.write(view, [(entity_key(user_id=1), {"country": Value(int64_val=1)}, NOON, None)])
    store, view = make_store(tmp_path / "ours", "shop", view, user)
    with pytest.raises(RowError, match=r"'country'.*Nothing was imported"):
        import_view(store, "history", sqlite.file)
    assert answers(store, view, [entity_key(user_id=1)]) == [(None, {})]


@pytest.mark.parametrize("rows_a_commit", [4, 1000])
def test_bad_rows_are_counted_named_and_left_out_where_that_is_wanted(
    sqlite, tmp_path, monkeypatch, rows_a_commit
):
    monkeypatch.setattr(importing, "_ROWS_A_COMMIT", rows_a_commit)
    view, user = make_view()
    sqlite.write(view, rows_of(range(20)))
    bad = [3, 17]
    sqlite.write(view, [(entity_key(user_id=n), {"country": Value(int64_val=n)}, NOON, None) for n in bad])
    store, view = make_store(tmp_path / "ours", "shop", view, user)
    with pytest.raises(
        RowError, match=r"2 of 20 rows cannot be kept.* the entity user_id=(3|17): .*'country'"
    ):
        import_view(store, "history", sqlite.file, dry_run=True)
    with pytest.raises(
        RowError, match=r"the entity user_id=(3|17): .*'country'.*Nothing was imported.*--skip-bad"
    ):
        import_view(store, "history", sqlite.file)
    command = ["-c", str(tmp_path / "ours"), "import", "history", "--from", str(sqlite.file), "--skip-bad"]
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 0, done.output
    assert sorted(line.split(":")[1] for line in done.stderr.splitlines() if "left out" in line) == [
        " left out user_id=17",
        " left out user_id=3",
    ]
    keys = [entity_key(user_id=n) for n in range(20)]
    found = answers(store, view, keys)
    assert [n for n, (event, _) in enumerate(found) if event is None] == bad
    again = import_view(store, "history", sqlite.file, skip_bad=True)
    assert (again.num_skipped, again.skipped.keys()) == (2, {"user_id=3", "user_id=17"})


def test_what_cannot_be_read_is_told(sqlite, tmp_path, monkeypatch):
    view, user = make_view()
    store, _ = make_store(tmp_path / "ours", "shop", view, user)
    with pytest.raises(StorageError, match=r"history.*shop.*Sqlite.*other.online\.db cannot be read"):
        import_view(store, "history", sqlite.file)  # there is no database
    sqlite.write(view, [])
    with pytest.raises(StorageError, match="there are no rows"):
        import_view(store, "history", sqlite.file)
    own = tmp_path / "ours" / "feature_store.yaml"
    with pytest.raises(SettingsError, match=r"SketchOnlineStore.*cannot be imported"):
        import_view(store, "history", own)
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "feast.infra.online_stores.sqlite", None)
        with pytest.raises(SettingsError, match=r"import of feast.* halted.*; install what this store needs"):
            import_view(store, "history", sqlite.file)
    redis = Other(tmp_path / "redis", "redis", {"connection_string": "127.0.0.1"}, "shop")
    with pytest.raises(
        SettingsError, match=r"redis.feature_store.yaml: .* cannot be opened: KeyError: 'port'"
    ):
        import_view(store, "history", redis.file)
    sqlite.file.write_text(sqlite.file.read_text().replace("version: 3", "version: 2"))
    with pytest.raises(SettingsError, match="entity_key_serialization_version"):
        import_view(store, "history", sqlite.file)


def changed(sqlite, column, stored):
    """Put something into a column of the rows of user 1."""
    with closing(sqlite3.connect(sqlite.file.parent / "online.db")) as database, database:
        changed = database.execute(
            f"UPDATE shop_history SET {column} = ? WHERE entity_key = ?",
            (stored, serialize_entity_key(entity_key(user_id=1), 3)),
        )
        assert changed.rowcount == len(FEATURES)


def test_odd_columns_of_a_table_are_told(sqlite, tmp_path):
    view, user = make_view()
    store, view = make_store(tmp_path / "ours", "shop", view, user)
    for column, stored, message in [
        ("event_ts", None, "None is not a time"),
        ("event_ts", b"12", "is not a time"),
        ("event_ts", "at noon", "'at noon'"),
        ("event_ts", 10**15, ""),
        ("event_ts", -(10**13), ""),
        ("event_ts", 10**18, ""),
        ("event_ts", float("inf"), "out of range"),
        ("event_ts", "0001-01-01T00:00:00+01:00", "out of range"),
        ("created_ts", "0000-00-00", "0000-00-00|out of range"),
        ("value", "text", "a value of feature"),
        ("value", 7, "a value of feature"),
    ]:
        sqlite.write(view, rows_of(range(3)))
        changed(sqlite, column, stored)
        where = "" if column == "value" else "a timestamp of the entity user_id=1 cannot be read"
        with case(column, stored), pytest.raises(StorageError, match=f"'history' of.*{where}.*(?:{message})"):
            import_view(store, "history", sqlite.file, dry_run=True)


def test_a_null_in_a_table_is_a_missing_value(sqlite, tmp_path):
    view, user = make_view()
    store, view = make_store(tmp_path / "ours", "shop", view, user)
    sqlite.write(view, rows_of(range(3)))
    changed(sqlite, "value", None)
    assert import_view(store, "history", sqlite.file).rows == 3
    found = answers(store, view, [entity_key(user_id=n) for n in range(3)])
    assert [event is None for event, _ in found] == [False] * 3
    assert [bool(values) for _, values in found] == [True, False, True]


@pytest.fixture
def local_zone(monkeypatch):
    """Sets the time zone of this process, until the test ends."""

    def put(zone):
        monkeypatch.setenv("TZ", zone)
        time.tzset()

    yield put
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kolkata"])
def test_a_table_of_another_time_zone(sqlite, tmp_path, local_zone, zone):
    local_zone(zone)
    view, user = make_view()
    summer, winter, key = NOON, NOON + timedelta(days=200), [entity_key(user_id=n) for n in range(2)]
    sqlite.write(view, [(key[0], value_of(0), summer, None), (key[1], value_of(1), winter, summer)])
    store, view = make_store(tmp_path / "ours", "shop", view, user)
    import_view(store, "history", sqlite.file)
    assert answers(store, view, key) == [normal(row) for row in sqlite.read(view, key)]
    assert [event for event, _ in answers(store, view, key)] == [
        summer.replace(microsecond=0),
        winter.replace(microsecond=0),
    ]


def test_the_other_store_is_only_read(sqlite, tmp_path):
    view, user = make_view()
    sqlite.write(view, rows_of(range(10)))
    file = sqlite.file.parent / "online.db"
    file.chmod(0o444)
    before = file.read_bytes()
    store, _ = make_store(tmp_path / "ours", "shop", view, user)
    import_view(store, "history", sqlite.file)
    assert file.read_bytes() == before


def test_entities_with_more_features_than_a_page_has_rows(sqlite, tmp_path, monkeypatch):
    monkeypatch.setattr("feast_sketch_store.bridges.sql._ROWS_A_PAGE", 3)
    view, user = make_view()
    sqlite.write(view, rows_of(range(7)))
    store, view = make_store(tmp_path / "ours", "shop", view, user)
    assert import_view(store, "history", sqlite.file).rows == 7


def run_dying(folder, other_file, left):
    """Import in this process, which is killed at a step on the disk; exit status 7 if it came to its end."""
    importing._ROWS_A_COMMIT = 300

    def dying(method):
        def step(*arguments, **keywords):
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return method(*arguments, **keywords)

        return step

    for name in ("replace", "create", "append", "delete_all"):
        setattr(LocalStorage, name, dying(getattr(LocalStorage, name)))
    import_view(FeatureStore(str(folder)), "history", other_file)
    os._exit(7)


def test_kills(sqlite, tmp_path):
    """Killed at one write after the other, and run again: nothing is half-visible, and it goes on."""
    view, user = make_view()
    sqlite.write(view, rows_of(range(2000)))
    store, view = make_store(tmp_path / "ours", "shop", view, user)
    keys = [entity_key(user_id=n) for n in (0, 999, 1999)]
    num_kills = int(os.environ.get("SKETCH_IMPORT_KILLS", "2"))
    rng = random.Random(1)
    for _ in range(num_kills):
        arguments = tmp_path / "ours", sqlite.file, rng.randint(3, 40)
        process = warm_context().Process(target=run_dying, args=arguments)
        process.start()
        process.join(PATIENCE_SECONDS)
        assert process.exitcode in (-signal.SIGKILL, 7)
        found = answers(FeatureStore(str(tmp_path / "ours")), view, keys)
        assert len({event is None for event, _ in found}) == 1
        if process.exitcode == 7:  # the next one begins anew
            shutil.rmtree(tmp_path / "ours" / "data" / "sketch", ignore_errors=True)
    import_view(store, "history", sqlite.file)
    assert answers(store, view, keys) == [normal(row) for row in sqlite.read(view, keys)]
    assert maintenance.verify(store, "history").is_sound


def test_an_import_goes_on_where_it_was(sqlite, tmp_path, monkeypatch):
    monkeypatch.setattr(importing, "_ROWS_A_COMMIT", 1000)
    view, user = make_view()
    sqlite.write(view, rows_of(range(5000)))  # four pages
    store, view = make_store(tmp_path / "ours", "shop", view, user)

    class Stopped(Exception):
        pass

    def stop(rows, total):
        if rows > 3000:
            raise Stopped

    with pytest.raises(Stopped):
        import_view(store, "history", sqlite.file, on_progress=stop)
    assert maintenance.verify(store, "history").leftovers
    reported = []
    done = import_view(store, "history", sqlite.file, on_progress=lambda rows, total: reported.append(rows))
    assert done.entities == 5000
    # Scans begin with a page of the same size; the first one had a part to go only.
    assert max(reported[: reported.index(reported[0], 1)]) < 2500


def test_command(sqlite, tmp_path):
    view, user = make_view()
    sqlite.write(view, rows_of(range(10)))
    make_store(tmp_path / "ours", "shop", view, user)
    arguments = ["-c", str(tmp_path / "ours"), "import", "history", "--from", str(sqlite.file)]
    dry = CliRunner().invoke(cli, [*arguments, "--dry-run", "--json"])
    assert dry.exit_code == 0, dry.output
    assert '"entities": null' in dry.stdout
    reported = CliRunner().invoke(cli, [*arguments, "--max-rows-per-second", "100000"])
    assert reported.exit_code == 0, reported.output
    assert reported.stdout.splitlines()[2].split() == ["history", "Sqlite", "exact", "10", "0", "0", "10"]


@pytest.mark.has_long_form
def test_the_walk_of_the_page(redis_port, tmp_path, monkeypatch):
    """docs/how_to/migrate.md as a new user does it: the same answers before and after, and what it shows."""
    page = (Path(__file__).parents[2] / "docs" / "how_to" / "migrate.md").read_text("utf-8")
    monkeypatch.chdir(tmp_path)
    file = Path("feature_store.yaml")
    options = {"type": "redis", "connection_string": f"127.0.0.1:{redis_port},db=9"}
    config = {"project": "shop", "provider": "local", "registry": "registry.db", "online_store": options}
    file.write_text(json.dumps({**config, "entity_key_serialization_version": 3}))  # which is YAML
    view, user = make_view()
    pd.DataFrame({"user_id": [0], "event_timestamp": [NOON]}).to_parquet("rows.parquet")
    store = FeatureStore(".")
    store.apply([user, view])
    store._get_provider().online_write_batch(store.config, view, rows_of(range(WALKED)), None)
    features = [f"history:{name}" for name in FEATURE_NAMES]

    def answered():
        asked = [{"user_id": number} for number in range(0, WALKED, 7)]
        answer = FeatureStore(".").get_online_features(features, asked).to_dict()
        return {
            name: [set(v) if isinstance(v, set) else v for v in column] for name, column in answer.items()
        }

    def run(*arguments):
        done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout

    before = answered()
    surveyed = run("survey", "--from", "feature_store.yaml")
    assert surveyed.splitlines()[2].split()[:3] == ["history", "Redis", f"{WALKED:,}"]
    file.rename("old_feature_store.yaml")
    file.write_text(
        json.dumps({**config, "online_store": {"type": "sketch"}, "entity_key_serialization_version": 3})
    )
    FeatureStore(".").apply([user, view])
    run("import", "history", "--from", "old_feature_store.yaml", "--dry-run")
    imported = run("import", "history", "--from", "old_feature_store.yaml")
    shown = re.search(r"```\n(view +from .*?)```", page, re.DOTALL)[1].replace("50,000", f"{WALKED:,}")
    assert imported.split() == shown.split()
    assert answered() == before


@for_each("length", range(1, 34))
def test_hashes_of_int64_keys_are_computed_back(length):
    """Whatever place the value has in the blocks of the hash."""
    join_key, values = "k" * length, [0, 1, -1, 2**63 - 1, -(2**63), 123456789]
    ids = [compute_entity_id(entity_key(**{join_key: value})) for value in values]
    digests = hash_int64_keys(join_key, pd.Series(values).to_numpy())
    assert [digest.astype("<u8").tobytes().hex() for digest in digests] == ids
    found, is_known = invert_int64_keys(join_key, digests)
    assert found.tolist() == values
    assert is_known.all()
    assert not invert_int64_keys(join_key, digests + 1)[1].any()


def test_a_sample_of_a_large_table(sqlite, tmp_path):
    view, _ = make_view()
    sqlite.write(view, rows_of(range(4000)))
    bridge = open_bridge(OtherView(OtherStore.load(sqlite.file), view))
    pages = list(bridge.sample(100))
    keys = {row.entity.SerializeToString() for page in pages for row in page.rows}
    assert 80 <= len(keys) <= 100  # random places of the table may be of the same entity
    assert bridge.count().value == 4000
    with sqlite3.connect(sqlite.file.parent / "online.db") as database:
        has_dbstat = "ENABLE_DBSTAT_VTAB" in {name for (name,) in database.execute("PRAGMA compile_options")}
    stored = bridge.stored_bytes([])
    if has_dbstat:
        assert 4000 * stored.value == pytest.approx(
            Path(sqlite.file.parent / "online.db").stat().st_size, rel=0.02
        )
    bridge.close()


@pytest.mark.parametrize("other", ["sqlite", "postgres", "mysql"], indirect=True)
def test_a_survey_of_a_sample_of_a_table(other):
    """It is not the first keys, which are those of the oldest or of one kind, and not taken for all."""
    view, user = make_view(value_type=ValueType.STRING)
    registered(other, view, user)
    numbers = range(1000, 3000)
    names = rows_of(numbers, key=lambda number: entity_key(user_id=f"user {number}"))
    other.write(
        view, [(key, values, NOON + timedelta(seconds=n), None) for n, (key, values, *_) in enumerate(names)]
    )
    (found,) = survey(other.file, ["history"], 200)
    assert 120 <= found.sampled <= 200
    assert (found.entities.value, found.entities.is_known) == (2000, True)
    # Of 2,000 seconds; the first or last tenth of all without one of 120 has a chance of 3e-6.
    oldest, newest = (datetime.fromisoformat(moment) for moment in (found.oldest, found.newest))
    assert oldest < NOON + timedelta(seconds=200)
    assert newest > NOON + timedelta(seconds=1800)


@pytest.mark.parametrize("other", FAKED, indirect=True)
def test_the_part_of_the_hashes_that_was_met_tells_how_many_there_are(other, tmp_path, monkeypatch):
    for name in (
        "cassandra._ENTITIES_A_PAGE",
        "datastore._ROWS_A_PAGE",
        "bigtable._ROWS_A_PAGE",
        "hbase._ROWS_A_PAGE",
    ):
        with suppress(ImportError):
            monkeypatch.setattr(f"feast_sketch_store.bridges.{name}", 300)
    view, user = make_view()
    registered(other, view, user)
    other.write(view, rows_of(range(2000)))
    (found,) = survey(other.file, ["history"], 600)
    assert found.sampled == 600
    # The hashes are those of the keys, so this is the same in each run. 1 / sqrt(600) is 4 %.
    assert found.entities.low < 2000 < found.entities.high
    assert found.entities.value == pytest.approx(2000, rel=0.1)
    bridge = open_bridge(OtherView(OtherStore.load(other.file), view))
    pages = list(bridge.pages())
    assert len(pages) > 5
    behind = [row for page in bridge.pages(pages[3].position) for row in page.rows]
    assert len(behind) == 2000 - sum(len(page.rows) for page in pages[:4])
    assert not list(bridge.pages(pages[-1].position))
    bridge.close()


def registered(other, view, user):
    """The other repository as its users have it, with the view in its registry."""
    folder = other.file.parent
    pd.DataFrame({"user_id": [0], "event_timestamp": [NOON]}).to_parquet(folder / "rows.parquet")
    store = FeatureStore(repo_path=str(folder), config=other.config)
    store.apply([user, view])
    let_go(store._get_provider().online_store)


def test_a_survey_of_all_rows(other, tmp_path):
    view, user = make_view()
    registered(other, view, user)
    number = other.several_pages(1200)
    other.write(view, rows_of(range(number)))
    (found,) = survey(other.file)
    assert (found.entities.value, found.sampled) == (number, number)
    assert found.keys == ("recovered" if other.kind in HASHED else "exact")
    assert [feature.name for feature in found.features] == ["liked", "seen", "country", "score"]
    store, _ = make_store(tmp_path / "ours", other.project, view, user, structure="auto")
    import_view(store, "history", other.file)
    report = maintenance.inspect(store, "history")
    assert found.bytes_here.value == pytest.approx(report.memory_bytes, rel=0.05)
    assert [f.structure for f in found.features] == [f.structure for f in report.features]
    liked, theirs = found.features[0], report.features[0]
    assert (liked.facts.value, liked.values.value) == (theirs.facts, theirs.vocabulary)


def test_a_survey_of_a_sample(redis_port, tmp_path):
    options = {"connection_string": f"127.0.0.1:{redis_port}"}
    other = Other(tmp_path / "other", "redis", options, "p" + tmp_path.name.replace("-", "_"))
    view, user = make_view()
    registered(other, view, user)
    other.write(view, rows_of(range(6000)))
    (found,) = survey(other.file, ["history"], 2000)
    assert found.sampled < 6000
    # The server hashes keys with a seed of its own, so each run has another sample: 4.1 standard errors, of
    # which the interval has 1.96, are missed by 1 of 24,000.
    half = (found.entities.high - found.entities.low) / 2
    assert abs(found.entities.value - 6000) <= 4.1 / 1.96 * half < 600
    store, _ = make_store(tmp_path / "ours", other.project, view, user, structure="auto")
    import_view(store, "history", other.file)
    measured = maintenance.inspect(store, "history").memory_bytes
    # Of values that few rows have, a sample tells least: 0.90 to 0.93 of what is measured.
    assert found.bytes_here.value == pytest.approx(measured, rel=0.15)
    assert found.bytes_listpack <= found.bytes_there.value
    # Whether the interval holds as often as it should: tests/statistics/test_survey_intervals.py.
    assert found.bytes_here.low < found.bytes_here.value < found.bytes_here.high


EXPIRES = "  key_ttl_seconds: 3600\n"


@pytest.mark.has_long_form
@pytest.mark.parametrize(
    ("ttl", "num_items"),  # of which few are in a listpack, and many in a table of strings
    by_length([("", 3), (EXPIRES, 40)], [("", 3), ("", 40), (EXPIRES, 3), (EXPIRES, 40)]),
)
def test_bytes_of_redis_are_those_that_the_server_tells(redis_port, tmp_path, ttl, num_items):
    database = 1 + num_items + 2 * bool(ttl)
    options = {"connection_string": f"127.0.0.1:{redis_port},db={database}"}
    other = Other(tmp_path / "other", "redis", options, "shop", ttl)
    view, user = make_view()
    registered(other, view, user)
    import redis

    def asked(call):
        """By a connection of its own, as what the server keeps of one that has been used is not steady."""
        with redis.Redis(port=redis_port, db=database) as client:
            return call(client)

    def taken():
        return asked(lambda client: client.info("memory")["used_memory"])

    def move(client):
        """A table that grows has two lists of buckets until each has been moved, one at each lookup."""
        for key in client.scan_iter(count=100):
            client.exists(key)

    asked(lambda client: client.config_set("latency-tracking", "no"))  # 24 KB for each kind of command
    before = taken()
    rows = rows_of(range(5000))
    for _, values, _, _ in rows:
        values["seen"].int64_list_val.val.extend(range(num_items))
    other.write(view, rows)
    other.store._client.close()
    other.store._client.connection_pool.disconnect()
    asked(move)
    after = taken()
    (found,) = survey(other.file, ["history"], 1000)
    assert found.bytes_there.value == pytest.approx(after - before, rel=0.02)


def test_a_survey_tells_what_it_cannot_look_at(sqlite, tmp_path):
    view, user = make_view()
    registered(sqlite, view, user)
    result = CliRunner().invoke(cli, ["survey", "--from", str(sqlite.file)])
    assert result.exit_code == 1
    assert "history" in result.stderr
    sqlite.write(view, rows_of(range(100)))
    result = CliRunner().invoke(cli, ["survey", "--from", str(sqlite.file)])
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[2].split()[:4] == ["history", "Sqlite", "100", "100"]
    page = tmp_path / "survey.html"
    result = CliRunner().invoke(cli, ["survey", "--from", str(sqlite.file), "--html", str(page), "--json"])
    (reported,) = json.loads(result.stdout)
    content = page.read_text("utf-8")
    HTMLParser().feed(content)
    cells = re.findall("<td>(.*?)</td>", content)
    assert cells[:4] == ["history", "Sqlite", "100", "100"]
    assert [html.unescape(cell) for cell in cells if cell in FEATURE_NAMES] == FEATURE_NAMES
    assert all(note in html.unescape(content) for note in reported["notes"])
    nowhere = str(tmp_path / "no" / "survey.html")
    refused = CliRunner().invoke(cli, ["survey", "--from", str(sqlite.file), "--html", nowhere, "--json"])
    assert (refused.exit_code, json.loads(refused.stdout)[0]["view"]) == (1, "history")
    with pytest.raises(SettingsError, match="no feature view 'other'"):
        list(survey(sqlite.file, ["other"]))


def test_a_survey_of_views_of_which_one_has_no_rows(sqlite):
    user = Entity(name="user", join_keys=["user_id"], value_type=ValueType.INT64)
    result = CliRunner().invoke(cli, ["survey", "--from", str(sqlite.file)])
    assert result.exit_code == 1
    assert "run `feast apply`" in result.stderr
    good, _ = make_view()
    source = FileSource(name="rows", path="rows.parquet", timestamp_field="event_timestamp")
    schema = [
        Field(name="user_id", dtype=Int64),
        Field(name="seen", dtype=Array(String), tags={"sketch.codec": "list"}),
        Field(name="times", dtype=Array(UnixTimestamp), tags={"sketch.of": "seen"}),
    ]
    lists, empty = (
        FeatureView(name=name, entities=[user], schema=schema, source=source, ttl=timedelta(days=90))
        for name in ("lists", "empty")
    )
    registered(sqlite, good, user)
    FeatureStore(repo_path=str(sqlite.file.parent), config=sqlite.config).apply([lists, empty])
    sqlite.write(good, rows_of(range(50)))
    items = {
        "seen": Value(string_list_val=StringList(val=["a", "b"])),
        "times": Value(unix_timestamp_list_val=Int64List(val=[1_770_000_000, 1_770_000_100])),
    }
    sqlite.write(lists, [(entity_key(user_id=number), items, NOON, None) for number in range(50)])
    result = CliRunner().invoke(cli, ["survey", "--from", str(sqlite.file)])
    words = [line.split() for line in result.stdout.splitlines()[2:4]]
    assert [line[0] for line in words if line] == ["history", "lists"], result.output
    assert result.exit_code == 1
    assert "feature view 'empty'" in result.stderr
