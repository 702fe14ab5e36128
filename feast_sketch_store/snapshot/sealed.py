"""Sealed layers in snapshot files: written with checksums of blocks, opened without reading them all."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.errors import DamagedFileError
from feast_sketch_store.layers import SealedLayer, Shards, SketchLayer, is_checked_where_read
from feast_sketch_store.rows.encoding import RowKeys
from feast_sketch_store.snapshot.blocks import CHECKSUMS, BlockChecks, block_checksums
from feast_sketch_store.snapshot.files import Draft, SnapshotFile, SnapshotFolder, created_by
from feast_sketch_store.snapshot.order import order_arrays


def write_layer(
    snapshots: SnapshotFolder,
    layer: SealedLayer,
    keys: RowKeys,
    view: str,
    version: int,
    table_version: int = 0,
) -> Draft:
    """Write the layer of all rows up to a version of the row log as a snapshot, yet unpublished.

    Parameters
    ----------
    table_version : see `SnapshotFolder.write`.

    Raises
    ------
    StorageError : the folder cannot be written; no file remains.
    """
    description = {
        "created_by": created_by(),
        "view": view,
        "row_log_version": version,
        "layer": layer.description,
    }
    return snapshots.write(
        version, description, with_checksums(layer.arrays), order_arrays(keys), table_version
    )


def with_checksums(arrays: Mapping[str, NDArray[np.generic]]) -> dict[str, NDArray[np.generic]]:
    """The arrays of a layer, with the checksums of those that are checked where they are read."""
    checksums = {
        name + CHECKSUMS: block_checksums(array)  # type: ignore[arg-type]
        for name, array in arrays.items()
        if is_checked_where_read(name)
    }
    return {**arrays, **checksums}


def open_shards(snapshot: SnapshotFile) -> Shards:
    """Map all sealed rows of a snapshot: one layer of all hashes. Raises as `open_layer`."""
    return Shards((open_layer(snapshot),))


def open_layer(snapshot: SnapshotFile, check_all: bool = False) -> SketchLayer:
    """Map the layer of a snapshot.

    Parameters
    ----------
    check_all : read and check every byte now, rather than blocks before their first use.

    Raises
    ------
    DamagedFileError : the file is truncated, altered, or does not fit together.
    StorageError : the file cannot be read.
    """
    source = snapshot.where()
    description, arrays = snapshot.open("base", lambda name: not check_all and is_checked_where_read(name))
    try:
        checks = {
            name: BlockChecks(array, arrays[name + CHECKSUMS], f"{source}: {name!r}")  # type: ignore[arg-type]
            for name, array in arrays.items()
            if is_checked_where_read(name)
        }
        layer = SketchLayer.from_snapshot(description["layer"], arrays, checks)
        if description["row_log_version"] != snapshot.version:
            raise DamagedFileError(f"{source}: has the version of another snapshot")
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise DamagedFileError(f"{source}: its parts do not fit each other: {error}") from error
    if check_all:
        for name, check in checks.items():
            check(np.arange(len(arrays[name])), 1)
    return layer
