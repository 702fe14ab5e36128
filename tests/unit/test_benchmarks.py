"""Benchmarks are no tests, but they begin: their imports are there, and they take what `run.py` gives."""

import json
import sys
from pathlib import Path

import pytest

from tests.benchmarks.pages import written_by
from tests.helpers.cases import for_each
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


RULES = f"""
import json, sys
sys.path.insert(0, {str(BENCHMARKS)!r})
import rules
print(json.dumps([[rule.page, rule.sentence] for rule in rules.RULES]))
"""


@pytest.mark.slow
def test_rules_that_are_measured_are_those_of_the_pages():
    pytest.importorskip("scipy")
    done = run_command([sys.executable, "-W", "ignore", "-c", RULES])
    assert done.returncode == 0, done.stderr
    for page, sentence in json.loads(done.stdout.splitlines()[-1]):
        text = " ".join((BENCHMARKS.parents[1] / page).read_text().replace("**", "").split())
        assert sentence in text, f"{page} says no longer: {sentence}"
        assert "python tests/benchmarks/run.py rules" in text, page


PAGE = """# Results

## reads

Tables of 2026-01-01, commit abcdef0.

What it does.

5 users; Python 3.11.7, numpy 2.4.6.

| a |
| - |
| 1 |

What the table says.

| b |
| - |
| 2 |

## writes

| c |
| - |
| 3 |
"""


def test_a_page_gets_the_tables_of_a_benchmark():
    source = "Tables of 2026-02-02, commit 1234567."
    page = written_by(PAGE, "reads", ["6 users; Python 3.12.1.", "| a |\n| - |\n| 9 |"], source)
    wanted = PAGE.replace("2026-01-01, commit abcdef0", "2026-02-02, commit 1234567")
    wanted = wanted.replace("5 users; Python 3.11.7, numpy 2.4.6.", "6 users; Python 3.12.1.")
    assert page == wanted.replace("| 1 |", "| 9 |").replace("\n\n| b |\n| - |\n| 2 |", "")
    assert written_by(page, "reads", ["6 users; Python 3.12.1.", "| a |\n| - |\n| 9 |"], source) == page


@for_each("name", ["nothing", "Results", "read"])
def test_a_page_without_the_section_stays(name):
    with pytest.raises(ValueError, match="no section"):
        written_by(PAGE, name, ["| a |"], "Tables of")
