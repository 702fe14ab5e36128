"""Static functions in NumPy; `succinct.static_function` describes them.

A function is built row by row and slot by slot, in Python. It is read in NumPy.
"""

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.kernel.reference import mix64

_MASK = 2**64 - 1
_DO_NOT_FIT = "the arrays do not fit each other"
_ROWS_PER_CHUNK = 1 << 12


def band_rows(
    hashes: NDArray[np.uint64], values: NDArray[np.uint64], num_slots: int
) -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.bool_]]:
    """Bring the equations of n rows into triangular form.

    Parameters
    ----------
    hashes, values : uint64[n]
    num_slots : a multiple of 64.

    Returns
    -------
    The coefficients and the result of the equation that begins at each slot, uint64[num_slots] each, 0 if
    there is none; and the rows that are left over because they contradict those before: bool[n].
    """
    _check(num_slots, len(hashes) == len(values))
    coefficients, results = [0] * num_slots, [0] * num_slots
    left = np.zeros(len(hashes), np.bool_)
    starts, masks = equations(hashes, num_slots)
    for row, (slot, own, value) in enumerate(
        zip(starts.tolist(), masks.tolist(), values.tolist(), strict=True)
    ):
        while own and coefficients[slot]:
            own ^= coefficients[slot]
            value ^= results[slot]
            if own:
                zeros = (own & -own).bit_length() - 1
                own >>= zeros
                slot += zeros
        if own:
            coefficients[slot], results[slot] = own, value
        left[row] = not own and value != 0
    return np.array(coefficients, np.uint64), np.array(results, np.uint64), left


def solve_slots(
    coefficients: NDArray[np.uint64], results: NDArray[np.uint64], width: int
) -> NDArray[np.uint64]:
    """The numbers of ``width`` bits of all slots that satisfy the equations, in stretches of 64 slots.

    Returns
    -------
    uint64[num_slots / 64 + 1, width] : bit ``s % 64`` of ``[s // 64, j]`` is bit j of slot s; the last is 0.
    """
    _check(len(coefficients), len(results) == len(coefficients) and 1 <= width <= 64)
    words = np.zeros((len(coefficients) // 64 + 1, width), np.uint64)
    windows, one = np.zeros(width, np.uint64), np.uint64(1)
    bits_of = (results[:, None] >> np.arange(width, dtype=np.uint64)) & one
    for slot in range(len(coefficients) - 1, -1, -1):
        windows <<= one
        windows |= (bits_of[slot] ^ np.bitwise_count(windows & coefficients[slot])) & one
        if slot % 64 == 0:
            words[slot // 64] = windows
    return words


def look_up(
    words: NDArray[np.uint64], width: int, num_slots: int, hashes: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """The number of each hash, uint64[n]; any number for a hash without a row."""
    _check(num_slots, 1 <= width <= 64 and words.size == (num_slots // 64 + 1) * width)
    words, numbers = words.reshape(-1, width), np.empty(len(hashes), np.uint64)
    places = np.arange(width, dtype=np.uint64)
    for first in range(0, len(hashes), _ROWS_PER_CHUNK):
        starts, masks = equations(hashes[first : first + _ROWS_PER_CHUNK], num_slots)
        shifts = (starts & np.uint64(63))[:, None]
        segments = (starts >> np.uint64(6)).astype(np.int64)
        windows = words[segments] >> shifts
        windows |= words[segments + 1] << np.uint64(1) << (np.uint64(63) - shifts)
        bits = np.bitwise_count(windows & masks[:, None]).astype(np.uint64) & np.uint64(1)
        numbers[first : first + len(starts)] = np.bitwise_or.reduce(bits << places, axis=1)
    return numbers ^ masks_of(hashes, width)


def masks_of(hashes: NDArray[np.uint64], width: int) -> NDArray[np.uint64]:
    """The masks of hashes: ``width`` bits that are combined with their numbers."""
    return mix64(hashes + np.uint64(0x3C6EF372FE94F82A)) >> np.uint64(64 - width)


def equations(hashes: NDArray[np.uint64], num_slots: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """The first slot of each hash's equation, and its 64 coefficients."""
    upper, lower = hashes >> np.uint64(32), hashes & np.uint64(0xFFFFFFFF)
    free = np.uint64(num_slots - 63)
    starts = (upper * free + (lower * free >> np.uint64(32))) >> np.uint64(32)
    return starts, mix64(hashes + np.uint64(0x9E3779B97F4A7C15)) | np.uint64(1)


def _check(num_slots: int, fits: bool) -> None:
    if not fits or num_slots < 64 or num_slots % 64 or num_slots >= 1 << 32:
        raise ValueError(_DO_NOT_FIT)
