"""Files that tasks write and a job commits: all that count, or none."""

import pyarrow as pa
import pytest

from feast_sketch_store.errors import RowError, StorageError
from feast_sketch_store.row_log import START, RowLog
from feast_sketch_store.row_log.data_file import REPORT, DataFile
from feast_sketch_store.storage.local import LocalStorage
from tests.helpers.log_rows import names_of, rows
from tests.storage.memory import Files, MemoryStorage, ObjectsInMemory


@pytest.fixture(params=["local", "memory"])
def log(request, tmp_path):
    return RowLog(LocalStorage(tmp_path / "view") if request.param == "local" else MemoryStorage())


def committed(log, files):
    return log.append_all([file.file for file in files], files[0].schema)


def test_staged_rows_count_once_they_are_committed(log):
    files = list(log.stage([rows("a", "b"), rows("c")], "job-1-"))
    assert len(files) == 1
    assert files[0].file.num_rows == 3
    assert (names_of(log.read()), log.is_at_end(START)) == ([], True)
    assert committed(log, files).number == 0
    assert names_of(log.read()) == ["a", "b", "c"]
    log.absorb()
    assert names_of(log.read()) == ["a", "b", "c"]


def test_a_report_tells_all_of_a_file(log):
    (file,) = log.stage([rows("a")], "job-1-")
    (entry,) = pa.Table.from_pylist([file.to_report()], REPORT).to_pylist()
    assert log.staged(entry) == file
    file.check()


@pytest.mark.parametrize("kind", [MemoryStorage, ObjectsInMemory])
def test_a_commit_looks_once_whether_a_file_is_there(monkeypatch, kind):
    log = RowLog(kind(Files()))
    log.append(rows("begun"))
    files = [next(log.stage([rows(f"{n}")], "job-1-")) for n in range(5)]
    looked = []
    monkeypatch.setattr(DataFile, "size_bytes", property(lambda file: looked.append(file.name) or 1))
    committed(log, files)
    assert looked == [file.file.name for file in files]


@pytest.mark.parametrize(("limit", "value"), [("data_file._FILE_ROWS", 2), ("log._STAGED_BYTES", 1)])
def test_a_file_ends_when_it_is_large(log, monkeypatch, limit, value):
    monkeypatch.setattr(f"feast_sketch_store.row_log.{limit}", value)
    tables = [rows(f"{n}a", f"{n}b") for n in range(5)]
    files = list(log.stage(iter(tables), "job-1-"))
    assert [file.file.num_rows for file in files] == [2] * 5
    committed(log, files)
    assert names_of(log.read()) == [f"{n}{letter}" for n in range(5) for letter in "ab"]


def test_tables_of_other_columns_are_in_another_file(log):
    more = rows("b", size=pa.array([1], pa.int64()))
    files = list(log.stage([rows("a"), more, rows("c")], "job-1-"))
    assert [file.schema.names for file in files] == [["name"], ["name", "size"], ["name"]]


def test_what_no_commit_names_is_discarded_by_its_label(log):
    kept = list(log.stage([rows("a")], "job-1-"))
    twin = list(log.stage([rows("a")], "job-1-"))
    other = list(log.stage([rows("b")], "job-2-"))
    committed(log, kept)
    assert log.discard_staged("job-1-") == [twin[0].file.name]
    other[0].check()
    log.absorb()
    assert log.discard_staged("job-1-") == []
    listed = log.absorb()
    assert log.compact(listed.batches(), listed)
    assert log.discard_staged("job-1-") == [], "others may still read what was just replaced"
    assert names_of(listed) == names_of(log.read()) == ["a"]


@pytest.mark.parametrize("is_cut", [False, True], ids=["gone", "cut"])
def test_a_file_that_is_not_there_as_it_was_written_is_told(log, is_cut):
    (file,) = log.stage([rows("a")], "job-1-")
    storage = file.file.storage
    content = storage.read(file.file.name)
    storage.delete([file.file.name])
    if is_cut:
        with storage.create(file.file.name) as out:
            out.write(content[:-1])
    with pytest.raises(StorageError, match="nothing was committed"):
        file.check()


def test_files_with_a_column_of_another_type_are_refused(log):
    log.append(rows("a", size=pa.array([1], pa.int64())))
    files = list(log.stage([rows("b", size=pa.array(["x"], pa.large_string()))], "job-1-"))
    with pytest.raises(RowError, match="'size'"):
        committed(log, files)
    assert names_of(log.read()) == ["a"]
