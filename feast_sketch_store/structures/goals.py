"""What a membership feature is wanted for, and what structures offer."""

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

AUTO: Final = "auto"

# Names of the filters in settings; the first is their kind in snapshots, too.
BLOOM: Final = "bloom"
WEIGHTED_BLOOM: Final = "weighted_bloom"
LEARNED_BLOOM: Final = "learned_bloom"
SANDWICHED_BLOOM: Final = "sandwiched_bloom"

DEFAULT_CLUSTERS: Final = 16  # of a structure that has clusters whatever is said

ERROR_RATE: Final = "error_rate"
NOISE_RATIO: Final = "noise_ratio"
FALSE_PER_READ: Final = "false_per_read"
MEMORY: Final = "memory"


@dataclass(frozen=True)
class Goal:
    """What a membership feature is wanted for.

    Parameters
    ----------
    measure : ``error_rate``, the probability that an absent value reads as present; ``false_per_read``, how
        many values a read shows too many, on average; ``noise_ratio``, how many of these for each true one;
        ``memory``, bytes at most.
    amount : of it.
    structure : a name that a structure goes by, or ``auto``. Left to choose, an error rate makes a Bloom
        filter, another measure whatever is smallest.
    clusters : of entities, that the numbers of hashes depend on; 0 if they do not.
    """

    measure: str
    amount: float
    structure: str = AUTO
    clusters: int = 0

    @property
    def may_choose(self) -> bool:
        """Whether the structure is the one that is smallest; an error rate asks for a Bloom filter."""
        return self.structure == AUTO and self.measure != ERROR_RATE


class Offer(NamedTuple):
    """How a feature would be kept.

    Parameters
    ----------
    kind : of the structure.
    plan : what it needs to know to be built.
    num_bytes : that the feature takes by itself, vocabulary and states not counted.
    false_per_read : values that a read shows too many, expected, of a row that has some.
    failed : why it is not kept as it is wanted, if it is not.
    """

    kind: str
    plan: Any = None
    num_bytes: float = 0.0
    false_per_read: float = 0.0
    failed: str = ""
