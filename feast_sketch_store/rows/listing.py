"""How a list feature is declared: what its codec knows beside its type."""

from dataclasses import dataclass

DEFAULT_RESOLUTION_MICROSECONDS = 1_000_000


@dataclass(frozen=True)
class Listing:
    """How the items of a list are kept.

    Parameters
    ----------
    resolution_microseconds : of a tick. A list has a value once in a tick, and sealed rows know of an item's
        time the tick only.
    limit : how many items a list has at most, the newest ones; None for any number.

    Raises
    ------
    ValueError : the resolution or the limit is below 1.
    """

    resolution_microseconds: int = DEFAULT_RESOLUTION_MICROSECONDS
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.resolution_microseconds < 1 or (self.limit is not None and self.limit < 1):
            raise ValueError(f"{self} is not possible: a resolution and a limit must be at least 1")
