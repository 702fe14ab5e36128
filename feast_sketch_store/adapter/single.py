"""Answers about one or a few entities, with one call for each: rows of ``online_read``, vectors of a
response.

Each function returns None if the entity has to be read in the usual way; see `ReadableRows`.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta

from feast.protos.feast.serving.ServingService_pb2 import GetOnlineFeaturesResponse
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import RepeatedValue, Value

from feast_sketch_store import kernel
from feast_sketch_store.adapter import responses
from feast_sketch_store.adapter.responses import EPOCH, STATUSES, Row
from feast_sketch_store.kernel import ReadableRows
from feast_sketch_store.rows.codecs import MISSING, VALUE
from feast_sketch_store.rows.entity_keys import hash_int64_key, serialize_entity_keys

_STATUSES = STATUSES[: VALUE + 1]


def hash_entity_key(entity_key: EntityKey) -> bytes:
    """The hash of an entity key, 16 bytes; raises as `serialize_entity_keys`."""
    usual = kernel.hash_message(entity_key.SerializeToString())
    return kernel.hash_key(serialize_entity_keys([entity_key])[0]) if usual is None else usual


def hash_join_keys(join_keys: Mapping[str, Sequence[Value]]) -> bytes | None:
    """The hash of one entity with a single int64 join key, 16 bytes; None for all other requests."""
    if len(join_keys) == 1:
        ((name, values),) = join_keys.items()
        if len(values) == 1 and values[0].WhichOneof("val") == "int64_val":
            return hash_int64_key(name, values[0].int64_val)
    return None


def read_row(
    rows: ReadableRows, entity_hash: bytes, features: Sequence[str], expire_before: int
) -> Row | None:
    """The row of an entity as ``online_read`` returns it."""
    answer = rows.row(entity_hash, expire_before)
    if answer is None:
        return None
    if answer is False:
        return None, None
    microseconds, states, message = answer
    values = dict(zip(features, RepeatedValue.FromString(message).val, strict=True))
    if MISSING in states:
        for name, state in zip(features, states, strict=True):
            if state == MISSING:
                values.pop(name, None)
    return EPOCH + timedelta(microseconds=microseconds), values


def add_vectors(
    response: GetOnlineFeaturesResponse, rows: ReadableRows, entity_hashes: bytes, expire_before: int
) -> tuple[int, int] | None:
    """Add a vector per feature of some entities to a response.

    Parameters
    ----------
    entity_hashes : 16 bytes for each; an entity may be there several times.

    Returns
    -------
    The number of values present, and the number of rows found.
    """
    answer = rows.vectors(entity_hashes, expire_before, _STATUSES, responses.MAX_VECTOR_BYTES)
    if answer is None:
        return None
    message, num_present, num_found = answer
    response.MergeFromString(message)
    return num_present, num_found
