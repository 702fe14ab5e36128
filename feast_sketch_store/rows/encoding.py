"""Rows between the row log and the layers: an Arrow schema, and its encoding as NumPy arrays.

Arrow rows (exact, as in the row log) become *encoded rows*: hashes for entities, symbol ids for values, one
CSR matrix per feature. Every layer is built from encoded rows.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from feast_sketch_store.errors import DamagedFileError, RowError
from feast_sketch_store.rows.codecs import EMPTY, MISSING, NULL, VALUE, FeatureCodec
from feast_sketch_store.rows.columns import list_lengths, optional_column
from feast_sketch_store.rows.count_log import counts_column, counts_of_rows, with_counts
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.entity_keys import (
    JOIN_KEY_TYPES,
    JoinKeys,
    check_join_keys,
    hash_serialized_keys,
    int64_column,
    serialize_columns,
    serialize_entity_keys,
)
from feast_sketch_store.rows.limits import check_moments, check_rows
from feast_sketch_store.rows.vocabulary import Vocabulary

if TYPE_CHECKING:
    from feast.protos.feast.types.EntityKey_pb2 import EntityKey
    from feast.protos.feast.types.Value_pb2 import Value

FeastRow: TypeAlias = "tuple[EntityKey, dict[str, Value], datetime, datetime | None]"

# Columns of the row log besides the join keys and the features.
ENTITY_KEY = "__entity_key"
EVENT_TIMESTAMP = "__event_timestamp"
CREATED_TIMESTAMP = "__created_timestamp"
NULLS = "__nulls"  # names of the features written as null; a null not named here was not written
DELETED = "__deleted"  # true in a row that deletes the earlier rows of its entity
OWN_COLUMNS = (ENTITY_KEY, EVENT_TIMESTAMP, CREATED_TIMESTAMP, NULLS, DELETED)
KEY_COLUMNS = (ENTITY_KEY, EVENT_TIMESTAMP, CREATED_TIMESTAMP, DELETED)

TIMESTAMP = pa.timestamp("us", tz="UTC")
NAMES = pa.large_list(pa.large_string())
NO_TIMESTAMP = np.iinfo(np.int64).min  # for a missing created timestamp: older than any other

ENTITYLESS_JOIN_KEY = "__dummy_id"


def to_arrow(
    rows: Sequence[FeastRow], codecs: Sequence[FeatureCodec], join_keys: JoinKeys | None = None
) -> pa.Table:
    """Turn the rows of one ``online_write_batch`` into a table of the row log.

    Parameters
    ----------
    rows : as Feast passes them; naive timestamps are in UTC.
    codecs : one per feature of the view.
    join_keys : of the view; None if they are not known.

    Returns columns: the join keys, the features, ``OWN_COLUMNS``, and those of counts.

    Raises RowError: a row has other join keys than the view, a feature that the view lacks, a value of
    another type, or counts that do not fit its values; or it is too large.
    """
    known = {codec.feature for codec in codecs}
    if not known.issuperset(itertools.chain.from_iterable(row[1] for row in rows)):
        _check_names(rows, known)
    entity_keys = [row[0] for row in rows]
    columns, serialized_keys = _key_columns(entity_keys, join_keys)
    nulls: dict[int, list[str]] = {}
    for codec in codecs:
        written = [row[1].get(codec.feature) for row in rows]
        if codec.is_computed:
            _check_unwritten(codec, written)
            continue
        columns[codec.feature], null_rows = codec.to_arrow(written)
        for row in null_rows:
            nulls.setdefault(row, []).append(codec.feature)
    events = _timestamps([row[2] for row in rows], "an event timestamp")
    created = _timestamps([row[3] for row in rows], "a created timestamp")
    names = pa.array([nulls.get(row) for row in range(len(rows))], NAMES) if nulls else None
    table = with_counts(log_table(columns, serialized_keys, events, created, names), codecs)
    check_rows(table)
    return table


def log_table(
    columns: Mapping[str, pa.Array],
    serialized_keys: pa.Array,
    events: pa.Array,
    created: pa.Array | None = None,
    nulls: pa.Array | None = None,
    are_deletions: bool = False,
) -> pa.Table:
    """Rows of the log: the columns of join keys and features, then ``OWN_COLUMNS``.

    Raises RowError: a row has no event timestamp.
    """
    if events.null_count:
        row = events.is_null().index(True).as_py()
        raise RowError(f"row {row} of the batch has no event timestamp. Give the row one, or leave it out")
    num_rows = len(serialized_keys)
    own = {
        ENTITY_KEY: serialized_keys,
        EVENT_TIMESTAMP: events,
        CREATED_TIMESTAMP: pa.nulls(num_rows, TIMESTAMP) if created is None else created,
        NULLS: pa.nulls(num_rows, NAMES) if nulls is None else nulls,
        # In every table: if it came only with a deletion, it would void a compaction in progress.
        DELETED: pa.array([True] * num_rows, pa.bool_()) if are_deletions else pa.nulls(num_rows, pa.bool_()),
    }
    return pa.table({name: c for name, c in columns.items() if name != ENTITYLESS_JOIN_KEY} | own)


def _check_names(rows: Sequence[FeastRow], known: set[str]) -> None:
    for number, (key, values, _, _) in enumerate(rows):
        # Feast repeats the join keys among the values of an on-demand view.
        if unknown := sorted(values.keys() - known - {*key.join_keys}):
            raise RowError(f"row {number} of the batch has {unknown}, features that the view lacks")


def _check_unwritten(codec: FeatureCodec, values: "Sequence[Value | None]") -> None:
    for row, value in enumerate(values):
        if value is not None and value.WhichOneof("val") not in (None, "null_val"):
            raise computed_value(codec, row)


def computed_value(codec: FeatureCodec, row: int) -> RowError:
    """The error for a row with a value for a computed feature."""
    return RowError(
        f"feature {codec.feature!r} has the codec {codec.name!r}, so it is computed from other features, but "
        f"row {row} of the batch has a value for it; leave the column out, or null"
    )


def deletions(
    entity_keys: "Sequence[EntityKey]", now: datetime, join_keys: JoinKeys | None = None
) -> pa.Table:
    """Rows of the row log that delete all earlier rows of some entities. ``join_keys`` are the view's; None
    if they are not known.

    Raises RowError: a key has other join keys than the view, or the keys are not all of one type.
    """
    return _deletions(*_key_columns(entity_keys, join_keys), now)


def deletion_rows(join_keys: Mapping[str, pa.Array], now: datetime) -> pa.Table:
    """`deletions` for entities whose join keys are given as columns; see `serialize_columns`."""
    return _deletions(join_keys, serialize_columns(join_keys), now)


def _deletions(columns: Mapping[str, pa.Array], serialized_keys: pa.Array, now: datetime) -> pa.Table:
    events = _timestamps([now] * len(serialized_keys), "a timestamp")
    return log_table(columns, serialized_keys, events, are_deletions=True)


def _key_columns(
    entity_keys: "Sequence[EntityKey]", join_keys: JoinKeys | None
) -> tuple[dict[str, pa.Array], pa.Array]:
    """The join keys as columns, for people who query the row log, and the serialized keys."""
    if join_keys is None or ENTITYLESS_JOIN_KEY in join_keys:
        entity_keys = [key if key.join_keys[:] else _entityless(key) for key in entity_keys]
    usual = int64_column(entity_keys)
    if join_keys is not None and (usual is None or join_keys != {usual[0]: "int64_val"}):  # a quick check
        check_join_keys(entity_keys, join_keys)
    if usual is not None:
        columns = {usual[0]: pa.array(usual[1])}
        return columns, serialize_columns(columns)
    try:
        serialized_keys = serialize_entity_keys(entity_keys)
    except ValueError as error:
        names = ", ".join(map(repr, entity_keys[0].join_keys))
        raise RowError(f"a value of join key {names} cannot be kept: {error}") from error
    return _join_key_columns(entity_keys), pa.array(serialized_keys, pa.large_binary())


def _entityless(key: "EntityKey") -> "EntityKey":
    """The key by which Feast reads a view without entities; pushed rows come without join keys."""
    made = type(key)(join_keys=[ENTITYLESS_JOIN_KEY])
    made.entity_values.add(string_val="")
    return made


def _join_key_columns(entity_keys: "Sequence[EntityKey]") -> dict[str, pa.Array]:
    by_name: dict[str, list[Value | None]] = {}
    for row, key in enumerate(entity_keys):
        # A slice of a repeated field is a list; iterating the field itself is four times slower.
        for name, value in zip(key.join_keys[:], key.entity_values[:], strict=True):
            if name not in by_name:
                by_name[name] = [None] * len(entity_keys)
            by_name[name][row] = value
    columns = {}
    for name, values in sorted(by_name.items()):
        fields = sorted({str(value.WhichOneof("val")) for value in values if value is not None})
        if len(fields) > 1 or fields[0] not in JOIN_KEY_TYPES:
            raise RowError(
                f"join key {name!r} arrives as {fields}; a batch takes one of {list(JOIN_KEY_TYPES)}"
            )
        columns[name], _ = FeatureCodec(name, fields[0]).to_arrow(values)
    return columns


def _timestamps(timestamps: Sequence[datetime | None], what: str) -> pa.Array:
    """A timestamp column; pandas' NaT, which differs from itself, is a null like None."""
    try:
        column = pa.array([t if t == t else None for t in timestamps], TIMESTAMP)
    except MemoryError:
        raise
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise RowError(f"a timestamp cannot be kept: {error}") from error
    return check_moments(column, what)


@dataclass(frozen=True)
class RowKeys:
    """The entities of n rows, and the timestamps that decide which row of an entity is its newest."""

    entity_hashes: NDArray[np.uint64]  # uint64[n, 2]
    # event_timestamps, created_timestamps: int64[n], microseconds since 1970 in UTC; ``NO_TIMESTAMP`` where a
    # row has no created timestamp
    event_timestamps: NDArray[np.int64]
    created_timestamps: NDArray[np.int64]
    deleted: NDArray[np.bool_]  # bool[n], rows that are deletions
    # bool[n], rows that hide all earlier ones, with any timestamps, because a deletion came in between
    delete_barriers: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.entity_hashes)

    @property
    def size_bytes(self) -> int:
        """Bytes of the arrays."""
        return sum(getattr(self, name).nbytes for name in self.__dataclass_fields__)

    def take(self, rows: NDArray[np.int64]) -> "RowKeys":
        """The rows with these numbers, in this order."""
        return RowKeys(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))

    @staticmethod
    def none() -> "RowKeys":
        """No rows."""
        flags, times = np.zeros(0, np.bool_), np.zeros(0, np.int64)
        return RowKeys(np.zeros((0, 2), np.uint64), times, times, flags, flags)

    @staticmethod
    def concatenate(parts: Sequence["RowKeys"]) -> "RowKeys":
        """Concatenate the rows of one or more parts."""
        names = RowKeys.__dataclass_fields__
        return RowKeys(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def newest(self) -> tuple[NDArray[np.int64], "RowKeys"]:
        """The row that wins for each entity, ordered by entity hash. The rows must be in commit order.

        Nothing before an entity's last barrier counts. After it the latest row wins by event timestamp, then
        created timestamp, then position; a deletion wins only if nothing was written after it.

        Returns the winners, int64[entities], and their keys.
        """
        rows, behind_barriers = self.after_barriers()
        keys = self.take(rows) if len(rows) < len(self) else self
        order = np.argsort(keys.entity_hashes[:, 0])
        ascending = keys.entity_hashes[order, 0]
        if (ascending[1:] == ascending[:-1]).any():  # in most batches, each entity has one row
            order = np.lexsort(
                (
                    keys.created_timestamps,
                    keys.event_timestamps,
                    ~keys.deleted,
                    keys.entity_hashes[:, 1],
                    keys.entity_hashes[:, 0],
                )
            )  # stable: equal rows keep their order
            ordered = keys.entity_hashes[order]
            is_last = np.ones(len(order), np.bool_)
            is_last[:-1] = (ordered[1:] != ordered[:-1]).any(axis=1)
            order = order[is_last]
        winners = rows[order]
        del rows, order  # which would take memory in addition to the result
        return winners, replace(self.take(winners), delete_barriers=behind_barriers[winners])

    def after_barriers(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The rows that no later barrier of their entity hides, and whether each row's entity has one."""
        everything = np.arange(len(self))
        if not self.delete_barriers.any():
            return everything, self.delete_barriers
        order = np.lexsort((self.entity_hashes[:, 1], self.entity_hashes[:, 0]))
        ordered = self.entity_hashes[order]
        is_first = np.ones(len(order), np.bool_)
        is_first[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
        starts = np.flatnonzero(is_first)
        last_barrier = np.maximum.reduceat(np.where(self.delete_barriers[order], order, -1), starts)
        last_barrier_of_row = np.empty(len(self), np.int64)
        last_barrier_of_row[order] = np.repeat(last_barrier, np.diff(starts, append=len(order)))
        return np.flatnonzero(everything >= last_barrier_of_row), last_barrier_of_row >= 0

    def older_than(
        self, rows: NDArray[np.int64], others: "RowKeys", places: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Whether each of ``rows`` loses against its counterpart in ``others``, committed before it."""
        event, other_event = self.event_timestamps[rows], others.event_timestamps[places]
        created, other_created = self.created_timestamps[rows], others.created_timestamps[places]
        is_earlier = (event < other_event) | ((event == other_event) & (created < other_created))
        return np.asarray(is_earlier & ~self.delete_barriers[rows] & ~others.deleted[places])


@dataclass(eq=False)  # not frozen, because a frozen one takes longer to make, and reads make many
class EncodedFeature:
    """One feature of n rows, of the row log or as a read shows them."""

    codec: FeatureCodec  # of the feature
    vocabulary: Vocabulary  # the values of the symbols
    states: NDArray[np.uint8]  # uint8[n] of codecs.MISSING, NULL, EMPTY, VALUE
    # the symbols of each row, ids of the vocabulary: distinct and ascending, or, for an exact codec, as they
    # were written; those of a list are its items, newest first. Their weights are `times`
    csr: Csr

    @property
    def indptr(self) -> NDArray[np.int64]:
        """Where the symbols of each row begin: int64[n + 1]."""
        return self.csr.indptr

    @property
    def symbols(self) -> NDArray[np.int32]:
        """The symbols of all rows: int32[nnz]."""
        return self.csr.ids

    @property
    def times(self) -> NDArray[np.int64] | None:
        """Of rows of the row log, int64[nnz]. For a list the stamp of each item (`rows.listing`): its time in
        microseconds since 1970, unless items have attributes; 0 for the values of a set to which rows append;
        for counts how often each value was counted; otherwise None.
        """
        return self.csr.weights

    @property
    def size_bytes(self) -> int:
        """Bytes of the arrays and the vocabulary."""
        arrays = self.states.nbytes + self.indptr.nbytes + self.symbols.nbytes
        return arrays + (0 if self.times is None else self.times.nbytes) + self.vocabulary.size_bytes

    def with_rows(self, states: NDArray[np.uint8], rows: Csr) -> "EncodedFeature":
        """A feature with the same vocabulary and other rows, given by their states and symbols."""
        return EncodedFeature(self.codec, self.vocabulary, states, rows)

    def with_items(self, items: Csr) -> "EncodedFeature":
        """The same rows with other symbols; a list or set that has lost all of them becomes empty."""
        lost_all = (self.states == VALUE) & (items.lengths == 0)
        return self.with_rows(np.where(lost_all, np.uint8(EMPTY), self.states), items)

    def to_column(self) -> pa.Array:
        """The rows in the type of the feature's column; see `FeatureCodec.to_column`."""
        storage = self.vocabulary.values.take(pa.array(self.symbols))
        return self.codec.to_column(self.states, self.indptr, storage)

    def take(self, rows: NDArray[np.int64]) -> "EncodedFeature":
        """The rows with these numbers, in this order."""
        return self.with_rows(self.states[rows], self.csr.take(rows))

    def within(self, vocabulary: Vocabulary) -> "EncodedFeature":
        """The rows with only the values in a vocabulary; see `with_items`."""
        is_kept = vocabulary.find(self.vocabulary.values) >= 0
        return self.with_items(self.csr.masked(is_kept[self.symbols]))


@dataclass(frozen=True)
class EncodedRows:
    """n rows of one feature view: their keys, and each feature as a matrix of symbols."""

    keys: RowKeys
    features: Mapping[str, EncodedFeature]

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def num_facts(self) -> int:
        """Number of (entity, symbol) pairs over all features."""
        return sum(len(feature.symbols) for feature in self.features.values())

    def take(self, rows: NDArray[np.int64]) -> "EncodedRows":
        """The rows with these numbers, in this order."""
        features = {name: feature.take(rows) for name, feature in self.features.items()}
        return EncodedRows(self.keys.take(rows), features)

    def within(self, vocabularies: Mapping[str, Vocabulary]) -> "EncodedRows":
        """The same rows; the features that are given keep only the values in their vocabulary."""
        cut = {
            name: self.features[name].within(v) for name, v in vocabularies.items() if name in self.features
        }
        return replace(self, features={**self.features, **cut}) if cut else self

    @classmethod
    def joined(cls, parts: Sequence["EncodedRows"]) -> "EncodedRows":
        """The rows of all parts, one part after the other, with common vocabularies."""
        names = dict.fromkeys(name for rows in parts for name in rows.features)
        keys = RowKeys.concatenate([rows.keys for rows in parts])
        return cls(keys, {name: _joined_feature(parts, name) for name in names})

    @classmethod
    def newest_of(cls, parts: Sequence["EncodedRows"]) -> "EncodedRows":
        """The newest row of each entity, ordered by entity hash; of equal times that of the last part."""
        joined = cls.joined(parts)
        winners, keys = joined.keys.newest()
        return replace(joined.take(winners), keys=keys)


def first_due(parts: Sequence[EncodedRows]) -> int:
    """Which part, from the oldest to the newest, to merge with all newer ones; the last if none is due.

    A part is due once the newer ones together are half as large. So parts are few, and each fact is merged a
    logarithmic number of times.
    """
    sizes = [len(rows) + rows.num_facts for rows in parts]
    first = len(parts) - 1
    while first > 0 and 2 * sum(sizes[first:]) >= sizes[first - 1]:
        first -= 1
    return max(0, first)


@contextmanager
def as_damage() -> Iterator[None]:
    """Raise a `DamagedFileError` if rows of the row log are not as the store writes them."""
    try:
        yield
    except pa.ArrowMemoryError:
        raise
    except pa.ArrowException as error:
        raise DamagedFileError(f"rows of the row log were written by another program: {error}") from error


@as_damage()
def row_keys(table: pa.Table) -> RowKeys:
    """The keys of rows of the row log. Uses only the columns ``KEY_COLUMNS``.

    Raises DamagedFileError: a row has no key or no event timestamp; the store never writes such rows.
    """
    for name in (ENTITY_KEY, EVENT_TIMESTAMP, CREATED_TIMESTAMP):
        if name not in table.column_names or (name != CREATED_TIMESTAMP and table[name].null_count):
            raise DamagedFileError(f"rows of the row log have no {name!r}: another program wrote them")
    deleted = np.zeros(len(table), np.bool_)
    if DELETED in table.column_names and table[DELETED].null_count < len(table):
        deleted = table[DELETED].fill_null(False).to_numpy()
    return RowKeys(
        hash_serialized_keys(table[ENTITY_KEY].combine_chunks()),
        _microseconds(table[EVENT_TIMESTAMP]),
        _microseconds(table[CREATED_TIMESTAMP]),
        deleted,
        deleted,
    )


@as_damage()
def newest_rows(table: pa.Table) -> tuple[pa.Table, RowKeys]:
    """The newest row of each entity, ordered by entity hash. The table must be in commit order."""
    keys = row_keys(table)
    if len(table) == 1:  # as in most pushes
        return table.combine_chunks(), keys
    winners, keys = keys.newest()
    return table.take(pa.array(winners)).combine_chunks(), keys


@as_damage()
def encode(table: pa.Table, keys: RowKeys, codecs: Sequence[FeatureCodec]) -> EncodedRows:
    """Encode the features of stored rows. A feature without a column was never written: its states are
    MISSING.

    Raises DamagedFileError: a column has another type than the store writes.
    """
    nulls, stored = null_features(table), [codec for codec in codecs if not codec.is_derived]
    return EncodedRows(keys, {codec.feature: encode_feature(table, codec, nulls) for codec in stored})


def _microseconds(column: pa.ChunkedArray) -> NDArray[np.int64]:
    if column.null_count == len(column):
        return np.full(len(column), NO_TIMESTAMP)
    numbers = column.cast(pa.int64())
    if column.null_count:
        numbers = numbers.fill_null(NO_TIMESTAMP)
    return np.asarray(numbers.to_numpy(), np.int64)


def null_features(table: pa.Table) -> Mapping[str, NDArray[np.int64]]:
    """By feature, the numbers of the rows in which it was written as null."""
    if table[NULLS].null_count == len(table):
        return {}
    column = table[NULLS].combine_chunks()
    rows = pc.list_parent_indices(column).to_numpy(zero_copy_only=False)
    names = pc.list_flatten(column).dictionary_encode()
    places = names.indices.to_numpy()
    of_names = np.split(rows[np.argsort(places, kind="stable")], np.cumsum(np.bincount(places))[:-1])
    return dict(zip(names.dictionary.to_pylist(), of_names, strict=True))


def encode_feature(
    table: pa.Table, codec: FeatureCodec, nulls: Mapping[str, NDArray[np.int64]]
) -> EncodedFeature:
    """Encode one feature of stored rows; ``nulls`` are those of `null_features`."""
    column, null_rows = optional_column(table, codec.feature), nulls.get(codec.feature)
    if column is None:
        return never_written(codec, len(table))
    if not codec.is_counted:
        return encode_column(column, codec, null_rows)
    counts = optional_column(table, counts_column(codec.feature))
    return encode_counts(column, counts, codec, null_rows)


def encode_counts(
    column: pa.Array, counts: pa.Array | None, codec: FeatureCodec, null_rows: NDArray[np.int64] | None = None
) -> EncodedFeature:
    """Encode the values of a feature with their counts.

    Parameters
    ----------
    column : of the codec's Arrow type.
    counts : lists of int64, one number for each value; None or a null list if each counts 1.
    null_rows : see `encode_column`.

    Raises pyarrow.ArrowInvalid: the counts do not fit the values.
    """
    column, amounts = counts_of_rows(column, counts)
    feature = encode_column(column, codec, null_rows)
    order = np.lexsort((feature.symbols, feature.csr.rows))
    return replace(feature, csr=Csr(feature.indptr, feature.symbols[order], amounts[order]))


def encode_column(
    column: pa.Array, codec: FeatureCodec, null_rows: NDArray[np.int64] | None = None
) -> EncodedFeature:
    """Encode one feature of rows.

    Parameters
    ----------
    column : of the codec's Arrow type.
    null_rows : int64[m], rows that were written as null. Other rows without a value lack the feature.
    """
    states = np.full(len(column), VALUE, np.uint8)
    if column.null_count:
        states[column.is_null().to_numpy(zero_copy_only=False)] = MISSING
    if null_rows is not None:
        states[null_rows] = NULL
    if codec.is_collection:
        lengths = list_lengths(column)
        states[(states == VALUE) & (lengths == 0)] = EMPTY
        elements = pc.list_flatten(column)
    else:
        lengths = (states == VALUE).astype(np.int64)
        elements = column.drop_null()
    vocabulary, symbols = Vocabulary.by_popularity(codec.to_storage(elements))
    csr = Csr.of_lengths(lengths, symbols)
    is_set = codec.is_collection and not codec.may_repeat and not codec.is_counted
    return EncodedFeature(codec, vocabulary, states, csr.distinct() if is_set else csr)


def never_written(codec: FeatureCodec, num_rows: int) -> EncodedFeature:
    """A feature that is missing in ``num_rows`` rows."""
    times = np.zeros(0, np.int64) if codec.is_weighted else None
    return EncodedFeature(
        codec,
        Vocabulary(pa.array([], codec.storage_type)),
        np.full(num_rows, MISSING, np.uint8),
        Csr(np.zeros(num_rows + 1, np.int64), np.zeros(0, np.int32), times),
    )


def _joined_feature(rows: Sequence[EncodedRows], name: str) -> EncodedFeature:
    codec = next(part.features[name].codec for part in reversed(rows) if name in part.features)
    parts = [part.features.get(name) or never_written(codec, len(part)) for part in rows]
    vocabulary, new_ids = Vocabulary.union([part.vocabulary for part in parts])
    times = [part.times for part in parts if part.times is not None]
    csr = Csr.stacked(
        [Csr(p.indptr, ids[p.symbols].astype(np.int32)) for ids, p in zip(new_ids, parts, strict=True)]
    )
    if times and sum(map(len, times)) == len(csr.ids):
        csr = replace(csr, weights=np.concatenate(times))
    return EncodedFeature(codec, vocabulary, np.concatenate([part.states for part in parts]), csr)
