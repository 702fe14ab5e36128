"""Count trees: both kernels write the same bits, and read what was written, or refuse it alike."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feast_sketch_store.kernel import reference_trees
from feast_sketch_store.kernel.reference_trees import NUM_CONTEXTS, NUM_SIZES
from feast_sketch_store.succinct import EliasFano
from feast_sketch_store.succinct.count_tree import TreeCode, _joint

compiled = pytest.importorskip("feast_sketch_store.kernel.compiled", exc_type=ImportError)
REPEATABLE = settings(derandomize=True, deadline=None, database=None, max_examples=60)


@st.composite
def coded_trees(draw):
    """Codes of features, headers of rows, and their sets as a CSR matrix; trees that fit the sets or not."""
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    num_rows, codes = draw(st.integers(0, 6)), []
    for number in range(draw(st.integers(1, 4))):
        is_dependent = bool(number) and draw(st.booleans())
        num_symbols = codes[-1].num_symbols if is_dependent else draw(st.sampled_from([0, 1, 2, 3, 40, 3000]))
        codes.append(
            TreeCode(
                draw(st.integers(0, 2)),
                rng.integers(0, draw(st.sampled_from([1, 12, 64])), num_symbols).astype(np.uint8),
                rng.integers(0, 10, num_symbols).astype(np.uint8),
                rng.integers(1, 500, NUM_SIZES),
                rng.integers(0, 8, num_symbols).astype(np.uint8) if is_dependent else None,
                rng.integers(0, 64, NUM_CONTEXTS).astype(np.uint8) if is_dependent else None,
            )
        )
    shares = rng.choice([0, 0.1, 0.9, 1], len(codes))
    mean = draw(st.sampled_from([1, 10, 40, 1200]))
    headers, sets, seen = np.zeros((num_rows, len(codes)), np.int32), [], np.zeros(0, np.int64)
    for row, (number, code) in itertools.product(range(num_rows), enumerate(codes)):
        size = min(code.num_symbols, int(rng.geometric(1 / mean)) - 1)
        own = rng.permutation(code.num_symbols)[:size]
        if code.is_dependent:
            own = np.concatenate((own[: rng.integers(0, 3)], seen[rng.random(len(seen)) < shares[number]]))
        own = np.unique(own)
        seen = np.union1d(seen, own) if code.is_dependent else own
        headers[row, number] = len(own) + code.no_set if len(own) else rng.integers(0, code.no_set + 1)
        sets.append(own)
    indptr = np.cumsum([0, *map(len, sets)])
    return _joint(codes), headers, indptr, np.concatenate([*sets, np.zeros(0)]).astype(np.int32)


def starts_of(ends):
    starts = np.concatenate(([0], ends))[: len(ends)].astype(np.uint64)
    return EliasFano.build(starts, int(ends[-1]) + 1 if len(ends) else 1).parts


def assert_equal(some, others):
    for one, other in zip(some, others, strict=True):
        assert one.dtype == other.dtype
        assert one.tolist() == other.tolist()


@REPEATABLE
@given(coded_trees(), st.data())
def test_trees(sets, data):
    codes, headers, indptr, ids = sets
    written = reference_trees.write_trees(*sets)
    assert_equal(compiled.write_trees(*sets), written)
    words, ends = written
    num_rows, num_features = headers.shape
    rows = np.array(
        data.draw(st.lists(st.integers(0, num_rows - 1), max_size=8)) if num_rows else [], np.int64
    )
    for feature in range(num_features):
        arguments = codes, words, int(ends[-1]) if num_rows else 0, starts_of(ends), rows, feature
        found = compiled.read_trees(*arguments)
        assert_equal(reference_trees.read_trees(*arguments), found)
        assert found[0].tolist() == headers[rows, feature].tolist()
        segments = rows * num_features + feature
        wanted = [ids[a:b] for a, b in zip(indptr[segments], indptr[segments + 1], strict=True)]
        assert found[2].tolist() == np.concatenate([*wanted, np.zeros(0)]).tolist()
        own_ids = (7 + 3 * np.arange(int(np.diff(codes.symbol_starts)[feature]))).astype(np.int32)
        assert_equal(
            compiled.read_trees(*arguments, own_ids), reference_trees.read_trees(*arguments, own_ids)
        )
        if len(found[2]):
            own_ids[found[2][-1]] = -1
            for side in compiled, reference_trees:
                with pytest.raises(ValueError, match="cannot be read"):
                    side.read_trees(*arguments, own_ids)


@REPEATABLE
@given(coded_trees(), st.integers(0, 2**32))
def test_damaged_trees_are_read_alike_or_refused_by_both(sets, seed):
    codes, headers, _, _ = sets
    words, ends = compiled.write_trees(*sets)
    num_rows, num_features = headers.shape
    if not num_rows:
        return
    rng = np.random.default_rng(seed)
    words[rng.integers(0, len(words), 3)] ^= rng.integers(0, 2**64, 3, dtype=np.uint64)
    starts = starts_of(ends)
    for row, feature in itertools.product(range(num_rows), range(num_features)):
        arguments = codes, words, int(ends[-1]), starts, np.array([row]), feature
        try:
            found = reference_trees.read_trees(*arguments)
        except ValueError:
            with pytest.raises(ValueError, match="cannot be read"):
                compiled.read_trees(*arguments)
        else:
            assert_equal(compiled.read_trees(*arguments), found)


@pytest.mark.parametrize("side", [compiled, reference_trees])
def test_sets_that_do_not_fit_their_trees_are_refused(side):
    two = np.zeros(2, np.uint8)
    codes = _joint([TreeCode(0, two, two, np.ones(3, np.int64))])
    fits = np.array([[1]], np.int32), np.array([0, 1]), np.array([1], np.int32)
    side.write_trees(codes, *fits)
    for place, change in [
        (0, np.array([[2]], np.int32)),
        (0, np.array([[-1]], np.int32)),
        (2, np.array([2], np.int32)),
        (2, np.array([-1], np.int32)),
    ]:
        with pytest.raises(ValueError, match="do not fit their trees"):
            side.write_trees(codes, *[change if n == place else part for n, part in enumerate(fits)])
    wide = _joint([TreeCode(0, np.zeros(9, np.uint8), np.zeros(9, np.uint8), np.ones(3, np.int64))])
    sizes = np.array([[7]], np.int32), np.array([0, 7]), np.arange(7, dtype=np.int32)
    with pytest.raises(ValueError, match="do not fit their trees"):
        side.write_trees(wide, *sizes)
