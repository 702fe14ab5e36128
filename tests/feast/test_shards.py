"""Views with shards through Feast: reads, writes, apply and commands, beside the same view without shards."""

import asyncio
import json
import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pytest
from feast.types import Set, String

from feast_sketch_store import SketchReader, open_view
from feast_sketch_store.engines import seal_job
from feast_sketch_store.errors import SettingsError, ShardError, SketchStoreError, StorageError
from feast_sketch_store.layers import build
from feast_sketch_store.online_store import online_store_of
from feast_sketch_store.operations import maintenance, resharding
from feast_sketch_store.view import folding, view_file
from feast_sketch_store.view.shard_map import shards_of
from feast_sketch_store.view.view_file import ViewFile
from tests.helpers.keys import user_hashes
from tests.helpers.length import by_length, combined
from tests.helpers.repository import another, make_repository, make_view, materialize, read_users, run_cli

pytestmark = pytest.mark.slow

NUM_USERS = 200
EVENT = datetime(2026, 5, 1, tzinfo=UTC)
FEATURES = ["history:viewed", "history:country"]


def frame_of(users, country="FR"):
    return pd.DataFrame(
        {
            "user_id": list(users),
            "viewed": [[f"a{u % 50}", f"a{u % 31}"] for u in users],
            "country": country,
            "event": EVENT,
        }
    )


def storage_of(store):
    return online_store_of(store).storage(store.config, store.get_feature_view("history"))


def make_store(folder, num_shards=4, compaction={"min_rows": 100}, tags=None):  # noqa: B006 - it is read
    """A repository with a view of 200 users, applied and not filled."""
    view = make_view({"viewed": Set(String), "country": String}, tags=tags)
    options = {"refresh": 0, "compaction": compaction, "structure": "sets", "shards": num_shards}
    return make_repository(folder, view, rows=frame_of(range(NUM_USERS)), **options)


def fill(store):
    store.write_to_online_store("history", frame_of(range(NUM_USERS)))
    return store


def part_of(folder, store, *served):
    """A repository of the same rows, which serves some of their four shards."""
    options = {"path": str(store.repo_path / "sketch"), "refresh": 0, "structure": "sets"}
    shards = {"count": 4, "serve": [*served]}
    return make_repository(folder, registry=str(store.repo_path / "registry.db"), shards=shards, **options)


@pytest.fixture(scope="module")
def repositories(tmp_path_factory):
    """The same rows without shards and in four; for tests that only read."""
    folder = tmp_path_factory.mktemp("repositories")
    return [materialize(make_store(folder / str(number), number), EVENT) for number in (1, 4)]


def online(store, users):
    answer = read_users(store, FEATURES, map(int, users))
    answer["viewed"] = [None if items is None else sorted(items) for items in answer["viewed"]]
    return answer


@pytest.mark.parametrize("number", [1, 20, 300])
def test_reads_through_feast_are_those_of_a_view_without_shards(repositories, number):
    users = np.random.default_rng(number).integers(0, NUM_USERS + 30, number)
    whole, sharded = (online(store, users) for store in repositories)
    assert sharded == whole
    assert any(items is not None for items in whole["viewed"])
    rows = [{"user_id": int(user)} for user in users]
    of_loop = asyncio.run(repositories[1].get_online_features_async(FEATURES, rows))
    assert of_loop.to_dict()["country"] == whole["country"]


def test_inspect_tells_of_all_shards(repositories):
    whole, sharded = (maintenance.inspect(store, "history") for store in repositories)
    for name in ("entities", "facts", "unsealed_rows", "newest_event", "is_pinned"):
        assert getattr(sharded, name) == getattr(whole, name), name
    assert [(f.name, f.vocabulary, f.facts) for f in sharded.features] == [
        (f.name, f.vocabulary, f.facts) for f in whole.features
    ]


def test_entities_of_shards_that_are_not_served_are_deleted_and_counted(tmp_path):
    fill(make_store(tmp_path))
    part = another(tmp_path, shards={"count": 4, "serve": [0]})
    asked = [{"user_id": user} for user in (*range(8), NUM_USERS)]
    deleted = maintenance.delete(part, "history", asked)
    assert (deleted.found, deleted.not_found) == (8, asked[-1:])


def test_a_repository_may_serve_a_part(repositories, tmp_path):
    part = part_of(tmp_path, repositories[1], 0, 2)
    numbers = shards_of(user_hashes(range(NUM_USERS)), 4)
    ours, theirs = np.flatnonzero(numbers % 2 == 0), np.flatnonzero(numbers == 3)
    assert online(part, ours) == online(repositories[1], ours)
    for users in (theirs[:1], [*ours[:20], theirs[0]], [*ours, theirs[0]]):
        with pytest.raises(ShardError, match=r"shard 3 of 4, and this process serves the shards 0, 2"):
            online(part, users)
    assert SketchReader(tmp_path, "history").exists(ours).all()
    with pytest.raises(ShardError, match="shard 3"):
        SketchReader(tmp_path, "history").exists(theirs)


def test_a_tag_sets_the_shards_of_a_view(tmp_path, caplog):
    store = make_store(tmp_path, 1, tags={"sketch.shards": "8"})
    assert len(open_view(store, "history").shards) == 8
    make_store(tmp_path, 1)
    assert re.search(r"has 8 shards, but its settings say 1.*reshard history --shards 1", caplog.text)


def test_the_life_of_a_view_with_shards(tmp_path):
    store = fill(make_store(tmp_path))
    assert maintenance.delete(store, "history", [{"user_id": user} for user in range(10, 30)]).found == 20
    assert online(store, [9, 10, 29, 30])["country"] == ["FR", None, None, "FR"]
    assert maintenance.seal(store, "history")
    verification = maintenance.verify(store, "history")
    assert verification.problems == []
    assert verification.compared_entities == NUM_USERS - 20
    assert verification.snapshots >= 4
    assert maintenance.vacuum(store, "history", timedelta(0)) > 0
    assert maintenance.verify(store, "history").leftovers == []
    assert online(store, [9, 10])["country"] == ["FR", None]
    assert json.loads(run_cli(tmp_path, "health").stdout)
    root = tmp_path / "sketch/shop/history"
    assert root.is_dir()
    store.apply([], objects_to_delete=[store.get_feature_view("history")], partial=False)
    assert not root.exists()


def test_verification_finds_rows_in_the_wrong_shard(tmp_path):
    store = fill(make_store(tmp_path))
    shards = open_view(store, "history").shards
    table = next(shards[1].kept_rows().batches())[1]
    shards[2].append(table)
    shards[2].absorb()
    (problem,) = maintenance.verify(store, "history").problems
    assert f"{len(table)} rows are of entities of other shards than 2" in problem


def reshard(folder, number):
    """Divide the rows, and set the number as the command tells to: a repository as it is opened then."""
    entities = move(folder, number)
    return entities, another(folder, shards=number)


def move(folder, number, wait=lambda seconds: None):
    """Divide the rows in a process of its own."""
    return resharding.reshard(another(folder), "history", number, wait)


def test_rows_are_divided_anew(tmp_path):
    store = fill(make_store(tmp_path, 1))
    store.write_to_online_store("history", frame_of(range(500, 503), "IT"))  # not in the offline store
    maintenance.delete(store, "history", [{"user_id": 3}])
    users = [*range(NUM_USERS + 5), 500, 501, 502]
    expected = online(store, users)
    for number in (4, 2, 1):
        former = store
        entities, store = reshard(tmp_path, number)
        assert entities == NUM_USERS + 2
        assert len(open_view(store, "history").shards) == number
        assert online(store, users) == expected
        assert online(former, users) == expected, "who was there before follows"
        assert len(open_view(former, "history").shards) == number
        store.write_to_online_store("history", frame_of([900 + number], "ES"))
        assert online(former, [900 + number])["country"] == ["ES"]
        maintenance.delete(store, "history", [{"user_id": 900 + number}])
        assert maintenance.verify(store, "history").problems == []
        assert maintenance.verify(store, "history").leftovers != []
        maintenance.vacuum(store, "history")
        assert maintenance.verify(store, "history").leftovers == []
        assert online(store, users) == expected


def write(store):
    store.write_to_online_store("history", frame_of([1], "DE"))


def test_writes_are_refused_while_rows_move(tmp_path):
    store = fill(make_store(tmp_path, 1))
    writer = another(tmp_path)
    writer.write_to_online_store("history", frame_of([7], "IT"))
    refused = []

    def wait(seconds):
        with pytest.raises(ShardError, match="are being divided into other shards") as error:
            write(writer)
        refused.append(error)

    assert resharding.reshard(store, "history", 4, wait) == NUM_USERS
    assert len(refused) == 1


class Killed(BaseException):
    """Stands for the end of a process: nothing is cleaned up."""


@pytest.fixture
def kill_a_move(tmp_path, monkeypatch):
    """Divides rows anew, in a process that is killed when it has filled a shard."""

    def run(number):
        real = resharding._fill

        with monkeypatch.context() as patch:

            def fill_and_die(part, moved):
                real(part, moved)
                for name in ("put_map", "_remove_unfinished"):
                    patch.setattr(resharding, name, lambda *_: None)
                raise Killed

            patch.setattr(resharding, "_fill", fill_and_die)
            with pytest.raises(Killed):
                move(tmp_path, number)

    return run


@pytest.mark.parametrize("number", [1, 4])
def test_a_move_that_was_killed_can_be_taken_back(tmp_path, kill_a_move, number):
    store = fill(make_store(tmp_path, number))
    kill_a_move(8)
    with pytest.raises(ShardError, match=f"or with {number} to leave the rows where they are"):
        write(store)
    beside = another(tmp_path)  # opened while the rows seem to move
    found = maintenance.verify(beside, "history")
    assert [f"or with {number} to leave" in problem for problem in found.problems] == [True]
    assert found.leftovers == []  # which a vacuum would not remove
    assert online(beside, [1, 2])["country"] == ["FR", "FR"]
    entities, again = reshard(tmp_path, number)
    assert entities == NUM_USERS
    for one in (store, beside, again):
        write(one)
        assert online(one, [1, 2])["country"] == ["DE", "FR"]
    assert maintenance.verify(again, "history").leftovers == []


@pytest.mark.parametrize("number", [1, 4])
def test_a_move_that_was_killed_is_done_by_the_next_run(tmp_path, kill_a_move, number, monkeypatch):
    def fails(*_):
        raise StorageError("the disk is full")

    expected = online(fill(make_store(tmp_path, number)), range(NUM_USERS))
    kill_a_move(8)
    with monkeypatch.context() as patch:  # which may fail too, and then lets writers go on
        patch.setattr(resharding.joint_seal, "seal_bases", fails)
        with pytest.raises(StorageError, match="the disk is full"):
            move(tmp_path, 8)
    write(another(tmp_path))
    _, divided = reshard(tmp_path, 8)
    assert online(divided, range(NUM_USERS))["viewed"] == expected["viewed"]
    assert online(divided, [1])["country"] == ["DE"]


@pytest.mark.parametrize(
    ("numbers", "again"),
    combined([(1, 0), (4, 0), (4, 1)], ["the same", "another", "another that fails"]),
    ids=str,
)
def test_readers_follow_a_move_that_was_killed_while_it_told_them(tmp_path, numbers, again, monkeypatch):
    """Its new shards count already; nobody writes to them until all readers are told."""
    number, told = numbers
    store = fill(make_store(tmp_path, number))
    before = another(tmp_path)
    assert online(before, range(NUM_USERS))["country"] == ["FR"] * NUM_USERS
    real, folders = resharding.SnapshotFolder.note_move, []

    def tell_or_die(folder):
        if len(folders) == told:
            raise Killed
        folders.append(folder)
        real(folder)

    with monkeypatch.context() as patch:
        patch.setattr(resharding.SnapshotFolder, "note_move", tell_or_die)
        with pytest.raises(Killed):
            move(tmp_path, 8)
    for one in (store, another(tmp_path)):
        with pytest.raises(ShardError, match="or with 8 to leave the rows where they are"):
            write(one)
        assert online(one, range(NUM_USERS))["country"] == ["FR"] * NUM_USERS
    if again == "another that fails":
        with monkeypatch.context() as patch:
            patch.setattr(resharding.joint_seal, "seal_bases", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                move(tmp_path, 2)
    else:
        assert reshard(tmp_path, 8 if again == "the same" else 2)[0] == NUM_USERS
    changed = [*range(NUM_USERS)]
    another(tmp_path).write_to_online_store("history", frame_of(changed, "DE"))
    for one in (before, store, another(tmp_path)):
        assert online(one, changed)["country"] == ["DE"] * NUM_USERS
    assert maintenance.verify(store, "history").problems == []


def test_two_moves_do_not_overtake_each_other(tmp_path, monkeypatch):
    store = fill(make_store(tmp_path, 2))
    real = resharding.open_view

    def open_and_wait(*arguments):
        former = real(*arguments)
        with monkeypatch.context() as patch:
            patch.setattr(resharding, "open_view", real)
            reshard(tmp_path, 8)
        return former

    monkeypatch.setattr(resharding, "open_view", open_and_wait)
    with pytest.raises(StorageError, match="another process divided its rows into 8 shards just now"):
        resharding.reshard(store, "history", 4, lambda seconds: None)
    monkeypatch.undo()
    divided = another(tmp_path)
    assert online(divided, range(NUM_USERS))["country"] == ["FR"] * NUM_USERS
    assert maintenance.verify(divided, "history").problems == []


def test_former_shards_stay_if_rows_begin_to_move_while_they_are_listed(tmp_path, monkeypatch):
    fill(make_store(tmp_path, 2))
    _, store = reshard(tmp_path, 4)
    storage = storage_of(store)
    real = resharding.former_files

    def list_and_move(storage, shards):
        names = real(storage, shards)
        storage.replace("view.json", ViewFile(replace(shards, moves_to="shards-9-2-0a1b2c3d/")).encode())
        return names

    monkeypatch.setattr(resharding, "former_files", list_and_move)
    assert resharding.remove_former(storage) == 0
    assert (tmp_path / "sketch/shop/history/shards-0-2").exists()


def test_verification_misses_the_folder_of_a_shard(tmp_path):
    store = fill(make_store(tmp_path, 2))
    assert maintenance.verify(store, "history").problems == []
    shutil.rmtree(tmp_path / "sketch/shop/history/shards-0-2/01")
    (problem,) = maintenance.verify(another(tmp_path), "history").problems
    assert "the shards 1 have no rows, and all others have" in problem


def test_the_command_divides_rows_anew(tmp_path, monkeypatch):
    fill(make_store(tmp_path, 2))
    monkeypatch.setattr(view_file, "_SECONDS", 0.0)
    arguments = ["reshard", "history", "--shards", "8"]
    assert json.loads(run_cli(tmp_path, *arguments, "--json").stdout) == [
        {"view": "history", "entities": NUM_USERS}
    ]
    assert "has 8 shards already" in run_cli(tmp_path, *arguments, status=1).output


@pytest.mark.has_long_form
def test_rows_that_are_too_many_for_a_seal_are_kept_and_can_be_divided(tmp_path, monkeypatch):
    monkeypatch.setattr(folding, "MAX_ROWS", NUM_USERS - 1)
    monkeypatch.setattr(build, "MAX_ROWS", NUM_USERS - 1)
    store = fill(make_store(tmp_path, 1, "job"))
    reported = "view 'history': 200 entities have rows, and a seal takes at most 199; the rows are kept"
    with pytest.raises(SketchStoreError, match=re.escape(reported)) as error:
        maintenance.seal(store, "history")
    assert "`feast-sketch reshard history --shards 16`" in str(error.value)
    before = online(store, range(NUM_USERS))
    assert before["country"] == ["FR"] * NUM_USERS
    assert maintenance.inspect(store, "history").snapshot_versions == (None,)
    _, divided = reshard(tmp_path, by_length(4, 16))
    assert maintenance.seal(divided, "history")
    assert online(divided, range(NUM_USERS)) == before


def test_reads_are_held_at_a_snapshot_of_each_shard(tmp_path):
    store = fill(make_store(tmp_path))
    first = maintenance.inspect(store, "history").snapshot_versions
    assert len(first) == 4
    before = online(store, range(20))
    store.write_to_online_store("history", frame_of(range(20), "IT"))
    assert maintenance.seal(store, "history")
    assert online(store, [3])["country"] == ["IT"]
    assert maintenance.pin(store, "history", first) == first
    assert maintenance.inspect(store, "history").is_pinned
    assert online(store, range(20)) == before
    store.write_to_online_store("history", frame_of(range(20), "ES"))
    assert online(another(tmp_path), range(20)) == before
    assert maintenance.unpin(store, "history")
    assert online(store, [3])["country"] == ["ES"]
    with pytest.raises(SettingsError, match=r"shards-0-4/01: there is no snapshot of version 9; there are"):
        maintenance.pin(store, "history", [first[0], 9, *first[2:]])
    with pytest.raises(SettingsError, match="has 4 shards, and 1 version given"):
        maintenance.pin(store, "history", [1])
    reported = run_cli(tmp_path, "pin", "history", ",".join(map(str, first)))
    assert reported.stdout.split()[-1] == ",".join(map(str, first))
    report = json.loads(run_cli(tmp_path, "inspect", "history", "--json").stdout)
    assert report[0]["snapshot_versions"] == list(first)
    run_cli(tmp_path, "pin", "history", "1;2", status=2)


def test_rows_are_rebuilt_from_the_offline_store(tmp_path):
    store = fill(make_store(tmp_path))
    store.write_to_online_store("history", frame_of(range(600, 640), "IT"))
    frame_of(range(NUM_USERS), "ES").to_parquet(tmp_path / "rows.parquet")
    asked = []

    def refuse(dropped):
        asked.append(dropped)
        return False

    assert maintenance.rebuild(store, "history", confirm=refuse) is None
    assert asked[0].entities == 40
    assert online(store, [1, 600])["country"] == ["FR", "IT"]
    assert maintenance.rebuild(store, "history", confirm=lambda dropped: True) == NUM_USERS
    assert online(store, [1, 600])["country"] == ["ES", None]
    assert maintenance.verify(store, "history").problems == []
    reader = SketchReader(tmp_path, "history")
    counts = np.diff(reader.csr("viewed", np.arange(NUM_USERS)).indptr)
    assert counts.tolist() == [len({u % 50, u % 31}) for u in range(NUM_USERS)]
    vocabularies = [layer.numbering("viewed").values for layer in reader.sealed.layers]
    assert all(values.equals(vocabularies[0]) for values in vocabularies)


def test_files_of_tasks_are_committed_in_their_shards(tmp_path):
    store = make_store(tmp_path)
    view = open_view(store, "history")
    table = next(
        open_view(fill(make_store(tmp_path / "from", 1)), "history").shards[0].kept_rows().batches()
    )[1]
    reports = [file.to_report() for file in view.stage([table[:90], table[90:]], "job-1-")]
    list(view.stage([table], "job-2-"))  # of a task that ran again
    other = open_view(another(tmp_path), "history")
    assert online(store, [5])["country"] == [None]
    other.commit_staged([other.staged(entry) for entry in reports])
    assert other.discard_staged("job-") == 4
    assert online(store, range(NUM_USERS))["country"] == ["FR"] * NUM_USERS
    with pytest.raises(ShardError, match="after tasks wrote files for other ones; nothing was committed"):
        other.staged({**reports[0], "shards_folder": ""})
    assert maintenance.seal(store, "history")
    assert maintenance.verify(store, "history").problems == []


def in_turns(task, requests):
    """Runs tasks as an engine would, the first one twice."""
    task(requests[0])
    return [task(request) for request in requests]


@pytest.mark.parametrize("number", [1, 4])
def test_a_seal_by_tasks_is_that_of_one_process(tmp_path, monkeypatch, number):
    monkeypatch.setattr("feast_sketch_store.layers.build.new_salt", lambda: (3, 5))
    stores = [fill(make_store(tmp_path / name, number, "job")) for name in ("tasks", "own")]
    for store in stores:
        maintenance.delete(store, "history", [{"user_id": 7}])
    assert seal_job.seal_by(stores[0], "history", in_turns)
    assert maintenance.seal(stores[1], "history")
    users = range(NUM_USERS + 5)
    assert online(stores[0], users) == online(stores[1], users)
    ours, theirs = (
        [part.snapshots.list()[0].open("base") for part in open_view(store, "history").shards.values()]
        for store in stores
    )
    for (_, arrays), (_, others) in zip(ours, theirs, strict=True):
        assert arrays.keys() == others.keys()
        assert all((arrays[name] == others[name]).all() for name in arrays)
    found = maintenance.verify(stores[0], "history")
    assert found.problems == []
    assert len(found.leftovers) == 2, "of the task that ran twice"
    maintenance.vacuum(stores[0], "history", timedelta(0))
    assert maintenance.verify(stores[0], "history").leftovers == []
    assert not seal_job.seal_by(make_store(tmp_path / "empty"), "history", in_turns)


def test_a_seal_by_tasks_that_waited_for_a_division_seals_the_new_shards(tmp_path):
    store = fill(make_store(tmp_path, 4, "job"))
    online_store_of(store).lock_timeout_seconds = 60.0
    opened, sealed = open_view(store, "history"), []

    def seal_meanwhile(seconds):
        sealed.append(pool.submit(seal_job.seal_by, store, "history", in_turns))
        while opened._seal_lock.acquire(blocking=False):  # until it waits for the division
            opened._seal_lock.release()
            time.sleep(0.001)

    with ThreadPoolExecutor(1) as pool:
        move(tmp_path, 2, seal_meanwhile)
        assert sealed[0].result(60)
    divided = another(tmp_path)
    parts = open_view(divided, "history").shards.values()
    assert [len(part.snapshots.list()) for part in parts] == [2, 2]
    assert online(divided, range(NUM_USERS))["country"] == ["FR"] * NUM_USERS


def test_a_task_that_runs_again_after_a_division_says_that_its_shard_is_gone(tmp_path):
    store, asked = fill(make_store(tmp_path, 4, "job")), []

    def run(task, requests):
        asked.append((task, requests[-1]))
        return in_turns(task, requests)

    assert seal_job.seal_by(store, "history", run)
    move(tmp_path, 2)
    for task, request in asked:
        with pytest.raises(StorageError, match="divided into other shards meanwhile; seal again"):
            task(request)


def test_the_driver_holds_what_shards_share_once(tmp_path):
    store, sent = make_store(tmp_path, 4, "job"), []
    store.write_to_online_store("history", frame_of(range(NUM_USERS), country="a long name of a country"))

    def run(task, requests):
        sent.append((task.keywords["joint"], b"".join(requests)))
        return in_turns(task, requests)

    assert seal_job.seal_by(store, "history", run)
    (_, of_count), (of_all, of_draft) = sent
    assert b"a long name" in of_all
    assert abs(len(of_draft) - len(of_count)) < 100


def test_a_task_that_fails_publishes_nothing(tmp_path):
    store = fill(make_store(tmp_path, 4, "job"))

    def run(task, requests):
        done = [task(request) for request in requests]
        if seal_job.unpack(requests[0])[0]["step"] == seal_job.DRAFT:
            raise RuntimeError("an executor is gone")
        return done

    with pytest.raises(RuntimeError, match="executor"):
        seal_job.seal_by(store, "history", run)
    parts = open_view(store, "history").shards.values()
    assert [part.snapshots.list() for part in parts] == [[]] * 4
    with pytest.raises(SettingsError, match="no engine 'dask'"):
        seal_job.seal(store, "history", "dask")


@pytest.mark.parametrize("number", [1, 4])
def test_seals_of_two_processes_do_not_meet(tmp_path, number):
    store = fill(make_store(tmp_path, number, "job"))
    met = []

    def run(task, requests):
        other = another(tmp_path)
        online_store_of(other).lock_timeout_seconds = 0.0
        with pytest.raises(StorageError, match="another process is sealing this view"):
            seal_job.seal_by(other, "history", in_turns)
        met.append(maintenance.seal(other, "history"))
        return in_turns(task, requests)

    assert seal_job.seal_by(store, "history", run)
    assert met == [False, False], "while values are counted, and while files are written"
    assert maintenance.verify(store, "history").problems == []
