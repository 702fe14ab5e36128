"""What ``feast-sketch`` tells a user who begins, or makes a mistake."""

import pandas as pd
import pytest
from click.testing import CliRunner
from feast.data_source import PushMode
from feast.types import Int64

from feast_sketch_store.cli import cli
from tests.helpers.repository import make_repository


def run(folder, *arguments, status=0):
    done = CliRunner().invoke(cli, ["-c", str(folder), *arguments], catch_exceptions=False)
    assert done.exit_code == status, done.output
    return done.stdout, done.stderr


@pytest.fixture
def repository(tmp_path):
    store = make_repository(tmp_path)
    rows = {"user_id": [1, 2], "viewed": [["a"], ["b"]], "event": pd.Timestamp("2026-05-01", tz="UTC")}
    store.push("history clicks", pd.DataFrame(rows), to=PushMode.ONLINE)
    return tmp_path


def test_the_list_of_commands_shows_whole_sentences():
    listed = CliRunner().invoke(cli, ["--help"], terminal_width=80).output
    assert set(cli.commands) <= set(listed.split())
    assert "..." not in listed.partition("Commands:")[2]


@pytest.mark.parametrize("command", ["inspect", "verify", "seal", "vacuum"])
def test_a_repository_without_views_is_told_to_apply(tmp_path, command):
    make_repository(tmp_path, ())
    _, told = run(tmp_path, command)
    assert "project 'shop' has no feature views in its online store; run `feast apply` first" in told


def test_a_wrong_join_key_deletes_nothing_and_is_named_with_the_right_ones(repository):
    _, told = run(repository, "delete", "history", "user=1", status=1)
    assert "user_id" in told
    assert "Nothing was deleted" in told


def test_an_interval_without_watch_is_refused(repository):
    _, told = run(repository, "seal", "--interval", "3", status=2)
    assert "give --watch" in told


def test_a_source_without_rows_is_not_copied_silently(repository):
    _, told = run(repository, "copy", "mistyped", "target", status=1)
    assert "mistyped" in told
    assert "history" in told
    assert not (repository / "target").exists()


def test_a_view_without_rows_beside_others_is_told(tmp_path):
    store = make_repository(tmp_path, ("history", "empty"))
    rows = {"user_id": [1], "viewed": [["a"]], "event": pd.Timestamp("2026-05-01", tz="UTC")}
    store.push("history clicks", pd.DataFrame(rows), to=PushMode.ONLINE)
    table, _ = run(tmp_path, "copy", "sketch", "target")
    assert {line.split()[0]: line.split(maxsplit=1)[1] for line in table.splitlines()[2:4]} == {
        "empty": "no rows, not copied",
        "history": "1",
    }


def test_a_plan_of_scalars_says_what_can_be_planned(tmp_path):
    make_repository(tmp_path, features={"age": Int64})
    _, told = run(tmp_path, "plan", "--view", "history", status=1)
    assert "`plan` needs a Set, an Array that is not kept exactly, or a list" in told
