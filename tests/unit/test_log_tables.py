"""Rows of commits as tables: each stream reads back, whatever schema those before it had."""

import pyarrow as pa
import pytest

from feast_sketch_store.row_log import tables as module
from feast_sketch_store.row_log.fresh import encode_payload
from feast_sketch_store.row_log.tables import TableReader
from feast_sketch_store.rows.large_types import with_large_types
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
MANY = pa.table({"a": pa.array(range(20_000))})  # compressed


def test_streams_of_any_schema_follow_each_other():
    reader = TableReader()
    order = [
        ROWS,
        ROWS,
        OTHER,
        ROWS,
        MANY,
        MANY,
        SMALL_TYPES,
        SMALL_TYPES,
        ROWS.slice(0, 0),
        ROWS,
        OTHER,
        OTHER,
    ]
    order += [pa.concat_tables([ROWS, ROWS]), ROWS.slice(0, 0), ROWS.slice(1)]
    for rows in order:
        assert reader.read(encode_payload(rows)).equals(with_large_types(rows))


def test_a_schema_is_parsed_once(monkeypatch):
    reader, parsed, open_stream = TableReader(), [], pa.ipc.open_stream
    monkeypatch.setattr(module.pa.ipc, "open_stream", lambda s: (parsed.append(s), open_stream(s))[1])
    for rows in (ROWS, ROWS, ROWS.slice(1), OTHER, OTHER):
        assert reader.read(encode_payload(rows)).equals(rows)
    assert len(parsed) == 2


def test_metadata_of_a_schema_are_those_of_its_own_stream():
    reader = TableReader()
    for rows in (ROWS, ROWS.replace_schema_metadata({"k": "v"}), ROWS):
        assert reader.read(encode_payload(rows)).schema.equals(rows.schema, check_metadata=True)


@for_each("is_first", [True, False])
@for_each("length", [0, 4, 100, -20])
def test_a_cut_stream_is_refused(is_first, length):
    reader, stream = TableReader(), encode_payload(ROWS)
    if not is_first:
        reader.read(stream)
    with pytest.raises((pa.ArrowException, OSError, ValueError)):
        reader.read(stream[:length])
