"""Reads of one entity from prepared rows give what reads through arrays give, whatever keeps the features."""

import gc
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest
from feast.protos.feast.types.Value_pb2 import DoubleList, Int64List, Int64Set, StringList, StringSet, Value

from feast_sketch_store import kernel
from feast_sketch_store.adapter import responses
from feast_sketch_store.kernel.binary import parts_of
from feast_sketch_store.rows.codecs import EXACT, FeatureCodec
from feast_sketch_store.rows.encoding import NO_TIMESTAMP
from feast_sketch_store.rows.entity_keys import (
    SingleKeys,
    hash_columns,
    hash_int64_key,
    hash_int64_keys,
)
from tests.helpers.keys import user_hashes, user_key
from tests.helpers.reads import (
    assert_rows,
    assert_vectors,
    delete,
    has_names,
    has_values,
    ids_of,
    score_of,
    view_of_sets,
)

pytestmark = pytest.mark.slow

NUM_ROWS = 300
FIRST = datetime(2026, 3, 1, tzinfo=UTC)
LATER = FIRST + timedelta(days=1)
CODECS = {
    "liked": FeatureCodec("liked", "int64_set_val"),
    "viewed": FeatureCodec("viewed", "int64_set_val"),
    "tags": FeatureCodec("tags", "string_set_val"),
    "country": FeatureCodec("country", "string_val"),
    "age": FeatureCodec("age", "int32_val"),
    "score": FeatureCodec("score", "float_val", EXACT),
    "name": FeatureCodec("name", "string_val", EXACT),
    "seen_at": FeatureCodec("seen_at", "unix_timestamp_val", EXACT),
    "is_new": FeatureCodec("is_new", "bool_val", EXACT),
    "vector": FeatureCodec("vector", "double_list_val", EXACT),
    "words": FeatureCodec("words", "string_list_val", EXACT),
    "numbers": FeatureCodec("numbers", "int64_list_val", EXACT),
    "content": FeatureCodec("content", "bytes_val", EXACT),
}
FEATURES = tuple(CODECS)


def row(user, random, moment):
    """A row with some features missing, some null, some empty."""
    viewed = random.choice(400, random.integers(0, 40), replace=False).tolist()
    liked = [value for value in viewed if random.random() < 0.4]
    texts = [f"wörd {number}" for number in random.integers(0, 1000, random.integers(0, 5))]
    values = {
        "viewed": Value(int64_set_val=Int64Set(val=viewed)),
        "liked": Value(int64_set_val=Int64Set(val=liked)),
        "tags": Value(string_set_val=StringSet(val=sorted({f"tag {n}" for n in random.integers(0, 90, 3)}))),
        "country": Value(string_val=f"country {random.integers(0, 9)}"),
        "age": Value(int32_val=int(random.integers(-5, 90))),
        "score": Value(float_val=float(random.normal())),
        "name": Value(string_val=f"näme {random.integers(0, 10**9)}" * int(random.integers(1, 9))),
        "seen_at": Value(unix_timestamp_val=int(random.integers(-(10**6), 10**9))),
        "is_new": Value(bool_val=bool(random.integers(0, 2))),
        "vector": Value(double_list_val=DoubleList(val=random.normal(size=random.integers(0, 4)).tolist())),
        "words": Value(string_list_val=StringList(val=texts)),
        "numbers": Value(int64_list_val=Int64List(val=random.integers(-9, 2**40, 3).tolist())),
        "content": Value(bytes_val=random.bytes(int(random.integers(0, 300)))),
    }
    for name in random.choice(FEATURES, 3, replace=False):
        if random.random() < 0.5:
            del values[name]
        else:
            values[name] = Value()
    return user_key(user), values, moment + timedelta(seconds=int(random.integers(0, 50))), None


@pytest.fixture(scope="module", params=["unsealed", "sealed", "both"])
def view(request, tmp_path_factory):
    random = np.random.default_rng(7)
    view = view_of_sets(tmp_path_factory.mktemp("view"), CODECS.values())
    view.write([row(user, random, FIRST) for user in range(NUM_ROWS)])
    if request.param != "unsealed":
        view.seal()
    if request.param == "both":
        view.write([row(user, random, LATER) for user in range(0, 2 * NUM_ROWS, 7)])
        delete(view, range(0, NUM_ROWS, 11), LATER)
        view.write([row(user, random, LATER + timedelta(days=1)) for user in range(0, 2 * NUM_ROWS, 22)])
    return view


@pytest.fixture(scope="module")
def state(view):
    view.refresh()
    return view.current()


USERS = range(-3, 2 * NUM_ROWS, 3)


@pytest.mark.parametrize("features", [FEATURES, FEATURES[::-1], ("viewed",), ("name", "nothing", "liked")])
def test_rows_are_the_same(state, features):
    found, expired = assert_rows(state, features, user_hashes(USERS))
    assert 50 < found < len(USERS)
    assert expired == 0


def test_rows_expire_alike(state):
    withheld = 0
    for moment in range(0, 50, 5):
        expire_before = int((FIRST + timedelta(seconds=moment)).timestamp() * 1e6)
        withheld += assert_rows(state, FEATURES, user_hashes(USERS), expire_before)[1]
    assert withheld > 50


@pytest.mark.parametrize("features", [FEATURES, ("nothing", "tags", "age")])
def test_vectors_are_the_same(state, features):
    rows, hashes = state.row_reader(features), user_hashes(USERS)
    later = int((FIRST + timedelta(seconds=25)).timestamp() * 1e6)
    for own in (hashes, *np.split(hashes, len(hashes))):
        for expire_before in (NO_TIMESTAMP, later):
            answer = state.read(own, features, expire_before)
            assert_vectors(rows, features, own, answer, expire_before)


@pytest.mark.parametrize("feature", ["viewed", "liked", "tags", "words", "numbers", "country", "nothing"])
def test_ids_scores_and_candidates_are_the_same(state, feature):
    rows, random = state.row_reader((feature,)), np.random.default_rng(1)
    is_text = feature in ("tags", "words", "country")
    numbers = random.integers(0, 400, 150)
    texts = [*(f"tag {n}" for n in range(60)), *(f"wörd {n}" for n in range(150)), "country 3", "", "a" * 40]
    candidates = pa.array(texts, pa.large_binary()) if is_text else pa.array(numbers)
    has_ids = feature in ("viewed", "liked", "tags") and len(state.newest_first) == 1
    seen = 0
    for user in USERS:
        hashes = user_hashes([user])
        answers = state.read(hashes, (feature,), NO_TIMESTAMP)
        answer = answers.features.get(feature)
        found = np.zeros(len(candidates), np.bool_)
        if answer is not None:
            ids = answer.vocabulary.find(candidates)
            found = np.isin(ids, answer.symbols) & (ids >= 0)
        forms = [texts, [text.encode() for text in texts], parts_of(candidates)] if is_text else [numbers]
        for values in forms:
            np.testing.assert_array_equal(has_values(rows, hashes, values)[0], found)
        seen += found.sum()
        if has_ids:
            symbols = np.zeros(0, np.int32) if answer is None else answer.symbols
            alone = ids_of(rows, hashes)
            assert (alone is None) is (len(answers.found) == 0)
            np.testing.assert_array_equal([] if alone is None else alone, symbols)
            weights = random.normal(size=1000)
            assert score_of(rows, hashes, weights) == pytest.approx(weights[symbols].sum())
            names = random.integers(-1, 300, 80).astype(np.int32)
            np.testing.assert_array_equal(has_names(rows, hashes, 1000, names)[0], np.isin(names, symbols))
    assert seen > 5 or feature in ("nothing", "numbers")


def test_blocks_are_checked_when_a_read_first_needs_them(tmp_path):
    random = np.random.default_rng(3)
    view = view_of_sets(tmp_path, CODECS.values())
    view.write([row(user, random, FIRST) for user in range(20)])
    view.seal()
    hashes = responses.hash_entity_keys([user_key(user) for user in range(20)])
    wanted = view.current().row_reader(FEATURES).rows(hashes, NO_TIMESTAMP)
    opened = view_of_sets(tmp_path, CODECS.values())
    opened.refresh()
    (layer,) = opened.current().sealed.layers
    assert all(check.unchecked.all() for check in layer.checks)
    assert opened.current().row_reader(FEATURES).rows(hashes, NO_TIMESTAMP) == wanted
    assert not any(check.unchecked.any() for check in layer.checks)


def test_rows_are_held_as_long_as_they_are_prepared(tmp_path):
    view = view_of_sets(tmp_path, CODECS.values())
    view.write([row(user, np.random.default_rng(user), FIRST) for user in range(50)])
    rows = view.current().row_reader(FEATURES)
    wanted = [
        rows.rows(responses.hash_entity_keys([user_key(user)]), NO_TIMESTAMP)[0][0] for user in range(50)
    ]
    del view
    gc.collect()
    assert [
        rows.rows(responses.hash_entity_keys([user_key(user)]), NO_TIMESTAMP)[0][0] for user in range(50)
    ] == wanted
    assert all(wanted)


def test_what_does_not_fit_is_refused():
    rows = kernel.RowReader()
    with pytest.raises(ValueError, match="no layers"):
        ids_of(rows, b"0" * 16)
    with pytest.raises(ValueError, match="not a layer"):
        rows.layer(kernel.RowReader(), None, None, None)
    with pytest.raises(ValueError, match="not a layer"):
        rows.layer(rows, None, None, None)
    with pytest.raises(ValueError, match="not a layer"):
        rows.layer(object(), None, None, None)
    layer = kernel.RowReader()
    hashes, times = np.zeros((2, 2), np.uint64), np.zeros(2, np.int64)
    with pytest.raises(ValueError, match="do not fit"):
        layer.exact(hashes, times[:1].copy(), np.zeros(2, np.bool_))
    layer.exact(hashes, times, np.zeros(2, np.bool_))
    with pytest.raises(ValueError, match="already"):
        layer.exact(hashes, times, np.zeros(2, np.bool_))
    with pytest.raises(ValueError, match="no feature"):
        layer.from_rows(np.zeros(2, np.uint8), np.zeros(3, np.int64), np.zeros(0, np.int32))
    layer.feature(b"\x0a", False, 0, np.zeros(3, np.int64), None, None)
    with pytest.raises(ValueError, match="do not fit"):
        layer.from_rows(np.zeros(1, np.uint8), np.zeros(3, np.int64), np.zeros(0, np.int32))
    # Ids and indices that contradict each other are refused where they are read.
    layer.from_rows(np.full(2, 3, np.uint8), np.array([0, 2, 1]), np.array([0, 700], np.int32))
    rows.layer(layer, None, None, None)
    assert ids_of(rows, b"\0" * 16).tolist() == [0, 700]
    nobody = b"\0" * 16
    for read in (
        lambda: rows.rows(nobody, NO_TIMESTAMP),
        lambda: score_of(rows, nobody, np.zeros(700)),
        lambda: has_names(rows, np.zeros((1, 2), np.uint64), 600, np.zeros(2, np.int32)),
        lambda: has_values(rows, np.zeros((1, 2), np.uint64), times),
    ):
        with pytest.raises(kernel.ReadFault, match="contradict"):
            read()
    with pytest.raises(ValueError, match="16 bytes"):
        rows.rows(b"0" * 15, 0)


@pytest.mark.parametrize("other", [None, 3, b"tag 1", "\ud800", ["tag 1"]])
def test_candidates_of_another_kind_are_refused(state, other):
    rows, out = state.row_reader(("tags",)), np.zeros(2, np.bool_)
    for user in USERS:
        hashes = user_hashes([user])
        with pytest.raises(TypeError, match="not all"):
            has_values(rows, hashes, ["tag 1", other])
    ask = hashes, NO_TIMESTAMP, kernel.SEED, None, None, None
    with pytest.raises(ValueError, match="do not fit"):
        rows.contains_values(*ask, ["tag 1"], True, 0, out)
    with pytest.raises(ValueError, match="do not fit"):
        rows.contains_values(*ask, ("tag 1", "tag 2"), True, 0, out)


def test_single_keys_are_hashed_as_many_are():
    for value in (0, -1, 2**63 - 1, -(2**63)):
        hashes = hash_int64_keys("user_id", np.array([value]))
        assert hash_int64_key("user_id", value) == hashes.tobytes()
        assert responses.hash_entity_keys([user_key(value)]) == hashes.tobytes()
        assert SingleKeys({"user_id": pa.int64()}).hash(value) == hashes.tobytes()
    mixed = {"b": pa.large_string(), "a": pa.int32(), "c": pa.timestamp("s"), "d": pa.large_binary()}
    values = {"a": 5, "b": "wörd", "c": 12, "d": b"123"}
    columns = {name: pa.array([value], mixed[name]) for name, value in values.items()}
    assert SingleKeys(mixed).hash(values) == hash_columns(columns).tobytes()
    assert SingleKeys({"b": pa.large_string()}).hash("x") == hash_columns({"b": pa.array(["x"])}).tobytes()


@pytest.mark.parametrize("entity", [True, 1.5, "1", b"1", None, [1], {"user_id": [1]}, {"other": 1}, 2**63])
def test_what_is_not_surely_one_entity_is_not_taken_for_one(entity):
    assert SingleKeys({"user_id": pa.int64()}).hash(entity) is None
