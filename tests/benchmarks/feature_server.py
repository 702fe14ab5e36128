"""The feature server over HTTP, with the same rows in several stores: throughput and latency of
``POST /get-online-features``.

Behind ``feast serve`` stand this store, Feast's Redis store, its SQLite store, and the floor, a store that
holds finished protos: no store can be faster there. Behind ``feast-sketch serve`` stands this store.

Per batch size, first a closed loop of several connections gives each server's saturation in requests a
second. Then an open loop sends requests at random moments (Poisson) at equal rates: half the saturation of
the slowest, and then 0.8 of that of Redis to those that reach more. A latency counts from when its request
was due, so that a slow answer also counts against those that wait behind it. The servers run all the time
and are asked in turns, A B C A B C; each turn sends the same requests at the same moments to each. The load
generator is a process of its own (`http_load`) with a core of its own, which Redis shares; how late it was
stands in the table. What else the machine does makes times longer, but hardly the processor time of a
request, which is that of the server in the open loop, without Redis's own.
"""

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import http_load
import numpy as np
from http_load import Load
from measure import number, print_set_up, print_table
from stores import (
    Backend,
    UserRows,
    floor_of_server,
    redis,
    redis_server,
    set_up_of,
    sketch,
    sqlite,
    temporary_folder,
)

PROGRAMS = Path(sys.executable).parent
OWN = "sketch, feast-sketch serve"
SKETCH, REDIS, SQLITE, FLOOR = (f"{store}, feast serve" for store in ("sketch", "redis", "sqlite", "floor"))
PATH = "/get-online-features"
BATCHES = (1, 10, 100)
NUM_WORKERS = 1  # of two cores, the load generator needs one
CLOSED_CONNECTIONS = 8
OPEN_CONNECTIONS = 64  # more than are ever under way at half the load
HEADER = (
    "entities",
    "server",
    "kB an answer",
    "requests/s at saturation",
    "/ redis",
    "requests/s in the open loop",
    "number",
    "CPU, ms",
    "p50, ms",
    "p99, ms",
    "p99.9, ms",
    "CPU / redis",
    "p50 / redis",
    "p99 / redis",
    "late p99, ms",
)
_REQUESTS = 500  # different ones per batch size
_CHECKED_AT_ONCE = 500  # users


@dataclass(frozen=True)
class Plan:
    """How long things take: turns of each server, and seconds of a turn."""

    turns: int
    closed_seconds: float
    open_seconds: float


def run(*, quick: bool, long: bool = False) -> None:
    rows = UserRows(2_000 if quick else 20_000)
    plan = Plan(1, 0.3, 0.7) if quick else Plan(4, 1.0, 3.5) if long else Plan(3, 0.6, 1.5)
    with temporary_folder() as folder, redis_server() as port:
        backends = {
            OWN: sketch(_made(folder / "own"), rows),
            SKETCH: sketch(_made(folder / "sketch"), rows),
            REDIS: redis(_made(folder / "redis"), rows, port),
            FLOOR: floor_of_server(_made(folder / "floor"), rows),
            SQLITE: sqlite(_made(folder / "sqlite"), rows),
        }
        for backend in backends.values():
            backend.write(rows.to_feast())
        for name in (OWN, SKETCH):
            _check_sealed(backends[name], rows)
        _serve_and_measure(backends, rows, plan)


def _serve_and_measure(backends: dict[str, Backend], rows: UserRows, plan: Plan) -> None:
    spawn = multiprocessing.get_context("spawn")  # a fork would share the stores' clients
    cores = sorted(os.sched_getaffinity(0))
    own_core = cores[-1] if len(cores) > 1 else None
    with ExitStack() as stack:
        servers = {name: stack.enter_context(_serving(name, b)) for name, b in backends.items()}
        generator = stack.enter_context(ProcessPoolExecutor(1, spawn, http_load.prefer, (own_core,)))
        for name, server in servers.items():
            _await_health(server.port, backends[name])
            _check(name, server.port, rows)
        print_set_up(
            f"{set_up_of(rows.num_users)}, sealed; {NUM_WORKERS} worker, no access log, {len(cores)} cores; "
            f"{plan.turns} turns each of {plan.closed_seconds:g} s closed loop "
            f"({CLOSED_CONNECTIONS} connections) and {plan.open_seconds:g} s open loop",
            *("feast", "fastapi", "uvicorn", "gunicorn", "redis"),
        )
        lines = []
        for batch in BATCHES:
            requests = [_request(rows.users(batch, seed)) for seed in range(_REQUESTS)]
            for measured in _measure(generator, servers, requests, plan):
                lines += [_line(batch, name, result, measured[REDIS]) for name, result in measured.items()]
    print_table(HEADER, lines)


@dataclass
class Measured:
    """Of one server and batch size."""

    closed: list[Load] = field(default_factory=list)
    open: list[Load] = field(default_factory=list)
    rate: float = 0.0
    cpu_seconds: float = 0.0

    @property
    def requests(self) -> int:
        """In the open loop."""
        return sum(len(load.latencies) for load in self.open)

    @property
    def saturation(self) -> float:
        return median(len(load.latencies) / load.elapsed for load in self.closed)

    @property
    def percentiles(self) -> tuple[float, float]:
        """p50 and p99, medians of the turns."""
        turns = [np.percentile(load.latencies, [50, 99]) for load in self.open]
        p50, p99 = np.median(turns, axis=0).tolist()
        return p50, p99

    @property
    def longest(self) -> float:
        """p99.9 of all turns together."""
        return float(np.percentile([seconds for load in self.open for seconds in load.latencies], 99.9))

    @property
    def lateness(self) -> float:
        """p99 of how late the generator sent requests."""
        return float(np.percentile([late for load in self.open for late in load.lateness], 99))


def _measure(
    generator: ProcessPoolExecutor,
    servers: dict[str, "Server"],
    requests: list[bytes],
    plan: Plan,
) -> Iterator[dict[str, Measured]]:
    """What each server does, at one rate after the other."""
    closed: dict[str, list[Load]] = {name: [] for name in servers}
    for turn in range(-1, plan.turns):  # the first one warms up
        for name, server in servers.items():
            arguments = (server.port, requests, CLOSED_CONNECTIONS, plan.closed_seconds)
            load = generator.submit(http_load.closed_loop, *arguments).result()
            if turn >= 0:
                closed[name].append(load)
    saturations = {name: Measured(loads).saturation for name, loads in closed.items()}
    slowest, of_redis = min(saturations.values()) / 2, 0.8 * saturations[REDIS]
    yield _at_rate(generator, servers, requests, plan, closed, slowest)
    faster = {name: server for name, server in servers.items() if saturations[name] >= saturations[REDIS]}
    yield _at_rate(generator, faster, requests, plan, closed, of_redis)


def _at_rate(
    generator: ProcessPoolExecutor,
    servers: dict[str, "Server"],
    requests: list[bytes],
    plan: Plan,
    closed: dict[str, list[Load]],
    rate: float,
) -> dict[str, Measured]:
    measured = {name: Measured(closed[name], rate=rate) for name in servers}
    for turn in range(plan.turns):
        moments = _arrivals(rate, plan.open_seconds, turn)
        for name, server in servers.items():
            before = server.cpu_seconds()
            load = generator.submit(http_load.open_loop, server.port, requests, OPEN_CONNECTIONS, moments)
            measured[name].open.append(load.result())
            measured[name].cpu_seconds += server.cpu_seconds() - before
    return measured


def _arrivals(rate: float, seconds: float, seed: int) -> list[float]:
    """Moments of independent requests."""
    gaps = np.random.default_rng(seed).exponential(1 / rate, max(1, round(rate * seconds)))
    moments: list[float] = np.cumsum(gaps).tolist()
    return moments


def _line(batch: int, name: str, result: Measured, base: Measured) -> list[str]:
    loads = result.closed + result.open
    count = sum(len(load.latencies) for load in loads)
    size = sum(load.num_bytes for load in loads) / count
    (p50, p99), (base_p50, base_p99) = result.percentiles, base.percentiles
    cpu, base_cpu = (side.cpu_seconds / side.requests for side in (result, base))
    return [
        str(batch),
        name,
        number(size / 1e3),
        number(result.saturation),
        number(result.saturation / base.saturation),
        number(result.rate),
        f"{result.requests:,}",
        *(number(seconds * 1e3) for seconds in (cpu, p50, p99, result.longest)),
        number(cpu / base_cpu),
        number(p50 / base_p50),
        number(p99 / base_p99),
        number(result.lateness * 1e3),
    ]


# -- servers -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Server:
    """A running feature server: its port and its first process."""

    port: int
    pid: int

    def cpu_seconds(self) -> float:
        """Processor time of the first process and of its workers."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return sum(map(_cpu_seconds, [self.pid, *map(int, children)]))


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _serving(name: str, backend: Backend) -> Iterator[Server]:
    """A feature server of a store. It may not answer yet."""
    repo = _make_repository(backend)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # By default a worker of Feast's restarts after 1,000 requests, which would be many times a turn.
    options = ["--port", str(port), "--workers", str(NUM_WORKERS), "--max-requests", "0"]
    command = [PROGRAMS / "feast-sketch", "serve", *options]
    if name != OWN:
        more = ["--no-access-log", "--max-requests-jitter", "0"]
        command = [PROGRAMS / "feast", "serve", *options, *more]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}  # the floor is here
    with (repo / "server.log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=repo, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        try:
            yield Server(port, process.pid)
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(30)


def _make_repository(backend: Backend) -> Path:
    """The feature repository of a store, which stands in its folder already."""
    config = backend.feature_store.config
    document = {
        "project": config.project,
        "provider": config.provider,
        "registry": str(config.registry.path),
        "online_store": config.online_config,
        "entity_key_serialization_version": config.entity_key_serialization_version,
    }
    repo: Path = config.repo_path
    (repo / "feature_store.yaml").write_text(json.dumps(document))  # which is YAML
    return repo


def _await_health(port: int, backend: Backend) -> None:
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.1)
    raise TimeoutError((backend.config.repo_path / "server.log").read_text())


def _body(users: Sequence[int]) -> bytes:
    return json.dumps({"features": ["history:viewed"], "entities": {"user_id": users}}).encode()


def _request(users: Sequence[int]) -> bytes:
    return http_load.post(PATH, _body(users))


def _ask(port: int, users: Sequence[int]) -> Any:
    """The values of users."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{PATH}", _body(users), headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        answer = json.load(response)
    return answer["results"][answer["metadata"]["feature_names"].index("viewed")]["values"]


def _check(name: str, port: int, rows: UserRows) -> None:
    """A server returns all values that the users have."""
    viewed = rows.table["viewed"].to_pylist()
    for first in range(0, rows.num_users, _CHECKED_AT_ONCE):
        users = range(rows.num_users)[first : first + _CHECKED_AT_ONCE]
        for user, values in zip(users, _ask(port, list(users)), strict=True):
            missing = set(viewed[user]).difference(values or [])
            if missing:
                raise AssertionError(f"the server of {name} lacks {missing} of user {user}")


def _check_sealed(backend: Backend, rows: UserRows) -> None:
    stats = backend.online.view(backend.config, backend.view).stats()  # type: ignore[attr-defined]
    if stats.sealed_entities != rows.num_users or stats.unsealed_rows:
        raise AssertionError(f"the view is not sealed: {stats}")


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
