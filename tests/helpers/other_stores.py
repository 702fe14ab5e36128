"""Feast's own online stores beside ours, rows for both, and how to compare what they answer."""

import json
from datetime import UTC, datetime, timedelta
from importlib import import_module

import pandas as pd
from feast import Entity, FeatureStore, FeatureView, Field, FileSource, ValueType
from feast.protos.feast.types.Value_pb2 import Value
from feast.repo_config import load_repo_config
from feast.types import Array, Float32, Int64, Set, String

from tests.helpers.cql_server import running_cql
from tests.helpers.hbase_server import running_hbase
from tests.helpers.keys import entity_key
from tests.helpers.redis_server import running_cluster
from tests.helpers.repository import make_repository
from tests.helpers.sql_servers import running_mariadb, running_postgres

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

SERVERS = {
    "cluster": running_cluster,
    "postgres": running_postgres,
    "mysql": running_mariadb,
    "cql": lambda folder: running_cql(),
    "hbase": lambda folder: running_hbase(),
}


def options_of(name, place):
    """The options of a store; ``place`` gives the port or the ports of a server, or a project of Google's."""
    if name in ("cassandra", "scylladb"):
        options = {"hosts": ["127.0.0.1"], "port": place("cql"), "keyspace": "features"}
        return options if name == "scylladb" else {**options, "protocol_version": 4}
    return {
        "sqlite": lambda: {"path": "online.db"},
        "redis": lambda: {"connection_string": f"127.0.0.1:{place('redis')}"},
        "cluster": lambda: {
            "redis_type": "redis_cluster",
            "connection_string": ",".join(f"127.0.0.1:{port}" for port in place("cluster")),
        },
        "dynamodb": lambda: {"region": "us-east-1", "endpoint_url": f"http://127.0.0.1:{place('moto')}"},
        "postgres": lambda: {
            **{"host": "127.0.0.1", "port": place("postgres"), "database": "feast"},
            **{"user": "postgres", "password": "none", "sslmode": "disable"},
        },
        "mysql": lambda: {
            **{"host": "127.0.0.1", "port": place("mysql"), "database": "feast"},
            **{"user": "feast", "password": "tests"},
        },
        "datastore": lambda: {"project_id": place("google"), "write_concurrency": 1},
        "bigtable": lambda: {"project_id": place("google"), "instance": "tests"},
        "hbase": lambda: {"host": "127.0.0.1", "port": str(place("hbase"))},
    }[name]()


def let_go(online_store):
    """Close the connection that Feast's store leaves open."""
    connection = vars(online_store).get("_conn")
    if hasattr(connection, "close"):
        connection.close()
    if vars(online_store).get("_cluster") is not None:
        online_store._cluster.shutdown()


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
        """Write rows, the first of which make the view's table."""
        self.store.update(self.config, [], [view], [], [], False)
        self.store.online_write_batch(self.config, view, rows, None)

    def read(self, view, keys):
        """What the store answers, comparable; of HBase with the timestamp that was written."""
        # Feast's Postgres store fails without names.
        rows = self.store.online_read(self.config, view, keys, [feature.name for feature in view.features])
        if self.kind == "hbase":  # Feast does not tell them
            rows = [(NOON.replace(microsecond=0), values) for _, values in rows]
        return [_comparable(row) for row in rows]


def make_view(name="history", join_key="user_id", value_type=ValueType.INT64, features=FEATURES):
    """A view and its entity."""
    user = Entity(name="user", join_keys=[join_key], value_type=value_type)
    source = FileSource(path="rows.parquet", timestamp_field="event_timestamp")
    return FeatureView(name=name, entities=[user], schema=features, source=source, ttl=timedelta(0)), user


def make_store(folder, project, view, user, structure="sets"):
    """Our store with the view, and the view as it is applied."""
    join_key = {user.join_key: [0] if user.value_type == ValueType.INT64 else ["a"]}
    values = {"liked": [["a"]], "seen": [[1]], "country": ["no"], "score": [0.5]}
    frame = pd.DataFrame({**join_key, **values, "event_timestamp": [NOON]})
    store = make_repository(folder, rows=frame, project=project, structure=structure)
    store.apply([user, view])
    return store, store.get_feature_view(view.name)


def registered(other, view, user):
    """The view, in the registry of the other repository as its users have it."""
    folder = other.file.parent
    pd.DataFrame({"user_id": [0], "event_timestamp": [NOON]}).to_parquet(folder / "rows.parquet")
    store = FeatureStore(repo_path=str(folder), config=other.config)
    store.apply([user, view])
    let_go(store._get_provider().online_store)
    return view


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


def keys_of(*numbers):
    """Keys of users."""
    return [entity_key(user_id=number) for number in numbers]


def rows_of(numbers, key=lambda number: entity_key(user_id=number), event=NOON):
    """Rows of users as Feast writes them."""
    return [(key(n), value_of(n), event + timedelta(microseconds=n % 1000), None) for n in numbers]


def answers(store, view, keys):
    """Event timestamps and values of entities; sets in order."""
    online = store._get_provider().online_store
    return [_comparable(row) for row in online.online_read(store.config, view, keys)]


def _comparable(row):
    """A row as bytes, the same for all stores."""
    event, values = row
    for value in (values or {}).values():
        if value.WhichOneof("val") == "string_set_val":
            value.string_set_val.val[:] = sorted(value.string_set_val.val)
    event = event and event.replace(tzinfo=event.tzinfo or UTC)
    return event, {name: value.SerializeToString() for name, value in (values or {}).items()}
