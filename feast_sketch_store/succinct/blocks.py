"""Checksums of the blocks of large arrays, so that a mapped file is checked where it is read.

Checking a table of one gigabyte takes a sixth of a second, and reads all of it from the disk. Instead each
block is checked before its first use. When all blocks have been checked, checks cost nothing.
"""

from collections.abc import Callable

import mmh3
import numpy as np
from numpy.typing import NDArray

from feast_sketch_store import kernel
from feast_sketch_store.errors import DamagedFileError

CHECKSUMS = ".checksums"  # suffix of an array's name
BLOCK_BYTES = 1 << 16
CHECKSUM_BYTES = 16
_BLOCK_WORDS = BLOCK_BYTES // 8


def block_checksums(words: NDArray[np.generic], block_bytes: int = BLOCK_BYTES) -> NDArray[np.uint8]:
    """MurmurHash3 x64 128 of each block of this size, the last one shorter: uint8[blocks, 16]."""
    content = words.reshape(-1).view(np.uint8).data
    digests = [
        mmh3.mmh3_x64_128_digest(content[first : first + block_bytes])
        for first in range(0, len(content), block_bytes)
    ]
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, CHECKSUM_BYTES)


class BlockChecks:
    """Checks the blocks of one array before their first use. Safe to use from several threads.

    Parameters
    ----------
    words : uint64[n], the array, mapped.
    checksums : uint8[blocks, 16], see `block_checksums`.
    source : the array's name and file, for error messages.
    fetch : called with the array, the first word and the number of words of blocks before they are read.

    Raises DamagedFileError: the numbers of checksums and of blocks differ.
    """

    def __init__(
        self,
        words: NDArray[np.uint64],
        checksums: NDArray[np.generic],
        source: str,
        fetch: Callable[[NDArray[np.uint64], int, int], None] | None = None,
    ):
        num_blocks = -(-len(words) // _BLOCK_WORDS)
        if (
            words.dtype != np.uint64
            or words.ndim != 1
            or checksums.dtype != np.uint8
            or checksums.shape != (num_blocks, CHECKSUM_BYTES)
        ):
            raise DamagedFileError(f"{source}: the checksums of its blocks do not fit it")
        self.block_words = _BLOCK_WORDS
        self.unchecked = np.ones(num_blocks, np.uint8)
        self.pending = np.array([num_blocks > 0], np.uint8)
        self.words = words
        self.checksums = np.ascontiguousarray(checksums, np.uint8)
        self._source = source
        self._fetch = fetch

    @property
    def all_checked(self) -> bool:
        """Whether all blocks were checked."""
        return not self.pending[0]

    def __call__(self, starts: NDArray[np.int64], num_words: int) -> None:
        """Check every block that stretches of words touch, given their first words, int64[...].

        Raises DamagedFileError: a block differs from its checksum.
        """
        if self.all_checked:
            return
        first, last = starts // _BLOCK_WORDS, (starts + (num_words - 1)) // _BLOCK_WORDS
        for step in range(int((last - first).max(initial=0)) + 1):
            blocks = np.minimum(first + step, last)
            self.check_blocks(np.unique(blocks[self.unchecked[blocks] != 0]))

    def check_blocks(self, blocks: NDArray[np.int64]) -> None:
        """Check blocks, given by their numbers; raises as a call."""
        if self._fetch is not None:  # so that all are requested from the disk at once
            for block in blocks.tolist():
                self._fetch(self.words, block * _BLOCK_WORDS, _BLOCK_WORDS)
        for block in blocks.tolist():
            self.report(block)
        if len(blocks):
            self._note_end()

    def check_ahead(self, first: int, number: int) -> None:
        """Check blocks ahead of time, while others read. A read reports a damaged block."""
        number = min(number, len(self.unchecked) - first)
        if self.all_checked or not self.unchecked[first : first + number].any():
            return
        kernel.check_blocks(self.words, self.checksums, self.block_words, self.unchecked, first, number)
        self._note_end()

    def _note_end(self) -> None:
        if not self.unchecked.any():  # what another thread notes meanwhile stays
            self.pending[0] = 0

    def report(self, block: int) -> None:
        """Check a block: raises the error of one that the kernel found damaged."""
        words = self.words[block * _BLOCK_WORDS : (block + 1) * _BLOCK_WORDS]
        if mmh3.mmh3_x64_128_digest(words.view(np.uint8).data) != self.checksums[block].tobytes():
            raise DamagedFileError(
                f"{self._source}: block {block} does not match its checksum; the file is damaged"
            )
        self.unchecked[block] = 0
