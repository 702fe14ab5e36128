"""Rows: into the row log's columns, the newest of each entity, and the encoding."""

from datetime import UTC, datetime

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from feast.protos.feast.types.Value_pb2 import Int64Set, StringSet, Value

from feast_sketch_store.errors import RowError
from feast_sketch_store.rows.codecs import EMPTY, MISSING, NULL, VALUE, FeatureCodec
from feast_sketch_store.rows.encoding import (
    CREATED_TIMESTAMP,
    ENTITY_KEY,
    EVENT_TIMESTAMP,
    NULLS,
    OWN_COLUMNS,
    EncodedRows,
    deletions,
    encode,
    newest_rows,
    to_arrow,
)
from feast_sketch_store.rows.vocabulary import Vocabulary
from tests.helpers.cases import for_each
from tests.helpers.keys import entity_key, user_key

VIEWED, SIZE = FeatureCodec("viewed", "string_set_val"), FeatureCodec("size", "int64_val")
CODECS = [VIEWED, SIZE]
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


def viewed(*items):
    return {"viewed": Value(string_set_val=StringSet(val=items))}


def size(number):
    return {"size": Value(int64_val=number)}


def items_of(rows, feature="viewed"):
    """Per row its state and the set of its values."""
    encoded = rows.features[feature]
    values = encoded.vocabulary.values.to_pylist()
    return [
        (int(state), {values[symbol] for symbol in encoded.symbols[start:stop]})
        for state, start, stop in zip(encoded.states, encoded.indptr[:-1], encoded.indptr[1:], strict=True)
    ]


# -- to the row log --------------------------------------------------------------------------------


def test_columns_of_the_row_log():
    table = to_arrow([(user_key(7), viewed("a", "b") | {"size": Value()}, NOON, None)], CODECS)
    assert table.column_names == ["user_id", "viewed", "size", *OWN_COLUMNS]
    (row,) = table.to_pylist()
    assert row["user_id"] == 7
    assert row["viewed"] == ["a", "b"]
    assert (row["size"], row[NULLS]) == (None, ["size"])
    assert (row[EVENT_TIMESTAMP], row[CREATED_TIMESTAMP]) == (NOON, None)


def test_no_rows_make_an_empty_table():
    table = to_arrow([], CODECS)
    assert len(table) == 0
    assert table.schema.field("viewed").type == VIEWED.arrow_type
    assert len(newest_rows(table)[1]) == 0


@pytest.mark.parametrize("event", [None, pd.NaT])
def test_a_row_without_event_timestamp_is_refused(event):
    with pytest.raises(RowError, match=r"row 1 of the batch has no event timestamp\. Give the row one, or"):
        to_arrow([(user_key(1), {}, NOON, None), (user_key(2), {}, event, None)], CODECS)


def test_an_unknown_feature_is_refused():
    with pytest.raises(RowError, match=r"row 1 of the batch has \['colour'\]"):
        to_arrow([(user_key(1), {}, NOON, None), (user_key(2), {"colour": Value()}, NOON, None)], CODECS)


def test_join_keys_of_two_types_in_a_batch_are_refused():
    other = entity_key(user_id="1")
    with pytest.raises(RowError, match=r"join key 'user_id' arrives as \['int64_val', 'string_val'\]"):
        to_arrow([(user_key(1), {}, NOON, None), (other, {}, NOON, None)], CODECS)


def test_a_join_key_without_value_is_refused():
    key = entity_key(user_id=Value())
    with pytest.raises(RowError, match="join key 'user_id'"):
        to_arrow([(key, {}, NOON, None)], CODECS)


def test_the_entityless_key_has_no_column():
    key = entity_key(__dummy_id="")
    table = to_arrow([(key, viewed("a"), NOON, None)], CODECS)
    assert "__dummy_id" not in table.column_names
    assert len(table[ENTITY_KEY][0].as_py()) > 0


@for_each(
    ("field", "values"),
    [
        ("int64_val", [0, -1, 1, 2**63 - 1, -(2**63)]),
        ("int32_val", [0, -1, 2**31 - 1, -(2**31)]),
        ("string_val", ["", "8 bytes!", "zoë"]),
        ("string_val", ["8 bytes!", "8 bytes?"]),
        ("bytes_val", [b"", b"8 bytes!", b"\xff"]),
        ("unix_timestamp_val", [0, -1, 1_700_000_000]),
    ],
)
def test_join_keys_have_a_column_of_their_values(field, values):
    keys = [entity_key(id=Value(**{field: value})) for value in values]
    table = to_arrow([(key, {}, NOON, None) for key in keys], [])
    expected, _ = FeatureCodec("id", field).to_arrow([key.entity_values[0] for key in keys])
    assert table["id"].combine_chunks().equals(expected)
    assert deletions(keys, NOON)["id"].combine_chunks().equals(expected)


def test_join_keys_of_two_names_have_a_column_each():
    keys = [entity_key(**{name: 5}) for name in "ab"]
    table = to_arrow([(key, {}, NOON, None) for key in keys], [])
    assert table.select(["a", "b"]).to_pylist() == [{"a": 5, "b": None}, {"a": None, "b": 5}]


def test_a_key_without_join_keys_has_no_column():
    table = to_arrow([(entity_key(), {}, NOON, None)], [])
    assert table.column_names == list(OWN_COLUMNS)


def test_composite_join_keys_have_a_column_each():
    key = entity_key(user=1, day="mon")
    table = to_arrow([(key, {}, NOON, None)], [])
    assert table.select(["day", "user"]).to_pylist() == [{"day": "mon", "user": 1}]


# -- the newest row --------------------------------------------------------------------------------


def combined(*tables):
    return pa.concat_tables(tables, promote_options="default")


def test_a_late_row_does_not_lose_to_a_row_before_a_deletion(make_table, at):
    before = newest_rows(make_table([(1, size(0), 50)], CODECS))[1]
    after = newest_rows(combined(deletions([user_key(1)], at(60)), make_table([(1, size(1), 2)], CODECS)))[1]
    index = np.array([0])
    assert after.older_than(index, before, index).tolist() == [False]
    plain = newest_rows(make_table([(1, size(1), 2)], CODECS))[1]
    assert plain.older_than(index, before, index).tolist() == [True]


@pytest.mark.parametrize(
    ("row", "other", "is_older"),
    [
        ((1, {}, 10), (1, {}, 10), False),
        ((1, {}, 9), (1, {}, 10), True),
        ((1, {}, 11), (1, {}, 10), False),
        ((1, {}, 10, 1), (1, {}, 10, 2), True),
        ((1, {}, 10), (1, {}, 10, 2), True),
        ((1, {}, 10, 2), (1, {}, 10), False),
        ((1, {}, 10, 1), (1, {}, 9, 2), False),
    ],
)
def test_older_than_a_row_committed_before(make_rows, row, other, is_older):
    index = np.array([0])
    keys, others = make_rows([row], CODECS).keys, make_rows([other], CODECS).keys
    assert keys.older_than(index, others, index).tolist() == [is_older]


# -- the encoding ----------------------------------------------------------------------------------


def test_a_feature_without_a_column_was_never_written(make_table):
    table = make_table([(1, viewed("a"), 0)], [VIEWED])
    rows = encode(*newest_rows(table), CODECS)
    assert items_of(rows, "size") == [(MISSING, set())]


def test_taking_rows_takes_their_features(make_rows):
    rows = make_rows([(user, viewed(*"abc"[:user]) | size(user), user) for user in range(4)], CODECS)
    taken = rows.take(np.array([2, 0, 2]))
    assert items_of(taken) == [items_of(rows)[row] for row in (2, 0, 2)]
    assert items_of(taken, "size") == [items_of(rows, "size")[row] for row in (2, 0, 2)]
    assert taken.keys.event_timestamps.tolist() == rows.keys.event_timestamps[[2, 0, 2]].tolist()
    assert len(rows.take(np.zeros(0, np.int64))) == 0


def test_merging_keeps_features_that_one_side_lacks(make_rows):
    older, newer = make_rows([(1, size(5), 1)], [SIZE]), make_rows([(2, viewed("a"), 1)], [VIEWED])
    merged = EncodedRows.newest_of([older, newer])
    assert sorted(items_of(merged)) == [(MISSING, set()), (VALUE, {b"a"})]
    assert sorted(items_of(merged, "size")) == [(MISSING, set()), (VALUE, {5})]


BOUGHT = [("tea", "coffee", "milk"), ("tea", "coffee"), ("tea", "rare"), ("milk",), ()]
SOLD = [
    *((user, viewed(*items) | size(len(items)), 0) for user, items in enumerate(BOUGHT)),
    (5, {"viewed": Value()} | size(9), 0),
    (6, size(9), 0),
]


def test_rows_within_a_vocabulary_have_only_its_values(make_rows):
    numbers = FeatureCodec("numbers", "int64_set_val")
    rows = [(user, row | {"numbers": Value(int64_set_val=Int64Set(val=[user]))}, 0) for user, row, _ in SOLD]
    encoded, kept = make_rows(rows, [*CODECS, numbers]), {b"coffee", b"milk"}
    within = encoded.within({"viewed": Vocabulary(pa.array(sorted(kept), pa.large_binary())), "no": None})
    assert items_of(within) == [
        (EMPTY if state == VALUE and not items & kept else state, items & kept)
        for state, items in items_of(encoded)
    ]
    assert all(within.features[name] is encoded.features[name] for name in ("size", "numbers"))
    assert encoded.within({}) is encoded


def test_rows_within_an_empty_vocabulary_are_empty(make_rows):
    rows = make_rows(SOLD, CODECS).within({"viewed": Vocabulary(pa.array([], pa.large_binary()))})
    assert set(rows.features["viewed"].states.tolist()) == {EMPTY, NULL, MISSING}
    assert rows.num_facts == 7, "the sizes"
