"""Views with shards: each is a complete small view, and together they answer as one view without shards."""

import asyncio
import json
import re
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from unittest.mock import Mock, patch

import numpy as np
import pyarrow as pa
import pytest
from feast.protos.feast.types.Value_pb2 import Int64Set, Value

from feast_sketch_store import SketchReader, shard_of
from feast_sketch_store.errors import DamagedFileError, RowError, SettingsError, ShardError, StorageError
from feast_sketch_store.layers import Goal
from feast_sketch_store.operations.resharding import divide, remove_former
from feast_sketch_store.row_log import RowLog
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.encoding import deletions
from feast_sketch_store.rows.entity_keys import hash_serialized_keys, serialize_entity_keys
from feast_sketch_store.settings.values import KeptValues, shard_count
from feast_sketch_store.settings.view_settings import FeatureSettings, ViewSettings
from feast_sketch_store.snapshot.files import SnapshotFolder
from feast_sketch_store.snapshot.manifest import checksum_of
from feast_sketch_store.storage.base import UncertainWriteError
from feast_sketch_store.storage.local import LocalStorage
from feast_sketch_store.storage.names import REMOVAL_MARK
from feast_sketch_store.view.opening import open_view
from feast_sketch_store.view.removal import remove_view
from feast_sketch_store.view.seal_policy import SealPolicy
from feast_sketch_store.view.shard_map import ShardMap, shard_of_hash, shards_of
from feast_sketch_store.view.view_file import ViewFile, shard_map_of
from tests.helpers.keys import entity_key, user_hashes, user_key
from tests.helpers.meanwhile import once_before
from tests.oracle.messages import feast_values

pytestmark = pytest.mark.slow

VIEWED, CITY = FeatureCodec("viewed", "int64_set_val"), FeatureCodec("city", "string_val")
MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
NUM_USERS = 200
USERS = np.arange(NUM_USERS + 20)  # and some that nobody wrote
BY_JOB = SealPolicy(by_job=True)


def settings_of(num_shards, structure="sets", limit=1_000, top=None):
    goal = Goal("error_rate", 1e-9, structure)
    return ViewSettings(
        "history",
        1e-9,
        {
            "viewed": FeatureSettings(VIEWED, goal, limit, KeptValues(top=top) if top else None),
            "city": FeatureSettings(CITY, 1e-9, limit),
        },
        num_shards=num_shards,
    )


def items_of(user):
    return [n for n in range(60) if (user * 7 + n * n) % (n + 1) == 0]


def row(user, items=None, event=MOMENT):
    values = {
        "viewed": Value(int64_set_val=Int64Set(val=items_of(user) if items is None else items)),
        "city": Value(string_val=f"city {user % 7}"),
    }
    return user_key(user), values, event, None


@pytest.fixture
def make_view(tmp_path):
    """Opens a view, by default without shards, in a store of its own or one that has the same name."""

    def make(num_shards=1, policy=BY_JOB, store=None, served=None, interval=0.0, **options):
        path = tmp_path / (store or str(num_shards)) / "shop" / "history"
        path.mkdir(parents=True, exist_ok=True)
        settings = settings_of(num_shards, **options)
        return open_view(LocalStorage(path), settings, policy, interval, served=served)

    return make


@pytest.fixture
def read_by(tmp_path):
    return lambda store, **options: SketchReader(
        tmp_path / str(store), "history", refresh_interval_seconds=0.0, **options
    )


@pytest.fixture
def read_sealed(make_view, read_by):
    """Makes a reader of a view with so many shards, in which the rows of all users are sealed."""

    def make(num_shards, **options):
        view = make_view(num_shards, **options)
        view.write([row(user) for user in range(NUM_USERS)])
        view.seal()
        return read_by(num_shards)

    return make


def users_of(view, users):
    """Which of the users a read shows."""
    return {user for user, _ in shown(view, users)}


def shown(view, users, features=("viewed", "city")):
    """What a read shows, by user."""
    found = {}
    answer = view.read(user_hashes(users), list(features))
    for name, feature in answer.features.items():
        values = feast_values(feature)
        for index, value in zip(answer.found.tolist(), values, strict=True):
            assert (users[index], name) not in found
            is_set = value.HasField("int64_set_val")
            found[users[index], name] = sorted(value.int64_set_val.val) if is_set else value.string_val
    return found


def test_the_number_of_a_shard_is_the_highest_bits_of_the_hash():
    hashes = np.array([[0, 5], [2**60 - 1, 0], [2**60, 9], [2**64 - 1, 0]], np.uint64)
    assert shards_of(hashes, 16).tolist() == [0, 0, 1, 15]
    assert shards_of(hashes, 1).tolist() == [0, 0, 0, 0]
    assert [shard_of_hash(one.tobytes(), 16) for one in hashes] == [0, 0, 1, 15]
    random = np.random.default_rng(5).integers(0, 2**64, (50, 2), np.uint64)
    for num_shards in (1, 2, 64, 4096):
        one_by_one = [shard_of_hash(one.tobytes(), num_shards) for one in random]
        assert one_by_one == shards_of(random, num_shards).tolist()


def test_a_client_computes_the_shard_of_an_entity():
    numbers = shards_of(user_hashes(range(40)), 16).tolist()
    assert [shard_of({"user_id": user}, 16) for user in range(40)] == numbers
    keys = [entity_key(user_id=Value(int32_val=9)), entity_key(shop_id="a", user_id=9)]
    expected = shards_of(hash_serialized_keys(serialize_entity_keys(keys)), 64).tolist()
    given = [{"user_id": pa.scalar(9, pa.int32())}, {"user_id": 9, "shop_id": "a"}]
    assert [shard_of(entity, 64) for entity in given] == expected
    assert shard_of({"user_id": np.int32(9)}, 64) == shard_of({"user_id": 9}, 64)
    for wrong in (2.5, 2**64, None, True):
        with pytest.raises(RowError, match=rf"'user_id' has the value {wrong};"):
            shard_of({"user_id": wrong}, 16)
    for nobody in ({}, {"user_id": pa.scalar(9, pa.int8())}):
        with pytest.raises(RowError, match="is not an entity: "):
            shard_of(nobody, 16)
    with pytest.raises(ValueError, match="power of two"):
        shard_of({"user_id": 2}, 10)


@pytest.mark.parametrize("number", [0, -2, 3, 4097, 8192, "x", None, 2.5, True])
def test_only_powers_of_two_are_numbers_of_shards(number):
    with pytest.raises(ValueError, match=r"number of shards|is not a number"):
        shard_count(number)


@pytest.mark.parametrize("structure", ["sets", "bloom"])
@pytest.mark.parametrize("is_sealed", [True, False])
def test_a_view_with_shards_answers_as_one_without(make_view, structure, is_sealed):
    views = [make_view(number, structure=structure) for number in (1, 4)]
    for view in views:
        view.write([row(user) for user in range(NUM_USERS)])
        if is_sealed:
            assert view.seal()
        view.write([row(user, [user, 59]) for user in range(5)])
    whole, sharded = (shown(view, USERS.tolist()) for view in views)
    assert sharded == whole
    assert len(whole) == NUM_USERS * 2
    assert [view.stats().sealed_entities for view in views] == [NUM_USERS * is_sealed] * 2
    assert len(views[1].state.row_keys()) == NUM_USERS
    assert (views[1].state.row_keys().entity_hashes == views[0].state.row_keys().entity_hashes).all()


def test_ids_scores_and_vocabularies_are_those_of_one_view(read_sealed):
    whole, sharded = read_sealed(1), read_sealed(8)
    for feature in ("viewed", "city"):
        assert sharded.vocabulary(feature).equals(whole.vocabulary(feature))
        ours, theirs = sharded.csr(feature, USERS), whole.csr(feature, USERS)
        assert (ours.indptr == theirs.indptr).all()
        assert (ours.ids == theirs.ids).all()
    weights = np.random.default_rng(2).random(len(whole.vocabulary("viewed")))
    assert sharded.scores("viewed", USERS, weights) == pytest.approx(whole.scores("viewed", USERS, weights))
    candidates = whole.candidates("viewed", [1, 2, 17, 99])
    assert (
        sharded.contains("viewed", USERS, candidates) == whole.contains("viewed", USERS, candidates)
    ).all()
    for user in range(0, NUM_USERS + 20, 7):
        assert (sharded.ids("viewed", user) == whole.ids("viewed", user)).all()
        assert sharded.scores("viewed", user, weights) == pytest.approx(whole.scores("viewed", user, weights))
        assert (
            sharded.contains("viewed", user, candidates) == whole.contains("viewed", user, candidates)
        ).all()
    assert (sharded.exists(USERS) == whole.exists(USERS)).all()
    assert (sharded.bits("viewed", USERS) == whole.bits("viewed", USERS)).all()
    assert sharded.arrow("city", USERS).equals(whole.arrow("city", USERS))


def test_a_cut_is_that_of_the_whole_view(read_sealed):
    whole, sharded = read_sealed(1, top=9), read_sealed(4, top=9)
    assert len(whole.vocabulary("viewed")) == 9
    assert sharded.vocabulary("viewed").equals(whole.vocabulary("viewed"))
    assert (sharded.csr("viewed", USERS).ids == whole.csr("viewed", USERS).ids).all()
    assert sharded.sealed.cut == whole.sealed.cut


def test_unsealed_values_get_ids_after_the_joint_ones(make_view, read_by):
    view = make_view(4)
    view.write([row(user) for user in range(NUM_USERS)])
    view.seal()
    reader = read_by(4)
    before = reader.vocabulary("viewed")
    view.write([row(user, [1000 + user]) for user in range(30)])
    after = reader.vocabulary("viewed")
    assert after[: len(before)].equals(before)
    assert sorted(after[len(before) :].to_pylist()) == [1000 + user for user in range(30)]
    matrix = reader.csr("viewed", np.arange(30))
    assert matrix.vocabulary.take(matrix.ids).to_pylist() == [1000 + user for user in range(30)]


def test_the_number_of_shards_is_that_of_the_first_row(make_view, caplog):
    make_view(4, store="fixed").write([row(1)])
    for wanted in (1, 2, 16):
        assert len(make_view(wanted, store="fixed").shards) == 4
        assert f"has 4 shards, but its settings say {wanted}, which is read only when" in caplog.messages[-1]
    make_view(1, store="plain").write([row(1)])
    assert len(make_view(4, store="plain").shards) == 1
    assert "has 1 shard, but its settings say 4" in caplog.messages[-1]


def test_two_processes_that_create_a_view_agree_on_its_shards(make_view):
    first, second, other = (make_view(number, store="new") for number in (4, 4, 8))
    first.write([row(1)])
    second.write([row(2)])
    other.write([row(3)])
    for view in (first, second, other):
        view.refresh()
        assert len(view.shards) == 4
        assert users_of(view, [1, 2, 3]) == {1, 2, 3}


SOUND = ViewFile(ShardMap.first(4), (VIEWED,)).encode()


def view_file(**changes):
    """A view's file with other entries, and their checksum."""
    none = b"0" * 32
    content = json.dumps({**json.loads(SOUND), **changes, "checksum": none.decode()}).encode()
    return content.replace(none, checksum_of(content).encode())


@pytest.mark.parametrize(
    "content",
    [
        b"{}",
        b"[]",
        b"not JSON",
        b"",
        SOUND[:-1],
        SOUND.replace(b"viewed", b"wieved"),
        SOUND.replace(b'"num_shards": 4', b'"num_shards": 8'),
        SOUND.replace(json.loads(SOUND)["checksum"].encode(), b"", 1),
        view_file(format_version=2),
        view_file(shards={"folder": "../x/", "num_shards": 4}),
        view_file(shards={"folder": "shards-0-5/", "num_shards": 5}),
        view_file(features=[{"codec": "membership", "name": "viewed"}]),
        view_file(features=None),
    ],
)
def test_a_damaged_file_of_shards_is_told(make_view, tmp_path, content):
    make_view(4, store="damaged").write([row(1)])
    (tmp_path / "damaged/shop/history/view.json").write_bytes(content)
    with pytest.raises(DamagedFileError, match=r"history/view\.json"):
        make_view(4, store="damaged")


@pytest.mark.parametrize("numbers", [(1,), (4,), (4, 1), (1, 4)], ids=str)
@pytest.mark.parametrize("wanted", [1, 4, 8])
def test_a_view_whose_file_is_gone_has_the_shards_of_its_rows(make_view, numbers, wanted):
    """Whatever the settings say; those that the rows moved from are told by their notes."""
    view = make_view(numbers[0], store="lost")
    view.write([row(user) for user in range(20)])
    for number in numbers[1:]:
        divide(view.storage, settings_of(number), BY_JOB, lambda seconds: None)
    storage = make_view(numbers[-1], store="lost").storage
    expected = shown(make_view(numbers[-1], store="lost"), range(20))
    storage.delete(["view.json"])
    found = make_view(wanted, store="lost")
    assert shown(found, range(20)) == expected
    remove_former(storage)
    assert shown(make_view(wanted, store="lost"), range(20)) == expected
    found.write([row(20)])
    assert len(shown(make_view(wanted, store="lost"), range(21), ["city"])) == 21
    assert shard_map_of(storage).num_shards == numbers[-1]


def test_a_view_whose_file_is_gone_is_refused_if_two_divisions_may_count(make_view):
    """The division was killed before it told the former shards."""
    view = make_view(1, store="lost")
    view.write([row(user) for user in range(20)])
    with (
        patch.object(SnapshotFolder, "note_move", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        divide(view.storage, settings_of(4), BY_JOB, lambda seconds: None)
    view.storage.delete(["view.json"])
    for use in (lambda: make_view(1, store="lost"), lambda: remove_former(view.storage)):
        with pytest.raises(
            DamagedFileError, match=r"view\.json: the file is missing.* fresh/ and in shards-0-4-"
        ):
            use()
    view.storage.replace(REMOVAL_MARK, b"")  # a removal deletes the file before the logs
    with pytest.raises(StorageError, match=r"history: the view is being removed\. Try again when"):
        make_view(1, store="lost")
    remove_view(view.storage)
    assert not view.storage.path.exists()


def test_entities_of_shards_that_are_not_served_are_refused(make_view, read_by):
    make_view(16, store="part").write([row(user) for user in range(NUM_USERS)])
    part = make_view(16, store="part", served=[0, 1])
    numbers = shards_of(user_hashes(USERS.tolist()), 16)
    ours = USERS[numbers < 2].tolist()
    assert users_of(part, ours) == {user for user in ours if user < NUM_USERS}
    other = int(USERS[numbers == 7][0])
    with pytest.raises(ShardError, match="in shard 7 of 16, and this process serves the shards 0, 1"):
        part.read(user_hashes([*ours, other]), ["viewed"])
    reader = read_by("part", serve_shards=[0, 1])
    assert reader.exists(np.array(ours)).tolist() == [user < NUM_USERS for user in ours]
    for ask in (reader.exists, lambda users: reader.csr("viewed", users)):
        with pytest.raises(ShardError, match="shard 7"):
            ask(np.array([*ours, other]))
    for ask in (lambda: reader.ids("viewed", other), lambda: reader.contains("viewed", other, [1])):
        with pytest.raises(ShardError, match="shard 7"):
            ask()
    with pytest.raises(SettingsError, match=r"shards 0 to 15, and this process is to serve \[16\]"):
        make_view(16, store="part", served=[3, 16])


def test_who_serves_a_part_writes_everywhere_and_leaves_seals_to_others(make_view):
    whole, part = make_view(4), make_view(4, policy=SealPolicy(0.1, 1), served=[0])
    part.write([row(user) for user in range(NUM_USERS)])
    assert whole.stats().sealed_entities == 0
    assert users_of(whole, USERS.tolist()) == set(range(NUM_USERS))


def test_writes_seal_all_shards_together_when_it_is_due(make_view):
    view = make_view(4, policy=SealPolicy(0.25, 50))
    view.write([row(user) for user in range(50)])
    assert view.stats().sealed_entities == 0
    view.write([row(user) for user in range(NUM_USERS)])  # of as many, the writer waits
    assert view.stats().sealed_entities == NUM_USERS
    for user in range(75):
        view.write([row(user, [1])])
    view.settle()
    assert view.stats().unsealed_rows <= 50
    assert shown(view, [3])[3, "viewed"] == [1]


def test_deltas_of_shards_before_one_that_fails_are_removed(make_view):
    view = make_view(4)
    view.write([row(user) for user in range(NUM_USERS)])
    assert view.seal()
    make_view(4).write([row(user, [1]) for user in range(NUM_USERS)])
    (segment,) = (view.shards[3].storage.path / "fresh").glob("*.log")
    content = segment.read_bytes()
    segment.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
    with pytest.raises(DamagedFileError, match=segment.name):
        view.seal(as_delta=True)
    assert [shard.snapshots.leftovers() for shard in view.shards.values()] == [[]] * 4
    segment.write_bytes(content)
    assert view.seal(as_delta=True)
    assert shown(view, [3])[3, "viewed"] == [1]


def test_a_view_is_dropped_between_absorptions_of_its_shards(make_view):
    """What a shard absorbs after the drop would be a table without a log, which no write goes on from."""
    view = make_view(2)
    view.write([row(user) for user in range(20)])
    drop = threading.Thread(target=remove_view, args=(view.storage,))
    with once_before(RowLog, "_absorb", lambda: (drop.start(), drop.join(0.2))):
        view.absorb()
    drop.join()
    assert not view.storage.path.exists()
    other = make_view(2)
    other.write([row(user) for user in range(3)])
    assert make_view(2).stats().unsealed_rows == 3


def test_a_view_that_was_dropped_elsewhere_gets_its_shards_again(make_view):
    view = make_view(2)
    view.write([row(1)])
    remove_view(view.storage)
    view.write([row(2)])
    assert shard_map_of(view.storage) == view.shard_map
    assert make_view(2).stats().unsealed_rows == 1


@pytest.mark.parametrize("num_shards", [1, 2])
@pytest.mark.parametrize("end", ["seal", "absorb", "vacuum", "seal_if_due"])
def test_nothing_of_a_dropped_view_comes_back_with_its_maintenance(make_view, end, num_shards):
    """Threads that seal, and other processes, may come after the drop."""
    view = make_view(num_shards, interval=1e9)
    view.write([row(1)])
    view.policy = SealPolicy(1e-9, 0)
    remove_view(view.storage)
    assert not getattr(view, end)()
    assert not view.storage.path.exists()
    view.write([row(2, [7])])
    assert view.seal()
    assert shown(make_view(num_shards), [1, 2], ["viewed"]) == {(2, "viewed"): [7]}


@pytest.mark.parametrize("is_new", [False, True])
def test_a_drop_waits_for_shards_that_have_no_log_yet(make_view, monkeypatch, is_new):
    """Who begins the log of a shard within a drop must not go on in the folder that is removed."""
    view, writers = make_view(4), []
    if not is_new:
        view.prepare()
    delete_all = LocalStorage.delete_all

    def write_and_delete(storage):
        if storage.path == view.storage.path:
            writers.append(threading.Thread(target=view.write, args=([row(user) for user in range(20)],)))
            writers[0].start()
            writers[0].join(0.2)
            assert writers[0].is_alive()
            assert not list(storage.path.glob("shards-0-4/*/fresh/*.log"))
        delete_all(storage)

    monkeypatch.setattr(LocalStorage, "delete_all", write_and_delete)
    remove_view(view.storage)
    writers[0].join()
    assert make_view(4).stats().unsealed_rows == 20


@pytest.mark.parametrize("by_task", [False, True])
def test_rows_written_after_a_drop_are_of_a_view_with_shards(make_view, by_task):
    """The drop comes between the look at the file of shards and the rows."""
    view = make_view(2)
    view.write([row(1)])
    with once_before(RowLog, "append", lambda: remove_view(view.storage)):
        asyncio.run(view.write_async([row(2)])) if by_task else view.write([row(2)])
    assert shard_map_of(view.storage) == view.shard_map
    assert make_view(2).stats().unsealed_rows == 1


def test_a_drop_does_not_need_to_read_the_file_of_shards(make_view):
    view = make_view(2)
    view.write([row(1)])
    view.storage.replace("view.json", b"[")
    remove_view(view.storage)
    assert not view.storage.path.exists()


@pytest.mark.parametrize(
    ("is_moving", "left"), [(False, ["shards-1-2"]), (True, ["shards-0-2", "shards-1-2"])]
)
def test_only_shards_that_are_not_those_of_now_are_former(tmp_path, is_moving, left):
    """A process that opened the view before its rows were divided anew vacuums it."""
    storage = LocalStorage(tmp_path)
    for folder in ("shards-0-2", "shards-1-2"):
        storage.replace(f"{folder}/00/fresh/lock", b"")
    now = ShardMap(2, "shards-0-2/" if is_moving else "shards-1-2/", "shards-1-2/" * is_moving)
    storage.replace("view.json", ViewFile(now).encode())
    assert remove_former(storage) == (0 if is_moving else 1)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == left


def test_a_limit_counts_the_values_of_all_shards_and_is_told_once(make_view, caplog):
    """A shard has fewer values than the view, which decides for all of them."""
    view = make_view(4, structure="bloom", limit=59)
    view.write([row(user, [user]) for user in range(60)])
    assert view.seal()
    for shard in view.shards.values():
        layer = shard.state.sealed
        assert (layer.features["viewed"].structure, len(layer.features["viewed"].vocabulary)) == ("sets", 60)
        assert layer.features["city"].structure == "column"
    (message,) = [text for text in caplog.messages if "max_vocabulary" in text]
    assert "feature 'viewed' of view 'history' is sealed exactly: it has 60 different values" in message
    assert shown(view, [7, 59], ["viewed"]) == {(7, "viewed"): [7], (59, "viewed"): [59]}


def test_newer_rows_win_and_deletions_hold_across_seals(make_view):
    view, whole = make_view(4), make_view(1)
    for one in (view, whole):
        one.write([row(user) for user in range(20)])
        one.seal()
        one.write([row(3, [2], MOMENT - timedelta(hours=1)), row(4, [2], MOMENT + timedelta(hours=1))])
        one.delete(deletions([user_key(user) for user in (5, 6, 7, 8)], datetime.now(UTC), None))
    for _ in range(2):
        assert shown(view, list(range(20))) == shown(whole, list(range(20)))
        assert users_of(view, range(20)) == {*range(5), *range(9, 20)}
        assert view.seal()


def test_writes_of_tasks_reach_all_shards(make_view):
    view = make_view(4)

    async def write():
        await asyncio.gather(*(view.write_async([row(user), row(user + 100)]) for user in range(30)))

    asyncio.run(write())
    assert users_of(view, USERS.tolist()) == {*range(30), *range(100, 130)}


def test_a_write_that_fails_in_some_shards_tells_which(make_view):
    view = make_view(4)
    with (
        patch.object(view.shards[2], "append", side_effect=StorageError("the disk is full")),
        pytest.raises(
            StorageError, match=r"rows of 3 shards were written.*shards 2 were not: the disk is full"
        ),
    ):
        view.write([row(user) for user in range(NUM_USERS)])
    numbers = shards_of(user_hashes(range(NUM_USERS)), 4)
    assert users_of(view, range(NUM_USERS)) == {*np.flatnonzero(numbers != 2).tolist()}
    view.write([row(user) for user in range(NUM_USERS)])
    assert len(shown(view, list(range(NUM_USERS)))) == 2 * NUM_USERS


def test_a_write_that_fails_in_all_shards_may_be_uncertain(make_view, monkeypatch):
    view = make_view(4)
    for number, shard in view.shards.items():
        error = UncertainWriteError("no answer") if number == 2 else StorageError("unreachable")
        monkeypatch.setattr(shard, "append", Mock(side_effect=error))
    with pytest.raises(UncertainWriteError, match=r"^no answer$"):
        view.write([row(user) for user in range(NUM_USERS)])


def test_a_staged_batch_that_fails_in_some_shards_tells_which(make_view):
    view = make_view(4)
    files = list(view.stage([view.to_table([[row(user) for user in range(NUM_USERS)]])], "job-"))
    with (
        patch.object(view.shards[2], "commit_staged", side_effect=StorageError("unreachable")),
        pytest.raises(StorageError, match=r"rows of 2 shards were written.*shards 2, 3 were not: unre"),
    ):
        view.commit_staged(files)
    numbers = shards_of(user_hashes(range(NUM_USERS)), 4)
    assert users_of(view, range(NUM_USERS)) == {*np.flatnonzero(numbers < 2).tolist()}
    view.commit_staged(files)
    assert users_of(view, range(NUM_USERS)) == set(range(NUM_USERS))


def test_a_seal_that_fails_in_one_shard_publishes_none(make_view):
    view = make_view(4)
    view.write([row(user) for user in range(NUM_USERS)])
    with (
        patch.object(view.shards[3], "draft", side_effect=StorageError("the disk is full")),
        pytest.raises(StorageError, match="the disk is full"),
    ):
        view.seal()
    for shard in view.shards.values():
        assert shard.snapshots.list() == []
        assert shard.snapshots.leftovers() == []
    assert view.seal()
    assert view.stats().sealed_entities == NUM_USERS


def test_a_damaged_snapshot_of_a_shard_falls_back_to_the_one_before(make_view, read_by, tmp_path):
    view = make_view(4)
    view.write([row(user) for user in range(NUM_USERS)])
    view.seal()
    view.write([row(user, [1, 2]) for user in range(NUM_USERS)])
    view.seal()
    newest = view.shards[1].snapshots.list()[0]
    path = max(
        (tmp_path / "4/shop/history/shards-0-4/01/snapshots").glob("*.base*"), key=lambda p: p.stat().st_mtime
    )
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    reader = read_by(4)
    matrix = reader.csr("viewed", np.arange(NUM_USERS))
    assert np.diff(matrix.indptr).tolist() == [2] * NUM_USERS, newest.name


def test_a_few_rows_leave_shards_empty(make_view, read_by):
    view = make_view(16)
    assert not view.seal()
    view.write([row(1), row(2)])
    assert view.seal()
    reader = read_by(16)
    assert reader.exists(np.arange(4)).tolist() == [False, True, True, False]
    assert reader.ids("viewed", 3).tolist() == []
    late = next(
        user
        for user in range(100, 999)
        if not view.shards[shards_of(user_hashes([user]), 16)[0]].state.sealed.num_entities
    )
    view.write([row(late, [7])])  # into a shard that the reader knew as empty
    assert reader.arrow("viewed", np.array([late])).to_pylist() == [[7]]


def test_the_settings_of_now_reach_all_shards(make_view):
    view = make_view(4)
    view.settings = replace(view.settings, presence_error_rate=1e-4)
    for shard in view.shards.values():
        assert shard.settings.presence_error_rate == 1e-4
    followed = ShardMap.first(4).followed_by(8)
    assert re.fullmatch("shards-1-8-[0-9a-f]{8}/", followed.folder)
    assert followed == ShardMap(8, followed.folder)
