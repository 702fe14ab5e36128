"""Streams of small writes: single rows pushed through ``online_write_batch``, durable when it returns.

Feast's SQLite store takes the same rows in turns. The log's length must not matter, so pushes are timed after
more and more commits; then concurrent ones, which share commits; and reads beside 20 pushes a second.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from feast.types import Int64
from measure import number, print_set_up, print_table
from stores import Backend, UserRows, entity_keys, set_up_of, sketch, sqlite, temporary_folder

PUSHES_PER_SECOND = 20


def run(*, quick: bool) -> None:
    num_users = 2_000 if quick else 20_000
    print_set_up(
        f"{set_up_of(num_users)}, default settings, one row a push, durable",
        "numpy",
        "feast",
        "pyarrow",
    )
    rows = UserRows(num_users, Int64)
    with temporary_folder() as folder:
        _single(folder, rows, (100, 1_000) if quick else (100, 1_000, 10_000, 100_000))
        _concurrent(folder, rows, 1_000 if quick else 10_000)
        _beside_reads(folder, rows, 5 if quick else 60)


def _single(folder: Path, rows: UserRows, commits: tuple[int, ...]) -> None:
    """Single pushes after more and more commits, in turns with SQLite's."""
    sides = {"sketch": sketch(_made(folder / "a"), rows), "sqlite": sqlite(_made(folder / "b"), rows)}
    batches = rows.to_feast()
    done, lines = 0, []
    for target in commits:
        while done < target - 100:
            sides["sketch"].write([batches[done % len(batches)]])
            done += 1
        times: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(5):  # turns of many calls: each side with its caches warm
            for name, side in sides.items():
                for number_ in range(20):
                    row = [batches[(done + number_) % len(batches)]]
                    times[name].append(_timed(lambda side=side, row=row: side.write(row)))
            done += 20
        first = _timed(lambda: _another(sides["sketch"]).write([batches[0]]))
        size = sum(f.stat().st_size for f in _log_folder(folder / "a").rglob("*") if f.is_file())
        files = sum(1 for f in _log_folder(folder / "a").rglob("*") if f.is_file())
        ours, theirs = (np.array(times[name]) * 1e3 for name in ("sketch", "sqlite"))
        lines.append(
            [
                str(target),
                number(np.median(ours)),
                number(np.percentile(ours, 99)),
                number(np.median(theirs)),
                number(np.median(ours) / np.median(theirs)),
                number(first * 1e3),
                str(files),
                number(size / 1e6),
            ]
        )
    print_table(
        ["commits", "p50 ms", "p99 ms", "sqlite p50 ms", "ratio", "first write ms", "log files", "log MB"],
        lines,
    )


def _concurrent(folder: Path, rows: UserRows, total: int) -> None:
    """Pushes of 64 threads and of 64 tasks at once, and one writer with batches."""
    batches = rows.to_feast()
    singles = [[batches[n % len(batches)]] for n in range(total)]
    lines = []
    side = sketch(_made(folder / "c"), rows)
    with ThreadPoolExecutor(64) as pool:
        seconds = _timed(lambda: list(pool.map(side.write, singles)))
    lines.append(["64 threads, one row each", number(total / seconds)])

    async def push_all() -> None:
        waiting = asyncio.Semaphore(64)

        async def push(row: list[Any]) -> None:
            async with waiting:
                await tasks.online.online_write_batch_async(tasks.config, tasks.view, row, None)

        await asyncio.gather(*(push(row) for row in singles))

    tasks = sketch(_made(folder / "d"), rows)
    lines.append(["64 tasks, one row each", number(total / _timed(lambda: asyncio.run(push_all())))])
    for batch in (100, 1_000):
        side = sketch(_made(folder / f"e{batch}"), rows)
        parts = [batches[n : n + batch] for n in range(0, len(batches), batch)]
        seconds = _timed(lambda side=side, parts=parts: [side.write(part) for part in parts])
        lines.append([f"one thread, {batch} rows a batch", number(len(batches) / seconds)])
    print_table(["writers", "durable rows/s"], lines)


def _beside_reads(folder: Path, rows: UserRows, seconds: float) -> None:
    """Reads of 10 users, quiet and beside 20 pushes a second."""
    batches = rows.to_feast()
    side = sketch(_made(folder / "f"), rows)
    side.write(batches)
    quiet = _read_for(side, rows, seconds)
    stop = threading.Event()

    def push() -> None:
        for row in range(10**9):
            if stop.wait(1 / PUSHES_PER_SECOND):
                return
            side.write([batches[row % len(batches)]])

    pusher = threading.Thread(target=push)
    pusher.start()
    busy = _read_for(side, rows, seconds)
    stop.set()
    pusher.join()
    lines = [
        [name, number(np.median(times) * 1e6), number(np.percentile(times, 99) * 1e6)]
        for name, times in (("quiet", quiet), (f"beside {PUSHES_PER_SECOND} pushes/s", busy))
    ]
    ratio = np.percentile(busy, 99) / np.percentile(quiet, 99)
    lines.append(["ratio", number(np.median(busy) / np.median(quiet)), number(ratio)])
    print_table(["online_read of 10 users", "p50 us", "p99 us"], lines)


def _read_for(side: Backend, rows: UserRows, seconds: float) -> "np.ndarray[Any, np.dtype[np.float64]]":
    times, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        keys = entity_keys(rows.users(10, len(times)))
        times.append(_timed(lambda keys=keys: side.read(keys)))
    return np.array(times)


def _another(side: Backend) -> Backend:
    """The same store as a process that starts has it."""
    other = object.__new__(Backend)
    other.__dict__.update(side.__dict__)
    other.online = type(side.online)()
    return other


def _log_folder(folder: Path) -> Path:
    (fresh,) = folder.rglob("fresh")
    return fresh.parent


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _timed(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun
