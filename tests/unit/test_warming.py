"""A new snapshot is gone through in a thread; what is damaged is left to the read that meets it."""

import threading

import numpy as np
import pytest

from feast_sketch_store.errors import DamagedFileError
from feast_sketch_store.layers import Goal
from feast_sketch_store.metrics import is_loaded
from feast_sketch_store.storage.local import LocalStorage
from feast_sketch_store.succinct.blocks import BLOCK_BYTES, BlockChecks, block_checksums
from feast_sketch_store.view import background, live_shard
from feast_sketch_store.view.background import WARMER, Warmer
from feast_sketch_store.view.view import View
from tests.helpers.histories import put, settings_of

WORDS = BLOCK_BYTES // 8


@pytest.fixture(autouse=True)
def _small_snapshots_too(monkeypatch):
    monkeypatch.setattr(background, "_MIN_BYTES", 0)


def checks_of(words, damaged=()):
    checksums = block_checksums(words).copy()
    checksums[list(damaged)] ^= 1
    return BlockChecks(words, checksums, "words")


def test_all_blocks_are_checked_but_the_damaged_ones():
    words = np.random.default_rng(1).integers(0, 2**64, 150 * WORDS + 17, np.uint64)
    checks, warmer = [checks_of(words, [3, 149]), checks_of(words[:10]), checks_of(words[:0])], Warmer()
    warmer.start(checks)
    assert warmer.wait(60)
    assert checks[0].unchecked.nonzero()[0].tolist() == [3, 149]
    assert [check.all_checked for check in checks] == [False, True, True]
    checks[0](np.array([4 * WORDS]), 5)
    with pytest.raises(DamagedFileError, match="block 149"):
        checks[0](np.array([149 * WORDS]), 5)


def test_a_newer_snapshot_and_the_end_stop_it():
    """The first array lets the thread wait until it has to stop."""

    class Slow(BlockChecks):
        def check_ahead(self, first, number):
            begun.set()
            assert proceed.wait(60)
            super().check_ahead(first, number)

    begun, proceed = threading.Event(), threading.Event()
    words = np.arange(100 * WORDS, dtype=np.uint64)
    slow, newer, warmer = Slow(words, block_checksums(words), "words"), checks_of(words), Warmer()
    warmer.start([slow])
    assert begun.wait(60)
    first = next(thread for thread in threading.enumerate() if thread.name == WARMER)
    assert not warmer.wait(0)
    warmer.start([newer])
    proceed.set()
    first.join(60)
    assert 0 < slow.unchecked.sum() < 100
    assert warmer.wait(60)
    assert newer.all_checked
    begun.clear()
    proceed.clear()
    warmer.start([slow])
    assert begun.wait(60)
    threading.Thread(target=lambda: warmer._stop.wait(60) and proceed.set()).start()
    warmer.stop()
    assert slow.unchecked.any()


class Clock:
    """Every check of it takes a second."""

    def __init__(self):
        self.now = 0

    def monotonic(self):
        self.now += 1
        return self.now


def test_a_part_is_checked_ahead_by_the_caller_and_the_rest_by_a_thread(monkeypatch):
    """A chunk takes a second, of five."""

    class Told(BlockChecks):
        def check_ahead(self, first, number):
            by.append(threading.current_thread())
            super().check_ahead(first, number)

    monkeypatch.setattr(background, "time", Clock())
    monkeypatch.setattr(background, "_CHUNK_BYTES", BLOCK_BYTES)
    by, words, warmer = [], np.arange(20 * WORDS, dtype=np.uint64), Warmer()
    checks = Told(words, block_checksums(words), "words")
    warmer.start([checks], ahead_seconds=5, then=lambda: by.append("then"))
    assert warmer.wait(60)
    assert by.pop() == "then"
    assert checks.all_checked
    here = threading.current_thread()
    assert [thread is here for thread in by] == [True] * 4 + [False] * 16


def test_no_thread_is_started_if_all_was_checked_ahead():
    words = np.arange(20 * WORDS, dtype=np.uint64)
    checks, warmer = checks_of(words, [3]), Warmer()
    done = threading.Event()
    warmer.start([checks], ahead_seconds=1e9, then=done.set)
    assert warmer.wait(0)
    assert done.is_set()
    assert checks.unchecked.nonzero()[0].tolist() == [3]


def test_what_is_larger_than_half_of_the_memory_is_left_to_reads(monkeypatch):
    checks, warmer = checks_of(np.arange(WORDS, dtype=np.uint64)), Warmer()
    monkeypatch.setattr(background, "_memory_bytes", lambda: BLOCK_BYTES)
    warmer.start([checks])
    assert warmer.wait(0)
    assert checks.unchecked.all()


def make_views(folder, structure="sets", **options):
    """A view that writes, and one that reads."""
    settings = settings_of(Goal("error_rate", 0.01, structure), 10**6, 1e-4)
    return [View(LocalStorage(folder), settings, **options) for _ in range(2)]


def fill(view, first):
    """Write rows of 500 users, and seal."""
    put(view, {user: [f"item {user + n}" for n in range(50)] for user in range(first, first + 500)})
    view.seal()


def test_a_view_warms_up_each_snapshot_that_it_opens(tmp_path):
    writer, reader = make_views(tmp_path)
    for first in (0, 500):
        fill(writer, first)
        reader.refresh()
        assert reader.shards[0]._warmer.wait(60)
        (layer,) = reader.current().sealed.layers
        assert layer.checks
        assert all(check.all_checked for check in layer.checks)
    reader.close()
    writer.close()


@pytest.mark.parametrize("poll", [View.refresh, lambda view: view.shards[0].poll()])
def test_reads_meet_a_new_snapshot_when_it_is_ready_for_them(tmp_path, monkeypatch, poll):
    """No read waits for a thread to check its blocks, nor for its questions to be prepared."""
    monkeypatch.setattr(live_shard, "_AHEAD_SECONDS", 1e6)
    writer, reader = make_views(tmp_path, refresh_interval_seconds=1e9)
    fill(writer, 0)
    reader.refresh()
    before = reader.current()
    before.row_reader(("viewed",))
    fill(writer, 500)
    poll(reader)
    shard = reader.shards[0].state
    assert shard.snapshot != before.shards[0].snapshot
    assert all(check.all_checked for check in shard.sealed.checks)
    assert list(reader._next._prepared) == [("viewed",)]
    assert reader.current() is not before
    assert list(reader.current()._prepared) == [("viewed",)]
    reader.close()
    writer.close()


def test_opening_a_filter_reads_no_block_of_it(tmp_path, monkeypatch):
    """Metrics are recorded here. The rate is measured with blocks that were read for that."""
    assert is_loaded()
    measured = []
    monkeypatch.setattr(background, "_HEAD_START_SECONDS", 1e6)
    writer, reader = make_views(tmp_path, "bloom")
    monkeypatch.setattr(reader.metrics, "sampled", measured.append)  # which both views share
    fill(writer, 0)
    reader.refresh()
    (layer,) = reader.state.sealed.layers
    assert all(check.unchecked.all() for check in layer.checks)
    reader.shards[0]._warmer.stop()
    assert not measured
    monkeypatch.setattr(background, "_HEAD_START_SECONDS", 0)
    fill(writer, 500)
    assert writer.shards[0]._warmer.wait(60)
    measured.clear()
    reader.refresh()
    assert reader.shards[0]._warmer.wait(60)
    assert [list(rates) for rates in measured] == [["viewed"]]
    reader.close()
    writer.close()


def test_few_questions_are_prepared_again(tmp_path):
    """Those that were asked last."""
    writer, reader = make_views(tmp_path, refresh_interval_seconds=1e9)
    fill(writer, 0)
    reader.refresh()
    for number in range(20):
        reader.current().row_reader((f"unknown {number}",))
    fill(writer, 500)
    reader.refresh()
    assert list(reader.current()._prepared) == [(f"unknown {number}",) for number in range(12, 20)]
    reader.close()
    writer.close()
