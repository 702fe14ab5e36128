"""Uses an installed wheel as a new user would: ``python -I tests/release/smoke.py``.

Applies a repository that names ``type: sketch``, materializes, seals, and reads in another process. Exits
with an error if the package comes from anywhere but site-packages.
"""

import subprocess
import sys
import sysconfig
import tempfile
from datetime import UTC, datetime
from pathlib import Path

SETTINGS = """
project: smoke
provider: local
registry: registry.db
online_store: {type: sketch, path: sketch, compaction: {min_rows: 1}}
entity_key_serialization_version: 3
"""
DEFINITIONS = """
from feast import Entity, FeatureView, Field, FileSource, ValueType
from feast.types import Array, Int64, String

user = Entity(name="user", join_keys=["user_id"], value_type=ValueType.INT64)
history = FeatureView(
    name="history",
    entities=[user],
    schema=[
        Field(name="viewed", dtype=Array(String)),
        Field(name="country", dtype=String),
        Field(name="user_id", dtype=Int64),
    ],
    source=FileSource(path="rows.parquet", timestamp_field="event_timestamp"),
)
"""
READ = """
import sys
from feast import FeatureStore

features = ["history:viewed", "history:country"]
rows = [{"user_id": 0}, {"user_id": 299}, {"user_id": 300}]
answer = FeatureStore(sys.argv[1]).get_online_features(features, rows).to_dict()
first, last, nobody = answer["viewed"]
# By default a filter may be the smallest, which adds values now and then.
assert {"a0", "b0"} <= set(first) and {"a299", "b2"} <= set(last) and nobody is None, answer
assert answer["country"] == ["FR", "DE", None], answer
"""
NUM_USERS = 300


def main() -> None:
    import feast_sketch_store

    place = Path(feast_sketch_store.__file__)
    assert place.is_relative_to(sysconfig.get_path("platlib")), f"{place} is not the installed wheel"
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder)
        (repository / "feature_store.yaml").write_text(SETTINGS)
        (repository / "definitions.py").write_text(DEFINITIONS)
        _write_rows(repository / "rows.parquet")
        scripts = Path(sysconfig.get_path("scripts"))
        for command in ("apply", "materialize 2026-01-01T00:00:00 2026-12-31T00:00:00"):
            subprocess.run([scripts / "feast", *command.split()], cwd=repository, check=True)
        subprocess.run([scripts / "feast-sketch", "inspect"], cwd=repository, check=True)
        subprocess.run([sys.executable, "-I", "-c", READ, folder], cwd=repository, check=True)
    print(f"feast_sketch_store {feast_sketch_store.__version__}: applied, written, sealed and read")


def _write_rows(path: Path) -> None:
    import pandas as pd

    frame = pd.DataFrame(
        {
            "user_id": range(NUM_USERS),
            "viewed": [[f"a{user}", f"b{user % 3}"] for user in range(NUM_USERS)],
            "country": ["FR" if user % 2 == 0 else "DE" for user in range(NUM_USERS)],
            "event_timestamp": datetime(2026, 5, 1, tzinfo=UTC),
        }
    )
    frame.to_parquet(path)


if __name__ == "__main__":
    main()
