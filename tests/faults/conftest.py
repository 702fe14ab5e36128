"""Runs the short form of a campaign."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def run_campaign() -> Callable[..., str]:
    """Runs a campaign of this folder as a command, which must succeed; gives what it printed."""

    def run(name: str, *arguments: str) -> str:
        campaign = Path(__file__).with_name(name)
        done = subprocess.run(
            [sys.executable, "-W", "ignore", campaign, *arguments],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run
