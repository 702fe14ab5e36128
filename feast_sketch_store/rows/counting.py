"""The declaration of a feature of counts: how exact the counts are, and which feature carries them.

Counts are rounded to few distinct numbers, so that they take few bits. For each count,

    | read - written |  <=  absolute + relative * written

and a count of 1 or more is never read as 0.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MAX_COUNT = 2**53  # doubles hold all integers up to here
MAX_RELATIVE_ERROR = 0.5


@dataclass(frozen=True)
class Counting:
    """How counts are kept.

    Raises ValueError: an error is out of range.
    """

    # absolute, relative: the largest error of a count, see the module; 0 and 0 for exact counts
    absolute: int = 0
    relative: float = 0.0
    # the feature in which counts are written and read; empty if the repetitions of a value in a row are its
    # count
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
        """The least and the greatest number as which each count of 1 or more may be read: int64[n] each."""
        # Doubles hold counts exactly; a share of them is rounded towards the count.
        spread = self.absolute + np.floor(self.relative * counts).astype(np.int64)
        return np.maximum(counts - spread, 1), counts + spread


@dataclass(frozen=True)
class Rounded:
    """Distinct counts, and the numbers as which they are read."""

    written: NDArray[np.int64]  # int64[n], ascending
    indices: NDArray[np.int64]  # int64[n], the index of each one's number in ``read``
    read: NDArray[np.int64]  # int64[m], ascending

    @classmethod
    def of(cls, written: NDArray[np.int64], times: NDArray[np.int64], counting: Counting) -> "Rounded":
        """As few distinct numbers as the error allows.

        Each number represents the longest possible run of counts, and is their rounded mean. So errors have
        both signs, and sums of many counts are more exact than single counts.

        Parameters
        ----------
        written : int64[n], ascending, all at least 1.
        times : int64[n], how often each occurs.
        counting : the allowed error.
        """
        if counting.is_exact or not len(written):
            return cls(written, np.arange(len(written)), written)
        least, most = (bounds.tolist() for bounds in counting.bounds(written))
        starts: list[int] = []
        read: list[int] = []
        total = number = 0  # of the run
        for index, (count, own) in enumerate(zip(written.tolist(), times.tolist(), strict=True)):
            total, number = total + count * own, number + own
            mean = (2 * total + number) // (2 * number)
            # Both bounds ascend, so it is enough to check the first and the last count of the run.
            if starts and least[index] <= mean <= most[starts[-1]]:
                read[-1] = mean
            else:
                starts.append(index)
                read.append(count)
                total, number = count * own, own
        lengths = np.diff(starts, append=len(written))
        return cls(written, np.repeat(np.arange(len(starts)), lengths), np.array(read, np.int64))

    @property
    def firsts(self) -> NDArray[np.int64]:
        """The smallest count that is read as each number: int64[m]."""
        return self.written[np.searchsorted(self.indices, np.arange(len(self.read)))]

    def mean_error(self, times: NDArray[np.int64]) -> float:
        """The mean distance between counts and what was written, given how often each occurs: int64[n]."""
        errors = np.abs(self.read[self.indices] - self.written)
        return float(errors @ times) / max(1, int(times.sum()))

    @property
    def max_error(self) -> int:
        """The largest distance between a count and what was written."""
        return int(np.abs(self.read[self.indices] - self.written).max(initial=0))
