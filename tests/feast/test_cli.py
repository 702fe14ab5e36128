"""The `feast` command over a repository that never imports the package."""

from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from feast import FeatureStore

from tests.helpers.processes import answering

pytestmark = pytest.mark.slow

FEATURES = """
from feast import Entity, FeatureService, FeatureView, Field, FileSource, ValueType
from feast.types import Array, Int64, Set, String

user = Entity(name="user", join_keys=["user_id"], value_type=ValueType.INT64)
source = FileSource(path="data/rows.parquet", timestamp_field="event", created_timestamp_column="created")
history = FeatureView(
    name="history",
    entities=[user],
    schema=[
        Field(name="viewed", dtype=Set(String)),
        Field(name="liked", dtype=Array(Int64)),
        Field(name="country", dtype=String),
    ],
    source=source,
    tags={"tribe": "sketch"},
)
service = FeatureService(name="recommender", features=[history])
"""


def write_source(path: Path, users: int, country: str, day: int) -> None:
    moment = [datetime(2026, 5, day, tzinfo=UTC)] * users
    pq.write_table(
        pa.table(
            {
                "user_id": pa.array(range(users), pa.int64()),
                "viewed": [[f"a{u}", f"a{u + 1}"] for u in range(users)],
                "liked": [[u] for u in range(users)],
                "country": [country] * users,
                "event": pa.array(moment, pa.timestamp("us", tz="UTC")),
                "created": pa.array(moment, pa.timestamp("us", tz="UTC")),
            }
        ),
        path,
    )


@pytest.fixture
def repo(tmp_path):
    """A feature repository with 300 users; sealed as soon as it is written."""
    (tmp_path / "data").mkdir()
    (tmp_path / "features.py").write_text(FEATURES)
    (tmp_path / "feature_store.yaml").write_text(
        "project: shop\nprovider: local\nregistry:\n  path: data/registry.db\n  cache_ttl_seconds: 1\n"
        "online_store:\n  type: sketch\n  path: data/sketch\n  refresh: 0.1s\n"
        "  compaction: {min_rows: 100}\nentity_key_serialization_version: 3\n"
    )
    write_source(tmp_path / "data" / "rows.parquet", 300, "FR", 1)
    return tmp_path


def _reader_of(repo):
    store = FeatureStore(repo_path=str(repo))

    def read(users):
        service = store.get_feature_service("recommender")
        return store.get_online_features(service, {"user_id": users}).to_dict()

    return read


def test_apply_materialize_read_teardown(repo, warm, warm_feast_cli):
    assert "history" in warm_feast_cli(repo, "apply")
    warm_feast_cli(repo, "plan")
    with answering(warm, _reader_of, repo) as ask:  # runs before anything is materialized
        assert ask([3])["viewed"] == [None]

        warm_feast_cli(repo, "materialize", "2026-04-01T00:00:00", "2026-05-02T00:00:00")
        answer = ask([3, 299, 10**6])
        assert {"a3", "a4"} <= set(answer["viewed"][0])
        assert {299} <= set(answer["liked"][1])
        assert answer["country"] == ["FR", "FR", None]
        assert len(list((repo / "data/sketch/shop/history/snapshots").glob("*.base.*"))) == 1

        write_source(repo / "data" / "rows.parquet", 300, "DE", 3)
        warm_feast_cli(repo, "materialize-incremental", "2026-05-04T00:00:00")
        assert ask([3])["country"] == ["DE"]

    warm_feast_cli(repo, "teardown")
    assert not (repo / "data/sketch/shop").exists()


def test_a_refused_feature_fails_apply_with_one_clear_error(repo, warm_feast_cli):
    features = (repo / "features.py").read_text()
    (repo / "features.py").write_text(
        features.replace(
            '"country", dtype=String', '"price", tags={"sketch.codec": "membership"}, dtype=Float64'
        ).replace("import Array", "import Array, Float64")
    )
    output = warm_feast_cli(repo, "apply", expect_failure=True)
    assert "'price'" in output
    assert "Float64" in output
    assert "sketch.codec" in output


def test_an_unknown_option_fails_with_its_name(repo, warm_feast_cli):
    text = (repo / "feature_store.yaml").read_text()
    (repo / "feature_store.yaml").write_text(text.replace("compaction", "compactions"))
    assert "compactions" in warm_feast_cli(repo, "apply", expect_failure=True)


def _write_rows(repo):
    rows = pd.read_parquet(repo / "data/rows.parquet")
    FeatureStore(repo_path=str(repo)).write_to_online_store("history", df=rows)


def test_inside_the_hybrid_store(repo, warm, warm_feast_cli):
    """Feast 0.67 cannot materialize into its hybrid store, whatever stores are inside: it calls
    `online_write_batch(data=...)`, where the hybrid store names the parameter `odata`."""
    (repo / "feature_store.yaml").write_text(
        "project: shop\nprovider: local\nregistry: data/registry.db\n"
        "online_store:\n  type: hybrid\n  routing_tag: tribe\n  online_stores:\n"
        "    - type: sketch\n      conf: {path: data/sketch, compaction: {min_rows: 100}}\n"
        "entity_key_serialization_version: 3\n"
    )
    warm_feast_cli(repo, "apply")
    writer = warm.Process(target=_write_rows, args=(repo,))
    writer.start()
    writer.join()
    assert writer.exitcode == 0
    with answering(warm, _reader_of, repo) as ask:
        answer = ask([7, 10**6])
    assert {"a7", "a8"} <= set(answer["viewed"][0])
    assert answer["country"] == ["FR", None]
    assert list((repo / "data/sketch/shop/history/snapshots").glob("*.base.*"))
