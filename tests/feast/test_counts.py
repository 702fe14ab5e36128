"""Counts through Feast: how often each value was counted, from every write to every reader."""

import itertools
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pytest
from feast import Field
from feast.types import Array, Float32, Int32, Int64, Set, String

from feast_sketch_store import SketchReader, open_view, through_sketch
from feast_sketch_store.errors import RowError, SettingsError, UnsupportedFeatureError
from feast_sketch_store.operations import maintenance
from feast_sketch_store.planning.planner import plan_view
from tests.helpers.length import by_length
from tests.helpers.repository import make_repository, make_view, materialize, read_users

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
COUNTED = {"sketch.codec": "counts"}


def count_view(tags=COUNTED, counts=True, dtype=String, fields=(), counts_tags=None, view_tags=None):
    schema = [Field(name="viewed", dtype=Array(dtype), tags=tags)]
    if counts:
        counts_tags = counts_tags or {"sketch.of": "viewed"}
        schema.append(Field(name="views", dtype=Array(Int64), tags=counts_tags))
    return make_view([*schema, *fields], pushed="clicks", tags=view_tags)


@pytest.fixture
def make_store(tmp_path):
    """Makes a repository with one view of counts."""

    def make(**parts):
        rows, options = frame([(1, ["a", "b"], [3, 1])]), {"refresh": 0, "compaction": {"min_rows": 9999}}
        return make_repository(tmp_path, count_view(**parts), rows=rows, **options)

    return make


@pytest.fixture
def store(make_store):
    return make_store()


def frame(rows, hours=0, **more):
    users, values, counts = zip(*rows, strict=True)
    columns = {"user_id": users, "viewed": values, "event": [NOON + timedelta(hours=hours)] * len(rows)}
    if counts[0] is not ...:
        columns["views"] = counts
    return pd.DataFrame({**columns, **more})


def read(store, users):
    answer = read_users(store, ["history:viewed", "history:views"], users)
    return [
        None if values is None else dict(zip(values, counts, strict=True))
        for values, counts in zip(answer["viewed"], answer["views"], strict=True)
    ]


def read_csr(reader, users):
    matrix = reader.csr("viewed", np.array(users), counts=True)
    values = matrix.vocabulary.take(matrix.ids).to_pylist()
    bounds = matrix.indptr.tolist()
    return [
        dict(zip(values[first:stop], matrix.counts[first:stop].tolist(), strict=True))
        for first, stop in itertools.pairwise(bounds)
    ]


def test_counts_are_read_before_and_after_a_seal(store, tmp_path):
    """Also what makes a value counted: duplicates add up, zeros do not count."""
    store.push(
        "clicks",
        frame([(1, ["b", "a"], [3, 1]), (2, ["c", "a", "c"], [5, 7, 6]), (3, ["a"], [0]), (4, [], [])]),
    )
    truth = [{"a": 1, "b": 3}, {"a": 7, "c": 11}, {}, {}, None]
    for is_sealed in (False, True):
        if is_sealed:
            maintenance.seal(store, "history")
        assert [row or truth[user] for user, row in enumerate(read(store, [1, 2, 3, 4, 9]))] == truth
        reader = SketchReader(tmp_path, "history")
        assert read_csr(reader, [1, 2, 3, 4, 9]) == [row or {} for row in truth]
        assert read(store, [2]) == [truth[1]]
        assert maintenance.verify(store, "history").problems == []
    (feature,) = maintenance.inspect(store, "history").features
    assert (feature.structure, feature.codec, feature.max_error) == ("counts", "counts", None)


def test_a_score_weighs_by_counts_where_asked(store, tmp_path):
    store.push("clicks", frame([(1, ["b", "a"], [3, 1]), (2, ["c", "a"], [5, 7])]))
    for is_sealed in (False, True):
        if is_sealed:
            maintenance.seal(store, "history")
        reader = SketchReader(tmp_path, "history")
        weights = np.array(
            [{"a": 1.0, "b": 10.0, "c": 100.0}[v.as_py()] for v in reader.vocabulary("viewed")]
        )
        assert reader.scores("viewed", np.array([1, 2, 9]), weights).tolist() == [11, 101, 0]
        assert reader.scores("viewed", np.array([1, 2, 9]), weights, counts=True).tolist() == [31, 507, 0]
        assert reader.scores("viewed", 2, weights, counts=True) == 507
        assert reader.scores("viewed", 2, weights) == 101
        assert sorted(reader.ids("viewed", 1).tolist()) == sorted(reader.csr("viewed", np.array([1])).ids)
        has = reader.contains("viewed", [1, 2], ["c", "a", "x"])
        assert has.tolist() == [[False, True, False], [True, True, False]]
        given = SketchReader(tmp_path, "history", vocabularies={"viewed": ["c", "x", "a"]})
        assert given.scores("viewed", np.array([2]), np.array([1.0, 2.0, 4.0]), counts=True).tolist() == [33]
        matrix = given.csr("viewed", np.array([2]), counts=True)
        assert dict(zip(matrix.ids.tolist(), matrix.counts.tolist(), strict=True)) == {0: 5, 2: 7}


def drawn_rows(rng, users, truth, fewest, end):
    """A row for each user, of up to 8 values; counting ends at each number with the probability ``end``."""
    rows = []
    for user in users:
        values = rng.choice(20, rng.integers(fewest, 9), replace=False)
        counts = rng.geometric(end, len(values))
        truth[user] = {f"v{v}": int(c) for v, c in zip(values, counts, strict=True)}
        rows.append((user, [*truth[user]], [*truth[user].values()]))
    return rows


@pytest.mark.has_long_form
def test_a_hundred_pushes_keep_the_counts(store, tmp_path):
    """Rows carry whole maps, and the newest wins: unsealed, sealed, and unsealed over sealed."""
    rng, truth = np.random.default_rng(5), {}
    for push in range(by_length(20, 100)):
        users = rng.choice(30, 4, replace=False).tolist()
        store.push("clicks", frame(drawn_rows(rng, users, truth, fewest=0, end=0.3), push))
        if push % 7 == 6:
            maintenance.seal(store, "history")
        if push % 9 == 0:
            users = [*truth]
            assert [row or {} for row in read(store, users)] == [*truth.values()]
    assert read_csr(SketchReader(tmp_path, "history"), [*truth]) == [*truth.values()]
    maintenance.seal(store, "history")
    assert read_csr(SketchReader(tmp_path, "history"), [*truth]) == [*truth.values()]
    assert maintenance.verify(store, "history").problems == []


@pytest.mark.has_long_form
def test_a_hundred_pushes_keep_the_error(make_store, tmp_path):
    """The values are exact, and each count is at most the error away from the newest that was pushed."""
    store = make_store(tags={**COUNTED, "sketch.target": "error 20%"})
    rng, truth = np.random.default_rng(6), {}
    for push in range(by_length(10, 100)):
        users = rng.choice(40, 20, replace=False).tolist()
        store.push("clicks", frame(drawn_rows(rng, users, truth, fewest=1, end=0.02), push))
        if push % 4 == 3:
            maintenance.seal(store, "history")
        reader = SketchReader(tmp_path, "history")
        for found in read(store, [*truth]), read_csr(reader, [*truth]):
            for row, wanted in zip(found, truth.values(), strict=True):
                assert row.keys() == wanted.keys()
                assert all(abs(row[value] - count) <= 0.2 * count for value, count in wanted.items())
    maintenance.seal(store, "history")
    (feature,) = maintenance.inspect(store, "history").features
    assert 0 < feature.max_error <= 0.2 * max(max(row.values()) for row in truth.values())


def test_materialized_counts_are_those_of_the_source(store, tmp_path):
    frame([(n, ["a", f"v{n}"], [n + 1, 2]) for n in range(50)]).to_parquet(tmp_path / "rows.parquet")
    materialize(store, NOON)
    assert read(store, range(50)) == [{"a": n + 1, f"v{n}": 2} for n in range(50)]
    assert open_view(store, "history").stats().unsealed_rows in (0, 50)


def test_values_without_counts_are_counted_by_their_places(make_store, tmp_path):
    store = make_store(counts=False)
    store.push("clicks", frame([(1, ["a", "b", "a"], ...)]))
    for _ in range(2):
        assert read_csr(SketchReader(tmp_path, "history"), [1]) == [{"a": 2, "b": 1}]
        maintenance.seal(store, "history")
    assert sorted(read_users(store, ["history:viewed"], [1])["viewed"][0]) == ["a", "b"]


def test_counts_stand_beside_other_features(make_store, tmp_path):
    tags = {**COUNTED, "sketch.target": "error 20%"}
    bought = Field(name="bought", dtype=Array(String), tags={"sketch.structure": "sets"})
    fields = [Field(name="price", dtype=Float32), bought]
    store = make_store(tags=tags, dtype=Int64, fields=fields)
    rows = [(n, list(range(n % 7)), [10 * (v + 1) + n % 5 for v in range(n % 7)]) for n in range(60)]
    more = {"price": [n / 4 for n in range(60)], "bought": [["x", "y"][: n % 3] for n in range(60)]}
    store.push("clicks", frame(rows, **more))
    maintenance.seal(store, "history")
    names = ["history:viewed", "history:views", "history:price", "history:bought"]
    answer = read_users(store, names, range(60))
    for n, values, counts in rows:
        assert sorted(answer["viewed"][n] or []) == values
        found = dict(zip(answer["viewed"][n] or [], answer["views"][n] or [], strict=True))
        assert all(abs(found[v] - c) <= 0.2 * c for v, c in zip(values, counts, strict=True))
        assert answer["price"][n] == n / 4
        assert sorted(answer["bought"][n] or []) == more["bought"][n]
    assert maintenance.verify(store, "history").problems == []
    report = {f.name: f for f in maintenance.inspect(store, "history").features}["viewed"]
    assert 0 < report.mean_error <= report.max_error <= 0.2 * 74


def test_training_rows_have_counts_as_reads_show_them(make_store, tmp_path):
    store = make_store(tags={**COUNTED, "sketch.target": "error 30%"})
    rows = [(n, ["a", "b"], [n + 1, 2 * n + 7]) for n in range(40)]
    store.push("clicks", frame(rows))
    maintenance.seal(store, "history")
    reader = SketchReader(tmp_path, "history")
    training = frame(rows)[["viewed", "views"]]
    shown = through_sketch(training, reader)
    for row, online in zip(shown.itertuples(), read(store, range(40)), strict=True):
        assert list(zip(row.viewed, row.views, strict=True)) == list(online.items())
    other = through_sketch(pd.DataFrame({"viewed": [["a", "zz"]], "views": [[1_000_000, 4]]}), reader)
    assert (other["viewed"][0].tolist(), other["views"][0].tolist()) == (["a"], [1_000_000])


def test_an_array_becomes_counts_and_an_array_again(make_store, tmp_path):
    """The row log keeps the values as of any Array, so the codec may change with the rows that there are."""
    store = make_store(tags={"sketch.structure": "sets"}, counts=False)
    store.push("clicks", frame([(1, ["a", "b", "a"], ...), (2, ["c"], ...)]))
    maintenance.seal(store, "history")
    store.apply([count_view()])
    store.push("clicks", frame([(2, ["c", "d"], [7, 1])], 1))
    assert read(store, [2]) == [{"c": 7, "d": 1}]
    maintenance.seal(store, "history")
    assert read(store, [1, 2]) == [{"a": 2, "b": 1}, {"c": 7, "d": 1}]
    assert maintenance.verify(store, "history").problems == []
    store.apply([count_view(tags={"sketch.structure": "sets"}, counts=False)])
    maintenance.seal(store, "history")
    assert sorted(read_users(store, ["history:viewed"], [2])["viewed"][0]) == ["c", "d"]
    assert maintenance.verify(store, "history").problems == []


def test_texts_that_were_kept_exactly_are_counted_before_the_next_seal(make_store):
    """The kernel read their bytes, of which a count has none."""
    store = make_store(tags={"sketch.codec": "exact"}, counts=False)
    store.push("clicks", frame([(1, ["a", "b"], ...), (2, ["c"], ...)]))
    maintenance.seal(store, "history")
    store.apply([count_view()])
    assert read(store, [1, 2]) == [{"a": 1, "b": 1}, {"c": 1}]
    assert read_users(store, ["history:views"], [1])["views"] == [[1, 1]]


def test_counts_in_deltas(store, tmp_path):
    """Rows that are sealed over others, as in buckets."""
    store.push("clicks", frame([(n, ["a", "b"], [n + 1, 2]) for n in range(100)]))
    view = open_view(store, "history")
    assert view.seal()
    store.push("clicks", frame([(n, ["b", "x"], [9, n]) for n in (3, 5)], 1))
    assert view.seal(as_delta=True)
    assert [len(delta) for delta in view.shards[0].state.deltas] == [2]
    truth = [{"b": 9, "x": 3}, {"a": 5, "b": 2}, {"b": 9, "x": 5}]
    assert read(store, [3, 4, 5]) == truth
    assert read_csr(SketchReader(tmp_path, "history"), [3, 4, 5]) == truth
    assert maintenance.verify(store, "history").problems == []


def test_counts_in_shards(make_store, tmp_path):
    """Shards number values alike, so the vocabulary is given to each."""
    store = make_store(view_tags={"sketch.shards": "4"}, tags={**COUNTED, "sketch.target": "error 10%"})
    rows = [(n, ["a", f"v{n % 9}"], [n + 1, 2]) for n in range(80)]
    store.push("clicks", frame(rows))
    maintenance.seal(store, "history")
    online = read(store, range(80))
    for (n, values, counts), found in zip(rows, online, strict=True):
        written = dict(zip(values, counts, strict=True))
        assert found.keys() == written.keys()
        assert all(abs(found[v] - c) <= 0.1 * c for v, c in written.items()), n
    reader = SketchReader(tmp_path, "history")
    assert read_csr(reader, range(80)) == online
    weights = np.ones(len(reader.vocabulary("viewed")))
    totals = reader.scores("viewed", np.arange(80), weights, counts=True)
    assert totals.tolist() == [sum(row.values()) for row in online]


def test_a_view_of_counts_can_be_planned(make_store):
    store = make_store(fields=[Field(name="bought", dtype=Set(String))])
    rows = [(n, ["a"], [n + 1]) for n in range(60)]
    store.push("clicks", frame(rows, bought=[[f"v{n % 7}", f"v{n % 5}"] for n in range(60)]))
    maintenance.seal(store, "history")
    assert plan_view(store, "history").points


@pytest.mark.parametrize(
    ("values", "counts", "words"),
    [
        (["a", "b"], [1], "2 values in feature 'viewed' and 1 counts in feature 'views'"),
        (["a"], [-1], "the count -1"),
        (["a"], [2**53 + 1], "the count 9007199254740993"),
        (["a", "a"], [2**53, 2**53], "more than 9007199254740992 times"),
        (None, [1], "0 values in feature 'viewed' and 1 counts"),
    ],
)
def test_rows_whose_counts_cannot_be_kept_are_refused(store, values, counts, words):
    with pytest.raises(RowError, match=words):
        store.push("clicks", frame([(1, ["c"], [1]), (2, values, counts)]))
    assert read(store, [1]) == [None]


def counts_of_viewed(dtype):
    return Field(name="more", dtype=Array(dtype), tags={"sketch.of": "viewed"})


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"tags": {}}, "no feature of that name with the codec 'counts'"),
        ({"counts_tags": {"sketch.of": "seen"}}, "no feature of that name"),
        ({"fields": [counts_of_viewed(Int64)]}, "2 features with the counts of 'viewed'"),
        ({"fields": [counts_of_viewed(String)]}, "an Array of Int64 for counts"),
        ({"fields": [counts_of_viewed(Int32)]}, "an Array of Int64 for counts"),  # sums may be too large
        ({"fields": [Field(name="n", dtype=Int64, tags=COUNTED)]}, "does not take"),
    ],
)
def test_tags_that_cannot_work_are_refused(make_store, parts, words):
    with pytest.raises(SettingsError, match=words):
        make_store(**parts)


def test_counts_of_a_feature_without_them_are_refused(make_store, tmp_path):
    store = make_store(fields=[Field(name="bought", dtype=Array(String))])
    store.push("clicks", frame([(1, ["a"], [1])], bought=[["x"]]))
    reader = SketchReader(tmp_path, "history")
    with pytest.raises(UnsupportedFeatureError, match="'bought' of view 'history' has no counts"):
        reader.csr("bought", [1], counts=True)
    with pytest.raises(UnsupportedFeatureError, match="has no counts"):
        reader.scores("bought", [1], np.ones(1), counts=True)
