"""Resolves the settings of a view: a feature's tag beats its view's, which beats ``feature_store.yaml``.

Field(name="viewed", dtype=Set(String), tags={"sketch.target": "error 0.1%"})
Field(name="bought", dtype=Set(String), tags={"sketch.vocabulary": "{top: 900}"})
Field(name="price", dtype=Float64, tags={"sketch.round": "0.01"})
FeatureView(..., tags={"sketch.default_codec": "exact"})
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from feast_sketch_store.errors import SettingsError, SketchStoreError, UnsupportedFeatureError, summed_up
from feast_sketch_store.layers import Goal
from feast_sketch_store.rows.codecs import COUNTS, COUNTS_OF, LIST, MEMBERSHIP, FeatureCodec
from feast_sketch_store.rows.columns import clash
from feast_sketch_store.rows.count_log import is_counts_column
from feast_sketch_store.rows.encoding import ENTITYLESS_JOIN_KEY, OWN_COLUMNS
from feast_sketch_store.rows.entity_keys import JoinKeys
from feast_sketch_store.rows.increments import OPERATION, is_times_column
from feast_sketch_store.rows.listing import Attribute
from feast_sketch_store.rows.lists import is_removed_name
from feast_sketch_store.settings.features import StoreOptions, feature_settings
from feast_sketch_store.settings.table import CODEC_TAG, FEATURE, TAG_PREFIX, VIEW, read_tags, settled
from feast_sketch_store.settings.values import listed
from feast_sketch_store.settings.view_settings import FeatureSettings, ViewSettings, cut_of, limited
from feast_sketch_store.structures.clusters import STYLES
from feast_sketch_store.structures.scalars import STATIC

if TYPE_CHECKING:
    from feast.feature_view import FeatureView
    from feast.field import Field

_IDS_TAG = TAG_PREFIX + "ids_of"
_OF_SETS = ("target", "structure", "clusters", "vocabulary")  # tags of a view about its Arrays and Sets


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
    features: dict[str, FeatureSettings] = {}
    fields = own_fields(table)
    for field in fields:
        where = f"feature {field.name!r} of view {table.name!r}"
        tags, wrong = read_tags(field.tags, FEATURE, where)
        problems += map(SettingsError, wrong)
        if wrong:
            continue
        try:
            features[field.name] = feature_settings(options, field, view_tags, tags, where)
        except (SettingsError, UnsupportedFeatureError) as error:
            problems.append(error)
    _link_counts(features)
    problems += _link_attributes(table.name, features)
    codecs = [feature.codec for feature in features.values()]
    settings = ViewSettings(
        table.name,
        settled("advanced", options.advanced, view_tags).presence_error,
        features,
        ttl_microseconds(options, table),
        folder,
        join_keys,
        settled("ttl", options.ttl, view_tags).keep // timedelta(microseconds=1),
        "append" if any(codec.is_plain_list for codec in codecs) else view_tags.get("rows", "replace"),
        settled("shards", options.shards, view_tags).count,
        settled("gate", options.gate, view_tags),
    )
    if len(features) == len(fields):
        problems += _idle_problems(table.name, view_tags, features)
    if settings.gate.is_set and (backed := [codec.feature for codec in settings.backed_codecs]):
        problems.append(
            SettingsError(
                f"feature view {table.name!r} has a gate, and features that the backing store keeps "
                f"({', '.join(backed)}): what the gate holds back would be there already. Move them into a "
                "view without a gate"
            )
        )
    problems += _source_problems(table.name, features)
    problems += _append_problems(settings, view_tags, hasattr(table, "ttl"))
    problems += _static_problems(table.name, features)
    if problems:
        # Files are otherwise checked by `feast apply` alone; a refusal names all that is wrong.
        raise summed_up([*problems, *settings.file_problems()])
    return settings


# -- problems of views ---------------------------------------------------------------------------------


def _idle_problems(
    view: str, view_tags: Mapping[str, Any], features: Mapping[str, FeatureSettings]
) -> Iterator[SettingsError]:
    """Find tags of a view that have no effect on any of its features."""
    sets = [feature for feature in features.values() if feature.codec.name == MEMBERSHIP]
    idle = [name for name in _OF_SETS if name in view_tags and not sets]
    goals = [feature.target for feature in sets if isinstance(feature.target, Goal)]
    if goals and "clusters" in view_tags and not any(goal.structure in STYLES for goal in goals):
        idle.append("clusters")
    if goals and "target" in view_tags and all(goal.is_met_by_sets for goal in goals):
        idle.append("target")
    idle = [TAG_PREFIX + name for name in idle]
    has_limit = "max_vocabulary" in view_tags.get("advanced", {})
    if has_limit and not any(feature.may_be_in_filter for feature in features.values()):
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


def _link_attributes(view: str, features: dict[str, FeatureSettings]) -> Iterator[SettingsError]:
    """Let the codecs of lists name the attributes of their items, and find those that are not possible."""
    for name, owner in list(features.items()):
        of_list = features.get(owner.codec.attribute_of)
        if of_list is None or of_list.codec.listing is None:
            continue
        where = f"feature {name!r} of view {view!r}"
        listing = of_list.codec.listing
        try:
            values = _declared_values(owner, where)
            attribute = Attribute(name, owner.codec.value_field, values)
            listing = replace(listing, attributes=(*listing.attributes, attribute))
        except SettingsError as error:
            yield error
        except ValueError as error:
            yield SettingsError(f"{where} has the tag {TAG_PREFIX}vocabulary, and {error}")
        features[of_list.codec.feature] = replace(of_list, codec=replace(of_list.codec, listing=listing))


def _declared_values(owner: FeatureSettings, where: str) -> tuple[str | int, ...]:
    """The values of an attribute."""
    kept = owner.vocabulary
    if kept is None or kept.values is None or len({*kept.values}) < len(kept.values):
        raise SettingsError(
            f"{where} is an attribute, which needs the tag {TAG_PREFIX}vocabulary with a list of its values, "
            "each once, such as `[view, click, like]`"
        )
    values = cut_of(kept, owner.codec, where, None).values
    assert values is not None
    return tuple(owner.codec.from_storage(values).to_pylist())


def _source_problems(view: str, features: Mapping[str, FeatureSettings]) -> Iterator[SettingsError]:
    """Find features that name others which are no lists, counts or sets, or that others name already."""
    codecs = [feature.codec for feature in features.values()]
    lists = [codec.feature for codec in codecs if codec.is_plain_list]
    counts = [codec.feature for codec in codecs if codec.is_counted]
    for what, tag, kind, sources, known in (
        ("times", "of", LIST, {codec.feature: codec.times_of for codec in codecs}, lists),
        ("attributes", "of", LIST, {codec.feature: codec.attribute_of for codec in codecs}, lists),
        ("counts", "of", COUNTS, {codec.feature: codec.counts_of for codec in codecs}, counts),
        ("ids", "ids_of", COUNTS, {codec.feature: codec.ids_of for codec in codecs}, counts),
    ):
        named = {feature: source for feature, source in sources.items() if source}
        for feature, source in named.items():
            if source not in known:
                yield SettingsError(
                    f"feature {feature!r} of view {view!r} has the tag {TAG_PREFIX}{tag}={source!r}, but the "
                    f"view has no feature of that name with the codec {kind!r}; it has {sorted(known)}"
                )
        taken = [] if what == "attributes" else [*named.values()]
        for source in sorted({source for source in taken if taken.count(source) > 1}):
            yield SettingsError(
                f"feature view {view!r} has {taken.count(source)} features with the {what} of {source!r}; "
                "keep one of them"
            )
    sets = [codec.feature for codec in codecs if codec.name == MEMBERSHIP]
    for name, owner in features.items():
        if owner.score and (others := [source for source in owner.score.of if source not in sets]):
            yield SettingsError(
                f"feature {name!r} of view {view!r} is to be computed from {others}, which are not Sets or "
                f"Arrays of the view that are kept as sets; those are {sets}"
            )


def _append_problems(
    settings: ViewSettings, view_tags: Mapping[str, Any], may_have_ttl: bool
) -> Iterator[SettingsError]:
    """Find problems of a view to which rows append."""
    if not any(codec.is_plain_list for codec in settings.codecs):
        yield from _growing_problems(settings)
        return
    if view_tags.get("rows") == "replace":
        yield SettingsError(
            f"feature view {settings.view!r} has lists, to which rows append, and the tag "
            f"{TAG_PREFIX}rows='replace'; remove the tag"
        )
    if not settings.ttl_microseconds:
        remedy = "give the view a ttl, such as ttl=timedelta(days=90)"
        if not may_have_ttl:
            remedy = "an on-demand view has none, so put them into another feature view"
        yield SettingsError(
            f"feature view {settings.view!r} has lists, whose items need a time to live; {remedy}"
        )
    if others := [
        c.feature for c in settings.codecs if not (c.is_plain_list or c.times_of or c.attribute_of)
    ]:
        yield SettingsError(
            f"feature view {settings.view!r} has lists, to which rows append, and {others}, which rows "
            "replace; put these into another view of the same entities"
        )


def _growing_problems(settings: ViewSettings) -> Iterator[SettingsError]:
    """Find problems of a view without lists, to which rows may append."""
    ids = {codec.ids_of: codec.feature for codec in settings.codecs if codec.ids_of}
    if settings.semantics != "append":
        for name in ids.values():
            yield SettingsError(
                f"feature {name!r} of view {settings.view!r} has the tag {TAG_PREFIX}ids_of, and rows of the "
                f"view replace each other; give the view the tag {TAG_PREFIX}rows='append', or remove it"
            )
        return
    grows = [
        codec for codec in settings.codecs if codec.name in (MEMBERSHIP, COUNTS, COUNTS_OF) or codec.ids_of
    ]
    if others := [codec.feature for codec in settings.codecs if codec not in grows]:
        yield SettingsError(
            f"feature view {settings.view!r} has the tag {TAG_PREFIX}rows='append', and {others}, which are "
            "not kept as sets or counts; put these into another view of the same entities, or remove the tag"
        )
    for codec in grows:
        if codec.is_counted and codec.feature not in ids:
            yield SettingsError(
                f"feature {codec.feature!r} of view {settings.view!r} has counts to which rows add, so a row "
                "that is written again would count again; declare an Array of String or Int64 with the tag "
                f"{TAG_PREFIX}ids_of={codec.feature!r} for the ids of what is counted"
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


def _name_problems(table: "FeatureView", join_keys: Iterable[str]) -> Iterator[SketchStoreError]:
    """Find names that cannot be columns of one table."""
    features = [field.name for field in own_fields(table)]
    names = list(dict.fromkeys([*join_keys, *(field.name for field in table.features)]))
    for name in names:
        lower = name.lower()
        is_own = lower in (*OWN_COLUMNS, OPERATION) or is_times_column(lower) or is_counts_column(lower)
        if is_own or is_removed_name(lower) or (name == ENTITYLESS_JOIN_KEY and name in features):
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


def own_fields(table: "FeatureView") -> list["Field"]:
    """The features of a view without its join keys, which Feast's registry adds to those of a stream view."""
    join_keys = asked_join_keys(table, [field.name for field in table.features])
    return [field for field in table.features if field.name not in join_keys]


def asked_join_keys(table: "FeatureView", features: Collection[str]) -> list[str]:
    """Join keys of a view among features that are asked of it; rows have them in their entity keys."""
    columns = getattr(table, "entity_columns", None) or ()
    return [column.name for column in columns if column.name in features]


def join_key_columns(table: "FeatureView") -> dict[str, pa.DataType]:
    """The join keys of a view that was applied, with the types of their columns."""
    return {
        column.name: FeatureCodec.for_feature(column.name, column.dtype).arrow_type
        for column in table.entity_columns
    }


def ttl_microseconds(options: StoreOptions, table: "FeatureView") -> int | None:
    """How long a view's rows live; None for no limit, which Feast writes as a ttl of zero or none.

    Without ``ttl: {expire: true}`` rows live for ever, and items of lists as long as their view says.
    """
    if not (options.ttl.expire or has_lists(table)):
        return None
    return microseconds_of_ttl(table.name, getattr(table, "ttl", None))  # on-demand views have none


def microseconds_of_ttl(view: str, ttl: object) -> int | None:
    """A time to live; None for no limit, which is also one of zero, or longer than the calendar.

    Raises SettingsError: it is not a duration of at least 0.
    """
    if ttl is None:
        return None
    if not isinstance(ttl, timedelta) or not ttl >= timedelta(0):
        raise SettingsError(
            f"feature view {view!r} has the ttl {ttl!r}; give a timedelta of at least 0, or None"
        )
    return limited(ttl // timedelta(microseconds=1)) if ttl else None


def first_moment(table: "FeatureView", end: datetime) -> datetime:
    """The first event timestamp of rows that are taken from the offline store: the view's ttl before ``end``,
    but not before 1970; without a ttl in 1970.
    """
    oldest = datetime(1970, 1, 2, tzinfo=UTC)
    return end - table.ttl if table.ttl and table.ttl < end - oldest else oldest


def has_lists(table: "FeatureView") -> bool:
    """Whether a view declares a list; ids of increments are none."""
    declared = [field.tags for field in table.features if field.tags]
    return any(tags.get(CODEC_TAG) == LIST and _IDS_TAG not in tags for tags in declared)
