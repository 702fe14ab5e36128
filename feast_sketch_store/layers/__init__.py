"""Layers: immutable answers for a set of rows, exact (unsealed) or sketched (sealed)."""

from feast_sketch_store.layers.build import Cut, FeatureBudget, SketchLayerBuilder, build_layer
from feast_sketch_store.layers.exact import ExactLayer
from feast_sketch_store.layers.sketch import SketchLayer, is_checked_where_read
from feast_sketch_store.structures.answer import FeatureAnswer, LayerAnswer
from feast_sketch_store.structures.choice import STRUCTURES, Target

__all__ = [
    "STRUCTURES",
    "Cut",
    "ExactLayer",
    "FeatureAnswer",
    "FeatureBudget",
    "LayerAnswer",
    "SketchLayer",
    "SketchLayerBuilder",
    "Target",
    "build_layer",
    "is_checked_where_read",
]
