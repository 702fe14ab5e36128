"""Reads of one entity from a static function give what reads through arrays give."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from feast.protos.feast.types.Value_pb2 import Value

from feast_sketch_store import kernel
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.encoding import NO_TIMESTAMP, deletions
from feast_sketch_store.settings.view_settings import FeatureSettings, ViewSettings
from feast_sketch_store.storage.local import LocalStorage
from feast_sketch_store.succinct.static_function import StaticFunction
from feast_sketch_store.view.view import View
from tests.helpers.keys import user_hashes, user_key
from tests.helpers.reads import assert_rows

NUM_ROWS = 700
FIRST = datetime(2026, 3, 1, tzinfo=UTC)
FEATURES = ("country", "level", "nothing")
USERS = range(-20, NUM_ROWS + 20)
NO_BLOCKS = (None,)


def row_of(user, moment):
    values = {"country": Value(string_val=f"wörd {user % 9}"), "level": Value(int64_val=user % 700 - 300)}
    if user % 5 == 3:
        del values["country"]
    if user % 7 == 2:
        values["level"] = Value()
    return user_key(user), values, moment + timedelta(days=user % 3), None


@pytest.fixture(scope="module", params=["sealed", "opened", "newer rows and deletions"])
def state(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("view")
    features = {
        name: FeatureSettings(FeatureCodec(name, field), 1e-5, 10**6, may_be_column=True, is_static=True)
        for name, field in (("country", "string_val"), ("level", "int64_val"))
    }
    settings = ViewSettings("users", 1e-5, features, join_keys={"user_id": "int64_val"})
    view = View(LocalStorage(folder), settings)
    view.write([row_of(user, FIRST) for user in range(NUM_ROWS)])
    view.seal()
    (layer,) = view.current().sealed.layers
    assert layer.presence.kind == "static"
    if request.param == "newer rows and deletions":
        later = FIRST + timedelta(days=9)
        view.write([row_of(user + 1, later) for user in range(0, NUM_ROWS, 7)])
        view.delete(deletions([user_key(user) for user in range(0, NUM_ROWS, 11)], later))
    if request.param == "opened":
        view = View(LocalStorage(folder), settings)
    view.refresh()
    return view.current()


@pytest.mark.slow
@pytest.mark.parametrize("days", [None, 2])
def test_rows_are_the_same(state, days):
    expire_before = NO_TIMESTAMP if days is None else int((FIRST + timedelta(days=days)).timestamp() * 1e6)
    assert assert_rows(state, FEATURES, user_hashes(USERS), expire_before)[0] > 150


def test_keys_beside_the_table_are_found(state):
    """Some of so many keys are left over, as in any table of this size."""
    (layer,) = state.sealed.layers
    left = layer.structures[0].function.left_hashes
    hashes = user_hashes(range(NUM_ROWS))
    own = kernel.row_hashes(hashes, layer.structures[0].salt)
    assert len(left) == np.isin(own, left).sum()


HASH = np.array([3, 4], np.uint64).tobytes()
OWN = int(kernel.row_hashes(np.array([[3, 4]], np.uint64), (1, 2))[0])
WIDTH, NUM_SLOTS = 20, 128


def parts(left=(), marks=NO_BLOCKS, num_symbols=6):
    """Two shapes, the second with a value, of a table in which a key has the number 0."""
    own = np.array([OWN], np.uint64)
    words = StaticFunction.build(own, np.zeros(1, np.int64), 1, 2.0**-WIDTH).words
    hashes, numbers = np.array(left, np.uint64), np.full(len(left), 5, np.int64)
    times = np.array([10, 20])
    return 1, 2, words, WIDTH, NUM_SLOTS, num_symbols, hashes, numbers, times, times, *marks


def asked(arguments, expire_before=NO_TIMESTAMP, states=(0, 3), divisor=2):
    layer, rows = kernel.RowReader(), kernel.RowReader()
    layer.numbered(*arguments)
    layer.feature(b"\x0a", False, 0, np.arange(7, 10), None, None)
    layer.from_number(divisor)
    packed = np.array([states[0] | states[1] << 2, 0], np.uint64)
    layer.states(packed, 2, 0, 2, *NO_BLOCKS, 0)
    rows.layer(layer, None, None, None)
    return rows.rows(HASH, expire_before)[0][0]


def test_a_number_is_a_shape_and_digits():
    timestamp, states, _ = asked(parts())
    assert (timestamp, list(states)) == (10, [0])
    timestamp, states, values = asked(parts(left=[OWN]))  # 5 is the second shape, and digit 2
    assert (timestamp, list(states)) == (20, [3])
    assert 9 in values
    assert asked(parts(), expire_before=11) is False  # withheld
    assert asked(parts(left=[OWN]), expire_before=11) is not None
    assert asked(parts(num_symbols=0)) is None


@pytest.mark.parametrize(
    ("index", "junk"),
    [
        (2, np.zeros(39, np.uint64)),
        (3, 0),
        (3, 65),
        (4, 63),
        (4, 0),
        (6, np.zeros(1, np.uint64)),
        (8, np.zeros(0, np.int64)),
        (9, np.zeros(1, np.int64)),
    ],
)
def test_parts_that_do_not_fit_are_refused(index, junk):
    arguments = [*parts()]
    arguments[index] = junk
    with pytest.raises(ValueError, match="do not fit"):
        kernel.RowReader().numbered(*arguments)


@pytest.mark.parametrize("divisor", [0, 1, 3])
def test_divisors_that_cannot_be_are_refused(divisor):
    with pytest.raises(ValueError, match="do not fit"):
        asked(parts(), divisor=divisor)


def test_an_impossible_state_is_refused():
    layer = kernel.RowReader()
    layer.numbered(*parts())
    layer.feature(b"\x0a", False, 0, np.arange(0), None, None)
    layer.from_number(2)
    layer.states(np.array([15, 0], np.uint64), 2, 0, 2, *NO_BLOCKS, 0)
    rows = kernel.RowReader()
    rows.layer(layer, None, None, None)
    with pytest.raises(kernel.ReadFault, match="contradict"):  # a value of a feature that has none
        rows.rows(HASH, NO_TIMESTAMP)
