"""Rows of the write-ahead log as Arrow tables: an IPC stream of one batch per commit.

Most commits have the schema of the one before. Their batches are read as one stream: each call of Arrow lets
other threads run, and a thread that seals beside them waits after each call until they let it go on.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from feast_sketch_store.rows.large_types import with_large_types

_MESSAGE_HEAD = struct.Struct("<II")  # a mark, and the length of the metadata after it
_CONTINUATION = 0xFFFFFFFF
_JOINED_BYTES = 1 << 24  # of streams that are copied to be read as one
_END = _MESSAGE_HEAD.pack(_CONTINUATION, 0)


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
