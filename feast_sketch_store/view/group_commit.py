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
    """One write: its item and its outcome.

    ``future`` is None if a thread waits, or the future of a task. ``others`` are the writes of the same
    commit that still have to be woken; ``committed`` are those that its own thread has committed.
    """

    __slots__ = ("committed", "error", "future", "is_gone", "is_woken", "item", "others", "woken")

    def __init__(self, item: T, future: "asyncio.Future[None] | None" = None):
        self.item = item
        self.future = future
        self.error: BaseException | None = None
        self.committed: list[_Waiting[T]] = []
        self.is_gone = False  # its thread was interrupted, and no longer waits
        self.is_woken = False
        self.others: deque[_Waiting[T]] | None = None
        self.woken = threading.Lock()  # cheaper than an event: held until the thread may go on
        self.woken.acquire()

    def end(self) -> None:
        """Complete the future of a task; runs in the thread of its loop."""
        assert self.future is not None
        if self.future.done():  # the task was cancelled, and its rows were written; or it was told before
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
        self._led_by: _Waiting[T] | None = None  # whose thread commits, or a thread in its place
        self._leader: threading.Thread | None = None  # the latest one, which may be done
        self._gathering: asyncio.AbstractEventLoop | None = None  # the loop that will begin to commit
        self._commit: Commit[T] | None = None  # of tasks, and of threads that were interrupted

    def submit(self, item: T, commit: Commit[T]) -> None:
        """Commit an item; it is durable when this returns.

        ``commit`` makes items durable in their order, and returns for each None or the error that refused it.
        What it raises counts for all of them. All calls must pass the same function.

        Raises BaseException: what the commit raised, or why it refused the item.
        """
        waiting = _Waiting(item)
        try:
            if not self._enlist(waiting):
                waiting.woken.acquire()
                self._wake(waiting.others, 1)
            if self._led_by is waiting:
                self._commit_waiting(commit, waiting)
                self._hand_over(commit)
        except BaseException:  # the thread was interrupted, but its task remains
            self._leave(waiting, commit)
            raise
        if waiting.error is not None:
            try:
                raise waiting.error
            finally:
                waiting.error = None  # else its traceback would keep itself, and what an interrupt left open

    def submit_of_task(self, item: T, commit: Commit[T]) -> "asyncio.Future[None]":
        """The same without a waiting thread: returns a future of the running event loop.

        The future is done when the item is durable. Cancelling it does not undo the write.
        """
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        with self._lock:
            self._queue.append(_Waiting(item, future))
            self._commit = commit
            begins = self._led_by is None and self._gathering is not loop
            if begins:
                self._gathering = loop
        if begins:
            loop.call_soon(self._begin)
        return future

    def _begin(self) -> None:
        """Commit what is waiting, unless another thread does."""
        try:
            self._find_leader()
        except BaseException:  # the thread of the loop was interrupted, but its task remains
            self._find_leader()
            raise

    def _find_leader(self) -> None:
        """Find a thread that commits what is waiting, if none does; may be called again at any time."""
        with self._lock:
            self._gathering = None
            if self._led_by is None and self._queue:
                self._led_by = self._queue[0]
            commit = self._commit
        if commit is not None:
            self._hand_over(commit)

    def settle(self) -> None:
        """Commit the items of tasks, and wait for the thread that does."""
        self._begin()
        with self._lock:
            leader = self._leader
        if leader is not None and leader is not threading.current_thread():
            leader.join()

    def _enlist(self, waiting: _Waiting[T]) -> bool:
        """Put a write at the end of the queue. Returns whether its thread leads, as no other one does."""
        with self._lock:
            self._queue.append(waiting)
            if self._led_by is None:
                self._led_by, waiting.is_woken = waiting, True
            return self._led_by is waiting

    def _hand_over(self, commit: Commit[T]) -> None:
        """Let the thread of the next write commit what is waiting, or one in its place if it has none."""
        with self._lock:  # nobody waits for a thread that is not started
            if self._is_led():
                return
            leader = self._leader = threading.Thread(target=self._lead_all, args=(commit,), name=LEADER)
            is_started = started(leader)
            if not is_started:
                self._leader = None
        if not is_started:  # the others wait for nobody else
            self._lead_all(commit)

    def _lead_all(self, commit: Commit[T]) -> None:
        """Commit until no write waits, or a waiting thread can take over."""
        while self._leads():
            self._commit_waiting(commit)

    def _leads(self) -> bool:
        """Whether the calling thread commits what is waiting. Of several that were started, the last does."""
        with self._lock:
            if self._leader not in (None, threading.current_thread()) or self._is_led():
                return False
            assert self._led_by is not None
            self._led_by.is_woken = True
            return True

    def _is_led(self) -> bool:
        """Whether a thread commits what is waiting, if anything is; the lock is held. It wakes the thread of
        the next write.
        """
        following = self._led_by
        if following is None or following.is_woken:
            return True
        if following.future is not None or following.is_gone:
            return False
        following.is_woken = True
        following.woken.release()
        return True

    def _commit_waiting(self, commit: Commit[T], leader: _Waiting[T] | None = None) -> None:
        """Commit the waiting items; the first write that arrived meanwhile leads next.

        ``leader`` is the write of the calling thread, if it has one.
        """
        batch: list[_Waiting[T]] = []
        try:
            with self._lock:
                batch, self._queue = self._queue, batch
            refused = commit([waiting.item for waiting in batch]) if batch else []
            for waiting, error in zip(batch, refused, strict=True):
                waiting.error = error
        except BaseException as error:
            for waiting in batch:
                waiting.error = error
        if leader is not None:
            leader.committed = batch
        with self._lock:
            self._led_by = self._queue[0] if self._queue else None
        self._tell(batch)
        if leader is not None:
            leader.committed = []  # it is one of them, and would keep itself

    def _tell(self, batch: Sequence[_Waiting[T]]) -> None:
        """Tell the outcome to all who wait for it; those who know it are left out."""
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

    def _wake(self, threads: "deque[_Waiting[T]] | None", number: int) -> None:
        """Wake this many of the waiting threads."""
        while number and threads:
            with self._lock:
                waiting = threads.popleft() if threads else None
                if waiting is None or waiting.is_gone or waiting.is_woken:
                    continue
                waiting.is_woken = True
                waiting.woken.release()
            number -= 1

    def _leave(self, waiting: _Waiting[T], commit: Commit[T]) -> None:
        """Pass on the task of an interrupted thread, whichever step of it is done."""
        with self._lock:
            is_woken, leads = waiting.is_woken, self._led_by is waiting
            waiting.is_gone, waiting.is_woken = True, is_woken and not leads
            self._commit = commit
        if is_woken:
            self._wake(waiting.others, 1)
        self._tell(waiting.committed)
        self._begin()


def _end(ended: Sequence[_Waiting[T]]) -> None:
    for waiting in ended:
        waiting.end()
