"""EntityKey -> bytes -> hash: the only place that serializes or hashes keys.

An entity is identified by Feast's own ``serialize_entity_key`` (version 3), and inside the store by a 128-bit
hash of these bytes. Integers are hashed with MurmurHash3, as in Feast's stores: an attacker can choose only
64 bits, too few to force a collision in 128. MurmurHash3 does not resist chosen strings or bytes, with which
a user could take over another user's row. So they are hashed with BLAKE2b.
"""

import functools
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from feast_sketch_store import kernel
from feast_sketch_store.errors import RowError
from feast_sketch_store.kernel.binary import from_parts, parts_of
from feast_sketch_store.rows.columns import large_type

if TYPE_CHECKING:
    from feast.protos.feast.types.EntityKey_pb2 import EntityKey

SERIALIZATION_VERSION = 3

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1

# The types that a join key can have: Feast's ValueType, with the fields of ``Value``.
_BYTES, _STRING, _INT32, _INT64, _UNIX_TIMESTAMP = 1, 2, 3, 4, 8
_FIELDS = {
    _BYTES: "bytes_val",
    _STRING: "string_val",
    _INT32: "int32_val",
    _INT64: "int64_val",
    _UNIX_TIMESTAMP: "unix_timestamp_val",
}

# Names of join keys, each with the field of ``Value`` that carries it; None if not known.
JoinKeys = Mapping[str, str | None]

# The fields of ``Value`` that a join key can have, and their columns.
JOIN_KEY_TYPES = {
    "string_val": pa.large_string(),
    "bytes_val": pa.large_binary(),
    "int32_val": pa.int32(),
    "int64_val": pa.int64(),
    "unix_timestamp_val": pa.timestamp("s"),
}
_KINDS = {JOIN_KEY_TYPES[field]: kind for kind, field in _FIELDS.items()}


def int64_column(entity_keys: "Sequence[EntityKey]") -> tuple[str, NDArray[np.int64]] | None:
    """The name and values of a single int64 join key, by far the most common kind; None for other keys."""
    return kernel.parse_int64_keys([entity_key.SerializeToString() for entity_key in entity_keys])


def check_join_keys(entity_keys: "Sequence[EntityKey]", wanted: JoinKeys) -> None:
    """Check that all keys have the same join keys as the rows of their view.

    Raises RowError: a row has other join keys; names the first such row, and the expected join keys.
    """
    for row, key in enumerate(entity_keys):
        given = {}
        for name, value in zip(key.join_keys[:], key.entity_values[:], strict=False):
            given[name] = value.WhichOneof("val")
        if len(given) < min(len(key.join_keys), len(key.entity_values)):
            again = sorted(name for name in given if list(key.join_keys).count(name) > 1)
            raise RowError(f"row {row} of the batch names {', '.join(again)} twice in its key; give it once")
        is_wanted = given.keys() == wanted.keys() and len(key.join_keys) == len(key.entity_values)
        if not is_wanted or any(wanted[name] not in (None, field) for name, field in given.items()):
            empty = [name for name, field in given.items() if field in (None, "null_val")]
            if is_wanted and empty:
                raise RowError(
                    f"row {row} of the batch has a null or NaN in the join key {', '.join(empty)}. "
                    "Give the row its key, or leave it out"
                )
            raise RowError(
                f"row {row} of the batch is keyed by {join_keys_text(given)}, the rows of the view by "
                f"{join_keys_text(wanted)}. Give it the view's join keys; otherwise no read could find it"
            )


def join_keys_text(join_keys: JoinKeys) -> str:
    """Join keys as messages name them: ``item_id (string), user_id (int64)``."""
    if not join_keys:
        return "nothing"
    return ", ".join(
        name if field is None else f"{name} ({field.removesuffix('_val')})"
        for name, field in sorted(join_keys.items())
    )


def key_text(entity_key: "EntityKey") -> str:
    """An entity key as messages show it: ``item_id='a', user_id=7``."""
    values = (getattr(v, v.WhichOneof("val") or "null_val") for v in entity_key.entity_values)
    return ", ".join(f"{name}={value!r}" for name, value in zip(entity_key.join_keys, values, strict=False))


def serialize_entity_keys(entity_keys: "Sequence[EntityKey]") -> list[bytes]:
    """Serialize as ``feast.infra.key_encoding_utils.serialize_entity_key(key, 3)`` does.

    Raises ValueError: Feast does not accept the value type of a key (raised by Feast).
    """
    from feast.infra.key_encoding_utils import serialize_entity_key

    usual = int64_column(entity_keys)
    if usual is not None:
        serialized: list[bytes] = serialize_columns({usual[0]: pa.array(usual[1])}).to_pylist()
        return serialized
    return [serialize_entity_key(entity_key, SERIALIZATION_VERSION) for entity_key in entity_keys]


def join_keys_of(serialized_key: bytes) -> dict[str, str]:
    """The names of a key's join keys, each with the field of Feast's ``Value`` that carries it."""
    parts, _ = _parts_of_key(serialized_key)
    names, values = parts[: len(parts) // 2], parts[len(parts) // 2 :]
    return {name.decode(): _FIELDS[kind] for (_, name), (kind, _) in zip(names, values, strict=True)}


def length_of_serialized_key(content: bytes) -> int:
    """The number of bytes of the serialized key at the start of ``content``; other bytes may follow.

    Raises RowError: ``content`` does not begin with a whole key.
    """
    return _parts_of_key(content)[1]


def _parts_of_key(content: bytes) -> tuple[list[tuple[int, bytes]], int]:
    """The names of join keys, then their values, each with its type; and the number of bytes of it all."""
    parts, offset = [], 4
    try:
        (num_join_keys,) = struct.unpack_from("<I", content)
        for _ in range(2 * num_join_keys):
            kind, length = struct.unpack_from("<II", content, offset)
            offset += 8 + length
            parts.append((kind, content[offset - length : offset]))
            if offset > len(content):
                raise RowError("a serialized entity key is cut short")
    except struct.error as error:
        raise RowError("a serialized entity key is cut short") from error
    return parts, offset


def hash_serialized_keys(serialized_keys: Sequence[bytes] | pa.Array) -> NDArray[np.uint64]:
    """Hash serialized keys: uint64[n, 2]. A single int64 gets MurmurHash3 x64 128, all others BLAKE2b-128."""
    if not isinstance(serialized_keys, pa.Array):
        serialized_keys = pa.array(serialized_keys, pa.large_binary())
    return kernel.hash_keys(*parts_of(serialized_keys.cast(pa.large_binary())))


def hash_columns(join_keys: Mapping[str, pa.Array]) -> NDArray[np.uint64]:
    """Hash keys that are given as columns, without a Python object per key: uint64[n, 2].

    Columns and errors are those of `serialize_columns`.
    """
    if len(join_keys) == 1:
        ((name, values),) = join_keys.items()
        if pa.types.is_int64(values.type) and not values.null_count:
            return hash_int64_keys(name, values.to_numpy())
    return hash_serialized_keys(serialize_columns(join_keys))


def hash_int64_keys(join_key: str, values: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Hash the keys of a single int64 join key: uint64[n, 2]."""
    return kernel.hash_int64_keys(int64_prefix(join_key), values)


class SingleKeys:
    """Hashes single entities, given by Python values of their join keys, with types of `JOIN_KEY_TYPES`."""

    def __init__(self, join_keys: Mapping[str, pa.DataType]):
        self._names = sorted(join_keys)
        self._heads = struct.pack("<I", len(join_keys)) + b"".join(_name(name) for name in self._names)
        self._kinds = [_KINDS[join_keys[name]] for name in self._names]
        is_int64 = self._kinds == [_INT64]
        self._int64_prefix = self._heads + struct.pack("<II", _INT64, 8) if is_int64 else None

    def hash(self, entity: object) -> bytes | None:
        """The 16 bytes of the hash of an entity: the value of the join key; with several join keys, a mapping
        with the value of each. None if this is not a single entity, or not certainly of the right types.
        """
        if type(entity) is int and self._int64_prefix is not None and _INT64_MIN <= entity <= _INT64_MAX:
            return kernel.hash_int64_key(self._int64_prefix, entity)  # the common case
        if isinstance(entity, np.integer):
            return self.hash(int(entity))
        values: list[object]
        if isinstance(entity, int | str | bytes):
            values = [entity]
        elif isinstance(entity, Mapping) and entity.keys() == {*self._names}:
            values = [entity[name] for name in self._names]
        else:
            return None
        if len(values) != len(self._names):
            return None
        parts = [_serialized(kind, value) for kind, value in zip(self._kinds, values, strict=True)]
        if None in parts:
            return None
        return kernel.hash_key(b"".join((self._heads, *parts)))  # type: ignore[arg-type]


def _serialized(kind: int, value: object) -> bytes | None:
    """Type, length and value of a join key; None if it cannot have the value."""
    content = None
    if type(value) is int or isinstance(value, np.integer):
        number = int(value)
        if kind == _INT32 and -(2**31) <= number < 2**31:
            content = struct.pack("<i", number)
        elif kind in (_INT64, _UNIX_TIMESTAMP) and _INT64_MIN <= number <= _INT64_MAX:
            content = struct.pack("<q", number)
    elif kind == _STRING and isinstance(value, str):
        try:
            content = value.encode()
        except UnicodeEncodeError:  # half of a surrogate pair
            return None
    elif kind == _BYTES and isinstance(value, bytes):
        content = value
    return None if content is None else struct.pack("<II", kind, len(content)) + content


def hash_int64_key(join_key: str, value: int) -> bytes:
    """The 16 bytes of the hash of a key with a single int64 join key."""
    return kernel.hash_int64_key(int64_prefix(join_key), value)


def serialize_columns(join_keys: Mapping[str, pa.Array]) -> pa.Array:
    """Serialize keys that are given as columns: a large binary array.

    The columns are Arrow arrays of equal length: int32, int64, string or binary; or timestamps, which become
    seconds since 1970.

    Raises
    ------
    ValueError : a value is null, or the columns differ in length.
    TypeError : Feast does not accept the type as a key.
    """
    columns = dict(sorted(join_keys.items()))
    if len({len(values) for values in columns.values()}) != 1:
        raise ValueError(f"the join keys {list(columns)} do not have columns of equal length")
    names = b"".join(_name(name) for name in columns)
    parts = [pa.scalar(struct.pack("<I", len(columns)) + names, pa.large_binary())]
    for name, values in columns.items():
        if values.null_count:
            raise ValueError(f"join key {name!r} has nulls; every entity needs a value")
        parts += _serialize_values(name, values)
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.large_binary()))


@functools.lru_cache(maxsize=1024)
def int64_prefix(join_key: str) -> bytes:
    """The bytes before the value of a single int64 join key."""
    return struct.pack("<I", 1) + _name(join_key) + struct.pack("<II", _INT64, 8)


def _name(join_key: str) -> bytes:
    name = join_key.encode()
    return struct.pack("<II", _STRING, len(name)) + name


def _serialize_values(join_key: str, values: pa.Array) -> list[pa.Array]:
    """Two arrays of binary values; together they are the type, length and value of each key."""
    is_time = pa.types.is_timestamp(values.type)
    kind = _UNIX_TIMESTAMP if is_time else _KINDS.get(large_type(values.type))
    if kind is None:
        raise TypeError(
            f"join key {join_key!r} has values of type {values.type}; give int64, int32, strings, bytes or "
            "timestamps"
        )
    if is_time:
        values = values.cast(pa.timestamp("s", values.type.tz), safe=False).cast(pa.int64())
    is_number = pa.types.is_integer(values.type)
    content = _fixed_width(values.to_numpy()) if is_number else values.cast(pa.large_binary())
    heads = np.empty((len(values), 2), "<u4")
    heads[:, 0] = kind
    heads[:, 1] = pc.binary_length(content).to_numpy()
    return [_fixed_width(heads), content]


def _fixed_width(numbers: NDArray[np.generic]) -> pa.Array:
    """The bytes of each row of numbers as a large binary array."""
    width = numbers.dtype.itemsize * (numbers.shape[1] if numbers.ndim > 1 else 1)
    data = np.frombuffer(np.ascontiguousarray(numbers).tobytes(), np.uint8)
    return from_parts(np.arange(len(numbers) + 1) * width, data)


def find_sorted(
    listed: NDArray[np.uint64], wanted: NDArray[np.uint64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Look up 128-bit hashes in a sorted list.

    Parameters
    ----------
    listed : uint64[m, 2], ordered by the first, then the second half.
    wanted : uint64[n, 2]

    Returns the ascending positions of the found ones in ``wanted``, and their indices in ``listed``: int64[p]
    each.
    """
    indices = np.searchsorted(listed[:, 0], wanted[:, 0])
    unsettled = np.arange(len(wanted))
    positions, rows = [], []
    # One round is enough, unless another entity has the same first 64 bits.
    while unsettled.size:
        unsettled = unsettled[indices[unsettled] < len(listed)]
        at_index = listed[indices[unsettled]]
        same_first = at_index[:, 0] == wanted[unsettled, 0]
        same = same_first & (at_index[:, 1] == wanted[unsettled, 1])
        positions.append(unsettled[same])
        rows.append(indices[unsettled[same]])
        unsettled = unsettled[same_first & ~same]
        indices[unsettled] += 1
    if not positions:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    if len(positions) == 1:
        return positions[0], rows[0]
    order = np.argsort(found := np.concatenate(positions), kind="stable")
    return found[order], np.concatenate(rows)[order]
