"""Temporary storage of a seal: arrays that it needs later, one at a time.

The first ones stay in memory. All others go to a file in the folder for temporary files, which has no name
and ends with the seal; the system keeps as much of it in memory as fits.
"""

import logging
import mmap
import os
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.errors import StorageError

_logger = logging.getLogger(__name__)

MEMORY_BYTES = 1 << 25  # kept in memory; so seals of a few million facts write no file


class Spill:
    """Stores arrays, the first bytes in memory, then in a file. Not safe to use from several threads."""

    def __init__(self, memory_bytes: int | None = None):
        self._room: float = MEMORY_BYTES if memory_bytes is None else memory_bytes
        self._descriptor = -1
        self._end = 0

    def keep(self, array: NDArray[Any]) -> "SpilledArray":
        """Store an array of one axis.

        If the file cannot be written, this array and all others stay in memory, with a warning.
        """
        array = np.ascontiguousarray(array)
        if array.nbytes > self._room:
            try:
                return self._written(array)
            except OSError as error:
                self._room = np.inf
                _logger.warning(
                    "a seal cannot write its temporary file (%s), and uses more memory instead; set "
                    "the environment variable TMPDIR to a folder with free space",
                    error,
                )
        self._room -= array.nbytes
        return SpilledArray(array.dtype, len(array), in_memory=array)

    def _written(self, array: NDArray[Any]) -> "SpilledArray":
        if self._descriptor < 0:
            self._descriptor = _unnamed_file()
            weakref.finalize(self, os.close, self._descriptor)
        start, left = self._end, array.data.cast("B")
        while len(left):
            written = os.pwrite(self._descriptor, left, self._end)
            self._end, left = self._end + written, left[written:]
        return SpilledArray(array.dtype, len(array), self, self._descriptor, start)


def _unnamed_file() -> int:
    """A new file that is gone when its descriptor is closed."""
    descriptor, name = tempfile.mkstemp(prefix="feast_sketch_store-seal-")
    Path(name).unlink()
    return descriptor


@dataclass(frozen=True)
class SpilledArray:
    """A stored array of one axis, in the file of ``spill`` from the byte ``start`` on, or in memory."""

    dtype: np.dtype[Any]
    length: int
    spill: Spill | None = None
    descriptor: int = -1
    start: int = 0
    in_memory: NDArray[Any] | None = None

    def read(self, first: int = 0, end: int | None = None) -> NDArray[Any]:
        """The elements from one to before another; not to be changed.

        Raises StorageError: the file cannot be read.
        """
        end = self.length if end is None else end
        if self.in_memory is not None:
            return self.in_memory[first:end]
        array = np.empty(end - first, self.dtype)
        if len(array):
            self._fill(array.data.cast("B"), self.start + first * self.dtype.itemsize)
        return array

    def _fill(self, left: memoryview, offset: int) -> None:
        while len(left):
            try:
                number = os.preadv(self.descriptor, [left], offset)
            except OSError as error:
                raise StorageError(f"a temporary file of a seal cannot be read: {error}") from error
            if not number:
                raise StorageError("a temporary file of a seal is shorter than it was")
            offset, left = offset + number, left[number:]


class SpilledArrays:
    """A list of stored arrays, each read on access."""

    def __init__(self, spill: Spill):
        self._spill = spill
        self._kept: list[SpilledArray] = []

    def append(self, array: NDArray[Any]) -> None:
        """Store another one."""
        self._kept.append(self._spill.keep(array))

    def pop(self) -> NDArray[Any]:
        """Read and remove the last one."""
        return self._kept.pop().read()

    def joined(self) -> NDArray[Any]:
        """All of them in one; there must be at least one."""
        bounds = np.cumsum([0, *(kept.length for kept in self._kept)])
        whole = np.empty(bounds[-1], self._kept[0].dtype)
        for kept, first, end in zip(self._kept, bounds, bounds[1:], strict=False):
            whole[first:end] = kept.read()
        return whole

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, number: int) -> NDArray[Any]:
        return self._kept[number].read()

    def __iter__(self) -> Iterator[NDArray[Any]]:
        return (kept.read() for kept in self._kept)


class SpilledWords:
    """Words of 64 bits that become one array, in a file of the same kind if it can be written."""

    def __init__(self) -> None:
        self._spill = Spill(0)
        self._parts: list[SpilledArray] = []

    def append(self, words: NDArray[np.uint64]) -> None:
        """Add words at the end."""
        if len(words):
            self._parts.append(self._spill.keep(words))

    def joined(self) -> NDArray[np.uint64]:
        """All words; not to be changed. They are mapped if all of them are in the file, and can be mapped."""
        if self._parts and all(part.in_memory is None for part in self._parts):
            size = sum(part.length for part in self._parts) * 8
            with suppress(OSError):
                mapped = mmap.mmap(self._parts[0].descriptor, size, access=mmap.ACCESS_READ)
                return np.frombuffer(mapped, np.uint64)
        return np.concatenate([np.zeros(0, np.uint64), *(part.read() for part in self._parts)])
