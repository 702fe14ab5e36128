"""How a feature is kept, from ``feature_store.yaml`` and tags to what operators see of it."""

import json
from datetime import UTC, datetime

import pandas as pd
import pytest
from feast import Field
from feast.types import Array, Int64, Set, String

from feast_sketch_store import SketchReader, open_view, through_sketch
from feast_sketch_store.errors import SettingsError
from feast_sketch_store.operations import maintenance
from tests.helpers.length import combined
from tests.helpers.repository import make_repository, make_view, materialize, read_users, run_cli

NUM_USERS = 200
EVENT = datetime(2026, 5, 1, tzinfo=UTC)


@pytest.fixture
def make_store(tmp_path):
    """Makes a repository with materialized users whose ``viewed`` and ``sizes`` have the given tags."""

    def make(viewed_tags=None, sizes_tags=None, **options):
        users = range(NUM_USERS)
        rows = pd.DataFrame(
            {
                "user_id": list(users),
                "viewed": [["tea", f"a{u}", *(["coffee"] if u % 2 else [])] for u in users],
                "sizes": [[size for size in range(10) if u % (size + 1) == 0] for u in users],
                "country": ["FR" if u % 2 else "DE" for u in users],
                "event": EVENT,
            }
        )
        view = make_view(
            [
                Field(name="viewed", dtype=Set(String), tags=viewed_tags or {}),
                Field(name="sizes", dtype=Array(Int64), tags=sizes_tags or {}),
                Field(name="country", dtype=String),
            ]
        )
        options = {"refresh": 0, "compaction": {"min_rows": 100}, **options}
        return materialize(make_repository(tmp_path, view, rows=rows, **options), EVENT)

    return make


def values(store, user):
    answer = read_users(store, ["history:viewed", "history:sizes", "history:country"], [user])
    return set(answer["viewed"][0]), set(answer["sizes"][0]), answer["country"][0]


def features_of(store):
    return {f.name: f for f in maintenance.inspect(store, "history").features}


def test_options_of_the_configuration_file(make_store):
    store = make_store(target="auto", vocabulary={"top": 5})
    viewed, sizes, country = values(store, 1)
    assert viewed >= {"tea", "coffee"}
    assert sizes >= {0}
    assert country == "FR"
    found = features_of(store)
    assert (found["viewed"].vocabulary, found["sizes"].vocabulary) == (5, 5)
    # Beside sets a scalar is a column.
    assert found["country"].structure in ("bloom", "column")
    assert found["country"].vocabulary == 2
    # Of 200 items of their own, the three first are kept.
    assert found["viewed"].facts_cut == NUM_USERS - 3
    assert {found["viewed"].structure, found["sizes"].structure} <= {"weighted_bloom", "sets"}
    assert found["country"].facts_cut == 0
    assert maintenance.verify(store, "history").problems == []


def test_tags_say_how_a_feature_is_kept(make_store):
    store = make_store(
        viewed_tags={"sketch.structure": "sets", "sketch.vocabulary": "[tea, coffee, tea, never]"},
        sizes_tags={"sketch.structure": "weighted_bloom", "sketch.target": "noise 0.01"},
    )
    assert values(store, 1)[0] == {"tea", "coffee"}
    assert values(store, 6)[0] == {"tea"}
    assert values(store, 6)[1] >= {0, 1, 2, 5}
    found = features_of(store)
    structures = {name: f.structure for name, f in found.items()}
    assert structures == {"viewed": "sets", "sizes": "weighted_bloom", "country": "column"}
    assert (found["viewed"].facts, found["viewed"].facts_cut) == (NUM_USERS * 3 // 2, NUM_USERS)
    assert found["viewed"].expected_rate == found["viewed"].sampled_rate == 0
    assert found["sizes"].expected_rate > 0
    assert found["country"].vocabulary == 2
    report = maintenance.inspect(store, "history")
    assert report.bits_per_fact < 100
    assert all(f.size_bytes > 0 for f in report.features)
    (printed,) = json.loads(run_cli(store.repo_path, "inspect", "history", "--json").stdout)
    viewed = next(f for f in printed["features"] if f["name"] == "viewed")
    assert (viewed["structure"], viewed["facts_cut"]) == ("sets", NUM_USERS)
    table = run_cli(store.repo_path, "inspect").stdout
    rows = {line.split()[1]: line.split() for line in table.splitlines() if "history" in line}
    assert "structure" in table
    assert "facts cut" in table
    assert {"sets", str(NUM_USERS)} <= {*rows["viewed"]}
    assert "weighted_bloom" in rows["sizes"]
    assert "column" in rows["country"]


@pytest.mark.slow
@pytest.mark.parametrize("style", ["learned_bloom", "sandwiched_bloom", "weighted_bloom"])
def test_filters_by_cluster(make_store, style):
    store = make_store(
        viewed_tags={"sketch.structure": style, "sketch.clusters": "4", "sketch.target": "noise 0.1"},
        sizes_tags={"sketch.structure": style, "sketch.clusters": "4", "sketch.target": "noise 0.2"},
    )
    view = open_view(store, "history")
    for user in range(0, NUM_USERS, 7):
        viewed, sizes, country = values(store, user)
        assert viewed >= {"tea", f"a{user}", *(["coffee"] if user % 2 else [])}
        assert sizes >= {size for size in range(10) if user % (size + 1) == 0}
        assert country == ("FR" if user % 2 else "DE")
    found = features_of(store)
    structures = {name: f.structure for name, f in found.items()}
    assert structures == {"viewed": style, "sizes": style, "country": "column"}
    for name in ("viewed", "sizes"):
        assert 0 < found[name].expected_rate < 0.5
        # 200,000 questions; but in so small a table those about one entity are not independent.
        assert found[name].sampled_rate == pytest.approx(found[name].expected_rate, rel=0.3)
    assert maintenance.verify(store, "history").problems == []
    (layer,) = view.state.sealed.layers
    (filters,) = [s for s in layer.structures if s.kind == "clustered"]
    own_bytes = sum(filters.size_bytes_of(name) for name in ("viewed", "sizes"))
    assert own_bytes == pytest.approx(filters.size_bytes)
    training = pd.DataFrame({"viewed": [["tea", "a5"], []], "sizes": [[1, 2], None]})
    shown = through_sketch(training, SketchReader(store.repo_path, "history"))
    assert set(shown["viewed"][0]) >= {"tea", "a5"}
    assert list(shown["viewed"][1]) == []


def test_a_vocabulary_from_a_file_beside_the_configuration(make_store, tmp_path):
    (tmp_path / "items.json").write_text('["coffee", "a7"]')
    store = make_store(viewed_tags={"sketch.structure": "sets", "sketch.vocabulary": "{file: items.json}"})
    assert [values(store, user)[0] for user in (6, 7, 9)] == [set(), {"coffee", "a7"}, {"coffee"}]


@pytest.mark.parametrize(
    ("given", "structure", "shards"),
    combined([("[tea, x, y]", {"x", "y"}), ("{top: 999}", {"x", "y", "z"})], ["sets", "bloom"], [4, 1]),
)
def test_values_that_no_row_had_at_the_seal_are_shown_before_the_next_one(
    make_store, given, structure, shards
):
    vocabulary, kept = given
    tags = {"sketch.vocabulary": vocabulary, "sketch.structure": structure}
    store = make_store(viewed_tags=tags, target="error 1e-9", shards=shards)
    users = range(NUM_USERS, NUM_USERS + 9)
    rows = {"user_id": users, "viewed": [[*"xyz"]] * 9, "sizes": [[1]] * 9, "country": "FR", "event": EVENT}
    store.write_to_online_store("history", pd.DataFrame(rows))
    assert [values(store, user)[0] for user in users] == [kept] * 9
    assert maintenance.seal(store, "history")
    assert [values(store, user)[0] for user in users] == [kept] * 9


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "which cannot be read as a JSON list"),
        ("[1, 2]", "a value of another type than the feature, .* a number or a date needs quotes"),
        (r'["\ud83d"]', "a value of another type than the feature"),
    ],
)
def test_a_vocabulary_file_that_cannot_be_used_is_refused_at_apply(make_store, tmp_path, content, message):
    if content is not None:
        (tmp_path / "items.json").write_text(content)
    with pytest.raises(SettingsError, match=message) as refused:
        make_store(viewed_tags={"sketch.vocabulary": "{file: items.json}"})
    assert "feature 'viewed' of view 'history'" in str(refused.value)
    assert str(tmp_path / "items.json") in str(refused.value)
    assert not (tmp_path / "sketch" / "shop" / "history").exists()


def test_a_rebuild_keeps_the_options(make_store):
    store = make_store(target="auto", structure="sets", vocabulary={"top": 2})
    assert maintenance.rebuild(store, "history") == NUM_USERS
    assert values(store, 1) == ({"tea", "coffee"}, {0}, "FR")
    assert features_of(store)["viewed"].structure == "sets"
    assert maintenance.verify(store, "history").problems == []
