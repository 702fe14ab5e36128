"""Enumeration: which of V values may an entity have?

Every side answers it from a Bloom filter with k = 7 and a fill of about 1/2: all values of the vocabulary
that are possibly present, for one entity after the other. Each must list the entity's true facts and, as
the false-positive rates are equal, about as many false ones. The other libraries get the cheapest key that
identifies a fact (one int) and their fastest loop, and beside it stands the loop that people write, over
``f"{user}^{value}"``.
"""

from collections.abc import Callable, Iterable
from hashlib import md5
from itertools import compress, pairwise

import mmh3
import numpy as np
from facts import FACTS_PER_ENTITY, draw_facts
from fastbloom_rs import PyBloomFilter
from measure import interleaved, number, print_set_up, print_table
from numpy.typing import NDArray
from rbloom import Bloom

from feast_sketch_store.rows.entity_keys import hash_int64_keys
from feast_sketch_store.succinct import ShiftingBloomFilter, ShiftingBloomFilterBuilder, SymbolQuery, new_salt

NUM_HASHES = 7
BITS_PER_FACT = NUM_HASHES / np.log(2)  # fills half of the table
BATCH = 1_000
LOOP_USERS = 5  # per turn of the other libraries, which take milliseconds per entity

OURS, OURS_AS_LISTS = "shifting Bloom filter", "shifting Bloom filter, as Python lists"
LIBRARIES = ("rbloom, one int per fact", "fastbloom-rs, one int per fact, batch call")
REFERENCE = "loop over pure Python, md5 (reference)"

Users = range


class PurePythonBloomFilter:
    """A Bloom filter as tutorials write it: a bytearray and a hash function that is called k times."""

    def __init__(self, num_bits: int, hash_key: Callable[[str, int], int]):
        self._bits = bytearray(-(-num_bits // 8))
        self._num_bits = num_bits
        self._hash = hash_key

    def add(self, key: str) -> None:
        for seed in range(NUM_HASHES):
            position = self._hash(key, seed) % self._num_bits
            self._bits[position >> 3] |= 1 << (position & 7)

    def __contains__(self, key: str) -> bool:
        for seed in range(NUM_HASHES):
            position = self._hash(key, seed) % self._num_bits
            if not self._bits[position >> 3] & 1 << (position & 7):
                return False
        return True


class Table:
    """A shifting Bloom filter with the facts of users 0, 1, ..."""

    def __init__(self, facts: NDArray[np.int64], vocabulary: int):
        self._asked = SymbolQuery(0, vocabulary, NUM_HASHES)
        num_bits = int(facts.size * BITS_PER_FACT)
        builder = ShiftingBloomFilterBuilder(num_bits, -(-vocabulary // 64), new_salt())
        users, indptr = np.arange(len(facts), dtype=np.int32), np.arange(len(facts) + 1) * facts.shape[1]
        symbols = facts.reshape(-1).astype(np.int32)
        builder.add_rows(self.hashes(range(len(facts))), users, indptr, symbols, NUM_HASHES)
        self.bloom: ShiftingBloomFilter = builder.build()
        self.fill = float(np.bitwise_count(self.bloom.words[: self.bloom.num_words]).mean()) / 64

    @staticmethod
    def hashes(users: Users) -> NDArray[np.uint64]:
        return hash_int64_keys("user_id", np.asarray(users))

    def enumerate(self, users: Users) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        return self.bloom.possible_symbols(self.hashes(users), self._asked)

    def enumerate_as_lists(self, users: Users) -> list[list[int]]:
        indptr, values = (array.tolist() for array in self.enumerate(users))
        return [values[start:stop] for start, stop in pairwise(indptr)]


def run(*, quick: bool) -> None:
    num_users = 20_000 if quick else 200_000
    _compare(num_users, vocabulary=10_000, rounds=3 if quick else 15)


def _compare(num_users: int, vocabulary: int, rounds: int) -> None:
    facts = draw_facts(num_users, vocabulary)
    # Hashing every fact seven times in Python takes minutes. A smaller table of the same fill is asked
    # for as many bits, and is in the loop's favour.
    few = facts[: num_users // 20]
    table = Table(facts, vocabulary)
    batches: dict[str, Callable[[Users], object]] = {
        OURS: table.enumerate,
        OURS_AS_LISTS: table.enumerate_as_lists,
    }
    singles: dict[str, Callable[[int], list[int]]] = {
        LIBRARIES[0]: _rbloom_ints(facts, vocabulary),
        LIBRARIES[1]: _fastbloom_ints(facts, vocabulary),
        "loop over rbloom, f-strings": _loop(_filled_rbloom(facts), vocabulary),
        "loop over pure Python, mmh3": _loop(_filled_python(few, mmh3.hash), vocabulary),
        REFERENCE: _loop(_filled_python(few, _md5), vocabulary),
    }
    checked = range(20)
    answers = {name: [answer(user) for user in checked] for name, answer in singles.items()}
    answers |= dict.fromkeys(batches, table.enumerate_as_lists(checked))
    for name, answer in answers.items():
        _check(name, answer, facts)

    def few_users(answer: Callable[[int], list[int]]) -> Callable[[Users], object]:
        return lambda users: [answer(user) for user in users[:LOOP_USERS]]

    def users(call: int) -> Users:
        first = call * BATCH % (len(few) - BATCH + 1)
        return range(first, first + BATCH)

    sides = batches | {name: few_users(answer) for name, answer in singles.items()}
    times = interleaved(sides, users, rounds=rounds)
    per_user = {name: t / (BATCH if name in batches else LOOP_USERS) * 1e6 for name, t in times.items()}
    print_set_up(
        f"{num_users:,} entities, V = {vocabulary:,}, {FACTS_PER_ENTITY} facts per entity, k = {NUM_HASHES}, "
        f"{BITS_PER_FACT:.2f} bits per fact, fill {table.fill:.3f} (pure Python: "
        f"{len(few):,} entities at as many bits per fact); batches of {BATCH:,} entities (the others: "
        f"{LOOP_USERS}), {rounds} turns",
        "numpy",
        "rbloom",
        "fastbloom-rs",
    )
    print_table(
        ["side", "us per entity", "values per entity", "times the filter", "times the filter as lists"],
        [
            [
                name,
                number(time),
                f"{sum(map(len, answers[name])) / len(checked):.0f}",
                number(time / per_user[OURS]),
                number(time / per_user[OURS_AS_LISTS]),
            ]
            for name, time in per_user.items()
        ],
    )


def _check(name: str, answers: list[list[int]], facts: NDArray[np.int64]) -> None:
    for user, values in enumerate(answers):
        missing = set(facts[user].tolist()).difference(values)
        if missing:
            raise AssertionError(f"{name}: user {user} lacks {missing}")


def _rbloom_ints(facts: NDArray[np.int64], vocabulary: int) -> Callable[[int], list[int]]:
    bloom = Bloom(facts.size, 2.0**-NUM_HASHES)
    bloom.update(_int_keys(facts, vocabulary))
    contains, values = bloom.__contains__, range(vocabulary)
    return lambda user: list(compress(values, map(contains, _candidates(user, vocabulary))))


def _fastbloom_ints(facts: NDArray[np.int64], vocabulary: int) -> Callable[[int], list[int]]:
    # Its own builder would take eight hashes for the same bits.
    bloom = PyBloomFilter.from_bytes(bytes(8 * int(facts.size * BITS_PER_FACT / 64)), NUM_HASHES)
    bloom.add_int_batch(_int_keys(facts, vocabulary))
    contains, values = bloom.contains_int_batch, range(vocabulary)
    return lambda user: list(compress(values, contains(list(_candidates(user, vocabulary)))))


def _loop(bloom: Bloom | PurePythonBloomFilter, vocabulary: int) -> Callable[[int], list[int]]:
    values = range(vocabulary)
    return lambda user: [value for value in values if f"{user}^{value}" in bloom]


def _filled_rbloom(facts: NDArray[np.int64]) -> Bloom:
    bloom = Bloom(facts.size, 2.0**-NUM_HASHES)
    bloom.update(_string_keys(facts))
    return bloom


def _filled_python(facts: NDArray[np.int64], hash_key: Callable[[str, int], int]) -> PurePythonBloomFilter:
    bloom = PurePythonBloomFilter(int(facts.size * BITS_PER_FACT), hash_key)
    for key in _string_keys(facts):
        bloom.add(key)
    return bloom


def _md5(key: str, seed: int) -> int:
    return int.from_bytes(md5(f"{seed}{key}".encode()).digest()[:8], "little")


def _candidates(user: int, vocabulary: int) -> range:
    return range(user * vocabulary, (user + 1) * vocabulary)


def _int_keys(facts: NDArray[np.int64], vocabulary: int) -> list[int]:
    keys: list[int] = (np.arange(len(facts))[:, None] * vocabulary + facts).reshape(-1).tolist()
    return keys


def _string_keys(facts: NDArray[np.int64]) -> Iterable[str]:
    return (f"{user}^{value}" for user, values in enumerate(facts.tolist()) for value in values)
