"""The workload of the campaigns: what they write, how they read it back, and their processes."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # some packages install a folder `tests`, too

import pyarrow as pa
from feast.protos.feast.types.Value_pb2 import StringSet, Value

from feast_sketch_store.layers import Goal
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.encoding import deletions
from feast_sketch_store.settings.view_settings import FeatureSettings, ViewSettings
from feast_sketch_store.storage.base import Storage
from feast_sketch_store.view.seal_policy import SealPolicy
from feast_sketch_store.view.view import View
from tests.helpers.keys import user_hashes, user_key
from tests.oracle.messages import feast_values

START = datetime(2026, 1, 1, tzinfo=UTC)

# What was bought was viewed, so sets of both share their values and codes.
CODECS = [
    FeatureCodec("viewed", "string_set_val"),
    FeatureCodec("bought", "string_set_val"),
    FeatureCodec("write", "string_val"),
]
# Campaigns look at many snapshots: a false positive must be rare among all of them.
_RATE = 1e-9
NEVER = SealPolicy(share=1.0, min_rows=10**9)
BY_DELTAS = SealPolicy(share=4.0, min_rows=3, by_deltas=True)  # seals each batch, mostly as a delta


def _settings_with(goal: Goal | float) -> ViewSettings:
    features = {c.feature: FeatureSettings(c, goal if c.is_collection else _RATE, 10**6) for c in CODECS}
    return ViewSettings("history", _RATE, features)


# Who seals builds one of these structures, over what others left.
SETTINGS = [_settings_with(goal) for goal in (_RATE, Goal("error_rate", _RATE, "sets"))]
POLICIES = [SealPolicy(share=0.5, min_rows=5), BY_DELTAS]


@dataclass(frozen=True)
class Workload:
    """What a campaign does to a view, and how it knows what must be there.

    Parameters
    ----------
    settings : of the view, of which processes take one in turn.
    codecs, semantics : of the view.
    nothing : the reference of an empty view; it has ``with_write``.
    plan : the batch of a number, always the same.
    apply : writes a batch to a view.
    read : all that a view has.
    matches : whether that is what a reference says.
    """

    settings: Sequence[ViewSettings]
    codecs: Sequence[FeatureCodec]
    semantics: str
    nothing: Any
    plan: Callable[[int], Any]
    apply: Callable[[View, Any], None]
    read: Callable[[View], Any]
    matches: Callable[[Any, Any], bool]

    def open(self, storage: Storage, turn: int = 0, policy: SealPolicy | None = None) -> View:
        """The view, read anew; it builds another structure each turn, and deltas every second one."""
        policy = policy or POLICIES[turn % len(POLICIES)]
        return View(storage, self.settings[turn % len(self.settings)], policy, 0.0)


def items_of(entity: int, number: int) -> list[str]:
    return [f"item-{entity}-{number % 50}", f"item-{number % 7}"]


def bought_of(entity: int, number: int) -> list[str]:
    return items_of(entity, number)[number % 2 :]


def rows_of(entities: Iterable[int], number: int, event: datetime) -> list[Any]:
    """A row per entity, all of whose values tell the number of the write."""
    return [
        (
            user_key(entity),
            {
                "viewed": Value(string_set_val=StringSet(val=items_of(entity, number))),
                "bought": Value(string_set_val=StringSet(val=bought_of(entity, number))),
                "write": Value(string_val=str(number)),
            },
            event,
            None,
        )
        for entity in entities
    ]


def write_rows(view: View, entities: Iterable[int], number: int, event: datetime) -> None:
    """Write one row per entity, see `rows_of`."""
    view.write(rows_of(entities, number, event))


def deletions_of(entities: Iterable[int]) -> pa.Table:
    """The deletions of entities, as the online store writes them."""
    return deletions([user_key(entity) for entity in entities], START)


def delete_rows(view: View, entities: Iterable[int]) -> None:
    view.delete(deletions_of(entities))


def read_rows(view: View, num_entities: int) -> dict[int, tuple[int, set[str]]]:
    """Per entity its ``write``, -1 if that is not a number, and what it ``viewed`` and ``bought``."""
    rows = {}
    answer = view.read(user_hashes(range(num_entities)), [codec.feature for codec in CODECS])
    columns = (feast_values(f) for f in answer.features.values())
    for position, viewed, bought, number in zip(answer.found.tolist(), *columns, strict=True):
        text = number.string_val if number is not None else ""
        items = set(viewed.string_set_val.val) if viewed is not None else set()
        if bought is not None:
            items |= {_bought(item) for item in bought.string_set_val.val}
        rows[position] = (int(text) if text.isdecimal() else -1, items)
    return rows


def _bought(item: str) -> str:
    """An item as one that was bought, among those that were viewed."""
    return f"bought {item}"


def is_whole(entity: int, row: tuple[int, set[str]]) -> bool:
    """Whether all values of a row are of one write; sets may hold false positives."""
    number, items = row
    if number < 0:
        return False
    return items >= {*items_of(entity, number), *map(_bought, bought_of(entity, number))}


def in_child(task: Callable[[int], None]) -> tuple[int, Iterator[str]]:
    """Fork; the child runs the task with a pipe to report to. Gives its pid and the lines it reports."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        status = 1
        with contextlib.suppress(BaseException):
            task(writing)
            status = 0
        os._exit(status)
    os.close(writing)
    return pid, iter(os.fdopen(reading))
