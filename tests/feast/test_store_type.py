"""`type: sketch` resolves without an import of the package, in every way it can be installed."""

import itertools
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from feast.infra.online_stores.helpers import get_online_store_from_config
from feast.repo_config import get_online_config_from_type

import feast_sketch_store
from feast_sketch_store.kernel import _compiled
from feast_sketch_store.online_store import SketchOnlineStore
from tests.helpers.cases import for_each
from tests.helpers.length import by_length
from tests.helpers.processes import BARE_FEAST, UNCHECKED_FEAST

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SPELLINGS = [
    "sketch",
    "feast_sketch_store.SketchOnlineStore",
    "feast_sketch_store.online_store.SketchOnlineStore",
]
RESOLVE = (
    "import sys\n"
    "from feast.repo_config import get_online_config_from_type\n"
    "assert 'feast_sketch_store.online_store' not in sys.modules\n"
    "print(get_online_config_from_type('sketch').__name__)\n"
)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_resolves_to_the_store(make_config, spelling):
    config = get_online_config_from_type(spelling)(type=spelling)
    assert isinstance(get_online_store_from_config(config), SketchOnlineStore)
    assert make_config(type=spelling).online_store.type == spelling


def _run(python, *arguments, **options):
    return subprocess.run(
        [python, *arguments], capture_output=True, text=True, check=False, cwd="/", **options
    )


def _imported_by_start(python) -> set[str]:
    """The modules that an interpreter imports before it runs anything."""
    done = _run(python, "-X", "importtime", "-c", "pass")
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}


def test_this_interpreter_resolves_the_name_untouched():
    """It looks at the table of names; an interpreter of a wheel resolves the name below."""
    look = f"{BARE_FEAST}import feast.repo_config as r; print(r.ONLINE_STORE_CLASS_FOR_TYPE['sketch'])"
    done = _run(sys.executable, "-c", look)
    assert done.stdout.strip() == "feast_sketch_store.online_store.SketchOnlineStore", done.stderr


def test_a_start_without_feast_imports_two_small_modules():
    ours = {name for name in _imported_by_start(sys.executable) if name.startswith("feast")}
    assert ours == {"feast_sketch_store", "feast_sketch_store.store_type"}


def test_the_class_path_needs_no_hook():
    """It finds the module of the class without importing it."""
    code = (
        f"import sys; sys.path += [{sysconfig.get_path('purelib')!r}, {str(ROOT)!r}]\n"
        f"{BARE_FEAST}"
        "from feast.repo_config import get_online_config_from_type\n"
        "print([f for f in sys.meta_path if getattr(f, '__module__', '').startswith('feast')])\n"
        "path = 'feast_sketch_store.online_store.SketchOnlineStore'\n"
        "print(importlib.util.find_spec(path.rpartition('.')[0]).name)\n"
    )
    done = _run(sys.executable, "-S", "-c", code)
    assert done.stdout.split() == ["[]", "feast_sketch_store.online_store"], done.stderr


def test_registering_twice_changes_nothing():
    code = (
        f"{BARE_FEAST}"
        "from feast_sketch_store import store_type as s; before = list(sys.meta_path)\n"
        "s.register(); assert sys.meta_path == before\n"
        "import feast.repo_config as r; s.register()\n"
        "assert r.ONLINE_STORE_CLASS_FOR_TYPE['sketch'].startswith('feast_sketch_store')\n"
        "assert type(r.__loader__).__name__ == 'SourceFileLoader' == type(r.__spec__.loader).__name__\n"
        "import inspect; assert 'class RepoConfig' in inspect.getsource(r)\n"
    )
    done = _run(sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr


def test_it_never_replaces_a_name_that_feast_has():
    code = (
        "import feast_sketch_store.store_type as s, types\n"
        "m = types.SimpleNamespace(ONLINE_STORE_CLASS_FOR_TYPE={'sketch': 'theirs'}); s._add_name(m)\n"
        "assert m.ONLINE_STORE_CLASS_FOR_TYPE == {'sketch': 'theirs'}; s._add_name(types.SimpleNamespace())\n"
    )
    done = _run(sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """A wheel of a copy of the source tree, for which the kernel that is here is not compiled again."""
    source = tmp_path_factory.mktemp("source") / "tree"
    source.mkdir()
    for name in ("feast_sketch_store", "pyproject.toml", "README.md", "LICENSE"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    target, compiler = source.parent / "wheel", source.parent / "compiler"
    compiler.write_text(f'#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\ncp "{_compiled.__file__}" "$2"\n')
    compiler.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", target],
        cwd=source,
        env={**os.environ, "CC": str(compiler)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return next(target.glob("*.whl"))


@pytest.mark.has_long_form
def test_the_wheel_holds_the_start_up_file_at_its_top(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert "feast_sketch_store.pth" in names
    assert "feast_sketch_store/py.typed" in names
    assert "feast_sketch_store/planning/report.html" in names
    assert not [n for n in names if n.startswith(("tests", "docs", "feature_repo_example"))]
    assert feast_sketch_store.__version__ in wheel.name


@pytest.mark.has_long_form
def test_installed_from_a_wheel_and_uninstalled_again(wheel, tmp_path):
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    site = next(environment.glob("lib/python*/site-packages"))
    # Feast and the rest come from this environment; .pth files of that folder are not run again.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    before = sorted(os.listdir(site))

    pip = [sys.executable, "-m", "pip", "--python", str(python)]
    compiles = by_length(["--no-compile"], [])
    subprocess.run([*pip, "install", "-q", "--no-deps", "--no-index", *compiles, wheel], check=True)
    done = _run(python, "-c", by_length(UNCHECKED_FEAST, "") + RESOLVE)
    assert done.stdout.strip() == "SketchOnlineStoreConfig", done.stderr
    assert _run(python, "-S", "-c", "pass").stderr == ""

    subprocess.run([*pip, "uninstall", "-q", "-y", "feast_sketch_store"], check=True)
    assert sorted(os.listdir(site)) == before
    done = _run(python, "-c", "print('fine')")
    assert (done.stdout, done.stderr) == ("fine\n", "")

    # A start-up file that outlives its package stays silent.
    (site / "dependencies.pth").unlink()
    shutil.copy(ROOT / "feast_sketch_store" / "feast_sketch_store.pth", site)
    done = _run(python, "-c", "print('fine')")
    assert (done.stdout, done.stderr) == ("fine\n", "")


@pytest.fixture(scope="module")
def bare_environment(tmp_path_factory) -> tuple[str, Path]:
    """An environment with nothing but a copy of the package's own files: its Python, and site-packages."""
    environment = tmp_path_factory.mktemp("bare") / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    site = next(environment.glob("lib/python*/site-packages"))
    package = ROOT / "feast_sketch_store"
    shutil.copy(package / "feast_sketch_store.pth", site)
    (site / "feast_sketch_store").mkdir()
    for name in ("__init__.py", "store_type.py", "errors.py"):
        shutil.copy(package / name, site / "feast_sketch_store")
    return str(environment / "bin" / "python"), site / "feast_sketch_store"


@pytest.fixture
def damaged(bare_environment):
    """Gives the environment, whose package is put back afterwards."""
    python, package = bare_environment
    kept = package.with_name("kept")
    shutil.copytree(package, kept)
    yield python, package
    shutil.rmtree(package)
    kept.rename(package)


REGISTERED = "import sys; print([f.__name__ for f in sys.meta_path if f.__module__.startswith('feast')])"


def _is_quiet(python) -> bool:
    done = _run(python, "-c", "print('fine')")
    return (done.returncode, done.stdout, done.stderr) == (0, "fine\n", "")


def test_the_bare_environment_has_the_hook(bare_environment):
    assert _run(bare_environment[0], "-c", REGISTERED).stdout == "['_Finder']\n"


# At the end of every line, and within some.
SOURCE = (ROOT / "feast_sketch_store" / "store_type.py").read_bytes()
ENDS = [place for place, byte in enumerate(SOURCE) if byte == ord("\n")]
LENGTHS = sorted({0, 1, len(SOURCE) - 1, *ENDS[::4], *(place + 9 for place in ENDS[2::5]), *ENDS[-6:]})


@for_each("length", LENGTHS)
def test_a_truncated_hook_is_silent(damaged, length):
    python, package = damaged
    (package / "store_type.py").write_bytes(SOURCE[:length])
    assert _is_quiet(python)


CONTENTS = [  # of different lengths: byte code of another one of the same second would be taken for its own
    b"\x00" * 100,
    b"\xff\xfe\xfa",
    b"(" * 10_000,
    b"raise RuntimeError('damaged')",
    b"1 / 0",
    b"register = None",
    b"def register(): raise OSError('damaged')",
    b"import sys; sys.exit('damaged')",
    b"import a_module_that_is_not_there",
]


@for_each("module, content", itertools.product(["store_type", "__init__"], CONTENTS))
def test_a_hook_of_any_content_is_silent(damaged, module, content):
    python, package = damaged
    path = package / f"{module}.py"
    sound = path.read_bytes()
    path.write_bytes(content)
    assert _is_quiet(python)
    path.write_bytes(sound)


def test_a_hook_that_cannot_be_read_is_silent(damaged):
    python, package = damaged
    hook = package / "store_type.py"
    hook.unlink()
    hook.mkdir()
    assert _is_quiet(python)
    hook.rmdir()
    hook.symlink_to(hook)  # too many links: an OSError, whoever runs the tests
    assert _is_quiet(python)


def test_a_damaged_bytecode_file_is_silent(damaged):
    python, package = damaged
    assert _run(python, "-m", "compileall", "-q", package).returncode == 0
    (bytecode,) = (package / "__pycache__").glob("store_type.*.pyc")
    size = bytecode.stat().st_size
    for length in (size - 1, size // 2, 17, 16, 5, 0):
        os.truncate(bytecode, length)
        assert _is_quiet(python)


def test_a_package_without_its_hook_is_silent(damaged):
    python, package = damaged
    shutil.rmtree(package)
    assert _is_quiet(python)
    package.mkdir()
    assert _is_quiet(python)
    package.rmdir()
    package.write_text("no folder")
    assert _is_quiet(python)
    package.unlink()
    package.mkdir()  # for what puts it back


def test_what_else_the_site_has_is_run_after_a_damaged_hook(damaged):
    python, package = damaged
    (package / "store_type.py").write_bytes(b"1 / 0")
    after = package.with_name("zz.pth")
    after.write_text("import sys; sys.was_run = True\n")
    assert _run(python, "-c", "import sys; print(sys.was_run)").stdout == "True\n"
    after.unlink()
