"""Filters of the package, held to the formulas of the text on learned Bloom filters.

Source of all sections and formulas: Mitzenmacher, "A Model for Learned Bloom Filters, and Optimizing by
Sandwiching", NeurIPS 2018. There ``alpha ** b`` is the rate of a Bloom filter of b bits a key, with alpha =
2 ** -ln 2 = 0.6185; F_p is the share of other keys to which the learned function says yes, and F_n the share
of keys to which it says no; zeta is its size in bits a key.
"""

import math

import numpy as np
import pyarrow as pa
import pytest

from feast_sketch_store.layers import FeatureBudget, Goal
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.structures.clusters import ClusterFacts, size
from feast_sketch_store.structures.sizing import within
from feast_sketch_store.succinct import ShiftingBloomFilterBuilder, SymbolQuery
from tests.helpers.filters import add_facts, contains_facts, measured_fill
from tests.helpers.layers import build_layer, random_hashes, rows_with, sets_of

ALPHA = 2 ** -math.log(2)
F_P, F_N = 0.01, 0.5


def log_alpha(x):
    return math.log(x) / math.log(ALPHA)


def learned_rate(bits, f_p=F_P, f_n=F_N):
    """Section 4: the rate of a learned filter with so many backup bits a key."""
    return f_p + (1 - f_p) * ALPHA ** (bits / f_n)


def optimal_backup_bits(f_p=F_P, f_n=F_N):
    """Section 5.2, equation 2: b2*, which does not depend on the budget."""
    return f_n * log_alpha(f_p / ((1 - f_p) * (1 / f_n - 1)))


def sandwiched_rate(bits, backup_bits, f_p=F_P, f_n=F_N):
    """Section 5.2: the rate of b1 = bits - b2 bits before and b2 behind the function."""
    return ALPHA ** (bits - backup_bits) * learned_rate(backup_bits, f_p, f_n)


@pytest.mark.parametrize("num_hashes", [3, 6])
def test_section_2_the_share_of_zeros_and_the_rate(num_hashes, random_hashes, binomial_interval):
    """rho = 1 - (1 - 1/m)^(kn) ~ 1 - e^(-kn/m), and the rate rho ^ k; four standard deviations."""
    hashes, others = random_hashes(10_000, 1), random_hashes(200_000, 2)
    builder = ShiftingBloomFilterBuilder(80_000, 1, (3, 5))
    zeros = np.zeros(10_000, np.int64)
    add_facts(builder, hashes, np.arange(10_000), zeros, num_hashes)
    fill = builder.measured_fill()
    assert fill == pytest.approx(-math.expm1(-num_hashes * 10_000 / builder.num_bits), abs=0.008)
    bloom = builder.build()
    assert contains_facts(bloom, hashes, zeros, num_hashes).all()
    low, high = binomial_interval(200_000, fill**num_hashes)
    assert low < bloom.contains(others, SymbolQuery(0, 1, num_hashes), np.zeros(1, np.int32)).sum() < high


def test_section_3_2_the_rate_depends_on_what_is_asked(random_hashes, binomial_interval):
    """Keys: 500 of [1000, 2000], to which the function says yes, and 500 others of [0, 1e6).

    Asked about all of the range the rate of the function is .0005, .0010 with a backup filter of as much;
    asked about [0, 1e5) it is .0055 in all.
    """
    rng = np.random.default_rng(2)
    others = rng.choice(np.delete(np.arange(10**6), np.s_[1000:2001]), 500, replace=False)
    keys = np.union1d(rng.choice(np.arange(1000, 2001), 500, replace=False), others)
    hashes = random_hashes(10**6, 3)  # of each integer
    rate, num_hashes = 0.0005, 11
    builder = ShiftingBloomFilterBuilder(math.ceil(500 * log_alpha(rate)), 1, (5, 7))
    add_facts(builder, hashes[others], np.arange(500), np.zeros(500, np.int64), num_hashes)
    backup_rate = builder.measured_fill() ** num_hashes
    says_yes = builder.build().contains(hashes, SymbolQuery(0, 1, num_hashes), np.zeros(1, np.int32))[:, 0]
    says_yes[1000:2001] = True
    assert says_yes[keys].all()
    assert backup_rate == pytest.approx(rate, rel=0.5)  # so few words vary
    for end, of_function, stated in ((10**6, 0.0005, 0.0010), (10**5, 0.0050, 0.0055)):
        asked = np.delete(np.arange(end), keys[keys < end])
        f_p = 501 / len(asked)
        assert f_p == pytest.approx(of_function, abs=6e-5)
        assert f_p + (1 - f_p) * rate == pytest.approx(stated, abs=6e-5)
        low, high = binomial_interval(len(asked) - 501, backup_rate)
        assert low < says_yes[asked].sum() - 501 < high


@pytest.mark.parametrize("rate", [0.0, 1e-5, 1e-3, 0.01, 0.3])
def test_sampled_rates_are_within_their_bound(rate):
    """Of 20,000 samples of 2,000 questions at least 95 % are; the bound is not exact, so nearly all."""
    rates = np.random.default_rng(5).binomial(2_000, rate, 20_000) / 2_000
    assert np.mean([abs(x - rate) <= within(x, 2_000) for x in rates]) >= 0.95


def test_a_bound_is_as_small_as_the_formula_says():
    assert within(0.0101, 200_000) == pytest.approx(0.0008, abs=3e-5)
    for rate in (0.0, 0.001, 0.0101, 0.2):
        bound = within(rate, 200_000)
        true = rate + bound
        at_most = (
            2 * math.exp(-(bound**2) * 200_000 / (3 * true))
            if bound < true
            else 2 * math.exp(-bound / 3 * 200_000)
        )
        assert at_most == pytest.approx(0.05)
    assert within(0.9, 100) == pytest.approx(
        math.sqrt(2 * math.log(40) / 100)
    )  # where the bound of theorem 4 is the smaller one
    assert within(0.0, 0) == 1.0


# -- filters of the package -------------------------------------------------------------------------

NUM_ROWS, FEW, MANY = 4_000, 20, 1_000


@pytest.fixture(scope="module")
def oracle():
    """Rows for which odds are an oracle with F_p = .01 and F_n = .5 exactly, as ids and where rows begin.

    Each of 20 values is had by half of the rows, each of 1,000 by one of a hundred: a row has ten of either,
    on average, and lacks ten and 990.
    """
    rng = np.random.default_rng(6)
    has = np.zeros((NUM_ROWS, FEW + MANY), np.bool_)
    for value in range(FEW + MANY):
        has[rng.choice(NUM_ROWS, NUM_ROWS // 2 if value < FEW else NUM_ROWS // 100, replace=False), value] = (
            True
        )
    return has


def facts_of(oracle, rate, style):
    return ClusterFacts(oracle.sum(0)[None, :], np.array([NUM_ROWS]), rate * 1_000, style)


@pytest.mark.parametrize("backup_bits", [4.0, 5.0, 6.0])
def test_a_learned_filter_takes_the_backup_bits_of_the_formula(oracle, backup_bits):
    """Within 2 %: hashes are whole numbers, and the share of ones adapts to them."""
    num_bits, (split,) = size([facts_of(oracle, learned_rate(backup_bits), "learned_bloom")])
    assert split.hashes[0] == 0
    assert (split.level_of[0] == 0).tolist() == [True] * FEW + [False] * MANY
    assert num_bits / oracle.sum() == pytest.approx(backup_bits, rel=0.02)


@pytest.mark.parametrize("bits", [6.0, 8.0, 10.0, 12.0])
def test_a_sandwich_takes_the_bits_of_the_formula_and_splits_them_so(oracle, bits):
    """Within 2 %, and the backup filter's part is b2* to the nearest hash, which is 0.72 bits here."""
    best = optimal_backup_bits()
    num_bits, (split,) = size([facts_of(oracle, sandwiched_rate(bits, best), "sandwiched_bloom")])
    initial, both = split.hashes
    assert num_bits / oracle.sum() == pytest.approx(bits, rel=0.02)
    backup_bits = num_bits / oracle.sum() * (both - initial) * F_N / (initial + (both - initial) * F_N)
    assert backup_bits == pytest.approx(best, abs=0.75)


@pytest.mark.parametrize(("style", "bits"), [("learned_bloom", 5.0), ("sandwiched_bloom", 8.0)])
def test_filters_show_the_rate_of_the_formula(oracle, style, bits, monkeypatch):
    """In a sealed layer, at the share of ones that it has.

    Interval: five standard errors of the rows' false values, which are independent.
    """
    monkeypatch.setattr("feast_sketch_store.layers.build.new_salt", lambda: (11, 13))
    rate = learned_rate(bits) if style == "learned_bloom" else sandwiched_rate(bits, optimal_backup_bits())
    rows, ids = np.nonzero(oracle)
    indptr = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=NUM_ROWS))))
    feature = sets_of("viewed", Csr(indptr, ids), pa.array(np.arange(FEW + MANY)))
    hashes = random_hashes(np.random.default_rng(7), NUM_ROWS)
    encoded = rows_with([feature], hashes)
    goal = Goal("noise_ratio", 1_000 * rate * NUM_ROWS / oracle.sum(), style, 1)
    layer = build_layer(encoded, FeatureBudget(1e-5, {"viewed": goal}))
    false = layer.read(hashes, ["viewed"]).features["viewed"].csr.lengths - oracle.sum(1)
    (initial, both), fill = layer.features["viewed"].hashes, measured_fill(layer.structures[0].filter)
    expected = fill**initial * (F_P + (1 - F_P) * fill ** (both - initial))
    assert 0.98 * rate < expected < 1.001 * rate  # the ones of the table vary with the salt
    deviation = false.std() / math.sqrt(NUM_ROWS)
    assert false.mean() / 1_000 == pytest.approx(expected, abs=5 * deviation / 1_000)
    assert 8 * layer.structures[0].table_bytes / oracle.sum() == pytest.approx(bits, rel=0.03)
