"""The example of the page on lists runs, on a reading history from real data."""

import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from feast import FeatureStore, FeatureView
from feast.types import String

from feast_sketch_store import Lists, open_view
from feast_sketch_store.operations import maintenance

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_example_runs(tmp_path, monkeypatch):
    declaration, example, field, with_attributes, as_of = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs/how_to/lists.md").read_text(), re.DOTALL
    )
    repository = tmp_path / "feature_repo"
    repository.mkdir()
    (repository / "feature_store.yaml").write_text(
        "project: news\nprovider: local\nregistry: registry.db\nentity_key_serialization_version: 3\n"
        "online_store: {type: sketch, path: sketch, refresh: 0}\n"
    )
    shutil.copy(ROOT / "feature_repo_example/data/kuairand_clicks.parquet", tmp_path)
    monkeypatch.chdir(tmp_path)
    declared = {}
    exec(declaration, declared)
    pd.DataFrame(columns=["user_id", "watched", "watched_at", "event_timestamp"]).to_parquet(
        repository / "views.parquet"
    )
    store = FeatureStore(str(repository))
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
