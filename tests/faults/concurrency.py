"""Let several processes write and read one view, and check everything that the readers see.

    python tests/faults/concurrency.py --seconds 300 --writers 8 --readers 4 --seed 0

Writers write small batches, many of them late; they delete entities of their own, and seal by policy.
The first writer also seals and vacuums now and then. The event timestamp of a write, in microseconds, is
its number; no two writes have the same, so of a shared entity the highest number wins, whoever wrote it.
Each call that returned is noted in memory that all processes share. While they run

- nothing raises, and nothing is logged: no file of the view is damaged;
- a row is whole: all its values are of one write;
- a row of a shared entity never goes back to an older write;
- what was noted a refresh interval before a read began is in it: writes, and deletions;
- a writer reads what it wrote and deleted at once, and finds its own entities exactly as it left them.

In the end a new process finds the newest row of every entity and nothing else.
"""

import argparse
import json
import logging
import mmap
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import numpy as np
from workload import POLICIES, SETTINGS, START, delete_rows, in_child, is_whole, read_rows, write_rows

from feast_sketch_store.storage.local import LocalStorage
from feast_sketch_store.view.view import View

NUM_SHARED = 12
OWN_PER_WRITER = 3
MAX_COUNT = 2**20  # of the calls of one writer
REFRESH_SECONDS = 0.05
# Longest time, beyond the campaign's, until a process that does not end is taken for hung.
PATIENCE_SECONDS = 180
MAX_FAILURES = 5  # of one process; it stops then


class CountedView(View):
    """A view that counts its seals, those by policy too."""

    seals = 0

    def seal(self, as_delta: bool = False) -> bool:
        sealed = super().seal(as_delta)
        self.seals += sealed
        return sealed


class Board:
    """What the writers have done so far, in memory that forked processes share.

    ``newest`` is int64[writers, entities], the number of the newest acknowledged write of each writer to
    each entity since it last deleted it, 0 for none; ``deleted`` likewise the count of its last deletion.
    Each row has one writer, which stores it before it goes on.
    """

    def __init__(self, writers: int):
        self.writers = writers
        self.num_entities = NUM_SHARED + OWN_PER_WRITER * writers
        shape = (2, writers, self.num_entities)
        memory = mmap.mmap(-1, 8 * int(np.prod(shape)))
        self.newest, self.deleted = np.frombuffer(memory, np.int64).reshape(shape)

    def own(self, writer: int) -> range:
        """The entities that only this writer writes; those below ``NUM_SHARED`` are everyone's."""
        first = NUM_SHARED + OWN_PER_WRITER * writer
        return range(first, first + OWN_PER_WRITER)

    def number(self, milliseconds: int, count: int, writer: int) -> int:
        """A number of a write, ordered by time, that no other write has."""
        return (milliseconds * MAX_COUNT + count) * self.writers + writer

    def count_of(self, number: int) -> int:
        """Which of its writer's calls a write was."""
        return number // self.writers % MAX_COUNT


class Log(logging.Handler):
    """The failures of one process, which warnings of the package are too."""

    def __init__(self, name: str):
        super().__init__()
        self.process, self.failures = name, []
        logging.getLogger("feast_sketch_store").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.fail(f"logged: {record.getMessage()}")

    def fail(self, what: str) -> None:
        self.failures.append(f"{self.process}, {time.monotonic():.3f}: {what}")

    def check_row(
        self,
        when: str,
        entity: int,
        row: tuple[int, set[str]] | None,
        at_least: int,
        at_most: int | None = None,
    ) -> None:
        """Check that a row is whole, and its write not older or newer than these; no row is write 0."""
        number = row[0] if row is not None else 0
        if row is not None and not is_whole(entity, row):
            self.fail(f"{when}, entity {entity} is of several writes: {row}")
        if number < at_least:
            self.fail(f"{when}, entity {entity} is of write {number}, older than {at_least}")
        if at_most is not None and number > at_most:
            self.fail(f"{when}, entity {entity} is of write {number}, newer than {at_most}")

    def run(self, step: Callable[[], None], end: float) -> None:
        """Repeat a step until the time is over, or too much has failed."""
        while time.monotonic() < end and len(self.failures) < MAX_FAILURES:
            try:
                step()
            except Exception:
                self.fail(traceback.format_exc())


def writer_task(folder: Path, board: Board, writer: int, seed: int, end: float) -> tuple[Counter, Log]:
    """Write until the end, reading back each call's effect."""
    settings, policy = SETTINGS[writer % len(SETTINGS)], POLICIES[writer % len(POLICIES)]
    view, log = CountedView(LocalStorage(folder), settings, policy, REFRESH_SECONDS), Log(f"writer {writer}")
    chance = random.Random(f"{seed} {writer}")
    newest, deleted, own = board.newest[writer], board.deleted[writer], board.own(writer)
    counts: Counter[str] = Counter()
    start = time.monotonic()
    number = 0

    def step() -> None:
        nonlocal number
        number += 1
        if chance.random() < 0.15:
            entities = chance.sample(own, chance.randint(1, 2))
            delete_rows(view, entities)
            newest[entities], deleted[entities] = 0, number
            counts["deletes"] += 1
        else:
            entities = chance.sample([*range(NUM_SHARED), *own], chance.randint(1, 4))
            late = chance.randrange(2_000) if chance.random() < 0.4 else 0
            # The first seconds of all writers are the same, however late they came to start.
            milliseconds = max(0, int(1_000 * (time.monotonic() - start)) - late)
            write = board.number(milliseconds, number, writer)
            write_rows(view, entities, write, START + timedelta(microseconds=write))
            newest[entities] = np.maximum(newest[entities], write)
            counts["writes"] += 1
        if writer == 0 and chance.random() < 0.1:
            view.seal()
        if writer == 0 and chance.random() < 0.3:
            # Files that no commit names yet belong to writes under way: their age keeps them.
            view.vacuum()
            counts["vacuums"] += 1
        rows = read_rows(view, board.num_entities)
        for entity in (*range(NUM_SHARED), *own):
            at_most = None if entity < NUM_SHARED else newest[entity]
            log.check_row(f"after call {number}", entity, rows.get(entity), newest[entity], at_most)
        counts["rows"] += len(rows)

    log.run(step, end)
    view.settle()
    counts["seals"] = view.seals
    return counts, log


def reader_task(folder: Path, board: Board, reader: int, seed: int, end: float) -> tuple[Counter, Log]:
    """Read all entities until the end."""
    view = View(LocalStorage(folder), SETTINGS[0], POLICIES[0], REFRESH_SECONDS)
    log = Log(f"reader {reader}")
    chance = random.Random(f"{seed} reader {reader}")
    counts: Counter[str] = Counter()
    # What must be visible from a time on, by this process's clock: no tolerance is needed.
    due: deque[tuple[float, np.ndarray, np.ndarray]] = deque()
    newest = deleted = seen = np.zeros(board.num_entities, np.int64)

    def step() -> None:
        nonlocal newest, deleted, seen
        time.sleep(chance.random() * REFRESH_SECONDS)
        noted = board.newest.max(axis=0), board.deleted.max(axis=0)
        due.append((time.monotonic() + REFRESH_SECONDS, *noted))
        while due and due[0][0] <= time.monotonic():
            _, newest, deleted = due.popleft()
        rows = read_rows(view, board.num_entities)
        for entity in range(NUM_SHARED):
            log.check_row("once seen", entity, rows.get(entity), seen[entity])
            log.check_row("once acknowledged", entity, rows.get(entity), newest[entity])
        for entity in range(NUM_SHARED, board.num_entities):
            log.check_row("at any time", entity, rows.get(entity), 0)
            if entity in rows and board.count_of(rows[entity][0]) < deleted[entity]:
                log.fail(f"entity {entity} is of write {rows[entity][0]}, deleted in call {deleted[entity]}")
        seen = np.array([rows[e][0] if e in rows else 0 for e in range(board.num_entities)])
        counts["reads"] += 1
        counts["rows"] += len(rows)

    log.run(step, end)
    return counts, log


def final_task(folder: Path, board: Board) -> tuple[Counter, Log]:
    """Compare what a new process finds with what was acknowledged."""
    log, wanted = Log("in the end"), board.newest.max(axis=0)
    for what in ("unsealed", "sealed"):
        view = View(LocalStorage(folder), SETTINGS[0], POLICIES[0], 0.0)
        if what == "sealed":
            view.seal()
        rows = read_rows(view, board.num_entities)
        for entity in range(board.num_entities):
            log.check_row(what, entity, rows.get(entity), wanted[entity], wanted[entity])
    return Counter(), log


def start_child(task: Callable[[], tuple[Counter, Log]], seconds: float) -> tuple[int, Iterator[str]]:
    """Fork a child that reports its counts and failures as one line, or nothing if it hangs."""

    def run(report: int) -> None:
        signal.alarm(int(seconds + PATIENCE_SECONDS))
        try:
            counts, log = task()
            counts["failures"] = len(log.failures)
            done = counts, log.failures
        except Exception:
            done = Counter(failures=1), [traceback.format_exc()]
        with os.fdopen(report, "w") as pipe:
            pipe.write(json.dumps(done))

    return in_child(run)


def counts_of(children: list[tuple[int, Iterator[str]]]) -> Counter:
    """Wait for children, print what failed, and add up their counts."""
    total: Counter[str] = Counter()
    for pid, lines in children:
        text = "".join(lines)
        _, status = os.waitpid(pid, 0)
        counts, failures = json.loads(text) if text else ({"failures": 1}, [f"a child ended with {status}"])
        total.update(counts)
        print(*failures, sep="\n", end="\n" if failures else "")
    return total


def campaign(folder: Path, seconds: float, writers: int, readers: int, seed: int) -> int:
    """Run the processes for so many seconds, then look at what is left: the number of failures."""
    board = Board(writers)
    end = time.monotonic() + seconds
    tasks = [lambda n=n: writer_task(folder, board, n, seed, end) for n in range(writers)]
    tasks += [lambda n=n: reader_task(folder, board, n, seed, end) for n in range(readers)]
    total = counts_of([start_child(task, seconds) for task in tasks])
    total += counts_of([start_child(lambda: final_task(folder, board), 0)])
    names = ("writes", "deletes", "seals", "vacuums", "reads")
    print(
        *(f"{total[name]} {name}," for name in names),
        f"{total['rows']} rows checked, {total['failures']} failures",
    )
    return total["failures"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--readers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="concurrency-"))
    try:
        failures = campaign(folder / "view", options.seconds, options.writers, options.readers, options.seed)
        return min(1, failures)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
