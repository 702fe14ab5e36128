"""Sets in count trees: read as they were written, smaller than Golomb-coded sets, safe to read if damaged."""

import numpy as np
import pyarrow as pa
import pytest

from feast_sketch_store.layers import FeatureBudget, Goal, SketchLayer, build_layer
from feast_sketch_store.layers.collect import CollectedFeature
from feast_sketch_store.rows.codecs import EMPTY, MISSING, NULL
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures.base import RowsToSeal
from feast_sketch_store.structures.compact_sets import CompactSets
from feast_sketch_store.structures.set_columns import SetColumns
from feast_sketch_store.succinct.count_tree import (
    context_shares,
    cumulated_mass,
    mass_levels,
    shares_of,
)
from feast_sketch_store.succinct.tree_order import Facts, order_of
from feast_sketch_store.succinct.tree_tables import (
    BOUNDS,
    CONTEXT_SHARES,
    LEFT_SHARES,
    NUM_SHARES,
    TWICE_CONCENTRATIONS,
    tables,
    tables_checksum,
)
from tests.helpers.length import by_length
from tests.unit.test_shared_values import (
    NUM_ROWS,
    assert_reads_as_written,
    feature_of,
    implied,
    is_drawn,
    layer_of,
)

COMPACT = Goal("error_rate", 0.01, "compact_sets")


def compact_layer(features):
    rows, _ = layer_of(features)
    return rows, build_layer(rows, FeatureBudget(1e-6, dict.fromkeys(rows.features, COMPACT)))


def with_tastes(num_rows=3000, num_values=600, num_groups=20, seed=1):
    """Rows that have most values of one or two groups; values of a group do not stand together."""
    rng = np.random.default_rng(seed)
    group = rng.permutation(num_values) % num_groups
    likes = rng.random((num_rows, num_groups)) < 1.5 / num_groups
    popularity = 0.05 + rng.random(num_values) ** 2
    return rng.random((num_rows, num_values)) < popularity * np.where(likes[:, group], 0.5, 0.01)


@pytest.mark.parametrize("value_field", ["int64_set_val", "string_set_val", "int64_list_val"])
def test_layers_read_as_written_also_from_their_snapshot(value_field):
    base, dependent = implied()
    parts = (("b", base), ("d", dependent), ("e", dependent & base))
    rows, layer = compact_layer([feature_of(name, has, value_field=value_field) for name, has in parts])
    assert_reads_as_written(rows, layer)
    assert {feature.structure for feature in layer.features.values()} == {"compact_sets"}
    description, arrays = layer.to_snapshot()
    restored = SketchLayer.from_snapshot(description, arrays)
    assert_reads_as_written(rows, restored)
    again, same = restored.to_snapshot()
    assert again == description
    assert {n: a.tobytes() for n, a in same.items()} == {n: a.tobytes() for n, a in arrays.items()}


@pytest.mark.has_long_form
@pytest.mark.parametrize("seed", range(by_length(1, 3)))
def test_chains_of_several_features_with_rows_that_have_none(seed):
    rng = np.random.default_rng(seed)
    base = is_drawn(rng, 200, rng.uniform(0.5, 40))
    base[rng.random(NUM_ROWS) < 0.1] = False
    kinds = EMPTY, NULL, MISSING
    features, seen = [feature_of("f0", base)], base
    for number in range(1, 5):
        share = rng.choice([0.05, 0.5, 0.9, 1.0])
        has = (seen & (rng.random(base.shape) < share)) | is_drawn(rng, 200, rng.choice([0, 0.3, 3]))
        features.append(feature_of(f"f{number}", has, no_value=kinds[number % 3]))
        seen = seen | has
    rows, layer = compact_layer([features[place] for place in rng.permutation(5)])
    assert_reads_as_written(rows, layer)
    assert_reads_as_written(rows, SketchLayer.from_snapshot(*layer.to_snapshot()))


@pytest.mark.parametrize("num_rows", [0, 1, 2, 17])
@pytest.mark.parametrize("num_values", [1, 2, 3, 20])
def test_few_rows_and_few_values(num_rows, num_values):
    has = is_drawn(np.random.default_rng(3), num_values, 9, num_rows)
    rows, layer = compact_layer([feature_of("a", has), feature_of("b", has), feature_of("c", has & False)])
    assert_reads_as_written(rows, layer)
    assert_reads_as_written(rows, SketchLayer.from_snapshot(*layer.to_snapshot()))


def test_sets_of_very_different_sizes():
    has = np.zeros((40, 5000), np.bool_)
    for row, size in enumerate([0, 1, 2, 15, 16, 17, 31, 32, 33, 64, 127, 500, 1001, 2047, 4999, 5000] * 2):
        has[row, np.random.default_rng(row).permutation(5000)[:size]] = True
    rows, layer = compact_layer([feature_of("a", has)])
    assert_reads_as_written(rows, layer)


def test_rows_with_tastes_take_less_than_as_golomb_coded_sets():
    rows, plain = layer_of([feature_of("a", with_tastes())])
    _, compact = compact_layer([feature_of("a", with_tastes())])
    assert_reads_as_written(rows, compact)
    sizes = [layer.features["a"].sets.num_bits for layer in (plain, compact)]
    assert sizes[1] < 0.85 * sizes[0]
    assert compact.size_bytes < 0.95 * plain.size_bytes


def test_a_feature_that_is_implied_takes_less_than_by_itself():
    base, dependent = implied()
    _, together = compact_layer([feature_of("b", base), feature_of("d", dependent)])
    alone = [compact_layer([feature_of("x", has)])[1] for has in (base, dependent)]
    bits = sum(CompactSets.among(layer.structures).sets.num_bits for layer in alone)
    assert CompactSets.among(together.structures).sets.num_bits < 0.9 * bits


def test_nobody_gets_count_trees_who_did_not_ask_for_them():
    base, dependent = implied()
    rows, _ = layer_of([feature_of("b", base), feature_of("d", dependent)])
    goals = dict.fromkeys(rows.features, Goal("noise_ratio", 0.1))
    layer = build_layer(rows, FeatureBudget(1e-6, goals))
    assert {feature.structure for feature in layer.features.values()} == {"sets"}
    # Beside sets of another feature.
    mixed = build_layer(rows, FeatureBudget(1e-6, {**goals, "d": COMPACT}))
    assert [structure.kind for structure in mixed.structures] == ["sets", "compact_sets"]
    assert_reads_as_written(rows, mixed)


def test_a_vocabulary_that_was_given_keeps_its_ids():
    encoded = feature_of("d", implied()[1])
    collected = CollectedFeature(encoded.codec, NUM_ROWS)
    collected.add(np.arange(NUM_ROWS, dtype=np.int32), encoded)
    given = Vocabulary(pa.array(np.sort(encoded.vocabulary.values.to_numpy())[::-1].copy()))
    collected.finish(None, given)
    rows = RowsToSeal(np.zeros((NUM_ROWS, 2), np.uint64), (1, 2), np.arange(NUM_ROWS))
    sealed = CompactSets.build([(collected, None)], rows)
    assert sealed.features["d"].vocabulary.values.equals(given.values)


def test_the_order_puts_values_of_one_taste_together():
    num_values, num_groups = 256, 4
    has = with_tastes(2000, num_values, num_groups)
    group = np.random.default_rng(1).permutation(num_values) % num_groups
    rows, values = np.nonzero(has)
    order = order_of(Facts(rows, values), num_values)
    assert sorted(order.tolist()) == list(range(num_values))
    quarters = group[order].reshape(4, -1)
    assert all(np.bincount(quarter).max() > 0.9 * len(quarter) for quarter in quarters)


@pytest.mark.parametrize("num_values", [0, 1, 2, 3])
def test_the_order_of_few_values(num_values):
    nothing = Facts(np.zeros(0, np.int64), np.zeros(0, np.int64))
    assert sorted(order_of(nothing, num_values).tolist()) == list(range(num_values))


class TestTables:
    def test_each_process_has_the_same(self):
        """Files are coded with these tables; docs/online_store_format.md has the checksum, too."""
        assert tables_checksum() == CHECKSUM

    def test_lists_of_numbers_are_those_of_their_formulas(self):
        half_units, steps, fifths = np.arange(17) / 2 - 8, np.arange(1, 33), (np.arange(64) - 40) / 5
        assert np.rint(2**16 / (1 + np.exp(-half_units))).tolist() == list(LEFT_SHARES)
        assert np.rint(2**20 * np.exp((steps - 16.5) / 2)).tolist() == list(BOUNDS)
        shares = np.rint(2**15 / (1 + np.exp(-fifths)))
        assert np.clip(shares, 1, 2**15 - 1).tolist() == list(CONTEXT_SHARES)

    def test_probabilities_are_those_of_beta_binomials(self):
        """Of two ids, both are on the left with mu * (mu * c + 1) / (c + 1)."""
        for place, twice in enumerate(TWICE_CONCENTRATIONS):
            concentration = twice / 2
            for share in range(NUM_SHARES):
                mu = 1 / (1 + np.exp(-(share - 16) / 2))
                table = tables().small[place * NUM_SHARES + share, 2].astype(int)
                both = mu * (mu * concentration + 1) / (concentration + 1)
                assert (table[3] - table[2]) / 2**15 == pytest.approx(both, abs=2e-4)

    def test_nothing_that_may_be_has_no_probability(self):
        small, large = (table.astype(int) for table in tables())
        for number in range(1, 17):
            assert (np.diff(small[:, number, : number + 2]) > 0).all()
            assert (small[:, number, number + 1] == 2**15).all()
        for kind, bins in enumerate((16, 32, 32, 64, 64, 64)):
            assert (np.diff(large[:, kind, : bins + 1]) > 0).all()
            assert (large[:, kind, bins] == 2**15).all()
        assert (np.diff(context_shares(np.arange(64)).astype(int)) > 0).all()

    def test_shares_are_told_by_mass(self):
        mass = cumulated_mass(mass_levels(np.array([0, 0, 0, 0])))
        assert shares_of(mass).tolist() == [16, 16, 16, 16]
        mass = cumulated_mass(mass_levels(np.array([10**6, 1])))
        assert shares_of(mass)[1] == 32
        assert shares_of(cumulated_mass(mass_levels(np.array([1, 10**6]))))[1] == 0


CHECKSUM = 2238946436


@pytest.fixture(scope="module")
def snapshot():
    base, dependent = implied()
    rows, layer = compact_layer([feature_of("b", base), feature_of("d", dependent, no_value=NULL)])
    return rows, *layer.to_snapshot()


def test_damaged_arrays_are_refused_or_read_as_other_sets(snapshot):
    rows, description, arrays = snapshot
    rng = np.random.default_rng(1)
    outcomes = set()
    for name in [name for name in arrays if name.startswith("compact_sets.") and len(arrays[name])]:
        for _ in range(6):
            content = arrays[name].copy()
            content.reshape(-1).view(np.uint8)[rng.integers(content.nbytes)] ^= rng.integers(1, 256)
            try:
                layer = SketchLayer.from_snapshot(description, {**arrays, name: content})
                layer.read(rows.keys.entity_hashes, ["b", "d"])
                outcomes.add("read")
            except (ValueError, KeyError, TypeError):
                outcomes.add("refused")
    assert outcomes == {"read", "refused"}


@pytest.mark.parametrize("how", ["missing", "shorter", "empty", "another type"])
def test_arrays_of_another_shape_are_refused(snapshot, how):
    rows, description, arrays = snapshot
    for name in [name for name in arrays if name.startswith("compact_sets.")]:
        array = arrays[name]
        if not len(array):
            continue
        changed = {
            "missing": {},
            "shorter": {name: array[:-1]},
            "empty": {name: array[:0]},
            "another type": {name: array.astype(np.float32)},
        }[how]
        others = {n: a for n, a in arrays.items() if n != name} | changed
        with pytest.raises((ValueError, KeyError, TypeError)):
            SketchLayer.from_snapshot(description, others).read(rows.keys.entity_hashes, ["b", "d"])


@pytest.mark.parametrize(
    ("key", "value"),
    [("num_bits", 2**40), ("num_bits", -1), ("num_bits", True), ("features", [])],
)
def test_descriptions_that_cannot_be_are_refused(snapshot, key, value):
    _, description, arrays = snapshot
    (entry,) = description["structures"]
    with pytest.raises((ValueError, TypeError)):
        SketchLayer.from_snapshot({**description, "structures": [{**entry, key: value}]}, arrays)


@pytest.mark.parametrize("kept", [SetColumns, CompactSets])
def test_what_features_take_is_what_all_takes(kept, snapshot):
    rows, description, arrays = snapshot
    layer = (
        SketchLayer.from_snapshot(description, arrays)
        if kept is CompactSets
        else layer_of([*rows.features.values()])[1]
    )
    structure = next(s for s in layer.structures if type(s) is kept)
    assert sum(map(structure.size_bytes_of, structure.features)) == pytest.approx(
        structure.size_bytes, rel=0.01
    )
