"""What imports do and cost. Who may import whom is in the contracts of pyproject.toml, for `lint-imports`."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import feast_sketch_store
from tests.helpers.cases import case
from tests.helpers.processes import run_as_user

PACKAGE = Path(feast_sketch_store.__file__).parent
OPENS = {"open", "print", "exec", "eval", "__import__", "memmap", "fromfile", "tofile", "save", "load"}
READS_FILES = {"pyarrow.parquet", "pyarrow.dataset", "pyarrow.fs", "pyarrow.feather", "pyarrow.ipc"}


def pure_modules():
    """The files of the modules and packages that neither read nor write."""
    config = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())
    contracts = config["tool"]["importlinter"]["contracts"]
    (contract,) = (c for c in contracts if c["name"] == "Codes, formats and formulas neither read nor write")
    for module in contract["source_modules"]:
        path = PACKAGE.parent.joinpath(*module.split("."))
        yield from [path.with_suffix(".py")] if path.with_suffix(".py").exists() else path.glob("*.py")


def test_pure_modules_open_nothing():
    """Names of builtins and of parts of pyarrow, which no contract can hold."""
    paths = {*pure_modules()} - {PACKAGE / "kernel" / "hatch_build.py"}  # builds the package
    assert len(paths) > 20
    for path in paths:
        with case(path):
            nodes = [*ast.walk(ast.parse(path.read_text()))]
            functions = [node.func for node in nodes if isinstance(node, ast.Call)]
            called = {f.id if isinstance(f, ast.Name) else getattr(f, "attr", None) for f in functions}
            assert not called & OPENS
            imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
            for node in nodes:
                if isinstance(node, ast.ImportFrom):
                    imported |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            assert not imported & READS_FILES


def test_the_package_itself_costs_nothing_to_import():
    script = (
        "import sys; before = set(sys.modules); import feast_sketch_store, feast_sketch_store.store_type; "
        "print(sorted({name.split('.')[0] for name in set(sys.modules) - before}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(ast.literal_eval(done.stdout))
    assert not loaded & {"feast", "numpy", "pyarrow", "deltalake", "google", "mmh3"}


@pytest.mark.slow
@pytest.mark.has_long_form
def test_the_command_line_needs_no_extra():
    script = """
import sys
for name in [name for name in sys.modules if name.startswith("feast_sketch_store.")]:
    del sys.modules[name]  # of a process that has imported Feast
extras = "obstore scipy threadpoolctl sklearn pyspark ray redis psycopg pymysql boto3 cassandra happybase"
for name in extras.split():
    sys.modules[name] = None  # an import of it fails
from feast_sketch_store.cli import cli
cli(["check-bucket", "s3://bucket"])
"""
    done = run_as_user([sys.executable, "-c", script])
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "Error: a path on an object store needs the package obstore: `pip install obstore`"
    ]


def test_every_public_name_can_be_had():
    for name in set(feast_sketch_store.__all__) - {"__version__"}:
        assert getattr(feast_sketch_store, name).__name__ == name


def test_type_checkers_find_every_public_name():
    stub = ast.parse((PACKAGE / "__init__.pyi").read_text())
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    found = {name.asname: node.module for node in imports for name in node.names}
    assert found == feast_sketch_store._EXPORTS


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Sketch'"):
        _ = feast_sketch_store.Sketch
