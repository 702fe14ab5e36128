"""The order of the symbols of a count tree, and the fitting of its codes.

Recursive bisection: the symbols of a node are sorted by the leading principal component of their vectors, and
halved. Then the pairs that gain most are swapped. The measure is larger if the symbols of a row are in one
half:

    sum over rows of d1 * log2(d1 + 1) + d2 * log2(d2 + 1)      d1, d2: symbols of the row in either half

All nodes of a depth are processed at once.

Source: Dhulipala et al., "Compressing graphs and indexes with recursive graph bisection", KDD 2016.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.kernel.reference_trees import (
    BINS,
    CAP,
    MOST_TOLD,
    NUM_CLASSES,
    NUM_CONTEXTS,
    NUM_OF_CLASS,
)
from feast_sketch_store.succinct.count_tree import (
    MAX_CONTEXT,
    Splits,
    context_shares,
    cumulated_mass,
    shares_of,
)
from feast_sketch_store.succinct.tree_tables import NUM_CONCENTRATIONS, NUM_SHARES, tables

_NUM_VECTORS = 16
_POWER_STEPS = 3
_MOST_SWAPS = 20  # rounds per depth
_LEAST_VECTORS = 8  # symbols of a node, to be sorted by its component
_FEW_SWAPS = 500  # rounds end if fewer than one in this many symbols is swapped
_LEAST_SPLITS = 6  # sets with at least two symbols, for a node to have a concentration of its own
_USUAL = 5  # concentration of nodes that split few sets
_CLASS_BITS = 3
_SEED = 7

UNUSED_CONTEXT = 40  # stands for a share of one half


class Facts(NamedTuple):
    """Some distinct facts, ordered by row and symbol: rows and symbols, int64[m] each."""

    rows: NDArray[np.int64]
    symbols: NDArray[np.int64]


def order_of(facts: Facts, num_symbols: int) -> NDArray[np.int64]:
    """The symbols in the order of a tree's leaves: int64[V]; unused symbols are anywhere."""
    counts = np.bincount(facts.symbols, minlength=num_symbols)
    order = np.argsort(-counts, kind="stable")
    if num_symbols < 3 or not len(facts.rows):
        return order
    vectors = _vectors(facts, counts)
    splits = Splits.root(num_symbols)
    by_symbol = np.argsort(facts.symbols, kind="stable")
    rows, symbols = facts.rows[by_symbol], facts.symbols[by_symbol]
    while len(splits.lows):
        is_large = splits.highs - splits.lows > 2
        splits = Splits(splits.lows[is_large], splits.highs[is_large])
        _sort_by_vectors(order, splits, vectors)
        _swap(order, splits, rows, symbols)
        splits = splits.below
    return order


def _vectors(facts: Facts, counts: NDArray[np.int64]) -> NDArray[np.float32]:
    """Vectors of symbols, close to each other if the same rows have the symbols: float32[V, 16].

    They are the right singular vectors of the matrix of facts, by power iterations. Popular symbols weigh
    less.
    """
    random = np.random.default_rng(_SEED)
    _, row = np.unique(facts.rows, return_inverse=True)
    weight = 1 / np.sqrt(np.maximum(counts, 1))[facts.symbols]
    norms = np.sqrt(np.bincount(row, weight**2))
    scaled: NDArray[np.float32] = (weight / norms[row]).astype(np.float32)
    by_symbol = np.argsort(facts.symbols, kind="stable")
    of_rows = _Sums(row, facts.symbols, scaled, int(row.max()) + 1)
    of_symbols = _Sums(facts.symbols[by_symbol], row[by_symbol], scaled[by_symbol], len(counts))
    vectors = random.standard_normal((len(counts), _NUM_VECTORS + 8)).astype(np.float32)
    for _ in range(_POWER_STEPS + 1):
        vectors = np.linalg.qr(of_symbols.of(of_rows.of(vectors)))[0]
    _, sizes, found = np.linalg.svd(of_rows.of(vectors), full_matrices=False)
    vectors = (vectors @ found.T * sizes)[:, :_NUM_VECTORS]
    lengths = np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    return np.asarray(vectors / lengths, np.float32)


class _Sums:
    """Products of a sparse matrix, given by ascending rows, and dense matrices."""

    def __init__(
        self, rows: NDArray[np.int64], columns: NDArray[np.int64], numbers: NDArray[np.float32], num_rows: int
    ):
        self._columns, self._numbers, self._num_rows = columns, numbers[:, None], num_rows
        self._starts = np.flatnonzero(np.diff(rows, prepend=-1))
        self._filled = rows[self._starts]

    def of(self, dense: NDArray[np.float32]) -> NDArray[np.float32]:
        sums = np.zeros((self._num_rows, dense.shape[1]), np.float32)
        sums[self._filled] = np.add.reduceat(dense[self._columns] * self._numbers, self._starts)
        return sums


def _sort_by_vectors(order: NDArray[np.int64], splits: Splits, vectors: NDArray[np.float32]) -> None:
    """Sort the symbols of each node by the leading principal component of their vectors."""
    for low, high in zip(splits.lows.tolist(), splits.highs.tolist(), strict=True):
        if high - low > _LEAST_VECTORS:
            own = vectors[order[low:high]]
            own = own - own.mean(axis=0)
            leading = np.linalg.eigh(own.T @ own)[1][:, -1]
            order[low:high] = order[low:high][np.argsort(own @ leading, kind="stable")]


def _swap(
    order: NDArray[np.int64], splits: Splits, rows: NDArray[np.int64], symbols: NDArray[np.int64]
) -> None:
    """Swap pairs of symbols between the halves of nodes, while many pairs gain."""
    node_of = np.full(len(order), -1)
    places = np.empty(len(order), np.int64)
    for node, (low, high) in enumerate(zip(splits.lows.tolist(), splits.highs.tolist(), strict=True)):
        node_of[order[low:high]] = node
    is_inside = node_of[symbols] >= 0
    rows, symbols = rows[is_inside], symbols[is_inside]
    if not len(rows):
        return
    _, group = np.unique(node_of[symbols] * (int(rows.max()) + 1) + rows, return_inverse=True)
    whole = np.bincount(group)
    benefit = np.arange(whole.max() + 2) * np.log2(np.arange(whole.max() + 2) + 1)
    step = np.diff(benefit)  # the benefit of one more
    middles = splits.middles
    for _ in range(_MOST_SWAPS):
        places[order] = np.arange(len(order))
        is_left = places[symbols] < middles[node_of[symbols]]
        left = np.bincount(group[is_left], minlength=len(whole))
        own, other = left[group], (whole - left)[group]
        own, other = np.where(is_left, own, other), np.where(is_left, other, own)
        gains = np.bincount(symbols, step[other] - step[own - 1], len(order))
        if not _swap_best(order, splits, gains.astype(np.float64)):
            return


def _swap_best(order: NDArray[np.int64], splits: Splits, gains: NDArray[np.float64]) -> bool:
    """Swap the pairs of symbols that gain most, node by node; False if there are few."""
    lows, middles, highs = splits.lows, splits.middles, splits.highs
    sizes = highs - lows
    node = np.repeat(np.arange(len(lows)), sizes)
    place = np.arange(len(node)) - np.repeat(np.cumsum(sizes) - sizes, sizes) + lows[node]
    is_right = place >= middles[node]
    own = gains[order[place]]
    ranked = place[np.lexsort((-own, is_right, node))]
    # The left symbols of each node come first, so symbols of equal rank in both halves are a pair.
    lefts = ranked[~is_right]
    left_node = node[~is_right]
    halves = middles - lows
    rank = np.arange(len(lefts)) - np.repeat(np.cumsum(halves) - halves, halves)
    firsts = np.cumsum(sizes) - sizes
    rights = ranked[firsts[left_node] + halves[left_node] + rank]
    gain = gains[order[lefts]] + gains[order[rights]]
    is_swapped = gain > 1e-6
    lefts, rights = lefts[is_swapped], rights[is_swapped]
    order[lefts], order[rights] = order[rights], order[lefts]
    return len(lefts) * _FEW_SWAPS > len(node)


def concentrations_of(
    rows: NDArray[np.int64], symbols: NDArray[np.int64], levels: NDArray[np.uint8]
) -> NDArray[np.uint8]:
    """The concentration of each node for which some sets take the fewest bits: uint8[V].

    Parameters
    ----------
    rows, symbols : of facts; symbols in the order of the tree.
    levels : uint8[V], of the mass of symbols.
    """
    found = np.full(len(levels), _USUAL, np.uint8)
    shares = shares_of(cumulated_mass(levels)).astype(np.int64)
    splits = Splits.root(len(levels))
    bits = [-np.log2(np.maximum(np.diff(t.astype(np.int64), axis=-1), 1) / 2**15) for t in tables()]
    while len(splits.lows) and len(rows):
        # Nodes of a depth do not overlap; a symbol between nodes is in none.
        node = np.searchsorted(splits.lows, symbols, side="right") - 1
        is_inside = (node >= 0) & (symbols < splits.highs[np.maximum(node, 0)])
        rows, symbols, node = rows[is_inside], symbols[is_inside], node[is_inside]
        if not len(rows):
            break
        middles = splits.middles
        keys, group = np.unique(node * (int(rows.max()) + 1) + rows, return_inverse=True)
        owner = keys // (int(rows.max()) + 1)
        number = np.bincount(group)
        left = np.bincount(group, symbols < middles[node]).astype(np.int64)
        is_split = number > 1
        owner, number, left = owner[is_split], number[is_split], left[is_split]
        enough = np.bincount(owner, minlength=len(middles)) >= _LEAST_SPLITS
        costs = []
        for concentration in range(NUM_CONCENTRATIONS):
            nodes = concentration * NUM_SHARES + shares[middles[owner]]
            costs.append(np.bincount(owner, _split_bits(bits, nodes, number, left), len(middles)))
        found[middles[enough]] = np.argmin(costs, axis=0)[enough]
        splits = splits.below
    return found


def _split_bits(
    bits: list[NDArray[np.float64]],
    nodes: NDArray[np.int64],
    number: NDArray[np.int64],
    left: NDArray[np.int64],
) -> NDArray[np.float64]:
    """The bits needed to say how many of some ids are in the left half."""
    small, large = bits
    costs = small[nodes, np.minimum(number, MOST_TOLD), np.minimum(left, MOST_TOLD)]
    is_large = number > MOST_TOLD
    kind = np.clip(np.frexp(number[is_large])[1] - 5, 0, len(BINS) - 1)
    place = left[is_large] * np.array(BINS)[kind] // (number[is_large] + 1)
    costs[is_large] = large[nodes[is_large], kind, place]
    return np.asarray(costs)


def fit_members(
    seen: NDArray[np.int64], marks: NDArray[np.int64], is_member: NDArray[np.bool_], num_symbols: int
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The class of each symbol, uint8[V], and the share of members in each context, uint8[2184].

    Parameters
    ----------
    seen : int64[m], ``row << 32`` plus symbol, of those that rows have already; ascending.
    marks : int64[m], 1 to 3: which earlier sets have it.
    is_member : bool[m], whether it is in the set.
    num_symbols : number of symbols.
    """
    rows, symbols = seen >> 32, seen & (2**32 - 1)
    alike = np.zeros(num_symbols, np.uint8)
    best = alike, *_contexts_of(rows, marks, alike[symbols], is_member)
    if len(seen):
        classes = _classes_of(symbols, is_member, num_symbols)
        found = classes, *_contexts_of(rows, marks, classes[symbols], is_member)
        if found[2] + _CLASS_BITS * num_symbols < best[2]:
            best = found
    return best[0], best[1]


def _classes_of(
    symbols: NDArray[np.int64], is_member: NDArray[np.bool_], num_symbols: int
) -> NDArray[np.uint8]:
    """The class of each symbol, by how often it is a member if the row has it already: uint8[V], below 8."""
    seen = np.bincount(symbols, minlength=num_symbols)
    members = np.bincount(symbols, is_member, num_symbols)
    usual = np.clip(is_member.mean(), 1e-3, 1 - 1e-3)
    share = (members + 4 * usual) / (seen + 4)
    logit = np.log(share / (1 - share)) - np.log(usual / (1 - usual))
    return np.asarray(np.clip(np.rint(2 * logit + 4), 0, NUM_CLASSES - 1).astype(np.uint8))


def _contexts_of(
    rows: NDArray[np.int64],
    marks: NDArray[np.int64],
    classes: NDArray[np.uint8],
    is_member: NDArray[np.bool_],
) -> tuple[NDArray[np.uint8], float]:
    """The share of members in each context, uint8[2184], and the bits of all members with these shares."""
    starts = np.flatnonzero(np.diff(rows, prepend=-1))
    lengths = np.diff(np.append(starts, len(rows)))
    seen = np.arange(len(rows)) - np.repeat(starts, lengths)
    before: NDArray[np.int64] = np.cumsum(is_member) - is_member
    ones = before - np.repeat(before[starts], lengths)
    ones = np.where(seen > CAP, (2 * ones * CAP + seen) // np.maximum(2 * seen, 1), ones)
    seen = np.minimum(seen, CAP)
    place = ((marks - 1) * NUM_CLASSES + classes) * NUM_OF_CLASS + seen * (seen + 1) // 2 + ones
    numbers = np.bincount(place, minlength=NUM_CONTEXTS)
    members = np.bincount(place, is_member, NUM_CONTEXTS)
    # A rare context is assumed to be like others of its class.
    usual = is_member.mean() if len(is_member) else 0.5
    of_class = members.reshape(-1, NUM_OF_CLASS).sum(axis=1) + usual / 2 + 1e-3
    of_class /= numbers.reshape(-1, NUM_OF_CLASS).sum(axis=1) + 0.5 + 2e-3
    share = (members + 3 * np.repeat(of_class, NUM_OF_CLASS)) / (numbers + 3)
    logits = np.log(share / (1 - share))
    found = np.clip(np.rint(5 * logits + UNUSED_CONTEXT), 0, MAX_CONTEXT).astype(np.uint8)
    found[numbers == 0] = UNUSED_CONTEXT
    told = context_shares(found) / 2**15
    bits = -(members * np.log2(told) + (numbers - members) * np.log2(1 - told)).sum()
    return found, float(bits)
