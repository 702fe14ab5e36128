"""Let several processes write and read the lists of one view, and check everything that the readers see.

    python tests/faults/concurrent_lists.py --seconds 300 --writers 8 --readers 4 --seed 0

Each call of a writer adds items to some shared entities, whose value tells the writer and the number of the
call; some come late, and some calls are made twice. A writer removes its calls again in their order, so that
few are there at a time. It has entities of its own, too, whose lists it adds to, replaces and clears, three
items a call. Writers seal by policy; the first one also seals and vacuums now and then. Before a call and
after it its number is noted in memory that all processes share. While they run

- nothing raises, and nothing is logged: no file of the view is damaged;
- a call is whole: its items are in all entities that it is about, or in none;
- no item is there twice, and lists are in the order of their times;
- what was added a refresh interval before a read began is in it, unless its removal had begun, and what was
  removed or not begun is not;
- a writer finds its own entities exactly as it left them.

In the end a new process finds just what was added and not removed, unsealed and sealed.
"""

import argparse
import mmap
import random
import sys
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from crowd import REFRESH_SECONDS, CountedView, Crowd, Log, main
from list_workload import FIRST, SECOND, SETTINGS, Item, read_lists_of, to_rows
from workload import POLICIES

from feast_sketch_store.rows.encoding import deletion_rows
from feast_sketch_store.rows.list_log import REMOVE, REPLACE
from feast_sketch_store.storage.local import LocalStorage
from feast_sketch_store.view.view import View

NUM_SHARED = 12
OWN_PER_WRITER = 2
ITEMS_PER_CALL = 3  # to an entity of one's own
MAX_LIVE = 25  # calls of a writer in shared lists, and in an own one


class Board:
    """What the writers do, in memory that forked processes share.

    Numbers of calls per writer, int64[writers] each: ``begun`` and ``added``, of the last add to shared
    entities; ``removing`` and ``removed``, up to which its calls are removed. ``own`` is int64[own entities,
    MAX_LIVE], the calls whose items an own entity has, 0 for none. Each number has one writer.
    """

    def __init__(self, writers: int, seed: int):
        self.writers, self.seed = writers, seed
        self.num_entities = NUM_SHARED + OWN_PER_WRITER * writers
        counts, own = 4 * writers, OWN_PER_WRITER * writers * MAX_LIVE
        memory = np.frombuffer(mmap.mmap(-1, 8 * (counts + own)), np.int64)
        self.begun, self.added, self.removing, self.removed = memory[:counts].reshape(4, writers)
        self.own = memory[counts:].reshape(-1, MAX_LIVE)

    def entities_of(self, writer: int, call: int) -> tuple[int, ...]:
        """The shared entities that a call adds to."""
        rng = random.Random(f"{self.seed} {writer} {call}")
        return tuple(sorted(rng.sample(range(NUM_SHARED), rng.randint(1, 3))))

    def own_of(self, writer: int) -> range:
        """The entities that only this writer writes; those below ``NUM_SHARED`` are everyone's."""
        first = NUM_SHARED + OWN_PER_WRITER * writer
        return range(first, first + OWN_PER_WRITER)


def item_of(writer: int, call: int, number: int = 0) -> Item:
    """An item of a call; every fourth is late."""
    late = 600 if call % 4 == 3 else 0
    return f"{writer} {call} {number}", FIRST + (call - late) * SECOND


def own_items(writer: int, call: int) -> tuple[Item, ...]:
    """What a call adds to an entity of one's own."""
    return tuple(item_of(writer, call, number) for number in range(ITEMS_PER_CALL))


class Writer:
    """One writer, call by call.

    Parameters
    ----------
    live : its calls in shared lists, from the oldest to the newest.
    """

    def __init__(self, folder: Path, board: Board, writer: int, log: Log):
        self.view = CountedView(LocalStorage(folder), SETTINGS, POLICIES[0], REFRESH_SECONDS)
        self.board, self.writer, self.log = board, writer, log
        self.rng = random.Random(f"{board.seed} {writer}")
        self.counts: Counter[str] = Counter()
        self.call = self.own_call = 0
        self.live: deque[int] = deque()
        self.own: dict[int, list[int]] = {entity: [] for entity in board.own_of(writer)}

    def step(self) -> None:
        """One call or two."""
        if len(self.live) >= MAX_LIVE or (self.live and self.rng.random() < 0.2):
            self.remove()
        elif self.rng.random() < 0.4:
            self.write_own()
        else:
            self.add()
        if self.writer == 0 and self.rng.random() < 0.1:
            self.view.seal()
        if self.writer == 0 and self.rng.random() < 0.2:
            # Files that no commit names yet belong to writes under way: their age keeps them.
            self.view.vacuum()
            self.counts["vacuums"] += 1

    def add(self) -> None:
        """Add an item to shared lists, now and then twice."""
        self.call += 1
        rows = [(e, (item_of(self.writer, self.call),)) for e in self._entities(self.call)]
        self.board.begun[self.writer] = self.call
        for _ in range(1 + (self.rng.random() < 0.1)):
            self.view.write(to_rows(rows, None))
            self.counts["adds"] += 1
        self.board.added[self.writer] = self.call
        self.live.append(self.call)
        self.check(self._entities(self.call), {item_of(self.writer, self.call)}, set())

    def remove(self) -> None:
        """Remove what the oldest of the calls added."""
        call = self.live.popleft()
        value, moment = item_of(self.writer, call)
        self.board.removing[self.writer] = call
        self.view.write(to_rows([(e, ((value, moment),)) for e in self._entities(call)], REMOVE))
        self.board.removed[self.writer] = call
        self.counts["removals"] += 1
        self.check(self._entities(call), set(), {(value, moment)})

    def write_own(self) -> None:
        """Add to a list of one's own, replace it, or clear it."""
        self.own_call += 1
        entity = self.rng.choice(list(self.own))
        calls, chosen = self.own[entity], self.rng.random()
        rows = [(entity, own_items(self.writer, self.own_call))]
        if chosen < 0.15 or len(calls) == MAX_LIVE:
            self.view.delete(deletion_rows({"user_id": pa.array([entity])}, datetime.now(UTC)))
            calls.clear()
            self.counts["clears"] += 1
        elif chosen < 0.35:
            self.view.write(to_rows(rows, REPLACE))
            calls[:] = [self.own_call]
            self.counts["replacements"] += 1
        else:
            self.view.write(to_rows(rows, None))
            calls.append(self.own_call)
            self.counts["adds"] += 1
        self.board.own[entity - NUM_SHARED] = calls + [0] * (MAX_LIVE - len(calls))
        found = read_lists_of(self.view, self.board.num_entities)
        for own, live in self.own.items():
            check_own(self.log, "own", own, found, [own_items(self.writer, call) for call in live])

    def check(self, entities: Iterable[int], there: set[Item], gone: set[Item]) -> None:
        """Look for items in lists."""
        found = read_lists_of(self.view, self.board.num_entities)
        for entity in entities:
            items = set(found.get(entity, []))
            if there - items or gone & items:
                self.log.fail(f"entity {entity} lacks {there - items}, and has {gone & items} still")

    def _entities(self, call: int) -> tuple[int, ...]:
        return self.board.entities_of(self.writer, call)


def check_own(
    log: Log, when: str, entity: int, found: dict[int, list[Item]], wanted: list[tuple[Item, ...]]
) -> None:
    """Check that a list has the items of some calls, and no others."""
    items = found.get(entity, [])
    whole = {item for items in wanted for item in items}
    if set(items) != whole:
        log.fail(f"{when}, entity {entity} lacks {whole - set(items)}, and has {set(items) - whole} too many")


def check_lists(log: Log, board: Board, found: dict[int, list[Item]]) -> dict[tuple[int, int], set[int]]:
    """Check what holds at any time; gives the shared entities in which each writer's calls are."""
    calls: dict[tuple[int, int], set[int]] = defaultdict(set)
    for entity, items in found.items():
        times = [moment for _, moment in items]
        if len(set(items)) != len(items) or times != sorted(times, reverse=True):
            log.fail(f"entity {entity} has an item twice, or in another order: {items}")
        own: Counter[int] = Counter()
        for value, moment in items:
            writer, call, number = map(int, value.split())
            if (value, moment) != item_of(writer, call, number):
                log.fail(f"entity {entity} has {value} at another time: {moment}")
            own[call] += 1
            if entity < NUM_SHARED:
                calls[writer, call].add(entity)
        if entity >= NUM_SHARED and set(own.values()) - {ITEMS_PER_CALL}:
            log.fail(f"entity {entity} has a part of a call: {own}")
    for (writer, call), entities in calls.items():
        if entities != set(board.entities_of(writer, call)):
            log.fail(f"call {call} of writer {writer} is in part of its lists only: {entities}")
    return calls


def writer_task(folder: Path, board: Board, number: int, end: float) -> tuple[Counter[str], Log]:
    """Write until the end."""
    log = Log(f"writer {number}")
    writer = Writer(folder, board, number, log)
    log.run(writer.step, end)
    writer.counts["seals"] = writer.view.seals
    return writer.counts, log


def reader_task(folder: Path, board: Board, reader: int, end: float) -> tuple[Counter[str], Log]:
    """Read all entities until the end."""
    view, log = View(LocalStorage(folder), SETTINGS, POLICIES[0], REFRESH_SECONDS), Log(f"reader {reader}")
    rng = random.Random(f"{board.seed} reader {reader}")
    counts: Counter[str] = Counter()
    # What must be visible from a time on, by this process's clock: no tolerance is needed.
    due: deque[tuple[float, np.ndarray, np.ndarray]] = deque()
    added = removed = np.zeros(board.writers, np.int64)

    def step() -> None:
        nonlocal added, removed
        time.sleep(rng.random() * REFRESH_SECONDS)
        due.append((time.monotonic() + REFRESH_SECONDS, board.added.copy(), board.removed.copy()))
        while due and due[0][0] <= time.monotonic():
            _, added, removed = due.popleft()
        found = read_lists_of(view, board.num_entities)
        removing, begun = board.removing.copy(), board.begun.copy()
        calls = check_lists(log, board, found)
        for writer, call in calls:
            if not removed[writer] < call <= begun[writer]:
                log.fail(f"call {call} of writer {writer} is there, but {removed[writer]} was removed")
        for writer in range(board.writers):
            wanted = {(writer, call) for call in range(removing[writer] + 1, added[writer] + 1)}
            if lost := wanted - calls.keys():
                log.fail(f"calls {sorted(lost)} were added, not removed, and are not there")
        counts["reads"] += 1
        counts["rows"] += len(found)

    log.run(step, end)
    return counts, log


def final_task(folder: Path, board: Board) -> tuple[Counter[str], Log]:
    """Compare what a new process finds with what was acknowledged."""
    log = Log("in the end")
    for what in ("unsealed", "sealed"):
        view = View(LocalStorage(folder), SETTINGS, POLICIES[0], 0.0)
        if what == "sealed":
            view.seal()
        found = read_lists_of(view, board.num_entities)
        calls = check_lists(log, board, found).keys()
        for writer in range(board.writers):
            for entity in board.own_of(writer):
                kept = [call for call in board.own[entity - NUM_SHARED].tolist() if call]
                check_own(log, what, entity, found, [own_items(writer, call) for call in kept])
            live = range(board.removed[writer] + 1, board.added[writer] + 1)
            if changed := {call for known, call in calls if known == writer} ^ set(live):
                log.fail(f"{what}, calls {sorted(changed)} of writer {writer} are lost or too many")
    return Counter(), log


def gather(folder: Path, options: argparse.Namespace, end: float) -> Crowd:
    """The processes, and what a new one checks in the end."""
    board = Board(options.writers, options.seed)
    tasks = [partial(writer_task, folder, board, n, end) for n in range(options.writers)]
    tasks += [partial(reader_task, folder, board, n, end) for n in range(options.readers)]
    names = ("adds", "removals", "replacements", "clears", "seals", "vacuums", "reads")
    return Crowd(tasks, partial(final_task, folder, board), names, "lists")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    sys.exit(main(parser, gather))
