"""`shard_of`: the shard of an entity, for clients that choose which server to ask."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from feast_sketch_store.errors import RowError
from feast_sketch_store.rows.entity_keys import hash_columns
from feast_sketch_store.settings.values import shard_count
from feast_sketch_store.view.shard_map import shards_of


def shard_of(entity: Mapping[str, int | str | bytes], num_shards: int) -> int:
    """The shard of an entity in a view with this many shards. Needs neither a store nor Feast.

    Parameters
    ----------
    entity : the value of each join key, by name: ``{"user_id": 7}``. Integers count as Int64; pass an Arrow
        scalar for a join key of another type.
    num_shards : the option ``shards`` of the view, a power of two.

    Raises
    ------
    RowError : a join key cannot have such a value.
    ValueError : ``num_shards`` is not a power of two.

    Examples
    --------
    >>> shard_of({"user_id": 7}, 16)
    11
    """
    columns = {name: _column(name, value) for name, value in entity.items()}
    return int(shards_of(hash_columns(columns), shard_count(num_shards))[0])


def _column(name: str, value: Any) -> pa.Array:
    """A join key as a column of the type that Feast stores."""
    if isinstance(value, pa.Scalar):
        return pa.array([value.as_py()], value.type)
    for kind, arrow_type in _TYPES.items():
        if isinstance(value, kind) and not isinstance(value, bool):
            return pa.array([value], arrow_type)
    raise RowError(f"join key {name!r} has the value {value!r}; give an integer, a string or bytes")


_TYPES = {int: pa.int64(), str: pa.large_string(), bytes: pa.large_binary()}
