"""List features: reads their tags and checks views that have them.

Field(name="read", dtype=Array(String), tags={"sketch.codec": "list", "sketch.list.limit": "200"})
Field(name="read_at", dtype=Array(UnixTimestamp), tags={"sketch.list.times_of": "read"})
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from feast_sketch_store.errors import SettingsError
from feast_sketch_store.rows.codecs import LIST, TIMES, FeatureCodec
from feast_sketch_store.rows.listing import DEFAULT_RESOLUTION_MICROSECONDS, Listing
from feast_sketch_store.view.codec_choice import TAG_PREFIX

if TYPE_CHECKING:
    from feast.feature_view import FeatureView
    from feast.field import Field

RESOLUTION: Final = "list.resolution"
LIMIT: Final = "list.limit"
TIMES_OF: Final = "list.times_of"


def has_lists(table: "FeatureView") -> bool:
    """Whether a view declares a list."""
    return any((field.tags or {}).get(TAG_PREFIX + "codec") == LIST for field in table.features)


def is_list_field(own_tags: Mapping[str, Any]) -> bool:
    """Whether tags of a feature, read and without their prefix, declare a list or the times of one."""
    return own_tags.get("codec") == LIST or not own_tags.keys().isdisjoint((RESOLUTION, LIMIT, TIMES_OF))


def list_codec(field: "Field", own_tags: Mapping[str, Any], where: str) -> FeatureCodec:
    """The codec of a list, or of the times of one.

    Raises
    ------
    SettingsError : tags contradict each other or the type.
    """
    name = TIMES if TIMES_OF in own_tags else LIST
    allowed = {TIMES_OF} if name == TIMES else {"codec", RESOLUTION, LIMIT}
    if own_tags.get("codec", LIST) != LIST or (name == LIST and "codec" not in own_tags):
        raise SettingsError.of_tags(
            f"{where} has tags of a list, and is not a list; set the tag {TAG_PREFIX}codec to {LIST!r}, or "
            f"remove {_tags(own_tags.keys() & _OF_LISTS)}",
            dict.fromkeys(TAG_PREFIX + tag for tag in own_tags.keys() & _OF_LISTS),
        )
    if idle := own_tags.keys() - allowed:
        what = "gives the times of a list" if name == TIMES else "is a list"
        raise SettingsError.of_tags(
            f"{where} {what}, so these tags have no effect: {_tags(idle)}; remove them",
            dict.fromkeys(TAG_PREFIX + tag for tag in idle),
        )
    usual = FeatureCodec.for_feature(field.name, field.dtype)
    if name not in usual.possible_names:
        wanted = "Array(UnixTimestamp)" if name == TIMES else "an Array"
        tag = TIMES_OF if name == TIMES else "codec"
        raise SettingsError.of_tags(
            f"{where} has type {field.dtype}; the tag {TAG_PREFIX}{tag} needs {wanted}. Change the type, or "
            "remove the tag",
            dict.fromkeys(TAG_PREFIX + other for other in own_tags.keys() & allowed),
        )
    if name == TIMES:
        return FeatureCodec(field.name, usual.value_field, TIMES, times_of=own_tags[TIMES_OF])
    resolution = own_tags.get(RESOLUTION, timedelta(microseconds=DEFAULT_RESOLUTION_MICROSECONDS))
    listing = Listing(resolution // timedelta(microseconds=1), own_tags.get(LIMIT))
    return FeatureCodec(field.name, usual.value_field, LIST, listing=listing)


def list_problems(
    table: "FeatureView", codecs: Sequence[FeatureCodec], ttl: int | None
) -> Iterator[SettingsError]:
    """Find problems of a view with lists.

    Parameters
    ----------
    codecs : of the view's features.
    ttl : how long items live, in microseconds; None for no limit.
    """
    lists = {codec.feature for codec in codecs if codec.is_list}
    times = [codec for codec in codecs if codec.times_of]
    for codec in times:
        if codec.times_of not in lists:
            yield SettingsError.of_view(
                f"feature {codec.feature!r} of view {table.name!r} has the tag {TAG_PREFIX}{TIMES_OF}="
                f"{codec.times_of!r}, but the view has no list of that name; its lists are {sorted(lists)}",
                {codec.feature: {TAG_PREFIX + TIMES_OF: None}},
                moved=[codec.feature] if lists else [],
            )
    owners = [codec.times_of for codec in times]
    for name in sorted({name for name in owners if owners.count(name) > 1}):
        surplus = [codec.feature for codec in times if codec.times_of == name][1:]
        yield SettingsError.of_view(
            f"feature view {table.name!r} has {owners.count(name)} features with the times of {name!r}; keep "
            "one of them",
            lines=[f"# out of {table.name!r}: {feature}" for feature in surplus],
        )
    if not lists:
        return
    if not ttl:
        yield SettingsError.of_view(
            f"feature view {table.name!r} has lists, whose items need a time to live; give the view a ttl, "
            "such as ttl=timedelta(days=90)",
            lines=[f"ttl=timedelta(days=90),  # of feature view {table.name!r}"],
        )
    others = [codec.feature for codec in codecs if not codec.is_list and not codec.times_of]
    if others:
        yield SettingsError.of_view(
            f"feature view {table.name!r} has lists, to which rows append, and {others}, which rows replace; "
            "put these into another view of the same entities",
            moved=others,
        )


_OF_LISTS = {RESOLUTION, LIMIT, TIMES_OF}


def _tags(names: Any) -> str:
    return ", ".join(sorted(TAG_PREFIX + name for name in names))
