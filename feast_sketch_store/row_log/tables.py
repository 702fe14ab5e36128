"""Rows of the fresh log as Arrow tables: an IPC stream per commit, usually with the schema before."""

import struct

import pyarrow as pa

from feast_sketch_store.rows.large_types import with_large_types

_MESSAGE_HEAD = struct.Struct("<Ii")  # a mark, and the length of the metadata after it
_CONTINUATION = 0xFFFFFFFF


class TableReader:
    """Reads the streams of a log in order. It keeps schemas, because parsing one takes longer than reading a
    row.
    """

    def __init__(self) -> None:
        self._head = b""  # the message of a schema that needs no change
        self._schema: pa.Schema | None = None

    def read(self, stream: memoryview) -> pa.Table:
        """The rows of a stream, with large types.

        Raises
        ------
        pa.ArrowException, OSError, ValueError : it is damaged.
        """
        length = len(self._head)
        if self._schema is not None and bytes(stream[:length]) == self._head:
            return _batches(stream[length:], self._schema)
        with pa.ipc.open_stream(pa.py_buffer(stream)) as reader:
            table = reader.read_all()
        large = with_large_types(table)
        if large.schema.equals(table.schema, check_metadata=True):
            self._head, self._schema = _schema_of(stream), table.schema
        return large


def _batches(messages: memoryview, schema: pa.Schema) -> pa.Table:
    source = pa.BufferReader(pa.py_buffer(messages))
    batches: list[pa.RecordBatch] = []
    while True:
        try:
            message = pa.ipc.read_message(source)
        except EOFError:
            return pa.Table.from_batches(batches, schema)
        batches.append(pa.ipc.read_record_batch(message, schema))


def _schema_of(stream: memoryview) -> bytes:
    """The first message of a stream, which has no body."""
    mark, length = _MESSAGE_HEAD.unpack_from(stream)
    return bytes(stream[: _MESSAGE_HEAD.size + length]) if mark == _CONTINUATION else b""
