"""What a plan says of Redis and SQLite, against what the rows take in Feast's own stores for them.

The tolerance is 10 % of the measured bytes: of SQLite's file, and of what Redis says of its memory.
"""

from datetime import UTC, datetime

import numpy as np
import pandas as pd
import pytest
from feast import Entity, ValueType
from feast.types import Array, Int64, String

from feast_sketch_store.planning import planner
from feast_sketch_store.planning.curves import sets
from feast_sketch_store.planning.other_stores import REDIS, SQLITE
from feast_sketch_store.planning.planner import plan_view
from tests.helpers.redis_server import running_redis
from tests.helpers.repository import make_repository, make_view

TOLERANCE = 0.1
EVENT = datetime(2026, 5, 1, tzinfo=UTC)


def short_strings(rng, num_users):
    return [
        [f"v{value}" for value in set(rng.integers(0, 50, count))] for count in rng.integers(1, 4, num_users)
    ]


def long_numbers(rng, num_users):
    counts = rng.integers(50, 400, num_users)
    return [[int(value) for value in set(rng.integers(0, 20_000, count))] for count in counts]


def mixed_numbers(rng, num_users):
    counts = rng.integers(0, 40, num_users)
    return [[int(value) for value in set(rng.integers(0, 5_000, count))] for count in counts]


ROWS = {
    "short strings": (short_strings, 4_000, Array(String), ValueType.INT64, 40),
    "long numbers": (long_numbers, 1_200, Array(Int64), ValueType.INT64, 3),
    "mixed numbers": (mixed_numbers, 2_500, Array(Int64), ValueType.STRING, 8),
}


@pytest.fixture(scope="module", params=ROWS)
def rows(request):
    """Rows of one shape; the types of their values and of their keys; and the least bytes a fact takes."""
    make, num_users, dtype, key_type, least = ROWS[request.param]
    rng = np.random.default_rng(11)
    users = [
        user if key_type == ValueType.INT64 else f"customer-{7919 * user:012d}" for user in range(num_users)
    ]
    frame = pd.DataFrame({"user_id": users, "viewed": make(rng, num_users), "event": EVENT})
    return frame, dtype, key_type, least


def written(folder, rows, **online_store):
    """A repository with the rows in an online store."""
    frame, dtype, key_type, _ = rows
    reader = Entity(name="reader", join_keys=["user_id"], value_type=key_type)
    view = make_view({"viewed": dtype}, entities=[reader])
    store = make_repository(folder, reader, view, rows=frame, **online_store)
    store.write_to_online_store("history", df=frame)
    return store


@pytest.fixture(scope="module")
def planned(tmp_path_factory, rows):
    """What a plan of half of the entities says: the points by curve, and the number of facts."""
    store = written(tmp_path_factory.mktemp("plan") / "planned", rows)
    with pytest.MonkeyPatch.context() as patch:
        # One point of this store, which this is not about.
        patch.setattr(planner, "candidates", lambda sample, grid: [sets(sample)])
        patch.setattr(planner, "clustered", lambda *_: [])
        plan = plan_view(store, "history", max_entities=len(rows[0]) // 2)
    num_facts = sum(map(len, rows[0].viewed))
    assert plan.facts.value == num_facts
    return {point.curve: point for point in plan.points}, num_facts


def check(point, num_bytes, num_facts, least):
    assert num_bytes / num_facts > least
    assert point.memory_bytes == pytest.approx(num_bytes, rel=TOLERANCE)
    assert point.bits_per_fact == pytest.approx(8 * num_bytes / num_facts, rel=TOLERANCE)
    assert point.memory_low < point.memory_bytes < point.memory_high


@pytest.mark.slow
def test_sqlite(tmp_path, rows, planned):
    points, num_facts = planned
    store = written(tmp_path / "sqlite", rows, type="sqlite", path="online.db")
    file = store.repo_path / "online.db"
    check(points[SQLITE], file.stat().st_size, num_facts, rows[3])


@pytest.fixture
def redis_server(tmp_path):
    """The port of a server that ends with the test, and a client of it."""
    # It grows its table of keys as they come: else a timer goes on with that, and frees the old one later.
    with running_redis(tmp_path, "--activerehashing", "no") as running:
        yield running


@pytest.mark.slow
def test_redis(tmp_path, rows, planned, redis_server):
    port, client = redis_server
    points, num_facts = planned
    written(tmp_path / "redis", rows, type="redis", connection_string=f"localhost:{port}")
    assert client.dbsize() == len(rows[0])
    # What goes with the rows; the buffers of connections stay.
    with_rows = client.info("memory")["used_memory"]
    client.flushall()
    check(points[REDIS], with_rows - client.info("memory")["used_memory"], num_facts, rows[3])
