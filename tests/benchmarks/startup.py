"""Start-up, in five parts.

What registering ``type: sketch`` costs an interpreter that never touches Feast: two virtual environments
with nothing in them, one with this package's wheel and so its start-up file. The time is that of the whole
process ``python -c pass``, whose noise is larger than the difference; hence many interleaved runs.

What importing costs: time and peak memory of a fresh process per import.

What the first reads of a fresh process cost, with a snapshot of a gigabyte that it maps: from the disk, once
the kernel has been told to drop the pages of the files, and from the page cache.

What the first requests to a feature server cost that has just started: its worker reads the snapshot from the
disk before it answers. The requests that follow are the warm ones.

What worker processes that map the same snapshot take together, once each has read nearly all of it: PSS
counts a page that n processes share as an n-th of it for each.
"""

import http.client
import multiprocessing
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from feast import FeatureView
from feast.infra.online_stores.online_store import OnlineStore
from feast.repo_config import RepoConfig
from feature_server import OWN, PATH, SKETCH, await_health, body_of, serving
from large_snapshot import large_sketch
from measure import Goal, interleaved, number, print_goals, print_set_up, print_table, quantile, seconds
from stores import Backend, UserRows, entity_keys, set_up_of, temporary_folder

import feast_sketch_store

REPOSITORY = next(
    folder for folder in Path(__file__).resolve().parents if (folder / "pyproject.toml").exists()
)
WITHOUT, WITH = "without the package", "with the package"
IMPORTS = (
    "pass",
    "import numpy, pyarrow",
    "import feast",
    "import feast_sketch_store",
    "from feast_sketch_store.online_store import SketchOnlineStore",
    "from feast_sketch_store import SketchReader",
)
BATCH = 100  # entities of a read
READ_BY_WORKERS = 1_000  # entities of a read
WARM_REQUESTS = 200  # of each size, to a server
STEPS = (
    "open the view",
    "first read: 1 entity",
    f"second read: {BATCH} other entities",
    "third read: the same again",
)


def run(*, quick: bool) -> None:
    _interpreter(rounds=10 if quick else 200)
    _imports(rounds=1 if quick else 7)
    num_users, gigabytes = (5_000, 0.05) if quick else (50_000, 1.0)
    with temporary_folder() as folder:
        rows = UserRows(num_users)
        store, file = large_sketch(folder, rows, int(gigabytes * 1e9))
        snapshot = Path(file.where())
        size = f"{snapshot.stat().st_size / 1e9:.2f} GB"
        _first_reads(store, rows, size, rounds=1 if quick else 5)
        _first_requests(store, rows, size, starts=2 if quick else 20)
        _shared_pages(store, rows, snapshot, size, (1, 2) if quick else (1, 2, 4))


# -- the interpreter ---------------------------------------------------------------------------


def _interpreter(rounds: int) -> None:
    with temporary_folder() as folder:
        pythons = {WITHOUT: _make_environment(folder / "without"), WITH: _make_environment(folder / "with")}
        pip = [sys.executable, "-m", "pip", "--python", str(pythons[WITH]), "install"]
        subprocess.run([*pip, "--quiet", "--no-deps", str(REPOSITORY)], check=True)
        sides = {name: lambda _, python=python: _run(python) for name, python in pythons.items()}
        times = interleaved(sides, lambda _: None, rounds=rounds)
        modules = {name: _imported(python) for name, python in pythons.items()}
    print_set_up(f"`python -c pass` in empty virtual environments, {rounds} turns of each")
    print_table(
        ["environment", "ms", "modules imported"],
        [[name, number(times[name] * 1e3), str(len(modules[name]))] for name in pythons],
    )
    added = [name for name in modules[WITH] if name not in modules[WITHOUT]]
    print(
        f"Difference: {number((times[WITH] - times[WITHOUT]) * 1e3)} ms; modules added: {', '.join(added)}.\n"
    )


def _make_environment(folder: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder / "bin" / "python"


def _run(python: Path, *options: str) -> str:
    # Variables such as PYTHONPATH would let other packages in.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [python, *options, "-c", "pass"]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stderr


def _imported(python: Path) -> list[str]:
    lines = _run(python, "-X", "importtime").splitlines()
    return [line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")][1:]


# -- imports -----------------------------------------------------------------------------------


def _imports(rounds: int) -> None:
    statements = [
        s for s in IMPORTS if "SketchReader" not in s or "SketchReader" in feast_sketch_store.__all__
    ]
    peaks: dict[str, list[float]] = {statement: [] for statement in statements}
    with temporary_folder() as bytecode:
        sides = {
            statement: lambda _, statement=statement: peaks[statement].append(
                _peak_megabytes(statement, bytecode)
            )
            for statement in statements
        }
        times = interleaved(sides, lambda _: None, rounds=rounds)
    print_set_up(f"`python -c ...`, medians of {rounds} turns of each", "numpy", "pyarrow", "feast")
    print_table(
        ["statement", "process, ms", "peak of memory, MB"],
        # The untimed turn compiles, which takes memory.
        [[f"`{name}`", number(times[name] * 1e3), number(median(peaks[name][1:]))] for name in statements],
    )


def _peak_megabytes(statement: str, bytecode: Path) -> float:
    """Run a statement in a fresh process, with a cache of bytecode whatever the settings of this one."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(bytecode)
    # Not what wait4 reports of the child, which begins with the memory of this process.
    tell = "print(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')))"
    command = [sys.executable, "-W", "ignore", "-c", f"{statement}\n{tell}"]
    output = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    return int(output.split()[1]) * 1024 / 1e6


# -- first reads -------------------------------------------------------------------------------


def _first_reads(store: Backend, rows: UserRows, size: str, rounds: int) -> None:
    caches = {"cold": drop_pages, "warm": lambda _: None}
    samples: dict[str, list[list[tuple[float, int, int]]]] = {cache: [] for cache in caches}
    folder = Path(store.online.storage(store.config, rows.view).location)  # type: ignore[attr-defined]
    for turn in range(rounds):
        for cache, prepare in caches.items():
            first, *others = rows.users(1 + BATCH, seed=turn)
            prepare(folder)
            with process(_read_steps, store, [first], others, others) as (_, pipe):
                samples[cache].append(pipe.recv())
    print_set_up(
        f"a snapshot of {size}, a fresh process each time, {rounds} turns of each, medians", "numpy", "feast"
    )
    lines = []
    for cache, processes in samples.items():
        for step, measured in zip(STEPS, zip(*processes, strict=True), strict=True):
            time, faults, read = (median(column) for column in zip(*measured, strict=True))
            lines.append([step, cache, number(time * 1e3), number(faults), number(read / 1e6)])
    print_table(["step", "page cache", "ms", "major page faults", "MB read from the disk"], lines)


def drop_pages(folder: Path) -> None:
    """Tell the kernel to drop the pages of all files, as it then does if nobody maps them."""
    for path in filter(Path.is_file, folder.rglob("*")):
        with path.open("rb") as file:
            os.fsync(file.fileno())  # else they are dirty, and stay
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read_steps(
    pipe: Connection, online: OnlineStore, config: RepoConfig, view: FeatureView, *batches: list[int]
) -> None:
    """In a fresh process: open a view, read some batches, and tell what each step took."""
    steps = [lambda: online.view(config, view).refresh()]  # type: ignore[attr-defined]
    for users in batches:
        keys = entity_keys(users)
        steps.append(lambda keys=keys: read_found(online, config, view, keys))
    told = []
    for step in steps:
        before = _disk_use()
        time, _ = seconds(step)
        told.append((time, *(after - b for after, b in zip(_disk_use(), before, strict=True))))
    pipe.send(told)


def _disk_use() -> tuple[int, int]:
    """Page faults that waited for the disk, and bytes read from it, of this process."""
    (read,) = re.findall(r"^read_bytes: (\d+)", Path("/proc/self/io").read_text(), re.MULTILINE)
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt, int(read)


def read_found(online: OnlineStore, config: RepoConfig, view: FeatureView, keys: list[Any]) -> None:
    """Read entities, all of which must be found."""
    if any(values is None for _, values in online.online_read(config, view, keys, ["viewed"])):
        raise AssertionError("a user was not found")


# -- first requests ----------------------------------------------------------------------------


def _first_requests(store: Backend, rows: UserRows, size: str, starts: int) -> None:
    folder = Path(store.online.storage(store.config, rows.view).location)  # type: ignore[attr-defined]
    lines, goals = [], []
    for name in (OWN, SKETCH):
        ready, first, warm = [], dict[int, list[float]](), dict[int, list[float]]()
        for start in range(starts):
            drop_pages(folder)
            with serving(name, store, []) as server:
                ready.append(seconds(await_health, server.port, store)[0])
                times = _request_times(server.port, rows, start)
            for batch, of_batch in times.items():
                first.setdefault(batch, []).append(of_batch[0])
                warm.setdefault(batch, []).extend(of_batch[1:])
        for batch in (1, BATCH):
            p50, p99 = ([quantile(sorted(times[batch]), q) for times in (first, warm)] for q in (0.5, 0.99))
            milliseconds = [number(time * 1e3) for time in (*p50, *p99, p99[0] - p99[1])]
            lines.append([name, str(batch), number(median(ready)), *milliseconds])
            what = f"{name}, first request of {batch}: p99 beyond a warm one, ms"
            goals.append(Goal(what, (p99[0] - p99[1]) * 1e3, 5.0))
    print_set_up(
        f"a snapshot of {size}, from the disk; {starts} starts of each server, one worker; the first request "
        f"is of 1 entity, the second of {BATCH} others, then {WARM_REQUESTS} of each",
        "numpy",
        "feast",
    )
    columns = ["first, p50, ms", "warm, p50", "first, p99", "warm, p99", "difference of p99"]
    print_table(["server", "entities", "start to ready, s", *columns], lines)
    print_goals(goals)


def _request_times(port: int, rows: UserRows, seed: int) -> dict[int, list[float]]:
    """Seconds of requests by number of entities, in order."""
    connection = http.client.HTTPConnection("127.0.0.1", port)

    def ask(body: bytes) -> None:
        connection.request("POST", PATH, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.read().count(b"PRESENT") == 0 or answer.status != 200:
            raise AssertionError(f"the server answers {answer.status}")

    connection.connect()
    times: dict[int, list[float]] = {1: [], BATCH: []}
    for number_of_request in range(1 + WARM_REQUESTS):
        for batch, of_batch in times.items():
            body = body_of(rows.users(batch, seed * 1_000 + number_of_request))
            of_batch.append(seconds(ask, body)[0])
    connection.close()
    return times


# -- workers -----------------------------------------------------------------------------------


def _shared_pages(store: Backend, rows: UserRows, snapshot: Path, size: str, counts: tuple[int, ...]) -> None:
    sums = {num_workers: _memory(store, rows, snapshot, num_workers) for num_workers in counts}
    print_set_up(f"{set_up_of(rows.num_users)} in a snapshot of {size}; each worker has read all users")
    print_table(
        ["workers", *(f"{what}, MB" for what in ("RSS", "PSS", "private", "RSS of the snapshot", "its PSS"))],
        [[str(count), *(number(size / 1e6) for size in sizes)] for count, sizes in sums.items()],
    )
    print("Sums over the workers. A page is private while one process maps it; the rest is mostly Feast.\n")


def _memory(store: Backend, rows: UserRows, snapshot: Path, num_workers: int) -> list[int]:
    """Bytes that workers take together once all have read: RSS, PSS, private; RSS and PSS of the snapshot."""
    workers = [process(_read_all, store, rows.num_users, seed) for seed in range(num_workers)]
    sums = [0] * 5
    with ExitStack() as stack:
        started = [stack.enter_context(worker) for worker in workers]
        for _, pipe in started:
            pipe.recv()
        for pid, _ in started:
            whole = _kilobytes(Path(f"/proc/{pid}/smaps_rollup").read_text())
            mappings = re.split(
                r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path(f"/proc/{pid}/smaps").read_text(), flags=re.M
            )
            # The kernel splits a mapping of which it was told something about a part.
            of_snapshot = [_kilobytes(text) for text in mappings if str(snapshot) in text]
            private = whole["Private_Clean"] + whole["Private_Dirty"]
            shared = (sum(mapping[kind] for mapping in of_snapshot) for kind in ("Rss", "Pss"))
            sizes = (whole["Rss"], whole["Pss"], private, *shared)
            sums = [before + size * 1024 for before, size in zip(sums, sizes, strict=True)]
    return sums


def _kilobytes(smaps: str) -> dict[str, int]:
    return {name: int(size) for name, size in re.findall(r"^(\w+): +(\d+) kB$", smaps, re.MULTILINE)}


def _read_all(
    pipe: Connection, online: OnlineStore, config: RepoConfig, view: FeatureView, num_users: int, seed: int
) -> None:
    """In a worker: read all users in random order, tell when it is done, and stay."""
    users = np.random.default_rng(seed).permutation(num_users).tolist()
    for first in range(0, num_users, READ_BY_WORKERS):
        read_found(online, config, view, entity_keys(users[first : first + READ_BY_WORKERS]))
    pipe.send(True)
    pipe.recv()


@contextmanager
def process(run_there: Any, store: Backend, *arguments: Any) -> Iterator[tuple[int, Connection]]:
    """A fresh process with a store that it has not opened yet: its id, and a pipe to it. It may end after."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=run_there, args=(theirs, store.online, store.config, store.view, *arguments)
    )
    process.start()
    theirs.close()  # so that to wait for a process that failed ends
    try:
        yield process.pid or 0, ours
    finally:
        with suppress(BrokenPipeError):  # it has ended
            ours.send(None)
        ours.close()
        process.join()
