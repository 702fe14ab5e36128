"""Rows of ascending ids, and the operations of the NumPy kernel on them."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Sets(NamedTuple):
    """The ascending ids of rows."""

    indptr: NDArray[np.int64]
    ids: NDArray[np.int32]

    @classmethod
    def of(cls, rows: NDArray[np.int64], ids: NDArray[np.int32], num_rows: int) -> "Sets":
        """Ids of rows, in their order."""
        indptr = np.zeros(num_rows + 1, np.int64)
        np.cumsum(np.bincount(rows, minlength=num_rows), out=indptr[1:])
        return cls(indptr, ids)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """How many ids each row has."""
        return np.diff(self.indptr)

    @property
    def rows(self) -> NDArray[np.int64]:
        """The row of each id."""
        return np.repeat(np.arange(len(self.indptr) - 1), self.sizes)

    @property
    def keys(self) -> NDArray[np.int64]:
        """What orders ids by row and id."""
        return self.rows << 32 | self.ids.astype(np.int64)

    def has(self, others: "Sets") -> NDArray[np.bool_]:
        """Which ids of others are there: bool[nnz]."""
        return np.isin(others.keys, self.keys)

    def where(self, is_kept: NDArray[np.bool_]) -> "Sets":
        """Some of the ids."""
        return self.of(self.rows[is_kept], self.ids[is_kept], len(self.indptr) - 1)

    def with_all(self, others: "Sets") -> "Sets":
        """All of both; a ValueError if there is one in both."""
        keys = np.sort(np.concatenate((self.keys, others.keys)))
        if (keys[1:] == keys[:-1]).any():
            raise ValueError("a set cannot be read")
        return Sets(self.indptr + others.indptr, (keys & (2**32 - 1)).astype(np.int32))
