"""Comparison of a point's settings with the current settings of the view."""

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

from feast_sketch_store.planning.curves import SETS, bloom, weighted_bloom
from feast_sketch_store.planning.plan import Point
from feast_sketch_store.planning.sample import Sample
from feast_sketch_store.planning.source import PlannedView, tags_beside
from feast_sketch_store.settings.resolve import resolve
from feast_sketch_store.settings.table import TAG_PREFIX
from feast_sketch_store.settings.view_settings import ViewSettings
from feast_sketch_store.structures.choice import LayerOverhead, StructureSelector
from feast_sketch_store.structures.costs import Popularity
from feast_sketch_store.structures.goals import (
    AUTO,
    BLOOM,
    ERROR_RATE,
    NOISE_RATIO,
    WEIGHTED_BLOOM,
    Goal,
    Offer,
)

# Tags that a point replaces; other tags of a feature stay.
REPLACED = {TAG_PREFIX + name for name in ("target", "structure", "vocabulary")}


def compared(
    view: PlannedView, sample: Sample, points: Sequence[Point], chosen: int
) -> tuple[bool, float | None]:
    """The current settings of the view beside those of a point.

    Returns
    -------
    Whether they have the same result, and how many bytes fewer the point's take, by the figures of the plan.
    None if the plan has no figure for the current settings, or if they keep other values, which bytes alone
    do not compare.
    """
    point = points[chosen]
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
    memory_bytes = _memory_bytes(view.settings, sample, points, current)
    return is_same, None if memory_bytes is None else memory_bytes - point.memory_bytes


def _memory_bytes(
    settings: ViewSettings, sample: Sample, points: Sequence[Point], current: Mapping[str, Offer]
) -> float | None:
    """Memory of the current settings, computed as that of the points.

    Bytes of offers of different structures do not compare: each leaves out what the rows share.

    Returns
    -------
    None if no curve has such settings.
    """
    features = [settings.features[name] for name in sample.features]
    kinds, goals = {offer.kind for offer in current.values()}, {feature.target for feature in features}
    if any(feature.vocabulary is not None for feature in features):
        return None
    if kinds == {SETS}:
        return next((point.memory_bytes for point in points if point.curve == SETS), None)
    if kinds != {BLOOM} or len(goals) != 1:
        return None
    goal = goals.pop()
    assert isinstance(goal, Goal)
    if goal.measure == ERROR_RATE and goal.structure in (AUTO, BLOOM):
        return bloom(sample, goal.amount).point.memory_bytes
    if goal.measure == NOISE_RATIO and goal.structure == WEIGHTED_BLOOM and not goal.clusters:
        return weighted_bloom(sample, goal.amount).point.memory_bytes
    return None


def offers(settings: ViewSettings, sample: Sample) -> dict[str, Offer]:
    """How a seal of the whole view would keep the membership features."""
    filled = sample.num_filled(sample.everything)
    goals, popularity = {}, {}
    for name, counts in sample.full_counts.items():
        target = settings.features[name].target
        assert isinstance(target, Goal)  # as for every collection
        num_without = sample.num_entities - filled[name]
        goals[name] = target
        popularity[name] = Popularity(counts.clip(max=filled[name]), sample.num_entities, num_without)
    overhead = LayerOverhead.rows(sample.num_entities, sample.presence_error_rate, settings.lists_rows)
    return StructureSelector(goals, popularity, overhead).offers()


def _with_tags(field: Any, tags: Mapping[str, str] | None) -> Any:
    if tags is None:
        return field
    new = copy.copy(field)
    new.tags = {**tags_beside(field, REPLACED), **tags}
    return new
