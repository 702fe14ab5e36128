"""EntityKey -> bytes -> hash: the only place that serializes or hashes keys.

An entity is identified by Feast's own ``serialize_entity_key`` (version 3) and hashed with
MurmurHash3 x64 128, as Feast's stores do, so a key has the same identity here and there.
"""

import struct
from collections.abc import Iterable, Sequence

import mmh3
import numpy as np
from feast.infra.key_encoding_utils import serialize_entity_key
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import ValueType
from numpy.typing import NDArray

SERIALIZATION_VERSION = 3

_HEAD = struct.Struct("<III")  # one join key, its type, its length
_INT64 = struct.Struct("<IIq")  # type, length, value


def serialize_entity_keys(entity_keys: Sequence[EntityKey]) -> list[bytes]:
    """Serialize as ``feast.infra.key_encoding_utils.serialize_entity_key(key, 3)`` does.

    A single int64 join key, by far the most usual one, takes a path of its own that is about four
    times faster; a test holds both to the same bytes.

    Raises
    ------
    ValueError : a key has a value type that Feast does not take as a key (from Feast).
    """
    heads: dict[str, bytes] = {}
    serialized = []
    for entity_key in entity_keys:
        values = entity_key.entity_values
        if len(values) == 1 and values[0].WhichOneof("val") == "int64_val":
            join_key = entity_key.join_keys[0]
            head = heads.get(join_key)
            if head is None:
                name = join_key.encode()
                head = heads[join_key] = _HEAD.pack(1, ValueType.STRING, len(name)) + name
            serialized.append(head + _INT64.pack(ValueType.INT64, 8, values[0].int64_val))
        else:
            serialized.append(serialize_entity_key(entity_key, SERIALIZATION_VERSION))
    return serialized


def int64_join_key(serialized_keys: Sequence[bytes]) -> tuple[str, NDArray[np.int64]] | None:
    """The name and values of a single int64 join key, read off the bytes of all keys at once.

    None if the keys are not all of one such join key.
    """
    lengths = set(map(len, serialized_keys))
    if len(lengths) != 1 or min(lengths) < _HEAD.size + _INT64.size:
        return None
    keys = np.frombuffer(b"".join(serialized_keys), np.uint8).reshape(len(serialized_keys), -1)
    head = serialized_keys[0][:-8]
    num_keys, name_type, name_length = _HEAD.unpack_from(head)
    is_int64 = (
        num_keys == 1
        and name_type == ValueType.STRING
        and len(head) == _HEAD.size + name_length + 8
        and head.endswith(_INT64.pack(ValueType.INT64, 8, 0)[:8])
    )
    if not is_int64 or (keys[:, :-8] != keys[0, :-8]).any():
        return None
    values = np.ascontiguousarray(keys[:, -8:]).view("<i8").ravel()
    return head[_HEAD.size : -8].decode(), values


def hash_serialized_keys(serialized_keys: Iterable[bytes]) -> NDArray[np.uint64]:
    """Hash serialized keys: uint64[n, 2], MurmurHash3 x64 128 with seed 0."""
    digests = b"".join(map(mmh3.mmh3_x64_128_digest, serialized_keys))
    return np.frombuffer(digests, "<u8").reshape(-1, 2)
