"""What changed between two versions, and what happened to an entity: through Python, commands and pages."""

import json
import math
import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser

import pandas as pd
import pytest
from feast import Field
from feast.protos.feast.types.Value_pb2 import DoubleSet, Int64Set, Value
from feast.types import Array, Bool, Float32, Float64, Int64, Set, String, UnixTimestamp

from feast_sketch_store.errors import RowError, SettingsError, StorageError
from feast_sketch_store.operations import entity_history as history_of
from feast_sketch_store.operations import maintenance
from feast_sketch_store.operations.entity_history import entity_history
from feast_sketch_store.operations.versions import Mover, diff
from feast_sketch_store.row_log import RowLog
from tests.helpers import repository
from tests.helpers.browser import layout
from tests.helpers.cases import for_each
from tests.helpers.keys import user_hashes, user_key
from tests.helpers.repository import another, copy_repository, make_repository, make_view, read_users, run_cli

pytestmark = pytest.mark.slow

EVENT = datetime(2026, 5, 1, tzinfo=UTC)
USERS = range(40)


def make(folder, fields, tags=None, **options):
    """A repository with a view that writes do not seal."""
    view = make_view(fields, pushed="clicks", tags=tags, ttl=timedelta(days=36_500))
    return make_repository(folder, view, **{"refresh": 0, "compaction": "job", **options})


def push(store, items, event=EVENT, **more):
    """Push a row of each user in a dictionary of their items."""
    repository.push(store, user_id=[*items], viewed=[*items.values()], event=event, **more)


def seal(store):
    assert maintenance.seal(store, "history")


@pytest.fixture(scope="module", params=[1, 4], ids=lambda number: f"{number} shards")
def two_versions(request, tmp_path_factory):
    """Two sealed versions: user 0 got 9 items, users 1 to 4 lost item 7, 40 was added, 39 deleted."""
    folder = tmp_path_factory.mktemp("versions")
    store = make(folder, {"viewed": Set(Int64)}, shards=request.param, structure="sets")
    push(store, {user: [user % 5, 7] for user in USERS})
    seal(store)
    changed = {0: [*range(100, 109)]} | {user: [user] for user in range(1, 5)} | {40: [1]}
    push(store, changed, EVENT + timedelta(1))
    maintenance.delete(store, "history", [{"user_id": 39}])
    seal(store)
    return folder


@pytest.fixture
def store(two_versions, tmp_path):
    """A copy of the repository with two versions."""
    return copy_repository(two_versions, tmp_path)


def run(store, *arguments, status=0):
    done = run_cli(store.repo_path, *arguments, status=status)
    return done.stdout if status == 0 else done.stderr


def opened(store):
    return maintenance.opened_view(store, "history")


class TestDiff:
    """Two versions of a view."""

    def test_entities_facts_and_movers(self, store):
        found = diff(opened(store))
        assert (found.entities, found.added, found.removed, found.replaced) == ((40, 40), 1, 1, 5)
        (viewed,) = found.features
        assert (viewed.before.facts, viewed.after.facts) == (80, 80 - 2 + 7 - 4 + 1)
        assert viewed.before.lengths == {**dict.fromkeys(viewed.before.lengths, 0), "2": 40}
        lengths = {length: number for length, number in viewed.after.lengths.items() if number}
        assert lengths == {"1": 5, "2": 34, "9-16": 1}
        assert viewed.values[0] == Mover("7", 40, 34)
        assert Mover("100", 0, 1) in viewed.values
        assert found.movers[0] == Mover("user_id=0", 2, 9)
        gone = found.movers[1]
        assert (gone.before, gone.after) == (2, 0), "a seal removed the key of a deleted entity from the log"
        assert bytes.fromhex(gone.name) == user_hashes([39]).tobytes()
        assert (viewed.before.structure, viewed.after.structure) == ("sets", "sets")
        assert viewed.before.size_bytes > 0 < found.size_bytes[0]
        assert viewed.before.error_rate is None

    def test_versions_are_chosen_and_now_has_unsealed_rows(self, store):
        older, newer = map(_text_of, _versions(store))
        assert diff(opened(store), older, newer) == diff(opened(store))
        push(store, {3: [1, 2, 3, 4]}, EVENT + timedelta(2))
        found = diff(opened(store), newer, "now")
        assert (found.added, found.removed, found.replaced) == (0, 0, 1)
        assert found.movers == [Mover("user_id=3", 1, 4)]
        assert diff(opened(store), newer) == found
        assert diff(opened(store), newer, newer).movers == []

    @pytest.mark.usefixtures("store")
    def test_a_seal_with_other_settings_has_the_version_of_the_one_before(self, tmp_path):
        store = another(tmp_path, structure="bloom")
        seal(store)
        found = diff(opened(store))
        assert found.before == found.after == ",".join(map(str, _versions(store)[1]))
        (viewed,) = found.features
        assert (viewed.before.structure, viewed.after.structure) == ("sets", "bloom")
        assert viewed.before.error_rate is None
        assert viewed.after.error_rate > 0

    def test_a_view_with_fewer_entities_than_shards(self, tmp_path):
        store = make(tmp_path, {"viewed": Set(Int64)}, shards=16)
        assert diff(opened(store), "now", "now").entities == (0, 0)
        push(store, {1: [5], 2: [6]})
        seal(store)
        push(store, {3: [7]})
        seal(store)
        assert diff(opened(store)).entities == (2, 3)

    @for_each("version", ["99999", "1,2,3", "last", "-1"])
    def test_unknown_versions_are_refused(self, store, version):
        num_shards = len(opened(store).shards)
        given = ",".join([version] * num_shards) if version == "99999" else version
        with pytest.raises(SettingsError, match="version"):
            diff(opened(store), given)

    def test_the_command_prints_tables_json_and_a_page(self, store, tmp_path):
        printed = run(store, "diff", "history", "--html", str(tmp_path / "page.html"))
        for line in (
            r"\.\.\. added +1",
            r"facts of viewed +80 +82 +\+2\.5 %",
            r"user_id=0 +2 +9 +\+350\.0 %",
        ):
            assert re.search(line, printed), line
        found = json.loads(run(store, "diff", "history", "--json"))
        assert found["entities"] == [40, 40]
        assert found["features"][0]["values"][0] == {"name": "7", "before": 40, "after": 34}
        page = Page.of(tmp_path / "page.html")
        assert page.tables["entities"][0][0] == "user_id=0"
        assert page.tables["structures"] == [["viewed", "sets", "sets", "-", "-"]]
        assert {"facts", "sizes", "lengths of viewed"} <= page.pictures.keys()
        assert page.pictures["facts"] == ["viewed", "80", "82"]
        assert not page.loads


class TestHistory:
    """The rows of one entity."""

    def test_rows_with_their_commits_and_what_reads_showed(self, store):
        push(store, {2: [5]}, EVENT - timedelta(1))  # late
        push(store, {2: [5, 6]}, EVENT + timedelta(2))
        maintenance.delete(store, "history", [{"user_id": 2}])
        push(store, {2: [8]}, EVENT)
        found = entity_history(store, "history", {"user_id": 2})
        shown = [row.shown and row.shown["viewed"] for row in found.rows[-4:]]
        assert shown == [[2], [5, 6], None, [8]]
        assert [row.is_deletion for row in found.rows[-4:]] == [False, False, True, False]
        assert not any(row.is_sealed for row in found.rows[-4:])
        assert found.rows[0].is_sealed
        assert found.rows[-1].event_timestamp == EVENT.isoformat()
        numbers = [int(row.commit.split("-")[-1]) for row in found.rows]
        assert numbers == sorted(numbers)
        assert found.shown == {"viewed": [8]}
        assert found.not_written == {}
        seal(store)
        assert all(row.is_sealed for row in entity_history(store, "history", {"user_id": 2}).rows)

    def test_a_row_that_is_written_meanwhile_is_not_called_wrong(self, store, monkeypatch):
        real, days = history_of._rows_of, iter([2])

        def rows_of(*arguments):
            yield from real(*arguments)
            for day in days:
                push(store, {2: [11, 12]}, EVENT + timedelta(day))

        monkeypatch.setattr(history_of, "_rows_of", rows_of)
        found = entity_history(store, "history", {"user_id": 2})
        assert (found.shown, found.not_written) == ({"viewed": [11, 12]}, {})
        assert found.rows[-1].values["viewed"] == [11, 12]

    @for_each(
        "ask",
        [lambda store: diff(opened(store)), lambda store: entity_history(store, "history", {"user_id": 2})],
    )
    def test_rows_that_a_vacuum_removes_meanwhile_are_not_damaged(self, store, monkeypatch, ask):
        real = RowLog.read

        def read(log, *known):
            found = real(log, *known)
            if not known:  # not of a refresh
                monkeypatch.undo()
                maintenance.delete(store, "history", [{"user_id": user} for user in range(10, 30)])
                seal(store)
                assert opened(store).vacuum() > 0
            return found

        monkeypatch.setattr(RowLog, "read", read)
        with pytest.raises(StorageError, match="were replaced while they were read"):
            ask(store)

    def test_an_entity_without_rows(self, store):
        found = entity_history(store, "history", {"user_id": 1_000})
        assert (found.rows, found.shown) == ([], None)
        assert "has no row of user_id=1000" in run(store, "history", "history", "user_id=1000")
        with pytest.raises(RowError, match="join keys"):
            entity_history(store, "history", {"user": 1})
        assert "not a whole number" in run(store, "history", "history", "user_id=x", status=2)

    def test_the_command_prints_tables_json_and_a_page(self, store, tmp_path):
        push(store, {2: [5, 6]}, EVENT + timedelta(2))
        printed = run(store, "history", "history", "user_id=2", "--html", str(tmp_path / "page.html"))
        assert re.search(r"no +.*\[5, 6\]", printed)
        found = json.loads(run(store, "history", "history", "user_id=2", "--json"))
        assert found["rows"][-1]["shown"] == found["shown"] == {"viewed": [5, 6]}
        page = Page.of(tmp_path / "page.html")
        assert page.tables["now"] == [["viewed", "[5, 6]"]]
        assert page.tables["rows"][-1][2] == "no"
        assert page.pictures["lengths of viewed"][-1] == "2"
        assert not page.loads


def test_a_view_that_was_never_sealed_has_nothing_to_compare(tmp_path):
    store = make(tmp_path, {"viewed": Set(Int64)})
    push(store, {1: [5]})
    with pytest.raises(SettingsError, match="'history' has no snapshot to compare; seal it first"):
        diff(opened(store))


def test_values_that_a_filter_adds_are_told_apart(tmp_path):
    store = make(tmp_path, {"viewed": Set(Int64)}, structure="bloom", target="error 20%")
    push(store, {user: [*range(user, user + 20)] for user in range(60)})
    seal(store)
    added = 0
    for user in range(20):
        found = entity_history(store, "history", {"user_id": user})
        written = {*range(user, user + 20)}
        assert {*found.shown["viewed"]} - written == {*found.not_written.get("viewed", [])}
        assert {*found.rows[-1].shown["viewed"]} == written
        added += len(found.not_written.get("viewed", []))
    assert added
    rate = diff(opened(store), None, "now").features[0].after.error_rate
    assert 0 < rate <= 0.2


def listed(**tags):
    return [
        Field(name="viewed", dtype=Array(String), tags={"sketch.codec": "list", **tags}),
        Field(name="at", dtype=Array(UnixTimestamp), tags={"sketch.of": "viewed"}),
    ]


def counted(**tags):
    return [
        Field(name="viewed", dtype=Array(String), tags={"sketch.codec": "counts", **tags}),
        Field(name="times", dtype=Array(Int64), tags={"sketch.of": "viewed"}),
    ]


def test_each_item_of_a_list_has_its_time(tmp_path):
    store = make(tmp_path, listed(**{"sketch.list": "{limit: 2}"}))
    for number, item in enumerate(("a", "b", "c")):
        event = EVENT + timedelta(hours=number)
        push(store, {1: [item]}, event, at=[[event]])
        if not number:
            seal(store)
    found = entity_history(store, "history", {"user_id": 1})
    assert [row.shown["viewed"] for row in found.rows] == [["a"], ["b", "a"], ["c", "b"]]
    assert [row.is_sealed for row in found.rows] == [True, False, False]
    assert [row.values["viewed"] for row in found.rows] == [["a"], ["b"], ["c"]]
    assert read_users(store, ["history:viewed"], [1])["viewed"] == [found.shown["viewed"]]


@for_each(
    "fields, more",
    [
        (
            listed(**{"sketch.list": "{resolution: 1h}"}),
            {"at": [[EVENT + timedelta(minutes=5), EVENT + timedelta(minutes=50)]]},
        ),
        (counted(**{"sketch.target": "error 10%"}), {"times": [[100, 107]]}),
    ],
)
def test_rounded_times_and_counts_are_not_taken_for_values_of_a_filter(tmp_path_factory, fields, more):
    store = make(tmp_path_factory.mktemp("rounded"), fields)
    push(store, {1: ["a", "b"]}, **more)
    seal(store)
    found = entity_history(store, "history", {"user_id": 1})
    assert found.shown != found.rows[-1].shown
    assert found.not_written == {}


@pytest.mark.parametrize("num_shards", [1, 4])
@for_each(
    "fields, tags, facts, moved",
    [
        (listed(), {}, (6, 12), Mover("b", 0, 3)),
        ({"viewed": Set(String)}, {"sketch.rows": "append"}, (6, 9), Mover("b", 0, 3)),
        (counted(), {}, (6, 6), Mover("a", 3, 0)),
    ],
)
def test_versions_of_lists_counts_and_sets_that_grow(
    tmp_path_factory, num_shards, fields, tags, facts, moved
):
    store = make(tmp_path_factory.mktemp("grown"), fields, tags, shards=num_shards, structure="sets")
    beside = [field.name for field in store.get_feature_view("history").features if field.name != "viewed"]
    for item, event in (("a", EVENT), ("b", EVENT + timedelta(1))):
        values = {"at": [[event] * 2] * 3, "times": [[1, 2]] * 3}
        more = {name: values[name] for name in beside}
        push(store, {user: [item, f"own {user}"] for user in range(3)}, event, **more)
        seal(store)
    found = diff(opened(store))
    assert found.entities == (3, 3)
    viewed = found.features[0]
    assert (viewed.before.facts, viewed.after.facts) == facts
    assert moved in viewed.values
    written = entity_history(store, "history", {"user_id": 0}).rows[0].values
    assert {*written} <= {"viewed", "times of viewed", "counts of viewed"}
    now = diff(opened(store), found.after, "now")
    assert now.features[0].before == now.features[0].after
    assert not now.movers


def test_values_of_all_types_are_named(tmp_path):
    types = {"text": String, "flag": Bool, "price": Float64, "seen": UnixTimestamp, "bag": Array(Float32)}
    store = make(tmp_path, types, {"sketch.default_codec": "exact"})
    event = pd.Timestamp(EVENT)
    for number in range(2):
        row = {"user_id": [1], "text": [f"t{number}"], "flag": bool(number), "price": number + 0.5}
        row |= {"seen": event + timedelta(number), "bag": [[0.25, float(number)]], "event": event}
        repository.push(store, **row)
        seal(store)
    moved = {f.name: {(m.name, m.before, m.after) for m in f.values} for f in diff(opened(store)).features}
    assert moved["text"] == {("t0", 1, 0), ("t1", 0, 1)}
    assert moved["flag"] == {("False", 1, 0), ("True", 0, 1)}
    assert moved["price"] == {("0.5", 1, 0), ("1.5", 0, 1)}
    assert {name[:10] for name, *_ in moved["seen"]} == {"2026-05-01", "2026-05-02"}
    assert moved["bag"] == {("0.0", 1, 0), ("1.0", 0, 1)}
    shown = entity_history(store, "history", {"user_id": 1}).shown
    assert (shown["text"], shown["flag"], shown["bag"]) == ("t1", True, [0.25, 1.0])


def test_values_that_differ_from_themselves_or_that_python_cannot_represent(tmp_path):
    types = {"prices": Set(Float64), "price": Float64, "seen": UnixTimestamp, "moments": Set(UnixTimestamp)}
    store = make(tmp_path, types, structure="sets")
    late = 2**42  # after the year 9999
    row = {
        "prices": Value(double_set_val=DoubleSet(val=[math.nan, 1.5])),
        "seen": Value(unix_timestamp_val=late),
        "moments": Value(unix_timestamp_set_val=Int64Set(val=[1, late])),
    }
    for days in range(2):
        rows = [
            (user_key(user), {**row, "price": Value(double_val=price)}, EVENT + timedelta(days), None)
            for user, price in enumerate([0.0, -0.0, math.nan])
        ]
        opened(store).write(rows)
        seal(store)
    found = [(feature.after.facts, feature.values) for feature in diff(opened(store)).features]
    assert found == [(6, []), (3, []), (3, []), (6, [])]
    history = json.loads(run(store, "history", "history", "user_id=2", "--json"))
    assert history["not_written"] == {}
    assert history["rows"][0]["values"]["moments"] == ["1970-01-01 00:00:01+00:00", str(late * 10**6)]
    assert str(late) in history["shown"]["seen"]


def test_floats_that_json_lacks_are_texts(tmp_path):
    store = make(tmp_path, {"price": Float64})
    repository.push(store, user_id=[1], price=[float("-inf")], event=EVENT)
    printed = run(store, "history", "history", "user_id=1", "--json")
    assert json.loads(printed, parse_constant=pytest.fail)["shown"] == {"price": "-Infinity"}


def test_a_page_shows_names_as_they_are(tmp_path):
    store = make(tmp_path, {"viewed": Set(String)})
    nasty = "<script>alert(1)</script>"
    push(store, {1: [nasty]})
    seal(store)
    push(store, {1: ["a", "b"]}, EVENT + timedelta(1))
    run(store, "diff", "history", "--html", str(tmp_path / "diff.html"))
    run(store, "history", "history", "user_id=1", "--html", str(tmp_path / "history.html"))
    error = run(store, "diff", "history", "--html", str(tmp_path / "no" / "diff.html"), status=1)
    assert "diff.html: the page cannot be written: No such file" in error
    nowhere = str(tmp_path / "no" / "page.html")
    for command in (["diff", "history"], ["history", "history", "user_id=1"]):
        refused = run_cli(store.repo_path, *command, "--json", "--html", nowhere, status=1)
        assert json.loads(refused.stdout)["view"] == "history"
    for name in ("diff", "history"):
        assert nasty not in (tmp_path / f"{name}.html").read_text()
        assert not Page.of(tmp_path / f"{name}.html").loads
    assert Page.of(tmp_path / "diff.html").tables["values of viewed"][0][0] == nasty


@pytest.mark.parametrize("width", [390, 1200])
def test_pages_in_a_browser(store, tmp_path, width):
    """Bars are as long as their figures say, texts stay apart and inside, and nothing scrolls sideways."""
    push(store, {0: [*range(100, 140)], 2: [5, 6]}, EVENT + timedelta(2))
    run(store, "diff", "history", _text_of(_versions(store)[1]), "now", "--html", str(tmp_path / "diff.html"))
    run(store, "history", "history", "user_id=2", "--html", str(tmp_path / "history.html"))
    for name, bars in (("diff", ("before", "after")), ("history", ("after",))):
        found = layout(tmp_path / f"{name}.html", tmp_path, width)
        assert found["width"] <= width
        for drawn in found["pictures"].values():
            assert drawn["right"] <= width
            assert not drawn["overlaps"]
        drawn = found["pictures"]["lengths of viewed"]["bars"]
        assert {kind for kind, _, _ in drawn} == {*bars}
        assert len({colour for _, _, colour in drawn}) == len(bars), "before and after have their own colours"
    facts = layout(tmp_path / "diff.html", tmp_path, width)["pictures"]["facts"]
    before, after = (length for _, length, _ in facts["bars"])
    assert after / before == pytest.approx((82 - 9 + 40 - 1 + 2) / 82, rel=0.02)


def _text_of(versions):
    return ",".join(map(str, versions))


def _versions(store):
    """The versions of the older and the newer snapshot of each shard."""
    files = [part.snapshots.list() for part in opened(store).shards.values()]
    return [own[1].version for own in files], [own[0].version for own in files]


class Page(HTMLParser):
    """The DOM of a page: cells of tables and texts of pictures by name, and what it would load."""

    def __init__(self):
        super().__init__()
        self.tables, self.pictures, self.loads, self._name, self._cell = {}, {}, [], "", None

    @classmethod
    def of(cls, path):
        page = cls()
        page.feed(path.read_text("utf-8"))
        page.close()
        return page

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.loads += [value for name, value in attributes if name in ("src", "href", "srcset")]
        self.loads += [tag] if tag in ("script", "link", "img", "iframe") else []
        if tag == "table":
            self._name, self.tables[given["data-name"]] = given["data-name"], []
        elif tag == "tbody":
            self._in_body = True
        elif tag == "tr" and self._name:
            self.tables[self._name].append([])
        elif tag == "svg":
            self._name, self.pictures[given["aria-label"]] = given["aria-label"], []
        elif tag in ("td", "text"):
            self._cell = ""

    def handle_data(self, data):
        if self._cell is not None:
            self._cell += data

    def handle_endtag(self, tag):
        if tag == "td":
            self.tables[self._name][-1].append(self._cell)
        elif tag == "text":
            self.pictures[self._name].append(self._cell)
        elif tag == "table":
            self.tables[self._name] = [row for row in self.tables[self._name] if row]
        if tag in ("td", "text"):
            self._cell = None
