"""A plan: what a view costs in bytes and in accuracy, for each way to keep it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Estimate:
    """A number measured on a sample, and the bounds of its 95 % interval."""

    value: float
    low: float
    high: float

    @classmethod
    def exactly(cls, value: float) -> "Estimate":
        """A number that is known."""
        return cls(value, value, value)

    @classmethod
    def within(cls, value: float, error: float) -> "Estimate":
        """A number with the same error on both sides."""
        return cls(value, value - error, value + error)

    @property
    def is_known(self) -> bool:
        """Whether the interval is a point."""
        return self.low == self.high


def limits_of_sample(num_sampled: int, num_entities: int) -> str:
    """What readers of figures must know about the sample that they are from."""
    if num_sampled == num_entities:
        return f"The figures are from all {num_sampled:,} entities."
    return (
        f"The figures are from a sample of {num_sampled:,} of {num_entities:,} entities; values missing from "
        "the sample are estimated (Chao) and included in the bytes. That is a lower bound: if very many are "
        "rare, there are more than the intervals say. Otherwise these cover the sampling error with 95 % "
        "confidence."
    )


@dataclass(frozen=True)
class Point:
    """One way to keep the membership features of a view."""

    curve: str  # the name of its curve
    label: str  # its name on the curve, such as "error rate 0.01"
    memory_bytes: float  # for all entities, with everything that a serving process maps
    # memory_low, memory_high: of its 95 % interval; equal to it if nothing was sampled
    memory_low: float
    memory_high: float
    # of the table, or of the sets and the list of entities, for each fact that was written, kept or not; None
    # for other stores
    table_bits_per_fact: float | None
    bits_per_fact: float  # of ``memory_bytes``, for each of the same facts
    false_per_read: float  # expected false values of a read, of all features together
    noise_ratio: float  # expected false values for each true value that a read shows
    kept_share: float  # of the facts, those inside the vocabulary
    auc: Estimate | None = None  # of a model trained through it, if there were labels
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # tags to paste, by feature
    # the share of the exact features' gain in AUC that such a model keeps, if there were labels
    uplift: Estimate | None = None


@dataclass(frozen=True)
class PlannedField:
    """A feature as its view declares it, without the tags that a plan chooses."""

    dtype: str  # as Python code, such as ``Set(String)``
    # description, tags: as declared
    description: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """All points, and which one to take."""

    view: str  # its name
    num_entities: int  # of the view
    # pairs of an entity and a value of a membership feature, counted in all rows, sealed or not. If rows
    # repeat values, the number of distinct ones is estimated from the sample
    facts: Estimate
    sampled_entities: int  # number of entities in the sample
    # by feature; estimated (Chao), see `all_values`, unless all entities were sampled
    vocabulary_sizes: Mapping[str, Estimate]
    points: Sequence[Point]  # of all curves, each curve from its smallest to its largest point
    chosen: int | None  # the number of the point that meets the target; None if the labels do not decide
    knee: int | None  # the number of the point after which more bytes gain little; None if there is none
    target: str  # in words
    limits: Sequence[str]  # sentences that readers of the figures must know
    # auc_without, auc_exact: of models without the features, and with all of them as written
    auc_without: Estimate | None = None
    auc_exact: Estimate | None = None
    fields: Mapping[str, PlannedField] = field(default_factory=dict)  # the planned features, as declared
    is_current: bool = False  # whether the view's current settings have the same result as the chosen point
    # how many bytes fewer the chosen point takes than the current settings; None if they keep other values,
    # or if no curve has such settings
    saved_bytes: float | None = None

    def marks(self, number: int) -> list[str]:
        """What a point is to the plan, in words."""
        return [mark for mark, at in (("chosen", self.chosen), ("knee", self.knee)) if at == number]

    @property
    def shown(self) -> int:
        """The number of the point whose setting a report shows first: the chosen one, the knee, or 0."""
        return next(number for number in (self.chosen, self.knee, 0) if number is not None)
