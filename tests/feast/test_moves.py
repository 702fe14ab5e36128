"""Rows that move between this store and Feast's SQLite store: views that append, and moves made again."""

from datetime import timedelta

import pandas as pd
import pytest
from feast import Field
from feast.types import Array, Int64, Set, String, UnixTimestamp

from feast_sketch_store.bridges import importing, sql
from feast_sketch_store.bridges.exporting import export
from feast_sketch_store.bridges.importing import import_view
from feast_sketch_store.errors import GateError
from feast_sketch_store.operations import maintenance
from tests.helpers.keys import entity_key
from tests.helpers.repository import make_repository, make_view, read_users

pytestmark = pytest.mark.slow

NOW = pd.Timestamp.now("UTC").floor("s")
APPEND = {"sketch.rows": "append"}
LIST = {"sketch.codec": "list", "sketch.list": "{limit: 5}"}
COUNTS = {"sketch.codec": "counts"}

VIEWS = {
    "lists": (
        {"v": (Array(String), LIST), "at": (Array(UnixTimestamp), {"sketch.of": "v"})},
        {},
        {"v": [["a", "b"], ["c"]], "at": [[NOW - pd.Timedelta(hours=2), NOW], [NOW]]},
    ),
    "sets": ({"v": (Set(Int64), {})}, APPEND, {"v": [{1, 2}, {3}]}),
    "counts": (
        {
            "v": (Array(Int64), COUNTS),
            "n": (Array(Int64), {"sketch.of": "v"}),
            "ids": (Array(Int64), {"sketch.ids_of": "v"}),
        },
        APPEND,
        {"v": [[7], [8]], "n": [[3], [4]], "ids": [None, None]},
    ),
}


def write(store, users=(1, 2), event=NOW, created=None, **columns):
    times = {"event": [event] * len(users)} | ({"created": [created] * len(users)} if created else {})
    store.write_to_online_store("history", pd.DataFrame({"user_id": users, **columns, **times}))


def read(store, *users):
    names = [field.name for field in store.get_feature_view("history").features if field.name != "ids"]
    answer = read_users(store, [f"history:{name}" for name in names], list(users))
    return {name: answer[name] for name in names}


@pytest.fixture
def make(tmp_path):
    """A repository with this store, and one with Feast's; and the configuration of the latter."""

    def made(features, tags=None, **options):
        fields = [Field(name=name, dtype=dtype, tags=tags) for name, (dtype, tags) in features.items()]
        view = make_view(fields, ttl=timedelta(days=9), tags=tags or {})
        theirs = make_repository(tmp_path / "theirs", view, type="sqlite", path="online.db")
        ours = make_repository(tmp_path / "ours", view, structure="sets", **options)
        return ours, theirs, tmp_path / "theirs" / "feature_store.yaml"

    return made


@pytest.mark.parametrize("kind", VIEWS)
def test_rows_of_views_that_append_are_imported_once(make, kind):
    fields, tags, rows = VIEWS[kind]
    ours, theirs, configuration = make(fields, tags)
    write(theirs, **rows)
    import_view(ours, "history", configuration)
    newest_first = kind == "lists"
    wanted = {name: [value[::-1] if newest_first else value for value in rows[name]] for name in rows}
    wanted.pop("ids", None)
    assert read(ours, 1, 2) == wanted
    import_view(ours, "history", configuration)
    assert read(ours, 1, 2) == wanted
    maintenance.seal(ours, "history")
    assert read(ours, 1, 2) == wanted
    assert maintenance.verify(ours, "history").is_sound


class _StoppedError(Exception):
    pass


@pytest.mark.parametrize("stopped", [2, 3, 4, 5])
def test_an_import_that_is_run_again_has_what_changed_in_between(make, monkeypatch, stopped):
    """Stopped between a commit and the note of it, or after both scans: nothing is old, or counts twice."""
    monkeypatch.setattr(importing, "_ROWS_A_COMMIT", 1)
    monkeypatch.setattr(sql, "_ROWS_A_PAGE", 2)
    fields, tags, rows = VIEWS["counts"]
    ours, theirs, configuration = make(fields, tags)
    write(theirs, **rows)
    saves, save = iter(range(1, 100)), importing._State.save

    def stop(self, storage):
        if next(saves) == stopped:
            raise _StoppedError
        save(self, storage)

    monkeypatch.setattr(importing._State, "save", stop)
    with pytest.raises(_StoppedError):
        import_view(ours, "history", configuration)
    monkeypatch.setattr(importing._State, "save", save)
    later = NOW + pd.Timedelta(hours=1)
    write(theirs, (2, 3), later, v=[[8], [9]], n=[[5], [6]], ids=[None, None])
    import_view(ours, "history", configuration)
    assert read(ours, 1, 2, 3) == {"v": [[7], [8], [9]], "n": [[3], [5], [6]]}


def test_after_a_gate_refused_them_rows_are_read_again(make):
    ours, theirs, configuration = make({"v": (Set(Int64), {})}, {"sketch.gate": "{entities: 3}"})
    write(theirs, v=[{1}, {2}])
    with pytest.raises(GateError):
        import_view(ours, "history", configuration)
    write(theirs, (1, 2, 3), v=[{1}, {4}, {5}])  # corrected, with the same times
    import_view(ours, "history", configuration)
    assert read(ours, 1, 2, 3) == {"v": [{1}, {4}, {5}]}


def test_a_second_export_replaces_what_the_first_wrote(make):
    ours, theirs, configuration = make({"v": (Set(Int64), {}), "country": (String, {})})
    write(ours, v=[{1}, {2}], country=["DE", "FR"])
    export(ours, "history", configuration)
    online, view = ours._get_provider().online_store, ours.get_feature_view("history")
    ((_, row),) = online.online_read(ours.config, view, [entity_key(user_id=1)])
    del row["country"]
    later = NOW + pd.Timedelta(hours=1)
    online.online_write_batch(ours.config, view, [(entity_key(user_id=1), row, later, None)], None)
    assert export(ours, "history", configuration) == 2
    assert read(theirs, 1, 2) == read(ours, 1, 2) == {"v": [{1}, {2}], "country": [None, "FR"]}
