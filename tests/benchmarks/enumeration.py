"""Enumerate a whole vocabulary for each entity of a batch: which values may it have?

All sides hold the same facts at about the same bits per fact and answer the same question; that the true
values are among the answers is checked before anything is timed.
"""

import hashlib
import math
from collections.abc import Callable

import fastbloom_rs
import mmh3
import numpy as np
import rbloom
from measure import medians, short, table

from feast_sketch_store.filters import (
    ShiftingBloomFilter,
    ShiftingBloomFilterBuilder,
    new_salt,
    set_bits,
)

NUM_HASHES = 7
FACTS_PER_ENTITY = 16
BATCH = 1_000
BATCHES = 10  # different ones per round
PROBED = 5  # entities that the slow sides answer per round


class PythonBloomFilter:
    """The Bloom filter of the article's loop, in plain Python."""

    def __init__(self, num_bits: int, hashes: Callable[[str], tuple[int, int]]):
        self._bits = bytearray(-(-num_bits // 8))
        self._num_bits = num_bits
        self._hashes = hashes

    def _positions(self, item: str) -> list[int]:
        first, second = self._hashes(item)
        return [(first + j * second) % self._num_bits for j in range(NUM_HASHES)]

    def add(self, item: str) -> None:
        for position in self._positions(item):
            self._bits[position >> 3] |= 1 << (position & 7)

    def __contains__(self, item: str) -> bool:
        return all(self._bits[p >> 3] >> (p & 7) & 1 for p in self._positions(item))


def md5_hashes(item: str) -> tuple[int, int]:
    digest = hashlib.md5(item.encode()).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")


def mmh3_hashes(item: str) -> tuple[int, int]:
    return mmh3.hash64(item, signed=False)


def build(entities: int, vocabulary: int) -> tuple[ShiftingBloomFilter, np.ndarray, np.ndarray]:
    """A filter that is half full, the entities' hashes, and their symbols: int64[n, facts]."""
    rng = np.random.default_rng(0)
    hashes = rng.integers(0, 2**64, (entities, 2), dtype=np.uint64)
    symbols = rng.integers(0, vocabulary, (entities, FACTS_PER_ENTITY))
    num_bits = math.ceil(symbols.size * NUM_HASHES / math.log(2))
    builder = ShiftingBloomFilterBuilder(num_bits, -(-vocabulary // 64), new_salt())
    builder.add_many(hashes, np.repeat(np.arange(entities), FACTS_PER_ENTITY), symbols.ravel(), NUM_HASHES)
    return builder.build(), hashes, symbols


def enumerate_ours(
    bloom: ShiftingBloomFilter, hashes: np.ndarray, vocabulary: int
) -> tuple[np.ndarray, np.ndarray]:
    return bloom.possible_symbols(hashes, 0, vocabulary, NUM_HASHES)


def run(quick: bool) -> None:
    entities = 20_000 if quick else 200_000
    against_libraries(entities, 10_000, 3 if quick else 9)
    by_vocabulary(entities, 3 if quick else 15)


def against_libraries(entities: int, vocabulary: int, rounds: int) -> None:
    bloom, hashes, symbols = build(entities, vocabulary)
    facts = PROBED * FACTS_PER_ENTITY
    num_bits = math.ceil(facts * NUM_HASHES / math.log(2))
    rate = 2.0**-NUM_HASHES
    names = range(vocabulary)
    # The libraries hold only the entities they are asked about, which spares them cache misses.
    filled = {
        "rbloom": rbloom.Bloom(facts, rate),
        "fastbloom-rs": fastbloom_rs.BloomFilter(facts, rate),
        "pure Python, mmh3": PythonBloomFilter(num_bits, mmh3_hashes),
        "pure Python, md5": PythonBloomFilter(num_bits, md5_hashes),
    }
    for other in filled.values():
        for user in range(PROBED):
            for article in symbols[user]:
                other.add(f"{user}^{article}")

    def loop(other: object) -> Callable[[], list[list[int]]]:
        return lambda: [
            [article for article in names if f"{user}^{article}" in other]  # type: ignore[operator]
            for user in range(PROBED)
        ]

    fast = filled["fastbloom-rs"]
    candidates = [[f"{user}^{article}" for article in names] for user in range(PROBED)]
    integers = rbloom.Bloom(facts, rate)
    integer_candidates = [[user * vocabulary + article for article in names] for user in range(PROBED)]
    for user in range(PROBED):
        integers.update(user * vocabulary + int(article) for article in symbols[user])
    sides = {
        "ours, batches of 1,000": lambda: [
            enumerate_ours(bloom, hashes[n * BATCH : (n + 1) * BATCH], vocabulary) for n in range(BATCHES)
        ],
        "rbloom, loop over ready integers": lambda: [
            [c for c in row if c in integers] for row in integer_candidates
        ],
        "fastbloom-rs, batch of ready strings": lambda: [
            fast.contains_str_batch(row) if hasattr(fast, "contains_str_batch") else [c in fast for c in row]
            for row in candidates
        ],
        'rbloom, `f"{user}^{article}" in bloom`': loop(filled["rbloom"]),
        "pure Python with mmh3, the same loop": loop(filled["pure Python, mmh3"]),
        "pure Python with md5, the same loop": loop(filled["pure Python, md5"]),
    }
    indptr, positions = enumerate_ours(bloom, hashes[:BATCH], vocabulary)
    for user in range(PROBED):
        assert set(symbols[user]) <= set(positions[indptr[user] : indptr[user + 1]])
        assert all(f"{user}^{article}" in other for other in filled.values() for article in symbols[user])
        assert all(user * vocabulary + int(article) in integers for article in symbols[user])
    times = medians(sides, rounds)
    per_entity = {
        name: seconds / (BATCHES * BATCH if name.startswith("ours") else PROBED) * 1e6
        for name, seconds in times.items()
    }
    ours = per_entity["ours, batches of 1,000"]
    print(
        f"{vocabulary:,} candidates, k = {NUM_HASHES}, {FACTS_PER_ENTITY} facts per entity; ours in a table "
        f"of {entities:,} entities ({bloom.num_bits / 8e6:.0f} MB), fill {bloom.measured_fill():.3f}\n"
    )
    table(
        ["side", "us per entity", "times ours"],
        [(name, short(time), short(time / ours)) for name, time in per_entity.items()],
    )


def by_vocabulary(entities: int, rounds: int) -> None:
    rows = []
    for vocabulary in (1_000, 10_000, 100_000):
        bloom, hashes, _ = build(entities, vocabulary)
        words = -(-vocabulary // 64)
        answers = bloom.windows(hashes[:BATCH], 0, words, NUM_HASHES)
        times = medians(
            {
                "windows": lambda b=bloom, h=hashes, w=words: b.windows(h[:BATCH], 0, w, NUM_HASHES),
                "ids": lambda a=answers: set_bits(a),
            },
            rounds,
        )
        windows, ids = (times[name] / BATCH * 1e6 for name in ("windows", "ids"))
        per_word = windows * 1e3 / (NUM_HASHES * words)
        rows.append((f"{vocabulary:,}", short(windows), short(ids), short(per_word)))
    print("\nBy vocabulary, a batch of 1,000 entities:\n")
    table(
        ["vocabulary", "AND of windows, us per entity", "bits to ids, us per entity", "ns per word and hash"],
        rows,
    )
