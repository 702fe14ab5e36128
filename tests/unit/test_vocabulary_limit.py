"""Counting the values of a feature costs what a batch costs, not what is known already."""

import weakref

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from feast.protos.feast.types.Value_pb2 import Int64List, StringList, Value

from feast_sketch_store.errors import VocabularyOverflowError
from feast_sketch_store.layers import ExactLayer, FeatureBudget, Shards
from feast_sketch_store.layers.build import build_layer
from feast_sketch_store.rows.binning import Precision
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.view.settings import FeatureSettings, ViewSettings
from feast_sketch_store.view.state import State
from feast_sketch_store.view.vocabulary_limit import VocabularyLimit

TAGS = FeatureCodec("tags", "string_list_val")
NUMBERS = FeatureCodec("numbers", "int64_list_val")
PRICE = FeatureCodec("price", "int64_val", "binned", Precision(10.0))
CODECS = [TAGS, NUMBERS, PRICE]
NUM_VALUES = 5_000


def row(*numbers):
    return {
        "tags": Value(string_list_val=StringList(val=[f"t{n}" for n in numbers])),
        "numbers": Value(int64_list_val=Int64List(val=numbers)),
        "price": Value(int64_val=10 * numbers[0]),
    }


@pytest.fixture
def settings_of():
    """Makes settings with a limit for each feature."""

    def make(limit):
        features = {codec.feature: FeatureSettings(codec, 0.01, limit) for codec in CODECS}
        return ViewSettings("history", 1e-5, features)

    return make


@pytest.fixture
def state(make_rows):
    """Sealed rows with 5,000 values of each feature, and two layers of unsealed ones, with 8 more."""
    sealed = make_rows([(user, row(user), 0) for user in range(NUM_VALUES)], CODECS)
    base = build_layer(sealed, FeatureBudget(1e-5, {codec.feature: 0.01 for codec in CODECS}))
    exact = [ExactLayer(make_rows([(NUM_VALUES + n, row(NUM_VALUES + n), 1)], CODECS)) for n in (0, 1)]
    return State(1, sealed=Shards((base,)), exact=tuple(exact))


@pytest.fixture
def looked_at(monkeypatch):
    """Collects how many values each step takes in hand."""
    sizes = []
    find, unique, concat = Vocabulary.find, pc.unique, pa.concat_arrays

    def spied_find(vocabulary, values):
        sizes.append(len(values))
        return find(vocabulary, values)

    def spied_unique(values):
        sizes.append(len(values))
        return unique(values)

    def spied_concat(arrays):
        sizes.append(sum(map(len, arrays)))
        return concat(arrays)

    monkeypatch.setattr(Vocabulary, "find", spied_find)
    monkeypatch.setattr(pc, "unique", spied_unique)
    monkeypatch.setattr(pa, "concat_arrays", spied_concat)
    return sizes


def test_a_batch_near_the_limit_costs_what_it_has(state, settings_of, make_table, looked_at):
    limit, settings = VocabularyLimit(), settings_of(NUM_VALUES + 2)
    limit.check(make_table([(0, row(1), 2)], CODECS), state, settings)
    assert max(looked_at) == NUM_VALUES  # counted once
    for number in range(20):
        del looked_at[:]
        limit.check(make_table([(number, row(number, 2), 2)], CODECS), state, settings)
        with pytest.raises(VocabularyOverflowError, match=f"'tags'.* {NUM_VALUES + 5} distinct"):
            limit.check(make_table([(9, row(10**6, 10**6 + 1, 10**6 + 2), 2)], CODECS), state, settings)
        assert max(looked_at) <= 3


def test_only_new_layers_are_counted(state, settings_of, make_table, make_rows, looked_at):
    limit, settings = VocabularyLimit(), settings_of(NUM_VALUES + 3)
    limit.check(make_table([(0, row(1, 2), 2), (1, row(3), 2)], CODECS), state, settings)
    newest = ExactLayer(make_rows([(7, row(10**6), 1), (8, row(3), 1)], CODECS))
    del looked_at[:]
    grown = State(2, sealed=state.sealed, exact=(*state.exact, newest))
    limit.check(make_table([(0, row(1), 2)], CODECS), grown, settings)
    assert 0 < max(looked_at) <= 2
    with pytest.raises(VocabularyOverflowError, match=f" {NUM_VALUES + 5} distinct"):
        limit.check(make_table([(9, row(10**6 + 1, 10**6 + 2), 2)], CODECS), grown, settings)


def test_merged_layers_and_another_seal_are_counted_anew(state, settings_of, make_table, make_rows):
    limit, settings = VocabularyLimit(), settings_of(NUM_VALUES + 2)
    new, many = make_table([(9, row(10**6), 2)], CODECS), make_table([(9, row(*range(9)), 2)], CODECS)
    with pytest.raises(VocabularyOverflowError, match=f" {NUM_VALUES + 3} distinct"):
        limit.check(new, state, settings)
    merged = State(2, sealed=state.sealed, exact=(state.exact[0].merged_with(state.exact[1]),))
    with pytest.raises(VocabularyOverflowError, match=f" {NUM_VALUES + 3} distinct"):
        limit.check(new, merged, settings)
    fewer = build_layer(
        make_rows([(user, row(user), 0) for user in range(9)], CODECS),
        FeatureBudget(1e-5, {codec.feature: 0.01 for codec in CODECS}),
    )
    limit.check(many, State(3, sealed=Shards((fewer,))), settings_of(9))
    with pytest.raises(VocabularyOverflowError, match=" 10 distinct"):
        limit.check(new, State(3, sealed=Shards((fewer,))), settings_of(9))
    limit.check(many, State(), settings_of(9))
    with pytest.raises(VocabularyOverflowError, match=" 9 distinct"):
        limit.check(many, State(), settings_of(8))


def test_a_snapshot_is_not_held(state, settings_of, make_table):
    """Its mapping would keep a file on the disk that vacuum removed."""
    limit, settings = VocabularyLimit(), settings_of(NUM_VALUES + 2)
    limit.check(make_table([(0, row(1), 2)], CODECS), state, settings)
    counted = limit._counted["tags"]
    assert [entry.own for entry in counted] == [None] * 3
    assert all(isinstance(entry.source, weakref.ref) for entry in counted)
    features = [*state.sealed.features("tags"), *(layer.rows.features["tags"] for layer in state.exact)]
    assert [entry.source() for entry in counted] == features
