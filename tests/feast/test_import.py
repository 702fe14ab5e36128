"""`feast-sketch import`: rows that Feast's own classes wrote into other stores, read back from ours."""

import json
import os
import random
import re
import shutil
import signal
import sqlite3
import sys
import time
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from feast import FeatureStore, Field, ValueType
from feast.infra.key_encoding_utils import serialize_entity_key
from feast.infra.online_stores.helpers import compute_entity_id
from feast.protos.feast.types.Value_pb2 import Value
from feast.types import Int32, Int64, UnixTimestamp

from feast_sketch_store.bridges import importing
from feast_sketch_store.bridges.hashed_keys import KeyFinder, invert_int64_keys
from feast_sketch_store.bridges.importing import import_view
from feast_sketch_store.cli import cli
from feast_sketch_store.errors import RowError, SettingsError, StorageError
from feast_sketch_store.online_store import open_view
from feast_sketch_store.operations import maintenance
from feast_sketch_store.rows.entity_keys import hash_int64_keys
from feast_sketch_store.storage.local import LocalStorage
from tests.helpers.cases import case, for_each
from tests.helpers.keys import entity_key
from tests.helpers.other_stores import (
    FEATURE_NAMES,
    FEATURES,
    HASHED,
    NOON,
    Other,
    answers,
    keys_of,
    make_store,
    make_view,
    rows_of,
    value_of,
)
from tests.helpers.processes import PATIENCE_SECONDS, warm_context
from tests.helpers.repository import run_cli

pytestmark = pytest.mark.slow

WALKED = 2_000  # entities


@pytest.fixture
def ours(sqlite, tmp_path):
    """Our store beside that of SQLite, with the view whose rows are there, and the view."""
    return make_store(tmp_path / "ours", sqlite.project, *make_view())


def test_nothing_is_lost_or_changed(other, tmp_path):
    view, user = make_view()
    numbers = [*range(other.several_pages(1500)), -1, 2**40, -(2**63), 2**63 - 1]
    other.write(view, rows_of(numbers))
    store, view = make_store(tmp_path / "ours", other.project, view, user)
    done = import_view(store, "history", other.file)
    assert (done.rows, done.changed, done.entities) == (len(numbers), 0, len(numbers))
    assert done.keys == ("recovered" if other.kind in HASHED else "exact")
    keys = keys_of(*numbers)
    assert answers(store, view, keys) == other.read(view, keys)
    assert answers(store, view, keys_of(77777)) == [(None, {})]
    assert maintenance.verify(store, "history").is_sound
    assert not maintenance.verify(store, "history").leftovers


def test_string_keys(other, tmp_path):
    view, user = make_view(value_type=ValueType.STRING)
    names = [f"user {number}" for number in range(50)] + ["", "ünïcødé", "*[a]?\\"]
    keys = keys_of(*names)
    other.write(view, [(key, value_of(n), NOON, None) for n, key in enumerate(keys)])
    store, view = make_store(tmp_path / "ours", other.project, view, user)
    if other.kind in HASHED:
        with pytest.raises(SettingsError, match="--keys"):
            import_view(store, "history", other.file)
        given = tmp_path / "keys.parquet"
        pd.DataFrame({"user_id": names[:-1]}).to_parquet(given)
        with pytest.raises(SettingsError, match="no key is known for 1 of"):
            import_view(store, "history", other.file, keys=given)
        assert open_view(store, "history").stats().sealed_entities == 0
        pd.DataFrame({"user_id": [*names, "somebody else"]}).to_parquet(given)
        done = import_view(store, "history", other.file, keys=given)
        assert done.keys == "given"
    else:
        import_view(store, "history", other.file)
    assert answers(store, view, keys) == other.read(view, keys)


def test_another_project_and_view_of_the_same_entities(other, tmp_path):
    view, user = make_view()
    second, _ = make_view(name="second")
    other.write(view, rows_of(range(20)))
    other.write(second, rows_of(range(10, 40)))
    # A project whose name ends alike, in the same server.
    alike = other.config.model_copy(update={"project": f"e{other.project}"})
    other.store.update(alike, [], [view], [], [], False)
    other.store.online_write_batch(alike, view, rows_of(range(500, 510)), None)
    store, view = make_store(tmp_path / "ours", other.project, view, user)
    assert import_view(store, "history", other.file).entities == 20
    assert answers(store, view, keys_of(25, 505)) == [(None, {})] * 2


def test_rows_that_are_there_compete(sqlite, ours):
    store, view = ours
    sqlite.write(view, rows_of(range(10)))
    online = store._get_provider().online_store
    older, newer = NOON - timedelta(days=1), NOON + timedelta(days=1)
    mine = [(entity_key(user_id=n), value_of(n + 100), older, None) for n in (1, 50)]
    mine += [(entity_key(user_id=2), value_of(102), newer, None)]
    online.online_write_batch(store.config, view, mine, None)
    online.delete(store.config, view, [entity_key(user_id=3)])
    assert import_view(store, "history", sqlite.file).entities == 11
    found, second = answers(store, view, keys_of(1, 2, 3, 50)), NOON.replace(microsecond=0)
    assert [event for event, _ in found] == [second, newer, second, older], "SQLite keeps whole seconds"


def test_the_second_scan_takes_up_what_changed(sqlite, ours, monkeypatch):
    store, view = ours
    sqlite.write(view, rows_of(range(3000)))
    monkeypatch.setattr(importing, "_ROWS_A_COMMIT", 500)
    later = NOON + timedelta(hours=1)
    written = []

    def write_meanwhile(rows, total):
        if not written:
            written.append(rows)
            sqlite.write(view, [(entity_key(user_id=n), value_of(n + 1), later, None) for n in range(-5, 5)])
            same_second = [(entity_key(user_id=n), value_of(n + 1), NOON, None) for n in range(5, 9)]
            sqlite.write(view, same_second)

    done = import_view(store, "history", sqlite.file, on_progress=write_meanwhile)
    # What lies behind the place of the first scan was met there already.
    assert done.entities == 3005
    assert 0 < done.changed <= 10
    keys = keys_of(*range(-5, 9))
    assert answers(store, view, keys) == sqlite.read(view, keys)


def test_a_store_that_loses_its_rows_meanwhile_is_told_and_nothing_is_imported(sqlite, ours):
    store, view = ours
    sqlite.write(view, rows_of(range(3000)))

    def lose_all(rows, total):
        with closing(sqlite3.connect(sqlite.file.parent / "online.db")) as database, database:
            database.execute("DELETE FROM shop_history")

    with pytest.raises(StorageError, match=r"the first scan found [0-9,]+ rows, and the second none"):
        import_view(store, "history", sqlite.file, on_progress=lose_all)
    assert answers(store, view, keys_of(1)) == [(None, {})]
    sqlite.write(view, rows_of(range(10)))
    assert import_view(store, "history", sqlite.file).entities == 10


@pytest.mark.parametrize(
    ("bad", "reason"), [(0, "there are no rows;"), (3, r"none of 3 rows can be kept;")], ids=["none", "bad"]
)
def test_an_import_that_found_nothing_to_import_leaves_nothing(sqlite, ours, bad, reason):
    store, view = ours
    sqlite.write(view, [(key, {"country": Value(int64_val=1)}, NOON, None) for key in keys_of(*range(bad))])
    with pytest.raises(StorageError, match=reason):
        import_view(store, "history", sqlite.file, skip_bad=True)
    assert not maintenance.verify(store, "history").leftovers
    sqlite.write(view, rows_of(range(10)))
    done = import_view(store, "history", sqlite.file, skip_bad=True)
    assert (done.rows, done.changed, done.num_skipped, done.entities) == (10, 0, 0, 10)


def test_a_dry_run_changes_nothing(sqlite, ours, tmp_path):
    store, view = ours
    sqlite.write(view, rows_of(range(10)))
    before = sorted((tmp_path / "ours" / "data").rglob("*"))
    done = import_view(store, "history", sqlite.file, dry_run=True)
    assert (done.rows, done.entities) == (10, None)
    assert sorted((tmp_path / "ours" / "data").rglob("*")) == before


@pytest.mark.parametrize("rows_a_commit", [4, 1000])
def test_bad_rows_are_counted_named_and_left_out_where_that_is_wanted(
    sqlite, ours, tmp_path, monkeypatch, rows_a_commit
):
    monkeypatch.setattr(importing, "_ROWS_A_COMMIT", rows_a_commit)
    store, view = ours
    keys = keys_of(*range(20))
    sqlite.write(view, rows_of(range(20)))
    bad = [3, 17]
    sqlite.write(view, [(keys[n], {"country": Value(int64_val=n)}, NOON, None) for n in bad])
    told = r"the entity user_id=(3|17): .*'country'"
    with pytest.raises(RowError, match=f"2 of 20 rows cannot be kept.* {told}"):
        import_view(store, "history", sqlite.file, dry_run=True)
    with pytest.raises(RowError, match=f"{told}.*Nothing was imported.*--skip-bad"):
        import_view(store, "history", sqlite.file)
    assert answers(FeatureStore(str(tmp_path / "ours")), view, keys) == [(None, {})] * 20
    done = run_cli(tmp_path / "ours", "import", "history", "--from", str(sqlite.file), "--skip-bad")
    assert sorted(line.split(":")[1] for line in done.stderr.splitlines() if "left out" in line) == [
        " left out user_id=17",
        " left out user_id=3",
    ]
    found = answers(store, view, keys)
    assert [n for n, (event, _) in enumerate(found) if event is None] == bad
    again = import_view(store, "history", sqlite.file, skip_bad=True)
    assert (again.num_skipped, again.skipped.keys()) == (2, {"user_id=3", "user_id=17"})


def test_what_cannot_be_read_is_told(sqlite, ours, tmp_path, monkeypatch):
    store, view = ours
    with pytest.raises(StorageError, match=r"history.*shop.*Sqlite.*other.online\.db cannot be read"):
        import_view(store, "history", sqlite.file)  # there is no database
    sqlite.write(view, [])
    with pytest.raises(StorageError, match="there are no rows"):
        import_view(store, "history", sqlite.file)
    own = tmp_path / "ours" / "feature_store.yaml"
    with pytest.raises(SettingsError, match=r"SketchOnlineStore.*cannot be imported"):
        import_view(store, "history", own)
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "feast.infra.online_stores.sqlite", None)
        with pytest.raises(SettingsError, match=r"import of feast.* halted.*; install what this store needs"):
            import_view(store, "history", sqlite.file)
    redis = Other(tmp_path / "redis", "redis", {"connection_string": "127.0.0.1"}, "shop")
    with pytest.raises(
        SettingsError, match=r"redis.feature_store.yaml: .* cannot be opened: KeyError: 'port'"
    ):
        import_view(store, "history", redis.file)
    sqlite.file.write_text(sqlite.file.read_text().replace("version: 3", "version: 2"))
    with pytest.raises(SettingsError, match="entity_key_serialization_version"):
        import_view(store, "history", sqlite.file)


def changed(sqlite, column, stored):
    """Put something into a column of the rows of user 1."""
    with closing(sqlite3.connect(sqlite.file.parent / "online.db")) as database, database:
        changed = database.execute(
            f"UPDATE shop_history SET {column} = ? WHERE entity_key = ?",
            (stored, serialize_entity_key(entity_key(user_id=1), 3)),
        )
        assert changed.rowcount == len(FEATURES)


def test_odd_columns_of_a_table_are_told(sqlite, ours):
    store, view = ours
    for column, stored, message in [
        ("event_ts", None, "None is not a time"),
        ("event_ts", b"12", "is not a time"),
        ("event_ts", "at noon", "'at noon'"),
        ("event_ts", 10**15, ""),
        ("event_ts", -(10**13), ""),
        ("event_ts", 10**18, ""),
        ("event_ts", float("inf"), "out of range"),
        ("event_ts", "0001-01-01T00:00:00+01:00", "out of range"),
        ("created_ts", "0000-00-00", "0000-00-00|out of range"),
        ("value", "text", "a value of feature"),
        ("value", 7, "a value of feature"),
    ]:
        sqlite.write(view, rows_of(range(3)))
        changed(sqlite, column, stored)
        where = "" if column == "value" else "a timestamp of the entity user_id=1 cannot be read"
        with case(column, stored), pytest.raises(StorageError, match=f"'history' of.*{where}.*(?:{message})"):
            import_view(store, "history", sqlite.file, dry_run=True)


def test_a_null_in_a_table_is_a_missing_value(sqlite, ours):
    store, view = ours
    sqlite.write(view, rows_of(range(3)))
    changed(sqlite, "value", None)
    assert import_view(store, "history", sqlite.file).rows == 3
    found = answers(store, view, keys_of(0, 1, 2))
    assert [event is None for event, _ in found] == [False] * 3
    assert [bool(values) for _, values in found] == [True, False, True]


@pytest.fixture
def local_zone(monkeypatch):
    """Sets the time zone of this process, until the test ends."""

    def put(zone):
        monkeypatch.setenv("TZ", zone)
        time.tzset()

    yield put
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kolkata"])
def test_a_table_of_another_time_zone(sqlite, ours, local_zone, zone):
    local_zone(zone)
    store, view = ours
    summer, winter, keys = NOON, NOON + timedelta(days=200), keys_of(0, 1)
    sqlite.write(view, [(keys[0], value_of(0), summer, None), (keys[1], value_of(1), winter, summer)])
    import_view(store, "history", sqlite.file)
    assert answers(store, view, keys) == sqlite.read(view, keys)
    found = [event for event, _ in answers(store, view, keys)]
    assert found == [moment.replace(microsecond=0) for moment in (summer, winter)]


def test_the_other_store_is_only_read(sqlite, ours):
    store, view = ours
    sqlite.write(view, rows_of(range(10)))
    file = sqlite.file.parent / "online.db"
    file.chmod(0o444)
    before = file.read_bytes()
    import_view(store, "history", sqlite.file)
    assert file.read_bytes() == before


def test_entities_with_more_features_than_a_page_has_rows(sqlite, ours, monkeypatch):
    monkeypatch.setattr("feast_sketch_store.bridges.sql._ROWS_A_PAGE", 3)
    store, view = ours
    sqlite.write(view, rows_of(range(7)))
    assert import_view(store, "history", sqlite.file).rows == 7


def run_dying(folder, other_file, left):
    """Import in this process, which is killed at a step on the disk; exit status 7 if it came to its end."""
    importing._ROWS_A_COMMIT = 300

    def dying(method):
        def step(*arguments, **keywords):
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return method(*arguments, **keywords)

        return step

    for name in ("replace", "create", "append", "delete_all"):
        setattr(LocalStorage, name, dying(getattr(LocalStorage, name)))
    import_view(FeatureStore(str(folder)), "history", other_file)
    os._exit(7)


def test_kills(sqlite, ours, tmp_path):
    """Killed at one write after the other, and run again: nothing is half-visible, and it goes on."""
    store, view = ours
    sqlite.write(view, rows_of(range(2000)))
    keys = keys_of(0, 999, 1999)
    num_kills = int(os.environ.get("SKETCH_IMPORT_KILLS", "2"))
    rng = random.Random(1)
    for _ in range(num_kills):
        arguments = tmp_path / "ours", sqlite.file, rng.randint(3, 40)
        process = warm_context().Process(target=run_dying, args=arguments)
        process.start()
        process.join(PATIENCE_SECONDS)
        assert process.exitcode in (-signal.SIGKILL, 7)
        found = answers(FeatureStore(str(tmp_path / "ours")), view, keys)
        assert len({event is None for event, _ in found}) == 1
        if process.exitcode == 7:  # the next one begins anew
            shutil.rmtree(tmp_path / "ours" / "data" / "sketch", ignore_errors=True)
    import_view(store, "history", sqlite.file)
    assert answers(store, view, keys) == sqlite.read(view, keys)
    assert maintenance.verify(store, "history").is_sound


class StoppedError(Exception):
    pass


def test_an_import_goes_on_where_it_was(sqlite, ours, monkeypatch):
    monkeypatch.setattr(importing, "_ROWS_A_COMMIT", 1000)
    store, view = ours
    sqlite.write(view, rows_of(range(5000)))  # four pages

    def stop(rows, total):
        if rows > 3000:
            raise StoppedError

    with pytest.raises(StoppedError):
        import_view(store, "history", sqlite.file, on_progress=stop)
    assert maintenance.verify(store, "history").leftovers
    reported = []
    done = import_view(store, "history", sqlite.file, on_progress=lambda rows, total: reported.append(rows))
    assert done.entities == 5000
    # Scans begin with a page of the same size; the first one had a part to go only.
    assert max(reported[: reported.index(reported[0], 1)]) < 2500


@pytest.mark.parametrize("kind", [pa.int32(), pa.int64(), pa.timestamp("us", "UTC")], ids=str)
def test_keys_of_a_file_may_be_seconds_where_they_are_timestamps(tmp_path, kind):
    view, _ = make_view(value_type=ValueType.UNIX_TIMESTAMP)
    view.entity_columns = [Field(name="user_id", dtype=UnixTimestamp)]
    seconds = [-1, 0, 1_777_636_800]
    given = [n * 1_000_000 if pa.types.is_timestamp(kind) else n for n in seconds]
    pq.write_table(pa.table({"user_id": pa.array(given, kind)}), tmp_path / "keys.parquet")
    keys = [entity_key(user_id=Value(unix_timestamp_val=n)) for n in seconds]
    assert (
        KeyFinder(view, tmp_path / "keys.parquet").find([compute_entity_id(key, 3) for key in keys]) == keys
    )


@pytest.mark.parametrize("skip_bad", [True, False], ids=["again with --skip-bad", "without it"])
def test_rows_that_were_corrected_since_an_interrupted_import_are_not_left_out(
    sqlite, ours, monkeypatch, skip_bad
):
    monkeypatch.setattr(importing, "_ROWS_A_COMMIT", 10)
    store, view = ours
    sqlite.write(view, rows_of(range(20)))
    (key,) = keys_of(3)
    sqlite.write(view, [(key, {"country": Value(int64_val=3)}, NOON, None)])

    def stop(rows, total):
        if maintenance.verify(store, "history").leftovers:  # of the first commit
            raise StoppedError

    with pytest.raises(StoppedError):
        import_view(store, "history", sqlite.file, skip_bad=True, on_progress=stop)
    sqlite.write(view, rows_of([3]))
    done = import_view(store, "history", sqlite.file, skip_bad=skip_bad)
    assert (done.entities, done.num_skipped, done.skipped) == (20, 0, {})
    assert answers(store, view, [key]) == sqlite.read(view, [key])


def test_a_view_may_be_declared_anew_after_an_import_that_was_refused(sqlite, tmp_path, monkeypatch):
    monkeypatch.setattr(importing, "_ROWS_A_COMMIT", 10)
    (narrow, user), (wide, _) = (make_view(features=[Field(name="n", dtype=t)]) for t in (Int32, Int64))
    store, view = make_store(tmp_path / "ours", sqlite.project, narrow, user)
    keys = keys_of(*range(25))

    def write(last):
        numbers = [*range(24), last]
        rows = [(key, {"n": Value(int64_val=n)}, NOON, None) for key, n in zip(keys, numbers, strict=True)]
        sqlite.write(view, rows)

    def stop(rows, total):
        if maintenance.verify(store, "history").leftovers:  # of the first commit
            raise StoppedError

    write(24)
    with pytest.raises(StoppedError):
        import_view(store, "history", sqlite.file, on_progress=stop)
    write(2**40)
    with pytest.raises(RowError, match="'n'"):
        import_view(store, "history", sqlite.file)
    store.apply([user, wide])
    assert import_view(store, "history", sqlite.file).entities == 25
    assert answers(store, wide, keys) == sqlite.read(wide, keys)
    assert maintenance.verify(store, "history").is_sound


def test_command(sqlite, ours, tmp_path):
    _, view = ours
    sqlite.write(view, rows_of(range(10)))
    arguments = [tmp_path / "ours", "import", "history", "--from", str(sqlite.file)]
    assert '"entities": null' in run_cli(*arguments, "--dry-run", "--json").stdout
    reported = run_cli(*arguments, "--max-rows-per-second", "100000")
    assert reported.stdout.splitlines()[2].split() == ["history", "Sqlite", "exact", "10", "0", "0", "10"]


def test_the_walk_of_the_page(redis_port, tmp_path, monkeypatch):
    """docs/how_to/migrate.md as a new user does it: the same answers before and after, and what it shows."""
    page = (Path(__file__).parents[2] / "docs" / "how_to" / "migrate.md").read_text("utf-8")
    monkeypatch.chdir(tmp_path)
    file = Path("feature_store.yaml")
    options = {"type": "redis", "connection_string": f"127.0.0.1:{redis_port},db=9"}
    config = {"project": "shop", "provider": "local", "registry": "registry.db", "online_store": options}
    file.write_text(json.dumps({**config, "entity_key_serialization_version": 3}))  # which is YAML
    view, user = make_view()
    pd.DataFrame({"user_id": [0], "event_timestamp": [NOON]}).to_parquet("rows.parquet")
    store = FeatureStore(".")
    store.apply([user, view])
    store._get_provider().online_write_batch(store.config, view, rows_of(range(WALKED)), None)
    features = [f"history:{name}" for name in FEATURE_NAMES]

    def answered():
        asked = [{"user_id": number} for number in range(0, WALKED, 7)]
        answer = FeatureStore(".").get_online_features(features, asked).to_dict()
        return {
            name: [set(v) if isinstance(v, set) else v for v in column] for name, column in answer.items()
        }

    def run(*arguments):
        done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout

    before = answered()
    surveyed = run("survey", "--from", "feature_store.yaml")
    assert surveyed.splitlines()[2].split()[:3] == ["history", "Redis", f"{WALKED:,}"]
    file.rename("old_feature_store.yaml")
    file.write_text(
        json.dumps({**config, "online_store": {"type": "sketch"}, "entity_key_serialization_version": 3})
    )
    FeatureStore(".").apply([user, view])
    run("import", "history", "--from", "old_feature_store.yaml", "--dry-run")
    imported = run("import", "history", "--from", "old_feature_store.yaml")
    shown = re.search(r"```\n(view +from .*?)```", page, re.DOTALL)[1].replace("50,000", f"{WALKED:,}")
    assert imported.split() == shown.split()
    assert answered() == before


@for_each("length", range(1, 34))
def test_hashes_of_int64_keys_are_computed_back(length):
    """Whatever place the value has in the blocks of the hash."""
    join_key, values = "k" * length, [0, 1, -1, 2**63 - 1, -(2**63), 123456789]
    ids = [compute_entity_id(entity_key(**{join_key: value})) for value in values]
    digests = hash_int64_keys(join_key, pd.Series(values).to_numpy())
    assert [digest.astype("<u8").tobytes().hex() for digest in digests] == ids
    found, is_known = invert_int64_keys(join_key, digests)
    assert found.tolist() == values
    assert is_known.all()
    assert not invert_int64_keys(join_key, digests + 1)[1].any()
