"""Runs the short form of a campaign."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.processes import run_command


@pytest.fixture
def run_campaign() -> Callable[..., str]:
    """Runs a campaign of this folder as a command, which must succeed and count no failures.

    Returns what it prints. ``counted`` are more counts that this must have, such as "8 kills".
    """

    def run(name: str, *arguments: str, counted: tuple[str, ...] = ()) -> str:
        campaign = Path(__file__).with_name(name)
        done = run_command([sys.executable, "-W", "ignore", campaign, *arguments])
        assert done.returncode == 0, done.stdout + done.stderr
        for count in ("0 failures", *counted):
            assert has_count(done.stdout, count), f"not {count}: {done.stdout}"
        return done.stdout

    return run


def has_count(printed: str, count: str) -> bool:
    """Whether a count is printed, and not only the end of a higher one."""
    return re.search(rf"(?<![\d,.]){re.escape(count)}\b", printed) is not None
