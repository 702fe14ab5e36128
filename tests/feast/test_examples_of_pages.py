"""The examples of the pages on lists, counts and sets that grow run, on real data; configurations load."""

import re
import shutil
import textwrap
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from feast import FeatureStore, FeatureView
from feast.types import String

from feast_sketch_store import Lists, open_view
from feast_sketch_store.online_store import SketchOnlineStoreConfig
from feast_sketch_store.operations import maintenance
from tests.helpers.repository import make_repository

ROOT = Path(__file__).parents[2]
CLICKS = ROOT / "feature_repo_example/data/kuairand_clicks.parquet"
AUTHOR_VIEWS = ROOT / "tests/statistics/data/kuairand_author_views.parquet"


@pytest.fixture
def begin(tmp_path, monkeypatch):
    """Makes what a page begins with: its blocks of code after the declarations, those, and the repository."""

    def make(page, data, source, columns, **options):
        declaration, *blocks = re.findall(
            r"```python\n(.*?)```", (ROOT / "docs/how_to" / page).read_text(), re.DOTALL
        )
        folder = tmp_path / "feature_repo"
        make_repository(folder, refresh=0, **options)
        shutil.copy(data, tmp_path)
        monkeypatch.chdir(tmp_path)
        pd.DataFrame(columns=["user_id", *columns, "event_timestamp"]).to_parquet(folder / source)
        declared = {}
        exec(declaration, declared)
        return blocks, declared, FeatureStore(str(folder))

    return make


@pytest.mark.slow
def test_lists(begin):
    columns = ["watched", "watched_at"]
    blocks, declared, store = begin("lists.md", CLICKS, "views.parquet", columns, project="news")
    example, field, with_attributes, as_of = blocks
    store.apply([declared["user"], declared["history"]])
    names = {}
    exec(example, names)

    clicks = names["clicks"].sort_values("time", kind="stable")
    minutes = clicks["time"].dt.floor("min")
    truth = clicks.assign(minute=minutes).drop_duplicates(["user_id", "video_id", "minute"], keep="last")
    first, second, third = names["users"].tolist()

    def newest(user, limit=50):
        return truth[truth["user_id"] == user]["video_id"].tolist()[::-1][:limit]

    recent = names["recent"].to_arrow().to_pylist()
    sealed = open_view(store, "user_history").stats().sealed_facts
    assert sealed  # the batch was large enough for a seal
    # Videos of one minute may come in any order.
    assert [len(row) for row in recent] == [5, 5, 5]
    for user, row in zip((first, second, third), recent, strict=True):
        assert set(row) <= set(newest(user, 10))
    removed = recent[0][0]
    left = [video for video in newest(first, 99) if video != removed]
    assert sorted(names["online"]["watched"][0]) == sorted(left[: len(names["online"]["watched"][0])])
    assert np.all(np.diff([moment.timestamp() for moment in names["online"]["watched_at"][0]]) <= 0)
    lists = names["watched"].get(names["users"])
    assert np.diff(lists.indptr).tolist() == [len(names["online"]["watched"][0]), 0, len(newest(third))]
    assert np.diff(names["matrix"].indptr)[1] == 0
    exec(as_of, names)
    seen, shown = names["seen"], names["seen"].to_arrow().to_pylist()
    assert 0 < len(names["training"]) <= len(clicks)
    for user, minute, videos, is_complete in zip(
        names["clicks"]["user_id"], minutes.loc[names["clicks"].index], shown, seen.complete, strict=True
    ):
        # The first user has lost a video, the second everything.
        before = truth[(truth["user_id"] == user) & (truth["minute"] < minute)]
        if is_complete and user not in (first, second):
            assert len(videos) == min(20, len(before))
            assert set(videos) <= set(before["video_id"])
    assert maintenance.verify(store, "user_history").problems == []

    history = declared["history"]
    declared["String"] = String
    exec(field, declared)
    fields = [*(each for each in history.schema if each.name.startswith("watched")), declared["action"]]
    view = FeatureView(
        name="user_actions",
        entities=[declared["user"]],
        schema=fields,
        source=history.batch_source,
        ttl=history.ttl,
    )
    store.apply([view])
    clicks = names["clicks"].tail(200)
    given = {
        "watched": Lists(store, "user_actions", "watched"),
        "users": clicks["user_id"].to_numpy(),
        "videos": clicks["video_id"].to_numpy(),
        "times": clicks["time"].to_numpy(),
        "actions": np.array(["click", "like"])[clicks["video_id"] % 2],
    }
    exec(with_attributes, given)
    recent = given["recent"]
    wanted = ["like" if video % 2 else "click" for video in recent.values.to_pylist()]
    assert recent.attribute("action").to_pylist() == wanted


@pytest.mark.slow
def test_counts(begin):
    columns = ["author", "views"]
    blocks, declared, store = begin("counts.md", AUTHOR_VIEWS, "rows.parquet", columns, project="videos")
    example, growing, growing_example, *_ = blocks
    store.apply([declared["user"], declared["author_views"]])
    names = {}
    exec(example, names)

    assert open_view(store, "author_views").stats().unsealed_rows == 0  # the push was large enough for a seal
    truth = names["views"].groupby("entity")
    own = truth.get_group(7)
    online = dict(zip(names["online"]["author"][0], names["online"]["views"][0], strict=True))
    assert online == dict(zip(own["value"], own["count"], strict=True))
    assert names["totals"].tolist() == [truth.get_group(user)["count"].sum() for user in (7, 8, 9)]
    assert names["distinct"].tolist() == [len(truth.get_group(user)) for user in (7, 8, 9)]
    assert names["matrix"].counts.sum() == names["totals"].sum()
    assert maintenance.verify(store, "author_views").problems == []

    exec(growing, declared)
    store.apply([declared["user"], declared["growing"]])
    exec(growing_example, names)
    events, user = names["events"], names["events"]["entity"].iloc[0]
    own = events[events["entity"] == user]
    counted = dict(zip(names["authors"][0].as_py(), names["counts"][0].as_py(), strict=True))
    assert counted == dict(zip(own["value"], own["count"], strict=True))


def test_sets(begin):
    (example,), declared, store = begin(
        "sets.md", CLICKS, "likes.parquet", ["liked"], project="videos", structure="sets"
    )
    store.apply([declared["user"], declared["likes"]])
    names = {}
    exec(example, names)

    clicks, first = names["clicks"], names["first"]
    users = clicks["user_id"].unique().tolist()
    truth = {user: set(rows["video_id"]) for user, rows in clicks.groupby("user_id")}
    assert set(names["videos"][0].as_py()) == truth[users[0]]
    assert set(names["online"]["liked"][0]) == truth[users[0]] - {first}
    truth[users[0]].discard(first)
    store = names["store"]
    for _ in range(2):
        shown = names["liked"].get(users).to_pylist()
        assert dict(zip(users, map(set, shown), strict=True)) == truth
        open_view(store, "user_likes").seal()
    assert np.diff(names["matrix"].indptr).tolist() == [len(truth[user]) for user in users]
    assert maintenance.verify(store, "user_likes").problems == []


class UniqueKeys(yaml.SafeLoader):
    """A loader of YAML that refuses a key which is given twice."""

    def construct_mapping(self, node, deep=False):
        keys = [key.value for key, _ in node.value]
        assert len(set(keys)) == len(keys), keys
        return super().construct_mapping(node, deep)


def test_configurations():
    blocks = [
        block
        for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
        for block in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)
    ]
    repository = yaml.safe_load((ROOT / "docs/kubernetes/configmap.yaml").read_text())
    texts = [*map(textwrap.dedent, blocks), *repository["data"].values()]
    stores = [yaml.load(text, UniqueKeys).get("online_store", {}) for text in texts]
    own = [store for store in stores if store.get("type") == "sketch"]
    assert len(own) > 10
    for store in own:
        SketchOnlineStoreConfig(**store)
