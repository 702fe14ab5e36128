"""The folder of a view's snapshots: publish, find, map, prune.

    00000000000000000042-0001-9f31c0de.order.sketch   hash and timestamps of every sealed entity
    00000000000000000042-0001-9f31c0de.base.sketch    the sketch layer that reads use
    00000000000000000042-0001-9f31c0de.json                the manifest, which names both

    pin-000001-00000000000000000042-0001-9f31c0de          holds readers at that snapshot

A name begins with the version of the row log that the snapshot covers. The next number is a million times
the version of the row log's table, plus a count of that table's seals (new settings seal the same rows
again). Readers list only manifests. A manifest is created after both other files, and deleted before
them. So a snapshot exists whole or not at all, on any storage that can create a file. The order file stays
out of memory: of it, blocks are read only to compare late rows with sealed ones.
"""

import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import feast_sketch_store
from feast_sketch_store.errors import DamagedFileError, StorageError
from feast_sketch_store.snapshot.format import Arrays, decode, encode, header_of
from feast_sketch_store.snapshot.manifest import (
    CHUNK_BYTES,
    MAX_MANIFEST_BYTES,
    PARTS,
    LayerFiles,
    Manifest,
    PartFile,
    checksum_of,
)
from feast_sketch_store.storage.base import (
    FileExistsAlreadyError,
    MissingFileError,
    Storage,
    UncertainWriteError,
)
from feast_sketch_store.storage.chunks import Chunks

MOVED = "moved"  # name of a file
_MANIFEST_SUFFIX = ".json"
_MANIFEST_NAME = re.compile(r"((\d{20})-(\d{4,})-[0-9a-f]{8})" + re.escape(_MANIFEST_SUFFIX))


_PIN_NAME = re.compile(r"pin-(\d{6})-(\d{20}-\d{4,}-[0-9a-f]{8})")
_PLACE = re.compile(r"(\d+)(?:-(\d+))?")
_SEALS_OF_A_TABLE = 1_000_000  # numbers for seals of one version of the row log's table


def place_of(name: str) -> tuple[int, int]:
    """The sort key of a snapshot's name; ``""``, no snapshot, comes first."""
    match = _PLACE.match(name)
    return (int(match[1]), int(match[2] or 0)) if match else (-1, -1)


@dataclass(frozen=True)
class SnapshotFile:
    """A snapshot, published or written to be published.

    Methods raise StorageError if a file cannot be read, or the snapshot has been pruned. Those that need its
    manifest raise DamagedFileError if that is truncated, altered, or of another snapshot.
    """

    version: int  # of the row log that it covers
    # of the seal, ascending with the version of the table that was sealed. So a seal of rows that were
    # replaced meanwhile is not the newest
    number: int
    name: str  # prefix of its files' names; unique
    storage: Storage = field(compare=False, repr=False)
    # the content of the manifest, for one that is not published yet; None to read it
    known_manifest: bytes | None = field(default=None, compare=False, repr=False)

    @property
    def manifest_name(self) -> str:
        """The name of the manifest in the snapshots' storage."""
        return self.name + _MANIFEST_SUFFIX

    @property
    def table_version(self) -> int:
        """The version of the row log's table that it was made of."""
        return self.number // _SEALS_OF_A_TABLE

    def where(self) -> str:
        """The location of its own part `base`, for messages about all of it."""
        return self.storage.where(_part_name(self.name, "base"))

    def exists(self) -> bool:
        """Whether it is still published."""
        return self.storage.info(self.manifest_name) is not None

    def size_bytes(self, part: str = "base") -> int:
        """Bytes of a part that this snapshot added; 0 if it is gone."""
        return self.storage.size_bytes(_part_name(self.name, part))

    def layers_bytes(self) -> int:
        """Bytes of the base and the deltas that readers map; 0 if the snapshot is gone."""
        try:
            manifest = self.manifest()
        except (DamagedFileError, MissingFileError):
            return self.size_bytes()
        return sum(layer.files["base"].size_bytes for layer in manifest.layers)

    def file_names(self) -> set[str]:
        """The names of all files that it needs; if its manifest cannot be read, of those that it added."""
        own = {_part_name(self.name, part) for part in PARTS}
        try:
            return own | {file.name for file in self.manifest().all_files}
        except (DamagedFileError, MissingFileError):
            return own

    def published_at(self) -> float:
        """Time of publication in seconds since 1970, by the storage's clock; 0 if the snapshot is gone."""
        info = self.storage.info(self.manifest_name)
        return info.modified_at if info else 0.0

    def with_manifest(self) -> "SnapshotFile":
        """The same snapshot with the content of its manifest, which is read now unless it is known."""
        return replace(self, known_manifest=self._content())

    def _content(self) -> bytes:
        if self.known_manifest is not None:
            return self.known_manifest
        return self.storage.read(self.manifest_name, 0, MAX_MANIFEST_BYTES + 1)

    def manifest(self) -> Manifest:
        """The decoded manifest."""
        source = self.storage.where(self.manifest_name)
        manifest = Manifest.decode(self._content(), source)
        own, names = manifest.own, {part: _part_name(self.name, part) for part in PARTS}
        is_own = (own.row_log_version, manifest.number) == (self.version, self.number)
        if not is_own or {part: file.name for part, file in own.files.items()} != names:
            raise DamagedFileError(f"{source}: is the manifest of another snapshot")
        return manifest

    def open(
        self, part: str, skip: Callable[[str], bool] = lambda array: False, layer: int = 0
    ) -> tuple[dict[str, Any], Arrays]:
        """Map a part, check its bytes, and return its description and arrays.

        Parameters
        ----------
        part : ``base`` or ``order``.
        skip : called with the name of an array; true if the caller checks the array, see `BlockChecks`.
        layer : whose part it is: 0 for the base, 1 for the oldest delta.

        Raises DamagedFileError: the manifest or the part is damaged, or the part is missing.
        """
        file = self.file(part, layer)
        source = self.storage.where(file.name)
        try:
            content = self.storage.map(file.name, file.known)
        except MissingFileError as error:
            raise self.damage_of(error) from error
        if not len(content):
            raise DamagedFileError(f"{source}: the file is empty")
        if len(content) != file.size_bytes:
            raise DamagedFileError(
                f"{source}: truncated or extended: {len(content)} bytes, the manifest says {file.size_bytes}"
            )
        description, arrays = decode(content, source, skip)
        if checksum_of(header_of(content)) != file.header_checksum:
            raise DamagedFileError(f"{source}: is not the file that its manifest names")
        return description, arrays

    def file(self, part: str, layer: int = 0) -> PartFile:
        """The file of a part; parameters and errors are those of `open`."""
        return self.manifest().layers[layer].files[part]

    def where_file(self, part: str, layer: int = 0) -> str:
        """The location of the same file, which an earlier snapshot may have written, for messages."""
        return self.storage.where(self.file(part, layer).name)

    def damage_of(self, error: MissingFileError) -> DamagedFileError:
        """The error of a file that is missing although the manifest names it.

        Raises MissingFileError: the snapshot was pruned just now.
        """
        if not self.exists():
            raise error
        return DamagedFileError(f"{error}, which {self.manifest_name} names")

    def drop_damaged(self) -> bool:
        """Delete damaged fetched copies of its files. Returns whether there were any."""
        copies = [self.storage.copy_of(file.name, file.known) for file in self.manifest().all_files]
        dropped = [copy.drop_if_damaged() for copy in copies if copy is not None]
        return any(dropped)

    def keep_copies(self) -> None:
        """Mark fetched copies of its files as in use."""
        for file in self.manifest().all_files:
            if (copy := self.storage.copy_of(file.name, file.known)) is not None:
                copy.keep()

    def let_go_of_copies(self, newer: "SnapshotFile") -> None:
        """Let fetched copies be deleted soon, except those of files that a newer snapshot needs."""
        needed = newer.file_names()
        for file in self.manifest().all_files:
            copy = self.storage.copy_of(file.name, file.known)
            if copy is not None and file.name not in needed:
                copy.let_go()


@dataclass(frozen=True)
class Listing:
    """The result of listing a folder of snapshots."""

    snapshots: list[SnapshotFile]  # published, newest first
    pinned: str  # name of the snapshot at which readers are held; empty if they are not
    pins: list[str]  # names of the files that hold them
    has_moved: bool = False  # whether the rows are elsewhere now, see `SnapshotFolder.note_move`

    @property
    def newest(self) -> SnapshotFile | None:
        """The newest snapshot; None if there is none."""
        return next(iter(self.snapshots), None)


class SnapshotFolder:
    """The snapshots of one view, in a storage that holds nothing else.

    Methods raise StorageError if the storage cannot be read or written.
    """

    def __init__(self, storage: Storage):
        self.storage = storage

    def named(self, name: str, manifest: bytes) -> SnapshotFile:
        """A snapshot, published or not, whose manifest is known.

        Raises DamagedFileError: this is not the manifest of a snapshot of this name.
        """
        found = Manifest.decode(manifest, self.storage.where(name))
        snapshot = SnapshotFile(found.own.row_log_version, found.number, name, self.storage, manifest)
        snapshot.manifest()  # checks that they belong together
        return snapshot

    def list(self) -> list[SnapshotFile]:
        """The published snapshots, newest first."""
        return self.listing().snapshots

    def listing(self, since: SnapshotFile | None = None) -> Listing:
        """The published snapshots, and the one at which readers are held.

        Those of earlier versions than ``since`` are left out, which makes an answer of an object store
        shorter. The names of pins, and of the note of a move, come after all versions.
        """
        names = self.storage.list(after="" if since is None else f"{since.version:020d}")
        matches = map(_MANIFEST_NAME.fullmatch, names)
        found = [SnapshotFile(int(m[2]), int(m[3]), m[1], self.storage) for m in matches if m]
        found.sort(key=lambda s: (s.version, s.number, s.name), reverse=True)
        pins = [match for match in map(_PIN_NAME.fullmatch, sorted(names)) if match]
        pinned = pins[-1][2] if pins else ""
        return Listing(found, pinned, [match[0] for match in pins], MOVED in names)

    def note_move(self) -> None:
        """Mark for readers, which list the names of files in any case, that the rows are elsewhere now."""
        self.storage.replace(MOVED, f"{created_by()}\n".encode())

    def pin(self, snapshot: SnapshotFile) -> None:
        """Hold readers at a snapshot until `unpin`. It is kept that long.

        Raises StorageError: the storage cannot be written; MissingFileError: the snapshot is gone.
        """
        before = self.listing().pins
        match = _PIN_NAME.fullmatch(before[-1]) if before else None
        name = f"pin-{int(match[1]) + 1 if match else 1:06d}-{snapshot.name}"
        # Another process may just have pinned the same one.
        with suppress(FileExistsAlreadyError), self.storage.create(name) as file:
            file.write(f"{created_by()}\n".encode())
        if not snapshot.exists():  # a seal pruned it just now
            self.storage.delete([name])
            raise MissingFileError(f"{snapshot.where()}: the snapshot no longer exists")
        self.storage.delete(before)

    def unpin(self) -> bool:
        """Let readers follow the newest snapshot. Returns whether they were held."""
        pins = self.listing().pins
        self.storage.delete(pins)
        return bool(pins)

    def write(
        self,
        version: int,
        description: Mapping[str, Any],
        arrays: Mapping[str, NDArray[np.generic]],
        order: Mapping[str, NDArray[np.generic]],
        table_version: int = 0,
        below: Sequence[LayerFiles] = (),
    ) -> SnapshotFile:
        """Write a snapshot durably; readers do not see it before `publish`. If this raises, no file remains.

        Parameters
        ----------
        version, table_version : of the row log, and of its table, which holds the rows.
        description, arrays : of the layer, see `format.encode`.
        order : the arrays of the order index.
        below : the base and deltas under the new layer, which is then a delta; empty for a new base.
        """
        first = _SEALS_OF_A_TABLE * table_version
        known = [s.number for s in self.list() if s.version == version]
        number = 1 + max([first, *(n for n in known if n < first + _SEALS_OF_A_TABLE)])
        name = f"{version:020d}-{number:04d}-{secrets.token_hex(4)}"
        contents = {"order": ({}, order), "base": (description, arrays)}
        files: dict[str, PartFile] = {}
        try:
            for part, content in contents.items():
                files[part] = _write(self.storage, _part_name(name, part), *content)
        except BaseException as error:
            with suppress(StorageError):
                self.storage.delete(file.name for file in files.values())
            if isinstance(error, StorageError):
                where = self.storage.location
                raise StorageError(f"{where}: a snapshot cannot be written: {error}") from error
            raise
        manifest = Manifest(number, created_by(), (*below, LayerFiles(version, files)))
        return SnapshotFile(version, number, name, self.storage, manifest.encode())

    def publish(self, draft: SnapshotFile) -> SnapshotFile:
        """Make a snapshot visible, as of `write`. If this raises, the snapshot is gone.

        Raises StorageError: one of the files that it adds is gone, or the manifest cannot be written.
        """
        name, content = draft.manifest_name, draft.known_manifest
        assert content is not None
        try:
            for part in draft.manifest().own.files.values():
                if not self.storage.size_bytes(part.name):
                    raise MissingFileError(
                        f"{self.storage.where(part.name)}: was removed before it was published. The seal "
                        "paused for so long that a vacuum removed it as a leftover; seal again"
                    )
            try:
                with self.storage.create(name) as file:
                    file.write(content)
            except FileExistsAlreadyError:
                # The manifest is ours if the answer to a first try was lost.
                if self.storage.read(name) != content:
                    raise
        except UncertainWriteError:
            raise  # the manifest may still appear, and needs the other files
        except StorageError as error:
            self.discard(draft)
            where = self.storage.location
            raise StorageError(f"{where}: a snapshot cannot be published: {error}") from error
        return replace(draft, known_manifest=None)

    def discard(self, snapshot: SnapshotFile) -> None:
        """Remove a snapshot, published or not, if its files can be deleted. A process that maps it keeps its
        pages.

        Files that other snapshots need are kept, and so is one at which another process holds readers by now.
        """
        with suppress(StorageError):
            self._remove(snapshot)

    def _remove(self, snapshot: SnapshotFile) -> None:
        published, manifest = replace(snapshot, known_manifest=None), snapshot.manifest_name
        with suppress(MissingFileError):  # of one that is not published
            published = published.with_manifest()
        gone = published.file_names()  # of one that is not published, only the files that it added
        self.storage.delete([manifest])  # if it cannot be deleted, its files must stay
        listing = self.listing()
        if listing.pinned == snapshot.name and published.known_manifest is not None:
            with self.storage.create(manifest) as file:
                file.write(published.known_manifest)
            return
        self.storage.delete(gone.difference(*(other.file_names() for other in listing.snapshots)))

    def prune(self, keep: int, check: Callable[[SnapshotFile], object] = SnapshotFile.manifest) -> None:
        """Remove all that are older than the newest ``keep`` that pass a check, which raises DamagedFileError
        for others; by default the manifest is read. The one at which readers are held stays.

        Raises StorageError: one cannot be removed.
        """
        listing = self.listing()
        if len(listing.snapshots) <= keep:
            return
        for snapshot in listing.snapshots:
            if keep > 0:
                with suppress(DamagedFileError, MissingFileError):  # readers serve the one before it
                    check(snapshot)
                    keep -= 1
            elif snapshot.name != listing.pinned:
                self._remove(snapshot)

    def leftovers(self) -> Sequence[str]:
        """The names of files of no published snapshot. Their writers were killed, or are still writing."""
        listing = self.listing()
        kept = {*listing.pins, MOVED}
        for snapshot in listing.snapshots:
            kept |= {snapshot.manifest_name, *snapshot.file_names()}
        return sorted(info.name for info in self.storage.walk() if info.name not in kept)

    def remove_leftovers(self, age_seconds: float = 0.0) -> int:
        """Remove files of killed writers. Returns the number of files.

        Where others may be writing, only files that are older than ``age_seconds``.
        """
        gone = self.leftovers()
        if not self.storage.supports_leases:  # another process may be writing
            oldest = time.time() - age_seconds
            infos = [info for name in gone if (info := self.storage.info(name)) is not None]
            gone = [info.name for info in infos if info.modified_at <= oldest]
        self.storage.delete(gone)
        return len(gone)


def created_by() -> str:
    """Package and version, to be noted in files."""
    return f"feast_sketch_store {feast_sketch_store.__version__}"


def _part_name(name: str, part: str) -> str:
    return f"{name}.{part}.sketch"


def _write(
    storage: Storage, name: str, description: Mapping[str, Any], arrays: Mapping[str, NDArray[np.generic]]
) -> PartFile:
    pieces = encode(description, arrays)
    with storage.create(name) as file:
        for piece in pieces:
            file.write(piece)
    chunks = Chunks.of(pieces, CHUNK_BYTES) if storage.fetches else None
    return PartFile(name, sum(map(len, pieces)), checksum_of(pieces[0]), chunks)
