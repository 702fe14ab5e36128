"""The records of the write-ahead log, and what they say: rows since the last absorption, one record a commit.

A segment is a file of records, one after the other, little-endian:

    segment   16 bytes  b"feast_sketch_log"
               8 bytes  format version
               8 bytes  sequence number of its first record
              16 bytes  the log's identity, random
              16 bytes  checksum of the 48 bytes before
    record     4 bytes  b"FSLR"
               4 bytes  kind
               8 bytes  sequence number
               8 bytes  length of the payload
               8 bytes  the first half of the checksum of the 24 bytes before
              16 bytes  checksum of the payload
              payload, then zeros up to a multiple of 8 bytes

A mark next to the segments is rewritten after each commit and not synced, so it may be older than the log:

    mark      16 bytes  the log's identity
               8 bytes  sequence number of the first record of a segment
               8 bytes  that many bytes of the segment were durable
              16 bytes  checksum of the 32 bytes before

A checksum is MurmurHash3 x64 128. Zeros follow the last record: the file is longer than its records, so that
a commit seldom changes its size. What is no whole record was cut off when its writer died: it was never
acknowledged, and the next writer overwrites it. Before the mark it is damage, and so is a segment that ends
there.

The payload of rows is an Arrow IPC stream of one batch. Most commits have the schema of the one before. Their
batches are read as one stream: each call of Arrow lets other threads run, and a thread that seals meanwhile
waits after each call until they let it go on.
"""

import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import mmh3
import pyarrow as pa

from feast_sketch_store.errors import DamagedFileError, FormatVersionError, StorageError
from feast_sketch_store.row_log.data_file import RESTORE, DataFile
from feast_sketch_store.rows.columns import memory_errors_apart, with_large_types
from feast_sketch_store.storage.base import Storage

FORMAT_VERSION = 1
IDENTITY_BYTES = 16

ROWS: Final = 1  # an Arrow IPC stream
FILE: Final = 2  # JSON: a data file with the rows of a large batch
REPLACED: Final = 3  # the rows up to here are about to be replaced: readers read the table as well
CLOSED: Final = 4  # the segment ends; the next one begins with this sequence number

PIECES_OF_A_RECORD: Final = 4  # the first two of them are its head

_SEGMENT_MAGIC = b"feast_sketch_log"
_RECORD_MAGIC = b"FSLR"
_SEGMENT_HEAD = struct.Struct("<16sQQ16s")
_RECORD_HEAD = struct.Struct("<4sIQQ")
_MARK = struct.Struct("<16sQQ")
_CHECKSUM_BYTES = 16
_HEAD_CHECKSUM_BYTES = 8
SEGMENT_HEAD_BYTES = _SEGMENT_HEAD.size + _CHECKSUM_BYTES
RECORD_HEAD_BYTES = _RECORD_HEAD.size + _HEAD_CHECKSUM_BYTES + _CHECKSUM_BYTES
_ALIGNMENT = 8

_MESSAGE_HEAD = struct.Struct("<II")  # of Arrow: a mark, and the length of the metadata after it
_CONTINUATION = 0xFFFFFFFF
_END = _MESSAGE_HEAD.pack(_CONTINUATION, 0)
_JOINED_BYTES = 1 << 24  # of streams that are copied to be read as one
_COMPRESSED_FROM_BYTES = 1 << 16  # compressing smaller payloads takes more time than it saves

Payload: TypeAlias = pa.Table | DataFile | None


@dataclass(frozen=True)
class SegmentHead:
    """The head of a segment: the log that it belongs to, and the number of its first record."""

    identity: bytes
    first: int


@dataclass(frozen=True)
class Record:
    """One record: its kind, number and payload, its segment, where it begins there, and the byte after it.

    ``head`` are the bytes before the payload. They hold its checksum, so two records with the same head are
    the same.
    """

    kind: int
    number: int
    payload: memoryview
    head: bytes
    source: str
    start: int
    end: int


def encode_segment_head(head: SegmentHead) -> bytes:
    """The bytes that a segment begins with."""
    content = _SEGMENT_HEAD.pack(_SEGMENT_MAGIC, FORMAT_VERSION, head.first, head.identity)
    return content + mmh3.mmh3_x64_128_digest(content)


def decode_segment_head(content: bytes, source: str) -> SegmentHead | None:
    """The reverse; None if the writer died before the head was whole.

    Raises DamagedFileError, FormatVersionError: the head was altered, or is of another kind or version.
    """
    if len(content) < SEGMENT_HEAD_BYTES or not any(content[SEGMENT_HEAD_BYTES - 8 : SEGMENT_HEAD_BYTES]):
        return None
    magic, version, first, identity = _SEGMENT_HEAD.unpack_from(content)
    if magic != _SEGMENT_MAGIC:
        raise DamagedFileError(
            f"{source}: is not a segment of the row log, or its head is damaged. {RESTORE}"
        )
    if mmh3.mmh3_x64_128_digest(content[: _SEGMENT_HEAD.size]) != content[_SEGMENT_HEAD.size :][:16]:
        raise DamagedFileError(f"{source}: the checksum of the segment's head does not match. {RESTORE}")
    if version != FORMAT_VERSION:
        raise FormatVersionError.of(source, version, FORMAT_VERSION)
    return SegmentHead(identity, first)


def encode_mark(head: SegmentHead, num_bytes: int) -> bytes:
    """The mark of how many bytes of a segment are durable."""
    content = _MARK.pack(head.identity, head.first, num_bytes)
    return content + mmh3.mmh3_x64_128_digest(content)


def decode_mark(content: bytes) -> tuple[SegmentHead, int] | None:
    """A segment and how many of its bytes are durable, from a mark; None if the mark is incomplete."""
    if len(content) != _MARK.size + _CHECKSUM_BYTES:
        return None
    if mmh3.mmh3_x64_128_digest(content[: _MARK.size]) != content[_MARK.size :]:
        return None
    identity, first, num_bytes = _MARK.unpack_from(content)
    return SegmentHead(identity, first), num_bytes


def encode_record(kind: int, number: int, payload: bytes | memoryview = b"") -> list[bytes | memoryview]:
    """A record in pieces, to be written one after the other."""
    length = memoryview(payload).nbytes
    head = _RECORD_HEAD.pack(_RECORD_MAGIC, kind, number, length)
    checksums = _head_checksum(head) + mmh3.mmh3_x64_128_digest(payload)
    return [head, checksums, payload, bytes(-length % _ALIGNMENT)]


def decode_records(
    content: bytes, first: int, offset: int, source: str, durable: float = 0
) -> Iterator[Record]:
    """The records at the end of a segment.

    Parameters
    ----------
    content : what the segment holds from byte ``offset`` on, where a record begins.
    first : the number of the first of them.
    source : the segment's location, for messages.
    durable : how many bytes of the segment were acknowledged.

    Raises DamagedFileError: a record that was acknowledged was altered.
    """
    view, at, number = memoryview(content), 0, first
    while offset + at < durable or len(view) - at >= RECORD_HEAD_BYTES:
        found = _record_at(view, at, number, source, offset)
        if isinstance(found, str):
            if offset + at < durable:
                raise DamagedFileError(
                    f"{source}: the record at byte {offset + at} is damaged: {found}. {RESTORE}"
                )
            return
        yield found
        if found.kind == CLOSED:
            return
        at, number = found.end - offset, number + 1


def _record_at(view: memoryview, at: int, number: int, source: str, offset: int) -> Record | str:
    """The record at a byte of what a segment holds behind an offset, or what is wrong with it."""
    head = bytes(view[at : at + _RECORD_HEAD.size])
    head_end, start = at + _RECORD_HEAD.size + _HEAD_CHECKSUM_BYTES, at + RECORD_HEAD_BYTES
    if start > len(view) or view[at + len(head) : head_end] != _head_checksum(head):
        return "its head was altered"
    magic, kind, known, length = _RECORD_HEAD.unpack(head)
    if magic != _RECORD_MAGIC or known != number or not ROWS <= kind <= CLOSED:
        return "its head was altered"
    end = start + length + -length % _ALIGNMENT
    payload = view[start : start + length]
    if end > len(view) or any(view[start + length : end]):
        return "it was cut off"
    if mmh3.mmh3_x64_128_digest(payload) != view[head_end:start]:
        return "its checksum does not match"
    return Record(kind, number, payload, bytes(view[at:start]), source, offset + at, offset + end)


def _head_checksum(head: bytes) -> bytes:
    return mmh3.mmh3_x64_128_digest(head)[:_HEAD_CHECKSUM_BYTES]


# -- what records say --------------------------------------------------------------------------


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
    """The commits of some records; one that closes a segment is none. ``table`` is the storage of the data
    files.

    Raises DamagedFileError: a payload cannot be read.
    """

    def file_of(record: Record) -> DataFile | None:
        return DataFile.from_entry(table, json.loads(bytes(record.payload))) if record.kind == FILE else None

    try:
        with memory_errors_apart():
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
        raise DamagedFileError(
            f"{last.source}: record {last.number} cannot be read: {error}. {RESTORE}"
        ) from error


def encode_payload(payload: Payload) -> tuple[int, bytes | memoryview]:
    """The kind and the payload of a record. Raises StorageError: the rows cannot be written."""
    if payload is None:
        return REPLACED, b""
    if isinstance(payload, DataFile):
        return FILE, json.dumps(payload.to_entry(), separators=(",", ":")).encode()
    try:
        return ROWS, encode_table(payload, "zstd" if payload.nbytes >= _COMPRESSED_FROM_BYTES else None)
    except (pa.ArrowException, OSError) as error:
        raise StorageError(f"rows cannot be written: {error}") from error


def encode_table(rows: pa.Table, compression: str | None = None) -> memoryview:
    """A stream of some rows, at least one. Raises pa.ArrowException, OSError: they cannot be written."""
    (batch,) = rows.combine_chunks().to_batches()
    stream = pa.BufferOutputStream()
    options: Any = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
    with pa.ipc.new_stream(stream, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return memoryview(stream.getvalue())


def decode_tables(streams: Iterable[memoryview]) -> list[pa.Table]:
    """The rows of each stream, with large types.

    Raises pa.ArrowException, OSError, ValueError: a stream is damaged, or has not one batch.
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
