"""What the NumPy kernel takes for sets, beside the compiled one: their codes, and reads of `SketchReader`.

The codes are of sets of equal sizes, and of sizes that differ as those of real histories do: a few sets are
twenty times as large as the median. Both kernels read the same rows in turns. Readers prepare their rows by
the kernel that is there when they start, so those of both kernels are processes of their own:

    python tests/benchmarks/numpy_kernel.py FOLDER    reads users as it is told, and prints how long it takes
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Self

import numpy as np
from feast.types import Int64
from measure import interleaved, number, print_set_up, print_table, seconds
from numpy.typing import NDArray
from stores import UserRows, sketch, temporary_folder

from feast_sketch_store import SketchReader
from feast_sketch_store.kernel import reference_sets
from feast_sketch_store.succinct import GolombSets, SetCode

NUM_ROWS = 5_000
NUM_SYMBOLS = 10_000
BATCHES = (1, 10, 100, 1_000)
MOST = 15  # times as long as the compiled kernel, of 1,000 rows


def run(*, quick: bool) -> None:
    rounds, calls = (5, 5) if quick else (15, 20)
    print_set_up(f"{NUM_ROWS:,} rows; {rounds} turns of {calls} calls", "numpy")
    lines = []
    random = np.random.default_rng(1)
    for name, sizes in (
        ("20 each", np.full(NUM_ROWS, 20)),
        ("20 on average", random.poisson(20, NUM_ROWS)),
        ("45 on average, unequal", np.clip(random.lognormal(3.2, 1.2, NUM_ROWS), 1, 2_000).astype(np.int64)),
    ):
        lines += _codes(name, _sets(sizes, random), rounds, calls)
    lines += _reads(rounds, calls)
    print_table(["what", "rows", "compiled, us per row", "NumPy, us per row", "NumPy : compiled"], lines)


def _sets(sizes: NDArray[np.int64], random: np.random.Generator) -> GolombSets:
    """Sets of values of which a few are popular, as those of sealed layers."""
    shares = np.cumsum(1 / (np.arange(NUM_SYMBOLS) + 10))
    shares /= shares[-1]
    drawn = [np.unique(np.searchsorted(shares, random.random(size))) for size in sizes]
    counts = np.bincount(np.concatenate(drawn), minlength=NUM_SYMBOLS)
    order = np.argsort(-counts, kind="stable")
    rank = np.empty(NUM_SYMBOLS, np.int32)
    rank[order] = np.arange(NUM_SYMBOLS)
    members = [np.sort(rank[ids]) for ids in drawn]
    headers = np.array([len(ids) for ids in members], np.int32)
    code = SetCode.fit(counts[order], headers, 0)
    indptr = np.concatenate(([0], np.cumsum(headers, dtype=np.int64)))
    return GolombSets.build([code], headers[:, None], indptr, np.concatenate(members))


def _codes(name: str, sets: GolombSets, rounds: int, calls: int) -> Iterator[list[str]]:
    arguments = sets.joint_codes, sets.words, sets.num_bits, sets.starts.parts

    def of(module: ModuleType) -> Callable[[NDArray[np.int64]], object]:
        return lambda rows: module.read_sets(*arguments, rows, 0)

    from feast_sketch_store.kernel import compiled  # which a process of the other kernel may not have

    sides = {"compiled": of(compiled), "NumPy": of(reference_sets)}
    for batch in BATCHES:

        def rows(call: int, batch: int = batch) -> NDArray[np.int64]:
            return np.random.default_rng(call).choice(NUM_ROWS, batch, replace=False)

        times = interleaved(sides, rows, rounds=rounds, calls=calls)
        yield _line(f"codes of {name}", batch, times)


def _reads(rounds: int, calls: int) -> Iterator[list[str]]:
    """`SketchReader.csr`, keys hashed and rows found by the same kernel."""
    rows = UserRows(NUM_ROWS, Int64)
    with temporary_folder() as folder:
        store = sketch(folder, rows, structure="sets")
        store.write(rows.to_feast())
        with ExitStack() as stack:
            kernels = {"compiled": "compiled", "NumPy": "numpy"}
            sides = {side: stack.enter_context(_Process(folder, name)) for side, name in kernels.items()}
            for batch in BATCHES:
                samples: dict[str, list[float]] = {side: [] for side in sides}
                for turn in range(-1, rounds):
                    for side, process in sides.items():
                        times = process.read(batch, max(turn, 0) * calls, calls)
                        samples[side] += times if turn >= 0 else []
                yield _line(
                    "SketchReader.csr, 20 each",
                    batch,
                    {side: median(times) for side, times in samples.items()},
                )


class _Process:
    """A process that reads by one of the kernels."""

    def __init__(self, folder: Path, name: str):
        environment = {**os.environ, "FEAST_SKETCH_STORE_KERNEL": name}
        self._process = subprocess.Popen(
            [sys.executable, __file__, folder],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def read(self, batch: int, first: int, calls: int) -> list[float]:
        """Seconds of some calls."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([batch, first, calls]), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())


def _serve(folder: str) -> None:
    reader = SketchReader(Path(folder) / "sketch", "history", "shop", refresh_interval_seconds=1e9)
    reader.csr("viewed", np.arange(NUM_ROWS))
    for line in sys.stdin:
        batch, first, calls = json.loads(line)
        users = [
            np.random.default_rng(call).choice(NUM_ROWS, batch, replace=False)
            for call in range(first, first + calls)
        ]
        print(json.dumps([seconds(reader.csr, "viewed", some)[0] for some in users]), flush=True)


def _line(name: str, batch: int, times: dict[str, float]) -> list[str]:
    ratio = times["NumPy"] / times["compiled"]
    if batch >= 1_000 and ratio > MOST:
        print(f"{name}: {ratio:.0f} times, more than {MOST}\n")
    per_row = [number(time / batch * 1e6) for time in times.values()]
    return [name, f"{batch:,}", *per_row, f"{ratio:.1f}"]


if __name__ == "__main__":
    _serve(sys.argv[1])
