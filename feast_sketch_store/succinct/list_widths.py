"""Widths of the codes of gaps between the ids of a tick; `timed_lists` says what they are for.

Ids of a tick ascend, so each is stored as a gap: its distance from the one before. If ``r`` ids are left, the
next one is with probability 1/2 within the stretch of symbols that has

    1 - 2 ** (-1 / r)

of the uses of all symbols from here on, because with probability 1/2 none of r independent draws is in it.
The width is the logarithm of the nearest power of two to the stretch's length. But the items of a tick are
not independent: customers buy things that go together. `fitted` finds the widths with which given lists take
the fewest bits, in runs of symbols. It adds a run if that saves more bits than the run takes.

Source: Gallager & Van Voorhis, "Optimal source codes for geometrically distributed integer alphabets", 1975.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.kernel import LONGEST_UNARY, NUM_WIDTHS, ceil_log2

MAX_WIDTH = 30

_LEFT = (1.0, 2.0, 3.5, 6.5, 12.5)  # the typical number of ids left, for each of the widths
_LONG_CODE = LONGEST_UNARY + 32
_RUN_BITS = 72  # bits of the end of a run, and of its width
_MAX_BLOCKS = 512  # groups of symbols of equal width


class Gaps(NamedTuple):
    """Gaps between the ids of ticks.

    Parameters
    ----------
    begins : int64[n], the first symbol to which each gap may lead.
    lengths : int64[n], how many symbols each gap skips.
    left : int64[n], how many ids of the tick were left, including this one.
    """

    begins: NDArray[np.int64]
    lengths: NDArray[np.int64]
    left: NDArray[np.int64]


class Runs(NamedTuple):
    """Runs of symbols of equal width, for each of the five ranges of ids left.

    Parameters
    ----------
    ends : int64[R], the symbol after each run.
    widths : uint8[R]
    """

    ends: NDArray[np.int64]
    widths: NDArray[np.uint8]


def widths_of_independent(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The widths for independent symbols with these counts: int64[5, V]."""
    uses = np.cumsum(np.maximum(counts, 0.5))
    before = np.concatenate(([0.0], uses[:-1]))
    widths = []
    for left in _LEFT:
        half = before + (uses[-1] - before) * (1 - 0.5 ** (1 / left))
        lengths = np.searchsorted(uses, half) + 1 - np.arange(len(counts))
        widths.append(np.rint(np.log2(np.maximum(lengths, 1))).clip(0, MAX_WIDTH).astype(np.int64))
    return np.stack(widths)


def fitted(counts: NDArray[np.int64], gaps: Gaps, share: float = 1.0) -> Runs:
    """The widths with which gaps take the fewest bits.

    Parameters
    ----------
    counts : int64[V], how often each symbol is used.
    gaps : of all ids, or of a sample.
    share : the share of all ids that the sample has.
    """
    if not len(counts):
        return Runs(np.zeros(0, np.int64), np.zeros(0, np.uint8))
    octaves = ceil_log2(gaps.left)
    kinds = np.minimum(octaves, NUM_WIDTHS - 1)
    runs = []
    for kind, usual in enumerate(widths_of_independent(counts)):
        own = np.flatnonzero(kinds == kind)
        begins = gaps.begins[own]
        block_of = _blocks(begins, usual)
        firsts = np.flatnonzero(np.diff(block_of, prepend=-1))
        bits = _bits_by_width(gaps.lengths[own], octaves[own] - kind, block_of[begins], len(firsts))
        # Symbols that the sample lacks are assumed independent.
        bits += np.abs(np.arange(len(bits))[:, None] - usual[firsts])
        runs.append(_runs(_cheapest(bits / share), np.append(firsts[1:], len(counts))))
    return Runs(*(np.concatenate(parts) for parts in zip(*runs, strict=True)))


def _blocks(begins: NDArray[np.int64], usual: NDArray[np.int64]) -> NDArray[np.int64]:
    """The block of each symbol: blocks have about equally many gaps, and symbols of one usual width."""
    uses = np.bincount(begins, minlength=len(usual))
    parts = (np.cumsum(uses) - uses) * _MAX_BLOCKS // max(1, len(begins))
    is_new = (np.diff(parts, prepend=0) > 0) | (np.diff(usual, prepend=usual[0]) != 0)
    return np.cumsum(is_new)


def _bits_by_width(
    gaps: NDArray[np.int64], shifts: NDArray[np.int64], block: NDArray[np.int64], num_blocks: int
) -> NDArray[np.float64]:
    """The bits of the gaps of each block with each width: float64[W, B].

    Parameters
    ----------
    gaps : of all blocks.
    shifts : by how much the width of each gap is below that of its block.
    block : of each symbol.
    num_blocks : number of blocks.
    """
    bits = np.empty((MAX_WIDTH + 1, num_blocks))
    for width in range(MAX_WIDTH + 1):
        own = np.maximum(width - shifts, 0)
        quotients = gaps >> own
        lengths = np.where(quotients < LONGEST_UNARY, quotients + 1 + own, _LONG_CODE)
        bits[width] = np.bincount(block, lengths, num_blocks)
    return bits


def _cheapest(bits: NDArray[np.float64]) -> NDArray[np.int64]:
    """The width of each block, int64[B], for which all blocks and their runs take the fewest bits."""
    num_widths, num_blocks = bits.shape
    same = np.arange(num_widths)
    before = np.empty((num_blocks, num_widths), np.int64)
    costs = bits[:, 0]
    for block in range(1, num_blocks):
        best = int(costs.argmin())
        stays = costs <= costs[best] + _RUN_BITS
        before[block] = np.where(stays, same, best)
        costs = np.minimum(costs, costs[best] + _RUN_BITS) + bits[:, block]
    widths = np.empty(num_blocks, np.int64)
    widths[-1] = costs.argmin()
    for block in range(num_blocks - 1, 0, -1):
        widths[block - 1] = before[block, widths[block]]
    return widths


def _runs(widths: NDArray[np.int64], ends: NDArray[np.int64]) -> Runs:
    """Blocks as runs of equal width."""
    last = np.append(np.flatnonzero(np.diff(widths)), len(widths) - 1)
    return Runs(ends[last], widths[last].astype(np.uint8))
