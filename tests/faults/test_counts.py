"""What the tests of campaigns take for a count."""

from tests.faults.conftest import counts_in


def test_a_count_is_the_whole_number():
    assert counts_in("8 kills, 10 failures.") == {"kills": 8, "failures": 10}
    assert counts_in("of seed 11, 1,000 failures\n0 failures") == {"failures": 1000}
    assert counts_in("1.0 failures, 8 kills") == {"kills": 8}
