"""The memory of the parts of a sealed layer, computed before they are built, for the choice of structures.

Sizes of tables, packed integers and columns are exact to the word. Sets are coded on trial for some of the
rows; without a trial, their bits are estimated from the entropy of independent symbols.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.succinct import golomb_sets
from feast_sketch_store.succinct.fingerprints import expected_bits
from feast_sketch_store.succinct.gap_levels import Levels
from feast_sketch_store.succinct.packed import num_words_for

_WORD_BITS = 64


class Sharing(Protocol):
    """What features save if they are coded in chains."""

    def saved_bits(self, numbers: Collection[int]) -> float:
        """Bits, found by trial, that the features with these numbers save in sets."""


@dataclass(frozen=True, eq=False)
class Popularity:
    """How often each symbol of a feature occurs.

    Parameters
    ----------
    counts : int64[V], the rows with each symbol.
    num_rows : number of all rows.
    num_empty : rows without symbols; their reads show none.
    coded : int64[m], bits of the sets of some rows, coded on trial; None if there was no trial.
    state_width : bits of a row's state in a column; None for one bit if there are rows without symbols.
    sharing, number : the features with which it may be coded, and its number among them; None for none.
    gaps : the levels that were fitted in the trial to all rows or to enough of them; else None.
    """

    counts: NDArray[np.int64]
    num_rows: int
    num_empty: int = 0
    coded: NDArray[np.int64] | None = None
    state_width: int | None = None
    sharing: Sharing | None = None
    number: int = 0
    gaps: Levels | None = None

    @property
    def num_filled(self) -> int:
        """The number of rows with symbols."""
        return max(1, self.num_rows - self.num_empty)

    @property
    def num_facts(self) -> int:
        """The number of facts."""
        return int(self.counts.sum())

    @property
    def mean_absent(self) -> float:
        """The mean number of symbols that a row with symbols lacks."""
        return max(0.0, len(self.counts) - self.num_facts / self.num_filled)

    @property
    def window_words(self) -> int:
        """Words of a window of a filter that the symbols take up."""
        return -(-len(self.counts) // _WORD_BITS)

    @property
    def states_bytes(self) -> int:
        """Bytes of a column of the states of the rows."""
        width = int(self.num_empty > 0) if self.state_width is None else self.state_width
        return packed_bytes(self.num_rows, width)


def packed_bytes(length: int, width: int) -> int:
    """Bytes of ``length`` packed integers of ``width`` bits."""
    return 8 * num_words_for(length, width)


def table_bytes(num_bits: float, window_words: int) -> float:
    """Bytes of a filter's table, at least one window long, and of the head that it repeats."""
    window_words = max(1, window_words)
    return 8 * (max(math.ceil(num_bits / _WORD_BITS), window_words) + window_words)


def index_bytes(num_rows: int, presence_error_rate: float) -> float:
    """Bytes of the fingerprints of a list of rows."""
    return expected_bits(num_rows, presence_error_rate) / 8


def timestamps_bytes(num_rows: int, distinct: NDArray[np.int64]) -> int:
    """Bytes of a column of timestamps, given the distinct ones, ascending."""
    if not len(distinct):
        return 0
    plain = packed_bytes(num_rows, int(distinct[-1] - distinct[0]).bit_length())
    ids = packed_bytes(num_rows, max(1, (len(distinct) - 1).bit_length()))
    vocabulary = Vocabulary(pa.array(distinct))
    return plain if plain <= ids + vocabulary.size_bytes else ids + vocabulary.packed_bytes


def set_bits(popularity: Popularity) -> float:
    """Bits of the codes of sets: from the trial, or else estimated from their symbols and sizes."""
    coded, num_facts, num_rows = popularity.coded, popularity.num_facts, popularity.num_rows
    if coded is not None and len(coded):
        return float(coded.sum()) * num_rows / len(coded)
    mean = num_facts / max(1, num_rows)
    least = golomb_sets.ideal_bits(popularity.counts, popularity.num_filled)
    return least + num_rows * (1 + math.log2(1 + mean))


def sets_bytes(parts: Sequence[Popularity]) -> float:
    """Bytes of the sets of some features of the same rows, and of the index of the rows in them."""
    if not parts:
        return 0.0
    num_bits = sum(map(set_bits, parts))
    starts = golomb_sets.starts_bytes(parts[0].num_rows, num_bits)
    return 8 * (num_bits // _WORD_BITS + 3) + starts
