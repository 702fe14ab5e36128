"""Values to ids: order, union, arrays."""

import numpy as np
import pyarrow as pa
import pytest

from feast_sketch_store.rows.vocabulary import Vocabulary
from tests.helpers.cases import for_each


def binary(*values):
    return pa.array(values, pa.large_binary())


def test_ids_run_from_the_most_to_the_least_frequent_value():
    vocabulary, ids = Vocabulary.by_popularity(pa.array([5, 7, 7, 9, 9, 9]))
    assert vocabulary.values.to_pylist() == [9, 7, 5]
    assert ids.tolist() == [2, 1, 1, 0, 0, 0]


@pytest.mark.parametrize(
    ("values", "ordered"),
    [(pa.array([3, -1, 2]), [-1, 2, 3]), (binary(b"b", b"", b"a", b"\xff"), [b"", b"a", b"b", b"\xff"])],
)
def test_equally_frequent_values_ascend(values, ordered):
    assert Vocabulary.by_popularity(values)[0].values.to_pylist() == ordered


def test_ids_do_not_depend_on_the_order_of_the_values():
    values = np.random.default_rng(1).integers(0, 50, 1000)
    vocabulary, ids = Vocabulary.by_popularity(pa.array(values))
    reverse, reverse_ids = Vocabulary.by_popularity(pa.array(values[::-1]))
    assert vocabulary.values.equals(reverse.values)
    assert ids.tolist() == reverse_ids[::-1].tolist()
    assert vocabulary.values.to_numpy()[ids].tolist() == values.tolist()


@pytest.mark.parametrize("storage_type", [pa.int64(), pa.large_binary()])
def test_no_values_make_an_empty_vocabulary(storage_type):
    vocabulary, ids = Vocabulary.by_popularity(pa.array([], storage_type))
    assert (len(vocabulary), len(ids)) == (0, 0)
    assert vocabulary.values.type == storage_type


def test_a_union_keeps_the_ids_of_its_first_part():
    first, second = Vocabulary(binary(b"x", b"y")), Vocabulary(binary(b"z", b"y", b"w"))
    union, ids = Vocabulary.union([first, second])
    assert union.values.to_pylist() == [b"x", b"y", b"z", b"w"]
    assert [part.tolist() for part in ids] == [[0, 1], [2, 1, 3]]


def test_a_union_with_an_empty_part_changes_nothing():
    empty, full = Vocabulary(pa.array([], pa.int64())), Vocabulary(pa.array([4, 2]))
    for parts in ([empty, full], [full, empty]):
        union, ids = Vocabulary.union(parts)
        assert union.values.to_pylist() == [4, 2]
        assert sorted(map(len, ids)) == [0, 2]


@for_each(
    "values",
    [
        pa.array([], pa.int64()),
        pa.array([-(2**63), 2**63 - 1, 0]),
        binary(),
        binary(b""),
        binary(b"", b"a", "é".encode(), b"\x00\xff" * 1000),
        binary(b"left out", b"kept", b"kept too", b"left out too").slice(1, 2),
        pa.array([9, 1, 2, 9]).slice(1, 2),
        binary(b"left out", b"").slice(1, 1),
    ],
)
def test_arrays_give_the_vocabulary_back(values):
    arrays = Vocabulary(values).to_arrays()
    back = Vocabulary.from_arrays(arrays)
    assert back.values.equals(values)
    assert {name: a.tolist() for name, a in back.to_arrays().items()} == {
        name: a.tolist() for name, a in arrays.items()
    }


@for_each(
    ("offsets", "size"), [([], 0), ([1, 2], 2), ([0, 2], 1), ([0, 2], 3), ([0, 3, 2], 2), ([0, -1, 2], 2)]
)
def test_offsets_that_leave_the_data_are_refused(offsets, size):
    arrays = {"offsets": np.array(offsets, np.int64), "data": np.zeros(size, np.uint8)}
    with pytest.raises(ValueError, match="offsets"):
        Vocabulary.from_arrays(arrays)


@pytest.mark.parametrize("narrow", [np.int32, np.uint8])
def test_offsets_of_a_narrower_type_are_refused(narrow):
    """Arrow would read past their end."""
    arrays = {"offsets": np.array([0, 1, 2], narrow), "data": np.zeros(2, np.uint8)}
    with pytest.raises((ValueError, TypeError)):
        Vocabulary.from_arrays(arrays)


def test_arrays_that_lack_a_part_are_refused():
    with pytest.raises(KeyError):
        Vocabulary.from_arrays({"offsets": np.zeros(1, np.int64)})


def test_size_counts_values_and_offsets():
    assert Vocabulary(pa.array([1, 2, 3])).size_bytes == 24
    assert 3 + 2 * 8 <= Vocabulary(binary(b"abc", b"")).size_bytes <= 3 + 3 * 8
