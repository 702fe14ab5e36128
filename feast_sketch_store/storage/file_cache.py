"""A local folder of fetched files, which the processes of a host map together.

    <content>            a file, named by a hash of what identifies its content
    <content>.partial    the parts of it that were fetched, in order
    <content>.sums       a checksum of each
    <content>.lock       held by the process that fetches; others wait and then find the file

An interrupted fetch continues after the last part whose checksum matches. Files may be deleted at any time.
"""

import hashlib
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import mmh3
import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.errors import StorageError
from feast_sketch_store.storage.locks import lock, unlock
from feast_sketch_store.storage.system import fsync_path, map_pages

PART_BYTES = 8 << 20
_FETCHERS = 4
_SUM_BYTES = 16
_UNUSED_SECONDS = 7 * 86_400.0  # after which a file is deleted
_UNFINISHED = (".partial", ".sums")

FetchPart = Callable[[int, int], bytes | None]


class FileCache:
    """The files of a folder. Safe to use from several threads and processes.

    Parameters
    ----------
    path : the folder; it need not exist.
    """

    def __init__(self, path: Path):
        self.path = path

    def map(self, content: str, size_bytes: int, fetch: FetchPart) -> NDArray[np.uint8] | None:
        """A file's bytes, fetched if no process of the host has done so.

        Parameters
        ----------
        content : identifies the content.
        fetch : returns the bytes from one place up to another; None if the content no longer exists.

        Returns
        -------
        uint8[size_bytes]; None if the content is not there any more.

        Raises
        ------
        StorageError : the folder cannot be used, or what ``fetch`` raises.
        """
        if size_bytes == 0:
            return np.zeros(0, np.uint8)
        path = self.path / hashlib.blake2b(f"{content}\n{size_bytes}".encode(), digest_size=16).hexdigest()
        try:
            with suppress(FileNotFoundError):
                return _mapped(path, size_bytes)
            held = lock(
                path.with_suffix(".lock"), True, lambda folder: folder.mkdir(parents=True, exist_ok=True)
            )
            assert held is not None
            try:
                if not path.exists() and not self._fetch(path, size_bytes, fetch):
                    return None
                return _mapped(path, size_bytes)
            finally:
                unlock(held)
        except OSError as error:
            raise StorageError(f"{self.path}: the cache cannot be used: {error}") from error

    def _fetch(self, path: Path, size_bytes: int, fetch: FetchPart) -> bool:
        """Fetch the missing parts of a file and rename it into place; the lock is held."""
        partial, sums = (path.with_suffix(suffix) for suffix in _UNFINISHED)
        partial.touch()
        sums.touch()
        with (
            partial.open("r+b") as file,
            sums.open("r+b") as checksums,
            ThreadPoolExecutor(_FETCHERS, "feast_sketch_store fetch") as pool,
        ):
            start = _sound_bytes(partial, sums, size_bytes)
            file.truncate(start)
            file.seek(start)
            checksums.truncate(-(-start // PART_BYTES) * _SUM_BYTES)
            checksums.seek(0, os.SEEK_END)
            starts = range(start, size_bytes, PART_BYTES)
            for first in range(0, len(starts), _FETCHERS):
                some = starts[first : first + _FETCHERS]
                for place, part in zip(
                    some, pool.map(lambda at: fetch(at, min(at + PART_BYTES, size_bytes)), some), strict=True
                ):
                    if part is None or len(part) != min(PART_BYTES, size_bytes - place):
                        return False
                    file.write(part)
                    checksums.write(mmh3.mmh3_x64_128_digest(part))
                file.flush()
                checksums.flush()
            os.fsync(file.fileno())
        partial.rename(path)
        fsync_path(self.path)
        sums.unlink(missing_ok=True)
        self._forget()
        return True

    def _forget(self) -> None:
        """Delete files that were not used for long; processes that map them keep their pages."""
        oldest = time.time() - _UNUSED_SECONDS
        for path in self.path.iterdir():
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < oldest:
                    path.unlink()


def _mapped(path: Path, size_bytes: int) -> NDArray[np.uint8]:
    with path.open("rb") as file:
        with suppress(OSError):  # of another user
            os.utime(path)
        if os.fstat(file.fileno()).st_size != size_bytes:
            raise StorageError(f"{path}: a file of the cache was cut; delete it")
        return map_pages(file.fileno(), size_bytes)


def _sound_bytes(partial: Path, sums: Path, size_bytes: int) -> int:
    """How many bytes at the beginning of a partial file are those that were fetched."""
    known = sums.read_bytes()
    sound = 0
    with partial.open("rb") as file:
        for first in range(0, len(known) - _SUM_BYTES + 1, _SUM_BYTES):
            part = file.read(PART_BYTES)
            is_whole = len(part) == min(PART_BYTES, size_bytes - sound)
            if not is_whole or mmh3.mmh3_x64_128_digest(part) != known[first : first + _SUM_BYTES]:
                break
            sound += len(part)
    return sound
