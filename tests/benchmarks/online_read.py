"""`online_read` of ours, SQLite and Redis on loopback, for the same rows."""

from functools import partial

import numpy as np
from feast import FeatureView
from feast.types import Int64, String
from measure import medians, short, table
from stores import (
    VALUES_PER_USER,
    VOCABULARY,
    Store,
    every_store,
    history_rows,
    history_view,
    keys,
    temporary_folder,
    to_feast,
)

BATCHES = (1, 10, 100, 1_000)


def run(quick: bool) -> None:
    users = 2_000 if quick else 20_000
    for element in (Int64, String):
        compare(users, element, 5 if quick else 41)


def read(store: Store, view: FeatureView, wanted: list) -> list:
    return store.store.online_read(store.config, view, wanted, ["items"])


def compare(users: int, element: object, rounds: int) -> None:
    view = history_view(element)
    rows = to_feast(history_rows(users, element), view)
    rng = np.random.default_rng(1)
    lines = []
    with temporary_folder() as folder, every_store(folder) as stores:
        for store in stores:
            store.write(view, rows)
        del rows  # a serving process does not hold them, and the garbage collector need not visit them
        stats = stores[0].store.view(stores[0].config, view).stats()
        assert stats.sealed_entities == users, "the sketch must be sealed to be compared"
        assert stats.unsealed_rows == 0
        for batch in BATCHES:
            wanted = keys(rng.choice(users, batch, replace=False))
            times = medians({s.name: partial(read, s, view, wanted) for s in stores}, rounds)
            ours = times["sketch"]
            line = [batch, *(short(times[s.name] * 1e6) for s in stores)]
            lines.append(line + [short(ours / times[s.name]) for s in stores[1:]])
        names = [store.name for store in stores]
    print(
        f"`online_read`, {users:,} users with {VALUES_PER_USER} of {VOCABULARY:,} values each, "
        f"Array({element}), error rate 0.01, {rounds} rounds\n"
    )
    table(
        ["entities", *(f"{n}, us" for n in names), *(f"sketch / {n}" for n in names[1:])],
        lines,
    )
    print()
