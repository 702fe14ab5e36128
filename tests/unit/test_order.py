"""The order in which processes begin the tests."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.helpers.order import FIRST, in_shares

TESTS = Path(__file__).parents[1]


@dataclass(frozen=True)
class Item:
    path: Path
    number: int


def items_of(*files):
    return [Item(TESTS / file, number) for file, many in files for number in range(many)]


LONG = [(name, 3) for names in FIRST for name in names]
ALL = items_of(("unit/test_a.py", 40), *LONG, ("unit/test_b.py", 60))


@pytest.mark.parametrize("num_shares", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("tests", [ALL, ALL[:40], ALL[40:70], ALL[:1], []], ids=len)
def test_every_test_stays(tests, num_shares):
    ordered = in_shares(tests, num_shares)
    assert len(ordered) == len(tests)
    assert set(ordered) == set(tests)


def test_each_of_three_begins_with_long_files_of_its_own():
    ordered = in_shares(ALL, 3)
    second = len(ALL) // 3
    third = second + (len(ALL) - second) // 2
    for start, names in zip((0, second, third), FIRST, strict=True):
        begin = ordered[start : start + 3 * len(names)]
        assert [test.path for test in begin[::3]] == [TESTS / name for name in names]
    rest = [test for test in ordered if test.path.name in ("test_a.py", "test_b.py")]
    assert rest == [*ALL[:40], *ALL[-60:]]


def test_the_long_files_are_there():
    assert [name for names in FIRST for name in names if not (TESTS / name).is_file()] == []
