"""Settings: a feature's tag beats its view's, which beats the store's option."""

from datetime import timedelta
from types import SimpleNamespace

import pytest
from feast import Entity, FeatureView, Field, FileSource, ValueType
from feast.types import (
    Array,
    Bool,
    Bytes,
    Decimal,
    Float32,
    Float64,
    Int32,
    Int64,
    Invalid,
    Json,
    Map,
    Set,
    String,
    TimeUuid,
    UnixTimestamp,
    Uuid,
)

from feast_sketch_store.codecs import CATEGORICAL, MEMBERSHIP
from feast_sketch_store.errors import SettingsError, UnsupportedFeatureError
from feast_sketch_store.layers import Target
from feast_sketch_store.layers.choice import AUTO, ERROR_RATE
from feast_sketch_store.rows import OWN_COLUMNS
from feast_sketch_store.settings import resolve

OPTIONS = SimpleNamespace(
    error_rate=0.01,
    filter="auto",
    vocabulary=None,
    presence_error_rate=1e-5,
    scalar_error_rate=1e-6,
    max_vocabulary=1000,
    default_codec="sketch",
    expire_rows=True,
)


def view_of(*fields, tags=None, ttl=timedelta(0)):
    return FeatureView(
        name="history",
        entities=[Entity(name="user", join_keys=["user_id"], value_type=ValueType.INT64)],
        schema=[*fields, Field(name="user_id", dtype=Int64)],
        source=FileSource(path="rows.parquet", timestamp_field="event_timestamp"),
        ttl=ttl,
        tags=tags or {},
    )


def only(dtype, tags=None, view_tags=None):
    """The settings of a feature ``x`` of a view."""
    return resolve(OPTIONS, view_of(Field(name="x", dtype=dtype, tags=tags or {}), tags=view_tags)).features[
        "x"
    ]


def test_options_are_the_defaults():
    settings = resolve(OPTIONS, view_of(Field(name="a", dtype=Set(String)), Field(name="b", dtype=String)))
    assert (settings.view, settings.presence_error_rate, settings.ttl_microseconds) == ("history", 1e-5, None)
    assert list(settings.features) == ["a", "b"]
    assert [(f.target, f.max_vocabulary, f.vocabulary) for f in settings.features.values()] == [
        (Target(ERROR_RATE, 0.01, AUTO), 1000, None),
        (1e-6, 1000, None),
    ]
    assert [codec.name for codec in settings.codecs] == [MEMBERSHIP, CATEGORICAL]
    assert settings.budget.targets == {"a": Target(ERROR_RATE, 0.01, AUTO), "b": 1e-6}
    assert settings.budget.cuts == {}
    assert settings.budget.presence_error_rate == 1e-5


@pytest.mark.parametrize(
    ("dtype", "view_tags", "tags", "rate"),
    [
        (Set(String), {"sketch.error_rate": "0.1"}, {}, 0.1),
        (Set(String), {}, {"sketch.error_rate": "0.2"}, 0.2),
        (Set(String), {"sketch.error_rate": "0.1"}, {"sketch.error_rate": "0.2"}, 0.2),
        (Set(String), {"sketch.scalar_error_rate": "0.1"}, {}, 0.01),
        (String, {"sketch.error_rate": "0.1"}, {}, 1e-6),
        (String, {"sketch.scalar_error_rate": "0.1"}, {}, 0.1),
        (String, {}, {"sketch.error_rate": "0.2"}, 0.2),
        (String, {"sketch.scalar_error_rate": "0.1"}, {"sketch.error_rate": "0.2"}, 0.2),
        (String, {"sketch.error_rate": "0.3"}, {"sketch.error_rate": "0.2"}, 0.2),
        (String, {"sketch.error_rate": "0.3", "sketch.scalar_error_rate": "0.1"}, {}, 0.1),
    ],
)
def test_which_error_rate_counts(dtype, view_tags, tags, rate):
    target = rate if dtype is String else Target(ERROR_RATE, rate, AUTO)
    assert only(dtype, tags, view_tags).target == target


def test_which_max_vocabulary_counts():
    tag = "sketch.max_vocabulary"
    assert only(String, {}, {tag: "5"}).max_vocabulary == 5
    assert only(String, {tag: "7"}, {tag: "5"}).max_vocabulary == 7


def test_presence_error_rate_of_a_view():
    view = view_of(Field(name="x", dtype=String), tags={"sketch.presence_error_rate": "0.25"})
    assert resolve(OPTIONS, view).budget.presence_error_rate == 0.25


def test_tags_of_others_are_left_alone():
    assert only(String, {"owner": "me", "sketchy": "1"}, {"team": "x"}).target == 1e-6


@pytest.mark.parametrize("text", ["0", "1", "0.51", "-0.1", "1e-10", "nan", "inf", "", "a", "1%"])
@pytest.mark.parametrize(
    "tag", ["sketch.error_rate", "sketch.scalar_error_rate", "sketch.presence_error_rate"]
)
def test_an_error_rate_that_cannot_work_is_refused(tag, text):
    with pytest.raises(SettingsError, match=f"view 'history' has the tag {tag}="):
        only(String, {}, {tag: text})


@pytest.mark.parametrize("text", ["1e-9", "0.5", " 0.01 "])
def test_error_rates_at_the_bounds_are_taken(text):
    assert only(String, {"sketch.error_rate": text}).target == float(text)


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "", "many", "1e3"])
def test_a_max_vocabulary_that_cannot_work_is_refused(text):
    with pytest.raises(
        SettingsError, match=r"feature 'x' of view 'history' has the tag sketch\.max_vocabulary="
    ):
        only(String, {"sketch.max_vocabulary": text})


@pytest.mark.parametrize(
    ("tags", "view_tags", "where"),
    [
        ({"sketch.error-rate": "0.1"}, {}, "feature 'x' of view 'history'"),
        ({"sketch.": "0.1"}, {}, "feature 'x'"),
        ({"sketch.presence_error_rate": "0.1"}, {}, "feature 'x'"),
        ({"sketch.scalar_error_rate": "0.1"}, {}, "feature 'x'"),
        ({}, {"sketch.codec": CATEGORICAL}, "feature view 'history'"),
        ({}, {"sketch.errorrate": "0.1"}, "feature view 'history'"),
    ],
)
def test_an_unknown_tag_is_refused_and_the_known_ones_are_told(tags, view_tags, where):
    with pytest.raises(SettingsError, match=f"^{where}.* unknown tag .*known here: .*sketch.error_rate"):
        only(String, tags, view_tags)


@pytest.mark.parametrize("dtype", [String, Int32, Int64, Bool, Bytes, Uuid, TimeUuid], ids=str)
def test_scalars_with_few_values_are_categorical(dtype):
    assert only(dtype).codec.name == CATEGORICAL


@pytest.mark.parametrize(
    "dtype", [Array(Float32), Array(Map), Array(Array(Int64)), Set(UnixTimestamp), Set(Uuid)], ids=str
)
def test_arrays_and_sets_are_membership(dtype):
    assert only(dtype).codec.name == MEMBERSHIP


@pytest.mark.parametrize("dtype", [Float32, Float64, UnixTimestamp, Decimal, Json, Map], ids=str)
def test_other_scalars_need_a_tag(dtype):
    with pytest.raises(UnsupportedFeatureError, match=r"feature 'x' .*sketch\.codec.*categorical"):
        only(dtype)
    assert only(dtype, {"sketch.codec": CATEGORICAL}).codec.name == CATEGORICAL


@pytest.mark.parametrize(("dtype", "codec"), [(String, MEMBERSHIP), (Set(String), CATEGORICAL)], ids=str)
def test_a_codec_that_does_not_take_the_type_is_refused(dtype, codec):
    with pytest.raises(SettingsError, match=f"the codec '{codec}' does not take"):
        only(dtype, {"sketch.codec": codec})


@pytest.mark.parametrize("codec", ["", "Membership", "bloom"])
def test_an_unknown_codec_is_refused(codec):
    with pytest.raises(SettingsError, match=r"sketch\.codec="):
        only(String, {"sketch.codec": codec})


def test_an_embedding_is_refused():
    field = Field(name="x", dtype=Array(Float32), vector_index=True, vector_search_metric="L2")
    with pytest.raises(UnsupportedFeatureError, match="embedding"):
        resolve(OPTIONS, view_of(field))


def test_a_type_that_feast_cannot_carry_is_refused():
    with pytest.raises(UnsupportedFeatureError, match="feature 'x'"):
        only(Invalid, {"sketch.codec": CATEGORICAL})


@pytest.mark.parametrize("name", OWN_COLUMNS)
def test_a_name_of_the_row_log_is_refused(name):
    # Feast itself refuses most of these names, so the view is a stand-in.
    view = SimpleNamespace(name="history", tags={}, ttl=None, features=[Field(name=name, dtype=String)])
    with pytest.raises(UnsupportedFeatureError, match="row log keeps for itself"):
        resolve(OPTIONS, view)


@pytest.mark.parametrize(
    ("ttl", "microseconds"),
    [
        (None, None),
        (timedelta(0), None),
        (timedelta(microseconds=1), 1),
        (timedelta(days=1), 86_400_000_000),
        (timedelta.max, 86_399_999_999_999_999_999),
    ],
)
def test_time_to_live(ttl, microseconds):
    settings = resolve(OPTIONS, view_of(Field(name="x", dtype=String), ttl=ttl))
    assert settings.ttl_microseconds == settings.budget.ttl_microseconds == microseconds
