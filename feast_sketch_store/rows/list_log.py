"""Lists, sets and counts in the row log: how their rows are written, and how they become encoded rows.

The log of a view to which rows append has more kinds of columns:

    __operation       null for a row that appends, else ``replace``, ``remove`` or ``count``
    __times__<list>   the time of each item of the list; in a row that removes, the time up to which it does
    __counts__<name>  how often each value was counted (`rows.count_log`)

An attribute of the items of a list has a column with the name of its feature, with a value for each item.
A row that counts also appends; each of its values has an id, and counts if the id is new (`rows.increments`).
An Array in a row has its newest item last, where an append would put it. Values of sets have no times.
"""

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from feast_sketch_store.errors import RowError
from feast_sketch_store.rows import count_log
from feast_sketch_store.rows.codecs import EMPTY, MISSING, NULL, VALUE, FeatureCodec
from feast_sketch_store.rows.columns import check_beside, has_values, list_lengths, with_column
from feast_sketch_store.rows.count_log import counts_column
from feast_sketch_store.rows.csr import Csr, bounds_of
from feast_sketch_store.rows.encoding import (
    EVENT_TIMESTAMP,
    NAMES,
    NO_TIMESTAMP,
    NULLS,
    TIMESTAMP,
    EncodedFeature,
    EncodedRows,
    FeastRow,
    RowKeys,
    as_damage,
    encode_feature,
    log_table,
    never_written,
    null_features,
    row_keys,
    to_arrow,
)
from feast_sketch_store.rows.entity_keys import JoinKeys, serialize_columns
from feast_sketch_store.rows.increments import COUNT, OPERATION, times_column, with_ids, without_nulls
from feast_sketch_store.rows.limits import check_rows, impossible_moment
from feast_sketch_store.rows.listing import ALWAYS, Attribute
from feast_sketch_store.rows.lists import removed_codec, united

REPLACE: Final = "replace"
REMOVE: Final = "remove"

_ITEM_TIMES = pa.large_list(TIMESTAMP)


def columns_of(codecs: Sequence[FeatureCodec]) -> pa.Schema:
    """The columns of the row log for these features, if rows append."""
    times = [(times_column(codec.feature), _ITEM_TIMES) for codec in codecs if codec.is_list]
    attributes = [(codec.feature, codec.arrow_type) for codec in codecs if codec.attribute_of]
    own = [*pa.schema(times), *pa.schema(attributes), (OPERATION, pa.large_string())]
    return pa.schema([*count_log.columns_of(codecs), *own])


def to_list_log(
    rows: Sequence[FeastRow], codecs: Sequence[FeatureCodec], join_keys: JoinKeys | None = None
) -> pa.Table:
    """Turn rows from Feast into rows that append; see `encoding.to_arrow`.

    Items get the times in the list's feature of times, or else the event timestamp of their row.

    Raises RowError: see `encoding.to_arrow` and `increments.with_ids`; or a row has another number of times
    or of attributes than of items, or a value that was not declared.
    """
    table = with_ids(to_arrow(rows, codecs, join_keys), codecs)
    given = {codec.times_of: codec.feature for codec in codecs if codec.times_of}
    for codec in codecs:
        if codec.is_list:
            items, own = table[codec.feature].combine_chunks(), given.get(codec.feature)
            times = pa.nulls(len(table), _ITEM_TIMES) if own is None else table[own].combine_chunks()
            times = _times_of_items(
                items, times, table[EVENT_TIMESTAMP].combine_chunks(), (codec.feature, own)
            )
            table = table.append_column(times_column(codec.feature), times)
    table = table.drop_columns(list(given.values()))
    check_attributes(table, codecs)
    operation = COUNT if any(codec.ids_of for codec in codecs) else None
    return table.append_column(OPERATION, pa.array([operation] * len(table), pa.large_string()))


def _times_of_items(
    items: pa.Array, times: pa.Array, events: pa.Array, names: tuple[str, str | None]
) -> pa.Array:
    """The time of each item: the given one, or that of its row."""
    advice = "give each item a time, or leave the times out"
    is_given = check_beside(items, times, names, ("items", "times"), advice)
    lengths = list_lengths(items)
    indptr = bounds_of(lengths)
    moments = np.repeat(_numbers(events), lengths)
    given = pc.list_flatten(times)
    moments[is_given] = _numbers(given.fill_null(0))
    found = impossible_moment(moments)
    if given.null_count:
        found = int(np.flatnonzero(is_given)[given.is_null()][0]), f"whose time is null; {advice}"
    if found is not None:
        row = int(np.searchsorted(indptr, found[0], side="right")) - 1
        raise RowError(f"row {row} of the batch has an item in feature {names[0]!r} {found[1]}")
    return times_array(indptr, moments, items.is_null())


def check_attributes(table: pa.Table, codecs: Sequence[FeatureCodec]) -> None:
    """Check that each item of a batch has its attributes.

    Raises RowError: a row has another number of values than of items, or a value that was not declared; or an
    item is so far from 1970 that its stamp cannot have its attributes.
    """
    for codec in codecs:
        if codec.listing is not None and codec.attributes:
            times = _numbers(pc.list_flatten(table[times_column(codec.feature)].combine_chunks()))
            if (abs(times) > codec.listing.last_time).any():
                raise RowError(
                    f"an item of feature {codec.feature!r}, whose items have attributes, has a time before "
                    "the year 1400 or after 2540, which cannot be kept; correct the times"
                )
        for attribute in codec.attributes:
            lengths, given = (_lengths_of(table, each) for each in (codec.feature, attribute.feature))
            if (lengths != given).any():
                row = int((lengths != given).argmax())
                raise RowError(
                    f"row {row} of the batch has {lengths[row]} items in feature {codec.feature!r} and "
                    f"{given[row]} values in feature {attribute.feature!r}; give each item one"
                )
            if not lengths.any():
                continue
            values = pc.list_flatten(table[attribute.feature].combine_chunks())
            numbers = _digits(values, attribute)
            if (numbers < 0).any():
                found = int((numbers < 0).argmax())
                row = int(np.searchsorted(np.cumsum(lengths), found, side="right"))
                raise RowError(
                    f"row {row} of the batch has {values[found].as_py()!r} in feature {attribute.feature!r}, "
                    f"which is not among the declared values {[*attribute.values]}; give one of these"
                )


def _digits(values: pa.Array, attribute: Attribute) -> NDArray[np.int64]:
    """The index of each value among those of an attribute, -1 for others: int64[nnz]."""
    places = pc.index_in(values, pa.array(attribute.values, values.type)).fill_null(-1)
    return np.asarray(places.to_numpy(zero_copy_only=False), np.int64)


def times_array(
    indptr: NDArray[np.int64], times: NDArray[np.int64], mask: pa.Array | None = None
) -> pa.Array:
    """Times, int64 microseconds since 1970, as lists."""
    elements = pa.array(times).cast(TIMESTAMP)
    return pa.LargeListArray.from_arrays(pa.array(indptr), elements, mask=mask)


@dataclass(frozen=True, eq=False)
class ListRows:
    """n rows that append to one feature, replace it or remove from it. Cheaper to make than a table."""

    join_keys: Mapping[str, pa.Array]  # of the rows, see `serialize_columns`
    feature: str  # the list, set or counts
    indptr: NDArray[np.int64]  # int64[n + 1], where the items of each row begin
    values: pa.Array  # of the items, in the column's element type. The newest of a row is last
    # int64[nnz], of the items, microseconds since 1970, or how often values were counted. Those of a set are
    # not kept
    times: NDArray[np.int64]
    events: NDArray[np.int64]  # int64[n], event timestamps of the rows, microseconds since 1970
    operation: str | None = None  # ``replace``, ``remove``, ``count``, or None to append
    ids: pa.Array | None = None  # of rows that count, one for each item
    # of the items of a list, by feature, in the column's element type. Rows that remove have none
    attributes: Mapping[str, pa.Array] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.events)

    @property
    def kind(self) -> tuple[object, ...]:
        """What rows must have in common to be concatenated."""
        return self.feature, self.operation, *((name, keys.type) for name, keys in self.join_keys.items())

    @staticmethod
    def together(parts: "Sequence[ListRows]") -> "ListRows":
        """Concatenate the rows of parts of one kind."""
        if len(parts) == 1:
            return parts[0]
        first = parts[0]
        rows = Csr.stacked([Csr(part.indptr, part.times) for part in parts])
        return replace(
            first,
            join_keys={n: pa.concat_arrays([p.join_keys[n] for p in parts]) for n in first.join_keys},
            indptr=rows.indptr,
            values=pa.concat_arrays([part.values for part in parts]),
            times=rows.ids,
            events=np.concatenate([part.events for part in parts]),
            ids=None if first.ids is None else pa.concat_arrays([part.ids for part in parts]),
            attributes={
                name: pa.concat_arrays([part.attributes[name] for part in parts]) for name in first.attributes
            },
        )

    def to_log(self, codecs: Sequence[FeatureCodec]) -> pa.Table:
        """The rows as a table of the log of a view with all these features.

        Raises
        ------
        ValueError, TypeError : see `serialize_columns`.
        RowError : a row is too large, or an item has a time that no reader can represent.
        """
        of_counted = counts_column(self.feature)
        ids_feature = next((codec.feature for codec in codecs if codec.ids_of == self.feature), "")
        moments = self.events if ids_feature else self.times
        if (found := impossible_moment(moments)) is not None:
            raise RowError(f"an item of feature {self.feature!r} is {found[1]}")
        features = {field.name: pa.nulls(len(self), field.type) for field in columns_of(codecs)}
        features[self.feature] = self._lists(self.values)
        if times_column(self.feature) in features:
            features[times_column(self.feature)] = times_array(self.indptr, self.times)
        if of_counted in features and self.operation != REMOVE:
            features[of_counted] = self._lists(pa.array(self.times))
        if self.ids is not None:
            features[ids_feature] = self._lists(self.ids)
            moments = np.repeat(self.events, np.diff(self.indptr))
            features[times_column(ids_feature)] = times_array(self.indptr, moments)
        features |= {name: self._lists(values) for name, values in self.attributes.items()}
        if self.operation is not None:
            features[OPERATION] = pa.array([self.operation] * len(self), pa.large_string())
        events = pa.array(self.events).cast(TIMESTAMP)
        table = log_table({**self.join_keys, **features}, serialize_columns(self.join_keys), events)
        check_rows(table)
        if self.operation != REMOVE:
            check_attributes(table, codecs)
        return table

    def _lists(self, elements: pa.Array) -> pa.Array:
        return pa.LargeListArray.from_arrays(pa.array(self.indptr), elements)


def list_tables(parts: Sequence[ListRows], codecs: Sequence[FeatureCodec]) -> list[pa.Table]:
    """Rows of lists as tables of the log, in their order; see `ListRows.to_log`."""
    runs = itertools.groupby(parts, key=lambda part: part.kind)
    return [ListRows.together(list(run)).to_log(codecs) for _, run in runs]


def with_operations(table: pa.Table, operations: Mapping[str, str | None]) -> pa.Table:
    """Turn rows that append to all features into rows that do what is said of each: ``replace``, ``remove``,
    or None to append. Beside another operation, a row without values to append appends nothing: it would make
    its entity as new as a row that adds values.
    """
    parts = []
    # What rows remove goes however often they count it.
    table = _emptied(table, [counts_column(name) for name, own in operations.items() if own == REMOVE])
    for operation in dict.fromkeys(operations.values()):
        others = [name for name, own in operations.items() if own != operation]
        part = without(table, others)
        if operation is None and others:
            part = part.filter(pa.array(has_values(part, operations)))
        if operation is not None:
            part = with_column(part, OPERATION, pa.array([operation] * len(table), pa.large_string()))
        parts.append(part)
    return pa.concat_tables(parts)


def without(table: pa.Table, features: Collection[str]) -> pa.Table:
    """The same rows of the log, with some features missing."""
    columns = (*features, *map(times_column, features), *map(counts_column, features))
    return without_nulls(_emptied(table, columns), features)


def _emptied(table: pa.Table, columns: Iterable[str]) -> pa.Table:
    """The same rows of the log, with nulls in some columns, as far as it has them."""
    for name in columns:
        if name in table.column_names:
            table = with_column(table, name, pa.nulls(len(table), table.schema.field(name).type))
    return table


def _numbers(times: pa.Array) -> NDArray[np.int64]:
    return np.array(times.cast(pa.int64()).to_numpy(zero_copy_only=False), np.int64)


@as_damage()
def encode_lists(table: pa.Table, codecs: Sequence[FeatureCodec]) -> EncodedRows:
    """Turn rows of the log, in commit order, into one row per entity; see `lists.united`.

    The timestamp of a row is at least that of its newest item; a row that only removes has none.

    Raises DamagedFileError: a column has another type than the store writes.
    """
    keys, nulls = row_keys(table), null_features(table)
    replaces, removes = _operations(table)
    events = np.where(removes, NO_TIMESTAMP, keys.event_timestamps)
    features: dict[str, EncodedFeature] = {}
    for codec in codecs:
        if codec.is_derived:
            continue
        feature = _encoded(table, codec, nulls)
        if removes.any() or replaces.any():
            feature, removed = _parted(feature, replaces, removes)
            features[removed.codec.feature] = removed
        features[codec.feature] = feature
        if codec.listing is not None:
            np.maximum.at(events, feature.csr.rows, codec.listing.times_of(feature.csr.numbers))
    times = keys.created_timestamps, keys.deleted, keys.delete_barriers
    return united(EncodedRows(RowKeys(keys.entity_hashes, events, *times), features), backwards=True)


def _operations(table: pa.Table) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which rows replace, and which remove: bool[n] each."""
    nothing = np.zeros(len(table), np.bool_)
    if OPERATION not in table.column_names or table[OPERATION].null_count == len(table):
        return nothing, nothing
    names = table[OPERATION].combine_chunks()
    replaces, removes = (
        pc.equal(names, name).fill_null(False).to_numpy(zero_copy_only=False) for name in (REPLACE, REMOVE)
    )
    return replaces, removes


def _encoded(table: pa.Table, codec: FeatureCodec, nulls: Mapping[str, NDArray[np.int64]]) -> EncodedFeature:
    """A list, a set or counts as rows have them; the times of a set are 0, see `rows.lists`."""
    name = times_column(codec.feature)
    if codec.is_list and not {codec.feature, name} <= set(table.column_names):
        return never_written(codec, len(table))
    feature = encode_feature(table, codec, nulls)
    if codec.is_counted:
        return feature
    times = np.zeros(len(feature.symbols), np.int64)
    if codec.is_list:
        times = _numbers(pc.list_flatten(table[name].combine_chunks()))
        if len(times) != len(feature.symbols):
            raise pa.ArrowInvalid(
                f"feature {codec.feature!r} has {len(feature.symbols)} items, {len(times)} times"
            )
        times = _stamps(table, codec, times)
    return replace(feature, csr=replace(feature.csr, weights=times))


def _stamps(table: pa.Table, codec: FeatureCodec, times: NDArray[np.int64]) -> NDArray[np.int64]:
    """The times of items with their attributes. Rows that remove have none: they match all."""
    listing = codec.listing
    assert listing is not None
    if not listing.attributes:
        return times
    lengths = _lengths_of(table, codec.feature)
    codes, has_all = np.zeros(len(times), np.int64), np.ones(len(times), np.bool_)
    for attribute in listing.attributes:
        given = _lengths_of(table, attribute.feature)
        has = np.repeat(given == lengths, lengths)
        digits = np.zeros(len(times), np.int64)
        if has.any():
            values = pc.list_flatten(table[attribute.feature].combine_chunks())
            digits[has] = _digits(values, attribute)[np.repeat(given == lengths, given)]
        if (digits < 0).any():
            raise pa.ArrowInvalid(f"feature {attribute.feature!r} has values that were not declared")
        codes = codes * len(attribute.values) + digits
        has_all &= has
    return np.where(has_all, listing.stamps(times, codes), listing.last_stamps(times))


def _lengths_of(table: pa.Table, name: str) -> NDArray[np.int64]:
    """The number of elements of each list of a column, 0 for null or without the column: int64[n]."""
    if name not in table.column_names:
        return np.zeros(len(table), np.int64)
    return list_lengths(table[name])


def _parted(
    feature: EncodedFeature, replaces: NDArray[np.bool_], removes: NDArray[np.bool_]
) -> tuple[EncodedFeature, EncodedFeature]:
    """What rows add to a list, and what they hide of it."""
    is_removal = removes[feature.csr.rows]
    states = np.full(len(feature.states), MISSING, np.uint8)
    states[replaces & (feature.states != MISSING)] = EMPTY
    states[removes & (feature.states == VALUE)] = VALUE
    hidden = feature.csr.masked(is_removal)
    if feature.codec.is_counted:  # all that was counted before
        hidden = Csr(hidden.indptr, hidden.ids, np.full(len(hidden.ids), ALWAYS))
    removed = EncodedFeature(removed_codec(feature.codec), feature.vocabulary, states, hidden)
    own = np.where(removes, np.uint8(MISSING), feature.states)
    return feature.with_rows(own, feature.csr.masked(~is_removal)), removed


def with_lists(table: pa.Table, rows: EncodedRows) -> pa.Table:
    """Rows of the log, one per entity, with whole lists, sets and counts that were written. The columns other
    than features are those of ``table``, which has the same entities in the same order.
    """
    nulls: list[list[str]] = [[] for _ in range(len(table))]
    for name, feature in rows.features.items():
        if not feature.states.any():  # the log may have no column for it yet
            continue
        items = feature.csr
        # Write the newest item last, so that an append adds at the end.
        places = np.repeat(items.indptr[:-1] + items.indptr[1:] - 1, items.lengths) - np.arange(
            len(items.ids)
        )
        storage = feature.vocabulary.values.take(pa.array(items.ids[places]))
        mask = pa.array(feature.states < EMPTY)
        table = with_column(table, name, feature.codec.to_column(feature.states, items.indptr, storage))
        if (listing := feature.codec.listing) is not None:
            times, codes = (part(items.numbers[places]) for part in (listing.times_of, listing.codes_of))
            table = with_column(table, times_column(name), times_array(items.indptr, times, mask))
            for attribute in listing.attributes:
                _, step = listing.digit_of(attribute.feature)
                places = pa.array(codes // step % len(attribute.values))
                values = feature.codec.attribute_values(attribute.feature).take(places)
                column = pa.LargeListArray.from_arrays(pa.array(items.indptr), values, mask=mask)
                table = with_column(table, attribute.feature, column)
        if feature.codec.is_counted:
            counts = pa.array(items.numbers[places])
            column = pa.LargeListArray.from_arrays(pa.array(items.indptr), counts, mask=mask)
            table = with_column(table, counts_column(name), column)
        for row in np.flatnonzero(feature.states == NULL).tolist():
            nulls[row].append(name)
    table = with_column(table, EVENT_TIMESTAMP, pa.array(rows.keys.event_timestamps).cast(TIMESTAMP))
    table = with_column(table, NULLS, pa.array([names or None for names in nulls], NAMES))
    return with_column(table, OPERATION, pa.nulls(len(table), pa.large_string()))
