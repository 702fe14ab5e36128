"""Update expressions of `FeatureStore.update_online_store`, as rows of the log.

list_append(items, :new_val)    adds the items of a row to the list or set, or its counts
list_append(:new_val, items)    the same: the order of a list is that of its times
ADD items :new_val              the same, for a set or counts
DELETE items :new_val           removes the values of a row from a set, or all that was counted of them
:new_val                        replaces the list, set or counts
"""

import re
from collections.abc import Mapping, Sequence

import pyarrow as pa

from feast_sketch_store.errors import RowError, UnsupportedFeatureError
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.encoding import FeastRow
from feast_sketch_store.rows.list_log import REMOVE, REPLACE, to_list_log, with_operations, without
from feast_sketch_store.settings.view_settings import ViewSettings

_APPEND = re.compile(r"\s*list_append\(\s*([^\s,()]+)\s*,\s*([^\s,()]+)\s*\)\s*")
_OF_SET = re.compile(r"\s*(ADD|DELETE)\s+(\S+)\s+(\S+)\s*", re.IGNORECASE)
_NEW = ":new_val"


def updates(settings: ViewSettings, data: Sequence[FeastRow], expressions: Mapping[str, str]) -> pa.Table:
    """Turn update expressions into rows of the log; a feature without an expression is added to.

    Raises
    ------
    UnsupportedFeatureError : an expression names something to which rows of the view do not append, or is not
        an update.
    RowError : a row cannot be kept.
    """
    is_appended = settings.semantics == "append"
    stored = settings.stored_codecs if is_appended else ()
    codecs = {codec.feature: codec for codec in stored if not codec.ids_of}
    for name in expressions:
        if name not in codecs:
            raise UnsupportedFeatureError(
                f"feature view {settings.view!r} has no list, set or counts {name!r} to update; it has "
                f"{list(codecs)}. The tag sketch.codec: list on an Array makes a list, and the tag "
                "sketch.rows: append on a view lets its sets grow; other features are written with push or "
                "materialize"
            )
    operations = {
        name: _operation(codec, expressions[name], settings.view) if name in expressions else None
        for name, codec in codecs.items()
    }
    try:
        rows = to_list_log(data, settings.codecs, settings.join_keys)
    except RowError as error:
        raise RowError(f"feature view {settings.view!r}: {error}") from error
    beside = {
        attribute.feature: operations[name]
        for name, codec in codecs.items()
        for attribute in codec.attributes
    }
    ids = {codec.feature: operations[codec.ids_of] for codec in stored if codec.ids_of}
    rows = without(rows, [name for name, operation in ids.items() if operation])  # which stay known
    return with_operations(rows, {**operations, **beside, **ids})


def _operation(codec: FeatureCodec, expression: str, view: str) -> str | None:
    """The operation of the log for an expression; None to append."""
    name = codec.feature
    if expression.strip() == _NEW:
        return REPLACE
    found = _APPEND.fullmatch(expression)
    if found is not None and {found[1], found[2]} == {name, _NEW}:
        return None
    found = None if codec.is_list else _OF_SET.fullmatch(expression)
    if found is not None and (found[2], found[3]) == (name, _NEW):
        return None if found[1].upper() == "ADD" else REMOVE
    what = "list" if codec.is_list else "counts" if codec.is_counted else "set"
    others = "" if codec.is_list else f", 'DELETE {name} {_NEW}' to remove from it"
    raise UnsupportedFeatureError(
        f"feature view {view!r}: {expression!r} is not an update of the {what} {name!r}; give "
        f"'list_append({name}, {_NEW})' to add to it{others}, or '{_NEW}' to replace it"
    )
