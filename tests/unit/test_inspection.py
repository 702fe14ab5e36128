"""The sealed rows of several shards, as they are inspected."""

import numpy as np
import pyarrow as pa
import pytest
from feast.protos.feast.types.Value_pb2 import DoubleList, Int64Set, Value

from feast_sketch_store.layers import FeatureBudget, Goal, SealedRows, SketchLayer
from feast_sketch_store.rows.codecs import EXACT, VALUE, FeatureCodec
from feast_sketch_store.rows.encoding import encode_column
from tests.helpers.cases import for_each
from tests.helpers.keys import user_hashes
from tests.helpers.layers import build_layer

VIEWED, PRICE = FeatureCodec("viewed", "int64_set_val"), FeatureCodec("price", "double_val", EXACT)
CITY, COUNTRY = FeatureCodec("city", "string_val"), FeatureCodec("country", "string_val")
PRICES = FeatureCodec("prices", "double_list_val", EXACT)
VALUES = {
    "viewed": lambda user: Value(int64_set_val=Int64Set(val=[user % 50])),
    "price": lambda user: Value(double_val=user / 7),
}


@pytest.fixture
def layer_of(make_rows):
    def make(users, codecs, rate=0.05):
        names = [codec.feature for codec in codecs]
        rows = [(user, {name: VALUES[name](user) for name in names}, user) for user in users]
        goals = {"viewed": Goal("error_rate", rate, "bloom"), "price": 0.01}
        budget = FeatureBudget(1e-9, {name: goals[name] for name in names})
        return build_layer(make_rows(rows, codecs), budget)

    return make


def test_parts_add_up(layer_of):
    parts = layer_of(range(300), [VIEWED]), layer_of(range(300, 400), [VIEWED], 0.2)
    sealed = SealedRows(parts)
    assert sealed.num_entities == 400
    assert [feature.num_facts for feature in sealed.features("viewed")] == [300, 100]
    rates = [SealedRows((part,)).expected_rates()["viewed"] for part in parts]
    assert rates[0] < rates[1]
    assert sealed.expected_rates() == {"viewed": rates[1]}
    assert sealed.sampled_rates(["viewed"], 20_000)["viewed"] == pytest.approx(np.mean(rates), rel=0.5)


def test_a_feature_may_be_in_some_parts_only(layer_of):
    """A shard that a failed publication did not reach lacks a new feature."""
    sealed = SealedRows((layer_of(range(300), [VIEWED]), layer_of(range(300, 400), [VIEWED, PRICE])))
    assert list(sealed.codecs) == ["viewed", "price"]
    assert len(sealed.features("price")) == 1
    assert sealed.sampled_presence(10_000) < 0.01
    shown = sealed.shown(encode_column(pa.array([1.0, 2.0, 3.0]), PRICE), user_hashes(range(1_000, 1_003)))
    assert shown.states.tolist() == [VALUE] * 3


NULLS = [Value(), None, Value(string_val="a"), Value(string_val="b"), Value(string_val="a")]
LISTS = [Value(double_list_val=DoubleList(val=[0.5, user] if user % 3 else [])) for user in range(5)]


@for_each(
    ("codecs", "values", "facts", "ways"),
    [
        ([CITY], NULLS, 180, [{"is_static": True}, {"lists_rows": True}, {}]),
        ([CITY, COUNTRY], NULLS, 180, [{"is_static": True}, {"lists_rows": True}]),
        ([PRICE], [Value(), None, Value(double_val=1.5), Value(), Value(double_val=0.1)], 120, [{}]),
        ([PRICE], [Value(double_val=1.5), Value()], 150, [{}]),
        ([PRICE], [None, Value()], 0, [{}]),
        ([PRICES], LISTS, 360, [{}]),
        ([PRICES], [None], 0, [{}]),
    ],
)
def test_facts_are_the_values_of_rows_however_they_are_kept(make_rows, codecs, values, facts, ways):
    names = [codec.feature for codec in codecs]
    shown = [values[user % len(values)] for user in range(300)]
    rows = make_rows(
        [(user, {} if value is None else dict.fromkeys(names, value), 0) for user, value in enumerate(shown)],
        codecs,
    )
    for way in ways:
        budget = FeatureBudget(1e-5, dict.fromkeys(names, 1e-5), may_be_columns=frozenset(names), **way)
        layer = SketchLayer.from_snapshot(*build_layer(rows, budget).to_snapshot())
        assert [feature.num_facts for feature in layer.features.values()] == [facts] * len(names), way
