"""The short form of the campaign in large_rows.py."""

import pytest


@pytest.mark.parametrize("options", [[], ["--lists"]], ids=["texts", "lists"])
def test_large_rows_are_read_everywhere(run_campaign, options):
    run_campaign("large_rows.py", "--rows", "40", "--bytes", "1000000", *options)
