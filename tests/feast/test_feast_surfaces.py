"""Every way into the store that Feast's `FeatureStore` has, with SQLite as the control.

The error rates are so low that both stores give the same answers; lists and sets are compared as sets.
"""

import re
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pandas as pd
import pytest
from feast import (
    BatchFeatureView,
    Entity,
    FeatureService,
    FeatureStore,
    FeatureView,
    Field,
    FileSource,
    KafkaSource,
    Project,
    PushSource,
    RequestSource,
    StreamFeatureView,
    ValueType,
)
from feast.data_format import JsonFormat
from feast.data_source import PushMode
from feast.errors import FeatureViewNotFoundException
from feast.labeling import LabelView
from feast.on_demand_feature_view import on_demand_feature_view
from feast.repo_contents import RepoContents
from feast.types import Int64, Set, String

from feast_sketch_store import SketchReader, open_view
from feast_sketch_store.cli.common import views_of
from feast_sketch_store.errors import DamagedFileError, UnsupportedFeatureError
from feast_sketch_store.operations import maintenance
from feast_sketch_store.operations.resharding import reshard
from tests.helpers.repository import SEALED, USER, make_config, make_view, read_users

MAY = [datetime(2026, 5, day, 12, tzinfo=UTC) for day in range(1, 10)]
APRIL = MAY[0] - timedelta(20)

STORES = {
    "sqlite": {"type": "sqlite", "path": "data/online.db"},
    "unsealed": {"type": "sketch"},
    "sealed": {"type": "sketch", **SEALED},
}
EXACT = {"target": "error 1e-9", "advanced": {"scalar_error": 1e-9, "presence_error": 1e-9}}

SHOP = Entity(name="shop", join_keys=["shop_id"], value_type=ValueType.STRING)
VIEWED, COUNTRY = Field(name="viewed", dtype=Set(String)), Field(name="country", dtype=String)
USER_ID, SHOP_ID = Field(name="user_id", dtype=Int64), Field(name="shop_id", dtype=String)

pytestmark = pytest.mark.filterwarnings("ignore:.* (is an|are) experimental feature:RuntimeWarning")


@pytest.fixture
def make_store(tmp_path) -> Callable[..., FeatureStore]:
    """Makes a `FeatureStore` in the test's folder; keywords are options of its registry."""

    def make(kind: str, **registry) -> FeatureStore:
        online_store = STORES[kind] if kind == "sqlite" else {**STORES[kind], **EXACT}
        registry = {"path": str(tmp_path / "data" / "registry.db"), **registry}
        return FeatureStore(config=make_config(tmp_path, registry=registry, **online_store))

    (tmp_path / "data").mkdir()
    return make


@pytest.fixture(params=STORES)
def store(request, make_store) -> FeatureStore:
    return make_store(request.param)


@pytest.fixture
def rows_source(tmp_path) -> Callable[..., FileSource]:
    """Makes a source over a Parquet file of the given rows."""

    def make(rows: pd.DataFrame, name: str = "rows") -> FileSource:
        path = tmp_path / "data" / f"{name}.parquet"
        rows.to_parquet(path)
        return FileSource(
            name=name, path=str(path), timestamp_field="event", created_timestamp_column="created"
        )

    return make


@pytest.fixture
def history(rows_source) -> FeatureView:
    """A view of users 1 to 3, of whom user 3 comes two days later."""
    return history_over(rows_source(three_users()))


def history_over(source, name="history", schema=(USER_ID, VIEWED, COUNTRY), **options) -> FeatureView:
    return make_view(schema, source, name=name, **options)


def frame(moment=MAY[0], **columns) -> pd.DataFrame:
    """Rows of one moment, in the form that Feast takes them."""
    return pd.DataFrame(columns).assign(event=moment, created=moment)


def three_users() -> pd.DataFrame:
    first = frame(MAY[0], user_id=[1, 2], viewed=[["a", "b"], ["b"]], country=["FR", "DE"])
    return pd.concat([first, frame(MAY[2], user_id=[3], viewed=[["c"]], country=["IT"])])


def ask(store, features, *users, **options) -> dict:
    """What `get_online_features` answers about some users."""
    return comparable(read_users(store, features, users, **options))


def comparable(answer: dict) -> dict:
    """An answer with its lists and sets as frozen sets."""
    return {
        name: [frozenset(v) if isinstance(v, (list, set)) else v for v in values]
        for name, values in answer.items()
    }


BOTH = ["history:viewed", "history:country"]
COUNTRIES = ["history:country"]


def both(store, *users) -> list:
    """What each user viewed, and the country."""
    answer = ask(store, BOTH, *users)
    assert answer.pop("user_id") == [*users]
    rows = list(zip(answer.pop("viewed"), answer.pop("country"), strict=True))
    assert answer == {}
    return rows


def countries(store, *users, view="history") -> list:
    return ask(store, [f"{view}:country"], *users)["country"]


class TestApply:
    def test_a_view_that_was_applied_is_empty(self, store, history):
        store.apply([USER, history])
        assert both(store, 1) == [(None, None)]

    def test_applied_again_keeps_its_rows(self, store, history):
        store.apply([USER, history])
        store.write_to_online_store("history", three_users())
        store.apply([USER, history])
        assert countries(store, 1, 2) == ["FR", "DE"]

    def test_removed_and_applied_again_is_empty(self, store, history):
        store.apply([USER, history])
        store.write_to_online_store("history", three_users())
        store.apply([USER], objects_to_delete=[history], partial=False)
        with pytest.raises(FeatureViewNotFoundException):
            countries(store, 1)
        store.apply([USER, history])
        assert countries(store, 1, 2) == [None, None]

    def test_rows_of_a_view_that_the_registry_alone_lost_are_named_where_they_refuse_another(
        self, make_store, history
    ):
        store = make_store("unsealed")
        store.apply([USER, history])
        store.write_to_online_store("history", three_users())
        store.delete_feature_view("history")
        other = history_over(history.batch_source, schema=[USER_ID, Field(name="country", dtype=Int64)])
        with pytest.raises(UnsupportedFeatureError, match="was written as String") as caught:
            store.apply([other])
        (folder,) = re.findall(r"if this one is new, remove (\S+) first", str(caught.value))
        shutil.rmtree(folder)
        store.apply([other])
        assert countries(store, 1) == [None]

    def test_a_feature_that_is_added_is_read_beside_the_old_ones(self, store, rows_source):
        source = rows_source(three_users())
        store.apply([USER, history_over(source, schema=[USER_ID, COUNTRY])])
        store.write_to_online_store("history", three_users()[["user_id", "country", "event", "created"]])
        store.apply([USER, history_over(source)])
        store.write_to_online_store("history", three_users().iloc[:1])
        assert both(store, 1, 2) == [({"a", "b"}, "FR"), (None, "DE")]

    def test_plan_and_apply_diffs(self, store, history):
        """What `feast apply` does with SQLite; with other stores it calls `FeatureStore.apply`."""
        # A plan cannot remove a view's rows: Feast 0.67 knows infrastructure of SQLite and Datastore only.
        sources = [history.batch_source]
        contents = RepoContents([Project(name="shop")], sources, [history], [], [], [], [USER], [], [])
        store._apply_diffs(*store.plan(contents))
        store.write_to_online_store("history", three_users())
        assert countries(store, 1) == ["FR"]
        store._apply_diffs(*store.plan(contents))
        assert countries(store, 1) == ["FR"]


class TestMaterialize:
    def test_materialize_takes_the_rows_of_its_interval(self, store, history):
        store.apply([USER, history])
        store.materialize(APRIL, MAY[1])
        assert both(store, 1, 2, 3) == [({"a", "b"}, "FR"), ({"b"}, "DE"), (None, None)]
        store.materialize(MAY[1], MAY[3], feature_views=["history"])
        assert countries(store, 1, 2, 3) == ["FR", "DE", "IT"]

    @pytest.mark.slow
    def test_materialize_incremental_goes_on_where_it_stopped(self, store, history, rows_source):
        store.apply([USER, history])
        store.materialize(APRIL, MAY[1])
        store.materialize_incremental(MAY[3])
        assert countries(store, 1, 3) == ["FR", "IT"]
        rows_source(frame(MAY[4], user_id=[3, 4], viewed=[["d"], []], country=["ES", "PT"]))
        store.materialize_incremental(MAY[5])
        assert both(store, 1, 3, 4) == [({"a", "b"}, "FR"), ({"d"}, "ES"), (frozenset(), "PT")]

    # Feast 0.67's local engine ignores `disable_event_timestamp`.

    def test_in_batches(self, store, history):
        store.config.materialization_config.online_write_batch_size = 1
        store.apply([USER, history])
        store.materialize(APRIL, MAY[3])
        assert countries(store, 1, 2, 3) == ["FR", "DE", "IT"]

    def test_a_source_without_rows(self, store, history):
        store.apply([USER, history])
        store.materialize(MAY[7], MAY[8])
        assert countries(store, 1) == [None]


class TestWrite:
    @pytest.mark.parametrize("cache", [True, False], ids=["cached registry", "fresh registry"])
    def test_a_data_frame(self, store, history, cache):
        store.apply([USER, history])
        store.write_to_online_store("history", df=three_users(), allow_registry_cache=cache)
        assert both(store, 1, 2, 9) == [({"a", "b"}, "FR"), ({"b"}, "DE"), (None, None)]

    def test_a_dictionary(self, store, history):
        store.apply([USER, history])
        inputs = {"user_id": [1], "viewed": [["a"]], "country": ["FR"], "event": MAY[0], "created": MAY[0]}
        store.write_to_online_store("history", inputs=inputs)
        assert both(store, 1) == [({"a"}, "FR")]

    def test_no_rows(self, store, history):
        store.apply([USER, history])
        with pytest.warns(UserWarning, match="empty dataframe"):
            store.write_to_online_store("history", df=three_users().iloc[:0])
        with pytest.warns(UserWarning, match="empty feature columns"):
            store.write_to_online_store("history", df=frame(user_id=[1], viewed=None, country=None))
        assert countries(store, 1) == [None]

    def test_nulls(self, store, history):
        store.apply([USER, history])
        store.write_to_online_store(
            "history", df=frame(user_id=[1, 2], viewed=[None, ["a"]], country=["FR", None])
        )
        assert both(store, 1, 2) == [(None, "FR"), ({"a"}, None)]

    def test_push_writes_every_view_of_its_source(self, store, rows_source):
        events = PushSource(name="events", batch_source=rows_source(three_users()))
        both = [history_over(events), history_over(events, "countries", schema=[USER_ID, COUNTRY])]
        store.apply([USER, *both])
        store.push("events", three_users(), to=PushMode.ONLINE)
        features = [*BOTH, "countries:country"]
        assert ask(store, features, 1, 9, full_feature_names=True) == {
            "user_id": [1, 9],
            "history__viewed": [{"a", "b"}, None],
            "history__country": ["FR", None],
            "countries__country": ["FR", None],
        }
        store.push("events", frame(MAY[5], user_id=[1], viewed=[["z"]], country=["CH"]))
        store.materialize_incremental(MAY[3])  # brings older rows of user 1 from the batch source
        assert countries(store, 2, 3) == ["DE", "IT"]

    def test_a_label_view_is_pushed_to(self, store, rows_source):
        votes = PushSource(name="votes", batch_source=rows_source(three_users()))
        schema = [USER_ID, COUNTRY, Field(name="labeler", dtype=String)]
        store.apply([USER, LabelView(name="labels", entities=[USER], schema=schema, source=votes)])
        store.push("votes", frame(user_id=[1], country=["FR"], labeler=["ann"]))
        features = ["labels:country", "labels:labeler"]
        assert ask(store, features, 1, 2) == {
            "user_id": [1, 2],
            "country": ["FR", None],
            "labeler": ["ann", None],
        }


class TestAnswers:
    """The forms of a request and of its answer."""

    @pytest.fixture
    def store(self, store, history):
        store.apply([USER, history, FeatureService(name="recommender", features=[history])])
        store.write_to_online_store("history", three_users())
        return store

    def test_entities_as_columns_repeated_and_unknown(self, store):
        response = store.get_online_features(features=COUNTRIES, entity_rows={"user_id": [3, 1, 9, 3]})
        assert response.to_dict() == {"user_id": [3, 1, 9, 3], "country": ["IT", "FR", None, "IT"]}

    def test_full_names_of_features_and_of_a_service(self, store):
        for features in (BOTH, store.get_feature_service("recommender")):
            assert ask(store, features, 1, 9, full_feature_names=True) == {
                "user_id": [1, 9],
                "history__viewed": [{"a", "b"}, None],
                "history__country": ["FR", None],
            }

    def test_statuses_timestamps_and_version_metadata(self, store):
        entities = {"user_id": [1, 3, 9]}
        response = store.get_online_features(COUNTRIES, entities, include_feature_view_version_metadata=True)
        names = list(response.proto.metadata.feature_names.val)
        statuses = response.proto.results[names.index("country")].statuses
        status_type = type(response.proto.results[0]).DESCRIPTOR.file.enum_types_by_name["FieldStatus"]
        assert [status_type.values_by_number[s].name for s in statuses] == ["PRESENT", "PRESENT", "NOT_FOUND"]
        answer = response.to_dict(include_event_timestamps=True)
        assert answer["country__ts"] == [int(MAY[0].timestamp()), int(MAY[2].timestamp()), 0]
        (view,) = response.proto.metadata.feature_view_metadata
        assert (view.name, view.version) == ("history", 0)

    def test_data_frame_and_arrow_table(self, store):
        response = store.get_online_features(BOTH, {"user_id": [1, 9]})
        wanted = {"user_id": [1, 9], "viewed": [{"a", "b"}, None], "country": ["FR", None]}
        data_frame = response.to_df(include_event_timestamps=True)
        assert comparable({n: data_frame[n].tolist() for n in wanted}) == wanted
        assert data_frame["viewed__ts"].tolist() == [int(MAY[0].timestamp()), 0]
        assert comparable(response.to_arrow().to_pydict()) == wanted

    @pytest.mark.parametrize(
        ("features", "entity"),
        [(["history:age"], {"user_id": 1}), (["past:country"], {"user_id": 1}), (COUNTRIES, {"shop_id": 1})],
        ids=["unknown feature", "unknown view", "unknown entity"],
    )
    def test_a_wrong_request_fails_and_the_next_is_answered(self, store, features, entity):
        with pytest.raises((KeyError, FeatureViewNotFoundException)):
            store.get_online_features(features=features, entity_rows=[entity])
        assert countries(store, 1) == ["FR"]


class TestKindsOfViews:
    def test_on_demand_from_a_view_and_the_request(self, store, history):
        page = RequestSource(name="page", schema=[Field(name="article", dtype=String)])

        @on_demand_feature_view(
            sources=[history, page],
            schema=[Field(name="is_new", dtype=Int64), Field(name="greeting", dtype=String)],
            mode="python",
        )
        def novelty(inputs):
            pairs = zip(inputs["article"], inputs["viewed"], strict=True)
            return {
                "is_new": [int(article not in (viewed or ())) for article, viewed in pairs],
                "greeting": [f"hello {country}" for country in inputs["country"]],
            }

        store.apply([USER, history, page, novelty])
        store.write_to_online_store("history", three_users())
        rows = [{"user_id": user, "article": article} for user, article in [(1, "a"), (1, "z"), (9, "a")]]
        features = ["novelty:is_new", "novelty:greeting", "history:country"]
        answer = store.get_online_features(features=features, entity_rows=rows).to_dict()
        assert answer == {
            "user_id": [1, 1, 9],
            "is_new": [0, 1, 1],
            "greeting": ["hello FR", "hello FR", "hello None"],
            "country": ["FR", "FR", None],
        }

    def test_on_demand_in_pandas_mode(self, store, history):
        @on_demand_feature_view(sources=[history], schema=[Field(name="code", dtype=String)], mode="pandas")
        def lower(inputs: pd.DataFrame) -> pd.DataFrame:
            return pd.DataFrame({"code": inputs["country"].str.lower()})

        store.apply([USER, history, lower])
        store.write_to_online_store("history", three_users())
        assert ask(store, ["lower:code"], 1, 2) == {"user_id": [1, 2], "code": ["fr", "de"]}

    @pytest.mark.slow
    @pytest.mark.parametrize("schema", [[], [USER_ID]], ids=["features alone", "with the join key"])
    def test_on_demand_on_write(self, store, history, schema):
        """Feast passes the join key among the features of such a view."""

        @on_demand_feature_view(
            entities=[USER],
            sources=[history],
            schema=[*schema, Field(name="code", dtype=String)],
            mode="python",
            write_to_online_store=True,
        )
        def lower(inputs):
            return {"code": [country.lower() for country in inputs["country"]]}

        store.apply([USER, history, lower])
        store.write_to_online_store("lower", three_users().iloc[:2])
        assert ask(store, ["lower:code"], 1, 2, 9) == {"user_id": [1, 2, 9], "code": ["fr", "de", None]}
        store.materialize(APRIL, MAY[8], ["history", "lower"])
        answer = ask(store, ["lower:code", "history:country"], 3)
        assert answer == {"user_id": [3], "code": ["it"], "country": ["IT"]}

    @pytest.mark.parametrize("kind", ["push", "kafka"])
    def test_a_stream_view_is_written_and_materialized(self, store, rows_source, kind):
        batch = rows_source(three_users())
        if kind == "push":
            stream = PushSource(name="events", batch_source=batch)
        else:
            stream = KafkaSource(
                name="events",
                kafka_bootstrap_servers="localhost:9092",
                topic="events",
                timestamp_field="event",
                batch_source=batch,
                message_format=JsonFormat("user_id integer, country string"),
            )
        view = StreamFeatureView(
            name="history",
            entities=[USER],
            schema=[USER_ID, VIEWED, COUNTRY],
            source=stream,
            timestamp_field="event",
        )
        store.apply([USER, view])
        store.materialize(APRIL, MAY[1])
        row = frame(MAY[4], user_id=[1], viewed=[["z"]], country=["CH"])
        if kind == "push":
            store.push("events", row)
        else:
            store.write_to_online_store("history", row)  # what Feast's stream processors call
        assert both(store, 1, 2, 3) == [({"z"}, "CH"), ({"b"}, "DE"), (None, None)]
        store.materialize_incremental(MAY[3])
        assert countries(store, 1, 2, 3) == ["CH", "DE", "IT"]

    def test_the_registry_has_join_keys_of_a_stream_view_among_its_features(self, store, rows_source):
        view = StreamFeatureView(
            name="history",
            entities=[USER],
            schema=[USER_ID, VIEWED],
            source=PushSource(name="events", batch_source=rows_source(three_users())),
            timestamp_field="event",
            tags={"sketch.rows": "append"},  # no other kinds of features may be in the view
        )
        store.apply([USER, view])
        applied = store.get_stream_feature_view("history")
        store.apply([applied, FeatureService(name="all", features=[applied])])
        store.push("events", frame(MAY[4], user_id=[1], viewed=[["z"]]))
        wanted = {"user_id": [1, 2], "history__user_id": [1, None], "history__viewed": [{"z"}, None]}
        for features in (["history:user_id", "history:viewed"], store.get_feature_service("all")):
            assert ask(store, features, 1, 2, full_feature_names=True) == wanted

    def test_a_batch_view(self, store, rows_source):
        view = BatchFeatureView(
            name="history",
            entities=[USER],
            schema=[USER_ID, VIEWED, COUNTRY],
            source=rows_source(three_users()),
            online=True,
        )
        store.apply([USER, view])
        store.materialize(APRIL, MAY[8])
        assert both(store, 1, 9) == [({"a", "b"}, "FR"), (None, None)]

    # Feast 0.67 reads a view without entities by another key than `write_to_online_store` gives it.
    @pytest.mark.parametrize("is_stream", [False, True])
    def test_a_view_without_entities(self, store, rows_source, is_stream):
        source = rows_source(frame(viewed=[["a", "b"]], country=["FR"]))
        view = history_over(source, entities=[], schema=[VIEWED, COUNTRY])
        if is_stream:  # the registry has the key that Feast makes up among its features
            events = PushSource(name="events", batch_source=source)
            view = StreamFeatureView(
                name="history", entities=[], schema=[VIEWED, COUNTRY], source=events, timestamp_field="event"
            )
        store.apply([view])
        store.materialize(APRIL, MAY[8])
        answer = store.get_online_features(features=BOTH, entity_rows=[{"any": 1}, {"any": 2}]).to_dict()
        assert comparable(answer) == {"viewed": [{"a", "b"}] * 2, "country": ["FR"] * 2}

    @pytest.mark.slow
    def test_a_row_that_is_written_to_a_view_without_entities(self, make_store, rows_source):
        """Feast gives it no join keys, so that SQLite never finds it, and reads by one that it makes up."""
        store = make_store("unsealed")
        rows = frame(country=["FR"])

        def view():  # `feast apply` changes it
            return history_over(rows_source(rows), entities=[], schema=[COUNTRY])

        store.apply([view()])
        store.write_to_online_store("history", frame(country=["DE"]))
        for opened in (store, make_store("unsealed")):
            answer = opened.get_online_features(COUNTRIES, [{"any": 1}]).to_dict()
            assert answer == {"country": ["DE"]}
        opened.apply([view()])
        opened.write_to_online_store("history", frame(MAY[1], country=["IT"]))
        opened.materialize(APRIL, MAY[8])
        assert opened.get_online_features(COUNTRIES, [{"any": 1}]).to_dict() == {"country": ["IT"]}

    def test_a_view_without_entities_beside_another(self, store, rows_source):
        rows = frame(viewed=[["a", "b"]], country=["FR"])
        top = history_over(rows_source(rows, "top"), "top", entities=[], schema=[VIEWED])
        store.apply([USER, history_over(rows_source(three_users())), top])
        store.materialize(APRIL, MAY[8])
        assert ask(store, ["top:viewed", "history:country"], 1, 9) == {
            "user_id": [1, 9],
            "viewed": [{"a", "b"}, {"a", "b"}],
            "country": ["FR", None],
        }

    def test_a_view_with_two_entities(self, store, rows_source):
        rows = frame(user_id=[1, 1, 2], shop_id=["x", "y", "x"], country=["FR", "DE", "IT"])
        schema = [USER_ID, SHOP_ID, COUNTRY]
        store.apply([USER, SHOP, history_over(rows_source(rows), entities=[USER, SHOP], schema=schema)])
        store.materialize(APRIL, MAY[8])
        pairs = [(2, "x"), (1, "y"), (2, "y"), (1, "x")]
        entity_rows = [{"shop_id": shop, "user_id": user} for user, shop in pairs]
        answer = store.get_online_features(features=COUNTRIES, entity_rows=entity_rows).to_dict()
        assert answer["country"] == ["IT", "DE", None, "FR"]

    def test_views_of_different_entities_in_one_request(self, store, rows_source):
        shops = frame(shop_id=["x", "y"], city=["Paris", "Bonn"])
        schema = [SHOP_ID, Field(name="city", dtype=String)]
        shop_view = history_over(rows_source(shops, "shops"), "shops", entities=[SHOP], schema=schema)
        store.apply([USER, SHOP, history_over(rows_source(three_users())), shop_view])
        store.materialize(APRIL, MAY[8])
        answer = store.get_online_features(
            features=["history:country", "shops:city"],
            entity_rows=[{"user_id": 1, "shop_id": "y"}, {"user_id": 9, "shop_id": "x"}],
        ).to_dict()
        assert (answer["country"], answer["city"]) == (["FR", None], ["Bonn", "Paris"])

    def test_a_projection(self, store, history):
        store.apply([USER, history, FeatureService(name="s", features=[history[["country"]]])])
        store.write_to_online_store("history", three_users())
        service = store.get_feature_service("s")
        assert ask(store, service, 1) == {"user_id": [1], "country": ["FR"]}

    def test_one_view_twice_in_a_request_under_other_names_and_keys(self, store, history):
        reader = history.with_name("reader").with_join_key_map({"user_id": "reader_id"})
        author = history[["country"]].with_name("author").with_join_key_map({"user_id": "author_id"})
        store.apply([USER, history, FeatureService(name="pairs", features=[reader, author])])
        store.write_to_online_store("history", three_users())
        answer = store.get_online_features(
            features=store.get_feature_service("pairs"),
            entity_rows=[{"reader_id": 1, "author_id": 2}, {"reader_id": 3, "author_id": 1}],
            full_feature_names=True,
        ).to_dict()
        assert comparable(answer) == {
            "reader_id": [1, 3],
            "author_id": [2, 1],
            "reader__viewed": [{"a", "b"}, {"c"}],
            "reader__country": ["FR", "IT"],
            "author__country": ["DE", "FR"],
        }

    @pytest.mark.slow
    def test_rows_of_a_removed_on_demand_view_are_named_where_they_refuse_another(self, make_store, history):
        """Feast does not tell the store that it was removed."""
        store = make_store("unsealed")
        options = {"name": "computed", "mode": "python", "write_to_online_store": True}
        options |= {"entities": [USER], "sources": [history]}

        @on_demand_feature_view(**options, schema=[Field(name="code", dtype=String)])
        def lower(inputs):
            return {"code": [country.lower() for country in inputs["country"]]}

        @on_demand_feature_view(**options, schema=[Field(name="code", dtype=Int64)])
        def length(inputs):
            return {"code": [len(country) for country in inputs["country"]]}

        store.apply([USER, history, lower])
        store.write_to_online_store("computed", three_users())
        store.apply([], objects_to_delete=[lower], partial=False)
        with pytest.raises(UnsupportedFeatureError, match="was written as String") as caught:
            store.apply([length])
        (folder,) = re.findall(r"if this one is new, remove (\S+) first", str(caught.value))
        shutil.rmtree(folder)
        store.apply([length])
        assert ask(store, ["computed:code"], 1) == {"user_id": [1], "code": [None]}
        store.write_to_online_store("computed", three_users())
        assert ask(store, ["computed:code"], 1) == {"user_id": [1], "code": [2]}


OURS = pytest.mark.parametrize("kind", [kind for kind in STORES if kind != "sqlite"])


class TestVersions:
    """`enable_online_feature_view_versioning`: each version of a view's schema has rows of its own."""

    @pytest.fixture(params=STORES)
    def kind(self, request):
        return request.param

    @pytest.fixture
    def store(self, kind, make_store, rows_source):
        store = make_store(kind, enable_online_feature_view_versioning=True)
        source = rows_source(three_users())
        schemas = [
            ([COUNTRY], {"country": ["FR"]}),
            ([COUNTRY, VIEWED], {"country": ["DE"], "viewed": [["a"]]}),
            ([Field(name="country", dtype=Int64)], {"country": [39]}),
        ]
        for schema, values in schemas:
            store.apply([USER, history_over(source, schema=[USER_ID, *schema])])
            store.write_to_online_store("history", frame(user_id=[1], **values))
        return store

    def test_each_version_is_read_by_its_name(self, store):
        assert countries(store, 1, 9) == [39, None]
        assert countries(store, 1, view="history@v0") == ["FR"]
        assert countries(store, 1, view="history@v2") == [39]
        assert ask(store, ["history@v1:country", "history@v1:viewed"], 1, 9) == {
            "user_id": [1, 9],
            "country": ["DE", None],
            "viewed": [{"a"}, None],
        }

    def test_versions_in_one_request(self, store):
        features = ["history@v0:country", "history@v1:country", "history:country"]
        answer = ask(store, features, 1, full_feature_names=True)
        del answer["user_id"]
        assert list(answer) == ["history@v0__country", "history@v1__country", "history__country"]
        assert list(answer.values()) == [["FR"], ["DE"], [39]]
        entities = {"user_id": [1]}
        response = store.get_online_features(COUNTRIES, entities, include_feature_view_version_metadata=True)
        (view,) = response.proto.metadata.feature_view_metadata
        assert (view.name, view.version) == ("history", 2)

    def test_an_older_version_is_materialized(self, store):
        store.materialize(APRIL, MAY[8], ["history"], version="v1")
        assert countries(store, 1, 2, view="history@v1") == ["FR", "DE"]
        assert countries(store, 1, 2) == [39, None]

    @OURS
    def test_each_version_has_metrics_of_its_own(self, store):
        assert countries(store, 1, view="history@v0") == ["FR"]
        online = store.provider.online_store
        labels = {view.metrics.labels[1] for view in online.views.pop_all()}
        assert labels == {"history", "history@v1", "history@v2"}

    @OURS
    def test_a_version_is_maintained_by_its_name(self, store):
        assert views_of(store, ["history@v0"]) == ["history@v0"]
        assert maintenance.delete(store, "history@v0", [{"user_id": 1}]).found == 1
        assert countries(store, 1, view="history@v0") == [None]
        assert maintenance.rebuild(store, "history@v1") == 3
        assert maintenance.inspect(store, "history@v1").view == "history@v1"
        assert countries(store, 1, 2, view="history@v1") == ["FR", "DE"]
        assert countries(store, 1, 2) == [39, None]
        for wrong in ("latest", "", "two"):
            with pytest.raises(UnsupportedFeatureError, match="'history': "):
                maintenance.inspect(store, f"history@{wrong}")

    @OURS
    def test_advice_about_a_version_names_it(self, store, caplog):
        """A command with the plain name would change the version in use."""
        for version in ("v0", "v1"):
            reshard(store, f"history@{version}", 2, lambda seconds: None)
            caplog.clear()
            open_view(store, f"history@{version}")
            assert f"divide the rows with `feast-sketch reshard history@{version} --shards 1`" in caplog.text

    @OURS
    def test_a_snapshot_of_another_version_is_refused(self, store):
        versions = [f"history@v{number}" for number in range(3)]
        for version in versions:
            maintenance.seal(store, version)
        first, *others = [open_view(store, version).storage.within("snapshots/") for version in versions]
        for other in others:
            first.delete(first.list())
            for name in other.list():
                first.replace(name, other.read(name))
            store.provider.online_store.views.pop_all()
            with pytest.raises(DamagedFileError, match=r"is of another view, 'history@v[12]'"):
                countries(store, 1, view="history@v0")

    @OURS
    def test_a_reader_names_its_version(self, store):
        place = store.config.online_store.path
        features = {name: SketchReader(place, f"history{name}").features for name in ("", "@v0", "@v1")}
        assert features == {"": ["country"], "@v0": ["country"], "@v1": ["country", "viewed"]}

    @OURS
    @pytest.mark.parametrize("is_pinned", [False, True])
    def test_a_dropped_view_takes_all_versions_with_it(self, store, is_pinned, tmp_path):
        """Also newer ones than that of the declaration, which has none if it was never applied; SQLite keeps
        those.
        """
        source = store.get_data_source("rows")
        first = history_over(source, schema=[USER_ID, COUNTRY])
        if is_pinned:
            applied = store.get_feature_view("history")
            applied.version = "v0"
            store.apply([applied])
            first = store.get_feature_view("history")
        assert first.current_version_number == (0 if is_pinned else None)
        assert len([*tmp_path.rglob("view.json")]) == 3
        store.apply([], objects_to_delete=[first], partial=False)
        assert [*tmp_path.rglob("view.json")] == []
        for schema in ([COUNTRY], [COUNTRY, VIEWED]):
            store.apply([history_over(source, schema=[USER_ID, *schema])])
            assert countries(store, 1) == [None]
