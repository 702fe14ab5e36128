"""Reads of one entity from a snapshot that a process has just opened, and while another process seals.

A fresh process opens a view and reads one entity after the other: from the disk, once the kernel has been
told to drop the pages of the files, and from the page cache. It does so with the thread that goes through a
new snapshot, and without. Then one process opens the cold snapshot again and again, and reads one entity at
a random moment after that, which gives enough first reads for a p99.

Then a process reads at regular moments, in turns while nothing else goes on and while another process writes
and seals over and over, as `feast-sketch seal --watch` does. A latency counts from the moment at which the
read was due, so it has what the reader was late because the system ran others; the call alone has not. The
last table has the goals, what was measured, and whether it holds.
"""

import gc
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from feast import FeatureView
from feast.infra.online_stores.online_store import OnlineStore
from feast.repo_config import RepoConfig
from large_snapshot import large_sketch
from measure import Goal, number, print_goals, print_set_up, print_table, seconds
from startup import drop_pages, process, read_found
from stores import Backend, UserRows, entity_keys, set_up_of, sketch, temporary_folder

from feast_sketch_store.threads import lowered_priority
from feast_sketch_store.view import background

_READS = 1_000
_TIMES = ("since it was due", "the call alone", "how late it began")
_WITHIN_SECONDS = 0.4  # of an open, while the snapshot is read ahead
_RATE = 500.0  # reads a second, beside a seal


def run(*, quick: bool) -> None:
    num_users, gigabytes = (5_000, 0.05) if quick else (50_000, 1.0)
    with temporary_folder() as folder:
        rows = UserRows(num_users)
        store, file = large_sketch(folder, rows, int(gigabytes * 1e9))
        snapshot = Path(file.where())
        size = f"{snapshot.stat().st_size / 1e9:.2f} GB"
        _after_a_start(store, rows, size, rounds=1 if quick else 5)
        goals = _first_reads(store, rows, size, 10 if quick else 120)
    with temporary_folder() as folder:
        rows = UserRows(20_000 if quick else 200_000)
        store = sketch(folder, rows)
        store.write(rows.to_feast())
        goals += _beside_seals(store, rows, *((2, 2.0) if quick else (8, 4.0)))
    print_goals(goals)


def _after_a_start(store: Backend, rows: UserRows, size: str, rounds: int) -> None:
    folder = Path(store.online.storage(store.config, rows.view).location)  # type: ignore[attr-defined]
    samples: dict[tuple[str, bool], list[list[float]]] = {}
    for turn in range(rounds):
        for cache in ("cold", "warm"):
            for warms_up in (True, False):
                users = np.random.default_rng(turn).integers(0, rows.num_users, _READS).tolist()
                if cache == "cold":
                    drop_pages(folder)
                with process(_read_one_by_one, store, users, warms_up) as (_, pipe):
                    samples.setdefault((cache, warms_up), []).append(pipe.recv())
    print_set_up(
        f"a snapshot of {size}, a fresh process each time, {_READS:,} reads of one entity in a row, "
        f"once the view is open; {rounds} turns of each",
        "numpy",
        "feast",
    )
    lines = []
    for (cache, warms_up), turns in samples.items():
        times = np.array(turns) * 1e3
        quantiles = np.quantile(times[:, 1:], [0.5, 0.99, 1])
        firsts = np.quantile(times[:, 0], [0.5, 1])
        lines.append([cache, "yes" if warms_up else "no", *map(number, firsts), *map(number, quantiles)])
    print_table(
        [
            "page cache",
            "goes through it",
            "the first, ms",
            "longest first",
            "others, p50, ms",
            "p99",
            "longest",
        ],
        lines,
    )


def _read_one_by_one(
    pipe: Connection,
    online: OnlineStore,
    config: RepoConfig,
    view: FeatureView,
    users: list[int],
    warms_up: bool,
) -> None:
    """In a fresh process: the seconds of each read."""
    if not warms_up:
        background._MAX_SHARE = 0.0
    keys = [entity_keys([user]) for user in users]
    online.view(config, view).refresh()  # type: ignore[attr-defined]
    gc.collect()  # as a server does when it has started, or one of the reads would
    gc.freeze()
    pipe.send([seconds(online.online_read, config, view, key, ["viewed"])[0] for key in keys])


def _first_reads(store: Backend, rows: UserRows, size: str, number_of: int) -> list[Goal]:
    """The first read of a cold snapshot, at any moment after it was opened."""
    folder = Path(store.online.storage(store.config, rows.view).location)  # type: ignore[attr-defined]
    with process(_open_and_read, store, str(folder), rows.num_users, number_of) as (_, pipe):
        times = np.array(pipe.recv()) * 1e3
    p50, p99, longest = np.quantile(times, [0.5, 0.99, 1])
    print_set_up(
        f"a snapshot of {size}, opened {number_of} times in one process, each time from the disk; one read "
        f"of one entity, up to {_WITHIN_SECONDS:g} s later",
        "numpy",
        "feast",
    )
    print_table(["first read, p50, ms", "p99, ms", "longest, ms"], [list(map(number, (p50, p99, longest)))])
    return [Goal("first read of a cold snapshot, p99, ms", float(p99), 5)]


def _open_and_read(
    pipe: Connection,
    online: OnlineStore,
    config: RepoConfig,
    view: FeatureView,
    folder: str,
    num_users: int,
    number_of: int,
) -> None:
    """In a process of its own: the seconds of each first read."""
    random, times = np.random.default_rng(2), []
    for _ in range(number_of + 1):  # the first one of the process loads code
        drop_pages(Path(folder))
        opened_by = type(online)()
        opened = opened_by.view(config, view)  # type: ignore[attr-defined]
        opened.refresh()
        keys = entity_keys(random.integers(0, num_users, 1).tolist())
        time.sleep(random.uniform(0, _WITHIN_SECONDS))
        times.append(seconds(opened_by.online_read, config, view, keys, ["viewed"])[0])
        opened.close()
        del opened, opened_by
        gc.collect()  # mapped pages cannot be dropped
    pipe.send(times[1:])


def _beside_seals(store: Backend, rows: UserRows, turns: int, length: float) -> list[Goal]:
    times: dict[bool, list[tuple[float, float, float]]] = {False: [], True: []}
    with (
        process(_read_at_moments, store, rows.num_users) as (_, reader),
        process(_seal_over_and_over, store, rows) as (_, sealer),
    ):
        reader.recv()
        sealer.recv()
        num_seals = 0
        for turn in range(2 * turns):
            is_beside = turn % 2 == 1
            if is_beside:
                sealer.send(True)
            reader.send(length)
            times[is_beside] += reader.recv()
            if is_beside:
                sealer.send(False)
                num_seals += sealer.recv()
        reader.send(None)
        sealer.send(None)
    print_set_up(
        f"{set_up_of(rows.num_users)}; one reader, {_RATE:g} reads of one entity a second, {turns} turns of "
        f"{length:g} s each; the other process sealed {num_seals} times",
        "numpy",
        "feast",
    )
    quantiles = {is_beside: np.quantile(of, [0.5, 0.99, 0.999], axis=0) for is_beside, of in times.items()}
    lines = []
    for is_beside, name in ((False, "nothing"), (True, "seals")):
        for place, what in enumerate(_TIMES):
            own, quiet = quantiles[is_beside][:, place], quantiles[False][:, place]
            lines.append([name, what, *(number(q * 1e6) for q in own), number(own[1] / quiet[1])])
    print_table(["beside the reader", "time", "p50, us", "p99, us", "p99.9, us", "p99 / quiet"], lines)
    ratios = quantiles[True][1] / quantiles[False][1]
    return [
        Goal(f"p99 while another process seals against quiet, {what}", float(ratio), 1.3)
        for what, ratio in zip(_TIMES[:2], ratios, strict=False)
    ]


def _read_at_moments(
    pipe: Connection, online: OnlineStore, config: RepoConfig, view: FeatureView, num_users: int
) -> None:
    """In a process of its own: read as long as is asked for; of each, see `_TIMES`."""
    random = np.random.default_rng(1)
    read_found(online, config, view, entity_keys(list(range(num_users))))
    gc.collect()
    gc.freeze()
    pipe.send(True)
    while (length := pipe.recv()) is not None:
        keys = [entity_keys([int(user)]) for user in random.integers(0, num_users, int(length * _RATE))]
        times, start = [], time.perf_counter()
        for place, key in enumerate(keys):
            due = start + place / _RATE
            while (left := due - time.perf_counter()) > 0:
                time.sleep(left)
            began = time.perf_counter()
            read_found(online, config, view, key)
            done = time.perf_counter()
            times.append((done - due, done - began, began - due))
        pipe.send(times)


def _seal_over_and_over(
    pipe: Connection, online: OnlineStore, config: RepoConfig, view: FeatureView, rows: UserRows
) -> None:
    """In a process of its own: when told to, write rows and seal until told to stop; how often it sealed."""
    new_rows = rows.to_feast(0, rows.num_users // 20)
    pipe.send(True)
    with lowered_priority(leave_a_core=True):
        while pipe.recv():
            seals = 0
            while not pipe.poll():
                online.online_write_batch(config, view, new_rows, None)
                online.seal(config, view)  # type: ignore[attr-defined]
                seals += 1
            pipe.recv()
            pipe.send(seals)
