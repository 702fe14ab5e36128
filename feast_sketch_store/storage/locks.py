"""Locks on files that last as long as the block, or the process, that holds them."""

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# Descriptors of locks. A forked child closes its copies, which would outlive the holder.
_held: set[int] = set()
_held_lock = threading.Lock()


def _let_go_of_locks() -> None:
    while _held:
        with suppress(OSError):
            os.close(_held.pop())
    _held_lock.release()


os.register_at_fork(
    before=_held_lock.acquire, after_in_parent=_held_lock.release, after_in_child=_let_go_of_locks
)


def lock(path: Path, wait: bool, make_folder: Callable[[Path], None] | None) -> int | None:
    """A descriptor that holds the lock of a file, which is created if it does not exist.

    Parameters
    ----------
    path : of the file.
    wait : wait for the holder, even if it is another thread of this process; otherwise return None.
    make_folder : makes the file's folder; None to return None if there is none.

    Raises
    ------
    OSError : the file cannot be made or locked.
    """
    while True:
        descriptor = _open(path, make_folder)
        if descriptor is None:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            # During the wait, the file may have been deleted and created again: then lock the new one.
            with suppress(FileNotFoundError):
                if os.fstat(descriptor).st_ino == path.stat().st_ino:
                    return descriptor
        except BlockingIOError:
            _close(descriptor)
            return None
        except BaseException:
            _close(descriptor)
            raise
        _close(descriptor)


def unlock(descriptor: int) -> None:
    """Release a lock; does nothing in a child that was forked since."""
    # Unlock first: other processes may have copies of the descriptor, which would keep the lock.
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    _close(descriptor)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file, whose folder is made if it does not exist; waits for the holder."""
    descriptor = lock(path, True, lambda folder: folder.mkdir(parents=True, exist_ok=True))
    assert descriptor is not None
    try:
        yield
    finally:
        unlock(descriptor)


def _open(path: Path, make_folder: Callable[[Path], None] | None) -> int | None:
    while True:
        with suppress(FileNotFoundError), _held_lock:
            # The umask decides which other users may lock the file: those who may write the other files.
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            _held.add(descriptor)
            return descriptor
        if make_folder is None:
            return None
        make_folder(path.parent)


def _close(descriptor: int) -> None:
    with _held_lock:
        _held.discard(descriptor)
        os.close(descriptor)
