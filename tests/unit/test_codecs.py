"""Codecs: which values a feature takes, and the columns that they become."""

import math

import pytest
from feast.protos.feast.types import Value_pb2
from feast.protos.feast.types.Value_pb2 import Value
from feast.types import Array, Float32, Float64, Json, Set, String, TimeUuid, UnixTimestamp, Uuid
from google.protobuf.descriptor import FieldDescriptor

from feast_sketch_store.errors import RowError
from feast_sketch_store.rows import codecs
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.vocabulary import Vocabulary
from tests.helpers.cases import for_each

# Null is a state of any feature, not a field of its own.
FIELDS = sorted(set(Value.DESCRIPTOR.fields_by_name) - {"null_val"})
LAST_SECOND = (2**63 - 1) // 10**6
CODECS = [FeatureCodec("x", field) for field in FIELDS]


@for_each("codec", CODECS)
def test_a_value_of_another_field_is_refused(codec, make_value):
    is_string = codec.value_field == "string_val"
    other = make_value("bytes_val", b"1") if is_string else make_value("string_val", "1")
    with pytest.raises(RowError, match=rf"feature 'x' takes {codec.value_field}, but row 1 .*_val"):
        codec.to_arrow([None, other])


@for_each("field", ["unix_timestamp_val", "unix_timestamp_list_val", "unix_timestamp_set_val"])
@for_each("second", [LAST_SECOND + 1, -LAST_SECOND - 1, 2**63 - 1, 1 - 2**63])
def test_a_timestamp_that_no_column_holds_is_refused(field, second, make_value):
    content = [0, second] if "_list_" in field or "_set_" in field else second
    with pytest.raises(RowError, match="feature 'x' has a timestamp"):
        FeatureCodec("x", field).to_arrow([make_value(field, content)])


def test_the_maps_key_order_makes_no_other_element(make_value):
    items = {f"key {n}": Value(int64_val=n) for n in range(100)}
    one, other = Value_pb2.Map(val=items), Value_pb2.Map(val=dict(reversed(items.items())))
    codec = FeatureCodec("x", "map_list_val")
    column, _ = codec.to_arrow([make_value("map_list_val", [one, other])])
    assert len(Vocabulary.by_popularity(codec.to_storage(column.flatten()))[0]) == 1


@pytest.mark.parametrize("kind", ["float", "double"])
def test_nan_is_one_element(kind, make_value):
    value = make_value(f"{kind}_set_val", [math.nan, math.nan, 0.0, -0.0])
    column, _ = (codec := FeatureCodec("x", f"{kind}_set_val")).to_arrow([value])
    assert len(Vocabulary.by_popularity(codec.to_storage(column.flatten()))[0]) == 3


@for_each("dtype", [String, Float32, Float64, UnixTimestamp, TimeUuid, Json, Array(Float64), Set(Uuid)])
def test_a_type_is_told_as_feast_writes_it(dtype):
    assert FeatureCodec.for_feature("x", dtype).type_text == str(dtype)


def test_the_fields_are_those_of_feasts_value():
    kinds = {
        FieldDescriptor.TYPE_BOOL: "bool",
        FieldDescriptor.TYPE_INT32: "int32",
        FieldDescriptor.TYPE_INT64: "int64",
        FieldDescriptor.TYPE_FLOAT: "float",
        FieldDescriptor.TYPE_DOUBLE: "double",
        FieldDescriptor.TYPE_STRING: "string",
        FieldDescriptor.TYPE_BYTES: "bytes",
        FieldDescriptor.TYPE_MESSAGE: "message",
    }
    fields = {}
    for name, field in Value.DESCRIPTOR.fields_by_name.items():
        if name == "null_val":
            continue
        is_collection = name.endswith(("list_val", "set_val"))
        element = field.message_type.fields_by_name["val"] if is_collection else field
        fields[name] = field.number, "timestamp" if name.startswith("unix_") else kinds[element.type]
    assert fields == codecs._VALUE_FIELDS


@pytest.mark.parametrize(
    ("field", "elements"),
    [
        ("int64_list_val", [-(2**63), 2**63 - 1, 0]),
        ("int32_list_val", [-(2**31), 2**31 - 1, 0]),
        ("bool_list_val", [True, False, True]),
        ("float_list_val", [0.1, -0.0, float("inf")]),
        ("double_set_val", [0.1, -0.0, float("nan")]),
        ("unix_timestamp_list_val", [-1, 0, 1_700_000_000]),
    ],
)
@pytest.mark.parametrize("odd", [None, Value(), Value(null_val=0), "empty"], ids=str)
def test_many_lists_become_the_column_that_single_ones_make(field, elements, odd, monkeypatch):
    empty = Value(**{field: {"val": []}})
    lists = [Value(**{field: {"val": elements[: n % 4]}}) for n in range(40)]
    values = [*lists, empty if odd == "empty" else odd, *lists]
    codec = FeatureCodec("f", field)
    column, nulls = codec.to_arrow(values)
    monkeypatch.setattr(codecs, "_MANY_VALUES", 1_000)
    one_by_one, their_nulls = codec.to_arrow(values)
    column.validate(full=True)
    assert column.type == one_by_one.type == codec.arrow_type
    assert [repr(value) for value in column.to_pylist()] == [repr(value) for value in one_by_one.to_pylist()]
    assert nulls == their_nulls == ([40] if odd in (Value(), Value(null_val=0)) else [])


def test_a_list_of_another_type_among_many_is_converted_or_refused():
    usual = [Value(int64_list_val={"val": [1, 2]})] * 40
    column, _ = FeatureCodec("f", "int64_list_val").to_arrow([*usual, Value(int32_list_val={"val": [3]})])
    assert column[40].as_py() == [3]
    with pytest.raises(RowError, match="row 40 of the batch has string_list_val"):
        FeatureCodec("f", "int64_list_val").to_arrow([*usual, Value(string_list_val={"val": ["3"]})])
    with pytest.raises(RowError, match="seconds from 1970"):
        FeatureCodec("f", "unix_timestamp_list_val").to_arrow(
            [Value(unix_timestamp_list_val={"val": [2**62]})] * 40
        )
