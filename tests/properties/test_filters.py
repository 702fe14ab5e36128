"""The filter against a set of facts; positions of bits against numpy.unpackbits."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from feast_sketch_store.succinct import ShiftingBloomFilterBuilder, SymbolQuery
from tests.helpers.filters import add_facts, contains_facts, measured_fill, windows
from tests.oracle.bits import set_bits

REPEATABLE = settings(derandomize=True, deadline=None, database=None)
NUM_ENTITIES = 8
HALVES = st.integers(0, 2**64 - 1)


@st.composite
def filters(draw):
    """A filter of some facts: the facts, hashes of entities, k, words of a window and the filter."""
    window_words = draw(st.integers(1, 7))
    num_hashes = draw(st.integers(1, 9))
    hashes = draw(arrays.arrays(np.uint64, (NUM_ENTITIES, 2), elements=HALVES))
    facts = draw(st.sets(st.tuples(st.integers(0, NUM_ENTITIES - 1), st.integers(0, 64 * window_words - 1))))
    builder = ShiftingBloomFilterBuilder(
        draw(st.integers(0, 3000)), window_words, (draw(HALVES), draw(HALVES))
    )
    entities, symbols = np.array(sorted(facts), np.int64).reshape(-1, 2).T
    add_facts(builder, hashes, entities, symbols, num_hashes)
    return facts, hashes, num_hashes, window_words, builder.build()


def facts_in(answers):
    indptr, symbols = set_bits(answers)
    entities = np.repeat(np.arange(len(answers)), np.diff(indptr))
    return set(zip(entities.tolist(), symbols.tolist(), strict=True))


@REPEATABLE
@given(filters())
def test_no_added_fact_is_definitely_absent(drawn):
    facts, hashes, num_hashes, window_words, bloom = drawn
    assert facts_in(windows(bloom, hashes, SymbolQuery(0, 64 * window_words, num_hashes))) >= facts


@REPEATABLE
@given(filters(), st.data())
def test_a_window_answers_as_single_questions_do(drawn, data):
    _, hashes, num_hashes, window_words, bloom = drawn
    first_word = data.draw(st.integers(0, window_words - 1))
    num_words = data.draw(st.integers(1, window_words - first_word))
    entities = np.repeat(np.arange(NUM_ENTITIES), 64 * num_words)
    symbols = np.tile(np.arange(64 * num_words), NUM_ENTITIES)
    single = contains_facts(bloom, hashes[entities], 64 * first_word + symbols, num_hashes)
    found = windows(bloom, hashes, SymbolQuery(first_word, 64 * num_words, num_hashes))
    assert facts_in(found) == set(zip(entities[single].tolist(), symbols[single].tolist(), strict=True))


@REPEATABLE
@given(filters())
def test_a_filter_has_no_more_ones_than_were_set(drawn):
    facts, _, num_hashes, _, bloom = drawn
    ones = round(measured_fill(bloom) * bloom.num_bits)
    assert min(1, len(facts)) <= ones <= num_hashes * len(facts)
