"""Turns answers of layers into what Feast returns: rows of ``online_read``, vectors of a response.

A vector is one feature of all entities. It is built in protobuf's wire format and parsed once. Feast's own
way makes and copies a Python object per entity and feature.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
from feast.protos.feast.serving.ServingService_pb2 import FieldStatus, GetOnlineFeaturesResponse
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import Value
from google.protobuf.timestamp_pb2 import Timestamp
from numpy.typing import NDArray

from feast_sketch_store import kernel
from feast_sketch_store.errors import SketchStoreError
from feast_sketch_store.layers import LayerAnswer
from feast_sketch_store.rows.codecs import MISSING
from feast_sketch_store.rows.entity_keys import JOIN_KEY_TYPES, hash_columns, hash_int64_keys

Row = tuple[datetime | None, dict[str, Value] | None]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PRESENT, _NOT_FOUND = bytes([FieldStatus.PRESENT]), bytes([FieldStatus.NOT_FOUND])
_OUTSIDE_MAX_AGE = FieldStatus.OUTSIDE_MAX_AGE
STATUSES = bytes([FieldStatus.NOT_FOUND, *[FieldStatus.PRESENT] * 255])  # of a feature, by its state
_EMPTY_VALUE = b"\x0a\x00"
_NO_TIMESTAMP = b"\x1a\x00"
# Limit of a feature's values: protobuf parses no message of 2 GiB, and statuses and timestamps are added.
MAX_VECTOR_BYTES = 2_000_000_000


def to_rows(answers: Sequence[LayerAnswer], num_entities: int) -> list[Row]:
    """The rows of a batch of entities, as ``online_read`` returns them."""
    rows: list[Row] = [(None, None)] * num_entities
    for answer in answers:
        for position, row in zip(answer.found.tolist(), _rows_of(answer), strict=True):
            rows[position] = row
    return rows


def _rows_of(answer: LayerAnswer) -> Iterator[Row]:
    timestamps = {
        microseconds: EPOCH + timedelta(microseconds=microseconds)
        for microseconds in set(answer.event_timestamps.tolist())
    }
    names = list(answer.features)
    columns = [f.decoder.values(f.states, f.indptr, f.symbols) for f in answer.features.values()]
    moments = [timestamps[microseconds] for microseconds in answer.event_timestamps.tolist()]
    rows: list[dict[str, Any]] = [{} for _ in moments]
    if columns:
        rows = [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
    for feature, name in zip(answer.features.values(), names, strict=True):
        for row in np.flatnonzero(feature.states == MISSING).tolist():
            del rows[row][name]
    return zip(moments, rows, strict=True)


def hash_join_keys(join_keys: Mapping[str, Sequence[Value]]) -> NDArray[np.uint64] | None:
    """Hash entities whose join keys are given as columns: uint64[n, 2].

    Returns None if Feast must handle the request: a join key has no values, or values of several types.
    """
    columns = {}
    for name, values in join_keys.items():
        fields = {value.WhichOneof("val") for value in values}
        if len(fields) != 1 or (field := fields.pop()) not in JOIN_KEY_TYPES:
            return None
        if field == "int64_val" and len(join_keys) == 1:
            return hash_int64_keys(name, np.array([value.int64_val for value in values]))
        columns[name] = pa.array([getattr(value, field) for value in values], JOIN_KEY_TYPES[field])
    return hash_columns(columns) if len({*map(len, columns.values())}) == 1 else None


def distinct(hashes: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.int64] | None]:
    """The distinct hashes of a batch, and the place of each entity's among them, int64[n]; None if all
    differ.
    """
    if len(hashes) < 2:
        return hashes, None
    first, places, inverse = np.unique(hashes[:, 0], return_index=True, return_inverse=True)
    # Two hashes may share only their first half. That is rare; the rows then stay as they are.
    if len(first) == len(hashes) or (hashes[places][inverse] != hashes).any():
        return hashes, None
    return hashes[places], inverse


def entity_key_of(
    join_keys: Mapping[str, Sequence[Value]], places: NDArray[np.int64] | None, num_distinct: int
) -> Callable[[int], EntityKey]:
    """A function that returns the key of a distinct entity of a batch; ``places`` as from `distinct`."""
    first = np.arange(num_distinct)
    if places is not None:
        first[places[::-1]] = np.arange(len(places))[::-1]

    def entity_key(number: int) -> EntityKey:
        row = int(first[number])
        return EntityKey(join_keys=list(join_keys), entity_values=[v[row] for v in join_keys.values()])

    return entity_key


def add_vectors(
    response: GetOnlineFeaturesResponse,
    features: Sequence[str],
    answers: Sequence[LayerAnswer],
    num_distinct: int,
    places: NDArray[np.int64] | None,
) -> int:
    """Add a vector per feature to a response.

    Parameters
    ----------
    features : names, in the order of the vectors.
    answers : about ``num_distinct`` entities.
    places : int64[n], the entity of each row of the response; None if rows and entities have the same order.

    Returns
    -------
    The number of values that are present.

    Raises
    ------
    SketchStoreError : a feature takes more bytes than a response can hold.
    """
    timestamps = _timestamps(answers, num_distinct, places)
    num_present = 0
    for name in features:
        values, statuses = _vector(name, answers, num_distinct, places)
        num_present += statuses.count(_PRESENT)
        head = b"\x12" + kernel.varint(len(statuses))
        if len(values) > MAX_VECTOR_BYTES:
            raise SketchStoreError(
                f"feature {name!r} of {len(statuses)} entities takes {len(values)} bytes, and a response of "
                f"Feast holds {MAX_VECTOR_BYTES}; ask for fewer entities at a time"
            )
        response.results.add().MergeFromString(b"".join((values, head, statuses, timestamps)))
    return num_present


def _vector(
    name: str, answers: Sequence[LayerAnswer], num_distinct: int, places: NDArray[np.int64] | None
) -> tuple[bytes, bytes]:
    """The values of a feature in wire format, and a byte of `FieldStatus` for each."""
    values, statuses = [_EMPTY_VALUE] * num_distinct, bytearray(_NOT_FOUND * num_distinct)
    for answer in answers:
        for position in answer.expired.tolist():
            statuses[position] = _OUTSIDE_MAX_AGE
        feature = answer.features.get(name)
        if feature is None:
            continue
        of_found = feature.states.tobytes().translate(STATUSES)
        message, ends = feature.decoder.to_wire(feature.states, feature.indptr, feature.symbols)
        if len(of_found) == num_distinct and places is None:
            return message, of_found
        bounds = itertools.pairwise(ends.tolist())
        for position, (start, stop), status in zip(answer.found.tolist(), bounds, of_found, strict=True):
            values[position], statuses[position] = message[start:stop], status
    if places is not None:
        order = places.tolist()
        values, statuses = [values[place] for place in order], bytearray(statuses[place] for place in order)
    return b"".join(values), bytes(statuses)


def _timestamps(answers: Sequence[LayerAnswer], num_distinct: int, places: NDArray[np.int64] | None) -> bytes:
    """The event timestamps of entities in wire format; empty for an entity without a row."""
    timestamps = [_NO_TIMESTAMP] * num_distinct
    for answer in answers:
        moments = answer.event_timestamps.tolist()
        encoded = {microseconds: _timestamp(microseconds) for microseconds in set(moments)}
        if len(moments) == num_distinct:
            timestamps = [encoded[microseconds] for microseconds in moments]
            break
        for position, microseconds in zip(answer.found.tolist(), moments, strict=True):
            timestamps[position] = encoded[microseconds]
    if places is not None:
        timestamps = [timestamps[place] for place in places.tolist()]
    return b"".join(timestamps)


@functools.lru_cache(maxsize=4096)
def _timestamp(microseconds: int) -> bytes:
    seconds, rest = divmod(microseconds, 1_000_000)
    content: bytes = Timestamp(seconds=seconds, nanos=rest * 1_000).SerializeToString()
    return b"\x1a" + kernel.varint(len(content)) + content
