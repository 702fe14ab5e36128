"""The short form of the campaign in kill_bucket.py."""

import pytest


@pytest.mark.parametrize("workload", [(), ("--lists",)], ids=["rows", "lists"])
def test_a_writer_may_be_killed_at_any_step_of_publishing(run_campaign, workload):
    printed = run_campaign("kill_bucket.py", *workload, "--kills", "3", "--seed", "11")
    assert "3 kills" in printed
    assert " 0 failures" in printed
