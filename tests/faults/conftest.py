"""Runs the short form of a campaign."""

import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.processes import run_command


@pytest.fixture
def run_campaign() -> Callable[..., Counter[str]]:
    """Runs a campaign of this folder as a command, which must exit with 0 and print 0 failures.

    Returns what it counted, by the word behind each number.
    """

    def run(name: str, *arguments: str) -> Counter[str]:
        campaign = Path(__file__).with_name(name)
        done = run_command([sys.executable, "-W", "ignore", campaign, *arguments])
        assert done.returncode == 0, done.stdout + done.stderr
        counts = counts_in(done.stdout)
        assert "failures" in counts, done.stdout
        assert counts["failures"] == 0, done.stdout
        return counts

    return run


def counts_in(printed: str) -> Counter[str]:
    """The numbers that a campaign prints, by the word behind each."""
    counts: Counter[str] = Counter()
    for number, word in re.findall(r"(?<![\d,.])(\d+(?:,\d{3})*) ([a-z]\w*)", printed):
        counts[word] += int(number.replace(",", ""))
    return counts
