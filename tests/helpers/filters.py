"""Adds and asks about single facts; the package itself adds and asks about rows of them."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.kernel import to_bits
from feast_sketch_store.structures.sizing import AnyFacts, FactClass, Hashes
from feast_sketch_store.succinct import ShiftingBloomFilter, ShiftingBloomFilterBuilder, SymbolQuery


def add_facts(
    builder: ShiftingBloomFilterBuilder,
    entity_hashes: NDArray[np.uint64],
    entity_index: NDArray[np.integer],
    symbols: NDArray[np.integer],
    num_hashes: int,
) -> None:
    """Add facts one by one.

    Parameters
    ----------
    entity_hashes : uint64[n, 2]
    entity_index : int[m], the row of ``entity_hashes`` for each fact.
    symbols : int[m], in ``[0, 64 * window_words)``.
    num_hashes : k of these facts, at least 1.

    Raises
    ------
    IndexError : a symbol id does not fit into the window.
    """
    indices, indptr = entity_index.astype(np.int32), np.arange(len(symbols) + 1)
    builder.add_rows(entity_hashes, indices, indptr, symbols.astype(np.int32), num_hashes)


def contains_facts(
    bloom: ShiftingBloomFilter,
    entity_hashes: NDArray[np.uint64],
    symbols: NDArray[np.integer],
    num_hashes: int,
) -> NDArray[np.bool_]:
    """Ask about one symbol per entity: bool[n], True for "possibly present".

    Parameters
    ----------
    entity_hashes : uint64[n, 2]
    symbols : int[n]
    num_hashes : the k these symbols were added with.
    """
    query = SymbolQuery(0, (len(bloom.words) - bloom.num_words) * 64, num_hashes)
    return bloom.contains(entity_hashes, query, symbols.astype(np.int32)[:, None])[:, 0]


def ideal_bits(classes: Sequence[FactClass]) -> float:
    """Bits of a standard Bloom filter with fractional hashes: ``sum n * log2(1/rate) / ln 2``."""
    return sum(c.num_items * math.log2(1.0 / c.false_positive_rate) for c in classes) / math.log(2)


def expected_fill(classes: Sequence[AnyFacts], hashes: Sequence[Hashes], num_bits: int) -> float:
    """Expected share of ones in a table of ``num_bits`` once all facts were added."""
    num_ones = sum(c.num_ones(h) for c, h in zip(classes, hashes, strict=True))
    return -math.expm1(-num_ones / num_bits)


def measured_fill(bloom: ShiftingBloomFilter) -> float:
    """Share of ones in the table, the repeated head not counted."""
    return float(np.bitwise_count(bloom.words[: bloom.num_words]).sum(dtype=np.int64)) / bloom.num_bits


def windows(
    bloom: ShiftingBloomFilter, entity_hashes: NDArray[np.uint64], query: SymbolQuery
) -> NDArray[np.uint64]:
    """The possibly-present symbols of entities as bits: uint64[n, words]."""
    return to_bits(*bloom.possible_symbols(entity_hashes, query), query.num_symbols)
