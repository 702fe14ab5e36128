"""What the tests of campaigns take for a count."""

import pytest

from tests.faults.conftest import has_count


@pytest.mark.parametrize(
    ("printed", "is_counted"),
    [
        ("8 kills, 0 failures", True),
        ("8 kills: 0 failures.", True),
        ("8 kills, 10 failures", False),
        ("8 kills, 1,000 failures", False),
        ("8 kills", False),
    ],
)
def test_a_count_is_not_the_end_of_a_higher_one(printed, is_counted):
    assert has_count(printed, "0 failures") == is_counted
