"""The declaration of a list feature: what its codec knows besides its type."""

from dataclasses import dataclass

DEFAULT_RESOLUTION_MICROSECONDS = 1_000_000


@dataclass(frozen=True)
class Listing:
    """How the items of a list are kept.

    Parameters
    ----------
    resolution_microseconds : length of a tick. A list has a value at most once in a tick, and sealed rows
        keep the tick of an item, not its time.
    limit : how many items a list keeps, the newest ones; None for all.

    Raises
    ------
    ValueError : the resolution or the limit is below 1.
    """

    resolution_microseconds: int = DEFAULT_RESOLUTION_MICROSECONDS
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.resolution_microseconds < 1 or (self.limit is not None and self.limit < 1):
            raise ValueError(f"{self} is not possible: a resolution and a limit must be at least 1")
