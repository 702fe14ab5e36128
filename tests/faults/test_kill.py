"""The short form of the campaign in kill.py."""

import subprocess
import sys
from pathlib import Path


def test_a_writer_may_be_killed_at_any_step():
    campaign = Path(__file__).with_name("kill.py")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", campaign, "--kills", "40", "--seed", "11"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "40 kills" in done.stdout
    assert "0 failures" in done.stdout
