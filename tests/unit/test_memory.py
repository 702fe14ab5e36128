"""A feature that may take so many bytes takes no more, vocabulary and index included, and keeps what fits."""

import numpy as np
import pyarrow as pa
import pytest

from feast_sketch_store.errors import SettingsError
from feast_sketch_store.layers import FeatureBudget, Goal, SketchLayer, SketchLayerBuilder
from feast_sketch_store.layers.joint import SharedVocabularies
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.structures import sizing
from tests.helpers.layers import build_layer, random_hashes, rows_with, sets_of
from tests.helpers.length import by_length

pytestmark = pytest.mark.has_long_form

NUM_ROWS, NUM_VALUES = 3_000, 2_000
# At which weighted filters are tried: at more it takes time and changes little.
FILLS = by_length((0.4, 0.5, 0.6, 0.7), sizing._WEIGHTED_FILLS)
VIEWED, COUNTRY = FeatureCodec("viewed", "string_list_val"), FeatureCodec("country", "string_val")


def encoded(codec, values, indptr, ids):
    return sets_of(codec.feature, Csr(indptr, ids), pa.array(values, codec.storage_type), codec.value_field)


@pytest.fixture(autouse=True)
def _few_fills(monkeypatch):
    monkeypatch.setattr("feast_sketch_store.structures.sizing._WEIGHTED_FILLS", FILLS)


@pytest.fixture(scope="module")
def rows():
    """Histories of 30 of 2,000 products on average, a few popular ones, and a country each."""
    random = np.random.default_rng(5)
    shares = np.cumsum(1 / (np.arange(NUM_VALUES) + 5))
    sizes = random.poisson(30, NUM_ROWS)
    facts = np.repeat(np.arange(NUM_ROWS), sizes) * NUM_VALUES
    facts = np.unique(facts + np.searchsorted(shares, random.random(len(facts)) * shares[-1]))
    indices, ids = np.divmod(facts, NUM_VALUES)
    indptr = np.concatenate(([0], np.cumsum(np.bincount(indices, minlength=NUM_ROWS))))
    one_each = np.arange(NUM_ROWS + 1)
    features = [
        encoded(VIEWED, [f"product {n:05d}" for n in range(NUM_VALUES)], indptr, ids),
        encoded(COUNTRY, ["DE", "FR"], one_each, np.arange(NUM_ROWS) % 2),
    ]
    return rows_with(features, random_hashes(random, NUM_ROWS))


def sealed(rows, num_bytes, structure="auto"):
    goal = Goal("memory", num_bytes, structure)
    return build_layer(rows, FeatureBudget(1e-5, {"viewed": goal, "country": 1e-5}))


def bytes_of(layer):
    """Of the whole feature, with the index of rows if it needs one."""
    return layer.size_bytes_of("viewed") + layer.presence.index_bytes


WHOLE = 130_000


@pytest.mark.parametrize("num_bytes", [15_000, 20_000, 35_000, 60_000, 80_000])
def test_what_does_not_fit_is_cut_and_kept_in_sets(rows, num_bytes):
    layer = sealed(rows, num_bytes)
    feature = layer.features["viewed"]
    assert (feature.structure, feature.false_positive_rate) == ("sets", None)
    # Numbers that tell where rows begin get a bit wider at some size, which the next value would pass.
    assert 0.9 * num_bytes < bytes_of(layer) <= num_bytes
    assert layer.cut["viewed"] == rows.features["viewed"].indptr[-1] - feature.num_facts > 0
    counts = np.bincount(rows.features["viewed"].symbols, minlength=NUM_VALUES)
    assert feature.num_facts == np.sort(counts)[::-1][: len(feature.vocabulary)].sum(), "the popular ones"
    answer = layer.read(rows.keys.entity_hashes, ["viewed"]).features["viewed"]
    assert len(answer.symbols) == feature.num_facts
    assert not list(layer.missing(rows))


def test_more_memory_keeps_more_and_enough_keeps_all(rows):
    kept = [sealed(rows, size).features["viewed"].num_facts for size in (15_000, 30_000, 60_000, WHOLE)]
    assert kept == sorted(set(kept))
    layer = sealed(rows, WHOLE)
    assert kept[-1] == rows.features["viewed"].indptr[-1]
    assert "viewed" not in layer.cut
    assert bytes_of(layer) <= WHOLE


@pytest.mark.parametrize("structure", ["bloom", "weighted_bloom"])
@pytest.mark.parametrize("num_bytes", [80_000, 120_000, 200_000])
def test_a_filter_counts_its_vocabulary(rows, structure, num_bytes):
    layer = sealed(rows, num_bytes, structure)
    assert layer.features["viewed"].structure == structure
    assert 0.98 * num_bytes < bytes_of(layer) <= num_bytes * 1.001 + 8  # tables are rounded up to words
    assert layer.features["viewed"].false_positive_rate < 0.5


@pytest.mark.parametrize("structure", ["auto", "sets", "bloom", "weighted_bloom"])
def test_too_little_memory_names_the_least_that_does(rows, structure):
    with pytest.raises(
        SettingsError, match=r"'viewed' cannot be kept for a memory of 2,000 bytes: .* at least"
    ) as no:
        sealed(rows, 2000, structure)
    least = int(str(no.value).split("at least ")[1].split()[0].replace(",", ""))
    assert bytes_of(sealed(rows, least, structure)) <= least * 1.001 + 8
    with pytest.raises(SettingsError, match="at least"):
        sealed(rows, least - 8, structure)


def sealed_with(rows, num_bytes, structure, given):
    """The layer of some of the rows, with a numbering of the values that other layers have, too."""
    goal = Goal("memory", num_bytes, structure)
    budget = FeatureBudget(1e-5, {"viewed": goal, "country": 1e-5})
    builder = SketchLayerBuilder(rows.keys, [VIEWED, COUNTRY], [(np.arange(NUM_ROWS), rows)])
    layer = builder.build(budget, SharedVocabularies({"viewed": given}))
    assert not layer.failed_over
    return SketchLayer.from_snapshot(*layer.to_snapshot())


@pytest.mark.parametrize("structure", ["auto", "sets", "weighted_bloom"])
def test_a_vocabulary_that_is_given_counts_and_stays_whole(rows, structure):
    given = rows.features["viewed"].vocabulary
    layer = sealed_with(rows, WHOLE, structure, given)
    assert bytes_of(layer) <= WHOLE
    assert layer.numbering("viewed").values.equals(given.values)
    assert not layer.cut.get("viewed")


@pytest.mark.parametrize("structure", ["auto", "sets"])
def test_a_vocabulary_that_is_given_and_does_not_fit_is_refused_with_the_least(rows, structure):
    given = rows.features["viewed"].vocabulary
    with pytest.raises(SettingsError, match="the given vocabulary") as refused:
        sealed_with(rows, 60_000, structure, given)
    least = int(str(refused.value).split(" bytes ")[0].split()[-1].replace(",", ""))
    assert 60_000 < least <= WHOLE
    assert bytes_of(sealed_with(rows, least, structure, given)) <= least
