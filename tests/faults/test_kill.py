"""The short form of the campaign in kill.py."""

import pytest

from tests.helpers.length import by_length


@pytest.mark.has_long_form
def test_a_writer_may_be_killed_at_any_step(run_campaign):
    kills = by_length(8, 40)
    counts = run_campaign("kill.py", "--kills", str(kills), "--seed", "11")
    assert counts["kills"] == kills


@pytest.mark.has_long_form
def test_a_writer_of_lists_may_be_killed_at_any_step(run_campaign):
    kills = by_length(6, 40)
    counts = run_campaign("kill.py", "--lists", "--kills", str(kills), "--seed", "11")
    assert counts["kills"] == kills
