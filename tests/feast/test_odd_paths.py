"""Repositories and stores in folders whose names mean something in URLs, patterns or shells."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from feast import FeatureStore
from feast.types import Int64, String

from feast_sketch_store import SketchReader
from feast_sketch_store.online_store import online_store_of
from feast_sketch_store.operations import maintenance
from tests.helpers.keys import user_key
from tests.helpers.length import by_length
from tests.helpers.repository import USER, make_config, make_repository, make_view, read_users
from tests.helpers.values import country

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
NAMES = [
    *("with space", " leading and trailing ", "a%20b", "50%", "%", "%2e%2e", "%zz", "back\\slash"),
    *("\\", "a#b", "a?b=c&d", "größe", "e\u0301", "日本語", "🛒", "new\nline", "tab\there"),
    *(
        "a\u2028b\u0085c",
        "*",
        "[a-z]",
        "{a,b}",
        "~",
        "$HOME",
        "'\"",
        "a:b",
        "-rf",
        "a@b",
        "_delta_log",
        "x" * 255,
    ),
]


def make_store(repo: Path, path: str) -> FeatureStore:
    """A Feast repository in a folder, with one view."""
    repo.mkdir(parents=True, exist_ok=True)
    config = make_config(repo, path=path, compaction={"min_rows": 10**9}, refresh=0)
    store = FeatureStore(config=config)
    store.apply([USER, make_view({"country": String, "user_id": Int64})])
    return store


def write(store: FeatureStore, **countries: str) -> None:
    rows = [(user_key(int(user[1:])), country(name), NOON, None) for user, name in countries.items()]
    view = store.get_feature_view("history")
    online_store_of(store).online_write_batch(store.config, view, rows, None)


def read(store: FeatureStore) -> list[str | None]:
    return read_users(store, ["history:country"], (1, 2, 3))["country"]


CASES = [("of the repository", name) for name in NAMES] + [
    (where, name)
    for where in ("of the store", "absolute")
    for name in ("a%20b", "back\\slash", "a#b?c", "new\nü")
]


@pytest.mark.slow
@pytest.mark.has_long_form
@pytest.mark.parametrize(
    ("where", "name"),
    CASES[:: by_length(5, 1)],
    ids=[ascii(where + " " + name)[:40] for where, name in CASES[:: by_length(5, 1)]],
)
def test_a_folder_of_any_name(tmp_path, where, name):
    """Several writes, a seal, a deletion, a compaction, a vacuum, and readers of each kind."""
    repo, path = {
        "of the repository": (tmp_path / name, "data/sketch"),
        "of the store": (tmp_path / "repo", f"data/{name}"),
        "absolute": (tmp_path / "repo", str(tmp_path / name / "sketch")),
    }[where]
    store = make_store(repo, path)
    write(store, u1="FR")
    write(store, u2="DE", u3="IT")
    other = make_store(repo, path)
    assert read(store) == read(other) == ["FR", "DE", "IT"]
    assert maintenance.seal(store, "history")
    write(store, u1="PT")
    assert maintenance.delete(store, "history", [{"user_id": 2}]).found == 1
    assert read(store) == read(other) == ["PT", None, "IT"]
    assert maintenance.seal(other, "history")
    write(other, u2="ES")
    assert maintenance.verify(store, "history").problems == []
    maintenance.vacuum(store, "history")
    assert read(store) == read(make_store(repo, path)) == ["PT", "ES", "IT"]
    reader = SketchReader(repo / path, "history", project="shop")
    assert reader.arrow("country", [1, 2, 3]).to_pylist() == ["PT", "ES", "IT"]
    folder = repo / path / "shop" / "history"
    assert folder.is_dir()
    store.teardown()
    assert not folder.exists()


def test_a_relative_repository_stays_where_it_was_opened(tmp_path, monkeypatch):
    """Two repositories of the same names, each opened from within its folder, as in a notebook."""
    stores = {}
    for name in ("FR", "DE"):
        view, registry = make_view({"country": String, "user_id": Int64}), str(tmp_path / f"{name}.db")
        make_repository(tmp_path / name, view, registry=registry, refresh=0)
        monkeypatch.chdir(tmp_path / name)
        stores[name] = FeatureStore(repo_path=".")
        write(stores[name], u1=name)
    for name, store in stores.items():
        assert read(store) == [name, None, None]
    monkeypatch.chdir(tmp_path)
    write(stores["FR"], u2="PT")
    assert read(stores["FR"]) == ["FR", "PT", None]
    assert read(FeatureStore(repo_path="FR")) == ["FR", "PT", None]
    stores["DE"].teardown()
    assert not (tmp_path / "DE" / "sketch" / "shop").exists()


@pytest.mark.parametrize("given", [".", "sketch", "feature_store.yaml"])
def test_a_reader_stays_where_it_was_opened(tmp_path, monkeypatch, given):
    store = make_repository(tmp_path, make_view({"country": String, "user_id": Int64}), refresh=0)
    write(store, u1="FR")
    monkeypatch.chdir(tmp_path)
    reader = SketchReader(given, "history", refresh_interval_seconds=0)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert reader.arrow("country", [1]).to_pylist() == ["FR"]


def test_a_whole_path_needs_no_current_folder(tmp_path, monkeypatch):
    write(make_store(tmp_path / "repo", "sketch"), u1="FR")
    (tmp_path / "removed").mkdir()
    monkeypatch.chdir(tmp_path / "removed")
    (tmp_path / "removed").rmdir()
    place = str(tmp_path / "repo" / "sketch")
    config = make_config(tmp_path / "repo", path=place)
    config.repo_path = None
    assert read(FeatureStore(repo_path=place, config=config))[0] == "FR"
    assert SketchReader(place, "history").arrow("country", [1]).to_pylist() == ["FR"]
