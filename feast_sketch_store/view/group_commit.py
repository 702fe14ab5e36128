"""Group commit: writes of several threads and tasks share one durable commit and return together."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")

Commit: TypeAlias = Callable[[Sequence[T]], Sequence[BaseException | None]]


LEADER = "feast_sketch_store write"  # the name of threads


class _Waiting(Generic[T]):
    """One write: its item, its outcome, and whether its thread must commit for the others.

    ``future`` is None if a thread waits.
    """

    def __init__(self, item: T, future: "Future[None] | None" = None):
        self.item = item
        self.future = future
        self.error: BaseException | None = None
        self.leads = False
        self.woken = threading.Event()

    def end(self) -> None:
        """Tell who waits that it is over."""
        if self.future is None:
            self.woken.set()
        elif self.error is None:
            self.future.set_result(None)
        else:
            self.future.set_exception(self.error)


class GroupCommit(Generic[T]):
    """Collects items of several threads. Safe to use from all of them.

    The first thread commits its item at once. Items that arrive meanwhile wait. When it is done, one of the
    waiting threads commits all of them. Items with a future are committed by a thread that lives while there
    are any.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: list[_Waiting[T]] = []
        self._is_led = False
        self._leader: threading.Thread | None = None  # the latest one, which may be done

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
        leads = self._enlist(waiting)
        if not leads:
            waiting.woken.wait()
            leads = waiting.leads
        if leads:
            self._lead(commit)
        if waiting.error is not None:
            raise waiting.error

    def submit_later(self, item: T, commit: Commit[T]) -> "Future[None]":
        """The same without waiting: the future is done when the item is durable. It cannot be cancelled."""
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()
        if self._enlist(_Waiting(item, future)):
            self._start_leader(commit)
        return future

    def settle(self) -> None:
        """Wait for the thread that commits for futures, if there is one."""
        leader = self._leader
        if leader is not None and leader is not threading.current_thread():
            leader.join()

    def _enlist(self, waiting: _Waiting[T]) -> bool:
        """Put a write at the end of the queue: whether somebody has to begin to lead."""
        with self._lock:
            self._queue.append(waiting)
            leads, self._is_led = not self._is_led, True
        return leads

    def _start_leader(self, commit: Commit[T]) -> None:
        leader = threading.Thread(target=self._lead_all, args=(commit,), name=LEADER)
        self._leader = leader
        leader.start()

    def _lead_all(self, commit: Commit[T]) -> None:
        """Commit until nobody waits, or a thread that waits can do it."""
        while (following := self._commit_waiting(commit)) is not None:
            if following.future is None:
                self._hand_over(following)
                return

    def _lead(self, commit: Commit[T]) -> None:
        """Commit the waiting items, then let the first thread that arrived meanwhile do the same."""
        following = self._commit_waiting(commit)
        if following is None:
            return
        if following.future is None:
            self._hand_over(following)
        else:
            self._start_leader(commit)

    def _hand_over(self, following: _Waiting[T]) -> None:
        following.leads = True
        following.woken.set()

    def _commit_waiting(self, commit: Commit[T]) -> _Waiting[T] | None:
        """Commit the waiting items; return the first write that arrived meanwhile, or None."""
        with self._lock:
            batch, self._queue = self._queue, []
        try:
            refused = commit([waiting.item for waiting in batch])
            for waiting, error in zip(batch, refused, strict=True):
                waiting.error = error
        except BaseException as error:
            for waiting in batch:
                waiting.error = error
        with self._lock:
            following = self._queue[0] if self._queue else None
            self._is_led = following is not None
        for waiting in batch:
            waiting.end()
        return following
