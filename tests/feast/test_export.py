"""`feast-sketch export`: every row in Feast's SQLite and Redis stores answers as it did here."""

import asyncio
import functools
from datetime import timedelta

import pandas as pd
import pytest
import yaml
from feast import FeatureStore, Field
from feast.types import Array, Float64, Int64, Set, String, UnixTimestamp

from tests.helpers.length import combined
from tests.helpers.repository import (
    SEALED,
    another,
    copy_repository,
    make_repository,
    make_view,
    push,
    read_users,
    run_cli,
)

pytestmark = pytest.mark.slow

NOW = pd.Timestamp.now("UTC").floor("s")
NUM_USERS = 1_200  # more than a batch
USERS = range(NUM_USERS)


def hours_ago(number):
    return NOW - pd.Timedelta(hours=number)


@pytest.fixture(params=["sqlite", "redis"])
def other(request, tmp_path):
    """The online store of another configuration."""
    if request.param == "sqlite":
        return {"type": "sqlite", "path": "online.db"}
    port = request.getfixturevalue("redis_port")
    return {"type": "redis", "connection_string": f"127.0.0.1:{port}"}


def beside(folder, **online_store):
    """Another configuration of a repository, with another online store."""
    path, settings = folder / "other.yaml", yaml.safe_load((folder / "feature_store.yaml").read_text())
    path.write_text(yaml.safe_dump({**settings, "online_store": online_store}))
    return path


# -- views of each kind, with rows --------------------------------------------------------------


def plain():
    """Features that a row replaces: empty, null, not exact, kept by another store."""
    fields = [Field(name="viewed", dtype=Set(String)), Field(name="age", dtype=Int64)]
    fields += [Field(name="tags", dtype=Array(Float64))]
    fields += [Field(name="bio", dtype=String, tags={"sketch.codec": "backing"})]

    def fill(store):
        rows = {
            "user_id": USERS,
            "viewed": [[f"item {number % 7}"] if number % 5 else [] for number in USERS],
            "age": pd.array([number % 9 if number % 4 else None for number in USERS], "Int64"),
            "tags": [[0.5, float(number), 0.5] for number in USERS],
            "bio": [f"about {number}" for number in USERS],
            "event": [hours_ago(30 if number % 11 == 0 else 2) for number in USERS],
        }
        push(store, **rows)
        push(store, **{name: column[:2] for name, column in rows.items()} | {"event": NOW})

    backing = {"store": {"type": "sqlite", "path": "backing.db"}}
    return fields, {}, {"ttl": {"expire": True}, "structure": "sets", "backing_store": backing}, fill


def lists():
    """Items with times, more than the limit, and some that have expired."""
    tags = {"sketch.codec": "list", "sketch.list": "{resolution: 1s, limit: 3}"}
    fields = [Field(name="watched", dtype=Array(Int64), tags=tags)]
    fields += [Field(name="watched_at", dtype=Array(UnixTimestamp), tags={"sketch.of": "watched"})]

    def fill(store):
        for hour in (1, 40, 2, 5, 3, 23):
            push(
                store,
                user_id=USERS,
                watched=[[number + hour] for number in USERS],
                watched_at=[[hours_ago(hour)]] * NUM_USERS,
                event=hours_ago(hour),
            )

    return fields, {}, {}, fill


def counts():
    """Values with their counts."""
    fields = [Field(name="author", dtype=Array(Int64), tags={"sketch.codec": "counts"})]
    fields += [Field(name="views", dtype=Array(Int64), tags={"sketch.of": "author"})]

    def fill(store):
        values = [[number % 7, 9, number % 5 + 10] for number in USERS]
        push(store, user_id=USERS, author=values, views=[[1, 70_000, 3]] * NUM_USERS, event=hours_ago(1))

    return fields, {}, {}, fill


def growing():
    """Sets to which values are added, and from which some are removed."""

    def fill(store):
        for number in (1, 2, 3):
            push(store, user_id=USERS, liked=[[number, user] for user in USERS], event=hours_ago(number))
        removed = pd.DataFrame({"user_id": [5, 6], "liked": [[2], [6]], "event": NOW})
        asyncio.run(store.update_online_store("history", removed, {"liked": "DELETE liked :new_val"}))

    return [Field(name="liked", dtype=Set(Int64))], {"sketch.rows": "append"}, {"structure": "sets"}, fill


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """Makes the folder of a repository with a view of a kind, and its fields; each only once."""

    @functools.cache
    def make(kind, shards, sealed):
        fields, tags, options, fill = kind()
        view = make_view(fields, pushed="clicks", tags=tags, ttl=timedelta(days=1))
        project = f"{kind.__name__}_{shards}_{sealed}"
        folder = tmp_path_factory.mktemp(project)
        fill(make_repository(folder, view, project=project, shards=shards, **options))
        run_cli(folder, "delete", "history", "user_id=3")
        if sealed:
            run_cli(folder, "seal")
        return folder, fields

    return make


@pytest.mark.parametrize(
    ("kind", "state"), combined([plain, lists, counts, growing], [(4, True), (1, False), (1, True)])
)
def test_every_row_goes_back(tmp_path, filled, other, kind, state):
    shards, sealed = state
    folder, fields = filled(kind, shards, sealed)
    copy_repository(folder, tmp_path)
    ours, theirs = tmp_path / "feature_store.yaml", beside(tmp_path, **other)

    def answers(configuration):
        store = FeatureStore(repo_path=str(tmp_path), fs_yaml_file=configuration)
        features, users = [f"history:{field.name}" for field in fields], [*USERS, NUM_USERS]
        read = store.get_online_features(features, [{"user_id": user} for user in users]).to_dict()
        rows = zip(*(read[field.name] for field in fields), strict=True)
        if kind is counts:  # whose order is not promised
            rows = [sorted(zip(*row, strict=True)) if row[0] else row for row in rows]
        return list(rows)

    run_cli(tmp_path, "export", "history", "--to", str(theirs))
    wanted = answers(ours)
    assert answers(theirs) == wanted
    for absent in (3, NUM_USERS):
        assert wanted[absent] == (None,) * len(fields)


def test_counts_that_grow_come_back(tmp_path):
    """Rows of sums are increments of an empty view, also if they are imported twice."""
    fields = [Field(name="author", dtype=Array(Int64), tags={"sketch.codec": "counts"})]
    fields += [Field(name="views", dtype=Array(Int64), tags={"sketch.of": "author"})]
    fields += [Field(name="events", dtype=Array(String), tags={"sketch.ids_of": "author"})]
    view = make_view(fields, pushed="clicks", tags={"sketch.rows": "append"})
    first, second = (make_repository(tmp_path / name, view) for name in ("first", "second"))
    for number in range(3):
        event = {"author": [[7, 8]] * 2, "views": [[1, 2]] * 2, "events": [[f"{number}", f"b{number}"]] * 2}
        push(first, user_id=[1, 2], **event, event=hours_ago(3 - number))
    theirs = beside(tmp_path / "first", type="sqlite", path="online.db")
    run_cli(tmp_path / "first", "export", "history", "--to", str(theirs))
    for _ in range(2):
        run_cli(tmp_path / "second", "import", "history", "--from", str(theirs))
        read = second.get_online_features(["history:author", "history:views"], [{"user_id": 1}]).to_dict()
        assert dict(zip(read["author"][0], read["views"][0], strict=True)) == {7: 3, 8: 6}


def test_an_export_hides_no_feature_that_only_another_project_has(tmp_path):
    """Also if the writes of the export seal the view there."""
    viewed, name = Field(name="viewed", dtype=Set(Int64)), Field(name="name", dtype=String)
    ours = make_repository(tmp_path / "ours", make_view([viewed], pushed="clicks"), **SEALED)
    theirs = make_repository(tmp_path / "theirs", make_view([viewed, name], pushed="clicks"), **SEALED)
    push(ours, user_id=[1, 2], viewed=[[1]] * 2, event=hours_ago(2))
    push(theirs, user_id=[2, 3], viewed=[[2]] * 2, name=["b", "c"], event=hours_ago(1))
    run_cli(tmp_path / "ours", "export", "history", "--to", str(tmp_path / "theirs" / "feature_store.yaml"))
    theirs = another(tmp_path / "theirs")
    read = read_users(theirs, ["history:viewed", "history:name"], [1, 2, 3])
    assert read == {"user_id": [1, 2, 3], "viewed": [{1}, {2}, {2}], "name": [None, "b", "c"]}


def test_a_store_is_not_exported_to_itself(tmp_path, filled):
    folder, _ = filled(growing, 1, True)
    copy_repository(folder, tmp_path)
    (tmp_path / "here").symlink_to(tmp_path)
    for own in (tmp_path, tmp_path / "here"):
        done = run_cli(tmp_path, "export", "history", "--to", str(own / "feature_store.yaml"), status=1)
        assert "its online store is the one that the rows come from" in done.output


@pytest.mark.parametrize("shards", [1, 4])
def test_a_pinned_view_is_not_exported(tmp_path, filled, shards):
    folder, _ = filled(growing, shards, True)
    copy_repository(folder, tmp_path)
    theirs = beside(tmp_path, type="sqlite", path="online.db")
    run_cli(tmp_path, "pin", "history")
    done = run_cli(tmp_path, "export", "history", "--to", str(theirs), status=1)
    assert "feature view 'history' is pinned to a snapshot" in done.output
    assert "run `feast-sketch unpin history` first" in done.output
    assert not (tmp_path / "online.db").exists()
    run_cli(tmp_path, "unpin", "history")
    run_cli(tmp_path, "export", "history", "--to", str(theirs))
