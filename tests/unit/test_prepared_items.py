"""One-call reads of lists and counts give what reads through arrays give."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from feast.protos.feast.serving.ServingService_pb2 import GetOnlineFeaturesResponse
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import Int64List, StringList, Value

from feast_sketch_store import kernel
from feast_sketch_store.adapter import single
from feast_sketch_store.adapter.responses import add_vectors, to_rows
from feast_sketch_store.layers import Goal
from feast_sketch_store.rows.codecs import COUNTS, COUNTS_OF, LIST, TIMES, FeatureCodec
from feast_sketch_store.rows.encoding import NO_TIMESTAMP, deletions
from feast_sketch_store.rows.entity_keys import hash_entity_keys
from feast_sketch_store.rows.listing import Listing
from feast_sketch_store.storage.local import LocalStorage
from feast_sketch_store.view.settings import FeatureSettings, ViewSettings
from feast_sketch_store.view.view import View

pytestmark = pytest.mark.skipif(not kernel.IS_COMPILED, reason="the kernel is not compiled")

FIRST = datetime(2026, 3, 1, tzinfo=UTC)
NUM_USERS, TICK, LIMIT = 120, 600_000_000, 12
USERS = range(-2, NUM_USERS + 3)
LISTS = {
    "read": FeatureCodec("read", "string_list_val", LIST, listing=Listing(TICK, LIMIT)),
    "read_at": FeatureCodec("read_at", "unix_timestamp_list_val", TIMES, times_of="read"),
    "rated": FeatureCodec("rated", "int64_list_val", LIST, listing=Listing(TICK)),
}
COUNTED = {
    "viewed": FeatureCodec("viewed", "string_list_val", COUNTS),
    "views": FeatureCodec("views", "int64_list_val", COUNTS_OF, counts_of="viewed"),
    "country": FeatureCodec("country", "string_val"),
}


def key(user):
    return EntityKey(join_keys=["user"], entity_values=[Value(int64_val=user)])


def view_of(folder, codecs, semantics):
    goal = Goal("error_rate", 1e-6, "sets")
    features = {
        name: FeatureSettings(codec, goal if codec.is_collection else 1e-6, 10**6)
        for name, codec in codecs.items()
    }
    settings = ViewSettings("users", 1e-9, features, join_keys={"user": "int64_val"}, semantics=semantics)
    return View(LocalStorage(folder), settings)


def list_row(user, random, moment):
    read = [f"wörd {number}" for number in random.integers(0, 40, random.integers(0, 30))]
    times = sorted(int(moment.timestamp()) - int(t) for t in random.integers(0, 90_000, len(read)))[::-1]
    values = {
        "read": Value(string_list_val=StringList(val=read)),
        "read_at": Value(unix_timestamp_list_val=Int64List(val=times)),
        "rated": Value(int64_list_val=Int64List(val=random.integers(0, 9, 4).tolist())),
    }
    if user % 7 == 1:
        values["rated"] = Value()
    if user % 7 == 2:
        del values["rated"]
    return key(user), values, moment - timedelta(hours=int(random.integers(0, 30))), None


def counted_row(user, random, moment):
    viewed = [f"wörd {number}" for number in random.integers(0, 60, random.integers(0, 40))]
    values = {
        "viewed": Value(string_list_val=StringList(val=viewed)),
        "views": Value(int64_list_val=Int64List(val=random.integers(1, 9, len(viewed)).tolist())),
        "country": Value(string_val=f"country {user % 5}"),
    }
    if user % 7 == 1:
        values["viewed"], values["views"] = Value(), Value()
    if user % 7 == 2:
        del values["viewed"], values["views"]
    return key(user), values, moment + timedelta(seconds=user % 50), None


KINDS = {"lists": (LISTS, "append", list_row), "counts": (COUNTED, "replace", counted_row)}


@pytest.fixture(
    scope="module", params=[(kind, when) for kind in KINDS for when in ("sealed", "both")], ids=str
)
def asked(request, tmp_path_factory):
    """The codecs and the state of a view."""
    kind, when = request.param
    codecs, semantics, row = KINDS[kind]
    random = np.random.default_rng(7)
    view = view_of(tmp_path_factory.mktemp("view"), codecs, semantics)
    view.write([row(user, random, FIRST) for user in range(NUM_USERS)])
    view.seal()
    if when == "both":
        later = FIRST + timedelta(days=1)
        view.write([row(user, random, later) for user in range(0, NUM_USERS + 9, 7)])
        view.delete(deletions([key(user) for user in range(0, NUM_USERS, 11)], later, {"user": "int64_val"}))
    view.refresh()
    return codecs, view.current(), when


def slow_rows(state, features, expire_before):
    """Per user its row, and whether rows of it expired."""
    answers = state.read(hash_entity_keys([key(user) for user in USERS]), features, expire_before)
    expired = {place for answer in answers for place in answer.expired.tolist()}
    rows = to_rows(answers, len(USERS))
    return [(user, rows[place], place in expired) for place, user in enumerate(USERS)]


@pytest.mark.parametrize("hours", [None, -40, -12, 0])
def test_rows_are_the_same(asked, hours):
    """What expires does so item by item in lists."""
    codecs, state, _ = asked
    expire_before = NO_TIMESTAMP if hours is None else int((FIRST + timedelta(hours=hours)).timestamp() * 1e6)
    for features in (tuple(codecs), tuple(codecs)[::-1], *((name,) for name in codecs)):
        rows, found, refused = state.prepared(features), 0, 0
        for user, wanted, is_expired in slow_rows(state, features, expire_before):
            row = single.read_row(rows, single.hash_entity_key(key(user)), features, expire_before)
            if row is None:
                refused += 1
                continue
            assert not is_expired
            assert row == wanted
            found += wanted[1] is not None
        if hours is None:
            assert found > 70
            assert refused == 0


def test_vectors_are_the_same(asked):
    codecs, state, _ = asked
    features, compared = tuple(codecs), 0
    rows = state.prepared(features)
    for user in USERS:
        answers = state.read(hash_entity_keys([key(user)]), features, NO_TIMESTAMP)
        slow, fast = GetOnlineFeaturesResponse(), GetOnlineFeaturesResponse()
        num_present = add_vectors(slow, features, answers, 1, None)
        added = single.add_vectors(fast, rows, single.hash_entity_key(key(user)), NO_TIMESTAMP)
        if added is not None:
            assert added == (num_present, sum(len(answer.found) for answer in answers))
            assert fast == slow
            compared += 1
    assert compared > 90


@pytest.mark.parametrize("hours", [None, -12])
@pytest.mark.parametrize("limit", [1, 5, 1 << 62])
def test_items_are_the_same(asked, hours, limit):
    codecs, state, _ = asked
    since = NO_TIMESTAMP if hours is None else int((FIRST + timedelta(hours=hours)).timestamp() * 1e6)
    for name in ("read", "rated"):
        if name not in codecs:
            return
        rows, compared = state.prepared((name,)), 0
        for user in USERS:
            hashes = hash_entity_keys([key(user)])
            items = rows.items(hashes.tobytes(), since, limit)
            if items is None:
                continue
            answers = state.read(hashes, (name,), since, limit)
            feature = answers[0].features.get(name) if answers and len(answers[0].found) else None
            ids, times = ([], []) if feature is None else (feature.csr.ids, feature.csr.weights)
            of_ids, of_times = items or (b"", b"")
            np.testing.assert_array_equal(np.frombuffer(of_ids, np.int32), ids)
            np.testing.assert_array_equal(np.frombuffer(of_times, np.int64), times)
            compared += 1
        assert compared > 90


def test_ids_of_one_and_of_many_are_distinct(asked):
    codecs, state, _ = asked
    name, weights = next(iter(codecs)), np.random.default_rng(5).normal(size=100)
    rows, wanted, places = state.prepared((name,)), [], []
    for user in USERS:
        hashes = hash_entity_keys([key(user)])
        ids = rows.ids(hashes.tobytes(), NO_TIMESTAMP)
        if ids is None:
            continue
        places.append(hashes)
        answers = state.read(hashes, (name,), NO_TIMESTAMP)
        feature = answers[0].features.get(name) if answers and len(answers[0].found) else None
        of_user = np.zeros(0, np.int32) if feature is None else feature.csr.ids
        wanted.append(np.unique(of_user) if codecs[name].is_list else of_user)
        np.testing.assert_array_equal(np.frombuffer(ids or b"", np.int32), wanted[-1])
        assert rows.score(hashes.tobytes(), NO_TIMESTAMP, weights) == pytest.approx(weights[wanted[-1]].sum())
    indptr = np.empty(len(places) + 1, np.int64)
    matrix = rows.csr(np.concatenate(places), NO_TIMESTAMP, indptr)
    np.testing.assert_array_equal(np.diff(indptr), [len(ids) for ids in wanted])
    np.testing.assert_array_equal(np.frombuffer(matrix[0], np.int32), np.concatenate(wanted))


def test_blocks_are_checked_before_they_are_read(tmp_path):
    for kind, (codecs, semantics, row) in KINDS.items():
        view = view_of(tmp_path / kind, codecs, semantics)
        view.write([row(user, np.random.default_rng(user), FIRST) for user in range(20)])
        view.seal()
        opened = view_of(tmp_path / kind, codecs, semantics)
        opened.refresh()
        features, entity_hash = tuple(codecs), single.hash_entity_key(key(3))
        rows = opened.current().prepared(features)
        assert rows.row(entity_hash, NO_TIMESTAMP) is None
        wanted = to_rows(opened.current().read(hash_entity_keys([key(3)]), features, NO_TIMESTAMP), 1)
        assert single.read_row(rows, entity_hash, features, NO_TIMESTAMP) == wanted[0]
        assert wanted[0][1]


def test_what_does_not_fit_is_refused():
    rows = kernel.prepared_rows()
    with pytest.raises(ValueError, match="no feature"):
        rows.from_weights(np.zeros(1, np.uint8), np.zeros(2, np.int64), np.zeros(0, np.int64))
    rows.exact(np.zeros((1, 2), np.uint64), np.zeros(1, np.int64), np.zeros(1, np.bool_))
    rows.feature(b"\x0a", True, 0, None, None, None)
    with pytest.raises(ValueError, match="do not fit"):
        rows.from_weights(np.zeros(1, np.uint8), np.zeros(3, np.int64), np.zeros(0, np.int64))
    rows.from_weights(np.full(1, 3, np.uint8), np.array([0, 2]), np.array([5, 7]))
    stack = kernel.prepared_rows()
    with pytest.raises(ValueError, match="do not fit"):
        stack.limits(np.ones(1, np.int64), np.ones(1, np.int64), False, 1)
    stack.layer(rows, None, None, None)
    assert stack.ids(b"\0" * 16, NO_TIMESTAMP) is None
    assert stack.items(b"\0" * 16, NO_TIMESTAMP, 3) is None
    assert stack.row(b"\0" * 16, NO_TIMESTAMP)[2] == b"\x0a\x06\x0a\x04\x0a\x02\x05\x07"
    with pytest.raises(ValueError, match="below 1"):
        stack.items(b"\0" * 16, NO_TIMESTAMP, 0)
    with pytest.raises(ValueError, match="do not fit"):
        stack.limits(np.ones(2, np.int64), np.ones(2, np.int64), False, 1)
    with pytest.raises(ValueError, match="a tick takes"):
        stack.limits(np.ones(1, np.int64), np.zeros(1, np.int64), False, 1)
    stack.limits(np.ones(1, np.int64), np.ones(1, np.int64), False, 1)
    assert stack.row(b"\0" * 16, NO_TIMESTAMP) is None
