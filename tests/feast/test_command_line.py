"""What ``feast-sketch`` tells a user who begins, or makes a mistake."""

import base64
import json
import re
import shlex
import shutil

import click
import pandas as pd
import pytest
import yaml
from click.testing import CliRunner
from feast.repo_config import FeastConfigError
from feast.types import Int64, Set, String

from feast_sketch_store import open_view
from feast_sketch_store.cli import cli
from feast_sketch_store.storage import bucket_check, buckets
from tests.helpers.cases import for_each
from tests.helpers.repository import (
    ROWS,
    USER,
    another,
    make_repository,
    make_view,
    push,
    read_users,
    run_cli,
)

HISTORY = make_view({"viewed": Set(String)}, pushed="clicks")
MAY = pd.Timestamp("2026-05-01", tz="UTC")


def run(folder, *arguments, status=0):
    done = run_cli(folder, *arguments, status=status)
    return done.stdout, done.stderr


@pytest.fixture
def repository(tmp_path):
    push(make_repository(tmp_path, HISTORY), user_id=[1, 2], viewed=[["a"], ["b"]], event=MAY)
    return tmp_path


def test_settings_are_printed_without_a_repository():
    printed = CliRunner().invoke(cli, ["settings"]).output
    for kind in ("options", "tags"):
        assert CliRunner().invoke(cli, ["settings", kind]).output.strip() in printed
    assert "| `compaction: {min_rows}` | count | 1,000 |" in printed
    assert "| `sketch.target` | view, feature |" in printed


def test_the_list_of_commands_shows_whole_sentences():
    listed = CliRunner().invoke(cli, ["--help"], terminal_width=80).output
    assert set(cli.commands) <= set(listed.split())
    assert "..." not in listed.partition("Commands:")[2]


def test_a_view_that_is_named_twice_is_told_once(repository):
    printed, _ = run(repository, "inspect", "history", "history", "--json")
    assert [report["view"] for report in json.loads(printed)] == ["history"]


def test_a_repository_is_found_as_feast_finds_it(repository, monkeypatch):
    wanted, _ = run(repository, "inspect", "--json")

    def inspect(status=0):
        done = CliRunner().invoke(cli, ["inspect", "--json"])
        assert done.exit_code == status, done.output
        return done.stdout if status == 0 else done.stderr

    with monkeypatch.context() as environment:
        environment.setenv("FEATURE_REPO_DIR_ENV_VAR", str(repository))
        assert inspect() == wanted
    path = repository / "feature_store.yaml"
    with monkeypatch.context() as environment:
        environment.setenv("FEAST_FS_YAML_FILE_PATH", str(path))
        environment.chdir(repository)
        assert inspect() == wanted
    options = yaml.safe_load(path.read_text())
    options["registry"] = str(repository / "registry.db")
    options["online_store"]["path"] = str(repository / "sketch")
    encoded = base64.b64encode(yaml.safe_dump(options).encode()).decode()
    monkeypatch.setenv("FEATURE_STORE_YAML_BASE64", encoded)
    assert inspect() == wanted
    monkeypatch.setenv("FEATURE_STORE_YAML_BASE64", encoded[:-5])
    assert "FEATURE_STORE_YAML_BASE64: not a file in base64" in inspect(status=1)


@pytest.mark.parametrize("command", ["inspect", "verify", "seal", "vacuum"])
def test_a_repository_without_views_is_told_to_apply(tmp_path, command):
    make_repository(tmp_path, USER)
    _, reported = run(tmp_path, command)
    assert "project 'shop' has no feature views in its online store; run `feast apply` first" in reported


def test_a_wrong_join_key_deletes_nothing_and_is_named_with_the_right_ones(repository):
    _, reported = run(repository, "delete", "history", "user=1", status=1)
    assert "user_id" in reported
    assert "Nothing was deleted" in reported


def test_options_of_the_watch_need_it(repository):
    for option in ("--interval", "--min-rows"):
        _, reported = run(repository, "seal", option, "3", status=2)
        assert "need --watch" in reported


@for_each("seconds", ["nan", "inf", "1e300", "-1"])
@for_each(
    "command",
    [
        ["vacuum", "--orphan-age"],
        ["seal", "--watch", "--interval"],
        ["health", "--max-staleness"],
        ["serve", "--auth-cache-seconds"],
    ],
)
def test_seconds_are_a_number_in_a_range(repository, command, seconds):
    _, reported = run(repository, *command, seconds, status=2)
    assert f"Invalid value for '{command[-1]}'" in reported
    assert "is not" in reported


def test_a_plan_of_scalars_says_what_can_be_planned(tmp_path):
    make_repository(tmp_path, make_view({"age": Int64}, pushed="clicks"))
    _, reported = run(tmp_path, "plan", "--view", "history", status=1)
    assert "`plan` needs a Set, an Array that is not kept exactly, or a list" in reported


def test_a_pin_hides_no_rows_without_asking(repository):
    def seen():
        return read_users(another(repository), ["history:viewed"], [3])["viewed"]

    run(repository, "seal")
    push(another(repository), user_id=[3], viewed=[["c"]], event=MAY + pd.Timedelta(days=1))
    _, reported = run(repository, "pin", "history", status=1)
    assert "1 row came after" in reported
    assert seen() == [{"c"}]
    run(repository, "pin", "history", "--seal")
    assert seen() == [{"c"}]
    run(repository, "unpin", "history")
    push(another(repository), user_id=[3], viewed=[["d"]], event=MAY + pd.Timedelta(days=2))
    assert seen() == [{"d"}]
    pinned, _ = run(repository, "pin", "history", "--yes")
    assert seen() == [{"c"}]
    run(repository, "unpin", "history")
    version = pinned.split()[-1]
    _, reported = run(repository, "pin", "history", version)  # names what is wanted, so nobody is asked
    assert "1 row came after" in reported
    assert seen() == [{"c"}]


@pytest.mark.parametrize("name", ["history", "Online Retail"])
def test_commands_in_errors_run_as_they_are_copied(tmp_path, name):
    view = make_view({"viewed": Set(String)}, name=name, pushed="clicks")
    store = make_repository(tmp_path, view, gate={"entities": 2}, compaction="job")
    push(store, user_id=[1], viewed=[["a"]], event=MAY)

    def advised(*refused):
        _, said = run(tmp_path, *refused, status=1)
        *_, command = re.findall("`feast-sketch (.*?)`", said.replace("\n", " "))
        run(tmp_path, *shlex.split(command))

    advised("seal", name)
    other = str(tmp_path / "feature_store.yaml")
    for refused in (["reshard", name, "--shards", "2"], ["export", name, "--to", other]):
        run(tmp_path, "pin", name)
        advised(*refused)


def test_serve_takes_all_options_of_feast_serve_with_their_defaults():
    from feast.cli.serve import serve_command

    def defaults(command):
        context = click.Context(command)
        return {
            name: option.get_default(context)
            for option in command.params
            for name in (*option.opts, *option.secondary_opts)
        }

    theirs, ours = defaults(serve_command), defaults(cli.commands["serve"])
    assert theirs.keys() <= ours.keys()
    given = {name: default for name, default in theirs.items() if default != ""}
    assert {name: ours[name] for name in given} == given


# -- every command under every failure ------------------------------------------------------------


def no_repository(folder):
    (folder / "feature_store.yaml").unlink()


def no_yaml(folder):
    (folder / "feature_store.yaml").write_text("a: [")


def another_store(folder):
    another(folder, type="sqlite", path="online.db")


def wrong_option(folder):
    with pytest.raises(FeastConfigError):
        another(folder, eror_rate=1)


def no_such_bucket(folder):
    endpoint = {"endpoint": "http://127.0.0.1:1", "access_key_id": "a", "secret_access_key": "b"}
    another(folder, path="s3://bucket", storage_options=endpoint)


def yaml_of_another_kind(folder):
    (folder / "feature_store.yaml").write_text("from feast import FeatureStore")


def not_applied(folder):
    (folder / "registry.db").unlink()


def damaged_registry(folder):
    (folder / "registry.db").write_bytes(b"damaged")


def path_is_a_file(folder):
    shutil.rmtree(folder / "sketch")
    (folder / "sketch").write_text("")


def view_is_a_file(folder):
    shutil.rmtree(folder / "sketch" / "shop" / "history")
    (folder / "sketch" / "shop" / "history").write_text("")


def damaged_files(folder):
    run(folder, "seal")
    for path in (folder / "sketch").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[::-1])


def no_rows(folder):
    shutil.rmtree(folder / "sketch")


SURE = [no_repository, no_yaml, yaml_of_another_kind, wrong_option]  # no command can do anything
FAILURES = [
    *SURE,
    *(another_store, no_such_bucket, not_applied, damaged_registry),
    *(path_is_a_file, view_is_a_file, damaged_files, no_rows),
]
COMMANDS = {
    **{name: [] for name in ("inspect", "verify", "health", "seal", "vacuum")},
    **{name: ["history"] for name in ("pin", "unpin", "refill", "publish", "discard", "diff")},
    "rebuild": ["history", "--yes"],
    "reshard": ["history", "--shards", "2"],
    "delete": ["history", "user_id=1"],
    "history": ["history", "user_id=1"],
    "survey": ["--from", "{folder}/feature_store.yaml"],
    "import": ["history", "--from", "{folder}/feature_store.yaml"],
    "export": ["history", "--to", "{folder}/feature_store.yaml"],
    "plan": ["--view", "history"],
    "serve": ["--port", "0"],
    "check-bucket": ["s3://bucket/x", "-o", "endpoint=http://127.0.0.1:1", "-o", "skip_signature=true"],
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("failure", FAILURES)
def test_every_command_that_fails_says_why(repository, failure, monkeypatch):
    monkeypatch.setattr("feast_sketch_store.serve.run", lambda store, **options: None)
    monkeypatch.setattr(buckets, "_RETRIES", 0)
    monkeypatch.setattr(bucket_check, "NUM_PROCESSES", 1)
    failure(repository)
    assert {*COMMANDS, "settings"} == {*cli.commands}  # which opens nothing
    for command, arguments in COMMANDS.items():
        if command == "check-bucket" and failure is not no_such_bucket:
            continue  # it opens no repository
        arguments = [argument.format(folder=repository) for argument in arguments]
        done = CliRunner().invoke(cli, ["-c", str(repository), command, *arguments])
        case = f"{failure.__name__}, {command}: {done.output}"
        assert done.exception is None or isinstance(done.exception, SystemExit), (case, done.exception)
        assert "Traceback" not in done.output, case
        assert done.exit_code == 0 or done.output.strip(), case
        assert done.exit_code > 0 or failure not in SURE, case


def test_a_rebuild_names_the_view_and_the_source_that_cannot_be_read(repository):
    pd.DataFrame({"user_id": [1], "event": MAY}).to_parquet(repository / ROWS)  # without the feature
    _, reported = run(repository, "rebuild", "history", "--yes", status=1)
    assert f"feature view 'history': its batch source '{ROWS}' cannot be materialized: KeyError" in reported
    assert "viewed" in reported


@pytest.mark.parametrize("command", [["inspect"], ["verify"], ["plan", "--view", "history"]])
def test_a_view_that_was_never_filled_is_told_so_at_once(tmp_path, command):
    rows = pd.DataFrame({"user_id": [], "viewed": [], "event": pd.to_datetime([], utc=True)})
    make_repository(tmp_path, HISTORY, rows=rows)
    is_plan = command[0] == "plan"
    _, reported = run(tmp_path, *command, status=int(is_plan))
    reason = "nothing was materialized yet" + "; sampling its offline source" * is_plan
    assert reported.startswith(f"history: {reason}")


def test_a_view_that_is_not_sealed_or_vacuumed_is_told_why(tmp_path):
    store = make_repository(tmp_path, HISTORY)
    for command in (["seal"], ["publish", "history"]):
        assert "not sealed: it has no rows\n" in run(tmp_path, *command)[0]
    push(store, user_id=[1], viewed=[["a"]], event=MAY)
    with open_view(store, "history").unchanging():
        for command, outcome in ("seal", "sealed"), ("vacuum", "vacuumed"):
            printed, _ = run(tmp_path, "--lock-timeout", "0", command)
            assert f"not {outcome}: another process is sealing it for too long\n" in printed
    shutil.rmtree(tmp_path / "sketch")
    assert run(tmp_path, "--lock-timeout", "0", "vacuum")[0].split()[-1] == "0", "nobody holds it"


def test_other_views_do_not_wait_for_a_damaged_one(tmp_path):
    views = [make_view({"viewed": Set(String)}, name=name, pushed=name) for name in ("damaged", "sound")]
    store = make_repository(tmp_path, *views)
    for view in views:
        push(store, view.name, user_id=[1], viewed=[["a"]], event=MAY)
    (segment,) = (tmp_path / "sketch" / "shop" / "damaged" / "fresh").glob("*.log")
    segment.unlink()
    checks = json.loads(run(tmp_path, "verify", "--json", status=1)[0])
    assert [(check["view"], check["rows"], len(check["problems"])) for check in checks] == [
        ("damaged", 0, 1),
        ("sound", 1, 0),
    ]
    inspected, reported = run(tmp_path, "inspect", "--json", status=1)
    assert [report["view"] for report in json.loads(inspected)] == ["sound"]
    assert reported.count(f"{segment}: is missing") == 1
    for command, outcome, done in (("seal", "outcome", "sealed"), ("vacuum", "files_removed", 0)):
        printed, reported = run(tmp_path, command, "--json", status=1)
        assert [told[outcome] for told in json.loads(printed)] == ["failed", done]
        assert reported.count(f"{segment}: is missing") == 1


def test_a_filled_view_is_not_told_to_be_empty(repository):
    for command in ("inspect", "verify", "seal", "inspect"):
        assert "nothing was materialized" not in run(repository, command)[1]
