"""Rows that Feast 0.67 keeps in SQLite and Postgres: one table row for each feature of an entity.

``entity_key`` is the serialized entity key; the primary key is ``entity_key`` and ``feature_name``. So the
table is read in the order of its index, one page of entities after another. Each page is a statement of its
own, which does not block writers for long.
"""

import sqlite3
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar, TypeAlias
from urllib.parse import quote

from feast.infra.key_encoding_utils import deserialize_entity_key

from feast_sketch_store import feast_parts
from feast_sketch_store.bridges.base import Bridge, Counted, OtherRow, OtherView, Page, values_of
from feast_sketch_store.errors import StorageError
from feast_sketch_store.planning.plan import Estimate
from feast_sketch_store.rows.entity_keys import SERIALIZATION_VERSION

_ROWS_A_PAGE = 5000  # of the table: one for each feature of an entity
_KEYS_A_CALL = 500  # of a sample

# entity_key, feature_name, value, event_ts, created_ts
TableRow: TypeAlias = tuple[bytes, str, bytes, Any, Any]


class SqlBridge(Bridge):
    """A table of Feast, read page by page in the order of entity keys."""

    samples_at_random = True

    _PARAMETER = "?"
    _QUOTE = '"'
    _HASH: ClassVar[str]  # SQL for a hash of an entity key, a number of at least 0

    def __init__(self, view: OtherView):
        super().__init__(view)
        self._table = f"{view.config.project}_{view.name}"
        self._connection = self._called(self._connect)

    def pages(self, position: str | None = None) -> Iterator[Page]:
        """Pages of whole entities."""
        after = bytes.fromhex(position) if position else b""
        while True:
            rows = self._select(f"> {self._PARAMETER} ORDER BY entity_key LIMIT {_ROWS_A_PAGE}", after)
            if len(rows) == _ROWS_A_PAGE:  # the last entity may continue after the page
                whole = [row for row in rows if row[0] != rows[-1][0]]
                rows = whole or self._entity(rows[-1][0])
            if not rows:
                return
            after = rows[-1][0]
            grouped = [self._row(key, list(group)) for key, group in groupby(rows, lambda row: row[0])]
            yield Page(grouped, len(grouped), after.hex())

    def count(self) -> Counted:
        """The number of entities, from the index."""
        ((number,),) = self._ask(f"SELECT COUNT(DISTINCT entity_key) FROM {self._name}")
        return Counted(number, True)

    def sample(self, num_rows: int) -> Iterator[Page]:
        """Entities chosen by a hash of their keys; all if there are not many more."""
        every = self.count().num_keys // num_rows
        if every < 2:
            yield from self.pages()
            return
        keys = self._ask(
            f"SELECT DISTINCT entity_key FROM {self._name} WHERE MOD({self._HASH}, {every}) = 0 "
            f"LIMIT {num_rows}"
        )
        for first in range(0, len(keys), _KEYS_A_CALL):
            some = [key for (key,) in keys[first : first + _KEYS_A_CALL]]
            found = self._with_keys(some)
            rows = [self._row(key, list(group)) for key, group in groupby(found, lambda row: row[0])]
            yield Page(rows, len(rows), "")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    @property
    def _name(self) -> str:
        return self._QUOTE + self._table.replace(self._QUOTE, 2 * self._QUOTE) + self._QUOTE

    def _entity(self, key: bytes) -> list[TableRow]:
        """All rows of an entity that has more features than a page has rows."""
        return self._select(f"= {self._PARAMETER}", key)

    def _with_keys(self, stored: Sequence[Any]) -> list[TableRow]:
        """All rows of some entities, given by their keys as the table has them."""
        parameters = ", ".join([self._PARAMETER] * len(stored))
        return self._rows(f"IN ({parameters}) ORDER BY entity_key", *stored)

    def _select(self, condition: str, key: bytes) -> list[TableRow]:
        """Rows whose entity key meets a condition."""
        return self._rows(condition, self._stored(key))

    def _rows(self, condition: str, *parameters: Any) -> list[TableRow]:
        found = self._ask(
            f"SELECT entity_key, feature_name, value, event_ts, created_ts FROM {self._name} "
            f"WHERE entity_key {condition}",
            *parameters,
        )
        return [(self._read(row[0]), row[1], bytes(row[2]), row[3], row[4]) for row in found]

    def _stored(self, key: bytes) -> Any:
        """A serialized key in the form of the table."""
        return key

    def _read(self, stored: Any) -> bytes:
        """The reverse of `_stored`."""
        return bytes(stored)

    def _row(self, key: bytes, rows: Sequence[TableRow]) -> OtherRow:
        wanted = set(self.view.features)
        content = {name: value for _, name, value, _, _ in rows if name in wanted}
        event = max(_moment(row[3]) for row in rows)
        created = [_moment(row[4]) for row in rows if row[4] is not None]
        try:
            entity = deserialize_entity_key(key, SERIALIZATION_VERSION)
        except ValueError as error:
            raise StorageError(f"{self.view}: an entity key cannot be read: {error}") from error
        return OtherRow(entity, values_of(content, self.view), event, max(created, default=None))

    def _ask(self, statement: str, *parameters: Any) -> list[Any]:
        def ask() -> list[Any]:
            with closing(self._connection.cursor()) as cursor:
                cursor.execute(statement, parameters)
                return list(cursor.fetchall())

        return list(self._called(ask))

    def _called(self, call: Any) -> Any:
        try:
            return call()
        except self._errors() as error:
            raise StorageError(f"{self.view}: table {self._table!r} cannot be read: {error}") from error

    @abstractmethod
    def _connect(self) -> Any:
        """A read-only connection."""

    @abstractmethod
    def _errors(self) -> tuple[type[Exception], ...]:
        """The errors that the client library raises."""


class SqliteBridge(SqlBridge):
    """Feast's SQLite store. It keeps timestamps as whole seconds."""

    resolution = "1 s"

    def sample(self, num_rows: int) -> Iterator[Page]:
        """Entities at random places of the table; all if there are not many more."""
        ((last,),) = self._ask(f"SELECT MAX(rowid) FROM {self._name}")
        if last is None or num_rows * len(self.view.features) * 2 >= last:
            yield from self.pages()
            return
        keys = self._ask(
            f"SELECT DISTINCT entity_key FROM {self._name} WHERE rowid IN (SELECT abs(random()) % ? + 1 "
            f"FROM {self._name} LIMIT ?)",
            last,
            num_rows,
        )
        for first in range(0, len(keys), _KEYS_A_CALL):
            found = self._with_keys([key for (key,) in keys[first : first + _KEYS_A_CALL]])
            rows = [self._row(key, list(group)) for key, group in groupby(found, lambda row: row[0])]
            yield Page(rows, len(rows), "")

    def stored_bytes(self, rows: Sequence[OtherRow]) -> Estimate | None:
        """The pages of the table and its indices, per entity; None if this SQLite does not report it."""
        try:
            ((size,),) = self._ask(
                "SELECT SUM(pgsize) FROM dbstat WHERE name = ?1 OR name IN "
                "(SELECT name FROM sqlite_master WHERE tbl_name = ?1)",
                self._table,
            )
        except StorageError:  # dbstat is optional in SQLite
            return None
        return None if size is None else Estimate.exactly(float(size) / max(1, self.count().num_keys))

    def _connect(self) -> Any:
        options: Any = self.view.config.online_store
        path = (self.view.config.repo_path or Path()) / options.path
        return sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True)

    def _errors(self) -> tuple[type[Exception], ...]:
        return (sqlite3.Error,)


class PostgresBridge(SqlBridge):
    """Feast's Postgres store."""

    resolution = "1 us"
    _PARAMETER = "%s"
    _HASH = "hashtext(encode(entity_key, 'hex'))::bigint + 2147483648"

    def stored_bytes(self, rows: Sequence[OtherRow]) -> Estimate | None:
        """The size of the table with its indices, per entity."""
        ((size,),) = self._ask("SELECT pg_total_relation_size(to_regclass(%s))", self._name)
        return None if size is None else Estimate.exactly(float(size) / max(1, self.count().num_keys))

    def _connect(self) -> Any:
        connection: Any = feast_parts.POSTGRES_CONNECTION(self.view.config.online_store)
        connection.autocommit = True
        connection.read_only = True
        return connection

    def _errors(self) -> tuple[type[Exception], ...]:
        import psycopg

        return (psycopg.Error,)


def _moment(stored: Any) -> datetime:
    """A timestamp of a table: seconds since 1970, text, or a datetime; UTC if it has no zone."""
    if isinstance(stored, int | float):
        return datetime.fromtimestamp(stored, UTC)
    moment: datetime = datetime.fromisoformat(stored) if isinstance(stored, str) else stored
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
