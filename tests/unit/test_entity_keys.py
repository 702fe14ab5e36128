"""Entity keys: Feast's bytes, and hashes that nobody can make collide."""

import hashlib
import struct

import mmh3
import numpy as np
import pyarrow as pa
import pytest
from feast.infra.key_encoding_utils import serialize_entity_key
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import Value

from feast_sketch_store.adapter.responses import hash_entity_keys
from feast_sketch_store.rows.entity_keys import (
    find_sorted,
    hash_columns,
    hash_serialized_keys,
    int64_column,
    join_keys_of,
    serialize_columns,
    serialize_entity_keys,
)
from tests.helpers.cases import for_each
from tests.helpers.keys import entity_key as key

KEYS = {
    "int64": key(user_id=Value(int64_val=1)),
    "int64 zero": key(user_id=Value(int64_val=0)),
    "int64 lowest": key(user_id=Value(int64_val=-(2**63))),
    "int64 highest": key(user_id=Value(int64_val=2**63 - 1)),
    "int32": key(user_id=Value(int32_val=1)),
    "int32 lowest": key(user_id=Value(int32_val=-(2**31))),
    "int32 highest": key(user_id=Value(int32_val=2**31 - 1)),
    "string": key(name=Value(string_val="zoë")),
    "string empty": key(name=Value(string_val="")),
    "string long": key(name=Value(string_val="x" * 100_000)),
    "bytes": key(digest=Value(bytes_val=b"\x00\xff\n")),
    "bytes empty": key(digest=Value(bytes_val=b"")),
    "unix_timestamp": key(day=Value(unix_timestamp_val=1_700_000_000)),
    "unix_timestamp lowest": key(day=Value(unix_timestamp_val=-(2**63))),
    "join key unicode": key(**{"ключ": Value(int64_val=5)}),
    "join key empty": key(**{"": Value(int64_val=5)}),
    "composite sorted": key(a=Value(int64_val=1), b=Value(string_val="x")),
    "composite unsorted": key(b=Value(string_val="x"), a=Value(int64_val=1)),
    "composite int64": key(z=Value(int64_val=-1), a=Value(int64_val=1), m=Value(int64_val=0)),
    "entityless": key(__dummy_id=Value(string_val="")),
    "no join keys": EntityKey(),
}


@for_each("entity_key", KEYS.values())
def test_bytes_are_those_of_feast(entity_key):
    assert serialize_entity_keys([entity_key]) == [serialize_entity_key(entity_key, 3)]


def test_a_batch_of_all_kinds_keeps_its_order():
    keys = [*KEYS.values(), *reversed(KEYS.values())]
    assert serialize_entity_keys(keys) == [serialize_entity_key(k, 3) for k in keys]


def test_random_int64_keys_have_feasts_bytes():
    users = np.random.default_rng(1).integers(-(2**63), 2**63 - 1, 500)
    keys = [key(**{f"k{user % 7}": Value(int64_val=user)}) for user in users]
    assert serialize_entity_keys(keys) == [serialize_entity_key(k, 3) for k in keys]


# Made with feast.infra.key_encoding_utils.serialize_entity_key(key, 3) of feast 0.67.0 and
# mmh3.hash_bytes of mmh3 5.3.1 or hashlib.blake2b. A change would orphan every row that was written before.
@for_each(
    ("entity_key", "serialized", "hashed"),
    [
        (
            KEYS["int64"],
            "010000000200000007000000757365725f696404000000080000000100000000000000",
            "0a5dfd4ec53153be0fc6d9044d4b5407",
        ),
        (
            KEYS["int64 lowest"],
            "010000000200000007000000757365725f696404000000080000000000000000000080",
            "e665e71659eaec4462f4c6a3a81f9081",
        ),
        (
            key(user_id=Value(string_val="ü")),
            "010000000200000007000000757365725f69640200000002000000c3bc",
            "66a661febe58623e10430a855921738f",
        ),
        (
            key(b=Value(int32_val=-1), a=Value(string_val="x")),
            "020000000200000001000000610200000001000000620200000001000000780300000004000000ffffffff",
            "c539333f5e9fc74974c6fef647cb9faf",
        ),
        (
            KEYS["entityless"],
            "01000000020000000a0000005f5f64756d6d795f69640200000000000000",
            "0f2740c7aa5ff34af85bccd12d6d2457",
        ),
        (
            key(k=Value(bytes_val=b"\x00\xff")),
            "0100000002000000010000006b010000000200000000ff",
            "1b00e5dd49932e7cd6dd77bffebbbb69",
        ),
        (
            key(t=Value(unix_timestamp_val=1_700_000_000)),
            "01000000020000000100000074080000000800000000f1536500000000",
            "60063957211ec786fb589383d2d8bf83",
        ),
    ],
)
def test_vectors(entity_key, serialized, hashed):
    (found,) = serialize_entity_keys([entity_key])
    assert found.hex() == serialized
    assert hash_serialized_keys([found]).tobytes().hex() == hashed


def test_int64_keys_are_hashed_as_feast_does_and_all_others_with_blake2b():
    serialized = serialize_entity_keys([*KEYS.values(), *KEYS.values()])
    hashes = hash_serialized_keys(serialized)
    assert (hashes.shape, hashes.dtype) == ((len(serialized), 2), np.uint64)
    for entity_key, one, row in zip([*KEYS.values()] * 2, serialized, hashes, strict=True):
        is_int64 = [value.WhichOneof("val") for value in entity_key.entity_values] == ["int64_val"]
        wanted = mmh3.hash_bytes(one) if is_int64 else hashlib.blake2b(one, digest_size=16).digest()
        assert row.tobytes() == wanted
        assert (hash_serialized_keys([one]) == row).all(), "alone as in a batch"


def test_only_a_single_int64_key_looks_like_one():
    tail = struct.pack("<IIq", 4, 8, 7)  # how an int64 value ends a serialized key
    for value in (Value(bytes_val=tail), Value(bytes_val=b"x" + tail), Value(string_val=tail.decode())):
        (serialized,) = serialize_entity_keys([key(user_id=value)])
        assert serialized.endswith(tail)
        assert (
            hash_serialized_keys([serialized]).tobytes()
            == hashlib.blake2b(serialized, digest_size=16).digest()
        )


def rotate(value, distance):
    return (value << distance | value >> (64 - distance)) % 2**64


def murmur_block(state, target=None, block=None):
    """One body block of MurmurHash3 x64 128: the state after it, or the block that leads to a target."""
    c1, c2 = 0x87C37B91114253D5, 0x4CF5AD432745937F
    (h1, h2), rounds = state, ((c1, 31, c2, 27, 0x52DCE729), (c2, 33, c1, 31, 0x38495AB5))
    halves, found = struct.unpack("<QQ", block or bytes(16)), []
    for number, (first, turn, second, mix, add) in enumerate(rounds):
        own, other = (h1, h2) if number == 0 else (h2, h1)
        if target is None:
            own ^= rotate(halves[number] * first % 2**64, turn) * second % 2**64
            own = ((rotate(own, mix) + other) * 5 + add) % 2**64
        else:
            before = rotate(((target[number] - add) * pow(5, -1, 2**64) - other) % 2**64, 64 - mix)
            mixed = (own ^ before) * pow(second, -1, 2**64) % 2**64
            found.append(rotate(mixed, 64 - turn) * pow(first, -1, 2**64) % 2**64)
            own = target[number]
        h1, h2 = (own, h2) if number == 0 else (h1, own)
    return (h1, h2) if target is None else struct.pack("<QQ", *found)


def test_keys_crafted_to_collide_do_not():
    """Two bytes keys with one and the same MurmurHash3: it can be run backwards."""
    (head,) = serialize_entity_keys([key(user_id=Value(bytes_val=bytes(5 + 32)))])
    state = (0, 0)
    for first in (0, 16):
        state = murmur_block(state, block=head[first : first + 16])
    meeting_point = (4711, 42)
    values = []
    for name in (b"alice's block 01", b"mallory's  block"):
        second = murmur_block(murmur_block(state, block=name), target=meeting_point)
        values.append(bytes(5) + name + second)
    serialized = serialize_entity_keys([key(user_id=Value(bytes_val=value)) for value in values])
    assert serialized[0] != serialized[1]
    assert mmh3.hash_bytes(serialized[0]) == mmh3.hash_bytes(serialized[1])
    hashes = hash_serialized_keys(serialized)
    assert (hashes[0] != hashes[1]).all()


COLUMNS = {
    "int64": {"user_id": pa.array([1, -1, 2**63 - 1])},
    "int32": {"user_id": pa.array([1, -1, -(2**31)], pa.int32())},
    "strings": {"name": pa.array(["zoë", "", "x" * 70_000])},
    "large strings": {"name": pa.array(["zoë", "", "x"], pa.large_string())},
    "bytes": {"digest": pa.array([b"\x00\xff", b"", b"x"])},
    "seconds": {"day": pa.array([0, 1_700_000_000, -5], pa.timestamp("s"))},
    "microseconds": {"day": pa.array([1_700_000_000_000_000, -1_000_000], pa.timestamp("us", "UTC"))},
    "several": {"b": pa.array(["x", ""]), "a": pa.array([1, 2]), "ключ": pa.array([7, 8], pa.int32())},
    "a slice": {"b": pa.array(["w", "x", ""]).slice(1), "a": pa.array([0, 1, 2]).slice(1)},
    "none": {"user_id": pa.array([], pa.int64())},
}
FIELDS = {"int64": "int64_val", "int32": "int32_val", "string": "string_val", "binary": "bytes_val"}


def keys_of(columns):
    """The same keys as Feast's messages."""
    keys = []
    for row in zip(*columns.values(), strict=True):
        values = {}
        for name, value in zip(columns, row, strict=True):
            kind = str(value.type).removeprefix("large_")
            if kind.startswith("timestamp"):
                values[name] = Value(unix_timestamp_val=value.cast(pa.timestamp("s", value.type.tz)).value)
            else:
                values[name] = Value(**{FIELDS[kind]: value.as_py()})
        keys.append(key(**values))
    return keys


@for_each("columns", COLUMNS.values())
def test_columns_have_the_bytes_of_feast(columns):
    wanted = [serialize_entity_key(k, 3) for k in keys_of(columns)]
    assert serialize_columns(columns).to_pylist() == wanted
    assert hash_columns(columns).tolist() == hash_serialized_keys(wanted).tolist()


@for_each(
    ("columns", "error"),
    [
        ({"a": pa.array([1, None])}, ValueError),
        ({"a": pa.array([1.5])}, TypeError),
        ({"a": pa.array([True])}, TypeError),
        ({"a": pa.array([1, 2]), "b": pa.array(["x"])}, ValueError),
    ],
)
def test_columns_that_are_no_keys_are_refused(columns, error):
    with pytest.raises(error, match="join key"):
        hash_columns(columns)


def test_entity_keys_are_hashed_as_their_bytes():
    for keys in ([], list(KEYS.values()), *([entity_key] for entity_key in KEYS.values())):
        hashes = hash_serialized_keys([serialize_entity_key(k, 3) for k in keys])
        assert hash_entity_keys(keys) == hashes.tobytes()


def test_only_keys_of_one_int64_join_key_make_a_column():
    numbers = [0, 1, -1, 300, 2**63 - 1, -(2**63)]
    for name in ("user_id", "", "ключ" * 40):
        found, values = int64_column([key(**{name: Value(int64_val=number)}) for number in numbers])
        assert (found, values.tolist()) == (name, numbers)
    one = key(user_id=Value(int64_val=1))
    for other in (key(user_ie=Value(int64_val=1)), KEYS["int32"], KEYS["composite int64"], EntityKey()):
        assert int64_column([one, other]) is None
        assert int64_column([other, one]) is None
    assert int64_column([]) is None


def test_join_keys_are_read_off_the_bytes():
    for entity_key in KEYS.values():
        fields = [value.WhichOneof("val") for value in entity_key.entity_values]
        wanted = dict(zip(entity_key.join_keys, fields, strict=True))
        assert join_keys_of(serialize_entity_key(entity_key, 3)) == wanted


@for_each("value", [Value(double_val=1.0), Value(bool_val=True), Value()])
def test_a_type_that_feast_refuses_is_refused(value):
    with pytest.raises(ValueError, match="not supported"):
        serialize_entity_keys([key(user_id=value)])


@for_each(
    ("listed", "wanted", "positions", "indices"),
    [
        ([], [(1, 1)], [], []),
        ([(1, 1)], [], [], []),
        ([(1, 1)], [(1, 2), (2, 1), (0, 1)], [], []),
        # Hashes that share their first half are told apart by the second.
        (
            [(1, 1), (1, 5), (1, 9), (2, 0)],
            [(1, 9), (1, 5), (1, 7), (1, 1), (2, 0)],
            [0, 1, 3, 4],
            [2, 1, 0, 3],
        ),
        ([(2**64 - 1, 0), (2**64 - 1, 2**64 - 1)], [(2**64 - 1, 2**64 - 1)], [0], [1]),
        ([(0, 3)], [(0, 3), (0, 3)], [0, 1], [0, 0]),
    ],
)
def test_find_sorted(listed, wanted, positions, indices):
    found = find_sorted(*(np.array(pairs, np.uint64).reshape(-1, 2) for pairs in (listed, wanted)))
    assert [array.tolist() for array in found] == [positions, indices]
