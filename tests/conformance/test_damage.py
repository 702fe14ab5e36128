"""Whatever was changed in a file, it is refused with `DamagedFileError`, and at no cost in memory."""

import itertools
import os
import re
import tracemalloc
import zlib

import mmh3
import numpy as np
import pytest

from feast_sketch_store.errors import DamagedFileError, StorageError
from feast_sketch_store.snapshot import decode, encode
from feast_sketch_store.succinct.blocks import BlockChecks, block_checksums
from tests.helpers.cases import case, for_each
from tests.helpers.snapshots import load

HUGE = 1 << 60


def refused(content, match="some file"):
    """Both ways of reading refuse the content, without allocating anything to speak of."""
    tracemalloc.start()
    try:
        with pytest.raises(DamagedFileError, match=match):
            decode(content, "some file")
        assert tracemalloc.get_traced_memory()[1] < 1 << 24
    finally:
        tracemalloc.stop()


# -- the forge makes sound files ------------------------------------------------------------------


def test_a_forged_file_is_taken_if_nothing_is_wrong_with_it(forge):
    content = forge({"shape": [3, 1]}, payload=b"xyz", own={"description": {"x": 1}})
    description, arrays = decode(content, "some file")
    assert (description, arrays["a"].tolist()) == ({"x": 1}, [[120], [121], [122]])


# -- every byte, every length ---------------------------------------------------------------------


def test_every_flipped_bit_is_found(small):
    content = np.frombuffer(small, np.uint8).copy()
    decode(content, "some file")
    for offset in range(len(content)):
        for bit in range(8):
            content[offset] ^= 1 << bit
            with pytest.raises(DamagedFileError, match="some file"):
                decode(content, "some file")
            content[offset] ^= 1 << bit
    decode(content, "some file")


@pytest.mark.slow
def test_every_changed_byte_of_a_sealed_layer_is_found_by_load(golden_base, tmp_path):
    path = tmp_path / "base"
    path.write_bytes(golden_base)
    load(path)
    with open(path, "r+b", buffering=0) as file:
        for offset, byte in enumerate(golden_base):
            file.seek(offset)
            file.write(bytes((byte ^ 0xFF,)))
            with pytest.raises(DamagedFileError, match=re.escape(str(path))):
                load(path)
            file.seek(offset)
            file.write(bytes((byte,)))
    load(path)


@pytest.mark.slow
def test_every_truncation_is_found_by_load(golden_base, tmp_path):
    path = tmp_path / "base"
    path.write_bytes(golden_base)
    for length in reversed(range(len(golden_base))):
        os.truncate(path, length)
        with pytest.raises(DamagedFileError):
            load(path)


@pytest.mark.parametrize("extra", [b"\x00", b" ", b"x" * 64, b"\x00" * 4096])
def test_bytes_behind_the_end_are_found(golden_base, extra):
    refused(np.frombuffer(golden_base + extra, np.uint8), "truncated or extended")


def test_zeros_in_place_of_a_block_are_found(golden_base):
    for start in range(0, len(golden_base), 512):
        content = np.frombuffer(golden_base, np.uint8).copy()
        if not content[start : start + 512].any():
            continue
        content[start : start + 512] = 0
        with pytest.raises(DamagedFileError):
            decode(content, "some file")


def test_another_file_is_no_snapshot():
    for content in (b"", b"PAR1" * 100, b"\x00" * 100, b"{}", bytes(range(256))):
        refused(np.frombuffer(content, np.uint8))


def test_a_file_that_is_not_there_is_no_damage(tmp_path):
    with pytest.raises(StorageError):
        load(tmp_path / "base")


# -- hostile headers ------------------------------------------------------------------------------


@for_each("length", [HUGE, 2**64 - 1, 2**63, (1 << 22) + 1, 1 << 20])
def test_a_huge_header_is_not_read(raw_file, length):
    refused(raw_file(b"{}", length=length), "cannot hold a header")


@for_each(
    "header",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'"text"',
        b'{"format_version": 1}',
        b'{"format_version": 1, "arrays": [], "description": "\\ud800"',
        b"\xff\xfe\xfd",
        b"[" * 1_000_000,
        b'{"a":' * 1_000_000,
        b"[" * 100_000 + b"]" * 100_000,
        b"9" * 100_000,
    ],
)
def test_a_header_that_is_none_is_refused(raw_file, header):
    refused(raw_file(header))


@for_each(
    "shape",
    [
        [HUGE],
        [HUGE, HUGE],
        [2**64],
        [0, HUGE],
        [0, 2**63],
        [0, 2**64],
        [0, 2**48, 2**48],
        [0, 2**40, 2**40, 1],
        [-1],
        [-1, -1],
        [-3, 0],
        ["3"],
        [True],
        [True, False],
        [0.0],
        [1e400],
        [None],
        [[]],
        [[3]],
        "3",
        "",
        {},
        {"3": 3},
        None,
        3,
        [1] * 65,
        [0] * 65,
    ],
)
@for_each("payload", [b"", b"x"])
def test_an_impossible_shape_is_refused(forge, shape, payload):
    refused(forge({"shape": shape}, payload=payload))


@for_each("dtype", ["F32", "BOOL", "u8", "|O", "", None, 8, [], {}])
def test_an_unknown_type_is_refused(forge, dtype):
    refused(forge({"dtype": dtype}))


@for_each("version", [0, 2, -1, HUGE, "1", None, [1], {}])
def test_another_format_version_is_refused(forge, version):
    refused(forge(own={"format_version": version}), "format version|not a snapshot")


@for_each("part", ["format_version", "description", "arrays", "name", "dtype", "shape", "checksum"])
def test_a_missing_part_is_refused(forge, part):
    refused(forge({"shape": [3]}, payload=b"xyz", drop=part))


@for_each("arrays", [None, 1, "a", ["a"], [None], [[]], {"a": 1}, [{}]])
def test_arrays_that_are_no_list_of_entries_are_refused(forge, arrays):
    refused(forge(own={"arrays": arrays}))


@for_each("name", [None, 5, True, [], {}])
def test_an_impossible_name_is_refused(forge, name):
    refused(forge({"name": name}))


def test_two_arrays_of_one_name_are_refused(forge):
    refused(forge({"shape": [3]}, {"shape": [3]}, payload=b"xyzxyz"))


@for_each("checksum", ["", "0" * 32, None, 0, []])
def test_a_wrong_checksum_of_an_array_is_refused(forge, checksum):
    content = forge({"shape": [3], "checksum": checksum}, payload=b"xyz")
    with pytest.raises(DamagedFileError, match="checksum"):
        decode(content, "some file")


# In the order in which they are written: the widest elements first, then by name.
WRITTEN = [
    {"name": "b", "dtype": "I64", "shape": [1]},
    {"name": "c", "dtype": "U64", "shape": [2]},
    {"name": "a", "dtype": "I32", "shape": [1]},
    {"name": "d", "dtype": "I32", "shape": [0]},
    {"name": "e", "dtype": "U8", "shape": [3]},
]


def test_only_the_order_of_the_writer_is_read(forge):
    for order in itertools.permutations(range(5)):
        content = forge(*(WRITTEN[number] for number in order), payload=bytes(31))
        with case(order):
            if order == (0, 1, 2, 3, 4):
                decode(content, "some file", lambda array: True)  # checksums are of the whole payload
            else:
                refused(content, "some file: .* the arrays are not in the order in which they are written")


def test_a_file_whose_arrays_are_misaligned_is_refused(forge):
    """Before it was checked, the uint64 array began at byte 3 of the arrays, and was read there."""
    arrays = {"dtype": "U8", "shape": [3]}, {"name": "b", "dtype": "U64", "shape": [1]}
    refused(forge(*arrays, payload=bytes(11)), "not in the order in which they are written")


def test_no_array_of_a_file_that_is_read_is_misaligned(small, golden_base):
    for content in (small, golden_base):
        _, arrays = decode(np.frombuffer(content, np.uint8), "some file")
        assert all(array.flags.aligned for array in arrays.values())


@pytest.mark.parametrize("first", range(1, 8))
def test_content_at_an_odd_address_is_not_read(small, first):
    """What is no damage of the file, but would make every read of an array undefined."""
    memory = np.zeros(len(small) + 16, np.uint8)
    first += -memory.ctypes.data % 8
    content = memory[first : first + len(small)]
    content[:] = np.frombuffer(small, np.uint8)
    with pytest.raises(
        ValueError, match="some file: its content begins at an address that is not a multiple of 8"
    ):
        decode(content, "some file")


@for_each(
    "packed",
    [b"", b"{}", zlib.compress(b"{}")[:-1], zlib.compress(b"{}") + b"{}", zlib.compress(b"{}") + bytes(64)],
)
def test_a_header_that_is_not_packed_as_it_must_be_is_refused(packed_file, packed):
    refused(packed_file(packed), "not a snapshot, or damaged")


def test_a_header_that_unpacks_to_too_much_is_refused(packed_file):
    refused(packed_file(zlib.compress(b" " * (1 << 28), 1)), "not a snapshot, or damaged")


@for_each("checksum", [mmh3.hash_bytes(b"xyz")[:8].hex(), ""])
def test_checksums_are_of_arrays_or_of_their_blocks(forge, checksum):
    """An array beside the checksums of its blocks has none of its own, and any other has one."""
    alone = {"shape": [3], "checksum": checksum}
    blocks = {"name": "a.checksums", "shape": [1, 16], "checksum": checksum}
    both = forge(alone, blocks, payload=b"xyz" + mmh3.hash_bytes(b"xyz"))
    if checksum:
        decode(forge(alone, payload=b"xyz"), "some file")
        refused(both, "an array has no checksum, or one beside")
    else:
        refused(forge(alone, payload=b"xyz"), "an array has no checksum, or one beside")
        decode(both, "some file")


@pytest.mark.parametrize("depth", [100_000, 1_000_000])
def test_a_description_of_deep_nesting_is_refused(forge, depth):
    assert decode(forge(depth=3), "some file")[0] == [[[]]]
    refused(forge(depth=depth))


@pytest.mark.slow
def test_sampled_flips_in_a_large_snapshot_are_found_by_load_and_by_reads(tmp_path):
    """A table of 40 blocks: every flip is found by a full check, and by reads of all its windows or none."""
    rng = np.random.default_rng(3)
    words = rng.integers(0, 2**64, 40 * 8192 + 99, np.uint64)
    arrays = {"table": words, "table.checksums": block_checksums(words), "more": np.arange(5000)}
    content = b"".join(encode({}, arrays))
    path = tmp_path / "large"
    path.write_bytes(content)

    def read_everywhere():
        _, lazily = load(path, "table".__eq__)
        check = BlockChecks(lazily["table"], lazily["table.checksums"], str(path))
        check(np.arange(0, len(words) - 7, 7), 8)

    with open(path, "r+b", buffering=0) as file:
        for offset in rng.integers(0, len(content), 250).tolist():
            file.seek(offset)
            file.write(bytes((content[offset] ^ 1 << int(rng.integers(8)),)))
            with pytest.raises(DamagedFileError, match=re.escape(str(path))):
                load(path)
            with pytest.raises(DamagedFileError, match=re.escape(str(path))):
                read_everywhere()
            file.seek(offset)
            file.write(content[offset : offset + 1])
    load(path)
