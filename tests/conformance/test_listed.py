"""Snapshots that list their rows: parts that contradict each other are refused, when opened or when read.

Packed arrays are not read when the file is opened. What a read finds wrong is a `ValueError`, which the view
reports as a damaged file.
"""

import copy
import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from feast_sketch_store.errors import DamagedFileError
from feast_sketch_store.layers import SketchLayer, is_checked_where_read
from feast_sketch_store.snapshot.format import locate
from feast_sketch_store.snapshot.sealed import open_layers
from tests.helpers.cases import case, for_each
from tests.helpers.keys import user_hashes
from tests.helpers.length import by_length
from tests.helpers.snapshots import load, parts_of, published
from tests.oracle.messages import feast_values

GOLDEN = Path(__file__).parent / "golden"
FILES = {name: GOLDEN / f"v1.{name}.sketch" for name in ("listed", "sets", "counts")}
NAMES = {
    "listed": ["viewed", "sizes", "note", "country", "weight"],
    "sets": ["viewed", "sizes", "topics", "country", "bought"],
    "counts": ["viewed", "bought"],
}
LOADED = {file: load(path) for file, path in FILES.items()}
ARRAYS = [
    (file, name) for file, (_, arrays) in LOADED.items() for name in arrays if not name.endswith(".checksums")
]
ARRAYS_OF = {file: [name for other, name in ARRAYS if other == file] for file in LOADED}
HASHES = user_hashes(range(90))
NUM_ROWS = {"counts": 50}  # others have 70
REFUSALS = (ValueError, KeyError, TypeError)


def read_all(layer, file):
    """Everything of all rows, as bytes; the decoders must not fail."""
    answer = layer.read(HASHES, NAMES[file])
    values = [[v and v.SerializeToString() for v in feast_values(f)] for f in answer.features.values()]
    weights = [f.csr.weights for f in answer.features.values()]
    counts = [None if own is None else own.tolist() for own in weights]
    return answer.found.tolist(), answer.event_timestamps.tolist(), values, counts


@pytest.fixture(scope="module")
def truth():
    """Makes what a file reads as."""
    return {file: read_all(SketchLayer.from_snapshot(*parts_of(FILES[file])), file) for file in FILES}


@pytest.mark.parametrize("file", FILES)
def test_the_parts_fit_as_they_are(file, truth):
    assert len(truth[file][0]) == NUM_ROWS.get(file, 70)
    assert read_all(SketchLayer.from_snapshot(*parts_of(FILES[file])), file) == truth[file]


@for_each("file", FILES)
def test_a_missing_array_is_refused(file):
    """When it is opened; words may be missing if there are none, so that may show when they are read."""
    for name in ARRAYS_OF[file]:
        description, arrays = parts_of(FILES[file])
        del arrays[name]
        with case(name), pytest.raises(REFUSALS):
            read_all(SketchLayer.from_snapshot(description, arrays), file)


# What no other part names does no harm.
HARMLESS = {
    ("listed", "columns.1.content.words", "longer"),
    ("sets", "sets.0.level_ends", "longer"),  # one more level, of no symbols
    ("sets", "sets.2.level_ends", "longer"),
}


@for_each("file", FILES)
def test_an_array_of_another_shape_is_refused(file):
    for name in ARRAYS_OF[file]:
        array = LOADED[file][1][name]
        others = {
            "shorter": array[:-1],
            "longer": np.concatenate((array, array[-1:])),
            "another dimension": array[None],
            "another type": array.astype(np.int32),
        }
        for how, other in others.items():
            if len(array) and (file, name, how) not in HARMLESS:
                description, arrays = parts_of(FILES[file])
                arrays[name] = other
                with case(name, how), pytest.raises(REFUSALS):
                    read_all(SketchLayer.from_snapshot(description, arrays), file)


@pytest.mark.slow
@pytest.mark.has_long_form
@for_each(("file", "name"), [each for each in ARRAYS if is_checked_where_read(each[1])])
def test_any_words_are_refused_or_safe_to_read(file, name):
    """Checksums that are right for words that nobody wrote."""
    rng = np.random.default_rng(1)
    description, arrays = parts_of(FILES[file])
    true = arrays[name]
    refused = 0
    for number in by_length(range(14, 26), range(40)):
        words = true.copy()
        if number < 20 and len(words):
            words[rng.integers(len(words))] = rng.integers(0, 2**64, dtype=np.uint64)
        else:
            words[:] = rng.integers(0, 2**64, len(words), np.uint64) if number % 2 else 2**64 - 1
        arrays[name] = words
        try:
            read_all(SketchLayer.from_snapshot(description, arrays), file)
        except REFUSALS:
            refused += 1
    if any(part in name for part in ("bounds", "offsets", "highs")):
        assert refused


def leaves(content, path=()):
    """The path of every part of a description."""
    yield path
    if isinstance(content, dict | list):
        for key, value in content.items() if isinstance(content, dict) else enumerate(content):
            yield from leaves(value, (*path, key))


@pytest.mark.slow
@pytest.mark.has_long_form
@for_each("file", FILES)
def test_any_other_content_is_refused_or_safe_to_read(file):
    junk = (None, True, 0, 1, -1, 2, 64, 65, 70, 71, 2**62, 2**70, 1.5, "", "x", "exact", "binned", "bytes")
    values = (*junk, [], [0], {}, {"a": 1}, "numbers", "dictionary")
    true, arrays = parts_of(FILES[file])
    for path in filter(None, leaves(true)):
        for value in values[by_length(len(repr(path)) % 4, 0) :: by_length(4, 1)]:
            description = copy.deepcopy(true)
            node = description
            for step in path[:-1]:
                node = node[step]
            node[path[-1]] = value
            with case(path, value), suppress(*REFUSALS):
                read_all(SketchLayer.from_snapshot(description, arrays), file)


@for_each(
    ("file", "path", "value"),
    [
        ("listed", ["structures", 1, "features", 0, "bounds", "base"], 1),
        ("listed", ["structures", 1, "features", 0, "bounds", "base"], -1),
        ("listed", ["structures", 1, "features", 0, "states", "base"], 1),
        ("listed", ["structures", 1, "features", 0, "elements", "numbers", "width"], 0),
        ("listed", ["structures", 1, "features", 1, "elements", "offsets", "base"], 2**40),
        ("listed", ["structures", 1, "features", 1, "elements", "form"], "dictionary"),
        ("listed", ["structures", 2, "numbers", 0, "base"], 2),
        ("listed", ["structures", 2, "features", 0, "value_field"], "int64_val"),
        ("listed", ["structures", 2, "features", 0, "name"], "note"),
        ("listed", ["presence", "timestamps", "form"], "bytes"),
        ("listed", ["presence", "states", 0, "name"], "note"),
        ("listed", ["presence", "states", 0, "base"], 3),
        ("listed", ["presence", "states"], []),
        ("listed", ["num_entities"], 69),
        ("listed", ["roundings", 0, "name"], "viewing"),
        ("listed", ["presence", "index", "length"], 69),
        ("listed", ["presence", "index", "range"], 0),
        ("listed", ["presence", "index", "range"], 2**63 + 1),
        ("listed", ["presence", "index", "num_buckets"], 0),
        ("listed", ["presence", "index", "num_buckets"], 10),
        ("listed", ["presence", "index", "low_width"], 64),
        ("listed", ["presence", "index", "sample_width"], 65),
        ("sets", ["cut"], {"country": 1}),
        ("sets", ["cut"], {"sizes": -1}),
        ("sets", ["structures", 2, "features"], []),
        ("sets", ["structures", 2, "features", 0, "name"], "sizes"),
        ("sets", ["structures", 2, "features", 0, "name"], "topics"),
        ("sets", ["structures", 2, "features", 0, "name"], "country"),
        ("sets", ["structures", 2, "features", 0, "value_field"], "string_val"),
        ("sets", ["structures", 2, "features", 0, "value_field"], "int64_set_val"),
        ("sets", ["structures", 2, "features", 0, "no_set"], 1),
        ("sets", ["structures", 2, "features", 0, "no_set"], 3),
        ("sets", ["structures", 2, "features", 0, "no_set"], -1),
        ("sets", ["structures", 2, "features", 0, "header_width"], 31),
        ("sets", ["structures", 2, "features", 0, "header_width"], -1),
        ("sets", ["structures", 2, "features", 0, "report", "num_facts"], -1),
        ("sets", ["structures", 2, "num_bits"], -1),
        ("sets", ["structures", 2, "num_bits"], 1000),
        ("sets", ["structures", 2, "num_bits"], 100),
        ("sets", ["structures", 2, "starts", "length"], 69),
        ("sets", ["structures", 2, "num_rows"], 69),
        ("sets", ["structures", 2, "group_rows"], 0),
        ("sets", ["structures", 2, "group_rows"], 1),
        ("sets", ["structures", 2, "group_rows"], 65),
        ("sets", ["structures", 2, "starts", "num_buckets"], -1),
        ("sets", ["structures", 2, "starts", "low_width"], 0),
        ("sets", ["presence", "states"], []),
        ("listed", ["presence", "salt"], ["0"]),
        ("listed", ["presence", "salt"], ["-1", "0"]),
        ("listed", ["structures"], []),
        ("listed", ["presence", "kind"], "shapes"),
        ("sets", ["structures", 1, "kind"], "sets"),
        ("sets", ["structures", 1, "features"], []),
        ("sets", ["structures", 0, "features", 0, "name"], "viewed"),
        ("sets", ["structures", 0, "features", 0, "first_symbols"], []),
        ("sets", ["structures", 0, "features", 0, "first_symbols"], [0, 4, 8]),
    ],
)
def test_a_description_that_does_not_fit_is_refused(file, path, value):
    description, arrays = parts_of(FILES[file])
    *parents, last = path
    node = description
    for step in parents:
        node = node[step]
    node[last] = value
    with pytest.raises(REFUSALS):
        read_all(SketchLayer.from_snapshot(description, arrays), file)


def test_buckets_of_timestamps_that_the_rows_do_not_have_are_refused():
    """Rows would expire by the newest timestamp of another bucket."""
    description, arrays = parts_of(FILES["sets"])
    true = arrays["presence.bucket_bounds"]
    swapped, joined, missing = true[:, ::-1].copy(), true.copy(), np.delete(true, 5, axis=0)
    joined[:-1, 1] = true[1:, 0]
    for bounds in (swapped, joined, missing, true[:-1], true + 1, true[:0, :1]):
        with pytest.raises(REFUSALS):
            read_all(
                SketchLayer.from_snapshot(description, arrays | {"presence.bucket_bounds": bounds}), "sets"
            )


def test_strings_that_are_none_are_refused_when_they_are_read():
    description, arrays = parts_of(FILES["listed"])
    content = arrays["columns.1.content.words"].copy()
    content.view(np.uint8)[:] = 0xFF
    arrays["columns.1.content.words"] = content
    layer = SketchLayer.from_snapshot(description, arrays)
    with pytest.raises(ValueError, match="contradict"):
        read_all(layer, "listed")


@pytest.mark.slow
@pytest.mark.has_long_form
@pytest.mark.parametrize("file", FILES)
def test_every_changed_byte_is_found_at_the_latest_when_it_is_read(tmp_path, truth, file):
    """Headers and small arrays when the file is opened, blocks of packed arrays when they are used.

    Every byte of the packed arrays in the long form, else one of every fourth word.
    """
    content = FILES[file].read_bytes()
    snapshot = published(tmp_path, 3, content)
    arrays = locate(content, len(content), file)
    start, end = min(array.start for array in arrays.values()), len(content)
    first_packed = min(array.start for name, array in arrays.items() if is_checked_where_read(name)) - start
    found, step = 0, by_length(32, 1)
    packed = range(start + first_packed, end, step)
    with Path(snapshot.where()).open("r+b", buffering=0) as opened:
        for offset in [*range(0, start, 97), *packed]:
            os.pwrite(opened.fileno(), bytes([content[offset] ^ 0xFF]), offset)
            try:
                assert read_all(open_layers(snapshot)[0], file) == truth[file]
            except DamagedFileError:
                found += 1
            with pytest.raises(DamagedFileError, match=str(tmp_path)):
                open_layers(snapshot, check_all=True)[0]
            os.pwrite(opened.fileno(), content[offset : offset + 1], offset)
    assert Path(snapshot.where()).read_bytes() == content
    # The table is read in part only: of 10 words the 70 entities use most.
    assert found >= len(packed) - 80 // step
