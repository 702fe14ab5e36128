"""Where a reader finds a view: by the folder of a feature repository, or of a store, or by its URL."""

import os
from collections.abc import Mapping
from pathlib import Path

import yaml

from feast_sketch_store.errors import SettingsError
from feast_sketch_store.storage.base import Storage
from feast_sketch_store.storage.buckets import is_url
from feast_sketch_store.storage.stores import StorePlace
from feast_sketch_store.view.settings import DEFAULT_PATH, DEFAULT_REFRESH_INTERVAL_SECONDS

_YAML = "feature_store.yaml"


def find_view(
    given: str, feature_view: str, project: str | None, storage_options: Mapping[str, str] | None
) -> tuple[Storage, float]:
    """The storage of a view, and the refresh interval that is configured."""
    interval = DEFAULT_REFRESH_INTERVAL_SECONDS
    if is_url(given):
        return StorePlace.of(None, given, storage_options).find_view(project, feature_view), interval
    path = Path(given)
    place = StorePlace(path)
    config = path / _YAML if path.is_dir() else path
    if config.is_file():
        # As Feast does, variables of the environment are filled in.
        settings = yaml.safe_load(os.path.expandvars(config.read_text())) or {}
        online_store = settings.get("online_store")
        online_store = online_store if isinstance(online_store, dict) else {"type": online_store}
        if "sketch" not in str(online_store.get("type", "")).lower():
            raise SettingsError(
                f"{config}: the online store is of type {online_store.get('type')!r}, not sketch"
            )
        project = project or settings.get("project")
        interval = float(online_store.get("refresh_interval_seconds", interval))
        options = storage_options or online_store.get("storage_options")
        place = StorePlace.of(config.parent, online_store.get("path", DEFAULT_PATH), options)
    elif not path.is_dir():
        raise SettingsError(f"{path}: is neither a {_YAML} nor a folder with one, nor the folder of a store")
    return place.find_view(project, feature_view), interval
