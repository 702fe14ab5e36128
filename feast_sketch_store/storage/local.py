"""`LocalStorage`: a folder of a local file system.

A new file is written and fsynced under a hidden name. A hard link then makes it appear, or a rename replaces
the old file; then the folder is fsynced. So a crash of the process or the machine leaves a file whole or
absent.
"""

import errno
import logging
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.errors import StorageError
from feast_sketch_store.storage.base import (
    READ_ONLY,
    ZEROS_AFTER,
    FileExistsAlreadyError,
    FileInfo,
    MissingFileError,
    Storage,
    checked_folder,
    checked_name,
)
from feast_sketch_store.storage.chunks import KnownFile
from feast_sketch_store.storage.system import FileStatus, fdatasync, fsync_path, lock, map_pages, unlock

_logger = logging.getLogger(__name__)

_UNFINISHED = ".tmp"  # ends the hidden name of a file that is being written
# What NFS and FUSE call a file that was deleted while a process has it open, until that one closes it.
_HELD = re.compile(r"\.(nfs|fuse_hidden)[0-9a-f]+")
_DROPPED = re.compile(r"\..+\.[0-9a-f]{8}\.dropped")  # hidden names of folders that are being removed
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # opening a pipe is then an error, not a wait
_READ_AND_WRITE = os.O_RDWR | os.O_CLOEXEC
_JOINED_BYTES = 1 << 16  # up to here, joining pieces costs less than another call
# A file of appended pieces grows by the first at least, doubles up to the second, then grows by that.
_LEAST_STEP, _LARGEST_STEP = 1 << 12, 1 << 18
_KNOWN_PATHS = 64  # a write uses few names, and making a path of one takes longer than some system calls
_TRIES = 100  # to make or remove a folder that others remove or fill at the same time

_Identity = tuple[int, int]  # of a file or folder: inode and time of birth


class LocalStorage(Storage):
    """A folder, which need not exist and may be a symbolic link, and its contents.

    Keeps nothing open between calls, so it may be used after a fork.
    """

    supports_append = True
    supports_leases = True

    def __init__(self, path: Path, read_only: bool = False):
        self.path = path
        self.location = str(path)
        self.read_only = read_only
        self._paths: dict[str, Path] = {}  # of names that were used lately
        # Folders and appended files whose directory entries this object knows to be durable.
        self._durable: dict[Path, _Identity] = {}

    def within(self, folder: str) -> "LocalStorage":
        return LocalStorage(self._folder(folder), self.read_only)

    # -- list ----------------------------------------------------------------------------------

    @property
    def identity(self) -> str:
        """See `Storage.identity`: the path without links."""
        return os.path.realpath(self.path)

    def list(self, folder: str = "", after: str = "") -> Sequence[str]:
        path = self._folder(folder)
        try:
            with os.scandir(path) as entries:
                names = [e.name for e in entries if e.name > after and e.is_file()]
        except FileNotFoundError:
            return []
        except NotADirectoryError:
            self._check_folder()
            return []
        except OSError as error:
            raise StorageError(f"{path}: cannot be listed: {error}") from error
        return sorted(name for name in names if not _is_unfinished(name))

    def folders(self) -> Sequence[str]:
        """The names of the folders directly in this one, ascending, except those that are being removed.

        A folder may be a symbolic link to one, for example on another disk.
        """
        try:
            found = [entry.name for entry in self.path.iterdir() if entry.is_dir()]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise StorageError(f"{self.path}: cannot be listed: {error}") from error
        return sorted(name for name in found if name[0] != ".")

    def info(self, name: str) -> FileInfo | None:
        path = self._path(name)
        try:
            return _info_of(name, path)
        except FileNotFoundError:
            return None
        except NotADirectoryError:
            self._check_folder()
            return None
        except OSError as error:
            raise StorageError(f"{path}: cannot be read: {error}") from error

    def walk(self) -> Iterator[FileInfo]:

        def refuse(error: OSError) -> None:
            if isinstance(error, NotADirectoryError):
                self._check_folder()
            elif not isinstance(error, FileNotFoundError):
                raise StorageError(f"{error.filename}: cannot be listed: {error}") from error

        for folder, _, names in os.walk(self.path, onerror=refuse):
            for name in names:
                info = self.info((Path(folder) / name).relative_to(self.path).as_posix())
                if info is not None:
                    yield info

    # -- read ----------------------------------------------------------------------------------

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        with self._opened(name) as descriptor:
            rest = max(0, os.fstat(descriptor).st_size - start) if length is None else length
            parts = []
            while rest and (part := os.pread(descriptor, rest, start)):
                parts.append(part)
                start, rest = start + len(part), rest - len(part)
            return b"".join(parts)

    def map(self, name: str, known: KnownFile | None = None) -> NDArray[np.uint8]:
        with self._opened(name) as descriptor:
            status = os.fstat(descriptor)
            if stat.S_ISDIR(status.st_mode):
                raise IsADirectoryError
            if (size := status.st_size) == 0:  # cannot be mapped
                nothing = np.zeros(0, np.uint8)
                nothing.flags.writeable = False
                return nothing
            return map_pages(descriptor, size)

    def _check_folder(self) -> None:
        """Check that no file is where the storage's folder should be. Raises StorageError: there is one."""
        for path in (self.path, *self.path.parents):
            try:
                if not stat.S_ISDIR(path.stat().st_mode):
                    raise StorageError(
                        f"{path}: is a file, and the store needs a folder there; move it away, or set "
                        "another path"
                    )
            except (FileNotFoundError, NotADirectoryError):
                continue  # a folder above may be a file
            except OSError:
                return  # the caller meets it
            return

    @contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        path = self._path(name)
        try:
            descriptor = os.open(path, _READ)
            try:
                yield descriptor
            finally:
                os.close(descriptor)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise MissingFileError(f"{path}: there is no such file") from error
        except OSError as error:
            raise StorageError(f"{path}: cannot be read: {error}") from error

    # -- write ---------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Make the folder."""
        with self._writing(self.path):
            self._make_folder(self.path)

    @contextmanager
    def create(self, name: str) -> Iterator[BinaryIO]:
        path = self._path(name)
        with self._writing(path), self._unfinished(path.parent) as (file, unfinished):
            yield file
            _finish(file)
            try:
                os.link(unfinished, path)
            except FileExistsError as error:
                raise FileExistsAlreadyError(f"{path}: another process created the file first") from error
            with suppress(OSError):  # the file exists all the same
                unfinished.unlink()
            try:
                fsync_path(path.parent)
            except OSError:
                path.unlink(missing_ok=True)  # it may not be durable
                raise

    def replace(self, name: str, content: bytes) -> None:
        path = self._path(name)
        with self._writing(path), self._unfinished(path.parent) as (file, unfinished):
            file.write(content)
            _finish(file)
            unfinished.replace(path)
            fsync_path(path.parent)

    def append(self, name: str, at: int, pieces: Iterable[bytes | memoryview]) -> None:
        path = self._path(name)
        with self._writing(path):
            descriptor = self._open_to_append(path) if at == 0 else os.open(path, _READ_AND_WRITE)
            try:
                status = os.fstat(descriptor)
                if status.st_size < at:
                    raise StorageError(
                        f"{path}: ends at byte {status.st_size}, where at least {at} were written; "
                        "the file is damaged"
                    )
                try:
                    _write_at(descriptor, at, _with_zeros(pieces, at, status.st_size))
                    fdatasync(descriptor)
                    if not self._is_durable(path):
                        fsync_path(path.parent)
                        self._durable[path] = _identity_of(path)
                except BaseException:
                    with suppress(OSError):
                        os.ftruncate(descriptor, at)
                    raise
            finally:
                os.close(descriptor)

    def note(self, name: str, content: bytes) -> None:
        path = self._path(name)
        with self._writing(path):
            descriptor = self._open_to_append(path)
            try:
                _write_at(descriptor, 0, [content])
                if os.fstat(descriptor).st_size > len(content):
                    os.ftruncate(descriptor, len(content))
            finally:
                os.close(descriptor)

    def delete(self, names: Iterable[str]) -> None:
        paths = [self._path(name) for name in names]
        with self._writing(self.path):
            changed = set()
            for path in paths:
                self._durable.pop(path, None)
                with suppress(FileNotFoundError, NotADirectoryError):
                    path.unlink()
                    changed.add(path.parent)
            for folder in sorted(changed):
                with suppress(FileNotFoundError):
                    fsync_path(folder)

    def delete_all(self) -> None:
        """Delete everything in one step for readers, see `Storage.delete_all`.

        The folder is renamed before it is removed, so that writers that do not stop cannot fill it again. If
        a call is killed, or NFS or FUSE hold files, the next one in the same parent removes what it left. A
        symbolic link is removed with its target. Targets of links inside are left, and logged.
        """
        parent, name = self.path.parent, self.path.name
        with self._writing(self.path):
            with suppress(FileNotFoundError):
                self.path.rename(parent / f".{name}.{secrets.token_hex(4)}.dropped")
                fsync_path(parent)
            if not parent.is_dir():
                return
            for found in os.listdir(parent):
                if _DROPPED.fullmatch(found):
                    _tell_of_links(parent / found)
                    _remove(parent / found)
            fsync_path(parent)

    @contextmanager
    def _writing(self, path: Path) -> Iterator[None]:
        """Refuse changes of a read-only storage, and turn errors into `StorageError`."""
        if self.read_only:
            raise StorageError(f"{path}: {READ_ONLY}")
        try:
            yield
        except OSError as error:
            raise StorageError(f"{path}: cannot be written: {error}") from error

    @contextmanager
    def _unfinished(self, folder: Path) -> Iterator[tuple[BinaryIO, Path]]:
        """A new hidden file in a folder; it is removed when the block ends."""
        path = folder / f".{secrets.token_hex(8)}{_UNFINISHED}"
        for _ in range(_TRIES):
            self._make_folder(folder)
            with suppress(FileNotFoundError):  # another process has just removed the folder
                file = path.open("xb")
                break
        else:
            raise StorageError(f"{folder}: is being removed")
        try:
            with file:
                yield file, path
        finally:
            with suppress(OSError):
                path.unlink()

    def _open_to_append(self, path: Path) -> int:
        for _ in range(_TRIES):
            with suppress(FileNotFoundError):
                return os.open(path, _READ_AND_WRITE)
            self._make_folder(path.parent)
            with suppress(FileNotFoundError):
                return os.open(path, _READ_AND_WRITE | os.O_CREAT, 0o666)
        raise StorageError(f"{path.parent}: is being removed")

    def _make_folder(self, folder: Path) -> None:
        """Make a folder, and make it and the folders above it durable.

        Another process may have made a folder and died before it was durable, so each object makes sure once.
        """
        if self._is_durable(folder):
            return
        highest = self.path
        while not highest.parent.exists() and highest != highest.parent:
            highest = highest.parent
        above = {self.path, *self.path.parents}
        for _ in range(_TRIES):
            try:
                folder.mkdir(parents=True, exist_ok=True)
                identity = _identity_of(folder)
                for made in (folder, *folder.parents):
                    if made == highest.parent:
                        break
                    # Folders above the storage may allow passing through, but not reading.
                    with suppress(PermissionError) if made in above else nullcontext():
                        fsync_path(made.parent)
            except FileNotFoundError:  # another process removes one of them just now
                continue
            self._durable[folder] = identity
            return
        raise StorageError(f"{folder}: is being removed")

    def _is_durable(self, path: Path) -> bool:
        known = self._durable.get(path)
        with suppress(FileNotFoundError):
            return known is not None and known == _identity_of(path)
        return False

    # -- order ---------------------------------------------------------------------------------

    @contextmanager
    def lease(self, name: str, wait: bool = False, create: bool = True) -> Iterator[bool]:
        """Hold a lock on a file, see `Storage.lease`. The kernel drops it with the process.

        In a read-only file system nothing changes, so the block runs without one.
        """
        path = self._path(name)
        file, is_held = None, True
        with self._writing(path):
            try:
                file = lock(path, wait, self._make_folder if create else None)
                is_held = file is not None
            except OSError as error:
                if error.errno != errno.EROFS:
                    raise
        try:
            yield is_held
        finally:
            if file is not None:
                unlock(file)

    # -- parts ---------------------------------------------------------------------------------

    def _path(self, name: str) -> Path:
        path = self._paths.get(name)
        if path is None:
            path = self.path / checked_name(name, self.location)
            if len(self._paths) >= _KNOWN_PATHS:
                self._paths.clear()
            self._paths[name] = path
        return path

    def _folder(self, folder: str) -> Path:
        return self.path / checked_folder(folder, self.location)


def _info_of(name: str, path: Path) -> FileInfo | None:
    status = FileStatus.of(path)
    if not stat.S_ISREG(status.mode):
        return None
    token = f"{status.inode:x}-{status.born:x}" if status.born else ""
    return FileInfo(name, status.size_bytes, token, status.modified / 1e9)


def _identity_of(path: Path) -> _Identity:
    status = FileStatus.of(path)
    return status.inode, status.born


def _is_unfinished(name: str) -> bool:
    return name.startswith(".") and name.endswith(_UNFINISHED)


def _finish(file: BinaryIO) -> None:
    """Make a file's content durable."""
    file.flush()
    os.fsync(file.fileno())


def _write_at(descriptor: int, at: int, pieces: Iterable[bytes | memoryview]) -> None:
    """Write pieces one after the other. Small ones are joined, because each call lets other threads run."""
    views = [memoryview(piece).cast("B") for piece in pieces]
    if sum(map(len, views)) <= _JOINED_BYTES:
        views = [memoryview(b"".join(views))]
    for piece in views:
        rest = piece
        while len(rest):
            written = os.pwrite(descriptor, rest, at)
            at, rest = at + written, rest[written:]


def _with_zeros(
    pieces: Iterable[bytes | memoryview], at: int, size_bytes: int
) -> Iterator[bytes | memoryview]:
    """Pieces to append and the zeros after them, which fill a file that has to grow up to its next step."""
    for piece in pieces:
        at += memoryview(piece).nbytes
        yield piece
    is_full = at + ZEROS_AFTER > size_bytes
    yield bytes(min(max(7 * at, _LEAST_STEP), _LARGEST_STEP) if is_full else ZEROS_AFTER)


def _tell_of_links(path: Path) -> None:
    """Log the links in a folder that is removed, because their targets may hold rows, and stay."""
    for folder, folders, files in os.walk(path):
        for entry in (Path(folder, name) for name in (*folders, *files)):
            if entry.is_symlink():
                _logger.warning(
                    "%s: its link %s is removed, and %s is left; remove it if it holds rows",
                    path,
                    entry.relative_to(path),
                    os.path.realpath(entry),
                )


def _remove(path: Path) -> None:
    """Remove a folder, or a link with its target, even if others do so at the same time."""
    if path.is_symlink():
        with suppress(FileNotFoundError):  # another process has just removed the link or its target
            target = path.resolve()
            for entry in target.iterdir():
                if entry.is_dir() and not entry.is_symlink():
                    _remove(entry)
                else:
                    entry.unlink(missing_ok=True)
            with suppress(OSError):  # it may be the root of another file system
                target.rmdir()
        path.unlink(missing_ok=True)
        return
    for _ in range(_TRIES):
        shutil.rmtree(path, ignore_errors=True)
        if not path.exists():
            return
        # A writer may have opened the folder just before it was renamed, and may still make files there.
        rest = {name for _, _, names in os.walk(path) for name in names}
        if rest and all(map(_HELD.fullmatch, rest)):
            return
    shutil.rmtree(path)
