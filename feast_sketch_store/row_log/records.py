"""The records of the write-ahead log: rows that were written since the last absorption, one record a commit.

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
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import mmh3

from feast_sketch_store.errors import DamagedFileError, FormatVersionError

FORMAT_VERSION = 1
IDENTITY_BYTES = 16

ROWS: Final = 1  # an Arrow IPC stream
FILE: Final = 2  # JSON: a data file with the rows of a large batch
REPLACED: Final = 3  # the rows up to here are about to be replaced: readers look at the table as well
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

    Raises
    ------
    DamagedFileError : the head was altered, or the file is of another kind.
    FormatVersionError : it is of another version.
    """
    if len(content) < SEGMENT_HEAD_BYTES or not any(content[SEGMENT_HEAD_BYTES - 8 : SEGMENT_HEAD_BYTES]):
        return None
    magic, version, first, identity = _SEGMENT_HEAD.unpack_from(content)
    if magic != _SEGMENT_MAGIC:
        raise DamagedFileError(f"{source}: is not a segment of the row log, or its head is damaged")
    if mmh3.mmh3_x64_128_digest(content[: _SEGMENT_HEAD.size]) != content[_SEGMENT_HEAD.size :][:16]:
        raise DamagedFileError(f"{source}: the checksum of the segment's head does not match")
    if version != FORMAT_VERSION:
        raise FormatVersionError.of(source, version, FORMAT_VERSION)
    return SegmentHead(identity, first)


def encode_mark(head: SegmentHead, num_bytes: int) -> bytes:
    """The mark of how many bytes of a segment are durable."""
    content = _MARK.pack(head.identity, head.first, num_bytes)
    return content + mmh3.mmh3_x64_128_digest(content)


def decode_mark(content: bytes) -> tuple[SegmentHead, int] | None:
    """The reverse; None if the mark is incomplete, which tells nothing."""
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
    source : the segment's place, for messages.
    durable : so many bytes of the segment were acknowledged.

    Raises
    ------
    DamagedFileError : a record that was acknowledged was altered.
    """
    view, at, number = memoryview(content), 0, first
    while offset + at < durable or len(view) - at >= RECORD_HEAD_BYTES:
        found = _record_at(view, at, number, source, offset)
        if isinstance(found, str):
            if offset + at < durable:
                raise DamagedFileError(f"{source}: the record at byte {offset + at} is damaged: {found}")
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
