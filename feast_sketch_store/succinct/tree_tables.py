"""The tables of probabilities of count trees, computed in integers, so that every reader gets the same.

The number ``k`` of a node's ``n`` ids in its left half follows a beta-binomial law. Each weight follows from
the one before:

    w(0) = 1        w(k + 1) = w(k) * (n - k) * (k + a) / ((k + 1) * (n - k - 1 + b))

with ``a = u * c`` and ``b = (1 - u) * c``, where ``u`` is the share of the left half in the mass, and ``c``
the concentration. Weights span hundreds of orders of magnitude, so each is kept as 31 bits and an exponent.
"""

import zlib
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from feast_sketch_store.kernel.reference_trees import BINS, MOST_TOLD, TABLE_BITS

# Twice the concentrations, so that all are integers. With the last one, ids are practically independent.
TWICE_CONCENTRATIONS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 20_000)
NUM_CONCENTRATIONS = len(TWICE_CONCENTRATIONS)
NUM_SHARES = 33  # of the left half

# Shares in 2**16, by half units of their logits from -8 to 0; those above 0 are mirrored.
# ``2**16 / (1 + exp((16 - s) / 2))``, rounded.
LEFT_SHARES = (
    22, 36, 60, 98, 162, 267, 439, 720, 1179, 1921, 3108, 4971, 7812, 11955, 17625, 24743, 32768,
)  # fmt: skip

# Bounds between shares, as ratios of the two masses in 2**20: halfway between the logits.
# ``2**20 * exp((t - 16.5) / 2)`` for t from 1 to 32, rounded.
BOUNDS = (
    452, 745, 1228, 2024, 3337, 5502, 9072, 14957, 24660, 40658, 67033, 110519, 182215, 300422, 495312,
    816632, 1346398, 2219835, 3659890, 6034138, 9948612, 16402488, 27043131, 44586586, 73510853,
    121198907, 199823216, 329452786, 543175816, 895545521, 1476504949, 2434345116,
)  # fmt: skip

# Shares of members for contexts, in 2**15: by fifths of the logit from -8 on.
# ``2**15 / (1 + exp((40 - x) / 5))``, rounded, from 1 to ``2**15 - 1``.
CONTEXT_SHARES = (
    11, 13, 16, 20, 24, 30, 36, 45, 54, 66, 81, 99, 121, 147, 180, 219, 267, 326, 397, 484, 589, 717, 872,
    1058, 1283, 1554, 1878, 2266, 2725, 3269, 3906, 4648, 5504, 6482, 7585, 8813, 10159, 11611, 13150,
    14751, 16384, 18017, 19618, 21157, 22609, 23955, 25183, 26286, 27264, 28120, 28862, 29499, 30043,
    30502, 30890, 31214, 31485, 31710, 31896, 32051, 32179, 32284, 32371, 32442,
)  # fmt: skip

_LARGE_SIZES = (23, 45, 90, 180, 360, 1000)  # the sizes of the tables for larger counts
_WHOLE = 1 << TABLE_BITS
_UNIT = 1 << 17  # of a and b
_BITS = 31  # of a weight


class Tables(NamedTuple):
    """Cumulated probabilities; see `TreeCodes`."""

    small: NDArray[np.uint16]
    large: NDArray[np.uint16]


@cache
def tables() -> Tables:
    """Cumulated probabilities of the counts in the left half, for all shares and concentrations."""
    # Only for half of the shares: a table of the other half is a mirrored one.
    shares, twice = np.array(LEFT_SHARES, np.int64), np.array(TWICE_CONCENTRATIONS, np.int64)[:, None]
    left, right = twice * shares, twice * (_UNIT // 2 - shares)
    num_nodes = NUM_CONCENTRATIONS * NUM_SHARES
    small = np.zeros((num_nodes, MOST_TOLD + 1, MOST_TOLD + 2), np.uint16)
    for number in range(1, MOST_TOLD + 1):
        small[:, number, : number + 2] = _cumulated(_mirrored(_weights(left, right, number)))
    large = np.zeros((num_nodes, len(BINS), max(BINS) + 2), np.uint16)
    for kind, (bins, number) in enumerate(zip(BINS, _LARGE_SIZES, strict=True)):
        weights = _mirrored(_weights(left, right, number))
        firsts = -(-np.arange(bins) * (number + 1) // bins)
        large[:, kind, : bins + 1] = _cumulated(np.add.reduceat(weights, firsts, axis=1))
    return Tables(small, large)


def tables_checksum() -> int:
    """CRC-32 of all tables, as uint16, small ones first, for implementations in other languages."""
    return zlib.crc32(b"".join(table.astype("<u2").tobytes() for table in tables()))


def _weights(left: NDArray[np.int64], right: NDArray[np.int64], number: int) -> NDArray[np.int64]:
    """Weights proportional to the probabilities of 0 to ``number``, the largest below 2**31.

    int64[concentrations, shares, number + 1].
    """
    ratios, ratio_exponents = _ratios(left[..., None], right[..., None], number)
    weights = np.empty((*left.shape, number + 1), np.int64)
    exponents = np.zeros(weights.shape, np.int64)
    weights[..., 0] = 1 << (_BITS - 1)
    for count in range(number):
        product = weights[..., count] * ratios[..., count]
        is_long = product >> (2 * _BITS - 1)
        weights[..., count + 1] = product >> (_BITS - 1 + is_long)
        exponents[..., count + 1] = exponents[..., count] + ratio_exponents[..., count] + is_long
    shifts = exponents.max(axis=-1, keepdims=True) - exponents
    return np.asarray(weights >> np.minimum(shifts, _BITS))


def _ratios(
    left: NDArray[np.int64], right: NDArray[np.int64], number: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The ratio of each weight to the one before it: ``r * 2**(e - 30)``, r of 31 bits."""
    counts = np.arange(number)
    above = (number - counts) * (counts * _UNIT + left)
    below = (counts + 1) * ((number - counts - 1) * _UNIT + right)
    raised = 2 * _BITS - _num_bits(above)
    ratios = (above << raised) // below
    longer = _num_bits(ratios) - _BITS
    ratios = np.where(longer < 0, ratios << np.maximum(-longer, 0), ratios >> np.maximum(longer, 0))
    return ratios, longer - raised + _BITS - 1


def _num_bits(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """The bit lengths of numbers below 2**53."""
    return np.frexp(numbers.astype(np.float64))[1].astype(np.int64)


def _mirrored(weights: NDArray[np.int64]) -> NDArray[np.int64]:
    """The weights of all nodes: a row for each concentration and share."""
    others = weights[:, :-1][:, ::-1, ::-1]
    both = np.concatenate((weights, others), axis=1)
    return both.reshape(-1, weights.shape[-1])


def _cumulated(weights: NDArray[np.int64]) -> NDArray[np.uint16]:
    """Cumulated shares of 2**15, from 0 on; no share is 0."""
    num_parts = weights.shape[1]
    shares = 1 + weights * (_WHOLE - num_parts) // weights.sum(axis=1, keepdims=True)
    largest = np.argmax(shares, axis=1)
    shares[np.arange(len(shares)), largest] += _WHOLE - shares.sum(axis=1)
    cumulated = np.zeros((len(weights), num_parts + 1), np.int64)
    np.cumsum(shares, axis=1, out=cumulated[:, 1:])
    return cumulated.astype(np.uint16)
