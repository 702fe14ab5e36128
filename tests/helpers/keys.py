"""Entity keys as Feast passes them to an online store."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import Value
from numpy.typing import NDArray

from feast_sketch_store.rows.entity_keys import hash_serialized_keys, serialize_entity_keys


def entity_key(**join_keys: Any) -> EntityKey:
    """An entity key in the given order; an int becomes an int64, a str a string; a ``Value`` stays."""
    return EntityKey(join_keys=list(join_keys), entity_values=[_value_of(v) for v in join_keys.values()])


def user_key(user: Any) -> EntityKey:
    """The key of a user: the only join key is ``user_id``."""
    return entity_key(user_id=user)


def user_hashes(users: Iterable[Any]) -> NDArray[np.uint64]:
    """The hashes by which layers know users: uint64[n, 2]."""
    return hash_serialized_keys(serialize_entity_keys([user_key(user) for user in users]))


def _value_of(value: Any) -> Value:
    if isinstance(value, Value):
        return value
    return Value(int64_val=value) if isinstance(value, int) else Value(string_val=value)
