"""A structure that a test adds: one module and one registration, and every part of the store knows it.

The structure comes first: each listed row has a bitmap of the values of a feature.
"""

import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from feast import Entity, FeatureStore, FeatureView, Field, FileSource, ValueType
from feast.types import Int64, Set, String

from feast_sketch_store import SketchReader, open_view, through_sketch
from feast_sketch_store.errors import SettingsError
from feast_sketch_store.kernel import to_bits
from feast_sketch_store.operations import maintenance
from feast_sketch_store.planning import plan_view
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures import registry
from feast_sketch_store.structures.answer import CsrAnswer
from feast_sketch_store.structures.base import SealedFeature, Structure
from feast_sketch_store.structures.feature_rows import in_order
from feast_sketch_store.structures.goals import Offer
from feast_sketch_store.structures.parts import WORDS, checked, prefixed
from tests.helpers.processes import run_command


@dataclass(frozen=True)
class BitmapFeature(SealedFeature):
    """A bit for each value: row ``r`` has the words from ``r * width`` on; ``check`` refuses damaged ones."""

    codec: FeatureCodec
    vocabulary: Vocabulary
    words: np.ndarray
    check: object = None

    structure = "bitmap"

    @property
    def width(self):
        return -(-len(self.vocabulary) // 64)

    @property
    def num_facts(self):
        return int(np.bitwise_count(self.words).sum())

    def read(self, found):
        if self.check is not None and self.width:
            self.check(found.rows * self.width, self.width)
        words = (
            self.words.reshape(-1, self.width)[found.rows] if self.width else np.zeros((len(found.rows), 0))
        )
        bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
        rows, ids = np.nonzero(bits)
        lengths = np.bincount(rows, minlength=len(found.rows))
        csr = Csr.of_lengths(lengths, ids.astype(np.int32))
        return CsrAnswer(self.decoder, found.states[self.codec.feature], csr)


@dataclass(frozen=True)
class Bitmaps(Structure):
    """All features that are kept as bitmaps, of the same rows."""

    features: dict
    length: int

    kind = "bitmap"
    names = ("bitmap",)
    lists_rows = True

    @classmethod
    def offer(cls, goal, popularity):
        num_bytes = popularity.num_rows * 8 * popularity.window_words
        return Offer(cls.kind, num_bytes=num_bytes) if goal.structure == "bitmap" else None

    @classmethod
    def build(cls, features, rows):
        made = {}
        for feature, _ in features:
            members = in_order([feature], rows.order)
            words = to_bits(members.indptr, members.ids, len(feature.vocabulary)).reshape(-1)
            codec = feature.sealed_codec
            made[codec.feature] = BitmapFeature(codec, feature.vocabulary, words)
        return cls(made, len(rows.order))

    @property
    def num_rows(self):
        return self.length

    @property
    def size_bytes(self):
        return sum(f.words.nbytes + f.vocabulary.size_bytes for f in self.features.values())

    @property
    def fact_bits(self):
        return 8 * sum(feature.words.nbytes for feature in self.features.values())

    def to_snapshot(self):
        entries, arrays = [], {}
        for number, feature in enumerate(self.features.values()):
            entries.append({"name": feature.codec.feature, "value_field": feature.codec.value_field})
            arrays[f"{number}.{WORDS}"] = feature.words
            arrays |= prefixed(f"{number}.vocabulary", feature.vocabulary.to_arrays())
        return {"features": entries, "num_rows": self.length}, arrays

    @classmethod
    def from_snapshot(cls, description, parts):
        made, num_rows = {}, checked(description["num_rows"], int)
        for number, entry in enumerate(description["features"]):
            codec = FeatureCodec(checked(entry["name"], str), entry["value_field"])
            vocabulary = parts.vocabulary(f"{number}.vocabulary", codec)
            feature = made[codec.feature] = BitmapFeature(codec, vocabulary, *parts.words(str(number)))
            if len(feature.words) != num_rows * feature.width:
                raise ValueError(f"the bitmaps of {codec.feature!r} are not those of {num_rows} rows")
        return cls(made, num_rows)


NUM_USERS, NOON = 100, datetime(2026, 5, 1, 12, tzinfo=UTC)
VIEWED = {user: [number for number in range(80) if user % (number + 1) == 0] for user in range(NUM_USERS)}
VIEWED[7] = []


@pytest.fixture(scope="module")
def registered():
    """The toy, known while the tests of this module run that want it."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(registry, "_kinds", dict(registry._kinds))
        registry.register(Bitmaps)
        yield


@pytest.fixture(scope="module", autouse=True)
def _fixed_salt():
    """The salt decides in which order rows lie, and which false positives there are."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("feast_sketch_store.layers.build.new_salt", lambda: (3, 5))
        yield


@pytest.fixture(scope="module")
def make_store(tmp_path_factory):
    """Makes a repository whose feature ``viewed`` has the given tags, with its rows materialized."""

    def make(tags, option="auto"):
        tmp_path = tmp_path_factory.mktemp("repository")
        (tmp_path / "feature_store.yaml").write_text(
            "project: shop\nprovider: local\nregistry: registry.db\nentity_key_serialization_version: 3\n"
            "online_store: {type: sketch, path: sketch, refresh_interval_seconds: 0, seal_min_rows: 50, "
            f"structure: {option}}}\n"
        )
        pd.DataFrame(
            {
                "user_id": list(VIEWED),
                "viewed": list(VIEWED.values()),
                "bought": [[f"item {user % 9}"] for user in VIEWED],
                "country": ["FR" if user % 2 else "DE" for user in VIEWED],
                "event": NOON,
            }
        ).to_parquet(tmp_path / "rows.parquet")
        user = Entity(name="user", join_keys=["user_id"], value_type=ValueType.INT64)
        view = FeatureView(
            name="history",
            entities=[user],
            schema=[
                Field(name="viewed", dtype=Set(Int64), tags=tags),
                Field(name="bought", dtype=Set(String)),
                Field(name="country", dtype=String),
            ],
            source=FileSource(path=str(tmp_path / "rows.parquet"), timestamp_field="event"),
            ttl=timedelta(days=36_500),
        )
        store = FeatureStore(repo_path=str(tmp_path))
        store.apply([user, view])
        store.materialize(NOON - timedelta(days=1), NOON + timedelta(days=1))  # which seals
        return store

    return make


@pytest.fixture(scope="module")
def store(registered, make_store):
    return make_store({"sketch.structure": "bitmap"})


READ = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
if sys.argv[3] == "registered":
    from test_toy_structure import Bitmaps
    from feast_sketch_store.structures import registry
    registry.register(Bitmaps)
from feast_sketch_store import SketchReader
reader = SketchReader(Path(sys.argv[1]), "history")
print([sorted(row) for row in reader.arrow("viewed", list(range(100))).to_pylist()])
"""


def read_in_another_process(repository, knows_it):
    command = [sys.executable, "-c", READ, str(repository), str(Path(__file__).parent)]
    command.append("registered" if knows_it else "unknown")
    return run_command(command)


def test_a_store_that_does_not_know_it_refuses_the_tag(make_store, monkeypatch):
    monkeypatch.setattr(registry, "_kinds", {n: k for n, k in registry._kinds.items() if k is not Bitmaps})
    with pytest.raises(
        SettingsError,
        match=r"'bitmap'.*one of auto, bloom, compact_sets, learned_bloom, sandwiched_bloom, sets, "
        r"weighted_bloom",
    ):
        make_store({"sketch.structure": "bitmap"})


def test_a_tag_keeps_a_feature_in_it_and_feast_reads_it(store):
    view = open_view(store, "history")
    assert view.stats().structures["viewed"] == "bitmap"
    answer = store.get_online_features(
        ["history:viewed", "history:bought", "history:country"],
        [{"user_id": user} for user in (*VIEWED, 10**6)],
    ).to_dict()
    assert [sorted(row) for row in answer["viewed"][:-1]] == list(VIEWED.values())
    assert {"item 0"} <= set(answer["bought"][0])
    assert answer["viewed"][-1] is None


def test_another_process_reads_it_from_the_snapshot(store):
    done = read_in_another_process(store.repo_path, knows_it=True)
    assert (done.stdout.strip(), done.stderr) == (str(list(VIEWED.values())), "")


def test_a_process_that_does_not_know_it_refuses_it_by_its_name(store):
    done = read_in_another_process(store.repo_path, knows_it=False)
    assert done.returncode
    assert "a structure of the kind 'bitmap', which this process does not know" in done.stderr
    assert "sketch/shop" in done.stderr


def test_inspect_shows_it(store):
    report = {feature.name: feature for feature in maintenance.inspect(store, "history").features}["viewed"]
    num_facts = sum(map(len, VIEWED.values()))
    assert (report.structure, report.vocabulary, report.facts) == ("bitmap", 80, num_facts)
    assert report.size_bytes == NUM_USERS * 2 * 8 + 80 * 8
    assert (report.expected_rate, report.sampled_rate) == (0, 0)


def test_verify_finds_it_sound_and_what_it_lost(store, monkeypatch):
    found = maintenance.verify(store, "history")
    assert (found.problems, found.compared_entities) == ([], NUM_USERS)
    honest = Bitmaps.from_snapshot.__func__

    def forgetful(cls, description, parts):
        bitmaps = honest(cls, description, parts)
        words = bitmaps.features["viewed"].words.copy()
        first = np.flatnonzero(words)[0]
        words[first] &= words[first] - np.uint64(1)  # the most popular value of a row
        object.__setattr__(bitmaps.features["viewed"], "words", words)
        return bitmaps

    monkeypatch.setattr(Bitmaps, "from_snapshot", classmethod(forgetful))
    (problem,) = maintenance.verify(store, "history").problems
    assert "has lost 1 facts of feature 'viewed'" in problem


def test_a_damaged_block_of_it_is_found(store):
    view = open_view(store, "history")
    (layer,) = view.sealed()[0].layers
    (path,) = Path(store.repo_path).glob("sketch/shop/*/snapshots/*.base.safetensors")
    content, words = path.read_bytes(), layer.features["viewed"].words.tobytes()
    path.write_bytes(content.replace(words, bytes(len(words))))
    try:
        (problem,) = maintenance.verify(store, "history").problems
    finally:
        path.write_bytes(content)
    assert "'bitmap.0.words'" in problem
    assert "does not match its bytes" in problem


def test_the_reader_scores_and_asks_it(store):
    reader = SketchReader(store.repo_path, "history")
    values, users = reader.vocabulary("viewed").to_pylist(), np.arange(NUM_USERS)
    weights = np.linspace(-1, 1, len(values))
    expected = [sum(weights[values.index(value)] for value in row) for row in VIEWED.values()]
    assert reader.scores("viewed", users, weights) == pytest.approx(expected)
    has_it = [[value in row for value in (0, 1, 79, 10**6)] for row in VIEWED.values()]
    assert reader.contains("viewed", users, [0, 1, 79, 10**6]).tolist() == has_it
    answer = reader.csr("viewed", users)
    assert np.diff(answer.indptr).tolist() == list(map(len, VIEWED.values()))
    assert (
        np.bitwise_count(reader.bits("viewed", users)).sum(axis=1).tolist() == np.diff(answer.indptr).tolist()
    )


def test_training_rows_go_through_it(store):
    training = pd.DataFrame({"viewed": [[1, 2, 10**6], [], None], "country": ["FR", "DE", None]})
    shown = through_sketch(training, SketchReader(store.repo_path, "history"))
    assert [value if value is None else sorted(value) for value in shown["viewed"]] == [[1, 2], [], None]


def test_the_planner_has_a_point_of_it(store):
    plan = plan_view(store, "history")
    (point,) = [point for point in plan.points if point.curve == "bitmap"]
    assert (point.label, point.false_per_read, point.kept_share) == ("exact", 0, 1)
    tags = {"sketch.structure": "bitmap"}
    assert point.settings == {"viewed": tags, "bought": tags}
    # A bit for each value in whole words, vocabularies and states, a list of the rows and the header.
    least = NUM_USERS * (2 + 1) * 8 + 80 * 8
    assert least < point.memory_bytes < least + 6_000


def test_an_option_of_the_store_names_it(registered, make_store):
    store = make_store({}, "bitmap")
    assert open_view(store, "history").stats().structures == {
        "viewed": "bitmap",
        "bought": "bitmap",
        "country": "column",
    }


def test_a_cut_vocabulary_and_unsealed_rows_beside_it(registered, make_store):
    store = make_store({"sketch.structure": "bitmap", "sketch.vocabulary": "[0, 1, 5]"})
    reader = SketchReader(store.repo_path, "history")
    assert sorted(reader.vocabulary("viewed").to_pylist()) == [0, 1, 5]
    late = pd.DataFrame({"user_id": [6, 200], "viewed": [[5, 8], [8]], "bought": [["a"], []]})
    store.write_to_online_store("history", late.assign(country="FR", event=NOON + timedelta(hours=1)))
    found = reader.arrow("viewed", [5, 6, 200, 7]).to_pylist()
    assert [sorted(row) for row in found] == [[0], [5], [], []]
    assert maintenance.verify(store, "history").problems == []


@pytest.mark.parametrize(
    ("kind", "names", "message"),
    [
        ("bloom", (), "'bloom' already"),
        ("presence", (), "'presence' already"),
        ("another", ("sets",), "'sets' already"),
        ("another", ("auto",), "'auto' already"),
        ("a.b", (), "has a dot"),
    ],
)
def test_a_name_that_is_taken_is_refused(registered, kind, names, message):
    clash = type("Clash", (Bitmaps,), {"kind": kind, "names": names})
    with pytest.raises(ValueError, match=message):
        registry.register(clash)


def test_a_structure_that_tells_states_must_list_rows(registered):
    clash = type("Clash", (Structure,), {"kind": "x", "tells_states": True})
    with pytest.raises(ValueError, match="stores states without listing rows"):
        registry.register(clash)


def test_registering_twice_changes_nothing(registered):
    before = list(registry.kinds())
    registry.register(Bitmaps)
    assert list(registry.kinds()) == before
