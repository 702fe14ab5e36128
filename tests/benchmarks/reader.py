"""`SketchReader` over tables of several sizes: keys hashed, presence, ids decoded; candidates; linear scores.

The snapshots are sealed through Feast and enlarged: their users are found, and half of the other bits are
ones. Every call asks about users that were drawn before the clock starts. All blocks of a table are checked
before, as those of a process that has served for a while.
"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from feast.types import FeastType, Int64, String
from large_snapshot import large_sketch
from measure import interleaved, number, print_set_up, print_table
from numpy.typing import NDArray
from stores import UserRows, set_up_of, temporary_folder

from feast_sketch_store import SketchReader

NUM_USERS = 20_000
NUM_CANDIDATES = 1_000
BATCHES = (1, 10, 100, 1_000)
MEGABYTES = (1, 50, 470)

Ask = Callable[[SketchReader, NDArray[np.int64]], object]


def run(*, quick: bool) -> None:
    for element in (Int64, String):
        rows = UserRows(NUM_USERS, element)
        with ExitStack() as folders:
            readers = {
                megabytes: _reader(rows, megabytes, folders.enter_context(temporary_folder()))
                for megabytes in MEGABYTES[: 2 if quick else 3]
            }
            _measure(readers, rows, element, *((3, 5) if quick else (15, 20)))


def _measure(
    readers: dict[int, SketchReader], rows: UserRows, element: FeastType, rounds: int, calls: int
) -> None:
    print_set_up(
        f"{set_up_of(NUM_USERS)}, Array({element}), error rate 0.01 (k = 7), tables of "
        f"{', '.join(map(str, readers))} MB; {rounds} turns of {calls} calls",
        "numpy",
        "pyarrow",
    )
    lines = []
    for question, batch, ask in questions(rows):

        def users(call: int, batch: int = batch) -> NDArray[np.int64]:
            return np.random.default_rng(call).choice(NUM_USERS, batch, replace=False)

        sides = {str(megabytes): partial(ask, reader) for megabytes, reader in readers.items()}
        times = interleaved(sides, users, rounds=rounds, calls=calls)
        lines.append([question, f"{batch:,}", *(number(time / batch * 1e6) for time in times.values())])
    print_table(["question", "users", *(f"{megabytes} MB, us per user" for megabytes in readers)], lines)


def questions(rows: UserRows) -> list[tuple[str, int, Ask]]:
    random = np.random.default_rng(3)
    vocabulary = rows.table["viewed"].combine_chunks().flatten().unique()
    weights = random.random(len(vocabulary))
    # Others in each call, or they would stay in the innermost cache.
    requests = cycle(
        [vocabulary.take(random.integers(0, len(vocabulary), NUM_CANDIDATES)) for _ in range(64)]
    )

    def csr(reader: SketchReader, users: NDArray[np.int64]) -> object:
        return reader.csr("viewed", users)

    def scores(reader: SketchReader, users: NDArray[np.int64]) -> object:
        return reader.scores("viewed", users, weights)

    def contains(reader: SketchReader, users: NDArray[np.int64]) -> object:
        return reader.contains("viewed", users, next(requests))

    return [
        *(("csr", batch, csr) for batch in BATCHES),
        *(("scores", batch, scores) for batch in BATCHES),
        (f"contains, {NUM_CANDIDATES:,} candidates", 1, contains),
    ]


def _reader(rows: UserRows, megabytes: int, folder: Path) -> SketchReader:
    large_sketch(folder, rows, megabytes * 10**6)
    reader = SketchReader(folder / "sketch", "history", "shop", refresh_interval_seconds=1e9)
    answer = reader.csr("viewed", np.arange(NUM_USERS))
    _check(answer, rows)
    bloom: Any = reader.sealed.layers[0].features["viewed"].filter  # type: ignore[attr-defined, index]
    bloom.check(np.arange(bloom.num_words), 1)
    return reader


def _check(answer: Any, rows: UserRows) -> None:
    values = answer.vocabulary.to_pylist()
    for user, wanted in enumerate(rows.table["viewed"].slice(0, 100).to_pylist()):
        found = {values[number] for number in answer.ids[answer.indptr[user] : answer.indptr[user + 1]]}
        if missing := set(wanted) - found:
            raise AssertionError(f"user {user} lacks {missing}")
