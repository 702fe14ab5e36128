"""What the NumPy kernel takes for sets, beside the compiled one: their codes, and reads of `SketchReader`.

The codes are of sets of equal sizes, and of sizes that differ as those of real histories do: a few sets are
twenty times as large as the median. Both kernels read the same rows in turns.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType

import numpy as np
from feast.types import Int64
from measure import interleaved, number, print_set_up, print_table
from numpy.typing import NDArray
from stores import UserRows, sketch, temporary_folder

from feast_sketch_store import SketchReader, kernel
from feast_sketch_store.kernel import compiled, reference, reference_lists, reference_rows, reference_sets
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
        reader = SketchReader(folder / "sketch", "history", "shop", refresh_interval_seconds=1e9)
        reader.csr("viewed", np.arange(NUM_ROWS))

        def by(*modules: ModuleType) -> Callable[[NDArray[np.int64]], object]:
            def read(users: NDArray[np.int64]) -> object:
                with _kernel(*modules):
                    return reader.csr("viewed", users)

            return read

        sides = {
            "compiled": by(compiled),
            "NumPy": by(reference, reference_rows, reference_lists, reference_sets),
        }
        for batch in BATCHES:

            def users(call: int, batch: int = batch) -> NDArray[np.int64]:
                return np.random.default_rng(call).choice(NUM_ROWS, batch, replace=False)

            yield _line(
                "SketchReader.csr, 20 each", batch, interleaved(sides, users, rounds=rounds, calls=calls)
            )


@contextmanager
def _kernel(*modules: ModuleType) -> Iterator[None]:
    """Let the store use the functions of other modules."""
    names = [name for name in kernel.__all__ if hasattr(compiled, name) and name[0].islower()]
    before = {name: getattr(kernel, name) for name in names}
    for name in names:
        setattr(kernel, name, next(getattr(m, name) for m in modules if hasattr(m, name)))
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(kernel, name, function)


def _line(name: str, batch: int, times: dict[str, float]) -> list[str]:
    ratio = times["NumPy"] / times["compiled"]
    if batch >= 1_000 and ratio > MOST:
        print(f"{name}: {ratio:.0f} times, more than {MOST}\n")
    per_row = [number(time / batch * 1e6) for time in times.values()]
    return [name, f"{batch:,}", *per_row, f"{ratio:.1f}"]
