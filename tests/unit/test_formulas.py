"""Formulas: sums of whole numbers over the values of a row, the same in any order and batch."""

import numpy as np
import pyarrow as pa
import pytest

from feast_sketch_store.rows.codecs import CATEGORICAL, CLUSTER, MISSING, SCORE, VALUE, FeatureCodec
from feast_sketch_store.rows.encoding import EncodedFeature, EncodedRows, RowKeys, encode_column
from feast_sketch_store.rows.formulas import Formula, Source, with_formulas
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.view import formulas as fitting
from feast_sketch_store.view.computed_settings import Computed
from feast_sketch_store.view.formulas import Sampled, cluster_formula, score_formula

CODEC = FeatureCodec("viewed", "int64_list_val")
NUM_ROWS, NUM_VALUES, NUM_CLUSTERS = 500, 40, 5


def encoded(lists, deleted=()):
    """Rows of one feature, whose values are numbered by their popularity among these rows."""
    flags = np.isin(np.arange(len(lists)), deleted)
    zeros = np.zeros(len(lists), np.int64)
    hashes = np.arange(2 * len(lists), dtype=np.uint64).reshape(-1, 2)
    feature = encode_column(pa.array(lists, CODEC.arrow_type), CODEC)
    return EncodedRows(RowKeys(hashes, zeros, zeros, flags, flags), {"viewed": feature})


def shown(feature: EncodedFeature):
    """The value of each row, None where it has none."""
    numbers = feature.codec.to_numbers(feature.vocabulary.values)
    rows = [
        feature.symbols[first:end] for first, end in zip(feature.indptr, feature.indptr[1:], strict=False)
    ]
    return [numbers[ids[0]].item() if len(ids) else None for ids in rows]


@pytest.fixture(scope="module")
def lists():
    chance = np.random.default_rng(2)
    return [
        sorted(chance.choice(NUM_VALUES + 5, chance.integers(0, 9), replace=False).tolist())
        for _ in range(NUM_ROWS)
    ]


@pytest.fixture(scope="module")
def weights():
    return np.random.default_rng(3).integers(0, 256, (NUM_VALUES, NUM_CLUSTERS)).astype(np.uint8)


@pytest.fixture(scope="module")
def cluster(weights):
    source = Source("viewed", Vocabulary(pa.array(np.arange(NUM_VALUES))), weights)
    codec = FeatureCodec("taste", "int64_val", CATEGORICAL)
    return Formula(codec, CLUSTER, (source,), np.array([3, 2, 9, 9, -700]))


@pytest.mark.parametrize("rows_per_chunk", [1 << 12, 64])
def test_a_cluster_is_the_first_place_of_the_greatest_sum(
    lists, weights, cluster, rows_per_chunk, monkeypatch
):
    monkeypatch.setattr("feast_sketch_store.rows.formulas._ROWS_PER_CHUNK", rows_per_chunk)
    sums = [cluster.offsets + weights[[v for v in row if v < NUM_VALUES]].sum(0, np.int64) for row in lists]
    assert shown(cluster.of(encoded(lists))) == [int(own.argmax()) for own in sums]
    assert shown(cluster.of(encoded([[], [NUM_VALUES + 1]]))) == [2, 2]


def test_neither_order_nor_batch_matters(lists, cluster):
    together = shown(cluster.of(encoded(lists)))
    alone = [shown(cluster.of(encoded([row[::-1]])))[0] for row in lists[:50]]
    assert alone == together[:50]
    assert shown(cluster.of(encoded(lists[::-1]))) == together[::-1]


def test_deletions_have_no_value_and_missing_sources_add_nothing(cluster):
    rows = encoded([[1], [2], []], deleted=[1])
    feature = with_formulas(rows, {"taste": cluster}).features["taste"]
    assert feature.states.tolist() == [VALUE, MISSING, VALUE]
    assert shown(feature)[1] is None
    without = EncodedRows(rows.keys, {})
    assert shown(cluster.of(without)) == [2, None, 2]


def score_of(lists, bits=4, known=None, scale=1.0):
    weights = scale * np.random.default_rng(4).normal(size=NUM_VALUES)
    features = encoded(lists).features
    sampled = Sampled(features, len(lists), len(lists))
    vocabulary = Vocabulary(pa.array(np.arange(NUM_VALUES)))
    return weights, score_formula("worth", {"viewed": (vocabulary, weights)}, bits, sampled, known)


def test_a_score_is_a_multiple_of_its_step_and_within_half_of_it(lists):
    weights, formula = score_of(lists)
    exact = np.array([weights[[v for v in row if v < NUM_VALUES]].sum() for row in lists])
    found = np.array(shown(formula.of(encoded(lists))))
    assert np.abs(found - exact).max() <= formula.max_error * (1 + 1e-6)
    assert formula.step == pytest.approx(np.ptp(exact) / 15, rel=1e-6)
    assert np.allclose(found / formula.step, np.rint(found / formula.step))
    assert len({*found}) <= 2**4 + 1
    everything = [list(range(NUM_VALUES))]  # outside of the range of the rows
    assert abs(shown(formula.of(encoded(everything)))[0] - weights.sum()) <= formula.max_error * (1 + 1e-6)


def test_the_version_of_a_score_is_that_of_its_weights(lists):
    _, first = score_of(lists)
    _, more_rows = score_of(lists[:100], known=first)
    _, others = score_of(lists, known=more_rows, scale=2.0)
    assert [first.version, more_rows.version, others.version] == [1, 1, 2]
    assert first.digest != others.digest


def sampled_groups(seed, first=0):
    """Rows of two groups, which have values of their own."""
    chance = np.random.default_rng(seed)
    rows = [(first + n % 2 * 20 + chance.choice(20, 6, replace=False)).tolist() for n in range(300)]
    features = encoded(rows).features
    return Sampled(features, len(rows), len(rows)), features


def test_clusters_stay_while_they_fit():
    how = Computed(("viewed",), 2)
    sample, _ = sampled_groups(1)
    known = cluster_formula("taste", how, sample)
    later, features = sampled_groups(2)
    assert cluster_formula("taste", how, later, known) is known
    found = known.clusters(features, 300)
    assert len({*found[::2]}) == len({*found[1::2]}) == 1
    assert len({*found}) == 2


def test_clusters_of_new_values_or_another_number_are_learned_anew():
    sample, _ = sampled_groups(1)
    known = cluster_formula("taste", Computed(("viewed",), 2), sample)
    new_values, features = sampled_groups(2, first=100)
    anew = cluster_formula("taste", Computed(("viewed",), 2), new_values, known)
    assert anew.version == 2
    assert len({*anew.clusters(features, 300)}) == 2
    more = cluster_formula("taste", Computed(("viewed",), 4), sample, known)
    assert (more.version, more.num_clusters) == (2, 4)


def test_a_formula_keeps_the_values_that_tell_most(monkeypatch):
    """Of values that everybody has as often nothing can be learned."""
    monkeypatch.setattr(fitting, "_LEAST_CELLS", 2 * 40)
    monkeypatch.setattr(fitting, "_CELLS_PER_ROW", 0)
    chance = np.random.default_rng(5)
    rows = [
        (n % 2 * 20 + chance.choice(20, 6, replace=False)).tolist()
        + (100 + chance.choice(60, 30, replace=False)).tolist()
        for n in range(300)
    ]
    features = encoded(rows).features
    formula = cluster_formula("taste", Computed(("viewed",), 2), Sampled(features, 300, 300))
    (source,) = formula.sources
    assert sorted(source.vocabulary.values.to_pylist()) == list(range(40))


def test_parts_that_do_not_fit_are_refused(cluster):
    codec = FeatureCodec("worth", "double_val", CATEGORICAL)
    source = cluster.sources[0]
    for arguments in (
        (codec, CLUSTER, (source,), cluster.offsets),
        (codec, SCORE, (source,), cluster.offsets),
        (cluster.codec, CLUSTER, (), cluster.offsets),
        (cluster.codec, CLUSTER, (source, source), cluster.offsets),
        (cluster.codec, CLUSTER, (source,), cluster.offsets[1:]),
        (cluster.codec, "mean", (source,), cluster.offsets),
    ):
        with pytest.raises(ValueError, match="formula"):
            Formula(*arguments)
