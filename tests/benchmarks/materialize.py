"""``FeatureStore.materialize`` from a Parquet file: rows per second, the store's share, and peak memory.

Every store materializes the same rows in a process of its own, in turns. The store's share is the time in
``online_write_batch``, of which the ratio is, too; the sketch's is durable and sealed. Memory is the peak of
the resident set, less what the process had before.
"""

import json
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow.parquet as pq
from feast import FeatureStore, FileSource
from feast.types import Int64
from measure import begin_peak, memory, number, print_set_up, print_table
from stores import REDIS, SKETCH, SQLITE, UserRows, config_of, redis_server, set_up_of, temporary_folder

ROUNDS = 3


def run(*, quick: bool) -> None:
    rows = UserRows(1_000 if quick else 20_000, Int64)
    rounds = 1 if quick else ROUNDS
    print_set_up(
        f"{set_up_of(rows.num_users)}, Array(Int64), a Parquet file, Feast's file source; {rounds} turns",
        "numpy",
        "feast",
        "pyarrow",
        "redis",
    )
    with temporary_folder() as folder, redis_server() as port:
        path = folder / "rows.parquet"
        pq.write_table(rows.table, path)
        results: dict[str, list[dict[str, float]]] = {SKETCH: [], SQLITE: [], REDIS: []}
        for turn in range(rounds):
            for name, measured in results.items():
                measured.append(_materialize_elsewhere(name, path, folder / f"{name}-{turn}", port))
    medians = {name: _medians(measured) for name, measured in results.items()}
    ours = medians[SKETCH]
    print_table(
        ["store", "s", "rows/s", "in the store, s", "its share", "peak memory, MB", "sketch / store"],
        [
            [
                name,
                number(each["seconds"]),
                number(rows.num_users / each["seconds"]),
                number(each["store"]),
                f"{each['store'] / each['seconds']:.0%}",
                number(each["memory"] / 1e6),
                number(ours["store"] / each["store"]),
            ]
            for name, each in medians.items()
        ],
    )


def _medians(measured: list[dict[str, float]]) -> dict[str, float]:
    return {key: median(each[key] for each in measured) for key in measured[0]}


def _materialize_elsewhere(name: str, rows: Path, folder: Path, port: int) -> dict[str, float]:
    arguments = [sys.executable, "-W", "ignore", __file__, name, str(rows), str(folder), str(port)]
    done = subprocess.run(arguments, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def _materialize(name: str, path: Path, folder: Path, port: int) -> None:
    folder.mkdir()
    online_store: dict[str, Any] = {
        SKETCH: {"type": SKETCH, "path": str(folder / "sketch")},
        SQLITE: {"type": SQLITE, "path": str(folder / "online.db")},
        REDIS: {"type": REDIS, "connection_string": f"127.0.0.1:{port}"},
    }[name]
    made = UserRows(1, Int64)
    made.view.batch_source = FileSource(name="rows", path=str(path), timestamp_field="event_timestamp")
    feature_store = FeatureStore(config=config_of(folder, online_store))
    feature_store.apply([made.user, made.view])
    store_class, spent = type(feature_store._get_provider().online_store), 0.0
    write = store_class.online_write_batch

    def timed(*arguments: Any, **keywords: Any) -> None:
        nonlocal spent
        start = time.perf_counter()
        write(*arguments, **keywords)
        spent += time.perf_counter() - start

    store_class.online_write_batch = timed  # type: ignore[assignment]
    before = begin_peak()
    start = time.perf_counter()
    first = datetime(2026, 1, 1, tzinfo=UTC)
    feature_store.materialize(first, first + timedelta(days=365))
    seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "store": spent, "memory": memory("VmHWM") - before}))


if __name__ == "__main__":
    _materialize(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
