"""Streams of small writes: single rows pushed through ``online_write_batch``, durable when it returns.

Feast's SQLite store takes the same rows in turns. The log's length must not matter, so pushes are timed after
more and more commits; then concurrent ones, which share commits; and reads beside 20 pushes a second.
The last table has the goals, what was measured, and whether it holds.
"""

import asyncio
import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
from feast import Entity, FeatureView, Field, FileSource, PushSource, ValueType
from feast.types import Array, Int64
from measure import Goal, number, print_goals, print_set_up, print_table
from stores import Backend, UserRows, entity_keys, floor, set_up_of, sketch, sqlite, temporary_folder

PUSHES_PER_SECOND = 20
TURNS, CALLS = 10, 10  # of a long log's pushes that are compared with a short one's
MOST_TURNS = 200  # of pushes that are compared with SQLite's, after each number of commits: enough for a p99
WRITERS = 64
READ_TURN_SECONDS = 5.0

Times = np.ndarray[Any, np.dtype[np.float64]]


def run(*, quick: bool, long: bool = False) -> None:
    num_users = 2_000 if quick else 20_000
    print_set_up(
        f"{set_up_of(num_users)}, default settings, one row a push, durable", "numpy", "feast", "pyarrow"
    )
    rows = UserRows(num_users, Int64)
    commits = [100, 1_000] if quick else [100, 1_000, 10_000, 30_000]
    with temporary_folder() as folder:
        _disk(folder)
        goals = _single(folder, rows, [*commits, 100_000] if long else commits)
        goals += _concurrent(folder, rows, 2_000 if quick else 20_000)
        goals += _beside_reads(folder, rows, 5 if quick else 600 if long else 60)
    print_goals(goals)


def _disk(folder: Path) -> None:
    """What the disk makes of it: a record of 1.5 kB, appended and synced, and nothing else."""
    descriptor, times = os.open(folder / "bare", os.O_RDWR | os.O_CREAT), []
    for _ in range(300):
        begun = time.perf_counter()
        os.write(descriptor, bytes(1_500))
        os.fdatasync(descriptor)
        times.append(time.perf_counter() - begun)
    os.close(descriptor)
    print_table(["disk", "p50 ms", "p99 ms"], [["1.5 kB appended and synced", *_quantiles(times)]])


class BareDisk:
    """A process that appends and syncs records all the time, to tell the disk's own pauses from a push's."""

    _CODE = """
import os, select, sys, time
descriptor, longest = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT), 0.0
while True:
    if select.select([sys.stdin], [], [], 0.005)[0]:
        if not sys.stdin.readline():
            break
        print(longest, flush=True)
        longest = 0.0
    if os.lseek(descriptor, 0, os.SEEK_CUR) > 1 << 20:
        os.ftruncate(descriptor, os.lseek(descriptor, 0, os.SEEK_SET))
    begun = time.perf_counter()
    os.write(descriptor, bytes(1_500))
    os.fdatasync(descriptor)
    longest = max(longest, time.perf_counter() - begun)
"""

    def __init__(self, path: Path):
        command = [sys.executable, "-c", self._CODE, str(path)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def longest_ms(self) -> float:
        """The longest append since the last call."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline()) * 1e3

    def stop(self) -> None:
        """End the process."""
        self._process.communicate()


def _single(folder: Path, rows: UserRows, commits: list[int]) -> list[Goal]:
    """Single pushes after more and more commits, in turns with SQLite's."""
    disk = BareDisk(folder / "beside")
    try:
        return _pushes(folder, rows, commits, disk)
    finally:
        disk.stop()


def _pushes(folder: Path, rows: UserRows, commits: list[int], disk: BareDisk) -> list[Goal]:
    ours, theirs = sketch(_made(folder / "a"), rows), sqlite(_made(folder / "b"), rows)
    batches = rows.to_feast()
    done, lines, medians, firsts, ratios, slow_ratios, worst = 0, [], [], [], [], [], 0.0
    largest = {"files": 0, "bytes": 0, "unsealed": 0.0}

    new_to_sqlite = iter(batches)  # it writes nothing for a row that it has

    def push(count: int) -> list[float]:
        return [
            _timed(lambda n=n: ours.write([batches[n % len(batches)]])) for n in range(done, done + count)
        ]

    for target in commits:
        disk.longest_ms()
        turns = min(MOST_TURNS, (target - done) // CALLS)
        before = push(target - done - turns * CALLS)
        done += len(before)
        times: dict[str, list[float]] = {"ours": [], "theirs": []}
        for _ in range(turns):  # turns of many calls: each side with its caches warm
            times["ours"] += push(CALLS)
            done += CALLS
            for row in itertools.islice(new_to_sqlite, CALLS):
                times["theirs"].append(_timed(lambda row=row: theirs.write([row])))
        disk_longest = disk.longest_ms()
        first = float(np.median([_first_write(ours) for _ in range(3)]))
        done += 3
        files, size = _log_size(folder / "a")
        stats = ours.online.view(ours.config, ours.view).stats()  # type: ignore[attr-defined]
        largest["files"] = max(largest["files"], files)
        largest["bytes"] = max(largest["bytes"], size - 2_000 * stats.unsealed_rows)
        largest["unsealed"] = max(
            largest["unsealed"], stats.unsealed_rows / max(1_000, stats.sealed_entities / 4)
        )
        all_ours = np.array(before + times["ours"]) * 1e3
        p50, sqlite_p50 = np.median(times["ours"]) * 1e3, np.median(times["theirs"]) * 1e3
        medians.append(p50)
        firsts.append(first)
        ratios.append(p50 / sqlite_p50)
        worst = max(worst, float(np.percentile(all_ours, 99)))
        p99, sqlite_p99 = (np.percentile(times[side], 99) * 1e3 for side in ("ours", "theirs"))
        slow_ratios.append(p99 / sqlite_p99)
        lines.append(
            [
                f"{target:,}",
                number(p50),
                number(np.percentile(all_ours, 99)),
                number(all_ours.max()),
                number(disk_longest),
                number(sqlite_p50),
                number(p50 / sqlite_p50),
                number(sqlite_p99),
                number(p99 / sqlite_p99),
                number(first),
                str(files),
                number(size / 1e6),
                f"{stats.unsealed_rows:,}",
            ]
        )
    header = ["commits", "p50 ms", "p99 ms", "longest ms", "disk's longest ms", "sqlite p50 ms", "ratio"]
    header += ["sqlite p99 ms", "ratio"]
    print_table([*header, "first write ms", "log files", "log MB", "unsealed rows"], lines)
    flatness = _flatness(_made(folder / "short"), rows, ours, commits[0])
    at_once = sketch(_made(folder / "at once"), rows)
    at_once.write(batches[: min(done, len(batches))])
    bytes_at_once = _log_size(folder / "at once")[1]
    return [
        Goal("push of one row, p50, ms", float(np.median(medians)), 4.0),
        Goal("... against Feast's SQLite store", float(np.median(ratios)), 3.0),
        Goal("... p99 against Feast's SQLite store", float(np.median(slow_ratios)), 1.5),
        Goal("... p99, ms, seals beside it included", worst, 25.0),
        Goal(f"... p50 after {commits[-1]:,} commits against after {commits[0]:,}, in turns", flatness, 1.5),
        Goal("first write of a process, ms", max(firsts), 50.0),
        Goal("files of the log, most", largest["files"], 128),
        Goal(
            "bytes of the log, but for 2 kB an unsealed row, against the same rows in one write",
            largest["bytes"] / bytes_at_once,
            4.0,
        ),
        Goal("unsealed rows, most, against a quarter of the sealed ones or 1,000", largest["unsealed"], 1.3),
    ]


def _flatness(folder: Path, rows: UserRows, long: Backend, num_commits: int) -> float:
    """How much longer a push takes into a long log than into one of so many commits.

    The disk changes from minute to minute, so pushes into both take turns.
    """
    short, batches = sketch(folder, rows), rows.to_feast(0, 1_000)
    for n in range(num_commits):
        short.write([batches[n % len(batches)]])
    times: dict[str, list[float]] = {"long": [], "short": []}
    for turn in range(2 * TURNS):
        for name, side in (("long", long), ("short", short)):
            for n in range(turn * CALLS, (turn + 1) * CALLS):
                times[name].append(_timed(lambda side=side, n=n: side.write([batches[n % len(batches)]])))
    return float(np.median(times["long"]) / np.median(times["short"]))


def _concurrent(folder: Path, rows: UserRows, total: int) -> list[Goal]:
    """Pushes of 64 threads and of 64 tasks at once, and one writer with batches."""
    batches = rows.to_feast()
    singles = [[batches[n % len(batches)]] for n in range(total)]
    rates = {}
    side = sketch(_made(folder / "c"), rows)
    with ThreadPoolExecutor(WRITERS) as pool:
        seconds = _timed(lambda: list(pool.map(side.write, singles)))
    rates[f"{WRITERS} threads, one row each"] = total / seconds
    tasks = sketch(_made(folder / "d"), rows)

    def write(row: list[Any]) -> Any:
        return tasks.online.online_write_batch_async(tasks.config, tasks.view, row, None)

    rates[f"{WRITERS} tasks, one row each"] = total / _timed(lambda: asyncio.run(_by_tasks(write, singles)))
    pushed, at_most = _push_rates(folder, rows)
    rates[f"{WRITERS} tasks, push_async of one row each"] = pushed
    rates["... into a store that does nothing: what Feast itself takes"] = at_most
    for batch in (100, 1_000, 10_000):
        side = sketch(_made(folder / f"e{batch}"), rows)
        parts = [batches[n : n + batch] for n in range(0, len(batches), batch)]
        view = side.online.view(side.config, side.view)  # type: ignore[attr-defined]
        seconds = _timed(lambda side=side, parts=parts: [side.write(part) for part in parts])
        rates[f"one thread, {batch:,} rows a batch, seals beside it"] = len(batches) / seconds
        seconds += _timed(view.settle)
        rates[f"... {batch:,} rows a batch, until the last seal is done"] = len(batches) / seconds
    for num_threads, batch in ((1, 10_000), (8, 1_000)):
        side = sketch(_made(folder / f"g{num_threads}"), rows, compaction={"min_rows": 10**9})
        parts = [batches[n : n + batch] for n in range(0, len(batches), batch)]
        with ThreadPoolExecutor(num_threads) as pool:
            seconds = _timed(lambda side=side, parts=parts, pool=pool: list(pool.map(side.write, parts)))
        threads = "one thread" if num_threads == 1 else f"{num_threads} threads"
        rates[f"{threads}, {batch:,} rows a batch, no seal"] = len(batches) / seconds
    print_table(["writers", "durable rows/s"], [[name, number(rate)] for name, rate in rates.items()])
    wanted = [5_000.0, 5_000.0, *[None] * 8, 100_000.0, 100_000.0]
    goals = [
        Goal(f"rows/s, {name}", rate, limit, is_least=True)
        for (name, rate), limit in zip(rates.items(), wanted, strict=True)
        if limit is not None
    ]
    # Feast's own work of a push takes more than 1/5,000 s, whatever the store.
    name = f"rows/s, {WRITERS} tasks, push_async of one row each, against a store that does nothing"
    return [*goals, Goal(name, pushed / at_most, 0.8, is_least=True)]


async def _by_tasks(call: Callable[[Any], Any], arguments: list[Any]) -> None:
    """Call for each argument, by 64 tasks."""
    rest = iter(arguments)

    async def work() -> None:
        for argument in rest:
            await call(argument)

    await asyncio.gather(*(work() for _ in range(WRITERS)))


def _push_rates(folder: Path, rows: UserRows) -> tuple[float, float]:
    """Rows a second that 64 tasks push with Feast: into this store, and into one that does nothing."""
    frame = rows.table.slice(0, min(rows.num_users, 1_000)).to_pandas()
    frames = [frame.iloc[n : n + 1] for n in range(len(frame))]
    seconds = {}
    sides = {"ours": sketch(_made(folder / "p"), rows), "nothing": floor(_made(folder / "q"), rows)}
    pushes = {name: _push_of(side) for name, side in sides.items()}
    for turn in range(TURNS):
        for name, push in pushes.items():
            part = frames[turn::TURNS]
            taken = _timed(lambda push=push, part=part: asyncio.run(_by_tasks(push, part)))
            seconds[name] = seconds.get(name, 0.0) + taken
    return len(frames) / seconds["ours"], len(frames) / seconds["nothing"]


def _push_of(side: Backend) -> Callable[[Any], Any]:
    """Feast's `push_async` into a store, of a data frame."""
    batch = FileSource(name="rows", path="rows.parquet", timestamp_field="event_timestamp")
    source = PushSource(name="pushed", batch_source=batch)
    user = Entity(name="user", join_keys=["user_id"], value_type=ValueType.INT64)
    fields = [Field(name="user_id", dtype=Int64), Field(name="viewed", dtype=Array(Int64))]
    side.view = FeatureView(name="history", entities=[user], schema=fields, source=source, ttl=timedelta(0))
    store = side.feature_store
    return lambda row: store.push_async("pushed", row)


def _beside_reads(folder: Path, rows: UserRows, seconds: float) -> list[Goal]:
    """Reads of 10 users, quiet and beside 20 pushes a second, in turns."""
    batches = rows.to_feast()
    side = sketch(_made(folder / "f"), rows)
    side.write(batches)
    turns = max(1, round(seconds / READ_TURN_SECONDS))
    quiet, busy = [], []
    pushed = 0
    for _ in range(turns):
        quiet.append(_read_for(side, rows, seconds / turns))
        stop = threading.Event()

        def push(stop: threading.Event = stop) -> None:
            nonlocal pushed
            while not stop.wait(1 / PUSHES_PER_SECOND):
                side.write([batches[pushed % len(batches)]])
                pushed += 1

        pusher = threading.Thread(target=push)
        pusher.start()
        busy.append(_read_for(side, rows, seconds / turns))
        stop.set()
        pusher.join()
    begun = time.process_time()
    time.sleep(min(5.0, seconds))
    idle = (time.process_time() - begun) / min(5.0, seconds)
    alone, beside = np.concatenate(quiet), np.concatenate(busy)
    ratios = [float(np.percentile(beside, q) / np.percentile(alone, q)) for q in (50, 99)]
    lines = [
        [name, *(number(np.percentile(times, q) * 1e6) for q in (50, 99))]
        for name, times in (("quiet", alone), (f"beside {PUSHES_PER_SECOND} pushes/s", beside))
    ]
    print_table(["online_read of 10 users", "p50 us", "p99 us"], [*lines, ["ratio", *map(number, ratios)]])
    return [
        Goal(f"read p99 beside {PUSHES_PER_SECOND} pushes/s for {seconds:g} s against quiet", ratios[1], 1.5),
        Goal("CPU of an idle reader, share of a core", idle, 0.005),
    ]


def _read_for(side: Backend, rows: UserRows, seconds: float) -> Times:
    times, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        keys = entity_keys(rows.users(10, len(times)))
        times.append(_timed(lambda keys=keys: side.read(keys)))
    return np.array(times)


def _first_write(side: Backend) -> float:
    """Milliseconds of the first write of a process that has imported all."""
    path, folder = side.config.online_store.path, side.config.repo_path
    code = f"import streaming; print(streaming.first_write({str(folder)!r}, {path!r}))"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return float(done.stdout.split()[-1])


def first_write(folder: str, path: str) -> float:
    """Write one row to a store that is there, and tell the milliseconds."""
    rows = UserRows(10, Int64)
    (row, *_) = rows.to_feast()
    elsewhere = sketch(_made(Path(folder) / f"first {os.getpid()}"), rows)
    elsewhere.config.online_store.path = path
    elsewhere.online = type(elsewhere.online)()
    return _timed(lambda: elsewhere.write([row])) * 1e3


def _log_size(folder: Path) -> tuple[int, int]:
    """Files and bytes of a view's row log."""
    (fresh,) = folder.rglob("fresh")
    sizes = [
        f.stat().st_size
        for part in ("fresh", "rows")
        for f in (fresh.parent / part).rglob("*")
        if f.is_file()
    ]
    return len(sizes), sum(sizes)


def _quantiles(seconds: list[float]) -> list[str]:
    return [number(np.percentile(seconds, q) * 1e3) for q in (50, 99)]


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _timed(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun
