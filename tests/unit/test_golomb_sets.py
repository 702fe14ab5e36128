"""Golomb-coded sets are read as they were coded, whatever their density, size and vocabulary."""

from dataclasses import replace

import numpy as np
import pytest

from feast_sketch_store.rows.spill import SpilledWords
from feast_sketch_store.succinct import EliasFano, GolombSets, SetCode
from feast_sketch_store.succinct.golomb_sets import LEFT_LEVELS, Levels, ideal_bits, levels_of
from tests.helpers import reads
from tests.helpers.cases import for_each


def coded(rows, num_symbols, counts=None):
    """Sets of one feature, given as lists of ids; None stands for a row without a set."""
    no_set = 2 if None in rows else 0
    sets = [np.unique(row if row is not None else []).astype(np.int32) for row in rows]
    if counts is None:
        counts = np.bincount(np.concatenate([np.zeros(0, np.int64), *sets]), minlength=num_symbols)
        counts = -np.sort(-counts)
    headers = np.array(
        [no_set + len(ids) if row is not None else 1 for row, ids in zip(rows, sets, strict=True)], np.int32
    )
    code = SetCode.fit(np.asarray(counts), headers, no_set)
    indptr = np.concatenate(([0], np.cumsum([len(ids) for ids in sets], dtype=np.int64)))
    ids = np.concatenate([np.zeros(0, np.int32), *sets]).astype(np.int32)
    return GolombSets.build([code], headers[:, None], indptr, ids), headers


def read_sets(sets, rows, feature=0):
    """The headers and ids of some rows."""
    code = sets.codes[feature]
    return reads.read_sets(sets.arguments, sets.num_rows, code.num_symbols, feature, code.no_set, rows)


def assert_reads_as(rows, num_symbols, counts=None):
    sets, headers = coded(rows, num_symbols, counts)
    rng = np.random.default_rng(1)
    for indices in (np.arange(len(rows)), rng.permutation(len(rows)), rng.integers(0, max(1, len(rows)), 3)):
        if not len(rows):
            indices = indices[:0]
        found, ids = read_sets(sets, indices)
        assert found == headers[indices].tolist()
        assert ids == [sorted(set(rows[index] or [])) for index in indices]
    return sets


def random_rows(num_rows, num_symbols, mean, seed=1):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, num_symbols, rng.poisson(mean)).tolist() for _ in range(num_rows)]


@for_each("num_symbols", [0, 1, 2, 64, 2**17])
@for_each("num_rows", [0, 1, 2, 15, 16, 17, 100])
def test_rows_and_symbols_of_any_number(num_rows, num_symbols):
    rows = random_rows(num_rows, num_symbols, 3) if num_symbols else [[]] * num_rows
    assert_reads_as(rows, num_symbols)
    assert_reads_as([row if index % 3 else None for index, row in enumerate(rows)], num_symbols)


def test_a_set_of_all_of_many_symbols():
    sets = assert_reads_as([range(2**13), [5]], 2**13, np.full(2**13, 1))
    # Every gap is 1, about a bit each.
    assert sets.num_bits < 2.1 * 2**13


def test_sets_that_all_rows_share():
    sets = assert_reads_as([range(50)] * 40, 50)
    assert sets.num_bits <= 40 * (50 + 50)


@pytest.mark.parametrize("row", [[], None])
def test_rows_that_are_all_empty_take_a_bit_each(row):
    sets = assert_reads_as([row] * 1000, 7, np.zeros(7, np.int64))
    assert sets.num_bits <= 2 * 1000


def test_sets_that_nearly_all_have_the_largest_size_take_a_bit_for_it():
    rng = np.random.default_rng(6)
    rows = [rng.permutation(100)[: 12 if number % 20 else number % 7].tolist() for number in range(1_000)]
    sets = assert_reads_as(rows, 100)
    (code,) = sets.codes
    assert code.header_width == 0
    assert code.headers[0] == 12
    assert sorted(code.headers.tolist()) == list(range(len(code.headers)))
    plain = replace(code, headers=np.zeros(0, np.uint8), header_width=3)
    headers = np.array([len(row) for row in rows], np.int32)
    indptr = np.concatenate(([0], np.cumsum(headers, dtype=np.int64)))
    ids = np.concatenate([np.sort(row) for row in rows]).astype(np.int32)
    assert sets.num_bits < GolombSets.build([plain], headers[:, None], indptr, ids).num_bits - 3 * len(rows)


@pytest.mark.parametrize("size", [252, 253, 254, 300])
def test_ranks_of_large_sizes(size):
    sets = assert_reads_as([list(range(size))] * 500 + [[1], None], 300)
    assert len(sets.codes[0].headers) == (size + 3 if size + 2 < 256 else 0)


@for_each("block", [1, 7, 64, 99, 100, 1000])
@for_each("mean", [0, 0.3, 40])
def test_sets_that_come_in_blocks_have_the_same_bits(block, mean):
    rng = np.random.default_rng(4)
    sets = [np.unique(rng.integers(0, 500, rng.poisson(mean))).astype(np.int32) for _ in range(200)]
    lengths = np.array([len(ids) for ids in sets])
    indptr = np.concatenate(([0], np.cumsum(lengths)))
    headers, ids = lengths.astype(np.int32).reshape(100, 2), np.concatenate(sets)
    counts = -np.sort(-np.bincount(ids, minlength=500))
    codes = [SetCode.fit(counts, headers[:, 0], 0)] * 2
    whole = GolombSets.build(codes, headers, indptr, ids)

    def blocks():
        for first in range(0, 100, block):
            bounds = indptr[2 * first : 2 * min(100, first + block) + 1]
            yield headers[first : first + block], bounds - bounds[0], ids[bounds[0] : bounds[-1]]

    joined = GolombSets.build_in_blocks(codes, 100, blocks(), SpilledWords())
    assert joined.num_bits == whole.num_bits
    assert joined.words.tolist() == whole.words.tolist()
    assert joined.group_rows == whole.group_rows
    assert joined.starts.to_numbers().tolist() == whole.starts.to_numbers().tolist()


def test_levels_ascend_with_rarity():
    counts = np.array([1000, 500, *[10] * 100, *[1] * 20, 0])
    code = SetCode(3, 0, levels_of(counts))
    levels = code.levels.astype(int)
    assert code.num_symbols == 123
    assert levels[0] < levels[1] < levels[2]
    # Of equally popular symbols the last have fewer behind them.
    assert (np.diff(levels[2:102]) <= 0).all()
    assert levels[101] < levels[2]
    assert levels_of(np.zeros(0, np.int64)).ends.tolist() == []


def test_a_gap_among_equally_popular_symbols_has_the_width_of_its_mean():
    """Of the last 900 symbols, 40 ids are 22 apart on average, so their codes have log2(ln(2) * 22) bits."""
    code = SetCode(3, 0, levels_of(np.full(4096, 7)))
    left = code.left_levels
    widths = [(int(code.levels[4096 - 900]) - int(left[ids])) >> 2 for ids in (1, 8, 40, 256 + 16)]
    assert widths == [9, 6, 4, 1]
    assert left[255] == left[256 + 15]
    assert left[0] == left[1] == 0


def test_as_many_runs_of_levels_as_there_may_be():
    rng = np.random.default_rng(1)
    code = levels_of(rng.integers(1, 10_000, 5_000))
    assert len(code.ends) <= 1024
    assert code.ends[-1] == 5_000


@for_each("seed", range(4))
def test_levels_that_are_fitted_make_sets_smaller(seed):
    """Rows with tastes: each has values of one of 20 groups, beside some of all."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(2_000):
        first, size = 50 * rng.integers(20), rng.geometric(1 / 12)
        near, far = first + rng.integers(0, 50, size), rng.integers(0, 1_000, 3)
        rows.append(np.unique(np.concatenate((near, far))))
    counts = np.bincount(np.concatenate(rows), minlength=1_000)
    order = np.argsort(np.argsort(-counts, kind="stable"))
    rows = [np.sort(order[ids]) for ids in rows]
    headers = np.array([len(ids) for ids in rows], np.int32)
    ids = np.concatenate(rows).astype(np.int32)
    indptr = np.concatenate(([0], np.cumsum(headers, dtype=np.int64)))
    code = SetCode.fit(-np.sort(-counts), headers, 0)
    plain, best = (
        GolombSets.build([c], headers[:, None], indptr, ids).num_bits
        for c in (code, code.fitted(headers[:500], ids[: indptr[500]]))
    )
    assert best < 0.995 * plain


def test_nothing_to_fit_levels_to():
    code = SetCode.fit(np.array([3, 2]), np.zeros(5, np.int32), 0)
    for sizes in (np.zeros(0, np.int64), np.zeros(3, np.int64)):
        assert code.fitted(sizes, np.zeros(0, np.int32)).gaps == code.gaps


def test_symbols_that_tell_nothing_cost_nothing_at_best():
    assert ideal_bits(np.array([100, 100, 0]), 100) == 0
    assert ideal_bits(np.array([50]), 100) == pytest.approx(100)
    assert ideal_bits(np.zeros(0, np.int64), 0) == 0


def gaps(ends, runs, left=LEFT_LEVELS):
    return Levels(np.array(ends), np.array(runs, np.uint8), left)


def test_parts_that_do_not_fit_are_refused():
    sets, _ = coded(random_rows(20, 30, 3), 30)
    parts = {name: getattr(sets, name) for name in GolombSets.__dataclass_fields__}
    for name, change in [
        ("codes", []),
        ("codes", [SetCode(31, 0, gaps([30], [0]))]),
        ("codes", [SetCode(1, 3, gaps([30], [0]))]),
        ("codes", [SetCode(1, 0, gaps([30], [0]), -1, np.array([1, 1], np.uint8))]),
        ("codes", [SetCode(1, 0, gaps([30], [0]), -1, np.arange(257).astype(np.uint8))]),
        ("codes", [SetCode(1, 0, gaps([30, 20], [0, 1]))]),
        ("codes", [SetCode(1, 0, gaps([2**31], [0]))]),
        ("codes", [SetCode(1, 0, gaps([30], [124]))]),
        ("codes", [SetCode(1, 0, gaps([30], []))]),
        ("codes", [SetCode(1, 0, gaps([30], [0], LEFT_LEVELS[:-1]))]),
        ("codes", [SetCode(1, 0, gaps([30] * 1025, [0] * 1025))]),
        ("words", sets.words[:1]),
        ("words", sets.words[None]),
        ("num_bits", -1),
        ("num_bits", 64 * len(sets.words)),
        ("num_rows", -1),
        ("num_rows", 33),
        ("group_rows", 0),
        ("group_rows", 1),
        ("group_rows", 65),
        ("starts", EliasFano.build(np.arange(20, dtype=np.uint64), 20, by_value=True)),
    ]:
        with pytest.raises(ValueError, match=r"sets|do not fit"):
            GolombSets(**{**parts, name: change})
