"""What structures of a membership feature take and cost, of the same rows: plain and weighted filter, sets.

The weighted filter shows as many false values as the plain one, sets none. Read through `SketchReader`; all
blocks of the snapshots are checked before, as those of a process that has served for a while.
"""

from functools import partial

import numpy as np
import structures_on_data
from feast.types import Int64
from measure import interleaved, number, print_set_up, print_table
from numpy.typing import NDArray
from reader import questions
from stores import UserRows, set_up_of, sketch, temporary_folder

from feast_sketch_store import SketchReader

STRUCTURES = ("bloom", "weighted_bloom", "sets")


def run(*, quick: bool) -> None:
    num_users, rounds, calls = (5_000, 3, 5) if quick else (200_000, 15, 20)
    rows = UserRows(num_users, Int64)
    with temporary_folder() as folder:
        readers = {}
        for structure in STRUCTURES:
            store = sketch(folder / structure, rows, target="error 0.01", structure=structure)
            store.write(rows.to_feast())
            readers[structure] = SketchReader(
                folder / structure / "sketch", "history", "shop", refresh_interval_seconds=1e9
            )
        print_set_up(
            f"{set_up_of(num_users)}, Array(Int64), error rate 0.01; {rounds} turns of {calls} calls",
            "numpy",
            "pyarrow",
        )
        _sizes(readers, rows)
        _times(readers, rows, rounds, calls)
    structures_on_data.run(quick=quick)


def _sizes(readers: dict[str, SketchReader], rows: UserRows) -> None:
    lines = []
    everyone = np.arange(rows.num_users)
    for structure, reader in readers.items():
        sealed = reader.sealed
        assert sealed is not None
        (layer,) = sealed.layers
        false_values = len(reader.csr("viewed", everyone).ids) - rows.facts.size
        lines.append(
            [
                structure,
                f"{layer.fact_bits / rows.facts.size:.2f}",
                number(layer.size_bytes / 1e6),
                number(false_values / rows.num_users),
            ]
        )
    print_table(["structure", "bits per fact", "MB, vocabulary included", "false values per read"], lines)


def _times(readers: dict[str, SketchReader], rows: UserRows, rounds: int, calls: int) -> None:
    lines = []
    for question, batch, ask in questions(rows):

        def users(call: int, batch: int = batch) -> NDArray[np.int64]:
            return np.random.default_rng(call).choice(rows.num_users, batch, replace=False)

        sides = {structure: partial(ask, reader) for structure, reader in readers.items()}
        times = interleaved(sides, users, rounds=rounds, calls=calls)
        per_user = [number(time / batch * 1e6) for time in times.values()]
        ratios = [f"{times[structure] / times['bloom']:.2f}" for structure in STRUCTURES[1:]]
        lines.append([question, f"{batch:,}", *per_user, *ratios])
    header = [f"{structure}, us per user" for structure in STRUCTURES]
    header += [f"{structure} : bloom" for structure in STRUCTURES[1:]]
    print_table(["question", "users", *header], lines)
