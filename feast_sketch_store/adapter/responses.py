"""What Feast returns: rows of ``online_read``, vectors of a response.

A vector is one feature of all entities. The kernel writes it in protobuf's wire format, which is parsed once.
Feast's own way makes and copies a Python object per entity and feature.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Literal

import numpy as np
import pyarrow as pa
from feast.feature_view import FeatureView
from feast.infra.key_encoding_utils import deserialize_entity_key
from feast.protos.feast.serving.ServingService_pb2 import FieldStatus, GetOnlineFeaturesResponse
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import RepeatedValue, Value
from google.protobuf.timestamp_pb2 import Timestamp

from feast_sketch_store import kernel
from feast_sketch_store.adapter.advice import warn_of_read
from feast_sketch_store.errors import RowError
from feast_sketch_store.kernel import TOO_LONG, ReadFault
from feast_sketch_store.rows.codecs import EXACT, MISSING, VALUE
from feast_sketch_store.rows.encoding import ENTITY_KEY, NO_TIMESTAMP, FeastRow, row_keys
from feast_sketch_store.rows.entity_keys import (
    JOIN_KEY_TYPES,
    SERIALIZATION_VERSION,
    hash_columns,
    hash_int64_key,
    hash_int64_keys,
    serialize_entity_keys,
)
from feast_sketch_store.settings.view_settings import ViewSettings
from feast_sketch_store.view.live_shard import expire_before_of
from feast_sketch_store.view.semantics import named
from feast_sketch_store.view.state import State
from feast_sketch_store.view.view import View

Row = tuple[datetime | None, dict[str, Value] | None]
RawRow = tuple[int, bytes, bytes] | Literal[False] | None  # see `RowReader.rows`

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Of a feature, by its state; and of those of a row that has expired.
_STATUSES = bytes([FieldStatus.NOT_FOUND, *[FieldStatus.PRESENT] * VALUE, FieldStatus.OUTSIDE_MAX_AGE])
# Limit of a feature's values: protobuf parses no message of 2 GiB, and statuses and timestamps are added.
MAX_VECTOR_BYTES = 2_000_000_000
_PARSED_BYTES = 1 << 20  # of rows that are parsed at once; all live as long as a value of one


def hash_entity_keys(entity_keys: Sequence[EntityKey]) -> bytes:
    """The hashes of entity keys, 16 bytes each; raises as `serialize_entity_keys`."""
    hashes = []
    for entity_key in entity_keys:
        usual = kernel.hash_message(entity_key.SerializeToString())
        hashes.append(kernel.hash_key(serialize_entity_keys([entity_key])[0]) if usual is None else usual)
    return b"".join(hashes)


def hash_join_keys(join_keys: Mapping[str, Sequence[Value]]) -> bytes | None:
    """Hash entities whose join keys are given as columns: 16 bytes each.

    Returns None if Feast must handle the request: a join key has no values, or values of several types.
    """
    columns = {}
    for name, values in join_keys.items():
        fields = {value.WhichOneof("val") for value in values}
        if len(fields) != 1 or (field := fields.pop()) not in JOIN_KEY_TYPES:
            return None
        if field == "int64_val" and len(join_keys) == 1:
            if len(values) == 1:
                return hash_int64_key(name, values[0].int64_val)
            return hash_int64_keys(name, np.array([value.int64_val for value in values])).tobytes()
        columns[name] = pa.array([getattr(value, field) for value in values], JOIN_KEY_TYPES[field])
    return hash_columns(columns).tobytes() if len({*map(len, columns.values())}) == 1 else None


def read_vectors(
    view: View, name: str, features: tuple[str, ...], entity_hashes: bytes, ttl_microseconds: int | None
) -> tuple[bytes, int] | None:
    """The vectors of some entities, as parts of a response, and the number of values that are present.

    The read is counted. None, and not counted, if sealed values of the features are in a backing store.

    Parameters
    ----------
    name : of the feature view, for messages.
    entity_hashes : 16 bytes each; one may be there several times.

    Raises RowError: a feature takes more bytes than a response can hold.
    """
    began = time.perf_counter()
    num_read, expire_before = len(entity_hashes) // 16, expire_before_of(ttl_microseconds)
    try:
        vectors = view.with_state(_vectors_of, features, entity_hashes, expire_before)
    except ReadFault as fault:
        if fault.status != TOO_LONG:
            raise
        raise RowError(
            f"feature view {name!r}: the values of feature {features[fault.feature]!r} of "
            f"{num_read} entities take more than the "
            f"{MAX_VECTOR_BYTES} bytes that a response of Feast holds; ask for fewer entities at a time"
        ) from fault
    if vectors is None:
        return None
    message, num_present, num_found, num_expired = vectors
    if num_read:
        view.metrics.count_read(num_read, num_found, time.perf_counter() - began)
    if num_expired:
        warn_of_read(view.storage.location, name, num_expired, num_read, ttl_microseconds)
    return message, num_present


def _vectors_of(
    state: State, features: tuple[str, ...], entity_hashes: bytes, expire_before: int
) -> tuple[bytes, int, int, int] | None:
    if not state.backed.isdisjoint(features):
        return None
    return state.row_reader(features).vectors(entity_hashes, expire_before, _STATUSES, MAX_VECTOR_BYTES)


def rows_of(raw: Sequence[RawRow], features: Sequence[str]) -> list[Row]:
    """Rows as ``online_read`` returns them.

    Small messages are parsed as one, which takes two thirds of the time.
    """
    messages = [row[2] for row in raw if row]
    if sum(map(len, messages)) <= _PARSED_BYTES:
        values = iter(RepeatedValue.FromString(b"".join(messages)).val)
    else:
        values = chain.from_iterable([RepeatedValue.FromString(message).val for message in messages])
    rows: list[Row] = []
    for row in raw:
        if not row:
            rows.append((None, None))
            continue
        microseconds, states, _ = row
        own = dict(zip(features, values))  # noqa: B905 - values of the next rows follow
        if MISSING in states:
            for name, state in zip(features, states, strict=True):
                if state == MISSING:
                    own.pop(name, None)
        moment = EPOCH + timedelta(0, 0, microseconds)  # by position: a keyword takes longer
        rows.append((moment, own))
    return rows


def with_join_keys(rows: list[Row], entity_keys: Sequence[EntityKey], asked: Sequence[str]) -> list[Row]:
    """The same rows, with the join keys that were asked for as features."""
    for entity_key, (_, values) in zip(entity_keys, rows, strict=True) if asked else ():
        if values is not None:
            own = dict(zip(entity_key.join_keys, entity_key.entity_values, strict=True))
            values.update({name: own[name] for name in asked})
    return rows


def logged_rows(
    settings: ViewSettings, features: Sequence[str], logged: pa.Table, expire_before: int = NO_TIMESTAMP
) -> list[FeastRow]:
    """What reads show of rows of the row log before a seal, in the form in which Feast writes rows.

    Parameters
    ----------
    features : the row log has no computed ones; it has those that a backing store keeps.
    logged : one row for each entity.
    expire_before : microseconds since 1970; older rows are left out.
    """
    codecs = [replace(codec, name=EXACT) if codec.is_backed else codec for codec in settings.codecs]
    semantics = named(settings.semantics, [codec for codec in codecs if codec.feature in features])
    state = State.of_rows(settings.view, semantics, semantics.encode(logged))
    names = tuple(codec.feature for codec in semantics.codecs)
    raw, _ = state.row_reader(names).rows(row_keys(logged).entity_hashes.tobytes(), expire_before)
    rows: list[FeastRow] = []
    for key, (moment, values) in zip(logged[ENTITY_KEY].to_pylist(), rows_of(raw, names), strict=True):
        if moment is not None and values is not None:
            rows.append((deserialize_entity_key(key, SERIALIZATION_VERSION), values, moment, None))
    return rows


def add_names(
    response: GetOnlineFeaturesResponse,
    table: FeatureView,
    features: Sequence[str],
    full_feature_names: bool,
    with_version: bool,
) -> None:
    """Add the names of a view's features to a response, and the view's version, each view once."""
    view: str = table.projection.name_to_use()  # type: ignore[no-untyped-call]
    prefix, metadata = f"{view}__" if full_feature_names else "", response.metadata
    metadata.feature_names.val.extend(prefix + name for name in features)
    name = table.projection.name_alias or table.projection.name
    if with_version and name not in [known.name for known in metadata.feature_view_metadata]:
        version = getattr(table, "current_version_number", 0) or 0
        metadata.feature_view_metadata.add(name=name, version=version)


def add_rows(
    response: GetOnlineFeaturesResponse, features: Sequence[str], rows: Sequence[Row], raw: Sequence[RawRow]
) -> int:
    """Add a vector per feature to a response, from rows. Returns the number of values that are present."""
    num_present, absent = 0, Value()
    known = {timestamp: Timestamp() for timestamp, _ in rows}  # a message takes a microsecond
    for timestamp, moment in known.items():
        if timestamp is not None:
            moment.FromDatetime(timestamp)
    moments = [known[timestamp] for timestamp, _ in rows]
    present, not_found, expired = FieldStatus.PRESENT, FieldStatus.NOT_FOUND, FieldStatus.OUTSIDE_MAX_AGE
    otherwise = [expired if row is False else not_found for row in raw]
    for name in features:
        found = [values.get(name) if values else None for _, values in rows]
        num_present += sum(value is not None for value in found)
        response.results.add(
            values=[absent if value is None else value for value in found],
            statuses=[
                status if value is None else present for value, status in zip(found, otherwise, strict=True)
            ],
            event_timestamps=moments,
        )
    return num_present
