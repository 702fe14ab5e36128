"""A view without Feast around it: sealing, snapshots, refresh."""

import errno
import gc
import itertools
import os
import resource
import shutil
import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import Mock, patch

import pytest

from feast_sketch_store.errors import DamagedFileError, StorageError
from feast_sketch_store.operations.resharding import divide
from feast_sketch_store.operations.verification import verify_view
from feast_sketch_store.row_log import RowLog
from feast_sketch_store.row_log.table import Table
from feast_sketch_store.snapshot.files import SnapshotFolder
from feast_sketch_store.storage import local
from feast_sketch_store.storage.local import LocalStorage
from feast_sketch_store.storage.names import REMOVAL_MARK, SEAL_LOCK
from feast_sketch_store.view import live, removal
from feast_sketch_store.view.loading import ShardLoader
from feast_sketch_store.view.opening import ReadOnlyView, open_view
from feast_sketch_store.view.rebuilding import rebuild
from feast_sketch_store.view.removal import remove_view
from feast_sketch_store.view.seal_policy import Due, SealPolicy, Sizes
from feast_sketch_store.view.semantics import APPEND, REPLACE, SEMANTICS
from feast_sketch_store.view.shard import Dropped
from feast_sketch_store.view.view import View
from tests.helpers.histories import ALWAYS, CODEC, MOMENT, NEVER, Process, filling, items_of, put, settings_of
from tests.helpers.keys import user_hashes
from tests.helpers.length import by_length
from tests.helpers.meanwhile import once_after
from tests.storage import memory
from tests.storage.memory import MemoryStorage, ObjectsInMemory

SETTINGS = settings_of(0.01)
HOUR = 3600  # seconds


def living(hours, **more):
    """Settings of a view whose rows expire after so many hours, or never."""
    return settings_of(0.01, ttl_microseconds=hours and hours * HOUR * 1_000_000, **more)


@pytest.fixture
def make_view(tmp_path):
    """Makes views over one folder, each as its own process would."""
    return partial(Process, tmp_path / "view", SETTINGS)


@pytest.fixture
def clock(monkeypatch):
    """Its only element is the time, in seconds since 1970."""
    seconds = [int(MOMENT.timestamp())]
    monkeypatch.setattr(time, "time_ns", lambda: seconds[0] * 10**9)
    return seconds


@pytest.mark.parametrize(
    ("unsealed", "sealed", "wants"), [(10, 0, False), (11, 0, True), (11, 200, False), (21, 200, True)]
)
def test_the_policy_seals_past_both_bounds(unsealed, sealed, wants):
    policy = SealPolicy(share=0.1, min_rows=10)
    due = Due.BASE if wants else None
    assert policy.due(Sizes(unsealed_rows=unsealed, sealed_rows=sealed)) is due
    in_bytes = Sizes(unsealed, 1000 * unsealed, sealed_rows=10**9, sealed_bytes=1000 * sealed)
    assert policy.due(in_bytes) is due


@pytest.mark.slow
def test_layers_of_unsealed_rows_stay_few(make_view):
    view = make_view()
    for user in range(70):
        view.put(user, f"item {user}")
        assert view.get(user) == {user: {f"item {user}"}}
    assert len(view.view.shards[0].state.exact) <= 8
    assert view.get(*range(70)) == {user: {f"item {user}"} for user in range(70)}


def test_rows_are_taken_up_over_a_snapshot_that_others_have_replaced(make_view):
    """Its files are removed meanwhile, also one that was not needed yet."""
    writer, sealer = make_view(1e9), make_view()
    sealer.put_all({user: ["old"] for user in range(5)}, second=1, policy=ALWAYS)
    assert writer.get(0) == {0: {"old"}}
    writer.put(0, "new", second=2)  # certainly newer
    for user in range(1, 4):
        writer.put(user, "new", second=1)  # maybe late, and deferred
        sealer.view.refresh()
        assert sealer.view.seal()
    writer.view.refresh()
    assert writer.get(*range(5)) == {user: {"new" if user < 4 else "old"} for user in range(5)}


@pytest.mark.parametrize("is_sealed", [False, True], ids=["with a log", "with a snapshot"])
def test_a_view_that_is_dropped_while_its_snapshot_is_opened_is_not_mixed_with_the_next(make_view, is_sealed):
    """The log does not tell: it has more commits than the snapshot of the one before covers."""
    writer, reader = make_view(), make_view()
    writer.put(1, "old")
    writer.view.seal()

    def drop():
        remove_view(writer.view.storage)
        writer.put(2, "new", second=1)
        writer.put(3, "new", second=1)
        if is_sealed:
            writer.view.seal()

    with once_after(ShardLoader, "_opened", drop):
        assert reader.get(1, 2, 3) == {2: {"new"}, 3: {"new"}}
    assert reader.get(1, 2, 3) == {2: {"new"}, 3: {"new"}}


def test_snapshots_that_are_newer_than_the_rows_are_refused(make_view, tmp_path, caplog):
    """As in a copy of the folder that was made while others wrote: later rows would hide behind them."""
    view = make_view()
    view.put("a", "i1")
    view.view.seal()
    shutil.copytree(tmp_path / "view", tmp_path / "copy")
    view.put("b", "i2")
    view.put("c", "i3")
    view.view.seal()
    shutil.copytree(tmp_path / "view" / "snapshots", tmp_path / "copy" / "snapshots", dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "view")
    (tmp_path / "copy").rename(tmp_path / "view")
    reader = make_view()
    for _ in range(2):
        with pytest.raises(DamagedFileError, match=r"snapshots/.* up to commit 2, .*rows end at commit 0"):
            reader.get("a")
    with pytest.raises(DamagedFileError, match=r"snapshots/.* version 1 .*rows, which ends at version 0: "):
        make_view().view.seal()
    for writer in (reader, make_view()):
        with pytest.raises(DamagedFileError, match=r"ends before commit 1, .*snapshots/.* to commit 2: "):
            writer.put("b", "i4")
    assert "rows are written" not in caplog.text
    shutil.rmtree(tmp_path / "view" / "snapshots")
    assert make_view().get("a", "b") == {"a": {"i1"}}
    copy = make_view()
    copy.put("b", "i4")
    assert copy.view.seal()
    assert make_view().get("a", "b") == {"a": {"i1"}, "b": {"i4"}}


def test_a_rebuild_that_only_the_snapshots_of_a_copy_have_is_not_undone(make_view, tmp_path):
    """As in a copy of the folder that was made during a rebuild: the next seal would bring old rows back."""
    view = make_view()
    view.put("a", "old")
    view.view.seal()
    for part in ("rows", "fresh"):
        shutil.copytree(tmp_path / "view" / part, tmp_path / part)
    rebuild(view.view, filling(SETTINGS, {"a": {"new"}}))
    for part in ("rows", "fresh"):
        shutil.rmtree(tmp_path / "view" / part)
        (tmp_path / part).rename(tmp_path / "view" / part)
    for use in (lambda v: v.put("b", "i1"), lambda v: v.view.seal(), lambda v: v.view.absorb()):
        with pytest.raises(DamagedFileError, match=r"snapshots/.* version 1 .*rows, which ends at version 0"):
            use(make_view())
    assert make_view().get("a") == {"a": {"new"}}
    shutil.rmtree(tmp_path / "view" / "snapshots")
    copy = make_view()
    copy.put("b", "i1")
    assert copy.view.seal()
    assert make_view().get("a", "b") == {"a": {"old"}, "b": {"i1"}}


def test_nobody_waits_for_the_lease_of_a_view_that_is_gone(make_view, tmp_path, monkeypatch):
    view = make_view()
    view.put("a", "i1")
    shutil.rmtree(tmp_path / "view")
    monkeypatch.setattr("feast_sketch_store.view.view.time.sleep", None)
    view.view.lock_timeout_seconds = 60.0
    assert (view.view.seal(timeout_seconds=60.0), view.view.vacuum()) == (False, 0)
    assert not (tmp_path / "view").exists()


class CutOff(ObjectsInMemory):
    """A bucket that deletes so many objects, one after the other, and then is out of reach."""

    def __init__(self, files, num_deletions, prefix=""):
        super().__init__(files, prefix=prefix)
        self.left = num_deletions

    def within(self, folder):
        part = super().within(folder)
        part.left = self.left
        return part

    def delete(self, names):
        for name in sorted(names):
            if next(self.left, None) is None:
                raise StorageError("out of reach")
            super().delete([name])

    def delete_all(self):
        self.delete([info.name for info in self.walk()])


def test_a_drop_in_a_bucket_that_is_cut_off_brings_no_dropped_rows_back(monkeypatch):
    monkeypatch.setattr(removal, "_CUT_OFF_SECONDS", -1.0)
    is_whole, num_refused = False, 0
    for num_deletions in itertools.count():
        storage = ObjectsInMemory()
        view = View(storage, settings_of(1e-9, presence=1e-9), NEVER, 0.0)
        for user in range(3):
            put(view, {user: ["old"]})
        view.seal()
        put(view, {3: ["old"]})
        try:
            remove_view(CutOff(storage.files, iter(range(num_deletions))))
            is_whole = True
        except StorageError:
            pass
        again = open_view(ObjectsInMemory(storage.files), view.settings, NEVER, 0.0)
        try:
            there = items_of(again, range(4))
            assert there in ({user: {"old"} for user in range(4)}, {})
            for user in range(4, 10):
                there |= put(again, {user: ["new"]})
            assert items_of(open_view(storage, view.settings, NEVER, 0.0), range(10)) == there
        except DamagedFileError:
            num_refused += 1
            with pytest.raises(DamagedFileError, match="remove the view with `feast apply`"):
                put(again, {4: ["new"]})
        if is_whole:
            break
    assert 0 < num_refused < num_deletions


@pytest.mark.parametrize("storage_type", [MemoryStorage, ObjectsInMemory])
def test_nobody_begins_a_log_while_a_view_is_removed_or_in_a_bucket_just_after_a_cut_off(
    storage_type, monkeypatch
):
    monkeypatch.setattr(memory, "time", Mock(time=lambda: 1_000.0))  # the clock of the storage is far behind
    storage = storage_type()
    view = open_view(storage, settings_of(1e-9), NEVER, 0.0)
    storage.replace(REMOVAL_MARK, b"")
    is_removing = storage.lease(SEAL_LOCK) if storage.supports_leases else nullcontext()
    with is_removing, pytest.raises(StorageError, match=r"'history' is being removed. .* after 60 seconds"):
        put(view, {1: ["a"]})
    if not storage.supports_leases:
        monkeypatch.setattr(removal, "_CUT_OFF_SECONDS", -1.0)
    there = put(view, {1: ["a"]})
    assert items_of(view, [1]) == there
    assert storage.info(REMOVAL_MARK) is None
    storage.replace(REMOVAL_MARK, b"")
    assert items_of(view, [1]) | put(view, {2: ["b"]}) == items_of(view, [1, 2])
    remove_view(storage)
    assert list(storage.walk()) == []


def test_no_rows_are_left_of_a_snapshot_that_is_gone_without_another(make_view):
    """In a bucket, files of a view that is dropped go one after the other."""
    writer, reader = make_view(), make_view()
    writer.put(1, "old")
    writer.view.seal()
    storage = writer.view.storage
    snapshots = {info.name: storage.read(info.name) for info in storage.walk() if "snapshots" in info.name}
    remove_view(storage)
    writer.put(2, "new", second=1)
    writer.put(3, "new", second=1)
    for name, content in snapshots.items():
        storage.replace(name, content)
    assert 1 in reader.get(1)
    storage.delete(list(snapshots))
    assert reader.get(1, 2, 3) == {2: {"new"}, 3: {"new"}}


def test_two_snapshots_are_kept(make_view, tmp_path):
    view = make_view()
    for user in range(5):
        view.put(user, "x", policy=ALWAYS)
    names = sorted(path.name for path in (tmp_path / "view" / "snapshots").iterdir())
    assert len(names) == 6
    assert [name.split(".", 1)[1] for name in names] == ["base.sketch", "json", "order.sketch"] * 2


def test_sealing_the_same_rows_anew_takes_the_newest_settings(make_view):
    view = make_view()
    # Many rows fill a table evenly.
    view.put_all({user: [f"item {user * 7 % 100}", f"item {user * 3 % 97}"] for user in range(1000)})
    other = make_view()
    assert other.get(1)
    for rate in (0.1, 0.05, 0.01, 0.001):
        view.view.settings = settings_of(rate)
        assert view.view.seal()
        for reader in (view, other):
            expected = reader.view.stats().expected_false_positive_rates["viewed"]
            assert rate / 2 < expected <= rate * 1.01


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (StorageError("No space left on device"), "No space left on device"),
        (MemoryError(), "a seal needs more memory than this process can have. Give it more"),
    ],
)
def test_a_failed_seal_keeps_the_write_and_is_told_once(make_view, monkeypatch, caplog, error, told):
    view = make_view()
    monkeypatch.setattr("feast_sketch_store.snapshot.files._write", Mock(side_effect=error))
    for _ in range(3):
        view.put(1, "x", policy=ALWAYS)
        view.view.settle()
    assert caplog.text.count(told) == caplog.text.count("; the rows are kept, a later write seals them") == 1
    assert view.get(1) == {1: {"x"}}
    assert make_view().get(1) == {1: {"x"}}


def test_a_write_to_a_view_that_others_dropped_and_filled_meanwhile_shows_their_rows(make_view):
    view, other = make_view(1e9), make_view()
    view.put(1, "dropped")
    assert view.get(1) == {1: {"dropped"}}
    remove_view(other.view.storage)
    make_view().put(2, "theirs")
    view.put(3, "ours")
    assert view.get(1, 2, 3) == {2: {"theirs"}, 3: {"ours"}}


def test_rows_of_others_leave_the_sealed_rows_open(make_view):
    reader, writer = make_view(), make_view()
    writer.put(1, "x")
    writer.view.seal()
    assert reader.get(1)[1] >= {"x"}
    sealed = reader.view.shards[0].state.sealed
    writer.put(2, "y")
    assert reader.get(1, 2).keys() == {1, 2}
    assert reader.view.shards[0].state.sealed is sealed


@pytest.mark.slow
def test_stats_add_up(make_view, tmp_path):
    view = make_view()
    for user in range(100):
        view.put(user, *(f"item {n}" for n in range(user % 7)))
    view.view.seal()
    view.put(1000, "unsealed")
    stats = view.view.stats()
    assert stats.sealed_entities == 100
    assert stats.sealed_facts == sum(user % 7 for user in range(100)) + 100
    assert stats.unsealed_rows == 1
    assert stats.unsealed_bytes > 0
    (snapshot,) = (tmp_path / "view" / "snapshots").glob("*.base.*")
    assert stats.snapshot_bytes == snapshot.stat().st_size > stats.table_bytes
    assert stats.structures == {"viewed": "bloom"}
    assert stats.fact_bytes == stats.table_bytes <= 1.1 * stats.ideal_bits / 8


@pytest.mark.slow
@pytest.mark.has_long_form
def test_an_open_view_holds_no_descriptor(make_view, tmp_path):
    """A server has hundreds of views, and often no more than 1,024 descriptors for all it does."""
    made = make_view()
    made.put(1, "old", second=2, policy=ALWAYS)
    made.put(1, "late", second=1)  # makes readers map the order index, too
    made.put(2, "unsealed")
    folders = [tmp_path / f"view {number}" for number in range(by_length(100, 200))]
    for folder in folders:
        shutil.copytree(tmp_path / "view", folder)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = set(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, before)) + 101, hard))
    try:
        views = [View(LocalStorage(folder), SETTINGS, NEVER, 0.0) for folder in folders]
        for view in views:
            assert view.read(user_hashes([1, 2]), ["viewed"]).found.tolist() == [0, 1]
            assert view.shards[0]._loader._order is not None
        assert len(os.listdir("/proc/self/fd")) <= len(before) + 20
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def lose(monkeypatch, writer, user, *quick):
    """Make the write of a user's row fail, after quick readers have seen it."""
    seen = []

    def fail(descriptor):
        seen.extend(reader.get(user) for reader in quick)
        raise OSError(errno.EIO, "the disk is broken")

    with monkeypatch.context() as broken:
        broken.setattr(local, "fdatasync", fail)
        with pytest.raises(StorageError):
            writer.put(user, "lost")
    assert seen == [{user: {"lost"}} for _ in quick], "the test is of readers who were that quick"


@pytest.mark.parametrize("later", [["kept"], ["one more that is kept"], None])
@pytest.mark.parametrize("is_segment_gone", [False, True])
def test_a_row_that_was_read_while_its_write_failed_goes_again(
    make_view, monkeypatch, later, is_segment_gone
):
    """Whether the next record is as long, longer, or there is none yet."""
    writer, reader = make_view(), make_view()
    writer.put(1, "before")
    assert reader.get(1) == {1: {"before"}}
    lose(monkeypatch, writer, 2, reader)
    if later is not None:
        writer.put(3, *later)
    if is_segment_gone:
        writer.view.absorb()
    expected = {1: {"before"}} | ({} if later is None else {3: set(later)})
    assert reader.get(1, 2, 3) == make_view().get(1, 2, 3) == expected
    for view in (reader, writer, make_view()):
        assert view.get(1, 2, 3) == expected
        view.put(4, "more")
        assert view.get(1, 2, 3, 4) == expected | {4: {"more"}}
    assert reader.get(1, 2, 3, 4) == expected | {4: {"more"}}


def test_a_write_that_failed_long_ago_costs_readers_nothing(make_view, monkeypatch, caplog):
    writer, reader = make_view(), make_view()
    lose(monkeypatch, writer, 1)
    for user in (2, 3):
        writer.put(user, "kept")
        assert reader.get(user) == {user: {"kept"}}
        writer.view.absorb()
        for view in (writer, reader):
            assert view.get(1, user) == {user: {"kept"}}
    assert "reading the log again" not in caplog.text


def test_rows_of_a_rebuild_before_the_first_write_are_sealed_only(make_view):
    view, other = make_view(), make_view()
    rebuild(view.view, filling(SETTINGS, {1: {"new"}}))
    for each in (view, other, make_view()):
        assert each.get(1) == {1: {"new"}}
        each.view.refresh()
        stats = each.view.stats()
        assert (stats.sealed_entities, stats.unsealed_rows) == (1, 0)
    view.put(2, "pushed", second=1)
    assert other.get(1, 2) == {1: {"new"}, 2: {"pushed"}}


class Killed(BaseException):
    """Ends a writer where it is."""


@pytest.mark.parametrize("fails", ["fsync and unlink", "the snapshot", "the writer"])
def test_all_agree_on_a_rebuild_that_was_cut_short(make_view, monkeypatch, caplog, fails):
    """Also those who have read the old rows and read on."""
    view, other = make_view(), make_view()
    view.put(1, "old", policy=ALWAYS)
    assert other.get(1) == {1: {"old"}}
    is_broken = False

    def failing(original, error=OSError):
        def run(*arguments, **named):
            if is_broken:
                raise error(errno.EIO, "the disk is broken") if error is OSError else error("broken")
            return original(*arguments, **named)

        return run

    def breaking(original):
        def run(*arguments, **named):
            nonlocal is_broken
            is_broken = True
            return original(*arguments, **named)

        return run

    if fails == "fsync and unlink":  # of the commit that replaces the rows
        monkeypatch.setattr(Path, "unlink", failing(Path.unlink))
        monkeypatch.setattr(local, "fsync_path", failing(local.fsync_path))
        monkeypatch.setattr(Table, "_write", breaking(Table._write))
        error = StorageError
    else:
        error = StorageError if fails == "the snapshot" else Killed
        monkeypatch.setattr(SnapshotFolder, "publish", breaking(failing(SnapshotFolder.publish, error)))
    with nullcontext() if fails == "the snapshot" else pytest.raises(error):
        rebuild(view.view, filling(SETTINGS, {2: {"new"}}))
    assert is_broken
    assert ("broken" in caplog.text) == (fails == "the snapshot")
    monkeypatch.undo()
    for each in (make_view(), other, view):
        assert each.get(1, 2) == {2: {"new"}}
    assert verify_view(view.view.storage, [CODEC]).problems == []
    view.put(3, "pushed")
    assert make_view().view.seal()
    assert other.get(1, 2, 3) == view.get(1, 2, 3) == {2: {"new"}, 3: {"pushed"}}


def test_a_rebuild_that_cannot_be_announced_changes_nothing(make_view):
    view, other = make_view(), make_view()
    view.put(1, "old", policy=ALWAYS)
    assert other.get(1) == {1: {"old"}}
    with (
        patch.object(RowLog, "announce_replacement", side_effect=StorageError("broken")),
        pytest.raises(StorageError),
    ):
        rebuild(view.view, filling(SETTINGS, {2: {"new"}}))
    for each in (view, other, make_view()):
        assert each.get(1, 2) == {1: {"old"}}


def test_rows_are_read_between_the_announcement_of_a_rebuild_and_its_end(make_view, monkeypatch):
    view, other, late = make_view(), make_view(), make_view()
    view.put(1, "old", policy=ALWAYS)
    assert other.get(1) == {1: {"old"}}
    compact = RowLog.compact

    def read_first(log, *arguments):
        other.put(3, "pushed")
        assert other.get(1, 2, 3) == {1: {"old"}, 3: {"pushed"}}
        assert late.get(1, 2, 3) == {1: {"old"}, 3: {"pushed"}}
        late.put(4, "pushed")  # it takes up its own row without a look at the files
        assert late.get(1, 4) == {1: {"old"}, 4: {"pushed"}}
        assert compact(log, *arguments)
        raise Killed

    with monkeypatch.context() as killed:
        killed.setattr(RowLog, "compact", read_first)
        with pytest.raises(Killed):
            rebuild(view.view, filling(SETTINGS, {2: {"new"}}))
    for each in (other, late, make_view(), view):
        assert each.get(1, 2, 3, 4) == {2: {"new"}, 3: {"pushed"}, 4: {"pushed"}}


@pytest.mark.parametrize("semantics", [REPLACE, APPEND])
def test_a_seal_and_its_compaction_leave_out_the_same_expired_rows(tmp_path, monkeypatch, clock, semantics):
    """Hours lie between them, in which a third of the rows expire."""
    view = View(LocalStorage(tmp_path), living(4, semantics=semantics), NEVER, 0.0)
    for second in (0, 1, 2, 4 * HOUR):
        put(view, {user: {f"read {second}"} for user in range(10 + 20 * bool(second))}, second)
    put(view, {user: {"last"} for user in range(20, 30)}, 12 * HOUR)
    clock[0] += 4 * HOUR + 1
    compact, compacted = RowLog.compact, []

    def hours_pass():
        clock[0] += 4 * HOUR

    def note_compact(log, *arguments):
        compacted.append(compact(log, *arguments))
        return compacted[-1]

    monkeypatch.setattr(RowLog, "compact", note_compact)
    with once_after(SnapshotFolder, "publish", hours_pass):
        assert view.seal()
    assert compacted == [True]
    found = verify_view(LocalStorage(tmp_path), [CODEC], semantics=semantics)
    assert (found.problems, found.compared_entities) == ([], 30)


@pytest.mark.parametrize(("first", "second"), [(5, 2), (2, 5), (None, 2)])
def test_a_seal_goes_on_with_the_settings_that_it_began_with(tmp_path, clock, first, second):
    """A thread writes with another ttl, in hours, between its snapshot and its compaction."""
    view = View(LocalStorage(tmp_path), living(first), NEVER, 0.0)
    put(view, {user: {"a"} for user in range(10)})
    for n in range(3):
        put(view, {user: {f"b{n}"} for user in range(10, 20)}, 3 * HOUR + n)
    clock[0] += 4 * HOUR
    changing = threading.Thread(target=setattr, args=(view, "settings", living(second)))
    with once_after(SnapshotFolder, "publish", lambda: (changing.start(), changing.join())):
        assert view.seal()
    assert view.settings == living(second) == view.shards[0].settings
    assert verify_view(LocalStorage(tmp_path), [CODEC]).problems == []


@pytest.mark.parametrize("keep", [None, False, True], ids=["sealed", "rebuilt", "added to"])
def test_what_a_seal_left_out_stays_known(tmp_path, clock, keep):
    """A later seal with a longer ttl keeps older rows than the one before; those in between are gone."""
    view = View(LocalStorage(tmp_path), living(1, semantics=APPEND), NEVER, 0.0)
    put(view, {1: {"old"}, 2: {"newest"}})
    clock[0] += 2 * HOUR
    put(view, {1: {"new"}}, 2 * HOUR)
    view.seal()
    first = view.shards[0].state.sealed
    assert first.since == first.complete_since == (clock[0] - HOUR) * 1_000_000
    view.settings = living(5, semantics=APPEND)
    if keep is None:
        put(view, {1: {"newer"}}, 2 * HOUR)
        view.seal()
    else:
        rebuild(view, filling(view.settings, {3: {"other"}}, 2 * HOUR), keep=keep)
    opened = open_view(LocalStorage(tmp_path), view.settings, NEVER, 0.0)
    opened.refresh()
    second = opened.shards[0].state.sealed
    assert second.since == (clock[0] - 5 * HOUR) * 1_000_000
    assert second.complete_since == (second.since if keep is False else first.complete_since)


def test_a_seal_follows_rows_that_were_divided_meanwhile(tmp_path):
    storage, four = LocalStorage(tmp_path), replace(SETTINGS, num_shards=4)
    behind = open_view(storage, SETTINGS, NEVER, 3600.0)
    put(behind, {7: ["a"]})
    divide(storage, four, NEVER, wait=lambda seconds: None)
    other = open_view(storage, four, NEVER, 0.0)
    put(other, {7: ["b"]}, 1)
    assert behind.seal()
    other.refresh()
    assert (len(behind.shards), other.sizes().unsealed_rows) == (4, 0)
    assert items_of(other, [7]) == {7: {"b"}}


def test_a_rebuild_asks_about_no_row_that_expired_while_it_was_filled(tmp_path, clock):
    view = View(LocalStorage(tmp_path), living(4), NEVER, 0.0)
    put(view, {1: {"a"}, 2: {"b"}})
    put(view, {3: {"c"}, 4: {"d"}}, 4 * HOUR + 1)
    asked = []

    def fill(storage):
        clock[0] += 4 * HOUR + 1
        return filling(view.settings, {3: {"c"}, 5: {"e"}}, 4 * HOUR + 1)(storage)

    assert not rebuild(view, fill, asked.append)
    assert asked == [Dropped(1, 0)]  # the fourth


def test_a_process_that_does_not_know_the_semantics_refuses_the_view_by_name(tmp_path, monkeypatch):
    view = open_view(LocalStorage(tmp_path / "shop"), living(None, semantics=APPEND))
    put(view, {1: ["a"]})
    assert view.seal()
    ReadOnlyView(view.storage, "history", 0.0)
    monkeypatch.delitem(SEMANTICS, APPEND)
    with pytest.raises(DamagedFileError, match=r"shop.*'append', which this process does not know"):
        ReadOnlyView(view.storage, "history", 0.0)


def test_a_process_keeps_nothing_of_views_that_are_gone():
    gc.collect()
    before = len(live._views)
    for _ in range(3):
        put(View(MemoryStorage(), settings_of(0.01), NEVER, 0.0), {1: ["a"]})
    gc.collect()
    assert len(live._views) <= before
