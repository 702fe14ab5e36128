"""The order index: entities are found in it whether it is mapped or fetched block by block."""

import numpy as np
import pytest

from feast_sketch_store.errors import DamagedFileError
from feast_sketch_store.rows.encoding import NO_TIMESTAMP, RowKeys
from feast_sketch_store.snapshot import order
from feast_sketch_store.snapshot.files import SnapshotFolder
from feast_sketch_store.snapshot.format import locate
from feast_sketch_store.snapshot.order import OrderIndex, load_order, order_arrays
from tests.storage.memory import MemoryStorage

NUM_ROWS = 5_003
RNG = np.random.default_rng(11)


class Bucket(MemoryStorage):
    """Counts what is fetched."""

    fetches = True
    fetched = None

    def read(self, name, start=0, length=None):
        content = super().read(name, start, length)
        if self.fetched is not None and ".order." in name:
            self.fetched.append(len(content))
        return content


def keys_of(hashes):
    hashes = hashes[np.lexsort((hashes[:, 1], hashes[:, 0]))]
    events = RNG.integers(-(2**40), 2**50, len(hashes))
    created = np.where(events % 3 == 0, NO_TIMESTAMP, events + 7)
    flags = np.zeros(len(hashes), np.bool_)
    return RowKeys(hashes, events, created, flags, flags)


def snapshot_of(storage, arrays):
    table = {"table": np.zeros(1, np.uint64)}
    folder = SnapshotFolder(storage)
    return folder.publish(folder.write(1, {"row_log_version": 1}, table, arrays))


def random_hashes(number=NUM_ROWS):
    return RNG.integers(0, 2**64, (number, 2), np.uint64)


def with_equal_first_bits(number=NUM_ROWS):
    """Many entities share the first bits, in several blocks."""
    hashes = random_hashes(number)
    hashes[:100, 0] = hashes[0, 0]
    hashes[100:200, 0] = 0
    hashes[200:300, 0] = 2**64 - 1
    return hashes


def same(keys, others):
    names = RowKeys.__dataclass_fields__
    is_as_long = len(keys) == len(others)
    return is_as_long and all((getattr(keys, n) == getattr(others, n)).all() for n in names)


@pytest.fixture(params=[MemoryStorage, Bucket], ids=["mapped", "fetched"])
def storage(request, monkeypatch):
    monkeypatch.setattr(order, "_WHOLE_BYTES", 0)
    return request.param()


@pytest.mark.parametrize("hashes_of", [random_hashes, with_equal_first_bits])
@pytest.mark.parametrize("share", [1 / 8, 2.0], ids=["or whole", "by block"])
def test_entities_are_found(storage, monkeypatch, hashes_of, share):
    monkeypatch.setattr(order, "_WHOLE_SHARE", share)
    keys = keys_of(hashes_of())
    snapshot = snapshot_of(storage, order_arrays(keys))
    assert same(load_order(snapshot), keys)
    assert same(load_order(snapshot, check_all=True), keys)
    for number in (0, 1, 2, 40, 3_000):
        index = OrderIndex(snapshot)
        assert len(index) == NUM_ROWS
        rows = np.sort(RNG.choice(NUM_ROWS, number, replace=False))
        asked = np.concatenate([keys.entity_hashes[rows], random_hashes(number)])
        for _ in range(2):
            assert same(index.of(asked[RNG.permutation(len(asked))]), keys.take(rows))
            shuffled = RNG.permutation(rows)
            assert same(index.take(shuffled), keys.take(shuffled))


@pytest.mark.parametrize("number", [0, 1, 8, 9])
def test_few_rows(storage, number):
    keys = keys_of(random_hashes(number))
    index = OrderIndex(snapshot_of(storage, order_arrays(keys)))
    assert same(index.of(np.concatenate([keys.entity_hashes, random_hashes(3)])), keys)
    assert len(index.of(np.zeros((0, 2), np.uint64))) == 0


def test_one_percent_of_late_rows_costs_less_than_four_bytes_a_row():
    """Of every row, also of those that are not late: what is fetched in all, a batch of rows at a time."""
    storage, number = Bucket(), 100_000
    keys = keys_of(random_hashes(number))
    snapshot = snapshot_of(storage, order_arrays(keys))
    storage.fetched = Bucket.fetched = []
    index = OrderIndex(snapshot)
    late = RNG.choice(number, number // 100, replace=False)
    for batch in np.array_split(late, 50):
        assert len(index.of(keys.entity_hashes[batch])) == len(batch)
    assert sum(storage.fetched) < 4 * number
    assert len(storage.fetched) <= len(late) + 3
    again = sum(storage.fetched)
    index.of(keys.entity_hashes[late])
    assert sum(storage.fetched) == again
    Bucket.fetched = None


@pytest.mark.parametrize("array", ["rows", "rows.checks", "first_hashes", "header"])
def test_damage_is_found(monkeypatch, array):
    monkeypatch.setattr(order, "_WHOLE_BYTES", 0)
    storage = Bucket()
    keys = keys_of(random_hashes())
    snapshot = snapshot_of(storage, order_arrays(keys))
    file = snapshot.file("order")
    content = bytearray(storage.read(file.name))
    offsets = {"header": 30}
    offsets |= {name: found.start for name, found in locate(bytes(content), len(content), "").items()}
    content[offsets[array]] ^= 1
    storage.replace(file.name, bytes(content))
    with pytest.raises(DamagedFileError, match=r"order\.sketch: .*(checksum|block 0)"):
        OrderIndex(snapshot).of(keys.entity_hashes[:1])
    with pytest.raises(DamagedFileError, match=r"order\.sketch"):
        load_order(snapshot)


def test_small_arrays_of_other_rows_are_found_by_a_check():
    keys = keys_of(random_hashes(50))
    for name in ("rows.checks", "first_hashes"):
        arrays = order_arrays(keys)
        arrays[name] = arrays[name] + 1
        with pytest.raises(DamagedFileError, match="contradict each other"):
            load_order(snapshot_of(MemoryStorage(), arrays), check_all=True)


@pytest.mark.parametrize(
    "change",
    [
        {"rows": np.zeros((9, 3), np.uint64)},
        {"rows": np.zeros((9, 4), np.int64)},
        {"first_hashes": np.zeros(1, np.int32)},
        {"rows.checks": np.zeros(3, np.int32)},
        {"rows.checks": None},
    ],
)
@pytest.mark.parametrize("kind", [MemoryStorage, Bucket])
def test_parts_that_do_not_fit_are_refused(monkeypatch, change, kind):
    monkeypatch.setattr(order, "_WHOLE_BYTES", 0)
    arrays = {**order_arrays(keys_of(random_hashes(9))), **change}
    snapshot = snapshot_of(kind(), {name: array for name, array in arrays.items() if array is not None})
    with pytest.raises(DamagedFileError, match="order index"):
        OrderIndex(snapshot)
