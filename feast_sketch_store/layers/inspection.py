"""What can be told of a view's sealed rows as a whole: of all its shards, which share values and formulas."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.layers.sketch import SketchLayer
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.encoding import EncodedFeature
from feast_sketch_store.rows.formulas import Formula
from feast_sketch_store.structures.base import Answer, SealedFeature


@dataclass(frozen=True)
class SealedRows:
    """The sealed rows of a view, to be inspected. Immutable; safe to use from several threads.

    Parameters
    ----------
    layers : of each shard that has sealed rows; at least one.
    """

    layers: tuple[SketchLayer, ...]

    @property
    def codecs(self) -> Mapping[str, FeatureCodec]:
        """The codecs of all features, by name."""
        return {name: codec for layer in self.layers for name, codec in layer.codecs.items()}

    @property
    def formulas(self) -> Mapping[str, Formula]:
        """By computed feature, its formula. A view has one set of formulas, so all layers agree."""
        return {name: formula for layer in self.layers for name, formula in layer.formulas.items()}

    @property
    def cut(self) -> Mapping[str, int]:
        """By feature that lost some values, the number of facts left out."""
        names = dict.fromkeys(name for layer in self.layers for name in layer.cut)
        return {name: sum(layer.cut.get(name, 0) for layer in self.layers) for name in names}

    @property
    def num_entities(self) -> int:
        """Entities of all layers."""
        return sum(layer.num_entities for layer in self.layers)

    @property
    def num_facts(self) -> int:
        """Facts of all features, kept or cut."""
        kept = sum(feature.num_facts for layer in self.layers for feature in layer.features.values())
        return kept + sum(self.cut.values())

    def features(self, name: str) -> list[SealedFeature]:
        """The feature in each layer; empty if there is no such feature."""
        return [layer.features[name] for layer in self.layers if name in layer.features]

    def shown(self, feature: EncodedFeature, entity_hashes: NDArray[np.uint64]) -> Answer:
        """What reads of the largest layer with a feature would return for rows; see `SketchLayer.shown`."""
        name = feature.codec.feature
        layers = [layer for layer in self.layers if name in layer.features]
        return max(layers, key=lambda layer: layer.num_entities).shown(feature, entity_hashes)

    def expected_rates(self) -> dict[str, float]:
        """The error rate that the filter of each feature is built for, the largest of all layers; features
        without a filter have none.
        """
        found = {name: [f.false_positive_rate for f in self.features(name)] for name in self.codecs}
        known = {name: [rate for rate in rates if rate is not None] for name, rates in found.items()}
        return {name: max(rates) for name, rates in known.items() if rates}

    def sampled_rates(self, names: Iterable[str], num_samples: int) -> dict[str, float]:
        """By feature, the share of (entity, value) pairs that read as written, of entities that never were.

        Raises
        ------
        DamagedFileError : a part of a snapshot that was not used before is damaged.
        """
        rng = np.random.default_rng()
        hashes = _unknown(rng, num_samples)
        return {
            name: float(np.mean([feature.sampled_rate(hashes, rng) for feature in self.features(name)]))
            for name in names
        }

    def sampled_presence(self, num_samples: int) -> float:
        """The share of entities that seem to have a row, of those that never had one; raises likewise."""
        hashes = _unknown(np.random.default_rng(), num_samples)
        return float(np.mean([len(layer.read(hashes, ()).found) / num_samples for layer in self.layers]))


def _unknown(rng: np.random.Generator, number: int) -> NDArray[np.uint64]:
    return rng.integers(0, 2**64, (number, 2), np.uint64)
