"""A local folder of fetched files, which all processes of a host map.

    <content>            a file, named by a hash of what identifies its content
    <content>.partial    the parts of it that were fetched, one after the other
    <content>.lock       held by the process that fetches; others wait and then find the file

An interrupted fetch continues after the last part with a matching checksum. Files may be deleted at any time.
"""

import hashlib
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.errors import StorageError
from feast_sketch_store.storage.chunks import Chunks, KnownFile
from feast_sketch_store.storage.system import fsync_path, locked, map_pages
from feast_sketch_store.threads import Threads

PART_BYTES = 8 << 20  # of larger files, several parts are fetched at once
_FETCHERS = 4
_UNUSED_SECONDS = 7 * 86_400.0  # after which a file is deleted ...
_LET_GO_SECONDS = 3_600.0  # ... or a file that another has replaced, and that no process keeps
_UNFINISHED = ".partial"
_OWN_NAME = re.compile(r"[0-9a-f]{32}(\.partial)?")

FetchPart = Callable[[int, int], bytes]


class FileCache:
    """The files of a folder, which need not exist. Safe to use from several threads and processes."""

    def __init__(self, path: Path):
        self.path = path

    def map(self, content: str, size_bytes: int, fetch: FetchPart, chunks: Chunks) -> NDArray[np.uint8]:
        """A file's bytes, uint8[size_bytes]; fetched, unless a process of the host has done so before.

        Parameters
        ----------
        content : identifies the content.
        fetch : returns the bytes from one position up to another, whole chunks that match.

        Raises StorageError : the folder cannot be used; or any error of ``fetch``.
        """
        if size_bytes == 0:
            return np.zeros(0, np.uint8)
        path = self._path(content, size_bytes)
        try:
            with suppress(FileNotFoundError):
                return _mapped(path, size_bytes)
            with locked(path.with_suffix(".lock")):
                with suppress(FileNotFoundError):
                    return _mapped(path, size_bytes)
                self._fetch(path, size_bytes, fetch, chunks)
                return _mapped(path, size_bytes)
        except OSError as error:
            raise StorageError(f"{self.path}: the cache cannot be used: {error}") from error

    def drop_damaged(self, content: str, known: KnownFile) -> bool:
        """Delete a file whose bytes are wrong. Processes that map it keep their pages.

        Returns whether it was damaged; then the next map fetches it again.
        """
        path = self._path(content, known.size_bytes)
        try:
            is_whole = not path.exists() or (
                path.stat().st_size == known.size_bytes
                and _sound_bytes(path, known.size_bytes, known.chunks) == known.size_bytes
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

    def _fetch(self, path: Path, size_bytes: int, fetch: FetchPart, chunks: Chunks) -> None:
        """Fetch the missing parts of a file and rename it into place; the lock is held."""
        self._forget(path)  # first, because the disk may be full
        partial = path.with_suffix(_UNFINISHED)
        partial.touch()
        with partial.open("r+b") as file:
            start = _sound_bytes(partial, size_bytes, chunks)
            file.truncate(start)
            file.seek(start)
            for part in _parts(start, size_bytes, chunks.chunk_bytes, fetch):
                file.write(part)
                file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
        fsync_path(self.path)

    def _forget(self, fetched: Path) -> None:
        """Delete files that were not used for long, except the one to be fetched and its lock.

        Processes that map them keep their pages.
        """
        oldest = time.time() - _UNUSED_SECONDS
        for path in self.path.iterdir():
            with suppress(OSError):
                if not _OWN_NAME.fullmatch(path.name) or path.stem == fetched.name:
                    continue
                if path.stat().st_mtime < oldest:
                    path.unlink()


def _mapped(path: Path, size_bytes: int) -> NDArray[np.uint8]:
    """The bytes of a fetched file; one that was cut counts as absent, so that it is fetched again."""
    with path.open("rb") as file:
        with suppress(OSError):  # the file may belong to another user
            os.utime(path)
        if os.fstat(file.fileno()).st_size != size_bytes:
            raise FileNotFoundError(f"{path} was cut")
        return map_pages(file.fileno(), size_bytes)


def _sound_bytes(path: Path, size_bytes: int, chunks: Chunks) -> int:
    """How many bytes at the start of a file, in whole chunks, match their checksums."""
    sound = 0
    with path.open("rb") as file:
        for _ in chunks.checksums:
            wanted = min(chunks.chunk_bytes, size_bytes - sound)
            part = file.read(wanted)
            if len(part) != wanted or not chunks.match(sound, part):
                break
            sound += wanted
    return sound


def in_memory(size_bytes: int, fetch: FetchPart, chunks: Chunks | None = None) -> NDArray[np.uint8]:
    """A file's bytes, fetched into memory; parameters, result and errors as of `FileCache.map`."""
    whole, at = np.empty(size_bytes, np.uint8), 0
    for part in _parts(0, size_bytes, chunks.chunk_bytes if chunks else PART_BYTES, fetch):
        whole[at : at + len(part)] = np.frombuffer(part, np.uint8)
        at += len(part)
    return whole


def _parts(start: int, size_bytes: int, part_bytes: int, fetch: FetchPart) -> Iterator[bytes]:
    """The parts of a file from ``start`` on, in order; several are fetched at once."""
    fetched: deque[Future[bytes]] = deque()
    with Threads(_FETCHERS, "feast_sketch_store fetch") as pool:
        for at in range(start, size_bytes, part_bytes):
            fetched.append(pool.submit(fetch, at, min(at + part_bytes, size_bytes)))
            if len(fetched) == _FETCHERS:
                yield fetched.popleft().result()
        while fetched:
            yield fetched.popleft().result()
