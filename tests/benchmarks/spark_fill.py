"""A fill by Spark: Feast's engine as it is and `SketchSparkEngine`, with the same rows, in turns.

Parquet files of a local folder, one row for each user, two cores. Feast's engine has one seal after it, which
``compaction: job`` leaves to a command; ours seals at the end of its job. The second table has what Spark
takes for parts of either job without any store: reading, the window that finds the newest rows, and handing
them over to Python.
"""

import itertools
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from facts import draw_facts
from feast import Entity, FeatureStore, FeatureView, Field
from feast.repo_config import RepoConfig
from feast.types import Int64, Set
from feast.value_type import ValueType
from measure import number, print_set_up, print_table
from stores import temporary_folder

VALUES = 10  # of a user ...
VOCABULARY = 10_000  # ... of so many
FILES = 8
WARM_UP = 2_000  # users of a fill that is not counted
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
FEASTS, OURS = "spark.engine", "feast_sketch_store.engines.SketchSparkEngine"
_POLL_SECONDS = 0.5
_TICKS = os.sysconf("SC_CLK_TCK")


class Taken(NamedTuple):
    """Seconds on the clock, and of the processor in this process and all that it started."""

    wall: float
    cpu: float


def run(*, quick: bool, long: bool = False) -> None:
    num_users = 20_000 if quick else 1_000_000 if long else 200_000
    with temporary_folder() as folder, spark_session() as session:
        source, few = folder / "rows", folder / "few rows"
        write_rows(source, num_users)
        write_rows(few, WARM_UP)
        print_set_up(
            f"{num_users:,} users with {VALUES} of {VOCABULARY:,} values, {FILES} Parquet files, local[2]",
            "feast",
            "pyspark",
            "pyarrow",
        )
        rounds = 1 if quick or long else 2
        for engine in (FEASTS, OURS):
            _fill(engine, folder, few, WARM_UP)()
        fills = {engine: _fill(engine, folder, source, num_users) for engine in (FEASTS, OURS)}
        _print(_in_turns(fills, rounds), "fill and seal by")
        for step in _parts(session, few).values():
            step()
        _print(_in_turns(_parts(session, source), rounds), "Spark alone")


def write_rows(folder: Path, num_users: int) -> None:
    """Write Parquet files with a row for each user, no user in two of them."""
    folder.mkdir()
    bounds = [num_users * part // FILES for part in range(FILES + 1)]
    for first, end in itertools.pairwise(bounds):
        pq.write_table(rows_of(range(first, end), VALUES), folder / f"{first:012}.parquet")


def rows_of(users: range, num_values: int) -> pa.Table:
    """The rows of users, always the same."""
    items = np.sort(draw_facts(len(users), VOCABULARY, seed=users.start)[:, :num_values], axis=1)
    ends = np.arange(0, items.size + 1, num_values, dtype=np.int32)
    viewed = pa.ListArray.from_arrays(pa.array(ends), pa.array(items.ravel()))
    moments = pa.array(np.full(len(users), NOON.timestamp() * 10**6, np.int64)).cast(
        pa.timestamp("us", "UTC")
    )
    return pa.table(
        {"user_id": np.arange(users.start, users.stop), "viewed": viewed, "event_timestamp": moments}
    )


def config_of(
    folder: Path, engine: dict[str, Any], offline_store: str = "spark", **options: Any
) -> RepoConfig:
    """A repository whose rows Spark or Ray reads; keywords become options of the online store."""
    return RepoConfig(
        project="shop",
        provider="local",
        registry=str(folder / "registry.db"),
        repo_path=folder,
        online_store={"type": "sketch", "path": str(folder / "sketch"), **options},
        offline_store={"type": offline_store},
        batch_engine=engine,
        entity_key_serialization_version=3,
    )


def applied(config: RepoConfig, source: Any) -> FeatureStore:
    """The repository with one view."""
    store = FeatureStore(config=config)
    user = Entity(name="user", join_keys=["user_id"], value_type=ValueType.INT64)
    view = FeatureView(
        name="history",
        entities=[user],
        schema=[Field(name="user_id", dtype=Int64), Field(name="viewed", dtype=Set(Int64))],
        source=source,
        ttl=timedelta(0),
    )
    store.apply([user, view])
    return store


def materialize(store: FeatureStore) -> None:
    """Let the engine of a repository write all rows of the source."""
    store.materialize(NOON - timedelta(days=1), NOON + timedelta(days=1))


@contextmanager
def spark_session(memory: str = "3g") -> Iterator[Any]:
    """A session with two cores, which is there before Feast makes one without these settings."""
    from pyspark.sql import SparkSession

    os.environ.update(SPARK_LOCAL_IP="127.0.0.1", PYSPARK_PYTHON=sys.executable)
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", memory)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    yield session
    session.stop()


class Processor:
    """What this process and all that it starts take of the processor, while it is watched.

    Spark's workers end when they have been idle for a while, and what they took is handed to nobody: so all
    processes are looked at now and then, and the last look at each counts.
    """

    def __init__(self) -> None:
        self._first = _used_by_process()
        self._last = dict(self._first)
        self._done = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def _watch(self) -> None:
        while not self._done.wait(_POLL_SECONDS):
            self._last |= _used_by_process()

    def stop(self) -> float:
        """Stop watching: the seconds of a core since the start."""
        self._done.set()
        self._watcher.join()
        self._last |= _used_by_process()
        return sum(seconds - self._first.get(process, 0.0) for process, seconds in self._last.items())


def _used_by_process() -> dict[int, float]:
    """The seconds of a core of this process and of each that it started, directly or not."""
    parents, used = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            parents[int(entry.name)] = int(fields[1])
            used[int(entry.name)] = sum(map(int, fields[11:13])) / _TICKS
    ours, waiting = {}, [os.getpid()]
    while waiting:
        process = waiting.pop()
        ours[process] = used.get(process, 0.0)
        waiting += [child for child, parent in parents.items() if parent == process]
    return ours


def timed(step: Callable[[], object]) -> Taken:
    """What a step takes."""
    start, processor = time.perf_counter(), Processor()
    try:
        step()
    finally:
        cpu = processor.stop()
    return Taken(time.perf_counter() - start, cpu)


def _fill(engine: str, folder: Path, source: Path, num_users: int) -> Callable[[], None]:
    """A fill of an empty view with a seal."""
    from feast.infra.offline_stores.contrib.spark_offline_store.spark_source import SparkSource

    from feast_sketch_store import open_view

    def fill() -> None:
        own = folder / engine
        shutil.rmtree(own, ignore_errors=True)
        own.mkdir()
        rows = SparkSource(
            name="rows", path=str(source), file_format="parquet", timestamp_field="event_timestamp"
        )
        seal = {"compaction": "job"} if engine == FEASTS else {}
        store = applied(config_of(own, {"type": engine}, **seal), rows)
        materialize(store)
        view = open_view(store, "history")
        if engine == FEASTS:
            view.seal()
        view.refresh()
        stats = view.stats()
        assert (stats.sealed_entities, stats.unsealed_rows) == (num_users, 0)
        view.close()

    return fill


def _parts(session: Any, source: Path) -> dict[str, Callable[[], None]]:
    """Parts of a job, without what stores do."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    def rows() -> Any:
        return session.read.parquet(str(source)).where(F.col("event_timestamp").isNotNull())

    def newest() -> Any:
        window = Window.partitionBy("user_id").orderBy(F.col("event_timestamp").desc())
        return rows().withColumn("row_num", F.row_number().over(window)).filter("row_num = 1").drop("row_num")

    def handed_over(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        num_rows = sum(map(len, batches))
        yield pa.RecordBatch.from_pydict({"rows": [num_rows]})

    def counted() -> None:
        rows().agg(F.count(F.lit(1)), F.approx_count_distinct("user_id", 0.02)).first()

    return {
        "read": lambda: rows().write.format("noop").mode("overwrite").save(),
        "read, newest rows by a window": lambda: newest().write.format("noop").mode("overwrite").save(),
        "read, count of rows and entities": counted,
        "read, handed over to Python": lambda: rows().mapInArrow(handed_over, "rows long").toArrow(),
    }


def _in_turns(sides: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[Taken]]:
    """What each side takes."""
    samples: dict[str, list[Taken]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side, step in sides.items():
            samples[side].append(timed(step))
    return samples


def _print(samples: dict[str, list[Taken]], what: str) -> None:
    first = next(iter(samples))
    middle = {side: Taken(*map(median, zip(*taken, strict=True))) for side, taken in samples.items()}
    print_table(
        [what, "s", "s of CPU", "of the first, s", "of the first, CPU"],
        [
            [
                side,
                *map(number, taken),
                number(taken.wall / middle[first].wall),
                number(taken.cpu / middle[first].cpu),
            ]
            for side, taken in middle.items()
        ],
    )
