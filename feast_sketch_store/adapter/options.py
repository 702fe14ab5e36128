"""The options of the store in ``feature_store.yaml``, with their defaults and checks."""

from datetime import timedelta
from typing import Any, Literal, get_args

from feast.repo_config import FeastConfigBaseModel
from pydantic import Field, SecretStr, StrictStr, field_validator, model_validator

from feast_sketch_store.adapter.backing import FAIL
from feast_sketch_store.storage.buckets import check_url, is_url, option_text
from feast_sketch_store.structures.goals import AUTO
from feast_sketch_store.view.setting_values import (
    RENAMED_STRUCTURES,
    VocabularySetting,
    duration,
    error_rate,
    error_rate_or_auto,
    structure_name,
    vocabulary_setting,
)
from feast_sketch_store.view.settings import (
    DEFAULT_EXPIRED_KEPT_FOR,
    DEFAULT_PATH,
    DEFAULT_REFRESH_INTERVAL_SECONDS,
    RENAMED,
)
from feast_sketch_store.view.shard_map import check_shard_count

_OwnType = Literal[
    "sketch", "feast_sketch_store.SketchOnlineStore", "feast_sketch_store.online_store.SketchOnlineStore"
]
_OWN_TYPES = get_args(_OwnType)


class OnlineStoreOptions(FeastConfigBaseModel):
    """The ``online_store`` section of ``feature_store.yaml``."""

    type: _OwnType = "sketch"
    """Selects this store; the class paths work where the short name is not registered."""

    path: StrictStr = DEFAULT_PATH
    """Folder of the store, relative to the feature repository or absolute, on a local file system; or
    ``s3://bucket/folder`` or ``az://container/folder``."""

    storage_options: dict[str, SecretStr] = Field(default_factory=dict)
    """Options for the object store of a URL: ``endpoint``, ``region``, credentials and more. The environment
    gives the others."""

    cache_path: StrictStr | None = None
    """Local folder, relative to the feature repository or absolute, for sealed rows from a bucket: one
    process of a host fetches them and all map them. None fetches them into the memory of each process."""

    role: Literal["writer", "replica"] = "writer"
    """What a process may do: a replica only reads, and needs no other permission."""

    error_rate: float | Literal["auto"] = "auto"
    """Probability that a value which an Array or Set lacks is reported as its element. `auto` takes the
    smallest structure that reports at most one wrong element per ten right ones."""

    structure: str = AUTO
    """How Arrays and Sets are kept: `bloom`, `weighted_bloom`, `learned_bloom`, `sandwiched_bloom`, `sets`,
    `compact_sets`, another registered structure, or `auto`, which chooses by size and error rate."""

    vocabulary: Any = None
    """Values of Arrays and Sets that are kept; None for all. See `settings.vocabulary_setting`."""

    presence_error_rate: float = 1e-5
    """Probability that an entity which was never written is reported as present."""

    scalar_error_rate: float = 1e-5
    """Probability that a scalar is reported with another value of its vocabulary."""

    max_vocabulary: int = Field(1_000_000, ge=1)
    """Distinct values that a feature may have; a write past it is refused."""

    default_codec: Literal["auto", "sketch", "exact"] = "auto"
    """How a feature without a `sketch.codec` tag is kept. `auto` goes by its type and refuses none. `sketch`
    takes types that suit the sketch and refuses others. `exact` keeps everything but Sets exactly."""

    expire_rows: bool = False
    """Whether a view's ttl applies to reads and seals. If not, rows stay until they are replaced, as in
    Feast's SQLite store."""

    expired_kept_for: timedelta = DEFAULT_EXPIRED_KEPT_FOR
    """How long rows stay on disk after they expired, such as ``7d``. Reads hide them meanwhile, so
    neither a wrong clock nor a wrong ttl destroys anything."""

    backing_store: dict[str, Any] | None = None
    """Options of another online store of Feast, including its ``type``. It keeps features with
    ``sketch.codec: backing``, and by default embeddings, JSON, maps and structs."""

    backing_on_error: Literal["fail", "missing"] = FAIL
    """What a read does while the backing store cannot be reached: `fail`, or answer without its features
    (`missing`)."""

    owns_backing: bool = False
    """Whether a teardown also tears down the backing store, which removes everything of the project there."""

    shards: int = 1
    """Number of shards that a view's rows are divided into, a power of two; fixed when the view is created.
    """

    serve_shards: list[int] | None = None
    """The shards that this process serves, such as ``[0, 1]``; None for all. It refuses reads of entities of
    other shards. Views without shards are served whole."""

    refresh_interval_seconds: float = Field(DEFAULT_REFRESH_INTERVAL_SECONDS, ge=0)
    """Longest time, in seconds, until a read sees a write of another process."""

    max_staleness_seconds: float | None = Field(None, gt=0)
    """A view is ready if its last successful look at the storage is at most this many seconds ago; None for
    any age. Reads are answered whatever their age."""

    seal: Literal["auto", "job"] = "auto"
    """Who seals. `auto`: a write, once ``seal_share`` and ``seal_min_rows`` are exceeded. `job`: only
    `feast-sketch seal`; writes only append."""

    seal_share: float = Field(0.25, gt=0)
    """A write seals the view once the unsealed rows exceed this share of the sealed ones, in number or in
    bytes ..."""

    seal_min_rows: int = Field(1_000, ge=0)
    """... and are more than this number; until then they are kept exactly."""

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, given: Any) -> Any:
        for old in RENAMED.keys() & set(given if isinstance(given, dict) else ()):
            raise ValueError(
                f"the option {old!r} is called {RENAMED[old]!r} now\nPaste:\n"
                f"    {RENAMED[old]}: {RENAMED_STRUCTURES.get(given[old], given[old])}\n"
            )
        return given

    @field_validator("error_rate", mode="before")
    @classmethod
    def _check_rate_or_auto(cls, rate: Any) -> float | Literal["auto"]:
        return error_rate_or_auto(rate)

    @field_validator("presence_error_rate", "scalar_error_rate")
    @classmethod
    def _check_error_rate(cls, rate: float) -> float:
        return error_rate(rate)

    @field_validator("expired_kept_for", mode="before")
    @classmethod
    def _check_duration(cls, given: Any) -> timedelta:
        return duration(given)

    @field_validator("structure")
    @classmethod
    def _check_structure(cls, name: str) -> str:
        return structure_name(name)

    @field_validator("shards", mode="before")
    @classmethod
    def _check_shards(cls, number: Any) -> int:
        return check_shard_count(number)

    @field_validator("serve_shards")
    @classmethod
    def _check_served(cls, served: list[int] | None) -> list[int] | None:
        if served is not None and (not served or min(served) < 0):
            raise ValueError("serve_shards must name at least one shard; leave it out to serve all")
        return served

    @field_validator("vocabulary", mode="before")
    @classmethod
    def _check_vocabulary(cls, given: Any) -> VocabularySetting | None:
        return None if given is None else vocabulary_setting(given)

    @field_validator("path")
    @classmethod
    def _check_path(cls, path: str) -> str:
        if not path.strip():
            raise ValueError("path is empty; name a folder")
        if is_url(path):
            check_url(path)
        return path

    @field_validator("backing_store")
    @classmethod
    def _check_backing_store(cls, given: dict[str, Any] | None) -> dict[str, Any] | None:
        if given is not None and (not isinstance(given.get("type"), str) or given["type"] in _OWN_TYPES):
            raise ValueError("backing_store needs the type of another online store, such as `type: redis`")
        return given

    @field_validator("storage_options", mode="before")
    @classmethod
    def _check_storage_options(cls, given: Any) -> dict[str, SecretStr]:
        if not isinstance(given, dict):
            raise ValueError("storage_options must be a mapping of names to values")  # noqa: TRY004
        return {str(name): SecretStr(option_text(value)) for name, value in given.items()}
