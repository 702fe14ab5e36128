"""Random facts of known distributions, and the interval that a measured count must lie in."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.succinct import ShiftingBloomFilter, ShiftingBloomFilterBuilder
from tests.helpers.filters import add_facts

SALT = (0x243F6A8885A308D3, 0x13198A2E03707344)
STANDARD_DEVIATIONS = 4


@dataclass(frozen=True)
class Facts:
    """Distinct (entity, symbol) pairs: ``entities`` and ``symbols`` are int64[m]."""

    hashes: NDArray[np.uint64]
    entities: NDArray[np.int64]
    symbols: NDArray[np.int64]

    @property
    def csr(self) -> Csr:
        """The symbols of each entity."""
        return Csr.of_lengths(np.bincount(self.entities, minlength=len(self.hashes)), self.symbols)


@pytest.fixture(scope="session")
def binomial_interval() -> Callable[[int, float], tuple[float, float]]:
    """The counts within 4 standard deviations of the mean of Binomial(trials, rate).

    A sound filter falls outside once in about 16,000 tests; the seeds are fixed, so it does so for good
    or never.
    """

    def interval(trials: int, rate: float) -> tuple[float, float]:
        mean, deviation = trials * rate, math.sqrt(trials * rate * (1 - rate))
        return mean - STANDARD_DEVIATIONS * deviation, mean + STANDARD_DEVIATIONS * deviation

    return interval


@pytest.fixture(scope="session")
def random_hashes() -> Callable[[int, int], NDArray[np.uint64]]:
    """Hashes of n entities. Those of different seeds are different entities."""

    def make(n: int, seed: int) -> NDArray[np.uint64]:
        return np.random.default_rng(seed).integers(0, 2**64, (n, 2), np.uint64)

    return make


def draw(rng: np.random.Generator, n: int, size: int, exponent: float) -> NDArray[np.int64]:
    """``size`` numbers below n; the one of rank r has a weight of r ** -exponent, 0 is uniform."""
    cumulative = np.cumsum(np.arange(1, n + 1, dtype=float) ** -exponent)
    return np.searchsorted(cumulative, rng.random(size) * cumulative[-1], side="right")


@pytest.fixture(scope="session")
def make_facts(random_hashes) -> Callable[..., Facts]:
    """Draws facts; a Zipf exponent of 0 is the uniform distribution. Symbol 0 is the most popular one."""

    def make(
        num_entities: int,
        vocabulary: int,
        num_facts: int,
        *,
        entity_exponent: float = 0.0,
        symbol_exponent: float = 0.0,
        seed: int = 1,
    ) -> Facts:
        rng = np.random.default_rng(seed)
        pairs = draw(rng, num_entities, num_facts, entity_exponent) * vocabulary
        pairs += draw(rng, vocabulary, num_facts, symbol_exponent)
        return Facts(random_hashes(num_entities, seed), *np.divmod(np.unique(pairs), vocabulary))

    return make


@pytest.fixture(scope="session")
def build_filter() -> Callable[..., ShiftingBloomFilter]:
    """Builds a filter of facts that is about half full."""

    def build(facts: Facts, vocabulary: int, num_hashes: int) -> ShiftingBloomFilter:
        num_bits = math.ceil(len(facts.symbols) * num_hashes / math.log(2))
        builder = ShiftingBloomFilterBuilder(num_bits, -(-vocabulary // 64), SALT)
        add_facts(builder, facts.hashes, facts.entities, facts.symbols, num_hashes)
        return builder.build()

    return build
