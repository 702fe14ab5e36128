"""System calls that Python does not offer, or offers only with a descriptor kept open."""

import ctypes
import errno
import gc
import os
import sys
import weakref
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Linux's statx(2): the file, the request for its time of birth, and where the answer is in struct statx.
_AT_FDCWD = -100
_BTIME = 0x800
_RANDOM, _WILL_NEED = 1, 3  # of madvise(2), on every system that has it
_STATX_BYTES = 256
_STATX_FIELDS = ((0, 4), (0x20, 8), (0x50, 8), (0x58, 4))  # offset, size of mask, ino, btime


def map_pages(descriptor: int, size_bytes: int) -> NDArray[np.uint8]:
    """The pages of an open file as a read-only array: uint8[size_bytes], at least one byte.

    They are unmapped with the last array over them. The descriptor may be closed; Python's own `mmap` would
    keep a descriptor for each map, and a process can have only few.

    Raises
    ------
    OSError : the file cannot be mapped.
    """
    return np.asarray(_Pages(descriptor, size_bytes))


class _Pages:
    """The buffer under a NumPy array, which keeps it alive."""

    def __init__(self, descriptor: int, size_bytes: int):
        libc = _libc()
        prot_read, map_shared = 1, 1
        address = libc.mmap(None, size_bytes, prot_read, map_shared, descriptor, 0)
        if address == ctypes.c_void_p(-1).value:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self.__array_interface__ = {
            "version": 3,
            "shape": (size_bytes,),
            "typestr": "|u1",
            "data": (address, True),
        }
        # Threads may still read when the interpreter exits.
        weakref.finalize(self, libc.munmap, address, size_bytes).atexit = False


def reads_are_scattered(words: NDArray[np.uint64]) -> None:
    """Make the system read only the requested pages of a mapped array, not those around them."""
    _advise(words, _RANDOM)


def will_need(words: NDArray[np.uint64], first: int, number: int) -> None:
    """Make the system load words of a mapped array that are not in memory; words past its end are ignored."""
    _advise(words[first : first + number], _WILL_NEED)


def _advise(words: NDArray[np.uint64], advice: int) -> None:
    if words.nbytes:
        page = os.sysconf("SC_PAGE_SIZE")
        start = words.ctypes.data // page * page
        _libc().madvise(start, words.ctypes.data + words.nbytes - start, advice)


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *3 * [ctypes.c_int], ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc


def private_bytes() -> int | None:
    """The memory of this process that it shares with no other one, without what it has set free.

    None where the system does not tell.
    """
    if sys.platform != "linux" or not hasattr(_libc(), "malloc_trim"):  # of glibc
        return None
    gc.collect()
    _libc().malloc_trim(0)
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, size = line.partition(":")
        if name == "RssAnon":
            return int(size.split()[0]) << 10
    return None


def born_at(path: Path, inode: int) -> int | None:
    """When a file was made, in nanoseconds: 0 if the file system does not know, None if the file is gone.

    An inode number alone distinguishes two files only while both exist: ext4 reuses it for the next file.

    Parameters
    ----------
    path : of the file.
    inode : of the file that is meant; another file may have taken its name.
    """
    if sys.platform != "linux" or not hasattr(_libc(), "statx"):
        return int(getattr(path.stat(), "st_birthtime", 0) * 1_000_000_000)
    buffer = ctypes.create_string_buffer(_STATX_BYTES)
    if _libc().statx(_AT_FDCWD, os.fsencode(path), 0, _BTIME, buffer):
        return None if ctypes.get_errno() == errno.ENOENT else 0
    mask, found, seconds, nanoseconds = (
        int.from_bytes(buffer.raw[first : first + size], sys.byteorder) for first, size in _STATX_FIELDS
    )
    if found != inode:
        return None
    return seconds * 1_000_000_000 + nanoseconds if mask & _BTIME else 0


def fdatasync(descriptor: int) -> None:
    """Make an open file's content and size durable."""
    getattr(os, "fdatasync", os.fsync)(descriptor)  # macOS has only fsync


def fsync_path(path: Path) -> None:
    """Make a file's content, or a folder's entries, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
