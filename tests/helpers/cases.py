"""Many inputs in one test: the report of a failure names the one that it was about."""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

Test = TypeVar("Test", bound=Callable[..., None])


@contextmanager
def case(*what: object) -> Iterator[None]:
    """Adds what is being tried to an exception."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"in the case {', '.join(map(repr, what))}")
        raise


def for_each(names: str | Sequence[str], values: Iterable[Any]) -> Callable[[Test], Test]:
    """Runs a test with each of the values, in one item of pytest; otherwise as ``parametrize`` does.

    For quick inputs, of which there are many. Fixtures are made once for all of them, so they must be such
    that a test does not change. The test ends at the first value that it fails with.
    """
    given = tuple(name.strip() for name in names.split(",")) if isinstance(names, str) else tuple(names)
    inputs = [value if len(given) > 1 else (value,) for value in values]
    assert inputs, "nothing would be tested"

    def decorate(test: Test) -> Test:
        signature = inspect.signature(test)

        @functools.wraps(test)
        def run(*of_class: object, **fixtures: object) -> None:
            for values in inputs:
                with case(*values):
                    test(*of_class, **fixtures, **dict(zip(given, values, strict=True)))

        others = [each for name, each in signature.parameters.items() if name not in given]
        run.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return cast(Test, run)

    return decorate
