"""Bad input gives one clear error or a correct result, and the state before it stays readable."""

import asyncio
import os
import re
import shutil
import tempfile
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from unittest.mock import Mock

import pandas as pd
import pyarrow as pa
import pytest
from feast.protos.feast.types.Value_pb2 import Int64List, Value
from feast.repo_config import FeastConfigError, load_repo_config

from feast_sketch_store.adapter.responses import hash_entity_keys, read_vectors
from feast_sketch_store.errors import DamagedFileError, RowError, StorageError
from tests.helpers.repository import SEALED, STATES, UNSEALED
from tests.helpers.snapshots import ranges_of
from tests.helpers.values import strings

# Python represents them where they are given, and not in UTC.
TOO_LATE = datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-12)))
TOO_EARLY = datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))


def items(*values):
    return {"viewed": strings(*values)}


def test_a_wrong_option_beside_credentials_shows_none_of_them(tmp_path):
    (tmp_path / "feature_store.yaml").write_text(
        "project: p\nprovider: local\nregistry: r.db\nonline_store:\n  type: sketch\n  refresh: 5\n"
        "  storage_options: {secret_access_key: hunter2}\n"
    )
    with pytest.raises(FeastConfigError, match=r"online_store: refresh: .*a duration is") as raised:
        load_repo_config(tmp_path, tmp_path / "feature_store.yaml")
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("kind", [pa.large_string(), pa.timestamp("us", "UTC")], ids=["feature", "moment"])
def test_a_write_for_which_memory_is_short_does_not_blame_its_rows(make_harness, monkeypatch, kind):
    harness, make_array = make_harness(), pa.array

    def short(values, type=None, **options):
        if type == kind:
            raise pa.ArrowMemoryError("malloc of size 64 failed")
        return make_array(values, type, **options)

    harness.write(1, items("a"))
    with monkeypatch.context() as patched:
        patched.setattr(pa, "array", short)
        with pytest.raises(MemoryError, match="malloc of size 64"):
            harness.write(2, items("b"))
    assert [event is None for event, _ in harness.read(1, 2)] == [False, True]


def test_a_write_that_lacks_memory_to_compress_its_rows_is_refused_and_says_so(make_harness, monkeypatch):
    harness = make_harness()
    harness.write(1, items("a"))
    with monkeypatch.context() as short:
        error = OSError("ZSTD compression failed: Allocation error : not enough memory")
        short.setattr("feast_sketch_store.row_log.records.encode_table", Mock(side_effect=error))
        with pytest.raises(StorageError, match=r"rows cannot be written: ZSTD .* not enough memory"):
            harness.write(1, items("b"))
    assert harness.shown(1) == [items("a")]


def test_a_write_that_is_durable_does_not_fail_for_want_of_memory_to_load_it(
    make_harness, monkeypatch, caplog
):
    harness = make_harness()
    harness.write(1, items("a"))
    assert harness.shown(1) == [items("a")]  # the next write loads its rows at once
    with monkeypatch.context() as short:
        error = pa.ArrowMemoryError("malloc of size 64 failed")
        short.setattr("feast_sketch_store.view.loading.ExactLayer", Mock(side_effect=error))
        harness.write(1, items("b"))
        assert harness.shown(1) == [items("a")]
    assert caplog.text.count("a refresh needs more memory than this process can have; serving") == 1
    harness.write(2, items("c"))
    assert harness.shown(1, 2) == [items("b"), items("c")]


@pytest.mark.parametrize("options", STATES)
class TestRefusedWrites:
    """A refused batch leaves nothing behind."""

    @pytest.mark.parametrize(
        ("values", "parts"),
        [
            ({"viewed": Value(string_val="a")}, ["'viewed'", "string_set_val", "string_val", "'history'"]),
            ({"viewed": Value(int64_list_val=Int64List(val=[1]))}, ["'viewed'", "int64_list_val"]),
            ({"seen": Value(string_val="a")}, ["seen", "'history'"]),
        ],
    )
    def test_wrong_value(self, make_harness, options, values, parts):
        harness = make_harness(**options)
        harness.write(1, items("a"))
        key, now = harness.key(user_id=2), harness.noon()
        with pytest.raises(RowError) as caught:
            harness.write_many([(key, items("b"), now, None), (key, values, now, None)])
        assert all(part in str(caught.value) for part in parts)
        assert harness.reopened().read(1, 2) == [(now, items("a")), (None, None)]

    @pytest.mark.parametrize("event", [None, pd.NaT, "2026-05-01", object()])
    def test_wrong_event_timestamp(self, make_harness, options, event):
        harness = make_harness(**options)
        with pytest.raises(RowError, match="timestamp"):
            harness.write(1, items("a"), event)
        assert harness.read(1) == [(None, None)]

    @pytest.mark.parametrize("moment", [TOO_LATE, TOO_EARLY])
    @pytest.mark.parametrize("column", ["event", "created"])
    def test_a_timestamp_that_no_reader_can_represent(self, make_harness, options, moment, column):
        harness = make_harness(**options)
        harness.write(1, items("a"))
        now, key = harness.noon(), harness.key(user_id=2)
        times = (moment, None) if column == "event" else (now, moment)
        rows = [(harness.key(user_id=1), items("b"), now, None), (key, items("c"), *times)]
        message = (
            f"row 1 of the batch has an? {column} timestamp (after the year 9999|before the year 1) in UTC"
        )
        with pytest.raises(RowError, match=message):
            harness.write_many(rows)
        with pytest.raises(RowError, match=message):
            asyncio.run(harness.store.online_write_batch_async(harness.config, harness.view, rows, None))
        assert harness.reopened().read(1, 2) == [(now, items("a")), (None, None)]


ODD_NAMES = ["../x", "a b", "Größe", "x" * 300, "CON", "a/b", "History", ".", "..", "%41", "a\nb", "~"]


@pytest.mark.parametrize(
    ("project", "name"),
    [("shop", name) for name in ODD_NAMES] + [(project, "v") for project in ("Größe", "x" * 300, "Shop")],
)
def test_names_that_a_path_cannot_hold(make_harness, make_view, tmp_path, project, name):
    """Feast itself refuses a project name with other characters than letters, digits, _ and -."""
    harness = make_harness(view=make_view(name=name), project=project, **SEALED)
    other = make_harness(view=make_view(name="history"), project=project)
    harness.write(1, items("a"))
    assert harness.reopened().shown(1) == [items("a")]
    assert other.read(1) == [(None, None)]
    assert harness.folder.resolve().is_relative_to((tmp_path / "sketch").resolve())
    assert len(list((tmp_path / "sketch").iterdir())) == 1
    harness.store.teardown(harness.config, [harness.view], [])
    assert not list((tmp_path / "sketch").iterdir())


def test_a_snapshot_of_another_view_is_refused(make_harness, make_view):
    mine, other = (make_harness(view=make_view(name=name)) for name in ("history", "other"))
    other.write(1, items("theirs"))
    mine.write(1, items("own"))
    other.seal()
    shutil.copytree(other.folder / "snapshots", mine.folder / "snapshots")
    with pytest.raises(DamagedFileError, match="is of another view, 'other'; remove it"):
        mine.reopened().read(1)
    assert mine.seal()
    assert mine.reopened().shown(1) == [items("own")]


def test_a_path_that_is_a_file(make_harness, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StorageError, match="file"):
        make_harness(path=str(tmp_path / "file"))


@contextmanager
def _without_write_permission(folder: Path):
    """Make a folder read-only for this process; root gives its rights up meanwhile."""
    is_root = os.geteuid() == 0
    paths = [folder, *folder.rglob("*")]
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    if is_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
        for path in paths:
            path.chmod(0o755)


@pytest.fixture
def public_folder():
    """A folder that other users may enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


def test_an_unwritable_path_refuses_writes_and_still_serves(make_harness, public_folder):
    harness = make_harness(path=str(public_folder / "sketch"), **SEALED)
    harness.write(1, items("a"))
    with _without_write_permission(public_folder / "sketch"):
        with pytest.raises(StorageError, match=str(public_folder)):
            harness.write(2, items("b"))
        reopened = harness.reopened()
        assert reopened.shown(1, 2) == [items("a"), None]
        with pytest.raises(StorageError, match=str(public_folder)):
            make_harness(path=str(public_folder / "sketch"), project="another")
    harness.write(2, items("b"))
    assert harness.shown(2) == [items("b")]


def _damage(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == "flip":
        content[len(content) // 2] ^= 1
    elif how == "truncate":
        del content[len(content) // 2 :]
    elif how == "gone":
        path.unlink()
        return
    else:
        content.clear()
    path.write_bytes(content)


DAMAGED_SNAPSHOTS = pytest.mark.parametrize(
    ("file", "how"),
    [(file, how) for file in ("base.sketch", "json") for how in ("flip", "truncate", "empty")]
    + [("base.sketch", "gone")],
)


@DAMAGED_SNAPSHOTS
def test_a_damaged_snapshot_falls_back_to_the_one_before(make_harness, file, how, caplog):
    harness = make_harness(refresh="0", **SEALED)
    for user in range(3):
        harness.write(user, items(f"i{user}"))
    newest = sorted((harness.folder / "snapshots").glob(f"*.{file}"))[-1]
    _damage(newest, how)
    assert harness.reopened().shown(0, 1, 2) == [items(f"i{u}") for u in range(3)]
    assert newest.name in caplog.text


@DAMAGED_SNAPSHOTS
def test_when_every_snapshot_is_damaged_the_error_names_the_file_and_the_way_out(make_harness, file, how):
    harness = make_harness(refresh="0", **SEALED)
    harness.write(1, items("a"))
    (snapshot,) = (harness.folder / "snapshots").glob(f"*.{file}")
    _damage(snapshot, how)
    with pytest.raises(DamagedFileError) as caught:
        harness.reopened().read(1)
    assert str(snapshot) in str(caught.value)
    assert "feast-sketch seal" in str(caught.value)
    with pytest.raises(DamagedFileError):
        harness.reopened().read(1)
    healer = harness.reopened()
    assert healer.seal()
    assert healer.shown(1) == [items("a")]
    assert harness.reopened().shown(1) == [items("a")]


ORDER_DAMAGED = pytest.mark.parametrize("how", ["flip", "truncate", "empty", "gone"])


@ORDER_DAMAGED
def test_a_damaged_order_index_falls_back_to_the_snapshot_before_and_fails_no_write(
    make_harness, how, caplog
):
    """Only rows that may be late need the index: those that are not newer than what was sealed."""
    harness = make_harness(refresh="0", **UNSEALED)
    for user in range(2):
        harness.write(user, items(f"i{user}"))
        harness.seal()
    reader = harness.reopened()
    assert reader.shown(0) == [items("i0")]
    newest = sorted((harness.folder / "snapshots").glob("*.order.sketch"))[-1]
    _damage(newest, how)
    wanted = [items("i0"), items("i1"), items("i2"), None]
    for user, writer in ((2, harness.reopened()), (3, harness.reopened())):
        writer.write(user, items(f"i{user}"))
        for read in (writer, reader, harness.reopened()):
            assert read.shown(0, 1, 2, 3) == wanted
        wanted[3] = items("i3")
    assert harness.shown(0, 1, 2, 3) == wanted
    assert newest.name in caplog.text
    assert harness.seal()
    assert harness.reopened().shown(0, 1, 2, 3) == wanted


@ORDER_DAMAGED
def test_a_write_is_kept_though_the_only_order_index_is_damaged(make_harness, how):
    harness = make_harness(refresh="0", **UNSEALED)
    harness.write(1, items("a"))
    harness.seal()
    (index,) = (harness.folder / "snapshots").glob("*.order.sketch")
    _damage(index, how)
    writer = harness.reopened()
    writer.write(2, items("b"))
    with pytest.raises(DamagedFileError, match=f"{index.name}.*feast-sketch seal"):
        harness.reopened().read(2)
    assert writer.seal()
    assert writer.shown(1, 2) == [items("a"), items("b")]
    assert harness.reopened().shown(1, 2) == [items("a"), items("b")]


def test_a_snapshot_whose_manifest_is_gone_is_none(make_harness):
    """Readers know manifests only; the rows are in the row log all the same."""
    harness = make_harness(refresh="0", **SEALED)
    harness.write(1, items("a"))
    (manifest,) = (harness.folder / "snapshots").glob("*.json")
    manifest.unlink()
    assert harness.reopened().shown(1) == [items("a")]
    assert harness.opened.vacuum() >= 2
    assert list((harness.folder / "snapshots").iterdir()) == []


@pytest.mark.parametrize("how", ["truncate", "empty"])
@pytest.mark.parametrize("pattern", ["_delta_log/*0.json", "*.parquet"])
def test_a_damaged_row_log_is_named_and_a_running_reader_goes_on(make_harness, how, pattern, caplog):
    harness = make_harness(refresh="0")
    harness.write(1, items("a"))
    assert harness.shown(1) == [items("a")]
    harness.reopened().opened.absorb()
    (damaged,) = (harness.folder / "rows").glob(pattern)
    _damage(damaged, how)
    with pytest.raises(DamagedFileError, match=damaged.name):
        harness.reopened().read(1)
    assert harness.shown(1) == [items("a")]


def test_a_running_reader_warns_once_of_a_damaged_commit(make_harness, caplog):
    harness = make_harness(refresh="0")
    harness.write(1, items("a"))
    assert harness.shown(1) == [items("a")]
    (segment,) = (harness.folder / "fresh").glob("*.log")
    num_known = len(segment.read_bytes().rstrip(b"\0"))
    harness.reopened().write(1, items("b"))
    content = bytearray(segment.read_bytes())
    content[num_known + 100] ^= 1
    segment.write_bytes(content)
    for _ in range(3):
        assert harness.shown(1) == [items("a")]
    assert caplog.text.count("serving what was read before") == 1


@pytest.mark.parametrize(
    ("absorbs", "call"),
    [
        (True, "feast_sketch_store.row_log.data_file.pq.ParquetFile.read_row_group"),
        (False, "feast_sketch_store.row_log.records.decode_tables"),
    ],
    ids=["data file", "commit"],
)
@pytest.mark.parametrize(
    "error",
    [
        pa.ArrowMemoryError("realloc of size 67108864 failed"),
        OSError("ZSTD decompression failed: Allocation error : not enough memory"),
        OSError("Couldn't deserialize thrift: std::bad_alloc\n"),
    ],
    ids=["array", "zstd", "metadata"],
)
def test_rows_for_which_memory_is_short_are_not_called_damaged_and_a_running_reader_goes_on(
    make_harness, monkeypatch, caplog, absorbs, call, error
):
    harness = make_harness(refresh="0")
    harness.write(1, items("a"))
    assert harness.shown(1) == [items("a")]
    writer = harness.reopened()
    writer.write(1, items("b"))
    if absorbs:
        writer.opened.absorb()
    with monkeypatch.context() as short:
        short.setattr(call, Mock(side_effect=error))
        with pytest.raises(MemoryError, match=re.escape(str(error))):
            harness.reopened().read(1)
        for _ in range(2):
            assert harness.shown(1) == [items("a")]
    assert caplog.text.count("a refresh needs more memory than this process can have; serving") == 1
    assert "damaged" not in caplog.text
    assert harness.shown(1) == [items("b")]


def test_a_running_reader_outlives_a_damaged_new_snapshot(make_harness, caplog):
    writer = make_harness(refresh="0", **SEALED)
    writer.write(1, items("a"))
    reader = writer.reopened()
    assert reader.shown(1) == [items("a")]
    folder = writer.folder / "snapshots"
    (folder / "99999999999999999999-0001-00000000.json").write_bytes(b"junk")
    assert reader.shown(1) == [items("a")]
    assert caplog.text.count("99999999999999999999") == 1
    assert reader.shown(1) == [items("a")]
    assert caplog.text.count("99999999999999999999") == 1


@pytest.mark.slow
def test_no_value_of_the_store_is_ever_pickled_or_executed():
    package = Path(__file__).parents[2] / "feast_sketch_store"
    for module in package.rglob("*.py"):
        text = module.read_text()
        assert "pickle" not in text, module
        assert not re.search(r"(?<![\w.])(eval|exec)\s*\(", text), module


def _damage_table(path):
    """Flip a bit of every word of a snapshot's table."""
    content = bytearray(path.read_bytes())
    for place in ranges_of(content)["structures.bloom.table.words"][::8]:
        content[place] ^= 1
    path.write_bytes(content)


def test_damage_that_shows_while_reading_falls_back_with_one_warning(make_harness, caplog):
    harness = make_harness(refresh="0", **SEALED)
    for user in range(3):
        harness.write(user, items(f"i{user}"))
    newest = sorted((harness.folder / "snapshots").glob("*.base.*"))[-1]
    _damage_table(newest)
    reader = harness.reopened()
    for _ in range(3):
        assert reader.shown(0, 1, 2) == [items(f"i{u}") for u in range(3)]
    assert caplog.text.count(newest.name) == 1
    # What feature servers answer with is read in another way.
    keys = hash_entity_keys([harness.key(user_id=user) for user in range(3)])
    view = harness.reopened().opened
    assert read_vectors(view, "history", ("viewed",), keys, None)[1] == 3
    assert caplog.text.count(newest.name) == 2


def test_damage_of_the_only_snapshot_that_shows_while_reading_is_an_error(make_harness):
    harness = make_harness(refresh="0", **SEALED)
    harness.write(1, items("a"))
    (snapshot,) = (harness.folder / "snapshots").glob("*.base.*")
    _damage_table(snapshot)
    reader = harness.reopened()
    for _ in range(2):
        with pytest.raises(DamagedFileError, match=snapshot.name):
            reader.read(1)
    assert reader.seal()
    assert reader.read(1)[0][1] == harness.reopened().read(1)[0][1] == items("a")
