"""The row log after writers that were killed, disks that failed, and damage to its files."""

import json
import shutil
from unittest.mock import Mock, patch

import pytest
from deltalake import DeltaTable

from feast_sketch_store.errors import DamagedFileError, StorageError
from feast_sketch_store.row_log import RowLog
from feast_sketch_store.row_log.wal import WriteAheadLog
from feast_sketch_store.storage import local
from feast_sketch_store.storage.local import LocalStorage
from tests.helpers.length import by_length
from tests.helpers.log_rows import names_of, num_acknowledged, rows, segment


def test_what_another_client_wrote_is_refused_by_the_name_of_its_file(storage, log):
    log.append(rows("a", "b"))
    log.absorb()
    table = DeltaTable(str(storage.path / "rows"))
    name = f"rows/_delta_log/{len(table.history()):020d}.json"
    table.delete("name = 'a'")
    for act in (log.read, log.absorb, RowLog(storage).read):
        with pytest.raises(DamagedFileError, match=f"{name}.*another Delta client wrote it.*delete its file"):
            act()
    storage.delete([name])
    assert names_of(RowLog(storage).read()) == ["a", "b"]


@pytest.mark.parametrize("behind", [b"", bytes(5), bytes(4096)], ids=["end", "zeros", "more zeros"])
def test_what_a_killed_writer_left_is_overwritten(log, storage, behind):
    log.append(rows("a"))
    path = segment(storage)
    start = num_acknowledged(storage)
    log.append(rows("a longer one"))
    content, end = path.read_bytes(), num_acknowledged(storage)
    for cut in {1, 8, 30, 47, 48, 49, (end - start) // 2, end - start - 9}:
        path.write_bytes(content[: start + cut] + behind)
        storage.delete(["fresh/end"])  # the commit was never acknowledged
        other = RowLog(storage)
        assert names_of(other.read()) == ["a"], cut
        assert other.is_at_end(other.read().position)
        other.append(rows("c"))
        assert names_of(RowLog(storage).read()) == ["a", "c"], cut


def test_a_part_of_a_record_that_the_disk_kept_is_overwritten(log, storage):
    """After a crash of the machine any pages of the last record may be there, and others not."""
    log.append(rows("a"))
    path = segment(storage)
    start = num_acknowledged(storage)
    log.append(rows("b" * 3000))
    content, end = path.read_bytes(), num_acknowledged(storage)
    for lost in range(start, end, by_length(800, 50)):
        path.write_bytes(content[:lost] + bytes(64) + content[lost + 64 :])
        storage.delete(["fresh/end"])
        other = RowLog(storage)
        if names_of(other.read()) == ["a", "b" * 3000]:
            assert content[lost : lost + 64].strip(b"\0") == b""  # what is lost were zeros
            continue
        assert names_of(other.read()) == ["a"], lost
        other.append(rows("c"))
        assert names_of(RowLog(storage).read()) == ["a", "c"], lost


def assert_damaged(message, storage, *known):
    """That nobody reads the log, absorbs it or appends to it: neither a new process nor known objects."""
    for act in (RowLog.read, RowLog.absorb, lambda log: log.append(rows("c"))):
        for log in (RowLog(storage), *known):
            with pytest.raises(DamagedFileError, match=message):
                act(log)


@pytest.mark.parametrize("kept", [0, 63, 64, 0.5, -1])
@pytest.mark.parametrize("is_rolled", [False, True])
def test_a_log_that_was_cut_behind_an_acknowledged_commit_is_damaged(log, storage, kept, is_rolled):
    log.append(rows("a"))
    if is_rolled:
        log.absorb()
    log.append(rows("b"))
    position = log.read().position
    path = segment(storage)
    whole, end = path.read_bytes(), num_acknowledged(storage)
    rest = whole[: end // 2 if kept == 0.5 else end - 1 if kept == -1 else kept]
    path.write_bytes(rest)
    message = f"{path.name}: ends at byte .* it was cut"
    assert_damaged(message, storage, log)
    with pytest.raises(DamagedFileError, match=message):
        log.read(position)
    path.write_bytes(rest + bytes(len(whole) - len(rest)))
    if kept != -1:  # the last byte of a record may be a zero anyhow
        assert_damaged(path.name, storage)
    path.write_bytes(whole)
    assert RowLog(storage).append(rows("c")).number == 2
    assert names_of(RowLog(storage).read()) == ["a", "b", "c"]


@pytest.mark.parametrize("is_absorbed", [False, True])
@pytest.mark.parametrize("is_swapped", [False, True])
def test_a_segment_that_is_gone_or_of_another_log_is_damage(log, storage, tmp_path, is_absorbed, is_swapped):
    other = LocalStorage(tmp_path / "other")
    for each in (log, RowLog(other)):
        each.append(rows("a"))
        if is_absorbed:
            each.absorb()
            each.append(rows("b"))
    position = log.read().position
    path, what = segment(storage), "is of another log" if is_swapped else "is missing"
    message = f"{path.name}: {what}, and acknowledged rows are lost"
    whole = path.read_bytes()
    path.unlink()
    if is_swapped:
        path.write_bytes(segment(other).read_bytes())
    assert_damaged(message, storage, log)
    with pytest.raises(DamagedFileError, match=message):
        log.read(position)
    path.write_bytes(whole)
    assert RowLog(storage).append(rows("c")).number == 1 + is_absorbed


def test_rows_behind_a_segment_that_is_gone_are_read(log, storage, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(WriteAheadLog, "drop_before", lambda self, number: None)  # killed before that
        for name in "ab":
            log.append(rows(name))
            log.absorb()
    log.append(rows("c"))
    segments = sorted(name for name in storage.list("fresh/") if name.endswith(".log"))
    assert len(segments) == 3
    storage.delete([f"fresh/{segments[1]}"])
    assert names_of(RowLog(storage).read()) == ["a", "b", "c"]
    assert RowLog(storage).append(rows("d")).number == 3
    assert names_of(RowLog(storage).read()) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("folder", ["fresh", "rows"])
def test_a_table_and_a_log_of_two_views_are_refused(log, storage, tmp_path, folder):
    other = LocalStorage(tmp_path / "other")
    for each in (log, RowLog(other)):
        each.append(rows("a"))
        each.absorb()
        each.append(rows("b"))
    before = tmp_path / "before"
    (storage.path / folder).rename(before)
    (other.path / folder).rename(storage.path / folder)
    assert_damaged(f"{storage.path}/fresh: .* of another log", storage)
    (storage.path / folder).rename(other.path / folder)
    before.rename(storage.path / folder)
    assert names_of(log.read()) == ["a", "b"]


@pytest.mark.parametrize("is_read_first", [False, True])
def test_a_log_that_is_older_than_its_table_takes_no_rows(log, storage, tmp_path, is_read_first):
    """As in a copy of the folder that was made while others wrote: nobody would see the rows."""
    log.append(rows("a"))
    shutil.copytree(storage.path / "fresh", tmp_path / "older")
    log.append(rows("b"))
    log.absorb()
    shutil.rmtree(storage.path / "fresh")
    (tmp_path / "older").rename(storage.path / "fresh")
    for writer in (log, RowLog(storage)):
        if is_read_first:
            assert names_of(writer.read()) == ["a", "b"]
        with pytest.raises(DamagedFileError, match=r"fresh: ends before commit 1, .* up to commit 1"):
            writer.append(rows("c"))
    assert names_of(RowLog(storage).read()) == ["a", "b"]


def test_what_is_left_of_a_cut_log_is_used_when_the_mark_is_removed(log, storage):
    log.append(rows("a"))
    path = segment(storage)
    size = num_acknowledged(storage)
    log.append(rows("b"))
    path.write_bytes(path.read_bytes()[:size])
    storage.delete(["fresh/end"])
    assert names_of(RowLog(storage).read()) == ["a"]


@pytest.mark.parametrize("content", [b"", b"short", bytes(48)])
def test_a_mark_that_is_not_whole_says_nothing(log, storage, content):
    log.append(rows("a"))
    storage.replace("fresh/end", content)
    assert names_of(RowLog(storage).read()) == ["a"]
    log.append(rows("b"))
    assert names_of(RowLog(storage).read()) == ["a", "b"]


def test_a_mark_that_cannot_be_written_fails_no_commit(log, storage, monkeypatch):
    monkeypatch.setattr(log._wal._storage, "note", Mock(side_effect=StorageError("no space")))
    for name in "abc":
        log.append(rows(name))
    assert names_of(RowLog(storage).read()) == ["a", "b", "c"]


@pytest.mark.parametrize("size", [0, 1, 8, 63])
@pytest.mark.parametrize("begins", [False, True])
def test_a_writer_may_die_while_it_creates_the_log(storage, size, begins):
    RowLog(storage).append(rows("a"))
    path = segment(storage)
    path.write_bytes(path.read_bytes()[:size])
    storage.delete(["fresh/end"])  # the commit was never acknowledged
    log = RowLog(storage)
    if begins:
        log.begin()
    assert not log.read()
    assert log.is_at_end(log.read().position)
    log.append(rows("b"))
    assert names_of(RowLog(storage).read()) == ["b"]


@pytest.mark.parametrize("begun", [None, b"", bytes(8)])
def test_a_writer_may_die_between_two_segments(log, storage, begun):
    log.append(rows("a"))
    log._wal.close_segment()
    if begun is not None:
        storage.replace(f"fresh/{1:020d}.log", begun)
    for other in (RowLog(storage), log):
        read = other.read()
        assert names_of(read) == ["a"]
        assert other.is_at_end(read.position)
    other.append(rows("b"))
    assert names_of(RowLog(storage).read()) == ["a", "b"]
    log.absorb()
    assert names_of(RowLog(storage).read()) == ["a", "b"]


def test_an_absorption_that_was_killed_before_it_let_go_is_finished_by_the_next(log, storage, monkeypatch):
    log.append(rows("a"))
    monkeypatch.setattr(log._wal, "drop_before", lambda number: None)
    log.absorb()
    assert names_of(RowLog(storage).read()) == ["a"]
    monkeypatch.undo()
    log.append(rows("b"))
    log.absorb()
    assert names_of(RowLog(storage).read()) == ["a", "b"]
    assert segment(storage).exists()


@pytest.mark.has_long_form
def test_every_flipped_byte_of_a_segment_is_found(log, storage):
    """The short form flips every third."""
    for n in range(3):
        log.append(rows(f"row {n}"))
    path = segment(storage)
    content = path.read_bytes()
    for offset in range(0, num_acknowledged(storage), by_length(3, 1)):
        damaged = bytearray(content)
        damaged[offset] ^= 0x10
        path.write_bytes(damaged)
        assert_damaged(path.name, storage)


def test_who_may_only_read_is_told_of_damage(log, storage):
    log.append(rows("a"))
    path = segment(storage)
    content = path.read_bytes()
    path.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
    with pytest.raises(DamagedFileError, match=rf"{path}: the record at byte 64 is damaged: .*\. Restore"):
        RowLog(LocalStorage(storage.path, read_only=True)).read()


def test_a_lost_fresh_log_is_told(log, storage):
    log.append(rows("a"))
    log.absorb()
    storage.delete([f"fresh/{n}" for n in storage.list("fresh/")])
    assert_damaged("its write-ahead log is gone", storage)


def test_a_lost_segment_is_told(log, storage):
    log.append(rows("a"))
    log._wal.close_segment()
    log.append(rows("b"))
    storage.delete([f"fresh/{0:020d}.log"])
    assert_damaged(r"commits 0 to 0 of the row log are missing.* Restore", storage)


def test_a_lost_table_is_told(log, storage):
    log.append(rows("a"))
    log.absorb()
    storage.delete([f"rows/_delta_log/{n}" for n in storage.list("rows/_delta_log/")])
    assert_damaged(r"commits 0 to 0 of the row log are missing.* Restore", storage)


@pytest.mark.parametrize(
    "damage", ["nothing", "half", "not json", "no add", "not utf-8", "a list", "renamed"]
)
def test_a_damaged_commit_is_named(log, storage, damage):
    log.append(rows("a"))
    log.absorb()
    path = storage.path / "rows" / "_delta_log" / f"{0:020d}.json"
    content = path.read_bytes()
    if damage == "renamed":
        path = path.rename(path.with_name(f"{1:020d}.json"))
    else:
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
    with pytest.raises(DamagedFileError, match=rf"{path.name}: .*\. Restore .* or remove the view"):
        RowLog(storage).read()


@pytest.mark.parametrize("damage", ["gone", "empty", "half", "junk"])
def test_a_damaged_data_file_is_named(log, storage, damage):
    log.append(rows("a"))
    log.absorb()
    (path,) = (storage.path / "rows").glob("*.parquet")
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes({"empty": b"", "half": content[: len(content) // 2], "junk": b"x" * 500}[damage])
    with pytest.raises(DamagedFileError, match=rf"{path.name}: .*\. Restore .* with `feast-sketch rebuild`"):
        log.read().table()


def test_an_append_that_fails_leaves_nothing(log, storage):
    log.append(rows("a"))
    with (
        patch.object(local, "fdatasync", side_effect=OSError(28, "No space left on device")),
        pytest.raises(StorageError, match="No space left"),
    ):
        log.append(rows("b"))
    assert names_of(RowLog(storage).read()) == ["a"]
    log.append(rows("c"))
    assert names_of(log.read()) == ["a", "c"]


@pytest.mark.parametrize("is_absorbed", [False, True])
@pytest.mark.parametrize("is_first", [False, True])
def test_a_record_that_was_read_before_its_sync_failed_does_not_stay(storage, log, is_first, is_absorbed):
    """Nothing can be written any more then, as where the process is killed: nobody tells the reader."""
    before = [] if is_first else ["a"]
    for name in before:
        log.append(rows(name))
    reader, seen = RowLog(storage), []

    def fail(*arguments):
        seen.append(reader.read())
        raise OSError(5, "Input/output error")

    with (
        patch.object(local, "fdatasync", fail),
        patch.object(LocalStorage, "note", fail),
        pytest.raises(StorageError, match="Input/output"),
    ):
        log.append(rows("b"))
    assert names_of(seen[0]) == [*before, "b"]
    other = RowLog(storage)
    other.append(rows("c"))
    if is_absorbed:
        other.absorb()
    other.append(rows("d"))
    assert not reader.is_at_end(seen[0].position)
    read = reader.read(seen[0].position)
    assert read.starts_over
    assert names_of(read) == [*before, "c", "d"]


def test_records_that_were_durable_when_they_were_read_are_not_read_again(storage, log):
    log.append(rows("a"))
    position = RowLog(storage).read().position
    assert position.cursor.is_durable
    log.absorb()
    log.append(rows("b"))
    read = RowLog(storage).read(position)
    assert not read.starts_over
    assert names_of(read) == ["b"]


def test_what_a_killed_writer_did_not_acknowledge_is_durable_with_the_next_commit(storage, log):
    log.append(rows("a"))
    mark = storage.read("fresh/end")
    log.append(rows("b"))
    storage.replace("fresh/end", mark)  # as if it had been killed before it wrote the new one
    reader = RowLog(storage)
    position = reader.read().position
    assert not position.cursor.is_durable
    assert reader.is_at_end(position)
    RowLog(storage).append(rows("c"))
    read = reader.read(position)
    assert (read.starts_over, read.position.cursor.is_durable, names_of(read)) == (False, True, ["c"])


def test_what_was_read_before_it_was_durable_may_be_absorbed(storage, log, caplog):
    """As happens beside any writer: nothing has failed, so there is no error."""
    log.append(rows("a"))
    earlier = storage.read("fresh/end")
    log.append(rows("b"))
    later = storage.read("fresh/end")
    storage.replace("fresh/end", earlier)  # the writer has not come to its mark yet
    reader = RowLog(storage)
    position = reader.read().position
    assert not position.cursor.is_durable
    storage.replace("fresh/end", later)
    log.absorb()
    log.append(rows("c"))
    read = reader.read(position)
    assert names_of(read) == ["a", "b", "c"]
    assert not caplog.text
