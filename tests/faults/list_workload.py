"""The workload of lists, for the campaigns: what they write, and what must be there.

A batch adds items to the lists of a few entities, or writes an earlier batch once more, replaces lists,
removes values, or clears entities. Some items come late. Before some batches the view is sealed or vacuumed,
and some replace all there is by a rebuild. All is decided by the number of the batch.

An item is a value and a second: as sealed items know no more of their times, reads are compared exactly.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pyarrow as pa
from workload import START, Workload

from feast_sketch_store.rows.codecs import LIST, FeatureCodec
from feast_sketch_store.rows.encoding import deletion_rows
from feast_sketch_store.rows.list_log import REMOVE, REPLACE, ListRows
from feast_sketch_store.rows.listing import Listing
from feast_sketch_store.settings.view_settings import FeatureSettings, ViewSettings
from feast_sketch_store.storage.base import Storage
from feast_sketch_store.view.rebuilding import rebuild
from feast_sketch_store.view.seal_policy import SealPolicy
from feast_sketch_store.view.semantics import APPEND
from feast_sketch_store.view.view import View
from tests.helpers.keys import user_hashes

SECOND = 1_000_000
FIRST = int(START.timestamp()) * SECOND
CODEC = FeatureCodec("read", "string_list_val", LIST, listing=Listing(SECOND))
SETTINGS = ViewSettings("history", 1e-9, {"read": FeatureSettings(CODEC, 0.0, 10**6)}, semantics="append")
NEVER = SealPolicy(share=1.0, min_rows=10**9)
ADD, CLEAR = None, "clear"
NUM_ENTITIES, NUM_VALUES = 12, 6

Item = tuple[str, int]  # a value, and microseconds since 1970


@dataclass(frozen=True)
class ListWrite:
    """One batch: what it does with which items of which entities.

    Parameters
    ----------
    does : `ADD`, `REPLACE`, `REMOVE` or `CLEAR`. Items of a removal tell up to when values are removed.
    before : ``seal``, ``vacuum``, or nothing, which goes before it.
    rebuilds : whether the batch replaces all there is.
    """

    number: int
    does: str | None
    rows: tuple[tuple[int, tuple[Item, ...]], ...]
    before: str = ""
    rebuilds: bool = False


@dataclass
class Lists:
    """What the store must hold: per entity the items that are added and not removed."""

    items: dict[int, frozenset[Item]] = field(default_factory=dict)

    def with_write(self, write: ListWrite) -> "Lists":
        """The lists after one more write."""
        lists = {} if write.rebuilds else dict(self.items)
        for entity, items in write.rows:
            known = lists.pop(entity, frozenset())
            if write.does is ADD:
                known |= set(items)
            elif write.does == REPLACE:
                known = frozenset(items)
            elif write.does == REMOVE:
                until = dict(items)
                known = frozenset(item for item in known if item[1] > until.get(item[0], -1))
            else:
                known = frozenset()
            if known:
                lists[entity] = known
        return Lists(lists)


def plan_write(number: int) -> ListWrite:
    """The batch of a number, always the same."""
    rng = random.Random(number)
    # From a fifth of the batches on, one comes twice.
    if number % 5 == 3 and number > 8:
        earlier = plan_write(number - rng.randrange(1, 4))
        if earlier.does is ADD and not earlier.rebuilds:
            return ListWrite(number, ADD, earlier.rows)
    before = "vacuum" if number % 7 == 6 else "seal" if number % 7 == 2 else ""
    entities = sorted(rng.sample(range(NUM_ENTITIES), 4))
    does = [ADD, ADD, REMOVE, ADD, CLEAR, ADD, REPLACE, REMOVE][number % 8]
    if number % 13 == 12:
        return ListWrite(number, ADD, _rows(rng, number, entities), before, rebuilds=True)
    if does == CLEAR:
        return ListWrite(number, CLEAR, tuple((entity, ()) for entity in entities[:2]), before)
    if does == REMOVE:
        until = at(number - rng.choice([0, 0, 4]))
        values = [f"value {rng.randrange(NUM_VALUES)}" for _ in entities]
        rows = tuple((e, ((value, until),)) for e, value in zip(entities, values, strict=True))
        return ListWrite(number, REMOVE, rows, before)
    return ListWrite(number, does, _rows(rng, number, entities), before)


def _rows(
    rng: random.Random, number: int, entities: Iterable[int]
) -> tuple[tuple[int, tuple[Item, ...]], ...]:
    return tuple((entity, _items(rng, number)) for entity in entities)


def _items(rng: random.Random, number: int) -> tuple[Item, ...]:
    """Some items in the order of their times, among them late ones."""
    drawn = {
        (f"value {rng.randrange(NUM_VALUES)}", at(number - rng.choice([0, 0, 1, 6])))
        for _ in range(rng.randint(1, 3))
    }
    return tuple(sorted(drawn, key=lambda item: item[1]))


def at(second: int) -> int:
    """The time of an item."""
    return FIRST + second * SECOND


def apply_write(view: View, write: ListWrite) -> None:
    """Write a batch as the online store does."""
    if write.before == "vacuum":
        view.vacuum(orphan_age_seconds=0.0)
    elif write.before == "seal":
        view.seal()
    if write.rebuilds:

        def fill(staging: Storage) -> Storage:
            View(staging, SETTINGS, NEVER).write(to_rows(write.rows, None))
            return staging

        rebuild(view, fill)
    elif write.does == CLEAR:
        view.delete(deletions_of(entity for entity, _ in write.rows))
    else:
        view.write(to_rows(write.rows, write.does))


def deletions_of(entities: Iterable[int]) -> pa.Table:
    """The deletions of entities, as the online store writes them."""
    return deletion_rows(_keys(entities), START)


def to_rows(rows: Iterable[tuple[int, tuple[Item, ...]]], does: str | None) -> ListRows:
    """Items as rows of one operation."""
    lists = [items for _, items in rows]
    indptr = np.concatenate(([0], np.cumsum([len(items) for items in lists]))).astype(np.int64)
    values = pa.array([value for items in lists for value, _ in items], pa.large_string())
    times = np.array([moment for items in lists for _, moment in items], np.int64)
    events = np.array([items[-1][1] for items in lists], np.int64)
    return ListRows(_keys(entity for entity, _ in rows), "read", indptr, values, times, events, does)


def _keys(entities: Iterable[int]) -> dict[str, pa.Array]:
    return {"user_id": pa.array(list(entities), pa.int64())}


def read_lists_of(view: View, num_entities: int = NUM_ENTITIES) -> dict[int, list[Item]]:
    """Per entity its items, newest first; not of those without any."""
    lists = {}
    answer = view.read(user_hashes(range(num_entities)), ["read"])
    if not len(answer.found):
        return {}  # also of a view that no row was ever written to, which knows no feature
    feature = answer.features["read"]
    items = feature.csr
    assert items.weights is not None
    storage = feature.vocabulary.values
    values = CODEC.from_storage(storage.take(pa.array(items.ids))).to_pylist()
    times = items.weights.tolist()
    for row, entity in enumerate(answer.found.tolist()):
        first, end = items.indptr[row : row + 2].tolist()
        if first < end:
            lists[entity] = list(zip(values[first:end], times[first:end], strict=True))
    return lists


def matches(lists: dict[int, list[Item]], wanted: Lists) -> bool:
    """Whether the store holds what the reference says: each item once, and newest first."""
    return lists.keys() == wanted.items.keys() and all(
        len(items) == len(wanted.items[entity])
        and wanted.items[entity] == set(items)
        and all(one[1] >= other[1] for one, other in pairwise(items))
        for entity, items in lists.items()
    )


LISTS = Workload([SETTINGS], [CODEC], APPEND, Lists(), plan_write, apply_write, read_lists_of, matches)
