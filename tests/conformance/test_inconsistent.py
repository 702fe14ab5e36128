"""A snapshot whose checksums are right and whose parts contradict each other is refused, or safe to read.

The refusal is a `ValueError`, `KeyError` or `TypeError`, which the view reports as a damaged file. What is
wrong with a filter shows when the file is opened. Packed arrays of files that list their rows are not read
then, so what is wrong with them shows when they are read.
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
# What is read of each file, and how many rows it has.
NAMES = {
    "base": ["viewed", "sizes", "country", "member"],
    "listed": ["viewed", "sizes", "note", "country", "weight"],
    "sets": ["viewed", "sizes", "topics", "country", "bought"],
    "counts": ["viewed", "bought"],
    "clustered": ["viewed", "sizes", "topics"],
}
NUM_ROWS = {"base": 6, "listed": 70, "sets": 70, "counts": 50, "clustered": 60}
LISTING = ("listed", "sets", "counts")
FILES = {name: GOLDEN / f"v1.{name}.sketch" for name in NAMES}
# The checksums of the table are for `BlockChecks`; a layer does not look at them.
ARRAYS = {
    file: [name for name in load(path)[1] if not name.endswith(".checksums")] for file, path in FILES.items()
}
HASHES = user_hashes(range(90))
REFUSALS = (ValueError, KeyError, TypeError)


def read_all(layer, file):
    """Everything of all rows, as bytes; the decoders must not fail."""
    answer = layer.read(HASHES, NAMES[file])
    values = [[v and v.SerializeToString() for v in feast_values(f)] for f in answer.features.values()]
    weights = [f.csr.weights for f in answer.features.values()]
    counts = [None if own is None else own.tolist() for own in weights]
    return answer.found.tolist(), answer.event_timestamps.tolist(), values, counts


def use(file, description, arrays):
    """Opens a file and, if it need not be refused when it is opened, reads all of it."""
    layer = SketchLayer.from_snapshot(description, arrays)
    if file != "base":
        read_all(layer, file)


def inside(description, path):
    """The part of a description at a path."""
    for step in path:
        description = description[int(step) if isinstance(description, list) else step]
    return description


def put(description, path, value):
    """Replaces the part of a description at a path."""
    *parents, last = path
    node = inside(description, parents)
    node[int(last) if isinstance(node, list) else last] = value


def leaves(content, path=()):
    """The path of every part of a description."""
    yield path
    if isinstance(content, dict | list):
        for key, value in content.items() if isinstance(content, dict) else enumerate(content):
            yield from leaves(value, (*path, key))


@pytest.fixture(scope="module")
def truth():
    """What each file reads as."""
    return {file: read_all(SketchLayer.from_snapshot(*parts_of(path)), file) for file, path in FILES.items()}


@for_each("file", FILES)
def test_the_parts_fit_as_they_are(file, truth):
    assert len(truth[file][0]) == NUM_ROWS[file]
    assert read_all(SketchLayer.from_snapshot(*parts_of(FILES[file])), file) == truth[file]


@for_each(
    "path",
    [
        *("num_entities", "max_event_timestamp", "presence", "presence.kind", "presence.shapes"),
        "structures",
        *(f"structures.bloom.{key}" for key in ("num_words", "salt", "features", "rows")),
        *(
            f"structures.bloom.{where}.0.{key}"
            for where in ("features", "rows")
            for key in ("first_word", "num_symbols", "num_hashes", "first_symbols", "report")
        ),
    ],
)
def test_a_missing_entry_is_refused(path):
    description, arrays = parts_of(FILES["base"])
    *parents, last = path.split(".")
    del inside(description, parents)[last]
    with pytest.raises(REFUSALS):
        SketchLayer.from_snapshot(description, arrays)


@for_each("file", FILES)
def test_a_missing_array_is_refused(file):
    """Words of listed rows may be missing if there are none, so that may show when they are read."""
    for name in ARRAYS[file]:
        description, arrays = parts_of(FILES[file])
        del arrays[name]
        with case(name), pytest.raises(REFUSALS):
            use(file, description, arrays)


# What no other part names does no harm.
HARMLESS = {
    ("base", "presence.bucket_bounds", "longer"),
    ("listed", "structures.columns.features.1.elements.content.words", "longer"),
    *((file, "presence.bucket_bounds", "empty") for file in ("sets", "counts", "clustered")),
}


@for_each("file", FILES)
def test_an_array_of_another_shape_or_type_is_refused(file):
    """The bytes of another type would be taken for something else, past its end or at every read anew."""
    for name in ARRAYS[file]:
        description, arrays = parts_of(FILES[file])
        array = arrays[name]
        others = {
            "shorter": array[:-1],
            "empty": array[:0],
            "longer": np.concatenate((array, array[-1:])),
            "another dimension": array[None],
            **{dtype: array.astype(dtype) for dtype in ("u1", "i4", "i8", "f4") if array.dtype != dtype},
        }
        for how, other in others.items():
            if len(array) and (file, name, how) not in HARMLESS:
                with case(name, how), pytest.raises(REFUSALS):
                    use(file, description, arrays | {name: other})


WRONG = {
    "base": {
        "num_entities": ["6"],
        "max_event_timestamp": ["now", None],
        "cut": [None, ["viewed"], {"unknown": 1}, {"viewed": -1}, {"viewed": "1"}],
        "structures": [None, [], {}, {"bitmap": {}}],
        "structures.bloom": [None],
        "structures.bloom.num_words": [8, 10, 0, -9, 9.0, "9", None],
        "structures.bloom.salt": [
            *([], ["0"], ["0", "0", "0"], ["x", "0"], [0, 0], ["-1", "0"], ["1" + "0" * 16, "0"]),
        ],
        "structures.bloom.features": [None, {}, []],
        "structures.bloom.features.0": [None],
        "structures.bloom.features.0.name": [[], "sizes"],
        # Of a vocabulary of strings, and of one of numbers.
        "structures.bloom.features.0.value_field": ["nonsense_val", "int64_set_val", None],
        "structures.bloom.features.1.value_field": ["string_set_val"],
        "structures.bloom.features.0.first_word": [-1, 5, 2**60, 1.5, "0"],
        "structures.bloom.features.0.num_symbols": [3, 2**60],
        "structures.bloom.features.0.num_hashes": [65, 0, 6, 7.0],
        "structures.bloom.features.0.first_symbols": [
            *([0], [1] * 7, [0, 0, 0, 0, 0, 0, 4], [0, 0, 0, 0, 2, 1, 3], [0, 0, 0, 0, 0, 0, -1]),
            *([0, 0, 0, 0, 0, 0, 1.0], None),
        ],
        "structures.bloom.features.0.report.num_facts": [-1, 1.5, 5],
        "structures.bloom.features.0.report.num_ones": [41, 43, "42"],
        "structures.bloom.features.0.report.false_positive_rate": [0.0, 1.5],
        "structures.bloom.rows": [[], None],
        "structures.bloom.rows.0.num_symbols": [5, -6],
        "structures.bloom.rows.0.report.num_ones": [0],
        "structures.bloom.rows.0.first_word": [99],
        "presence": [None],
        "presence.kind": ["list", "bloom", None, ["shapes"]],
        "presence.shapes": [[], None],
        "presence.shapes.0": [None, []],
        "presence.shapes.0.features": [
            [],
            ["viewed", "sizes", "country", "unknown"],
            ["viewed", "viewed", "country", "member"],
        ],
    },
    "listed": {
        "num_entities": [69],
        "roundings.0.name": ["viewing"],
        "structures": [[]],
        "structures.columns.features.0.bounds.base": [1, -1],
        "structures.columns.features.0.states.base": [1],
        "structures.columns.features.0.elements.numbers.width": [0],
        "structures.columns.features.1.elements.offsets.base": [2**40],
        "structures.columns.features.1.elements.form": ["dictionary"],
        "structures.scalars.numbers.0.base": [2],
        "structures.scalars.features.0.value_field": ["int64_val"],
        "structures.scalars.features.0.name": ["note"],
        "presence.kind": ["shapes"],
        "presence.salt": [["0"], ["-1", "0"]],
        "presence.timestamps.form": ["bytes"],
        "presence.states": [[]],
        "presence.states.0.name": ["note"],
        "presence.states.0.base": [3],
        "presence.index.length": [69],
        "presence.index.range": [0, 2**63 + 1],
        "presence.index.num_buckets": [0, 10],
        "presence.index.low_width": [64],
        "presence.index.sample_width": [65],
    },
    "sets": {
        "cut": [{"country": 1}, {"sizes": -1}],
        "structures.bloom.features.0.name": ["viewed"],
        "structures.bloom.features.0.first_symbols": [[], [0, 4, 8]],
        "structures.scalars.features": [[]],
        "structures.sets.features": [[]],
        "structures.sets.features.0.name": ["sizes", "topics", "country"],
        "structures.sets.features.0.value_field": ["string_val", "int64_set_val"],
        "structures.sets.features.0.no_set": [1, 3, -1],
        "structures.sets.features.0.header_width": [31, -1],
        "structures.sets.features.0.report.num_facts": [-1],
        "structures.sets.num_bits": [-1, 1000, 100],
        "structures.sets.num_rows": [69],
        "structures.sets.group_rows": [0, 1, 65],
        "structures.sets.starts.length": [69],
        "structures.sets.starts.num_buckets": [-1],
        "structures.sets.starts.low_width": [0],
        "presence.states": [[]],
    },
}


@for_each("file", WRONG)
def test_a_description_that_does_not_fit_is_refused(file):
    for path, values in WRONG[file].items():
        for value in values:
            description, arrays = parts_of(FILES[file])
            put(description, path.split("."), value)
            with case(path, value), pytest.raises(REFUSALS):
                use(file, description, arrays)


def test_an_unknown_kind_of_structure_is_refused_by_its_name():
    parts = parts_of(FILES["base"])
    parts[0]["structures"]["weighted bloom"] = parts[0]["structures"].pop("bloom")
    with pytest.raises(ValueError, match="a structure of the kind 'weighted bloom', which this process does"):
        SketchLayer.from_snapshot(*parts)


def test_more_facts_than_a_table_has_bits_for_are_refused():
    parts = parts_of(FILES["base"])
    symbols = parts[0]["structures"]["bloom"]["features"][0]
    symbols["report"] |= {"num_facts": 10**9, "num_ones": 10**9 * symbols["num_hashes"]}
    with pytest.raises(ValueError, match="fewer bits than the number of facts"):
        SketchLayer.from_snapshot(*parts)


def test_states_that_do_not_exist_are_refused():
    description, arrays = parts_of(FILES["base"])
    states = arrays["presence.shapes.0.states"].copy()
    states[0, 0] = 4
    with pytest.raises(REFUSALS):
        SketchLayer.from_snapshot(description, arrays | {"presence.shapes.0.states": states})


def test_buckets_of_timestamps_that_the_rows_do_not_have_are_refused():
    """Rows would expire by the newest timestamp of another bucket."""
    description, arrays = parts_of(FILES["sets"])
    true = arrays["presence.bucket_bounds"]
    swapped, joined, missing = true[:, ::-1].copy(), true.copy(), np.delete(true, 5, axis=0)
    joined[:-1, 1] = true[1:, 0]
    for bounds in (swapped, joined, missing, true[:-1], true + 1, true[:0, :1]):
        with pytest.raises(REFUSALS):
            use("sets", description, arrays | {"presence.bucket_bounds": bounds})


@for_each(
    ("file", "name"),
    [
        ("listed", "structures.columns.features.1.elements.content.words"),  # bytes that are no string
        ("clustered", "structures.clustered.clusters.words"),  # rows of a cluster that is not there
    ],
)
def test_words_of_ones_only_are_refused_when_they_are_read(file, name):
    description, arrays = parts_of(FILES[file])
    words = np.full_like(arrays[name], 2**64 - 1)
    layer = SketchLayer.from_snapshot(description, arrays | {name: words})
    with pytest.raises(ValueError, match="contradict"):
        read_all(layer, file)


@pytest.mark.slow
@pytest.mark.has_long_form
@for_each(
    ("file", "name"),
    [(file, name) for file in LISTING for name in ARRAYS[file] if is_checked_where_read(name)],
)
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


JUNK = (
    *(None, True, False, 0, 1, -1, 2, 64, 65, 70, 71, 1000, 2**62, 2**70, 1.5, -0.5),
    *("", "x", "exact", "binned", "bytes", "bloom", "numbers", "dictionary"),
    *([], [0], [0, 6], [1.0], {}, {"a": 1}),
)


@pytest.mark.slow
@pytest.mark.has_long_form
@pytest.mark.parametrize("file", FILES)
def test_any_other_content_is_refused_or_safe_to_read(file):
    """No error but the ones that the view expects; what a filter does not refuse when opened never fails."""
    true, arrays = parts_of(FILES[file])
    expected = () if file == "base" else REFUSALS
    for path in filter(None, leaves(true)):
        step = by_length(6 if file in LISTING else 3, 1)
        for value in JUNK[len(repr(path)) % step :: step]:
            description = copy.deepcopy(true)
            put(description, path, value)
            with case(path, value):
                try:
                    layer = SketchLayer.from_snapshot(description, arrays)
                except REFUSALS:
                    continue
                with suppress(*expected):
                    read_all(layer, file)


@pytest.mark.slow
@pytest.mark.has_long_form
@pytest.mark.parametrize("file", LISTING)
def test_every_changed_byte_is_found_at_the_latest_when_it_is_read(tmp_path, truth, file):
    """Headers and small arrays when the file is opened, blocks of packed arrays when they are used.

    Every third byte of the packed arrays in the long form, else one of every eighth word.
    """
    content = FILES[file].read_bytes()
    snapshot = published(tmp_path, 3, content)
    arrays = locate(content, len(content), file)
    start, end = min(array.start for array in arrays.values()), len(content)
    first_packed = min(array.start for name, array in arrays.items() if is_checked_where_read(name)) - start
    found, step = 0, by_length(64, 3)
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
