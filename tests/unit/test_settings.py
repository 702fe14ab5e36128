"""Settings: one table; a feature's tag beats its view's, which beats the store's option."""

from datetime import timedelta
from types import SimpleNamespace

import pytest
import yaml
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
from pydantic import ValidationError

from feast_sketch_store.errors import SettingsError, UnsupportedFeatureError
from feast_sketch_store.layers import Cut, Goal
from feast_sketch_store.online_store import SketchOnlineStoreConfig
from feast_sketch_store.rows.codecs import CATEGORICAL, EXACT, MEMBERSHIP
from feast_sketch_store.rows.encoding import ENTITYLESS_JOIN_KEY, OWN_COLUMNS
from feast_sketch_store.rows.lists import removed_name
from feast_sketch_store.settings import values
from feast_sketch_store.settings.resolve import resolve
from feast_sketch_store.settings.table import (
    SETTINGS,
    STORE,
    TAG_PREFIX,
    VIEW,
    Advanced,
    Backing,
    Compaction,
    Gate,
    Refresh,
    Sharding,
    Ttl,
    names_of,
)
from feast_sketch_store.settings.values import KeptValues, Target
from feast_sketch_store.structures.goals import AUTO, ERROR_RATE, MEMORY, NOISE_RATIO

OPTIONS = SketchOnlineStoreConfig(
    target="error 1%", ttl={"expire": True}, advanced={"scalar_error": 1e-6, "max_vocabulary": 1000}
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


def tagged(tags):
    """Tags of the store with these names."""
    return {TAG_PREFIX + name: text for name, text in (tags or {}).items()}


def only(dtype, tags=None, view_tags=None, options=OPTIONS):
    """The settings of a feature ``x`` of a view, with tags of the store."""
    field = Field(name="x", dtype=dtype, tags=tagged(tags))
    return resolve(options, view_of(field, tags=tagged(view_tags))).features["x"]


def refused(dtype, tags=None, view_tags=None, options=OPTIONS):
    """The message with which settings are refused."""
    with pytest.raises((SettingsError, UnsupportedFeatureError)) as caught:
        only(dtype, tags, view_tags, options)
    return str(caught.value)


# -- options -------------------------------------------------------------------------------------------

# Each option as YAML spells it, and what it says.
GIVEN = [
    ("path: s3://bucket/folder", "path", "s3://bucket/folder"),
    ("storage_options: {}", "storage_options", {}),
    ("cache_path: cache", "cache_path", "cache"),
    ("read_only: on", "read_only", True),
    ("read_only: false", "read_only", False),
    ("target: auto", "target", Target(AUTO)),
    ("target: noise 0.1", "target", Target("noise", 0.1)),
    ("target: noise 1e-5", "target", Target("noise", 1e-5)),
    ("target: error 1%", "target", Target("error", 0.01, True)),
    ("target: error 1 %", "target", Target("error", 0.01, True)),
    ("target: 470MB", "target", Target("memory", 470e6)),
    ("target: 1.5 kB", "target", Target("memory", 1500.0)),
    ("structure: learned_bloom", "structure", "learned_bloom"),
    ("vocabulary: {top: 5}", "vocabulary", KeptValues(top=5)),
    ("vocabulary: {file: x.json}", "vocabulary", KeptValues(file="x.json")),
    ("vocabulary: [a, b]", "vocabulary", KeptValues(values=("a", "b"))),
    ("default_codec: exact", "default_codec", "exact"),
    ("ttl: {expire: true}", "ttl", Ttl(True)),
    ("ttl: {keep: 36h}", "ttl", Ttl(False, timedelta(hours=36))),
    ("ttl: {expire: yes, keep: 0}", "ttl", Ttl(True, timedelta(0))),
    ("backing_store: {store: {type: redis, x: 1}}", "backing_store", Backing({"type": "redis", "x": 1})),
    (
        "backing_store: {store: {type: a.B}, on_error: missing, owned: true}",
        "backing_store",
        Backing({"type": "a.B"}, "missing", True),
    ),
    ("shards: 16", "shards", Sharding(16)),
    ("shards: {count: 16, serve: [0, 1]}", "shards", Sharding(16, (0, 1))),
    ("refresh: 0", "refresh", Refresh(timedelta(0))),
    ("refresh: 50ms", "refresh", Refresh(timedelta(milliseconds=50))),
    (
        "refresh: {interval: 2min, max_staleness: 1h}",
        "refresh",
        Refresh(timedelta(minutes=2), timedelta(hours=1)),
    ),
    ("compaction: auto", "compaction", Compaction()),
    ("compaction: job", "compaction", Compaction(by_job=True)),
    ("compaction: {share: 1e-9, min_rows: 0}", "compaction", Compaction(False, 1e-9, 0)),
    ("compaction: {share: 250%}", "compaction", Compaction(False, 2.5)),
    ("gate: {entities: 5, change: 20%}", "gate", Gate(5, 0.2)),
    ("gate: {change: 300%}", "gate", Gate(change=3.0)),
    ("gate: {change: 1}", "gate", Gate(change=1.0)),
    ("gate: {check: 'of_us.checks:plausible'}", "gate", Gate(check="of_us.checks:plausible")),
    ("advanced: {presence_error: 1e-5, scalar_error: 1%}", "advanced", Advanced(1e-5, 0.01)),
    ("advanced: {max_vocabulary: 10}", "advanced", Advanced(max_vocabulary=10)),
]


@pytest.mark.parametrize(("text", "name", "expected"), GIVEN, ids=[text for text, *_ in GIVEN])
def test_an_option_is_read_as_yaml_spells_it_and_again_from_a_dump(text, name, expected):
    options = SketchOnlineStoreConfig(**yaml.safe_load(text))
    assert getattr(options, name) == expected
    assert SketchOnlineStoreConfig(**options.model_dump()) == options
    dumped = options.model_dump(mode="json", exclude={"storage_options"})
    assert SketchOnlineStoreConfig(**dumped) == options


def test_every_option_of_the_table_is_one_of_the_configuration():
    assert {name for _, name, _ in GIVEN} == set(names_of(STORE))
    fields = SketchOnlineStoreConfig.model_fields
    assert list(fields) == ["type", *names_of(STORE)]
    empty = SketchOnlineStoreConfig()
    for setting in SETTINGS:
        if STORE in setting.scopes:
            assert getattr(empty, setting.name) == setting.default, setting.name


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{error_rates: 0.1}", "no option 'error_rates'; options, nearest first: target, "),
        ("{min_row: 0}", "no option 'min_row'; options, nearest first: compaction, "),
        ("{targets: auto}", "no option 'targets'; options, nearest first: target, "),
        ("{structures: sets, pth: x}", "nearest first: structure, .*'pth'; options, nearest first: path, "),
        ("{path: ''}", "path: it must be a text"),
        ("{path: 'gcs://bucket/x'}", "path: gcs:// is not supported; use .*gs://"),
        ("{path: 'http://bucket/x'}", "http://"),
        ("{path: 'data/${STORE}'}", "path: the environment variable STORE is not set"),
        ("{storage_options: {key: '${KEY}'}}", "environment variable KEY is not set"),
        ("{backing_store: {store: {type: redis, p: '${P}'}}}", "environment variable P is not set"),
        ("{storage_options: 5}", "storage_options: it must be a mapping"),
        ("{read_only: maybe}", "read_only: it must be true or false"),
        ("{target: 0.1}", "target: a target is auto, or such as"),
        ("{target: error 0.9}", "target: an error rate must be between"),
        ("{target: error lots}", "'lots' is not a number"),
        ("{target: noise 0}", "target: .* above 0"),
        ("{target: [noise, 1]}", "target: a target is"),
        ("{target: null}", "target: a target is"),
        ("{target: 470XB}", "target: a target is"),
        ("{structure: set}", "structure: it must be one of sets, "),
        ("{vocabulary: {top: 0}}", "vocabulary: it must be a whole number of at least 1"),
        ("{vocabulary: {top: 5, file: x}}", "vocabulary: it must be {top: COUNT}"),
        ("{vocabulary: 5}", "vocabulary: it must be {top: COUNT}"),
        ("{default_codec: sketch}", "default_codec: it must be one of "),
        ("{ttl: {expires: true}}", "ttl: it has no part 'expires'; parts: expire, keep"),
        ("{ttl: {keep: a while}}", "ttl: keep: a duration is 0, or"),
        ("{ttl: 7d}", "ttl: it must be a mapping, such as {expire: ...}"),
        ("{compaction: never}", "compaction: it must be auto or job or a mapping, such as {share: ...}"),
        ("{backing_store: {type: redis}}", "backing_store: it has no part 'type'; parts: "),
        ("{backing_store: {store: {path: x}}}", "needs the type of another online store"),
        ("{backing_store: {store: {type: sketch}}}", "needs the type of another online store"),
        ("{backing_store: {owned: true}}", "backing_store: it needs the part 'store'"),
        ("{shards: 3}", "power of two"),
        ("{shards: 8192}", "power of two"),
        ("{shards: {serve: []}}", "shards: serve: it must name at least one shard"),
        ("{shards: {serve: [-1]}}", "shards: serve: it must be a whole number"),
        ("{refresh: 1}", "refresh: interval: a duration is 0, or"),
        ("{refresh: -1s}", "refresh: interval: a duration is 0, or"),
        ("{refresh: {max_staleness: 0}}", "max_staleness: it must be longer than 0"),
        ("{gate: {change: 0}}", "gate: change: it must be a number above 0"),
        ("{gate: {change: 20}}", "gate: change: a share above 1 is written as a percentage: 20% or 2000%"),
        ("{compaction: {share: 25}}", "compaction: share: a share above 1 .*: 25% or 2500%"),
        ("{gate: {entities: 0}}", "gate: entities: it must be a whole number of at least 1"),
        ("{gate: {check: plausible}}", "gate: check: it must be a module and a function"),
        ("{gate: {change: 20%, checks: x}}", "gate: it has no part 'checks'; parts: check, "),
        ("{compaction: {share: 0}}", "compaction: share: it must be a number above 0"),
        ("{compaction: {min_rows: 1.5}}", "compaction: min_rows: it must be a whole number"),
        ("{advanced: {presence_error: 0}}", "advanced: presence_error: an error rate"),
        ("{advanced: {max_vocabulary: 0}}", "advanced: max_vocabulary: it must be a whole"),
    ],
)
def test_an_option_that_cannot_work_is_refused(text, words):
    with pytest.raises(ValidationError, match=words):
        SketchOnlineStoreConfig(**yaml.safe_load(text))


# -- tags ----------------------------------------------------------------------------------------------


def test_options_are_where_a_view_begins():
    view = view_of(
        Field(name="a", dtype=Set(String)),
        Field(name="b", dtype=String),
        Field(name="c", dtype=Array(String), tags={"sketch.codec": "exact"}),
    )
    settings = resolve(OPTIONS, view)
    assert (settings.view, settings.presence_error_rate, settings.ttl_microseconds) == ("history", 1e-5, None)
    assert [codec.name for codec in settings.codecs] == [MEMBERSHIP, CATEGORICAL, EXACT]
    assert settings.budget.targets["a"] == Goal(ERROR_RATE, 0.01, AUTO)
    assert settings.budget.targets["b"] == 1e-6
    assert (settings.budget.cuts, settings.num_shards, settings.semantics) == ({}, 1, "replace")
    options = SketchOnlineStoreConfig(structure="weighted_bloom", vocabulary={"top": 5}, shards=4)
    settings = resolve(options, view)
    assert settings.features["a"].target == Goal(NOISE_RATIO, 0.1, "weighted_bloom")
    assert (settings.budget.cuts, settings.num_shards) == ({"a": Cut(top=5)}, 4)


@pytest.mark.parametrize(
    ("tags", "view_tags", "target"),
    [
        ({}, {}, Goal(ERROR_RATE, 0.01, AUTO)),
        ({"target": "auto"}, {}, Goal(NOISE_RATIO, 0.1, AUTO)),
        ({}, {"target": "auto"}, Goal(NOISE_RATIO, 0.1, AUTO)),
        ({"target": "error 0.2"}, {"target": "auto"}, Goal(ERROR_RATE, 0.2, AUTO)),
        ({"target": "error 20%"}, {}, Goal(ERROR_RATE, 0.2, AUTO)),
        ({"target": "noise 1e3"}, {"target": "1MB"}, Goal(NOISE_RATIO, 1000.0, AUTO)),
        ({"target": "470MB"}, {}, Goal(MEMORY, 470e6, AUTO)),
        ({"structure": "sets"}, {}, Goal(ERROR_RATE, 0.01, "sets")),
        ({"structure": "sets"}, {"structure": "bloom"}, Goal(ERROR_RATE, 0.01, "sets")),
        ({}, {"structure": "learned_bloom"}, Goal(ERROR_RATE, 0.01, "learned_bloom", 16)),
        ({"structure": "weighted_bloom", "clusters": "4"}, {}, Goal(ERROR_RATE, 0.01, "weighted_bloom", 4)),
    ],
)
def test_what_a_set_is_kept_for(tags, view_tags, target):
    assert only(Set(String), tags, view_tags).target == target


@pytest.mark.parametrize(
    ("tags", "view_tags", "rate"),
    [
        ({}, {}, 1e-6),
        ({}, {"advanced": "{scalar_error: 0.1}"}, 0.1),
        ({"target": "error 20%"}, {"advanced": "{scalar_error: 0.1}"}, 0.2),
    ],
)
def test_how_often_a_scalar_is_wrong(tags, view_tags, rate):
    assert only(String, tags, view_tags).target == rate


def test_a_tag_of_a_view_gives_parts_and_leaves_the_others():
    options = SketchOnlineStoreConfig(advanced={"scalar_error": 1e-3, "max_vocabulary": 9}, shards=4)
    tags = {"sketch.advanced": "{max_vocabulary: 7, presence_error: 25%}", "sketch.shards": "8"}
    field = Field(name="x", dtype=String, tags={"sketch.codec": "categorical"})
    settings = resolve(options, view_of(field, tags=tags))
    (feature,) = settings.features.values()
    assert (feature.target, feature.max_vocabulary, settings.presence_error_rate) == (1e-3, 7, 0.25)
    assert settings.num_shards == 8


def test_tags_of_others_are_left_alone():
    field = Field(name="x", dtype=String, tags={"owner": "me", "sketchy": "1"})
    assert resolve(OPTIONS, view_of(field, tags={"team": "x"})).features["x"].target == 1e-6


@pytest.mark.parametrize(
    ("dtype", "tags", "words"),
    [
        (
            String,
            {"eror_rate": "0.1"},
            "'x' of view 'history' has the unknown tag 'sketch.eror_rate'; tags of a feature, nearest first:",
        ),
        (Set(String), {"targets": "auto"}, "tags of a feature, nearest first: sketch.target, "),
        (String, {"shards": "2"}, "has the unknown tag 'sketch.shards'"),
        (Set(String), {"target": "error 0.9"}, "target `error 0.9`: an error rate must be between"),
        (Set(String), {"target": "0.1"}, "a target is auto, or such as"),
        (Set(String), {"structure": "uniform"}, "it must be one of "),
        (Set(String), {"clusters": "1"}, "from 2 to 256"),
        (Set(String), {"clusters": "4"}, "no effect on structure 'auto'"),
        (
            Set(String),
            {"clusters": "4", "structure": "weighted_bloom", "target": "1MB"},
            "with clusters cannot be sized",
        ),
        (
            Set(String),
            {"target": "error 1%", "structure": "sets"},
            "'x' of view 'history' has sketch.target, which has no effect on structure 'sets'",
        ),
        (Set(String), {"target": "error"}, "a target is auto, or such as"),
        (Set(String), {"vocabulary": "{bottom: 5}"}, "{top: COUNT}"),
        (Set(String), {"vocabulary": "{top: }"}, "whole number"),
        (Set(String), {"vocabulary": "[a"}, "it is not YAML"),
        (String, {"target": "noise 0.1"}, "is not an Array or Set"),
        (String, {"structure": "sets"}, "no effect: sketch.structure"),
        (Array(String), {"codec": "exact", "target": "1MB"}, "no effect: sketch.target"),
        (Float64, {"codec": "exact", "round": "9 bins"}, "no effect: sketch.round"),
        (Float64, {"round": "many bins"}, "a step above 0, such as 0.01, or"),
        (Float64, {"round": "0"}, "a step above 0"),
        (Float64, {"round": "nan"}, "a step above 0"),
        (Float64, {"round": "0 bins"}, "between 1 and 65536"),
        (Int64, {"round": "2.5"}, "step must be a whole number"),
        (Set(String), {"round": "8 bins"}, "does not take; set the tag sketch.codec to one of"),
        (Float64, {"codec": "membership"}, "does not take"),
        (String, {"codec": "precise"}, "it must be one of "),
        (String, {"codec": "backing"}, "names no backing_store"),
        (Array(String), {"list": "{limit: 5}"}, "no effect: sketch.list"),
        (Array(String), {"codec": "list", "list": "{resolution: 4e6d}"}, "to 3652058d"),
        (Array(String), {"codec": "list", "list": "{resolution: 1.5e-3ms}"}, "whole micro"),
        (Array(String), {"codec": "counts", "target": "noise 1"}, "whole number below"),
        (Array(String), {"codec": "counts", "target": "error 0.5"}, "whole number below"),
        (Array(String), {"codec": "counts", "target": "error 1e18"}, "whole number below"),
        (Array(String), {"codec": "counts", "target": "error 60%"}, "at most 50%"),
        (Array(String), {"of": "viewed"}, "needs Array(UnixTimestamp)"),
        (Array(Int64), {"of": "viewed", "codec": "exact"}, "remove one of them"),
        (Float64, {"codec": "score"}, "needs the tag sketch.score"),
        (Float64, {"codec": "score", "score": "{of: [a, a]}"}, "each once"),
        (Float64, {"codec": "score", "score": "{bits: 17}"}, "from 1 to 16"),
        (String, {"score": "{of: [a], weights: x}"}, "no effect: sketch.score"),
        (String, {"target": "${RATE}"}, "environment variable RATE is not set"),
    ],
)
def test_a_tag_that_cannot_work_or_has_no_effect_is_refused(dtype, tags, words):
    message = refused(dtype, tags)
    assert words in message
    assert "Paste" not in message


@pytest.mark.parametrize(
    ("dtype", "tags", "view_tags", "words"),
    [
        (String, {}, {"shrads": "2"}, "tags of a view, nearest first: sketch.shards, "),
        (String, {}, {"codec": "exact"}, "has the unknown tag 'sketch.codec'"),
        (String, {}, {"ttl": "{expire: true}"}, "sketch.ttl='{expire: true}': it has no part 'expire'"),
        (String, {}, {"shards": "{serve: [0]}"}, "it has no part 'serve'"),
        (Set(String), {}, {"target": "noise 0"}, "sketch.target='noise 0'"),
        (Set(String), {"target": "noise 1"}, {"structure": "sets"}, "no effect on structure"),
        (String, {}, {"target": "noise 0.1"}, "no effect on any of its features: sketch.target"),
        (Set(String), {}, {"clusters": "4"}, "no effect on any of its features: sketch.clusters"),
        (
            Set(String),
            {"structure": "sets"},
            {"target": "noise 1"},
            "no effect on any of its features: sketch.target",
        ),
        (Json, {}, {"advanced": "{max_vocabulary: 9}"}, "features: sketch.advanced={max_vocabulary}"),
        (Array(String), {}, {"advanced": "{max_vocabulary: many}"}, "whole number"),
    ],
)
def test_a_tag_of_a_view_that_cannot_work_or_has_no_effect_is_refused(dtype, tags, view_tags, words):
    assert words in refused(dtype, tags, view_tags)


def test_a_refusal_names_all_that_is_wrong():
    view = view_of(
        Field(name="a", dtype=Set(String), tags={"sketch.targets": "auto", "sketch.structure": "set"}),
        Field(name="b", dtype=Set(String), tags={"sketch.vocabulary": "{file: nowhere.json}"}),
        Field(name="c", dtype=Float64, tags={"sketch.codec": "membership"}),
        tags={"sketch.shard": "2"},
    )
    with pytest.raises(SettingsError) as caught:
        resolve(OPTIONS, view)
    first, *others = str(caught.value).splitlines()
    assert first == "5 settings must change:"
    for word, line in zip(
        ("'sketch.shard'", "'sketch.targets'", "'set'", "'c'", "nowhere.json"), others, strict=True
    ):
        assert word in line


def test_every_tag_of_the_table_is_taken():
    tags = {
        "target": "noise 0.5",
        "structure": "learned_bloom",
        "clusters": "4",
        "vocabulary": "{top: 9}",
        "default_codec": "auto",
        "ttl": "{keep: 1d}",
        "rows": "replace",
        "shards": "2",
        "gate": "{change: 20%}",
        "advanced": "{scalar_error: 1%}",
    }
    assert set(tags) == set(names_of(VIEW))
    view = view_of(
        Field(name="a", dtype=Set(String)),
        Field(name="b", dtype=Float64, tags={"sketch.round": "0.01"}),
        Field(name="c", dtype=Array(Int64), tags={"sketch.of": "d"}),
        Field(name="d", dtype=Array(String), tags={"sketch.codec": "counts", "sketch.target": "error 10%"}),
        tags=tagged(tags),
    )
    settings = resolve(OPTIONS, view)
    assert settings.gate == Gate(change=0.2)
    assert settings.features["a"].target == Goal(NOISE_RATIO, 0.5, "learned_bloom", 4)
    assert settings.features["d"].codec.counting.relative == 0.1
    assert settings.features["d"].codec.counting.feature == "c"
    assert settings.features["b"].codec.binning.step == 0.01
    timed = view_of(
        Field(
            name="a",
            dtype=Array(String),
            tags={"sketch.codec": "list", "sketch.list": "{resolution: 1min, limit: 3}"},
        ),
        Field(name="b", dtype=Array(UnixTimestamp), tags={"sketch.of": "a"}),
        ttl=timedelta(days=1),
    )
    listed, times = resolve(OPTIONS, timed).codecs
    assert (listed.listing.resolution_microseconds, listed.listing.limit) == (60_000_000, 3)
    assert times.times_of == "a"


# -- types ---------------------------------------------------------------------------------------------


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
    kept = only(dtype)
    assert (kept.codec.name, kept.may_be_column, kept.by_type) == (codec, codec == CATEGORICAL, True)
    exactly = only(dtype, options=SketchOnlineStoreConfig(default_codec="exact"))
    assert exactly.codec.name == (MEMBERSHIP if kept.codec.is_set else EXACT)


@pytest.mark.parametrize(
    ("dtype", "tags", "codec"),
    [
        (Array(Float64), {"target": "error 0.1"}, MEMBERSHIP),
        (Float64, {"target": "error 0.1"}, CATEGORICAL),
        (Float64, {"round": "9 bins"}, "binned"),
        (Float64, {"codec": "binned"}, "binned"),
        (Json, {"codec": "categorical"}, CATEGORICAL),
    ],
    ids=str,
)
def test_a_tag_that_a_sketch_has_asks_for_one(dtype, tags, codec):
    assert only(dtype, tags).codec.name == codec


def test_an_embedding_is_kept_exactly_or_not_at_all():
    def field(tags=None):
        return Field(name="x", dtype=Array(Float32), vector_index=True, tags=tags or {})

    assert resolve(OPTIONS, view_of(field())).features["x"].codec.is_exact
    with pytest.raises(SettingsError, match=r"embedding.*sketch\.codec"):
        resolve(OPTIONS, view_of(field({"sketch.codec": "membership"})))


BACKED = SketchOnlineStoreConfig(backing_store={"store": {"type": "redis"}})


@pytest.mark.parametrize(
    ("dtype", "tags", "codec"),
    [
        (Json, {}, "backing"),
        (Map, {}, "backing"),
        (Array(Float32), {}, "backing"),
        (Array(Float32), {"codec": "exact"}, EXACT),
        (Float64, {}, EXACT),
        (Set(String), {}, MEMBERSHIP),
        (String, {"codec": "backing"}, "backing"),
    ],
    ids=str,
)
def test_what_a_backing_store_keeps(dtype, tags, codec):
    assert only(dtype, tags, options=BACKED).codec.name == codec


def test_a_type_that_feast_cannot_carry_is_refused():
    assert "feature 'x' has type" in refused(Invalid, {"codec": CATEGORICAL})


@pytest.mark.parametrize(
    "name", [*OWN_COLUMNS, ENTITYLESS_JOIN_KEY, "__Entity_Key", "__NULLS", removed_name("viewed")]
)
def test_a_name_of_the_row_log_is_refused_in_any_case_and_as_a_join_key(name):
    # Feast itself refuses most of these names, so the view is a stand-in.
    named = [Field(name=name, dtype=String)]
    stand_ins = [{"features": named}, {"features": [], "entities": ["user"], "entity_columns": named}]
    for parts in stand_ins[: 1 if name == ENTITYLESS_JOIN_KEY else 2]:  # Feast names such a join key so
        with pytest.raises(UnsupportedFeatureError, match="row log reserves for itself"):
            resolve(OPTIONS, SimpleNamespace(name="history", tags={}, ttl=None, **parts))


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
    assert kept({"sketch.ttl": "{keep: 12h}"}) == 1.5 * day
    assert kept(ttl=timedelta(0)) is None
    assert kept({"sketch.ttl": "{keep: 999999999d}"}) is kept(ttl=timedelta.max) is None


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("7d", timedelta(7)),
        (" 1.5 h ", timedelta(minutes=90)),
        ("90min", timedelta(minutes=90)),
        ("30 s", timedelta(seconds=30)),
        ("250ms", timedelta(milliseconds=250)),
        ("1e-3s", timedelta(milliseconds=1)),
        ("0", timedelta(0)),
        (0, timedelta(0)),
        (timedelta(3), timedelta(3)),
    ],
)
def test_durations(text, wanted):
    assert values.duration(text) == wanted
    assert values.duration(values.duration_text(wanted)) == wanted


def test_durations_are_written_in_the_largest_unit_that_divides_them():
    texts = {"0": 0, "1s": 1, "90s": 90, "1h": 3600, "7d": 7 * 86_400, "500ms": 0.5, "0.000250s": 0.00025}
    assert [values.duration_text(timedelta(seconds=number)) for number in texts.values()] == list(texts)


@pytest.mark.parametrize("text", ["7", 7, "d", "-1d", "7 weeks", "", None, "1e999d", timedelta(-1), "nan d"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ValueError, match="duration"):
        values.duration(text)


@pytest.mark.parametrize(
    ("ttl", "microseconds"),
    [
        (None, None),
        (timedelta(0), None),
        (timedelta(microseconds=1), 1),
        (timedelta(days=1), 86_400_000_000),
        (timedelta(days=3_000_000), 259_200_000_000_000_000),
        (timedelta.max, None),
    ],
)
def test_time_to_live(ttl, microseconds):
    settings = resolve(OPTIONS, view_of(Field(name="x", dtype=String), ttl=ttl))
    assert settings.ttl_microseconds == settings.budget.ttl_microseconds == microseconds


def test_only_a_list_makes_rows_expire_by_itself():
    def expires(*fields, **tags):
        view = view_of(*fields, tags=tags, ttl=timedelta(days=1))
        return resolve(SketchOnlineStoreConfig(), view).ttl_microseconds is not None

    def texts(name, **tags):
        return Field(name=name, dtype=Array(String), tags=tagged(tags))

    counts = texts("v", codec="counts"), Field(name="n", dtype=Array(Int64), tags={"sketch.of": "v"})
    append = {"sketch.rows": "append"}
    assert expires(texts("items", codec="list"))
    assert not expires(*counts, texts("ids", ids_of="v"), **append)
    assert not expires(*counts, texts("ids", ids_of="v", codec="list"), **append)


def cut_of(dtype, text, folder=None):
    """What is kept of a feature ``x``."""
    view = view_of(Field(name="x", dtype=dtype, tags={"sketch.vocabulary": text}))
    return resolve(OPTIONS, view, folder).budget.cuts["x"]


def test_values_are_taken_as_they_are_stored(tmp_path):
    assert cut_of(Set(String), "[b, a, b, null]").values.to_pylist() == [b"b", b"a"]
    assert cut_of(Array(Int64), "[3, -1]").values.to_pylist() == [3, -1]
    assert cut_of(Set(String), "{top: 3}") == Cut(top=3)
    for encoding in ("utf-8", "utf-8-sig"):  # the second as editors of Windows write it
        (tmp_path / "values.json").write_text('["é", "x"]', encoding)
        for path in ("values.json", str(tmp_path / "values.json")):
            kept = cut_of(Set(String), f"{{file: {path}}}", tmp_path)
            assert kept.values.to_pylist() == ["é".encode(), b"x"]


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
        (Set(Uuid), "[a]"),
        (Array(TimeUuid), "[a]"),
        (Set(Decimal), "[a]"),
        (Array(Json), "[a]"),
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
