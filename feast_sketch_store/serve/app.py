"""The ASGI app: Feast's own, with reads of this store answered before it; and the workers that run it."""

import gc
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from contextlib import nullcontext
from typing import Any

from feast import FeatureStore, metrics
from feast.constants import DEFAULT_FEATURE_SERVER_REGISTRY_TTL
from feast.infra.passthrough_provider import PassthroughProvider
from feast.infra.registry.base_registry import BaseRegistry

from feast_sketch_store import feast_parts
from feast_sketch_store.online_store import SketchOnlineStore, online_store_of
from feast_sketch_store.operations.metrics_endpoint import exported_by_child
from feast_sketch_store.serve.answers import Answers
from feast_sketch_store.serve.guard import Guard
from feast_sketch_store.serve.records import PATH, Records

_logger = logging.getLogger(__name__)

REPOSITORY = "FEAST_SKETCH_STORE_REPOSITORY"  # in the environment: the folder of the feature repository

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], _Receive, _Send], Awaitable[None]]


def create_app(
    store: FeatureStore | None = None,
    registry_ttl_sec: int = DEFAULT_FEATURE_SERVER_REGISTRY_TTL,
    auth_cache_seconds: float = 0.0,
) -> App:
    """Make the app for an ASGI server: ``uvicorn --factory feast_sketch_store.serve:create_app``.

    Parameters
    ----------
    store : a feature repository; None for that in the folder that ``FEAST_SKETCH_STORE_REPOSITORY`` names in
        the environment, or else in the current folder.
    registry_ttl_sec : seconds after which Feast's registry is loaded again.
    auth_cache_seconds : see `Guard`.
    """
    if store is None:
        store = FeatureStore(repo_path=os.environ.get(REPOSITORY, "."))
        set_up_security(store)
    return over_feast(store, feast_parts.APP(store, registry_ttl_sec), auth_cache_seconds)


def set_up_security(store: FeatureStore) -> None:
    """Authenticate requests as the repository's ``auth`` section says, as ``feast serve`` does."""
    auth = store.config.auth_config
    kind = feast_parts.AUTH_KIND(auth.type)
    feast_parts.INIT_SECURITY(kind, store)
    feast_parts.INIT_AUTH(feast_parts.SERVER_TYPE.value.REST, kind, auth)


def over_feast(store: FeatureStore, feast_app: App, auth_cache_seconds: float = 0.0) -> App:
    """Make the app that answers plain reads, and passes the rest to Feast's app of the same repository.

    If it could answer nothing, it returns Feast's app and logs a warning with the reason.
    """
    guard, records = Guard(store, auth_cache_seconds), Records(store, feast_app)
    reason = why_not(store) or guard.why_not() or records.why_not()
    if reason:
        _logger.warning("project %r: Feast's own server answers all requests: %s", store.project, reason)
        return feast_app
    return FeatureServer(Answers(store, online_store_of(store), guard, records), feast_app)


def why_not(store: FeatureStore) -> str:
    """The reason why no request of a repository can be answered here; empty if some can."""
    if feast_parts.reads_changed():
        return "the store reads in Feast's own way"
    provider = store.provider
    if getattr(type(provider), "get_online_features_async", None) is not (
        PassthroughProvider.get_online_features_async
    ):
        return f"the provider {type(provider).__name__} reads in its own way"
    if type(provider.online_store) is not SketchOnlineStore:
        return f"the online store is of type {type(provider.online_store).__name__}"
    if type(store.registry).is_cache_valid is BaseRegistry.is_cache_valid:
        return f"a {type(store.registry).__name__} keeps no copy here, and is asked at each request"
    return ""


def run(
    store: FeatureStore, *, metrics_port: int = 8000, auth_cache_seconds: float = 0.0, **options: Any
) -> None:
    """Serve in worker processes of gunicorn, as ``feast serve`` does, until interrupted.

    Parameters
    ----------
    metrics_port : where metrics are exported, on the host of the server.
    auth_cache_seconds : see `Guard`.
    options : those of `FeatureStore.serve`, all of them.

    Raises SketchStoreError: metrics cannot be exported there.
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


class FeatureServer:
    """An ASGI app that answers plain reads itself, and gives all other requests to another one."""

    def __init__(self, answers: Answers, feast_app: App):
        self._answers = answers
        self._feast_app = feast_app

    async def __call__(self, scope: MutableMapping[str, Any], receive: _Receive, send: _Send) -> None:
        """Serve one connection, as ASGI defines it."""
        if _is_read(scope):
            body, last = await _body(receive)
            answer = await self._answers.to(scope, body) if last["type"] == "http.request" else None
            if answer is not None:
                await _answer(send, answer)
                return
            receive = _again(body, last, receive)
        await self._feast_app(scope, receive, send)


def _is_read(scope: MutableMapping[str, Any]) -> bool:
    """Whether a request may be answered here."""
    is_post = scope["type"] == "http" and scope["path"] == PATH and scope["method"] == "POST"
    return is_post and _is_json(scope["headers"])


def _is_json(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether the headers of a request say that its body is JSON."""
    kinds = [value for name, value in headers if name == b"content-type"]
    return len(kinds) == 1 and kinds[0].partition(b";")[0].strip().lower() == b"application/json"


async def _body(receive: _Receive) -> tuple[bytes, _Message]:
    """The body of a request, and the last message, which says whether the client is still connected."""
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.request":
            parts.append(message.get("body", b""))
        if message["type"] != "http.request" or not message.get("more_body", False):
            return b"".join(parts), message


def _again(body: bytes, last: _Message, receive: _Receive) -> _Receive:
    """Pass a body that was already read to another app."""
    is_whole = last["type"] == "http.request"
    messages: list[_Message] = [{"type": "http.request", "body": body, "more_body": not is_whole}]
    if not is_whole:
        messages.append(last)

    async def replay() -> _Message:
        return messages.pop(0) if messages else await receive()

    return replay


async def _answer(send: _Send, body: bytes) -> None:
    headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
