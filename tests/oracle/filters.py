"""Shifting Bloom filters by the formula of `succinct.shifting_bloom`, one hash of one entity at a time."""

import numpy as np

from tests.oracle.bits import MASK, mix64


def position(entity_hash, salt, j, num_words):
    """The offset in words and the rotation of an entity's window number ``j``."""
    step = mix64(int(entity_hash[1]) ^ salt[1]) | 1
    mixed = mix64(mix64(int(entity_hash[0]) ^ salt[0]) + step * j & MASK)
    return (mixed >> 32) * num_words >> 32, mixed & 63


def bit_of(entity_hash, symbol, j, salt, num_words):
    """The bit of the table that hash ``j`` of a fact sets."""
    offset, rotation = position(entity_hash, salt, j, num_words)
    return 64 * ((offset + symbol // 64) % num_words) + (symbol % 64 + rotation) % 64


def possible(table, asked, entity_hashes):
    """Whether entities possibly have each of the symbols: bool[n, num_symbols]."""
    symbols = np.arange(asked.num_symbols)
    words, bits = np.divmod(64 * asked.first_word + symbols, 64)
    answers = np.ones((len(entity_hashes), asked.num_symbols), np.bool_)
    for entity, entity_hash in enumerate(entity_hashes.tolist()):
        for j in range(asked.num_hashes):
            offset, rotation = position(entity_hash, table.salt, j, table.num_words)
            shifts = ((bits + rotation) % 64).astype(np.uint64)
            is_set = table.words[(offset + words) % table.num_words] >> shifts & np.uint64(1) == 1
            answers[entity] &= is_set | ~uses_hash(asked, entity, j)
    return answers


def uses_hash(asked, entity, j):
    """Which symbols of an entity have hash ``j``: bool[num_symbols]."""
    symbols = np.arange(asked.num_symbols)
    if asked.firsts is not None:
        return symbols >= asked.firsts[j]
    group = 0 if asked.ends is None else int(np.searchsorted(asked.ends, j, side="right"))
    if not group:
        return np.ones(len(symbols), np.bool_)
    mask = asked.masks[asked.clusters[entity], group - 1]
    return mask[symbols // 64] >> (symbols % 64).astype(np.uint64) & np.uint64(1) == 0


def touched_blocks(table, asked, entity_hashes, block_words, unchecked):
    """The unchecked blocks in which the windows of entities lie."""
    touched = set()
    for entity_hash in entity_hashes.tolist():
        for j in range(asked.num_hashes):
            offset, _ = position(entity_hash, table.salt, j, table.num_words)
            first = (offset + asked.first_word) % table.num_words
            words = range(first, first + -(-asked.num_symbols // 64))
            touched |= {word // block_words for word in words}
    return sorted(block for block in touched if unchecked[block])


def add_facts(part, first, table, entity_hashes, rows, first_symbol, num_hashes, firsts=None):
    """Set the bits of facts, for those windows that begin in one part of a table.

    Parameters
    ----------
    part : uint64[part words + window_words]; the last words take the ends of windows.
    first : number of the part's first word.
    table : number of words of the whole table, of a window, and the salt.
    rows : the index of each row's hash; indptr; and symbols, less by ``first_symbol`` than in the table.
    """
    num_words, window_words, salt = table
    indices, indptr, symbols = rows
    for row, index in enumerate(indices.tolist()):
        for own in symbols[indptr[row] : indptr[row + 1]].tolist():
            for j in range(num_hashes):
                offset, rotation = position(entity_hashes[index], salt, j, num_words)
                is_here = 0 <= offset - first < len(part) - window_words
                if is_here and (firsts is None or own >= firsts[j]):
                    symbol = own + first_symbol
                    bit = (symbol + rotation) % 64
                    part[offset - first + symbol // 64] |= np.uint64(1 << bit)
