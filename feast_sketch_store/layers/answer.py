"""What a layer answers for a batch of entities."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.codecs import VALUE, Decoder, Symbols
from feast_sketch_store.filters import Asked, ShiftingBloomFilter
from feast_sketch_store.kernel import row_sums, to_bits

_ONE = np.uint64(1)


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

    def bits(self) -> NDArray[np.uint64]:
        """The symbols as bits of words: uint64[p, ceil(V / 64)]."""
        return to_bits(self.indptr, self.symbols, len(self.decoder.vocabulary))

    def contains(self, symbols: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Whether the entities have symbols: int32[m], asked of all, or int32[p, m]; -1 is nobody's.

        Returns
        -------
        bool[p, m]
        """
        words, symbols = self.bits(), np.broadcast_to(symbols, (len(self.states), symbols.shape[-1]))
        if not words.shape[1]:
            return np.zeros(symbols.shape, np.bool_)
        possible = np.maximum(symbols, 0)
        found = np.take_along_axis(words, (possible >> 6).astype(np.int64), axis=1)
        is_set = (found >> (possible & 63).astype(np.uint64)) & _ONE != 0
        return np.asarray(is_set & (symbols >= 0))

    def scores(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """The sum of the weights, float64[V], of each entity's symbols: float64[p]."""
        return row_sums(self.indptr, weights[self.symbols])


class FilterAnswer:
    """As `FeatureAnswer`, but the filter is asked only for what is wanted, and only when it is."""

    def __init__(
        self,
        decoder: Decoder,
        states: NDArray[np.uint8],
        bloom: ShiftingBloomFilter,
        asked: Asked,
        entity_hashes: NDArray[np.uint64],
    ):
        self.decoder = decoder
        self.states = states
        self.bloom = bloom
        self.asked = asked
        self.entity_hashes = entity_hashes
        self.has_values: NDArray[np.bool_] = states == VALUE

    @property
    def indptr(self) -> NDArray[np.int64]:
        """See `FeatureAnswer`."""
        return self._symbols[0]

    @property
    def symbols(self) -> Symbols:
        """See `FeatureAnswer`."""
        return self._symbols[1]

    def bits(self) -> NDArray[np.uint64]:
        """See `FeatureAnswer.bits`."""
        words = self.bloom.windows(self.entity_hashes, self.asked)
        words *= self.has_values[:, None]
        return words

    def contains(self, symbols: NDArray[np.int32]) -> NDArray[np.bool_]:
        """See `FeatureAnswer.contains`."""
        return self.bloom.contains(self.entity_hashes, self.asked, symbols, self.has_values)

    def scores(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """See `FeatureAnswer.scores`."""
        return self.bloom.scores(self.entity_hashes, self.asked, weights, self.has_values)

    @cached_property
    def _symbols(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        return self.bloom.possible_symbols(self.entity_hashes, self.asked, self.has_values)


AnyAnswer = FeatureAnswer | FilterAnswer


class FoundRows(NamedTuple):
    """The entities of a batch that a layer found, before their features are read.

    ``positions`` is int64[p], ascending, in the batch; ``event_timestamps`` int64[p]; ``states`` has uint8[p]
    for features; ``rows`` is int64[p], their numbers in a layer that lists its rows.
    """

    positions: NDArray[np.int64]
    event_timestamps: NDArray[np.int64]
    states: Mapping[str, NDArray[np.uint8]]
    rows: NDArray[np.int64] | None = None


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
    features: Mapping[str, AnyAnswer]
