"""The manifest of a snapshot: one small JSON file whose appearance publishes it. No I/O.

    {"checksum": "5b0f...", "created_by": "feast_sketch_store 0.1.0",
     "files": {"base":  {"header_checksum": "9a41...", "name": "....base.safetensors", "size_bytes": 20480},
               "order": {"header_checksum": "c2d8...", "name": "....order.safetensors", "size_bytes": 3392}},
     "format_version": 1, "number": 1, "row_log_version": 42}

Keys are sorted, there are no spaces, and the file ends with a line break. A file that differs from what
`Manifest.encode` makes of its content is refused. ``checksum`` is that of the file without it, a
``header_checksum`` that of all before the arrays of a file, which holds the checksums of the arrays: so the
manifest vouches for every byte. Checksums are MurmurHash3 x64 128 in hexadecimal.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import mmh3

from feast_sketch_store.errors import DamagedFileError

MANIFEST_VERSION = 1
MAX_MANIFEST_BYTES = 1 << 16

PARTS = ("base", "order")
_FILE_NAME = re.compile(r"[0-9a-zA-Z][0-9a-zA-Z._-]*")  # in the folder of the manifest
_CHECKSUM = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class PartFile:
    """A file of a snapshot, as its manifest knows it."""

    name: str
    size_bytes: int
    header_checksum: str


@dataclass(frozen=True)
class Manifest:
    """What a snapshot covers, and its files.

    Parameters
    ----------
    row_log_version : whose rows the snapshot holds.
    number : of the seal of that version, from 1.
    created_by : package and version that sealed it.
    files : by part, one for each of `PARTS`.
    """

    row_log_version: int
    number: int
    created_by: str
    files: Mapping[str, PartFile]

    def encode(self) -> bytes:
        """The content of the manifest's file."""
        content = {
            "created_by": self.created_by,
            "files": {part: asdict(file) for part, file in self.files.items()},
            "format_version": MANIFEST_VERSION,
            "number": self.number,
            "row_log_version": self.row_log_version,
        }
        return _canonical({**content, "checksum": checksum_of(_canonical(content))})

    @classmethod
    def decode(cls, content: bytes, source: str) -> "Manifest":
        """The manifest of a file's content.

        Parameters
        ----------
        source : the file's name, for error messages.

        Raises
        ------
        DamagedFileError : the content is truncated, altered, or of another kind or version.
        """
        if len(content) > MAX_MANIFEST_BYTES:
            raise DamagedFileError(f"{source}: not a manifest: it is longer than {MAX_MANIFEST_BYTES} bytes")
        try:
            given = json.loads(content)
            version = given["format_version"]
            if version != MANIFEST_VERSION:
                raise DamagedFileError(
                    f"{source}: has manifest version {version}, this release reads {MANIFEST_VERSION}; "
                    "upgrade feast_sketch_store or seal the view anew"
                )
            files = {part: PartFile(**given["files"][part]) for part in PARTS}
            manifest = cls(given["row_log_version"], given["number"], given["created_by"], files)
            manifest._check()
            is_whole = manifest.encode() == content
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DamagedFileError(f"{source}: not a manifest, or damaged: {error}") from error
        if not is_whole:
            raise DamagedFileError(f"{source}: the manifest was altered")
        return manifest

    def _check(self) -> None:
        numbers = [self.row_log_version, self.number, *(file.size_bytes for file in self.files.values())]
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise ValueError("a number has another type")
        if type(self.created_by) is not str:
            raise ValueError("its creator is not a string")
        for file in self.files.values():
            if not _FILE_NAME.fullmatch(file.name) or not _CHECKSUM.fullmatch(file.header_checksum):
                raise ValueError(f"{file!r} is not a file of a snapshot")


def checksum_of(content: bytes | memoryview) -> str:
    """MurmurHash3 x64 128, in hexadecimal."""
    return mmh3.mmh3_x64_128_digest(content).hex()


def _canonical(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":"), sort_keys=True, ensure_ascii=True).encode() + b"\n"
