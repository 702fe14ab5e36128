"""Turn rows in Arrow columns, as an offline store returns them, into a table of the row log.

The table equals the one that `encoding.to_arrow` makes after Feast has turned the same rows into protos, but
no Python object per value is created. Types without a column of their own (maps, structs, JSON, nested lists)
go through Feast's conversion of single values.

Where Feast would write a value that cannot be right, the row is refused or corrected:

                                     Feast                      here
    int64 next to nulls              rounded through float64    exact
    null timestamp                   a time before all others   null
    empty bytes, if all are empty    null                       empty
    5.7 for an integer               5                          refused
    1e17 for an integer              1e17, rounded or not       refused
    1e300 for a Float32              infinity                   refused
    list for a scalar                null                       refused
    string for an Array or Set       its characters             refused
    nanosecond timestamps in a list  taken for seconds          seconds
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from feast_sketch_store.errors import RowError, shown
from feast_sketch_store.rows.codecs import TOO_LARGE_FOR_FLOAT, FeatureCodec
from feast_sketch_store.rows.columns import large_type, list_lengths, lists_of
from feast_sketch_store.rows.count_log import with_counts
from feast_sketch_store.rows.csr import bounds_of
from feast_sketch_store.rows.encoding import NAMES, TIMESTAMP, computed_value, log_table
from feast_sketch_store.rows.entity_keys import JOIN_KEY_TYPES, serialize_columns
from feast_sketch_store.rows.limits import check_moments, check_rows

# Values that replace null elements of an Array, as in Feast; other kinds of elements must not be null.
_NULL_ELEMENTS = {"string": "", "bytes": b"", "bool": False, "float": np.nan, "double": np.nan}
_NULL_SET_ELEMENTS = {kind: _NULL_ELEMENTS[kind] for kind in ("bool", "float", "double")}

_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}

# What Feast's conversion of a value may raise.
_FEAST_ERRORS = (TypeError, ValueError, AssertionError, AttributeError, KeyError, OverflowError)


def from_columns(
    table: pa.Table,
    codecs: Sequence[FeatureCodec],
    join_keys: Mapping[str, str],
    event_timestamp: str = "event_timestamp",
    created_timestamp: str | None = None,
) -> pa.Table:
    """Turn rows of an offline store into a table of the row log.

    Parameters
    ----------
    table : a column per join key, feature and timestamp, and no others. Computed features may be missing or
        null.
    codecs : one per feature of the view.
    join_keys : of the view, each with the field of Feast's ``Value`` that carries it.
    event_timestamp, created_timestamp : names of columns with timestamps of any unit and time zone; UTC if
        naive. ``created_timestamp`` is None if rows have none.

    Returns the table that `encoding.to_arrow` returns. A null in a feature, or a NaN in a scalar feature,
    counts as written as null.

    Raises RowError: a column is missing, unknown or repeated; a value does not fit the type of its feature
    (names the row); a join key or event timestamp is null; counts do not fit their values; or a row is too
    large.
    """
    timestamps = [event_timestamp] if created_timestamp is None else [event_timestamp, created_timestamp]
    table = _without_computed(table, codecs)
    codecs = [codec for codec in codecs if not codec.is_computed]
    _check_names(table.column_names, [*join_keys, *(codec.feature for codec in codecs), *timestamps])
    keys = {name: _join_key(name, join_keys[name], table[name]) for name in sorted(join_keys)}
    features = {codec.feature: feature_column(table[codec.feature], codec) for codec in codecs}
    events = _timestamps(table[event_timestamp], event_timestamp)
    created = None if created_timestamp is None else _timestamps(table[created_timestamp], created_timestamp)
    nulls = _null_names(features, len(table))
    rows = log_table({**keys, **features}, serialize_columns(keys), events, created, nulls)
    rows = with_counts(rows, codecs)
    check_rows(rows)
    return rows


def from_source(table: pa.Table, feature_view: Any, codecs: Sequence[FeatureCodec]) -> pa.Table:
    """Turn rows of a feature view's batch source, which may have other columns, into a table of the row log.

    Raises RowError: see `from_columns`.
    """
    source, fields = feature_view.batch_source, _join_key_fields(feature_view)
    created = source.created_timestamp_column or None
    names = {*fields, *(codec.feature for codec in codecs), source.timestamp_field, created}
    table = table.select([name for name in table.column_names if name in names])
    try:
        return from_columns(table, codecs, fields, source.timestamp_field, created)
    except RowError as error:
        raise RowError(f"feature view {feature_view.name!r}: {error}") from error


def check_join_keys(table: pa.Table, feature_view: Any) -> None:
    """Check the join keys of rows that Feast converts, which would cut fractions off.

    Raises RowError: a join key is null, or does not fit its type; names the row.
    """
    try:
        for name, field in _join_key_fields(feature_view).items():
            _join_key(name, field, table[name])
    except RowError as error:
        raise RowError(f"feature view {feature_view.name!r}: {error}") from error


def _join_key_fields(feature_view: Any) -> dict[str, str]:
    """The join keys of a view, each with the field of Feast's ``Value`` that carries it."""
    columns = feature_view.entity_columns
    return {field.name: FeatureCodec.for_feature(field.name, field.dtype).value_field for field in columns}


def _without_computed(table: pa.Table, codecs: Sequence[FeatureCodec]) -> pa.Table:
    """The rows without the columns of computed features, which must be null."""
    for codec in codecs:
        if codec.is_computed and codec.feature in table.column_names:
            values = _nan_as_null(_in_one(table[codec.feature]))
            if values.null_count < len(values):
                raise computed_value(codec, values.is_valid().index(True).as_py())
            table = table.drop_columns([codec.feature])
    return table


def _check_names(given: Sequence[str], wanted: Sequence[str]) -> None:
    if missing := sorted({*wanted} - {*given}):
        raise RowError(f"the table lacks the columns {missing}; it has {sorted(given)}")
    if unknown := sorted({*given} - {*wanted}):
        raise RowError(f"the table has columns {unknown}, features that the view lacks")
    if twice := sorted({name for name in given if given.count(name) > 1}):
        raise RowError(f"the table has columns {twice} more than once")


def _join_key(name: str, field: str, column: pa.ChunkedArray) -> pa.Array:
    if field not in JOIN_KEY_TYPES:
        raise RowError(f"join key {name!r} arrives as {field}; a batch takes one of {list(JOIN_KEY_TYPES)}")
    values = feature_column(column, FeatureCodec(name, field), what="join key")
    if values.null_count:
        row = values.is_null().index(True).as_py()
        raise RowError(f"join key {name!r} is null in row {row} of the batch; every entity needs a value")
    return values


def feature_column(column: pa.ChunkedArray, codec: FeatureCodec, what: str = "feature") -> pa.Array:
    """A column of the codec's Arrow type, null where the feature is written as null."""
    values = _in_one(column)
    convert = _conversion(values.type, codec)
    try:
        return convert(values)
    except MemoryError:
        raise
    except (_Refused, RowError, pa.ArrowException, *_FEAST_ERRORS) as error:
        row = _first_refused(convert, values)
        raise RowError(
            f"{what} {codec.feature!r} takes {codec.value_field}, but row {row} of the batch has "
            f"{shown(values[row])} ({values.type}): {error}; correct the {what}'s type or the source's column"
        ) from error


class _Refused(Exception):
    """A value cannot be kept."""


def _first_refused(convert: Callable[[pa.Array], pa.Array], values: pa.Array) -> int:
    """The first row that cannot be converted; there must be one."""

    def is_refused(num_rows: int) -> bool:
        try:
            convert(values.slice(0, num_rows))
        except (_Refused, RowError, pa.ArrowException, *_FEAST_ERRORS):
            return True
        return False

    return max(0, bisect_left(range(len(values)), True, key=is_refused) - 1)


def _in_one(column: pa.ChunkedArray) -> pa.Array:
    """The column as one array with 64-bit offsets, decoded if it has a dictionary."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = large_type(column.type)
    return (column if kind == column.type else column.cast(kind)).combine_chunks()


# -- values ------------------------------------------------------------------------------------


def _conversion(source: pa.DataType, codec: FeatureCodec) -> Callable[[pa.Array], pa.Array]:
    """The function that converts columns of a type to columns of a feature."""
    if pa.types.is_null(source):
        return lambda values: pa.nulls(len(values), codec.arrow_type)
    is_list = _is_list(source)
    element = source.value_type if is_list else source
    if pa.types.is_dictionary(element):
        element = element.value_type
    if is_list == codec.is_collection and _casts(element, codec):
        if not is_list:
            return lambda values: _elements(_nan_as_null(values), codec)
        return lambda values: _lists(values, codec)
    if is_list and not codec.is_collection and codec.element_kind != "message":
        return lambda values: _refuse("a list is not a scalar")
    if pa.types.is_large_string(source) and codec.is_collection and codec.element_kind != "message":
        return lambda values: _refuse("a string is not a list")  # Feast would split it into characters
    return lambda values: _by_feast(values, codec)


def _refuse(reason: str) -> pa.Array:
    raise _Refused(reason)


def _casts(source: pa.DataType, codec: FeatureCodec) -> bool:
    """Whether elements of a type can be cast by Arrow."""
    kind, types = codec.element_kind, pa.types
    if kind == "string":
        # Feast's conversion checks that JSON is valid.
        return bool(types.is_large_string(source)) and not codec.value_field.startswith("json")
    if kind == "bytes":
        return bool(types.is_large_binary(source) or types.is_fixed_size_binary(source))
    if kind == "timestamp":
        return bool(types.is_timestamp(source) or types.is_date(source))
    if kind == "bool":
        return bool(types.is_boolean(source))
    return kind != "message" and bool(types.is_integer(source) or types.is_floating(source))


def _nan_as_null(values: pa.Array) -> pa.Array:
    """NaN as null, as Feast does in a column of scalars."""
    if not pa.types.is_floating(values.type):
        return values
    return pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)


def _elements(values: pa.Array, codec: FeatureCodec) -> pa.Array:
    """Elements as the row log stores them."""
    if pa.types.is_dictionary(values.type):
        values = values.cast(large_type(values.type.value_type))
    kind = codec.element_type
    if pa.types.is_integer(kind):
        _check_not_rounded(values)
    if codec.element_kind == "timestamp":
        # Feast cuts fractions of seconds off in an Array, and rounds them down elsewhere.
        is_cut = codec.is_collection and not codec.is_set
        return _seconds(values, is_cut).cast(pa.timestamp("s", "UTC")).cast(kind)
    if pa.types.is_floating(kind) and pa.types.is_integer(values.type):
        values = values.cast(pa.float64(), safe=False)  # to the nearest, as in Python
    elements = values.cast(kind)
    if (kind, values.type) == (pa.float32(), pa.float64()) and pc.any(
        pc.and_(pc.is_inf(elements), pc.is_finite(values))
    ).as_py():
        raise _Refused(TOO_LARGE_FOR_FLOAT)
    return elements


def _check_not_rounded(values: pa.Array) -> None:
    """Refuse floats that whole numbers may have been rounded to, as pandas does with those next to nulls."""
    if pa.types.is_floating(values.type):
        num_bits = np.finfo(values.type.to_pandas_dtype()).nmant + 1
        if pc.any(pc.greater_equal(pc.abs(values.cast(pa.float64())), 2.0**num_bits)).as_py():
            raise _Refused(f"a float of {num_bits} bits does not hold all whole numbers as large as this")


def _seconds(values: pa.Array, is_cut: bool) -> pa.Array:
    """Whole seconds since 1970: int64."""
    if pa.types.is_date(values.type):
        values = values.cast(pa.timestamp("s" if pa.types.is_date32(values.type) else "ms"))
    return _divided(values.cast(pa.int64()), _PER_SECOND[values.type.unit], is_cut)


def _divided(numbers: pa.Array, divisor: int, is_cut: bool = False) -> pa.Array:
    """Integers divided and rounded down, or towards zero if ``is_cut``."""
    if divisor == 1:
        return numbers
    if is_cut:
        return pc.divide(numbers, divisor)
    filled = numbers.fill_null(0).to_numpy() // divisor
    return pa.array(filled, pa.int64(), mask=numbers.is_null().to_numpy(zero_copy_only=False))


def _lists(values: pa.Array, codec: FeatureCodec) -> pa.Array:
    """Lists as the row log stores them."""
    lengths = list_lengths(values)
    elements = _elements(pc.list_flatten(values), codec)
    if elements.null_count:
        known = _NULL_SET_ELEMENTS if codec.is_set else _NULL_ELEMENTS
        if codec.element_kind not in known:
            raise _Refused("no element may be null")
        elements = elements.fill_null(pa.scalar(known[codec.element_kind], elements.type))
    if codec.is_set:
        lengths, elements = _distinct(lengths, elements)
    return lists_of(lengths, elements, values)


def _distinct(lengths: NDArray[np.int64], elements: pa.Array) -> tuple[NDArray[np.int64], pa.Array]:
    """Each element once per row, at its first index; -0.0 and 0.0 are equal, as in Python's sets."""
    equal = pc.add(elements, pa.scalar(0, elements.type)) if pa.types.is_floating(elements.type) else elements
    encoded = equal.dictionary_encode()
    owners = np.repeat(np.arange(len(lengths)), lengths)
    facts = owners * max(1, len(encoded.dictionary)) + encoded.indices.to_numpy()
    _, first = np.unique(facts, return_index=True)
    if len(first) == len(elements):
        return lengths, elements
    first.sort()
    return np.bincount(owners[first], minlength=len(lengths)), elements.take(pa.array(first))


def _by_feast(values: pa.Array, codec: FeatureCodec) -> pa.Array:
    """The column as Feast's conversion of single values makes it."""
    from feast.type_map import PROTO_VALUE_TO_VALUE_TYPE_MAP, python_values_to_proto_values
    from feast.value_type import ValueType

    value_type = PROTO_VALUE_TO_VALUE_TYPE_MAP.get(codec.value_field)
    if value_type is None:
        value_type = ValueType[codec.value_field.removesuffix("_val").upper()]
    protos = python_values_to_proto_values(values.to_numpy(zero_copy_only=False), value_type)
    return codec.to_arrow(protos)[0]


# -- the store's own columns -------------------------------------------------------------------


def _timestamps(column: pa.ChunkedArray, name: str) -> pa.Array:
    """Microseconds in UTC; nanoseconds are rounded down."""
    values = _in_one(column)
    if pa.types.is_null(values.type):
        return pa.nulls(len(values), TIMESTAMP)
    if not pa.types.is_timestamp(values.type) and not pa.types.is_date(values.type):
        raise RowError(f"column {name!r} has type {values.type}; give timestamps")
    if pa.types.is_timestamp(values.type) and values.type.unit == "ns":
        return _divided(values.cast(pa.int64()), 1_000).cast(TIMESTAMP)
    is_naive = pa.types.is_date(values.type) or values.type.tz is None
    try:
        times = (values.cast(pa.timestamp("us")) if is_naive else values).cast(TIMESTAMP)
    except pa.ArrowException as error:
        raise RowError(f"column {name!r}: a timestamp cannot be kept: {error}") from error
    return check_moments(times, f"in column {name!r} a timestamp")


def _null_names(features: Mapping[str, pa.Array], num_rows: int) -> pa.Array:
    """For each row, the names of its null features in the order of the features; null if there are none."""
    if not any(values.null_count for values in features.values()):
        return pa.nulls(num_rows, NAMES)
    is_null = np.column_stack([v.is_null().to_numpy(zero_copy_only=False) for v in features.values()])
    lengths = is_null.sum(axis=1)
    names = pa.array([*features], pa.large_string()).take(pa.array(np.nonzero(is_null)[1]))
    return pa.LargeListArray.from_arrays(pa.array(bounds_of(lengths)), names, mask=pa.array(lengths == 0))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))
