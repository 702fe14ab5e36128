"""Work on all cores."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

S = TypeVar("S")
T = TypeVar("T")

NUM_THREADS = min(os.cpu_count() or 1, 8)  # each has batches in memory


class Threads(ThreadPoolExecutor):
    """A pool of threads that also works while the interpreter ends: the caller then does the work.

    At its end, Python waits for a seal in the background, but its executors accept no more work.
    """

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> "Future[T]":
        """Call a function in a thread, see `Executor.submit`."""
        try:
            return super().submit(fn, *args, **kwargs)
        except RuntimeError as error:
            if "interpreter shutdown" not in str(error):
                raise
        done: Future[T] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


def in_threads(work: Callable[[S], T], inputs: Iterable[S]) -> Iterator[T]:
    """Map a function over inputs, in order, with one thread per core, up to 8.

    Inputs are taken as needed. At most two pending results are kept per thread.
    """
    with Threads(NUM_THREADS) as pool:
        pending: deque[Future[T]] = deque()
        for item in inputs:
            pending.append(pool.submit(work, item))
            if len(pending) >= 2 * NUM_THREADS:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
