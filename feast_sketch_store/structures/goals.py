"""The goals of membership features, and the offers of structures."""

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

AUTO: Final = "auto"
SETS: Final = "sets"

# Names of the filters in settings; the first is also their kind in snapshots.
BLOOM: Final = "bloom"
WEIGHTED_BLOOM: Final = "weighted_bloom"
LEARNED_BLOOM: Final = "learned_bloom"
SANDWICHED_BLOOM: Final = "sandwiched_bloom"

DEFAULT_CLUSTERS: Final = 16  # of a structure that always has clusters

ERROR_RATE: Final = "error_rate"
NOISE_RATIO: Final = "noise_ratio"
MEMORY: Final = "memory"


@dataclass(frozen=True)
class Goal:
    """The goal of a membership feature."""

    # ``error_rate``, the probability that an absent value reads as present; ``noise_ratio``, the false values
    # per true one; or ``memory``, the most bytes
    measure: str
    amount: float
    # the name of a structure, or ``auto``. With ``auto``, an error rate leads to a Bloom filter, a noise
    # ratio to the smallest structure, and a memory to sets
    structure: str = AUTO
    clusters: int = 0  # of entities, on which the number of hashes depends; 0 for none

    @property
    def text(self) -> str:
        """The measure and its amount, for messages."""
        if self.measure == MEMORY:
            return f"a memory of {self.amount:,.0f} bytes"
        return f"{self.measure} {self.amount:g}"

    @property
    def is_met_by_sets(self) -> bool:
        """Whether sets are asked for, which show no false values, and may take any number of bytes."""
        return self.structure == SETS and self.measure != MEMORY

    @property
    def may_choose(self) -> bool:
        """Whether the smallest structure is chosen."""
        return self.structure == AUTO and self.measure == NOISE_RATIO


class Offer(NamedTuple):
    """How a feature would be kept."""

    kind: str  # of the structure
    plan: Any = None  # what building it needs
    num_bytes: float = 0.0  # of the feature by itself, without vocabulary and states
    false_per_read: float = 0.0  # the expected false values of a read, for a row with values
    failed: str = ""  # why it would miss the goal; empty if it would not
