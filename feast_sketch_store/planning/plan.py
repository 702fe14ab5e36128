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
    """One way to keep the membership features of a view.

    Parameters
    ----------
    curve : the name of its curve.
    label : its name on the curve, such as "error rate 0.01".
    memory_bytes : for all entities, with everything that a serving process maps.
    memory_low, memory_high : of its 95 % interval; equal to it if nothing was sampled.
    table_bits_per_fact : of the table, or of the sets and the list of entities, for each fact that was
        written, kept or not; None for other stores.
    bits_per_fact : of ``memory_bytes``, for each of the same facts.
    false_per_read : expected false values of a read, of all features together.
    noise_ratio : expected false values for each true value that a read shows.
    kept_share : of the facts, those inside the vocabulary.
    auc : of a model trained through it, if there were labels.
    settings : tags to paste, by feature.
    uplift : the share of the exact features' gain in AUC that such a model keeps, if there were labels.
    """

    curve: str
    label: str
    memory_bytes: float
    memory_low: float
    memory_high: float
    table_bits_per_fact: float | None
    bits_per_fact: float
    false_per_read: float
    noise_ratio: float
    kept_share: float
    auc: Estimate | None = None
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    uplift: Estimate | None = None


@dataclass(frozen=True)
class PlannedField:
    """A feature as its view declares it, without the tags that a plan chooses.

    Parameters
    ----------
    dtype : as Python code, such as ``Set(String)``.
    description, tags : as declared.
    """

    dtype: str
    description: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """All points, and which one to take.

    Parameters
    ----------
    view : its name.
    num_entities : of the view.
    facts : pairs of an entity and a value of a membership feature, counted in all rows, sealed or not. If
        rows repeat values, the number of distinct ones is estimated from the sample.
    sampled_entities : number of entities in the sample.
    vocabulary_sizes : by feature; estimated (Chao), see `all_values`, unless all entities were sampled.
    points : of all curves, each curve from its smallest to its largest point.
    chosen : the number of the point that meets the target; None if the labels do not decide.
    knee : the number of the point after which more bytes gain little; None if there is none.
    target : in words.
    limits : sentences that readers of the figures must know.
    auc_without, auc_exact : of models without the features, and with all of them as written.
    fields : the planned features, as declared.
    is_current : whether the view's current settings have the same result as the chosen point.
    saved_bytes : how many bytes fewer the chosen point takes than the current settings; None if they keep
        other values, or if no curve has such settings.
    """

    view: str
    num_entities: int
    facts: Estimate
    sampled_entities: int
    vocabulary_sizes: Mapping[str, Estimate]
    points: Sequence[Point]
    chosen: int | None
    knee: int | None
    target: str
    limits: Sequence[str]
    auc_without: Estimate | None = None
    auc_exact: Estimate | None = None
    fields: Mapping[str, PlannedField] = field(default_factory=dict)
    is_current: bool = False
    saved_bytes: float | None = None

    def marks(self, number: int) -> list[str]:
        """What a point is to the plan, in words."""
        return [mark for mark, at in (("chosen", self.chosen), ("knee", self.knee)) if at == number]

    @property
    def shown(self) -> int:
        """The number of the point whose setting a report shows first: the chosen one, the knee, or 0."""
        return next(number for number in (self.chosen, self.knee, 0) if number is not None)
