"""The kernel in NumPy: always available, and the reference for the compiled one.

Its calls cost some microseconds each, so it is fast for batches of hundreds of entities. `reference_rows` has
the rows of entities and packed integers, `reference_sets` has sets.
"""

import hashlib
import itertools
from typing import NamedTuple

import mmh3
import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.kernel.prepared import PreparedRows

_MAX_MARKS = 1 << 22  # bytes
MAX_NUM_HASHES = 64  # of a fact; kernel.h has the same number

# Of answers: k windows are ANDed, and turned into ids, while they are in the L2 cache. Small temporaries also
# come from the allocator's free lists; large ones would be mapped, faulted in and unmapped each time.
_CHUNK_BYTES = 1 << 18
_FACTS_PER_CHUNK = 1 << 17
_NARROW_WINDOW_WORDS = 4
_ONE = np.uint64(1)


class Table(NamedTuple):
    """The table of a shifting Bloom filter; `succinct.shifting_bloom` has the formulas.

    ``words`` is uint64[num_words + window_words], C-contiguous; the last ``window_words`` repeat the first
    ones.
    """

    words: NDArray[np.uint64]
    num_words: int
    salt: tuple[int, int]


class Asked(NamedTuple):
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

    def about(self, entities: slice) -> "Asked":
        """The question about only some of the entities."""
        return self if self.clusters is None else self._replace(clusters=self.clusters[entities])

    @property
    def num_words(self) -> int:
        """Words of a row of answers."""
        return -(-self.num_symbols // 64)


# -- tables ------------------------------------------------------------------------------------------


def windows(table: Table, asked: Asked, entity_hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The answers for all symbols of each entity, given by its hash, uint64[n, 2]: uint64[n, words].

    Bit ``s % 64`` of word ``s // 64`` answers symbol ``64 * first_word + s``; bits after the last are zero.
    """
    _check_num_hashes(asked.num_hashes)
    num_words = asked.num_words
    answers = np.empty((len(entity_hashes), num_words), np.uint64)
    if num_words <= _NARROW_WINDOW_WORDS:
        rows = max(1, _CHUNK_BYTES // (8 * num_words * asked.num_hashes))
        gather = _and_narrow_windows
    else:
        rows = max(1, _CHUNK_BYTES // (8 * num_words))
        gather = _and_windows
    unused = _unused_bits(asked)
    # Row i of this view is the window that starts at word i; nothing is copied.
    every_window = np.ndarray((table.num_words, num_words), np.uint64, buffer=table.words, strides=(8, 8))
    for first in range(0, len(entity_hashes), rows):
        chunk = slice(first, first + rows)
        starts, rotations = _places(table, asked, entity_hashes[chunk])
        for group, (begin, end) in enumerate(_groups(asked)):
            own = answers[chunk] if group == 0 else np.empty_like(answers[chunk])
            gather(every_window, starts[begin:end], rotations[begin:end], unused, own)
            if group:
                answers[chunk] &= own | _masks_of(asked.about(chunk), group)
    answers[:, -1] &= np.uint64(2**64 - 1) >> np.uint64(num_words * 64 - asked.num_symbols)
    return answers


def possible_symbols(
    table: Table,
    asked: Asked,
    entity_hashes: NDArray[np.uint64],
    wanted: NDArray[np.bool_] | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The ids of the ones in `windows`, counted from ``64 * first_word``.

    Parameters
    ----------
    wanted : bool[n], entities to answer; the others get no symbols. None for all.

    Returns
    -------
    A CSR matrix: indptr, int64[n + 1], and the ids, int32[nnz], ascending within an entity.
    """
    _check_num_hashes(asked.num_hashes)
    rows = max(1, _CHUNK_BYTES // (8 * asked.num_words))
    starts, ids = [np.zeros(1, np.int64)], [np.zeros(0, np.int32)]
    for first in range(0, len(entity_hashes), rows):
        chunk = slice(first, first + rows)
        words = windows(table, asked.about(chunk), entity_hashes[chunk])
        if wanted is not None:
            words *= wanted[chunk, None]
        indptr, positions = set_bits(words)
        starts.append(starts[-1][-1] + indptr[1:])
        ids.append(positions)
    return np.concatenate(starts), np.concatenate(ids)


def contains(
    table: Table,
    asked: Asked,
    entity_hashes: NDArray[np.uint64],
    symbols: NDArray[np.int32],
    wanted: NDArray[np.bool_] | None = None,
) -> NDArray[np.bool_]:
    """Whether entities possibly have symbols: bool[n, m].

    Parameters
    ----------
    symbols : int32[m], for every entity, or int32[n, m]; no entity has a symbol outside of ``asked``.
    wanted : bool[n], entities that may have symbols; None for all.
    """
    _check_num_hashes(asked.num_hashes)
    symbols = np.broadcast_to(symbols, (len(entity_hashes), symbols.shape[-1]))
    is_known = (symbols >= 0) & (symbols < asked.num_symbols)
    possible = np.where(is_known, symbols, 0).astype(np.int64)
    starts, rotations = _places(table, asked, entity_hashes)
    found = is_known if wanted is None else is_known & wanted[:, None]
    for group, (begin, end) in enumerate(_groups(asked)):
        without = np.zeros(possible.shape, np.bool_)
        if group:
            masks = np.take_along_axis(_masks_of(asked, group), possible >> 6, axis=1)
            without = (masks >> (possible & 63).astype(np.uint64)) & _ONE != 0
        for j in range(begin, end):
            words = table.words[starts[j][:, None] + (possible >> 6)]
            bits = (possible.astype(np.uint64) + rotations[j][:, None]) & np.uint64(63)
            is_set = ((words >> bits) & _ONE) != 0
            found = found & (
                is_set | without if asked.firsts is None else is_set | (possible < asked.firsts[j])
            )
    return found


def contains_rows(
    indptr: NDArray[np.int64], ids: NDArray[np.integer], num_symbols: int, symbols: NDArray[np.int32]
) -> NDArray[np.bool_]:
    """Whether rows have symbols.

    Parameters
    ----------
    indptr, ids : int64[p + 1] and int[nnz], the ids of each row, below ``num_symbols``, in any order.
    symbols : int32[m], for all rows, or int32[p, m]; -1 matches no symbol.

    Returns
    -------
    bool[p, m]
    """
    num_rows = len(indptr) - 1
    found = np.empty((num_rows, symbols.shape[-1]), np.bool_)
    rows_per_chunk = max(1, _MAX_MARKS // (num_symbols + 1))
    for first in range(0, num_rows, rows_per_chunk):
        ends = indptr[first : first + rows_per_chunk + 1]
        # The column after the last symbol stays empty; -1 points to it.
        has_symbol = np.zeros((len(ends) - 1, num_symbols + 1), np.bool_)
        rows = np.repeat(np.arange(len(has_symbol)), np.diff(ends))
        has_symbol[rows, ids[ends[0] : ends[-1]]] = True
        chunk = slice(first, first + len(has_symbol))
        if symbols.ndim == 1:
            found[chunk] = has_symbol[:, symbols]
        else:
            found[chunk] = np.take_along_axis(has_symbol, symbols[chunk].astype(np.int64), axis=1)
    return found


def scores(
    table: Table,
    asked: Asked,
    entity_hashes: NDArray[np.uint64],
    weights: NDArray[np.float64],
    wanted: NDArray[np.bool_] | None = None,
) -> NDArray[np.float64]:
    """The sum of the weights, float64[num_symbols], of each entity's possible symbols: float64[n]."""
    indptr, ids = possible_symbols(table, asked, entity_hashes, wanted)
    return row_sums(indptr, weights[ids])


def row_sums(indptr: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The sum of each row of a CSR matrix: float64[n]."""
    sums = np.zeros(len(indptr) - 1)
    has_any = indptr[1:] > indptr[:-1]
    if has_any.any():
        sums[has_any] = np.add.reduceat(values, indptr[:-1][has_any])
    return sums


def touched_blocks(
    table: Table,
    asked: Asked,
    entity_hashes: NDArray[np.uint64],
    block_words: int,
    unchecked: NDArray[np.uint8],
) -> NDArray[np.int64]:
    """The blocks that a read would use and that are marked in ``unchecked``, uint8[blocks]: int64[t]."""
    _check_num_hashes(asked.num_hashes)
    starts, _ = _places(table, asked, entity_hashes)
    first, last = starts // block_words, (starts + (asked.num_words - 1)) // block_words
    touched = np.zeros(len(unchecked), np.bool_)
    for step in range(int((last - first).max(initial=0)) + 1):
        touched[np.minimum(first + step, last)] = True
    return np.flatnonzero(touched & (unchecked != 0))


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
    """Set the bits of facts, for those windows that begin in one part of a table.

    Parameters
    ----------
    part : uint64[part words + window_words]; the last words take the ends of windows.
    first : number of the part's first word.
    table : number of words of the whole table, of a window, and the salt.
    entity_hashes : uint64[m, 2]
    rows : the index of each row's hash, int32[n]; indptr, int64[n + 1]; and symbols, uint16[nnz] or
        int32[nnz], each less by ``first_symbol`` than in the table.
    first_symbol : see ``rows``.
    num_hashes : k of these facts, 1 to ``MAX_NUM_HASHES``.
    firsts : as in `Asked`, less by ``first_symbol``.
    """
    _check_num_hashes(num_hashes)
    num_words, window_words, salt = table
    places, indptr, symbols = rows
    row_of_fact = np.repeat(np.arange(len(places)), np.diff(indptr))
    for j in range(num_hashes):
        offsets, rotations = _positions(entity_hashes[places], salt, num_words, range(j, j + 1))
        starts, shifts = offsets[0] - first, rotations[0].astype(np.int64)
        is_here = (starts >= 0) & (starts < len(part) - window_words)
        for begin in range(0, len(symbols), _FACTS_PER_CHUNK):
            chunk = slice(begin, begin + _FACTS_PER_CHUNK)
            row, symbol = row_of_fact[chunk], symbols[chunk].astype(np.int64) + first_symbol
            here = is_here[row]
            if firsts is not None:
                here = here & (symbols[chunk] >= firsts[j])
            row, symbol = row[here], symbol[here]
            bits = _ONE << ((symbol + shifts[row]) & 63).astype(np.uint64)
            np.bitwise_or.at(part, starts[row] + (symbol >> 6), bits)


def _check_num_hashes(num_hashes: int) -> None:
    if not 1 <= num_hashes <= MAX_NUM_HASHES:
        raise ValueError(f"{num_hashes} hashes; a fact has 1 to {MAX_NUM_HASHES}")


def set_bits(words: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The positions of the ones in each row of bits.

    Each round takes the lowest one off every word that has any left. So the work is proportional to the
    number of ones: at the usual density (one candidate in a hundred) most words have none or one.

    Parameters
    ----------
    words : uint64[n, w], C-contiguous, bit ``i`` of a row is bit ``i % 64`` of word ``i // 64``.

    Returns
    -------
    indptr : int64[n + 1], row ``r`` owns ``positions[indptr[r]:indptr[r + 1]]``.
    positions : int32[nnz], ascending within a row, in ``[0, 64 * w)``.
    """
    num_rows, num_words = words.shape
    counts = np.bitwise_count(words)
    indptr = np.zeros(num_rows + 1, np.int64)
    np.cumsum(counts.sum(axis=1, dtype=np.int64), out=indptr[1:])
    positions = np.empty(indptr[-1], np.int32)

    occupied = np.flatnonzero(words.reshape(-1) != 0)
    remaining = words.reshape(-1).take(occupied)
    ones = counts.reshape(-1).take(occupied)
    places = ones.cumsum(dtype=np.int64)
    places -= ones
    first_bits = (occupied % num_words) << 6
    while len(remaining):
        below = remaining & (remaining - _ONE)  # all but the lowest one
        lowest = np.bitwise_count((remaining ^ below) - _ONE)
        positions[places] = first_bits + lowest
        left = np.flatnonzero(below)
        remaining, places, first_bits = below.take(left), places.take(left) + 1, first_bits.take(left)
    return indptr, positions


def to_bits(indptr: NDArray[np.int64], ids: NDArray[np.integer], num_symbols: int) -> NDArray[np.uint64]:
    """The reverse of `set_bits`: the ids of each row as ones, uint64[n, ceil(num_symbols / 64)]."""
    words = np.zeros((len(indptr) - 1, -(-num_symbols // 64)), np.uint64)
    rows = np.repeat(np.arange(len(words)), np.diff(indptr))
    np.bitwise_or.at(words, (rows, ids >> 6), _ONE << (ids & 63).astype(np.uint64))
    return words


def _places(
    table: Table, asked: Asked, entity_hashes: NDArray[np.uint64]
) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """The words in which windows begin and their rotations, int64[k, n] and uint64[k, n]."""
    offsets, rotations = _positions(entity_hashes, table.salt, table.num_words, range(asked.num_hashes))
    offsets += asked.first_word
    return np.where(offsets >= table.num_words, offsets - table.num_words, offsets), rotations


def _positions(
    entity_hashes: NDArray[np.uint64], salt: tuple[int, int], num_words: int, hashes: range
) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """``offset_j`` in words, int64[k, n] in [0, num_words), and ``rotation_j``, uint64[k, n] in [0, 64)."""
    start = mix64(entity_hashes[:, 0] ^ np.uint64(salt[0]))
    # An odd step makes start + j * step distinct for all j.
    step = mix64(entity_hashes[:, 1] ^ np.uint64(salt[1])) | _ONE
    mixed = mix64(start + step * np.array(hashes, np.uint64)[:, None])
    # Multiply-shift maps 32 random bits to [0, num_words) without a division
    # (Lemire, "Fast Random Integer Generation in an Interval", 2019).
    offsets = ((mixed >> np.uint64(32)) * np.uint64(num_words)) >> np.uint64(32)
    return offsets.astype(np.int64), mixed & np.uint64(63)


def _unused_bits(asked: Asked) -> NDArray[np.uint64] | None:
    """Ones for the symbols before the first of each hash: uint64[k, words]."""
    if asked.firsts is None:
        return None
    ids = np.concatenate([np.arange(first) for first in asked.firsts])
    return to_bits(np.concatenate(([0], np.cumsum(asked.firsts))), ids, asked.num_symbols)


def _groups(asked: Asked) -> list[tuple[int, int]]:
    """The first hash of each group, and the one after its last.

    Raises
    ------
    ValueError : masks, clusters and the ends of groups do not fit each other.
    """
    ends, masks, clusters = asked.ends, asked.masks, asked.clusters
    if masks is None:
        return [(0, asked.num_hashes)]
    if (
        ends is None
        or clusters is None
        or asked.firsts is not None
        or not 1 < len(ends) <= MAX_NUM_HASHES + 1
        or masks.shape[1:] != (len(ends) - 1, asked.num_words)
        or ends[0] < 0
        or ends[-1] != asked.num_hashes
        or (np.diff(ends) < 0).any()
        or ((clusters < 0) | (clusters >= len(masks))).any()
    ):
        raise ValueError("the masks do not fit the symbols")
    return list(itertools.pairwise([0, *ends.tolist()]))


def _masks_of(asked: Asked, group: int) -> NDArray[np.uint64]:
    """The symbols of each entity that skip the hashes of a group, not the first: uint64[n, words]."""
    assert asked.masks is not None
    return asked.masks[asked.clusters, group - 1]


def _and_windows(
    every_window: NDArray[np.uint64],
    starts: NDArray[np.int64],
    rotations: NDArray[np.uint64],
    unused: NDArray[np.uint64] | None,
    answers: NDArray[np.uint64],
) -> None:
    """AND k wide windows into ``answers``, one hash at a time."""
    if not len(starts):
        answers.fill(~np.uint64(0))
    for j, (start, rotation) in enumerate(zip(starts, rotations, strict=True)):
        rotated = _rotate_right(every_window[start], rotation[:, None])
        if unused is not None:
            rotated |= unused[j]
        if j == 0:
            answers[:] = rotated
        else:
            answers &= rotated


def _and_narrow_windows(
    every_window: NDArray[np.uint64],
    starts: NDArray[np.int64],
    rotations: NDArray[np.uint64],
    unused: NDArray[np.uint64] | None,
    answers: NDArray[np.uint64],
) -> None:
    """AND k windows of a few words: all hashes at once, because each call of NumPy costs more."""
    rotated = _rotate_right(every_window[starts], rotations[:, :, None])
    if unused is not None:
        rotated |= unused[:, None, :]
    np.bitwise_and.reduce(rotated, axis=0, out=answers)


def _rotate_right(words: NDArray[np.uint64], distance: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Rotate in place: ``words >> d | words << (64 - d)``; a distance of 0 must not shift by 64."""
    low = words << ((np.uint64(64) - distance) & np.uint64(63))
    words >>= distance
    words |= low
    return words


def mix64(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of SplitMix64, a bijection in which every input bit reaches every output bit.

    Source: Steele, Lea & Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014,
    figure 18.
    """
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


# -- keys --------------------------------------------------------------------------------------------

_INT64_HEAD = bytes([4, 0, 0, 0, 8, 0, 0, 0])  # the bytes before an int64: its type and length
_ONE_NAME = bytes([1, 0, 0, 0, 2, 0, 0, 0])  # the bytes before the length of the name of a single join key


def hash_int64_keys(prefix: bytes, values: NDArray[np.int64]) -> NDArray[np.uint64]:
    """MurmurHash3 x64 128 of keys that are ``prefix`` and the bytes of an int64: uint64[n, 2]."""
    content = values.astype("<i8", copy=False).tobytes()
    digests = [
        mmh3.mmh3_x64_128_digest(prefix + content[place : place + 8]) for place in range(0, len(content), 8)
    ]
    return _digests(digests)


def parse_int64_keys(messages: list[bytes]) -> tuple[str, NDArray[np.int64]] | None:
    """The name and values, int64[n], of a single int64 join key, out of Feast's ``EntityKey`` messages.

    Parameters
    ----------
    messages : in wire format, as protobuf writes them.

    Returns
    -------
    None unless all have the same single join key, an int64.
    """
    if not messages:
        return None
    # Field 1, a name;  field 2, a Value;  its field 4, an int64.
    length, first = _read_varint(messages[0], 1)
    stop = first + length
    head, values = messages[0][:stop], np.empty(len(messages), np.int64)
    if head[:1] != b"\x0a" or len(head) != stop:
        return None
    for row, message in enumerate(messages):
        size = len(message) - stop - 2
        if (
            not 2 <= size < 0x80
            or message[:stop] != head
            or message[stop : stop + 3] != bytes((0x12, size, 0x20))
        ):
            return None
        value, end = _read_varint(message, stop + 3)
        if end != len(message) or value >= 2**64:
            return None
        values[row] = value - (value >> 63 << 64)
    return head[first:].decode(), values


def _read_varint(message: bytes, place: int) -> tuple[int, int]:
    """The number at a place, and the place after it; 0 and a place after the end if there is no number."""
    number = 0
    for shift, byte in enumerate(message[place : place + 10]):
        number |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return number, place + shift + 1
    return 0, len(message) + 1


def parse_packed_lists(
    messages: list[bytes], field: int, width: int
) -> tuple[NDArray[np.int64], NDArray[np.int64] | NDArray[np.int32]] | None:
    """Lists of numbers out of Feast's ``Value`` messages.

    Parameters
    ----------
    messages : in wire format, as protobuf writes them.
    field : the number of the field of ``Value`` that has the lists.
    width : bytes of an element, 4 or 8; 0 for varints.

    Returns
    -------
    Where each list ends, int64[n + 1], and the bits of all elements, int32 for a width of 4, else int64. An
    empty message has no elements. None if a message has anything but such a list.
    """
    parts = []
    for message in messages:
        if (part := _packed_list(message, field)) is None:
            return None
        parts.append(part)
    data = np.frombuffer(b"".join(parts), np.uint8)
    sizes = np.fromiter(map(len, parts), np.int64, len(parts))
    ends = np.concatenate(([0], np.cumsum(sizes)))
    if width:
        if (sizes % width).any():
            return None
        return ends // width, data.view(np.int32) if width == 4 else data.view(np.int64)
    if any(part and part[-1] >= 0x80 for part in parts):
        return None
    stops = np.flatnonzero(data < 0x80)
    starts = np.concatenate(([0], stops[:-1] + 1)) if len(stops) else stops
    places = np.arange(len(data)) - np.repeat(starts, stops - starts + 1)
    if (places > 9).any() or (data[places == 9] > 1).any():
        return None
    bits = (data & 0x7F).astype(np.uint64) << (7 * places).astype(np.uint64)
    numbers = np.bitwise_or.reduceat(bits, starts) if len(starts) else bits
    return np.searchsorted(stops, ends), numbers.view(np.int64)


def _packed_list(message: bytes, field: int) -> bytes | None:
    """The content of field 1 of the message in a field; None if there is anything else."""
    if not message:
        return b""
    for tag in (field << 3 | 2, 1 << 3 | 2):
        number, place = _read_varint(message, 0)
        length, start = _read_varint(message, place)
        if number != tag or start > len(message) or start + length != len(message):
            return None
        message = message[start:]
        if not message:
            break
    return message


def hash_keys(offsets: NDArray[np.int64], data: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Hash keys: MurmurHash3 x64 128 for single int64 keys, BLAKE2b-128 for all others: uint64[n, 2].

    Parameters
    ----------
    offsets, data : int64[n + 1] and uint8[...], serialized keys as Arrow lays out large binary values.
    """
    content = data.tobytes()
    keys = [content[start:stop] for start, stop in itertools.pairwise(offsets.tolist())]
    return _digests([_hash(key) for key in keys])


def _digests(digests: list[bytes]) -> NDArray[np.uint64]:
    return np.frombuffer(b"".join(digests), "<u8").reshape(-1, 2)


def _hash(key: bytes) -> bytes:
    if is_int64_key(key):
        return mmh3.mmh3_x64_128_digest(key)
    return hashlib.blake2b(key, digest_size=16).digest()


def is_int64_key(key: bytes) -> bool:
    """Whether a key is a single int64 join key. No other key looks like one: its name fills the rest."""
    return (
        key[-16:-8] == _INT64_HEAD
        and key[:8] == _ONE_NAME
        and int.from_bytes(key[8:12], "little") == len(key) - 12 - 16
    )


# -- values ------------------------------------------------------------------------------------------


def hash_int64_key(prefix: bytes, value: int) -> bytes:
    """The hash of one key, a prefix and the 8 bytes of an int64: the 16 bytes of `hash_int64_keys`."""
    return hash_int64_keys(prefix, np.array([value], np.int64)).tobytes()


def hash_key(key: bytes) -> bytes:
    """The hash of one serialized key: the 16 bytes of `hash_keys`."""
    return hash_keys(np.array([0, len(key)]), np.frombuffer(key, np.uint8)).tobytes()


def check_blocks(
    words: NDArray[np.uint64],
    checksums: NDArray[np.uint8],
    block_words: int,
    unchecked: NDArray[np.uint8],
    first: int,
    number: int,
) -> None:
    """Clear the marks of those blocks that match their checksums.

    Parameters
    ----------
    words : uint64[n].
    checksums : uint8[blocks, 16], MurmurHash3 x64 128 of each block.
    block_words : words of a block.
    unchecked : uint8[blocks]; becomes 0 for blocks that match.
    first, number : the first block, and how many to check.
    """
    for block in range(first, first + number):
        content = words[block * block_words : (block + 1) * block_words].view(np.uint8).data
        if mmh3.mmh3_x64_128_digest(content) == checksums[block].tobytes():
            unchecked[block] = 0


def hash_message(message: bytes) -> bytes | None:
    """The hash of one ``EntityKey`` in wire format; None unless it has one join key, an int64."""
    usual = parse_int64_keys([message])
    if usual is None:
        return None
    name, (value,) = usual[0].encode(), usual[1].tolist()
    head, kind = np.array([1, 2, len(name)], "<u4"), np.array([4, 8], "<u4")
    return hash_int64_key(head.tobytes() + name + kind.tobytes(), value)


def prepared_rows() -> PreparedRows | None:
    """An object for reads of one entity, see `PreparedRows`; None, because NumPy has none."""
    return None


def vectors_to_json(message: bytes) -> bytes | None:
    """Vectors of a response as JSON, as Feast's feature server writes them.

    Parameters
    ----------
    message : ``results`` of a ``GetOnlineFeaturesResponse`` in wire format.

    Returns
    -------
    JSON objects with commas between them; None if only Feast's own code can write them, here always.
    """
    return None


class Int64Index:
    """Finds the ids of distinct int64 values: int64[V]."""

    def __init__(self, values: NDArray[np.int64]):
        self._order = np.argsort(values).astype(np.int32)
        self._sorted = values[self._order]

    def find(self, wanted: NDArray[np.int64]) -> NDArray[np.int32]:
        """The ids of values, int32[m]; -1 for a value that is not there."""
        if not len(self._sorted):
            return np.full(len(wanted), -1, np.int32)
        places = np.minimum(np.searchsorted(self._sorted, wanted), len(self._sorted) - 1)
        return np.where(self._sorted[places] == wanted, self._order[places], np.int32(-1))


class BytesIndex:
    """Finds the ids of distinct binary values, laid out as Arrow does: int64[V + 1] and uint8[...]."""

    def __init__(self, offsets: NDArray[np.int64], data: NDArray[np.uint8]):
        self._ids = {value: number for number, value in enumerate(_slices(offsets, data))}

    def find(self, offsets: NDArray[np.int64], data: NDArray[np.uint8]) -> NDArray[np.int32]:
        """The ids of values, int32[m]; -1 for a value that is not there."""
        return np.array([self._ids.get(value, -1) for value in _slices(offsets, data)], np.int32)


def _slices(offsets: NDArray[np.int64], data: NDArray[np.uint8]) -> list[bytes]:
    content = data.tobytes()
    return [content[start:stop] for start, stop in itertools.pairwise(offsets.tolist())]


def distinct_per_row(
    indptr: NDArray[np.int64], ids: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The rows of a CSR matrix, int64[n + 1] and int32[nnz], sorted and without repetitions."""
    num_ids = int(ids.max(initial=0)) + 1
    num_rows = len(indptr) - 1
    facts = np.repeat(np.arange(num_rows) * num_ids, np.diff(indptr)) + ids
    facts.sort()
    facts = facts[np.flatnonzero(np.diff(facts, prepend=-1))]
    rows, distinct = np.divmod(facts, num_ids)
    ends = np.zeros(num_rows + 1, np.int64)
    np.cumsum(np.bincount(rows, minlength=num_rows), out=ends[1:])
    return ends, distinct.astype(np.int32)


def encode_values(
    field: tuple[bytes, bool, bool],
    is_present: NDArray[np.bool_],
    indptr: NDArray[np.int64],
    ids: NDArray[np.int32],
    offsets: NDArray[np.int64],
    data: NDArray[np.uint8],
) -> tuple[bytes, NDArray[np.int64]]:
    """Rows as Feast values in wire format: the elements of one ``RepeatedValue``, one per row.

    Parameters
    ----------
    field : the tag of the field of ``Value``, whether it is a list or set, and whether it has packed numbers.
    is_present : bool[n]; a row that is not present is an empty ``Value``.
    indptr, ids : int64[n + 1] and int32[nnz], the elements of each row.
    offsets, data : int64[V + 1] and uint8[...]: encoded element `i` is ``data[offsets[i]:offsets[i + 1]]``.

    Returns
    -------
    The bytes, and where each row begins and ends: int64[n + 1].
    """
    fragments = _slices(offsets, data)
    message = []
    for present, (start, stop) in zip(is_present.tolist(), itertools.pairwise(indptr.tolist()), strict=True):
        content = b"".join([fragments[i] for i in ids[start:stop].tolist()]) if present else b""
        message.append((_head(*field, len(content)) if present else b"\x0a\x00") + content)
    ends = np.zeros(len(message) + 1, np.int64)
    np.cumsum([len(row) for row in message], out=ends[1:])
    return b"".join(message), ends


def _head(tag: bytes, is_collection: bool, is_packed: bool, size: int) -> bytes:
    """The bytes before ``size`` bytes of elements: the head of a ``Value`` in a ``RepeatedValue``."""
    head = b""
    if is_packed and size:
        head = b"\x0a" + varint(size)
    if is_collection:
        head = tag + varint(len(head) + size) + head
    elif size:
        head = tag
    return b"\x0a" + varint(len(head) + size) + head


def varint(number: int) -> bytes:
    """An unsigned number in protobuf's variable-length encoding."""
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
