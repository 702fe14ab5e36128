"""The row log: commits, their order, and absorption into the table."""

import functools
import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from feast_sketch_store.errors import RowError, StorageError, UnsupportedFeatureError
from feast_sketch_store.row_log import START, LogRead, RowLog
from feast_sketch_store.row_log import log as log_module
from feast_sketch_store.row_log.data_file import DataFile
from feast_sketch_store.row_log.table import Table
from feast_sketch_store.row_log.wal import WriteAheadLog
from feast_sketch_store.storage import local
from feast_sketch_store.view.removal import remove_view
from tests.helpers.file_systems import know_files_badly
from tests.helpers.length import by_length
from tests.helpers.log_rows import append_and_absorb, names_of, rows, segment
from tests.helpers.meanwhile import once_after, once_before
from tests.storage.memory import ObjectsInMemory


def delta(storage):
    return DeltaTable(str(storage.path / "rows"))


def test_a_log_that_does_not_exist_is_empty(log):
    read = log.read()
    assert (read, read.position, log.is_at_end(START)) == (LogRead(), START, True)
    assert not read
    assert not log.absorb()


@pytest.mark.slow
@pytest.mark.parametrize("absorbed_after", [None, 0, 5, 11])
def test_rows_come_back_in_commit_order_from_any_position_on(log, absorbed_after):
    positions = []
    for n in range(12):
        assert log.append(rows(f"row {n}")).number == n
        positions.append(log.read().position)
        if n == absorbed_after:
            log.absorb()
    for known, position in enumerate(positions):
        read = log.read(position)
        assert read.position.number == 11
        assert not read.starts_over
        expected = [f"row {n}" for n in range(known + 1, 12)]
        if known < (absorbed_after or 0):  # what is read from the table may repeat what is known
            assert names_of(read)[-len(expected) :] == expected
            assert set(names_of(read)) <= {f"row {n}" for n in range(12)}
        else:
            assert names_of(read) == expected
        assert names_of(log.read(read.position)) == []
        assert log.is_at_end(read.position)
    assert names_of(log.read()) == [f"row {n}" for n in range(12)]


def test_every_type_of_a_column_is_read_by_delta_readers(log, storage):
    columns = {
        "bool": pa.array([True, None]),
        "int32": pa.array([1, None], pa.int32()),
        "int64": pa.array([1, None], pa.int64()),
        "float": pa.array([1.5, None], pa.float32()),
        "double": pa.array([1.5, None], pa.float64()),
        "string": pa.array(["a", None]),
        "bytes": pa.array([b"a", None], pa.binary()),
        "large": pa.array(["a", None], pa.large_string()),
        "moment": pa.array([1_000_000, None], pa.timestamp("us", tz="UTC")),
        "list": pa.array([["a", None], None], pa.list_(pa.string())),
    }
    log.append(pa.table(columns))
    log.absorb()
    found = delta(storage).to_pyarrow_table()
    for name, column in columns.items():
        assert found[name].to_pylist() == column.to_pylist(), name
    assert log.read().schema().field("list").type == pa.large_list(pa.large_string())


@pytest.mark.parametrize("name", ["a\u2028b", "a\u0085b", "a b", "%20", "a\nb", '"', "\\", "ü", "a/b"])
def test_any_name_of_a_column_survives(log, storage, name):
    for n in range(3):
        log.append(pa.table({name: pa.array([n], pa.int64())}))
        log.absorb()
    assert RowLog(storage).read().table()[name].to_pylist() == [0, 1, 2]


def test_a_new_column_is_null_in_older_rows(log):
    log.append(rows("a"))
    log.append(rows("b", size=pa.array([7], pa.int64())))
    log.append(rows("c"))
    expected = [{"name": "a", "size": None}, {"name": "b", "size": 7}, {"name": "c", "size": None}]
    assert log.read().table().to_pylist() == expected
    log.absorb()
    assert log.read().table().to_pylist() == expected


@pytest.mark.parametrize("is_absorbed", [False, True])
@pytest.mark.parametrize("is_same_object", [False, True])
def test_a_column_cannot_change_its_type(log, storage, is_absorbed, is_same_object):
    log.append(rows("a", size=pa.array([7], pa.int64())))
    if is_absorbed:
        log.absorb()
    other = log if is_same_object else RowLog(storage)
    with pytest.raises(RowError, match=r"'size' is .*long.* now .*string"):
        other.append(rows("b", size=pa.array(["7"])))
    assert names_of(log.read()) == ["a"]


def test_columns_are_those_of_a_log_that_others_began_meanwhile(log, storage):
    number, text = pa.array([7], pa.int64()), pa.array(["7"])
    log.append(rows("a", size=number))
    storage.delete_all()
    RowLog(storage).append(rows("b", size=text))
    with pytest.raises(RowError, match=r"'size' is .*string.* now .*long"):
        log.append(rows("c", size=number))
    log.append(rows("d", size=text))
    assert names_of(log.read()) == ["b", "d"]


def test_columns_that_differ_in_case_alone_are_refused(log):
    log.append(rows("a"))
    with pytest.raises(UnsupportedFeatureError, match="'name', and 'Name' differs from it only by case"):
        log.append(pa.table({"Name": ["b"]}))
    assert names_of(log.read()) == ["a"]


def test_a_large_batch_is_a_data_file_that_the_table_adopts(log, storage, monkeypatch):
    monkeypatch.setattr(log_module, "_MAX_WAL_ROWS", 2)
    log.append(rows("a"))
    log.append(rows("b", "c", "d"))
    log.append(rows("e"))
    (file,) = storage.list("rows/")
    assert names_of(log.read()) == ["a", "b", "c", "d", "e"]
    log.absorb()
    assert file in storage.list("rows/")
    assert names_of(RowLog(storage).read()) == ["a", "b", "c", "d", "e"]
    assert sorted(delta(storage).to_pyarrow_table()["name"].to_pylist()) == ["a", "b", "c", "d", "e"]


def test_a_refused_large_batch_leaves_nothing(log, storage, monkeypatch):
    log.append(rows("a", size=pa.array([7], pa.int64())))
    monkeypatch.setattr(log_module, "_MAX_WAL_ROWS", 2)
    with pytest.raises(RowError):
        log.append(rows("b", "c", "d", size=pa.array(["1", "2", "3"])))
    assert storage.list("rows/") == []
    assert names_of(log.read()) == ["a"]


def test_a_batch_whose_file_a_vacuum_took_for_left_over_is_refused(storage, log, monkeypatch):
    """Its writer was stopped between the file and the commit, or the machine slept and the clock went on."""
    log.append(rows("a"))
    monkeypatch.setattr(log_module, "_MAX_WAL_ROWS", 1)
    with (
        once_after(DataFile, "write", lambda: RowLog(storage).vacuum(0.0)),
        pytest.raises(StorageError, match="was removed before its rows counted"),
    ):
        log.append(rows("b", "c"))
    log.append(rows("d"))
    assert names_of(RowLog(storage).read()) == ["a", "d"]


def test_a_file_that_others_absorb_and_remove_meanwhile_is_not_missed(monkeypatch):
    """In a bucket, where a slow writer keeps nobody out."""
    storage = ObjectsInMemory()
    other = RowLog(storage)
    with monkeypatch.context() as large:
        large.setattr(log_module, "_MAX_WAL_ROWS", 1)
        other.append(rows("a", "b"))
    (file,) = storage.list("rows/")

    def meanwhile():
        assert other.compact([rows("a", "b")], other.absorb())
        storage.delete([f"rows/{file}"])  # as a vacuum does in the end

    with once_before(DataFile, "schema", meanwhile):
        RowLog(storage).append(rows("c"))
    assert names_of(RowLog(storage).read()) == ["a", "b", "c"]


def test_threads_may_create_and_append_at_once(storage):
    """Every thread has a log object of its own, as processes would."""

    def append(number):
        for part in range(5):
            RowLog(storage).append(rows(f"row {number} {part}"))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(append, range(8)))
    expected = sorted(f"row {n} {part}" for n in range(8) for part in range(5))
    assert sorted(names_of(RowLog(storage).read())) == expected


@pytest.mark.has_long_form
def test_appends_and_absorptions_side_by_side_lose_nothing(storage):
    names = [f"row {n}" for n in range(by_length(60, 200))]

    def append():
        log = RowLog(storage)
        for name in names:
            log.append(rows(name))

    def follow():
        log, position, seen = RowLog(storage), START, []
        is_last = False
        while not is_last:
            is_last = appending.done()
            read = log.read(position)
            if read.files:  # a stretch of the log that may begin with what is known
                seen = [name for name in seen if name not in set(names_of(read))]
            seen += names_of(read)
            position = read.position
        assert seen == names

    absorber = RowLog(storage)
    with ThreadPoolExecutor(3) as threads:
        appending = threads.submit(append)
        following = [threads.submit(follow) for _ in range(2)]
        while not appending.done():
            absorber.absorb()
        for each in (appending, *following):
            each.result()
    assert names_of(RowLog(storage).read()) == names


def test_a_commit_that_is_absorbed_as_the_log_is_read_is_read_once(storage):
    writer, reader = RowLog(storage), RowLog(storage)
    writer.append(rows("row 0"))
    writer._wal.drop_before = lambda number: None  # it is killed before, or slow
    with once_before(reader._table, "state", lambda: append_and_absorb(writer, "row 1")):
        read = reader.read()
    assert names_of(read) == ["row 0", "row 1"]
    for name in ("row 2", "row 3"):
        writer.append(rows(name))
        read = reader.read(read.position)
        assert names_of(read) == [name]


def test_a_compaction_replaces_what_was_before(log, storage):
    known = []
    for n in range(4):
        log.append(rows(f"row {n}"))
        known.append(log.read().position)
    through = log.absorb()
    log.append(rows("later"))
    assert log.compact([rows("row 3")], through)
    assert names_of(RowLog(storage).read()) == ["row 3", "later"]
    # Somebody who knows less than the compaction holds has to start over.
    slow = RowLog(storage).read(known[1])
    assert slow.starts_over
    assert names_of(slow) == ["row 3", "later"]
    quick = RowLog(storage).read(known[3])
    assert not quick.starts_over
    assert names_of(quick) == ["later"]
    log.prune()
    assert names_of(RowLog(storage).read()) == ["row 3", "later"]
    assert delta(storage).to_pyarrow_table()["name"].to_pylist() == ["row 3"]


def test_commits_before_a_compaction_are_checkpointed_and_deleted(log, storage):
    for n in range(30):
        log.append(rows(f"row {n}"))
        through = log.absorb()
    assert len([n for n in storage.list("rows/_delta_log/") if n.endswith(".json")]) == 30
    log.compact([rows("all")], through)
    log.prune()
    names = storage.list("rows/_delta_log/")
    assert names == [f"{30:020d}.checkpoint.parquet", f"{30:020d}.json", "_last_checkpoint"]
    log.append(rows("more"))
    log.absorb()
    assert sorted(delta(storage).to_pyarrow_table()["name"].to_pylist()) == ["all", "more"]
    assert names_of(RowLog(storage).read()) == ["all", "more"]
    assert len(storage.list("rows/")) == 32
    assert len(log.vacuum(86_400)) == 30
    assert len(storage.list("rows/")) == 2
    assert sorted(delta(storage).to_pyarrow_table()["name"].to_pylist()) == ["all", "more"]


def test_replaced_files_are_forgotten_by_no_compaction(log, storage):
    for n in range(3):
        log.append(rows(f"row {n}"))
        assert log.compact([rows(f"all {n}")], log.absorb())
        log.prune()
    assert len(storage.list("rows/")) == 6
    assert len(log.vacuum(86_400)) == 5
    assert names_of(log.read()) == ["all 2"]


@pytest.mark.slow
def test_replaced_files_stay_for_slow_readers_and_do_not_pile_up(log, storage, monkeypatch):
    seconds = 1_700_000_000
    monkeypatch.setattr("feast_sketch_store.row_log.table.time.time_ns", lambda: seconds * 10**9)

    def compact():
        log.append(rows("row"))
        assert log.compact([rows("all")], log.absorb())
        log.prune()
        return len(storage.list("rows/")) - 1  # but for the one that counts

    assert [compact() for _ in range(20)][-1] == 39, "readers of these may be at work"
    for _ in range(20):
        seconds += 11
        assert compact() <= 41
    assert compact() == 6, "two compactions at the last moment, and one at the moment before"
    seconds += 3_000
    assert compact() == 6
    seconds += 3_601
    assert compact() == 2
    assert names_of(log.read()) == ["all"]


def test_rows_that_come_from_elsewhere_make_readers_start_over(log, storage):
    log.append(rows("old"))
    position = log.read().position
    through = log.absorb()
    log.append(rows("meanwhile"))
    log.announce_replacement()
    announced = log.read(position, "0001")
    assert (names_of(announced), announced.starts_over) == (["meanwhile"], False)
    assert log.is_at_end(announced.position)
    assert log.compact([rows("new")], through, snapshot="0002")
    assert not log.is_at_end(announced.position)
    assert log.read(announced.position, "0001").starts_over
    read = log.read(position, "0001")
    assert read.starts_over
    assert names_of(read) == ["new", "meanwhile"]
    assert names_of(log.read(position, "0002")) == ["meanwhile"]
    log.append(rows("later"))
    assert names_of(log.read(read.position, "0001")) == ["later"]


@pytest.mark.parametrize("are_known_badly", [False, True])
def test_the_identity_tells_a_log_from_its_successor(log, storage, monkeypatch, are_known_badly):
    if are_known_badly:
        know_files_badly(monkeypatch)
    log.append(rows("a"))
    first = log.read().position
    log.append(rows("b"))
    assert log.read(first).position.identity == first.identity
    storage.delete_all()
    log.append(rows("c"))
    read = log.read(first)
    assert read.starts_over
    assert read.position.identity != first.identity
    assert names_of(read) == ["c"]


@pytest.mark.parametrize("follows", [False, True])
@pytest.mark.parametrize("call", ["read", "absorb"])
def test_a_log_that_begins_between_two_looks_is_not_damaged(log, storage, call, follows):
    """Be it the first one, or one that follows a log that was dropped."""
    if follows:
        log.append(rows("of the log before"))

    def another_process_comes_first():
        remove_view(storage)
        append_and_absorb(RowLog(storage), "theirs")

    with once_before(Table, "state", another_process_comes_first):
        assert names_of(getattr(log, call)()) == ["theirs"]


def test_a_view_is_dropped_between_appends_only(storage, log):
    """Who appends knows where the log ends: within a drop it would go on in the folder of the next log."""
    log.append(rows("a"))
    drop = threading.Thread(target=remove_view, args=(storage,))

    def try_to_drop():
        drop.start()
        drop.join(0.2)
        assert drop.is_alive()

    with once_before(RowLog, "_check_begun", try_to_drop):
        log.append(rows("b"))
    drop.join()
    assert not storage.path.exists()


def test_writers_wait_for_one_record_of_an_absorption(storage, log, monkeypatch):
    """The one that closes the segment. The next one is begun later, by a writer if it comes first."""
    log.append(rows("a"))
    synced = []

    def sync(what, call):
        synced.append(what)
        call(what)

    for name in ("fdatasync", "fsync_path"):
        monkeypatch.setattr(local, name, functools.partial(sync, call=getattr(local, name)))

    def append():
        assert len(synced) == 1
        RowLog(storage).append(rows("b"))

    with once_before(RowLog, "_wal_behind", append):
        log.absorb()
    assert names_of(log.read()) == ["a", "b"]
    assert segment(storage).name == f"{1:020d}.log"


def test_a_log_that_vanishes_while_it_is_read_is_read_anew(storage, log):
    log.append(rows("a"))
    with once_after(WriteAheadLog, "_open", storage.delete_all):
        assert log.read() == LogRead()


def test_threads_that_append_first_know_the_columns_of_others(storage):
    RowLog(storage).append(rows("a"))
    log = RowLog(storage)
    log.read()
    RowLog(storage).append(rows("b", x=pa.array([1])))
    other = threading.Thread(target=log.append, args=(rows("c"),))
    with (
        once_after(WriteAheadLog, "adopt", lambda: (other.start(), other.join(0.2))),
        pytest.raises(RowError, match="'x' is long in the row log, now string"),
    ):
        log.append(rows("d", x=pa.array(["text"])))
    other.join()
    assert names_of(RowLog(storage).read()) == ["a", "b", "c"]


@pytest.mark.parametrize("is_other", [False, True])
@pytest.mark.parametrize("does", ["drops", "absorbs"])
def test_what_happens_between_the_two_looks_of_a_read_is_no_damage(storage, log, is_other, does):
    """A read looks at the WAL, then at the table: what was in the one may be in the other, or gone."""
    known, names = START, ["a"]
    log.append(rows("a"))
    if is_other:
        known, names = log.read().position, []
        remove_view(storage)
    other = RowLog(storage)
    other.append(rows("b"))
    if not is_other:
        other.absorb()
    other.append(rows("c"))
    at_the_second = once_before if does == "drops" and not is_other else once_after
    with at_the_second(Table, "state", (lambda: remove_view(storage)) if does == "drops" else other.absorb):
        read = log.read(known)
    assert names_of(read) == ([] if does == "drops" else [*names, "b", "c"])
    assert read.starts_over is is_other
