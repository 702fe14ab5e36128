"""Plans of requests, each worked out once: views, join keys, and the constant parts of the answer.

Feast works most of this out again for each request. A plan holds until Feast's registry expires or is loaded
again. It answers with one call of the kernel per view.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from feast import FeatureService, FeatureView, ValueType
from feast.infra.registry.base_registry import BaseRegistry
from feast.online_response import OnlineResponse
from feast.protos.feast.serving.ServingService_pb2 import FieldStatus, GetOnlineFeaturesResponse
from feast.protos.feast.types.Value_pb2 import Value
from feast.repo_config import RepoConfig
from google.protobuf.timestamp_pb2 import Timestamp

from feast_sketch_store import feast_parts
from feast_sketch_store.adapter.open_views import OpenViews
from feast_sketch_store.adapter.responses import add_names, read_vectors
from feast_sketch_store.rows.entity_keys import JOIN_KEY_TYPES, SingleKeys, hash_int64_keys
from feast_sketch_store.settings.resolve import asked_join_keys, own_fields, ttl_microseconds
from feast_sketch_store.view.view import View

_MAX_PLANS = 1_000  # kept at once
_KINDS = {ValueType.INT64: "int64_val", ValueType.INT32: "int32_val", ValueType.STRING: "string_val"}
_BOUNDS = {"int64_val": 2**63, "int32_val": 2**31}

Columns = Sequence[Sequence[Any]]
ViewVectors = list[tuple[bytes, int]]  # of each view its vectors, and how many values are present


class Question(NamedTuple):
    """What a request asks for, without its entities. ``columns`` are the entities' join keys, in order."""

    feature_service: str
    features: tuple[str, ...]
    full_feature_names: bool
    with_versions: bool
    columns: tuple[str, ...]


def columns_of(entity_rows: Any) -> dict[str, list[Any]] | None:
    """The entities of a request by column: at least one column, all of one length. None if the request is
    unusual.
    """
    if isinstance(entity_rows, list):
        if {*map(type, entity_rows)} != {dict}:
            return None
        columns = {name: [row.get(name) for row in entity_rows] for name in entity_rows[0]}
        if any(row.keys() != columns.keys() for row in entity_rows[1:]):
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


async def refresh(views: Iterable[View]) -> None:
    """Poll the disk in a thread, for each view whose refresh is due."""
    for view in views:
        if not view.is_fresh():
            await asyncio.to_thread(view.current)


class Column:
    """A column of entities in a field of Feast's ``Value``, and the values that it may have here."""

    def __init__(self, kind: str):
        self.kind = kind
        self._types = {str if kind == "string_val" else int}
        self._bound = _BOUNDS.get(kind)

    def takes(self, values: Sequence[Any]) -> bool:
        """Whether Feast would take the values unchanged. It converts some other values and refuses the
        rest.
        """
        if {*map(type, values)} != self._types:
            return False
        return self._bound is None or -self._bound <= min(values) <= max(values) < self._bound


class Keys:
    """Join keys of one or more views: the number of each one's column, and the kinds of all columns."""

    def __init__(self, places: Mapping[str, int], kinds: Sequence[str]):
        self._places = dict(places)
        self._keys = SingleKeys({name: JOIN_KEY_TYPES[kinds[place]] for name, place in places.items()})
        names = list(places)
        self._int64_name = names[0] if [kinds[place] for place in places.values()] == ["int64_val"] else None

    def hashes(self, columns: Columns) -> bytes | None:
        """The hashes of all entities, 16 bytes each; None if an entity cannot be hashed here."""
        if len(self._places) == 1:
            (place,) = self._places.values()
            entities: Sequence[Any] = columns[place]
        else:
            rows = zip(*(columns[place] for place in self._places.values()), strict=True)
            entities = [dict(zip(self._places, row, strict=True)) for row in rows]
        if len(entities) > 1 and self._int64_name is not None:
            return hash_int64_keys(self._int64_name, np.array(entities, np.int64)).tobytes()
        hashes = [self._keys.hash(entity) for entity in entities]
        return None if None in hashes else b"".join(hashes)  # type: ignore[arg-type]


class ViewPlan(NamedTuple):
    """The part of a request that concerns one view. ``keys`` is the index of its join keys in the plan."""

    view: View
    name: str
    features: tuple[str, ...]
    keys: int
    ttl_microseconds: int | None


@dataclass(frozen=True, eq=False)
class Plan:
    """How a request is answered.

    ``features`` is what was asked for. ``response`` is the constant part of all answers in wire format: the
    names of features and the versions of views.
    """

    features: list[str] | FeatureService
    columns: tuple[Column, ...]
    keys: tuple[Keys, ...]
    views: tuple[ViewPlan, ...]
    response: bytes
    feature_types: Mapping[str, ValueType]

    def takes(self, columns: Columns) -> bool:
        """Whether Feast would take all entities without a conversion."""
        return all(map(Column.takes, self.columns, columns))

    def read(self, columns: Columns) -> ViewVectors | None:
        """The answers of all views; None if Feast must answer, because it hashes entities that cannot be
        hashed here, or another store has values."""
        hashes = [keys.hashes(columns) for keys in self.keys]
        if None in hashes:
            return None
        answers = []
        for view, name, features, number, ttl in self.views:
            answer = read_vectors(view, name, features, hashes[number], ttl)  # type: ignore[arg-type]
            if answer is None:
                return None
            answers.append(answer)
        return answers

    def count(self, answers: ViewVectors, num_entities: int, seconds: float) -> None:
        """Count an answered read in Feast's metrics."""
        count_statuses = feast_parts.COUNT_STATUSES.value
        for asked, (_, num_present) in zip(self.views, answers, strict=True):
            count_statuses(asked.name, num_present, num_entities * len(asked.features) - num_present)
        feast_parts.COUNT_READ(seconds)

    def respond(self, columns: Columns) -> OnlineResponse | None:
        """The response of ``get_online_features``; None if Feast must answer."""
        began = time.monotonic()
        answers = self.read(columns)
        if answers is None:
            return None
        response = GetOnlineFeaturesResponse.FromString(self.response)
        number = len(columns[0])
        for column, values in zip(self.columns, columns, strict=True):
            response.results.add(
                values=[Value(**{column.kind: value}) for value in values],
                statuses=[FieldStatus.PRESENT] * number,
                event_timestamps=[Timestamp()] * number,
            )
        response.MergeFromString(b"".join([message for message, _ in answers]))
        self.count(answers, number, time.monotonic() - began)
        return OnlineResponse(response, feature_types=dict(self.feature_types))


class _Known(NamedTuple):
    """Plans, and the objects that they depend on. The plans hold while these objects are the same."""

    registry: Any
    created: Any  # when the registry was loaded
    version: str  # of its content, which this process may have changed since
    config: RepoConfig | None
    plans: dict[tuple[str, Question], Plan | None]  # by project, too, which Feast may change between calls


class Plans:
    """The plans of a store's requests. Safe to use from several threads.

    Parameters
    ----------
    views : those that requests are for, and that plans keep as long as they are open.
    config : the one that all requests have; None if requests may have others. Then the first request of each
        configuration has no plan, because Feast's hybrid store makes a new configuration for each request.
    """

    def __init__(self, views: OpenViews, config: RepoConfig | None = None):
        self._views = views
        self._known = _Known(None, None, "", config, {})

    def of(
        self,
        question: Question,
        features: Callable[[], list[str] | FeatureService],
        registry: Any,
        project: str,
        config: RepoConfig,
    ) -> Plan | None:
        """The plan of a question, whose ``features`` a call returns; None if it has to be answered in Feast's
        way. Raises Exception: whatever Feast raises for a wrong question.
        """
        created = getattr(registry, "cached_registry_proto_created", None)
        if created is None or not registry.is_cache_valid():
            return None
        known = self._known
        if known.config is not config:
            self._known = _Known(None, None, "", config, {})
            return None
        version = registry.cached_registry_proto.version_id
        is_same = known.registry is registry and known.created is created and known.version == version
        if not is_same or len(known.plans) >= _MAX_PLANS:
            self._known = known = _Known(registry, created, version, config, {})
        key = project, question
        plan = known.plans.get(key)
        if plan is None and key in known.plans:
            return None
        if plan is None or not all(self._views.has(asked.view) for asked in plan.views):
            plan = known.plans[key] = self._made(question, features(), registry, project, config)
        return plan

    def rehearse(self, table: FeatureView, registry: BaseRegistry, config: RepoConfig) -> None:
        """Plan a request for all features of a view, and read no entity.

        Its first request then finds what Feast and this package load and prepare when they first need it.
        """
        columns = tuple(column.name for column in table.entity_columns)
        features = [f"{table.name}:{field.name}" for field in own_fields(table)]
        question = Question("", tuple(features), False, False, columns)
        plan = self.of(question, lambda: features, registry, config.project, config)
        if plan is not None:
            plan.read([[] for _ in columns])

    def _made(
        self, question: Question, features: Any, registry: Any, project: str, config: RepoConfig
    ) -> Plan | None:
        context = feast_parts.request_context(registry, project, features, question.full_feature_names)
        if context is None:
            return None
        _, on_demand, join_key_of, types, join_keys, groups, asked, request_data, is_entityless = context
        kinds = [_KINDS[types[name]] for name in question.columns if types.get(name) in _KINDS]
        if on_demand or request_data or is_entityless or len(kinds) != len(question.columns):
            return None
        response = GetOnlineFeaturesResponse()
        response.metadata.feature_names.val.extend(question.columns)
        for table, of_view in groups:
            add_names(response, table, of_view, question.full_feature_names, question.with_versions)
        names = {*response.metadata.feature_names.val}
        if not {*question.columns} <= join_keys or not names <= asked | {*question.columns}:
            return None
        keys: dict[tuple[tuple[str, int], ...], int] = {}
        views = []
        numbers: dict[str, Any] = {name: number for number, name in enumerate(question.columns)}
        for table, of_view in groups:
            places: dict[str, Any] = feast_parts.JOIN_KEY_VALUES(table, join_key_of, numbers)
            if len(places) != len(table.entities) or not places or asked_join_keys(table, of_view):
                return None
            view = self._views.get(config, table)
            if not view.with_state(lambda state: state.backed).isdisjoint(of_view):
                return None  # another store has values
            number = keys.setdefault(tuple(places.items()), len(keys))
            ttl = ttl_microseconds(config.online_store, table)
            views.append(ViewPlan(view, table.name, tuple(of_view), number, ttl))
        return Plan(
            features,
            tuple(map(Column, kinds)),
            tuple(Keys(dict(places), kinds) for places in keys),
            tuple(views),
            response.SerializeToString(),
            feast_parts.FEATURE_TYPES(groups),
        )
