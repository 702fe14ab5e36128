"""Runs the app in worker processes of gunicorn, as ``feast serve`` runs Feast's."""

import gc
from contextlib import nullcontext
from typing import Any

from feast import FeatureStore, metrics
from feast.feature_server import FeastServeApplication

from feast_sketch_store import feast_parts
from feast_sketch_store.operations.exporting import exported_by_child
from feast_sketch_store.serve.app import over_feast
from feast_sketch_store.serve.security import set_up_security


class _Application(FeastServeApplication):
    """Feast's gunicorn application, with another app in its workers."""

    def __init__(self, store: FeatureStore, metrics_enabled: bool, auth_cache_seconds: float, **options: Any):
        self._repository, self._auth_cache_seconds = store, auth_cache_seconds
        super().__init__(store, metrics_enabled, **options)

    def load(self) -> Any:
        feast_app = super().load()  # type: ignore[no-untyped-call]
        app = over_feast(self._repository, feast_app, self._auth_cache_seconds)
        # Exclude Feast's objects from garbage collection, which would delay a request by 0.1 s.
        gc.collect()
        gc.freeze()
        return app


def run(
    store: FeatureStore,
    *,
    with_metrics: bool = False,
    metrics_host: str = "127.0.0.1",
    metrics_port: int = 8000,
    auth_cache_seconds: float = 0.0,
    **options: Any,
) -> None:
    """Serve until interrupted.

    Parameters
    ----------
    with_metrics : whether metrics are exported, whatever ``feature_store.yaml`` says.
    metrics_host, metrics_port : where metrics are exported.
    auth_cache_seconds : see `Guard`.
    options : settings of gunicorn, and ``registry_ttl_sec``: seconds after which Feast's registry is loaded
        again.

    Raises
    ------
    SketchStoreError : metrics cannot be exported there.
    """
    configured = getattr(getattr(store.config, "feature_server", None), "metrics", None)
    has_metrics = with_metrics or getattr(configured, "enabled", False)
    exporting = exported_by_child(metrics_host, metrics_port) if has_metrics else nullcontext()
    with exporting:
        if has_metrics:
            # What Feast's `start_metrics_server` does, but that one listens on all interfaces.
            metrics._config = feast_parts.BUILD_METRICS_FLAGS(configured)
        set_up_security(store)
        _Application(store, has_metrics, auth_cache_seconds, **options).run()
