"""Formulas: sums of whole numbers over the values of a row, the same in any order and batch."""

import numpy as np
import pyarrow as pa
import pytest

from feast_sketch_store.rows.codecs import CATEGORICAL, MISSING, VALUE, FeatureCodec
from feast_sketch_store.rows.encoding import EncodedFeature, EncodedRows, RowKeys, encode_column
from feast_sketch_store.rows.formulas import Formula, Source, with_formulas
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.view.folding import weighted_formula, with_step

CODEC = FeatureCodec("viewed", "int64_list_val")
NUM_ROWS, NUM_VALUES = 500, 40


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
    rng = np.random.default_rng(2)
    return [
        sorted(rng.choice(NUM_VALUES + 5, rng.integers(0, 9), replace=False).tolist())
        for _ in range(NUM_ROWS)
    ]


@pytest.fixture(scope="module")
def weights():
    return np.random.default_rng(3).integers(-(2**31), 2**31, NUM_VALUES).astype(np.int32)


@pytest.fixture(scope="module")
def formula(weights):
    source = Source("viewed", Vocabulary(pa.array(np.arange(NUM_VALUES))), weights)
    return Formula(FeatureCodec("worth", "double_val", CATEGORICAL), (source,), unit=0.5, step=2.0)


@pytest.mark.parametrize("rows_per_chunk", [1 << 12, 64])
def test_a_score_is_the_nearest_multiple_of_its_sum(lists, weights, formula, rows_per_chunk, monkeypatch):
    monkeypatch.setattr("feast_sketch_store.rows.formulas._ROWS_PER_CHUNK", rows_per_chunk)
    sums = [weights[[v for v in row if v < NUM_VALUES]].sum(dtype=np.int64) for row in lists]
    assert shown(formula.of(encoded(lists))) == [round(int(own) / 4) * 2.0 for own in sums]
    assert shown(formula.of(encoded([[], [NUM_VALUES + 1]]))) == [0.0, 0.0]


def test_neither_order_nor_batch_matters(lists, formula):
    together = shown(formula.of(encoded(lists)))
    alone = [shown(formula.of(encoded([row[::-1]])))[0] for row in lists[:50]]
    assert alone == together[:50]
    assert shown(formula.of(encoded(lists[::-1]))) == together[::-1]


def test_deletions_have_no_value_and_missing_sources_add_nothing(formula):
    rows = encoded([[1], [2], []], deleted=[1])
    feature = with_formulas(rows, {"worth": formula}).features["worth"]
    assert feature.states.tolist() == [VALUE, MISSING, VALUE]
    assert shown(feature)[1] is None
    without = EncodedRows(rows.keys, {})
    assert shown(formula.of(without)) == [0.0, None, 0.0]


def score_of(lists, bits=4, known=None, scale=1.0):
    weights = scale * np.random.default_rng(4).normal(size=NUM_VALUES)
    features = encoded(lists).features
    vocabulary = Vocabulary(pa.array(np.arange(NUM_VALUES)))
    formula = weighted_formula("worth", {"viewed": (vocabulary, weights)}, known)
    return weights, with_step(formula, bits, np.ptp(formula.scores(features, len(lists))))


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


def test_parts_that_do_not_fit_are_refused(formula):
    codec, (source,) = formula.codec, formula.sources
    for arguments in (
        (FeatureCodec("worth", "int64_val", CATEGORICAL), (source,)),
        (codec, ()),
        (codec, (source, source)),
        (codec, (Source("viewed", source.vocabulary, source.weights[1:]),)),
        (codec, (Source("viewed", source.vocabulary, source.weights.astype(np.int64)),)),
        (codec, (source,), 0.0),
        (codec, (source,), 1.0, np.inf),
    ):
        with pytest.raises(ValueError, match="formula"):
            Formula(*arguments)
