"""A local folder of fetched files, which all processes of a host map.

    <content>            a file, named by a hash of what identifies its content
    <content>.partial    the parts of it that were fetched, one after the other
    <content>.lock       held by the process that fetches, and then deleted; others wait and find the file

An interrupted fetch continues after the last part with a matching checksum. Files may be deleted at any time.
"""

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.errors import StorageError
from feast_sketch_store.storage.chunks import Chunks, KnownFile
from feast_sketch_store.storage.system import fsync_path, locked, map_pages
from feast_sketch_store.threads import in_threads

PART_BYTES = 8 << 20  # of larger files, several parts are fetched at once
_FETCHERS = 4
_UNUSED_SECONDS = 7 * 86_400.0  # after which a file is deleted ...
_LET_GO_SECONDS = 3_600.0  # ... or a file that another has replaced, and that no process keeps
_UNFINISHED = ".partial"
_OWN_NAME = re.compile(r"[0-9a-f]{32}(\.partial)?")

FetchPart = Callable[[int, int], bytes]


class CachedFile:
    """The copy of a file in a folder, which need not exist. Safe to use from several threads and processes.

    Parameters
    ----------
    content : identifies the content.
    known : its size, and the checksums of its chunks.
    """

    def __init__(self, folder: Path, content: str, known: KnownFile):
        named = f"{content}\n{known.size_bytes}".encode()
        self.path = folder / hashlib.blake2b(named, digest_size=16).hexdigest()
        self._known = known

    def map(self, fetch: FetchPart) -> NDArray[np.uint8]:
        """Its bytes, uint8[size_bytes]; fetched, unless a process of the host has done so before.

        ``fetch`` returns the bytes from one position up to another, whole chunks that match.

        Raises StorageError: the folder cannot be used; or any error of ``fetch``.
        """
        if self._known.size_bytes == 0:
            return np.zeros(0, np.uint8)
        with self._using():
            with suppress(FileNotFoundError):
                return self._mapped()
            lock = self.path.with_suffix(".lock")
            with locked(lock):
                try:
                    with suppress(FileNotFoundError):
                        return self._mapped()
                    self._fetch(fetch)
                    return self._mapped()
                finally:
                    lock.unlink(missing_ok=True)

    def drop_if_damaged(self) -> bool:
        """Delete it if its bytes are wrong. Processes that map it keep their pages.

        Returns whether it was damaged; then the next map fetches it again.
        """
        size_bytes = self._known.size_bytes
        with self._using():
            is_whole = not self.path.exists() or (
                self.path.stat().st_size == size_bytes and self._sound_bytes(self.path) == size_bytes
            )
            if not is_whole:
                self.path.unlink(missing_ok=True)
        return not is_whole

    def keep(self) -> None:
        """Mark it, if it is there, as in use: it is not deleted for some days."""
        with suppress(OSError):
            os.utime(self.path)

    def let_go(self) -> None:
        """Let it, if it is there, be deleted unless some process marks it as in use within an hour."""
        with suppress(OSError):
            used_at = time.time() - _UNUSED_SECONDS + _LET_GO_SECONDS
            if self.path.stat().st_mtime > used_at:
                os.utime(self.path, (used_at, used_at))

    @contextmanager
    def _using(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(f"{self.path.parent}: the cache cannot be used: {error}") from error

    def _mapped(self) -> NDArray[np.uint8]:
        """Its bytes; a file that was cut counts as absent, so that it is fetched again."""
        with self.path.open("rb") as file:
            with suppress(OSError):  # the file may belong to another user
                os.utime(self.path)
            if os.fstat(file.fileno()).st_size != self._known.size_bytes:
                raise FileNotFoundError(f"{self.path} was cut")
            return map_pages(file.fileno(), self._known.size_bytes)

    def _fetch(self, fetch: FetchPart) -> None:
        """Fetch the missing parts and rename the file into place; the lock is held."""
        self._forget_others()  # first, because the disk may be full
        partial = self.path.with_suffix(_UNFINISHED)
        partial.touch()
        with partial.open("r+b") as file:
            start = self._sound_bytes(partial)
            file.truncate(start)
            file.seek(start)
            for part in _parts(start, self._known.size_bytes, self._known.chunks.chunk_bytes, fetch):
                file.write(part)
                file.flush()
            os.fsync(file.fileno())
        partial.rename(self.path)
        fsync_path(self.path.parent)

    def _sound_bytes(self, path: Path) -> int:
        """How many bytes at the start of a file, in whole chunks, match their checksums."""
        sound, chunks = 0, self._known.chunks
        with path.open("rb") as file:
            for _ in chunks.checksums:
                wanted = min(chunks.chunk_bytes, self._known.size_bytes - sound)
                part = file.read(wanted)
                if len(part) != wanted or not chunks.match(sound, part):
                    break
                sound += wanted
        return sound

    def _forget_others(self) -> None:
        """Delete other files that were not used for long. Processes that map them keep their pages."""
        oldest = time.time() - _UNUSED_SECONDS
        for path in self.path.parent.iterdir():
            with suppress(OSError):
                if not _OWN_NAME.fullmatch(path.name) or path.stem == self.path.name:
                    continue
                if path.stat().st_mtime < oldest:
                    path.unlink()


def in_memory(size_bytes: int, fetch: FetchPart, chunks: Chunks | None = None) -> NDArray[np.uint8]:
    """A file's bytes, fetched into memory; parameters, result and errors as of `CachedFile.map`."""
    whole, at = np.empty(size_bytes, np.uint8), 0
    for part in _parts(0, size_bytes, chunks.chunk_bytes if chunks else PART_BYTES, fetch):
        whole[at : at + len(part)] = np.frombuffer(part, np.uint8)
        at += len(part)
    return whole


def _parts(start: int, size_bytes: int, part_bytes: int, fetch: FetchPart) -> Iterator[bytes]:
    """The parts of a file from ``start`` on, in order; several are fetched at once."""

    def fetch_from(at: int) -> bytes:
        return fetch(at, min(at + part_bytes, size_bytes))

    return in_threads(fetch_from, range(start, size_bytes, part_bytes), _FETCHERS)
