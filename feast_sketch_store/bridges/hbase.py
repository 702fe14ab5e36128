"""Rows that Feast 0.67 keeps in HBase: a row per entity, under the MurmurHash3 of its serialized key.

The row key is the hash in hexadecimal, ``#`` and the view. Feast writes timestamps as seconds in four bytes,
and never returns them.
"""

import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from feast.infra.online_stores.hbase_online_store.hbase import HbaseOnlineStore
from feast.infra.utils.hbase_utils import HbaseConstants
from thriftpy2.thrift import TException

from feast_sketch_store import feast_parts
from feast_sketch_store.bridges.base import HashKeyedBridge, OtherRow, OtherView, T
from feast_sketch_store.errors import StorageError

_ROWS_A_PAGE = 1000


class HBaseBridge(HashKeyedBridge):
    """The table of a view, by a scan."""

    has_keys = False
    resolution = "1 s"
    _errors = TException, OSError

    def __init__(self, view: OtherView):
        super().__init__(view)
        self._table = f"{view.config.project}:{view.table.name}"
        self._failure = f"table {self._table!r} cannot be read"
        self._suffix = f"#{view.table.name}".encode()
        self._pool: Any = self._called(lambda: feast_parts.HBASE_POOL.of(HbaseOnlineStore())(view.config))

    def close(self) -> None:
        with self._pool.connection() as connection:
            connection.close()

    def _after(self, position: str | None) -> list[tuple[str, OtherRow | None]]:
        start = b"" if position is None else position.encode() + b"\0"
        with self._pool.connection() as connection:
            scan = connection.table(self._table).scan(row_start=start, limit=_ROWS_A_PAGE)
            return [
                (key.decode(), self._row(key, cells) if key.endswith(self._suffix) else None)
                for key, cells in scan
            ]

    def _row(self, key: bytes, cells: Mapping[bytes, bytes]) -> OtherRow:
        found = {column.decode().partition(":")[2]: value for column, value in cells.items()}
        try:
            event = _moment(found[HbaseConstants.EVENT_TS])
            created = found.get(HbaseConstants.CREATED_TS)
            moment = None if created is None else _moment(created)
        except (KeyError, struct.error) as error:
            raise StorageError(f"{self.view}: a row is not one of Feast's: {error!r}") from error
        entity = key.removesuffix(self._suffix).decode("ascii", "replace")
        return OtherRow(entity, self._values(found), event, moment)

    def _called(self, call: Callable[[], T]) -> T:
        # The Thrift server closes connections after an idle minute. Then the pool opens a new one.
        with suppress(*self._errors):
            return call()
        return super()._called(call)


def _moment(stored: bytes) -> datetime:
    return datetime.fromtimestamp(struct.unpack(">L", stored)[0], UTC)
