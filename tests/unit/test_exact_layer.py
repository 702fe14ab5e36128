"""The exact layer: rows come back as they were written."""

import pyarrow as pa
import pytest
from feast.protos.feast.types.Value_pb2 import StringSet, Value

from feast_sketch_store.layers import ExactLayer
from feast_sketch_store.layers.row_reader import Wanted, stack
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.encoding import NO_TIMESTAMP, deletions, encode, newest_rows
from tests.helpers.reads import expired_of

CODECS = [FeatureCodec("viewed", "string_set_val"), FeatureCodec("size", "int64_val")]
NAMES = ["viewed", "size"]


def viewed(*items):
    return Value(string_set_val=StringSet(val=items))


@pytest.fixture
def layer_of(make_rows):
    def make(rows):
        return ExactLayer(make_rows(rows, CODECS))

    return make


def test_positions_ascend_and_repeat_with_the_batch(layer_of, hashes_of):
    layer = layer_of([(user, {}, 0) for user in range(10)])
    answer = layer.read(hashes_of([5, 99, 5, 1]), [])
    assert answer.found.tolist() == [0, 2, 3]


def test_an_empty_batch_finds_nothing(layer_of, read):
    assert read(layer_of([(1, {}, 0)]), [], NAMES) == {}


def test_unknown_features_are_left_out(layer_of, read):
    layer = layer_of([(1, {"size": Value(int64_val=3)}, 7)])
    assert read(layer, [1], ["colour", "size"]) == {1: (7, {"size": Value(int64_val=3)})}


def test_expired_rows_are_not_found(layer_of, hashes_of):
    layer = layer_of([(user, {}, user) for user in range(5)])
    answer = layer.read(hashes_of(range(5)), NAMES, expire_before=3)
    assert expired_of(stack([layer], Wanted(())), hashes_of(range(5)), 3) == {0, 1, 2}
    assert answer.found.tolist() == [3, 4]
    assert answer.event_timestamps.tolist() == [3, 4]


def test_deleted_rows_are_not_found(make_table, key_of, at, hashes_of):
    rows = make_table([(1, {}, 5), (2, {}, 5)], CODECS)
    table = pa.concat_tables([rows, deletions([key_of(1)], at(1))], promote_options="default")
    layer = ExactLayer(encode(*newest_rows(table), CODECS))
    assert layer.read(hashes_of([1, 2]), NAMES).found.tolist() == [1]
    assert expired_of(stack([layer], Wanted(())), hashes_of([1, 2]), NO_TIMESTAMP) == set()
