"""Levels of symbols and of sizes. They determine the width of a gap between two ids of a set.

A gap that begins at symbol ``s``, in a set with ``k`` ids left, has

    width = (level_s - left_k) div 4        in bits, at least 0

Both levels are in quarter octaves. Let ``p_s`` be the share of rows with symbol ``s``, and ``t_s`` the mean
number of symbols of a row from ``s`` on. Then the next of ``k`` ids is about ``t_s / (k * p_s)`` symbols on.
So

    level_s = round(4 * log2(ln 2 * t_s / p_s)) + 2
    left_k  = 4 * log2(k)

is the best code for independent symbols. But symbols are not independent: rows have tastes, so gaps vary
more. `fitted` finds levels with which given sets take fewer bits.

Source: Gallager & Van Voorhis, "Optimal source codes for geometrically distributed integer alphabets", 1975.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.kernel import LONGEST_UNARY, half_octaves

MAX_LEVEL = 123  # of a gap of 30 bits
NUM_CLASSES = 64  # of the number of ids left, by half octaves
FIT_FACTS = 1 << 17  # the most facts to which levels are fitted

_FINENESS = 4  # levels in an octave
_MAX_WIDTH = 30
_LONG_CODE = LONGEST_UNARY + 32
_REACH = 2 * _FINENESS  # the most by which a level changes in one step
_ROUNDS = 3

# The middle of each half octave; the first ones hold only 1, 2 or 3.
LEFT_LEVELS = (2 * np.arange(NUM_CLASSES) + (np.arange(NUM_CLASSES) > 3)).astype(np.uint8)


class Levels(NamedTuple):
    """The levels of V symbols, in few runs of equal level, and of the numbers of ids left.

    Parameters
    ----------
    ends : int64[R], the symbol after each run.
    runs : uint8[R], the level of each.
    left : uint8[64], by half octaves of the number of ids left.
    """

    ends: NDArray[np.int64]
    runs: NDArray[np.uint8]
    left: NDArray[np.uint8] = LEFT_LEVELS


def levels_of(counts: NDArray[np.int64], max_runs: int) -> Levels:
    """The best levels of symbols that are independent of each other.

    Parameters
    ----------
    counts : int64[V], the number of rows with each symbol. The more often it changes between falling and
        rising, the worse the levels fit.
    max_runs : the most runs of equal level.
    """
    if not len(counts):
        return Levels(np.zeros(0, np.int64), np.zeros(0, np.uint8))
    tails = np.cumsum(counts[::-1])[::-1]
    exact = _FINENESS * np.log2(np.log(2) * np.maximum(tails, 1) / np.maximum(counts, 1)) + _FINENESS / 2
    levels = np.clip(np.rint(exact), 0, MAX_LEVEL).astype(np.int64)
    ends = _ends(levels)
    if len(ends) > max_runs:
        levels = np.maximum.accumulate(levels)
        ends = _ends(levels)
    return Levels(ends, levels[ends - 1].astype(np.uint8))


def _ends(levels: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.append(np.flatnonzero(np.diff(levels)) + 1, len(levels)).astype(np.int64)


def fitted(levels: Levels, sizes: NDArray[np.int64], ids: NDArray[np.integer]) -> Levels:
    """Levels with which sets take fewer bits.

    Parameters
    ----------
    levels : to start from.
    sizes, ids : of some sets, int64[n] and int[nnz], ascending in each.
    """
    num_sets = int(np.searchsorted(np.cumsum(sizes), FIT_FACTS, side="right"))
    sizes = sizes[:num_sets]
    ids = ids[: sizes.sum()].astype(np.int64)
    if not len(ids):
        return levels
    firsts = (np.cumsum(sizes) - sizes)[sizes > 0]
    begins = np.append(0, ids[:-1] + 1)
    begins[firsts] = 0
    left = np.repeat(np.cumsum(sizes), sizes) - np.arange(len(ids))
    run = np.repeat(np.arange(len(levels.ends)), np.diff(levels.ends, prepend=0))[begins]
    classes = half_octaves(np.arange(left.max() + 1))
    # Use the narrowest type: a stable sort of 16 bits is a radix sort.
    key = (run * NUM_CLASSES + classes[left]).astype(np.min_scalar_type(len(levels.ends) * NUM_CLASSES))
    order = np.argsort(key, kind="stable")
    counts = np.bincount(key)
    groups = np.flatnonzero(counts)
    bits = _bits_by_width((ids - begins)[order], np.cumsum(counts[groups]) - counts[groups])
    runs, lefts = levels.runs.astype(np.int64), levels.left.astype(np.int64)
    run_of, class_of = np.divmod(groups, NUM_CLASSES)
    for _ in range(_ROUNDS):
        lefts -= _best_step(bits, runs[run_of] - lefts[class_of], class_of, NUM_CLASSES)
        lefts = np.clip(lefts, 0, 255)
        runs += _best_step(bits, runs[run_of] - lefts[class_of], run_of, len(runs))
        runs = np.clip(runs, 0, MAX_LEVEL)
    ends = np.append(np.flatnonzero(np.diff(runs)), len(runs) - 1)
    return Levels(levels.ends[ends], runs[ends].astype(np.uint8), lefts.astype(np.uint8))


def _bits_by_width(gaps: NDArray[np.int64], begins: NDArray[np.int64]) -> NDArray[np.float64]:
    """The bits of all gaps of each group, in codes of each width: float64[W, G].

    Parameters
    ----------
    gaps : int64[n], at most `FIT_FACTS`, below 2**31, ordered by group.
    begins : int64[G], where each group begins.
    """
    gaps = gaps.astype(np.int32)
    num_widths = min(_MAX_WIDTH, int(gaps.max()).bit_length()) + 1
    bits = np.empty((num_widths, len(begins)))
    for width in range(num_widths):
        lengths = gaps >> width
        is_long = lengths >= LONGEST_UNARY
        lengths += 1 + width
        np.putmask(lengths, is_long, _LONG_CODE)
        bits[width] = np.add.reduceat(lengths, begins)
    return bits


def _best_step(
    bits: NDArray[np.float64], levels: NDArray[np.int64], part: NDArray[np.int64], num_parts: int
) -> NDArray[np.int64]:
    """The step by which to raise the levels of each part's groups; the smallest of equally good ones."""
    steps = np.array(sorted(range(-_REACH, _REACH + 1), key=abs))
    groups = np.arange(bits.shape[1])
    costs = []
    for step in steps.tolist():
        widths = np.clip((levels + step) >> 2, 0, len(bits) - 1)
        costs.append(np.bincount(part, bits[widths, groups], num_parts))
    return np.asarray(steps[np.argmin(costs, axis=0)])
