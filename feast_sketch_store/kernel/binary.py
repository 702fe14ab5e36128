"""Arrow's large binary arrays as two NumPy arrays."""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Parts = tuple[NDArray[np.int64], NDArray[np.uint8]]


def parts_of(values: pa.Array) -> Parts:
    """Offsets, int64[n + 1] from 0 on, and data, uint8[...], of binary values or strings without nulls."""
    if not len(values):
        return np.zeros(1, np.int64), np.zeros(0, np.uint8)
    if values.offset:
        values = pa.concat_arrays([values])  # slices share the parent's buffers
    _, offsets, data = values.buffers()
    is_large = pa.types.is_large_binary(values.type) or pa.types.is_large_string(values.type)
    ends: Any = np.frombuffer(offsets, np.int64 if is_large else np.int32, len(values) + 1)
    ends = ends.astype(np.int64, copy=False)
    return ends, np.frombuffer(data, np.uint8, ends[-1]) if ends[-1] else np.zeros(0, np.uint8)


def from_parts(offsets: NDArray[np.int64], data: NDArray[np.uint8]) -> pa.Array:
    """The reverse of `parts_of`; nothing is copied."""
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)
