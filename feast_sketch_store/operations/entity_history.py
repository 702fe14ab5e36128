"""What happened to one entity: each row of its log, whether it is sealed, and what reads showed after it."""

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import UTC
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from feast import FeatureStore
from feast.protos.feast.types.Value_pb2 import Value
from feast.type_map import feast_value_type_to_python_type

from feast_sketch_store.adapter.responses import Row, hash_entity_keys, rows_of
from feast_sketch_store.errors import shown
from feast_sketch_store.online_store import any_feature_view, online_store_of
from feast_sketch_store.operations.maintenance import entity_keys_of
from feast_sketch_store.row_log import RowLog
from feast_sketch_store.rows.codecs import MEMBERSHIP
from feast_sketch_store.rows.encoding import (
    CREATED_TIMESTAMP,
    DELETED,
    ENTITY_KEY,
    EVENT_TIMESTAMP,
    NO_TIMESTAMP,
    NULLS,
)
from feast_sketch_store.rows.entity_keys import key_text, serialize_entity_keys
from feast_sketch_store.rows.limits import aware
from feast_sketch_store.view.semantics import RowSemantics, named
from feast_sketch_store.view.shard_map import shard_of_hash
from feast_sketch_store.view.state import State

_OWN = (ENTITY_KEY, EVENT_TIMESTAMP, CREATED_TIMESTAMP, DELETED, NULLS)


@dataclass(frozen=True)
class LoggedRow:
    """A row of an entity in the row log, in the order of commits."""

    commit: str  # its number in the log of its shard, or the first and last one if several were put together
    source: str  # the file that has it
    is_sealed: bool  # whether a snapshot covers it
    # event_timestamp, created_timestamp: ISO 8601; None where there is none
    event_timestamp: str | None
    created_timestamp: str | None
    is_deletion: bool  # whether it deletes the entity
    # what was written, by feature; also the times and counts of a feature, and the operation
    values: Mapping[str, Any]
    # by feature, what reads without a filter's false values showed after it; None: no row
    shown: Mapping[str, Any] | None


@dataclass(frozen=True)
class EntityHistory:
    """All that the row log has of an entity. A compaction removes rows that were replaced."""

    view: str
    entity: str
    shard: int
    # of that shard: the number of commits that its snapshot covers; None without one
    snapshot_version: int | None
    rows: Sequence[LoggedRow]  # in the order of commits
    # by feature, what a read shows now; None if the entity is absent or its row has expired
    shown: Mapping[str, Any] | None
    # by feature with a filter, the values that a read shows and nobody wrote
    not_written: Mapping[str, Sequence[Any]]


def entity_history(store: FeatureStore, view: str, entity_row: Mapping[str, Any]) -> EntityHistory:
    """What the row log has of an entity, and what reads showed.

    ``entity_row`` has join keys and values, as for ``get_online_features``.

    Raises
    ------
    RowError : the row does not have the view's join keys, or a value has another type.
    DamagedFileError, StorageError : files cannot be read.
    """
    online_store, table = online_store_of(store), any_feature_view(store, view)
    (key,) = entity_keys_of(table, [entity_row])
    opened = online_store.writer(store.config, table)
    opened.refresh_all()
    hashes = hash_entity_keys([key])
    number = shard_of_hash(hashes, len(opened.shards))
    part = opened.shards[number]
    position, version = part.state.position, part.state.snapshot_version
    codecs = [codec for codec in opened.settings.codecs if not codec.is_computed]
    past = _Past(view, hashes, named(opened.settings.semantics, codecs), entity_row.keys())
    rows = [
        past.after(row, commit, source, last < (version or 0))
        for row, commit, source, last in _rows_of(part.row_log, serialize_entity_keys([key])[0])
    ]
    names = [codec.feature for codec in opened.settings.codecs]
    now = _plain(online_store.online_read(store.config, table, [key], names)[0])
    # Others show what was written, or near it: a list the beginnings of its ticks, counts rounded ones.
    sets = [codec.feature for codec in opened.settings.codecs if codec.name == MEMBERSHIP]
    not_written = _not_written(sets, now or {}, (rows[-1].shown if rows else None) or {})
    if not_written and part.state.position.number != position.number:
        # The values may be of a row that was written meanwhile.
        return entity_history(store, view, entity_row)
    return EntityHistory(view, key_text(key), number, version, rows, now, not_written)


def _rows_of(log: RowLog, serialized_key: bytes) -> Iterator[tuple[pa.Table, str, str, int]]:
    """The rows of an entity: each as a table, its commit, its file, and the number of its last commit."""
    found = log.read()
    files = {file.name: commit for commit in log.table_state().commits for file in commit.files}
    with log.unleased(found):
        for part in found.parts:
            name = getattr(part, "name", None) or getattr(getattr(part, "rows", None), "name", None)
            if name in files:
                first, last = files[name].first, files[name].through
            else:
                first = last = getattr(part, "number", -1)
            commit = str(last) if first in (last, -1) else f"{first}-{last}"
            for batch in part.batches():
                own = batch.filter(pc.equal(batch[ENTITY_KEY], pa.scalar(serialized_key, pa.large_binary())))
                for index in range(len(own)):
                    yield own.slice(index, 1), commit, name or "fresh/", last


class _Past:
    """Reads the rows of an entity up to each of them, as if there were no later one."""

    def __init__(self, view: str, hashes: bytes, semantics: RowSemantics, join_keys: Set[str]):
        self._view, self._hashes, self._semantics = view, hashes, semantics
        self._others = {*_OWN, *join_keys}
        self._tables: list[pa.Table] = []

    def after(self, row: pa.Table, commit: str, source: str, is_sealed: bool) -> LoggedRow:
        """A row, and what reads showed after it."""
        self._tables.append(row)
        values = {name: _readable(row[name][0]) for name in row.column_names}
        return LoggedRow(
            commit,
            source,
            is_sealed,
            _moment(values.get(EVENT_TIMESTAMP)),
            _moment(values.get(CREATED_TIMESTAMP)),
            bool(values.get(DELETED)),
            {
                _label(name): value
                for name, value in values.items()
                if name not in self._others and value is not None
            },
            self._shown(),
        )

    def _shown(self) -> Mapping[str, Any] | None:
        table = pa.concat_tables(self._tables, promote_options="default")
        state = State.of_rows(self._view, self._semantics, self._semantics.encode(table))
        names = tuple(codec.feature for codec in self._semantics.codecs)
        raw, _ = state.row_reader(names).rows(self._hashes, NO_TIMESTAMP)
        return _plain(rows_of(raw, names)[0])


def _label(column: str) -> str:
    """A column of the log in words: ``__times__viewed`` has the times of viewed."""
    return re.sub("^__([a-z]+)__", r"\1 of ", column).removeprefix("__")


def _plain(row: Row) -> Mapping[str, Any] | None:
    """The values of a row as Python has them; a feature that was not written is left out."""
    _, values = row
    if values is None:
        return None
    return {name: _listed(_as_python(value)) for name, value in values.items()}


def _as_python(value: Value) -> Any:
    """A value as Python has it; the text of one that it cannot represent, such as a moment after 9999."""
    try:
        return feast_value_type_to_python_type(value)
    except (ValueError, OverflowError, OSError):
        return str(value).strip()


def _readable(scalar: pa.Scalar) -> Any:
    """The same for a value of the row log."""
    try:
        return scalar.as_py()
    except OverflowError:
        is_list = isinstance(scalar, pa.LargeListScalar)
        return [_readable(each) for each in scalar.values] if is_list else shown(scalar)


def _listed(value: Any) -> Any:
    # Sorted by their text: not every value can be compared, such as a decimal that is no number.
    return sorted(value, key=lambda each: (str(type(each)), str(each))) if isinstance(value, set) else value


def _not_written(
    names: Sequence[str], now: Mapping[str, Any], exact: Mapping[str, Any]
) -> dict[str, Sequence[Any]]:
    """By feature, the values of sets that a read shows and that the rows do not have."""
    found: dict[str, Sequence[Any]] = {}
    for name in names:
        if isinstance(value := now.get(name), list):
            written = {*map(repr, exact.get(name) or ())}  # NaN differs from itself
            if more := [each for each in value if repr(each) not in written]:
                found[name] = more
    return found


def _moment(value: Any) -> str | None:
    return None if value is None else aware(value).astimezone(UTC).isoformat()
