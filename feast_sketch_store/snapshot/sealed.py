"""Sealed layers in snapshot files: written with checksums of blocks, opened without reading them all."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.errors import DamagedFileError
from feast_sketch_store.layers import DeltaLayer, SealedLayer, SketchLayer, is_checked_where_read
from feast_sketch_store.rows.encoding import RowKeys
from feast_sketch_store.snapshot.files import Draft, SnapshotFile, SnapshotFolder, created_by
from feast_sketch_store.snapshot.format import Arrays
from feast_sketch_store.snapshot.manifest import Manifest
from feast_sketch_store.snapshot.order import order_arrays
from feast_sketch_store.storage.system import reads_are_scattered, will_need
from feast_sketch_store.succinct.blocks import CHECKSUMS, BlockChecks, block_checksums

_LARGE = 1 << 20  # bytes; in a smaller array the system may read around the requested blocks
_LISTED, _DELETED = "listed.entity_hashes", "listed.deleted"  # arrays of a delta besides those of its layer


def write_layer(
    snapshots: SnapshotFolder,
    layer: SealedLayer,
    keys: RowKeys,
    view: str,
    version: int,
    table_version: int = 0,
    below: Manifest | None = None,
) -> Draft:
    """Write the layer of all rows up to a version of the row log as a snapshot, without publishing it.

    Parameters
    ----------
    snapshots : of the view.
    layer : the sealed layer.
    keys : of the rows. For a delta they include deleted entities, which are not in the layer.
    view : its name, for the description.
    version, table_version, below : see `SnapshotFolder.write`.

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
    arrays = with_checksums(layer.arrays)
    if below is not None:
        arrays |= {_LISTED: keys.entity_hashes, _DELETED: keys.deleted.astype(np.uint8)}
    return snapshots.write(version, description, arrays, order_arrays(keys), table_version, below)


def with_checksums(arrays: Mapping[str, NDArray[np.generic]]) -> dict[str, NDArray[np.generic]]:
    """The arrays of a layer, with the checksums of those that are checked at first use."""
    checksums = {
        name + CHECKSUMS: block_checksums(array)
        for name, array in arrays.items()
        if is_checked_where_read(name)
    }
    return {**arrays, **checksums}


def open_deltas(snapshot: SnapshotFile, check_all: bool = False) -> tuple[DeltaLayer, ...]:
    """Map the deltas of a snapshot, oldest first. Errors are those of `open_layer`."""
    source, deltas = snapshot.where(), []
    for number in range(len(snapshot.manifest().deltas)):
        layer, arrays = _open(snapshot, check_all, number)
        try:
            hashes, deleted = arrays[_LISTED], arrays[_DELETED]
            kinds = hashes.dtype == np.uint64 and deleted.dtype == np.uint8
            if not kinds or deleted.ndim != 1 or hashes.shape != (len(deleted), 2):
                raise ValueError("the list of entities has a wrong shape or type")  # noqa: TRY301
            deltas.append(DeltaLayer(layer, hashes, deleted != 0))  # type: ignore[arg-type]
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedFileError(
                f"{source}: the parts of a delta do not fit each other: {error}"
            ) from error
    return tuple(deltas)


def open_layer(snapshot: SnapshotFile, check_all: bool = False) -> SketchLayer:
    """Map the layer of a snapshot's base.

    Parameters
    ----------
    check_all : read and check every byte now, not each block before its first use.

    Raises
    ------
    DamagedFileError : the file is truncated or altered, or its parts do not fit each other.
    StorageError : the file cannot be read.
    """
    return _open(snapshot, check_all)[0]


def _open(snapshot: SnapshotFile, check_all: bool, delta: int | None = None) -> tuple[SketchLayer, Arrays]:
    """Map the layer of the base or of a delta, with all arrays of its file."""
    source = snapshot.where()
    description, arrays = snapshot.open(
        "base", lambda name: not check_all and is_checked_where_read(name), delta
    )
    version = snapshot.manifest().layer_versions()[0 if delta is None else delta + 1]
    try:
        checks = {
            name: BlockChecks(array, arrays[name + CHECKSUMS], f"{source}: {name!r}", will_need)  # type: ignore[arg-type]
            for name, array in arrays.items()
            if is_checked_where_read(name)
        }
        for check in checks.values():
            if check.words.nbytes >= _LARGE and not check_all:
                reads_are_scattered(check.words)
        layer = SketchLayer.from_snapshot(description["layer"], arrays, checks)
        if description["row_log_version"] != version:
            raise DamagedFileError(f"{source}: has the version of another snapshot")
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise DamagedFileError(f"{source}: its parts do not fit each other: {error}") from error
    if check_all:
        for name, check in checks.items():
            check(np.arange(len(arrays[name])), 1)
    return layer, arrays
