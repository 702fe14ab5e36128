"""How up to date a view's answers are, for probes and metrics.

EMPTY -> FETCHING -> CATCHING_UP -> SERVING <-> REFRESHING
                                    SERVING <-> STALE
"""

from dataclasses import dataclass

EMPTY = "EMPTY"  # nothing was read yet
FETCHING = "FETCHING"  # the sealed rows are being opened for the first time
CATCHING_UP = "CATCHING_UP"  # the rows written since are being read for the first time
SERVING = "SERVING"
REFRESHING = "REFRESHING"  # a look at the storage is under way; reads go on
STALE = "STALE"  # the last look failed; reads go on


@dataclass(frozen=True)
class Freshness:
    """How up to date a view's answers are.

    Parameters
    ----------
    state : one of EMPTY, FETCHING, CATCHING_UP, SERVING, REFRESHING and STALE.
    age_seconds : since the last successful look at the storage; the answers have everything written before
        it. None if there was no such look.
    max_staleness_seconds : the greatest age at which the view counts as ready; None for any age.
    problem : why the last look failed; empty if it did not.
    num_commits : of the row log that the answers hold.
    """

    state: str
    age_seconds: float | None
    max_staleness_seconds: float | None = None
    problem: str = ""
    num_commits: int = 0

    @property
    def has_answers(self) -> bool:
        """Whether reads are answered without waiting for the storage."""
        return self.state in (SERVING, REFRESHING, STALE)

    @property
    def is_ready(self) -> bool:
        """Whether reads should be sent here: there are answers, and they are fresh enough."""
        if not self.has_answers or self.max_staleness_seconds is None:
            return self.has_answers
        return self.age_seconds is not None and self.age_seconds <= self.max_staleness_seconds
