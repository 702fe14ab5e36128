"""What `.ci/check-docs` finds in pages, and that it passes over what is right."""

import ast
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci/check-docs"
PACKAGE = Path(__file__).parents[2] / "feast_sketch_store"

pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="an sdist has no .ci")

RIGHT = """# Words

See [the second](docs/other.md#the-word-again-1), [this](#words) and `docs/other.md`, and
[a web page](https://example.org/none).

```
[no link](none.md)
```
"""
OTHER = "# `The` word, again\n\n# The word again\n"


def check(folder, page):
    (folder / "docs").mkdir()
    (folder / "docs/other.md").write_text(OTHER)
    (folder / "README.md").write_text(page)
    done = subprocess.run([sys.executable, SCRIPT, folder], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_right_links_pass(tmp_path):
    pytest.importorskip("codespell_lib")
    assert check(tmp_path, RIGHT) == (0, "2 pages, 0 wrong links\n")


@pytest.mark.slow
def test_a_manifest_that_kubernetes_would_refuse_fails(tmp_path):
    pytest.importorskip("codespell_lib")
    pytest.importorskip("kubernetes_validate")
    (tmp_path / "docs" / "kubernetes").mkdir(parents=True)
    right = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n"
    (tmp_path / "docs/kubernetes/x.yaml").write_text(f"{right}---\n{right}data: [no, mapping]\n")
    (tmp_path / "README.md").write_text("# Words\n")
    done = subprocess.run([sys.executable, SCRIPT, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    found = [line for line in done.stdout.splitlines() if "document" in line]
    assert [line.split(": ")[:2] for line in found] == [["docs/kubernetes/x.yaml", "document 2"]] * 2


def test_a_misspelt_word_fails(tmp_path):
    pytest.importorskip("codespell_lib")
    misspelt = "reci" + "eve"  # in two parts, because this file is checked, too
    status, said = check(tmp_path, RIGHT + misspelt)
    assert status == 1
    assert f"{misspelt} ==> receive" in said


def test_a_command_or_option_that_does_not_exist_is_found(tmp_path):
    page = tmp_path / "README.md"
    page.write_text(
        "`feast-sketch seal --watch VIEW`, `feast-sketch plan --memory 1MB`,\n"
        "`feast-sketch seal --wach`, `feast-sketch sael`, `feast-sketch seal --help`\n"
    )
    wrong_commands = runpy.run_path(str(SCRIPT))["wrong_commands"]
    assert list(wrong_commands([page], tmp_path)) == [
        "README.md:2: feast-sketch seal has no option --wach",
        "README.md:2: feast-sketch has no command sael",
    ]


@pytest.mark.slow
def test_a_page_that_is_not_as_the_code_prints_it_is_found(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(SCRIPT.parent)
    printed_pages = runpy.run_path(str(SCRIPT))["printed_pages"]
    (tmp_path / "docs/reference").mkdir(parents=True)
    assert not list(printed_pages(tmp_path, True))
    assert not list(printed_pages(tmp_path, False))
    page = tmp_path / "docs/reference/settings.md"
    page.write_text(page.read_text().replace("`data/sketch`", "`data`"))
    (tmp_path / "docs/reference/errors.md").unlink()
    assert [message.partition(":")[0] for message in printed_pages(tmp_path, False)] == [
        "docs/reference/settings.md",
        "docs/reference/errors.md",
    ]


def test_a_link_that_leads_nowhere_fails(tmp_path):
    wrong = {
        "[x](none.md)": "none.md does not exist",
        "[x](#none)": "#none has no such heading",
        "![x](docs/none.svg)": "docs/none.svg does not exist",
        "see `tests/unit/test_none.py::test_x`": "tests/unit/test_none.py does not exist",
        "[x\ny](docs/other.md#none)": "docs/other.md#none has no such heading",
    }
    status, said = check(tmp_path, "\n".join(["# Words", *wrong, ""]))
    assert status == 1
    messages = {f"README.md:{line}: {what}" for line, what in enumerate(wrong.values(), 2)}
    assert messages <= {*said.splitlines()}


def test_public_methods_have_a_docstring_or_inherit_one():
    """`ruff` knows no base classes, so it would ask an override for a docstring that says the same."""
    nodes = [node for path in PACKAGE.rglob("*.py") for node in ast.walk(ast.parse(path.read_text("utf-8")))]
    owners = [node for node in nodes if isinstance(node, ast.ClassDef)]
    classes = {owner.name: owner for owner in owners}

    def is_told(owner, name):
        own = (each for each in owner.body if getattr(each, "name", "") == name)
        bases = (classes.get(ast.unparse(base).split("[")[0].split(".")[-1]) for base in owner.bases)
        return any(map(ast.get_docstring, own)) or any(is_told(base, name) for base in bases if base)

    assert len(owners) > 200
    for owner in owners:
        methods = {
            each.name for each in owner.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        for name in () if owner.name.startswith("_") else sorted(methods):
            assert name.startswith("_") or is_told(owner, name), f"{owner.name}.{name} has no docstring"
