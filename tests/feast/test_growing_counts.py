"""Counts to which rows add: each increment counts once, sealed or not, and all readers see the same."""

import asyncio
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pytest
from feast import Field
from feast.types import Array, Float64, Int64, Set, String

from feast_sketch_store import Counts, Lists, SketchReader, open_view
from feast_sketch_store.errors import RowError, SettingsError, UnsupportedFeatureError
from feast_sketch_store.operations.verification import verify_view
from feast_sketch_store.row_log import RowLog
from feast_sketch_store.rows.counting import MAX_COUNT
from feast_sketch_store.rows.listing import LEAST_RESERVE
from feast_sketch_store.snapshot.format import encode
from feast_sketch_store.snapshot.manifest import checksum_of
from feast_sketch_store.structures.parts import split
from feast_sketch_store.succinct.blocks import block_checksums
from feast_sketch_store.view.semantics import APPEND
from tests.helpers.length import by_length
from tests.helpers.repository import another, make_repository, make_view, read_users
from tests.helpers.salts import SALTS
from tests.helpers.snapshots import load, ranges_of

pytestmark = pytest.mark.slow

NOW = datetime.now(UTC).replace(microsecond=0)
USERS, VALUES = 12, 9


def fields(ids=String, limit=None, **tags):
    own = {} if limit is None else {"sketch.list": f"{{limit: {limit}}}"}
    return [
        Field(name="author", dtype=Array(String), tags={"sketch.codec": "counts", **tags}),
        Field(name="views", dtype=Array(Int64), tags={"sketch.of": "author"}),
        Field(name="view_ids", dtype=Array(ids), tags={"sketch.ids_of": "author", **own}),
        Field(name="liked", dtype=Set(Int64)),
    ]


def counts_view(schema=None, **more):
    tags = {"sketch.rows": "append"}
    return make_view(schema or fields(), pushed="views", **{"tags": tags, **more})


@pytest.fixture
def make_store(tmp_path):
    """Makes a repository with one view of counts."""

    def make(*views, folder="repo", **options):
        options = {"refresh": 0, "compaction": {"min_rows": 10**9}, **options}
        rows = frame([(0, ["a"], [1], ["0"])])
        return make_repository(tmp_path / folder, *(views or [counts_view()]), rows=rows, **options)

    return make


def frame(rows, event=NOW):
    users, authors, views, ids = zip(*rows, strict=True)
    columns = {"user_id": users, "author": authors, "views": views, "view_ids": ids}
    return pd.DataFrame({**columns, "liked": [[1]] * len(users), "event": [event] * len(users)})


def read_all(store, users):
    found = read_users(store, ["history:author", "history:views"], users)
    rows = zip(found["author"], found["views"], strict=True)
    return [None if values is None else dict(zip(values, counts, strict=True)) for values, counts in rows]


def read(store, user=1):
    return read_all(store, [user])[0]


def seal(store):
    assert open_view(store, "history").seal()


@pytest.mark.has_long_form
@pytest.mark.parametrize("shards", [1, 4])
def test_any_order_of_operations_and_seals_gives_the_sums_of_a_dictionary(make_store, shards):
    store = make_store(shards=shards)
    counts = Counts(store, "history", "author")
    reader = SketchReader(store.repo_path, "history", refresh_interval_seconds=0)
    rng, known, done = np.random.default_rng(shards), [None] * USERS, []
    tasks = [
        "count",
        "push",
        "again",
        "plain",
        "remove",
        "replace",
        "clear",
        "seal",
        "absorb",
        "count",
        "again",
    ]
    for step in range(by_length(20, 50)):
        users = rng.integers(0, USERS, 8).tolist()
        values = [f"v{n}" for n in rng.integers(0, VALUES, 8)]
        amounts = rng.integers(0, 4, 8).tolist()
        ids = [f"{step}.{n}" for n in range(8)]
        task = tasks[rng.integers(len(tasks))] if step else "count"
        if task in ("count", "plain"):
            given = ids if task == "count" else None
            counts.increment(users, values, amounts, given, NOW)
            done += [(users, values, amounts, ids)] if task == "count" else []
        elif task == "push":
            one = users[:1]
            store.push("views", frame([(one[0], values, amounts, ids)]))
            users = one * 8
            done.append((users, values, amounts, ids))
        elif task == "again":
            counts.increment(*done[rng.integers(len(done))], NOW)
        elif task == "remove":
            counts.remove(users, values)
            for user, value in zip(users, values, strict=True):
                (known[user] or {}).pop(value, None)
        elif task == "replace":
            counts.replace(users[:1], [0, 3], ["v0", "v1", "v2"], amounts[:3], NOW)
            known[users[0]] = Counter(dict(zip(["v0", "v1", "v2"], amounts[:3], strict=True)))
        elif task == "clear":  # which forgets ids, too: these are not tried again
            counts.clear(users[:1])
            known[users[0]] = None
            done = [each for each in done if users[0] not in each[0]] or done[:0]
            if not done:
                done = [([0], ["v0"], [0], ["none"])]
        else:
            getattr(open_view(store, "history"), task)()
        if task in ("count", "plain", "push"):
            for user, value, amount in zip(users, values, amounts, strict=True):
                known[user] = known[user] or Counter()
                known[user][value] += amount
        if known[0] is None and done == [([0], ["v0"], [0], ["none"])]:
            known[0] = Counter() if task == "again" else known[0]
        check(store, reader, counts, [row and dict(+row) for row in known])
    seal(store)
    check(store, reader, counts, [row and dict(+row) for row in known])
    view = open_view(store, "history")
    parts = view.shards.values()
    assert all(not verify_view(p.storage, view.settings.codecs, semantics=APPEND).problems for p in parts)
    reader.close()


def check(store, reader, counts, expected):
    """All readers show the counts."""
    users = np.arange(USERS)
    values, numbers = (column.to_pylist() for column in counts.get(users))
    found = [dict(zip(*row, strict=True)) if row[0] else {} for row in zip(values, numbers, strict=True)]
    assert found == [row or {} for row in expected]
    assert [row or {} for row in read_all(store, users.tolist())] == found
    assert (read(store, 1) or {}) == found[1]  # one entity has a path of its own
    matrix = reader.csr("author", users, counts=True)
    rows = [slice(*bounds) for bounds in zip(matrix.indptr, matrix.indptr[1:], strict=False)]
    names = matrix.vocabulary.to_pylist()
    shown = [
        dict(zip([names[n] for n in matrix.ids[r]], matrix.counts[r].tolist(), strict=True)) for r in rows
    ]
    assert shown == found
    weights = np.arange(1, len(names) + 1) / 8
    sums = [sum(weights[names.index(value)] * n for value, n in row.items()) for row in found]
    assert reader.scores("author", users, weights, counts=True).tolist() == sums
    has = [[f"v{n}" in row for n in range(VALUES)] for row in found]
    assert reader.contains("author", users, [f"v{n}" for n in range(VALUES)]).tolist() == has


@pytest.mark.parametrize("ids", [String, Int64])
@pytest.mark.parametrize("given", [True, False], ids=["ids", "no ids"])
def test_a_row_that_is_pushed_again_counts_once(make_store, ids, given):
    store = make_store(counts_view(fields(ids)))
    own = [[1, 2, 3] if ids is Int64 else ["x", "y", "z"]]
    row = frame([(1, ["a", "b", "a"], [1, 2, 3], *(own if given else [None]))])
    for _ in range(2):
        store.push("views", row)
        assert read(store) == {"a": 4, "b": 2}
    seal(store)
    store.push("views", pd.concat([row, row]))
    assert read(store) == {"a": 4, "b": 2}
    seal(store)
    other = another(store)  # of a process that has read nothing yet
    other.push("views", row)
    assert read(other) == read(store) == {"a": 4, "b": 2}
    if not given:  # another event
        store.push("views", row.assign(event=NOW + timedelta(seconds=1)))
        assert read(store) == {"a": 8, "b": 4}


def test_a_repetition_counts_once_if_two_processes_commit_it(make_store):
    store = make_store()
    other = another(store)
    ours, theirs = (Counts(each, "history", "author") for each in (store, other))
    for counts in (ours, theirs):
        counts.increment([1, 1], ["a", "b"], event_ids=["x", "y"])
    ours.increment([1], ["a"], [5], event_ids=["x"])  # the first commit of an id counts
    for each in (store, other):
        assert read(each) == {"a": 1, "b": 1}
    seal(other)
    assert read(store) == read(other) == {"a": 1, "b": 1}


@pytest.mark.parametrize("is_sealed", [False, True])
@pytest.mark.parametrize("has_ids", [False, True])
def test_commits_that_were_absorbed_with_later_ones_count_once(make_store, has_ids, is_sealed):
    """A process that has read some of them finds one file with all."""
    store = make_store()
    counts = Counts(store, "history", "author")

    def increment(amount):
        counts.increment([1, 2], ["a", "b"], [amount] * 2, event_ids=[f"{amount}"] * 2 if has_ids else None)

    increment(100)
    if is_sealed:
        seal(store)
    else:
        open_view(store, "history").absorb()
    place = (str(store.repo_path / "sketch"), "history", "shop")
    reader = SketchReader(*place, refresh_interval_seconds=0)
    counts.remove([1], "a")
    increment(1)
    assert reader.csr("author", [1, 2], counts=True).counts.tolist() == [1, 101]
    increment(10)
    open_view(store, "history").absorb()
    for each in (reader, SketchReader(*place, refresh_interval_seconds=0)):
        assert each.csr("author", [1, 2], counts=True).counts.tolist() == [11, 111]
    increment(1_000)
    assert reader.csr("author", [1, 2], counts=True).counts.tolist() == [1_011, 1_111]
    unsealed = reader._view.current().shards[0].unsealed_rows
    assert unsealed == open_view(store, "history").shards[0].state.unsealed_rows


@pytest.mark.parametrize("damage", ["a block", "its contents"])
def test_ids_in_a_damaged_snapshot_are_taken_from_the_one_before(make_store, damage, caplog):
    """With a block that lacks its checksum, or with parts that contradict each other."""
    store = make_store()
    counts = Counts(store, "history", "author")
    for id in "ab":
        counts.increment([1, 2], ["v", "w"], event_ids=[id] * 2)
        seal(store)
    counts.increment([1, 2], ["v", "w"], event_ids=["b", "c"])
    (snapshots,) = (shard.snapshots for shard in open_view(store, "history").shards.values())
    newest = snapshots.list()[0]
    path = store.repo_path / "sketch/shop/history/snapshots" / newest.file("base").name
    description, arrays = load(path)
    name = "structures.lists.features.0.codes.words"
    words = arrays[name] ^ np.uint64(2**64 - 1)
    if damage == "a block":
        content = bytearray(path.read_bytes())
        place = ranges_of(content)[name]
        content[place.start : place.stop] = words.tobytes()
    else:
        checksums = {f"{name}.checksums": block_checksums(words)}
        changed = encode(description, {**arrays, name: words, **checksums})
        content = b"".join(changed)
        manifest = newest.manifest()
        part = replace(manifest.own.files["base"], header_checksum=checksum_of(changed[0]))
        own = replace(manifest.own, files={**manifest.own.files, "base": part})
        snapshots.storage.replace(newest.manifest_name, replace(manifest, layers=(own,)).encode())
    path.write_bytes(content)
    other = another(store)
    assert read_all(other, [1, 2]) == [{"v": 2}, {"w": 3}]
    assert f"{path.name}: " in caplog.text
    assert "falling back to the snapshot before it" in caplog.text
    Counts(other, "history", "author").increment([1, 2], ["v", "w"], event_ids=["c", "c"])
    seal(other)
    assert read_all(another(store), [1, 2]) == [{"v": 3}, {"w": 3}]


def test_the_newest_ids_are_remembered(make_store):
    store = make_store(counts_view(fields(limit=2)))
    counts = Counts(store, "history", "author")
    for seconds, id in enumerate("abc"):
        counts.increment([1], ["v"], event_ids=[id], timestamps=NOW + timedelta(seconds=seconds))
    for _ in range(2):
        for id in "bc":
            counts.increment([1], ["v"], event_ids=[id], timestamps=NOW)
        assert read(store) == {"v": 3}
        seal(store)
    assert read_users(store, ["history:view_ids"], [1])["view_ids"] == [["c", "b"]]


def test_the_log_keeps_no_more_ids_than_a_seal(make_store):
    store = make_store(counts_view(fields(limit=2)))
    counts = Counts(store, "history", "author")
    for part in np.array_split(np.arange(100), 5):
        counts.increment([1] * len(part), ["v"] * len(part), event_ids=part.astype(str))
        seal(store)
    (shard,) = open_view(store, "history").shards.values()
    kept = RowLog(shard.storage).read().table()["view_ids"].to_pylist()
    assert len(kept) == 1
    assert 2 <= len(kept[0]) <= 2 + LEAST_RESERVE
    assert read(store) == {"v": 100}


def test_a_removal_keeps_ids_and_a_deletion_forgets_them(make_store):
    store = make_store()
    counts = Counts(store, "history", "author")

    def retry():
        counts.increment([1], ["a"], event_ids=["x"], timestamps=NOW)
        return read(store)

    assert retry() == {"a": 1}
    counts.remove([1], "a")
    assert retry() == {}
    seal(store)
    assert retry() == {}
    counts.clear([1])
    assert read(store) is None
    assert retry() == retry() == {"a": 1}
    counts.clear([1])
    seal(store)
    assert retry() == {"a": 1}


def test_expressions_add_remove_and_replace(make_store):
    store = make_store()
    store.push("views", frame([(1, ["a", "b"], [5, 6], ["x", "y"])]))

    def update(expression, counts, event):
        rows = frame([(1, ["a"], [counts], None)], NOW + timedelta(seconds=event))
        asyncio.run(store.update_online_store("history", rows, {"author": expression}))
        found = read(store)
        seal(store)
        assert read(store) == found
        return found

    assert update("ADD author :new_val", 2, 1) == {"a": 7, "b": 6}
    assert update("list_append(author, :new_val)", 2, 1) == {"a": 7, "b": 6}  # the same event
    assert update("DELETE author :new_val", 1, 2) == {"b": 6}
    assert update("ADD author :new_val", 2, 3) == {"a": 2, "b": 6}
    assert update("DELETE author :new_val", 0, 4) == {"b": 6}  # whatever count the row has
    assert update(":new_val", 9, 5) == {"a": 9}
    store.push("views", frame([(1, ["a", "b"], [5, 6], ["x", "y"])]))
    assert read(store) == {"a": 9}
    for name in ("views", "view_ids"):
        rows = frame([(1, ["a"], [1], None)])
        with pytest.raises(UnsupportedFeatureError, match=f"no list, set or counts {name!r} to update"):
            asyncio.run(store.update_online_store("history", rows, {name: f"ADD {name} :new_val"}))


def test_sealed_sums_are_as_exact_as_the_target_says(make_store):
    store = make_store(counts_view(fields(**{"sketch.target": "error 10%"})))
    counts, rng = Counts(store, "history", "author"), np.random.default_rng(3)
    truth = np.zeros((USERS, VALUES), np.int64)
    for _ in range(6):
        users, values = rng.integers(0, USERS, 80), rng.integers(0, VALUES, 80)
        amounts = rng.integers(1, 200, 80)
        np.add.at(truth, (users, values), amounts)
        counts.increment(users, [f"v{n}" for n in values], amounts)
        seal(store)
    for user in range(USERS):
        found = read(store, user)
        shown = np.array([found.get(f"v{n}", 0) for n in range(VALUES)])
        assert (np.abs(shown - truth[user]) <= 0.1 * truth[user]).all()
    counts.increment([1], ["v1"], [10_000])
    assert read(store)["v1"] >= 10_000


def test_a_seal_has_the_bits_of_counts_that_were_written_whole(make_store):
    grown = make_store(counts_view(fields()[:3]), folder="grown")
    counts, rng = Counts(grown, "history", "author"), np.random.default_rng(2)
    for _ in range(5):
        users, values = np.append(np.arange(USERS), rng.integers(0, USERS, 60)), rng.integers(0, VALUES, 72)
        counts.increment(users, [f"v{n}" for n in values], timestamps=NOW)
        seal(grown)
    truth = [(user, [*found], [*found.values()]) for user in range(USERS) for found in [read(grown, user)]]
    whole = make_store(make_view(fields()[:2], pushed="views"), folder="whole")
    whole.push("views", frame([(*row, None) for row in truth])[["user_id", "author", "views", "event"]])
    sealed = []
    for store in (grown, whole):
        with SALTS.named("the same"):
            seal(store)
        (shard,) = open_view(store, "history").with_state(lambda state: state.shards.values())
        _, arrays = split(shard.sealed.features["author"].to_snapshot())
        sealed.append({name: np.asarray(array).tobytes() for name, array in arrays.items()})
    assert sealed[0] == sealed[1]


def test_counts_stop_at_the_largest(make_store):
    store = make_store()
    counts = Counts(store, "history", "author")
    for _ in range(3):
        counts.increment([1, 1], ["a", "b"], [MAX_COUNT, 1])
        assert read(store)["a"] == MAX_COUNT
        seal(store)
    assert read(store) == {"a": MAX_COUNT, "b": 3}


def test_rows_that_cannot_be_counted_are_refused_whole(make_store):
    store = make_store()
    good = (2, ["a"], [1], ["z"])
    for bad, words in [
        (
            (1, ["a", "b"], [1, 1], ["x", "x"]),
            "row 1 of the batch has the id 'x' in feature 'view_ids', which",
        ),
        ((1, ["a", "a"], [1, 2], ["x", "x"]), "for another value or count of feature 'author'"),
        ((1, ["a", "b"], [1, 1], ["x"]), "2 values in feature 'author' and 1 ids in feature 'view_ids'"),
        ((1, ["a"], [1, 2], ["x"]), "1 values in feature 'author' and 2 counts in feature 'views'"),
        ((1, ["a"], [-1], ["x"]), "has the count -1 in feature 'views'"),
    ]:
        with pytest.raises(RowError, match=words):
            store.push("views", frame([good, bad]))
    counts = Counts(store, "history", "author")
    for arguments, words in [
        (([1], ["a"], [1.5]), "takes 1 whole numbers here, not float64"),
        (([1], ["a"], [-1]), "row 0 has the count -1"),
        (([1], ["a"], [1, 2]), r"takes 1 whole numbers here, not int64\[2\]"),
        (([1], ["a"], None, [7]), "these are not values of the feature of ids 'view_ids'"),
        (([1], ["a"], None, [None]), "takes 1 value here, not 1 null"),
        (([1], [7]), "these are not values of the feature of counts 'author'"),
    ]:
        with pytest.raises(RowError, match=words) as raised:
            counts.increment(*arguments)
        assert "of feature view 'history'" in str(raised.value)
    with pytest.raises(RowError, match="row 1 of the batch has the id 'x'"):
        counts.increment([1, 1], ["a", "b"], None, ["x", "x"])
    assert read(store, 1) is read(store, 2) is None


def test_other_classes_do_not_open_it(make_store):
    store = make_store()
    with pytest.raises(UnsupportedFeatureError, match="no list 'view_ids'"):
        Lists(store, "history", "view_ids")
    with pytest.raises(UnsupportedFeatureError, match=r"no feature of counts 'liked'; .* are \['author'\]"):
        Counts(store, "history", "liked")


COUNTED = Field(name="author", dtype=Array(String), tags={"sketch.codec": "counts"})


def ids(dtype=None, source="author", name="view_ids"):
    return Field(name=name, dtype=dtype or Array(String), tags={"sketch.ids_of": source})


@pytest.mark.parametrize(
    ("schema", "rows", "words"),
    [
        ([COUNTED], "append", "declare an Array of String or Int64 with the tag sketch.ids_of='author'"),
        ([COUNTED, ids()], "replace", "give the view the tag sketch.rows='append'"),
        (
            [COUNTED, ids(source="name")],
            "append",
            "the tag sketch.ids_of='name', but the view has no feature",
        ),
        ([COUNTED, ids(), ids(name="more")], "append", "has 2 features with the ids of 'author'"),
        ([COUNTED, ids(Array(Float64))], "append", "needs an Array of Int64 or String for the ids"),
        ([COUNTED, ids(Set(String))], "append", "has type Set"),
        ([COUNTED, ids(), Field(name="price", dtype=Float64)], "append", r"\['price'\], which are not kept"),
    ],
)
def test_a_view_that_cannot_count_is_refused(make_store, schema, rows, words):
    with pytest.raises(SettingsError, match=words):
        make_store(make_view(schema, pushed="views", tags={"sketch.rows": rows}))


def test_a_read_of_counts_is_counted(make_store, monkeypatch):
    store, counted = make_store(), []
    views = Counts(store, "history", "author")
    views.increment([1, 1], ["a", "a"])
    metrics = open_view(store, "history").metrics
    monkeypatch.setattr(metrics, "count_read", lambda *numbers: counted.append(numbers))
    assert views.get([1, 2]).counts.to_pylist() == [[2], None]
    assert counted == [(2, 1)]
