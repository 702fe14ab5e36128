"""Reads of one entity from a prepared filter give what reads through arrays give."""

from datetime import UTC, datetime, timedelta

import mmh3
import numpy as np
import pytest
from feast.protos.feast.types.Value_pb2 import Int64Set, StringSet, Value

from feast_sketch_store import kernel
from feast_sketch_store.errors import DamagedFileError
from feast_sketch_store.layers import Goal
from feast_sketch_store.rows.codecs import EXACT, VALUE, FeatureCodec
from feast_sketch_store.rows.encoding import NO_TIMESTAMP
from feast_sketch_store.settings.view_settings import FeatureSettings, ViewSettings
from feast_sketch_store.storage.local import LocalStorage
from feast_sketch_store.view.view import View
from tests.helpers.keys import user_hashes, user_key
from tests.helpers.length import by_length
from tests.helpers.reads import assert_joined, assert_rows, csr_of, has_values, ids_of, score_of, to_rows

NUM_ROWS = 400
FIRST = datetime(2026, 3, 1, tzinfo=UTC)
SETS, SCALARS = ("viewed", "tags"), ("country",)
FEATURES = (*SETS, *SCALARS, "score", "nothing")
USERS = range(-20, 2 * NUM_ROWS)
LEARNED = "learned_bloom"
NOTHING = {"viewed": Value()}
NOTHING_READ = np.zeros(0, np.int32)
NO_MASKS = (None, None, None, None)  # nor first symbols of hashes


def rows_of(users, random, is_listed, moment):
    """Rows of few shapes: some lack this or that."""
    rows = []
    for user in users:
        numbers = random.choice(500, random.integers(0, 30), replace=False).tolist()
        texts = sorted({f"wörd {number}" for number in random.integers(0, 90, 3)})
        values = {
            "viewed": Value(int64_set_val=Int64Set(val=[] if user % 5 == 1 else numbers)),
            "tags": Value() if user % 5 == 2 else Value(string_set_val=StringSet(val=texts)),
            "country": Value(string_val=f"country {random.integers(0, 9)}"),
        }
        if user % 5 == 3:
            del values["country"]
        if is_listed:
            values["score"] = Value(double_val=float(user))
        rows.append((user_key(user), values, moment + timedelta(days=user % 2), None))
    return rows


@pytest.fixture(
    scope="module", params=["shaped", "shaped and unsealed", "listed", "weighted", "opened", "clustered"]
)
def state(request, tmp_path_factory):
    random, folder = np.random.default_rng(7), tmp_path_factory.mktemp("view")
    is_listed = request.param in ("listed", "clustered")
    goal = Goal("error_rate", 0.02, "bloom")
    own = {
        "weighted": Goal("noise_ratio", 1.5, "weighted_bloom"),
        "clustered": Goal("noise_ratio", 1.5, LEARNED),
    }
    weighted, others = own.get(request.param, goal), goal
    if request.param == "clustered":
        others = Goal("noise_ratio", 1.5, "sandwiched_bloom")
    features = {
        "viewed": FeatureSettings(FeatureCodec("viewed", "int64_set_val"), weighted, 10**6),
        "tags": FeatureSettings(FeatureCodec("tags", "string_set_val"), others, 10**6),
        "country": FeatureSettings(FeatureCodec("country", "string_val"), 0.02, 10**6),
    }
    if is_listed:
        features["score"] = FeatureSettings(FeatureCodec("score", "double_val", EXACT), goal, 10**6)
    settings = ViewSettings("users", 1e-4, features, join_keys={"user_id": "int64_val"})
    view = View(LocalStorage(folder), settings)
    view.write(rows_of(range(NUM_ROWS), random, is_listed, FIRST))
    view.seal()
    (layer,) = view.current().sealed.layers
    structures = {"bloom", "weighted_bloom"}
    if request.param == "clustered":
        structures = {LEARNED, "sandwiched_bloom"}
        assert any(len(layer.features[name].hashes) > 1 for name in SETS)
    assert {layer.features[name].structure for name in SETS} <= structures
    assert (layer.presence.num_listed is None) is not is_listed
    if request.param == "shaped and unsealed":
        later = FIRST + timedelta(days=3)
        view.write(rows_of(range(0, 2 * NUM_ROWS, 7), random, is_listed, later))
    if request.param == "opened":
        view = View(LocalStorage(folder), settings)
    view.refresh()
    return view.current()


def slow(state, users, expire_before=NO_TIMESTAMP):
    """Per user its row, and its ids of each feature."""
    answer = state.read(user_hashes(users), FEATURES, expire_before)
    ids = {
        index: {
            name: feature.symbols[feature.indptr[row] : feature.indptr[row + 1]]
            for name, feature in answer.features.items()
        }
        for row, index in enumerate(answer.found.tolist())
    }
    rows = to_rows(answer, len(users))
    return [(user, rows[index], ids.get(index, {})) for index, user in enumerate(users)]


@pytest.mark.slow
@pytest.mark.has_long_form
@pytest.mark.parametrize("days", by_length([1], [None, 1]))
def test_rows_and_values_are_the_same(state, days):
    expire_before = NO_TIMESTAMP if days is None else int((FIRST + timedelta(days=days)).timestamp() * 1e6)
    assert assert_rows(state, FEATURES, user_hashes(USERS), expire_before)[0] > 150
    prepared = {name: state.row_reader((name,)) for name in (*SETS, *SCALARS)}
    is_alone = len(state.newest_first) == 1  # then all ways give the ids of one layer
    random = np.random.default_rng(2)
    for user, wanted, ids in slow(state, USERS, expire_before):
        hashes = user_hashes([user])
        ask = hashes.tobytes(), expire_before
        for name, one in prepared.items() if is_alone else ():
            symbols = ids.get(name, NOTHING_READ)
            alone = ids_of(one, *ask)
            np.testing.assert_array_equal(NOTHING_READ if alone is None else alone, symbols)
            weights = random.normal(size=500)
            assert score_of(one, ask[0], weights, expire_before) == pytest.approx(weights[symbols].sum())
        (out,) = has_values(prepared["viewed"], hashes, np.arange(600), expire_before=expire_before)
        assert set(out.nonzero()[0].tolist()) == set((wanted[1] or NOTHING)["viewed"].int64_set_val.val)


@pytest.mark.parametrize("name", [*SETS, *SCALARS])
def test_many_rows_come_in_one_call(state, name):
    """As each alone."""
    rows, all_hashes = state.row_reader((name,)), user_hashes(USERS)
    for number in (0, 1, 7, 200):
        for first in range(0, len(USERS) - number, max(number, 100)):
            hashes = all_hashes[first : first + number]
            alone = [ids_of(rows, entity) for entity in hashes]
            ids, _, indptr, num_found = csr_of(rows, hashes)
            assert_joined(ids, indptr, alone)
            assert num_found == sum(one is not None for one in alone)


class Check:
    """Of an array, of which no block was verified yet."""

    block_words = 9

    def __init__(self, words):
        self.words, self.checksums = words, block_checksums_of(words, self.block_words)
        self.unchecked, self.pending = np.ones(len(self.checksums), np.uint8), np.ones(1, np.uint8)

    def report(self, block):
        raise DamagedFileError(f"block {block}")


def block_checksums_of(words, block_words):
    blocks = [words[first : first + block_words] for first in range(0, len(words), block_words)]
    return np.stack([np.frombuffer(mmh3.mmh3_x64_128_digest(block.tobytes()), np.uint8) for block in blocks])


def test_blocks_are_checked_where_they_are_read():
    """Of the two blocks of a table all bits are ones, so everybody has everything in it."""
    words, salt, nobody = np.full(18, 2**64 - 1, np.uint64), (1, 2), np.zeros((0, 2), np.uint64)
    times, check = np.zeros(1, np.int64), Check(words)

    def reads():
        layer, rows = kernel.RowReader(), kernel.RowReader()
        layer.shaped(words, 16, *salt, nobody, 0, 1, 3, *NO_MASKS, check, times, times)
        layer.feature(b"\x0a", True, 0, np.arange(30), None, None)
        layer.from_filter(words, 16, *salt, nobody, 1, 30, 3, *NO_MASKS, check)
        layer.states(np.full(2, VALUE, np.uint64), 2, 0, 1, None, 0)
        rows.layer(layer, None, None, None)
        return rows

    everything = list(range(30))
    assert ids_of(reads(), b"0123456789abcdef").tolist() == everything
    assert not check.unchecked.all()
    check.unchecked[:], check.pending[:], words[12] = 1, 1, 0
    rows, damaged = reads(), 0
    for number in range(200):  # some are in the other block alone
        try:
            assert ids_of(rows, bytes([number]) * 16).tolist() == everything
        except DamagedFileError:
            damaged += 1
    assert 0 < damaged < 200
    assert check.unchecked.tolist() == [0, 1]
    assert check.pending.tolist() == [1]


def test_what_does_not_fit_is_refused():
    words, salt, nobody = np.zeros(9, np.uint64), (1, 2), np.zeros((0, 2), np.uint64)
    times = np.zeros(40, np.int64)
    for symbols, bounds in ((40, times[:39].copy()), (600, np.zeros(600, np.int64))):
        rows = kernel.RowReader()
        with pytest.raises(ValueError, match=r"fit|window"):
            rows.shaped(words, 8, *salt, nobody, 0, symbols, 3, *NO_MASKS, None, bounds, bounds)
    rows = kernel.RowReader()
    rows.shaped(words, 8, *salt, nobody, 0, 40, 3, *NO_MASKS, None, times, times)
    with pytest.raises(ValueError, match="already"):
        rows.shaped(words, 8, *salt, nobody, 0, 40, 3, *NO_MASKS, None, times, times)
    with pytest.raises(ValueError, match="no feature"):
        rows.states(np.zeros(2, np.uint64), 1, 0, 40, None, 0)
    rows.feature(b"\x0a", True, 0, np.arange(30), None, None)
    with pytest.raises(ValueError, match="do not fit"):
        rows.from_filter(words, 8, *salt, nobody, 0, 31, 3, *NO_MASKS, None)
    rows.from_filter(words, 8, *salt, nobody, 0, 30, 3, *NO_MASKS, None)
    with pytest.raises(ValueError, match="do not fit"):
        rows.states(np.zeros(2, np.uint64), 1, 0, 39, None, 0)
