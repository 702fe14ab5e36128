"""Checksums of a file's chunks, with which a fetched copy is checked part by part. No I/O."""

from collections.abc import Iterable
from dataclasses import dataclass

import mmh3


@dataclass(frozen=True)
class Chunks:
    """The checksums of a file's chunks, with which a fetched copy is checked part by part."""

    chunk_bytes: int  # the length of each chunk but the last, at least 1
    checksums: tuple[bytes, ...]  # MurmurHash3 x64 128 of each chunk

    @classmethod
    def of(cls, pieces: Iterable[bytes | memoryview], chunk_bytes: int) -> "Chunks":
        """The checksums of content that comes in pieces."""
        checksums: list[bytes] = []
        hasher, wanted = mmh3.mmh3_x64_128(), chunk_bytes
        for piece in pieces:
            rest = memoryview(piece)
            while len(rest):
                taken, rest = rest[:wanted], rest[wanted:]
                hasher.update(taken)
                wanted -= len(taken)
                if not wanted:
                    checksums.append(hasher.digest())
                    hasher, wanted = mmh3.mmh3_x64_128(), chunk_bytes
        if wanted < chunk_bytes:
            checksums.append(hasher.digest())
        return cls(chunk_bytes, tuple(checksums))

    def are_of(self, size_bytes: int) -> bool:
        """Whether a file of this many bytes has as many chunks."""
        return self.chunk_bytes > 0 and len(self.checksums) == -(-size_bytes // self.chunk_bytes)

    def match(self, start: int, part: bytes | memoryview) -> bool:
        """Whether a part that begins at a multiple of ``chunk_bytes`` has the right bytes."""
        return mmh3.mmh3_x64_128_digest(part) == self.checksums[start // self.chunk_bytes]


@dataclass(frozen=True)
class KnownFile:
    """A file that never changes, as its manifest describes it: its size and its chunks."""

    size_bytes: int
    chunks: Chunks
