"""Tables are held to what their facts are wanted for: a larger one takes the place of one that shows more, or
sets and columns do.
"""

from dataclasses import replace

import numpy as np
import pytest
from feast.protos.feast.types.Value_pb2 import StringSet, Value

from feast_sketch_store.layers import FeatureBudget, Goal, SketchLayer
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.settings.view_settings import FeatureSettings
from feast_sketch_store.storage.local import LocalStorage
from feast_sketch_store.structures import bloom
from feast_sketch_store.structures.base import RowsToSeal, Shortfall
from feast_sketch_store.structures.bloom import TOLERANCE, TablePart, fill_table
from feast_sketch_store.structures.sizing import FactClass, WeightedFacts, size_for_rates
from feast_sketch_store.view.view import View
from tests.helpers.filters import measured_fill
from tests.helpers.histories import CODEC, NEVER, items_of, put, row, settings_of
from tests.helpers.layers import build_layer

CODECS = [CODEC, FeatureCodec("name", "string_val")]
PER_ENTITY, NUM_SYMBOLS = 150, 300


def large_entities(num_entities=6):
    """Entities with half of all symbols each, whose windows move the fill of a table by percents."""
    rng = np.random.default_rng(3)
    ids = [np.sort(rng.permutation(NUM_SYMBOLS)[:PER_ENTITY]) for _ in range(num_entities)]
    indptr = np.arange(num_entities + 1) * PER_ENTITY
    places = np.arange(num_entities, dtype=np.int32)
    rows = (places, Csr(indptr, np.concatenate(ids).astype(np.int32)))
    return rng.integers(0, 2**64, (num_entities, 2), np.uint64), lambda: iter([rows])


def facts_of(structure, num_entities=6, rate=0.01):
    if structure == "bloom":
        return FactClass(num_entities * PER_ENTITY, rate)
    counts = np.full(NUM_SYMBOLS, num_entities * PER_ENTITY // NUM_SYMBOLS)
    return WeightedFacts(counts, num_entities, rate * (NUM_SYMBOLS - PER_ENTITY))


def table_of(hashes, parts, salt, growth=1.0):
    """The filter, its ranges, and 0; or None, none, and the growth that it lacks."""
    table = fill_table(parts, RowsToSeal(hashes, (salt, 99), None, growth=growth))
    return (None, (), table.growth) if isinstance(table, Shortfall) else (table[0].build(), table[1], 0)


@pytest.mark.parametrize("structure", ["bloom", "weighted_bloom"])
def test_the_ones_of_a_table_tell_what_it_shows(structure):
    hashes, rows = large_entities()
    facts, excesses, grown = facts_of(structure), [], []
    geometry = size_for_rates([facts])
    part = TablePart(facts, NUM_SYMBOLS, rows)
    for salt in range(60):
        free, *_ = table_of(hashes, [replace(part, is_held=False)], salt)
        excess = facts.excess(geometry.hashes[0], measured_fill(free))
        excesses.append(excess)
        bloom, ranges, growth = table_of(hashes, [part], salt)
        assert (bloom is not None) == (excess <= 1 + TOLERANCE)
        for _ in range(11):  # the windows of a larger table lie elsewhere
            if bloom is not None:
                break
            grown.append(growth)
            bloom, ranges, growth = table_of(hashes, [part], salt, growth)
        fill = measured_fill(bloom)
        shown = facts.excess(geometry.hashes[0], fill)
        assert ranges[0].false_positive_rate == pytest.approx(0.01 * shown, rel=0.01)
    assert min(excesses) < 0.9
    assert max(excesses) > 1.1
    assert max(grown) < 1.3


def test_what_is_not_held_may_show_more():
    hashes, rows = large_entities()
    part = TablePart(facts_of("bloom"), NUM_SYMBOLS, rows, is_held=False)
    assert all(table_of(hashes, [part], salt)[0] for salt in range(20))


def test_a_table_without_parts():
    bloom, ranges, _ = table_of(np.zeros((3, 2), np.uint64), [], 1)
    assert not ranges
    assert bloom.words.shape == (2,)


@pytest.fixture
def sizing_of(monkeypatch):
    """Changes the sizes of tables behind the back of their builder."""

    def change(factor):
        def sized(classes):
            geometry = size_for_rates(classes)
            return replace(geometry, num_bits=max(1, int(geometry.num_bits * factor)))

        monkeypatch.setattr(bloom, "size_for_rates", sized)

    return change


def rows_of(make_rows, num_users=200):
    return make_rows(
        [
            (
                user,
                {
                    "viewed": Value(
                        string_set_val=StringSet(val=[f"item {user % 40}", f"item {user % 23}", "tea"])
                    ),
                    "name": Value(string_val=f"user {user % 50}"),
                },
                user % 3,
            )
            for user in range(num_users)
        ],
        CODECS,
    )


TARGETS = {"bloom": Goal("error_rate", 0.01), "weighted_bloom": Goal("noise_ratio", 0.1, "weighted_bloom")}


@pytest.mark.parametrize("structure", TARGETS)
def test_a_table_that_is_too_small_is_filled_again(make_rows, sizing_of, monkeypatch, structure):
    monkeypatch.setattr("feast_sketch_store.layers.build.new_salt", lambda: (3, 5))
    rows = rows_of(make_rows)
    budget = FeatureBudget(1e-4, {"viewed": TARGETS[structure], "name": 1e-4})
    honest = build_layer(rows, budget)
    sizing_of(0.4)
    layer = build_layer(rows, budget)
    assert layer.features["viewed"].structure == structure
    assert 0.95 <= layer.table_bytes / honest.table_bytes <= 1.1
    rate, honest_rate = (each.features["viewed"].false_positive_rate for each in (layer, honest))
    assert rate <= honest_rate * 1.05


@pytest.mark.parametrize("structure", TARGETS)
@pytest.mark.parametrize("has_scalar", [False, True], ids=["set", "set and scalar"])
def test_what_no_table_keeps_is_sealed_exactly_and_told(tmp_path, monkeypatch, caplog, structure, has_scalar):
    """However large the table gets, it shows more than it may."""
    written = {user: {f"item {user % 40}", f"item {user % 23}", "tea"} for user in range(100)}
    rows = [row(user, *sorted(items)) for user, items in written.items()]
    settings = settings_of(TARGETS[structure], presence=1e-4)
    structures = {"viewed": "sets"}
    if has_scalar:
        structures["name"] = "column"
        settings.features["name"] = FeatureSettings(CODECS[1], 1e-4, 1000)
        for user, (_, values, *_) in enumerate(rows):
            values["name"] = Value(string_val=f"user {user % 50}")
    view = View(LocalStorage(tmp_path), settings, NEVER, 0.0)
    view.write(rows)
    monkeypatch.setattr(bloom.ShiftingBloomFilterBuilder, "measured_fill", lambda self: 0.99)
    assert view.seal()
    reported = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(reported) == len(structures)
    assert "feature 'viewed' of view 'history' is sealed exactly: a table of " in reported[0]
    assert items_of(view, written) == written
    (layer,) = view.state.sealed.layers
    assert isinstance(layer, SketchLayer)
    assert {name: feature.structure for name, feature in layer.features.items()} == structures
    assert layer.table_bytes == 0


def test_a_choice_of_sets_is_no_news(tmp_path, caplog):
    view = View(LocalStorage(tmp_path), settings_of(Goal("noise_ratio", 1e-3), presence=1e-4), NEVER, 0.0)
    put(view, {user: [f"item {user % 30}"] for user in range(500)})
    assert view.seal()
    assert [f.structure for f in view.state.sealed.features("viewed")] == ["sets"]
    assert not caplog.records
