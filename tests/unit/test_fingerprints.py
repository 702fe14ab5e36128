"""The index of fingerprints finds each row, and others only if they share the fingerprint of one."""

import numpy as np
import pytest

from feast_sketch_store.kernel import fingerprints_of
from feast_sketch_store.succinct import EliasFano, FingerprintIndex
from feast_sketch_store.succinct.fingerprints import expected_bits, expected_twins, range_for
from tests.helpers.cases import for_each
from tests.helpers.reads import find_rows


def hashes_for(num_rows, seed=1):
    """Hashes in ascending order."""
    return np.unique(np.random.default_rng(seed).integers(0, 2**64, num_rows, np.uint64))


def test_fingerprints_are_the_upper_half_of_a_product():
    hashes = np.append(hashes_for(200), np.array([0, 2**64 - 1], np.uint64))
    for size in (1, 3, 2**32 - 1, 2**32, 2**63, 10**18 + 7, 2**63 - 1):
        assert fingerprints_of(hashes, size).tolist() == [int(h) * size >> 64 for h in hashes]


@pytest.mark.parametrize("size", [1, 2, 3, 50])
def test_many_rows_with_the_same_fingerprint(monkeypatch, size):
    monkeypatch.setattr("feast_sketch_store.succinct.fingerprints.range_for", lambda num_rows, rate: size)
    hashes = hashes_for(1000)
    index = FingerprintIndex.build(hashes, 0.5)
    assert index.twins.tolist() == hashes.tolist()
    assert find_rows(index, hashes).tolist() == list(range(1000))
    assert find_rows(index, hashes_for(1000, 2)).tolist() == [-1] * 1000


@for_each(
    ("num_rows", "rate", "size"),
    [
        (0, 0.01, 100),
        (1, 0.5, 64),
        (1, 1e-5, 100_000),
        (1000, 0.015625, 64_000),
        (10**9, 1e-9, 10**18),
        (10**9, 1e-12, 2**63),
    ],
)
def test_range_of_fingerprints(num_rows, rate, size):
    assert range_for(num_rows, rate) == pytest.approx(size, abs=2)
    assert size == 2**63 or num_rows / range_for(num_rows, rate) <= rate


@pytest.mark.parametrize(("num_rows", "rate"), [(20_000, 0.01), (50_000, 1e-3)])
def test_twins_are_as_many_as_expected(num_rows, rate):
    """Within five standard deviations; rows share fingerprints in pairs."""
    expected = expected_twins(num_rows, rate)
    found = len(FingerprintIndex.build(hashes_for(num_rows), rate).twins)
    assert expected > 40
    assert abs(found - expected) <= 5 * np.sqrt(2 * expected)


@for_each("num_rows", [1_000, 26_469, 100_000])
@for_each("rate", [1e-3, 1e-5, 1e-7])
def test_a_fingerprint_takes_two_bits_beside_its_rate(num_rows, rate):
    index = FingerprintIndex.build(hashes_for(num_rows), rate)
    rounding = 64 * 4 / num_rows  # parts have whole words
    assert 8 * index.size_bytes / num_rows <= np.log2(1 / rate) + 2.75 + 64 * rate + rounding
    assert 8 * index.size_bytes == pytest.approx(expected_bits(num_rows, rate), rel=0.01)


def parts_of(index):
    return {"fingerprints": index.fingerprints, "range": index.range, "twins": index.twins}


@for_each(
    "change",
    [
        {"range": 0},
        {"range": 2**63 + 1},
        {"range": 10**9},
        {"twins": np.array([5, 4], np.uint64)},
        {"twins": np.array([5, 5], np.uint64)},
        {"fingerprints": EliasFano.build(np.arange(100, dtype=np.uint64), 10_000_000)},
    ],
)
def test_parts_that_do_not_fit_are_refused(change):
    index = FingerprintIndex.build(hashes_for(100), 1e-5)
    with pytest.raises(ValueError, match="do not fit each other"):
        FingerprintIndex(**(parts_of(index) | change))
