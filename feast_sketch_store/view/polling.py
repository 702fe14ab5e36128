"""Looks at the storage at regular times in a thread, so that no read waits for a look."""

import random
import threading
import weakref
from typing import Protocol

POLLER = "feast_sketch_store poll"  # the name of threads

_EARLIEST = 0.75  # share of an interval: keeps replicas that start together from looking together


class Polled(Protocol):
    """An object with a storage to look at."""

    def poll(self) -> None:
        """Look. Raises nothing."""


class Poller:
    """Calls ``poll`` of an object once per interval, until it is stopped or the object is gone.

    Parameters
    ----------
    polled : is not kept alive.
    interval_seconds : above 0; a look comes up to a quarter of it early.
    """

    def __init__(self, polled: Polled, interval_seconds: float):
        stop = self._stop = threading.Event()
        self._polled = weakref.ref(polled, lambda _: stop.set())
        self._interval_seconds = interval_seconds
        self._thread = threading.Thread(target=self._run, name=POLLER, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait for a look that is under way."""
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._interval_seconds * random.uniform(_EARLIEST, 1)):
            polled = self._polled()
            if polled is None:
                return
            polled.poll()
            del polled
