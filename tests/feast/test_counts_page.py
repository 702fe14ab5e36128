"""The example of the page on counts runs, on real counts."""

import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
from feast import FeatureStore

from feast_sketch_store import open_view
from feast_sketch_store.operations import maintenance

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_example_runs(tmp_path, monkeypatch):
    page = (ROOT / "docs/how_to/counts.md").read_text()
    declaration, example, *growing = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    repository = tmp_path / "feature_repo"
    repository.mkdir()
    (repository / "feature_store.yaml").write_text(
        "project: videos\nprovider: local\nregistry: registry.db\nentity_key_serialization_version: 3\n"
        "online_store: {type: sketch, path: sketch, refresh: 0}\n"
    )
    shutil.copy(ROOT / "tests/statistics/data/kuairand_author_views.parquet", tmp_path)
    monkeypatch.chdir(tmp_path)
    declared = {}
    exec(declaration, declared)
    columns = ["user_id", "author", "views", "event_timestamp"]
    pd.DataFrame(columns=columns).to_parquet(repository / "rows.parquet")
    store = FeatureStore(str(repository))
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

    exec(growing[0], declared)
    store.apply([declared["user"], declared["growing"]])
    exec(growing[1], names)
    events, user = names["events"], names["events"]["entity"].iloc[0]
    own = events[events["entity"] == user]
    counted = dict(zip(names["authors"][0].as_py(), names["counts"][0].as_py(), strict=True))
    assert counted == dict(zip(own["value"], own["count"], strict=True))
