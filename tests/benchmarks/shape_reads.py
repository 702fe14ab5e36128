"""Times of `get_online_features` for the shapes of rows of `sizes`: this store, Redis and SQLite."""

from typing import Any

import numpy as np
from measure import interleaved_samples, number, print_set_up, print_table, quantile
from sizes import VOCABULARY, ShapeRows, shapes
from stores import REDIS, SKETCH, SQLITE, Backend, redis, redis_server, sketch, sqlite, temporary_folder

CALLS_PER_BATCH_SIZE = {1: 100, 10: 50, 100: 10}


def run(*, quick: bool) -> None:
    num_users, rounds = (2_000, 3) if quick else (20_000, 7)
    print_set_up(
        f"{num_users:,} users, {VOCABULARY:,} values; default settings; all features of the view; "
        f"{rounds} turns of {', '.join(map(str, CALLS_PER_BATCH_SIZE.values()))} calls",
        "feast",
        "redis",
    )
    lines = []
    for name, rows in shapes(num_users).items():
        with temporary_folder() as folder, redis_server() as port:
            backends = {
                SKETCH: sketch(folder, rows),
                REDIS: redis(folder, rows, port),
                SQLITE: sqlite(folder, rows),
            }
            given = rows.to_feast()
            for backend in backends.values():
                backend.write(given)
            lines += [[name, *cells] for cells in _ratios(backends, rows, rounds)]
    print_table(["rows", "entities", "sketch, p50, us", "sketch / redis, p50", "sketch / sqlite, p50"], lines)


def _ratios(backends: dict[str, Backend], rows: ShapeRows, rounds: int) -> list[list[str]]:
    users = rows.table["user_id"].to_pylist()
    features = [f"history:{field.name}" for field in rows.view.features]
    lines = []
    for batch, calls in CALLS_PER_BATCH_SIZE.items():

        def entity_rows(call: int, batch: int = batch) -> list[dict[str, Any]]:
            drawn = np.random.default_rng(call).integers(0, len(users), batch)
            return [{"user_id": users[user]} for user in drawn]

        gets = {name: _get(backend, features) for name, backend in backends.items()}
        samples = interleaved_samples(gets, entity_rows, rounds=rounds, calls=calls)
        p50 = {name: quantile(times, 0.5) for name, times in samples.items()}
        ratios = [number(p50[SKETCH] / p50[peer]) for peer in (REDIS, SQLITE)]
        lines.append([f"{batch:,}", number(p50[SKETCH] * 1e6), *ratios])
    return lines


def _get(backend: Backend, features: list[str]) -> Any:
    get = backend.feature_store.get_online_features
    return lambda entity_rows: get(features=features, entity_rows=entity_rows)
