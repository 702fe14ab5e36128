"""Integers of equal width, back to back, each found without reading the others."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store import kernel
from feast_sketch_store.kernel import Numbers, words_of_bits
from feast_sketch_store.succinct.blocks import BlockChecks

_WORD_BITS = 64
_BLOCK = 64  # this many numbers of w bits take exactly w words
_BLOCKS_PER_CHUNK = 1 << 10
_PART = 1 << 20  # numbers that are unpacked at once


@dataclass(frozen=True)
class PackedInts:
    """``length`` integers; number ``i`` is ``base`` plus bits ``[i * width, (i + 1) * width)`` of ``words``.

    Raises ValueError: the number of words does not fit the numbers.
    """

    # uint64[n], little-endian bits; n is that of `num_words_for`. May be memory-mapped
    words: NDArray[np.uint64]
    width: int  # bits of a number, 0 to 64; 0 if all are equal
    base: int  # the smallest number, an int64
    length: int  # how many numbers
    check: BlockChecks | None = None  # see `BlockChecks`; None if all words have been checked

    def __post_init__(self) -> None:
        if not 0 <= self.width <= _WORD_BITS or self.length < 0 or not -(2**63) <= self.base < 2**63:
            raise ValueError(f"{self.length} numbers of {self.width} bits from {self.base} on are impossible")
        if self.words.shape != (num_words_for(self.length, self.width),):
            raise ValueError(
                f"{self.length} numbers of {self.width} bits do not take {self.words.shape} words"
            )

    @classmethod
    def pack(cls, numbers: NDArray[np.integer], min_width: int = 0, base: int | None = None) -> "PackedInts":
        """Pack numbers into the fewest bits for their largest difference.

        Parameters
        ----------
        numbers : int[n], of a type whose values fit into int64.
        min_width : the fewest bits of a number.
        base : a lower bound of the numbers; None for the smallest of them.
        """
        if base is None:
            base = int(numbers.min()) if len(numbers) else 0
        width = max(min_width, (int(numbers.max()) - base).bit_length()) if len(numbers) else min_width
        num_blocks = -(-len(numbers) // _BLOCK)
        words = np.zeros(num_blocks * width + 2, np.uint64)
        if width:
            blocks = words[:-2].reshape(-1, width)
            for first in range(0, len(blocks), _BLOCKS_PER_CHUNK):
                chunk = numbers[first * _BLOCK : (first + _BLOCKS_PER_CHUNK) * _BLOCK].astype(np.int64)
                # Differences of int64 may overflow; as uint64 they are right.
                differences = chunk.view(np.uint64) - np.uint64(base % 2**64)
                padded = np.zeros(-(-len(chunk) // _BLOCK) * _BLOCK, np.uint64)
                padded[: len(chunk)] = differences
                places = range(min(_BLOCK, len(chunk)))
                _pack_blocks(padded.reshape(-1, _BLOCK), blocks[first : first + _BLOCKS_PER_CHUNK], places)
        return cls(words[: num_words_for(len(numbers), width)], width, base, len(numbers))

    @property
    def size_bytes(self) -> int:
        """Bytes of the words."""
        return int(self.words.nbytes)

    def take(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The numbers with the given indexes, int64[n], each in ``[0, length)``.

        Raises ValueError: an index is out of range, and numbers have bits.
        """
        if not self.width:
            return np.full(len(places), self.base)
        if self.check is not None and not self.check.all_checked:
            self.check(places * self.width >> 6, 2)
        numbers = np.empty(len(places), np.uint64)
        kernel.take_packed(self.words, self.width, self.length, kernel.plain(places, np.int64), numbers)
        if self.base:
            numbers += np.uint64(self.base % 2**64)
        return numbers.view(np.int64)

    def parts(self) -> Iterator[NDArray[np.int64]]:
        """All numbers in their order, some at a time."""
        for first in range(0, self.length, _PART):
            yield self.take(np.arange(first, min(first + _PART, self.length)))

    @property
    def arguments(self) -> Numbers:
        """The numbers in the form that the kernel takes; see `RowReader`."""
        return self.words, self.width, self.base, self.length, unfinished(self.check)


NO_NUMBERS: Numbers = (np.zeros(0, np.uint64), 0, 0, 0, None)


def unfinished(check: BlockChecks | None) -> BlockChecks | None:
    """A check; None if all of its blocks have been checked."""
    return None if check is None or check.all_checked else check


def num_words_for(length: int, width: int) -> int:
    """The words of this many numbers; 0 if they have no bits."""
    return words_of_bits(length * width) if width and length else 0


def _pack_blocks(numbers: NDArray[np.uint64], words: NDArray[np.uint64], places: range) -> None:
    """Pack uint64[m, 64] into uint64[m, width], which must be zero; all numbers elsewhere are zero."""
    width = words.shape[1]
    for place in places:
        word, shift = divmod(place * width, _WORD_BITS)
        words[:, word] |= numbers[:, place] << np.uint64(shift)
        if shift + width > _WORD_BITS:
            words[:, word + 1] |= numbers[:, place] >> np.uint64(_WORD_BITS - shift)
