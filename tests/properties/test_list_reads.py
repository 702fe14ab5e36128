"""Lists read in one call of the kernel are those read through arrays, whatever lies over the sealed rows."""

from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest
from feast.protos.feast.types.Value_pb2 import Int64List, StringList, Value

from feast_sketch_store import SketchReader
from feast_sketch_store.rows.codecs import LIST, TIMES, FeatureCodec
from feast_sketch_store.rows.encoding import NO_TIMESTAMP, deletion_rows
from feast_sketch_store.rows.list_log import REMOVE, REPLACE, ListRows
from feast_sketch_store.rows.listing import Listing
from feast_sketch_store.settings.view_settings import FeatureSettings, ViewSettings
from feast_sketch_store.storage.local import LocalStorage
from feast_sketch_store.view.seal_policy import SealPolicy
from feast_sketch_store.view.view import View
from tests.helpers.keys import user_hashes, user_key
from tests.helpers.length import by_length
from tests.helpers.reads import assert_vectors, read_row, to_rows

pytestmark = pytest.mark.has_long_form

SECOND = 1_000_000
TICK = 600 * SECOND
START = int(datetime(2026, 3, 1, tzinfo=UTC).timestamp()) * SECOND
NUM_USERS = 12
CODECS = {
    "read": FeatureCodec("read", "string_list_val", LIST, listing=Listing(TICK, 7)),
    "read_at": FeatureCodec("read_at", "unix_timestamp_list_val", TIMES, times_of="read"),
    "rated": FeatureCodec("rated", "int64_list_val", LIST, listing=Listing(3600 * SECOND)),
}
SETTINGS = ViewSettings(
    "history",
    1e-12,
    {name: FeatureSettings(codec, 0.0, 10**6) for name, codec in CODECS.items()},
    join_keys={"user_id": "int64_val"},
    semantics="append",
)
NEVER = SealPolicy(1.0, 10**9)
QUESTIONS = [tuple(CODECS), tuple(CODECS)[::-1], ("read_at",), ("rated",)]


class Writer:
    """Writes to a view at random, later and later."""

    def __init__(self, view, random):
        self.view, self.random, self.now = view, random, START

    def do(self, step):
        self.now += int(self.random.integers(1, 3 * TICK))
        getattr(self, step)()

    def _items(self, most):
        """Words and times, some of them equal, some in one tick."""
        number = int(self.random.integers(0, most))
        words = [f"wörd {word}" for word in self.random.integers(0, 9, number)]
        ages = self.random.choice([0, 1, 60, 599, 600, 3_600, 40_000], number)
        return words, sorted((self.now // SECOND - ages).tolist())

    def write(self):
        rows = []
        for user in self.random.choice(NUM_USERS, int(self.random.choice([1, 3, NUM_USERS])), replace=False):
            words, times = self._items(8)
            values = {
                "read": Value(string_list_val=StringList(val=words)),
                "read_at": Value(unix_timestamp_list_val=Int64List(val=times)),
                "rated": Value(int64_list_val=Int64List(val=self.random.integers(0, 5, 3).tolist())),
            }
            for name in ("read", "rated"):
                what = self.random.integers(0, 8)
                if what == 0:
                    values[name] = Value()
                elif what == 1:
                    del values[name]
            if "read" not in values or not values["read"].WhichOneof("val"):
                del values["read_at"]
            event = datetime.fromtimestamp(self.now // SECOND, UTC)
            rows.append((user_key(int(user)), values, event, None))
        self.view.write(rows)

    def replace(self):
        self._operate(REPLACE)

    def remove(self):
        self._operate(REMOVE)

    def _operate(self, operation):
        feature = "read" if self.random.integers(2) else "rated"
        users = self.random.choice(NUM_USERS, 2, replace=False)
        words, times, lengths = [], [], []
        for _ in users:
            of_user, at = self._items(5)
            if operation == REMOVE:  # up to the begin of a tick, for sealed items have no other times
                at = [moment // 3_600 * 3_600 - 1 / SECOND for moment in at]
            words += of_user if feature == "read" else self.random.integers(0, 5, len(of_user)).tolist()
            times += [round(moment * SECOND) for moment in at]
            lengths.append(len(of_user))
        kind = pa.large_string() if feature == "read" else pa.int64()
        indptr = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
        keys = {"user_id": pa.array(users, pa.int64())}
        events = np.full(len(users), self.now)
        self.view.write(
            ListRows(
                keys, feature, indptr, pa.array(words, kind), np.array(times, np.int64), events, operation
            )
        )

    def delete(self):
        users = self.random.choice(NUM_USERS, 2, replace=False)
        moment = datetime.fromtimestamp(self.now // SECOND, UTC)
        self.view.delete(deletion_rows({"user_id": pa.array(users, pa.int64())}, moment))

    def seal(self):
        self.view.seal()


def sinces(writer):
    now = writer.now // SECOND * SECOND
    return NO_TIMESTAMP, now - 5 * TICK, now - 60 * TICK


def check_values(state, since):
    """Rows and vectors, whose ids have no names in common."""
    hashes = user_hashes(range(NUM_USERS + 1))
    for features in QUESTIONS:
        rows, answer = state.row_reader(features), state.read(hashes, features, since)
        for own, wanted in zip(hashes, to_rows(answer, len(hashes)), strict=True):
            assert (read_row(rows, own.tobytes(), features, since) or (None, None)) == wanted
        assert_vectors(rows, features, hashes, answer, since)


def named(state, feature, hashes, since, limit, numbering):
    """The times and the ids of the items of an entity whose values have ids."""
    items = state.read(hashes, (feature,), since, limit).features[feature]
    values = items.vocabulary.values.take(pa.array(items.csr.ids))
    ids = numbering.vocabulary.find(values)
    return [items.csr.weights[ids >= 0].tolist(), ids[ids >= 0].tolist()]


def check_reader(reader, writer, since):
    """What a reader says of one user, and of all."""
    minimum = None if since == NO_TIMESTAMP else datetime.fromtimestamp(since // SECOND, UTC)
    users = np.arange(NUM_USERS + 1)
    state = reader._view.current()
    for feature in ("read", "rated"):
        numbering = reader._single_of(state, feature).numbering
        weights = writer.random.normal(size=len(numbering))
        asked = numbering.values.take(pa.array(writer.random.permutation(len(numbering))[:5]))
        candidates = reader.candidates(feature, asked)
        ids = []
        for user in users.tolist():
            hashes = user_hashes([user])
            for limit in (None, 1, 4):
                wanted = named(state, feature, hashes, since, limit, numbering)
                for found in (
                    reader.lists(feature, user, minimum, limit),
                    reader.lists(feature, [user], minimum, limit),
                ):
                    assert [found.microseconds.tolist(), found.ids.tolist()] == wanted
            if since > NO_TIMESTAMP:
                continue
            ids.append(np.unique(named(state, feature, hashes, since, None, numbering)[1]).astype(int))
            np.testing.assert_array_equal(np.unique(reader.ids(feature, user)), ids[-1])
            assert len(reader.ids(feature, user)) == len(ids[-1])
            assert reader.scores(feature, user, weights) == pytest.approx(weights[ids[-1]].sum())
            has = np.isin(numbering.vocabulary.find(candidates.values), ids[-1])
            np.testing.assert_array_equal(reader.contains(feature, user, candidates), has)
            if feature not in reader._vocabularies:
                np.testing.assert_array_equal(reader.contains(feature, user, asked), has)
        if since == NO_TIMESTAMP:
            matrix = reader.csr(feature, users)
            np.testing.assert_array_equal(matrix.ids, np.concatenate(ids))
            np.testing.assert_array_equal(np.diff(matrix.indptr), [len(of_user) for of_user in ids])


@pytest.mark.parametrize("seed", range(by_length(2, 12)))
def test_lists_are_the_same_in_one_call(tmp_path, seed):
    """Rows that add, replace, remove and delete, before and after seals, in any number of layers."""
    random = np.random.default_rng(seed)
    view = View(LocalStorage(tmp_path / "p" / "history"), SETTINGS, NEVER, 0.0)
    writer = Writer(view, random)
    writer.do("write")
    for _ in range(int(random.integers(1, 5))):
        steps = random.choice(
            ["write", "replace", "remove", "delete", "seal"],
            int(random.integers(1, 9)),
            p=[0.5, 0.15, 0.15, 0.1, 0.1],
        )
        for step in steps:
            writer.do(step)
        view.refresh()
        for since in sinces(writer):
            check_values(view.current(), since)
    given = {"read": [f"wörd {word}" for word in range(1, 8, 2)], "rated": [3, 1]}
    for vocabularies in (None, given):
        reader = SketchReader(tmp_path, "history", "p", refresh_interval_seconds=0, vocabularies=vocabularies)
        for since in sinces(writer):
            check_reader(reader, writer, since)
        reader.close()
    view.close()
