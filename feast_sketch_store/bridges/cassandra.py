"""Rows that Feast 0.67 keeps in Cassandra and ScyllaDB: a partition per entity, with a row for each feature.

The partition key is the serialized entity key in hexadecimal. A scan visits partitions in the order of their
keys' tokens, which are hashes. Timestamps have milliseconds.
"""

from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import groupby
from typing import Any

from cassandra import DriverException, RequestExecutionException
from cassandra.cluster import NoHostAvailable
from cassandra.query import SimpleStatement

from feast_sketch_store import feast_parts
from feast_sketch_store.bridges.base import HashOrderedBridge, OtherRow, OtherView
from feast_sketch_store.rows.limits import aware

_ROWS_A_CALL = 5000  # one for each feature of an entity
_ENTITIES_A_PAGE = 1000
_TOKENS, _FIRST_TOKEN = 1 << 64, -(1 << 63)

_STORES = {
    "CassandraOnlineStoreConfig": "cassandra_online_store.cassandra_online_store:CassandraOnlineStore",
    "ScyllaDBOnlineStoreConfig": "scylladb_online_store.scylladb:ScyllaDBOnlineStore",
}


class CassandraBridge(HashOrderedBridge):
    """The table of a view, from token to token."""

    resolution = "1 ms"
    _errors = DriverException, RequestExecutionException, NoHostAvailable, OSError
    _failure = "the cluster cannot be asked"

    def __init__(self, view: OtherView):
        super().__init__(view)
        module, name = _STORES[type(view.config.online_store).__name__].split(":")
        self._store: Any = getattr(import_module(f"feast.infra.online_stores.{module}"), name)()
        self._session: Any = self._called(lambda: feast_parts.CASSANDRA_SESSION.of(self._store)(view.config))
        self._table = (
            f'"{feast_parts.CASSANDRA_KEYSPACE.of(self._store)}"."{view.config.project}_{view.table.name}"'
        )

    def _scan(self, position: str | None) -> Iterator[tuple[list[OtherRow], str, float]]:
        where = "" if position is None else f" WHERE token(entity_key) > {int(position)}"
        statement = SimpleStatement(
            f"SELECT token(entity_key), entity_key, feature_name, value, event_ts FROM {self._table}{where}",
            fetch_size=_ROWS_A_CALL,
        )
        rows: list[OtherRow] = []
        for token, of_token in groupby(self._selected(statement), lambda row: int(row[0])):
            rows += self._entities(list(of_token))
            if len(rows) >= _ENTITIES_A_PAGE:
                yield rows, str(token), (token - _FIRST_TOKEN + 1) / _TOKENS
                rows = []
        if rows:
            yield rows, str(_TOKENS + _FIRST_TOKEN - 1), 1.0

    def close(self) -> None:
        feast_parts.CASSANDRA_CLUSTER.of(self._store).shutdown()

    def _selected(self, statement: Any) -> Iterator[Any]:
        """Rows, one call after another."""
        answer = self._called(lambda: self._session.execute(statement))
        while True:
            yield from self._called(lambda: list(answer.current_rows))
            if not answer.has_more_pages:
                return
            self._called(answer.fetch_next_page)

    def _entities(self, rows: Sequence[Any]) -> Iterator[OtherRow]:
        for key, of_entity in groupby(rows, lambda row: row[1]):
            found = [row for row in of_entity if row[3] is not None]
            if not found:
                continue
            content = {name: value for _, _, name, value, _ in found}
            event = aware(max(moment for *_, moment in found))
            yield OtherRow(self._entity(key), self._values(content), event)
