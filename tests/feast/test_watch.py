"""``feast-sketch seal --watch``: seals when it is time to, beside writers in other processes."""

import json
import logging
import os
import signal
import sys
import threading
from datetime import UTC, datetime

import pytest
from feast.types import Set, String

from feast_sketch_store import open_view
from feast_sketch_store.errors import StorageError
from feast_sketch_store.operations import maintenance
from feast_sketch_store.view.seal_policy import SealPolicy
from feast_sketch_store.view.view import View
from tests.helpers.processes import PATIENCE_SECONDS, start_command
from tests.helpers.repository import another, make_repository, make_view, push

pytestmark = pytest.mark.slow

EVENT = datetime(2026, 5, 1, tzinfo=UTC)
VIEWS = ["history", "other"]


@pytest.fixture
def store(tmp_path):
    """A repository of two views whose writers never seal."""
    views = [make_view({"viewed": Set(String)}, name=name, pushed=f"{name} clicks") for name in VIEWS]
    return make_repository(tmp_path, *views, compaction={"min_rows": 1_000_000})


def push_users(store, view, first, stop):
    users = range(first, stop)
    push(store, f"{view} clicks", user_id=users, viewed=[[f"a{u}"] for u in users], event=EVENT)


class Watch:
    """A watch in a thread, and what it sealed."""

    def __init__(self, store, views=(), policy=None):
        self.stop, self.sealed, self._told = threading.Event(), [], threading.Condition()
        self.thread = threading.Thread(
            target=maintenance.watch, args=(store, views, self.stop, 0.01, self._tell, policy)
        )

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join(PATIENCE_SECONDS)
        assert not self.thread.is_alive()

    def _tell(self, view):
        with self._told:
            self.sealed.append(view)
            self._told.notify_all()

    def wait_for(self, number):
        with self._told:
            assert self._told.wait_for(lambda: len(self.sealed) >= number, PATIENCE_SECONDS)


def test_a_replica_is_refused_at_once(store):
    store.config.online_store.read_only, stop = True, threading.Event()
    stop.set()
    with pytest.raises(StorageError, match="read_only: true"):
        maintenance.watch(store, [], stop)


def test_it_seals_each_view_when_it_is_time_to(store):
    with Watch(another(store), policy=SealPolicy(0.5, 10)) as watch:
        push_users(store, "history", 0, 11)
        watch.wait_for(1)
        push_users(store, "other", 0, 11)
        watch.wait_for(2)
        push_users(store, "history", 11, 31)
        watch.wait_for(3)
    assert watch.sealed == ["history", "other", "history"]
    assert open_view(store, "history").stats().sealed_entities == 31
    push_users(store, "history", 31, 100)
    assert open_view(store, "history").stats().sealed_entities == 31, "it has ended"


def test_a_view_that_is_not_named_is_left_alone(store):
    for view in VIEWS:
        push_users(store, view, 0, 11)
    with Watch(another(store), ["other"], SealPolicy(0.5, 10)) as watch:
        watch.wait_for(1)
    assert watch.sealed == ["other"]
    assert open_view(store, "history").stats().sealed_entities == 0


@pytest.mark.parametrize(
    ("error", "told"),
    [(StorageError("no space"), "no space"), (MemoryError(), "a seal needs more memory than this process")],
)
def test_a_seal_that_fails_is_told_once_and_tried_again(store, monkeypatch, caplog, error, told):
    caplog.set_level(logging.WARNING)
    seal, failures = View._seal, []

    def fail_thrice(view, *arguments):
        if len(failures) < 3:
            failures.append(view)
            raise error
        return seal(view, *arguments)

    monkeypatch.setattr(View, "_seal", fail_thrice)
    push_users(store, "history", 0, 11)
    with Watch(another(store), policy=SealPolicy(0.5, 10)) as watch:
        watch.wait_for(1)
    assert len(failures) == 3
    (record,) = [r for r in caplog.records if told in r.message]
    assert record.message.endswith("; feature view 'history' is tried again")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_seals_what_another_process_writes_until_it_is_interrupted(store, number):
    code = "import sys; from feast_sketch_store.cli import cli; cli(sys.argv[1:])"
    options = ["--watch", "--interval", "0.05", "--min-rows", "10", "--share", "0.5", "--json"]
    command = [sys.executable, "-W", "ignore", "-c", code, "-c", str(store.repo_path), "seal", *options]
    push_users(store, "history", 0, 11)
    reading, writing = os.pipe()
    process = start_command(command, stdout=writing)
    os.close(writing)
    with os.fdopen(reading) as printed:
        assert json.loads(printed.readline())["view"] == "history"
        if sys.platform == "linux":  # where a priority is that of a thread
            own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
            assert os.getpriority(os.PRIO_PROCESS, process.pid) == max(10, own)
        for first in range(11, 40):
            push_users(store, "history", first, first + 1)
        assert json.loads(printed.readline())["view"] == "history"
        os.kill(process.pid, number)
        process.join(PATIENCE_SECONDS)
        assert process.exitcode == 0
    stats = open_view(store, "history").stats()
    assert stats.sealed_entities + stats.unsealed_rows >= 40
    assert stats.sealed_entities > 11


def test_with_seal_job_writes_only_append(store):
    writer = another(store, compaction="job")
    push_users(writer, "history", 0, 11)
    push_users(writer, "history", 11, 1100)
    view = open_view(writer, "history")
    view.settle()
    assert view.stats().sealed_entities == 0
    with Watch(another(store)) as watch:
        watch.wait_for(1)
    assert watch.sealed == ["history"]
    assert view.stats().sealed_entities == 1100
