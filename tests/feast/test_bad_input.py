"""Bad input gives one clear error or a correct result, and the state before it stays readable."""

import json
import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest
from feast import Field
from feast.protos.feast.types.Value_pb2 import Int64List, StringSet, Value
from feast.repo_config import FeastConfigError, load_repo_config
from feast.types import Array, Int64, Set, String
from pydantic import ValidationError

from feast_sketch_store.errors import (
    DamagedFileError,
    RowError,
    StorageError,
    VocabularyOverflowError,
)

SEAL_AT_ONCE = {"seal_min_rows": 0, "seal_share": 1e-9}
SETS = {"error_rate": "auto", "structure": "sets"}  # what the default makes of all but the smallest views


def items(*values):
    return {"viewed": Value(string_set_val=StringSet(val=values))}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pth": "x"}, "pth"),
        ({"error_rate": 0.9}, "error_rate"),
        ({"error_rate": "often"}, "error_rate"),
        ({"presence_error_rate": 0}, "presence_error_rate"),
        ({"max_vocabulary": 0}, "max_vocabulary"),
        ({"refresh_interval_seconds": -1}, "refresh_interval_seconds"),
        ({"expired_kept_for": "a while"}, "duration"),
        ({"shards": 3}, "power of two"),
        ({"shards": 8192}, "power of two"),
        ({"serve_shards": []}, "at least one shard"),
        ({"serve_shards": [-1]}, "at least one shard"),
        ({"path": ""}, "path"),
        ({"path": "gs://bucket/x"}, "gs://"),
        ({"path": "http://bucket/x"}, "http://"),
    ],
)
def test_a_wrong_option_is_refused_with_its_name(make_config, options, message):
    with pytest.raises(ValidationError, match=message):
        make_config(**options).online_store  # noqa: B018


def test_a_wrong_option_in_the_yaml_file_is_refused(tmp_path):
    (tmp_path / "feature_store.yaml").write_text(
        "project: p\nprovider: local\nregistry: r.db\nonline_store: {type: sketch, error_rates: 0.1}\n"
    )
    with pytest.raises(FeastConfigError, match="error_rates"):
        load_repo_config(tmp_path, tmp_path / "feature_store.yaml")


@pytest.mark.parametrize("options", [{}, SEAL_AT_ONCE], ids=["unsealed", "sealed"])
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
        key = harness.key(user_id=2)
        now = harness.write.__defaults__[0]
        with pytest.raises(RowError) as caught:
            harness.write_many([(key, items("b"), now, None), (key, values, now, None)])
        assert all(part in str(caught.value) for part in parts)
        assert harness.reopened().read(1, 2) == [(now, items("a")), (None, None)]

    @pytest.mark.parametrize("event", [None, pd.NaT, "2026-05-01"])
    def test_wrong_event_timestamp(self, make_harness, options, event):
        harness = make_harness(**options)
        with pytest.raises(RowError, match="timestamp"):
            harness.write(1, items("a"), event)
        assert harness.read(1) == [(None, None)]

    def test_a_created_timestamp_may_be_nat(self, make_harness, options):
        harness = make_harness(**options)
        harness.write(1, items("a"), created=pd.NaT)
        assert harness.read(1)[0][1] == items("a")

    def test_wrong_join_key(self, make_harness, options):
        harness = make_harness(**options)
        now = harness.write.__defaults__[0]
        rows = [(harness.key(user_id=u), items("a"), now, None) for u in (1, "one")]
        with pytest.raises(RowError, match="user_id"):
            harness.write_many(rows)
        with pytest.raises((RowError, ValueError)):
            harness.write(Value(double_val=1.0), items("a"))
        assert harness.read(1) == [(None, None)]

    def test_vocabulary_overflow(self, make_harness, options):
        harness = make_harness(max_vocabulary=3, **options)
        harness.write(1, items("a", "b"))
        with pytest.raises(VocabularyOverflowError) as caught:
            harness.write(2, items("c", "d"))
        for part in ("'viewed'", "'history'", "4", "max_vocabulary = 3"):
            assert part in str(caught.value)
        harness.write(3, items("a", "c"))
        harness.write(4, items("a", "b", "c"))
        assert [values for _, values in harness.read(1, 2, 3)] == [items("a", "b"), None, items("a", "c")]

    def test_vocabulary_overflow_counts_per_feature(self, make_harness, options):
        harness = make_harness({"viewed": Set(String), "liked": Array(Int64)}, max_vocabulary=2, **options)
        harness.write(1, {**items("a", "b"), "liked": Value(int64_list_val=Int64List(val=[1, 2, 1, 2]))})
        with pytest.raises(VocabularyOverflowError, match="'liked'"):
            harness.write(1, {**items("a", "b"), "liked": Value(int64_list_val=Int64List(val=[3]))})


class TestTheLimitOfValues:
    """``max_vocabulary`` holds whatever structure a seal chose, where a scalar may not be a column."""

    FEATURES = {"country": String, "viewed": Set(String)}

    def write(self, harness, first, count, values=None):
        rows = []
        for number in range(first, first + count):
            value = Value(string_val=f"c{number}") if values is None else values[number - first]
            row = {"country": value, "viewed": Value(string_set_val=StringSet(val=["a"]))}
            rows.append((harness.key(user_id=number), row, harness.noon(), None))
        harness.write_many(rows)

    @pytest.mark.parametrize(
        ("options", "structures"),
        [
            ({}, {"country": "bloom", "viewed": "bloom"}),
            (SETS, {"country": "column", "viewed": "sets"}),
        ],
    )
    @pytest.mark.parametrize("interval", [0, 10**6])
    def test_of_scalars_beside_filters_and_sets(self, make_harness, options, structures, interval):
        options = {**options, **SEAL_AT_ONCE, "refresh_interval_seconds": interval}
        harness = make_harness(self.FEATURES, max_vocabulary=10, default_codec="sketch", **options)
        self.write(harness, 0, 8)
        assert harness.store.view(harness.config, harness.view).stats().structures == structures
        for writer in (harness, harness.reopened()):
            with pytest.raises(VocabularyOverflowError, match=r"'country'.* 16 distinct values.* = 10"):
                self.write(writer, 8, 8)
        self.write(harness, 100, 8, [Value(string_val=f"c{n}") for n in range(8)])  # nothing new
        self.write(harness, 200, 2)  # up to the limit
        with pytest.raises(VocabularyOverflowError, match=" 11 distinct"):
            self.write(harness, 300, 1)
        self.write(harness, 300, 1, [Value()])  # a null is no value
        assert [row and row["country"].string_val for _, row in harness.read(0, 200, 8, 300)] == [
            "c0",
            "c200",
            None,
            "",
        ]

    @pytest.mark.parametrize("options", [{}, SETS], ids=["filter", "sets"])
    def test_it_is_none_of_scalars_that_may_be_columns(self, make_harness, monkeypatch, options):
        for module in ("plan", "joint"):
            monkeypatch.setattr(f"feast_sketch_store.layers.{module}.FEW_VALUES", 12)
        harness = make_harness(self.FEATURES, max_vocabulary=10, **options, **SEAL_AT_ONCE)
        structures = []
        for first in (0, 12, 24):
            self.write(harness, first, 12)
            structures.append(harness.store.view(harness.config, harness.view).stats().structures)
        assert [found["country"] for found in structures[1:]] == ["column"] * 2
        assert structures[0]["country"] == ("column" if options else "bloom")
        assert {found["viewed"] for found in structures} == {"sets" if options else "bloom"}
        read = harness.reopened().read(*range(36))
        assert [row["country"].string_val for _, row in read] == [f"c{n}" for n in range(36)]
        assert all(list(row["viewed"].string_set_val.val) == ["a"] for _, row in read)
        assert harness.read(99) == [(None, None)]
        with pytest.raises(VocabularyOverflowError, match="'viewed'"):
            harness.write(1, items(*map(str, range(11))))

    def test_rows_without_a_value_do_not_count(self, make_harness):
        """Where rows have none, a column holds a filler, which nobody wrote."""
        harness = make_harness(
            self.FEATURES, max_vocabulary=3, default_codec="sketch", **SETS, **SEAL_AT_ONCE
        )
        self.write(harness, 0, 3, [Value(string_val="x"), Value(), Value(string_val="y")])
        self.write(harness, 3, 1, [Value(string_val="z")])
        with pytest.raises(VocabularyOverflowError, match=" 4 distinct"):
            self.write(harness, 4, 1, [Value(string_val="")])

    def test_of_rounded_numbers_beside_sets(self, make_harness, make_view):
        price = Field(name="price", dtype=Int64, tags={"sketch.precision": "10"})
        harness = make_harness(
            view=make_view([price, Field(name="viewed", dtype=Set(String))]),
            max_vocabulary=5,
            **SETS,
            **SEAL_AT_ONCE,
        )

        def write(first, *prices):
            for user, number in enumerate(prices, first):
                harness.write(user, {"price": Value(int64_val=number), **items("a")})

        write(0, 0, 1, 9, 20, 21, 40, 42, 60)  # 5 steps
        structures = harness.store.view(harness.config, harness.view).stats().structures
        assert structures == {"price": "column", "viewed": "sets"}
        write(10, 3, 19, 61)
        with pytest.raises(VocabularyOverflowError, match=r"'price'.* 6 distinct"):
            write(20, 100)

    def test_a_damaged_column_falls_back_to_the_snapshot_before(self, make_harness, caplog):
        options = {**SETS, **SEAL_AT_ONCE, "default_codec": "sketch"}
        harness = make_harness(self.FEATURES, max_vocabulary=10, refresh_interval_seconds=0, **options)
        self.write(harness, 0, 6)
        self.write(harness, 6, 3)
        newest = sorted((harness.folder / "snapshots").glob("*.base.*"))[-1]
        _damage_words(newest)
        writer = harness.reopened()
        with pytest.raises(VocabularyOverflowError, match=" 14 distinct"):
            self.write(writer, 9, 5)
        assert newest.name in caplog.text
        self.write(writer, 9, 1)
        assert writer.read(9)[0][1]["country"].string_val == "c9"


ODD_NAMES = ["../x", "a b", "Größe", "x" * 300, "CON", "a/b", "History", ".", "..", "%41", "a\nb", "~"]


@pytest.mark.parametrize(
    ("project", "name"),
    [("shop", name) for name in ODD_NAMES] + [(project, "v") for project in ("Größe", "x" * 300, "Shop")],
)
def test_names_that_a_path_cannot_hold(make_harness, make_view, tmp_path, project, name):
    """Feast itself refuses a project name with other characters than letters, digits, _ and -."""
    harness = make_harness(view=make_view(name=name), project=project, **SEAL_AT_ONCE)
    other = make_harness(view=make_view(name="history"), project=project)
    harness.write(1, items("a"))
    assert harness.reopened().read(1)[0][1] == items("a")
    assert other.read(1) == [(None, None)]
    assert harness.folder.resolve().is_relative_to((tmp_path / "sketch").resolve())
    assert len(list((tmp_path / "sketch").iterdir())) == 1
    harness.store.teardown(harness.config, [harness.view], [])
    assert not list((tmp_path / "sketch").iterdir())


@pytest.mark.parametrize(
    "folder", ["with space", "größe", "a,b;c=d", "x" * 200, "%20", "50%", "a\\b", "#?", "a\nb"]
)
def test_store_paths_of_many_kinds(make_harness, tmp_path, folder):
    harness = make_harness(path=str(tmp_path / folder / "deep"), **SEAL_AT_ONCE)
    harness.write(1, items("a"))
    assert harness.reopened().read(1)[0][1] == items("a")


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
    harness = make_harness(path=str(public_folder / "sketch"), **SEAL_AT_ONCE)
    harness.write(1, items("a"))
    with _without_write_permission(public_folder / "sketch"):
        with pytest.raises(StorageError, match=str(public_folder)):
            harness.write(2, items("b"))
        reopened = harness.reopened()
        assert [values for _, values in reopened.read(1, 2)] == [items("a"), None]
        with pytest.raises(StorageError, match=str(public_folder)):
            make_harness(path=str(public_folder / "sketch"), project="another")
    harness.write(2, items("b"))
    assert harness.read(2)[0][1] == items("b")


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
    [(file, how) for file in ("base.safetensors", "json") for how in ("flip", "truncate", "empty")]
    + [("base.safetensors", "gone")],
)


@DAMAGED_SNAPSHOTS
def test_a_damaged_snapshot_falls_back_to_the_one_before(make_harness, file, how, caplog):
    harness = make_harness(refresh_interval_seconds=0, **SEAL_AT_ONCE)
    for user in range(3):
        harness.write(user, items(f"i{user}"))
    newest = sorted((harness.folder / "snapshots").glob(f"*.{file}"))[-1]
    _damage(newest, how)
    assert [values for _, values in harness.reopened().read(0, 1, 2)] == [items(f"i{u}") for u in range(3)]
    assert newest.name in caplog.text


@DAMAGED_SNAPSHOTS
def test_when_every_snapshot_is_damaged_the_error_names_the_file_and_the_way_out(make_harness, file, how):
    harness = make_harness(refresh_interval_seconds=0, **SEAL_AT_ONCE)
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
    assert healer.store.seal(healer.config, healer.view)
    assert healer.read(1)[0][1] == items("a")
    assert harness.reopened().read(1)[0][1] == items("a")


def test_a_snapshot_whose_manifest_is_gone_is_none(make_harness):
    """Readers know manifests only; the rows are in the row log all the same."""
    harness = make_harness(refresh_interval_seconds=0, **SEAL_AT_ONCE)
    harness.write(1, items("a"))
    (manifest,) = (harness.folder / "snapshots").glob("*.json")
    manifest.unlink()
    assert harness.reopened().read(1)[0][1] == items("a")
    assert harness.store.view(harness.config, harness.view).vacuum() >= 2
    assert list((harness.folder / "snapshots").iterdir()) == []


@pytest.mark.parametrize("how", ["truncate", "empty"])
@pytest.mark.parametrize("pattern", ["_delta_log/*0.json", "*.parquet"])
def test_a_damaged_row_log_is_named_and_a_running_reader_goes_on(make_harness, how, pattern, caplog):
    harness = make_harness(refresh_interval_seconds=0)
    harness.write(1, items("a"))
    assert harness.read(1)[0][1] == items("a")
    harness.reopened().absorb()
    (damaged,) = (harness.folder / "rows").glob(pattern)
    _damage(damaged, how)
    with pytest.raises(DamagedFileError, match=damaged.name):
        harness.reopened().read(1)
    assert harness.read(1)[0][1] == items("a")


def test_a_running_reader_warns_once_of_a_damaged_commit(make_harness, caplog):
    harness = make_harness(refresh_interval_seconds=0)
    harness.write(1, items("a"))
    assert harness.read(1)[0][1] == items("a")
    (segment,) = (harness.folder / "fresh").glob("*.log")
    with segment.open("ab") as file:
        file.write(b"{" * 100)
    for _ in range(3):
        assert harness.read(1)[0][1] == items("a")
    assert caplog.text.count("serving what was read before") == 1


def test_a_running_reader_outlives_a_damaged_new_snapshot(make_harness, caplog):
    writer = make_harness(refresh_interval_seconds=0, **SEAL_AT_ONCE)
    writer.write(1, items("a"))
    reader = writer.reopened()
    assert reader.read(1)[0][1] == items("a")
    folder = writer.folder / "snapshots"
    (folder / "99999999999999999999-0001-00000000.json").write_bytes(b"junk")
    assert reader.read(1)[0][1] == items("a")
    assert caplog.text.count("99999999999999999999") == 1
    assert reader.read(1)[0][1] == items("a")
    assert caplog.text.count("99999999999999999999") == 1


def test_huge_and_odd_values(make_harness):
    harness = make_harness(**SEAL_AT_ONCE)
    odd = items("", " ", "\0", "a" * 1_000_000, "\u00e9", "e\u0301", "\U0001f600")
    harness.write(1, odd)
    assert set(harness.read(1)[0][1]["viewed"].string_set_val.val) == set(odd["viewed"].string_set_val.val)


def test_no_value_of_the_store_is_ever_pickled_or_executed():
    package = Path(__file__).parents[2] / "feast_sketch_store"
    for module in package.rglob("*.py"):
        text = module.read_text()
        assert "pickle" not in text, module
        assert "eval(" not in text, module


def test_the_interpreter_starts_clean():
    done = subprocess.run([sys.executable, "-c", "pass"], capture_output=True, env={**os.environ}, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")


def _damage_words(path):
    """Flip a bit of every word of a snapshot's packed arrays, which are checked where they are read."""
    content = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")
    for name, array in json.loads(content[8:start]).items():
        if name.endswith("words"):
            first, last = array["data_offsets"]
            for place in range(start + first, start + last, 8):
                content[place] ^= 1
    path.write_bytes(content)


def _damage_table(path):
    """Flip a bit of every word of a snapshot's table."""
    content = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")
    first, last = json.loads(content[8:start])["bloom.table.words"]["data_offsets"]
    for place in range(start + first, start + last, 8):
        content[place] ^= 1
    path.write_bytes(content)


def test_damage_that_shows_while_reading_falls_back_with_one_warning(make_harness, caplog):
    harness = make_harness(refresh_interval_seconds=0, **SEAL_AT_ONCE)
    for user in range(3):
        harness.write(user, items(f"i{user}"))
    newest = sorted((harness.folder / "snapshots").glob("*.base.*"))[-1]
    _damage_table(newest)
    reader = harness.reopened()
    for _ in range(3):
        assert [values for _, values in reader.read(0, 1, 2)] == [items(f"i{u}") for u in range(3)]
    assert caplog.text.count(newest.name) == 1


def test_damage_of_the_only_snapshot_that_shows_while_reading_is_an_error(make_harness):
    harness = make_harness(refresh_interval_seconds=0, **SEAL_AT_ONCE)
    harness.write(1, items("a"))
    (snapshot,) = (harness.folder / "snapshots").glob("*.base.*")
    _damage_table(snapshot)
    reader = harness.reopened()
    for _ in range(2):
        with pytest.raises(DamagedFileError, match=snapshot.name):
            reader.read(1)
    assert reader.store.seal(reader.config, reader.view)
    assert reader.read(1)[0][1] == harness.reopened().read(1)[0][1] == items("a")
