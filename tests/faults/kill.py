"""Kill a writer at every step and look at what is left.

    python tests/faults/kill.py --kills 500
    python tests/faults/kill.py --kills 500 --lists

A child process writes, deletes, vacuums, rebuilds and drops a view that seals often, and reports each call
that returned. It is killed with SIGKILL: at the n-th line that it executes inside the package, with n all
over the workload, or, for what happens inside libraries, after a random time. A second child then opens the
store and compares every row with a reference. After each kill

- every acknowledged batch is there, whole, and the newest row of each entity wins;
- the batch that was under way is there whole or not at all;
- the store opens, reads, verifies, and goes on: the next round continues where the killed one stopped.

In every fifth round a sync fails first: another process, which reads all the time, has just seen what was
written, and the writer dies some lines later, before it could tell anybody. That reader looks again when the
next round is over, in which others take the numbers of what was cut off, and absorb them. It has to find what
a new process finds.

With ``--lists`` the view has lists (list_workload.py): adds, repeated adds, removals, replacements, clears.

Children are forked from a process that has only imported the package, so a round takes a tenth of a second.
"""

import argparse
import ast
import errno
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

from list_workload import LISTS
from workload import (
    CODECS,
    NEVER,
    SETTINGS,
    START,
    Workload,
    delete_rows,
    in_child,
    is_whole,
    read_rows,
    write_rows,
)

import feast_sketch_store
from feast_sketch_store.operations.verification import verify_view
from feast_sketch_store.storage import local
from feast_sketch_store.storage.base import Storage
from feast_sketch_store.storage.local import LocalStorage
from feast_sketch_store.view.rebuilding import rebuild
from feast_sketch_store.view.removal import remove_view
from feast_sketch_store.view.semantics import REPLACE
from feast_sketch_store.view.view import View

PACKAGE = str(Path(feast_sketch_store.__file__).parent)
NUM_ENTITIES = 12
WRITES_PER_ROUND = 4
FAILS_EVERY = 5  # rounds, a sync
LINES_AFTER_A_FAILURE = 60  # at most, until the writer is killed


@dataclass(frozen=True)
class Write:
    """One batch: which entities it writes or deletes, and the second of its event timestamps.

    One that ``rebuilds`` replaces all there is by its rows; one that ``vacuums`` does so first. One that
    ``drops`` removes the view instead.
    """

    number: int
    entities: tuple[int, ...]
    second: int
    deletes: bool
    vacuums: bool
    rebuilds: bool = False
    drops: bool = False


@dataclass
class Reference:
    """What the store must hold: per entity the second and number of its newest write."""

    newest: dict[int, tuple[int, int]] = field(default_factory=dict)

    def with_write(self, write: Write) -> "Reference":
        """The reference after one more write."""
        if write.drops:
            return Reference()
        newest = {} if write.rebuilds else dict(self.newest)
        if write.deletes and not write.rebuilds:
            return Reference({e: wrote for e, wrote in newest.items() if e not in write.entities})
        for entity in write.entities:
            newest[entity] = max(newest.get(entity, (-(10**9), -1)), (write.second, write.number))
        return Reference(newest)


def plan_write(number: int) -> Write:
    """The batch of a number, always the same: some come late on purpose, delete, vacuum or rebuild."""
    rng = random.Random(number)
    entities = tuple(sorted(rng.sample(range(NUM_ENTITIES), 4)))
    second = number - (rng.randrange(6) if rng.random() < 0.3 else 0)
    return Write(
        number, entities, second, deletes=number % 5 == 4, vacuums=number % 7 == 6, rebuilds=number % 9 == 8
    )


def plan_write_or_drop(number: int) -> Write:
    """The same, but for some that drop the view."""
    return replace(plan_write(number), drops=number % 11 == 10)


def apply_write(view: View, write: Write) -> None:
    """Write or delete a batch as the online store does, or drop the view."""
    if write.drops:
        remove_view(view.storage)
        return
    if write.vacuums:
        view.vacuum(orphan_age_seconds=0.0)
    event = START + timedelta(seconds=write.second)

    def fill(staging: Storage) -> Storage:
        write_rows(View(staging, view.settings, NEVER), write.entities, write.number, event)
        return staging

    if write.rebuilds:
        rebuild(view, fill)
    elif write.deletes:
        delete_rows(view, write.entities)
    else:
        write_rows(view, write.entities, write.number, event)


def read_view(view: View) -> dict[int, tuple[int, set[str]]]:
    """What `read_rows` gives of all entities."""
    return read_rows(view, NUM_ENTITIES)


def matches(rows: dict[int, tuple[int, set[str]]], reference: Reference) -> bool:
    """Whether the store holds what the reference says."""
    return rows.keys() == reference.newest.keys() and all(
        rows[entity][0] == number and is_whole(entity, rows[entity])
        for entity, (_, number) in reference.newest.items()
    )


ROWS = Workload(SETTINGS, CODECS, REPLACE, Reference(), plan_write, apply_write, read_view, matches)
# Of a folder, which goes in one step: in a bucket a drop is several, and is repeated.
ROWS_AND_DROPS = replace(ROWS, plan=plan_write_or_drop)


def kill_after_lines(lines: int) -> None:
    """Kill this process at a number of lines executed in the package from here on, by all threads."""
    left = lines

    def trace(frame: FrameType, event: str, _: object) -> object:
        nonlocal left
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line":
            left -= 1
            if left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    threading.settrace(trace)
    sys.settrace(trace)
    frame: FrameType | None = sys._getframe()
    while frame is not None:  # those that are under way
        frame.f_trace = trace
        frame = frame.f_back


@dataclass(frozen=True)
class FailingSync:
    """Which sync of a round fails, and how many lines later its process is killed."""

    call: int
    lines: int

    def arm(self, look: Callable[[], object]) -> None:
        """Let it fail in this process, after somebody has looked at what was written."""
        fdatasync, calls = local.fdatasync, 0

        def fail(descriptor: int) -> None:
            nonlocal calls
            calls += 1
            if calls != self.call:
                return fdatasync(descriptor)
            look()
            kill_after_lines(self.lines)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        local.fdatasync = fail


class Reader:
    """A process that reads one view when it is asked to, while writers come and go."""

    def __init__(self, folder: Path, work: Workload):
        asked, self._ask = os.pipe()

        def task(report: int) -> None:
            os.close(self._ask)
            view = work.open(LocalStorage(folder), 0, NEVER)
            with os.fdopen(asked) as questions:
                for _ in questions:
                    os.write(report, f"{work.read(view)!r}\n".encode())

        self._pid, self._told = in_child(task)
        os.close(asked)

    def read(self) -> Any:
        """All that it finds now."""
        os.write(self._ask, b"\n")
        return ast.literal_eval(next(self._told))

    def end(self) -> None:
        """Let it end."""
        os.close(self._ask)
        os.waitpid(self._pid, 0)


def lines_of_round(folder: Path, work: Workload) -> int:
    """How many lines a round executes inside the package."""
    lines = 0

    def trace(frame: FrameType, event: str, _: object) -> object:
        nonlocal lines
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        lines += event == "line"
        return trace

    def task(report: int) -> None:
        threading.settrace(trace)
        sys.settrace(trace)
        write_batches(folder, work, 0, 0, lambda number: None)
        sys.settrace(None)
        os.write(report, f"{lines}\n".encode())

    pid, told = in_child(task)
    (text,) = told
    os.waitpid(pid, 0)
    return int(text)


def write_batches(folder: Path, work: Workload, first: int, turn: int, tell: Callable[[int], object]) -> None:
    """Write the batches of a round, and tell of each that is written."""
    view = work.open(LocalStorage(folder), turn)
    for number in range(first, first + WRITES_PER_ROUND):
        work.apply(view, work.plan(number))
        tell(number)
    view.settle()


def write_round(
    folder: Path,
    work: Workload,
    first: int,
    turn: int,
    kill_at_line: int | None,
    fails: FailingSync | None = None,
    reader: Reader | None = None,
) -> tuple[int, Iterator[str]]:
    """Start a child that writes batches from number ``first`` on."""

    def task(report: int) -> None:
        if fails is not None and reader is not None:
            fails.arm(reader.read)
        elif kill_at_line is not None:
            kill_after_lines(kill_at_line)
        write_batches(folder, work, first, turn, lambda number: os.write(report, f"{number}\n".encode()))

    return in_child(task)


def check_round(folder: Path, work: Workload, references: list[Any]) -> int:
    """Compare the store with the references in a child: the index of the one that fits, or -1."""

    def task(report: int) -> None:
        rows = work.read(work.open(LocalStorage(folder)))
        fitting = [n for n, reference in enumerate(references) if work.matches(rows, reference)]
        problems = verify_view(LocalStorage(folder), work.codecs, semantics=work.semantics).problems
        found = fitting[-1] if fitting and not problems else -1
        os.write(report, f"{found}\n{rows} {problems}\n".encode())

    pid, lines = in_child(task)
    answer = list(lines)
    os.waitpid(pid, 0)
    if not answer:
        print("the store could not be opened")
        return -1
    if int(answer[0]) < 0:
        print("found:", answer[1].strip())
        print("wanted:", *references, sep="\n")
    return int(answer[0])


def campaign(folder: Path, work: Workload, kills: int, seed: int) -> int:
    """Run rounds until so many children were killed: the number of failed checks."""
    rng = random.Random(seed)
    reference = work.nothing
    number = rounds = killed = failures = 0
    longest = lines_of_round(folder.with_name("counted"), work)
    reader = Reader(folder, work)
    fails: FailingSync | None = None
    while killed < kills:
        rounds += 1
        had_failed, fails = fails is not None, None
        if rounds % FAILS_EVERY == 0:
            fails = FailingSync(rng.randrange(1, 13), rng.randrange(1, LINES_AFTER_A_FAILURE))
        by_line = fails is not None or killed % 4 != 3
        # Spread over the whole round; some rounds have more lines than the one that was counted.
        line = rng.randrange(1, longest + 400) if by_line else None
        pid, acknowledged = write_round(folder, work, number, rounds, line, fails, reader)
        if line is None:
            time.sleep(rng.random() * 0.4)
            os.kill(pid, signal.SIGKILL)
        done = [int(text) for text in acknowledged]
        _, status = os.waitpid(pid, 0)
        was_killed = os.WIFSIGNALED(status)
        killed += was_killed
        was_cut = was_killed or (fails is not None and status != 0)  # by the error itself
        if status and not was_cut:
            print(f"round at write {number}: the writer failed")
            failures += 1
        if by_line and was_killed and fails is None:
            longest = max(longest, line or 0)
        for write in done:
            reference = reference.with_write(work.plan(write))
        number += len(done)
        maybe = reference.with_write(work.plan(number)) if was_cut else reference
        found = check_round(folder, work, [reference, maybe])
        if found < 0:
            print(f"round at write {number}, killed at line {line}: lost, half-written or unreadable")
            failures += 1
            return failures
        if found == 1:
            reference = maybe
            number += 1 if was_cut else 0
        if fails is None and not work.matches(rows := reader.read(), reference):
            print(f"round at write {number}, after a failed sync: {had_failed}: who read on has {rows}")
            print("wanted:", reference, sep="\n")
            failures += 1
            break
    reader.end()
    print(f"{killed} kills, {number} batches written, {failures} failures, longest line {longest}")
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lists", action="store_true", help="write lists")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="kill-"))
    try:
        work = LISTS if options.lists else ROWS_AND_DROPS
        return min(1, campaign(folder / "view", work, options.kills, options.seed))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
