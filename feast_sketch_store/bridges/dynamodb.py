"""Rows that Feast 0.67 keeps in DynamoDB: an item per entity, under the MurmurHash3 of its serialized key.

``event_ts`` is text with microseconds, and ``values`` maps features to serialized values. The key itself is
not kept.
"""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from feast_sketch_store.bridges.base import Bridge, OtherRow, OtherView, Page
from feast_sketch_store.errors import StorageError
from feast_sketch_store.planning.plan import Estimate

_SAMPLED_SEGMENTS = 64  # of a table, which DynamoDB divides by a hash of the key


class DynamoBridge(Bridge):
    """The items of a view's table, by Scan."""

    has_keys = False
    resolution = "1 us"
    _errors = BotoCoreError, ClientError

    def __init__(self, view: OtherView):
        super().__init__(view)
        options: Any = view.config.online_store
        self._table = options.table_name_template.format(project=view.config.project, table_name=view.name)
        self._failure = f"table {self._table!r} cannot be read"
        self._client = self._called(
            lambda: boto3.Session().client(
                "dynamodb", region_name=options.region, endpoint_url=options.endpoint_url
            )
        )

    def pages(self, position: str | None = None) -> Iterator[Page]:
        """A page for each response of Scan, at most a megabyte."""
        start = json.loads(position) if position else None
        if start == "end":
            return
        yield from self._scan({} if start is None else {"ExclusiveStartKey": start})

    def count(self) -> Estimate:
        """The item count that DescribeTable reports; it is up to six hours old."""
        return Estimate.exactly(float(self._described()["ItemCount"]))

    def sample(self, num_rows: int) -> Iterator[Page]:
        """The first items of the segments of a parallel scan, which are at random positions of the table."""
        found, segment = 0, 0
        each = max(1, -(-num_rows // _SAMPLED_SEGMENTS))
        while segment < _SAMPLED_SEGMENTS and found < num_rows:
            options = {"Segment": segment, "TotalSegments": _SAMPLED_SEGMENTS, "Limit": each}
            page = next(self._scan(options), None)
            if page is not None:
                yield page
                found += len(page.rows)
            segment += 1

    def stored_bytes(self, rows: Any) -> Estimate | None:
        """The size that DescribeTable reports, per item."""
        described = self._described()
        number = int(described["ItemCount"])
        return Estimate.exactly(float(described["TableSizeBytes"]) / number) if number else None

    def _described(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._called(lambda: self._client.describe_table(TableName=self._table))
        return found["Table"]  # type: ignore[no-any-return]

    def _scan(self, options: Mapping[str, Any]) -> Iterator[Page]:
        more = dict(options)
        while True:
            answer = self._called(lambda: self._client.scan(TableName=self._table, **more))
            rows = [self._row(item) for item in answer["Items"]]
            start = answer.get("LastEvaluatedKey")
            yield Page(rows, len(rows), json.dumps("end" if start is None else start))
            if start is None:
                return
            more["ExclusiveStartKey"] = start

    def _row(self, item: Mapping[str, Any]) -> OtherRow:
        try:
            moment = datetime.fromisoformat(item["event_ts"]["S"]).astimezone(UTC)
            entity = item["entity_id"]["S"]
            stored = {name: content["B"] for name, content in item["values"]["M"].items()}
        except (KeyError, ValueError, TypeError) as error:
            raise StorageError(f"{self.view}: an item is not one of Feast's: {error!r}") from error
        return OtherRow(entity, self._values(stored), moment)
