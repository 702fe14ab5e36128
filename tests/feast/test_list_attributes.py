"""Attributes of the items of lists: what reads show, unsealed, sealed and both, against plain Python."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pytest
from feast import Field
from feast.types import Array, Int64, String, UnixTimestamp

from feast_sketch_store import Lists, SketchReader, open_view, through_sketch
from feast_sketch_store.errors import RowError, SettingsError, UnsupportedFeatureError
from feast_sketch_store.layers import SketchLayer
from feast_sketch_store.operations import maintenance
from tests.helpers.length import combined
from tests.helpers.repository import make_repository, make_view, read_users

NOW = datetime.now(UTC).replace(microsecond=0, second=0, minute=0)
TTL, USERS, LIMIT = timedelta(days=30), [*range(12)], 6
ACTIONS, RATINGS = ["view", "click", "like"], [1, 2, 3, 4, 5]
NAMES = ["watched", "watched_at", "action", "rating"]
LIST = {"sketch.codec": "list", "sketch.list": f"{{resolution: 1h, limit: {LIMIT}}}"}
ACTION = {"sketch.of": "watched", "sketch.vocabulary": "[view, click, like]"}
RATING = {"sketch.of": "watched", "sketch.vocabulary": "[1, 2, 3, 4, 5]"}


def list_view(action=ACTION, rating=RATING, **more):
    return make_view(
        [
            Field(name="watched", dtype=Array(Int64), tags=LIST),
            Field(name="watched_at", dtype=Array(UnixTimestamp), tags={"sketch.of": "watched"}),
            Field(name="action", dtype=Array(String), tags=action),
            Field(name="rating", dtype=Array(Int64), tags=rating),
        ],
        pushed="views",
        ttl=TTL,
        **more,
    )


def frame(rows):
    """Rows of (user, [(video, time, action, rating), ...])."""
    columns = {name: [] for name in ("user_id", *NAMES, "event")}
    for user, items in rows:
        columns["user_id"].append(user)
        for name, values in zip(NAMES, zip(*items, strict=True), strict=True):
            columns[name].append([v.replace(tzinfo=None) if name == "watched_at" else v for v in values])
        columns["event"].append(NOW)
    return pd.DataFrame(columns)


@pytest.fixture
def make_store(tmp_path):
    def make(view=None, **options):
        rows = frame([(1, [(1, NOW - timedelta(days=1), "view", 3)])])
        options = {"refresh": 0, "compaction": {"min_rows": 9999}, **options}
        return make_repository(tmp_path, view or list_view(), rows=rows, **options)

    return make


class Model:
    """Lists of plain Python: the items of each user, by video and tick."""

    def __init__(self):
        self.items = {}

    def add(self, user, items):
        for video, time, action, rating in items:
            known = self.items.setdefault(user, {}).setdefault(
                (video, time.replace(minute=0)), [time, (0, 0)]
            )
            code = ACTIONS.index(action), RATINGS.index(rating)
            known[0], known[1] = max(time, known[0]), max(known[1], code)

    def remove(self, user, video):
        self.items[user] = {key: item for key, item in self.items.get(user, {}).items() if key[0] != video}

    def shown(self, user, limit=LIMIT, until=None):
        """(video, tick, action, rating), newest first; the order within a tick is by video."""
        found = [
            (video, tick, ACTIONS[action], RATINGS[rating], time)
            for (video, tick), (time, (action, rating)) in self.items.get(user, {}).items()
            if until is None or tick < until
        ]
        return sorted(found, key=lambda item: item[-1], reverse=True)[:limit]


def drawn(rng, most):
    """Items at different times, so that their order is defined even within a tick."""
    for _ in range(rng.integers(1, most)):
        minutes = int(rng.integers(0, 60 * 24 * 3))
        seconds = int(rng.integers(0, 60))
        yield (
            int(rng.integers(0, 20)),
            NOW - timedelta(hours=1, minutes=minutes, seconds=seconds),
            ACTIONS[rng.choice(3, p=[0.8, 0.15, 0.05])],
            RATINGS[rng.integers(5)],
        )


def drawn_for(users, rng, most, model):
    """Items of each user, which the model gets."""
    given = {user: [*{item[:2]: item for item in drawn(rng, most)}.values()] for user in users}
    for user, items in given.items():
        model.add(user, items)
    return given


def shown_rows(lists):
    """The items of each list with their actions and ratings."""
    beside = [lists.as_lists(lists.attribute(name)).to_pylist() for name in ("action", "rating")]
    return [[*zip(*row, strict=True)] for row in zip(lists.to_arrow().to_pylist(), *beside, strict=True)]


def by_tick(items):
    """Items in a defined order: a seal keeps none within a tick."""
    return sorted((tick, video, action, rating) for video, tick, action, rating, *_ in items)


def read(store, users=USERS):
    found = read_users(store, [f"history:{name}" for name in NAMES], users)
    rows = []
    for parts in zip(*(found[name] for name in NAMES), strict=True):
        items = zip(*(part or () for part in parts), strict=True)
        rows.append([(video, t.replace(tzinfo=UTC), action, rating) for video, t, action, rating in items])
    return rows


@pytest.mark.slow
@pytest.mark.parametrize(("seals", "shards"), combined(["never", "halfway", "at the end"], [1, 2]))
def test_reads_show_the_attributes_of_each_item(make_store, seals, shards):
    store, model, rng = make_store(shards=shards), Model(), np.random.default_rng(3)
    lists = Lists(store, "history", "watched")
    for step in range(30):
        some = rng.choice(USERS, 4, replace=False).tolist()
        given = drawn_for(some, rng, 4, model)
        if step % 3:
            store.push("views", frame(given.items()))
        else:
            users, videos, times, actions, ratings = zip(
                *((user, *item) for user, items in given.items() for item in items), strict=True
            )
            lists.add(users, videos, list(times), {"action": actions, "rating": ratings})
        if step % 7 == 6:
            model.remove(some[0], 5)
            lists.remove([some[0]], 5)
        if (seals, step) in (("halfway", 15), ("at the end", 29)):
            open_view(store, "history").seal()
            assert maintenance.verify(store, "history").problems == []
    for user, found in zip(USERS, read(store), strict=True):
        wanted = model.shown(user, limit=None)
        if seals == "never":
            assert found == [(v, time, a, r) for v, _, a, r, time in wanted[:LIMIT]]
        # A seal rounds times down, so of the last tick that is shown it may choose other items.
        ticks = {tick for _, tick, *_ in wanted[:LIMIT]}
        shown = [(v, t.replace(minute=0, second=0), a, r) for v, t, a, r in found]
        assert len(shown) == len(wanted[:LIMIT])
        assert {*by_tick(shown)} <= {
            *by_tick((*item[:1], item[1].replace(second=0), *item[2:]) for item in wanted)
        }
        assert all(t >= min(ticks).replace(second=0) for _, t, *_ in shown)
    reader = SketchReader(store.repo_path, "history")
    for get in (lists.get, lambda *asked, **more: reader.lists("watched", *asked, **more)):
        rows = shown_rows(get(np.array(USERS), attributes=["rating", "action"]))
        assert rows == [[(v, a, r) for v, _, a, r in row] for row in read(store)]


@pytest.mark.slow
def test_verify_finds_attributes_that_a_snapshot_has_wrong(make_store, monkeypatch):
    store = make_store()
    items = [(video, NOW - timedelta(hours=video), action, 3) for video, action in enumerate(ACTIONS)]
    store.push("views", frame([(1, items)]))
    open_view(store, "history").seal()
    assert maintenance.verify(store, "history").problems == []
    honest = SketchLayer.read_attribute

    def forgetful(*arguments):
        answer = honest(*arguments)
        answer.csr = replace(answer.csr, ids=answer.csr.ids[::-1])
        return answer

    monkeypatch.setattr(SketchLayer, "read_attribute", forgetful)
    (problem,) = maintenance.verify(store, "history").problems
    assert "has other values of attribute 'action' than the row log" in problem


def test_of_one_tick_the_attribute_declared_last_counts(make_store):
    store, at = make_store(), NOW - timedelta(hours=5)
    lists = Lists(store, "history", "watched")
    for minute, action, rating in ((50, "click", 1), (10, "like", 2), (40, "view", 5)):
        time = at + timedelta(minutes=minute)
        lists.add([1], [7], time, {"action": [action], "rating": [rating]})
    newest = at + timedelta(minutes=50)
    assert read(store, [1]) == [[(7, newest, "like", 2)]]
    open_view(store, "history").seal()
    assert read(store, [1]) == [[(7, at, "like", 2)]]
    lists.add([1], [7], at + timedelta(minutes=20), {"action": ["click"], "rating": [4]})
    assert read(store, [1]) == [[(7, at + timedelta(minutes=20), "like", 2)]]
    lists.add([1], [7], at + timedelta(minutes=5), {"action": ["like"], "rating": [3]})
    for _ in range(2):
        assert [row[2:] for row in read(store, [1])[0]] == [("like", 3)]
        open_view(store, "history").seal()


def test_lists_as_of_a_moment_have_their_attributes(make_store):
    store, model, rng = make_store(), Model(), np.random.default_rng(5)
    for step in range(10):
        given = drawn_for(USERS, rng, 5, model)
        store.push("views", frame(given.items()))
        if step == 6:
            open_view(store, "history").seal()
    reader, until = SketchReader(store.repo_path, "history"), NOW - timedelta(hours=30)
    for name in ("watched_at", "action"):
        with pytest.raises(UnsupportedFeatureError, match=f"{name}' of view .* is read with 'watched'"):
            reader.arrow(name, USERS)
    found = reader.lists("watched", np.array(USERS), until=until, attributes=["action", "rating"])
    rows = shown_rows(found)
    for user, shown in zip(USERS, rows, strict=True):
        before = {(v, a, r) for v, _, a, r, _ in model.shown(user, None, until)}
        assert {*shown} <= before
        assert len(shown) == min(LIMIT, len(model.shown(user, None, until))) or not found.complete[user]
    training = pd.DataFrame({"user_id": USERS, "event_timestamp": until})
    columns = through_sketch(training, reader, ["watched"])
    for place, name in enumerate(("action", "rating"), 1):
        assert [row.tolist() for row in columns[name]] == [[item[place] for item in row] for row in rows]
    both = training.assign(watched=[[1, 2]] * len(USERS), history__action=[["view", "like"]] * len(USERS))
    with pytest.raises(RowError, match=r"columns 'watched' and 'history__action' are .* name 'watched' in"):
        through_sketch(both, reader)


def test_update_expressions_take_attributes(make_store):
    store = make_store()
    rows = frame([(1, [(7, NOW, "like", 5), (8, NOW - timedelta(hours=2), "view", 1)])])
    asyncio.run(store.update_online_store("history", rows, {"watched": "list_append(watched, :new_val)"}))
    rows = frame([(1, [(9, NOW, "click", 2)])])
    asyncio.run(store.update_online_store("history", rows, {"watched": "list_append(watched, :new_val)"}))
    assert by_tick(read(store, [1])[0]) == by_tick(
        [(7, NOW, "like", 5), (9, NOW, "click", 2), (8, NOW - timedelta(hours=2), "view", 1)]
    )
    asyncio.run(store.update_online_store("history", rows, {"watched": ":new_val"}))
    assert read(store, [1]) == [[(9, NOW, "click", 2)]]


def test_wrong_attributes_are_refused_and_nothing_is_written(make_store):
    store = make_store()
    lists = Lists(store, "history", "watched")
    with pytest.raises(RowError, match=r"row 1 of the batch has 'share' in feature 'action'.*\['view'"):
        lists.add([1, 2], [7, 7], NOW, {"action": ["view", "share"], "rating": [1, 1]})
    with pytest.raises(RowError, match=r"row 0 of the batch has 9 in feature 'rating'"):
        store.push("views", frame([(1, [(7, NOW, "like", 9)])]))
    with pytest.raises(RowError, match=r"have the attributes \['action', 'rating'\], and \[\] were given"):
        lists.add([1], [7], NOW)
    with pytest.raises(RowError, match="'watched' of feature view 'history' are a list; give a mapping"):
        lists.add([1], [7], NOW, ["like"])
    for odd in (None, "action", iter(["action"])):
        with pytest.raises(UnsupportedFeatureError, match=r"attributes to be read of the list 'watched' of"):
            lists.get([1], attributes=odd)
    too_many = "'action' of the list 'watched' of feature view 'history' takes 1 value here, not 2"
    with pytest.raises(RowError, match=too_many):
        lists.add([1], [7], NOW, {"action": ["view", "view"], "rating": [1]})
    with pytest.raises(RowError, match="before the year 1400 or after 2540"):
        lists.add([1], [7], datetime(2600, 1, 1, tzinfo=UTC), {"action": ["view"], "rating": [1]})
    short = frame([(1, [(7, NOW, "like", 1)])])
    short["action"] = [[]]
    with pytest.raises(RowError, match=r"row 0 of the batch has 1 items in feature 'watched' and 0 values"):
        store.push("views", short)
    with pytest.raises(UnsupportedFeatureError, match=r"have no attribute 'color'; they have \['action'"):
        lists.get([1], attributes=["color"])
    assert read(store, [1, 2]) == [[], []]


@pytest.mark.parametrize(
    ("tags", "problem"),
    [
        ({"sketch.of": "watched", "sketch.vocabulary": "[view]"}, "must have two values or more"),
        ({"sketch.of": "watched", "sketch.vocabulary": "[view, view]"}, "a list of its values, each once"),
        ({"sketch.of": "watched", "sketch.vocabulary": "{top: 9}"}, "a list of its values, each once"),
        ({"sketch.of": "watched"}, "sketch.vocabulary with its values for an attribute of a list"),
        ({"sketch.of": "none", "sketch.vocabulary": "[view, click]"}, "has no feature of that name"),
        ({**ACTION, "sketch.vocabulary": f"{[*map(str, range(99))]}"}, "at most 256 combinations"),
    ],
)
def test_declarations_that_are_not_possible(make_store, tags, problem):
    with pytest.raises((SettingsError, UnsupportedFeatureError), match=problem):
        make_store(list_view(action=tags))


def test_other_attributes_need_a_new_view(make_store):
    store = make_store()
    Lists(store, "history", "watched").add([1], [7], NOW, {"action": ["like"], "rating": [5]})
    changed = "was written with the attributes action:.*is declared with"
    with pytest.raises(UnsupportedFeatureError, match=changed):
        store.apply([list_view(action={**ACTION, "sketch.vocabulary": "[view, like]"})])
    store.apply([list_view()])
    assert read(store, [1]) == [[(7, NOW, "like", 5)]]
