"""Files with headers of any content whose checksums are right."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mmh3
import numpy as np
import pytest
from numpy.typing import NDArray

from feast_sketch_store.snapshot.format import encode

SIZES = {"U64": 8, "I64": 8, "I32": 4, "U8": 1}


def checksum(content: bytes) -> str:
    """The checksum of the format, computed without the package's help."""
    return mmh3.hash_bytes(content).hex()


def file_of(header: bytes, payload: bytes = b"", *, length: int | None = None) -> NDArray[np.uint8]:
    """A file with a header, padded as the format requires, and then the payload."""
    header += b" " * (-(len(header) + 8) % 64)
    length = len(header) if length is None else length
    return np.frombuffer(length.to_bytes(8, "little") + header + payload, np.uint8)


@pytest.fixture(scope="session")
def golden_base() -> bytes:
    """A snapshot of a sealed layer."""
    return (Path(__file__).parent / "golden" / "v1.base.safetensors").read_bytes()


@pytest.fixture(scope="session")
def small() -> bytes:
    """The smallest file that has arrays of all types."""
    arrays = {
        "a": np.array([[1, 2], [3, 4]], np.uint64),
        "b": np.array([-1, 5], np.int64),
        "c": np.array([7, -7], np.int32),
        "d": np.array([1, 2, 3], np.uint8),
        "empty": np.zeros((0, 2), np.int64),
    }
    return b"".join(encode({"layer": {"x": "é"}}, arrays))


@pytest.fixture(scope="session")
def forge() -> Callable[..., NDArray[np.uint8]]:
    """Makes a file from the entries of its arrays; every checksum is right, whatever the entries say.

    ``entries`` become ``[{"name", "dtype", "shape", "checksum"}]`` with the checksum of ``payload``;
    ``own`` changes the described object, ``tensors`` replaces what the outer header says about arrays,
    ``drop`` leaves a part out, ``depth`` makes the description so many lists deep.
    """

    def make(
        *entries: dict[str, Any],
        payload: bytes = b"",
        own: dict[str, Any] | None = None,
        tensors: dict[str, Any] | None = None,
        drop: str | None = None,
        depth: int = 0,
    ) -> NDArray[np.uint8]:
        arrays = [
            {"name": "a", "dtype": "U8", "shape": [0], "checksum": checksum(payload)} | e for e in entries
        ]
        content = {"format_version": 1, "description": {}, "arrays": arrays} | (own or {})
        for each in (content, *arrays):
            each.pop(drop, None)
        text = json.dumps(content, separators=(",", ":"), sort_keys=True)
        if depth:
            text = text.replace('"description":{}', f'"description":{"[" * depth}{"]" * depth}')
        header: dict[str, Any] = {
            "__metadata__": {"checksum": checksum(text.encode()), "feast_sketch_store": text}
        }
        end = 0
        for entry in arrays:
            shape, name = entry.get("shape"), entry.get("name", "a")
            size = SIZES.get(str(entry.get("dtype")), 1)
            if isinstance(shape, list) and all(isinstance(length, int) for length in shape):
                size *= math.prod(shape)
            start, end = end, end + size
            header[name if name is None or isinstance(name, str | int) else "a"] = {
                "dtype": entry.get("dtype"),
                "shape": shape,
                "data_offsets": [start, end],
            }
        if tensors is not None:
            header = {"__metadata__": header["__metadata__"], **tensors}
        is_sorted = tensors is None and all(isinstance(name, str) for name in header)
        return file_of(json.dumps(header, separators=(",", ":"), sort_keys=is_sorted).encode(), payload)

    return make


@pytest.fixture(scope="session")
def raw_file() -> Callable[..., NDArray[np.uint8]]:
    """Makes a file of the given header bytes."""
    return file_of
