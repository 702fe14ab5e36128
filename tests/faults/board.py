"""What was done to a view of any kind of rows, and what its reads must show: see `interleavings`."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import growing
import list_workload
import numpy as np
import pyarrow as pa
import workload
from stepped import Turns
from workload import NEVER, START

from feast_sketch_store.errors import GateError, SketchStoreError
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.list_log import REMOVE
from feast_sketch_store.settings.view_settings import ViewSettings
from feast_sketch_store.storage.base import UncertainWriteError
from feast_sketch_store.view.live import LiveView
from feast_sketch_store.view.live_shard import Freshness
from feast_sketch_store.view.shard_map import shards_of
from feast_sketch_store.view.view import Batch, View
from tests.helpers.keys import user_hashes
from tests.storage.memory import MemoryStorage

SECOND = timedelta(seconds=1)
NO_ANSWER = ("no answer within the timeouts", "the server cut the connection")
TRIES = 5  # of a write whose answer is lost
# Some shards have the rows, or are replaced already.
_PARTLY = ("Write the batch again", "changed the row log meanwhile", "were divided into")

Rows = Mapping[int, Set[int]]  # the numbers of an entity: of its row, or of the items of its list


@dataclass(frozen=True)
class Kind:
    """A kind of rows; ``adds`` says whether a row adds to those before, and ``removal`` makes a batch that
    removes numbers which are like one, from some entities: those for which ``is_like`` holds.
    """

    settings: Sequence[ViewSettings]
    codecs: Sequence[FeatureCodec]
    adds: bool
    batch: Callable[[Rows], Batch]
    deletions: Callable[[Sequence[int]], pa.Table]
    read: Callable[[LiveView[Any], int], Rows]
    removal: Callable[[Sequence[int], int], Batch] | None = None
    is_like: Callable[[int, int], bool] = lambda removed, number: True


def batch_of_newest(rows: Rows) -> Batch:
    numbers = [(entity, number) for entity, of_entity in rows.items() for number in of_entity]
    return [row for entity, n in numbers for row in workload.rows_of([entity], n, START + n * SECOND)]


def read_newest(view: LiveView[Any], num_entities: int) -> Rows:
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


def removal_of_items(entities: Sequence[int], number: int) -> Batch:
    """A batch that removes a value up to the time of an item."""
    item = (f"value {number % 7}", list_workload.at(number))
    return list_workload.to_rows([(entity, (item,)) for entity in entities], REMOVE)


def is_removed(removed: int, number: int) -> bool:
    return number <= removed and number % 7 == removed % 7


def read_items(view: LiveView[Any], num_entities: int) -> Rows:
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
        removal_of_items,
        is_removed,
    ),
    Kind(
        [growing.SETTINGS],
        growing.CODECS,
        True,
        growing.batch_of_growth,
        workload.deletions_of,
        growing.read_growth,
    ),
]


@dataclass(frozen=True)
class Exported:
    """What a seal of a view would keep, as a view that holds nothing else."""

    view: View
    settings: ViewSettings

    def read(self, entity_hashes: Any, features: Sequence[str]) -> Any:
        """See `View.read`."""
        copy = View(MemoryStorage(), self.settings, NEVER, 0.0)
        for kept in self.view.kept_rows():
            for _, table in kept.batches():
                copy.write(table)
        return copy.read(entity_hashes, features)


@dataclass(frozen=True)
class Part:
    """Some of the entities of a view, which are those of the shards that it serves."""

    view: View
    entities: Sequence[int]

    @classmethod
    def of(cls, view: View, num_entities: int) -> "Part":
        """The part that a view serves when it is opened, and serves on when its rows are divided."""
        numbers = shards_of(user_hashes(range(num_entities)), view.shard_map.num_shards)
        return cls(view, [e for e, number in enumerate(numbers.tolist()) if number in view.served])

    def read(self, entity_hashes: Any, features: Sequence[str]) -> Any:
        """See `View.read`; of the entities that are given, all but its own have no rows."""
        answer = self.view.read(entity_hashes[self.entities], features)
        return answer._replace(found=np.array(self.entities, np.int64)[answer.found])

    def freshness(self) -> Freshness:
        """See `View.freshness`."""
        return self.view.freshness()


_UNKNOWN = object()  # what a call returned that has not


@dataclass(eq=False)
class Call:
    """What was done: a write or a removal has a number. The steps at which it began and had returned, and
    its result.

    If it was refused, it has no effect; if a write is held back since a step, it may have one.
    """

    what: str
    entities: Sequence[int]
    number: int
    began: int
    ended: float = math.inf
    result: Any = _UNKNOWN
    is_refused: bool = False
    held_at: int | None = None


@dataclass
class Board:
    """What was done so far, and what reads must show of it.

    ``hindered`` are parts of errors that may be; ``is_sure`` says whether each poll succeeds.
    """

    turns: Turns
    kind: Kind
    num_entities: int
    hindered: Sequence[str]
    is_sure: bool
    calls: list[Call] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    seen: dict[tuple[int, int], int] = field(default_factory=dict)  # an entity's number: since which step

    def do(self, what: str, act: Callable[[], Any], entities: Sequence[int] = (), number: int = 0) -> Any:
        """Do something and note it. What gets no answer is tried again. Returns None if it is refused."""
        call = Call(what, entities, number, self.turns.step)
        self.calls.append(call)
        self.turns.tell(f"{what} {[*entities]} {number or ''} begins")
        is_certain = what != "drop"  # one that fails has removed a part
        for attempt in range(1, TRIES + 1):
            try:
                result = act()
                break
            except SketchStoreError as error:
                self.refuse(error, call.began)
                text = str(error)
                is_certain &= not isinstance(error, UncertainWriteError)
                is_certain &= not any(each in text for each in _PARTLY)
                if attempt == TRIES or not any(each in text for each in NO_ANSWER):
                    if isinstance(error, GateError) and "feast-sketch discard" in text:
                        call.held_at = self.turns.step
                    else:
                        call.is_refused = is_certain
                    return None
        call.ended = self.turns.step
        if attempt == 1 or result is not None:  # else the first try may have done it
            call.result = result
        self.turns.tell(f"{what} of step {call.began} has returned {result}")
        self.counts[what] += 1
        if what == "publish" and result is not None:
            self._settle(call)
        return result

    def refuse(self, error: Exception, began: int) -> None:
        """Note an error that may be; raise it otherwise."""
        self.turns.tell(f"what began at step {began} is refused: {error}")
        meets_a_drop = any(call.what == "drop" and call.ended >= began for call in self.calls)
        if not meets_a_drop and not any(text in str(error) for text in self.hindered):
            raise error
        self.counts["refused"] += 1

    def read(
        self, view: Any, who: str, is_replica: bool = False, entities: Collection[int] | None = None
    ) -> None:
        """Read all entities, and check what is shown of them, or of some."""
        asked = began = self.turns.step
        rows = self._rows_of(view, began)
        if rows is None:
            return
        freshness = view.freshness()
        if is_replica or (freshness.problem and not self.is_sure):
            asked = min(began, self.turns.step_at(self.turns.seconds - (freshness.age_seconds or 0.0)))
            self.counts["stale"] += bool(freshness.problem)
        assert not (freshness.problem and self.is_sure), freshness.problem
        span = self._pinned(asked, self.turns.step)
        self.turns.tell(f"{who} has read {dict(rows)}, as of {span}")
        for entity in range(self.num_entities) if entities is None else entities:
            self._check(entity, rows.get(entity, frozenset()), *span, who)

    def export(self, view: View, who: str) -> None:
        """Read all rows that a seal would keep, and check them; a pin does not hold them."""
        began = self.turns.step
        rows = self._rows_of(Exported(view, self.kind.settings[0]), began)
        if rows is not None:
            self.turns.tell(f"{who} has exported {dict(rows)}")
            for entity in range(self.num_entities):
                self._check(entity, rows.get(entity, frozenset()), began, self.turns.step, who)

    def _rows_of(self, view: Any, began: int) -> Rows | None:
        """What a view shows; None if it is refused."""
        try:
            rows = self.kind.read(view, self.num_entities)
        except SketchStoreError as error:
            self.refuse(error, began)
            return None
        self.counts["read"] += 1
        return rows

    def _pinned(self, asked: int, until: int) -> tuple[int, int]:
        """The steps as of which a read shows rows, at least and at most, if the view is not pinned there."""
        pins = [call for call in self.calls if call.what == "pin"]
        if not pins:
            return asked, until
        last = pins[-1]
        ends = [c for c in self.calls if c.what == "unpin" and c.began >= last.began]
        if any(end.ended < asked for end in ends):
            return asked, until
        seals = [
            c for c in self.calls if c.what.startswith("seal") and c.result is True and c.ended < last.began
        ]
        is_pinned = last.ended <= asked and all(end.began > until for end in ends)
        return min([asked, max([-1, *(seal.began for seal in seals)])]), int(
            last.ended
        ) if is_pinned else until

    def _check(self, entity: int, shown: Set[int], asked: int, until: int, who: str) -> None:
        calls = [c for c in self.calls if (c.what == "drop" or entity in c.entities) and c.began <= until]
        writes = [call for call in calls if call.what == "write"]
        ends = [call for call in calls if call.what != "write" and not call.is_refused]

        def ends_of(write: Call) -> list[Call]:
            return [e for e in ends if e.what != "remove" or self.kind.is_like(e.number, write.number)]

        # What a write of other shards, which has not returned, shows for a while may be left where it is.
        seen = {} if any(call.what == "divide" for call in self.calls) else self.seen
        since = {w.number: min(w.ended, seen.get((entity, w.number), math.inf)) for w in writes}
        lasting = {
            w.number
            for w in writes
            if since[w.number] <= asked and all(end.ended < w.began for end in ends_of(w))
        }
        gone = {
            w.number for w in writes if any(w.ended <= end.began and end.ended <= asked for end in ends_of(w))
        }
        is_there = lasting <= shown if self.kind.adds else max(lasting, default=0) <= max(shown, default=0)
        is_known = shown <= {w.number for w in writes if self._may_show(w, until)} - gone
        if not (is_there and is_known):
            raise AssertionError(f"{who}, as of {asked} to {until}: {entity} shows {shown}, after {calls}")
        for number in shown:
            self.seen.setdefault((entity, number), self.turns.step)

    # -- fills that are held back ------------------------------------------------------------------------

    def _may_show(self, write: Call, until: float) -> bool:
        """Whether a read until a step may show a write: if it was held back, it must have been published."""
        if write.held_at is None:
            return not write.is_refused
        until = min([until, *(self._closed_at(write, call) for call in self.calls)])
        publishes = [call for call in self.calls if call.what == "publish" and call.result is not None]
        return any(call.ended >= write.began and call.began <= until for call in publishes)

    @staticmethod
    def _closed_at(write: Call, call: Call) -> float:
        """The step from which on a call prevents that a write that is held back is published."""
        assert write.held_at is not None
        if call.began <= write.held_at:
            return math.inf
        if call.held_at is not None:
            return call.held_at
        return call.ended if call.what == "discard" and call.result not in (None, _UNKNOWN) else math.inf

    def _settle(self, publish: Call) -> None:
        """What was published counts since then, if that is known."""
        held = [c for c in self.calls if c.held_at is not None and self._may_show(c, publish.began)]
        if len(held) != 1 or held[0].held_at > publish.began:
            return
        write = held[0]
        others = [c for c in self.calls if c.what in ("write", "publish", "discard") and not c.is_refused]
        if all(c in (write, publish) or c.ended < write.began or c.began > publish.ended for c in others):
            write.began, write.ended, write.held_at = publish.began, publish.ended, None
