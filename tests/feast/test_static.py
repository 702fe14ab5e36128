"""Views whose scalars are in a static function: newest rows, deletions, rebuilds, and what operators see."""

from datetime import UTC, datetime, timedelta

import pandas as pd
import pytest
from feast import Field
from feast.types import Array, Float32, Int64, String

from feast_sketch_store import SketchReader, open_view
from feast_sketch_store.errors import SettingsError
from feast_sketch_store.operations import maintenance
from tests.helpers.repository import make_repository, make_view, materialize, read_users

NUM_USERS = 200
EVENT = datetime(2026, 5, 1, tzinfo=UTC)
STATIC = {"sketch.codec": "static"}


def make(tmp_path, schema):
    users = range(NUM_USERS)
    rows = pd.DataFrame(
        {
            "user_id": list(users),
            "country": [["FR", "DE", None][u % 3] for u in users],
            "level": [u % 5 for u in users],
            "price": [float(u) for u in users],
            "sizes": [[u % 4] for u in users],
            "event": EVENT,
        }
    )
    view = make_view(schema, name="people")
    store = make_repository(tmp_path, view, rows=rows, refresh=0, compaction={"min_rows": 100})
    return materialize(store, EVENT)


@pytest.fixture
def store(tmp_path):
    return make(
        tmp_path,
        [Field(name="country", dtype=String, tags=STATIC), Field(name="level", dtype=Int64, tags=STATIC)],
    )


def rows(store, *users):
    answer = read_users(store, ["people:country", "people:level"], users)
    return list(zip(answer["country"], answer["level"], strict=True))


def expected(user):
    return ["FR", "DE", None][user % 3], user % 5


def test_rows_are_read_and_reported(store):
    assert rows(store, *range(NUM_USERS), 10**6) == [*map(expected, range(NUM_USERS)), (None, None)]
    report = maintenance.inspect(store, "people")
    assert {f.name: f.structure for f in report.features} == {"country": "static", "level": "static"}
    assert report.presence_sampled_rate <= 30 / 200_000
    assert 10 < report.table_bits_per_fact < report.bits_per_fact
    assert maintenance.verify(store, "people").problems == []
    reader = SketchReader(store.repo_path, "people")
    assert reader.arrow("level", [3, 4, 10**6]).to_pylist() == [3, 4, None]


def test_newer_rows_late_ones_and_deletions(store):
    def push(users, event, level):
        frame = pd.DataFrame({"user_id": users, "country": "IT", "level": level, "event": event})
        store.write_to_online_store("people", frame)

    push([1, 10**6], EVENT + timedelta(hours=1), 9)
    push([2], EVENT - timedelta(hours=1), 9)  # late
    assert rows(store, 1, 2, 10**6) == [("IT", 9), expected(2), ("IT", 9)]
    view = open_view(store, "people")
    maintenance.seal(store, "people")
    assert rows(store, 1, 2, 3, 10**6) == [("IT", 9), expected(2), expected(3), ("IT", 9)]
    assert view.stats().structures == {"country": "static", "level": "static"}
    maintenance.delete(store, "people", [{"user_id": 1}])
    assert rows(store, 1, 4) == [(None, None), expected(4)]
    maintenance.seal(store, "people")
    assert rows(store, 1, 4) == [(None, None), expected(4)]
    assert maintenance.verify(store, "people").problems == []


def test_a_rebuild_from_the_source(store):
    maintenance.delete(store, "people", [{"user_id": 1}])
    maintenance.rebuild(store, "people", EVENT - timedelta(days=1), EVENT + timedelta(days=1))
    assert rows(store, *range(NUM_USERS)) == [*map(expected, range(NUM_USERS))]
    assert open_view(store, "people").stats().structures == {"country": "static", "level": "static"}


def test_another_feature_beside_them_is_refused(tmp_path):
    schema = [Field(name="country", dtype=String, tags=STATIC), Field(name="level", dtype=Int64)]
    whole = r"'static', and others: level\. A static function holds whole rows"
    with pytest.raises(SettingsError, match=whole):
        make(tmp_path, schema)


@pytest.mark.parametrize("dtype", [Array(Int64), Array(Float32)])
def test_a_collection_is_refused(tmp_path, dtype):
    with pytest.raises(SettingsError, match=r"'sizes' of view 'people' has type .*'static' does not take"):
        make(tmp_path, [Field(name="sizes", dtype=dtype, tags=STATIC)])
