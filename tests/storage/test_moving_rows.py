"""Rebuilds and new divisions of a view beside processes that read and write it: folders and a bucket."""

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from unittest.mock import Mock, patch

import pytest

from feast_sketch_store.errors import DamagedFileError, GateError, ShardError, StorageError
from feast_sketch_store.operations import resharding
from feast_sketch_store.operations.resharding import remove_former
from feast_sketch_store.operations.verification import verify_view
from feast_sketch_store.row_log import RowLog
from feast_sketch_store.row_log.data_file import StagedFile
from feast_sketch_store.rows.encoding import deletions
from feast_sketch_store.settings.table import Gate
from feast_sketch_store.snapshot.files import SnapshotFolder
from feast_sketch_store.storage.base import UncertainWriteError
from feast_sketch_store.storage.local import LocalStorage
from feast_sketch_store.storage.names import SEAL_LOCK
from feast_sketch_store.structures.goals import NOISE_RATIO, Goal
from feast_sketch_store.view import holding
from feast_sketch_store.view.opening import ReadOnlyView, open_view
from feast_sketch_store.view.rebuilding import rebuild
from feast_sketch_store.view.removal import remove_view
from feast_sketch_store.view.shard import Shard
from feast_sketch_store.view.view import View
from feast_sketch_store.view.view_file import Registration, ViewFile
from tests.helpers import histories
from tests.helpers.file_systems import know_files_badly
from tests.helpers.histories import NEVER, items_of, settings_of
from tests.helpers.keys import user_key
from tests.helpers.length import combined
from tests.helpers.meanwhile import once_after, once_before
from tests.storage.memory import Files, ObjectsInMemory, OwnProcess

pytestmark = pytest.mark.slow

NUM_USERS = 60
SETS = settings_of(Goal(NOISE_RATIO, 0.1, "sets"), 10**6, 1e-9)


class Folder:
    def __init__(self, path):
        self._path = path

    def open(self):
        return type("Opened", (OwnProcess, LocalStorage), {})(self._path)


class Bucket:
    def __init__(self):
        self._files = Files()

    def open(self):
        return type("Opened", (OwnProcess, ObjectsInMemory), {})(self._files)


@pytest.fixture(params=["folder", "folder without times of birth", "bucket"])
def place(request, tmp_path, monkeypatch):
    if request.param == "bucket":
        return Bucket()
    if request.param != "folder":
        know_files_badly(monkeypatch)
    (tmp_path / "history").mkdir()
    return Folder(tmp_path / "history")


def opened(place, num_shards):
    return open_view(place.open(), replace(SETS, num_shards=num_shards), NEVER, 0.0)


def divide(place, num_shards):
    """Divide the rows anew, as another process does."""
    return resharding.divide(place.open(), replace(SETS, num_shards=num_shards), NEVER, lambda seconds: None)


def put(view, users, words, second=0):
    """Write a set of words for some users. Returns what reads have to give of them."""
    return histories.put(view, dict.fromkeys(users, words), second)


def shown(view, users=range(NUM_USERS)):
    """What reads give: user -> words."""
    return items_of(view, users)


def assert_shown(readers, expected):
    """What readers give, which are given by their names; a replica polls before."""
    for name, one in readers.items():
        one.poll() if name == "replica" else None
        assert shown(one) == expected, name


@pytest.mark.parametrize("name", ["history", "history@v0"])
def test_a_process_reads_what_it_wrote_to_shards_that_another_made(tmp_path, name):
    """Whatever it calls the view: readers need not name its first version."""
    path = tmp_path / "history"
    path.mkdir()
    reader = open_view(LocalStorage(path), SETS, NEVER, 3600.0)
    expected = put(reader, range(40), ["old"])
    assert shown(reader) == expected
    divide(Folder(path), 4)
    writer = open_view(LocalStorage(path), replace(SETS, view=name), NEVER, 3600.0)
    assert (reader.shard_map.num_shards, writer.shard_map.num_shards) == (1, 4)
    expected |= put(writer, range(20, 50), ["new"], second=1)
    assert shown(reader) == shown(writer) == expected


@pytest.mark.parametrize(
    ("num_shards", "filled_shards", "keep"), [(1, 1, False), (4, 4, False), (4, 1, True), (1, 4, True)]
)
def test_what_others_write_during_a_rebuild_stays(place, num_shards, filled_shards, keep):
    view, writer = opened(place, num_shards), opened(place, num_shards)
    before = put(view, range(40), ["old"])
    expected = put_new = {}

    def fill(staging):
        nonlocal expected, put_new
        filled = open_view(staging, replace(SETS, num_shards=filled_shards), NEVER, 0.0)
        put_new = put(filled, range(30), ["new"], second=1)
        meanwhile = put(writer, range(20, 50), ["pushed"], second=2) | put(writer, [60], ["late"], second=-1)
        writer.delete(deletions([user_key(3)], datetime.now(UTC), None))
        put(writer, [4], ["too old"], second=0)
        if staging.supports_leases:
            assert not writer.seal(), "nobody else seals meanwhile"
        expected = (before if keep else {}) | put_new | meanwhile
        del expected[3]
        return staging

    view.seal()
    assert rebuild(view, fill, keep=keep)
    for one in (view, writer, opened(place, num_shards)):
        assert shown(one, range(70)) == expected
    assert view.seal()
    assert shown(opened(place, num_shards), range(70)) == expected


READERS = {
    "view": lambda place: opened(place, 1),  # with settings of then
    "reader": lambda place: ReadOnlyView(place.open(), "history", 0.0),
    "replica": lambda place: open_view(place.open(), SETS, NEVER, 1_000.0, is_replica=True),
}


@pytest.mark.parametrize(
    ("numbers", "is_sealed"), combined([(1, 4), (4, 1), (2, 4, 2)], [True, False]), ids=str
)
def test_readers_and_writers_follow_the_rows(place, numbers, is_sealed):
    """Those that look between the division and the vacuum, and those that look only after the vacuum."""
    writer = opened(place, numbers[0])
    expected = put(writer, range(40), ["first"])
    if is_sealed:
        writer.seal()
    expected |= put(writer, range(30, 50), ["second"], second=1)
    readers = {name: make(place) for name, make in READERS.items()}
    late = {name: make(place) for name, make in READERS.items()}
    never_read = {name: make(place) for name, make in READERS.items()}
    for one in (*readers.values(), *late.values()):
        assert shown(one) == expected
    for number in numbers[1:]:
        assert divide(place, number) == 50
        assert_shown(readers, expected)
        assert {len(one.shards) for one in readers.values()} == {number}
        remove_former(place.open())
    for those in (late, never_read):
        assert_shown(those, expected)
        assert {len(one.shards) for one in those.values()} == {numbers[-1]}
    writer.registration._checked_at = -math.inf  # in a bucket: ten seconds later
    expected |= put(writer, range(45, 60), ["third"], second=2)
    for those in (readers, late):
        assert_shown(those, expected)
        for one in those.values():
            one.close()


def test_a_reader_that_cannot_follow_the_rows_says_so(place):
    """What it has may be older than what others have written elsewhere."""
    writer, reader, other = opened(place, 1), opened(place, 1), opened(place, 1)
    expected = put(writer, range(NUM_USERS), {"a"})
    assert items_of(reader, range(NUM_USERS)) == expected
    divide(place, 4)
    age = reader.freshness().age_seconds
    with patch.object(ViewFile, "read", side_effect=StorageError("history/view.json: cannot be read")):
        assert items_of(reader, range(NUM_USERS)) == expected
        assert reader.freshness().state == "STALE"
        assert reader.freshness().problem == "history/view.json: cannot be read"
        assert reader.freshness().age_seconds > age
        for _ in range(2):
            with pytest.raises(StorageError, match=r"history/view\.json: cannot be read"):
                items_of(other, [0])  # which has read nothing yet
    expected |= put(writer, range(5), {"b"}, second=1)
    assert items_of(reader, range(NUM_USERS)) == items_of(other, range(NUM_USERS)) == expected
    assert (reader.freshness().state, reader.freshness().problem) == ("SERVING", "")


@pytest.mark.parametrize("num_shards", [1, 4])
def test_readers_follow_a_copy_that_is_put_back_in_place_of_newer_files(place, num_shards):
    writer = opened(place, num_shards)
    expected = put(writer, range(20), ["first"])
    writer.seal()
    expected |= put(writer, range(20, 30), ["first"], second=1)
    storage = place.open()
    copy = {info.name: storage.read(info.name) for info in storage.walk()}
    newer = expected | put(writer, range(10, 50), ["lost"], second=2)
    writer.seal()
    newer |= put(writer, range(40, 60), ["lost, too"], second=3)
    readers = {name: make(place) for name, make in READERS.items()}
    for name, one in readers.items():
        assert shown(one) == newer, name
    storage.delete([info.name for info in storage.walk() if info.name not in copy])
    for name, content in copy.items():
        if storage.info(name) is None or storage.read(name) != content:
            storage.replace(name, content)
    assert_shown(readers, expected)
    expected |= put(opened(place, num_shards), range(5, 25), ["second"], second=1)
    assert_shown(readers, expected)
    for one in readers.values():
        one.close()


def test_a_view_that_is_dropped_and_made_again_with_other_shards_is_followed(place):
    put(opened(place, 4), range(10), ["old"])
    readers = [make(place) for make in READERS.values()]
    for one in readers:
        shown(one)
    remove_view(place.open())
    expected = put(opened(place, 8), range(20), ["new"])
    for one in readers:
        one.poll()
        assert shown(one) == expected
        one.close()


@pytest.mark.parametrize("num_shards", [1, 4])
def test_a_write_that_meets_the_division_is_refused_or_kept(place, num_shards, monkeypatch):
    """The rows reach the former shards after the last look at them, so their writer must hear of it."""
    writer = opened(place, num_shards)
    expected = put(writer, range(10), ["before"])
    append, lock, divided = RowLog.append, threading.Lock(), []
    former = [shard.row_log for shard in writer.shards.values()]  # the division has row logs of its own

    def divide_and_append(self, table):
        if self in former:
            with lock:  # shards are written by several threads, and none before the division ends
                if not divided:
                    divided.append(True)
                    divide(place, 2)
                    writer.registration._checked_at = -math.inf  # in a bucket: the move waits so long
        return append(self, table)

    monkeypatch.setattr(RowLog, "append", divide_and_append)
    with pytest.raises(UncertainWriteError, match="may count or not"):
        put(writer, range(5), ["meanwhile"], second=1)
    expected |= put(writer, range(5), ["meanwhile"], second=1)
    assert shown(writer) == shown(opened(place, 2)) == expected


def test_a_fill_that_the_gate_checks_does_not_get_into_other_shards(place):
    """The rows are divided between the look at the view's shards and the gate, which follows them."""
    writer = open_view(place.open(), replace(SETS, gate=Gate(entities=1)), NEVER, 0.0)
    expected = put(writer, range(20), ["before"])
    files = list(writer.stage([writer.shards[0].row_log.read().table()], "job-"))

    with (
        patch.object(StagedFile, "check", lambda file: divide(place, 2)),
        pytest.raises(ShardError, match="divided into 2 shards after tasks wrote files for other ones"),
    ):
        writer.commit_staged(files)
    assert shown(writer) == shown(opened(place, 2)) == expected
    for number, shard in writer.shards.items():
        assert verify_view(shard.storage, SETS.codecs, shard=(number, 2)).problems == []


def test_a_fill_that_was_held_back_before_a_division_must_be_discarded(place):
    """Even if there are as many shards again: its files went with the former ones."""
    settings = replace(SETS, gate=Gate(entities=NUM_USERS))
    writer = open_view(place.open(), settings, NEVER, 0.0)
    expected = put(writer, range(20), ["before"])
    with pytest.raises(GateError):
        writer.commit_staged(list(writer.stage([writer.shards[0].row_log.read().table()], "job-")))
    for num_shards in (2, 1):
        divide(place, num_shards)
    with pytest.raises(ShardError, match="discard history`, and run its job again"):
        holding.publish(writer, force=True)
    assert holding.discard(writer) == 20
    assert holding.publish(writer, force=True) is None
    assert shown(writer) == expected


def test_a_write_is_not_refused_for_certain_after_its_rows_are_there(place, monkeypatch):
    """The last look at the view's file may fail, or find that the rows are being divided."""
    view = opened(place, 1)
    expected = put(view, range(5), ["before"])
    keep = Registration.keep

    def keep_before(registration, settings, rows=None, is_applied=False, logs=None):
        if rows is None:
            raise StorageError("no answer")
        keep(registration, settings, rows, is_applied, logs)

    monkeypatch.setattr(Registration, "keep", keep_before)
    with pytest.raises(UncertainWriteError, match="What was written may count"):
        put(view, range(3), ["after"], second=1)
    assert shown(view) == expected | {user: {"after"} for user in range(3)}


def test_a_write_into_former_shards_does_not_succeed_because_another_thread_follows(place):
    view = opened(place, 1)
    expected = put(view, range(5), ["before"])

    def divide_and_follow():
        divide(place, 2)
        assert view.follow()

    with (
        once_before(Shard, "append", divide_and_follow),
        pytest.raises(UncertainWriteError, match="What was written may count or not"),
    ):
        put(view, range(3), ["after"], second=1)
    assert shown(view) == shown(opened(place, 2)) == expected


def test_former_shards_are_removed_under_the_lease_that_a_drop_waits_for(tmp_path):
    """A view that is dropped and made again meanwhile may have files of the names that were listed."""
    place = Folder(tmp_path / "history")
    expected = put(opened(place, 1), range(20), ["before"])
    divide(place, 2)
    with opened(place, 2).unchanging():
        assert remove_former(place.open()) == 0

    def try_to_lease():
        with place.open().lease(SEAL_LOCK) as is_mine:
            assert not is_mine

    with once_after(resharding, "former_files", try_to_lease):
        assert remove_former(place.open()) > 0
    assert shown(opened(place, 2)) == expected


def test_a_pin_that_a_division_comes_before_holds_the_new_shards(place):
    view, pinner = opened(place, 1), opened(place, 1)
    expected = put(view, range(20), ["before"])
    view.seal()
    with once_before(SnapshotFolder, "pin", lambda: divide(place, 2)):
        assert len(holding.pin(pinner)) == 2
    put(opened(place, 2), range(20), ["after"], second=1)
    for one in (view, pinner, opened(place, 2)):
        assert shown(one) == expected


@pytest.mark.parametrize("is_fenced", [False, True])
def test_a_view_that_is_pinned_while_its_division_begins_is_not_divided(place, monkeypatch, is_fenced):
    """The division sees a pin that was there before its fence; a later one sees the fence."""
    view, pinner = opened(place, 1), opened(place, 1)
    expected = put(view, range(20), ["before"])
    view.seal()
    put_map, tried = resharding.put_map, []

    def pin():
        tried.append(True)
        monkeypatch.setattr(pinner, "prepare", lambda: None)  # it has looked for a fence before
        if is_fenced:
            with pytest.raises(ShardError, match="its rows are being divided"):
                holding.pin(pinner)
        else:
            assert holding.pin(pinner) == (1,)

    def pin_and_put(*arguments):
        if is_fenced:
            put_map(*arguments)
        if not tried:
            pin()
        if not is_fenced:
            put_map(*arguments)

    monkeypatch.setattr(resharding, "put_map", pin_and_put)
    with nullcontext() if is_fenced else pytest.raises(StorageError, match="is pinned to a snapshot"):
        divide(place, 2)
    monkeypatch.undo()
    after = put(opened(place, 2), range(20), ["after"], second=1)
    for one in (view, pinner, opened(place, 2)):
        assert shown(one) == (after if is_fenced else expected)


def test_rows_that_a_vacuum_removes_while_they_are_exported_are_not_damaged(place):
    view, other = opened(place, 1), opened(place, 1)
    put(view, range(20), ["before"])
    view.seal()
    (kept,) = view.kept_rows()
    other.delete(deletions([user_key(3)], datetime.now(UTC), None))
    assert other.seal()
    assert other.vacuum() > 0
    with pytest.raises(StorageError, match="were replaced while they were read, and a vacuum removed them"):
        list(kept.batches())
    (kept,) = view.kept_rows()
    assert sum(len(table) for _, table in kept.batches()) == 19
    data = other.shards[0].row_log.table_rows().files
    other.storage.delete([f"rows/{file.name}" for file in data])
    with pytest.raises(DamagedFileError, match="a data file of the row log is damaged: it is missing"):
        list(kept.batches())


def test_of_two_divisions_that_no_lease_keeps_apart_one_counts():
    place = Bucket()
    view = opened(place, 1)
    written = put(view, range(20), ["old"])

    with pytest.raises(StorageError, match="another process divides the rows"):
        resharding.divide(place.open(), replace(SETS, num_shards=2), NEVER, lambda seconds: divide(place, 4))
    for each in (view, opened(place, 4)):
        assert shown(each) == written


def test_a_rebuild_beside_a_division_that_no_lease_keeps_out_is_refused():
    place = Bucket()
    view = opened(place, 1)
    written = put(view, range(20), ["old"])

    def fill_beside_a_division(staging):
        put(open_view(staging, SETS, NEVER, 0.0), range(20), ["new"], second=1)
        divide(place, 2)
        return staging

    with pytest.raises(UncertainWriteError, match="divided into 2 shards"):
        rebuild(view, fill_beside_a_division)
    assert shown(opened(place, 2)) == written


def test_a_vacuum_leaves_a_rebuild_that_no_lease_keeps_it_out_of(place):
    view, other = opened(place, 1), opened(place, 1)
    put(view, range(10), ["old"])

    def fill(staging):
        filled = View(staging, SETS, NEVER, 0.0)
        put(filled, range(5), ["new"], second=1)
        other.vacuum()
        put(filled, range(5, 10), ["new"], second=1)
        return staging

    assert rebuild(view, fill)
    assert shown(view) == {user: {"new"} for user in range(10)}


def test_a_rebuild_has_happened_although_its_files_cannot_be_removed(place):
    view = opened(place, 1)
    put(view, range(10), ["old"])

    def fill(staging):
        put(View(staging, SETS, NEVER, 0.0), range(5), ["new"])
        staging.delete_all = Mock(side_effect=StorageError("no answer"))
        return staging

    assert rebuild(view, fill)
    assert shown(view) == {user: {"new"} for user in range(5)}
    assert view.vacuum(0.0) > 0


def test_a_rebuild_that_fails_says_which_shards_have_their_new_rows(place):
    view = opened(place, 4)
    put(view, range(40), ["old"])
    new = {user: ["new"] for user in range(40)}
    fill = histories.filling(replace(SETS, num_shards=4), new)
    words = "rows of 2 shards were written, and those of the shards 2, 3 were not: .* 503. Run it again"
    with (
        patch.object(
            view.shards[2].row_log, "compact", side_effect=StorageError("the object store answers 503")
        ),
        pytest.raises(StorageError, match=words),
    ):
        rebuild(view, fill)
    assert {*map(frozenset, shown(view).values())} == {frozenset(["old"]), frozenset(["new"])}
    assert rebuild(view, fill) == 40
    assert shown(view) == shown(opened(place, 4)) == {user: {"new"} for user in new}


@pytest.mark.parametrize("folder", [SnapshotFolder, RowLog])
def test_what_has_happened_does_not_fail_because_former_files_stay(place, folder, caplog):
    view = opened(place, 4)
    put(view, range(10), ["old"])
    with patch.object(folder, "prune", side_effect=StorageError("the object store answers 503")):
        assert view.seal()
        new = {user: ["new"] for user in range(40)}
        assert rebuild(view, histories.filling(replace(SETS, num_shards=4), new)) == 40
    assert "503; the next seal or `feast-sketch vacuum` removes former files" in caplog.text
    assert shown(view) == shown(opened(place, 4)) == {user: {"new"} for user in new}
    assert view.vacuum(0.0) > 0


def test_a_division_that_fills_the_disk_leaves_the_view_as_it_was(tmp_path, monkeypatch):
    class Disk(LocalStorage):
        """Has room for the former shards only."""

        is_full = False

        def replace_known(self, name, content, token):
            if self.is_full and any("shards-" in info.name for info in self.walk()):
                raise StorageError("No space left on device")
            return super().replace_known(name, content, token)

    disk = Disk(tmp_path)
    view = open_view(disk, SETS, NEVER, 0.0)
    put(view, range(NUM_USERS), ["a"])

    def fail(*_):
        disk.is_full = True
        raise StorageError("No space left on device")

    monkeypatch.setattr(Shard, "draft", fail)
    with pytest.raises(StorageError, match="No space left"):
        resharding.divide(disk, replace(SETS, num_shards=4), NEVER, lambda seconds: None)
    put(view, range(NUM_USERS), ["b"], 1)
    assert shown(opened(Folder(tmp_path), 1)) == {user: {"b"} for user in range(NUM_USERS)}
    assert not [*tmp_path.glob("shards-*")]


@pytest.mark.parametrize("is_switched", [False, True])
def test_a_division_that_fails_says_how_to_remove_the_fence_that_it_leaves(place, monkeypatch, is_switched):
    view = opened(place, 1)
    expected = put(view, range(20), ["a"])
    where = (
        [(SnapshotFolder, "note_move")]
        if is_switched
        else [(Shard, "draft"), (resharding, "_remove_unfinished")]
    )
    there = 4 if is_switched else 1
    with monkeypatch.context() as broken:
        for owner, name in where:
            broken.setattr(owner, name, Mock(side_effect=StorageError("the object store answers 503")))
        with pytest.raises(StorageError, match=rf"503.*reshard history --shards` with .*, or with {there}"):
            divide(place, 4)
    with pytest.raises(ShardError, match="being divided"):
        put(opened(place, 1), [1], ["b"])
    divide(place, there)
    expected |= put(opened(place, 1), [1], ["b"], 1)
    assert shown(opened(place, 1)) == shown(view) == expected


def test_a_view_that_is_made_while_it_is_divided_keeps_its_rows():
    """In a bucket; in a folder, who makes the view's file waits."""
    place = Bucket()
    storage, written = place.open(), {}
    with (
        once_after(storage, "info", lambda: written.update(put(opened(place, 4), range(20), ["first"]))),
        pytest.raises(StorageError, match="another process divides the rows"),
    ):
        resharding.divide(storage, replace(SETS, num_shards=2), NEVER, lambda seconds: None)
    assert shown(opened(place, 4)) == written


def test_reads_that_are_held_are_not_moved(place):
    writer = opened(place, 1)
    expected = put(writer, range(10), ["before"])
    writer.seal()
    holding.pin(writer)
    with pytest.raises(StorageError, match=r"pinned to a snapshot.*unpin history"):
        divide(place, 4)
    assert shown(opened(place, 1)) == expected


def test_who_seals_checks_or_vacuums_waits_for_the_seal_of_another(tmp_path, monkeypatch):
    """The other one holds the lease until the waiting one has looked at it several times."""
    view, other = opened(Folder(tmp_path), 4), opened(Folder(tmp_path), 4)
    put(view, range(40), ["a"])
    lease, looks, may_end = LocalStorage.lease, [], threading.Event()

    def watched(storage, *arguments, **options):
        if threading.current_thread() is not threading.main_thread():
            looks.append(storage)
            if len(looks) > 3:
                may_end.set()
        return lease(storage, *arguments, **options)

    def check():
        with view.unchanging():
            return True

    monkeypatch.setattr(LocalStorage, "lease", watched)
    with other.unchanging():
        assert not view.seal(timeout_seconds=0.02)
        with pytest.raises(
            StorageError, match=r"sealing this view, .* within 0 seconds.*--lock-timeout SECONDS"
        ):
            check()
    view.lock_timeout_seconds = 60.0
    for wait in (lambda: view.seal(timeout_seconds=60.0), check, lambda: view.vacuum(0.0) >= 0):
        looks.clear()
        may_end.clear()
        with ThreadPoolExecutor(1) as pool:
            with other.unchanging():
                waiting = pool.submit(wait)
                assert may_end.wait(60)
                assert not waiting.done()
            assert waiting.result(60)
