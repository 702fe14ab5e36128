"""The short form of the campaign in concurrent_lists.py."""

import pytest

from tests.helpers.length import by_length


@pytest.mark.has_long_form
def test_processes_may_write_and_read_lists_at_once(run_campaign):
    seconds = by_length("2", "10")
    processes = "--writers", "3", "--readers", "2"
    counts = run_campaign("concurrent_lists.py", "--seconds", seconds, *processes, "--seed", "11")
    assert counts["adds"] > 0
    assert counts["lists"] > 0
