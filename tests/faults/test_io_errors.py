"""The short form of the campaign in io_errors.py."""

import shutil
import sys

import pytest

from tests.helpers.length import by_length


@pytest.mark.has_long_form
@pytest.mark.parametrize("workload", [(), ("--lists",)], ids=["rows", "lists"])
@pytest.mark.skipif(sys.platform != "linux", reason="the calls are taken over as on Linux")
@pytest.mark.skipif(not shutil.which("cc"), reason="io_errors.c needs a C compiler, as `cc`")
def test_any_system_call_may_fail(run_campaign, workload):
    faults = by_length(3 if workload else 8, 30)
    counts = run_campaign("io_errors.py", *workload, "--faults", str(faults), "--seed", "11")
    assert counts["faults"] == faults
