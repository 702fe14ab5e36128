"""A local folder of fetched files, which all processes of a host map.

    <content>            a file, named by a hash of what identifies its content
    <content>.partial    the parts of it that were fetched, one after the other
    <content>.sums       a checksum of each part, if no manifest has them
    <content>.lock       held by the process that fetches; others wait and then find the file

An interrupted fetch continues after the last part with a matching checksum. Files may be deleted at any time.
"""

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import mmh3
import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.errors import StorageError
from feast_sketch_store.storage.chunks import KnownFile
from feast_sketch_store.storage.locks import lock, unlock
from feast_sketch_store.storage.system import fsync_path, map_pages
from feast_sketch_store.threads import Threads

PART_BYTES = 8 << 20
_FETCHERS = 4
_SUM_BYTES = 16
_UNUSED_SECONDS = 7 * 86_400.0  # after which a file is deleted ...
_LET_GO_SECONDS = 3_600.0  # ... or a file that another has replaced, and that no process keeps
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
        """A file's bytes; fetched, unless a process of the host has done so before.

        Parameters
        ----------
        content : identifies the content.
        size_bytes : of the file.
        fetch : returns the bytes from one position up to another; None if the content no longer exists.

        Returns
        -------
        uint8[size_bytes]; None if the content no longer exists.

        Raises
        ------
        StorageError : the folder cannot be used; or any error of ``fetch``.
        """
        if size_bytes == 0:
            return np.zeros(0, np.uint8)
        path = self._path(content, size_bytes)
        return self._map(path, size_bytes, lambda: self._fetch(path, size_bytes, fetch))

    def map_known(
        self, content: str, known: KnownFile, fetch: Callable[[int, int], bytes]
    ) -> NDArray[np.uint8]:
        """`map` for a file with known chunks. They check what ``fetch`` returns.

        Raises
        ------
        StorageError : the folder cannot be used; or any error of ``fetch``.
        """
        path = self._path(content, known.size_bytes)
        if known.size_bytes == 0:
            return np.zeros(0, np.uint8)
        found = self._map(path, known.size_bytes, lambda: self._fetch_known(path, known, fetch))
        assert found is not None
        return found

    def drop_damaged(self, content: str, known: KnownFile) -> bool:
        """Delete a file whose bytes are wrong. Processes that map it keep their pages.

        Returns
        -------
        Whether it was damaged; then the next map fetches it again.
        """
        path = self._path(content, known.size_bytes)
        try:
            is_whole = not path.exists() or (
                path.stat().st_size == known.size_bytes and _sound_chunks(path, known) == known.size_bytes
            )
            if not is_whole:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"{self.path}: the cache cannot be used: {error}") from error
        return not is_whole

    def keep(self, content: str, size_bytes: int) -> None:
        """Mark a file, if it is there, as in use."""
        with suppress(OSError):
            os.utime(self._path(content, size_bytes))

    def let_go(self, content: str, size_bytes: int) -> None:
        """Let a file, if it is there, be deleted unless some process marks it as in use within an hour."""
        path = self._path(content, size_bytes)
        with suppress(OSError):
            used_at = time.time() - _UNUSED_SECONDS + _LET_GO_SECONDS
            if path.stat().st_mtime > used_at:
                os.utime(path, (used_at, used_at))

    def _path(self, content: str, size_bytes: int) -> Path:
        return self.path / hashlib.blake2b(f"{content}\n{size_bytes}".encode(), digest_size=16).hexdigest()

    def _map(self, path: Path, size_bytes: int, fetch: Callable[[], bool]) -> NDArray[np.uint8] | None:
        """A file that is there, or that this process fetches while it holds the file's lock."""
        try:
            with suppress(FileNotFoundError):
                return _mapped(path, size_bytes)
            held = lock(
                path.with_suffix(".lock"), True, lambda folder: folder.mkdir(parents=True, exist_ok=True)
            )
            assert held is not None
            try:
                if not path.exists() and not fetch():
                    return None
                return _mapped(path, size_bytes)
            finally:
                unlock(held)
        except OSError as error:
            raise StorageError(f"{self.path}: the cache cannot be used: {error}") from error

    def _fetch(self, path: Path, size_bytes: int, fetch: FetchPart) -> bool:
        """Fetch the missing parts of a file and rename it into place; the lock is held."""
        self._forget(path)  # first, because the disk may be full
        partial, sums = (path.with_suffix(suffix) for suffix in _UNFINISHED)
        partial.touch()
        sums.touch()
        with partial.open("r+b") as file, sums.open("r+b") as checksums:
            start = _sound_bytes(partial, sums, size_bytes)
            file.truncate(start)
            file.seek(start)
            checksums.truncate(-(-start // PART_BYTES) * _SUM_BYTES)
            checksums.seek(0, os.SEEK_END)
            for place, part in _parts(start, size_bytes, PART_BYTES, fetch):
                if part is None or len(part) != min(PART_BYTES, size_bytes - place):
                    return False
                file.write(part)
                checksums.write(mmh3.mmh3_x64_128_digest(part))
                file.flush()
                checksums.flush()
            os.fsync(file.fileno())
        self._put_in_place(partial, path)
        sums.unlink(missing_ok=True)
        return True

    def _fetch_known(self, path: Path, known: KnownFile, fetch: Callable[[int, int], bytes]) -> bool:
        """`_fetch` for a file with known chunks."""
        self._forget(path)
        partial = path.with_suffix(".partial")
        partial.touch()
        with partial.open("r+b") as file:
            start = _sound_chunks(partial, known)
            file.truncate(start)
            file.seek(start)
            for _, part in _parts(start, known.size_bytes, known.chunks.chunk_bytes, fetch):
                assert part is not None
                file.write(part)
                file.flush()
            os.fsync(file.fileno())
        self._put_in_place(partial, path)
        return True

    def _put_in_place(self, partial: Path, path: Path) -> None:
        partial.rename(path)
        fsync_path(self.path)

    def _forget(self, fetched: Path) -> None:
        """Delete files that were not used for long, except the one to be fetched and its lock.

        Processes that map them keep their pages.
        """
        oldest = time.time() - _UNUSED_SECONDS
        for path in self.path.iterdir():
            with suppress(FileNotFoundError):
                if path.stem != fetched.name and path.stat().st_mtime < oldest:
                    path.unlink()


def _mapped(path: Path, size_bytes: int) -> NDArray[np.uint8]:
    with path.open("rb") as file:
        with suppress(OSError):  # the file may belong to another user
            os.utime(path)
        if os.fstat(file.fileno()).st_size != size_bytes:
            raise StorageError(f"{path}: a file of the cache was cut; delete it")
        return map_pages(file.fileno(), size_bytes)


def _sound_bytes(partial: Path, sums: Path, size_bytes: int) -> int:
    """How many bytes at the start of a partial file match their checksums."""
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


def _sound_chunks(path: Path, known: KnownFile) -> int:
    """How many bytes at the start of a file, in whole chunks, match their checksums."""
    sound = 0
    with path.open("rb") as file:
        while sound < known.size_bytes:
            wanted = min(known.chunks.chunk_bytes, known.size_bytes - sound)
            part = file.read(wanted)
            if len(part) != wanted or not known.chunks.match(sound, part):
                break
            sound += wanted
    return sound


def _parts(
    start: int, size_bytes: int, part_bytes: int, fetch: FetchPart
) -> Iterator[tuple[int, bytes | None]]:
    """The parts of a file from ``start`` on, in order; several are fetched at once."""
    starts = range(start, size_bytes, part_bytes)
    with Threads(_FETCHERS, "feast_sketch_store fetch") as pool:
        for first in range(0, len(starts), _FETCHERS):
            some = starts[first : first + _FETCHERS]
            parts = pool.map(lambda at: fetch(at, min(at + part_bytes, size_bytes)), some)
            yield from zip(some, parts, strict=True)
