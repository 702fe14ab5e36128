"""The options of the store in ``feature_store.yaml``, as Feast loads them; see `settings.table`; and
what they say: where a view is, who may write, and when views are sealed.
"""

import functools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from feast.feature_view import FeatureView
from feast.repo_config import FeastConfigBaseModel, RepoConfig
from pydantic import (
    Field,
    PrivateAttr,
    SecretStr,
    ValidationError,
    field_serializer,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from feast_sketch_store.errors import StorageError
from feast_sketch_store.settings.resolve import resolve
from feast_sketch_store.settings.table import (
    DEFAULT_PATH,
    Advanced,
    Backing,
    Compaction,
    Gate,
    Refresh,
    Sharding,
    Ttl,
    plain,
    read_options,
)
from feast_sketch_store.settings.values import KeptValues, Target
from feast_sketch_store.settings.view_settings import ViewSettings
from feast_sketch_store.storage.base import Storage
from feast_sketch_store.storage.buckets import is_url, option_text
from feast_sketch_store.storage.names import folder_name
from feast_sketch_store.storage.stores import StorePlace
from feast_sketch_store.structures.goals import AUTO
from feast_sketch_store.view.seal_policy import SealPolicy

_OwnType = Literal[
    "sketch", "feast_sketch_store.SketchOnlineStore", "feast_sketch_store.online_store.SketchOnlineStore"
]

_MAX_VERSIONS = 1_000  # of a view, that are looked for


def _current_folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:  # it was removed: absolute paths need none
        return Path()


class OnlineStoreOptions(FeastConfigBaseModel):
    """The ``online_store`` section of ``feature_store.yaml``."""

    type: _OwnType = "sketch"
    """Selects this store; the class paths work where the short name is not registered."""

    path: str = DEFAULT_PATH
    storage_options: dict[str, SecretStr] = Field(default_factory=dict)
    cache_path: str | None = None
    read_only: bool = False
    target: Target = Target(AUTO)
    structure: str = AUTO
    vocabulary: KeptValues | None = None
    default_codec: str = AUTO
    ttl: Ttl = Ttl()
    backing_store: Backing | None = None
    shards: Sharding = Sharding()
    refresh: Refresh = Refresh()
    compaction: Compaction = Compaction()
    gate: Gate = Gate()
    advanced: Advanced = Advanced()

    _read_in: Path = PrivateAttr(default_factory=_current_folder)

    @property
    def read_in(self) -> Path:
        """What Feast's folder of the repository is relative to: the process may change its folder later."""
        private = self.__pydantic_private__  # each read asks; by its name it takes 30 times as long
        assert private is not None
        folder: Path = private["_read_in"]
        return folder

    @model_validator(mode="before")
    @classmethod
    def _read(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        try:
            return {**{name: given[name] for name in ("type",) if name in given}, **read_options(given)}
        except ValueError as error:
            # Pydantic shows the input beside the message: here only the names, as values may be credentials.
            problem = PydanticCustomError("value_error", "{problem}", {"problem": str(error)})
            details = InitErrorDetails(type=problem, input=list(given))
            raise ValidationError.from_exception_data(cls.__name__, [details]) from None

    @field_validator("storage_options", mode="before")
    @classmethod
    def _hide(cls, given: Mapping[str, Any]) -> dict[str, SecretStr]:
        return {name: SecretStr(option_text(value)) for name, value in given.items()}

    @field_serializer(
        *("target", "vocabulary", "ttl", "backing_store", "shards", "refresh", "compaction", "gate"),
        "advanced",
    )
    def _as_yaml(self, value: Any) -> Any:
        return plain(value)


def seal_policy(options: OnlineStoreOptions) -> SealPolicy:
    """When views are sealed, and who does it."""
    compaction = options.compaction
    return SealPolicy(compaction.share, compaction.min_rows, compaction.by_job, is_url(options.path))


def require_writer(config: RepoConfig) -> None:
    """Refuse to change the store if it is a replica."""
    if config.online_store.read_only:
        raise StorageError(
            f"project {config.project!r}: online_store has read_only: true; write, apply and seal with a "
            "configuration without it"
        )


def name_in_store(config: RepoConfig, table: FeatureView) -> str:
    """The name of what the store keeps for a view, or for the version of it that is meant."""
    return versioned_name(table.name, version_of(config, table) or 0)


def version_of(config: RepoConfig, table: FeatureView) -> int | None:
    """The version of a view that is meant; None if versions are not kept apart, or it was never applied."""
    version = None
    if config.registry.enable_online_feature_view_versioning:
        version = getattr(table.projection, "version_tag", None)
        if version is None:
            version = getattr(table, "current_version_number", None)
    return version


def settings_of(config: RepoConfig, table: FeatureView) -> ViewSettings:
    """The settings of a view, with the name by which commands and errors know it: also the first version has
    its number if versions are kept apart, because commands take the plain name for the version in use.
    """
    settings, version = resolve(config.online_store, table, folder_of(config)), version_of(config, table)
    return settings if version is None else replace(settings, view=f"{table.name}@v{version}")


def versioned_name(view: str, version: int) -> str:
    """No view's name holds an "@": Feast itself writes it between view and version."""
    return f"{view}@v{version}" if version else view


def stored_versions(config: RepoConfig, table: FeatureView) -> dict[int, Storage]:
    """All versions of a view, with their storages: those up to its own, and all others that the store has.

    A declaration that was not applied has no version, and one that is pinned to a version has newer ones.
    """
    own = getattr(table, "current_version_number", None) or 0
    stored = set(place_of(config).project(config.project).folders())
    names = [versioned_name(table.name, version) for version in range(max(own + 1, _MAX_VERSIONS))]
    return {
        version: view_storage(config, name)
        for version, name in enumerate(names)
        if version <= own or folder_name(name) in stored
    }


def folder_of(config: RepoConfig) -> Path:
    """The folder of a repository. Feast's may be relative to what was the current one when it was opened."""
    read_in: Path = config.online_store.read_in
    return read_in / (config.repo_path or "")


def place_of(config: RepoConfig) -> StorePlace:
    """Where the store of a repository is."""
    options = config.online_store
    return StorePlace.of(folder_of(config), options.path, options.storage_options, options.cache_path)


def view_storage(config: RepoConfig, name: str) -> Storage:
    """The storage of what the store keeps under a name; it may be empty."""
    options = config.online_store
    folder = options.read_in, config.repo_path
    given = tuple(options.storage_options.items())
    more = options.cache_path, options.read_only
    return _view_storage(folder, options.path, given, more, config.project, name)


@functools.lru_cache(maxsize=1024)  # cached, because every read turns names into folders
def _view_storage(
    folder: tuple[Path, Path | None],
    path: str,
    options: tuple[tuple[str, SecretStr], ...],
    more: tuple[str | None, bool],
    project: str,
    view: str,
) -> Storage:
    read_in, repo_path = folder
    return StorePlace.of(read_in / (repo_path or ""), path, dict(options), *more).view(project, view)
