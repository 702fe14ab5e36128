"""Vocabularies of which not all values are kept."""

import pyarrow as pa
from feast.protos.feast.types.Value_pb2 import Int64Set, StringSet, Value

from feast_sketch_store.rows.codecs import EMPTY, MISSING, NULL, VALUE, FeatureCodec
from feast_sketch_store.rows.vocabulary import Vocabulary

VIEWED, SIZE = FeatureCodec("viewed", "string_set_val"), FeatureCodec("size", "int64_val")


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
