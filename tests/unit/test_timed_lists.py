"""Timed lists: what is coded comes back; damage is refused; bits are what they should be."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feast_sketch_store.kernel import ReadFault
from feast_sketch_store.succinct import ListCode, TimedLists
from feast_sketch_store.succinct.coded_rows import code_lengths, prefix_codes
from feast_sketch_store.succinct.timed_lists import bit_lengths, classes_of
from tests.helpers.cases import for_each
from tests.helpers.length import by_length
from tests.helpers.reads import read_items
from tests.oracle.bits import DamagedError
from tests.oracle.lists import read_list

pytestmark = pytest.mark.has_long_form

REPEATABLE = settings(derandomize=True, database=None, deadline=None, max_examples=by_length(16, 80))


def coded(rows, num_symbols):
    """Lists of rows that are given as ``{age: ids}``, and their items in order."""
    items = [[(age, i) for age in sorted(row) for i in sorted(row[age])] for row in rows]
    indptr = np.concatenate(([0], np.cumsum([len(row) for row in items]))).astype(np.int64)
    ages = np.array([age for row in items for age, _ in row], np.int64)
    ids = np.array([i for row in items for _, i in row], np.int32)
    return TimedLists.build(np.bincount(ids, minlength=num_symbols), indptr, ids, ages), items


OLDEST = 2**62 - 1  # times are microseconds of 63 bits
AGES = st.integers(0, 9) | st.integers(0, 2**59)


@st.composite
def rows_of_lists(draw):
    num_symbols = draw(st.sampled_from([1, 2, 40, 3000]))
    ids = st.sets(st.integers(0, num_symbols - 1), min_size=1, max_size=40)
    return draw(st.lists(st.dictionaries(AGES, ids, max_size=6), max_size=40)), num_symbols


@pytest.mark.slow
@REPEATABLE
@given(rows_of_lists(), st.data())
def test_what_is_coded_comes_back_newest_first(given_rows, data):
    rows, num_symbols = given_rows
    lists, items = coded(rows, num_symbols)
    everything = np.arange(len(rows))
    limit, oldest = data.draw(st.integers(1, 9)), data.draw(AGES)
    wanted = np.array(data.draw(st.lists(st.integers(0, len(rows) - 1))) if rows else [], np.int64)
    assert read_items(lists, everything) == items
    cut = [[item for item in items[row] if item[0] <= oldest][:limit] for row in wanted.tolist()]
    assert read_items(lists, wanted, limit, oldest) == cut


@pytest.mark.slow
@REPEATABLE
@given(rows_of_lists(), st.integers(0, 99))
def test_damaged_lists_are_read_alike_or_refused_by_both(given_rows, seed):
    rows, num_symbols = given_rows
    lists, items = coded(rows, num_symbols)
    if not sum(map(len, items)):
        return
    rng = np.random.default_rng(seed)
    words = lists.words.copy()
    words[rng.integers(0, len(words))] ^= rng.integers(0, 2**64, dtype=np.uint64)
    object.__setattr__(lists, "words", words)
    bounds = [*lists.starts.to_numbers().tolist(), lists.num_bits]
    for row in range(len(rows)):
        start, stop = bounds[row : row + 2]
        try:
            wanted = read_list(lists.code, words, start, stop, 2**62, OLDEST)
        except DamagedError:
            with pytest.raises(ReadFault):
                read_items(lists, np.array([row]), oldest=OLDEST)
        else:
            assert read_items(lists, np.array([row]), oldest=OLDEST) == [wanted]


def test_lists_for_which_there_is_no_room_at_first():
    rows = [{age: range(7) for age in range(500)}] * 3 + [{}]
    lists, items = coded(rows, 7)
    assert read_items(lists, np.arange(4)) == items


def test_many_chunks_are_one_stream(monkeypatch):
    from feast_sketch_store.succinct import timed_lists

    rows = [{age: range(age % 5 + 1) for age in range(row % 7)} for row in range(300)]
    whole, items = coded(rows, 5)
    monkeypatch.setattr(timed_lists, "_ITEMS_PER_CHUNK", 10)
    parts, _ = coded(rows, 5)
    assert (parts.words == whole.words).all()
    assert read_items(parts, np.arange(300)) == items


def test_ids_of_a_tick_take_about_the_bits_of_a_set():
    rng = np.random.default_rng(7)
    rows = [{0: rng.choice(1000, 100, replace=False)} for _ in range(300)]
    lists, _ = coded(rows, 1000)
    least = 300 * (1000 * 0.469)  # the entropy of a coin of 0.1, for each of 1,000 symbols
    assert least < lists.num_bits < 1.06 * least


def test_classes_and_their_codes():
    numbers = np.concatenate((np.arange(300), 2 ** np.arange(8, 60), 2 ** np.arange(8, 60) - 1))
    assert (bit_lengths(numbers) == [int(n).bit_length() for n in numbers]).all()
    classes = classes_of(numbers)
    assert classes[:9].tolist() == [0, 1, 2, 3, 4, 4, 5, 5, 6]
    order = np.argsort(numbers, kind="stable")
    assert (np.diff(classes[order]) >= 0).all()
    lengths = code_lengths(np.array([2**n for n in range(40)]))
    assert lengths.max() <= 12
    assert np.ldexp(1.0, -lengths.astype(int)).sum() == 1
    codes = prefix_codes(lengths).tolist()
    for one, length in zip(codes, lengths.tolist(), strict=True):
        begins_so = [code for code, bits in zip(codes, lengths.tolist(), strict=True) if bits >= length]
        assert sum(code % 2**length == one for code in begins_so) == 1


@for_each(
    "change",
    [
        {"lengths": np.full((3, 128), 1, np.uint8)},  # more codes than there are
        {"lengths": np.full((3, 128), 13, np.uint8)},
        {"lengths": np.zeros((2, 128), np.uint8)},
        {"run_ends": np.array([2, 2, 2, 2])},
        {"run_ends": np.array([2, 2, 2, 2, 1])},
        {"run_widths": np.full(5, 31, np.uint8)},
    ],
)
def test_a_code_that_cannot_be_is_refused(change):
    good = {
        "lengths": np.zeros((3, 128), np.uint8),
        "run_ends": np.full(5, 2),
        "run_widths": np.zeros(5, np.uint8),
    }
    ListCode(**good)
    with pytest.raises(ValueError, match="do not fit the lists"):
        ListCode(**{**good, **change})
