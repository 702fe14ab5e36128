"""Reads new snapshots in a thread ahead of time, so that few reads meet pages that are not in memory.

A snapshot is mapped, and a block is checked when a read first uses it. After a start or a seal, each read
would fetch and check some blocks; with a gigabyte this takes thousands of reads. The thread goes through the
blocks at a low priority and without the interpreter's lock. It leaves damaged blocks to the reads that meet
them.
"""

import os
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress

from feast_sketch_store.storage.system import will_need
from feast_sketch_store.succinct.packed import Check

WARMER = "feast_sketch_store warm-up"  # the name of threads

_MIN_BYTES = 1 << 20  # smaller snapshots are read soon enough without it
_MAX_SHARE = 0.5  # share of the memory; a larger snapshot would only push other pages out
_CHUNK_BYTES = 4 << 20
_HEAD_START_SECONDS = 0.05  # of the first reads, which have the disk and the interpreter to themselves
_NICE = 10


class Warmer:
    """Warms up one snapshot at a time. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, checks: Sequence[Check]) -> None:
        """Start with the arrays of a snapshot, and stop with those of the one before."""
        size = sum(check.words.nbytes for check in checks)
        stop = threading.Event()
        with self._lock:
            self._stop.set()
            self._stop, self._thread = stop, None
            if _MIN_BYTES <= size <= _MAX_SHARE * _memory_bytes():
                self._thread = threading.Thread(
                    target=_warm_up, args=(checks, stop), name=WARMER, daemon=True
                )
                self._thread.start()

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


def _warm_up(checks: Sequence[Check], stop: threading.Event) -> None:
    if sys.platform == "linux":  # where it is that of a thread
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
    if stop.wait(_HEAD_START_SECONDS):
        return
    for check in checks:
        step = max(1, _CHUNK_BYTES // (8 * check.block_words))
        for first in range(0, len(check.unchecked), step):
            if stop.is_set():
                return
            will_need(check.words, (first + step) * check.block_words, step * check.block_words)
            check.look_at(first, step)


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
