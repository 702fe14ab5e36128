"""The short form of the campaign in bad_network.py."""

import subprocess
import sys
from pathlib import Path

CAMPAIGN = Path(__file__).with_name("bad_network.py")


def test_a_replica_behind_a_bad_network_answers_every_read():
    # An interpreter of its own: it starts a server, and its connections survive no fork.
    command = [sys.executable, "-W", "ignore", str(CAMPAIGN), "--seconds", "5", "--seed", "5"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 failures" in done.stdout
