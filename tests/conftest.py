"""Fixtures for all tests: values of every type that Feast can carry."""

import compileall
import gc
import os
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.helpers.examples import fix_examples, take_an_example
from tests.helpers.length import IS_LONG, VARIABLE
from tests.helpers.order import in_shares
from tests.helpers.salts import SALTS, fix_salts

# Processes run tests beside each other, and matrices are small: threads of BLAS would only wait, busily.
# They are counted when NumPy is imported.
for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

# In the short form `tmp_path` is in memory where there is room: syncs cost nothing there, and on a disk a
# quarter of the processor time of a test that writes. Storage, campaigns and the long form stay on the disk.
_IN_MEMORY, _ROOM_BYTES = Path("/dev/shm"), 4 << 30


_PACKAGE = Path(__file__).parents[1] / "feast_sketch_store"

# pytest rewrites the assertions of each file that it imports, a third of what it takes to collect, and keeps
# the result as byte code. Processes that run beside each other collect at once: each begins at other files
# and finds those of the others done.
_NUM_PROCESSES = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_NUMBER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
if _NUM_PROCESSES > 1:
    sys.dont_write_bytecode = False


def _has_room() -> bool:
    if IS_LONG or not os.access(_IN_MEMORY, os.R_OK | os.W_OK | os.X_OK):
        return False
    system = os.statvfs(_IN_MEMORY)
    return system.f_bavail * system.f_frsize >= _ROOM_BYTES and not system.f_flag & os.ST_NOEXEC


if _has_room():
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_IN_MEMORY))

fix_examples()

# Modules and tests stay until the end: collections of garbage, each of which would go over all of them, leave
# them out. The default of one after 700 new objects takes a tenth of a run.
gc.disable()
_OBJECTS_PER_COLLECTION = 20_000


def pytest_configure(config):
    # pip compiles what it installs, but no editable package: each of the processes that tests start would
    # compile 150 modules anew, where Python writes no byte code itself.
    if not hasattr(config, "workerinput"):
        compileall.compile_dir(_PACKAGE, quiet=2)


def pytest_collection_finish():
    take_an_example()  # before Hypothesis would not find who refers to its sources of chance
    gc.freeze()
    gc.set_threshold(_OBJECTS_PER_COLLECTION)
    gc.enable()
    fix_salts()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    with SALTS.named(item.nodeid):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef, request):
    if fixturedef.scope == "function":
        return (yield)
    with SALTS.named(f"{fixturedef.baseid} {request.fixturename} {request.param_index}"):
        return (yield)


def pytest_report_header():
    if IS_LONG:
        return f"{VARIABLE}=long: tests of two lengths take the long one"
    return f"short form: {VARIABLE}=long pytest -m has_long_form runs in full what is shortened here"


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    if _NUM_PROCESSES > 1 and isinstance(collector, pytest.Directory) and report.passed:
        first = len(report.result) * _NUMBER // _NUM_PROCESSES
        report.result = report.result[first:] + report.result[:first]
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items):
    if _NUM_PROCESSES > 1:
        items.sort(key=lambda item: item.path)  # each process has them in the order of all
    result = yield  # pytest brings together what shares a fixture
    if _NUM_PROCESSES > 1:
        items[:] = in_shares(items, _NUM_PROCESSES)
    return result


# The other helpers import Feast, which takes seconds. The process that hands tests to others loads this file
# and needs none of them.


@pytest.fixture(scope="session")
def elements_of():
    """Gives the elements of a codec's type that are easily lost or mistaken for another."""
    from tests.helpers.values import elements_of

    return elements_of


@pytest.fixture(scope="session")
def make_value():
    """Makes a ``Value`` with the content in the field; a list is put into its ``val``."""
    from tests.helpers.values import make_value

    return make_value


@pytest.fixture(scope="session")
def exact():
    """Gives what tells an element from all others: NaN equals itself, and -0.0 differs from 0.0."""
    from tests.helpers.values import exact

    return exact


@pytest.fixture(scope="session")
def object_server():
    """Gives an object store of a name that runs, or skips the test; a bucket of it is new."""
    from tests.helpers import object_servers

    with ExitStack() as running:
        started = {}

        def server(name):
            if name not in started:
                started[name] = running.enter_context(object_servers.start(name))
            return started[name]

        yield server
