"""What a layer answers for a batch of entities."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.structures.answer import Answer


class LayerAnswer(NamedTuple):
    """The entities of a batch that a layer found.

    ``decided`` is int64[d], positions in the batch that need no older layer: the rows found, those
    deleted and those expired. ``found`` is int64[p], ascending positions of the rows to return;
    ``event_timestamps`` int64[p], microseconds since 1970 in UTC, never newer than the truth;
    ``features`` has an entry per feature that was asked for and is known to the layer.
    """

    decided: NDArray[np.int64]
    found: NDArray[np.int64]
    event_timestamps: NDArray[np.int64]
    features: Mapping[str, Answer]

    def load(self) -> None:
        """Read all features now, so that nothing which is damaged shows up later."""
        for feature in self.features.values():
            feature.load()
