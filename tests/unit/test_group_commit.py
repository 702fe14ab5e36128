"""Group commit: writes of several threads share a commit, and each gets the result of its own."""

import asyncio
import gc
import signal
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from feast_sketch_store.view.group_commit import LEADER, GroupCommit
from tests.helpers.interrupts import interrupted
from tests.helpers.no_threads import no_new_threads


class Commits:
    """Commits that wait until they are let go, and what was in each."""

    def __init__(self):
        self.batches, self.begun, self.may_end = [], threading.Semaphore(0), threading.Event()

    def __call__(self, items):
        self.batches.append(list(items))
        self.begun.release()
        assert self.may_end.wait(60)
        return [ValueError(item) if item < 0 else None for item in items]


@pytest.fixture
def no_collector():
    """Without Python's garbage collector, an object in a circle of references stays."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def in_loop():
    """Submits an item for a task of an event loop in a thread of its own: a future that the task sets."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def submit(group, item, commit):
        async def wait():
            await group.submit_of_task(item, commit)

        return asyncio.run_coroutine_threadsafe(wait(), loop)

    submit.loop = loop
    yield submit
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def waiting(group, number):
    """Whether so many items wait for the commit that runs."""
    while len(group._queue) < number:
        threading.Event().wait(0.001)


def test_one_writer_commits_at_once():
    group, commits = GroupCommit(), Commits()
    commits.may_end.set()
    for item in range(3):
        group.submit(item, commits)
    assert commits.batches == [[0], [1], [2]]


@pytest.mark.usefixtures("no_collector")
def test_nothing_of_a_commit_is_kept():
    class Rows:
        def commit(self, items):
            return [None for _ in items]

    rows, group = Rows(), GroupCommit()
    kept = weakref.ref(rows)
    group.submit(rows, rows.commit)
    del rows
    assert kept() is None


def test_those_who_come_during_a_commit_share_the_next():
    group, commits = GroupCommit(), Commits()
    with ThreadPoolExecutor(9) as pool:
        first = pool.submit(group.submit, 0, commits)
        commits.begun.acquire()
        others = [pool.submit(group.submit, item, commits) for item in range(1, 9)]
        waiting(group, 8)
        commits.may_end.set()
        for done in (first, *others):
            done.result(60)
    assert commits.batches[0] == [0]
    assert sorted(commits.batches[1]) == list(range(1, 9))
    assert len(commits.batches) == 2


def test_each_is_told_of_its_own_refusal():
    group, commits = GroupCommit(), Commits()
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(group.submit, 0, commits)
        commits.begun.acquire()
        others = {item: pool.submit(group.submit, item, commits) for item in (1, -2, 3)}
        waiting(group, 3)
        commits.may_end.set()
        first.result(60)
        with pytest.raises(ValueError, match="-2"):
            others.pop(-2).result(60)
        for done in others.values():
            done.result(60)


def test_a_failed_commit_is_told_to_all_and_the_next_one_goes_on():
    group = GroupCommit()

    def fail(items):
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        group.submit(1, fail)
    group.submit(2, lambda items: [None])


def test_tasks_share_a_commit_and_each_is_told_of_its_own(in_loop, monkeypatch):
    group, commits, wakes = GroupCommit(), Commits(), []
    first = in_loop(group, 0, commits)
    commits.begun.acquire()
    others = {}
    for number, item in enumerate((1, -2, 3), 1):
        others[item] = in_loop(group, item, commits)
        waiting(group, number)
    wake = in_loop.loop.call_soon_threadsafe
    monkeypatch.setattr(in_loop.loop, "call_soon_threadsafe", lambda *call: (wakes.append(call), wake(*call)))
    commits.may_end.set()
    assert first.result(60) is None
    with pytest.raises(ValueError, match="-2"):
        others[-2].result(60)
    assert [others[item].result(60) for item in (1, 3)] == [None, None]
    assert commits.batches == [[0], [1, -2, 3]]
    assert len(wakes) == 2, "one for each commit"
    group.settle()
    assert LEADER not in [thread.name for thread in threading.enumerate()], "no thread stays behind"


def test_tasks_that_are_ready_together_share_the_first_commit():
    group, commits = GroupCommit(), Commits()
    commits.may_end.set()

    async def submit(item):
        await group.submit_of_task(item, commits)

    async def submit_all():
        await asyncio.gather(*map(submit, range(8)))

    asyncio.run(submit_all())
    assert commits.batches == [list(range(8))]


def test_tasks_and_threads_go_on_where_no_thread_can_be_started():
    group, commits = GroupCommit(), Commits()
    commits.may_end.set()

    async def submit():
        await asyncio.wait_for(group.submit_of_task(1, commits), 60)

    with no_new_threads():
        asyncio.run(submit())
    group.submit(2, commits)
    group.settle()
    assert commits.batches == [[1], [2]]


@pytest.mark.parametrize("is_settled", [True, False])
def test_what_a_task_wrote_is_committed_where_its_loop_stopped(monkeypatch, is_settled):
    group, commits, loop = GroupCommit(), Commits(), asyncio.new_event_loop()
    commits.may_end.set()

    async def submit():
        group.submit_of_task(1, commits)

    with monkeypatch.context() as patch:
        patch.setattr(group, "_begin", lambda: None)  # as if it had not come to it
        loop.run_until_complete(submit())
    loop.close()
    if is_settled:
        group.settle()
        assert commits.batches == [[1]]
    else:
        group.submit(2, commits)
        assert commits.batches == [[1, 2]]


def test_a_task_that_is_cancelled_takes_nothing_back(in_loop):
    group, commits = GroupCommit(), Commits()
    first = in_loop(group, 0, commits)
    commits.begun.acquire()
    gone = in_loop(group, 1, commits)
    waiting(group, 1)
    last = in_loop(group, 2, commits)
    waiting(group, 2)
    gone.cancel()
    commits.may_end.set()
    assert (first.result(60), last.result(30)) == (None, None)
    assert commits.batches == [[0], [1, 2]]


def test_tasks_of_a_loop_that_is_closed_hold_nobody_up():
    group, commits, loop = GroupCommit(), Commits(), asyncio.new_event_loop()

    async def submit():
        group.submit_of_task(1, commits)

    loop.run_until_complete(submit())
    commits.begun.acquire()
    loop.close()
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(group.submit, 2, commits)
        waiting(group, 1)
        commits.may_end.set()
        other.result(60)
    assert commits.batches == [[1], [2]]


@pytest.mark.parametrize("is_thread_first", [True, False])
def test_threads_and_tasks_lead_for_each_other(in_loop, is_thread_first):
    group, commits = GroupCommit(), Commits()
    with ThreadPoolExecutor(2) as pool:
        for number in range(2):
            if (number == 0) == is_thread_first:
                done = pool.submit(group.submit, number, commits)
            else:
                later = in_loop(group, number, commits)
            if number == 0:
                commits.begun.acquire()
        waiting(group, 1)
        commits.may_end.set()
        done.result(60)
        later.result(60)
    assert commits.batches == [[0], [1]]


def test_many_threads_and_tasks_lose_nothing(in_loop):
    group, seen = GroupCommit(), []

    def commit(items):
        seen.append(list(items))
        return [None] * len(items)

    def write(item):
        if item % 3:
            group.submit(item, commit)
            return None
        return in_loop(group, item, commit)

    with ThreadPoolExecutor(16) as pool:
        for future in pool.map(write, range(2_000)):
            if future is not None:
                future.result(60)
    assert sorted(item for batch in seen for item in batch) == list(range(2_000))
    group.settle()
    assert not group._queue


class Interrupted(Exception):
    """What a signal raises in the main thread."""


@pytest.fixture
def interrupted_by_signal():
    def interrupt(number, frame):
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("interrupted_by_signal")
@pytest.mark.parametrize("is_first", [True, False], ids=["who would lead", "who would be woken"])
def test_whoever_is_interrupted_leaves_nobody_waiting(is_first):
    group, commits = GroupCommit(), Commits()
    main = threading.main_thread().ident
    with ThreadPoolExecutor(10) as pool:
        first = pool.submit(group.submit, 0, commits)
        commits.begun.acquire()

        def interrupt(others):
            waiting(group, 1 + others)
            signal.pthread_kill(main, signal.SIGUSR1)

        before = [] if is_first else [pool.submit(group.submit, item, commits) for item in range(2, 9)]
        waiting(group, len(before))
        pool.submit(interrupt, len(before))
        with pytest.raises(Interrupted):
            group.submit(1, commits)
        after = [pool.submit(group.submit, item, commits) for item in range(10, 12)]
        waiting(group, 3 + len(before))
        commits.may_end.set()
        for done in (first, *before, *after):
            done.result(60)
    group.settle()
    assert sorted(item for batch in commits.batches for item in batch) == sorted(
        [0, 1, 10, 11, *([] if is_first else range(2, 9))]
    )


class Crowd:
    """Writes around one of the main thread, which leads the second commit and hands over to the last one,
    which is of a thread, or of a task of a loop.
    """

    def __init__(self, pool, in_loop=None):
        self.pool, self.group, self.has_gone = pool, GroupCommit(), threading.Event()
        self.in_loop = in_loop
        first = Commits()
        self.writes = [pool.submit(self.group.submit, 0, first)]
        first.begun.acquire()
        self.beginning = pool.submit(self._begin, first)

    def _begin(self, first):
        while not self.group._queue and not self.has_gone.wait(0.001):
            pass
        self.writes += [self.pool.submit(self.group.submit, item, self._commit) for item in (2, 3)]
        waiting(self.group, 2)
        first.may_end.set()

    def _commit(self, items):
        if 1 in items:
            last = self.group, 4, self._commit
            later = (
                self.pool.submit(self.group.submit, *last[1:])
                if self.in_loop is None
                else self.in_loop(*last)
            )
            self.writes.append(later)
            waiting(self.group, 1)
        return [None] * len(items)

    def write(self):
        try:
            self.group.submit(1, self._commit)
        finally:
            self.has_gone.set()


@pytest.mark.parametrize("is_of_task", [False, True], ids=["before a thread", "before a task"])
def test_a_writer_that_is_interrupted_at_any_moment_leaves_nobody_waiting(in_loop, is_of_task):
    last_of = in_loop if is_of_task else None
    with ThreadPoolExecutor(6) as pool:
        crowds = []

        def write():
            crowds[-1].write()

        crowds.append(Crowd(pool, last_of))
        for moment in interrupted(write, "GroupCommit."):
            crowd = crowds[-1]
            crowd.beginning.result(60)
            after = pool.submit(crowd.group.submit, 5, crowd._commit)
            for done in [*crowd.writes, after]:
                assert isinstance(done.exception(60), KeyboardInterrupt | None), moment
            crowds.append(Crowd(pool, last_of))
        crowds[-1].beginning.result(60)
        assert [done.result(60) for done in crowds[-1].writes] == [None] * 4
        assert len(crowds) > 25


def test_a_loop_that_is_interrupted_at_any_moment_leaves_nobody_waiting():
    groups, commits = [], Commits()
    commits.may_end.set()

    def write():
        groups.append(GroupCommit())
        loop = asyncio.new_event_loop()

        async def submit():
            await groups[-1].submit_of_task(1, commits)

        try:
            loop.run_until_complete(submit())
        finally:
            loop.close()

    with ThreadPoolExecutor(1) as pool:
        for _ in interrupted(
            write, *(f"GroupCommit._{name}" for name in ("begin", "find", "hand", "is_led"))
        ):
            pool.submit(groups[-1].submit, 2, commits).result(60)
            groups[-1].settle()
            assert [item for batch in commits.batches for item in batch] == [1, 2]
            commits.batches.clear()
    assert len(groups) > 5
