"""The short form of the campaign in io_errors.py."""

import shutil
import sys

import pytest


@pytest.mark.skipif(sys.platform != "linux", reason="the calls are taken over as on Linux")
@pytest.mark.skipif(not shutil.which("cc"), reason="io_errors.c needs a C compiler, as `cc`")
def test_any_system_call_may_fail(run_campaign):
    printed = run_campaign("io_errors.py", "--faults", "30", "--seed", "11")
    assert "30 faults" in printed
    assert " 0 failures" in printed
