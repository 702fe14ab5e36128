"""A fill by Spark or Ray whose rows are all read back: ``python read_back.py [--engine E] [--bucket]``.

    source    Parquet files of a local folder, a row for each user, with 10 of 10,000 values
    fill      the engine writes them to a view, in a local folder or a bucket of SeaweedFS
    check     another store opens the view, reads every user, and compares all values with the source;
              users after the last one must have no row

It fails if a value is lost or added. The number of commits is that which the last seal covers; that of
seals is of the snapshots that were seen, twice a second. With ``--seal job`` writes do not seal, and one
seal comes after the fill.

Needs the extras ``engines-spark`` and Java, or ``engines-ray``; for a bucket ``object-store``, and `weed`
where the tests look for it.
"""

import argparse
import itertools
import json
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from feast import FeatureStore, FileSource
from spark_fill import (
    FILES,
    VALUES,
    applied,
    config_of,
    materialize,
    rows_of,
    spark_session,
    timed,
    write_rows,
)
from stores import temporary_folder

from feast_sketch_store import SketchReader, open_view

ENGINES = {
    "spark.engine": "spark",
    "feast_sketch_store.engines.SketchSparkEngine": "spark",
    "ray.engine": "ray",
    "feast_sketch_store.engines.SketchRayEngine": "ray",
}
POLL_SECONDS = 0.5
READ_USERS = 20_000  # at once


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--engine", choices=list(ENGINES), default="spark.engine")
    parser.add_argument("--users", type=int, default=1_000_000)
    parser.add_argument("--bucket", action="store_true", help="a bucket of SeaweedFS in place of a folder")
    parser.add_argument("--seal", choices=["auto", "job"], default="auto")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    kind = ENGINES[arguments.engine]
    with temporary_folder() as folder, _place(folder, arguments.bucket) as place, _session(kind):
        source = folder / "rows"
        write_rows(source, arguments.users)
        options = {**place, **({"compaction": "job"} if arguments.seal == "job" else {})}
        config = config_of(folder, {"type": arguments.engine}, kind, **options)
        store = applied(config, _source(kind, source))
        found: dict[str, Any] = {"engine": arguments.engine, "users": arguments.users, "place": place["path"]}
        with _seals_of(config, found):
            taken = timed(lambda: materialize(store))
            found |= {"fill_seconds": round(taken.wall, 1), "fill_cpu_seconds": round(taken.cpu, 1)}
            view = open_view(FeatureStore(config=config), "history")
            found["unsealed_rows"] = view.stats().unsealed_rows
            view.seal()
        found["commits"] = sum(version or 0 for version in view.snapshot_versions)
        view.close()
        print(json.dumps(found), flush=True)
        start = time.perf_counter()
        (folder / "feature_store.yaml").write_text(
            json.dumps({"project": "shop", "provider": "local", "online_store": {"type": "sketch", **place}})
        )
        facts = _check(SketchReader(folder, "history"), arguments.users)
        found = {"checked_users": arguments.users, "checked_facts": facts, "problems": 0}
        print(json.dumps({**found, "check_seconds": round(time.perf_counter() - start, 1)}))


@contextmanager
def _place(folder: Path, is_bucket: bool) -> Iterator[dict[str, Any]]:
    if not is_bucket:
        yield {"path": str(folder / "sketch")}
        return
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.helpers.object_servers import weed

    with weed() as server:
        yield {"path": f"{server.bucket()}/features", "storage_options": server.options}


@contextmanager
def _session(kind: str) -> Iterator[None]:
    if kind == "spark":
        with spark_session():
            yield
        return
    import ray

    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=1 << 30, log_to_driver=False)
    yield
    ray.shutdown()


def _source(kind: str, folder: Path) -> Any:
    if kind == "ray":
        return FileSource(name="rows", path=str(folder), timestamp_field="event_timestamp")
    from feast.infra.offline_stores.contrib.spark_offline_store.spark_source import SparkSource

    return SparkSource(
        name="rows", path=str(folder), file_format="parquet", timestamp_field="event_timestamp"
    )


@contextmanager
def _seals_of(config: Any, found: dict[str, Any]) -> Iterator[None]:
    """Note how many snapshots appear meanwhile."""
    view, seen, done = open_view(FeatureStore(config=config), "history"), set(), threading.Event()

    def poll() -> None:
        seen.update(snapshot.name for part in view.shards.values() for snapshot in part.snapshots.list())

    def watch() -> None:
        while not done.wait(POLL_SECONDS):
            poll()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
    poll()
    found["seals"] = len(seen)
    view.close()


def _check(reader: SketchReader, num_users: int) -> int:
    """Compare all users with the source. Returns the number of their values."""
    bounds = [num_users * part // FILES for part in range(FILES + 1)]
    num_facts = 0
    for first, end in itertools.pairwise(bounds):
        wanted = rows_of(range(first, end), VALUES)["viewed"].combine_chunks().flatten().to_numpy()
        wanted = wanted.reshape(-1, VALUES)
        for start in range(first, end, READ_USERS):
            users = np.arange(start, min(end, start + READ_USERS))
            rows = reader.csr("viewed", users)
            assert (np.diff(rows.indptr) == VALUES).all(), (
                f"users from {start} on have other numbers of values"
            )
            values = np.sort(np.asarray(rows.vocabulary)[rows.ids].reshape(-1, VALUES), axis=1)
            assert (values == wanted[users - first]).all(), f"users from {start} on have other values"
            num_facts += values.size
    # Of users that nobody wrote an index of fingerprints may know a few.
    assert reader.exists(np.arange(num_users, num_users + READ_USERS)).mean() < 0.001
    return num_facts


if __name__ == "__main__":
    main()
