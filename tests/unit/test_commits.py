"""Rows of commits as tables: each stream reads back, whatever schema those before it had."""

import pyarrow as pa
import pytest

from feast_sketch_store.row_log import records as module
from feast_sketch_store.row_log.records import decode_tables, encode_table
from feast_sketch_store.rows.columns import with_large_types
from tests.helpers.cases import for_each

ROWS = pa.table(
    {
        "a": pa.array([1, 2, 3]),
        "b": pa.array([[1], None, [2, 3]], pa.large_list(pa.int64())),
        "c": pa.array(["x", "y", None], pa.large_string()),
    }
)
OTHER = pa.table({"a": pa.array([1.5, 2.5])})
SMALL_TYPES = pa.table({"c": pa.array(["x"], pa.string())})
MANY = pa.table({"a": pa.array(range(20_000))})


def test_streams_of_any_schema_follow_each_other():
    order = [ROWS, ROWS, OTHER, ROWS, MANY, MANY, SMALL_TYPES, SMALL_TYPES, ROWS.slice(1), ROWS]
    order += [OTHER, OTHER, pa.concat_tables([ROWS, ROWS]), ROWS.slice(1)]
    decoded = decode_tables([encode_table(rows, "zstd" if rows is MANY else None) for rows in order])
    assert len(decoded) == len(order)
    for rows, found in zip(order, decoded, strict=True):
        assert found.equals(with_large_types(rows))


def test_streams_of_one_schema_are_read_at_once(monkeypatch):
    parsed, open_stream = [], pa.ipc.open_stream
    monkeypatch.setattr(module.pa.ipc, "open_stream", lambda s: (parsed.append(s), open_stream(s))[1])
    assert len(decode_tables([encode_table(rows) for rows in (ROWS, ROWS, ROWS.slice(1), OTHER, OTHER)])) == 5
    assert len(parsed) == 2


def test_metadata_of_a_schema_are_those_of_its_own_stream():
    order = (ROWS, ROWS.replace_schema_metadata({"k": "v"}), ROWS)
    for rows, found in zip(order, decode_tables([*map(encode_table, order)]), strict=True):
        assert found.schema.equals(rows.schema, check_metadata=True)


@for_each("is_first", [True, False])
@for_each("length", [0, 4, 100, -20])
def test_a_cut_stream_is_refused(is_first, length):
    stream = encode_table(ROWS)
    with pytest.raises((pa.ArrowException, OSError, ValueError)):
        decode_tables([stream[:length]] if is_first else [stream, stream[:length]])


def test_a_stream_has_one_batch():
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, ROWS.schema) as writer:
        writer.write_table(ROWS, max_chunksize=2)
    with pytest.raises(ValueError, match="1 commits have 2 batches"):
        decode_tables([memoryview(stream.getvalue())])
