"""Sets that grow: rows add values and remove them, sealed or not, and all readers see the same."""

import asyncio
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pytest
from feast import Entity, Field, ValueType
from feast.types import Array, Decimal, Float64, Int64, Set, String, Uuid

from feast_sketch_store import Sets, SketchReader, open_view
from feast_sketch_store.errors import RowError, SettingsError, StorageError, UnsupportedFeatureError
from feast_sketch_store.operations.verification import verify_view
from feast_sketch_store.view.semantics import APPEND
from tests.helpers.length import by_length, combined
from tests.helpers.repository import make_repository, make_view, read_users
from tests.helpers.salts import SALTS

NOW = datetime.now(UTC).replace(microsecond=0)
USERS, VALUES = 30, 60
FEATURES = {"liked": Set(Int64), "words": Array(String)}
# Which structure a seal takes; filters without noise worth mentioning, so that answers are known.
IN_SETS = {"sketch.structure": "sets"}
IN_FILTER = {"sketch.structure": "bloom", "sketch.target": "error 0.000001%"}


def set_view(tags=None, features=FEATURES, **more):
    return make_view(features, pushed="likes", tags={"sketch.rows": "append", **(tags or {})}, **more)


@pytest.fixture
def make_store(tmp_path):
    """Makes a repository with one view of sets."""

    def make(*views, folder="repo", **options):
        rows = frame([(0, [1], ["a"], NOW)])
        options = {"refresh": 0, "compaction": {"min_rows": 10**9}, **options}
        return make_repository(tmp_path / folder, *(views or [set_view()]), rows=rows, **options)

    return make


def frame(rows):
    users, liked, words, events = zip(*rows, strict=True)
    columns = {"user_id": users, "liked": liked, "words": words, "event": pd.to_datetime(list(events))}
    return pd.DataFrame(columns)


def read(store, users=(1, 2), feature="liked"):
    rows = read_users(store, [f"history:{feature}"], users)[feature]
    return [None if row is None else sorted(row) for row in rows]


def numbers(rng, size):
    return rng.integers(0, USERS, size), rng.integers(0, VALUES, size)


@pytest.mark.slow
@pytest.mark.parametrize(("tags", "shards"), combined([IN_SETS, IN_FILTER], [1, 4]))
def test_any_order_of_operations_and_seals_gives_the_sets_of_a_dictionary(make_store, tags, shards):
    store = make_store(set_view(tags), shards=shards)
    liked, words = Sets(store, "history", "liked"), Sets(store, "history", "words")
    reader = SketchReader(store.repo_path, "history", refresh_interval_seconds=0)
    known, rng = dict.fromkeys(range(USERS)), np.random.default_rng(shards)
    tasks = ["add", "add", "remove", "remove", "replace", "clear", "words", "seal", "absorb"]
    for step in range(by_length(16, 40)):
        users, values = numbers(rng, 20)
        task = tasks[rng.integers(len(tasks))] if step else "add"
        if task == "add":
            liked.add(users, values)
            for user, value in zip(users.tolist(), values.tolist(), strict=True):
                known[user] = (known[user] or set()) | {value}
        elif task == "remove":
            liked.remove(users, values)
            for user, value in zip(users.tolist(), values.tolist(), strict=True):
                known[user] = known[user] and known[user] - {value}
        elif task == "replace":
            user = int(users[0])
            liked.replace([user], [0, len(values)], values)
            known[user] = set(values.tolist())
        elif task == "clear":
            liked.clear(users[:2])
            known.update(dict.fromkeys(users[:2].tolist()))
        elif task == "words":  # another set of the row, which leaves this one as it is
            words.add(users[:1], ["x"])
            known[int(users[0])] = known[int(users[0])] or set()
        else:
            getattr(open_view(store, "history"), task)()
        expected = [None if row is None else sorted(row) for row in known.values()]
        check(store, reader, liked, expected)
    view = open_view(store, "history")
    assert view.seal()
    check(store, reader, liked, expected)
    parts = view.shards.values()
    assert all(not verify_view(p.storage, view.settings.codecs, semantics=APPEND).problems for p in parts)
    reader.close()


def check(store, reader, liked, expected):
    """All readers show the sets; of an entity with nothing but other features the set is empty or missing."""
    users = np.arange(USERS)
    given = [sorted(row or []) for row in liked.get(users).to_pylist()]
    assert given == [sorted(row or []) for row in expected]
    assert [row or [] for row in read(store, users.tolist())] == given
    assert [sorted(row or []) for row in reader.arrow("liked", users).to_pylist()] == given
    assert reader.exists(users).tolist() == [row is not None for row in expected]
    matrix = reader.csr("liked", users)
    ids = np.split(matrix.ids, matrix.indptr[1:-1])
    assert all((np.diff(row) > 0).all() for row in ids)
    assert [sorted(matrix.vocabulary.take(row).to_pylist()) for row in ids] == given
    values = np.arange(VALUES)
    has = [[value in row for value in values.tolist()] for row in given]
    assert reader.contains("liked", users, values).tolist() == has
    weights = np.arange(len(matrix.vocabulary), dtype=float)
    sums = [sum(weights[row]) for row in ids]
    assert reader.scores("liked", users, weights).tolist() == sums


@pytest.mark.parametrize("tags", [IN_SETS, IN_FILTER], ids=["sets", "filter"])
def test_a_seal_has_the_bits_of_sets_that_were_written_whole(make_store, tags):
    rng = np.random.default_rng(2)
    users, values = numbers(rng, 900)
    users[:USERS] = np.arange(USERS)
    grown = make_store(set_view(tags, features={"liked": Set(Int64)}), folder="grown")
    sets = Sets(grown, "history", "liked")
    for part in np.array_split(np.arange(900), 9):
        sets.add(users[part], values[part], NOW)
        open_view(grown, "history").seal()
        sets.remove(users[part[:20]], values[part[:20]])
    truth = {user: sets.get([user])[0].as_py() for user in range(USERS)}
    whole = make_store(make_view({"liked": Set(Int64)}, pushed="likes", tags=tags), folder="whole")
    rows = frame([(user, liked, None, NOW) for user, liked in truth.items()]).drop(columns="words")
    whole.push("likes", rows)
    sealed = []
    for store in (grown, whole):
        with SALTS.named("the same"):
            assert open_view(store, "history").seal()
        (shard,) = open_view(store, "history").with_state(lambda state: state.shards.values())
        _, arrays = shard.sealed.to_snapshot()
        sealed.append({name: np.asarray(array).tobytes() for name, array in arrays.items()})
    assert sealed[0] == sealed[1]


def test_push_adds_and_expressions_remove_and_replace(make_store):
    store = make_store()
    for row in ([1, 2], [2, 3]):
        store.push("likes", frame([(1, row, ["a"], NOW)]))
    assert read(store)[0] == [1, 2, 3]

    def update(values, expression):
        rows = frame([(1, values, ["b"], NOW)])
        asyncio.run(store.update_online_store("history", rows, {"liked": expression}))

    for expression, values, expected in [
        ("DELETE liked :new_val", [1, 7], [2, 3]),
        ("list_append(liked, :new_val)", [5], [2, 3, 5]),
        ("add liked :new_val", [1], [1, 2, 3, 5]),
        (":new_val", [8, 9], [8, 9]),
    ]:
        update(values, expression)
        assert read(store)[0] == expected
        open_view(store, "history").seal()
        assert read(store)[0] == expected
    assert read(store, feature="words")[0] == ["a", "b"]
    with pytest.raises(UnsupportedFeatureError, match="'SET liked' is not an update of the set 'liked'"):
        update([1], "SET liked")


def test_a_row_that_replaces_one_set_leaves_another_as_it_is_that_is_null(make_store):
    store = make_store()
    store.push("likes", frame([(1, [1], ["a"], NOW)]))
    asyncio.run(store.update_online_store("history", frame([(1, [2], None, NOW)]), {"liked": ":new_val"}))
    for _ in range(2):
        assert (read(store)[0], read(store, feature="words")[0]) == ([2], ["a"])
        open_view(store, "history").seal()


def test_an_operation_that_comes_twice_changes_nothing(make_store):
    sets = Sets(make_store(), "history", "liked")
    for _ in range(2):
        sets.add([1, 1, 1, 2], [1, 1, 2, 1])
        assert [sorted(row) for row in sets.get([1, 2]).to_pylist()] == [[1, 2], [1]]
    for _ in range(2):
        sets.remove([1, 1], 1)
        assert sets.get([1, 2, 3]).to_pylist() == [[2], [1], None]
    sets.add([1], [1])  # the operation that was committed last counts
    assert sorted(sets.get([1])[0].as_py()) == [1, 2]


def test_rows_expire_as_a_whole_and_a_removal_keeps_none_alive(make_store):
    view = set_view(ttl=timedelta(days=2))
    store = make_store(view, ttl={"expire": True})
    sets = Sets(store, "history", "liked")
    sets.add([1, 2], [1, 1], NOW - timedelta(days=3))
    sets.add([3], [1], NOW - timedelta(days=3))
    sets.add([2], [2], NOW - timedelta(days=1))
    sets.remove([1, 3], 9)
    for _ in range(2):
        assert [row and sorted(row) for row in sets.get([1, 2, 3]).to_pylist()] == [None, [1, 2], None]
        assert open_view(store, "history").seal()
        sets.remove([1], 1)


def test_an_expression_that_only_removes_makes_no_row_and_keeps_none_alive(make_store, tmp_path):
    """Feast wants columns for all sets of the view, which are null."""
    store = make_store(set_view(ttl=timedelta(days=2)), ttl={"expire": True})
    store.push("likes", frame([(1, [1, 2], ["a"], NOW - timedelta(days=3))]))
    rows = frame([(user, [1], None, NOW) for user in (1, 9)])
    asyncio.run(store.update_online_store("history", rows, {"liked": "DELETE liked :new_val"}))
    for _ in range(2):
        assert Sets(store, "history", "liked").get([1]).to_pylist() == [None]
        assert not SketchReader(tmp_path / "repo", "history").exists([9]).any()
        open_view(store, "history").seal()


def test_join_keys_are_moments(make_store):
    moment = Entity(name="moment", join_keys=["moment"], value_type=ValueType.UNIX_TIMESTAMP)
    store = make_store(moment, set_view(entities=[moment]))
    second, liked = int(NOW.timestamp()), Sets(store, "history", "liked")
    liked.add([NOW, NOW], [1, 2])
    liked.add([second, second + 1], [3, 4])
    liked.remove(np.array([second], "datetime64[s]"), 2)
    assert [sorted(row) for row in liked.get([second, second + 1]).to_pylist()] == [[1, 3], [4]]
    shown = store.get_online_features(["history:liked"], {"moment": [NOW]}).to_dict()
    assert sorted(shown["liked"][0]) == [1, 3]
    liked.clear([NOW])
    assert liked.get([NOW]).to_pylist() == [None]


def test_what_cannot_be_is_refused_by_name(make_store):
    store = make_store()
    known = r"no set 'seen'; its sets that grow are \['liked', 'words'\]"
    with pytest.raises(UnsupportedFeatureError, match=known):
        Sets(store, "history", "seen")
    sets, liked = Sets(store, "history", "liked"), "the set 'liked' of feature view 'history'"
    with pytest.raises(RowError, match=f"these are not values of {liked}, which is of int64"):
        sets.add([1], ["a"])
    with pytest.raises(RowError, match=f"{liked} takes 2 values here, not 1 value"):
        sets.remove([1, 2], [1])
    assert sets.get([1]).to_pylist() == [None]
    store.config.online_store.read_only = True
    with pytest.raises(StorageError, match="read_only: true"):
        Sets(store, "history", "liked").add([1], [1])


@pytest.mark.parametrize("dtype", [Uuid, Decimal])
def test_texts_that_feast_cannot_read_are_refused(make_store, dtype):
    fields = [Field(name="liked", dtype=Set(dtype))]
    sets = Sets(make_store(make_view(fields, tags={"sketch.rows": "append"})), "history", "liked")
    with pytest.raises(RowError, match=f"'liked' .* which is of .*: 'no' is no {dtype.name}"):
        sets.add([1], ["no"])
    assert sets.get([1]).to_pylist() == [None]


LIKED = Field(name="liked", dtype=Set(Int64))
SEEN = Field(name="seen", dtype=Array(Int64), tags={"sketch.codec": "list"})


@pytest.mark.parametrize(
    ("fields", "rows", "words"),
    [
        ([LIKED, Field(name="price", dtype=Float64)], "append", r"\['price'\], which are not kept"),
        ([SEEN], "replace", "has lists, to which rows append, and the tag sketch.rows='replace'"),
        ([LIKED], "add", "sketch.rows='add'"),
    ],
)
def test_a_view_that_cannot_append_is_refused(make_store, fields, rows, words):
    tags = {"sketch.rows": rows}
    with pytest.raises(SettingsError, match=words):
        make_store(make_view(fields, pushed="likes", tags=tags, ttl=timedelta(days=1)))


def test_a_view_whose_rows_replace_each_other_does_not_become_one_to_which_they_append(make_store):
    store = make_store(make_view(FEATURES, pushed="likes"))
    store.push("likes", frame([(1, [1], ["a"], NOW)]))
    with pytest.raises(UnsupportedFeatureError, match="no set 'liked'; it has no sets that grow"):
        Sets(store, "history", "liked")
    with pytest.raises(UnsupportedFeatureError, match="replace, and are declared to append"):
        store.apply(set_view())


def test_a_read_of_sets_is_counted(make_store, monkeypatch):
    store, counted = make_store(), []
    liked = Sets(store, "history", "liked")
    liked.add([1, 1], [5, 6])
    metrics = open_view(store, "history").metrics
    monkeypatch.setattr(metrics, "count_read", lambda *numbers: counted.append(numbers))
    assert [sorted(values or ()) for values in liked.get([1, 2]).to_pylist()] == [[5, 6], []]
    assert counted == [(2, 1)]
