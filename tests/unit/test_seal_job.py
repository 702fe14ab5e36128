"""Views that a job seals: writes only append, and everything else keeps its meaning."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from feast.protos.feast.types.Value_pb2 import StringSet, Value

from feast_sketch_store.errors import RowError, VocabularyOverflowError
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.storage.local import LocalStorage
from feast_sketch_store.view import written_values
from feast_sketch_store.view.sealing import SealPolicy
from feast_sketch_store.view.settings import FeatureSettings, ViewSettings
from feast_sketch_store.view.state import StateLoader
from feast_sketch_store.view.view import View
from tests.helpers.keys import user_hashes, user_key

CODEC = FeatureCodec("viewed", "string_set_val")
LIMIT = 50
SETTINGS = ViewSettings("history", 1e-5, {"viewed": FeatureSettings(CODEC, 1e-9, LIMIT)})
MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
BY_JOB = SealPolicy(0.1, 3, by_job=True)


def row(user, *items, event=MOMENT):
    return (user_key(user), {"viewed": Value(string_set_val=StringSet(val=items))}, event, None)


def values(view, *users):
    """What a read of users shows, by user."""
    shown = {}
    for answer in view.read(user_hashes(users), ["viewed"]):
        feature = answer.features["viewed"]
        decoded = feature.decoder.values(feature.states, feature.indptr, feature.symbols)
        for position, value in zip(answer.found, decoded, strict=True):
            shown[users[position]] = set(value.string_set_val.val)
    return shown


@pytest.fixture
def make_view(tmp_path):
    return lambda policy=BY_JOB: View(LocalStorage(tmp_path / "view"), SETTINGS, policy, 0.0)


@pytest.fixture
def another_process(monkeypatch):
    """What this process wrote is forgotten, as another one would not know it."""
    return lambda: monkeypatch.setattr(written_values, "_written", {})


@pytest.fixture
def looks(monkeypatch):
    """Counts how often a view takes up what is there."""
    taken = []
    for name in ("load", "take_up", "sealed"):
        real = getattr(StateLoader, name)
        monkeypatch.setattr(
            StateLoader, name, lambda *args, real=real, name=name: taken.append(name) or real(*args)
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
    assert view._snapshots.list() == []
    assert sorted(values(view, *range(20))) == list(range(20)), "its own process reads what it wrote"
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
        assert values(view, 7) == {7: {f"v{number}"}}
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
    assert values(view, 7, 8) == {7: {"new"}, 8: {"other"}}


def test_rows_that_cannot_be_kept_are_refused(make_view):
    view = make_view()
    with pytest.raises(RowError, match="feature 'viewed' takes string_set_val"):
        view.write([(user_key(7), {"viewed": Value(int64_val=1)}, MOMENT, None)])
    assert values(view, 7) == {}


def test_values_past_the_limit_are_refused(make_view):
    view = make_view()
    for number in range(0, LIMIT, 10):
        view.write([row(number, *(f"v{n}" for n in range(number, number + 10)))])
    with pytest.raises(VocabularyOverflowError, match=f"would have {LIMIT + 1} distinct values"):
        view.write([row(1, "one more")])
    view.write([row(2, "v0", "v49")])
    assert values(view, 1, 2) == {2: {"v0", "v49"}}


def test_what_others_wrote_counts_once_it_is_sealed(make_view, another_process):
    make_view().write([row(0, *(f"v{n}" for n in range(LIMIT)))])
    make_view().seal()
    another_process()
    with pytest.raises(VocabularyOverflowError, match=f"would have {LIMIT + 1} distinct values"):
        make_view().write([row(1, "one more")])
    make_view().write([row(2, *(f"v{n}" for n in range(LIMIT)))])  # counted with the view open
    assert len(values(make_view(), 2)[2]) == LIMIT


def test_a_note_that_somebody_else_wrote_is_ignored(make_view, another_process, looks):
    view = make_view()
    view.storage.replace("vocabulary_sizes.json", b'{"viewed": true}')
    view.write([row(1, "x")])
    another_process()
    view.storage.replace("vocabulary_sizes.json", b"no JSON")
    view.write([row(2, "y")])
    assert looks == []
    assert sorted(values(view, 1, 2)) == [1, 2]
