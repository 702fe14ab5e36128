"""Layers of any rows, kept in any way: nothing is lost, and sets and scalars are what was written."""

import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from feast_sketch_store.layers import Cut, FeatureBudget, Goal
from feast_sketch_store.layers.presence import MAX_TIMESTAMP_BUCKETS
from feast_sketch_store.rows.codecs import EMPTY, EXACT, MISSING, NULL, VALUE, FeatureCodec
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.encoding import NO_TIMESTAMP, EncodedFeature
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.snapshot import encode
from feast_sketch_store.snapshot.sealed import open_layers, with_checksums
from tests.helpers.layers import build_layer, random_hashes, rows_with
from tests.helpers.length import by_length
from tests.helpers.reads import assert_agrees
from tests.helpers.snapshots import published

pytestmark = pytest.mark.has_long_form

REPEATABLE = settings(derandomize=True, deadline=None, database=None, max_examples=by_length(20, 60))
# Salts are random. A false positive at this rate would be a bug, not chance.
NEVER = 1e-12

SETS = {
    "words": FeatureCodec("words", "string_set_val"),
    "numbers": FeatureCodec("numbers", "int64_list_val"),
}
SCALARS = {"name": FeatureCodec("name", "string_val"), "size": FeatureCodec("size", "int64_val")}
EXACTS = {"log": FeatureCodec("log", "int64_list_val", EXACT)}
CODECS = {**SETS, **SCALARS, **EXACTS}

# From few symbols that many rows have to many that few have.
SYMBOLS = st.one_of(st.integers(0, 2), st.integers(0, 150))
ROW = st.fixed_dictionaries(
    {
        **{
            name: st.one_of(st.sampled_from(["missing", "null"]), st.lists(SYMBOLS, max_size=8))
            for name in SETS
        },
        **{name: st.one_of(st.sampled_from(["missing", "null"]), SYMBOLS) for name in SCALARS},
        "log": st.one_of(st.sampled_from(["missing", "null"]), st.lists(SYMBOLS, max_size=4)),
    }
)
TARGET = st.one_of(
    st.builds(
        Goal,
        st.just("error_rate"),
        st.sampled_from([NEVER, 0.01, 0.5]),
        st.sampled_from(["auto", "bloom", "weighted_bloom", "sets"]),
    ),
    st.builds(
        Goal,
        st.just("noise_ratio"),
        st.sampled_from([1e-6, 0.1, 2.0]),
        st.sampled_from(["auto", "bloom", "weighted_bloom", "sets"]),
    ),
    st.builds(
        Goal, st.just("memory"), st.sampled_from([3000, 10**6]), st.sampled_from(["auto", "bloom", "sets"])
    ),
    st.sampled_from([NEVER, 0.3]),
)
CUT = st.one_of(
    st.none(),
    st.builds(Cut, top=st.integers(1, 5)),
    st.builds(
        Cut, values=st.lists(st.integers(0, 150), max_size=5).map(lambda ids: pa.array(ids, pa.int64()))
    ),
)


@st.composite
def cases(draw):
    """Rows, a budget, and which features they have."""
    names = draw(st.lists(st.sampled_from(list(CODECS)), min_size=1, unique=True))
    rows = draw(st.lists(ROW, max_size=30))
    targets = {n: draw(TARGET) if n in SETS else NEVER for n in names}
    cuts = {n: cut for n in names if n in SETS and (cut := draw(CUT)) is not None}
    budget = FeatureBudget(
        NEVER,
        targets,
        draw(st.sampled_from([None, 100, 10_000])),
        {n: stored_cut(n, c) for n, c in cuts.items()},
    )
    times = draw(st.sampled_from([1, 10, 1000]))
    return names, rows, budget, times, draw(st.integers(0, 99))


def stored_cut(name, cut):
    """The cut with values as the feature stores them."""
    if cut.values is None or name == "numbers":
        return cut
    return Cut(values=pa.array([word(symbol) for symbol in cut.values.to_pylist()], pa.large_binary()))


def word(symbol):
    return f"wörd {symbol}".encode()


def stored(codec, symbol):
    return symbol if pa.types.is_int64(codec.storage_type) else word(symbol)


def encoded(names, rows, times, seed):
    """Encoded rows with random hashes, ordered by them; and the values of each row in that order."""
    rng = np.random.default_rng(seed)
    hashes = random_hashes(rng, len(rows))
    features, truth = {}, {}
    for name in names:
        codec, states, lists = CODECS[name], [], []
        for row in rows:
            given_value = row[name]
            if isinstance(given_value, str):
                states.append(MISSING if given_value == "missing" else NULL)
                lists.append([])
            elif not codec.is_collection:
                states.append(VALUE)
                lists.append([given_value])
            else:
                states.append(VALUE if given_value else EMPTY)
                lists.append(given_value if codec.is_exact else sorted(set(given_value)))
        values = sorted({symbol for ids in lists for symbol in ids}, reverse=True)  # not by popularity
        place = {symbol: number for number, symbol in enumerate(values)}
        vocabulary = Vocabulary(pa.array([stored(codec, symbol) for symbol in values], codec.storage_type))
        order = sorted if not codec.is_exact else list
        ids = [order(place[symbol] for symbol in symbols) for symbols in lists]
        indptr = np.concatenate(([0], np.cumsum([len(each) for each in ids], dtype=np.int64)))
        flat = np.array([number for each in ids for number in each], np.int32)
        features[name] = EncodedFeature(codec, vocabulary, np.array(states, np.uint8), Csr(indptr, flat))
        truth[name] = (states, [[stored(codec, symbol) for symbol in symbols] for symbols in lists])
    events = rng.integers(0, times, len(rows))
    return rows_with(features.values(), hashes, events), truth


def kept_values(cut, lists):
    """What a cut leaves, worked out anew."""
    counts = Counter(value for values in lists for value in values)
    ranked = sorted(counts, key=lambda value: (-counts[value], value))
    if cut is None:
        return set(ranked)
    return set(ranked[: cut.top] if cut.values is None else cut.values.to_pylist())


def rows_of(answer):
    """Per row the values of a feature in the order they are given."""
    values = answer.vocabulary.values.to_pylist()
    ids = [values[symbol] for symbol in answer.symbols]
    return [ids[first:stop] for first, stop in zip(answer.indptr[:-1], answer.indptr[1:], strict=True)]


@REPEATABLE
@given(cases())
@example((["words"], [], FeatureBudget(NEVER, {"words": Goal("noise_ratio", 0.1)}), 1, 0))
@example((["numbers"], [], FeatureBudget(NEVER, {"numbers": Goal("error_rate", 0.1, "sets")}), 1, 0))
def test_what_a_layer_gives_is_what_was_written(case):
    names, rows, budget, times, seed = case
    given_rows, truth = encoded(names, rows, times, seed)
    layer = build_layer(given_rows, budget)
    keys = given_rows.keys
    answer = layer.read(keys.entity_hashes, names)
    assert answer.found.tolist() == list(range(len(rows)))
    assert (answer.event_timestamps <= keys.event_timestamps).all()
    assert np.isin(answer.event_timestamps, keys.event_timestamps).all()
    assert layer.max_event_timestamp == max(keys.event_timestamps, default=NO_TIMESTAMP)
    if len(set(keys.event_timestamps)) <= MAX_TIMESTAMP_BUCKETS or any(n in EXACTS for n in names):
        assert (answer.event_timestamps == keys.event_timestamps).all()
    for name in names:
        states, lists = truth[name]
        found = answer.features[name]
        if name in SETS:
            kept = kept_values(budget.cuts.get(name), lists)
            assert set(layer.features[name].vocabulary.values.to_pylist()) == kept
            assert layer.cut.get(name, 0) == sum(value not in kept for values in lists for value in values)
            lists = [[value for value in values if value in kept] for values in lists]
            states = [
                EMPTY if state == VALUE and not left else state
                for state, left in zip(states, lists, strict=True)
            ]
        assert found.states.tolist() == states
        got = rows_of(found)
        if name in EXACTS or name in SCALARS:
            assert got == lists
            continue
        assert_agrees(layer, name, keys.entity_hashes)
        assert all(set(values) <= set(shown) for values, shown in zip(lists, got, strict=True))
        assert all(not shown for state, shown in zip(states, got, strict=True) if state != VALUE)
        assert layer.features[name].num_facts == sum(map(len, lists))
        if layer.features[name].structure == "sets":
            assert [sorted(shown) for shown in got] == [sorted(values) for values in lists]


@REPEATABLE
@given(cases())
def test_unknown_entities_are_absent(case):
    names, rows, budget, times, seed = case
    layer = build_layer(encoded(names, rows, times, seed)[0], budget)
    others = np.random.default_rng(1000 + seed).integers(0, 2**64, (200, 2), np.uint64)
    assert len(layer.read(others, names).found) == 0


@REPEATABLE
@given(cases(), st.sampled_from([-(2**63), -1, 5, 500, 2**62]))
def test_rows_expire_by_the_newest_of_their_bucket(case, expire_before):
    names, rows, budget, times, seed = case
    given_rows, _ = encoded(names, rows, times, seed)
    events = given_rows.keys.event_timestamps
    layer = build_layer(given_rows, budget)
    found = layer.read(given_rows.keys.entity_hashes, names, expire_before).found
    assert set(np.flatnonzero(events >= expire_before)) <= set(found)
    # What is late to expire shares a bucket with a row that lives: a fifteenth of the time to live, or else
    # as many rows as a bucket has.
    late = np.setdiff1d(found, np.flatnonzero(events >= expire_before))
    if budget.ttl_microseconds and len(late):
        width = max(-(-budget.ttl_microseconds // 15), 1)
        oldest_bucket = events.max() - 15 * width
        assert ((events[late] >= expire_before - width) | (events[late] <= oldest_bucket)).all()
    if any(name in EXACTS for name in names) or len(set(events)) <= MAX_TIMESTAMP_BUCKETS:
        assert not len(late)


@REPEATABLE
@given(cases())
def test_a_snapshot_answers_as_the_layer_does(case):
    names, rows, budget, times, seed = case
    given_rows, _ = encoded(names, rows, times, seed)
    layer = build_layer(given_rows, budget)
    description, arrays = layer.to_snapshot()
    arrays = with_checksums(arrays)
    with tempfile.TemporaryDirectory() as folder:
        content = b"".join(encode({**description, "row_log_version": 3}, arrays))
        snapshot = published(Path(folder), 3, content)
        for check_all in (False, True):
            opened = open_layers(snapshot, check_all=check_all)[0]
            order = np.random.default_rng(seed).permutation(len(rows))
            hashes = given_rows.keys.entity_hashes[order]
            ours, theirs = layer.read(hashes, names), opened.read(hashes, names)
            assert ours.found.tolist() == theirs.found.tolist()
            assert ours.event_timestamps.tolist() == theirs.event_timestamps.tolist()
            for name in names:
                a, b = ours.features[name], theirs.features[name]
                assert a.states.tolist() == b.states.tolist()
                assert rows_of(a) == rows_of(b)
                assert opened.features[name].structure == layer.features[name].structure
            assert opened.cut == layer.cut
            for name, feature in layer.features.items():
                assert opened.features[name].num_facts == feature.num_facts
            assert opened.fact_bits == layer.fact_bits
