"""A campaign: a replica reads through a proxy that delays, cuts, corrupts and refuses, beside writes.

    python tests/faults/bad_network.py [--server weed] [--seconds 600] [--seed 1]

Every `online_read` must be answered, with what was written up to some commit, never less than was seen
before. When the faults end, the replica must see everything. The proxy and the writer, who reaches the bucket
without it, are a process of their own: the writer seals deltas and bases, and vacuums. Before and after the
faults the same reads and writes go on over a good network, for a fifth of the time each; the campaign prints
the 99th percentile of both.
"""

import argparse
import asyncio
import multiprocessing
import random
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
from feast import Entity, FeatureView, Field, FileSource
from feast.protos.feast.types.Value_pb2 import Int64Set, Value
from feast.repo_config import RepoConfig
from feast.types import Int64, Set
from feast.value_type import ValueType

from feast_sketch_store.online_store import SketchOnlineStore
from feast_sketch_store.storage import buckets
from tests.helpers import object_servers
from tests.helpers.keys import user_key
from tests.helpers.object_servers import ObjectServer
from tests.helpers.proxy import proxy

_USERS = 200
_READ_AT_ONCE = 20
_QUIET_SHARE = 0.2  # of the time, before the faults and once more after them
_PATIENCE_SECONDS = 120
_INTERVAL_SECONDS = 0.05
_VIEW = FeatureView(
    name="history",
    entities=[Entity(name="user", join_keys=["user_id"], value_type=ValueType.INT64)],
    schema=[Field(name="user_id", dtype=Int64), Field(name="viewed", dtype=Set(Int64))],
    source=FileSource(path="none.parquet", timestamp_field="event_timestamp"),
    tags={"sketch.advanced": "{presence_error: 1e-9}"},
)


def main() -> int:
    parser = argparse.ArgumentParser(description="A replica behind a bad network.")
    parser.add_argument("--server", choices=["moto", "weed"], default="moto")
    parser.add_argument("--port", type=int, help="of a moto that runs already")
    parser.add_argument("--seconds", type=float, default=600.0, help="of faults; at least until the first")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    buckets._RETRIES = 1
    with (
        object_servers.start(arguments.server, arguments.port) as server,
        tempfile.TemporaryDirectory() as folder,
    ):
        campaign = _Campaign(server, Path(folder), arguments.seed)
        failures = campaign.run(arguments.seconds)
    faulty, quiet = (campaign.p99(part) for part in ("faults", "quiet"))
    print(
        f"{campaign.commits.value} commits, {campaign.reads} reads, {campaign.stale} of them stale, "
        f"{campaign.restarts} restarts, {campaign.num_faults} faults, {len(failures)} failures"
    )
    print(
        f"p99 of online_read {1e3 * faulty:.2f} ms, on a quiet network {1e3 * quiet:.2f} ms: "
        f"{faulty / quiet:.2f} times; longest read {1e3 * campaign.longest:.0f} ms, "
        f"oldest answer {campaign.oldest:.1f} s"
    )
    for failure in failures[:10]:
        print(failure)
    return 1 if failures else 0


def _config(url: str, options: dict[str, str], **more: Any) -> RepoConfig:
    return RepoConfig(
        project="campaign",
        provider="local",
        registry="none.db",
        entity_key_serialization_version=3,
        online_store={
            "type": "sketch",
            "path": url,
            "storage_options": {"timeout": "5s", "connect_timeout": "2s", **options},
            "refresh": f"{_INTERVAL_SECONDS}s",
            "advanced": {"scalar_error": 1e-9},
            "compaction": {"min_rows": 10**9},
            **more,
        },
    )


class _Campaign:
    """Each commit gives every user the set of one number, the commit's own: so a read tells its version."""

    def __init__(self, server: ObjectServer, folder: Path, seed: int):
        self.rng = random.Random(seed)
        self.reads = self.stale = self.restarts = self.num_faults = 0
        self.longest = self.oldest = 0.0
        self.failures: list[str] = []
        self._seconds: dict[str, list[float]] = {"quiet": [], "faults": []}
        context = multiprocessing.get_context("fork")  # before this process uses the object store
        self.commits = context.Value("i", 0)
        url = server.bucket() + "/store"
        self._network, theirs = context.Pipe()
        self._other = context.Process(
            target=_network_and_writer, args=(theirs, self.commits, server, url, seed), daemon=True
        )
        self._other.start()
        theirs.close()
        port = self._network.recv()
        options = {**server.options, "endpoint": f"http://127.0.0.1:{port}"}
        self._config = _config(url, options, read_only=True, cache_path=str(folder / "cache"))

    def p99(self, part: str) -> float:
        """The 99th percentile of seconds of the reads on a ``quiet`` network, or among ``faults``."""
        return float(np.quantile(self._seconds[part], 0.99))

    def run(self, seconds: float) -> list[str]:
        self._store, self._seen = SketchOnlineStore(), 0
        self._read_for(_QUIET_SHARE * seconds, "quiet")
        end = time.monotonic() + seconds
        while (time.monotonic() < end or not self.num_faults) and not self.failures:
            self._tell(self._fault())
            self._read_for(self.rng.uniform(0.2, 1.0), "faults")
            if self.rng.random() < 0.1:  # the process dies, and another one starts from the cache
                self._tell("down")
                self._restart()
                self._read("faults")
        self._tell({})
        self._read_for(2.0, None)  # looks that hang end meanwhile
        self._read_for(_QUIET_SHARE * seconds, "quiet")
        self._network.send("end")
        answer = self._network.recv()
        self.num_faults = answer.pop("faults")
        self.failures += answer.pop("failures")
        self._check_the_end()
        asyncio.run(self._store.close())
        self._network.send("close")
        self._other.join()
        return self.failures

    def _check_the_end(self) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while self._seen < self.commits.value and time.monotonic() < deadline and not self.failures:
            self._read_for(0.1, None)
        if self._seen < self.commits.value:
            self.failures.append(f"{self.commits.value} commits were written, and {self._seen} are seen")

    def _restart(self) -> None:
        asyncio.run(self._store.close())
        buckets._objects.cache_clear()
        self._store, self._seen = SketchOnlineStore(), 0
        self.restarts += 1

    def _fault(self) -> str | dict[str, float]:
        fault = self.rng.choice(["none", "down", "delay", "cut", "corrupt", "all"])
        if fault == "down":
            return fault
        shares: dict[str, float] = {}
        if fault in ("delay", "all"):
            shares["delay_seconds"] = self.rng.uniform(0.01, 0.5)
        if fault in ("cut", "all"):
            shares["cut_share"] = self.rng.uniform(0.05, 0.5)
        if fault in ("corrupt", "all"):
            shares["corrupt_share"] = self.rng.uniform(0.05, 0.5)
        return shares

    def _tell(self, faults: str | dict[str, float]) -> None:
        """Change what the network does, and wait until it does. Counts its faults so far."""
        self._network.send(faults)
        self.num_faults = self._network.recv()

    def _read_for(self, seconds: float, part: str | None) -> None:
        """Read for so long, and at least once however slow the machine is."""
        end, is_over = time.monotonic() + seconds, False
        while not is_over and not self.failures:
            self._read(part)
            time.sleep(0.002)
            is_over = time.monotonic() >= end

    def _read(self, part: str | None) -> None:
        """One read, which counts to a part of the campaign."""
        first = self.rng.randrange(_USERS - _READ_AT_ONCE)
        keys = [user_key(user) for user in range(first, first + _READ_AT_ONCE)]
        began = time.perf_counter()
        try:
            rows = self._store.online_read(self._config, _VIEW, keys, ["viewed"])
        except Exception as error:
            self.failures.append(f"a read failed: {error!r}")
            return
        seconds = time.perf_counter() - began
        self.reads += 1
        if part is not None:
            self._seconds[part].append(seconds)
            self.longest = max(self.longest, seconds)
        freshness = self._store.view(self._config, _VIEW).freshness()
        self.stale += freshness.state == "STALE"
        self.oldest = max(self.oldest, freshness.age_seconds or 0.0)
        versions = {tuple(values["viewed"].int64_set_val.val) for _, values in rows if values is not None}
        if any(values is None for _, values in rows) or len(versions) != 1 or len(min(versions)) != 1:
            self.failures.append(f"a read shows {rows[:5]}")
            return
        ((version,),) = versions
        if version < self._seen:
            self.failures.append(f"a read shows version {version}, after version {self._seen}")
        self._seen = version


# -- the other process ---------------------------------------------------------------------------


def _network_and_writer(pipe: Connection, commits: Any, server: ObjectServer, url: str, seed: int) -> None:
    """Write, and change what the proxy does, until the pipe says ``end``."""
    with proxy(server.port, seed) as link:
        writer = _Writer(server, url, commits, seed)
        pipe.send(link.port)
        while (wanted := pipe.recv()) != "end":
            link.heal()
            if wanted == "down":
                link.take_down()
            else:
                vars(link).update(wanted)
            pipe.send(link.num_faults)
        link.heal()
        writer.end()
        pipe.send({"faults": link.num_faults, "failures": writer.failures})
        pipe.recv()  # the other process needs the proxy until it has seen everything


class _Writer:
    """Commits ten times a second, and now and then seals or vacuums."""

    def __init__(self, server: ObjectServer, url: str, commits: Any, seed: int):
        self.failures: list[str] = []
        patient = {**server.options, "timeout": "60s", "connect_timeout": "60s"}  # its network is a good one
        self._view = SketchOnlineStore().view(_config(url, patient), _VIEW)
        self._commits = commits
        self._is_over = threading.Event()
        self._commit()
        self._view.seal()
        self._thread = threading.Thread(target=self._write_on, args=(random.Random(seed),))
        self._thread.start()

    def end(self) -> None:
        """Write no more."""
        self._is_over.set()
        self._thread.join()

    def _commit(self) -> None:
        number = self._commits.value + 1
        event = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=number)
        value = Value(int64_set_val=Int64Set(val=[number]))
        self._view.write([(user_key(user), {"viewed": value}, event, None) for user in range(_USERS)])
        self._commits.value = number

    def _write_on(self, rng: random.Random) -> None:
        while not self._is_over.wait(0.1):
            try:
                self._commit()
                step = rng.random()
                if step < 0.2:
                    self._view.seal(as_delta=step < 0.15)
                elif step < 0.25:
                    self._view.vacuum(0)
            except Exception as error:
                self.failures.append(f"the writer failed: {error!r}")
                return


if __name__ == "__main__":
    sys.exit(main())
