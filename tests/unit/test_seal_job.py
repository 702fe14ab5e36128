"""Views that a job seals: writes only append, and everything else keeps its meaning."""

import asyncio
from datetime import timedelta

import pytest

from feast_sketch_store.storage.local import LocalStorage
from feast_sketch_store.view.loading import ShardLoader
from feast_sketch_store.view.seal_policy import SealPolicy
from feast_sketch_store.view.view import View
from tests.helpers.histories import MOMENT, items_of, row, settings_of

LIMIT = 50
SETTINGS = settings_of(1e-9, LIMIT)
BY_JOB = SealPolicy(0.1, 3, by_job=True)


@pytest.fixture
def make_view(tmp_path):
    return lambda policy=BY_JOB: View(LocalStorage(tmp_path / "view"), SETTINGS, policy, 0.0)


@pytest.fixture
def looks(monkeypatch):
    """Counts how often a view takes up what is there."""
    taken = []
    for name in ("load", "apply_commits", "sealed"):
        real = getattr(ShardLoader, name)
        monkeypatch.setattr(
            ShardLoader, name, lambda *args, real=real, name=name: taken.append(name) or real(*args)
        )
    return taken


@pytest.mark.parametrize("kind", ["write", "write_async"])
def test_a_write_takes_nothing_up_and_never_seals(make_view, looks, kind):
    view = make_view()
    for user in range(20):
        if kind == "write":
            view.write([row(user, "x")])
        else:
            asyncio.run(view.write_async([row(user, "x")]))
    view.settle()
    assert looks == []
    assert view.shards[0].snapshots.list() == []
    assert sorted(items_of(view, range(20))) == list(range(20)), "its own process reads what it wrote"
    assert looks != []


def test_a_job_seals_when_it_is_due(make_view):
    make_view().write([row(user, "x") for user in range(20)])
    job = make_view()
    assert job.seal_if_due()
    assert job.stats().sealed_entities == 20
    assert not job.seal_if_due()
    make_view().write([row(20, "x")])
    assert not job.seal_if_due(), "one row is not worth it"
    assert job.seal()


def test_a_write_after_a_read_is_read(make_view):
    view = make_view()
    for number in range(6):
        view.write([row(7, f"v{number}", event=MOMENT + timedelta(hours=number))])
        assert items_of(view, [7]) == {7: {f"v{number}"}}
        if number % 2:
            make_view().seal()


@pytest.mark.parametrize("seals_before", [False, True])
@pytest.mark.parametrize("seals_after", [False, True])
def test_late_rows_lose_as_ever(make_view, seals_before, seals_after):
    make_view().write([row(7, "new", event=MOMENT + timedelta(hours=1))])
    if seals_before:
        make_view().seal()
    view = make_view()
    view.write([row(7, "late"), row(8, "other")])
    if seals_after:
        make_view().seal()
    assert items_of(view, [7, 8]) == {7: {"new"}, 8: {"other"}}
