"""Every type that Feast can carry: written and read back as it was, or refused when the view is applied."""

import numpy as np
import pytest
from feast import Field
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
    Json,
    Map,
    PdfBytes,
    ScalarMap,
    Set,
    String,
    Struct,
    TimeUuid,
    UnixTimestamp,
    Uuid,
    ZonedTimestamp,
)

from feast_sketch_store.rows.codecs import FeatureCodec
from tests.helpers.cases import case
from tests.helpers.repository import SEALED, STATES, UNSEALED
from tests.helpers.values import elements_of, exact, make_value, strings

STRUCT = Struct({"a": Int64})
SKETCHED_SCALARS = [String, Int32, Int64, Bool, Bytes, PdfBytes, ImageBytes, Uuid, TimeUuid]
OTHER_SCALARS = [Float32, Float64, UnixTimestamp, Decimal, Json, Map, STRUCT, ScalarMap, ZonedTimestamp]
ARRAYS = [
    Array(dtype)
    for dtype in (
        *(String, Int32, Int64, Bool, Bytes, Float32, Float64, UnixTimestamp, Uuid, TimeUuid, Decimal),
        *(Json, Map, STRUCT, Array(Int64)),
    )
]
SETS = [
    Set(dtype)
    for dtype in (
        *(String, Int32, Int64, Bool, Bytes, Float32, Float64, UnixTimestamp, Uuid, TimeUuid, Decimal),
        Set(Int64),
    )
]
TYPES = [*SKETCHED_SCALARS, *OTHER_SCALARS, *ARRAYS, *SETS]


def exactly(options):
    return {"default_codec": "exact", **options}


def field_of(dtype):
    return FeatureCodec.for_feature("x", dtype).value_field


def values_of(dtype):
    """Values with everything that may get lost: in a list also order and repetitions."""
    codec = FeatureCodec.for_feature("x", dtype)
    elements = elements_of(codec)
    if not codec.is_collection:
        return [make_value(codec.value_field, element) for element in elements]
    contents = [[element] for element in elements]
    # Lengths of packed fields and of messages take one byte, two and three.
    most = 17_000 if dtype in (Array(Int64), Array(String), Array(Float64)) else 200
    contents += [[], elements, elements[::-1], elements[:2] * 3, elements[:1] * most]
    return [make_value(codec.value_field, content) for content in contents]


def test_every_field_of_a_value_is_among_the_types():
    assert {field_of(dtype) for dtype in TYPES} == set(Value.DESCRIPTOR.fields_by_name) - {"null_val"}


def write_columns(harness, contents):
    """Write the values of each type into the feature of its name, the first of all in one row.

    Rows lack a type that has no more.
    """
    rows = [
        {str(dtype): values[number] for dtype, values in contents.items() if number < len(values)}
        for number in range(max(map(len, contents.values())))
    ]
    write_hourly(harness, rows)


def write_hourly(harness, rows):
    """Write a row of each user in one batch, each an hour later."""
    harness.write_many([(harness.key(user_id=n), row, harness.noon(n), None) for n, row in enumerate(rows)])


def check_columns(harness, contents, shown):
    """Reads of each feature alone give what was written, by what ``shown`` makes of a type and its value."""
    for dtype, values in contents.items():
        with case(dtype):
            read = harness.read(*range(len(values)), features=[str(dtype)])
            for number, (value, (timestamp, row)) in enumerate(zip(values, read, strict=True)):
                back = row[str(dtype)]
                assert timestamp == harness.noon(number)
                assert back.WhichOneof("val") == value.WhichOneof("val")
                assert shown(dtype, back) == shown(dtype, value)
    assert harness.read(max(map(len, contents.values()))) == [(None, None)]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"type": "sqlite"}, id="sqlite"),
        pytest.param(exactly(UNSEALED), id="unsealed"),
        pytest.param(exactly(SEALED), id="sealed"),
    ],
)
def test_exact_values_come_back_to_the_bit(make_harness, options):
    tags = {"sketch.codec": "exact"}  # also for Sets, which `default_codec: exact` leaves to the sketch
    harness = make_harness([Field(name=str(dtype), dtype=dtype, tags=tags) for dtype in TYPES], **options)
    contents = {dtype: [*values_of(dtype), Value()] for dtype in TYPES}
    write_columns(harness, contents)
    for store in (harness, harness.reopened()):
        check_columns(store, contents, lambda _, value: exact(value))


@pytest.mark.parametrize("options", STATES)
def test_sketched_values_come_back_without_order_and_repetitions(make_harness, options):
    contents = {dtype: values_of(dtype) for dtype in [*SKETCHED_SCALARS, *ARRAYS, *SETS]}
    features = {str(dtype): dtype for dtype in contents}
    harness = make_harness(features, target="error 1e-9", **options)
    write_columns(harness, contents)

    def shown(dtype, value):
        if not FeatureCodec.for_feature("x", dtype).is_collection:
            return exact(value)
        return sorted({exact(element) for element in getattr(value, field_of(dtype)).val})

    check_columns(harness, contents, shown)


@pytest.mark.parametrize("options", STATES)
def test_other_scalars_may_be_categories(make_harness, options):
    contents = {dtype: values_of(dtype) for dtype in OTHER_SCALARS}
    tags = {"sketch.codec": "categorical"}
    harness = make_harness([Field(name=str(dtype), dtype=dtype, tags=tags) for dtype in contents], **options)
    write_columns(harness, contents)
    check_columns(harness, contents, lambda _, value: exact(value))


@pytest.mark.parametrize("options", STATES)
def test_bools_and_numbers_stay_apart(make_harness, options):
    """One and True are equal to Python; each comes back in the field it was written in."""
    features = {"flags": Set(Bool), "numbers": Set(Int64), "small": Set(Int32), "reals": Set(Float64)}
    harness = make_harness(features, target="error 1e-9", **options)
    fields = ("bool_set_val", "int64_set_val", "int32_set_val", "double_set_val")
    row = {name: make_value(field, [1]) for name, field in zip(features, fields, strict=True)}
    harness.write(1, row)
    assert harness.shown(1) == [row]


# -- exact features beside sketched ones -----------------------------------------------------------


MIXED = [
    Field(name="viewed", dtype=Set(String)),
    Field(name="country", dtype=String),
    Field(name="price", dtype=Float64),
    Field(name="last", dtype=Array(Int64)),
]


@pytest.fixture
def mixed_rows():
    rng = np.random.default_rng(7)
    rows = []
    for _ in range(400):
        row = {
            "viewed": strings(*sorted({f"v{n}" for n in rng.integers(0, 300, 5)})),
            "country": make_value("string_val", f"c{rng.integers(0, 9)}"),
            "price": make_value("double_val", float(rng.normal())),
            "last": make_value("int64_list_val", rng.integers(-9, 9, rng.integers(0, 7)).tolist()),
        }
        for name in list(row):
            if rng.random() < 0.15:
                row[name] = Value()
            elif rng.random() < 0.15:
                del row[name]
        rows.append(row)
    return rows


@pytest.mark.parametrize("options", STATES)
def test_one_line_of_configuration_keeps_numbers_beside_a_history(make_harness, mixed_rows, options):
    harness = make_harness(MIXED, **exactly(options))
    write_hourly(harness, mixed_rows)
    for store in (harness, harness.reopened()):
        read = store.read(*range(500))
        assert read[400:] == [(None, None)] * 100
        for number, (row, (timestamp, back)) in enumerate(zip(mixed_rows, read, strict=False)):
            assert timestamp == harness.noon(number)
            assert back.keys() == row.keys()
            for name in row.keys() - {"viewed"}:
                assert back[name] == row[name]
            if "viewed" in row:
                assert row["viewed"].WhichOneof("val") == back["viewed"].WhichOneof("val")
                assert set(row["viewed"].string_set_val.val) <= set(back["viewed"].string_set_val.val)


def test_subsets_of_features_and_newer_rows(make_harness, mixed_rows):
    """Sealed columns, unsealed rows on top, and again sealed: the newest row wins in each."""
    harness = make_harness(MIXED, default_codec="exact", compaction={"min_rows": 100, "share": 0.5})
    for round_ in range(4):
        users = range(100 * round_, 100 * round_ + 200)
        rows = {user % 400: mixed_rows[(user + round_) % 400] for user in users}
        harness.write_users(rows, round_)
        for names in (["price"], ["viewed", "last"], [], ["country", "no such feature"]):
            for user, (timestamp, back) in zip(rows, harness.read(*rows, features=names), strict=True):
                assert timestamp == harness.noon(round_)
                assert back.keys() == rows[user].keys() & set(names)
                assert all(back[name] == rows[user][name] for name in back.keys() - {"viewed"})


def test_a_changed_codec_takes_effect_at_the_next_seal(make_harness):
    exactly = [Field(name="last", dtype=Array(Int64), tags={"sketch.codec": "exact"})]
    first = make_harness({"last": Array(Int64)}, **SEALED)
    first.write(1, {"last": make_value("int64_list_val", [3, 1, 3])})
    second = make_harness(exactly, **SEALED)

    def shown(harness):
        (row,) = harness.shown(1)
        return list(row["last"].int64_list_val.val)

    assert sorted(shown(first)) == sorted(shown(second)) == [1, 3]
    assert second.seal()
    assert shown(second) == [3, 1, 3]
    assert first.seal()  # and back again: the row log has the order, the sketch does not
    assert sorted(shown(first)) == [1, 3]


@pytest.mark.slow
def test_exact_features_have_no_vocabulary_to_overflow(make_harness):
    harness = make_harness({"x": Int64, "name": String}, advanced={"max_vocabulary": 2}, **exactly(SEALED))
    for user in range(20):
        row = {"x": make_value("int64_val", user), "name": make_value("string_val", str(user))}
        harness.write(user, row)
        assert harness.shown(user) == [row]


def test_a_view_may_choose_its_default_codec(make_harness, make_view):
    view = make_view({"x": Float64}, tags={"sketch.default_codec": "exact"})
    harness = make_harness(view=view, **SEALED)
    harness.write(1, {"x": Value(double_val=0.1)})
    assert harness.shown(1) == [{"x": Value(double_val=0.1)}]
