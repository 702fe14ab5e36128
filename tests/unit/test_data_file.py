"""Data files of the row log: what is written is read, in pieces of bounded size."""

import subprocess
import sys

import mmh3
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feast_sketch_store.errors import DamagedFileError, StorageError
from feast_sketch_store.row_log.data_file import DataFile
from feast_sketch_store.rows.limits import MAX_ELEMENTS
from feast_sketch_store.storage.local import LocalStorage
from tests.helpers.length import by_length

MANY = 1 << 17


def lists(*lengths):
    """A row per length; 0 is an empty list, None a null."""
    return pa.table({"row": range(len(lengths)), "items": [None if n is None else [7] * n for n in lengths]})


@pytest.mark.parametrize(
    ("table", "groups"),
    [
        (lists(), 0),
        (lists(1, None, 0), 1),
        (lists(MANY, 1), 2),
        (lists(MANY - 1, 1, 1), 2),
        (lists(1, 3 * MANY, 1), 3),
        (lists(*[MANY // 2] * 5), 3),
        (pa.table({"row": range(150_000), "items": [None] * 150_000}), 3),
    ],
    ids=["no row", "short", "full and one", "just full", "one long row", "halves", "many rows"],
)
def test_rows_come_back_in_groups_of_bounded_size(tmp_path, table, groups):
    table = table.cast(pa.schema([("row", pa.int64()), ("items", pa.large_list(pa.int64()))]))
    file = DataFile.write(LocalStorage(tmp_path), table.schema, [table])
    batches = list(file.batches())
    assert len(batches) == groups
    for batch in batches:
        assert len(batch) == 1 or batch["items"].combine_chunks().flatten().to_numpy().size <= MANY
    assert pa.concat_tables([table.slice(0, 0), *batches]).equals(table)
    assert (file.num_rows, file.where) == (len(table), str(tmp_path / file.name))


def test_small_batches_share_row_groups(tmp_path):
    table = lists(*[100] * 6_000).cast(pa.schema([("row", pa.int64()), ("items", pa.large_list(pa.int64()))]))
    file = DataFile.write(
        LocalStorage(tmp_path), table.schema, (table.slice(row, 1) for row in range(len(table)))
    )
    batches = list(file.batches())
    assert pa.concat_tables(batches).equals(table)
    # 600,000 elements, 2^17 to a group at most; a group may be cut short where 8 MB were put together.
    assert len(batches) == 5
    assert file.num_rows == len(table)


def test_columns_that_the_file_lacks_are_left_out(tmp_path):
    table = lists(1, 2)
    file = DataFile.write(LocalStorage(tmp_path), table.schema, [table])
    assert [batch.column_names for batch in file.batches(["row", "nothing"])] == [["row"]]


def test_columns_that_a_batch_lacks_are_null(tmp_path):
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    file = DataFile.write(LocalStorage(tmp_path), schema, [pa.table({"a": [1]}), pa.table({"b": ["x"]})])
    rows = pa.concat_tables(file.batches()).to_pylist()
    assert rows == [{"a": 1, "b": None}, {"a": None, "b": "x"}]


def test_columns_that_the_table_lacks_are_refused_and_nothing_is_left(tmp_path):
    with pytest.raises(ValueError, match="'b'"):
        DataFile.write(
            LocalStorage(tmp_path), pa.schema([("a", pa.int64())]), [pa.table({"a": [1], "b": [2]})]
        )
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_written_without_being_read(tmp_path):
    """A read could fail when the file is there already, and would be a download from a bucket."""

    class WriteOnly(LocalStorage):
        def map(self, name, known=None):
            raise StorageError(f"{name}: cannot be read")

    written = DataFile.write(WriteOnly(tmp_path), pa.schema([("a", pa.int64())]), [pa.table({"a": [1, 2]})])
    file = DataFile(LocalStorage(tmp_path), written.name, written.num_rows, written.checksum)
    assert pa.concat_tables(file.batches())["a"].to_pylist() == [1, 2]


def test_every_flipped_byte_is_found(tmp_path):
    table = lists(1, 2, 3)
    file = DataFile.write(LocalStorage(tmp_path), table.schema, [table])
    path = tmp_path / file.name
    content = path.read_bytes()
    for offset in range(len(content)):
        damaged = bytearray(content)
        damaged[offset] ^= 0x10
        path.write_bytes(damaged)
        with pytest.raises(DamagedFileError, match=file.name):
            list(file.batches())
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(DamagedFileError, match=file.name):
            list(file.batches())


def bomb(path, num_rows, values_per_row):
    """A small file whose row group unpacks to an eighth of a gigabyte of zeros or more."""
    items = pa.ListArray.from_arrays(
        np.arange(num_rows + 1, dtype=np.int32) * values_per_row,
        np.zeros(num_rows * values_per_row, np.int64),
    )
    table = pa.table({"row": range(num_rows), "items": items})
    assert table.nbytes > 128 << 20
    options = {"compression": "zstd", "write_statistics": False, "use_dictionary": False}
    pq.write_table(table, path, row_group_size=num_rows, **options)


READ = """
import resource, sys
from pathlib import Path
from feast_sketch_store.errors import DamagedFileError, StorageError
from feast_sketch_store.row_log import data_file
from feast_sketch_store.row_log.data_file import DataFile
from feast_sketch_store.storage.local import LocalStorage
path, num_rows, checksum, data_file.MAX_ELEMENTS = *sys.argv[1:4], int(sys.argv[4])
file = DataFile(LocalStorage(Path(path).parent), Path(path).name, int(num_rows), checksum)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    for batch in file.batches():
        pass
    print("read")
except DamagedFileError as error:
    print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


# Of a row alone. The short form tells its reader a smaller limit: a bomb takes seconds to make.
LIMIT = by_length(MAX_ELEMENTS >> 2, MAX_ELEMENTS)


@pytest.mark.slow
@pytest.mark.has_long_form
@pytest.mark.parametrize(
    ("num_rows", "values_per_row"),
    [(1, LIMIT + 1), (by_length(600, 1000), 30_000)],
    ids=["one row", "many rows"],
)
def test_a_bomb_is_refused_before_it_goes_off(tmp_path, num_rows, values_per_row):
    path = tmp_path / "bomb.parquet"
    bomb(path, num_rows, values_per_row)
    assert path.stat().st_size < 300_000
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            READ,
            path,
            str(num_rows),
            mmh3.mmh3_x64_128_digest(path.read_bytes()).hex(),
            str(LIMIT),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    message, megabytes = done.stdout.splitlines()
    assert "bomb.parquet: a data file of the row log is damaged: a row group claims" in message
    assert int(megabytes) < 50
