"""Users of 100 values, in sets: the ids of one and of 1,000 against what keeps the values as they are.

LMDB has raw integer keys and packed int32, which its reader takes as they lie there. The CSR matrix has
uint16 values and sorted user ids. All find the same values, and every call asks about other users. The last
table has the goals.
"""

from collections.abc import Callable
from pathlib import Path

import lmdb
import numpy as np
import pyarrow as pa
from facts import draw_facts
from measure import Goal, interleaved, number, print_goals, print_set_up, print_table
from numpy.typing import NDArray
from stores import VOCABULARY, UserRows, sketch, temporary_folder

from feast_sketch_store import SketchReader

VALUES, BATCH, CALLS = 100, 1_000, 100
_MAP_BYTES = 1 << 32

Users = NDArray[np.int64]


def run(*, quick: bool) -> None:
    num_users, rounds = (20_000, 5) if quick else (200_000, 15)
    users = np.unique(np.random.default_rng(4).integers(0, 2**63, 2 * num_users, np.int64))[:num_users]
    facts = draw_facts(num_users, VOCABULARY, per_entity=VALUES)
    with temporary_folder() as folder:
        reader = _reader(users, facts, folder)
        arrays = {user: row.astype(np.int32) for user, row in zip(users.tolist(), facts, strict=True)}
        values = np.asarray(reader.vocabulary("viewed").to_numpy())
        one: dict[str, Callable[[Users], NDArray[np.integer]]] = {
            "sketch": lambda asked: reader.ids("viewed", int(asked[0])),
            "LMDB, integer keys": _of_lmdb(users, facts, folder),
            "dict of arrays": lambda asked: arrays[int(asked[0])],
        }
        many: dict[str, Callable[[Users], NDArray[np.integer]]] = {
            "sketch": lambda asked: reader.csr("viewed", asked).ids,
            "CSR, sorted user ids, uint16 values": _of_csr(users, facts),
        }
        for sides, count in ((one, 1), (many, BATCH)):
            for name, read in sides.items():
                found = read(users[:count])
                if name == "sketch":
                    found = values[found]
                if not np.array_equal(np.sort(found), np.sort(facts[:count].reshape(-1))):
                    raise AssertionError(f"{name} has other values")

        def some(count: int) -> Callable[[int], Users]:
            return lambda call: np.random.default_rng(call).choice(users, count, replace=False)

        of_one = interleaved(one, some(1), rounds=rounds, calls=CALLS)
        of_many = interleaved(many, some(BATCH), rounds=rounds, calls=5)
    print_set_up(
        f"{num_users:,} users with {VALUES} of {VOCABULARY:,} values each; {rounds} turns of {CALLS} calls "
        f"for one user and of 5 for {BATCH:,}",
        "numpy",
        "lmdb",
    )
    lines = [
        [question, name, number(time * 1e6), number(time / times["sketch"])]
        for question, times in (("ids of one user", of_one), (f"csr of {BATCH:,} users", of_many))
        for name, time in times.items()
    ]
    print_table(["question", "side", "us a call", "times the sketch"], lines)
    (_, of_lmdb, of_dict), (_, of_csr) = of_one.values(), of_many.values()
    print_goals(
        [
            Goal("ids of one user against LMDB", of_one["sketch"] / of_lmdb, 1),
            Goal("... against the dict of arrays", of_one["sketch"] / of_dict, 2),
            Goal(f"csr of {BATCH:,} users against the CSR matrix", of_many["sketch"] / of_csr, 1),
        ]
    )


def _reader(users: Users, facts: NDArray[np.int64], folder: Path) -> SketchReader:
    rows = UserRows(len(users))
    offsets = np.arange(len(users) + 1, dtype=np.int32) * VALUES
    viewed = pa.ListArray.from_arrays(offsets, pa.array(facts.reshape(-1)))
    for name, column in (("user_id", pa.array(users)), ("viewed", viewed)):
        rows.table = rows.table.set_column(rows.table.schema.get_field_index(name), name, column)
    sketch(folder, rows).write(rows.to_feast())
    return SketchReader(folder / "sketch", "history", project="shop", refresh_interval_seconds=1e9)


def _of_lmdb(users: Users, facts: NDArray[np.int64], folder: Path) -> Callable[[Users], NDArray[np.integer]]:
    path = str(folder / "facts.mdb")
    environment = lmdb.open(path, subdir=False, map_size=_MAP_BYTES, sync=False, lock=False, max_dbs=1)
    database = environment.open_db(b"facts", integerkey=True)
    with environment.begin(write=True, db=database) as transaction:
        for user, row in zip(users.tolist(), facts.astype(np.int32), strict=True):
            transaction.put(user.to_bytes(8, "little"), row.tobytes())

    def read(asked: Users) -> NDArray[np.integer]:
        with environment.begin(db=database, buffers=True) as transaction:
            return np.frombuffer(transaction.get(int(asked[0]).to_bytes(8, "little"), b""), np.int32)

    return read


def _of_csr(users: Users, facts: NDArray[np.int64]) -> Callable[[Users], NDArray[np.integer]]:
    indptr, columns = np.arange(len(users) + 1) * VALUES, facts.reshape(-1).astype(np.uint16)

    def read(asked: Users) -> NDArray[np.integer]:
        rows = np.searchsorted(users, asked)
        rows[rows == len(users)] = 0
        starts = indptr[rows]
        counts = (indptr[rows + 1] - starts) * (users[rows] == asked)
        ends = np.cumsum(counts)
        places = np.repeat(starts - ends + counts, counts)
        places += np.arange(len(places))
        return columns[places]

    return read
