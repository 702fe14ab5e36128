"""The row log where nothing can be appended to and nobody can be kept out: races, one step at a time."""

import itertools
import math
import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from feast_sketch_store.errors import DamagedFileError, RowError, StorageError
from feast_sketch_store.row_log import START, RowLog, delta_protocol, wal_objects
from feast_sketch_store.row_log import log as log_module
from feast_sketch_store.row_log import table as table_module
from feast_sketch_store.row_log.wal_objects import RECORDS_KEPT_SECONDS, ObjectWriteAheadLog
from feast_sketch_store.storage.base import UncertainWriteError
from tests.helpers.log_rows import append_and_absorb, names_of, rows
from tests.helpers.meanwhile import once_after, once_before
from tests.storage.memory import Files, ObjectsInMemory


class Clock:
    """The storage's time, in seconds, which tests set."""

    def __init__(self):
        self.now = 1_000.0

    def time(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("tests.storage.memory.time", clock)
    return clock


@pytest.fixture
def storage(clock):
    return ObjectsInMemory(Files())


def records(storage):
    return [name for name in storage.list("fresh/") if name != "log"]


def test_a_commit_is_one_object(log, storage):
    assert isinstance(log._wal, ObjectWriteAheadLog)
    for n in range(3):
        assert log.append(rows(f"row {n}")).number == n
        assert len(records(storage)) == n + 1
    assert names_of(log.read()) == names_of(RowLog(storage).read()) == ["row 0", "row 1", "row 2"]


@pytest.mark.parametrize("absorbed_after", [None, 0, 5, 11])
@pytest.mark.parametrize("is_old", [False, True])
def test_rows_come_back_in_commit_order_from_any_position_on(log, storage, clock, absorbed_after, is_old):
    positions = []
    for n in range(12):
        assert log.append(rows(f"row {n}")).number == n
        positions.append(log.read().position)
        if n == absorbed_after:
            clock.now += RECORDS_KEPT_SECONDS * is_old
            log.absorb()
            assert len(records(storage)) == (1 if is_old else n + 1)
    for known, position in enumerate(positions):
        read = log.read(position)
        assert read.position.number == 11
        assert not read.starts_over
        assert names_of(read)[-11 + known :] == [f"row {n}" for n in range(known + 1, 12)][-11 + known :]
        assert log.is_at_end(read.position)
    assert log.is_at_end(positions[-1])
    assert not log.is_at_end(positions[-2])


def test_of_two_writers_of_a_number_one_takes_the_next(storage):
    first, second = RowLog(storage), RowLog(storage)
    first.append(rows("begun"))
    second.append(rows("begun too"))
    with once_before(second._wal, "_put", lambda: first.append(rows("faster"))):
        assert second.append(rows("slower")).number == 3
    assert names_of(RowLog(storage).read()) == ["begun", "begun too", "faster", "slower"]


def test_what_the_other_wrote_is_checked_before_the_next_try(storage):
    first, second = RowLog(storage), RowLog(storage)
    with (
        once_before(second._wal, "_put", lambda: first.append(rows("faster", value=pa.array([1])))),
        pytest.raises(RowError, match="'value' is long in the row log, now string"),
    ):
        second.append(rows("slower", value=pa.array(["one"])))
    assert names_of(RowLog(storage).read()) == ["faster"]


def test_writers_and_absorbers_side_by_side_lose_nothing(storage, clock):
    done, began = threading.Event(), [clock.now] * 4

    def write(writer):
        log, numbers = RowLog(storage), []
        for n in range(30):
            began[writer] = clock.now
            numbers.append(log.append(rows(f"{writer}-{n}")).number)
        began[writer] = math.inf
        return numbers

    def absorb(_):
        log = RowLog(storage)
        while not done.is_set():
            log.absorb()
            # An append is much faster than records are removed, however slow the machine is.
            clock.now = min(clock.now + RECORDS_KEPT_SECONDS / 50, min(began) + RECORDS_KEPT_SECONDS / 4)
        return []

    with ThreadPoolExecutor(8) as pool:
        absorbers = [pool.submit(absorb, None) for _ in range(3)]
        numbers = list(pool.map(write, range(4)))
        done.set()
        for absorber in absorbers:
            absorber.result()
    assert sorted(itertools.chain(*numbers)) == list(range(120))
    wanted = [f"{writer}-{n}" for writer in range(4) for n in range(30)]
    by_number = [name for _, name in sorted(zip(itertools.chain(*numbers), wanted, strict=True))]
    assert names_of(RowLog(storage).read()) == by_number
    RowLog(storage).absorb()
    assert names_of(RowLog(storage).read()) == by_number


def test_of_two_absorbers_one_gives_way(storage):
    log, other = RowLog(storage), RowLog(storage)
    for n in range(3):
        log.append(rows(f"row {n}"))
    with once_before(log._table, "_write", lambda: append_and_absorb(other, "row 3")):
        assert log.absorb().position.number == 3
    assert names_of(RowLog(storage).read()) == [f"row {n}" for n in range(4)]
    assert len([name for name in storage.list("rows/") if name.endswith(".parquet")]) == 1


def test_an_absorber_that_slept_through_compactions_drops_nothing(storage, clock):
    log, other = RowLog(storage), RowLog(storage)
    for n in range(3):
        log.append(rows(f"row {n}"))
    other.absorb()
    log.append(rows("row 3"))

    def meanwhile():
        assert other.compact([rows("row 0 to 3")], other.absorb())
        clock.now += 10 * RECORDS_KEPT_SECONDS
        other.append(rows("row 4"))
        other._table.prune()
        assert f"{1:020d}.json" not in storage.list("rows/_delta_log/"), "its name is free again"

    with once_before(log._table, "_write", meanwhile):
        log.absorb()
    assert names_of(RowLog(storage).read()) == ["row 0 to 3", "row 4"]
    RowLog(storage).absorb()
    assert names_of(RowLog(storage).read()) == ["row 0 to 3", "row 4"]


def test_who_prunes_beside_one_that_compacted_further_leaves_it_to_that_one(storage, monkeypatch):
    log, other = RowLog(storage), RowLog(storage)
    log.append(rows("a"))
    assert log.compact([rows("all")], log.absorb())

    def last_checkpoint(of):
        monkeypatch.undo()
        other.append(rows("b"))
        assert other.compact([rows("all of both")], other.absorb())
        other.prune()
        return -1

    monkeypatch.setattr(delta_protocol, "last_checkpoint", last_checkpoint)
    log.prune()
    assert names_of(RowLog(storage).read()) == ["all of both"]


def test_a_file_that_a_drop_removes_before_its_commit_begins_the_log_is_not_committed(storage, log):
    file = next(log.stage([rows("a")], "job-")).file
    with (
        once_before(ObjectWriteAheadLog, "_begin", storage.delete_all),
        pytest.raises(StorageError, match="was removed before its rows counted"),
    ):
        log.append_all([file], rows("a").schema)
    assert names_of(RowLog(storage).read()) == []


def test_who_knows_an_empty_log_reads_what_was_absorbed_and_erased_since(storage, log):
    log.extend(log.begin(), rows("any").schema)
    known, writer = log.read().position, RowLog(storage)
    assert writer.append(rows("a")).number == 0
    writer.absorb()
    writer.vacuum(0.0)
    assert names_of(log.read(known)) == ["a"]
    with pytest.raises(RowError, match="'name' is string in the row log, now long"):
        log.append(pa.table({"name": [1]}))


def test_a_log_that_others_begin_and_absorb_during_a_first_append_is_not_lost(storage, log):
    with once_after(ObjectWriteAheadLog, "_find_tail", lambda: append_and_absorb(RowLog(storage), "theirs")):
        assert log.append(rows("mine")).number == 1
    assert names_of(RowLog(storage).read()) == ["theirs", "mine"]


@pytest.mark.parametrize("snapshot", ["", f"{3:020d}-2001-01234567"])
def test_a_compaction_does_not_replace_what_came_between(storage, snapshot):
    log, other = RowLog(storage), RowLog(storage)
    for n in range(3):
        log.append(rows(f"row {n}"))
    seen = log.absorb()
    with once_before(log._table, "_write", lambda: append_and_absorb(other, "row 3")):
        assert not log.compact([rows("all")], seen, snapshot)
    assert names_of(RowLog(storage).read()) == [f"row {n}" for n in range(4)]
    assert not log.compact([rows("all")], seen, snapshot)
    assert log.compact([rows("all")], log.absorb(), snapshot)
    assert names_of(RowLog(storage).read()) == ["all"]


def test_a_compaction_by_another_is_not_undone(storage):
    log, other = RowLog(storage), RowLog(storage)
    log.append(rows("old"))
    seen = log.absorb()
    assert other.compact([rows("rebuilt")], other.absorb(), f"{1:020d}-1001-01234567")
    assert not log.compact([rows("old")], seen)
    assert names_of(RowLog(storage).read()) == ["rebuilt"]


def test_a_reader_ahead_of_a_replacement_reads_what_came_after_its_begin(storage):
    log, reader = RowLog(storage), RowLog(storage)
    log.append(rows("old"))
    before = log.absorb()
    log.append(rows("meanwhile"))
    log.announce_replacement()
    position = reader.read().position
    assert log.compact([rows("new")], before, "00000000000000000001-1001")
    read = reader.read(position, "00000000000000000001-0001")
    assert names_of(read) == ["new", "meanwhile"]
    assert read.starts_over


class Meanwhile(ObjectsInMemory):
    """A bucket in which something happens after a number of listings."""

    def then(self, num_listings, happens):
        self.listings = iter([*[lambda: None] * num_listings, happens])
        return self

    def within(self, folder):
        part = super().within(folder)
        part.listings = self.listings
        return part

    def list(self, folder="", after=""):
        next(self.listings, lambda: None)()
        return super().list(folder, after)


@pytest.mark.parametrize("num_listings", range(12))
def test_an_absorber_finds_the_log_whose_records_another_drops(storage, clock, num_listings):
    log = RowLog(storage)
    for n in range(4):
        log.append(rows(f"row {n}"))
        if n == 1:
            clock.now += RECORDS_KEPT_SECONDS
            log.absorb()
    clock.now += RECORDS_KEPT_SECONDS
    slow = RowLog(Meanwhile(storage.files).then(num_listings, lambda: RowLog(storage).absorb()))
    read = slow.absorb()
    assert names_of(read) == [f"row {n}" for n in range(4)]
    assert read.position.identity is not None


def test_records_stay_as_long_as_a_writer_may_be_late(log, storage, clock):
    for n in range(4):
        log.append(rows(f"row {n}"))
        clock.now += 100
    log.absorb()
    assert len(records(storage)) == 4
    clock.now = 1_100 + RECORDS_KEPT_SECONDS - 1
    log.absorb()
    assert len(records(storage)) == 4
    clock.now += 1  # record 1 is old enough, so the name of record 0 is free to go
    log.absorb()
    assert len(records(storage)) == 3
    clock.now += 10_000
    log.absorb()
    assert len(records(storage)) == 1
    assert log.append(rows("row 4")).number == 4
    assert names_of(RowLog(storage).read()) == [f"row {n}" for n in range(5)]


def test_a_writer_that_was_stopped_does_not_claim_to_have_written(storage, clock, monkeypatch):
    log, others = RowLog(storage), RowLog(storage)
    log.append(rows("row 0"))
    now = [0.0]
    monkeypatch.setattr(wal_objects, "_boot_time", lambda: now[0])

    def meanwhile():
        for n in range(1, 4):
            others.append(rows(f"row {n}"))
        others.absorb()
        clock.now += RECORDS_KEPT_SECONDS
        others.absorb()
        now[0] += RECORDS_KEPT_SECONDS

    with once_before(log._wal, "_put", meanwhile), pytest.raises(UncertainWriteError, match="may not count"):
        log.append(rows("late"))
    assert len(records(storage)) == 2
    assert names_of(RowLog(storage).read()) == names_of(log.read()) == [f"row {n}" for n in range(4)]
    assert log.append(rows("again")).number == 4
    log.absorb()
    assert names_of(RowLog(storage).read()) == [*(f"row {n}" for n in range(4)), "again"]


def test_a_vacuum_takes_rows_out_of_records(log, storage):
    position = START
    for n in range(4):
        log.append(rows(f"row {n}"))
        position = position if n > 1 else log.read().position
    log.absorb()
    log.append(rows("fresh"))
    log.vacuum(0)
    for name in records(storage)[:4]:
        assert b"row" not in storage.read(f"fresh/{name}")
    assert b"fresh" in storage.read(f"fresh/{records(storage)[4]}")
    assert names_of(RowLog(storage).read()) == [f"row {n}" for n in range(4)] + ["fresh"]
    assert names_of(log.read(position))[-3:] == ["row 2", "row 3", "fresh"]
    log.vacuum(0)
    assert log.append(rows("more")).number == 5
    assert not list(RowLog(storage).cut_off())


def test_of_two_vacuums_one_may_find_records_gone(log, storage, clock):
    for n in range(3):
        log.append(rows(f"row {n}"))
    log.absorb()
    clock.now += 10 * RECORDS_KEPT_SECONDS
    with once_after(log._wal, "_numbers", lambda: RowLog(storage)._wal.drop_before(3)):
        log._wal.erase_before(3)
    assert len(records(storage)) == 1
    assert b"row" not in storage.read(f"fresh/{records(storage)[0]}")
    assert names_of(RowLog(storage).read()) == ["row 0", "row 1", "row 2"]


def test_a_log_that_was_dropped_does_not_come_back(storage):
    log, position = RowLog(storage), None
    for n in range(3):
        log.append(rows(f"old {n}"))
    position = log.read().position

    def drop():
        storage.delete_all()
        RowLog(storage).append(rows("new"))

    with once_before(log._wal, "_put", drop):
        log.append(rows("old 3"))
    assert names_of(RowLog(storage).read()) == ["new"]
    read = log.read(position)
    assert (names_of(read), read.starts_over) == (["new"], True)
    assert log.append(rows("newer")).number == 1
    assert names_of(RowLog(storage).read()) == ["new", "newer"]


def test_a_log_without_commits_that_was_dropped_is_begun_anew(storage):
    log = RowLog(storage)
    log.begin()
    storage.delete_all()
    RowLog(storage).append(rows("new"))
    assert log.append(rows("newer")).number == 1
    assert names_of(RowLog(storage).read()) == ["new", "newer"]


def test_an_uncertain_commit_keeps_its_file(storage, monkeypatch):
    monkeypatch.setattr(log_module, "_MAX_WAL_ROWS", 1)
    log = RowLog(storage)
    log.append(rows("a"))
    put, late = log._wal._put, []

    def put_without_an_answer(*arguments):
        late.append(arguments)
        raise UncertainWriteError("no answer")

    log._wal._put = put_without_an_answer
    with pytest.raises(UncertainWriteError):
        log.append(rows("b", "c"))
    put(*late[0])  # it arrives after all
    assert names_of(RowLog(storage).read()) == ["a", "b", "c"]


def test_of_commits_that_fail_in_part_the_error_tells_it(log, storage):
    put = log._wal._put

    def put_the_first(identity, number, *record):
        if number:
            raise StorageError("unreachable")
        put(identity, number, *record)

    log._wal._put = put_the_first
    parts = [rows("a"), rows("b"), rows("c")]
    with pytest.raises(StorageError, match=r"^unreachable. The rows of 1 file .* Write the batch again"):
        log.append_all(parts, parts[0].schema)
    assert names_of(RowLog(storage).read()) == ["a"]


def test_a_record_may_outlive_the_file_that_it_names(storage, monkeypatch):
    monkeypatch.setattr(log_module, "_MAX_WAL_ROWS", 1)
    monkeypatch.setattr(table_module, "_EARLIER_TOMBSTONE_MILLISECONDS", -1_000)
    idle, writer = RowLog(storage), RowLog(storage)
    idle.append(rows("first"))
    for n in range(3):
        writer.append(rows(f"a{n}", f"b{n}", **{f"column {n}": [n, n]}))
        assert writer.compact([rows("all")], writer.absorb())
        writer.prune()
    named, there = writer._wal_files(), set(storage.list("rows/"))
    assert len(named) == 3
    assert named - there
    assert names_of(RowLog(storage).read()) == ["all"]
    idle.append(rows("more", **{"column 0": [7]}))
    RowLog(storage).append(rows("even more"))
    with pytest.raises(RowError, match="column 1"):
        idle.append(rows("of another type", **{"column 1": ["text"]}))
    assert names_of(RowLog(storage).read()) == ["all", "more", "even more"]


def test_an_uncertain_absorption_keeps_its_files(storage):
    log = RowLog(storage)
    log.append(rows("a"))
    write, late = log._table._write, []

    def write_without_an_answer(*arguments, **more):
        late.append((arguments, more))
        raise UncertainWriteError("no answer")

    log._table._write = write_without_an_answer
    with pytest.raises(UncertainWriteError):
        log.absorb()
    assert names_of(RowLog(storage).read()) == ["a"]
    write(*late[0][0], **late[0][1])
    assert names_of(RowLog(storage).read()) == ["a"]
    assert names_of(RowLog(storage).table_rows()) == ["a"]


def test_every_flipped_byte_of_a_record_is_found(log, storage):
    log.append(rows("row"))
    name = f"fresh/{records(storage)[0]}"
    content = storage.read(name)
    for offset in range(len(content)):
        damaged = bytearray(content)
        damaged[offset] ^= 4
        storage.replace(name, bytes(damaged))
        with pytest.raises(DamagedFileError, match=storage.where(name)):
            RowLog(storage).read()
    for length in range(len(content)):
        storage.replace(name, content[:length])
        with pytest.raises(DamagedFileError, match=storage.where(name)):
            RowLog(storage).read()


def test_a_lost_log_beside_a_table_is_told(log, storage):
    log.append(rows("row"))
    log.absorb()
    storage.within("fresh/").delete_all()
    for call in (RowLog(storage).read, RowLog(storage).absorb, lambda: RowLog(storage).append(rows("row"))):
        with pytest.raises((DamagedFileError, StorageError), match="its write-ahead log is gone"):
            call()


def test_a_log_that_is_older_than_its_table_takes_no_rows(log, storage):
    """As in a copy of the folder that was made while others wrote: nobody would see the rows."""
    log.append(rows("a"))
    log.append(rows("b"))
    log.absorb()
    storage.delete([f"fresh/{records(storage)[-1]}"])
    for writer in (log, RowLog(storage)):
        with pytest.raises(DamagedFileError, match=r"fresh: ends before commit 1, .* up to commit 1"):
            writer.append(rows("c"))
    assert names_of(RowLog(storage).read()) == ["a", "b"]


def test_a_writer_that_looked_before_others_absorbed_writes_behind_them(log, storage):
    other = RowLog(storage)
    log.append(rows("a"))
    log._wal.reset()
    with once_before(log._table, "state", lambda: append_and_absorb(other, "b")):
        assert log.append(rows("c")).number == 2
    assert names_of(RowLog(storage).read()) == ["a", "b", "c"]


def test_a_lost_record_is_told(log, storage):
    for n in range(5):
        log.append(rows(f"row {n}"))
    storage.delete([f"fresh/{records(storage)[2]}"])
    for call in (RowLog.read, lambda log: log.append(rows("row 5"))):
        with pytest.raises(DamagedFileError, match="commits 0 to 2 of the row log are missing"):
            call(RowLog(storage))
