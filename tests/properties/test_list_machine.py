"""Lists through their whole life, in any order of operations, against a dictionary with real timestamps."""

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from feast_sketch_store.operations.verification import verify_view
from feast_sketch_store.rows.list_log import REMOVE, REPLACE
from feast_sketch_store.storage.local import LocalStorage
from feast_sketch_store.view.semantics import APPEND
from tests.helpers.length import by_length
from tests.helpers.list_worker import CODEC, LIMIT, SECOND, TICK, TTL, ListWorker, worker_in
from tests.helpers.processes import answering, warm_context
from tests.storage.memory import Files, MemoryStorage

pytestmark = pytest.mark.has_long_form

USERS = range(4)

USER = st.sampled_from(USERS)
VALUE = st.sampled_from(["a", "b", "c", "d", "é"])
# Minutes before now and seconds of it: so some share a tick, some are equal, and some have expired.
TIME = st.tuples(st.integers(0, 45) | st.integers(0, 3), st.sampled_from([0, 1, 30, 59]))
ITEM = st.tuples(VALUE, TIME)
BATCH = st.lists(st.tuples(USER, st.lists(ITEM, max_size=4)), min_size=1, max_size=4)
PROCESS = st.sampled_from(["writer", "reader"])


class ListMachine(RuleBasedStateMachine):
    """One storage and the views of three processes."""

    def __init__(self):
        super().__init__()
        self.resources = ExitStack()
        self.folder = self.resources.enter_context(tempfile.TemporaryDirectory(prefix="list-machine-"))
        self.files = {}
        # A tick begins now.
        self.now = (time.time_ns() // 1000 // TICK + 2) * TICK
        self.truth = {}  # per user {(value, time): number of the write}
        self.number = self.version = 0
        names = ("writer", "reader", "reader that seldom polls")
        self.views = {name: self.start(name) for name in names}

    def teardown(self):
        try:
            self.check(self.views["reader that seldom polls"])
            found = verify_view(self.storage(self.version), [CODEC], semantics=APPEND)
            assert found.problems == []
        finally:
            self.resources.close()

    def storage(self, version):
        return LocalStorage(Path(self.folder) / f"v{version}")

    def start(self, name):
        return ListWorker(self.storage)

    def reopen(self):
        for view in self.views.values():
            view(("open", self.version))

    def at(self, moment):
        minutes, seconds = moment
        return self.now - minutes * TICK + seconds * SECOND

    def write(self, process, rows, operation=None):
        """Write rows ``(user, [(value, time)])`` as one commit."""
        self.views[process](("write", rows, self.now - TTL, operation))

    def known(self, user):
        return self.truth.setdefault(user, {})

    @rule(process=PROCESS, batch=BATCH)
    def add(self, process, batch):
        rows = [(user, [(value, self.at(moment)) for value, moment in items]) for user, items in batch]
        self.write(process, rows)
        for user, items in rows:
            for item in items:
                self.number += 1
                self.known(user)[item] = self.number

    @rule(process=PROCESS, user=USER, items=st.lists(ITEM, max_size=7))
    def replace(self, process, user, items):
        self.known(user).clear()
        ordered = sorted(((value, self.at(moment)) for value, moment in items), key=lambda item: item[1])
        self.write(process, [(user, ordered)], REPLACE)
        for item in ordered:
            self.number += 1
            self.known(user)[item] = self.number

    @rule(process=PROCESS, users=st.sets(USER, min_size=1), value=VALUE, until=st.just((-5, 0)) | TIME)
    def remove(self, process, users, value, until):
        # Sealed items are known by their ticks, so an end within one would be undefined for them.
        until = self.at(until) // TICK * TICK - 1
        self.write(process, [(user, [(value, until)]) for user in sorted(users)], REMOVE)
        for user in users:
            known = self.known(user)
            for item in [item for item in known if item[0] == value and item[1] <= until]:
                del known[item]

    @rule(process=PROCESS, users=st.sets(USER, min_size=1, max_size=2))
    def clear(self, process, users):
        self.views[process](("delete", sorted(users)))
        for user in users:
            self.known(user).clear()

    @rule(process=PROCESS, task=st.sampled_from(["reopen", "refresh", "seal", "seal", "absorb", "vacuum"]))
    def maintain(self, process, task):
        if task == "reopen":
            self.reopen()
        else:
            self.views[process](("maintain", task))

    @rule(process=PROCESS, seals=st.booleans())
    def switch_version(self, process, seals):
        """Fill a new version while all read the old one, and let them switch one by one."""
        lists = {user: sorted(items, key=items.get) for user, items in self.truth.items() if items}
        if not lists:
            return
        filling = self.views[process]
        filling(("open", self.version + 1))
        filling(("write", list(lists.items()), self.now - TTL))
        if seals:
            filling(("maintain", "seal"))
        others = [view for view in self.views.values() if view is not filling]
        for view in others:
            self.check(view)
        self.version += 1
        for view in others:
            view(("open", self.version))
            self.check(view)
        self.check(filling)

    @rule(ticks=st.integers(1, 15))
    def time_passes(self, ticks):
        self.now += ticks * TICK

    @staticmethod
    def newest(items, since, limit=LIMIT):
        """Items in the order of their times, each value once in a tick."""
        kept, ticks = [], set()
        for value, moment in sorted(items, key=lambda item: (-item[1], -items[item])):
            if moment >= since and (value, moment // TICK) not in ticks:
                ticks.add((value, moment // TICK))
                kept.append((value, moment))
        return kept[:limit]

    @invariant()
    def all_see_the_newest_items(self):
        self.check(self.views["writer"])
        self.check(self.views["reader"])

    @rule()
    def take_up_many_commits(self):
        self.check(self.views["reader that seldom polls"])

    @rule()
    def look_without_settings(self):
        if self.number:
            self.check(self.views["reader"], has_settings=False)

    @rule(limit=st.integers(1, 3), ticks=st.integers(0, 10))
    def ask_for_few(self, limit, ticks):
        self.check(self.views["reader"], limit, self.now - ticks * TICK)

    def check(self, view, limit=None, since=0, has_settings=True):
        since = max(since, self.now - TTL)
        rows, is_sealed = view(("read", len(USERS), since, limit, has_settings))
        for user, items in zip(USERS, rows, strict=True):
            known, most = self.truth.get(user, {}), min(LIMIT, limit or LIMIT)
            wanted = self.newest(known, since, 10**9)
            assert [moment for _, moment in items] == sorted((t for _, t in items), reverse=True)
            assert len(items) == min(len(wanted), most)
            assert all(moment >= since for _, moment in items)
            # Which items of the last tick are cut is not specified once they are sealed.
            ticks = [(moment // TICK, value) for value, moment in items]
            all_ticks = [(moment // TICK, value) for value, moment in wanted]
            last = min(ticks, default=(0, ""))[0]
            assert sorted(t for t in ticks if t[0] > last) == sorted(t for t in all_ticks if t[0] > last)
            assert set(ticks) <= set(all_ticks)
            assert len(set(ticks)) == len(ticks)
            if not is_sealed:
                exact = self.newest(known, since, most)
                assert items == exact


ListMachine.TestCase.settings = settings(
    max_examples=by_length(4, 10), stateful_step_count=25, deadline=None, derandomize=True, database=None
)
TestLists = ListMachine.TestCase


class ListsInMemoryMachine(ListMachine):
    """The same where there are no files."""

    def storage(self, version):
        return MemoryStorage(self.files.setdefault(version, Files()))


ListsInMemoryMachine.TestCase.settings = settings(ListMachine.TestCase.settings, max_examples=by_length(3, 6))
TestListsInMemory = ListsInMemoryMachine.TestCase


_processes: dict[str, Callable[[Any], Any]] = {}  # of all examples
_of_processes = ExitStack()


@pytest.fixture(scope="module", autouse=True)
def _end_processes():
    yield
    _processes.clear()
    _of_processes.close()


class ListsInProcessesMachine(ListMachine):
    """The same with a process for each view."""

    def start(self, name):
        if name not in _processes:
            _processes[name] = _of_processes.enter_context(answering(warm_context(), worker_in, self.folder))
        _processes[name](("move", self.folder))
        return _processes[name]


ListsInProcessesMachine.TestCase.settings = settings(
    ListMachine.TestCase.settings, max_examples=by_length(2, 4), stateful_step_count=20
)
TestListsInProcesses = ListsInProcessesMachine.TestCase
