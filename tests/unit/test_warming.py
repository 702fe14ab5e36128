"""A new snapshot is gone through in a thread; what is damaged is left to the read that meets it."""

import threading
from datetime import UTC, datetime

import numpy as np
import pytest
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import Int64Set, Value

from feast_sketch_store.errors import DamagedFileError
from feast_sketch_store.layers import Goal
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.snapshot.blocks import BLOCK_BYTES, BlockChecks, block_checksums
from feast_sketch_store.storage.local import LocalStorage
from feast_sketch_store.view import warming
from feast_sketch_store.view.settings import FeatureSettings, ViewSettings
from feast_sketch_store.view.view import View
from feast_sketch_store.view.warming import WARMER, Warmer

WORDS = BLOCK_BYTES // 8


@pytest.fixture(autouse=True)
def _small_snapshots_too(monkeypatch):
    monkeypatch.setattr(warming, "_MIN_BYTES", 0)


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
    """The first array lets the thread wait until it is told to stop."""

    class Slow(BlockChecks):
        def look_at(self, first, number):
            begun.set()
            assert proceed.wait(60)
            super().look_at(first, number)

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


def test_what_is_larger_than_half_of_the_memory_is_left_to_reads(monkeypatch):
    checks, warmer = checks_of(np.arange(WORDS, dtype=np.uint64)), Warmer()
    monkeypatch.setattr(warming, "_memory_bytes", lambda: BLOCK_BYTES)
    warmer.start([checks])
    assert warmer.wait(0)
    assert checks.unchecked.all()


def test_a_view_warms_up_each_snapshot_that_it_opens(tmp_path):
    features = {
        "viewed": FeatureSettings(
            FeatureCodec("viewed", "int64_set_val"), Goal("error_rate", 0.01, "sets"), 10**6
        )
    }
    settings = ViewSettings("users", 1e-4, features, join_keys={"user": "int64_val"})

    def write(view, first):
        rows = []
        for user in range(first, first + 500):
            key = EntityKey(join_keys=["user"], entity_values=[Value(int64_val=user)])
            values = {"viewed": Value(int64_set_val=Int64Set(val=range(user, user + 50)))}
            rows.append((key, values, datetime(2026, 3, 1, tzinfo=UTC), None))
        view.write(rows)
        view.seal()

    writer, reader = View(LocalStorage(tmp_path), settings), View(LocalStorage(tmp_path), settings)
    for first in (0, 500):
        write(writer, first)
        reader.refresh()
        assert reader._warmer.wait(60)
        (layer,) = reader.current().sealed.layers
        assert layer.checks
        assert all(check.all_checked for check in layer.checks)
    reader.close()
    writer.close()
