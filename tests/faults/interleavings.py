"""Random interleavings of several processes on one view, step by step, where a step is a file operation.

Each process is a thread that waits before every operation on files; one of them goes on at a time, chosen at
random, and some are killed. Writers write and delete entities and remove items, also by jobs of an engine;
sealers seal, here or by an engine, absorb, vacuum, rebuild, divide anew, verify and export; readers, some of
which serve a part of the shards, and replicas read, and files of a replica's cache vanish; one process may
drop the view, or pin it. Some views have a gate: what does not pass is held back, until it is published or
discarded. Files are in a folder, whose leases keep others out, with times of birth or without; in a bucket;
or in a bucket of which nobody holds a lease, as when processes lose theirs. Some buckets lose requests and
answers. A history is nearly always the same again for the same seed. What a process keeps of earlier
histories can shift a step; then run some of those before it, too.

- Nothing raises but what meets a drop, what another process hinders, what gets no answer, and what a clock
  that jumps makes late. A write that was refused leaves nothing.
- A read shows of each entity the newest row, of a list all items, of the writes that returned before the read
  began, or was shown before; perhaps of writes that were under way; nothing of what was deleted, dropped or
  discarded before, and nothing that is held back. If it could not poll, or is of a replica, it shows this as
  of its last poll; if the view is pinned, as of the pin.
- In the end all of it is there, unsealed and sealed, and `verify` finds no problem.

    python tests/faults/interleavings.py --seconds 600 --seed 0
    python tests/faults/interleavings.py --seed 0 --first 17 --most 1 --trace      # one history again
"""

import math
import random
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from board import KINDS, NO_ANSWER, Board, Part, Rows
from campaign import command_of, run_histories
from engine_jobs import seal_by_engine, without_feast, write_by_engine
from stepped import Bucket, Folder, Server, Turns, deterministic
from workload import NEVER

from feast_sketch_store.errors import StorageError
from feast_sketch_store.operations.resharding import divide, remove_former
from feast_sketch_store.operations.verification import verify_view
from feast_sketch_store.settings.table import Gate
from feast_sketch_store.storage.base import Storage, UncertainWriteError
from feast_sketch_store.view import holding
from feast_sketch_store.view.opening import ReadOnlyView, open_view
from feast_sketch_store.view.rebuilding import rebuild
from feast_sketch_store.view.removal import remove_view
from feast_sketch_store.view.view import View
from feast_sketch_store.view.view_file import shard_map_of
from tests.storage.memory import Files

FOLDERS = ("folder", "folder without times of birth")
SHARED = range(4)  # entities that all writers write and nobody deletes
OWN_PER_WRITER = 2
# What others hinder: a late commit, a seal beside another, rows that are being divided, a pin without a seal.
HINDERED = (
    *("may not count", "is sealing", "no rows to rebuild from", "divide", "already"),
    *("is not there yet", "is pinned", "no snapshot", "no longer exists", "replaced while they were read"),
)
WITHOUT_LEASES = (
    "changed the row log ",
    "is damaged: it is missing",
    "dropped meanwhile",
    "was removed before its rows counted",
)  # of two seals at once


class History:
    """One history, of a name."""

    def __init__(self, name: str, is_traced: bool):
        self.name, self._rng = name, random.Random(name)
        rng = self._rng
        self.turns = Turns(rng, is_traced)
        self._place = rng.choice((*FOLDERS, "bucket", "bucket without leases"))
        self._files = Files(has_tokens=self._place == "folder")
        self._server = Server(self.turns, rng, rng.choice((0.0, 0.0, 0.01)) if self._is_bucket else 0.0)
        self._kind = rng.choice(KINDS)
        self._num_shards = rng.choice((1, 1, 2))
        self._num_writers = rng.choice((1, 2, 3))
        self._gate = Gate(entities=rng.choice((None, None, 5)))
        self._disturber = rng.choice(("", "", "dropper", "pinner"))
        num_entities = len(SHARED) + OWN_PER_WRITER * self._num_writers
        hindered = [*HINDERED, *(["does not pass its gate"] if self._gate.is_set else [])]
        # The mark of a drop may arrive when the drop is done.
        hindered += (*NO_ANSWER, "is being removed") if self._server.loses else ()
        if self._place == "bucket without leases":
            hindered += WITHOUT_LEASES
            self._disturber = self._disturber.replace("dropper", "")
        is_sure = not self._server.loses and self._disturber != "dropper"
        self.board = Board(self.turns, self._kind, num_entities, hindered, is_sure)
        self._numbers = iter(rng.sample(range(1, 10_000), 1_000))
        self._errors: list[str] = []

    @property
    def _is_bucket(self) -> bool:
        return self._place not in FOLDERS

    def run(self) -> None:
        """Raises what went wrong."""
        rng = self._rng
        processes = [(f"writer {n}", partial(self._write, writer=n)) for n in range(self._num_writers)]
        processes += [(f"sealer {n}", self._seal) for n in range(rng.choice((1, 2, 2)))]
        processes += [(f"reader {n}", self._read) for n in range(rng.choice((0, 1)))]
        if self._is_bucket:
            processes += [(f"replica {n}", self._replicate) for n in range(rng.choice((0, 1, 2)))]
        if self._disturber:
            processes.append((self._disturber, self._drop if self._disturber == "dropper" else self._pin))
        with tempfile.TemporaryDirectory() as host:
            self._host = Path(host)
            with deterministic(self.turns, rng, self._server), without_feast():
                self.turns.run({process: partial(self._noted, work, process) for process, work in processes})
                self._server.settle()
                self._noted(self._end, "in the end")
        if self._errors:
            about = f"{self._place}, {self._num_shards} shards, {self._server.loses} lost"
            raise AssertionError("\n".join([about, *self._errors]))

    def _noted(self, work: Callable[[str, random.Random], None], process: str) -> None:
        try:
            work(process, random.Random(f"{self.name} {process}"))
        except Exception:
            self._errors.append(f"{process}:\n{traceback.format_exc()}")

    def _storage(self, cache_path: Path | None = None, read_only: bool = False) -> Storage:
        """The storage of the view, with a cache for one who only reads."""
        if not self._is_bucket:
            return Folder(self._files, read_only).of(self.turns)
        are_leases_kept = self._place == "bucket"
        is_read = read_only or cache_path is not None
        return Bucket(self.turns, are_leases_kept, "view/", is_read, cache_path)

    def _opened(self, read_only: bool = False, served: Sequence[int] | None = None) -> View:
        settings = replace(
            self._rng.choice(self._kind.settings), num_shards=self._num_shards, gate=self._gate
        )
        while True:
            try:
                storage = self._storage(read_only=read_only)
                return open_view(storage, settings, NEVER, 0.0, served=served)
            except StorageError as error:
                self.board.refuse(error, self.turns.step)

    def _write(self, process: str, rng: random.Random, writer: int) -> None:
        first = len(SHARED) + OWN_PER_WRITER * writer
        own = range(first, first + OWN_PER_WRITER)
        view = self._opened()
        for _ in range(rng.randint(1, 4)):
            if rng.random() < 0.7:
                entities, number = rng.sample([*SHARED, *own], rng.randint(1, 4)), next(self._numbers)
                batch = self._kind.batch({entity: {number} for entity in entities})
                write = rng.choice([view.write, view.write, partial(write_by_engine, view, rng)])
                self.board.do("write", partial(write, batch), entities, number)
            elif self._kind.removal is not None and rng.random() < 0.6:
                entities, number = rng.sample([*SHARED, *own], rng.randint(1, 4)), next(self._numbers)
                if rng.random() < 0.7 and (known := [c.number for c in self.board.calls if c.number]):
                    number = rng.choice(known)
                removal = self._kind.removal(entities, number)
                self.board.do("remove", partial(view.write, removal), entities, number)
            else:
                gone = rng.sample(own, 1)
                self.board.do("delete", partial(view.delete, self._kind.deletions(gone)), gone)
            self.board.read(view, process)

    def _seal(self, process: str, rng: random.Random) -> None:
        view = self._opened()
        does: dict[str, Callable[[], Any]] = {
            "seal": lambda: view.seal(),
            "seal a delta": lambda: view.seal(as_delta=True),
            "seal by an engine": lambda: seal_by_engine(self._opened, rng),
            "absorb": lambda: view.absorb(),
            "vacuum": lambda: (view.vacuum(), remove_former(self._storage())),
            "rebuild": lambda: rebuild(view, partial(self._fill, view)),
            "divide": lambda: self._divide(rng.choice((1, 2, 4))),
            "verify": lambda: self._verify(view),
            "publish": lambda: holding.publish(view, force=rng.random() < 0.5),
            "discard": lambda: holding.discard(view),
        }
        gated = 2 * self._gate.is_set
        verified = self.board.is_sure and self._place != "bucket without leases"
        for _ in range(rng.randint(1, 4)):
            what = rng.choices([*does, "write"], [4, 2, 2, 2, 2, 1, 1, verified, 2 * gated, gated, 1])[0]
            if what == "write":
                number = next(self._numbers)
                self.board.do(what, partial(self._add, view, number), SHARED, number)
            else:
                self.board.do(what, does[what])
            if rng.random() < 0.5:
                self.board.read(view, process)
            if rng.random() < 0.2:
                self.board.export(view, process)
            if rng.random() < 0.3:
                view = self._opened()

    def _add(self, view: View, number: int) -> None:
        """Write by a rebuild, which may have happened if it gets no answer."""
        try:
            rebuild(view, partial(self._fill, view, rows={entity: {number} for entity in SHARED}), keep=True)
        except StorageError as error:
            if any(text in str(error) for text in NO_ANSWER):
                raise UncertainWriteError(str(error)) from error
            raise

    def _fill(self, view: View, staging: Storage, rows: Rows | None = None) -> Storage:
        """Fill a view with rows, by default with those that it has."""
        if rows is None:
            rows = self._kind.read(view, self.board.num_entities)
            if view.is_pinned or (problem := view.freshness().problem):  # these may not be all its rows
                raise StorageError("is pinned" if view.is_pinned else problem)
        if rows:
            View(staging, self._kind.settings[0], NEVER, 0.0).write(self._kind.batch(rows))
        return staging

    def _divide(self, num_shards: int) -> None:
        settings = replace(self._kind.settings[0], num_shards=num_shards)
        divide(self._storage(), settings, replace(NEVER, by_job=True), self.turns.pass_time)

    def _verify(self, view: View) -> None:
        """Check the files of a view that others may write, and not seal."""
        with view.unchanging():
            for number, shard in enumerate(view.shards.values()):
                semantics = self._kind.settings[0].semantics
                found = verify_view(
                    shard.storage, self._kind.codecs, semantics=semantics, shard=(number, len(view.shards))
                )
                assert found.problems == [], found.problems

    def _read(self, process: str, rng: random.Random) -> None:
        view: Part | None = None
        for _ in range(rng.randint(2, 8)):
            if view is None or rng.random() < 0.2:
                opened = self._opened(rng.random() < 0.5, rng.choice((None, [0])))
                view = Part.of(opened, self.board.num_entities)
            self.board.read(view, process, entities=view.entities)

    def _replicate(self, process: str, rng: random.Random) -> None:
        """Read from a host that keeps what it has read, and start again there now and then."""
        storage, settings = self._storage(self._host), self._kind.settings[0]
        opens = (
            lambda: ReadOnlyView(storage, settings.view, 1.0, True),
            lambda: open_view(
                storage, replace(settings, num_shards=self._num_shards), NEVER, 1.0, None, True
            ),
        )
        view = None
        for _ in range(rng.randint(3, 10)):
            if view is None or rng.random() < 0.2:
                view = self.board.do("start", rng.choice(opens))
            if view is not None and rng.random() < 0.7:
                view.poll()
            if rng.random() < 0.1 and (cached := sorted(self._host.iterdir())):
                rng.choice(cached).unlink()  # at any time
            if view is not None:
                self.board.read(view, process, is_replica=True)

    def _drop(self, process: str, rng: random.Random) -> None:
        for _ in range(rng.randint(1, 2)):
            self.board.do("drop", partial(remove_view, self._storage()))

    def _pin(self, process: str, rng: random.Random) -> None:
        view = self._opened()
        for _ in range(rng.randint(1, 3)):
            self.board.do("seal", view.seal)
            self.board.do("pin", partial(holding.pin, view))
            self.board.read(view, process)
            self.board.do("unpin", partial(holding.unpin, view))

    def _end(self, process: str, rng: random.Random) -> None:
        self.turns.pass_time(1_000)  # who was killed holds no lease any more
        if any(call.what == "drop" and call.ended == math.inf for call in self.board.calls):
            self.board.do("drop", partial(remove_view, self._storage()))
        if (there := shard_map_of(self._storage())).is_moving:
            self._divide(there.num_shards)
        view = self._opened()
        self.board.do("unpin", partial(holding.unpin, view))
        self.board.read(view, "unsealed")
        view.seal(force=True)
        self.board.read(view, "sealed")
        self.board.read(self._opened(), "opened anew")
        self._verify(view)


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
