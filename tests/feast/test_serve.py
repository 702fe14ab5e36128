"""This package's feature server against Feast's own, in one process: answers are the same, byte for byte."""

import asyncio
import base64
import importlib.metadata
import json
import math
import os
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
import warnings
from collections import Counter
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta

import pytest
from feast import Entity, FeatureService, FeatureStore, Field, RequestSource, ValueType, metrics
from feast.feature_server import get_app
from feast.infra.online_stores.online_store import OnlineStore
from feast.infra.registry.base_registry import BaseRegistry
from feast.on_demand_feature_view import on_demand_feature_view
from feast.protos.feast.types.Value_pb2 import Int64Set, StringList, StringSet, Value
from feast.types import Array, Bool, Bytes, Float32, Float64, Int32, Int64, Map, Set, String, UnixTimestamp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packaging.version import Version
from prometheus_client import REGISTRY

from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.serve import app as serve_app
from feast_sketch_store.serve import over_feast
from tests.helpers.asgi import PATH, ask
from tests.helpers.keys import entity_key
from tests.helpers.ports import free_ports
from tests.helpers.processes import PATIENCE_SECONDS, start_command
from tests.helpers.repository import USER, make_config, make_repository, make_view
from tests.helpers.values import elements_of, make_value

pytestmark = pytest.mark.slow

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
NUM_ROWS = 24
FEAST_ANSWERS_NAN = Version(importlib.metadata.version("feast")) >= Version("0.67.dev0")  # before: status 500

SHOP = Entity(name="shop", join_keys=["shop_id"], value_type=ValueType.STRING)
FLOOR = Entity(name="floor", join_keys=["floor_id"], value_type=ValueType.INT32)
KEYS = {"user_id": Int64, "shop_id": String, "floor_id": Int32}
SCALARS = [Bool, Bytes, Float32, Float64, Int32, Int64, String, UnixTimestamp]
EVERY_TYPE = [*SCALARS, *map(Array, SCALARS), *map(Set, SCALARS), Array(Array(Int64))]


def view_of(name, entities, features, **options):
    keys = {entity.join_key: KEYS[entity.join_key] for entity in entities}
    return make_view(
        {**keys, **features}, f"{name}.parquet", name=name, entities=entities, online=True, **options
    )


HISTORY = view_of(
    "history",
    [USER],
    {"viewed": Set(Int64), "tags": Set(String), "country": String, "score": Float64},
    pushed="events",
)
TYPES = view_of("types", [USER], {f"f{n}": dtype for n, dtype in enumerate(EVERY_TYPE)})
PRICES = view_of("prices", [USER, SHOP], {"paid": Int64, "notes": Array(String)})
FLOORS = view_of("floors", [FLOOR], {"level": Int32})
MAPS = view_of("maps", [USER], {"attributes": Map})
EVERYONE = view_of("everyone", [], {"total": Int64})
PLAIN_VIEWS = [HISTORY, TYPES, PRICES, FLOORS]
REQUEST = RequestSource(name="request", schema=[Field(name="amount", dtype=Int64)])


@on_demand_feature_view(
    sources=[HISTORY, REQUEST], schema=[Field(name="twice", dtype=Float64)], mode="python", singleton=False
)
def doubled(inputs):
    return {"twice": [2.0 * (score or 0) for score in inputs["score"]]}


def value_of(dtype, number):
    """A value of a type, one that is easily lost among them; None for one that is not written."""
    if number % 7 == 3:
        return None
    codec = FeatureCodec.for_feature("x", dtype)
    elements = [e for e in elements_of(codec) if not isinstance(e, str | bytes) or len(e) < 200]
    elements = [e for e in elements if not isinstance(e, Value) or e.WhichOneof("val") != "map_val"]
    if not FEAST_ANSWERS_NAN:
        elements = [e for e in elements if not isinstance(e, float) or math.isfinite(e)]
    if number % 5 == 2:
        return Value()
    if codec.is_collection:
        return make_value(codec.value_field, [*elements, *elements][number % 3 : number % 9])
    return make_value(codec.value_field, elements[number % len(elements)])


def key_of(view, number):
    values = {
        "user_id": Value(int64_val=number - 3),
        "shop_id": Value(string_val=f"shöp {number}"),
        "floor_id": Value(int32_val=number - 3),
    }
    return entity_key(**{key: values[key] for key in sorted(view.join_keys) if key in values})


def rows_of(view):
    for number in range(NUM_ROWS):
        named = {
            "viewed": Value(int64_set_val=Int64Set(val=[number, 2**53 + 1, -number])),
            "tags": Value(string_set_val=StringSet(val=[f'"{number}"\\\n\x01ü🛒'])),
            "notes": Value(string_list_val=StringList(val=["b", "a", "b"][: number % 4])),
        }
        values = {f.name: named.get(f.name) or value_of(f.dtype, number) for f in view.features}
        moment = NOON + timedelta(hours=number, microseconds=[0, 1, 1_000, 250_000][number % 4])
        kept = {name: value for name, value in values.items() if value is not None}
        yield key_of(view, number), kept, moment, None


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A repository whose views have sealed and unsealed rows."""
    folder = tmp_path_factory.mktemp("serve")
    config = make_config(folder, refresh="0.05s")
    store = FeatureStore(config=config)
    friends = HISTORY.with_name("friends").with_join_key_map({"user_id": "friend_id"})
    both = [HISTORY[["country", "viewed"]], PRICES]
    services = [
        FeatureService(name="both", features=both),
        FeatureService(name="fast", features=both, precompute_online=True),
        FeatureService(name="friends", features=[friends[["country", "viewed"]], PRICES]),
        FeatureService(name="computed", features=[doubled]),
    ]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "On demand feature view is an experimental feature")
        store.apply([USER, SHOP, FLOOR, *PLAIN_VIEWS, MAPS, EVERYONE, doubled, *services])
    online = store._get_provider().online_store
    for view in PLAIN_VIEWS:
        rows = list(rows_of(view))
        online.online_write_batch(config, view, rows[: NUM_ROWS // 2], None)
        online.seal(config, view)
        online.online_write_batch(config, view, rows[NUM_ROWS // 2 :], None)
    rows = [(key_of(MAPS, 0), {"attributes": value_of(Map, 1)}, NOON, None)]
    online.online_write_batch(config, MAPS, rows, None)
    key = entity_key(__dummy_id=Value(string_val=""))
    online.online_write_batch(config, EVERYONE, [(key, {"total": Value(int64_val=7)}, NOON, None)], None)
    return store


class Apps:
    """Feast's app, and ours over it. ``handed_over`` counts what Feast's app was asked by ours.

    Feast's app reads in Feast's own way through `online_read`, unless ours hands a request over to it.
    """

    def __init__(self, store):
        self.feast = get_app(store)
        self.online = store._get_provider().online_store
        self.handed_over = 0
        self.runner = asyncio.Runner()

        async def counted(*connection):
            self.handed_over += 1
            await self.feast(*connection)

        self.ours = over_feast(store, counted)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.runner.close()

    # What of the store is overridden to answer requests.
    overridden = ("get_online_features_async", "_read_features_per_fv_async")

    @contextmanager
    def feasts_own_way(self):
        """Let Feast's app read in Feast's own way."""
        with pytest.MonkeyPatch.context() as patch:
            for name in self.overridden:
                patch.setattr(self.online, name, getattr(OnlineStore, name).__get__(self.online))
            yield

    def ask(self, app, request, path=PATH, **options):
        return self.runner.run(ask(app, request, path, **options))

    def assert_alike(self, request, **options):
        """Both answer alike: the answer, and whether ours came without Feast's."""
        before = self.handed_over
        with self.feasts_own_way():
            wanted = self.ask(self.feast, request, **options)
        answer = self.ask(self.ours, request, **options)
        assert answer == wanted
        return answer, self.handed_over == before


class AppsWithExpiry(Apps):
    """Feast itself knows no expired rows."""

    overridden = ("get_online_features_async",)


@pytest.fixture(scope="module")
def apps(store):
    with Apps(store) as apps:
        for view in PLAIN_VIEWS:  # blocks of files that no read has checked yet are checked by the first one
            keys = {key: [place_of(key, number) for number in range(NUM_ROWS)] for key in join_keys_of(view)}
            features = [f"{view.name}:{field.name}" for field in view.features]
            apps.ask(apps.ours, {"features": features, "entities": keys})
        yield apps


def join_keys_of(*views):
    return sorted({key for view in views for key in view.join_keys if key in KEYS})


def place_of(key, number):
    return f"shöp {number}" if key == "shop_id" else number - 3


FEATURES = [f"{view.name}:{field.name}" for view in PLAIN_VIEWS for field in view.features]


@st.composite
def plain_requests(draw):
    """Reads of some features or of a service, of entities of which some are absent or there twice."""
    request = {}
    service = draw(st.sampled_from([None, None, None, "both"]))
    if service:
        request["feature_service"], views = service, [HISTORY, PRICES]
    else:
        request["features"] = draw(st.lists(st.sampled_from(FEATURES), min_size=1, max_size=9, unique=True))
        named = {feature.partition(":")[0] for feature in request["features"]}
        views = [view for view in PLAIN_VIEWS if view.name in named]
    for option in ("full_feature_names", "include_feature_view_version_metadata"):
        if draw(st.booleans()):
            request[option] = draw(st.booleans())
    numbers = draw(st.lists(st.integers(0, NUM_ROWS + 2), min_size=1, max_size=12))
    keys = draw(st.permutations(join_keys_of(*views)))
    request["entities"] = {key: [place_of(key, number) for number in numbers] for key in keys}
    return request


common = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@common
@given(request=plain_requests())
def test_a_plain_read_is_answered_alike_and_without_feast(apps, request):
    (status, _, _), is_own = apps.assert_alike(request)
    assert (status, is_own) == (200, True)


ENTITIES = st.one_of(
    st.integers(-3, 30),
    st.sampled_from(
        [None, True, 1.0, 2.5, "1", "shöp 4", "", "\ud800", 2**31, 2**63, -(2**63), [], {}, float("nan")]
    ),
)


@common
@given(
    request=plain_requests(),
    entities=st.dictionaries(
        st.sampled_from(["user_id", "shop_id", "floor_id", "friend_id", "user", "amount"]),
        st.one_of(st.lists(ENTITIES, max_size=3), ENTITIES),
        max_size=3,
    ),
    others=st.dictionaries(
        st.sampled_from(["features", "feature_service", "full_feature_names", "entities", "more"]),
        st.sampled_from(
            [
                *(None, 1, "both", "friends", "computed", "nobody", "history:country", True, "yes", [], {}),
                *(["history:country", "history:age"], ["history"], [1], ["maps:attributes"]),
                *(["history:country", "history:country"], ["past:country"], ["history@v1:country"]),
                ["everyone:total"],
            ]
        ),
        max_size=2,
    ),
)
@pytest.mark.filterwarnings("ignore::UserWarning")  # of Feast, about names of entities
def test_any_other_request_is_answered_alike(apps, request, entities, others):
    apps.assert_alike({**request, "entities": entities or request["entities"], **others})


GOOD = {"features": ["history:country"], "entities": {"user_id": [1]}}
ODD = {
    "no JSON": b"{",
    "nothing": b"",
    "not UTF-8": b'{"a": "\xff"}',
    "a list": [],
    "no entities": {"features": ["history:country"]},
    "empty entities": {**GOOD, "entities": {}},
    "no entity": {**GOOD, "entities": {"user_id": []}},
    "columns of different lengths": {**GOOD, "entities": {"user_id": [1], "shop_id": ["a", "b"]}},
    "another join key": {**GOOD, "entities": {"shop_id": ["a"]}},
    "unknown feature": {**GOOD, "features": ["history:age"]},
    "unknown view": {**GOOD, "features": ["nothing:age"]},
    "two features of one name": {**GOOD, "features": ["history:country", "history:country"]},
    "unknown service": {**GOOD, "feature_service": "nobody"},
    "half a surrogate pair": {
        "features": ["prices:paid"],
        "entities": {"shop_id": ["\ud800"], "user_id": [1]},
    },
    "deep": b'{"features": ' + b"[" * 2_000 + b"]" * 2_000 + b', "entities": {"user_id": [1]}}',
    "a number too large": {**GOOD, "entities": {"user_id": [2**63]}},
    "an on-demand view": {**GOOD, "feature_service": "computed", "entities": {"user_id": [1], "amount": [2]}},
    "a view with maps": {**GOOD, "features": ["maps:attributes"], "entities": {"user_id": [-3]}},
    "a view without entities": {**GOOD, "features": ["everyone:total"]},
    "several types of entities": {**GOOD, "entities": {"user_id": [1, "1"]}},
}


@pytest.mark.parametrize("case", ODD)
def test_an_odd_request_goes_to_feast(apps, case):
    _, is_own = apps.assert_alike(ODD[case])
    assert not is_own


@pytest.mark.parametrize(
    "options",
    [
        {"kind": None},
        {"kind": b"text/plain"},
        {"method": "GET"},
        {"path": "/health", "method": "GET"},
        {"path": PATH + "/"},
        {"path": "/openapi.json", "method": "GET"},
        {"path": "/push"},
    ],
    ids=str,
)
def test_other_paths_methods_and_content_types_go_to_feast(apps, options):
    _, is_own = apps.assert_alike(GOOD, **options)
    assert not is_own


@pytest.mark.parametrize("options", [{"kind": b"application/json; charset=utf-8"}, {"chunks": 3}], ids=str)
def test_content_types_with_parameters_and_bodies_in_parts_are_answered(apps, options):
    _, is_own = apps.assert_alike(GOOD, **options)
    assert is_own


def test_views_under_other_names_and_join_keys(apps):
    entities = {"user_id": [1, 2], "friend_id": [3, 1], "shop_id": ["shöp 4", "shöp 5"]}
    for full in (False, True):
        request = {"feature_service": "friends", "entities": entities, "full_feature_names": full}
        (status, _, body), is_own = apps.assert_alike(request)
        assert (status, is_own) == (200, True), body
        assert ("friends__country" in body.decode()) == full


def test_a_precomputed_service_is_answered_as_its_views(apps):
    numbers = [*range(NUM_ROWS + 2), 3]
    entities = {key: [place_of(key, number) for number in numbers] for key in ("user_id", "shop_id")}
    before = apps.handed_over
    answers = [
        apps.ask(app, {"feature_service": service, "entities": entities})
        for app in (apps.ours, apps.feast)
        for service in ("both", "fast")
    ]
    assert answers[0][0] == 200
    assert answers == answers[:1] * 4
    assert apps.handed_over == before


def test_many_entities(apps):
    users = [number % 40 - 5 for number in range(2_000)]
    _, is_own = apps.assert_alike({"features": FEATURES[:4], "entities": {"user_id": users}})
    assert is_own


def test_requests_at_the_same_time(apps):
    requests = [{**GOOD, "entities": {"user_id": [number % 30, number % 7]}} for number in range(40)]

    async def all_of(app):
        return await asyncio.gather(*(ask(app, request) for request in requests))

    assert apps.runner.run(all_of(apps.ours)) == apps.runner.run(all_of(apps.feast))


def test_a_client_that_leaves_gets_no_answer(apps):
    sent = []

    async def receive():
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "path": PATH, "method": "POST", "headers": headers, "query_string": b""}

    async def feast(scope, receive, send):
        first, second = await receive(), await receive()
        sent.append((first["body"], second["type"]))

    async def serve():
        await serve_app.FeatureServer(None, feast)(scope, receive, send)

    apps.runner.run(serve())
    assert sent == [(b"", "http.disconnect")]


def test_writes_and_seals_are_seen(apps, store):
    """A write through the server is in the next answer; so is a seal, and Feast's app says the same."""
    online, config = store._get_provider().online_store, store.config
    for number, country in enumerate(["FR", "DE", "IT"]):
        frame = {"user_id": [900], "country": [country], "score": [0.5], "event": [str(NOON)]}
        frame |= {"viewed": [[1]], "tags": [["x"]]}
        status, _, text = apps.ask(
            apps.ours, {"push_source_name": "events", "df": frame, "to": "online"}, path="/push"
        )
        assert status == 200, text
        if number == 1:
            assert online.seal(config, store.get_feature_view("history"))
        (_, _, body), _ = apps.assert_alike({**GOOD, "entities": {"user_id": [900]}})
        assert json.loads(body)["results"][1]["values"] == [country]


def test_a_changed_registry_changes_the_answers(tmp_path):
    config = make_config(tmp_path)
    store = FeatureStore(config=config)
    small, large = (
        view_of("history", [USER], {"country": String, **more}) for more in ({}, {"visits": Int64})
    )
    service = FeatureService(name="all", features=[small])
    store.apply([USER, small, service])
    values = {"country": Value(string_val="FR"), "visits": Value(int64_val=7)}
    online = store._get_provider().online_store
    online.online_write_batch(config, large, [(entity_key(user_id=1), values, NOON, None)], None)
    with Apps(store) as apps:
        by_name = {"features": ["history:visits"], "entities": {"user_id": [1]}}
        by_service = {"feature_service": "all", "entities": {"user_id": [1]}}
        assert apps.assert_alike(by_name)[0][0] != 200
        assert len(json.loads(apps.assert_alike(by_service)[0][2])["results"]) == 2

        FeatureStore(config=config).apply([large, FeatureService(name="all", features=[large])])
        store.refresh_registry()
        (_, _, body), is_own = apps.assert_alike(by_name)
        assert json.loads(body)["results"][1]["values"] == [7]
        assert is_own
        (_, _, body), is_own = apps.assert_alike(by_service)
        assert len(json.loads(body)["results"]) == 3
        assert is_own

        store.registry.delete_feature_service("all", store.project)
        assert apps.assert_alike(by_service)[0][0] == 404


def test_expired_rows_are_told_as_feast_does(tmp_path):
    config = make_config(tmp_path, ttl={"expire": True})
    store = FeatureStore(config=config)
    view = view_of("history", [USER], {"country": String}, ttl=timedelta(hours=1))
    store.apply([USER, view])
    online, row = store._get_provider().online_store, {"country": Value(string_val="FR")}
    moments = [datetime.now(UTC) - timedelta(hours=hours) for hours in (0, 2)]
    rows = [(entity_key(user_id=n), row, moment, None) for n, moment in enumerate(moments)]
    online.online_write_batch(config, view, rows, None)
    with AppsWithExpiry(store) as apps:
        for users in ([0], [1], [0, 1]):
            (_, _, body), is_own = apps.assert_alike({**GOOD, "entities": {"user_id": users}})
            assert is_own
            wanted = ["OUTSIDE_MAX_AGE" if user else "PRESENT" for user in users]
            assert json.loads(body)["results"][1]["statuses"] == wanted


@common
@given(request=plain_requests())
def test_the_store_answers_as_feast_does_through_it(apps, store, request):
    """Without a server: `get_online_features` and its twin, and the types that the response knows."""
    features = request.get("features") or store.get_feature_service(request["feature_service"])
    options = {"full_feature_names": request.get("full_feature_names", False)}
    key = "include_feature_view_version_metadata"
    options[key] = request.get(key, False)
    columns = request["entities"]
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    online, asked = apps.online, []
    store.get_online_features(features, columns)  # the first request of a configuration has no plan
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(online, "_read_features_per_fv", OnlineStore._read_features_per_fv.__get__(online))
        get = OnlineStore.get_online_features.__get__(online)
        arguments = {"registry": store.registry, "project": store.project, "config": store.config}
        wanted = get(features=features, entity_rows=columns, **arguments, **options)
        patch.setattr(OnlineStore, "get_online_features", lambda *_, **__: asked.append("Feast"))
        answers = [store.get_online_features(features, entities, **options) for entities in (columns, rows)]
        answers.append(apps.runner.run(store.get_online_features_async(features, rows, **options)))
    assert not asked
    for answer in answers:
        assert answer.proto == wanted.proto or "nan" in str(wanted.proto)
        assert answer.proto.SerializeToString() == wanted.proto.SerializeToString()
        assert answer._feature_types == wanted._feature_types


# -- metrics -----------------------------------------------------------------------------------


def counted(store):
    """All samples of Feast's metrics but times, and those of reads that this store counts."""
    for view in PLAIN_VIEWS:
        store._get_provider().online_store.view(store.config, view).metrics.flush()
    samples = Counter()
    for family in REGISTRY.collect():
        for sample in family.samples:
            is_time = "_seconds_bucket" in sample.name or sample.name.endswith(("_seconds_sum", "_created"))
            if family.name.startswith("feast_") and family.type != "gauge" and not is_time:
                samples[sample.name, *sorted(sample.labels.items())] += sample.value
    return samples


def test_metrics_count_the_same(apps, store, monkeypatch):
    monkeypatch.setattr(metrics, "_config", metrics.build_metrics_flags())
    requests = [
        {"features": ["history:country", "types:f3"], "entities": {"user_id": [1, 2, 99]}},
        {"feature_service": "both", "entities": {"user_id": [1], "shop_id": ["shöp 4"]}},
        {**GOOD, "features": ["history:age"]},
        b"{",
    ]
    reported = []
    for app, way in ((apps.feast, apps.feasts_own_way()), (apps.ours, nullcontext())):
        before = counted(store)
        with way:
            for request in requests:
                apps.ask(app, request)
        reported.append(counted(store) - before)
    assert reported[0] == reported[1]
    names = {name for name, *_ in reported[0]}
    assert {"feast_feature_server_request_total", "feast_online_features_status_total"} <= names
    assert {"feast_feature_server_request_latency_seconds_count", "feast_sketch_reads_total"} <= names


# -- what is left to Feast's server as a whole --------------------------------------------------


def test_a_repository_of_another_store_is_served_by_feast_alone(tmp_path, caplog):
    feast = object()
    assert over_feast(FeatureStore(config=make_config(tmp_path, type="sqlite")), feast) is feast
    assert "SqliteOnlineStore" in caplog.text


def test_a_registry_that_is_asked_at_each_request_leaves_them_to_feast(tmp_path, caplog, monkeypatch):
    """Feast's remote registry is one; no plan of a request could be kept."""
    feast, store = object(), FeatureStore(config=make_config(tmp_path))
    assert over_feast(store, feast) is not feast
    monkeypatch.setattr(type(store.registry), "is_cache_valid", BaseRegistry.is_cache_valid)
    assert over_feast(store, feast) is feast
    assert "answers all requests: a Registry keeps no copy here" in caplog.text


@contextmanager
def command_over(store, folder, monkeypatch, *options):
    """A real server over a store, as Feast's charts for Kubernetes configure it: its process and log."""
    document = {
        "project": "shop",
        "provider": "local",
        "registry": str(store.config.registry.path),
        "online_store": store.config.online_config,
        "entity_key_serialization_version": 3,
        "feature_server": {"type": "local", "metrics": {"enabled": True, "audit_logging": True}},
    }
    yaml = json.dumps(document).encode()  # which is YAML
    monkeypatch.setenv("FEATURE_STORE_YAML_BASE64", base64.b64encode(yaml).decode())
    path = folder / "server.log"
    with path.open("w") as log:
        process = start_command(
            ["feast-sketch", "--log-level", "info", "serve", *options],
            cwd=folder,
            stdout=log.fileno(),
            stderr=log.fileno(),
        )
        try:
            yield process, path
        finally:
            os.kill(process.pid, signal.SIGTERM)
            process.join(PATIENCE_SECONDS)
    assert process.exitcode == 0


def test_the_command_serves(apps, store, tmp_path, monkeypatch):
    """With two workers."""
    port, metrics_port = free_ports(2)
    options = ["-p", str(port), "-w", "2", "-t", "HTTP", "--metrics-port", str(metrics_port)]
    request = {**GOOD, "entities": {"user_id": [1, 2, 99]}}
    wanted = apps.ask(apps.feast, request)[2]
    with command_over(store, tmp_path, monkeypatch, *options) as (process, log):
        for _ in range(5):
            assert _answer_of(port, request, process) == wanted, log.read_text()
        assert b"feast_feature_server_request_total{" in _metrics(metrics_port)
        for each in (port, metrics_port):  # a socket on all interfaces would take this address, too
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.2", each))
    text = log.read_text()
    assert "Feast's own server answers" not in text
    assert text.count("feast.audit") == 5, "one for each request"


def test_metrics_are_exported_when_a_worker_was_replaced(store, tmp_path, monkeypatch):
    port, metrics_port = free_ports(2)
    options = ["-p", str(port), "--max-requests", "1", "--max-requests-jitter", "0"]
    options += ["--metrics-port", str(metrics_port)]
    with command_over(store, tmp_path, monkeypatch, *options) as (process, log):
        while log.read_text().count("Booting worker") < 2:
            _answer_of(port, GOOD, process)
        assert b"feast_feature_server_request_total{" in _metrics(metrics_port)
    assert "Traceback" not in log.read_text()
    with pytest.raises(ConnectionRefusedError):
        _connect_always(metrics_port)


def _connect_always(port):
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        socket.create_connection(("127.0.0.1", port)).close()


def _metrics(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        return answer.read()


def _answer_of(port, request, process):
    """What a server answers, once it listens."""
    pause, deadline = threading.Event(), time.monotonic() + PATIENCE_SECONDS  # never set: paces the polling
    url, body = f"http://127.0.0.1:{port}{PATH}", json.dumps(request).encode()
    while True:
        try:
            asked = urllib.request.Request(url, body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(asked, timeout=PATIENCE_SECONDS) as answer:
                return answer.read()
        except (urllib.error.URLError, ConnectionError) as error:
            if isinstance(error, urllib.error.HTTPError):
                raise
            assert process.is_alive()
            assert time.monotonic() < deadline
            pause.wait(0.05)


def test_an_app_for_any_asgi_server(tmp_path, monkeypatch):
    monkeypatch.setenv(serve_app.REPOSITORY, str(tmp_path))
    make_repository(tmp_path)
    assert isinstance(serve_app.create_app(), serve_app.FeatureServer)
