"""Columns of Arrow: their types, pairs of columns of lists, and names.

Arrow's default types of strings, bytes and lists have 32-bit offsets. An array of them cannot hold 2 GiB, and
concatenating arrays may fail. Files of other programs, and the schema of a Delta table, have the default
types; here they become *large* types, with 64-bit offsets.

Delta Lake cannot hold two columns whose names differ only in case.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from feast_sketch_store.errors import RowError, UnsupportedFeatureError
from feast_sketch_store.rows.csr import bounds_of

# What errors say if memory is short: those of Parquet's metadata, and of zstd.
_NO_MEMORY = ("std::bad_alloc", "Allocation error : not enough memory")


@contextmanager
def memory_errors_apart() -> Iterator[None]:
    """Raise a MemoryError where Arrow lacks memory and raises an error of its own, or of the data."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        if isinstance(error, MemoryError) or any(text in str(error) for text in _NO_MEMORY):
            raise MemoryError(str(error)) from error
        raise


def large_type(kind: pa.DataType) -> pa.DataType:
    """The same type with 64-bit offsets."""
    if pa.types.is_string(kind) or pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_binary(kind) or pa.types.is_binary_view(kind):
        return pa.large_binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.large_list(large_type(kind.value_type))
    return kind


def large_schema(schema: pa.Schema) -> pa.Schema:
    """The same columns with large types."""
    return pa.schema([field.with_type(large_type(field.type)) for field in schema])


def with_large_types(table: pa.Table) -> pa.Table:
    """The same rows with large types. Columns that have them already are not copied.

    Raises pa.ArrowException: the table is not valid.
    """
    schema = large_schema(table.schema)
    return table if schema.types == table.schema.types else table.cast(schema)


def list_lengths(column: pa.Array | pa.ChunkedArray, of_null: int = 0) -> NDArray[np.int64]:
    """The number of elements of each list: int64[n]."""
    lengths = pc.list_value_length(column)
    return np.asarray((lengths.fill_null(of_null) if column.null_count else lengths).to_numpy(), np.int64)


def optional_column(table: pa.Table, name: str) -> pa.Array | None:
    """A column as one array; None if the table has no such column."""
    try:
        return table[name].combine_chunks()
    except KeyError:  # searching the names would make a list of all
        return None


def has_values(table: pa.Table, names: Iterable[str]) -> NDArray[np.bool_]:
    """Which rows have a value in one of these columns, as far as there are such: bool[n]."""
    has = np.zeros(len(table), np.bool_)
    for name in {*names} & {*table.column_names}:
        has |= table[name].is_valid().to_numpy()
    return has


def with_column(table: pa.Table, name: str, column: pa.Array) -> pa.Table:
    """The table with a column in place of one of this name, or else at the end."""
    if name in table.column_names:
        return table.set_column(table.column_names.index(name), name, column)
    return table.append_column(name, column)


def lists_of(
    lengths: NDArray[np.int64], elements: pa.Array, null_like: pa.Array | None = None
) -> pa.LargeListArray:
    """Lists of these lengths, with offsets from 0; null where those of another column are."""
    mask = null_like.is_null() if null_like is not None and null_like.null_count else None
    return pa.LargeListArray.from_arrays(pa.array(bounds_of(lengths)), elements, mask=mask)


def check_beside(
    column: pa.Array, beside: pa.Array, names: tuple[str, str | None], nouns: tuple[str, str], advice: str
) -> NDArray[np.bool_]:
    """Check that rows of a batch have as many elements in two columns, where the second is not null.

    Parameters
    ----------
    names : of the features.
    nouns : what their elements are.
    advice : what to do if a row has another number.

    Returns bool[nnz], which elements of the column have one beside them.

    Raises RowError: a row has another number.
    """
    lengths, given = list_lengths(column), list_lengths(beside, -1)
    wrong = (given >= 0) & (given != lengths)
    if wrong.any():
        row = int(wrong.argmax())
        raise RowError(
            f"row {row} of the batch has {lengths[row]} {nouns[0]} in feature {names[0]!r} and "
            f"{given[row]} {nouns[1]} in feature {names[1]!r}; {advice}"
        )
    return np.repeat(given >= 0, lengths)


def clash(names: Iterable[str]) -> tuple[str, str] | None:
    """The first two different names that are one column for Delta Lake; None if all differ."""
    known: dict[str, str] = {}
    for name in names:
        other = known.setdefault(name.lower(), name)
        if other != name:
            return other, name
    return None


def check_new_columns(stored: Iterable[str], wanted: Iterable[str]) -> None:
    """Check that columns can be added to a table.

    Raises UnsupportedFeatureError: a name differs from that of a stored or another new column only in case.
    """
    found = clash([*stored, *wanted])
    if found is not None:
        raise UnsupportedFeatureError(
            f"the row log has a column {found[0]!r}, and {found[1]!r} differs from it only by case, which "
            f"Delta Lake does not distinguish. Name the feature {found[0]!r} again, give it a name that "
            "differs in more than case, or remove the view with `feast apply`, add it again and materialize"
        )
