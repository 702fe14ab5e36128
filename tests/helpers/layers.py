"""Layers of rows, built without a view."""

import numpy as np

from feast_sketch_store.layers import FeatureBudget, SketchLayer, SketchLayerBuilder
from feast_sketch_store.rows.encoding import EncodedRows


def build_layer(rows: EncodedRows, budget: FeatureBudget) -> SketchLayer:
    """Fold rows, one per entity, into a layer sized for ``budget``."""
    codecs = [feature.codec for feature in rows.features.values()]
    return SketchLayerBuilder(rows.keys, codecs, [(np.arange(len(rows)), rows)]).build(budget)
