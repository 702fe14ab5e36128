"""Features of counts: reads their tags and checks views that have them.

Field(name="viewed", dtype=Array(String), tags={"sketch.codec": "counts", "sketch.counts.error": "10%"})
Field(name="views", dtype=Array(Int64), tags={"sketch.counts_of": "viewed"})
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from feast_sketch_store.errors import SettingsError
from feast_sketch_store.rows.codecs import COUNTS, COUNTS_OF, FeatureCodec
from feast_sketch_store.rows.counting import Counting
from feast_sketch_store.view.codec_choice import TAG_PREFIX

if TYPE_CHECKING:
    from feast.field import Field

ERROR: Final = "counts.error"
OF: Final = "counts_of"


def count_error(text: Any) -> Counting:
    """Read how far a count may be from the one that was written: ``0``, ``2``, or ``10%`` of it.

    Raises
    ------
    ValueError : the text has another form.
    """
    found = re.fullmatch(r"\s*(?:([0-9]{1,15})|([0-9]+(?:\.[0-9]+)?)\s*%)\s*", str(text))
    if found is None:
        raise ValueError(
            "an error is a whole number of counts, such as 2, or a share of a count, such as 10%"
        )
    return Counting(absolute=int(found[1])) if found[1] else Counting(relative=float(found[2]) / 100)


def is_count_field(own_tags: Mapping[str, Any]) -> bool:
    """Whether tags of a feature, read and without their prefix, declare counted values or their counts."""
    return own_tags.get("codec") == COUNTS or not own_tags.keys().isdisjoint((ERROR, OF))


def count_codec(field: "Field", own_tags: Mapping[str, Any], where: str) -> FeatureCodec:
    """The codec of counted values, or of their counts.

    Raises
    ------
    SettingsError : tags contradict each other or the type.
    """
    name = COUNTS_OF if OF in own_tags else COUNTS
    allowed = {OF} if name == COUNTS_OF else {"codec", ERROR, "max_vocabulary"}
    if name == COUNTS and own_tags.get("codec") != COUNTS:
        raise SettingsError.of_tags(
            f"{where} has the tag {TAG_PREFIX}{ERROR}, and no counts; set the tag {TAG_PREFIX}codec to "
            f"{COUNTS!r}, or remove it",
            {TAG_PREFIX + ERROR: None},
        )
    if idle := sorted(own_tags.keys() - allowed):
        what = "gives the counts of another feature" if name == COUNTS_OF else "is counted"
        names = ", ".join(TAG_PREFIX + tag for tag in idle)
        raise SettingsError.of_tags(
            f"{where} {what}, so these tags have no effect: {names}; remove them",
            dict.fromkeys(TAG_PREFIX + tag for tag in idle),
        )
    usual = FeatureCodec.for_feature(field.name, field.dtype)
    if name not in usual.possible_names:
        wanted = "an Array of Int64 or Int32" if name == COUNTS_OF else "an Array"
        tag = OF if name == COUNTS_OF else "codec"
        raise SettingsError.of_tags(
            f"{where} has type {field.dtype}; the tag {TAG_PREFIX}{tag} needs {wanted}. Change the type, or "
            "remove the tag",
            {TAG_PREFIX + tag: None},
        )
    if name == COUNTS_OF:
        return FeatureCodec(field.name, usual.value_field, COUNTS_OF, counts_of=own_tags[OF])
    counting = own_tags.get(ERROR, Counting())
    return FeatureCodec(field.name, usual.value_field, COUNTS, counting=counting)


def with_features_of_counts(codecs: Mapping[str, FeatureCodec]) -> dict[str, FeatureCodec]:
    """The codecs of a view by name. Those of counted values name the feature with their counts."""
    owners = {codec.counts_of: name for name, codec in codecs.items() if codec.counts_of}
    linked = dict(codecs)
    for name, codec in codecs.items():
        if codec.counting is not None and name in owners:
            linked[name] = replace(codec, counting=replace(codec.counting, feature=owners[name]))
    return linked


def count_problems(view: str, codecs: Mapping[str, FeatureCodec]) -> Iterator[SettingsError]:
    """Find problems of a view with counts; ``codecs`` are those of its features, by name."""
    counted = sorted(name for name, codec in codecs.items() if codec.is_counted)
    owners = [codec.counts_of for codec in codecs.values() if codec.counts_of]
    for name, codec in codecs.items():
        if codec.counts_of and codec.counts_of not in counted:
            yield SettingsError.of_view(
                f"feature {name!r} of view {view!r} has the tag {TAG_PREFIX}{OF}={codec.counts_of!r}, but "
                f"the view has no feature of that name with the codec {COUNTS!r}; it has {counted}",
                {name: {TAG_PREFIX + OF: None}},
            )
    for name in sorted({name for name in owners if owners.count(name) > 1}):
        surplus = [feature for feature, codec in codecs.items() if codec.counts_of == name][1:]
        yield SettingsError.of_view(
            f"feature view {view!r} has {owners.count(name)} features with the counts of {name!r}; keep one "
            "of them",
            {feature: {TAG_PREFIX + OF: None} for feature in surplus},
        )
