"""Views of one set with default settings: bits a fact of the whole snapshot, and times of reads of one user
and of 1,000, through Feast and without it.

It calls only what other versions of the package have, too, for `two_versions.py --this-code one_set`.
"""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
from feast.types import Int64, Set, String
from measure import interleaved, print_set_up, print_table
from numpy.typing import NDArray
from row_shapes import shapes
from sizes import ShapeRows
from stores import Backend, sketch, temporary_folder

from feast_sketch_store import SketchReader

FEATURE = "viewed"
MANY = 1_000


def run(*, quick: bool) -> None:
    rounds, calls = (3, 5) if quick else (25, 20)
    print_set_up(f"default settings; reads in {rounds} turns of {calls}", "feast", "numpy")
    lines = []
    for name, lists in shapes(5_000 if quick else 20_000):
        values = pa.array(lists)
        dtype = Set(Int64 if pa.types.is_integer(values.type.value_type) else String)
        rows = ShapeRows(pa.array(np.arange(len(values))), {FEATURE: (dtype, values)})
        with temporary_folder() as folder:
            store = sketch(folder, rows)
            store.write(rows.to_feast())
            num_bytes = store.online.view(store.config, store.view).stats().snapshot_bytes  # type: ignore[attr-defined]
            reader = SketchReader(folder / "sketch", store.view.name, "shop")
            times = _times(store, reader, rows.num_users, rounds, calls)
            reader.close()
        per_row = f"{rows.num_facts / rows.num_users:.1f}"
        lines.append([name, per_row, f"{8 * num_bytes / rows.num_facts:.2f}", *map("{:.2f}".format, times)])
    header = ["rows", "facts a row", "bits a fact", "ids of one, us", f"csr of {MANY:,}, us a row"]
    print_table([*header, "Feast, one, us", f"Feast, {MANY:,}, us a row"], lines)


def _times(
    store: Backend, reader: SketchReader, num_users: int, rounds: int, calls: int
) -> tuple[float, float, float, float]:
    """Microseconds a row of reads without Feast of one and of many, and through Feast of one and of many."""
    feast, names = store.feature_store, [f"{store.view.name}:{FEATURE}"]

    def user(call: int) -> int:
        return int(np.random.default_rng(call).integers(num_users))

    def users(call: int) -> NDArray[np.int64]:
        return np.random.default_rng(call).choice(num_users, MANY, replace=False)

    ones: dict[str, Callable[[int], object]] = {
        "reader": lambda user: reader.ids(FEATURE, {"user_id": user}),
        "Feast": lambda user: feast.get_online_features(names, [{"user_id": user}]),
    }
    batches: dict[str, Callable[[NDArray[np.int64]], object]] = {
        "reader": lambda users: reader.csr(FEATURE, {"user_id": users}),
        "Feast": lambda users: feast.get_online_features(names, {"user_id": users.tolist()}),
    }
    one = interleaved(ones, user, rounds=rounds, calls=20 * calls)
    many = interleaved(batches, users, rounds=rounds, calls=calls)
    return (1e6 * one["reader"], 1e6 * many["reader"] / MANY, 1e6 * one["Feast"], 1e6 * many["Feast"] / MANY)
