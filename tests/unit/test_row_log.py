"""The row log: commits, their order, and what damage to them looks like."""

import json
import threading

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from feast_sketch_store.errors import DamagedFileError, RowError
from feast_sketch_store.row_log import LogRead, RowLog


def rows(*names, **more):
    return pa.table({"name": pa.array(names, pa.string()), **more})


@pytest.fixture
def log(tmp_path):
    return RowLog(tmp_path / "rows")


def test_a_log_that_does_not_exist_is_empty(log):
    assert (log.version(), log.identity(), log.read(-1)) == (-1, None, LogRead(-1))


def test_rows_come_back_in_commit_order_from_any_version_on(log):
    versions = [log.append(rows(f"row {n}")) for n in range(12)]
    assert versions == sorted(set(versions))
    for known, version in enumerate(versions):
        read = log.read(version)
        names = read.table()["name"].to_pylist() if read.files else []
        assert (read.version, names) == (versions[-1], [f"row {n}" for n in range(known + 1, 12)])
    assert log.version(known=versions[3]) == log.version() == versions[-1]


def test_any_delta_reader_sees_the_rows(log):
    for n in range(3):
        log.append(rows(f"row {n}"))
    assert sorted(DeltaTable(str(log.path)).to_pyarrow_table()["name"].to_pylist()) == [
        "row 0",
        "row 1",
        "row 2",
    ]


def test_a_new_column_is_null_in_older_rows(log):
    log.append(rows("a"))
    log.append(rows("b", size=pa.array([7], pa.int64())))
    log.append(rows("c"))
    assert log.read(-1).table().to_pylist() == [
        {"name": "a", "size": None},
        {"name": "b", "size": 7},
        {"name": "c", "size": None},
    ]


def test_a_column_cannot_change_its_type(log):
    log.append(rows("a", size=pa.array([7], pa.int64())))
    with pytest.raises(RowError, match=r"'size' is .*long.* now .*string"):
        log.append(rows("b", size=pa.array(["7"])))
    assert log.read(-1).table()["name"].to_pylist() == ["a"]


def test_threads_may_create_and_append_at_once(tmp_path):
    """Every thread has a log object of its own, as processes would."""
    failures = []

    def append(number):
        try:
            RowLog(tmp_path / "rows").append(rows(f"row {number}"))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=append, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert sorted(RowLog(tmp_path / "rows").read(-1).table()["name"].to_pylist()) == [
        f"row {n}" for n in range(8)
    ]


def test_files_that_a_later_commit_removed_are_left_out(log):
    """Another Delta client may rewrite the table, for example to delete rows."""
    log.append(rows("a", "b"))
    DeltaTable(str(log.path)).delete("name = 'a'")
    assert log.read(-1).table()["name"].to_pylist() == ["b"]


def test_the_identity_tells_a_table_from_its_successor(log, tmp_path):
    log.append(rows("a"))
    identity = log.identity()
    log.append(rows("b"))
    assert log.identity() == identity
    (tmp_path / "rows").rename(tmp_path / "old")
    log.append(rows("a"))
    assert log.identity() != identity


@pytest.mark.parametrize("damage", ["nothing", "half", "not json", "no add", "not utf-8", "a list"])
def test_a_damaged_commit_is_named(log, damage):
    version = log.append(rows("a"))
    path = log.path / "_delta_log" / f"{version:020d}.json"
    content = path.read_bytes()
    path.write_bytes(
        {
            "nothing": b"",
            "half": content[: len(content) // 2],
            "not json": b"{" * 100,
            "no add": b"\n".join(line for line in content.splitlines() if b'"add"' not in line),
            "not utf-8": b"\xff\xfe",
            "a list": json.dumps([1, 2]).encode(),
        }[damage]
    )
    with pytest.raises(DamagedFileError, match=path.name):
        log.read(-1)


@pytest.mark.parametrize("damage", ["gone", "empty", "half", "junk"])
def test_a_damaged_data_file_is_named(log, damage):
    log.append(rows("a"))
    (path,) = log.path.glob("*.parquet")
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes({"empty": b"", "half": content[: len(content) // 2], "junk": b"x" * 500}[damage])
    with pytest.raises(DamagedFileError, match=path.name):
        log.read(-1).table()
