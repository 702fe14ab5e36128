"""How a feature of counts is declared: how exact its counts are, and in which feature they come.

Counts are rounded to few different ones, so that they take few bits. The law is that of each count by itself:

    | read - written |  <=  absolute + relative * written

and a count of 1 or more is never read as none.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MAX_COUNT = 2**53  # as a double tells it apart from its neighbours
MAX_RELATIVE_ERROR = 0.5


@dataclass(frozen=True)
class Counting:
    """How counts are kept.

    Parameters
    ----------
    absolute, relative : how far a count may be from the one that was written; 0 and 0 for not at all.
    feature : that the counts are written and read in; empty if values are counted by how often they stand in
        a row.

    Raises
    ------
    ValueError : there is no such error.
    """

    absolute: int = 0
    relative: float = 0.0
    feature: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.absolute < MAX_COUNT or not 0 <= self.relative <= MAX_RELATIVE_ERROR:
            raise ValueError(
                f"counts cannot be wrong by {self.absolute} and a share of {self.relative}; an absolute "
                f"error is 0 or more, and a relative one at most {MAX_RELATIVE_ERROR}"
            )

    @property
    def is_exact(self) -> bool:
        """Whether counts are read as they were written."""
        return not self.absolute and not self.relative

    def bounds(self, counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The least and the largest number that each count from 1 on may be read as: int64[n] each."""
        # Doubles tell these apart, and a share of them is rounded towards the count.
        spread = self.absolute + np.floor(self.relative * counts).astype(np.int64)
        return np.maximum(counts - spread, 1), counts + spread


@dataclass(frozen=True)
class Rounded:
    """Different counts, and what they are read as.

    Parameters
    ----------
    written : int64[n], ascending.
    places : int64[n], the place of each among ``read``.
    read : int64[m], ascending.
    """

    written: NDArray[np.int64]
    places: NDArray[np.int64]
    read: NDArray[np.int64]

    @classmethod
    def of(cls, written: NDArray[np.int64], times: NDArray[np.int64], counting: Counting) -> "Rounded":
        """Few different counts that keep to the error.

        Each stands for a run of counts as long as may be, and is the mean of all counts of it, rounded.
        So errors have both signs, and sums of many counts are nearer to the truth than each count.

        Parameters
        ----------
        written : int64[n], ascending, from 1 on.
        times : int64[n], how often each occurs.
        """
        if counting.is_exact or not len(written):
            return cls(written, np.arange(len(written)), written)
        least, most = (bounds.tolist() for bounds in counting.bounds(written))
        starts: list[int] = []
        read: list[int] = []
        total = number = 0  # of the run
        for place, (count, own) in enumerate(zip(written.tolist(), times.tolist(), strict=True)):
            total, number = total + count * own, number + own
            mean = (2 * total + number) // (2 * number)
            # Both bounds ascend, so the first and the last count of the run decide for all.
            if starts and least[place] <= mean <= most[starts[-1]]:
                read[-1] = mean
            else:
                starts.append(place)
                read.append(count)
                total, number = count * own, own
        lengths = np.diff(starts, append=len(written))
        return cls(written, np.repeat(np.arange(len(starts)), lengths), np.array(read, np.int64))

    @property
    def firsts(self) -> NDArray[np.int64]:
        """The smallest of the counts that are read as each: int64[m]."""
        return self.written[np.searchsorted(self.places, np.arange(len(self.read)))]

    def mean_error(self, times: NDArray[np.int64]) -> float:
        """How far counts are from those that were written, on average over all: int64[n] of each."""
        errors = np.abs(self.read[self.places] - self.written)
        return float(errors @ times) / max(1, int(times.sum()))

    @property
    def max_error(self) -> int:
        """How far a count is from the one that was written, at most."""
        return int(np.abs(self.read[self.places] - self.written).max(initial=0))
