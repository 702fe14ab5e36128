"""The short form of the campaign in concurrency.py."""

import subprocess
import sys
from pathlib import Path


def test_processes_may_write_and_read_one_view_at_once():
    campaign = Path(__file__).with_name("concurrency.py")
    size = ["--seconds", "10", "--writers", "3", "--readers", "2", "--seed", "11"]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", campaign, *size],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 failures" in done.stdout
