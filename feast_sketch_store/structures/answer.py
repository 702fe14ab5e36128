"""Answers of one feature: the states and symbols of the entities that were found."""

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.kernel import row_sums
from feast_sketch_store.rows.codecs import Decoder, Symbols
from feast_sketch_store.rows.csr import Csr


class Answer:
    """One feature of p entities that have rows.

    Parameters
    ----------
    decoder : has the vocabulary of the symbols.
    states : uint8[p] of codecs.MISSING, NULL, EMPTY, VALUE.
    csr : the symbols of each entity, with their weights if they have any.
    """

    def __init__(self, decoder: Decoder, states: NDArray[np.uint8], csr: Csr):
        self.decoder = decoder
        self.states = states
        self.csr = csr

    @property
    def indptr(self) -> NDArray[np.int64]:
        """Where the symbols of each entity begin: int64[p + 1]."""
        return self.csr.indptr

    @property
    def symbols(self) -> Symbols:
        """The symbols of all entities: int[nnz]."""
        return self.csr.ids


def weighted_sums(csr: Csr, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each row, the sum of its ids' weights, float64[V], times the ids' own weights: float64[n]."""
    values = np.asarray(weights[csr.ids], np.float64)
    return row_sums(csr.indptr, values if csr.weights is None else values * csr.weights)
