"""CaramelDB as a peer in `records`: compressed static functions from an entity's key to its row.

It is built from source (`HOW_TO_BUILD`). A function does not know its keys: for any other key it answers
anything. Its prefilters do not test presence, either: they hold the keys whose value is not the most common
one. So the test here is the prefilter of another function, in which all entities have a rare value. Its
fingerprints of 17 bits are the shortest for a wrong presence of at most 1e-5.

A row has ids by popularity in ascending order, each as the gap from the one before. On all rows of `records`
that takes less than the ids themselves in the orders that CaramelDB offers.
"""

from collections.abc import Iterable
from itertools import accumulate, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

try:
    import carameldb
except ModuleNotFoundError:
    carameldb = None

HOW_TO_BUILD = """\
CaramelDB: not run, as it is not installed. With CMake and a C++ compiler that has OpenMP:
git clone --recurse-submodules https://github.com/detorresramos/CaramelDB && pip install ./CaramelDB/cython
"""
_FINGERPRINT_BITS = 17
# A function for each place in a row with codes of its own or the same codes, or one for whole rows.
_FORMS: tuple[dict[str, Any], ...] = ({}, {"shared_codebook": True}, {"strategy": "packed"})
# A build visits each key for each place in the longest row: for the whole graph 2e11 times.
_MOST_VISITS = 10**9


def is_feasible(indptr: NDArray[np.int64]) -> bool:
    """Whether a build of rows of these lengths takes minutes."""
    return int(np.diff(indptr).max()) * (len(indptr) - 1) <= _MOST_VISITS


class CaramelRows:
    """Rows in the smallest of CaramelDB's forms, and a test of presence.

    Parameters
    ----------
    indptr, ids : rows of ids by popularity, ascending in a row. No row is empty.
    """

    def __init__(self, indptr: NDArray[np.int64], ids: NDArray[np.int64]):
        numbers = ids.astype(np.int64) + 1
        gaps = np.diff(numbers, prepend=0)
        gaps[indptr[:-1]] = numbers[indptr[:-1]]
        rows = [gaps[first:end].tolist() for first, end in pairwise(indptr.tolist())]
        self._keys = _keys(0, len(rows))
        functions = [carameldb.Caramel(self._keys, rows, verbose=False, **form) for form in _FORMS]
        self._function = min(functions, key=_saved_bits)
        self.bits = _saved_bits(self._function)
        self._presence = _presence(self._keys)
        self.presence_bits = _saved_bits(self._presence)
        read = self.read(range(len(rows)))
        if read != [numbers[first:end].tolist() for first, end in pairwise(indptr.tolist())]:
            raise AssertionError("CaramelDB's rows are not those that it was built from")

    def read(self, rows: Iterable[int]) -> list[list[int] | None]:
        """The values of rows, as ids that begin with 1; None for a key that is absent."""
        keys, is_present, query = self._keys, self._presence.contains, self._function.query
        return [list(accumulate(query(keys[row]))) if is_present(keys[row]) else None for row in rows]


def _keys(first: int, end: int) -> list[bytes]:
    return [key.to_bytes(8, "little") for key in range(first, end)]


def _presence(keys: list[bytes]) -> Any:
    """The prefilter that holds these keys, because more others have another value."""
    others = _keys(len(keys), 2 * len(keys) + 1)
    flags = [1] * len(keys) + [0] * len(others)
    prefilter = carameldb.BinaryFuseFilterConfig(_FINGERPRINT_BITS)
    return carameldb.CSFUint32(keys + others, flags, prefilter=prefilter, verbose=False).get_filter()


def _saved_bits(part: Any) -> int:
    """Of what it saves, which is a file or a folder."""
    with TemporaryDirectory() as folder:
        part.save(str(Path(folder, "saved")))
        return 8 * sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
