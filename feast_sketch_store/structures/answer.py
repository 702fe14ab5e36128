"""What a layer answers for a batch of entities."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.kernel import row_sums, to_bits
from feast_sketch_store.rows.codecs import MISSING, VALUE, Decoder, Symbols
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.succinct import Asked, ShiftingBloomFilter

_MAX_MARKS = 1 << 22  # bytes


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
        num_rows, num_symbols = len(self.states), len(self.decoder.vocabulary)
        found = np.empty((num_rows, symbols.shape[-1]), np.bool_)
        rows_per_chunk = max(1, _MAX_MARKS // (num_symbols + 1))
        for first in range(0, num_rows, rows_per_chunk):
            indptr = self.indptr[first : first + rows_per_chunk + 1]
            # The column behind the last symbol, to which -1 points as well, stays empty.
            has_symbol = np.zeros((len(indptr) - 1, num_symbols + 1), np.bool_)
            rows = np.repeat(np.arange(len(has_symbol)), np.diff(indptr))
            has_symbol[rows, self.symbols[indptr[0] : indptr[-1]]] = True
            chunk = slice(first, first + len(has_symbol))
            if symbols.ndim == 1:
                found[chunk] = has_symbol[:, symbols]
            else:
                found[chunk] = np.take_along_axis(has_symbol, symbols[chunk].astype(np.int64), axis=1)
        return found

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

    ``decided`` is int64[d], positions in the batch that the layer lists: the rows found, those
    deleted and those expired. ``found`` is int64[p], ascending positions of the rows to return;
    ``event_timestamps`` int64[p], microseconds since 1970 in UTC, never newer than the truth;
    ``features`` has an entry per feature that was asked for and is known to the layer. ``fenced`` is
    int64[f], those of ``decided`` of which nothing counts in older layers: there was a deletion between.
    """

    decided: NDArray[np.int64]
    found: NDArray[np.int64]
    event_timestamps: NDArray[np.int64]
    features: Mapping[str, AnyAnswer]
    fenced: NDArray[np.int64] = np.zeros(0, np.int64)


def stack(answers: Sequence[LayerAnswer]) -> LayerAnswer:
    """The rows of one or more answers, one behind the other, with common vocabularies.

    So what layers with vocabularies of their own say of an entity can be compared and put together. An entity
    is found as often as it is in the answers, in their order; ``found`` does not ascend any more.
    """
    if len(answers) == 1:
        return answers[0]
    names = dict.fromkeys(name for answer in answers for name in answer.features)
    return LayerAnswer(
        np.unique(np.concatenate([answer.decided for answer in answers])),
        np.concatenate([answer.found for answer in answers]),
        np.concatenate([answer.event_timestamps for answer in answers]),
        {name: _stack_feature(answers, name) for name in names},
        np.unique(np.concatenate([answer.fenced for answer in answers])),
    )


def _stack_feature(answers: Sequence[LayerAnswer], name: str) -> FeatureAnswer:
    """One feature of all rows; MISSING in those of a layer that does not know it."""
    known = [answer.features[name] for answer in answers if name in answer.features]
    vocabulary, new_ids = Vocabulary.union([feature.decoder.vocabulary for feature in known])
    ids = iter(new_ids)
    states, lengths, symbols = [], [], []
    for answer in answers:
        feature = answer.features.get(name)
        if feature is None:
            states.append(np.full(len(answer.found), MISSING, np.uint8))
            lengths.append(np.zeros(len(answer.found), np.int64))
            continue
        states.append(feature.states)
        lengths.append(np.diff(feature.indptr))
        symbols.append(next(ids)[feature.symbols].astype(np.int32))
    return FeatureAnswer(
        Decoder(known[0].decoder.codec, vocabulary),
        np.concatenate(states),
        np.concatenate(([0], np.cumsum(np.concatenate(lengths)))),
        np.concatenate(symbols),
    )
