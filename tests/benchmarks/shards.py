"""`get_online_features` of a view in one shard and of the same rows in several, in turns: times and ratios.

    .venv/bin/python -m tests.benchmarks.shards --shards 16

The aim is a ratio of at most 1.2, for 1 entity and for 100.
"""

import argparse
import statistics
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
from feast import FeatureStore
from feast.types import Int64, Set, String

from tests.helpers.repository import make_repository, make_view, materialize

NUM_USERS = 20_000
EVENT = datetime(2026, 5, 1, tzinfo=UTC)
FEATURES = ["history:viewed", "history:country", "history:visits"]


def repository(folder: Path, num_shards: int, rows: pd.DataFrame) -> FeatureStore:
    """A store with a sealed view."""
    view = make_view({"viewed": Set(Int64), "country": String, "visits": Int64})
    return materialize(
        make_repository(folder, view, rows=rows, structure="sets", shards={"count": num_shards}), EVENT
    )


def seconds_of(store: FeatureStore, users: list[int]) -> float:
    """How long one call takes."""
    entities = {"user_id": users}
    began = time.perf_counter()
    store.get_online_features(FEATURES, entities)
    return time.perf_counter() - began


def main() -> None:
    """Print medians in microseconds, and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--calls", type=int, default=2_000)
    given = parser.parse_args()
    rng = np.random.default_rng(1)
    rows = pd.DataFrame(
        {
            "user_id": range(NUM_USERS),
            "viewed": [rng.integers(0, 5_000, 20).tolist() for _ in range(NUM_USERS)],
            "country": rng.choice(["FR", "DE", "IT"], NUM_USERS),
            "visits": rng.integers(0, 1_000, NUM_USERS),
            "event": EVENT,
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        stores = {n: repository(Path(folder) / str(n), n, rows) for n in (1, given.shards)}
        for number, calls in ((1, given.calls), (100, given.calls // 5)):
            taken: dict[int, list[float]] = {n: [] for n in stores}
            for _ in range(calls):
                users = rng.integers(0, NUM_USERS, number).tolist()
                for n, store in stores.items():
                    taken[n].append(seconds_of(store, users))
            medians = {n: 1e6 * statistics.median(own[calls // 10 :]) for n, own in taken.items()}
            ratio = medians[given.shards] / medians[1]
            told = ", ".join(f"{median:.1f} us in {n} shards" for n, median in medians.items())
            print(f"{number} entities: {told}; ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
