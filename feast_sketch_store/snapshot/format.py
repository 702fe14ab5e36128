"""The snapshot format: a safetensors file with a description and checksums. No Feast, no I/O.

    8 bytes   N, unsigned little-endian: length of the header
    N bytes   header, JSON in UTF-8, padded with spaces to a multiple of 64, minus 8
    the rest  the arrays, little-endian, without gaps, widest elements first (so all are aligned), then by
    name

The header is what any safetensors reader expects, ``{"__metadata__": {...}, "<array>": {"dtype", "shape",
"data_offsets"}}``. The metadata holds two strings. ``feast_sketch_store`` is a JSON object with the format
version, the description of the content and a checksum for each array; ``checksum`` is the checksum of that
object. Everything else in the header can be derived from them and must match to the byte. So a changed byte
anywhere is found, and arrays in another order are refused as damaged. Checksums are MurmurHash3 x64 128 in
hexadecimal: they detect damage, they do not prove who wrote a file.

Nothing is executed, and nothing is allocated from an unchecked number.

Source: github.com/huggingface/safetensors, "Format".
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import mmh3
import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.errors import DamagedFileError, FormatVersionError

FORMAT_VERSION = 1

_MAX_HEADER_BYTES = 1 << 24
_MAX_LENGTH = 1 << 48  # of an array: no file is longer, and NumPy refuses even empty arrays of huge shapes
_MAX_AXES = 4
_ALIGNMENT = 64
_OWN_KEY = "feast_sketch_store"
_DTYPES = {"U64": "<u8", "I64": "<i8", "I32": "<i4", "U8": "|u1"}
_DTYPE_NAMES = {np.dtype(code): name for name, code in _DTYPES.items()}
_WIDEST = max(dtype.itemsize for dtype in _DTYPE_NAMES)

Arrays = dict[str, NDArray[np.generic]]


def encode(description: Mapping[str, Any], arrays: Mapping[str, NDArray[np.generic]]) -> list[memoryview]:
    """The file's content in pieces, to be written one after the other.

    Parameters
    ----------
    description : JSON-serializable; goes into the header.
    arrays : of uint64, int64, int32 or uint8.

    Raises
    ------
    KeyError : an array has another type.
    """
    ordered = sorted(arrays.items(), key=lambda item: _rank(item[1].dtype, item[0]))
    contiguous = [(name, np.ascontiguousarray(array)) for name, array in ordered]
    own = {
        "format_version": FORMAT_VERSION,
        "description": description,
        "arrays": [
            {
                "name": name,
                "dtype": _DTYPE_NAMES[array.dtype],
                "shape": list(array.shape),
                "checksum": _checksum(_bytes_of(array)),
            }
            for name, array in contiguous
        ],
    }
    header = _header(own)
    return [memoryview(header), *(_bytes_of(array) for _, array in contiguous)]


def decode(content: NDArray[np.uint8], source: str) -> tuple[dict[str, Any], Arrays]:
    """Check the header, and return the description and the arrays, as views of ``content``.

    `verify` checks the arrays' checksums, because that takes a pass over the whole file.

    Parameters
    ----------
    content : uint8[size_bytes], at an address that is a multiple of 8; may be memory-mapped.
    source : the file's name, for error messages.

    Raises
    ------
    DamagedFileError : the content is truncated, altered, or of another kind.
    FormatVersionError : the file has another format version.
    ValueError : the content is misaligned in memory, so its arrays would be, too.
    """
    own, start = _read_header(content, source)
    if content.ctypes.data % _WIDEST:
        raise ValueError(f"{source}: its content begins at an address that is not a multiple of {_WIDEST}")
    arrays = {}
    for entry in own["arrays"]:
        dtype = np.dtype(_DTYPES[entry["dtype"]])
        size = _size_bytes(entry)
        arrays[entry["name"]] = content[start : start + size].view(dtype).reshape(entry["shape"])
        start += size
    return own["description"], arrays


def verify(
    content: NDArray[np.uint8], source: str, skip: Callable[[str], bool] = lambda array: False
) -> None:
    """Check every byte of a file, except arrays that ``skip`` selects by name.

    Raises
    ------
    DamagedFileError : a checksum differs; the message names the array.
    """
    own, _ = _read_header(content, source)
    _, arrays = decode(content, source)
    for entry in own["arrays"]:
        if skip(entry["name"]):
            continue
        if _checksum(_bytes_of(arrays[entry["name"]])) != entry["checksum"]:
            raise DamagedFileError(f"{source}: the checksum of {entry['name']!r} does not match its bytes")


@dataclass(frozen=True)
class Stretch:
    """Where an array lies in a file, and what its bytes are."""

    name: str
    start: int
    size_bytes: int
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    checksum: str

    def decode(self, content: bytes, source: str) -> NDArray[np.generic]:
        """The array, given its bytes.

        Raises
        ------
        DamagedFileError : they are fewer, or differ from the checksum.
        """
        if len(content) != self.size_bytes or _checksum(content) != self.checksum:
            raise DamagedFileError(f"{source}: the checksum of {self.name!r} does not match its bytes")
        return np.frombuffer(content, self.dtype).reshape(self.shape)


def locate(head: bytes, size_bytes: int, source: str) -> dict[str, Stretch]:
    """Where the arrays of a file lie, given at least its header and its size.

    Raises
    ------
    DamagedFileError : the header is truncated, altered, or of another kind.
    FormatVersionError : the file has another format version.
    """
    own, start = _read_header(np.frombuffer(head, np.uint8), source, size_bytes)
    found = {}
    for entry in own["arrays"]:
        size, dtype = _size_bytes(entry), np.dtype(_DTYPES[entry["dtype"]])
        found[entry["name"]] = Stretch(
            entry["name"], start, size, tuple(entry["shape"]), dtype, entry["checksum"]
        )
        start += size
    return found


def _header(own: Mapping[str, Any]) -> bytes:
    text = _canonical(own)
    header: dict[str, Any] = {"__metadata__": {"checksum": _checksum(text.encode()), _OWN_KEY: text}}
    end = 0
    for entry in own["arrays"]:
        start, end = end, end + _size_bytes(entry)
        header[entry["name"]] = {
            "dtype": entry["dtype"],
            "shape": entry["shape"],
            "data_offsets": [start, end],
        }
    encoded = _canonical(header).encode()
    encoded += b" " * (-(len(encoded) + 8) % _ALIGNMENT)
    return len(encoded).to_bytes(8, "little") + encoded


def _read_header(
    content: NDArray[np.uint8], source: str, size_bytes: int | None = None
) -> tuple[dict[str, Any], int]:
    """The checked object in the header, and where the arrays begin; a size is that of the whole file."""
    size_bytes = len(content) if size_bytes is None else size_bytes
    length = int.from_bytes(content[:8].tobytes(), "little")
    start = 8 + length
    if len(content) < 8 or length > _MAX_HEADER_BYTES or start > len(content):
        raise DamagedFileError(
            f"{source}: not a snapshot, or truncated: {len(content)} bytes cannot hold a header of {length}"
        )
    header = content[:start].tobytes()
    try:
        metadata = json.loads(header[8:])["__metadata__"]
        text, checksum = metadata[_OWN_KEY], metadata["checksum"]
        if _checksum(text.encode()) != checksum:
            raise DamagedFileError(f"{source}: the checksum of the header does not match")
        own: dict[str, Any] = json.loads(text)
        version = own["format_version"]
        if version != FORMAT_VERSION:
            raise FormatVersionError.of(source, version, FORMAT_VERSION, " or seal the view again")
        if _header(own) != header:
            raise DamagedFileError(f"{source}: the header was altered")
        _check_entries(own)
        sizes = [_size_bytes(entry) for entry in own["arrays"]]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedFileError(f"{source}: not a snapshot, or damaged: {error}") from error
    told = start + sum(sizes)
    if told != size_bytes:
        raise DamagedFileError(f"{source}: truncated or extended: {size_bytes} bytes, the header says {told}")
    return own, start


def _check_entries(own: Mapping[str, Any]) -> None:
    """Check that all parts are there, and that arrays have distinct names and are in the right order."""
    names = [entry["name"] for entry in own["arrays"]]
    if not all(type(name) is str for name in names) or len(set(names)) < len(names):
        raise ValueError("the arrays do not have distinct names")
    ranks = [_rank(np.dtype(_DTYPES[entry["dtype"]]), entry["name"]) for entry in own["arrays"]]
    if ranks != sorted(ranks):
        raise ValueError("the arrays are not in the order in which they are written")
    if "description" not in own or not all("checksum" in entry for entry in own["arrays"]):
        raise ValueError("a part is missing")


def _rank(dtype: np.dtype[Any], name: str) -> tuple[int, str]:
    """Sort key of arrays. After wider elements, and a header of whole 64 bytes, all arrays are aligned."""
    return -dtype.itemsize, name


def _size_bytes(entry: Mapping[str, Any]) -> int:
    """Bytes of an array that the header describes."""
    size = np.dtype(_DTYPES[entry["dtype"]]).itemsize
    shape = entry["shape"]
    if type(shape) is not list or not 1 <= len(shape) <= _MAX_AXES:
        raise ValueError(f"{shape!r} is not a shape")
    if not all(type(length) is int and length >= 0 for length in shape):
        raise ValueError(f"the shape {shape!r} has an impossible length")
    if math.prod(max(1, length) for length in shape) > _MAX_LENGTH:
        raise ValueError(f"an array of the shape {shape!r} is too large")
    return size * math.prod(shape)


def _canonical(content: Mapping[str, Any]) -> str:
    return json.dumps(content, separators=(",", ":"), sort_keys=True, ensure_ascii=True)


def _bytes_of(array: NDArray[np.generic]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _checksum(content: bytes | memoryview) -> str:
    return mmh3.mmh3_x64_128_digest(content).hex()
