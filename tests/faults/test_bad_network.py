"""The short form of the campaign in bad_network.py."""

import pytest

from tests.helpers.length import by_length


@pytest.mark.has_long_form
def test_a_replica_behind_a_bad_network_answers_every_read(run_campaign, object_server):
    seconds, port = by_length("2", "5"), str(object_server("moto").port)
    counts = run_campaign("bad_network.py", "--port", port, "--seconds", seconds, "--seed", "5")
    assert counts["reads"] > 0
    assert counts["faults"] > 0
