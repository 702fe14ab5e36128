"""Features that imply each other are coded in chains: smaller, and read as they were written."""

import numpy as np
import pyarrow as pa
import pytest

from feast_sketch_store.layers import FeatureBudget, Goal, SketchLayer
from feast_sketch_store.layers.collect import CollectedFeature
from feast_sketch_store.rows.codecs import EMPTY, MISSING, NULL, VALUE, FeatureCodec
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.encoding import EncodedFeature
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures.base import RowsToSeal
from feast_sketch_store.structures.set_columns import SetColumns
from feast_sketch_store.structures.shared_values import find_chains
from tests.helpers.cases import for_each
from tests.helpers.layers import build_layer, random_hashes, rows_with
from tests.helpers.length import by_length

NUM_ROWS = 800


def is_drawn(rng, num_values, mean, num_rows=NUM_ROWS):
    shares = np.arange(1, num_values + 1) ** -0.8
    return rng.random((num_rows, num_values)) < np.minimum(0.9, shares * mean / shares.sum())


def feature_of(name, has, first=0, value_field="int64_set_val", no_value=EMPTY):
    """A feature of rows that are given as bool[n, V]; value ``v`` is ``7 * (first + v)``, or its digits."""
    used = np.flatnonzero(has.any(axis=0))
    values = 7 * (first + used)
    codec = FeatureCodec(name, value_field)
    is_number = codec.storage_type == pa.int64()
    storage = pa.array(values if is_number else [b"%d" % v for v in values.tolist()], codec.storage_type)
    rows, ids = np.nonzero(has[:, used])
    csr = Csr.of_lengths(np.bincount(rows, minlength=len(has)), ids.astype(np.int32))
    states = np.where(csr.lengths > 0, VALUE, no_value).astype(np.uint8)
    return EncodedFeature(codec, Vocabulary(storage), states, csr)


def layer_of(features, filter_of=None):
    num_rows = len(features[0].states)
    rows = rows_with(features, random_hashes(np.random.default_rng(5), num_rows))
    goals = {name: Goal("error_rate", 0.01, "sets") for name in rows.features} | (filter_of or {})
    return rows, build_layer(rows, FeatureBudget(1e-6, goals))


def assert_reads_as_written(rows, layer):
    assert list(layer.missing(rows)) == []
    for name, feature in rows.features.items():
        answer = layer.read(rows.keys.entity_hashes, [name]).features[name]
        assert (answer.states == feature.states).all()
        assert (np.diff(answer.indptr) == feature.csr.lengths).all()
        # The values of a feature are those that it has, and no others.
        assert len(layer.features[name].vocabulary) == len(feature.vocabulary)


def chains_of(layer):
    """The features of each chain, in order."""
    sets = SetColumns.among(layer.structures)
    chains = []
    for name, code in zip(sets.features, sets.sets.codes, strict=True):
        if code.others_width < 0:
            chains.append([])
        chains[-1].append(name)
    return chains


def implied(seed=1, share=0.4, num_others=1.0):
    """Base, and a feature of which most is in the base."""
    rng = np.random.default_rng(seed)
    base = is_drawn(rng, 300, 30)
    inside = base & (rng.random(base.shape) < share)
    return base, inside | is_drawn(rng, 300, num_others)


@pytest.mark.slow
@pytest.mark.has_long_form
@for_each("value_field", ["int64_set_val", "string_set_val", "int64_list_val"])
@for_each("share", by_length([0.02, 0.6], [0.02, 0.4, 0.6, 0.97, 1.0]))
def test_a_feature_that_is_implied_is_coded_with_the_other(share, value_field):
    base, dependent = implied(share=share)
    features = [
        feature_of(name, has, value_field=value_field) for name, has in (("b", base), ("d", dependent))
    ]
    rows, layer = layer_of(features)
    assert_reads_as_written(rows, layer)
    assert [sorted(chain) for chain in chains_of(layer)] == [["b", "d"]]
    restored = SketchLayer.from_snapshot(*layer.to_snapshot())
    assert_reads_as_written(rows, restored)
    again, arrays = restored.to_snapshot()
    assert again == layer.to_snapshot()[0]
    assert {n: a.tobytes() for n, a in arrays.items()} == {
        n: a.tobytes() for n, a in layer.to_snapshot()[1].items()
    }


def test_features_that_share_values_may_have_no_rows():
    """As in a layer of deletions only, whose values are those of a layer beside it."""
    base, dependent = implied()
    features = []
    for name, has in (("b", base), ("d", dependent)):
        feature = feature_of(name, has)
        features.append(feature.take(np.zeros(0, np.int64)))
    rows, layer = layer_of(features)
    assert_reads_as_written(rows, layer)
    restored = SketchLayer.from_snapshot(*layer.to_snapshot())
    assert restored.read(np.ones((3, 2), np.uint64), ["b", "d"]).features["b"].indptr[-1] == 0


def test_a_chain_takes_fewer_bits_than_its_features_alone():
    base, dependent = implied()
    _, together = layer_of([feature_of("b", base), feature_of("d", dependent)])
    alone = [layer_of([feature_of("x", has)])[1] for has in (base, dependent)]
    bits = sum(SetColumns.among(layer.structures).sets.num_bits for layer in alone)
    assert SetColumns.among(together.structures).sets.num_bits < 0.9 * bits


def test_features_of_which_none_implies_another_stay_apart():
    rng = np.random.default_rng(2)
    rows, layer = layer_of(
        [feature_of(name, is_drawn(rng, 200, 20), first) for name, first in (("a", 0), ("b", 10_000))]
    )
    assert_reads_as_written(rows, layer)
    assert sorted(map(len, chains_of(layer))) == [1, 1]


def test_values_of_other_types_are_never_shared():
    base, dependent = implied()
    features = [feature_of("b", base), feature_of("d", dependent, value_field="string_set_val")]
    rows, layer = layer_of([*features, feature_of("e", dependent, value_field="unix_timestamp_set_val")])
    assert_reads_as_written(rows, layer)
    assert sorted(map(len, chains_of(layer))) == [1, 1, 1]


def test_two_chains_in_one_layer():
    (base, dependent), (other, of_other) = implied(1), implied(7)
    names = dict(zip("abcd", (dependent, of_other, base, other), strict=True))
    features = [feature_of(name, has, 10_000 * (name in "bd")) for name, has in names.items()]
    rows, layer = layer_of(features)
    assert_reads_as_written(rows, layer)
    assert sorted(sorted(chain) for chain in chains_of(layer)) == [["a", "c"], ["b", "d"]]


@pytest.mark.slow
@pytest.mark.has_long_form
@for_each("seed", range(by_length(3, 6)))
def test_chains_of_several_features_with_rows_that_have_none(seed):
    rng = np.random.default_rng(seed)
    base = is_drawn(rng, 200, rng.uniform(0.5, 40))
    base[rng.random(NUM_ROWS) < 0.1] = False
    kinds = EMPTY, NULL, MISSING
    features, seen = [feature_of("f0", base)], base
    for number in range(1, 5):
        has = (seen & (rng.random(base.shape) < rng.choice([0.05, 0.5, 0.9, 1.0]))) | is_drawn(
            rng, 200, rng.choice([0, 0.3, 3])
        )
        features.append(feature_of(f"f{number}", has, no_value=kinds[number % 3]))
        seen = seen | has
    rows, layer = layer_of([features[index] for index in rng.permutation(5)])
    assert_reads_as_written(rows, layer)
    assert_reads_as_written(rows, SketchLayer.from_snapshot(*layer.to_snapshot()))


@for_each("num_rows", [1, 2, 17])
def test_chains_of_few_rows(num_rows):
    has = is_drawn(np.random.default_rng(3), 20, 9, num_rows)
    has[0, :3] = True
    rows, layer = layer_of([feature_of("a", has), feature_of("b", has), feature_of("c", has & False)])
    assert_reads_as_written(rows, layer)


def test_a_vocabulary_that_was_given_keeps_its_ids():
    base, dependent = implied()
    features = []
    for name, has in (("b", base), ("d", dependent)):
        encoded = feature_of(name, has)
        collected = CollectedFeature(encoded.codec, NUM_ROWS)
        collected.add(np.arange(NUM_ROWS, dtype=np.int32), encoded)
        given = Vocabulary(pa.array(np.sort(encoded.vocabulary.values.to_numpy())[::-1].copy()))
        collected.finish(None, given if name == "d" else None)
        features.append((collected, None, given))
    rows = RowsToSeal(np.zeros((NUM_ROWS, 2), np.uint64), (1, 2), np.arange(NUM_ROWS))
    assert [list(chain.features) for chain in find_chains([f for f, _, _ in features])] == [[0], [1]]
    sealed = SetColumns.build([(f, plan) for f, plan, _ in features], rows)
    assert sealed.features["d"].vocabulary.values.equals(features[1][2].values)


def test_features_without_values_or_rows():
    nothing = np.zeros((3, 5), np.bool_)
    rows, layer = layer_of([feature_of("a", nothing), feature_of("b", nothing, no_value=NULL)])
    assert_reads_as_written(rows, layer)
    rows, layer = layer_of([feature_of("a", nothing[:0]), feature_of("b", nothing[:0])])
    assert len(layer.read(rows.keys.entity_hashes, ["a"]).found) == 0


def test_values_that_a_damaged_file_says_a_feature_lacks_are_refused():
    base, dependent = implied()
    rows, layer = layer_of([feature_of("b", base), feature_of("d", dependent & (np.arange(300) < 40))])
    description, arrays = layer.to_snapshot()
    (name,) = [name for name in arrays if name.endswith(".known")]
    known = arrays[name]
    others = np.packbits(np.roll(np.unpackbits(known), 100)[:300])
    for change in (known[:-1], np.append(known, np.uint8(0)), known | 0x80, np.zeros_like(known)):
        with pytest.raises(ValueError, match="does not mark 40 of 300 values"):
            SketchLayer.from_snapshot(description, {**arrays, name: np.asarray(change)})
    damaged = SketchLayer.from_snapshot(description, {**arrays, name: others})
    feature = [*SetColumns.among(damaged.structures).features][int(name.split(".")[-2])]
    with pytest.raises(ValueError, match="cannot be read"):
        damaged.read(rows.keys.entity_hashes, [feature])
