"""The settings of a feature: what its tags say, or its view's, or the store's, or what suits its type."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol

from feast_sketch_store.errors import SettingsError
from feast_sketch_store.layers import Goal
from feast_sketch_store.rows.binning import Binning, Precision, Quantiles
from feast_sketch_store.rows.codecs import (
    ATTRIBUTE,
    BACKING,
    BINNED,
    CATEGORICAL,
    COUNTS,
    COUNTS_OF,
    EXACT,
    ID_KINDS,
    LIST,
    MEMBERSHIP,
    SCORE,
    TIMES,
    FeatureCodec,
)
from feast_sketch_store.rows.counting import MAX_COUNT, MAX_RELATIVE_ERROR, Counting
from feast_sketch_store.rows.listing import Listing
from feast_sketch_store.settings.table import (
    TAG_PREFIX,
    Advanced,
    Backing,
    Gate,
    ListItems,
    Score,
    Sharding,
    Ttl,
    settled,
)
from feast_sketch_store.settings.values import (
    ERROR,
    MEMORY,
    NOISE,
    KeptValues,
    Target,
    listed,
    target_of_sets,
)
from feast_sketch_store.settings.view_settings import FeatureSettings
from feast_sketch_store.structures import goals
from feast_sketch_store.structures.clusters import STYLES
from feast_sketch_store.structures.goals import AUTO, DEFAULT_CLUSTERS, WEIGHTED_BLOOM
from feast_sketch_store.structures.scalars import STATIC
from feast_sketch_store.structures.sizing import AUTO_NOISE_RATIO

if TYPE_CHECKING:
    from feast.field import Field

DEFAULT_BINS: Final = 256
DEFAULT_IDS: Final = 1_000  # of what was counted last, for each entity

_MEASURES: Final = {NOISE: goals.NOISE_RATIO, ERROR: goals.ERROR_RATE, MEMORY: goals.MEMORY}
# The tags that have an effect on features of a codec.
_TAKEN: Final = {
    MEMBERSHIP: ("target", "structure", "clusters", "vocabulary"),
    CATEGORICAL: ("target",),
    BINNED: ("target", "round"),
    EXACT: (),
    BACKING: (),
    LIST: ("list", "ids_of"),
    TIMES: ("of",),
    ATTRIBUTE: ("of", "vocabulary"),
    COUNTS: ("target",),
    COUNTS_OF: ("of",),
    SCORE: ("target", "score"),
}
# Scalars that usually have few distinct values.
_CATEGORICAL_FIELDS: Final = {
    f"{kind}_val" for kind in ("string", "int32", "int64", "bool", "bytes", "uuid", "time_uuid")
}
# Arrays whose elements are usually values of a vocabulary, and not measurements or documents.
_HISTORY_FIELDS: Final = {
    f"{kind}_list_val" for kind in ("string", "int32", "int64", "bytes", "uuid", "time_uuid")
}


class StoreOptions(Protocol):
    """The options of ``feature_store.yaml`` that a view's settings start from."""

    target: Target
    structure: str
    vocabulary: KeptValues | None
    default_codec: str
    ttl: Ttl
    backing_store: Backing | None
    shards: Sharding
    gate: Gate
    advanced: Advanced


def feature_settings(
    options: StoreOptions, field: "Field", view_tags: Mapping[str, Any], tags: Mapping[str, Any], where: str
) -> FeatureSettings:
    """The settings of a feature.

    Parameters
    ----------
    view_tags, tags : of the view and the feature, from `table.read_tags`.
    where : names the feature and its view in messages.

    Raises
    ------
    SettingsError : tags contradict each other or the type, or there is no backing store for a feature that
        asks for it.
    UnsupportedFeatureError : Feast cannot carry the type.
    """
    advanced: Advanced = settled("advanced", options.advanced, view_tags)
    default = settled("default_codec", options.default_codec, view_tags)
    usual, asked = FeatureCodec.for_feature(field.name, field.dtype), ""
    if {"of", "codec"} <= tags.keys():
        raise SettingsError(
            f"{where} has the tags {TAG_PREFIX}of and {TAG_PREFIX}codec, and the former alone says how it is "
            "kept; remove one of them"
        )
    if "of" in tags:
        is_time = usual.element_kind == "timestamp"
        asked = TIMES if is_time else ATTRIBUTE if "vocabulary" in tags else COUNTS_OF
    elif "ids_of" in tags:
        asked = tags.get("codec", LIST)
    elif "codec" in tags or "round" in tags:
        asked = tags.get("codec", BINNED)
    name = CATEGORICAL if asked == STATIC else asked
    if name and name not in usual.possible_names:
        raise _wrong_type(field, usual, asked, tags, where)
    by_type = not name and default == AUTO
    if by_type:
        name = _by_type(field, usual, bool(tags), options)
    elif not name:
        name = MEMBERSHIP if usual.is_set else EXACT
    if name == BACKING and options.backing_store is None:
        raise SettingsError(
            f"{where} has the codec {BACKING!r}, and feature_store.yaml names no backing_store; name one, "
            "such as `backing_store: {store: {type: redis, connection_string: ...}}`, or choose another codec"
        )
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
    is_column = {SCORE: True, CATEGORICAL: by_type, BINNED: default == AUTO}.get(name, False)
    codec = _with_parts(usual, name, tags, where)
    target: Goal | float = 0.0  # of lists and counts, which have none
    if not codec.is_collection:
        target = _scalar_error(advanced, tags, where)
    elif not (codec.is_weighted or codec.is_derived):
        target = _goal(codec, options, view_tags, tags, where)
    vocabulary = tags["vocabulary"] if codec.name == ATTRIBUTE else None
    if codec.name == MEMBERSHIP:
        vocabulary = settled("vocabulary", options.vocabulary, view_tags, tags)
    return FeatureSettings(
        codec,
        target,
        advanced.max_vocabulary,
        vocabulary,
        is_column and asked != STATIC,
        by_type,
        asked == STATIC,
        _score(tags, where) if codec.name == SCORE else None,
    )


def _wrong_type(
    field: "Field", usual: FeatureCodec, asked: str, tags: Mapping[str, Any], where: str
) -> SettingsError:
    """The error of a codec that does not take the type of its feature."""
    if asked in (TIMES, COUNTS_OF, ATTRIBUTE):
        return SettingsError(
            f"{where} has type {field.dtype}; the tag {TAG_PREFIX}of needs Array(UnixTimestamp) for the "
            "times of a list, an Array of Int64 for counts, or an Array of String, Int64 or Int32 "
            f"and the tag {TAG_PREFIX}vocabulary with its values for an attribute of a list. Change the "
            "type, or the tags"
        )
    tag = next(name for name in ("codec", "ids_of", "round") if name in tags)
    known = [name for name in usual.possible_names if name not in (TIMES, COUNTS_OF, ATTRIBUTE)]
    known += [STATIC] if CATEGORICAL in known else []
    return SettingsError(
        f"{where} has type {field.dtype}, which the codec {asked!r} does not take; set the tag "
        f"{TAG_PREFIX}codec to one of {listed(known)}, or remove the tag {TAG_PREFIX}{tag}"
    )


def is_embedding(field: "Field") -> bool:
    """Whether a feature is declared as an embedding."""
    return bool(getattr(field, "vector_index", False))


def _by_type(field: "Field", usual: FeatureCodec, has_tags: bool, options: StoreOptions) -> str:
    """The codec that suits the type of a feature. Tags that only sketches use ask for a sketch."""
    is_sketched = has_tags or usual.is_set or usual.value_field in _CATEGORICAL_FIELDS | _HISTORY_FIELDS
    if is_sketched and not is_embedding(field):
        return MEMBERSHIP if usual.is_collection else CATEGORICAL
    # Embeddings, documents and other objects of many bytes are not for the memory of a process.
    is_bulky = usual.is_collection or usual.element_kind == "message" or usual.value_field == "json_val"
    return BACKING if options.backing_store is not None and (is_bulky or is_embedding(field)) else EXACT


def _with_parts(usual: FeatureCodec, name: str, tags: Mapping[str, Any], where: str) -> FeatureCodec:
    """The codec of a name, with what tags say of it."""
    if name == BINNED:
        binning: Binning = settled("round", Quantiles(DEFAULT_BINS), tags)
        is_whole = usual.element_kind not in ("float", "double")
        if is_whole and isinstance(binning, Precision) and binning.step % 1:
            raise SettingsError(
                f"{where} has whole numbers and the tag {TAG_PREFIX}round with the step {binning.step}; the "
                "step must be a whole number, too, such as 10"
            )
        return replace(usual, name=name, binning=binning)
    if name == LIST:
        ids_of = tags.get("ids_of", "")
        items: ListItems = settled("list", ListItems(), tags)
        if ids_of and usual.element_kind not in ID_KINDS:
            raise SettingsError(
                f"{where} has the tag {TAG_PREFIX}ids_of, which needs an Array of Int64 or String for the "
                "ids; change the type, or remove the tag"
            )
        limit = items.limit or (DEFAULT_IDS if ids_of else None)
        listing = Listing(items.resolution // timedelta(microseconds=1), limit)
        return replace(usual, name=name, listing=listing, ids_of=ids_of)
    if name == TIMES:
        return replace(usual, name=name, times_of=tags["of"])
    if name == ATTRIBUTE:
        return replace(usual, name=name, attribute_of=tags["of"])
    if name == COUNTS:
        return replace(usual, name=name, counting=_counting(tags, where))
    return replace(usual, name=name, counts_of=tags["of"] if name == COUNTS_OF else "")


def _counting(tags: Mapping[str, Any], where: str) -> Counting:
    if "target" not in tags:
        return Counting()
    target: Target = tags["target"]
    if target.measure == ERROR and target.is_share and target.amount <= MAX_RELATIVE_ERROR:
        return Counting(relative=target.amount)
    is_whole = not target.is_share and target.amount.is_integer() and target.amount < MAX_COUNT
    if target.measure == ERROR and is_whole:
        return Counting(absolute=int(target.amount))
    raise SettingsError(
        f"{where} has counts and the tag {TAG_PREFIX}target=`{target}`; of counts it is a whole number "
        f"below {MAX_COUNT:,}, such as `error 2`, or a share of a count of at most {MAX_RELATIVE_ERROR:.0%}, "
        "such as `error 10%`"
    )


def _score(tags: Mapping[str, Any], where: str) -> Score:
    score: Score = settled("score", Score(), tags)
    if not score.of or not score.weights:
        raise SettingsError(
            f"{where} has the codec {SCORE!r}, and needs the tag {TAG_PREFIX}score with the Sets whose "
            "values have weights and the JSON file with these, such as "
            "`{of: [viewed, liked], weights: plans/history.score.json}`"
        )
    return score


def _scalar_error(advanced: Advanced, tags: Mapping[str, Any], where: str) -> float:
    if "target" not in tags:
        return advanced.scalar_error
    if tags["target"].measure != ERROR:
        raise SettingsError(
            f"{where} is not an Array or Set, so the tag {TAG_PREFIX}target=`{tags['target']}` has no "
            "effect; it takes an error rate, such as `error 0.1%`"
        )
    return _checked(tags["target"], where).amount


def _checked(target: Target, where: str) -> Target:
    try:
        return target_of_sets(target)  # type: ignore[no-any-return]
    except ValueError as error:
        raise SettingsError(f"{where} has the target `{target}`: {error}") from error


def _goal(
    codec: FeatureCodec,
    options: StoreOptions,
    view_tags: Mapping[str, Any],
    tags: Mapping[str, Any],
    where: str,
) -> Goal:
    """What an Array or Set is kept for."""
    target = _checked(settled("target", options.target, view_tags, tags), where)
    if target.measure == AUTO:
        target = Target(NOISE, AUTO_NOISE_RATIO)
    structure = settled("structure", options.structure, view_tags, tags)
    clusters = 0
    if codec.name == MEMBERSHIP and structure in STYLES:
        usual = 0 if structure == WEIGHTED_BLOOM else DEFAULT_CLUSTERS
        clusters = settled("clusters", usual, view_tags, tags)
    elif "clusters" in tags:
        raise SettingsError(
            f"{where} has {TAG_PREFIX}clusters, which has no effect on structure {structure!r}; remove "
            f"the tag, or choose {listed(STYLES)}"
        )
    if clusters and target.measure == MEMORY:
        raise SettingsError(
            f"{where} has a memory as its {TAG_PREFIX}target, for which {structure!r} with clusters cannot "
            "be sized; give a target such as `noise 0.5`, or choose another structure"
        )
    goal = Goal(_MEASURES[target.measure], target.amount, structure, clusters)
    if "target" in tags and goal.is_met_by_sets:
        raise SettingsError(
            f"{where} has {TAG_PREFIX}target, which has no effect on structure {structure!r}: reads show no "
            "wrong values. Remove the tag, or choose another structure"
        )
    return goal
