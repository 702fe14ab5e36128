"""Find the storage of a view: by the folder of a feature repository or of a store, or by a URL."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from feast_sketch_store.errors import SettingsError, StorageError
from feast_sketch_store.settings.table import DEFAULT_PATH, Refresh, Sharding, read_options
from feast_sketch_store.storage.base import Storage
from feast_sketch_store.storage.buckets import is_url
from feast_sketch_store.storage.names import kept_name
from feast_sketch_store.storage.stores import StorePlace

_YAML = "feature_store.yaml"


class Configured(NamedTuple):
    """The settings for readers in a ``feature_store.yaml``."""

    refresh_interval_seconds: float = Refresh().interval_seconds
    is_replica: bool = False
    serve_shards: tuple[int, ...] | None = None


def find_view(
    given: str, feature_view: str, project: str | None, storage_options: Mapping[str, str] | None
) -> tuple[Storage, Configured]:
    """The storage of a view, by what `SketchReader` is given, and the settings for readers.

    Raises SettingsError: there is no such view or store, or its project must be named.
    """
    configured = Configured()
    feature_view = kept_name(feature_view)
    if is_url(given):
        return StorePlace.of(None, given, storage_options).find_view(project, feature_view), configured
    path = Path(given)
    config = path / _YAML if path.is_dir() else path
    if config.is_file():
        settings = _settings_of(config)
        online_store = settings.get("online_store")
        online_store = online_store if isinstance(online_store, dict) else {"type": online_store}
        if "sketch" not in str(online_store.get("type", "")).lower():
            raise SettingsError(
                f"{config}: the online store is of type {online_store.get('type')!r}, not sketch"
            )
        project = project or settings.get("project")
        try:
            options = read_options(online_store, f"{config}: online_store")
        except ValueError as error:
            raise SettingsError(str(error)) from error
        refresh, shards = options.get("refresh", Refresh()), options.get("shards", Sharding())
        configured = Configured(refresh.interval_seconds, options.get("read_only", False), shards.serve)
        place = StorePlace.of(
            config.parent,
            options.get("path", DEFAULT_PATH),
            storage_options or options.get("storage_options"),
            options.get("cache_path") if configured.is_replica else None,
            configured.is_replica,
        )
    elif path.is_dir():
        place = StorePlace.of(None, given)
    else:
        raise SettingsError(f"{path}: is neither a {_YAML}, nor a folder with one, nor the folder of a store")
    try:
        return place.find_view(project, feature_view), configured
    except StorageError:
        if project is None or place.cache_path is None:
            raise
        # The bucket is out of reach, so the cached files of the view, if any, must do.
        return place.view(project, feature_view), configured


def _settings_of(config: Path) -> dict[str, Any]:
    """What a ``feature_store.yaml`` says, with environment variables filled in, as Feast does.

    Raises SettingsError: it is not a mapping in YAML.
    """
    try:
        settings = yaml.safe_load(os.path.expandvars(config.read_text("utf-8"))) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingsError(f"{config}: it is not YAML: {error}") from error
    if not isinstance(settings, dict):
        raise SettingsError(f"{config}: it is not a {_YAML}, which has an option and its value in each line")
    return settings
