"""Runs the short form of a campaign."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.processes import run_command


@pytest.fixture
def run_campaign() -> Callable[..., str]:
    """Runs a campaign of this folder as a command, which must succeed, and returns its output."""

    def run(name: str, *arguments: str) -> str:
        campaign = Path(__file__).with_name(name)
        done = run_command([sys.executable, "-W", "ignore", campaign, *arguments])
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run
