"""Rows that Feast 0.67 keeps in MySQL or MariaDB: as in SQLite, with keys in hexadecimal."""

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pymysql

from feast_sketch_store.bridges.base import OtherRow
from feast_sketch_store.bridges.sql import SqlBridge
from feast_sketch_store.planning.plan import Estimate


class MySQLBridge(SqlBridge):
    """Feast's MySQL store. It keeps timestamps as whole seconds."""

    resolution = "1 s"
    _errors = (pymysql.Error,)
    _keys_are_text = True
    _PARAMETER = "%s"
    _QUOTE = "`"
    _HASH = "CRC32(entity_key)"

    def stored_bytes(self, rows: Sequence[OtherRow]) -> Estimate | None:
        """The size of the table with its indices, per entity; the server updates it from time to time."""
        ((size,),) = self._ask(
            "SELECT data_length + index_length FROM information_schema.tables "
            "WHERE table_schema = DATABASE() AND table_name = %s",
            self._table,
        )
        return self._per_entity(size)

    def _connect(self) -> Any:
        # Feast's own method refuses a configuration with `batch_write`, which matters only for writes.
        options: Any = self.view.config.online_store
        connection = pymysql.connect(
            host=options.host or "127.0.0.1",
            user=options.user or "test",
            password=options.password or "test",
            database=options.database or "feast",
            port=options.port or 3306,
            autocommit=True,
        )
        with closing(connection.cursor()) as cursor:
            cursor.execute("SET SESSION TRANSACTION READ ONLY")
        return connection
