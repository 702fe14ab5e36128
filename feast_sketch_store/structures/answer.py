"""Answers of one feature: the states and symbols of the entities that were found."""

from abc import abstractmethod
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.kernel import contains_rows, row_sums, to_bits
from feast_sketch_store.rows.codecs import Decoder, Symbols
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.encoding import NO_TIMESTAMP
from feast_sketch_store.rows.listing import Listing
from feast_sketch_store.rows.lists import newest_of, once_a_tick


class Answer(Protocol):
    """One feature of the p entities that a layer found.

    A structure returns the symbols at once (`CsrAnswer`), or reads them on request; then it may answer other
    questions without them.

    Parameters
    ----------
    decoder : has the vocabulary of the symbols.
    states : uint8[p] of codecs.MISSING, NULL, EMPTY, VALUE.
    """

    decoder: Decoder
    states: NDArray[np.uint8]

    @property
    @abstractmethod
    def csr(self) -> Csr:
        """The symbols of each entity, with their weights if they have any."""

    @property
    def indptr(self) -> NDArray[np.int64]:
        """Where the symbols of each entity begin: int64[p + 1]."""
        return self.csr.indptr

    @property
    def symbols(self) -> Symbols:
        """The symbols of all entities: int[nnz]."""
        return self.csr.ids

    def newest(
        self, rows: NDArray[np.int64] | None, listing: Listing | None, since: int = NO_TIMESTAMP
    ) -> Csr:
        """The items of lists, newest first, with their times for weights.

        Parameters
        ----------
        rows : int64[r], numbers of entities; None for all.
        listing : cuts the lists, and keeps each value once in a tick; None for all items.
        since : microseconds since 1970; older items are left out.
        """
        items = self.csr if rows is None else self.csr.take(rows)
        if listing is None:
            return newest_of(items, None, since)
        return newest_of(once_a_tick(items, listing.resolution_microseconds), listing.limit, since)

    def load(self) -> None:
        """Read the rest now, so that no damage shows up later."""
        return  # everything is read already

    def numbered(self) -> "Answer":
        """The same answer over a vocabulary without repetitions, in which values can be looked up."""
        return self

    def bits(self) -> NDArray[np.uint64]:
        """The symbols as bits of words: uint64[p, ceil(V / 64)]."""
        return to_bits(self.csr.indptr, self.csr.ids, len(self.decoder.vocabulary))

    def contains(self, symbols: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Whether the entities have symbols: int32[m] for all entities, or int32[p, m]; -1 matches none.

        Returns
        -------
        bool[p, m]
        """
        return contains_rows(self.csr.indptr, self.csr.ids, len(self.decoder.vocabulary), symbols)

    def scores(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """The sum of each entity's symbol weights, float64[V], times their own weights: float64[p]."""
        return weighted_sums(self.csr, weights)


class CsrAnswer(Answer):
    """An answer whose symbols are known."""

    def __init__(self, decoder: Decoder, states: NDArray[np.uint8], csr: Csr):
        self.decoder = decoder
        self.states = states
        self._csr = csr

    @property
    def csr(self) -> Csr:
        """See `Answer`."""
        return self._csr


def weighted_sums(csr: Csr, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each row, the sum of its ids' weights, float64[V], times the ids' own weights: float64[n]."""
    values = np.asarray(weights[csr.ids], np.float64)
    return row_sums(csr.indptr, values if csr.weights is None else values * csr.weights)
