"""Feast repositories: their settings, views over ``user_id``, and what they answer about users."""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from click.testing import CliRunner, Result
from feast import Entity, FeatureStore, FeatureView, Field, FileSource, PushSource, ValueType
from feast.data_source import DataSource, PushMode
from feast.repo_config import RepoConfig
from feast.types import FeastType

from feast_sketch_store.cli import cli

USER = Entity(name="user", join_keys=["user_id"], value_type=ValueType.INT64)
ROWS = "rows.parquet"
UNSEALED = {"compaction": {"min_rows": 10**9}}
SEALED = {"compaction": {"min_rows": 0, "share": 1e-9}}  # at each write
STATES = [pytest.param(UNSEALED, id="unsealed"), pytest.param(SEALED, id="sealed")]


def _settings(project: str, registry: str | Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a repository; ``options`` are those of the online store, by default a sketch."""
    if options.get("type", "sketch") == "sketch":
        options = {"type": "sketch", "path": "sketch", **options}
    return {
        "project": project,
        "provider": "local",
        "registry": registry,
        "entity_key_serialization_version": 3,
        "online_store": options,
    }


def make_config(
    folder: Path,
    project: str = "shop",
    registry: Any = None,
    beside: Mapping[str, Any] | None = None,
    **options: Any,
) -> RepoConfig:
    """The configuration of a repository, with whole paths.

    ``options`` go to its online store; ``beside`` has other settings, which replace those that are made here.
    """
    if options.get("type", "sketch") == "sketch":
        options = {"path": str(folder / "sketch"), **options}
    settings = _settings(project, registry or str(folder / "registry.db"), options)
    return RepoConfig(**{**settings, **(beside or {})}, repo_path=folder)


def make_repository(
    folder: Path,
    *objects: Any,
    rows: pd.DataFrame | None = None,
    project: str = "shop",
    registry: Any = "registry.db",
    **options: Any,
) -> FeatureStore:
    """Write ``feature_store.yaml``, and the rows that views take by default; apply the user and the objects.

    ``options`` go to the online store, a sketch in the folder unless they say otherwise.
    """
    folder.mkdir(exist_ok=True)
    (folder / "feature_store.yaml").write_text(yaml.safe_dump(_settings(project, registry, options)))
    if rows is not None:
        rows.to_parquet(folder / ROWS)
    store = FeatureStore(repo_path=str(folder))
    if objects:
        store.apply([USER, *objects])
    return store


def copy_repository(made: Path, folder: Path) -> FeatureStore:
    """A copy of what `make_repository` made, with all that was written to it; opens it."""
    shutil.copytree(made, folder, dirs_exist_ok=True)
    return FeatureStore(repo_path=str(folder))


def another(place: FeatureStore | Path, **options: Any) -> FeatureStore:
    """The repository in a folder, or of a store, as another process opens it.

    ``options`` are written into the section of its online store before; ``type`` replaces that.
    """
    folder = place if isinstance(place, Path) else Path(place.repo_path)
    if options:
        path = folder / "feature_store.yaml"
        settings = yaml.safe_load(path.read_text())
        kept = {} if "type" in options else settings["online_store"]
        path.write_text(yaml.safe_dump({**settings, "online_store": {**kept, **options}}))
    return FeatureStore(repo_path=str(folder))


def push(store: FeatureStore, source: str = "clicks", **columns: Any) -> None:
    """Push rows to the online store; a value that is no list is that of all rows."""
    store.push(source, pd.DataFrame(columns), to=PushMode.ONLINE)


def make_view(
    features: Mapping[str, FeastType] | Iterable[Field],
    source: DataSource | Path | str = ROWS,
    *,
    name: str = "history",
    entities: Sequence[Entity] = (USER,),
    pushed: str = "",
    ttl: timedelta = timedelta(0),
    **options: Any,
) -> FeatureView:
    """A view over a Parquet file of the repository, with the column ``event``, or over a source.

    ``pushed`` is the name of a source to push to. Rows do not expire by default. ``options`` are Feast's.
    """
    if isinstance(features, Mapping):
        features = [Field(name=feature, dtype=dtype) for feature, dtype in features.items()]
    if not isinstance(source, DataSource):
        source = FileSource(path=str(source), timestamp_field="event")
    if pushed:
        source = PushSource(name=pushed, batch_source=source)
    return FeatureView(name=name, entities=[*entities], schema=[*features], source=source, ttl=ttl, **options)


def materialize(store: FeatureStore, moment: Any, **options: Any) -> FeatureStore:
    """Materialize the rows of two days around a moment."""
    store.materialize(moment - timedelta(days=1), moment + timedelta(days=1), **options)
    return store


def read_users(
    store: FeatureStore, features: Any, users: Iterable[Any], **options: Any
) -> dict[str, list[Any]]:
    """What ``get_online_features`` answers about users, by name."""
    rows = [{"user_id": user} for user in users]
    return store.get_online_features(features, rows, **options).to_dict()


def run_cli(folder: str | Path, *arguments: str, status: int = 0, input: str | None = None) -> Result:
    """Run ``feast-sketch`` in a repository, in this process: what it printed, with this exit status."""
    done = CliRunner().invoke(cli, ["-c", str(folder), *arguments], input=input, catch_exceptions=False)
    assert done.exit_code == status, done.output
    return done
