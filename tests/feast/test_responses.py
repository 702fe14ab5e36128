"""Responses of `get_online_features` against those of Feast's own way through `online_read`."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from feast import Entity, FeatureService, FeatureStore, ValueType
from feast.errors import FeatureServiceNotFoundException, FeatureViewNotFoundException
from feast.infra.online_stores.online_store import OnlineStore
from feast.protos.feast.types.Value_pb2 import Int64Set, StringList, Value
from feast.types import Array, Int64, Set, String

from feast_sketch_store import SketchOnlineStore, SketchStoreError
from feast_sketch_store.adapter import responses
from feast_sketch_store.adapter.plans import Keys
from tests.helpers.keys import entity_key
from tests.helpers.repository import USER, make_config, make_view, read_users

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
SHOP = Entity(name="shop", join_keys=["shop_id"], value_type=ValueType.STRING)
KEYS = {"user_id": Int64, "shop_id": String}


def view_of(name, entities, **features):
    keys = {entity.join_key: KEYS[entity.join_key] for entity in entities}
    return make_view(keys | features, f"{name}.parquet", name=name, entities=entities)


VIEWS = [
    view_of("history", [USER], viewed=Set(Int64), country=String, tags=Array(String)),
    view_of("prices", [USER, SHOP], paid=Set(Int64), visits=Int64),
    view_of("shops", [SHOP], sold=Set(Int64)),
]


def rows_of(view, first, count):
    """Rows with all that a feature can be: a value, an empty one, null, or not written."""
    rows = []
    for number in range(first, first + count):
        key = {"user_id": Value(int64_val=number - 2), "shop_id": Value(string_val=f"shop-{number}")}
        values = {
            "viewed": Value(int64_set_val=Int64Set(val=range(number % 4))),
            "country": Value(string_val=f"country-{number % 3}") if number % 5 else Value(),
            "tags": Value(string_list_val=StringList(val=["a", "ü" * number][: number % 3])),
            "paid": Value(int64_set_val=Int64Set(val=[-number, 2**62])),
            "visits": Value(int64_val=number),
            "sold": Value(int64_set_val=Int64Set(val=[number])),
        }
        names = [field.name for field in view.features]
        row = {name: values[name] for name in names if number % 7 != 3 or name != "tags"}
        moment = NOON + timedelta(hours=number, microseconds=number)
        rows.append((entity_key(**{name: key[name] for name in sorted(view.join_keys)}), row, moment, None))
    return rows


@pytest.fixture(scope="module", params=["unsealed", "sealed", "both"])
def store(request, tmp_path_factory):
    """A repository that tests only read."""
    tmp_path = tmp_path_factory.mktemp("shop")
    rates = {"target": "error 1e-9", "advanced": {"scalar_error": 1e-9, "presence_error": 1e-9}}
    config = make_config(tmp_path, **rates)
    feature_store = FeatureStore(config=config)
    feature_store.apply([USER, SHOP, *VIEWS])
    online_store = feature_store._get_provider().online_store
    for view in VIEWS:
        online_store.online_write_batch(config, view, rows_of(view, 0, 40), None)
        if request.param != "unsealed":
            online_store.seal(config, view)
        if request.param == "both":
            online_store.online_write_batch(config, view, rows_of(view, 30, 30), None)
    return feature_store


USERS = [5, 3, -2, 5, 1_000, 0, 38, 31, 5, 57, -1]
SHOPS = [f"shop-{user + 2}" for user in USERS]
USER_FEATURES = ["history:viewed", "history:country", "history:tags"]
REQUESTS = {
    "one that is not there": (USER_FEATURES, {"user_id": [1_000]}, {}),
    "none that is there": (USER_FEATURES, {"user_id": [1_000, -7, 1_000]}, {}),
    "all views": (
        [*USER_FEATURES, "prices:visits", "shops:sold"],
        {"shop_id": SHOPS, "user_id": USERS},
        {"full_feature_names": True},
    ),
    "values": (USER_FEATURES, {"user_id": [Value(int64_val=user) for user in USERS]}, {}),
    "users of another type": (USER_FEATURES, {"user_id": ["5", "3"]}, {}),
}


def read_as_feast_does(monkeypatch):
    """Let the store read in Feast's own way."""
    for name in ("_read_features_per_fv", "_read_features_per_fv_async"):
        monkeypatch.setattr(SketchOnlineStore, name, getattr(OnlineStore, name))


def answer(get, request):
    features, entities, options = request
    try:
        return get(features=features, entity_rows=entities, **options).proto
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize("is_async", [False, True])
def test_a_response_is_that_of_feasts_own_way(store, monkeypatch, request_name, is_async):
    def ask():
        get = store.get_online_features
        if is_async:

            def get(**arguments):
                return asyncio.run(store.get_online_features_async(**arguments))

        return answer(get, REQUESTS[request_name])

    ours = ask()
    read_as_feast_does(monkeypatch)
    assert ours == ask()


def test_requests_do_not_take_feasts_way(store, monkeypatch):
    """Or the tests above would compare it with itself."""
    monkeypatch.setattr(SketchOnlineStore, "online_read", None)
    for name in set(REQUESTS) - {"users of another type"}:
        assert not isinstance(answer(store.get_online_features, REQUESTS[name]), tuple), name


@pytest.fixture(scope="module")
def services(store):
    """The same service without precomputed vectors and with them, of which there are none."""

    def made(name, precompute_online):
        return FeatureService(name=name, features=VIEWS, precompute_online=precompute_online)

    store.apply([made("plain", False), made("fast", True)])
    return [store.get_feature_service(name) for name in ("plain", "fast")]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("full_feature_names", [False, True])
@pytest.mark.parametrize("times", [1, 20])
@pytest.mark.parametrize("way", ["prepared", "arrays", "Feast's"])
def test_a_precomputed_service_is_answered_as_its_views(
    store, services, is_async, full_feature_names, times, way, monkeypatch
):
    if way != "prepared":
        monkeypatch.setattr(SketchOnlineStore, "_planned", lambda *arguments: None)
    if way == "Feast's":
        read_as_feast_does(monkeypatch)

    def ask(service):
        entities = {"user_id": USERS * times, "shop_id": SHOPS * times}
        arguments = {"features": service, "entity_rows": entities, "full_feature_names": full_feature_names}
        if is_async:
            return asyncio.run(store.get_online_features_async(**arguments)).proto
        return store.get_online_features(**arguments).proto

    plain, fast = map(ask, services)
    assert fast == plain
    assert len(fast.results) == 2 + sum(len(view.features) for view in VIEWS)


@pytest.mark.parametrize("entities", [{}, {"user_id": []}, {"shop_id": ["a"]}, {"user_id": [None]}])
def test_wrong_requests_fail_as_with_feasts_own_way(store, monkeypatch, entities):
    ours = answer(store.get_online_features, (USER_FEATURES, entities, {}))
    read_as_feast_does(monkeypatch)
    assert ours == answer(store.get_online_features, (USER_FEATURES, entities, {}))


def test_a_request_is_answered_as_its_project_declares_it(store, services):
    """`FeatureStore.set_current_project` changes the project between requests."""
    read = store._get_provider().online_store.get_online_features
    for features in (USER_FEATURES, services[0]):
        for _ in range(2):  # the second request of a configuration has a plan
            of_own = read(store.config, features, {"user_id": [5], "shop_id": ["a"]}, store.registry, "shop")
            assert of_own.to_dict()["country"] == ["country-1"]
        with pytest.raises((FeatureServiceNotFoundException, FeatureViewNotFoundException)):
            read(store.config, features, {"user_id": [5], "shop_id": ["a"]}, store.registry, "other")


def test_what_no_response_can_hold_is_an_error_that_says_so(store, monkeypatch):
    monkeypatch.setattr(responses, "MAX_VECTOR_BYTES", 100)
    assert read_users(store, ["history:country"], [1])["country"] == ["country-0"]
    too_long = r"'country' of 40 entities take more than the 100 bytes.* fewer entities"
    with pytest.raises(SketchStoreError, match=too_long):
        read_users(store, ["history:country"], range(40))


def test_the_keys_of_a_large_request_are_hashed_once_for_all_views(store, monkeypatch):
    history = [VIEWS[0][[name]].with_name(f"of_{name}") for name in ("country", "viewed")]
    service = FeatureService(name="twice", features=[*history, VIEWS[1]])
    store.apply(service)
    entities = {"user_id": list(range(300)), "shop_id": [f"shop-{number}" for number in range(300)]}
    store.get_online_features(service, entities)  # the first request of a configuration has no plan
    calls, hashes = [], Keys.hashes
    monkeypatch.setattr(
        Keys, "hashes", lambda keys, columns: calls.append([*keys._places]) or hashes(keys, columns)
    )
    answer = store.get_online_features(service, entities).to_dict()
    assert answer["country"][:3] == ["country-2", "country-0", "country-1"]
    assert sorted(calls) == [["user_id"], ["user_id", "shop_id"]]
