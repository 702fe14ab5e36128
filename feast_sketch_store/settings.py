"""Settings: the store's options, and what tags of a view or a feature change of them.

A feature's tag beats its view's, which beats ``feature_store.yaml``:

    Field(name="viewed", dtype=Set(String), tags={"sketch.error_rate": "0.001"})
    Field(name="price", dtype=Float64, tags={"sketch.precision": "0.01"})
    FeatureView(..., tags={"sketch.default_codec": "exact"})
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from feast_sketch_store.binning import Binning, Edges, Precision, Quantiles
from feast_sketch_store.codecs import BINNED, CATEGORICAL, EXACT, MEMBERSHIP, FeatureCodec
from feast_sketch_store.errors import SettingsError, UnsupportedFeatureError
from feast_sketch_store.layers import FeatureBudget
from feast_sketch_store.rows import OWN_COLUMNS

if TYPE_CHECKING:
    from feast.feature_view import FeatureView
    from feast.field import Field

# Of the store, as they stand in ``feature_store.yaml``.
DEFAULT_PATH = "data/sketch"
DEFAULT_REFRESH_INTERVAL_SECONDS = 1.0

TAG_PREFIX = "sketch."

# What `default_codec` may be: a sketch where the type is made for it, or exact for all but Sets.
SKETCH = "sketch"
DEFAULT_CODECS = (SKETCH, EXACT)
DEFAULT_BINS = 256

# Scalars that usually have few distinct values. The others need a tag that says how to keep them.
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
    default_codec: str
    expire_rows: bool


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
    def lists_rows(self) -> bool:
        """Whether sealed layers list their rows: scalars are columns then, which have no vocabulary."""
        return any(codec.is_exact for codec in self.codecs)

    @property
    def budget(self) -> FeatureBudget:
        """The errors that a sealed layer is built for."""
        rates = {name: feature.error_rate for name, feature in self.features.items()}
        return FeatureBudget(self.presence_error_rate, rates, self.ttl_microseconds)


def resolve(options: StoreOptions, table: "FeatureView") -> ViewSettings:
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
        codec = _choose_codec(field, tags, view_tags.get("default_codec", options.default_codec), where)
        default = options.error_rate if codec.is_collection else options.scalar_error_rate
        own_rate = tags.get("error_rate" if codec.is_collection else "scalar_error_rate")
        if not codec.is_collection and TAG_PREFIX + "error_rate" in (field.tags or {}):
            own_rate = tags["error_rate"]  # on the feature itself there is only one rate to mean
        if codec.is_exact and (idle := [t for t in _IDLE_IF_EXACT if TAG_PREFIX + t in (field.tags or {})]):
            raise SettingsError(
                f"{where} is kept exactly, which leaves no room for {_list(TAG_PREFIX + t for t in idle)}; "
                f"remove the tag, or choose another {TAG_PREFIX}codec"
            )
        features[field.name] = FeatureSettings(
            codec,
            default if own_rate is None else own_rate,
            tags.get("max_vocabulary", options.max_vocabulary),
        )
    return ViewSettings(
        table.name,
        view_tags.get("presence_error_rate", options.presence_error_rate),
        features,
        ttl_microseconds(options, table),
    )


def ttl_microseconds(options: StoreOptions, table: "FeatureView") -> int | None:
    """How long a view's rows live; None for ever, which Feast writes as a ttl of zero or none."""
    if not options.expire_rows:
        return None
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


def _one_of(*names: str) -> Callable[[Any], str]:
    def read(text: Any) -> str:
        if text not in names:
            raise ValueError(f"it must be one of {_list(names)}")
        return str(text)

    return read


def _edges(text: Any) -> Edges:
    return Edges(tuple(float(edge) for edge in str(text).split(",")))


_FEATURE_TAGS: Mapping[str, Callable[[Any], Any]] = {
    "error_rate": error_rate,
    "max_vocabulary": positive_count,
    "codec": _one_of(MEMBERSHIP, CATEGORICAL, BINNED, EXACT),
    "bins": lambda text: Quantiles(int(text)),
    "edges": _edges,
    "precision": lambda text: Precision(float(text)),
}
_BINNINGS = ("bins", "edges", "precision")
_IDLE_IF_EXACT = ("error_rate", "max_vocabulary")
_VIEW_TAGS: Mapping[str, Callable[[Any], Any]] = {
    "error_rate": error_rate,
    "scalar_error_rate": error_rate,
    "presence_error_rate": error_rate,
    "max_vocabulary": positive_count,
    "default_codec": _one_of(*DEFAULT_CODECS),
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


def _choose_codec(field: "Field", tags: Mapping[str, Any], default: str, where: str) -> FeatureCodec:
    if field.name in OWN_COLUMNS:
        raise UnsupportedFeatureError(f"{where} bears a name that the row log keeps for itself; rename it")
    usual = FeatureCodec.for_feature(field.name, field.dtype)
    binnings: list[Binning] = [tags[name] for name in _BINNINGS if name in tags]
    name = tags.get("codec") or (BINNED if binnings else "")
    if not name and default == EXACT and not usual.is_set:
        name = EXACT
    if name == BINNED and not binnings:
        binnings = [Quantiles(DEFAULT_BINS)]
    if len(binnings) > 1 or (binnings and name != BINNED):
        raise SettingsError(
            f"{where} can have one of the tags {_list(TAG_PREFIX + name for name in _BINNINGS)}, and no "
            f"{TAG_PREFIX}codec but {BINNED!r} beside it"
        )
    if name and name not in usual.possible_names:
        raise SettingsError(
            f"{where} has type {field.dtype}, which the codec {name!r} does not take; "
            f"set the tag {TAG_PREFIX}codec to one of {_list(usual.possible_names)}, or remove it"
        )
    if name != EXACT and getattr(field, "vector_index", False):
        raise UnsupportedFeatureError(
            f"{where} is an embedding (vector_index=True): its numbers have no bounded vocabulary. "
            + _alternatives(EXACT)
        )
    if not name and not usual.is_collection and usual.value_field not in _CATEGORICAL_FIELDS:
        raise UnsupportedFeatureError(
            f"{where} has type {field.dtype}, which no codec takes by default. "
            + _alternatives(*(n for n in (EXACT, BINNED, CATEGORICAL) if n in usual.possible_names))
        )
    return FeatureCodec.for_feature(field.name, field.dtype, name, binnings[0] if binnings else None)


_ALTERNATIVES = {
    EXACT: "keep its values as they are",
    BINNED: f"keep the nearest of {DEFAULT_BINS} values (or set {TAG_PREFIX}precision or {TAG_PREFIX}edges)",
    CATEGORICAL: "keep it as one of few distinct values",
}


def _alternatives(*names: str) -> str:
    ways = [f'"{TAG_PREFIX}codec": "{name}" to {_ALTERNATIVES[name]}' for name in names]
    return (
        f"Give the field the tag {', or '.join(ways)}; or set `default_codec: exact` in feature_store.yaml; "
        "or keep the feature in a view of another online store, for example with Feast's hybrid store"
    )


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
