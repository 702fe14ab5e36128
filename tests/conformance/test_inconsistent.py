"""A snapshot whose checksums are right and whose parts do not fit each other is refused when it is opened.

The refusal is a `ValueError`, `KeyError` or `TypeError`, which the view reports as a damaged file. What
is not refused must be safe to read.
"""

import copy
from pathlib import Path

import numpy as np
import pytest

from feast_sketch_store.layers import SketchLayer
from tests.helpers.snapshots import load

REFUSALS = (ValueError, KeyError, TypeError)
GOLDEN = Path(__file__).parent / "golden" / "v1.base.safetensors"
# The checksums of the table are for `BlockChecks`; a layer does not look at them.
ARRAYS = [name for name in load(GOLDEN)[1] if name != "table.checksums"]
ORDER = Path(__file__).parent / "golden" / "v1.order.safetensors"


@pytest.fixture
def parts():
    """The description and the arrays of a layer, free to be changed."""
    description, arrays = load(GOLDEN)
    return copy.deepcopy(description["layer"]), dict(arrays)


def test_the_parts_fit_as_they_are(parts):
    assert SketchLayer.from_snapshot(*parts).num_entities == 6


@pytest.mark.parametrize(
    "key", ["num_words", "salt", "num_entities", "max_event_timestamp", "features", "shapes"]
)
def test_a_missing_entry_is_refused(parts, key):
    del parts[0][key]
    with pytest.raises(KeyError):
        SketchLayer.from_snapshot(*parts)


@pytest.mark.parametrize("where", ["features", "shapes"])
@pytest.mark.parametrize(
    "key", ["first_word", "num_symbols", "facts_per_hash", "first_symbols", "false_positive_rate"]
)
def test_a_missing_entry_of_a_range_is_refused(parts, where, key):
    del parts[0][where][0][key]
    with pytest.raises(KeyError):
        SketchLayer.from_snapshot(*parts)


@pytest.mark.parametrize("name", ARRAYS)
def test_a_missing_array_is_refused(parts, name):
    del parts[1][name]
    with pytest.raises(REFUSALS):
        SketchLayer.from_snapshot(*parts)


@pytest.mark.parametrize(
    ("name", "resized"),
    [
        pytest.param(name, resized, id=f"{name} {how}")
        for name in ARRAYS
        for how, resized in [
            ("shorter", lambda array: array[:-1]),
            ("longer", lambda array: np.concatenate((array, array[-1:]))),
            ("another dimension", lambda array: array[None]),
        ]
        # A bucket that no shape names does no harm.
        if (name, how) != ("bucket_bounds", "longer")
    ],
)
def test_an_array_of_another_shape_is_refused(parts, name, resized):
    parts[1][name] = resized(parts[1][name])
    with pytest.raises(REFUSALS):
        SketchLayer.from_snapshot(*parts)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("table", np.uint8),
        ("table", np.int32),
        ("table", np.int64),
        ("vocabulary.0.offsets", np.uint8),
        ("vocabulary.0.offsets", np.int32),
        ("shapes.0.states", np.int64),
    ],
)
def test_an_array_of_another_type_is_refused(parts, name, dtype):
    """Its bytes would be taken for something else, past its end or at every read anew."""
    parts[1][name] = parts[1][name].astype(dtype)
    with pytest.raises(REFUSALS):
        SketchLayer.from_snapshot(*parts)


def change(path, value):
    """A change of the description at a path, with a readable id."""
    return pytest.param(path, value, id=f"{'.'.join(map(str, path))} = {value!r}")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        change(["num_words"], 8),
        change(["num_words"], 10),
        change(["num_words"], 0),
        change(["num_words"], -9),
        change(["num_words"], 9.0),
        change(["num_words"], "9"),
        change(["num_words"], None),
        change(["salt"], []),
        change(["salt"], ["0"]),
        change(["salt"], ["0", "0", "0"]),
        change(["salt"], ["x", "0"]),
        change(["salt"], [0, 0]),
        change(["salt"], ["-1", "0"]),
        change(["salt"], ["1" + "0" * 16, "0"]),
        change(["num_entities"], "6"),
        change(["max_event_timestamp"], "now"),
        change(["max_event_timestamp"], None),
        change(["features"], None),
        change(["features"], {}),
        change(["features"], []),
        change(["features", 0], None),
        change(["features", 0, "name"], []),
        change(["features", 0, "name"], "sizes"),
        change(["features", 0, "value_field"], "nonsense_val"),
        change(["features", 0, "value_field"], "int64_set_val"),  # of a vocabulary of strings
        change(["features", 1, "value_field"], "string_set_val"),  # of a vocabulary of numbers
        change(["features", 0, "value_field"], None),
        change(["features", 0, "first_word"], -1),
        change(["features", 0, "first_word"], 5),
        change(["features", 0, "first_word"], 2**60),
        change(["features", 0, "first_word"], 1.5),
        change(["features", 0, "first_word"], "0"),
        change(["features", 0, "num_symbols"], 3),
        change(["features", 0, "num_symbols"], 2**60),
        change(["features", 0, "facts_per_hash"], []),
        change(["features", 0, "facts_per_hash"], [6] * 65),
        change(["features", 0, "facts_per_hash"], [5, 6]),
        change(["features", 0, "facts_per_hash"], [6, -1]),
        change(["features", 0, "facts_per_hash"], [6, 1.5]),
        change(["features", 0, "facts_per_hash"], ["6"]),
        change(["features", 0, "facts_per_hash"], 7),
        change(["features", 0, "first_symbols"], [0]),
        change(["features", 0, "first_symbols"], [1] * 7),
        change(["features", 0, "first_symbols"], [0, 0, 0, 0, 0, 0, 4]),
        change(["features", 0, "first_symbols"], [0, 0, 0, 0, 2, 1, 3]),
        change(["features", 0, "first_symbols"], [0, 0, 0, 0, 0, 0, -1]),
        change(["features", 0, "first_symbols"], [0, 0, 0, 0, 0, 0, 1.0]),
        change(["features", 0, "first_symbols"], None),
        change(["features", 0, "false_positive_rate"], 0.0),
        change(["features", 0, "false_positive_rate"], 1.5),
        change(["cut"], None),
        change(["cut"], ["viewed"]),
        change(["cut"], {"unknown": 1}),
        change(["cut"], {"viewed": -1}),
        change(["cut"], {"viewed": "1"}),
        change(["shapes"], []),
        change(["shapes"], None),
        change(["shapes", 0, "features"], []),
        change(["shapes", 0, "features"], ["viewed", "sizes", "country", "unknown"]),
        change(["shapes", 0, "features"], ["viewed", "viewed", "country", "member"]),
        change(["shapes", 0, "num_symbols"], 5),
        change(["shapes", 0, "num_symbols"], -6),
        change(["shapes", 0, "facts_per_hash"], []),
        change(["shapes", 0, "first_word"], 99),
    ],
)
def test_a_description_that_does_not_fit_is_refused(parts, path, value):
    description, arrays = parts
    *parents, last = path
    place = description
    for step in parents:
        place = place[step]
    place[last] = value
    with pytest.raises(REFUSALS):
        SketchLayer.from_snapshot(description, arrays)


def test_states_that_do_not_exist_are_refused(parts):
    states = parts[1]["shapes.0.states"].copy()
    states[0, 0] = 4
    parts[1]["shapes.0.states"] = states
    with pytest.raises(REFUSALS):
        SketchLayer.from_snapshot(*parts)


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
    """No error but the ones that the view expects, and no read that fails later."""
    hashes = load(ORDER)[1]["entity_hashes"]
    for junk in (None, True, False, 0, 1, -1, 65, 1000, 1.5, "", "x", [], [0], {}, {"a": 1}):
        description = copy.deepcopy(parts[0])
        place = description
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = junk
        try:
            layer = SketchLayer.from_snapshot(description, parts[1])
        except REFUSALS:
            continue
        for name in ("viewed", "sizes", "country", "member"):
            for feature in layer.read(hashes, [name], 0).features.values():
                feature.decoder.values(feature.states, feature.indptr, feature.symbols)
