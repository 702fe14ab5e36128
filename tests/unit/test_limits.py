"""Limits of rows: what is written can be read, and what cannot be read is not written."""

from unittest.mock import Mock

import mmh3
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from feast.protos.feast.types.Value_pb2 import Int64List, StringList, Value

from feast_sketch_store.errors import DamagedFileError, RowError
from feast_sketch_store.row_log.data_file import DataFile
from feast_sketch_store.rows import arrow_rows, limits
from feast_sketch_store.rows import codecs as codecs_module
from feast_sketch_store.rows.arrow_rows import from_columns
from feast_sketch_store.rows.codecs import EXACT, FeatureCodec
from feast_sketch_store.rows.columns import large_schema, with_large_types
from feast_sketch_store.rows.encoding import deletions, encode, newest_rows, row_keys
from feast_sketch_store.rows.limits import FIRST_MOMENT, LAST_MOMENT
from feast_sketch_store.rows.newest import NewestRows
from feast_sketch_store.storage.local import LocalStorage
from tests.helpers.cases import for_each
from tests.helpers.keys import user_key

CODECS = [
    FeatureCodec("numbers", "int64_list_val"),
    FeatureCodec("names", "string_list_val", EXACT),
    FeatureCodec("blob", "bytes_val", EXACT),
    FeatureCodec("price", "int64_val"),
    FeatureCodec("flags", "bool_list_val"),
]


def numbers(count):
    return {"numbers": Value(int64_list_val=Int64List(val=range(count)))}


@pytest.fixture
def small_limits(monkeypatch):
    """At most 100 elements and 2,000 bytes in a row; 10 rows, 40 elements and 500 bytes in a group."""
    for name, limit in {
        "MAX_ELEMENTS": 100,
        "MAX_BYTES": 2_000,
        "GROUP_ROWS": 10,
        "GROUP_ELEMENTS": 40,
        "GROUP_BYTES": 500,
    }.items():
        monkeypatch.setattr(limits, name, limit)


class TestRowsThatAreTooLarge:
    """They are refused before anything is written."""

    def test_of_too_many_elements(self, small_limits, make_table):
        assert len(make_table([(1, numbers(100), 0)], CODECS)) == 1
        with pytest.raises(
            RowError, match=r"row 1 .* 101 elements in feature 'numbers'; .* at most 100"
        ) as caught:
            make_table([(1, numbers(100), 0), (2, numbers(101), 0), (3, numbers(500), 0)], CODECS)
        assert "Keep fewer" in str(caught.value)

    def test_null_and_empty_rows_count_as_none(self, small_limits, make_table):
        rows = [(user, numbers(0) if user % 2 else {}, 0) for user in range(300)]
        assert len(make_table(rows, CODECS)) == 300

    @pytest.mark.parametrize(
        "value",
        [
            {"blob": Value(bytes_val=b"x" * 2_000)},
            {"names": Value(string_list_val=StringList(val=["x" * 500] * 4))},
        ],
        ids=["one value", "a list"],
    )
    def test_of_too_many_bytes(self, small_limits, make_table, value):
        (name,) = value
        with pytest.raises(RowError, match=rf"row 2 .*\(2000\) in feature '{name}'; .* at most 2000"):
            make_table([(1, numbers(9), 0), (2, {}, 0), (3, value, 0)], CODECS)

    def test_of_too_many_bytes_in_several_features(self, small_limits, make_table):
        half = {"blob": Value(bytes_val=b"x" * 1_000)}
        both = {**half, "names": Value(string_list_val=StringList(val=["x" * 999]))}
        assert len(make_table([(user, half, 0) for user in range(50)], CODECS)) == 50
        with pytest.raises(RowError, match=r"row 0 .*\(1000\) in feature 'blob'"):
            make_table([(1, both, 0)], CODECS)

    def test_the_limits_as_they_are(self):
        """The largest row fits twice into what protobuf parses and a data page of Parquet holds."""
        assert limits.MAX_ELEMENTS == 2**26
        assert 2 * limits.MAX_BYTES <= 2**31
        offsets = pa.array([0, limits.MAX_ELEMENTS + 1], pa.int64())
        items = pa.LargeListArray.from_arrays(offsets, np.zeros(limits.MAX_ELEMENTS + 1, np.bool_))
        with pytest.raises(RowError, match=r"row 0 .* 67108865 elements in feature 'flags'"):
            limits.check_rows(pa.table({"flags": items}))
        limits.check_rows(pa.table({"flags": items.slice(0, 0)}))


def sizes(table):
    return [len(group) for group in limits.groups(table)]


class TestGroups:
    """Rows are written in groups of bounded size, in their order."""

    def test_none_and_few(self, small_limits):
        assert sizes(pa.table({"a": pa.array([], pa.int64())})) == []
        assert sizes(pa.table({"a": [1]})) == [1]

    def test_by_rows(self, small_limits):
        assert sizes(pa.table({"a": pa.array(range(25), pa.int8())})) == [10, 10, 5]

    def test_by_elements(self, small_limits):
        lengths = [20, 20, 1, 39, 41, 0, None, 40]
        lists = [None if n is None else [1] * n for n in lengths]
        # Rows without elements count as one.
        assert sizes(pa.table({"a": pa.array(lists, pa.large_list(pa.int8()))})) == [2, 2, 1, 2, 1]

    def test_by_bytes(self, small_limits):
        texts = ["x" * n if n is not None else None for n in (250, 250, 1, 499, 501, None, 0, 500)]
        assert sizes(pa.table({"a": pa.array(texts, pa.large_string())})) == [2, 2, 1, 3]
        nested = pa.array([[t, t] if t else [] for t in texts], pa.large_list(pa.large_string()))
        assert sizes(pa.table({"a": nested})) == [1, 1, 1, 1, 1, 2, 1]

    def test_of_slices(self, small_limits):
        table = pa.table(
            {"a": pa.array([["x" * 100] * n for n in range(12)], pa.large_list(pa.large_string()))}
        )
        (whole,) = [g for g in limits.groups(table) if len(g) > 1]
        assert whole.equals(table.slice(0, len(whole)))
        sliced = table.slice(2, 6)
        assert pa.concat_tables(limits.groups(sliced)).equals(sliced)
        assert sizes(sliced) == [2, 1, 1, 1, 1]


# -- no 32-bit offset, so nothing can overflow one --------------------------------------------------

ALL = {
    "numbers": Value(int64_list_val=Int64List(val=[1, 2])),
    "names": Value(string_list_val=StringList(val=["a"])),
    "blob": Value(bytes_val=b"x"),
}
EVERY_FIELD = [FeatureCodec(field, field) for field in codecs_module._VALUE_FIELDS]


def narrow_types(schema):
    """The fields whose offsets have 32 bits, nested ones included."""
    found, fields = [], list(schema)
    while fields:
        field = fields.pop()
        kind = field.type
        if pa.types.is_list(kind) or pa.types.is_string(kind) or pa.types.is_binary(kind):
            found.append(field.name)
        fields += [kind.field(n) for n in range(kind.num_fields)]
    return found


def test_nothing_that_is_written_or_read_has_offsets_of_32_bits(make_table, at, tmp_path):
    table = make_table([(1, ALL, 0), (2, {"numbers": Value()}, 1)], [*CODECS, *EVERY_FIELD])
    assert narrow_types(table.schema) == []
    gone = deletions([user_key(1)], at(3))
    assert narrow_types(gone.schema) == []
    # As Delta Lake tells the columns of a table.
    narrow = pa.schema(
        [
            pa.field(
                f.name, {pa.large_binary(): pa.binary(), pa.large_string(): pa.string()}.get(f.type, f.type)
            )
            for f in table.schema
        ]
    )
    assert narrow_types(narrow) != []
    for schema in (table.schema, narrow):
        file = DataFile.write(LocalStorage(tmp_path), schema, [table, gone])
        assert narrow_types(file.schema()) == []
        batches = list(file.batches())
        rows = NewestRows(file.batches)
        for batch in [*batches, newest_rows(pa.concat_tables(batches))[0], *(b for _, b in rows.batches())]:
            assert narrow_types(batch.schema) == []


def test_files_with_narrow_types_are_read_with_large_ones(tmp_path):
    table = pa.table(
        {
            "a": pa.array([["x"], None, []], pa.list_(pa.string())),
            "b": pa.array([b"x", b"", None], pa.binary()),
            "c": pa.array([1, 2, 3]),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    checksum = mmh3.mmh3_x64_128_digest((tmp_path / "a.parquet").read_bytes()).hex()
    file = DataFile(LocalStorage(tmp_path), "a.parquet", len(table), checksum)
    (read,) = file.batches()
    assert read.to_pydict() == table.to_pydict()
    assert read.schema == large_schema(table.schema) == file.schema()
    assert with_large_types(read) is read


# -- only the store's own errors --------------------------------------------------------------------


@pytest.mark.parametrize("name", ["numbers", "names", "blob", "price"])
def test_columns_of_another_program_are_damage(make_table, name):
    table = make_table([(1, ALL, 0)], CODECS)
    wrong = pa.array([[1.5]] if name in ("blob", "price") else [7])
    table = table.set_column(table.column_names.index(name), name, wrong)
    with pytest.raises(DamagedFileError, match="row log"):
        encode(table, row_keys(table), CODECS)


def test_keys_of_another_program_are_damage(make_table):
    table = make_table([(1, ALL, 0)], CODECS)
    for name in ("__entity_key", "__event_timestamp", "__deleted"):
        wrong = table.set_column(table.column_names.index(name), name, pa.array([["x"]]))
        with pytest.raises(DamagedFileError, match="row log"):
            row_keys(wrong)


@for_each("column", ["event", "created"])
@for_each("unit", ["s", "ms", "us"])
def test_arrow_rows_with_times_that_no_reader_can_represent_are_refused(column, unit):
    scale = {"s": 1_000_000, "ms": 1_000, "us": 1}[unit]
    for moment in (FIRST_MOMENT, LAST_MOMENT):
        for beyond in (0, scale if moment > 0 else -scale):
            times = pa.array([0, (moment + beyond) // scale]).cast(pa.timestamp(unit, "UTC"))
            given = {"event": pa.array([0, 0]).cast(times.type), "created": pa.array([0, 0]).cast(times.type)}
            table = pa.table({"user_id": [1, 2], **given, column: times})
            arguments = table, [], {"user_id": "int64_val"}, "event", "created"
            if not beyond:
                assert len(from_columns(*arguments)) == 2
                continue
            with pytest.raises(RowError, match=f"row 1 of the batch has in column '{column}' a timestamp"):
                from_columns(*arguments)


def test_a_column_for_which_memory_is_short_is_not_blamed(monkeypatch):
    short = Mock(side_effect=pa.ArrowMemoryError("malloc of size 64 failed"))
    monkeypatch.setattr(arrow_rows, "_conversion", lambda source, codec: short)
    with pytest.raises(MemoryError, match="malloc of size 64"):
        arrow_rows.feature_column(pa.chunked_array([["a"]]), FeatureCodec("name", "string_val"))
