"""Random interleavings of several processes on one view, step by step, where a step is a file operation.

Each process is a thread that waits before every operation on files; one of them goes on at a time, chosen at
random. Writers write and delete entities; sealers seal, absorb, vacuum and rebuild; readers read; one may
drop the view. Files are in a folder, whose leases keep others out; objects; or objects of which nobody holds
a lease, as when processes lose theirs. A history is the same again for the same seed.

- Only what meets a drop raises, a `StorageError` or, of objects, a `DamagedFileError`.
- A read shows of each entity the newest row of the writes that returned before the read began, or a row of a
  write that was under way; nothing of what was deleted or dropped before.
- In the end all of it is there, unsealed and sealed, and `verify` finds no problem.

    python tests/faults/interleavings.py --seconds 600 --seed 0
    python tests/faults/interleavings.py --seed 0 --first 17 --most 1      # one history again
"""

import argparse
import logging
import math
import random
import secrets
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

sys.path.insert(0, str(Path(__file__).parents[2]))

import pytest
from workload import CODECS, NEVER, SETTINGS, START, delete_rows, is_whole, read_rows, write_rows

from feast_sketch_store import threads
from feast_sketch_store.errors import DamagedFileError, StorageError
from feast_sketch_store.operations.verification import verify_view
from feast_sketch_store.row_log import wal_objects
from feast_sketch_store.storage.base import FileInfo, Storage
from feast_sketch_store.view.rebuilding import rebuild
from feast_sketch_store.view.removal import remove_view
from feast_sketch_store.view.view import View
from tests.storage import memory

SHARED = range(4)  # entities that all writers write and nobody deletes
OWN_PER_WRITER = 2
STUCK_SECONDS = 60.0
# Errors that other processes and the clock may cause.
REFUSED = ("may not count", "is sealing", "no rows to rebuild from")
WITHOUT_LEASES = ("changed the row log meanwhile", "is damaged: it is missing")  # of two who seal at once
JUMP_SECONDS = 400.0  # longer than a commit to a bucket may take


class Turns:
    """Lets one process at a time do one operation on files."""

    def __init__(self, rng: random.Random, is_traced: bool):
        self._rng = rng
        self._stays = rng.choice((0.0, 0.5, 0.9, 0.98))  # how likely the same process goes on
        self.jumps = rng.choice((0.0, 0.0, 0.002))  # how likely the clock jumps
        self._changed = threading.Condition()
        self._waiting: dict[str, list[tuple[threading.Lock, str]]] = {}
        self._running: set[str] = set()
        self.step = 0
        self.is_traced = is_traced
        self.seconds = time.time()

    def wait(self, process: str, what: str) -> None:
        """Called before each operation of a process; those of processes that are not `run` do not wait."""
        if process not in self._running:
            return
        turn = threading.Lock()
        turn.acquire()
        with self._changed:
            self._waiting[process].append((turn, what))
            self._changed.notify_all()
        turn.acquire()

    def run(self, processes: dict[str, Callable[[], None]]) -> None:
        """Run processes to their ends."""
        self._running = {*processes}
        self._waiting = {process: [] for process in processes}
        started = [threading.Thread(target=self._run, args=each, daemon=True) for each in processes.items()]
        for thread in started:
            thread.start()
        last = ""
        while True:
            with self._changed:
                ready = self._changed.wait_for(self._all_wait, STUCK_SECONDS)
                if not ready:
                    raise TimeoutError(f"{self._running} do not go on")
                if not self._running:
                    return
                if last not in self._running or self._rng.random() >= self._stays:
                    last = self._rng.choice(sorted(self._running))
                self.step += 1
                self.seconds += 1e-3 + JUMP_SECONDS * (self._rng.random() < self.jumps)
                turn, what = self._waiting[last].pop(0)
                if self.is_traced:
                    print(f"{self.step:6} {last}: {what}")
                turn.release()

    def _all_wait(self) -> bool:
        return all(self._waiting[process] for process in self._running)

    def _run(self, process: str, work: Callable[[], None]) -> None:
        try:
            work()
        finally:
            with self._changed:
                self._running.discard(process)
                self._changed.notify_all()


class Stepped(memory.OwnProcess):
    """A storage in memory, each of whose operations waits for its turn."""

    turns: Turns
    process = ""
    are_leases_kept = True

    def of(self, turns: Turns, process: str, are_leases_kept: bool) -> "Stepped":
        """The storage as a process sees it."""
        self.turns, self.process, self.are_leases_kept = turns, process, are_leases_kept
        return self

    def within(self, folder: str) -> "Stepped":
        return super().within(folder).of(self.turns, self.process, self.are_leases_kept)

    def _wait(self, what: str, name: str) -> None:
        self.turns.wait(self.process, f"{what} {self.prefix}{name}")

    def list(self, folder: str = "", after: str = "") -> Sequence[str]:
        self._wait("list", folder)
        return super().list(folder, after)

    def info(self, name: str) -> FileInfo | None:
        self._wait("info", name)
        return super().info(name)

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        self._wait("read", name)
        return super().read(name, start, length)

    @contextmanager
    def create(self, name: str) -> Iterator[BinaryIO]:
        self._wait("create", name)
        with super().create(name) as file:
            yield file
            self._wait("create, done", name)

    def replace(self, name: str, content: bytes) -> None:
        self._wait("replace", name)
        super().replace(name, content)

    def replace_known(self, name: str, content: bytes, token: str) -> bool:
        self._wait("replace_known", name)
        with self.files.changed:
            file = self.files.files.get(self._key(name))
            if file is None or str(file[0]) != token:
                return False
            self._put(name, bytes(content))
            return True

    def append(self, name: str, at: int, pieces: Iterable[bytes | memoryview]) -> None:
        self._wait("append", name)
        super().append(name, at, pieces)

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            self._wait("delete", name)
            super().delete([name])

    def delete_all(self) -> None:
        self._wait("delete_all", "")
        with self.files.changed:
            names = [name for name in self.files.files if name.startswith(self.prefix)]
        self.delete([name.removeprefix(self.prefix) for name in names])

    @contextmanager
    def lease(self, name: str, wait: bool = False, create: bool = True) -> Iterator[bool]:
        if not self.are_leases_kept:
            yield True
            return
        key = self._key(name)
        self._wait("lease", name)
        while not (is_mine := key not in self.files.held) and wait:
            self._wait("lease", name)
        if is_mine:
            self.files.held.add(key)
        try:
            yield is_mine
        finally:
            self._wait("release", name)
            if is_mine:
                self.files.held.remove(key)


class Folder(Stepped, memory.MemoryStorage):
    """A folder."""


class Bucket(Stepped, memory.ObjectsInMemory):
    """Objects."""


@dataclass
class Call:
    """A write, a deletion or a drop; steps at which it began and had returned."""

    what: str
    entities: Sequence[int]
    number: int
    began: int
    ended: float = math.inf


class Board:
    """What was done so far, and what reads must show of it."""

    def __init__(self, turns: Turns, are_leases_kept: bool):
        self.turns = turns
        self.refused = REFUSED if are_leases_kept else (*REFUSED, *WITHOUT_LEASES)
        self.calls: list[Call] = []
        self.counts: Counter[str] = Counter()

    def do(self, what: str, act: Callable[[], Any], entities: Sequence[int] = (), number: int = 0) -> None:
        """Do something and note it."""
        call = Call(what, entities, number, self.turns.step)
        self.calls.append(call)
        self._tell(f"{what} {list(entities)} {number or ''} begins")
        try:
            act()
        except (StorageError, DamagedFileError) as error:
            if not self._meets_a_drop(call.began) and not self._may_be_refused(str(error)):
                raise
            self.counts["refused"] += 1
            return
        call.ended = self.turns.step
        self._tell(f"{what} of step {call.began} is done")
        self.counts[what] += 1

    def _tell(self, what: str) -> None:
        if self.turns.is_traced:
            print(f"{self.turns.step:6} {what}")

    def _may_be_refused(self, error: str) -> bool:
        """Whether an error is one that other processes or the clock may cause."""
        return any(text in error for text in self.refused)

    def _meets_a_drop(self, began: int) -> bool:
        return any(call.what == "drop" and call.ended >= began for call in self.calls)

    def read(self, view: View, num_entities: int, who: str) -> None:
        """Read all entities, and check what is shown."""
        began = self.turns.step
        try:
            rows = read_rows(view, num_entities)
        except (StorageError, DamagedFileError):
            if not self._meets_a_drop(began):
                raise
            self.counts["refused"] += 1
            return
        self.counts["read"] += 1
        for entity in range(num_entities):
            shown = rows.get(entity)
            assert shown is None or is_whole(entity, shown), f"{who}: {entity} is {shown}"
            self._check(entity, 0 if shown is None else shown[0], began, who)

    def _check(self, entity: int, shown: int, began: int, who: str) -> None:
        writes = [call for call in self.calls if call.what == "write" and entity in call.entities]
        ends = [
            call
            for call in self.calls
            if call.what == "drop" or call.what == "delete" and entity in call.entities
        ]
        done = [w for w in writes if w.ended <= began and not any(end.ended >= w.began for end in ends)]
        gone = {w.number for w in writes if any(w.ended <= end.began and end.ended <= began for end in ends)}
        newest = max((w.number for w in done), default=0)
        what = f"{who} at {began}: entity {entity} shows {shown}, of {[w for w in writes]}, {ends}"
        assert shown >= newest, what
        assert shown == 0 or shown in {w.number for w in writes} - gone, what


def history(name: str, counts: Counter[str], only_leases: bool, is_traced: bool) -> None:
    """One history; raises what went wrong."""
    rng = random.Random(name)
    turns = Turns(rng, is_traced)
    files = memory.Files()
    kind, are_leases_kept = rng.choice([(Folder, True), (Bucket, True), (Bucket, only_leases)])
    board = Board(turns, are_leases_kept)
    num_shards = rng.choice((1, 1, 2))
    num_writers = rng.choice((1, 2, 3))
    num_entities = len(SHARED) + OWN_PER_WRITER * num_writers
    numbers = iter(rng.sample(range(1, 10_000), 1_000))
    errors: list[str] = []

    def opened(process: str) -> View:
        storage = kind(files).of(turns, process, are_leases_kept)
        settings = replace(rng.choice(SETTINGS), num_shards=num_shards)
        return View(storage, settings, NEVER, 0.0)

    def write(view: View, entities: Sequence[int]) -> None:
        number = next(numbers)
        event = START + timedelta(seconds=number)
        board.do("write", lambda: write_rows(view, entities, number, event), entities, number)

    def writer(process: str, choices: random.Random, own: Sequence[int]) -> None:
        view = opened(process)
        for _ in range(choices.randint(1, 4)):
            if choices.random() < 0.7:
                write(view, choices.sample([*SHARED, *own], choices.randint(1, 4)))
            else:
                gone = choices.sample(own, 1)
                board.do("delete", lambda: delete_rows(view, gone), gone)
            board.read(view, num_entities, process)

    def rebuild_from(view: View, rows: Callable[[], dict[int, int]], keep: bool) -> None:
        def fill(staging: Storage) -> Storage:
            filled = View(staging, SETTINGS[0], NEVER, 0.0)
            for entity, number in rows().items():
                write_rows(filled, [entity], number, START + timedelta(seconds=number))
            return staging

        rebuild(view, fill, keep=keep)

    def replace_rows(view: View) -> None:
        """By the same rows."""
        rows = lambda: {entity: number for entity, (number, _) in read_rows(view, num_entities).items()}
        board.do("rebuild", lambda: rebuild_from(view, rows, keep=False))

    def add_rows(view: View) -> None:
        number = next(numbers)
        rows = lambda: dict.fromkeys(SHARED, number)
        board.do("write", lambda: rebuild_from(view, rows, keep=True), SHARED, number)

    def sealer(process: str, choices: random.Random) -> None:
        view = opened(process)
        for _ in range(choices.randint(1, 4)):
            what = choices.choices(
                ["seal", "seal a delta", "absorb", "vacuum", "rebuild", "add"], [4, 2, 2, 2, 1, 1]
            )[0]
            if what == "rebuild":
                replace_rows(view)
            elif what == "add":
                add_rows(view)
            else:
                act = {
                    "seal": view.seal,
                    "seal a delta": partial(view.seal, as_delta=True),
                    "absorb": view.absorb,
                    "vacuum": view.vacuum,
                }
                board.do(what, act[what])
            if choices.random() < 0.5:
                board.read(view, num_entities, process)
            if choices.random() < 0.3:
                view = opened(process)

    def reader(process: str, choices: random.Random) -> None:
        view = opened(process)
        for _ in range(choices.randint(2, 8)):
            board.read(view, num_entities, process)
            if choices.random() < 0.2:
                view = opened(process)

    def dropper(process: str, choices: random.Random) -> None:
        for _ in range(choices.randint(1, 2)):
            board.do("drop", lambda: remove_view(kind(files).of(turns, process, are_leases_kept)))

    def noted(work: Callable[..., None], process: str, *more: Any) -> Callable[[], None]:
        def run() -> None:
            try:
                work(process, random.Random(f"{name} {process}"), *more)
            except BaseException:
                errors.append(f"{process}:\n{traceback.format_exc()}")

        return run

    processes = {}
    for n in range(num_writers):
        own = range(num_entities)[len(SHARED) + OWN_PER_WRITER * n :][:OWN_PER_WRITER]
        processes[f"writer {n}"] = noted(writer, f"writer {n}", own)
    for n in range(rng.choice((1, 2, 2))):
        processes[f"sealer {n}"] = noted(sealer, f"sealer {n}")
    for n in range(rng.choice((0, 1))):
        processes[f"reader {n}"] = noted(reader, f"reader {n}")
    if are_leases_kept and rng.random() < 0.3:
        processes["dropper"] = noted(dropper, "dropper")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "time", SimpleNamespace(time=lambda: turns.seconds))
        patch.setattr(wal_objects, "time", SimpleNamespace(sleep=lambda seconds: None))
        patch.setattr(wal_objects, "_boot_time", lambda: turns.seconds)
        patch.setattr(threads.Threads, "submit", at_once)
        patch.setattr(secrets, "token_hex", lambda n=16: rng.randbytes(n).hex())
        patch.setattr(secrets, "token_bytes", rng.randbytes)
        turns.run(processes)
        noted(lambda process, choices: at_last(board, opened, num_entities), "at last")()
    counts.update(board.counts)
    counts["steps"] += turns.step
    if errors:
        raise AssertionError(
            "\n".join([f"{kind.__name__}, leases {are_leases_kept}, {num_shards} shards", *errors])
        )


def at_last(board: Board, opened: Callable[[str], View], num_entities: int) -> None:
    """Check what is there in the end."""
    view = opened("at last")
    board.read(view, num_entities, "unsealed")
    view.seal()
    for who, each in (("sealed", view), ("opened anew", opened("at last"))):
        board.read(each, num_entities, who)
    for number, shard in enumerate(view.shards.values()):
        found = verify_view(shard.storage, CODECS, shard=(number, len(view.shards)))
        assert found.problems == [], found.problems


def at_once(self: threads.Threads, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
    """A submitted task, done by the thread that submits it."""
    done: Future[Any] = Future()
    try:
        done.set_result(fn(*args, **kwargs))
    except Exception as error:
        done.set_exception(error)
    return done


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first history")
    parser.add_argument("--most", type=int, help="histories to run; all that the time allows by default")
    parser.add_argument("--leases", action="store_true", help="only storages that keep leases")
    parser.add_argument("--trace", action="store_true", help="print each operation")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    counts: Counter[str] = Counter()
    end, number = time.monotonic() + options.seconds, options.first
    while time.monotonic() < end and (options.most is None or number < options.first + options.most):
        try:
            history(f"{options.seed} {number}", counts, options.leases, options.trace)
        except Exception:  # whatever it is, the campaign goes on
            print(f"history {number}:", traceback.format_exc(), sep="\n", flush=True)
            counts["failures"] += 1
        counts["histories"] += 1
        number += 1
    failures, histories = (counts.pop(what, 0) for what in ("failures", "histories"))
    print(", ".join(f"{count:,} {what}" for what, count in sorted(counts.items())))
    print(f"{histories} histories, {failures} failures")
    return min(1, failures)


if __name__ == "__main__":
    sys.exit(main())
