"""A month in the life of a view: 25,000 entities, a part of them overwritten every day.

In the short form it has 10 days and 10,000 entities.
"""

import math
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pytest
from feast.types import Array, Int64

from feast_sketch_store import open_view
from feast_sketch_store.operations import maintenance
from tests.helpers.repository import ROWS, make_repository, make_view, read_users

NUM_USERS = 10_000
USERS_PER_DAY = NUM_USERS // 25
SEAL_OPTIONS = {"compaction": {"min_rows": 400}}  # the rows of a day; 1,000 are the default
DAYS = 10
FIRST_DAY = datetime(2026, 4, 1, tzinfo=UTC)
VOCABULARY = 2_000


def rows_of(users, day, rng):
    """A row per user: ten items, of which the first tells the day."""
    items = rng.integers(DAYS + 1, VOCABULARY, (len(users), 10))
    items[:, 0] = day
    seconds = rng.integers(0, 86_400, len(users))
    return pd.DataFrame(
        {
            "user_id": users,
            "viewed": list(items),
            "event": [FIRST_DAY + timedelta(days=day, seconds=int(s)) for s in seconds],
        }
    )


@pytest.mark.slow
def test_daily_increments_keep_the_latest_row_and_the_memory_bounded(tmp_path):
    """Memory: at most 1.35 times that of the same rows freshly sealed, on every day."""
    rng = np.random.default_rng(7)
    rows = rows_of(np.arange(NUM_USERS), 0, rng)
    store = make_repository(tmp_path, make_view({"viewed": Array(Int64)}), rows=rows, **SEAL_OPTIONS)
    newest = np.zeros(NUM_USERS, np.int64)
    sealed_bytes, largest, num_seals = 0, 0.0, 0
    for day in range(DAYS):
        if day:
            users = rng.choice(NUM_USERS, USERS_PER_DAY, replace=False)
            newest[users] = day
            rows_of(users, day, rng).to_parquet(tmp_path / ROWS)
        store.materialize_incremental(FIRST_DAY + timedelta(days=day + 1))
        opened = open_view(store, "history")
        opened.settle()  # a seal beside the write, if one is due
        stats = opened.stats()
        if stats.unsealed_rows == 0:
            sealed_bytes, num_seals = stats.snapshot_bytes, num_seals + 1
        largest = max(largest, (stats.snapshot_bytes + stats.unsealed_bytes) / sealed_bytes)
    assert largest <= 1.35
    assert 2 <= num_seals <= DAYS / 2

    asked = rng.choice(NUM_USERS, 3_000, replace=False).tolist()
    answer = read_users(store, ["history:viewed"], asked)
    days = [set(items).intersection(range(DAYS)) for items in answer["viewed"]]
    assert all(newest[u] in found for u, found in zip(answer["user_id"], days, strict=True))
    # Not the union of the past: what is more than the day of the last row are false positives, at a
    # rate of 0.01 of the other days. Interval: 3,000 * 29 * 0.01 = 870 of 30 days, five standard deviations
    # are 150; false positives of one read cluster, so twice that.
    extra, expected = sum(len(found) - 1 for found in days), 3_000 * (DAYS - 1) * 0.01
    assert extra <= expected + 10 * math.sqrt(expected)

    assert maintenance.verify(store, "history").problems == []
    before = open_view(store, "history").stats()
    maintenance.seal(store, "history")
    after = open_view(store, "history").stats()
    assert before.snapshot_bytes + before.unsealed_bytes <= 1.35 * after.snapshot_bytes
    assert after.sealed_entities == NUM_USERS
