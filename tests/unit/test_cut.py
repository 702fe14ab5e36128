"""Vocabularies of which not all values are kept."""

import pyarrow as pa
import pytest
from feast.protos.feast.types.Value_pb2 import Int64Set, StringSet, Value

from feast_sketch_store.layers import Cut, FeatureBudget, Goal
from feast_sketch_store.rows.codecs import EMPTY, MISSING, NULL, VALUE, FeatureCodec
from feast_sketch_store.rows.vocabulary import Vocabulary
from tests.helpers.layers import build_layer

VIEWED, SIZE = FeatureCodec("viewed", "string_set_val"), FeatureCodec("size", "int64_val")
STRUCTURES = pytest.mark.parametrize("structure", ["bloom", "weighted_bloom", "sets"])


def viewed(*items):
    return {"viewed": Value(string_set_val=StringSet(val=items)), "size": Value(int64_val=len(items))}


ROWS = [
    (0, viewed("tea", "coffee", "milk"), 0),
    (1, viewed("tea", "coffee"), 0),
    (2, viewed("tea"), 0),
    (3, viewed("milk"), 0),
    (4, viewed(), 0),
    (5, {"viewed": Value(), "size": Value(int64_val=9)}, 0),
    (6, {"size": Value(int64_val=9)}, 0),
    (7, viewed("tea", "rare"), 0),
]


@pytest.fixture
def layer_of(make_rows):
    """Makes a layer whose set is cut."""

    def make(cut, structure="sets", rows=ROWS):
        targets = {"viewed": Goal("error_rate", 1e-9, structure), "size": 1e-9}
        if structure == "weighted_bloom":
            targets["viewed"] = Goal("noise_ratio", 1e-9, structure)
        return build_layer(
            make_rows(rows, [VIEWED, SIZE]), FeatureBudget(1e-9, targets, cuts={"viewed": cut} if cut else {})
        )

    return make


def items_of(read, layer, users=range(8)):
    """Per user the items as a set, or the value if it is none."""
    rows = read(layer, list(users), ["viewed"])
    values = [rows[user][1]["viewed"] for user in users]
    return [set(v.string_set_val.val) if v is not None and v != Value() else v for v in values]


@STRUCTURES
@pytest.mark.parametrize(
    ("cut", "kept", "num_cut"),
    [
        (Cut(top=2), {"tea", "coffee"}, 3),
        (Cut(top=100), {"tea", "coffee", "milk", "rare"}, 0),
        (
            Cut(values=pa.array([b"milk", b"never", b"tea"], pa.large_binary())),
            {"tea", "milk", "never"},
            3,
        ),
        (Cut(values=pa.array([], pa.large_binary())), set(), 9),
    ],
    ids=["top", "top of more", "values", "no values"],
)
def test_what_a_cut_leaves(layer_of, read, structure, cut, kept, num_cut):
    layer = layer_of(cut, structure)
    written = [set(row[1]["viewed"].string_set_val.val) if "viewed" in row[1] else None for row in ROWS]
    expected = [None if items is None else items & kept for items in written]
    expected[5] = Value()
    assert items_of(read, layer) == expected
    assert {v.decode() for v in layer.features["viewed"].vocabulary.values.to_pylist()} == kept
    assert layer.cut == ({} if cut.top == 100 else {"viewed": num_cut})
    assert layer.features["viewed"].num_facts == 9 - num_cut
    assert [read(layer, [user], ["size"])[user][1]["size"].int64_val for user in range(8)] == [
        3, 2, 1, 1, 0, 9, 9, 2,
    ]  # fmt: skip


@STRUCTURES
def test_a_row_of_which_nothing_is_left_is_empty_and_others_stay_what_they_are(
    layer_of, hashes_of, structure
):
    states = (
        layer_of(Cut(top=1), structure)
        .read(hashes_of(range(8)), ["viewed"])
        .features["viewed"]
        .states.tolist()
    )
    assert states == [VALUE, VALUE, VALUE, EMPTY, EMPTY, NULL, MISSING, VALUE]


def test_values_of_equal_counts_are_kept_in_ascending_order(layer_of):
    rows = [(0, viewed("b", "a", "d", "c"), 0)]
    layer = layer_of(Cut(top=2), rows=rows)
    assert layer.features["viewed"].vocabulary.values.to_pylist() == [b"a", b"b"]


def test_a_layer_without_cuts_tells_of_none(layer_of):
    layer = layer_of(None)
    assert layer.cut == {}
    assert "cut" not in layer.to_snapshot()[0]


def test_a_cut_of_no_rows(layer_of):
    layer = layer_of(Cut(top=1), rows=ROWS[5:6])
    assert (layer.cut, len(layer.features["viewed"].vocabulary)) == ({}, 0)


def test_rows_within_a_vocabulary_have_only_its_values(make_rows):
    codecs = [VIEWED, SIZE, FeatureCodec("numbers", "int64_set_val")]
    rows = [(user, {**v, "numbers": Value(int64_set_val=Int64Set(val=[user]))}, 0) for user, v, _ in ROWS]
    encoded = make_rows(rows, codecs)
    kept = encoded.within(
        {"viewed": Vocabulary(pa.array([b"coffee", b"milk"], pa.large_binary())), "no": None}
    )
    assert len(kept) == len(encoded)
    for name in ("size", "numbers"):
        assert kept.features[name] is encoded.features[name]
    before, after = encoded.features["viewed"], kept.features["viewed"]
    names = [v.decode() for v in after.vocabulary.values.to_pylist()]
    for row, old in enumerate(before.states):
        new = after.states[row]
        left = {names[symbol] for symbol in after.symbols[after.indptr[row] : after.indptr[row + 1]]}
        whole = {names[symbol] for symbol in before.symbols[before.indptr[row] : before.indptr[row + 1]]}
        assert left == whole & {"coffee", "milk"}
        assert new == (EMPTY if old == VALUE and not left else old)
    assert encoded.within({}) is encoded


def test_rows_within_an_empty_vocabulary_are_empty(make_rows):
    kept = make_rows(ROWS, [VIEWED, SIZE]).within({"viewed": Vocabulary(pa.array([], pa.large_binary()))})
    assert set(kept.features["viewed"].states.tolist()) == {EMPTY, NULL, MISSING}
    assert kept.num_facts == 8 - 0 - 0  # the sizes
