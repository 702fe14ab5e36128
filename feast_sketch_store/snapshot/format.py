"""The snapshot format: named arrays with a description and checksums. No Feast, no I/O.

    8 bytes   N, unsigned little-endian: length of the header
    16 bytes  of the header: the checksum of the rest of it
    N - 16    JSON in UTF-8, compressed by zlib, then zeros up to a multiple of 64, the first 8 bytes included
    the rest  the arrays, little-endian, without gaps, widest elements first (so all are aligned), then by
              name

The JSON is an object with the format version, the description of the content, and for each array a list: its
name, type and shape, and the first half of its checksum. An array ``X`` that has ``X.checksums`` has none:
these are the checksums of its blocks, and damage of either shows where they are compared. So a changed byte
anywhere is found, and arrays in another order are refused as damaged. Checksums are MurmurHash3 x64 128: they
detect damage, they do not prove who wrote a file.

Compressed, a header takes about 20 bytes for each array, and no more than a kilobyte for three features.

Nothing is executed, and nothing is allocated from an unchecked number.
"""

import json
import math
import zlib
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mmh3
import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.errors import DamagedFileError, FormatVersionError
from feast_sketch_store.succinct.blocks import CHECKSUM_BYTES, CHECKSUMS, block_checksums

FORMAT_VERSION = 1

_MAX_HEADER_BYTES = 1 << 22
_MAX_LENGTH = 1 << 48  # of an array: no file is longer, and NumPy refuses even empty arrays of huge shapes
_MAX_AXES = 4
_ALIGNMENT = 64
_PREFIX_BYTES = 8 + CHECKSUM_BYTES
_DTYPES = {"U64": "<u8", "I64": "<i8", "I32": "<i4", "U8": "|u1"}
_DTYPE_NAMES = {np.dtype(code): name for name, code in _DTYPES.items()}
_WIDEST = max(dtype.itemsize for dtype in _DTYPE_NAMES)

Arrays = dict[str, NDArray[np.generic]]


def encode(description: Mapping[str, Any], arrays: Mapping[str, NDArray[np.generic]]) -> list[memoryview]:
    """The file's content in pieces, to be written one after the other.

    The description is JSON-serializable and goes into the header. The arrays are of uint64, int64, int32 or
    uint8; a KeyError is raised for another type.
    """
    ordered = sorted(arrays.items(), key=lambda item: _rank(item[1].dtype, item[0]))
    contiguous = [(name, np.ascontiguousarray(array)) for name, array in ordered]
    own = {
        "format_version": FORMAT_VERSION,
        "description": description,
        "arrays": [
            [name, _DTYPE_NAMES[array.dtype], list(array.shape)]
            + ([] if _has_blocks(name, arrays) else [_checksum(_bytes_of(array))])
            for name, array in contiguous
        ],
    }
    header = _header(own)
    return [memoryview(header), *(_bytes_of(array) for _, array in contiguous)]


def decode(
    content: NDArray[np.uint8], source: str, skip: Callable[[str], bool] = lambda array: False
) -> tuple[dict[str, Any], Arrays]:
    """Check every byte, and return the description and the arrays, as views of ``content``.

    Parameters
    ----------
    content : uint8[size_bytes], at an address that is a multiple of 8; may be memory-mapped.
    skip : called with the name of an array; true if the caller checks its bytes.

    Raises
    ------
    DamagedFileError : the content is truncated, altered, or of another kind; the message names the array.
    FormatVersionError : the file has another format version.
    ValueError : the content is misaligned in memory, so its arrays would be, too.
    """
    description, stretches = _read_header(content, source)
    if content.ctypes.data % _WIDEST:
        raise ValueError(f"{source}: its content begins at an address that is not a multiple of {_WIDEST}")
    arrays = {s.name: content[s.start : s.end].view(s.dtype).reshape(s.shape) for s in stretches}
    for stretch in stretches:
        name, array = stretch.name, arrays[stretch.name]
        if skip(name) or (not stretch.checksum and name.endswith(CHECKSUMS)):
            continue
        if stretch.checksum:
            if _checksum(_bytes_of(array)) != stretch.checksum:
                raise DamagedFileError(f"{source}: the checksum of {name!r} does not match its bytes")
        elif not np.array_equal(block_checksums(array), arrays[name + CHECKSUMS]):
            raise DamagedFileError(
                f"{source}: the checksums of the blocks of {name!r} do not match its bytes"
            )
    return description, arrays


@dataclass(frozen=True)
class Stretch:
    """An array in a file, as the header describes it; the checksum is empty if its blocks have checksums."""

    name: str
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    checksum: str
    start: int

    @classmethod
    def of_entry(cls, entry: Sequence[Any], start: int) -> "Stretch":
        """The array of an entry of the header, which begins at ``start``.

        Raises ValueError, KeyError, TypeError: such an array is not possible.
        """
        name, type_name, shape, checksum = entry if len(entry) > 3 else (*entry, "")
        if type(name) is not str or type(checksum) is not str:
            raise ValueError("an array has no name or checksum")
        if type(shape) is not list or not 1 <= len(shape) <= _MAX_AXES:
            raise ValueError(f"{shape!r} is not a shape")
        if not all(type(length) is int and length >= 0 for length in shape):
            raise ValueError(f"the shape {shape!r} has an impossible length")
        if math.prod(max(1, length) for length in shape) > _MAX_LENGTH:
            raise ValueError(f"an array of the shape {shape!r} is too large")
        return cls(name, np.dtype(_DTYPES[type_name]), tuple(shape), checksum, start)

    @property
    def size_bytes(self) -> int:
        """Bytes of its elements."""
        return self.dtype.itemsize * math.prod(self.shape)

    @property
    def end(self) -> int:
        """Where it ends in the file."""
        return self.start + self.size_bytes

    def decode(self, content: bytes, source: str) -> NDArray[np.generic]:
        """The array, given its bytes.

        Raises DamagedFileError: they are fewer, or differ from the checksum.
        """
        if len(content) != self.size_bytes or _checksum(content) != self.checksum:
            raise DamagedFileError(f"{source}: the checksum of {self.name!r} does not match its bytes")
        return np.frombuffer(content, self.dtype).reshape(self.shape)


def locate(head: bytes, size_bytes: int, source: str) -> dict[str, Stretch]:
    """Where the arrays of a file lie, given at least its header and its size.

    Raises DamagedFileError, FormatVersionError: as `decode`, of the header.
    """
    _, stretches = _read_header(np.frombuffer(head, np.uint8), source, size_bytes)
    return {stretch.name: stretch for stretch in stretches}


def header_of(content: NDArray[np.uint8]) -> bytes:
    """The bytes before the arrays of a file that `decode` takes."""
    return content[: 8 + int.from_bytes(content[:8].tobytes(), "little")].tobytes()


def _header(own: Mapping[str, Any]) -> bytes:
    text = json.dumps(own, separators=(",", ":"), sort_keys=True, ensure_ascii=True)
    packed = zlib.compress(text.encode(), 9)
    packed += bytes(-(len(packed) + _PREFIX_BYTES) % _ALIGNMENT)
    length = CHECKSUM_BYTES + len(packed)
    return length.to_bytes(8, "little") + mmh3.mmh3_x64_128_digest(packed) + packed


def _read_header(
    content: NDArray[np.uint8], source: str, size_bytes: int | None = None
) -> tuple[dict[str, Any], list[Stretch]]:
    """The description, and the arrays in the order of the file; a size is that of the whole file."""
    size_bytes = len(content) if size_bytes is None else size_bytes
    length = int.from_bytes(content[:8].tobytes(), "little")
    start = 8 + length
    if (
        len(content) < _PREFIX_BYTES
        or not CHECKSUM_BYTES <= length <= _MAX_HEADER_BYTES
        or start > len(content)
    ):
        raise DamagedFileError(
            f"{source}: not a snapshot, or truncated: {len(content)} bytes cannot hold a header of {length}"
        )
    packed = content[_PREFIX_BYTES:start].tobytes()
    if start % _ALIGNMENT or mmh3.mmh3_x64_128_digest(packed) != content[8:_PREFIX_BYTES].tobytes():
        raise DamagedFileError(f"{source}: not a snapshot, or the checksum of its header does not match")
    try:
        own = json.loads(_unpacked(packed))
        version = own["format_version"]
        if version != FORMAT_VERSION:
            raise FormatVersionError.of(source, version, FORMAT_VERSION, " or seal the view again")
        description, stretches, end = own["description"], [], start
        for entry in own["arrays"]:
            stretches.append(Stretch.of_entry(entry, end))
            end = stretches[-1].end
        _check_together(stretches)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, zlib.error) as error:
        raise DamagedFileError(f"{source}: not a snapshot, or damaged: {error}") from error
    if end != size_bytes:
        raise DamagedFileError(f"{source}: truncated or extended: {size_bytes} bytes, the header says {end}")
    return description, stretches


def _unpacked(packed: bytes) -> bytes:
    """The JSON of a header."""
    stream = zlib.decompressobj()
    text = stream.decompress(packed, _MAX_HEADER_BYTES)
    if not stream.eof or stream.unused_data.strip(b"\0") or len(stream.unused_data) >= _ALIGNMENT:
        raise ValueError("the header is too long, or does not end where it says")
    return text


def _check_together(stretches: Sequence[Stretch]) -> None:
    """Check that arrays have distinct names and their checksums, and are in the right order."""
    names = {stretch.name for stretch in stretches}
    if len(names) < len(stretches):
        raise ValueError("the arrays do not have distinct names")
    if any(_has_blocks(stretch.name, names) == bool(stretch.checksum) for stretch in stretches):
        raise ValueError("an array has no checksum, or one beside those of its blocks")
    ranks = [_rank(stretch.dtype, stretch.name) for stretch in stretches]
    if ranks != sorted(ranks):
        raise ValueError("the arrays are not in the order in which they are written")


def _has_blocks(name: str, names: Container[str]) -> bool:
    """Whether an array has checksums of its blocks, or consists of such checksums."""
    return name + CHECKSUMS in names or (name.endswith(CHECKSUMS) and name.removesuffix(CHECKSUMS) in names)


def _rank(dtype: np.dtype[Any], name: str) -> tuple[int, str]:
    """Sort key of arrays. After wider elements, and a header of whole 64 bytes, all arrays are aligned."""
    return -dtype.itemsize, name


def _bytes_of(array: NDArray[np.generic]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _checksum(content: bytes | memoryview) -> str:
    return mmh3.mmh3_x64_128_digest(content)[: CHECKSUM_BYTES // 2].hex()
