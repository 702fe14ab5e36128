"""The sketch layer: what a row says besides its values, timestamps, expiry, snapshots."""

import numpy as np
import pytest
from feast.protos.feast.types.Value_pb2 import Int64Set, StringSet, Value

from feast_sketch_store.layers import FeatureBudget
from feast_sketch_store.layers.presence import MAX_SHAPES, MAX_TIMESTAMP_BUCKETS
from feast_sketch_store.rows.codecs import EMPTY, NULL, VALUE, FeatureCodec
from feast_sketch_store.rows.encoding import NO_TIMESTAMP
from tests.helpers.filters import contains_facts
from tests.helpers.keys import user_hashes
from tests.helpers.layers import build_layer

pytestmark = pytest.mark.slow

VIEWED, SIZE = FeatureCodec("viewed", "string_set_val"), FeatureCodec("size", "int64_val")
CODECS = [VIEWED, SIZE]
NAMES = ["viewed", "size"]

# So rare that no false positive turns up in these tests; the loose rates make them turn up all the time.
STRICT, LOOSE = 1e-9, 0.5


def viewed(*items):
    return Value(string_set_val=StringSet(val=items))


def plain(value):
    """A value as a comparable object: its field, and its content as a set if it is one."""
    if value is None:
        return None
    field = value.WhichOneof("val")
    content = getattr(value, field) if field else None
    return field, frozenset(content.val) if hasattr(content, "val") else content


def plain_rows(rows):
    return {user: (event, {n: plain(v) for n, v in values.items()}) for user, (event, values) in rows.items()}


@pytest.fixture
def layer_of(make_rows):
    def make(rows, rate=STRICT, codecs=CODECS, ttl=None):
        budget = FeatureBudget(rate, {codec.feature: rate for codec in codecs}, ttl)
        return build_layer(make_rows(rows, codecs), budget)

    return make


def random_rows(num_rows, codecs, seed, num_timestamps=5, vocabulary=20):
    """Rows of which every feature is missing, null, empty or has a value; and what a read must give."""
    rng = np.random.default_rng(seed)
    timestamps = rng.integers(-(10**15), 10**16, num_timestamps)
    rows = []
    for user in range(num_rows):
        values = {}
        for codec in codecs:
            state = rng.integers(0, VALUE + 1)
            items = rng.integers(0, vocabulary, rng.integers(1, 6)).tolist()
            if state == NULL:
                values[codec.feature] = Value()
            elif codec.is_collection and state == EMPTY:
                values[codec.feature] = Value(int64_set_val=Int64Set())
            elif codec.is_collection and state == VALUE:
                values[codec.feature] = Value(int64_set_val=Int64Set(val=items))
            elif state == VALUE:
                values[codec.feature] = Value(int64_val=items[0])
        rows.append((user, values, int(rng.choice(timestamps))))
    return rows


def expected(rows, names):
    return plain_rows({user: (event, {n: values.get(n) for n in names}) for user, values, event in rows})


def features_named(count):
    """Half of them sets, half scalars."""
    return [FeatureCodec(f"f{n}", "int64_set_val" if n % 2 else "int64_val") for n in range(count)]


# -- states ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_features", "num_ranges"), [(0, 0), (1, 1), (2, 1), (4, 2), (12, 4)])
def test_missing_null_empty_and_values_are_told_apart(layer_of, read, num_features, num_ranges):
    codecs = features_named(num_features)
    names = [codec.feature for codec in codecs]
    rows = random_rows(600, codecs, seed=num_features)
    layer = layer_of(rows, codecs=codecs)
    assert plain_rows(read(layer, list(range(700)), names)) == expected(rows, names)
    if num_ranges:  # rows without features are kept in a static function, which has no ranges
        assert len(layer.presence.ranges) >= num_ranges
        assert all(r.num_symbols <= MAX_SHAPES for r in layer.presence.ranges)


@pytest.mark.parametrize("names", [["f11"], ["f0"], ["f7", "f2"], []], ids=str)
def test_some_features_of_many_shape_ranges(layer_of, read, names):
    codecs = features_named(12)
    rows = random_rows(600, codecs, seed=12)
    assert plain_rows(read(layer_of(rows, codecs=codecs), list(range(700)), names)) == expected(rows, names)


def test_a_layer_without_rows(layer_of, read):
    layer = layer_of([])
    assert read(layer, [1, 2, 3], NAMES) == {}
    assert (layer.num_entities, layer.num_facts, layer.ideal_bits) == (0, 0, 0)
    assert layer.max_event_timestamp == NO_TIMESTAMP


# -- nothing written is lost -----------------------------------------------------------------------


def test_a_scalar_reads_as_the_most_popular_candidate(layer_of, read, make_rows):
    # Value v is written 60 - v times.
    sizes = [size for size in range(50) for _ in range(60 - size)]
    layer = layer_of([(u, {"size": Value(int64_val=s)}, 0) for u, s in enumerate(sizes)], LOOSE, [SIZE])
    assert layer.features["size"].vocabulary.values.to_pylist() == list(range(50))
    users, symbols = list(range(len(sizes))), layer.features["size"].symbols
    found = read(layer, users, ["size"])
    one_by_one = [
        contains_facts(
            layer.presence.table.filter,
            user_hashes(users),
            np.full(len(users), 64 * symbols.first_word + v),
            symbols.num_hashes,
        )
        for v in range(50)
    ]
    first_candidates = np.argmax(one_by_one, axis=0)
    assert [found[user][1]["size"].int64_val for user in users] == first_candidates.tolist()
    assert (first_candidates <= sizes).all()
    assert (first_candidates < sizes).any()


def test_a_value_without_candidates_reads_as_null(layer_of, read):
    """An unknown entity with a possible shape that tells of a value: no scalar of it is made up."""
    layer = layer_of([(user, {"size": Value(int64_val=0)}, 0) for user in range(3000)], LOOSE, [SIZE])
    ghosts = read(layer, list(range(10_000, 14_000)), ["size"])
    values = [values["size"] for _, values in ghosts.values()]
    assert 0 < len(values) < 4000
    assert {plain(value) for value in values} == {("int64_val", 0), (None, None)}
    feature = layer.read(user_hashes(ghosts), ["size"]).features["size"]
    assert [plain(value)[0] is not None for value in values] == (feature.states == VALUE).tolist()


# -- timestamps ------------------------------------------------------------------------------------


def test_buckets_without_ttl_are_about_equally_full(layer_of, read):
    timestamps = (np.random.default_rng(1).pareto(1, 1600) * 10**6).astype(int).tolist()
    layer = layer_of([(user, {}, event) for user, event in enumerate(timestamps)])
    events = [event for event, _ in read(layer, list(range(1600)), []).values()]
    counts = np.unique(events, return_counts=True)[1]
    assert len(counts) == MAX_TIMESTAMP_BUCKETS
    assert counts.max() <= 110


def test_rows_that_are_long_expired_share_no_bucket_with_others(layer_of, read):
    """So what a seal keeps of them does not show, however many there are."""
    ttl = 1500
    rows = [(user, {}, user * 10) for user in range(1001)]
    layer = layer_of(rows, ttl=ttl)
    for limit in range(8501, 10_001, 100):
        found = read(layer, list(range(1001)), [], expire_before=limit)
        assert min(event for user, _, event in rows if user in found) >= max(limit - ttl / 15, 8500)
        assert set(found) >= {user for user, _, event in rows if event >= limit}


def test_loose_rates_let_no_row_expire_early(layer_of, read):
    """An entity with several possible timestamps lives as long as the newest of them."""
    rows = [(user, {}, user) for user in range(1000)]
    layer = layer_of(rows, LOOSE)
    for limit in range(0, 1000, 100):
        assert set(read(layer, list(range(1000)), [], expire_before=limit)) >= set(range(limit, 1000))


def test_features_stand_beside_the_right_rows_after_some_expired(layer_of, read):
    codecs = features_named(12)
    names = [codec.feature for codec in codecs]
    rows = random_rows(300, codecs, seed=3)
    limit = sorted(event for _, _, event in rows)[150]
    found = read(layer_of(rows, codecs=codecs), list(range(300)), names, expire_before=limit)
    assert plain_rows(found) == expected([row for row in rows if row[2] >= limit], names)


# -- layout and sizes ------------------------------------------------------------------------------


def test_ranges_lie_side_by_side_with_shapes_last(make_rows):
    rows = make_rows(random_rows(600, features_named(12), seed=5, vocabulary=150), features_named(12))
    rates = {name: 10.0 ** -(n % 5 + 1) for n, name in enumerate(rows.features)}
    layer = build_layer(rows, FeatureBudget(1e-5, rates))
    features = sorted((f.symbols for f in layer.features.values()), key=lambda r: r.first_word)
    ranges = [*features, *layer.presence.ranges]
    assert ranges[0].first_word == 0
    ends = [r.first_word + r.num_words for r in ranges]
    assert [r.first_word for r in ranges[1:]] == ends[:-1]
    assert len(layer.presence.table.filter.words) == layer.presence.table.filter.num_words + ends[-1]


def test_facts_are_values_and_one_shape_a_row(layer_of):
    rows = [(user, {"viewed": viewed(*map(str, range(user % 4)))}, 0) for user in range(100)]
    layer = layer_of(rows)
    assert (layer.num_entities, layer.num_facts) == (100, 25 * (0 + 1 + 2 + 3) + 100)


@pytest.mark.parametrize("rate", [0.1, 0.01, 1e-5])
def test_expected_rates_keep_the_budget(layer_of, rate):
    codecs = features_named(2)
    layer = layer_of(random_rows(3000, codecs, seed=4, vocabulary=60), rate, codecs)
    assert layer.features["f1"].symbols.false_positive_rate <= rate * 1.001
    # A scalar shares its rate among the other values of the vocabulary, presence among the shapes.
    assert layer.features["f0"].symbols.false_positive_rate * 59 <= rate * 1.001
    (shapes,) = layer.presence.ranges
    assert shapes.false_positive_rate * shapes.num_symbols <= rate * 1.001
