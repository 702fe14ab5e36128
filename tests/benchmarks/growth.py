"""Growth: what a read of the filter costs, as one thing after the other grows.

A read ANDs k windows of V / 64 words and lists the ones that are left, so its cost should follow k * V / 64
and the ones, and depend on nothing else: on the number of facts only through the cache or memory that the
table lies in, on the batch only through the call that it shares. Each series varies one of them; its sides
are timed in turn. Entities are given by their hashes. A large table is not filled with facts but with random
bits of the same fill, one half, which cost the same to read.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from facts import FACTS_PER_ENTITY, draw_facts
from measure import interleaved, number, print_set_up, print_table
from numpy.typing import NDArray

from feast_sketch_store.succinct import ShiftingBloomFilter, ShiftingBloomFilterBuilder, SymbolQuery, new_salt

_MOST_ADDED_FACTS = 10_000_000  # the builder and its input stay within bounded time and memory
_MEGABYTE = 10**6
_HEADER = ["k V / 64 words", "table MB", "us per entity", "ns per word", "ones per entity"]


@dataclass(frozen=True)
class Shape:
    """One point of a series."""

    vocabulary: int
    num_facts: int
    num_hashes: int = 7
    batch: int = 1_000

    @property
    def num_words(self) -> int:
        """Words of one window."""
        return -(-self.vocabulary // 64)

    @property
    def num_bits(self) -> int:
        """Bits of a table of which these facts fill half."""
        return int(self.num_facts * self.num_hashes / np.log(2))

    @property
    def asked(self) -> SymbolQuery:
        """All symbols."""
        return SymbolQuery(first_word=0, num_symbols=self.vocabulary, num_hashes=self.num_hashes)

    @property
    def is_random(self) -> bool:
        """Whether the table is random bits."""
        return self.num_facts > _MOST_ADDED_FACTS


@dataclass(frozen=True)
class Table:
    """A filter and entities to ask it about."""

    shape: Shape
    bloom: ShiftingBloomFilter
    entity_hashes: NDArray[np.uint64]

    @property
    def megabytes(self) -> float:
        """Size of the table."""
        return self.bloom.num_bits / 8 / _MEGABYTE

    def hashes(self, call: int) -> NDArray[np.uint64]:
        first = call * self.shape.batch % (len(self.entity_hashes) - self.shape.batch + 1)
        return self.entity_hashes[first : first + self.shape.batch]

    def ids(self, call: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        return self.bloom.possible_symbols(self.hashes(call), self.shape.asked)


def run(*, quick: bool) -> None:
    rounds = 3 if quick else 15
    base = Shape(10_000, 200_000 if quick else 10_000_000)
    facts = [100_000, 1_000_000] if quick else [100_000, 1_000_000, 10_000_000, 100_000_000, 373_000_000]
    _series("V", base, _shapes(base, "vocabulary", [1_000, 10_000, 100_000, 1_000_000]), rounds)
    _series("facts", base, _shapes(base, "num_facts", facts), rounds)
    _series("k", base, _shapes(base, "num_hashes", [3, 7, 13, 20]), rounds)
    _series("batch", base, _shapes(base, "batch", [1, 10, 100, 1_000, 10_000]), rounds)


def _shapes(base: Shape, name: str, values: list[int]) -> dict[str, Shape]:
    return {f"{value:,}": replace(base, **{name: value}) for value in values}


def _series(name: str, base: Shape, shapes: dict[str, Shape], rounds: int) -> None:
    tables = _tables(shapes)
    sides: dict[str, Callable[[int], object]] = {point: table.ids for point, table in tables.items()}
    times = interleaved(sides, lambda call: call, rounds=rounds, calls=5)
    rows = []
    for point, table in tables.items():
        shape = table.shape
        words = shape.num_hashes * shape.vocabulary / 64
        per_entity = times[point] / shape.batch
        ones = len(table.ids(0)[1]) / shape.batch
        figures = (words, table.megabytes, per_entity * 1e6, per_entity / words * 1e9, ones)
        rows.append([point, *map(number, figures)])
    _print_set_up(f"{name} varies", base, shapes, rounds)
    print_table([name, *_HEADER], rows)


def _tables(shapes: dict[str, Shape]) -> dict[str, Table]:
    # A batch is no matter of the bits.
    return {point: Table(shape, *_filter(replace(shape, batch=1))) for point, shape in shapes.items()}


@cache
def _filter(shape: Shape) -> tuple[ShiftingBloomFilter, NDArray[np.uint64]]:
    """A filter of this shape, and hashes of its entities."""
    random = np.random.default_rng(3)
    num_entities = min(shape.num_facts, _MOST_ADDED_FACTS) // FACTS_PER_ENTITY
    hashes = random.integers(0, 2**64, (num_entities, 2), np.uint64)
    return (_random_filter(shape, random) if shape.is_random else _filled(shape, hashes)), hashes


def _filled(shape: Shape, hashes: NDArray[np.uint64]) -> ShiftingBloomFilter:
    facts = draw_facts(len(hashes), shape.vocabulary)
    builder = ShiftingBloomFilterBuilder(shape.num_bits, shape.num_words, new_salt())
    entities, indptr = np.arange(len(hashes), dtype=np.int32), np.arange(len(hashes) + 1) * FACTS_PER_ENTITY
    builder.add_rows(hashes, entities, indptr, facts.reshape(-1).astype(np.int32), shape.num_hashes)
    return builder.build()


def _random_filter(shape: Shape, random: np.random.Generator) -> ShiftingBloomFilter:
    num_words = -(-shape.num_bits // 64)
    words = random.integers(0, 2**64, num_words + shape.num_words, np.uint64)
    words[num_words:] = words[: shape.num_words]
    return ShiftingBloomFilter(words, num_words, new_salt())


def _print_set_up(what: str, base: Shape, shapes: dict[str, Shape], rounds: int) -> None:
    text = (
        f"{what}; otherwise V = {base.vocabulary:,}, {base.num_facts:,} facts, {FACTS_PER_ENTITY} per "
        f"entity, k = {base.num_hashes}, batches of {base.batch:,} entities; {rounds} turns of 5 calls"
    )
    if any(shape.is_random for shape in shapes.values()):
        text += (
            f"; tables of more than {_MOST_ADDED_FACTS:,} facts are random bits, one half ones, without facts"
        )
    print_set_up(text, "numpy")
