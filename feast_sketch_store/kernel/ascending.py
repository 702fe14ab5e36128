"""Rows of ascending ids, and the NumPy kernel's operations on them."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Sets(NamedTuple):
    """The ascending ids of rows."""

    indptr: NDArray[np.int64]
    ids: NDArray[np.int32]

    @classmethod
    def of(cls, rows: NDArray[np.int64], ids: NDArray[np.int32], num_rows: int) -> "Sets":
        """Ids of rows, ordered by row and ascending within a row."""
        indptr = np.zeros(num_rows + 1, np.int64)
        np.cumsum(np.bincount(rows, minlength=num_rows), out=indptr[1:])
        return cls(indptr, ids)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The number of ids of each row: int64[n]."""
        return np.diff(self.indptr)

    @property
    def rows(self) -> NDArray[np.int64]:
        """The row of each id: int64[nnz]."""
        return np.repeat(np.arange(len(self.indptr) - 1), self.sizes)

    @property
    def keys(self) -> NDArray[np.int64]:
        """Integers in the order of row and id: int64[nnz]."""
        return self.rows << 32 | self.ids.astype(np.int64)

    def has(self, others: "Sets") -> NDArray[np.bool_]:
        """Which ids of ``others`` are also here: bool[nnz]."""
        return np.isin(others.keys, self.keys)

    def where(self, is_kept: NDArray[np.bool_]) -> "Sets":
        """The rows with only some of the ids."""
        return self.of(self.rows[is_kept], self.ids[is_kept], len(self.indptr) - 1)

    def with_all(self, others: "Sets") -> "Sets":
        """The ids of both.

        Raises
        ------
        ValueError : an id is in both.
        """
        keys = np.sort(np.concatenate((self.keys, others.keys)))
        if (keys[1:] == keys[:-1]).any():
            raise ValueError("a set cannot be read")
        return Sets(self.indptr + others.indptr, (keys & (2**32 - 1)).astype(np.int32))
