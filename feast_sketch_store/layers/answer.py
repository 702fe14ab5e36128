"""What a layer answers for a batch of entities."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.codecs import Decoder, Symbols


@dataclass(frozen=True)
class FeatureAnswer:
    """One feature of the p entities that a layer found.

    ``states`` is uint8[p] of codecs.MISSING, NULL, EMPTY, VALUE; entity ``i`` has the symbols
    ``symbols[indptr[i]:indptr[i + 1]]`` (int64[p + 1], int[nnz]), which ``decoder`` understands.
    """

    decoder: Decoder
    states: NDArray[np.uint8]
    indptr: NDArray[np.int64]
    symbols: Symbols


@dataclass(frozen=True)
class FoundRows:
    """The entities of a batch that a layer found, before their features are read.

    ``positions`` is int64[p], ascending, in the batch; ``event_timestamps`` int64[p]; ``states`` has uint8[p]
    for features; ``rows`` is int64[p], their numbers in a layer that lists its rows.
    """

    positions: NDArray[np.int64]
    event_timestamps: NDArray[np.int64]
    states: Mapping[str, NDArray[np.uint8]]
    rows: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class LayerAnswer:
    """The entities of a batch that a layer found.

    ``decided`` is int64[d], positions in the batch that need no older layer: the rows found, those
    deleted and those expired. ``found`` is int64[p], ascending positions of the rows to return;
    ``event_timestamps`` int64[p], microseconds since 1970 in UTC, never newer than the truth;
    ``features`` has an entry per feature that was asked for and is known to the layer.
    """

    decided: NDArray[np.int64]
    found: NDArray[np.int64]
    event_timestamps: NDArray[np.int64]
    features: Mapping[str, FeatureAnswer]
