"""The example of the page on sets that grow runs, on clicks of a video app."""

import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
from feast import FeatureStore

from feast_sketch_store import open_view
from feast_sketch_store.operations import maintenance

ROOT = Path(__file__).parents[2]


def test_the_example_runs(tmp_path, monkeypatch):
    declaration, example = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs/how_to/sets.md").read_text(), re.DOTALL
    )
    repository = tmp_path / "feature_repo"
    repository.mkdir()
    (repository / "feature_store.yaml").write_text(
        "project: videos\nprovider: local\nregistry: registry.db\nentity_key_serialization_version: 3\n"
        "online_store: {type: sketch, path: sketch, refresh: 0, structure: sets}\n"
    )
    shutil.copy(ROOT / "feature_repo_example/data/kuairand_clicks.parquet", tmp_path)
    monkeypatch.chdir(tmp_path)
    declared = {}
    exec(declaration, declared)
    columns = ["user_id", "liked", "event_timestamp"]
    pd.DataFrame(columns=columns).to_parquet(repository / "likes.parquet")
    FeatureStore(str(repository)).apply([declared["user"], declared["likes"]])
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
