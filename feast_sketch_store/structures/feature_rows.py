"""One feature of all rows of a seal, from which structures are built."""

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.vocabulary import Vocabulary

Part = tuple[NDArray[np.int32], Csr]  # the numbers of some rows, and their symbols


class FeatureRows(Protocol):
    """One feature of n rows that came in parts.

    Attributes
    ----------
    states : uint8[n] of codecs.MISSING, NULL, EMPTY, VALUE.
    vocabulary : its values; from the most popular one on, unless it was given.
    is_numbered : whether it was given, so that values must keep their ids.
    counts : int64[V], how many rows have each value; empty for a feature that is kept exactly.
    num_facts : how many values all rows have.
    """

    states: NDArray[np.uint8]
    vocabulary: Vocabulary
    is_numbered: bool
    counts: NDArray[np.int64]
    num_facts: int

    @property
    def sealed_codec(self) -> FeatureCodec:
        """How a layer keeps the feature."""

    def lengths(self) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int32]]]:
        """Per part which rows it has, and how many values each."""

    def kept_rows(self) -> Iterator[Part]:
        """The parts, which may be read again."""

    def rows(self) -> Iterator[Part]:
        """The parts; each is released after its use."""

    def release(self) -> None:
        """Release all parts."""


def first_rows(feature: FeatureRows, num_rows: int) -> Csr:
    """The symbols of the first rows, int32. In the order of hashes these are a random sample."""
    parts = []
    for places, part in feature.kept_rows():
        chosen = np.flatnonzero(places < num_rows)
        taken = part.take(chosen)
        parts.append((places[chosen].astype(np.int64), Csr(taken.indptr, taken.ids.astype(np.int32))))
    return Csr.placed(parts, num_rows)


def in_order(
    features: Sequence[FeatureRows],
    order: NDArray[np.int64],
    new_ids: Sequence[NDArray[np.int32] | None] | None = None,
) -> Csr:
    """The symbols of F features of all rows, in the order that is given: int64[n].

    Uses up the features' parts.

    Parameters
    ----------
    new_ids : int32[V] of each feature, the new ids of its symbols; None to keep them.

    Returns
    -------
    int32 ids; row ``r * F + f`` is feature ``f`` of row ``r``.
    """
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order)) * len(features)
    indptr = np.zeros(len(order) * len(features) + 1, np.int64)
    for number, feature in enumerate(features, start=1):
        for places, lengths in feature.lengths():
            indptr[ranks[places] + number] = lengths
    np.cumsum(indptr, out=indptr)
    whole = Csr(indptr, np.zeros(indptr[-1], np.int32))
    for number, feature in enumerate(features):
        names = None if new_ids is None else new_ids[number]
        for places, part in feature.rows():
            if names is not None:
                part = Csr(part.indptr, names[part.ids])
            # Facts of a row are consecutive in the part, and must stay so.
            part.put_into(whole, ranks[places] + number)
    return whole
