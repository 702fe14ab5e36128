"""Views with sets, filters and cut vocabularies: unsealed rows, verification, the limit of values."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from feast.protos.feast.types.Value_pb2 import StringSet, Value

from feast_sketch_store.errors import SettingsError
from feast_sketch_store.layers import Goal
from feast_sketch_store.operations.verification import verify_view
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.encoding import deletions, to_arrow
from feast_sketch_store.settings.values import KeptValues
from feast_sketch_store.settings.view_settings import FeatureSettings, ViewSettings
from feast_sketch_store.storage.local import LocalStorage
from feast_sketch_store.view.seal_policy import SealPolicy
from feast_sketch_store.view.view import View
from tests.helpers.keys import user_hashes, user_key
from tests.oracle.messages import feast_values

CODECS = [FeatureCodec("viewed", "string_set_val"), FeatureCodec("name", "string_val")]
NEVER = SealPolicy(1.0, 10**9)
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
TARGETS = {
    "bloom": Goal("error_rate", 1e-9, "bloom"),
    "weighted_bloom": Goal("noise_ratio", 1e-6, "weighted_bloom"),
    "sets": Goal("noise_ratio", 0.1, "sets"),
}
STRUCTURES = pytest.mark.parametrize("structure", TARGETS)


def settings_of(structure, cut=None, max_vocabulary=1000):
    features = {
        "viewed": FeatureSettings(CODECS[0], TARGETS[structure], max_vocabulary, cut),
        "name": FeatureSettings(CODECS[1], 1e-9, 1000),
    }
    return ViewSettings("history", 1e-9, features)


def seal(view, settings):
    view.settings = settings
    return view.seal()


def write(view, rows, settings, second=0, policy=NEVER):
    """Write ``{user: items}``; None as items is a null."""
    table = to_arrow(
        [
            (
                user_key(user),
                {
                    "viewed": Value() if items is None else Value(string_set_val=StringSet(val=items)),
                    "name": Value(string_val=f"user {user}"),
                },
                EPOCH + timedelta(seconds=second),
                None,
            )
            for user, items in rows.items()
        ],
        CODECS,
    )
    view.settings, view.policy = settings, policy
    view.write(table)


def read(view, *users):
    """Per user the items, or None of a null; users that are not found are left out."""
    found = {}
    answer = view.read(user_hashes(users), ["viewed", "name"])
    viewed, names = (feast_values(f) for f in answer.features.values())
    for position, items, name in zip(answer.found, viewed, names, strict=True):
        assert name.string_val == f"user {users[position]}"
        is_set = items.WhichOneof("val") == "string_set_val"
        found[users[position]] = set(items.string_set_val.val) if is_set else None
    return found


@pytest.fixture
def view(tmp_path):
    return View(LocalStorage(tmp_path / "view"), settings_of("sets"), NEVER, 0.0)


def popular_rows():
    """Thirty users; all have ``tea``, every second one ``coffee``, each an item of its own."""
    return {user: ["tea", *(["coffee"] if user % 2 else []), f"item {user}"] for user in range(30)}


@STRUCTURES
def test_unsealed_rows_show_kept_values_only_once_a_cut_is_sealed(view, structure):
    settings = settings_of(structure, KeptValues(top=2))
    write(view, popular_rows(), settings)
    assert read(view, 1, 2) == {1: {"tea", "coffee", "item 1"}, 2: {"tea", "item 2"}}, "nothing is sealed yet"
    seal(view, settings)
    assert read(view, 1, 2) == {1: {"tea", "coffee"}, 2: {"tea"}}
    write(
        view, {2: ["coffee", "item 2", "new"], 3: ["item 3"], 40: ["tea", "x"], 41: [], 42: None}, settings, 1
    )
    expected = {1: {"tea", "coffee"}, 2: {"coffee"}, 3: set(), 40: {"tea"}, 41: set(), 42: None}
    assert read(view, *expected) == expected
    another = View(view.storage, settings_of("sets"), NEVER, 0.0)
    assert read(another, *expected) == expected
    seal(view, settings)
    assert read(view, *expected) == expected
    assert read(another, *expected) == expected


@STRUCTURES
def test_rows_are_whole_again_after_a_seal_without_a_cut(view, structure):
    """The row log has all values."""
    cut, whole = settings_of(structure, KeptValues(top=1)), settings_of(structure)
    write(view, popular_rows(), cut)
    seal(view, cut)
    write(view, {50: ["coffee"]}, whole, 1)
    assert read(view, 1, 50) == {1: {"tea"}, 50: set()}
    seal(view, whole)
    assert read(view, 1, 50) == {1: {"tea", "coffee", "item 1"}, 50: {"coffee"}}


@pytest.mark.slow
@STRUCTURES
@pytest.mark.parametrize("cut", [None, KeptValues(top=2), KeptValues(values=())], ids=str)
def test_a_sealed_view_is_sound(view, structure, cut):
    settings = settings_of(structure, cut)
    write(view, {**popular_rows(), 30: [], 31: None}, settings)
    seal(view, settings)
    write(view, {1: ["late"], 60: ["tea"]}, settings, 1)
    view.delete(deletions([user_key(2)], EPOCH))
    found = verify_view(view.storage, CODECS)
    assert found.problems == []
    assert found.compared_entities == 32
    assert found.compared_facts > 60


@pytest.mark.slow
@STRUCTURES
def test_a_view_whose_rows_were_all_deleted_goes_on(view, structure):
    settings = settings_of(structure, KeptValues(top=2))
    write(view, popular_rows(), settings)
    view.delete(deletions([user_key(user) for user in range(30)], EPOCH))
    seal(view, settings)
    another = View(view.storage, settings_of("sets"), NEVER, 0.0)
    write(another, {5: ["tea"]}, settings, 1)
    assert read(another, *range(30)) == {5: {"tea"}}, "a vocabulary without values leaves out none yet"
    seal(another, settings)
    assert read(another, *range(30)) == {5: {"tea"}}
    assert verify_view(view.storage, CODECS).problems == []


def sealed_rows(monkeypatch, view, settings, change):
    """Seal rows whose feature has been changed behind the back of the row log."""
    from feast_sketch_store.layers import SketchLayerBuilder

    honest = SketchLayerBuilder.__init__

    def changed(rows):
        return replace(rows, features={**rows.features, "viewed": change(rows.features["viewed"])})

    def collect(self, keys, codecs, batches):
        honest(self, keys, codecs, [(places, changed(rows)) for places, rows in batches])

    with monkeypatch.context() as patched:
        patched.setattr(SketchLayerBuilder, "__init__", collect)
        seal(view, settings)


def without_one(feature):
    """The feature without its last fact."""
    indptr = np.minimum(feature.indptr, len(feature.symbols) - 1)
    return replace(feature, csr=Csr(indptr, feature.symbols[:-1]))


def with_another(feature):
    """The feature with the first row's first fact replaced."""
    first, stop = feature.indptr[:2]
    row, symbols = feature.symbols[first:stop], feature.symbols.copy()
    other = np.setdiff1d(np.arange(len(feature.vocabulary)), row)[0]
    symbols[first:stop] = np.sort(np.append(row[1:], other))
    return replace(feature, csr=Csr(feature.indptr, symbols))


@STRUCTURES
@pytest.mark.parametrize("cut", [None, KeptValues(top=10**6)], ids=["whole", "cut"])
def test_a_lost_fact_is_found(view, monkeypatch, structure, cut):
    """A fact that the layer lacks though its vocabulary has the value."""
    settings = settings_of(structure, cut)
    rows = {user: ["tea", "coffee", "milk"][user % 3 :] for user in range(30)}
    write(view, rows, settings)
    sealed_rows(monkeypatch, view, settings, without_one)
    assert any(
        "has lost 1 facts of feature 'viewed'" in text for text in verify_view(view.storage, CODECS).problems
    )


def test_a_fact_that_was_never_written_is_found_in_sets(view, monkeypatch):
    settings = settings_of("sets")
    write(view, {user: ["tea", "coffee", "milk"][user % 3 :][:2] for user in range(30)}, settings)
    sealed_rows(monkeypatch, view, settings, with_another)
    problems = verify_view(view.storage, CODECS).problems
    assert any("values of feature 'viewed' that were never written" in text for text in problems)
    assert any("has lost 1 facts" in text for text in problems)


@STRUCTURES
def test_a_lost_value_of_the_vocabulary_is_found_unless_it_was_cut(view, monkeypatch, structure):
    settings = settings_of(structure)
    write(view, {0: ["tea"], 1: ["tea", "coffee"]}, settings)
    lonely = [None]

    def drop(feature):
        names = feature.vocabulary.values.to_pylist()
        is_kept = feature.symbols != names.index(b"coffee")
        lonely[0] = int((~is_kept).sum())
        vocabulary = type(feature.vocabulary)(feature.vocabulary.values[:1])
        return replace(feature, vocabulary=vocabulary, csr=feature.csr.masked(is_kept))

    sealed_rows(monkeypatch, view, settings, drop)
    assert lonely == [1]
    assert any(
        "lacks 1 values of feature 'viewed'" in text for text in verify_view(view.storage, CODECS).problems
    )


@pytest.mark.parametrize("structure", ["auto", "bloom", "weighted_bloom"])
def test_rows_that_do_not_fit_in_the_memory_are_kept_unsealed(view, caplog, structure):
    features = dict(settings_of("sets").features)
    features["viewed"] = replace(features["viewed"], target=Goal("memory", 1, structure))
    settings = replace(settings_of("sets"), features=features)
    write(view, popular_rows(), settings)
    with pytest.raises(SettingsError, match="'history': feature 'viewed' cannot be kept for a memory of 1"):
        seal(view, settings)
    write(view, {40: ["tea"]}, settings, policy=SealPolicy(1e-9, 0))
    assert "a later write seals them" in caplog.text
    assert read(view, 1, 40) == {1: {"tea", "coffee", "item 1"}, 40: {"tea"}}
