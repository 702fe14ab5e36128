"""Values of every type in Feast, above all values that are easily lost or confused with others."""

import math
import struct

from feast.protos.feast.types import Value_pb2
from feast.protos.feast.types.Value_pb2 import Int64Set, RepeatedValue, StringList, StringSet, Value

LAST_SECOND = (2**63 - 1) // 10**6

MAPS = [
    Value_pb2.Map(),
    Value_pb2.Map(val={"a": Value(int64_val=1), "b": Value(string_val="x")}),
    Value_pb2.Map(val={"a": Value(int64_val=1), "b": Value()}),
    Value_pb2.Map(val={"deep": Value(map_val=Value_pb2.Map(val={"c": Value(double_val=-0.0)}))}),
]
ELEMENTS = {
    "bool": [False, True],
    "int32": [0, 1, -1, 127, 128, 2**31 - 1, -(2**31)],
    "int64": [0, 1, -1, 127, 128, 2**35, 2**63 - 1, -(2**63)],
    "timestamp": [0, 1, -1, 1_700_000_000, LAST_SECOND, -LAST_SECOND],
    "float": [0.0, -0.0, 1.5, -1.5, math.inf, -math.inf, math.nan, 2.0**-149],
    "double": [0.0, -0.0, 0.1, -1.5, math.inf, -math.inf, math.nan, 5e-324, 1.7976931348623157e308],
    "string": [
        *("", "a", "A", " a", "a\x00", "é", "e\u0301", "\u017f", "🛒"),
        *("x" * 127, "x" * 128, "y" * 2**20),
    ],
    "bytes": [b"", b"\x00", b"\x00\x00", b"\xff\xfe", bytes(range(256)), b"z" * 20_000],
    "Map": MAPS,
    "ScalarMap": [Value_pb2.ScalarMap()],
    "ZonedTimestamp": [
        Value_pb2.ZonedTimestamp(),
        Value_pb2.ZonedTimestamp(unix_timestamp=1, zone="Europe/Berlin"),
        Value_pb2.ZonedTimestamp(unix_timestamp=1, zone="UTC"),
    ],
    "Value": [
        Value(),
        Value(int64_val=0),
        Value(int32_val=0),
        Value(string_list_val=StringList(val=["b", "a", "b"])),
        Value(string_list_val=StringList(val=["a", "b", "b"])),
        Value(list_val=RepeatedValue(val=[Value(int64_val=7), Value()])),
        Value(map_val=MAPS[1]),
    ],
}


def strings(*values):
    """A set of strings."""
    return Value(string_set_val=StringSet(val=values))


def numbers(*values):
    """A set of whole numbers."""
    return Value(int64_set_val=Int64Set(val=values))


def country(name):
    """A row of one feature."""
    return {"country": Value(string_val=name)}


def elements_of(codec):
    """The elements of a codec's type."""
    kind = codec.element_kind
    if kind == "message":
        message = Value.DESCRIPTOR.fields_by_name[codec.value_field].message_type
        if codec.is_collection:
            message = message.fields_by_name["val"].message_type
        return ELEMENTS[message.name]
    return ELEMENTS[kind]


def make_value(field, content):
    """A ``Value`` with the content in the field; a list is put into its ``val``."""
    value = Value()
    if field.endswith(("list_val", "set_val")):
        getattr(value, field).SetInParent()
        getattr(value, field).val.extend(content)
    elif isinstance(content, bool | int | float | str | bytes):
        setattr(value, field, content)
    else:
        getattr(value, field).CopyFrom(content)
    return value


def exact(element):
    """A key that distinguishes elements: NaN equals itself, and -0.0 differs from 0.0."""
    if isinstance(element, float):
        return struct.pack("<d", element)
    if hasattr(element, "SerializeToString"):
        return element.SerializeToString(deterministic=True)
    return element
