"""The declaration of a list feature: what its codec knows besides its type."""

from dataclasses import dataclass

DEFAULT_RESOLUTION_MICROSECONDS = 1_000_000
ALWAYS = (1 << 63) - 1  # microseconds: the tick of a set, which has a value at most once
LEAST_RESERVE = 16  # items behind the limit that a seal keeps, for removals of newer ones


@dataclass(frozen=True)
class Listing:
    """How the items of a list are kept.

    Parameters
    ----------
    resolution_microseconds : length of a tick. A list has a value at most once in a tick, and sealed rows
        keep the tick of an item, not its time.
    limit : how many items a read shows, the newest ones; None for all.

    Raises
    ------
    ValueError : the resolution or the limit is below 1.
    """

    resolution_microseconds: int = DEFAULT_RESOLUTION_MICROSECONDS
    limit: int | None = None

    @property
    def most_sealed(self) -> int | None:
        """How many items of a list a seal keeps: the limit, and as many again in reserve; None for all."""
        return None if self.limit is None else self.limit + max(self.limit, LEAST_RESERVE)

    def __post_init__(self) -> None:
        if self.resolution_microseconds < 1 or (self.limit is not None and self.limit < 1):
            raise ValueError(f"{self} is not possible: a resolution and a limit must be at least 1")
