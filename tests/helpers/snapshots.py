"""Loads snapshot files by path, and makes snapshots with any content."""

import copy
import functools

import numpy as np

from feast_sketch_store.snapshot.files import SnapshotFile, SnapshotFolder
from feast_sketch_store.snapshot.format import decode, header_of, locate
from feast_sketch_store.snapshot.manifest import LayerFiles, Manifest, PartFile, checksum_of
from feast_sketch_store.storage.local import LocalStorage


def load(path, *skip):
    """The description and the arrays of a file, with or without a manifest."""
    content = LocalStorage(path.parent).map(path.name)
    return decode(content, str(path), *skip)


@functools.cache
def _loaded(path):
    return load(path)


def parts_of(path):
    """The description and the arrays of the layer in a file that tests only read, free to be changed."""
    description, arrays = _loaded(path)
    return copy.deepcopy(description), dict(arrays)


def ranges_of(content):
    """Where each array is in a file: a range of bytes by its name."""
    found = locate(bytes(content), len(content), "a snapshot")
    return {name: range(array.start, array.start + array.size_bytes) for name, array in found.items()}


def published(folder, version, base, order=b""):
    """A snapshot in a folder whose base and order files have the given bytes, with a manifest that fits."""
    name = f"{version:020d}-0001-00000000"
    parts = {}
    for part, content in (("base", base), ("order", order)):
        header = header_of(np.frombuffer(content, np.uint8))
        parts[part] = PartFile(f"{name}.{part}.sketch", len(content), checksum_of(header))
        (folder / parts[part].name).write_bytes(content)
    (folder / f"{name}.json").write_bytes(Manifest(1, "a test", (LayerFiles(version, parts),)).encode())
    (snapshot,) = SnapshotFolder(LocalStorage(folder)).list()
    assert isinstance(snapshot, SnapshotFile)
    return snapshot
