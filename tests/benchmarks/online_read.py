"""Reads through Feast: ``online_read`` and ``get_online_features`` of three stores with the same rows.

The p50 of single calls, each with fresh random keys that are built before the clock starts. The sketch
answers from its sealed layer, Redis over the loopback device, where a network would add to its time alone.
"""

from typing import Any

from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.types import FeastType, Int64, String
from measure import interleaved, number, print_set_up, print_table
from stores import (
    REDIS,
    SKETCH,
    SQLITE,
    Backend,
    UserRows,
    entity_keys,
    redis,
    redis_server,
    set_up_of,
    sketch,
    sqlite,
    temporary_folder,
)

ERROR_RATE = 0.01
CALLS_PER_BATCH_SIZE = {1: 100, 10: 50, 100: 10, 1_000: 3}


def run(*, quick: bool) -> None:
    for element in (Int64, String):
        rows = UserRows(2_000 if quick else 20_000, element)
        with temporary_folder() as folder, redis_server() as port:
            backends = {
                SKETCH: sketch(folder, rows, error_rate=ERROR_RATE),
                SQLITE: sqlite(folder, rows),
                REDIS: redis(folder, rows, port),
            }
            for backend in backends.values():
                backend.write(rows.to_feast())
            _check(backends, rows)
            _measure(backends, rows, element, rounds=3 if quick else 11)


def _measure(backends: dict[str, Backend], rows: UserRows, element: FeastType, rounds: int) -> None:
    print_set_up(
        f"{set_up_of(rows.num_users)}, Array({element}), one event timestamp per row, error rate "
        f"{ERROR_RATE}, sealed; {rounds} turns of {', '.join(map(str, CALLS_PER_BATCH_SIZE.values()))} calls",
        "numpy",
        "feast",
        "protobuf",
        "redis",
        "hiredis",
    )
    header = [
        "call",
        "entities",
        "sketch, us",
        "sqlite, us",
        "redis, us",
        "sketch / sqlite",
        "sketch / redis",
    ]
    lines = []
    for batch, calls in CALLS_PER_BATCH_SIZE.items():

        def keys(call: int, batch: int = batch) -> list[EntityKey]:
            return entity_keys(rows.users(batch, seed=call))

        reads = {name: backend.read for name, backend in backends.items()}
        lines.append(_line("online_read", batch, interleaved(reads, keys, rounds=rounds, calls=calls)))
    for batch, calls in CALLS_PER_BATCH_SIZE.items():

        def entity_rows(call: int, batch: int = batch) -> list[dict[str, Any]]:
            return [{"user_id": user} for user in rows.users(batch, seed=call)]

        gets = {name: _get_online_features(backend) for name, backend in backends.items()}
        times = interleaved(gets, entity_rows, rounds=rounds, calls=calls)
        lines.append(_line("get_online_features", batch, times))
    print_table(header, lines)


def _line(call: str, batch: int, times: dict[str, float]) -> list[str]:
    ours, others = times[SKETCH], (times[SQLITE], times[REDIS])
    return [
        call,
        f"{batch:,}",
        *(number(t * 1e6) for t in (ours, *others)),
        *(number(ours / t) for t in others),
    ]


def _get_online_features(backend: Backend) -> Any:
    get = backend.feature_store.get_online_features
    return lambda entity_rows: get(features=["history:viewed"], entity_rows=entity_rows)


def _check(backends: dict[str, Backend], rows: UserRows) -> None:
    """Every store returns all values of its users, and the sketch has nothing unsealed."""
    ours = backends[SKETCH]
    stats = ours.online.view(ours.config, ours.view).stats()  # type: ignore[attr-defined]
    if stats.sealed_entities != rows.num_users or stats.unsealed_rows:
        raise AssertionError(f"the view is not sealed: {stats}")
    users = rows.users(100, seed=0)
    viewed = rows.table["viewed"].take(users).to_pylist()
    for name, backend in backends.items():
        for wanted, (_, values) in zip(viewed, backend.read(entity_keys(users)), strict=True):
            value = values["viewed"]
            missing = set(wanted).difference(getattr(value, value.WhichOneof("val")).val)
            if missing:
                raise AssertionError(f"{name} lacks {missing}")
