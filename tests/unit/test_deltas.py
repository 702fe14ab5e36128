"""Deltas: sealed rows over a base, and what they cost."""

import datetime

import pytest

from feast_sketch_store.errors import DamagedFileError
from feast_sketch_store.layers import Cut, Goal
from feast_sketch_store.operations.verification import verify_view
from feast_sketch_store.rows.encoding import deletions
from feast_sketch_store.settings.values import KeptValues
from feast_sketch_store.settings.view_settings import FeatureSettings, ViewSettings
from feast_sketch_store.snapshot.format import locate
from feast_sketch_store.storage.local import LocalStorage
from feast_sketch_store.view.folding import num_kept
from feast_sketch_store.view.seal_policy import SealPolicy, may_have_deltas
from feast_sketch_store.view.view import View
from tests.helpers.cases import for_each
from tests.helpers.histories import CODEC, NEVER, items_of, put, settings_of
from tests.helpers.keys import user_hashes, user_key
from tests.storage.memory import Files, ObjectsInMemory

SETTINGS = settings_of(1e-9, 10**6, 1e-9)


class Life:
    """A view and what its reads have to give."""

    def __init__(self, storage, settings=SETTINGS, policy=NEVER):
        self.storage = storage
        self.settings = settings
        self.view = View(storage, settings, policy, 0.0)
        self.expected = {}

    def put(self, users, *items, second=0):
        self.expected |= put(self.view, dict.fromkeys(users, items), second)

    def delete(self, *users):
        self.view.delete(deletions([user_key(u) for u in users], datetime.datetime.now(datetime.UTC), None))
        for user in users:
            del self.expected[user]

    def seal(self, **how):
        assert self.view.seal(**how)
        self.check()

    def check(self, num_users=100):
        for view in (self.view, View(self.storage, self.settings, NEVER, 0.0)):
            assert items_of(view, range(num_users)) == self.expected
        verified = verify_view(self.storage, self.settings.codecs)
        assert verified.problems == []

    @property
    def deltas(self):
        """How many entities each lists."""
        return [len(delta) for delta in self.view.shards[0].state.deltas]

    @property
    def files(self):
        return {info.name for info in self.view.shards[0].snapshots.storage.walk()}


@pytest.fixture
def life(tmp_path):
    return Life(LocalStorage(tmp_path / "view"))


def test_a_delta_lies_over_its_base(life):
    life.put(range(50), "a", "b")
    life.seal()
    before = life.files
    life.put(range(45, 55), "c", second=1)
    life.seal(as_delta=True)
    assert life.deltas == [10]
    assert before < life.files  # nothing was written again
    assert (life.view.shards[0].state.unsealed_rows, life.view.shards[0].state.exact) == (0, ())
    assert life.view.shards[0].state.sealed.num_entities == 50
    assert len(life.view.state.row_keys()) == 55
    assert life.view.stats().sealed_facts > 100
    life.seal(as_delta=True)
    assert life.deltas == []  # where there is nothing new, a seal that is asked for makes a base


@pytest.mark.slow
def test_deltas_stay_few_and_become_a_base(life):
    life.put(range(90), "a")
    life.seal()
    for number in range(20):
        life.put([number], f"b{number}", second=1 + number)
        assert life.view.seal(as_delta=True)
        assert sum(life.deltas) == number + 1
        assert all(2 * newer < older for older, newer in zip(life.deltas, life.deltas[1:], strict=False))
    life.check()
    life.seal()
    assert life.deltas == []
    life.view.vacuum(0)
    assert len(life.files) == 3
    life.check()


def test_a_delta_that_needs_a_damaged_order_index_becomes_a_base(life):
    life.put(range(50), "a")
    life.seal()
    (index,) = life.storage.path.glob("snapshots/*.order.sketch")
    life.put(range(40, 46), "b")  # as old as their sealed rows
    life.seal(as_delta=True)
    index.write_bytes(b"")
    life.view = View(life.storage, SETTINGS, NEVER, 0.0)
    life.put(range(46, 50), "c", second=1)  # so many that the delta becomes part of the next one
    assert life.view.seal(as_delta=True)
    assert life.deltas == []
    assert items_of(View(life.storage, SETTINGS, NEVER, 0.0), range(60)) == life.expected


@for_each(
    ("deltas", "num_rows", "kept"),
    [
        ([], 5, 0),
        ([100], 49, 1),
        ([100], 50, 0),
        ([100, 40, 10], 4, 3),
        ([100, 40, 10], 5, 2),
        ([100, 40, 10], 20, 0),
    ],
)
def test_which_deltas_stay(deltas, num_rows, kept):
    assert num_kept([range(n) for n in deltas], num_rows) == kept


def test_deletions_hold(life):
    life.put(range(30), "a")
    life.seal()
    life.delete(1, 2)
    life.put([3, 40], "b", second=1)
    life.seal(as_delta=True)
    assert life.deltas == [4]
    life.put([1, 41], "again")  # not newer than what was deleted
    life.check()
    life.seal(as_delta=True)
    life.delete(40)
    life.seal(as_delta=True)
    life.view.vacuum(0)
    life.check()
    life.seal()
    life.check()


def test_only_deletions_are_a_delta_without_rows(life):
    life.put(range(30), "a")
    life.seal()
    life.delete(*range(5))
    life.seal(as_delta=True)
    assert life.deltas == [5]


def test_late_rows_do_not_count(life):
    life.put(range(30), "a", second=5)
    life.seal()
    life.put([1], "newer", second=9)
    life.seal(as_delta=True)
    expected = dict(life.expected)
    # Late for the base, late for the delta: unsealed, and when they are sealed over them.
    for second, users in ((4, [0, 2]), (8, [1])):
        life.put(users, "late", second=second)
        life.expected = dict(expected)
        life.check()
    life.seal(as_delta=True)
    life.put([1, 50], "newest", second=10)
    life.seal(as_delta=True)
    life.seal()


def test_a_row_of_the_base_is_never_hidden(tmp_path):
    settings = settings_of(0.5, 10**6, 0.5)
    view = View(LocalStorage(tmp_path), settings, NEVER, 0.0)
    life = Life(view.storage, settings)
    life.put(range(1000), "in the base")
    assert life.view.seal()
    life.put(range(1000, 1200), "in the delta", second=1)
    assert life.view.seal(as_delta=True)
    assert life.deltas == [200]
    found = items_of(life.view, range(1200))
    assert all("in the base" in found[user] for user in range(1000))
    assert all("in the delta" in found[user] for user in range(1000, 1200))


def test_values_that_the_base_cuts_stay_cut(tmp_path):
    feature = FeatureSettings(CODEC, 1e-9, 10**6, KeptValues(top=1))
    settings = ViewSettings("history", 1e-9, {"viewed": feature})
    assert settings.budget.cuts == {"viewed": Cut(1)}
    life = Life(LocalStorage(tmp_path), settings)
    life.put(range(10), "often")
    life.put([20], "seldom", "often", second=1)
    life.expected[20] = {"often"}
    life.seal()
    life.put([30, 31], "other", "often", second=1)
    life.expected |= {30: {"often"}, 31: {"often"}}
    life.seal(as_delta=True)
    assert life.deltas == [2]


def test_memory_of_a_feature_is_not_divided(tmp_path):
    feature = FeatureSettings(CODEC, Goal("memory", 10_000), 10**6)
    settings = ViewSettings("history", 1e-9, {"viewed": feature})
    assert not may_have_deltas(settings)
    assert may_have_deltas(SETTINGS)


def test_the_policy_chooses(tmp_path):
    life = Life(LocalStorage(tmp_path), policy=SealPolicy(1.0, 4, by_deltas=True))
    life.put(range(64), "a")
    life.view.settle()
    assert (life.deltas, life.view.shards[0].state.sealed.num_entities) == ([], 64)
    life.put(range(4), "b", second=1)
    life.view.settle()
    assert (life.deltas, life.view.shards[0].state.unsealed_rows) == ([], 4)
    life.put([4], "b", second=1)
    life.view.settle()
    assert life.deltas == [5]
    life.put(range(10, 72), "c", second=2)
    life.view.settle()
    assert (life.deltas, life.view.shards[0].state.sealed.num_entities) == ([], 72)
    life.check()


@pytest.mark.parametrize("part", ["base", "order"])
def test_a_damaged_delta_gives_way_to_the_snapshot_before(life, part, caplog):
    life.put(range(30), "a")
    life.seal()
    life.put([1], "b", second=1)
    life.seal(as_delta=True)
    newest = life.view.shards[0].snapshots.list()[0]
    name = newest.manifest().layers[1].files[part].name
    content = bytearray(life.view.shards[0].snapshots.storage.read(name))
    content[-1] ^= 1
    life.view.shards[0].snapshots.storage.replace(name, bytes(content))
    view = View(life.storage, SETTINGS, NEVER, 0.0)
    if part == "base":
        assert len(view.read(user_hashes([1]), ["viewed"]).found) == 1
        assert "falling back to the snapshot before it" in caplog.text
        assert view.shards[0].state.snapshot == life.view.shards[0].snapshots.list()[1]
    else:
        with pytest.raises(DamagedFileError):
            view.state.row_keys() if len(view.read(user_hashes([1]), ["viewed"]).found) else None
    assert verify_view(life.storage, SETTINGS.codecs).problems


def test_damage_of_a_base_names_its_file_and_not_that_of_the_delta(life, caplog):
    life.put(range(30), "a")
    life.seal()
    life.put([1], "b", second=1)
    life.seal(as_delta=True)
    snapshots = life.view.shards[0].snapshots
    base = snapshots.list()[0].manifest().layers[0].files["base"].name
    content = bytearray(snapshots.storage.read(base))
    table = locate(bytes(content), len(content), base)["structures.bloom.table.words"]
    content[table.start : table.end] = bytes(table.size_bytes)
    snapshots.storage.replace(base, bytes(content))
    view = View(life.storage, SETTINGS, NEVER, 0.0)
    with pytest.raises(DamagedFileError, match=base):
        view.read(user_hashes([2]), ["viewed"])
    assert len(caplog.messages) == 2
    assert all(base in text for text in caplog.messages)


def test_a_delta_over_a_base_that_another_process_replaced(life):
    life.put(range(30), "a")
    life.seal()
    other = View(life.storage, SETTINGS, NEVER, 0.0)
    life.put([1], "b", second=1)
    assert other.seal()
    assert other.seal()
    life.put([2], "b", second=1)
    life.seal(as_delta=True)
    assert life.deltas == [1]


def test_a_base_that_deltas_need_outlives_its_own_snapshot(life):
    life.put(range(30), "a")
    life.seal()
    base = {name for name in life.files if ".base." in name}
    for number in range(4):
        life.put([number], "b", second=1 + number)
        assert life.view.seal(as_delta=True)
    life.view.vacuum(0)
    assert len(life.view.shards[0].snapshots.list()) == 1
    assert base < life.files
    life.check()


def test_deltas_where_nothing_can_be_appended_to():
    life = Life(ObjectsInMemory(Files()))
    life.put(range(30), "a")
    life.seal()
    for number in range(5):
        life.put([number, 40 + number], f"b{number}", second=1 + number)
        life.seal(as_delta=True)
    assert sum(life.deltas) == 10


def test_a_row_after_a_deletion_in_a_delta_is_not_late_for_the_base(life):
    """Whatever other rows are written with it, of which the base has to be asked."""
    life.put(range(20), "a", second=8)
    life.seal()
    life.delete(2)
    life.put([30], "b", second=5)  # all rows of the delta are older than the next one of what it deletes
    life.seal(as_delta=True)
    life.put([2, 31], "c", second=6)
    life.check()
    life.seal(as_delta=True)
