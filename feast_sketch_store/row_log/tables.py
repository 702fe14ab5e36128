"""Rows of the fresh log as Arrow tables: an IPC stream of one batch per commit.

Most commits have the schema of the one before. Their batches are read as one stream: each call of Arrow lets
other threads run, and a thread that seals beside them waits after each call until they let it go on.
"""

import itertools
import struct
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from feast_sketch_store.rows.large_types import with_large_types

_MESSAGE_HEAD = struct.Struct("<II")  # a mark, and the length of the metadata after it
_CONTINUATION = 0xFFFFFFFF
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
    for schema, run in itertools.groupby(streams, _schema_of):
        bodies = [stream[len(schema) : -len(_END)] for stream in run]
        rows = _read(b"".join([schema, *bodies, _END]))
        batches = rows.to_batches()
        if len(batches) != len(bodies):
            raise ValueError(f"{len(bodies)} commits have {len(batches)} batches of rows")
        tables += [pa.Table.from_batches([batch]) for batch in batches]
    return tables


def _read(stream: bytes) -> pa.Table:
    with pa.ipc.open_stream(pa.py_buffer(stream)) as reader:
        return with_large_types(reader.read_all())


def _schema_of(stream: memoryview) -> bytes:
    """The first message of a stream, which has no body."""
    if len(stream) < 2 * _MESSAGE_HEAD.size or bytes(stream[-len(_END) :]) != _END:
        raise ValueError("the rows of a commit are cut off")
    mark, length = _MESSAGE_HEAD.unpack_from(stream)
    if mark != _CONTINUATION:
        raise ValueError("the rows of a commit do not begin with a schema")
    return bytes(stream[: _MESSAGE_HEAD.size + length])
