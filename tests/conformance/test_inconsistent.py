"""A snapshot whose checksums are right and whose parts do not fit each other is refused when it is opened.

The refusal is a `ValueError`, `KeyError` or `TypeError`, which the view reports as a damaged file. What
is not refused must be safe to read.
"""

import copy
import itertools
from pathlib import Path

import numpy as np
import pytest

from feast_sketch_store.layers import SketchLayer
from tests.helpers.cases import case
from tests.helpers.snapshots import load

REFUSALS = (ValueError, KeyError, TypeError)
GOLDEN = Path(__file__).parent / "golden" / "v1.base.safetensors"
# The checksums of the table are for `BlockChecks`; a layer does not look at them.
ARRAYS = [name for name in load(GOLDEN)[1] if not name.endswith(".checksums")]
ORDER = Path(__file__).parent / "golden" / "v1.order.safetensors"


BLOOM = ["structures", 0]


def inside(description, path):
    """The part of a description at a path."""
    for step in path:
        description = description[step]
    return description


@pytest.fixture
def parts():
    """The description and the arrays of a layer, free to be changed."""
    description, arrays = load(GOLDEN)
    return copy.deepcopy(description["layer"]), dict(arrays)


def test_the_parts_fit_as_they_are(parts):
    assert SketchLayer.from_snapshot(*parts).num_entities == 6


@pytest.mark.parametrize(
    "path",
    [
        ["num_entities"],
        ["max_event_timestamp"],
        ["presence"],
        ["presence", "kind"],
        ["presence", "shapes"],
        ["structures"],
        *([*BLOOM, key] for key in ("kind", "num_words", "salt", "features", "rows")),
    ],
    ids=str,
)
def test_a_missing_entry_is_refused(parts, path):
    del inside(parts[0], path[:-1])[path[-1]]
    with pytest.raises(KeyError):
        SketchLayer.from_snapshot(*parts)


@pytest.mark.parametrize("where", ["features", "rows"])
@pytest.mark.parametrize("key", ["first_word", "num_symbols", "num_hashes", "first_symbols", "report"])
def test_a_missing_entry_of_a_range_is_refused(parts, where, key):
    del inside(parts[0], BLOOM)[where][0][key]
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
        if (name, how) != ("presence.bucket_bounds", "longer")
    ],
)
def test_an_array_of_another_shape_is_refused(parts, name, resized):
    parts[1][name] = resized(parts[1][name])
    with pytest.raises(REFUSALS):
        SketchLayer.from_snapshot(*parts)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("bloom.table.words", np.uint8),
        ("bloom.table.words", np.int32),
        ("bloom.table.words", np.int64),
        ("bloom.0.vocabulary.packed", np.uint8),
        ("bloom.0.vocabulary.packed", np.int64),
        ("bloom.0.vocabulary.shape", np.int32),
        ("presence.0.states", np.int64),
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
        change([*BLOOM, "num_words"], 8),
        change([*BLOOM, "num_words"], 10),
        change([*BLOOM, "num_words"], 0),
        change([*BLOOM, "num_words"], -9),
        change([*BLOOM, "num_words"], 9.0),
        change([*BLOOM, "num_words"], "9"),
        change([*BLOOM, "num_words"], None),
        change([*BLOOM, "salt"], []),
        change([*BLOOM, "salt"], ["0"]),
        change([*BLOOM, "salt"], ["0", "0", "0"]),
        change([*BLOOM, "salt"], ["x", "0"]),
        change([*BLOOM, "salt"], [0, 0]),
        change([*BLOOM, "salt"], ["-1", "0"]),
        change([*BLOOM, "salt"], ["1" + "0" * 16, "0"]),
        change(["num_entities"], "6"),
        change(["max_event_timestamp"], "now"),
        change(["max_event_timestamp"], None),
        change([*BLOOM, "features"], None),
        change([*BLOOM, "features"], {}),
        change([*BLOOM, "features"], []),
        change([*BLOOM, "features", 0], None),
        change([*BLOOM, "features", 0, "name"], []),
        change([*BLOOM, "features", 0, "name"], "sizes"),
        change([*BLOOM, "features", 0, "value_field"], "nonsense_val"),
        change([*BLOOM, "features", 0, "value_field"], "int64_set_val"),  # of a vocabulary of strings
        change([*BLOOM, "features", 1, "value_field"], "string_set_val"),  # of a vocabulary of numbers
        change([*BLOOM, "features", 0, "value_field"], None),
        change([*BLOOM, "features", 0, "first_word"], -1),
        change([*BLOOM, "features", 0, "first_word"], 5),
        change([*BLOOM, "features", 0, "first_word"], 2**60),
        change([*BLOOM, "features", 0, "first_word"], 1.5),
        change([*BLOOM, "features", 0, "first_word"], "0"),
        change([*BLOOM, "features", 0, "num_symbols"], 3),
        change([*BLOOM, "features", 0, "num_symbols"], 2**60),
        change([*BLOOM, "features", 0, "report", "facts_per_hash"], []),
        change([*BLOOM, "features", 0, "report", "facts_per_hash"], [6] * 65),
        change([*BLOOM, "features", 0, "report", "facts_per_hash"], [5, 6]),
        change([*BLOOM, "features", 0, "report", "facts_per_hash"], [6, -1]),
        change([*BLOOM, "features", 0, "report", "facts_per_hash"], [6, 1.5]),
        change([*BLOOM, "features", 0, "report", "facts_per_hash"], ["6"]),
        change([*BLOOM, "features", 0, "report", "facts_per_hash"], 7),
        change([*BLOOM, "features", 0, "num_hashes"], 0),
        change([*BLOOM, "features", 0, "num_hashes"], 6),
        change([*BLOOM, "features", 0, "num_hashes"], 7.0),
        change([*BLOOM, "features", 0, "first_symbols"], [0]),
        change([*BLOOM, "features", 0, "first_symbols"], [1] * 7),
        change([*BLOOM, "features", 0, "first_symbols"], [0, 0, 0, 0, 0, 0, 4]),
        change([*BLOOM, "features", 0, "first_symbols"], [0, 0, 0, 0, 2, 1, 3]),
        change([*BLOOM, "features", 0, "first_symbols"], [0, 0, 0, 0, 0, 0, -1]),
        change([*BLOOM, "features", 0, "first_symbols"], [0, 0, 0, 0, 0, 0, 1.0]),
        change([*BLOOM, "features", 0, "first_symbols"], None),
        change([*BLOOM, "features", 0, "report", "false_positive_rate"], 0.0),
        change([*BLOOM, "features", 0, "report", "false_positive_rate"], 1.5),
        change(["cut"], None),
        change(["cut"], ["viewed"]),
        change(["cut"], {"unknown": 1}),
        change(["cut"], {"viewed": -1}),
        change(["cut"], {"viewed": "1"}),
        change(["structures"], None),
        change(["structures"], []),
        change(["structures"], {}),
        change([*BLOOM], None),
        change([*BLOOM, "kind"], None),
        change([*BLOOM, "kind"], "bitmap"),
        change([*BLOOM, "kind"], "sets"),
        change([*BLOOM, "kind"], ["bloom"]),
        change(["presence"], None),
        change(["presence", "kind"], "list"),
        change(["presence", "kind"], "bloom"),
        change(["presence", "kind"], None),
        change(["presence", "kind"], ["shapes"]),
        change(["presence", "shapes"], []),
        change(["presence", "shapes"], None),
        change(["presence", "shapes", 0], []),
        change(["presence", "shapes", 0], ["viewed", "sizes", "country", "unknown"]),
        change(["presence", "shapes", 0], ["viewed", "viewed", "country", "member"]),
        change([*BLOOM, "rows"], []),
        change([*BLOOM, "rows"], None),
        change([*BLOOM, "rows", 0, "num_symbols"], 5),
        change([*BLOOM, "rows", 0, "num_symbols"], -6),
        change([*BLOOM, "rows", 0, "report", "facts_per_hash"], []),
        change([*BLOOM, "rows", 0, "first_word"], 99),
    ],
)
def test_a_description_that_does_not_fit_is_refused(parts, path, value):
    description, arrays = parts
    inside(description, path[:-1])[path[-1]] = value
    with pytest.raises(REFUSALS):
        SketchLayer.from_snapshot(description, arrays)


def test_an_unknown_kind_of_structure_is_refused_by_its_name(parts):
    inside(parts[0], BLOOM)["kind"] = "weighted bloom"
    with pytest.raises(ValueError, match="a structure of the kind 'weighted bloom', which this process does"):
        SketchLayer.from_snapshot(*parts)


@pytest.mark.parametrize("twice", [[0, 0], [0, 0, 0]], ids=str)
def test_a_structure_that_is_there_twice_is_refused(parts, twice):
    parts[0]["structures"] = [copy.deepcopy(parts[0]["structures"][number]) for number in twice]
    with pytest.raises(ValueError, match="keep the same feature, or are of the same kind"):
        SketchLayer.from_snapshot(*parts)


def test_states_that_do_not_exist_are_refused(parts):
    states = parts[1]["presence.0.states"].copy()
    states[0, 0] = 4
    parts[1]["presence.0.states"] = states
    with pytest.raises(REFUSALS):
        SketchLayer.from_snapshot(*parts)


def leaves(content, path=()):
    """The path of every part of a description."""
    yield path
    if isinstance(content, dict | list):
        for key, value in content.items() if isinstance(content, dict) else enumerate(content):
            yield from leaves(value, (*path, key))


def test_any_other_content_is_refused_or_safe_to_read(parts):
    """No error but the ones that the view expects, and no read that fails later."""
    hashes = load(ORDER)[1]["entity_hashes"]
    junk = (None, True, False, 0, 1, -1, 65, 1000, 1.5, "", "x", [], [0], {}, {"a": 1})
    for path, value in itertools.product(filter(None, leaves(parts[0])), junk):
        description = copy.deepcopy(parts[0])
        inside(description, path[:-1])[path[-1]] = value
        with case(path, value):
            try:
                layer = SketchLayer.from_snapshot(description, parts[1])
            except REFUSALS:
                continue
            for name in ("viewed", "sizes", "country", "member"):
                for feature in layer.read(hashes, [name], 0).features.values():
                    feature.decoder.values(feature.states, feature.indptr, feature.symbols)


def test_more_facts_than_a_table_has_bits_for_are_refused(parts):
    symbols = inside(parts[0], [*BLOOM, "features", 0])
    symbols["report"]["facts_per_hash"] = [10**9] * symbols["num_hashes"]
    with pytest.raises(ValueError, match="fewer bits than the number of facts"):
        SketchLayer.from_snapshot(*parts)
