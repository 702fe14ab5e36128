"""Sizing keeps what it promises for any mix of classes."""

import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from feast_sketch_store.structures.sizing import MAX_NUM_HASHES, FactClass, plain_for_bits, size_for_rates
from tests.helpers.filters import expected_fill, ideal_bits
from tests.helpers.length import by_length

pytestmark = pytest.mark.has_long_form

REPEATABLE = settings(derandomize=True, deadline=None, database=None)
FEWER = settings(REPEATABLE, max_examples=by_length(8, 20))  # a search of 60 sizings an example
# Settings take rates from 1e-9 to 0.5; a vocabulary of a million divides them further.
RATES = st.floats(math.log(1e-15), math.log(0.5)).map(math.exp)
CLASSES = st.lists(st.builds(FactClass, st.integers(0, 10**9), RATES), min_size=1, max_size=6)
SOME_FACTS = CLASSES.filter(lambda classes: sum(c.num_items for c in classes) >= 1000)


def rates_at(classes, geometry, num_bits):
    fill = expected_fill(classes, geometry.hashes, num_bits)
    return [fill ** len(hashes) for hashes in geometry.hashes]


@REPEATABLE
@given(CLASSES)
@example([FactClass(0, 0.5)])
@example([FactClass(1, 1e-15), FactClass(10**9, 0.5)])
def test_every_class_keeps_its_rate(classes):
    geometry = size_for_rates(classes)
    for c, rate in zip(classes, rates_at(classes, geometry, geometry.num_bits), strict=True):
        assert rate <= c.false_positive_rate * (1 + 1e-6)
    assert all(1 <= len(hashes) <= MAX_NUM_HASHES for hashes in geometry.hashes)


@REPEATABLE
@given(SOME_FACTS)
def test_a_table_is_never_smaller_than_the_ideal(classes):
    assert size_for_rates(classes).num_bits >= ideal_bits(classes) * (1 - 1e-6)


@REPEATABLE
@given(CLASSES, st.integers(0, 5), st.integers(1, 10**6))
def test_more_facts_never_take_fewer_bits(classes, which, more):
    which %= len(classes)
    grown = [*classes]
    grown[which] = FactClass(classes[which].num_items + more, classes[which].false_positive_rate)
    assert size_for_rates(grown).num_bits >= size_for_rates(classes).num_bits


@REPEATABLE
@given(CLASSES, st.integers(1, 10**9), st.integers(0, 10**9))
def test_more_bits_with_the_same_hashes_never_make_a_rate_worse(classes, num_bits, more):
    geometry = size_for_rates(classes)
    pairs = zip(
        rates_at(classes, geometry, num_bits + more), rates_at(classes, geometry, num_bits), strict=True
    )
    assert all(rate <= before for rate, before in pairs)


FACTS = st.integers(1000, 10**9)


@FEWER
@given(FACTS, st.floats(2, 50), st.floats(1, 3))
def test_a_budget_is_kept_and_a_larger_one_is_never_worse(num_items, bits_per_fact, factor):
    num_bits = math.ceil(bits_per_fact * num_items)
    small, large = (plain_for_bits(num_items, n) for n in (num_bits, math.ceil(num_bits * factor)))
    assert size_for_rates([small]).num_bits <= num_bits * (1 + 1e-6) + 1
    assert large.false_positive_rate <= small.false_positive_rate * (1 + 1e-6)
