"""Maintenance through Python and through ``feast-sketch``."""

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from functools import partial

import pandas as pd
import pytest
from feast import FeatureStore, Field, PushSource
from feast.labeling import LabelView
from feast.on_demand_feature_view import on_demand_feature_view
from feast.types import Int64, Set, String

from feast_sketch_store import open_view
from feast_sketch_store.errors import DamagedFileError, RowError, SketchStoreError, StorageError
from feast_sketch_store.online_store import online_store_of
from feast_sketch_store.operations import maintenance
from feast_sketch_store.settings.table import Compaction, Ttl
from feast_sketch_store.structures.sizing import within
from tests.helpers.filters import measured_fill
from tests.helpers.processes import run_command
from tests.helpers.repository import (
    ROWS,
    USER,
    another,
    copy_repository,
    make_repository,
    make_view,
    materialize,
    push,
    read_users,
    run_cli,
)

pytestmark = pytest.mark.slow

NUM_USERS = 300
EVENT = datetime(2026, 5, 1, tzinfo=UTC)


def frame_of(country, users=range(NUM_USERS), event=EVENT):
    return pd.DataFrame(
        {
            "user_id": list(users),
            "viewed": [[f"a{u}", f"a{u + 1}"] for u in users],
            "country": country,
            "event": event,
        }
    )


def write_source(folder, *what, **more):
    frame_of(*what, **more).to_parquet(folder / ROWS)


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """The folder of a repository with 300 materialized users, to copy."""
    folder = tmp_path_factory.mktemp("repository")
    schema = {"viewed": Set(String), "country": String}
    store = make_repository(
        folder,
        make_view(schema, pushed="clicks", ttl=timedelta(days=36_500)),
        make_view({"x": String}, name="empty"),
        make_view(schema, name="scratch", pushed="scratch"),
        rows=frame_of("FR"),
        refresh=0,
        compaction={"min_rows": 100},
        target="error 0.01",
    )
    materialize(store, EVENT, feature_views=["history"])
    return folder


@pytest.fixture
def store(repository, tmp_path):
    """A repository with 300 materialized users."""
    return copy_repository(repository, tmp_path)


@pytest.fixture
def run(store):
    """Runs the command line in the repository; gives what it printed."""
    return partial(run_cli, store.repo_path)


def push_italians(store, users, event, source="clicks"):
    users = list(users)
    push(store, source, user_id=users, viewed=[["x", "y"]] * len(users), country="IT", event=event)


def countries(store, *users):
    return read_users(store, ["history:country"], users)["country"]


# Killed when the new rows are in the staging folder, or while that is being removed.
KILLED_REBUILD = """
import os, shutil, signal, sys
from feast import FeatureStore
from feast_sketch_store.operations import maintenance

def kill(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

materialize = FeatureStore.materialize
if sys.argv[2] == "before":
    FeatureStore.materialize = lambda *a, **o: (materialize(*a, **o), kill())
else:
    shutil.rmtree = kill
maintenance.rebuild(FeatureStore(repo_path=sys.argv[1]), "history")
"""


class TestInspect:
    """What ``inspect`` tells."""

    def test_it_adds_up(self, store):
        report = maintenance.inspect(store, "history")
        assert (report.entities, report.unsealed_rows) == (NUM_USERS, 0)
        viewed, country = report.features
        assert (viewed.vocabulary, viewed.facts, viewed.codec) == (NUM_USERS + 1, 2 * NUM_USERS, "membership")
        assert (country.vocabulary, country.facts, country.codec) == (1, NUM_USERS, "categorical")
        assert report.facts == viewed.facts + country.facts == 3 * NUM_USERS
        (shard,) = open_view(store, "history").state.shards.values()
        assert report.bits_per_fact == 8 * shard.snapshot.size_bytes() / report.facts
        assert 7 < report.table_bits_per_fact < report.bits_per_fact
        assert report.structure_bytes == {
            "bloom": viewed.size_bytes + country.size_bytes,
            "rows": shard.sealed.size_bytes - viewed.size_bytes - country.size_bytes,
        }
        assert report.expired_rows == 0
        assert 0 <= report.snapshot_age_seconds < 3600
        assert report.newest_event == EVENT.isoformat()
        files = [path for path in open_view(store, "history").storage.path.rglob("*") if path.is_file()]
        assert report.disk_bytes == sum(path.stat().st_size for path in files)

    @pytest.mark.usefixtures("readers_are_measured")
    def test_private_memory_grows_with_unsealed_rows(self, store):
        """A process takes no copy of the snapshot, and one of each unsealed row."""
        store.config.online_store.compaction = Compaction(by_job=True)
        push_italians(store, range(9), EVENT + timedelta(hours=1), "scratch")
        few = maintenance.inspect(store, "scratch")
        push_italians(store, range(100_000, 120_000), EVENT + timedelta(hours=1), "scratch")
        many = maintenance.inspect(store, "scratch")
        assert many.unsealed_rows == 20_009
        more = many.memory_bytes - few.memory_bytes
        assert 0.7 * more < many.private_bytes - few.private_bytes < 6 * more
        maintenance.seal(store, "scratch")
        assert maintenance.inspect(store, "scratch").private_bytes < many.private_bytes / 4

    @pytest.mark.usefixtures("readers_are_measured")
    def test_one_process_measures_all_views(self, store, monkeypatch):
        """A process takes a second to start, so one for each of 300 views would take minutes."""
        run, started = subprocess.run, []
        monkeypatch.setattr(subprocess, "run", lambda *a, **o: (started.append(a), run(*a, **o))[1])
        reports, _ = maintenance.inspect_all(store, ["history", "scratch"])
        assert [report.view for report in reports] == ["history", "scratch"]
        assert all(report.private_bytes > 0 for report in reports)
        assert len(started) == 1

    def test_sampled_rates_are_the_expected_ones(self, store):
        """Interval: five standard deviations of 200,000 samples at the rate that the table's ones make. So
        small a table may have fewer ones than it was sized for, never more."""
        viewed = maintenance.inspect(store, "history").features[0]
        assert 0.008 < viewed.expected_rate < 0.01 * 1.002
        (feature,) = open_view(store, "history").state.sealed.features(viewed.name)
        rate = measured_fill(feature.filter) ** feature.symbols.num_hashes
        assert viewed.sampled_rate == pytest.approx(rate, abs=5 * (rate / 200_000) ** 0.5)
        assert viewed.sampled_within == within(viewed.sampled_rate, 200_000)
        assert abs(viewed.sampled_rate - rate) < viewed.sampled_within * 1.5

    def test_unsealed_rows_count(self, store):
        """A new user, a newer row of a known one, one that is deleted, and one that is deleted and new."""
        before = maintenance.inspect(store, "history")
        users, later = [5, 10**6, 10**6 + 1], EVENT + timedelta(hours=3)
        push_italians(store, users, later)
        maintenance.delete(store, "history", [{"user_id": 7}, {"user_id": 10**6 + 1}])
        report = maintenance.inspect(store, "history")
        assert report.entities == before.entities  # one more, one less
        assert report.unsealed_rows == 5
        assert report.newest_event == later.isoformat()
        assert report.facts == before.facts + 2 * 3  # two values and a country each
        assert report.bits_per_fact == before.bits_per_fact

    def test_rows_of_a_delta_count(self, store):
        """As before the delta; it has values that the base lacks."""
        push_italians(store, [5, 10**6], EVENT + timedelta(hours=3))
        before = maintenance.inspect(store, "history")
        opened = open_view(store, "history")
        assert opened.seal(as_delta=True)
        report = maintenance.inspect(store, "history")
        assert (report.entities, report.facts) == (before.entities, before.facts)
        facts, values = (sum(getattr(f, name) for f in report.features) for name in ("facts", "vocabulary"))
        assert (facts, values) == (report.facts, sum(f.vocabulary for f in before.features) + 3)
        sizes = [layer.size_bytes for layer in opened.state.sealed.layers]
        assert sum(report.structure_bytes.values()) == sum(sizes)
        assert report.bits_per_fact == pytest.approx(8 * report.memory_bytes / report.facts)

    def test_a_view_that_was_never_sealed(self, store):
        push_italians(store, range(9), EVENT + timedelta(hours=1), "scratch")
        report = maintenance.inspect(store, "scratch")
        assert (report.entities, report.facts, report.unsealed_rows) == (9, 27, 9)
        assert (report.newest_event, report.bits_per_fact) == ((EVENT + timedelta(hours=1)).isoformat(), None)

    def test_expired_rows(self, store):
        """Half of the rows are older than the ttl, sealed and unsealed ones alike."""
        view = store.get_feature_view("history").__copy__()
        view.ttl = datetime.now(UTC) - EVENT - timedelta(hours=1)
        store.config.online_store.ttl = Ttl(expire=True)
        store.apply([view])
        assert maintenance.inspect(store, "history").expired_rows == NUM_USERS
        push_italians(store, [1, 2, 10**6], EVENT + timedelta(hours=2))
        push_italians(store, [10**6 + 1], EVENT)
        report = maintenance.inspect(store, "history")
        assert (report.expired_rows, report.entities) == (NUM_USERS - 2 + 1, NUM_USERS + 2)

    def test_a_view_without_a_snapshot(self, store):
        report = maintenance.inspect(store, "empty")
        assert (report.entities, report.facts, report.features) == (0, 0, [])
        assert report.snapshot_age_seconds is None

    def test_on_the_command_line(self, run):
        table = run("inspect").stdout
        assert "history" in table
        assert "empty" in table
        assert "membership" in table
        (report,) = json.loads(run("inspect", "history", "--json").stdout)
        assert report["entities"] == NUM_USERS
        assert report["features"][0]["name"] == "viewed"


class TestDelete:
    """Forgetting entities."""

    def test_many_from_a_file(self, run, store, tmp_path):
        (tmp_path / "who.jsonl").write_bytes(b'\xef\xbb\xbf{"user_id": 1}\r\n\r\n{"user_id": 2}\r\n')
        run("delete", "history", "user_id=3", "--file", str(tmp_path / "who.jsonl"))
        assert countries(another(store), 1, 2, 3, 4) == [None, None, None, "FR"]

    def test_what_is_not_found_is_told(self, run, store):
        push_italians(store, [10**6], EVENT)
        done = run("delete", "history", "user_id=3", "user_id=77777", f"user_id={10**6}")
        assert done.stdout.split()[-3:] == ["history", "2", "1"]
        assert "not found: user_id=77777" in done.stderr
        assert countries(another(store), 3, 4, 10**6) == [None, "FR", None]
        printed = run("delete", "history", "user_id=3", "user_id=4", "--json").stdout
        assert json.loads(printed) == [{"view": "history", "found": 1, "not_found": [{"user_id": 3}]}]

    def test_an_entity_that_is_named_twice_counts_once(self, store):
        named = [{"user_id": user} for user in (3, 3, 77777, 4, 77777)]
        assert maintenance.delete(store, "history", named) == maintenance.Deleted(2, [{"user_id": 77777}])
        assert countries(another(store), 3, 4, 5) == [None, None, "FR"]

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ('{"user_id": 1', "who.jsonl is not a JSON"),
            ("[1]", "not a JSON object"),
            ('{"user_id": "x"}', "'x' is not a whole"),
            ('{"user_id": 3, "user_id": 4}', "user_id is given twice"),
            ("[" * 100_000, "who.jsonl is not a JSON"),
        ],
    )
    def test_a_line_that_does_not_parse_is_named(self, run, store, tmp_path, line, message):
        (tmp_path / "who.jsonl").write_text('{"user_id": 3}\n' + line + "\n")
        error = run("delete", "history", "--file", str(tmp_path / "who.jsonl"), status=2).stderr
        assert message in error
        assert "line 2" in error
        assert countries(another(store), 3) == ["FR"]

    def test_a_key_that_is_a_list_is_named(self, store):
        with pytest.raises(RowError, match=r"row 1: join key 'user_id' of .* INT64, not \[7\] \("):
            maintenance.delete(store, "history", [{"user_id": 3}, {"user_id": [7]}])
        assert countries(another(store), 3) == ["FR"]

    def test_a_file_that_is_no_text_is_named(self, run, store, tmp_path):
        (tmp_path / "who.jsonl").write_bytes(b'{"user_id": 3}\n\xff')
        error = run("delete", "history", "--file", str(tmp_path / "who.jsonl"), status=2).stderr
        assert f"{tmp_path / 'who.jsonl'} is not JSON Lines: 'utf-8' codec" in error
        assert countries(another(store), 3) == ["FR"]

    @pytest.mark.parametrize(
        ("arguments", "status", "message"),
        [
            (["history"], 2, "at least one entity"),
            (["history", "7"], 2, "KEY=VALUE"),
            (["history", "uid=7"], 1, "join keys ['user_id']"),
            (
                ["history", "user_id=seven"],
                2,
                "user_id=seven: join key 'user_id' is INT64, and 'seven' is not a whole",
            ),
            (["history", "user_id=1", "user_id=2.5"], 2, "user_id=2.5: join key 'user_id'"),
            (["history", "user_id=1_0"], 2, "'1_0' is not a whole number"),
            (["history", "user_id=\u0667"], 2, "'\u0667' is not a whole number"),
            (
                ["history", "user_id=1, user_id=2"],
                2,
                "user_id is given twice; give each entity as an argument of its own",
            ),
            (["nonsense", "user_id=7"], 1, "it has: empty, history, scratch"),
        ],
    )
    def test_mistakes_are_named(self, run, store, arguments, status, message):
        assert message in run("delete", *arguments, status=status).stderr
        assert countries(store, 7) == ["FR"]


class TestRebuild:
    """Filling a view anew from the offline store."""

    def test_rows_that_the_offline_store_lost_are_gone(self, run, store):
        reader = another(store)
        write_source(store.repo_path, "DE", range(100, NUM_USERS), EVENT - timedelta(days=9))
        rebuilt = run("rebuild", "history", "--json", "--yes").stdout
        assert json.loads(rebuilt) == [{"view": "history", "entities": 200}]
        for each in (store, reader, another(store)):
            assert countries(each, 99, 100, 299) == [None, "DE", "DE"]
        assert maintenance.verify(store, "history").problems == []
        assert not [*open_view(store, "history").storage.path.glob("rebuild*")]

    def test_the_new_entities_are_counted_where_reads_are_pinned_to_the_old_ones(self, run, store):
        assert maintenance.pin(store, "history") is not None
        write_source(store.repo_path, "DE", range(100, NUM_USERS), EVENT - timedelta(days=9))
        rebuilt = run("rebuild", "history", "--json", "--yes").stdout
        assert json.loads(rebuilt) == [{"view": "history", "entities": 200}]
        assert countries(another(store), 99, 100) == ["FR", "FR"]
        assert maintenance.unpin(store, "history")
        assert countries(another(store), 99, 100) == [None, "DE"]

    def test_one_from_a_time_to_come_is_refused(self, run):
        error = run("rebuild", "history", "--from", "2100-01-01", status=1).stderr
        assert "'history': there is no time from 2100-01-01 00:00:00+00:00 to" in error

    def test_rows_that_were_only_pushed_are_counted_and_asked_about(self, run, store):
        """Three are new, two are newer than in the offline store, one is as old as there."""
        push_italians(store, [10**6, 10**6 + 1, 10**6 + 2, 1, 2], EVENT + timedelta(hours=1))
        push_italians(store, [3], EVENT)
        reported = "lacks 3 entities that the view has, and has an older row than the view for 2 others"
        for answer in ("", "n\n"):  # no terminal, and a no
            error = run("rebuild", "history", input=answer, status=1).stderr
            assert reported in error
            assert "history was not rebuilt" in error
            assert countries(another(store), 1, 10**6) == ["IT", "IT"]
        run("rebuild", "history", input="y\n")
        assert countries(another(store), 1, 10**6) == ["FR", None]
        assert "lacks" not in run("rebuild", "history").stderr, "there is nothing to ask about any more"

    def test_afterwards_life_goes_on(self, store):
        maintenance.rebuild(store, "history")
        push_italians(store, [5], EVENT + timedelta(hours=1))
        push_italians(store, [6], EVENT - timedelta(hours=1))  # late
        assert countries(store, 5, 6) == countries(another(store), 5, 6) == ["IT", "FR"]
        assert maintenance.seal(store, "history")
        assert countries(store, 5, 6) == countries(another(store), 5, 6) == ["IT", "FR"]
        assert maintenance.verify(store, "history").is_sound
        assert maintenance.rebuild(store, "history") == NUM_USERS
        assert countries(another(store), 5) == ["FR"], "what was only pushed is lost, as documented"

    def test_reads_see_the_old_rows_until_the_end_and_writes_meanwhile_stay(self, store, monkeypatch):
        write_source(store.repo_path, "DE", range(NUM_USERS), EVENT + timedelta(days=1))
        reader, writer = another(store), another(store)
        materialize = FeatureStore.materialize
        seen = []

        def materialize_and_look(self, *arguments, **options):
            materialize(self, *arguments, **options)
            seen.append(countries(reader, 1, 2, 3))
            push_italians(writer, [2], EVENT + timedelta(days=2))
            push_italians(writer, [3], EVENT - timedelta(1))
            maintenance.delete(writer, "history", [{"user_id": 4}])
            seen.append(countries(reader, 1, 2, 3, 4))
            online_store_of(writer).lock_timeout_seconds = 0.0
            assert maintenance.seal(writer, "history") is False, "nobody else seals meanwhile"

        monkeypatch.setattr(FeatureStore, "materialize", materialize_and_look)
        maintenance.rebuild(store, "history")
        assert seen == [["FR", "FR", "FR"], ["FR", "IT", "FR", None]]
        for each in (store, reader, another(store)):
            assert countries(each, 1, 2, 3, 4) == ["DE", "IT", "DE", None]
        assert maintenance.seal(store, "history")
        assert countries(another(store), 1, 2, 3, 4) == ["DE", "IT", "DE", None]

    def test_with_a_ttl_that_is_longer_than_the_calendar(self, store):
        view = store.get_feature_view("history")
        view.ttl = timedelta(days=1_000_000)
        store.apply(view)
        assert maintenance.rebuild(store, "history") == NUM_USERS

    def test_an_empty_source_changes_nothing(self, run, store):
        refused = run("rebuild", "history", "--from", "2001-01-01", "--to", "2001-01-02", status=1)
        assert "no rows to rebuild from" in refused.stderr
        assert countries(another(store), 1) == ["FR"]

    def test_a_failing_source_changes_nothing(self, store):
        (store.repo_path / "rows.parquet").write_bytes(b"junk")
        before = sorted(path.name for path in open_view(store, "history").storage.path.rglob("*"))
        with pytest.raises(Exception, match=r"arquet|junk|magic"):
            maintenance.rebuild(store, "history")
        assert countries(another(store), 1) == ["FR"]
        assert sorted(path.name for path in open_view(store, "history").storage.path.rglob("*")) == before

    @pytest.mark.parametrize("when", ["before", "after"])
    def test_what_a_killed_one_leaves_is_told_and_removed(self, run, store, when):
        """Between a rebuild that is killed and a vacuum, people may be deleted who are in what it left."""
        done = run_command([sys.executable, "-W", "ignore", "-c", KILLED_REBUILD, store.repo_path, when])
        assert done.returncode == -signal.SIGKILL, done.stderr
        found = maintenance.verify(store, "history")
        assert any("/fresh/" in name for name in found.leftovers)
        assert found.is_sound
        done = run("verify", "history")
        assert "leftovers" in done.stdout
        assert f"history: {len(found.leftovers)} unused files may hold deleted rows" in done.stderr
        assert "feast-sketch vacuum history" in done.stderr
        (removed,) = json.loads(run("vacuum", "history", "--json").stdout)
        assert removed["files_removed"] >= len(found.leftovers)
        assert maintenance.verify(store, "history").leftovers == []
        tops = {path.name for path in open_view(store, "history").storage.path.iterdir()}
        assert tops <= {"rows", "fresh", "snapshots", "seal.lock", "view.json", "view.lock"}
        assert countries(another(store), 1) == ["FR"]

    def test_the_first_one_of_a_view_may_be_killed(self, store):
        staged = open_view(store, "empty").storage.within("rebuild-7/")
        staged.replace("shop/empty/rows/x.parquet", b"x")
        assert maintenance.verify(store, "empty").leftovers == ["rebuild-7/shop/empty/rows/x.parquet"]
        assert maintenance.vacuum(store, "empty") == 1
        assert maintenance.verify(store, "empty").leftovers == []

    @pytest.mark.parametrize("shards", [1, 2])
    def test_hidden_files_of_killed_writers_are_told_and_removed(self, tmp_path, shards):
        repository = make_repository(tmp_path, make_view({"viewed": Set(String)}), shards=shards)
        storage = open_view(repository, "history").storage
        storage.prepare()
        draft = storage.path / ".0123456789abcdef.tmp"  # of view.json
        draft.write_bytes(b"x")
        storage.replace("import/rows/x.parquet", b"x")
        storage.replace(".shards-2.01234567.dropped/0/rows/x.parquet", b"x")
        gone = [".shards-2.01234567.dropped/0/rows/x.parquet", "import/rows/x.parquet"]
        assert maintenance.verify(repository, "history").leftovers == gone
        assert maintenance.vacuum(repository, "history") == len(gone), "the draft is young"
        assert draft.exists()
        os.utime(draft, (0, 0))
        assert maintenance.verify(repository, "history").leftovers == [draft.name]
        assert maintenance.vacuum(repository, "history") == 1
        assert maintenance.verify(repository, "history").leftovers == []
        assert {path.name for path in storage.path.iterdir()} <= {"seal.lock", "view.json", "view.lock"}


class TestVerify:
    """Finding what is wrong."""

    def test_a_sound_store(self, run, store):
        maintenance.delete(store, "history", [{"user_id": 3}])
        found = maintenance.verify(store, "history")
        assert found.problems == []
        assert (found.snapshots, found.compared_entities, found.rows) == (1, NUM_USERS, NUM_USERS + 1)
        assert found.compared_facts == 3 * NUM_USERS
        assert found.format_versions == {"row log": [1], "manifest": [1], "snapshot": [1]}
        assert [each["is_sound"] for each in json.loads(run("verify", "--json").stdout)] == [True] * 3
        assert "row log 1, manifest 1, snapshot 1" in run("verify", "history").stdout

    def test_versions_that_this_release_does_not_read_are_told(self, store, monkeypatch):
        with monkeypatch.context() as later:
            later.setattr("feast_sketch_store.snapshot.manifest.MANIFEST_VERSION", 3)
            open_view(store, "history").seal()
        found = maintenance.verify(store, "history")
        assert found.format_versions["manifest"] == [1, 3]
        assert "has manifest version 3, this release reads 1; upgrade feast_sketch_store" in found.problems[0]

    @pytest.mark.parametrize("pattern", ["rows/*.parquet", "snapshots/*.base.*", "snapshots/*.order.*"])
    def test_a_flipped_bit_anywhere(self, run, store, pattern):
        (path,) = open_view(store, "history").storage.path.glob(pattern)
        content = path.read_bytes()
        for place in range(0, len(content), max(1, len(content) // 12)):
            damaged = bytearray(content)
            damaged[place] ^= 16
            path.write_bytes(damaged)
            found = maintenance.verify(another(store), "history")
            assert any(path.name in problem for problem in found.problems), place
        assert path.name in run("verify", "history", status=1).stderr
        path.write_bytes(content)
        assert maintenance.verify(store, "history").is_sound

    def test_a_snapshot_of_other_rows(self, store):
        """Every checksum is right, but the snapshot is not made of the rows of the log."""
        view = open_view(store, "history")
        (base,) = (view.storage.path / "snapshots").glob("*.base.*")
        (order,) = (view.storage.path / "snapshots").glob("*.order.*")
        kept = base.read_bytes(), order.read_bytes()
        write_source(store.repo_path, "DE", range(50, NUM_USERS + 50))
        materialize(store, EVENT, feature_views=["history"])
        maintenance.seal(store, "history")
        newest = sorted((view.storage.path / "snapshots").glob("*.base.*"))[-1]
        newest.write_bytes(kept[0])
        newest.with_name(newest.name.replace(".base.", ".order.")).write_bytes(kept[1])
        assert not maintenance.verify(store, "history").is_sound

    def test_a_read_only_file_system_needs_no_lock(self, store, monkeypatch):
        def refuse(path, *_):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

        monkeypatch.setattr("feast_sketch_store.storage.local.lock", refuse)
        assert maintenance.verify(another(store), "history").is_sound

    def test_not_while_another_process_seals(self, store):
        other = another(store)
        online_store_of(other).lock_timeout_seconds = 0.0
        with open_view(store, "history").unchanging(), pytest.raises(StorageError, match="sealing"):
            maintenance.verify(other, "history")


def test_a_damaged_data_file_is_mended_by_a_rebuild(run, store):
    view = open_view(store, "history")
    (file,) = (view.storage.path / "rows").glob("*.parquet")
    file.write_bytes(file.read_bytes()[:-9])
    (manifest,) = (view.storage.path / "snapshots").glob("*.json")
    manifest.unlink()
    with pytest.raises(DamagedFileError, match=file.name):
        countries(another(store), 1)
    run("verify", "history", status=1)
    assert "its rows cannot be read" in run("rebuild", "history", status=1).stderr
    run("rebuild", "history", "--yes")
    assert countries(another(store), 1) == ["FR"]
    run("verify", "history")


@pytest.mark.filterwarnings("ignore:On demand feature view is an experimental feature")
def test_views_of_every_kind_are_kept_up(tmp_path, caplog):
    """A label view, and an on-demand view that is computed on write; no view that is stored nowhere."""
    history = make_view({"country": String})
    fields = [Field(name="user_id", dtype=Int64), Field(name="labeler", dtype=String)]
    votes = PushSource(name="votes", batch_source=history.batch_source)

    options = {"sources": [history], "schema": [Field(name="code", dtype=String)], "mode": "python"}

    @on_demand_feature_view(**options)
    def on_read(inputs):
        return {"code": [country.lower() for country in inputs["country"]]}

    @on_demand_feature_view(**options, entities=[USER], write_to_online_store=True)
    def on_write(inputs):
        return {"code": [country.lower() for country in inputs["country"]]}

    store = make_repository(
        tmp_path,
        history,
        make_view({"country": String}, name="offline", online=False),
        LabelView(name="labels", entities=[USER], schema=fields, source=votes),
        on_read,
        on_write,
        rows=frame_of("FR"),
    )
    store.write_to_online_store("on_write", frame_of("FR"))
    kept = ["history", "labels", "on_write"]
    assert maintenance.views_of(store) == kept
    assert maintenance.seal(store, "on_write")
    fresh = another(tmp_path)
    asyncio.run(fresh.initialize())
    assert sorted(view.name for view in online_store_of(fresh).views.pop_all()) == kept
    assert "is not ready" not in caplog.text


def test_another_online_store_is_named(tmp_path):
    (tmp_path / "feature_store.yaml").write_text(
        "project: shop\nprovider: local\nregistry: registry.db\nentity_key_serialization_version: 3\n"
    )
    assert "type: sketch" in run_cli(tmp_path, "inspect", status=1).stderr
    with pytest.raises(SketchStoreError, match="Sqlite"):
        maintenance.inspect(another(tmp_path), "x")
