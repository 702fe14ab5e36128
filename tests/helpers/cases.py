"""Many inputs in one test: the report of a failure names the one that it was about."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def case(*what: object) -> Iterator[None]:
    """Adds what is being tried to an exception."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"in the case {', '.join(map(repr, what))}")
        raise
