"""Layers: immutable answers for a set of rows, exact (unsealed) or sketched (sealed)."""

from feast_sketch_store.layers.build import Cut, FeatureBudget, SketchLayerBuilder
from feast_sketch_store.layers.exact import ExactLayer
from feast_sketch_store.layers.row_reader import LayerAnswer
from feast_sketch_store.layers.sketch import DeltaLayer, SealedRows, SketchLayer
from feast_sketch_store.structures.goals import Goal
from feast_sketch_store.structures.parts import is_checked_where_read

__all__ = [
    "Cut",
    "DeltaLayer",
    "ExactLayer",
    "FeatureBudget",
    "Goal",
    "LayerAnswer",
    "SealedRows",
    "SketchLayer",
    "SketchLayerBuilder",
    "is_checked_where_read",
]
