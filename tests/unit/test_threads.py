"""Threads that give way to reads have a lower priority, and no others have; work without new threads."""

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from feast_sketch_store import threads
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.threads import (
    _NICE,
    Threads,
    in_threads,
    lower_priority,
    lowered_priority,
    num_threads,
)
from tests.helpers.no_threads import no_new_threads
from tests.helpers.processes import run_forked

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="a priority belongs to a process")


def niceness():
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def in_a_thread(work):
    """What a function returns in a thread of its own, which may keep a low priority."""
    with Threads(1) as pool:
        return pool.submit(work).result()


@on_linux
def test_a_thread_gives_way_with_those_that_it_starts():
    before = niceness()

    def work():
        lower_priority()
        return niceness(), in_a_thread(niceness)

    assert in_a_thread(work) == (max(_NICE, before),) * 2
    assert niceness() == before
    assert in_a_thread(niceness) == before


@on_linux
def test_a_thread_that_gives_way_already_stays_as_it_is():
    def work():
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        lower_priority()
        return niceness()

    assert in_a_thread(work) == 19


@on_linux
def test_the_main_thread_does_not_give_way():
    """With gevent, threads are greenlets of the main thread."""

    def work():
        before = niceness()
        lower_priority()
        assert niceness() == before

    run_forked(work)  # a priority that is lowered may stay so


@on_linux
def test_a_thread_gives_way_for_a_time_where_it_may():
    before = niceness()

    def work():
        with lowered_priority():
            within = niceness()
        return within, niceness()

    within, after = in_a_thread(work)
    assert within == max(_NICE, before)
    assert after in ((before,) if os.geteuid() == 0 else (before, within))


@pytest.mark.parametrize("cores", [1, 2, 4])
def test_a_thread_may_leave_a_core_with_those_that_it_starts(monkeypatch, cores):
    monkeypatch.setattr(threads, "_NUM_THREADS", cores)

    def work():
        with lowered_priority(leave_a_core=True):
            within = num_threads(), *in_threads(lambda _: num_threads(), range(3))
        return within, num_threads()

    assert in_a_thread(work) == ((max(1, cores - 1),) * 4, cores)
    assert num_threads() == cores


def test_the_caller_does_the_work_of_threads_that_cannot_be_started():
    done = []
    with no_new_threads():
        assert list(in_threads(lambda number: done.append(number) or -number, range(3))) == [0, -1, -2]
        with Threads(2) as pool, pytest.raises(ZeroDivisionError):
            pool.submit(lambda: 1 / 0).result()
    assert done == [0, 1, 2]


def test_work_that_a_thread_of_a_pool_has_waiting_is_done_once():
    done, is_begun, may_end = [], threading.Event(), threading.Event()

    def work(number):
        done.append(number)
        if number == 0:
            is_begun.set()
            assert may_end.wait(60)

    with Threads(2) as pool:
        first = pool.submit(work, 0)
        assert is_begun.wait(60)
        with no_new_threads():
            pool.submit(work, 1).result(60)
        may_end.set()
        first.result(60)
    assert done == [0, 1]


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="cached properties have no locks")
def test_a_child_can_use_cached_properties_whatever_its_parent_was_doing():
    lock = vars(FeatureCodec)["is_collection"].lock
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lock.acquire).result()
        child = os.fork()
        if child == 0:
            os._exit(not vars(FeatureCodec)["is_collection"].lock.acquire(blocking=False))
        pool.submit(lock.release).result()
    assert os.waitpid(child, 0)[1] == 0
