"""The short form of the campaign in io_errors.py."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(sys.platform != "linux", reason="the calls are taken over as on Linux")
@pytest.mark.skipif(not shutil.which("cc"), reason="io_errors.c needs a C compiler, as `cc`")
def test_any_system_call_may_fail():
    campaign = Path(__file__).with_name("io_errors.py")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", campaign, "--faults", "30", "--seed", "11"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "30 faults" in done.stdout
    assert " 0 failures" in done.stdout
