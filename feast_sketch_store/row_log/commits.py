"""Commits: what a record of the write-ahead log says, and its payload.

The payload of rows is an Arrow IPC stream of one batch. Most commits have the schema of the one before. Their
batches are read as one stream: each call of Arrow lets other threads run, and a thread that seals beside them
waits after each call until they let it go on.
"""

import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from feast_sketch_store.errors import DamagedFileError, StorageError
from feast_sketch_store.row_log.data_file import DataFile
from feast_sketch_store.row_log.records import CLOSED, FILE, REPLACED, ROWS, Record
from feast_sketch_store.rows.columns import with_large_types
from feast_sketch_store.storage.base import Storage

_MESSAGE_HEAD = struct.Struct("<II")  # a mark, and the length of the metadata after it
_CONTINUATION = 0xFFFFFFFF
_JOINED_BYTES = 1 << 24  # of streams that are copied to be read as one
_END = _MESSAGE_HEAD.pack(_CONTINUATION, 0)
_COMPRESSED_FROM_BYTES = 1 << 16  # compressing smaller payloads takes more time than it saves

Payload: TypeAlias = pa.Table | DataFile | None


@dataclass(frozen=True)
class Commit:
    """Rows of one commit: a table or a data file. It has neither if it announces that all are replaced."""

    number: int
    rows: Payload

    @property
    def replaces(self) -> bool:
        """Whether it announces that other rows will replace everything before."""
        return self.rows is None

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """The rows in batches; see `DataFile.batches`."""
        if isinstance(self.rows, DataFile):
            yield from self.rows.batches(columns)
        elif self.rows is not None:
            yield self.rows if columns is None else _select(self.rows, columns)

    @property
    def size_bytes(self) -> int:
        """The size of the data file, if the rows are in one."""
        return self.rows.size_bytes if isinstance(self.rows, DataFile) else 0

    def schema(self) -> pa.Schema:
        """The columns."""
        if isinstance(self.rows, DataFile):
            return self.rows.schema()
        return pa.schema([]) if self.rows is None else self.rows.schema


def commits_of(records: Sequence[Record], table: Storage) -> list[Commit]:
    """The commits of some records; one that closes a segment is none.

    Parameters
    ----------
    table : storage of the data files.

    Raises
    ------
    DamagedFileError : a payload cannot be read.
    """

    def file_of(record: Record) -> DataFile | None:
        return DataFile.from_entry(table, json.loads(bytes(record.payload))) if record.kind == FILE else None

    try:
        tables = iter(decode_tables(record.payload for record in records if record.kind == ROWS))
        return [
            Commit(record.number, next(tables) if record.kind == ROWS else file_of(record))
            for record in records
            if record.kind != CLOSED
        ]
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        if len(records) > 1:  # one of them cannot be read alone
            for record in records:
                commits_of([record], table)
        last = records[-1]
        raise DamagedFileError(f"{last.source}: record {last.number} cannot be read: {error}") from error


def kind_of(payload: Payload) -> int:
    """The kind of a payload's record."""
    if payload is None:
        return REPLACED
    return FILE if isinstance(payload, DataFile) else ROWS


def encode_payload(payload: Payload) -> bytes | memoryview:
    """The payload of a record.

    Raises
    ------
    StorageError : the rows cannot be written.
    """
    if payload is None:
        return b""
    if isinstance(payload, DataFile):
        return json.dumps(payload.to_entry(), separators=(",", ":")).encode()
    try:
        return encode_table(payload, "zstd" if payload.nbytes >= _COMPRESSED_FROM_BYTES else None)
    except pa.ArrowException as error:
        raise StorageError(f"rows cannot be written: {error}") from error


def encode_table(rows: pa.Table, compression: str | None = None) -> memoryview:
    """A stream of some rows, at least one.

    Raises
    ------
    pa.ArrowException : they cannot be written.
    """
    (batch,) = rows.combine_chunks().to_batches()
    stream = pa.BufferOutputStream()
    options: Any = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
    with pa.ipc.new_stream(stream, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return memoryview(stream.getvalue())


def decode_tables(streams: Iterable[memoryview]) -> list[pa.Table]:
    """The rows of each stream, with large types.

    Raises
    ------
    pa.ArrowException, OSError, ValueError : a stream is damaged, or has not one batch.
    """
    tables: list[pa.Table] = []
    schema, bodies, num_bytes = b"", list[memoryview](), 0
    for stream in streams:
        own = _schema_of(stream)
        if bodies and (own != schema or num_bytes >= _JOINED_BYTES):
            tables += _read(schema, bodies)
            bodies, num_bytes = [], 0
        schema = own
        bodies.append(stream[len(schema) : -len(_END)])
        num_bytes += len(stream)
    return tables + _read(schema, bodies) if bodies else tables


def _read(schema: bytes, bodies: Sequence[memoryview]) -> list[pa.Table]:
    with pa.ipc.open_stream(pa.py_buffer(b"".join([schema, *bodies, _END]))) as reader:
        batches = with_large_types(reader.read_all()).to_batches()
    if len(batches) != len(bodies):
        raise ValueError(f"{len(bodies)} commits have {len(batches)} batches of rows")
    return [pa.Table.from_batches([batch]) for batch in batches]


def _schema_of(stream: memoryview) -> bytes:
    """The first message of a stream, which has no body."""
    if len(stream) < 2 * _MESSAGE_HEAD.size or bytes(stream[-len(_END) :]) != _END:
        raise ValueError("the rows of a commit are cut off")
    mark, length = _MESSAGE_HEAD.unpack_from(stream)
    if mark != _CONTINUATION:
        raise ValueError("the rows of a commit do not begin with a schema")
    return bytes(stream[: _MESSAGE_HEAD.size + length])


def _select(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    known = {*table.column_names}
    return table.select([name for name in columns if name in known])
