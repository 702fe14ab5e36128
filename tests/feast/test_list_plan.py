"""Plans of a view with lists: what they say is what a seal takes."""

import json
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from feast import FeatureStore, Field
from feast.types import Array, Int64, String, UnixTimestamp

from feast_sketch_store import Lists, open_view
from feast_sketch_store.errors import PlanError
from feast_sketch_store.planning.choice import PlanTarget
from feast_sketch_store.planning.planner import plan_view
from feast_sketch_store.planning.timed import IN_ORDER, LISTS, _order_bits
from feast_sketch_store.rows.codecs import LIST, VALUE, FeatureCodec
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.encoding import EncodedFeature
from feast_sketch_store.rows.listing import Listing
from feast_sketch_store.rows.vocabulary import Vocabulary
from tests.helpers.repository import ROWS, make_repository, make_view, run_cli

pytestmark = pytest.mark.slow

DAY = 86_400_000_000
NUM_USERS, MOST = 400, 120
NOW = datetime.now(UTC).replace(microsecond=0)


@pytest.fixture(scope="module")
def items():
    """Users, values and times: popular values more often, and several a day."""
    rng = np.random.default_rng(11)
    users = np.repeat(np.arange(NUM_USERS), rng.integers(1, MOST + 1, NUM_USERS))
    values = (900 * rng.random(len(users)) ** 3).astype(np.int64)
    days = rng.integers(1, 60, len(users))
    return users, values, int(NOW.timestamp()) - 86_400 * days - rng.integers(0, 7_200, len(users))


@pytest.fixture(scope="module")
def repository(tmp_path_factory, items):
    """A view whose lists are written, and the same with rows in its offline source only."""
    folder = tmp_path_factory.mktemp("lists")
    frame = pd.DataFrame({"user_id": items[0], "read": items[1], "read_at": items[2]})
    frame["read_at"] = pd.to_datetime(frame["read_at"], unit="s")
    frame["how"] = np.where(np.random.default_rng(2).random(len(frame)) < 0.1, "opened", "seen")
    rows = frame.groupby("user_id").agg(list).reset_index().assign(event=NOW)
    rows.head(0).to_parquet(folder / "none.parquet")
    tags = {"sketch.codec": "list", "sketch.list": "{resolution: 1h, limit: 80}", "team": "news"}

    schema = [
        Field(name="read", dtype=Array(Int64), tags=tags, description="articles"),
        Field(name="read_at", dtype=Array(UnixTimestamp), tags={"sketch.of": "read"}),
        Field(
            name="how", dtype=Array(String), tags={"sketch.of": "read", "sketch.vocabulary": "[seen, opened]"}
        ),
    ]
    paths = {"history": ROWS, "unwritten": ROWS, "nothing": "none.parquet"}
    views = [make_view(schema, path, name=name, ttl=timedelta(days=365)) for name, path in paths.items()]
    options = {"refresh": 0, "compaction": {"min_rows": 10**7}}
    store = make_repository(folder, *views, rows=rows, project="news", **options)
    Lists(store, "history", "read").add(*items, attributes={"how": frame["how"].to_numpy()})
    return folder


@pytest.fixture
def store(repository):
    return FeatureStore(repo_path=str(repository))


@pytest.fixture
def history(store, plan_once):
    """The plan of the view whose lists are written."""
    return plan_once(store, "history", PlanTarget())


def of(plan, label, curve=LISTS):
    (point,) = [p for p in plan.points if (p.curve, p.label) == (curve, label)]
    return point


def test_a_plan_says_what_a_seal_takes(store, history, items):
    plan = history
    point = plan.points[plan.chosen]
    assert point.label == "tick 1h, limit 80"
    assert plan.is_current
    assert point.settings["read"] == {"sketch.codec": "list", "sketch.list": "{resolution: 1h, limit: 80}"}
    distinct = len(np.unique(np.stack(items), axis=1).T)
    assert plan.facts.value == distinct
    view = open_view(store, "history")
    assert view.seal()
    assert point.memory_bytes == pytest.approx(view.stats().snapshot_bytes, rel=0.1)
    assert point.kept_share == pytest.approx(view.stats().sealed_facts / distinct, abs=0.01)


def test_finer_ticks_and_higher_limits_take_more(history):
    plan = history
    ticks = [of(plan, f"tick {tick}") for tick in ("1d", "1h", "1min", "1s")]
    assert np.all(np.diff([point.memory_bytes for point in ticks]) > 0)
    assert all(point.kept_share == 1 for point in ticks)
    small, declared, whole = (of(plan, f"tick 1h{text}") for text in (", limit 50", ", limit 80", ""))
    assert (
        small.memory_bytes < declared.memory_bytes == whole.memory_bytes
    )  # 160 items are all that there are
    assert small.kept_share < declared.kept_share == whole.kept_share == 1
    assert not [point for point in plan.points if "limit 200" in point.label]  # which cuts no list
    assert not of(plan, "tick 1d", IN_ORDER).settings


def test_lists_in_order_take_what_their_code_lengths_say():
    """Two rows of four items each, values all alike: two bits an id, and Huffman's codes of the gaps."""
    csr = Csr(
        np.array([0, 4, 8]),
        np.tile(np.arange(4, dtype=np.int32), 2),
        np.array([9, 9, 9, 8, 9, 8, 7, 7]) * DAY,
    )
    codec = FeatureCodec("read", "int64_list_val", LIST, listing=Listing(DAY))
    values = Vocabulary(pa.array(np.arange(4)))
    feature = EncodedFeature(codec, values, np.full(2, VALUE, np.uint8), csr)
    # Gaps are 0 0 0 1 and 0 1 1 0: five are 0 and three 1, a bit each.
    assert _order_bits(feature).tolist() == [4 * (2 + 1)] * 2


def test_a_sample_estimates_the_whole(store, history):
    whole, part = history, plan_view(store, "history", max_entities=NUM_USERS // 3)
    assert part.sampled_entities == NUM_USERS // 3
    ours, theirs = (of(plan, "tick 1h") for plan in (part, whole))
    assert theirs.memory_low == theirs.memory_high
    # The interval of 95 % is for the items; values that the sample lacks are estimated.
    assert part.facts.low < whole.facts.value < part.facts.high
    assert ours.memory_bytes == pytest.approx(theirs.memory_bytes, rel=0.15)


def test_memory_takes_the_most_items_and_the_finest_ticks(store, history):
    plan = history
    hour = of(plan, "tick 1h").memory_bytes
    chosen = plan_view(store, "history", PlanTarget(memory_bytes=hour))
    assert chosen.points[chosen.chosen].label == "tick 1h"
    least = min(point.memory_bytes for point in plan.points if point.settings)
    cut = plan_view(store, "history", PlanTarget(memory_bytes=least))
    assert cut.points[cut.chosen].label == "tick 1d, limit 50"
    assert not cut.is_current
    with pytest.raises(PlanError, match="nothing fits in 100 bytes: the smallest lists"):
        plan_view(store, "history", PlanTarget(memory_bytes=100))


def test_the_offline_source_tells_the_same(store, history):
    online, offline = history, plan_view(store, "unwritten")
    asked = plan_view(store, "history", offline=True)
    for plan in (offline, asked):
        assert plan.points == online.points
    with pytest.raises(PlanError, match="'nothing' has no rows to plan with"):
        plan_view(store, "nothing")


def test_lists_are_exact(store):
    with pytest.raises(PlanError, match="'history' has lists, which are exact"):
        plan_view(store, "history", PlanTarget(noise_ratio=0.1))


def test_the_command_prints_fields_to_paste(store, plan_once, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("feast_sketch_store.cli.planning.plan_view", plan_once)
    done = run_cli(store.repo_path, "plan", "--view", "history", "--all")
    assert done.stdout.startswith("history: keep what you have (")
    for text in ("tick 1min", "limit 50", "chosen", "in order"):
        assert text in done.output
    assert "tick 1h, limit 80" in (tmp_path / "history.plan.html").read_text()
    points = json.loads(run_cli(store.repo_path, "plan", "--view", "history", "--json").stdout)["points"]
    assert {point["curve"] for point in points} == {LISTS, IN_ORDER}
