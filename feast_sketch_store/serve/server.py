"""Runs the app in worker processes of gunicorn, as ``feast serve`` runs Feast's."""

import gc
from contextlib import nullcontext
from typing import Any

from feast import FeatureStore, metrics

from feast_sketch_store import feast_parts
from feast_sketch_store.operations.exporting import exported_by_child
from feast_sketch_store.serve.app import over_feast, set_up_security


def run(
    store: FeatureStore, *, metrics_port: int = 8000, auth_cache_seconds: float = 0.0, **options: Any
) -> None:
    """Serve until interrupted.

    Parameters
    ----------
    metrics_port : where metrics are exported, on the host of the server.
    auth_cache_seconds : see `Guard`.
    options : those of `FeatureStore.serve`, all of them.

    Raises
    ------
    SketchStoreError : metrics cannot be exported there.
    """
    configured = getattr(getattr(store.config, "feature_server", None), "metrics", None)
    has_metrics = options["metrics"] or getattr(configured, "enabled", False)
    if feast_parts.changed(feast_parts.SERVING, feast_parts.FEASTS_SERVER):
        store.serve(**options)
        return
    exporting = exported_by_child(options["host"], metrics_port) if has_metrics else nullcontext()
    with exporting:
        if has_metrics:
            # What Feast's `start_metrics_server` does, but that one listens on all interfaces.
            metrics._config = feast_parts.BUILD_METRICS_FLAGS(configured)
        set_up_security(store)
        application = feast_parts.APPLICATION.value(store, has_metrics, **_of_gunicorn(options))
        feasts = application.load

        def load() -> Any:
            app = over_feast(store, feasts(), auth_cache_seconds)
            # Exclude Feast's objects from garbage collection, which would delay a request by 0.1 s.
            gc.collect()
            gc.freeze()
            return app

        application.load = load
        application.run()


def _of_gunicorn(options: dict[str, Any]) -> dict[str, Any]:
    """The settings of gunicorn, and ``registry_ttl_sec``, that `FeatureStore.serve` makes of its options."""
    same = ("workers", "worker_connections", "max_requests", "max_requests_jitter", "registry_ttl_sec")
    return {name: options[name] for name in same} | {
        "bind": f"{options['host']}:{options['port']}",
        "accesslog": None if options["no_access_log"] else "-",
        "keepalive": options["keep_alive_timeout"],
        "keyfile": options["tls_key_path"] or None,
        "certfile": options["tls_cert_path"] or None,
    }
