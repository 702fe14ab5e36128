"""Static functions: every key has its number, and others are absent at the rate that is asked for."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feast_sketch_store import kernel
from feast_sketch_store.kernel import masks_of
from feast_sketch_store.succinct.static_function import StaticFunction, expected_bytes, width_for
from tests.helpers.cases import for_each
from tests.helpers.reads import look_up, look_up_slots
from tests.oracle import static

REPEATABLE = settings(derandomize=True, deadline=None, database=None, max_examples=40)


def keys_of(num_keys, seed=1):
    return np.unique(np.random.default_rng(seed).integers(0, 2**64, num_keys, np.uint64))


@REPEATABLE
@given(st.integers(0, 700), st.integers(1, 300), st.sampled_from([0.4, 1e-3, 1e-9]), st.integers(0, 99))
def test_every_key_has_its_number(num_keys, num_symbols, rate, seed):
    hashes = np.random.default_rng(seed).permutation(keys_of(num_keys, seed))
    numbers = np.random.default_rng(seed).integers(0, num_symbols, len(hashes))
    function = StaticFunction.build(hashes, numbers, num_symbols, rate)
    assert look_up(function, hashes).tolist() == numbers.tolist()
    assert num_symbols / 2**function.width <= rate * (1 + 1e-9)


def test_so_many_keys_that_some_are_left_over():
    hashes = keys_of(60_000)
    numbers = np.arange(len(hashes)) % 5
    function = StaticFunction.build(hashes, numbers, 5, 1e-5)
    assert 0 < len(function.left_hashes) < 0.005 * len(hashes)
    assert (look_up(function, hashes) == numbers).all()
    assert function.size_bytes == pytest.approx(expected_bytes(len(hashes), 5, 1e-5), rel=0.01)
    # 1.03 times the bits of a slot, where three probes take 1.23.
    assert 8 * function.size_bytes / len(hashes) < 1.035 * 19


@for_each("num_keys", [0, 1, 2, 40, 5_000, 60_000])
def test_other_keys_are_absent_at_the_rate(num_keys):
    """Four standard deviations.

    The equation of another key is often a sum of those of keys, whose numbers are all 0 here.
    """
    function = StaticFunction.build(keys_of(num_keys), np.zeros(num_keys, np.int64), 3, 0.01)
    others = np.random.default_rng(9).integers(0, 2**64, 200_000, np.uint64)
    wrong = int((look_up(function, others) >= 0).sum())
    assert function.width == 9
    rate = 3 / 2**9
    assert abs(wrong - 200_000 * rate) < 4 * math.sqrt(200_000 * rate)


@for_each(("num_symbols", "rate", "width"), [(5, 1e-5, 19), (8, 1e-5, 20), (1, 0.5, 1), (2, 0.5, 2)])
def test_bits_of_a_slot(num_symbols, rate, width):
    assert width_for(num_symbols, rate) == width


def test_what_takes_too_many_bits_is_refused():
    with pytest.raises(ValueError, match="more than 62 bits"):
        StaticFunction.build(keys_of(3), np.zeros(3, np.int64), 2**50, 1e-5)


@pytest.mark.slow
@REPEATABLE
@given(st.integers(0, 300), st.integers(1, 62), st.integers(0, 99))
def test_functions_are_built_and_read_as_equations_say(num_keys, width, seed):
    hashes, rng = keys_of(num_keys, seed), np.random.default_rng(seed)
    values = rng.integers(0, 2**width, len(hashes), np.uint64)
    num_slots = 64 * int(rng.integers(1, 6))  # often too few for all
    coefficients, results = np.zeros((2, num_slots), np.uint64)
    left = np.zeros(len(hashes), np.bool_)
    kernel.band_rows(hashes, values, num_slots, coefficients, results, left)
    wanted = static.band_rows(hashes, values, num_slots)
    assert (coefficients.tolist(), results.tolist(), left.tolist()) == wanted
    free = coefficients == 0
    results[free] = rng.integers(0, 2**64, int(free.sum()), np.uint64)
    words = np.zeros((num_slots // 64 + 1, width), np.uint64)
    kernel.solve_slots(coefficients, results, width, words)
    slots = static.solve_slots(coefficients, results, width)
    assert static.slots_of(words, width) == slots + [0] * 64
    asked = np.concatenate((hashes, rng.integers(0, 2**64, 50, np.uint64)))
    found = look_up_slots(words.reshape(-1), width, num_slots, asked)
    assert found.tolist() == static.look_up(words, width, num_slots, asked)
    assert (found[: len(hashes)] ^ masks_of(hashes, width) == values)[~left].all()


@for_each("num_slots", [0, 63, 65, -64, 2**32])
def test_slots_that_cannot_be_are_refused(num_slots):
    with pytest.raises(ValueError, match="do not fit"):
        look_up_slots(np.zeros(8, np.uint64), 4, num_slots, keys_of(3))


@for_each(
    "change",
    [
        {"width": 0},
        {"width": 63},
        {"width": 7},
        {"num_symbols": 10**6},
        {"num_symbols": -1},
        {"words": np.zeros(4, np.uint64)},
        {"left_hashes": np.array([5, 5], np.uint64), "left_numbers": np.array([0, 0])},
        {"left_hashes": np.array([5], np.uint64), "left_numbers": np.array([99])},
        {"left_numbers": np.array([1])},
    ],
)
def test_parts_that_do_not_fit_are_refused(change):
    good = {
        "words": np.zeros(20, np.uint64),
        "width": 10,
        "num_symbols": 3,
        "left_hashes": np.zeros(0, np.uint64),
        "left_numbers": np.zeros(0, np.int64),
    }
    assert StaticFunction(**good).num_slots == 64
    with pytest.raises(ValueError, match=r"symbols|slots|keys"):
        StaticFunction(**{**good, **change})
