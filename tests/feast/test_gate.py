"""A bad upstream job before a view with a gate, through Feast and ``feast-sketch``."""

import json
from datetime import UTC, datetime, timedelta

import pandas as pd
import pyarrow as pa
import pytest
from feast import FeatureStore, Field
from feast.data_source import PushMode
from feast.protos.feast.types.Value_pb2 import Int64Set, Value
from feast.types import Int64, Set, String

from feast_sketch_store.engines.write_job import ROWS_GIVEN, WriteJob
from feast_sketch_store.errors import GateError, SettingsError
from feast_sketch_store.online_store import online_store_of
from feast_sketch_store.operations import maintenance
from tests.helpers.keys import user_key
from tests.helpers.processes import run_command
from tests.helpers.repository import (
    ROWS,
    copy_repository,
    make_repository,
    make_view,
    materialize,
    read_users,
    run_cli,
)

pytestmark = pytest.mark.slow

EVENT = datetime(2026, 5, 1, tzinfo=UTC)
USERS = range(60)
LATER = EVENT + timedelta(hours=1)


def write_source(folder, items, event=EVENT):
    rows = {"user_id": [*USERS], "viewed": [[*range(items)]] * len(USERS), "event": event}
    pd.DataFrame(rows).to_parquet(folder / ROWS)


@pytest.fixture(scope="module", params=[1, 4], ids=lambda number: f"{number} shards")
def repository(request, tmp_path_factory):
    """A repository with materialized users of 8 items."""
    folder = tmp_path_factory.mktemp("repository")
    view = make_view({"viewed": Set(Int64)}, pushed="clicks", tags={"sketch.gate": "{change: 20%}"})
    write_source(folder, 8)
    options = {"refresh": 0, "shards": request.param, "compaction": {"min_rows": 40}}
    materialize(make_repository(folder, view, **options), EVENT)
    return folder


@pytest.fixture
def store(repository, tmp_path):
    return copy_repository(repository, tmp_path)


def lengths(store, users=(1, 2, 3)):
    shown = read_users(FeatureStore(repo_path=str(store.repo_path)), ["history:viewed"], users)
    return [len(values) for values in shown["viewed"]]


def run(store, *arguments, status=0):
    done = run_cli(store.repo_path, *arguments, status=status)
    return done.stdout, done.stderr


def push(store, users, items):
    rows = {"user_id": [*users], "viewed": [[*range(items)]] * len(users), "event": LATER}
    store.push("clicks", pd.DataFrame(rows), to=PushMode.ONLINE)


def test_the_command_of_feast_fails_and_reads_show_what_they_showed(store):
    write_source(store.repo_path, 1, LATER)
    moments = "2026-04-30T00:00:00", "2026-05-03T00:00:00"
    done = run_command(["feast", "-c", store.repo_path, "materialize", *moments])
    assert done.returncode != 0
    assert "facts of 'viewed': 480 -> 60 (-87.5 %, at most 20 %)" in done.stdout + done.stderr
    assert lengths(store) == [8, 8, 8]
    push(store, [2], 3)
    assert lengths(store) == [8, 3, 8], "a push is read at once"
    run(store, "publish", "history", status=1)
    assert lengths(store) == [8, 3, 8]
    printed, _ = run(store, "publish", "history", "--force", "--json")
    assert json.loads(printed)[0]["outcome"] == "published: 60 rows"
    assert lengths(store) == [1, 1, 1]


def test_a_corrected_job_is_published_and_the_other_rows_are_discarded(store):
    write_source(store.repo_path, 1, LATER)
    with pytest.raises(GateError):
        materialize(store, EVENT)
    write_source(store.repo_path, 9, LATER)
    materialize(store, EVENT)
    assert lengths(store) == [9, 9, 9]
    assert "deleted: 60 rows" in run(store, "discard", "history")[0]
    assert "no fill is held back" in run(store, "discard", "history")[0]
    assert "sealed" in run(store, "publish", "history")[0]
    assert lengths(store) == [9, 9, 9]
    run(store, "verify", "history")


def test_a_seal_of_pushes_fails_with_the_figures(store):
    for start in range(0, 60, 6):
        push(store, USERS[start : start + 6], 1)
    assert lengths(store) == [1, 1, 1]
    printed, reported = run(store, "seal", "--json", status=1)
    assert "not published: facts of 'viewed': 480 -> 60" in json.loads(printed)[0]["outcome"]
    assert "feast-sketch publish history --force" in reported
    run(store, "publish", "history", "--force")
    run(store, "seal")
    assert lengths(store) == [1, 1, 1]


def test_a_rebuild_fails_unless_it_is_forced(store):
    write_source(store.repo_path, 1)
    command = ["rebuild", "history", "--yes", "--from", "2026-04-30", "--to", "2026-05-03"]
    assert "Nothing has changed" in run(store, *command, status=1)[1]
    assert lengths(store) == [8, 8, 8]
    run(store, *command, "--force")
    assert lengths(store) == [1, 1, 1]


def test_rows_of_the_tasks_of_an_engine_are_held_back(store):
    """What Spark and Ray do around their tasks, here with one task."""
    write_source(store.repo_path, 1, LATER)
    online, table = online_store_of(store), store.get_feature_view("history")
    view = online.writer(store.config, table)
    frame = pd.read_parquet(store.repo_path / ROWS)
    rows = view.to_table([list(as_feast(frame))])

    def write():
        with WriteJob(store.config, table, online) as job:
            entries = [file.to_report() | {ROWS_GIVEN.name: 0} for file in view.stage([rows], job.label)]
            entries[0][ROWS_GIVEN.name] = len(frame)
            job.finish([pa.Table.from_pylist(entries)], len(frame))

    with pytest.raises(GateError):
        write()
    assert lengths(store) == [8, 8, 8]
    assert maintenance.publish(store, "history", force=True) == len(USERS)
    assert lengths(store) == [1, 1, 1]


def as_feast(frame):
    for row in frame.itertuples():
        value = Value(int64_set_val=Int64Set(val=list(row.viewed)))
        yield user_key(row.user_id), {"viewed": value}, row.event.to_pydatetime(), None


def test_settings_are_checked_by_apply(tmp_path):
    tags = {"sketch.gate": "{check: 'checks:plausible'}"}
    with pytest.raises(SettingsError, match=r"history.*checks:plausible.*cannot be imported"):
        make_repository(tmp_path, make_view({"viewed": Set(Int64)}, tags=tags))


def test_features_of_a_backing_store_cannot_be_held_back(tmp_path):
    fields = [Field(name="text", dtype=String, tags={"sketch.codec": "backing"})]
    options = {"gate": {"entities": 3}, "backing_store": {"store": {"type": "sqlite", "path": "other.db"}}}
    with pytest.raises(SettingsError, match=r"history.*gate.*text"):
        make_repository(tmp_path, make_view(fields), **options)
