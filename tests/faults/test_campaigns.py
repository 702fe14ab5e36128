"""The short form of each campaign of this folder, which must end with exit code 0 and 0 failures."""

import shutil
import sys

import pytest

from tests.faults.conftest import counts_in
from tests.helpers.length import by_length

# A campaign; how much of it runs, by a flag, in the short form and in the long one; and what it counts.
CAMPAIGNS = [
    ("kill.py --seed 11", "--kills", 2, 6, ["kills"]),
    ("kill.py --lists --seed 11", "--kills", 2, 6, ["kills"]),
    ("kill_bucket.py --seed 11", "--kills", 1, 3, ["kills"]),
    ("kill_bucket.py --lists --seed 11", "--kills", 1, 3, ["kills"]),
    ("io_errors.py --seed 11", "--faults", 2, 6, ["faults"]),
    ("io_errors.py --lists --seed 11", "--faults", 2, 6, ["faults"]),
    ("fuzz.py --seed 11", "--inputs", 20, 250, ["inputs"]),
    ("histories.py --seconds 600 --seed 7", "--most", 1, 7, ["histories"]),
    ("interleavings.py --seconds 600 --seed 7", "--most", 3, 30, ["histories"]),
    ("bad_network.py --seed 5", "--seconds", 1, 5, ["reads", "faults"]),
    ("concurrency.py --writers 3 --readers 2 --seed 11", "--seconds", 1, 5, ["writes", "rows"]),
    ("concurrency.py --writers 3 --readers 1 --drops --seed 11", "--seconds", 1, 5, ["drops"]),
    ("concurrent_lists.py --writers 3 --readers 2 --seed 11", "--seconds", 1, 5, ["adds", "lists"]),
]


@pytest.mark.has_long_form
@pytest.mark.parametrize(
    ("command", "flag", "short", "long", "counted"), CAMPAIGNS, ids=[c[0] for c in CAMPAIGNS]
)
def test_nothing_fails(run_campaign, request, command, flag, short, long, counted):
    name, *options = command.split()
    if name == "io_errors.py" and not (sys.platform == "linux" and shutil.which("cc")):
        pytest.skip("io_errors.c takes over the system calls of Linux, and needs a C compiler, as `cc`")
    if name in ("kill_bucket.py", "bad_network.py"):
        options += ["--port", str(request.getfixturevalue("object_server")("moto").port)]
    number = by_length(short, long)
    counts = run_campaign(name, *options, flag, str(number))
    for what in counted:
        assert counts[what] == number if flag != "--seconds" else counts[what] > 0, what


@pytest.mark.has_long_form
@pytest.mark.parametrize("options", [[], ["--lists"]], ids=["texts", "lists"])
def test_large_rows_are_read_everywhere(run_campaign, options):
    run_campaign("large_rows.py", "--rows", by_length("20", "40"), "--bytes", "1000000", *options)


def test_a_count_is_the_whole_number():
    assert counts_in("8 kills, 10 failures.") == {"kills": 8, "failures": 10}
    assert counts_in("of seed 11, 1,000 failures\n0 failures") == {"failures": 1000}
    assert counts_in("1.0 failures, 8 kills") == {"kills": 8}
