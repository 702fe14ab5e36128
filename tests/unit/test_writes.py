"""Writes of a view: commits that are shared, seals beside them, children that were forked."""

import concurrent.futures.thread
import math
import multiprocessing
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from feast.protos.feast.types.Value_pb2 import Value

from feast_sketch_store.errors import RowError
from feast_sketch_store.layers import Goal
from feast_sketch_store.storage import local
from feast_sketch_store.storage.local import LocalStorage
from feast_sketch_store.threads import leaves_a_core
from feast_sketch_store.view import folding
from feast_sketch_store.view import shard as shard_module
from feast_sketch_store.view import view as view_module
from feast_sketch_store.view.loading import ShardLoader
from feast_sketch_store.view.rebuilding import rebuild
from feast_sketch_store.view.seal_policy import SealPolicy
from feast_sketch_store.view.view import View
from tests.helpers.histories import ALWAYS, MOMENT, NEVER, items_of, put, row, settings_of
from tests.helpers.interrupts import interrupted
from tests.helpers.keys import user_hashes, user_key
from tests.helpers.no_threads import no_new_threads
from tests.helpers.processes import run_forked

SETTINGS, ROOMY = settings_of(0.01), settings_of(0.01, 10**6)


def found(view, *users):
    return sorted(users[p] for p in view.read(user_hashes(users), ["viewed"]).found)


@pytest.fixture
def make_view(tmp_path):
    return lambda policy=NEVER: View(LocalStorage(tmp_path / "view"), SETTINGS, policy, 0.0)


def slowly(view, monkeypatch):
    """Snapshots are published when the event is set that is returned; the other one tells that one waits."""
    begun, may_publish = threading.Event(), threading.Event()
    publish = view.shards[0].snapshots.publish

    def slow_publish(draft):
        begun.set()
        assert may_publish.wait(60)
        return publish(draft)

    monkeypatch.setattr(view.shards[0].snapshots, "publish", slow_publish)
    return begun, may_publish


def test_writes_of_threads_share_commits(make_view, monkeypatch):
    view, first = make_view(), threading.Event()
    append, tables = view.shards[0].row_log.append, []

    def slow_append(table):
        tables.append(len(table))
        while len(tables) == 1 and len(view._commits._queue) < 15:
            first.wait(0.001)
        return append(table)

    monkeypatch.setattr(view.shards[0].row_log, "append", slow_append)
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda user: view.write([row(user, "x")]), range(16)))
    assert tables == [1, 15]
    assert found(make_view(), *range(16)) == list(range(16))


def test_a_bad_row_is_refused_alone(make_view, monkeypatch):
    view = make_view()
    bad = (user_key(7), {"viewed": Value(int64_val=1)}, MOMENT, None)
    append, tables = view.shards[0].row_log.append, []

    def slow_append(table):
        tables.append(len(table))
        while len(tables) == 1 and len(view._commits._queue) < 3:
            threading.Event().wait(0.001)
        return append(table)

    monkeypatch.setattr(view.shards[0].row_log, "append", slow_append)
    with ThreadPoolExecutor(4) as pool:
        begun = [pool.submit(view.write, [row(1, "x")])]
        while not tables:
            threading.Event().wait(0.001)
        begun += [pool.submit(view.write, [written]) for written in (row(2, "x"), bad, row(3, "x"))]
        begun[0].result(60)
        with pytest.raises(RowError, match="feature 'viewed' takes string_set_val, but row 0"):
            begun[2].result(60)
        for done in (begun[1], begun[3]):
            done.result(60)
    assert found(make_view(), 1, 2, 3, 7) == [1, 2, 3]


@pytest.mark.skipif(sys.platform != "linux", reason="a priority belongs to a process")
def test_seals_beside_writes_give_way_to_reads(make_view, monkeypatch):
    """Only the thread of the seal does, with those that it starts."""

    def priority():
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    def fold(*arguments):
        priorities.append((priority(), leaves_a_core()))
        return folding.fold(*arguments)

    priorities, own = [], priority()
    monkeypatch.setattr(shard_module, "fold", fold)
    view = make_view(SealPolicy(0.5, 3))
    for user in range(6):
        view.write([row(user, "x")])
    view.settle()
    assert priorities
    assert set(priorities) == {(max(10, own), True)}
    assert priority() == own
    view.seal()
    assert priorities[-1] == (own, False)


def test_small_writes_wait_for_no_seal_not_even_the_first_one(make_view, monkeypatch):
    view = make_view(SealPolicy(0.5, 3))
    _, may_publish = slowly(view, monkeypatch)
    for user in range(6):
        view.write([row(user, "x")])
    assert view.state.sealed is None
    may_publish.set()
    view.settle()
    assert view.stats().sealed_entities >= 4


def test_the_writer_of_a_large_batch_waits_for_its_seal_alone(make_view, monkeypatch):
    view = make_view(SealPolicy(0.5, 20))
    begun, may_publish = slowly(view, monkeypatch)
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(view.write, [row(user, "x") for user in range(100)])
        assert begun.wait(60)
        assert not late.done()
        view.write([row(400, "x")])  # a small one goes on
        assert found(view, 99, 400) == [99, 400]
        may_publish.set()
        late.result(60)
    assert view.stats().sealed_entities >= 100


def write_and_end(folder):
    """Write so much that a seal is due, which comes to its threads when the interpreter ends."""
    view = View(LocalStorage(folder), SETTINGS, SealPolicy(0.5, 20), 0.0)
    fold = view.shards[0].rows_of

    def late_fold(*arguments):
        while not concurrent.futures.thread._shutdown:
            threading.Event().wait(0.001)
        return fold(*arguments)

    view.shards[0].rows_of = late_fold
    for user in range(25):
        view.write([row(user, "x")])


def test_a_seal_is_finished_when_its_process_ends(tmp_path, make_view):
    run_forked(write_and_end, tmp_path / "view")
    assert make_view().stats().sealed_entities >= 21


def test_a_write_succeeds_where_no_thread_can_be_started_for_a_seal(make_view, monkeypatch, caplog):
    view = make_view(SealPolicy(0.5, 20))
    view.write([row(user, "x") for user in range(100)])

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for user in range(100, 160):
            view.write([row(user, "y")])
    assert "can't start new thread" in caplog.text
    view.settle()
    assert found(make_view(), *range(160)) == list(range(160))
    view.write([row(160, "y")])
    view.settle()
    assert view.stats().sealed_entities == 161


@pytest.mark.slow
def test_reads_go_on_where_no_thread_can_be_started_to_refresh(tmp_path):
    settings = settings_of(Goal("error_rate", 1e-9, "sets"))
    writer = View(LocalStorage(tmp_path / "view"), settings, ALWAYS, 0.0)
    put(writer, {user: [f"item {user} {number}" for number in range(800)] for user in range(1_000)})
    reader = View(LocalStorage(tmp_path / "view"), settings, NEVER, 3600.0)
    with no_new_threads():  # not to read the snapshot ahead, either
        assert items_of(reader, [1001]) == {}
        run_forked(put, writer, {1001: ["a"]})
        for seconds in (2700, 3600):
            reader.shards[0]._polled_at -= seconds
            reader._good_until = -math.inf
            assert items_of(reader, [1001]) == {1001: {"a"}}


def test_seals_end_though_others_write_without_pause(make_view, monkeypatch):
    view = make_view()
    begun, may_go_on = threading.Event(), threading.Event()

    def seal():
        begun.set()
        assert may_go_on.wait(60)
        return True

    monkeypatch.setattr(view, "_seal_if_due", seal)
    monkeypatch.setattr(view, "_is_due", lambda: True)
    view._maintain_beside()
    assert begun.wait(60)
    ending = threading.Thread(target=view.end_seals)
    ending.start()
    while not view._sealer.has_ended:
        time.sleep(0.001)
    may_go_on.set()
    ending.join(60)
    assert not ending.is_alive()
    begun.clear()
    view._maintain_beside()
    assert not begun.is_set()
    view.settle()


def test_a_process_ends_though_others_write_without_pause(make_view, monkeypatch):
    view = make_view()
    monkeypatch.setattr(view, "_seal_if_due", lambda: True)
    monkeypatch.setattr(view, "_is_due", lambda: True)
    run_forked(view._maintain_beside)


@pytest.mark.slow
@pytest.mark.parametrize("is_read", [False, True])
@pytest.mark.parametrize("act", [View.seal, View.absorb])
def test_writes_wait_for_no_step_of_a_seal(tmp_path, monkeypatch, act, is_read):
    """Before each thing that it does with a file another thread writes a row, and that write returns.

    Only the records of the log that the seal itself appends are left out: writes wait for those.
    """
    view = slow_view(tmp_path, settings=ROOMY)
    for user in (*range(20), *range(20)):  # the log is compacted after the seal
        view.write([row(user, "x")])
    sealer, written, appends = threading.current_thread(), [], []
    lease = LocalStorage.lease

    def step():
        if threading.current_thread() is sealer and not appends:
            view.shards[0]._was_read = is_read  # as if another thread read all the time
            written.append(100 + len(written))
            writer.submit(view.write, [row(written[-1], "y")]).result(60)

    def after_a_write(call):
        def watched(*arguments, **options):
            step()
            return call(*arguments, **options)

        return watched

    @contextmanager
    def watched_lease(self, name, wait=False, create=True):
        is_append = name == "lock" and threading.current_thread() is sealer
        if not is_append:
            step()
        with lease(self, name, wait, create) as is_mine:
            appends.extend([name] * is_append)
            try:
                yield is_mine
            finally:
                del appends[:]

    calls = ["append", "create", "delete", "info", "list", "map", "note", "read", "replace", "walk"]
    with ThreadPoolExecutor(1) as writer, monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "lease", watched_lease)
        for name in calls:
            patch.setattr(LocalStorage, name, after_a_write(getattr(LocalStorage, name)))
        act(view)
    assert len(written) > 20
    assert found(view, *range(20), *written) == [*range(20), *written]
    assert found(slow_view(tmp_path), *range(20), *written) == [*range(20), *written]


@pytest.mark.parametrize("interval", [0.0, 3600.0], ids=["taken up", "deferred"])
def test_many_small_commits_are_absorbed(tmp_path, monkeypatch, interval):
    monkeypatch.setattr(view_module, "_MAX_WAL_COMMITS", 10)
    view = View(LocalStorage(tmp_path / "view"), SETTINGS, NEVER, interval)
    for user in range(50):
        view.write([row(user, "x")])
        view.settle()
    files = list((view.storage.path / "rows").glob("*.parquet"))
    assert 3 <= len(files) <= 5, "in few files"
    assert found(view, *range(50)) == found(slow_view(tmp_path), *range(50)) == list(range(50))


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_child_that_is_forked_during_a_write_of_its_parent_writes(make_view, monkeypatch):
    view = make_view()
    view.write([row(1, "x")])
    syncs, may_sync = threading.Event(), threading.Event()
    fdatasync, parent = local.fdatasync, os.getpid()

    def slow_sync(descriptor):
        if os.getpid() == parent:
            syncs.set()
            assert may_sync.wait(60)
        fdatasync(descriptor)

    monkeypatch.setattr(local, "fdatasync", slow_sync)
    writer = threading.Thread(target=view.write, args=([row(2, "y")],))
    writer.start()
    assert syncs.wait(60)
    child = multiprocessing.get_context("fork").Process(target=view.write, args=([row(3, "z")],))
    child.start()
    may_sync.set()
    writer.join()
    child.join(60)
    is_hung = child.is_alive()
    child.kill()
    child.join()
    assert not is_hung
    assert child.exitcode == 0
    assert found(view, 1, 2, 3) == [1, 2, 3]


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_child_writes_and_seals_after_its_parent(make_view):
    view = make_view()
    view.write([row(1, "x")])
    view.seal()

    def work():
        view.write([row(2, "y")])
        assert view.seal()

    run_forked(work)
    view.write([row(3, "z")])
    assert found(view, 1, 2, 3) == [1, 2, 3]


def test_a_write_does_not_read_back_what_it_wrote(make_view, monkeypatch):
    view = make_view()
    view.write([row(1, "x")])
    monkeypatch.setattr("feast_sketch_store.row_log.wal.commits_of", lambda *_: pytest.fail("read"))
    view.write([row(2, "y")])
    assert found(view, 1, 2) == [1, 2]


@pytest.fixture
def encoded(monkeypatch):
    """Collects how many rows are taken up at a time."""
    sizes, apply_commits = [], ShardLoader._with_rows

    def counting(self, state, table, *arguments):
        sizes.append(len(table))
        return apply_commits(self, state, table, *arguments)

    monkeypatch.setattr(ShardLoader, "_with_rows", counting)
    return sizes


def slow_view(tmp_path, policy=NEVER, settings=SETTINGS):
    """A view that looks for the writes of others once an hour."""
    return View(LocalStorage(tmp_path / "view"), settings, policy, 3600.0)


def test_rows_that_nobody_reads_are_taken_up_together(tmp_path, encoded):
    view = slow_view(tmp_path)
    for user in range(20):
        view.write([row(user, "x")])
    assert encoded == []
    assert found(view, *range(21)) == list(range(20))
    assert encoded == [20]
    view.write([row(20, "x")])
    assert encoded == [20, 1], "who reads does not wait for rows to be taken up"
    assert found(view, *range(21)) == list(range(21))


def test_rows_that_were_not_taken_up_are_not_read_back(tmp_path, encoded, monkeypatch):
    view = slow_view(tmp_path)
    view.write([row(0, "x")])
    assert found(view, 0) == [0]
    view.refresh()
    view.write([row(1, "x")])  # taken up at once, for there was a read
    for user in range(2, 20):
        view.write([row(user, "x")])
    monkeypatch.setattr("feast_sketch_store.row_log.wal.commits_of", lambda *_: pytest.fail("read"))
    assert found(view, *range(21)) == list(range(20))
    assert encoded[-1] == 18


def test_rows_that_were_not_taken_up_count_in_the_order_of_all_commits(tmp_path):
    view, other = slow_view(tmp_path), slow_view(tmp_path)
    view.write([row(1, "x")])
    view.write([row(2, "x")])
    other.write([row(1, "y")])
    view.write([row(2, "z")])
    view.write([row(3, "x")])
    newest = {1: {"y"}, 2: {"z"}, 3: {"x"}}
    assert items_of(view, [1, 2, 3]) == items_of(slow_view(tmp_path), [1, 2, 3]) == newest


def test_so_many_bytes_are_taken_up_without_a_read(tmp_path, encoded, monkeypatch):
    monkeypatch.setattr(shard_module, "_MAX_DEFERRED_BYTES", 1_000)
    view = slow_view(tmp_path)
    for user in range(10):
        view.write([row(user, "x" * 2_000)])
    assert sum(encoded) >= 8


def test_so_many_rows_are_taken_up_without_a_read(tmp_path, encoded, monkeypatch):
    monkeypatch.setattr(shard_module, "_MAX_DEFERRED_ROWS", 5)
    view = slow_view(tmp_path)
    for user in range(13):
        view.write([row(user, "x")])
    assert encoded == [6, 6]
    assert found(view, *range(13)) == list(range(13))
    assert encoded == [6, 6, 1]


def test_who_looks_for_the_writes_of_others_takes_up_nothing_if_there_are_none(tmp_path, encoded):
    view = slow_view(tmp_path)
    for user in range(10):
        view.write([row(user, "x")])
        view.shards[0]._polled_at -= 5400.0
        view._good_until = -math.inf
    assert encoded == []
    slow_view(tmp_path).write([row(10, "x")])
    encoded.clear()
    view.write([row(11, "x")])
    assert encoded == [10, 1]
    assert found(view, *range(12)) == list(range(12))


def test_who_has_deferred_rows_notices_that_all_others_were_replaced(tmp_path, monkeypatch):
    """The writer of a rebuild is killed, and leaves only the announcement and the new rows."""
    view, other = slow_view(tmp_path), slow_view(tmp_path)
    view.write([row(0, "x")])
    compact = other.shards[0].row_log.compact

    def write_and_compact(*arguments, **options):
        view.refresh()  # reads the announcement
        view.write([row(1, "x")])
        view.write([row(2, "x")])
        compact(*arguments, **options)
        raise KeyboardInterrupt

    def fill(staging):
        filled = View(staging, SETTINGS, NEVER, 0.0)
        filled.write([row(3, "y")])
        return staging

    monkeypatch.setattr(other.shards[0].row_log, "compact", write_and_compact)
    with pytest.raises(KeyboardInterrupt):
        rebuild(other, fill)
    view.shards[0]._polled_at -= 5400.0
    view._good_until = -math.inf
    assert items_of(view, [0, 1, 2, 3]) == {1: {"x"}, 2: {"x"}, 3: {"y"}}


def test_a_write_does_not_wait_for_a_refresh_of_another_thread(tmp_path):
    view = slow_view(tmp_path)
    view.write([row(0, "x")])
    view.shards[0]._polled_at -= 5400.0
    view._good_until = -math.inf
    with view.shards[0]._refresh_lock:
        writer = threading.Thread(target=view.write, args=([row(1, "x")],))
        writer.start()
        writer.join(30)
        assert not writer.is_alive()
    assert found(view, 0, 1) == [0, 1]


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # the lock goes with the interrupted call
def test_a_write_that_is_interrupted_at_any_moment_holds_up_no_other_one(make_view):
    view, other = make_view(), make_view()
    put(view, {0: "x"})
    names = (
        "GroupCommit.",
        "Shard.append",
        "Shard._knows_others",
        "LocalStorage.lease",
        "lock",
        "unlock",
        "_open_",
    )

    def write():
        items_of(view, [0])  # so that the write loads its rows
        view.write([row(1, "x")])

    with ThreadPoolExecutor(1) as pool:
        for moment in interrupted(write, *names):
            for each in (view, other):
                pool.submit(put, each, {0: "x"}).result(60)
            assert pool.submit(found, view, 0).result(60) == [0], moment


def test_rows_that_are_not_taken_up_yet_count_for_a_seal(tmp_path):
    view = slow_view(tmp_path, SealPolicy(0.5, 20))
    for user in range(21):
        view.write([row(user, "x")])
    view.settle()
    assert view.stats().sealed_entities == 21
    for user in range(21, 41):
        view.write([row(user, "x")])
    view.settle()
    assert view.stats().sealed_entities == 21, "20 rows that were sealed count no more"
    view.write([row(41, "x")])
    view.settle()
    assert view.stats().sealed_entities == 42
