"""CSR matrices: rows are taken, masked, renamed, joined, put in order and summed."""

import numpy as np
import pytest

from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.structures.base import weighted_sums
from tests.helpers.cases import for_each

ROWS = [[10, 20], [], [30]]


def csr(rows, weights=None):
    ids = np.array([id_ for row in rows for id_ in row], np.int32)
    made = Csr.of_lengths(np.array([len(row) for row in rows], np.int64), ids)
    return made if weights is None else Csr(made.indptr, made.ids, np.array(weights, np.float64))


def plain(matrix):
    assert matrix.indptr.dtype == np.int64
    assert matrix.indptr[-1] == len(matrix.ids)
    return [part.tolist() for part in np.split(matrix.ids, matrix.indptr[1:-1])] if len(matrix) else []


def test_rows_and_lengths():
    matrix = csr(ROWS)
    assert len(matrix) == 3
    assert matrix.lengths.tolist() == [2, 0, 1]
    assert matrix.rows.tolist() == [0, 0, 2]


@for_each("rows", [[], [1], [2, 0, 2], [1, 1, 0]])
def test_taking_rows(rows):
    taken = csr(ROWS, [1, 2, 3]).take(np.array(rows, np.int64))
    assert plain(taken) == [ROWS[row] for row in rows]
    assert taken.weights.tolist() == [id_ / 10 for id_ in taken.ids]


@for_each("kept", [[], [10], [20, 30], [10, 20, 30]])
def test_masking_ids(kept):
    matrix = csr(ROWS, [1, 2, 3])
    masked = matrix.masked(np.isin(matrix.ids, kept))
    assert plain(masked) == [[id_ for id_ in row if id_ in kept] for row in ROWS]
    assert masked.weights.tolist() == [id_ / 10 for id_ in masked.ids]


@for_each("new_ids", [[2, 0, 1], [2, -1, 1], [-1, -1, -1]])
def test_renaming_ids_leaves_out_those_without_a_name(new_ids):
    rows = [[0, 1], [], [2, 0]]
    mapped = csr(rows, [5, 6, 7, 8]).mapped(np.array(new_ids))
    assert plain(mapped) == [[new_ids[old] for old in row if new_ids[old] >= 0] for row in rows]
    weights = {(0, 0): 5, (0, 1): 6, (2, 2): 7, (2, 0): 8}
    kept = [w for (_, old), w in weights.items() if new_ids[old] >= 0]
    assert mapped.weights.tolist() == kept


def test_distinct_ids_ascend():
    assert plain(csr([[3, 1, 3], [], [2, 2], [0]]).distinct()) == [[1, 3], [], [2], [0]]


def test_joining_rows():
    assert plain(csr(ROWS).joined(csr([[1], [2, 3], []]))) == [[10, 20, 1], [2, 3], [30]]
    assert plain(csr([]).joined(csr([]))) == []


def test_rows_behind_each_other():
    stacked = Csr.stacked([csr(ROWS), csr([]), csr([[7]])])
    assert plain(stacked) == [*ROWS, [7]]
    assert stacked.weights is None


def test_rows_that_are_united_by_owner():
    rows = csr([[3, 1], [5], [1, 2], []])
    assert plain(rows.united(np.array([2, 0, 2, 0]), 4)) == [[5], [], [1, 2, 3], []]
    assert plain(csr([]).united(np.zeros(0, np.int64), 2)) == [[], []]


def test_rows_of_parts_in_their_places():
    parts = [(np.array([4, 1]), csr([[7, 8], [9]])), (np.array([0]), csr([[5]]))]
    placed = Csr.placed(parts, 5)
    assert plain(placed) == [[5], [9], [], [], [7, 8]]
    assert placed.weights is None
    weighted = (np.array([2]), csr([[6, 6]], [0.5, 2]))
    placed = Csr.placed([*parts, weighted], 5)
    assert plain(placed) == [[5], [9], [6, 6], [], [7, 8]]
    assert placed.weights.tolist() == [1, 1, 0.5, 2, 1, 1], "ids of parts without weights count 1"


def test_a_part_that_is_the_whole_is_not_copied():
    whole = csr(ROWS)
    assert Csr.placed([(np.arange(3), whole)], 3) is whole


def test_a_part_that_is_the_whole_in_another_order():
    placed = Csr.placed([(np.array([2, 0, 1]), csr([[7, 8], [9], []]))], 3)
    assert plain(placed) == [[9], [], [7, 8]]


@pytest.mark.parametrize("num_rows", [0, 3])
def test_no_parts(num_rows):
    assert plain(Csr.placed([], num_rows)) == [[]] * num_rows


def test_symbols_count_one_each_unless_they_have_weights():
    weights = np.array([1.0, 10.0, 100.0, 1000.0])
    for own, sums in [
        (None, [1001, 0, 10, 0]),
        ([2, 3, 7], [3002, 0, 70, 0]),
        ([0.5, -1, 0], [-999.5, 0, 0, 0]),
    ]:
        assert weighted_sums(csr([[0, 3], [], [1], []], own), weights).tolist() == sums
