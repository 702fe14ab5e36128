"""Counts keep to their laws on real data, and no Count-Min sketch that is as exact is smaller.

    law of a count    |read - written| <= absolute + relative * written, always
    law of a sum      the errors of n random counts add up to at most n / 2 + t with a probability of
                      1 - 2 exp(-2 t**2 / (n r**2)), if the errors of all counts lie in a range of r

The mean of the counts that are read as one is that one to within a half, so the mean of all errors is at most
a half: sums are off by less than the law of each count allows.

Source: Hoeffding, "Probability inequalities for sums of bounded random variables", 1963, theorem 2.
Cormode and Muthukrishnan, "An improved data stream summary: the Count-Min sketch", 2005, theorem 1.
"""

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feast_sketch_store.kernel import mix64
from feast_sketch_store.layers import FeatureBudget, Goal
from feast_sketch_store.rows.codecs import COUNTS, FeatureCodec
from feast_sketch_store.rows.counting import Counting
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.encoding import encode_column, encode_counts
from tests.helpers.keys import user_hashes
from tests.helpers.layers import build_layer, rows_with

DATA = Path(__file__).parent / "data"
ERRORS = [
    Counting(),
    Counting(relative=0.1),
    Counting(relative=0.25),
    Counting(relative=0.5),
    Counting(absolute=1),
    Counting(absolute=5),
]


@pytest.fixture(scope="module", params=["online_retail_quantities", "kuairand_author_views"])
def data(request):
    """Entities, values and counts of facts, int64 each, ordered by entity."""
    table = pq.read_table(DATA / f"{request.param}.parquet")
    return [table[name].to_numpy().astype(np.int64) for name in ("entity", "value", "count")]


def layer_of(data, counting):
    """The facts sealed; in plain sets if ``counting`` is None."""
    entities, values, counts = data
    indptr = pa.array(Csr.of_lengths(np.bincount(entities), values).indptr)
    column = pa.LargeListArray.from_arrays(indptr, pa.array(values))
    goal = Goal("error_rate", 0.01, "sets")
    if counting is None:
        feature = encode_column(column, FeatureCodec("viewed", "int64_list_val"))
    else:
        codec = FeatureCodec("viewed", "int64_list_val", COUNTS, counting=counting)
        feature = encode_counts(column, pa.LargeListArray.from_arrays(indptr, pa.array(counts)), codec)
    hashes = user_hashes(range(len(feature.states)))
    rows = rows_with([feature], hashes).take(np.lexsort((hashes[:, 1], hashes[:, 0])))
    return build_layer(rows, FeatureBudget(1e-5, {"viewed": goal if counting is None else 0.0}))


def counts_read(layer, data):
    """The counts of all facts as a read shows them: int64[m]."""
    entities, values, _ = data
    answer = layer.read(user_hashes(range(entities[-1] + 1)), ["viewed"]).features["viewed"]
    known = answer.vocabulary.values.to_numpy()[answer.csr.ids]
    order = np.lexsort((known, answer.csr.rows))
    assert np.array_equal(known[order], values[np.lexsort((values, entities))])
    read = np.empty(len(values), np.int64)
    read[np.lexsort((values, entities))] = answer.csr.weights[order]
    return read


@pytest.mark.parametrize("counting", ERRORS, ids=str)
def test_each_count_and_sums_of_counts_keep_to_the_law(data, counting):
    written = data[2]
    layer = layer_of(data, counting)
    errors = counts_read(layer, data) - written
    assert (np.abs(errors) <= counting.absolute + counting.relative * written).all()
    feature = layer.features["viewed"]
    assert feature.max_error == np.abs(errors).max()
    assert feature.mean_error == pytest.approx(np.abs(errors).mean())
    assert abs(errors.mean()) <= 0.5
    num_sums, length, missing = 2_000, 50, 0.05
    rng = np.random.default_rng(3)
    sums = errors[rng.integers(0, len(errors), (num_sums, length))].sum(axis=1)
    spread = length * float(errors.max() - errors.min()) ** 2
    bound = length / 2 + math.sqrt(spread * math.log(2 / missing) / 2)
    # The law is an upper bound of the share of sums that exceed it; 4 standard deviations above it is chance.
    num_wrong = int((np.abs(sums) > bound).sum())
    assert num_wrong <= num_sums * missing + 4 * math.sqrt(num_sums * missing * (1 - missing))


def test_counts_take_less_than_the_plain_alternatives(data):
    """Sets with a varint for each count, and sets with the best code of a symbol for each count."""
    _, _, counts = data
    sets = 8 * layer_of(data, None).size_bytes
    varints = 8 * int(np.ceil(np.maximum(1, np.floor(np.log2(counts)) + 1) / 7).sum())
    shares = np.unique(counts, return_counts=True)[1] / len(counts)
    entropy = -float(shares @ np.log2(shares)) * len(counts)
    exact = 8 * layer_of(data, Counting()).size_bytes
    assert exact < sets + varints
    # The code knows what is usual for a row, which saves what it takes to tell the groups of a row apart.
    assert exact < 1.04 * (sets + entropy)
    sizes = [layer_of(data, Counting(relative=relative)).size_bytes for relative in (0, 0.1, 0.25, 0.5)]
    assert sizes == sorted(sizes, reverse=True)


class CountMin:
    """``depth`` rows of ``width`` counters; an estimate is the least of those that a pair falls on."""

    def __init__(self, width, depth):
        self.counters = np.zeros((depth, width), np.int64)

    def _places(self, entities, values):
        pairs = (entities.astype(np.uint64) << np.uint64(32)) | values.astype(np.uint64)
        for number, row in enumerate(self.counters):
            salt = np.uint64(0x9E3779B97F4A7C15 * (number + 1) % 2**64)
            yield row, mix64(pairs ^ salt) % np.uint64(len(row))

    def add(self, entities, values, counts):
        for row, places in self._places(entities, values):
            np.add.at(row, places, counts)

    def estimate(self, entities, values):
        return np.min([row[places] for row, places in self._places(entities, values)], axis=0)

    @property
    def num_bits(self):
        """With as many bits for each counter as the largest one needs."""
        return self.counters.size * int(self.counters.max()).bit_length()


def test_a_count_min_sketch_keeps_to_its_law(data, binomial_interval):
    """An estimate is never too low, and more than e N / w too high with a probability of e**-d at most."""
    entities, values, counts = data
    rng = np.random.default_rng(4)
    asked = rng.integers(0, entities[-1] + 1, 20_000), rng.integers(0, values.max() + 1, 20_000)
    true = dict(zip(zip(entities.tolist(), values.tolist(), strict=True), counts.tolist(), strict=True))
    of_asked = np.array([true.get(pair, 0) for pair in zip(*(a.tolist() for a in asked), strict=True)])
    for depth in (1, 2, 4):
        sketch = CountMin(len(counts) // 2, depth)
        sketch.add(entities, values, counts)
        assert (sketch.estimate(entities, values) >= counts).all()
        excess = sketch.estimate(*asked) - of_asked
        bound = math.e * counts.sum() / sketch.counters.shape[1]
        assert (excess > bound).sum() <= binomial_interval(len(excess), math.exp(-depth))[1]


@pytest.mark.parametrize("quantile", [0.5, 0.9, 0.99, 0.999])
def test_a_count_min_sketch_is_larger_than_counts_of_the_same_error(data, quantile):
    """A sketch whose error is at most A in 99 % of all pairs tells counts above A from others.

    Those counts alone, with the same error beside their values, tell as much without the 1 %: a value that
    is not there was counted at most A times. There are at most N / A of them, where a sketch has e N / A
    counters in each of its five rows.
    """
    entities, values, counts = data
    error = max(1, int(np.quantile(counts, quantile)))
    sketch = CountMin(math.ceil(math.e * counts.sum() / error), math.ceil(math.log(100)))
    sketch.add(entities, values, counts)
    heavy = counts > error
    number = np.unique(entities[heavy], return_inverse=True)[1]
    layer = layer_of((number, values[heavy], counts[heavy]), Counting(absolute=error))
    assert 8 * layer.size_bytes < sketch.num_bits
