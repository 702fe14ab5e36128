"""Binning: numbers without a bounded vocabulary, kept as the representatives of a few bins.

    quantiles   bins of about equally many rows, learned from the values; a read returns their median
    precision   the nearest multiple of a step; the end of the feature's range, if that multiple is beyond it

NaN and each infinity are never mixed with other numbers: each has its own bin.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64 | np.float64]
Ends = tuple[float, float]  # the least and the greatest number that a read may return for another

MAX_BINS: Final = 1 << 16
_MOST: Final = np.finfo(np.float64).max


@dataclass(frozen=True)
class Bins:
    """Intervals of numbers, and the number that a read returns for each.

    Bin ``i`` begins at ``lows[i]`` and ends before ``lows[i + 1]``; NaN is last. A read returns
    ``representatives[i]`` for its numbers.
    """

    lows: Numbers  # int64[b] or float64[b], ascending
    representatives: Numbers  # of the same type and shape

    def find(self, numbers: Numbers) -> NDArray[np.int64]:
        """The bin of each number: int64[n]. Numbers below the first bin count as its own."""
        return np.searchsorted(self.lows, numbers, side="right").clip(1) - 1

    def errors(self, numbers: Numbers) -> NDArray[np.float64]:
        """The distance of each number from its representative: float64[n], finite; 0 for NaN and the
        infinities.
        """
        finite = np.isfinite(numbers)
        written, kept = (
            each[finite].astype(np.float64) for each in (numbers, self.representatives[self.find(numbers)])
        )
        errors = np.zeros(len(numbers))
        with np.errstate(over="ignore"):
            errors[finite] = np.abs(written - kept).clip(max=_MOST)
        return errors


@dataclass(frozen=True)
class Rounding:
    """How the numbers of a binned feature were rounded.

    The errors are distances between the numbers at the seal and ``bins.representatives``, without NaN and
    infinities.
    """

    bins: Bins
    max_error: float
    mean_error: float


@dataclass(frozen=True)
class Quantiles:
    """Bins with about ``1 / count`` of the rows each; a value with more rows has a bin of its own."""

    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.count <= MAX_BINS:
            raise ValueError(f"the number of bins must be between 1 and {MAX_BINS}")

    def fit(self, distinct: Numbers, counts: NDArray[np.int64], ends: Ends) -> Bins:
        """The bins for finite, distinct, ascending numbers, given how often each occurs: int64[n]."""
        if len(distinct) <= self.count:
            return Bins(distinct, distinct)
        stops = np.cumsum(counts)
        # Go by the middle of a number's rows, so a number with more rows than two bins shares with no other.
        middles = stops - (counts + 1) // 2
        starts = np.flatnonzero(np.diff(middles * self.count // stops[-1], prepend=-1))
        before = (stops - counts)[starts]
        medians = np.searchsorted(stops, (before + np.append(before[1:], stops[-1]) - 1) // 2, side="right")
        return Bins(distinct[starts], distinct[medians])


@dataclass(frozen=True)
class Precision:
    """The nearest multiple of ``step``, a whole number for integers; the upper one of two equally near."""

    step: float

    def __post_init__(self) -> None:
        if not (np.isfinite(self.step) and self.step > 0):
            raise ValueError("a precision must be a positive number")

    def fit(self, distinct: Numbers, counts: NDArray[np.int64], ends: Ends) -> Bins:
        """The bins for finite, distinct, ascending numbers; ``counts`` are not used."""
        least, greatest = ends
        if distinct.dtype == np.int64:
            step = min(int(self.step), 2**62)
            above = distinct % step
            below = step - above
            up = np.where(distinct > greatest - below, greatest, distinct + below)
            nearest = np.where(above >= step - step // 2, up, np.maximum(distinct, least + above) - above)
            return _grouped(distinct, np.where((distinct < least) | (distinct > greatest), distinct, nearest))
        # 3 / 10 is the intended decimal; 3 * 0.1 is the floating-point number next to it.
        parts = round(1 / self.step) if 1e-12 < self.step < 1 else 0
        with np.errstate(over="ignore", invalid="ignore"):
            if parts and abs(parts * self.step - 1) < 1e-12:
                multiples = np.floor(distinct * parts + 0.5)
                nearest = multiples / parts
            else:
                multiples = np.floor(distinct / self.step + 0.5)
                nearest = multiples * self.step
        # Larger numbers are coarser than the step.
        return _grouped(distinct, np.where(np.abs(multiples) < 2.0**52, nearest.clip(*ends), distinct))


Binning = Quantiles | Precision


def fit(binning: Binning, numbers: Numbers, counts: NDArray[np.int64], ends: Ends) -> Bins:
    """Fit bins to numbers, int64[n] or float64[n] of any kind, that occur ``counts`` times, int64[n]."""
    distinct, indices = np.unique(numbers, return_inverse=True)
    totals = np.bincount(indices, counts, len(distinct)).astype(np.int64)
    finite = np.isfinite(distinct)
    none = distinct[:0]
    bins = binning.fit(distinct[finite], totals[finite], ends) if finite.any() else Bins(none, none)
    below, above = distinct[~finite & (distinct < 0)], distinct[~finite & ~(distinct < 0)]
    return Bins(
        np.concatenate((below, bins.lows, above)), np.concatenate((below, bins.representatives, above))
    )


def _grouped(distinct: Numbers, representatives: Numbers) -> Bins:
    """The bins of ascending numbers; numbers with the same representative share a bin."""
    starts = np.flatnonzero(np.concatenate(([True], representatives[1:] != representatives[:-1])))
    return Bins(distinct[starts], representatives[starts])
