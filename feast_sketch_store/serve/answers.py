"""Answers to ``POST /get-online-features``, byte for byte those of Feast's feature server."""

import json
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from feast import FeatureStore
from feast.protos.feast.serving.ServingService_pb2 import GetOnlineFeaturesResponse

from feast_sketch_store import feast_parts, kernel
from feast_sketch_store.adapter.plans import Plan, Plans, Question, columns_of, refresh
from feast_sketch_store.online_store import SketchOnlineStore
from feast_sketch_store.serve.guard import Guard
from feast_sketch_store.serve.records import Labels, Records

_logger = logging.getLogger(__name__)

_NO_MOMENT = '"1970-01-01T00:00:00Z"'  # of what a request has itself

# As Starlette does.
_to_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class _Fixed(NamedTuple):
    """What does not depend on the entities: the text after the vectors, and labels of metrics."""

    end: bytes
    labels: Labels


class Answers:
    """Answers requests of one store from prepared rows. Used from one event loop."""

    def __init__(self, store: FeatureStore, online: SketchOnlineStore, guard: Guard, records: Records):
        self._store, self._guard, self._records = store, guard, records
        self._plans = Plans(online.views, store.config)
        self._fixed: WeakKeyDictionary[Plan, _Fixed] = WeakKeyDictionary()

    async def to(self, scope: Mapping[str, Any], body: bytes) -> bytes | None:
        """Answer the body of a request; None if Feast must answer, or raise its error."""
        started = time.monotonic()
        asked = read_body(body)
        if asked is None:
            return None
        question, columns = asked
        try:
            grant = await self._guard.grant(scope, question)
            plan = None if grant is None else self._plan(question)
            if grant is None or plan is None or not plan.takes(columns):
                return None
            began = time.monotonic()
            await refresh(asked.view for asked in plan.views)
            answers = plan.read(columns)
        except Exception as error:  # the question or the storage is at fault, and Feast reports it
            _logger.debug("Feast's server answers: %r", error)
            return None
        vectors = [] if answers is None else [kernel.vectors_to_json(message) for message, _ in answers]
        if answers is None or None in vectors:
            return None
        number, fixed = len(columns[0]), self._fixed[plan]
        read_seconds = time.monotonic() - began
        plan.count(answers, number, read_seconds)
        body = b",".join((b'{"results":[' + _of_request(columns), *vectors)) + fixed.end  # type: ignore[arg-type]
        self._records.write(scope, question, plan, fixed.labels, grant, number, started, read_seconds)
        return body

    def _plan(self, question: Question) -> Plan | None:
        store, registry, project = self._store, self._store.registry, self._store.project
        if question.feature_service:
            # As in Feast's server, a registry file that changed is loaded now.
            registry.get_project(project, allow_cache=True)

        def features() -> Any:
            if question.feature_service:
                return registry.get_feature_service(question.feature_service, project, allow_cache=True)
            return list(question.features)

        plan = self._plans.of(question, features, registry, project, store.config)
        if plan is not None and plan not in self._fixed:
            self._fixed[plan] = _Fixed(_end(plan), self._records.labels(plan))
        return plan


def _end(plan: Plan) -> bytes:
    """The text after the vectors in an answer."""
    metadata = feast_parts.RESPONSE_TO_DICT(GetOnlineFeaturesResponse.FromString(plan.response))["metadata"]
    return f'],"metadata":{_to_json(metadata)}}}'.encode()


def read_body(body: bytes) -> tuple[Question, list[list[Any]]] | None:
    """What a request asks for, and its entities by column; None if it is not a plain read.

    There is at least one column, and all have the same number of values, one or more.
    """
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        return None
    entities: Any = request.get("entities") if isinstance(request, dict) else None
    columns = columns_of(entities) if isinstance(entities, dict) else None
    question = None if columns is None else _question(request, columns)
    return None if columns is None or question is None else (question, list(columns.values()))


def _question(request: dict[str, Any], columns: Mapping[str, Any]) -> Question | None:
    service: Any = request.get("feature_service")
    features: Any = request.get("features", [])
    full: Any = request.get("full_feature_names", False)
    with_versions: Any = request.get("include_feature_view_version_metadata", False)
    if not isinstance(features, list) or not all(isinstance(feature, str) for feature in features):
        return None
    if not (service is None or isinstance(service, str)) or not (service or features):
        return None
    if not isinstance(full, bool) or not isinstance(with_versions, bool):
        return None
    return Question(service or "", () if service else tuple(features), full, with_versions, tuple(columns))


def _of_request(columns: Sequence[Sequence[Any]]) -> bytes:
    """The vectors of the entities themselves."""
    number = len(columns[0])
    statuses, moments = ",".join(['"PRESENT"'] * number), ",".join([_NO_MOMENT] * number)
    end = f',"statuses":[{statuses}],"event_timestamps":[{moments}]}}'
    return ",".join(f'{{"values":{_to_json(values)}{end}' for values in columns).encode()
