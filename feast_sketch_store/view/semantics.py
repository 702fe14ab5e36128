"""Row semantics: how several rows of an entity combine.

Rows of one entity meet in four places, and a semantics decides in all of them:

    in a batch        rows of one commit, or of several that are loaded together
    in the log        all rows, when a view is sealed or verified
    among unsealed    layers of rows in memory are merged as they grow
    in a read         layers that know an entity, newest first

`Replace` is Feast's: the newest row of an entity replaces those before it. With `Append`, the items of all
rows of an entity count, in lists until they expire, and in lists and sets until they are removed.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Final, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.layers import ExactLayer
from feast_sketch_store.layers.row_reader import (
    ADDED_UP,
    NO_LIMIT,
    Column,
    Layer,
    Wanted,
    read,
    stack,
    stored_name,
)
from feast_sketch_store.rows import count_log, list_log
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.columns import has_values, with_column
from feast_sketch_store.rows.count_log import counts_column
from feast_sketch_store.rows.encoding import (
    CREATED_TIMESTAMP,
    DELETED,
    ENTITY_KEY,
    KEY_COLUMNS,
    NO_TIMESTAMP,
    NULLS,
    EncodedRows,
    FeastRow,
    RowKeys,
    as_damage,
    encode,
    first_due,
    newest_rows,
    row_keys,
    to_arrow,
)
from feast_sketch_store.rows.entity_keys import JoinKeys, find_sorted, join_keys_of
from feast_sketch_store.rows.increments import Remembered, counted_once, is_times_column, times_column
from feast_sketch_store.rows.list_log import encode_lists, to_list_log, with_lists, without
from feast_sketch_store.rows.listing import ALWAYS
from feast_sketch_store.rows.lists import as_sealed, newest_of, removed_name, united
from feast_sketch_store.rows.newest import Batches, NewestRows
from feast_sketch_store.rows.vocabulary import Vocabulary

REPLACE: Final = "replace"
APPEND: Final = "append"


class AppendedRows:
    """The items of all rows of a log that count; parameters as of `RowSemantics.fold`, public fields as of
    `NewestRows`.

    All items are in memory together, 12 bytes each in addition to their values.
    """

    def __init__(
        self, semantics: "Append", batches: Batches, expire_before: int, kept_microseconds: int | None
    ):
        self._batches, self._semantics = batches, semantics
        self.num_rows = self.num_undeclared = 0
        self._undeclared: set[str] = set()
        parts: list[EncodedRows] = []
        for batch in itertools.chain([semantics.to_log([], None)], batches(None)):
            self.num_rows += len(batch)
            others = _undeclared_in(batch, semantics.codecs)
            self._undeclared |= others
            self.num_undeclared += int(has_values(batch, others).sum())
            before = [ExactLayer(part) for part in reversed(parts)]
            parts.append(semantics.encode(batch, before))
            if (first := first_due(parts)) < len(parts) - 1:
                parts[first:] = [semantics.merge(parts[first:])]
        rows = parts[0] if len(parts) == 1 else semantics.merge(parts)
        if kept_microseconds is not None:
            newest = int(rows.keys.event_timestamps.max(initial=NO_TIMESTAMP, where=~rows.keys.deleted))
            expire_before = min(expire_before, newest - kept_microseconds)
        self.expire_before = expire_before
        self.has_dead = bool(rows.keys.delete_barriers.any())
        has_items = np.zeros(len(rows), np.bool_)  # that have not expired
        features = {}
        for codec in semantics.stored.values():
            name = codec.feature
            feature, removed = rows.features[name], rows.features.get(removed_name(name))
            items = feature.csr
            if (listing := codec.listing) is not None:
                most = listing.most_sealed if codec.ids_of else None  # others are never read
                items = newest_of(items, most, listing.first_stamp(expire_before))
                has_items |= items.lengths > 0
            self.has_dead |= len(items.ids) < len(feature.symbols)
            self.has_dead |= removed is not None and bool(removed.states.any())
            features[name] = feature.with_items(items)
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

    def undeclared(self) -> Iterator[pa.Table]:
        """What the rows of the same entities add to features that the settings lack.

        Another process has declared them, or they are declared again later.
        """
        if not self._undeclared:
            return
        keys = RowKeys.concatenate([row_keys(batch) for batch in self._batches(KEY_COLUMNS)])
        kept, _ = keys.after_barriers()
        found, _ = find_sorted(self.keys.entity_hashes, keys.entity_hashes[kept])
        is_kept, first = np.zeros(len(keys), np.bool_), 0
        is_kept[kept[found]] = True
        declared = [codec.feature for codec in self._semantics.codecs]
        for batch in self._batches(None):
            names, others = {*batch.column_names}, self._undeclared
            if self._semantics.adds_up and not any(counts_column(name) in names for name in others):
                # Ids that are not declared belong to counts that are: these were added up.
                others = {name for name in others if times_column(name) not in names}
            own = has_values(batch, others) & is_kept[first : first + len(batch)]
            first += len(batch)
            if own.any():
                rows = without(batch.filter(pa.array(own)), [*declared, *(self._undeclared - others)])
                yield with_column(rows, NULLS, pa.nulls(len(rows), rows.schema.field(NULLS).type))

    def _logged(self, table: pa.Table, places: NDArray[np.int64]) -> pa.Table:
        """Rows of the log with whole lists, which replace some rows of the same entities."""
        table, rows = without(table, self._undeclared), self._rows.take(places)
        own = [
            name
            for name in table.column_names
            if name in rows.features or is_times_column(name) or count_log.is_counts_column(name)
        ]
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
        """The whole lists of some entities, with exact times; entities are given by their indexes in
        ``keys``.
        """
        return self._rows.take(places)

    def encoded(self, codecs: Sequence[FeatureCodec]) -> Iterator[tuple[NDArray[np.int64], EncodedRows]]:
        """All rows, as a seal keeps them."""
        if len(self):
            wanted = {codec.feature: codec for codec in codecs}
            yield np.arange(len(self)), as_sealed(self._rows, wanted)


def _undeclared_in(table: pa.Table, codecs: Sequence[FeatureCodec]) -> set[str]:
    """The features that have values in rows of the log, and no codec."""
    if not len(table):
        return set()
    known = {codec.feature for codec in codecs} | join_keys_of(table[ENTITY_KEY][0].as_py()).keys()
    names = (name for name in table.column_names if not name.startswith("__") and name not in known)
    return {name for name in names if table[name].null_count < len(table)}


FoldedRows: TypeAlias = NewestRows | AppendedRows  # of a log: the rows that count


class RowSemantics(ABC):
    """How the rows of one entity of a view combine. Immutable."""

    name: ClassVar[str]  # by which settings and snapshots know it

    def __init__(self, codecs: Sequence[FeatureCodec]):
        self.codecs = codecs
        self.adds_up = False  # whether rows that are read twice would count twice

    @abstractmethod
    def to_log(self, rows: Sequence[FeastRow], join_keys: JoinKeys | None) -> pa.Table:
        """Turn the rows of one write into a table of the row log; see `encoding.to_arrow`."""

    @abstractmethod
    def columns(self) -> pa.Schema:
        """The columns of the row log that hold features."""

    @abstractmethod
    def wanted(self, features: Sequence[str | FeatureCodec]) -> Wanted:
        """What a read of some features requests from layers: by name, or a list by its codec, with stamps."""

    @abstractmethod
    def fold(
        self, batches: Batches, expire_before: int = NO_TIMESTAMP, kept_microseconds: int | None = None
    ) -> FoldedRows:
        """The rows of a log that count; parameters as those of `NewestRows`."""

    @abstractmethod
    def encode(self, table: pa.Table, layers: Sequence[Layer] = ()) -> EncodedRows:
        """Rows in commit order as one row per entity, ordered by hash.

        ``layers`` have the rows before these, from the newest layer to the oldest.
        """

    @abstractmethod
    def merge(self, parts: Sequence[EncodedRows]) -> EncodedRows:
        """One row per entity of parts, from the oldest to the newest, ordered by hash."""

    @abstractmethod
    def late(
        self, keys: RowKeys, layers: Sequence[ExactLayer], sealed: Callable[[], RowKeys | None]
    ) -> NDArray[np.bool_]:
        """Which new rows do not count, because their entities have newer rows: bool[n].

        Parameters
        ----------
        keys : of the new rows, one per entity.
        layers : the unsealed rows, from the oldest to the newest.
        sealed : gives the keys of the sealed rows, which may have to be read from a file; None for none.
        """


class Replace(RowSemantics):
    """The newest row replaces those before it: by event timestamp, created timestamp, order of commit."""

    name = REPLACE

    def __init__(self, codecs: Sequence[FeatureCodec]):
        super().__init__(codecs)
        self._counts: dict[str | FeatureCodec, FeatureCodec] = {
            codec.feature: codec for codec in codecs if codec.counts_of
        }

    def to_log(self, rows: Sequence[FeastRow], join_keys: JoinKeys | None) -> pa.Table:
        return to_arrow(rows, self.codecs, join_keys)

    def columns(self) -> pa.Schema:
        return count_log.columns_of(self.codecs)

    def wanted(self, features: Sequence[str | FeatureCodec]) -> Wanted:
        """See `RowSemantics.wanted`: counts accompany their values."""
        return Wanted(tuple(self._counts.get(name, name) for name in features))

    def fold(
        self, batches: Batches, expire_before: int = NO_TIMESTAMP, kept_microseconds: int | None = None
    ) -> FoldedRows:
        """The newest row of each entity that is neither deleted nor expired."""
        return NewestRows(batches, expire_before, kept_microseconds)

    def encode(self, table: pa.Table, layers: Sequence[Layer] = ()) -> EncodedRows:
        """The newest row of each entity."""
        return encode(*newest_rows(table), self.codecs)

    def merge(self, parts: Sequence[EncodedRows]) -> EncodedRows:
        """The newest row of each entity."""
        return EncodedRows.newest_of(parts)

    def late(
        self, keys: RowKeys, layers: Sequence[ExactLayer], sealed: Callable[[], RowKeys | None]
    ) -> NDArray[np.bool_]:
        """Which rows are older than the known row of their entity."""
        late = np.zeros(len(keys), np.bool_)
        unlisted = np.ones(len(keys), np.bool_)
        for layer in reversed(layers):
            # The newest layer that lists an entity decides. An older one may hold deleted rows.
            found, places = layer.find(keys.entity_hashes)
            first = unlisted[found]
            late[found[first]] = keys.older_than(found[first], layer.rows.keys, places[first])
            unlisted[found] = False
        # A row in an unsealed layer has already won against the sealed row.
        suspects = np.flatnonzero(unlisted)
        if len(suspects) and (order := sealed()) is not None:
            found, places = find_sorted(order.entity_hashes, keys.entity_hashes[suspects])
            late[suspects[found]] |= keys.older_than(suspects[found], order, places)
        return late


class Append(RowSemantics):
    """Each row adds to lists, sets and counts; some rows remove or replace. See `rows.lists`."""

    name = APPEND

    def __init__(self, codecs: Sequence[FeatureCodec]):
        super().__init__(codecs)
        # the codecs of features that rows have themselves, by name
        self.stored: dict[str | None, FeatureCodec] = {
            codec.feature: codec for codec in codecs if not codec.is_derived
        }
        self._derived: dict[str | FeatureCodec, FeatureCodec] = {
            codec.feature: codec for codec in codecs if codec.is_derived
        }
        self.adds_up = any(codec.is_counted for codec in codecs)

    def to_log(self, rows: Sequence[FeastRow], join_keys: JoinKeys | None) -> pa.Table:
        return to_list_log(rows, self.codecs, join_keys)

    def columns(self) -> pa.Schema:
        return list_log.columns_of(self.codecs)

    def wanted(self, features: Sequence[str | FeatureCodec]) -> Wanted:
        """See `RowSemantics.wanted`. An old row lives as long as it has items, of any list if none is
        wanted."""
        asked = [self._derived.get(name, name) for name in features]
        stored = [self.stored.get(stored_name(each)) for each in asked]
        shown = [None if codec is None else each for codec, each in zip(stored, asked, strict=True)]
        others = [] if any(stored) else [name for name, codec in self.stored.items() if codec.is_list]
        cuts = [_cut_of(codec) for codec in [*stored, *map(self.stored.get, others)]]
        return Wanted((*shown, *others), tuple(cuts), len(shown))

    def fold(
        self, batches: Batches, expire_before: int = NO_TIMESTAMP, kept_microseconds: int | None = None
    ) -> FoldedRows:
        """What all entities have that are not deleted, without the items that are removed or expired."""
        return AppendedRows(self, batches, expire_before, kept_microseconds)

    def encode(self, table: pa.Table, layers: Sequence[Layer] = ()) -> EncodedRows:
        """Merge what the rows of each entity add and hide; what was counted before counts no more."""

        def known(ids: FeatureCodec, entity_hashes: NDArray[np.uint64], vocabulary: Vocabulary) -> Remembered:
            rows = stack(layers, self.wanted([ids.feature]))
            column = Column(ids.feature, ids, known=vocabulary)
            answer = read(rows, [column], entity_hashes, NO_TIMESTAMP)
            csr = answer.features[ids.feature].csr
            return answer.found[csr.rows], csr.ids

        return encode_lists(counted_once(table, self.codecs, known), self.codecs)

    def merge(self, parts: Sequence[EncodedRows]) -> EncodedRows:
        """Merge what the parts add and hide."""
        return united(EncodedRows.joined(parts))

    def late(
        self, keys: RowKeys, layers: Sequence[ExactLayer], sealed: Callable[[], RowKeys | None]
    ) -> NDArray[np.bool_]:
        """None: a late item counts."""
        return np.zeros(len(keys), np.bool_)


def _cut_of(codec: FeatureCodec | None) -> tuple[int, int, int]:
    """The entry of a feature in `Wanted.lists`."""
    if codec is None:
        return 1, 1, NO_LIMIT
    if codec.is_counted:
        return NO_LIMIT, ADDED_UP, NO_LIMIT
    listing = codec.listing
    if listing is None:
        return NO_LIMIT, ALWAYS, NO_LIMIT
    return listing.limit or NO_LIMIT, listing.resolution_microseconds, listing.most_sealed or NO_LIMIT


SEMANTICS: Final[dict[str, type[RowSemantics]]] = {kind.name: kind for kind in (Replace, Append)}


def named(name: str, codecs: Sequence[FeatureCodec]) -> RowSemantics:
    """The semantics with a name, for a view with these features.

    Raises ValueError: this process does not know it.
    """
    if name not in SEMANTICS:
        raise ValueError(
            f"its rows combine by the semantics {name!r}, which this process does not know; it knows "
            f"{', '.join(sorted(SEMANTICS))}"
        )
    return SEMANTICS[name](codecs)
