"""The compiled kernel, with the functions of `reference` and its sister modules, which describe them.

Calls that take longer than some microseconds let other threads run.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

import feast_sketch_store.kernel._compiled as _compiled
from feast_sketch_store.kernel.prepared import SEED, PreparedRows
from feast_sketch_store.kernel.reference import Asked, Table
from feast_sketch_store.kernel.reference_lists import ListCodes
from feast_sketch_store.kernel.reference_rows import AscendingNumbers, PackedNumbers, RowIndex, words_of_bits
from feast_sketch_store.kernel.reference_sets import SetCodes
from feast_sketch_store.kernel.reference_trees import TreeCodes

_EXPECTED_SYMBOLS = 256  # ids per entity for which memory is allocated at first
_EXPECTED_IDS = 64  # ids per set for which memory is allocated at first

# These take and return plain objects, so they are called without a Python function around them.
hash_int64_key = _compiled.hash_int64_key
hash_key = _compiled.hash_key
hash_message = _compiled.hash_message
check_blocks = _compiled.check_blocks
vectors_to_json = _compiled.vectors_to_json


def windows(table: Table, asked: Asked, entity_hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """See `reference.windows`."""
    answers = np.empty((len(entity_hashes), asked.num_words), np.uint64)
    _compiled.windows(table.words, table.num_words, *table.salt, _plain(entity_hashes), *asked, answers)
    return answers


def possible_symbols(
    table: Table,
    asked: Asked,
    entity_hashes: NDArray[np.uint64],
    wanted: NDArray[np.bool_] | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """See `reference.possible_symbols`."""
    num_entities = len(entity_hashes)
    indptr = np.zeros(num_entities + 1, np.int64)
    ids = np.empty(num_entities * min(asked.num_symbols, _EXPECTED_SYMBOLS) + 2, np.int32)
    read = _compiled.possible_symbols
    arguments = table.words, table.num_words, *table.salt, _plain(entity_hashes), *asked, wanted
    done = read(*arguments, 0, indptr, ids)
    while done < num_entities:
        # Assume as many for the other entities as for those so far, and at least all for the next one.
        count = int(indptr[done])
        room = max(count * num_entities // (done + 1) * 5 // 4, count + asked.num_symbols + 2)
        ids = np.concatenate((ids[:count], np.empty(room - count, np.int32)))
        done = read(*arguments, done, indptr, ids)
    return indptr, ids[: indptr[-1]]


def contains(
    table: Table,
    asked: Asked,
    entity_hashes: NDArray[np.uint64],
    symbols: NDArray[np.int32],
    wanted: NDArray[np.bool_] | None = None,
) -> NDArray[np.bool_]:
    """See `reference.contains`."""
    per_entity = symbols.shape[-1]
    found = np.empty((len(entity_hashes), per_entity), np.bool_)
    symbols = _plain(symbols, np.int32)
    hashes = _plain(entity_hashes)
    _compiled.contains(
        table.words, table.num_words, *table.salt, hashes, *asked, wanted, symbols, per_entity, found
    )
    return found


def contains_rows(
    indptr: NDArray[np.int64], ids: NDArray[np.integer], num_symbols: int, symbols: NDArray[np.int32]
) -> NDArray[np.bool_]:
    """See `reference.contains_rows`."""
    found = np.empty((len(indptr) - 1, symbols.shape[-1]), np.bool_)
    per_row = symbols.shape[1] if symbols.ndim > 1 else 0
    ids, symbols = _plain(ids, np.int32), _plain(symbols, np.int32)
    if found.size:
        _compiled.contains_rows(_plain(indptr), ids, num_symbols, symbols, per_row, found)
    return found


def scores(
    table: Table,
    asked: Asked,
    entity_hashes: NDArray[np.uint64],
    weights: NDArray[np.float64],
    wanted: NDArray[np.bool_] | None = None,
) -> NDArray[np.float64]:
    """See `reference.scores`."""
    sums = np.zeros(len(entity_hashes))
    weights = _plain(weights, np.float64)
    hashes = _plain(entity_hashes)
    _compiled.scores(table.words, table.num_words, *table.salt, hashes, *asked, wanted, weights, sums)
    return sums


def touched_blocks(
    table: Table,
    asked: Asked,
    entity_hashes: NDArray[np.uint64],
    block_words: int,
    unchecked: NDArray[np.uint8],
) -> NDArray[np.int64]:
    """See `reference.touched_blocks`."""
    touched = np.zeros(len(unchecked), np.uint8)
    hashes = _plain(entity_hashes)
    count = _compiled.touch_blocks(
        table.words, table.num_words, *table.salt, hashes, *asked, block_words, unchecked, touched
    )
    return touched.nonzero()[0] if count else np.zeros(0, np.int64)


def add_facts(
    part: NDArray[np.uint64],
    first: int,
    table: tuple[int, int, tuple[int, int]],
    entity_hashes: NDArray[np.uint64],
    rows: tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.integer]],
    first_symbol: int,
    num_hashes: int,
    firsts: NDArray[np.int64] | None = None,
) -> None:
    """See `reference.add_facts`."""
    num_words, window_words, salt = table
    places, indptr, symbols = rows
    hashes = _plain(entity_hashes)
    narrow_and_wide = (symbols, None) if symbols.dtype.itemsize == 2 else (None, symbols)
    _compiled.add_facts(
        part, first, len(part) - window_words, num_words, *salt, hashes, places, indptr, *narrow_and_wide,
        first_symbol, num_hashes, firsts,
    )  # fmt: skip


def hash_int64_keys(prefix: bytes, values: NDArray[np.int64]) -> NDArray[np.uint64]:
    """See `reference.hash_int64_keys`."""
    hashes = np.empty((len(values), 2), np.uint64)
    _compiled.hash_int64_keys(prefix, _plain(values, np.int64), hashes)
    return hashes


def parse_int64_keys(messages: list[bytes]) -> tuple[str, NDArray[np.int64]] | None:
    """See `reference.parse_int64_keys`."""
    lengths = np.fromiter(map(len, messages), np.int64, len(messages))
    values = np.empty(len(messages), np.int64)
    name = _compiled.parse_int64_keys(b"".join(messages), lengths, values)
    return None if name is None else (name.decode(), values)


def parse_packed_lists(
    messages: list[bytes], field: int, width: int
) -> tuple[NDArray[np.int64], NDArray[np.int64] | NDArray[np.int32]] | None:
    """See `reference.parse_packed_lists`."""
    lengths = np.fromiter(map(len, messages), np.int64, len(messages))
    content, ends = b"".join(messages), np.empty(len(messages) + 1, np.int64)
    count = _compiled.parse_packed_lists(content, lengths, field, width, ends, bytearray())
    if count is None:
        return None
    elements = np.empty(count, np.int32 if width == 4 else np.int64)
    into = elements.view(np.uint8)
    if _compiled.parse_packed_lists(content, lengths, field, width, ends, into) is None:
        return None
    return ends, elements


def hash_keys(offsets: NDArray[np.int64], data: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """See `reference.hash_keys`."""
    hashes = np.empty((len(offsets) - 1, 2), np.uint64)
    _compiled.hash_keys(_plain(offsets), data, hashes)
    return hashes


def prepared_rows() -> PreparedRows | None:
    """See `reference.prepared_rows`."""
    rows: PreparedRows = _compiled.PreparedRows()
    return rows


class Int64Index:
    """See `reference.Int64Index`."""

    def __init__(self, values: NDArray[np.int64]):
        self._values = _plain(values)
        self._slots = _empty_slots(len(values))
        _compiled.index_int64(self._values, SEED, self._slots)

    def find(self, wanted: NDArray[np.int64]) -> NDArray[np.int32]:
        """See `reference.Int64Index.find`."""
        ids = np.empty(len(wanted), np.int32)
        wanted = _plain(wanted, np.int64)
        _compiled.find_int64(self._values, SEED, self._slots, wanted, ids)
        return ids


class BytesIndex:
    """See `reference.BytesIndex`."""

    def __init__(self, offsets: NDArray[np.int64], data: NDArray[np.uint8]):
        self._values = _plain(offsets), data
        self._slots = _empty_slots(len(offsets) - 1)
        _compiled.index_bytes(*self._values, SEED, self._slots)

    def find(self, offsets: NDArray[np.int64], data: NDArray[np.uint8]) -> NDArray[np.int32]:
        """See `reference.BytesIndex.find`."""
        ids = np.empty(len(offsets) - 1, np.int32)
        _compiled.find_bytes(*self._values, SEED, self._slots, _plain(offsets), data, ids)
        return ids


def distinct_per_row(
    indptr: NDArray[np.int64], ids: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """See `reference.distinct_per_row`."""
    indptr, ids = indptr.astype(np.int64), ids.astype(np.int32)  # copies
    _compiled.sort_rows(indptr, ids)
    return indptr, ids[: indptr[-1]]


def encode_values(
    field: tuple[bytes, bool, bool],
    is_present: NDArray[np.bool_],
    indptr: NDArray[np.int64],
    ids: NDArray[np.int32],
    offsets: NDArray[np.int64],
    data: NDArray[np.uint8],
) -> tuple[bytes, NDArray[np.int64]]:
    """See `reference.encode_values`."""
    ends = np.empty(len(indptr), np.int64)
    return _compiled.encode_values(*field, is_present, indptr, ids, offsets, data, ends), ends


def take_packed(packed: PackedNumbers, length: int, places: NDArray[np.int64]) -> NDArray[np.uint64]:
    """See `reference_rows.take_packed`."""
    numbers = np.empty(len(places), np.uint64)
    _compiled.take_packed(*packed, length, _plain(places, np.int64), numbers)
    return numbers


def take_ascending(numbers: AscendingNumbers, places: NDArray[np.int64]) -> NDArray[np.uint64]:
    """See `reference_rows.take_ascending`."""
    taken = np.empty(len(places), np.uint64)
    _compiled.take_ascending(*_flat(numbers), _plain(places, np.int64), taken)
    return taken


def row_hashes(entity_hashes: NDArray[np.uint64], salt: tuple[int, int]) -> NDArray[np.uint64]:
    """See `reference_rows.row_hashes`."""
    hashes = np.empty(len(entity_hashes), np.uint64)
    _compiled.row_hashes(_plain(entity_hashes), *salt, hashes)
    return hashes


def find_rows(index: RowIndex, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
    """See `reference_rows.find_rows`."""
    rows = np.empty(len(hashes), np.int64)
    _compiled.find_rows(*_flat(index.fingerprints), index.range, index.twins, _plain(hashes), rows)
    return rows


def _flat(numbers: AscendingNumbers) -> tuple[Any, ...]:
    """Ascending numbers as the C functions take them."""
    return (numbers.highs, numbers.num_buckets, numbers.length, *numbers.lows, *numbers.samples)


def write_sets(
    codes: SetCodes, headers: NDArray[np.int32], indptr: NDArray[np.int64], ids: NDArray[np.int32]
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """See `reference_sets.write_sets`."""
    return _written(_compiled.write_sets, codes, (headers, indptr, ids))


def _written(
    write: Callable[..., object],
    codes: tuple[Any, ...],
    sets: tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32]],
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """The output of a function that is called twice: first to learn how many words it needs."""
    headers, indptr, ids = sets
    ends = np.zeros(len(headers), np.int64)
    headers = _plain(headers)
    write(*codes, headers, indptr, ids, bytearray(), ends)
    words = np.zeros(words_of_bits(int(ends[-1]) if len(ends) else 0), np.uint64)
    write(*codes, headers, indptr, ids, words, ends)
    return words, ends


def read_sets(
    codes: SetCodes,
    words: NDArray[np.uint64],
    num_bits: int,
    starts: AscendingNumbers,
    rows: NDArray[np.int64],
    feature: int,
    own_ids: NDArray[np.int32] | None = None,
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32]]:
    """See `reference_sets.read_sets`."""
    num_symbols = int(codes.level_starts[feature + 1] - codes.level_starts[feature])
    arguments = (*codes, words, num_bits, *_flat(starts), rows, feature, own_ids)
    return _all_sets(_compiled.read_sets, arguments, len(rows), num_symbols)


def _all_sets(
    read: Callable[..., int], arguments: tuple[Any, ...], wanted: int, num_symbols: int
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32]]:
    """All sets from a function that stops when there is no more room."""
    headers, indptr = np.empty(wanted, np.int32), np.zeros(wanted + 1, np.int64)
    ids = np.empty(wanted * min(num_symbols, _EXPECTED_IDS), np.int32)
    done = read(*arguments, 0, headers, indptr, ids)
    while done < wanted:
        count = int(indptr[done])
        room = max(count * wanted // (done + 1) * 5 // 4, count + num_symbols)
        ids = np.concatenate((ids[:count], np.empty(room - count, np.int32)))
        done = read(*arguments, done, headers, indptr, ids)
    return headers, indptr, ids[: indptr[-1]]


def write_trees(
    codes: TreeCodes, headers: NDArray[np.int32], indptr: NDArray[np.int64], ids: NDArray[np.int32]
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """See `reference_trees.write_trees`."""
    return _written(_compiled.write_trees, codes, (headers, indptr, ids))


def read_trees(
    codes: TreeCodes,
    words: NDArray[np.uint64],
    num_bits: int,
    starts: AscendingNumbers,
    rows: NDArray[np.int64],
    feature: int,
    own_ids: NDArray[np.int32] | None = None,
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32]]:
    """See `reference_trees.read_trees`."""
    num_symbols = int(codes.symbol_starts[feature + 1] - codes.symbol_starts[feature])
    arguments = (*codes, words, num_bits, *_flat(starts), rows, feature, own_ids)
    return _all_sets(_compiled.read_trees, arguments, len(rows), num_symbols)


def read_lists(
    codes: ListCodes,
    words: NDArray[np.uint64],
    spans: tuple[NDArray[np.int64], NDArray[np.int64]],
    limit: int,
    oldest: int,
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
    """See `reference_lists.read_lists`."""
    arguments = codes.tables, codes.widths, codes.widths.shape[1], words, *spans, limit, oldest
    return _all_lists(_compiled.read_lists, arguments, len(spans[0]), limit)


def find_lists(
    codes: ListCodes,
    words: NDArray[np.uint64],
    num_bits: int,
    starts: AscendingNumbers,
    index: RowIndex,
    salt: tuple[int, int],
    entity_hashes: NDArray[np.uint64],
    limit: int,
    oldest: int,
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
    """See `reference_lists.find_lists`."""
    arguments = (
        *(codes.tables, codes.widths, codes.widths.shape[1], words, num_bits, *_flat(starts)),
        *(*_flat(index.fingerprints), index.range, index.twins, *salt, _plain(entity_hashes), limit, oldest),
    )
    return _all_lists(_compiled.find_lists, arguments, len(entity_hashes), limit)


def band_rows(
    hashes: NDArray[np.uint64], values: NDArray[np.uint64], num_slots: int
) -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.bool_]]:
    """See `reference_static.band_rows`."""
    coefficients, results = np.zeros(num_slots, np.uint64), np.zeros(num_slots, np.uint64)
    left = np.zeros(len(hashes), np.bool_)
    _compiled.band_rows(_plain(hashes), _plain(values), num_slots, coefficients, results, left)
    return coefficients, results, left


def solve_slots(
    coefficients: NDArray[np.uint64], results: NDArray[np.uint64], width: int
) -> NDArray[np.uint64]:
    """See `reference_static.solve_slots`."""
    words = np.zeros((len(coefficients) // 64 + 1, max(0, width)), np.uint64)
    _compiled.solve_slots(_plain(coefficients), _plain(results), width, words)
    return words


def look_up(
    words: NDArray[np.uint64], width: int, num_slots: int, hashes: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """See `reference_static.look_up`."""
    numbers = np.empty(len(hashes), np.uint64)
    _compiled.look_up(words, width, num_slots, _plain(hashes), numbers)
    return numbers


def _all_lists(
    read: Callable[..., int], arguments: tuple[Any, ...], wanted: int, limit: int
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
    """All lists from a function that stops when there is no more room."""
    room = wanted * min(limit, _EXPECTED_IDS)
    indptr, ids, ages = np.zeros(wanted + 1, np.int64), np.empty(room, np.int32), np.empty(room, np.int64)
    done = read(*arguments, 0, indptr, ids, ages)
    while done < wanted:
        count = int(indptr[done])
        room = max(2 * room, count * wanted // (done + 1) * 5 // 4, _EXPECTED_IDS)
        ids, ages = (
            np.concatenate((part[:count], np.empty(room - count, part.dtype))) for part in (ids, ages)
        )
        done = read(*arguments, done, indptr, ids, ages)
    count = int(indptr[-1])
    return indptr, ids[:count], ages[:count]


def _plain(array: NDArray[Any], dtype: type[np.generic] | None = None) -> NDArray[Any]:
    """The same numbers in the form that the C functions take: C-contiguous and aligned."""
    array = np.ascontiguousarray(array, dtype)
    return array if array.flags.aligned else array.copy()


def _empty_slots(num_values: int) -> NDArray[np.int32]:
    # Two slots or more per value keep searches short.
    return np.full(1 << (2 * num_values).bit_length(), -1, np.int32)
