"""The lines to paste at the end of a refusal: features and tags with which the view would be accepted."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from feast_sketch_store.errors import SettingsError, SketchStoreError, UnsupportedFeatureError
from feast_sketch_store.rows.codecs import EXACT
from feast_sketch_store.view.codec_choice import TAG_PREFIX, field_line, tags_text

if TYPE_CHECKING:
    from feast.feature_view import FeatureView
    from feast.field import Field

OF_VIEW = ""  # in place of the name of a feature
Tags = Mapping[str, str]
Read = TypeVar("Read")


def read_field(
    field: "Field", read: Callable[["Field"], Read], renamed: Tags
) -> tuple[Read | None, Tags, list[SketchStoreError]]:
    """Read the tags of a feature, without wrong ones if necessary.

    Parameters
    ----------
    read : reads a field, or raises SettingsError or UnsupportedFeatureError.
    renamed : old texts of tags with the new ones.

    Returns
    -------
    What was read of the feature, or None if no tags of its own help; the tags with which it is accepted; and
    all problems.
    """
    problems: list[SketchStoreError] = []
    for tags in _attempts(field.tags or {}, problems, renamed):
        try:
            return read(_with_tags(field, tags)), tags, problems
        except UnsupportedFeatureError as error:
            problems.append(error)
            if error.lines:
                error.lines = ()
                return None, _kept_exactly(tags), problems
            break
        except SettingsError as error:
            problems.append(error)
    return None, field.tags or {}, problems


def _attempts(tags: Tags, problems: list[SketchStoreError], renamed: Tags) -> Iterator[Tags]:
    """The tags of a feature, then those without the wrong ones, and finally tags that keep it exactly."""
    yield tags
    while (changed := changed_tags(tags, problems[-1], renamed)) != tags:
        tags = changed
        yield tags
    known = len(problems)
    for last_resort in (_not_ours(tags), _kept_exactly(tags)):
        yield last_resort
        del problems[known:]  # of tags that nobody wrote


def _with_tags(field: "Field", tags: Tags) -> "Field":
    other = copy.copy(field)
    other.tags = dict(tags)
    return other


def _not_ours(tags: Tags) -> dict[str, str]:
    return {tag: text for tag, text in tags.items() if not tag.startswith(TAG_PREFIX)}


def _kept_exactly(tags: Tags) -> dict[str, str]:
    return {**_not_ours(tags), TAG_PREFIX + "codec": EXACT}


def changed_tags(tags: Tags, problem: SketchStoreError, renamed: Tags) -> dict[str, str]:
    """Tags without the wrong ones, or with their new names and texts."""
    wrong = problem.wrong_tags if isinstance(problem, SettingsError) else {}
    kept = {
        wrong.get(tag, tag): renamed.get(text, text) if tag in wrong else text for tag, text in tags.items()
    }
    return {tag: text for tag, text in kept.items() if tag is not None}


def lines_to_paste(
    table: "FeatureView",
    problems: Sequence[SketchStoreError],
    view_tags: Tags | None = None,
    tags_of: Mapping[str, Tags] | None = None,
) -> Iterator[str]:
    """The lines that end the problems of a view: each feature once, with all its tags.

    Parameters
    ----------
    view_tags, tags_of : the tags of the view and of features, without those that are wrong by themselves.
    """
    before: dict[str, Tags] = {field.name: field.tags or {} for field in table.features}
    before[OF_VIEW] = table.tags or {}
    tags = before | dict(tags_of or {})
    tags[OF_VIEW] = before[OF_VIEW] if view_tags is None else view_tags
    new_names, moved = dict[str, str](), list[str]()
    for problem in problems:
        new_names |= problem.new_names
        if isinstance(problem, SettingsError):
            moved += problem.moved
            for name, new in problem.new_tags.items():
                tags[name] = {tag: text for tag, text in {**tags[name], **new}.items() if text is not None}
    if tags[OF_VIEW] != before[OF_VIEW]:
        yield f"tags={tags_text(tags[OF_VIEW])},  # of feature view {table.name!r}"
    yield from (line for problem in problems for line in problem.lines)
    fields = {field.name: field for field in table.features}
    for name, field in fields.items():
        if name not in moved and (tags[name] != before[name] or name in new_names):
            yield field_line(field, tags[name], new_names.get(name, name))
    if moved:
        yield f"# out of {table.name!r}, into another view of the same entities:"
    for name in dict.fromkeys(moved):
        yield field_line(fields[name], tags[name], new_names.get(name, name))
