"""Counts to which rows add: each increment has an id, and counts once.

    rows that count:  user 7   author [a, b]   author_ids [x, y]   counts [1, 1]
    the same again:   user 7   author [a]      author_ids [x]      counts [1]      adds nothing: x is known

Ids are the items of a list of the counted feature (the tag ``sketch.ids_of``), so an entity remembers the
newest of them, up to the limit and for the ttl of that list, sealed or not. Rows are compared with what is
known before they are encoded: a known id is left out, and its count becomes 0 (`counted_once`). Whoever takes
up the rows of a log in the order of their commits does the same, so all processes and seals count alike, as
long as an id is not among those that an entity may forget.

A row without ids gets ids made of its event timestamp, its values and their places (`with_ids`). So a row
that is written again counts once, too.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from feast_sketch_store.errors import RowError
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.columns import check_beside, list_lengths, lists_of, optional_column, with_column
from feast_sketch_store.rows.count_log import amounts_of_rows, counts_column
from feast_sketch_store.rows.encoding import ENTITY_KEY, EVENT_TIMESTAMP, NAMES, NULLS, as_damage, row_keys
from feast_sketch_store.rows.entity_keys import find_sorted, hash_serialized_keys
from feast_sketch_store.rows.vocabulary import Vocabulary

OPERATION: Final = "__operation"
COUNT: Final = "count"

_TIMES: Final = "__times__"


def times_column(feature: str) -> str:
    """The column with the times of a list's items."""
    return _TIMES + feature


def is_times_column(name: str) -> bool:
    """Whether a column is one of `times_column`."""
    return name.startswith(_TIMES)


# The ids that n entities remember: the entity of each, int64[m], below n; and the id, int[m], negative if the
# asked vocabulary lacks it.
Remembered: TypeAlias = tuple[NDArray[np.int64], NDArray[np.integer]]
# Gives those of a feature for uint64[n, 2] entities.
Known: TypeAlias = Callable[[FeatureCodec, NDArray[np.uint64], Vocabulary], Remembered]


def ids_of_counted(codecs: Sequence[FeatureCodec]) -> list[tuple[FeatureCodec, FeatureCodec]]:
    """The features with ids, and the counted feature of each."""
    by_name = {codec.feature: codec for codec in codecs}
    return [(codec, by_name[codec.ids_of]) for codec in codecs if codec.ids_of in by_name]


@as_damage()
def counted_once(table: pa.Table, codecs: Sequence[FeatureCodec], known: Known) -> pa.Table:
    """Rows of the log, in commit order, without the ids that were counted before; their counts are 0.

    ``known`` is what entities remember from before these rows. A row of what an entity had when rows were
    merged adds nothing to that; its ids were counted.

    Raises DamagedFileError: a row that counts has another number of ids than of values.
    """
    pairs = ids_of_counted(codecs)
    if not pairs or OPERATION not in table.column_names:
        return table
    operations = table[OPERATION].combine_chunks()
    counts = pc.equal(operations, COUNT).fill_null(False).to_numpy(zero_copy_only=False)
    keys = row_keys(table)
    after, behind_barrier = keys.after_barriers()  # what a deletion hides is neither counted nor known
    after = after[~keys.deleted[after]]
    rows = after[counts[after]]
    if not len(rows):
        return table
    _, entities = keys.take(rows).newest()
    merged = after[operations.is_null().to_numpy(zero_copy_only=False)[after]]
    found, owners_of_merged = find_sorted(entities.entity_hashes, keys.entity_hashes[merged])
    owners = np.full(len(table), -1)
    owners[merged[found]] = owners_of_merged
    _, owners[rows] = find_sorted(entities.entity_hashes, keys.entity_hashes[rows])
    forgets = np.zeros(len(entities), np.bool_)
    forgets[owners[rows]] = behind_barrier[rows]
    is_counting = np.zeros(len(table), np.bool_)
    is_counting[rows] = True
    for ids, counted in pairs:
        if ids.feature in table.column_names and counted.feature in table.column_names:
            find = partial(known, ids, entities.entity_hashes)
            table = _counted_once(table, (ids, counted), is_counting, owners, forgets, find)
    return table


def _counted_once(
    table: pa.Table,
    codecs: tuple[FeatureCodec, FeatureCodec],
    is_counting: NDArray[np.bool_],
    owners: NDArray[np.int64],
    forgets: NDArray[np.bool_],
    known: Callable[[Vocabulary], Remembered],
) -> pa.Table:
    """`counted_once` for one feature.

    Parameters
    ----------
    codecs : of the ids and of what they count.
    is_counting : bool[n], the rows that count.
    owners : int64[n], the entities of these rows and of merged ones, negative for other rows.
    forgets : bool[entities], whose ids of earlier rows do not count.
    known : the ids that entities remember.
    """
    of_ids, counted = codecs
    column, ids = (table[codec.feature].combine_chunks() for codec in (counted, of_ids))
    lengths, id_lengths = (list_lengths(lists) for lists in (column, ids))
    if (wrong := is_counting & (lengths != id_lengths)).any():
        raise pa.ArrowInvalid(
            f"row {wrong.argmax()} has {id_lengths[wrong][0]} ids in feature {of_ids.feature!r} and "
            f"{lengths[wrong][0]} values in feature {counted.feature!r}"
        )
    owners_of_ids = np.repeat(owners, id_lengths)
    own = pc.list_flatten(ids).filter(pa.array(owners_of_ids >= 0))
    encoded = of_ids.to_storage(own).dictionary_encode()
    vocabulary, symbols = Vocabulary(encoded.dictionary), encoded.indices.to_numpy(zero_copy_only=False)
    width = max(1, len(vocabulary))
    facts = owners_of_ids[owners_of_ids >= 0] * width + symbols
    is_known = np.ones(len(facts), np.bool_)
    is_known[np.unique(facts, return_index=True)[1]] = False  # the first of equal ones counts
    owners_of_known, symbols_of_known = known(vocabulary)
    kept = (symbols_of_known >= 0) & ~forgets[owners_of_known]
    is_known |= np.isin(facts, owners_of_known[kept] * width + symbols_of_known[kept])
    is_known = is_known[np.repeat(is_counting, id_lengths)[owners_of_ids >= 0]]
    if not is_known.any():
        return table
    name = counts_column(counted.feature)
    amounts = amounts_of_rows(column, optional_column(table, name))
    amounts[np.flatnonzero(np.repeat(is_counting, lengths))[is_known]] = 0
    repeats = np.zeros(int(id_lengths.sum()), np.bool_)
    repeats[np.flatnonzero(np.repeat(is_counting, id_lengths))[is_known]] = True
    rest = id_lengths - np.bincount(
        np.repeat(np.arange(len(table)), id_lengths)[repeats], minlength=len(table)
    )
    changed = {
        counted.feature: lists_of(lengths, pc.list_flatten(column), column),
        name: lists_of(lengths, pa.array(amounts), column),
    }
    for of_ids_column in (of_ids.feature, times_column(of_ids.feature)):
        lists = table[of_ids_column].combine_chunks()
        changed[of_ids_column] = lists_of(rest, pc.list_flatten(lists).filter(pa.array(~repeats)), lists)
    for name, values in changed.items():
        table = with_column(table, name, values)
    return table


# -- write -----------------------------------------------------------------------------------------------


def with_ids(table: pa.Table, codecs: Sequence[FeatureCodec]) -> pa.Table:
    """Rows of one write, in which each counted value has an id.

    Raises RowError: a row has another number of ids than of values, or an id is there twice for an entity,
    with different values or counts.
    """
    pairs = ids_of_counted(codecs)
    for of_ids, counted in pairs:
        column, given = (table[codec.feature].combine_chunks() for codec in (counted, of_ids))
        names, advice = (counted.feature, of_ids.feature), "give each value an id, or leave the ids out"
        lacks = ~check_beside(column, given, names, ("values", "ids"), advice)
        lengths = list_lengths(column)
        rows, elements = np.repeat(np.arange(len(table)), lengths), pc.list_flatten(column)
        if lacks.any():
            made = _made_ids(table, rows, elements, counted, of_ids)
            both = pa.concat_arrays([pc.list_flatten(given), made])
            places = np.cumsum(~lacks) - 1
            places[lacks] = len(both) - len(made) + np.flatnonzero(lacks)
            ids = both.take(pa.array(places))
        else:
            ids = pc.list_flatten(given)
        amounts = amounts_of_rows(column, table[counts_column(counted.feature)].combine_chunks())
        check_ids(table[ENTITY_KEY].combine_chunks(), rows, (ids, elements, amounts), (of_ids, counted))
        table = with_column(table, of_ids.feature, lists_of(lengths, ids, column))
    return without_nulls(table, [of_ids.feature for of_ids, _ in pairs])  # a row without ids lacks none


def without_nulls(table: pa.Table, features: Collection[str]) -> pa.Table:
    """Rows of the log in which some features were not written as null."""
    if not features or table[NULLS].null_count == len(table):
        return table
    nulls = [[n for n in names or () if n not in features] or None for names in table[NULLS].to_pylist()]
    return with_column(table, NULLS, pa.array(nulls, NAMES))


def check_ids(
    entities: pa.Array,
    rows: NDArray[np.int64],
    elements: tuple[pa.Array, pa.Array, NDArray[np.int64]],
    codecs: tuple[FeatureCodec, FeatureCodec],
) -> None:
    """Check that no entity has an id twice, with different values or counts.

    Parameters
    ----------
    entities : the serialized entity keys of n rows.
    rows : int64[nnz], of the elements.
    elements : the ids, the values, and how often each was counted.
    codecs : of the ids and of what they count.

    Raises RowError: an entity has one.
    """
    ids, values = (
        np.asarray(codec.to_storage(part).dictionary_encode().indices, np.int64)
        for codec, part in zip(codecs, elements[:2], strict=True)
    )
    amounts = elements[2]
    owners = np.asarray(entities.dictionary_encode().indices, np.int64)[rows]
    facts = owners * (int(ids.max(initial=0)) + 1) + ids
    order = np.argsort(facts, kind="stable")
    same = facts[order[1:]] == facts[order[:-1]]
    differ = (values[order[1:]] != values[order[:-1]]) | (amounts[order[1:]] != amounts[order[:-1]])
    if (wrong := same & differ).any():
        later, first = (int(order[int(wrong.argmax()) + n]) for n in (1, 0))
        raise RowError(
            f"row {rows[later]} of the batch has the id {elements[0][later].as_py()!r} in feature "
            f"{codecs[0].feature!r}, which row {rows[first]} has for another value or count of feature "
            f"{codecs[1].feature!r}; give each increment an id of its own"
        )


def _made_ids(
    table: pa.Table, rows: NDArray[np.int64], values: pa.Array, counted: FeatureCodec, of_ids: FeatureCodec
) -> pa.Array:
    """Ids of values, made of their row's event timestamp, the value, and its index in the row."""
    storage = counted.to_storage(values)
    if pa.types.is_large_binary(storage.type):
        digests = hash_serialized_keys(storage)[:, 0]
    else:
        digests = storage.to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64)
    events = table[EVENT_TIMESTAMP].combine_chunks().cast(pa.int64()).to_numpy(zero_copy_only=False)
    first = np.searchsorted(rows, rows)  # rows are ascending
    places = (np.arange(len(rows)) - first).astype(np.uint64)
    ids = pa.array(_mixed(events[rows].astype(np.int64).view(np.uint64), digests, places).view(np.int64))
    return ids.cast(of_ids.element_type)


def _mixed(*parts: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A hash of several numbers: the finalizer of MurmurHash3, for one after the other."""
    mixed = np.zeros(len(parts[0]), np.uint64)
    for part in parts:
        mixed ^= part
        for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
            mixed ^= mixed >> np.uint64(33)
            mixed *= np.uint64(factor)
        mixed ^= mixed >> np.uint64(33)
    return mixed
