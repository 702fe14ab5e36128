"""Sealed rows as layers over ranges of entity hashes: a read asks the layer whose range holds the entity."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.layers.sketch import SketchLayer
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.encoding import EncodedFeature
from feast_sketch_store.rows.formulas import Formula
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.structures.answer import Answer
from feast_sketch_store.structures.base import SealedFeature

_END = 1 << 64


@dataclass(frozen=True)
class HashRange:
    """The entities whose hash has first 64 bits from ``first`` up to, but not including, ``end``."""

    first: int = 0
    end: int = _END

    def __post_init__(self) -> None:
        if not 0 <= self.first < self.end <= _END:
            raise ValueError(f"there are no hashes from {self.first} to {self.end}")

    @classmethod
    def split(cls, number: int) -> "tuple[HashRange, ...]":
        """Split all hashes into this many ranges of equal length."""
        bounds = [_END * n // number for n in range(number + 1)]
        return tuple(map(cls, bounds, bounds[1:]))

    def rows_of(self, entity_hashes: NDArray[np.uint64]) -> tuple[int, int]:
        """Where the range lies in ascending hashes, uint64[n, 2]: its first place, and the place after it."""
        first = np.searchsorted(entity_hashes[:, 0], np.uint64(self.first))
        end = len(entity_hashes)
        if self.end < _END:
            end = int(np.searchsorted(entity_hashes[:, 0], np.uint64(self.end)))
        return int(first), end


EVERYTHING = HashRange()


@dataclass(frozen=True)
class Shards:
    """The sealed rows of a view. Immutable; safe to read from any number of threads.

    Parameters
    ----------
    layers : at least one.
    ranges : the entities of each layer, ascending; together they cover all hashes.

    Raises
    ------
    ValueError : the ranges have gaps or overlap, or the layers differ in features or semantics.
    """

    layers: tuple[SketchLayer, ...]
    ranges: tuple[HashRange, ...] = (EVERYTHING,)

    def __post_init__(self) -> None:
        firsts, ends = [r.first for r in self.ranges], [r.end for r in self.ranges]
        if len(self.layers) != len(self.ranges) or firsts != [0, *ends[:-1]] or ends[-1] != _END:
            raise ValueError("the ranges of the layers do not cover all hashes exactly once")
        if any(layer.codecs != self.codecs or layer.cut.keys() != self.cut.keys() for layer in self.layers):
            raise ValueError("the layers have different features")
        if any(layer.semantics != self.semantics for layer in self.layers):
            raise ValueError("the layers combine the rows of an entity in different ways")

    def shown(self, feature: EncodedFeature, entity_hashes: NDArray[np.uint64]) -> Answer:
        """What reads of the largest layer would return for a feature of rows; see `SketchLayer.shown`."""
        return max(self.layers, key=lambda layer: layer.num_entities).shown(feature, entity_hashes)

    def have(self, entity_hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Which entities, uint64[n, 2], possibly have rows: bool[n]."""
        found = np.zeros(len(entity_hashes), np.bool_)
        for layer, places in zip(self.layers, self._routed(entity_hashes), strict=True):
            found[places[layer.read(entity_hashes[places], ()).found]] = True
        return found

    def _routed(self, entity_hashes: NDArray[np.uint64]) -> list[NDArray[np.int64]]:
        """For each layer, the ascending positions of its entities."""
        firsts = np.array([r.first for r in self.ranges], np.uint64)
        numbers = np.searchsorted(firsts, entity_hashes[:, 0], side="right") - 1
        return [np.flatnonzero(numbers == number) for number in range(len(self.layers))]

    # -- contents --------------------------------------------------------------------------------

    @property
    def codecs(self) -> Mapping[str, FeatureCodec]:
        """The codecs of all features, by name."""
        return self.layers[0].codecs

    @property
    def semantics(self) -> str:
        """How the rows of an entity were combined: a name in `view.semantics`."""
        return self.layers[0].semantics

    def features(self, name: str) -> list[SealedFeature]:
        """The feature in each layer; empty if there is no such feature."""
        return [layer.features[name] for layer in self.layers if name in layer.features]

    @cached_property
    def cut(self) -> Mapping[str, int]:
        """By feature that lost some values, the number of facts left out."""
        names = self.layers[0].cut
        return {name: sum(layer.cut.get(name, 0) for layer in self.layers) for name in names}

    @cached_property
    def cut_vocabularies(self) -> Mapping[str, Vocabulary]:
        """By feature that lost some values, those that it kept. A view has one cut, so all layers agree."""
        return self.layers[0].cut_vocabularies

    @property
    def formulas(self) -> Mapping[str, Formula]:
        """By computed feature, its formula. A view has one set of formulas, so all layers agree."""
        return self.layers[0].formulas

    @property
    def num_entities(self) -> int:
        """Entities of all layers."""
        return sum(layer.num_entities for layer in self.layers)

    @property
    def max_event_timestamp(self) -> int:
        """Microseconds since 1970, the newest of all layers."""
        return max(layer.max_event_timestamp for layer in self.layers)

    @property
    def size_bytes(self) -> int:
        """Bytes of all layers in memory."""
        return sum(layer.size_bytes for layer in self.layers)
