"""Lists through their whole life, in any order of operations, against a dictionary with real timestamps."""

import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from feast_sketch_store.operations.verification import verify_view
from feast_sketch_store.reading.ragged import read_lists
from feast_sketch_store.rows.codecs import LIST, FeatureCodec
from feast_sketch_store.rows.encoding import deletion_rows
from feast_sketch_store.rows.list_log import REMOVE, REPLACE, ListRows
from feast_sketch_store.rows.listing import Listing
from feast_sketch_store.storage.local import LocalStorage
from feast_sketch_store.view.append import APPEND
from feast_sketch_store.view.live import LiveView
from feast_sketch_store.view.sealing import SealPolicy
from feast_sketch_store.view.settings import FeatureSettings, ViewSettings
from feast_sketch_store.view.view import View
from tests.helpers.keys import user_hashes
from tests.helpers.length import by_length
from tests.storage.memory import Files, MemoryStorage

pytestmark = pytest.mark.has_long_form

SECOND = 1_000_000
TICK = 60 * SECOND
TTL = 40 * TICK
LIMIT = 5
CODEC = FeatureCodec("read", "string_list_val", LIST, listing=Listing(TICK, LIMIT))
SETTINGS = ViewSettings(
    "history",
    1e-12,
    {"read": FeatureSettings(CODEC, 0.0, 10**6)},
    ttl_microseconds=TTL,
    semantics="append",
)
NEVER = SealPolicy(1.0, 10**9)
USERS = range(4)

USER = st.sampled_from(USERS)
VALUE = st.sampled_from(["a", "b", "c", "d", "é"])
# Minutes before now and seconds of it: so some share a tick, some are equal, and some have expired.
TIME = st.tuples(st.integers(0, 45) | st.integers(0, 3), st.sampled_from([0, 1, 30, 59]))
ITEM = st.tuples(VALUE, TIME)
BATCH = st.lists(st.tuples(USER, st.lists(ITEM, max_size=4)), min_size=1, max_size=4)
PROCESS = st.sampled_from(["writer", "reader"])


class ListMachine(RuleBasedStateMachine):
    """One storage and the `View` objects of three processes."""

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="list-machine-")
        self.files = Files()
        # A tick begins now; what a seal leaves out is older than what any read shows.
        self.now = (time.time_ns() // 1000 // TICK + 2) * TICK
        self.truth = {}  # per user {(value, time): number of the write}
        self.shown = {}  # the same without what a seal has cut
        self.number = 0
        self.reopen()

    def teardown(self):
        try:
            self.check(self.views["reader that seldom looks"])
            found = verify_view(self.storage(), [CODEC], semantics=APPEND)
            assert found.problems == []
        finally:
            self.folder.cleanup()

    def storage(self):
        return LocalStorage(Path(self.folder.name) / "view")

    def reopen(self):
        names = ("writer", "reader", "reader that seldom looks")
        self.views = {name: View(self.storage(), SETTINGS, NEVER, 0.0) for name in names}

    def at(self, moment):
        minutes, seconds = moment
        return self.now - minutes * TICK + seconds * SECOND

    def write(self, process, rows, operation=None):
        """Write rows ``(user, [(value, time)])`` as one commit."""
        users, lists = [user for user, _ in rows], [items for _, items in rows]
        indptr = np.concatenate(([0], np.cumsum([len(items) for items in lists]))).astype(np.int64)
        values = pa.array([value for items in lists for value, _ in items], pa.large_string())
        times = np.array([moment for items in lists for _, moment in items], np.int64)
        events = np.array([max((t for _, t in items), default=self.now - TTL) for items in lists], np.int64)
        keys = {"user_id": pa.array(users, pa.int64())}
        self.views[process].write(ListRows(keys, "read", indptr, values, times, events, operation))

    def both(self, user):
        for lists in (self.truth, self.shown):
            yield lists.setdefault(user, {})

    @rule(process=PROCESS, batch=BATCH)
    def add(self, process, batch):
        rows = [(user, [(value, self.at(moment)) for value, moment in items]) for user, items in batch]
        self.write(process, rows)
        for user, items in rows:
            for item in items:
                self.number += 1
                for known in self.both(user):
                    known[item] = self.number

    @rule(process=PROCESS, user=USER, items=st.lists(ITEM, max_size=7))
    def replace(self, process, user, items):
        for known in self.both(user):
            known.clear()
        ordered = sorted(((value, self.at(moment)) for value, moment in items), key=lambda item: item[1])
        self.write(process, [(user, ordered)], REPLACE)
        for item in ordered:
            self.number += 1
            for known in self.both(user):
                known[item] = self.number

    @rule(process=PROCESS, users=st.sets(USER, min_size=1), value=VALUE, until=st.just((-5, 0)) | TIME)
    def remove(self, process, users, value, until):
        # Sealed items are known by their ticks, so an end within one would be undefined for them.
        until = self.at(until) // TICK * TICK - 1
        self.write(process, [(user, [(value, until)]) for user in sorted(users)], REMOVE)
        for user in users:
            for known in self.both(user):
                for item in [item for item in known if item[0] == value and item[1] <= until]:
                    del known[item]

    @rule(process=PROCESS, users=st.sets(USER, min_size=1, max_size=2))
    def clear(self, process, users):
        keys = {"user_id": pa.array(sorted(users), pa.int64())}
        self.views[process].delete(deletion_rows(keys, datetime.now(UTC)))
        for user in users:
            for known in self.both(user):
                known.clear()

    @rule(process=PROCESS, task=st.sampled_from(["reopen", "refresh", "seal", "seal", "absorb", "vacuum"]))
    def keep_house(self, process, task):
        view = self.views[process]
        if task == "reopen":
            self.reopen()
        elif task == "refresh":
            view.refresh()
        elif task == "vacuum":
            view.vacuum(orphan_age_seconds=0.0)
        elif task == "absorb":
            view.absorb()
        elif view.seal():
            for user, items in self.truth.items():
                self.shown[user] = {item: items[item] for item in self.newest(items, 0)}

    @rule(ticks=st.integers(1, 15))
    def time_passes(self, ticks):
        self.now += ticks * TICK

    @staticmethod
    def newest(items, since, limit=LIMIT, tick=TICK):
        """Items in the order of their times, each value once in a tick."""
        kept, ticks = [], set()
        for value, moment in sorted(items, key=lambda item: (-item[1], -items[item])):
            if moment >= since and (value, moment // tick) not in ticks:
                ticks.add((value, moment // tick))
                kept.append((value, moment))
        return kept[:limit]

    @invariant()
    def all_see_the_newest_items(self):
        self.check(self.views["writer"])
        self.check(self.views["reader"])

    @rule()
    def look_at_many_commits(self):
        self.check(self.views["reader that seldom looks"])

    @rule()
    def look_without_settings(self):
        if self.number:
            self.check(LiveView(self.storage(), refresh_interval_seconds=0.0), limited=False)

    @rule(limit=st.integers(1, 3), ticks=st.integers(0, 10))
    def ask_for_few(self, limit, ticks):
        self.check(self.views["reader"], limit, self.now - ticks * TICK)

    def check(self, view, limit=None, since=0, limited=True):
        since = max(since, self.now - TTL)
        found = view.with_state(lambda state: read_lists(state, CODEC, user_hashes(USERS), (since, limit)))
        values, times = found.values.to_pylist(), found.microseconds.tolist()
        for user in USERS:
            begin, end = found.indptr[user : user + 2].tolist()
            items = list(zip(values[begin:end], times[begin:end], strict=True))
            known = self.shown.get(user, {})
            most = min(LIMIT, limit or LIMIT)
            tick = TICK
            if not limited and view._state.sealed is None:
                most, tick = 10**9, SECOND  # only a seal tells how lists are declared
            wanted = self.newest(known, since, 10**9, tick)
            assert [moment for _, moment in items] == sorted((t for _, t in items), reverse=True)
            assert len(items) == min(len(wanted), most)
            assert all(moment >= since for _, moment in items)
            # Which items of the last tick are cut is not specified once they are sealed.
            ticks = [(moment // tick, value) for value, moment in items]
            all_ticks = [(moment // tick, value) for value, moment in wanted]
            last = min(ticks, default=(0, ""))[0]
            assert sorted(t for t in ticks if t[0] > last) == sorted(t for t in all_ticks if t[0] > last)
            assert set(ticks) <= set(all_ticks)
            assert len(set(ticks)) == len(ticks)
            if view._state.sealed is None:
                exact = self.newest(known, since, most, tick)
                assert items == exact


ListMachine.TestCase.settings = settings(
    max_examples=by_length(10, 20), stateful_step_count=25, deadline=None, derandomize=True, database=None
)
TestLists = ListMachine.TestCase


class ListsInMemoryMachine(ListMachine):
    """The same where there are no files."""

    def storage(self):
        return MemoryStorage(self.files)


ListsInMemoryMachine.TestCase.settings = settings(
    ListMachine.TestCase.settings, max_examples=by_length(6, 10)
)
TestListsInMemory = ListsInMemoryMachine.TestCase
