"""`feast-sketch survey`: what the rows of another store would take in ours."""

import html
import json
import re
import sqlite3
from contextlib import suppress
from datetime import datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner
from feast import Entity, FeatureStore, FeatureView, Field, FileSource, ValueType
from feast.protos.feast.types.Value_pb2 import Int64List, StringList, Value
from feast.types import Array, Int64, Set, String, UnixTimestamp

from feast_sketch_store.bridges.base import OtherStore, OtherView, open_bridge
from feast_sketch_store.bridges.importing import import_view
from feast_sketch_store.bridges.survey import survey
from feast_sketch_store.cli import cli
from feast_sketch_store.errors import SettingsError
from feast_sketch_store.operations import maintenance
from tests.helpers.keys import entity_key
from tests.helpers.length import by_length
from tests.helpers.other_stores import (
    FAKED,
    FEATURE_NAMES,
    HASHED,
    NOON,
    Other,
    make_store,
    make_view,
    registered,
    rows_of,
)

pytestmark = pytest.mark.slow

EXPIRES = "  key_ttl_seconds: 3600\n"


def test_a_sample_of_a_large_table(sqlite, tmp_path):
    view, _ = make_view()
    sqlite.write(view, rows_of(range(4000)))
    bridge = open_bridge(OtherView(OtherStore.load(sqlite.file), view))
    pages = list(bridge.sample(100))
    keys = {row.entity.SerializeToString() for page in pages for row in page.rows}
    assert 80 <= len(keys) <= 100  # random places of the table may be of the same entity
    assert bridge.count().value == 4000
    with sqlite3.connect(sqlite.file.parent / "online.db") as database:
        has_dbstat = "ENABLE_DBSTAT_VTAB" in {name for (name,) in database.execute("PRAGMA compile_options")}
    stored = bridge.stored_bytes([])
    if has_dbstat:
        assert 4000 * stored.value == pytest.approx(
            Path(sqlite.file.parent / "online.db").stat().st_size, rel=0.02
        )
    bridge.close()


@pytest.mark.parametrize("other", ["sqlite", "postgres", "mysql"], indirect=True)
def test_a_survey_of_a_sample_of_a_table(other):
    """It is not the first keys, which are those of the oldest or of one kind, and not taken for all."""
    view = registered(other, *make_view(value_type=ValueType.STRING))
    numbers = range(1000, 3000)
    names = rows_of(numbers, key=lambda number: entity_key(user_id=f"user {number}"))
    other.write(
        view, [(key, values, NOON + timedelta(seconds=n), None) for n, (key, values, *_) in enumerate(names)]
    )
    (found,) = survey(other.file, ["history"], 200)
    assert 120 <= found.sampled <= 200
    assert (found.entities.value, found.entities.is_known) == (2000, True)
    # Of 2,000 seconds; the first or last tenth of all without one of 120 has a chance of 3e-6.
    oldest, newest = (datetime.fromisoformat(moment) for moment in (found.oldest, found.newest))
    assert oldest < NOON + timedelta(seconds=200)
    assert newest > NOON + timedelta(seconds=1800)


@pytest.mark.parametrize("other", FAKED, indirect=True)
def test_the_part_of_the_hashes_that_was_met_tells_how_many_there_are(other, tmp_path, monkeypatch):
    for name in (
        "cassandra._ENTITIES_A_PAGE",
        "datastore._ROWS_A_PAGE",
        "bigtable._ROWS_A_PAGE",
        "hbase._ROWS_A_PAGE",
    ):
        with suppress(ImportError):
            monkeypatch.setattr(f"feast_sketch_store.bridges.{name}", 300)
    view = registered(other, *make_view())
    other.write(view, rows_of(range(2000)))
    (found,) = survey(other.file, ["history"], 600)
    assert found.sampled == 600
    # The hashes are those of the keys, so this is the same in each run. 1 / sqrt(600) is 4 %.
    assert found.entities.low < 2000 < found.entities.high
    assert found.entities.value == pytest.approx(2000, rel=0.1)
    bridge = open_bridge(OtherView(OtherStore.load(other.file), view))
    pages = list(bridge.pages())
    assert len(pages) > 5
    behind = [row for page in bridge.pages(pages[3].position) for row in page.rows]
    assert len(behind) == 2000 - sum(len(page.rows) for page in pages[:4])
    assert not list(bridge.pages(pages[-1].position))
    bridge.close()


def test_a_survey_of_all_rows(other, tmp_path):
    view, user = make_view()
    registered(other, view, user)
    number = other.several_pages(1200)
    other.write(view, rows_of(range(number)))
    (found,) = survey(other.file)
    assert (found.entities.value, found.sampled) == (number, number)
    assert found.keys == ("recovered" if other.kind in HASHED else "exact")
    assert [feature.name for feature in found.features] == ["liked", "seen", "country", "score"]
    store, _ = make_store(tmp_path / "ours", other.project, view, user, structure="auto")
    import_view(store, "history", other.file)
    report = maintenance.inspect(store, "history")
    assert found.bytes_here.value == pytest.approx(report.memory_bytes, rel=0.05)
    assert [f.structure for f in found.features] == [f.structure for f in report.features]
    liked, theirs = found.features[0], report.features[0]
    assert (liked.facts.value, liked.values.value) == (theirs.facts, theirs.vocabulary)


@pytest.mark.parametrize("other", ["redis"], indirect=True)
def test_a_survey_of_a_view_without_entities(other):
    view, user = make_view()
    view = FeatureView(name="everyone", schema=view.features, source=view.batch_source)
    registered(other, view, user)
    other.write(view, rows_of([7], key=lambda number: entity_key(__dummy_id="")))
    (found,) = survey(other.file)
    assert (found.entities.value, found.sampled, found.keys) == (1, 1, "exact")


@pytest.mark.parametrize("other", ["redis"], indirect=True)
def test_a_survey_of_a_sample(other, tmp_path):
    view, user = make_view()
    registered(other, view, user)
    other.write(view, rows_of(range(6000)))
    other.write(make_view("beside")[0], rows_of(range(6000, 9000)))
    (found,) = survey(other.file, ["history"], 2000)
    assert found.sampled < 6000
    # The server hashes keys with a seed of its own, so each run has another sample: 4.1 standard errors, of
    # which the interval has 1.96, are missed by 1 of 24,000.
    half = (found.entities.high - found.entities.low) / 2
    assert abs(found.entities.value - 6000) <= 4.1 / 1.96 * half < 600
    store, _ = make_store(tmp_path / "ours", other.project, view, user, structure="auto")
    import_view(store, "history", other.file)
    measured = maintenance.inspect(store, "history").memory_bytes
    # Of values that few rows have, a sample tells least: 0.90 to 0.93 of what is measured.
    assert found.bytes_here.value == pytest.approx(measured, rel=0.15)
    assert found.bytes_listpack <= found.bytes_there.value
    # Whether the interval holds as often as it should: tests/statistics/test_survey_intervals.py.
    assert found.bytes_here.low < found.bytes_here.value < found.bytes_here.high


@pytest.mark.has_long_form
@pytest.mark.parametrize(
    ("ttl", "num_items"),  # of which few are in a listpack, and many in a table of strings
    by_length([("", 3), (EXPIRES, 40)], [("", 3), ("", 40), (EXPIRES, 3), (EXPIRES, 40)]),
)
def test_bytes_of_redis_are_those_that_the_server_tells(redis_port, tmp_path, ttl, num_items):
    database = 1 + num_items + 2 * bool(ttl)
    options = {"connection_string": f"127.0.0.1:{redis_port},db={database}"}
    other = Other(tmp_path / "other", "redis", options, "shop", ttl)
    view = registered(other, *make_view())
    import redis

    def asked(call):
        """By a connection of its own, as what the server keeps of one that has been used is not steady."""
        with redis.Redis(port=redis_port, db=database) as client:
            return call(client)

    def taken():
        return asked(lambda client: client.info("memory")["used_memory"])

    def move(client):
        """A table that grows has two lists of buckets until each has been moved, one at each lookup."""
        for key in client.scan_iter(count=100):
            client.exists(key)

    asked(lambda client: client.config_set("latency-tracking", "no"))  # 24 KB for each kind of command
    before = taken()
    rows = rows_of(range(5000))
    for _, values, _, _ in rows:
        values["seen"].int64_list_val.val.extend(range(num_items))
    other.write(view, rows)
    other.store._client.close()
    other.store._client.connection_pool.disconnect()
    asked(move)
    after = taken()
    (found,) = survey(other.file, ["history"], 1000)
    assert found.bytes_there.value == pytest.approx(after - before, rel=0.02)


def surveyed(other, *options):
    """What the command does."""
    return CliRunner().invoke(cli, ["survey", "--from", str(other.file), *options])


def test_a_survey_tells_what_it_cannot_look_at(sqlite, tmp_path):
    view = registered(sqlite, *make_view())
    result = surveyed(sqlite)
    assert result.exit_code == 1
    assert "history" in result.stderr
    sqlite.write(view, rows_of(range(100)))
    result = surveyed(sqlite)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[2].split()[:4] == ["history", "Sqlite", "100", "100"]
    page = tmp_path / "survey.html"
    result = surveyed(sqlite, "--html", str(page), "--json")
    (reported,) = json.loads(result.stdout)
    content = page.read_text("utf-8")
    HTMLParser().feed(content)
    cells = re.findall("<td>(.*?)</td>", content)
    assert cells[:4] == ["history", "Sqlite", "100", "100"]
    assert [html.unescape(cell) for cell in cells if cell in FEATURE_NAMES] == FEATURE_NAMES
    assert all(note in html.unescape(content) for note in reported["notes"])
    nowhere = str(tmp_path / "no" / "survey.html")
    refused = surveyed(sqlite, "--html", nowhere, "--json")
    assert (refused.exit_code, json.loads(refused.stdout)[0]["view"]) == (1, "history")
    with pytest.raises(SettingsError, match="no feature view 'other'"):
        list(survey(sqlite.file, ["other"]))


def test_a_survey_of_views_of_which_one_has_no_rows(sqlite):
    user = Entity(name="user", join_keys=["user_id"], value_type=ValueType.INT64)
    result = surveyed(sqlite)
    assert result.exit_code == 1
    assert "run `feast apply`" in result.stderr
    good, _ = make_view()
    source = FileSource(name="rows", path="rows.parquet", timestamp_field="event_timestamp")
    schema = [
        Field(name="user_id", dtype=Int64),
        Field(name="seen", dtype=Array(String), tags={"sketch.codec": "list"}),
        Field(name="times", dtype=Array(UnixTimestamp), tags={"sketch.of": "seen"}),
    ]
    lists, empty = (
        FeatureView(name=name, entities=[user], schema=schema, source=source, ttl=timedelta(days=90))
        for name in ("lists", "empty")
    )
    registered(sqlite, good, user)
    FeatureStore(repo_path=str(sqlite.file.parent), config=sqlite.config).apply([lists, empty])
    sqlite.write(good, rows_of(range(50)))
    items = {
        "seen": Value(string_list_val=StringList(val=["a", "b"])),
        "times": Value(unix_timestamp_list_val=Int64List(val=[1_770_000_000, 1_770_000_100])),
    }
    sqlite.write(lists, [(entity_key(user_id=number), items, NOON, None) for number in range(50)])
    result = surveyed(sqlite)
    words = [line.split() for line in result.stdout.splitlines()[2:4]]
    assert [line[0] for line in words if line] == ["history", "lists"], result.output
    assert result.exit_code == 1
    assert "feature view 'empty'" in result.stderr


def test_files_that_tags_name_are_those_of_the_other_repository(sqlite):
    tags = {"sketch.vocabulary": "{file: kept.json}"}
    view = registered(sqlite, *make_view(features=[Field(name="liked", dtype=Set(String), tags=tags)]))
    (sqlite.file.parent / "kept.json").write_text('["a"]')
    sqlite.write(view, rows_of(range(50)))
    (found,) = survey(sqlite.file)
    assert not isinstance(found, str), found
