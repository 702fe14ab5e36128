"""Codecs: every value that Feast can carry survives the way into the row log and out of a layer."""

import itertools
import math
import unicodedata

import numpy as np
import pyarrow.compute as pc
import pytest
from feast.protos.feast.types import Value_pb2
from feast.protos.feast.types.Value_pb2 import Value
from feast.types import (
    Array,
    Bool,
    Bytes,
    Decimal,
    Float32,
    Float64,
    ImageBytes,
    Int32,
    Int64,
    Invalid,
    Json,
    Map,
    PdfBytes,
    Set,
    String,
    Struct,
    TimeUuid,
    UnixTimestamp,
    Uuid,
)
from google.protobuf.descriptor import FieldDescriptor

from feast_sketch_store.errors import RowError, UnsupportedFeatureError
from feast_sketch_store.rows import codecs
from feast_sketch_store.rows.codecs import (
    CATEGORICAL,
    EMPTY,
    MEMBERSHIP,
    MISSING,
    NULL,
    VALUE,
    FeatureCodec,
)
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures.base import Answer
from tests.helpers.cases import for_each
from tests.oracle.messages import feast_values

# Null is a state of any feature, not a field of its own.
FIELDS = sorted(set(Value.DESCRIPTOR.fields_by_name) - {"null_val"})
LAST_SECOND = (2**63 - 1) // 10**6


@pytest.fixture
def same(exact):
    """Whether two values have the same field and content, a collection as a set without repetitions."""

    def compare(one, other):
        field = one.WhichOneof("val")
        if field != other.WhichOneof("val"):
            return False
        if not field or not field.endswith(("list_val", "set_val")):
            return exact(one) == exact(other)
        contents = [sorted(map(exact, getattr(v, field).val)) for v in (one, other)]
        return contents[0] == contents[1]

    return compare


def through_the_store(codec, values):
    """Values -> row log -> vocabulary -> values."""
    column, null_rows = codec.to_arrow(values)
    assert column.type == codec.arrow_type
    states = np.where(column.is_null().to_numpy(zero_copy_only=False), MISSING, VALUE).astype(np.uint8)
    states[null_rows] = NULL
    if codec.is_collection:
        lengths = pc.list_value_length(column).fill_null(0).to_numpy()
        states[(states == VALUE) & (lengths == 0)] = EMPTY
        elements = column.flatten()
    else:
        lengths = (states == VALUE).astype(int)
        elements = column.drop_null()
    vocabulary, symbols = Vocabulary.by_popularity(codec.to_storage(elements))
    indptr = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    return feast_values(Answer(codec, vocabulary, states, Csr(indptr, symbols)))


CODECS = [FeatureCodec("x", field) for field in FIELDS]


@for_each("codec", CODECS)
def test_every_element_comes_back_in_its_field(codec, elements_of, make_value, same, exact):
    elements = elements_of(codec)
    contents = [[e] for e in elements] if codec.is_collection else elements
    values = [make_value(codec.value_field, content) for content in contents]
    back = through_the_store(codec, values)
    assert all(itertools.starmap(same, zip(back, values, strict=True)))
    assert len({exact(v) for v in back}) == len(elements)


@for_each("codec", CODECS)
def test_a_value_is_the_one_that_protobuf_would_have_built(codec, elements_of, make_value):
    """Varints are padded inside; nothing of it shows after parsing."""
    elements = elements_of(codec)
    for content in [[e] for e in elements] if codec.is_collection else elements:
        value = make_value(codec.value_field, content)
        # Other values widen the varints of the vocabulary.
        (back, *_) = through_the_store(
            codec,
            [value, *(make_value(codec.value_field, [e] if codec.is_collection else e) for e in elements)],
        )
        assert back.SerializeToString(deterministic=True) == value.SerializeToString(deterministic=True)


@for_each("codec", CODECS)
def test_states_are_told_apart(codec, elements_of, make_value, same):
    elements = elements_of(codec)
    full = make_value(codec.value_field, elements if codec.is_collection else elements[0])
    values = [None, Value(), Value(null_val=0), full, None, full]
    if codec.is_collection:
        values.append(make_value(codec.value_field, []))
    back = through_the_store(codec, values)
    assert back[0] is None
    assert back[4] is None
    assert back[1] == back[2] == Value()
    assert all(same(back[row], values[row]) for row in range(3, len(values)) if row != 4)


@for_each("codec", CODECS)
def test_a_batch_without_any_value_keeps_its_type(codec):
    for values in ([], [None, None], [Value(), None]):
        assert through_the_store(codec, values) == values


@for_each("codec", CODECS)
def test_a_value_of_another_field_is_refused(codec, make_value):
    is_string = codec.value_field == "string_val"
    other = make_value("bytes_val", b"1") if is_string else make_value("string_val", "1")
    with pytest.raises(RowError, match=rf"feature 'x' takes {codec.value_field}, but row 1 .*_val"):
        codec.to_arrow([None, other])


def test_a_set_is_not_a_list(make_value):
    with pytest.raises(RowError, match="takes int64_list_val, but row 0 of the batch has int64_set_val"):
        FeatureCodec("x", "int64_list_val").to_arrow([make_value("int64_set_val", [1])])


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


def test_unicode_forms_stay_distinct(make_value):
    forms = [unicodedata.normalize(form, "ﬁancé") for form in ("NFC", "NFD", "NFKC", "NFKD")]
    assert len(set(forms)) == 4
    value = make_value("string_set_val", forms)
    (back,) = through_the_store(FeatureCodec("x", "string_set_val"), [value])
    assert set(back.string_set_val.val) == set(forms)


@pytest.mark.parametrize("kind", ["float", "double"])
def test_nan_is_one_element(kind, make_value):
    value = make_value(f"{kind}_set_val", [math.nan, math.nan, 0.0, -0.0])
    column, _ = (codec := FeatureCodec("x", f"{kind}_set_val")).to_arrow([value])
    assert len(Vocabulary.by_popularity(codec.to_storage(column.flatten()))[0]) == 3


# Lengths of a packed field and of a message on both sides of one byte and of two.
@for_each("count", [127, 128, 16_383, 16_384])
@for_each("field", ["int64_list_val", "string_list_val", "double_list_val"])
def test_long_collections_come_back(field, count, make_value, same):
    element = {"i": int, "s": str, "d": float}[field[0]]
    value = make_value(field, [element(n) for n in range(count)])
    (back,) = through_the_store(FeatureCodec("x", field), [value])
    assert same(back, value)


@for_each(
    ("dtype", "field", "name"),
    [
        (String, "string_val", CATEGORICAL),
        (Bytes, "bytes_val", CATEGORICAL),
        (PdfBytes, "bytes_val", CATEGORICAL),
        (ImageBytes, "bytes_val", CATEGORICAL),
        (Int32, "int32_val", CATEGORICAL),
        (Int64, "int64_val", CATEGORICAL),
        (Float32, "float_val", CATEGORICAL),
        (Float64, "double_val", CATEGORICAL),
        (Bool, "bool_val", CATEGORICAL),
        (UnixTimestamp, "unix_timestamp_val", CATEGORICAL),
        (Uuid, "uuid_val", CATEGORICAL),
        (TimeUuid, "time_uuid_val", CATEGORICAL),
        (Decimal, "decimal_val", CATEGORICAL),
        (Json, "json_val", CATEGORICAL),
        (Map, "map_val", CATEGORICAL),
        (Struct({"a": Int64}), "struct_val", CATEGORICAL),
        (Array(String), "string_list_val", MEMBERSHIP),
        (Array(UnixTimestamp), "unix_timestamp_list_val", MEMBERSHIP),
        (Array(Map), "map_list_val", MEMBERSHIP),
        (Array(Struct({"a": Int64})), "struct_list_val", MEMBERSHIP),
        (Array(Array(Int64)), "list_val", MEMBERSHIP),
        (Set(String), "string_set_val", MEMBERSHIP),
        (Set(Uuid), "uuid_set_val", MEMBERSHIP),
        (Set(Set(Int64)), "set_val", MEMBERSHIP),
    ],
)
def test_codec_of_a_feast_type(dtype, field, name):
    codec = FeatureCodec.for_feature("x", dtype)
    assert (codec.value_field, codec.name, codec.is_collection) == (field, name, name == MEMBERSHIP)


@for_each("dtype", [String, Float32, Float64, UnixTimestamp, TimeUuid, Json, Array(Float64), Set(Uuid)])
def test_a_type_is_told_as_feast_writes_it(dtype):
    assert FeatureCodec.for_feature("x", dtype).type_text == str(dtype)


@pytest.mark.parametrize("dtype", [Invalid], ids=str)
def test_a_type_without_a_field_is_refused(dtype):
    with pytest.raises(UnsupportedFeatureError, match="feature 'x' has type"):
        FeatureCodec.for_feature("x", dtype)


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
