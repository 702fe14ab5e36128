"""Settings read any text either as a value that can work or not at all."""

from datetime import timedelta
from types import SimpleNamespace

import pytest
from feast import Field
from feast.types import Set, String
from hypothesis import given, settings
from hypothesis import strategies as st

from feast_sketch_store.errors import SettingsError
from feast_sketch_store.view.settings import _FEATURE_TAGS, resolve

REPEATABLE = settings(derandomize=True, deadline=None, database=None)
OPTIONS = SimpleNamespace(
    backing_store=None,
    error_rate=0.01,
    structure="auto",
    vocabulary=None,
    presence_error_rate=1e-5,
    scalar_error_rate=1e-6,
    max_vocabulary=1000,
    default_codec="sketch",
    expire_rows=True,
    expired_kept_for=timedelta(days=7),
    shards=1,
)
NUMBERS = st.one_of(st.floats().map(repr), st.integers().map(str), st.floats(1e-9, 0.5).map(repr), st.text())


def feature_of(tags):
    field = Field(name="x", dtype=Set(String), tags=tags)
    view = SimpleNamespace(name="history", tags={}, features=[field], ttl=None)
    return resolve(OPTIONS, view).features["x"]


@REPEATABLE
@given(NUMBERS)
def test_an_error_rate_is_within_bounds_or_refused(text):
    try:
        target = feature_of({"sketch.error_rate": text}).target
    except SettingsError:
        return
    assert target.measure == "error_rate"
    assert target.amount == float(text)
    assert 1e-9 <= target.amount <= 0.5


@REPEATABLE
@given(NUMBERS)
def test_a_max_vocabulary_is_a_count_or_refused(text):
    try:
        count = feature_of({"sketch.max_vocabulary": text}).max_vocabulary
    except SettingsError:
        return
    assert count == int(text) >= 1


@REPEATABLE
@given(st.text().filter(lambda name: name not in _FEATURE_TAGS))
def test_any_other_tag_of_the_store_is_refused(name):
    with pytest.raises(SettingsError, match=r"unknown tag|is called sketch\.\w+ now"):
        feature_of({f"sketch.{name}": "0.1"})


@REPEATABLE
@given(st.text().filter(lambda name: not name.startswith("sketch.")), st.text())
def test_tags_of_others_change_nothing(name, text):
    assert feature_of({name: text}) == feature_of({})
