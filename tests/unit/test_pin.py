"""Views that are held at a snapshot: what is read, written, sealed and kept meanwhile."""

import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from feast_sketch_store import metrics
from feast_sketch_store.errors import DamagedFileError, SettingsError, StorageError
from feast_sketch_store.operations.resharding import divide
from feast_sketch_store.operations.verification import verify_view
from feast_sketch_store.storage.local import LocalStorage
from feast_sketch_store.view import holding
from feast_sketch_store.view.holding import pin, unpin
from feast_sketch_store.view.opening import open_view
from feast_sketch_store.view.view import View
from tests.helpers.histories import ALWAYS, CODEC, NEVER, items_of, put, settings_of
from tests.storage.memory import MemoryStorage

SETTINGS = settings_of(1e-9)


@pytest.fixture(params=["local", "memory"])
def make_view(request, tmp_path):
    storage = LocalStorage(tmp_path / "view") if request.param == "local" else MemoryStorage()
    return lambda policy=ALWAYS: View(storage, SETTINGS, policy, 0.0)


def fill(view, number, users=(1, 2)):
    """Write a row of each user, in which the last fill is seen, and seal."""
    put(view, {user: [f"fill {number}"] for user in users}, second=3600 * number)
    view.settle()


def read(view, user=1):
    """What a read of a user shows."""
    items = items_of(view, [user]).get(user)
    return items and sorted(items)


def test_a_bad_fill_is_undone_in_one_step(make_view):
    serving, writer = make_view(), make_view()
    fill(writer, 1)
    assert read(serving) == ["fill 1"]
    fill(writer, 2)
    assert read(serving) == ["fill 2"]
    assert pin(make_view(), [1]) == (1,)
    for view in (serving, writer, make_view()):
        assert read(view) == ["fill 1"]
        assert view.is_pinned
        assert view.snapshot_versions == (1,)
    assert unpin(make_view())
    for view in (serving, writer, make_view()):
        assert read(view) == ["fill 2"]
        assert not view.is_pinned
    assert not unpin(make_view())


def test_a_second_process_that_pins_the_same_snapshot_at_once_does_not_end_it(make_view, monkeypatch):
    serving, first, second = make_view(), make_view(), make_view()
    fill(serving, 1)
    kind = type(serving.storage)
    create, pinned = kind.create, []

    def create_behind(storage, name):
        if name.startswith("pin-") and not pinned:
            pinned.append(True)
            assert pin(first) == (1,)
        return create(storage, name)

    monkeypatch.setattr(kind, "create", create_behind)
    assert pin(second) == (1,)
    fill(serving, 2)
    assert read(serving) == read(make_view()) == ["fill 1"]
    assert unpin(second)
    assert read(serving) == read(make_view()) == ["fill 2"]


def test_a_process_that_knows_former_shards_ends_it(tmp_path):
    storage = LocalStorage(tmp_path)
    early = View(storage, SETTINGS, ALWAYS, 0.0)
    fill(early, 1)
    divide(storage, replace(SETTINGS, num_shards=2), NEVER, wait=lambda seconds: None)
    late = open_view(storage, SETTINGS)
    pin(late)
    assert unpin(early)
    late.refresh_all()
    assert not late.is_pinned


def test_writes_are_kept_and_shown_when_it_ends(make_view):
    writer = make_view()
    fill(writer, 1)
    pin(writer)
    for number in range(2, 6):
        fill(writer, number, [1, 7])
        assert read(writer) == ["fill 1"]
        assert read(writer, 7) is None
    assert len(writer.shards[0].snapshots.list()) == 1, "no write seals"
    assert not make_view().seal_if_due()
    unpin(writer)
    for view in (writer, make_view()):
        assert read(view) == read(view, 7) == ["fill 5"]


def test_seals_and_vacuums_keep_the_snapshot(make_view):
    writer = make_view()
    fill(writer, 1)
    pin(writer)
    for number in range(2, 6):
        fill(writer, number)
        assert writer.seal(), "which somebody asked for"
        writer.vacuum(0.0)
        assert read(writer) == read(make_view()) == ["fill 1"]
    assert [snapshot.version for snapshot in writer.shards[0].snapshots.list()] == [5, 1]
    assert verify_view(writer.storage, [CODEC]).problems == []
    assert verify_view(writer.storage, [CODEC]).leftovers == []
    unpin(writer)
    assert read(writer) == ["fill 5"]
    fill(writer, 6)
    writer.vacuum(0.0)
    assert [snapshot.version for snapshot in writer.shards[0].snapshots.list()] == [6]


def test_a_pin_is_of_the_next_snapshot_if_a_seal_removes_the_newest(make_view, monkeypatch):
    writer, view = make_view(NEVER), make_view(NEVER)
    put(writer, {1: ["fill 1"]}, second=0)
    writer.seal()
    real, seals = holding.open_layers, [1]

    def open_layers(snapshot):
        if seals:
            number = seals.pop() + 1
            put(writer, {1: [f"fill {number}"]}, second=3600 * number)
            writer.seal()
            for name in [n for n in snapshot.storage.list() if n.startswith(snapshot.name)]:
                snapshot.storage.delete([name])
        return real(snapshot)

    monkeypatch.setattr(holding, "open_layers", open_layers)
    assert pin(view) == (2,)
    assert read(view) == ["fill 2"]


def test_another_pin_takes_the_place_of_the_first(make_view):
    view = make_view()
    for number in (1, 2):
        fill(view, number)
    pin(view, [2])
    fill(view, 3)
    assert view.seal()
    for version in (2, 3, 2):
        assert pin(view, [version]) == (version,)
        assert read(view) == read(make_view()) == [f"fill {version}"]
    assert len(view.shards[0].snapshots.listing().pins) == 1


def test_a_version_that_is_not_there_is_refused(make_view):
    with pytest.raises(SettingsError, match="has no snapshot to pin reads to"):
        pin(make_view())
    fill(make_view(), 1)
    with pytest.raises(SettingsError, match="no snapshot of version 7; there are the versions: 1"):
        pin(make_view(), [7])
    assert not make_view().is_pinned


def test_a_damaged_snapshot_is_not_chosen(make_view):
    """Seals that no lease keeps apart can remove the base under a delta."""
    view = make_view()
    for number in (1, 2):
        fill(view, number)
    newest = view.shards[0].snapshots.list()[0]
    newest.storage.delete([newest.file("base").name])
    assert pin(make_view()) == (1,)
    assert read(make_view()) == ["fill 1"]
    with pytest.raises(DamagedFileError, match="there is no such file, which"):
        pin(make_view(), [2])


def test_a_seal_keeps_the_snapshot_to_which_another_process_pins_meanwhile(make_view):
    view = make_view()
    for number in (1, 2):
        fill(view, number)
    folder, oldest = view.shards[0].snapshots, view.shards[0].snapshots.list()[-1]
    folder.prune(1, lambda newest: folder.pin(oldest))  # after it has listed the pins
    assert [snapshot.version for snapshot in folder.list()] == [2, 1]
    assert read(make_view()) == ["fill 1"]


def test_a_snapshot_that_is_gone_never_becomes_another_one(make_view):
    serving = make_view()
    fill(serving, 1)
    pin(serving)
    assert read(serving) == ["fill 1"]
    fill(serving, 2)
    serving.seal()
    snapshot = serving.shards[0].state.snapshot
    snapshot.storage.delete([snapshot.manifest_name])
    assert read(serving) == ["fill 1"], "what it has, it serves on"
    with pytest.raises(StorageError, match=r"pinned to the snapshot .*, which is gone; `feast-sketch unpin`"):
        read(make_view())
    unpin(make_view())
    assert read(serving) == read(make_view()) == ["fill 2"]


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_process_that_opens_while_a_snapshot_is_pinned_and_pruned_waits_for_the_outcome(
    make_view, monkeypatch, is_kept
):
    """A pin comes before it is known whether its snapshot stays; a seal deletes before it sees the pin."""
    writer = make_view(NEVER)
    for number in (1, 2):
        fill(writer, number)
        writer.seal()
    folder = writer.shards[0].snapshots
    pinned = folder.list()[1]
    manifest = folder.storage.read(pinned.manifest_name)
    folder.pin(pinned)
    folder.storage.delete([pinned.manifest_name])

    def pass_by(seconds):
        if is_kept:
            folder.storage.replace(pinned.manifest_name, manifest)
        else:
            folder.unpin()

    patched = SimpleNamespace(**{**vars(time), "sleep": pass_by})
    monkeypatch.setattr("feast_sketch_store.view.loading.time", patched)
    assert read(make_view()) == ["fill 1" if is_kept else "fill 2"]


def test_metrics_say_so(make_view, monkeypatch):
    reported = {}
    monkeypatch.setattr(metrics, "is_loaded", lambda: True)
    record = lambda metric, labels, value=1.0: reported.update({metric.name: value})  # noqa: E731
    monkeypatch.setattr(metrics, "record", record)
    monkeypatch.setattr("feast_sketch_store.view.live_shard.is_loaded", lambda: True)
    view = make_view()
    for number in (1, 2):
        fill(view, number)
    pin(view, [1])
    read(view)
    read(view)
    assert reported[metrics.PINNED.name] == reported[metrics.LAG_COMMITS.name] == 1
    assert reported[metrics.SNAPSHOT_VERSION.name] == 1
    unpin(view)
    assert reported[metrics.PINNED.name] == reported[metrics.LAG_COMMITS.name] == 0


def test_a_pinned_delta_keeps_what_it_lies_over(make_view):
    writer = make_view(NEVER)
    everybody = list(range(1, 41))
    fill(writer, 1, everybody)
    writer.seal()
    fill(writer, 2, everybody[:10])
    assert writer.seal(as_delta=True)
    assert len(writer.shards[0].state.deltas) == 1
    (held,) = pin(writer)
    for number, as_delta in ((3, True), (4, True), (5, False)):
        fill(writer, number, everybody[:15])
        writer.seal(as_delta=as_delta)
        writer.vacuum(0.0)
        for view in (writer, make_view(NEVER)):
            assert (read(view), read(view, 30)) == (["fill 2"], ["fill 1"])
            assert view.is_pinned
            assert view.snapshot_versions == (held,)
    unpin(writer)
    for view in (writer, make_view(NEVER)):
        assert (read(view), read(view, 30)) == (["fill 5"], ["fill 1"])
    writer.vacuum(0.0)
    kept = {info.name for info in writer.shards[0].snapshots.storage.walk()}
    (newest,) = writer.shards[0].snapshots.list()
    assert kept == {newest.manifest_name, *newest.file_names()}
    assert verify_view(writer.storage, [CODEC]).problems == []


def test_a_base_is_pinned_beneath_its_deltas(make_view):
    writer = make_view(NEVER)
    fill(writer, 1, [1, 2, 3, 4])
    writer.seal()
    fill(writer, 2, [1])
    writer.seal(as_delta=True)
    assert pin(make_view(NEVER), [1]) == (1,)
    for view in (writer, make_view(NEVER)):
        assert read(view) == ["fill 1"]
        assert not view.shards[0].state.deltas
    writer.vacuum(0.0)
    unpin(writer)
    for view in (writer, make_view(NEVER)):
        assert read(view) == ["fill 2"]
        assert len(view.shards[0].state.deltas) == 1
