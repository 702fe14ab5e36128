"""Benchmarks are no tests, but they begin: their imports are there, and they take what `run.py` gives."""

import json
import sys
from pathlib import Path

import pytest

from tests.helpers.processes import run_command

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
# Of the dependency group `benchmark`, which is not installed where tests run.
OTHERS = {"rbloom", "fastbloom_rs", "pyfusefilter", "xxhash", "pyroaring", "lmdb", "hiredis"}
SIGNATURES = f"""
import json, sys
from importlib import import_module
from inspect import signature
sys.path.insert(0, {str(BENCHMARKS)!r})
import run
found = {{}}
for name in run.BENCHMARKS:
    try:
        found[name] = list(signature(import_module(name).run).parameters)
    except ModuleNotFoundError as error:
        found[name] = error.name
print(json.dumps(found))
"""


@pytest.mark.slow
def test_every_benchmark_begins():
    done = run_command([sys.executable, "-W", "ignore", "-c", SIGNATURES])
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    begun = {name for name, what in found.items() if what in (["quick"], ["quick", "long"])}
    assert {found[name] for name in found.keys() - begun} <= OTHERS, found
    assert len(begun) > 15
