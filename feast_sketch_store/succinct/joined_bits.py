"""Strings of bits, one after the other, in words."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.kernel import words_of_bits

_WORD_BITS = 64


class Words(Protocol):
    """Takes words up one after the other."""

    def append(self, words: NDArray[np.uint64], /) -> None:
        """Take up uint64[n]."""

    def joined(self) -> NDArray[np.uint64]:
        """All of them."""


class JoinedBits:
    """Joins strings of bits, whose first bit is the lowest one of their first word.

    Parameters
    ----------
    words : gets the words of the whole.

    Attributes
    ----------
    num_bits : of the strings so far.
    """

    def __init__(self, words: Words):
        self._words = words
        self._num_words = 0
        self._rest = np.uint64(0)  # the bits that do not fill a word yet
        self.num_bits = 0

    def append(self, words: NDArray[np.uint64], num_bits: int) -> None:
        """Take up a string, uint64[n]; words may have zeros behind its end."""
        shift = self.num_bits % _WORD_BITS
        own = words[: -(-num_bits // _WORD_BITS)]
        moved = np.zeros(len(own) + 1, np.uint64)
        moved[:-1] = own << np.uint64(shift)
        if shift:
            moved[1:] |= own >> np.uint64(_WORD_BITS - shift)
        moved[0] |= self._rest
        full = (shift + num_bits) // _WORD_BITS
        self._words.append(moved[:full])
        self._rest = moved[full]
        self._num_words += full
        self.num_bits += num_bits

    def finish(self) -> NDArray[np.uint64]:
        """All strings, in the words of `words_of_bits`."""
        end = np.zeros(words_of_bits(self.num_bits) - self._num_words, np.uint64)
        end[0] = self._rest
        self._words.append(end)
        return self._words.joined()
