"""The index of fingerprints finds each row, and an unknown entity only if it shares the bits of one."""

import numpy as np
import pytest

from feast_sketch_store.succinct import FingerprintIndex, PackedInts
from feast_sketch_store.succinct.fingerprints import width_for

COUNTS = pytest.mark.parametrize("num_rows", [0, 1, 2, 7, 8, 15, 16, 17, 5000])


def hashes_for(num_rows, width, seed=1):
    """Hashes in ascending order whose upper bits are distinct."""
    rng = np.random.default_rng(seed)
    hashes = np.sort(rng.integers(0, 2**64, num_rows, np.uint64))
    assert len(np.unique(hashes >> np.uint64(64 - width))) == num_rows
    return hashes


@COUNTS
@pytest.mark.parametrize("width", [40, 63])
def test_every_row_is_found(num_rows, width):
    hashes = hashes_for(num_rows, width)
    index = FingerprintIndex.build(hashes, width)
    assert (len(index), index.width) == (num_rows, width)
    assert index.find(hashes).tolist() == list(range(num_rows))
    assert index.find(hashes[::-1]).tolist() == list(range(num_rows))[::-1]
    assert index.find(hashes[:0]).tolist() == []


@COUNTS
def test_only_what_shares_the_bits_of_a_row_is_found(num_rows):
    hashes = hashes_for(num_rows, 40)
    index = FingerprintIndex.build(hashes, 40)
    others = np.random.default_rng(2).integers(0, 2**64, 3000, np.uint64)
    nearby = np.concatenate((hashes ^ np.uint64(1 << 24), hashes ^ np.uint64(1 << 23)))
    asked = np.concatenate((others, nearby))
    rows = {int(h) >> 24: row for row, h in enumerate(hashes)}
    assert index.find(asked).tolist() == [rows.get(int(h) >> 24, -1) for h in asked]


def test_the_first_and_the_last_fingerprint_are_found():
    hashes = np.array([0, 1 << 62, 2**64 - 1], np.uint64)
    index = FingerprintIndex.build(hashes, 2 + 8)
    assert index.find(hashes).tolist() == [0, 1, 2]


@pytest.mark.parametrize("width", [1, 2, 3, 4, 5])
def test_narrow_fingerprints_of_which_all_are_taken(width):
    hashes = np.arange(2**width, dtype=np.uint64) << np.uint64(64 - width)
    index = FingerprintIndex.build(hashes, width)
    assert index.width == width
    assert index.find(hashes).tolist() == list(range(2**width))
    assert index.find(hashes | np.uint64(12345)).tolist() == list(range(2**width))


def test_buckets_that_are_full_and_empty():
    """All rows in one bucket: hashes that somebody chose, which a salt prevents."""
    hashes = np.uint64(3 << 62) + (np.arange(1000, dtype=np.uint64) << np.uint64(10))
    index = FingerprintIndex.build(hashes, 60)
    assert index.find(hashes).tolist() == list(range(1000))
    assert index.find(hashes - np.uint64(1 << 63)).tolist() == [-1] * 1000


@pytest.mark.parametrize(
    ("num_rows", "rate", "width"),
    [
        (0, 0.5, 1),
        (1, 0.5, 1),
        (1, 1e-5, 17),
        (2, 1e-5, 18),
        (1000, 1e-5, 27),
        (10**9, 1e-9, 60),
        (10**9, 1e-12, 63),
    ],
)
def test_bits_of_a_fingerprint(num_rows, rate, width):
    assert width_for(num_rows, rate) == width
    assert width == 63 or num_rows / 2**width <= rate


def test_a_list_of_rows_gets_wider_fingerprints_until_all_are_distinct(make_rows, read, monkeypatch):
    """Of 200 rows at a rate of one half, two always share 9 bits."""
    from feast.protos.feast.types.Value_pb2 import Value

    from feast_sketch_store.layers import FeatureBudget, build_layer
    from feast_sketch_store.rows.codecs import EXACT, FeatureCodec

    salts = []

    def new_salt():
        salts.append((len(salts), 3))
        return salts[-1]

    monkeypatch.setattr("feast_sketch_store.layers.build.new_salt", new_salt)
    monkeypatch.setattr("feast_sketch_store.layers.build.width_for", lambda num_rows, rate: 9)
    codec = FeatureCodec("size", "int64_val", EXACT)
    rows = make_rows([(user, {"size": Value(int64_val=user)}, 0) for user in range(200)], [codec])
    layer = build_layer(rows, FeatureBudget(0.5, {"size": 0.5}))
    assert layer.presence.index.width == 9 + len(salts) - 1 > 9
    found = read(layer, list(range(200)), ["size"])
    assert {user: values["size"].int64_val for user, (_, values) in found.items()} == {
        user: user for user in range(200)
    }


@pytest.mark.parametrize("part", ["starts", "rests"])
def test_parts_that_do_not_fit_are_refused(part):
    index = FingerprintIndex.build(hashes_for(100, 40), 40)
    for change in (
        PackedInts.pack(np.arange(4), base=0),  # three buckets
        PackedInts.pack(np.arange(0), base=0),
        PackedInts.pack(np.arange(1, 10), base=1),
        PackedInts.pack(np.zeros(9, np.int64), base=0) if part == "rests" else PackedInts.pack(np.arange(1)),
    ):
        parts = {"starts": index.starts, "rests": index.rests} | {part: change}
        with pytest.raises(ValueError, match=r"fit|row|bucket"):
            FingerprintIndex(**parts).find(hashes_for(100, 40))
