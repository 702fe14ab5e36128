"""Sets of rows of many shapes take no more than simpler codes of the same kind, and save what these saved.

Three codes of the same rows, in bits:

    plain     Golomb-Rice codes of gaps by the popularity of a value and the size of the set, each feature by
              itself, and 37.7 bits to find a row: sorted fingerprints that differ, and offsets from anchors
    subsets   the same, but a feature may be coded with those before it: a bit for each of their values that
              the row has, or the gaps between these; and 22.7 bits to find a row, inside of the stream
    sealed    what a layer takes for the sets, where rows begin and their index

An index inside of the stream was not built, as a read would decode the rows before its own
(docs/decisions/0017-codes.md). So what is held here is that the sets themselves take no more than those of
``subsets``, and that all together at least three quarters of what ``subsets`` saves is saved.

Source: Gallager & Van Voorhis, "Optimal source codes for geometrically distributed integer alphabets", 1975.
"""

import numpy as np
import pyarrow as pa
import pytest

from feast_sketch_store.layers import FeatureBudget, Goal
from feast_sketch_store.rows.csr import Csr
from tests.helpers.layers import build_layer, random_hashes, rows_with, sets_of

PLAIN_INDEX, STREAM_INDEX = 37.7, 22.7  # bits of a row, of which one in 1e5 strangers seems to have one
LONGEST_UNARY, LONG_CODE = 24, 56


def draw(rng, sizes, num_values, zipf):
    """Rows of so many draws of values, ``n ** -zipf`` as often as the first: pairs, int64[m, 2] by row."""
    weights = np.arange(1, num_values + 1) ** -zipf
    rows = np.repeat(np.arange(len(sizes)), sizes)
    drawn = np.searchsorted(np.cumsum(weights / weights.sum()), rng.random(len(rows)))
    return distinct(rows, drawn.clip(max=num_values - 1), num_values)


def distinct(rows, values, num_values):
    return np.stack(np.divmod(np.unique(rows * num_values + values), num_values), axis=1)


def some_of(rng, pairs, share, others, num_values):
    """A share of the pairs, and others."""
    kept = pairs[rng.random(len(pairs)) < share]
    rows, values = np.concatenate((kept, others)).T
    return distinct(rows, values, num_values)


def skewed(rng):
    return 20_000, {"a": draw(rng, 1 + rng.poisson(30, 2_000), 20_000, 1.1)}


def implied(rng):
    viewed = draw(rng, 1 + rng.poisson(25, 2_000), 5_000, 0.8)
    cart = some_of(rng, viewed, 0.3, draw(rng, rng.poisson(0.5, 2_000), 5_000, 0.8), 5_000)
    bought = some_of(rng, cart, 0.5, cart[:0], 5_000)
    wished = draw(rng, rng.poisson(2, 2_000), 5_000, 0.8)
    return 5_000, {"viewed": viewed, "cart": cart, "bought": bought, "wished": wished}


def clusters(rng):
    """Seven of ten values are of the entity's group, of forty."""
    general = draw(rng, 1 + rng.poisson(12, 2_000), 8_000, 0.7)
    own = draw(rng, 1 + rng.poisson(28, 2_000), 200, 0.6)
    groups, places = rng.integers(0, 40, 2_000), rng.permutation(8_000).reshape(40, 200)
    own = np.stack((own[:, 0], places[groups[own[:, 0]], own[:, 1]]), axis=1)
    return 8_000, {"a": some_of(rng, own, 1.0, general, 8_000)}


def tiny_vocabulary(rng):
    return 24, {"a": np.argwhere(rng.random((4_000, 24)) < np.linspace(0.05, 0.6, 24))}


def wide_vocabulary(rng):
    return 500_000, {"a": draw(rng, 1 + rng.poisson(12, 3_000), 500_000, 0.6)}


def few_long_rows(rng):
    return 20_000, {"a": draw(rng, rng.integers(800, 2_500, 40), 20_000, 0.9)}


def many_short_rows(rng):
    return 2_000, {"a": draw(rng, 1 + rng.poisson(1.5, 20_000), 2_000, 1.0)}


def heavy_tails(rng):
    sizes = np.minimum(5_000, (1 + 6 * rng.pareto(1.1, 2_000)).astype(int))
    return 50_000, {"a": draw(rng, sizes, 50_000, 1.2)}


SHAPES = (
    skewed,
    implied,
    clusters,
    tiny_vocabulary,
    wide_vocabulary,
    few_long_rows,
    many_short_rows,
    heavy_tails,
)


def half_octaves(numbers):
    return np.rint(2 * np.log2(np.maximum(numbers, 1))).astype(np.int64)


def rice_bits(numbers, widths):
    quotients = numbers >> widths
    return int(np.where(quotients < LONGEST_UNARY, quotients + 1 + widths, LONG_CODE).sum())


def best_rice_bits(numbers):
    return min(rice_bits(numbers, np.int64(width)) for width in range(30)) if len(numbers) else 0


def gaps_of(places, rows):
    """How far each place, ascending in its row, is behind the one before; and where each gap begins."""
    is_first = np.append(True, rows[1:] != rows[:-1])[: len(rows)]
    begins = np.where(is_first, 0, np.append(0, places[:-1] + 1)[: len(places)])
    return places - begins, begins


def plain_bits(pairs, num_rows, num_values):
    counts = np.bincount(pairs[:, 1], minlength=num_values)
    order = np.argsort(-counts, kind="stable")
    ranks, counts = np.argsort(order), counts[order]
    rows, ids = distinct(pairs[:, 0], ranks[pairs[:, 1]], num_values).T
    sizes = np.bincount(rows, minlength=num_rows)
    levels = np.rint(2 * np.log2(np.log(2) * max(1, counts.sum()) / np.maximum(counts, 1))).clip(0, 255)
    levels = np.maximum.accumulate(levels).astype(np.int64)
    gaps, begins = gaps_of(ids, rows)
    widths = np.maximum(0, (levels[begins] - half_octaves(sizes)[rows] + 1) // 2)
    return best_rice_bits(sizes) + rice_bits(gaps, widths)


def bits_with(pairs, before, num_rows, num_values):
    """Bits of sets that are coded with the values that the rows have already, in their popularity's order."""
    popularity = np.bincount(before[:, 1], minlength=num_values)
    before = before[np.lexsort((-popularity[before[:, 1]], before[:, 0]))]
    keys, known = (some[:, 0] * num_values + some[:, 1] for some in (pairs, before))
    is_member, own = np.isin(known, keys), before[:, 0]
    seen, members = np.bincount(own, minlength=num_rows), np.bincount(own[is_member], minlength=num_rows)
    is_bitmap = (5 * members >= seen) & (members > 0)
    places = (np.arange(len(own)) - (np.cumsum(seen) - seen)[own])[is_member]
    rows = own[is_member]
    shares = np.log(2) * np.maximum(seen, 1) / np.maximum(members, 1)
    widths = np.maximum(0, np.rint(np.log2(shares))).astype(np.int64)[rows]
    gaps = gaps_of(places, rows)[0]
    inside = int(seen[is_bitmap].sum()) + rice_bits(gaps[~is_bitmap[rows]], widths[~is_bitmap[rows]])
    others = pairs[~np.isin(keys, known)]
    return best_rice_bits(members[seen > 0]) + inside + plain_bits(others, num_rows, num_values)


def subset_bits(features, num_rows, num_values):
    """Each feature, the largest first, in the smaller of both ways."""
    total, before = 0, np.zeros((0, 2), np.int64)
    for pairs in sorted(features.values(), key=len, reverse=True):
        alone = plain_bits(pairs, num_rows, num_values)
        with_others = bits_with(pairs, before, num_rows, num_values) if len(before) else alone
        total += min(alone, with_others)
        before = distinct(*np.concatenate((before, pairs)).T, num_values)
    return total


def sealed(features, num_rows):
    encoded = []
    for name, pairs in features.items():
        values, ids = np.unique(pairs[:, 1], return_inverse=True)
        csr = Csr.of_lengths(np.bincount(pairs[:, 0], minlength=num_rows), ids.astype(np.int32))
        encoded.append(sets_of(name, csr, pa.array(values)))
    rows = rows_with(encoded, random_hashes(np.random.default_rng(3), num_rows))
    layer = build_layer(rows, FeatureBudget(1e-5, dict.fromkeys(features, Goal("noise_ratio", 0.1))))
    assert list(layer.missing(rows)) == []
    return layer


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_sets_of_any_shape_save_what_simpler_codes_do(shape, monkeypatch):
    monkeypatch.setattr("feast_sketch_store.layers.build.new_salt", lambda: (3, 5))
    num_values, features = shape(np.random.default_rng(11))
    num_rows = 1 + max(int(pairs[:, 0].max()) for pairs in features.values())
    layer = sealed(features, num_rows)
    (sets,) = layer.structures
    assert sets.kind == "sets"
    plain = sum(plain_bits(pairs, num_rows, num_values) for pairs in features.values())
    subsets = subset_bits(features, num_rows, num_values)
    assert sets.sets.num_bits <= subsets
    saved = plain + PLAIN_INDEX * num_rows - layer.fact_bits
    assert saved >= 0.75 * (plain - subsets + (PLAIN_INDEX - STREAM_INDEX) * num_rows)
