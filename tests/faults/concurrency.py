"""Let several processes write and read one view, and check everything that the readers see.

    python tests/faults/concurrency.py --seconds 300 --writers 8 --readers 4 --seed 0
    python tests/faults/concurrency.py --seconds 300 --writers 8 --readers 4 --seed 0 --drops

Writers write small batches, many of them late; they delete entities of their own, and seal by policy.
The first writer also seals and vacuums now and then. The event timestamp of a write, in microseconds, is
its number; no two writes have the same, so of a shared entity the highest number wins, whoever wrote it.
Each call that returned is noted in memory that all processes share. While they run

- nothing raises, and nothing is logged except, once by each writer, that rows came too late: no file of
  the view is damaged;
- a row is whole: all its values are of one write;
- a row of a shared entity never goes back to an older write;
- what was noted a refresh interval before a read began is in it: writes, and deletions;
- a writer reads what it wrote and deleted at once, and finds its own entities exactly as it left them.

With ``--drops`` another process drops the view again and again; some drops are killed and repeated. Then

- a call may raise a `StorageError` if a drop was under way meanwhile, and only then; a process may log that
  what it had read is gone until it has read what came after the drop;
- no row of a call that returned before a drop began is ever seen after it: by writers at once, by others
  from a refresh interval after the drop;
- all else holds of what was done between two drops.

In the end a new process finds the newest row of every entity since the last drop and nothing else, and
`verify` finds nothing.
"""

import argparse
import mmap
import os
import random
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path

import numpy as np
from crowd import REFRESH_SECONDS, CountedView, Crowd, Log, main
from kill import kill_after_lines
from numpy.typing import NDArray
from workload import CODECS, POLICIES, SETTINGS, START, delete_rows, in_child, is_whole, read_rows, write_rows

from feast_sketch_store.errors import StorageError
from feast_sketch_store.operations.verification import verify_view
from feast_sketch_store.storage.local import LocalStorage
from feast_sketch_store.view.removal import remove_view
from feast_sketch_store.view.view import View

NUM_SHARED = 12
OWN_PER_WRITER = 3
MAX_COUNT = 2**20  # of the calls of one writer
MAX_DROPS = 4_000
BETWEEN_DROPS_SECONDS = 0.6  # at most
AFTER_DROPS_SHARE = 0.15  # of the time, until the end, so that something is left
LINES_OF_DROP = 80  # within which some are killed

Rows = dict[int, tuple[int, set[str]]]


class Board:
    """What was done so far, in memory that forked processes share.

    An epoch is the time between two drops; epoch 0 is that before the first. ``newest`` is
    int64[epochs, writers, entities], the number of the newest acknowledged write of each writer to each
    entity in an epoch since it last deleted it, 0 for none; ``deleted`` likewise the count of its last
    deletion; ``possible`` the newest write while the drop before the epoch was under way. ``calls`` is
    int64[writers], how many calls of each have returned, and ``gone``, int64[epochs, writers], how many had
    when the drop began. Each number has one writer, which stores it before it goes on.
    """

    def __init__(self, writers: int):
        self.writers = writers
        self.num_entities = NUM_SHARED + OWN_PER_WRITER * writers
        epochs = MAX_DROPS + 1
        self.newest, self.deleted, self.possible = _shared(3, epochs, writers, self.num_entities)
        self.calls, self.gone = _shared(writers), _shared(epochs, writers)
        self._drops = _shared(2)  # how many began, and how many are done

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

    def epoch(self) -> int | None:
        """The epoch; None while the view is dropped."""
        done = int(self._drops[1])
        return done if self._drops[0] == done else None

    def lasts(self, epoch: int | None) -> bool:
        """Whether no drop has begun since `epoch` gave this."""
        return epoch is not None and bool(self._drops[0] == epoch)

    def drop(self, remove: Callable[[], None]) -> None:
        """Begin another epoch; only one process does."""
        number = int(self._drops[0]) + 1
        self.gone[number] = self.calls
        self._drops[0] = number
        remove()
        self._drops[1] = number

    def note(self, epoch: int | None, writer: int, count: int, entities: Sequence[int], write: int) -> None:
        """A call that began in an epoch has returned; ``write`` is 0 of a deletion."""
        self.calls[writer] = count
        place = epoch if self.lasts(epoch) else int(self._drops[0]), writer, entities
        if not self.lasts(epoch):
            self.possible[place] = np.maximum(self.possible[place], write)
        elif write:
            self.newest[place] = np.maximum(self.newest[place], write)
        else:
            self.newest[place] = self.possible[place] = 0
            self.deleted[place] = count

    def is_gone(self, epoch: int, number: int) -> bool:
        """Whether a write returned before the drop that began the epoch."""
        return bool(self.count_of(number) <= self.gone[epoch, number % self.writers])


def _shared(*shape: int) -> NDArray[np.int64]:
    """Zeros; pages that nobody writes take no memory."""
    return np.frombuffer(mmap.mmap(-1, 8 * int(np.prod(shape))), np.int64).reshape(shape)


def check_whole(log: Log, when: str, rows: Rows) -> None:
    """Check what holds at any time."""
    for entity, row in rows.items():
        if not is_whole(entity, row):
            log.fail(f"{when}, entity {entity} is of several writes: {row}")


def check_row(
    log: Log, when: str, rows: Rows, entity: int, at_least: int, at_most: int | None = None
) -> None:
    """Check that the write of a row is not older or newer than these; no row is write 0."""
    number = rows[entity][0] if entity in rows else 0
    if number < at_least:
        log.fail(f"{when}, entity {entity} is of write {number}, older than {at_least}")
    if at_most is not None and number > at_most:
        log.fail(f"{when}, entity {entity} is of write {number}, newer than {at_most}")


def check_gone(log: Log, when: str, rows: Rows, board: Board, epoch: int) -> None:
    """Check that nothing is there that was dropped."""
    for entity, (number, _) in rows.items():
        if board.is_gone(epoch, number):
            log.fail(f"{when}, entity {entity} is of write {number}, which was dropped before")


def writer_task(folder: Path, board: Board, writer: int, seed: int, end: float) -> tuple[Counter[str], Log]:
    """Write until the end, reading back each call's effect."""
    settings, policy = SETTINGS[writer % len(SETTINGS)], POLICIES[writer % len(POLICIES)]
    view = CountedView(LocalStorage(folder), settings, policy, REFRESH_SECONDS)
    log = Log(f"writer {writer}", lambda: not board.lasts(read_in), is_late=True)
    rng = random.Random(f"{seed} {writer}")
    own = board.own(writer)
    counts: Counter[str] = Counter()
    start = time.monotonic()
    count, read_in = 0, board.epoch()  # in which epoch the view was read

    def call() -> tuple[str, int, list[int], Callable[[], None]]:
        """The next call: what it is, and the number of its write."""
        if rng.random() < 0.15:
            entities = rng.sample(own, rng.randint(1, 2))
            return "deletes", 0, entities, partial(delete_rows, view, entities)
        entities = rng.sample([*range(NUM_SHARED), *own], rng.randint(1, 4))
        late = rng.randrange(2_000) if rng.random() < 0.4 else 0
        # The first seconds of all writers are the same, however late they came to start.
        milliseconds = max(0, int(1_000 * (time.monotonic() - start)) - late)
        write = board.number(milliseconds, count, writer)
        event = START + timedelta(microseconds=write)
        return "writes", write, entities, partial(write_rows, view, entities, write, event)

    def tidy() -> None:
        if writer == 0 and rng.random() < 0.1:
            view.seal()
        if writer == 0 and rng.random() < 0.3:
            # Files that no commit names yet belong to writes under way: their age keeps them.
            view.vacuum()
            counts["vacuums"] += 1

    def check(epoch: int) -> None:
        nonlocal read_in
        rows, when = read_rows(view, board.num_entities), f"after call {count}"
        newest, possible = board.newest[epoch, writer], board.possible[epoch, writer]
        if not board.lasts(epoch):
            return
        read_in = epoch
        check_whole(log, when, rows)
        check_gone(log, when, rows, board, epoch)
        for entity in (*range(NUM_SHARED), *own):
            at_most = None if entity < NUM_SHARED else max(newest[entity], possible[entity])
            check_row(log, when, rows, entity, newest[entity], at_most)
        counts["rows"] += len(rows)

    def step() -> None:
        nonlocal count
        count += 1
        epoch = board.epoch()
        what, write, entities, act = call()
        try:
            act()
            counts[what] += 1
        except StorageError:
            if board.lasts(epoch):
                raise
            counts["refused"] += 1
        board.note(epoch, writer, count, entities, write)
        try:
            tidy()
            if epoch is not None and board.lasts(epoch):
                check(epoch)
        except StorageError:
            if board.lasts(epoch):
                raise
            counts["refused"] += 1

    log.run(step, end)
    view.settle()
    counts["seals"] = view.seals
    return counts, log


def reader_task(folder: Path, board: Board, reader: int, seed: int, end: float) -> tuple[Counter[str], Log]:
    """Read all entities until the end."""
    view = View(LocalStorage(folder), SETTINGS[0], POLICIES[0], REFRESH_SECONDS)
    log = Log(f"reader {reader}", lambda: not board.lasts(read_in))
    rng = random.Random(f"{seed} reader {reader}")
    counts: Counter[str] = Counter()
    # What must be visible from a time on, by this process's clock: no tolerance is needed.
    due: deque[tuple[float, NDArray[np.int64], NDArray[np.int64]]] = deque()
    nothing = np.zeros(board.num_entities, np.int64)
    newest = deleted = seen = nothing
    known, is_over = board.epoch(), 0.0  # the epoch, and when the rows of the one before are seen no more
    read_in = known

    def step() -> None:
        nonlocal newest, deleted, seen, known, is_over, read_in
        time.sleep(rng.random() * REFRESH_SECONDS)
        epoch = board.epoch()
        if epoch != known:
            known, is_over = epoch, time.monotonic() + REFRESH_SECONDS
            newest = deleted = seen = nothing
            due.clear()
        if epoch is not None:
            noted = board.newest[epoch].max(axis=0), board.deleted[epoch].max(axis=0)
            due.append((time.monotonic() + REFRESH_SECONDS, *noted))
        while due and due[0][0] <= time.monotonic():
            _, newest, deleted = due.popleft()
        is_past = is_over <= time.monotonic()
        try:
            rows = read_rows(view, board.num_entities)
        except StorageError:
            if board.lasts(epoch):
                raise
            counts["refused"] += 1
            return
        counts["reads"] += 1
        counts["rows"] += len(rows)
        check_whole(log, "at any time", rows)
        if epoch is None or not is_past or not board.lasts(epoch):
            return
        read_in = epoch
        check_gone(log, "after a drop", rows, board, epoch)
        for entity in range(NUM_SHARED):
            check_row(log, "once seen", rows, entity, seen[entity])
            check_row(log, "once acknowledged", rows, entity, newest[entity])
        for entity in range(NUM_SHARED, board.num_entities):
            if entity in rows and board.count_of(rows[entity][0]) < deleted[entity]:
                log.fail(f"entity {entity} is of write {rows[entity][0]}, deleted in call {deleted[entity]}")
        seen = np.array([rows[e][0] if e in rows else 0 for e in range(board.num_entities)])

    log.run(step, end)
    return counts, log


def drops_task(folder: Path, board: Board, seed: int, end: float) -> tuple[Counter[str], Log]:
    """Drop the view now and then."""
    log, rng = Log("drops"), random.Random(f"{seed} drops")
    counts: Counter[str] = Counter()

    def remove() -> None:
        if rng.random() < 0.25:
            counts["killed drops"] += was_killed(folder, rng.randrange(1, LINES_OF_DROP))
        remove_view(LocalStorage(folder))

    def step() -> None:
        time.sleep(rng.random() * BETWEEN_DROPS_SECONDS)
        board.drop(remove)
        counts["drops"] += 1

    log.run(step, end)
    return counts, log


def was_killed(folder: Path, line: int) -> bool:
    """Drop the view in a process that is killed at a line of the package, if it comes so far."""

    def task(report: int) -> None:
        kill_after_lines(line)
        remove_view(LocalStorage(folder))

    pid, _ = in_child(task)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


def final_task(folder: Path, board: Board) -> tuple[Counter[str], Log]:
    """Compare what a new process finds with what was acknowledged."""
    log, epoch = Log("in the end"), board.epoch()
    assert epoch is not None, "the last drop failed"
    newest, possible = board.newest[epoch].max(axis=0), board.possible[epoch].max(axis=0)
    for what in ("unsealed", "sealed"):
        view = View(LocalStorage(folder), SETTINGS[0], POLICIES[0], 0.0)
        if what == "sealed":
            view.seal()
        rows = read_rows(view, board.num_entities)
        check_whole(log, what, rows)
        for entity in range(board.num_entities):
            at_most = max(newest[entity], possible[entity])
            check_row(log, what, rows, entity, newest[entity], at_most)
        for problem in verify_view(LocalStorage(folder), CODECS).problems:
            log.fail(f"{what}: {problem}")
    return Counter(left=len(rows)), log


def gather(folder: Path, options: argparse.Namespace, end: float) -> Crowd:
    """The processes, and what a new one checks in the end."""
    board, seed = Board(options.writers), options.seed
    tasks = [partial(writer_task, folder, board, n, seed, end) for n in range(options.writers)]
    tasks += [partial(reader_task, folder, board, n, seed, end) for n in range(options.readers)]
    names = ["writes", "deletes", "seals", "vacuums", "reads"]
    if options.drops:
        last_drop = end - AFTER_DROPS_SHARE * options.seconds
        tasks.append(partial(drops_task, folder, board, seed, last_drop))
        names += ["drops", "killed drops", "refused", "excused", "left"]
    return Crowd(tasks, partial(final_task, folder, board), names, "rows")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--drops", action="store_true", help="drop the view meanwhile")
    sys.exit(main(parser, gather))
