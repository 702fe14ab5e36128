"""Reads of many entities in one call give what reads of one entity give, whatever keeps the feature."""

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from feast.protos.feast.types.Value_pb2 import Int64Set, Value

from feast_sketch_store import kernel
from feast_sketch_store.layers.row_reader import Wanted, stack
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.encoding import NO_TIMESTAMP
from feast_sketch_store.structures.set_columns import SetColumns
from tests.helpers.keys import user_hashes, user_key
from tests.helpers.reads import assert_joined, csr_of, delete, ids_of, view_of_sets

NUM_ROWS = 700  # some blocks of rows that are looked up together
FIRST = datetime(2026, 3, 1, tzinfo=UTC)
LATER = FIRST + timedelta(days=1)
SETS = {"few": 12, "many": 3_000, "some": 300}  # independent of each other, with so many values
FEATURES = (*SETS, "mostly few", "country")  # one set is coded with another
USERS = np.random.default_rng(9).permutation(np.arange(-40, 2 * NUM_ROWS) // 2 * 2)


def row(user, random, moment):
    sets = {
        name: random.choice(size, min(size, int(random.exponential(size / 40))), replace=False).tolist()
        for name, size in SETS.items()
    }
    sets["mostly few"] = [value for value in sets["few"] if random.random() < 0.7]
    values = {name: Value(int64_set_val=Int64Set(val=values)) for name, values in sets.items()}
    values["country"] = Value(string_val=f"country {random.integers(0, 9)}")
    missing = random.choice(FEATURES)
    values[missing] = Value()
    return user_key(user), values, moment + timedelta(seconds=int(random.integers(0, 50))), None


@pytest.fixture(scope="module", params=["unsealed", "sealed", "both"])
def state(request, tmp_path_factory):
    random = np.random.default_rng(7)
    codecs = [FeatureCodec(name, "int64_set_val") for name in FEATURES[:-1]]
    codecs.append(FeatureCodec("country", "string_val"))
    view = view_of_sets(tmp_path_factory.mktemp("view"), codecs)
    view.write([row(user, random, FIRST) for user in range(NUM_ROWS)])
    if request.param != "unsealed":
        view.seal()
    if request.param == "both":
        view.write([row(user, random, LATER) for user in range(0, 2 * NUM_ROWS, 7)])
        delete(view, range(0, NUM_ROWS, 11), LATER)
    view.refresh()
    return view.current()


def entities(users):
    return user_hashes(map(int, users))


@pytest.mark.parametrize("feature", [*FEATURES, "nothing"])
@pytest.mark.parametrize("is_renamed", [False, True])
def test_a_batch_is_as_its_entities_one_by_one(state, feature, is_renamed):
    layers, names = state.newest_first, None
    if is_renamed:  # and some ids have no name
        random = np.random.default_rng(5)
        names = [np.maximum(random.permutation(4_000).astype(np.int32) - 400, -1) for _ in layers]
    rows, hashes = stack(layers, Wanted((feature,)), names), entities(USERS)
    for expire_before in (NO_TIMESTAMP, int((FIRST + timedelta(seconds=25)).timestamp() * 1e6)):
        answers = [ids_of(rows, one, expire_before) for one in hashes]
        assert 0 < sum(answer is not None for answer in answers) < len(answers)
        for number in (0, 1, 3, 63, 64, 65, len(USERS)):
            ids, _, indptr, num_found = csr_of(rows, hashes[:number], expire_before)
            assert_joined(ids, indptr, answers[:number])
            assert num_found == sum(answer is not None for answer in answers[:number])


def test_damaged_codes_are_refused_or_read_as_one_by_one(state):
    """Never is other memory read, which sanitizers see; and no damage is noticed by one way alone."""
    if state.sealed is None:
        pytest.skip("nothing is coded")
    (layer,) = state.sealed.layers
    (columns,) = (structure for structure in layer.structures if isinstance(structure, SetColumns))
    random, hashes, refused = np.random.default_rng(3), entities(np.arange(NUM_ROWS)), 0
    for _ in range(40):
        words = columns.sets.words.copy()
        words[random.integers(0, len(words), 3)] = random.integers(0, 2**64, 3, np.uint64)
        sets = replace(columns.sets, words=words, check=None)
        for name in SETS:
            feature = replace(columns.features[name], sets=sets)
            damaged = replace(columns, sets=sets, features={**columns.features, name: feature})
            others = [s for s in layer.structures if s is not columns]
            rows = stack([replace(layer, structures=[damaged, *others])], Wanted((name,)))
            singly = []
            for one in hashes:
                with suppress(kernel.ReadFault):
                    singly.append(ids_of(rows, one))
            try:
                ids, _, indptr, _ = csr_of(rows, hashes)
            except kernel.ReadFault:
                assert len(singly) < NUM_ROWS
                refused += 1
            else:
                assert_joined(ids, indptr, singly)
    assert 0 < refused < 120


def test_what_does_not_fit_is_refused(state):
    rows, indptr = state.row_reader(("few",)), np.zeros(3, np.int64)
    more = NO_TIMESTAMP, 1, False
    with pytest.raises(ValueError, match="do not fit"):
        rows.csr(np.zeros((3, 2), np.uint64), *more, indptr, None)
    with pytest.raises(ValueError, match="do not fit"):
        rows.csr(np.zeros((1, 2), np.uint64), *more, np.zeros(0, np.int64), None)
    with pytest.raises(ValueError, match="16 bytes"):
        rows.csr(np.zeros(3, np.uint64), *more, indptr, None)
    with pytest.raises(ValueError, match="no layers"):
        kernel.RowReader().csr(np.zeros((2, 2), np.uint64), *more, indptr, None)
