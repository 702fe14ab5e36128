"""CSR matrices: the ids of consecutive rows, and where each row begins."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store import kernel


def bounds_of(lengths: NDArray[np.integer] | NDArray[np.bool_]) -> NDArray[np.int64]:
    """Where rows of given lengths, int[n], begin and end: int64[n + 1], from 0 on."""
    bounds = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=bounds[1:])
    return bounds


@dataclass(frozen=True, slots=True)
class Csr:
    """The ids of n rows: row ``i`` has ``ids[indptr[i]:indptr[i + 1]]``."""

    indptr: NDArray[np.int64]  # int64[n + 1]
    ids: NDArray[Any]  # int[nnz]
    weights: NDArray[Any] | None = None  # [nnz], one number per id; None if each counts 1

    def __len__(self) -> int:
        return len(self.indptr) - 1

    @classmethod
    def of_lengths(
        cls,
        lengths: NDArray[np.integer] | NDArray[np.bool_],
        ids: NDArray[Any],
        weights: NDArray[Any] | None = None,
    ) -> "Csr":
        """Rows of given lengths, int[n]."""
        return cls(bounds_of(lengths), ids, weights)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """How many ids each row has: int64[n]."""
        return np.diff(self.indptr)

    @property
    def numbers(self) -> NDArray[Any]:
        """The weights; ones if there are none."""
        return np.ones(len(self.ids), np.int64) if self.weights is None else self.weights

    @property
    def rows(self) -> NDArray[np.int64]:
        """The row of each id: int64[nnz]."""
        return np.repeat(np.arange(len(self)), self.lengths)

    def take(self, rows: NDArray[np.integer]) -> "Csr":
        """The given rows, int[m], in the order given."""
        return self.sliced(self.indptr[rows], (self.indptr[1:] - self.indptr[:-1])[rows])

    def sliced(self, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> "Csr":
        """Rows that each begin at an index of ``ids`` and have a length: int64[m] each."""
        indptr = bounds_of(lengths)
        indices = np.repeat(starts - indptr[:-1], lengths) + np.arange(indptr[-1])
        return Csr(indptr, self.ids[indices], None if self.weights is None else self.weights[indices])

    def masked(self, is_kept: NDArray[np.bool_]) -> "Csr":
        """The same rows, with only the ids where ``is_kept``, bool[nnz], is true."""
        weights = None if self.weights is None else self.weights[is_kept]
        return Csr(bounds_of(is_kept)[self.indptr], self.ids[is_kept], weights)

    def mapped(self, new_ids: NDArray[np.integer]) -> "Csr":
        """The same rows with other ids: the new id of each, int[V], negative to leave it out."""
        renamed = Csr(self.indptr, new_ids[self.ids], self.weights)
        has_id = renamed.ids >= 0
        return renamed if has_id.all() else renamed.masked(has_id)

    def distinct(self) -> "Csr":
        """The same rows with each id once, ascending, int32[nnz]; the ids must not have weights."""
        return Csr(*kernel.distinct_per_row(self.indptr, self.ids))

    def joined(self, other: "Csr") -> "Csr":
        """The same rows, each followed by its ids in another matrix; without weights."""
        both = Csr(self.indptr + other.indptr, np.empty(len(self.ids) + len(other.ids), self.ids.dtype))
        both.ids[self._indices_from(both.indptr[:-1])] = self.ids
        both.ids[other._indices_from(both.indptr[:-1] + self.lengths)] = other.ids
        return both

    def united(self, owners: NDArray[np.int64], num_owners: int) -> "Csr":
        """Rows united by owner, int64[n], each below ``num_owners``. Ids are distinct, without weights."""
        order = np.argsort(owners, kind="stable")
        lengths = np.bincount(owners, self.lengths, num_owners).astype(np.int64)
        return Csr.of_lengths(lengths, self.take(order).ids).distinct()

    def put_into(self, other: "Csr", rows: NDArray[np.integer]) -> None:
        """Write the rows over the rows ``rows``, int[n], of another matrix; they have the same lengths."""
        indices = self._indices_from(other.indptr[rows])
        other.ids[indices] = self.ids
        if other.weights is not None:
            other.weights[indices] = 1 if self.weights is None else self.weights

    def _indices_from(self, starts: NDArray[np.int64]) -> NDArray[np.int64]:
        """The index of each id if rows begin at ``starts``, int64[n]: int64[nnz]."""
        return np.repeat(starts - self.indptr[:-1], self.lengths) + np.arange(len(self.ids))

    @staticmethod
    def stacked(parts: "Sequence[Csr]") -> "Csr":
        """Concatenate the rows of one or more parts; without weights."""
        lengths = np.concatenate([part.lengths for part in parts])
        return Csr.of_lengths(lengths, np.concatenate([part.ids for part in parts]))

    @staticmethod
    def placed(parts: "Sequence[tuple[NDArray[np.int64], Csr]]", num_rows: int) -> "Csr":
        """One matrix from the rows of several. Each part comes with the indices of its rows, which differ.

        Rows of no part are empty.
        """
        if len(parts) == 1 and len(parts[0][0]) == num_rows and (np.diff(parts[0][0]) > 0).all():
            return parts[0][1]
        indptr = np.zeros(num_rows + 1, np.int64)
        for indices, part in parts:
            indptr[indices + 1] = part.lengths
        np.cumsum(indptr, out=indptr)
        weights = [part.weights for _, part in parts if part.weights is not None]
        whole = Csr(
            indptr,
            np.zeros(indptr[-1], parts[0][1].ids.dtype if parts else np.int32),
            np.ones(indptr[-1], np.result_type(*weights)) if weights else None,
        )
        for indices, part in parts:
            part.put_into(whole, indices)
        return whole
