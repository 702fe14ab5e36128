"""The codec of a feature: what its tags say, or else what suits its type."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from feast_sketch_store.errors import SettingsError
from feast_sketch_store.rows.binning import Quantiles
from feast_sketch_store.rows.codecs import (
    BACKING,
    BINNED,
    CATEGORICAL,
    COUNTS,
    COUNTS_OF,
    EXACT,
    LIST,
    MEMBERSHIP,
    SCORE,
    TIMES,
    FeatureCodec,
)
from feast_sketch_store.rows.counting import MAX_RELATIVE_ERROR, Counting
from feast_sketch_store.rows.listing import Listing
from feast_sketch_store.settings.table import FEATURE, TAG_PREFIX, tag_value
from feast_sketch_store.settings.values import ERROR, Target, listed
from feast_sketch_store.structures.goals import AUTO
from feast_sketch_store.structures.static import STATIC

if TYPE_CHECKING:
    from feast.field import Field

DEFAULT_BINS: Final = 256

# The tags that have an effect on features of a codec.
_TAKEN: Final = {
    MEMBERSHIP: ("target", "structure", "clusters", "vocabulary"),
    CATEGORICAL: ("target",),
    BINNED: ("target", "round"),
    EXACT: (),
    BACKING: (),
    LIST: ("list",),
    TIMES: ("of",),
    COUNTS: ("target",),
    COUNTS_OF: ("of",),
    SCORE: ("target", "score"),
}
# Scalars that usually have few distinct values.
_CATEGORICAL_FIELDS: Final = (
    "string_val",
    "int32_val",
    "int64_val",
    "bool_val",
    "bytes_val",
    "uuid_val",
    "time_uuid_val",
)
# Arrays whose elements are usually values of a vocabulary, and not measurements or documents.
_HISTORY_FIELDS: Final = (
    "string_list_val",
    "int32_list_val",
    "int64_list_val",
    "bytes_list_val",
    "uuid_list_val",
    "time_uuid_list_val",
)


class ChosenCodec(NamedTuple):
    """A codec; whether a seal may make the feature a column, as it does once it has many values; whether the
    type alone chose the codec; and whether the feature is to be in a static function.
    """

    codec: FeatureCodec
    may_be_column: bool = False
    by_type: bool = False
    is_static: bool = False


def choose_codec(
    field: "Field", tags: Mapping[str, Any], default: str, where: str, has_backing: bool = False
) -> ChosenCodec:
    """The codec of a feature.

    Parameters
    ----------
    tags : of the feature, as `table.read_tags` accepts them.
    default : the default codec.
    where : names the feature and its view in messages.
    has_backing : whether there is a backing store.

    Raises
    ------
    SettingsError : tags contradict each other or the type, or there is no backing store for a feature that
        asks for it.
    UnsupportedFeatureError : Feast cannot carry the type.
    """
    usual = FeatureCodec.for_feature(field.name, field.dtype)
    asked = _asked_for(usual, tags)
    name, by_type = CATEGORICAL if asked == STATIC else asked, False
    if name and name not in usual.possible_names:
        raise _wrong_type(field, usual, asked, tags, where)
    if name == BACKING and not has_backing:
        raise SettingsError(
            f"{where} has the codec {BACKING!r}, and feature_store.yaml names no backing_store; name one, "
            "such as `backing_store: {store: {type: redis, connection_string: ...}}`, or choose another codec"
        )
    if not name and default == AUTO:
        name, by_type = _by_type(field, usual, tags), True
        if name == EXACT and has_backing and _is_bulky(field, usual):
            name = BACKING
    elif not name:
        name = MEMBERSHIP if usual.is_set else EXACT
    if name not in (EXACT, BACKING) and is_embedding(field):
        raise SettingsError(
            f"{where} is an embedding (vector_index=True): its numbers have no bounded vocabulary. Set the "
            f"tag {TAG_PREFIX}codec to {EXACT!r}, or remove it"
        )
    if idle := [TAG_PREFIX + tag for tag in tags if tag not in ("codec", *_TAKEN[name])]:
        raise SettingsError(
            f"{where} has the codec {name!r}, on which these tags have no effect: {listed(idle)}; remove "
            f"them, or choose another {TAG_PREFIX}codec"
        )
    may_be_column = asked != STATIC and (
        name == SCORE or (by_type if name == CATEGORICAL else default == AUTO and name == BINNED)
    )
    return ChosenCodec(_with_parts(usual, name, tags, where), may_be_column, by_type, asked == STATIC)


def _asked_for(usual: FeatureCodec, tags: Mapping[str, Any]) -> str:
    """The codec that tags name; empty for none."""
    if "of" in tags:
        return TIMES if usual.element_kind == "timestamp" else COUNTS_OF
    return str(tags.get("codec") or (BINNED if "round" in tags else ""))


def _wrong_type(
    field: "Field", usual: FeatureCodec, asked: str, tags: Mapping[str, Any], where: str
) -> SettingsError:
    """The error of a codec that does not take the type of its feature."""
    if asked in (TIMES, COUNTS_OF):
        return SettingsError(
            f"{where} has type {field.dtype}; the tag {TAG_PREFIX}of needs Array(UnixTimestamp) for the "
            "times of a list, or an Array of Int64 or Int32 for counts. Change the type, or remove the tag"
        )
    tag = "codec" if "codec" in tags else "round"
    known = [name for name in usual.possible_names if name not in (TIMES, COUNTS_OF)]
    known += [STATIC] if CATEGORICAL in known else []
    return SettingsError(
        f"{where} has type {field.dtype}, which the codec {asked!r} does not take; set the tag "
        f"{TAG_PREFIX}codec to one of {listed(known)}, or remove the tag {TAG_PREFIX}{tag}"
    )


def _with_parts(usual: FeatureCodec, name: str, tags: Mapping[str, Any], where: str) -> FeatureCodec:
    """The codec of a name, with what tags say of it."""
    codec = replace(usual, name=MEMBERSHIP if usual.is_collection else CATEGORICAL)
    if name == BINNED:
        binning = tag_value("round", tags, FEATURE, Quantiles(DEFAULT_BINS))
        return replace(codec, name=name, binning=binning)
    if name == LIST:
        items = tag_value("list", tags, FEATURE)
        return replace(
            codec, name=name, listing=Listing(items.resolution // timedelta(microseconds=1), items.limit)
        )
    if name == TIMES:
        return replace(codec, name=name, times_of=tags["of"])
    if name == COUNTS:
        return replace(codec, name=name, counting=_counting(tags, where))
    if name == COUNTS_OF:
        return replace(codec, name=name, counts_of=tags["of"])
    return replace(codec, name=name)


def _counting(tags: Mapping[str, Any], where: str) -> Counting:
    """How far counts may be off."""
    if "target" not in tags:
        return Counting()
    target: Target = tag_value("target", tags, FEATURE)
    if target.measure == ERROR and target.is_share and target.amount <= MAX_RELATIVE_ERROR:
        return Counting(relative=target.amount)
    if target.measure == ERROR and not target.is_share and target.amount.is_integer():
        return Counting(absolute=int(target.amount))
    raise SettingsError(
        f"{where} has counts and the tag {TAG_PREFIX}target={tags['target']!r}; of counts it is a whole "
        f"number, such as `error 2`, or a share of a count of at most {MAX_RELATIVE_ERROR:.0%}, such as "
        "`error 10%`"
    )


def is_embedding(field: "Field") -> bool:
    """Whether a feature is declared as an embedding."""
    return bool(getattr(field, "vector_index", False))


def _is_bulky(field: "Field", usual: FeatureCodec) -> bool:
    """Whether a feature of this type is an embedding, a document or another object of many bytes."""
    is_document = usual.element_kind == "message" or usual.value_field == "json_val"
    return is_embedding(field) or usual.is_collection or is_document


def _by_type(field: "Field", usual: FeatureCodec, tags: Mapping[str, Any]) -> str:
    """The codec that suits the type of a feature. Tags that only sketches use ask for a sketch."""
    if is_embedding(field):
        return EXACT
    if usual.is_collection:
        is_history = usual.is_set or usual.value_field in _HISTORY_FIELDS
        return MEMBERSHIP if is_history or tags else EXACT
    return CATEGORICAL if usual.value_field in _CATEGORICAL_FIELDS or tags else EXACT
