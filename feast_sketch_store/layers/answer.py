"""What reads answer about a batch of entities."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.structures.base import Answer


class LayerAnswer(NamedTuple):
    """The entities of a batch that have rows.

    Parameters
    ----------
    found : int64[p], ascending positions of the rows to return.
    event_timestamps : int64[p], microseconds since 1970 in UTC; never newer than those of the rows.
    features : an answer for each requested feature that a layer knows.
    expired : int64[x], positions of rows that have expired. Their values are withheld.
    """

    found: NDArray[np.int64]
    event_timestamps: NDArray[np.int64]
    features: Mapping[str, Answer]
    expired: NDArray[np.int64] = np.zeros(0, np.int64)
