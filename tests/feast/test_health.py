"""``feast-sketch health``: what probes read, as exit status and one line of JSON."""

import json
import shutil
from datetime import UTC, datetime

import pandas as pd
import pytest
from feast.types import Set, String

from feast_sketch_store.view import live_shard
from tests.helpers.repository import make_repository, make_view, run_cli

EVENT = datetime(2026, 5, 1, tzinfo=UTC)


@pytest.fixture
def store(tmp_path):
    """A repository with a view of one row."""
    store = make_repository(
        tmp_path, make_view({"viewed": Set(String)}, pushed="clicks"), refresh={"max_staleness": "60s"}
    )
    store.push("clicks", pd.DataFrame({"user_id": [7], "viewed": [["a"]], "event": EVENT}))
    return store


def probe(store, *arguments, status=0):
    """What was printed, with this exit status."""
    (line,) = run_cli(store.repo_path, "health", *arguments, status=status).stdout.splitlines()
    return json.loads(line)


def test_a_view_that_can_be_served_is_ready(store):
    reported = probe(store)
    assert reported["status"] == "ready"
    view = reported["views"]["history"]
    assert (view["state"], view["is_ready"], view["num_commits"], view["problem"]) == ("SERVING", True, 1, "")
    assert 0 <= view["age_seconds"] < 60
    assert probe(store, "--live") == {"status": "live", "views": {}}


def test_a_repository_without_views_is_live_and_not_ready(store):
    store.apply([], objects_to_delete=[store.get_feature_view("history")], partial=False)
    reported = probe(store, status=1)
    assert reported["status"] == "not ready"
    assert "no feature views in this store; run `feast apply`" in reported["problem"]
    assert probe(store, "--live")["status"] == "live"


@pytest.mark.parametrize("file", ["sketch", "sketch/shop", "sketch/shop/history"])
def test_a_file_in_place_of_a_folder_is_not_ready(store, file):
    path = store.repo_path / file
    shutil.rmtree(path)
    path.write_bytes(b"")
    reported = probe(store, status=1)
    assert reported["status"] == "not ready"
    view = reported["views"]["history"]
    assert (view["state"], view["is_ready"]) == ("EMPTY", False)
    assert f"{path}: is a file, and the store needs a folder there" in view["problem"]


def test_a_view_that_cannot_be_read_is_not_ready(store):
    (segment,) = (store.repo_path / "sketch" / "shop" / "history" / "fresh").glob("*.log")
    content = bytearray(segment.read_bytes())
    content[300] ^= 255  # of the first record
    segment.write_bytes(content)
    reported = probe(store, "history", status=1)
    assert reported["status"] == "not ready"
    view = reported["views"]["history"]
    assert (view["state"], view["age_seconds"]) == ("EMPTY", None)
    assert "fresh/" in view["problem"]
    probe(store, "--live")  # a restart would mend nothing


def test_answers_that_are_too_old_are_not_ready(store, monkeypatch):
    look = live_shard.LiveShard._refresh_if_due

    def long_ago(view):
        look(view)
        view._answered_at -= 100

    monkeypatch.setattr(live_shard.LiveShard, "_refresh_if_due", long_ago)
    probe(store, status=1)
    probe(store, "--max-staleness", "1000")


def test_what_is_wrong_with_the_repository_is_told(store):
    reported = probe(store, "no_view", status=2)
    assert reported["status"] == "error"
    assert "no feature view 'no_view'" in reported["problem"]
    (store.repo_path / "feature_store.yaml").write_text(
        "project: shop\nprovider: local\nonline_store: {type: no}\n"
    )
    reported = probe(store, "--live", status=2)
    assert reported["status"] == "error"
    assert reported["problem"]
