"""Columns of lists, and columns beside them with a number of elements of their own: counts, ids, times."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from feast_sketch_store.errors import RowError
from feast_sketch_store.rows.csr import Csr


def list_lengths(column: pa.Array | pa.ChunkedArray, of_null: int = 0) -> NDArray[np.int64]:
    """The number of elements of each list: int64[n]."""
    lengths = pc.list_value_length(column)
    return np.asarray((lengths.fill_null(of_null) if column.null_count else lengths).to_numpy(), np.int64)


def with_column(table: pa.Table, name: str, column: pa.Array) -> pa.Table:
    """The table with a column in place of one of this name, or else at the end."""
    if name in table.column_names:
        return table.set_column(table.column_names.index(name), name, column)
    return table.append_column(name, column)


def lists_of(
    lengths: NDArray[np.int64], elements: pa.Array, null_like: pa.Array | None = None
) -> pa.LargeListArray:
    """Lists of these lengths, with offsets from 0; null where those of another column are."""
    indptr = pa.array(Csr.of_lengths(lengths, lengths).indptr)
    mask = null_like.is_null() if null_like is not None and null_like.null_count else None
    return pa.LargeListArray.from_arrays(indptr, elements, mask=mask)


def check_beside(
    column: pa.Array, beside: pa.Array, names: tuple[str, str | None], nouns: tuple[str, str], advice: str
) -> NDArray[np.bool_]:
    """Check that rows of a batch have as many elements in a column as beside it, where that is not null.

    Parameters
    ----------
    names : of the features.
    nouns : what their elements are.
    advice : what to do if a row has another number.

    Returns
    -------
    bool[nnz], which elements of the column have one beside them.

    Raises
    ------
    RowError : a row has another number.
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
