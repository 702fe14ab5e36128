"""Formulas that do not fit their layer or each other are refused when a snapshot is opened."""

import numpy as np
import pytest

from feast_sketch_store.layers import SketchLayer
from tests.conformance.test_golden import FORMULAS
from tests.helpers.cases import for_each
from tests.helpers.snapshots import load


def open_with(description=(), arrays=()):
    content, parts = load(FORMULAS)
    for number, key, value in description:
        content["formulas"][number][key] = value
    return SketchLayer.from_snapshot(content, {**parts, **dict(arrays)})


def test_the_file_itself_is_opened_with_its_formulas():
    formulas = open_with().formulas
    assert {name: (f.version, f.max_error) for name, f in formulas.items()} == {
        "taste": (4, 0.5),
        "worth": (1, 0.125),
    }


@for_each(
    ("number", "key", "value"),
    [
        (0, "name", "nobody"),
        (0, "name", "worth"),
        (0, "name", "country"),
        (0, "report", {"version": 1.0}),
        (1, "step", 0.0),
        (1, "step", -1.0),
        (1, "step", float("nan")),
        (1, "unit", float("inf")),
        (1, "unit", 1),
        (0, "sources", []),
        (0, "sources", [{"name": "viewed"}] * 2),
        (0, "sources", [{"name": "sizes"}, {"name": "viewed"}]),
        (0, "sources", [{"name": "viewed"}, {"name": "country"}]),
        (0, "sources", [{"name": "viewed"}, {"name": "nothing"}]),
        (1, "sources", "sizes"),
        (1, "sources", ["sizes"]),
    ],
)
def test_a_description_that_does_not_fit_is_refused(number, key, value):
    with pytest.raises((ValueError, KeyError, TypeError)):
        open_with([(number, key, value)])


@for_each(
    ("name", "change"),
    [
        ("formulas.0.sources.0.weights", lambda a: a[:-1]),
        ("formulas.0.sources.0.weights", lambda a: a.reshape(-1, 1)),
        ("formulas.1.sources.0.weights", lambda a: a.astype(np.uint8)),
        ("formulas.0.sources.1.vocabulary.shape", lambda a: a[:-1]),
    ],
)
def test_arrays_that_do_not_fit_are_refused(name, change):
    _, parts = load(FORMULAS)
    with pytest.raises((ValueError, KeyError, TypeError)):
        open_with(arrays=[(name, change(parts[name]))])
