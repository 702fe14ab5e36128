"""Who imports whom: calls go down only, and the parts that must stay pure stay pure."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import feast_sketch_store

PACKAGE = Path(feast_sketch_store.__file__).parent

# From the top to the bottom; a module imports only modules that stand below it.
ORDER = [
    "cli",
    "planning",
    "planning.planner",
    "planning.source",
    "planning.report",
    "planning.labels",
    "planning.choice",
    "planning.curves",
    "planning.sample",
    "planning.plan",
    "maintenance",
    "online_store",
    "responses",
    "training",
    "reader",
    "view",
    "advice",
    "settings",
    "verification",
    "state",
    "sealed",
    "order",
    "newest",
    "row_log",
    "row_log.log",
    "row_log.commit",
    "row_log.data_file",
    "snapshot",
    "snapshot.files",
    "snapshot.format",
    "snapshot.blocks",
    "layers",
    "layers.build",
    "layers.sketch",
    "layers.choice",
    "layers.listed",
    "layers.set_columns",
    "layers.shapes",
    "layers.columns",
    "layers.exact",
    "layers.answer",
    "rows",
    "codecs",
    "binning",
    "vocabulary",
    "entity_keys",
    "filters",
    "filters.shifting_bloom",
    "filters.golomb_sets",
    "filters.fingerprints",
    "filters.packed",
    "kernel",
    "kernel.compiled",
    "kernel.reference",
    "binary",
    "sizing",
    "threads",
    "paths",
    "store_type",
    "errors",
]
MAY_IMPORT_FEAST = {
    "advice",
    "cli",
    "maintenance",
    "online_store",
    "planning.planner",
    "planning.source",
    "responses",
    "settings",
    "rows",
    "codecs",
    "entity_keys",
}
PURE = [
    "filters",
    "filters.shifting_bloom",
    "filters.golomb_sets",
    "filters.fingerprints",
    "filters.packed",
    "kernel.compiled",
    "kernel.reference",
    "binary",
    "binning",
    "planning.choice",
    "planning.curves",
    "planning.plan",
    "planning.report",
    "planning.sample",
    "sizing",
    "snapshot.format",
    "snapshot.blocks",
    "vocabulary",
    "errors",
]
HARMLESS = {
    "collections",
    "concurrent",
    "dataclasses",
    "functools",
    "hashlib",
    "html",
    "importlib",  # for a file of the package itself
    "itertools",
    "json",
    "math",
    "mmh3",
    "numpy",
    "pyarrow",
    "re",
    "secrets",
    "typing",
}
BUILDS_THE_PACKAGE = {"kernel.hatch_build"}  # not installed
READS_FILES = {"pyarrow.parquet", "pyarrow.dataset", "pyarrow.fs", "pyarrow.feather", "pyarrow.ipc"}


def path_of(module):
    path = PACKAGE.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def imports_of(module):
    """Every module that the code names in an import, wherever the import stands."""
    found = set()
    for node in ast.walk(ast.parse(path_of(module).read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def own_imports_of(module):
    """The modules of the package among them, without the package's name."""
    prefix = "feast_sketch_store."
    names = {name.removeprefix(prefix) for name in imports_of(module) if name.startswith(prefix)}
    return names & set(ORDER)


def test_every_module_has_its_place():
    modules = {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")
        for path in PACKAGE.rglob("*.py")
    }
    assert modules - {"__init__"} - BUILDS_THE_PACKAGE == set(ORDER)


@pytest.mark.parametrize("module", ORDER)
def test_calls_go_down_only(module):
    # A folder's own __init__ may gather what lies in it.
    above = ORDER[: ORDER.index(module) + 1]
    assert not own_imports_of(module) & set(above)


@pytest.mark.parametrize("module", ["snapshot.files", "row_log.log", "newest", "order", "rows", "vocabulary"])
def test_storage_does_not_know_the_layers(module):
    assert not {name for name in own_imports_of(module) if name.startswith("layers")}


@pytest.mark.parametrize("module", ["layers.build", "layers.sketch", "layers.exact", "layers.answer"])
def test_layers_do_not_know_the_disk(module):
    assert not own_imports_of(module) & {
        "snapshot",
        "snapshot.files",
        "snapshot.format",
        "row_log",
        "newest",
        "view",
    }


def test_only_the_edges_import_feast():
    importers = {
        module for module in ORDER if any(name.split(".")[0] == "feast" for name in imports_of(module))
    }
    assert importers == MAY_IMPORT_FEAST


@pytest.mark.parametrize("module", PURE)
def test_pure_modules_import_nothing_that_does_input_or_output(module):
    imported = imports_of(module)
    assert {name.split(".")[0] for name in imported} <= HARMLESS | {"feast_sketch_store"}
    assert not imported & READS_FILES
    # The kernel looks at the environment, to choose one of its two forms.
    assert own_imports_of(module) <= {*PURE, "kernel"}


@pytest.mark.parametrize("module", PURE)
def test_pure_modules_open_nothing(module):
    called = {
        node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", None)
        for node in ast.walk(ast.parse(path_of(module).read_text()))
        if isinstance(node, ast.Call)
    }
    assert not called & {
        "open",
        "print",
        "exec",
        "eval",
        "__import__",
        "memmap",
        "fromfile",
        "tofile",
        "save",
        "load",
    }


def test_the_package_itself_costs_nothing_to_import():
    script = (
        "import sys; before = set(sys.modules); import feast_sketch_store, feast_sketch_store.store_type; "
        "print(sorted({name.split('.')[0] for name in set(sys.modules) - before}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(ast.literal_eval(done.stdout))
    assert not loaded & {"feast", "numpy", "pyarrow", "deltalake", "google", "mmh3"}


@pytest.mark.parametrize("name", sorted(set(feast_sketch_store.__all__) - {"__version__"}))
def test_every_public_name_can_be_had(name):
    assert getattr(feast_sketch_store, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Sketch'"):
        _ = feast_sketch_store.Sketch
