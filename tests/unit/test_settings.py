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
    Struct,
    TimeUuid,
    UnixTimestamp,
    Uuid,
)

from feast_sketch_store.errors import SettingsError, UnsupportedFeatureError
from feast_sketch_store.layers import Cut, Goal
from feast_sketch_store.rows.codecs import CATEGORICAL, EXACT, MEMBERSHIP
from feast_sketch_store.rows.encoding import OWN_COLUMNS
from feast_sketch_store.structures.goals import AUTO, ERROR_RATE, FALSE_PER_READ, MEMORY, NOISE_RATIO
from feast_sketch_store.view.setting_values import VocabularySetting, duration
from feast_sketch_store.view.settings import resolve

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
        (Goal(ERROR_RATE, 0.01, AUTO), 1000, None),
        (1e-6, 1000, None),
    ]
    assert [codec.name for codec in settings.codecs] == [MEMBERSHIP, CATEGORICAL]
    assert settings.budget.targets == {"a": Goal(ERROR_RATE, 0.01, AUTO), "b": 1e-6}
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
    target = rate if dtype is String else Goal(ERROR_RATE, rate, AUTO)
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
    with pytest.raises(UnsupportedFeatureError, match="row log reserves for itself"):
        resolve(OPTIONS, view)


@pytest.mark.parametrize("name", ["__Entity_Key", "__NULLS"])
def test_a_name_of_the_row_log_is_refused_in_any_case_and_as_a_join_key(name):
    view = SimpleNamespace(name="history", tags={}, ttl=None, features=[Field(name=name, dtype=String)])
    with pytest.raises(UnsupportedFeatureError, match="row log reserves for itself"):
        resolve(OPTIONS, view)
    view.features, view.entities = [], ["user"]
    view.entity_columns = [Field(name=name, dtype=String)]
    with pytest.raises(UnsupportedFeatureError, match="row log reserves for itself"):
        resolve(OPTIONS, view)


@pytest.mark.parametrize("names", [("Color", "color"), ("größe", "GRÖSSE", "GRÖßE"), ("User_ID",)])
def test_names_that_differ_only_by_case_are_refused_with_both(names):
    with pytest.raises(UnsupportedFeatureError) as caught:
        resolve(OPTIONS, view_of(*(Field(name=name, dtype=String) for name in names)))
    first, last = (*names, "user_id") if len(names) == 1 else (names[0], names[-1])
    for part in (repr(first), repr(last), "only by case", "Rename"):
        assert part in str(caught.value)


def test_names_that_are_alike_but_not_the_same_are_taken():
    names = ["straße", "strasse", "color", "colour", "e\u0301", "é"]
    assert list(resolve(OPTIONS, view_of(*(Field(name=n, dtype=String) for n in names))).features) == names


def test_expired_rows_are_kept_as_the_option_or_a_tag_of_the_view_says():
    def kept(tags=None, ttl=timedelta(days=1)):
        settings = resolve(OPTIONS, view_of(Field(name="x", dtype=String), tags=tags, ttl=ttl))
        return settings.retention_microseconds

    day = 86_400_000_000
    assert kept() == 8 * day
    assert kept({"sketch.expired_kept_for": "12h"}) == 1.5 * day
    assert kept(ttl=timedelta(0)) is None


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("7d", timedelta(7)),
        (" 1.5 h ", timedelta(minutes=90)),
        ("90min", timedelta(minutes=90)),
        ("30 s", timedelta(seconds=30)),
        ("0", timedelta(0)),
        (0, timedelta(0)),
        (timedelta(3), timedelta(3)),
    ],
)
def test_durations(text, wanted):
    assert duration(text) == wanted


@pytest.mark.parametrize("text", ["7", 7, "d", "-1d", "7 weeks", "", None, "1e999d", timedelta(-1), "nan d"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ValueError, match="duration"):
        duration(text)


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


# -- what a feature is kept for, how, and which values ---------------------------------------------


@pytest.mark.parametrize(
    ("tags", "view_tags", "target"),
    [
        ({"sketch.error_rate": "auto"}, {}, Goal(NOISE_RATIO, 0.1, AUTO)),
        ({}, {"sketch.error_rate": "auto"}, Goal(NOISE_RATIO, 0.1, AUTO)),
        ({"sketch.error_rate": "0.2"}, {"sketch.error_rate": "auto"}, Goal(ERROR_RATE, 0.2, AUTO)),
        ({"sketch.noise_ratio": "0.5"}, {}, Goal(NOISE_RATIO, 0.5, AUTO)),
        ({"sketch.noise_ratio": "1e3"}, {"sketch.memory": "1MB"}, Goal(NOISE_RATIO, 1000.0, AUTO)),
        (
            {"sketch.false_per_read": "2"},
            {"sketch.error_rate": "0.1"},
            Goal(FALSE_PER_READ, 2.0, AUTO),
        ),
        ({}, {"sketch.false_per_read": "2"}, Goal(FALSE_PER_READ, 2.0, AUTO)),
        ({"sketch.memory": "470MB"}, {}, Goal(MEMORY, 470e6, AUTO)),
        ({"sketch.memory": "1.5 kB"}, {}, Goal(MEMORY, 1500.0, AUTO)),
        ({"sketch.memory": "1e3"}, {}, Goal(MEMORY, 1000.0, AUTO)),
        ({"sketch.memory": "7B"}, {}, Goal(MEMORY, 7.0, AUTO)),
        ({"sketch.memory": "7mb"}, {}, Goal(MEMORY, 7e6, AUTO)),
        ({"sketch.structure": "sets"}, {}, Goal(ERROR_RATE, 0.01, "sets")),
        ({"sketch.structure": "learned_bloom"}, {}, Goal(ERROR_RATE, 0.01, "learned_bloom", 16)),
        (
            {"sketch.structure": "sandwiched_bloom", "sketch.clusters": "8"},
            {"sketch.noise_ratio": "1"},
            Goal(NOISE_RATIO, 1.0, "sandwiched_bloom", 8),
        ),
        (
            {"sketch.structure": "weighted_bloom"},
            {"sketch.clusters": "32"},
            Goal(ERROR_RATE, 0.01, "weighted_bloom", 32),
        ),
        ({"sketch.structure": "sets"}, {"sketch.clusters": "32"}, Goal(ERROR_RATE, 0.01, "sets")),
        (
            {"sketch.structure": "weighted_bloom"},
            {"sketch.structure": "sets"},
            Goal(ERROR_RATE, 0.01, "weighted_bloom"),
        ),
        ({}, {"sketch.structure": "bloom", "sketch.memory": "2GB"}, Goal(MEMORY, 2e9, "bloom")),
        ({"sketch.structure": "sets"}, {"sketch.noise_ratio": "3"}, Goal(NOISE_RATIO, 3.0, "sets")),
    ],
)
def test_what_a_set_is_kept_for(tags, view_tags, target):
    assert only(Set(String), tags, view_tags).target == target


@pytest.mark.parametrize(
    ("tag", "texts"),
    [
        ("noise_ratio", ["0", "-1", "inf", "nan", "", "auto", "a"]),
        ("false_per_read", ["0", "-1", "inf", "nan", "", "auto", "1%"]),
        ("memory", ["0", "0MB", "-1MB", "MB", "1 MiB", "1.2.3MB", "", "auto", "inf"]),
        ("structure", ["", "Sets", "uniform", "column"]),
        ("clusters", ["", "1", "257", "-3", "2.5", "many"]),
        (
            "vocabulary",
            [
                *("", "5", "a", "{}", "[1", "{top: 0}", "{top: -1}", "{top: x}", "{top: 1.5}", "{top: null}"),
                *(
                    "{top: true}",
                    "{top: [1]}",
                    "{top: .inf}",
                    "{min_share: 0}",
                    "{min_share: 1.5}",
                    "{file: 3}",
                ),
                *("{min_share: null}", "{min_share: .nan}", "{min_share: []}", "{bottom: 5}", "{file: null}"),
                *("{top: 1, min_share: 0.5}", "{values: [1]}", "null"),
            ],
        ),
    ],
)
def test_values_that_cannot_work_are_refused(tag, texts):
    for text in texts:
        with pytest.raises(SettingsError, match=rf"feature 'x' of view 'history' has the tag sketch\.{tag}="):
            only(Set(String), {f"sketch.{tag}": text})


@pytest.mark.parametrize(
    ("tags", "match"),
    [
        ({"sketch.filter": "sets"}, r"has the tag 'sketch\.filter', which is called sketch\.structure now"),
        ({"sketch.structure": "uniform"}, r"sketch\.structure='uniform': 'uniform' is called 'bloom' now"),
        ({"sketch.structure": "tiers"}, "'tiers' is called 'weighted_bloom' now"),
    ],
)
def test_an_old_name_of_a_tag_is_refused_with_the_new_one(tags, match):
    with pytest.raises(SettingsError, match=match):
        only(Set(String), tags)
    with pytest.raises(SettingsError, match=match):
        only(Set(String), {}, tags)


def test_two_measures_at_once_are_refused():
    both = {"sketch.error_rate": "0.1", "sketch.memory": "1MB"}
    with pytest.raises(SettingsError, match=r"has sketch\.error_rate, sketch\.memory; remove all but one"):
        only(Set(String), both)
    with pytest.raises(SettingsError, match="remove all but one"):
        only(Set(String), {}, both)
    # The feature's own counts, so its view's do not matter.
    assert only(Set(String), {"sketch.noise_ratio": "1"}, both).target == Goal(NOISE_RATIO, 1.0, AUTO)


@pytest.mark.parametrize(
    ("tag", "text"),
    [
        ("error_rate", "auto"),
        ("noise_ratio", "0.1"),
        ("false_per_read", "1"),
        ("memory", "1MB"),
        ("structure", "sets"),
        ("clusters", "16"),
        ("vocabulary", "{top: 5}"),
    ],
)
def test_a_scalar_takes_none_of_them_of_its_own(tag, text):
    with pytest.raises(SettingsError, match=f"not an Array or Set, so .*{tag}"):
        only(String, {f"sketch.{tag}": text})
    kept = only(String, {}, {f"sketch.{tag}": text})
    assert (kept.target, kept.vocabulary) == (1e-6, None)


@pytest.mark.parametrize(
    ("tags", "match"),
    [
        (
            {"sketch.clusters": "8"},
            "has sketch.clusters, which has no effect on structure 'auto'; remove the tag, or choose "
            "learned_bloom, sandwiched_bloom or weighted_bloom",
        ),
        ({"sketch.clusters": "8", "sketch.structure": "sets"}, "no effect on structure 'sets'"),
        (
            {"sketch.structure": "learned_bloom", "sketch.memory": "1MB"},
            "has sketch.memory, for which 'learned_bloom' with clusters cannot be sized; give a sketch.noise",
        ),
        (
            {"sketch.structure": "weighted_bloom", "sketch.clusters": "4", "sketch.memory": "1MB"},
            "'weighted_bloom' with clusters cannot be sized",
        ),
    ],
)
def test_clusters_are_of_filters_for_a_noise(tags, match):
    with pytest.raises(SettingsError, match=f"feature 'x' of view 'history' .*{match}"):
        only(Set(String), tags)


@pytest.mark.parametrize("tag", ["noise_ratio", "false_per_read", "memory", "structure", "vocabulary"])
def test_a_feature_that_is_kept_exactly_takes_none_of_them(tag):
    text = {"structure": "sets", "vocabulary": "{top: 5}"}.get(tag, "1")
    with pytest.raises(SettingsError, match=rf"these tags have no effect: sketch\.{tag}"):
        only(Array(String), {"sketch.codec": "exact", f"sketch.{tag}": text})


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("{top: 900}", VocabularySetting(top=900)),
        ("top: 900", VocabularySetting(top=900)),
        ("{min_share: 0.001}", VocabularySetting(min_share=0.001)),
        ("{min_share: 1}", VocabularySetting(min_share=1.0)),
        ("{file: values.json}", VocabularySetting(file="values.json")),
        ("[a, b]", VocabularySetting(values=("a", "b"))),
        ("[]", VocabularySetting(values=())),
    ],
)
def test_which_values_are_kept(text, setting):
    assert only(Set(String), {"sketch.vocabulary": text}).vocabulary == setting
    assert only(Set(String), {}, {"sketch.vocabulary": text}).vocabulary == setting
    nearer = only(Set(String), {"sketch.vocabulary": "{top: 1}"}, {"sketch.vocabulary": text})
    assert nearer.vocabulary == VocabularySetting(top=1)


def cut_of(dtype, text, folder=None):
    """What is kept of a feature ``x``."""
    view = view_of(Field(name="x", dtype=dtype, tags={"sketch.vocabulary": text}))
    return resolve(OPTIONS, view, folder).budget.cuts["x"]


def test_values_are_taken_as_they_are_stored(tmp_path):
    assert cut_of(Set(String), "[b, a, b, null]").values.to_pylist() == [b"b", b"a", b"b"]
    assert cut_of(Array(Int64), "[3, -1]").values.to_pylist() == [3, -1]
    assert cut_of(Set(String), "{top: 3}") == Cut(top=3)
    assert cut_of(Set(String), "{min_share: 0.5}") == Cut(min_share=0.5)
    (tmp_path / "values.json").write_text('["é", "x"]', "utf-8")
    for path in ("values.json", str(tmp_path / "values.json")):
        assert cut_of(Set(String), f"{{file: {path}}}", tmp_path).values.to_pylist() == ["é".encode(), b"x"]


@pytest.mark.parametrize("content", [None, b"", b"no JSON", b"5", b'"text"', b'{"a": 1}', b"null", b"\xff"])
def test_a_file_that_is_no_json_list_is_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "values.json").write_bytes(content)
    with pytest.raises(
        SettingsError, match=r"feature 'x' of view 'history' takes .*values\.json, which cannot"
    ):
        cut_of(Set(String), "{file: values.json}", tmp_path)


@pytest.mark.parametrize(
    ("dtype", "text"),
    [
        (Set(String), "[1]"),
        (Set(Int64), "[a]"),
        (Set(Int64), "[1.5]"),
        (Array(Int32), f"[{2**40}]"),
        (Set(Int64), f"[{2**70}]"),
        (Set(String), "[[a]]"),
        (Set(Bool), "[yes, 7]"),
    ],
    ids=str,
)
def test_values_of_another_type_are_refused(tmp_path, dtype, text):
    with pytest.raises(SettingsError, match="a list, which has a value of another type"):
        cut_of(dtype, text)
    (tmp_path / "values.json").write_text(
        text.replace("yes", "true").replace("a", '"a"' if "tr" not in text else "a")
    )
    if "yes" not in text:
        with pytest.raises(SettingsError, match=r"values\.json, which has a value of another type"):
            cut_of(dtype, "{file: values.json}", tmp_path)


def test_options_of_the_store_are_where_it_begins():
    options = SimpleNamespace(**vars(OPTIONS) | {"error_rate": "auto", "structure": "weighted_bloom"})
    options.vocabulary = VocabularySetting(top=5)
    view = view_of(
        Field(name="a", dtype=Set(String)),
        Field(name="b", dtype=String),
        Field(name="c", dtype=Array(String), tags={"sketch.codec": "exact"}),
    )
    settings = resolve(options, view)
    assert settings.features["a"].target == Goal(NOISE_RATIO, 0.1, "weighted_bloom")
    assert settings.features["b"].target == 1e-6
    assert settings.budget.cuts == {"a": Cut(top=5)}


AUTO_OPTIONS = SimpleNamespace(**vars(OPTIONS) | {"default_codec": "auto"})


def chosen(field):
    return resolve(AUTO_OPTIONS, view_of(field)).features[field.name]


@pytest.mark.parametrize(
    ("dtype", "codec"),
    [
        *((kind, CATEGORICAL) for kind in (String, Int32, Int64, Bool, Bytes, Uuid, TimeUuid)),
        *((kind, EXACT) for kind in (Float32, Float64, UnixTimestamp, Decimal, Json, Map)),
        *((Set(kind), MEMBERSHIP) for kind in (String, Int64, Float64, UnixTimestamp)),
        *((Array(kind), MEMBERSHIP) for kind in (String, Int32, Int64, Bytes, Uuid)),
        *((Array(kind), EXACT) for kind in (Float32, Float64, UnixTimestamp, Bool, Json, Map)),
    ],
    ids=str,
)
def test_every_type_is_kept_by_default(dtype, codec):
    kept = chosen(Field(name="x", dtype=dtype))
    assert (kept.codec.name, kept.may_be_column) == (codec, codec == CATEGORICAL)
    assert kept.is_bounded == (codec != MEMBERSHIP)


def test_an_embedding_is_kept_exactly_by_default():
    assert chosen(Field(name="x", dtype=Array(Float32), vector_index=True)).codec.is_exact


@pytest.mark.parametrize(
    ("dtype", "tag", "codec"),
    [
        (Array(Float64), {"sketch.error_rate": "0.1"}, MEMBERSHIP),
        (Float64, {"sketch.error_rate": "0.1"}, CATEGORICAL),
        (Float64, {"sketch.bins": "9"}, "binned"),
        (String, {"sketch.max_vocabulary": "9"}, CATEGORICAL),
        (String, {"sketch.codec": "categorical"}, CATEGORICAL),
    ],
    ids=str,
)
def test_a_tag_that_a_sketch_has_asks_for_one(dtype, tag, codec):
    kept = chosen(Field(name="x", dtype=dtype, tags=tag))
    assert kept.codec.name == codec
    if dtype == String:
        assert not kept.may_be_column


@pytest.mark.parametrize("tag", ["bins", "edges", "precision"])
@pytest.mark.parametrize(
    ("options", "more", "may_be_column"),
    [(AUTO_OPTIONS, {}, True), (AUTO_OPTIONS, {"sketch.max_vocabulary": "9"}, False), (OPTIONS, {}, False)],
    ids=["auto", "with a limit", "sketch"],
)
def test_bins_may_be_columns_where_nothing_asks_for_a_filter(tag, options, more, may_be_column):
    fields = [Field(name="x", dtype=Float64, tags={f"sketch.{tag}": "1", **more})]
    assert resolve(options, view_of(*fields)).features["x"].may_be_column == may_be_column


def test_a_view_may_limit_its_scalars():
    fields = [Field(name="x", dtype=String)]
    kept = resolve(AUTO_OPTIONS, view_of(*fields, tags={"sketch.max_vocabulary": "9"})).features["x"]
    assert (kept.may_be_column, kept.max_vocabulary, kept.is_bounded) == (False, 9, False)


def test_a_refusal_names_all_features_and_ends_with_lines_to_paste():
    fields = [
        Field(name="price", dtype=Float32, description='a "price"', tags={"team": "a"}),
        Field(name="viewed", dtype=Set(String)),
        Field(name="place", dtype=Struct({"lat": Float64}), tags={"sketch.error_rate": "0.1"}),
        Field(name="vector", dtype=Array(Float32), vector_index=True, vector_length=3),
        Field(name="kept", dtype=Json, tags={"sketch.codec": "exact", "sketch.max_vocabulary": "9"}),
    ]
    with pytest.raises(SettingsError) as caught:
        resolve(OPTIONS, view_of(*fields))
    message = str(caught.value)
    assert message.startswith("4 settings must change:\n- feature 'price' of view 'history'")
    pasted = message.partition("\nPaste:\n")[2]
    assert [line.strip() for line in pasted.splitlines()] == [
        'Field(name="price", dtype=Float32, description="a \\"price\\"", '
        'tags={"team": "a", "sketch.codec": "exact"}),',
        'Field(name="place", dtype=Struct({"lat": Float64}), tags={"sketch.codec": "exact"}),',
        'Field(name="vector", dtype=Array(Float32), vector_index=True, vector_length=3, '
        'tags={"sketch.codec": "exact"}),',
        'Field(name="kept", dtype=Json, tags={"sketch.codec": "exact"}),',
    ]
    names = {"Field": Field, "Float32": Float32, "Float64": Float64, "Array": Array, "Json": Json}
    repaired = eval(f"[{pasted}]", names | {"Struct": Struct})
    kept = resolve(OPTIONS, view_of(*repaired)).features
    assert [feature.codec.is_exact for feature in kept.values()] == [True] * 4


@pytest.mark.parametrize(
    ("dtype", "tags", "kept"),
    [
        (Set(String), {"sketch.filter": "tiers"}, {"sketch.structure": "weighted_bloom"}),
        (Set(String), {"sketch.structure": "uniform"}, {"sketch.structure": "bloom"}),
        (Set(String), {"sketch.eror_rate": "0.1", "sketch.memory": "1MB"}, {"sketch.memory": "1MB"}),
        (Set(String), {"sketch.noise_ratio": "1", "sketch.memory": "1MB"}, {"sketch.noise_ratio": "1"}),
        (String, {"team": "a", "sketch.memory": "1MB"}, {"team": "a"}),
        (String, {"sketch.codec": "membership"}, {}),
        (Float64, {"sketch.bins": "8", "sketch.precision": "0.1"}, {"sketch.bins": "8"}),
    ],
)
def test_a_refusal_of_a_tag_ends_with_the_line_to_paste(dtype, tags, kept):
    with pytest.raises(SettingsError) as caught:
        only(dtype, tags)
    pasted = str(caught.value).partition("\nPaste:\n")[2]
    (repaired,) = eval(f"[{pasted}]", {"Field": Field, "Set": Set, "String": String, "Float64": Float64})
    assert (repaired.name, repaired.dtype, repaired.tags) == ("x", dtype, kept)
    assert resolve(OPTIONS, view_of(repaired))


def test_a_refusal_of_a_tag_of_the_view_has_no_line_of_a_feature():
    with pytest.raises(SettingsError) as caught:
        only(Set(String), {}, {"sketch.noise_ratio": "1", "sketch.memory": "1MB"})
    pasted = str(caught.value).partition("\nPaste:\n")[2]
    assert pasted.strip() == 'tags={"sketch.noise_ratio": "1"},  # of feature view \'history\''


@pytest.mark.parametrize(
    ("dtype", "tags", "codec"),
    [
        (Array(Float32), {}, "backing"),
        (Json, {}, "backing"),
        (Map, {}, "backing"),
        (Float64, {}, "exact"),
        (String, {}, "categorical"),
        (Array(Int64), {}, "membership"),
        (Array(Float32), {"sketch.codec": "exact"}, "exact"),
        (Set(String), {"sketch.codec": "backing"}, "backing"),
    ],
)
def test_what_a_backing_store_keeps(dtype, tags, codec):
    options = SimpleNamespace(**vars(AUTO_OPTIONS) | {"backing_store": {"type": "redis"}})
    field = Field(name="feature", dtype=dtype, tags=tags)
    view = SimpleNamespace(name="history", tags={}, ttl=None, features=[field])
    assert resolve(options, view).features["feature"].codec.name == codec
