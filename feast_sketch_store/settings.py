"""Settings: the store's options, and what tags of a view or a feature change of them.

A feature's tag beats its view's, which beats ``feature_store.yaml``:

    Field(name="viewed", dtype=Set(String), tags={"sketch.error_rate": "0.001"})
    FeatureView(..., tags={"sketch.max_vocabulary": "50000"})
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from feast.feature_view import FeatureView
from feast.field import Field

from feast_sketch_store.codecs import CATEGORICAL, MEMBERSHIP, FeatureCodec
from feast_sketch_store.errors import SettingsError, UnsupportedFeatureError
from feast_sketch_store.layers import FeatureBudget
from feast_sketch_store.rows import OWN_COLUMNS

TAG_PREFIX = "sketch."

# Scalars that usually have few distinct values. The others need a tag that says so.
_CATEGORICAL_FIELDS = (
    "string_val",
    "int32_val",
    "int64_val",
    "bool_val",
    "bytes_val",
    "uuid_val",
    "time_uuid_val",
)


class StoreOptions(Protocol):
    """The options of ``feature_store.yaml`` that a view's settings start from."""

    error_rate: float
    presence_error_rate: float
    scalar_error_rate: float
    max_vocabulary: int


@dataclass(frozen=True)
class FeatureSettings:
    """One feature: its codec, its error rate (see `FeatureBudget`) and the most values it may have."""

    codec: FeatureCodec
    error_rate: float
    max_vocabulary: int


@dataclass(frozen=True)
class ViewSettings:
    """One feature view: its name for messages, the error rate of presence, its features, and how long
    its rows live."""

    view: str
    presence_error_rate: float
    features: Mapping[str, FeatureSettings]
    ttl_microseconds: int | None = None

    @property
    def codecs(self) -> list[FeatureCodec]:
        """The codecs of all features, in the view's order."""
        return [feature.codec for feature in self.features.values()]

    @property
    def budget(self) -> FeatureBudget:
        """The errors that a sealed layer is built for."""
        rates = {name: feature.error_rate for name, feature in self.features.items()}
        return FeatureBudget(self.presence_error_rate, rates, self.ttl_microseconds)


def resolve(options: StoreOptions, table: FeatureView) -> ViewSettings:
    """The settings of a view.

    Raises
    ------
    SettingsError : a tag is unknown or has a value that cannot work.
    UnsupportedFeatureError : no codec takes a feature.
    """
    view_tags = _own_tags(table.tags, f"feature view {table.name!r}", _VIEW_TAGS)
    features = {}
    for field in table.features:
        where = f"feature {field.name!r} of view {table.name!r}"
        tags = {**view_tags, **_own_tags(field.tags, where, _FEATURE_TAGS)}
        codec = _choose_codec(field, tags.get("codec"), where)
        default = options.error_rate if codec.is_collection else options.scalar_error_rate
        own_rate = tags.get("error_rate" if codec.is_collection else "scalar_error_rate")
        if not codec.is_collection and TAG_PREFIX + "error_rate" in (field.tags or {}):
            own_rate = tags["error_rate"]  # on the feature itself there is only one rate to mean
        features[field.name] = FeatureSettings(
            codec,
            default if own_rate is None else own_rate,
            tags.get("max_vocabulary", options.max_vocabulary),
        )
    return ViewSettings(
        table.name,
        view_tags.get("presence_error_rate", options.presence_error_rate),
        features,
        ttl_microseconds(table),
    )


def ttl_microseconds(table: FeatureView) -> int | None:
    """How long a view's rows live; None for ever, which Feast writes as a ttl of zero or none."""
    ttl = getattr(table, "ttl", None)  # on-demand views have none
    return ttl // timedelta(microseconds=1) if ttl else None


def error_rate(text: Any) -> float:
    """Read an error rate.

    Raises
    ------
    ValueError : it is not a number between 1e-9 and 0.5.
    """
    rate = float(text)
    if not 1e-9 <= rate <= 0.5:
        raise ValueError("an error rate lies between 1e-9 and 0.5")
    return rate


def positive_count(text: Any) -> int:
    """Read a count of at least 1.

    Raises
    ------
    ValueError : it is not a whole number of at least 1.
    """
    count = int(text)
    if count < 1:
        raise ValueError("it must be at least 1")
    return count


def _codec_name(text: Any) -> str:
    if text not in (MEMBERSHIP, CATEGORICAL):
        raise ValueError(f"a codec is {MEMBERSHIP!r} or {CATEGORICAL!r}")
    return str(text)


_FEATURE_TAGS: Mapping[str, Callable[[Any], Any]] = {
    "error_rate": error_rate,
    "max_vocabulary": positive_count,
    "codec": _codec_name,
}
_VIEW_TAGS: Mapping[str, Callable[[Any], Any]] = {
    "error_rate": error_rate,
    "scalar_error_rate": error_rate,
    "presence_error_rate": error_rate,
    "max_vocabulary": positive_count,
}


def _own_tags(
    tags: Mapping[str, str] | None, where: str, readers: Mapping[str, Callable[[Any], Any]]
) -> dict[str, Any]:
    values = {}
    for tag, text in (tags or {}).items():
        if not tag.startswith(TAG_PREFIX):
            continue
        name = tag.removeprefix(TAG_PREFIX)
        if name not in readers:
            raise SettingsError(
                f"{where} has the unknown tag {tag!r}; known here: {_list(TAG_PREFIX + r for r in readers)}"
            )
        try:
            values[name] = readers[name](text)
        except ValueError as error:
            raise SettingsError(f"{where} has the tag {tag}={text!r}: {error}") from error
    return values


def _choose_codec(field: Field, asked: str | None, where: str) -> FeatureCodec:
    if field.name in OWN_COLUMNS:
        raise UnsupportedFeatureError(f"{where} bears a name that the row log keeps for itself; rename it")
    codec = FeatureCodec.for_feature(field.name, field.dtype)
    if asked is not None and asked != codec.name:
        raise SettingsError(
            f"{where} has type {field.dtype}, which the codec {asked!r} does not take; "
            f"remove the tag {TAG_PREFIX}codec or set it to {codec.name!r}"
        )
    if getattr(field, "vector_index", False):
        raise UnsupportedFeatureError(
            f"{where} is an embedding (vector_index=True): its numbers have no bounded vocabulary. "
            "Keep it in a view of another online store, for example with Feast's hybrid store"
        )
    if not codec.is_collection and codec.value_field not in _CATEGORICAL_FIELDS and asked is None:
        raise UnsupportedFeatureError(
            f"{where} has type {field.dtype}, which no codec takes by default. If it has few distinct "
            f'values, declare Field(..., tags={{"{TAG_PREFIX}codec": "{CATEGORICAL}"}}); otherwise keep it '
            "in a view of another online store, for example with Feast's hybrid store"
        )
    return codec


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
