"""Answers to ``POST /get-online-features``, byte for byte those of Feast's feature server."""

import asyncio
import json
import logging
import time
from collections.abc import Sequence
from typing import Any

from feast import FeatureStore
from feast import metrics as feast_metrics
from feast.permissions.security_manager import get_security_manager

from feast_sketch_store import kernel
from feast_sketch_store.adapter.responses import MAX_VECTOR_BYTES, STATUSES
from feast_sketch_store.online_store import SketchOnlineStore
from feast_sketch_store.rows.codecs import VALUE
from feast_sketch_store.serve.plans import Plan, Plans, Question, to_json
from feast_sketch_store.view.live import expire_before_of

_logger = logging.getLogger(__name__)

PATH = "/get-online-features"
_STATUSES = STATUSES[: VALUE + 1]
_NO_MOMENT = '"1970-01-01T00:00:00Z"'  # of what a request has itself

# Of each view: how many values are present, and how many rows there are.
_Counts = list[tuple[int, int]]


class Answers:
    """Answers requests of one store from prepared rows.

    Parameters
    ----------
    online : the online store of ``store``.
    """

    def __init__(self, store: FeatureStore, online: SketchOnlineStore):
        self._plans = Plans(store, online)

    async def to(self, body: bytes) -> bytes | None:
        """The answer to the body of a request; None if Feast must answer, errors included."""
        started = time.monotonic()
        if get_security_manager() is not None or feast_metrics._config.audit_logging:
            return None
        asked = read_body(body)
        if asked is None:
            return None
        question, columns = asked
        try:
            plan = self._plans.of(question)
        except Exception as error:  # the question is wrong: Feast says so in its own words
            _logger.debug("Feast's server answers: %r", error)
            return None
        if plan is None or not all(c.takes(values) for c, values in zip(plan.columns, columns, strict=True)):
            return None
        began = time.monotonic()
        for view_plan in plan.views:
            if not view_plan.view.is_fresh():
                try:
                    await asyncio.to_thread(view_plan.view.current)
                except Exception as error:  # as above
                    _logger.debug("Feast's server answers: %r", error)
                    return None
        read = read_views(plan, columns)
        if read is None:
            return None
        vectors, counts = read
        _count(plan, len(columns[0]), counts, began, started)
        return b",".join((b'{"results":[' + _of_request(columns), *vectors)) + plan.end


def read_body(body: bytes) -> tuple[Question, list[list[Any]]] | None:
    """What a request asks for, and its entities by column; None if it is not a plain one.

    There is at least one column, and all have the same number of values, one or more.
    """
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(request, dict):
        return None
    entities: Any = request.get("entities")
    if not isinstance(entities, dict) or not all(isinstance(column, list) for column in entities.values()):
        return None
    columns = list(entities.values())
    if len({*map(len, columns)}) != 1 or not columns[0]:
        return None
    question = _question(request, tuple(entities))
    return None if question is None else (question, columns)


def _question(request: dict[str, Any], names: tuple[str, ...]) -> Question | None:
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
    return Question(service or "", () if service else tuple(features), full, with_versions, names)


def read_views(plan: Plan, columns: Sequence[Sequence[Any]]) -> tuple[list[bytes], _Counts] | None:
    """The vectors of all views as JSON, and what there is to count; None if only the usual way tells."""
    hashes = [keys.hashes(columns) for keys in plan.keys]
    vectors: list[bytes] = []
    counts: _Counts = []
    for view, _, features, number, ttl in plan.views:
        rows, of_entities = view.current().prepared(features), hashes[number]
        if rows is None or of_entities is None:
            return None
        answer = rows.vectors(of_entities, expire_before_of(ttl), _STATUSES, MAX_VECTOR_BYTES)
        if answer is None:
            return None
        message, num_present, num_found = answer
        vector = kernel.vectors_to_json(message)
        if vector is None:
            return None
        vectors.append(vector)
        counts.append((num_present, num_found))
    return vectors, counts


def _of_request(columns: Sequence[Sequence[Any]]) -> bytes:
    """The vectors of the entities themselves."""
    number = len(columns[0])
    statuses, moments = ",".join(['"PRESENT"'] * number), ",".join([_NO_MOMENT] * number)
    end = f',"statuses":[{statuses}],"event_timestamps":[{moments}]}}'
    return ",".join(f'{{"values":{to_json(values)}{end}' for values in columns).encode()


def _count(plan: Plan, num_entities: int, counts: _Counts, began: float, started: float) -> None:
    """Count a request that was answered, in Feast's metrics and in those of the views."""
    now, recorded = time.monotonic(), feast_metrics._config
    for view_plan, (num_present, num_found) in zip(plan.views, counts, strict=True):
        view_plan.view.metrics.count_read(num_entities, num_found)
        num_values = num_entities * len(view_plan.features)
        feast_metrics.track_feature_statuses(view_plan.name, num_present, num_values - num_present)
    if recorded.online_features:
        feast_metrics.track_online_features_entities(num_entities)
        feast_metrics.track_online_store_read(now - began)
    if recorded.request:
        feature_count, view_count = plan.labels
        latency = feast_metrics.request_latency.labels(
            endpoint=PATH, feature_count=feature_count, feature_view_count=view_count
        )
        latency.observe(time.monotonic() - started)
        feast_metrics.request_count.labels(endpoint=PATH, status="success").inc()
