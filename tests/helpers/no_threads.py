"""A process that can start no more threads, as in a container that has as many as it may have."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_STACK_BYTES = 1 << 60  # no process can address as much


@contextmanager
def no_new_threads() -> Iterator[None]:
    """Meanwhile the system refuses to start a thread."""
    before = threading.stack_size(_STACK_BYTES)
    try:
        yield
    finally:
        threading.stack_size(before)
