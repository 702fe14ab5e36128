"""A plan: what keeping a view costs in bytes and in accuracy, for each way there is to keep it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Estimate:
    """A number that was measured on a sample, and the bounds of its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Point:
    """One way to keep the membership features of a view.

    Parameters
    ----------
    curve : the name of the curve on which it lies.
    label : what tells it from the other points of the curve, such as "error rate 0.01".
    memory_bytes : of all entities, everything included that a serving process maps.
    bits_per_fact : the same in bits, over all facts that were written, kept or not.
    false_per_read : values that a read shows too many, expected, all features together.
    noise_ratio : the same for each true value that a read shows.
    kept_share : of the facts, those inside the vocabulary.
    auc : of a model trained through it, if there were labels.
    settings : tags to paste, per feature.
    table_bits_per_fact : what of ``bits_per_fact`` tables and sets take, with what finds them; None for other
        stores.
    """

    curve: str
    label: str
    memory_bytes: float
    bits_per_fact: float
    false_per_read: float
    noise_ratio: float
    kept_share: float
    auc: Estimate | None = None
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    table_bits_per_fact: float | None = None


@dataclass(frozen=True)
class Plan:
    """All points, and which one to take.

    Parameters
    ----------
    view : its name.
    num_entities, num_facts : at full scale.
    sampled_entities : those that the figures come from.
    vocabulary_sizes : per feature.
    points : of all curves, each curve's from the smallest to the largest.
    chosen : the number of the point that meets what was asked for; None if the labels do not decide.
    knee : the number of the point behind which more bytes buy little.
    target : what was asked for, in words.
    limits : what a reader has to know of the figures, in sentences.
    auc_without, auc_exact : of models without the features and with all of them as written.
    """

    view: str
    num_entities: int
    num_facts: int
    sampled_entities: int
    vocabulary_sizes: Mapping[str, int]
    points: Sequence[Point]
    chosen: int | None
    knee: int
    target: str
    limits: Sequence[str]
    auc_without: Estimate | None = None
    auc_exact: Estimate | None = None

    @property
    def shown(self) -> int:
        """The number of the point whose setting a report shows first: the chosen one, or the knee."""
        return self.knee if self.chosen is None else self.chosen
