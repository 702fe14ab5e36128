"""Rows that Feast 0.67 keeps in SQLite, Postgres, and MySQL or MariaDB.

A table has one row for each feature of an entity. ``entity_key`` is the serialized entity key, in MySQL in
hexadecimal; the primary key is ``entity_key`` and ``feature_name``. So the table is read in the order of its
index, one page of entities after another. Each page is a statement of its own, which does not block writers
for long.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar, TypeAlias
from urllib.parse import quote

from feast_sketch_store import feast_parts
from feast_sketch_store.bridges.base import Bridge, OtherRow, OtherView, Page
from feast_sketch_store.errors import StorageError, shown
from feast_sketch_store.planning.plan import Estimate
from feast_sketch_store.rows.entity_keys import key_text
from feast_sketch_store.rows.limits import aware

_ROWS_A_PAGE = 5000  # of the table: one for each feature of an entity
_KEYS_A_CALL = 500  # of a sample

# entity_key, feature_name, value, event_ts, created_ts
TableRow: TypeAlias = tuple[bytes | str, str, bytes | None, Any, Any]


class SqlBridge(Bridge):
    """A table of Feast, read page by page in the order of entity keys."""

    samples_at_random = True

    _keys_are_text: ClassVar[bool] = False  # in hexadecimal
    _DRIVER: ClassVar[str]  # a module of the Python Database API
    _PARAMETER = "?"
    _QUOTE = '"'
    _HASH: ClassVar[str]  # SQL for a hash of an entity key, a number of at least 0
    _SIZE: ClassVar[str]  # SQL for the bytes of a table and its indices

    def __init__(self, view: OtherView):
        super().__init__(view)
        self._table = f"{view.config.project}_{view.name}"
        self._failure = f"table {self._table!r} cannot be read"
        self._driver = import_module(self._DRIVER)
        self._errors = (self._driver.Error,)
        self._client = self._called(self._connect)

    def pages(self, position: str | None = None) -> Iterator[Page]:
        """Pages of whole entities."""
        after: bytes | str = (position or "") if self._keys_are_text else bytes.fromhex(position or "")
        following = f"> {self._PARAMETER} ORDER BY entity_key LIMIT {_ROWS_A_PAGE}"
        while True:
            rows = self._rows(following, after)
            if len(rows) == _ROWS_A_PAGE:  # the last entity may continue after the page, or have more rows
                last = rows[-1][0]
                whole = [row for row in rows if row[0] != last]
                rows = whole or self._rows(f"= {self._PARAMETER}", last)
            if not rows:
                return
            after = rows[-1][0]
            yield self._page(rows, after if isinstance(after, str) else after.hex())

    def count(self) -> Estimate:
        """The number of entities, from the index."""
        ((number,),) = self._ask(f"SELECT COUNT(DISTINCT entity_key) FROM {self._name}")
        return Estimate.exactly(number)

    def sample(self, num_rows: int) -> Iterator[Page]:
        """Entities chosen by a hash of their keys; all if there are not many more."""
        every = int(self.count().value) // num_rows
        if every < 2:
            yield from self.pages()
            return
        keys = self._ask(
            f"SELECT DISTINCT entity_key FROM {self._name} WHERE MOD({self._HASH}, {every}) = 0 "
            f"LIMIT {num_rows}"
        )
        yield from self._pages_of([key for (key,) in keys])

    def stored_bytes(self, rows: Sequence[OtherRow]) -> Estimate | None:
        """The size of the table with its indices, per entity; None if it is not known."""
        size = self._size_bytes()
        return None if size is None else Estimate.exactly(float(size) / max(1, self.count().value))

    def _size_bytes(self) -> Any:
        ((size,),) = self._ask(self._SIZE, self._table)
        return size

    @property
    def _name(self) -> str:
        return self._QUOTE + self._table.replace(self._QUOTE, 2 * self._QUOTE) + self._QUOTE

    def _pages_of(self, keys: Sequence[bytes | str]) -> Iterator[Page]:
        for first in range(0, len(keys), _KEYS_A_CALL):
            some = keys[first : first + _KEYS_A_CALL]
            parameters = ", ".join([self._PARAMETER] * len(some))
            yield self._page(self._rows(f"IN ({parameters}) ORDER BY entity_key", *some), "")

    def _page(self, rows: Sequence[TableRow], position: str) -> Page:
        grouped = [self._row(key, list(group)) for key, group in groupby(rows, lambda row: row[0])]
        return Page(grouped, len(grouped), position)

    def _rows(self, condition: str, *parameters: Any) -> list[TableRow]:
        """Rows whose entity key meets a condition."""
        return self._ask(
            f"SELECT entity_key, feature_name, value, event_ts, created_ts FROM {self._name} "
            f"WHERE entity_key {condition}",
            *parameters,
        )

    def _row(self, key: bytes | str, rows: Sequence[TableRow]) -> OtherRow:
        entity = self._entity(key)
        content = {name: value for _, name, value, _, _ in rows}
        try:
            event = max(_moment(row[3]) for row in rows)
            created = [_moment(row[4]) for row in rows if row[4] is not None]
        except (TypeError, ValueError, OverflowError, OSError) as error:
            raise StorageError(
                f"{self.view}: a timestamp of the entity {key_text(entity)} cannot be read: {error}"
            ) from error
        return OtherRow(entity, self._values(content), event, max(created, default=None))

    def _ask(self, statement: str, *parameters: Any) -> list[Any]:
        def ask() -> list[Any]:
            with closing(self._client.cursor()) as cursor:
                cursor.execute(statement, parameters)
                return list(cursor.fetchall())

        return list(self._called(ask))

    @abstractmethod
    def _connect(self) -> Any:
        """A read-only connection."""


class SqliteBridge(SqlBridge):
    """Feast's SQLite store. It keeps timestamps as whole seconds."""

    resolution = "1 s"
    _DRIVER = "sqlite3"
    _SIZE = (
        "SELECT SUM(pgsize) FROM dbstat WHERE name = ?1 OR name IN "
        "(SELECT name FROM sqlite_master WHERE tbl_name = ?1)"
    )

    def sample(self, num_rows: int) -> Iterator[Page]:
        """Entities at random positions of the table; all if there are not many more."""
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
        yield from self._pages_of([key for (key,) in keys])

    def _size_bytes(self) -> Any:
        try:
            return super()._size_bytes()
        except StorageError:  # dbstat is optional in SQLite
            return None

    def _connect(self) -> Any:
        options: Any = self.view.config.online_store
        path = (self.view.config.repo_path or Path()) / options.path
        self._failure = f"table {self._table!r} of {path} cannot be read"
        return self._driver.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True)


class PostgresBridge(SqlBridge):
    """Feast's Postgres store."""

    resolution = "1 us"
    _DRIVER = "psycopg"
    _PARAMETER = "%s"
    _HASH = "hashtext(encode(entity_key, 'hex'))::bigint + 2147483648"
    _SIZE = "SELECT pg_total_relation_size(to_regclass(quote_ident(%s)))"

    def _connect(self) -> Any:
        connection: Any = feast_parts.POSTGRES_CONNECTION(self.view.config.online_store)
        connection.autocommit = True
        connection.read_only = True
        return connection


class MySQLBridge(SqlBridge):
    """Feast's MySQL store. It keeps timestamps as whole seconds."""

    resolution = "1 s"
    _DRIVER = "pymysql"
    _keys_are_text = True
    _PARAMETER = "%s"
    _QUOTE = "`"
    _HASH = "CRC32(entity_key)"
    # The server updates it from time to time.
    _SIZE = (
        "SELECT data_length + index_length FROM information_schema.tables "
        "WHERE table_schema = DATABASE() AND table_name = %s"
    )

    def _connect(self) -> Any:
        # Feast's own method refuses a configuration with `batch_write`, which matters only for writes.
        options: Any = self.view.config.online_store
        connection: Any = self._driver.connect(
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


def _moment(stored: Any) -> datetime:
    """A timestamp of a table: seconds since 1970, text, or a datetime; UTC if it has no zone."""
    moment = stored
    if isinstance(stored, int | float):
        # Feast's SQLite store takes UTC for local time when it writes, and again when it reads.
        moment = datetime.fromtimestamp(stored)
    elif isinstance(stored, str):
        moment = datetime.fromisoformat(stored)
    if not isinstance(moment, datetime):
        raise TypeError(f"{shown(stored)} is not a time")
    return aware(moment).astimezone(UTC)
