"""The manifest of a snapshot: one small JSON file whose appearance publishes it. No I/O.

    {"checksum": "5b0f...", "created_by": "feast_sketch_store 0.1.0",
     "files": {"base":  {"header_checksum": "9a41...", "name": "....base.sketch", "size_bytes": 20480},
               "order": {"header_checksum": "c2d8...", "name": "....order.sketch", "size_bytes": 3392}},
     "format_version": 1, "number": 1, "row_log_version": 42}

Files that readers fetch over a network also have ``chunks``:

    "chunks": {"checksums": ["77c1...", ...], "size_bytes": 8388608}

These are checksums of consecutive chunks of the file, with which a fetched copy is checked part by part.

A snapshot may consist of a base and deltas over it, from the oldest to the newest:

    "base_version": 40, "deltas": [{"files": {"base": ..., "order": ...}, "row_log_version": 42}]

``files`` are those of the base, which an earlier snapshot may have written. The files and the row-log version
of the last delta are the snapshot's own. In memory the base is the first of the layers.

Keys are sorted, there are no spaces, and the file ends with a line break. A file that differs from what
`Manifest.encode` makes of its content is refused. ``checksum`` is that of the file without this entry. A
``header_checksum`` is that of a file's bytes before its arrays, which include the checksums of the arrays. So
the manifest vouches for every byte. Checksums are MurmurHash3 x64 128 in hexadecimal.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mmh3

from feast_sketch_store.errors import DamagedFileError, FormatVersionError
from feast_sketch_store.storage.chunks import Chunks, KnownFile

MANIFEST_VERSION = 1
MAX_MANIFEST_BYTES = 1 << 20
CHUNK_BYTES = 8 << 20

PARTS = ("base", "order")
_FILE_NAME = re.compile(r"[0-9a-zA-Z][0-9a-zA-Z._-]*")  # in the folder of the manifest
_CHECKSUM = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class PartFile:
    """A file of a snapshot, as its manifest describes it; ``chunks`` is None if it is never fetched."""

    name: str
    size_bytes: int
    header_checksum: str
    chunks: Chunks | None = None

    @property
    def known(self) -> KnownFile | None:
        """The size and checksums for a fetched copy; None without chunks."""
        return None if self.chunks is None else KnownFile(self.size_bytes, self.chunks)

    def to_json(self) -> dict[str, Any]:
        """The entry of the manifest."""
        entry: dict[str, Any] = {
            "name": self.name,
            "size_bytes": self.size_bytes,
            "header_checksum": self.header_checksum,
        }
        if self.chunks is not None:
            checksums = [checksum.hex() for checksum in self.chunks.checksums]
            entry["chunks"] = {"size_bytes": self.chunks.chunk_bytes, "checksums": checksums}
        return entry

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> "PartFile":
        """The reverse of `to_json`. Raises ValueError, KeyError, TypeError: the entry is not valid."""
        chunks = None
        if (given := entry.get("chunks")) is not None:
            size_bytes, checksums = given["size_bytes"], given["checksums"]
            if type(size_bytes) is not int or not all(_CHECKSUM.fullmatch(c) for c in checksums):
                raise ValueError("a checksum of its chunks is not 32 hexadecimal digits")
            chunks = Chunks(size_bytes, tuple(map(bytes.fromhex, checksums)))
        return cls(entry["name"], entry["size_bytes"], entry["header_checksum"], chunks)


@dataclass(frozen=True)
class LayerFiles:
    """The files of a base or a delta, one for each of `PARTS`, and the version of the row log up to it."""

    row_log_version: int
    files: Mapping[str, PartFile]

    def to_json(self) -> dict[str, Any]:
        """The entry of a delta in the manifest."""
        files = {part: file.to_json() for part, file in self.files.items()}
        return {"files": files, "row_log_version": self.row_log_version}

    @classmethod
    def from_json(cls, version: int, files: Mapping[str, Any]) -> "LayerFiles":
        """The reverse; errors are those of `PartFile.from_json`."""
        return cls(version, {part: PartFile.from_json(files[part]) for part in PARTS})


@dataclass(frozen=True)
class Manifest:
    """What a snapshot covers, and its files: the base, and the deltas over it, oldest first.

    ``number`` is that of the seal, see `SnapshotFile`.
    """

    number: int
    created_by: str
    layers: tuple[LayerFiles, ...]

    @property
    def own(self) -> LayerFiles:
        """The layer that this snapshot added."""
        return self.layers[-1]

    @property
    def all_files(self) -> list[PartFile]:
        """The files of the base and of all deltas."""
        return [file for layer in self.layers for file in layer.files.values()]

    def encode(self) -> bytes:
        """The content of the manifest file."""
        base, *deltas = self.layers
        content: dict[str, Any] = {
            "created_by": self.created_by,
            "files": base.to_json()["files"],
            "format_version": MANIFEST_VERSION,
            "number": self.number,
            "row_log_version": self.own.row_log_version,
        }
        if deltas:
            content["base_version"] = base.row_log_version
            content["deltas"] = [delta.to_json() for delta in deltas]
        return _canonical({**content, "checksum": checksum_of(_canonical(content))})

    @classmethod
    def decode(cls, content: bytes, source: str) -> "Manifest":
        """The manifest in a file's content; errors name the ``source``.

        Raises DamagedFileError, FormatVersionError: the content is truncated, altered, or of another kind or
        version.
        """
        if len(content) > MAX_MANIFEST_BYTES:
            raise DamagedFileError(f"{source}: not a manifest: it is longer than {MAX_MANIFEST_BYTES} bytes")
        try:
            given = json.loads(content)
            version = given["format_version"]
            if version != MANIFEST_VERSION:
                raise FormatVersionError.of(
                    source, version, MANIFEST_VERSION, " or seal the view again", kind="manifest"
                )
            deltas = given.get("deltas", [])
            base_version = given["base_version" if deltas else "row_log_version"]
            base = LayerFiles.from_json(base_version, given["files"])
            over = (LayerFiles.from_json(entry["row_log_version"], entry["files"]) for entry in deltas)
            manifest = cls(given["number"], given["created_by"], (base, *over))
            manifest._check(given["row_log_version"])
            is_whole = manifest.encode() == content
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DamagedFileError(f"{source}: not a manifest, or damaged: {error}") from error
        if not is_whole:
            raise DamagedFileError(f"{source}: the manifest was altered")
        return manifest

    def _check(self, row_log_version: int) -> None:
        versions = [layer.row_log_version for layer in self.layers]
        sizes = [file.size_bytes for file in self.all_files]
        numbers = [*versions, row_log_version, self.number, *sizes]
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise ValueError("a number has another type")
        if type(self.created_by) is not str:
            raise ValueError("its creator is not a string")
        if versions != sorted({*versions}) or versions[-1] != row_log_version:
            raise ValueError("the versions of the base and the deltas do not ascend to that of the snapshot")
        for file in self.all_files:
            if not _FILE_NAME.fullmatch(file.name) or not _CHECKSUM.fullmatch(file.header_checksum):
                raise ValueError(f"{file!r} is not a file of a snapshot")
            if file.chunks is not None and not file.chunks.are_of(file.size_bytes):
                raise ValueError(f"the chunks of {file.name} do not fit its {file.size_bytes} bytes")


def checksum_of(content: bytes | memoryview) -> str:
    """MurmurHash3 x64 128, in hexadecimal."""
    return mmh3.mmh3_x64_128_digest(content).hex()


def _canonical(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":"), sort_keys=True, ensure_ascii=True).encode() + b"\n"
