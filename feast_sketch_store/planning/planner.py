"""Plan a view of a Feast repository: take a sample, compute the points of all curves, and choose one."""

import copy
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from feast import FeatureStore

from feast_sketch_store.errors import PlanError
from feast_sketch_store.planning import scores, timed
from feast_sketch_store.planning.choice import (
    LEAST_GAIN,
    PlanTarget,
    choose_point,
    knee,
    largest,
    made_to_measure,
    undecided,
)
from feast_sketch_store.planning.curves import (
    CHOSEN_SETS,
    CLUSTERED_NOISE_RATIOS,
    COARSE,
    Candidate,
    Grid,
    beside_list,
    bloom,
    candidates,
    clustered,
    kept_text,
    points_of_other_stores,
    selector,
    sets,
    sets_of,
    weighted_bloom,
)
from feast_sketch_store.planning.labels import Labels, candidate_ids, require_scipy
from feast_sketch_store.planning.models import WORTH_SHARES, Task
from feast_sketch_store.planning.plan import Estimate, Plan, PlannedField, Point, limits_of_sample
from feast_sketch_store.planning.sample import Sample
from feast_sketch_store.planning.source import PlannedView, no_values, sample_view, tags_beside
from feast_sketch_store.rows.vocabulary import Vocabulary
from feast_sketch_store.settings.resolve import resolve
from feast_sketch_store.settings.table import TAG_PREFIX
from feast_sketch_store.settings.view_settings import ViewSettings
from feast_sketch_store.storage.names import folder_name
from feast_sketch_store.structures.goals import (
    AUTO,
    BLOOM,
    ERROR_RATE,
    MEMORY,
    NOISE_RATIO,
    SETS,
    WEIGHTED_BLOOM,
    Goal,
    Offer,
)

DEFAULT_SAMPLE = 100_000
LISTS_FOLDER = "plans"  # in the feature repository

# Tags that a point replaces; other tags of a feature stay.
REPLACED = {TAG_PREFIX + name for name in ("target", "structure", "clusters", "vocabulary")}

_JSON_KINDS = ("bool", "int32", "int64", "float", "double", "string")


def plan_view(
    store: FeatureStore,
    view: str,
    target: PlanTarget | None = None,
    labels: Path | None = None,
    max_entities: int = DEFAULT_SAMPLE,
    offline: bool = False,
    on_progress: Callable[[str, int, int], object] = lambda text, done, total: None,
) -> Plan:
    """What a view costs in bytes and in accuracy, for each way to keep it; for lists, by tick and limit.

    With labels, the plan also chooses the values that a model needs. Lists of them are written to the folder
    ``plans`` of the feature repository, and the settings of those points refer to them.

    Parameters
    ----------
    store, view : the repository and the name of a feature view.
    target : what the chosen point must meet. None for the result of ``target: auto``, or with labels for
        the smallest structure that costs the model next to nothing.
    labels : a Parquet file; see `Labels.read`.
    max_entities : of the sample.
    offline : sample the offline source even if the view has rows.
    on_progress : called when a long step begins, with its name, the number of such steps done, and their
        total; 0 and 0 for a single step.

    Raises
    ------
    PlanError : the view has no membership features or lists, or no rows; or the labels do not fit; or nothing
        meets the target.
    SketchStoreError : the repository uses another online store, or the rows cannot be read.
    feast.errors.FeatureViewNotFoundException : there is no such view (from Feast).
    """
    target = target or PlanTarget(auc=labels is not None)
    if max_entities < 1:
        raise PlanError(f"a sample of {max_entities} entities is empty; sample at least 1")
    if target.auc and labels is None:
        raise PlanError("an AUC needs labels")
    planned = PlannedView.open(store, view)
    if planned.has_lists:
        on_progress(f"Sampling {view}", 0, 0)
        return timed.plan_lists(planned, target, max_entities, offline)
    read = None if labels is None else _read_labels(planned, labels)
    on_progress(f"Sampling {view}", 0, 0)
    sample, labelled = sample_view(planned, max_entities, read.entities[0] if read else None, offline)
    if not sample.num_facts:
        raise no_values(planned, "membership features", len(sample), sample.num_entities)
    on_progress("Sizing", 0, 0)
    found = candidates(sample, Grid() if read is None else COARSE)
    if read is None:  # with labels they are left out: how noise by cluster affects a model is not known
        found += clustered(sample, CLUSTERED_NOISE_RATIOS)
    found += made_to_measure(sample, target)
    limits = list(_limits(planned, sample, found))
    auc_without = auc_exact = None
    reason = ""
    if read is None:
        found = _in_order(found)
    else:
        on_progress("Fitting the exact model", 0, 0)
        if not len(labelled):
            raise PlanError(f"{labels}: no labelled row has an entity of view {view!r}; check the join keys")
        task = Task(read, sample, labelled, candidate_ids(read, sample, planned.codecs))
        if all(codec.element_kind in _JSON_KINDS for codec in planned.codecs):
            found += _chosen_by_model(planned, sample, task, target)
            found += _scores(planned, sample, task)
        else:
            limits.append(
                "Values were not chosen by the model: JSON, which lists them, does not hold their type."
            )
        found = list(_with_auc(_in_order(found), task, on_progress))
        limits += _limits_of_labels(read, task, found)
        auc_without, auc_exact = task.without.auc, task.exact.auc
        gain = (task.exact - task.without).estimate
        reason = undecided(gain, auc_without, auc_exact, read.candidates is not None)
    points = [candidate.point for candidate in found]
    points += [replace(point, auc=auc_exact) for point in points_of_other_stores(sample)]
    chosen: int | None = choose_point(points, target)
    if reason:
        chosen, limits = None, [reason, *limits]
    corner = knee(points) if auc_without is None else knee(points, auc_without.value)
    if corner is None:
        limits.append(
            f"There is no knee: no point with at least {LEAST_GAIN:.0%} of the gain of the best one gains "
            "more than its bytes do on average."
        )
    is_current, saved = (False, None) if chosen is None else compared(planned, sample, points[chosen])
    fields = planned.fields(REPLACED)
    if any(candidate.formulas for candidate in found):
        fields = {scores.score_name(planned.settings.codecs): PlannedField("Float64"), **fields}
    return Plan(
        view,
        sample.num_entities,
        sample.facts,
        len(sample),
        sample.vocabulary_sizes,
        points,
        chosen,
        corner,
        str(target),
        limits,
        auc_without,
        auc_exact,
        fields,
        is_current,
        saved,
    )


def _read_labels(view: PlannedView, path: Path) -> Labels:
    require_scipy()
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise PlanError(f"{path}: the labels cannot be read: {error}") from error
    try:
        return Labels.read(table, view.hash_join_keys(table), list(view.join_keys))
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from error


def _in_order(found: Sequence[Candidate]) -> list[Candidate]:
    """The points of each curve from the smallest to the largest, each once."""
    curves: dict[str, dict[str, Candidate]] = {}
    for candidate in found:
        curves.setdefault(candidate.point.curve, {}).setdefault(candidate.point.label, candidate)

    def size(candidate: Candidate) -> float:
        return candidate.point.memory_bytes

    return [candidate for curve in curves.values() for candidate in sorted(curve.values(), key=size)]


def _with_auc(
    candidates: Sequence[Candidate], task: Task, on_progress: Callable[[str, int, int], object]
) -> Iterator[Candidate]:
    for number, candidate in enumerate(candidates):
        on_progress("Fitting models", number, len(candidates))
        area = task.area(candidate.kept, candidate.rates, candidate.formulas)
        if area is not None:
            point = replace(candidate.point, auc=area.auc, uplift=task.uplift(area))
            candidate = replace(candidate, point=point)
        yield candidate


def _chosen_by_model(view: PlannedView, sample: Sample, task: Task, target: PlanTarget) -> list[Candidate]:
    """Points with the values that the model needs; writes lists of these values.

    Cuts are nested, so two cuts with the same number of values are equal and can share a file.
    """

    def make(share: float) -> Candidate:
        kept = task.most_worth(share)
        settings = {name: {"sketch.structure": "sets"} for name in kept}
        for name, mask in kept.items():
            if not mask.all():
                settings[name]["sketch.vocabulary"] = f"{{file: {_list_file(view, name, int(mask.sum()))}}}"
        return sets_of(sample, kept, CHOSEN_SETS, kept_text(sample, kept), settings)

    made = [make(share) for share in WORTH_SHARES]
    if target.memory_bytes is not None and (fitting := largest(make, target.memory_bytes)) is not None:
        made.append(fitting)
    for candidate in made:
        for name, mask in candidate.kept.items():
            if not mask.all():
                values = Vocabulary(sample.features[name].vocabulary.values.filter(pa.array(mask)))
                file = _list_file(view, name, len(values))
                _write_json(view, file, _listed(view, name, values))
    return made


def _scores(view: PlannedView, sample: Sample, task: Task) -> list[Candidate]:
    """Points of scores; writes their weights."""
    score = scores.score_name(view.settings.codecs)

    def write(weights: scores.Weights, number: int) -> str:
        file, content = _list_file(view, score, number), {}
        for name, (values, own) in weights.items():
            content[name] = [*zip(_listed(view, name, values), own.tolist(), strict=True)]
        _write_json(view, file, content)
        return file

    return list(scores.scores(sample, task.weights(), score, write))


def _list_file(view: PlannedView, feature: str, number: int) -> str:
    """The path, in the feature repository, of a list of so many values."""
    return f"{LISTS_FOLDER}/{folder_name(view.table.name)}.{folder_name(feature)}.{number}.json"


def _listed(view: PlannedView, feature: str, values: Vocabulary) -> list[Any]:
    listed: list[Any] = view.settings.features[feature].codec.from_storage(values.values).to_pylist()
    return listed


def _write_json(view: PlannedView, file: str, content: object) -> None:
    path = Path(view.store.repo_path) / file
    try:
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content), "utf-8")
    except OSError as error:
        raise PlanError(f"{path}: cannot be written: {error}") from error


def _limits(view: PlannedView, sample: Sample, found: Sequence[Candidate]) -> Iterator[str]:
    """Notes on how to read the figures."""
    num_values = sum(map(len, sample.full_counts.values()))
    per_entity = sample.num_facts / sample.num_entities
    exact = math.log2(max(1.0, num_values / per_entity)) + 1 / math.log(2)
    smallest = next(c.point for c in found if c.point.curve == SETS)
    yield (
        f"With V = {num_values:,} values and n = {per_entity:.3g} of them per entity, exact sets need about "
        f"log2(V / n) + 1.44 = {exact:.1f} bits per fact if all values are equally popular, and less if "
        f"some are more popular. Here they take {smallest.table_bits_per_fact:.1f} with the list of "
        f"entities, and {smallest.bits_per_fact:.1f} with the vocabulary as well."
    )
    yield (
        "At an error rate below about n / (3 V) = "
        f"{per_entity / 3 / num_values:.2g}, no filter can be smaller than exact sets. A Bloom filter takes "
        f"1.44 times the minimum, so it is larger than sets below about {2 ** (-exact * math.log(2)):.2g}."
    )
    yield (
        "False values add up over the vocabulary: with the current settings a read shows "
        f"{false_values(view.settings, sample):.3g} false values beside {per_entity:.3g} true ones."
    )
    yield limits_of_sample(len(sample), sample.num_entities)
    if sample.scale > 1 and not sample.facts.is_known:
        yield (
            "Rows repeat values: the values of all rows are counted, and the share of distinct ones is "
            "estimated from the sample."
        )
    yield (
        "Memory is what membership features take when they are sealed: tables or sets, a list of the "
        "entities with their timestamps, and the vocabulary. Other features, unsealed rows and the values "
        "that a process keeps ready for answers are extra."
    )
    yield (
        "The bytes of Redis and SQLite are estimated: the sampled rows in the formats of Feast's stores, "
        "with keys, timestamps and the planned features."
    )
    if any(c.point.kept_share < 1 for c in found):
        yield "What a vocabulary leaves out is removed from sealed rows. The error rates do not include it."


def false_values(settings: ViewSettings, sample: Sample) -> float:
    """The false values of a read of membership features with some settings."""
    filled = sample.num_filled(sample.everything)
    shown = sum(offer.false_per_read * filled[name] for name, offer in offers(settings, sample).items())
    return shown / sample.num_entities


def _limits_of_labels(labels: Labels, task: Task, found: Sequence[Candidate]) -> Iterator[str]:
    num_taken = len(labels.outcomes)
    if num_taken < labels.num_given:
        yield f"The model is of {num_taken:,} of {labels.num_given:,} labelled rows: those of some entities."
    yield (
        "AUC is measured for one logistic model on held-out rows, trained through each structure with false "
        "values drawn at random. Another model may need other values. Intervals are of entities. The best "
        "point is picked on the same rows, so its AUC is slightly too high."
    )
    if task.share_without_row:
        yield f"{task.share_without_row:.1%} of the labelled rows have entities that the view lacks."
    if any(candidate.formulas for candidate in found):
        yield (
            "A score stands for all values of a row, including those left out. The bytes include its "
            "formula. It is only of use to the model whose weights it has. To use it, add a feature to the "
            "view, with a column of nulls in its source."
        )
    missing = sum(candidate.point.auc is None for candidate in found)
    if missing:
        yield f"{missing} points have no AUC, because their reads show too many false values to fit a model."


def compared(view: PlannedView, sample: Sample, point: Point) -> tuple[bool, float | None]:
    """Whether the view's settings have the same result as a point's, and how many bytes fewer these take.

    None if no curve has the current settings, or if they keep other values, which bytes do not compare.
    """
    declared = {field.name: field.tags or {} for field in view.table.features}
    computed = point.settings.keys() - sample.features.keys()
    if computed != view.settings.computed or any(
        not point.settings[name].items() <= declared[name].items() for name in computed
    ):
        return False, None
    table = copy.copy(view.table)
    table.features = [_with_tags(field, point.settings.get(field.name)) for field in table.features]
    new = resolve(view.store.config.online_store, table, view.settings.folder)
    ours, theirs = (
        {name: settings.features[name].vocabulary for name in sample.features}
        for settings in (view.settings, new)
    )
    if ours != theirs:
        return False, None
    current, planned = (offers(settings, sample) for settings in (view.settings, new))
    is_same = all(
        offer.kind == planned[name].kind
        and math.isclose(offer.false_per_read, planned[name].false_per_read, rel_tol=0.01)
        and math.isclose(offer.num_bytes, planned[name].num_bytes, rel_tol=0.01)
        for name, offer in current.items()
    )
    before = point_of(view.settings, sample)
    return is_same, None if before is None else before.memory_bytes - point.memory_bytes


def point_of(settings: ViewSettings, sample: Sample) -> Point | None:
    """The point of some settings; None if no curve has such settings.

    Bytes of offers of different structures do not compare: each leaves out what the rows share.
    """
    features = [settings.features[name] for name in sample.features]
    kinds = {offer.kind for offer in offers(settings, sample).values()}
    goals = {feature.target for feature in features if isinstance(feature.target, Goal)}
    if any(feature.vocabulary is not None for feature in features) or MEMORY in {g.measure for g in goals}:
        return None
    if kinds == {SETS}:
        return sets(sample).point
    if len(goals) != 1:
        return None
    goal = goals.pop()
    if goal.may_choose:
        found = beside_list(sample, goal.amount, sets(sample))
        return None if found is None else found.point
    if kinds != {BLOOM}:
        return None
    if goal.measure == ERROR_RATE and goal.structure in (AUTO, BLOOM):
        return bloom(sample, goal.amount).point
    if goal.measure == NOISE_RATIO and goal.structure == WEIGHTED_BLOOM and not goal.clusters:
        return weighted_bloom(sample, goal.amount).point
    return None


def growth(settings: ViewSettings, sample: Sample) -> Estimate | None:
    """How many bytes the entities that were not sampled add, with some settings; None as `point_of`."""
    whole = point_of(settings, sample)
    part = point_of(settings, replace(sample, num_entities=len(sample), known_facts={}))
    if whole is None or part is None:
        return None
    sizes = (whole.memory_bytes, whole.memory_low, whole.memory_high)
    return Estimate(*(size - part.memory_bytes for size in sizes))


def offers(settings: ViewSettings, sample: Sample) -> dict[str, Offer]:
    """How a seal of the whole view would keep the membership features."""
    goals = {}
    for name in sample.features:
        target = settings.features[name].target
        assert isinstance(target, Goal)  # as for every collection
        if target.measure == MEMORY and target.structure == AUTO:
            target = replace(target, structure=SETS)  # of as many values as fit
        goals[name] = target
    return selector(sample, goals, settings.lists_rows).offers()


def _with_tags(field: Any, tags: Mapping[str, str] | None) -> Any:
    if tags is None:
        return field
    new = copy.copy(field)
    new.tags = {**tags_beside(field, REPLACED), **tags}
    return new
