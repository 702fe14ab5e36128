"""Weighted filters show as many false symbols as they were sized for, and take the bits that they should."""

import math

import numpy as np
import pyarrow as pa
import pytest

from feast_sketch_store.layers import FeatureBudget, Goal
from feast_sketch_store.layers.build import SketchLayerBuilder
from feast_sketch_store.layers.joint import SharedVocabularies
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures.costs import Popularity, set_bits
from feast_sketch_store.succinct import FingerprintIndex, GolombSets, SetCode
from feast_sketch_store.succinct.golomb_sets import ideal_bits, rice_bits
from tests.helpers.filters import measured_fill
from tests.helpers.layers import build_layer, rows_with, sets_of
from tests.helpers.reads import find_rows

NUM_ROWS, VOCABULARY = 10_000, 2000
TRIALS = 200_000


def rows_of(facts, vocabulary):
    """Encoded rows of a set feature."""
    return rows_with([sets_of("viewed", facts.csr, pa.array(np.arange(vocabulary)))], facts.hashes)


@pytest.fixture(scope="module")
def zipf(make_facts):
    """Twenty facts per row out of a Zipf distribution."""
    return make_facts(NUM_ROWS, VOCABULARY, 20 * NUM_ROWS, symbol_exponent=1.05)


def layer_of(facts, target, vocabulary=VOCABULARY, presence_error_rate=1e-5):
    return build_layer(rows_of(facts, vocabulary), FeatureBudget(presence_error_rate, {"viewed": target}))


def filter_of(layer):
    return layer.features["viewed"].filter


def symbols_of(layer):
    return layer.features["viewed"].symbols


def hashes_per_symbol(symbols):
    firsts = symbols.first_symbols or (0,) * symbols.num_hashes
    return np.searchsorted(firsts, np.arange(symbols.num_symbols), side="right")


@pytest.mark.parametrize("amount", [0.15, 0.5, 1.5])
def test_false_symbols_per_read(zipf, amount):
    """Interval: 4 standard errors of the rows' own excess over its expectation. Rows are independent."""
    layer = layer_of(zipf, Goal("noise_ratio", amount, "weighted_bloom"))
    answer = layer.read(zipf.hashes, ["viewed"]).features["viewed"]
    own = np.bincount(zipf.entities, minlength=NUM_ROWS)
    symbols, fill = symbols_of(layer), measured_fill(filter_of(layer))
    rates = fill ** hashes_per_symbol(symbols)
    # What a row lacks differs from row to row: its expectation is the sum over just these symbols.
    ids = np.argsort(layer.features["viewed"].vocabulary.values.to_numpy())
    present = np.bincount(
        zipf.entities, rates[ids[np.unique(zipf.symbols, return_inverse=True)[1]]], NUM_ROWS
    )
    expected = np.where(own > 0, rates.sum() - present, 0)
    excess = np.diff(answer.indptr) - own
    surprise = excess - expected
    assert (excess >= 0).all()
    assert abs(surprise.mean()) <= 4 * surprise.std(ddof=1) / math.sqrt(NUM_ROWS)
    wanted = amount * len(zipf.symbols) / NUM_ROWS
    # The fill of so large a table differs from its expectation by less than a percent.
    assert 0.95 * wanted <= excess.mean() <= 1.02 * wanted + 4 * excess.std(ddof=1) / math.sqrt(NUM_ROWS)


@pytest.mark.parametrize("num_rows", [1, 2])
@pytest.mark.parametrize(("rate", "most"), [(1e-6, 0.0), (0.01, 0.01)])
def test_a_part_of_a_view_of_few_rows_keeps_its_target(monkeypatch, num_rows, rate, most):
    """A shard numbers values as the whole view does, so its own rows may lack the first of them.

    Interval: 4 standard errors of the mean over independent layers. At a rate of 1e-6, 50 layers have no
    false value with a probability of 0.98 or more.
    """
    rng = np.random.default_rng(8)
    monkeypatch.setattr(
        "feast_sketch_store.layers.build.new_salt", lambda: tuple(rng.integers(2**63, size=2))
    )
    values, per_row = Vocabulary(pa.array(np.arange(200))), 5
    rates = []
    for _ in range(50):
        hashes = np.sort(rng.integers(0, 2**64, (num_rows, 2), np.uint64), axis=0)
        symbols = np.concatenate([np.sort(rng.choice(200, per_row, False)) for _ in range(num_rows)])
        viewed = sets_of("viewed", Csr(np.arange(num_rows + 1) * per_row, symbols), values.values)
        rows = rows_with([viewed], hashes)
        builder = SketchLayerBuilder(rows.keys, [viewed.codec], [(np.arange(num_rows), rows)])
        goal = Goal("error_rate", rate, "weighted_bloom")
        joint = SharedVocabularies({"viewed": values})
        layer = builder.build(FeatureBudget(1e-5, {"viewed": goal}), joint)
        answer = layer.read(hashes, ["viewed"]).features["viewed"]
        num_false = len(answer.symbols) - len(symbols)
        rates.append(num_false / (num_rows * (len(values) - per_row)))
    assert np.mean(rates) <= most + 4 * np.std(rates) / math.sqrt(len(rates)) * (most > 0)


def test_rate_of_each_number_of_hashes(zipf, random_hashes, binomial_interval):
    """One symbol of each unknown entity, so that the trials are independent."""
    layer = layer_of(zipf, Goal("noise_ratio", 0.15, "weighted_bloom"))
    symbols, fill = symbols_of(layer), measured_fill(filter_of(layer))
    num_hashes = hashes_per_symbol(symbols)
    assert len(set(num_hashes)) >= 5
    assert (np.diff(num_hashes) >= 0).all()
    rng = np.random.default_rng(5)
    for k in sorted(set(num_hashes)):
        asked = rng.choice(np.flatnonzero(num_hashes == k), TRIALS).astype(np.int32)
        hits = filter_of(layer).contains(random_hashes(TRIALS, 50 + k), symbols.query, asked[:, None]).sum()
        low, high = binomial_interval(TRIALS, fill**k)
        assert low <= hits <= high
    assert symbols.false_positive_rate == pytest.approx((fill**num_hashes).mean(), rel=0.05)


@pytest.mark.parametrize("amount", [0.15, 0.5])
def test_bits_of_weighted_filters_are_those_of_the_formula(zipf, amount):
    """``sum_s n_s * k_s / -ln(1 - fill)``, the shapes of the rows included, and the fill that was planned."""
    layer = layer_of(zipf, Goal("noise_ratio", amount, "weighted_bloom"))
    (shape,) = layer.presence.ranges
    counts = np.sort(np.bincount(zipf.symbols, minlength=VOCABULARY))[::-1]
    num_hashes = hashes_per_symbol(symbols_of(layer))
    num_ones = int((counts[: len(num_hashes)] * num_hashes).sum()) + shape.num_facts * shape.num_hashes
    fill = measured_fill(filter_of(layer))
    assert filter_of(layer).num_bits == pytest.approx(num_ones / -math.log1p(-fill), rel=0.03)
    assert symbols_of(layer).num_ones + shape.num_ones == num_ones
    assert filter_of(layer).num_bits <= 1.03 * layer.ideal_bits


def zipf_counts(vocabulary, num_rows, per_row, exponent):
    """Expected counts of symbols, none of them in more than all rows."""
    weights = np.arange(1, vocabulary + 1) ** -exponent
    low, high = 0.0, 1e12
    for _ in range(100):
        middle = (low + high) / 2
        if np.minimum(num_rows, middle * weights).sum() < per_row * num_rows:
            low = middle
        else:
            high = middle
    return np.maximum(1, np.minimum(num_rows, low * weights)).astype(np.int64)


def test_weighted_filters_take_half_the_bits_of_equal_hashes_for_the_same_noise(make_facts):
    """Zipf 1.05, 10,000 symbols, 24 facts per row, presence included: a rate of 0.01 is 100 false symbols per
    read. With exactly half of the bits set equal hashes would take 10.1 bits per fact."""
    facts = make_facts(8000, 10_000, 24 * 8000, symbol_exponent=1.05)
    layers = [
        layer_of(facts, target, 10_000, presence_error_rate=0.01)
        for target in (Goal("error_rate", 0.01, "weighted_bloom"), Goal("error_rate", 0.01, "bloom"))
    ]
    num_ones = [symbols_of(layer).num_ones for layer in layers]
    per_fact = [
        bits / -math.log1p(-measured_fill(filter_of(layer))) / len(facts.symbols)
        for bits, layer in zip(num_ones, layers, strict=True)
    ]
    own = np.bincount(facts.entities, minlength=8000)
    excess = [
        np.diff(layer.read(facts.hashes, ["viewed"]).features["viewed"].indptr) - own for layer in layers
    ]
    assert per_fact[0] <= 5.6
    assert 9.4 <= per_fact[1] <= 10.3
    wanted = 0.01 * (10_000 - own.mean())
    for each in excess:
        assert each.mean() <= 1.03 * wanted + 4 * each.std(ddof=1) / math.sqrt(8000)


# -- sets ------------------------------------------------------------------------------------------


def independent_sets(vocabulary, num_rows, per_row, exponent, seed=1):
    """Sets whose symbols are independent: counts from the most popular one on, and a CSR matrix."""
    rng = np.random.default_rng(seed)
    densities = zipf_counts(vocabulary, 10**6, per_row, exponent) / 10**6
    chosen = np.concatenate(
        [rng.random((min(500, num_rows - first), vocabulary)) < densities.clip(max=0.95)
         for first in range(0, num_rows, 500)]
    )  # fmt: skip
    counts = chosen.sum(axis=0)
    order = np.argsort(-counts, kind="stable")
    rows, ids = np.nonzero(chosen[:, order])
    indptr = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=num_rows))))
    return counts[order], indptr, ids.astype(np.int32)


def coded(counts, indptr, ids):
    """The sets, and the bits of their headers."""
    sizes = np.diff(indptr).astype(np.int32)
    code = SetCode.fit(counts, sizes, 0)
    sets = GolombSets.build([code], sizes[:, None], indptr, ids)
    return sets, rice_bits(np.argsort(code.all_headers)[sizes], code.header_width)


SPARSE = [(1000, 20, 0.0), (1000, 20, 0.5), (1000, 20, 0.8), (3000, 50, 0.0), (3000, 50, 0.8), (200, 20, 0.0)]
DENSE = [(1000, 20, 1.05), (1000, 20, 1.3), (1000, 20, 2.0), (200, 20, 1.3), (100, 50, 0.0), (100, 50, 2.0)]


@pytest.mark.parametrize(("vocabulary", "per_row", "exponent"), SPARSE)
def test_sets_of_sparse_symbols_take_at_most_3_percent_more_than_the_ideal(vocabulary, per_row, exponent):
    """Beside their headers; where most facts are of symbols that less than a tenth of the rows have."""
    counts, indptr, ids = independent_sets(vocabulary, 2000, per_row, exponent)
    sets, headers = coded(counts, indptr, ids)
    ideal = ideal_bits(counts, 2000)
    # Sizes are known from the headers, so gaps may take a little less than all there is to tell.
    assert 0.98 <= (sets.num_bits - headers) / ideal <= 1.03


@pytest.mark.parametrize(("vocabulary", "per_row", "exponent"), [*SPARSE, *DENSE])
def test_sets_take_at_most_half_a_bit_per_fact_more_than_the_ideal(vocabulary, per_row, exponent):
    """A gap takes a whole number of bits and at least one, which counts where many gaps are 1: up to 0.55
    bits per fact (23 % at Zipf 2), and 45 % where half of all symbols are in every row."""
    counts, indptr, ids = independent_sets(vocabulary, 2000, per_row, exponent)
    sets, headers = coded(counts, indptr, ids)
    assert sets.num_bits - headers <= ideal_bits(counts, 2000) + 0.55 * len(ids)
    assert headers <= 2000 * (math.log2(1 + len(ids) / 2000) + 2)
    # What the choice of a structure goes by is as near.
    assert abs(sets.num_bits - set_bits(Popularity(counts, 2000))) <= 0.6 * len(ids) + 2000


# -- lists of rows ---------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.5, 0.01, 1e-3])
@pytest.mark.parametrize("num_rows", [1000, 8191, 8192, 20_000])
def test_unknown_entities_share_the_fingerprint_of_a_row_as_often_as_they_may(
    random_hashes, binomial_interval, num_rows, rate
):
    index = FingerprintIndex.build(np.sort(random_hashes(num_rows, 1)[:, 0]), rate)
    found = int((find_rows(index, random_hashes(TRIALS, 2)[:, 0]) >= 0).sum())
    # Of rows that share a fingerprint the hash has to be the same as well.
    low, high = binomial_interval(TRIALS, (num_rows - len(index.twins)) / index.range)
    assert low <= found <= high
    assert found <= binomial_interval(TRIALS, rate)[1]


def test_unknown_entities_are_rows_of_a_list_at_most_at_the_rate(zipf, random_hashes, binomial_interval):
    layer = layer_of(zipf, Goal("error_rate", 0.01, "sets"), presence_error_rate=1e-3)
    found = len(layer.read(random_hashes(TRIALS, 9), []).found)
    assert found <= binomial_interval(TRIALS, 1e-3)[1]
