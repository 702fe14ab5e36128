"""One feature of all rows of a seal, from which structures are built."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.rows.codecs import FeatureCodec
from feast_sketch_store.rows.csr import Csr
from feast_sketch_store.rows.spill import Spill, SpilledArray
from feast_sketch_store.rows.vocabulary import Vocabulary

Part = tuple[NDArray[np.int32], Csr]  # the numbers of some rows, and their symbols

BLOCK_FACTS = 1 << 21  # of rows that are put in order at once


class FeatureRows(Protocol):
    """One feature of n rows that came in parts."""

    states: NDArray[np.uint8]  # uint8[n] of codecs.MISSING, NULL, EMPTY, VALUE
    vocabulary: Vocabulary  # its values; the most popular one first, unless the vocabulary was given
    is_numbered: bool  # whether it was given, so that values must keep their ids
    counts: NDArray[np.int64]  # int64[V], the rows with each value; empty for an exact feature
    num_facts: int  # number of values of all rows

    @property
    def sealed_codec(self) -> FeatureCodec:
        """The codec in the layer."""

    def lengths(self) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int32]]]:
        """For each part, the numbers of its rows and the number of values of each."""

    def kept_rows(self) -> Iterator[Part]:
        """The parts, which stay for another call."""

    def rows(self) -> Iterator[Part]:
        """The parts. Each is released after use, so this works once."""

    def release(self) -> None:
        """Release all parts."""


def first_rows(feature: FeatureRows, num_rows: int) -> Csr:
    """The symbols of the first rows, int32. Rows are ordered by hash, so these are a random sample."""
    parts = []
    for indices, part in feature.kept_rows():
        chosen = np.flatnonzero(indices < num_rows)
        taken = part.take(chosen)
        parts.append((indices[chosen].astype(np.int64), Csr(taken.indptr, taken.ids.astype(np.int32))))
    return Csr.placed(parts, num_rows)


def in_order(
    features: Sequence[FeatureRows],
    order: NDArray[np.int64],
    new_ids: Sequence[NDArray[np.int32] | None] | None = None,
    stay: bool = False,
) -> Csr:
    """The symbols of F features of n rows: int32; row ``r * F + f`` is feature ``f`` of row ``order[r]``.

    Parameters
    ----------
    order : int64[n], row numbers.
    new_ids : int32[V] for each feature, the new ids of its symbols; None to keep them.
    stay : whether the features' parts stay for another call; otherwise they are used up.
    """
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order)) * len(features)
    indptr = np.zeros(len(order) * len(features) + 1, np.int64)
    for number, feature in enumerate(features, start=1):
        for indices, lengths in feature.lengths():
            indptr[ranks[indices] + number] = lengths
    np.cumsum(indptr, out=indptr)
    whole = Csr(indptr, np.zeros(indptr[-1], np.int32))
    for number, feature in enumerate(features):
        names = None if new_ids is None else new_ids[number]
        for indices, part in feature.kept_rows() if stay else feature.rows():
            if names is not None:
                part = Csr(part.indptr, names[part.ids])
            # Facts of a row are consecutive in the part, and must stay so.
            part.put_into(whole, ranks[indices] + number)
    return whole


class OrderedRows:
    """The symbols of F features of n rows, in an order that is given, a block of rows at a time.

    So only a block is in memory. Parts are divided into blocks first, and stored temporarily.

    Parameters
    ----------
    order : int64[n], the rows in their order.
    new_ids : as of `in_order`.
    """

    def __init__(
        self,
        features: Sequence[FeatureRows],
        order: NDArray[np.int64],
        new_ids: Sequence[NDArray[np.int32] | None] | None = None,
    ):
        self._features, self._order, self._new_ids = features, order, new_ids
        self._ranks = np.empty(len(order), np.int32)
        self._ranks[order] = np.arange(len(order), dtype=np.int32)
        self.sizes = np.zeros((len(order), len(features)), np.int32)  # symbols of each row and feature
        for number, feature in enumerate(features):
            for indices, lengths in feature.lengths():
                self.sizes[self._ranks[indices], number] = lengths
        num_facts = int(self.sizes.sum(dtype=np.int64))
        # how many rows a block has; the last one may have fewer
        self.block_rows = max(1, len(order) * BLOCK_FACTS // max(1, num_facts))

    def widen_blocks(self, num_rows: int) -> None:
        """Let each block but the last one have this many rows at least."""
        self.block_rows = max(self.block_rows, num_rows)

    @property
    def starts(self) -> range:
        """The first row of each block; there is one block at least."""
        return range(0, max(1, len(self._order)), self.block_rows)

    def blocks(self) -> Iterator[Csr]:
        """The blocks, each as `in_order` gives its rows. Uses up the features' parts."""
        if len(self.starts) == 1:
            yield in_order(self._features, self._order, self._new_ids)
            return
        spill = Spill()
        divided = [self._divided(number, spill) for number in range(len(self._features))]
        self._ranks = np.zeros(0, np.int32)  # not needed any more
        for block, first in enumerate(self.starts):
            sizes = self.sizes[first : first + self.block_rows]
            whole = Csr.of_lengths(sizes.ravel(), np.empty(sizes.sum(dtype=np.int64), np.int32))
            for number, parts in enumerate(divided):
                for part in parts:
                    rows, ids = part.of_block(block)
                    indices = rows.astype(np.int64) - first
                    piece = Csr.of_lengths(sizes[indices, number], ids)
                    piece.put_into(whole, indices * len(divided) + number)
            yield whole
        self.sizes = self.sizes[:0].copy()  # not needed any more, either

    def _divided(self, number: int, spill: Spill) -> "list[_DividedPart]":
        """The parts of a feature, each divided into blocks."""
        names = None if self._new_ids is None else self._new_ids[number]
        bounds = [*self.starts, len(self._order)]
        parts = []
        for indices, part in self._features[number].rows():
            ranks = self._ranks[indices]
            order = np.argsort(ranks)
            rows, taken = ranks[order], part.take(order)
            ids = taken.ids if names is None else names[taken.ids]
            row_bounds = np.searchsorted(rows, np.array(bounds, np.int32))
            parts.append(
                _DividedPart(row_bounds, taken.indptr[row_bounds], spill.keep(rows), spill.keep(ids))
            )
        return parts


@dataclass(frozen=True)
class _DividedPart:
    """The rows of a part in their order, int32[n], and their symbols; and where those of each block begin."""

    row_bounds: NDArray[np.int64]
    id_bounds: NDArray[np.int64]
    rows: SpilledArray
    ids: SpilledArray

    def of_block(self, block: int) -> tuple[NDArray[np.int32], NDArray[Any]]:
        """The rows of a block, and their symbols."""
        (first, end), (first_id, end_id) = (
            self.row_bounds[block : block + 2],
            self.id_bounds[block : block + 2],
        )
        return self.rows.read(int(first), int(end)), self.ids.read(int(first_id), int(end_id))
