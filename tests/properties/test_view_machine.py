"""A view through its whole life, in any order of operations, against a dictionary."""

import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from feast.protos.feast.types.Value_pb2 import StringSet, Value
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from feast_sketch_store.layers import Goal
from feast_sketch_store.rows.codecs import EXACT, FeatureCodec
from feast_sketch_store.rows.encoding import deletions
from feast_sketch_store.settings.view_settings import FeatureSettings, ViewSettings
from feast_sketch_store.storage.local import LocalStorage
from feast_sketch_store.view.view import View
from tests.helpers.histories import ALWAYS, NEVER
from tests.helpers.keys import user_hashes, user_key
from tests.helpers.length import by_length
from tests.oracle.messages import feast_values
from tests.storage.memory import Files, MemoryStorage, ObjectsInMemory

pytestmark = pytest.mark.has_long_form

CODECS = [FeatureCodec("viewed", "string_set_val"), FeatureCodec("name", "string_val")]
NAMES = [codec.feature for codec in CODECS]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Fewer than a sealed layer has timestamp buckets, so that it keeps their timestamps exactly.
USERS = range(6)


def settings_of(viewed, name=CODECS[1]):
    """Salts are random. A false positive at 1e-12 would be a bug, not chance."""
    features = {
        "viewed": FeatureSettings(CODECS[0], viewed, 10**6),
        "name": FeatureSettings(name, 1e-12, 10**6),
    }
    return ViewSettings("history", 1e-12, features)


# With an exact feature or in sets a sealed layer lists its rows.
SETTINGS = {
    "exact": settings_of(1e-12),
    "loose": settings_of(0.5),
    "listed": settings_of(1e-12, FeatureCodec("name", "string_val", EXACT)),
    "sets": settings_of(Goal("error_rate", 1e-9, "sets")),
    "weighted_bloom": settings_of(Goal("noise_ratio", 1e-9, "weighted_bloom")),
}

TEXT = st.text(st.sampled_from("abé\x00"), max_size=2)
VALUES = st.fixed_dictionaries(
    {},
    optional={
        "viewed": st.one_of(
            st.just(Value()),
            st.lists(TEXT, max_size=4).map(lambda items: Value(string_set_val=StringSet(val=items))),
        ),
        "name": st.one_of(st.just(Value()), TEXT.map(lambda text: Value(string_val=text))),
    },
)
# Microseconds; few, so that many rows are late and many are equal.
TIMES = st.integers(-3, 3)
USER = st.sampled_from(USERS)
BATCH = st.lists(st.tuples(USER, VALUES, TIMES, st.none() | TIMES), min_size=1, max_size=4)
# Either process may write, seal and vacuum. What the third one takes up at a time is many commits.
PROCESS = st.sampled_from(["writer", "reader"])
SEALED = st.sampled_from(list(SETTINGS))


def at(microseconds):
    return None if microseconds is None else EPOCH + timedelta(microseconds=microseconds)


def plain(value):
    """A value as a comparable object; a set without order or repetitions."""
    field = value.WhichOneof("val") if value is not None else None
    if field is None:
        return value and "null"
    return frozenset(value.string_set_val.val) if field == "string_set_val" else value.string_val


def read(view):
    """``{user: (event in microseconds, {feature: plain value or None})}``."""
    rows = {}
    answer = view.read(user_hashes(USERS), NAMES)
    values = {n: feast_values(f) for n, f in answer.features.items()}
    for row, user in enumerate(answer.found.tolist()):
        assert user not in rows
        rows[user] = (int(answer.event_timestamps[row]), {n: plain(values[n][row]) for n in NAMES})
    return rows


class ViewMachine(RuleBasedStateMachine):
    """One storage and the `View` objects of three processes."""

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="view-machine-")
        self.files = Files()
        self.newest = {}  # per user ((event, created), values), none created being older than any
        self.sealed = "exact"
        self.reopen()

    def teardown(self):
        try:
            self.check("reader that seldom polls")
        finally:
            self.folder.cleanup()

    def reopen(self):
        names = ("writer", "reader", "reader that seldom polls")
        self.views = {name: View(self.storage(), SETTINGS["exact"], NEVER, 0.0) for name in names}

    def storage(self):
        return LocalStorage(Path(self.folder.name) / "view")

    @rule(process=PROCESS, batch=BATCH)
    def write(self, process, batch, seals=None):
        rows = [(user_key(user), values, at(event), at(created)) for user, values, event, created in batch]
        policy = ALWAYS if seals else NEVER
        view = self.views[process]
        view.settings, view.policy = SETTINGS[seals or "exact"], policy
        view.write(rows)
        self.sealed = seals or self.sealed
        for user, values, event, created in batch:
            order = (event, -(10**9) if created is None else created)
            if user not in self.newest or order >= self.newest[user][0]:
                self.newest[user] = (order, {name: plain(values.get(name)) for name in NAMES})

    @rule(process=PROCESS, batch=BATCH, seals=SEALED)
    def write_and_seal(self, process, batch, seals):
        self.write(process, batch, seals)

    @rule(process=PROCESS, users=st.sets(USER, min_size=1, max_size=3), time=TIMES)
    def delete(self, process, users, time):
        self.views[process].delete(deletions([user_key(user) for user in sorted(users)], at(time)))
        for user in users:
            self.newest.pop(user, None)

    @rule(process=PROCESS, as_delta=st.booleans(), sealed=SEALED)
    def seal(self, process, as_delta, sealed):
        view = self.views[process]
        view.settings = SETTINGS[sealed]
        # Rows below a delta stay as they were sealed.
        if view.seal(as_delta=as_delta) and (not as_delta or self.sealed != "loose"):
            self.sealed = sealed

    # One rule, because all rules are chosen equally often and writes matter most.
    @rule(process=PROCESS, task=st.sampled_from(["reopen", "refresh", "vacuum"]))
    def maintain(self, process, task):
        view = self.views[process]
        if task == "reopen":
            self.reopen()
        elif task == "refresh":
            view.refresh()
        else:
            view.vacuum(orphan_age_seconds=0.0)

    @rule()
    def take_up_many_commits(self):
        self.check("reader that seldom polls")

    @invariant()
    def all_see_the_newest_rows(self):
        self.check("writer")
        self.check("reader")

    def check(self, process):
        found = read(self.views[process])
        assert found.keys() == self.newest.keys()
        for user, ((event, _), values) in self.newest.items():
            found_event, found_values = found[user]
            assert found_event == event
            assert found_values["name"] == values["name"]
            if self.sealed == "loose" and isinstance(values["viewed"], frozenset) and values["viewed"]:
                assert found_values["viewed"] >= values["viewed"]
            else:
                assert found_values["viewed"] == values["viewed"]


ViewMachine.TestCase.settings = settings(
    max_examples=by_length(5, 8), stateful_step_count=50, deadline=None, derandomize=True, database=None
)
TestView = ViewMachine.TestCase


class ViewInMemoryMachine(ViewMachine):
    """The same where there are no files."""

    def storage(self):
        return MemoryStorage(self.files)


ViewInMemoryMachine.TestCase.settings = settings(ViewMachine.TestCase.settings, max_examples=by_length(6, 15))
TestViewInMemory = ViewInMemoryMachine.TestCase


class ViewOfObjectsMachine(ViewInMemoryMachine):
    """The same where nothing can be appended to, as on an object store."""

    def storage(self):
        return ObjectsInMemory(self.files)


ViewOfObjectsMachine.TestCase.settings = settings(
    ViewMachine.TestCase.settings, max_examples=by_length(6, 15)
)
TestViewOfObjects = ViewOfObjectsMachine.TestCase


@pytest.fixture
def machine():
    machine = ViewMachine()
    yield machine
    machine.teardown()


# What longer runs of the machine have found.


@pytest.mark.parametrize("seals", [False, True])
def test_the_first_commit_is_a_deletion(machine, seals):
    machine.delete("writer", {0}, 0)
    machine.all_see_the_newest_rows()
    if seals:
        machine.seal("writer", False, "exact")
    else:
        machine.maintain("writer", "refresh")
    machine.write("writer", [(0, {}, 0, None)])
    machine.all_see_the_newest_rows()


def test_a_row_after_a_deletion_is_not_late_for_what_was_before(machine):
    machine.write("writer", [(user, {}, 1, None) for user in USERS])
    machine.all_see_the_newest_rows()
    machine.delete("writer", {0}, 0)
    machine.all_see_the_newest_rows()
    for event in (-1, 0):
        machine.write("writer", [(0, {}, event, None)])
        machine.all_see_the_newest_rows()


@pytest.mark.parametrize("as_delta", [False, True])
def test_the_created_timestamp_decides_between_a_sealed_row_and_one_of_the_same_event(machine, as_delta):
    machine.write("writer", [(0, {}, 0, None)])
    machine.seal("writer", False, "exact")
    machine.write("writer", [(1, {}, 2, 2)])
    machine.seal("writer", as_delta, "exact")
    assert bool(machine.views["writer"].shards[0].state.deltas) == as_delta
    for created in (1, 3):
        machine.write("reader", [(1, {"name": Value(string_val=str(created))}, 2, created)])
        machine.all_see_the_newest_rows()
