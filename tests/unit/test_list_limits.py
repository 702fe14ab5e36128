"""Lists at their limits: the moment of expiry, duplicates in a batch, more items than anybody asks for."""

import numpy as np
import pytest

from tests.helpers.list_worker import LIMIT, TICK, ListWorker
from tests.storage.memory import Files, MemoryStorage

NOW = 1_800_000_000_000_000 // TICK * TICK


@pytest.fixture
def worker():
    files = Files()
    return ListWorker(lambda version: MemoryStorage(files))


def values(worker, since=0, limit=None):
    ((items,), _) = worker.read(1, since, limit)
    return [value for value, _ in items]


@pytest.mark.parametrize("is_sealed", [False, True], ids=["unsealed", "sealed"])
def test_an_item_expires_with_the_begin_of_its_tick_and_not_before(worker, is_sealed):
    worker.write([(0, [("old", NOW - TICK), ("new", NOW)])], 0)
    worker.maintain("seal" if is_sealed else "refresh")
    assert values(worker, NOW - TICK) == ["new", "old"]
    assert values(worker, NOW - TICK + 1) == ["new"]
    assert values(worker, NOW) == ["new"]
    assert values(worker, NOW + 1) == []


@pytest.mark.parametrize("is_sealed", [False, True], ids=["unsealed", "sealed"])
def test_an_item_within_a_tick_expires_at_most_a_tick_early(worker, is_sealed):
    worker.write([(0, [("a", NOW + TICK // 2)])], 0)
    worker.maintain("seal" if is_sealed else "refresh")
    assert values(worker, NOW) == ["a"]
    assert values(worker, NOW + TICK // 2 + 1) == []
    assert values(worker, NOW + 1) == ([] if is_sealed else ["a"])


@pytest.mark.slow
@pytest.mark.parametrize("num_batches", [1, 20])
def test_many_more_items_than_the_limit_come_between_seals(worker, num_batches):
    rng = np.random.default_rng(3)
    indices = rng.permutation(100_000)
    items = [(f"value {index % 50}", NOW - int(index) * TICK) for index in indices.tolist()]
    newest = [f"value {index}" for index in range(LIMIT)]
    for batch in np.array_split(np.arange(len(items)), num_batches):
        worker.write([(0, [items[index] for index in batch.tolist()])], 0)
        assert len(values(worker)) == LIMIT
    assert values(worker) == newest
    assert values(worker, NOW - TICK, 50) == newest[:2]
    assert worker.maintain("seal")
    assert values(worker) == newest
    worker.write([(0, [("late", NOW - 2 * TICK + 1)])], 0)
    assert values(worker, limit=3) == [*newest[:2], "late"]
