"""States as reads see them: layers that one call of the kernel reads together."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.kernel import PreparedRows, ReadFault
from feast_sketch_store.layers import LayerAnswer
from feast_sketch_store.layers.prepared import Column, Layer, Wanted, find, read, stack
from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.view.semantics import RowSemantics

_MAX_QUESTIONS = 64  # combinations of features that are kept prepared
_MAX_CARRIED = 8  # of them, the newest, that are prepared again for the next state


@dataclass(frozen=True)
class Readable(ABC):
    """Layers of one or more shards. Immutable; safe to read from any number of threads.

    Reads raise the DamagedFileError of a block that does not match its checksum, or a `ReadFault`, which
    `error_of` explains.
    """

    _prepared: dict[tuple[str, ...], PreparedRows] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    @abstractmethod
    def row_semantics(self) -> RowSemantics:
        """How several rows of an entity combine."""

    @property
    @abstractmethod
    def newest_first(self) -> Sequence[Layer]:
        """All layers, shard by shard, in the order in which reads ask them."""

    @property
    def layers_of_shards(self) -> Sequence[int | None]:
        """The number of layers of each shard; None for a shard that is not read here. Empty for one shard."""
        return ()

    @abstractmethod
    def error_of(self, fault: ReadFault) -> Exception:
        """The error of a read that failed, with the file or the shard concerned."""

    def prepared(
        self, features: tuple[str, ...], names: Sequence[NDArray[np.int32] | None] | None = None
    ) -> PreparedRows:
        """The rows with some features.

        Parameters
        ----------
        names : as of `layers.prepared.stack`, for `newest_first`.
        """
        if names is not None:
            return self._stacked(self.row_semantics.wanted(features), names)
        known = self._prepared.get(features)
        if known is None:
            if len(self._prepared) >= _MAX_QUESTIONS:
                self._prepared.clear()
            known = self._prepared[features] = self._stacked(self.row_semantics.wanted(features), None)
        return known

    def prepare_as(self, before: "Readable") -> None:
        """Prepare what was asked last of the state before this one, so that no read has to."""
        for features in list(before._prepared)[-_MAX_CARRIED:]:
            self.prepared(features)

    def _stacked(self, wanted: Wanted, names: Sequence[NDArray[np.int32] | None] | None) -> PreparedRows:
        return stack(self.newest_first, wanted, names, self.layers_of_shards)

    def read(
        self,
        entity_hashes: NDArray[np.uint64],
        features: Sequence[str],
        expire_before: int,
        limit: int | None = None,
    ) -> LayerAnswer:
        """The rows of a batch of entities, with all values of some features.

        Parameters
        ----------
        entity_hashes : uint64[n, 2]
        features : names; one that no layer has is left out of the answer.
        expire_before : microseconds since 1970; older rows and items are withheld.
        limit : how many items of lists are shown at most; None for as many as the lists have.
        """
        rows, layers, columns = self.prepared(tuple(features)), self.newest_first, []
        asked = self.row_semantics.wanted(tuple(features))
        are_alike = len(layers) == 1 and asked.lists is None  # all rows have the ids of one layer
        for name, wanted in zip(features, asked.features, strict=False):
            codec, vocabulary = wanted if isinstance(wanted, FeatureCodec) else None, None
            if isinstance(wanted, str):
                known = [layer for layer in layers if wanted in layer.codecs]
                codec = known[0].codecs[wanted] if known else None
                vocabulary = known[0].numbering(wanted) if known and are_alike else None
            columns.append(Column(name, codec, vocabulary))
        return read(rows, columns, entity_hashes, expire_before, limit)

    def find(
        self, entity_hashes: NDArray[np.uint64], expire_before: int
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Whether entities have rows, and their timestamps; see `layers.prepared.find`."""
        return find(self.prepared(()), entity_hashes, expire_before)
