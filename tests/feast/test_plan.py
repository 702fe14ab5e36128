"""Plans of the views of a real repository, in Python and through ``feast-sketch plan``."""

import json
from datetime import UTC, datetime, timedelta
from functools import partial

import numpy as np
import pandas as pd
import pytest
import yaml
from feast import FeatureStore, Field, FileSource
from feast.types import Array, Int64, Set, String, UnixTimestamp

from feast_sketch_store import SketchStoreError
from feast_sketch_store.errors import PlanError
from feast_sketch_store.operations import maintenance
from feast_sketch_store.planning import planner
from feast_sketch_store.planning.choice import PlanTarget
from feast_sketch_store.planning.curves import CHOSEN_SETS, POPULAR_SETS, SETS, WEIGHTED_BLOOM, Grid
from feast_sketch_store.planning.plan import Estimate, PlannedField
from feast_sketch_store.planning.planner import plan_view
from tests.helpers.length import IS_LONG
from tests.helpers.repository import ROWS, make_repository, make_view, materialize, run_cli

pytestmark = pytest.mark.slow

NUM_USERS = 400
PARTS = 8  # of a larger view, each with the rows of the users
EVENT = datetime(2026, 5, 1, tzinfo=UTC)
WEIGHTED = {"sketch.structure": "weighted_bloom", "sketch.target": "noise 0.1"}


@pytest.fixture(scope="module", autouse=True)
def _few_points():
    """Fewer points, which take less time, and in the short form fewer resamples."""
    few = Grid((0.1, 0.01), (1.0, 0.1), (0.1, 0.4, 0.8, 1.0), (0.01,), (0.5,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner, "Grid", lambda: few)
        patch.setattr(planner, "COARSE", few)
        if not IS_LONG:
            patch.setattr(planner, "WORTH_SHARES", (0.09, 0.28, 0.55))
            patch.setattr(planner, "CLUSTERED_NOISE_RATIOS", (1.0, 0.2))
        yield


@pytest.fixture(scope="module")
def rows():
    """Users, each with some of 60 articles and one shop; the first articles are the most popular."""
    rng = np.random.default_rng(3)
    has = rng.random((NUM_USERS, 60)) < 0.8 / np.arange(1, 61) ** 0.7
    return pd.DataFrame(
        {
            "user_id": np.arange(NUM_USERS),
            "viewed": [[int(v) for v in np.flatnonzero(row)] for row in has],
            "shops": [[f"shop {u % 7}"] for u in range(NUM_USERS)],
            "country": "FR",
            "event": EVENT,
        }
    )


OPTIONS = {"refresh": 0, "compaction": {"min_rows": 100_000}}


def written(folder, rows, tags, target="error 0.01"):
    """A repository with what users viewed, kept as tags say."""
    view = make_view([Field(name="viewed", dtype=Set(Int64), tags=tags)])
    frame = rows[["user_id", "viewed", "event"]]
    store = make_repository(folder, view, rows=frame.head(1), target=target, **OPTIONS)
    store.write_to_online_store("history", df=frame)
    return store


def several_times(rows):
    """The rows for several times as many users."""
    return pd.concat([rows.assign(user_id=rows.user_id + NUM_USERS * part) for part in range(PARTS)])


@pytest.fixture(scope="module")
def repository(tmp_path_factory, rows):
    """A folder with a view that has rows, and others of the same that have none yet or nothing to plan."""
    folder = tmp_path_factory.mktemp("repository")
    rows.head(0).to_parquet(folder / "none.parquet")
    source = FileSource(path=ROWS, timestamp_field="event", field_mapping={"articles": "viewed"})
    schema = [
        Field(name="viewed", dtype=Set(Int64)),
        Field(name="shops", dtype=Set(String)),
        Field(name="country", dtype=String),
    ]

    store = make_repository(
        folder,
        make_view(schema, source),
        make_view(schema, source, name="unwritten"),
        make_view(schema, source, name="few"),
        make_view({"clicked": Array(Int64)}, source, name="repeating"),
        make_view([Field(name="viewed", dtype=Set(Int64), tags=WEIGHTED)], source, name="full"),
        make_view(schema, "none.parquet", name="nothing"),
        make_view({"absent": Set(Int64)}, source, name="lacking", ttl=timedelta.max),
        rows=rows.rename(columns={"viewed": "articles"}),
        target="error 0.01",
        **OPTIONS,
    )
    materialize(store, EVENT, feature_views=["history"])
    return folder


@pytest.fixture
def store(repository):
    return FeatureStore(repo_path=str(repository))


@pytest.fixture
def history(store, plan_once):
    """The plan of the view that has rows, by its row log."""
    return plan_once(store, "history", PlanTarget())


@pytest.fixture(scope="module")
def labels(tmp_path_factory, rows):
    """1,200 labels, of which having article 30 decides most."""
    rng = np.random.default_rng(4)
    users = rng.integers(0, NUM_USERS, 1_200)
    has = np.array([30 in rows.viewed[user] for user in users])
    frame = pd.DataFrame(
        {
            "user_id": users,
            "label": (rng.random(1_200) < np.where(has, 0.9, 0.3)).astype(int),
            "place": rng.choice(["top", "side"], 1_200),
        }
    )
    path = tmp_path_factory.mktemp("labels") / "labels.parquet"
    frame.to_parquet(path)
    return path


@pytest.fixture
def run(repository, plan_once, tmp_path, monkeypatch):
    """Runs ``feast-sketch plan`` in a folder of its own; gives what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("feast_sketch_store.cli.planning.plan_view", plan_once)
    return partial(run_cli, repository, "plan")


def test_a_plan_of_the_row_log(history, rows):
    plan = history
    num_facts = sum(map(len, rows.viewed)) + NUM_USERS
    assert (plan.num_entities, plan.sampled_entities, plan.facts.value) == (NUM_USERS, NUM_USERS, num_facts)
    assert plan.vocabulary_sizes == {"viewed": Estimate.exactly(60), "shops": Estimate.exactly(7)}
    chosen = plan.points[plan.chosen]
    assert chosen.noise_ratio <= 0.1
    assert chosen.kept_share == 1
    assert chosen.settings.keys() == {"viewed", "shops"}
    text = " ".join(plan.limits)
    assert "log2(V / n) + 1.44" in text
    assert f"all {NUM_USERS} entities" in text
    # At the default error rate, 0.01.
    absent = 67 - num_facts / NUM_USERS
    assert f"a read shows {0.01 * absent:.3g} false values" in text


def test_the_offline_source_says_the_same(store, history):
    unwritten = plan_view(store, "unwritten")
    offline = plan_view(store, "history", offline=True)
    for plan in (unwritten, offline):
        assert plan.facts.value == history.facts.value
        assert [point.false_per_read for point in plan.points] == pytest.approx(
            [point.false_per_read for point in history.points]
        )


def test_an_offline_source_that_cannot_be_read_is_named(store):
    with pytest.raises(PlanError, match=r"view 'lacking': its batch source .* cannot be read: .*absent"):
        plan_view(store, "lacking", offline=True)


def test_a_sample_is_the_same_each_time_and_scaled(store, history):
    first, again, offline = (
        plan_view(store, "history", max_entities=200, offline=offline) for offline in (False, False, True)
    )
    assert first == again
    assert first.points == offline.points
    assert first.sampled_entities == 200
    everything = history
    assert first.facts == everything.facts
    assert first.facts.is_known
    for point in first.points:
        if point.settings:
            assert point.memory_low <= point.memory_bytes <= point.memory_high
            # Facts are known, and a table of one error rate depends on nothing else.
            assert "bloom" in point.curve or point.memory_low < point.memory_high
    sizes = [next(p.memory_bytes for p in plan.points if p.curve == SETS) for plan in (first, everything)]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.1)
    assert any("sample of 200 of 400 entities" in limit for limit in first.limits)


def test_repeated_values_are_one_fact_and_facts_are_counted(store, rows):
    """Half of the rows are sampled, and half of the values of an Array are repeated."""
    frame = rows.rename(columns={"viewed": "clicked"})[["user_id", "clicked", "event"]]
    frame = frame.assign(clicked=[row + row[: len(row) // 2] for row in frame.clicked])
    store.write_to_online_store("repeating", df=frame)
    num_facts = sum(map(len, rows.viewed))
    plan = plan_view(store, "repeating", max_entities=200)
    assert plan.facts.low < num_facts < plan.facts.high
    assert plan.facts.high - plan.facts.low < 0.05 * num_facts
    assert any("Rows repeat values" in limit for limit in plan.limits)
    assert plan_view(store, "repeating").facts == Estimate.exactly(num_facts)


@pytest.mark.parametrize(
    ("structure", "target"),
    [("sets", {}), ("bloom", {"sketch.target": "error 0.01"}), ("weighted_bloom", WEIGHTED)],
)
def test_plan_and_inspect_mean_the_same_by_bits_per_fact(tmp_path, rows, structure, target):
    """Half of the entities are sampled; what is sealed has the planned bits within 5 %."""
    tags = {"sketch.structure": structure, **target}
    store = written(tmp_path, several_times(rows), tags)
    plan = plan_view(store, "history", max_entities=PARTS // 2 * NUM_USERS)
    maintenance.seal(store, "history")
    report = maintenance.inspect(store, "history")
    assert report.facts == PARTS * sum(map(len, rows.viewed)) == plan.facts.value
    planned = next(p for p in plan.points if p.curve == structure and p.settings["viewed"] == tags)
    assert report.table_bits_per_fact == pytest.approx(planned.table_bits_per_fact, rel=0.05)
    assert report.bits_per_fact == pytest.approx(planned.bits_per_fact, rel=0.05)
    assert planned.table_bits_per_fact < planned.bits_per_fact
    # Rows that are not sealed yet count in the next plan.
    first = rows[["user_id", "viewed", "event"]].head(1)
    store.write_to_online_store("history", df=first.assign(user_id=10**6))
    again = plan_view(store, "history", max_entities=NUM_USERS)
    assert again.facts.value == report.facts + len(rows.viewed[0])


def test_values_that_every_row_has_are_never_false(store, rows):
    everything = [list(range(20))] * len(rows)
    store.write_to_online_store("full", rows.assign(viewed=everything)[["user_id", "viewed", "event"]])
    note = next(limit for limit in plan_view(store, "full").limits if "with the current settings" in limit)
    assert "a read shows 0 false values beside 20 true ones" in note


def test_deleted_entities_do_not_count(store, rows):
    store.write_to_online_store("few", df=rows.head(50))
    maintenance.delete(store, "few", [{"user_id": 7}])
    plan = plan_view(store, "few")
    assert plan.num_entities == 49
    assert plan.facts.value == sum(map(len, rows.viewed[:50])) - len(rows.viewed[7]) + 49


@pytest.mark.parametrize(
    ("target", "limit", "most"),
    [
        (PlanTarget(noise_ratio=0.3), "noise_ratio", 0.3),
        (PlanTarget(memory_bytes=6_000), "memory_bytes", 6_000),
    ],
)
def test_targets_are_met(store, plan_once, target, limit, most):
    plan = plan_once(store, "history", target)
    assert getattr(plan.points[plan.chosen], limit) <= most
    assert plan.target == str(target)


@pytest.mark.has_long_form
def test_labels_choose_values(store, plan_once, labels, repository):
    plan = plan_once(store, "history", PlanTarget(auc=True), labels)
    assert plan.auc_without.high < plan.auc_exact.value
    points = [point for point in plan.points if point.curve == CHOSEN_SETS]
    assert points
    for point in points:
        setting = yaml.safe_load(point.settings["viewed"]["sketch.vocabulary"])
        kept = json.loads((repository / setting["file"]).read_text())
        assert 30 in kept
        assert setting["file"] == f"plans/history.viewed.{len(kept)}.json"
    chosen = plan.points[plan.chosen]
    best = max(point.auc.value for point in plan.points if point.auc)
    assert chosen.auc.value >= best - 0.001
    smaller = [p for p in plan.points if p.settings and p.memory_bytes < chosen.memory_bytes]
    assert all(point.auc is None or point.auc.value < best - 0.001 for point in smaller)


def test_labels_that_the_features_say_nothing_of_choose_nothing(labels, run, tmp_path):
    frame = pd.read_parquet(labels)
    frame["label"] = np.random.default_rng(8).integers(0, 2, len(frame))
    labels = tmp_path / "labels.parquet"
    frame.to_parquet(labels)
    done = run("--view", "history", "--auc", str(labels), "--all")
    output = done.stdout
    assert "history: the labels do not decide" in output
    assert "Chosen:" not in output
    assert "Field(" not in output
    first_note = next(line for line in output.splitlines() if line.startswith("- "))
    assert "lies inside the interval. Try more labels" in first_note
    assert "'candidate'" in first_note
    assert "Fitting" not in done.stderr  # which is no terminal
    page = (tmp_path / "history.auc.plan.html").read_text()
    assert "<mark>chosen</mark>" not in page
    assert json.loads(run("--view", "history", "--auc", str(labels), "--json").stdout)["chosen"] is None


def test_candidates_of_labels_and_progress(store, rows, tmp_path):
    rng = np.random.default_rng(15)
    users, candidates = rng.integers(0, NUM_USERS, 1_200), rng.integers(0, 60, 1_200)
    has = np.array([5 in rows.viewed[user] for user in users])
    label = (rng.random(1_200) < np.where(has, 0.9, 0.1)).astype(int)
    frame = pd.DataFrame({"user_id": users, "candidate": candidates, "label": label})
    frame.to_parquet(tmp_path / "candidates.parquet")
    steps = []
    plan = plan_view(
        store, "history", labels=tmp_path / "candidates.parquet", on_progress=lambda *step: steps.append(step)
    )
    assert plan.auc_exact.value > plan.auc_without.value
    fitted = [step for step in steps if step[2]]
    total = sum(bool(point.settings) for point in plan.points)
    assert fitted == [("Fitting models", number, total) for number in range(total)]


def test_values_are_chosen_for_so_many_bytes(store, labels):
    plan = plan_view(store, "history", PlanTarget(memory_bytes=6_000, auc=True), labels)
    chosen = plan.points[plan.chosen]
    assert chosen.memory_bytes <= 6_000
    fitting = [p for p in plan.points if p.memory_bytes <= 6_000]
    assert chosen.auc.value == max(point.auc.value for point in fitting if point.auc)
    sizes = [point.memory_bytes for point in fitting if point.curve == CHOSEN_SETS]
    assert max(sizes) > 1_900


def test_labelled_entities_outside_of_the_sample_count(store, labels):
    plan = plan_view(store, "history", labels=labels, max_entities=100)
    assert plan.sampled_entities == 100
    assert plan.auc_without.high < plan.auc_exact.value
    assert not any("that the view lacks" in limit for limit in plan.limits)


NOISE_1 = PlanTarget(noise_ratio=1.0)


@pytest.mark.parametrize(
    ("of_store", "tags", "target", "is_current"),
    [
        ("auto", {}, PlanTarget(), True),
        ("error 0.01", {}, PlanTarget(), False),
        ("error 0.01", {"sketch.structure": "weighted_bloom", "sketch.target": "noise 1"}, NOISE_1, True),
        ("error 0.01", {"sketch.structure": "weighted_bloom", "sketch.target": "noise 2"}, NOISE_1, False),
        ("auto", {"sketch.structure": "weighted_bloom", "sketch.clusters": "2"}, PlanTarget(), False),
    ],
)
def test_a_choice_that_the_view_has_already_is_told(tmp_path, rows, of_store, tags, target, is_current):
    store = written(tmp_path, rows, {"owner": "ads", **tags}, of_store)
    plan = plan_view(store, "history", target)
    assert plan.is_current == is_current
    assert plan.fields == {"viewed": PlannedField("Set(Int64)", "", {"owner": "ads"})}


def test_values_that_are_cut_to_a_memory_are_planned_without_noise(tmp_path, rows):
    """A seal cuts them to sets that fit, and uses a filter only by name."""
    store = written(tmp_path, rows, {}, "1500B")
    assert any("a read shows 0 false values" in note for note in plan_view(store, "history").limits)


@pytest.mark.parametrize(
    ("of_store", "tags"),
    [
        ("error 0.1", {}),
        ("error 0.03", {}),
        ("auto", {"sketch.structure": "weighted_bloom", "sketch.target": "noise 1"}),
        ("auto", {"sketch.target": "noise 4"}),
    ],
)
def test_a_plan_says_how_many_bytes_a_seal_then_saves(tmp_path, rows, of_store, tags):
    """Many rows with many values, so that what the rows share beside the features counts."""
    store = written(tmp_path, several_times(rows), tags, of_store)
    plan = plan_view(store, "history", PlanTarget())
    before = _sealed_bytes(store)
    tags = plan.points[plan.chosen].settings["viewed"]
    store.apply([make_view([Field(name="viewed", dtype=Set(Int64), tags=tags)])])
    assert plan.saved_bytes == pytest.approx(before - _sealed_bytes(store), abs=0.05 * before)


def _sealed_bytes(store):
    maintenance.seal(store, "history")
    report = maintenance.inspect(store, "history")
    return report.bits_per_fact * report.facts / 8


def test_a_curve_has_one_error_rate(history):
    for point in history.points:
        if "error rate" in point.curve:
            rate = point.curve.rpartition(" ")[2]
            assert {tags["sketch.target"] for tags in point.settings.values()} == {f"error {rate}"}
            assert "error rate" not in point.label


class TestRefused:
    """What cannot be planned, and what it says."""

    def test_a_view_without_rows(self, store):
        with pytest.raises(PlanError, match="'nothing' has no rows to plan with"):
            plan_view(store, "nothing")

    @pytest.mark.parametrize("what", ["membership features", "lists"])
    def test_a_sample_without_values_is_not_a_view_without(self, tmp_path, what):
        """Of 50 users the last one has values; the sample is of another one, or of all."""
        tags = {"sketch.codec": "list"} if what == "lists" else {}
        schema = [Field(name="viewed", dtype=Array(Int64), tags=tags)]
        if what == "lists":
            schema.append(Field(name="viewed_at", dtype=Array(UnixTimestamp), tags={"sketch.of": "viewed"}))
        values = [[] for _ in range(49)] + [[1, 2]]
        times = [[EVENT] * len(each) for each in values]
        frame = pd.DataFrame({"user_id": range(50), "viewed": values, "viewed_at": times, "event": EVENT})
        frame.to_parquet(tmp_path / "rows.parquet")
        frame.head(49).to_parquet(tmp_path / "empty.parquet")
        ttl = timedelta(days=36_500)
        views = [make_view(schema, f"{name}.parquet", name=name, ttl=ttl) for name in ("rows", "empty")]
        store = make_repository(tmp_path, *views)
        assert plan_view(store, "rows").facts == Estimate.exactly(2)
        for view, number, text in [
            ("rows", 1, "none of the 1 sampled entities, of 50, has a value; raise --sample"),
            ("empty", 50, "have no values in any row yet"),
        ]:
            with pytest.raises(PlanError, match=f"the {what} of view '{view}':? {text}"):
                plan_view(store, view, max_entities=number)

    def test_a_sample_of_nobody(self, store):
        with pytest.raises(PlanError, match="at least 1"):
            plan_view(store, "history", max_entities=0)

    @pytest.mark.parametrize(
        ("columns", "text"),
        [
            ({"label": [0, 1]}, "no column 'user_id': the join keys of view 'history' are user_id"),
            ({"user_id": ["x", "y"], "label": [0, 1]}, "join keys cannot be read"),
            ({"user_id": [1, None], "label": [0, 1]}, "has nulls"),
            (
                {
                    "user_id": [10**6, 10**6, 10**7, 10**7],
                    "label": [0, 1, 0, 1],
                    "split": ["train", "train", "test", "test"],
                },
                "no labelled row has an entity of view 'history'",
            ),
        ],
    )
    def test_labels(self, store, tmp_path, columns, text):
        path = tmp_path / "labels.parquet"
        pd.DataFrame(columns).to_parquet(path)
        with pytest.raises(PlanError, match=text) as refused:
            plan_view(store, "history", labels=path)
        assert str(path) in str(refused.value)

    def test_labels_that_are_no_parquet(self, store, tmp_path):
        (tmp_path / "labels.csv").write_text("user_id,label\n1,0\n")
        with pytest.raises(SketchStoreError, match="cannot be read"):
            plan_view(store, "history", labels=tmp_path / "labels.csv")


class TestCommandLine:
    """``feast-sketch plan``."""

    def test_the_table(self, run, tmp_path):
        short = run("--view", "history").stdout
        assert short.startswith("history: set the tags below (")
        assert POPULAR_SETS not in short
        assert "--all shows them" in short
        output = run("--view", "history", "--all").stdout
        assert output.startswith(short.partition("\n")[0])
        for text in (SETS, WEIGHTED_BLOOM, POPULAR_SETS, "chosen", "knee", "Redis", "as with `target: auto`"):
            assert text in output
        assert 'Field(name="viewed", dtype=Set(Int64), tags={"sketch.structure": ' in output
        assert "history" in (tmp_path / "history.plan.html").read_text()

    def test_json_and_the_place_of_the_report(self, run, tmp_path):
        command = ["--view", "history", "--json", "--memory", "6kB", "--html"]
        plan = json.loads(run(*command, "here.html").stdout)
        assert plan["points"][plan["chosen"]]["memory_bytes"] <= 6_000
        assert (tmp_path / "here.html").exists()
        refused = run(*command, "no/here.html", status=1)
        assert json.loads(refused.stdout)["chosen"] == plan["chosen"]
        assert "here.html: the page cannot be written" in refused.stderr

    def test_each_target_has_a_file_of_its_own(self, run, tmp_path):
        for arguments in ([], ["--memory", "6kB"], ["--noise-ratio", "0.3"]):
            run("--view", "history", *arguments)
        assert {path.name for path in tmp_path.glob("*.html")} == {
            "history.plan.html",
            "history.memory-6000.plan.html",
            "history.noise-ratio-0.3.plan.html",
        }

    def test_labels(self, run, labels):
        output = run("--view", "history", "--all", "--auc", str(labels)).stdout
        assert CHOSEN_SETS in output
        assert "AUC without the features" in output

    @pytest.mark.parametrize(
        ("arguments", "status", "text"),
        [
            (["--view", "orders"], 1, "no feature view 'orders'"),
            (["--view", "history", "--memory", "12 apples"], 2, "'12 apples' is not a size"),
            (["--view", "history", "--memory", "9e300TB"], 2, "'9e300TB' is not a size: it must be"),
            (["--view", "history", "--memory", "1B"], 1, "nothing fits in 1 byte:"),
            (["--view", "history", "--memory", "1MB", "--noise-ratio", "0.1"], 1, "set only one of"),
            (["--view", "history", "--html", "no/such/folder.html"], 1, "cannot be written"),
            ([], 2, "--view"),
        ],
    )
    def test_what_is_refused(self, run, arguments, status, text):
        assert text in run(*arguments, status=status).stderr
