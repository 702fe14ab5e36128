"""Rows that Feast 0.67 keeps in MySQL or MariaDB: as in SQLite, with keys in hexadecimal."""

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pymysql

from feast_sketch_store.bridges.base import OtherRow
from feast_sketch_store.bridges.sql import SqlBridge
from feast_sketch_store.errors import StorageError
from feast_sketch_store.planning.plan import Estimate


class MySQLBridge(SqlBridge):
    """Feast's MySQL store. It keeps timestamps as whole seconds."""

    resolution = "1 s"
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
        return None if size is None else Estimate.exactly(float(size) / max(1, self.count().num_keys))

    def _stored(self, key: bytes) -> Any:
        return key.hex()

    def _read(self, stored: Any) -> bytes:
        try:
            return bytes.fromhex(stored)
        except ValueError as error:
            raise StorageError(f"{self.view}: an entity key cannot be read: {error}") from error

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

    def _errors(self) -> tuple[type[Exception], ...]:
        return (pymysql.Error,)
