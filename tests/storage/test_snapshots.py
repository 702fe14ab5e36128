"""Snapshots on storages of all kinds: published with a manifest, found, mapped, pruned."""

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest

from feast_sketch_store.errors import DamagedFileError, StorageError
from feast_sketch_store.snapshot.files import SnapshotFolder
from feast_sketch_store.storage.base import FileExistsAlreadyError, MissingFileError
from feast_sketch_store.storage.local import LocalStorage
from tests.storage.contract import names_of, put
from tests.storage.memory import MemoryStorage

ORDER = {"entity_hashes": np.arange(8, dtype=np.uint64)}


@pytest.fixture(params=["local", "memory"])
def storage(request, tmp_path):
    storage = LocalStorage(tmp_path) if request.param == "local" else MemoryStorage()
    return storage.within("snapshots/")


@pytest.fixture
def folder(storage):
    return SnapshotFolder(storage)


def arrays(content=7):
    return {"table": np.full(100, content, np.uint64)}


def publish(folder, version=1, content=7):
    return folder.publish(folder.write(version, {"layer": content}, arrays(content), ORDER))


def overwrite(storage, name, change):
    storage.replace(name, bytes(change(bytearray(storage.read(name)))))


def flip(content):
    content[len(content) // 2] ^= 1
    return content


def test_a_snapshot_is_found_when_it_is_published(folder, storage):
    draft = folder.write(42, {"layer": 7}, arrays(), ORDER)
    assert folder.list() == []
    assert len(names_of(storage)) == 2
    published = folder.publish(draft)
    assert folder.list() == [published]
    assert (published.version, published.number) == (42, 1)
    description, found = published.open("base")
    assert description == {"layer": 7}
    assert found["table"].tolist() == [7] * 100
    assert published.open("order")[1]["entity_hashes"].tolist() == list(range(8))
    assert published.exists()
    assert published.size_bytes() == published.manifest().layers[0].files["base"].size_bytes > 800
    assert published.published_at() == storage.info(published.manifest_name).modified_at


def test_names_sort_by_version_and_number(folder):
    made = [publish(folder, version) for version in (9, 10, 10, 2, 10)]
    assert [s.number for s in made] == [1, 1, 2, 1, 3]
    assert folder.list() == [made[4], made[2], made[1], made[0], made[3]]
    assert sorted(s.manifest_name for s in made) == [s.manifest_name for s in reversed(folder.list())]


def test_the_last_seal_is_the_newest_however_often_the_same_rows_are_sealed():
    """As by a job each minute, in a view that nobody writes for a day."""
    folder = SnapshotFolder(MemoryStorage())
    for _ in range(1_010):
        last = publish(folder)
        folder.prune(2)
        assert folder.list()[0] == last


def test_a_listing_since_a_snapshot_has_no_older_ones_and_all_that_is_new(folder, storage, monkeypatch):
    older, known = publish(folder, 9), publish(folder, 10)
    listed, real = [], storage.list
    with monkeypatch.context() as patched:
        patched.setattr(folder.storage, "list", lambda **given: listed.append(real(**given)) or listed[-1])
        listing = folder.listing(known)
    assert listed == [[name for name in real() if name.startswith(known.name)]]
    assert listing == replace(folder.listing(), snapshots=[known])
    newer = [publish(folder, 10), publish(folder, 11)]
    assert folder.listing(known).newest == folder.listing().newest == newer[1]
    assert folder.listing(known).snapshots == [*reversed(newer), known]
    folder.pin(older)
    folder.note_move()
    listing = folder.listing(known)
    assert (listing.pinned, listing.pins, listing.has_moved) == (older.name, folder.listing().pins, True)


def test_no_snapshot_takes_the_place_of_another(folder, monkeypatch):
    monkeypatch.setattr("secrets.token_hex", lambda length: "0" * 2 * length)
    first = folder.write(1, {"layer": 1}, arrays(1), ORDER)
    with pytest.raises(StorageError) as caught:
        folder.write(1, {"layer": 2}, arrays(2), ORDER)
    assert isinstance(caught.value.__cause__, FileExistsAlreadyError)
    assert folder.publish(first).open("base")[0] == {"layer": 1}


def test_a_manifest_that_is_there_already_is_published(folder):
    """As when the storage has created it and the answer was lost."""
    draft = folder.write(1, {"layer": 1}, arrays(1), ORDER)
    assert folder.publish(draft) == folder.publish(draft)
    assert folder.list()[0].open("base")[0] == {"layer": 1}


def test_what_cannot_be_published_is_gone(folder, storage):
    draft = folder.write(1, {}, arrays(), ORDER)
    put(storage, draft.manifest_name, b"of somebody else")
    with pytest.raises(StorageError, match="cannot be published"):
        folder.publish(draft)
    assert names_of(storage) == []


@pytest.mark.parametrize("step", [1, 2, 3])
def test_what_cannot_be_written_leaves_nothing(folder, storage, monkeypatch, step):
    before = publish(folder)
    names, created = names_of(storage), 0
    create = type(storage).create

    def fail_once(self, name):
        nonlocal created
        created += 1
        if created == step:
            raise StorageError(f"{self.where(name)}: No space left on device")
        return create(self, name)

    monkeypatch.setattr(type(storage), "create", fail_once)
    with pytest.raises(StorageError, match="No space left"):
        publish(folder, 2)
    assert names_of(storage) == names
    assert folder.list() == [before]


def test_all_but_the_newest_are_pruned(folder, storage):
    made = [publish(folder, version) for version in range(5)]
    folder.prune(2)
    assert folder.list() == [made[4], made[3]]
    assert len(names_of(storage)) == 6
    with pytest.raises(MissingFileError):  # no damage: it was there and is gone
        made[0].open("base")
    assert not made[0].exists()
    assert (made[0].size_bytes(), made[0].published_at()) == (0, 0.0)


def test_a_snapshot_whose_manifest_is_damaged_does_not_count_when_others_are_pruned(folder, storage):
    made = [publish(folder, version=n) for n in range(3)]
    overwrite(storage, made[2].manifest_name, flip)
    folder.prune(1)
    assert folder.list() == [made[2], made[1]]
    made[1].open("base")


def test_a_manifest_goes_before_its_files(folder, storage, monkeypatch):
    """Whoever finds a manifest finds the files, unless the manifest is gone by then."""
    snapshot = publish(folder)
    delete, seen = type(storage).delete, []

    def watched(self, names):
        delete(self, names)
        seen.append((snapshot.exists(), snapshot.size_bytes() > 0))

    monkeypatch.setattr(type(storage), "delete", watched)
    folder.discard(snapshot)
    assert seen == [(False, True), (False, False)]


def test_files_stay_if_their_manifest_cannot_be_deleted(folder, storage):
    snapshot = publish(folder)
    with patch.object(type(storage), "delete", side_effect=StorageError("read-only")):
        with pytest.raises(StorageError, match="read-only"):
            folder.prune(0)
        folder.discard(snapshot)
    assert snapshot.open("base")[0] == {"layer": 7}


def test_what_killed_writers_left_is_removed(folder, storage):
    kept = publish(folder)
    folder.write(2, {}, arrays(), ORDER)
    put(storage, "00000000000000000003-0001-12345678.order.sketch", b"half")
    put(storage, ".0123.tmp", b"half")
    assert len(list(folder.leftovers())) == 4
    assert folder.remove_leftovers() == 4
    assert len(names_of(storage)) == 3
    assert list(folder.leftovers()) == []
    assert kept.open("base")[0] == {"layer": 7}


@pytest.mark.parametrize("part", ["base", "order"])
@pytest.mark.parametrize("change", [flip, lambda c: c[:-1], lambda c: c + b"\0", lambda c: b""])
def test_a_damaged_part_is_found(folder, storage, part, change):
    snapshot = publish(folder)
    name = snapshot.manifest().layers[0].files[part].name
    overwrite(storage, name, change)
    with pytest.raises(DamagedFileError, match=name):
        snapshot.open(part)


def test_a_damaged_manifest_is_found(folder, storage):
    snapshot = publish(folder)
    overwrite(storage, snapshot.manifest_name, flip)
    assert folder.list() == [snapshot]  # so that readers say that they fall back to another one
    with pytest.raises(DamagedFileError, match=snapshot.manifest_name):
        snapshot.open("base")


def test_a_part_that_is_gone_is_damage(folder, storage):
    snapshot = publish(folder)
    storage.delete([snapshot.manifest().layers[0].files["base"].name])
    with pytest.raises(DamagedFileError, match=r"base\.sketch.*there is no such file"):
        snapshot.open("base")


def test_a_sound_part_of_another_snapshot_is_found(folder, storage):
    first, second = publish(folder, 1, 7), publish(folder, 2, 8)
    foreign = storage.read(second.manifest().layers[0].files["base"].name)
    assert len(foreign) == first.size_bytes()
    storage.replace(first.manifest().layers[0].files["base"].name, foreign)
    with pytest.raises(DamagedFileError, match="is not the file that its manifest names"):
        first.open("base")


def test_the_manifest_of_another_snapshot_is_found(folder, storage):
    first, second = publish(folder, 1), publish(folder, 2)
    storage.replace(second.manifest_name, storage.read(first.manifest_name))
    with pytest.raises(DamagedFileError, match="is the manifest of another snapshot"):
        second.open("base")


def test_what_is_mapped_outlives_the_snapshot(folder):
    _, mapped = publish(folder).open("base")
    folder.prune(0)
    assert mapped["table"].tolist() == [7] * 100


@pytest.mark.parametrize(
    "name",
    [
        "00000000000000000001-0001-0123456.json",
        "1-1-01234567.json",
        "00000000000000000001-0001-01234567.json.tmp",
        "x00000000000000000001-0001-01234567.json",
        "00000000000000000001-0001-01234567.base.sketch",
    ],
)
def test_other_names_are_no_manifests(folder, storage, name):
    put(storage, name)
    assert folder.list() == []
