"""Sets and counts that grow: values added in batches and one by one, beside pushes of whole rows, and a seal.

The same values of the same users are added to sets with `Sets.add`, counted with `Counts.increment`, each
with an id of its own, and pushed as whole rows to a view whose rows replace each other. Each call is durable
when it returns. Sealed, sets take the same bytes as whole rows.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from feast import FeatureStore, Field
from feast.types import Array, Int64, Set
from measure import interleaved, number, print_set_up, print_table, seconds
from stores import temporary_folder

from feast_sketch_store import Counts, Sets, SketchReader, open_view

sys.path.insert(0, str(Path(__file__).parents[2]))  # for what tests share
from tests.helpers.repository import make_repository, make_view

SIZE, VALUES, BATCH = 200, 20_000, 10_000
GROWN, WHOLE, COUNTED = "sets that grow", "whole rows", "counts that grow"


def run(quick: bool = False) -> None:
    """Print rates of writes, bytes of sealed values, and times of reads."""
    num_users = 200 if quick else 2_000
    with temporary_folder() as folder:
        print_set_up(f"{num_users:,} users with {SIZE} values each", "numpy", "feast", "pyarrow")
        store = _store(folder)
        sets = Sets(store, "grown", "liked")
        rng = np.random.default_rng(7)
        users = rng.permutation(np.repeat(np.arange(num_users), SIZE))
        values = (VALUES * rng.random(len(users)) ** 3).astype(np.int64)
        _writes(store, sets, users, values)
        _single_writes(store, sets, 50 if quick else 1_000)
        _sealed(store, num_users, quick)


def _store(folder: Path) -> FeatureStore:
    rows = pd.DataFrame({"user_id": [0], "liked": [[0]], "event": [pd.Timestamp.now("UTC")]})
    liked = Field(name="liked", dtype=Array(Int64), tags={"sketch.codec": "counts"})
    ids = Field(name="ids", dtype=Array(Int64), tags={"sketch.ids_of": "liked"})
    views = [
        make_view(features, name=name, pushed=name, tags={"sketch.rows": rule})
        for name, features, rule in (
            ("grown", {"liked": Set(Int64)}, "append"),
            ("whole", {"liked": Set(Int64)}, "replace"),
            ("counted", [liked, ids], "append"),
        )
    ]
    return make_repository(folder, *views, rows=rows, compaction={"min_rows": 100_000_000})


def _writes(store: FeatureStore, sets: Sets, users: np.ndarray, values: np.ndarray) -> None:
    """All values in batches: added one by one to sets, removed again in part, and pushed as whole rows."""
    parts = [slice(first, first + BATCH) for first in range(0, len(users), BATCH)]
    removed = parts[: len(parts) // 4]
    adding = _spent(lambda: [sets.add(users[part], values[part]) for part in parts])
    removing = _spent(lambda: [sets.remove(users[part], values[part]) for part in removed])
    for part in removed:
        sets.add(users[part], values[part])
    rows = pd.DataFrame({"user_id": users, "liked": values}).groupby("user_id").agg(list).reset_index()
    rows["event"] = pd.Timestamp.now("UTC")
    pushed = [rows.iloc[first : first + BATCH // SIZE] for first in range(0, len(rows), BATCH // SIZE)]
    pushing = _spent(lambda: [store.push("whole", part) for part in pushed])
    counts = Counts(store, "counted", "liked")
    ids = np.random.default_rng(3).integers(0, 1 << 62, len(users))
    counting = _spent(lambda: [counts.increment(users[p], values[p], event_ids=ids[p]) for p in parts])
    again = _spent(lambda: [counts.increment(users[p], values[p], event_ids=ids[p]) for p in removed])
    lines = [
        _rates("Sets.add", len(users), adding),
        _rates("Sets.remove", len(removed) * BATCH, removing),
        _rates("Counts.increment, with ids", len(users), counting),
        _rates("the same ids again", len(removed) * BATCH, again),
        _rates("push of whole rows", len(users), pushing),
    ]
    print_table([f"batches of {BATCH:,} values", "values/s", "values per second of CPU time"], lines)


def _spent(run: Callable[[], object]) -> tuple[float, float]:
    """Seconds, and seconds of CPU time of all threads, which other processes disturb less."""
    begun, begun_cpu = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - begun, time.process_time() - begun_cpu


def _rates(title: str, number_of: int, spent: tuple[float, float]) -> list[str]:
    return [title, *(number(number_of / each) for each in spent)]


def _single_writes(store: FeatureStore, sets: Sets, number_of: int) -> None:
    """One value a call, beside pushes of one row with one value."""
    row = pd.DataFrame({"user_id": [1], "liked": [[1]], "event": [pd.Timestamp.now("UTC")]})
    times: dict[str, list[float]] = {
        name: [] for name in ("Sets.add", "push to the sets", "push to the counts", "push of a whole row")
    }
    counts = Counts(store, "counted", "liked")
    times["Counts.increment, with ids"] = []
    for n in range(number_of):
        times["Sets.add"].append(seconds(sets.add, [1], [1])[0])
        times["push to the sets"].append(seconds(store.push, "grown", row)[0])
        times["Counts.increment, with ids"].append(seconds(counts.increment, [1], [1], None, [n])[0])
        times["push to the counts"].append(seconds(store.push, "counted", row.assign(ids=[[-n]]))[0])
        times["push of a whole row"].append(seconds(store.push, "whole", row)[0])
    lines = [[name, number(float(np.median(own)) * 1e3)] for name, own in times.items()]
    print_table(["one value a call", "p50 ms"], lines)


def _sealed(store: FeatureStore, num_users: int, quick: bool) -> None:
    """Bytes of sealed values, and reads of 1,000 users, sealed and with a few unsealed values over them."""
    readers = {}
    lines = []
    for name, title in (("grown", GROWN), ("whole", WHOLE)):
        view = open_view(store, name)
        spent, stats = _spent(view.seal), view.stats()
        readers[title] = SketchReader(str(store.repo_path), name)
        per_value = number(stats.snapshot_bytes / stats.sealed_facts)
        lines.append([title, *map(number, spent), f"{stats.sealed_facts:,}", per_value])
    view = open_view(store, "counted")
    spent, layer = _spent(view.seal), view.with_state(lambda state: next(iter(state.shards.values())).sealed)
    for name, title in (("liked", COUNTED), ("ids", "their ids")):
        feature = layer.features[name]
        per_value = number(feature.size_bytes / feature.num_facts)
        lines.append([title, *map(number, spent), f"{feature.num_facts:,}", per_value])
    print_table(["sealed", "seconds of the seal", "of CPU time", "values", "bytes per value"], lines)
    rng = np.random.default_rng(1)
    drawn = [rng.integers(0, num_users, 1_000) for _ in range(9 * 3)]
    rounds = 2 if quick else 9
    sides = {name: lambda users, own=own: own.csr("liked", users) for name, own in readers.items()}
    lines = [_reads("all sealed", sides, drawn, rounds)]
    Sets(store, "grown", "liked").add(np.arange(num_users), rng.integers(0, VALUES, num_users))
    time.sleep(1.1)  # until readers look for what is new
    for reader in readers.values():
        reader.csr("liked", drawn[0])
    lines.append(_reads("one unsealed value for each user of the sets that grow", sides, drawn, rounds))
    print_table(["csr of 1,000 users, ms", *sides], lines)


def _reads(title: str, sides: dict, drawn: list[np.ndarray], rounds: int) -> list[str]:
    times = interleaved(sides, drawn.__getitem__, rounds=rounds, calls=3)
    return [title, *(number(times[name] * 1e3) for name in sides)]
