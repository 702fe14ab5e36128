"""Reads of one entity in one call, over a base, deltas and unsealed rows, against reads of arrays."""

import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from feast.protos.feast.types.Value_pb2 import Int64Set, Value
from hypothesis import given, settings
from hypothesis import strategies as st

from feast_sketch_store import SketchReader, kernel
from feast_sketch_store.layers import Goal
from feast_sketch_store.rows.codecs import EXACT, FeatureCodec
from feast_sketch_store.rows.encoding import NO_TIMESTAMP, deletions
from feast_sketch_store.settings.view_settings import FeatureSettings, ViewSettings
from feast_sketch_store.storage.local import LocalStorage
from feast_sketch_store.structures.goals import NOISE_RATIO
from feast_sketch_store.view.seal_policy import SealPolicy
from feast_sketch_store.view.view import View
from tests.helpers.keys import user_hashes, user_key
from tests.helpers.length import by_length
from tests.helpers.reads import ids_of, read_row, to_rows

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
NEVER = SealPolicy(1.0, 10**9)
USERS = 30
CODECS = [FeatureCodec("viewed", "int64_set_val"), FeatureCodec("name", "string_val", EXACT)]


def settings_of(target):
    features = dict(zip(("viewed", "name"), (target, 1e-12), strict=True))
    # So many absent entities look present that a delta without its list would hide rows of the base.
    return ViewSettings(
        "history", 0.2, {c.feature: FeatureSettings(c, features[c.feature], 10**6) for c in CODECS}
    )


STRUCTURES = {"sets": settings_of(Goal(NOISE_RATIO, 0.1, "sets")), "bloom": settings_of(0.01)}
users = st.sets(st.integers(0, USERS - 1), min_size=1)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), users, st.integers(0, 20)),
        st.tuples(st.just("delete"), users),
        st.tuples(st.just("delta")),
        st.tuples(st.just("seal")),
    ),
    max_size=12,
)


def do(view, step, second):
    name, *arguments = step
    if name == "put":
        wanted, first = arguments
        values = {
            user: {
                "viewed": Value(int64_set_val=Int64Set(val=range(first, first + user % 4))),
                "name": Value(string_val=f"{user} at {second}"),
            }
            for user in wanted
        }
        event = EPOCH + timedelta(seconds=second)
        view.write([(user_key(user), row, event, None) for user, row in values.items()])
    elif name == "delete":
        view.delete(deletions([user_key(user) for user in arguments[0]], EPOCH + timedelta(seconds=second)))
    else:
        view.seal(as_delta=name == "delta")


@pytest.mark.has_long_form
@pytest.mark.parametrize("structure", STRUCTURES)
@settings(max_examples=by_length(3, 12), deadline=None)
@given(steps=steps)
def test_one_call_sees_what_arrays_see(structure, steps):
    with tempfile.TemporaryDirectory() as folder:
        storage = LocalStorage(Path(folder) / "p" / "history")
        view = View(storage, STRUCTURES[structure], NEVER, 0.0)
        # There are always deltas, of present and deleted entities, and rows over them.
        steps = [
            ("put", {*range(0, USERS, 2)}, 3), ("seal",), *steps, ("put", {*range(5, 15)}, 1),
            ("delete", {7, 8}), ("delta",), ("put", {9, 10}, 4), ("delete", {5}),
        ]  # fmt: skip
        for second, step in enumerate(steps):
            do(view, step, second)
        asked = range(2 * USERS)
        hashes = user_hashes(asked)
        names = ["viewed", "name"]
        state = view.current()
        view.read(hashes, names)
        state = view.current()
        assert state.shards[0].deltas
        for expire_before in (NO_TIMESTAMP, int(EPOCH.timestamp() + len(steps) // 2) * 10**6):
            wanted = to_rows(state.read(hashes, names, expire_before), len(asked))
            prepared = state.row_reader(tuple(names))
            for user in asked:
                row = read_row(prepared, hashes[user].tobytes(), names, expire_before)
                assert (row or (None, None)) == wanted[user]
        reader = SketchReader(folder, "history", "p", refresh_interval_seconds=0)
        found = reader.csr("viewed", {"user_id": [*asked]})
        rows = to_rows(reader._view.read(hashes, names), len(asked))
        for user, (_, values) in enumerate(rows):
            ids = found.ids[found.indptr[user] : found.indptr[user + 1]]
            items = set(values["viewed"].int64_set_val.val) if values else set()
            assert set(found.vocabulary.take(ids).to_pylist()) == items
            assert set(found.vocabulary.take(reader.ids("viewed", user)).to_pylist()) == items


def test_a_list_that_is_not_that_of_the_rows_is_refused():
    layer, rows = kernel.RowReader(), kernel.RowReader()
    hashes = np.array([[1, 1], [2, 2]], np.uint64)
    layer.exact(hashes, np.zeros(2, np.int64), np.zeros(2, np.bool_))
    layer.feature(b"\x0a", False, 0, np.zeros(1, np.int64), None, None)
    layer.from_rows(np.full(2, 3, np.uint8), np.array([0, 1, 2]), np.zeros(2, np.int32))
    for listed, deleted in ((hashes, np.zeros(1, np.bool_)), (hashes, None), (None, np.zeros(2, np.bool_))):
        with pytest.raises(ValueError, match="do not fit"):
            rows.layer(layer, None, listed, deleted)
    listed = np.array([[1, 1], [3, 3]], np.uint64)
    rows.layer(layer, None, listed, np.array([True, False]))
    answers = [ids_of(rows, hashes[0]), ids_of(rows, hashes[1])]
    assert answers == [None, None], "one is deleted, the other is none of the delta's"
    with pytest.raises(kernel.ReadFault, match="contradict"):  # it is listed and has no row
        ids_of(rows, listed[1])
