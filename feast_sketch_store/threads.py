"""Work on all cores, or at a priority below that of reads and on all cores but one."""

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import chain, islice
from typing import Any, TypeVar

S = TypeVar("S")
T = TypeVar("T")

_NUM_THREADS = min(os.cpu_count() or 1, 8)  # each has batches in memory
_NICE = 10  # of threads at low priority


def _reset_cached_properties() -> None:
    """Replace the locks of cached properties, which Python 3.11 has, and which another thread of the parent
    process may have held when it forked.
    """
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != __package__:
            continue
        for kind in vars(module).values():
            for attribute in vars(kind).values() if isinstance(kind, type) else ():
                if isinstance(attribute, cached_property):
                    attribute.lock = threading.RLock()  # type: ignore[attr-defined]


if sys.version_info < (3, 12):
    os.register_at_fork(after_in_child=_reset_cached_properties)

_own = threading.local()  # of each thread, whether it leaves a core to others


def num_threads() -> int:
    """How many threads the work of the calling thread may take."""
    return max(1, _NUM_THREADS - leaves_a_core())


def leaves_a_core() -> bool:
    """Whether the calling thread leaves one core to others."""
    return getattr(_own, "leaves_a_core", False)


def lower_priority(leave_a_core: bool = False) -> None:
    """Lower the priority of the calling thread, and so of all threads that it starts from now on.

    Call it in a thread that ends with its work: without privileges, a thread cannot raise its priority
    again. The main thread does not end, and with gevent it is all threads, so its priority does not change.
    Nor does one that is that of a process, as on all systems but Linux. The work of the thread may also
    leave one core to others.
    """
    _own.leaves_a_core = leave_a_core
    if threading.get_native_id() != os.getpid():
        _lower()


def _lower() -> None:
    if sys.platform == "linux":
        with suppress(OSError):
            thread = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, thread, max(_NICE, os.getpriority(os.PRIO_PROCESS, thread)))


@contextmanager
def lowered_priority(leave_a_core: bool = False) -> Iterator[None]:
    """Do so meanwhile; where the thread has no privileges, its priority stays low."""
    is_linux = sys.platform == "linux"
    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) if is_linux else 0
    _own.leaves_a_core = leave_a_core
    _lower()
    try:
        yield
    finally:
        _own.leaves_a_core = False
        if is_linux:
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), before)


def started(thread: threading.Thread) -> bool:
    """Start a thread. Returns False if none can be started: the user or the container has as many as it may
    have, or the interpreter ends.
    """
    try:
        thread.start()
    except RuntimeError:
        return False
    return True


class Threads(ThreadPoolExecutor):
    """A pool of threads that also works where no thread can be started: the caller then does the work.

    At its end, Python waits for a seal in the background, but its executors accept no more work. Where its
    maker leaves a core to others, its threads do.
    """

    def __init__(self, max_workers: int):
        super().__init__(max_workers, initializer=_set_own, initargs=(leaves_a_core(),))

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> "Future[T]":
        """Call a function in a thread, see `Executor.submit`."""
        done: Future[T] = Future()
        claimed = threading.Lock()

        def work() -> None:
            if not claimed.acquire(blocking=False) or not done.set_running_or_notify_cancel():
                return
            try:
                done.set_result(fn(*args, **kwargs))
            except BaseException as error:
                done.set_exception(error)

        try:
            super().submit(work)
        except RuntimeError:  # a thread that was started before may have the work nevertheless
            work()
        return done


def _set_own(leaves_a_core: bool) -> None:
    _own.leaves_a_core = leaves_a_core


def in_threads(work: Callable[[S], T], inputs: Iterable[S], number: int | None = None) -> Iterator[T]:
    """Map a function over inputs, in order, with some threads: by default `num_threads`, of work for a
    core; more, if each waits for a disk or a network. A single input needs none.

    Inputs are taken as needed. At most two pending results are kept per thread.
    """
    number, rest = number or num_threads(), iter(inputs)
    first = list(islice(rest, 2))
    if len(first) < 2:
        yield from map(work, first)
        return
    with Threads(number) as pool:
        pending: deque[Future[T]] = deque()
        for item in chain(first, rest):
            pending.append(pool.submit(work, item))
            if len(pending) >= 2 * number:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
