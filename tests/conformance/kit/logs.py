"""Row logs beside a snapshot: as old as it, newer than it, and damaged."""

import json
from collections.abc import Iterator
from dataclasses import replace

from feast_sketch_store.row_log.records import (
    CLOSED,
    FILE,
    REPLACED,
    ROWS,
    SegmentHead,
    encode_mark,
    encode_record,
    encode_segment_head,
)
from feast_sketch_store.snapshot.manifest import checksum_of
from tests.conformance.kit.views import SealedView, one_row, snapshot_name

_IDENTITY = bytes(range(16))


def logged() -> SealedView:
    """A row with a log that has nothing new: all commits are absorbed, in the table, or cut off."""
    view = one_row()
    version = view.layers[-1].version
    last = version - 1
    cut_off = _record(ROWS, version + 1, b"rows")[:50]
    files = {
        f"fresh/{last:020d}.log": _segment(last)
        + _record(ROWS, last, b"rows")
        + _record(CLOSED, version, b""),
        f"fresh/{version:020d}.log": _segment(version) + _record(REPLACED, version, b""),
        f"fresh/{version + 1:020d}.log": _segment(version + 1) + cut_off + bytes(100),
        _commit_name(0): _commit(0, 0, last - 1, snapshot_name(1)),
        _commit_name(1): _commit(1, last, last),
    }
    return replace(view, files=files)


def logs(version: int) -> Iterator[tuple[str, str, dict[str, bytes]]]:
    """Files beside a snapshot of the commits before ``version``: a name, the rule, and the files."""
    rows = _record(ROWS, version, b"rows")
    segment = _segment(version) + rows
    name = f"fresh/{version:020d}.log"
    entry = json.dumps({"name": "a.zstd.parquet", "num_rows": 1, "checksum": "0" * 32}).encode()
    cut = segment + _record(ROWS, version + 1, b"more rows")[:60]
    yield "log.newer-rows", "log.newer", {name: segment}
    yield "log.newer-a-file", "log.newer", {name: _segment(version) + _record(FILE, version, entry)}
    yield "log.newer-behind-a-record-that-is-cut", "log.newer", {name: cut}
    yield "log.newer-rows-of-the-table", "log.newer", {_commit_name(0): _commit(0, 0, version)}
    replaced = _commit(0, 0, version - 1, snapshot_name(version + 1))
    yield "log.newer-other-rows", "log.newer", {_commit_name(0): replaced}
    bucket = {"fresh/log": _segment(0), f"fresh/{_IDENTITY.hex()}-{version:020d}.log": segment}
    yield "log.newer-rows-in-a-bucket", "log.newer", bucket
    zeros = {name: segment + bytes(200), "fresh/end": _mark(version, len(segment))}
    yield "log.newer-before-zeros", "log.newer", zeros
    damaged = bytearray(segment)
    damaged[len(_segment(version)) + 48] ^= 1
    mark = {"fresh/end": _mark(version, len(segment))}
    yield "log.damaged-a-record", "log.damaged", {name: bytes(damaged), **mark}
    yield "log.damaged-zeros-before-the-mark", "log.damaged", {name: _segment(version) + bytes(200), **mark}
    yield "log.damaged-cut-before-the-mark", "log.damaged", {name: segment[:-8], **mark}
    other = f"fresh/{_IDENTITY.hex()}-{version:020d}.log"
    in_a_bucket = {"fresh/log": _segment(0), other: bytes(damaged)}
    yield "log.damaged-a-record-in-a-bucket", "log.damaged", in_a_bucket
    yield "log.damaged-the-head-of-a-segment", "log.damaged", {name: b"x" + segment[1:]}
    gap = segment + _record(ROWS, version + 2, b"rows")
    yield "log.damaged-a-gap", "log.damaged", {name: gap, "fresh/end": _mark(version, len(gap))}


def _segment(first: int) -> bytes:
    return encode_segment_head(SegmentHead(_IDENTITY, first))


def _record(kind: int, number: int, payload: bytes) -> bytes:
    return b"".join(map(bytes, encode_record(kind, number, payload)))


def _mark(first: int, num_bytes: int) -> bytes:
    return encode_mark(SegmentHead(_IDENTITY, first), num_bytes)


def _commit_name(version: int) -> str:
    return f"rows/_delta_log/{version:020d}.json"


def _commit(version: int, first: int, through: int, snapshot: str = "") -> bytes:
    """A commit of the table, with only the parts that the store itself writes."""
    own = json.dumps(
        {
            "version": version,
            "first": first,
            "through": through,
            "is_compaction": bool(snapshot),
            "snapshot": snapshot,
            "files": [],
            "removed": [],
            "tombstones": {},
            "schema": "",
        },
        separators=(",", ":"),
    )
    info = {
        "operation": "WRITE",
        "feastSketchStore": own,
        "feastSketchStoreChecksum": checksum_of(own.encode()),
    }
    protocol = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
    lines = [{"commitInfo": info}, protocol]
    return b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)
