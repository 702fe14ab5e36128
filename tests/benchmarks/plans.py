"""How long a plan takes, and how near its sizes come to what is sealed.

A million made-up users, KuaiRand and Online Retail are planned without labels, and with labels of a click or
a purchase. Then all rows are sealed with the settings of some points. The data sets are those of
`click_prediction/tasks.py`; those that are not there (CLICK_PREDICTION_DATA) are left out.
"""

import os
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).resolve().parent / "click_prediction"))

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from facts import FACTS_PER_ENTITY, draw_facts
from feast import FeatureStore
from measure import Goal, number, print_goals, print_set_up, print_table
from scale import _append
from scipy import sparse
from stores import temporary_folder
from tasks import Task, load
from through_feast import VIEW, Repository, Tags

from feast_sketch_store.planning.curves import BLOOM, SETS
from feast_sketch_store.planning.plan import Plan
from feast_sketch_store.planning.planner import plan_view

MOST_SECONDS = 60
VALUES = 10_000
ROWS_OF_LABELS = 200_000
STEPS = ("Sampling", "Sizing", "Fitting the exact model", "Fitting models")


class Case(NamedTuple):
    """Rows to plan, and labels of some of their people. A large one has the people 0, 1, ..."""

    name: str
    task: Task
    labels: pa.Table
    is_large: bool = False


class Measured(NamedTuple):
    """A plan, and what it took."""

    plan: Plan
    seconds: float
    processor_seconds: float
    of_steps: dict[str, float]


def run(*, quick: bool) -> None:
    times, sizes, goals = [], [], []
    for case in _cases(quick):
        with temporary_folder() as folder:
            online_store = {"type": "sketch", "path": "sketch", "refresh": "0"}
            with Repository(folder / "repository", case.task, online_store) as repository:
                if case.is_large:  # without Feast's conversion, which takes minutes
                    repository.apply()
                    _append(case.task, case.task.written, repository.folder)
                else:
                    repository.materialize()
                store = FeatureStore(repo_path=str(repository.folder))
                for labels in (None, case.labels):
                    name = f"{case.name}, {f'{len(labels):,} labels' if labels else 'no labels'}"
                    measured = _planned(store, labels, folder / "labels.parquet")
                    times.append([name, *_cells(measured)])
                    goals.append(Goal(f"{name}, seconds", measured.seconds, MOST_SECONDS))
                    if labels is None:
                        sizes += _sealed(case, repository, measured.plan)
    print_set_up("plans of all rows, default options", "numpy", "scikit-learn", "pyarrow")
    header = ["rows", "entities", "facts", "sampled", "points", "s", "s of a processor"]
    print_table([*header, *(f"{step}, s" for step in STEPS)], times)
    print_table(["setting", "planned kB", "sealed kB", "planned : sealed"], sizes)
    print_goals(goals)


def _cells(measured: Measured) -> list[str]:
    plan = measured.plan
    counts = [plan.num_entities, round(plan.facts.value), plan.sampled_entities]
    counts.append(sum(bool(point.settings) for point in plan.points))
    steps = [measured.of_steps.get(step, 0.0) for step in STEPS]
    return [
        *(f"{count:,}" for count in counts),
        *(f"{seconds:.1f}" for seconds in (measured.seconds, measured.processor_seconds, *steps)),
    ]


def _planned(store: FeatureStore, labels: pa.Table | None, path: Path) -> Measured:
    if labels is not None:
        pq.write_table(labels, path)
    began, of_steps, step = time.perf_counter(), dict.fromkeys(STEPS, 0.0), ["", time.perf_counter()]

    def on_progress(text: str, done: int, total: int) -> None:
        now = time.perf_counter()
        if step[0]:
            of_steps[step[0]] += now - step[1]
        step[:] = [next((name for name in STEPS if text.startswith(name)), ""), now]

    processor = time.process_time()
    plan = plan_view(store, VIEW, labels=None if labels is None else path, on_progress=on_progress)
    on_progress("", 0, 0)
    return Measured(plan, time.perf_counter() - began, time.process_time() - processor, of_steps)


def _sealed(case: Case, repository: Repository, plan: Plan) -> Iterator[list[str]]:
    """The planned and the sealed bytes of sets, and of a Bloom filter."""
    for curve in (SETS, BLOOM):
        point = [point for point in plan.points if point.curve == curve][-1]
        size = repository.seal(Tags(of_features=point.settings))["bytes"]
        yield [
            f"{case.name}: {curve}, {point.label}",
            number(point.memory_bytes / 1e3),
            number(size / 1e3),
            f"{point.memory_bytes / size:.3f}",
        ]


def _cases(quick: bool) -> Iterator[Case]:
    yield _made_up(20_000 if quick else 1_000_000)
    folder = Path(os.environ.get("CLICK_PREDICTION_DATA", "no folder"))
    for name, labels_of in (("kuairand", _impressions), ("retail", _baskets)):
        try:
            task = load(name, folder)
        except FileNotFoundError:
            print(f"{name}: not run, as its data set is not in CLICK_PREDICTION_DATA\n")
            continue
        yield Case(name, task, labels_of(task, folder))


def _made_up(num_users: int) -> Case:
    """Users with values by popularity; labels follow the values of a user and where an item was shown."""
    facts = draw_facts(num_users, VALUES)
    indptr = np.arange(num_users + 1) * FACTS_PER_ENTITY
    shape = num_users, VALUES
    viewed = sparse.csr_matrix((np.ones(facts.size, np.float32), facts.reshape(-1), indptr), shape)
    rng = np.random.default_rng(5)
    users, places = rng.integers(0, num_users, ROWS_OF_LABELS), rng.integers(0, 40, ROWS_OF_LABELS)
    scores = (viewed @ rng.normal(0, 0.3, VALUES))[users] + rng.normal(0, 1, 40)[places]
    outcomes = rng.random(ROWS_OF_LABELS) < 1 / (1 + np.exp(-scores))
    task = Task(
        name="made-up users",
        title="",
        join_key="user_id",
        element="Int64",
        moment=datetime(2026, 5, 1, tzinfo=UTC),
        people=np.arange(num_users),
        vocabularies={"viewed": np.arange(VALUES)},
        history={"viewed": viewed},
        context=sparse.csr_matrix((ROWS_OF_LABELS, 0)),
        person=users,
        labels=outcomes,
        is_train=np.zeros(ROWS_OF_LABELS, np.bool_),
    )
    labels = pa.table({"user_id": users, "label": outcomes.astype(np.int8), "place": places})
    return Case(f"{num_users:,} made-up users", task, labels, is_large=True)


def _impressions(task: Task, folder: Path) -> pa.Table:
    """Whether a video was clicked, with the context of the click model."""
    path = next(path for path in folder.rglob("impressions.parquet"))
    names = ["user_id", "video_id", "tab", "tag", "hourmin", "duration_ms", "freshness_days", "author_id"]
    shown = pd.read_parquet(path, columns=[*names, "is_click", "split"])
    shown["hourmin"] //= 100
    shown["duration_ms"] = pd.qcut(shown["duration_ms"], 20, duplicates="drop").cat.codes.astype(np.int64)
    shown["freshness_days"] = shown["freshness_days"].clip(0, 60).astype(np.int64)
    shown["tag"] = shown["tag"].astype(str)
    return pa.Table.from_pandas(shown.rename(columns={"is_click": "label"}), preserve_index=False)


def _baskets(task: Task, folder: Path) -> pa.Table:
    """Whether a customer bought a product."""
    products = task.vocabularies["products"]
    return pa.table(
        {
            "customer_id": task.people[task.person],
            "candidate": pa.array(products[task.candidates]),
            "label": task.labels.astype(np.int8),
            "split": pa.array(np.where(task.is_train, "train", "test")),
        }
    )
