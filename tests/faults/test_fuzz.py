"""The short form of the campaign in fuzz.py."""

import pytest

from tests.helpers.length import by_length


@pytest.mark.has_long_form
def test_damaged_and_forged_files_are_refused_or_safe_to_read(run_campaign):
    inputs = by_length(80, 500)
    counts = run_campaign("fuzz.py", "--inputs", str(inputs), "--seed", "11")
    assert counts["inputs"] == inputs
