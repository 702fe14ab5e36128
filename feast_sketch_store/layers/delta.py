"""The delta layer: sealed rows over a base, with a list of all entities that it decides.

A structure of a sealed layer may report an entity that it does not hold. Over a base, such a false positive
would hide a row. So a delta lists the hashes of its entities, 16 bytes each, including deleted ones, and is
asked only for these.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.kernel import RowReader
from feast_sketch_store.layers.row_reader import Layer, WantedFeature
from feast_sketch_store.layers.sketch import SketchLayer
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.encoding import RowKeys
from feast_sketch_store.rows.entity_keys import find_sorted
from feast_sketch_store.rows.vocabulary import Vocabulary


@dataclass(frozen=True)
class DeltaLayer(Layer):
    """Sealed rows that replace those of layers below. Immutable; safe to read from any number of threads.

    Parameters
    ----------
    layer : the sealed rows.
    entity_hashes : uint64[n, 2], ascending: entities with rows and deleted entities.
    deleted : bool[n], which of them were deleted.

    Raises
    ------
    ValueError : the list does not match the layer, or does not ascend.
    """

    layer: SketchLayer
    entity_hashes: NDArray[np.uint64]
    deleted: NDArray[np.bool_]

    def __post_init__(self) -> None:
        first, second = self.entity_hashes[:, 0], self.entity_hashes[:, 1]
        ascends = (first[1:] > first[:-1]) | ((first[1:] == first[:-1]) & (second[1:] > second[:-1]))
        num_alive = len(self.deleted) - int(self.deleted.sum())
        if len(self.deleted) != len(self.entity_hashes) or num_alive != self.layer.num_entities:
            raise ValueError("the list of entities does not match the layer's rows")
        if not ascends.all():
            raise ValueError("the list of entities does not ascend")

    def __len__(self) -> int:
        return len(self.entity_hashes)

    @property
    def codecs(self) -> Mapping[str, FeatureCodec]:
        """The codecs of all features, by name."""
        return self.layer.codecs

    def numbering(self, feature: str) -> Vocabulary | None:
        """The values of a feature in the order of their ids; None if its values have no ids."""
        return self.layer.numbering(feature)

    @property
    def size_bytes(self) -> int:
        """Bytes in memory."""
        return self.layer.size_bytes + self.entity_hashes.nbytes + self.deleted.nbytes

    @property
    def max_event_timestamp(self) -> int:
        """Microseconds since 1970, the newest of the rows; deletions do not count."""
        return self.layer.max_event_timestamp

    def _prepare(self, features: tuple[WantedFeature, ...]) -> RowReader:
        return self.layer.row_reader(features)

    @cached_property
    def decides(self) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
        """See `Layer`."""
        return np.ascontiguousarray(self.entity_hashes), self.deleted

    def keys(self, order: RowKeys) -> RowKeys:
        """The keys of its entities in an order index, as those behind which nothing below counts."""
        return replace(order, deleted=self.deleted, delete_barriers=np.ones(len(self), np.bool_))

    def find(self, entity_hashes: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The listed entities: their positions in the batch and their places in the list, int64[p] each."""
        return find_sorted(self.entity_hashes, entity_hashes)
