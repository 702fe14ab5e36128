"""Resolves the settings of a view: a feature's tag beats its view's, which beats ``feature_store.yaml``.

Field(name="viewed", dtype=Set(String), tags={"sketch.target": "error 0.1%"})
Field(name="bought", dtype=Set(String), tags={"sketch.vocabulary": "{top: 900}"})
Field(name="price", dtype=Float64, tags={"sketch.round": "0.01"})
FeatureView(..., tags={"sketch.default_codec": "exact"})
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from feast_sketch_store.errors import SettingsError, SketchStoreError, UnsupportedFeatureError, summed_up
from feast_sketch_store.layers import Goal
from feast_sketch_store.rows.codecs import COUNTS, LIST, MEMBERSHIP, SCORE, FeatureCodec
from feast_sketch_store.rows.column_names import clash
from feast_sketch_store.rows.count_log import is_counts_column
from feast_sketch_store.rows.encoding import OWN_COLUMNS
from feast_sketch_store.rows.entity_keys import JoinKeys
from feast_sketch_store.rows.list_log import OPERATION, is_times_column
from feast_sketch_store.settings.codecs import choose_codec
from feast_sketch_store.settings.table import (
    FEATURE,
    TAG_PREFIX,
    VIEW,
    Advanced,
    Backing,
    Score,
    Sharding,
    Ttl,
    read_parts,
    read_tags,
    tag_value,
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
from feast_sketch_store.settings.view_settings import FeatureSettings, ViewSettings
from feast_sketch_store.structures import goals
from feast_sketch_store.structures.goals import (
    AUTO,
    DEFAULT_CLUSTERS,
    LEARNED_BLOOM,
    SANDWICHED_BLOOM,
    WEIGHTED_BLOOM,
)
from feast_sketch_store.structures.sizing import AUTO_NOISE_RATIO
from feast_sketch_store.structures.static import STATIC

if TYPE_CHECKING:
    from feast.feature_view import FeatureView
    from feast.field import Field

_MEASURES = {NOISE: goals.NOISE_RATIO, ERROR: goals.ERROR_RATE, MEMORY: goals.MEMORY}
_WITH_CLUSTERS = (LEARNED_BLOOM, SANDWICHED_BLOOM, WEIGHTED_BLOOM)
_OF_SETS = (
    "target",
    "structure",
    "clusters",
    "vocabulary",
)  # tags of a view that are about its Arrays and Sets


class StoreOptions(Protocol):
    """The options of ``feature_store.yaml`` that a view's settings start from."""

    target: Target
    structure: str
    vocabulary: KeptValues | None
    default_codec: str
    ttl: Ttl
    backing_store: Backing | None
    shards: Sharding
    advanced: Advanced


def resolve(options: StoreOptions, table: "FeatureView", folder: Path | None = None) -> ViewSettings:
    """Read the settings of a view; paths in them are relative to ``folder``.

    Raises
    ------
    SettingsError : a tag is unknown, has a value that cannot work, or has no effect.
    UnsupportedFeatureError : Feast cannot carry a feature, or a name cannot be a column. Both errors list all
        features of the view.
    """
    join_keys = declared_join_keys(table)
    problems = list(_name_problems(table, join_keys or ()))
    view_tags, wrong = read_tags(table.tags, VIEW, f"feature view {table.name!r}")
    problems += map(SettingsError, wrong)
    advanced = tag_value("advanced", view_tags, VIEW, options.advanced)
    features: dict[str, FeatureSettings] = {}
    for field in table.features:
        where = f"feature {field.name!r} of view {table.name!r}"
        tags, wrong = read_tags(field.tags, FEATURE, where)
        problems += map(SettingsError, wrong)
        if wrong:
            continue
        try:
            features[field.name] = _feature_settings(options, advanced, field, view_tags, tags, where)
        except (SettingsError, UnsupportedFeatureError) as error:
            problems.append(error)
    if len(features) == len(table.features):
        problems += _idle_problems(table.name, view_tags, features)
    _link_counts(features)
    codecs = [feature.codec for feature in features.values()]
    problems += _source_problems(table.name, codecs)
    problems += _list_problems(table, codecs, ttl_microseconds(options, table))
    problems += _static_problems(table.name, features)
    num_shards = tag_value("shards", view_tags, VIEW, options.shards).count
    if num_shards > 1:
        problems += _shard_problems(table.name, features)
    scores = {name: feature.score for name, feature in features.items() if feature.score is not None}
    problems += _score_problems(table.name, scores, codecs)
    settings = ViewSettings(
        table.name,
        advanced.presence_error,
        features,
        ttl_microseconds(options, table),
        folder,
        join_keys,
        tag_value("ttl", view_tags, VIEW, options.ttl).keep // timedelta(microseconds=1),
        "append" if any(codec.is_list for codec in codecs) else "replace",
        num_shards,
    )
    if problems:
        # Files are otherwise checked by `feast apply` alone; a refusal names all that is wrong.
        raise summed_up([*problems, *settings.file_problems()])
    return settings


def _feature_settings(
    options: StoreOptions,
    advanced: Advanced,
    field: "Field",
    view_tags: Mapping[str, Any],
    tags: Mapping[str, Any],
    where: str,
) -> FeatureSettings:
    default = tag_value("default_codec", view_tags, VIEW, options.default_codec)
    chosen = choose_codec(field, tags, default, where, options.backing_store is not None)
    codec = chosen.codec
    target: Goal | float = 0.0  # of lists and counts, which have none
    if codec.is_collection and not (codec.is_weighted or codec.is_derived):
        target = _goal(codec, options, view_tags, tags, where)
    elif not codec.is_collection:
        target = _scalar_error(advanced, tags, where)
    vocabulary = None
    if codec.name == MEMBERSHIP:
        of_view = tag_value("vocabulary", view_tags, VIEW, options.vocabulary)
        vocabulary = tag_value("vocabulary", tags, FEATURE, of_view)
    return FeatureSettings(
        codec,
        target,
        advanced.max_vocabulary,
        vocabulary,
        chosen.may_be_column,
        chosen.by_type,
        chosen.is_static,
        _score(tags, where) if codec.name == SCORE else None,
    )


def _score(tags: Mapping[str, Any], where: str) -> Score:
    """How a score is computed."""
    score: Score = tag_value("score", tags, FEATURE)
    if not score.of or not score.weights:
        raise SettingsError(
            f"{where} has the codec {SCORE!r}, and needs the tag {TAG_PREFIX}score with the Sets whose "
            "values "
            "have weights and the JSON file with these, such as "
            "`{of: [viewed, liked], weights: plans/history.score.json}`"
        )
    return score


def _scalar_error(advanced: Advanced, tags: Mapping[str, Any], where: str) -> float:
    """The error rate of a scalar."""
    if "target" not in tags:
        return advanced.scalar_error
    target: Target = tag_value("target", tags, FEATURE)
    if target.measure != ERROR:
        raise SettingsError(
            f"{where} is not an Array or Set, so the tag {TAG_PREFIX}target={tags['target']!r} has no "
            "effect; it "
            "takes an error rate, such as `error 0.1%`"
        )
    return _checked(target, where).amount


def _checked(target: Target, where: str) -> Target:
    try:
        return target_of_sets(target)
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
    found = {
        name: tag_value(name, tags, FEATURE, tag_value(name, view_tags, VIEW, of_store))
        for name, of_store in (("target", options.target), ("structure", options.structure))
    }
    target = _checked(found["target"], where)
    if target.measure == AUTO:
        target = Target(NOISE, AUTO_NOISE_RATIO)
    structure = found["structure"]
    clusters = _clusters(structure, target, view_tags, tags, where) if codec.name == MEMBERSHIP else 0
    return Goal(_MEASURES[target.measure], target.amount, structure, clusters)


def _clusters(
    structure: str, target: Target, view_tags: Mapping[str, Any], tags: Mapping[str, Any], where: str
) -> int:
    """The number of entity clusters that a feature's filter distinguishes; 0 for other structures."""
    if structure not in _WITH_CLUSTERS:
        if "clusters" in tags:
            raise SettingsError(
                f"{where} has {TAG_PREFIX}clusters, which has no effect on structure {structure!r}; remove "
                f"the tag, or choose {LEARNED_BLOOM}, {SANDWICHED_BLOOM} or {WEIGHTED_BLOOM}"
            )
        return 0
    usual = 0 if structure == WEIGHTED_BLOOM else DEFAULT_CLUSTERS
    number: int = tag_value("clusters", tags, FEATURE, tag_value("clusters", view_tags, VIEW, usual))
    if number and target.measure == MEMORY:
        raise SettingsError(
            f"{where} has a memory as its {TAG_PREFIX}target, for which {structure!r} with clusters cannot "
            "be "
            f"sized; give a target such as `noise 0.5`, or choose another structure"
        )
    return number


# -- problems of views ---------------------------------------------------------------------------------


def _idle_problems(
    view: str, view_tags: Mapping[str, Any], features: Mapping[str, FeatureSettings]
) -> Iterator[SettingsError]:
    """Find tags of a view that have no effect on any of its features."""
    sets = [feature for feature in features.values() if feature.codec.name == MEMBERSHIP]
    idle = [name for name in _OF_SETS if name in view_tags and not sets]
    if sets and "clusters" in view_tags:
        with_clusters = (isinstance(f.target, Goal) and f.target.structure in _WITH_CLUSTERS for f in sets)
        idle += [] if any(with_clusters) else ["clusters"]
    idle = [TAG_PREFIX + name for name in idle]
    limit = read_parts("advanced", view_tags, VIEW).get("max_vocabulary")
    if limit is not None and not any(feature.may_be_in_filter for feature in features.values()):
        idle.append(f"{TAG_PREFIX}advanced={{max_vocabulary}}")
    if idle:
        yield SettingsError(
            f"feature view {view!r} has tags that have no effect on any of its features: "
            f"{', '.join(idle)}; remove them"
        )


def _link_counts(features: dict[str, FeatureSettings]) -> None:
    """Let the codecs of counted values name the feature with their counts."""
    for name, owner in list(features.items()):
        counted = features.get(owner.codec.counts_of)
        if counted is not None and counted.codec.counting is not None:
            counting = replace(counted.codec.counting, feature=name)
            features[owner.codec.counts_of] = replace(
                counted, codec=replace(counted.codec, counting=counting)
            )


def _source_problems(view: str, codecs: Sequence[FeatureCodec]) -> Iterator[SettingsError]:
    """Find features that carry the times or counts of one that is none, or that has such a feature "
    "already."""
    for what, kind, sources, known in (
        (
            "times",
            LIST,
            {codec.feature: codec.times_of for codec in codecs if codec.times_of},
            sorted(codec.feature for codec in codecs if codec.is_list),
        ),
        (
            "counts",
            COUNTS,
            {codec.feature: codec.counts_of for codec in codecs if codec.counts_of},
            sorted(codec.feature for codec in codecs if codec.is_counted),
        ),
    ):
        for feature, source in sources.items():
            if source not in known:
                yield SettingsError(
                    f"feature {feature!r} of view {view!r} has the tag {TAG_PREFIX}of={source!r}, but the "
                    "view "
                    f"has no feature of that name with the codec {kind!r}; it has {known}"
                )
        taken = [*sources.values()]
        for source in sorted({source for source in taken if taken.count(source) > 1}):
            yield SettingsError(
                f"feature view {view!r} has {taken.count(source)} features with the {what} of {source!r}; "
                "keep one of them"
            )


def _list_problems(
    table: "FeatureView", codecs: Sequence[FeatureCodec], ttl: int | None
) -> Iterator[SettingsError]:
    """Find problems of a view with lists; ``ttl`` is how long items live, in microseconds."""
    if not any(codec.is_list for codec in codecs):
        return
    if not ttl:
        yield SettingsError(
            f"feature view {table.name!r} has lists, whose items need a time to live; give the view a ttl, "
            "such as ttl=timedelta(days=90)"
        )
    if others := [codec.feature for codec in codecs if not codec.is_list and not codec.times_of]:
        yield SettingsError(
            f"feature view {table.name!r} has lists, to which rows append, and {others}, which rows replace; "
            "put these into another view of the same entities"
        )


def _score_problems(
    view: str, scores: Mapping[str, Score], codecs: Sequence[FeatureCodec]
) -> Iterator[SettingsError]:
    """Find problems with the sources of scores."""
    sets = [codec.feature for codec in codecs if codec.name == MEMBERSHIP]
    for name, score in scores.items():
        if others := [source for source in score.of if source not in sets]:
            yield SettingsError(
                f"feature {name!r} of view {view!r} is to be computed from {others}, which are not Sets or "
                f"Arrays of the view that are kept as sets; those are {sets}"
            )


def _static_problems(view: str, features: Mapping[str, FeatureSettings]) -> Iterator[SettingsError]:
    """Check that all features of a view, or none, are in a static function, which holds whole rows."""
    others = [name for name, feature in features.items() if not feature.is_static]
    if others and len(others) < len(features):
        yield SettingsError(
            f"feature view {view!r} has features with the codec {STATIC!r}, and others: {listed(others)}. A "
            f"static function holds whole rows; give all features the codec {STATIC!r}, or move the others "
            "to a view of their own"
        )


def check_shardable(settings: ViewSettings) -> None:
    """Check that the rows of a view can be divided into shards.

    Raises
    ------
    SettingsError : a feature cannot be in shards.
    """
    problems: list[SketchStoreError] = list(_shard_problems(settings.view, settings.features))
    if problems:
        raise summed_up(problems)


def _shard_problems(view: str, features: Mapping[str, FeatureSettings]) -> Iterator[SettingsError]:
    """Find features that shards do not support."""
    for name, feature in features.items():
        if feature.codec.is_backed:
            yield SettingsError(
                f"feature {name!r} of view {view!r} is kept by the backing store, which views with shards do "
                f"not have yet; keep it in another way, or give the view the tag {TAG_PREFIX}shards=1"
            )


def _name_problems(table: "FeatureView", join_keys: Iterable[str]) -> Iterator[SketchStoreError]:
    """Find names that cannot be columns of one table."""
    names = [*join_keys, *(field.name for field in table.features)]
    for name in names:
        lower = name.lower()
        if lower in (*OWN_COLUMNS, OPERATION) or is_times_column(lower) or is_counts_column(lower):
            yield UnsupportedFeatureError(
                f"feature or join key {name!r} of view {table.name!r} has a name that the row log reserves "
                "for itself; rename it"
            )
    while (found := clash(names)) is not None:
        yield UnsupportedFeatureError(
            f"feature view {table.name!r} has {found[0]!r} and {found[1]!r}, which differ only by case: "
            "Delta Lake takes both for one column. Rename one of them, or put it into another view"
        )
        names.remove(found[1])


# -- what a view declares to Feast -----------------------------------------------------------------------


def declared_join_keys(table: "FeatureView") -> JoinKeys | None:
    """The join keys of a view, each with the field of Feast's ``Value`` that carries it.

    The field is None where Feast does not know the type. None for all if the view does not say: one that was
    not applied yet, or an on-demand view.
    """
    from feast.type_map import VALUE_TYPE_TO_PROTO_VALUE_MAP

    columns = getattr(table, "entity_columns", None) or []
    if not columns or len(columns) < len(table.entities):
        return None
    return {c.name: VALUE_TYPE_TO_PROTO_VALUE_MAP.get(c.dtype.to_value_type()) for c in columns}


def ttl_microseconds(options: StoreOptions, table: "FeatureView") -> int | None:
    """How long a view's rows live; None for no limit, which Feast writes as a ttl of zero or none.

    Without ``ttl: {expire: true}`` rows live for ever, and items of lists as long as their view says.
    """
    if not options.ttl.expire and not has_lists(table):
        return None
    ttl = getattr(table, "ttl", None)  # on-demand views have none
    return ttl // timedelta(microseconds=1) if ttl else None


def has_lists(table: "FeatureView") -> bool:
    """Whether a view declares a list."""
    return any((field.tags or {}).get(TAG_PREFIX + "codec") == LIST for field in table.features)
