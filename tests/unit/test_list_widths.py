"""Widths of gaps in lists: runs of them are the best there are, and fit lists better than a model does."""

import itertools
from pathlib import Path

import numpy as np
import pandas as pd

from feast_sketch_store.succinct import TimedLists, timed_lists
from feast_sketch_store.succinct.coded_rows import Gaps
from feast_sketch_store.succinct.timed_lists import fitted_widths, widths_of_independent
from tests.helpers.cases import for_each

DATA = Path(__file__).parents[2] / "feature_repo_example/data"


def bits_of(runs, gaps):
    """The bits of gaps, summed one by one."""
    total = 0
    last = np.flatnonzero(runs.ends == runs.ends.max()) + 1
    kinds = list(zip(np.split(runs.ends, last[:-1]), np.split(runs.widths, last[:-1]), strict=True))
    for begin, length, left in zip(*(part.tolist() for part in gaps), strict=True):
        octave = (left - 1).bit_length()
        ends, widths = kinds[min(octave, 4)]
        width = max(0, int(widths[np.searchsorted(ends, begin, side="right")]) - max(0, octave - 4))
        quotient = length >> width
        total += quotient + 1 + width if quotient < 24 else 56
    return total


def independent(counts):
    """Runs of the widths that suppose independent symbols."""
    parts = []
    for widths in widths_of_independent(counts):
        ends = np.append(np.flatnonzero(np.diff(widths)) + 1, len(counts))
        parts.append((ends, widths[ends - 1].astype(np.uint8)))
    return timed_lists.Runs(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def drawn(seed, num_symbols, num_ticks, stretch):
    """Gaps of ticks whose ids lie within a stretch of the symbols, as those of a taste would."""
    rng = np.random.default_rng(seed)
    parts, counts = [], np.zeros(num_symbols, np.int64)
    for _ in range(num_ticks):
        first = rng.integers(0, num_symbols - stretch + 1)
        ids = np.unique(first + (stretch * rng.random(rng.integers(1, 30)) ** 2).astype(np.int64))
        begins = np.append(0, ids[:-1] + 1)
        parts.append((begins, ids - begins, len(ids) - np.arange(len(ids))))
        counts[ids] += 1
    return counts, Gaps(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def test_runs_take_the_fewest_bits():
    rng = np.random.default_rng(5)
    for _ in range(20):
        bits = rng.integers(0, 200, (3, 5)).astype(float)

        def cost(widths, bits=bits):
            changes = sum(a != b for a, b in itertools.pairwise(widths))
            return sum(bits[w, b] for b, w in enumerate(widths)) + 72 * changes

        best = min(map(cost, itertools.product(range(3), repeat=5)))
        assert cost(timed_lists._cheapest(bits)) == best


@for_each(("num_symbols", "stretch"), [(1, 1), (40, 40), (3000, 60), (3000, 3000)])
def test_fitted_widths_take_no_more_bits_than_those_of_independent_symbols(num_symbols, stretch):
    counts, gaps = drawn(3, num_symbols, 400, stretch)
    runs, usual = fitted_widths(counts, gaps), independent(counts)
    assert (runs.ends[np.flatnonzero(runs.ends == num_symbols)] == num_symbols).sum() == 5
    ours, theirs = (72 * len(r.ends) + bits_of(r, gaps) for r in (runs, usual))
    assert ours <= theirs
    if stretch == 60:  # a taste: what a model of independent symbols cannot know
        assert ours < 0.85 * theirs


def test_a_sample_is_enough(monkeypatch):
    rng = np.random.default_rng(9)
    ids = (2000 * rng.random((3000, 20)) ** 3).astype(np.int32)
    rows = [np.unique(row) for row in ids]
    indptr = np.concatenate(([0], np.cumsum([len(row) for row in rows]))).astype(np.int64)
    flat = np.concatenate(rows)
    ages = np.zeros(len(flat), np.int64)
    counts = np.bincount(flat, minlength=2000)
    order = np.argsort(np.argsort(-counts, kind="stable"))
    flat = np.concatenate([np.sort(order[row]) for row in rows]).astype(np.int32)
    counts = np.bincount(flat, minlength=2000)
    whole = TimedLists.build(counts, indptr, flat, ages)
    monkeypatch.setattr(timed_lists, "_ITEMS_TO_FIT", len(flat) // 8)
    part = TimedLists.build(counts, indptr, flat, ages)
    assert whole.num_bits <= part.num_bits < 1.01 * whole.num_bits


@for_each(("tick", "most"), [(86_400, 9.7), (3_600, 13.9), (60, 20.6)])
def test_bits_of_a_reading_history(tick, most):
    """Clicks of KuaiRand that come with the example; figures are those of this code, rounded up."""
    clicks = pd.read_parquet(DATA / "kuairand_clicks.parquet")
    seconds = clicks["time"].dt.tz_localize(None).astype("datetime64[s]").astype("int64")
    ticks = seconds // tick
    frame = pd.DataFrame({"user": clicks["user_id"], "age": ticks.max() - ticks, "video": clicks["video_id"]})
    places = frame["video"].value_counts(sort=True).index
    frame["id"] = places.get_indexer(frame["video"])
    frame = frame.drop_duplicates().sort_values(["user", "age", "id"])
    indptr = np.concatenate(([0], np.cumsum(frame.groupby("user").size()))).astype(np.int64)
    ids, ages = frame["id"].to_numpy(np.int32), frame["age"].to_numpy(np.int64)
    lists = TimedLists.build(np.bincount(ids), indptr, ids, ages)
    assert lists.num_bits / len(ids) < most
