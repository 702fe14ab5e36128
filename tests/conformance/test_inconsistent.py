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
from tests.helpers.cases import case, for_each
from tests.helpers.snapshots import load, parts_of
from tests.oracle.messages import feast_values

REFUSALS = (ValueError, KeyError, TypeError)
GOLDEN = Path(__file__).parent / "golden" / "v1.base.sketch"
# The checksums of the table are for `BlockChecks`; a layer does not look at them.
ARRAYS = [name for name in load(GOLDEN)[1] if not name.endswith(".checksums")]
ORDER = Path(__file__).parent / "golden" / "v1.order.sketch"


BLOOM = ["structures", 0]


def inside(description, path):
    """The part of a description at a path."""
    for step in path:
        description = description[step]
    return description


def test_the_parts_fit_as_they_are():
    parts = parts_of(GOLDEN)
    assert SketchLayer.from_snapshot(*parts).num_entities == 6


@for_each(
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
)
def test_a_missing_entry_is_refused(path):
    parts = parts_of(GOLDEN)
    del inside(parts[0], path[:-1])[path[-1]]
    with pytest.raises(KeyError):
        SketchLayer.from_snapshot(*parts)


@for_each("where", ["features", "rows"])
@for_each("key", ["first_word", "num_symbols", "num_hashes", "first_symbols", "report"])
def test_a_missing_entry_of_a_range_is_refused(where, key):
    parts = parts_of(GOLDEN)
    del inside(parts[0], BLOOM)[where][0][key]
    with pytest.raises(KeyError):
        SketchLayer.from_snapshot(*parts)


@for_each("name", ARRAYS)
def test_a_missing_array_is_refused(name):
    parts = parts_of(GOLDEN)
    del parts[1][name]
    with pytest.raises(REFUSALS):
        SketchLayer.from_snapshot(*parts)


@for_each(
    ("name", "how", "resized"),
    [
        (name, how, resized)
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
def test_an_array_of_another_shape_is_refused(name, how, resized):
    parts = parts_of(GOLDEN)
    parts[1][name] = resized(parts[1][name])
    with pytest.raises(REFUSALS):
        SketchLayer.from_snapshot(*parts)


@for_each(
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
def test_an_array_of_another_type_is_refused(name, dtype):
    """Its bytes would be taken for something else, past its end or at every read anew."""
    parts = parts_of(GOLDEN)
    parts[1][name] = parts[1][name].astype(dtype)
    with pytest.raises(REFUSALS):
        SketchLayer.from_snapshot(*parts)


@for_each(
    ("path", "value"),
    [
        ([*BLOOM, "num_words"], 8),
        ([*BLOOM, "num_words"], 10),
        ([*BLOOM, "num_words"], 0),
        ([*BLOOM, "num_words"], -9),
        ([*BLOOM, "num_words"], 9.0),
        ([*BLOOM, "num_words"], "9"),
        ([*BLOOM, "num_words"], None),
        ([*BLOOM, "salt"], []),
        ([*BLOOM, "salt"], ["0"]),
        ([*BLOOM, "salt"], ["0", "0", "0"]),
        ([*BLOOM, "salt"], ["x", "0"]),
        ([*BLOOM, "salt"], [0, 0]),
        ([*BLOOM, "salt"], ["-1", "0"]),
        ([*BLOOM, "salt"], ["1" + "0" * 16, "0"]),
        (["num_entities"], "6"),
        (["max_event_timestamp"], "now"),
        (["max_event_timestamp"], None),
        ([*BLOOM, "features"], None),
        ([*BLOOM, "features"], {}),
        ([*BLOOM, "features"], []),
        ([*BLOOM, "features", 0], None),
        ([*BLOOM, "features", 0, "name"], []),
        ([*BLOOM, "features", 0, "name"], "sizes"),
        ([*BLOOM, "features", 0, "value_field"], "nonsense_val"),
        ([*BLOOM, "features", 0, "value_field"], "int64_set_val"),  # of a vocabulary of strings
        ([*BLOOM, "features", 1, "value_field"], "string_set_val"),  # of a vocabulary of numbers
        ([*BLOOM, "features", 0, "value_field"], None),
        ([*BLOOM, "features", 0, "first_word"], -1),
        ([*BLOOM, "features", 0, "first_word"], 5),
        ([*BLOOM, "features", 0, "first_word"], 2**60),
        ([*BLOOM, "features", 0, "first_word"], 1.5),
        ([*BLOOM, "features", 0, "first_word"], "0"),
        ([*BLOOM, "features", 0, "num_symbols"], 3),
        ([*BLOOM, "features", 0, "num_symbols"], 2**60),
        ([*BLOOM, "features", 0, "report", "num_facts"], -1),
        ([*BLOOM, "features", 0, "report", "num_facts"], 1.5),
        ([*BLOOM, "features", 0, "report", "num_facts"], 5),
        ([*BLOOM, "features", 0, "report", "num_ones"], 41),
        ([*BLOOM, "features", 0, "report", "num_ones"], 43),
        ([*BLOOM, "features", 0, "report", "num_ones"], "42"),
        ([*BLOOM, "features", 0, "num_hashes"], 65),
        ([*BLOOM, "features", 0, "num_hashes"], 0),
        ([*BLOOM, "features", 0, "num_hashes"], 6),
        ([*BLOOM, "features", 0, "num_hashes"], 7.0),
        ([*BLOOM, "features", 0, "first_symbols"], [0]),
        ([*BLOOM, "features", 0, "first_symbols"], [1] * 7),
        ([*BLOOM, "features", 0, "first_symbols"], [0, 0, 0, 0, 0, 0, 4]),
        ([*BLOOM, "features", 0, "first_symbols"], [0, 0, 0, 0, 2, 1, 3]),
        ([*BLOOM, "features", 0, "first_symbols"], [0, 0, 0, 0, 0, 0, -1]),
        ([*BLOOM, "features", 0, "first_symbols"], [0, 0, 0, 0, 0, 0, 1.0]),
        ([*BLOOM, "features", 0, "first_symbols"], None),
        ([*BLOOM, "features", 0, "report", "false_positive_rate"], 0.0),
        ([*BLOOM, "features", 0, "report", "false_positive_rate"], 1.5),
        (["cut"], None),
        (["cut"], ["viewed"]),
        (["cut"], {"unknown": 1}),
        (["cut"], {"viewed": -1}),
        (["cut"], {"viewed": "1"}),
        (["structures"], None),
        (["structures"], []),
        (["structures"], {}),
        ([*BLOOM], None),
        ([*BLOOM, "kind"], None),
        ([*BLOOM, "kind"], "bitmap"),
        ([*BLOOM, "kind"], "sets"),
        ([*BLOOM, "kind"], ["bloom"]),
        (["presence"], None),
        (["presence", "kind"], "list"),
        (["presence", "kind"], "bloom"),
        (["presence", "kind"], None),
        (["presence", "kind"], ["shapes"]),
        (["presence", "shapes"], []),
        (["presence", "shapes"], None),
        (["presence", "shapes", 0], []),
        (["presence", "shapes", 0], ["viewed", "sizes", "country", "unknown"]),
        (["presence", "shapes", 0], ["viewed", "viewed", "country", "member"]),
        ([*BLOOM, "rows"], []),
        ([*BLOOM, "rows"], None),
        ([*BLOOM, "rows", 0, "num_symbols"], 5),
        ([*BLOOM, "rows", 0, "num_symbols"], -6),
        ([*BLOOM, "rows", 0, "report", "num_ones"], 0),
        ([*BLOOM, "rows", 0, "first_word"], 99),
    ],
)
def test_a_description_that_does_not_fit_is_refused(path, value):
    description, arrays = parts_of(GOLDEN)
    inside(description, path[:-1])[path[-1]] = value
    with pytest.raises(REFUSALS):
        SketchLayer.from_snapshot(description, arrays)


def test_an_unknown_kind_of_structure_is_refused_by_its_name():
    parts = parts_of(GOLDEN)
    inside(parts[0], BLOOM)["kind"] = "weighted bloom"
    with pytest.raises(ValueError, match="a structure of the kind 'weighted bloom', which this process does"):
        SketchLayer.from_snapshot(*parts)


@for_each("twice", [[0, 0], [0, 0, 0]])
def test_a_structure_that_is_there_twice_is_refused(twice):
    parts = parts_of(GOLDEN)
    parts[0]["structures"] = [copy.deepcopy(parts[0]["structures"][number]) for number in twice]
    with pytest.raises(ValueError, match="keep the same feature, or are of the same kind"):
        SketchLayer.from_snapshot(*parts)


def test_states_that_do_not_exist_are_refused():
    parts = parts_of(GOLDEN)
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


@pytest.mark.slow
def test_any_other_content_is_refused_or_safe_to_read():
    """No error but the ones that the view expects, and no read that fails later."""
    parts = parts_of(GOLDEN)
    hashes = np.ascontiguousarray(load(ORDER)[1]["rows"][:, :2])
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
                    feast_values(feature)


def test_more_facts_than_a_table_has_bits_for_are_refused():
    parts = parts_of(GOLDEN)
    symbols = inside(parts[0], [*BLOOM, "features", 0])
    symbols["report"] |= {"num_facts": 10**9, "num_ones": 10**9 * symbols["num_hashes"]}
    with pytest.raises(ValueError, match="fewer bits than the number of facts"):
        SketchLayer.from_snapshot(*parts)
