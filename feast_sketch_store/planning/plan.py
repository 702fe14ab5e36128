"""A plan: what a view costs in bytes and in accuracy, for each way to keep it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Estimate:
    """A number that was measured on a sample, and the bounds of its 95 % interval."""

    value: float
    low: float
    high: float

    @classmethod
    def exactly(cls, value: float) -> "Estimate":
        """A number that is known."""
        return cls(value, value, value)

    @property
    def is_known(self) -> bool:
        """Whether the interval is a point."""
        return self.low == self.high


@dataclass(frozen=True)
class Point:
    """One way to keep the membership features of a view.

    Parameters
    ----------
    curve : the name of its curve.
    label : its name on the curve, such as "error rate 0.01".
    memory_bytes : for all entities, with everything that a serving process maps.
    memory_low, memory_high : of its 95 % interval; equal to it if nothing was sampled.
    table_bits_per_fact : of the table, or of the sets and the list of entities, over all facts that were
        written, kept or not; None for other stores.
    bits_per_fact : of ``memory_bytes``, over the same facts.
    false_per_read : values that a read shows too many, expected, all features together.
    noise_ratio : the same for each true value that a read shows.
    kept_share : of the facts, those inside the vocabulary.
    auc : of a model trained through it, if there were labels.
    settings : tags to paste, per feature.
    uplift : the share that such a model keeps of what the exact features add to the AUC, if there were
        labels.
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
    """A feature as its view declares it, but for the tags that a plan chooses.

    Parameters
    ----------
    dtype : as Python, such as ``Set(String)``.
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
    facts : pairs of an entity and a value of a membership feature. They are counted in the rows, sealed or
        not; where rows repeat values, how many are distinct is estimated from the sample.
    sampled_entities : those that the figures come from.
    vocabulary_sizes : per feature, estimated (Chao) if not all entities were sampled.
    points : of all curves, each curve's from the smallest to the largest.
    chosen : the number of the point that meets the target; None if the labels do not decide.
    knee : the number of the point after which more bytes gain little.
    target : the target in words.
    limits : notes that a reader of the figures must know, in sentences.
    fields : the planned features, as they are declared.
    is_current : whether the view is kept as the chosen point keeps it.
    auc_without, auc_exact : of models without the features and with all of them as written.
    """

    view: str
    num_entities: int
    facts: Estimate
    sampled_entities: int
    vocabulary_sizes: Mapping[str, Estimate]
    points: Sequence[Point]
    chosen: int | None
    knee: int
    target: str
    limits: Sequence[str]
    auc_without: Estimate | None = None
    auc_exact: Estimate | None = None
    fields: Mapping[str, PlannedField] = field(default_factory=dict)
    is_current: bool = False

    @property
    def shown(self) -> int:
        """The number of the point whose setting a report shows first: the chosen one, or the knee."""
        return self.knee if self.chosen is None else self.chosen
