"""Sealed layers in snapshot files: written with checksums of blocks, opened without reading them all."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.errors import DamagedFileError
from feast_sketch_store.layers import DeltaLayer, SketchLayer, is_checked_where_read
from feast_sketch_store.rows.encoding import RowKeys
from feast_sketch_store.snapshot.files import SnapshotFile, SnapshotFolder, created_by
from feast_sketch_store.snapshot.format import Arrays
from feast_sketch_store.snapshot.manifest import LayerFiles
from feast_sketch_store.snapshot.order import load_order, order_arrays
from feast_sketch_store.storage.system import reads_are_scattered, will_need
from feast_sketch_store.succinct.blocks import CHECKSUMS, BlockChecks, block_checksums

_LARGE = 1 << 20  # bytes; in a smaller array the system may read around the requested blocks
_LISTED, _DELETED = "listed.entity_hashes", "listed.deleted"  # arrays of a delta besides those of its layer


def write_layer(
    snapshots: SnapshotFolder,
    layer: SketchLayer,
    keys: RowKeys,
    view: str,
    version: int,
    table_version: int = 0,
    below: Sequence[LayerFiles] = (),
) -> SnapshotFile:
    """Write the layer of all rows up to a version of the row log as a snapshot, without publishing it.

    For a delta, ``keys`` include deleted entities, which are not in the layer. The name of the view goes into
    the description; the other parameters and errors are those of `SnapshotFolder.write`.
    """
    described, arrays = layer.to_snapshot()
    description = {**described, "created_by": created_by(), "view": view, "row_log_version": version}
    arrays = with_checksums(arrays)
    if below:
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


def open_layers(
    snapshot: SnapshotFile, check_all: bool = False, view: str | None = None
) -> tuple[SketchLayer, tuple[DeltaLayer, ...]]:
    """Map the base of a snapshot, and its deltas, oldest first.

    With ``check_all`` every byte is read and checked now, not each block before its first use.

    Raises DamagedFileError, StorageError: a file is truncated or altered, its parts do not fit each other,
    it is of another view than the given one, or it cannot be read.
    """
    base, _ = _open(snapshot, check_all, 0, view)
    deltas = []
    for number in range(1, len(snapshot.manifest().layers)):
        layer, arrays = _open(snapshot, check_all, number, view)
        try:
            hashes, deleted = arrays[_LISTED], arrays[_DELETED]
            kinds = hashes.dtype == np.uint64 and deleted.dtype == np.uint8
            if not kinds or deleted.ndim != 1 or hashes.shape != (len(deleted), 2):
                raise ValueError("the list of entities has a wrong shape or type")  # noqa: TRY301
            deltas.append(DeltaLayer(layer, hashes, deleted != 0))  # type: ignore[arg-type]
        except (ValueError, KeyError, TypeError) as error:
            source = snapshot.where_file("base", number)
            raise DamagedFileError(
                f"{source}: the parts of a delta do not fit each other: {error}"
            ) from error
    return base, tuple(deltas)


def check_whole(snapshot: SnapshotFile) -> None:
    """Read every byte of a snapshot; raises as `open_layers`."""
    _, deltas = open_layers(snapshot, check_all=True)
    for number in range(1 + len(deltas)):
        load_order(snapshot, number, check_all=True)


def _open(
    snapshot: SnapshotFile, check_all: bool, number: int, view: str | None
) -> tuple[SketchLayer, Arrays]:
    """Map the layer of the base or of a delta, with all arrays of its file."""
    source = snapshot.where_file("base", number)
    description, arrays = snapshot.open(
        "base", lambda name: not check_all and is_checked_where_read(name), number
    )
    try:
        checks = {
            name: BlockChecks(array, arrays[name + CHECKSUMS], f"{source}: {name!r}", will_need)  # type: ignore[arg-type]
            for name, array in arrays.items()
            if is_checked_where_read(name)
        }
        for check in checks.values():
            if check.words.nbytes >= _LARGE and not check_all:
                reads_are_scattered(check.words)
        layer = SketchLayer.from_snapshot(description, arrays, checks)
        if view is not None and description["view"] != view:
            raise DamagedFileError(f"{source}: is of another view, {description['view']!r}; remove it")
        if description["row_log_version"] != snapshot.manifest().layers[number].row_log_version:
            raise DamagedFileError(f"{source}: has the version of another snapshot")
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise DamagedFileError(f"{source}: its parts do not fit each other: {error}") from error
    if check_all:
        for check in checks.values():
            check.check_blocks(np.arange(len(check.unchecked)))
    return layer, arrays
