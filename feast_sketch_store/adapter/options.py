"""The options of the store in ``feature_store.yaml``, as Feast loads them; see `settings.table`."""

from collections.abc import Mapping
from typing import Any, Literal

from feast.repo_config import FeastConfigBaseModel
from pydantic import Field, SecretStr, field_serializer, field_validator, model_validator

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
from feast_sketch_store.storage.buckets import option_text
from feast_sketch_store.structures.goals import AUTO

_OwnType = Literal[
    "sketch", "feast_sketch_store.SketchOnlineStore", "feast_sketch_store.online_store.SketchOnlineStore"
]


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

    @model_validator(mode="before")
    @classmethod
    def _read(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        return {**{name: given[name] for name in ("type",) if name in given}, **read_options(given)}

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
