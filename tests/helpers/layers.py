"""Layers of rows, built without a view."""

from contextlib import nullcontext
from unittest import mock

import numpy as np

from feast_sketch_store.layers import FeatureBudget, SketchLayer, SketchLayerBuilder
from feast_sketch_store.rows.encoding import EncodedRows


def build_layer(rows: EncodedRows, budget: FeatureBudget, salt: tuple[int, int] | None = None) -> SketchLayer:
    """Fold rows, one per entity, into a layer sized for ``budget``; with a salt, it is always the same."""
    codecs = [feature.codec for feature in rows.features.values()]
    builder = SketchLayerBuilder(rows.keys, codecs, [(np.arange(len(rows)), rows)])
    name = "feast_sketch_store.layers.build.new_salt"
    with nullcontext() if salt is None else mock.patch(name, return_value=salt):
        return builder.build(budget)
