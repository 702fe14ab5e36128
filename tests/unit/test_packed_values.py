"""Packed values come back as they were, in few bits; arrays that do not fit each other are refused."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.packed_values import packed_arrays, values_from
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures.parts import Parts, split
from tests.helpers.cases import for_each
from tests.helpers.length import by_length

BINARY, INT64 = pa.large_binary(), pa.int64()


def binary(*values):
    return pa.array(values, BINARY)


def size_of(arrays):
    return sum(array.nbytes for array in arrays.values())


def assert_comes_back(values):
    arrays = packed_arrays(values)
    back = values_from(arrays, values.type)
    assert back.equals(values)
    again = packed_arrays(back)
    assert {n: a.tobytes() for n, a in again.items()} == {n: a.tobytes() for n, a in arrays.items()}
    return arrays


@given(st.lists(st.integers(-(2**63), 2**63 - 1), unique=True))
def test_numbers(numbers):
    assert_comes_back(pa.array(numbers, INT64))


@given(st.lists(st.binary(max_size=5) | st.text("ab", max_size=300).map(str.encode), unique=True))
def test_strings(strings):
    assert_comes_back(binary(*strings))


@given(
    st.lists(st.tuples(st.sampled_from([b"product-", b"product-1", b""]), st.binary(max_size=3)), unique=True)
)
def test_strings_that_begin_alike(parts):
    strings = {start + end: None for start, end in parts}
    assert_comes_back(binary(*strings))


def test_numbers_take_as_many_bits_as_their_range():
    arrays = assert_comes_back(pa.array(np.random.default_rng(1).permutation(7_582)))
    assert size_of(arrays) == 24 + 8 * (-(-7_582 * 13 // 64) + 2)


def in_runs(num_values, num_runs):
    """The numbers below ``num_values``, in runs that ascend, as equally frequent values do."""
    parts = np.array_split(np.random.default_rng(2).permutation(num_values), num_runs)
    return np.concatenate([np.sort(part) for part in parts])


@for_each("base", [0, -(10**6), 2**63 - 10**6])
def test_numbers_in_runs_take_the_bits_of_their_distances(base):
    arrays = assert_comes_back(pa.array(in_runs(10_000, 16) + base))
    assert arrays["shape"].tolist()[2:] == [base, 10_000]
    assert size_of(arrays) < 10_000 * (2.1 + 4) / 8


@pytest.mark.slow
@pytest.mark.has_long_form
@settings(max_examples=by_length(30, 100))
@given(st.lists(st.lists(st.integers(-(2**62), 2**62), min_size=50, max_size=60), min_size=1, max_size=3))
def test_long_runs_of_any_numbers(runs):
    assert_comes_back(pa.array(dict.fromkeys(number for run in runs for number in sorted(run)), INT64))


def test_sorted_strings_in_runs():
    names = [b"article/%06d" % number for number in in_runs(4_000, 8)]
    arrays = assert_comes_back(binary(*names))
    assert arrays["shape"].shape == (5,)
    assert len(arrays["packed"]) + len(arrays["highs"]) < 4_000 * 5.3 / 64


def test_strings_that_begin_alike_are_sorted():
    names = [b"article/%06d" % number for number in np.random.default_rng(1).permutation(10**6)[:5_000]]
    arrays = assert_comes_back(binary(*names))
    assert arrays["shape"].shape == (4,)
    # Of 14 bytes and an offset of 8, about 4 bytes and a place are left.
    assert size_of(arrays) < 0.35 * 5_000 * 22


def test_slices():
    assert_comes_back(binary(b"left out", b"kept", b"kept too", b"left out too").slice(1, 2))
    assert_comes_back(pa.array([9, 1, 2, 9]).slice(1, 2))


SORTED = packed_arrays(binary(*[b"product-%04d" % number for number in range(40, 0, -1)]))
PLAIN = packed_arrays(binary(b"ab", b"", b"c"))
NUMBERS = packed_arrays(pa.array([5, 7, 6]))
IN_RUNS = packed_arrays(pa.array(in_runs(1_000, 4)))
STRINGS_IN_RUNS = packed_arrays(binary(*[b"product-%04d" % number for number in in_runs(1_000, 4)]))


def changed(arrays, name, value):
    return {**arrays, name: np.asarray(value, arrays[name].dtype)}


@for_each(
    ("arrays", "kind"),
    [
        (NUMBERS, BINARY),
        (PLAIN, INT64),
        (SORTED, INT64),
        (changed(NUMBERS, "shape", [3, 2]), INT64),
        (changed(NUMBERS, "shape", [3, 0, 5]), INT64),
        (changed(NUMBERS, "shape", [2**60, 2, 5]), INT64),
        (changed(NUMBERS, "shape", [-1, 2, 5]), INT64),
        (changed(NUMBERS, "packed", NUMBERS["packed"][:1]), INT64),
        (changed(PLAIN, "shape", [3, 0]), BINARY),
        (changed(PLAIN, "shape", [2, 2]), BINARY),
        (changed(PLAIN, "shape", [3, 2, 1]), BINARY),
        (changed(PLAIN, "data", PLAIN["data"][:2]), BINARY),
        (changed(PLAIN, "data", [*PLAIN["data"], 1]), BINARY),
        (changed(PLAIN, "packed", [2**64 - 1, 0]), BINARY),
        (changed(SORTED, "shape", [40, 0, *SORTED["shape"][2:]]), BINARY),
        (changed(SORTED, "shape", [39, *SORTED["shape"][1:]]), BINARY),
        (changed(SORTED, "packed", SORTED["packed"] | 1), BINARY),
        (changed(SORTED, "packed", SORTED["packed"] | np.uint64(2**64 - 1)), BINARY),
        (changed(SORTED, "prefixes", SORTED["prefixes"] | 1), BINARY),
        (changed(SORTED, "prefixes", SORTED["prefixes"] | np.uint64(2**64 - 1)), BINARY),
        (changed(SORTED, "suffixes", SORTED["suffixes"] | np.uint64(2**64 - 1)), BINARY),
        (changed(SORTED, "data", SORTED["data"][:-1]), BINARY),
        (IN_RUNS, BINARY),
        (changed(IN_RUNS, "shape", IN_RUNS["shape"][:3]), INT64),
        (changed(IN_RUNS, "shape", [999, *IN_RUNS["shape"][1:]]), INT64),
        (changed(IN_RUNS, "shape", [2**60, 0, 0, 1_000]), INT64),
        (changed(IN_RUNS, "shape", [1_000, 64, 0, 1_000]), INT64),
        (changed(IN_RUNS, "shape", [*IN_RUNS["shape"][:3], 0]), INT64),
        (changed(IN_RUNS, "shape", [*IN_RUNS["shape"][:2], 2**63 - 1_000, 1_001]), INT64),
        (changed(IN_RUNS, "highs", IN_RUNS["highs"] << np.uint64(1)), INT64),
        (changed(IN_RUNS, "highs", IN_RUNS["highs"][:-10]), INT64),
        (changed(IN_RUNS, "packed", IN_RUNS["packed"][:-1]), INT64),
        ({k: v for k, v in IN_RUNS.items() if k != "highs"}, INT64),
        (changed(STRINGS_IN_RUNS, "shape", [*STRINGS_IN_RUNS["shape"][:4], 999]), BINARY),
        ({**PLAIN, "highs": IN_RUNS["highs"]}, BINARY),
        ({**PLAIN, "data": PLAIN["data"][None]}, BINARY),
        ({**PLAIN, "data": PLAIN["data"].view(np.int8)}, BINARY),
        *(({k: v for k, v in SORTED.items() if k != name}, BINARY) for name in SORTED),
    ],
)
def test_arrays_that_do_not_fit_are_refused(arrays, kind):
    with pytest.raises((ValueError, KeyError, TypeError)):
        values_from(arrays, kind)


def test_lengths_that_wrap_around_are_refused():
    lengths = np.array([2**63, 2**63, 3], np.uint64)
    arrays = {
        "shape": np.array([3, 64]),
        "packed": np.append(lengths, np.zeros(2, np.uint64)),
        "data": np.zeros(3, np.uint8),
    }
    with pytest.raises(ValueError, match="lengths"):
        values_from(arrays, BINARY)


def test_a_vocabulary_knows_its_packed_bytes():
    vocabulary = Vocabulary(binary(b"abc", b""))
    arrays = vocabulary.to_packed()
    assert vocabulary.packed_bytes == size_of(arrays) == Vocabulary.from_packed(arrays, BINARY).packed_bytes


@pytest.mark.parametrize(
    ("small", "large"),
    [
        (pa.array(range(1 << 18), INT64), pa.array(range((1 << 18) + 1), INT64)),
        (binary(*(b"%d" % n for n in range(1 << 18))), binary(*(b"%d" % n for n in range((1 << 18) + 1)))),
    ],
    ids=["numbers", "strings"],
)
def test_a_large_vocabulary_stays_as_it_is_mapped(small, large):
    """To unpack it would take longer than a snapshot may take to open."""
    assert "shape" in Vocabulary(small).to_packed()
    plain = Vocabulary(large).to_packed()
    assert "shape" not in plain
    _, arrays = split({"vocabulary": plain})
    assert Parts({}, arrays, {}).vocabulary(codec_of(large)).values.equals(large)


@pytest.mark.parametrize(("num_values", "is_sorted"), [(1 << 12, True), ((1 << 12) + 1, False)])
def test_strings_of_a_larger_vocabulary_are_packed_and_used_where_they_are(num_values, is_sorted):
    """Only where they begin is unpacked; sorted ones are put together when a snapshot is opened."""
    values = binary(*(b"article %06d" % number for number in range(num_values)))
    vocabulary = Vocabulary(values)
    arrays = vocabulary.to_packed()
    assert len(arrays["shape"]) == (5 if is_sorted else 2)
    assert vocabulary.packed_bytes < 0.7 * vocabulary.size_bytes
    back = Vocabulary.from_packed(arrays, BINARY).values
    assert back.equals(values)
    assert (back.buffers()[2].address == arrays["data"].ctypes.data) == (not is_sorted)


def codec_of(values):
    return FeatureCodec("viewed", "int64_set_val" if values.type == INT64 else "string_set_val")
