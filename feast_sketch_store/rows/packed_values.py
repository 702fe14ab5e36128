"""Distinct values in few bits, as arrays of a snapshot that describe themselves.

    numbers   shape (length, width, base); packed: the numbers, minus the base
    strings   shape (length, width); packed: their lengths; data: the bytes of all strings
    sorted    shape (length, width of indices, of prefixes, of suffixes); packed: the index of each string in
              sorted order; and in that order prefixes: bytes in common with the string before;
              suffixes: the number of other bytes; data: these other bytes

Strings are kept in the smaller form. Sorting pays where many begin alike, as article numbers do.

Equally frequent values ascend, so numbers and indices are mostly runs that ascend. Where that is smaller, the
shape ends with one number more, the modulus: numbers, minus the base, are below it. Each is written as many
moduli larger as make all ascend, in Elias-Fano form (`elias_fano`) without samples:

    numbers, modulus 10   7 | 2 5 9 | 0 3 8
    ascending             7  12 15 19  20 23 28        highs: their upper bits; packed: their lower bits

Source: Witten, Moffat & Bell, "Managing Gigabytes", 1999, section 4.1 (front coding).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from feast_sketch_store.kernel.binary import from_parts, parts_of
from feast_sketch_store.rows.csr import bounds_of
from feast_sketch_store.succinct import EliasFano, PackedInts
from feast_sketch_store.succinct.elias_fano import decoded

_MAX_SORTED_BYTES = 255  # of a string in sorted form, because strings are decoded column by column
_NUM_WIDTHS = {"numbers": 3, "strings": 2, "sorted": 4}
_ARRAY_BYTES = 64  # about, of an array in the header of a snapshot
_MAX_ASCENDING = 1 << 62

PackedArrays = dict[str, NDArray[np.generic]]


PARTS = ("shape", "packed", "highs", "prefixes", "suffixes", "data")  # the arrays of packed values


def packed_arrays(values: pa.Array, may_sort: bool = True) -> PackedArrays:
    """Arrays for a snapshot, from int64 or large binary values; ``may_sort`` allows front coding."""
    if pa.types.is_int64(values.type):
        # At least one bit each, so that a file cannot claim more numbers than it has bits.
        numbers = values.to_numpy()
        base = int(numbers.min()) if len(numbers) else 0
        return _packed_numbers(numbers, base)
    offsets, data = parts_of(values)
    lengths = np.diff(offsets)
    packed = PackedInts.pack(lengths, min_width=1, base=0)
    plain: PackedArrays = {"shape": _shape(len(values), packed.width), "packed": packed.words, "data": data}
    if not may_sort or len(values) < 2 or lengths.max() > _MAX_SORTED_BYTES:
        return plain
    front = _sorted_arrays(values)
    return min(plain, front, key=lambda form: sum(array.nbytes for array in form.values()))


def values_from(arrays: Mapping[str, NDArray[np.generic]], storage_type: pa.DataType) -> pa.Array:
    """The reverse of `packed_arrays`.

    Raises ValueError, KeyError, TypeError: the arrays do not fit each other or the type.
    """
    shape = _checked(arrays, "shape", np.int64)
    words = _checked(arrays, "packed", np.uint64)
    length, width, *rest = shape.tolist()
    form = "numbers" if pa.types.is_int64(storage_type) else "strings" if len(shape) == 2 else "sorted"
    if len(shape) != _NUM_WIDTHS[form] + ("highs" in arrays) or (width < 1 and "highs" not in arrays):
        raise ValueError("the vocabulary's values do not fit their shape")
    base = rest[0] if form == "numbers" else 0
    if "highs" in arrays:
        highs = _checked(arrays, "highs", np.uint64)
        if length > 64 * len(highs):  # before memory is taken for them
            raise ValueError(f"there are no highs of {length} values")
        lows = PackedInts(words, width, 0, length).take(np.arange(length))
        numbers = _turned_back(decoded(highs, lows, width), rest[-1], base)
    else:
        numbers = PackedInts(words, width, base, length).take(np.arange(length))
    if form == "numbers":
        return pa.array(numbers)
    data = _checked(arrays, "data", np.uint8)
    if form == "strings":
        return from_parts(_offsets(numbers, len(data)), data)
    indices = numbers
    prefixes, suffixes = (
        PackedInts(_checked(arrays, name, np.uint64), own, 0, length).take(np.arange(length))
        for name, own in zip(("prefixes", "suffixes"), rest[:2], strict=True)
    )
    if length and (indices.max() >= length or np.bincount(indices, minlength=length).max() > 1):
        raise ValueError("the indices of the vocabulary's strings are not a permutation")
    return _unsorted(prefixes, suffixes, data).take(pa.array(indices))


def _sorted_arrays(values: pa.Array) -> PackedArrays:
    order = pc.sort_indices(values).to_numpy().astype(np.int64)
    offsets, data = parts_of(values.take(pa.array(order)))
    lengths = np.diff(offsets)
    indices = np.empty(len(order), np.int64)
    indices[order] = np.arange(len(order))
    prefixes = np.zeros(len(order), np.int64)
    alike = np.arange(1, len(order))  # strings that equal the one before them up to here
    for column in range(int(lengths.max())):
        alike = alike[(lengths[alike] > column) & (lengths[alike - 1] > column)]
        alike = alike[data[offsets[alike] + column] == data[offsets[alike - 1] + column]]
        if not len(alike):
            break
        prefixes[alike] += 1
    suffixes = lengths - prefixes
    kept = np.arange(len(data)) - np.repeat(offsets[:-1], lengths) >= np.repeat(prefixes, lengths)
    packed = [PackedInts.pack(numbers, base=0) for numbers in (prefixes, suffixes)]
    numbered = _packed_numbers(indices, None, *(p.width for p in packed))
    return {**numbered, "prefixes": packed[0].words, "suffixes": packed[1].words, "data": data[kept]}


def _packed_numbers(numbers: NDArray[np.int64], base: int | None, *widths: int) -> PackedArrays:
    """Numbers in the smaller form. The shape has the base after their width, unless it is None, for 0."""
    packed = PackedInts.pack(numbers, min_width=1, base=base or 0)
    rest = widths if base is None else (base, *widths)
    plain: PackedArrays = {"shape": _shape(len(numbers), packed.width, *rest), "packed": packed.words}
    if not len(numbers):
        return plain
    modulus = int(numbers.max()) - (base or 0) + 1
    turns = np.cumsum(np.append(False, numbers[1:] < numbers[:-1]))
    if (int(turns[-1]) + 1) * modulus > _MAX_ASCENDING:
        return plain
    ascending = (numbers - (base or 0) + turns * modulus).view(np.uint64)
    coded = EliasFano.build(ascending, int(ascending[-1]) + 1)
    if coded.lows.size_bytes + coded.highs.nbytes + _ARRAY_BYTES >= packed.size_bytes:
        return plain
    shape = _shape(len(numbers), coded.lows.width, *rest, modulus)
    return {"shape": shape, "packed": coded.lows.words, "highs": coded.highs}


def _turned_back(ascending: NDArray[np.int64], modulus: int, base: int) -> NDArray[np.int64]:
    """The numbers that `_packed_numbers` made ascend."""
    if modulus < 1 or not -(2**63) <= base <= base + modulus <= 2**63:
        raise ValueError(f"a vocabulary has no numbers from {base} to below {base} + {modulus}")
    return ascending % modulus + base


def _unsorted(prefixes: NDArray[np.int64], suffixes: NDArray[np.int64], data: NDArray[np.uint8]) -> pa.Array:
    """Decode strings that share prefixes with the one before, from lengths of prefixes and suffixes."""
    lengths, starts = prefixes + suffixes, _offsets(suffixes, len(data))[:-1]
    before = np.concatenate((np.zeros(1, np.int64), lengths))[: len(lengths)]
    if (prefixes < 0).any() or (prefixes > before).any() or lengths.max(initial=0) > _MAX_SORTED_BYTES:
        raise ValueError("a string of the vocabulary has a longer prefix than the string before it")
    offsets = bounds_of(lengths)
    content = np.zeros(offsets[-1], np.uint8)
    for column in range(int(lengths.max(initial=0))):
        strings = np.flatnonzero(lengths > column)
        # Strings that share this byte copy it from the last string that stores it.
        is_own = prefixes[strings] <= column
        owners = strings[np.maximum.accumulate(np.where(is_own, np.arange(len(strings)), 0))]
        content[offsets[strings] + column] = data[starts[owners] + column - prefixes[owners]]
    return from_parts(offsets, content)


def _offsets(lengths: NDArray[np.int64], num_bytes: int) -> NDArray[np.int64]:
    offsets = bounds_of(lengths)
    # Sums of 64-bit lengths may wrap around.
    if (lengths < 0).any() or (np.diff(offsets) < 0).any() or offsets[-1] != num_bytes:
        raise ValueError("the lengths of the vocabulary's strings do not add up to its bytes")
    return offsets


def _shape(*numbers: int) -> NDArray[np.int64]:
    return np.array(numbers, np.int64)


def _checked(arrays: Mapping[str, NDArray[np.generic]], name: str, kind: type[np.generic]) -> NDArray[Any]:
    array = arrays[name]
    if array.dtype != kind or array.ndim != 1:
        raise TypeError(f"array {name!r} of a vocabulary has type {array.dtype} and shape {array.shape}")
    return array
