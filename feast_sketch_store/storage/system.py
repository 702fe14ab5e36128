"""What the store asks of the operating system: mapped pages, status, sync, and locks of files; memory."""

import ctypes
import errno
import fcntl
import gc
import os
import struct
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# Linux's statx(2): a path without following links, the requested fields, and struct statx.
_AT_FDCWD = -100
_BASIC_STATS, _BTIME = 0x7FF, 0x800
_STATX_BYTES = 256
# Mask, mode, inode, size, and the times of birth and of the last write: seconds and nanoseconds.
_STATX = struct.Struct("=I24xH2xQQ32xqI4x16xqI")
_RANDOM, _WILL_NEED = 1, 3  # of madvise(2), on every system that has it


def map_pages(descriptor: int, size_bytes: int) -> NDArray[np.uint8]:
    """The pages of an open file as a read-only array: uint8[size_bytes], at least one byte.

    They are unmapped with the last array over them. The descriptor may be closed; Python's own `mmap` would
    keep a descriptor for each map, and a process can have only few.

    Raises OSError: the file cannot be mapped.
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

    None where the system does not report it.
    """
    if sys.platform != "linux" or not hasattr(_libc(), "malloc_trim"):  # of glibc
        return None
    gc.collect()
    _libc().malloc_trim(0)
    for line in Path("/proc/self/status").read_text("utf-8").splitlines():
        name, _, size = line.partition(":")
        if name == "RssAnon":
            return int(size.split()[0]) << 10
    return None


class FileStatus(NamedTuple):
    """What stat(2) says of a file or folder, and when it was made, in nanoseconds; 0 if unknown.

    An inode number alone distinguishes two files only while both exist: ext4 reuses it for the next file.
    """

    mode: int
    inode: int
    size_bytes: int
    born: int
    modified: int

    @classmethod
    def of(cls, path: Path) -> "FileStatus":
        """The status of a path. Raises OSError: of `os.stat`."""
        if sys.platform == "linux" and hasattr(_libc(), "statx"):
            buffer = ctypes.create_string_buffer(_STATX_BYTES)
            if not _libc().statx(_AT_FDCWD, os.fsencode(path), 0, _BASIC_STATS | _BTIME, buffer):
                mask, mode, inode, size, *times = _STATX.unpack_from(buffer)
                born, modified = (
                    seconds * 1_000_000_000 + nanoseconds
                    for seconds, nanoseconds in zip(times[::2], times[1::2], strict=True)
                )
                return cls(mode, inode, size, born if mask & _BTIME else 0, modified)
        status = path.stat()
        born = int(getattr(status, "st_birthtime", 0) * 1_000_000_000)
        return cls(status.st_mode, status.st_ino, status.st_size, born, status.st_mtime_ns)


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


# -- locks on files, which last as long as the block, or the process, that holds them ----------------

# Files of locks. A forked child closes its copies, which would outlive the holder.
_held: "weakref.WeakSet[FileIO]" = weakref.WeakSet()
_held_lock = threading.Lock()
_TRIES = 100  # to open a file whose folder others remove at the same time


def _let_go_of_locks() -> None:
    for file in list(_held):
        with suppress(OSError):
            file.close()
    _held_lock.release()


os.register_at_fork(
    before=_held_lock.acquire, after_in_parent=_held_lock.release, after_in_child=_let_go_of_locks
)


def lock(path: Path, wait: bool, make_folder: Callable[[Path], None] | None) -> FileIO | None:
    """An open file that holds the lock of a path until `unlock`; the file is created if it does not exist.

    The file lets go of the lock when nobody holds it any more: an interrupt may come before `unlock`.

    Parameters
    ----------
    wait : wait for the holder, even if it is another thread of this process; otherwise return None.
    make_folder : makes the file's folder; None to return None if there is none.

    Raises OSError: the file cannot be made or locked.
    """
    while True:
        file = _open_lock(path, make_folder)
        if file is None:
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            # During the wait, the file may have been deleted and created again: then lock the new one.
            with suppress(FileNotFoundError):
                if os.fstat(file.fileno()).st_ino == path.stat().st_ino:
                    return file
        except BlockingIOError:
            file.close()
            return None
        except BaseException:
            file.close()
            raise
        file.close()


def unlock(file: FileIO) -> None:
    """Release a lock; does nothing in a child that was forked since."""
    if not file.closed:
        # Unlock first: other processes may have copies of the descriptor, which would keep the lock.
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)
        file.close()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file, whose folder is made if it does not exist; waits for the holder."""
    file = lock(path, True, lambda folder: folder.mkdir(parents=True, exist_ok=True))
    assert file is not None
    try:
        yield
    finally:
        unlock(file)


def _open_lock(path: Path, make_folder: Callable[[Path], None] | None) -> FileIO | None:
    for _ in range(_TRIES):
        with suppress(FileNotFoundError), _held_lock:
            # The umask decides which other users may lock the file: those who may write the other files.
            file = path.open("a+b", buffering=0)
            _held.add(file)
            return file
        if make_folder is None:
            return None
        make_folder(path.parent)
    reason = "it is a link to a folder that does not exist, or its folder is being removed"
    raise FileNotFoundError(errno.ENOENT, reason, str(path))
