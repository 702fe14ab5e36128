"""Reads through Feast: ``online_read`` and ``get_online_features`` of several stores with the same rows.

Closed loop: single calls, each with fresh random keys that are built before the clock starts. The sketch
answers from its sealed layer. Redis runs on this machine, over the loopback device and over a Unix socket; a
network would add to its times alone. The floor is a store that looks up finished protos in a dict.

The share is that of the store in `get_online_features`: of this store, all that its own method of that name
does, in which stands what Feast does for others; and of Feast's own way over this store, `online_read`.
The last table has the goals of one entity, what was measured, and whether it holds.
"""

import time
from typing import Any

from feast.infra.online_stores.online_store import OnlineStore
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.types import FeastType, Int64, String
from measure import (
    Goal,
    interleaved_samples,
    number,
    print_goals,
    print_set_up,
    print_table,
    quantile,
    quantiles_beside,
)
from stores import (
    FLOOR,
    REDIS,
    REDIS_SOCKET,
    SKETCH,
    SKETCH_FILTER,
    SQLITE,
    Backend,
    UserRows,
    entity_keys,
    floor,
    redis,
    redis_server,
    set_up_of,
    sketch,
    sqlite,
    temporary_folder,
)

ERROR_RATE = 0.01
CALLS_PER_BATCH_SIZE = {1: 200, 10: 100, 100: 30, 1_000: 8}


def run(*, quick: bool) -> None:
    goals = []
    for element in (Int64,) if quick else (Int64, String):
        rows = UserRows(2_000 if quick else 20_000, element)
        with temporary_folder() as folder, redis_server(folder / "redis.sock") as port:
            backends = {
                SKETCH: sketch(folder / "default", rows),
                SKETCH_FILTER: sketch(folder / "filter", rows, target=f"error {ERROR_RATE}"),
                SQLITE: sqlite(folder, rows),
                REDIS: redis(folder, rows, port),
                REDIS_SOCKET: redis(folder, rows, port, folder / "redis.sock"),
                FLOOR: floor(folder, rows),
            }
            for backend in backends.values():
                backend.write(rows.to_feast())
            _check(backends, rows)
            goals += _measure(backends, rows, element, quick)
    print_goals(goals)


def _measure(backends: dict[str, Backend], rows: UserRows, element: FeastType, quick: bool) -> list[Goal]:
    rounds, share = (3, 0.1) if quick else (9, 1.0)
    calls_per_size = {batch: max(2, round(share * calls)) for batch, calls in CALLS_PER_BATCH_SIZE.items()}
    print_set_up(
        f"{set_up_of(rows.num_users)}, Array({element}), one event timestamp per row, sealed, "
        f"by default in sets; {rounds} turns of {', '.join(map(str, calls_per_size.values()))} calls",
        "numpy",
        "feast",
        "protobuf",
        "redis",
        "hiredis",
    )
    lines: list[list[str]] = []
    of_one: dict[str, dict[str, float]] = {}  # by call and store
    for batch, calls in calls_per_size.items():

        def keys(call: int, batch: int = batch) -> list[EntityKey]:
            return entity_keys(rows.users(batch, seed=call))

        reads = {name: backend.read for name, backend in backends.items()}
        samples = interleaved_samples(reads, keys, rounds=rounds, calls=calls)
        lines += _lines("online_read", batch, samples)
        of_one.setdefault("online_read", _medians(samples))
    shares = []
    for batch, calls in calls_per_size.items():

        def entity_rows(call: int, batch: int = batch) -> list[dict[str, Any]]:
            return [{"user_id": user} for user in rows.users(batch, seed=call)]

        gets = {name: _get_online_features(backend) for name, backend in backends.items()}
        samples = interleaved_samples(gets, entity_rows, rounds=rounds, calls=calls)
        lines += _lines("get_online_features", batch, samples)
        of_one.setdefault("get_online_features", _medians(samples))
        shares.append(_shares(backends[SKETCH], batch, [entity_rows(call) for call in range(rounds * calls)]))
    header = ["call", "entities", "store", "p50, us", "p99, us", "sketch / store, p50", "sketch / store, p99"]
    print_table(header, lines)
    print_table(
        [
            "entities",
            "call, us",
            "of it the store, us",
            "share",
            "Feast's way, us",
            "of it online_read, us",
            "its share",
        ],
        shares,
    )
    return [
        Goal(
            f"{call} of 1, Array({element}), against {peer}", of_one[call][SKETCH] / of_one[call][peer], limit
        )
        for call, peer, limit in (
            ("online_read", SQLITE, 1.0),
            ("get_online_features", SQLITE, 0.7),
            ("get_online_features", FLOOR, 1.15),
        )
    ]


def _medians(samples: dict[str, list[float]]) -> dict[str, float]:
    return {name: quantile(times, 0.5) for name, times in samples.items()}


def _lines(call: str, batch: int, samples: dict[str, list[float]]) -> list[list[str]]:
    cells = quantiles_beside(samples, SKETCH)
    return [[call, f"{batch:,}", name, *own] for name, own in cells.items()]


def _get_online_features(backend: Backend) -> Any:
    get = backend.feature_store.get_online_features
    return lambda entity_rows: get(features=["history:viewed"], entity_rows=entity_rows)


def _shares(backend: Backend, batch: int, requests: list[list[dict[str, Any]]]) -> list[str]:
    """Medians of the call and of what the store does in it: this store's own way, and Feast's own over it."""
    get, cells = _get_online_features(backend), [f"{batch:,}"]
    store = backend.feature_store._get_provider().online_store
    overridden = ("get_online_features", "_read_features_per_fv")
    feasts_own = {name: getattr(OnlineStore, name).__get__(store) for name in overridden}
    for timed, replaced in (("get_online_features", {}), ("online_read", feasts_own)):
        spent: list[float] = []
        inside = _stop_watch(getattr(store, timed), spent)
        vars(store).update({timed: inside, **replaced})
        wholes = []
        for request in requests:
            start = time.perf_counter()
            get(request)
            wholes.append(time.perf_counter() - start)
        for name in (timed, *replaced):
            del vars(store)[name]
        whole, part = quantile(sorted(wholes), 0.5), quantile(sorted(spent), 0.5)
        cells += [number(whole * 1e6), number(part * 1e6), f"{part / whole:.0%}"]
    return cells


def _stop_watch(method: Any, spent: list[float]) -> Any:
    def timed(*arguments: Any, **keywords: Any) -> Any:
        start = time.perf_counter()
        try:
            return method(*arguments, **keywords)
        finally:
            spent.append(time.perf_counter() - start)

    return timed


def _check(backends: dict[str, Backend], rows: UserRows) -> None:
    """Every store returns all values of its users, and the sketch has nothing unsealed."""
    for ours in (backends[SKETCH], backends[SKETCH_FILTER]):
        ours.sealed()
    users = rows.users(100, seed=0)
    viewed = rows.table["viewed"].take(users).to_pylist()
    for name, backend in backends.items():
        for wanted, (_, values) in zip(viewed, backend.read(entity_keys(users)), strict=True):
            value = values["viewed"]
            missing = set(wanted).difference(getattr(value, value.WhichOneof("val")).val)
            if missing:
                raise AssertionError(f"{name} lacks {missing}")
