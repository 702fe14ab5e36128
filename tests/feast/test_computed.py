"""Scores: computed at seals, at reads of unsealed rows and for training rows, all alike."""

import json
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pytest
from feast import Field
from feast.data_source import PushMode
from feast.protos.feast.types.Value_pb2 import Value
from feast.types import Float64, Int64, Set, String

from feast_sketch_store import SketchReader, through_sketch
from feast_sketch_store.errors import RowError, SettingsError
from feast_sketch_store.operations import maintenance
from feast_sketch_store.operations.verification import verify_view
from feast_sketch_store.row_log import RowLog
from tests.helpers.repository import make_repository, make_view, materialize, read_users
from tests.helpers.values import numbers, strings

NUM_USERS, NUM_VALUES = 300, 60
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
VIEWED = Field(name="viewed", dtype=Set(Int64), tags={"sketch.vocabulary": "{top: 5}"})
LIKED = Field(name="liked", dtype=Set(String))
SCORE = Field(
    name="click_score",
    dtype=Float64,
    tags={"sketch.codec": "score", "sketch.score": "{of: [viewed,liked], weights: weights.json, bits: 6}"},
)


def weight(value):
    return (value % 7 - 3) / 10


def histories(seed=0, number=NUM_USERS):
    """Each user has a few of the values."""
    rng = np.random.default_rng(seed)
    return [sorted(rng.choice(NUM_VALUES, rng.integers(3, 9), replace=False).tolist()) for _ in range(number)]


def likes(viewed):
    return [f"v{value}" for value in viewed[:2]]


def exact_score(viewed):
    return sum(map(weight, viewed)) + len(viewed[:2]) * 0.5


def write_weights(folder, scale=1.0):
    content = {
        "viewed": [[v, scale * weight(v)] for v in range(NUM_VALUES)],
        "liked": [[f"v{v}", scale * 0.5] for v in range(NUM_VALUES)],
    }
    (folder / "weights.json").write_text(json.dumps(content))


def values(viewed):
    return {"viewed": numbers(*viewed), "liked": strings(*likes(viewed))}


@pytest.fixture
def harness(make_harness, make_view, tmp_path):
    write_weights(tmp_path)
    view = make_view([VIEWED, LIKED, SCORE])
    return make_harness(view=view, compaction={"min_rows": 10**6}, target="auto")


def write(harness, rows, first=0, hours=0):
    harness.write_users({user: values(viewed) for user, viewed in enumerate(rows, first)}, hours)


def scores(harness, users):
    shown = harness.shown(*users, features=["click_score"])
    return np.array([row["click_score"].double_val for row in shown])


def reader_of(harness):
    return SketchReader(harness.config.online_store.path, "history", "shop")


def report(harness):
    """What `inspect` says of the score."""
    return maintenance._feature_report(harness.opened.state.sealed, "click_score", 0.0)


def test_a_row_that_is_not_sealed_gets_the_score_of_its_twin(harness):
    rows = histories()
    write(harness, rows)
    assert harness.seal()
    write(harness, rows[:50], first=1000)
    write(harness, rows[1:2], first=0, hours=1)  # user 0 has other values now
    twins = harness.reopened()
    assert scores(twins, range(1001, 1050)).tolist() == scores(twins, range(1, 50)).tolist()
    assert scores(twins, [0]) == scores(twins, [1])


def test_a_score_is_within_half_a_step_of_the_sum(harness):
    rows = histories()
    write(harness, rows[:200])
    assert harness.seal()
    write(harness, rows[200:], first=200)
    exact = np.array([exact_score(viewed) for viewed in rows])
    error = np.abs(scores(harness, range(NUM_USERS)) - exact).max()
    stated = report(harness).max_error
    assert error <= stated * (1 + 1e-6)
    assert stated == pytest.approx(np.ptp(exact[:200]) / 63 / 2)
    assert len({*scores(harness, range(200))}) <= 64


def test_training_rows_get_what_reads_give(harness):
    rows = histories()
    write(harness, rows)
    assert harness.seal()
    reader = reader_of(harness)
    training = pd.DataFrame({"viewed": rows, "history__liked": [likes(viewed) for viewed in rows]})
    shown = through_sketch(training, reader)
    assert shown["click_score"].tolist() == scores(harness, range(NUM_USERS)).tolist()
    lacking = "no column 'liked' or history__liked, which 'click_score' is computed from"
    with pytest.raises(RowError, match=lacking):
        through_sketch(training[["viewed"]], reader, ["click_score"])
    assert "click_score" not in through_sketch(training[["viewed"]], reader)


def test_training_rows_with_scores_of_no_sealed_row_get_what_reads_give(harness):
    """In a filter, too, which has the scores of sealed rows only."""
    rows = histories()
    write(harness, rows[:5])
    assert harness.seal()
    assert report(harness).structure == "bloom"
    write(harness, rows[5:], first=5)
    reader = reader_of(harness)
    training = pd.DataFrame({"viewed": rows, "liked": [likes(viewed) for viewed in rows]})
    shown = through_sketch(training, reader)["click_score"]
    assert shown.tolist() == scores(harness, range(NUM_USERS)).tolist()


def test_reads_without_the_settings_compute_as_well(harness):
    rows = histories()
    write(harness, rows)
    assert harness.seal()
    write(harness, rows[5:6], first=7000)
    reader = reader_of(harness)
    one, other = reader.arrow("click_score", [7000, 5]).to_pylist()
    assert one == other is not None


def test_scores_stay_over_seals_and_new_weights_are_a_new_version(harness, tmp_path, caplog):
    rows = histories()
    write(harness, rows[:200])
    assert harness.seal()
    write(harness, rows[200:], first=200)
    assert harness.seal()
    assert report(harness).version == 1
    write_weights(tmp_path, scale=2.0)
    assert harness.seal()
    assert report(harness).version == 2
    assert "'click_score' of view 'history' has version 2 now" in caplog.text
    exact = 2 * np.array([exact_score(viewed) for viewed in rows])
    assert np.abs(scores(harness, range(NUM_USERS)) - exact).max() <= report(harness).max_error


def test_a_delta_has_the_scores_of_its_base(harness):
    rows = histories()
    write(harness, rows)
    assert harness.seal()
    write(harness, rows[:30], first=1000)
    opened = harness.opened
    before = scores(harness, range(1000, 1030)).tolist()
    assert opened.seal(as_delta=True)
    sealed = opened.state.sealed
    assert (len(sealed.bases), len(sealed.deltas)) == (1, 1)
    assert opened.stats().unsealed_rows == 0
    assert scores(harness, range(1000, 1030)).tolist() == before
    found = verify_view(opened.storage, opened.settings.codecs, 0)
    assert (found.problems, found.compared_entities) == ([], NUM_USERS + 30)


def test_an_entity_without_values_has_a_score_of_zero_and_a_stranger_has_none(harness):
    write(harness, histories())
    assert harness.seal()
    write(harness, [[]], first=500)
    assert scores(harness, [500]).tolist() == [0.0]
    assert harness.read(501, features=["click_score"]) == [(None, None)]


def test_nobody_writes_what_is_computed(harness):
    computed = "'click_score' has the codec 'score', so it is computed from other features, but row 0"
    with pytest.raises(RowError, match=computed):
        harness.write(1, {**values([1, 2]), "click_score": Value(double_val=3.0)})
    harness.write(1, {**values([1, 2]), "click_score": Value()})
    storage = harness.opened.storage
    assert "click_score" not in RowLog(storage).read().schema().names


def test_through_feast_with_a_source_that_has_a_column_of_nulls(tmp_path):
    write_weights(tmp_path)
    rows = histories()
    frame = pd.DataFrame({"user_id": range(NUM_USERS), "viewed": rows, "liked": [likes(v) for v in rows]})
    frame = frame.assign(click_score=np.nan, event=NOON)
    view = make_view([VIEWED, LIKED, SCORE], pushed="pushed")
    options = {"refresh": 0, "compaction": {"min_rows": 100}}
    store = materialize(make_repository(tmp_path, view, rows=frame, **options), NOON)
    features = ["history:click_score"]
    before = read_users(store, features, [4])
    assert before["click_score"][0] == pytest.approx(exact_score(rows[4]), abs=0.1)
    pushed = frame[frame["user_id"] == 4].assign(user_id=9000, event=NOON + timedelta(hours=1))
    store.push("pushed", pushed, to=PushMode.ONLINE)
    assert read_users(store, features, [9000])["click_score"] == before["click_score"]


OF_SEEN = {"sketch.score": "{of: [seen], weights: weights.json}"}


@pytest.mark.parametrize(
    ("dtype", "tags", "message"),
    [
        (String, {}, "has type String, which the codec 'score' does not take"),
        (Float64, OF_SEEN, r"computed from \['seen'\], which are not Sets"),
        (Float64, {"sketch.clusters": "8"}, "no effect: sketch.clusters"),
        (Float64, {"sketch.score": "{of: [viewed]}"}, "needs the tag sketch.score"),
    ],
)
def test_tags_that_do_not_fit_are_refused(make_harness, tmp_path, dtype, tags, message):
    write_weights(tmp_path)
    with pytest.raises(SettingsError, match=message):
        make_harness([VIEWED, LIKED, Field(name="s", dtype=dtype, tags={**SCORE.tags, **tags})])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read as a JSON object"),
        ("[]", "cannot be read as a JSON object"),
        ('{"seen": []}', r"has weights of \['seen'\]"),
        ('{"viewed": [["a", 1.0]]}', "each value once, of type int64"),
        ('{"viewed": [[1, "x"]]}', "a weight is not a number from -1e[+]200 to 1e[+]200"),
        ('{"viewed": [[1, NaN]]}', "a weight is not a number from"),
        ('{"viewed": [[1, 1], [2, 1e308], [3, -1e308]]}', "a weight is not a number from"),
        ('{"viewed": [[1, 1e-320], [2, 0]]}', "all of whose weights are 0, or less than 1e-200"),
        ('{"viewed": [[1, 1.0], [1, 2.0]]}', "a value is there twice"),
        ('{"viewed": [[1.5, 1.0]]}', "of type int64"),
        ('{"viewed": [[1, 0.0]]}', "all of whose weights are 0"),
    ],
)
def test_weights_that_do_not_fit_are_refused(make_harness, tmp_path, content, message):
    if content is not None:
        (tmp_path / "weights.json").write_text(content)
    with pytest.raises(SettingsError, match=message):
        make_harness([VIEWED, LIKED, SCORE])
