"""Scalars that share numbers: each row reads back, whatever stands beside it, in about log2(V) bits."""

import copy
import math

import numpy as np
import pyarrow as pa
import pytest

from feast_sketch_store.rows.codecs import EMPTY, MISSING, NULL, VALUE, FeatureCodec
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures.base import RowsToSeal
from feast_sketch_store.structures.parts import Parts, split
from feast_sketch_store.structures.scalars import Scalars, scalar_bytes
from tests.helpers.cases import for_each
from tests.helpers.reads import read_structure

NUM_ROWS = 300


class Rows:
    """A scalar of rows as structures are built of it; see `FeatureRows`."""

    is_numbered = False

    def __init__(self, name, num_values, states=(VALUE,), seed=1, field="int64_val", num_rows=NUM_ROWS):
        rng = np.random.default_rng([seed, num_values])
        self.states = rng.choice(np.array(states, np.uint8), num_rows)
        ids = rng.integers(0, max(1, num_values), num_rows)[self.states == VALUE]
        self.sealed_codec = FeatureCodec(name, field)
        values = pa.array(np.arange(num_values) * 7)
        if field == "string_val":
            values = pa.array([f"value {n}".encode() for n in range(num_values)], pa.large_binary())
        self.vocabulary = Vocabulary(values)
        self.counts, self.num_facts = np.bincount(ids, minlength=num_values), len(ids)
        self.csr = Csr.of_lengths((self.states == VALUE).astype(np.int64), ids.astype(np.int32))

    def lengths(self):
        yield np.arange(len(self.states), dtype=np.int32), self.csr.lengths.astype(np.int32)

    def rows(self):
        yield np.arange(len(self.states), dtype=np.int32), self.csr

    kept_rows = rows


def built(*features, order=None):
    num_rows = len(features[0].states)
    order = np.arange(num_rows) if order is None else order
    return Scalars.build(
        [(feature, None) for feature in features],
        RowsToSeal(np.zeros((num_rows, 2), np.uint64), (1, 2), order),
    )


def read(scalars, name, rows):
    return read_structure(scalars, name, rows, scalars.num_rows)


def assert_reads_back(scalars, features, order):
    rows = np.random.default_rng(5).permutation(len(order))
    for feature in features:
        answer, wanted = read(scalars, feature.sealed_codec.feature, rows), feature.csr.take(order[rows])
        assert answer.states.tolist() == feature.states[order[rows]].tolist()
        assert answer.indptr.tolist() == wanted.indptr.tolist()
        assert answer.symbols.tolist() == wanted.ids.tolist()


@pytest.mark.slow
@for_each("sizes", [[5], [1], [1, 1, 3], [9] * 30, [2] * 70, [2**16, 3, 2**15, 2**17, 2**16, 5]])
@for_each("states", [(VALUE,), (VALUE, NULL), (MISSING, NULL, EMPTY, VALUE), (NULL,)])
def test_every_row_reads_back(sizes, states):
    features = [Rows(f"f{n}", size, states, n) for n, size in enumerate(sizes)]
    order = np.random.default_rng(3).permutation(NUM_ROWS)
    scalars = built(*features, order=order)
    assert_reads_back(scalars, features, order)
    assert all(0 <= numbers.width <= 63 for numbers in scalars.numbers)


def test_values_that_no_row_has_and_no_rows():
    feature = Rows("f", 0, (NULL,))
    assert_reads_back(built(feature), [feature], np.arange(NUM_ROWS))
    assert built(feature).numbers[0].width == 0
    empty = Rows("f", 0, num_rows=0)
    assert_reads_back(built(empty), [empty], np.arange(0))


@for_each(("size", "number"), [(3, 39), (9, 30), (50, 10), (255, 7), (1000, 6)])
def test_a_scalar_takes_the_logarithm_of_its_symbols(size, number):
    features = [Rows(f"f{n}", size, seed=n, num_rows=6400) for n in range(number)]
    scalars = built(*features)
    bits = 8 * sum(numbers.size_bytes for numbers in scalars.numbers) / 6400
    assert number * math.log2(size) <= bits <= number * math.log2(size) + len(scalars.numbers) + 0.1
    expected = sum(scalar_bytes(feature.vocabulary, feature.states) for feature in features)
    assert 0 <= scalars.size_bytes - expected <= len(scalars.numbers) * (6400 / 8 + 8)
    assert sum(scalars.size_bytes_of(f"f{n}") for n in range(number)) == pytest.approx(expected)


def described():
    features = [Rows("a", 9, (VALUE, NULL)), Rows("b", 50, field="string_val"), Rows("c", 1000)]
    scalars = built(*features, *(Rows(f"d{n}", 2000, seed=n) for n in range(4)))
    return scalars, *split(scalars.to_snapshot())


@for_each(
    ("path", "value"),
    [
        (["features"], []),
        (["features", 0, "name"], "b"),
        (["features", 0, "value_field"], "int64_set_val"),
        (["features", 0, "value_field"], "string_val"),
        (["features", 0, "num_values"], 8),
        (["features", 0, "others"], [3]),
        (["features", 0, "others"], [7]),
        (["features", 0, "others"], [0, 1, 2]),
        (["features", 0, "others"], None),
        (["numbers"], []),
        (["numbers", 0, "width"], 62),
        (["numbers", 0, "base"], 1),
        (["numbers", 0, "length"], 299),
    ],
)
def test_a_description_that_does_not_fit_is_refused(path, value):
    _, description, arrays = described()
    node = description = copy.deepcopy(description)
    for step in path[:-1]:
        node = node[step]
    node[path[-1]] = value
    with pytest.raises((ValueError, KeyError, TypeError)):
        Scalars.from_snapshot(Parts(description, arrays, {}))


def test_any_numbers_are_safe_to_read():
    """Words that nobody wrote have digits like any others."""
    _, description, arrays = described()
    rng = np.random.default_rng(7)
    for _ in range(20):
        arrays = arrays | {
            name: rng.integers(0, 2**64, len(words), np.uint64)
            for name, words in arrays.items()
            if name.startswith("numbers")
        }
        restored = Scalars.from_snapshot(Parts(description, arrays, {}))
        for name, feature in restored.features.items():
            answer = read(restored, name, np.arange(NUM_ROWS))
            assert (answer.symbols < len(feature.vocabulary)).all()
            assert set(answer.states.tolist()) <= {VALUE, *feature.others}
