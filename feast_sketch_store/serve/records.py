"""What Feast's server writes down about an answered request: metrics, audit records, runs of MLflow.

Feast's own functions write it, with the fields that Feast's server gives them.
"""

import asyncio
import functools
import logging
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

from feast import FeatureService, FeatureStore

from feast_sketch_store import feast_parts
from feast_sketch_store.adapter.plans import Plan, Question
from feast_sketch_store.serve.guard import Grant

_logger = logging.getLogger(__name__)

PATH = "/get-online-features"


class Labels(NamedTuple):
    """Labels of a request in Feast's metrics."""

    feature_count: str
    view_count: str


class Records:
    """Writes down answered requests. ``feast_app`` has the audit log once it has started. Used from one event
    loop.
    """

    def __init__(self, store: FeatureStore, feast_app: Any):
        self._store, self._feast_app = store, feast_app
        options = getattr(store.config, "feature_server", None)
        self._metrics = getattr(options, "metrics", None)
        self._has_audit_log = getattr(getattr(options, "audit_logging", None), "enabled", False)
        mlflow = getattr(store.config, "mlflow", None)
        self._has_mlflow = getattr(mlflow, "enabled", False) and getattr(mlflow, "auto_log", False)

    @functools.cached_property
    def _bins(self) -> list[int] | None:
        """Ranges of numbers of features, which label requests; None before Feast 0.67, which has none."""
        return getattr(self._metrics or feast_parts.METRICS_CONFIG(), "feature_count_bins", None)

    def why_not(self) -> str:
        """The reason why requests cannot be written down; empty if they can."""
        parts = [*feast_parts.SERVER]
        parts += feast_parts.AUDIT_LOG if self._has_audit_log else ()
        parts += feast_parts.MLFLOW if self._has_mlflow else ()
        if reason := feast_parts.changed(tuple(parts), feast_parts.FEASTS_SERVER):
            return reason
        binning = () if self._bins is None else (feast_parts.BIN_FEATURE_COUNT,)
        return feast_parts.changed(binning, feast_parts.FEASTS_SERVER)

    def labels(self, plan: Plan) -> Labels:
        """The labels of the requests of a plan."""
        feature_count, view_count = feast_parts.FEATURE_COUNTS(plan.features)
        if self._bins is not None:
            feature_count = feast_parts.BIN_FEATURE_COUNT(int(feature_count), self._bins)
        return Labels(feature_count, view_count)

    def write(
        self,
        scope: Mapping[str, Any],
        question: Question,
        plan: Plan,
        labels: Labels,
        grant: Grant,
        num_entities: int,
        started: float,
        read_seconds: float,
    ) -> None:
        """Write down a request that was answered: it came when `time.monotonic` was ``started``, and its read
        took ``read_seconds``.
        """
        feast_parts.COUNT_ENTITIES(num_entities)
        flags = feast_parts.METRICS_FLAGS.value
        if flags.audit_logging:
            request = SimpleNamespace(entities=dict.fromkeys(question.columns))
            of_read = ("success", read_seconds * 1000.0)
            grant.run(feast_parts.AUDIT_READ, request, plan.features, num_entities, *of_read)
        if self._has_mlflow and self._store.mlflow is not None:
            given = (self._store, plan.features, num_entities, read_seconds)
            asyncio.get_running_loop().run_in_executor(None, _log_to_mlflow, *given)
        if self._has_audit_log:
            self._log_request(scope, grant, started)
        if flags.request:
            latency = feast_parts.REQUEST_LATENCY.value.labels(
                endpoint=PATH, feature_count=labels.feature_count, feature_view_count=labels.view_count
            )
            latency.observe(time.monotonic() - started)
            feast_parts.REQUEST_COUNT.value.labels(endpoint=PATH, status="success").inc()

    def _log_request(self, scope: Mapping[str, Any], grant: Grant, started: float) -> None:
        from starlette.requests import Request

        request = Request(scope)  # type: ignore[arg-type]
        log = getattr(self._feast_app.state, "audit_logger", None)
        if log is None:  # Feast's app has not started, or has no log; its middleware writes nothing then
            return
        kind, actions = feast_parts.AUDIT_RESOURCES.value[PATH]
        log.log_http_request(
            request_id=request.headers.get("x-request-id") or log.new_request_id(),
            method=request.method,
            path=PATH,
            principal=grant.run(feast_parts.AUDIT_PRINCIPAL, request),
            source=feast_parts.AUDIT_SOURCE.value(ip=feast_parts.AUDIT_IP(request), transport="http"),
            resource=feast_parts.AUDIT_RESOURCE.value(type=kind, actions=list(actions)),
            outcome="success",
            duration_ms=round((time.monotonic() - started) * 1000.0, 2),
            status_code=200,
        )


def _log_to_mlflow(store: FeatureStore, features: Any, num_entities: int, seconds: float) -> None:
    """What `FeatureStore.get_online_features_async` logs after a read, in a thread like there."""
    try:
        references = feast_parts.FEATURE_REFERENCES(store.registry, store.project, features, True)
        service = features if isinstance(features, FeatureService) else None
        name = feast_parts.SERVICE_NAME.of(store)(references) if service is None else service.name
        store.mlflow.log_feature_retrieval(
            feature_refs=references,
            entity_count=num_entities,
            duration_seconds=seconds,
            retrieval_type="online",
            feature_service=service,
            feature_service_name=name,
        )
    except Exception as error:
        _logger.debug("a read was not logged to MLflow: %r", error)
