"""The short form of the campaign in concurrency.py."""

import pytest

from tests.helpers.length import by_length


@pytest.mark.has_long_form
def test_processes_may_write_and_read_one_view_at_once(run_campaign):
    processes = "--writers", "3", "--readers", "2"
    counts = run_campaign("concurrency.py", "--seconds", by_length("2", "10"), *processes, "--seed", "11")
    assert counts["writes"] > 0
    assert counts["rows"] > 0


@pytest.mark.has_long_form
def test_a_view_may_be_dropped_beside_its_writers_and_readers(run_campaign):
    options = "--writers", "3", "--readers", "1", "--drops"
    counts = run_campaign("concurrency.py", "--seconds", by_length("2", "20"), *options, "--seed", "11")
    assert counts["drops"] > 0
