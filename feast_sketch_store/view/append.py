"""Semantics of list views: the items of all rows of an entity count, until they are removed or expire."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.layers import ExactLayer
from feast_sketch_store.layers.prepared import NO_LIMIT, Wanted
from feast_sketch_store.rows.codecs import EMPTY, VALUE, FeatureCodec
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.encoding import (
    CREATED_TIMESTAMP,
    DELETED,
    NO_TIMESTAMP,
    EncodedRows,
    FeastRow,
    RowKeys,
    as_damage,
    row_keys,
)
from feast_sketch_store.rows.entity_keys import JoinKeys, find_sorted
from feast_sketch_store.rows.list_log import (
    OPERATION,
    columns_of,
    encode_lists,
    is_times_column,
    to_list_log,
    with_lists,
)
from feast_sketch_store.rows.lists import (
    as_sealed,
    newest_of,
    removed_name,
    united,
)
from feast_sketch_store.rows.newest import Batches
from feast_sketch_store.view.semantics import FoldedRows, RowSemantics


class AppendedRows:
    """The items of all rows of a log that count; attributes as of `FoldedRows`.

    All items are in memory together, 12 bytes each beside their values.
    """

    def __init__(
        self,
        batches: Batches,
        codecs: Sequence[FeatureCodec],
        expire_before: int = NO_TIMESTAMP,
        kept_microseconds: int | None = None,
    ):
        self._batches = batches
        self.num_rows = 0
        parts: list[EncodedRows] = []
        for batch in batches(None):
            self.num_rows += len(batch)
            parts.append(encode_lists(batch, codecs))
            while len(parts) > 1 and 2 * len(parts[-1]) >= len(parts[-2]):
                newer, older = parts.pop(), parts.pop()
                parts.append(united(older.followed_by(newer)))
        while len(parts) > 1:
            newer, older = parts.pop(), parts.pop()
            parts.append(united(older.followed_by(newer)))
        rows = parts[0]
        if kept_microseconds is not None:
            newest = int(rows.keys.event_timestamps.max(initial=NO_TIMESTAMP, where=~rows.keys.deleted))
            expire_before = min(expire_before, newest - kept_microseconds)
        self.expire_before = expire_before
        self.has_dead = bool(rows.keys.fences.any())
        names = [codec.feature for codec in codecs if codec.is_list]
        has_items = np.zeros(len(rows), np.bool_)
        features = {}
        for name in names:
            feature, removed = rows.features[name], rows.features.get(removed_name(name))
            items = newest_of(feature.csr, None, expire_before)
            self.has_dead |= len(items.ids) < len(feature.symbols)
            self.has_dead |= removed is not None and bool(removed.states.any())
            has_items |= items.lengths > 0
            features[name] = feature.with_rows(_emptied(feature.states, items), items)
        events = rows.keys.event_timestamps
        alive = ~rows.keys.deleted & (events > NO_TIMESTAMP) & (has_items | (events >= expire_before))
        self.has_dead |= not alive.all()
        self._rows = EncodedRows(rows.keys, features).take(np.flatnonzero(alive))
        self.keys = self._rows.keys

    def __len__(self) -> int:
        return len(self.keys)

    def batches(self) -> Iterator[tuple[NDArray[np.int64], pa.Table]]:
        """One row of the log per entity: which of ``keys`` they belong to, int64[n], and the rows."""
        is_missing = np.ones(len(self), np.bool_)
        for batch in self._batches(None):
            found, places = find_sorted(self.keys.entity_hashes, row_keys(batch).entity_hashes)
            places, first = np.unique(places, return_index=True)
            is_new = is_missing[places]
            places, found = places[is_new], found[first][is_new]
            if len(places):
                is_missing[places] = False
                with as_damage():
                    yield places, self._logged(batch.take(pa.array(found)), places)

    def _logged(self, table: pa.Table, places: NDArray[np.int64]) -> pa.Table:
        """Rows of the log with whole lists, in place of some rows of the same entities."""
        rows = self._rows.take(places)
        own = [name for name in table.column_names if name in rows.features or is_times_column(name)]
        created = rows.keys.created_timestamps
        columns = {
            CREATED_TIMESTAMP: pa.array(created, mask=created == NO_TIMESTAMP),
            DELETED: pa.nulls(len(table), pa.bool_()),
        }
        table = table.drop_columns(own)
        for name, column in columns.items():
            at = table.column_names.index(name)
            table = table.set_column(at, name, column.cast(table.schema.field(name).type))
        return with_lists(table, rows)

    def lists(self, places: NDArray[np.int64]) -> EncodedRows:
        """The whole lists of some entities, with exact times; entities are given by their places among
        ``keys``.
        """
        return self._rows.take(places)

    def encoded(self, codecs: Sequence[FeatureCodec]) -> Iterator[tuple[NDArray[np.int64], EncodedRows]]:
        """All rows, as a seal keeps them."""
        if len(self):
            lists = {codec.feature: codec for codec in codecs if codec.is_list}
            yield np.arange(len(self)), as_sealed(self._rows, lists, NO_TIMESTAMP)


def _emptied(states: NDArray[np.uint8], items: Csr) -> NDArray[np.uint8]:
    """States of lists, some of which may have lost all their items."""
    return np.where((states == VALUE) & (items.lengths == 0), np.uint8(EMPTY), states)


class Append(RowSemantics):
    """Each row adds items to lists; some rows remove or replace items. See `rows.lists`.

    Parameters
    ----------
    codecs : of the view's lists, and of what gives their times.
    """

    name = "append"
    log_column = OPERATION

    def __init__(self, codecs: Sequence[FeatureCodec] = ()):
        self._lists = {codec.feature: codec for codec in codecs if codec.is_list}
        self._times = {codec.feature: codec for codec in codecs if codec.is_derived}

    def of(self, codecs: Sequence[FeatureCodec]) -> "Append":
        """See `RowSemantics.of`."""
        return Append(codecs)

    def to_log(
        self, rows: Sequence[FeastRow], codecs: Sequence[FeatureCodec], join_keys: JoinKeys | None
    ) -> pa.Table:
        """See `RowSemantics.to_log`."""
        return to_list_log(rows, codecs, join_keys)

    def columns(self, codecs: Sequence[FeatureCodec]) -> pa.Schema:
        """See `RowSemantics.columns`."""
        return columns_of(codecs)

    def wanted(self, features: Sequence[str]) -> Wanted:
        """See `RowSemantics.wanted`. An old row lives as long as it has items, of any list if none is
        wanted."""
        lists = [
            self._lists.get(self._times[name].times_of if name in self._times else name) for name in features
        ]
        shown = [
            None if codec is None else self._times.get(name, name)
            for codec, name in zip(lists, features, strict=True)
        ]
        others = [] if any(lists) else list(self._lists)
        cuts = [_cut_of(codec) for codec in [*lists, *map(self._lists.get, others)]]
        return Wanted((*shown, *others), tuple(cuts), len(shown))

    def fold(
        self, batches: Batches, expire_before: int = NO_TIMESTAMP, kept_microseconds: int | None = None
    ) -> FoldedRows:
        """The lists of all entities that are not deleted, without the items that are removed or expired."""
        return AppendedRows(batches, list(self._lists.values()), expire_before, kept_microseconds)

    def encode(self, table: pa.Table, codecs: Sequence[FeatureCodec]) -> EncodedRows:
        """Merge what the rows of each entity add and hide."""
        return encode_lists(table, codecs)

    def merge(self, older: EncodedRows, newer: EncodedRows) -> EncodedRows:
        """Merge what both parts add and hide."""
        return united(older.followed_by(newer))

    def late(
        self, keys: RowKeys, layers: Sequence[ExactLayer], sealed: Callable[[], RowKeys | None]
    ) -> NDArray[np.bool_]:
        """None: a late item counts."""
        return np.zeros(len(keys), np.bool_)


def _cut_of(codec: FeatureCodec | None) -> tuple[int, int]:
    """The most items that a list shows, and the microseconds within which it shows a value once."""
    if codec is None or codec.listing is None:
        return 1, 1
    limit = codec.listing.limit
    return NO_LIMIT if limit is None else limit, codec.listing.resolution_microseconds


APPEND = Append()
