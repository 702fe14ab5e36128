"""Clusters of rows, and the hashes that values have in them."""

import itertools
import math

import numpy as np
import pytest

from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.structures.clusters import STYLES, ClusterFacts, Scorer, count, learn, size
from tests.helpers.cases import for_each

pytestmark = pytest.mark.slow


def planted(num_rows=400, num_groups=4, per_group=30, per_row=8, seed=0):
    """Rows whose values are nearly all of one group of values, and the group of each row."""
    rng = np.random.default_rng(seed)
    groups = rng.integers(0, num_groups, num_rows)
    rows = [
        np.unique(
            np.append(
                per_group * group + rng.choice(per_group, per_row), rng.integers(num_groups * per_group)
            )
        )
        for group in groups
    ]
    ids = np.concatenate(rows).astype(np.int32)
    return Csr.of_lengths(np.array(list(map(len, rows))), ids), groups


def test_planted_groups_are_found():
    members, groups = planted()
    clusters = learn(members, 120, 4)
    of_group = [np.bincount(clusters[groups == group], minlength=4) for group in range(4)]
    assert sorted(int(counts.argmax()) for counts in of_group) == [0, 1, 2, 3]
    assert sum(counts.max() for counts in of_group) >= 0.99 * len(groups)


def test_the_same_rows_give_the_same_clusters():
    members, _ = planted(seed=3)
    assert learn(members, 120, 8).tolist() == learn(members, 120, 8).tolist()


def test_a_sample_of_many_facts_finds_them_as_well(monkeypatch):
    monkeypatch.setattr("feast_sketch_store.structures.clusters._SAMPLE_FACTS", 4_000)
    monkeypatch.setattr("feast_sketch_store.structures.clusters._NUMBERS_PER_CHUNK", 256)
    members, groups = planted(2_000)
    clusters = learn(members, 120, 4)
    assert sum(np.bincount(clusters[groups == group]).max() for group in range(4)) >= 0.95 * len(groups)


@for_each("lengths", [[], [0, 0, 0], [0, 2, 0]])
def test_few_rows(lengths):
    members = Csr.of_lengths(np.array(lengths, np.int64), np.arange(sum(lengths), dtype=np.int32))
    clusters = learn(members, 5, 16)
    assert len(clusters) == len(lengths)
    assert ((clusters >= 0) & (clusters < max(1, len(lengths)))).all()


def test_scores_are_those_of_the_formula():
    counts, num_rows = np.array([[5, 1, 0], [0, 2, 6]]), np.array([6, 10])
    scorer = Scorer.fit(counts, num_rows)
    shares = (counts + 8 * counts.sum(0) / 16) / (num_rows[:, None] + 8)
    row = [0, 1]
    expected = [
        sum(math.log(p[s] / (1 - p[s])) for s in row) + sum(map(math.log, 1 - p)) + math.log(n + 1)
        for p, n in zip(shares, num_rows, strict=True)
    ]
    assert (scorer.weights[row].sum(0) + scorer.offsets).tolist() == pytest.approx(expected, rel=1e-6)


def cells(num_clusters=2, num_values=3, seed=1):
    rng = np.random.default_rng(seed)
    num_rows = rng.integers(20, 60, num_clusters)
    return (rng.random((num_clusters, num_values)) ** 3 * num_rows[:, None]).astype(np.int64), num_rows


@for_each("style", STYLES)
@for_each("seed", range(4))
@for_each("false_per_read", [0.02, 0.3])
def test_no_other_split_of_few_cells_has_fewer_ones(style, seed, false_per_read):
    """Every split of six cells into levels 0 to 9 that the style permits, at a fill of one half."""
    facts = ClusterFacts(*cells(seed=seed), false_per_read, style)
    split = facts.split_at(0.5)
    assert facts.excess(split)(0.5) <= 1 + 1e-9
    counts, absent = facts.counts.reshape(-1), facts.absent.reshape(-1)
    best = math.inf
    for low, high in itertools.combinations_with_replacement(range(10), 2):
        if low and style == "learned_bloom":
            continue
        for level_of in itertools.product((0, 1), repeat=6):
            hashes = np.where(level_of, high, low)
            if absent @ 0.5**hashes <= facts.may_show * (1 + 1e-9):
                best = min(best, counts @ hashes)
    # A threshold by odds comes within one cell's facts of the best of all subsets; more levels do better.
    assert facts.num_ones(split) <= best + counts.max() * split.hashes[-1] / 2


@for_each("style", STYLES)
def test_a_target_that_no_table_keeps_is_refused(style):
    with pytest.raises(ValueError, match="take more than 64 hashes"):
        size([ClusterFacts(*cells(), 1e-30, style)])


@for_each("style", STYLES)
def test_facts_share_a_table(style):
    facts = [ClusterFacts(*cells(3, 40, seed), 0.2 * (1 + seed), style) for seed in range(3)]
    num_bits, splits = size(facts)
    ones = sum(own.num_ones(split) for own, split in zip(facts, splits, strict=True))
    fill = -math.expm1(-ones / num_bits)
    assert all(own.excess(split)(fill) <= 1.001 for own, split in zip(facts, splits, strict=True))


@for_each("style", STYLES)
def test_a_feature_without_values(style):
    (split,) = size([ClusterFacts(np.zeros((1, 0), np.int64), np.zeros(1, np.int64), 1.0, style)])[1]
    assert split.level_of.shape == (1, 0)


def test_counts_of_clusters():
    members = Csr(np.array([0, 2, 3, 3]), np.array([0, 1, 1], np.int32))
    assert count(members, np.array([1, 0, 1]), (2, 2)).tolist() == [[0, 1], [1, 1]]
