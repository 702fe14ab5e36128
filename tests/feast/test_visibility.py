"""Who sees a write, and when: this object, this process, other processes."""

import math
import os
import threading
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from feast.types import Set, String

from feast_sketch_store.operations.resharding import divide
from feast_sketch_store.view import shard as shard_module
from feast_sketch_store.view.live_shard import LiveShard
from feast_sketch_store.view.rebuilding import rebuild
from feast_sketch_store.view.view import View
from tests.helpers.keys import user_key
from tests.helpers.processes import PATIENCE_SECONDS, answering
from tests.helpers.repository import SEALED, STATES
from tests.helpers.values import country, strings

pytestmark = pytest.mark.slow

NEVER = 10**6  # seconds: a refresh interval that no test reaches


@pytest.mark.parametrize("options", STATES)
def test_a_process_reads_its_own_write_whatever_object_wrote_it(make_harness, options):
    writer = make_harness({"country": String}, refresh=f"{NEVER}s", **options)
    reader = writer.reopened()
    assert reader.countries(1) == [None]
    writer.write(1, country("FR"))
    assert reader.countries(1) == ["FR"]
    assert writer.countries(1) == ["FR"]


def test_a_process_reads_the_rows_of_its_rebuild_whatever_object_made_it(make_harness):
    writer = make_harness({"country": String}, refresh=f"{NEVER}s")
    reader = writer.reopened()
    writer.write(1, country("FR"))
    assert reader.countries(1) == ["FR"]
    view = writer.opened

    def fill(staging):
        View(staging, view.settings).write(
            [(user_key(1), country("DE"), datetime(2026, 5, 1, tzinfo=UTC), None)]
        )
        return staging

    rebuild(view, fill)
    assert [harness.countries(1) for harness in (reader, writer)] == [["DE"], ["DE"]]


def test_a_write_to_one_view_leaves_reads_of_the_others_in_memory(make_harness, make_view):
    written = make_harness(view=make_view({"country": String}, "written"), refresh=f"{NEVER}s")
    other = make_harness(view=make_view({"country": String}, "other"), refresh=f"{NEVER}s")
    other.write(1, country("DE"))
    readers = [harness.reopened() for harness in (written, other)]
    assert [reader.countries(1) for reader in readers] == [[None], ["DE"]]
    written.write(1, country("FR"))
    fresh = [reader.opened.is_fresh() for reader in readers]
    assert fresh == [False, True]
    assert [reader.countries(1) for reader in readers] == [["FR"], ["DE"]]


def test_a_process_reads_its_own_write_whichever_way_leads_to_the_folder(make_harness, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "sketch", target_is_directory=True)
    writer = make_harness({"country": String}, refresh=f"{NEVER}s")
    reader = make_harness({"country": String}, refresh=f"{NEVER}s", path=str(tmp_path / "link"))
    assert reader.countries(1) == [None]
    writer.write(1, country("FR"))
    assert reader.countries(1) == ["FR"]


def test_a_process_reads_what_it_writes_to_shards_that_the_reader_does_not_know(make_harness):
    writer = make_harness({"country": String}, refresh=f"{NEVER}s")
    writer.write(1, country("FR"))
    reader = writer.reopened()
    assert reader.countries(1) == ["FR"]
    view = writer.reopened().opened
    divide(view.storage, replace(view.settings, num_shards=4), view.policy, wait=lambda seconds: None)
    writer.reopened().write(1, country("DE"))  # by an object that opens the shards that are there now
    assert reader.countries(1) == ["DE"]


def _reader_of(harness):
    """Another process: opens the store, then answers reads."""
    reader = harness.reopened()
    return lambda user: reader.countries(user)[0]


@pytest.fixture
def other_process(warm):
    """Starts a reader process for a harness; gives a function that asks it about a user."""
    with ExitStack() as started:
        yield lambda harness: started.enter_context(answering(warm, _reader_of, harness))


@pytest.mark.parametrize("options", STATES)
def test_a_running_process_sees_the_write_of_another(make_harness, other_process, options):
    writer = make_harness({"country": String}, refresh="0", **options)
    ask = other_process(writer)
    assert ask(1) is None
    for name in ("FR", "DE"):
        writer.write(1, country(name))
        assert ask(1) == name


def test_an_interval_delays_other_processes_but_not_a_fresh_one(make_harness, other_process):
    writer = make_harness({"country": String}, refresh=f"{NEVER}s")
    early = other_process(writer)
    assert early(1) is None
    writer.write(1, country("FR"))
    assert early(1) is None
    assert other_process(writer)(1) == "FR"


def test_a_reader_follows_a_teardown_and_a_new_start(make_harness, other_process):
    writer = make_harness({"country": String}, refresh="0", **SEALED)
    writer.write(1, country("FR"))
    ask = other_process(writer)
    assert ask(1) == "FR"
    writer.store.teardown(writer.config, [writer.view], [])
    assert ask(1) is None
    writer.apply()
    writer.write(2, country("DE"))
    assert (ask(1), ask(2)) == (None, "DE")


def _write_many(harness, number, rows):
    writer = harness.reopened()
    for row in range(rows):
        writer.write(number * 1000 + row, country(f"w{number}r{row}"))


@pytest.mark.parametrize("options", [{}, {"compaction": {"min_rows": 7}}], ids=["unsealed", "sealing"])
def test_several_processes_write_at_once(make_harness, warm, options):
    harness = make_harness({"country": String}, refresh="0", **options)
    writers = [warm.Process(target=_write_many, args=(harness, n, 10)) for n in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(PATIENCE_SECONDS)
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    users = [n * 1000 + row for n in range(3) for row in range(10)]
    assert harness.reopened().countries(*users) == [f"w{u // 1000}r{u % 1000}" for u in users]


def test_threads_read_while_one_writes(make_harness):
    harness = make_harness({"viewed": Set(String)}, refresh="0", compaction={"min_rows": 5})
    stop = threading.Event()
    failures = []

    def read():
        seen = 0
        while not stop.is_set():
            rows = harness.shown(*range(30))
            present = sum(values is not None for values in rows)
            for user, values in enumerate(rows):
                if values is not None and f"item-{user}" not in values["viewed"].string_set_val.val:
                    failures.append(f"user {user} lost its item")
            if present < seen:
                failures.append(f"{seen} rows, then {present}")
            seen = present

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for user in range(30):
        harness.write(user, {"viewed": strings(f"item-{user}")})
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures


def _in_a_fork(task):
    """Run a task in a forked child, as gunicorn makes its workers; gives what it returned as text."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            text = str(task())
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    os.waitpid(pid, 0)
    return text


@pytest.mark.parametrize("options", STATES)
def test_a_forked_worker_reads_on_whatever_its_parent_was_doing(make_harness, options):
    harness = make_harness({"country": String}, refresh="0", **options)
    harness.write(1, country("FR"))
    assert harness.countries(1) == ["FR"]
    view = harness.opened
    with view._seal_lock, view._commits._lock, view.shards[0]._refresh_lock:  # of another thread
        assert _in_a_fork(lambda: harness.countries(1, 2)) == "['FR', None]"
    ready, go = os.pipe()

    def read_after_the_parent_wrote():
        os.read(ready, 1)
        return harness.countries(1, 2)

    def write():
        harness.write(2, country("DE"))
        os.write(go, b"x")

    writer = threading.Thread(target=write)
    writer.start()
    assert _in_a_fork(read_after_the_parent_wrote) == "['FR', 'DE']"
    writer.join()


def test_reads_go_on_while_news_is_taken_up_beside_them(make_harness, monkeypatch):
    """Half an interval after the last look a thread takes up what is new; the read does not wait for it."""
    writer = make_harness({"country": String}, refresh=f"{NEVER}s")
    writer.write(1, country("FR"))
    reader = writer.reopened()
    assert reader.countries(1) == ["FR"]
    view = reader.opened
    monkeypatch.setattr(shard_module, "note_write", lambda folder: -1)  # as another process would write it
    writer.write(1, country("DE"))

    may_go_on, refreshed = threading.Event(), threading.Event()
    refresh = LiveShard._refresh

    def slow_refresh(self, *arguments):
        assert may_go_on.wait(PATIENCE_SECONDS)
        refresh(self, *arguments)
        refreshed.set()

    monkeypatch.setattr(LiveShard, "_refresh", slow_refresh)
    view.shards[0]._polled_at -= 0.75 * NEVER
    view._good_until = -math.inf
    assert reader.countries(1) == ["FR"]
    assert reader.countries(1) == ["FR"]
    may_go_on.set()
    assert refreshed.wait(PATIENCE_SECONDS)
    assert reader.countries(1) == ["DE"]
