"""Attribute codes: for each item of a row a small number, its attributes together, in about its entropy.

Most items of most lists have the same code, so several items share one code word. The codes of a row are
divided into blocks of m items:

    block    c0 + c1 n + c2 n^2 + ...   for codes c0, c1, ... below n
    row      the code word of each block; the last one is filled up with the usual code
    offset   where each row begins (`elias_fano`); a row ends where the next one begins

Blocks at the end of a row in which all codes are usual have no code word. A row whose items are all usual has
no bits. Code words are a canonical prefix code of at most 12 bits (Huffman). A seal chooses the m with the
fewest bits.

Source: Huffman, "A method for the construction of minimum-redundancy codes", 1952; on blocks: Shannon, "A
mathematical theory of communication", 1948, theorem 9.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store import kernel
from feast_sketch_store.succinct.coded_rows import (
    CodedRows,
    code_lengths,
    is_prefix_code,
    prefix_codes,
    prefix_table,
    put_bits,
)
from feast_sketch_store.succinct.elias_fano import EliasFano

_MAX_BLOCKS = 1 << 10  # different ones


@dataclass(frozen=True)
class AttributeCodes(CodedRows):
    """The codes of the items of n rows."""

    num_codes: int  # codes are below it
    block_items: int  # how many items a block has
    usual: int  # the most frequent code
    # uint8[num_codes**block_items], bits of the code word of each block; 0 for an unused one
    lengths: NDArray[np.uint8]

    def __post_init__(self) -> None:
        super().__post_init__()
        if (
            not 0 <= self.usual < self.num_codes
            or not 1 <= self.block_items <= _MAX_BLOCKS
            or len(self.lengths) != self.num_codes**self.block_items
            or not is_prefix_code(self.lengths)
        ):
            raise ValueError("the codes of attributes do not fit each other")

    @property
    def size_bytes(self) -> int:
        """Bytes of the code words, of their index, and of the lengths."""
        return super().size_bytes + int(self.lengths.nbytes)

    @classmethod
    def build(cls, indptr: NDArray[np.int64], codes: NDArray[np.int64], num_codes: int) -> "AttributeCodes":
        """Code the items of rows, which begin at ``indptr``, int64[n + 1], in the order of reads.

        Their codes, int64[nnz], are below ``num_codes``, which is two or more.
        """
        usual = int(np.bincount(codes, minlength=num_codes).argmax())
        sizes = [size for size in range(1, _MAX_BLOCKS.bit_length()) if num_codes**size <= _MAX_BLOCKS]
        candidates = [_Blocks.of(indptr, codes, num_codes, usual, size) for size in sizes]
        best = min(candidates, key=lambda blocks: blocks.cost_bits)
        words, ends = best.written()
        num_bits = int(ends[-1]) if len(ends) else 0
        code = num_codes, best.block_items, usual, best.lengths
        return cls(words, num_bits, EliasFano.of_starts(ends), None, *code)

    @cached_property
    def _table(self) -> NDArray[np.uint16]:
        return prefix_table(self.lengths)

    @property
    def arguments(self) -> tuple[Any, ...]:
        return self._table, self.block_items, self.num_codes, self.usual, *super().arguments


@dataclass(frozen=True)
class _Blocks:
    """The blocks of rows, without those at the end of a row that are usual, and a code for them."""

    block_items: int
    indptr: NDArray[np.int64]
    blocks: NDArray[np.int64]
    lengths: NDArray[np.uint8]

    @classmethod
    def of(
        cls, indptr: NDArray[np.int64], codes: NDArray[np.int64], num_codes: int, usual: int, block_items: int
    ) -> "_Blocks":
        sizes = np.diff(indptr)
        numbers = -(-sizes // block_items)  # of blocks of each row
        begins = np.cumsum(numbers) - numbers
        place = np.arange(len(codes)) - np.repeat(indptr[:-1], sizes)
        all_usual = sum(usual * num_codes**item for item in range(block_items))
        blocks = np.full(int(numbers.sum()), all_usual, np.int64)
        digits = (codes - usual) * num_codes ** (place % block_items)
        np.add.at(blocks, np.repeat(begins, sizes) + place // block_items, digits)
        unusual = np.flatnonzero(blocks != all_usual)
        row_of = np.repeat(np.arange(len(sizes)), numbers)
        kept = np.zeros(len(sizes), np.int64)  # how many blocks of each row, up to the last unusual one
        np.maximum.at(kept, row_of[unusual], unusual - begins[row_of[unusual]] + 1)
        is_kept = np.arange(len(blocks)) - begins[row_of] < kept[row_of]
        blocks = blocks[is_kept]
        counts = np.bincount(blocks, minlength=num_codes**block_items)
        return cls(block_items, np.append(0, np.cumsum(kept)), blocks, code_lengths(counts))

    @property
    def cost_bits(self) -> int:
        """Bits of all code words, and of their lengths."""
        return int(self.lengths[self.blocks].sum(dtype=np.int64)) + 8 * len(self.lengths)

    def written(self) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """The code words, and where each row ends."""
        lengths = self.lengths[self.blocks]
        ends = np.append(0, np.cumsum(lengths, dtype=np.int64))
        words = np.zeros(kernel.words_of_bits(int(ends[-1])), np.uint64)
        put_bits(words, 0, prefix_codes(self.lengths)[self.blocks], lengths)
        return words, ends[self.indptr[1:]]
