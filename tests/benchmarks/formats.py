"""Bytes of the same rows in the formats of Feast's online stores.

Redis, SQLite and this store are measured. Of the others what Feast sends is counted by the published rules of
the service: before replicas, indexes and compression, which differ from place to place.

Sources: docs.aws.amazon.com/amazondynamodb, "DynamoDB item sizes and formats"; cloud.google.com/datastore,
"Storage size calculations"; cloud.google.com/bigtable, "Overview of data storage"; Apache Cassandra, "Storage
engine": a cell is its clustering key, its value and two timestamps.
"""

from collections.abc import Callable, Iterable
from typing import Any

from feast.infra.key_encoding_utils import serialize_entity_key
from feast.infra.online_stores.helpers import compute_entity_id
from feast.types import Int64
from measure import number, print_set_up, print_table
from stores import UserRows, redis, redis_client, redis_server, set_up_of, sketch, sqlite, temporary_folder

_PROJECT = "shop"
_TIMESTAMP_BYTES = 8
_DATASTORE_ENTITY_BYTES, _DATASTORE_KEY_BYTES = 32, 16
_DYNAMODB_MAP_BYTES = 3


def run(*, quick: bool) -> None:
    """Print the bytes of a row and bits of a fact in each format."""
    num_users = 2_000 if quick else 50_000
    rows = UserRows(num_users, Int64, with_country=True)
    given = rows.to_feast()
    sizes = _measured(rows, given)
    for name, size_of in _COUNTED.items():
        sizes[name] = sum(size_of(rows.view.name, key, values, event) for key, values, event, _ in given)
    num_facts = sum(len(values["viewed"].int64_list_val.val) + 1 for _, values, _, _ in given)
    print_set_up(f"{set_up_of(num_users)} and a country", "feast", "redis")
    ours = sizes["sketch, snapshot"]
    print_table(
        ["format", "bytes a row", "bits a fact", "times the snapshot"],
        [
            [name, number(size / num_users), number(8 * size / num_facts), number(size / ours)]
            for name, size in sizes.items()
        ],
    )


def _measured(rows: UserRows, given: list[Any]) -> dict[str, int]:
    with temporary_folder() as folder, redis_server() as port:
        ours = sketch(folder, rows, target="auto")
        ours.write(given)
        stats = ours.online.view(ours.config, ours.view).stats()  # type: ignore[attr-defined]
        other = redis(folder, rows, port)
        client = redis_client(other)
        before: int = client.info("memory")["used_memory"]
        other.write(given)
        sqlite(folder, rows).write(given)
        return {
            "sketch, snapshot": stats.snapshot_bytes,
            "Redis, measured": int(client.info("memory")["used_memory"]) - before,
            "SQLite, measured": (folder / "online.db").stat().st_size,
        }


def _values(values: dict[str, Any]) -> Iterable[tuple[int, int]]:
    """Bytes of the name and of the value of each feature."""
    return [(len(name.encode()), value.ByteSize()) for name, value in values.items()]


def _dynamodb(view: str, key: Any, values: dict[str, Any], event: Any) -> int:
    size = (
        len("entity_id") + len(compute_entity_id(key, 3)) + len("event_ts") + len(str(event)) + len("values")
    )
    return size + _DYNAMODB_MAP_BYTES + sum(name + value + 1 for name, value in _values(values))


def _datastore(view: str, key: Any, values: dict[str, Any], event: Any) -> int:
    path = ("Project", _PROJECT, "Table", view, "Row", compute_entity_id(key, 3))
    size = _DATASTORE_ENTITY_BYTES + _DATASTORE_KEY_BYTES + sum(len(part) + 1 for part in path)
    size += len("key") + 1 + key.ByteSize() + len("values") + 1
    size += len("event_ts") + 1 + _TIMESTAMP_BYTES + len("created_ts") + 1 + 1
    return size + sum(name + 1 + value for name, value in _values(values))


def _bigtable(view: str, key: Any, values: dict[str, Any], event: Any) -> int:
    row_key = len(f"{compute_entity_id(key, 3)}#{view}")
    cells = [*_values(values), (len("event_ts"), len(event.isoformat()))]
    return row_key + sum(len("features") + name + _TIMESTAMP_BYTES + value for name, value in cells)


def _cassandra(view: str, key: Any, values: dict[str, Any], event: Any) -> int:
    partition = len(serialize_entity_key(key, 3).hex())
    return partition + sum(name + value + 2 * _TIMESTAMP_BYTES for name, value in _values(values))


_COUNTED: dict[str, Callable[[str, Any, dict[str, Any], Any], int]] = {
    "DynamoDB, counted": _dynamodb,
    "Datastore, counted": _datastore,
    "Bigtable, counted": _bigtable,
    "Cassandra, counted": _cassandra,
}
