"""Limits: how large a row may be, which moments it may have, and how many rows are processed together.

A row is measured when it is written, so every acknowledged row can be read. Readers refuse larger rows,
because a small file can claim any number of values.
"""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from feast_sketch_store.errors import RowError
from feast_sketch_store.rows.columns import large_type, list_lengths
from feast_sketch_store.rows.csr import bounds_of

# Of one row.
MAX_ELEMENTS = 1 << 26  # of one feature
MAX_BYTES = 1 << 30  # of all columns; protobuf cannot hold a value of twice this size

# Of times, in microseconds since 1970: the years 1 to 9999 in UTC, which readers can represent.
FIRST_MOMENT, LAST_MOMENT = -62_135_596_800_000_000, 253_402_300_799_999_999

# Of rows that are written and decoded together. A single larger row is a group of its own.
GROUP_ROWS = 1 << 16
GROUP_ELEMENTS = 1 << 17  # of the widest column
GROUP_BYTES = 1 << 26
_GATHERED_BYTES = 1 << 23  # several groups, so that the last, incomplete one matters little


def aware(moment: datetime) -> datetime:
    """The same moment with a time zone: a naive one is in UTC."""
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def impossible_moment(times: NDArray[np.int64]) -> tuple[int, str] | None:
    """The index of the first time, of int64[n] microseconds since 1970, that no reader can represent, and
    what is wrong with it, in words; None if there is none.
    """
    if not len(times) or (times.min() >= FIRST_MOMENT and times.max() <= LAST_MOMENT):
        return None
    index = int(((times < FIRST_MOMENT) | (times > LAST_MOMENT)).argmax())
    side = "before the year 1" if times[index] < FIRST_MOMENT else "after the year 9999"
    return index, f"{side} in UTC"


def check_moments(times: pa.Array, what: str) -> pa.Array:
    """Check a column of timestamps in microseconds, and return it; ``what`` they are is for messages.

    Raises RowError: names the first row whose timestamp no reader can represent.
    """
    found = impossible_moment(times.view(pa.int64()).fill_null(0).to_numpy())
    if found is not None:
        raise RowError(f"row {found[0]} of the batch has {what} {found[1]}; correct it at its source")
    return times


def check_rows(table: pa.Table) -> None:
    """Check rows before they are written.

    Raises RowError: names the first row that is too large, and its feature.
    """
    if 8 * table.nbytes <= min(MAX_ELEMENTS, 8 * MAX_BYTES):
        return  # an element takes at least one bit
    for name in table.column_names:
        elements = _num_elements(table[name])
        if elements.max(initial=0) > MAX_ELEMENTS:
            row = int((elements > MAX_ELEMENTS).argmax())
            raise RowError(
                f"row {row} of the batch has {elements[row]} elements in feature {name!r}; a row holds at "
                f"most {MAX_ELEMENTS} of a feature. Keep fewer, or spread them over several entities"
            )
    if table.nbytes <= MAX_BYTES:
        return
    sizes = {name: _num_bytes(table[name]) for name in table.column_names}
    total = sum(sizes.values(), np.zeros(len(table), np.int64))
    if total.max(initial=0) > MAX_BYTES:
        row = int((total > MAX_BYTES).argmax())
        largest = max(sizes, key=lambda name: sizes[name][row])
        raise RowError(
            f"row {row} of the batch takes {total[row]} bytes, most of them ({sizes[largest][row]}) in "
            f"feature {largest!r}; a row takes at most {MAX_BYTES}. Store large objects elsewhere and keep "
            "their addresses here"
        )


def gathered(
    tables: Iterable[pa.Table], rows: int | None = None, size_bytes: int = _GATHERED_BYTES
) -> Iterator[pa.Table]:
    """Concatenate consecutive tables of one schema, up to a number of rows or bytes.

    Nothing is copied. By default the rows are those of a group.
    """
    waiting: list[pa.Table] = []
    num_rows = num_bytes = 0
    for table in tables:
        if waiting and not table.schema.equals(waiting[0].schema):
            yield pa.concat_tables(waiting)
            waiting, num_rows, num_bytes = [], 0, 0
        waiting.append(table)
        num_rows += len(table)
        num_bytes += table.nbytes
        if num_rows >= (rows or GROUP_ROWS) or num_bytes >= size_bytes:
            yield pa.concat_tables(waiting)
            waiting, num_rows, num_bytes = [], 0, 0
    if waiting:
        yield pa.concat_tables(waiting)


def groups(table: pa.Table) -> Iterator[pa.Table]:
    """Split rows into groups that can each be decoded at once: slices of the table, in its order."""
    if len(table) <= GROUP_ROWS and 8 * table.nbytes <= min(GROUP_ELEMENTS, 8 * GROUP_BYTES):
        if len(table):
            yield table
        return
    elements, num_bytes = np.ones(len(table), np.int64), np.zeros(len(table), np.int64)
    for column in table.columns:
        elements = np.maximum(elements, _num_elements(column))
        num_bytes += _num_bytes(column)
    ends = [np.cumsum(elements), np.cumsum(num_bytes)]
    first = 0
    while first < len(table):
        stop = first + GROUP_ROWS
        for of_row, end, limit in zip(
            (elements, num_bytes), ends, (GROUP_ELEMENTS, GROUP_BYTES), strict=True
        ):
            before = end[first] - of_row[first]
            stop = min(stop, int(np.searchsorted(end, before + limit, side="right")))
        stop = max(first + 1, min(stop, len(table)))
        yield table.slice(first, stop - first)
        first = stop


def _num_elements(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """The number of elements of each row, 1 for a row that is not a list: int64[n]."""
    if not _is_list(column.type):
        return np.ones(len(column), np.int64)
    return list_lengths(column)


def _num_bytes(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """The number of bytes of each row's values: int64[n]."""
    sizes = [_num_bytes_of(chunk) for chunk in column.chunks]
    return np.concatenate(sizes) if sizes else np.zeros(0, np.int64)


def _num_bytes_of(array: pa.Array) -> NDArray[np.int64]:
    if _is_list(array.type):
        of_elements = bounds_of(_num_bytes_of(pc.list_flatten(array)))
        return np.diff(of_elements[bounds_of(list_lengths(array))])
    if large_type(array.type) in (pa.large_string(), pa.large_binary()):
        return np.asarray(pc.binary_length(array).fill_null(0), np.int64)
    width = 0 if pa.types.is_null(array.type) else -(-array.type.bit_width // 8)
    return np.full(len(array), width)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))
