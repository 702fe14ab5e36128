"""The choice looks at whole layers: rows are listed for scalars or beside a filter where that is smaller."""

import numpy as np
import pyarrow as pa
import pytest

from feast_sketch_store.layers import FeatureBudget, Goal
from feast_sketch_store.rows.codecs import NULL, VALUE, FeatureCodec
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.encoding import EncodedFeature
from feast_sketch_store.rows.vocabulary import Vocabulary
from tests.helpers.layers import build_layer, random_hashes, rows_with, sets_of

NUM_ROWS = 5_000
RATE = 1e-5


def scalar(name, num_values, share_null=0.0, seed=1):
    rng = np.random.default_rng([seed, num_values])
    states = np.where(rng.random(NUM_ROWS) < share_null, NULL, VALUE).astype(np.uint8)
    has_value = states == VALUE
    ids = rng.integers(0, num_values, NUM_ROWS)[has_value].astype(np.int32)
    csr = Csr.of_lengths(has_value.astype(np.int64), ids)
    values = pa.array([b"value %d" % number for number in range(num_values)], pa.large_binary())
    return EncodedFeature(FeatureCodec(name, "string_val"), Vocabulary(values), states, csr)


def set_of(name, num_values, size):
    rng = np.random.default_rng(2)
    ids = np.sort(np.array([rng.choice(num_values, size, replace=False) for _ in range(NUM_ROWS)]), axis=1)
    return sets_of(
        name, Csr(np.arange(NUM_ROWS + 1) * size, ids.reshape(-1)), pa.array(np.arange(num_values))
    )


def layer_of(features, *, may_list=True, goal=None, presence_error_rate=RATE):
    rows = rows_with(features, random_hashes(np.random.default_rng(3), NUM_ROWS))
    scalars = [f.codec.feature for f in features if not f.codec.is_collection]
    targets = {f.codec.feature: goal or Goal("noise_ratio", 0.1) for f in features} | dict.fromkeys(
        scalars, RATE
    )
    budget = FeatureBudget(
        presence_error_rate, targets, may_be_columns=frozenset(scalars if may_list else ())
    )
    layer = build_layer(rows, budget)
    assert list(layer.missing(rows)) == []
    return layer


def kinds_of(layer):
    return [structure.kind for structure in layer.structures]


def bits_per_row(layer):
    return 8 * layer.size_bytes / NUM_ROWS


@pytest.mark.slow
def test_many_categories_are_columns_beside_a_list():
    features = [scalar(f"s{number}", 9, 0.1, number) for number in range(30)]
    layer, filtered = layer_of(features), layer_of(features, may_list=False)
    assert (kinds_of(layer), kinds_of(filtered)) == (["scalars"], ["bloom"])
    # log2(10) bits of a value or that there is none, and the list; all have one timestamp.
    assert bits_per_row(layer) <= 130 < bits_per_row(filtered) / 5


@pytest.mark.parametrize("num_values", [100, 400, 2000])
def test_ten_scalars_beside_a_set(num_values):
    features = [set_of("a", num_values, 2), *(scalar(f"s{n}", 50, 0, n) for n in range(10))]
    assert bits_per_row(layer_of(features)) <= 115


def test_rows_without_scalars_are_listed_as_it_was():
    layers = [layer_of([set_of("a", 400, 3)], may_list=may_list) for may_list in (False, True)]
    assert kinds_of(layers[0]) == kinds_of(layers[1]) == ["sets"]


@pytest.mark.parametrize("goal", [Goal("error_rate", 0.01), Goal("noise_ratio", 0.1, "bloom")])
def test_where_a_filter_is_asked_for_it_holds_the_scalars(goal):
    layer = layer_of([set_of("a", 400, 3), scalar("s", 5)], goal=goal)
    assert kinds_of(layer) == ["bloom"]
    assert {f.structure for f in layer.features.values()} == {"bloom"}


@pytest.mark.parametrize(("noise_ratio", "kinds"), [(0.1, ["scalars", "sets"]), (8.0, ["bloom", "scalars"])])
def test_a_list_for_scalars_pays_with_sets_and_with_a_filter(noise_ratio, kinds):
    features = [set_of("a", 2_000, 3), *(scalar(f"s{n}", 50, 0, n) for n in range(10))]
    goal = Goal("noise_ratio", noise_ratio)
    layer, other = layer_of(features, goal=goal), layer_of(features, goal=goal, may_list=False)
    assert kinds_of(layer) == kinds
    assert layer.size_bytes <= other.size_bytes


@pytest.mark.parametrize(("num_values", "size", "noise_ratio"), [(60, 60, 0.1), (5, 2, 2)])
def test_rows_are_listed_beside_a_filter_that_would_otherwise_hold_them(num_values, size, noise_ratio):
    """A filter with many ones is enough for the values, but not for the rows."""
    goals = {kind: Goal("noise_ratio", noise_ratio, kind) for kind in ("auto", "sets", "weighted_bloom")}
    layers = {kind: layer_of([set_of("a", num_values, size)], goal=goal) for kind, goal in goals.items()}
    assert layers["auto"].features["a"].structure == "weighted_bloom"
    assert layers["auto"].size_bytes <= 0.9 * min(layers[kind].size_bytes for kind in goals if kind != "auto")


def test_a_filter_that_is_smaller_is_kept():
    """A unique value that few have costs nothing where it is absent, and a column for all rows."""
    layer = layer_of([scalar("s", 900, 0.999)], presence_error_rate=0.4)
    assert kinds_of(layer) == ["bloom"]


@pytest.mark.parametrize("states", [[3], [1, 3], [0, 3], [0, 1, 3], [0, 1], [1]])
def test_states_are_as_many_symbols_as_there_are_different_ones(states):
    whole = scalar("s", 9)
    drawn = np.random.default_rng(4).choice(np.array(states, np.uint8), NUM_ROWS)
    csr = Csr.of_lengths(drawn == VALUE, whole.symbols[drawn == VALUE])
    feature = EncodedFeature(whole.codec, whole.vocabulary, drawn, csr)
    column = layer_of([feature, *(scalar(f"s{n}", 9, 0, n) for n in range(20))]).features["s"]
    assert column.structure == "column"
    if VALUE in states:
        assert column.num_symbols == 9 + len(set(states) - {VALUE})
    else:
        assert column.states.width == (len(states) - 1).bit_length()
