"""Layers: immutable answers for a set of rows, exact (unsealed) or sketched (sealed)."""

from feast_sketch_store.layers.answer import FeatureAnswer, LayerAnswer
from feast_sketch_store.layers.exact import ExactLayer
from feast_sketch_store.layers.sketch import FeatureBudget, SketchLayer

__all__ = ["ExactLayer", "FeatureAnswer", "FeatureBudget", "LayerAnswer", "SketchLayer"]
