"""One-call reads of counts give what reads through arrays give."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest
from feast.protos.feast.types.Value_pb2 import Int64List, StringList, Value

from feast_sketch_store import kernel
from feast_sketch_store.layers.row_reader import stack
from feast_sketch_store.rows.codecs import COUNTS, COUNTS_OF, FeatureCodec
from feast_sketch_store.rows.encoding import NO_TIMESTAMP
from tests.helpers.keys import user_hashes, user_key
from tests.helpers.reads import (
    assert_joined,
    assert_rows,
    assert_vectors,
    csr_of,
    delete,
    ids_of,
    score_of,
    view_of_sets,
)

NOBODY = b"\0" * 16
NO_IDS = np.zeros(0, np.int32)
FIRST = datetime(2026, 3, 1, tzinfo=UTC)
NUM_USERS = 120
USERS = range(-2, NUM_USERS + 3)
CODECS = {
    "viewed": FeatureCodec("viewed", "string_list_val", COUNTS),
    "views": FeatureCodec("views", "int64_list_val", COUNTS_OF, counts_of="viewed"),
    "country": FeatureCodec("country", "string_val"),
}


def row(user, random, moment):
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
    return user_key(user), values, moment + timedelta(seconds=user % 50), None


@pytest.fixture(scope="module", params=["sealed", "both"])
def state(request, tmp_path_factory):
    random = np.random.default_rng(7)
    view = view_of_sets(tmp_path_factory.mktemp("view"), CODECS.values())
    view.write([row(user, random, FIRST) for user in range(NUM_USERS)])
    view.seal()
    if request.param == "both":
        later = FIRST + timedelta(days=1)
        view.write([row(user, random, later) for user in range(0, NUM_USERS + 9, 7)])
        delete(view, range(0, NUM_USERS, 11), later)
    view.refresh()
    return view.current()


@pytest.mark.slow
@pytest.mark.parametrize("hours", [None, 0])
def test_rows_are_the_same(state, hours):
    hashes = user_hashes(USERS)
    expire_before = NO_TIMESTAMP if hours is None else int((FIRST + timedelta(hours=hours)).timestamp() * 1e6)
    for features in (tuple(CODECS), tuple(CODECS)[::-1], *((name,) for name in CODECS)):
        found, _ = assert_rows(state, features, hashes, expire_before)
        if hours is None:
            assert found > 70


def test_vectors_are_the_same(state):
    features = tuple(CODECS)
    hashes = user_hashes(USERS)
    for expire_before in (NO_TIMESTAMP, int((FIRST + timedelta(seconds=12)).timestamp() * 1e6)):
        answer = state.read(hashes, features, expire_before)
        assert_vectors(state.row_reader(features), features, hashes, answer, expire_before)


def names_of(state, name):
    """All values of a feature, and for each layer the places of its values among them."""
    vocabularies = [layer.numbering(name) for layer in state.newest_first]
    values = sorted({value for known in vocabularies for value in known.values.to_pylist()})
    indices = [[values.index(value) for value in known.values.to_pylist()] for known in vocabularies]
    return values, [np.array(own, np.int32) for own in indices]


def test_ids_of_one_and_of_many_are_the_same(state):
    name, weights = "viewed", np.random.default_rng(5).normal(size=200)
    values, names = names_of(state, name)
    rows, wanted = stack(state.newest_first, state.semantics.wanted((name,)), names), []
    hashes = user_hashes(USERS)
    answer = state.read(hashes, (name,), NO_TIMESTAMP)
    feature, found = answer.features[name], answer.found.tolist()
    read = feature.vocabulary.values.take(pa.array(feature.csr.ids)).to_pylist()
    for index, entity in enumerate(hashes):
        row = found.index(index) if index in found else None
        own = [] if row is None else read[feature.indptr[row] : feature.indptr[row + 1]]
        wanted.append(list(map(values.index, own)))
        ids = ids_of(rows, entity)
        np.testing.assert_array_equal([] if ids is None else ids, wanted[-1])
        assert score_of(rows, entity, weights) == pytest.approx(weights[wanted[-1]].sum())
    ids, _, indptr, _ = csr_of(rows, hashes)
    assert_joined(ids, indptr, wanted)


def test_what_does_not_fit_is_refused():
    rows = kernel.RowReader()
    with pytest.raises(ValueError, match="no feature"):
        rows.from_items(np.zeros(1, np.uint8), np.zeros(2, np.int64), NO_IDS, np.zeros(0, np.int64), 1)
    rows.exact(np.zeros((1, 2), np.uint64), np.zeros(1, np.int64), np.zeros(1, np.bool_))
    rows.feature(b"\x0a", True, 0, None, None, None)
    with pytest.raises(ValueError, match="do not fit"):
        rows.from_items(np.zeros(1, np.uint8), np.zeros(3, np.int64), NO_IDS, np.zeros(0, np.int64), 1)
    rows.from_items(np.full(1, 3, np.uint8), np.array([0, 2]), np.zeros(2, np.int32), np.array([5, 7]), 1)
    rows_of, one, two = kernel.RowReader(), np.ones(1, np.int64), np.ones(2, np.int64)
    with pytest.raises(ValueError, match="do not fit"):
        rows_of.limits(one, one, one, 1, False, 1)
    rows_of.layer(rows, None, None, None)
    for kind in (kernel.NAMES, kernel.NAMES + kernel.WITH_WEIGHTS):
        with pytest.raises(kernel.ReadFault, match="contradict"):
            rows_of.csr(NOBODY, NO_TIMESTAMP, 3, kind, None, None)
    elements, ends, weights, found = rows_of.csr(NOBODY, NO_TIMESTAMP, 3, kernel.NUMBERS, None, None)
    assert (np.frombuffer(elements, np.int64).tolist(), ends, weights, found) == ([5, 7], None, None, 1)
    assert rows_of.rows(NOBODY, NO_TIMESTAMP)[0][0][2] == b"\x0a\x06\x0a\x04\x0a\x02\x05\x07"
    with pytest.raises(ValueError, match="do not fit"):
        rows_of.csr(NOBODY, NO_TIMESTAMP, 0, kernel.NAMES, None, None)
    for unknown in (0, 4, kernel.WITH_WEIGHTS, 15):
        with pytest.raises(ValueError, match="do not fit"):
            rows_of.csr(NOBODY, NO_TIMESTAMP, 3, unknown, None, None)
    with pytest.raises(ValueError, match="do not fit"):
        rows_of.limits(two, two, two, 1, False, 1)
    with pytest.raises(ValueError, match="a tick does not take"):
        rows_of.limits(one, -one, one, 1, False, 1)
    rows_of.limits(one, one, one, 1, False, 1)
    with pytest.raises(kernel.ReadFault, match="contradict"):
        rows_of.rows(NOBODY, NO_TIMESTAMP)
