"""What has to be alike in all shards: bins, formulas, cuts to a memory; and lists, plans and imports."""

import json
import re
import sys
from datetime import UTC, datetime, timedelta
from functools import cache

import numpy as np
import pandas as pd
import pytest
from feast import Field
from feast.types import Array, Float64, Int64, Set, String, UnixTimestamp

from feast_sketch_store import Lists, SketchReader, open_view
from feast_sketch_store.bridges.importing import import_view
from feast_sketch_store.engines import seal_job
from feast_sketch_store.errors import SettingsError
from feast_sketch_store.operations import maintenance
from feast_sketch_store.operations.resharding import reshard
from feast_sketch_store.planning.planner import plan_view
from feast_sketch_store.planning.source import PlannedView, sample_view
from feast_sketch_store.view.shard_map import shards_of
from tests.helpers.keys import user_hashes
from tests.helpers.repository import another, make_repository, make_view, read_users

pytestmark = pytest.mark.slow

NUM_USERS, NUM_VALUES = 400, 60
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
LIST = {"sketch.codec": "list", "sketch.list": "{resolution: 1h, limit: 5}"}
VIEWED = Field(name="viewed", dtype=Set(Int64))
BINNED = [
    Field(name="bins", dtype=Float64, tags={"sketch.round": "8 bins"}),
    Field(name="steps", dtype=Float64, tags={"sketch.round": "0.5"}),
]
COMPUTED = [
    Field(
        name="score",
        dtype=Float64,
        tags={"sketch.codec": "score", "sketch.score": "{of: [viewed], weights: weights.json, bits: 8}"},
    )
]
LISTED = [
    Field(name="read", dtype=Array(String), tags=LIST),
    Field(name="read_at", dtype=Array(UnixTimestamp), tags={"sketch.of": "read"}),
]


@cache
def viewed(user):
    """Values, of which a quarter of the users share a quarter."""
    rng = np.random.default_rng(user)
    return sorted(user % 4 * 15 + v for v in rng.choice(15, 6, replace=False).tolist())


def rows(users=range(NUM_USERS)):
    numbers = np.random.default_rng(7).gamma(2.0, 12.0, NUM_USERS + 50)
    return pd.DataFrame(
        {
            "user_id": list(users),
            "viewed": [viewed(user) for user in users],
            **{name: [numbers[user] for user in users] for name in ("bins", "steps")},
            "event": NOON,
        }
    )


def histories(users=range(NUM_USERS)):
    """Rows without what is computed from them."""
    return rows(users)[["user_id", "viewed", "event"]].assign(score=None)


def make(folder, num_shards, fields, ttl=timedelta(0)):
    folder.mkdir()
    weights = {"viewed": [[v, (v % 7 - 3) / 10] for v in range(NUM_VALUES)]}
    (folder / "weights.json").write_text(json.dumps(weights))
    options = {"refresh": 0, "compaction": "job", "structure": "sets", "shards": num_shards}
    return make_repository(folder, make_view(fields, ttl=ttl), rows=rows(), **options)


@pytest.fixture
def pair(tmp_path):
    """The same view without shards and in four."""
    return lambda fields, **more: [make(tmp_path / str(n), n, fields, **more) for n in (1, 4)]


def write(store, *names):
    store.write_to_online_store("history", rows()[["user_id", *names, "event"]])


def fill(store, *names):
    write(store, *names)
    assert maintenance.seal(store, "history")


def online(store, names, users=range(0, NUM_USERS + 20, 3)):
    answer = read_users(store, [f"history:{name}" for name in names], users)
    return {name: [sorted(v) if isinstance(v, set) else v for v in answer[name]] for name in names}


def in_this_process(task, requests):
    return [task(request) for request in requests]


def by_engine(store, view):
    return seal_job.seal_by(store, view, in_this_process)


@pytest.mark.parametrize(("engine", "package"), [("spark", "pyspark"), ("ray", "ray[data]")])
def test_an_engine_that_is_not_installed_is_named(tmp_path, monkeypatch, engine, package):
    monkeypatch.setitem(sys.modules, package.partition("[")[0], None)
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    store = make(tmp_path / "store", 2, BINNED)
    with pytest.raises(SettingsError, match=re.escape(f"`pip install '{package}'`")):
        seal_job.seal(store, "history", engine)


SEALS = pytest.mark.parametrize("seal", [maintenance.seal, by_engine], ids=["here", "engine"])


@SEALS
def test_bins_are_those_of_all_rows(pair, seal):
    names = [field.name for field in BINNED]
    whole, sharded = pair(BINNED)
    for store in (whole, sharded):
        write(store, *names)
    assert maintenance.seal(whole, "history")
    assert seal(sharded, "history")
    assert online(sharded, names) == online(whole, names)
    assert len({value for value in online(sharded, ["bins"])["bins"] if value is not None}) == 8
    reports = [maintenance.inspect(store, "history").features for store in (whole, sharded)]
    assert [f.vocabulary for f in reports[1]] == [f.vocabulary for f in reports[0]]
    assert maintenance.verify(sharded, "history").problems == []


def parts_of(formula):
    """What decides the results of a formula."""
    sources = [(s.feature, s.weights.tolist(), s.vocabulary.values.to_pylist()) for s in formula.sources]
    return repr((formula.unit, formula.step, sources))


@SEALS
def test_formulas_are_those_of_all_rows(pair, seal):
    fields, names = [VIEWED, *COMPUTED], ["viewed", "score"]
    whole, sharded = pair(fields)
    for store in (whole, sharded):
        store.write_to_online_store("history", histories())
    assert maintenance.seal(whole, "history")
    assert seal(sharded, "history")
    ours, theirs = (online(store, names, range(NUM_USERS)) for store in (sharded, whole))
    assert ours == theirs
    formulas = [part.state.sealed.formulas for part in open_view(sharded, "history").shards.values()]
    assert len({parts_of(formula["score"]) for formula in formulas}) == 1
    # Rows that are not sealed get the same, and so do those of the next seal.
    new = range(NUM_USERS, NUM_USERS + 40)
    sharded.write_to_online_store("history", histories(new))
    before = online(sharded, names, new)
    assert None not in before["score"]
    assert seal(sharded, "history")
    assert online(sharded, names, new) == before
    assert maintenance.verify(sharded, "history").problems == []


@SEALS
@pytest.mark.parametrize("structure", ["sets", "bloom"])
def test_rows_of_a_shard_that_had_none_show_what_those_of_others_do(pair, seal, structure):
    """Scores and cuts are those of the last seal, in which their shard had no rows."""
    cut = {"sketch.vocabulary": "{top: 20}", "sketch.structure": structure}
    viewed_most = Field(name="viewed", dtype=Set(Int64), tags=cut)
    names = ["viewed", "score"]
    whole, sharded = pair([viewed_most, *COMPUTED])
    numbers = shards_of(user_hashes(range(NUM_USERS)), 4)
    first, others = np.flatnonzero(numbers == 1), np.flatnonzero(numbers != 1)
    for store in (whole, sharded):
        store.write_to_online_store("history", histories(first))
        assert seal(store, "history")
        store.write_to_online_store("history", histories(others))
    sealed = open_view(sharded, "history").shards[1].state.sealed
    kept = set(sealed.cut_vocabularies["viewed"].values.to_pylist())
    assert len(kept) == 20
    wanted = {
        "viewed": [sorted(kept.intersection(viewed(user))) for user in others],
        "score": online(whole, ["score"], others)["score"],
    }
    assert None not in wanted["score"]
    again = another(sharded)
    assert online(sharded, names, others) == online(again, names, others) == wanted
    reader = SketchReader(sharded.repo_path, "history")
    found = reader.csr("viewed", others)
    values = found.vocabulary.to_pylist()
    ids = np.split(found.ids, found.indptr[1:-1])
    assert [sorted(values[number] for number in row) for row in ids] == wanted["viewed"]
    assert maintenance.verify(sharded, "history").problems == []


def test_a_move_leaves_no_shard_without_what_all_share(pair):
    """Most of sixteen shards have no rows when two users are moved."""
    whole, sharded = pair([VIEWED, *COMPUTED])
    for store in (whole, sharded):
        store.write_to_online_store("history", histories(range(2)))
        assert maintenance.seal(store, "history")
    reshard(sharded, "history", 16, wait=lambda seconds: None)
    for store in (whole, sharded):
        store.write_to_online_store("history", histories(range(2, 40)))
    names = ["viewed", "score"]
    assert online(sharded, names, range(40)) == online(whole, names, range(40))


def test_a_rebuild_may_leave_a_shard_without_rows(pair):
    _, sharded = pair([VIEWED])
    fill(sharded, "viewed")
    numbers = shards_of(user_hashes(range(NUM_USERS)), 4)
    kept = np.flatnonzero(numbers != 2)
    rows(kept).to_parquet(f"{sharded.repo_path}/rows.parquet")
    reported = []
    maintenance.rebuild(
        sharded, "history", NOON - timedelta(days=1), confirm=lambda dropped: not reported.append(dropped)
    )
    assert reported[0].entities == NUM_USERS - len(kept)
    found = online(sharded, ["viewed"], range(NUM_USERS))["viewed"]
    assert [user for user, values in enumerate(found) if values is not None] == kept.tolist()
    assert maintenance.verify(sharded, "history").problems == []


@SEALS
@pytest.mark.parametrize("structure", ["sets", "bloom"])
def test_the_memory_of_a_feature_is_that_of_all_shards(pair, seal, structure):
    size = 2_600
    tags = {"sketch.target": f"{size}B", "sketch.structure": structure}
    whole, sharded = pair([Field(name="viewed", dtype=Set(Int64), tags=tags)])
    write(sharded, "viewed")
    assert seal(sharded, "history")
    parts = open_view(sharded, "history").shards.values()
    layers = [part.state.sealed for part in parts]
    taken = [
        layer.size_bytes_of("viewed") + (layer.presence.index_bytes if structure == "sets" else 0)
        for layer in layers
    ]
    assert 0.5 * size < sum(taken) <= size * 1.001 + 8 * len(layers)  # tables are rounded up to words
    vocabularies = [layer.numbering("viewed").values.to_pylist() for layer in layers]
    assert all(values == vocabularies[0] for values in vocabularies)
    if structure == "sets":  # each shard has its copy of the vocabulary, so fewer values are left
        fill(whole, "viewed")
        (only,) = open_view(whole, "history").shards.values()
        left = only.state.sealed.numbering("viewed").values.to_pylist()
        assert 0 < len(vocabularies[0]) <= len(left) < NUM_VALUES
        assert vocabularies[0] == left[: len(vocabularies[0])]
        kept = set(vocabularies[0])
        shown = online(sharded, ["viewed"], range(NUM_USERS))["viewed"]
        assert shown == [[v for v in viewed(user) if v in kept] for user in range(NUM_USERS)]
    assert maintenance.verify(sharded, "history").problems == []


@SEALS
def test_too_little_memory_for_a_shard_is_told_in_bytes_of_the_view(pair, seal):
    whole, sharded = pair([Field(name="viewed", dtype=Set(Int64), tags={"sketch.target": "100B"})])
    text = "view 'history': feature 'viewed' cannot be kept for a memory of 100 bytes: .* at least ([0-9,]+)"
    least = []
    for store in (whole, sharded):
        write(store, "viewed")
        with pytest.raises(SettingsError, match=text) as raised:
            seal(store, "history")
        least.append(int(re.search(text, str(raised.value))[1].replace(",", "")))
    assert least[0] < least[1]  # each shard has a vocabulary of its own
    assert online(sharded, ["viewed"], [5])["viewed"] == [viewed(5)]
    view = sharded.get_feature_view("history")
    view.features[0].tags["sketch.target"] = f"{least[1]}B"
    sharded.apply(view)
    assert seal(sharded, "history"), "which is enough for every shard"


def ago(**units):
    return NOW - timedelta(**units)


NOW = datetime.now(UTC).replace(microsecond=0, second=0, minute=0)


def events(store):
    """Writes, late ones and removals, with a seal among them."""
    lists = Lists(store, "history", "read")
    rng = np.random.default_rng(11)
    for batch in range(4):
        users = rng.integers(0, 40, 60).tolist()
        lists.add(
            users,
            [f"a{n}" for n in rng.integers(0, 25, 60)],
            [ago(hours=int(h)) for h in rng.integers(1, 200, 60)],
        )
        if batch in (1, 3):
            lists.remove(users[:5], "a7")
            assert maintenance.seal(store, "history")
        if batch == 2:
            maintenance.delete(store, "history", [{"user_id": users[0]}])
    lists.add([3, 45], ["new", "new"], [NOW] * 2)


def test_lists_are_those_of_a_view_without_shards(pair):
    whole, sharded = pair(LISTED, ttl=timedelta(days=30))
    for store in (whole, sharded):
        events(store)
    names, users = ["read", "read_at"], range(50)
    expected = online(whole, names, users)
    assert online(sharded, names, users) == expected
    assert sum(items is not None for items in expected["read"]) > 30
    readers = [SketchReader(store.repo_path, "history", ttl=timedelta(days=30)) for store in (whole, sharded)]
    ours, theirs = (reader.lists("read", list(users), limit=2) for reader in readers)
    assert ours.indptr.tolist() == theirs.indptr.tolist()
    assert ours.timestamps.tolist() == theirs.timestamps.tolist()
    items = [np.asarray(found.vocabulary)[found.ids].tolist() for found in (ours, theirs)]
    assert items[0] == items[1]
    assert maintenance.seal(sharded, "history")
    assert online(sharded, names, users) == expected
    assert maintenance.verify(sharded, "history").problems == []
    assert maintenance.vacuum(sharded, "history", timedelta(0)) > 0
    assert online(sharded, names, users) == expected


def test_lists_are_divided_anew(pair):
    whole, _ = pair(LISTED, ttl=timedelta(days=30))
    events(whole)
    expected = online(whole, ["read", "read_at"], range(50))
    reshard(whole, "history", 8, lambda seconds: None)
    moved = another(whole, shards=8)
    assert len(open_view(moved, "history").shards) == 8
    assert online(moved, ["read", "read_at"], range(50)) == expected


def values_of(sample):
    """The values of each sampled entity."""
    feature = sample.features["viewed"]
    values = np.array(feature.vocabulary.values.to_pylist())
    return [sorted(own.tolist()) for own in np.split(values[feature.rows.ids], feature.rows.indptr[1:-1])]


def test_a_plan_is_made_from_the_rows_of_all_shards(pair):
    stores = pair([VIEWED])
    for store in stores:
        fill(store, "viewed")
    samples = [sample_view(PlannedView.open(store, "history"), 150, None, False)[0] for store in stores]
    assert samples[1].num_entities == samples[0].num_entities == NUM_USERS
    assert samples[1].known_facts == samples[0].known_facts
    sampled = [dict(zip(map(tuple, s.entity_hashes.tolist()), values_of(s), strict=True)) for s in samples]
    assert sampled[0] == sampled[1]
    assert len(sampled[1]) == 150
    assert plan_view(stores[1], "history", max_entities=50).num_entities == NUM_USERS


def test_rows_are_imported_into_shards(tmp_path):
    other = tmp_path / "other"
    filled = make_repository(other, make_view([VIEWED]), rows=rows(), type="sqlite", path="online.db")
    write(filled, "viewed")
    store = make(tmp_path / "ours", 4, [VIEWED])
    newer = rows(range(2))[["user_id", "viewed", "event"]].assign(event=NOON + timedelta(hours=1))
    newer["viewed"] = [[999], [998]]
    store.write_to_online_store("history", newer)
    found = import_view(store, "history", other / "feature_store.yaml")
    assert (found.rows, found.entities) == (NUM_USERS, NUM_USERS)
    shown = online(store, ["viewed"], range(NUM_USERS))["viewed"]
    assert shown == [[999], [998], *(viewed(user) for user in range(2, NUM_USERS))]
    assert maintenance.verify(store, "history").problems == []
    assert maintenance.verify(store, "history").leftovers == []
