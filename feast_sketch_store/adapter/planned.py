"""Answers to requests that have a plan, with one call of the kernel per view."""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from feast import FeatureService, FeatureView
from feast.infra.registry.base_registry import BaseRegistry
from feast.online_response import OnlineResponse
from feast.protos.feast.serving.ServingService_pb2 import FieldStatus, GetOnlineFeaturesResponse
from feast.protos.feast.types.Value_pb2 import Value
from feast.repo_config import RepoConfig
from google.protobuf.timestamp_pb2 import Timestamp

from feast_sketch_store import feast_parts
from feast_sketch_store.adapter.plans import Plan, Plans, Question
from feast_sketch_store.adapter.responses import read_vectors
from feast_sketch_store.view.view import View

Columns = Sequence[Sequence[Any]]
ViewVectors = list[tuple[bytes, int]]  # of each view its vectors, and how many values are present


def columns_of(entity_rows: Any) -> dict[str, list[Any]] | None:
    """The entities of a request by column: at least one column, all of one length. None if the request is
    unusual.
    """
    if isinstance(entity_rows, list):
        if not entity_rows or not all(isinstance(row, Mapping) for row in entity_rows):
            return None
        columns = {name: [row.get(name) for row in entity_rows] for name in entity_rows[0]}
        if any(row.keys() != columns.keys() for row in entity_rows):
            return None
    else:
        columns = entity_rows
        if not isinstance(columns, Mapping) or not all(type(column) is list for column in columns.values()):
            return None
    numbers = {len(column) for column in columns.values()}
    return dict(columns) if len(numbers) == 1 and numbers != {0} else None


def question_of(
    features: Any, columns: Mapping[str, Any], full: bool, with_versions: bool
) -> Question | None:
    """What a request asks for, without its entities; None if the request is unusual."""
    if isinstance(features, FeatureService):
        return Question(features.name, (), full, with_versions, tuple(columns))
    if not isinstance(features, list) or not features or {*map(type, features)} != {str}:
        return None
    return Question("", tuple(features), full, with_versions, tuple(columns))


def takes(plan: Plan, columns: Columns) -> bool:
    """Whether Feast would take all entities as they are, without a conversion."""
    return all(column.takes(values) for column, values in zip(plan.columns, columns, strict=True))


async def refresh(views: Iterable[View]) -> None:
    """Look at the disk in a thread, for each view whose refresh is due."""
    for view in views:
        if not view.is_fresh():
            await asyncio.to_thread(view.current)


def read(plan: Plan, columns: Columns) -> ViewVectors | None:
    """The answers of all views; None if Feast must answer, because it hashes entities that cannot be hashed
    here."""
    hashes = [keys.hashes(columns) for keys in plan.keys]
    if None in hashes:
        return None
    return [
        read_vectors(view, name, features, hashes[number], ttl)  # type: ignore[arg-type]
        for view, name, features, number, ttl in plan.views
    ]


def rehearse(plans: Plans, table: FeatureView, registry: BaseRegistry, config: RepoConfig) -> None:
    """Plan a request for all features of a view, and read no entity.

    Its first request then finds what Feast and this package load and prepare when they first need it.
    """
    features = [f"{table.name}:{feature.name}" for feature in table.features]
    columns = tuple(column.name for column in table.entity_columns)
    question = Question("", tuple(features), False, False, columns)
    plan = plans.of(question, lambda: features, registry, config.project, config)
    if plan is not None:
        read(plan, [[] for _ in columns])


def count(plan: Plan, answers: ViewVectors, num_entities: int, seconds: float) -> None:
    """Count an answered read in Feast's metrics."""
    count_statuses = feast_parts.COUNT_STATUSES.value
    for asked, (_, num_present) in zip(plan.views, answers, strict=True):
        count_statuses(asked.name, num_present, num_entities * len(asked.features) - num_present)
    feast_parts.COUNT_READ(seconds)


def respond(plan: Plan, columns: Columns) -> OnlineResponse | None:
    """The response of ``get_online_features``; None if Feast must answer."""
    began = time.monotonic()
    answers = read(plan, columns)
    if answers is None:
        return None
    response = GetOnlineFeaturesResponse.FromString(plan.response)
    number = len(columns[0])
    for column, values in zip(plan.columns, columns, strict=True):
        response.results.add(
            values=[Value(**{column.kind: value}) for value in values],
            statuses=[FieldStatus.PRESENT] * number,
            event_timestamps=[Timestamp()] * number,
        )
    response.MergeFromString(b"".join([message for message, _ in answers]))
    count(plan, answers, number, time.monotonic() - began)
    return OnlineResponse(response, feature_types=dict(plan.feature_types))
