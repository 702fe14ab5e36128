"""Settings read any text either as a value that can work or not at all."""

from types import SimpleNamespace

import pytest
from feast import Field
from feast.types import Set, String
from hypothesis import given, settings
from hypothesis import strategies as st

from feast_sketch_store.errors import SettingsError
from feast_sketch_store.online_store import SketchOnlineStoreConfig
from feast_sketch_store.settings.resolve import resolve
from feast_sketch_store.settings.table import FEATURE, names_of
from feast_sketch_store.settings.values import number

REPEATABLE = settings(derandomize=True, deadline=None, database=None)
OPTIONS = SketchOnlineStoreConfig()
NUMBERS = st.one_of(st.floats().map(repr), st.integers().map(str), st.floats(1e-9, 0.5).map(repr), st.text())


def feature_of(tags):
    field = Field(name="x", dtype=Set(String), tags=tags)
    view = SimpleNamespace(name="history", tags={}, features=[field], ttl=None)
    return resolve(OPTIONS, view).features["x"]


@REPEATABLE
@given(NUMBERS)
def test_an_error_rate_is_within_bounds_or_refused(text):
    try:
        target = feature_of({"sketch.target": f"error {text}"}).target
    except SettingsError:
        return
    assert target.measure == "error_rate"
    assert target.amount == number("".join(text.split()))
    assert 1e-9 <= target.amount <= 0.5


@REPEATABLE
@given(st.text().filter(lambda name: name not in names_of(FEATURE)))
def test_any_other_tag_of_the_store_is_refused(name):
    with pytest.raises(SettingsError, match="unknown tag"):
        feature_of({f"sketch.{name}": "0.1"})


@REPEATABLE
@given(st.text().filter(lambda name: not name.startswith("sketch.")), st.text())
def test_tags_of_others_change_nothing(name, text):
    assert feature_of({name: text}) == feature_of({})
