"""The short form of the campaign in kill_bucket.py."""

import pytest

from tests.helpers.length import by_length


@pytest.mark.has_long_form
@pytest.mark.parametrize("workload", [(), ("--lists",)], ids=["rows", "lists"])
def test_a_writer_may_be_killed_at_any_step_of_publishing(run_campaign, object_server, workload):
    kills, port = by_length(2, 5), str(object_server("moto").port)
    counts = run_campaign("kill_bucket.py", *workload, "--port", port, "--kills", str(kills), "--seed", "11")
    assert counts["kills"] == kills
