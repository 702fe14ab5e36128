"""Rows that Feast 0.67 keeps in Bigtable: a row per entity and view, in a table for each set of entities.

The row key is the MurmurHash3 of the serialized entity key as hexadecimal digits, ``#`` and the view. Each
feature is a column with its serialized value, and ``event_ts`` is text with microseconds. The newest version
of a cell counts.
"""

import re
from datetime import UTC, datetime
from typing import Any

from feast.infra.online_stores.bigtable import BigtableOnlineStore
from google.api_core.exceptions import GoogleAPICallError, RetryError
from google.auth.exceptions import GoogleAuthError
from google.cloud.bigtable import row_filters

from feast_sketch_store import feast_parts
from feast_sketch_store.bridges.base import HashKeyedBridge, OtherRow, OtherView
from feast_sketch_store.errors import StorageError

_ROWS_A_PAGE = 1000


class BigtableBridge(HashKeyedBridge):
    """The rows of a view in its table, by a scan."""

    has_keys = False
    resolution = "1 us"
    _errors = GoogleAPICallError, GoogleAuthError, RetryError, OSError
    _failure = "Bigtable cannot be asked"

    def __init__(self, view: OtherView):
        super().__init__(view)
        options: Any = view.config.online_store
        self._family = BigtableOnlineStore.feature_column_family
        self._suffix = f"#{view.table.name}".encode()
        self._client = self._called(lambda: feast_parts.BIGTABLE_CLIENT.of(BigtableOnlineStore())(options))
        name = feast_parts.BIGTABLE_TABLE(view.config, view.table)
        self._table: Any = self._client.instance(instance_id=options.instance).table(name)

    def _after(self, position: str | None) -> list[tuple[str, OtherRow | None]]:
        start = b"" if position is None else position.encode() + b"\0"
        of_view = row_filters.RowFilterChain(
            [
                row_filters.RowKeyRegexFilter(b"[0-9a-f]{32}" + re.escape(self._suffix)),
                row_filters.CellsColumnLimitFilter(1),
            ]
        )
        rows = self._table.read_rows(start_key=start, limit=_ROWS_A_PAGE, filter_=of_view)
        return [(row.row_key.decode(), self._row(row)) for row in rows]

    def _row(self, row: Any) -> OtherRow:
        try:
            found = {name.decode(): cells[0].value for name, cells in row.cells[self._family].items()}
            event = datetime.fromisoformat(found["event_ts"].decode()).astimezone(UTC)
        except (KeyError, IndexError, ValueError) as error:
            raise StorageError(f"{self.view}: a row is not one of Feast's: {error!r}") from error
        entity = row.row_key.removesuffix(self._suffix).decode("ascii", "replace")
        return OtherRow(entity, self._values(found), event)
