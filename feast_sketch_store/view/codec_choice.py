"""Chooses the codec of a feature by its tags, or else by its type and ``default_codec``."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from feast_sketch_store.errors import SettingsError, UnsupportedFeatureError
from feast_sketch_store.rows.binning import Binning, Quantiles
from feast_sketch_store.rows.codecs import BACKING, BINNED, CATEGORICAL, EXACT, MEMBERSHIP, FeatureCodec

if TYPE_CHECKING:
    from feast.field import Field

TAG_PREFIX: Final = "sketch."

# Values of `default_codec`.
AUTO: Final = "auto"  # by the type; nothing is refused for its type
SKETCH: Final = "sketch"  # in the sketch where the type is made for it, refused otherwise
DEFAULT_CODECS: Final = (AUTO, SKETCH, EXACT)  # exact: all but Sets
DEFAULT_BINS: Final = 256
BINNINGS: Final = ("bins", "edges", "precision")

# Scalars that usually have few distinct values.
_CATEGORICAL_FIELDS = (
    "string_val",
    "int32_val",
    "int64_val",
    "bool_val",
    "bytes_val",
    "uuid_val",
    "time_uuid_val",
)
# Arrays whose elements are usually values of a vocabulary, and not measurements or documents.
_HISTORY_FIELDS = (
    "string_list_val",
    "int32_list_val",
    "int64_list_val",
    "bytes_list_val",
    "uuid_list_val",
    "time_uuid_list_val",
)


class ChosenCodec(NamedTuple):
    """A codec, whether a seal may make the feature a column, as it does once it has many values, and whether
    the type alone chose the codec.
    """

    codec: FeatureCodec
    may_be_column: bool = False
    by_type: bool = False


def choose_codec(
    field: "Field",
    tags: Mapping[str, Any],
    own_tags: Iterable[str],
    default: str,
    where: str,
    has_backing: bool = False,
) -> ChosenCodec:
    """The codec of a feature.

    Parameters
    ----------
    tags : of the feature and its view, parsed, without their prefix.
    own_tags : the names of the feature's own tags.
    default : one of ``DEFAULT_CODECS``.
    where : names the feature and its view in messages.
    has_backing : whether there is a backing store.

    Raises
    ------
    SettingsError : tags contradict each other or the type, or there is no backing store for a feature that
        asks for it.
    UnsupportedFeatureError : by default the type is not kept.
    """
    usual = FeatureCodec.for_feature(field.name, field.dtype)
    binnings: list[Binning] = [tags[name] for name in BINNINGS if name in tags]
    name = tags.get("codec") or (BINNED if binnings else "")
    if name == BINNED and not binnings:
        binnings = [Quantiles(DEFAULT_BINS)]
    if len(binnings) > 1 or (binnings and name != BINNED):
        surplus = [*[name for name in BINNINGS if name in tags][1:], "codec"]
        raise SettingsError.of_tags(
            f"{where} can have one of the tags {_list(TAG_PREFIX + name for name in BINNINGS)}, and no "
            f"{TAG_PREFIX}codec but {BINNED!r} beside it",
            dict.fromkeys(TAG_PREFIX + name for name in surplus),
        )
    if name and name not in usual.possible_names:
        raise SettingsError.of_tags(
            f"{where} has type {field.dtype}, which the codec {name!r} does not take; "
            f"set the tag {TAG_PREFIX}codec to one of {_list(usual.possible_names)}, or remove it",
            dict.fromkeys([f"{TAG_PREFIX}codec", *(TAG_PREFIX + binning for binning in BINNINGS)]),
        )
    if name == BACKING and not has_backing:
        raise SettingsError.of_tags(
            f"{where} has the codec {BACKING!r}, and feature_store.yaml names no backing_store; name one, "
            "such as `backing_store: {type: redis, connection_string: ...}`, or choose another codec",
            {f"{TAG_PREFIX}codec": None},
        )
    by_type = default == AUTO and not name
    if by_type:
        name = _by_type(field, usual, own_tags)
        if name == EXACT and has_backing and _is_bulky(field, usual):
            name = BACKING
    elif default == EXACT and not name and not usual.is_set:
        name = EXACT
    if name not in (EXACT, BACKING) and is_embedding(field):
        raise _unsupported(
            field,
            f"{where} is an embedding (vector_index=True): its numbers have no bounded vocabulary. ",
            EXACT,
        )
    if not name and not usual.is_collection and usual.value_field not in _CATEGORICAL_FIELDS:
        raise _unsupported(
            field,
            f"{where} has type {field.dtype}, which `default_codec: {SKETCH}` does not take. ",
            *(n for n in (EXACT, BINNED, CATEGORICAL) if n in usual.possible_names),
        )
    is_free = by_type if name == CATEGORICAL else default == AUTO and name == BINNED
    may_be_column = is_free and "max_vocabulary" not in tags
    codec = FeatureCodec.for_feature(field.name, field.dtype, name, binnings[0] if binnings else None)
    return ChosenCodec(codec, may_be_column, by_type)


def is_embedding(field: "Field") -> bool:
    """Whether a feature is declared as an embedding."""
    return bool(getattr(field, "vector_index", False))


def _is_bulky(field: "Field", usual: FeatureCodec) -> bool:
    """Whether a feature of this type is an embedding, a document or another object of many bytes."""
    is_document = usual.element_kind == "message" or usual.value_field == "json_val"
    return is_embedding(field) or usual.is_collection or is_document


def _by_type(field: "Field", usual: FeatureCodec, own_tags: Iterable[str]) -> str:
    """The codec that suits the type of a feature. Tags that only sketches use ask for a sketch."""
    if is_embedding(field):
        return EXACT
    asks_for_sketch = bool({*own_tags} - {"codec"})
    if usual.is_collection:
        is_history = usual.is_set or usual.value_field in _HISTORY_FIELDS
        return MEMBERSHIP if is_history or asks_for_sketch else EXACT
    return CATEGORICAL if usual.value_field in _CATEGORICAL_FIELDS or asks_for_sketch else EXACT


_ALTERNATIVES = {
    EXACT: "keep its values exactly",
    BACKING: "leave its values to the backing store",
    BINNED: f"keep the nearest of {DEFAULT_BINS} values (or set {TAG_PREFIX}precision or {TAG_PREFIX}edges)",
    CATEGORICAL: "keep it as one of few distinct values",
}


def _unsupported(field: "Field", reason: str, *names: str) -> UnsupportedFeatureError:
    ways = [f'"{TAG_PREFIX}codec": "{name}" to {_ALTERNATIVES[name]}' for name in names]
    error = UnsupportedFeatureError(
        f"{reason}Give the field the tag {', or '.join(ways)}; or set `default_codec: {AUTO}` in "
        "feature_store.yaml"
    )
    others = {tag: text for tag, text in (field.tags or {}).items() if not tag.startswith(TAG_PREFIX)}
    error.lines = (field_line(field, {**others, f"{TAG_PREFIX}codec": EXACT}),)
    return error


def field_line(field: "Field", tags: Mapping[str, str], name: str = "") -> str:
    """A feature as a line to paste into a feature view, with other tags and possibly another name."""
    parts = [f"name={_text(name or field.name)}", f"dtype={python_type(field.dtype)}"]
    if field.description:
        parts.append(f"description={_text(field.description)}")
    if is_embedding(field):
        parts.append("vector_index=True")
        parts += [f"{name}={getattr(field, name)!r}" for name in _VECTOR_PARTS if getattr(field, name, None)]
    if tags:
        parts.append(f"tags={tags_text(tags)}")
    return f"Field({', '.join(parts)}),"


def tags_text(tags: Mapping[str, str]) -> str:
    """Tags as Python."""
    return "{" + ", ".join(f"{_text(k)}: {_text(v)}" for k, v in tags.items()) + "}"


_VECTOR_PARTS = ("vector_length", "vector_search_metric")


def python_type(dtype: Any) -> str:
    """A Feast type as Python, such as ``Array(Float32)``."""
    if isinstance(getattr(dtype, "fields", None), dict):
        fields = ", ".join(f"{_text(name)}: {python_type(kind)}" for name, kind in dtype.fields.items())
        return f"{type(dtype).__name__}({{{fields}}})"
    if hasattr(dtype, "base_type"):
        return f"{type(dtype).__name__}({python_type(dtype.base_type)})"
    return str(dtype)


def _text(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
