"""Plan a view of a Feast repository: take a sample, compute the points of all curves, and choose one."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

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
from feast_sketch_store.planning.current import REPLACED, compared, offers
from feast_sketch_store.planning.curves import (
    CHOSEN_SETS,
    CLUSTERED_NOISE_RATIOS,
    COARSE,
    SETS,
    Candidate,
    Grid,
    candidates,
    clustered,
    in_order,
    kept_text,
    points_of_other_stores,
    sets_of,
)
from feast_sketch_store.planning.labels import Labels, candidate_ids, require_scipy
from feast_sketch_store.planning.models import WORTH_SHARES, Task
from feast_sketch_store.planning.plan import Plan, PlannedField
from feast_sketch_store.planning.sample import Sample, VocabularyMask
from feast_sketch_store.planning.source import PlannedView, sample_view
from feast_sketch_store.storage.names import folder_name

DEFAULT_SAMPLE = 100_000
LISTS_FOLDER = "plans"  # in the feature repository

_JSON_KINDS = ("bool", "int32", "int64", "float", "double", "string")


def plan_view(
    store: FeatureStore,
    view: str,
    target: PlanTarget | None = None,
    labels: Path | None = None,
    max_entities: int = DEFAULT_SAMPLE,
    offline: bool = False,
    tell: Callable[[str, int, int], object] = lambda text, done, total: None,
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
    tell : called when a long step begins, with its name, the number of such steps done, and their total; 0
        and 0 for a single step.

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
        tell(f"Sampling {view}", 0, 0)
        return timed.plan_lists(planned, target, max_entities, offline)
    read = None if labels is None else _read_labels(planned, labels)
    tell(f"Sampling {view}", 0, 0)
    sample, labelled = sample_view(planned, max_entities, read.entities[0] if read else None, offline)
    if not sample.num_facts:
        raise PlanError(f"the membership features of view {view!r} have no values in any row yet")
    tell("Sizing", 0, 0)
    grid = Grid() if read is None else COARSE
    found = candidates(sample, grid)
    if read is None:  # with labels they are left out: how noise by cluster affects a model is not known
        found += clustered(sample, CLUSTERED_NOISE_RATIOS)
    found = _merged(found, made_to_measure(sample, target))
    limits = list(_limits(planned, sample, found))
    task = None
    if read is not None:
        tell("Fitting the exact model", 0, 0)
        if not len(labelled):
            raise PlanError(f"{labels}: no labelled row has an entity of view {view!r}; check the join keys")
        task = Task(read, sample, labelled, candidate_ids(read, sample, planned.codecs))
        cuts = _chosen_by_model(planned, sample, task, target, limits)
        found = _merged(found, cuts)
        found = _merged(found, _scores(planned, sample, task))
        found = list(_with_auc(found, task, tell))
        limits += _limits_of_labels(read, task, found)
    points = [candidate.point for candidate in found]
    auc_exact = next(point.auc for point in points if point.curve == SETS)
    points += [replace(point, auc=auc_exact) for point in points_of_other_stores(sample)]
    auc_without = None if task is None else task.auc_without()
    chosen: int | None = choose_point(points, target)
    if read is not None and task is not None and auc_without is not None and auc_exact is not None:
        has_candidates = read.candidates is not None
        if reason := undecided(task.gain(), auc_without, auc_exact, has_candidates):
            chosen, limits = None, [reason, *limits]
    corner = knee(points) if auc_without is None else knee(points, auc_without.value)
    if corner is None:
        limits.append(
            f"There is no knee: no point with at least {LEAST_GAIN:.0%} of the gain of the best one gains "
            "more than its bytes do on average."
        )
    is_current, saved = (False, None) if chosen is None else compared(planned, sample, points, chosen)
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


def _merged(some: Sequence[Candidate], others: Sequence[Candidate]) -> list[Candidate]:
    """The points of both, ordered within each curve."""
    curves: dict[str, dict[str, Candidate]] = {}
    for candidate in (*some, *others):
        curves.setdefault(candidate.point.curve, {}).setdefault(candidate.point.label, candidate)
    return [candidate for curve in curves.values() for candidate in in_order(list(curve.values()))]


def _with_auc(
    candidates: Sequence[Candidate], task: Task, tell: Callable[[str, int, int], object]
) -> Iterator[Candidate]:
    for number, candidate in enumerate(candidates):
        tell("Fitting models", number, len(candidates))
        through = candidate.kept, candidate.rates, candidate.formulas
        auc, uplift = task.auc(*through), task.uplift(*through)
        yield replace(candidate, point=replace(candidate.point, auc=auc, uplift=uplift))


def _chosen_by_model(
    view: PlannedView, sample: Sample, task: Task, target: PlanTarget, limits: list[str]
) -> list[Candidate]:
    """Points with the values that the model needs; writes lists of these values."""
    if not all(codec.element_kind in _JSON_KINDS for codec in view.codecs):
        limits.append(
            "Values were not chosen by the model: JSON, which lists them, does not hold their type."
        )
        return []

    def make(share: float) -> Candidate:
        kept = task.most_worth(share)
        settings = {name: {"sketch.structure": "sets"} for name in kept}
        for name, file in _list_files(view, kept).items():
            settings[name]["sketch.vocabulary"] = f"{{file: {file}}}"
        label = kept_text(sample, kept)
        return sets_of(sample, kept, CHOSEN_SETS, label, settings)

    made = [make(share) for share in WORTH_SHARES]
    if target.memory_bytes is not None and (fitting := largest(make, target.memory_bytes)) is not None:
        made.append(fitting)
    for candidate in made:
        _write_lists(view, sample, candidate.kept)
    return made


def _scores(view: PlannedView, sample: Sample, task: Task) -> list[Candidate]:
    """Points of scores; writes their weights."""
    if not all(codec.element_kind in _JSON_KINDS for codec in view.codecs):
        return []
    name = scores.score_name(view.settings.codecs)

    def write(weights: scores.Weights, number: int) -> str:
        return _write_weights(view, name, weights, number)

    return list(scores.scores(sample, task.weights(), name, write))


def _write_weights(view: PlannedView, score: str, weights: scores.Weights, number: int) -> str:
    """Write the weights of a score to a file, and return its path in the feature repository."""
    codecs = {codec.feature: codec for codec in view.codecs}
    file = f"{LISTS_FOLDER}/{folder_name(view.table.name)}.{folder_name(score)}.{number}.json"
    content = {}
    for name, (vocabulary, own) in weights.items():
        values = codecs[name].from_storage(vocabulary.values).to_pylist()
        content[name] = [list(pair) for pair in zip(values, own.tolist(), strict=True)]
    _write_json(Path(view.store.repo_path) / file, content)
    return file


def _write_json(path: Path, content: object) -> None:
    try:
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content))
    except OSError as error:
        raise PlanError(f"{path}: cannot be written: {error}") from error


def _list_files(view: PlannedView, kept: VocabularyMask) -> dict[str, str]:
    """Paths, in the repository, of the lists of kept values of each feature that loses some.

    Cuts are nested, so two cuts with the same number of values are equal and can share a file.
    """
    name_of = folder_name
    return {
        name: f"{LISTS_FOLDER}/{name_of(view.table.name)}.{name_of(name)}.{int(mask.sum())}.json"
        for name, mask in kept.items()
        if not mask.all()
    }


def _write_lists(view: PlannedView, sample: Sample, kept: VocabularyMask) -> None:
    codecs = {codec.feature: codec for codec in view.codecs}
    for name, file in _list_files(view, kept).items():
        values = sample.features[name].vocabulary.values.filter(pa.array(kept[name]))
        content = codecs[name].from_storage(values).to_pylist()
        _write_json(Path(view.store.repo_path) / file, content)


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
        f"{_current_false_values(view, sample):.3g} false values beside {per_entity:.3g} true ones."
    )
    if sample.scale > 1:
        unseen = num_values - sum(len(feature.vocabulary) for feature in sample.features.values())
        yield (
            f"The figures are from a sample of {len(sample):,} of {sample.num_entities:,} entities; "
            f"{unseen:,} values missing from the sample are estimated (Chao) and included in the bytes. "
            "Intervals cover the sampling error with 95 % confidence."
        )
        if not sample.facts.is_known:
            yield (
                "Rows repeat values: the values of all rows are counted, and the share of distinct ones is "
                "estimated from the sample."
            )
    else:
        yield f"The figures are from all {len(sample):,} entities."
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


def _current_false_values(view: PlannedView, sample: Sample) -> float:
    """The number of false values per read with the view's current settings."""
    filled = sample.num_filled(sample.everything)
    return (
        sum(offer.false_per_read * filled[name] for name, offer in offers(view.settings, sample).items())
        / sample.num_entities
    )


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
