"""Row semantics of one's own: a class and its registration, nothing else.

The toy unites: a Set is the union of all rows of its entity, and a deletion hides those before it.
"""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest
from feast.protos.feast.types.Value_pb2 import StringSet, Value

from feast_sketch_store.errors import DamagedFileError
from feast_sketch_store.layers.answer import LayerAnswer, stack
from feast_sketch_store.operations.verification import verify_view
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.encoding import (
    KEY_COLUMNS,
    NO_TIMESTAMP,
    EncodedRows,
    RowKeys,
    deletions,
    encode,
    row_keys,
)
from feast_sketch_store.rows.entity_keys import find_sorted
from feast_sketch_store.storage.local import LocalStorage
from feast_sketch_store.structures.answer import CsrAnswer
from feast_sketch_store.view.live import LiveView
from feast_sketch_store.view.registry import SEMANTICS
from feast_sketch_store.view.sealing import SealPolicy
from feast_sketch_store.view.semantics import REPLACE, RowSemantics
from feast_sketch_store.view.settings import FeatureSettings, ViewSettings
from feast_sketch_store.view.view import View
from tests.helpers.keys import user_hashes, user_key

START = datetime(2026, 1, 1, tzinfo=UTC)
CODECS = [FeatureCodec("viewed", "string_set_val"), FeatureCodec("liked", "string_set_val")]
USERS = range(12)
NEVER = SealPolicy(1.0, 10**9)


# -- the toy -----------------------------------------------------------------------------------


def united(rows):
    """One row per entity of rows in commit order: what deletions leave, united."""
    _, keys = rows.keys.newest()
    kept, _ = rows.keys.after_fences()
    _, owners = find_sorted(keys.entity_hashes, rows.keys.entity_hashes[kept])
    features = {}
    for name, feature in rows.take(kept).features.items():
        csr, states = feature.csr.united(owners, len(keys)), highest(feature.states, owners, len(keys))
        features[name] = replace(feature, states=states, indptr=csr.indptr, symbols=csr.ids)
    return EncodedRows(keys, features)


def highest(states, owners, num_owners):
    found = np.zeros(num_owners, np.uint8)
    np.maximum.at(found, owners, states)
    return found


class UnitedRows:
    """All rows of a log but those that a deletion hides."""

    def __init__(self, batches, expire_before):
        self._batches, self.expire_before = batches, expire_before
        self._keys = RowKeys.concatenate([row_keys(batch) for batch in batches(KEY_COLUMNS)])
        self.num_rows = len(self._keys)
        _, keys = self._keys.newest()
        self.keys = keys.take(np.flatnonzero(~keys.deleted & (keys.event_timestamps >= expire_before)))
        rows, _ = self._keys.after_fences()
        rows = rows[~self._keys.deleted[rows]]
        found, self._places = find_sorted(self.keys.entity_hashes, self._keys.entity_hashes[rows])
        self._rows = rows[found]
        self.has_dead = len(self._rows) < self.num_rows

    def __len__(self):
        return len(self._rows)

    def batches(self):
        first = 0
        for batch in self._batches(None):
            start, stop = np.searchsorted(self._rows, [first, first + len(batch)])
            if start < stop:
                yield self._places[start:stop], batch.take(pa.array(self._rows[start:stop] - first))
            first += len(batch)

    def encoded(self, codecs):
        tables = [table for _, table in self.batches()]
        if tables:
            table = pa.concat_tables(tables, promote_options="default")
            yield np.arange(len(self.keys)), united(encode(table, self._keys.take(self._rows), codecs))


class Unite(RowSemantics):
    name = "unite"

    def fold(self, batches, expire_before=NO_TIMESTAMP, kept_microseconds=None):
        return UnitedRows(batches, expire_before)

    def encode(self, table, codecs):
        return united(encode(table, row_keys(table), codecs))

    def merge(self, older, newer):
        return united(older.followed_by(newer))

    def late(self, keys, layers, sealed):
        return np.zeros(len(keys), np.bool_)  # every row adds something

    def decided(self, answer):
        return answer.fenced

    def combine(self, answers, features, expire_before, limit=None):
        if len(answers) < 2:
            return list(answers)
        both = stack(answers)
        found, owners = np.unique(both.found, return_inverse=True)
        times = np.full(len(found), NO_TIMESTAMP)
        np.maximum.at(times, owners, both.event_timestamps)
        features = {}
        for name, feature in both.features.items():
            csr = feature.csr.united(owners, len(found))
            features[name] = CsrAnswer(feature.decoder, highest(feature.states, owners, len(found)), csr)
        return [LayerAnswer(both.decided, found, times, features)]


# -- a view of it ------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def unite(monkeypatch):
    """The one registration."""
    monkeypatch.setitem(SEMANTICS, "unite", Unite())
    return SEMANTICS["unite"]


class Shop:
    """A view, and a dictionary of what it has to answer."""

    def __init__(self, folder):
        settings = ViewSettings("shop", 1e-9, {c.feature: FeatureSettings(c, 1e-9, 1000) for c in CODECS})
        self.storage, self.settings = LocalStorage(folder), replace(settings, semantics="unite")
        self.view, self.truth, self.second = self.open(), {}, 0

    def open(self):
        """Another object over the same files, as another process has it."""
        return View(self.storage, self.settings, NEVER, refresh_interval_seconds=0.0)

    def put(self, *writes, second=None):
        """Write ``(user, feature, items)`` as one batch; later ones have later event timestamps."""
        rows = []
        for user, feature, items in writes:
            self.second += 1
            event = START + timedelta(seconds=self.second if second is None else second)
            rows.append((user_key(user), {feature: Value(string_set_val=StringSet(val=items))}, event, None))
            row = self.truth.setdefault(user, {"event": event})
            row["event"] = max(row["event"], event)
            row[feature] = row.get(feature, set()) | set(items)
        self.view.write(rows)

    def delete(self, *users):
        self.second += 1
        self.view.delete(deletions([user_key(user) for user in users], START + timedelta(days=1)))
        for user in users:
            self.truth.pop(user, None)

    def check(self, view=None):
        """Each entity is found once, with the union of all that was written since it was deleted."""
        answers = (view or self.view).read(user_hashes(USERS), ["viewed", "liked"])
        found, events = {}, {}
        for answer in answers:
            for position, event in zip(answer.found.tolist(), answer.event_timestamps.tolist(), strict=True):
                assert position not in events
                events[position] = START + timedelta(microseconds=event - int(START.timestamp()) * 10**6)
            for name, feature in answer.features.items():
                values = feature.decoder.values(feature.states, feature.indptr, feature.symbols)
                for position, value in zip(answer.found.tolist(), values, strict=True):
                    if value is not None:
                        found.setdefault(position, {})[name] = set(value.string_set_val.val)
        assert found == {u: {n: v for n, v in row.items() if n != "event"} for u, row in self.truth.items()}
        # A seal may keep the beginning of a range of timestamps.
        assert all(events[user] <= row["event"] for user, row in self.truth.items())
        return events

    def verify(self, semantics):
        return verify_view(self.storage, CODECS, semantics=semantics)


@pytest.fixture
def shop(tmp_path):
    return Shop(tmp_path / "shop")


def test_rows_of_a_batch_and_of_several_are_united(shop):
    shop.put((1, "viewed", ["a", "b"]), (2, "viewed", []), (1, "viewed", ["c", "a"]), (1, "liked", ["x"]))
    shop.check()
    shop.put((1, "viewed", ["d"]))
    shop.put((2, "viewed", ["a"]), (3, "liked", ["y"]))
    assert shop.check() == {user: row["event"] for user, row in shop.truth.items()}


def test_unsealed_layers_that_share_entities_are_merged_and_found_once(shop):
    shop.put(*((user, "viewed", [f"item {user}"]) for user in USERS))
    for number in range(20):
        shop.put((number % 3, "viewed", [f"new {number}"]), (number % 5, "liked", ["y"]))
        shop.check()
    layers = shop.view._state.exact
    assert 1 < len(layers) <= 5
    assert sum(len(layer) for layer in layers) > len(USERS)  # an entity is in several


def test_sealed_and_unsealed_layers_are_united(shop):
    shop.put(*((user, "viewed", [f"item {user}", "all"]) for user in USERS))
    assert shop.view.seal()
    shop.check()
    shop.put((1, "viewed", ["more"]), (1, "liked", ["first"]))
    shop.put((2, "viewed", ["more"]))
    shop.put((1, "viewed", ["item 1", "even more"]))
    shop.check()
    shop.check(shop.open())
    assert shop.view.seal()
    shop.check()
    assert shop.view.stats().unsealed_rows == 0


def test_late_rows_count_and_do_not_set_the_clock_back(shop):
    shop.put((1, "viewed", ["new"]), second=100)
    shop.put((1, "viewed", ["late"]), second=1)
    assert shop.check()[1] == START + timedelta(seconds=100)
    assert shop.view.seal()
    shop.put((1, "viewed", ["later"]), second=2)
    shop.check()
    assert shop.view.seal()
    shop.check()


@pytest.mark.parametrize("sealed_after", [None, 0, 1, 2])
def test_a_deletion_hides_what_was_before_it(shop, sealed_after):
    steps = [
        lambda: shop.put((1, "viewed", ["a"]), (2, "viewed", ["b"]), (3, "viewed", ["c"])),
        lambda: shop.delete(1, 2),
        lambda: shop.put((1, "viewed", ["back"]), second=0),  # older than what was deleted
        lambda: shop.put((1, "viewed", ["again"]), (3, "viewed", ["more"])),
    ]
    for number, step in enumerate(steps):
        step()
        shop.check()
        if number == sealed_after:
            assert shop.view.seal()
            shop.check()
    assert shop.truth[1]["viewed"] == {"back", "again"}
    assert 2 not in shop.truth
    shop.check(shop.open())
    assert shop.verify(SEMANTICS["unite"]).is_sound


def test_compaction_keeps_the_rows_that_are_united(shop):
    shop.put((1, "viewed", ["a"]), (2, "viewed", ["b"]))
    shop.put((1, "viewed", ["c"]))
    shop.delete(2)
    assert shop.view.seal()  # compacts, as a deletion is in the log
    shop.check(shop.open())
    assert shop.verify(SEMANTICS["unite"]).rows == 2
    shop.put((1, "viewed", ["d"]))
    assert shop.view.seal()
    shop.check(shop.open())
    assert shop.verify(SEMANTICS["unite"]).rows == 3


def test_absorbed_rows_stay(shop):
    shop.put((1, "viewed", ["a"]))
    shop.put((1, "viewed", ["b"]), (2, "liked", ["x"]))
    shop.view.absorb()
    shop.check()
    shop.put((1, "viewed", ["c"]))
    shop.check(shop.open())
    assert shop.view.seal()
    shop.check(shop.open())


def test_another_process_sees_writes_as_they_come(shop):
    other = shop.open()
    for number in range(6):
        shop.put((1, "viewed", [f"item {number}"]), (number, "liked", ["x"]))
        shop.check(other)
        if number % 2:
            assert other.seal()
        shop.check(other)
        shop.check()


def test_a_rebuild_replaces_all_rows(shop, tmp_path):
    shop.put((1, "viewed", ["old"]), (2, "viewed", ["old"]))
    shop.view.seal()
    new = Shop(tmp_path / "new")

    def fill(staging):
        new.storage = staging
        new.view = new.open()
        new.put((1, "viewed", ["a"]))
        new.put((1, "viewed", ["b"]), (3, "liked", ["c"]))
        return staging

    shop.view.rebuild(fill)
    shop.truth = new.truth
    shop.check()
    shop.put((1, "viewed", ["d"]))
    shop.check(shop.open())
    assert shop.verify(SEMANTICS["unite"]).is_sound


def test_a_reader_learns_it_from_the_snapshot(shop):
    shop.put(*((user, "viewed", ["all"]) for user in USERS))
    shop.view.seal()
    shop.put((1, "viewed", ["more"]))
    shop.check(LiveView(shop.storage, refresh_interval_seconds=0.0))


def test_a_process_that_does_not_know_it_refuses_the_snapshot_by_its_name(shop, monkeypatch):
    shop.put((1, "viewed", ["a"]))
    shop.view.seal()
    monkeypatch.delitem(SEMANTICS, "unite")
    with pytest.raises(DamagedFileError, match=r"shop.*'unite', which this process does not know"):
        LiveView(shop.storage)


def test_a_snapshot_of_rows_that_replace_each_other_says_nothing_of_it(shop):
    shop.view = View(shop.storage, replace(shop.settings, semantics="replace"), NEVER)
    shop.put((1, "viewed", ["a"]))
    shop.view.seal()
    (snapshot,) = shop.view._snapshots.list()
    description, _ = snapshot.open("base")
    assert "rows" not in description["layer"]


def test_verify_compares_with_the_union(shop):
    shop.put((1, "viewed", ["a"]), (2, "viewed", ["b"]))
    shop.put((1, "viewed", ["c"]))
    shop.view.seal()
    found = shop.verify(SEMANTICS["unite"])
    assert found.is_sound
    assert (found.compared_entities, found.compared_facts) == (2, 3)
    # By other rules the snapshot has a value too many, and the log one too few.
    assert shop.verify(REPLACE).compared_facts == 2


def test_any_run_of_writes_deletions_and_seals(shop):
    chance = np.random.default_rng(5)
    other = shop.open()
    for number in range(120):
        match chance.integers(10):
            case 0:
                shop.delete(*chance.choice(USERS, 2, replace=False).tolist())
            case 1:
                shop.view.seal()
            case 2:
                shop.view.absorb()
            case _:
                users = chance.choice(USERS, 3).tolist()
                feature = ["viewed", "liked"][number % 2]
                shop.put(*((u, feature, [f"item {i}" for i in chance.integers(0, 40, 2)]) for u in users))
        if number % 4 == 0:
            shop.check()
            shop.check(other)
    shop.view.seal()
    shop.check(shop.open())
    assert shop.verify(SEMANTICS["unite"]).is_sound
