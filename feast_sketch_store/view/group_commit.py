"""Group commit: writes of several threads and tasks share one durable commit and return together."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Generic, TypeAlias, TypeVar

from feast_sketch_store.threads import started

T = TypeVar("T")

Commit: TypeAlias = Callable[[Sequence[T]], Sequence[BaseException | None]]


LEADER = "feast_sketch_store write"  # the name of threads

# This many threads are woken at once, and each of them wakes one more. If all woke at once, they would only
# wait for the interpreter, and each wait costs two switches of threads.
_WOKEN_AT_ONCE = 4


class _Waiting(Generic[T]):
    """One write: its item, its outcome, and whether its thread must commit for the others.

    ``future`` is None if a thread waits, or the future of a task. ``others`` are the writes of the same
    commit that still have to be woken.
    """

    __slots__ = ("error", "future", "is_gone", "is_woken", "item", "leads", "others", "woken")

    def __init__(self, item: T, future: "asyncio.Future[None] | None" = None):
        self.item = item
        self.future = future
        self.error: BaseException | None = None
        self.leads = False
        self.is_gone = False  # its thread was interrupted, and no longer waits
        self.is_woken = False
        self.others: deque[_Waiting[T]] | None = None
        self.woken = threading.Lock()  # cheaper than an event: held until the thread may go on
        self.woken.acquire()

    def end(self) -> None:
        """Complete the future of a task; runs in the thread of its loop."""
        assert self.future is not None
        if self.future.cancelled():  # the task no longer waits; its rows were written
            return
        if self.error is None:
            self.future.set_result(None)
        else:
            self.future.set_exception(self.error)


class GroupCommit(Generic[T]):
    """Collects items of several threads. Safe to use from all of them.

    The first thread commits its item at once. Items that arrive meanwhile wait. When it is done, one of the
    waiting threads commits all of them.

    A thread commits the items of tasks and lives while there are any. It begins when the event loop has run
    all tasks that were ready, so that what they write shares the commit.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: list[_Waiting[T]] = []
        self._is_led = False
        self._leader: threading.Thread | None = None  # the latest one, which may be done
        self._gathering: asyncio.AbstractEventLoop | None = None  # the loop that will begin to commit
        self._commit_of_tasks: Commit[T] | None = None

    def submit(self, item: T, commit: Commit[T]) -> None:
        """Commit an item; it is durable when this returns.

        ``commit`` makes items durable in their order, and returns for each None or the error that refused it.
        What it raises counts for all of them. All calls must pass the same function.

        Raises BaseException: what the commit raised, or why it refused the item.
        """
        waiting = _Waiting(item)
        if self._enlist(waiting):
            waiting.is_woken = True
            self._lead(commit)
        else:
            try:
                waiting.woken.acquire()
                self._wake(waiting.others, 1)
            except BaseException:  # the thread was interrupted, but its task remains
                self._leave(waiting, commit)
                raise
            if waiting.leads:
                self._lead(commit)
        if waiting.error is not None:
            raise waiting.error

    def submit_of_task(self, item: T, commit: Commit[T]) -> "asyncio.Future[None]":
        """The same without a waiting thread: returns a future of the running event loop.

        The future is done when the item is durable. Cancelling it does not undo the write.
        """
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        with self._lock:
            self._queue.append(_Waiting(item, future))
            self._commit_of_tasks = commit
            begins = not self._is_led and self._gathering is not loop
            if begins:
                self._gathering = loop
        if begins:
            loop.call_soon(self._begin)
        return future

    def _begin(self) -> None:
        """Commit the items of tasks, unless another thread does."""
        with self._lock:
            self._gathering = None
            begins = bool(self._queue) and not self._is_led
            self._is_led = self._is_led or begins
            commit = self._commit_of_tasks
        if begins:
            assert commit is not None
            self._start_leader(commit)

    def settle(self) -> None:
        """Commit the items of tasks, and wait for the thread that does."""
        self._begin()
        with self._lock:
            leader = self._leader
        if leader is not None and leader is not threading.current_thread():
            leader.join()

    def _enlist(self, waiting: _Waiting[T]) -> bool:
        """Put a write at the end of the queue. Returns whether a thread has to start leading."""
        with self._lock:
            self._queue.append(waiting)
            leads, self._is_led = not self._is_led, True
        return leads

    def _start_leader(self, commit: Commit[T]) -> None:
        leader = threading.Thread(target=self._lead_all, args=(commit,), name=LEADER)
        with self._lock:  # nobody waits for a thread that is not started
            is_started = started(leader)
            if is_started:
                self._leader = leader
        if not is_started:  # the others wait for nobody else
            self._lead_all(commit)

    def _lead_all(self, commit: Commit[T]) -> None:
        """Commit until no write waits, or a waiting thread can take over."""
        while (following := self._commit_waiting(commit)) is not None:
            if self._hand_over(following):
                return

    def _lead(self, commit: Commit[T]) -> None:
        """Commit the waiting items, then let the first thread that arrived meanwhile do the same."""
        following = self._commit_waiting(commit)
        if following is not None and not self._hand_over(following):
            self._start_leader(commit)

    def _hand_over(self, following: _Waiting[T]) -> bool:
        """Let the thread that waits for a write commit what is waiting; False if there is no such thread."""
        with self._lock:
            if following.future is not None or following.is_gone:
                return False
            following.leads = following.is_woken = True
        following.woken.release()
        return True

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
        threads: deque[_Waiting[T]] = deque()
        tasks: dict[asyncio.AbstractEventLoop, list[_Waiting[T]]] = {}
        for waiting in batch:
            if waiting.future is not None:
                tasks.setdefault(waiting.future.get_loop(), []).append(waiting)
            elif not waiting.is_woken:
                waiting.others = threads
                threads.append(waiting)
        for loop, ended in tasks.items():
            with suppress(RuntimeError):  # the loop is closed, and no task waits
                loop.call_soon_threadsafe(_end, ended)  # once, for each call wakes the loop
        self._wake(threads, _WOKEN_AT_ONCE)
        return following

    def _wake(self, threads: "deque[_Waiting[T]] | None", number: int) -> None:
        """Wake this many of the waiting threads."""
        while number and threads:
            with self._lock:
                waiting = threads.popleft() if threads else None
                if waiting is None or waiting.is_gone:
                    continue
                waiting.is_woken = True
            waiting.woken.release()
            number -= 1

    def _leave(self, waiting: _Waiting[T], commit: Commit[T]) -> None:
        """Pass on the task of a woken thread that no longer waits."""
        with self._lock:
            waiting.is_gone = True
            is_woken = waiting.is_woken
        if is_woken:
            self._wake(waiting.others, 1)
        if waiting.leads:
            self._start_leader(commit)


def _end(ended: Sequence[_Waiting[T]]) -> None:
    for waiting in ended:
        waiting.end()
