"""Rows, merged in any grouping, against a dictionary that is written one row at a time."""

from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feast_sketch_store.layers import ExactLayer, FeatureBudget
from feast_sketch_store.rows.encoding import EncodedRows, deletions, encode, newest_rows, to_arrow
from tests.helpers.keys import user_hashes, user_key
from tests.helpers.layers import build_layer
from tests.helpers.length import by_length
from tests.oracle.messages import feast_values
from tests.properties.test_view_machine import CODECS, NAMES, VALUES, at, plain

pytestmark = pytest.mark.has_long_form

REPEATABLE = settings(derandomize=True, deadline=None, database=None, max_examples=by_length(14, 60))
USERS = range(5)

# (user, values or None for a deletion, event, created or None); few times, so that many are equal.
WRITES = st.tuples(st.sampled_from(USERS), VALUES, st.integers(-2, 2), st.none() | st.integers(-2, 2))
DELETIONS = st.tuples(st.sampled_from(USERS), st.none(), st.integers(-2, 2), st.none())
BATCHES = st.lists(st.lists(st.one_of(WRITES, WRITES, WRITES, DELETIONS), max_size=6), max_size=5)


def table_of(batch):
    parts = [to_arrow([], CODECS)]
    for user, values, event, created in batch:
        if values is None:
            parts.append(deletions([user_key(user)], at(event)))
        else:
            parts.append(to_arrow([(user_key(user), values, at(event), at(created))], CODECS))
    return pa.concat_tables(parts, promote_options="default")


def encoded(batch):
    return encode(*newest_rows(table_of(batch)), CODECS)


def reference(writes):
    """The newest row per user; a deletion forgets what stood before it."""
    rows = {}
    for user, values, event, created in writes:
        order = (event, -(10**9) if created is None else created)
        if values is None:
            rows.pop(user, None)
        elif user not in rows or order >= rows[user][0]:
            rows[user] = (order, values)
    return {
        user: (order[0], {name: plain(values.get(name)) for name in NAMES})
        for user, (order, values) in rows.items()
    }


def read(layer):
    answer = layer.read(user_hashes(USERS), NAMES)
    values = {n: feast_values(f) for n, f in answer.features.items()}
    return {
        position: (int(answer.event_timestamps[row]), {n: plain(values[n][row]) for n in NAMES})
        for row, position in enumerate(answer.found.tolist())
    }


@REPEATABLE
@given(BATCHES)
def test_one_table_of_all_batches(batches):
    writes = [write for batch in batches for write in batch]
    assert read(ExactLayer(encoded(writes))) == reference(writes)


@REPEATABLE
@given(BATCHES, st.data())
def test_layers_merged_in_any_grouping(batches, data):
    layers = [ExactLayer(encoded(batch)) for batch in batches] or [ExactLayer(encoded([]))]
    while len(layers) > 1:
        first = data.draw(st.integers(0, len(layers) - 2))
        end = data.draw(st.integers(first + 2, len(layers)))
        parts = [layer.rows for layer in layers[first:end]]
        layers[first:end] = [ExactLayer(EncodedRows.newest_of(parts))]
    assert read(layers[0]) == reference(write for batch in batches for write in batch)


@REPEATABLE
@given(BATCHES)
def test_rows_of_one_entity_each_are_ordered_and_complete(batches):
    rows = encoded([write for batch in batches for write in batch])
    hashes = [tuple(pair) for pair in rows.keys.entity_hashes.tolist()]
    assert hashes == sorted(set(hashes))
    assert len(rows) == len({write[0] for batch in batches for write in batch})
    for feature in rows.features.values():
        values = feature.vocabulary.values.to_pylist()
        assert len(set(values)) == len(values)
        assert set(feature.symbols.tolist()) <= set(range(len(values)))
        for start, stop in zip(feature.indptr[:-1], feature.indptr[1:], strict=True):
            row = feature.symbols[start:stop].tolist()
            assert row == sorted(set(row))


def sealed(writes, rate):
    """A layer of the writes; always the same one."""
    with mock.patch("feast_sketch_store.layers.build.new_salt", return_value=(3, 5)):
        return build_layer(encoded(writes), FeatureBudget(rate, dict.fromkeys(NAMES, rate)))


@REPEATABLE
@given(st.lists(WRITES, max_size=12))
def test_a_sealed_layer_answers_as_the_dictionary(writes):
    # Rates of 1e-9: with these few rows a false positive would be a bug, not chance.
    assert read(sealed(writes, 1e-9)) == reference(writes)


@REPEATABLE
@given(st.lists(WRITES, max_size=12))
def test_a_loose_sealed_layer_loses_nothing(writes):
    found = read(sealed(writes, 0.5))
    for user, (event, values) in reference(writes).items():
        found_event, found_values = found[user]
        assert found_event <= event
        assert found_values["viewed"] is not None or values["viewed"] is None
        if isinstance(values["viewed"], frozenset):
            assert found_values["viewed"] >= values["viewed"]
        if values["name"] not in (None, "null"):
            assert found_values["name"] not in (None, "null")
