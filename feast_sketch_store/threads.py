"""Work on all cores."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

S = TypeVar("S")
T = TypeVar("T")

NUM_THREADS = min(os.cpu_count() or 1, 8)  # each has batches in memory


def in_threads(work: Callable[[S], T], inputs: Iterable[S]) -> Iterator[T]:
    """Map a function over inputs, in order, with one thread per core, up to 8.

    Inputs are taken as needed. At most two pending results are kept per thread.
    """
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        pending: deque[Future[T]] = deque()
        for item in inputs:
            pending.append(pool.submit(work, item))
            if len(pending) >= 2 * NUM_THREADS:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
