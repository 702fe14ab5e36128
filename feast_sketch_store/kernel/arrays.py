"""What the functions of the kernel take and return: arrays of NumPy under names."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# Packed numbers as arguments: words, width, base, length, and the check of their blocks, or None.
Numbers = tuple[Any, int, int, int, Any]

AS_IDS, AS_NUMBERS, AS_BYTES = range(3)  # kinds of the elements of a column
ABSENT, FOUND, EXPIRED = range(3)  # whether an entity has a row
NAMES, NUMBERS, BYTES = range(1, 4)  # what `RowReader.columns` returns of a feature ...
WITH_WEIGHTS = 8  # ... and more with weights


class Table(NamedTuple):
    """The table of a shifting Bloom filter; `succinct.shifting_bloom` has the formulas.

    ``words`` is uint64[num_words + window_words], C-contiguous; the last ``window_words`` repeat the first
    ones.
    """

    words: NDArray[np.uint64]
    num_words: int
    salt: tuple[int, int]


class SymbolQuery(NamedTuple):
    """Consecutive symbols: ``num_symbols`` from ``64 * first_word`` on, added with ``num_hashes`` hashes.

    Functions raise ValueError unless there are 1 to ``MAX_NUM_HASHES`` hashes. ``firsts``, int64[num_hashes],
    ascending from 0, is the first symbol covered by each hash; None if every hash covers every symbol.

    Alternatively hashes are in groups, and all groups but the first skip symbols by the entity's cluster.
    Group ``g`` ends before hash ``ends[g]``, int64[g]. ``masks``, uint64[clusters, g - 1, words], has ones
    for the symbols that skip its hashes. ``clusters``, int32[n], has the cluster of each entity.
    """

    first_word: int
    num_symbols: int
    num_hashes: int
    firsts: NDArray[np.int64] | None = None
    ends: NDArray[np.int64] | None = None
    masks: NDArray[np.uint64] | None = None
    clusters: NDArray[np.int32] | None = None

    @property
    def num_words(self) -> int:
        """Words of a row of answers."""
        return -(-self.num_symbols // 64)


class SetCodes(NamedTuple):
    """How the sets of each of F features are coded; `succinct.golomb_sets` has the formulas.

    ``parameters`` is int64[F, 3]: the width of headers; the number of headers for rows without a set; and the
    width of the number of others if the set is coded relative to those before it, else -1. Such a set has as
    many symbols as the one before it, and is never the first.

    Feature ``f`` has the levels ``levels[level_starts[f]:level_starts[f + 1]]``, uint8, one per symbol.
    ``left``, uint8[F, 320], is subtracted from them: for 0 to 255 ids left in a set, and then for more by
    half octaves; see `succinct.golomb_sets`. ``headers``, uint8[F, 256], are permutations: the header of each
    of the first ranks.
    """

    parameters: NDArray[np.int64]
    level_starts: NDArray[np.int64]
    levels: NDArray[np.uint8]
    left: NDArray[np.uint8]
    headers: NDArray[np.uint8]
