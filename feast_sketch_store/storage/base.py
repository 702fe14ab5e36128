"""`Storage`: the only access to a view's bytes.

A storage holds files under names such as ``rows/_delta_log/00000000000000000000.json``. The row log, the
snapshots and everything above them use this interface and never a path, so another place for the bytes needs
one class. Every implementation must pass `tests/storage/contract.py`.

Every method raises a `StorageError` that names the file when the bytes cannot be reached.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.errors import StorageError
from feast_sketch_store.storage.chunks import KnownFile
from feast_sketch_store.storage.file_cache import CachedFile

# Said by a storage that refuses a change.
READ_ONLY = "the storage is opened for reading only; use a configuration without `read_only: true`"


class MissingFileError(StorageError):
    """No file has that name."""


class FileExistsAlreadyError(StorageError):
    """The file exists already."""


class UncertainWriteError(StorageError):
    """It is not known whether a write was done; it may still be done later.

    Files that the write refers to must stay: a commit that appears later needs them.
    """


def checked_name(name: str, location: str) -> str:
    """Check the name of a file: it must stay below the storage.

    Raises StorageError: a part is empty, ``.`` or ``..``, or there are characters that no file name can
    have.
    """
    is_text = "\0" not in name and name.encode(errors="ignore").decode() == name
    if not is_text or any(part in ("", ".", "..") for part in name.split("/")):
        raise StorageError(f"{location}: {name!r} is not the name of a file below it")
    return name


def checked_folder(folder: str, location: str) -> str:
    """Check the name of a folder; ``""`` is the storage itself.

    Raises StorageError: it does not end in a slash, or what is before that is not a name.
    """
    if folder:
        checked_name(folder.removesuffix("/"), location)
        if not folder.endswith("/"):
            raise StorageError(f"{location}: {folder!r} is not a folder's name, which ends in a slash")
    return folder


ZEROS_AFTER = 64  # bytes after what was appended; a log's reader looks for the next entry there


@dataclass(frozen=True)
class FileInfo:
    """Metadata of a file.

    ``token`` identifies this content among all contents of the name; appending to a file keeps it. It is
    empty where nothing does: in a folder without times of birth, the next file may get the same inode.
    ``modified_at`` is in seconds since 1970, by the storage's clock.
    """

    name: str
    size_bytes: int
    token: str
    modified_at: float


class Storage(ABC):
    """Named files. Safe to use from several threads and processes at once.

    A name is made of parts between slashes; no part is empty, ``.`` or ``..``. A *folder* is the part
    before the last slash, with the slash; folders come and go with their files.

    Attributes
    ----------
    location : where the storage is, for messages: a path or URL without credentials.
    read_only : whether every method that changes something raises.
    supports_append : whether `append` works; otherwise a log must create a file per entry.
    supports_leases : whether `lease` keeps others out. Otherwise it only saves work, and correctness depends
        on `create`.
    fetches : whether files come over a network; callers then pass their chunks, see `map`.
    """

    location: str
    read_only: bool = False
    supports_append: bool = False
    supports_leases: bool = False
    fetches: bool = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.location!r})"

    # -- list ----------------------------------------------------------------------------------

    @property
    def identity(self) -> str:
        """Equal for storages of this process with the same files, by any paths."""
        return self.location

    @property
    def host_path(self) -> Path | None:
        """The beginning of local file names where this host keeps its last known state of these files, unique
        to this storage; None if it keeps nothing.
        """
        return None

    @abstractmethod
    def list(self, folder: str = "", after: str = "") -> Sequence[str]:
        """The names of files directly in a folder, without the folder, in ascending order.

        Only names greater than ``after``. A folder that does not exist has no files.
        """

    @abstractmethod
    def info(self, name: str) -> FileInfo | None:
        """Metadata of a file; None if it does not exist."""

    def size_bytes(self, name: str) -> int:
        """The size of a file; 0 if it does not exist."""
        return 0 if (info := self.info(name)) is None else info.size_bytes

    @abstractmethod
    def walk(self) -> Iterator[FileInfo]:
        """All files at any depth, in no order, including unfinished ones of killed writers.

        Their tokens may be left out.
        """

    def now(self) -> float:
        """The time by the storage's clock, in seconds since 1970. In a bucket, asking writes an object."""
        return time.time()

    # -- read ----------------------------------------------------------------------------------

    @abstractmethod
    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """Bytes ``[start, start + length)`` of a file, fewer if it ends before; None for all there are.

        Raises MissingFileError: there is no such file.
        """

    @abstractmethod
    def map(self, name: str, known: KnownFile | None = None) -> NDArray[np.uint8]:
        """A file's bytes as a read-only array, whose pages the processes of a host share if possible.

        The array stays valid when the file is deleted, and holds no file descriptor. With ``known``, the
        checksums for fetched bytes, an earlier fetched copy is used without a request to the storage.

        Raises
        ------
        MissingFileError : there is no such file.
        DamagedFileError : its bytes are not those that are ``known``.
        """

    def copy_of(self, name: str, known: KnownFile | None) -> CachedFile | None:
        """The fetched copy of a file, there or not; None if the host keeps none, or the file is not known."""
        return None

    # -- write ---------------------------------------------------------------------------------

    @abstractmethod
    def prepare(self) -> None:
        """Check early that files can be written, and create their folder."""

    @abstractmethod
    def create(self, name: str) -> AbstractContextManager[BinaryIO]:
        """Write a new file. It appears whole and durable when the block ends, or not at all if it raises.

        Raises FileExistsAlreadyError: the file exists by the end of the block; it stays unchanged.
        """

    @abstractmethod
    def replace(self, name: str, content: bytes) -> None:
        """Write a file, new or not, in one durable step."""

    def replace_known(self, name: str, content: bytes, token: str) -> bool:
        """`replace` the file with this token. Returns False if it is gone, or another has taken its place.

        Callers hold a `lease`. Where it does not keep others out for certain, the storage compares.
        """
        info = self.info(name)
        if info is None or info.token != token:
            return False
        self.replace(name, content)
        return True

    def append(self, name: str, at: int, pieces: Iterable[bytes | memoryview]) -> None:
        """Write durably at byte ``at`` of a file, which is created if it does not exist.

        `ZEROS_AFTER` zeros or more follow the pieces: what is there marks the end of what was appended, also
        where a writer that died left something. The file grows in steps, so that few appends change its size.
        Callers hold a `lease`, so no two of them append at once. If it raises, the file ends at ``at`` or,
        rarely, has all of the pieces.
        """
        raise StorageError(f"{self.where(name)}: files of this storage cannot be appended to")

    def note(self, name: str, content: bytes) -> None:
        """Write a small file quickly, which others see at once; it need not survive a crash of the machine.

        Then, and for a reader meanwhile, the file may have an earlier content, or parts of both.
        """
        self.replace(name, content)

    @abstractmethod
    def delete(self, names: Iterable[str]) -> None:
        """Delete files durably; those that do not exist are left out."""

    @abstractmethod
    def delete_all(self) -> None:
        """Delete everything in one step for readers: no name is found any more when this returns.

        Writers that still hold names may create them again; nothing of what was there comes back.
        """

    # -- order ---------------------------------------------------------------------------------

    @abstractmethod
    def lease(self, name: str, wait: bool = False, create: bool = True) -> AbstractContextManager[bool]:
        """Hold a name that no other process or thread holds; it is released with the block, or the process.

        Parameters
        ----------
        wait : for the one who holds it; otherwise the block runs with False.
        create : make the folder that the lock needs. Otherwise the block may run with False where there is no
            folder, and nothing is left in a storage that was deleted.
        """

    # -- parts ---------------------------------------------------------------------------------

    @abstractmethod
    def within(self, folder: str) -> "Storage":
        """The files of a folder as a storage of their own, with names relative to the folder."""

    def where(self, name: str = "") -> str:
        """A file's location, for messages."""
        return f"{self.location}/{name}" if name else self.location
