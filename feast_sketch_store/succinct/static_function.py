"""Static functions, or Bloomier filters: the number of each key, and "absent" for nearly all other keys.

A table has m slots of b bits. The hash of a key gives a first slot, and 64 coefficients for the slots from it
on. The number of a key is the exclusive or of the slots whose coefficient is 1:

    hash  ->  start, coefficients, mask     slots  ....|start|s+1|s+2| ... |s+63|....
    number(key) = mask ^ XOR over i of coefficient_i * slot[start + i]               (of b bits)

The slots are the solution of a linear system in which each row is 64 wide, so it is solved in linear time
(the ribbon construction). Any other key gets one of ``2 ** b`` numbers. The mask makes them equally probable:
without it, the equation of such a key would often be a sum of those of keys, whose numbers all have high bits
of 0. Valid numbers are below ``num_symbols``, so an unknown key reads as present with the probability

    num_symbols / 2 ** b  <=  rate        so        b = ceil(log2(num_symbols / rate))

With only 1.5 % more slots than keys, about 0.3 % of the keys do not fit; they are listed with their hashes.
Together this takes 3 % more than b bits per key. The construction with three probes (XOR, or that of
Chazelle, Kilian, Rubinfeld and Tal) takes 23 % more.

Sources: Chazelle, Kilian, Rubinfeld and Tal, "The Bloomier Filter", SODA 2004; Dillinger and Walzer, "Ribbon
filter: practically smaller than Bloom and Xor", 2021; Dillinger, Huebschle-Schneider, Sanders and Walzer,
"Fast Succinct Retrieval and Approximate Membership using Ribbon", SEA 2022.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store import kernel
from feast_sketch_store.kernel import masks_of
from feast_sketch_store.succinct.blocks import BlockChecks

_SLOTS_PER_KEY = 1.015
_SLOTS_FOR_ALL = 1.03
_SEGMENT = 64
MAX_WIDTH = 62  # so that numbers are int64


def width_for(num_symbols: int, rate: float) -> int:
    """Bits of a slot for which an unknown key reads as a symbol with at most this rate."""
    # The number may be too large for a float: the product of many vocabularies.
    return max(1, math.ceil(math.log2(max(1, num_symbols)) - math.log2(rate) - 1e-9))


def num_slots_for(num_keys: int) -> int:
    """Slots of a table for this many keys."""
    return -(-(math.ceil(_SLOTS_PER_KEY * num_keys) + _SEGMENT - 1) // _SEGMENT) * _SEGMENT


def expected_bytes(num_keys: int, num_symbols: int, rate: float) -> float:
    """Approximate bytes of a static function: its slots, and the listed keys with their hashes."""
    width, num_slots = width_for(num_symbols, rate), num_slots_for(num_keys)
    # For up to some 7,000 keys, the slots are rounded up to so many that hardly any key is left over.
    share_left = 0.003 if num_slots < _SLOTS_FOR_ALL * num_keys else 0.0
    return 8 * width * (num_slots / _SEGMENT + 1) + share_left * num_keys * 16


@dataclass(frozen=True)
class StaticFunction:
    """The numbers of keys. Immutable; safe to read from any number of threads.

    Raises ValueError: the parts do not fit each other.
    """

    # uint64[(num_slots / 64 + 1) * width]; a word has bit j of 64 slots. May be memory-mapped
    words: NDArray[np.uint64]
    width: int  # bits of a slot, 1 to ``MAX_WIDTH``
    num_symbols: int  # numbers below it mean that the key is present
    # left_hashes, left_numbers: uint64[l], ascending, and int64[l]: the keys that did not fit into the table
    left_hashes: NDArray[np.uint64]
    left_numbers: NDArray[np.int64]
    check: BlockChecks | None = None  # see `BlockChecks`; None if all words have been checked

    def __post_init__(self) -> None:
        if not 1 <= self.width <= MAX_WIDTH or not 0 <= self.num_symbols <= 1 << self.width:
            raise ValueError(f"{self.num_symbols} symbols do not fit {self.width} bits")
        if self.num_slots < _SEGMENT or self.words.shape != ((self.num_slots // _SEGMENT + 1) * self.width,):
            raise ValueError("the slots of a static function do not fit its words")
        if (
            self.left_hashes.shape != self.left_numbers.shape
            or (self.left_hashes[1:] <= self.left_hashes[:-1]).any()
            or ((self.left_numbers < 0) | (self.left_numbers >= self.num_symbols)).any()
        ):
            raise ValueError("the keys beside a static function are not in order, or have no symbols")

    @classmethod
    def build(
        cls, hashes: NDArray[np.uint64], numbers: NDArray[np.int64], num_symbols: int, rate: float
    ) -> "StaticFunction":
        """The function of n keys.

        Parameters
        ----------
        hashes : uint64[n], distinct.
        numbers : int64[n], below ``num_symbols``.
        rate : the highest rate at which another key may read as present.

        Raises ValueError: it would take more than ``MAX_WIDTH`` bits.
        """
        width, num_slots = width_for(num_symbols, rate), num_slots_for(len(hashes))
        if width > MAX_WIDTH:
            raise ValueError(f"{num_symbols} symbols at a rate of {rate:g} take more than {MAX_WIDTH} bits")
        order = np.argsort(hashes)  # in the order of their first slots, equations take few steps each
        hashes, numbers = hashes[order], numbers[order]
        masked = numbers.view(np.uint64) ^ masks_of(hashes, width)
        # The equation that begins at each slot, and the keys whose equations contradict those before.
        coefficients, results = np.zeros((2, num_slots), np.uint64)
        left = np.zeros(len(hashes), np.bool_)
        kernel.band_rows(hashes, masked, num_slots, coefficients, results, left)
        words = np.zeros((num_slots // _SEGMENT + 1) * width, np.uint64)
        kernel.solve_slots(coefficients, results, width, words)
        return cls(words, width, num_symbols, hashes[left], numbers[left])

    @property
    def num_slots(self) -> int:
        """Slots of the table."""
        return (len(self.words) // self.width - 1) * _SEGMENT

    @property
    def arguments(self) -> tuple[NDArray[np.uint64], int, int, int, NDArray[np.uint64], NDArray[np.int64]]:
        """The parts as functions of the kernel take them."""
        return self.words, self.width, self.num_slots, self.num_symbols, self.left_hashes, self.left_numbers

    @property
    def size_bytes(self) -> int:
        """Bytes of the table, and of the listed keys."""
        return int(self.words.nbytes + self.left_hashes.nbytes + self.left_numbers.nbytes)
