"""The parts of Delta Lake's commit protocol that the row log needs: actions, schema, checkpoints.

A table is a folder of Parquet files and a folder ``_delta_log`` of commits: files of JSON lines that are
created once and never changed. A checkpoint holds the result of all commits up to a version, which can then
be deleted. It is implemented here because a commit has to go through the store's own storage, from forked
processes and in folders of any name.

Source: github.com/delta-io/delta, PROTOCOL.md, "Delta Log Entries", "Checkpoints", "Schema Serialization
Format".
"""

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.parquet as pq

from feast_sketch_store.errors import RowError
from feast_sketch_store.rows.columns import large_type
from feast_sketch_store.storage.base import Storage

LOG_FOLDER = "_delta_log/"
_LAST_CHECKPOINT = f"{LOG_FOLDER}_last_checkpoint"
_NAME = re.compile(r"(\d{20})\.(json|checkpoint\.parquet)")

_CONFIGURATION = {
    # Order is read from the JSON commits, so other clients must not expire them.
    "delta.enableExpiredLogCleanup": "false",
    # Column statistics would keep values of deleted rows in the log.
    "delta.dataSkippingNumIndexedCols": "0",
}

_PRIMITIVES = {
    pa.bool_(): "boolean",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.timestamp("us", tz="UTC"): "timestamp",
}
_ARROW_TYPES = {name: large_type(kind) for kind, name in _PRIMITIVES.items()}

Action = Mapping[str, Any]

PROTOCOL: Action = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
"""The action that names the reader and writer versions that the table needs: the lowest ones."""


def commit_name(version: int) -> str:
    """The name of a commit within the table's folder."""
    return f"{LOG_FOLDER}{version:020d}.json"


def delta_type(arrow_type: pa.DataType) -> Any:
    """A type in the schema of a table. Raises RowError: no column of a row log can have this type."""
    if pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type):
        element = delta_type(arrow_type.value_type)
        return {"type": "array", "elementType": element, "containsNull": True}
    if (name := _PRIMITIVES.get(arrow_type)) is None:
        raise RowError(f"no column of the row log holds values of type {arrow_type}")
    return name


def arrow_type(delta: Any) -> pa.DataType:
    """The reverse of `delta_type`. Raises ValueError: no column of a row log can have this type."""
    if isinstance(delta, dict) and delta.get("type") == "array":
        return pa.large_list(arrow_type(delta["elementType"]))
    if not isinstance(delta, str) or delta not in _ARROW_TYPES:
        raise ValueError(f"a column has the type {delta!r}, which the row log does not know")
    return _ARROW_TYPES[delta]


def schema_string(columns: Mapping[str, Any]) -> str:
    """The schema of a table with columns of such types, by name."""
    fields = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in columns.items()]
    return json.dumps({"type": "struct", "fields": fields}, separators=(",", ":"))


def columns_of(schema: str) -> dict[str, Any]:
    """The reverse of `schema_string`. Raises ValueError, KeyError, TypeError: it is not a schema."""
    return {field["name"]: field["type"] for field in json.loads(schema)["fields"]}


def now() -> int:
    """The time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def metadata(identity: str, columns: Mapping[str, Any]) -> Action:
    """The action that gives the table its schema."""
    return {
        "metaData": {
            "id": identity,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": schema_string(columns),
            "partitionColumns": [],
            "configuration": _CONFIGURATION,
            "createdTime": now(),
        }
    }


def add(name: str, size_bytes: int, num_rows: int) -> Action:
    """The action that adds a data file."""
    return {
        "add": {
            "path": quote(name),
            "partitionValues": {},
            "size": size_bytes,
            "modificationTime": now(),
            "dataChange": True,
            "stats": json.dumps({"numRecords": num_rows}),
        }
    }


def remove(name: str) -> Action:
    """The action that removes a data file."""
    return {"remove": {"path": quote(name), "deletionTimestamp": now(), "dataChange": True}}


def commit_info(operation: str, more: Mapping[str, str]) -> Action:
    """The action with the purpose of a commit."""
    return {"commitInfo": {"timestamp": now(), "operation": operation, **more}}


def encode_actions(actions: Iterable[Action]) -> bytes:
    """The content of a commit."""
    return b"".join(json.dumps(action, separators=(",", ":")).encode() + b"\n" for action in actions)


def decode_actions(content: bytes) -> list[dict[str, Any]]:
    """The reverse of `encode_actions`. Raises ValueError, TypeError: it is not a commit."""
    # Not `splitlines`, which also splits at characters that a name may have.
    lines = content.decode("utf-8").split("\n")
    actions = [json.loads(line) for line in lines if line.strip()]
    if not all(isinstance(action, dict) for action in actions):
        raise TypeError("one of its lines is not an action")
    return actions


def path_of(action: Mapping[str, Any]) -> str:
    """The name of the data file of an added or removed path.

    Raises ValueError: it lies outside of the table's folder.
    """
    name = unquote(action["path"])
    if "/" in name or name in ("", ".", ".."):
        raise ValueError(f"it names a file outside of the table's folder, {name!r}")
    return name


def write_checkpoint(storage: Storage, version: int, actions: Sequence[Action]) -> None:
    """Write a checkpoint of all commits up to a version, and point readers to it.

    ``actions`` are the protocol, the metadata, and one for each file of the table.
    """
    rows = [{kind: action.get(kind) for kind in _CHECKPOINT_SCHEMA.names} for action in actions]
    stream = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, _CHECKPOINT_SCHEMA), stream)
    storage.replace(f"{LOG_FOLDER}{version:020d}.checkpoint.parquet", stream.getvalue().to_pybytes())
    pointer = {"version": version, "size": len(actions)}
    storage.replace(_LAST_CHECKPOINT, json.dumps(pointer, separators=(",", ":")).encode())


def versions(storage: Storage) -> list[int]:
    """The versions whose commits exist, ascending."""
    return [version for _, version, is_commit in _listed(storage) if is_commit]


def last_checkpoint(storage: Storage) -> int:
    """The version of the newest checkpoint; -1 if there is none."""
    return max((version for _, version, is_commit in _listed(storage) if not is_commit), default=-1)


def names_before(storage: Storage, version: int) -> list[str]:
    """The commits and checkpoints that are obsolete after a checkpoint of a version."""
    return [name for name, of, _ in _listed(storage) if of < version]


def is_log_name(name: str) -> bool:
    """Whether a file of the table's folder belongs to its log of commits."""
    last = name.removeprefix(LOG_FOLDER)
    return name == _LAST_CHECKPOINT or (name != last and _NAME.fullmatch(last) is not None)


def _listed(storage: Storage) -> Iterator[tuple[str, int, bool]]:
    """The commits and checkpoints that exist: name, version, and whether it is a commit."""
    for match in filter(None, map(_NAME.fullmatch, storage.list(LOG_FOLDER))):
        yield LOG_FOLDER + match[0], int(match[1]), match[2] == "json"


_STRINGS = pa.map_(pa.string(), pa.string())
_CHECKPOINT_SCHEMA = pa.schema(
    {
        "txn": pa.struct({"appId": pa.string(), "version": pa.int64(), "lastUpdated": pa.int64()}),
        "add": pa.struct(
            {
                "path": pa.string(),
                "partitionValues": _STRINGS,
                "size": pa.int64(),
                "modificationTime": pa.int64(),
                "dataChange": pa.bool_(),
                "stats": pa.string(),
            }
        ),
        "remove": pa.struct({"path": pa.string(), "deletionTimestamp": pa.int64(), "dataChange": pa.bool_()}),
        "metaData": pa.struct(
            {
                "id": pa.string(),
                "name": pa.string(),
                "description": pa.string(),
                "format": pa.struct({"provider": pa.string(), "options": _STRINGS}),
                "schemaString": pa.string(),
                "partitionColumns": pa.list_(pa.string()),
                "configuration": _STRINGS,
                "createdTime": pa.int64(),
            }
        ),
        "protocol": pa.struct({"minReaderVersion": pa.int32(), "minWriterVersion": pa.int32()}),
    }
)
