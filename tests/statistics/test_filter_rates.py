"""The measured false-positive rate of the filter is fill ** k, for every distribution and symbol.

Trials are independent: each asks an entity of its own, which was never added, about one symbol. Given the
table, its k positions are independent and uniform, so the count of false positives is binomial with the
rate ``measured_fill(bloom) ** k`` exactly, whatever facts the table holds.
"""

import numpy as np
import pytest

from feast_sketch_store.succinct import SymbolQuery
from tests.helpers.filters import contains_facts, measured_fill, windows
from tests.oracle.bits import set_bits
from tests.oracle.filters import position

VOCABULARIES = [1, 63, 64, 65, 10_000, 1_000_000]
UNIFORM, MILD, STEEP, ZIPF = 0.0, 0.7, 1.5, 1.05
DISTRIBUTIONS = [
    (UNIFORM, UNIFORM),
    (UNIFORM, ZIPF),
    (ZIPF, UNIFORM),
    (ZIPF, ZIPF),
    (MILD, STEEP),
    (STEEP, MILD),
]
TRIALS = 300_000


def ask(bloom, hashes, symbols, num_hashes):
    """The number of symbols that are possibly present, one asked of each entity."""
    return int(contains_facts(bloom, hashes, symbols, num_hashes).sum())


def asked_symbols(vocabulary):
    return np.random.default_rng(99).integers(0, vocabulary, TRIALS)


@pytest.mark.parametrize(
    ("facts", "vocabulary", "num_hashes", "exponents"),
    [
        *(((20_000, 100_000), vocabulary, 5, (UNIFORM, UNIFORM)) for vocabulary in VOCABULARIES),
        *(((5_000, 150_000), 10_000, 7, exponents) for exponents in DISTRIBUTIONS),
        *(((5_000, 100_000), 1_000, num_hashes, (UNIFORM, ZIPF)) for num_hashes in (1, 2, 3, 10)),
    ],
)
def test_rates(
    make_facts, build_filter, random_hashes, binomial_interval, facts, vocabulary, num_hashes, exponents
):
    """Of so many entities with so many facts, whose distributions have these exponents."""
    num_entities, num_facts = facts
    entities, symbols = exponents
    facts = make_facts(num_entities, vocabulary, num_facts, entity_exponent=entities, symbol_exponent=symbols)
    bloom = build_filter(facts, vocabulary, num_hashes)
    count = ask(bloom, random_hashes(TRIALS, 2), asked_symbols(vocabulary), num_hashes)
    low, high = binomial_interval(TRIALS, measured_fill(bloom) ** num_hashes)
    assert low <= count <= high


def test_rate_of_entities_numbered_in_a_row(make_facts, build_filter, binomial_interval):
    """The filter mixes its hashes once more, so even hashes that are small numbers do."""
    facts = make_facts(5000, 1000, 100_000)
    bloom = build_filter(facts, 1000, 7)
    numbered = np.stack([np.arange(TRIALS, dtype=np.uint64)] * 2, axis=1)
    count = ask(bloom, numbered, asked_symbols(1000), 7)
    low, high = binomial_interval(TRIALS, measured_fill(bloom) ** 7)
    assert low <= count <= high


def enumerated_excess(bloom, facts, entities, vocabulary, num_hashes):
    """Per entity the symbols that a window gives beside the ones added; and the absent ones."""
    indptr, _ = set_bits(
        windows(bloom, facts.hashes[entities], SymbolQuery(0, 64 * (-(-vocabulary // 64)), num_hashes))
    )
    added = np.bincount(facts.entities, minlength=len(facts.hashes))[entities]
    return np.diff(indptr) - added, vocabulary - added


@pytest.mark.parametrize(
    ("entity_exponent", "symbol_exponent"), [(UNIFORM, UNIFORM), (UNIFORM, ZIPF), (ZIPF, ZIPF)]
)
def test_rate_of_whole_windows_of_entities_that_were_added(
    make_facts, build_filter, entity_exponent, symbol_exponent
):
    """What a read does: every absent symbol of an entity that has others.

    The 64 symbols of a word meet the same k words of the table, so their errors come in clusters and the
    plain binomial interval is too narrow (the next test shows it). Entities are independent, so the
    interval is 4 standard errors of the entities' own excess over its expectation.
    """
    facts = make_facts(5000, 9984, 150_000, entity_exponent=entity_exponent, symbol_exponent=symbol_exponent)
    bloom = build_filter(facts, 9984, 7)
    excess, absent = enumerated_excess(bloom, facts, np.arange(5000), 9984, 7)
    surprise = excess - absent * measured_fill(bloom) ** 7
    assert abs(surprise.mean()) <= 4 * surprise.std(ddof=1) / np.sqrt(5000)


def test_errors_of_one_entity_come_in_clusters(make_facts, build_filter):
    """Why the test before does not use the binomial interval: the variance is larger by far."""
    facts = make_facts(5000, 9984, 150_000, symbol_exponent=ZIPF)
    bloom = build_filter(facts, 9984, 7)
    excess, absent = enumerated_excess(bloom, facts, np.arange(5000), 9984, 7)
    rate = measured_fill(bloom) ** 7
    surprise = excess - absent * rate
    assert surprise.var() > 1.5 * absent.mean() * rate * (1 - rate)


def popular_and_other_rates(bloom, random_hashes, vocabulary, num_hashes):
    """The counts for the most popular hundredth of the symbols and for the rest, of TRIALS each."""
    rng = np.random.default_rng(7)
    popular = rng.integers(0, vocabulary // 100, TRIALS)
    others = rng.integers(vocabulary // 100, vocabulary, TRIALS)
    return (
        ask(bloom, random_hashes(TRIALS, 3), popular, num_hashes),
        ask(bloom, random_hashes(TRIALS, 4), others, num_hashes),
    )


@pytest.mark.parametrize("vocabulary", [1000, 10_000])
def test_the_rate_does_not_depend_on_popularity(
    make_facts, build_filter, random_hashes, binomial_interval, vocabulary
):
    facts = make_facts(5000, vocabulary, 150_000, symbol_exponent=ZIPF)
    bloom = build_filter(facts, vocabulary, 7)
    popular, others = popular_and_other_rates(bloom, random_hashes, vocabulary, 7)
    low, high = binomial_interval(TRIALS, measured_fill(bloom) ** 7)
    assert low <= popular <= high
    assert low <= others <= high


def test_without_the_rotation_popular_symbols_err_more(make_facts, random_hashes, binomial_interval):
    """Shows that the test before can fail: the same filter with windows that are not rotated."""
    num_words, num_hashes = 2**14, 7

    def bits_of(hashes, entities, symbols):
        """The words and bits of facts, int64[k, n] and uint64[n]."""
        own = [[position(h, (1, 2), j, num_words)[0] for h in hashes.tolist()] for j in range(num_hashes)]
        return (np.array(own)[:, entities] + symbols // 64) % num_words, (symbols % 64).astype(np.uint64)

    def ask_without_rotation(seed, symbols):
        words, bits = bits_of(random_hashes(len(symbols), seed), np.arange(len(symbols)), symbols)
        return int((table[words] >> bits & np.uint64(1)).all(axis=0).sum())

    facts = make_facts(5000, 1000, 150_000, symbol_exponent=ZIPF)
    table = np.zeros(num_words, np.uint64)
    words, bits = bits_of(facts.hashes, facts.entities, facts.symbols)
    np.bitwise_or.at(table, words, np.uint64(1) << bits)
    rng, trials = np.random.default_rng(7), 5_000
    popular = ask_without_rotation(3, rng.integers(0, 10, trials))
    others = ask_without_rotation(4, rng.integers(10, 1000, trials))
    fill = np.bitwise_count(table).sum() / (64 * num_words)
    _, high = binomial_interval(trials, fill**num_hashes)
    assert popular > 2 * high
    assert popular > 2 * others
