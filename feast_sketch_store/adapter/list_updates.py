"""Update expressions of `FeatureStore.update_online_store`, as rows of the log.

list_append(items, :new_val)    adds the items of a row to the list
list_append(:new_val, items)    the same: the order of a list is that of its times
:new_val                        replaces the list
"""

import re
from collections.abc import Mapping, Sequence

import pyarrow as pa

from feast_sketch_store.errors import RowError, UnsupportedFeatureError
from feast_sketch_store.rows.encoding import FeastRow
from feast_sketch_store.rows.list_log import replacing, to_list_log
from feast_sketch_store.settings.view_settings import ViewSettings

_APPEND = re.compile(r"\s*list_append\(\s*([^\s,()]+)\s*,\s*([^\s,()]+)\s*\)\s*")
_NEW = ":new_val"


def updates(settings: ViewSettings, data: Sequence[FeastRow], expressions: Mapping[str, str]) -> pa.Table:
    """Turn update expressions into rows of the log; a list without an expression is added to.

    Raises
    ------
    UnsupportedFeatureError : an expression names something that is not a list of the view, or is not an
        update.
    RowError : a row cannot be kept.
    """
    lists = [codec.feature for codec in settings.codecs if codec.is_list]
    for name in expressions:
        if name not in lists:
            raise UnsupportedFeatureError(
                f"feature view {settings.view!r} has no list {name!r} to update; its lists are {lists}. The "
                "tag sketch.codec: list on an Array makes one; other features are written with push or "
                "materialize"
            )
    replaced = [name for name, text in expressions.items() if _replaces(name, text, settings.view)]
    try:
        rows = to_list_log(data, settings.codecs, settings.join_keys)
    except RowError as error:
        raise RowError(f"feature view {settings.view!r}: {error}") from error
    return replacing(rows, replaced)


def _replaces(name: str, expression: str, view: str) -> bool:
    """Whether an expression replaces a list; otherwise it adds to it."""
    if expression.strip() == _NEW:
        return True
    found = _APPEND.fullmatch(expression)
    if found is not None and {found[1], found[2]} == {name, _NEW}:
        return False
    raise UnsupportedFeatureError(
        f"feature view {view!r}: {expression!r} is not an update of the list {name!r}; give "
        f"'list_append({name}, {_NEW})' to add to it, or '{_NEW}' to replace it"
    )
