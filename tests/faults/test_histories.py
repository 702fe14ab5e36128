"""The short form of the campaign in histories.py."""

import pytest

from tests.helpers.length import by_length


@pytest.mark.has_long_form
def test_every_way_of_reading_agrees_with_a_dictionary(run_campaign):
    most = by_length(4, 40)
    counts = run_campaign("histories.py", "--seconds", "600", "--most", str(most), "--seed", "7")
    assert counts["histories"] == most
