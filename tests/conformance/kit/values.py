"""Test values for every hash and code: inputs and outputs.

64-bit integers are decimal strings, because JSON readers often have only 53 bits. Bytes are in hexadecimal.
"""

from typing import Any

import mmh3
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store import kernel
from feast_sketch_store.kernel import fingerprints_of, mix64, row_hashes
from feast_sketch_store.rows.packed_values import packed_arrays
from feast_sketch_store.succinct import EliasFano, PackedInts
from feast_sketch_store.succinct.coded_rows import prefix_codes
from feast_sketch_store.succinct.timed_lists import classes_of
from tests.conformance.kit.answers import hashes_of, key_json, serialized
from tests.conformance.kit.views import SALT, Key

KEYS: list[Key] = [
    {"user_id": ("int64", 1)},
    {"user_id": ("int64", -(2**63))},
    {"user_id": ("int64", 2**63 - 1)},
    {"": ("int64", 5)},
    {"ключ": ("int64", 5)},
    {"user_id": ("int32", 1)},
    {"name": ("string", "zoë")},
    {"name": ("string", "")},
    {"name": ("string", "x" * 300)},
    {"digest": ("bytes", b"\x00\xff\n")},
    {"day": ("timestamp", 1_700_000_000)},
    {"b": ("string", "x"), "a": ("int64", 1)},
    {"\uff41": ("int64", 1), "\U0001f600": ("int64", 2), "a": ("int64", 3)},
    {"__dummy_id": ("string", "")},
]
_MIXED = [0, 1, 2**63, 2**64 - 1, 0x0123456789ABCDEF]
_COUNTS = [0, 1, 2, 3, 4, 5, 6, 11, 12, 22, 23, 255, 256, 2**20, 2**30, 2**31 - 1]
_NUMBERS = [0, 1, 3, 4, 5, 6, 7, 8, 11, 12, 1000, 2**60]
_RANGES = [1, 6_000_000_000, 2**63]


def hash_vectors() -> dict[str, Any]:
    """Checksums, mixes, keys, and values derived from the hash of a key."""
    entity_hashes = hashes_of(KEYS)
    rows = row_hashes(entity_hashes, SALT)
    contents = [bytes(range(length)) for length in (0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 200)]
    mixed = mix64(np.array(_MIXED, np.uint64))
    return {
        "checksum": [
            {"bytes": content.hex(), "checksum": mmh3.mmh3_x64_128_digest(content).hex()}
            for content in contents
        ],
        "mix64": [{"number": str(n), "mixed": str(m)} for n, m in zip(_MIXED, mixed.tolist(), strict=True)],
        "salt": [f"{half:016x}" for half in SALT],
        "keys": [
            {
                "key": key_json(key),
                "serialized": serialized(key).hex(),
                "entity_hash": [str(half) for half in entity_hash],
                "row_hash": str(row_hash),
                "fingerprints": [
                    {"range": str(size), "fingerprint": str(fingerprint)}
                    for size, fingerprint in zip(_RANGES, fingerprints, strict=True)
                ],
                "filter_places": [list(place) for place in places],
            }
            for key, entity_hash, row_hash, fingerprints, places in zip(
                KEYS,
                entity_hashes.tolist(),
                rows.tolist(),
                np.stack([fingerprints_of(rows, size) for size in _RANGES], axis=1).tolist(),
                (_filter_places(entity_hash) for entity_hash in entity_hashes),
                strict=True,
            )
        ],
        "half_octaves": [
            {"number": count, "half_octaves": int(half)}
            for count, half in zip(_COUNTS, kernel.half_octaves(np.array(_COUNTS)), strict=True)
        ],
    }


def _filter_places(entity_hash: NDArray[np.uint64]) -> list[tuple[int, int]]:
    """Word and rotation of the first hashes of an entity in a table of 1,000 words."""
    start = mix64(entity_hash[:1] ^ np.uint64(SALT[0]))
    step = mix64(entity_hash[1:] ^ np.uint64(SALT[1])) | np.uint64(1)
    mixed = mix64(np.asarray(start + step * np.arange(3, dtype=np.uint64), np.uint64)).tolist()
    return [((m >> 32) * 1000 >> 32, m & 63) for m in mixed]


def code_vectors() -> dict[str, Any]:
    """Packed and ascending integers, vocabularies, Rice codes and classes."""
    numbers = [5, -3, 5, 60, 2**40]
    extremes = [-(2**63), 2**63 - 1, 0]
    values = ["apple", "apricot", "", "apple pie", "naïve ☕", *(f"article 0000{n}" for n in range(9))]
    return {
        "packed": [_packed(numbers), _packed(extremes), _packed([7, 7]), _packed([])],
        "ascending": [
            _ascending([0, 3, 3, 64, 65, 1000], 1001, False),
            _ascending([0, 3, 3, 64, 65, 1000], 1001, True),
            _ascending(list(range(0, 900, 3)), 900, True),
            _ascending([], 10, False),
        ],
        "vocabularies": [
            _vocabulary(pa.array(numbers[1:], pa.int64())),
            _vocabulary(pa.array([value.encode() for value in values[:2]], pa.large_binary())),
            _vocabulary(pa.array([value.encode() for value in values], pa.large_binary())),
        ],
        "rice": [
            _rice(width, number)
            for width, number in [(0, 0), (0, 3), (3, 5), (3, 8), (0, 23), (0, 24), (2, 95), (2, 96), (30, 1)]
        ],
        "classes": [
            {"number": str(number), "class": int(number_class)}
            for number, number_class in zip(_NUMBERS, classes_of(np.array(_NUMBERS)), strict=True)
        ],
        "prefix_codes": [_prefix_codes([2, 1, 0, 3, 3]), _prefix_codes([0, 1]), _prefix_codes([12, 0, 1])],
    }


def _words(words: NDArray[np.generic]) -> list[str]:
    return [str(word) for word in words.tolist()]


def _packed(numbers: list[int]) -> dict[str, Any]:
    packed = PackedInts.pack(np.array(numbers, np.int64))
    own = {"width": packed.width, "base": str(packed.base), "length": packed.length}
    return {**own, "words": _words(packed.words), "numbers": [str(n) for n in numbers]}


def _ascending(numbers: list[int], bound: int, by_value: bool) -> dict[str, Any]:
    built = EliasFano.build(np.array(numbers, np.uint64), bound, by_value)
    return {
        "by_value": by_value,
        "length": len(built),
        "num_buckets": built.num_buckets,
        "low_width": built.lows.width,
        "sample_width": built.samples.width,
        "highs": _words(built.highs),
        "lows": _words(built.lows.words),
        "samples": _words(built.samples.words),
        "numbers": [str(n) for n in numbers],
    }


def _vocabulary(values: pa.Array) -> dict[str, Any]:
    packed = packed_arrays(values).items()
    arrays: dict[str, Any] = {name: [str(n) for n in array.tolist()] for name, array in packed}
    if "data" in arrays:
        arrays["data"] = bytes(map(int, arrays["data"])).hex()
    plain = [value.hex() if isinstance(value, bytes) else str(value) for value in values.to_pylist()]
    return {"arrays": arrays, "values": plain}


def _rice(width: int, number: int) -> dict[str, Any]:
    """The code of a number, first bit first."""
    quotient, rest = number >> width, f"{number & (1 << width) - 1:0{width}b}"[::-1] if width else ""
    if quotient < kernel.LONGEST_UNARY:
        bits = "1" * quotient + "0" + rest
    else:
        bits = "1" * kernel.LONGEST_UNARY + f"{number:032b}"[::-1]
    return {"width": width, "number": number, "bits": bits}


def _prefix_codes(lengths: list[int]) -> dict[str, Any]:
    codes = prefix_codes(np.array(lengths, np.uint8)).tolist()
    bits = [f"{code:0{length}b}"[::-1] if length else "" for code, length in zip(codes, lengths, strict=True)]
    return {"lengths": lengths, "bits": bits}
