"""What other processes do meanwhile: something that happens at a certain call of a function."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def once_before(owner: Any, name: str, action: Callable[[], object]) -> Iterator[None]:
    """Do something before the next call of a function of a class, an object or a module; it has to come."""
    with _at_next_call(owner, name, lambda call: (action(), call())[1]):
        yield


@contextmanager
def once_after(owner: Any, name: str, action: Callable[[], object]) -> Iterator[None]:
    """The same after the call, before the caller has its result."""
    with _at_next_call(owner, name, lambda call: (call(), action())[0]):
        yield


@contextmanager
def _at_next_call(owner: Any, name: str, once: Callable[[Callable[[], Any]], Any]) -> Iterator[None]:
    real, is_called = getattr(owner, name), False
    with pytest.MonkeyPatch.context() as patch:

        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal is_called
            is_called = True
            patch.undo()
            return once(lambda: real(*arguments, **options))

        patch.setattr(owner, name, call)
        yield
    assert is_called, f"{name} was not called"
