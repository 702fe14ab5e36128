"""Processes that go on one at a time, by one operation on files each: as threads of one process.

`Turns` lets one of them go on, chosen at random, and may kill it there. `Folder` and `Bucket` are storages
whose operations wait for their turn; a bucket has a server in memory, which may lose requests and answers.
"""

import random
import threading
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO
from uuid import UUID

import pytest
from obstore.exceptions import AlreadyExistsError, GenericError, PreconditionError

from feast_sketch_store import threads
from feast_sketch_store.errors import StorageError
from feast_sketch_store.row_log import table, wal_objects
from feast_sketch_store.snapshot import files
from feast_sketch_store.storage import file_cache, names, objects
from feast_sketch_store.storage.base import FileInfo
from feast_sketch_store.storage.object_store import LEASE_SECONDS, ObjectStorage
from feast_sketch_store.storage.objects import Objects
from feast_sketch_store.view import last_known, live, live_shard, loading, view, view_file
from tests.storage import memory

STUCK_SECONDS = 60.0
# Longer than a commit to a bucket may take, and than a vacuum leaves files that may belong to somebody.
JUMP_SECONDS, JUMP_OF_A_DAY_SECONDS = 400.0, 90_000.0
# Who use the clock, which all processes and the storage share.
_TIMED = (
    *(file_cache, files, last_known, live, live_shard, loading, memory, names, table, view, view_file),
    wal_objects,
)


class Killed(BaseException):
    """The process goes no further. What it does nevertheless, as it leaves its blocks, has no effect."""


class Turns:
    """Lets one process at a time do one operation on files. A process is a thread, by its name."""

    def __init__(self, rng: random.Random, is_traced: bool):
        self._rng = rng
        self._stays = rng.choice((0.0, 0.5, 0.9, 0.98))  # how likely the same process goes on
        self._jumps = rng.choice((0.0, 0.0, 0.002))  # how likely the clock jumps
        self.jumps_far = rng.random() < 0.3  # whether by a day
        self._kills = rng.choice((0.0, 0.0, 0.002))  # how likely a process is killed
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._waiting: dict[str, list[tuple[threading.Lock, str]]] = {}
        self._running: set[str] = set()
        self._last = ""  # who went on
        self._is_traced = is_traced
        self._killed_at: dict[str, float] = {}  # in seconds
        self._times = [time.time()]  # of steps
        self._held: dict[str, str] = {}  # locks, and the processes that hold them

    @property
    def step(self) -> int:
        """The number of operations so far."""
        return len(self._times) - 1

    @property
    def seconds(self) -> float:
        """The time of all clocks."""
        return self._times[-1]

    @property
    def process(self) -> str:
        """The one that runs."""
        return threading.current_thread().name

    def step_at(self, seconds: float) -> int:
        """The last step until a time."""
        return bisect_right(self._times, seconds + 5e-4) - 1

    def pass_time(self, seconds: float) -> None:
        """Let time go by."""
        self._times[-1] += seconds

    def is_running(self) -> bool:
        """Whether this process is one of those that are run."""
        return self.process in self._running

    def was_killed(self, process: str) -> bool:
        """Whether a process was killed."""
        return process in self._killed_at

    def wait(self, what: str) -> None:
        """Called before each operation of a process; those of processes that are not `run` do not wait."""
        process, turn = self.process, threading.Lock()
        if process not in self._running:
            return
        if process not in self._killed_at:
            turn.acquire()
            with self._lock:
                self._waiting[process].append((turn, what))
                self._go_on()
            turn.acquire()
        if process in self._killed_at:
            raise Killed

    def tell(self, what: str) -> None:
        """Print what happens, if each step is traced."""
        if self._is_traced:
            print(f"{self.step:6} {what}")

    @contextmanager
    def lock(self, name: str, wait: bool = True, seconds: float = 0.0) -> Iterator[bool]:
        """Hold a lock, which goes on to be held for some seconds after its holder was killed."""
        self.wait(f"lock {name}")
        while not (is_mine := self._is_free(name, seconds)) and wait:
            self.pass_time(self.was_killed(self._held[name]) * seconds / 100)
            self.wait(f"lock {name}")
        if is_mine:
            self._held[name] = self.process
        try:
            yield is_mine
        finally:
            self.wait(f"release {name}")
            if is_mine and self._held.get(name) == self.process:
                del self._held[name]

    def _is_free(self, name: str, seconds: float) -> bool:
        holder = self._held.get(name)
        return holder is None or self.seconds >= self._killed_at.get(holder, self.seconds + 1) + seconds

    def run(self, processes: Mapping[str, Callable[[], None]]) -> None:
        """Run processes to their ends."""
        self._running = {*processes}
        self._waiting = {process: [] for process in processes}
        for name, work in processes.items():
            threading.Thread(target=self._run, name=name, args=[work], daemon=True).start()
        before = -1
        while not self._ended.wait(STUCK_SECONDS):
            if self.step == before:
                stuck = [process for process in self._running if not self._waiting[process]]
                raise TimeoutError(f"{stuck} neither go on nor end")
            before = self.step

    def _go_on(self) -> None:
        """Let a process go on, if all wait; the lock is held."""
        if not all(self._waiting[process] for process in self._running):
            return
        rng = self._rng
        if self._last not in self._running or rng.random() >= self._stays:
            self._last = rng.choice(sorted(self._running))
        jump = JUMP_OF_A_DAY_SECONDS if self.jumps_far else JUMP_SECONDS
        self._times.append(self.seconds + 1e-3 + jump * (rng.random() < self._jumps))
        turn, what = self._waiting[self._last].pop(0)
        if rng.random() < self._kills:
            self._killed_at[self._last] = self.seconds
            what = f"is killed before {what}"
        self.tell(f"{self._last}: {what}")
        turn.release()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            with suppress(Killed):
                work()
        finally:
            with self._lock:
                self._running.discard(self.process)
                if self._running:
                    self._go_on()
                else:
                    self._ended.set()


@contextmanager
def deterministic(turns: Turns, rng: random.Random, server: "Server") -> Iterator[None]:
    """Replace clocks, random numbers and threads of the package, and obstore by a server."""
    with pytest.MonkeyPatch.context() as patch:

        def now(*clock: int) -> float:
            return turns.seconds

        patched = SimpleNamespace(
            **{
                **vars(time),
                "time": now,
                "monotonic": now,
                "clock_gettime": now,
                "sleep": lambda seconds: None,
            }
        )
        for module in _TIMED:
            patch.setattr(module, "time", patched)
        for module in (last_known, file_cache):
            patch.setattr(module, "locked", lambda path: turns.lock(str(path)))
        patch.setattr(live, "Poller", lambda poll, seconds: SimpleNamespace(stop=lambda: None))
        patch.setattr(threads.Threads, "submit", _at_once)
        patch.setattr(objects, "obstore", server)
        patch.setattr("secrets.token_hex", lambda n=16: rng.randbytes(n).hex())
        patch.setattr("secrets.token_bytes", rng.randbytes)
        patch.setattr("uuid.uuid4", lambda: UUID(bytes=rng.randbytes(16)))
        yield


def _at_once(self: threads.Threads, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
    """A submitted task, done by the thread that submits it."""
    done: Future[Any] = Future()
    try:
        done.set_result(fn(*args, **kwargs))
    except Exception as error:
        done.set_exception(error)
    return done


class Folder(memory.OwnProcess, memory.MemoryStorage):
    """A folder in memory, each of whose operations waits for its turn."""

    turns: Turns

    def of(self, turns: Turns) -> "Folder":
        """The folder as a process sees it."""
        self.turns = turns
        return self

    def within(self, folder: str) -> "Folder":
        return super().within(folder).of(self.turns)

    def _wait(self, what: str, name: str) -> None:
        self.turns.wait(f"{what} {self.prefix}{name}")

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

    def append(self, name: str, at: int, pieces: Iterable[bytes | memoryview]) -> None:
        self._wait("append", name)
        super().append(name, at, pieces)

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            self._wait("delete", name)
            super().delete([name])

    def delete_all(self) -> None:
        self._wait("delete_all", "")
        super().delete_all()

    @contextmanager
    def lease(self, name: str, wait: bool = False, create: bool = True) -> Iterator[bool]:
        """Hold a lock on a file. If that is deleted meanwhile, others can lock another file of its name."""
        if self.read_only:
            raise StorageError(f"{self.where(name)}: is only read")
        key, files, is_held = self._key(name), self.files.files, False
        folder = key.rpartition("/")[0]
        while not is_held:
            if not create and not any(known.startswith(folder) for known in files):
                yield False
                return
            token, *_ = files.setdefault(key, (next(self.files.tokens), self.turns.seconds, b""))
            with self.turns.lock(f"{key} {token}", wait) as is_mine:
                is_held = not is_mine or (key in files and files[key][0] == token)
                if is_held:
                    yield is_mine


class Server:
    """The functions of obstore, with objects in memory. Each request waits for its turn.

    With ``loses`` a process gets no answers for some requests: they were done or not, or are done later.
    """

    def __init__(self, turns: Turns, rng: random.Random, loses: float):
        self._turns, self._rng, self.loses = turns, rng, loses
        self._objects: dict[str, tuple[dict[str, Any], dict[str, str], bytes]] = {}
        self._num_puts = 0
        self._unanswered: Counter[str] = Counter()  # requests that a process will get no answers for
        self._late: list[Callable[[], Any]] = []

    def list(self, store: None, prefix: str | None, offset: str | None) -> Iterable[list[dict[str, Any]]]:
        def listed() -> list[dict[str, Any]]:
            under = f"{prefix}/" if prefix else ""
            keys = [key for key in self._objects if key.startswith(under) and key > (offset or "")]
            return [self._objects[key][0] for key in sorted(keys)]

        return [self._asked("list", f"{prefix} {offset or ''}", listed)]

    def list_with_delimiter(self, store: None, prefix: str | None) -> dict[str, Any]:
        def listed() -> dict[str, Any]:
            under = f"{prefix}/" if prefix else ""
            keys = sorted(key for key in self._objects if key.startswith(under))
            own = [self._objects[key][0] for key in keys if "/" not in key.removeprefix(under)]
            folders = {under + key.removeprefix(under).partition("/")[0] for key in keys} - {*keys}
            return {"objects": own, "common_prefixes": sorted(folders)}

        return self._asked("list", prefix or "", listed)

    def get(self, store: None, key: str, options: Mapping[str, Any] = {}) -> SimpleNamespace:
        def found() -> SimpleNamespace:
            meta, attributes, content = self._object(key)
            if options.get("if_match", meta["e_tag"]) != meta["e_tag"]:
                raise PreconditionError(key)
            start, end = options.get("range", (0, None))
            return SimpleNamespace(meta=meta, attributes=attributes, bytes=lambda: content[start:end])

        return self._asked("head" if "head" in options else "get", key, found)

    def get_range(self, store: None, key: str, start: int, end: int) -> bytes:
        return self._asked("get", key, lambda: self._object(key)[2][start:end])

    def put(
        self, store: None, key: str, content: bytes, mode: Any, attributes: Any, use_multipart: bool
    ) -> None:
        def write() -> None:
            before = self._objects.get(key)
            if mode == "create" and before is not None:
                raise AlreadyExistsError(key)
            if isinstance(mode, dict) and (before is None or before[0]["e_tag"] != mode["e_tag"]):
                raise PreconditionError(key)
            self._num_puts += 1
            at = datetime.fromtimestamp(self._turns.seconds, UTC)
            meta = {"path": key, "size": len(content), "e_tag": str(self._num_puts), "last_modified": at}
            self._objects[key] = {**meta, "version": None}, attributes or {}, bytes(content)

        self._asked("put", key, write, True)

    def delete(self, store: None, keys: Sequence[str]) -> None:
        for key in keys:
            self._asked("delete", key, lambda key=key: self._objects.pop(key, None), True)

    def settle(self) -> None:
        """Do what is late, and lose nothing any more."""
        self.loses = 0.0
        while self._late:
            self._do_late()

    def _object(self, key: str) -> tuple[dict[str, Any], dict[str, str], bytes]:
        if key not in self._objects:
            raise FileNotFoundError(key)
        return self._objects[key]

    def _asked(self, what: str, key: str, do: Callable[[], Any], writes: bool = False) -> Any:
        """The answer to a request."""
        self._turns.wait(f"{what} {key}")
        if not self.loses or not self._turns.is_running():
            return do()
        rng, process = self._rng, self._turns.process
        if self._late and rng.random() < 0.05:
            self._do_late()
        if rng.random() < self.loses:
            self._unanswered[process] = rng.choice((1, 1, 1, 4, 8, 30))
        if not self._unanswered[process]:
            return do()
        self._unanswered[process] -= 1
        fate = rng.choice(("lost", "done", "late")) if writes else "lost"
        self._turns.tell(f"no answer: the request is {fate}")
        if fate == "done":
            do()
        elif fate == "late":
            self._late.append(do)
        raise GenericError(rng.choice(("ConnectionReset", "kind: Timeout")))

    def _do_late(self) -> None:
        with suppress(AlreadyExistsError, PreconditionError):
            self._late.pop(self._rng.randrange(len(self._late)))()


class Bucket(ObjectStorage):
    """Objects of a server in memory, as a process sees them; its lease keeps others out, or does not."""

    def __init__(
        self,
        turns: Turns,
        are_leases_kept: bool,
        folder: str = "",
        read_only: bool = False,
        cache_path: Path | None = None,
    ):
        super().__init__(Objects(None, "memory:", "memory"), folder, read_only, cache_path)
        self._turns, self._are_leases_kept = turns, are_leases_kept

    def within(self, folder: str) -> "Bucket":
        prefix = super().within(folder)._prefix
        part = Bucket(self._turns, self._are_leases_kept, prefix, self.read_only, self._cache_path)
        part._objects = self._objects
        return part

    @property
    def identity(self) -> str:
        return f"{super().identity} {self._turns.process}"

    @property
    def host_path(self) -> Path | None:
        return self._cache_path and self._cache_path / f"view {self._prefix.replace('/', ' ')}".strip()

    @contextmanager
    def lease(self, name: str, wait: bool = False, create: bool = True) -> Iterator[bool]:
        if not self._are_leases_kept:
            yield True
            return
        with self._turns.lock(self._key(name), wait, LEASE_SECONDS) as is_mine:
            yield is_mine
