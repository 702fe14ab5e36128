"""Refusals of settings: each names all that is wrong at once, and the lines at its end are taken."""

import itertools
from datetime import timedelta
from types import SimpleNamespace

import feast.types
import pytest
import yaml
from feast import Field
from feast.types import Array, Float64, Int32, Int64, Json, Set, String, UnixTimestamp

from feast_sketch_store.errors import SettingsError, SketchStoreError, UnsupportedFeatureError
from feast_sketch_store.online_store import SketchOnlineStoreConfig
from feast_sketch_store.view.settings import file_problems, resolve
from tests.unit.test_settings import AUTO_OPTIONS, OPTIONS, view_of

NAMES = {name: getattr(feast.types, name) for name in dir(feast.types)} | {
    "Field": Field,
    "timedelta": timedelta,
}
TTL = timedelta(days=9)


def field(name, dtype, **tags):
    own = {f"sketch.{tag.replace('__', '.')}": text for tag, text in tags.items()}
    return Field(name=name, dtype=dtype, tags=own)


def refusal(options, view):
    with pytest.raises(SketchStoreError) as caught:
        resolve(options, view)
    assert isinstance(caught.value, SettingsError | UnsupportedFeatureError)
    return str(caught.value)


def repaired(view, message):
    """The views after the lines of a refusal were pasted: the view, and the one that features moved to."""
    pasted = message.partition("\nPaste:\n")[2]
    assert pasted, message
    fields, tags, ttl, moved, is_moved = {f.name: f for f in view.features}, view.tags, view.ttl, {}, False
    left = {}
    for line in pasted.splitlines():
        text = line.strip()
        if text.startswith("# out of 'history', into another view"):
            is_moved = True
        elif text.startswith("# out of 'history': "):
            del fields[text.rpartition(" ")[2]]
        elif text.startswith("Field("):
            (new,) = eval(f"[{text}]", dict(NAMES))
            renamed = new.name if new.name in fields else _owner(new.name, fields)
            left.pop(renamed, None)
            fields.pop(renamed, None)
            (moved if is_moved else left)[renamed] = new
            is_moved = is_moved and text.startswith("Field(")
        else:
            is_moved = False
            given = eval(f"dict({text}\n)", dict(NAMES))
            tags, ttl = given.get("tags", tags), given.get("ttl", ttl)
    stay = [*fields.values(), *(new for name, new in left.items() if name not in moved)]
    views = [view_of(*stay, tags=tags, ttl=ttl)] if stay else []
    return views + ([view_of(*moved.values(), tags=tags, ttl=ttl)] if moved else [])


def _owner(name, fields):
    """The feature that a line renames: the one whose name differs by an ending or underscores."""
    return next(old for old in fields if old.strip("_").replace("__", "_") == name or f"{old}_2" == name)


# What is wrong with one feature, each in its own way: its type, and tags without their prefix.
OF_A_FEATURE = {
    "unknown tag": (Set(String), {"eror_rate": "0.1"}),
    "old tag": (Set(String), {"filter": "sets"}),
    "old structure": (Set(String), {"structure": "tiers"}),
    "unknown structure": (Set(String), {"structure": "tree"}),
    "no rate": (Set(String), {"error_rate": "lots"}),
    "no noise ratio": (Set(String), {"noise_ratio": "-1"}),
    "no memory": (Set(String), {"memory": "much"}),
    "no count": (Set(String), {"max_vocabulary": "0"}),
    "no vocabulary": (Set(String), {"vocabulary": "{best: 9}"}),
    "no clusters": (Set(String), {"clusters": "1", "structure": "learned_bloom"}),
    "idle clusters": (Set(String), {"clusters": "8", "structure": "sets"}),
    "clusters for memory": (Set(String), {"structure": "learned_bloom", "memory": "1MB"}),
    "two measures": (Set(String), {"noise_ratio": "1", "memory": "1MB"}),
    "no codec": (String, {"codec": "precise"}),
    "codec of another type": (Set(String), {"codec": "categorical"}),
    "static set": (Set(String), {"codec": "static"}),
    "no backing store": (String, {"codec": "backing"}),
    "idle on a scalar": (String, {"memory": "1MB", "structure": "sets"}),
    "auto on a scalar": (String, {"error_rate": "auto"}),
    "idle on an exact feature": (String, {"codec": "exact", "error_rate": "0.1", "max_vocabulary": "9"}),
    "two kinds of bins": (Float64, {"bins": "8", "precision": "0.1"}),
    "bins and a codec": (Float64, {"bins": "8", "codec": "exact"}),
    "bins of a string": (String, {"bins": "8"}),
    "no bins": (Float64, {"bins": "0"}),
    "no edges": (Float64, {"edges": "2, 1"}),
    "list of a scalar": (String, {"codec": "list"}),
    "resolution without a list": (Array(String), {"list__resolution": "1s"}),
    "times of another type": (Array(String), {"list__times_of": "y"}),
    "counts of a set": (Set(String), {"codec": "counts"}),
    "idle beside counts": (Array(String), {"codec": "counts", "memory": "1MB"}),
    "error without counts": (Array(String), {"counts__error": "2"}),
    "no error": (Array(String), {"codec": "counts", "counts__error": "much"}),
    "counts of nothing": (Array(Int64), {"counts_of": "y"}),
    "counts of another type": (Array(String), {"counts_of": "y"}),
    "cluster without sets": (Int64, {"codec": "cluster"}),
    "cluster of another type": (String, {"codec": "cluster", "cluster_of": "seen"}),
    "cluster of nothing": (Int64, {"codec": "cluster", "cluster_of": "y"}),
    "idle beside a cluster": (Int64, {"codec": "cluster", "cluster_of": "seen", "memory": "1MB"}),
    "score without weights": (Float64, {"codec": "score", "score_of": "seen"}),
    "score without a codec": (Float64, {"score_of": "seen"}),
    "float": (Float64, {}),
    "time": (UnixTimestamp, {"error_rate": "0.1"}),
    "document": (Json, {"eror_rate": "0.1"}),
}


@pytest.mark.parametrize(("dtype", "tags"), OF_A_FEATURE.values(), ids=OF_A_FEATURE.keys())
def test_the_line_of_a_feature_is_taken(dtype, tags):
    view = view_of(field("seen", Set(String)), field("x", dtype, **tags))
    message = refusal(OPTIONS, view)
    assert "'x'" in message
    (after,) = repaired(view, message)
    assert [f.name for f in after.features] == ["seen", "x"]
    assert resolve(OPTIONS, after)


@pytest.mark.parametrize("options", [OPTIONS, AUTO_OPTIONS], ids=["sketch", "auto"])
def test_all_refusals_at_once_are_repaired_by_one_paste(options):
    fields = [
        field(f"x{number}", dtype, **tags) for number, (dtype, tags) in enumerate(OF_A_FEATURE.values())
    ]
    wrong = {"sketch.eror_rate": "1", "sketch.shards": "3", "sketch.filter": "tiers", "sketch.memory": "1MB"}
    view = view_of(
        field("seen", Set(String)), *fields, tags={**wrong, "sketch.noise_ratio": "1", "team": "a"}
    )
    message = refusal(options, view)
    refused = [f.name for f in fields if f"'{f.name}'" in message]
    assert len(refused) >= len(fields) - 3  # floats, times and documents are kept by `auto`
    for wrong_tag in wrong:
        assert wrong_tag in message
    (after,) = repaired(view, message)
    assert after.tags["team"] == "a"
    assert resolve(options, after)


@pytest.mark.parametrize(
    ("one", "other"), list(itertools.combinations(["eror_rate", "filter", "memory", "clusters"], 2))
)
def test_every_wrong_tag_of_a_feature_is_named_at_once(one, other):
    wrong = {"eror_rate": "0.1", "filter": "sets", "memory": "much", "clusters": "0"}
    view = view_of(field("x", Set(String), **{one: wrong[one], other: wrong[other]}))
    message = refusal(OPTIONS, view)
    assert f"sketch.{one}" in message
    assert f"sketch.{other}" in message
    assert len([line for line in message.splitlines() if "Field(" in line]) == 1
    (after,) = repaired(view, message)
    assert resolve(OPTIONS, after)


# Features that cannot be in one view.
OF_A_VIEW = {
    "lists without a ttl": ([field("a", Array(String), codec="list")], {}, timedelta(0)),
    "lists beside others": (
        [field("a", Array(String), codec="list"), field("b", Set(String)), field("c", String)],
        {},
        TTL,
    ),
    "times of no list": (
        [field("a", Array(String), codec="list"), field("b", Array(UnixTimestamp), list__times_of="c")],
        {},
        TTL,
    ),
    "times twice": (
        [
            field("a", Array(String), codec="list"),
            field("b", Array(UnixTimestamp), list__times_of="a"),
            field("c", Array(UnixTimestamp), list__times_of="a"),
        ],
        {},
        TTL,
    ),
    "counts twice": (
        [
            field("a", Array(String), codec="counts"),
            field("b", Array(Int64), counts_of="a"),
            field("c", Array(Int32), counts_of="a"),
        ],
        {},
        TTL,
    ),
    "static beside others": ([field("a", String, codec="static"), field("b", Set(String))], {}, TTL),
    "clusters of some": (
        [field("seen", Set(String)), field("a", Int64, codec="cluster", cluster_of="seen, read")],
        {},
        TTL,
    ),
    "names by case": ([field("a", String), field("A", String), field("b", Set(String))], {}, TTL),
    "names of the row log": ([field("__nulls", String), field("b", Set(String))], {}, TTL),
    "a wrong tag of the view": ([field("a", String)], {"sketch.memory": "much", "team": "b"}, TTL),
    "two measures of the view": (
        [field("a", Set(String)), field("b", Set(String))],
        {"sketch.memory": "1MB", "sketch.noise_ratio": "1"},
        TTL,
    ),
}


@pytest.mark.parametrize(("fields", "tags", "ttl"), OF_A_VIEW.values(), ids=OF_A_VIEW.keys())
def test_the_lines_of_a_view_are_taken(fields, tags, ttl):
    view = view_of(*fields, tags=tags, ttl=ttl)
    views = repaired(view, refusal(OPTIONS, view))
    assert all(resolve(OPTIONS, after) for after in views)
    assert views[0].tags.get("team") == tags.get("team")


def test_every_missing_or_ill_typed_file_is_named_with_its_line(tmp_path):
    (tmp_path / "words.json").write_text('["a"]')
    view = view_of(
        field("a", Set(Int64), vocabulary="{file: none.json}"),
        field("b", Set(Int64), vocabulary="{file: words.json}", noise_ratio="1"),
        field("c", Set(String), vocabulary="{file: words.json}"),
        field("d", Float64, codec="score", score_of="c", score__weights="none.json"),
    )
    problems = list(file_problems(resolve(AUTO_OPTIONS, view, tmp_path), view))
    assert [str(problem).split("'")[1] for problem in problems] == ["a", "b", "d"]
    lines = [line for problem in problems for line in problem.lines]
    after = view_of(*eval(f"[{' '.join(lines)}]", dict(NAMES)), view.features[2])
    assert after.features[1].tags == {"sketch.noise_ratio": "1"}
    assert not list(file_problems(resolve(AUTO_OPTIONS, after, tmp_path), after))


def test_a_missing_file_is_named_beside_wrong_tags(tmp_path):
    view = view_of(
        field("a", Set(Int64), memory="abc"),
        field("b", Set(Int64), vocabulary="{file: none.json}", noise_ratio="1"),
        field("c", Set(String), codec="nonsense", vocabulary="{file: none.json}"),
        field("d", Float64, codec="score", score_of="c", score__weights="none.json"),
    )
    with pytest.raises(SettingsError) as refused:
        resolve(AUTO_OPTIONS, view, tmp_path)
    message = str(refused.value)
    assert [name for name in "abcd" if f"feature '{name}'" in message.partition("Paste:")[0]] == list("abcd")
    (after,) = repaired(view, message)
    assert {field.name for field in after.features} == set("abcd")
    assert next(field.tags for field in after.features if field.name == "b") == {"sketch.noise_ratio": "1"}
    assert not list(file_problems(resolve(AUTO_OPTIONS, after, tmp_path), after))


def test_a_file_that_the_view_names_is_a_matter_of_its_tags(tmp_path):
    tags = {"sketch.vocabulary": "{file: none.json}", "team": "a"}
    view = view_of(field("a", Set(Int64)), field("b", Set(Int64)), tags=tags)
    problems = list(file_problems(resolve(AUTO_OPTIONS, view, tmp_path), view))
    assert len(problems) == 2
    lines = [line for problem in problems for line in problem.lines]
    assert lines == ['tags={"team": "a"},  # of feature view \'history\'']


@pytest.mark.parametrize(
    ("old", "new"), [("tiers", "weighted_bloom"), ("uniform", "bloom"), ("sets", "sets")]
)
def test_the_line_of_an_old_option_is_taken(old, new):
    with pytest.raises(ValueError, match="'filter' is called 'structure' now") as caught:
        SketchOnlineStoreConfig(type="sketch", path="data", filter=old)
    pasted = str(caught.value).partition("Paste:\n")[2].splitlines()[0]
    options = yaml.safe_load(pasted)
    assert options == {"structure": new}
    assert SketchOnlineStoreConfig(type="sketch", path="data", **options).structure == new


def test_a_feature_that_no_setting_of_its_own_repairs_is_kept_exactly():
    options = SimpleNamespace(**{**vars(OPTIONS), "structure": "learned_bloom"})
    view = view_of(field("a", Set(String)), tags={"sketch.memory": "1MB"})
    (after,) = repaired(view, refusal(options, view))
    assert resolve(options, after).features["a"].codec.is_exact


def test_shards_and_a_backing_store():
    options = SimpleNamespace(**{**vars(AUTO_OPTIONS), "backing_store": {"type": "redis"}})
    view = view_of(field("a", Json), field("b", Json), tags={"sketch.shards": "4", "team": "a"})
    message = refusal(options, view)
    assert all(f"feature {name!r}" in message for name in "ab")
    (after,) = repaired(view, message)
    assert after.tags == {"sketch.shards": "1", "team": "a"}
    assert resolve(options, after)
