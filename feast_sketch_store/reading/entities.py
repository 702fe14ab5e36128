"""Entities and values of callers, as Arrow columns of the stored types, as hashes, and as shards."""

from collections.abc import Mapping, Sized
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeGuard

import numpy as np
import pyarrow as pa
from numpy.ma import MaskedArray
from numpy.typing import ArrayLike, NDArray

from feast_sketch_store.errors import RowError
from feast_sketch_store.rows.entity_keys import hash_columns, hash_int64_keys
from feast_sketch_store.settings.values import shard_count
from feast_sketch_store.view.shard_map import shards_of

Entities: TypeAlias = ArrayLike | pa.Array | Mapping[str, ArrayLike | pa.Array]

_HASHES, _INTEGERS = np.dtype(np.uint64), np.dtype(np.int64)


@dataclass(frozen=True)
class EntityColumns:
    """The entities of one view, whose join keys have columns of these types."""

    view: str
    join_keys: Mapping[str, pa.DataType]

    def columns(self, entities: Entities) -> dict[str, pa.Array]:
        """Entities, as for `hash` but no hashes, as one column per join key.

        Raises RowError: a value is null, or is not of its join key's type.
        """
        try:
            columns = {
                name: as_array(values, self.join_keys[name]) for name, values in self._by_name(entities)
            }
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise self._refused(error) from error
        if any(column.null_count for column in columns.values()):
            raise self._refused("some are null")
        return columns

    def number(self, columns: Mapping[str, pa.Array]) -> int:
        """The number of entities in columns. Raises RowError: the columns differ in length."""
        lengths = {len(column) for column in columns.values()}
        if len(lengths) != 1:
            raise self._refused(f"the columns have {sorted(lengths)} values")
        return lengths.pop()

    def hash(self, entities: Entities) -> NDArray[np.uint64]:
        """The hashes that identify entities: uint64[n, 2], C-contiguous. Hashes are returned unchanged.

        Parameters
        ----------
        entities : an array of values of the join key; with several join keys, a mapping with an array for
            each.

        Raises RowError: see `columns` and `number`.
        """
        if is_unmasked(entities) and entities.dtype == _HASHES and entities.shape[1:] == (2,):
            return np.ascontiguousarray(entities)
        given = self._by_name(entities)
        name, values = given[0]
        is_int64 = is_unmasked(values) and values.dtype == _INTEGERS and values.ndim == 1
        if len(given) == 1 and is_int64 and pa.types.is_int64(self.join_keys[name]):
            return hash_int64_keys(name, values)
        columns = self.columns(entities)
        self.number(columns)
        return hash_columns(columns)

    def _by_name(self, entities: Entities) -> list[tuple[str, Any]]:
        if isinstance(entities, np.ndarray) or not isinstance(entities, Mapping):  # arrays are common
            if len(self.join_keys) != 1:
                raise self._refused("give a mapping with an array for each")
            return [(next(iter(self.join_keys)), entities)]
        if entities.keys() != self.join_keys.keys():
            raise self._refused(f"they have the join keys {sorted(entities)}")
        return list(entities.items())

    def _refused(self, reason: object) -> RowError:
        types = ", ".join(f"{name} ({kind})" for name, kind in self.join_keys.items())
        return RowError(
            f"these are not entities of feature view {self.view!r}, whose join keys are {types}: {reason}"
        )


def is_unmasked(values: object) -> TypeGuard[NDArray[Any]]:
    """Whether this is a NumPy array, and of no kind whose elements may be masked, which count as nulls."""
    return isinstance(values, np.ndarray) and not isinstance(values, MaskedArray)


def as_array(values: Any, kind: pa.DataType) -> pa.Array:
    """Values as an Arrow array of a type; numbers are never turned into strings or truncated."""
    if (
        isinstance(values, np.ndarray)
        and values.dtype == _INTEGERS
        and values.ndim == 1
        and kind == pa.int64()
    ):
        return pa.array(values)  # the common case
    array = values
    if isinstance(values, str | bytes) or not isinstance(values, Sized):
        raise TypeError(f"{values!r} is a single value; give an array or a list")
    if not isinstance(values, pa.Array):
        # NumPy cuts zeros off the end of text and bytes. Masked elements become nulls.
        array = pa.array(list(values) if isinstance(values, list | tuple) else np.asanyarray(values))
    if len(array) == 0:
        return pa.array([], kind)
    if array.type == pa.uuid():  # which the store keeps as text
        array = pa.array([None if each is None else str(each) for each in array.to_pylist()])
    if pa.types.is_null(array.type):
        return array.cast(kind)
    if _family(array.type) != _family(kind) and (_family(array.type), _family(kind)) not in _CASTS:
        raise TypeError(f"{array.type} is not {kind}")
    if pa.types.is_timestamp(kind) and pa.types.is_integer(array.type):
        return array.cast(pa.int64()).cast(pa.timestamp("s", kind.tz)).cast(kind)
    return array.cast(kind, safe=not pa.types.is_timestamp(kind))


def _family(kind: pa.DataType) -> str:
    """The family of a type. Within a family Arrow casts safely or refuses."""
    if pa.types.is_integer(kind):
        return "integer"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return "bytes"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "string"
    return "float" if pa.types.is_floating(kind) else str(kind).partition("[")[0]


# Casts between families: seconds to timestamps, whole numbers to prices.
_CASTS = {("integer", "timestamp"), ("integer", "float")}


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
    count = shard_count(num_shards)
    columns = {name: _column(name, value) for name, value in entity.items()}
    try:
        return int(shards_of(hash_columns(columns), count)[0])
    except (TypeError, ValueError) as error:
        raise RowError(f"{dict(entity)} is not an entity: {error}") from error


def hashes_of(hashes: bytes | NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hashes, or those of one entity as bytes, as an array: uint64[n, 2]."""
    return np.frombuffer(hashes, np.uint64).reshape(-1, 2) if isinstance(hashes, bytes) else hashes


def alone(entity: Any) -> Any:
    """One entity in the form of several."""
    return {name: [value] for name, value in entity.items()} if isinstance(entity, Mapping) else [entity]


def _column(name: str, value: Any) -> pa.Array:
    """A join key as a column of the type that Feast stores."""
    if isinstance(value, pa.Scalar):
        return pa.array([value.as_py()], value.type)
    for kind, arrow_type in _TYPES.items():
        if isinstance(value, kind) and not isinstance(value, bool):
            with suppress(OverflowError, UnicodeError):
                return pa.array([value], arrow_type)
    raise RowError(f"join key {name!r} has the value {value!r}; give an int64, a string or bytes")


_TYPES = {int | np.integer: pa.int64(), str: pa.large_string(), bytes: pa.large_binary()}
