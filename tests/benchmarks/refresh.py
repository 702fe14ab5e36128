"""Opening and refreshing: a mapped snapshot of a gigabyte, a look that finds nothing, and what reads feel
while another process writes and seals.
"""

import multiprocessing
import shutil
import time
from multiprocessing.synchronize import Event
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from measure import interleaved, number, print_set_up, print_table, seconds
from stores import Backend, UserRows, entity_keys, set_up_of, sketch, temporary_folder

from feast_sketch_store.filters import ShiftingBloomFilter
from feast_sketch_store.snapshot.blocks import block_checksums
from feast_sketch_store.snapshot.files import SnapshotFolder, load
from feast_sketch_store.view import View

BATCH = 100  # entities of a read
SECONDS_BETWEEN_WRITES = 0.2


def run(*, quick: bool) -> None:
    num_users = 5_000 if quick else 50_000
    with temporary_folder() as folder:
        rows = UserRows(num_users)
        store = sketch(folder, rows, refresh_interval_seconds=0.5, seal_share=0.02, seal_min_rows=0)
        store.write(rows.to_feast())
        print_set_up(f"{set_up_of(num_users)}, sealed", "numpy", "pyarrow", "deltalake")
        _open(store, gigabytes=0.05 if quick else 1.0, rounds=3 if quick else 15)
        _tail(store, rows, turns=1 if quick else 5, turn_seconds=2.0 if quick else 12.0)


def _open(store: Backend, gigabytes: float, rounds: int) -> None:
    view: View = store.online.view(store.config, store.view)  # type: ignore[attr-defined]
    view.refresh()
    path = view.path.parent / "large"
    shutil.copytree(view.path, path)
    size = _enlarge(SnapshotFolder(path / "snapshots"), int(gigabytes * 1e9))
    codecs = view._codecs
    hashes = np.random.default_rng(1).integers(0, 2**64, (BATCH, 2), np.uint64)

    def open_it(_: int) -> View:
        opened = View(path, codecs)
        opened.refresh()
        return opened

    def open_and_read(_: int) -> None:
        open_it(0).read(hashes, ["viewed"])

    def check_all(_: int) -> None:
        for file in (path / "snapshots").glob("*.base.*"):
            load(file)

    large = open_it(0)
    times = interleaved(
        {
            f"open a snapshot of {size / 1e9:.2f} GB": open_it,
            f"open it and read {BATCH} entities": open_and_read,
            "the same file, every checksum": check_all,
            "refresh with nothing new": lambda _: large.refresh(),
        },
        lambda _: 0,
        rounds=rounds,
    )
    print_table(["step", "ms"], [[name, number(value * 1e3)] for name, value in times.items()])


def _enlarge(folder: SnapshotFolder, size_bytes: int) -> int:
    """Replace the newest snapshot by one with a larger table of random words: its size in bytes."""
    (snapshot,) = folder.list()
    description, arrays = load(snapshot.path)
    layer = description["layer"]
    head = len(arrays["table"]) - layer["num_words"]
    layer["num_words"] = size_bytes // 8
    words = np.random.default_rng(1).integers(0, 2**64, layer["num_words"] + head, np.uint64)
    words[-head:] = words[:head]
    bloom = ShiftingBloomFilter(words, layer["num_words"], (0, 0))
    arrays |= {"table": bloom.words, "table.checksums": block_checksums(words)}
    _, order = load(snapshot.order_path)
    larger = folder.write(snapshot.version, description, arrays, order)
    folder.publish(larger)
    folder.prune(1)
    return larger.path.stat().st_size


def _tail(store: Backend, rows: UserRows, turns: int, turn_seconds: float) -> None:
    """p50 and p99 of reads in this process, with and without a process that writes and seals."""
    store.read(entity_keys(rows.users(BATCH, 0)))
    context = multiprocessing.get_context("spawn")
    may_write, stop, counts = context.Event(), context.Event(), context.Array("q", 2)
    writer = context.Process(
        target=_write, args=(store.config.repo_path, rows.num_users, may_write, stop, counts)
    )
    writer.start()
    samples: dict[bool, list[float]] = {False: [], True: []}
    percentiles: dict[bool, list[Any]] = {False: [], True: []}
    batches = [rows.users(BATCH, seed) for seed in range(50)]
    try:
        while not counts[0]:  # it has made its first write, so it is up
            time.sleep(0.1)
        for turn in range(2 * turns):
            is_busy = bool(turn % 2)
            (may_write.set if is_busy else may_write.clear)()
            time.sleep(1.5)  # what was under way is over
            end, own = time.monotonic() + turn_seconds, []
            while time.monotonic() < end:
                keys = entity_keys(batches[len(own) % len(batches)])
                own.append(seconds(store.read, keys)[0])
            samples[is_busy] += own
            percentiles[is_busy].append(np.percentile(own, [50, 99]))
    finally:
        stop.set()
        may_write.set()
        writer.join()
    print(
        f"Reads of {BATCH} entities, {2 * turns} turns of {turn_seconds:.0f} s in alternation, medians of "
        f"the turns; another process writes {BATCH} rows every {SECONDS_BETWEEN_WRITES} s, in all "
        f"{counts[0]} commits and {counts[1]} seals:\n"
    )
    table = []
    for name, is_busy in (("quiet", False), ("while another process writes and seals", True)):
        p50, p99 = (median(column) for column in zip(*percentiles[is_busy], strict=True))
        table.append([name, f"{len(samples[is_busy]):,}", p50, p99])
    (_, _, *quiet), (_, _, *busy) = table
    print_table(
        ["reads", "number", "p50, us", "p99, us"],
        [[name, count, number(p50 * 1e6), number(p99 * 1e6)] for name, count, p50, p99 in table]
        + [["ratio", "", *(number(b / q) for b, q in zip(busy, quiet, strict=True))]],
    )


def _write(folder: Path, num_users: int, may_write: Event, stop: Event, counts: Any) -> None:
    """Another process: overwrites rows, and seals when a fiftieth of the view is unsealed."""
    rows = UserRows(num_users)
    store = sketch(folder, rows, refresh_interval_seconds=0.5, seal_share=0.02, seal_min_rows=0)
    later = np.timedelta64(40, "D")
    turn = 0
    while not stop.is_set():
        batch = [
            (key, values, event + later.item(), created)
            for key, values, event, created in rows.to_feast(turn * BATCH % (num_users - BATCH), BATCH)
        ]
        store.write(batch)
        turn += 1
        counts[0] = turn
        snapshots = store.online.folder(store.config, store.view) / "snapshots"  # type: ignore[attr-defined]
        names = {path.name for path in snapshots.glob("*.base.*")}
        counts[1] += bool(names - _seen)
        _seen.update(names)
        may_write.wait()
        time.sleep(SECONDS_BETWEEN_WRITES)


_seen: set[str] = set()
