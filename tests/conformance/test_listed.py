"""A snapshot that lists its rows: parts that contradict each other are refused, when opened or when read.

Packed arrays are not read when the file is opened. What a read finds wrong is a `ValueError`, which the view
reports as a damaged file.
"""

import copy
import json
from pathlib import Path

import numpy as np
import pytest
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import Value

from feast_sketch_store.entity_keys import hash_serialized_keys, serialize_entity_keys
from feast_sketch_store.errors import DamagedFileError
from feast_sketch_store.layers import SketchLayer, is_checked_where_read
from feast_sketch_store.sealed import open_layer
from feast_sketch_store.snapshot.files import SnapshotFile, load

GOLDEN = Path(__file__).parent / "golden" / "v1.listed.safetensors"
NAMES = ["viewed", "sizes", "note", "country", "weight"]
ARRAYS = [name for name in load(GOLDEN)[1] if not name.endswith(".checksums")]
REFUSALS = (ValueError, KeyError, TypeError)


@pytest.fixture
def parts():
    """The description and the arrays of a layer, free to be changed."""
    description, arrays = load(GOLDEN)
    return copy.deepcopy(description["layer"]), dict(arrays)


def read_all(layer):
    """Everything of the 70 rows, as bytes; the decoders must not fail."""
    keys = [EntityKey(join_keys=["user_id"], entity_values=[Value(int64_val=n)]) for n in range(90)]
    answer = layer.read(hash_serialized_keys(serialize_entity_keys(keys)), NAMES)
    values = [
        [v and v.SerializeToString() for v in f.decoder.values(f.states, f.indptr, f.symbols)]
        for f in answer.features.values()
    ]
    return answer.found.tolist(), answer.event_timestamps.tolist(), values


@pytest.fixture(scope="module")
def truth():
    description, arrays = load(GOLDEN)
    return read_all(SketchLayer.from_snapshot(description["layer"], arrays))


def test_the_parts_fit_as_they_are(parts, truth):
    assert len(truth[0]) == 70
    assert read_all(SketchLayer.from_snapshot(*parts)) == truth


@pytest.mark.parametrize("name", ARRAYS)
def test_a_missing_array_is_refused(parts, name):
    del parts[1][name]
    with pytest.raises(REFUSALS):
        SketchLayer.from_snapshot(*parts)


# What no other part names does no harm: the last value of column 3 stands for rows without one.
HARMLESS = {
    ("columns.2.content.words", "longer"),
    ("columns.3.vocabulary.offsets", "longer"),
    ("columns.3.vocabulary.offsets", "shorter"),
    ("columns.4.vocabulary.values", "longer"),
}


@pytest.mark.parametrize(
    ("name", "how"),
    [
        (name, how)
        for name in ARRAYS
        for how in ("shorter", "longer", "another dimension", "another type")
        if len(load(GOLDEN)[1][name]) and (name, how) not in HARMLESS
    ],
)
def test_an_array_of_another_shape_is_refused(parts, name, how):
    array = parts[1][name]
    parts[1][name] = {
        "shorter": array[:-1],
        "longer": np.concatenate((array, array[-1:])),
        "another dimension": array[None],
        "another type": array.astype(np.int32),
    }[how]
    with pytest.raises(REFUSALS):
        read_all(SketchLayer.from_snapshot(*parts))


@pytest.mark.parametrize("name", [name for name in ARRAYS if is_checked_where_read(name)])
def test_any_words_are_refused_or_safe_to_read(parts, name):
    """Checksums that are right for words that nobody wrote."""
    rng = np.random.default_rng(1)
    true = parts[1][name]
    refused = 0
    for number in range(40):
        words = true.copy()
        if number < 20 and len(words):
            words[rng.integers(len(words))] = rng.integers(0, 2**64, dtype=np.uint64)
        else:
            words[:] = rng.integers(0, 2**64, len(words), np.uint64) if number % 2 else 2**64 - 1
        parts[1][name] = words
        try:
            read_all(SketchLayer.from_snapshot(*parts))
        except REFUSALS:
            refused += 1
    if "bounds" in name or "offsets" in name:
        assert refused


def leaves(content, path=()):
    """The path of every part of a description."""
    yield path
    if isinstance(content, dict | list):
        for key, value in content.items() if isinstance(content, dict) else enumerate(content):
            yield from leaves(value, (*path, key))


@pytest.mark.parametrize(
    "path", [p for p in leaves(load(GOLDEN)[0]["layer"]) if p], ids=lambda path: ".".join(map(str, path))
)
def test_any_other_content_is_refused_or_safe_to_read(parts, path):
    junk = (None, True, 0, 1, -1, 2, 64, 65, 70, 71, 2**62, 2**70, 1.5, "", "x", "exact", "binned", "bytes")
    for value in (*junk, [], [0], {}, {"a": 1}, "numbers", "dictionary"):
        description = copy.deepcopy(parts[0])
        place = description
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value
        try:
            read_all(SketchLayer.from_snapshot(description, parts[1]))
        except REFUSALS:
            continue


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["listed", "columns", 1, "bounds", "base"], 1),
        (["listed", "columns", 1, "bounds", "base"], -1),
        (["listed", "columns", 1, "states", "base"], 1),
        (["listed", "columns", 1, "elements", "numbers", "width"], 0),
        (["listed", "columns", 2, "elements", "offsets", "base"], 2**40),
        (["listed", "columns", 2, "elements", "form"], "dictionary"),
        (["listed", "columns", 3, "elements", "ids", "base"], 2),
        (["listed", "columns", 3, "value_field"], "int64_val"),
        (["listed", "columns", 3, "name"], "note"),
        (["listed", "columns", 0, "name"], "something else"),
        (["listed", "states", 0, "name"], "note"),
        (["listed", "states", 0, "base"], 3),
        (["listed", "states"], []),
        (["num_entities"], 69),
        (["roundings", 0, "name"], "viewing"),
    ],
    ids=str,
)
def test_a_description_that_does_not_fit_is_refused(parts, path, value):
    *parents, last = path
    place = parts[0]
    for step in parents:
        place = place[step]
    place[last] = value
    with pytest.raises(REFUSALS):
        read_all(SketchLayer.from_snapshot(*parts))


def test_strings_that_are_none_are_refused_when_they_are_read(parts):
    content = parts[1]["columns.2.content.words"].copy()
    content.view(np.uint8)[:] = 0xFF
    parts[1]["columns.2.content.words"] = content
    layer = SketchLayer.from_snapshot(*parts)
    with pytest.raises(ValueError, match="UTF8"):
        read_all(layer)


def test_every_changed_byte_is_found_at_the_latest_when_it_is_read(tmp_path, truth):
    """Headers and small arrays when the file is opened, blocks of packed arrays when they are used."""
    content = bytearray(GOLDEN.read_bytes())
    snapshot = SnapshotFile(3, 1, tmp_path / "base")
    length = int.from_bytes(content[:8], "little")
    entries = json.loads(content[8 : 8 + length])
    start, end = 8 + length, len(content)
    first_packed = min(entries[n]["data_offsets"][0] for n in entries if is_checked_where_read(n))
    found = 0
    for place in [*range(0, start, 97), *range(start + first_packed, end)]:
        content[place] ^= 0xFF
        snapshot.path.write_bytes(content)
        try:
            assert read_all(open_layer(snapshot)) == truth
        except DamagedFileError:
            found += 1
        with pytest.raises(DamagedFileError, match=str(tmp_path)):
            open_layer(snapshot, check_all=True)
        content[place] ^= 0xFF
    # The table is read in part only: of 10 words the 70 entities use most.
    assert found >= (end - start - first_packed) - 80
