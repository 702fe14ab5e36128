"""The functions of the C files, with the arrays that they take and fill.

Calls that take longer than some microseconds let other threads run.
"""

import secrets
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.kernel import _compiled
from feast_sketch_store.kernel.formulas import words_of_bits

SEED = secrets.randbits(64)  # of hash tables, so that an attacker cannot choose values that collide

_Number = TypeVar("_Number", bound=np.generic)

# Packed numbers as arguments: words, width, base, length, and the check of their blocks, or None.
Numbers = tuple[Any, int, int, int, Any]

AS_IDS, AS_NUMBERS, AS_BYTES = range(3)  # kinds of the elements of a column
ABSENT, FOUND, EXPIRED = range(3)  # whether an entity has a row
NAMES, NUMBERS, BYTES = range(1, 4)  # what `RowReader.columns` returns of a feature ...
WITH_WEIGHTS = 8  # ... and more with weights


class SymbolQuery(NamedTuple):
    """Consecutive symbols: ``num_symbols`` from ``64 * first_word`` on, added with ``num_hashes`` hashes.

    Functions raise ValueError unless there are 1 to ``MAX_NUM_HASHES`` hashes. ``firsts``, int64[num_hashes],
    ascending from 0, is the first symbol covered by each hash; None if every hash covers every symbol.

    Alternatively hashes are in groups, and all groups but the first skip symbols by the entity's cluster.
    Group ``g`` ends before hash ``ends[g]``, int64[g]. ``masks``, uint64[clusters, g - 1, words], has ones
    for the symbols that skip its hashes. ``clusters``, int32[n], has the cluster of each entity.
    """

    first_word: int
    num_symbols: int
    num_hashes: int
    firsts: NDArray[np.int64] | None = None
    ends: NDArray[np.int64] | None = None
    masks: NDArray[np.uint64] | None = None
    clusters: NDArray[np.int32] | None = None


class SetCodes(NamedTuple):
    """How the sets of each of F features are coded; `succinct.golomb_sets` has the formulas.

    ``parameters`` is int64[F, 3]: the width of headers; the number of headers for rows without a set; and the
    width of the number of others if the set is coded relative to those before it, else -1. Such a set has as
    many symbols as the one before it, and is never the first.

    Feature ``f`` has the levels ``levels[level_starts[f]:level_starts[f + 1]]``, uint8, one per symbol.
    ``left``, uint8[F, 320], is subtracted from them: for 0 to 255 ids left in a set, and then for more by
    half octaves; see `succinct.golomb_sets`. ``headers``, uint8[F, 256], are permutations: the header of each
    of the first ranks.
    """

    parameters: NDArray[np.int64]
    level_starts: NDArray[np.int64]
    levels: NDArray[np.uint8]
    left: NDArray[np.uint8]
    headers: NDArray[np.uint8]


def hash_int64_keys(prefix: bytes, values: NDArray[np.int64]) -> NDArray[np.uint64]:
    """MurmurHash3 x64 128 of keys that are ``prefix`` and the bytes of an int64: uint64[n, 2]."""
    hashes = np.empty((len(values), 2), np.uint64)
    _compiled.hash_int64_keys(prefix, plain(values, np.int64), hashes)
    return hashes


def parse_int64_keys(messages: list[bytes]) -> tuple[str, NDArray[np.int64]] | None:
    """The name and values, int64[n], of a single int64 join key, out of Feast's ``EntityKey`` messages.

    They are in wire format, as protobuf writes them. Returns None unless all have the same single join key,
    an int64.
    """
    lengths = np.fromiter(map(len, messages), np.int64, len(messages))
    values = np.empty(len(messages), np.int64)
    name = _compiled.parse_int64_keys(b"".join(messages), lengths, values)
    return None if name is None else (name.decode(), values)


def parse_packed_lists(
    messages: list[bytes], field: int, width: int
) -> tuple[NDArray[np.int64], NDArray[np.int64] | NDArray[np.int32]] | None:
    """Lists of numbers out of Feast's ``Value`` messages.

    Parameters
    ----------
    messages : in wire format, as protobuf writes them.
    field : the number of the field of ``Value`` that has the lists.
    width : bytes of an element, 4 or 8; 0 for varints.

    Returns where each list ends, int64[n + 1], and the bits of all elements, int32 for a width of 4, else
    int64. An empty message has no elements. None if a message has anything but such a list.
    """
    lengths = np.fromiter(map(len, messages), np.int64, len(messages))
    content, ends = b"".join(messages), np.empty(len(messages) + 1, np.int64)
    count = _compiled.parse_packed_lists(content, lengths, field, width, ends, bytearray())
    if count is None:
        return None
    elements = np.empty((width or 8) * count, np.uint8)
    if _compiled.parse_packed_lists(content, lengths, field, width, ends, elements) is None:
        return None
    return ends, elements.view(np.int32) if width == 4 else elements.view(np.int64)


def hash_keys(offsets: NDArray[np.int64], data: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Hash keys: MurmurHash3 x64 128 for single int64 keys, BLAKE2b-128 for all others: uint64[n, 2].

    ``offsets`` and ``data``, int64[n + 1] and uint8[...], are serialized keys as Arrow lays out large binary
    values.
    """
    hashes = np.empty((len(offsets) - 1, 2), np.uint64)
    _compiled.hash_keys(plain(offsets, np.int64), data, hashes)
    return hashes


class Int64Index:
    """Finds the ids of distinct int64 values: int64[V]."""

    def __init__(self, values: NDArray[np.int64]):
        self._values = plain(values, np.int64)
        self._slots = _empty_slots(len(values))
        _compiled.index_int64(self._values, SEED, self._slots)

    def find(self, wanted: NDArray[np.int64]) -> NDArray[np.int32]:
        """The ids of values, int32[m]; -1 for a value that is not there."""
        ids = np.empty(len(wanted), np.int32)
        wanted = plain(wanted, np.int64)
        _compiled.find_int64(self._values, SEED, self._slots, wanted, ids)
        return ids


class BytesIndex:
    """Finds the ids of distinct binary values, laid out as Arrow does: int64[V + 1] and uint8[...]."""

    def __init__(self, offsets: NDArray[np.int64], data: NDArray[np.uint8]):
        self._values = plain(offsets, np.int64), data
        self._slots = _empty_slots(len(offsets) - 1)
        _compiled.index_bytes(*self._values, SEED, self._slots)

    def find(self, offsets: NDArray[np.int64], data: NDArray[np.uint8]) -> NDArray[np.int32]:
        """The ids of values, int32[m]; -1 for a value that is not there."""
        ids = np.empty(len(offsets) - 1, np.int32)
        _compiled.find_bytes(*self._values, SEED, self._slots, plain(offsets, np.int64), data, ids)
        return ids


def distinct_per_row(
    indptr: NDArray[np.int64], ids: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The rows of a CSR matrix, int64[n + 1] and int32[nnz], sorted and without repetitions."""
    indptr, ids = indptr.astype(np.int64), ids.astype(np.int32)  # copies
    _compiled.sort_rows(indptr, ids)
    return indptr, ids[: indptr[-1]]


def row_hashes(entity_hashes: NDArray[np.uint64], salt: tuple[int, int]) -> NDArray[np.uint64]:
    """64 bits of each 128-bit hash, uint64[n, 2], unpredictable without the salt: uint64[n]."""
    hashes = np.empty(len(entity_hashes), np.uint64)
    _compiled.row_hashes(plain(entity_hashes, np.uint64), *salt, hashes)
    return hashes


def ends_of_sets(
    codes: SetCodes, headers: NDArray[np.int32], indptr: NDArray[np.int64], ids: NDArray[np.int32]
) -> NDArray[np.int64]:
    """The bit after each row of coded sets: int64[n]; parameters and errors as of `write_sets`."""
    ends = np.zeros(len(headers), np.int64)
    _compiled.write_sets(*codes, plain(headers, np.int32), indptr, ids, bytearray(), ends)
    return ends


def write_sets(
    codes: SetCodes, headers: NDArray[np.int32], indptr: NDArray[np.int64], ids: NDArray[np.int32]
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Code sets.

    Parameters
    ----------
    headers : int32[n, F], the size of each set plus the number of headers for rows without one.
    indptr, ids : int64[n * F + 1] and int32[nnz]; row ``r * F + f`` has the ascending ids of a set.

    Returns the words, uint64[w], two more than the codes fill; and the bit after each row, int64[n].

    Raises ValueError: the sets do not fit their codes.
    """
    ends = ends_of_sets(codes, headers, indptr, ids)
    words = np.zeros(words_of_bits(int(ends[-1]) if len(ends) else 0), np.uint64)
    _compiled.write_sets(*codes, plain(headers, np.int32), indptr, ids, words, ends)
    return words, ends


def plain(array: NDArray[Any], dtype: type[_Number]) -> NDArray[_Number]:
    """The same numbers in the form that the C functions take: C-contiguous and aligned."""
    array = np.ascontiguousarray(array, dtype)
    return array if array.flags.aligned else array.copy()


def _empty_slots(num_values: int) -> NDArray[np.int32]:
    # Two slots or more per value keep searches short.
    return np.full(1 << (2 * num_values).bit_length(), -1, np.int32)
