"""What the campaigns write, how they read it back, and the processes they run in."""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from feast.protos.feast.types.Value_pb2 import StringSet, Value

from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.encoding import deletions
from feast_sketch_store.view.sealing import SealPolicy
from feast_sketch_store.view.semantics import RowSemantics
from feast_sketch_store.view.settings import FeatureSettings, ViewSettings
from feast_sketch_store.view.view import View
from tests.helpers.keys import user_hashes, user_key

START = datetime(2026, 1, 1, tzinfo=UTC)

CODECS = [FeatureCodec("viewed", "string_set_val"), FeatureCodec("write", "string_val")]
# Campaigns look at many snapshots: a false positive must be rare among all of them.
SETTINGS = ViewSettings("history", 1e-9, {c.feature: FeatureSettings(c, 1e-9, 10**6) for c in CODECS})
POLICY = SealPolicy(share=0.5, min_rows=5)
NEVER = SealPolicy(share=1.0, min_rows=10**9)


@dataclass(frozen=True)
class Workload:
    """What a campaign does to a view, and how it knows what must be there.

    Parameters
    ----------
    settings, codecs, semantics : of the view.
    nothing : the reference of an empty view; it has ``with_write``.
    plan : the batch of a number, always the same.
    apply : writes a batch to a view.
    read : all that a view has.
    matches : whether that is what a reference says.
    """

    settings: ViewSettings
    codecs: Sequence[FeatureCodec]
    semantics: RowSemantics
    nothing: Any
    plan: Callable[[int], Any]
    apply: Callable[[View, Any], None]
    read: Callable[[View], Any]
    matches: Callable[[Any, Any], bool]


def items_of(entity: int, number: int) -> list[str]:
    return [f"item-{entity}-{number % 50}", f"item-{number % 7}"]


def write_rows(
    view: View, entities: Iterable[int], number: int, event: datetime, policy: SealPolicy | None = None
) -> None:
    """Write one row per entity, all of whose values tell the number of the write."""
    rows = [
        (
            user_key(entity),
            {
                "viewed": Value(string_set_val=StringSet(val=items_of(entity, number))),
                "write": Value(string_val=str(number)),
            },
            event,
            None,
        )
        for entity in entities
    ]
    view.policy = policy or POLICY
    view.write(rows)


def delete_rows(view: View, entities: Iterable[int]) -> None:
    """Delete entities as the online store does."""
    view.delete(deletions([user_key(entity) for entity in entities], START))


def read_rows(view: View, num_entities: int) -> dict[int, tuple[int, set[str]]]:
    """Per entity its ``write`` and its ``viewed``; -1 if its ``write`` is not a number."""
    rows = {}
    for answer in view.read(user_hashes(range(num_entities)), ["viewed", "write"]):
        viewed, write = (f.decoder.values(f.states, f.indptr, f.symbols) for f in answer.features.values())
        for position, items, number in zip(answer.found.tolist(), viewed, write, strict=True):
            text = number.string_val if number is not None else ""
            items = set(items.string_set_val.val) if items is not None else set()
            rows[position] = (int(text) if text.isdecimal() else -1, items)
    return rows


def is_whole(entity: int, row: tuple[int, set[str]]) -> bool:
    """Whether all values of a row are of one write; sets may hold false positives."""
    number, items = row
    return number >= 0 and items >= set(items_of(entity, number))


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
