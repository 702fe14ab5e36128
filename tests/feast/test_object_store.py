"""A store in a bucket, through Feast: its whole life, in several processes."""

import json
import logging
import pickle
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from unittest.mock import Mock

import obstore
import pandas as pd
import pytest
from feast.repo_contents import RepoContents
from feast.repo_operations import registry_dump
from feast.types import Set, String

from feast_sketch_store import SketchReader, open_view
from feast_sketch_store.errors import SettingsError, StorageError
from feast_sketch_store.online_store import SketchOnlineStoreConfig
from feast_sketch_store.operations import maintenance, reader_memory
from feast_sketch_store.storage.object_store import ObjectStorage
from tests.helpers.object_servers import SECRET_KEY
from tests.helpers.processes import run_command
from tests.helpers.proxy import proxy
from tests.helpers.repository import (
    ROWS,
    USER,
    another,
    make_repository,
    make_view,
    materialize,
    push,
    read_users,
    run_cli,
)

pytestmark = pytest.mark.slow

EVENT = datetime(2026, 5, 1, tzinfo=UTC)
NUM_USERS = 200
CREDENTIALS = {"access_key_id": "AWS_ACCESS_KEY_ID", "secret_access_key": "AWS_SECRET_ACCESS_KEY"}


@pytest.fixture
def url(moto, monkeypatch):
    """Of a new store, whose credentials are in the environment."""
    for name, variable in CREDENTIALS.items():
        monkeypatch.setenv(variable, moto.options[name])
    return f"{moto.bucket()}/a store"


def online_store_of(server, url):
    """Options without credentials."""
    options = {name: value for name, value in server.options.items() if name not in CREDENTIALS}
    more = {"refresh": "0", "compaction": {"min_rows": 100}, "target": "error 0.01"}
    return {"path": url, "storage_options": options, **more}


def write_repository(folder, server, url):
    rows = {
        "user_id": list(range(NUM_USERS)),
        "viewed": [[f"a{u}", f"a{u + 1}"] for u in range(NUM_USERS)],
        "country": "FR",
        "event": EVENT,
    }
    online_store = online_store_of(server, url)
    return make_repository(folder, rows=pd.DataFrame(rows), project="Shop", **online_store)


def history(folder):
    return make_view({"viewed": Set(String), "country": String}, folder / ROWS, pushed="clicks")


@pytest.fixture
def store(tmp_path, moto, url):
    store = write_repository(tmp_path, moto, url)
    store.apply([USER, history(tmp_path)])
    return materialize(store, EVENT)


@pytest.fixture
def replica(store, tmp_path, moto, url):
    """The same store as a replica with a cache, in a repository of its own."""
    options = online_store_of(moto, url) | {"read_only": True, "cache_path": "cache"}
    registry = str(tmp_path / "registry.db")
    return make_repository(tmp_path / "replica", project="Shop", registry=registry, **options)


def countries(store, *users):
    return read_users(store, ["history:country"], users)["country"]


def push_user(store, user, country, event=EVENT + timedelta(hours=1)):
    push(store, user_id=[user], viewed=[["a1"]], country=country, event=event)


def in_another_process(folder, statement):
    """What a new process makes of a repository."""
    script = (
        "import json, sys; from feast import FeatureStore; store = FeatureStore(repo_path=sys.argv[1]); "
        f"print(json.dumps({statement}))"
    )
    done = run_command([sys.executable, "-W", "ignore", "-c", script, folder])
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_store_in_a_bucket_lives(store, tmp_path, moto, url):
    assert isinstance(open_view(store, "history").storage, ObjectStorage)
    assert countries(store, 7, 8, NUM_USERS) == ["FR", "FR", None]
    push_user(store, 7, "DE")
    read = (
        "store.get_online_features(['history:country'], [{'user_id': u} for u in (7, 8, 200)])"
        ".to_dict()['country']"
    )
    assert in_another_process(tmp_path, read) == ["DE", "FR", None]
    run_cli(tmp_path, "seal", "history")
    push_user(store, 8, "IT")
    push_user(store, 9, "late", EVENT - timedelta(hours=1))
    assert in_another_process(tmp_path, read) == ["DE", "IT", None]
    assert countries(store, 9) == ["FR"]
    assert "200" in run_cli(tmp_path, "inspect", "history").stdout
    assert json.loads(run_cli(tmp_path, "verify", "history", "--json").stdout)[0]["problems"] == []
    found = SketchReader(tmp_path, "history").csr("viewed", {"user_id": [8, 9]})
    values = found.vocabulary.take(found.ids).to_pylist()
    assert values[: found.indptr[1]] == ["a1"]  # unsealed, so exactly
    assert {"a9", "a10"} <= set(values[found.indptr[1] :])


def test_a_replica_is_held_at_a_snapshot(store, replica, tmp_path):
    run_cli(tmp_path, "seal", "history")
    assert countries(replica, 7) == ["FR"]
    assert "pinned" in run_cli(tmp_path, "pin", "history").stdout
    push_user(store, 7, "DE")
    run_cli(tmp_path, "seal", "history")
    assert countries(replica, 7) == countries(store, 7) == ["FR"]
    assert "(pinned)" in run_cli(replica.repo_path, "inspect", "history").stdout
    assert "read" in run_cli(replica.repo_path, "unpin", "history", status=1).stderr
    run_cli(tmp_path, "unpin", "history")
    assert countries(replica, 7) == countries(store, 7) == ["DE"]


def test_a_deleted_row_leaves_no_trace(store, tmp_path, moto, url):
    push_user(store, 7, "a country of its own")
    assert [key for key, value in moto.all_bytes(url).items() if b"a country of its own" in value]
    run_cli(tmp_path, "delete", "history", "user_id=7")
    assert countries(store, 6, 7, 8) == ["FR", None, "FR"]
    run_cli(tmp_path, "seal", "history")
    run_cli(tmp_path, "vacuum", "history")
    assert not [key for key, value in moto.all_bytes(url).items() if b"a country of its own" in value]
    assert countries(store, 6, 7, 8) == ["FR", None, "FR"]
    push_user(store, 7, "again")
    assert countries(store, 6, 7, 8) == ["FR", "again", "FR"]
    assert json.loads(run_cli(tmp_path, "verify", "history", "--json").stdout)[0]["problems"] == []


def test_a_removed_view_and_a_project_are_gone(store, tmp_path, moto, url):
    view = history(tmp_path)
    keys = list(moto.all_bytes(url))
    assert [key for key in keys if "/history/" in key]
    store.apply([USER], objects_to_delete=[view], partial=False)
    assert not [key for key in moto.all_bytes(url) if "/history/" in key]
    store.apply([USER, view])
    assert countries(store, 7) == [None]
    push_user(store, 7, "new")
    assert countries(store, 7, 8) == ["new", None]
    store.teardown()
    assert list(moto.all_bytes(url)) == ["a store/conditions-probe"]


def test_a_rebuild_replaces_all_rows(store, tmp_path, url):
    push_user(store, 7, "DE")
    push_user(store, NUM_USERS + 7, "DE")
    run_cli(tmp_path, "rebuild", "history", "--yes")
    assert countries(store, 7, 8, NUM_USERS + 7) == ["FR", "FR", None]
    assert not [info.name for info in open_view(store, "history").storage.walk() if "rebuild-" in info.name]


def test_readers_find_a_store_by_its_url(store, moto, url):
    reader = SketchReader(url, "history", "Shop", storage_options=moto.options)
    assert SketchReader(url, "history", storage_options=moto.options).features == reader.features
    with pytest.raises(SettingsError, match=r"no feature view 'missing'; there are \['history'\]"):
        SketchReader(url, "missing", "Shop", storage_options=moto.options)


def test_credentials_are_hidden(moto, url, tmp_path):
    config = SketchOnlineStoreConfig(path=url, storage_options={**moto.options, "allow_http": True})
    for text in (repr(config), str(config), str(config.model_dump()), config.model_dump_json()):
        assert SECRET_KEY not in text
    assert config.storage_options["allow_http"].get_secret_value() == "true"
    store = write_repository(tmp_path, moto, url)
    store.apply([USER, history(tmp_path)])
    push_user(store, 1, "FR")
    report = run_cli(tmp_path, "inspect", "history").stdout
    pickled = pickle.dumps(store._get_provider().online_store)
    for text in (report, repr(open_view(store, "history").storage), repr(pickled)):
        assert SECRET_KEY not in text


def test_credentials_of_a_file_are_in_nothing_that_feast_shows(moto, url, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    write_repository(tmp_path, moto, url)
    store = another(tmp_path, storage_options=moto.options)
    view = history(tmp_path)
    plans = store.plan(RepoContents([], [], [view], [], [], [], [USER], [], []))
    store.apply([USER, view])
    push_user(store, 1, "FR")
    texts = [registry_dump(store.config, tmp_path), *map(repr, plans), caplog.text]
    # `repr` of Feast's own `RepoConfig` shows the file as it is, which docs/how_to/object_stores.md says.
    texts += [repr(store.config.online_store), repr(store._get_provider().online_store)]
    texts.append((tmp_path / "registry.db").read_bytes().decode("latin-1"))
    for text in texts:
        assert SECRET_KEY not in text


def test_without_the_extra_an_error_names_it(tmp_path, moto, url):
    write_repository(tmp_path, moto, url)
    script = (
        "import sys; sys.modules['obstore'] = None; import feast_sketch_store; "
        "from feast_sketch_store import SketchReader; from feast_sketch_store.errors import SettingsError\n"
        "try: SketchReader(sys.argv[1], 'history')\nexcept SettingsError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert "`pip install obstore`" in done.stdout


def test_reads_go_on_while_the_object_store_is_down(tmp_path, caplog, moto, url):
    with proxy(moto.port) as link:
        store = write_repository(tmp_path, replace(moto, options=link.options(moto.options)), url)
        store.apply([USER, history(tmp_path)])
        push_user(store, 1, "FR")
        assert countries(store, 1) == ["FR"]
    assert countries(store, 1, 2) == ["FR", None]
    assert countries(store, 1, 2) == ["FR", None]
    reported = [r.message for r in caplog.records if "serving what was read" in r.message]
    assert len(reported) == 1
    assert "cannot be reached" in reported[0]
    with pytest.raises(StorageError, match="cannot be reached"):
        push_user(store, 1, "DE")


def test_a_replica_reads_and_does_not_write(store, replica, tmp_path, moto, url):
    assert countries(replica, 7, NUM_USERS) == ["FR", None]
    before = moto.all_bytes(url)
    view = history(tmp_path)
    for change in (
        lambda: push_user(replica, 7, "DE"),
        lambda: replica.apply([USER, history(tmp_path)]),
        lambda: open_view(replica, "history").seal(),
        lambda: open_view(replica, "history").vacuum(),
        lambda: replica._get_provider().online_store.seal(replica.config, view),
        replica.teardown,
    ):
        with pytest.raises(StorageError, match="read_only: true"):
            change()
    assert moto.all_bytes(url) == before
    push_user(store, 7, "DE")
    run_cli(tmp_path, "seal", "history")
    push_user(store, 8, "IT")
    assert countries(replica, 6, 7, 8) == ["FR", "DE", "IT"]


@pytest.mark.usefixtures("readers_are_measured")
def test_the_memory_of_a_reader_is_that_of_one_that_maps_the_cache(replica, moto, url, monkeypatch, tmp_path):
    assert countries(replica, 7) == ["FR"]
    bucket = moto.obstore(url)
    obstore.delete(bucket, [key for key in moto.all_bytes(url) if key.endswith(".base.sketch")])
    (tmp_path / "json.py").write_text("raise ValueError")
    monkeypatch.chdir(tmp_path)  # its modules are not those of a reader
    assert maintenance.inspect(replica, "history").private_bytes is not None


@pytest.mark.parametrize(("fetches", "openings"), [(True, 3), (False, 17)])
def test_a_small_view_is_opened_less_often_where_that_takes_requests(monkeypatch, fetches, openings):
    opened = Mock(return_value=Mock(file=Mock(codecs=[])))
    monkeypatch.setattr(reader_memory, "ReadOnlyView", opened)
    monkeypatch.setattr(reader_memory, "private_bytes", lambda: 1 << 20)
    place = Mock(view=Mock(return_value=Mock(fetches=fetches)))
    assert reader_memory._measure(place, "shop", "history") == 0
    assert opened.call_count == openings


def test_processes_of_a_host_map_what_one_has_fetched(store, replica, tmp_path):
    assert countries(replica, 7) == ["FR"]
    cache = tmp_path / "replica" / "cache"
    before = {path.name: path.stat().st_ino for path in cache.iterdir() if not path.suffix}
    assert before
    read = "store.get_online_features(['history:country'], [{'user_id': 7}]).to_dict()['country']"
    assert in_another_process(tmp_path / "replica", read) == ["FR"]
    assert {path.name: path.stat().st_ino for path in cache.iterdir() if not path.suffix} == before
