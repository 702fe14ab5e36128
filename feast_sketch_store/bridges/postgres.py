"""Rows that Feast 0.67 keeps in Postgres: as in SQLite."""

from collections.abc import Sequence
from typing import Any

import psycopg

from feast_sketch_store import feast_parts
from feast_sketch_store.bridges.base import OtherRow
from feast_sketch_store.bridges.sql import SqlBridge
from feast_sketch_store.planning.plan import Estimate


class PostgresBridge(SqlBridge):
    """Feast's Postgres store."""

    resolution = "1 us"
    _errors = (psycopg.Error,)
    _PARAMETER = "%s"
    _HASH = "hashtext(encode(entity_key, 'hex'))::bigint + 2147483648"

    def stored_bytes(self, rows: Sequence[OtherRow]) -> Estimate | None:
        """The size of the table with its indices, per entity."""
        ((size,),) = self._ask("SELECT pg_total_relation_size(to_regclass(%s))", self._name)
        return self._per_entity(size)

    def _connect(self) -> Any:
        connection: Any = feast_parts.POSTGRES_CONNECTION(self.view.config.online_store)
        connection.autocommit = True
        connection.read_only = True
        return connection
