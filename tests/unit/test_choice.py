"""Which structure a membership feature is kept in, and for how many false symbols."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from feast_sketch_store.errors import SettingsError
from feast_sketch_store.structures.choice import LayerOverhead, StructureSelector
from feast_sketch_store.structures.costs import Popularity, index_bytes, packed_bytes, sets_bytes, table_bytes
from feast_sketch_store.structures.goals import ERROR_RATE, MEMORY, NOISE_RATIO, Goal
from feast_sketch_store.structures.sizing import FactClass, WeightedFacts, size_for_rates
from tests.helpers.cases import case, for_each
from tests.helpers.filters import expected_fill
from tests.helpers.length import by_length


def overhead_of(num_rows, rate, is_listed):
    """A layer without scalars, whose rows have one shape and one timestamp."""
    index = index_bytes(num_rows, rate)
    return LayerOverhead(is_listed, (FactClass(num_rows, rate),), 1, 0.0, index, packed_bytes(num_rows, 1))


RATE = 1e-5
NUM_ROWS, VOCABULARY = 2000, 100
# From 1,000 rows for the most popular symbol to 10 for the last.
COUNTS = 1000 // np.arange(1, VOCABULARY + 1)
KNOWN = Popularity(COUNTS, NUM_ROWS)
FACTS = int(COUNTS.sum())
PER_ROW = FACTS / NUM_ROWS
TWO = dict.fromkeys("ab", KNOWN)
OVERHEAD = overhead_of(NUM_ROWS, RATE, False)


@pytest.fixture(autouse=True)
def _few_fills(monkeypatch):
    """Weighted filters are tried at many fills, which takes time and changes little."""
    monkeypatch.setattr("feast_sketch_store.structures.sizing._WEIGHTED_FILLS", (0.4, 0.5, 0.6, 0.7))


def choose(goals, popularity, overhead, growth=1.0):
    """Per feature the facts of its filter, or None if it is in sets."""
    offers = StructureSelector(goals, popularity, overhead).offers(growth)
    assert {offer.kind for offer in offers.values()} <= {"bloom", "sets"}
    return {name: offer.plan.facts if offer.kind == "bloom" else None for name, offer in offers.items()}


def choice(measure, amount, structure="auto", known=KNOWN, is_listed=False):
    overhead = overhead_of(known.num_rows, RATE, is_listed)
    return choose({"x": Goal(measure, amount, structure)}, {"x": known}, overhead)["x"]


def filter_bits(facts):
    """Bits of a table of its own."""
    return size_for_rates([facts]).num_bits


def false_per_read(facts, known=KNOWN):
    """What a table of its own makes a read show too many."""
    geometry = size_for_rates([facts])
    fill = expected_fill([facts], geometry.hashes, geometry.num_bits)
    if isinstance(facts, WeightedFacts):
        return facts.expected_false(geometry.hashes[0], fill)
    return known.mean_absent * fill ** len(geometry.hashes[0])


@for_each(
    ("measure", "amount", "wanted"),
    [(ERROR_RATE, 0.01, 0.01 * (VOCABULARY - PER_ROW)), (NOISE_RATIO, 0.5, 0.5 * PER_ROW)],
)
@for_each(("structure", "kind"), [("bloom", FactClass), ("weighted_bloom", WeightedFacts)])
def test_a_filter_shows_as_many_false_symbols_as_wanted(measure, amount, wanted, structure, kind):
    facts = choice(measure, amount, structure)
    assert type(facts) is kind
    assert facts.num_items == FACTS
    assert 0.95 * wanted <= false_per_read(facts) <= wanted * (1 + 1e-9)


@for_each("measure", [ERROR_RATE, NOISE_RATIO, MEMORY])
def test_sets_that_are_asked_for_are_sets(measure):
    assert choice(measure, 0.01, "sets") is None


def test_an_error_rate_makes_a_bloom_filter_by_default():
    assert choice(ERROR_RATE, 1e-9, is_listed=True) == FactClass(FACTS, 1e-9)


@pytest.mark.slow
@for_each("structure", ["bloom", "weighted_bloom"])
@for_each("num_bytes", [FACTS / 4, FACTS, 1.5 * FACTS])
def test_a_filter_fits_in_the_memory_and_uses_it(structure, num_bytes):
    facts = choice(MEMORY, num_bytes, structure, is_listed=True)
    assert 0.97 * 8 * num_bytes <= filter_bits(facts) <= 8 * num_bytes + 1


def test_a_weighted_filter_of_the_same_memory_shows_less():
    plain, weighted = (choice(MEMORY, 0.6 * FACTS, structure) for structure in ("bloom", "weighted_bloom"))
    assert false_per_read(weighted) < 0.8 * false_per_read(plain)


@for_each("structure", ["bloom", "weighted_bloom"])
def test_more_memory_than_is_of_use_is_taken_for_the_lowest_rate(structure):
    facts = choice(MEMORY, 1e12, structure)
    assert filter_bits(facts) < 100 * FACTS


@for_each("structure", ["bloom", "weighted_bloom"])
def test_memory_that_holds_no_filter_is_refused(structure):
    with pytest.raises(SettingsError, match=f"feature 'x' .* memory of 1 bytes: .* too few for {FACTS}"):
        choice(MEMORY, 1, structure)


def layer_bytes(*facts, sets=0, is_listed=False, lists=False):
    """Bytes of a layer with facts in its filter and features like KNOWN in sets, worked out anew."""
    symbols = 2 * len(facts)  # words of the windows of 100 symbols
    if is_listed or lists or sets:
        num_bits = size_for_rates(facts).num_bits if facts else 1
        listed = 0 if is_listed else index_bytes(NUM_ROWS, RATE) + packed_bytes(NUM_ROWS, 1)
        return table_bytes(num_bits, symbols) + listed + sets_bytes([KNOWN] * sets)
    return table_bytes(size_for_rates([*facts, FactClass(NUM_ROWS, RATE)]).num_bits, symbols + 1)


@for_each("is_listed", [False, True])
def test_sets_are_chosen_exactly_where_the_layer_is_smaller(is_listed):
    chosen = []
    for amount in np.geomspace(1e-6, 10, 12):
        facts = choice(NOISE_RATIO, amount, "weighted_bloom")
        in_filter = min(layer_bytes(facts, is_listed=is_listed, lists=lists) for lists in (False, True))
        in_sets = layer_bytes(sets=1, is_listed=is_listed)
        chosen.append(choice(NOISE_RATIO, amount, is_listed=is_listed) is None)
        if not 0.995 <= in_sets / in_filter <= 1.005:
            assert chosen[-1] == (in_sets < in_filter)
    assert True in chosen
    assert False in chosen
    assert chosen == sorted(chosen, reverse=True)


@pytest.mark.has_long_form
def test_features_share_the_cost_of_the_list():
    often_wrong = overhead_of(NUM_ROWS, 0.1, False)  # then a list takes more than rows in a filter

    def chosen(amount, **others):
        targets = {"a": Goal(NOISE_RATIO, amount), **others}
        return choose(targets, dict.fromkeys(targets, KNOWN), often_wrong)["a"]

    def together(amount):
        return chosen(amount, b=Goal(NOISE_RATIO, amount))

    few = [10, 3, *np.geomspace(1, 0.1, 30).tolist(), 1e-3, 1e-6, 1e-9]
    amounts = by_length(few, np.geomspace(10, 1e-9, 240).tolist())
    alone, both = ([a for a in amounts if how(a) is None] for how in (chosen, together))
    with_sets = [a for a in amounts if chosen(a, b=Goal(ERROR_RATE, 0.1, "sets")) is None]
    assert len(alone) < len(both) < len(with_sets)
    assert set(alone) < set(both) < set(with_sets)


def test_a_bloom_filter_stays_one_beside_sets():
    listed = overhead_of(NUM_ROWS, RATE, True)
    fixed = choose({"a": Goal(NOISE_RATIO, 1e-4), "b": Goal(ERROR_RATE, 0.1)}, TWO, listed)
    assert fixed == {"a": None, "b": FactClass(FACTS, 0.1)}


def test_of_several_features_those_are_in_sets_that_gain_most():
    """No other choice of sets makes a smaller layer; their tables and offsets are shared."""
    amounts = {"a": 1e-6, "b": 0.03, "c": 0.3, "d": 3.0, "e": 30.0}
    targets = {name: Goal(NOISE_RATIO, amount) for name, amount in amounts.items()}
    popularity = dict.fromkeys(targets, KNOWN)
    for is_listed in (False, True):
        chosen = choose(targets, popularity, overhead_of(NUM_ROWS, RATE, is_listed))
        filters = {name: choice(NOISE_RATIO, amount, "weighted_bloom") for name, amount in amounts.items()}
        sizes = {
            left: layer_bytes(*(filters[n] for n in left), sets=len(targets) - len(left), is_listed=is_listed)
            for size in range(len(targets) + 1)
            for left in itertools.combinations(targets, size)
        }
        kept = tuple(name for name, facts in chosen.items() if facts is not None)
        assert sizes[kept] <= 1.005 * min(sizes.values())
        assert 0 < len(kept) < len(targets)


def test_scalars_that_are_smaller_as_columns_weigh_in():
    amount = next(a for a in np.geomspace(10, 1e-9, 50) if choice(NOISE_RATIO, float(a)) is None) * 30
    assert choice(NOISE_RATIO, float(amount)) is not None
    scalars = [FactClass(NUM_ROWS, 1e-8)] * 5
    overhead = replace(
        OVERHEAD,
        facts=[*OVERHEAD.facts, *scalars],
        columns_bytes=5 * packed_bytes(NUM_ROWS, 8),
        may_list=False,
    )
    assert choose({"x": Goal(NOISE_RATIO, float(amount))}, {"x": KNOWN}, overhead)["x"] is None


@for_each("structure", ["auto", "bloom", "weighted_bloom"])
@for_each("amount", [1e-34, 1e-40, 1e-320])
def test_what_no_filter_keeps_is_in_sets(amount, structure):
    assert choice(NOISE_RATIO, amount, structure) is None
    assert choice(NOISE_RATIO, amount, structure, is_listed=True) is None


def test_what_no_table_keeps_together_is_in_sets():
    kept = {
        rate: choose(
            {"x": Goal(ERROR_RATE, 0.1)}, {"x": KNOWN}, replace(OVERHEAD, facts=[FactClass(10, rate)])
        )["x"]
        for rate in (1e-9, 1e-33, 1e-40)
    }
    assert kept == {1e-9: FactClass(FACTS, 0.1), 1e-33: FactClass(FACTS, 0.1), 1e-40: None}


@pytest.mark.slow
@for_each("growth", [1.0, 1.5, 3.0])
def test_tables_that_have_to_be_larger_are_chosen_less(growth):
    chosen = [
        choose({"x": Goal(NOISE_RATIO, float(amount))}, {"x": KNOWN}, OVERHEAD, growth)["x"] is None
        for amount in np.geomspace(1e-6, 100, 30)
    ]
    plain = [choice(NOISE_RATIO, float(amount)) is None for amount in np.geomspace(1e-6, 100, 30)]
    assert sum(chosen) > sum(plain) or growth == 1
    assert all(now or not before for now, before in zip(chosen, plain, strict=True))


EDGES = {
    "no symbols, no rows": Popularity(np.zeros(0, np.int64), 0),
    "no symbols": Popularity(np.zeros(0, np.int64), 5),
    "symbols without facts": Popularity(np.zeros(3, np.int64), 5),
    "one row": Popularity(np.ones(3, np.int64), 1),
    "a symbol that all rows have": Popularity(np.array([50, 50, 7, 1]), 50),
    "only symbols that all rows have": Popularity(np.array([50, 50]), 50),
    "one fact": Popularity(np.array([1]), 50),
}


@for_each("known", EDGES.values())
def test_edges_can_be_kept_in_any_way(known):
    goals = [(ERROR_RATE, 0.01), (NOISE_RATIO, 0.1), (MEMORY, 1000)]
    structures = ["auto", "bloom", "weighted_bloom", "sets"]
    for structure, (measure, amount) in itertools.product(structures, goals):
        with case(structure, measure):
            facts = choice(measure, amount, structure, known)
            if facts is None:
                assert structure in ("sets", "auto")
                continue
            assert facts.num_items == known.num_facts
            if known.num_facts and measure != MEMORY:
                wanted = {
                    ERROR_RATE: amount * known.mean_absent,
                    NOISE_RATIO: amount * known.num_facts / known.num_rows,
                }[measure]
                assert false_per_read(facts, known) <= wanted + 1e-9


def test_a_symbol_that_all_rows_have_takes_one_hash():
    known = Popularity(np.array([10_000, *[20] * 500]), 10_000)
    facts = choice(NOISE_RATIO, 0.005, "weighted_bloom", known)
    hashes = size_for_rates([facts]).hashes[0]
    assert hashes[0] == 0
    assert len(hashes) > 10
    assert set(hashes[1:]) == {1}


@for_each("structure", ["auto", "bloom", "weighted_bloom", "sandwiched_bloom"])
@for_each(("measure", "amount"), [(NOISE_RATIO, 0.1), (ERROR_RATE, 0.01)])
@for_each("num_lacking", [0, 1])
def test_an_offer_tells_no_more_false_symbols_than_rows_lack(measure, amount, structure, num_lacking):
    known = Popularity(np.full(20, NUM_ROWS - num_lacking), NUM_ROWS)
    offer = StructureSelector({"x": Goal(measure, amount, structure)}, {"x": known}, OVERHEAD).offers()["x"]
    assert 0 <= offer.false_per_read <= 20 * num_lacking / NUM_ROWS


def test_nothing_is_chosen_for_no_features():
    assert choose({}, {}, OVERHEAD) == {}
