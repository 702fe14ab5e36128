"""Rows that Feast 0.67 keeps in Redis or Valkey, standalone, behind sentinels or in a cluster.

A hash per entity holds the rows of all views with the same join keys. Its key is the serialized entity key,
followed by the project without a separator; the counts in the entity key say where it ends. The fields are
``_ts:VIEW`` and, for each feature, MurmurHash3 of ``VIEW:FEATURE`` in four bytes.
"""

import json
import re
import struct
from collections.abc import Iterator, Sequence
from datetime import UTC
from functools import partial
from typing import Any

import mmh3
import numpy as np
from feast.infra.key_encoding_utils import serialize_entity_key_prefix
from feast.infra.online_stores.redis import RedisOnlineStore
from google.protobuf.message import DecodeError
from google.protobuf.timestamp_pb2 import Timestamp
from redis.cluster import RedisCluster
from redis.exceptions import RedisError

from feast_sketch_store import feast_parts
from feast_sketch_store.bridges.base import Bridge, OtherRow, OtherView, Page, entity_key
from feast_sketch_store.errors import RowError, StorageError
from feast_sketch_store.planning.other_stores import bucket_bytes
from feast_sketch_store.planning.plan import Estimate
from feast_sketch_store.planning.sample import spread_of_total
from feast_sketch_store.rows.entity_keys import (
    SERIALIZATION_VERSION,
    length_of_serialized_key,
    serialize_entity_keys,
)

_KEYS_A_CALL = 1000  # per SCAN, which blocks the server while it runs
_KEY_BYTES = 8  # missing per key entry: 24 are counted, and an allocation of 24 takes 32
_EXPIRY_BYTES = 32  # of the entry of a key that expires


class RedisBridge(Bridge):
    """The keys with one view's join keys and project, found by SCAN.

    SCAN returns every key that exists during the whole scan, some perhaps twice. The server keeps no state
    for a cursor, so a position from another process works.
    """

    resolution = "1 us"
    _errors = RedisError, OSError
    _failure = "the server cannot be asked"

    def __init__(self, view: OtherView):
        super().__init__(view)
        self._client = self._called(
            lambda: feast_parts.REDIS_CLIENT.of(RedisOnlineStore())(view.config.online_store)
        )
        self._project = view.config.project.encode()
        self._fields = [_field(f"{view.name}:{name}") for name in view.features]
        self._timestamp_field = f"_ts:{view.name}".encode()
        prefix: bytes = serialize_entity_key_prefix(
            view.join_keys, entity_key_serialization_version=SERIALIZATION_VERSION
        )
        self._pattern = _escaped(prefix) + b"*" + _escaped(self._project)

    def pages(self, position: str | None = None) -> Iterator[Page]:
        """A page for each call of SCAN, node after node in a cluster."""
        first, cursor = json.loads(position) if position else (0, 0)
        nodes = self._nodes()
        for number in range(first, len(nodes)):
            while True:
                cursor, keys = self._scan(nodes[number], cursor)
                place = [number, cursor] if cursor else [number + 1, 0]
                yield Page(self._rows(keys), _KEYS_A_CALL, json.dumps(place))
                if not cursor:
                    break

    def count(self) -> Estimate:
        """All keys of the database, including those of other projects and uses."""
        return Estimate.exactly(
            sum(self._called(partial(self._ask, node, "DBSIZE")) for node in self._nodes())
        )

    def stored_bytes(self, rows: Sequence[OtherRow]) -> Estimate | None:
        """The mean MEMORY USAGE of the rows' keys, times the share of fields that belong to the view.

        The server does not count its table of keys, nor that of keys that expire; both are added.
        """
        serialized = serialize_entity_keys([entity_key(row) for row in rows])
        keys = [key + self._project for key in serialized]
        if not keys:
            return None

        def ask() -> Any:
            pipe = self._client.pipeline(transaction=False)
            for key in keys:
                pipe.memory_usage(key, samples=0)
                pipe.pttl(key)
                pipe.hgetall(key)
            return pipe.execute()

        answers = self._called(ask)
        own = {*self._fields, self._timestamp_field}
        bucket = bucket_bytes(self.count().value / len(self._nodes()))
        shares = []
        for size, ttl, fields in zip(answers[::3], answers[1::3], answers[2::3], strict=True):
            if size is None:
                continue
            size += _KEY_BYTES + bucket
            if ttl >= 0:
                size += _EXPIRY_BYTES + bucket
            lengths = {name: len(name) + len(value) for name, value in fields.items()}
            of_view = sum(length for name, length in lengths.items() if name in own)
            shares.append(size * of_view / max(1, sum(lengths.values())))
        if not shares:
            return None
        num_keys = self.count().value
        mean, error = sum(shares) / len(shares), spread_of_total(np.array(shares), num_keys) / num_keys
        return Estimate.within(mean, error)

    def _nodes(self) -> list[Any]:
        """The primaries of a cluster in a fixed order; None for a single server."""
        if isinstance(self._client, RedisCluster):
            primaries: list[Any] = self._client.get_primaries()  # type: ignore[no-untyped-call]
            return sorted(primaries, key=lambda node: str(node.name))
        return [None]

    def _ask(self, node: Any, *command: Any) -> Any:
        options = {} if node is None else {"target_nodes": node}
        return self._client.execute_command(*command, **options)

    def _scan(self, node: Any, cursor: int) -> tuple[int, list[bytes]]:
        found = self._called(
            lambda: self._ask(node, "SCAN", cursor, "MATCH", self._pattern, "COUNT", _KEYS_A_CALL)
        )
        if isinstance(found, dict):  # a cluster returns an answer per node
            (found,) = found.values()
        cursor = found[0]
        if isinstance(cursor, dict):
            (cursor,) = cursor.values()
        return int(cursor), found[1]

    def _rows(self, keys: Sequence[bytes]) -> list[OtherRow]:
        mine = [(key, end) for key in keys if (end := self._end_of_entity_key(key)) is not None]
        if not mine:
            return []

        def ask() -> Any:
            pipe = self._client.pipeline(transaction=False)
            for key, _ in mine:
                pipe.hmget(key, [*self._fields, self._timestamp_field])
            return pipe.execute()

        rows = []
        for (key, end), (*values, timestamp) in zip(mine, self._called(ask), strict=True):
            if timestamp is None:
                continue  # the entity has rows of other views only
            entity = self._entity(key[:end])
            content = dict(zip(self.view.features, values, strict=True))
            try:
                moment = Timestamp.FromString(timestamp).ToDatetime(tzinfo=UTC)
            except (DecodeError, ValueError) as error:
                raise StorageError(f"{self.view}: a timestamp cannot be read: {error}") from error
            rows.append(OtherRow(entity, self._values(content), moment))
        return rows

    def _end_of_entity_key(self, key: bytes) -> int | None:
        """Where the project begins in a key with the view's join keys; None for any other key."""
        try:
            end = length_of_serialized_key(key)
        except RowError:
            return None
        return end if key[end:] == self._project else None


def _field(name: str) -> bytes:
    return struct.pack("<I", mmh3.hash(name, signed=False))


def _escaped(literal: bytes) -> bytes:
    """Bytes with special characters of SCAN patterns escaped."""
    return re.sub(rb"([\\*?\[\]])", rb"\\\1", literal)
