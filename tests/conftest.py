"""Fixtures for all tests: values of every type that Feast can carry."""

from contextlib import ExitStack

import pytest

# The helpers import Feast, which takes seconds. The process that hands tests to others loads this file and
# needs none of them.


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
