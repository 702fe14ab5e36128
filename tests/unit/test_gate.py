"""The gate: what a seal, a rebuild or a fill must meet, in folders, buckets and shards."""

import asyncio
import json
from datetime import timedelta
from unittest.mock import patch

import pytest

from feast_sketch_store.errors import DamagedFileError, GateError, SettingsError, StorageError
from feast_sketch_store.layers import Goal
from feast_sketch_store.rows.encoding import deletions
from feast_sketch_store.settings.table import Gate
from feast_sketch_store.storage.local import LocalStorage
from feast_sketch_store.storage.names import HELD_BACK_FILE
from feast_sketch_store.view import holding, joint_seal
from feast_sketch_store.view.gate import HeldBack
from feast_sketch_store.view.opening import open_view
from feast_sketch_store.view.rebuilding import rebuild
from feast_sketch_store.view.seal_policy import SealPolicy
from tests.helpers import histories
from tests.helpers.histories import MOMENT, items_of, row
from tests.helpers.keys import user_key
from tests.helpers.meanwhile import once_before
from tests.storage.memory import Files, ObjectsInMemory, OwnHost

USERS = range(40)
NEXT = MOMENT + timedelta(days=1)
BY_JOB = SealPolicy(min_rows=20, by_job=True)  # a batch of 10 rows or more is a fill
PLACES = [("folder", 1), ("folder", 4), ("bucket", 1), ("bucket", 4)]


def settings_of(num_shards=1, folder=None, **gate):
    sets = Goal("error_rate", 1e-9, "sets")
    return histories.settings_of(sets, presence=1e-9, num_shards=num_shards, gate=Gate(**gate), folder=folder)


def rows_of(users, items=5, event=MOMENT):
    """A row of each user with so many items."""
    return [row(user, *map(str, range(items)), event=event) for user in users]


def num_items(view, users=USERS):
    """By user, how many items a read shows."""
    return {user: len(items) for user, items in items_of(view, users).items()}


@pytest.fixture(params=PLACES, ids=lambda place: f"{place[0]}-{place[1]}")
def make_view(request, tmp_path):
    """Opens the view by a process of its own, with a gate."""
    where, num_shards = request.param
    files = Files()

    def make(policy=BY_JOB, num_shards=num_shards, **gate):
        if where == "bucket":
            storage = type("Opened", (OwnHost, ObjectsInMemory), {})(files, False)
        else:
            storage = LocalStorage(tmp_path)
        return open_view(storage, settings_of(num_shards, tmp_path, **gate), policy, 0.0)

    return make


@pytest.fixture
def view(tmp_path):
    """A view in a folder; a change of a fifth passes."""
    return open_view(LocalStorage(tmp_path), settings_of(1, tmp_path, change=0.2), BY_JOB, 0.0)


@pytest.fixture
def sealed(view):
    view.write(rows_of(USERS))
    view.seal()
    return view


def fill_badly(view, items=1):
    with pytest.raises(GateError) as caught:
        view.write(rows_of(USERS, items, NEXT))
    return str(caught.value)


def test_a_fill_is_not_discarded_while_it_is_published(sealed, tmp_path):
    fill_badly(sealed)
    other = open_view(LocalStorage(tmp_path), settings_of(1, tmp_path, change=0.2), BY_JOB, 0.0)

    def try_to_discard():
        with pytest.raises(StorageError, match="another process is sealing"):
            holding.discard(other)

    with once_before(sealed, "commit_staged", try_to_discard):
        assert holding.publish(sealed, force=True) == len(USERS)


def test_a_fill_without_a_lease_takes_the_place_of_one_that_is_being_published_and_leaves_its_files():
    files = Files()
    view, other = (open_view(ObjectsInMemory(files), settings_of(change=0.2), BY_JOB, 0.0) for _ in range(2))
    view.write(rows_of(USERS))
    view.seal()
    fill_badly(view)
    with once_before(view, "commit_staged", lambda: fill_badly(other, 2)):
        assert holding.publish(view, force=True) == len(USERS)
    assert num_items(other) == dict.fromkeys(USERS, 1)
    assert holding.publish(other, force=True) == len(USERS)
    assert num_items(view) == dict.fromkeys(USERS, 2)


def test_a_discard_without_a_lease_leaves_the_files_of_a_fill_that_is_being_published():
    files = Files()
    view, other = (open_view(ObjectsInMemory(files), settings_of(change=0.2), BY_JOB, 0.0) for _ in range(2))
    view.write(rows_of(USERS))
    view.seal()
    fill_badly(view, 2)
    with once_before(view, "commit_staged", lambda: holding.discard(other)):
        assert holding.publish(view, force=True) == len(USERS)
    assert HeldBack.read(view.storage) is None
    assert num_items(other) == dict.fromkeys(USERS, 2)


@pytest.mark.slow
def test_a_bad_fill_is_held_back_until_it_is_published_or_discarded(make_view):
    view = make_view(change=0.2)
    view.write(rows_of(USERS))
    view.seal()
    versions = view.snapshot_versions
    message = fill_badly(view)
    assert "facts of 'viewed': 200 -> 40 (-80.0 %, at most 20 %)" in message
    assert "values of 'viewed': 5 -> 1" in message
    assert "feast-sketch publish history --force" in message
    for reader in (view, other := make_view(change=0.2)):
        assert num_items(reader) == dict.fromkeys(USERS, 5)
        reader.seal(force=True)
        assert num_items(reader) == dict.fromkeys(USERS, 5), "held back, not only unsealed"
    assert HeldBack.read(view.storage).num_rows == len(USERS)
    with pytest.raises(GateError):
        holding.publish(other)
    assert num_items(other) == dict.fromkeys(USERS, 5)
    assert holding.publish(other, force=True) == len(USERS)
    assert num_items(other) == num_items(view) == dict.fromkeys(USERS, 1)
    assert view.storage.info(HELD_BACK_FILE) is None
    assert view.snapshot_versions != versions
    assert not view.stats().unsealed_rows


def test_what_is_discarded_leaves_nothing(make_view):
    view = make_view(change=0.2)
    view.write(rows_of(USERS))
    view.seal()
    before = {info.name for info in view.storage.walk() if info.name.endswith(".parquet")}
    fill_badly(view)
    assert holding.discard(make_view(change=0.2)) == len(USERS)
    if not view.storage.supports_leases:
        view.vacuum(0.0)
    assert {info.name for info in view.storage.walk() if info.name.endswith(".parquet")} == before
    assert holding.discard(view) is None
    assert holding.publish(view) is None
    assert num_items(view) == dict.fromkeys(USERS, 5)


def test_a_good_fill_and_later_ones_count(make_view):
    view = make_view(change=0.2, entities=len(USERS))
    view.write(rows_of(USERS))
    view.seal()
    fill_badly(view)
    view.write(rows_of(USERS, 6, NEXT))
    assert num_items(view) == dict.fromkeys(USERS, 6)
    assert HeldBack.read(view.storage) is not None, "it stays until someone decides"


@pytest.mark.parametrize("error", [StorageError("out of reach"), MemoryError()])
def test_a_fill_that_is_committed_does_not_fail(sealed, error):
    with patch.object(sealed, "refresh_all", side_effect=[None, error]):  # for the gate, and after the commit
        sealed.write(rows_of(USERS, 6, NEXT))
    assert num_items(sealed) == dict.fromkeys(USERS, 6)


def test_a_second_bad_fill_takes_the_place_of_the_first(sealed):
    fill_badly(sealed, 1)
    fill_badly(sealed, 2)
    assert holding.publish(sealed, force=True) == len(USERS)
    assert num_items(sealed) == dict.fromkeys(USERS, 2)
    held = [info.name for info in sealed.storage.walk() if "fill-" in info.name]
    assert len(held) == 1 + 1, "the first fill of all, and the published one"


def test_pushed_rows_are_shown_at_once_and_judged_when_they_are_sealed(make_view):
    view = make_view(change=0.2)
    view.write(rows_of(USERS))
    view.seal()
    versions = view.snapshot_versions
    for start in range(0, 36, 9):
        view.write(rows_of(USERS[start : start + 9], 1, NEXT))
    expected = {user: 1 if user < 36 else 5 for user in USERS}
    assert num_items(view) == expected
    with pytest.raises(GateError, match=r"facts of 'viewed': 200 -> 56 .*snapshot from before stays"):
        view.seal()
    assert view.snapshot_versions == versions
    assert num_items(view) == num_items(make_view()) == expected
    snapshots = [part.snapshots.list() for part in view.shards.values()]
    assert all(len(files) == 1 for files in snapshots), "no draft is left"
    assert all(not part.snapshots.leftovers() for part in view.shards.values())
    assert holding.publish(view, force=True) is None
    assert num_items(view) == expected
    assert not view.stats().unsealed_rows


def test_a_rebuild_that_does_not_pass_changes_nothing(make_view):
    view = make_view(change=0.2)
    view.write(rows_of(USERS))
    view.seal()

    def fill(staging):
        other = open_view(staging, settings_of(len(view.shards)), BY_JOB, 0.0)
        other.write(rows_of(USERS[:10], 3, NEXT))
        return staging

    with pytest.raises(GateError, match=r"entities: 40 -> 10 .*rebuild history --force"):
        rebuild(view, fill)
    assert num_items(view) == num_items(make_view()) == dict.fromkeys(USERS, 5)
    assert all(not part.snapshots.leftovers() for part in view.shards.values())
    assert rebuild(view, fill, force=True)
    assert num_items(view) == num_items(make_view()) == dict.fromkeys(USERS[:10], 3)


def test_the_first_version_needs_its_entities(make_view):
    view = make_view(entities=41)
    with pytest.raises(GateError, match="40 entities, at least 41 are asked for"):
        view.write(rows_of(USERS))
    assert num_items(view) == {}
    view.write(rows_of(range(45)))
    assert len(num_items(view, range(45))) == 45


def test_without_a_gate_nothing_is_held_back(make_view):
    view = make_view()
    view.write(rows_of(USERS))
    view.seal()
    view.write(rows_of(USERS, 1, NEXT))
    view.seal()
    assert num_items(view) == dict.fromkeys(USERS, 1)


def test_tasks_write_async_and_are_judged(sealed):
    with pytest.raises(GateError):
        asyncio.run(sealed.write_async(rows_of(USERS, 1, NEXT)))
    assert num_items(sealed) == dict.fromkeys(USERS, 5)


def test_deletions_count_at_once_and_are_judged_with_the_next_seal(sealed):
    sealed.delete(deletions([user_key(user) for user in USERS[:30]], MOMENT, None))
    assert len(num_items(sealed)) == 10
    with pytest.raises(GateError, match=r"entities: 40 -> 10"):
        sealed.seal()
    assert len(num_items(sealed)) == 10


# -- a function of the user --------------------------------------------------------------------------


def gated_by(tmp_path, body):
    (tmp_path / "checks.py").write_text(f"def plausible(view, before, after):\n    {body}\n")
    return open_view(
        LocalStorage(tmp_path / "view"), settings_of(folder=tmp_path, check="checks:plausible"), BY_JOB, 0.0
    )


def test_a_function_is_given_the_figures_and_says_why_not(tmp_path):
    body = "return None if before is None else f'{view} {before.facts} {after.entities} {after.values}'"
    view = gated_by(tmp_path, body)
    view.write(rows_of(USERS))
    view.seal()
    expected = r"checks:plausible: history \{'viewed': 200\} 40 \{'viewed': 7\}\."
    with pytest.raises(GateError, match=expected):
        view.write(rows_of(USERS, 7, NEXT))


def test_a_function_that_fails_lets_nothing_pass(tmp_path):
    view = gated_by(tmp_path, "return 1 / 0")
    with pytest.raises(GateError, match="raised ZeroDivisionError: division by zero"):
        view.write(rows_of(USERS))


@pytest.mark.parametrize("path", ["checks:nothing", "no_such_module:plausible"])
def test_a_function_that_is_missing_is_found_before_rows_come(tmp_path, path):
    (tmp_path / "checks.py").write_text("nothing = None\n")
    (problem,) = settings_of(folder=tmp_path, check=path).file_problems()
    assert isinstance(problem, SettingsError)
    assert path in str(problem)


# -- processes that die, and damaged files -------------------------------------------------------------


def test_rows_that_are_held_back_survive_a_vacuum(sealed):
    fill_badly(sealed)
    sealed.vacuum(0.0)
    assert holding.publish(sealed, force=True) == len(USERS)
    assert num_items(sealed) == dict.fromkeys(USERS, 1)


@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_publication_that_was_killed_after_its_commit_is_finished(sealed, is_compacted):
    fill_badly(sealed)
    with (
        patch.object(LocalStorage, "delete", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        holding.publish(sealed, force=True)
    assert num_items(sealed) == dict.fromkeys(USERS, 1)
    sealed.write(rows_of(USERS[:5], 4, NEXT))  # as new as the rows that were published, and later
    sealed.delete(deletions([user_key(6)], NEXT))
    if is_compacted:
        sealed.seal(force=True)
    holding.publish(sealed, force=True)
    assert num_items(sealed) == {user: 4 if user < 5 else 1 for user in USERS if user != 6}


def test_a_fill_that_was_killed_before_it_was_held_back_leaves_files_for_the_vacuum(sealed):
    with (
        patch.object(HeldBack, "hold", side_effect=KeyboardInterrupt),
        patch.object(sealed, "discard_staged"),
        pytest.raises(KeyboardInterrupt),
    ):
        sealed.write(rows_of(USERS, 1, NEXT))
    assert HeldBack.read(sealed.storage) is None
    assert num_items(sealed) == dict.fromkeys(USERS, 5)
    assert sealed.vacuum(0.0) >= 1
    assert num_items(sealed) == dict.fromkeys(USERS, 5)


def test_a_fill_that_cannot_be_judged_leaves_nothing(sealed):
    before = {info.name for info in sealed.storage.walk() if "rows/" in info.name}
    with (
        patch.object(joint_seal, "figures_with", side_effect=StorageError("the disk is gone")),
        pytest.raises(StorageError, match="the disk is gone"),
    ):
        sealed.write(rows_of(USERS, 1, NEXT))
    assert {info.name for info in sealed.storage.walk() if "rows/" in info.name} == before


@pytest.mark.parametrize("change", ["truncate", "alter", "version", "other"])
def test_a_damaged_file_of_a_fill_is_named(sealed, change):
    fill_badly(sealed)
    content = sealed.storage.read(HELD_BACK_FILE)
    damaged = {
        "truncate": content[:-9],
        "alter": content.replace(b"fill-", b"full-"),
        "version": content.replace(b'"format_version": 1', b'"format_version": 2'),
        "other": json.dumps([1]).encode(),
    }[change]
    assert damaged != content
    sealed.storage.replace(HELD_BACK_FILE, damaged)
    for act in (holding.publish, holding.discard):
        with pytest.raises(DamagedFileError, match=rf"{HELD_BACK_FILE}.*remove the file"):
            act(sealed)
    assert num_items(sealed) == dict.fromkeys(USERS, 5)


# -- seals beside writes -------------------------------------------------------------------------------


def test_a_writer_does_not_ask_the_gate_again_and_again(tmp_path, monkeypatch, caplog):
    view = open_view(
        LocalStorage(tmp_path), settings_of(1, tmp_path, change=0.2), SealPolicy(0.5, min_rows=10), 0.0
    )
    view.write(rows_of(USERS))
    assert view.snapshot_versions == (1,), "a fill waits for its seal"
    asked = []
    judge = type(view).judge
    monkeypatch.setattr(type(view), "judge", lambda *given: asked.append(1) or judge(*given))
    for number in range(60):
        view.write(rows_of([number % 40], 1, NEXT + timedelta(seconds=number)))
        view.settle()
    assert len(asked) == 3, "at 11, 22 and 44 unsealed rows"
    assert "does not pass its gate" in caplog.text
    assert num_items(view) == dict.fromkeys(USERS, 1)
