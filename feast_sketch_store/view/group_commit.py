"""Group commit: writes of several threads share one durable commit and return together."""

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")

Commit: TypeAlias = Callable[[Sequence[T]], Sequence[BaseException | None]]


class _Waiting(Generic[T]):
    """One write: what it is, how it ended, and whether its thread is to commit for the others."""

    def __init__(self, item: T):
        self.item = item
        self.error: BaseException | None = None
        self.leads = False
        self.woken = threading.Event()


class GroupCommit(Generic[T]):
    """Collects items of several threads. Safe to use from all of them.

    The first thread commits its item at once. Those that come meanwhile wait; when it is done, one of them
    commits all of theirs.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: list[_Waiting[T]] = []
        self._is_led = False

    def submit(self, item: T, commit: Commit[T]) -> None:
        """Commit an item; it is durable when this returns.

        Parameters
        ----------
        commit : makes items durable, in their order; gives for each None, or why it was refused. What it
            raises counts for all of them. The same for all items.

        Raises
        ------
        BaseException : what the commit raised, or why it refused the item.
        """
        waiting = _Waiting(item)
        with self._lock:
            self._queue.append(waiting)
            leads, self._is_led = not self._is_led, True
        if not leads:
            waiting.woken.wait()
            leads = waiting.leads
        if leads:
            self._lead(commit)
        if waiting.error is not None:
            raise waiting.error

    def _lead(self, commit: Commit[T]) -> None:
        """Commit what is waiting, then let the first of those that came meanwhile do the same."""
        with self._lock:
            batch, self._queue = self._queue, []
        try:
            refused = commit([waiting.item for waiting in batch])
            for waiting, error in zip(batch, refused, strict=True):
                waiting.error = error
        except BaseException as error:
            for waiting in batch:
                waiting.error = error
        finally:
            with self._lock:
                following = self._queue[0] if self._queue else None
                self._is_led = following is not None
            if following is not None:
                following.leads = True
                following.woken.set()
            for waiting in batch:
                waiting.woken.set()
