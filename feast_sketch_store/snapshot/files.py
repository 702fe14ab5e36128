"""The folder of a view's snapshots: publish, find, map, prune.

    00000000000000000042-0001-9f31c0de.order.safetensors   hash and timestamps of every sealed entity
    00000000000000000042-0001-9f31c0de.base.safetensors    the sketch layer that reads use

A name begins with the version of the row log that the snapshot covers, and counts the seals of that version
(new settings seal the same rows anew). The base file is renamed into
place last, so a snapshot exists whole or not at all. The order file stays out of memory: it is mapped
only while a late row must be compared with a sealed one.
"""

import os
import re
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.errors import DamagedFileError, StorageError
from feast_sketch_store.snapshot.format import Arrays, decode, encode, verify

_BASE_SUFFIX = ".base.safetensors"
_ORDER_SUFFIX = ".order.safetensors"
_BASE_NAME = re.compile(r"(\d{20})-(\d{4,})-[0-9a-f]{8}" + re.escape(_BASE_SUFFIX))


@dataclass(frozen=True)
class SnapshotFile:
    """A published snapshot: the row-log version it covers, the seal of that version, and its base file."""

    version: int
    number: int
    path: Path

    @property
    def order_path(self) -> Path:
        """The file with the order index of the same seal."""
        return self.path.with_name(self.path.name.removesuffix(_BASE_SUFFIX) + _ORDER_SUFFIX)


class SnapshotFolder:
    """The snapshots of one view.

    Parameters
    ----------
    path : the folder; it need not exist before something is published.
    """

    def __init__(self, path: Path):
        self.path = path

    def list(self) -> list[SnapshotFile]:
        """The published snapshots, newest first."""
        try:
            matches = map(_BASE_NAME.fullmatch, os.listdir(self.path))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StorageError(f"{self.path}: cannot be read: {error}") from error
        found = [SnapshotFile(int(m[1]), int(m[2]), self.path / m[0]) for m in matches if m]
        return sorted(found, key=lambda s: (s.version, s.number, s.path), reverse=True)

    def write(
        self,
        version: int,
        description: Mapping[str, Any],
        arrays: Mapping[str, NDArray[np.generic]],
        order: Mapping[str, NDArray[np.generic]],
    ) -> SnapshotFile:
        """Write a snapshot durably; nobody sees it before `publish`.

        Raises
        ------
        StorageError : the folder cannot be written; nothing is left behind.
        """
        number = 1 + max((s.number for s in self.list() if s.version == version), default=0)
        stem = f"{version:020d}-{number:04d}-{secrets.token_hex(4)}"
        snapshot = SnapshotFile(version, number, self.path / (stem + _BASE_SUFFIX))
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            _write(snapshot.order_path, {}, order)
            _write(_hidden(snapshot.path), description, arrays)
        except BaseException as error:
            self.discard(snapshot)
            if isinstance(error, OSError):
                raise StorageError(f"{self.path}: a snapshot cannot be written: {error}") from error
            raise
        return snapshot

    def publish(self, snapshot: SnapshotFile) -> None:
        """Make a written snapshot visible.

        Raises
        ------
        StorageError : the folder cannot be written; the snapshot is gone.
        """
        try:
            _hidden(snapshot.path).replace(snapshot.path)
            fsync_path(self.path)
        except OSError as error:
            self.discard(snapshot)
            raise StorageError(f"{self.path}: a snapshot cannot be published: {error}") from error

    def discard(self, snapshot: SnapshotFile) -> None:
        """Remove a snapshot, published or not; a process that maps it keeps its pages."""
        for path in (_hidden(snapshot.path), snapshot.path, snapshot.order_path):
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def prune(self, keep: int) -> None:
        """Remove all but the newest ``keep`` snapshots."""
        for snapshot in self.list()[keep:]:
            self.discard(snapshot)

    def remove_leftovers(self) -> int:
        """Remove what killed writers left; nobody may be writing. Gives the number of files."""
        kept = {path for snapshot in self.list() for path in (snapshot.path, snapshot.order_path)}
        gone = [path for path in sorted(self.path.glob("*.safetensors*")) if path not in kept]
        for path in gone:
            path.unlink(missing_ok=True)
        return len(gone)


def _hidden(path: Path) -> Path:
    """The name of a file that is not published yet."""
    return path.with_name(f".{path.name}.tmp")


def _write(path: Path, description: Mapping[str, Any], arrays: Mapping[str, NDArray[np.generic]]) -> None:
    with path.open("wb") as file:
        for piece in encode(description, arrays):
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())


def load(path: Path, skip: Callable[[str], bool] = lambda array: False) -> tuple[dict[str, Any], Arrays]:
    """Map a snapshot file, check its bytes, and give its description and arrays.

    Parameters
    ----------
    path : of the file.
    skip : tells by its name whether an array is left to the caller to check, see `BlockChecks`.

    Raises
    ------
    DamagedFileError : the file is truncated, altered or not a snapshot.
    StorageError : the file cannot be read.
    """
    try:
        if path.stat().st_size == 0:  # an empty file cannot be mapped
            raise DamagedFileError(f"{path}: the file is empty")
        content = np.memmap(path, np.uint8, "r").view(np.ndarray)
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {error}") from error
    verify(content, str(path), skip)
    return decode(content, str(path))


def fsync_path(path: Path) -> None:
    """Make a file's content, or a folder's entries, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
