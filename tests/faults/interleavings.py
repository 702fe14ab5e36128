"""Random interleavings of several processes on one view, step by step, where a step is a file operation.

Each process is a thread that waits before every operation on files; one of them goes on at a time, chosen at
random. Writers write and delete entities; sealers seal, absorb, vacuum, rebuild and divide anew; readers
read; one may drop the view. Files are in a folder, whose leases keep others out; objects; or objects of which
nobody holds a lease, as when processes lose theirs. A history is the same again for the same seed.

- Nothing raises but what meets a drop, what another process hinders, and what a clock that jumps makes late.
- A read shows of each entity the newest row, of a list all items, of the writes that returned before the read
  began; perhaps of writes that were under way; nothing of what was deleted or dropped before.
- In the end all of it is there, unsealed and sealed, and `verify` finds no problem.

    python tests/faults/interleavings.py --seconds 600 --seed 0
    python tests/faults/interleavings.py --seed 0 --first 17 --most 1 --trace      # one history again
"""

import math
import random
import secrets
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

sys.path.insert(0, str(Path(__file__).parents[2]))

import list_workload
import pyarrow as pa
import pytest
import workload
from campaign import command_of, run_histories
from workload import NEVER, START

from feast_sketch_store import threads
from feast_sketch_store.errors import SketchStoreError
from feast_sketch_store.operations import resharding
from feast_sketch_store.operations.verification import verify_view
from feast_sketch_store.row_log import wal_objects
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.settings.view_settings import ViewSettings
from feast_sketch_store.storage.base import FileInfo, Storage
from feast_sketch_store.view import live, live_shard, view_file
from feast_sketch_store.view import view as view_module
from feast_sketch_store.view.opening import open_view
from feast_sketch_store.view.rebuilding import rebuild
from feast_sketch_store.view.removal import remove_view
from feast_sketch_store.view.view import Batch, View
from tests.storage import memory

SHARED = range(4)  # entities that all writers write and nobody deletes
OWN_PER_WRITER = 2
SECOND = timedelta(seconds=1)
STUCK_SECONDS = 60.0
JUMP_SECONDS = 400.0  # longer than a commit to a bucket may take
# What others hinder: a late commit, a seal beside another, rows that are being divided.
HINDERED = ("may not count", "is sealing", "no rows to rebuild from", "divide", "already")
WITHOUT_LEASES = (
    "changed the row log meanwhile",
    "is damaged: it is missing",
    "dropped meanwhile",
)  # of two seals at once

Rows = Mapping[int, Set[int]]  # the numbers of an entity: of its row, or of the items of its list


@dataclass(frozen=True)
class Kind:
    """A kind of rows; ``adds`` says whether a row adds to those before."""

    settings: Sequence[ViewSettings]
    codecs: Sequence[FeatureCodec]
    adds: bool
    batch: Callable[[Rows], Batch]
    deletions: Callable[[Sequence[int]], pa.Table]
    read: Callable[[View, int], Rows]


def batch_of_newest(rows: Rows) -> Batch:
    numbers = [(entity, number) for entity, of_entity in rows.items() for number in of_entity]
    return [row for entity, n in numbers for row in workload.rows_of([entity], n, START + n * SECOND)]


def read_newest(view: View, num_entities: int) -> Rows:
    rows = workload.read_rows(view, num_entities)
    for entity, row in rows.items():
        assert workload.is_whole(entity, row), f"entity {entity} has parts of several rows: {row}"
    return {entity: {number} for entity, (number, _) in rows.items()}


def batch_of_items(rows: Rows) -> Batch:
    items = {
        entity: tuple((f"value {n % 7}", list_workload.at(n)) for n in sorted(numbers))
        for entity, numbers in rows.items()
    }
    return list_workload.to_rows(items.items(), list_workload.ADD)


def read_items(view: View, num_entities: int) -> Rows:
    rows = {}
    for entity, items in list_workload.read_lists_of(view, num_entities).items():
        numbers = [(at - list_workload.FIRST) // list_workload.SECOND for _, at in items]
        assert numbers == sorted({*numbers}, reverse=True), f"entity {entity} has items twice: {items}"
        rows[entity] = {*numbers}
    return rows


KINDS = [
    Kind(workload.SETTINGS, workload.CODECS, False, batch_of_newest, workload.deletions_of, read_newest),
    Kind(
        [list_workload.SETTINGS],
        [list_workload.CODEC],
        True,
        batch_of_items,
        list_workload.deletions_of,
        read_items,
    ),
]


class Turns:
    """Lets one process at a time do one operation on files."""

    def __init__(self, rng: random.Random, is_traced: bool):
        self._rng = rng
        self._stays = rng.choice((0.0, 0.5, 0.9, 0.98))  # how likely the same process goes on
        self.jumps = rng.choice((0.0, 0.0, 0.002))  # how likely the clock jumps
        self._changed = threading.Condition()
        self._waiting: dict[str, list[tuple[threading.Lock, str]]] = {}
        self._running: set[str] = set()
        self._is_traced = is_traced
        self.step = 0
        self.seconds = time.time()  # of all clocks

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

    def tell(self, what: str) -> None:
        """Print what happens, if each step is traced."""
        if self._is_traced:
            print(f"{self.step:6} {what}")

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
                    stuck = [process for process in self._running if not self._waiting[process]]
                    raise TimeoutError(f"{stuck} neither go on nor end")
                if not self._running:
                    return
                if last not in self._running or self._rng.random() >= self._stays:
                    last = self._rng.choice(sorted(self._running))
                self.step += 1
                self.seconds += 1e-3 + JUMP_SECONDS * (self._rng.random() < self.jumps)
                turn, what = self._waiting[last].pop(0)
                self.tell(f"{last}: {what}")
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


class Stepped(memory.OwnProcess, memory.MemoryStorage):
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


class Folder(Stepped):
    """A folder."""

    def delete_all(self) -> None:
        self._wait("delete_all", "")
        super().delete_all()


class Bucket(Stepped, memory.ObjectsInMemory):
    """Objects."""

    def delete_all(self) -> None:
        self._wait("delete_all", "")
        with self.files.changed:
            names = [name for name in self.files.files if name.startswith(self.prefix)]
        self.delete([name.removeprefix(self.prefix) for name in names])


@dataclass
class Call:
    """A write, a deletion or a drop: the number of a write, the steps at which it began and had returned."""

    what: str
    entities: Sequence[int]
    number: int
    began: int
    ended: float = math.inf


@dataclass
class Board:
    """What was done so far, and what reads must show of it."""

    turns: Turns
    kind: Kind
    num_entities: int
    hindered: Sequence[str]
    calls: list[Call] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def do(self, what: str, act: Callable[[], Any], entities: Sequence[int] = (), number: int = 0) -> None:
        """Do something and note it."""
        call = Call(what, entities, number, self.turns.step)
        self.calls.append(call)
        self.turns.tell(f"{what} {[*entities]} {number or ''} begins")
        try:
            act()
        except SketchStoreError as error:
            self.refuse(error, call.began)
            return
        call.ended = self.turns.step
        self.turns.tell(f"{what} of step {call.began} has returned")
        self.counts[what] += 1

    def refuse(self, error: Exception, began: int) -> None:
        """Note an error that may be; raise it otherwise."""
        meets_a_drop = any(call.what == "drop" and call.ended >= began for call in self.calls)
        if not meets_a_drop and not any(text in str(error) for text in self.hindered):
            raise error
        self.counts["refused"] += 1

    def read(self, view: View, who: str) -> None:
        """Read all entities, and check what is shown."""
        began = self.turns.step
        try:
            rows = self.kind.read(view, self.num_entities)
        except SketchStoreError as error:
            self.refuse(error, began)
            return
        self.counts["read"] += 1
        for entity in range(self.num_entities):
            self._check(entity, rows.get(entity, frozenset()), began, who)

    def _check(self, entity: int, shown: Set[int], began: int, who: str) -> None:
        calls = [call for call in self.calls if call.what == "drop" or entity in call.entities]
        writes = [call for call in calls if call.what == "write"]
        ends = [call for call in calls if call.what != "write"]
        lasting = {w.number for w in writes if w.ended <= began and all(e.ended < w.began for e in ends)}
        gone = {w.number for w in writes if any(w.ended <= end.began and end.ended <= began for end in ends)}
        is_there = lasting <= shown if self.kind.adds else max(lasting, default=0) <= max(shown, default=0)
        is_known = shown <= {w.number for w in writes} - gone
        if not (is_there and is_known):
            raise AssertionError(f"{who}, step {began}: entity {entity} shows {shown}, after {calls}")


class History:
    """One history, of a name."""

    def __init__(self, name: str, is_traced: bool):
        self.name, self._rng = name, random.Random(name)
        rng = self._rng
        self.turns = Turns(rng, is_traced)
        self._files = memory.Files()
        places: list[tuple[type[Stepped], bool]] = [(Folder, True), (Bucket, True), (Bucket, False)]
        self._storage, self._are_leases_kept = rng.choice(places)
        self._kind = rng.choice(KINDS)
        self._num_shards = rng.choice((1, 1, 2))
        self._num_writers = rng.choice((1, 2, 3))
        num_entities = len(SHARED) + OWN_PER_WRITER * self._num_writers
        hindered = HINDERED if self._are_leases_kept else (*HINDERED, *WITHOUT_LEASES)
        self.board = Board(self.turns, self._kind, num_entities, hindered)
        self._numbers = iter(rng.sample(range(1, 10_000), 1_000))
        self._errors: list[str] = []

    def run(self) -> None:
        """Raises what went wrong."""
        rng = self._rng
        processes = [(f"writer {n}", partial(self._write, writer=n)) for n in range(self._num_writers)]
        processes += [(f"sealer {n}", self._seal) for n in range(rng.choice((1, 2, 2)))]
        processes += [(f"reader {n}", self._read) for n in range(rng.choice((0, 1)))]
        if self._are_leases_kept and rng.random() < 0.3:
            processes.append(("dropper", self._drop))
        with pytest.MonkeyPatch.context() as patch:
            clock = {"time": lambda: self.turns.seconds, "monotonic": lambda: self.turns.seconds}
            patched = SimpleNamespace(**clock, time_ns=time.time_ns, sleep=lambda seconds: None)
            for module in (memory, wal_objects, live, live_shard, view_file, view_module):
                patch.setattr(module, "time", patched)
            patch.setattr(wal_objects, "_boot_time", clock["monotonic"])
            patch.setattr(threads.Threads, "submit", at_once)
            patch.setattr(secrets, "token_hex", lambda n=16: rng.randbytes(n).hex())
            patch.setattr(secrets, "token_bytes", rng.randbytes)
            self.turns.run({process: partial(self._noted, work, process) for process, work in processes})
            self._noted(self._end, "in the end")
        if self._errors:
            about = f"{self._storage.__name__}, leases {self._are_leases_kept}, {self._num_shards} shards"
            raise AssertionError("\n".join([about, *self._errors]))

    def _noted(self, work: Callable[[str, random.Random], None], process: str) -> None:
        try:
            work(process, random.Random(f"{self.name} {process}"))
        except Exception:
            self._errors.append(f"{process}:\n{traceback.format_exc()}")

    def _files_of(self, process: str) -> Storage:
        return self._storage(self._files).of(self.turns, process, self._are_leases_kept)

    def _opened(self, process: str) -> View:
        settings = replace(self._rng.choice(self._kind.settings), num_shards=self._num_shards)
        return open_view(self._files_of(process), settings, NEVER, 0.0)

    def _write(self, process: str, rng: random.Random, writer: int) -> None:
        first = len(SHARED) + OWN_PER_WRITER * writer
        own = range(first, first + OWN_PER_WRITER)
        view = self._opened(process)
        for _ in range(rng.randint(1, 4)):
            if rng.random() < 0.7:
                entities, number = rng.sample([*SHARED, *own], rng.randint(1, 4)), next(self._numbers)
                batch = self._kind.batch({entity: {number} for entity in entities})
                write = rng.choice([view.write, view.write, partial(write_staged, view)])
                self.board.do("write", partial(write, batch), entities, number)
            else:
                gone = rng.sample(own, 1)
                self.board.do("delete", partial(view.delete, self._kind.deletions(gone)), gone)
            self.board.read(view, process)

    def _seal(self, process: str, rng: random.Random) -> None:
        view = self._opened(process)
        does: dict[str, Callable[[], Any]] = {
            "seal": lambda: view.seal(),
            "seal a delta": lambda: view.seal(as_delta=True),
            "absorb": lambda: view.absorb(),
            "vacuum": lambda: view.vacuum(),
            "rebuild": lambda: rebuild(view, partial(self._fill, view)),
            "divide": lambda: self._divide(process, rng.choice((1, 2, 4))),
        }
        for _ in range(rng.randint(1, 4)):
            what = rng.choices([*does, "write"], [4, 2, 2, 2, 1, 1, 1])[0]
            if what == "write":
                number = next(self._numbers)
                fill = partial(self._fill, view, rows={entity: {number} for entity in SHARED})
                self.board.do(what, partial(rebuild, view, fill, keep=True), SHARED, number)
            else:
                self.board.do(what, does[what])
            if rng.random() < 0.5:
                self.board.read(view, process)
            if rng.random() < 0.3:
                view = self._opened(process)

    def _fill(self, view: View, staging: Storage, rows: Rows | None = None) -> Storage:
        """Fill a view with rows, by default with those that it has."""
        rows = self._kind.read(view, self.board.num_entities) if rows is None else rows
        if rows:
            View(staging, self._kind.settings[0], NEVER, 0.0).write(self._kind.batch(rows))
        return staging

    def _divide(self, process: str, num_shards: int) -> None:
        def wait(seconds: float) -> None:
            self.turns.seconds += seconds

        settings = replace(self._kind.settings[0], num_shards=num_shards)
        resharding.divide(self._files_of(process), settings, replace(NEVER, by_job=True), wait)

    def _read(self, process: str, rng: random.Random) -> None:
        view = self._opened(process)
        for _ in range(rng.randint(2, 8)):
            self.board.read(view, process)
            if rng.random() < 0.2:
                view = self._opened(process)

    def _drop(self, process: str, rng: random.Random) -> None:
        for _ in range(rng.randint(1, 2)):
            self.board.do("drop", partial(remove_view, self._files_of(process)))

    def _end(self, process: str, rng: random.Random) -> None:
        view = self._opened(process)
        self.board.read(view, "unsealed")
        view.seal()
        self.board.read(view, "sealed")
        self.board.read(self._opened(process), "opened anew")
        for number, shard in enumerate(view.shards.values()):
            semantics = self._kind.settings[0].semantics
            found = verify_view(
                shard.storage, self._kind.codecs, semantics=semantics, shard=(number, len(view.shards))
            )
            assert found.problems == [], found.problems


def write_staged(view: View, batch: Batch) -> None:
    """Write as an engine does: files first, then a commit of them."""
    view.commit_staged([*view.stage([view.to_table([batch])], f"job-{secrets.token_hex(4)}-")])


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
    parser = command_of(__doc__)
    parser.add_argument("--trace", action="store_true", help="print each step")
    options = parser.parse_args()

    def run(number: int, counts: Counter[str]) -> None:
        history = History(f"{options.seed} {number}", options.trace)
        try:
            history.run()
        finally:
            counts.update(history.board.counts, steps=history.turns.step)

    return run_histories(options, run)


if __name__ == "__main__":
    sys.exit(main())
