"""Which structure a membership feature is kept in, and for how many false symbols."""

import math

import numpy as np
import pytest

from feast_sketch_store.errors import SettingsError
from feast_sketch_store.structures.choice import (
    ERROR_RATE,
    FALSE_PER_READ,
    MEMORY,
    NOISE_RATIO,
    Popularity,
    Target,
    choose,
    filter_bits,
    listing_bits,
    set_bits,
)
from feast_sketch_store.structures.sizing import FactClass, TieredFacts, expected_fill, size_for_rates
from feast_sketch_store.succinct.fingerprints import expected_bits

RATE = 1e-5
NUM_ROWS, VOCABULARY = 2000, 100
# From 1,000 rows for the most popular symbol to 10 for the last.
COUNTS = 1000 // np.arange(1, VOCABULARY + 1)
KNOWN = Popularity(COUNTS, NUM_ROWS)
FACTS = int(COUNTS.sum())
PER_ROW = FACTS / NUM_ROWS


@pytest.fixture(autouse=True)
def _few_fills(monkeypatch):
    """Tiers are tried at many fills, which takes time and changes little."""
    monkeypatch.setattr("feast_sketch_store.structures.sizing._TIER_FILLS", (0.4, 0.5, 0.6, 0.7))


def choice(measure, amount, structure="auto", known=KNOWN, is_listed=False):
    return choose({"x": Target(measure, amount, structure)}, {"x": known}, RATE, is_listed)["x"]


def false_per_read(facts, known=KNOWN):
    """What a table of its own makes a read show too many."""
    geometry = size_for_rates([facts])
    fill = expected_fill([facts], geometry.hashes, geometry.num_bits)
    if isinstance(facts, TieredFacts):
        return facts.expected_false(geometry.hashes[0], fill)
    return known.mean_absent * fill ** len(geometry.hashes[0])


@pytest.mark.parametrize(
    ("measure", "amount", "wanted"),
    [
        (ERROR_RATE, 0.01, 0.01 * (VOCABULARY - PER_ROW)),
        (NOISE_RATIO, 0.5, 0.5 * PER_ROW),
        (FALSE_PER_READ, 2.0, 2.0),
    ],
)
@pytest.mark.parametrize(("structure", "kind"), [("uniform", FactClass), ("tiers", TieredFacts)])
def test_a_filter_shows_as_many_false_symbols_as_wanted(measure, amount, wanted, structure, kind):
    facts = choice(measure, amount, structure)
    assert type(facts) is kind
    assert facts.num_items == FACTS
    assert 0.95 * wanted <= false_per_read(facts) <= wanted * (1 + 1e-9)


@pytest.mark.parametrize("measure", [ERROR_RATE, NOISE_RATIO, FALSE_PER_READ, MEMORY])
def test_sets_that_are_asked_for_are_sets(measure):
    assert choice(measure, 0.01, "sets") is None


def test_an_error_rate_makes_a_uniform_filter_by_default():
    assert choice(ERROR_RATE, 1e-9, is_listed=True) == FactClass(FACTS, 1e-9)


@pytest.mark.parametrize("structure", ["uniform", "tiers"])
@pytest.mark.parametrize("num_bytes", [FACTS / 4, FACTS, 1.5 * FACTS])
def test_a_filter_fits_in_the_memory_and_uses_it(structure, num_bytes):
    facts = choice(MEMORY, num_bytes, structure)
    assert 0.97 * 8 * num_bytes <= filter_bits(facts) <= 8 * num_bytes + 1


def test_tiers_of_the_same_memory_show_less():
    uniform, tiers = (choice(MEMORY, 0.6 * FACTS, structure) for structure in ("uniform", "tiers"))
    assert false_per_read(tiers) < 0.8 * false_per_read(uniform)


@pytest.mark.parametrize("structure", ["uniform", "tiers"])
def test_more_memory_than_is_of_use_is_taken_for_the_lowest_rate(structure):
    facts = choice(MEMORY, 1e12, structure)
    assert filter_bits(facts) < 100 * FACTS


@pytest.mark.parametrize("structure", ["uniform", "tiers"])
def test_memory_that_holds_no_filter_is_refused(structure):
    with pytest.raises(SettingsError, match=f"feature 'x' .* memory of 1: .* too few for {FACTS} facts"):
        choice(MEMORY, 1, structure)


def test_sets_are_chosen_if_they_fit_in_the_memory_with_their_list_of_rows():
    size = set_bits(KNOWN) / 8
    assert choice(MEMORY, size + 1, is_listed=True) is None
    assert isinstance(choice(MEMORY, size - 1, is_listed=True), TieredFacts)
    # A filter needs a symbol of each row, so a list may take as much more.
    assert choice(MEMORY, size + expected_bits(NUM_ROWS, RATE) / 8 + 2 * NUM_ROWS + 1) is None
    assert isinstance(choice(MEMORY, size + listing_bits(NUM_ROWS, RATE) / 8 - 1), TieredFacts)


@pytest.mark.parametrize("measure", [NOISE_RATIO, FALSE_PER_READ])
def test_sets_are_chosen_exactly_where_they_are_smaller_with_the_list(measure):
    listing, chosen = listing_bits(NUM_ROWS, RATE), []
    assert listing > 0
    for amount in np.geomspace(1e-6, 10, 12):
        in_filter, in_sets = filter_bits(choice(measure, amount, "tiers")), set_bits(KNOWN)
        is_set = choice(measure, amount) is None
        assert is_set == (in_sets + listing < in_filter)
        # In a layer that lists its rows anyway, the list costs nothing.
        assert (choice(measure, amount, is_listed=True) is None) == (in_sets < in_filter)
        chosen.append(is_set)
    assert True in chosen
    assert False in chosen


def test_features_share_the_cost_of_the_list():
    listing = listing_bits(NUM_ROWS, RATE)
    amount = next(
        amount
        for amount in np.geomspace(10, 1e-9, 50)
        if set_bits(KNOWN) + 0.6 * listing < filter_bits(choice(NOISE_RATIO, amount, "tiers"))
    )
    target = Target(NOISE_RATIO, float(amount))
    assert choice(NOISE_RATIO, float(amount)) is not None
    both = choose(dict.fromkeys("ab", target), dict.fromkeys("ab", KNOWN), RATE, False)
    assert both == {"a": None, "b": None}
    beside = choose(
        {"a": target, "b": Target(ERROR_RATE, 0.1, "sets")}, dict.fromkeys("ab", KNOWN), RATE, False
    )
    assert beside == {"a": None, "b": None}
    fixed = choose({"a": target, "b": Target(ERROR_RATE, 0.1)}, dict.fromkeys("ab", KNOWN), RATE, True)
    assert fixed == {"a": None, "b": FactClass(FACTS, 0.1)}


EDGES = {
    "no symbols, no rows": Popularity(np.zeros(0, np.int64), 0),
    "no symbols": Popularity(np.zeros(0, np.int64), 5),
    "symbols without facts": Popularity(np.zeros(3, np.int64), 5),
    "one row": Popularity(np.ones(3, np.int64), 1),
    "a symbol that all rows have": Popularity(np.array([50, 50, 7, 1]), 50),
    "only symbols that all rows have": Popularity(np.array([50, 50]), 50),
    "one fact": Popularity(np.array([1]), 50),
}


@pytest.mark.parametrize("known", EDGES.values(), ids=EDGES)
@pytest.mark.parametrize("structure", ["auto", "uniform", "tiers", "sets"])
@pytest.mark.parametrize(
    ("measure", "amount"), [(ERROR_RATE, 0.01), (NOISE_RATIO, 0.1), (FALSE_PER_READ, 0.5), (MEMORY, 1000)]
)
def test_edges_can_be_kept_in_any_way(known, structure, measure, amount):
    facts = choice(measure, amount, structure, known)
    if facts is None:
        assert structure in ("sets", "auto")
        return
    assert facts.num_items == known.num_facts
    if known.num_facts and measure != MEMORY:
        wanted = {
            ERROR_RATE: amount * known.mean_absent,
            NOISE_RATIO: amount * known.num_facts / known.num_rows,
            FALSE_PER_READ: amount,
        }[measure]
        assert false_per_read(facts, known) <= wanted + 1e-9


def test_a_symbol_that_all_rows_have_takes_one_hash():
    known = Popularity(np.array([10_000, *[20] * 500]), 10_000)
    facts = choice(FALSE_PER_READ, 0.01, "tiers", known)
    hashes = size_for_rates([facts]).hashes[0]
    assert hashes[0] == 0
    assert len(hashes) > 10
    assert set(hashes[1:]) == {1}


def test_nothing_is_chosen_for_no_features():
    assert choose({}, {}, RATE, False) == {}


def test_bits_of_a_list_grow_with_what_an_unknown_entity_may_cost_less():
    assert listing_bits(0, RATE) == 0
    per_row = listing_bits(10**6, 1e-5) / 10**6
    # Its fingerprint and offset, less log2(1 / rate) / ln 2 of a shape.
    fingerprint = expected_bits(10**6, 1e-5) / 10**6
    assert 17 < fingerprint < 25
    assert per_row == pytest.approx(fingerprint + 16 - math.log2(1e5) / math.log(2))
