"""Who imports whom: calls go down only, and the parts that must stay pure stay pure."""

import ast
import functools
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import feast_sketch_store

PACKAGE = Path(feast_sketch_store.__file__).parent

# The rooms of the package from the top to the bottom; a room's modules import only rooms below it.
ROOMS = [
    "cli",
    "serve",
    "bridges",
    "planning",
    "operations",
    "engines",
    "lists",
    "online_store",
    "adapter",
    "reading",
    "view",
    "settings",
    "row_log",
    "snapshot",
    "layers",
    "structures",
    "rows",
    "succinct",
    "kernel",
    "storage",
    "metrics",
    "threads",
    "store_type",
    "errors",
]
MAY_IMPORT_FEAST = {
    "adapter.advice",
    "adapter.backing",
    "adapter.options",
    "adapter.planned",
    "adapter.plans",
    "adapter.precomputed",
    "adapter.responses",
    "bridges.base",
    "bridges.bigtable",
    "bridges.cassandra",
    "bridges.datastore",
    "bridges.exporting",
    "bridges.hashed_keys",
    "bridges.hbase",
    "bridges.importing",
    "bridges.redis",
    "bridges.sql",
    "bridges.survey",
    "cli.common",
    "cli.group",
    "cli.other_stores",
    "cli.planning",
    "cli.reports",
    "cli.rows",
    "cli.serving",
    "cli.upkeep",
    "engines.job",
    "engines.ray_engine",
    "engines.seal_job",
    "engines.seal_tasks",
    "engines.spark_engine",
    "engines.tasks",
    "lists",
    "online_store",
    "operations.backing",
    "operations.health",
    "operations.maintenance",
    "operations.resharding",
    "planning.planner",
    "planning.source",
    "rows.arrow_rows",
    "rows.codecs",
    "rows.encoding",
    "rows.entity_keys",
    "serve.answers",
    "serve.app",
    "serve.security",
    "serve.server",
    "settings.codecs",
    "settings.resolve",
}
# Modules that neither read nor write files, nor import anything that does.
PURE_ROOMS = ["succinct", "kernel"]
PURE = [
    "errors",
    "planning.plan",
    "planning.report",
    "planning.sample",
    "planning.stored_rows",
    "rows.binning",
    "rows.csr",
    "rows.packed_values",
    "rows.vocabulary",
    "snapshot.blocks",
    "snapshot.format",
    "snapshot.manifest",
    "storage.chunks",
    "structures.goals",
    "structures.sizing",
]
HARMLESS = {
    "bisect",
    "collections",
    "concurrent",
    "dataclasses",
    "functools",
    "hashlib",
    "heapq",
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
    "types",
    "typing",
    "zlib",  # for a checksum
}
# What sees a view's files through a `Storage` only.
NO_PATHS = ["operations", "planning.source", "snapshot", "view.state", "view.view"]
KNOWS_PATHS = {"fcntl", "glob", "io", "mmap", "pathlib", "shutil", "tempfile"}
READS_FILES = {"pyarrow.parquet", "pyarrow.dataset", "pyarrow.fs", "pyarrow.feather", "pyarrow.ipc"}


MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.parent != PACKAGE or path.stem != "__init__"
}
del MODULES["kernel.hatch_build"]  # builds the package, and is not installed
PURE += [m for m in MODULES if m.partition(".")[0] in PURE_ROOMS and m != "kernel"]


def room_of(module):
    return module.partition(".")[0]


@functools.cache
def imports_of(module):
    """Every module that the code names in an import, wherever the import stands."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
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
    return names & set(MODULES)


def test_every_module_is_in_a_room():
    assert {room_of(module) for module in MODULES} == set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_rooms_below_it(room):
    allowed = set(ROOMS[ROOMS.index(room) :])
    for module in MODULES:
        if room_of(module) == room:
            assert {room_of(name) for name in own_imports_of(module)} <= allowed, module


def test_no_modules_import_each_other_in_a_circle():
    # An __init__ may gather what lies in its room, whose modules do not import it.
    sorter = TopologicalSorter({module: own_imports_of(module) - {room_of(module)} for module in MODULES})
    sorter.prepare()  # raises CycleError


@pytest.mark.parametrize("room", ["layers", "structures", "rows"])
def test_layers_do_not_know_the_disk(room):
    for module in MODULES:
        if room_of(module) == room:
            assert not {room_of(name) for name in own_imports_of(module)} & {"storage", "snapshot", "row_log"}


@pytest.mark.parametrize("module", [m for m in MODULES if m in NO_PATHS or room_of(m) in NO_PATHS])
def test_views_know_storages_and_no_paths(module):
    assert not {name.split(".")[0] for name in imports_of(module)} & KNOWS_PATHS


def test_only_the_edges_import_feast():
    importers = {
        module for module in MODULES if any(name.split(".")[0] == "feast" for name in imports_of(module))
    }
    assert importers == MAY_IMPORT_FEAST


@pytest.mark.parametrize("module", PURE)
def test_pure_modules_import_nothing_that_does_input_or_output(module):
    imported = imports_of(module)
    assert {name.split(".")[0] for name in imported} <= HARMLESS | {"feast_sketch_store"}
    assert not imported & READS_FILES
    # The kernel looks at the environment, to choose one of its two forms.
    assert own_imports_of(module) <= {*PURE, *PURE_ROOMS, "threads"}


@pytest.mark.parametrize("module", PURE)
def test_pure_modules_open_nothing(module):
    called = {
        node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", None)
        for node in ast.walk(ast.parse(MODULES[module].read_text()))
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


def test_the_command_line_needs_no_extra():
    script = """
import sys
for name in "obstore sklearn pyspark ray redis psycopg pymysql boto3 cassandra happybase".split():
    sys.modules[name] = None  # an import of it fails
from feast_sketch_store.cli import cli
cli(["check-bucket", "s3://bucket"])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "Error: a path on an object store needs the package obstore; install feast_sketch_store[object-store]"
    ]


@pytest.mark.parametrize("name", sorted(set(feast_sketch_store.__all__) - {"__version__"}))
def test_every_public_name_can_be_had(name):
    assert getattr(feast_sketch_store, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Sketch'"):
        _ = feast_sketch_store.Sketch
