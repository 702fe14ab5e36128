"""The order index of a snapshot. It decides whether a late row is newer than the sealed one."""

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.errors import DamagedFileError
from feast_sketch_store.rows.encoding import RowKeys
from feast_sketch_store.snapshot.files import SnapshotFile

_ARRAYS = ("entity_hashes", "event_timestamps", "created_timestamps")


def order_arrays(keys: RowKeys) -> dict[str, NDArray[np.generic]]:
    """The arrays of an order file."""
    return {name: getattr(keys, name) for name in _ARRAYS}


def load_order(snapshot: SnapshotFile, delta: int | None = None) -> RowKeys:
    """The keys of the sealed rows, mapped, and ordered by entity hash if the file is sound.

    Parameters
    ----------
    snapshot : the snapshot.
    delta : number of the delta, 0 for the oldest; None for the base. A delta's keys include deleted entities.

    Raises
    ------
    DamagedFileError : the file is truncated, altered, or of another kind.
    StorageError : the file cannot be read.
    """
    source = snapshot.where("order")
    _, arrays = snapshot.open("order", delta=delta)
    try:
        hashes, event, created = (arrays[name] for name in _ARRAYS)
    except KeyError as error:
        raise DamagedFileError(f"{source}: is not an order index: {error} is missing") from error
    length = len(hashes)
    wanted = (((length, 2), np.uint64), ((length,), np.int64), ((length,), np.int64))
    if any(
        (array.shape, array.dtype) != (shape, np.dtype(kind))
        for array, (shape, kind) in zip((hashes, event, created), wanted, strict=True)
    ):
        raise DamagedFileError(f"{source}: the parts of the order index do not fit each other")
    nothing = np.zeros(length, np.bool_)
    return RowKeys(hashes, event, created, nothing, nothing)  # type: ignore[arg-type]
