"""Sealed layers that list their rows: exact features, scalars, timestamps, bins, and what they take."""

import math

import numpy as np
import pytest
from feast.protos.feast.types.Value_pb2 import Value

from feast_sketch_store.kernel import row_hashes
from feast_sketch_store.layers import FeatureBudget
from feast_sketch_store.rows.binning import Precision, Quantiles
from feast_sketch_store.rows.codecs import BINNED, EXACT, FeatureCodec
from tests.helpers.layers import build_layer
from tests.helpers.length import by_length

RATE = 1e-9
VIEWED = FeatureCodec("viewed", "int64_set_val")
PRICE = FeatureCodec("price", "double_val", EXACT)


@pytest.fixture
def layer_of(make_rows):
    def make(rows, codecs):
        return build_layer(make_rows(rows, codecs), FeatureBudget(RATE, {c.feature: RATE for c in codecs}))

    return make


# -- the form of a column --------------------------------------------------------------------------

RNG = np.random.default_rng(1)
TEXTS = [f"a longer text number {n}" for n in range(1000)]


@pytest.mark.parametrize(
    ("field", "contents", "form", "width", "size_bytes"),
    [
        ("string_val", ["Deutschland", "France"] * 500, "dictionary", 1, 1000 / 8 + 100),
        ("int64_val", (10**12 + RNG.integers(0, 1000, 2000)).tolist(), "numbers", 10, 2000 * 10 / 8 + 100),
        ("string_val", TEXTS, "bytes", 15, sum(map(len, TEXTS)) + 1000 * 15 / 8 + 100),
        ("double_val", RNG.normal(size=1000).tolist(), "numbers", 64, 1000 * 8 + 100),
        ("string_val", ["x" * 100_000] + [None] * 100, "dictionary", 1, 101_000),
        ("int64_list_val", RNG.integers(0, 256, (500, 16)).tolist(), "numbers", 8, 500 * (16 + 13 / 8) + 200),
    ],
    ids=["few values", "whole numbers", "strings", "floats", "rows without a value", "lists"],
)
def test_a_column_takes_few_bits(layer_of, make_value, field, contents, form, width, size_bytes):
    values = [Value() if content is None else make_value(field, content) for content in contents]
    layer = layer_of([(n, {"x": v}, 0) for n, v in enumerate(values)], [FeatureCodec("x", field, EXACT)])
    column = layer.features["x"]
    assert (column.elements.form, column.elements.packed.width) == (form, width)
    assert column.size_bytes <= size_bytes


# -- rows ------------------------------------------------------------------------------------------


def test_scalars_beside_an_exact_feature_are_columns_and_never_wrong(layer_of, read, make_value):
    codecs = [PRICE, VIEWED, FeatureCodec("country", "string_val")]
    rows = [
        (
            user,
            {
                "price": make_value("double_val", user / 7),
                "viewed": make_value("int64_set_val", [user % 50]),
                "country": make_value("string_val", f"c{user % 200}"),
            },
            user,
        )
        for user in range(1000)
    ]
    layer = layer_of(rows, codecs)
    assert {name: feature.structure for name, feature in layer.features.items()} == {
        "viewed": "bloom",
        "price": "column",
        "country": "column",
    }
    assert [list(structure.features) for structure in layer.structures] == [
        ["viewed"],
        ["price"],
        ["country"],
    ]
    assert not layer.structures[0].rows
    names = [codec.feature for codec in codecs]
    assert read(layer, list(range(2000)), names) == {user: (event, values) for user, values, event in rows}


def test_no_rows_and_no_filter(layer_of, read):
    assert read(layer_of([], [PRICE]), [1, 2], ["price"]) == {}
    layer = layer_of([(1, {"price": Value(double_val=3.5)}, 7)], [PRICE])
    assert layer.num_facts == 0
    assert [structure.kind for structure in layer.structures] == ["columns"]
    assert layer.table_bytes == 0
    assert read(layer, [1, 2], ["price", "other"]) == {1: (7, {"price": Value(double_val=3.5)})}


def test_every_timestamp_is_exact_and_expires_exactly(layer_of, read):
    rng = np.random.default_rng(4)
    events = rng.integers(-(10**15), 10**16, 300).tolist()
    layer = layer_of([(user, {}, event) for user, event in enumerate(events)], [PRICE])
    found = read(layer, list(range(300)), [])
    assert {user: event for user, (event, _) in found.items()} == dict(enumerate(events))
    limit = sorted(events)[100]
    assert set(read(layer, list(range(300)), [], limit)) == {u for u, e in enumerate(events) if e >= limit}


def test_entities_with_the_same_hash_get_another_salt(layer_of, monkeypatch):
    """With 8 bits in a hash nine salts of ten fail for 30 entities."""
    salts = []

    def new_salt():
        salts.append((len(salts), 7))
        return salts[-1]

    def narrow(hashes, salt):
        return row_hashes(hashes, salt) & np.uint64(0xFF << 56)

    monkeypatch.setattr("feast_sketch_store.layers.build.new_salt", new_salt)
    monkeypatch.setattr("feast_sketch_store.layers.build.row_hashes", narrow)
    rows = [(user, {"price": Value(double_val=user)}, user) for user in range(30)]
    layer = layer_of(rows, [PRICE])
    assert len(salts) > 1
    assert layer.presence.salt == salts[-1]


def test_entities_with_the_same_fingerprint_have_rows_of_their_own(make_rows, read):
    """Of 20,000 rows at a rate of one in a hundred some two hundred share theirs."""
    rows = make_rows([(user, {"price": Value(double_val=user)}, 0) for user in range(20_000)], [PRICE])
    layer = build_layer(rows, FeatureBudget(0.01, {"price": 0.01}))
    assert len(layer.presence.index.twins) > 50
    assert list(layer.missing(rows)) == []


def test_verification_tells_what_differs(layer_of, make_rows, make_value):
    ordered = FeatureCodec("ordered", "int64_list_val", EXACT)

    def rows_of(price=1.5, items=(3, 1), event=5):
        values = {"ordered": make_value("int64_list_val", items), "price": make_value("double_val", price)}
        return [(7, values, event), (8, {"price": Value()}, 0)]

    layer = layer_of(rows_of(), [ordered, PRICE])
    other_price = "has other values of feature 'price' than the row log"
    other_items = "has other values of feature 'ordered' than the row log"
    for rows, problems in [
        (rows_of(), []),
        (rows_of(price=2.5), [other_price]),
        (rows_of(items=[1, 3]), [other_items]),
        (rows_of(items=[3]), [other_items]),
        (rows_of(event=6), []),
        (rows_of(event=4), ["reports event timestamps that are newer than the rows"]),
        ([*rows_of(), (9, {}, 0)], ["does not find 1 of its entities"]),
        (
            [rows_of()[0], (8, rows_of()[0][1], 0)],
            [
                "hides values of feature 'ordered'",
                other_items,
                "hides values of feature 'price'",
                other_price,
            ],
        ),
    ]:
        assert [*layer.missing(make_rows(rows, [ordered, PRICE]))] == problems


# -- bins ------------------------------------------------------------------------------------------

NUM_BINNED = by_length(500, 2_000)
BINNINGS = {"quantiles": Quantiles(16), "precision": Precision(10)}


@pytest.mark.has_long_form
@pytest.mark.parametrize("beside", [[], [PRICE]], ids=["in the filter", "in a column"])
@pytest.mark.parametrize("field", ["double_val", "float_val", "int64_val", "int32_val", "unix_timestamp_val"])
@pytest.mark.parametrize("kind", BINNINGS)
def test_binned_numbers_come_back_as_their_bins(layer_of, read, make_value, beside, field, kind):
    rng = np.random.default_rng(5)
    plain = float if field in ("double_val", "float_val") else int
    numbers = [plain(number) for number in rng.normal(0, 100, NUM_BINNED)]
    codec = FeatureCodec("x", field, BINNED, BINNINGS[kind])
    layer = layer_of([(n, {"x": make_value(field, v)}, 0) for n, v in enumerate(numbers)], [codec, *beside])
    found = [values["x"] for _, values in read(layer, list(range(NUM_BINNED)), ["x"]).values()]
    assert {value.WhichOneof("val") for value in found} == {field}
    kept = np.array([getattr(value, field) for value in found])
    written = np.array([getattr(make_value(field, number), field) for number in numbers])
    errors = np.abs(kept - written)
    rounding = layer.roundings["x"]
    assert rounding.max_error == pytest.approx(errors.max())
    assert rounding.mean_error == pytest.approx(errors.mean())
    if kind == "quantiles":
        assert len(set(kept.tolist())) == 16
    else:
        assert errors.max() <= 5 * (1 + 1e-6)


@pytest.mark.parametrize("beside", [[], [PRICE]], ids=["in the filter", "in a column"])
def test_what_is_no_number_comes_back_from_its_own_bin(layer_of, read, make_value, beside):
    codec = FeatureCodec("x", "double_val", BINNED, Quantiles(2))
    numbers = [math.nan, math.inf, -math.inf, *map(float, range(50))]
    rows = [(n, {"x": make_value("double_val", number)}, 0) for n, number in enumerate(numbers)]
    found = read(layer_of([*rows, (99, {"x": Value()}, 0)], [codec, *beside]), [0, 1, 2, 99, 3], ["x"])
    assert math.isnan(found[0][1]["x"].double_val)
    assert [found[user][1]["x"].double_val for user in (1, 2)] == [math.inf, -math.inf]
    assert found[99][1]["x"] == Value()
    assert math.isfinite(found[3][1]["x"].double_val)
