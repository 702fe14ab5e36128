"""What a seal takes in memory grows with the entities of a view, and hardly with its facts."""

import tracemalloc
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest

from feast_sketch_store.layers import Goal, plan
from feast_sketch_store.rows import spill
from feast_sketch_store.rows.arrow_rows import from_columns
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.settings.view_settings import FeatureSettings, ViewSettings
from feast_sketch_store.storage.local import LocalStorage
from feast_sketch_store.structures import feature_rows
from feast_sketch_store.view.seal_policy import SealPolicy
from feast_sketch_store.view.view import View

CODEC = FeatureCodec("viewed", "int64_set_val")
SETTINGS = ViewSettings("history", 1e-5, {"viewed": FeatureSettings(CODEC, Goal("noise_ratio", 0.1), 10**6)})
FACTS = 20  # of a user, of ...
VALUES = 2_000
FILE_ROWS = 5_000
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


def written(first):
    """The rows of some users, in the form of the row log."""
    rng = np.random.default_rng(first)
    users = np.arange(first, first + FILE_ROWS)
    items = (rng.integers(0, VALUES, (len(users), 1)) + np.arange(FACTS) * 97) % VALUES
    table = pa.table(
        {
            "user_id": users,
            "viewed": pa.ListArray.from_arrays(np.arange(0, items.size + 1, FACTS), items.ravel()),
            "event_timestamp": pa.array([NOON] * len(users), pa.timestamp("us", "UTC")),
        }
    )
    return from_columns(table, [CODEC], {"user_id": "int64_val"})


def peak_of_a_seal(folder, num_users):
    """The bytes that a seal of users allocates at most, other than in buffers of Arrow."""
    view = View(LocalStorage(folder), SETTINGS, SealPolicy(by_job=True))
    files = [
        file for first in range(0, num_users, FILE_ROWS) for file in view.stage([written(first)], "job-")
    ]
    view.commit_staged(files)
    tracemalloc.start()
    try:
        assert view.seal()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        view.close()


@pytest.mark.slow
def test_a_fact_takes_at_most_six_bytes(tmp_path, monkeypatch):
    # What does not grow with a view is made small enough for views of half a second.
    monkeypatch.setattr(spill, "MEMORY_BYTES", 1 << 16)
    monkeypatch.setattr(feature_rows, "BLOCK_FACTS", 1 << 15)
    monkeypatch.setattr(plan, "_TRIAL_FACTS", 1 << 15)
    few, many = 20_000, 60_000
    grown = peak_of_a_seal(tmp_path / "many", many) - peak_of_a_seal(tmp_path / "few", few)
    assert grown <= 6 * FACTS * (many - few)
