"""Clustered filters whose parts do not fit each other are refused when opened, or safe to read."""

import copy
from pathlib import Path

import numpy as np
import pytest

from feast_sketch_store.layers import SketchLayer
from tests.conformance.test_inconsistent import REFUSALS, inside, leaves
from tests.helpers.cases import for_each
from tests.helpers.keys import user_hashes
from tests.helpers.snapshots import load, parts_of
from tests.oracle.messages import feast_values

GOLDEN = Path(__file__).parent / "golden" / "v1.clustered.sketch"
OURS = ("structures", 0)
NAMES = ["viewed", "sizes", "topics"]


@pytest.mark.slow
@for_each("path", [p for p in leaves(load(GOLDEN)[0]["layer"]) if p[:2] == OURS])
def test_any_other_content_is_refused_or_safe_to_read(path):
    parts = parts_of(GOLDEN)
    hashes = user_hashes(range(100))
    for junk in (None, True, 0, 1, -1, 65, 1.5, -0.5, "x", "bloom", [], [0], [0, 6], [1.0], {}):
        description = copy.deepcopy(parts[0])
        inside(description, path[:-1])[path[-1]] = junk
        try:
            layer = SketchLayer.from_snapshot(description, parts[1])
            for feature in layer.read(hashes, NAMES, 0).features.values():
                feast_values(feature)
        except REFUSALS:
            continue


@for_each("name", [name for name in load(GOLDEN)[1] if name.startswith("clustered.")])
def test_arrays_of_another_shape_or_type_are_refused(name):
    parts = parts_of(GOLDEN)
    if name.endswith(".checksums"):
        return
    array = parts[1][name]
    for other in (array[:0], np.concatenate((array, array)), array.astype(np.float32)):
        with pytest.raises(REFUSALS):
            SketchLayer.from_snapshot(parts[0], {**parts[1], name: other})


def test_a_row_of_a_cluster_that_is_not_there_is_refused():
    description, arrays = parts_of(GOLDEN)
    words = np.full_like(arrays["clustered.clusters.words"], 2**64 - 1)
    layer = SketchLayer.from_snapshot(description, {**arrays, "clustered.clusters.words": words})
    with pytest.raises(ValueError, match="contradict"):
        layer.read(user_hashes(range(9)), ["viewed"])
