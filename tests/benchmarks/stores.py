"""The same rows in several Feast stores."""

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from feast import Entity, FeatureView, Field, FileSource, ValueType
from feast.infra.online_stores.helpers import get_online_store_from_config
from feast.infra.online_stores.online_store import OnlineStore
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import Value
from feast.repo_config import RepoConfig
from feast.types import Array, Int64, String
from feast.utils import _convert_arrow_to_proto

VOCABULARY = 10_000
VALUES_PER_USER = 20
NOW = datetime(2026, 5, 1, tzinfo=UTC)


def history_view(element: Any) -> FeatureView:
    """A view of users with one list feature."""
    return FeatureView(
        name="history",
        entities=[Entity(name="user", join_keys=["user_id"], value_type=ValueType.INT64)],
        schema=[Field(name="items", dtype=Array(element)), Field(name="user_id", dtype=Int64)],
        source=FileSource(name="rows", path="rows.parquet", timestamp_field="event"),
        ttl=timedelta(0),
    )


def history_rows(users: int, element: Any) -> pa.RecordBatch:
    """Users with distinct values drawn with equal chance."""
    rng = np.random.default_rng(0)
    items = [rng.choice(VOCABULARY, VALUES_PER_USER, replace=False) for _ in range(users)]
    if element is String:
        items = [[f"article-{i:06d}" for i in row] for row in items]
    moments = [NOW] * users
    return pa.record_batch(
        {
            "user_id": pa.array(range(users), pa.int64()),
            "items": pa.array(items, pa.list_(pa.string() if element is String else pa.int64())),
            "event": pa.array(moments, pa.timestamp("us", tz="UTC")),
        }
    )


def to_feast(batch: pa.RecordBatch, view: FeatureView) -> list[Any]:
    """What Feast's materialization does before it calls the store."""
    rows: list[Any] = _convert_arrow_to_proto(batch, view, {"user_id": ValueType.INT64})
    return rows


def keys(users: np.ndarray) -> list[EntityKey]:
    return [EntityKey(join_keys=["user_id"], entity_values=[Value(int64_val=int(user))]) for user in users]


@dataclass
class Store:
    """A store with its configuration."""

    name: str
    config: RepoConfig
    store: OnlineStore

    def write(self, view: FeatureView, rows: list[Any]) -> None:
        self.store.update(self.config, [], [view], [], [], False)
        self.store.online_write_batch(self.config, view, rows, None)


def open_store(name: str, folder: Path, **options: Any) -> Store:
    config = RepoConfig(
        project="bench",
        provider="local",
        registry=str(folder / "registry.db"),
        online_store={"type": name, **options},
        entity_key_serialization_version=3,
    )
    return Store(name, config, get_online_store_from_config(config.online_store))


@contextmanager
def temporary_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def redis_server(folder: Path) -> Iterator[int | None]:
    """A Redis server of our own on loopback: its port, or None where there is no `redis-server`."""
    if shutil.which("redis-server") is None:
        print("(no redis-server on the PATH: its rows are left out)\n")
        yield None
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    server = subprocess.Popen(["redis-server", *arguments, "--dir", str(folder)], stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 30
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            if time.monotonic() > deadline:
                raise TimeoutError("redis-server did not start")
        yield port
    finally:
        server.terminate()
        server.wait(30)


@contextmanager
def every_store(folder: Path) -> Iterator[list[Store]]:
    """Ours, SQLite and Redis, all empty."""
    with redis_server(folder) as port:
        stores = [
            open_store("sketch", folder, path=str(folder / "sketch")),
            open_store("sqlite", folder, path=str(folder / "online.db")),
        ]
        if port is not None:
            stores.append(open_store("redis", folder, connection_string=f"127.0.0.1:{port}"))
        yield stores
