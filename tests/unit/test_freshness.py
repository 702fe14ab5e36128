"""What a view tells of how fresh it is, and reads that wait for polls."""

import math
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from unittest.mock import MagicMock, Mock

import pytest

from feast_sketch_store.errors import StorageError
from feast_sketch_store.view.live_shard import Freshness, last_write
from tests.helpers.histories import Process, settings_of

SETTINGS = settings_of(0.01)
OUT_OF_REACH = Mock(side_effect=StorageError("cannot be reached"))


@pytest.fixture
def make_view(tmp_path):
    """Makes views over one folder, each as its own process would."""
    return partial(Process, tmp_path / "view", SETTINGS)


def test_a_view_tells_how_fresh_it_is(make_view, monkeypatch):
    writer, reader = make_view(), make_view()
    assert reader.view.freshness() == Freshness("EMPTY", None)
    writer.put(1, "a")
    assert reader.get(1) == {1: {"a"}}
    first = reader.view.freshness()
    assert (first.state, first.age_seconds < 60) == ("SERVING", True)
    # Time goes on by an hour, during which nothing can be reached.
    now = time.monotonic
    monkeypatch.setattr("feast_sketch_store.view.live_shard.time.monotonic", lambda: now() + 3600)
    with monkeypatch.context() as broken:
        broken.setattr(reader.view.shards[0]._loader, "load", OUT_OF_REACH)
        assert reader.get(1) == {1: {"a"}}
        stale = reader.view.freshness()
        assert (stale.state, 3600 <= stale.age_seconds < 3700) == ("STALE", True)
        assert (stale.problem, stale.num_commits, stale.is_ready) == ("cannot be reached", 1, True)
        reader.view.max_staleness_seconds = 1800.0
        assert not reader.view.freshness().is_ready
    writer.put(2, "b")
    assert reader.get(2) == {2: {"b"}}
    again = reader.view.freshness()
    assert (again.state, again.age_seconds < 60) == ("SERVING", True)
    assert (again.problem, again.num_commits, again.is_ready) == ("", 2, True)


def test_a_probe_polls_for_itself_and_reports_what_fails(make_view, monkeypatch):
    writer, reader = make_view(), make_view()
    writer.put(1, "a")
    with monkeypatch.context() as broken:
        broken.setattr(reader.view.shards[0]._loader, "load", OUT_OF_REACH)
        asked = reader.view.freshness(poll=True)
        assert (asked.state, asked.age_seconds, asked.problem) == ("EMPTY", None, "cannot be reached")
        assert not asked.is_ready
    asked = reader.view.freshness(poll=True)
    assert (asked.state, asked.num_commits, asked.is_ready) == ("SERVING", 1, True)


def test_a_view_tells_what_it_waits_for_at_its_start(make_view, monkeypatch):
    writer, reader = make_view(), make_view()
    writer.put(1, "a")
    seen = []
    loader = reader.view.shards[0]._loader
    for place, name in ((loader._snapshots, "listing"), (loader._row_log, "read")):
        real = getattr(place, name)

        def called(*given, real=real):
            seen.append(reader.view.freshness().state)
            return real(*given)

        monkeypatch.setattr(place, name, called)
    reader.view.refresh()
    assert seen == ["FETCHING", "CATCHING_UP"]
    assert reader.view.freshness().state == "SERVING"


def test_a_view_tells_that_it_refreshes(make_view):
    writer, reader = make_view(), make_view(interval=1000.0)
    writer.put(1, "a")
    reader.get(1)
    writer.put(2, "b")
    seen, load = threading.Event(), reader.view.shards[0]._loader.load
    goes_on = threading.Event()

    def load_slowly(state):
        seen.set()
        goes_on.wait(60)
        return load(state)

    reader.view.shards[0]._loader.load = load_slowly
    # As if another process had written, and more than half the interval ago.
    reader.view.shards[0]._seen_process_write = last_write(reader.view.shards[0]._process_key)
    reader.view.shards[0]._polled_at -= 600
    reader.view._good_until = -math.inf
    reader.get(1)
    assert seen.wait(60)
    assert reader.view.freshness().state == "REFRESHING"
    goes_on.set()
    reader.view.close()
    assert reader.view.freshness().state == "SERVING"
    assert reader.get(2) == {2: {"b"}}


def told_of_waits(lock, tell):
    """A lock that tells of each who is about to wait for it."""
    enter, leave = Mock(side_effect=lambda: (tell(), lock.acquire())), Mock(side_effect=lock.__exit__)
    return MagicMock(locked=lock.locked, __enter__=enter, __exit__=leave)


def test_a_poll_that_takes_longer_than_the_interval_serves_all_that_wait_for_it(make_view, monkeypatch):
    """Nor is one that failed made again at once."""
    writer, reader = make_view(), make_view(interval=1.0)
    writer.put(1, "a")
    reader.get(1)
    late, now, shard = [10.0], time.monotonic, reader.view.shards[0]
    monkeypatch.setattr(time, "monotonic", lambda: now() + late[0])
    waits, lock = threading.Semaphore(0), shard._refresh_lock
    for fails in (False, True):
        load = shard._loader.load

        def load_slowly(state, load=load, fails=fails):
            late[0] += 60
            if fails:
                raise StorageError("no answer within the timeouts")
            return load(state)

        looks = shard._loader.load = Mock(side_effect=load_slowly)

        shard._refresh_lock = told_of_waits(lock, waits.release)
        with ThreadPoolExecutor(5) as pool:
            with lock:
                found = [pool.submit(reader.get, 1) for _ in range(5)]
                for _ in found:
                    waits.acquire()
            assert [each.result() for each in found] == 5 * [{1: {"a"}}]
        if fails:
            assert reader.get(1) == {1: {"a"}}
        assert looks.call_count == 1
        late[0] += 10


def test_a_read_that_waits_for_a_failing_poll_sees_what_its_process_wrote_meanwhile(make_view):
    writer, reader = make_view(), make_view(interval=3600.0)
    writer.put(1, "a")
    reader.get(1)
    shard = reader.view.shards[0]
    load, lock = shard._loader.load, shard._refresh_lock
    has_begun, may_fail, waits = threading.Event(), threading.Event(), threading.Event()

    def fail_once(state):
        shard._loader.load = load
        has_begun.set()
        assert may_fail.wait(60)
        raise StorageError("no answer")

    shard._loader.load = fail_once
    writer.put(1, "b", second=1)
    with ThreadPoolExecutor(2) as pool:
        failing = pool.submit(reader.get, 1)
        assert has_begun.wait(60)
        writer.put(2, "c")
        shard._refresh_lock = told_of_waits(lock, waits.set)
        waiting = pool.submit(reader.get, 2)
        assert waits.wait(60)
        may_fail.set()
        assert failing.result() == {1: {"a"}}
        assert waiting.result() == {2: {"c"}}


def test_a_read_that_is_interrupted_at_any_line_holds_up_no_other_one(make_view):
    writer, reader = make_view(), make_view()
    writer.put(1, "a")
    shard = reader.view.shards[0]
    polls = type(shard)._poll_in_turn.__code__
    for line in {line for _, _, line in polls.co_lines() if line}:

        def interrupt(frame, event, argument, line=line):
            if event == "line" and frame.f_lineno == line:
                raise KeyboardInterrupt
            return interrupt if frame.f_code is polls else None

        shard._polled_at = -math.inf
        reader.view._good_until = -math.inf
        before = sys.gettrace()
        sys.settrace(interrupt)
        try:
            with suppress(KeyboardInterrupt):
                reader.get(1)
        finally:
            sys.settrace(before)
        assert not shard._refresh_lock.locked(), line
        assert reader.get(1) == {1: {"a"}}
