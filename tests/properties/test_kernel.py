"""The kernel against plain oracles: the same results for whatever they are given."""

import hashlib
import itertools
import struct
from dataclasses import replace
from functools import partial

import mmh3
import numpy as np
import pytest
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import Value
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from feast_sketch_store import kernel
from feast_sketch_store.kernel import NUM_LEFT, SetCodes, SymbolQuery
from feast_sketch_store.succinct import EliasFano, FingerprintIndex, ShiftingBloomFilter
from tests.helpers.length import by_length
from tests.helpers.reads import find_rows, read_sets, take_ascending
from tests.oracle import bits, filters
from tests.oracle import messages as plain_messages
from tests.oracle import sets as plain_sets
from tests.oracle.bits import DamagedError, as_csr

pytestmark = pytest.mark.has_long_form

REPEATABLE = settings(derandomize=True, deadline=None, database=None, max_examples=by_length(14, 30))
HALVES = st.integers(0, 2**64 - 1)
BINARY = st.lists(st.binary(max_size=300), max_size=30)


@st.composite
def firsts(draw, num_hashes, num_symbols):
    """The first symbol of each hash, or None if all are for all."""
    if draw(st.booleans()):
        return None
    others = draw(st.lists(st.integers(0, num_symbols - 1), min_size=num_hashes - 1, max_size=num_hashes - 1))
    return np.array([0, *sorted(others)])


@st.composite
def masks(draw, query, num_entities, rng):
    """Hashes in groups, and the symbols that do without them in each cluster."""
    ends = [
        *sorted(draw(st.lists(st.integers(0, query.num_hashes), min_size=1, max_size=5))),
        query.num_hashes,
    ]
    num_clusters = draw(st.integers(1, 5))
    shape = (num_clusters, len(ends) - 1, -(-query.num_symbols // 64))
    return {
        "ends": np.array(ends),
        "masks": rng.integers(0, 2**64, shape, np.uint64) & rng.integers(0, 2**64, shape, np.uint64),
        "clusters": rng.integers(0, num_clusters, num_entities).astype(np.int32),
    }


@st.composite
def reads(draw):
    """A table of random bits, what is query of it, and hashes of entities."""
    window_words = draw(st.integers(1, 40))
    num_words = draw(st.integers(window_words, 300))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    words = rng.integers(0, 2**64, num_words + window_words, np.uint64)
    for _ in range(draw(st.integers(0, 2))):  # more ones, so that some are left after the AND
        words |= rng.integers(0, 2**64, len(words), np.uint64)
    words[num_words:] = words[:window_words]
    first_word = draw(st.integers(0, window_words - 1))
    num_symbols = draw(st.integers(1, 64 * (window_words - first_word)))
    num_hashes = draw(st.integers(1, 64))
    hashes = draw(arrays.arrays(np.uint64, (draw(st.integers(0, 9)), 2), elements=HALVES))
    query = SymbolQuery(first_word, num_symbols, num_hashes)
    if draw(st.booleans()):
        query = query._replace(firsts=draw(firsts(num_hashes, num_symbols)))
    else:
        query = query._replace(**draw(masks(query, len(hashes), rng)))
    return ShiftingBloomFilter(words, num_words, (draw(HALVES), draw(HALVES))), query, hashes


def assert_equal(ours, theirs):
    if not isinstance(ours, tuple):
        ours, theirs = (ours,), (theirs,)
    for one, other in zip(ours, theirs, strict=True):
        if isinstance(one, bytes):
            assert one == other
        else:
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)


@REPEATABLE
@given(reads(), st.data())
def test_reads_of_a_table(read, data):
    table, query, hashes = read
    possible = filters.possible(*read)
    wanted = data.draw(st.none() | arrays.arrays(np.bool_, len(hashes)))
    possible &= True if wanted is None else wanted[:, None]
    assert_equal(table.possible_symbols(hashes, query, wanted), rows_of(possible))

    shape = (*data.draw(st.sampled_from([(), (len(hashes),)])), data.draw(st.integers(0, 30)))
    symbols = data.draw(arrays.arrays(np.int32, shape, elements=st.integers(-3, query.num_symbols + 3)))
    own = np.broadcast_to(symbols, (len(hashes), shape[-1]))
    is_known = (own >= 0) & (own < query.num_symbols)
    found = is_known & np.take_along_axis(possible, np.where(is_known, own, 0).astype(np.int64), axis=1)
    assert_equal(table.contains(hashes, query, symbols, wanted), found)

    block_words = data.draw(st.integers(1, 50))
    num_blocks = -(-len(table.words) // block_words)
    unchecked = data.draw(arrays.arrays(np.uint8, num_blocks, elements=st.integers(0, 1)))
    touched = np.zeros(num_blocks, np.uint8)
    kernel.touch_blocks(*table.question(hashes, query), block_words, unchecked, touched)
    assert touched.nonzero()[0].tolist() == filters.touched_blocks(*read, block_words, unchecked)


def rows_of(marks):
    """The places of ones in each row of bool[n, m], as a CSR matrix."""
    return as_csr([np.flatnonzero(row) for row in marks], np.int32)


@pytest.mark.parametrize("num_words", [0, 1, 7, 8, 30])
def test_checked_blocks(num_words):
    words = np.random.default_rng(num_words).integers(0, 2**64, num_words, np.uint64)
    checksums = np.zeros((-(-num_words // 8), 16), np.uint8)
    for block in range(len(checksums)):
        digest = mmh3.mmh3_x64_128_digest(words[8 * block : 8 * block + 8].tobytes())
        checksums[block] = np.frombuffer(digest, np.uint8)
    checksums[1:2, 5] ^= 4
    for first, number in ((0, len(checksums)), (min(1, len(checksums)), max(0, len(checksums) - 1))):
        marks = np.ones(len(checksums), np.uint8)
        kernel.check_blocks(words, checksums, 8, marks, first, number)
        assert marks.tolist() == [block < first or block == 1 for block in range(len(checksums))]
    with pytest.raises(ValueError, match="do not fit"):
        kernel.check_blocks(words, checksums, 8, np.ones(9, np.uint8), 0, 1)


def test_ids_for_which_there_is_no_room_at_first():
    table = ShiftingBloomFilter(np.full(400, 2**64 - 1, np.uint64), 300, (1, 2))
    query, hashes = SymbolQuery(0, 6400, 3), np.arange(80, dtype=np.uint64).reshape(-1, 2)
    indptr, ids = table.possible_symbols(hashes, query)
    assert indptr.tolist() == [6400 * n for n in range(41)]
    assert ids.tolist() == list(range(6400)) * 40


@REPEATABLE
@given(st.data(), st.integers(1, 64), st.sampled_from([np.uint16, np.int32]))
def test_facts_in_a_table(data, num_hashes, symbol_type):
    window_words = data.draw(st.integers(1, 9))
    num_words = data.draw(st.integers(window_words, 50))
    first = data.draw(st.integers(0, num_words - 1))
    stop = data.draw(st.integers(first + 1, num_words))
    hashes = data.draw(arrays.arrays(np.uint64, (5, 2), elements=HALVES))
    first_symbol = data.draw(st.integers(0, 64 * window_words - 1))
    rows = data.draw(st.lists(st.lists(st.integers(0, 64 * window_words - 1 - first_symbol), max_size=9)))
    indptr = np.cumsum([0, *map(len, rows)])
    symbols = np.array([symbol for row in rows for symbol in row], symbol_type)
    indices = data.draw(arrays.arrays(np.int32, len(rows), elements=st.integers(0, 4)))
    parts = [np.zeros(stop - first + window_words, np.uint64) for _ in range(2)]
    first_symbols = data.draw(firsts(num_hashes, 64 * window_words))
    narrow, wide = (symbols, None) if symbol_type is np.uint16 else (None, symbols)
    rows = hashes, indices, indptr, narrow, wide
    kernel.add_facts(
        parts[0], first, stop - first, num_words, 7, 8, *rows, first_symbol, num_hashes, first_symbols
    )
    table, rows = (num_words, window_words, (7, 8)), (indices, indptr, symbols)
    filters.add_facts(parts[1], first, table, hashes, rows, first_symbol, num_hashes, first_symbols)
    assert_equal(*parts)


@REPEATABLE
@given(st.binary(max_size=60), st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_hashes_of_int64_keys(prefix, values):
    values = np.array(values, np.int64)
    digests = [mmh3.mmh3_x64_128_digest(prefix + value.tobytes()) for value in values]
    assert kernel.hash_int64_keys(prefix, values).tobytes() == b"".join(digests)


NAMES = st.sampled_from(["user_id", "", "x" * 200]) | st.text(max_size=5)
VALUES = st.integers(-(2**63), 2**63 - 1).map(lambda number: Value(int64_val=number)) | st.sampled_from(
    [Value(), Value(int32_val=1), Value(string_val="\x20\x01"), Value(int64_list_val={"val": [1]})]
)


@REPEATABLE
@given(st.lists(st.tuples(NAMES, VALUES), max_size=5), st.data())
def test_int64_keys_in_wire_format(keys, data):
    messages = [
        EntityKey(join_keys=[name], entity_values=[value]).SerializeToString() for name, value in keys
    ]
    if messages and data.draw(st.booleans()):
        # Another byte, or a part of a message.
        row = data.draw(st.integers(0, len(messages) - 1))
        index = data.draw(st.integers(0, len(messages[row])))
        messages[row] = messages[row][:index] + data.draw(st.binary(max_size=2)) + messages[row][index + 1 :]
    wanted = [plain_messages.int64_key(message) for message in messages]
    names = {None if one is None else one[0] for one in wanted}
    if len(names) != 1 or None in names:
        assert parsed(messages) is None
    elif (found := parsed(messages)) is None:
        assert not is_text(names.pop())
    else:
        assert {found[0].encode()} == names
        assert found[1].tolist() == [value for _, value in wanted]


def is_text(name):
    try:
        return name.decode() is not None
    except UnicodeDecodeError:
        return False


def parsed(messages):
    try:
        return kernel.parse_int64_keys(messages)
    except UnicodeDecodeError:
        return None


LISTS = {
    "int64_list_val": (14, 0, st.integers(-(2**63), 2**63 - 1)),
    "int32_set_val": (24, 0, st.integers(-(2**31), 2**31 - 1)),
    "bool_list_val": (17, 0, st.booleans()),
    "float_list_val": (16, 4, st.floats(width=32)),
    "double_list_val": (15, 8, st.floats()),
}


@REPEATABLE
@given(st.sampled_from(sorted(LISTS)), st.data())
def test_lists_in_wire_format(name, data):
    field, width, elements = LISTS[name]
    lists = data.draw(st.lists(st.none() | st.lists(elements, max_size=5), max_size=5))
    messages = [
        Value(**({} if part is None else {name: {"val": part}})).SerializeToString() for part in lists
    ]
    ends, numbers = kernel.parse_packed_lists(messages, field, width)
    assert ends.tolist() == np.cumsum([0, *(len(part or []) for part in lists)]).tolist()
    wanted = [number for part in lists for number in part or []]
    found = numbers.view(f"<f{width}") if width else numbers
    np.testing.assert_array_equal(found, np.array(wanted, found.dtype))


@REPEATABLE
@given(st.lists(st.lists(st.integers(-5, 2**40), max_size=3), min_size=1, max_size=4), st.data())
@example([[1]], None)
def test_damaged_lists_in_wire_format(lists, data):
    messages = [Value(int64_list_val={"val": part}).SerializeToString() for part in lists]
    if data is None:
        messages = [b"\x72\x0d\x0a\x0b" + b"\x80" * 10 + b"\x01"]
    else:
        row = data.draw(st.integers(0, len(messages) - 1))
        index = data.draw(st.integers(0, len(messages[row])))
        change = data.draw(st.binary(max_size=2))
        messages[row] = messages[row][:index] + change + messages[row][index + 1 :]
    for width in (0, 4, 8):
        wanted = [plain_messages.packed_list(message, 14, width) for message in messages]
        found = kernel.parse_packed_lists(messages, 14, width)
        if None in wanted:
            assert found is None
        else:
            kind = np.uint32 if width == 4 else np.uint64
            assert_equal((found[0], found[1].view(kind)), as_csr(wanted, kind))


INT64_KEY = struct.pack("<III", 1, 2, 7) + b"user_id" + struct.pack("<IIq", 4, 8, -5)


@REPEATABLE
@given(BINARY)
@example([INT64_KEY, INT64_KEY[:-1], INT64_KEY + b"x", b"\0" + INT64_KEY, b"", INT64_KEY[:27]])
@example([bytes(length) for length in range(260)])
def test_hashes_of_keys(keys):
    is_int64 = [key[-16:-8] == INT64_KEY[-16:-8] and key[:12] == names_of(len(key) - 28) for key in keys]
    digests = [
        mmh3.mmh3_x64_128_digest(key) if usual else hashlib.blake2b(key, digest_size=16).digest()
        for key, usual in zip(keys, is_int64, strict=True)
    ]
    assert kernel.hash_keys(*as_arrow(keys)).tobytes() == b"".join(digests)


def names_of(length):
    """The bytes before the name of a single join key."""
    return struct.pack("<III", 1, 2, length) if length >= 0 else b""


@REPEATABLE
@given(st.lists(st.lists(st.integers(0, 2**31 - 1) | st.integers(0, 9), max_size=100)))
@example([list(range(200)), list(range(200, 0, -1)), [], [7] * 80, [5]])
def test_distinct_ids_of_rows(rows):
    indptr = np.cumsum([0, *map(len, rows)])
    ids = np.array([number for row in rows for number in row], np.int32)
    before = ids.copy()
    assert_equal(kernel.distinct_per_row(indptr, ids), as_csr([sorted(set(row)) for row in rows], np.int32))
    assert_equal(ids, before)


def as_arrow(values):
    return np.cumsum([0, *map(len, values)]), np.frombuffer(b"".join(values), np.uint8)


@REPEATABLE
@given(st.sets(st.integers(-(2**63), 2**63 - 1)), st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_ids_of_numbers(values, wanted):
    wanted = np.array([*wanted, *values], np.int64)
    values = np.array(list(values), np.int64)
    ids = {value: number for number, value in enumerate(values.tolist())}
    assert kernel.Int64Index(values).find(wanted).tolist() == [
        ids.get(value, -1) for value in wanted.tolist()
    ]


@REPEATABLE
@given(st.sets(st.binary(max_size=20)), st.lists(st.binary(max_size=20)))
def test_ids_of_binary_values(values, wanted):
    wanted, ids = [*wanted, *values], {value: number for number, value in enumerate(values)}
    found = kernel.BytesIndex(*as_arrow(list(values))).find(*as_arrow(wanted))
    assert found.tolist() == [ids.get(value, -1) for value in wanted]


@REPEATABLE
@given(
    arrays.arrays(np.uint64, st.tuples(st.integers(0, 9), st.just(2)), elements=HALVES),
    st.tuples(HALVES, HALVES),
)
def test_hashes_of_rows(hashes, salt):
    own = [bits.mix64(first ^ salt[0]) + (second ^ salt[1]) for first, second in hashes.tolist()]
    wanted = [bits.mix64(number & bits.MASK) for number in own]
    assert kernel.row_hashes(hashes, salt).tolist() == wanted


@st.composite
def ascending(draw, by_value=False):
    """Ascending integers, few or many and near or far, and their bound."""
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    number, most = draw(st.sampled_from([0, 1, 5, 600])), draw(st.sampled_from([0, 3, 10**6, 2**62]))
    numbers = np.sort(rng.integers(0, most, number, endpoint=True).astype(np.uint64))
    bound = most + 1 + draw(st.sampled_from([0, 5000]))
    return numbers, EliasFano.build(numbers, bound, by_value)


@REPEATABLE
@given(ascending(), st.data())
def test_ascending_numbers(kept, data):
    numbers, kept = kept
    indices = np.array(
        data.draw(st.lists(st.integers(0, len(numbers) - 1))) if len(numbers) else [], np.int64
    )
    assert_equal(take_ascending(kept, indices), numbers[indices])
    assert [bits.ascending_at(kept, index) for index in indices.tolist()] == numbers[indices].tolist()


@REPEATABLE
@given(st.sampled_from([0, 1, 3, 700]), st.sampled_from([1e-9, 0.01, 0.9]), st.integers(0, 9), st.booleans())
def test_rows_of_hashes(num_rows, rate, seed, is_crowded):
    rng = np.random.default_rng(seed)
    hashes = np.unique(rng.integers(0, 2**64, num_rows, np.uint64) >> np.uint64(40 if is_crowded else 0))
    index = FingerprintIndex.build(hashes, rate)
    wanted = np.concatenate((hashes, hashes ^ np.uint64(1), rng.integers(0, 2**64, 50, np.uint64)))
    rows = find_rows(index, wanted).tolist()
    assert rows == [bits.row_of(index, own) for own in wanted.tolist()]
    assert rows[: len(hashes)] == list(range(len(hashes)))


def damaged(words, rng):
    """Words of which one or all are others."""
    words = words.copy()
    if len(words):
        number = rng.choice([1, len(words)])
        words[rng.permutation(len(words))[:number]] = rng.integers(0, 2**64, number, np.uint64)
    return words


@REPEATABLE
@given(ascending(), st.booleans(), st.integers(0, 10**6))
def test_damaged_numbers_and_indexes_are_read_alike_or_refused_by_both(kept, by_value, seed):
    numbers, kept = kept
    rng = np.random.default_rng(seed)
    if by_value:
        kept = FingerprintIndex.build(np.unique(numbers), 0.01).fingerprints
    parts = {"highs": kept.highs, "lows": kept.lows.words, "samples": kept.samples.words}
    name = rng.choice(list(parts))
    parts[name] = damaged(parts[name], rng)
    read = replace(
        kept,
        highs=parts["highs"],
        lows=replace(kept.lows, words=parts["lows"]),
        samples=replace(kept.samples, words=parts["samples"]),
    )
    if by_value:
        twins = np.unique(rng.integers(0, 2**64, 5, np.uint64))
        index = FingerprintIndex(read, ((kept.num_buckets - 1) << kept.lows.width) + 1, twins)
        wanted = np.append(numbers, twins)
        found = [outcome(find_rows, index, own) for own in np.split(wanted, len(wanted))]
        assert found == [outcome(bits.row_of, index, own) for own in wanted.tolist()]
    else:
        indices = np.arange(len(kept))
        found = [outcome(take_ascending, read, own) for own in np.split(indices, max(1, len(indices)))]
        assert found[: len(kept)] == [outcome(bits.ascending_at, read, own) for own in indices.tolist()]


def outcome(function, *arguments):
    """What a function says about one number; None if it refuses."""
    try:
        found = function(*arguments)
    except (ValueError, DamagedError):
        return None
    return found.tolist()[0] if isinstance(found, np.ndarray) and len(found) else found


@st.composite
def coded_sets(draw):
    """Codes of features, headers of rows, and their sets as a CSR matrix.

    Sets that are coded with those before them have their symbols, and few to all of their ids.
    """
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    num_rows, features = draw(st.integers(0, 40)), []
    for number in range(draw(st.integers(1, 4))):
        num_symbols, others_width = draw(st.integers(0, 300)), -1
        if number and draw(st.booleans()):
            num_symbols, others_width = features[-1][3], draw(st.integers(0, 30))
        features.append((draw(st.integers(0, 30)), draw(st.integers(0, 2)), others_width, num_symbols))
    starts = np.cumsum([0] + [num_symbols for *_, num_symbols in features])
    levels = rng.integers(0, draw(st.sampled_from([1, 20, 70, 124])), starts[-1]).astype(np.uint8)
    left = rng.integers(0, draw(st.sampled_from([1, 20, 256])), (len(features), NUM_LEFT))
    ranked = rng.permuted(np.tile(np.arange(256, dtype=np.uint8), (len(features), 1)), axis=1)
    if draw(st.booleans()):
        ranked.sort(axis=1)
    codes = SetCodes(
        np.array([feature[:3] for feature in features]), starts, levels, left.astype(np.uint8), ranked
    )
    shares = rng.choice([0, 0.02, 0.1, 0.5, 0.9, 0.98, 1], len(features))
    mean = draw(st.sampled_from([3, 10, 100]))
    headers, sets, seen = np.zeros((num_rows, len(features)), np.int32), [], np.zeros(0, np.int64)
    for row, number in itertools.product(range(num_rows), range(len(features))):
        _, no_set, others_width, num_symbols = features[number]
        size = min(num_symbols, int(rng.geometric(1 / mean)) - 1)
        own = rng.permutation(num_symbols)[:size]
        if others_width >= 0:
            own = np.concatenate((own[: rng.integers(0, 3)], seen[rng.random(len(seen)) < shares[number]]))
        own = np.unique(own)
        seen = own if others_width < 0 else np.union1d(seen, own)
        headers[row, number] = len(own) + no_set if len(own) else rng.integers(0, no_set + 1)
        sets.append(own)
    indptr = np.cumsum([0, *map(len, sets)])
    return codes, headers, indptr, np.concatenate([*sets, np.zeros(0)]).astype(np.int32)


def set_reader(codes, words, ends, group_rows, feature):
    """Reads the headers and ids of the sets of one feature."""
    num_bits, starts = int(ends[-1]) if len(ends) else 0, starts_of(ends, group_rows)
    num_symbols = int(np.diff(codes.level_starts)[feature])
    arguments = *codes, words, num_bits, None, *starts.arguments, group_rows
    no_set = int(codes.parameters[feature, 1])
    return partial(read_sets, arguments, len(ends), num_symbols, feature, no_set)


def starts_of(ends, group_rows):
    starts = np.concatenate(([0], ends))[: len(ends)].astype(np.uint64)[::group_rows]
    return EliasFano.build(starts, int(ends[-1]) + 1 if len(ends) else 1)


IN_ORDER = np.arange(256, dtype=np.uint8)[None]  # headers
group_sizes = st.sampled_from([1, 2, 5, 64])


@REPEATABLE
@given(coded_sets(), st.data())
def test_sets(sets, data):
    codes, headers, indptr, ids = sets
    words, ends = kernel.write_sets(*sets)
    wanted_words, wanted_ends = plain_sets.write_sets(*sets)
    assert_equal(words, wanted_words)
    assert ends.tolist() == wanted_ends
    num_rows, num_features = headers.shape
    group_rows = data.draw(group_sizes)
    rows = np.array(data.draw(st.lists(st.integers(0, num_rows - 1))) if num_rows else [], np.int64)
    for feature in range(num_features):
        read = set_reader(codes, words, ends, group_rows, feature)
        segments = rows * num_features + feature
        wanted = [ids[a:b].tolist() for a, b in zip(indptr[segments], indptr[segments + 1], strict=True)]
        assert read(rows) == (headers[rows, feature].tolist(), wanted)
        num_symbols = int(np.diff(codes.level_starts)[feature])
        own_ids = (7 + 3 * np.arange(num_symbols)).astype(np.int32)
        assert read(rows, own_ids)[1] == [[7 + 3 * number for number in own] for own in wanted]
        if any(wanted):
            own_ids[max(wanted)[-1]] = -1
            with pytest.raises(kernel.ReadFault):
                read(rows, own_ids)


@REPEATABLE
@given(coded_sets(), st.data())
def test_damaged_sets_are_read_alike_or_refused_by_both(sets, data):
    codes, headers, _, _ = sets
    words, ends = kernel.write_sets(*sets)
    num_rows, num_features = headers.shape
    if not num_rows:
        return
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    words[rng.integers(0, len(words))] ^= rng.integers(0, 2**64, dtype=np.uint64)
    group_rows = data.draw(group_sizes)
    starts = starts_of(ends, group_rows)
    for row, feature in itertools.product(range(num_rows), range(num_features)):
        read = set_reader(codes, words, ends, group_rows, feature)
        try:
            wanted = plain_sets.read_row(codes, words, int(ends[-1]), starts, group_rows, row, feature)
        except DamagedError:
            with pytest.raises(kernel.ReadFault):
                read(np.array([row]))
        else:
            assert read(np.array([row])) == ([wanted[0]], [wanted[1]])


@pytest.mark.parametrize(
    ("others_widths", "starts"), [([0], [0, 5]), ([-1, 0], [0, 5, 9]), ([-1, 0, 3], [0, 5, 10, 14])]
)
def test_sets_that_nothing_they_could_be_coded_with_precedes_are_refused(others_widths, starts):
    parameters = np.array([(3, 0, width) for width in others_widths])
    left = np.zeros((len(parameters), NUM_LEFT), np.uint8)
    codes = SetCodes(
        parameters,
        np.array(starts),
        np.zeros(starts[-1], np.uint8),
        left,
        IN_ORDER[:1].repeat(len(starts) - 1, axis=0),
    )
    headers, indptr = np.zeros((1, len(others_widths)), np.int32), np.zeros(len(others_widths) + 1, np.int64)
    with pytest.raises(ValueError, match="do not fit each other"):
        kernel.write_sets(codes, headers, indptr, np.zeros(0, np.int32))


def test_sets_for_which_there_is_no_room_at_first():
    left = np.zeros((1, NUM_LEFT), np.uint8)
    codes = SetCodes(np.array([[3, 0, -1]]), np.array([0, 5000]), np.zeros(5000, np.uint8), left, IN_ORDER)
    headers, indptr = np.full((40, 1), 5000, np.int32), np.arange(41) * 5000
    words, ends = kernel.write_sets(codes, headers, indptr, np.tile(np.arange(5000, dtype=np.int32), 40))
    found = set_reader(codes, words, ends, 2, 0)(np.arange(40))
    assert found == ([5000] * 40, [list(range(5000))] * 40)
