"""``feast-sketch copy``: the views of one store in another one, a folder or a bucket."""

from datetime import UTC, datetime, timedelta

import pandas as pd
import pytest
import yaml
from click.testing import CliRunner
from feast import FeatureStore
from feast.data_source import PushMode
from feast.types import Float64, Set, String

from feast_sketch_store.cli import cli
from feast_sketch_store.errors import StorageError
from feast_sketch_store.operations import copying
from feast_sketch_store.storage.local import LocalStorage
from tests.helpers.repository import make_repository

EVENT = datetime(2026, 5, 1, tzinfo=UTC)
USERS = [{"user_id": user} for user in (0, 1, 7, 39, 40)]


@pytest.fixture(scope="module")
def moto(object_server):
    return object_server("moto")


@pytest.fixture
def repository(tmp_path, moto):
    """A repository of two views with sealed rows, unsealed ones, and a deletion."""
    options = {"storage_options": moto.options, "seal": "job", "error_rate": 1e-9}
    features = {"viewed": Set(String), "spent": Float64}
    store = make_repository(tmp_path, ["history", "other"], features, project="Shop", **options)
    for name in ("history", "other"):
        push(store, name, range(40))
    run(tmp_path, "seal", "history")
    push(store, "history", [7], hours=1)
    run(tmp_path, "delete", "history", "user_id=39")
    return tmp_path


def push(store, view, users, hours=0):
    rows = {
        "user_id": list(users),
        "viewed": [[f"a{user}", f"hour {hours}"] for user in users],
        "spent": [user / 3 for user in users],
        "event": EVENT + timedelta(hours=hours),
    }
    store.push(f"{view} clicks", pd.DataFrame(rows), to=PushMode.ONLINE)


def run(folder, *arguments, status=0, **more):
    done = CliRunner().invoke(cli, ["-c", str(folder), *arguments], catch_exceptions=False, **more)
    assert done.exit_code == status, (done.stdout, done.stderr)
    return done.stdout + done.stderr


def at(repository, path):
    """The same repository with its store elsewhere."""
    config = yaml.safe_load((repository / "feature_store.yaml").read_text())
    config["online_store"]["path"] = str(path)
    settings = repository / "elsewhere.yaml"
    settings.write_text(yaml.safe_dump(config))
    return FeatureStore(repo_path=str(repository), fs_yaml_file=settings)


def rows_at(repository, path, view="history"):
    features = [f"{view}:viewed", f"{view}:spent"]
    answer = at(repository, path).get_online_features(features, USERS).to_dict(include_event_timestamps=True)
    answer["viewed"] = [None if viewed is None else set(viewed) for viewed in answer["viewed"]]
    return answer


def test_a_store_goes_to_a_bucket_and_back(repository, moto):
    url = f"{moto.bucket()}/store"
    expected = rows_at(repository, "sketch")
    assert expected["viewed"][2:] == [{"a7", "hour 1"}, None, None]
    assert "(were there)" not in run(repository, "copy", "sketch", url)
    assert rows_at(repository, url) == expected
    assert "(were there)" in run(repository, "copy", "sketch", url), "a second run finds it done"
    run(repository, "copy", url, "back")
    for view in ("history", "other"):
        assert rows_at(repository, "back", view) == rows_at(repository, "sketch", view)
    push(at(repository, "back"), "history", [1], hours=2)
    assert rows_at(repository, "back")["viewed"][1] == {"a1", "hour 2"}, "it is written as any other"


def test_what_the_target_has_is_dropped_only_if_you_say_so(repository):
    run(repository, "copy", "sketch", "other", "--view", "history")
    push(at(repository, "other"), "history", [40], hours=3)
    push(at(repository, "sketch"), "history", [1], hours=2)
    told = run(repository, "copy", "sketch", "other", "--view", "history", status=1, input="n\n")
    assert "has 1 entities that the source lacks" in told
    assert rows_at(repository, "other")["viewed"][4] == {"a40", "hour 3"}
    run(repository, "copy", "sketch", "other", "--view", "history", "--yes")
    assert rows_at(repository, "other") == rows_at(repository, "sketch")


def test_a_copy_that_was_cut_is_done_by_the_next_one(repository, monkeypatch):
    create, written = LocalStorage.create, []

    def fail_late(storage, name):
        written.append(name)
        if len(written) > 8:
            raise StorageError("cut")
        return create(storage, name)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "create", fail_late)
        assert "cut" in run(repository, "copy", "sketch", "other", status=1)
    found = [rows_at(repository, "other", view) for view in ("history", "other")]
    whole = [rows_at(repository, "sketch", view) for view in ("history", "other")]
    for view, expected in zip(found, whole, strict=True):
        assert view in (expected, rows_at(repository, "nowhere"))
    assert found != whole
    run(repository, "copy", "sketch", "other")
    assert [rows_at(repository, "other", view) for view in ("history", "other")] == whole


def test_what_arrives_changed_is_told(repository, monkeypatch):
    contents = iter(
        [copying.Content(39, 1), copying.Content(0, 0), copying.Content(39, 1), copying.Content(39, 2)]
    )
    monkeypatch.setattr(copying, "content_of", lambda view: next(contents))
    assert "the target holds other rows than the source" in run(
        repository, "copy", "sketch", "other", "--view", "history", status=1
    )


def test_a_store_is_not_copied_onto_itself(repository):
    assert "are the same store" in run(repository, "copy", "sketch", str(repository / "sketch"), status=1)
