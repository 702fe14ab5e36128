"""`update` and `teardown` make and remove exactly what they should."""

import itertools
import re
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from feast import Field
from feast.protos.feast.types.Value_pb2 import Int64List, Value
from feast.types import Array, Float32, Int64, Json, String

from feast_sketch_store import SketchOnlineStore, SketchReader
from feast_sketch_store.errors import SettingsError, SketchStoreError, UnsupportedFeatureError
from feast_sketch_store.operations.resharding import divide
from feast_sketch_store.row_log import RowLog
from feast_sketch_store.storage.local import LocalStorage
from feast_sketch_store.storage.names import SEAL_LOCK
from feast_sketch_store.view.rebuilding import rebuild
from tests.helpers import repository
from tests.helpers.length import by_length
from tests.helpers.repository import SEALED, STATES, UNSEALED
from tests.helpers.values import country

FRANCE = country("FR")


def test_apply_makes_a_folder_and_a_file_for_each_view_and_nothing_else(make_config, make_view, tmp_path):
    config, store = make_config(), SketchOnlineStore()
    store.update(config, [], [make_view(name="a"), make_view(name="b")], [], [], False)
    made = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*"))
    views = [
        f"sketch/shop/{part}"
        for part in ("a", "a/view.json", "a/view.lock", "b", "b/view.json", "b/view.lock")
    ]
    assert made == ["sketch", "sketch/shop", *views]


def test_a_deleted_view_is_removed_with_its_rows_and_the_others_stay(make_harness, make_view):
    harness = make_harness(view=make_view({"country": String}, name="gone"))
    kept = make_view({"country": String}, name="kept")
    harness.store.update(harness.config, [], [kept], [], [], False)
    harness.write(1, FRANCE)
    other = replace(harness, view=kept)
    other.write(1, FRANCE)
    harness.store.update(harness.config, [harness.view], [kept], [], [], False)
    assert not harness.folder.exists()
    assert harness.read(1) == [(None, None)]
    assert other.shown(1) == [FRANCE]


def test_teardown_removes_the_project_and_leaves_others(make_harness, make_view):
    view = make_view({"country": String})
    one, other = make_harness(view=view, project="one"), make_harness(view=view, project="other")
    one.write(1, FRANCE)
    other.write(1, country("DE"))
    assert [harness.countries(1) for harness in (one, other)] == [["FR"], ["DE"]]
    one.store.teardown(one.config, [], [])  # Feast does not name stream views: none is named here
    assert not one.folder.parent.exists()
    assert other.countries(1) == ["DE"]
    one.store.teardown(one.config, [view], [])


def test_teardown_holds_the_lease_of_each_view_that_it_removes(make_harness, make_view, monkeypatch):
    """So it waits for the seals of other processes, and none of them seals what is half gone."""
    harness = make_harness(view=make_view({"country": String}))
    harness.write(1, FRANCE)
    delete_all, removed = LocalStorage.delete_all, {}

    def watched(storage):
        if (storage.path / SEAL_LOCK).exists():
            with LocalStorage(storage.path).lease(SEAL_LOCK) as is_free:
                removed[storage.path] = is_free
        delete_all(storage)

    monkeypatch.setattr(LocalStorage, "delete_all", watched)
    harness.store.teardown(harness.config, [], [])
    assert removed == {harness.folder: False}
    assert not harness.folder.parent.exists()


def test_one_refusal_names_every_feature_of_every_view(make_config, make_view, tmp_path):
    wrong = {"sketch.codec": "membership"}
    views = [
        make_view([Field(name="price", dtype=Float32, tags=wrong)], name="offers"),
        make_view([Field(name=name, dtype=Json, tags=wrong) for name in ("when", "about")], name="visits"),
        make_view({"color": String, "Color": String}, name="cars"),
        make_view([Field(name="x", dtype=String, tags={"sketch.filter": "sets"})], name="old"),
    ]
    with pytest.raises(SettingsError) as caught:
        SketchOnlineStore().update(make_config(), [], views, [], [], False)
    first, *others = str(caught.value).splitlines()
    assert first == "5 settings must change:"
    names = [
        "'price' of view 'offers'",
        "'when' of view 'visits'",
        "'about' of view 'visits'",
        "'Color'",
        "'sketch.filter'",
    ]
    assert all(name in line for name, line in zip(names, others, strict=True))
    assert not (tmp_path / "sketch").exists()


@pytest.mark.parametrize("options", STATES)
@pytest.mark.parametrize(
    "refused",
    [
        [Field(name="country", dtype=String), Field(name="level", dtype=String)],
        [
            Field(name="country", dtype=String, tags={"sketch.codec": "precise"}),
            Field(name="level", dtype=Int64),
        ],
    ],
    ids=["type", "tag"],
)
def test_a_view_is_read_while_the_registry_has_a_refused_declaration(
    make_harness, make_view, caplog, options, refused
):
    # Feast's registry on SQL holds it, because Feast asks the online store last.
    harness = make_harness({"country": String, "level": Int64}, **options)
    harness.write(1, FRANCE)
    declared, harness.view = harness.view, make_view(refused)
    later = harness.reopened()
    for one in (harness, later):
        for _ in range(2):
            assert one.shown(1, features=["country"]) == [FRANCE]
        assert caplog.text.count("is read as it was declared before") == 1
        with pytest.raises((SettingsError, UnsupportedFeatureError)):
            one.write(2, FRANCE)
    for one in (harness, later):
        one.view = declared
        one.write(2, FRANCE)
        assert one.shown(1, 2) == [FRANCE, FRANCE]


def numbers(name, **tags):
    """An Array of Int64 with tags of this store."""
    return Field(name=name, dtype=Array(Int64), tags={f"sketch.{tag}": value for tag, value in tags.items()})


COUNTED, IDS = numbers("v", codec="counts"), numbers("i", ids_of="v")


@pytest.mark.parametrize("options", STATES)
@pytest.mark.parametrize("is_gained", [True, False], ids=["gained", "lost"])
@pytest.mark.parametrize(
    ("rows", "without", "tagged", "tag"),
    [
        ("replace", [COUNTED, numbers("n")], [COUNTED, numbers("n", of="v")], "of"),
        ("append", [COUNTED, IDS, numbers("n")], [COUNTED, IDS, numbers("n", of="v")], "of"),
        ("append", [numbers("v"), numbers("n")], [COUNTED, numbers("n", ids_of="v")], "ids_of"),
        (
            "append",
            [numbers("n")],
            [numbers("i", ids_of="n"), numbers("n", codec="counts")],
            "codec: counts",
        ),
        ("append", [numbers("n")], [numbers("n", codec="list")], "codec: list"),
    ],
    ids=["counts", "counts that grow", "ids", "values", "list"],
)
def test_a_feature_with_rows_keeps_the_tags_that_say_what_its_rows_in_the_log_mean(
    make_harness, options, is_gained, rows, without, tagged, tag
):
    declared = {"ttl": timedelta(days=9), "tags": {"sketch.rows": rows}}
    before, after = (
        repository.make_view(fields, **declared) for fields in (without, tagged)[:: is_gained or -1]
    )
    harness = make_harness(view=before, **options)
    value = Value(int64_list_val=Int64List(val=[1, 2]))
    harness.write(1, {field.name: value for field in before.features}, datetime.now(UTC))
    (shown,) = harness.reopened().shown(1)
    assert sorted(shown["n"].int64_list_val.val) == [1, 2]
    kinds = ("Array(Int64)", f"Array(Int64) with the tag sketch.{tag}")[:: is_gained or -1]
    refusal = "'n' of view 'history' was written as {} and is declared as {} now; give it a new name"
    with pytest.raises(UnsupportedFeatureError, match=re.escape(refusal.format(*kinds))):
        harness.reopened().apply(after)
    assert harness.reopened().shown(1) == [shown]


@pytest.mark.parametrize("options", STATES)
def test_a_feature_can_be_added_and_removed(make_harness, make_view, options):
    harness = make_harness({"country": String}, **options)
    harness.write(1, FRANCE)
    harness.apply(make_view({"country": String, "city": String}))
    assert harness.shown(1) == [FRANCE]
    both = {**FRANCE, "city": Value(string_val="Paris")}
    harness.write(2, both)
    assert harness.shown(1, 2) == [FRANCE, both]
    harness.view = make_view({"city": String})
    harness.write(3, {"city": Value(string_val="Lyon")})
    cities = [{"city": Value(string_val=name)} for name in ("Paris", "Lyon")]
    assert harness.shown(1, 2, 3) == [{}, *cities]


def test_a_process_that_does_not_know_a_new_feature_does_not_seal_it_away(make_harness, make_view):
    old = make_harness({"country": String}, **UNSEALED)
    new = old.reopened()
    new.apply(make_view({"country": String, "city": String}))
    new.write(1, {**FRANCE, "city": Value(string_val="Paris")})
    old.write(2, FRANCE)
    view = old.opened
    shards = replace(view.settings, num_shards=2)
    for seal in (
        view.seal,
        lambda: rebuild(view, lambda own: own, keep=True),
        lambda: divide(view.storage, shards, view.policy, lambda seconds: None),
    ):
        with pytest.raises(SettingsError, match="the features city, which this process does not know"):
            seal()
    old.reopened().apply()
    new.write(3, {"city": Value(string_val="Lyon")})
    assert old.seal(), "the feature is removed, though others still write it"


@pytest.mark.parametrize("as_delta", [False, True])
def test_a_feature_that_is_written_as_a_seal_begins_is_not_sealed_away(
    make_harness, make_view, monkeypatch, as_delta
):
    old = make_harness({"country": String}, **UNSEALED)
    old.write(1, FRANCE)
    view = old.opened
    assert view.seal()
    old.write(2, FRANCE)
    new = old.reopened()
    new.view = make_view({"country": String, "city": String})
    absorb, both = RowLog.absorb, {**FRANCE, "city": Value(string_val="Paris")}

    def write_before(log):
        monkeypatch.undo()
        new.apply()
        new.write(1, both)
        return absorb(log)

    monkeypatch.setattr(RowLog, "absorb", write_before)
    with pytest.raises(SettingsError, match="the features city, which this process does not know"):
        view.seal(as_delta)
    assert new.reopened().shown(1, 2) == [both, FRANCE]


@pytest.mark.parametrize("options", STATES)
class TestJoinKeys:
    """Rows are found by their join keys, so these cannot change under them."""

    @pytest.mark.parametrize(
        ("join_keys", "reported"),
        [
            ({"member_id": Int64}, r"by user_id \(int64\).*keys member_id \(int64\)"),
            ({"user_id": String}, r"by user_id \(int64\).*keys user_id \(string\)"),
        ],
        ids=["renamed", "of another type"],
    )
    def test_a_change_is_refused_at_apply(self, make_harness, make_view, options, join_keys, reported):
        harness = make_harness({"country": String}, **options)
        harness.write(1, FRANCE)
        with pytest.raises(SettingsError, match=reported):
            harness.reopened().apply(make_view({"country": String}, join_keys=join_keys))
        assert harness.reopened().shown(1) == [FRANCE]

    def test_the_same_keys_and_an_empty_view_are_taken(self, make_harness, make_view, options):
        harness = make_harness({"country": String}, **options)
        harness.reopened().apply(make_view({"country": String}, join_keys={"member_id": Int64}))
        harness.write(1, FRANCE)
        harness.reopened().apply(make_view({"country": String}, join_keys={"user_id": Int64}))


@pytest.mark.parametrize("options", STATES)
def test_a_rename_by_case_is_refused_at_apply_and_at_a_write(make_harness, make_view, options):
    harness = make_harness({"Country": String}, **options)
    harness.write(1, {"Country": FRANCE["country"]})
    other = harness.reopened()
    other.view = make_view({"country": String})
    with pytest.raises(UnsupportedFeatureError) as caught:
        other.apply()
    for part in ("'Country'", "'country'", "only by case", "Name the feature 'Country' again"):
        assert part in str(caught.value)
    with pytest.raises(UnsupportedFeatureError, match="only by case"):
        other.write(2, FRANCE)
    assert harness.reopened().shown(1, 2) == [{"Country": FRANCE["country"]}, None]


# -- drops that others are in the way of -----------------------------------------------------------


@pytest.mark.slow
@pytest.mark.has_long_form
def test_a_view_can_be_dropped_while_it_is_written(make_harness):
    """Whatever writers do meanwhile: nothing of what was written before a drop comes back."""
    harness = make_harness({"country": String}, **SEALED)
    for round_ in range(by_length(2, 10)):
        old, new = range(round_ * 1000, round_ * 1000 + 5), range(round_ * 1000 + 500, round_ * 1000 + 510)
        for user in old:
            harness.write(user, FRANCE)
        done, writing = threading.Event(), threading.Barrier(3)

        def write(writer, users=new, done=done, writing=writing):
            for number in itertools.count():
                # A writer that is hit in the middle gets an error.
                with suppress(SketchStoreError):
                    writer.write(users[number % len(users)], FRANCE)
                if not number:
                    writing.wait()
                if done.is_set():
                    return

        with ThreadPoolExecutor(2) as pool:
            writers = [pool.submit(write, harness.reopened()) for _ in range(2)]
            writing.wait()
            harness.drop()
            done.set()
            for writer in writers:
                writer.result()
        assert harness.reopened().read(*old) == [(None, None)] * len(old)
        harness.write(1, FRANCE)
        assert harness.reopened().shown(1) == [FRANCE]
    harness.drop()
    assert list(harness.folder.parent.iterdir()) == []


def test_what_a_killed_drop_left_is_removed_by_the_next(make_harness, monkeypatch):
    harness = make_harness({"country": String})
    harness.write(1, FRANCE)

    def kill(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("shutil.rmtree", kill)
    with pytest.raises(KeyboardInterrupt):
        harness.drop()
    monkeypatch.undo()
    assert harness.reopened().read(1) == [(None, None)]
    assert len(list(harness.folder.parent.iterdir())) == 1
    with pytest.raises(SettingsError, match="no feature view 'history'; there is none yet"):
        SketchReader(harness.folder.parents[1], "history")
    harness.drop()
    assert list(harness.folder.parent.iterdir()) == []


@pytest.mark.parametrize("how", ["update", "teardown"])
def test_the_rows_of_a_linked_view_are_removed_too(make_harness, tmp_path, how):
    harness = make_harness({"country": String}, **SEALED)
    elsewhere = tmp_path / "large disk" / "history"
    elsewhere.mkdir(parents=True)
    shutil.rmtree(harness.folder)  # which was made by the first apply
    harness.folder.symlink_to(elsewhere)
    harness.write(1, FRANCE)
    assert any(elsewhere.rglob("*.sketch"))
    if how == "update":
        harness.drop()
    else:
        harness.store.teardown(harness.config, [], [])
    assert [path.name for path in tmp_path.rglob("*") if not path.is_dir()] == []
    assert not harness.folder.is_symlink()
    assert harness.read(1) == [(None, None)]
    harness.write(1, FRANCE)
    assert harness.read(1)[0][1] == FRANCE


def test_a_linked_project_is_torn_down(make_harness, tmp_path):
    harness = make_harness({"country": String})
    elsewhere = tmp_path / "large disk"
    elsewhere.mkdir()
    shutil.rmtree(harness.folder.parent)
    harness.folder.parent.symlink_to(elsewhere)
    harness.write(1, FRANCE)
    harness.store.teardown(harness.config, [], [])
    assert [path.name for path in tmp_path.rglob("*") if not path.is_dir()] == []
    assert not harness.folder.parent.is_symlink()
