"""Feast repositories with views that accept pushes."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml
from feast import Entity, FeatureStore, FeatureView, Field, FileSource, PushSource, ValueType
from feast.types import FeastType, Set, String

VIEWED: Mapping[str, FeastType] = {"viewed": Set(String)}


def make_repository(
    folder: Path,
    views: Sequence[str] = ("history",),
    features: Mapping[str, FeastType] = VIEWED,
    *,
    project: str = "shop",
    **options: Any,
) -> FeatureStore:
    """Make a repository with views over ``user_id``, an Int64, and apply them.

    Rows of a view are pushed to ``"<view> clicks"``, with the column ``event``; they do not expire.
    ``options`` go to the online store, a sketch in the folder.
    """
    settings = {
        "project": project,
        "provider": "local",
        "registry": "registry.db",
        "entity_key_serialization_version": 3,
        "online_store": {"type": "sketch", "path": "sketch", **options},
    }
    (folder / "feature_store.yaml").write_text(yaml.safe_dump(settings))
    user = Entity(name="user", join_keys=["user_id"], value_type=ValueType.INT64)
    batch = FileSource(path=str(folder / "rows.parquet"), timestamp_field="event")
    store = FeatureStore(repo_path=str(folder))
    store.apply(
        [
            user,
            *(
                FeatureView(
                    name=name,
                    entities=[user],
                    schema=[Field(name=feature, dtype=dtype) for feature, dtype in features.items()],
                    source=PushSource(name=f"{name} clicks", batch_source=batch),
                    ttl=timedelta(days=36_500),
                )
                for name in views
            ),
        ]
    )
    return store
