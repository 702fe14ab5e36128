"""The types of features and join keys are stored with a view; readers without Feast take them from there."""

import re
import threading

import pytest
from feast import Field
from feast.protos.feast.types.Value_pb2 import Value
from feast.types import Array, Bytes, Int64, Json, Map, Set, String

from feast_sketch_store import SketchReader
from feast_sketch_store.errors import RowError, SettingsError, UnsupportedFeatureError
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.settings.view_settings import FeatureSettings, ViewSettings
from feast_sketch_store.storage.local import LocalStorage
from feast_sketch_store.storage.names import VIEW_LOCK
from feast_sketch_store.view.shard_map import ShardMap
from feast_sketch_store.view.view import View
from feast_sketch_store.view.view_file import ViewFile
from tests.feast.test_types import TYPES, values_of
from tests.helpers.file_systems import know_files_badly
from tests.helpers.repository import UNSEALED
from tests.helpers.values import country, make_value, numbers, strings


def reader_of(harness, **options):
    return SketchReader(harness.folder.parents[1], "history", refresh_interval_seconds=0.0, **options)


def stored(column, codec):
    """Rows as lists of numbers or bytes that differ if values differ in any bit; sets are sorted."""
    rows = []
    for row in range(len(column)):
        part = column.slice(row, 1)
        values = part.flatten() if codec.is_collection else part
        found = None if part.null_count else codec.to_storage(values).to_pylist()
        rows.append(sorted(set(found)) if found and codec.name == "membership" else found)
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 4])
def test_a_reader_follows_every_type_from_before_the_first_write(make_harness, shards):
    """One reader is opened before the first write, one before each seal: the seal must not change a type."""
    fields = {f"f{number}": dtype for number, dtype in enumerate(TYPES)}
    harness = make_harness(fields, target="error 1e-9", shards=shards, **UNSEALED)
    view = harness.opened
    codecs = [view.settings.features[name].codec for name in fields]
    contents = [*map(values_of, TYPES)]
    readers, written = [reader_of(harness)], []

    def write(number):
        values = [of_type[number % len(of_type)] for of_type in contents]
        written.append(values)
        harness.write(number, dict(zip(fields, values, strict=True)))

    def check():
        users = range(len(written) + 1)
        for codec, values in zip(codecs, zip(*written, strict=True), strict=True):
            expected = stored(codec.to_arrow([*values, None])[0], codec)
            for reader in readers:
                assert stored(reader.arrow(codec.feature, users), codec) == expected, codec

    assert [reader.features for reader in readers] == [[*fields]]
    for number in range(3):  # two shards of 4 have no rows yet
        write(number)
    check()
    readers.append(reader_of(harness))
    assert view.seal()
    check()
    for number in range(3, 6):  # which now have rows and no snapshot
        write(number)
    readers.append(reader_of(harness))
    check()
    assert view.seal()
    check()


def test_readers_keep_order_and_counts_as_declared_before_a_seal_too(make_harness):
    fields = [
        Field(name="exact", dtype=Set(String), tags={"sketch.codec": "exact"}),
        Field(name="n", dtype=Array(Int64), tags={"sketch.codec": "counts"}),
        Field(name="viewed", dtype=Array(String)),
    ]
    harness = make_harness(fields, **UNSEALED)
    reader = reader_of(harness)
    row = {
        "exact": make_value("string_set_val", ["b", "a"]),
        "n": make_value("int64_list_val", [7, 7, 9]),
        "viewed": make_value("string_list_val", ["b", "a", "b"]),
    }
    harness.write(1, row)
    view = harness.opened
    for step in ("unsealed", "sealed"):
        found = reader.csr("n", [1], counts=True)
        values = found.vocabulary.take(found.ids).to_pylist()
        assert dict(zip(values, found.counts.tolist(), strict=True)) == {7: 2, 9: 1}, step
        assert reader.arrow("exact", [1]).to_pylist() == [["b", "a"]], step
        assert sorted(reader.arrow("viewed", [1])[0].as_py()) == ["a", "b"], step
        assert view.seal()


TEXTS, NUMBERS = strings("a"), numbers(5)
REOPEN = r"'x' was .* declared again since it was opened: open it again, with Feast by `store.refresh"

CHANGES = [
    (Set(String), TEXTS, Set(Int64), NUMBERS),
    (Array(String), Value(), Set(String), TEXTS),
    (Json, Value(json_val="{}"), String, Value(string_val="FR")),
    (Bytes, Value(bytes_val=b"\xff"), Map, Value()),
]


@pytest.mark.parametrize("is_sealed", [False, True])
@pytest.mark.parametrize(("dtype", "value", "other", "other_value"), CHANGES)
def test_a_type_that_changes_is_refused_before_anything_is_written(
    make_harness, make_view, is_sealed, dtype, value, other, other_value
):
    harness = make_harness({"x": dtype}, **UNSEALED)
    harness.write(1, {"x": value})
    if is_sealed:
        assert harness.opened.seal()
    before = {path: path.read_bytes() for path in harness.folder.rglob("*") if path.is_file()}
    changed = harness.reopened()
    message = re.escape(
        f"'x' of view 'history' was written as {dtype} and is declared as {other} now; give it a new"
    )
    with pytest.raises(UnsupportedFeatureError, match=message):
        changed.apply(make_view({"x": other}))
    with pytest.raises(UnsupportedFeatureError, match=message):
        changed.write(2, {"x": other_value})
    assert changed.read(1) == [(harness.noon(), {"x": value})], "as its file says"
    assert {path: path.read_bytes() for path in harness.folder.rglob("*") if path.is_file()} == before
    assert harness.reopened().read(1, 2) == [(harness.noon(), {"x": value}), (None, None)]
    # Nor may it change by being removed and added again, as its rows stay in the row log.
    harness.reopened().apply(make_view({"y": String}))
    with pytest.raises(UnsupportedFeatureError, match=message):
        changed.apply()


def test_a_type_may_change_before_the_first_row(make_harness, make_view):
    harness = make_harness({"x": Set(String)})
    early = reader_of(harness)
    assert not harness.seal(), "it has no rows"
    harness.view = make_view({"x": Set(Int64)})
    harness.reopened().apply()
    harness.write(1, {"x": NUMBERS})
    assert reader_of(harness).arrow("x", [1]).to_pylist() == [[5]]
    with pytest.raises(UnsupportedFeatureError, match=REOPEN):
        early.arrow("x", [1])


@pytest.mark.parametrize("has_written", [False, True])
def test_a_process_with_a_former_declaration_does_not_write_into_an_empty_view(
    make_harness, make_view, has_written
):
    harness = make_harness({"x": Set(String)}, **UNSEALED)
    former = harness.reopened()
    assert former.read(1) == [(None, None)]
    if has_written:
        former.write(1, {"x": TEXTS})
    applied = harness.reopened()
    if has_written:
        applied.drop()
    applied.apply(make_view({"x": Set(Int64)}))
    with pytest.raises(SettingsError, match=r"'history' was declared anew.*refresh_registry"):
        former.write(1, {"x": TEXTS})
    former.view = applied.view
    former.write(1, {"x": NUMBERS})
    assert applied.read(1) == former.read(1) != [(None, None)]


@pytest.mark.parametrize("is_sealed", [False, True])
def test_a_view_that_is_dropped_and_made_again_may_have_other_types(make_harness, make_view, is_sealed):
    harness = make_harness({"x": Set(String)}, **UNSEALED)
    early, writer = reader_of(harness), harness.reopened()
    row = {"x": TEXTS}
    writer.write(1, row)
    assert early.arrow("x", [1]).to_pylist() == [["a"]]
    again = harness.reopened()
    again.drop()
    again.apply(make_view({"x": Set(Int64)}))
    again.write(1, {"x": NUMBERS})
    if is_sealed:
        assert again.opened.seal()
    assert reader_of(harness).arrow("x", [1]).to_pylist() == [[5]]
    with pytest.raises(UnsupportedFeatureError, match=REOPEN):
        early.arrow("x", [1])
    with pytest.raises((UnsupportedFeatureError, RowError), match="'x'"):
        writer.write(2, row)
    assert again.read(1, 2)[1] == (None, None)


def test_a_feature_that_is_added_is_read_by_new_readers(make_harness, make_view):
    harness = make_harness({"country": String}, **UNSEALED)
    harness.write(1, country("FR"))
    early = reader_of(harness)
    harness.view = make_view({"country": String, "tags": Set(String)})
    harness.write(2, {**country("FR"), "tags": TEXTS})
    assert early.arrow("country", [1, 2]).to_pylist() == ["FR", "FR"]
    late = reader_of(harness)
    assert late.features == ["country", "tags"]
    assert late.arrow("tags", [1, 2]).to_pylist() == [None, ["a"]]


def test_a_reader_of_a_view_that_is_not_there_says_so(make_harness):
    harness = make_harness({"country": String})
    (harness.folder / "view.json").unlink()
    with pytest.raises(SettingsError, match="'history' is not there yet; `feast apply` makes it"):
        reader_of(harness)
    harness.write(1, country("FR"))
    assert reader_of(harness).arrow("country", [1]).to_pylist() == ["FR"]


def view_with(folder, name):
    """A process's view of one feature."""
    codec = FeatureCodec(name, "string_val")
    return View(LocalStorage(folder), ViewSettings("v", 1e-5, {name: FeatureSettings(codec, 1e-5, 100)}))


@pytest.mark.parametrize("are_known_badly", [False, True])
def test_a_feature_stays_that_another_writer_declares_at_the_same_time(
    tmp_path, user_rows, monkeypatch, are_known_badly
):
    if are_known_badly:
        know_files_badly(monkeypatch)
    view_with(tmp_path, "a").write(user_rows("a"))
    ours, theirs, lease = view_with(tmp_path, "b"), view_with(tmp_path, "c"), LocalStorage.lease

    def lease_later(self, name, *arguments, **named):
        if name == VIEW_LOCK:
            monkeypatch.setattr(LocalStorage, "lease", lease)
            theirs.write(user_rows("c"))
        return lease(self, name, *arguments, **named)

    monkeypatch.setattr(LocalStorage, "lease", lease_later)
    ours.write(user_rows("b"))
    assert LocalStorage.lease is lease
    assert sorted(codec.feature for codec in ViewFile.read(LocalStorage(tmp_path)).codecs) == ["a", "b", "c"]


def test_writers_that_create_a_view_at_once_declare_all_features(tmp_path, user_rows):
    names = [f"f{number}" for number in range(8)]
    start = threading.Barrier(len(names))
    errors = []

    def create(name):
        view = view_with(tmp_path, name)
        start.wait()
        try:
            view.write(user_rows(name))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=create, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    file = ViewFile.read(LocalStorage(tmp_path))
    assert sorted(codec.feature for codec in file.codecs) == names
    assert file.join_keys == {"user_id": "int64_val"}
    assert file.shard_map == ShardMap()
    assert ViewFile.decode(file.encode(), "view.json") == file


@pytest.fixture
def user_rows(make_harness):
    """A row with one string feature, as Feast passes it."""
    harness = make_harness({"x": String})
    return lambda name: [(harness.key(user_id=1), {name: Value(string_val="FR")}, harness.noon(), None)]
