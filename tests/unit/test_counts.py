"""Counts: how they are rounded, what the row log has of them, and what a seal makes of them."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feast_sketch_store.layers import FeatureBudget
from feast_sketch_store.rows.codecs import COUNTS, FeatureCodec
from feast_sketch_store.rows.count_log import counts_of_rows
from feast_sketch_store.rows.counting import MAX_COUNT, Counting, Rounded
from feast_sketch_store.rows.encoding import encode_counts
from tests.helpers.cases import for_each
from tests.helpers.keys import user_hashes
from tests.helpers.layers import build_layer, rows_with

errors = st.one_of(
    st.just(Counting()),
    st.builds(Counting, absolute=st.integers(0, 50)),
    st.builds(Counting, relative=st.floats(0, 0.5)),
)
counts = st.integers(1, 300) | st.integers(1, MAX_COUNT)


@given(errors, st.lists(st.tuples(counts, st.integers(1, 1000)), unique_by=lambda pair: pair[0]))
def test_each_count_is_within_the_error(counting, pairs):
    written, times = np.array(sorted(pairs), np.int64).reshape(-1, 2).T
    rounded = Rounded.of(written, times, counting)
    read = rounded.read[rounded.indices]
    least, most = counting.bounds(written)
    assert ((least <= read) & (read <= most)).all()
    assert (read >= 1).all()
    assert (np.abs(read - written) <= counting.absolute + counting.relative * written).all()
    assert (np.diff(rounded.read) > 0).all()
    assert len(rounded.read) <= len(written)
    assert rounded.firsts.tolist() == [written[rounded.indices == n][0] for n in range(len(rounded.read))]
    assert rounded.max_error == np.abs(read - written).max(initial=0)
    assert rounded.mean_error(times) <= rounded.max_error
    for index in range(len(rounded.read)):
        of_run = rounded.indices == index
        pairs_of_run = zip(written[of_run].tolist(), times[of_run].tolist(), strict=True)
        bias = sum((int(rounded.read[index]) - c) * n for c, n in pairs_of_run)
        assert 2 * abs(bias) <= times[of_run].sum()
    if counting.is_exact:
        assert np.array_equal(read, written)


@for_each(
    ("counting", "read"),
    [
        (Counting(), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        (Counting(absolute=1), [2, 2, 2, 5, 5, 5, 8, 8, 8, 10]),
        (Counting(relative=0.25), [1, 2, 3, 5, 5, 5, 8, 8, 8, 10]),
        (Counting(relative=0.5), [1, 3, 3, 3, 7, 7, 7, 7, 7, 10]),
    ],
)
def test_runs_are_as_long_as_their_mean_allows(counting, read):
    """Worked by hand: a run ends before a count that is too far from the mean of all of it."""
    written = np.arange(1, 11)
    rounded = Rounded.of(written, np.ones(10, np.int64), counting)
    assert rounded.read[rounded.indices].tolist() == read


def test_a_count_stands_for_the_mean_of_its_run():
    rounded = Rounded.of(np.array([10, 11, 12, 13]), np.array([1, 1, 1, 97]), Counting(relative=0.25))
    assert rounded.read.tolist() == [11, 13]  # 12.94 is further from 10 than a quarter of it


@for_each("error", [{"absolute": -1}, {"relative": 0.6}, {"relative": -0.1}, {"relative": np.nan}])
def test_errors_that_cannot_be_are_refused(error):
    with pytest.raises(ValueError, match="counts cannot be wrong"):
        Counting(**error)


def lists(rows, kind):
    return pa.array(rows, pa.large_list(kind))


def test_values_are_added_up_and_zeros_left_out():
    column, amounts = counts_of_rows(
        lists([["b", "a", "b"], None, [], ["c"], ["a", "d"]], pa.large_string()),
        lists([[1, 2, 3], None, [], [0], None], pa.int64()),
    )
    assert column.to_pylist() == [["b", "a"], None, [], [], ["a", "d"]]
    assert amounts.tolist() == [4, 2, 1, 1]


def test_counts_of_other_rows_are_refused():
    with pytest.raises(pa.ArrowInvalid, match="another number of counts"):
        counts_of_rows(lists([["a"]], pa.large_string()), lists([[1, 2]], pa.int64()))


def rows_of(rows, counting=None):
    """Encoded rows of ``{value: count}`` each; None for null."""
    codec = FeatureCodec("viewed", "string_list_val", COUNTS, counting=counting or Counting())
    feature = encode_counts(
        lists([None if row is None else [*row] for row in rows], pa.large_string()),
        lists([None if row is None else [*row.values()] for row in rows], pa.int64()),
        codec,
    )
    hashes = user_hashes(range(len(rows)))
    order = np.lexsort((hashes[:, 1], hashes[:, 0]))
    return rows_with([feature], hashes).take(order)


def layer_of(rows):
    return build_layer(rows, FeatureBudget(1e-9, {"viewed": 0.0}))


def test_verification_tells_what_differs():
    encoded = rows_of([{"a": 3, "b": 1}, {"a": 10}, {}])
    layer = layer_of(encoded)
    assert [*layer.missing(rows_of([{"a": 3, "b": 2}, {"a": 10}, {}]))] == [
        "has 1 counts of feature 'viewed' that are too far from the row log"
    ]
    for other in ([{"a": 3}, {"a": 10}, {}], [{"a": 3, "b": 1, "c": 1}, {"a": 10}, {}]):
        assert [*layer.missing(rows_of(other))] == ["has other values of feature 'viewed' than the row log"]


@pytest.mark.parametrize(("most", "is_rounded"), [(60, True), (2, False)])
def test_counts_are_rounded_where_that_saves_something(most, is_rounded):
    """Of counts up to 2 none may be rounded by 40 % of it, so there is nothing to save."""
    rng = np.random.default_rng(2)
    rows = [
        {f"v{v}": int(rng.integers(1, most + 1)) for v in rng.choice(90, 30, replace=False)}
        for _ in range(50)
    ]
    layers = [layer_of(rows_of(rows, counting)) for counting in (Counting(), Counting(relative=0.4))]
    exact, rounded = (layer.features["viewed"] for layer in layers)
    assert (rounded.max_error > 0) == is_rounded
    assert (rounded.code_bytes < 0.99 * exact.code_bytes) == is_rounded
    assert rounded.rounding_errors == (rounded.max_error, rounded.mean_error)
    assert exact.rounding_errors is None


def test_no_rows_can_be_sealed():
    layer = layer_of(rows_of([]))
    assert len(layer.read(user_hashes([1]), ["viewed"]).found) == 0
