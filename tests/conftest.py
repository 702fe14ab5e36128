"""Fixtures for all tests: values of every type that Feast can carry; and what all tests have in common.

tests/README.md, "What is replaced", says what this file and helpers put in the place of plain tools, and why.
"""

import gc
import os
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis.strategies import none

from tests.helpers.examples import fix_examples
from tests.helpers.length import IS_LONG, VARIABLE
from tests.helpers.processes import METRICS_FOLDERS
from tests.helpers.salts import SALTS, fix_salts

# Processes run tests beside each other, and matrices are small: threads of BLAS would only wait, busily.
# They are counted when NumPy is imported.
for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

# Feast takes a folder of metrics from the environment, or makes one: processes that run tests beside each
# other would share that of the process which started them.
if "PYTEST_XDIST_WORKER" in os.environ:
    for _variable in METRICS_FOLDERS:
        os.environ.pop(_variable, None)

# In the short form `tmp_path` is in memory where there is room: syncs cost nothing there, and on a disk a
# quarter of the processor time of a test that writes. Storage, campaigns and the long form stay on the disk.
_IN_MEMORY, _ROOM_BYTES = Path("/dev/shm"), 4 << 30

# Folders whose tests are slow, all of them; elsewhere files and tests have the mark.
_TESTS = Path(__file__).parent
_SLOW = {_TESTS / name for name in ("engines", "faults", "properties", "statistics")}


def _has_room() -> bool:
    if IS_LONG or not os.access(_IN_MEMORY, os.R_OK | os.W_OK | os.X_OK):
        return False
    system = os.statvfs(_IN_MEMORY)
    return system.f_bavail * system.f_frsize >= _ROOM_BYTES and not system.f_flag & os.ST_NOEXEC


if _has_room():
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_IN_MEMORY))

fix_examples()
gc.set_threshold(20_000)  # the default of one collection after 700 new objects takes a tenth of a run


def pytest_collection_finish():
    fix_salts()
    # At its first example, Hypothesis looks for what refers to its random numbers. It finds nothing frozen.
    given(none())(lambda _: None)()
    # Modules and tests stay until the end. A collection that looks at them takes half a second.
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark what is slow, and begin with it: what is quick fills the time of processes at the end."""
    for item in items:
        if item.path.parent in _SLOW:
            item.add_marker("slow")
    result = yield  # pytest brings together what shares a fixture
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    return result


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


@pytest.fixture(scope="session")
def moto(object_server):
    """The object store of most tests: moto's S3."""
    return object_server("moto")
