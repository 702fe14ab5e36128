"""The functionality matrix of docs/reference/feast.md names tests that exist."""

import ast
import re
from pathlib import Path

from tests.helpers.cases import for_each

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "feast.md").read_text()
LINES = [
    line
    for line in PAGE[: PAGE.index("\n## Services with `precompute_online`")].splitlines()
    if line.startswith("| ") and line.count("|") == 4 and not line.startswith("| |")
]
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in LINES]


def _names(tree: ast.AST) -> dict[str, ast.AST]:
    """The tests and classes of tests that a module or class has."""
    return {
        node.name: node
        for node in ast.iter_child_nodes(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }


def test_the_matrix_has_all_rows_of_feasts_own():
    assert len(ROWS) >= 16
    assert len({name for name, _, _ in ROWS}) == len(ROWS)


@for_each(("row", "answer", "tests"), ROWS)
def test_what_is_claimed_is_tested(row, answer, tests):
    named = re.findall(r"`([^`]+)`", tests)
    assert bool(named) == (answer != "no"), f"{row}: {answer!r}, shown by {tests!r}"
    for test in named:
        file, *parts = test.split("::")
        node: ast.AST = ast.parse((ROOT / "tests" / "feast" / file).read_text())
        for part in parts:
            assert part in _names(node), f"{row}: there is no {test}"
            node = _names(node)[part]
