"""A backing store on Redis beside Redis alone: lookups and time of a read, by the share of absent entities.

The Redis of both sides is behind a proxy: once it adds nothing but itself, once a millisecond to each answer.
"""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from feast import Entity, FeatureStore, FeatureView, Field, FileSource, ValueType
from feast.types import Array, Float32, Int64, Set
from feast.utils import _convert_arrow_to_proto
from measure import interleaved_samples, number, print_set_up, print_table, quantile
from stores import REDIS, SKETCH, config_of, redis_server, temporary_folder

sys.path.insert(0, str(Path(__file__).parents[2]))  # for what tests share
from tests.helpers.proxy import Proxy, proxy

BATCH = 1_000
ABSENT = (0.0, 0.5, 0.9, 0.99)
_EMBEDDING = 64
_MOMENT = 1_775_000_000_000_000
_FEATURES = ["users:viewed", "users:embedding"]


def run(*, quick: bool) -> None:
    """Print a table per delay of the network."""
    num_users, rounds = (2_000, 3) if quick else (20_000, 9)
    print_set_up(
        f"{num_users:,} users with a Set of 20 of 10,000 values and an embedding of {_EMBEDDING} floats, "
        f"reads of {BATCH:,} entities; {rounds} turns of 5 calls",
        "numpy",
        "feast",
        "redis",
    )
    lines = []
    with temporary_folder() as folder, redis_server() as port, proxy(port) as link:
        stores = _stores(folder, link.port, num_users)
        for delay in (0.0, 0.001):
            link.delay_seconds = delay
            lines += [_measure(stores, link, absent, num_users, rounds) for absent in ABSENT]
    print_table(
        [
            "network adds, ms",
            "absent",
            "lookups",
            f"{SKETCH} + redis p50, ms",
            "redis p50, ms",
            "ratio",
            "p99 ratio",
        ],
        lines,
    )


def _measure(
    stores: dict[str, FeatureStore], link: Proxy, absent: float, num_users: int, rounds: int
) -> list[str]:
    num_absent = round(BATCH * absent)

    def entities(call: int) -> list[dict[str, Any]]:
        users = np.random.default_rng(call).choice(num_users, BATCH - num_absent, replace=False)
        strangers = np.arange(num_absent) + num_users
        return [{"user_id": user} for user in [*users.tolist(), *strangers.tolist()]]

    gets = {name: partial(_get, store) for name, store in stores.items()}
    samples = interleaved_samples(gets, entities, rounds=rounds, calls=5)
    p50, p99 = ({name: quantile(times, share) for name, times in samples.items()} for share in (0.5, 0.99))
    return [
        number(link.delay_seconds * 1e3),
        f"{absent:.0%}",
        f"{_lookups(stores[SKETCH], entities(0)):,}",
        number(p50[SKETCH] * 1e3),
        number(p50[REDIS] * 1e3),
        number(p50[SKETCH] / p50[REDIS]),
        number(p99[SKETCH] / p99[REDIS]),
    ]


def _get(store: FeatureStore, entity_rows: list[dict[str, Any]]) -> Any:
    return store.get_online_features(features=_FEATURES, entity_rows=entity_rows)


def _lookups(store: FeatureStore, entity_rows: list[dict[str, Any]]) -> int:
    """Entities that one read asks of the store behind."""
    online = store._get_provider().online_store
    behind = online.backing(store.config)._store  # type: ignore[attr-defined]
    read, asked = behind.online_read, []

    def counted(config: Any, table: Any, entity_keys: list[Any], features: Any) -> Any:
        asked.append(len(entity_keys))
        return read(config, table, entity_keys, features)

    behind.online_read = counted
    try:
        _get(store, entity_rows)
    finally:
        del behind.online_read
    return sum(asked)


def _stores(folder: Path, port: int, num_users: int) -> dict[str, FeatureStore]:
    """The same rows in Redis alone, and in a sketch with Redis behind it."""
    user = Entity(name="user", join_keys=["user_id"], value_type=ValueType.INT64)
    source = FileSource(name="rows", path="rows.parquet", timestamp_field="event_timestamp")
    fields = [Field(name="user_id", dtype=Int64), Field(name="viewed", dtype=Set(Int64))]
    fields.append(Field(name="embedding", dtype=Array(Float32)))
    view = FeatureView(name="users", entities=[user], schema=fields, source=source)
    redis = {"type": REDIS, "connection_string": f"127.0.0.1:{port}"}
    sketch = {"type": SKETCH, "path": str(folder / "sketch"), "backing_store": {"store": redis}}
    stores = {}
    for name, online_store in {SKETCH: sketch, REDIS: redis}.items():
        config = config_of(folder, online_store, f"shop_{name}")
        stores[name] = store = FeatureStore(config=config)
        store.apply([user, view])
        online = store._get_provider().online_store
        rows = _convert_arrow_to_proto(_rows(num_users), view, {"user_id": ValueType.INT64})
        online.online_write_batch(config, view, rows, None)
    stores[SKETCH]._get_provider().online_store.seal(stores[SKETCH].config, view)  # type: ignore[attr-defined]
    return stores


def _rows(num_users: int) -> pa.Table:
    random = np.random.default_rng(1)
    ends = np.arange(num_users + 1, dtype=np.int32)
    viewed = np.concatenate([random.choice(10_000, 20, replace=False) for _ in range(num_users)])
    numbers = random.normal(size=num_users * _EMBEDDING).astype(np.float32)
    return pa.table(
        {
            "user_id": pa.array(np.arange(num_users)),
            "viewed": pa.ListArray.from_arrays(ends * 20, pa.array(viewed)),
            "embedding": pa.ListArray.from_arrays(ends * _EMBEDDING, pa.array(numbers)),
            "event_timestamp": pa.array(np.full(num_users, _MOMENT), pa.timestamp("us", tz="UTC")),
        }
    )
