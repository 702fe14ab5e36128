"""Codes of rows, one row after the other in one string of bits."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.kernel import words_of_bits
from feast_sketch_store.succinct.blocks import BlockChecks
from feast_sketch_store.succinct.elias_fano import EliasFano
from feast_sketch_store.succinct.packed import unfinished


@dataclass(frozen=True)
class CodedRows:
    """The codes of rows. Immutable; safe to read from any number of threads.

    Parameters
    ----------
    words : uint64[n], the codes of all rows and two words more; may be memory-mapped.
    num_bits : of the codes.
    starts : the bits at which rows, or groups of rows, begin; one ends where the next one begins.
    check : of the words; None if all have been checked.

    Raises
    ------
    ValueError : the parts do not fit each other.
    """

    words: NDArray[np.uint64]
    num_bits: int
    starts: EliasFano
    check: BlockChecks | None

    def __post_init__(self) -> None:
        if (
            self.words.ndim != 1
            or self.num_bits < 0
            or len(self.words) != words_of_bits(self.num_bits)
            or self.starts.by_value
        ):
            raise ValueError("the parts of the codes of rows do not fit each other")

    @property
    def size_bytes(self) -> int:
        """Bytes of the codes and of their index."""
        return int(self.words.nbytes) + self.starts.size_bytes

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The codes in the form in which the kernel reads them; see `RowReader`."""
        return self.words, self.num_bits, unfinished(self.check), *self.starts.arguments
