"""The short form of the campaign in fuzz.py."""

import subprocess
import sys
from pathlib import Path


def test_damaged_and_forged_files_are_refused_or_safe_to_read():
    campaign = Path(__file__).with_name("fuzz.py")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", campaign, "--inputs", "500", "--seed", "11"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "500 inputs of seed 11, 0 failures" in done.stdout
