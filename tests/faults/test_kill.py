"""The short form of the campaign in kill.py."""

import pytest

from tests.helpers.length import by_length


@pytest.mark.has_long_form
def test_a_writer_may_be_killed_at_any_step(run_campaign):
    kills = by_length("8", "40")
    run_campaign("kill.py", "--kills", kills, "--seed", "11", counted=(f"{kills} kills",))


@pytest.mark.has_long_form
def test_a_writer_of_lists_may_be_killed_at_any_step(run_campaign):
    kills = by_length("6", "40")
    run_campaign("kill.py", "--lists", "--kills", kills, "--seed", "11", counted=(f"{kills} kills",))
