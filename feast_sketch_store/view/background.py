"""Threads that work for a view in the background.

Warmer   reads a new snapshot ahead of time
Poller   polls the storage, in a replica
Sealer   seals what the writes of this process made due
"""

import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from feast_sketch_store.storage.system import will_need
from feast_sketch_store.succinct.blocks import BlockChecks
from feast_sketch_store.threads import lower_priority, started

# The names of threads.
WARMER = "feast_sketch_store warm-up"
POLLER = "feast_sketch_store poll"
SEALER = "feast_sketch_store seal"

_MIN_BYTES = 1 << 20  # smaller snapshots are read soon enough without it
_MAX_SHARE = 0.5  # share of the memory; a larger snapshot would only push other pages out
_CHUNK_BYTES = 1 << 19  # what a read that comes meanwhile waits for, at most
_HEAD_START_SECONDS = 0.05  # of the first reads, which have the disk and the interpreter to themselves

_EARLIEST = 0.75  # share of an interval: keeps replicas that start together from polling together

# An array, the first of some of its blocks, and their number.
Step: TypeAlias = tuple[BlockChecks, int, int]


class Warmer:
    """Warms up one snapshot at a time. Safe to use from several threads.

    A snapshot is mapped, and a read checks each block that it uses first: with a gigabyte, thousands of reads
    after a start or a seal would fetch and check some. A thread goes through the blocks at a low priority and
    without the interpreter's lock. It leaves damaged blocks to the reads that meet them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(
        self,
        checks: Sequence[BlockChecks],
        ahead_seconds: float = 0.0,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        """Start with the arrays of a snapshot, and stop with those of the one before.

        Parameters
        ----------
        ahead_seconds : how long to go through them in the calling thread, before reads use the snapshot; the
            rest is left to a thread of its own.
        then : is called when all are read, or if they are so few that reads do it soon; raises nothing.
        """
        size = sum(check.words.nbytes for check in checks)
        is_small, steps = size < _MIN_BYTES, _steps(checks)
        stop = threading.Event()
        with self._lock:
            self._stop.set()
            self._stop, self._thread = stop, None
        if size > _MAX_SHARE * _memory_bytes():
            return
        if (ahead_seconds > 0 and _check_ahead(steps, stop, ahead_seconds)) or is_small:
            then()
            return
        with self._lock:
            if self._stop is stop and not stop.is_set():
                arguments = steps, stop, 0.0 if ahead_seconds else _HEAD_START_SECONDS, then
                thread = threading.Thread(target=_warm_up, args=arguments, name=WARMER, daemon=True)
                self._thread = thread if started(thread) else None  # without it, reads check what they meet

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Wait until the newest snapshot is read, or the time is over. Returns whether it was read."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(timeout_seconds)
        return thread is None or not thread.is_alive()

    def stop(self) -> None:
        """Stop, and wait until the thread reads nothing more."""
        with self._lock:
            self._stop.set()
        self.wait()


def _warm_up(
    steps: Iterator[Step], stop: threading.Event, wait_seconds: float, then: Callable[[], None]
) -> None:
    lower_priority()
    if not stop.wait(wait_seconds) and _check_ahead(steps, stop, None):
        then()


def _check_ahead(steps: Iterator[Step], stop: threading.Event, seconds: float | None) -> bool:
    """Go through blocks until told to stop, or for so long. Returns whether all are done."""
    until = None if seconds is None else time.monotonic() + seconds
    while not stop.is_set() and (until is None or time.monotonic() < until):
        step = next(steps, None)
        if step is None:
            return True
        check, first, number = step
        will_need(check.words, (first + number) * check.block_words, number * check.block_words)
        check.check_ahead(first, number)
    return False


def _steps(checks: Sequence[BlockChecks]) -> Iterator[Step]:
    for check in checks:
        number = max(1, _CHUNK_BYTES // (8 * check.block_words))
        for first in range(0, len(check.unchecked), number):
            yield check, first, number


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class Poller:
    """Polls a view once per interval, or up to a quarter of it early, until it is stopped or the view is
    gone.

    ``poll`` is a method of the view, which is not kept alive. Raises RuntimeError: no thread can begin.
    """

    def __init__(self, poll: Callable[[], None], interval_seconds: float):
        stop = self._stop = threading.Event()
        self._poll = weakref.WeakMethod(poll, lambda _: stop.set())
        self._interval_seconds = interval_seconds
        self._thread = threading.Thread(target=self._run, name=POLLER, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait for a poll that is under way."""
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._interval_seconds * random.uniform(_EARLIEST, 1)):
            poll = self._poll()
            if poll is None:
                return
            poll()
            del poll


class Sealer:
    """Seals in one thread at a time, until nothing is due. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None  # the latest one
        self._is_sealing = False
        self.has_ended = False  # so that no thread begins

    def start(self, seal: Callable[[], bool], is_due: Callable[[], bool]) -> None:
        """Seal, unless a thread does.

        Parameters
        ----------
        seal : returns whether there is a new snapshot.
        is_due : whether too many rows were written meanwhile to wait for a later write.

        Raises RuntimeError: no thread can begin.
        """
        with self._lock:
            if self._is_sealing or self.has_ended:
                return
            thread = threading.Thread(target=self._run, args=(seal, is_due), name=SEALER)
            thread.start()
            self._thread, self._is_sealing = thread, True

    def settle(self) -> None:
        """Wait for the thread, if there is one."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    def end(self) -> None:
        """Wait for the thread, and begin no other one.

        `settle` waits for all that become due meanwhile, which has no end while others write.
        """
        with self._lock:
            self.has_ended = True
        self.settle()

    def _run(self, seal: Callable[[], bool], is_due: Callable[[], bool]) -> None:
        lower_priority(leave_a_core=True)  # to reads, of this process and others
        is_needed = True
        while is_needed:
            is_sealed = False
            try:
                is_sealed = seal()
            finally:
                with self._lock:  # a commit that comes after this starts another thread
                    # At its end, Python waits for the thread, which others may give work without end.
                    goes_on = not self.has_ended and threading.main_thread().is_alive()
                    is_needed = is_sealed and goes_on and is_due()
                    self._is_sealing = is_needed
