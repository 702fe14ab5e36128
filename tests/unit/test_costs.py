"""Costs that are estimated before anything is built are those of what is built."""

import numpy as np
import pyarrow as pa
import pytest

from feast_sketch_store.layers import FeatureBudget, Goal
from feast_sketch_store.layers.collect import CollectedFeature
from feast_sketch_store.layers.presence import ListedRows
from feast_sketch_store.rows.codecs import EMPTY, MISSING, NULL, VALUE, FeatureCodec
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.encoding import EncodedFeature
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures.base import RowsToSeal
from feast_sketch_store.structures.columns import Column, scalar_bytes
from feast_sketch_store.structures.costs import (
    Popularity,
    index_bytes,
    packed_bytes,
    set_bits,
    sets_bytes,
    table_bytes,
    timestamps_bytes,
)
from feast_sketch_store.structures.goals import MEMORY
from feast_sketch_store.structures.parts import split
from feast_sketch_store.structures.set_columns import SetColumns
from feast_sketch_store.succinct import FingerprintIndex, PackedInts, SetCode, ShiftingBloomFilterBuilder
from feast_sketch_store.succinct.fingerprints import expected_twins
from tests.helpers.cases import for_each
from tests.helpers.layers import build_layer, random_hashes, rows_with, sets_of

LENGTHS = [0, 1, 63, 64, 65, 1000]


@for_each("length", LENGTHS)
@for_each("largest", [0, 1, 2, 1000, 2**40])
def test_packed_integers(length, largest):
    numbers = np.arange(length) % (largest + 1)
    numbers[-1:] = largest
    packed = PackedInts.pack(numbers, base=0)
    assert packed_bytes(length, packed.width) == packed.size_bytes


@for_each(("num_bits", "window_words"), [(1, 1), (64, 1), (65, 1), (1000, 3), (10, 40)])
def test_a_table_is_no_shorter_than_its_window(num_bits, window_words):
    bloom = ShiftingBloomFilterBuilder(num_bits, window_words, (1, 2)).build()
    assert table_bytes(num_bits, window_words) == bloom.words.nbytes


def test_a_table_without_symbols_has_a_window_of_a_word():
    assert table_bytes(1, 0) == 16


@for_each("num_rows", [10, 1000, 8192, 50_000])
@for_each("rate", [0.1, 1e-5, 1e-9])
def test_the_list_of_rows(num_rows, rate):
    hashes = np.sort(np.random.default_rng(1).integers(0, 2**64, num_rows, np.uint64))
    index = FingerprintIndex.build(hashes, rate)
    # As many rows share their fingerprints as do by chance.
    twins = 8 * 5 * np.sqrt(2 * expected_twins(num_rows, rate))
    assert index_bytes(num_rows, rate) == pytest.approx(index.size_bytes, abs=twins + 8)


@for_each("timestamps", [[], [5], [5] * 100, [1, 10**15] * 50, list(range(100)), [0, 1, 2] * 30])
def test_timestamps(timestamps):
    events = np.array(timestamps, np.int64)
    hashes = np.sort(np.random.default_rng(1).integers(0, 2**64, len(events), np.uint64))
    index = FingerprintIndex.build(hashes, 1e-5)
    listed = ListedRows.build((1, 2), index, events, np.zeros((0, 2), np.int64), {})
    assert timestamps_bytes(len(events), np.unique(events)) == listed.size_bytes - index.size_bytes


SCALARS = {
    "few numbers": ("int64_val", [7, 7_000_000, 9] * 40),
    "many numbers": ("int64_val", list(range(10**12, 10**12 + 100))),
    "one number": ("int64_val", [3] * 50),
    "any numbers": ("int64_val", [-(2**63), 2**63 - 1, 0]),
    "few words": ("string_val", [b"a long word that is repeated", b"b", b""] * 30),
    "many words": ("string_val", [f"word {n}".encode() for n in range(200)]),
    "no word": ("string_val", []),
    "no number": ("int64_val", []),
}


@for_each("without", [0, 1, 30])
@for_each(("field", "values"), SCALARS.values())
def test_columns_of_scalars(field, values, without):
    codec = FeatureCodec("size", field)
    distinct, ids, counts = np.unique(np.array(values, object), return_inverse=True, return_counts=True)
    vocabulary = Vocabulary(pa.array(distinct.tolist(), codec.storage_type))
    states = np.array([VALUE] * len(values) + [MISSING, NULL, NULL] * (without // 3) + [NULL] * (without % 3))
    states = states.astype(np.uint8)
    indptr = np.concatenate(([0], np.cumsum(states == VALUE)))
    column = Column.of(codec, states, vocabulary, Csr(indptr, ids.astype(np.int32)))
    assert scalar_bytes(codec, states, vocabulary, counts.astype(np.int64)) == column.size_bytes


def some_sets(seed, num_rows, num_symbols, density, with_nulls):
    """States, symbols in the order of popularity, and their counts."""
    rng = np.random.default_rng(seed)
    has = rng.random((num_rows, num_symbols)) < density / np.arange(1, num_symbols + 1) ** 0.5
    has = has[:, np.argsort(-has.sum(axis=0), kind="stable")]
    states = np.where(has.any(axis=1), VALUE, EMPTY).astype(np.uint8)
    if with_nulls:
        states[states == EMPTY] = NULL
    _, symbols = np.nonzero(has)
    return states, Csr.of_lengths(has.sum(axis=1), symbols.astype(np.int32)), has.sum(axis=0)


@for_each("with_nulls", [False, True])
@for_each(("num_rows", "num_symbols", "density"), [(1, 5, 1), (40, 3, 0.2), (3000, 200, 0.5)])
def test_sets_that_are_coded_on_trial(num_rows, num_symbols, density, with_nulls):
    """Offsets may take a bit per row more or less, as the order of the rows is another one."""
    codecs = [FeatureCodec(name, "int64_set_val") for name in "ab"]
    sets = [some_sets(seed, num_rows, num_symbols, density, with_nulls) for seed in (1, 2)]
    features = []
    for number, (codec, (states, members, _)) in enumerate(zip(codecs, sets, strict=True)):
        vocabulary = Vocabulary(pa.array(np.arange(num_symbols) + 1000 * number))
        feature = CollectedFeature(codec, num_rows)
        encoded = EncodedFeature(codec, vocabulary, states, members)
        feature.add(np.arange(num_rows, dtype=np.int32), encoded)
        feature.finish()
        features.append((feature, None))
    rows = RowsToSeal(np.zeros((num_rows, 2), np.uint64), (1, 2), np.arange(num_rows))
    built = SetColumns.build(features, rows)
    parts = [
        SetColumns.on_trial(Popularity(counts, num_rows, int((states != VALUE).sum())), states, members)
        for states, members, counts in sets
    ]
    assert sum(map(set_bits, parts)) == built.sets.num_bits
    sealed = built.sets.size_bytes + built.sets.levels_bytes
    assert sets_bytes(parts) == pytest.approx(sealed, abs=num_rows / 8 + 40)


def test_codes_that_were_fitted_on_trial_are_those_of_the_sets(monkeypatch):
    """A seal fits them once, unless the trial was of few of the rows."""
    states, members, counts = some_sets(5, 4000, 300, 0.5, False)
    codec = FeatureCodec("viewed", "int64_set_val")
    rows = RowsToSeal(np.zeros((4000, 2), np.uint64), (1, 2), np.arange(4000))
    fits, fitted, built = [], SetCode.fitted, {}

    def count(code, *arguments):
        fits.append(code)
        return fitted(code, *arguments)

    monkeypatch.setattr(SetCode, "fitted", count)
    for num_coded in (4000, 1000, 0):
        feature = CollectedFeature(codec, 4000)
        values = Vocabulary(pa.array(np.arange(len(counts))))
        encoded = EncodedFeature(codec, values, states, members)
        feature.add(np.arange(4000, dtype=np.int32), encoded)
        feature.finish()
        fits.clear()
        plan = feature.popularity(num_coded)
        assert (plan.gaps is not None) == (num_coded == 4000)
        built[num_coded] = SetColumns.build([(feature, plan)], rows)
        assert len(fits) == {4000: 1, 1000: 2, 0: 1}[num_coded]
    assert np.array_equal(built[4000].sets.words, built[0].sets.words)
    assert np.array_equal(built[1000].sets.words, built[0].sets.words)


@for_each(("num_coded", "of_bits", "of_bytes"), [(1000, 0.03, 0.05), (0, 0.1, 0.1)])
def test_bits_of_some_rows_or_of_none_stand_for_all(num_coded, of_bits, of_bytes):
    states, rows, counts = some_sets(3, 4000, 300, 0.5, False)
    coded = SetColumns.on_trial(Popularity(counts, 4000), states, rows).coded
    some = Popularity(counts, 4000, 0, coded[:num_coded] if num_coded else None)
    assert set_bits(some) == pytest.approx(coded.sum(), rel=of_bits)
    assert sets_bytes([some]) == pytest.approx(sets_bytes([Popularity(counts, 4000, 0, coded)]), rel=of_bytes)


def test_no_sets_take_nothing():
    assert sets_bytes([]) == 0
    assert sets_bytes([Popularity(np.zeros(0, np.int64), 0)]) < 128


def test_a_memory_has_room_for_the_levels_of_few_long_rows():
    """Levels of 5,000 values take a ninth of the sets of eight rows."""
    rng = np.random.default_rng(3)
    has = rng.random((8, 5_000)) < np.linspace(0.9, 0.1, 5_000)
    csr = Csr.of_lengths(has.sum(axis=1), np.nonzero(has)[1].astype(np.int32))
    rows = rows_with([sets_of("viewed", csr, pa.array(np.arange(5_000) * 7))], random_hashes(rng, 8))
    for memory in (4_000, 6_000):
        layer = build_layer(rows, FeatureBudget(1e-5, {"viewed": Goal(MEMORY, memory)}))
        (sets,) = layer.structures
        assert sets.size_bytes == sum(array.nbytes for array in split(sets.to_snapshot())[1].values())
        assert 0.9 * memory < layer.size_bytes <= memory
