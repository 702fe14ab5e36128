"""Files with headers of any content whose checksums are right."""

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mmh3
import numpy as np
import pytest
from numpy.typing import NDArray

from feast_sketch_store.snapshot.format import encode


def checksum(content: bytes) -> str:
    """The checksum of an array, computed without the package's help."""
    return mmh3.hash_bytes(content)[:8].hex()


def file_of(text: bytes, payload: bytes = b"", *, length: int | None = None) -> NDArray[np.uint8]:
    """A file whose header has this text, packed as the format requires, and then the payload."""
    return raw_file_of(zlib.compress(text, 9), payload, length=length)


def raw_file_of(packed: bytes, payload: bytes = b"", *, length: int | None = None) -> NDArray[np.uint8]:
    """A file whose header has these bytes behind their checksum, and then the payload."""
    packed += bytes(-(len(packed) + 24) % 64)
    length = len(packed) + 16 if length is None else length
    return np.frombuffer(length.to_bytes(8, "little") + mmh3.hash_bytes(packed) + packed + payload, np.uint8)


@pytest.fixture(scope="session")
def golden_base() -> bytes:
    """A snapshot of a sealed layer."""
    return (Path(__file__).parent / "golden" / "v1.base.sketch").read_bytes()


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

    ``entries`` become lists of ``name, dtype, shape, checksum`` with the checksum of ``payload``; ``own``
    changes the described object, ``drop`` leaves a part out, ``depth`` makes the description so many lists
    deep.
    """

    def make(
        *entries: dict[str, Any],
        payload: bytes = b"",
        own: dict[str, Any] | None = None,
        drop: str | None = None,
        depth: int = 0,
    ) -> NDArray[np.uint8]:
        usual = {"name": "a", "dtype": "U8", "shape": [0], "checksum": checksum(payload)}
        arrays = [[part for name, part in {**usual, **e}.items() if name != drop] for e in entries]
        content = {"format_version": 1, "description": {}, "arrays": arrays} | (own or {})
        content.pop(drop, None)
        text = json.dumps(content, separators=(",", ":"), sort_keys=True)
        if depth:
            text = text.replace('"description":{}', f'"description":{"[" * depth}{"]" * depth}')
        return file_of(text.encode(), payload)

    return make


@pytest.fixture(scope="session")
def raw_file() -> Callable[..., NDArray[np.uint8]]:
    """Makes a file whose header has the given text."""
    return file_of


@pytest.fixture(scope="session")
def packed_file() -> Callable[..., NDArray[np.uint8]]:
    """Makes a file whose header has the given packed bytes."""
    return raw_file_of
