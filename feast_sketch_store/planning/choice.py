"""Which point of a plan to take: the one that meets a target, and the knee of all of them.

The knee is that of "Finding a 'Kneedle' in a Haystack" (Satopaa et al., 2011). It considers the points that
no smaller point equals in quality, with log(bytes) and quality both scaled to [0, 1]. The knee is the point
farthest above the line between the first and the last, of those that keep at least 80 % of the gain: of what
the best point adds to the quality without the features. If none of them is above the line there is no knee.

Quality is the AUC if there are labels. Without them it is the F1 score of a read as an answer to "which
values does the entity have", 0 without the features. That is the harmonic mean of the share of true values
among those shown, 1 / (1 + noise_ratio), and the share of the facts that are kept.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from feast_sketch_store.errors import PlanError, counted
from feast_sketch_store.planning.curves import Candidate, beside_list, least_count, sets, weighted_bloom
from feast_sketch_store.planning.plan import Estimate, Point
from feast_sketch_store.planning.sample import Sample
from feast_sketch_store.structures.goals import AUTO, BLOOM, SETS, WEIGHTED_BLOOM
from feast_sketch_store.structures.sizing import AUTO_NOISE_RATIO

LEAST_GAIN = 0.8  # of the knee, as a share of the gain of the best point
_AUC_LOSS = 0.001  # against the best point that is worth its bytes
_CURVES_OF_AUTO = (AUTO, BLOOM, WEIGHTED_BLOOM, SETS)  # `target: auto` learns no clusters
_STEPS = 12  # of a search for what fits into the bytes


@dataclass(frozen=True)
class PlanTarget:
    """What the chosen point must meet. Set at most one of the first two.

    Parameters
    ----------
    noise_ratio : the most expected false values for each true value.
    memory_bytes : the most bytes for all entities.
    auc : whether the AUC of a model decides.
    """

    noise_ratio: float | None = None
    memory_bytes: float | None = None
    auc: bool = False

    def __post_init__(self) -> None:
        if self.noise_ratio is not None and self.memory_bytes is not None:
            raise PlanError("set only one of noise_ratio and memory")
        for what, limit in (
            ("false values for each true one", self.noise_ratio),
            ("bytes of memory", self.memory_bytes),
        ):
            if limit is not None and not 0 < limit < math.inf:
                raise PlanError(
                    f"{limit:g} {what} cannot be a target; it must be more than 0, and finite. For reads "
                    "without false values, set `structure: sets`"
                )

    def __str__(self) -> str:
        if self.noise_ratio is not None:
            return (
                f"the smallest structure of the whole vocabulary whose reads show at most "
                f"{self.noise_ratio:g} false values for each true one"
            )
        if self.memory_bytes is not None:
            best = "the highest AUC" if self.auc else "the least noise, and then the most facts,"
            return f"{best} in at most {counted(self.memory_bytes, 'byte')}"
        if self.auc:
            return f"the smallest structure whose AUC is within {_AUC_LOSS:g} of the best"
        return (
            "as with `target: auto`, the smallest structure of the whole vocabulary whose reads show at "
            f"most {AUTO_NOISE_RATIO:g} false values for each true one"
        )


def made_to_measure(sample: Sample, target: PlanTarget) -> list[Candidate]:
    """Points that just meet a target, in addition to those of the grid."""
    if target.noise_ratio is not None:
        chosen = beside_list(sample, target.noise_ratio, sets(sample))
        return [weighted_bloom(sample, target.noise_ratio), *([] if chosen is None else [chosen])]
    if target.memory_bytes is None:
        return []
    budget = target.memory_bytes

    def weighted_of(place: float) -> Candidate:
        return weighted_bloom(sample, float(f"{10 ** (4 - 8 * place):.3g}"))

    def sets_of(place: float) -> Candidate:
        return sets(sample, least_count(sample, max(place, 1e-3)))

    return [c for make in (sets_of, weighted_of) if (c := largest(make, budget)) is not None]


def largest(make: Callable[[float], Candidate], memory_bytes: float) -> Candidate | None:
    """The largest candidate that fits, None if none does; ``make`` returns larger ones from 0 to 1."""
    best, low, high = make(0.0), 0.0, 1.0
    if best.point.memory_bytes > memory_bytes:
        return None
    for _ in range(_STEPS):
        middle = (low + high) / 2
        candidate = make(middle)
        if candidate.point.memory_bytes <= memory_bytes:
            best, low = candidate, middle
        else:
            high = middle
    return best


def choose_point(points: Sequence[Point], target: PlanTarget) -> int:
    """The number of the point that meets a target; never one without settings, of another store.

    Raises PlanError: no point meets it.
    """
    numbers = _own(points)
    whole = [n for n in numbers if points[n].kept_share == 1.0]

    def size(number: int) -> float:
        return points[number].memory_bytes

    if target.memory_bytes is not None:
        fitting = [n for n in numbers if size(n) <= target.memory_bytes]
        if not fitting:
            raise PlanError(
                f"nothing fits in {counted(target.memory_bytes, 'byte')}: the smallest structure "
                f"of the plan takes {min(map(size, numbers)):,.0f}"
            )
        if target.auc and any(points[n].auc for n in fitting):
            return max(fitting, key=lambda n: (_auc(points[n]), -size(n)))
        return min(fitting, key=lambda n: (points[n].noise_ratio, -points[n].kept_share, size(n)))
    allowed = AUTO_NOISE_RATIO if target.noise_ratio is None and not target.auc else target.noise_ratio
    if allowed is not None:
        meeting = [n for n in whole if points[n].noise_ratio <= allowed]
        if target.noise_ratio is None:
            meeting = [n for n in meeting if points[n].curve in _CURVES_OF_AUTO]
    else:
        enough = max(_auc(points[n]) for n in numbers) - _AUC_LOSS
        meeting = [n for n in numbers if _auc(points[n]) >= enough]
    return min(meeting, key=size)  # not empty: sets have no noise


def undecided(gain: Estimate, without: Estimate, exact: Estimate, has_candidates: bool) -> str:
    """Why the AUC does not decide, and what to try; empty if it decides.

    ``without`` and ``exact`` are AUCs of the context alone and with the exact features.
    """
    if gain.low > 0:
        return ""
    advice = (
        "Or check that the candidates are values of the features."
        if has_candidates
        else "Or give the labels a column 'candidate', the value that each label is about: this model adds "
        "up weights, and sees only by that column how a candidate goes with the history."
    )
    return (
        f"The labels do not decide: the model gains {gain.value:+.4f} from the features (AUC "
        f"{exact.value:.4f}, against {without.value:.4f} without them; 95 % interval {gain.low:+.4f} to "
        f"{gain.high:+.4f}), and a gain of 0 lies inside the interval. Try more labels. {advice} Or plan "
        "without --auc, by --noise-ratio or --memory."
    )


def knee(points: Sequence[Point], auc_without: float = 0.5) -> int | None:
    """The number of the point after which more bytes gain little; None if there is none.

    ``auc_without`` is the AUC of a model without the features, if the points have AUCs.
    """
    has_auc = any(point.auc for point in points)
    quality = {
        number: _auc(point) if has_auc else _f1(point)
        for number, point in ((number, points[number]) for number in _own(points))
        if point.auc or not has_auc
    }
    envelope: list[int] = []
    for number in sorted(quality, key=lambda n: (points[n].memory_bytes, -quality[n])):
        if not envelope or quality[number] > quality[envelope[-1]]:
            envelope.append(number)
    base, best = auc_without if has_auc else 0.0, quality[envelope[-1]]
    logs = [math.log(max(1.0, points[number].memory_bytes)) for number in envelope]
    width, height = logs[-1] - logs[0], best - quality[envelope[0]]

    def above(place: int) -> float:
        return (quality[envelope[place]] - quality[envelope[0]]) / height - (logs[place] - logs[0]) / width

    # Neither the first nor the last point is above the line between them.
    inner = range(1, len(envelope) - 1)
    enough = [n for n in inner if quality[envelope[n]] - base >= LEAST_GAIN * (best - base) > 0]
    corner = max(enough, key=above, default=None)
    return None if corner is None or above(corner) <= 0 else envelope[corner]


def _own(points: Sequence[Point]) -> list[int]:
    """The numbers of points that belong to this store."""
    return [n for n, point in enumerate(points) if point.settings]


def _auc(point: Point) -> float:
    return point.auc.value if point.auc else -math.inf


def _f1(point: Point) -> float:
    precision = 1 / (1 + point.noise_ratio)
    return 2 * precision * point.kept_share / max(precision + point.kept_share, 1e-12)
