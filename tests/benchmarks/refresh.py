"""Opening and refreshing: a mapped snapshot of a gigabyte, a poll that finds nothing, and what reads feel
while another process writes and seals.
"""

import multiprocessing
import time
from datetime import timedelta
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from large_snapshot import large_sketch
from measure import interleaved, number, print_set_up, print_table, seconds
from stores import Backend, UserRows, entity_keys, set_up_of, sketch, temporary_folder

from feast_sketch_store.snapshot.files import SnapshotFolder
from feast_sketch_store.snapshot.sealed import open_layers
from feast_sketch_store.storage.names import SNAPSHOTS_FOLDER
from feast_sketch_store.view.view import View

BATCH = 100  # entities of a read
SECONDS_BETWEEN_WRITES = 0.2
_IDLE, _OTHER_ROWS, _SAME_ROWS, _STOP = range(4)


def run(*, quick: bool) -> None:
    num_users = 5_000 if quick else 50_000
    with temporary_folder() as folder:
        rows = UserRows(num_users)
        store = _store(folder, rows)
        store.write(rows.to_feast())
        print_set_up(f"{set_up_of(num_users)}, sealed", "numpy", "pyarrow")
        _open(folder / "large", rows, gigabytes=0.05 if quick else 1.0, rounds=3 if quick else 15)
        _tail(store, rows, turns=1 if quick else 5, turn_seconds=2.0 if quick else 12.0)


def _open(folder: Path, rows: UserRows, gigabytes: float, rounds: int) -> None:
    store, snapshot = large_sketch(folder, rows, int(gigabytes * 1e9))
    view: View = store.online.view(store.config, store.view)  # type: ignore[attr-defined]
    hashes = np.random.default_rng(1).integers(0, 2**64, (BATCH, 2), np.uint64)

    def open_it(_: int) -> View:
        opened = View(view.storage, view.settings)
        opened.refresh()
        return opened

    def open_and_read(_: int) -> None:
        open_it(0).read(hashes, ["viewed"])

    large = open_it(0)
    times = interleaved(
        {
            f"open a snapshot of {snapshot.size_bytes() / 1e9:.2f} GB": open_it,
            f"open it and read {BATCH} entities": open_and_read,
            "the same file, every checksum": lambda _: open_layers(snapshot, check_all=True)[0],
            "refresh with nothing new": lambda _: large.refresh(),
        },
        lambda _: 0,
        rounds=rounds,
    )
    print_table(["step", "ms"], [[name, number(value * 1e3)] for name, value in times.items()])


def _tail(store: Backend, rows: UserRows, turns: int, turn_seconds: float) -> None:
    """p50 and p99 of reads in this process: alone, while another process writes and seals other rows (so the
    machine is as busy, and nothing is refreshed), and while it writes and seals these.
    """
    context = multiprocessing.get_context("spawn")
    mode, counts = context.Value("i", _OTHER_ROWS), context.Array("q", 2)
    writer = context.Process(target=_write, args=(store.config.repo_path, rows.num_users, mode, counts))
    writer.start()
    batches = [rows.users(BATCH, seed) for seed in range(50)]
    percentiles: dict[int, list[Any]] = {_IDLE: [], _OTHER_ROWS: [], _SAME_ROWS: []}
    numbers = dict.fromkeys(percentiles, 0)
    try:
        while not counts[0]:  # it has made its first write, so it is up
            time.sleep(0.1)
        for turn in range(len(percentiles) * turns):
            mode.value = now = turn % len(percentiles)
            time.sleep(1.5)  # what was under way is over
            end, samples = time.monotonic() + turn_seconds, []
            while time.monotonic() < end:
                keys = entity_keys(batches[len(samples) % len(batches)])
                samples.append(seconds(store.read, keys)[0])
            percentiles[now].append(np.percentile(samples, [50, 99]))
            numbers[now] += len(samples)
    finally:
        mode.value = _STOP
        writer.join()
    print(
        f"Reads of {BATCH} entities, {turns} turns of {turn_seconds:.0f} s each in alternation, medians of "
        f"the turns. The other process writes {BATCH} rows every {SECONDS_BETWEEN_WRITES} s and seals when a "
        f"fiftieth is unsealed: in all {counts[0]} commits and {counts[1]} seals of these rows.\n"
    )
    table = []
    names = ("quiet", "while another process writes and seals other rows", "the same, and these rows")
    for name, columns in zip(names, percentiles.values(), strict=True):
        table.append([name, *(median(column) * 1e6 for column in zip(*columns, strict=True))])
    quiet = table[0]
    print_table(
        ["reads", "number", "p50, us", "p99, us", "p50 / quiet", "p99 / quiet"],
        [
            [name, f"{count:,}", *map(number, (p50, p99, p50 / quiet[1], p99 / quiet[2]))]
            for (name, p50, p99), count in zip(table, numbers.values(), strict=True)
        ],
    )


def _write(folder: Path, num_users: int, mode: Any, counts: Any) -> None:
    """The other process."""
    rows = UserRows(num_users)
    other = folder / "other"
    other.mkdir()
    stores = {_SAME_ROWS: _store(folder, rows), _OTHER_ROWS: _store(other, rows)}
    stores[_OTHER_ROWS].write(rows.to_feast())
    seen: set[str] = set()
    for turn in count():
        now = mode.value
        if now == _STOP:
            break
        if now != _IDLE:
            first = turn * BATCH % (num_users - BATCH)
            later = [(k, v, event + timedelta(days=40), c) for k, v, event, c in rows.to_feast(first, BATCH)]
            stores[now].write(later)
        if now == _SAME_ROWS:
            view = stores[now].online.storage(stores[now].config, rows.view)  # type: ignore[attr-defined]
            names = {snapshot.name for snapshot in SnapshotFolder(view.within(SNAPSHOTS_FOLDER)).list()}
            counts[1] += bool(names - seen)
            seen |= names
        counts[0] += now == _SAME_ROWS or not counts[0]
        time.sleep(SECONDS_BETWEEN_WRITES)


def _store(folder: Path, rows: UserRows) -> Backend:
    return sketch(folder, rows, compaction={"share": 0.02, "min_rows": 0})
