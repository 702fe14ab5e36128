"""Counts in the row log: the values of a row, each once, and a number for each.

    <feature>            the values, as of any Array
    __counts__<feature>  how often each value of the row was counted: lists of int64

In Feast the counts are a feature of their own: an Array of integers, one for each value. If a row repeats a
value, its counts are added up; a value counted 0 times is left out. Without counts each occurrence of a value
counts 1, so rows that were written before the feature had counts can still be read.

If there are ids of what is counted, rows keep repetitions, so that each has its id (`rows.increments`).
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from feast_sketch_store.errors import RowError
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.columns import check_beside, list_lengths, lists_of, optional_column, with_column
from feast_sketch_store.rows.counting import MAX_COUNT

_COUNTS: Final = "__counts__"
_COUNTS_TYPE = pa.large_list(pa.int64())


def counts_column(feature: str) -> str:
    """The column with the counts of a feature's values."""
    return _COUNTS + feature


def is_counts_column(name: str) -> bool:
    """Whether a column is one of `counts_column`."""
    return name.startswith(_COUNTS)


def columns_of(codecs: Sequence[FeatureCodec]) -> pa.Schema:
    """The columns of the row log for these features, if rows replace each other."""
    stored = [codec for codec in codecs if not (codec.is_derived or codec.is_computed)]
    fields = [(codec.feature, codec.arrow_type) for codec in stored]
    counts = [(counts_column(codec.feature), _COUNTS_TYPE) for codec in stored if codec.is_counted]
    return pa.schema([*fields, *counts])


def with_counts(table: pa.Table, codecs: Sequence[FeatureCodec]) -> pa.Table:
    """Turn rows as Feast writes them into the form of the row log.

    Raises RowError: a row has another number of counts than of values, or a count is below 0 or above
    `MAX_COUNT`.
    """
    have_ids = {codec.ids_of for codec in codecs if codec.ids_of}
    for codec in codecs:
        if codec.is_counted:
            assert codec.counting is not None
            own = codec.counting.feature
            column, given = table[codec.feature].combine_chunks(), optional_column(table, own)
            if given is not None:
                given, table = given.cast(_COUNTS_TYPE), table.drop_columns([own])
                check_counts(column, given, (codec.feature, own))
            if codec.feature in have_ids:
                whole = lists_of(list_lengths(column), pc.list_flatten(column), column)
                column, amounts = whole, amounts_of_rows(column, given)
            else:
                column, amounts = counts_of_rows(column, given)
                _check_sums(column, amounts, codec.feature)
            table = with_column(table, codec.feature, column)
            table = with_column(table, counts_column(codec.feature), counts_array(column, amounts))
    return table


def counts_array(column: pa.Array, amounts: NDArray[np.int64]) -> pa.Array:
    """The counts of rows, int64[nnz], as lists like those of their values."""
    return lists_of(list_lengths(column), pa.array(amounts), column)


def check_counts(values: pa.Array, counts: pa.Array, names: tuple[str, str]) -> None:
    """Check that lists of counts fit the lists of their values. Raises RowError, with these names."""
    advice = "give each value a count, or leave the counts out"
    check_beside(values, counts, names, ("values", "counts"), advice)
    amounts = pc.list_flatten(counts)
    numbers = amounts.fill_null(-1).to_numpy()
    if (is_wrong := (numbers < 0) | (numbers > MAX_COUNT)).any():
        ends = np.cumsum(list_lengths(counts))
        place = int(is_wrong.argmax())
        row = int(np.searchsorted(ends, place, side="right"))
        raise RowError(
            f"row {row} of the batch has the count {amounts[place].as_py()} in feature {names[1]!r}; a count "
            f"is a whole number from 0 to {MAX_COUNT}"
        )


def _check_sums(column: pa.Array, amounts: NDArray[np.int64], feature: str) -> None:
    """Check sums: a row may repeat a value, each time with a valid count."""
    if len(amounts) and not 0 < amounts.min() <= amounts.max() <= MAX_COUNT:
        place = int(((amounts < 0) | (amounts > MAX_COUNT)).argmax())
        row = int(np.searchsorted(column.offsets.to_numpy(), place, side="right")) - 1
        raise RowError(
            f"row {row} of the batch counts a value of feature {feature!r} more than {MAX_COUNT} times"
        )


def amounts_of_rows(column: pa.Array, counts: pa.Array | None) -> NDArray[np.int64]:
    """How often each value of rows was counted.

    Parameters
    ----------
    column : lists of values.
    counts : lists of int64, one number for each value; None or a null list if each counts 1.

    Returns int64[nnz], for all elements.

    Raises pyarrow.ArrowInvalid: a row has another number of counts than of values.
    """
    lengths = list_lengths(column)
    amounts = np.ones(int(lengths.sum()), np.int64)
    if counts is not None:
        given = list_lengths(counts, -1)
        if ((given >= 0) & (given != lengths)).any():
            raise pa.ArrowInvalid("a row has another number of counts than of values")
        numbers = pc.list_flatten(counts).to_numpy(zero_copy_only=False)
        amounts[np.repeat(given >= 0, lengths)] = numbers
    return amounts


def counts_of_rows(column: pa.Array, counts: pa.Array | None) -> tuple[pa.Array, NDArray[np.int64]]:
    """The values of rows, each once, and how often each was counted.

    Parameters, errors : see `amounts_of_rows`.

    Returns the lists, and int64[nnz] for all their elements.
    """
    lengths = list_lengths(column)
    elements, amounts = pc.list_flatten(column), amounts_of_rows(column, counts)
    owners = np.repeat(np.arange(len(lengths)), lengths)
    encoded = elements.dictionary_encode()
    facts = owners * max(1, len(encoded.dictionary)) + np.asarray(encoded.indices, np.int64)
    first = np.arange(len(facts))
    if len(np.unique(facts)) < len(facts):
        _, first, places = np.unique(facts, return_index=True, return_inverse=True)
        sums = np.zeros(len(first), np.int64)
        np.add.at(sums, places, amounts)
        sums[np.bincount(places, amounts) > MAX_COUNT] = MAX_COUNT + 1  # too large: `with_counts` refuses it
        order = np.argsort(first)  # each value stays at its first place
        first, amounts = first[order], sums[order]
    if len(first) < len(facts) or (amounts == 0).any():
        kept = np.flatnonzero(amounts)
        first, amounts = first[kept], amounts[kept]
        elements = elements.take(pa.array(first))
        lengths = np.bincount(owners[first], minlength=len(lengths))
    return lists_of(lengths, elements, column), amounts
