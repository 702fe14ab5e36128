"""Entity keys: Feast's bytes and Feast's hash."""

import mmh3
import numpy as np
import pytest
from feast.infra.key_encoding_utils import serialize_entity_key
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import Value

from feast_sketch_store.entity_keys import hash_serialized_keys, serialize_entity_keys


def key(**values):
    return EntityKey(join_keys=list(values), entity_values=list(values.values()))


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


@pytest.mark.parametrize("entity_key", KEYS.values(), ids=KEYS.keys())
def test_bytes_are_those_of_feast(entity_key):
    assert serialize_entity_keys([entity_key]) == [serialize_entity_key(entity_key, 3)]


def test_a_batch_of_all_kinds_keeps_its_order():
    keys = [*KEYS.values(), *reversed(KEYS.values())]
    assert serialize_entity_keys(keys) == [serialize_entity_key(k, 3) for k in keys]


def test_the_order_of_join_keys_does_not_matter():
    one, other = serialize_entity_keys([KEYS["composite sorted"], KEYS["composite unsorted"]])
    assert one == other


def test_random_int64_keys_have_feasts_bytes():
    users = np.random.default_rng(1).integers(-(2**63), 2**63 - 1, 500)
    keys = [key(**{f"k{user % 7}": Value(int64_val=user)}) for user in users]
    assert serialize_entity_keys(keys) == [serialize_entity_key(k, 3) for k in keys]


# Made with feast.infra.key_encoding_utils.serialize_entity_key(key, 3) of feast 0.67.0 and
# mmh3.hash_bytes of mmh3 5.3.1. A change would orphan every row that was written before.
@pytest.mark.parametrize(
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
            "d50bb44679865ee6b927b56691bfbc6f",
        ),
        (
            key(b=Value(int32_val=-1), a=Value(string_val="x")),
            "020000000200000001000000610200000001000000620200000001000000780300000004000000ffffffff",
            "f2757e55f07303adb33b80dfed4123b4",
        ),
        (
            KEYS["entityless"],
            "01000000020000000a0000005f5f64756d6d795f69640200000000000000",
            "de92cd1db280c7aa956cd0b5fe07eb08",
        ),
        (
            key(k=Value(bytes_val=b"\x00\xff")),
            "0100000002000000010000006b010000000200000000ff",
            "aa44901fc164dd67cfe0722d10e61ce2",
        ),
        (
            key(t=Value(unix_timestamp_val=1_700_000_000)),
            "01000000020000000100000074080000000800000000f1536500000000",
            "defdd99fec91e2fc1b0b00d3526df8ae",
        ),
    ],
    ids=["int64", "int64 lowest", "string", "composite", "entityless", "bytes", "unix_timestamp"],
)
def test_vectors(entity_key, serialized, hashed):
    (found,) = serialize_entity_keys([entity_key])
    assert found.hex() == serialized
    assert hash_serialized_keys([found]).tobytes().hex() == hashed


def test_hashes_are_those_of_murmurhash3_x64_128():
    serialized = [b"", b"\x00", b"x" * 15, b"x" * 16, b"x" * 17, bytes(range(256)) * 40]
    hashes = hash_serialized_keys(serialized)
    assert (hashes.shape, hashes.dtype) == ((6, 2), np.uint64)
    assert [row.tobytes() for row in hashes] == [mmh3.hash_bytes(s) for s in serialized]


def test_no_keys_make_no_hashes():
    assert serialize_entity_keys([]) == []
    assert hash_serialized_keys([]).shape == (0, 2)


@pytest.mark.parametrize("value", [Value(double_val=1.0), Value(bool_val=True), Value()])
def test_a_type_that_feast_refuses_is_refused(value):
    with pytest.raises(ValueError, match="not supported"):
        serialize_entity_keys([key(user_id=value)])
