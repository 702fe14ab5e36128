"""Capacity: what a fill and a seal take, as the facts of a view grow, and beside Feast's own writes.

The first table writes the same Arrow batches by what tasks of Feast's Spark engine run, and by those of
`SketchSparkEngine`, in turns. The second fills a view from Arrow and seals it once, each size in a process of
its own: in a local folder, and in a bucket of SeaweedFS if `weed` is on the PATH. Times are of the processor,
so that they hold on a machine that others use. Memory is the peak of what a seal allocates beyond what the
process had before; mapped files, which the system may drop, do not count.
"""

import datetime
import itertools
import json
import re
import resource
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
from facts import FACTS_PER_ENTITY, draw_facts
from feast.infra.common.serde import SerializedArtifacts
from feast.types import Int64
from measure import number, print_set_up, print_table
from stores import UserRows, set_up_of, sketch, temporary_folder

from feast_sketch_store.rows.arrow_rows import from_columns
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.settings.view_settings import FeatureSettings, ViewSettings
from feast_sketch_store.storage.base import Storage
from feast_sketch_store.storage.local import LocalStorage
from feast_sketch_store.structures.goals import Goal
from feast_sketch_store.view.opening import open_view
from feast_sketch_store.view.seal_policy import SealPolicy

VOCABULARY = 10_000
BATCH = 10_000  # rows, what Spark hands over at once
TABLE = 100_000  # rows that are made at once
NOON = datetime.datetime(2026, 5, 1, 12, tzinfo=datetime.UTC)
CODEC = FeatureCodec("viewed", "int64_set_val")
GOAL = Goal("noise_ratio", 0.1)  # the default of the option error_rate, which makes sets here
WATCH_SECONDS = 0.005
SHARDS = (1, 16)
FOLDER, BUCKET = "folder", "SeaweedFS"
PLACES = (FOLDER, *([BUCKET] if shutil.which("weed") else []))


def run(*, quick: bool, long: bool = False) -> None:
    _compare_tasks(20_000 if quick else 100_000, 1 if quick else 3)
    sizes = [100_000, 1_000_000] if quick else [100_000, 1_000_000, 10_000_000]
    print_set_up(
        f"{FACTS_PER_ENTITY} of {VOCABULARY:,} values per entity, Set(Int64), in sets", "numpy", "pyarrow"
    )
    lines = []
    sizes += [100_000_000] if long else []
    for place, num_facts, shards in itertools.product(PLACES, sizes, SHARDS):
        with _place(place) as url:
            arguments = [json.dumps(url), str(num_facts // FACTS_PER_ENTITY), str(shards)]
            done = subprocess.run(
                [sys.executable, "-W", "ignore", __file__, *arguments],
                capture_output=True,
                text=True,
                check=True,
            )
        found: dict[str, float] = json.loads(done.stdout)
        per_fact = [found[name] / num_facts for name in ("memory", "log", "base", "order")]
        cpu = [found[name] / num_facts * 1e6 for name in ("fill", "seal")]
        lines.append([place, f"{num_facts:,}", str(shards), *map(number, cpu), *map(number, per_fact)])
    print_table(
        [
            "place",
            "facts",
            "shards",
            "fill, s of CPU a million",
            "seal, s of CPU a million",
            "memory of the seal, bytes a fact",
            "row log, bytes a fact",
            "base, bytes a fact",
            "order, bytes a fact",
        ],
        lines,
    )


@contextmanager
def _place(name: str) -> Iterator[dict[str, Any]]:
    """An empty place for a view: a local folder, or a bucket of a server on this host."""
    if name == FOLDER:
        with temporary_folder() as folder:
            yield {"path": str(folder / "view")}
    else:
        sys.path.insert(0, str(Path(__file__).parents[2]))
        from tests.helpers.object_servers import weed

        with weed() as server:
            yield {"path": f"{server.bucket()}/view", "options": server.options}


def _compare_tasks(num_users: int, rounds: int) -> None:
    """Time what a task of either engine does with the same batches."""
    from feast.infra.compute_engines.spark.utils import map_in_arrow

    from feast_sketch_store.engines import write_job

    print_set_up(f"{set_up_of(num_users)}, batches of {BATCH:,} rows; one process", "feast", "pyarrow")
    samples: dict[str, list[float]] = {"Feast's task": [], "ours": []}
    batches = [batch for table in _tables(num_users) for batch in table.to_batches(max_chunksize=BATCH)]
    for _ in range(rounds):
        for side, times in samples.items():
            with temporary_folder() as folder:
                store = sketch(folder, UserRows(1, Int64), compaction="job")
                artifacts = SerializedArtifacts.serialize(store.view, store.config)  # type: ignore[attr-defined]
                before = _processor_seconds()
                if side == "ours":
                    list(write_job.write(iter(batches), artifacts, "job-"))
                else:
                    list(map_in_arrow(iter(batches), artifacts))
                times.append(_processor_seconds() - before)
    feasts, ours = (median(times) for times in samples.values())
    print_table(
        ["write of", "s of CPU", "rows a second of CPU"],
        [[side, number(median(t)), number(num_users / median(t))] for side, t in samples.items()]
        + [["ours / Feast's", number(ours / feasts), ""]],
    )


def _tables(num_users: int) -> Iterator[pa.Table]:
    for first in range(0, num_users, TABLE):
        users = np.arange(first, min(num_users, first + TABLE))
        items = draw_facts(len(users), VOCABULARY, seed=first)
        ends = np.arange(0, items.size + 1, FACTS_PER_ENTITY, dtype=np.int32)
        viewed = pa.ListArray.from_arrays(pa.array(ends), pa.array(items.ravel()))
        moments = pa.array([NOON] * len(users), pa.timestamp("us", "UTC"))
        yield pa.table({"user_id": users, "viewed": viewed, "event_timestamp": moments})


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _allocated_bytes() -> int:
    match = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match
    return int(match[1]) * 1024


@contextmanager
def watched(found: dict[str, Any]) -> Iterator[None]:
    """Note the most memory that is allocated meanwhile."""
    before, done = _allocated_bytes(), threading.Event()
    found["memory"] = 0

    def watch() -> None:
        while not done.wait(WATCH_SECONDS):
            found["memory"] = max(found["memory"], _allocated_bytes() - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    yield
    done.set()
    watcher.join()


def _storage_of(place: dict[str, Any]) -> Storage:
    if "options" not in place:
        return LocalStorage(Path(place["path"]))
    from feast_sketch_store.storage.buckets import open_bucket

    return open_bucket(place["path"], place["options"])


def _fill_and_seal(place: dict[str, Any], num_users: int, num_shards: int) -> None:
    features = {"viewed": FeatureSettings(CODEC, GOAL, 10**6)}
    settings = ViewSettings("history", 1e-5, features, num_shards=num_shards)
    view: Any = open_view(_storage_of(place), settings, SealPolicy(by_job=True))
    fill = 0.0
    files: list[Any] = []
    for table in _tables(num_users):
        before = _processor_seconds()
        rows = from_columns(table, [CODEC], {"user_id": "int64_val"})
        files += view.stage([rows], "job-")
        fill += _processor_seconds() - before
    view.commit_staged(files)
    log = sum(file.file.size_bytes for file in files)
    del table, rows
    pa.default_memory_pool().release_unused()
    found: dict[str, Any] = {"fill": fill, "log": log}
    before = _processor_seconds()
    with watched(found):
        assert view.seal()
    found["seal"] = _processor_seconds() - before
    for part in view.shards.values():
        for name, file in part.snapshots.list()[0].manifest().layers[0].files.items():
            found[name] = found.get(name, 0) + file.size_bytes
    print(json.dumps(found))


if __name__ == "__main__":
    _fill_and_seal(json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
