"""A repository whose view an engine of Feast fills, and the rows that reads must return."""

import os
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from feast import Entity, FeatureStore, FeatureView, Field, FileSource
from feast.repo_config import RepoConfig
from feast.types import Int64, Set, String
from feast.value_type import ValueType

from feast_sketch_store import open_view
from feast_sketch_store.engines import seal_job
from tests.engines import faulty

ROOT = Path(__file__).parents[2]
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
FILES = 4


def items_of(user):
    return [f"item {(user * 7 + 13 * n) % 500}" for n in range(5)]


@dataclass
class Repository:
    """A repository of one view, with a parquet source of users 0 to ``num_users`` - 1."""

    store: FeatureStore
    num_users: int

    def materialize(self):
        self.store.materialize(NOON - timedelta(days=1), NOON + timedelta(days=1))

    @property
    def view(self):
        """The view as another process would open it."""
        fresh = FeatureStore(config=self.store.config)
        view = open_view(fresh, "history")
        view.refresh()
        return view

    def check(self):
        """Every row reads back as it is in the source."""
        users = range(self.num_users + 1)
        read = FeatureStore(config=self.store.config).get_online_features(
            ["history:viewed"], [{"user_id": user} for user in users]
        )
        values = read.to_dict()["viewed"]
        assert values.pop() is None
        wrong = [u for u, items in enumerate(values) if items is None or set(items) != set(items_of(u))]
        assert not wrong


@pytest.fixture
def make_repository(tmp_path, monkeypatch):
    """Makes a repository; ``source`` makes its batch source of a folder and options, and ``has_null`` has one
    row without a key, which the store refuses."""

    def make(engine, offline_store, source=FileSource, num_users=1_000, has_null=False, **online_store):
        folder = tmp_path / "rows"
        folder.mkdir()
        for part in range(FILES):
            users = [*range(part, num_users, FILES)]
            keys = [None if has_null and user == num_users // 2 else user for user in users]
            # Each user has an older row, too, which must lose.
            table = pa.table(
                {
                    "user_id": pa.array([*keys, *users], pa.int64()),
                    "viewed": [items_of(user) for user in users] + [["old"]] * len(users),
                    "event_timestamp": pa.array(
                        [NOON] * len(users) + [NOON - timedelta(hours=1)] * len(users),
                        pa.timestamp("us", "UTC"),
                    ),
                }
            )
            pq.write_table(table, folder / f"{part}.parquet")
        config = RepoConfig(
            project="shop",
            provider="local",
            registry=str(tmp_path / "registry.db"),
            repo_path=tmp_path,
            online_store={
                "type": "sketch",
                "path": str(tmp_path / "sketch"),
                "structure": "sets",  # whose reads are exact
                **online_store,
            },
            offline_store=offline_store,
            batch_engine=engine,
            entity_key_serialization_version=3,
        )
        store = FeatureStore(config=config)
        user = Entity(name="user", join_keys=["user_id"], value_type=ValueType.INT64)
        view = FeatureView(
            name="history",
            entities=[user],
            schema=[Field(name="user_id", dtype=Int64), Field(name="viewed", dtype=Set(String))],
            source=source(name="rows", path=str(folder), timestamp_field="event_timestamp"),
            ttl=timedelta(0),
        )
        store.apply([user, view])
        return Repository(store, num_users)

    return make


@pytest.fixture
def check_shards(tmp_path, monkeypatch):
    """Fills a repository of shards and seals them by tasks of an engine, of which one dies once."""

    def run(repository, engine):
        repository.materialize()
        assert repository.view.stats().unsealed_rows == repository.num_users
        monkeypatch.setattr(seal_job, "run_step", faulty.DyingStep(str(tmp_path)))
        assert seal_job.seal(repository.store, "history", engine)
        assert (tmp_path / "died").exists()
        assert repository.view.stats().sealed_entities == repository.num_users
        repository.check()

    return run


@pytest.fixture(scope="module", autouse=True)
def workers_find_the_tests():
    """Workers are other processes, which import what the tests pass to them."""
    before = dict(os.environ)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [before.get("PYTHONPATH")])])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    yield
    os.environ.clear()
    os.environ.update(before)
