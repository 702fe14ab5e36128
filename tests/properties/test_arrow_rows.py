"""Rows that come in as Arrow columns, against the same rows on their way through Feast's protos."""

import math
import struct
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pytest
from feast import Entity, FeatureView, Field, FileSource, ValueType
from feast.types import (
    Array,
    Bool,
    Bytes,
    Decimal,
    Float32,
    Float64,
    Int32,
    Int64,
    Json,
    Map,
    Set,
    String,
    Struct,
    TimeUuid,
    UnixTimestamp,
    Uuid,
)
from feast.utils import _convert_arrow_to_proto
from hypothesis import given, settings
from hypothesis import strategies as st

from feast_sketch_store.errors import RowError
from feast_sketch_store.rows.arrow_rows import from_columns
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.encoding import CREATED_TIMESTAMP, ENTITY_KEY, NULLS, to_arrow
from feast_sketch_store.rows.entity_keys import hash_serialized_keys
from feast_sketch_store.rows.limits import MAX_ELEMENTS
from feast_sketch_store.settings.view_settings import FeatureSettings, ViewSettings
from feast_sketch_store.storage.local import LocalStorage
from feast_sketch_store.view.view import View
from tests.helpers.length import by_length
from tests.oracle.messages import feast_values

# Feast drops nanoseconds with a warning.
pytestmark = [pytest.mark.filterwarnings("ignore:Discarding nonzero nanoseconds"), pytest.mark.has_long_form]

REPEATABLE = settings(derandomize=True, deadline=None, database=None)
EVENT = datetime(2026, 5, 1, tzinfo=UTC)
ALL_CODECS = ["", "exact"]  # exact ones keep order and repetitions

TEXT = st.text(st.sampled_from("abé\x00🛒"), max_size=3)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**53), 2**53)  # Feast rounds others where there are nulls beside them
FLOAT32 = st.floats(width=32)
SMALL = st.integers(0, 127)
IDS = st.uuids().map(str)
UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
ZONES = [None, "UTC", "Europe/Berlin", "+05:30"]


def instants(unit):
    """Ticks of a unit within what 64 bits of nanoseconds hold."""
    return st.integers(-9_000_000_000 * UNITS[unit], 9_000_000_000 * UNITS[unit])


TIMESTAMPS = [(pa.timestamp(unit, zone), instants(unit)) for unit in UNITS for zone in ZONES]
NUMBERS = [(pa.int8(), st.integers(-128, 127)), (pa.uint16(), st.integers(0, 2**16 - 1)), (pa.int32(), INT32)]
STRINGS = [(kind, TEXT) for kind in (pa.string(), pa.large_string())]
# Where all bytes of a batch are empty, Feast writes nulls.
FULL = st.binary(min_size=1, max_size=3)
BINARIES = [(kind, FULL) for kind in (pa.binary(), pa.large_binary())]
PAIR = pa.struct([("a", pa.int64()), ("b", pa.string())])
PAIRS = st.fixed_dictionaries({"a": SMALL, "b": TEXT})
WITHOUT_NULLS = {UnixTimestamp}  # which Feast takes for a time before all others

SCALARS = {
    Bool: [(pa.bool_(), st.booleans())],
    Int32: [*NUMBERS, (pa.int64(), INT32), (pa.float64(), SMALL.map(float))],
    Int64: [*NUMBERS, (pa.int64(), INT64), (pa.uint32(), st.integers(0, 2**32 - 1))],
    Float32: [(pa.float32(), FLOAT32), (pa.float64(), FLOAT32), (pa.int32(), INT32)],
    Float64: [(pa.float64(), st.floats()), (pa.int64(), INT64)],
    String: [*STRINGS, (pa.dictionary(pa.int32(), pa.string()), TEXT), (pa.int64(), SMALL)],
    Bytes: [*BINARIES, (pa.binary(4), st.binary(min_size=4, max_size=4))],
    UnixTimestamp: [*TIMESTAMPS, (pa.date32(), st.integers(-90_000, 90_000)), (pa.int64(), INT32)],
    Uuid: [(pa.string(), IDS)],
    TimeUuid: [(pa.large_string(), IDS)],
    Decimal: [
        (pa.string(), st.decimals(-100, 100, places=3).map(str)),
        (pa.decimal128(20, 8), st.decimals(-100, 100, places=8)),
    ],
    Json: [(pa.string(), st.sampled_from(['{"b": 1}', "null", "[1, 2]", '"x"']))],
    Map: [(PAIR, PAIRS)],
    Struct({"a": Int64, "b": String}): [(PAIR, PAIRS)],
    Array(Array(Int64)): [(pa.list_(pa.list_(pa.int64())), st.lists(st.lists(INT64, min_size=1)))],
}

ELEMENTS = {
    Bool: [(pa.bool_(), st.booleans())],
    Int32: [(pa.int32(), INT32), (pa.int64(), INT32)],
    Int64: [(pa.int32(), INT32), (pa.int64(), st.integers(-(2**63), 2**63 - 1))],
    Float32: [(pa.float32(), FLOAT32), (pa.float64(), FLOAT32)],
    Float64: [(pa.float32(), FLOAT32), (pa.float64(), st.floats())],
    String: STRINGS,
    Bytes: [(kind, st.binary(max_size=3)) for kind, _ in BINARIES],
    # Feast takes nanoseconds in an Array for seconds.
    UnixTimestamp: [(kind, ticks) for kind, ticks in TIMESTAMPS if kind.unit != "ns"],
    Uuid: [(pa.string(), IDS)],
    Decimal: [(pa.string(), st.decimals(-100, 100, places=3).map(str))],
}
WITH_NULL_ELEMENTS = {Array: {Bool, String, Bytes, Float32, Float64, Uuid, Decimal}, Set: {Bool}}


def lists_of(draw, kind, elements):
    """An Arrow type of lists, and lists of it."""
    container = draw(st.sampled_from([pa.list_, pa.large_list, None]))
    if container is not None:
        return container(kind), st.lists(elements, max_size=4)
    return pa.list_(kind, 2), st.lists(elements, min_size=2, max_size=2)


@st.composite
def columns(draw, num_rows):
    """A Feast type, and a column that its values may come in."""
    if draw(st.booleans()):
        dtype = draw(st.sampled_from([*SCALARS]))
        kind, values = draw(st.sampled_from(SCALARS[dtype]))
        has_nulls = dtype not in WITHOUT_NULLS
    else:
        container, element = draw(st.sampled_from([Array, Set])), draw(st.sampled_from([*ELEMENTS]))
        dtype = container(element)
        kind, values = draw(st.sampled_from(ELEMENTS[element]))
        if element in WITH_NULL_ELEMENTS[container]:
            # Feast looks at the first list to tell what is in it.
            values = st.one_of(values, values, st.none())
        kind, values = lists_of(draw, kind, values)
        # With a null list among those of fixed size, Feast takes the integers of all for floats.
        has_nulls = not pa.types.is_fixed_size_list(kind)
    if has_nulls:
        values = st.one_of(values, values, values, st.none())
    drawn = draw(st.lists(values, min_size=num_rows, max_size=num_rows))
    return dtype, array(drawn, kind)


def array(values, kind):
    if pa.types.is_dictionary(kind):
        return pa.array(values, kind.value_type).dictionary_encode()
    return pa.array(values, kind)


JOIN_KEYS = {
    "user": (ValueType.INT64, "int64_val", pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "shop": (ValueType.STRING, "string_val", pa.string(), TEXT),
    "line": (ValueType.INT32, "int32_val", pa.int32(), INT32),
    "tag": (ValueType.BYTES, "bytes_val", pa.binary(), FULL),
    "day": (ValueType.UNIX_TIMESTAMP, "unix_timestamp_val", pa.timestamp("ms"), instants("ms")),
}


@st.composite
def tables(draw):
    """The Feast types of features, join keys, and a table that has both and timestamps."""
    num_rows = draw(st.integers(1, 5))
    names = draw(st.lists(st.sampled_from([*JOIN_KEYS]), min_size=1, max_size=2, unique=True))
    data = {
        name: pa.array(draw(st.lists(values, min_size=num_rows, max_size=num_rows)), kind)
        for name, (_, _, kind, values) in JOIN_KEYS.items()
        if name in names
    }
    types = {}
    for number in range(draw(st.integers(1, 3))):
        types[f"feature {number}"], data[f"feature {number}"] = draw(columns(num_rows))
    for name, values in (("event", lambda ticks: ticks), ("created", lambda ticks: st.none() | ticks)):
        kind, ticks = draw(st.sampled_from(TIMESTAMPS))
        data[name] = pa.array(draw(st.lists(values(ticks), min_size=num_rows, max_size=num_rows)), kind)
    return types, names, pa.table(data)


def view_of(types, names):
    return FeatureView(
        name="view",
        entities=[Entity(name=name, value_type=JOIN_KEYS[name][0]) for name in names],
        schema=[Field(name=name, dtype=dtype) for name, dtype in types.items()],
        source=FileSource(path="unused", timestamp_field="event", created_timestamp_column="created"),
    )


def through_protos(types, names, table, codecs):
    keys = {name: JOIN_KEYS[name][0] for name in names}
    rows = _convert_arrow_to_proto(table.combine_chunks(), view_of(types, names), keys)
    return to_arrow(rows, codecs)


def directly(names, table, codecs):
    return from_columns(table, codecs, {name: JOIN_KEYS[name][1] for name in names}, "event", "created")


def comparable(table, codecs):
    """Columns as lists, in which equal values are equal to the bit, and Sets have no order."""
    sets = {codec.feature for codec in codecs if codec.is_set}
    return {
        name: [comparable_value(value, name in sets) for value in ticks(table[name]).to_pylist()]
        for name in table.column_names
    }


def ticks(column):
    """Timestamps as numbers: Python's do not reach as far."""
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.int64())
    if pa.types.is_large_list(column.type) and pa.types.is_timestamp(column.type.value_type):
        return column.cast(pa.large_list(pa.int64()))
    return column


def comparable_value(value, is_set):
    if is_set and value is not None:
        # Of 0.0 and -0.0 a Python set has either; NaN differs from NaN in it.
        return {bits(0.0 if element == 0.0 else element) for element in value}
    return [bits(element) for element in value] if isinstance(value, list) else bits(value)


def bits(value):
    return struct.pack("<d", math.nan if value != value else value) if isinstance(value, float) else value


def codecs_of(types, name=""):
    return [replace(FeatureCodec.for_feature(feature, dtype), name=name) for feature, dtype in types.items()]


@settings(REPEATABLE, max_examples=by_length(12, 60))
@given(tables(), st.sampled_from(ALL_CODECS))
def test_columns_become_the_rows_that_protos_become(drawn, codec):
    types, names, table = drawn
    codecs = codecs_of(types, codec)
    wanted = through_protos(types, names, table, codecs)
    rows = directly(names, table, codecs)
    assert rows.schema == wanted.schema
    assert comparable(rows, codecs) == comparable(wanted, codecs)


@settings(REPEATABLE, max_examples=by_length(10, 50))
@given(tables(), st.data())
def test_it_does_not_matter_how_a_table_is_cut(drawn, data):
    types, names, table = drawn
    codecs = codecs_of(types)
    place = data.draw(st.integers(0, len(table)))
    cut = pa.concat_tables([table.slice(0, place), table.slice(place)])
    wanted = comparable(directly(names, table, codecs), codecs)
    assert comparable(directly(names, cut, codecs), codecs) == wanted
    parts = [directly(names, part, codecs) for part in (table.slice(0, place), table.slice(place))]
    assert comparable(pa.concat_tables(parts), codecs) == wanted


# -- what Feast does not keep ------------------------------------------------------------------


def one_feature(dtype, values, kind=None):
    """The column that values of a feature become."""
    codec = FeatureCodec.for_feature("x", dtype)
    given = {
        "user": pa.array(range(len(values))),
        "x": pa.array(values, kind),
        "event": [EVENT] * len(values),
    }
    return from_columns(pa.table(given), [codec], {"user": "int64_val"}, "event")


def test_large_integers_beside_nulls_stay_exact():
    rows = one_feature(Int64, [2**63 - 1, None, -(2**63)])
    assert rows["x"].to_pylist() == [2**63 - 1, None, -(2**63)]
    assert rows[NULLS].to_pylist() == [None, ["x"], None]


def test_a_null_timestamp_is_a_null():
    rows = one_feature(UnixTimestamp, [EVENT, None])
    assert rows["x"].to_pylist() == [EVENT, None]
    assert rows[NULLS].to_pylist() == [None, ["x"]]


def test_nanoseconds_in_an_array_are_no_seconds():
    ticks = int(EVENT.timestamp()) * 10**9 + 5
    assert one_feature(Array(UnixTimestamp), [[ticks]], pa.list_(pa.timestamp("ns")))["x"].to_pylist() == [
        [EVENT]
    ]


def test_empty_bytes_are_no_nulls():
    assert one_feature(Bytes, [b""])["x"].to_pylist() == [b""]


def test_rows_without_a_created_timestamp():
    assert one_feature(Int64, [1])[CREATED_TIMESTAMP].to_pylist() == [None]


def test_a_view_without_entities_has_no_join_key_column():
    table = pa.table({"__dummy_id": [""], "x": [1], "event": [EVENT]})
    rows = from_columns(table, codecs_of({"x": Int64}), {"__dummy_id": "string_val"}, "event")
    assert rows.column_names[:2] == ["x", ENTITY_KEY]


@pytest.mark.parametrize(
    ("dtype", "kind", "values", "words"),
    [
        (Int32, pa.int64(), [1, 2**31], ["row 1", "2147483648", "int32_val"]),
        (Int64, pa.uint64(), [1, 2, 2**63], ["row 2", "9223372036854775808"]),
        (Int64, pa.float64(), [1.0, None, 5.7], ["row 2", "5.7"]),
        # Of 2**53 + 1, as pandas rounds it next to a null.
        (Int64, pa.float64(), [2.0**53 - 1, None, -(2.0**53)], ["row 2", "9007199254740992", "53 bits"]),
        (Int32, pa.float32(), [2.0**24 - 1, 2.0**24], ["row 1", "16777216", "24 bits"]),
        (Array(Int64), pa.list_(pa.float64()), [[1.0], [1e17]], ["row 1", "1e+17", "53 bits"]),
        (Int64, pa.string(), ["1", "one"], ["row 1", "one"]),
        (Float32, pa.string(), ["n/a"], ["row 0", "n/a"]),
        (Float32, pa.float64(), [0.1, None, 1e300], ["row 2", "1e+300", "32-bit float"]),
        (Float32, pa.float64(), [float("inf"), -1e39], ["row 1", "-1e+39", "32-bit float"]),
        (Array(Float32), pa.list_(pa.float64()), [[float("-inf"), 0.1], [1e300]], ["row 1", "32-bit float"]),
        (Set(Float32), pa.list_(pa.float64()), [[], [1e300]], ["row 1", "32-bit float"]),
        (String, pa.list_(pa.string()), [["a"]], ["row 0", "list"]),
        (Array(Int64), pa.list_(pa.int64()), [[1], [None]], ["row 1", "null"]),
        (Set(String), pa.list_(pa.string()), [["a"], ["a", None]], ["row 1", "null"]),
        (Set(UnixTimestamp), pa.list_(pa.timestamp("s")), [[None]], ["row 0", "null"]),
        (Set(String), pa.string(), ["a"], ["row 0"]),
        (UnixTimestamp, pa.timestamp("s"), [0, 2**60], ["row 1"]),
        (Json, pa.string(), ["{}", "{"], ["row 1", "JSON"]),
        (String, pa.list_(pa.string()), [["a" * 10_000]], ["..."]),
    ],
)
def test_what_cannot_be_meant_is_refused(dtype, kind, values, words):
    with pytest.raises(RowError) as caught:
        one_feature(dtype, values, kind)
    message = str(caught.value)
    assert "'x'" in message
    assert len(message) < 500
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"user": [1], "event": [EVENT]}, ["lacks", "'x'"]),
        ({"user": [1], "x": [1], "y": [1], "event": [EVENT]}, ["'y'", "lacks"]),
        ({"x": [1], "event": [EVENT]}, ["lacks", "'user'"]),
        ({"user": [1], "x": [1]}, ["lacks", "'event'"]),
        ({"user": [1, None], "x": [1, 1], "event": [EVENT] * 2}, ["'user'", "row 1"]),
        ({"user": ["a"], "x": [1], "event": [EVENT]}, ["'user'", "int64_val", "row 0"]),
        ({"user": [1, 2], "x": [1, 1], "event": [EVENT, None]}, ["row 1", "no event timestamp"]),
        ({"user": [1], "x": [1], "event": [None]}, ["row 0", "no event timestamp"]),
        ({"user": [1], "x": [1], "event": ["2026-05-01"]}, ["'event'", "string"]),
    ],
)
def test_a_table_that_is_not_of_the_view_is_refused(columns, words):
    with pytest.raises(RowError) as caught:
        from_columns(pa.table(columns), codecs_of({"x": Int64}), {"user": "int64_val"}, "event")
    for word in words:
        assert word in str(caught.value)


def test_a_column_that_is_there_twice_is_refused():
    table = pa.Table.from_arrays(
        [pa.array([1]), pa.array([1]), pa.array([2]), pa.array([EVENT])], ["user", "x", "x", "event"]
    )
    with pytest.raises(RowError, match="more than once"):
        from_columns(table, codecs_of({"x": Int64}), {"user": "int64_val"}, "event")


def test_a_join_key_of_a_type_that_no_key_has_is_refused():
    table = pa.table({"user": [1.5], "x": [1], "event": [EVENT]})
    with pytest.raises(RowError, match="double_val"):
        from_columns(table, codecs_of({"x": Int64}), {"user": "double_val"}, "event")


def test_a_row_that_is_too_large_is_refused():
    bits = pa.array(np.zeros(MAX_ELEMENTS + 1, np.bool_))
    with pytest.raises(RowError, match=r"row 0 of the batch has .* elements in feature 'x'"):
        one_feature(Array(Bool), pa.LargeListArray.from_arrays([0, len(bits)], bits))


# -- through a view ----------------------------------------------------------------------------


@settings(REPEATABLE, max_examples=10)
@given(tables())
def test_a_view_reads_back_the_same_from_both(drawn):
    types, names, table = drawn
    codecs = codecs_of(types, "exact")
    view_settings = ViewSettings("view", 1e-5, {c.feature: FeatureSettings(c, 0.01, 1000) for c in codecs})
    read = []
    for write in (
        lambda view: view.write(directly(names, table, codecs)),
        lambda view: view.write(
            _convert_arrow_to_proto(
                table.combine_chunks(), view_of(types, names), {name: JOIN_KEYS[name][0] for name in names}
            )
        ),
    ):
        with TemporaryDirectory() as folder:
            view = View(LocalStorage(Path(folder)), view_settings)
            write(view)
            unsealed = read_all(view, types, hashes := hashes_of(names, table))
            assert view.seal()
            assert read_all(view, types, hashes) == unsealed
            view.close()
            read.append(unsealed)
    assert read[0] == read[1]


def hashes_of(names, table):
    keys = {name: FeatureCodec(name, JOIN_KEYS[name][1]) for name in names}
    rows = from_columns(
        table.select([*names, "event"]), [], {n: c.value_field for n, c in keys.items()}, "event"
    )
    return hash_serialized_keys(rows[ENTITY_KEY].combine_chunks())


def read_all(view, types, hashes):
    """Per row its event timestamp and its values; Sets without order."""
    found = {}
    answer = view.read(hashes, [*types])
    values = {n: feast_values(f) for n, f in answer.features.items()}
    for row, position in enumerate(answer.found.tolist()):
        found[position] = (
            int(answer.event_timestamps[row]),
            {name: plain(values[name][row]) for name in values},
        )
    assert [*sorted(found)] == [*range(len(hashes))]
    return found


def plain(value):
    field = value.WhichOneof("val")
    if field is None:
        return None
    if field == "set_val" or not field.endswith("_set_val"):
        return field, value.SerializeToString(deterministic=True)
    return field, comparable_value([*getattr(value, field).val], is_set=True)
