"""The shifting Bloom filter: layout, wrapping, limits."""

import numpy as np
import pytest

from feast_sketch_store import kernel
from feast_sketch_store.kernel import MAX_NUM_HASHES
from feast_sketch_store.succinct import ShiftingBloomFilter, ShiftingBloomFilterBuilder, SymbolQuery, new_salt
from tests.helpers.cases import for_each
from tests.helpers.filters import add_facts, measured_fill

SALT = (0x0123456789ABCDEF, 0xFEDCBA9876543210)


def random_hashes(n, seed=1):
    return np.random.default_rng(seed).integers(0, 2**64, (n, 2), np.uint64)


def build(hashes, entities, symbols, *, num_bits, window_words, num_hashes, salt=SALT):
    builder = ShiftingBloomFilterBuilder(num_bits, window_words, salt)
    add_facts(builder, hashes, np.asarray(entities), np.asarray(symbols), num_hashes)
    return builder.build()


def test_the_head_is_repeated_behind_the_end():
    entities = np.repeat(np.arange(50), 10)
    symbols = np.arange(500) % 200
    bloom = build(random_hashes(50), entities, symbols, num_bits=1000, window_words=4, num_hashes=3)
    assert (bloom.num_words, bloom.num_bits, bloom.words.shape) == (16, 1024, (20,))
    assert bloom.words[16:].tolist() == bloom.words[:4].tolist()


@for_each(
    ("num_bits", "window_words", "num_words"), [(0, 1, 1), (1, 1, 1), (64, 1, 1), (65, 1, 2), (64, 10, 10)]
)
def test_a_table_holds_whole_words_and_at_least_one_window(num_bits, window_words, num_words):
    assert ShiftingBloomFilterBuilder(num_bits, window_words, SALT).build().num_words == num_words


@pytest.mark.parametrize("window_words", [1, 3, 10, 25, 40])
@pytest.mark.parametrize("num_threads", [1, 2, 3, 7])
def test_threads_make_the_same_table(monkeypatch, num_threads, window_words):
    """Each fills a part, which a window may run through to its end and beyond that of the table."""
    monkeypatch.setattr("feast_sketch_store.succinct.shifting_bloom._MIN_WORDS_PER_PART", 5)
    hashes, entities = random_hashes(30), np.repeat(np.arange(30), 20)
    symbols = np.random.default_rng(2).integers(0, 64 * window_words, len(entities))
    builder = ShiftingBloomFilterBuilder(64 * 40, window_words, SALT, num_threads)
    add_facts(builder, hashes, entities[:300], symbols[:300], 3)
    builder.measured_fill()  # and more may be added
    add_facts(builder, hashes, entities[300:], symbols[300:], 3)
    whole = build(hashes, entities, symbols, num_bits=64 * 40, window_words=window_words, num_hashes=3)
    assert builder.num_bits == whole.num_bits
    assert builder.measured_fill() == measured_fill(whole) > 0.3
    assert builder.build().words.tolist() == whole.words.tolist()


def test_salts_are_two_random_64_bit_integers():
    salts = {new_salt() for _ in range(100)}
    assert len(salts) == 100
    assert all(0 <= half < 2**64 for salt in salts for half in salt)


@for_each("symbol", [-1, 128, 2**31 - 1])
def test_a_symbol_outside_the_window_is_refused(symbol):
    builder = ShiftingBloomFilterBuilder(6400, 2, SALT)
    with pytest.raises(IndexError, match="window of 2 words holds 128"):
        add_facts(builder, random_hashes(1), np.zeros(2, np.int64), np.array([0, symbol]), 1)


def test_a_window_without_words_is_refused():
    with pytest.raises(ValueError, match="at least one word"):
        ShiftingBloomFilterBuilder(64, 0, SALT)


def test_a_table_beyond_32_bit_offsets_is_refused():
    with pytest.raises(ValueError, match="split the view"):
        ShiftingBloomFilterBuilder(64 * 2**32, 1, SALT)


@for_each("num_hashes", [-1, 0, MAX_NUM_HASHES + 1, 128, 2**40])
@for_each("num_entities", [0, 2])
def test_a_number_of_hashes_that_cannot_be_is_refused(num_hashes, num_entities):
    """The same limit, in the same words, whatever is asked."""
    words, hashes = np.zeros(12, np.uint64), random_hashes(num_entities)
    table, query = ShiftingBloomFilter(words, 10, SALT), SymbolQuery(0, 128, num_hashes)
    rows = hashes, np.zeros(0, np.int32), np.zeros(1, np.int64), None, np.zeros(0, np.int32)
    for refused in (
        lambda: table.possible_symbols(hashes, query),
        lambda: table.contains(hashes, query, np.zeros(3, np.int32)),
        lambda: kernel.touch_blocks(*table.question(hashes, query), 4, *np.ones((2, 3), np.uint8)),
        lambda: kernel.add_facts(words, 0, 10, 10, *SALT, *rows, 0, num_hashes, None),
    ):
        with pytest.raises(ValueError, match=f"^{num_hashes} hashes; a fact has 1 to {MAX_NUM_HASHES}$"):
            refused()
    most = SymbolQuery(0, 128, MAX_NUM_HASHES)
    assert not table.possible_symbols(hashes, most)[0].any()
