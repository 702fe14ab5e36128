"""Rows that Feast 0.67 keeps in Google's Datastore: an entity per row, below the project and the table.

The entity's name is the MurmurHash3 of the serialized entity key. The property ``key`` has the entity key
itself, ``values`` maps features to serialized values, and timestamps have microseconds.
"""

from datetime import UTC
from typing import Any

from feast.infra.online_stores.datastore import DatastoreOnlineStore
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from google.api_core.exceptions import GoogleAPICallError, RetryError
from google.auth.exceptions import GoogleAuthError
from google.protobuf.message import DecodeError

from feast_sketch_store import feast_parts
from feast_sketch_store.bridges.base import HashKeyedBridge, OtherRow, OtherView
from feast_sketch_store.errors import StorageError

_ROWS_A_PAGE = 500


class DatastoreBridge(HashKeyedBridge):
    """The rows below a table, in the order of their names."""

    resolution = "1 us"
    _errors = GoogleAPICallError, GoogleAuthError, RetryError, OSError
    _failure = "Datastore cannot be asked"

    def __init__(self, view: OtherView):
        super().__init__(view)
        self._path = ("Project", view.config.project, "Table", view.table.name)
        self._client = self._called(
            lambda: feast_parts.DATASTORE_CLIENT.of(DatastoreOnlineStore())(view.config.online_store)
        )

    def _after(self, position: str | None) -> list[tuple[str, OtherRow | None]]:
        query = self._client.query(kind="Row", ancestor=self._client.key(*self._path))
        if position is not None:
            query.key_filter(self._client.key(*self._path, "Row", position), ">")
        return [(stored.key.name, self._row(stored)) for stored in query.fetch(limit=_ROWS_A_PAGE)]

    def _row(self, stored: Any) -> OtherRow:
        try:
            entity = EntityKey.FromString(stored["key"])
            created = stored.get("created_ts")
            content = {name: stored["values"].get(name) for name in self.view.features}
            event = stored["event_ts"].astimezone(UTC)
        except (KeyError, AttributeError, TypeError, DecodeError) as error:
            raise StorageError(f"{self.view}: a row is not one of Feast's: {error!r}") from error
        moment = None if created is None else created.astimezone(UTC)
        return OtherRow(entity, self._values(content), event, moment)
